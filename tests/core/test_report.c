/* SPDX-License-Identifier: Apache-2.0 */
/* Reports: contents (R2, D4), JSON (R6), wording (R3), one report for every outcome (E3, E8). */
#include "fake.h"

#include <jansson.h>

static json_t *parse(const rapt_report *r) {
  char *text = report_text(r, RAPT_FORM_JSON);
  json_error_t e;
  json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, &e);
  if (!j) fail_msg("%s at %d in %s", e.text, e.position, text);
  free(text);
  return j;
}

static void keys_are(const json_t *object, const char *want) {
  char got[1024] = "";
  const char *key;
  json_t *value;
  json_object_foreach((json_t *)(uintptr_t)object, key, value) {   /* insertion order is the text's order */
    strcat(got, key);
    strcat(got, " ");
  }
  assert_string_equal(got, want);
}

static const char *string_at(const json_t *j, const char *key) {
  const char *s = json_string_value(json_object_get(j, key));
  return s ? s : "(none)";
}

#define REPORT_KEYS \
  "schema version status error hypothetical undecided missing problem policy facts tables chosen casts off scale rewrites copies " \
  "workspace rng assume_finite exempt backward verify rows "

static void test_json_ok_r6(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  rapt_problem p = parsed("fp32/fp32/bf16 b1 h2 q3 k4 d8 causal=br scale=inf autocast=bf16 mem=1000000");
  p.scale = -0.25;
  rapt_report *r, *again;
  assert_int_equal(rapt_explain(ctx, &p, &r), RAPT_OK);
  assert_int_equal(rapt_explain(ctx, &p, &again), RAPT_OK);
  json_t *j = parse(r);
  keys_are(j, REPORT_KEYS);
  keys_are(json_object_get(j, "policy"), "require prefer forbid memory_limit ref_limit isa threads verify levels ");
  keys_are(json_object_get(j, "chosen"),
           "backend row kernel isa threads classes accuracy exactness level fallback consents ");
  assert_string_equal(string_at(j, "schema"), "rapt.decision/1");
  assert_string_equal(string_at(j, "status"), "OK");
  assert_true(json_is_null(json_object_get(j, "error")));
  assert_int_equal(json_integer_value(json_object_get(j, "off")), 1);
  assert_true(json_real_value(json_object_get(j, "scale")) == -0.25);
  assert_int_equal(strlen(string_at(j, "tables")), 16);
  const json_t *casts = json_object_get(j, "casts"), *q = json_array_get(casts, 0);
  assert_int_equal(json_array_size(casts), 2);         /* v is bf16 already (A3) */
  keys_are(q, "tensor from to bytes ");
  assert_string_equal(string_at(q, "from"), "fp32");
  assert_string_equal(string_at(q, "to"), "bf16");
  assert_int_equal(json_integer_value(json_object_get(q, "bytes")), 128);   /* 96, in whole 64 */
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_int_equal(d.cast_bytes, 256);
  assert_int_equal(d.casts, 1u << RAPT_FIELD_Q | 1u << RAPT_FIELD_K);
  assert_int_equal(d.cast_dtype, RAPT_BF16);
  assert_int_equal(json_integer_value(json_object_get(j, "workspace")), d.workspace_bytes);
  assert_string_equal(string_at(json_object_get(j, "chosen"), "row"), d.row);
  json_decref(j);
  char *a = report_text(r, RAPT_FORM_JSON), *b = report_text(again, RAPT_FORM_JSON);
  assert_string_equal(a, b);
  free(a);
  free(b);
  rapt_report_destroy(r);
  rapt_report_destroy(again);
  rapt_ctx_destroy(ctx);
}

