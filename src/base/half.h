/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats as uint16_t bits. Conversions to a half type round once, to nearest even. */
#ifndef RAPTI_HALF_H
#define RAPTI_HALF_H
#include <stdint.h>
#include <string.h>

static inline uint32_t rapti_bits32(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline float rapti_float32(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }

static inline float rapti_bf16_to_f32(uint16_t h) { return rapti_float32((uint32_t)h << 16); }
static inline uint16_t rapti_f32_to_bf16(float f) {
  uint32_t u = rapti_bits32(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);   /* NaN stays NaN */
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
float rapti_fp16_to_f32(uint16_t h);
uint16_t rapti_f32_to_fp16(float f);
/* From double without double rounding. */
uint16_t rapti_f64_to_fp16(double d);
uint16_t rapti_f64_to_bf16(double d);
#endif
