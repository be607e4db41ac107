/* SPDX-License-Identifier: Apache-2.0 */
/* From a problem to what the kernels need: byte strides, blocks, scratch layout, visible ranges. */
#include "backends/cpu/kernel.h"

#include <math.h>
#include <string.h>

/* ---- Strides ---- */

static void strides_of(const rapt_desc *d, const int64_t size[4], int64_t stride[4]) {
  const int64_t bytes = (int64_t)rapt_dtype_bytes(d->dtype);
  for (int i = 0; i < 4; i++) stride[i] = size[i] > 1 ? d->stride[i] * bytes : 0;
}

static rapti_in input_of(const rapt_desc *d, int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
  int64_t st[4];
  strides_of(d, (const int64_t[4]){s0, s1, s2, s3}, st);
  return (rapti_in){NULL, st[0], st[1], st[2], st[3], d->dtype};
}

static rapti_in broadcast_of(const rapt_desc *d) {   /* its own sizes: an axis of 1 stands for every index (M12) */
  return d->dtype ? input_of(d, d->size[0], d->size[1], d->size[2], d->size[3]) : (rapti_in){0};
}

static rapti_out output_of(const rapt_desc *d, int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
  const rapti_in in = input_of(d, s0, s1, s2, s3);
  return (rapti_out){NULL, in.sb, in.sh, in.ss, in.sd, in.dtype};
}

/* ---- Sizes ---- */

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* Keys a block: K and V of one block stay in a 512 KiB second-level cache beside a chunk's panels. */
static int64_t block_of(int64_t D, int64_t Dv) {
  const double row = (double)D + (double)Dv;
  return row <= 384 ? 192 : row <= 1024 ? 96 : 48;
}

/* Below this many multiply-adds a second thread costs more than it brings. */
static const double work_per_thread = 1 << 20;
/* Rows a chunk, and the most that one packed head may take of each thread. */
enum { CHUNK_ROWS = 144, LONG_CHUNK_ROWS = 576 };
static const double packed_head_limit = 64.0 * (1 << 20);

typedef struct layout {
  int64_t at;
  bool ok;
} layout;

/* Reserves n rows of `row` elements of `bytes`; 64-byte aligned. */
static size_t reserve(layout *l, int64_t n, int64_t row, int64_t bytes) {
  const int64_t at = l->at;
  int64_t size = 0;
  l->ok = l->ok && rapti_mul(n, row, &size) && rapti_mul(size, bytes, &size) && rapti_add(size, 63, &size) &&
          rapti_add(at, size & ~INT64_C(63), &l->at);
  return (size_t)at;
}

static bool lay_out(rapti_cpu_call *c, int64_t width, int64_t lanes) {
  const int64_t keys = c->pack_head ? c->Skv : min64(c->block, c->Skv);
  const int64_t key_rows = divide_up(keys, RAPTI_KEY_TILE) * RAPTI_KEY_TILE;
  const int64_t block_keys = divide_up(min64(c->block, c->Skv), RAPTI_KEY_TILE) * RAPTI_KEY_TILE;
  const int64_t longest = max64(max64(c->D, c->dv_pad), block_keys);
  layout l = {0, true};
  if (c->few_rows) {
    c->q_at = reserve(&l, RAPTI_FEW_ROWS, c->D, 4);
    c->few_row = block_keys + 2 * lanes;
    c->o_at = reserve(&l, 2 * RAPTI_FEW_ROWS, divide_up(c->Dv, lanes) * lanes, 4);
    c->s_at = reserve(&l, RAPTI_FEW_ROWS, c->few_row, 4);
    c->t_at = reserve(&l, c->mask.dtype || c->bias.dtype ? RAPTI_FEW_ROWS : 0, c->few_row, 4);
  } else {
    c->k_at = reserve(&l, key_rows, c->D, 4);
    c->v_at = reserve(&l, keys, c->dv_pad, 4);
    c->flags_at = reserve(&l, c->pack_head ? c->blocks : 1, 1, 1);
    c->q_at = reserve(&l, c->chunk_panels * width, c->D, 4);
    c->o_at = reserve(&l, (c->chunk_panels + 1) * width, c->dv_pad, 4);   /* one more: see body/tile.inc.c, rescue */
    c->s_at = reserve(&l, block_keys, width, 4);
    c->t_at = reserve(&l, c->mask.dtype || c->bias.dtype ? block_keys : 0, width, 4);
  }
  c->fetch_row = longest + lanes;
  c->fetch_at = reserve(&l, c->few_rows ? 2 * lanes : lanes, c->fetch_row, 4);
  c->panels_at = reserve(&l, c->few_rows ? 1 : c->chunk_panels, 1, sizeof(rapti_panel));
  c->thread_bytes = (size_t)l.at;
  return l.ok;
}

