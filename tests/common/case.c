/* SPDX-License-Identifier: Apache-2.0 */
#include "common/case.h"

#include "common/cm.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t hash(const char *s) {
  uint64_t h = 0xcbf29ce484222325u;
  for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
  return h;
}

static void make(tc_tensor *t, const rapt_problem *p, int field, int place) {
  const rapt_desc *d = rapti_desc(p, field);
  int64_t size[4];
  rapti_tensor_sizes(p, field, size);
  tc_tensor_make(t, d->dtype, size, d->stride, (tc_place)place);
}

static void make_list(tc_tensor *t, int dtype, int64_t n, int place) {
  const int64_t size[4] = {1, 1, 1, n}, stride[4] = {n, n, n, 1};
  if (dtype) tc_tensor_make(t, dtype, size, stride, (tc_place)place);
}

static void fill_operand(tc_tensor *t, tc_rng *r, double amplitude, bool unit) {
  for (int64_t n = 0, count = tc_count(t); n < count; n++)
    tc_set_nth(t, n, amplitude * (unit ? tc_unit(r) : 2 * tc_unit(r) - 1));
}

static void fill_one_hot(tc_tensor *v, tc_rng *r) {
  for (int64_t n = 0, count = tc_count(v), dv = v->size[3]; n < count; n++)
    tc_set_nth(v, n, n % dv == n / dv % dv ? 0.5 + tc_unit(r) : 0);
}

static void fill_mask(tc_tensor *mask, tc_rng *r, double keep) {
  for (int64_t n = 0, count = tc_count(mask); n < count; n++)   /* any nonzero byte is true (M8) */
    tc_set_nth(mask, n, tc_unit(r) < keep ? (double)(1 + tc_below(r, 255)) : 0);
}

static void fill_bias(tc_tensor *bias, tc_rng *r, bool finite) {
  for (int64_t n = 0, count = tc_count(bias); n < count; n++)
    tc_set_nth(bias, n, !finite && tc_unit(r) < 0.2 ? -INFINITY : 4 * tc_unit(r) - 2);
}

static void fill_lengths(tc_tensor *t, tc_rng *r, int64_t size, bool full) {
  for (int64_t n = 0, count = t->base ? tc_count(t) : 0; n < count; n++)
    tc_set_nth(t, n, (double)(full ? size : tc_below(r, size + 1)));
}

static void fill_all(tc_case *c, const tc_fill *f, tc_rng *r) {
  const rapt_problem *p = &c->r.cast;
  double amplitude = f->amplitude != 0 ? f->amplitude : 1;
  fill_operand(&c->q, r, amplitude, f->unit);
  fill_operand(&c->k, r, amplitude, f->unit);
  fill_operand(&c->v, r, 1, f->unit);
  if (f->one_hot) fill_one_hot(&c->v, r);
  if (c->mask.base) fill_mask(&c->mask, r, f->keep != 0 ? f->keep : 0.7);
  if (c->bias.base) fill_bias(&c->bias, r, f->finite_bias);
  fill_lengths(&c->q_len, r, p->Sq, f->full_lengths);
  fill_lengths(&c->kv_len, r, p->Skv, f->full_lengths);
  for (int64_t n = 0; c->q_offset.base && n < p->B; n++)
    tc_set_nth(&c->q_offset, n, (double)(tc_below(r, p->Skv + 3) - 2));
}

static void point_buffers(tc_case *c) {
  rapt_buffers b = {.struct_size = sizeof b};
  b.q = c->q.base;
  b.k = c->k.base;
  b.v = c->v.base;
  b.mask = c->mask.base;
  b.bias = c->bias.base;
  b.q_len = c->q_len.base;
  b.kv_len = c->kv_len.base;
  b.q_offset = c->q_offset.base;
  b.out = c->out.base;
  b.lse = c->lse.base;
  c->b = b;
}

static void parse(tc_case *c) {
  rapt_reason why = {.struct_size = sizeof why};
  char names[512], text[512];
  c->p.struct_size = sizeof c->p;
  rapt_status st = rapt_problem_parse(c->text, strlen(c->text), &c->p, names, sizeof names, &why);
  c->p.require = c->p.prefer = c->p.forbid = NULL;   /* the runner sets them */
  if (st == RAPT_OK) st = rapti_request_make(&c->p, &c->r, &why);
  if (st == RAPT_OK) return;
  rapt_reason_format(&why, NULL, NULL, text, sizeof text);
  fail_msg("%s: %s", c->text, text);
}

