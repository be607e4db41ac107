/* SPDX-License-Identifier: Apache-2.0 */
/* A KV head with at most RAPTI_FEW_ROWS rows (decoding): keys and values are read once, where they are, in address order.
 * Lanes run over keys for the scores and over columns for the values, yet every row's sums run in the same order as in
 * the tile kernel, so both give the same bits (N17). */

/* Arrays of one call: [row][..]. */
typedef struct few {
  const rapti_cpu_call *c;
  int64_t head, s_row, o_row;                /* floats a row of s and t, of o */
  const char *k, *v;                         /* of the head */
  float *q, *s, *t, *o, *fetch;
  rapti_panel *panel;
} few;

/* Scores of groups * VF_LEN keys in row[] for `rows` rows. */
RAPTI_ALWAYS_INLINE void few_scores(const int rows, const int groups, const few *w, const float *const row[], vf scale,
                                    const float *q, float *s) {
  const int64_t D = w->c->D;
  vf sum[2][RAPTI_FEW_GROUP];
  int64_t d = 0;
  RAPTI_UNROLL for (int g = 0; g < groups; g++) {
    RAPTI_UNROLL for (int r = 0; r < rows; r++) sum[g][r] = vf_zero();
  }
  for (; d + 4 <= D; d += 4) {
    vf x[2][4];
    RAPTI_UNROLL for (int g = 0; g < groups; g++) vf_load_columns(row + g * VF_LEN, d, x[g]);
    RAPTI_UNROLL for (int i = 0; i < 4; i++) {
      RAPTI_UNROLL for (int r = 0; r < rows; r++) {
        const vf x_q = vf_broadcast(q + r * D + d + i);
        RAPTI_UNROLL for (int g = 0; g < groups; g++) sum[g][r] = vf_fma(x[g][i], x_q, sum[g][r]);
      }
    }
  }
  for (; d < D; d++) {
    float x[2 * VF_LEN];
    for (int i = 0; i < groups * VF_LEN; i++) x[i] = row[i][d];
    RAPTI_UNROLL for (int r = 0; r < rows; r++) {
      RAPTI_UNROLL for (int g = 0; g < groups; g++)
        sum[g][r] = vf_fma(vf_load(x + g * VF_LEN), vf_broadcast(q + r * D + d), sum[g][r]);
    }
  }
  RAPTI_UNROLL for (int g = 0; g < groups; g++) {
    RAPTI_UNROLL for (int r = 0; r < rows; r++) vf_store(s + r * w->s_row + g * VF_LEN, vf_mul(sum[g][r], scale));
  }
}

RAPTI_ALWAYS_INLINE void few_block_scores(const int rows, const few *w, int64_t key, int64_t n) {
  const rapti_cpu_call *c = w->c;
  const vf scale = vf_set1(c->scale);
  for (int64_t k = 0; k < n; k += 2 * VF_LEN) {
    const float *row[2 * VF_LEN];
    fetch_rows(&c->k, w->k + (key + k) * c->k.ss, n - k, 2 * VF_LEN, c->D, row, w->fetch, c->fetch_row);
    prefetch_rows(&c->k, w->k, key + k + 2 * VF_LEN, 2 * VF_LEN, w->panel->any_hi + 1, c->D);
    for (int64_t r = 0; r < c->rows; r += rows)
      few_scores(rows, 2, w, row, scale, w->q + r * c->D, w->s + r * w->s_row + k);
  }
}

/* Adds the bias and hides invisible keys; the row's maximum. Keys n .. up to a whole vector are hidden too. */
static float few_limit(const few *w, int r, int64_t key, int64_t n) {
  const rapti_cpu_call *c = w->c;
  float *s = w->s + r * w->s_row, *t = w->t + r * w->s_row, top[VF_LEN];
  const int64_t from = clamp64(w->panel->lo[r] - key, 0, n);
  const int64_t to = w->panel->hi[r] < key ? 0 : clamp64(w->panel->hi[r] - key + 1, 0, n);
  if (c->mask.dtype || c->bias.dtype) {
    fill_adjust(c, w->head, r, key, n, t);
    for (int64_t k = 0; k < n; k++) s[k] = t[k] == -INFINITY ? -INFINITY : s[k] + t[k];
  }
  for (int64_t k = 0; k < from && k < n; k++) s[k] = -INFINITY;
  for (int64_t k = to; k < n || k % VF_LEN; k++) s[k] = -INFINITY;
  vf mx = vf_set1(-INFINITY);
  for (int64_t k = 0; k < n; k += VF_LEN) mx = vf_max(vf_load(s + k), mx);
  vf_store(top, mx);
  float m = top[0];
  for (int i = 1; i < VF_LEN; i++) m = top[i] > m ? top[i] : m;
  return m;
}

