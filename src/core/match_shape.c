/* SPDX-License-Identifier: Apache-2.0 */
/* Dtypes, sizes and memory: DTYPE DTYPE_MIX HEADS HEAD_DIM VALUE_DIM SIZE OFFSET_RANGE STRIDE MEM_ALIGN. */
#include "core/match.h"

void rapti_put_dtypes(rapti_text *t, uint32_t dtypes) {
  size_t begin = t->len;
  for (int dtype = RAPT_FP16; dtype <= RAPT_FP8E5M2; dtype++) {
    if (!(dtypes & RAPT_DT(dtype))) continue;
    bool last = dtypes < RAPT_DT(dtype + 1);
    if (t->len > begin) rapti_text_put(t, last ? " or " : ", ");
    rapti_text_put(t, rapt_dtype_name(dtype));
  }
  if (t->len == begin) rapti_text_put(t, "none");
}

static void check_dtype(rapti_matcher *x) {
  const rapt_problem *p = x->p;
  if (!(x->row->dtypes & RAPT_DT(p->q.dtype))) {
    rapt_reason *why = rapti_fail(x, RAPT_CODE_DTYPE, RAPT_FIELD_Q);
    if (why) {
      char buf[sizeof why->want];
      rapti_text t = rapti_text_begin(buf, sizeof buf);
      rapti_put_dtypes(&t, x->row->dtypes);
      rapti_text_end(&t);
      rapti_reason_got(why, "%s", rapt_dtype_name(p->q.dtype));
      rapti_reason_want(why, "%s", buf);
    }
  }
  if (x->lacks & RAPT_CAN_OUT_FP32) {
    rapt_reason *why = rapti_lack(x, RAPT_CAN_OUT_FP32, RAPT_CODE_DTYPE, RAPT_FIELD_OUT, "an output dtype of its own");
    if (why) {
      rapti_reason_got(why, "%s", rapt_dtype_name(p->out.dtype));
      rapti_reason_want(why, "%s", rapt_dtype_name(p->q.dtype));
    }
  }
  if (x->lacks & RAPT_CAN_MIXED_KV) {
    rapt_reason *why = rapti_lack(x, RAPT_CAN_MIXED_KV, RAPT_CODE_DTYPE_MIX, RAPT_FIELD_QKV, "mixed_kv");
    if (!why) return;
    rapti_reason_got(why, "%s/%s/%s", rapt_dtype_name(p->q.dtype), rapt_dtype_name(p->k.dtype),
                     rapt_dtype_name(p->v.dtype));
    rapti_reason_want(why, "one dtype");
  }
}

static void check_heads(rapti_matcher *x) {
  uint64_t bit = x->lacks & (RAPT_CAN_GQA | RAPT_CAN_MQA);
  if (!bit) return;
  rapt_reason *why = rapti_lack(x, bit, RAPT_CODE_HEADS, RAPT_FIELD_K, "fewer kv heads than query heads");
  if (!why) return;
  uint64_t other = x->row->can & (RAPT_CAN_GQA | RAPT_CAN_MQA);
  rapti_reason_got(why, "%lld query and %lld kv heads", (long long)x->p->Hq, (long long)x->p->Hkv);
  rapti_reason_want(why, "as many kv as query heads%s",
                    other == RAPT_CAN_MQA ? ", or one kv head" : other ? ", or several kv heads" : "");
}

static int64_t smaller_limit(int64_t a, int64_t b) { return a && (!b || a < b) ? a : b; }

static void want_dims(rapt_reason *why, const rapt_row *row) {
  char buf[sizeof why->want];
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  for (uint32_t i = 0; i < row->n_dims; i++) {
    if (i) rapti_text_put(&t, ", ");
    rapti_text_int(&t, row->dims[i].D);
    if (row->dims[i].Dv != row->dims[i].D) { rapti_text_putc(&t, '/'); rapti_text_int(&t, row->dims[i].Dv); }
  }
  rapti_text_end(&t);
  rapti_reason_want(why, "%s", buf);
}

