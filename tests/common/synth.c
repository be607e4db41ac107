/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cm.h"

#include "common/synth.h"

#include <stdio.h>
#include <string.h>

void tc_synth_begin(tc_synth *s, const char *facts) {
  memset(s, 0, sizeof *s);
  s->g.backends = s->backends;
  s->g.broken = s->broken;
  s->g.rows = s->rows;
  rapti_facts_init(&s->g.facts, RAPT_CPU);
  s->g.facts.isa = RAPTI_ISA_AVX2;
  s->g.facts.threads = 2;
  if (!facts) return;
  rapt_reason why = {.struct_size = sizeof why};
  if (rapti_facts_parse(facts, strlen(facts), &s->g.facts, &why) != RAPT_OK) fail_msg("facts: %s: %s", facts, why.got);
  s->g.facts.what_if = 1;
}

rapt_row tc_synth_row(const char *id) {
  return (rapt_row){.struct_size = RAPT_ROW_SIZE, .kinds = RAPT_KIND(RAPT_META + 1) - 1u, .ran_on_hardware = 1, .id = id,
                    .dtypes = RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16) | RAPT_DT(RAPT_FP32) | RAPT_DT(RAPT_FP64),
                    .dv_rule = RAPT_DV_ANY, .determinism = RAPT_DET_BATCH, .determinism_backward = RAPT_DET_BATCH,
                    .can = (RAPT_CAN_CAUSAL_WIDE << 1) - 1};
}

/* Never called: a registered row has code. */
static rapt_status no_run(void *self, uint32_t row, void *state, const rapt_problem *cast, const rapt_buffers *b,
                          void *workspace, void *stream) {
  (void)self, (void)row, (void)state, (void)cast, (void)b, (void)workspace, (void)stream;
  return RAPT_INTERNAL;
}

rapt_backend *tc_synth_add(tc_synth *s, const rapt_row *rows, uint32_t n, int registered) {
  uint32_t index = s->g.n_backends++;
  s->backends[index] = (rapt_backend){.struct_size = RAPT_BACKEND_SIZE, .api_version = RAPT_PROVIDER_VERSION, .n_rows = n,
                                      .rows = rows, .run = no_run};
  for (uint32_t i = 0; i < n; i++) {
    rapti_cap *cap = &s->rows[s->g.n_rows++];
    rapt_reason why = {.struct_size = sizeof why};
    if (rapti_cap_compile(&rows[i], cap, &why) != RAPT_OK) fail_msg("row %s: %s, want %s", rows[i].id, why.got, why.want);
    cap->backend = index;
    cap->local = i;
    cap->registered = registered;
  }
  rapti_registry_finish(&s->g);
  return &s->backends[index];
}

rapt_backend *tc_synth_add_row(tc_synth *s, const rapt_row *row, int registered) {
  return tc_synth_add(s, row, 1, registered);
}

void tc_synth_request(const char *text, rapti_request *r) {
  rapt_problem p = {.struct_size = sizeof p};
  rapt_reason why = {.struct_size = sizeof why};
  char names[256];
  if (rapt_problem_parse(text, strlen(text), &p, names, sizeof names, &why) != RAPT_OK)
    fail_msg("%s: %s, want %s", text, why.got, why.want);
  if (rapti_request_make(&p, r, &why) != RAPT_OK)
    fail_msg("%s: %s %s, want %s", text, rapt_code_name(why.code), why.got, why.want);
}

void tc_synth_policy(const tc_synth *s, const char *require, const char *prefer, const char *forbid,
                     rapti_policy *policy) {
  rapti_settings levels[RAPTI_LEVELS] = {0};
  levels[RAPTI_CALL].require = require;
  levels[RAPTI_CALL].prefer = prefer;
  levels[RAPTI_CALL].forbid = forbid;
  rapt_reason why = {.struct_size = sizeof why};
  if (rapti_policy_make(levels, &s->g, NULL, policy, &why) != RAPT_OK) fail_msg("%s, want %s", why.got, why.want);
}

const char *tc_synth_verdict(const tc_synth *s, uint32_t row, const rapti_request *r, const rapti_policy *policy) {
  static char text[1024];
  rapti_match m;
  rapti_match_row(&s->g, row, r, policy, false, &m, NULL);
  size_t n = 0;
  for (uint32_t i = 0; i < m.n; i++) {
    const rapti_brief *b = &m.reason[i];
    n += (size_t)snprintf(text + n, sizeof text - n, "%s%s(%s)%s", i ? "," : "", rapt_code_name(b->code),
                          rapt_field_name(b->field), b->state == RAPT_NOT_EVALUATED ? "?" : "");
  }
  int can = RAPT_ABLE;
  for (uint32_t i = 0; i < m.n; i++)
    if (m.reason[i].state == RAPT_FAILED) can = RAPT_UNABLE;
    else if (can == RAPT_ABLE) can = RAPT_UNDECIDED;
  assert_int_equal(m.can, can);
  return m.n ? text : "ok";
}

/* Takes part, so that what is left are the row's own limits. */
static void named_policy(const tc_synth *s, uint32_t row, rapti_policy *policy) {
  tc_synth_policy(s, NULL, s->rows[row].row.id, NULL, policy);
}

const char *tc_synth_explain(const tc_synth *s, uint32_t row, const char *problem) {
  rapti_request r;
  rapti_policy policy;
  tc_synth_request(problem, &r);
  named_policy(s, row, &policy);
  return tc_synth_verdict(s, row, &r, &policy);
}

const char *tc_synth_reason(const tc_synth *s, uint32_t row, const char *problem, uint32_t i) {
  static char text[300];
  rapti_request r;
  rapti_policy policy;
  rapti_match m, again;
  rapt_reason why = {.struct_size = sizeof why, .code = -1};
  tc_synth_request(problem, &r);
  named_policy(s, row, &policy);
  rapti_match_row(&s->g, row, &r, &policy, false, &m, NULL);
  if (i >= m.n) return "no such reason";
  rapti_text_of of = {m.reason[i].seq, &why};
  rapti_match_row(&s->g, row, &r, &policy, false, &again, &of);
  assert_int_equal(why.code, m.reason[i].code);
  assert_int_equal(why.field, m.reason[i].field);
  assert_int_equal(why.state, m.reason[i].state);
  assert_int_equal(why.axis, m.reason[i].axis);
  snprintf(text, sizeof text, "%s | %s", why.got, why.want);
  return text;
}