/* As rescale() and weigh() of the tile kernel, for one row. */
static void few_weigh(const few *w, int r, int64_t n, float top) {
  float *s = w->s + r * w->s_row, *o = w->o + r * w->o_row, *m = &w->panel->m[r], l = w->panel->l[r];
  if (top > *m + GROWTH) {
    const vf factor = vf_exp(vf_sub(vf_set1(*m), vf_set1(top)));
    float f[VF_LEN];
    vf_store(f, factor);
    l *= f[0];
    *m = top;
    for (int64_t d = 0; d < w->o_row; d += VF_LEN) vf_store(o + d, vf_mul(vf_load(o + d), factor));
  }
  const vf origin = vf_origin(vf_set1(*m));
  for (int64_t k = 0; k < n; k += VF_LEN) vf_store(s + k, vf_exp(vf_sub(vf_load(s + k), origin)));
  for (int64_t k = 0; k < n; k++) l += s[k];
  w->panel->l[r] = l;
}

static bool few_sees(const few *w, int r, int64_t key, int64_t k) {
  const bool adjust = w->c->mask.dtype || w->c->bias.dtype;
  return w->panel->lo[r] <= key + k && key + k <= w->panel->hi[r] &&
         !(adjust && w->t[r * w->s_row + k] == -INFINITY);
}

/* `rows` rows, o_row floats apart, gain the values of `keys` keys, all of which they see; weights s_row floats apart. */
RAPTI_ALWAYS_INLINE void few_add(const int rows, const int keys, const few *w, const float *const row[], const float *p,
                                 float *o) {
  const int64_t Dv = w->c->Dv;
  vf weight[RAPTI_FEW_GROUP][4];
  RAPTI_UNROLL for (int r = 0; r < rows; r++) {
    RAPTI_UNROLL for (int i = 0; i < keys; i++) weight[r][i] = vf_broadcast(p + r * w->s_row + i);
  }
  for (int64_t d = 0; d < Dv; d += VF_LEN) {
    vf x[4];
    RAPTI_UNROLL for (int i = 0; i < keys; i++) {
      float tail[VF_LEN] = {0};
      if (d + VF_LEN > Dv) memcpy(tail, row[i] + d, (size_t)(Dv - d) * sizeof *tail);
      x[i] = vf_load(d + VF_LEN > Dv ? tail : row[i] + d);
    }
    RAPTI_UNROLL for (int r = 0; r < rows; r++) {
      vf sum = vf_load(o + r * w->o_row + d);
      RAPTI_UNROLL for (int i = 0; i < keys; i++) sum = vf_fma(x[i], weight[r][i], sum);
      vf_store(o + r * w->o_row + d, sum);
    }
  }
}

RAPTI_NOINLINE void few_add_1(const few *w, const float *const row[], const float *p, float *o) { few_add(1, 1, w, row, p, o); }

RAPTI_ALWAYS_INLINE void few_block_values(const int rows, const few *w, int64_t key, int64_t n) {
  const rapti_cpu_call *c = w->c;
  for (int64_t k = 0; k < n; k += 4) {
    const float *row[4];
    const int have = n - k < 4 ? (int)(n - k) : 4;
    fetch_rows(&c->v, w->v + (key + k) * c->v.ss, have, 4, c->Dv, row, w->fetch, c->fetch_row);
    prefetch_rows(&c->v, w->v, key + k + ROWS_AHEAD, 4, w->panel->any_hi + 1, c->Dv);
    bool all = have == 4;
    for (int r = 0; r < (int)c->rows && all; r++)
      for (int i = 0; i < 4; i++) all &= few_sees(w, r, key, k + i);
    if (all) {
      for (int64_t r = 0; r < c->rows; r += rows) few_add(rows, 4, w, row, w->s + r * w->s_row + k, w->o + r * w->o_row);
      continue;
    }
    for (int r = 0; r < (int)c->rows; r++)      /* what a row does not see is not even multiplied (M14) */
      for (int i = 0; i < have; i++)
        if (few_sees(w, r, key, k + i)) few_add_1(w, row + i, w->s + r * w->s_row + k + i, w->o + r * w->o_row);
  }
}

RAPTI_NOINLINE void few_scores_1(const few *w, int64_t key, int64_t n) { few_block_scores(1, w, key, n); }
RAPTI_NOINLINE void few_scores_2(const few *w, int64_t key, int64_t n) { few_block_scores(2, w, key, n); }
RAPTI_NOINLINE void few_scores_4(const few *w, int64_t key, int64_t n) { few_block_scores(4, w, key, n); }
RAPTI_NOINLINE void few_values_1(const few *w, int64_t key, int64_t n) { few_block_values(1, w, key, n); }
RAPTI_NOINLINE void few_values_2(const few *w, int64_t key, int64_t n) { few_block_values(2, w, key, n); }
RAPTI_NOINLINE void few_values_4(const few *w, int64_t key, int64_t n) { few_block_values(4, w, key, n); }

