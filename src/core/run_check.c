/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of a run (P4), in the order of docs/api.md section 4, each over the buffers in struct order. */
#include "core/ctx.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- What a plan expects of every pointer, worked out once ---- */

typedef enum slot_id {
  SLOT_Q, SLOT_K, SLOT_V, SLOT_MASK, SLOT_BIAS, SLOT_SINKS, SLOT_SLOPES, SLOT_Q_LEN, SLOT_KV_LEN, SLOT_CU_Q, SLOT_CU_K,
  SLOT_Q_OFFSET, SLOT_SEED, SLOT_OFFSET, SLOT_OUT, SLOT_LSE, SLOT_DOUT, SLOT_DLSE, SLOT_DQ, SLOT_DK, SLOT_DV,
  SLOT_DBIAS, SLOT_DSINKS, N_SLOTS
} slot_id;
static_assert((int)N_SLOTS == RAPTI_OPERANDS, "one operand a slot at most");

static const struct { uint16_t at; int16_t field; } slots[N_SLOTS] = {
  {offsetof(rapt_buffers, q), RAPT_FIELD_Q}, {offsetof(rapt_buffers, k), RAPT_FIELD_K},
  {offsetof(rapt_buffers, v), RAPT_FIELD_V}, {offsetof(rapt_buffers, mask), RAPT_FIELD_MASK},
  {offsetof(rapt_buffers, bias), RAPT_FIELD_BIAS}, {offsetof(rapt_buffers, sinks), RAPT_FIELD_SINKS},
  {offsetof(rapt_buffers, slopes), RAPT_FIELD_SLOPES}, {offsetof(rapt_buffers, q_len), RAPT_FIELD_Q_LEN},
  {offsetof(rapt_buffers, kv_len), RAPT_FIELD_KV_LEN}, {offsetof(rapt_buffers, cu_q), RAPT_FIELD_CU_Q},
  {offsetof(rapt_buffers, cu_k), RAPT_FIELD_CU_K}, {offsetof(rapt_buffers, q_offset), RAPT_FIELD_Q_OFFSET},
  {offsetof(rapt_buffers, seed_ptr), RAPT_FIELD_SEED}, {offsetof(rapt_buffers, offset_ptr), RAPT_FIELD_OFFSET},
  {offsetof(rapt_buffers, out), RAPT_FIELD_OUT}, {offsetof(rapt_buffers, lse), RAPT_FIELD_LSE},
  {offsetof(rapt_buffers, dout), RAPT_FIELD_DOUT}, {offsetof(rapt_buffers, dlse), RAPT_FIELD_DLSE},
  {offsetof(rapt_buffers, dq), RAPT_FIELD_DQ}, {offsetof(rapt_buffers, dk), RAPT_FIELD_DK},
  {offsetof(rapt_buffers, dv), RAPT_FIELD_DV}, {offsetof(rapt_buffers, dbias), RAPT_FIELD_DBIAS},
  {offsetof(rapt_buffers, dsinks), RAPT_FIELD_DSINKS},
};

static uint64_t grad_bit(slot_id slot) {
  switch (slot) {
    case SLOT_DQ: return RAPT_GRAD_Q;
    case SLOT_DK: return RAPT_GRAD_K;
    case SLOT_DV: return RAPT_GRAD_V;
    case SLOT_DBIAS: return RAPT_GRAD_BIAS;
    default: return RAPT_GRAD_SINKS;
  }
}