tc_case *tc_case_new(const char *problem, const tc_fill *fill) {
  tc_fill f = fill ? *fill : (tc_fill){0};
  tc_case *c = calloc(1, sizeof *c);
  assert_non_null(c);
  snprintf(c->text, sizeof c->text, "%s", problem);
  parse(c);
  const rapt_problem *p = &c->r.cast;
  tc_rng r = {f.seed ? f.seed * 0x9e3779b97f4a7c15u + 1 : hash(c->text)};
  tc_next(&r);
  int place = f.place ? f.place - 1 : (int)tc_below(&r, 3);
  make(&c->q, p, RAPT_FIELD_Q, place);
  make(&c->k, p, RAPT_FIELD_K, (place + 1) % 3);
  make(&c->v, p, RAPT_FIELD_V, place);
  if (p->mask.dtype) make(&c->mask, p, RAPT_FIELD_MASK, place);
  if (p->bias.dtype) make(&c->bias, p, RAPT_FIELD_BIAS, (place + 1) % 3);
  make(&c->out, p, RAPT_FIELD_OUT, place);
  if (p->flags & RAPT_WANT_LSE) make(&c->lse, p, RAPT_FIELD_LSE, place);
  make_list(&c->q_len, p->q_len, p->B, place);
  make_list(&c->kv_len, p->kv_len, p->B, place);
  make_list(&c->q_offset, p->alignment == RAPT_OFFSET_ARRAY ? RAPT_INT64 : RAPT_NONE, p->B, place);
  fill_all(c, &f, &r);
  point_buffers(c);
  return c;
}

void tc_case_free(tc_case *c) {
  if (!c) return;
  tc_tensor *all[] = {&c->q, &c->k, &c->v, &c->mask, &c->bias, &c->q_len, &c->kv_len, &c->q_offset, &c->out, &c->lse};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tc_tensor_free(all[i]);
  free(c);
}

static void copy(tc_tensor *to, const tc_tensor *from) {
  if (!to->base) return;
  assert_non_null(from->base);
  int64_t n = 0;
  tc_read_only(to, false);
  for (int64_t a = 0; a < to->size[0]; a++)
    for (int64_t b = 0; b < to->size[1]; b++)
      for (int64_t c = 0; c < to->size[2]; c++)
        for (int64_t d = 0; d < to->size[3]; d++, n++)   /* an axis of 1 in `from` stands for every index */
          memcpy(tc_at(to, a, b, c, d), tc_at(from, from->size[0] > 1 ? a : 0, from->size[1] > 1 ? b : 0,
                                              from->size[2] > 1 ? c : 0, from->size[3] > 1 ? d : 0), to->element);
}

void tc_case_copy(tc_case *to, const tc_case *from) {
  copy(&to->q, &from->q);
  copy(&to->k, &from->k);
  copy(&to->v, &from->v);
  copy(&to->mask, &from->mask);
  copy(&to->bias, &from->bias);
  copy(&to->q_len, &from->q_len);
  copy(&to->kv_len, &from->kv_len);
  copy(&to->q_offset, &from->q_offset);
}

/* ---- Visibility ---- */

static int64_t list_value(const tc_tensor *t, int64_t b, int64_t absent) {
  return t->base ? (int64_t)tc_get(t, 0, 0, 0, b) : absent;
}

static double broadcast(const tc_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j) {
  return tc_get(t, t->size[0] == 1 ? 0 : b, t->size[1] == 1 ? 0 : h, t->size[2] == 1 ? 0 : i, t->size[3] == 1 ? 0 : j);
}

