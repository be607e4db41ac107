/* SPDX-License-Identifier: Apache-2.0 */
/* Half types: one rounding to nearest even, all values (N2, A8). The reference searches the neighbours of a value
 * among the exact values of all 65,536 halves, in long double. */
#include "base/half.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/cm.h"

typedef struct format { int fraction, bias; } format;
static const format fp16 = {10, 15}, bf16 = {7, 127};

/* Exact value of finite bits, by the definition of the format. */
static long double value_of(uint16_t h, format f) {
  int exponent = (h & 0x7fff) >> f.fraction, fraction = h & ((1 << f.fraction) - 1);
  long double significand = exponent ? (1 << f.fraction) + fraction : fraction;
  long double v = ldexpl(significand, (exponent ? exponent : 1) - f.bias - f.fraction);
  return h & 0x8000 ? -v : v;
}

static uint16_t infinity_of(format f) { return (uint16_t)(0x7fff >> f.fraction << f.fraction); }

/* Nearest even: binary search among the magnitudes, which grow with their bits; above the largest the half-way point
 * to the next power decides, where infinity stands for that power. */
static uint16_t nearest(double d, format f) {
  uint16_t sign = signbit(d) ? 0x8000 : 0, low = 0, high = infinity_of(f);
  long double v = fabsl((long double)d);
  if (isinf(d)) return sign | high;
  while (high - low > 1) {
    uint16_t middle = (uint16_t)((low + high) / 2);
    if (value_of(middle, f) <= v) low = middle; else high = middle;
  }
  long double below = v - value_of(low, f), above = value_of(high, f) - v;      /* infinity's bits read as 2^(bias+1) */
  bool up = above < below || (above == below && (low & 1));
  return (uint16_t)(sign | (up ? high : low));
}

static double double_of(uint64_t bits) {
  double d;
  memcpy(&d, &bits, 8);
  return d;
}

static void check(double d) {
  if (isnan(d)) return;
  assert_int_equal(rapti_f64_to_fp16(d), nearest(d, fp16));
  assert_int_equal(rapti_f64_to_bf16(d), nearest(d, bf16));
  float s = (float)d;
  assert_int_equal(rapti_f32_to_fp16(s), nearest((double)s, fp16));
  assert_int_equal(rapti_f32_to_bf16(s), nearest((double)s, bf16));
}

static void n2_all_halves_widen_exactly_and_come_back(void **state) {
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    float a = rapti_fp16_to_f32((uint16_t)h), b = rapti_bf16_to_f32((uint16_t)h);
    bool a_nan = (h & 0x7fff) > 0x7c00, b_nan = (h & 0x7fff) > 0x7f80;
    assert_int_equal(isnan(a) != 0, a_nan);
    assert_int_equal(isnan(b) != 0, b_nan);
    if ((h & 0x7fff) < 0x7c00) assert_true((long double)a == value_of((uint16_t)h, fp16));
    if ((h & 0x7fff) < 0x7f80) assert_true((long double)b == value_of((uint16_t)h, bf16));
    if (!a_nan) assert_int_equal(rapti_f32_to_fp16(a), h);
    if (!a_nan) assert_int_equal(rapti_f64_to_fp16((double)a), h);
    if (!b_nan) assert_int_equal(rapti_f32_to_bf16(b), h);
    if (!b_nan) assert_int_equal(rapti_f64_to_bf16((double)b), h);
    assert_int_equal(!!signbit(a), h >> 15);
  }
}

/* Every boundary between neighbours: the tie itself and the doubles and floats next to it. */
static void n2_every_tie_goes_to_even(void **state) {
  (void)state;
  const format formats[] = {fp16, bf16};
  for (int f = 0; f < 2; f++)
    for (uint32_t h = 0; h < infinity_of(formats[f]); h++) {
      double tie = (double)((value_of((uint16_t)h, formats[f]) + value_of((uint16_t)(h + 1), formats[f])) / 2);
      const double near[] = {tie, nextafter(tie, 0), nextafter(tie, HUGE_VAL), (double)nextafterf((float)tie, 0),
                             (double)nextafterf((float)tie, HUGE_VALF)};
      for (int i = 0; i < 5; i++) {
        check(near[i]);
        check(-near[i]);
      }
    }
}

static void n2_random_and_extreme_values(void **state) {
  (void)state;
  uint64_t x = 0x9e3779b97f4a7c15u;
  for (int i = 0; i < 200000; i++) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    check(double_of(x));
    check(double_of((x & 0x800fffffffffffffu) | (uint64_t)(880 + i % 280) << 52));      /* about the halves' range */
  }
  const double edges[] = {0, DBL_MIN, 5e-324, DBL_MAX, FLT_MAX, FLT_MIN, 0x1p-149, 0x1p-150, 0x1p-25, 0x1p-24, 65504, 65519.999,
                          65520, 65536, 0x1.fffffffffffffp-26, 0x1.0000000000001p-25, HUGE_VAL};
  for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
    check(edges[i]);
    check(-edges[i]);
  }
}

/* A value just above a tie that a first rounding to float would move onto it. */
static void n2_no_double_rounding_from_double(void **state) {
  (void)state;
  double above = 1 + 0x1p-11 + 0x1p-40;
  assert_int_equal(rapti_f64_to_fp16(above), 0x3c01);
  assert_int_equal(rapti_f32_to_fp16((float)above), 0x3c00);
  above = 1 + 0x1p-8 + 0x1p-40;
  assert_int_equal(rapti_f64_to_bf16(above), 0x3f81);
}

static void n10_nan_stays_nan(void **state) {
  (void)state;
  const uint32_t nans[] = {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffe000u};
  for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
    float s = rapti_float32(nans[i]);
    assert_true(isnan(rapti_fp16_to_f32(rapti_f32_to_fp16(s))));
    assert_true(isnan(rapti_bf16_to_f32(rapti_f32_to_bf16(s))));
    assert_int_equal(rapti_f32_to_fp16(s) >> 15, nans[i] >> 31);
  }
  const uint64_t wide[] = {0x7ff0000000000001u, 0xfff8000000000000u, 0x7fffffffffffffffu};
  for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++) {
    assert_true(isnan(rapti_fp16_to_f32(rapti_f64_to_fp16(double_of(wide[i])))));
    assert_true(isnan(rapti_bf16_to_f32(rapti_f64_to_bf16(double_of(wide[i])))));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(n2_all_halves_widen_exactly_and_come_back),
      cmocka_unit_test(n2_every_tie_goes_to_even),
      cmocka_unit_test(n2_random_and_extreme_values),
      cmocka_unit_test(n2_no_double_rounding_from_double),
      cmocka_unit_test(n10_nan_stays_nan),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