/* May this pointer be given at all? What no option asks for is refused, not ignored (D12). */
static bool slot_allowed(const rapt_problem *p, slot_id slot) {
  switch (slot) {
    case SLOT_Q: case SLOT_K: case SLOT_V: case SLOT_OUT: return true;
    case SLOT_MASK: return p->mask.dtype != RAPT_NONE;
    case SLOT_BIAS: return p->bias.dtype != RAPT_NONE;
    case SLOT_SINKS: return p->sinks.dtype != RAPT_NONE;
    case SLOT_SLOPES: return p->slopes.dtype != RAPT_NONE;
    case SLOT_Q_LEN: return p->q_len != RAPT_NONE;
    case SLOT_KV_LEN: return p->kv_len != RAPT_NONE;
    case SLOT_CU_Q: case SLOT_CU_K: return p->cu != RAPT_NONE;
    case SLOT_Q_OFFSET: return p->alignment == RAPT_OFFSET_ARRAY;
    case SLOT_SEED: case SLOT_OFFSET: return (p->flags & RAPT_SEED_ON_DEVICE) != 0;
    case SLOT_LSE: return p->backward || (p->flags & RAPT_WANT_LSE);
    case SLOT_DOUT: return p->backward != 0;
    case SLOT_DLSE: return p->backward && p->dlse.dtype != RAPT_NONE;
    default: return p->backward && (p->flags & grad_bit(slot));
  }
}

/* Allowed, but read only together with another option (M4, X6). */
static bool slot_used(const rapti_decided *d, slot_id slot) {
  if (slot == SLOT_Q_OFFSET) return d->request.positional != 0;
  if (slot == SLOT_SEED || slot == SLOT_OFFSET) return d->problem.dropout > 0;
  return true;
}

static int or_else(int32_t dtype, int32_t otherwise) { return dtype ? dtype : otherwise; }

static int slot_dtype(const rapti_decided *d, slot_id slot) {
  const rapt_problem *p = &d->request.cast;
  switch (slot) {
    case SLOT_Q: return d->request.given[0];
    case SLOT_K: return d->request.given[1];
    case SLOT_V: return d->request.given[2];
    case SLOT_BIAS: return d->request.given[3];
    case SLOT_Q_LEN: return p->q_len;
    case SLOT_KV_LEN: return p->kv_len;
    case SLOT_CU_Q: case SLOT_CU_K: return p->cu;
    case SLOT_Q_OFFSET: case SLOT_SEED: case SLOT_OFFSET: return RAPT_INT64;
    case SLOT_DOUT: return or_else(p->dout.dtype, p->out.dtype);
    case SLOT_DQ: return or_else(p->dq.dtype, p->q.dtype);
    case SLOT_DK: return or_else(p->dk.dtype, p->k.dtype);
    case SLOT_DV: return or_else(p->dv.dtype, p->v.dtype);
    case SLOT_DBIAS: return or_else(p->dbias.dtype, p->bias.dtype);
    case SLOT_DSINKS: return or_else(p->dsinks.dtype, p->sinks.dtype);
    default: return rapti_desc(p, slots[slot].field)->dtype;
  }
}

/* Elements of an array without strides; -1: a tensor with strides. */
static int64_t dense_count(const rapt_problem *p, slot_id slot) {
  switch (slot) {
    case SLOT_SINKS: case SLOT_DSINKS: return p->sinks.size[0] ? p->sinks.size[0] : p->Hq;
    case SLOT_SLOPES: return p->slopes.size[0] > 1 ? p->slopes.size[0] * p->Hq : p->Hq;
    case SLOT_Q_LEN: case SLOT_KV_LEN: case SLOT_Q_OFFSET: return p->B;
    case SLOT_CU_Q: case SLOT_CU_K: return p->B + 1;
    case SLOT_SEED: case SLOT_OFFSET: return 1;
    default: return -1;
  }
}

static bool has_token_axes(slot_id slot) {
  return slot <= SLOT_V || slot == SLOT_OUT || slot == SLOT_DOUT || (slot >= SLOT_DQ && slot <= SLOT_DV);
}

/* The geometry of S11 (b). */
static void packed_geometry(rapti_operand *o, const int64_t size[4], const int64_t stride[4], int64_t bytes) {
  const int64_t token[4] = {1, size[1], 1, size[3]};
  int64_t low, high;
  if (!rapti_extent(token, stride, &low, &high)) return;
  o->period = size[2] > 1 ? llabs(stride[2]) * bytes : 0;
  o->batch = size[0] > 1 ? llabs(stride[0]) * bytes : 0;
  o->span_low = low * bytes;
  o->span = (high - low + 1) * bytes;
}