static uint32_t threads_for(const rapti_cpu_call *c, uint32_t max_threads) {
  const double heads = (double)c->B * (double)c->Hkv, items = heads * (double)c->chunks;
  const double work = heads * (double)c->rows * (double)c->Skv * ((double)c->D + (double)c->Dv);
  double n = fmin((double)max_threads, fmin(items, work / work_per_thread));
  return n < 1 ? 1 : (uint32_t)n;
}

/* A packed head costs little where its rows fill several chunks, and nothing is gained where they fill one. */
static void choose_chunks(rapti_cpu_call *c, int64_t width) {
  const double head_bytes = 4.0 * (double)c->Skv * ((double)c->D + (double)c->Dv);
  const bool fits = head_bytes <= packed_head_limit;
  const int64_t chunk = (fits ? CHUNK_ROWS : LONG_CHUNK_ROWS) / width;
  c->panels = divide_up(c->rows, width);
  c->chunk_panels = max64(1, min64(c->panels, chunk));
  c->chunks = divide_up(c->panels, c->chunk_panels);
  c->pack_head = fits && c->chunks > 1;
}

bool rapti_cpu_shape(const rapt_problem *p, int64_t width, int64_t lanes, uint32_t max_threads, rapti_cpu_call *c,
                     size_t *workspace) {
  memset(c, 0, sizeof *c);
  c->B = p->B, c->Hq = p->Hq, c->Hkv = p->Hkv, c->Sq = p->Sq, c->Skv = p->Skv, c->D = p->D, c->Dv = p->Dv;
  *workspace = 0;
  if (p->B == 0 || p->Hq == 0 || p->Sq == 0) return true;   /* nothing to write (S6) */
  c->group = p->Hq / p->Hkv;
  c->q = input_of(&p->q, p->B, p->Hq, p->Sq, p->D);
  c->k = input_of(&p->k, p->B, p->Hkv, p->Skv, p->D);
  c->v = input_of(&p->v, p->B, p->Hkv, p->Skv, p->Dv);
  c->mask = broadcast_of(&p->mask);
  c->bias = broadcast_of(&p->bias);
  c->out = output_of(&p->out, p->B, p->Hq, p->Sq, p->Dv);
  c->lse = p->flags & RAPT_WANT_LSE ? output_of(&p->lse, p->B, p->Hq, p->Sq, 1) : (rapti_out){0};
  c->scale = (float)p->scale;
  c->alignment = p->alignment, c->q_len_dtype = p->q_len, c->kv_len_dtype = p->kv_len, c->offset = p->q_offset;
  c->left = p->has & RAPT_HAS_WINDOW ? p->window[0] : -1;
  c->right = p->flags & RAPT_CAUSAL ? 0 : p->has & RAPT_HAS_WINDOW ? p->window[1] : -1;   /* M6: causal caps R at 0 */
  c->positional = c->left >= 0 || c->right >= 0;
  c->block = block_of(c->D, c->Dv);
  c->blocks = divide_up(c->Skv, c->block);
  c->dv_pad = divide_up(c->Dv, RAPTI_KEY_TILE) * RAPTI_KEY_TILE;
  int64_t heads = 0, counters = 0, total = 0;
  if (!rapti_cpu_rows(p, &c->rows) || !rapti_mul(c->B, c->Hkv, &heads)) return false;
  c->few_rows = rapti_cpu_few_rows(p);
  choose_chunks(c, width);
  if (!lay_out(c, width, lanes)) return false;
  c->threads = threads_for(c, max_threads);
  if (c->threads > 1 && (!rapti_add(heads, 1, &counters) || !rapti_mul(counters, 8, &counters))) return false;
  counters = (int64_t)rapti_align64((size_t)counters);
  if (!rapti_mul((int64_t)c->thread_bytes, c->threads, &total) || !rapti_add(total, counters, &total)) return false;
  *workspace = (size_t)total;
  return true;
}

