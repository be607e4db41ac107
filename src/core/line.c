/* SPDX-License-Identifier: Apache-2.0 */
/* The qualified line of a site (R4): which backend a problem family gets, on which devices and dtypes, and what the
 * others get. Nothing is loaded or run. */
#include "core/ctx.h"

#include <string.h>

enum { MAX_DEVICES = RAPT_META + 1, MAX_DTYPES = RAPT_FP8E5M2 };

typedef struct line {
  const rapti_registry *g;
  rapti_policy policy;
  int n_devices, n_dtypes;
  int device[MAX_DEVICES], dtype[MAX_DTYPES];
  const char *display[MAX_DEVICES][MAX_DTYPES];   /* of the chosen row; NULL: none, or not for certain */
  bool refused, undecided;
  const char *head;
  uint32_t head_key[3];                           /* prefer name, device, rank: the smallest is the head */
} line;

static rapt_status bad_list(const char *text, const char *at, const char *want, rapt_reason *why) {
  rapti_syntax(why, RAPT_FIELD_TEXT, text, strlen(text), (size_t)(at - text), want);
  return RAPT_ARG;
}

/* Comma separated names to values; one named twice counts once. */
static rapt_status parse_list(const char *text, int (*find)(const char *, size_t), const char *want, int *values, int *n,
                              rapt_reason *why) {
  *n = 0;
  for (const char *s = text;; s++) {
    size_t len = strcspn(s, ",");
    int value = find(s, len), i = 0;
    if (value < 0) return bad_list(text, s, want, why);
    while (i < *n && values[i] != value) i++;
    if (i == *n) values[(*n)++] = value;
    s += len;
    if (*s == '\0') return RAPT_OK;
  }
}

static int find_float(const char *s, size_t n) {
  int dtype = rapti_dtype_find(s, n);
  return rapti_dtype_is_float(dtype) ? dtype : -1;
}

static uint32_t rank_of(const rapti_registry *g, uint32_t row) {
  uint32_t rank = 0;
  for (uint32_t at = g->first_ranked; at && at - 1 != row; at = g->rows[at - 1].next_ranked) rank++;
  return rank;
}

/* The head is the row that prefer, else ranking in the order of the devices, puts first. */
static void offer_head(line *l, uint32_t row, const rapti_request *r, uint32_t device) {
  uint32_t key[3] = {rapti_prefer_rank(l->g, row, r, &l->policy), device, rank_of(l->g, row)};
  int at = 0;
  while (at < 2 && key[at] == l->head_key[at]) at++;
  if (l->head && key[at] >= l->head_key[at]) return;
  memcpy(l->head_key, key, sizeof key);
  l->head = l->g->rows[row].row.display;
}

static rapt_status decide_pair(line *l, const rapt_problem *family, int device, int dtype, rapt_reason *why) {
  rapt_problem p = *family;
  rapti_request r;
  rapti_choice choice;
  p.q.dtype = p.k.dtype = p.v.dtype = l->dtype[dtype];
  p.device = l->device[device];
  /* Where autocast speaks of the family's device it speaks of the tensors'. */
  if (p.has & RAPT_HAS_AUTOCAST && family->autocast_device == family->device) p.autocast_device = p.device;
  rapt_status st = rapti_request_make(&p, &r, why);
  if (st != RAPT_OK) return st;
  rapti_select(l->g, &r, &l->policy, NULL, &choice);
  if (choice.undecided) l->undecided = true;      /* a better row may come with more facts: no name is certain */
  else if (choice.row < 0) l->refused = true;
  if (choice.undecided || choice.row < 0) return RAPT_OK;
  uint32_t row = (uint32_t)choice.row;
  l->display[device][dtype] = l->g->rows[row].row.display;
  offer_head(l, row, &r, (uint32_t)device);
  return RAPT_OK;
}

/* ---- Text ---- */

static bool is_head(const line *l, int device, int dtype) {
  const char *display = l->display[device][dtype];
  return display && strcmp(display, l->head) == 0;
}

/* Bits of the dtypes that give the head on this device. */
static uint32_t head_dtypes(const line *l, int device) {
  uint32_t mask = 0;
  for (int j = 0; j < l->n_dtypes; j++) mask |= (uint32_t)is_head(l, device, j) << j;
  return mask;
}

static void put_kind(rapti_text *t, int kind) {
  for (const char *s = rapti_kind_name(kind); *s; s++) rapti_text_putc(t, (char)(*s >= 'a' && *s <= 'z' ? *s - 32 : *s));
}

