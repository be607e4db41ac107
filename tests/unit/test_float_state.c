/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's floating-point modes neither change a result (N18) nor are changed by a run (D22). */
#include "rapt/rapt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { H = 2, SQ = 37, SKV = 41, D = 16 };
static float q[H * SQ * D], k[H * SKV * D], v[H * SKV * D];

static void fill(float *x, size_t n, float factor) {
  static uint32_t state = 1;
  for (size_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    x[i] = factor * ((float)(state >> 8) / 8388608.0f - 1.0f);
  }
}

/* Runs `problem` under the control word `modes`; returns the word found afterwards. */
static unsigned run(const char *isa, const char *row, unsigned modes, float out[H * SQ * D]) {
  char text[128], names[128];
  snprintf(text, sizeof text, "fp32 b1 h%d q%d k%d d%d require=%s", H, SQ, SKV, D, row);
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  opts.isa = isa;
  opts.max_threads = 2;
  opts.flags = RAPT_CTX_NO_ENV;
  rapt_ctx *ctx;
  if (rapt_ctx_create(&opts, &ctx, NULL) != RAPT_OK) return 0;
  assert_int_equal(rapt_problem_parse(text, strlen(text), &p, names, sizeof names, NULL), RAPT_OK);
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = q, b.k = k, b.v = v, b.out = out;
  const unsigned old = _mm_getcsr();
  _mm_setcsr(modes);
  const rapt_status st = rapt_attention(ctx, &p, &b, NULL);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(old);
  assert_int_equal(st, RAPT_OK);
  rapt_ctx_destroy(ctx);
  return after;
}

static void check(const char *isa, const char *row) {
  static float plain[H * SQ * D], other[H * SQ * D];
  const unsigned defaults = 0x1f80;
  /* flush to zero with inputs as zero; round up; both with flags already raised */
  const unsigned modes[] = {defaults | 0x8040, defaults | 0x4000, defaults | 0xc040 | 0x21};
  if (!run(isa, row, defaults, plain)) skip();
  int subnormal = 0;
  for (size_t i = 0; i < H * SQ * D; i++) subnormal += plain[i] != 0 && plain[i] < 1e-38f && plain[i] > -1e-38f;
  assert_true(subnormal > 0);                  /* else flushing could not be seen */
  for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
    memset(other, 0x55, sizeof other);
    assert_int_equal(run(isa, row, modes[i], other), modes[i]);
    assert_memory_equal(plain, other, sizeof plain);
  }
}

static void d22_n18_float_modes(void **state) {
  (void)state;
  fill(q, H * SQ * D, 2);
  fill(k, H * SKV * D, 2);
  fill(v, H * SKV * D / 2, 1);                 /* head 0: ordinary; head 1: subnormal */
  fill(v + H * SKV * D / 2, H * SKV * D / 2, 1e-39f);
  check("scalar", "cpu.scalar");
  check("avx2", "cpu.avx2");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(d22_n18_float_modes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void d22_n18_float_modes(void **state) {
  (void)state;
  skip();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(d22_n18_float_modes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
