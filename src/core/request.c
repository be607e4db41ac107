/* SPDX-License-Identifier: Apache-2.0 */
/* From a problem to a request: all checks that ask no row, in their fixed order (E7), the policy, and what follows from
 * the metadata. A plain dense call takes a few hundred instructions: no text is made unless there is a fault. */
#include "core/problem.h"

#include "base/float_state.h"

#include <math.h>
#include <string.h>

/* A bound beyond any distance |P - j| (M2, S8), small enough that P - bound and P + bound stay in 64 bits. */
#define FAR (INT64_C(3) << 61)

#define CALL_STRIDES (rapti_stride_bit(RAPT_FIELD_LSE + 1) - RAPT_HAS_Q_STRIDES)   /* q, k, v, out, lse */

/* ---- Dtypes after the policy ---- */

static int acc_of(const rapt_problem *cast) { return cast->q.dtype == RAPT_FP64 ? RAPT_FP64 : RAPT_FP32; }
static int or_default(int dtype, int otherwise) { return dtype != RAPT_NONE ? dtype : otherwise; }

static rapt_status dtype_fault(rapt_reason *why, int field, int got, const char *want) {
  rapti_fault(why, RAPT_CODE_DTYPE, field);
  rapti_reason_got(why, "%s", rapt_dtype_name(got));
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

/* out: the result dtype or fp32; the others follow their tensor (S2, N8). */
static rapt_status check_result_dtypes(const rapt_problem *cast, rapt_reason *why) {
  int result = cast->q.dtype, out = or_default(cast->out.dtype, result), acc = acc_of(cast);
  if (out != result && out != RAPT_FP32) {
    dtype_fault(why, RAPT_FIELD_OUT, out, "");
    rapti_reason_want(why, result == RAPT_FP32 ? "%s" : "%s or fp32", rapt_dtype_name(result));
    return RAPT_ARG;
  }
  if (or_default(cast->lse.dtype, acc) != acc)
    return dtype_fault(why, RAPT_FIELD_LSE, cast->lse.dtype, rapt_dtype_name(acc));
  if (or_default(cast->dout.dtype, out) != out)
    return dtype_fault(why, RAPT_FIELD_DOUT, cast->dout.dtype, rapt_dtype_name(out));
  if (or_default(cast->dlse.dtype, acc) != acc)
    return dtype_fault(why, RAPT_FIELD_DLSE, cast->dlse.dtype, rapt_dtype_name(acc));
  return RAPT_OK;
}

/* B5: its input's dtype, or fp32 for dq, dk and dv together. */
static rapt_status check_gradient_dtypes(const rapt_problem *cast, rapt_reason *why) {
  bool all_fp32 = true;
  for (int i = 0; i < 3; i++) {
    int input = rapti_desc(cast, RAPT_FIELD_Q + i)->dtype;
    all_fp32 = all_fp32 && or_default(rapti_desc(cast, RAPT_FIELD_DQ + i)->dtype, input) == RAPT_FP32;
  }
  for (int field = RAPT_FIELD_DQ; field <= RAPT_FIELD_DSINKS; field++) {
    static const int inputs[] = {RAPT_FIELD_Q, RAPT_FIELD_K, RAPT_FIELD_V, RAPT_FIELD_BIAS, RAPT_FIELD_SINKS};
    int input = rapti_desc(cast, inputs[field - RAPT_FIELD_DQ])->dtype, dtype = rapti_desc(cast, field)->dtype;
    if (or_default(dtype, input) == input || (all_fp32 && field <= RAPT_FIELD_DV)) continue;
    dtype_fault(why, field, dtype, "");
    const char *form = field <= RAPT_FIELD_DV ? "%s, or fp32 for dq, dk and dv together" : "%s";
    rapti_reason_want(why, form, rapt_dtype_name(input));
    return RAPT_ARG;
  }
  return RAPT_OK;
}

/* M9: a dtype that converts exactly to the accumulator. */
static rapt_status check_bias_dtype(const rapt_problem *cast, rapt_reason *why) {
  int dtype = cast->bias.dtype, acc = acc_of(cast);
  bool exact = rapti_dtype_is_float(dtype) && (dtype != RAPT_FP64 || acc == RAPT_FP64);
  if (dtype == RAPT_NONE || exact) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_BIAS, RAPT_FIELD_BIAS);
  rapti_reason_got(why, "%s", rapt_dtype_name(dtype));
  rapti_reason_want(why, acc == RAPT_FP64 ? "fp16, bf16, fp32 or fp64" : "fp16, bf16 or fp32");
  return RAPT_ARG;
}