void rapti_cpu_bind(const rapt_problem *p, const rapt_buffers *b, void *workspace, rapti_cpu_call *c) {
  c->q.base = b->q, c->k.base = b->k, c->v.base = b->v, c->mask.base = b->mask, c->bias.base = b->bias;
  c->out.base = b->out, c->lse.base = b->lse;
  c->q_len = b->q_len, c->kv_len = b->kv_len, c->offsets = b->q_offset;
  const size_t counters = c->threads > 1 ? rapti_align64((size_t)(p->B * p->Hkv + 1) * 8) : 0;
  c->counters = workspace;
  c->scratch = (char *)workspace + counters;
}

/* ---- Visible ranges ---- */

/* Device-resident lengths are never trusted (M7); here they are ordinary memory. */
static int64_t length_of(const void *array, int32_t dtype, int64_t b, int64_t size) {
  if (!dtype) return size;
  const int64_t n = dtype == RAPT_INT32 ? ((const int32_t *)array)[b] : ((const int64_t *)array)[b];
  return n < 0 ? 0 : min64(n, size);
}

static int64_t add_saturated(int64_t a, int64_t b) {
  int64_t r;
  return rapti_add(a, b, &r) ? r : a < 0 ? INT64_MIN : INT64_MAX;
}

void rapti_cpu_visible(const rapti_cpu_call *c, int64_t b, int64_t i, int64_t *lo, int64_t *hi) {
  const int64_t limit = INT64_C(1) << 62;   /* of offsets (M2) */
  const int64_t q_len = length_of(c->q_len, c->q_len_dtype, b, c->Sq);
  const int64_t kv_len = length_of(c->kv_len, c->kv_len_dtype, b, c->Skv);
  *lo = 0;
  *hi = i < q_len ? kv_len - 1 : -1;
  if (!c->positional || *hi < 0) return;
  int64_t off = 0;
  if (c->alignment == RAPT_BOTTOM_RIGHT) off = kv_len - q_len;
  if (c->alignment == RAPT_OFFSET) off = c->offset;
  if (c->alignment == RAPT_OFFSET_ARRAY) off = c->offsets[b];
  off = max64(-limit, min64(off, limit));
  const int64_t position = add_saturated(off, i);
  if (c->left >= 0) *lo = max64(0, add_saturated(position, -c->left));
  if (c->right >= 0) *hi = min64(*hi, add_saturated(position, c->right));
}

void rapti_cpu_panel(const rapti_cpu_call *c, int64_t b, int64_t first, int64_t width, int64_t lanes, rapti_panel *panel) {
  panel->first = first;
  panel->rows = (int32_t)min64(width, c->rows - first);
  panel->vectors = (int32_t)divide_up(panel->rows, lanes);
  panel->any_lo = panel->all_hi = INT64_MAX;
  panel->any_hi = panel->all_lo = -1;
  for (int64_t x = 0; x < panel->vectors * lanes; x++) {
    const int64_t row = first + min64(x, panel->rows - 1);
    int64_t lo, hi;
    rapti_cpu_visible(c, b, row % c->Sq, &lo, &hi);
    panel->lo[x] = lo;
    panel->hi[x] = hi;
    panel->m[x] = -INFINITY;
    panel->l[x] = 0;
    if (lo > hi) continue;
    panel->any_lo = min64(panel->any_lo, lo);
    panel->any_hi = max64(panel->any_hi, hi);
    panel->all_lo = max64(panel->all_lo, lo);
    panel->all_hi = min64(panel->all_hi, hi);
  }
}
