/* SPDX-License-Identifier: Apache-2.0 */
#include "common/run.h"

#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- What was running when a guard page was touched ---- */

static const char *running_row = "", *running_case = "";

static void say(const char *s) {
  if (write(2, s, strlen(s)) < 0) _exit(98);
}

static void on_fault(int signal_number) {
  (void)signal_number;
  say("touched memory outside the tensors, or wrote to an input (S13): ");
  say(running_row);
  say(": ");
  say(running_case);
  say("\n");
  _exit(97);
}

static void watch(const tc_engine *e, const tc_case *c) {
  running_row = e->row->id;
  running_case = c->text;
  signal(SIGSEGV, on_fault);
  signal(SIGBUS, on_fault);
}

/* ---- One run ---- */

rapt_ctx *tc_context(const char *isa, uint32_t threads) {
  rapt_ctx_opts opts = {.struct_size = sizeof opts};
  rapt_reason why = {.struct_size = sizeof why};
  rapt_ctx *ctx = NULL;
  opts.isa = isa;
  opts.max_threads = threads;
  opts.flags = RAPT_CTX_NO_ENV;
  if (rapt_ctx_create(&opts, &ctx, &why) != RAPT_OK)
    fail_msg("no context at level %s: %s, %s, %s", isa ? isa : "default", rapt_code_name(why.code), why.got, why.want);
  return ctx;
}

static void check_report(tc_engine *e, const tc_case *c, rapt_status st, rapt_report *report) {
  rapt_decision d = {.struct_size = sizeof d};
  if (st != RAPT_OK) {
    char text[4096];
    rapt_report_format(report, RAPT_FORM_TEXT, NULL, text, sizeof text);
    fail_msg("%s: %s: %s\n%s", e->row->id, c->text, rapt_status_name((int32_t)st), text);
  }
  assert_int_equal(rapt_report_decision(report, &d), RAPT_OK);
  if (strcmp(d.row, e->row->id)) fail_msg("%s: %s: row %s ran", e->row->id, c->text, d.row);
  snprintf(e->kernel, sizeof e->kernel, "%s", d.kernel);
  snprintf(e->ran_isa, sizeof e->ran_isa, "%s", d.isa);
}

static void set_inputs_read_only(tc_case *c, bool on) {
  tc_tensor *inputs[] = {&c->q, &c->k, &c->v, &c->mask, &c->bias, &c->q_len, &c->kv_len, &c->q_offset};
  for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) tc_read_only(inputs[i], on);
}

void tc_before_run(tc_engine *e, tc_case *c) {
  tc_canary(&c->out);
  tc_canary(&c->lse);
  set_inputs_read_only(c, true);
  watch(e, c);
}

void tc_after_run(tc_engine *e, tc_case *c) {
  set_inputs_read_only(c, false);
  e->cases++;
  int64_t unwritten = tc_unwritten(&c->out) + (c->lse.base ? tc_unwritten(&c->lse) : 0);
  if (unwritten) fail_msg("%s: %s: %lld output elements not written (S16)", e->row->id, c->text, (long long)unwritten);
  int64_t spilled = tc_spilled(&c->out) + tc_spilled(&c->lse);
  if (spilled) fail_msg("%s: %s: %lld bytes beside the outputs changed (S13)", e->row->id, c->text, (long long)spilled);
}

void tc_run_on(tc_engine *e, rapt_ctx *ctx, tc_case *c) {
  rapt_problem p = c->p;
  rapt_report *report = NULL;
  p.require = e->row->id;
  tc_before_run(e, c);
  rapt_status st = rapt_attention(ctx, &p, &c->b, &report);
  check_report(e, c, st, report);
  rapt_report_destroy(report);
  tc_after_run(e, c);
}

void tc_run(tc_engine *e, tc_case *c) { tc_run_on(e, e->ctx, c); }

/* ---- Judging ---- */

static double dtype_max(int dtype) {
  if (dtype == RAPT_FP16) return 65504;
  if (dtype == RAPT_BF16) return 0x1.fep127;
  return dtype == RAPT_FP32 ? FLT_MAX : DBL_MAX;
}

/* Share of the bound; > 1 is a failure. */
static double share_of(int expect, bool plus_inf, double got, double exact, double bound, int dtype) {
  switch (expect) {
  case TC_ANY: return 0;
  case TC_ZERO: return got == exact ? 0 : INFINITY;
  case TC_NAN: return isnan(got) || (plus_inf && got == INFINITY) ? 0 : INFINITY;
  case TC_NONFINITE: return isfinite(got) ? INFINITY : 0;
  default: break;
  }
  if (isinf(got) && signbit(got) == signbit(exact) && fabs(exact) + bound > dtype_max(dtype)) return 0;   /* N2: store overflow */
  double share = fabs(got - exact) / bound;
  return isnan(share) ? INFINITY : share;
}

static void note(tc_engine *e, const tc_case *c, const char *what, int64_t row, int64_t d, double share, double got,
                 double exact, double bound) {
  e->checked++;
  int dtype = c->out.dtype;
  if (share > e->worst[dtype]) {
    e->worst[dtype] = share;
    snprintf(e->worst_case[dtype], sizeof e->worst_case[dtype], "%s", c->text);
  }
  if (share <= 1) return;
  const rapt_problem *p = &c->r.cast;
  fail_msg("%s (%s): %s: %s b %lld h %lld i %lld d %lld is %.9g, exact %.9g, bound %.3g (N13)", e->row->id, e->kernel,
           c->text, what, (long long)(row / p->Sq / p->Hq), (long long)(row / p->Sq % p->Hq), (long long)(row % p->Sq),
           (long long)d, got, exact, bound);
}

