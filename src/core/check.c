/* SPDX-License-Identifier: Apache-2.0 */
/* The first and the last checks of a call: struct size, unknown and unaccompanied fields, dtypes (E6, S2), outputs' own
 * strides and declared alignment (S10, S12). docs/api.md section 4 fixes the order. */
#include "core/problem.h"

#include <string.h>

#define HAS_NUMBERS (RAPT_HAS_SCALE | RAPT_HAS_WINDOW | RAPT_HAS_MEMORY_LIMIT | RAPT_HAS_AUTOCAST)
#define HAS_TENSORS (UINT64_C(0xffff) << 8)                  /* those without strides are told apart by name */
#define ALL_FLAGS ((RAPT_SEED_ON_DEVICE << 1) - 1)

rapt_status rapti_fault(rapt_reason *why, int code, int field) { return rapti_fault_axis(why, code, field, -1); }

rapt_status rapti_fault_axis(rapt_reason *why, int code, int field, int axis) {
  rapti_reason_set(why, code, field, axis, -1);
  return RAPT_ARG;
}

static rapt_status unknown(rapt_reason *why, int field, const char *want) {
  rapti_fault(why, RAPT_CODE_UNKNOWN_FIELD, field);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

static rapt_status unknown_value(rapt_reason *why, int field, int64_t value, const char *want) {
  unknown(why, field, want);
  rapti_reason_got(why, "%lld", (long long)value);
  return RAPT_ARG;
}

/* what: of the range, "" where it goes without saying. */
static rapt_status unknown_enum(rapt_reason *why, int field, int64_t value, const char *what, int last) {
  unknown_value(why, field, value, "");
  rapti_reason_want(why, "%s0 to %d", what, last);
  return RAPT_ARG;
}

static rapt_status unknown_words(rapt_reason *why, int field, const char *got, const char *want) {
  unknown(why, field, want);
  rapti_reason_got(why, "%s", got);
  return RAPT_ARG;
}

static rapt_status unknown_bits(rapt_reason *why, int field, uint64_t bits) {
  unknown(why, field, "this version has no such bit");
  rapti_reason_got(why, "bit %d set", __builtin_ctzll(bits));
  return RAPT_ARG;
}

rapt_status rapti_check_abi(const rapt_problem *p, rapt_reason *why) {
  if (!p) return rapti_fault(why, RAPT_CODE_NULL, RAPT_FIELD_PROBLEM);
  uint32_t size = p->struct_size;
  if (size == sizeof *p) return RAPT_OK;
  const unsigned char *bytes = (const unsigned char *)p;
  uint32_t at = (uint32_t)sizeof *p;
  while (at < size && bytes[at] == 0) at++;
  if (size > sizeof *p && at == size) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE);
  if (size < sizeof *p) rapti_reason_got(why, "a rapt_problem of %lu bytes", (unsigned long)size);
  else rapti_reason_got(why, "a rapt_problem of %lu bytes, of which byte %lu is set", (unsigned long)size, (unsigned long)at);
  rapti_reason_want(why, "this version's has %zu bytes; what is longer must be zero behind them", sizeof *p);
  return RAPT_ABI;
}

/* ---- Known fields (E6) ---- */

/* Why a tensor is absent. */
static const char *want_of_absent(int field) {
  switch (field) {
    case RAPT_FIELD_LSE: return "lse is not asked for";
    case RAPT_FIELD_DOUT: case RAPT_FIELD_DLSE: return "no gradient is asked for";
    case RAPT_FIELD_DQ: case RAPT_FIELD_DK: case RAPT_FIELD_DV: return "no gradient of q, k or v is asked for";
    case RAPT_FIELD_DBIAS: return "no gradient of bias is asked for";
    case RAPT_FIELD_DSINKS: return "no gradient of sinks is asked for";
    default: return "it has no dtype, so it is absent";
  }
}

/* How many sizes a tensor's description carries; the others follow B..Dv. */
static int sizes_of(int field) {
  if (field == RAPT_FIELD_MASK || field == RAPT_FIELD_BIAS) return 4;
  return field == RAPT_FIELD_SLOPES ? 2 : field == RAPT_FIELD_SINKS ? 1 : 0;
}

static bool dense_only(int field) {
  return field == RAPT_FIELD_SINKS || field == RAPT_FIELD_SLOPES || field == RAPT_FIELD_DSINKS;
}

