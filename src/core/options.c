/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of sizes and options before the policy, in the order of docs/api.md section 4: DEVICE, HEADS, SIZE, then the
 * options in the order of the problem string, each with all its codes. */
#include "core/problem.h"

#include <math.h>

#define MAX_OFFSET (INT64_C(1) << 62)                        /* M2 */

static rapt_status size_fault(rapt_reason *why, int field, int64_t got, const char *want) {
  rapti_fault(why, RAPT_CODE_SIZE, field);
  rapti_reason_got(why, "%lld", (long long)got);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

static rapt_status check_heads(const rapt_problem *p, rapt_reason *why) {
  if (p->Hq == 0 || (p->Hkv >= 1 && p->Hq % p->Hkv == 0)) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_HEADS, RAPT_FIELD_K);
  rapti_reason_got(why, "%lld", (long long)p->Hkv);
  rapti_reason_want(why, "%lld", (long long)p->Hq);
  return RAPT_ARG;
}

/* S8: bytes and offsets of a tensor in 64 bits. bytes: of an element. */
static rapt_status check_extent(const rapt_problem *p, int field, int64_t bytes, rapt_reason *why) {
  int64_t size[4], stride[4], low = 0, high = 0, n = bytes;
  rapti_tensor_sizes(p, field, size);
  if (size[0] == 0 || size[1] == 0 || size[2] == 0 || size[3] == 0) return RAPT_OK;
  bool fits = rapti_mul(n, size[0], &n) && rapti_mul(n, size[1], &n) && rapti_mul(n, size[2], &n) &&
              rapti_mul(n, size[3], &n);
  if (fits && rapti_has_strides(p, field)) {
    rapti_tensor_strides(p, field, size, stride);
    fits = rapti_extent(size, stride, &low, &high) && rapti_mul(low, bytes, &low) && rapti_add(high, 1, &high) &&
           rapti_mul(high, bytes, &high) && rapti_add(high, low == INT64_MIN ? INT64_MAX : -low, &high);
  }
  if (fits) return RAPT_OK;
  char dims[96];
  rapti_text t = rapti_text_begin(dims, sizeof dims);
  rapti_put_dims(&t, size, 4);
  rapti_fault(why, RAPT_CODE_SIZE, field);
  rapti_reason_got(why, "%s", dims);
  rapti_reason_want(why, "bytes and offsets that 64 bits can count");
  return RAPT_ARG;
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* q, k, v, out and lse are dense and a tensor of the largest sizes of each axis fits: so do they all. */
static bool plainly_small(const rapt_problem *p) {
  int64_t n = 8;
  if (p->has & (rapti_stride_bit(RAPT_FIELD_LSE + 1) - RAPT_HAS_Q_STRIDES)) return false;
  return rapti_mul(n, p->B, &n) && rapti_mul(n, larger(p->Hq, p->Hkv), &n) && rapti_mul(n, larger(p->Sq, p->Skv), &n) &&
         rapti_mul(n, larger(larger(p->D, p->Dv), 1), &n);
}

static rapt_status check_sizes(const rapt_problem *p, rapt_reason *why) {
  const int64_t sizes[] = {p->B, p->Hq, p->Hkv, p->Sq, p->Skv, p->D, p->Dv};
  for (int i = 0; i < 7; i++)
    if (sizes[i] < 0) return size_fault(why, RAPT_FIELD_B + i, sizes[i], "0 or more");
  if (plainly_small(p)) return RAPT_OK;
  rapt_status status = RAPT_OK;
  for (int field = RAPT_FIELD_Q; field <= RAPT_FIELD_LSE && !status; field++) {
    int dtype = rapti_desc(p, field)->dtype;
    size_t bytes = dtype == RAPT_NONE ? 8 : rapt_dtype_bytes(dtype);
    if (rapti_tensor_present(p, field)) status = check_extent(p, field, (int64_t)bytes, why);
  }
  return status;
}

/* M12: each axis equal or 1. A packed call has no such axes; PACKED says so (M18). */
static rapt_status check_broadcast(const rapt_problem *p, int field, rapt_reason *why) {
  const int64_t want[4] = {p->B, p->Hq, p->Sq, p->Skv};
  const rapt_desc *d = rapti_desc(p, field);
  if (d->dtype == RAPT_NONE || p->cu) return RAPT_OK;
  for (int i = 3; i >= 0; i--) {
    if (d->size[i] == want[i] || d->size[i] == 1) continue;
    char got[96], all[96];
    rapti_text t = rapti_text_begin(got, sizeof got), u = rapti_text_begin(all, sizeof all);
    rapti_put_dims(&t, d->size, 4);
    rapti_put_dims(&u, want, 4);
    rapti_fault_axis(why, RAPT_CODE_SHAPE, field, i);
    rapti_reason_got(why, "%s", got);
    rapti_reason_want(why, "%lld or 1 as in %s", (long long)want[i], all);
    return RAPT_ARG;
  }
  return check_extent(p, field, (int64_t)rapt_dtype_bytes(d->dtype), why);
}

static rapt_status check_mask(const rapt_problem *p, rapt_reason *why) {
  if (p->mask.dtype == RAPT_NONE || p->mask.dtype == RAPT_BOOL) return check_broadcast(p, RAPT_FIELD_MASK, why);
  rapti_fault(why, RAPT_CODE_MASK, RAPT_FIELD_MASK);         /* M8 */
  rapti_reason_got(why, "%s", rapt_dtype_name(p->mask.dtype));
  rapti_reason_want(why, "bool");
  return RAPT_ARG;
}

/* M2, M3 */
static rapt_status check_corner(const rapt_problem *p, rapt_reason *why) {
  if (p->q_offset > MAX_OFFSET || p->q_offset < -MAX_OFFSET)
    return size_fault(why, RAPT_FIELD_Q_OFFSET, p->q_offset, "-2^62 to 2^62");
  if (p->alignment != RAPT_UNSET || !rapti_positional(p)) return RAPT_OK;
  if (p->Sq == p->Skv && !p->q_len && !p->kv_len && !p->cu) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_ALIGNMENT_UNSET, RAPT_FIELD_ALIGN);
  if (p->cu) rapti_reason_got(why, "packed sequences");
  else if (p->q_len || p->kv_len) rapti_reason_got(why, "lengths (%s)", p->kv_len ? "kv_len" : "q_len");
  else rapti_reason_got(why, "Sq %lld and Skv %lld", (long long)p->Sq, (long long)p->Skv);
  rapti_reason_want(why, "top-left (tl), bottom-right (br) or an offset (off:N)");
  return RAPT_ARG;
}

