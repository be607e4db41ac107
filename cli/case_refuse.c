/* SPDX-License-Identifier: Apache-2.0 */
/* Refusals: of a call that no backend may run, and of a row for what the case asks of it. */
#include <stdlib.h>
#include <string.h>

#include "case.h"

static bool any_stride(const case_call *c) { return case_field(c->json, "strides") != NULL; }

static bool uses_dtype(const case_call *c, int32_t d) {
  for (int i = CASE_Q; i <= CASE_OUT; i++)
    if ((i <= CASE_V || i >= CASE_OUT) && c->t[i].dtype == d) return true;
  return false;
}

bool case_code_fits(const case_call *c, int32_t code, const char *row) {
  const rapt_problem *p = &c->p;
  bool half = uses_dtype(c, RAPT_FP16) || uses_dtype(c, RAPT_BF16);
  switch (code) {
    case RAPT_CODE_ISA:
    case RAPT_CODE_UNTESTED: return !strncmp(row, "cpu.", 4);
    case RAPT_CODE_DTYPE: return uses_dtype(c, RAPT_FP64) || (half && c->t[CASE_OUT].dtype != c->t[CASE_Q].dtype);
    case RAPT_CODE_DTYPE_MIX: return (p->flags & RAPT_MIXED_KV) != 0;
    case RAPT_CODE_HEADS: return c->Hq != c->Hkv;
    case RAPT_CODE_HEAD_DIM: return !(c->D >= 1 && c->D <= 256);
    case RAPT_CODE_VALUE_DIM: return c->D != c->Dv;
    case RAPT_CODE_STRIDE: return any_stride(c);
    case RAPT_CODE_OFFSET_RANGE: return c->huge;
    case RAPT_CODE_ALIGNMENT: return p->flags & RAPT_CAUSAL || p->has & RAPT_HAS_WINDOW || p->slopes.dtype;
    case RAPT_CODE_WINDOW: return (p->has & RAPT_HAS_WINDOW) != 0;
    case RAPT_CODE_MASK: return p->mask.dtype != 0;
    case RAPT_CODE_BIAS: return p->bias.dtype != 0;
    case RAPT_CODE_BROADCAST: return p->mask.dtype || p->bias.dtype;
    case RAPT_CODE_LENGTHS: return p->q_len || p->kv_len;
    case RAPT_CODE_PACKED: return c->packed;
    case RAPT_CODE_CU_SEQLENS: return c->packed;
    case RAPT_CODE_ALIBI: return p->slopes.dtype != 0;
    case RAPT_CODE_SOFTCAP: return p->softcap != 0;
    case RAPT_CODE_SINK: return p->sinks.dtype != 0;
    case RAPT_CODE_SCALE: return (p->has & RAPT_HAS_SCALE) != 0;
    case RAPT_CODE_DROPOUT:
    case RAPT_CODE_RNG: return p->dropout > 0;
    case RAPT_CODE_STRICT: return (p->flags & RAPT_STRICT) != 0;
    case RAPT_CODE_GRAD: return p->backward != 0;
    case RAPT_CODE_GRAD_BIAS: return p->backward && p->flags & RAPT_GRAD_BIAS;
    case RAPT_CODE_GRAD_SINK: return p->backward && p->flags & RAPT_GRAD_SINKS;
    case RAPT_CODE_SLOW: return strcmp(row, "ref") == 0;
    default: return false;
  }
}

static void check_reason(const case_call *c, const rapt_reason *why, const char *row, cli_str *text) {
  char *said = cli_reason_text(why, row);
  if (why->state != RAPT_FAILED) cli_str_printf(text, "%s is not evaluated: %s\n", row, said);
  else if (!case_code_fits(c, why->code, row)) cli_str_printf(text, "nothing in the case explains %s\n", said);
  free(said);
}

/* A refusal has reasons for every own row that was asked, and each of them must speak of something that the case has.
 * row: the required one, or NULL for the automatic choice, where every own row's reasons count. */
void case_check_refusal(const case_call *c, const rapt_report *r, const char *row, cli_str *text) {
  int asked = 0;
  for (uint32_t i = 0; i < rapt_report_count(r); i++) {
    rapt_verdict v = RAPT_VERDICT_INIT;
    rapt_reason why = RAPT_REASON_INIT;
    if (rapt_report_verdict(r, i, &v) != RAPT_OK) continue;
    bool own = !strncmp(v.row, "cpu.", 4) || !strcmp(v.row, "ref");
    if (row ? strcmp(v.row, row) != 0 : !own) continue;
    asked++;
    if (v.can != RAPT_UNABLE || !v.n_reasons)
      cli_str_printf(text, "%s: the call is refused, but the row has no reason\n", v.row);
    for (uint32_t k = 0; k < v.n_reasons; k++)
      if (rapt_report_reason(r, i, k, &why) == RAPT_OK) check_reason(c, &why, v.row, text);
  }
  if (!asked) cli_str_printf(text, "the report has no verdict for %s\n", row ? row : "any own row");
}

void case_check_fault(const case_call *c, rapt_status st, const rapt_reason *why, cli_str *text) {
  const json_t *want = case_field(c->json, "refuse"), *has = case_field(want, "message_has"), *word;
  const char *status = case_text(case_field(want, "status"), "refuse.status");
  const char *code = case_text(case_field(want, "code"), "refuse.code");
  const char *argument = case_text(case_field(want, "argument"), "refuse.argument");
  char *said = cli_reason_text(why, NULL);
  if (strcmp(cli_status(st), status)) cli_str_printf(text, "status is %s, want %s\n", cli_status(st), status);
  else if (strcmp(rapt_code_name(why->code), code))
    cli_str_printf(text, "code is %s, want %s: %s\n", rapt_code_name(why->code), code, said);
  else if (strcmp(rapt_field_name(why->field), argument))
    cli_str_printf(text, "argument is %s, want %s: %s\n", rapt_field_name(why->field), argument, said);
  else if (!strstr(said, argument)) cli_str_printf(text, "the message does not name %s: %s\n", argument, said);
  size_t i;
  json_array_foreach(has, i, word) if (!strstr(said, case_text(word, "refuse.message_has")))
      cli_str_printf(text, "the message lacks '%s': %s\n", json_string_value(word), said);
  const case_tensor *out = &c->t[CASE_OUT];
  if (c->built == RAPT_OK && c->alias_out < 0 && !case_tensor_same(out)) cli_str_add(text, "the output was written\n");
  free(said);
}