/* What is set in the description of a tensor that should have nothing there. */
static void got_setting(rapt_reason *why, const rapt_desc *d) {
  if (d->dtype) rapti_reason_got(why, "dtype %s", rapt_dtype_name(d->dtype));
  else if (d->ptr_align) rapti_reason_got(why, "ptr_align %d", (int)d->ptr_align);
  else if (d->size[0] | d->size[1] | d->size[2] | d->size[3]) rapti_reason_got(why, "sizes");
  else rapti_reason_got(why, "strides");
}

static rapt_status check_tensor(const rapt_problem *p, int field, rapt_reason *why) {
  const rapt_desc *d = rapti_desc(p, field);
  bool has = rapti_has_strides(p, field);
  int64_t strides = d->stride[0] | d->stride[1] | d->stride[2] | d->stride[3];
  int64_t sizes = d->size[0] | d->size[1] | d->size[2] | d->size[3];
  if ((uint32_t)d->dtype > RAPT_FP8E5M2) {
    unknown_enum(why, field, 0, "dtypes are ", RAPT_FP8E5M2);
    rapti_reason_got(why, "dtype %d", d->dtype);
    return RAPT_ARG;
  }
  bool set = d->dtype || d->ptr_align || strides || sizes || has;
  if (set && !rapti_tensor_present(p, field)) {
    unknown(why, field, want_of_absent(field));
    got_setting(why, d);
    return RAPT_ARG;
  }
  if ((has || strides) && dense_only(field)) return unknown_words(why, field, "strides", "it is dense");
  if (!has && strides) return unknown_words(why, field, "strides", "their bit in has is not set");
  for (int i = sizes_of(field); i < 4; i++)
    if (d->size[i]) return unknown_words(why, field, "sizes", "they follow B, Hq, Hkv, Sq, Skv, D, Dv");
  return RAPT_OK;
}

static bool index_dtype(int32_t dtype) { return dtype == RAPT_NONE || dtype == RAPT_INT32 || dtype == RAPT_INT64; }

/* The plain call: nothing but dtypes in q, k, v and out, all zero behind. Most calls end here. */
static bool no_tensor_fields(const rapt_problem *p) {
  static const rapt_desc none[RAPTI_LAST - RAPT_FIELD_OUT];
  uint64_t any = p->has & HAS_TENSORS;
  for (int field = RAPTI_FIRST; field <= RAPT_FIELD_OUT; field++) {
    const rapt_desc *d = rapti_desc(p, field);
    any |= (uint64_t)((uint32_t)d->dtype > RAPT_FP8E5M2);
    for (int i = 0; i < 4; i++) any |= (uint64_t)(d->size[i] | d->stride[i]);
  }
  return any == 0 && memcmp(&p->lse, none, sizeof none) == 0;
}

static rapt_status check_tensors(const rapt_problem *p, rapt_reason *why) {
  rapt_status status = RAPT_OK;
  if (no_tensor_fields(p)) return RAPT_OK;
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST && !status; field++) status = check_tensor(p, field, why);
  return status;
}

/* Enum values, in the order of rapt_problem. */
static rapt_status check_enums(const rapt_problem *p, rapt_reason *why) {
  if ((uint32_t)p->alignment > RAPT_OFFSET_ARRAY)
    return unknown_enum(why, RAPT_FIELD_ALIGN, p->alignment, "", RAPT_OFFSET_ARRAY);
  if ((uint32_t)p->determinism > RAPT_DET_BATCH)
    return unknown_enum(why, RAPT_FIELD_DETERMINISM, p->determinism, "", RAPT_DET_BATCH);
  if (!index_dtype(p->q_len)) return unknown_value(why, RAPT_FIELD_Q_LEN, p->q_len, "RAPT_INT32, RAPT_INT64 or 0");
  if (!index_dtype(p->kv_len)) return unknown_value(why, RAPT_FIELD_KV_LEN, p->kv_len, "RAPT_INT32, RAPT_INT64 or 0");
  if (!index_dtype(p->cu)) return unknown_value(why, RAPT_FIELD_PACKED, p->cu, "RAPT_INT32, RAPT_INT64 or 0");
  if ((uint32_t)p->autocast_dtype > RAPT_FP8E5M2)
    return unknown_enum(why, RAPT_FIELD_AUTOCAST, p->autocast_dtype, "dtypes are ", RAPT_FP8E5M2);
  if ((uint32_t)p->autocast_device >= RAPTI_KINDS)
    return unknown_enum(why, RAPT_FIELD_AUTOCAST, p->autocast_device, "device kinds are ", RAPTI_KINDS - 1);
  return RAPT_OK;
}

