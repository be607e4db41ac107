/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk: some panels of one KV head, key block after key block. */

static int64_t clamp64(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* What the panel sees of keys key .. key+n-1; false: nothing. */
static bool limits_of(const rapti_panel *panel, int64_t key, int64_t n, limits *x) {
  x->from = clamp64(panel->any_lo - key, 0, n);
  x->to = panel->any_hi < key ? 0 : clamp64(panel->any_hi - key + 1, 0, n);
  if (x->from >= x->to) return false;
  x->all_from = panel->all_lo < key ? 0 : clamp64(panel->all_lo - key, 0, n);
  x->all_to = panel->all_hi < key ? 0 : clamp64(panel->all_hi - key + 1, 0, n);
  x->adjust = NULL;
  return true;
}

static bool every_pair(const limits *x) { return !x->adjust && x->all_from <= x->from && x->all_to >= x->to; }

/* Only where some pair may be invisible. A row without keys takes no part in the panel's ranges: it sees nothing here. */
static void fill_ranges(const rapti_panel *panel, int64_t key, int64_t n, limits *x) {
  for (int64_t i = 0; i < panel->vectors * VF_LEN; i++) {
    x->lo[i] = (float)(panel->lo[i] < key ? 0 : clamp64(panel->lo[i] - key, 0, n));
    x->hi[i] = (float)(panel->hi[i] < key ? -1 : clamp64(panel->hi[i] - key, 0, n));
  }
}

/* One panel against the packed block in `slot`. O: [column][lane]. */
static void panel_block(const rapti_cpu_call *c, const areas *w, int64_t head, int64_t block, int64_t slot,
                        rapti_panel *panel, const float *Q, float *O) {
  const int64_t key = block * c->block, n = c->Skv - key < c->block ? c->Skv - key : c->block;
  const int64_t width = panel->vectors * VF_LEN;
  const panel_functions *f = functions_of[panel->vectors];
  limits x;
  float mx[VF_PER_PANEL * VF_LEN];
  if (!limits_of(panel, key, n, &x)) return;
  if (c->mask.dtype || c->bias.dtype) {
    x.adjust = w->t;
    if (!pack_adjust(c, w, head, panel, key + x.from, x.to - x.from, w->t)) return;
  }
  const int64_t first_tile = x.from / RAPTI_KEY_TILE, tiles = (x.to + RAPTI_KEY_TILE - 1) / RAPTI_KEY_TILE - first_tile;
  const float *K = w->k + (slot * c->block + first_tile * RAPTI_KEY_TILE) * c->D;
  const float *V = w->v + slot * c->block * c->dv_pad + 4 * x.from;
  float *S = w->s, *P = w->s + x.from * width;
  f->scores(K, Q, c->D, c->scale, tiles, S + first_tile * RAPTI_KEY_TILE * width, mx);
  const bool all = every_pair(&x), whole_tiles = x.from % RAPTI_KEY_TILE == 0 && x.to % RAPTI_KEY_TILE == 0;
  if (!all) fill_ranges(panel, key, n, &x);
  if (!all || !whole_tiles) f->limit(&x, S, mx);
  f->weigh(panel, mx, P, x.to - x.from, O, c->dv_pad);
  if (all || !w->flags[slot]) f->values(V, 4 * n, P, x.to - x.from, O, c->dv_pad);
  else f->values_isolated(&x, V, 4 * n, P, O, c->dv_pad);
}

/* Panels 0 .. count-1 against every block that one of them sees. */
static void all_blocks(const rapti_cpu_call *c, const areas *w, int64_t head, rapti_panel *panels, int64_t count,
                       const float *Q, float *O) {
  const int64_t width = VF_PER_PANEL * VF_LEN;
  int64_t lo = INT64_MAX, hi = -1;
  for (int64_t p = 0; p < count; p++) {
    if (panels[p].any_lo < lo) lo = panels[p].any_lo;
    if (panels[p].any_hi > hi) hi = panels[p].any_hi;
  }
  for (int64_t block = hi < 0 ? 0 : lo / c->block; hi >= 0 && block <= hi / c->block; block++) {
    if (!c->pack_head) pack_block(c, w, head, block, 0);
    const int64_t slot = c->pack_head ? block : 0;
    for (int64_t p = 0; p < count; p++)
      panel_block(c, w, head, block, slot, &panels[p], Q + p * width * c->D, O + p * width * c->dv_pad);
  }
}

/* ---- Results ---- */

/* Rows without keys went along with their panel and have no result (M16). */
static void drop_blind_rows(rapti_panel *panel) {
  for (int64_t i = 0; i < panel->vectors * VF_LEN; i++)
    if (panel->lo[i] > panel->hi[i]) panel->l[i] = 0;
}

/* Lanes of vector j whose weights are finite and some sum of which is not. */
static vm overflowed(const rapti_cpu_call *c, const rapti_panel *panel, int64_t j, const float *O) {
  const vf l = vf_load(panel->l + j * VF_LEN);
  vf sum = vf_zero();
  for (int64_t d = 0; d < c->Dv; d++) sum = vf_fma(vf_load(O + (d * panel->vectors + j) * VF_LEN), vf_zero(), sum);
  return vm_and(vm_not(vm_eq(sum, sum)), vm_gt(l, vf_zero()));
}

/* A sum of weights times values may overflow where their mean is finite. The row is then computed once more with much
 * smaller weights, and elements that were not finite are taken from there: what V itself makes non-finite stays so. */
static void rescue(const rapti_cpu_call *c, const areas *w, int64_t head, const rapti_panel *panel, const float *Q, float *O) {
  rapti_panel again = *panel;
  const int64_t width = panel->vectors * VF_LEN;
  float *O2 = w->o + c->chunk_panels * VF_PER_PANEL * VF_LEN * c->dv_pad;
  for (int64_t i = 0; i < width; i++) again.m[i] += RESCUE, again.l[i] = 0;
  memset(O2, 0, (size_t)(width * c->dv_pad) * sizeof *O2);
  all_blocks(c, w, head, &again, 1, Q, O2);
  drop_blind_rows(&again);
  for (int64_t i = 0; i < c->Dv * width; i += VF_LEN) {
    const vf o = vf_load(O + i), l = vf_load(panel->l + i % width), l2 = vf_load(again.l + i % width);
    const vm good = vm_eq(vf_sub(o, o), vf_zero());
    vf_store(O + i, vf_select(good, vf_quotient(o, l), vf_quotient(vf_load(O2 + i), l2)));
  }
}

/* O of VF_LEN lanes to rows; o = O / l unless rescue() has divided already. */
static void rows_of(const rapti_cpu_call *c, int64_t width, const float *O, vf l, float *const row[]) {
  int64_t d = 0;
  for (; d + VF_LEN <= c->Dv; d += VF_LEN) {
    vf x[VF_LEN];
    RAPTI_UNROLL for (int i = 0; i < VF_LEN; i++) x[i] = vf_quotient(vf_load(O + (d + i) * width), l);
    vf_transpose(x);
    RAPTI_UNROLL for (int i = 0; i < VF_LEN; i++) vf_store(row[i] + d, x[i]);
  }
  for (; d < c->Dv; d++) {
    float x[VF_LEN];
    vf_store(x, vf_quotient(vf_load(O + d * width), l));
    for (int i = 0; i < VF_LEN; i++) row[i][d] = x[i];
  }
}

static void finish_panel(const rapti_cpu_call *c, const areas *w, int64_t head, const rapti_panel *panel, const float *Q,
                         float *O) {
  const int64_t width = panel->vectors * VF_LEN;
  bool divided = false;
  for (int64_t j = 0; j < panel->vectors; j++) divided |= vm_any(overflowed(c, panel, j, O));
  if (divided) rescue(c, w, head, panel, Q, O);
  for (int64_t lane = 0; lane < width; lane += VF_LEN) {
    float *row[VF_LEN];
    const int64_t have = panel->rows - lane < VF_LEN ? panel->rows - lane : VF_LEN;
    for (int64_t i = 0; i < VF_LEN; i++) row[i] = w->fetch + i * c->fetch_row;
    rows_of(c, width, O + lane, divided ? vf_set1(1) : vf_load(panel->l + lane), row);
    for (int64_t i = 0; i < have; i++) {
      const int64_t r = panel->first + lane + i;
      store_row(c->out.base + row_offset(c, head, r, c->out.sb, c->out.sh, c->out.ss), c->out.sd, c->out.dtype, c->Dv, row[i]);
      if (!c->lse.dtype) continue;
      store_element(c->lse.base + row_offset(c, head, r, c->lse.sb, c->lse.sh, c->lse.ss), RAPT_FP32,
                    lse_of(panel->m[lane + i], panel->l[lane + i]));
    }
  }
}

static void run_chunk(const rapti_cpu_call *c, char *scratch, int64_t head, int64_t chunk) {
  const int64_t width = VF_PER_PANEL * VF_LEN, first = chunk * c->chunk_panels;
  const int64_t count = c->panels - first < c->chunk_panels ? c->panels - first : c->chunk_panels;
  const areas w = areas_of(c, scratch);
  for (int64_t p = 0; p < count; p++) {
    rapti_cpu_panel(c, head / c->Hkv, (first + p) * width, width, VF_LEN, &w.panels[p]);
    pack_queries(c, &w, head, &w.panels[p], w.q + p * width * c->D);
  }
  memset(w.o, 0, (size_t)(count * width * c->dv_pad) * sizeof *w.o);
  all_blocks(c, &w, head, w.panels, count, w.q, w.o);
  for (int64_t p = 0; p < count; p++) {
    drop_blind_rows(&w.panels[p]);
    finish_panel(c, &w, head, &w.panels[p], w.q + p * width * c->D, w.o + p * width * c->dv_pad);
  }
}