static void want_range(rapt_reason *why, int64_t min, int64_t max, int64_t step) {
  char buf[sizeof why->want];
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  if (max) {
    if (min) { rapti_text_int(&t, min); rapti_text_put(&t, ".."); }
    else rapti_text_put(&t, "at most ");
    rapti_text_int(&t, max);
  } else if (min) { rapti_text_put(&t, "at least "); rapti_text_int(&t, min); }
  if (step > 1) { rapti_text_put(&t, t.len ? ", a multiple of " : "a multiple of "); rapti_text_int(&t, step); }
  rapti_text_end(&t);
  rapti_reason_want(why, "%s", buf);
}

static void fail_dim(rapti_matcher *x, bool value) {
  rapt_reason *why = rapti_fail(x, value ? RAPT_CODE_VALUE_DIM : RAPT_CODE_HEAD_DIM, value ? RAPT_FIELD_V : RAPT_FIELD_Q);
  if (!why) return;
  const rapt_row *row = x->row;
  rapti_reason_got(why, "%lld", (long long)(value ? x->p->Dv : x->p->D));
  if (row->n_dims) { want_dims(why, row); return; }
  if (value) {
    if (row->dv_rule == RAPT_DV_SAME) rapti_reason_want(why, "%lld", (long long)x->p->D);
    else want_range(why, 0, row->dv_max, row->dv_step);
    return;
  }
  bool any = row->dv_rule == RAPT_DV_ANY && x->p->D == x->p->Dv, grad = x->r->needs_grad != 0;
  int64_t max = smaller_limit(row->d_max, any ? row->dv_max : 0);
  int64_t step = row->d_step;
  if (grad) max = smaller_limit(max, row->d_max_backward);
  if (any && row->dv_step > step) step = row->dv_step;
  if (grad && row->d_step_backward > step) step = row->d_step_backward;
  want_range(why, row->d_min, max, step);
}

static bool within(int64_t v, int64_t max, int64_t step) {
  return (!max || v <= max) && (step <= 1 || v % step == 0);
}

/* Closed lists: VALUE_DIM where the list has this D with another Dv; with Dv = D a miss is HEAD_DIM alone. */
static void check_dim_list(rapti_matcher *x) {
  const rapt_problem *p = x->p;
  bool head = false;
  for (uint32_t i = 0; i < x->row->n_dims; i++) {
    if (x->row->dims[i].D != p->D) continue;
    if (x->row->dims[i].Dv == p->Dv) return;
    head = true;
  }
  fail_dim(x, head && p->Dv != p->D);
}

static void check_dims(rapti_matcher *x) {
  const rapt_row *row = x->row;
  const int64_t D = x->p->D, Dv = x->p->Dv;
  if (row->n_dims) check_dim_list(x);
  else {
    bool good = D >= row->d_min && within(D, row->d_max, row->d_step);
    bool value = row->dv_rule == RAPT_DV_ANY ? within(Dv, row->dv_max, row->dv_step) : Dv == D;
    if (x->r->needs_grad) good = good && within(D, row->d_max_backward, row->d_step_backward);
    if (D == Dv) good = good && value;
    if (!good) fail_dim(x, false);
    if (!value && D != Dv) fail_dim(x, true);
  }
  if (row->d_unknown_above && D > row->d_unknown_above && (!row->d_max || D <= row->d_max)) {
    char what[40];
    rapti_text t = rapti_text_begin(what, sizeof what);
    rapti_text_put(&t, "D ");
    rapti_text_int(&t, D);
    rapti_unknown(x, RAPT_FIELD_Q, what);
  }
}

static void check_size(rapti_matcher *x, int field, int64_t v, int64_t min, int64_t max) {
  /* An operand without elements is answered without the backend (S6, S7). */
  if ((v >= min || x->r->empty) && (!max || v <= max)) return;
  rapt_reason *why = rapti_fail(x, RAPT_CODE_SIZE, field);
  if (!why) return;
  rapti_reason_got(why, "%lld", (long long)v);
  want_range(why, min, max, 1);
}

