/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of query rows against packed keys and values. One lane is one row in both products,
 *     S[key][row] = sum_d K[key][d] * Q[d][row]        O[column][row] += sum_key V[key][column] * P[key][row]
 * so the softmax is vertical and rows never mix. Sums run over d and over keys in ascending order, one FMA at a time;
 * weights are 0 where a pair is invisible, and blocks and tiles that a panel does not see are left out, which changes
 * no bit. Functions take the number of vectors of a panel as a constant; the table at the end holds each instance. */

/* Scores of `tiles` tiles of 4 keys at once; mx: running maximum a lane. */
RAPTI_ALWAYS_INLINE void score_tiles(const int nv, const int tiles, const float *K, const float *Q, int64_t D, vf scale,
                                     float *S, vf mx[]) {
  vf a[8][VF_PER_PANEL];
  const int64_t width = nv * VF_LEN;
  RAPTI_UNROLL for (int i = 0; i < 4 * tiles; i++) {
    RAPTI_UNROLL for (int j = 0; j < nv; j++) a[i][j] = vf_zero();
  }
  RAPTI_UNROLL_4 for (int64_t d = 0; d < D; d++) {
    vf q[VF_PER_PANEL];
    RAPTI_UNROLL for (int j = 0; j < nv; j++) q[j] = vf_load(Q + d * width + j * VF_LEN);
    RAPTI_UNROLL for (int i = 0; i < 4 * tiles; i++) {
      const vf x = vf_broadcast(K + i / 4 * 4 * D + 4 * d + i % 4);
      RAPTI_UNROLL for (int j = 0; j < nv; j++) a[i][j] = vf_fma(x, q[j], a[i][j]);
    }
  }
  RAPTI_UNROLL for (int i = 0; i < 4 * tiles; i++) {
    RAPTI_UNROLL for (int j = 0; j < nv; j++) {
      const vf s = vf_mul(a[i][j], scale);   /* N4 */
      vf_store(S + i * width + j * VF_LEN, s);
      mx[j] = vf_max(s, mx[j]);
    }
  }
}

RAPTI_ALWAYS_INLINE void scores(const int nv, const float *K, const float *Q, int64_t D, float scale, int64_t tiles, float *S,
                                float *mx) {
  vf m[VF_PER_PANEL];
  const vf factor = vf_set1(scale);
  int64_t t = 0;
  RAPTI_UNROLL for (int j = 0; j < nv; j++) m[j] = vf_set1(-INFINITY);
  if (nv == 1)                               /* 4 accumulators alone would wait for each other */
    for (; t + 2 <= tiles; t += 2) score_tiles(nv, 2, K + t * 4 * D, Q, D, factor, S + t * 4 * nv * VF_LEN, m);
  for (; t < tiles; t++) score_tiles(nv, 1, K + t * 4 * D, Q, D, factor, S + t * 4 * nv * VF_LEN, m);
  RAPTI_UNROLL for (int j = 0; j < nv; j++) vf_store(mx + j * VF_LEN, m[j]);
}

/* Which keys of a block a panel's rows see, apart from mask and bias. Positions count from the block's first key. */
typedef struct limits {
  int64_t from, to;                          /* keys that some row sees */
  int64_t all_from, all_to;                  /* keys that every row sees */
  const float *adjust;                       /* [to - from][lane], or NULL */
  float lo[RAPTI_MAX_WIDTH], hi[RAPTI_MAX_WIDTH];
} limits;

RAPTI_ALWAYS_INLINE vm in_range(const limits *x, int64_t key, int j) {
  const vf k = vf_set1((float)key);
  return vm_and(vm_le(vf_load(x->lo + j * VF_LEN), k), vm_le(k, vf_load(x->hi + j * VF_LEN)));
}