void tc_judge(tc_engine *e, const tc_case *c, const tc_oracle *o) {
  const rapt_problem *p = &c->r.cast;
  tc_tol tol = tc_tol_make(p, e->row);
  for (int64_t row = 0; row < o->rows; row++) {
    const tc_row *r = &o->row[row];
    for (int64_t d = 0; d < o->Dv; d++) {
      int64_t at = row * o->Dv + d;
      tc_element element = tc_oracle_element(o, row, d);
      double got = tc_get_nth(&c->out, at), bound = tc_out_bound(&tol, &element, o->out[at]);
      note(e, c, "out", row, d, share_of(o->expect[at], false, got, o->out[at], bound, c->out.dtype), got, o->out[at],
           bound);
    }
    if (!c->lse.base) continue;
    tc_element element = tc_oracle_element(o, row, -1);
    double got = tc_get_nth(&c->lse, row), bound = tc_lse_bound(&tol, &element, r->lse);
    note(e, c, "lse", row, -1, share_of(r->lse_expect, r->plus_inf, got, r->lse, bound, c->lse.dtype), got, r->lse,
         bound);
  }
}

void tc_check(tc_engine *e, const char *problem, const tc_fill *fill) {
  tc_case *c = tc_case_new(problem, fill);
  tc_oracle *o = tc_oracle_new(c);
  tc_run(e, c);
  tc_judge(e, c, o);
  tc_oracle_free(o);
  tc_case_free(c);
}

bool tc_takes(const tc_engine *e, const rapt_problem *p) { return e->row->dtypes & RAPT_DT(p->q.dtype); }

void tc_same_outputs(const tc_case *a, const tc_case *b) {
  if (!tc_same_bits(&a->out, &b->out)) fail_msg("%s: out differs in bits from\n%s: out (%s)", a->text, b->text,
                                                running_row);
  if (a->lse.base && b->lse.base && !tc_same_bits(&a->lse, &b->lse))
    fail_msg("%s: lse differs in bits from\n%s: lse (%s)", a->text, b->text, running_row);
}

/* ---- Tests by row ---- */

typedef struct pair { const tc_test *test; tc_engine *engine; char name[96]; } pair;

static void run_pair(void **state) {
  pair *p = *state;
  tc_engine *e = p->engine;
  if (!e->here) {
    print_message("not measured here: %s (this CPU has %s)\n", e->row->id, rapti_isa_name((int)rapti_isa_detect()));
    skip();
  }
  e->cases = e->checked = 0;
  memset(e->worst, 0, sizeof e->worst);
  p->test->run(e);
  if (!e->cases) fail_msg("%s ran nothing", p->name);
  print_message("%s: row %s isa %s (last kernel %s): %lld runs, %lld elements judged\n", p->test->name, e->row->id,
                e->ran_isa[0] ? e->ran_isa : "any", e->kernel, (long long)e->cases, (long long)e->checked);
  for (int dtype = RAPT_FP16; dtype <= RAPT_FP64; dtype++)
    if (e->worst[dtype] > 0)
      print_message("  worst share of a bound, %s out: %.3f at %s\n", rapt_dtype_name(dtype), e->worst[dtype],
                    e->worst_case[dtype]);
}

static size_t add_rows(tc_engine *list, size_t n, const rapt_backend *backend) {
  for (uint32_t i = 0; i < backend->n_rows; i++, n++) {
    tc_engine *e = &list[n];
    e->row = &backend->rows[i];
    e->isa = e->row->isa;
    e->here = !e->isa || rapti_isa_covers((int)rapti_isa_detect(), rapti_isa_find(e->isa, strlen(e->isa)));
    if (e->here) e->ctx = tc_context(e->isa, 1);
  }
  return n;
}

int tc_run_tests(const char *group, const tc_test *tests, size_t n) {
  const rapt_backend *cpu = rapti_backend_cpu(), *ref = rapti_backend_ref();
  tc_engine *engines = calloc(cpu->n_rows + ref->n_rows, sizeof *engines);
  size_t n_engines = add_rows(engines, add_rows(engines, 0, cpu), ref), measured = 0;
  pair *pairs = calloc(n * n_engines, sizeof *pairs);
  struct CMUnitTest *list = calloc(n * n_engines, sizeof *list);
  for (size_t i = 0; i < n * n_engines; i++) {
    pairs[i].test = &tests[i / n_engines];
    pairs[i].engine = &engines[i % n_engines];
    measured += pairs[i].engine->here;
    snprintf(pairs[i].name, sizeof pairs[i].name, "%s[%s]", pairs[i].test->name, pairs[i].engine->row->id);
    list[i].name = pairs[i].name;
    list[i].test_func = run_pair;
    list[i].initial_state = &pairs[i];
  }
  int failed = _cmocka_run_group_tests(group, list, n * n_engines, NULL, NULL);
  for (size_t i = 0; i < n_engines; i++) rapt_ctx_destroy(engines[i].ctx);
  free(list);
  free(pairs);
  free(engines);
  return measured ? failed : 1;
}
