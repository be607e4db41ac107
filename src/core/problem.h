/* SPDX-License-Identifier: Apache-2.0 */
/* What the files about the problem share with each other and with nobody else. */
#ifndef RAPTI_PROBLEM_H
#define RAPTI_PROBLEM_H
#include "core/core.h"

#define RAPTI_GRADS (RAPT_GRAD_Q | RAPT_GRAD_K | RAPT_GRAD_V | RAPT_GRAD_BIAS | RAPT_GRAD_SINKS)
#define RAPTI_FIRST RAPT_FIELD_Q          /* the tensors of a problem */
#define RAPTI_LAST RAPT_FIELD_DSINKS

static inline rapt_desc *rapti_desc_of(rapt_problem *p, int field) { return &p->q + (field - RAPT_FIELD_Q); }
static inline bool rapti_has_strides(const rapt_problem *p, int field) { return p->has & rapti_stride_bit(field); }
static inline bool rapti_half_dtype(int dtype) { return dtype == RAPT_FP16 || dtype == RAPT_BF16; }
/* Does the call have this tensor? q, k, v, out always; the others by dtype, flag or direction (zero rule). */
bool rapti_tensor_present(const rapt_problem *p, int field);
/* Causal, a window that is not open on both sides, or ALiBi (M1, D6). */
bool rapti_positional(const rapt_problem *p);
/* Axes outermost first of a tensor without strides: logical order; packed [S,H,.] but lse [H,S] (M17). */
void rapti_default_order(const rapt_problem *p, int field, int perm[4]);
/* Sizes, and the strides as given or else dense. */
void rapti_tensor_strides(const rapt_problem *p, int field, int64_t size[4], int64_t stride[4]);
/* "1x8x256x77" */
void rapti_put_dims(rapti_text *t, const int64_t *size, int n);

/* Memory orders of the grammar, in its order. */
typedef struct rapti_order {
  const char *name;
  bool packed;
  int perm[4];
} rapti_order;
#define RAPTI_ORDERS 5
extern const rapti_order rapti_orders[RAPTI_ORDERS];
/* Has the grammar a T.st for this tensor? sinks, slopes and dsinks are dense (S9). */
static inline bool rapti_in_grammar(int field) {
  return field != RAPT_FIELD_SINKS && field != RAPT_FIELD_SLOPES && field != RAPT_FIELD_DSINKS;
}
/* The logical axes of a tensor as indices into stride[4]; returns how many (S1, M17). */
int rapti_logical_axes(const rapt_problem *p, int field, int axes[4]);
/* Do two strides reach the same elements? Axes of size <= 1 do not count. */
bool rapti_same_strides(const int64_t size[4], const int64_t a[4], const int64_t b[4]);

/* ARG with code and field filled in: the caller adds got and want. */
rapt_status rapti_fault(rapt_reason *why, int code, int field);
rapt_status rapti_fault_axis(rapt_reason *why, int code, int field, int axis);
/* NULL and struct_size with its tail. */
rapt_status rapti_check_abi(const rapt_problem *p, rapt_reason *why);
/* Unknown bits, enum values, fields without their bit (E6). */
rapt_status rapti_check_known(const rapt_problem *p, rapt_reason *why);
/* DTYPE of q, k, v, out. */
rapt_status rapti_check_dtypes(const rapt_problem *p, rapt_reason *why);
/* DEVICE, HEADS, SIZE, and the options in the order of the problem string. */
rapt_status rapti_check_call(const rapt_problem *p, rapt_reason *why);
/* After the policy. cast: dtypes after it; given: dtypes of q, k, v, bias before it. */
rapt_status rapti_check_resolved(const rapt_problem *cast, const int32_t given[4], rapt_reason *why);
/* The outputs' own strides and declared alignments. */
rapt_status rapti_check_memory(const rapt_problem *p, const int32_t given[4], rapt_reason *why);

/* The policy (section 6). */
rapt_status rapti_check_autocast(const rapt_problem *p, rapt_reason *why);
int rapti_autocast_target(const rapt_problem *p);      /* T; RAPT_NONE: nothing is cast */
int rapti_autocast_dtype(int dtype, int target);       /* A2, A3 for one tensor */
rapt_status rapti_check_mix(const rapt_problem *cast, const int32_t given[4], rapt_reason *why);   /* A7 */
#endif
