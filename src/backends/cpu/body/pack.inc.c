/* SPDX-License-Identifier: Apache-2.0 */
/* Operands in the order in which the tile kernels read them, as fp32. */

/* The areas of one thread's scratch. */
typedef struct areas {
  float *k, *v, *q, *o, *s, *t, *fetch;
  uint8_t *flags;                          /* of each packed block: V holds an element that is not finite */
  rapti_panel *panels;
} areas;

static float *float_area(char *scratch, size_t at) { return (float *)(void *)(scratch + at); }

static areas areas_of(const rapti_cpu_call *c, char *scratch) {
  return (areas){.k = float_area(scratch, c->k_at), .v = float_area(scratch, c->v_at), .q = float_area(scratch, c->q_at),
                 .o = float_area(scratch, c->o_at), .s = float_area(scratch, c->s_at), .t = float_area(scratch, c->t_at),
                 .fetch = float_area(scratch, c->fetch_at), .flags = (uint8_t *)scratch + c->flags_at,
                 .panels = (rapti_panel *)(void *)(scratch + c->panels_at)};
}

/* Rows of `in` (up to `count`, the last one repeated) as n fp32 elements each. */
static void fetch_rows(const rapti_in *in, const char *base, int64_t have, int count, int64_t n, const float *row[],
                       float *scratch, int64_t step) {
  const float *last = NULL;
  for (int i = 0; i < count; i++) {
    if (i < have) last = fetch_row(base + i * in->ss, in->sd, in->dtype, n, scratch + i * step);
    row[i] = last;
  }
}

/* Rows further on are asked for early, in address order: they are read several at once, a pattern too short-lived for the
 * hardware to follow. Rows `row` .. row+count-1 as far as they exist, below `end`. */
static void prefetch_rows(const rapti_in *in, const char *base, int64_t row, int64_t count, int64_t end, int64_t n) {
  const int64_t bytes = n * (in->dtype == RAPT_FP32 ? 4 : 2);
  if (in->ss < bytes) return;              /* overlapping, reversed or interleaved: let it be */
  for (int64_t r = row; r < row + count && r < end; r++)
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(base + r * in->ss + at);
}
enum { ROWS_AHEAD = 8 };

/* n keys to tiles of 4: [tile][d][4]. */
static void pack_keys(const rapti_cpu_call *c, const char *base, int64_t n, float *dst, float *scratch) {
  const int64_t D = c->D;
  for (int64_t k = 0; k < n; k += RAPTI_KEY_TILE) {
    const float *row[RAPTI_KEY_TILE];
    fetch_rows(&c->k, base + k * c->k.ss, n - k, RAPTI_KEY_TILE, D, row, scratch, c->fetch_row);
    prefetch_rows(&c->k, base, k + ROWS_AHEAD, RAPTI_KEY_TILE, n, D);
    float *out = dst + k * D;
    int64_t d = 0;
    for (; d + VF_LEN <= D; d += VF_LEN) {
      const vf x[4] = {vf_load(row[0] + d), vf_load(row[1] + d), vf_load(row[2] + d), vf_load(row[3] + d)};
      vf_interleave4(out + 4 * d, x);
    }
    for (; d < D; d++)
      for (int i = 0; i < 4; i++) out[4 * d + i] = row[i][d];
  }
}

/* n values to tiles of 4 columns: [tile][key][4], padded with 0. Returns whether every element is finite. */
static bool pack_values(const rapti_cpu_call *c, const char *base, int64_t n, float *dst, float *scratch) {
  const int64_t Dv = c->Dv, step = 4 * n;
  vf sum = vf_zero();                      /* of 0 * x: NaN as soon as one x is not finite */
  float tail = 0;
  for (int64_t k = 0; k < n; k += 4) {
    const float *row[4];
    const int64_t have = n - k < 4 ? n - k : 4;
    fetch_rows(&c->v, base + k * c->v.ss, have, 4, Dv, row, scratch, c->fetch_row);
    prefetch_rows(&c->v, base, k + ROWS_AHEAD, 4, n, Dv);
    float *out = dst + 4 * k;
    int64_t d = 0;
    for (; d + VF_LEN <= Dv; d += VF_LEN)
      for (int64_t i = 0; i < have; i++) {
        const vf x = vf_load(row[i] + d);
        sum = vf_fma(x, vf_zero(), sum);
        vf_store_quads(out + d / 4 * step + 4 * i, step, x);
      }
    for (; d < c->dv_pad; d++)
      for (int64_t i = 0; i < have; i++) {
        const float x = d < Dv ? row[i][d] : 0;
        tail += 0 * x;
        out[d / 4 * step + 4 * i + d % 4] = x;
      }
  }
  return !vm_any(vm_not(vm_eq(sum, sum))) && tail == 0;
}

