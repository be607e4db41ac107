/* SPDX-License-Identifier: Apache-2.0 */
/* What a report says where facts are missing (D4, D20), where nothing is to be done (S6), and what a decision tells of
 * out (A6, D19). */
#include "fake.h"

static rapt_ctx *what_if(const char *facts) {
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.facts = facts;
  rapt_ctx *ctx = NULL;
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  return ctx;
}

static rapt_decision decided(rapt_ctx *ctx, const char *problem, rapt_status status, char **brief, char **json) {
  rapt_problem p = parsed(problem);
  rapt_report *r = NULL;
  static char row[64];
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_explain(ctx, &p, &r), status);
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  snprintf(row, sizeof row, "%s", d.row);              /* a report's strings end with it */
  d.row = row;
  *brief = report_text(r, RAPT_FORM_BRIEF);
  if (json) *json = report_text(r, RAPT_FORM_JSON);
  rapt_report_destroy(r);
  return d;
}

static bool ends_in(const char *text, const char *tail) {
  size_t n = strlen(text), m = strlen(tail);
  return n >= m && strcmp(text + n - m, tail) == 0;
}

#define CUDA "cuda cc=9.0 torch=2.13.0 cudnn=9.12.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0"
#define CALL "bf16 b1 h8 q64 k64 d64 dev=cuda assume_finite"

/* fa2 needs the fact cuda and is asked for first: what runs without it is no certain answer. */
static void test_preferred_waits_d4(void **state) {
  (void)state;
  char *text, *json;
  rapt_ctx *ctx = what_if(CUDA);
  rapt_decision d = decided(ctx, CALL " prefer=fa2", RAPT_OK, &text, &json);
  assert_int_equal(d.undecided, 1);
  assert_int_equal(strncmp(d.row, "torch.", 6), 0);
  assert_non_null(strstr(text, "may be fa2 instead: add the fact cuda\n"));
  assert_null(strstr(text, "could not run"));
  if (!ends_in(text, "\n  missing facts: cuda\n")) fail_msg("%s", text);
  assert_non_null(strstr(json, "\"undecided\":true,\"missing\":[\"cuda\"],"));
  free(text);
  free(json);
  d = decided(ctx, CALL, RAPT_OK, &text, NULL);        /* nobody asks for fa2 */
  assert_int_equal(d.undecided, 0);
  assert_null(strstr(text, "missing facts"));
  free(text);
  rapt_ctx_destroy(ctx);
  ctx = what_if(CUDA " cuda=12.8");
  d = decided(ctx, CALL " prefer=fa2", RAPT_OK, &text, &json);
  assert_int_equal(d.undecided, 0);
  assert_string_equal(d.row, "fa2");
  assert_null(strstr(text, "missing facts"));
  assert_non_null(strstr(json, "\"undecided\":false,\"missing\":[],"));
  assert_null(strstr(text, "thread"));                 /* a device's kernel */
  assert_non_null(strstr(json, "\"threads\":null,\"classes\""));
  free(text);
  free(json);
  rapt_ctx_destroy(ctx);
}

/* No row can, some might: REFUSED with undecided, and the facts that would settle it. */
static void test_none_chosen_d4(void **state) {
  (void)state;
  char *text;
  rapt_ctx *ctx = what_if("cuda cc=9.0 flash-attn=2.8.3");
  rapt_decision d = decided(ctx, CALL " require=fa2", RAPT_REFUSED, &text, NULL);
  assert_int_equal(d.undecided, 1);
  assert_string_equal(d.row, "");
  assert_int_equal(strncmp(text, "undecided: more facts are needed", 32), 0);
  const char *last = strstr(text, "\n  missing facts: ");
  assert_non_null(last);
  assert_non_null(strstr(last, "cuda"));
  assert_non_null(strstr(last, "flash-attn.cc"));
  assert_null(strstr(last, "flash-attn,"));            /* that one is known */
  free(text);
  d = decided(ctx, CALL " require=ref", RAPT_REFUSED, &text, NULL);
  assert_int_equal(d.undecided, 0);
  free(text);
  rapt_ctx_destroy(ctx);
}

/* A row that picks its member names the facts on which the pick depends. */
static void test_member_waits_d4(void **state) {
  (void)state;
  char *text;
  rapt_ctx *ctx = what_if("cuda cc=9.0 torch=2.13.0");
  rapt_decision d = decided(ctx, CALL " require=torch.sdpa", RAPT_REFUSED, &text, NULL);
  assert_int_equal(d.undecided, 1);
  if (!ends_in(text, "\n  missing facts: cudnn\n")) fail_msg("%s", text);
  free(text);
  rapt_ctx_destroy(ctx);
}