/* Every key that some row sees, block after block at the same positions as in the tile kernel. */
static void few_pass(const few *w) {
  const rapti_cpu_call *c = w->c;
  const int rows = (int)c->rows;
  const int64_t lo = w->panel->any_lo, hi = w->panel->any_hi;
  for (int64_t block = hi < 0 ? 0 : lo / c->block; hi >= 0 && block <= hi / c->block; block++) {
    const int64_t start = block * c->block, key = start < lo ? lo : start;
    const int64_t end = start + c->block <= hi ? start + c->block : hi + 1, n = end - key;
    if (rows == 1) few_scores_1(w, key, n);
    else if (rows == 2) few_scores_2(w, key, n);
    else few_scores_4(w, key, n);
    for (int r = 0; r < rows; r++) few_weigh(w, r, n, few_limit(w, r, key, n));
    if (rows == 1) few_values_1(w, key, n);
    else if (rows == 2) few_values_2(w, key, n);
    else few_values_4(w, key, n);
  }
}

static bool few_overflowed(const few *w, int r) {
  float sum = 0;
  for (int64_t d = 0; d < w->c->Dv; d++) sum += 0 * w->o[r * w->o_row + d];
  return sum != 0 && w->panel->l[r] > 0;
}

static void few_divide(const few *w, int r) {
  float *o = w->o + r * w->o_row;
  const vf l = vf_set1(w->panel->l[r]);
  for (int64_t d = 0; d < w->o_row; d += VF_LEN) vf_store(o + d, vf_quotient(vf_load(o + d), l));
}

/* As rescue() of the tile kernel; divides. */
static void few_rescue(few *w) {
  const int rows = (int)w->c->rows;
  rapti_panel again = *w->panel;
  few second = *w;
  second.panel = &again;
  second.o = w->o + RAPTI_FEW_ROWS * w->o_row;
  for (int r = 0; r < rows; r++) again.m[r] += RESCUE, again.l[r] = 0;
  memset(second.o, 0, (size_t)(RAPTI_FEW_ROWS * w->o_row) * sizeof *second.o);
  few_pass(&second);
  for (int r = 0; r < rows; r++) {
    few_divide(w, r);
    few_divide(&second, r);
    for (int64_t i = r * w->o_row; i < r * w->o_row + w->c->Dv; i++)
      if (!(w->o[i] - w->o[i] == 0)) w->o[i] = second.o[i];
  }
}

static void run_few(const rapti_cpu_call *c, char *scratch, int64_t head) {
  const areas a = areas_of(c, scratch);
  const int64_t b = head / c->Hkv, h = head % c->Hkv;
  const int rows = (int)c->rows;
  few w = {.c = c, .head = head, .s_row = c->few_row, .o_row = (c->Dv + VF_LEN - 1) / VF_LEN * VF_LEN,
           .k = c->k.base + b * c->k.sb + h * c->k.sh, .v = c->v.base + b * c->v.sb + h * c->v.sh,
           .q = a.q, .s = a.s, .t = a.t, .o = a.o, .fetch = a.fetch, .panel = a.panels};
  rapti_cpu_panel(c, b, 0, RAPTI_FEW_ROWS, 1, w.panel);
  for (int r = 0; r < RAPTI_FEW_ROWS; r++) {
    const int64_t from = r < rows ? r : rows - 1;
    const char *p = c->q.base + row_offset(c, head, from, c->q.sb, c->q.sh, c->q.ss);
    const float *row = fetch_row(p, c->q.sd, c->q.dtype, c->D, w.fetch);
    memcpy(w.q + r * c->D, row, (size_t)c->D * sizeof *row);
  }
  memset(w.o, 0, (size_t)(RAPTI_FEW_ROWS * w.o_row) * sizeof *w.o);
  few_pass(&w);
  bool divided = false;
  for (int r = 0; r < rows; r++) divided |= few_overflowed(&w, r);
  if (divided) few_rescue(&w);
  for (int r = 0; r < rows; r++) {
    if (!divided) few_divide(&w, r);
    store_row(c->out.base + row_offset(c, head, r, c->out.sb, c->out.sh, c->out.ss), c->out.sd, c->out.dtype, c->Dv,
              w.o + r * w.o_row);
    if (!c->lse.dtype) continue;
    store_element(c->lse.base + row_offset(c, head, r, c->lse.sb, c->lse.sh, c->lse.ss), RAPT_FP32,
                  lse_of(w.panel->m[r], w.panel->l[r]));
  }
}
