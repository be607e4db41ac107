/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a case: by automatic choice or with one row required. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

static const double ref_products = 0x1p31;   /* more is minutes of work for the reference (D14) */

size_t case_find(const case_suite *s, const char *id) {
  for (size_t i = 0; i < s->n_cases; i++)
    if (!strcmp(json_string_value(json_object_get(s->cases[i], "id")), id)) return i;
  case_bad("case '%s' is named, but not there", id);
}

case_call *case_get(case_suite *s, size_t i) {
  case_call *c = &s->calls[i];
  if (c->json) return c->B < 0 ? NULL : c;
  case_build(c, s->cases[i]);
  if (c->built == RAPT_OK && !case_place(c)) {
    case_free(c);
    c->B = -1;                         /* remembered: not granted */
    return NULL;
  }
  const json_t *name;
  size_t k;
  json_array_foreach(case_field(c->json, "readonly"), k, name) {
    int t = case_tensor_find(case_text(name, "readonly"));
    if (t < 0) case_bad("readonly: '%s' is no tensor", json_string_value(name));
    case_region_protect(&c->t[t].region, true);
  }
  return c;
}

bool case_bits_equal(const double *a, const double *b, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (memcmp(&a[i], &b[i], sizeof *a) && !(isnan(a[i]) && isnan(b[i]))) return false;
  return true;
}

rapt_status case_again(const case_suite *s, const case_call *c, size_t slot, double *out, double *lse) {
  rapt_problem p = c->p;
  p.require = s->slots[slot];
  if (c->alias_out < 0) case_tensor_restore(&c->t[CASE_OUT]);
  case_tensor_restore(&c->t[CASE_LSE]);
  rapt_status st = rapt_attention(s->ctx, &p, &c->b, NULL);
  if (st != RAPT_OK) return st;
  case_tensor_gather(&c->t[CASE_OUT], out);
  case_tensor_gather(&c->t[CASE_LSE], lse);
  return st;
}

/* Fills scratch memory of the library with NaN: one call on inputs of NaN. */
static void dirty(const case_suite *s, const case_call *c, size_t slot, double *out, double *lse) {
  if (!case_field(c->json, "surround") || case_field(c->json, "readonly") || case_field(c->json, "alias") || c->huge)
    return;
  for (int i = CASE_Q; i <= CASE_V; i++) {
    double *bad = cli_alloc((size_t)c->t[i].count + 1, sizeof *bad);
    for (int64_t k = 0; k < c->t[i].count; k++) bad[k] = NAN;
    case_tensor_scatter(&c->t[i], bad);
    free(bad);
  }
  case_again(s, c, slot, out, lse);
  for (int i = CASE_Q; i <= CASE_V; i++) case_tensor_scatter(&c->t[i], c->t[i].value);
}

/* S13, S16: inputs and gaps as before, every output element written. */
static void check_memory(const case_call *c, cli_str *wrong) {
  for (int i = 0; i < CASE_INPUTS; i++)
    if (!case_tensor_same(&c->t[i])) cli_str_printf(wrong, "input bytes of %s were written\n", case_tensor_names[i]);
  for (int i = CASE_OUT; i <= CASE_LSE; i++) {
    const case_tensor *t = &c->t[i];
    if (!case_tensor_gaps_same(t))
      cli_str_printf(wrong, "bytes between or around the elements of %s were written\n", case_tensor_names[i]);
    int64_t left = case_field(case_field(c->json, "prefill"), case_tensor_names[i]) ? -1 : case_tensor_unwritten(t);
    if (left >= 0) cli_str_printf(wrong, "%s: element %lld was not written\n", case_tensor_names[i], (long long)left);
  }
}

static void grad_flags(const case_call *c, rapt_problem *p) {
  static const struct {
    const char *name;
    uint64_t flag;
  } grads[] = {
      {"q", RAPT_GRAD_Q}, {"k", RAPT_GRAD_K}, {"v", RAPT_GRAD_V}, {"bias", RAPT_GRAD_BIAS}, {"sinks", RAPT_GRAD_SINKS}};
  const json_t *list = case_field(c->json, "grads"), *name;
  size_t k;
  p->backward = 1;
  if (!list) p->flags |= RAPT_GRAD_Q | RAPT_GRAD_K | RAPT_GRAD_V;
  json_array_foreach(list, k, name) for (size_t i = 0; i < CLI_COUNT(grads);
                                         i++) if (!strcmp(case_text(name, "grads"), grads[i].name)) p->flags |=
      grads[i].flag;
}

/* The gradients of a backward case: this version must refuse them, with the right code. */
static void ask_backward(const case_suite *s, const case_call *c, size_t slot, case_result *r) {
  case_call back = *c;
  rapt_report *report = NULL;
  grad_flags(c, &back.p);
  back.p.require = s->slots[slot];
  rapt_status st = rapt_explain(s->ctx, &back.p, &report);
  if (st == RAPT_REFUSED && report) {
    case_check_refusal(&back, report, s->slots[slot], &r->wrong);
    r->no_backward = true;
  } else {
    cli_str_printf(&r->wrong, "the gradients are answered %s, want REFUSED\n", cli_status(st));
  }
  rapt_report_destroy(report);
}