/* Numbers whose zero means something, set without their bit. NaN is not zero. */
static rapt_status check_numbers(const rapt_problem *p, rapt_reason *why) {
  static const char no_bit[] = "its bit in has is not set", no_cu[] = "the call is not packed";
  if (p->q_offset && p->alignment != RAPT_OFFSET)
    return unknown_value(why, RAPT_FIELD_Q_OFFSET, p->q_offset, "alignment is not RAPT_OFFSET");
  if (!(p->has & RAPT_HAS_WINDOW) && (p->window[0] | p->window[1])) {
    unknown(why, RAPT_FIELD_WINDOW, no_bit);
    rapti_reason_got(why, "%lld,%lld", (long long)p->window[0], (long long)p->window[1]);
    return RAPT_ARG;
  }
  if (!(p->has & RAPT_HAS_AUTOCAST) && (p->autocast_dtype | p->autocast_device)) {
    unknown(why, RAPT_FIELD_AUTOCAST, no_bit);
    rapti_reason_got(why, "%s@%s", rapt_dtype_name(p->autocast_dtype), rapti_kind_name(p->autocast_device));
    return RAPT_ARG;
  }
  if (p->verify) return unknown_value(why, RAPT_FIELD_VERIFY, p->verify, "not in this version");
  if (!p->cu && p->max_q) return unknown_value(why, RAPT_FIELD_MAX_Q, p->max_q, no_cu);
  if (!p->cu && p->max_k) return unknown_value(why, RAPT_FIELD_MAX_K, p->max_k, no_cu);
  if (!(p->has & RAPT_HAS_SCALE) && !(p->scale == 0)) {
    unknown(why, RAPT_FIELD_SCALE, no_bit);
    rapti_reason_got_double(why, p->scale);
    return RAPT_ARG;
  }
  if (!(p->has & RAPT_HAS_MEMORY_LIMIT) && p->memory_limit)
    return unknown_value(why, RAPT_FIELD_MEMORY_LIMIT, p->memory_limit, no_bit);
  return RAPT_OK;
}

/* Flags that say where an array lives, without the array. */
static rapt_status check_places(const rapt_problem *p, rapt_reason *why) {
  bool lengths = p->q_len || p->kv_len, offsets = p->alignment == RAPT_OFFSET_ARRAY;
  if ((p->flags & RAPT_LENGTHS_ON_DEVICE) && !lengths)
    return unknown_words(why, RAPT_FIELD_FLAGS, "LENGTHS_ON_DEVICE set", "the call has neither q_len nor kv_len");
  if ((p->flags & RAPT_CU_ON_DEVICE) && !p->cu)
    return unknown_words(why, RAPT_FIELD_FLAGS, "CU_ON_DEVICE set", "the call is not packed");
  if ((p->flags & RAPT_OFFSET_ON_DEVICE) && !offsets)
    return unknown_words(why, RAPT_FIELD_FLAGS, "OFFSET_ON_DEVICE set", "the call has no array of offsets");
  return RAPT_OK;
}

rapt_status rapti_check_known(const rapt_problem *p, rapt_reason *why) {
  uint64_t stray = p->has & ~(HAS_NUMBERS | HAS_TENSORS);
  if (stray) return unknown_bits(why, RAPT_FIELD_HAS, stray);
  if (p->flags & ~ALL_FLAGS) return unknown_bits(why, RAPT_FIELD_FLAGS, p->flags & ~ALL_FLAGS);
  if ((uint32_t)p->backward > 1) return unknown_value(why, RAPT_FIELD_BACKWARD, p->backward, "0 or 1");
  if ((uint32_t)p->device >= RAPTI_KINDS) return unknown_enum(why, RAPT_FIELD_DEVICE, p->device, "", RAPTI_KINDS - 1);
  rapt_status status = check_tensors(p, why);
  if (status || (status = check_enums(p, why)) || (status = check_numbers(p, why))) return status;
  return check_places(p, why);
}