/* Rows of the JSON and of the accessors are the same, in table order, each with all its reasons (D4). */
static void test_rows_d4(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.row.dtypes = RAPT_DT(RAPT_FP16);
  f.row.d_max = 4;
  f.row.can &= ~RAPT_CAN_LSE;
  fake_register(ctx, &f);
  rapt_problem p = parsed(SMALL " lse");
  rapt_report *r;
  assert_int_equal(rapt_explain(ctx, &p, &r), RAPT_OK);
  json_t *j = parse(r), *rows = json_object_get(j, "rows");
  assert_int_equal(json_array_size(rows), rapt_row_count(ctx));
  assert_int_equal(rapt_report_count(r), rapt_row_count(ctx));
  int chosen = 0;
  for (uint32_t i = 0; i < rapt_report_count(r); i++) {
    rapt_verdict v = RAPT_VERDICT_INIT;
    rapt_row_info info = RAPT_ROW_INFO_INIT;
    assert_int_equal(rapt_report_verdict(r, i, &v), RAPT_OK);
    assert_int_equal(rapt_row_get(ctx, i, &info), RAPT_OK);
    assert_string_equal(v.row, info.id);
    chosen += v.chosen;
    const json_t *row = json_array_get(rows, i), *reasons = json_object_get(row, "reasons");
    keys_are(row, "row verdict reasons ");
    assert_string_equal(string_at(row, "row"), v.row);
    assert_int_equal(json_array_size(reasons), v.n_reasons);
    assert_int_equal(v.can == RAPT_ABLE, v.n_reasons == 0);
    int before = 0;
    for (uint32_t k = 0; k < v.n_reasons; k++) {
      rapt_reason reason = RAPT_REASON_INIT;
      assert_int_equal(rapt_report_reason(r, i, k, &reason), RAPT_OK);
      const json_t *one = json_array_get(reasons, k);
      keys_are(one, "code state field axis index got want text ");
      assert_string_equal(string_at(one, "code"), rapt_code_name(reason.code));
      assert_true(reason.code >= before);              /* in the order of the codes */
      before = reason.code;
    }
  }
  assert_int_equal(chosen, 1);
  uint32_t at = row_index(ctx, "fake");
  const int want[] = {RAPT_CODE_DTYPE, RAPT_CODE_HEAD_DIM, RAPT_CODE_LSE};
  rapt_verdict v = RAPT_VERDICT_INIT;
  assert_int_equal(rapt_report_verdict(r, at, &v), RAPT_OK);
  assert_int_equal(v.n_reasons, 3);
  for (uint32_t k = 0; k < 3; k++) {
    rapt_reason reason = RAPT_REASON_INIT;
    assert_int_equal(rapt_report_reason(r, at, k, &reason), RAPT_OK);
    assert_int_equal(reason.code, want[k]);
  }
  rapt_reason reason = RAPT_REASON_INIT;
  assert_int_equal(rapt_report_reason(r, at, 3, &reason), RAPT_ARG);
  assert_int_equal(rapt_report_verdict(r, rapt_row_count(ctx), &v), RAPT_ARG);
  assert_int_equal(rapt_report_error(r, &reason), RAPT_ARG);
  json_decref(j);
  rapt_report_destroy(r);
  rapt_ctx_destroy(ctx);
}

static void test_arg_e3(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL);
  s.p.Skv = -4;
  s.p.require = "\"\\\x01\xff";                        /* text of a caller: must not break the JSON */
  for (int way = 0; way < 3; way++) {
    rapt_report *r = NULL;
    rapt_plan *plan = NULL;
    rapt_status st = way == 0 ? rapt_explain(ctx, &s.p, &r)
                   : way == 1 ? rapt_plan_create(ctx, &s.p, &plan, &r) : rapt_attention(ctx, &s.p, &s.b, &r);
    assert_int_equal(st, RAPT_ARG);
    assert_null(plan);
    rapt_decision d = RAPT_DECISION_INIT;
    assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
    assert_int_equal(d.status, RAPT_ARG);
    assert_string_equal(d.row, "");
    assert_int_equal(rapt_report_count(r), 0);
    rapt_reason why = RAPT_REASON_INIT;
    assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
    assert_int_equal(why.code, RAPT_CODE_SIZE);
    json_t *j = parse(r), *e = json_object_get(j, "error");
    keys_are(j, REPORT_KEYS);
    keys_are(e, "code field axis index got want text ");
    assert_string_equal(string_at(e, "code"), "SIZE");
    assert_int_equal(json_array_size(json_object_get(j, "rows")), 0);
    json_decref(j);
    const char *names[RAPT_FIELD_COUNT] = {NULL};
    names[why.field] = "key_length";                   /* a host's own spelling */
    char text[4096];
    rapt_report_format(r, RAPT_FORM_TEXT, names, text, sizeof text);
    assert_non_null(strstr(text, "key_length"));
    rapt_report_destroy(r);
  }
  rapt_ctx_destroy(ctx);
}

/* E7: an unknown name is found before a fault that only the policy's dtypes show, and after one of the options. */
static void test_name_order_e7(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  const struct { const char *problem; int code; } cases[] = {
    {"fp32/fp16/fp16 b1 h2 q3 k4 d8 require=nobody", RAPT_CODE_UNKNOWN_NAME},
    {"fp32/fp16/fp16 b1 h2 q3 k4 d8", RAPT_CODE_DTYPE_MIX},
    {"fp32/fp16/fp16 b1 h2 q3 k4 d8 causal require=nobody", RAPT_CODE_ALIGNMENT_UNSET},
    {"fp32 b1 h2 q3 k4 d8 out.st=0,0,0,0 forbid=nobody", RAPT_CODE_UNKNOWN_NAME},
    {"fp32 b1 h2 q3 k4 d8 out.st=0,0,0,0", RAPT_CODE_OVERLAP},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rapt_problem p = parsed(cases[i].problem);
    rapt_report *r;
    rapt_reason why = RAPT_REASON_INIT;
    assert_int_equal(rapt_explain(ctx, &p, &r), RAPT_ARG);
    assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
    assert_string_equal(rapt_code_name(why.code), rapt_code_name(cases[i].code));
    rapt_report_destroy(r);
  }
  rapt_ctx_destroy(ctx);
}

