/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary on AVX2 + FMA + F16C: 8 lanes, panels of 3 vectors (4 x 3 accumulators, 3 operands and one
 * broadcast fill the 16 registers). */
#ifndef __AVX2__
#error "compile with -mavx2 -mfma -mf16c"
#endif
#include <immintrin.h>

typedef __m256 vf;
typedef __m256 vm;                             /* all bits of a lane, or none */
#define VF_LEN 8
#define VF_PER_PANEL 3

RAPTI_ALWAYS_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
RAPTI_ALWAYS_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
RAPTI_ALWAYS_INLINE vf vf_broadcast(const float *p) { return _mm256_broadcast_ss(p); }
RAPTI_ALWAYS_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
RAPTI_ALWAYS_INLINE void vf_store(float *p, vf a) { _mm256_storeu_ps(p, a); }
RAPTI_ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
RAPTI_ALWAYS_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
RAPTI_ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
RAPTI_ALWAYS_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
RAPTI_ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
RAPTI_ALWAYS_INLINE vf vf_fms(vf a, vf b, vf c) { return _mm256_fmsub_ps(a, b, c); }
/* a > b ? a : b, so b where either is NaN */
RAPTI_ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }

/* 2^n of each lane, n + 127 in 0..254 in the low bits of its mantissa; n = -127 gives 0 */
RAPTI_ALWAYS_INLINE vf vf_pow2(vf t) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)); }

RAPTI_ALWAYS_INLINE vm vm_gt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
RAPTI_ALWAYS_INLINE vm vm_le(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
RAPTI_ALWAYS_INLINE vm vm_eq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
RAPTI_ALWAYS_INLINE vm vm_and(vm a, vm b) { return _mm256_and_ps(a, b); }
RAPTI_ALWAYS_INLINE vm vm_or(vm a, vm b) { return _mm256_or_ps(a, b); }
RAPTI_ALWAYS_INLINE vm vm_not(vm a) { return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1))); }
RAPTI_ALWAYS_INLINE bool vm_any(vm a) { return _mm256_movemask_ps(a) != 0; }
RAPTI_ALWAYS_INLINE vf vf_select(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }   /* m ? a : b */
/* bytes != 0 */
RAPTI_ALWAYS_INLINE vm vm_load_bytes(const uint8_t *p) {
  const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(x, _mm256_setzero_si256()));
}

RAPTI_ALWAYS_INLINE vf vf_load_bf16(const void *p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
RAPTI_ALWAYS_INLINE vf vf_load_fp16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
RAPTI_ALWAYS_INLINE void vf_store_fp16(void *p, vf a) {
  _mm_storeu_si128(p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
RAPTI_ALWAYS_INLINE void vf_store_bf16(void *p, vf a) {   /* nearest even; NaN stays NaN */
  const __m256i u = _mm256_castps_si256(a), high = _mm256_srli_epi32(u, 16);
  const __m256i bias = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, bias), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
  const __m256i r = _mm256_blendv_epi8(rounded, quiet, nan);
  _mm_storeu_si128(p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0xd8)));
}

/* r[i] lane j <-> r[j] lane i */
RAPTI_ALWAYS_INLINE void vf_transpose(vf r[VF_LEN]) {
  vf t[8], u[8];
  RAPTI_UNROLL for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  RAPTI_UNROLL for (int i = 0; i < 2; i++) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  RAPTI_UNROLL for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

/* x[c] lane i = row[i][d + c] */
RAPTI_ALWAYS_INLINE void vf_load_columns(const float *const row[VF_LEN], int64_t d, vf x[4]) {
  vf a[4];
  RAPTI_UNROLL for (int i = 0; i < 4; i++)
    a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(row[i] + d)), _mm_loadu_ps(row[i + 4] + d), 1);
  const vf t0 = _mm256_unpacklo_ps(a[0], a[1]), t1 = _mm256_unpackhi_ps(a[0], a[1]);
  const vf t2 = _mm256_unpacklo_ps(a[2], a[3]), t3 = _mm256_unpackhi_ps(a[2], a[3]);
  x[0] = _mm256_shuffle_ps(t0, t2, 0x44);
  x[1] = _mm256_shuffle_ps(t0, t2, 0xee);
  x[2] = _mm256_shuffle_ps(t1, t3, 0x44);
  x[3] = _mm256_shuffle_ps(t1, t3, 0xee);
}

/* p[4*i + r] = lane i of x[r] */
RAPTI_ALWAYS_INLINE void vf_interleave4(float *p, const vf x[4]) {
  const vf a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
  const vf c = _mm256_unpacklo_ps(x[2], x[3]), d = _mm256_unpackhi_ps(x[2], x[3]);
  const vf r0 = _mm256_shuffle_ps(a, c, 0x44), r1 = _mm256_shuffle_ps(a, c, 0xee);
  const vf r2 = _mm256_shuffle_ps(b, d, 0x44), r3 = _mm256_shuffle_ps(b, d, 0xee);
  vf_store(p, _mm256_permute2f128_ps(r0, r1, 0x20));
  vf_store(p + 8, _mm256_permute2f128_ps(r2, r3, 0x20));
  vf_store(p + 16, _mm256_permute2f128_ps(r0, r1, 0x31));
  vf_store(p + 24, _mm256_permute2f128_ps(r2, r3, 0x31));
}
/* lanes 4t..4t+3 to p + t*step */
RAPTI_ALWAYS_INLINE void vf_store_quads(float *p, int64_t step, vf a) {
  _mm_storeu_ps(p, _mm256_castps256_ps128(a));
  _mm_storeu_ps(p + step, _mm256_extractf128_ps(a, 1));
}