/* ---- Dtypes (S2) ---- */

rapt_status rapti_check_dtypes(const rapt_problem *p, rapt_reason *why) {
  for (int field = RAPT_FIELD_Q; field <= RAPT_FIELD_OUT; field++) {
    int dtype = rapti_desc(p, field)->dtype;
    if (rapti_dtype_is_float(dtype) || (field == RAPT_FIELD_OUT && dtype == RAPT_NONE)) continue;
    rapti_fault(why, RAPT_CODE_DTYPE, field);
    rapti_reason_got(why, "%s", rapt_dtype_name(dtype));
    rapti_reason_want(why, "fp16, bf16, fp32 or fp64");
    return RAPT_ARG;
  }
  return RAPT_OK;
}

/* ---- Memory of the tensors ---- */

static uint64_t magnitude(int64_t v) { return v < 0 ? 0 - (uint64_t)v : (uint64_t)v; }

/* S10: axes by rising |stride|, each beyond the reach of those before it. Axes of size <= 1 do not count. */
static bool injective(const int64_t size[4], const int64_t stride[4]) {
  int perm[4];
  uint64_t reach = 0;
  for (int i = 0; i < 4; i++)
    if (size[i] <= 0) return true;
  for (int i = 0; i < 4; i++)
    if (size[i] > 1 && stride[i] == 0) return false;
  rapti_axis_order(size, stride, perm);
  for (int i = 3; i >= 0; i--) {
    int axis = perm[i];
    uint64_t step = magnitude(stride[axis]), add;
    if (size[axis] <= 1) continue;
    if (step <= reach || __builtin_mul_overflow((uint64_t)size[axis] - 1, step, &add)) return false;
    if (__builtin_add_overflow(reach, add, &reach)) return false;
  }
  return true;
}

static rapt_status check_output(const rapt_problem *p, int field, rapt_reason *why) {
  int64_t size[4], stride[4];
  rapti_tensor_strides(p, field, size, stride);
  if (injective(size, stride)) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_OVERLAP, field);
  rapti_reason_got(why, "itself: strides %lld,%lld,%lld,%lld", (long long)stride[0], (long long)stride[1],
                   (long long)stride[2], (long long)stride[3]);
  rapti_reason_want(why, "strides that each go beyond the reach of the smaller ones");
  return RAPT_ARG;
}

/* Bytes of one element of a tensor as the caller has it. */
static int64_t element_bytes(const rapt_problem *p, int field, const int32_t given[4]) {
  int dtype = field <= RAPT_FIELD_V ? given[field - RAPT_FIELD_Q] : rapti_desc(p, field)->dtype;
  if (field == RAPT_FIELD_BIAS) dtype = given[3];
  return (int64_t)rapt_dtype_bytes(dtype);
}

static rapt_status check_alignment(const rapt_problem *p, int field, const int32_t given[4], rapt_reason *why) {
  int64_t declared = rapti_desc(p, field)->ptr_align, element = element_bytes(p, field, given);
  if (declared == 0 || (declared >= element && declared > 0 && !(declared & (declared - 1)))) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_MEM_ALIGN, field);
  rapti_reason_got(why, "%lld", (long long)declared);
  rapti_reason_want(why, declared < element ? "%lld" : "%lld or a larger power of two", (long long)element);
  return RAPT_ARG;
}

rapt_status rapti_check_memory(const rapt_problem *p, const int32_t given[4], rapt_reason *why) {
  rapt_status status = RAPT_OK;
  for (int field = RAPT_FIELD_OUT; !p->backward && field <= RAPT_FIELD_LSE; field++)
    if (rapti_has_strides(p, field) && (status = check_output(p, field, why))) return status;
  for (int field = RAPT_FIELD_DQ; (p->flags & RAPTI_GRADS) && field <= RAPT_FIELD_DBIAS; field++)
    if (rapti_has_strides(p, field) && (status = check_output(p, field, why))) return status;
  int32_t declared = 0;
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST; field++) declared |= rapti_desc(p, field)->ptr_align;
  for (int field = RAPTI_FIRST; declared && field <= RAPTI_LAST; field++)
    if ((status = check_alignment(p, field, given, why))) return status;
  return RAPT_OK;
}