/* Adds the bias, sets scores of invisible pairs to -inf whatever they hold (M14), and takes the maximum anew. */
RAPTI_ALWAYS_INLINE void limit(const int nv, const limits *x, float *S, float *mx) {
  const vf invisible = vf_set1(-INFINITY);
  const int64_t width = nv * VF_LEN;
  vf m[VF_PER_PANEL];
  RAPTI_UNROLL for (int j = 0; j < nv; j++) m[j] = invisible;
  for (int64_t k = x->from; k < x->to; k++) {
    const bool edge = k < x->all_from || k >= x->all_to;
    RAPTI_UNROLL for (int j = 0; j < nv; j++) {
      float *p = S + k * width + j * VF_LEN;
      vf s = vf_load(p);
      if (x->adjust) {
        const vf t = vf_load(x->adjust + (k - x->from) * width + j * VF_LEN);
        s = vf_select(vm_eq(t, invisible), invisible, vf_add(s, t));
      }
      if (edge) s = vf_select(in_range(x, k, j), s, invisible);
      if (x->adjust || edge) vf_store(p, s);
      m[j] = vf_max(s, m[j]);
    }
  }
  RAPTI_UNROLL for (int j = 0; j < nv; j++) vf_store(mx + j * VF_LEN, m[j]);
}

/* Raises the running maximum of rows that outgrew it; every decision is a row's own (N17). */
RAPTI_ALWAYS_INLINE void rescale(const int nv, rapti_panel *panel, const float *mx, float *O, int64_t columns) {
  vf factor[VF_PER_PANEL];
  vm any = vm_gt(vf_zero(), vf_zero());
  RAPTI_UNROLL for (int j = 0; j < nv; j++)
    any = vm_or(any, vm_gt(vf_load(mx + j * VF_LEN), vf_add(vf_load(panel->m + j * VF_LEN), vf_set1(GROWTH))));
  if (!vm_any(any)) return;
  RAPTI_UNROLL for (int j = 0; j < nv; j++) {
    const vf m = vf_load(panel->m + j * VF_LEN), top = vf_load(mx + j * VF_LEN);
    const vm grown = vm_gt(top, vf_add(m, vf_set1(GROWTH)));
    factor[j] = vf_select(grown, vf_exp(vf_sub(m, top)), vf_set1(1));
    vf_store(panel->m + j * VF_LEN, vf_select(grown, top, m));
    vf_store(panel->l + j * VF_LEN, vf_mul(vf_load(panel->l + j * VF_LEN), factor[j]));
  }
  for (int64_t d = 0; d < columns; d++) {
    RAPTI_UNROLL for (int j = 0; j < nv; j++) {
      float *p = O + (d * nv + j) * VF_LEN;
      vf_store(p, vf_mul(vf_load(p), factor[j]));
    }
  }
}

/* Scores of `keys` keys to weights, in place, and their sums. */
RAPTI_ALWAYS_INLINE void weigh(const int nv, rapti_panel *panel, const float *mx, float *S, int64_t keys, float *O,
                               int64_t columns) {
  vf origin[VF_PER_PANEL], l[VF_PER_PANEL];
  rescale(nv, panel, mx, O, columns);
  RAPTI_UNROLL for (int j = 0; j < nv; j++) {
    origin[j] = vf_origin(vf_load(panel->m + j * VF_LEN));
    l[j] = vf_load(panel->l + j * VF_LEN);
  }
  for (int64_t k = 0; k < keys; k++) {
    RAPTI_UNROLL for (int j = 0; j < nv; j++) {
      float *p = S + (k * nv + j) * VF_LEN;
      const vf e = vf_exp(vf_sub(vf_load(p), origin[j]));
      l[j] = vf_add(l[j], e);
      vf_store(p, e);
    }
  }
  RAPTI_UNROLL for (int j = 0; j < nv; j++) vf_store(panel->l + j * VF_LEN, l[j]);
}