/* Block `block` of a KV head into slot `slot` of the packed area. */
static void pack_block(const rapti_cpu_call *c, const areas *w, int64_t head, int64_t block, int64_t slot) {
  const int64_t b = head / c->Hkv, h = head % c->Hkv, key = block * c->block;
  const int64_t n = c->Skv - key < c->block ? c->Skv - key : c->block;
  const char *k = c->k.base + b * c->k.sb + h * c->k.sh + key * c->k.ss;
  const char *v = c->v.base + b * c->v.sb + h * c->v.sh + key * c->v.ss;
  pack_keys(c, k, n, w->k + slot * c->block * c->D, w->fetch);
  w->flags[slot] = !pack_values(c, v, n, w->v + slot * c->block * c->dv_pad, w->fetch);
}

/* Keys beyond every kv_len are not packed: nothing reads them. */
static void pack_head(const rapti_cpu_call *c, char *scratch, int64_t head) {
  const areas w = areas_of(c, scratch);
  for (int64_t block = 0; block < c->blocks; block++) pack_block(c, &w, head, block, block);
}

/* The panel's queries as [d][lane]. */
static void pack_queries(const rapti_cpu_call *c, const areas *w, int64_t head, const rapti_panel *panel, float *dst) {
  const int64_t D = c->D, width = panel->vectors * VF_LEN;
  for (int64_t lane = 0; lane < width; lane += VF_LEN) {
    const float *row[VF_LEN], *last = NULL;
    for (int64_t i = 0; i < VF_LEN; i++) {
      const char *p = c->q.base + row_offset(c, head, panel->first + lane + i, c->q.sb, c->q.sh, c->q.ss);
      if (lane + i < panel->rows) last = fetch_row(p, c->q.sd, c->q.dtype, D, w->fetch + i * c->fetch_row);
      row[i] = last;
    }
    int64_t d = 0;
    for (; d + VF_LEN <= D; d += VF_LEN) {
      vf x[VF_LEN];
      RAPTI_UNROLL for (int i = 0; i < VF_LEN; i++) x[i] = vf_load(row[i] + d);
      vf_transpose(x);
      RAPTI_UNROLL for (int i = 0; i < VF_LEN; i++) vf_store(dst + (d + i) * width + lane, x[i]);
    }
    for (; d < D; d++)
      for (int i = 0; i < VF_LEN; i++) dst[d * width + lane + i] = row[i][d];
  }
}

static bool same_adjust_rows(const rapti_cpu_call *c, const rapti_panel *panel) {
  const bool one_head = panel->first / c->Sq == (panel->first + panel->rows - 1) / c->Sq;
  return c->mask.ss == 0 && c->bias.ss == 0 && (one_head || (c->mask.sh == 0 && c->bias.sh == 0));
}

/* fill_adjust of the panel's rows for keys k .. k+n-1, as [key][lane]. false: every pair is invisible. */
static bool pack_adjust(const rapti_cpu_call *c, const areas *w, int64_t head, const rapti_panel *panel, int64_t k,
                        int64_t n, float *dst) {
  const int64_t width = panel->vectors * VF_LEN;
  const vf invisible = vf_set1(-INFINITY);
  bool seen = false;
  if (same_adjust_rows(c, panel)) {
    fill_adjust(c, head, panel->first, k, n, w->fetch);
    for (int64_t i = 0; i < n; i++) {
      seen |= w->fetch[i] != -INFINITY;
      for (int64_t lane = 0; lane < width; lane += VF_LEN) vf_store(dst + i * width + lane, vf_set1(w->fetch[i]));
    }
    return seen;
  }
  for (int64_t lane = 0; lane < width; lane += VF_LEN) {
    const float *row[VF_LEN], *last = NULL;
    for (int64_t i = 0; i < VF_LEN; i++) {
      float *scratch = w->fetch + i * c->fetch_row;
      if (lane + i < panel->rows) {
        fill_adjust(c, head, panel->first + lane + i, k, n, scratch);
        last = scratch;
      }
      row[i] = last;
    }
    vm any = vm_gt(vf_zero(), vf_zero());
    for (int64_t i = 0; i < n; i += VF_LEN) {      /* reads up to VF_LEN - 1 floats of slack at the row's end */
      const int64_t have = n - i < VF_LEN ? n - i : VF_LEN;
      vf x[VF_LEN];
      RAPTI_UNROLL for (int r = 0; r < VF_LEN; r++) x[r] = vf_load(row[r] + i);
      vf_transpose(x);
      for (int64_t r = 0; r < have; r++) {
        any = vm_or(any, vm_not(vm_eq(x[r], invisible)));
        vf_store(dst + (i + r) * width + lane, x[r]);
      }
    }
    seen |= vm_any(any);
  }
  return seen;
}
