/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's floating-point modes, and those of the threads it lends, neither change a result (N18, A8) nor are
 * changed by a run (D22): own rows, casts, the default scale, and what a provider's callback sees and sets. */
#include "core/fake.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

#define DEFAULTS 0x1f80u
/* Flush to zero with inputs as zero; round up; both, downwards, with flags already raised. */
static const unsigned odd_modes[] = {DEFAULTS | 0x8040, DEFAULTS | 0x4000, DEFAULTS | 0xa040 | 0x21};

enum { Q = 2 * 150 * 24, KV = 2 * 1500 * 24 };
static union { float f32[KV]; double f64[KV]; } q, k, v;

typedef struct run_case {
  const char *isa, *text;
  int out_bytes;                /* of an element */
  int64_t sq, skv;              /* two heads, 24 wide: no power of 4, so the default scale is rounded (N3) */
  double tiny;                  /* of the second head's values: its results are subnormal in the output's dtype */
} run_case;

static void fill(const run_case *c, void *to, int64_t n, double factor) {
  static uint32_t state = 1;
  for (int64_t i = 0; i < n; i++) {
    state = state * 1664525u + 1013904223u;
    const double x = factor * ((double)(state >> 8) / 8388608.0 - 1.0);
    if (c->out_bytes == 8) ((double *)to)[i] = x;
    else ((float *)to)[i] = (float)x;
  }
}

static void fill_all(const run_case *c) {
  const int64_t half = c->skv * 24;
  fill(c, &q, 2 * c->sq * 24, 2);
  fill(c, &k, 2 * half, 2);
  fill(c, &v, half, 1);
  fill(c, (char *)&v + half * (c->out_bytes == 8 ? 8 : 4), half, c->tiny);
}

/* Threads of a host whose modes differ from the caller's. */
static uint32_t lent;
static void lend(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg) {
  const unsigned caller = _mm_getcsr(), modes = *(const unsigned *)self;
  for (uint32_t i = n; i-- > 0; lent++) {
    _mm_setcsr(modes);
    task(arg, i);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(caller);
    assert_int_equal(after, modes);
  }
}

/* Under `modes` in the caller and `threads` in the threads it lends. false: no such level here. */
static bool run(const run_case *c, unsigned modes, unsigned threads, void *out) {
  rapt_problem p = parsed(c->text);
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  opts.isa = c->isa;
  opts.max_threads = 2;
  opts.flags = RAPT_CTX_NO_ENV;
  opts.parallel_for = lend;
  opts.parallel_self = &threads;
  rapt_ctx *ctx;
  if (rapt_ctx_create(&opts, &ctx, NULL) != RAPT_OK) return false;
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = &q, b.k = &k, b.v = &v, b.out = out;
  lent = 0;
  const unsigned old = _mm_getcsr();
  _mm_setcsr(modes);
  const rapt_status st = rapt_attention(ctx, &p, &b, NULL);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(old);
  assert_int_equal(st, RAPT_OK);
  assert_int_equal(after, modes);
  assert_true(lent > 1);                       /* else the threads' modes meant nothing */
  rapt_ctx_destroy(ctx);
  return true;
}

static bool is_subnormal(const run_case *c, const char *at) {
  uint64_t u = 0;
  memcpy(&u, at, (size_t)c->out_bytes);        /* little endian */
  const uint64_t sign = UINT64_C(1) << (c->out_bytes * 8 - 1), magnitude = u & ~sign;
  const uint64_t normal = c->out_bytes == 2 ? 0x400 : c->out_bytes == 4 ? UINT64_C(1) << 23 : UINT64_C(1) << 52;
  return magnitude != 0 && magnitude < normal;
}

static void check(const run_case *c) {
  static char plain[Q * 8], other[Q * 8];
  const size_t n = (size_t)(2 * c->sq * 24), bytes = n * (size_t)c->out_bytes;
  size_t subnormal = 0;
  fill_all(c);
  if (!run(c, DEFAULTS, DEFAULTS, plain)) skip();
  for (size_t i = 0; i < n; i++) subnormal += is_subnormal(c, plain + i * (size_t)c->out_bytes);
  assert_true(subnormal > n / 4);              /* else flushing could not be seen */
  for (size_t i = 0; i < sizeof odd_modes / sizeof *odd_modes; i++)
    for (int which = 1; which < 4; which++) {
      memset(other, 0x55, sizeof other);
      run(c, which & 1 ? odd_modes[i] : DEFAULTS, which & 2 ? odd_modes[i] : DEFAULTS, other);
      assert_memory_equal(plain, other, bytes);
    }
}

static void cpu_scalar_d22_n18(void **state) {
  (void)state;
  check(&(run_case){"scalar", "fp32 b1 h2 q150 k150 d24 require=cpu.scalar", 4, 150, 150, 1e-39});
}

static void cpu_avx2_d22_n18(void **state) {
  (void)state;
  check(&(run_case){"avx2", "fp32 b1 h2 q150 k150 d24 require=cpu.avx2", 4, 150, 150, 1e-39});
}

static void ref_d22_n18(void **state) {
  (void)state;
  check(&(run_case){NULL, "fp32 b1 h2 q20 k50 d24 require=ref", 4, 20, 50, 1e-39});
  check(&(run_case){NULL, "fp64 b1 h2 q20 k50 d24 require=ref", 8, 20, 50, 1e-309});
}

/* Keys and values are long enough to be cast by several tasks. */
static void casts_d22_a8(void **state) {
  (void)state;
  check(&(run_case){"scalar", "fp32 b1 h2 q8 k1500 d24 autocast=fp16", 2, 8, 1500, 3e-4});
  check(&(run_case){NULL, "fp32 b1 h2 q8 k1500 d24 autocast=fp16", 2, 8, 1500, 3e-4});
}

/* Foreign code runs under the default modes, and what it sets is undone. */
static unsigned seen;
static rapt_status foreign(void *self, uint32_t row, void *plan, const rapt_problem *cast, const rapt_buffers *b,
                           void *workspace, void *stream) {
  (void)self, (void)row, (void)plan, (void)cast, (void)b, (void)workspace, (void)stream;
  seen = _mm_getcsr();
  _mm_setcsr(DEFAULTS | 0x6000);
  return RAPT_OK;
}

static void callback_d22(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.backend.run = foreign;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  const unsigned old = _mm_getcsr();
  _mm_setcsr(odd_modes[2]);
  const rapt_status st = rapt_attention(ctx, &s.p, &s.b, NULL);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(old);
  assert_int_equal(st, RAPT_OK);
  assert_int_equal(after, odd_modes[2]);
  assert_int_equal(seen, DEFAULTS);
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(cpu_scalar_d22_n18), cmocka_unit_test(cpu_avx2_d22_n18),
                                     cmocka_unit_test(ref_d22_n18), cmocka_unit_test(casts_d22_a8),
                                     cmocka_unit_test(callback_d22)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void float_modes_d22(void **state) {
  (void)state;
  skip();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(float_modes_d22)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
