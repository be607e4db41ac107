/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary in the compiler's own 4-lane vectors: whatever the baseline has, and no FMA (two roundings). */
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16)));   /* all bits of a lane, or none */
#define VF_LEN 4
#define VF_PER_PANEL 2

RAPTI_ALWAYS_INLINE vf vf_set1(float x) { return (vf){x, x, x, x}; }
RAPTI_ALWAYS_INLINE vf vf_zero(void) { return vf_set1(0); }
RAPTI_ALWAYS_INLINE vf vf_broadcast(const float *p) { return vf_set1(*p); }
RAPTI_ALWAYS_INLINE vf vf_load(const float *p) {
  vf a;
  memcpy(&a, p, sizeof a);
  return a;
}
RAPTI_ALWAYS_INLINE void vf_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
RAPTI_ALWAYS_INLINE vf vf_add(vf a, vf b) { return a + b; }
RAPTI_ALWAYS_INLINE vf vf_sub(vf a, vf b) { return a - b; }
RAPTI_ALWAYS_INLINE vf vf_mul(vf a, vf b) { return a * b; }
RAPTI_ALWAYS_INLINE vf vf_div(vf a, vf b) { return a / b; }
RAPTI_ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
RAPTI_ALWAYS_INLINE vf vf_fms(vf a, vf b, vf c) { return a * b - c; }

RAPTI_ALWAYS_INLINE vm vm_gt(vf a, vf b) { return a > b; }
RAPTI_ALWAYS_INLINE vm vm_le(vf a, vf b) { return a <= b; }
RAPTI_ALWAYS_INLINE vm vm_eq(vf a, vf b) { return a == b; }
RAPTI_ALWAYS_INLINE vm vm_and(vm a, vm b) { return a & b; }
RAPTI_ALWAYS_INLINE vm vm_or(vm a, vm b) { return a | b; }
RAPTI_ALWAYS_INLINE vm vm_not(vm a) { return ~a; }
RAPTI_ALWAYS_INLINE bool vm_any(vm a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
RAPTI_ALWAYS_INLINE vf vf_select(vm m, vf a, vf b) { return (vf)(((vm)a & m) | ((vm)b & ~m)); }   /* m ? a : b */
/* a > b ? a : b, so b where either is NaN */
RAPTI_ALWAYS_INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
/* bytes != 0 */
RAPTI_ALWAYS_INLINE vm vm_load_bytes(const uint8_t *p) { return -((vm){p[0] != 0, p[1] != 0, p[2] != 0, p[3] != 0}); }

/* 2^n of each lane, n + 127 in 0..254 in the low bits of its mantissa; n = -127 gives 0 */
RAPTI_ALWAYS_INLINE vf vf_pow2(vf t) { return (vf)((vm)t << 23); }

RAPTI_ALWAYS_INLINE vf vf_load_bf16(const void *p) {
  uint16_t h[4];
  memcpy(h, p, sizeof h);
  return (vf){rapti_bf16_to_f32(h[0]), rapti_bf16_to_f32(h[1]), rapti_bf16_to_f32(h[2]), rapti_bf16_to_f32(h[3])};
}
RAPTI_ALWAYS_INLINE vf vf_load_fp16(const void *p) {
  uint16_t h[4];
  memcpy(h, p, sizeof h);
  return (vf){rapti_fp16_to_f32(h[0]), rapti_fp16_to_f32(h[1]), rapti_fp16_to_f32(h[2]), rapti_fp16_to_f32(h[3])};
}
RAPTI_ALWAYS_INLINE void vf_store_bf16(void *p, vf a) {
  const uint16_t h[4] = {rapti_f32_to_bf16(a[0]), rapti_f32_to_bf16(a[1]), rapti_f32_to_bf16(a[2]), rapti_f32_to_bf16(a[3])};
  memcpy(p, h, sizeof h);
}
RAPTI_ALWAYS_INLINE void vf_store_fp16(void *p, vf a) {
  const uint16_t h[4] = {rapti_f32_to_fp16(a[0]), rapti_f32_to_fp16(a[1]), rapti_f32_to_fp16(a[2]), rapti_f32_to_fp16(a[3])};
  memcpy(p, h, sizeof h);
}

/* r[i] lane j <-> r[j] lane i */
RAPTI_ALWAYS_INLINE void vf_transpose(vf r[VF_LEN]) {
  const vf a = r[0], b = r[1], c = r[2], d = r[3];
  RAPTI_UNROLL for (int i = 0; i < 4; i++) r[i] = (vf){a[i], b[i], c[i], d[i]};
}
/* x[c] lane i = row[i][d + c] */
RAPTI_ALWAYS_INLINE void vf_load_columns(const float *const row[VF_LEN], int64_t d, vf x[4]) {
  RAPTI_UNROLL for (int i = 0; i < 4; i++) x[i] = vf_load(row[i] + d);
  vf_transpose(x);
}

/* p[4*i + r] = lane i of x[r] */
RAPTI_ALWAYS_INLINE void vf_interleave4(float *p, const vf x[4]) {
  vf r[4] = {x[0], x[1], x[2], x[3]};
  vf_transpose(r);
  RAPTI_UNROLL for (int i = 0; i < 4; i++) vf_store(p + 4 * i, r[i]);
}
/* lanes 4t..4t+3 to p + t*step */
RAPTI_ALWAYS_INLINE void vf_store_quads(float *p, int64_t step, vf a) {
  (void)step;
  vf_store(p, a);
}
