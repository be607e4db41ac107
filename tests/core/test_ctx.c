/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: options (E1, E6, D26), lifetime, facts and what-ifs (D20), the caller's allocator and threads. */
#include "fake.h"

static void expect(const rapt_ctx_opts *o, rapt_status status, int code, int field) {
  rapt_reason why = RAPT_REASON_INIT;
  rapt_ctx *ctx = NULL;
  assert_int_equal(rapt_ctx_create(o, &ctx, &why), status);
  assert_int_equal(why.code, code);
  assert_int_equal(why.field, field);
  if (status != RAPT_OK) assert_null(ctx);
  rapt_ctx_destroy(ctx);
}

static void test_options_e6(void **state) {
  (void)state;
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  expect(&o, RAPT_OK, 0, 0);
  o.flags |= 2;
  expect(&o, RAPT_ARG, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_FLAGS);
  o.flags = RAPT_CTX_NO_ENV;
  o.has = 1;
  expect(&o, RAPT_ARG, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_HAS);
  o.has = 0;
  o.memory_limit = 1;
  expect(&o, RAPT_ARG, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_MEMORY_LIMIT);
  o.has = RAPT_HAS_MEMORY_LIMIT;
  expect(&o, RAPT_OK, 0, 0);
  o.memory_limit = -1;
  expect(&o, RAPT_ARG, RAPT_CODE_SIZE, RAPT_FIELD_MEMORY_LIMIT);
  o.memory_limit = 0;
  o.verify = 1;
  expect(&o, RAPT_ARG, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_VERIFY);
  o.verify = 0;
  o.reserved = 1;
  expect(&o, RAPT_ARG, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_FLAGS);
  o.reserved = 0;
  o.max_threads = 1u << 20;
  expect(&o, RAPT_ARG, RAPT_CODE_SIZE, RAPT_FIELD_MAX_THREADS);
  o.max_threads = 0;
  o.free = (void (*)(void *, void *))(void (*)(void))abort;
  expect(&o, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_ALLOC);
  o.free = NULL;
  o.require = "no.such.row";
  expect(&o, RAPT_ARG, RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_REQUIRE);
  o.require = "ref,,";
  expect(&o, RAPT_ARG, RAPT_CODE_SYNTAX, RAPT_FIELD_REQUIRE);
}

static void test_struct_size_abi(void **state) {
  (void)state;
  struct { rapt_ctx_opts o; char tail[16]; } big = {.o = {.struct_size = sizeof big, .flags = RAPT_CTX_NO_ENV}};
  expect(&big.o, RAPT_OK, 0, 0);
  big.tail[15] = 1;
  expect(&big.o, RAPT_ABI, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE);
  big.o.struct_size = sizeof big.o - 1;
  expect(&big.o, RAPT_ABI, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE);
  big.o.struct_size = UINT32_MAX;                      /* garbage: nothing behind it is read */
  expect(&big.o, RAPT_ABI, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE);
  assert_int_equal(rapt_ctx_create(NULL, NULL, NULL), RAPT_ARG);
}

static void test_isa_cap_d26(void **state) {
  (void)state;
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.isa = "scalar";
  rapt_ctx *ctx = NULL;
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  char facts[256];
  rapt_ctx_facts_format(ctx, facts, sizeof facts);
  assert_non_null(strstr(facts, "isa=scalar"));
  rapt_ctx_destroy(ctx);
  o.isa = "avx1024";
  expect(&o, RAPT_ARG, RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_ISA);
#if defined(__x86_64__)
  o.isa = "neon";                         /* another architecture's level is more than any here */
  expect(&o, RAPT_ARG, RAPT_CODE_ISA, RAPT_FIELD_ISA);
#endif
  o.isa = "avx512";
  o.facts = "cpu isa=avx2 threads=3";
  expect(&o, RAPT_ARG, RAPT_CODE_ISA, RAPT_FIELD_ISA);
}

static void test_facts(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  char facts[256];
  size_t n = rapt_ctx_facts_format(ctx, facts, sizeof facts);
  assert_int_equal(strlen(facts), n);
  assert_int_equal(strncmp(facts, "cpu isa=", 8), 0);
  assert_non_null(strstr(facts, "threads=2"));
  rapt_ctx_destroy(ctx);
}

static void test_what_if_d20(void **state) {
  (void)state;
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.facts = "cpu isa=scalar threads=7";
  rapt_ctx *ctx = NULL;
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  small s;
  small_make(&s, SMALL);
  rapt_report *r = NULL;
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_explain(ctx, &s.p, &r), RAPT_OK);
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_int_equal(d.hypothetical, 1);
  assert_int_equal(d.threads, 7);
  rapt_report_destroy(r);
  rapt_plan *plan = NULL;
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, &r), RAPT_ARG);
  assert_null(plan);
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
  assert_int_equal(why.code, RAPT_CODE_HYPOTHETICAL);
  rapt_report_destroy(r);
  s.out[0] = 7.0f;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_ARG);
  assert_true(s.out[0] == 7.0f);
  rapt_ctx_destroy(ctx);
  o.facts = "cpu isa=fast";
  rapt_reason bad = RAPT_REASON_INIT;
  assert_int_equal(rapt_ctx_create(&o, &ctx, &bad), RAPT_ARG);
  assert_int_not_equal(bad.code, RAPT_CODE_NONE);
}

