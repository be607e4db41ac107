/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions to and from the half types by integer arithmetic: one rounding to nearest even, whatever the rounding
 * mode or flush-to-zero state of the caller's thread (D22). */
#include "base/half.h"

float rapti_fp16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
  if (exponent == 31u) {                                     /* infinity; NaN is made quiet, as the hardware does */
    uint32_t quiet = fraction ? 0x400000u : 0u;
    return rapti_float32(sign | 0x7f800000u | quiet | fraction << 13);
  }
  if (exponent == 0u) {                                      /* zero and subnormals: fraction * 2^-24, exact */
    float magnitude = (float)fraction * 0x1p-24f;
    return rapti_float32(sign | rapti_bits32(magnitude));
  }
  return rapti_float32(sign | (exponent + 112u) << 23 | fraction << 13);
}

/* x / 2^shift to nearest even; shift 1..63. */
static uint64_t shift_nearest_even(uint64_t x, unsigned shift) {
  uint64_t kept = x >> shift, rest = x & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1u)));
}

uint16_t rapti_f32_to_fp16(float f) {
  uint32_t u = rapti_bits32(f), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);        /* 2^16 and above */
  if (magnitude >= 0x38800000u)                                           /* normal: a carry may reach infinity */
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
  uint32_t exponent = magnitude >> 23;
  if (exponent < 102u) return (uint16_t)sign;                             /* below 2^-25 */
  uint64_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  return (uint16_t)(sign | shift_nearest_even(significand, 126u - exponent));
}

/* d to a 16-bit format with that many fraction bits; bias is the format's exponent bias. */
static uint16_t narrow(double d, unsigned fraction_bits, int bias) {
  uint64_t u;
  memcpy(&u, &d, 8);
  unsigned sign = (unsigned)(u >> 48) & 0x8000u, infinity = 0x7fffu >> fraction_bits << fraction_bits;
  int exponent = (int)((u >> 52) & 0x7ffu) - 1023, lowest = 1 - bias;
  uint64_t fraction = u & ((UINT64_C(1) << 52) - 1);
  if (exponent == 1024 && fraction) {
    unsigned quiet = 1u << (fraction_bits - 1), payload = (unsigned)(fraction >> (52 - fraction_bits));
    return (uint16_t)(sign | infinity | quiet | payload);
  }
  if (exponent > bias) return (uint16_t)(sign | infinity);
  unsigned shift = 52 - fraction_bits + (exponent < lowest ? (unsigned)(lowest - exponent) : 0u);
  if (shift > 54u) return (uint16_t)sign;                    /* below half of the smallest subnormal */
  uint64_t rounded = shift_nearest_even(fraction | UINT64_C(1) << 52, shift);
  uint64_t base = exponent < lowest ? 0 : (uint64_t)(exponent - lowest) << fraction_bits;
  uint64_t bits = base + rounded;                            /* the implicit bit and a carry raise the exponent */
  return (uint16_t)(sign | (bits > infinity ? infinity : bits));
}

uint16_t rapti_f64_to_fp16(double d) { return narrow(d, 10, 15); }
uint16_t rapti_f64_to_bf16(double d) { return narrow(d, 7, 127); }
