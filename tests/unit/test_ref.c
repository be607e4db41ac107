/* SPDX-License-Identifier: Apache-2.0 */
/* The reference backend by itself, on numbers worked out by hand: N1, N8, M10, M13, M16, P3, N18. Everything else of
 * the contract is held against the oracle in tests/kernels. */
#include "common/cm.h"
#include "common/tol.h"
#include "core/backend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A resolved dense fp64 problem, one head. */
static rapt_problem problem(int64_t Sq, int64_t Skv, int64_t D, int64_t Dv) {
  rapt_problem p = {.struct_size = sizeof p, .B = 1, .Hq = 1, .Hkv = 1, .Sq = Sq, .Skv = Skv, .D = D, .Dv = Dv};
  p.q = (rapt_desc){.dtype = RAPT_FP64, .stride = {Sq * D, Sq * D, D, 1}};
  p.k = (rapt_desc){.dtype = RAPT_FP64, .stride = {Skv * D, Skv * D, D, 1}};
  p.v = (rapt_desc){.dtype = RAPT_FP64, .stride = {Skv * Dv, Skv * Dv, Dv, 1}};
  p.out = (rapt_desc){.dtype = RAPT_FP64, .stride = {Sq * Dv, Sq * Dv, Dv, 1}};
  p.lse = (rapt_desc){.dtype = RAPT_FP64, .stride = {Sq, Sq, 1, 1}};
  p.flags = RAPT_WANT_LSE;
  p.has = RAPT_HAS_SCALE;
  p.scale = 1;
  return p;
}

/* Runs task numbers downwards, to show that the order does not matter. */
static void run_backwards(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg) {
  *(uint32_t *)self = n;
  while (n--) task(arg, n);
}

static uint32_t run(const rapt_problem *p, const rapt_buffers *b, uint32_t threads) {
  const rapt_backend *ref = rapti_backend_ref();
  uint32_t tasks = 0;
  rapti_services s = {.max_threads = threads, .parallel_for = run_backwards, .parallel_self = &tasks};
  size_t bytes = ref->workspace(&s, 0, p, threads);
  unsigned char *workspace = aligned_alloc(64, bytes + 64);
  assert_non_null(workspace);
  memset(workspace, 0xff, bytes + 64);
  assert_int_equal(ref->run(&s, 0, NULL, p, b, workspace, NULL), RAPT_OK);
  for (size_t i = 0; i < 64; i++) assert_int_equal(workspace[bytes + i], 0xff);   /* P3: not a byte more */
  free(workspace);
  return tasks;
}

/* Within N13, where the row sees n keys with |logits| and |biases| up to `logit` and sum P|v| = A, max |v| = V. */
static tc_element element(const rapt_problem *p, double n, double logit, double A, double V) {
  double u = 0x1p-53;
  return (tc_element){.n = n, .E = tc_gamma((double)p->D + 8, u) * logit + 8 * u * logit, .A = A, .V = V};
}

static void assert_out(const rapt_problem *p, tc_element e, double got, double exact) {
  tc_tol tol = tc_tol_make(p, rapti_backend_ref()->rows);
  assert_true(fabs(got - exact) <= tc_out_bound(&tol, &e, exact));
}

static void assert_lse(const rapt_problem *p, tc_element e, double got, double exact) {
  tc_tol tol = tc_tol_make(p, rapti_backend_ref()->rows);
  assert_true(got == exact || fabs(got - exact) <= tc_lse_bound(&tol, &e, exact));
}

/* Logits 0 and ln 3: weights 1/4 and 3/4 (N1, N8). */
static void two_keys_n1_n8(void **state) {
  (void)state;
  rapt_problem p = problem(1, 2, 1, 2);
  double q = 1, k[] = {0, log(3)}, v[] = {4, 8, 0, -4}, out[2], lse;
  rapt_buffers b = {.struct_size = sizeof b, .q = &q, .k = k, .v = v, .out = out, .lse = &lse};
  run(&p, &b, 1);
  tc_element e = element(&p, 2, log(3), 5, 8);
  assert_out(&p, e, out[0], 1);
  assert_out(&p, e, out[1], -1);
  assert_lse(&p, e, lse, log(4));
}

/* The same weights by bias, with a scale of 0 (N1: the bias is not scaled). */
static void bias_n1(void **state) {
  (void)state;
  rapt_problem p = problem(1, 3, 1, 1);
  double q = 7, k[] = {1, 2, 3}, v[] = {4, 0, NAN}, bias[] = {0, log(3), -INFINITY}, out, lse;
  p.scale = 0;
  p.bias = (rapt_desc){.dtype = RAPT_FP64, .size = {1, 1, 1, 3}, .stride = {3, 3, 3, 1}};
  rapt_buffers b = {.struct_size = sizeof b, .q = &q, .k = k, .v = v, .bias = bias, .out = &out, .lse = &lse};
  run(&p, &b, 1);
  tc_element e = element(&p, 2, log(3), 1, 4);   /* M10, M14: the NaN is not seen */
  assert_out(&p, e, out, 1);
  assert_lse(&p, e, lse, log(4));
}