/* The scalar level needs no fact (D26). */
static void test_scalar_d26(void **state) {
  (void)state;
  char *text;
  rapt_ctx *ctx = what_if("cpu threads=2");
  rapt_decision d = decided(ctx, SMALL, RAPT_OK, &text, NULL);
  assert_string_equal(d.row, "cpu.scalar");
  assert_int_equal(d.undecided, 1);                    /* a wider level might be there */
  assert_non_null(strstr(text, "may be cpu.avx2 instead: add the fact isa\n"));
  free(text);
  d = decided(ctx, SMALL " require=cpu.scalar", RAPT_OK, &text, NULL);
  assert_int_equal(d.undecided, 0);
  assert_non_null(strstr(text, "(scalar, 2 threads)"));
  free(text);
  decided(ctx, SMALL " require=ref", RAPT_OK, &text, NULL);
  assert_non_null(strstr(text, "(scalar, 2 threads)"));   /* its loops are compiled for every CPU */
  free(text);
  rapt_ctx_destroy(ctx);
}

/* Rows of another kind of device are no better rows, unless somebody named them. */
static void test_passed_over(void **state) {
  (void)state;
  char *text;
  rapt_ctx *ctx = what_if("cuda cc=9.0 torch=2.13.0 cudnn=9.12.0");
  decided(ctx, CALL, RAPT_OK, &text, NULL);
  assert_null(strstr(text, "cpu.avx2 runs on"));
  free(text);
  decided(ctx, CALL " prefer=fa2", RAPT_OK, &text, NULL);
  assert_non_null(strstr(text, "fa2.varlen"));
  assert_null(strstr(text, "fa2.rocm_ck"));            /* others of that name are for this device */
  free(text);
  decided(ctx, CALL " prefer=cpu.avx2", RAPT_OK, &text, NULL);
  assert_non_null(strstr(text, "cpu.avx2 runs on"));
  free(text);
  rapt_ctx_destroy(ctx);
}

static void test_nothing_to_do_s6(void **state) {
  (void)state;
  static const struct { const char *problem; bool nothing; } cases[] = {
    {"fp32 b0 h2 q3 k4 d8", true},   {"fp32 b1 h0 q3 k4 d8", true},       {"fp32 b1 h2 q0 k4 d8 lse", true},
    {"fp32 b1 h2 q3 k4 d8/0", true}, {"fp32 b1 h2 q3 k4 d8/0 lse", false}, {"fp32 b1 h2 q3 k0 d8", false},
    {SMALL, false},
  };
  rapt_ctx *ctx = ctx_plain();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *text;
    rapt_decision d = decided(ctx, cases[i].problem, RAPT_OK, &text, NULL);
    if ((strstr(text, "nothing to do: out has no elements") != NULL) != cases[i].nothing) fail_msg("%s", text);
    if (cases[i].nothing) assert_int_equal(d.out_bytes, 0);
    free(text);
  }
  rapt_ctx_destroy(ctx);
}

/* out's dtype and bytes: what to allocate, which autocast decides (A6), and nobody's choice of a row (D19). */
static void test_out_bytes_a6(void **state) {
  (void)state;
  static const struct { const char *problem; rapt_status status; int dtype; uint64_t bytes; } cases[] = {
    {"fp32 b2 h3 q5 k4 d8/6", RAPT_OK, RAPT_FP32, 2 * 3 * 5 * 6 * 4},
    {"fp32 b2 h3 q5 k4 d8/6 autocast=bf16", RAPT_OK, RAPT_BF16, 2 * 3 * 5 * 6 * 2},
    {"fp16 b2 h3 q5 k4 d8 out=fp32", RAPT_OK, RAPT_FP32, 2 * 3 * 5 * 8 * 4},
    {"fp64 b2 h3 q5 k4 d8", RAPT_OK, RAPT_FP64, 2 * 3 * 5 * 8 * 8},
    {"fp32 b2 h3 q5 k4 d8 out.st=1000,100,10,1", RAPT_OK, RAPT_FP32, 2 * 3 * 5 * 8 * 4},
    {"bf16 b2 h3 q5 k4 d8 packed=int32", RAPT_REFUSED, RAPT_BF16, 3 * 5 * 8 * 2},
    {"fp32 b2 h3/2 q5 k4 d8", RAPT_ARG, 0, 0},
  };
  rapt_ctx *ctx = ctx_plain();
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *text;
    rapt_decision d = decided(ctx, cases[i].problem, cases[i].status, &text, NULL);
    assert_int_equal(d.out_dtype, cases[i].dtype);
    assert_int_equal(d.out_bytes, cases[i].bytes);
    free(text);
  }
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_preferred_waits_d4), cmocka_unit_test(test_none_chosen_d4),
    cmocka_unit_test(test_member_waits_d4),    cmocka_unit_test(test_scalar_d26),
    cmocka_unit_test(test_passed_over),        cmocka_unit_test(test_nothing_to_do_s6),
    cmocka_unit_test(test_out_bytes_a6),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