static void test_rows(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  uint32_t n = rapt_row_count(ctx);
  assert_true(n > 0);
  rapt_row_info info = RAPT_ROW_INFO_INIT;
  for (uint32_t i = 0; i < n; i++) {
    assert_int_equal(rapt_row_get(ctx, i, &info), RAPT_OK);
    assert_true(info.id[0] && info.display[0] && info.kernel[0] && info.backend[0]);
    assert_int_equal(info.entered, 0);
    for (uint32_t j = 0; j < i; j++) {
      rapt_row_info other = RAPT_ROW_INFO_INIT;
      assert_int_equal(rapt_row_get(ctx, j, &other), RAPT_OK);
      assert_string_not_equal(info.id, other.id);
    }
  }
  assert_int_equal(rapt_row_get(ctx, n, &info), RAPT_ARG);
  assert_int_equal(rapt_row_enter(ctx, n), RAPT_ARG);
  info.struct_size = 8;
  assert_int_equal(rapt_row_get(ctx, 0, &info), RAPT_ABI);
  rapt_ctx_destroy(ctx);
  rapt_ctx_destroy(NULL);
  rapt_ctx_trim(NULL);
}

/* Plans and reports keep their context (conventions of rapt.h). */
static void test_outlive(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL);
  rapt_plan *plan;
  rapt_report *r, *again;
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, &r), RAPT_OK);
  rapt_ctx_destroy(ctx);
  size_t n = rapt_plan_workspace(plan);
  void *ws = aligned_alloc(64, n / 64 * 64 + 64);
  assert_int_equal(rapt_plan_run(plan, &s.b, ws, n, NULL), RAPT_OK);
  free(ws);
  assert_int_equal(rapt_plan_report(plan, &again), RAPT_OK);
  rapt_plan_destroy(plan);
  rapt_plan_destroy(NULL);
  char *a = report_text(r, RAPT_FORM_JSON), *b = report_text(again, RAPT_FORM_JSON);
  assert_string_equal(a, b);                           /* R6, D5: equal decisions, equal bytes */
  free(a);
  free(b);
  rapt_report_destroy(r);
  rapt_report_destroy(again);
  rapt_report_destroy(NULL);
}

typedef struct counts { int allocs, frees, loops; } counts;

static void *counting_alloc(void *self, size_t bytes, size_t align) {
  ((counts *)self)->allocs++;
  return aligned_alloc(align, (bytes + align - 1) / align * align);
}
static void counting_free(void *self, void *p) {
  ((counts *)self)->frees++;
  free(p);
}
static void serial_for(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg) {
  ((counts *)self)->loops++;
  for (uint32_t i = n; i-- > 0;) task(arg, i);         /* any order will do */
}

static void test_hooks(void **state) {
  (void)state;
  counts c = {0};
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.alloc = counting_alloc;
  o.free = counting_free;
  o.parallel_for = serial_for;
  o.alloc_self = o.parallel_self = &c;
  o.max_threads = 4;
  rapt_ctx *ctx, *plain = ctx_plain();
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  enum { N = 64 * 64 * 64 };
  float *data = malloc(4 * N * sizeof *data), *other = malloc(N * sizeof *other);
  for (int i = 0; i < 3 * N; i++) data[i] = (float)(i % 97) / 97.0f - 0.5f;
  rapt_problem p = parsed("fp32 b4 h16 q64 k64 d64 autocast=bf16");
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = data;
  b.k = data + N;
  b.v = data + 2 * N;
  b.out = data + 3 * N;
  assert_int_equal(rapt_attention(ctx, &p, &b, NULL), RAPT_OK);
  assert_true(c.loops > 0);
  b.out = other;
  assert_int_equal(rapt_attention(plain, &p, &b, NULL), RAPT_OK);
  assert_memory_equal(other, data + 3 * N, N * 2);     /* N18: whoever runs the tasks; out is bf16 */
  rapt_ctx_trim(ctx);
  int idle = c.allocs - c.frees;
  assert_int_equal(rapt_attention(ctx, &p, &b, NULL), RAPT_OK);
  assert_true(c.allocs - c.frees > idle);
  rapt_ctx_trim(ctx);
  assert_int_equal(c.allocs - c.frees, idle);
  rapt_ctx_destroy(ctx);
  assert_int_equal(c.allocs, c.frees);
  rapt_ctx_destroy(plain);
  free(data);
  free(other);
}

static void test_null_arguments(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL);
  rapt_plan *plan = NULL;
  rapt_report *r = (rapt_report *)&s;
  assert_int_equal(rapt_explain(ctx, &s.p, NULL), RAPT_ARG);
  assert_int_equal(rapt_explain(NULL, &s.p, &r), RAPT_ARG);
  rapt_report_destroy(r);
  assert_int_equal(rapt_explain(ctx, NULL, &r), RAPT_ARG);
  rapt_report_destroy(r);
  assert_int_equal(rapt_plan_create(ctx, &s.p, NULL, NULL), RAPT_ARG);
  assert_int_equal(rapt_plan_create(ctx, NULL, &plan, NULL), RAPT_ARG);
  assert_int_equal(rapt_attention(ctx, &s.p, NULL, NULL), RAPT_ARG);
  assert_int_equal(rapt_attention(NULL, &s.p, &s.b, NULL), RAPT_ARG);
  assert_int_equal(rapt_plan_run(NULL, &s.b, NULL, 0, NULL), RAPT_ARG);
  assert_int_equal(rapt_plan_workspace(NULL), 0);
  s.p.struct_size = 12;
  assert_int_equal(rapt_explain(ctx, &s.p, NULL), RAPT_ARG);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_ABI);
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_options_e6), cmocka_unit_test(test_struct_size_abi), cmocka_unit_test(test_isa_cap_d26),
    cmocka_unit_test(test_facts), cmocka_unit_test(test_what_if_d20), cmocka_unit_test(test_rows),
    cmocka_unit_test(test_outlive), cmocka_unit_test(test_hooks), cmocka_unit_test(test_null_arguments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
