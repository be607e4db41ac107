/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as a host has them: into a problem, and the outputs a host has to allocate. */
#include "core/problem.h"

#include <string.h>

/* The problem may be longer than ours; a shorter one cannot take the result. */
static rapt_status check_target(const rapt_problem *p, const void *tensor, rapt_reason *why) {
  if (!p || !tensor) return rapti_fault(why, RAPT_CODE_NULL, p ? RAPT_FIELD_NONE : RAPT_FIELD_PROBLEM);
  if (p->struct_size >= sizeof *p) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE);
  rapti_reason_got(why, "a rapt_problem of %lu bytes", (unsigned long)p->struct_size);
  rapti_reason_want(why, "this version's has %zu bytes", sizeof *p);
  return RAPT_ABI;
}

static rapt_status rank_fault(rapt_reason *why, int field, int got, const char *want) {
  rapti_fault(why, RAPT_CODE_RANK, field);
  rapti_reason_got(why, "%d", got);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

static rapt_status device_fault(rapt_reason *why, int field, const rapt_tensor *t, int kind, int index) {
  rapti_fault(why, RAPT_CODE_DEVICE, field);
  rapti_reason_got(why, "%s:%d", rapti_kind_name(t->kind), t->index);
  rapti_reason_want(why, "%s:%d, where q is", rapti_kind_name(kind), index);
  return RAPT_ARG;
}

/* Axis in the tensor's own numbering. */
static rapt_status shape_fault(rapt_reason *why, int field, const rapt_tensor *t, int axis, int64_t want,
                               const char *as) {
  char dims[96];
  rapti_text text = rapti_text_begin(dims, sizeof dims);
  rapti_put_dims(&text, t->size, t->rank);
  rapti_fault_axis(why, RAPT_CODE_SHAPE, field, axis);
  rapti_reason_got(why, "%s", dims);
  rapti_reason_want(why, "%lld %s", (long long)want, as);
  return RAPT_ARG;
}

/* ---- q, k, v ---- */

static rapt_status check_ranks(const rapt_tensor *const t[3], rapt_reason *why) {
  for (int i = 0; i < 3; i++)
    if (t[i]->rank != 3 && t[i]->rank != 4) return rank_fault(why, RAPT_FIELD_Q + i, t[i]->rank, "3 or 4");
  for (int i = 1; i < 3; i++)
    if (t[i]->rank != t[0]->rank)
      return rank_fault(why, RAPT_FIELD_Q + i, t[i]->rank, t[0]->rank == 3 ? "3 as q has" : "4 as q has");
  return RAPT_OK;
}

/* Does axis `axis` of tensor i equal that of tensor `as`? Axes counted from the last. */
static bool agrees(const rapt_tensor *const t[3], int i, int as, int from_last) {
  return t[i]->size[t[i]->rank - from_last] == t[as]->size[t[as]->rank - from_last];
}

/* S4 */
static rapt_status check_shapes(const rapt_tensor *const t[3], rapt_reason *why) {
  static const struct { int tensor, as, from_last; const char *text; } rules[] = {
      {1, 0, 4, "as in q"}, {1, 0, 1, "as in q"},            /* B, D */
      {2, 0, 4, "as in q"}, {2, 1, 3, "as in k"}, {2, 1, 2, "as in k"}};   /* B, heads, Skv */
  int rank = t[0]->rank;
  for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
    int tensor = rules[i].tensor, as = rules[i].as, from_last = rules[i].from_last;
    if (from_last > rank || agrees(t, tensor, as, from_last)) continue;
    return shape_fault(why, RAPT_FIELD_Q + tensor, t[tensor], rank - from_last, t[as]->size[rank - from_last],
                       rules[i].text);
  }
  int64_t heads = t[0]->size[rank - 3], kv_heads = t[1]->size[rank - 3];
  if (heads == 0 || (kv_heads >= 1 && heads % kv_heads == 0)) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_HEADS, RAPT_FIELD_K);
  rapti_reason_got(why, "%lld", (long long)kv_heads);
  rapti_reason_want(why, "%lld", (long long)heads);
  return RAPT_ARG;
}

static void take(rapt_problem *p, int field, const rapt_tensor *t) {
  rapt_desc *d = rapti_desc_of(p, field);
  d->dtype = t->dtype;
  for (int i = 0; i < 4; i++) d->stride[i] = i < 4 - t->rank ? 0 : t->stride[i - 4 + t->rank];
  p->has |= rapti_stride_bit(field);
}