static void operand_make(const rapti_decided *d, slot_id slot, rapti_operand *o) {
  const rapt_problem *p = &d->request.cast;
  o->at = slots[slot].at;
  o->field = slots[slot].field;
  o->output = slot >= SLOT_DQ || (!p->backward && (slot == SLOT_OUT || slot == SLOT_LSE));
  o->dtype = slot_dtype(d, slot);
  int64_t bytes = (int64_t)rapt_dtype_bytes(o->dtype), count = dense_count(p, slot);
  o->align = (uint32_t)bytes;
  if (count >= 0) {
    o->high = count * bytes;
    return;
  }
  int64_t size[4], stride[4], low, high;
  uint32_t declared = (uint32_t)rapti_desc(&d->problem, o->field)->ptr_align;
  if (declared > o->align) o->align = declared;
  rapti_tensor_sizes(p, o->field, size);
  rapti_given_strides(d, o->field, stride);
  if (!rapti_extent(size, stride, &low, &high) || high < low) return;   /* no elements: low = high = 0 */
  o->low = low * bytes;
  o->high = (high + 1) * bytes;
  if (has_token_axes(slot)) packed_geometry(o, size, stride, bytes);
}

void rapti_operands_make(rapt_plan *plan) {
  for (int slot = 0; slot < N_SLOTS; slot++) {
    if (!slot_allowed(&plan->d.problem, (slot_id)slot)) continue;
    plan->allowed |= 1u << slot;
    if (slot_used(&plan->d, (slot_id)slot)) operand_make(&plan->d, (slot_id)slot, &plan->operand[plan->n_operands++]);
  }
}

/* ---- NULL, MEM_ALIGN, MEMORY ---- */

static uintptr_t pointer(const rapt_buffers *b, size_t at) {
  const void *p;
  memcpy(&p, (const char *)b + at, sizeof p);
  return (uintptr_t)p;
}

static bool has_elements(const rapti_operand *o) { return o->low < o->high; }

static rapt_status fault(rapt_reason *why, int code, int field, int64_t index) {
  rapti_reason_set(why, code, field, -1, index);
  return RAPT_ARG;
}

static rapt_status check_extra(const rapt_plan *plan, const rapt_buffers *b, rapt_reason *why) {
  if (b->reserved) {
    fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_BUFFERS, -1);
    rapti_reason_want(why, "reserved = 0");
    return RAPT_ARG;
  }
  for (int slot = 0; slot < N_SLOTS; slot++) {
    if (plan->allowed >> slot & 1 || !pointer(b, slots[slot].at)) continue;
    fault(why, RAPT_CODE_UNKNOWN_FIELD, slots[slot].field, -1);
    rapti_reason_got(why, "a pointer");
    rapti_reason_want(why, "no option of the problem asks for it");
    return RAPT_ARG;
  }
  return RAPT_OK;
}

static rapt_status check_null(const rapt_plan *plan, const rapt_buffers *b, const rapti_workspace *ws, rapt_reason *why) {
  for (uint32_t i = 0; i < plan->n_operands; i++) {
    const rapti_operand *o = &plan->operand[i];
    if (has_elements(o) && !pointer(b, o->at)) return fault(why, RAPT_CODE_NULL, o->field, -1);
  }
  return ws && plan->d.workspace && !ws->data ? fault(why, RAPT_CODE_NULL, RAPT_FIELD_WORKSPACE, -1) : RAPT_OK;
}

static rapt_status misaligned(uintptr_t p, uint32_t want, int field, rapt_reason *why) {
  fault(why, RAPT_CODE_MEM_ALIGN, field, -1);
  rapti_reason_got(why, "%lld", (long long)(p & -p));
  rapti_reason_want(why, "%lld", (long long)want);
  return RAPT_ARG;
}