rapt_status rapti_check_resolved(const rapt_problem *cast, const int32_t given[4], rapt_reason *why) {
  rapt_status status = rapti_check_mix(cast, given, why);
  if (!status) status = check_result_dtypes(cast, why);
  if (!status && (cast->flags & RAPTI_GRADS)) status = check_gradient_dtypes(cast, why);
  return status ? status : check_bias_dtype(cast, why);
}

/* ---- Resolving ---- */

static void apply_policy(rapti_request *r) {
  static const int fields[4] = {RAPT_FIELD_Q, RAPT_FIELD_K, RAPT_FIELD_V, RAPT_FIELD_BIAS};
  int target = rapti_autocast_target(&r->cast);
  r->autocast = (r->cast.has & RAPT_HAS_AUTOCAST) != 0;
  r->casts = 0;
  for (int i = 0; i < 4; i++) {
    rapt_desc *d = rapti_desc_of(&r->cast, fields[i]);
    r->given[i] = d->dtype;
    d->dtype = rapti_autocast_dtype(d->dtype, target);
    if (d->dtype != r->given[i]) r->casts |= 1u << fields[i];
  }
  r->cast_dtype = r->casts ? target : RAPT_NONE;
}

static void resolve_dtypes(rapt_problem *cast) {
  int acc = acc_of(cast);
  bool grads = cast->flags & RAPTI_GRADS;
  cast->out.dtype = or_default(cast->out.dtype, cast->q.dtype);
  cast->lse.dtype = acc;
  if (!grads) return;
  cast->dout.dtype = cast->out.dtype;
  for (int i = 0; i < 3; i++) {
    rapt_desc *d = rapti_desc_of(cast, RAPT_FIELD_DQ + i);
    int input = rapti_desc(cast, RAPT_FIELD_Q + i)->dtype;
    if (rapti_tensor_present(cast, RAPT_FIELD_DQ + i)) d->dtype = or_default(d->dtype, input);
  }
  if (cast->flags & RAPT_GRAD_BIAS) cast->dbias.dtype = cast->bias.dtype;
  if (cast->flags & RAPT_GRAD_SINKS) cast->dsinks.dtype = cast->sinks.dtype;
}

/* [B,H,S,D] without strides. Sizes were checked: a product wraps only where some axis is empty. */
static void resolve_dense(rapt_desc *d, int64_t heads, int64_t rows, int64_t width) {
  uint64_t w = width > 1 ? (uint64_t)width : 1u, s = rows > 1 ? (uint64_t)rows : 1u;
  uint64_t h = heads > 1 ? (uint64_t)heads : 1u;
  d->stride[0] = (int64_t)(h * s * w);
  d->stride[1] = (int64_t)(s * w);
  d->stride[2] = (int64_t)w;
  d->stride[3] = 1;
}

/* q, k, v, out and lse of a call that gives no strides. */
static void resolve_dense_call(rapt_problem *cast) {
  resolve_dense(&cast->q, cast->Hq, cast->Sq, cast->D);
  resolve_dense(&cast->k, cast->Hkv, cast->Skv, cast->D);
  resolve_dense(&cast->v, cast->Hkv, cast->Skv, cast->Dv);
  resolve_dense(&cast->out, cast->Hq, cast->Sq, cast->Dv);
  resolve_dense(&cast->lse, cast->Hq, cast->Sq, 1);
  cast->has |= CALL_STRIDES;
}

static void resolve_strides(rapt_problem *cast, int field) {
  int64_t size[4], stride[4];
  rapt_desc *d = rapti_desc_of(cast, field);
  rapti_tensor_strides(cast, field, size, stride);
  bool broadcasts = field == RAPT_FIELD_MASK || field == RAPT_FIELD_BIAS;
  for (int i = 0; i < 4; i++) d->stride[i] = broadcasts && size[i] == 1 ? 0 : stride[i];
  cast->has |= rapti_stride_bit(field);
}

