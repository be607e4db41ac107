/* SPDX-License-Identifier: Apache-2.0 */
/* The autocast policy (section 6): a pure function of the state in the request, dtypes and device types. */
#include "core/problem.h"

#include <string.h>

static bool castable(int dtype) { return dtype == RAPT_FP16 || dtype == RAPT_BF16 || dtype == RAPT_FP32; }

/* A10. A device type without autocast reads as off (A12), so only a dtype that was named can be wrong. */
rapt_status rapti_check_autocast(const rapt_problem *p, rapt_reason *why) {
  if (!(p->has & RAPT_HAS_AUTOCAST) || p->autocast_dtype == RAPT_NONE || castable(p->autocast_dtype)) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_AUTOCAST_DTYPE, RAPT_FIELD_AUTOCAST);
  rapti_reason_got(why, "%s", rapt_dtype_name(p->autocast_dtype));
  rapti_reason_want(why, "fp16, bf16 or fp32");
  return RAPT_ARG;
}

int rapti_autocast_target(const rapt_problem *p) {
  if (!(p->has & RAPT_HAS_AUTOCAST) || p->autocast_device != p->device) return RAPT_NONE;
  int host_default = rapti_kind_autocast(p->autocast_device);
  if (host_default == RAPT_NONE) return RAPT_NONE;           /* A12 */
  return p->autocast_dtype != RAPT_NONE ? p->autocast_dtype : host_default;
}

int rapti_autocast_dtype(int dtype, int target) { return target != RAPT_NONE && castable(dtype) ? target : dtype; }

/* One dtype, or with mixed_kv a half pair k, v that is not q's, under a half or fp32 q (S2). */
static bool dtypes_go_together(const rapt_problem *p) {
  int q = p->q.dtype, k = p->k.dtype, v = p->v.dtype;
  if (q == k && k == v) return true;
  return (p->flags & RAPT_MIXED_KV) && k == v && rapti_half_dtype(k) && castable(q);
}

rapt_status rapti_check_mix(const rapt_problem *cast, const int32_t given[4], rapt_reason *why) {
  if (dtypes_go_together(cast)) return RAPT_OK;
  char text[96];
  rapti_text t = rapti_text_begin(text, sizeof text);
  bool elsewhere = (cast->has & RAPT_HAS_AUTOCAST) && cast->autocast_device != cast->device;
  const rapt_desc *after[3] = {&cast->q, &cast->k, &cast->v};
  for (int i = 0; i < 3; i++) {
    if (i) rapti_text_putc(&t, '/');
    rapti_text_put(&t, rapt_dtype_name(given[i]));
    if (given[i] == after[i]->dtype) continue;
    rapti_text_put(&t, "->");
    rapti_text_put(&t, rapt_dtype_name(after[i]->dtype));
  }
  if (elsewhere) {
    rapti_text_put(&t, "; autocast is on for ");
    rapti_text_put(&t, rapti_kind_name(cast->autocast_device));
    rapti_text_put(&t, ", the tensors are on ");
    rapti_text_put(&t, rapti_kind_name(cast->device));
  }
  rapti_fault(why, RAPT_CODE_DTYPE_MIX, RAPT_FIELD_QKV);
  rapti_reason_got(why, "%s", text);
  rapti_reason_want(why, cast->flags & RAPT_MIXED_KV ? "one dtype, or a half pair k, v under a half or fp32 q"
                                                     : "one dtype");
  return RAPT_ARG;
}

/* The enum values and the bit that the policy reads: a resolve must not depend on what rapti_check_known sees. */
static rapt_status check_state(const rapt_problem *p, rapt_reason *why) {
  const int fields[] = {RAPT_FIELD_Q, RAPT_FIELD_K, RAPT_FIELD_V, RAPT_FIELD_BIAS};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    int dtype = rapti_desc(p, fields[i])->dtype;
    if (dtype >= RAPT_NONE && dtype <= RAPT_FP8E5M2) continue;
    rapti_fault(why, RAPT_CODE_UNKNOWN_FIELD, fields[i]);
    rapti_reason_got(why, "dtype %d", dtype);
    rapti_reason_want(why, "dtypes are 0 to %d", RAPT_FP8E5M2);
    return RAPT_ARG;
  }
  bool active = p->has & RAPT_HAS_AUTOCAST;
  if (active || (p->autocast_dtype == 0 && p->autocast_device == 0)) return RAPT_OK;
  rapti_fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_AUTOCAST);
  rapti_reason_got(why, "%d@%d", p->autocast_dtype, p->autocast_device);
  rapti_reason_want(why, "its bit in has is not set");
  return RAPT_ARG;
}

rapt_status rapt_autocast_resolve(const rapt_problem *p, rapt_problem *cast_p, rapt_reason *why) {
  rapt_status status = rapti_check_abi(p, why);
  if (status) return status;
  if (!cast_p || cast_p->struct_size < sizeof *cast_p) {
    if (!cast_p) return rapti_fault(why, RAPT_CODE_NULL, RAPT_FIELD_PROBLEM);
    rapti_fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE);
    rapti_reason_got(why, "a rapt_problem of %lu bytes", (unsigned long)cast_p->struct_size);
    rapti_reason_want(why, "this version's has %zu bytes", sizeof *cast_p);
    return RAPT_ABI;
  }
  rapt_problem cast;
  memcpy(&cast, p, sizeof cast);
  cast.struct_size = cast_p->struct_size;
  if ((status = check_state(&cast, why)) || (status = rapti_check_dtypes(&cast, why))) return status;
  if ((status = rapti_check_autocast(&cast, why))) return status;
  int target = rapti_autocast_target(&cast);
  const int32_t given[4] = {cast.q.dtype, cast.k.dtype, cast.v.dtype, cast.bias.dtype};
  cast.q.dtype = rapti_autocast_dtype(given[0], target);
  cast.k.dtype = rapti_autocast_dtype(given[1], target);
  cast.v.dtype = rapti_autocast_dtype(given[2], target);
  cast.bias.dtype = rapti_autocast_dtype(given[3], target);
  if ((status = rapti_check_mix(&cast, given, why))) return status;
  cast.has &= ~RAPT_HAS_AUTOCAST;
  cast.autocast_dtype = cast.autocast_device = 0;
  memcpy(cast_p, &cast, sizeof cast);
  return RAPT_OK;
}