/* Equal logits: the mean of what each row sees, here 1/(i+1) of the running sum; row 3 sees nothing (M5, M16). */
static void causal_m13_m16(void **state) {
  (void)state;
  rapt_problem p = problem(4, 3, 1, 1);
  double q[4] = {0}, k[3] = {0}, v[] = {6, 12, 24}, out[4], lse[4];
  int64_t q_len = 3;
  p.flags |= RAPT_CAUSAL;
  p.alignment = RAPT_TOP_LEFT;
  p.q_len = RAPT_INT64;
  rapt_buffers b = {.struct_size = sizeof b, .q = q, .k = k, .v = v, .q_len = &q_len, .out = out, .lse = lse};
  run(&p, &b, 1);
  const double right[] = {6, 9, 14, 0};
  for (int i = 0; i < 3; i++) {
    tc_element e = element(&p, i + 1, 0, right[i], 24);
    assert_out(&p, e, out[i], right[i]);
    assert_lse(&p, e, lse[i], log(i + 1));
  }
  assert_true(out[3] == 0 && lse[3] == -INFINITY);
}

/* Many rows, many tasks, in another order: the same bits; never more tasks than rows or threads (N18, P3). */
static void threads_n18(void **state) {
  (void)state;
  enum { ROWS = 5, KEYS = 40, D = 3 };
  rapt_problem p = problem(ROWS, KEYS, D, D);
  double q[ROWS * D], k[KEYS * D], v[KEYS * D], one[ROWS * D], out[ROWS * D], lse[ROWS];
  for (int n = 0; n < KEYS * D; n++) {
    k[n] = sin(n * 1.7);
    v[n] = cos(n * 0.9);
    if (n < ROWS * D) q[n] = sin(n * 3.1);
  }
  rapt_buffers b = {.struct_size = sizeof b, .q = q, .k = k, .v = v, .out = one, .lse = lse};
  run(&p, &b, 1);
  b.out = out;
  for (uint32_t threads = 2; threads < 9; threads++) {
    memset(out, 0, sizeof out);
    assert_int_equal(run(&p, &b, threads), threads < ROWS ? threads : ROWS);
    assert_memory_equal(out, one, sizeof out);
  }
}

/* S6, S7: nothing to do, and nothing read. */
static void empty_s6_s7(void **state) {
  (void)state;
  rapt_problem p = problem(0, 4, 2, 2);
  rapt_buffers b = {.struct_size = sizeof b};
  run(&p, &b, 2);
  p = problem(2, 0, 2, 1);
  double q[4] = {1, 2, 3, 4}, out[2] = {5, 5}, lse[2] = {5, 5};
  b = (rapt_buffers){.struct_size = sizeof b, .q = q, .out = out, .lse = lse};
  run(&p, &b, 2);
  assert_true(out[0] == 0 && out[1] == 0 && lse[0] == -INFINITY && lse[1] == -INFINITY);
}

/* P3, S8: sizes that no memory holds are said to be so, never a small number that fits by wrapping. */
static void workspace_never_wraps_p3(void **state) {
  (void)state;
  const int64_t sizes[] = {0, 1, 1000, INT64_C(1) << 31, INT64_C(1) << 58,
                           INT64_C(1024819115206086201), INT64_MAX / 8, INT64_MAX / 9, INT64_MAX / 3, INT64_MAX};
  const size_t n = sizeof sizes / sizeof *sizes;
  const rapt_backend *ref = rapti_backend_ref();
  for (size_t at = 0; at < n * n * n * 5; at++) {
    const uint32_t threads = (const uint32_t[]){1, 2, 3, 64, 4096}[at % 5];
    rapt_problem p = {.struct_size = sizeof p, .B = 1, .Hq = 1, .Hkv = 1, .Sq = 5000};
    p.Skv = sizes[at / 5 % n], p.D = sizes[at / 5 / n % n], p.Dv = sizes[at / 5 / n / n];
    const size_t bytes = ref->workspace(NULL, 0, &p, threads);
    const double longest = fmax((double)p.D, (double)p.Dv);
    const double need = threads * (9.0 * (double)p.Skv + 8.0 * ((double)p.D + (double)p.Dv + longest));
    if (bytes == SIZE_MAX) assert_true(need > 0x1p62);
    else assert_true((double)bytes >= need && need < 0x1p63);
  }
  rapt_problem p = {.struct_size = sizeof p, .B = INT64_C(1) << 40, .Hq = INT64_C(1) << 40, .Hkv = 1, .Sq = 1};
  assert_true(ref->workspace(NULL, 0, &p, 2) == SIZE_MAX);
}

/* The same through the core: refused, not run in a wrapped workspace. */
static void wrapped_workspace_is_refused_d14(void **state) {
  (void)state;
  const char text[] = "fp32 b1 h1 q2 k1024819115206086201 d0/0 scale=1 lse require=ref";
  char names[64];
  rapt_problem p = RAPT_PROBLEM_INIT;
  assert_int_equal(rapt_problem_parse(text, sizeof text - 1, &p, names, sizeof names, NULL), RAPT_OK);
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  opts.max_threads = 2;
  opts.flags = RAPT_CTX_NO_ENV;
  rapt_ctx *ctx;
  assert_int_equal(rapt_ctx_create(&opts, &ctx, NULL), RAPT_OK);
  float lse[2], x = 0;
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = b.k = b.v = b.out = &x, b.lse = lse;
  assert_int_equal(rapt_attention(ctx, &p, &b, NULL), RAPT_REFUSED);
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(two_keys_n1_n8), cmocka_unit_test(bias_n1),
                                     cmocka_unit_test(causal_m13_m16),
                                     cmocka_unit_test(threads_n18), cmocka_unit_test(empty_s6_s7),
                                     cmocka_unit_test(workspace_never_wraps_p3),
                                     cmocka_unit_test(wrapped_workspace_is_refused_d14)};
  return cmocka_run_group_tests_name("ref", tests, NULL, NULL);
}
