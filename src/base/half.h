/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats as uint16_t bits. Conversions to a half type round once, to nearest even. */
#ifndef RAPTI_HALF_H
#define RAPTI_HALF_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t rapti_bits32(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float rapti_float32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

/* To and from float without branches, so that loops of them become vector code; right in any mode of the thread. NaN
 * stays NaN and is made quiet. `largest` bounds the magnitude of what was finite: infinity, or the largest finite half
 * where it saturates (A8). */
static inline uint32_t rapti_pick32(bool c, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - (uint32_t)c;
  return (a & mask) | (b & ~mask);
}

static inline float rapti_bf16_to_f32(uint16_t h) { return rapti_float32((uint32_t)h << 16); }

static inline float rapti_fp16_to_f32(uint16_t h) {
  const uint32_t m = h & 0x7fffu, infinity = 0x7c00u;
  uint32_t r = (m << 13) + (m >= infinity ? 224u << 23 : 112u << 23);
  r |= m > infinity ? 0x400000u : 0u;
  const uint32_t tiny = rapti_bits32((float)(int32_t)(m & 0x3ffu) * 0x1p-24f);   /* exact; m < 0x400 */
  return rapti_float32(rapti_pick32(m < 0x400u, tiny, r) | (h & 0x8000u) << 16);
}

static inline uint16_t rapti_f32_to_bf16_within(float f, uint32_t largest) {
  const uint32_t u = rapti_bits32(f), m = u & 0x7fffffffu, infinity = 0x7f800000u;
  uint32_t r = (m + 0x7fffu + (m >> 16 & 1u)) >> 16;
  r = m < infinity && r > largest ? largest : r;
  r = m > infinity ? m >> 16 | 0x40u : r;
  return (uint16_t)(r | (u >> 16 & 0x8000u));
}

static inline uint16_t rapti_f32_to_fp16_within(float f, uint32_t largest) {
  const uint32_t u = rapti_bits32(f), m = u & 0x7fffffffu, infinity = 0x7f800000u;
  uint32_t normal = (m - (112u << 23) + 0xfffu + (m >> 13 & 1u)) >> 13;
  normal = normal > 0x7c00u ? 0x7c00u : normal;
  /* Below 2^-14: twice the multiple of 2^-24, an exact product, cut and then rounded by what was cut off. */
  const float twice = rapti_float32(rapti_pick32(m < 113u << 23, m, 0)) * 0x1p25f;
  const uint32_t cut = (uint32_t)(int32_t)twice, rest = (float)(int32_t)cut != twice;
  const uint32_t tiny = (cut >> 1) + (cut & 1u & (rest | cut >> 1));
  uint32_t r = rapti_pick32(m < 113u << 23, tiny, normal);
  r = m < infinity && r > largest ? largest : r;
  r = m > infinity ? 0x7e00u | (m >> 13 & 0x3ffu) : r;
  return (uint16_t)(r | (u >> 16 & 0x8000u));
}

static inline uint16_t rapti_f32_to_bf16(float f) { return rapti_f32_to_bf16_within(f, 0x7f80u); }
static inline uint16_t rapti_f32_to_fp16(float f) { return rapti_f32_to_fp16_within(f, 0x7c00u); }
/* From double without double rounding. */
uint16_t rapti_f64_to_fp16(double d);
uint16_t rapti_f64_to_bf16(double d);
#endif