/* Adds weights times values to 4 * tiles columns. V: first key of the first tile, `step` floats a tile. */
RAPTI_ALWAYS_INLINE void value_tiles(const int nv, const int tiles, const float *V, int64_t step, const float *P, int64_t keys,
                                     float *O) {
  vf a[8][VF_PER_PANEL];
  RAPTI_UNROLL for (int i = 0; i < 4 * tiles; i++) {
    RAPTI_UNROLL for (int j = 0; j < nv; j++) a[i][j] = vf_load(O + (i * nv + j) * VF_LEN);
  }
  RAPTI_UNROLL_4 for (int64_t k = 0; k < keys; k++) {
    vf p[VF_PER_PANEL];
    RAPTI_UNROLL for (int j = 0; j < nv; j++) p[j] = vf_load(P + (k * nv + j) * VF_LEN);
    RAPTI_UNROLL for (int i = 0; i < 4 * tiles; i++) {
      const vf x = vf_broadcast(V + i / 4 * step + 4 * k + i % 4);
      RAPTI_UNROLL for (int j = 0; j < nv; j++) a[i][j] = vf_fma(x, p[j], a[i][j]);
    }
  }
  RAPTI_UNROLL for (int i = 0; i < 4 * tiles; i++) {
    RAPTI_UNROLL for (int j = 0; j < nv; j++) vf_store(O + (i * nv + j) * VF_LEN, a[i][j]);
  }
}

RAPTI_ALWAYS_INLINE void values(const int nv, const float *V, int64_t step, const float *P, int64_t keys, float *O,
                                int64_t columns) {
  int64_t d = 0;
  if (nv == 1)
    for (; d + 8 <= columns; d += 8) value_tiles(nv, 2, V + d / 4 * step, step, P, keys, O + d * nv * VF_LEN);
  for (; d < columns; d += 4) value_tiles(nv, 1, V + d / 4 * step, step, P, keys, O + d * nv * VF_LEN);
}

/* The same where V of the block is not finite and some pair is invisible: 0 * NaN must not reach a row that does not
 * see the key (M14), and must reach one that does (N10). Visibility decides, not the weight. */
RAPTI_ALWAYS_INLINE void values_isolated(const int nv, const limits *x, const float *V, int64_t step, const float *P, float *O,
                                         int64_t columns) {
  const int64_t width = nv * VF_LEN;
  for (int64_t k = x->from; k < x->to; k++)
    RAPTI_UNROLL for (int j = 0; j < nv; j++) {
      vm visible = in_range(x, k, j);
      const int64_t at = (k - x->from) * width + j * VF_LEN;
      if (x->adjust) visible = vm_and(visible, vm_not(vm_eq(vf_load(x->adjust + at), vf_set1(-INFINITY))));
      const vf p = vf_load(P + at);
      for (int64_t d = 0; d < columns; d++) {
        float *o = O + d * width + j * VF_LEN;
        const vf sum = vf_fma(vf_broadcast(V + d / 4 * step + 4 * (k - x->from) + d % 4), p, vf_load(o));
        vf_store(o, vf_select(visible, sum, vf_load(o)));
      }
    }
}

/* ---- Instances ---- */

typedef struct panel_functions {
  void (*scores)(const float *K, const float *Q, int64_t D, float scale, int64_t tiles, float *S, float *mx);
  void (*limit)(const limits *x, float *S, float *mx);
  void (*weigh)(rapti_panel *panel, const float *mx, float *S, int64_t keys, float *O, int64_t columns);
  void (*values)(const float *V, int64_t step, const float *P, int64_t keys, float *O, int64_t columns);
  void (*values_isolated)(const limits *x, const float *V, int64_t step, const float *P, float *O, int64_t columns);
} panel_functions;

#define RAPTI_NV 1
#include "backends/cpu/body/instance.inc.c"
#define RAPTI_NV 2
#include "backends/cpu/body/instance.inc.c"
#if VF_PER_PANEL > 2
#define RAPTI_NV 3
#include "backends/cpu/body/instance.inc.c"
#endif
#if VF_PER_PANEL > 3
#define RAPTI_NV 4
#include "backends/cpu/body/instance.inc.c"
#endif

static const panel_functions *const functions_of[VF_PER_PANEL + 1] = {
  NULL, &functions_1, &functions_2,
#if VF_PER_PANEL > 2
  &functions_3,
#endif
#if VF_PER_PANEL > 3
  &functions_4,
#endif
};
