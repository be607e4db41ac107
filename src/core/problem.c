/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a problem: which there are, their sizes, strides and extents. */
#include "core/problem.h"

bool rapti_tensor_present(const rapt_problem *p, int field) {
  bool grads = p->backward || (p->flags & RAPTI_GRADS);
  switch (field) {
    case RAPT_FIELD_Q: case RAPT_FIELD_K: case RAPT_FIELD_V: case RAPT_FIELD_OUT: return true;
    case RAPT_FIELD_LSE: return p->backward || (p->flags & RAPT_WANT_LSE);
    case RAPT_FIELD_DOUT: return grads;
    case RAPT_FIELD_DLSE: return grads && p->dlse.dtype != RAPT_NONE;
    case RAPT_FIELD_DQ: case RAPT_FIELD_DK: case RAPT_FIELD_DV:
      return p->flags & (RAPT_GRAD_Q | RAPT_GRAD_K | RAPT_GRAD_V);
    case RAPT_FIELD_DBIAS: return p->flags & RAPT_GRAD_BIAS;
    case RAPT_FIELD_DSINKS: return p->flags & RAPT_GRAD_SINKS;
    default: return rapti_desc(p, field)->dtype != RAPT_NONE;
  }
}

bool rapti_positional(const rapt_problem *p) {
  bool window = (p->has & RAPT_HAS_WINDOW) && (p->window[0] != -1 || p->window[1] != -1);
  return (p->flags & RAPT_CAUSAL) || window || p->slopes.dtype != RAPT_NONE;
}

static void set4(int64_t size[4], int64_t a, int64_t b, int64_t c, int64_t d) {
  size[0] = a;
  size[1] = b;
  size[2] = c;
  size[3] = d;
}

void rapti_tensor_sizes(const rapt_problem *p, int field, int64_t size[4]) {
  int64_t B = p->cu ? 1 : p->B;
  const rapt_desc *bias = &p->bias;
  switch (field) {
    case RAPT_FIELD_Q: case RAPT_FIELD_DQ: set4(size, B, p->Hq, p->Sq, p->D); break;
    case RAPT_FIELD_K: case RAPT_FIELD_DK: set4(size, B, p->Hkv, p->Skv, p->D); break;
    case RAPT_FIELD_V: case RAPT_FIELD_DV: set4(size, B, p->Hkv, p->Skv, p->Dv); break;
    case RAPT_FIELD_OUT: case RAPT_FIELD_DOUT: set4(size, B, p->Hq, p->Sq, p->Dv); break;
    case RAPT_FIELD_LSE: case RAPT_FIELD_DLSE: set4(size, B, p->Hq, p->Sq, 1); break;
    case RAPT_FIELD_MASK: set4(size, p->mask.size[0], p->mask.size[1], p->mask.size[2], p->mask.size[3]); break;
    case RAPT_FIELD_BIAS: case RAPT_FIELD_DBIAS:
      set4(size, bias->size[0], bias->size[1], bias->size[2], bias->size[3]);
      break;
    case RAPT_FIELD_SLOPES: set4(size, p->slopes.size[0], p->slopes.size[1], 1, 1); break;
    default: set4(size, p->sinks.size[0] ? p->sinks.size[0] : p->Hq, 1, 1, 1); break;
  }
}

static uint64_t magnitude(int64_t v) { return v < 0 ? 0 - (uint64_t)v : (uint64_t)v; }

/* Wraps on overflow: whoever reads the result has refused such sizes (SIZE), or only shows them. */
void rapti_dense_strides(const int64_t size[4], const int perm[4], int64_t stride[4]) {
  uint64_t run = 1;
  for (int i = 3; i >= 0; i--) {
    stride[perm[i]] = (int64_t)run;
    run *= size[perm[i]] > 1 ? (uint64_t)size[perm[i]] : 1u;
  }
}

void rapti_default_order(const rapt_problem *p, int field, int perm[4]) {
  bool rows_first = p->cu && field != RAPT_FIELD_LSE && field != RAPT_FIELD_DLSE;
  perm[0] = 0;
  perm[1] = rows_first ? 2 : 1;
  perm[2] = rows_first ? 1 : 2;
  perm[3] = 3;
}