/* A cast tensor is what the backend will see: a dense copy in the source's axis order, aligned to 64 bytes. */
static bool resolve_copy(rapti_request *r, int field) {
  int64_t size[4], stride[4], bytes;
  rapt_desc *d = rapti_desc_of(&r->cast, field);
  rapti_tensor_sizes(&r->cast, field, size);
  memcpy(stride, d->stride, sizeof stride);
  int64_t n = rapti_copy_elements(size, stride);
  bool fits = n >= 0 && rapti_mul(n, (int64_t)rapt_dtype_bytes(d->dtype), &bytes) && rapti_add(bytes, 63, &bytes);
  if (!fits) return false;
  rapti_copy_strides(size, stride, d->stride);
  for (int i = 0; i < 4; i++)
    if (field == RAPT_FIELD_BIAS && size[i] == 1) d->stride[i] = 0;
  d->ptr_align = 64;
  return !__builtin_add_overflow(r->cast_bytes, (uint64_t)bytes & ~UINT64_C(63), &r->cast_bytes);
}

static rapt_status resolve_tensors(rapti_request *r, rapt_reason *why) {
  rapt_problem *cast = &r->cast;
  if (cast->sinks.dtype != RAPT_NONE) cast->sinks.size[0] = cast->Hq;
  bool dense = !(cast->has & CALL_STRIDES) && !cast->cu;
  if (dense) resolve_dense_call(cast);
  for (int field = RAPT_FIELD_Q; !dense && field <= RAPT_FIELD_LSE; field++) resolve_strides(cast, field);
  for (int field = RAPT_FIELD_MASK; field <= RAPT_FIELD_BIAS; field++)
    if (rapti_desc(cast, field)->dtype != RAPT_NONE) resolve_strides(cast, field);
  for (int field = RAPT_FIELD_DOUT; (cast->flags & RAPTI_GRADS) && field <= RAPT_FIELD_DBIAS; field++)
    if (rapti_tensor_present(cast, field)) resolve_strides(cast, field);
  r->cast_bytes = 0;
  for (int field = RAPT_FIELD_Q; r->casts >> field; field++) {
    if (!(r->casts >> field & 1u) || resolve_copy(r, field)) continue;
    rapti_fault(why, RAPT_CODE_SIZE, field);
    rapti_reason_got(why, "too large for its cast");
    rapti_reason_want(why, "bytes that 64 bits can count");
    return RAPT_ARG;
  }
  return RAPT_OK;
}

/* ---- Positions ---- */

/* M2, M3: off where one number holds for every batch entry. */
static int64_t scalar_off(const rapt_problem *cast) {
  switch (cast->alignment) {
    case RAPT_TOP_LEFT: return 0;
    case RAPT_OFFSET: return cast->q_offset;
    case RAPT_BOTTOM_RIGHT: return cast->q_len || cast->kv_len || cast->cu ? INT64_MIN : cast->Skv - cast->Sq;
    default: return INT64_MIN;
  }
}

static int64_t capped(int64_t bound) { return bound > FAR ? FAR : bound; }

/* M6: causal caps the right bound at 0. An open window is none, and one that causal says alone is causal alone, so that
 * what a backend says of causal calls holds for it. */
static void resolve_window(rapti_request *r) {
  rapt_problem *cast = &r->cast;
  bool causal = cast->flags & RAPT_CAUSAL, given = cast->has & RAPT_HAS_WINDOW;
  if (given && cast->window[0] == -1 && cast->window[1] == 0) {
    cast->flags |= RAPT_CAUSAL;
    causal = true;
  }
  if (given && cast->window[0] == -1 && (causal || cast->window[1] == -1)) {
    cast->has &= ~RAPT_HAS_WINDOW;
    cast->window[0] = cast->window[1] = 0;
    given = false;
  }
  if (given) {
    cast->window[0] = capped(cast->window[0]);
    cast->window[1] = capped(cast->window[1]);
  }
  r->window[0] = given ? cast->window[0] : -1;
  r->window[1] = causal ? 0 : given ? cast->window[1] : -1;
  r->causal = r->window[1] == 0;
}

static void resolve_positions(rapti_request *r) {
  rapt_problem *cast = &r->cast;
  bool lengths = cast->q_len || cast->kv_len;
  resolve_window(r);
  r->positional = rapti_positional(cast);
  if (!r->positional) {                                      /* M4: an alignment has no effect then */
    cast->alignment = RAPT_UNSET;
    cast->q_offset = 0;
    cast->flags &= ~RAPT_OFFSET_ON_DEVICE;
  } else if (cast->alignment == RAPT_UNSET) {
    cast->alignment = RAPT_TOP_LEFT;                         /* M3: all corners agree here */
  }
  r->off = scalar_off(cast);
  r->corners_agree = cast->Sq == cast->Skv && !lengths && !cast->cu && (!r->positional || r->off == 0);
}