static rapt_status check_align(const rapt_plan *plan, const rapt_buffers *b, const rapti_workspace *ws, rapt_reason *why) {
  for (uint32_t i = 0; i < plan->n_operands; i++) {
    const rapti_operand *o = &plan->operand[i];
    uintptr_t p = pointer(b, o->at);
    if (has_elements(o) && p & (o->align - 1u)) return misaligned(p, o->align, o->field, why);
  }
  uintptr_t w = ws ? (uintptr_t)ws->data : 0;
  return plan->d.workspace && w & 63u ? misaligned(w, 64, RAPT_FIELD_WORKSPACE, why) : RAPT_OK;
}

static rapt_status check_memory(const rapt_plan *plan, const rapti_workspace *ws, rapt_reason *why) {
  if (!ws || ws->bytes >= plan->d.workspace) return RAPT_OK;
  fault(why, RAPT_CODE_MEMORY, RAPT_FIELD_WORKSPACE, -1);
  rapti_reason_got(why, "%zu", ws->bytes);
  rapti_reason_want(why, "%zu", plan->d.workspace);
  return RAPT_ARG;
}

/* ---- OVERLAP (S11) ---- */

static bool apart(uintptr_t a, const rapti_operand *x, uintptr_t b, const rapti_operand *y) {
  uintptr_t x_low = a + (uintptr_t)x->low, x_high = a + (uintptr_t)x->high;
  uintptr_t y_low = b + (uintptr_t)y->low, y_high = b + (uintptr_t)y->high;
  return x_high <= y_low || y_high <= x_low;
}

/* Every element of both lies in [base + span_low, + span) modulo one stride; do these meet? An axis of size <= 1 has no
 * stride to compare: it goes along with the other tensor's, and sequences of one token step by their batch stride. */
static bool interleaved(uintptr_t a, const rapti_operand *x, uintptr_t b, const rapti_operand *y) {
  if (!x->span || !y->span || x->dtype != y->dtype) return false;
  uint64_t period = (uint64_t)(x->period ? x->period : y->period ? y->period : x->batch);
  if (period == 0 || (x->period && y->period && x->period != y->period)) return false;
  if (x->batch != y->batch || (uint64_t)x->batch % period) return false;
  if ((uint64_t)x->span > period || (uint64_t)y->span > period) return false;
  uint64_t from = (uint64_t)a + (uint64_t)x->span_low, to = (uint64_t)b + (uint64_t)y->span_low;
  uint64_t ahead = to >= from ? (to - from) % period : (period - (from - to) % period) % period;
  return ahead >= (uint64_t)x->span && period - ahead >= (uint64_t)y->span;
}

static rapt_status overlapping(int field, int other, rapt_reason *why) {
  fault(why, RAPT_CODE_OVERLAP, field, -1);
  rapti_reason_got(why, "%s", rapt_field_name(other));
  return RAPT_ARG;
}

static rapt_status check_overlap(const rapt_plan *plan, const rapt_buffers *b, const rapti_workspace *ws,
                                 rapt_reason *why) {
  const rapti_operand *all = plan->operand;
  for (uint32_t i = 0; i < plan->n_operands; i++) {
    if (!all[i].output || !has_elements(&all[i])) continue;
    uintptr_t x = pointer(b, all[i].at);
    for (uint32_t j = 0; j < plan->n_operands; j++) {
      uintptr_t y = pointer(b, all[j].at);
      if (i == j || !has_elements(&all[j]) || apart(x, &all[i], y, &all[j])) continue;
      if (!interleaved(x, &all[i], y, &all[j])) return overlapping(all[i].field, all[j].field, why);
    }
  }
  if (!ws || !plan->d.workspace) return RAPT_OK;
  const rapti_operand scratch = {.high = (int64_t)plan->d.workspace};
  for (uint32_t i = 0; i < plan->n_operands; i++)
    if (has_elements(&all[i]) && !apart((uintptr_t)ws->data, &scratch, pointer(b, all[i].at), &all[i]))
      return overlapping(RAPT_FIELD_WORKSPACE, all[i].field, why);
  return RAPT_OK;
}