/* Without what bias says. The positions are compared as intervals of keys, in 128 bits. */
static bool visible_but_for_bias(const tc_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
  __extension__ typedef __int128 wide;
  const rapt_problem *p = &c->r.cast;
  int64_t q_len = list_value(&c->q_len, b, p->Sq), kv_len = list_value(&c->kv_len, b, p->Skv);
  wide position = i, first = 0, last = (wide)kv_len - 1;
  if (p->alignment == RAPT_BOTTOM_RIGHT) position += kv_len - q_len;
  if (p->alignment == RAPT_OFFSET) position += p->q_offset;
  if (p->alignment == RAPT_OFFSET_ARRAY) position += *(const int64_t *)(const void *)tc_at(&c->q_offset, 0, 0, 0, b);
  bool has_window = p->has & RAPT_HAS_WINDOW;
  if (has_window && p->window[0] != -1 && position - p->window[0] > first) first = position - p->window[0];
  if (has_window && p->window[1] != -1 && position + p->window[1] < last) last = position + p->window[1];
  if ((p->flags & RAPT_CAUSAL) && position < last) last = position;
  if (i >= q_len || j < first || j > last) return false;
  return !c->mask.base || broadcast(&c->mask, b, h, i, j) != 0;
}

bool tc_visible(const tc_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
  return visible_but_for_bias(c, b, h, i, j) && !(c->bias.base && broadcast(&c->bias, b, h, i, j) == -INFINITY);
}

/* ---- Poison ---- */

typedef struct seen {       /* what the rows of interest see */
  bool *q, *k, *bias;       /* by (b,h,i), (b,h_kv,j), element of bias */
} seen;

static void mark_row(const tc_case *c, seen *s, int64_t b, int64_t h, int64_t i) {
  const rapt_problem *p = &c->r.cast;
  const tc_tensor *t = &c->bias;
  for (int64_t j = 0; j < p->Skv; j++) {
    if (!visible_but_for_bias(c, b, h, i, j)) continue;
    if (t->base) {
      int64_t at = t->size[0] == 1 ? 0 : b;
      at = at * t->size[1] + (t->size[1] == 1 ? 0 : h);
      at = at * t->size[2] + (t->size[2] == 1 ? 0 : i);
      s->bias[at * t->size[3] + (t->size[3] == 1 ? 0 : j)] = true;
    }
    if (!tc_visible(c, b, h, i, j)) continue;
    s->q[(b * p->Hq + h) * p->Sq + i] = true;
    s->k[(b * p->Hkv + h / (p->Hq / p->Hkv)) * p->Skv + j] = true;
  }
}

static void poison_rows(tc_tensor *t, const bool *keep, uint64_t seed) {
  static const double poison[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
  tc_rng r = {seed * 0x9e3779b97f4a7c15u + 7};
  for (int64_t n = 0, count = tc_count(t); n < count; n++)
    if (!keep[n / t->size[3]]) tc_set_nth(t, n, poison[tc_below(&r, 4)]);
}

static void poison(tc_case *c, uint64_t seed, const int64_t *only) {
  const rapt_problem *p = &c->r.cast;
  seen s = {calloc((size_t)(p->B * p->Hq * p->Sq) + 1, 1), calloc((size_t)(p->B * p->Hkv * p->Skv) + 1, 1), NULL};
  s.bias = calloc(c->bias.base ? (size_t)tc_count(&c->bias) + 1 : 1, 1);
  for (int64_t n = 0; n < p->B * p->Hq * p->Sq; n++)
    if (!only || n == *only) mark_row(c, &s, n / p->Sq / p->Hq, n / p->Sq % p->Hq, n % p->Sq);
  tc_read_only(&c->q, false);
  tc_read_only(&c->k, false);
  tc_read_only(&c->v, false);
  tc_read_only(&c->bias, false);
  poison_rows(&c->q, s.q, seed);
  poison_rows(&c->k, s.k, seed + 1);
  poison_rows(&c->v, s.k, seed + 2);
  tc_rng r = {seed + 3};
  for (int64_t n = 0, count = c->bias.base ? tc_count(&c->bias) : 0; n < count; n++)
    if (!s.bias[n]) tc_set_nth(&c->bias, n, tc_below(&r, 2) ? NAN : INFINITY);
  free(s.q);
  free(s.k);
  free(s.bias);
}

void tc_poison_for_row(tc_case *c, int64_t b, int64_t h, int64_t i, uint64_t seed) {
  const rapt_problem *p = &c->r.cast;
  int64_t only = (b * p->Hq + h) * p->Sq + i;
  poison(c, seed, &only);
}

void tc_poison_unseen(tc_case *c, uint64_t seed) { poison(c, seed, NULL); }