/* Every pair of the call is visible whatever the data is: no mask, bias, lengths, sequences, and bounds that cut
 * nothing off, which the first row shows on the right and the last row on the left. */
static bool all_visible(const rapti_request *r) {
  const rapt_problem *cast = &r->cast;
  if (r->scores == 0) return true;
  if (cast->mask.dtype || cast->bias.dtype || cast->q_len || cast->kv_len || cast->cu) return false;
  bool bounded = r->window[0] != -1 || r->window[1] != -1;
  if (!bounded) return true;
  if (r->off == INT64_MIN) return false;
  int64_t right = INT64_MAX, left = INT64_MIN;
  if (r->window[1] != -1 && !rapti_add(r->off, r->window[1], &right)) right = INT64_MAX;
  if (r->window[0] != -1 && !rapti_add(r->off, -r->window[0], &left)) left = INT64_MIN;
  return right >= cast->Skv - 1 && left <= 1 - cast->Sq;
}

static uint64_t times(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* D14. Sizes are not negative here. */
static void count_work(rapti_request *r) {
  const rapt_problem *cast = &r->cast;
  uint64_t keys = (uint64_t)(cast->cu && cast->max_k ? cast->max_k : cast->Skv);
  uint64_t batch = cast->cu ? 1u : (uint64_t)cast->B;
  bool none = cast->B == 0 || cast->Hq == 0 || cast->Sq == 0 || keys == 0;
  uint64_t width = (uint64_t)cast->D + (uint64_t)cast->Dv;
  r->scores = none ? 0 : times(times(batch, (uint64_t)cast->Hq), times((uint64_t)cast->Sq, keys));
  r->products = none || width == 0 ? 0 : times(times(r->scores, width), cast->backward ? 3u : 1u);
  bool no_heads = cast->Hq == 0 || cast->Hkv == 0, no_rows = cast->B == 0 || cast->Sq == 0 || cast->Skv == 0;
  r->empty = no_heads || no_rows || cast->D == 0 || cast->Dv == 0;
}

/* What only the caller's side needs: the policy is applied, names are resolved elsewhere. */
static void drop_caller_fields(rapt_problem *cast) {
  cast->struct_size = (uint32_t)sizeof *cast;
  cast->has &= ~RAPT_HAS_AUTOCAST;
  cast->autocast_dtype = cast->autocast_device = 0;
  cast->require = cast->prefer = cast->forbid = cast->origin = NULL;
}

static rapt_status request_make(const rapt_problem *p, rapti_request *r, rapt_reason *why) {
  rapt_status status = rapti_check_abi(p, why);
  if (status) return status;
  rapt_problem *cast = &r->cast;
  memcpy(cast, p, sizeof *cast);
  if ((status = rapti_check_known(cast, why)) || (status = rapti_check_dtypes(cast, why))) return status;
  if ((status = rapti_check_call(cast, why))) return status;
  apply_policy(r);
  if ((status = rapti_check_resolved(cast, r->given, why))) return status;
  resolve_dtypes(cast);
  if ((status = rapti_check_memory(cast, r->given, why))) return status;
  if ((status = resolve_tensors(r, why))) return status;
  r->default_scale = !(cast->has & RAPT_HAS_SCALE);
  if (r->default_scale) cast->scale = 1.0 / sqrt((double)cast->D);   /* N3 */
  cast->has |= RAPT_HAS_SCALE;
  resolve_positions(r);
  r->needs_grad = cast->backward || (cast->flags & RAPTI_GRADS);
  count_work(r);
  r->all_visible = all_visible(r);
  drop_caller_fields(cast);
  return RAPT_OK;
}

/* The scale is rounded (N3) and compared: not under the caller's modes (N18, D22). */
rapt_status rapti_request_make(const rapt_problem *p, rapti_request *r, rapt_reason *why) {
  const rapti_float_state modes = rapti_float_enter();
  const rapt_status status = request_make(p, r, why);
  rapti_float_leave(modes);
  return status;
}