/* ---- LENGTHS, CU_SEQLENS: arrays that the host can read ---- */

static int64_t element(uintptr_t array, int dtype, int64_t i) {
  return dtype == RAPT_INT32 ? ((const int32_t *)array)[i] : ((const int64_t *)array)[i];
}

static rapt_status outside(int code, int field, int64_t index, int64_t got, int64_t low, int64_t high, rapt_reason *why) {
  fault(why, code, field, index);
  rapti_reason_got(why, "%lld", (long long)got);
  rapti_reason_want(why, "%lld..%lld", (long long)low, (long long)high);
  return RAPT_ARG;
}

static rapt_status check_range(const rapti_operand *o, const rapt_buffers *b, int64_t n, int64_t low, int64_t high,
                               rapt_reason *why) {
  for (int64_t i = 0; i < n; i++) {
    int64_t v = element(pointer(b, o->at), o->dtype, i);
    if (v < low || v > high) return outside(RAPT_CODE_LENGTHS, o->field, i, v, low, high, why);
  }
  return RAPT_OK;
}

static rapt_status check_cu(const rapti_operand *o, const rapt_buffers *b, int64_t n, int64_t total, rapt_reason *why) {
  int64_t before = 0;
  for (int64_t i = 0; i <= n; i++) {
    int64_t v = element(pointer(b, o->at), o->dtype, i), high = i ? total : 0;
    if (v < before || v > high) return outside(RAPT_CODE_CU_SEQLENS, o->field, i, v, before, high, why);
    before = v;
  }
  return RAPT_OK;
}

static rapt_status check_arrays(const rapt_plan *plan, const rapt_buffers *b, rapt_reason *why) {
  const rapt_problem *p = &plan->d.request.cast;
  const int64_t far = INT64_C(1) << 62;   /* M2 */
  bool lengths = !(p->flags & RAPT_LENGTHS_ON_DEVICE), cu = !(p->flags & RAPT_CU_ON_DEVICE);
  bool offsets = !(p->flags & RAPT_OFFSET_ON_DEVICE);
  rapt_status st = RAPT_OK;
  for (uint32_t i = 0; i < plan->n_operands && st == RAPT_OK; i++) {
    const rapti_operand *o = &plan->operand[i];
    switch (o->field) {
      case RAPT_FIELD_Q_LEN: if (lengths) st = check_range(o, b, p->B, 0, p->Sq, why); break;
      case RAPT_FIELD_KV_LEN: if (lengths) st = check_range(o, b, p->B, 0, p->Skv, why); break;
      case RAPT_FIELD_Q_OFFSET: if (offsets) st = check_range(o, b, p->B, -far, far, why); break;
      case RAPT_FIELD_CU_Q: if (cu) st = check_cu(o, b, p->B, p->Sq, why); break;
      case RAPT_FIELD_CU_K: if (cu) st = check_cu(o, b, p->B, p->Skv, why); break;
      default: break;
    }
  }
  return st;
}

rapt_status rapti_check_run(const rapt_plan *plan, const rapt_buffers *b, const rapti_workspace *ws, rapt_reason *why) {
  rapt_status st = rapti_struct_check(b, sizeof *b, "rapt_buffers", why);
  if (st == RAPT_OK) st = check_extra(plan, b, why);
  if (st == RAPT_OK) st = check_null(plan, b, ws, why);
  if (st == RAPT_OK) st = check_align(plan, b, ws, why);
  if (st == RAPT_OK) st = check_memory(plan, ws, why);
  if (st == RAPT_OK) st = check_overlap(plan, b, ws, why);
  return st == RAPT_OK ? check_arrays(plan, b, why) : st;
}