/* Rows that are not rapt's own cannot run here. */
static void check_other_rows(const case_suite *s, const case_call *c, cli_str *wrong) {
  rapt_report *report = NULL;
  if (rapt_explain(s->ctx, &c->p, &report) == RAPT_OK)
    for (uint32_t i = 0; i < rapt_report_count(report); i++) {
      rapt_verdict v = RAPT_VERDICT_INIT;
      if (rapt_report_verdict(report, i, &v) != RAPT_OK || !strncmp(v.row, "cpu.", 4) || !strcmp(v.row, "ref"))
        continue;
      if (v.can == RAPT_ABLE) cli_str_printf(wrong, "%s can run, and has no provider\n", v.row);
    }
  rapt_report_destroy(report);
}

static void take_fault(const case_call *c, const rapt_report *report, case_result *r) {
  rapt_reason why = RAPT_REASON_INIT;
  if (report) rapt_report_error(report, &why);
  if (!strcmp(c->kind, "refuse")) {
    case_check_fault(c, r->status, &why, &r->wrong);
    return;
  }
  char *said = cli_reason_text(&why, NULL);
  cli_str_printf(&r->wrong, "%s %s: %s\n", cli_status(r->status), rapt_code_name(why.code), said);
  free(said);
}

static void call(const case_suite *s, case_call *c, size_t slot, case_result *r) {
  rapt_report *report = NULL;
  rapt_decision d = RAPT_DECISION_INIT;
  rapt_problem p = c->p;
  p.require = s->slots[slot];
  r->out = cli_alloc((size_t)c->t[CASE_OUT].count + 1, sizeof(double));
  r->lse = cli_alloc((size_t)c->t[CASE_LSE].count + 1, sizeof(double));
  dirty(s, c, slot, r->out, r->lse);
  if (c->alias_out < 0) case_tensor_restore(&c->t[CASE_OUT]);
  case_tensor_restore(&c->t[CASE_LSE]);
  r->status = rapt_attention(s->ctx, &p, &c->b, &report);
  if (report && rapt_report_decision(report, &d) == RAPT_OK) {
    snprintf(r->row, sizeof r->row, "%s", d.row ? d.row : "");
    snprintf(r->kernel, sizeof r->kernel, "%s", d.kernel ? d.kernel : "");
  }
  if (r->status == RAPT_OK && strcmp(c->kind, "refuse")) {
    check_memory(c, &r->wrong);
    case_tensor_gather(&c->t[CASE_OUT], r->out);
    case_tensor_gather(&c->t[CASE_LSE], r->lse);
    if (s->slots[slot] && strcmp(r->row, s->slots[slot]))
      cli_str_printf(&r->wrong, "ran on '%s', required was %s\n", r->row, s->slots[slot]);
  } else if (r->status == RAPT_REFUSED && report && (s->slots[slot] || strcmp(c->kind, "refuse"))) {
    /* also for a fault that only a run shows, such as an overlap: a row that is not here has refused before */
    case_check_refusal(c, report, s->slots[slot], &r->wrong);
    if (!case_tensor_same(&c->t[CASE_OUT]) || !case_tensor_same(&c->t[CASE_LSE]))
      cli_str_add(&r->wrong, "a refused call wrote an output\n");
  } else {
    take_fault(c, report, r);
  }
  rapt_report_destroy(report);
}

case_result *case_run(case_suite *s, size_t i, size_t slot) {
  case_result *r = &s->results[i * s->n_slots + slot];
  if (r->made) return r;
  r->made = true;
  case_call *c = case_get(s, i);
  if (!c) {
    r->skip = "its memory is not granted";
    return r;
  }
  double products = (double)c->B * (double)c->Hq * (double)c->Sq * (double)c->Skv * (double)(c->D + c->Dv);
  if (s->slots[slot] && !strcmp(s->slots[slot], "ref") && products > ref_products) {
    r->skip = "too much work for ref";
  } else if (c->built != RAPT_OK) {
    r->status = c->built;
    if (!strcmp(c->kind, "refuse")) {
      case_check_fault(c, r->status, &c->why, &r->wrong);
    } else {
      char *said = cli_reason_text(&c->why, NULL);
      cli_str_printf(&r->wrong, "%s: %s\n", cli_status(c->built), said);
      free(said);
    }
  } else {
    call(s, c, slot, r);
    if (!s->slots[slot] && strcmp(c->kind, "refuse")) check_other_rows(s, c, &r->wrong);
    if (!strcmp(c->kind, "backward")) ask_backward(s, c, slot, r);
  }
  return r;
}