rapt_status rapt_problem_set_qkv(rapt_problem *p, const rapt_tensor *q, const rapt_tensor *k, const rapt_tensor *v,
                                 rapt_reason *why) {
  const rapt_tensor *const t[3] = {q, k, v};
  for (int i = 0; i < 3; i++)
    if (!t[i]) return rapti_fault(why, RAPT_CODE_NULL, RAPT_FIELD_Q + i);
  rapt_status status = check_target(p, q, why);
  if (status || (status = check_ranks(t, why))) return status;
  for (int i = 1; i < 3; i++)
    if (t[i]->kind != q->kind || t[i]->index != q->index)
      return device_fault(why, RAPT_FIELD_Q + i, t[i], q->kind, q->index);
  if ((status = check_shapes(t, why))) return status;
  int rank = q->rank;
  p->B = rank == 4 ? q->size[0] : 1;
  p->Hq = q->size[rank - 3];
  p->Hkv = k->size[rank - 3];
  p->Sq = q->size[rank - 2];
  p->Skv = k->size[rank - 2];
  p->D = q->size[rank - 1];
  p->Dv = v->size[rank - 1];
  p->device = q->kind;
  p->device_index = q->index;
  for (int i = 0; i < 3; i++) take(p, RAPT_FIELD_Q + i, t[i]);
  return RAPT_OK;
}

/* ---- Mask and bias ---- */

static rapt_status set_plane(rapt_problem *p, int field, const rapt_tensor *t, rapt_reason *why) {
  if (!t) return rapti_fault(why, RAPT_CODE_NULL, field);
  rapt_status status = check_target(p, t, why);
  if (status) return status;
  if (t->rank < 0 || t->rank > 4) return rank_fault(why, field, t->rank, "0 to 4");
  bool wrong = field == RAPT_FIELD_MASK ? t->dtype != RAPT_BOOL : !rapti_dtype_is_float(t->dtype);
  if (wrong) {                                               /* M8, M9 */
    rapti_fault(why, field == RAPT_FIELD_MASK ? RAPT_CODE_MASK : RAPT_CODE_BIAS, field);
    rapti_reason_got(why, "%s", rapt_dtype_name(t->dtype));
    rapti_reason_want(why, field == RAPT_FIELD_MASK ? "bool" : "fp16, bf16 or fp32");
    return RAPT_ARG;
  }
  const int64_t want[4] = {p->B, p->Hq, p->Sq, p->Skv};
  for (int i = t->rank - 1; i >= 0; i--) {
    int64_t size = want[4 - t->rank + i];
    if (t->size[i] != size && t->size[i] != 1) return shape_fault(why, field, t, i, size, "or 1");
  }
  bool elsewhere = t->kind != p->device || t->index != p->device_index;
  if (elsewhere) return device_fault(why, field, t, p->device, p->device_index);
  take(p, field, t);
  rapt_desc *d = rapti_desc_of(p, field);
  for (int i = 0; i < 4; i++) d->size[i] = i < 4 - t->rank ? 1 : t->size[i - 4 + t->rank];
  return RAPT_OK;
}

rapt_status rapt_problem_set_mask(rapt_problem *p, const rapt_tensor *mask, rapt_reason *why) {
  return set_plane(p, RAPT_FIELD_MASK, mask, why);
}

rapt_status rapt_problem_set_bias(rapt_problem *p, const rapt_tensor *bias, rapt_reason *why) {
  return set_plane(p, RAPT_FIELD_BIAS, bias, why);
}

/* ---- Outputs ---- */

rapt_status rapt_problem_output(const rapt_problem *p, int32_t which, rapt_tensor *tensor, rapt_reason *why) {
  if (!tensor) return rapti_fault(why, RAPT_CODE_NULL, which);
  if (which != RAPT_FIELD_OUT && which != RAPT_FIELD_LSE) {
    rapti_fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_NONE);
    rapti_reason_got(why, "%s is no output", rapt_field_name(which));
    rapti_reason_want(why, "outputs are out and lse");
    return RAPT_ARG;
  }
  rapti_request r;
  rapt_status status = rapti_request_make(p, &r, why);
  if (status) return status;
  bool packed = r.cast.cu, lse = which == RAPT_FIELD_LSE;
  int64_t size[4], q_size[4], q_stride[4], stride[4];
  int perm[4];
  rapti_tensor_strides(p, RAPT_FIELD_Q, q_size, q_stride);
  rapti_tensor_sizes(&r.cast, which, size);
  if (lse) rapti_default_order(p, which, perm);
  else rapti_axis_order(q_size, q_stride, perm);
  rapti_dense_strides(size, perm, stride);
  memset(tensor, 0, sizeof *tensor);
  tensor->dtype = rapti_desc(&r.cast, which)->dtype;
  tensor->kind = r.cast.device;
  tensor->index = r.cast.device_index;
  tensor->rank = 4 - lse - packed;
  for (int i = 0; i < tensor->rank; i++) {
    /* logical axes: [B,H,S,D], [B,H,S]; packed [S,H,D], [H,S] (M17) */
    int axis = !packed ? i : lse ? i + 1 : i == 2 ? 3 : 2 - i;
    tensor->size[i] = size[axis];
    tensor->stride[i] = stride[axis];
  }
  return RAPT_OK;
}
