/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary on AVX-512 F, BW, DQ, VL: 16 lanes, panels of 4 vectors (4 x 4 accumulators). */
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "compile with -mavx512f -mavx512bw -mavx512dq -mavx512vl"
#endif
#include <immintrin.h>

typedef __m512 vf;
typedef __mmask16 vm;
#define VF_LEN 16
#define VF_PER_PANEL 4

RAPTI_ALWAYS_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
RAPTI_ALWAYS_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
RAPTI_ALWAYS_INLINE vf vf_broadcast(const float *p) { return _mm512_set1_ps(*p); }
RAPTI_ALWAYS_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
RAPTI_ALWAYS_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
RAPTI_ALWAYS_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
RAPTI_ALWAYS_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
RAPTI_ALWAYS_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
RAPTI_ALWAYS_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
RAPTI_ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
RAPTI_ALWAYS_INLINE vf vf_fms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }
/* a > b ? a : b, so b where either is NaN */
RAPTI_ALWAYS_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }

/* 2^n of each lane, n + 127 in 0..254 in the low bits of its mantissa; n = -127 gives 0 */
RAPTI_ALWAYS_INLINE vf vf_pow2(vf t) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23)); }

RAPTI_ALWAYS_INLINE vm vm_gt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
RAPTI_ALWAYS_INLINE vm vm_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
RAPTI_ALWAYS_INLINE vm vm_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
RAPTI_ALWAYS_INLINE vm vm_and(vm a, vm b) { return (vm)(a & b); }
RAPTI_ALWAYS_INLINE vm vm_or(vm a, vm b) { return (vm)(a | b); }
RAPTI_ALWAYS_INLINE vm vm_not(vm a) { return (vm)~a; }
RAPTI_ALWAYS_INLINE bool vm_any(vm a) { return a != 0; }
RAPTI_ALWAYS_INLINE vf vf_select(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }   /* m ? a : b */
/* bytes != 0 */
RAPTI_ALWAYS_INLINE vm vm_load_bytes(const uint8_t *p) {
  const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
  return _mm_test_epi8_mask(x, x);
}

RAPTI_ALWAYS_INLINE vf vf_load_bf16(const void *p) {
  const __m256i x = _mm256_loadu_si256((const __m256i *)p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
RAPTI_ALWAYS_INLINE vf vf_load_fp16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
RAPTI_ALWAYS_INLINE void vf_store_fp16(void *p, vf a) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
RAPTI_ALWAYS_INLINE void vf_store_bf16(void *p, vf a) {   /* nearest even; NaN stays NaN */
  const __m512i u = _mm512_castps_si512(a), high = _mm512_srli_epi32(u, 16);
  const __m512i bias = _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, bias), 16);
  const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
  const __m512i r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(r));
}

/* r[i] lane j <-> r[j] lane i */
RAPTI_ALWAYS_INLINE void vf_transpose(vf r[VF_LEN]) {
  vf t[16], u[16];
  RAPTI_UNROLL for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  RAPTI_UNROLL for (int i = 0; i < 4; i++) {   /* u[4i+c]: column c of each 4-lane part, of rows 4i..4i+3 */
    u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  RAPTI_UNROLL for (int c = 0; c < 4; c++) {   /* part p of u[4i+c] becomes part i of r[4p+c] */
    const vf a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x44), b = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xee);
    const vf d = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x44), e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xee);
    r[c] = _mm512_shuffle_f32x4(a, d, 0x88);
    r[4 + c] = _mm512_shuffle_f32x4(a, d, 0xdd);
    r[8 + c] = _mm512_shuffle_f32x4(b, e, 0x88);
    r[12 + c] = _mm512_shuffle_f32x4(b, e, 0xdd);
  }
}

/* x[c] lane i = row[i][d + c] */
RAPTI_ALWAYS_INLINE void vf_load_columns(const float *const row[VF_LEN], int64_t d, vf x[4]) {
  vf a[4];
  RAPTI_UNROLL for (int i = 0; i < 4; i++) {
    a[i] = _mm512_castps128_ps512(_mm_loadu_ps(row[i] + d));
    a[i] = _mm512_insertf32x4(a[i], _mm_loadu_ps(row[i + 4] + d), 1);
    a[i] = _mm512_insertf32x4(a[i], _mm_loadu_ps(row[i + 8] + d), 2);
    a[i] = _mm512_insertf32x4(a[i], _mm_loadu_ps(row[i + 12] + d), 3);
  }
  const vf t0 = _mm512_unpacklo_ps(a[0], a[1]), t1 = _mm512_unpackhi_ps(a[0], a[1]);
  const vf t2 = _mm512_unpacklo_ps(a[2], a[3]), t3 = _mm512_unpackhi_ps(a[2], a[3]);
  x[0] = _mm512_shuffle_ps(t0, t2, 0x44);
  x[1] = _mm512_shuffle_ps(t0, t2, 0xee);
  x[2] = _mm512_shuffle_ps(t1, t3, 0x44);
  x[3] = _mm512_shuffle_ps(t1, t3, 0xee);
}

/* p[4*i + r] = lane i of x[r] */
RAPTI_ALWAYS_INLINE void vf_interleave4(float *p, const vf x[4]) {
  const vf a = _mm512_unpacklo_ps(x[0], x[1]), b = _mm512_unpackhi_ps(x[0], x[1]);
  const vf c = _mm512_unpacklo_ps(x[2], x[3]), d = _mm512_unpackhi_ps(x[2], x[3]);
  const vf r[4] = {_mm512_shuffle_ps(a, c, 0x44), _mm512_shuffle_ps(a, c, 0xee), _mm512_shuffle_ps(b, d, 0x44),
                   _mm512_shuffle_ps(b, d, 0xee)};
  RAPTI_UNROLL for (int i = 0; i < 4; i++) {   /* part s of r[i] holds lane 4s + i */
    _mm_storeu_ps(p + 4 * i, _mm512_castps512_ps128(r[i]));
    _mm_storeu_ps(p + 4 * i + 16, _mm512_extractf32x4_ps(r[i], 1));
    _mm_storeu_ps(p + 4 * i + 32, _mm512_extractf32x4_ps(r[i], 2));
    _mm_storeu_ps(p + 4 * i + 48, _mm512_extractf32x4_ps(r[i], 3));
  }
}
/* lanes 4t..4t+3 to p + t*step */
RAPTI_ALWAYS_INLINE void vf_store_quads(float *p, int64_t step, vf a) {
  _mm_storeu_ps(p, _mm512_castps512_ps128(a));
  _mm_storeu_ps(p + step, _mm512_extractf32x4_ps(a, 1));
  _mm_storeu_ps(p + 2 * step, _mm512_extractf32x4_ps(a, 2));
  _mm_storeu_ps(p + 3 * step, _mm512_extractf32x4_ps(a, 3));
}