static rapt_status check_window(const rapt_problem *p, rapt_reason *why) {
  if (p->window[0] >= -1 && p->window[1] >= -1) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_WINDOW, RAPT_FIELD_WINDOW);
  rapti_reason_got(why, "%lld,%lld", (long long)p->window[0], (long long)p->window[1]);
  rapti_reason_want(why, "two bounds of -1 (open) or more");
  return RAPT_ARG;
}

static rapt_status longest_fault(rapt_reason *why, int field, int64_t got, int64_t tokens) {
  size_fault(why, field, got, "");
  rapti_reason_want(why, "0 to the %lld tokens there are", (long long)tokens);
  return RAPT_ARG;
}

/* M17, M18 */
static rapt_status check_packed(const rapt_problem *p, rapt_reason *why) {
  if (!p->cu) return RAPT_OK;
  const char *with = p->mask.dtype ? "mask" : p->bias.dtype ? "bias" : p->q_len ? "q_len" : p->kv_len ? "kv_len" : NULL;
  if (with) {
    rapti_fault(why, RAPT_CODE_PACKED, RAPT_FIELD_PACKED);
    rapti_reason_got(why, "%s", with);
    rapti_reason_want(why, "no mask, bias or lengths");
    return RAPT_ARG;
  }
  if (p->max_q < 0 || p->max_q > p->Sq) return longest_fault(why, RAPT_FIELD_MAX_Q, p->max_q, p->Sq);
  if (p->max_k < 0 || p->max_k > p->Skv) return longest_fault(why, RAPT_FIELD_MAX_K, p->max_k, p->Skv);
  return RAPT_OK;
}

/* M19 */
static rapt_status check_slopes(const rapt_problem *p, rapt_reason *why) {
  const rapt_desc *d = &p->slopes;
  if (d->dtype == RAPT_NONE) return RAPT_OK;
  bool shape = d->size[1] == p->Hq && (d->size[0] == 1 || d->size[0] == p->B);
  if (d->dtype == RAPT_FP32 && shape) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_ALIBI, RAPT_FIELD_SLOPES);
  rapti_reason_got(why, "%s %lldx%lld", rapt_dtype_name(d->dtype), (long long)d->size[0], (long long)d->size[1]);
  if (p->B == 1) rapti_reason_want(why, "fp32 1x%lld", (long long)p->Hq);
  else rapti_reason_want(why, "fp32 1x%lld or %lldx%lld", (long long)p->Hq, (long long)p->B, (long long)p->Hq);
  return RAPT_ARG;
}

/* Finite once rounded to the accumulator: fp64 under an fp64 q, which no policy changes, else fp32 (N3, M20). */
static bool finite_in_acc(const rapt_problem *p, double v) {
  return p->q.dtype == RAPT_FP64 ? isfinite(v) : isfinite((double)(float)v);
}

static rapt_status number_fault(rapt_reason *why, int code, int field, double got, const char *want) {
  rapti_fault(why, code, field);
  rapti_reason_got_double(why, got);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

static rapt_status check_sinks(const rapt_problem *p, rapt_reason *why) {
  const rapt_desc *d = &p->sinks;
  if (d->dtype == RAPT_NONE) return RAPT_OK;
  bool length = d->size[0] == 0 || d->size[0] == p->Hq;
  if (rapti_dtype_is_float(d->dtype) && length) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_SINK, RAPT_FIELD_SINKS);
  if (length) rapti_reason_got(why, "dtype %s", rapt_dtype_name(d->dtype));
  else rapti_reason_got(why, "%lld values", (long long)d->size[0]);
  if (length) rapti_reason_want(why, "fp16, bf16, fp32 or fp64");
  else rapti_reason_want(why, "%lld, one a query head", (long long)p->Hq);
  return RAPT_ARG;
}