/* "CUDA fp16/bf16", devices with the same dtypes together; either part is left out where it restricts nothing. */
static void put_where(rapti_text *t, const line *l) {
  const uint32_t every = (1u << l->n_dtypes) - 1u;
  bool all_devices = true;
  for (int i = 1; i < l->n_devices; i++) all_devices = all_devices && head_dtypes(l, i) == head_dtypes(l, 0);
  uint32_t done = 0;
  for (int i = 0; i < l->n_devices; i++) {
    uint32_t mask = head_dtypes(l, i);
    if (!mask || done >> i & 1u) continue;
    if (done) rapti_text_put(t, ", ");
    for (int k = i, first = 1; k < l->n_devices; k++) {
      if (head_dtypes(l, k) != mask) continue;
      done |= 1u << k;
      if (all_devices) continue;
      if (!first) rapti_text_putc(t, '/');
      put_kind(t, l->device[k]);
      first = 0;
    }
    if (mask == every) continue;
    if (!all_devices) rapti_text_putc(t, ' ');
    for (int j = 0, first = 1; j < l->n_dtypes; j++) {
      if (!(mask >> j & 1u)) continue;
      if (!first) rapti_text_putc(t, '/');
      rapti_text_put(t, rapt_dtype_name(l->dtype[j]));
      first = 0;
    }
  }
}

static void put_or(rapti_text *t, const char *name, bool *any) {
  if (*any) rapti_text_put(t, " or ");
  rapti_text_put(t, name);
  *any = true;
}

/* What the other pairs get, in their order, then refused, then undecided. */
static bool put_others(rapti_text *t, const line *l) {
  const char *seen[MAX_DEVICES * MAX_DTYPES];
  int n = 0;
  bool any = false;
  for (int i = 0; i < l->n_devices; i++)
    for (int j = 0; j < l->n_dtypes; j++) {
      const char *display = l->display[i][j];
      if (!display || is_head(l, i, j)) continue;
      int k = 0;
      while (k < n && strcmp(seen[k], display) != 0) k++;
      if (k < n) continue;
      seen[n++] = display;
      put_or(t, display, &any);
    }
  if (l->refused) put_or(t, "refused", &any);
  if (l->undecided) put_or(t, "undecided", &any);
  return any;
}

static bool all_head(const line *l) {
  for (int i = 0; i < l->n_devices; i++)
    if (head_dtypes(l, i) != (1u << l->n_dtypes) - 1u) return false;
  return true;
}

static void put_line(rapti_text *t, const line *l) {
  if (!l->head) {
    put_others(t, l);
    return;
  }
  rapti_text_put(t, l->head);
  if (all_head(l)) return;
  rapti_text_put(t, " (");
  put_where(t, l);
  rapti_text_put(t, " only; ");
  put_others(t, l);
  rapti_text_put(t, " otherwise)");
}

rapt_status rapti_line(const rapti_registry *g, const rapti_settings levels[RAPTI_LEVELS], uint32_t threads, int32_t isa,
                       const rapt_problem *family, const char *dtypes, const char *devices, char *buf, size_t n,
                       size_t *len, int *undecided, rapt_reason *why) {
  line l;
  rapti_settings all[RAPTI_LEVELS];
  memset(&l, 0, sizeof l);
  l.g = g;
  memcpy(all, levels, sizeof all);
  all[RAPTI_CALL] = (rapti_settings){.require = family->require, .prefer = family->prefer, .forbid = family->forbid,
                                     .memory_limit = family->memory_limit,
                                     .has_memory_limit = (family->has & RAPT_HAS_MEMORY_LIMIT) != 0};
  rapt_status st = parse_list(dtypes ? dtypes : "fp16,bf16,fp32", find_float, "a floating dtype", l.dtype, &l.n_dtypes, why);
  if (st == RAPT_OK)
    st = parse_list(devices ? devices : "cpu,cuda", rapti_kind_find, "a device kind", l.device, &l.n_devices, why);
  if (st == RAPT_OK) st = rapti_policy_make(all, g, family->origin, &l.policy, why);
  l.policy.threads = threads;
  l.policy.isa = isa;
  for (int i = 0; i < l.n_devices && st == RAPT_OK; i++)
    for (int j = 0; j < l.n_dtypes && st == RAPT_OK; j++) st = decide_pair(&l, family, i, j, why);
  if (st != RAPT_OK) return st;
  rapti_text t = rapti_text_begin(buf, n);
  put_line(&t, &l);
  size_t full = rapti_text_end(&t);
  if (len) *len = full;
  if (undecided) *undecided = l.undecided;
  return RAPT_OK;
}

rapt_status rapt_line_format(rapt_ctx *ctx, const rapt_problem *family, const char *dtypes, const char *devices,
                             char *buf, size_t n, size_t *len, int *undecided, rapt_reason *why) {
  if (!ctx || !family) {
    rapti_reason_set(why, RAPT_CODE_NULL, ctx ? RAPT_FIELD_PROBLEM : RAPT_FIELD_CTX, -1, -1);
    return RAPT_ARG;
  }
  rapt_status st = rapti_struct_check(family, sizeof *family, "rapt_problem", why);
  if (st != RAPT_OK) return st;
  rapti_registry *g = rapti_registry_get(ctx);
  st = rapti_line(g, ctx->levels, ctx->threads, ctx->isa, family, dtypes, devices, buf, n, len, undecided, why);
  rapti_registry_unref(ctx, g);
  return st;
}
