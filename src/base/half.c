/* SPDX-License-Identifier: Apache-2.0 */
/* From double, by integer arithmetic: one rounding, whatever the modes of the thread (D22). */
#include "base/half.h"

/* x / 2^shift to nearest even; shift 1..63. */
static uint64_t shift_nearest_even(uint64_t x, unsigned shift) {
  uint64_t kept = x >> shift, rest = x & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
  return kept + (rest > half || (rest == half && (kept & 1u)));
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