void rapti_tensor_strides(const rapt_problem *p, int field, int64_t size[4], int64_t stride[4]) {
  int perm[4];
  rapti_tensor_sizes(p, field, size);
  rapti_default_order(p, field, perm);
  rapti_dense_strides(size, perm, stride);
  if (!rapti_has_strides(p, field)) return;
  const rapt_desc *d = rapti_desc(p, field);
  for (int i = 0; i < 4; i++)
    if (size[i] > 1) stride[i] = d->stride[i];               /* strides of smaller axes are ignored (S9) */
}

void rapti_axis_order(const int64_t size[4], const int64_t stride[4], int perm[4]) {
  uint64_t weight[4], widest = 1;
  for (int i = 3; i >= 0; i--) {
    bool counts = size[i] > 1 && stride[i] != 0;
    weight[i] = counts ? magnitude(stride[i]) : widest;
    if (weight[i] > widest) widest = weight[i];
  }
  for (int i = 0; i < 4; i++) {
    int at = i;
    for (; at > 0 && weight[perm[at - 1]] < weight[i]; at--) perm[at] = perm[at - 1];
    perm[at] = i;
  }
}

void rapti_copy_strides(const int64_t size[4], const int64_t stride[4], int64_t copy[4]) {
  int perm[4];
  int64_t kept[4];
  rapti_axis_order(size, stride, perm);
  for (int i = 0; i < 4; i++) kept[i] = size[i] > 1 && stride[i] == 0 ? 1 : size[i];
  rapti_dense_strides(kept, perm, copy);
  for (int i = 0; i < 4; i++)
    if (kept[i] != size[i]) copy[i] = 0;
}

int64_t rapti_copy_elements(const int64_t size[4], const int64_t stride[4]) {
  int64_t n = 1;
  for (int i = 0; i < 4; i++)
    if (size[i] <= 0) return 0;
  for (int i = 0; i < 4; i++)
    if (stride[i] != 0 && !rapti_mul(n, size[i], &n)) return -1;
  return n;
}

bool rapti_extent(const int64_t size[4], const int64_t stride[4], int64_t *low, int64_t *high) {
  *low = *high = 0;
  for (int i = 0; i < 4; i++)
    if (size[i] <= 0) { *high = -1; return true; }
  for (int i = 0; i < 4; i++) {
    int64_t reach;
    if (size[i] == 1) continue;
    if (!rapti_mul(size[i] - 1, stride[i], &reach)) return false;
    if (!rapti_add(reach < 0 ? *low : *high, reach, reach < 0 ? low : high)) return false;
  }
  return true;
}

const rapti_order rapti_orders[RAPTI_ORDERS] = {{"bhsd", false, {0, 1, 2, 3}},
                                                {"bshd", false, {0, 2, 1, 3}},
                                                {"sbhd", false, {2, 0, 1, 3}},
                                                {"shd", true, {0, 2, 1, 3}},
                                                {"hsd", true, {0, 1, 2, 3}}};

int rapti_logical_axes(const rapt_problem *p, int field, int axes[4]) {
  bool lse = field == RAPT_FIELD_LSE || field == RAPT_FIELD_DLSE;
  static const int dense[4] = {0, 1, 2, 3}, packed[3] = {2, 1, 3}, packed_lse[2] = {1, 2};
  const int *from = !p->cu ? dense : lse ? packed_lse : packed;
  int n = 4 - lse - (p->cu != RAPT_NONE);
  for (int i = 0; i < n; i++) axes[i] = from[i];
  return n;
}

bool rapti_same_strides(const int64_t size[4], const int64_t a[4], const int64_t b[4]) {
  for (int i = 0; i < 4; i++)
    if (size[i] > 1 && a[i] != b[i]) return false;
  return true;
}

void rapti_put_dims(rapti_text *t, const int64_t *size, int n) {
  for (int i = 0; i < n; i++) {
    if (i) rapti_text_putc(t, 'x');
    rapti_text_int(t, size[i]);
  }
}