static void test_refused(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL " require=ref forbid=class:reference");
  rapt_report *r;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_REFUSED);
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_int_equal(d.status, RAPT_REFUSED);
  assert_string_equal(d.row, "");
  assert_int_equal(rapt_report_count(r), rapt_row_count(ctx));
  json_t *j = parse(r);
  assert_string_equal(string_at(j, "status"), "REFUSED");
  assert_true(json_is_null(json_object_get(j, "chosen")));
  json_decref(j);
  char *text = report_text(r, RAPT_FORM_TEXT);
  assert_int_equal(strncmp(text, "REFUSED", 7), 0);
  assert_non_null(strstr(text, "FORBIDDEN"));
  free(text);
  rapt_report_destroy(r);
  assert_int_equal(row_entered(ctx, "ref"), 0);        /* D10 */
  rapt_ctx_destroy(ctx);
}

static void test_wording_r3(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.row.d_max = 4;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL " require=ref,fake prefer=fake");
  rapt_report *r;
  rapt_plan *plan;
  assert_int_equal(rapt_explain(ctx, &s.p, &r), RAPT_OK);
  char *text = report_text(r, RAPT_FORM_TEXT);
  assert_int_equal(strncmp(text, "would choose ref when called with " SMALL, 34), 0);
  assert_null(strstr(text, " uses"));
  const char *better = strstr(text, "better rows passed over");
  assert_non_null(better);
  assert_non_null(strstr(better, "HEAD_DIM: "));
  free(text);
  rapt_report_destroy(r);
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, &r), RAPT_OK);
  text = report_text(r, RAPT_FORM_TEXT);
  assert_int_equal(strncmp(text, "would choose ref", 16), 0);
  free(text);
  rapt_report_destroy(r);
  rapt_plan_destroy(plan);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_OK);
  text = report_text(r, RAPT_FORM_TEXT);
  assert_int_equal(strncmp(text, "ref ran " SMALL, 8 + strlen(SMALL)), 0);
  free(text);
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_int_equal(d.fallback, 1);
  rapt_report_destroy(r);
  assert_int_equal(row_entered(ctx, "ref"), 1);        /* R1 */
  rapt_ctx_destroy(ctx);
}

/* A run that a check stops has its fault in the report, and no output is touched (E2). */
static void test_fault_of_run(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL);
  s.out[0] = 3.0f;
  s.b.k = NULL;
  rapt_report *r;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_ARG);
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
  assert_int_equal(why.code, RAPT_CODE_NULL);
  assert_int_equal(why.field, RAPT_FIELD_K);
  assert_true(s.out[0] == 3.0f);
  assert_int_equal(rapt_report_count(r), 0);
  char *text = report_text(r, RAPT_FORM_TEXT);
  assert_int_equal(strncmp(text, "ARG for " SMALL, 8 + strlen(SMALL)), 0);
  free(text);
  rapt_report_destroy(r);
  rapt_ctx_destroy(ctx);
}

static void test_truncation_e7(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  rapt_problem p = parsed(SMALL);
  rapt_report *r;
  assert_int_equal(rapt_explain(ctx, &p, &r), RAPT_OK);
  char *whole = report_text(r, RAPT_FORM_TEXT), part[40];
  memset(part, 'x', sizeof part);
  assert_int_equal(rapt_report_format(r, RAPT_FORM_TEXT, NULL, part, 20), strlen(whole));
  assert_int_equal(strlen(part), 19);
  assert_memory_equal(part, whole, 19);
  assert_int_equal(part[20], 'x');
  assert_int_equal(rapt_report_format(r, 99, NULL, part, 20), 0);
  assert_int_equal(rapt_report_format(NULL, RAPT_FORM_JSON, NULL, part, 20), 0);
  free(whole);
  rapt_report_destroy(r);
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_json_ok_r6), cmocka_unit_test(test_rows_d4), cmocka_unit_test(test_arg_e3),
    cmocka_unit_test(test_name_order_e7), cmocka_unit_test(test_refused), cmocka_unit_test(test_wording_r3),
    cmocka_unit_test(test_fault_of_run), cmocka_unit_test(test_truncation_e7),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
