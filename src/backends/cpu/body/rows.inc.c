/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of elements of any dtype and stride, read as and written from fp32. Nothing outside the n elements is touched
 * (S13): whole vectors where they fit, single elements at the end. */

static float load_element(const char *p, int32_t dtype) {
  uint16_t h;
  float f;
  if (dtype == RAPT_FP32) return memcpy(&f, p, sizeof f), f;
  memcpy(&h, p, sizeof h);
  return dtype == RAPT_BF16 ? rapti_bf16_to_f32(h) : rapti_fp16_to_f32(h);
}

static void store_element(char *p, int32_t dtype, float f) {
  if (dtype == RAPT_FP32) {
    memcpy(p, &f, sizeof f);
    return;
  }
  const uint16_t h = dtype == RAPT_BF16 ? rapti_f32_to_bf16(f) : rapti_f32_to_fp16(f);
  memcpy(p, &h, sizeof h);
}

/* The row itself where it is contiguous fp32, else its copy in scratch. */
RAPTI_NOINLINE const float *fetch_row(const char *src, int64_t step, int32_t dtype, int64_t n, float *scratch) {
  if (dtype == RAPT_FP32 && step == 4) return (const float *)(const void *)src;
  int64_t i = 0;
  if (step == 2 && dtype == RAPT_BF16)
    for (; i + VF_LEN <= n; i += VF_LEN) vf_store(scratch + i, vf_load_bf16(src + 2 * i));
  else if (step == 2)
    for (; i + VF_LEN <= n; i += VF_LEN) vf_store(scratch + i, vf_load_fp16(src + 2 * i));
  for (; i < n; i++) scratch[i] = load_element(src + i * step, dtype);
  return scratch;
}

RAPTI_NOINLINE void store_row(char *dst, int64_t step, int32_t dtype, int64_t n, const float *row) {
  int64_t i = 0;
  if (step == 2 && dtype == RAPT_BF16)
    for (; i + VF_LEN <= n; i += VF_LEN) vf_store_bf16(dst + 2 * i, vf_load(row + i));
  else if (step == 2)
    for (; i + VF_LEN <= n; i += VF_LEN) vf_store_fp16(dst + 2 * i, vf_load(row + i));
  else if (step == 4 && dtype == RAPT_FP32)
    for (; i + VF_LEN <= n; i += VF_LEN) vf_store((float *)(void *)(dst + 4 * i), vf_load(row + i));
  for (; i < n; i++) store_element(dst + i * step, dtype, row[i]);
}

/* Where row r of a KV head's rows begins, in a query-shaped tensor. */
static int64_t row_offset(const rapti_cpu_call *c, int64_t head, int64_t r, int64_t sb, int64_t sh, int64_t ss) {
  const int64_t b = head / c->Hkv, h = head % c->Hkv * c->group + r / c->Sq;
  return b * sb + h * sh + r % c->Sq * ss;
}

/* bias and mask of row r for keys k .. k+n-1 as one number a key: -inf where they make the pair invisible (M8, M10),
 * else what to add. */
static void fill_adjust(const rapti_cpu_call *c, int64_t head, int64_t r, int64_t k, int64_t n, float *dst) {
  const rapti_in *bias = &c->bias, *mask = &c->mask;
  if (bias->dtype) {
    const char *p = bias->base + row_offset(c, head, r, bias->sb, bias->sh, bias->ss) + k * bias->sd;
    const float *row = fetch_row(p, bias->sd, bias->dtype, n, dst);
    if (row != dst) memcpy(dst, row, (size_t)n * sizeof *dst);
  } else {
    memset(dst, 0, (size_t)n * sizeof *dst);
  }
  if (!mask->dtype) return;
  const char *p = mask->base + row_offset(c, head, r, mask->sb, mask->sh, mask->ss) + k * mask->sd;
  int64_t i = 0;
  if (mask->sd == 1)
    for (; i + VF_LEN <= n; i += VF_LEN)
      vf_store(dst + i, vf_select(vm_load_bytes((const uint8_t *)p + i), vf_load(dst + i), vf_set1(-INFINITY)));
  for (; i < n; i++)
    if (!p[i * mask->sd]) dst[i] = -INFINITY;
}

/* ---- exp ---- */

/* e^x for x up to about 8: 2^n * p(f), x*log2(e) = n + f, |f| <= 1/2, p(0) = 1 exactly; relative error 2.9 u with FMA.
 * The difference from the maximum is taken before the change of base (N5). Below -87.7 the result is 0 (N2); NaN stays
 * NaN. p: degree 5, minimax in relative error with p(0) = 1 fixed. */
RAPTI_ALWAYS_INLINE vf vf_exp(vf x) {
  const vf magic = vf_set1(12583039.0f);   /* 1.5 * 2^23 + 127: rounds to whole numbers, leaves n + 127 in the low bits */
  const vf log2e = vf_set1(0x1.715476p+0f);
  x = vf_max(vf_set1(-88.03f), x);         /* n = -127 there: vf_pow2 gives 0 */
  const vf t = vf_fma(x, log2e, magic), f = vf_fms(x, log2e, vf_sub(t, magic));
  vf p = vf_set1(0x1.5bba14p-10f);
  p = vf_fma(p, f, vf_set1(0x1.3cea88p-7f));
  p = vf_fma(p, f, vf_set1(0x1.c6b752p-5f));
  p = vf_fma(p, f, vf_set1(0x1.ebf9bcp-3f));
  p = vf_fma(p, f, vf_set1(0x1.62e42ap-1f));
  p = vf_fma(p, f, vf_set1(1));
  return vf_mul(p, vf_pow2(t));
}

/* A row rescales when its maximum grew by more than this since the last time: weights stay below e^GROWTH. */
#define GROWTH 5.5f
/* Added to the maximum where sums of weights times values overflowed although the mean need not: weights below 2^-32. */
#define RESCUE 22.5f

/* What logits are measured from: the running maximum, or 0 while no finite logit was seen (then every weight is 0). */
RAPTI_ALWAYS_INLINE vf vf_origin(vf m) { return vf_select(vm_eq(m, vf_set1(-INFINITY)), vf_zero(), m); }

/* The -0 that underflow may leave becomes +0, so that blocks of zero weights leave no trace (M23). */
RAPTI_ALWAYS_INLINE vf vf_quotient(vf o, vf l) {
  const vm none = vm_eq(l, vf_zero());     /* no visible key, or every visible logit -inf by overflow (M16, N10) */
  return vf_select(none, vf_zero(), vf_add(vf_div(o, l), vf_zero()));
}

/* Natural log, summed in double (N8). */
static float lse_of(float m, float l) { return l == 0 ? -INFINITY : (float)((double)m + log((double)l)); }