/* N3, S7 */
static rapt_status check_scale(const rapt_problem *p, rapt_reason *why) {
  if (p->has & RAPT_HAS_SCALE) {
    if (finite_in_acc(p, p->scale)) return RAPT_OK;
    return number_fault(why, RAPT_CODE_SCALE, RAPT_FIELD_SCALE, p->scale, "finite in the accumulator");
  }
  if (p->D > 0) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_SCALE, RAPT_FIELD_SCALE);
  rapti_reason_got(why, "1/sqrt(D) with D = 0");
  rapti_reason_want(why, "given");
  return RAPT_ARG;
}

/* X4: b, h, i below 2^32, j below 2^34, with the bases on top. */
static rapt_status check_base(const rapt_problem *p, rapt_reason *why) {
  const int64_t size[4] = {p->B, p->Hq, p->Sq, p->Skv};
  if (p->dropout == 0 && !(p->base[0] | p->base[1] | p->base[2] | p->base[3])) return RAPT_OK;
  for (int i = 0; i < 4; i++) {
    int64_t limit = INT64_C(1) << (i < 3 ? 32 : 34);
    bool fits = p->base[i] >= 0 && p->base[i] <= limit && size[i] <= limit - p->base[i];
    if (fits || (!(p->dropout > 0) && p->base[i] >= 0)) continue;
    rapti_reason_set(why, RAPT_CODE_SIZE, RAPT_FIELD_BASE, -1, i);
    rapti_reason_got(why, "%lld for a size of %lld", (long long)p->base[i], (long long)size[i]);
    rapti_reason_want(why, i < 3 ? "0 or more, together at most 2^32" : "0 or more, together at most 2^34");
    return RAPT_ARG;
  }
  return RAPT_OK;
}

/* B1, B7 */
static rapt_status check_grads(const rapt_problem *p, rapt_reason *why) {
  uint64_t grads = p->flags & RAPTI_GRADS;
  const char *got = NULL, *want = "";
  if (p->backward && !grads) { got = "nothing"; want = "a backward needs some of q, k, v, bias and sinks"; }
  if ((grads & RAPT_GRAD_BIAS) && p->bias.dtype == RAPT_NONE) { got = "bias"; want = "no bias is given"; }
  if ((grads & RAPT_GRAD_SINKS) && p->sinks.dtype == RAPT_NONE) { got = "sinks"; want = "no sinks are given"; }
  if (got) {
    rapti_fault(why, RAPT_CODE_GRAD, RAPT_FIELD_GRAD);
    rapti_reason_got(why, "%s", got);
    rapti_reason_want(why, "%s", want);
    return RAPT_ARG;
  }
  rapt_status status = RAPT_OK;
  for (int field = RAPT_FIELD_DOUT; grads && field <= RAPT_FIELD_DBIAS && !status; field++)
    if (rapti_tensor_present(p, field)) status = check_extent(p, field, 8, why);
  return status;
}

static rapt_status check_dropout(const rapt_problem *p, rapt_reason *why) {
  if (p->dropout >= 0 && p->dropout <= 1) return RAPT_OK;
  return number_fault(why, RAPT_CODE_DROPOUT, RAPT_FIELD_DROPOUT, p->dropout, "0 to 1");
}

static rapt_status check_softcap(const rapt_problem *p, rapt_reason *why) {
  if (p->softcap >= 0 && finite_in_acc(p, p->softcap)) return RAPT_OK;
  return number_fault(why, RAPT_CODE_SOFTCAP, RAPT_FIELD_SOFTCAP, p->softcap, "0 or more, and finite in the accumulator");
}

static rapt_status check_bias(const rapt_problem *p, rapt_reason *why) {
  return check_broadcast(p, RAPT_FIELD_BIAS, why);
}

static rapt_status check_limit(const rapt_problem *p, rapt_reason *why) {
  return p->memory_limit >= 0 ? RAPT_OK : size_fault(why, RAPT_FIELD_MEMORY_LIMIT, p->memory_limit, "0 or more bytes");
}

static rapt_status check_device(const rapt_problem *p, rapt_reason *why) {
  if (p->device_index >= 0) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_DEVICE, RAPT_FIELD_DEVICE);
  rapti_reason_got(why, "%s:%d", rapti_kind_name(p->device), p->device_index);
  rapti_reason_want(why, "an index from 0");
  return RAPT_ARG;
}

rapt_status rapti_check_call(const rapt_problem *p, rapt_reason *why) {
  static rapt_status (*const checks[])(const rapt_problem *p, rapt_reason *why) = {
      check_device, check_heads,  check_sizes,   check_mask,  check_bias,    check_corner, check_window,
      check_packed, check_slopes, check_softcap, check_sinks, check_scale,   check_dropout, check_base,
      check_grads,  check_limit,  rapti_check_autocast};
  for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
    rapt_status status = checks[i](p, why);
    if (status) return status;
  }
  return RAPT_OK;
}