static void check_sizes(rapti_matcher *x) {
  const rapt_row *row = x->row;
  const rapt_problem *p = x->p;
  if (!(row->max_b | row->max_hq | row->max_sq | row->max_skv | row->min_sq | row->min_skv)) return;
  int64_t sq = p->cu && p->max_q ? p->max_q : p->Sq, skv = p->cu && p->max_k ? p->max_k : p->Skv;
  check_size(x, RAPT_FIELD_B, p->B, 0, row->max_b);
  check_size(x, RAPT_FIELD_HQ, p->Hq, 0, row->max_hq);
  check_size(x, RAPT_FIELD_SQ, sq, row->min_sq, row->max_sq);
  check_size(x, RAPT_FIELD_SKV, skv, row->min_skv, row->max_skv);
}

static int64_t reach_of(const rapt_problem *p, int field) {
  int64_t size[4], low, high;
  rapti_tensor_sizes(p, field, size);
  if (!rapti_extent(size, rapti_desc(p, field)->stride, &low, &high)) return INT64_MAX;
  return high > -low ? high : -low;
}

static void check_offsets(rapti_matcher *x) {
  int64_t limit = (int64_t)((UINT64_C(1) << x->row->offset_bits) - 1);
  if (!x->row->offset_bits || x->needs->reach <= limit) return;
  for (int field = RAPT_FIELD_Q; field <= RAPT_FIELD_DBIAS; field++) {
    if (!(x->needs->tensors >> field & 1u)) continue;
    int64_t reach = reach_of(x->p, field);
    rapt_reason *why = reach > limit ? rapti_fail(x, RAPT_CODE_OFFSET_RANGE, field) : NULL;
    if (!why) continue;
    rapti_reason_got(why, "%lld", (long long)reach);
    rapti_reason_want(why, "%lld", (long long)limit);
  }
}

static void check_strides(rapti_matcher *x) {
  if (x->lacks & RAPT_CAN_ANY_STRIDE)
    for (int field = RAPT_FIELD_Q; field <= RAPT_FIELD_DBIAS; field++) {
      if (!(x->needs->strided >> field & 1u)) continue;
      x->axis = 3;
      rapt_reason *why = rapti_lack(x, RAPT_CAN_ANY_STRIDE, RAPT_CODE_STRIDE, field, "a last stride other than 1");
      if (!why) continue;
      rapti_reason_got(why, "%lld", (long long)rapti_desc(x->p, field)->stride[3]);
      rapti_reason_want(why, "1 on the last axis");
    }
  if (!x->row->bias_stride_bytes || !x->p->bias.dtype || !(x->row->can & RAPT_CAN_BIAS)) return;
  for (int axis = 0; axis < 3; axis++) {
    const rapt_desc *d = &x->p->bias;
    int64_t bytes = (int64_t)rapt_dtype_bytes(d->dtype);
    if (d->size[axis] <= 1 || d->stride[axis] * bytes % x->row->bias_stride_bytes == 0) continue;
    x->axis = axis;
    rapt_reason *why = rapti_fail(x, RAPT_CODE_STRIDE, RAPT_FIELD_BIAS);
    if (!why) continue;
    rapti_reason_got(why, "%lld", (long long)d->stride[axis]);
    rapti_reason_want(why, "a multiple of %lld elements", (long long)(x->row->bias_stride_bytes / bytes));
  }
}

static void check_alignment_bytes(rapti_matcher *x) {
  if (x->row->ptr_align <= x->needs->align) return;
  for (int field = RAPT_FIELD_Q; field <= RAPT_FIELD_DBIAS; field++) {
    const rapt_desc *d = rapti_desc(x->p, field);
    if (!(x->needs->tensors >> field & 1u) || x->r->casts >> field & 1u) continue;
    int32_t have = d->ptr_align ? d->ptr_align : (int32_t)rapt_dtype_bytes(d->dtype);
    rapt_reason *why = have < x->row->ptr_align ? rapti_fail(x, RAPT_CODE_MEM_ALIGN, field) : NULL;
    if (!why) continue;
    rapti_reason_got(why, "%d", (int)have);
    rapti_reason_want(why, "%d", (int)x->row->ptr_align);
  }
}

void rapti_match_shape(rapti_matcher *x) {
  check_dtype(x);
  check_heads(x);
  check_dims(x);
  check_sizes(x);
  check_offsets(x);
  check_strides(x);
  check_alignment_bytes(x);
}
