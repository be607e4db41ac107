/* SPDX-License-Identifier: Apache-2.0 */
#include "common/oracle.h"

#include "common/cm.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef long double real;

/* Dense copies of the logical values, and one row's scratch. */
typedef struct work {
  const tc_case *c;
  double *q, *k, *v;      /* [B,Hq,Sq,D], [B,Hkv,Skv,D], [B,Hkv,Skv,Dv] */
  real *l, *weight;       /* [Skv] */
  double *error, *product, *bias, *flushed;   /* [Skv], for E_i */
  bool *visible;
  double u, acc_max, scale;
  bool wide;
} work;

static double *dense(const tc_tensor *t) {
  int64_t count = tc_count(t);
  double *all = malloc(((size_t)count + 1) * sizeof *all);
  assert_non_null(all);
  for (int64_t n = 0; n < count; n++) all[n] = tc_get_nth(t, n);
  return all;
}

typedef struct product { real dot; double absolute, flushed; bool finite; } product;

/* Four lanes, so that the sums do not wait for each other. */
static product multiply(const double *x, const double *y, int64_t n) {
  real sum[4] = {0, 0, 0, 0};
  double absolute[4] = {0, 0, 0, 0}, flushed[4] = {0, 0, 0, 0}, probe = 0;
  for (int64_t d = 0; d < n; d++) {
    sum[d & 3] += (real)x[d] * y[d];
    absolute[d & 3] += fabs(x[d] * y[d]);
    flushed[d & 3] += fabs(x[d]) + fabs(y[d]);
    probe += 0 * x[d] + 0 * y[d];   /* NaN as soon as one is not finite */
  }
  product p = {sum[0] + sum[1] + sum[2] + sum[3], absolute[0] + absolute[1] + absolute[2] + absolute[3],
               flushed[0] + flushed[1] + flushed[2] + flushed[3], probe == 0};
  return p;
}

static double bias_at(const tc_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
  const tc_tensor *t = &c->bias;
  if (!t->base) return 0;
  return tc_get(t, t->size[0] > 1 ? b : 0, t->size[1] > 1 ? h : 0, t->size[2] > 1 ? i : 0, t->size[3] > 1 ? j : 0);
}

/* Logits of the visible keys and the per-key error of N12; marks overflow of acc (N2). */
static void find_logits(work *w, tc_row *row, int64_t b, int64_t h, int64_t i) {
  const rapt_problem *p = &w->c->r.cast;
  int64_t kv = b * p->Hkv + h / (p->Hq / p->Hkv);
  const double *q = w->q + ((b * p->Hq + h) * p->Sq + i) * p->D;
  for (int64_t j = 0; j < p->Skv; j++) {
    w->visible[j] = tc_visible(w->c, b, h, i, j);
    if (!w->visible[j]) continue;
    product x = multiply(q, w->k + (kv * p->Skv + j) * p->D, p->D);
    w->bias[j] = bias_at(w->c, b, h, i, j);
    w->l[j] = (real)w->scale * x.dot + w->bias[j];
    w->product[j] = fabs(w->scale) * x.absolute;
    w->flushed[j] = fabs(w->scale) * x.flushed;
    w->error[j] = tc_gamma((double)p->D + 8, w->u) * w->product[j] + 8 * w->u * fabs(w->bias[j]);
    bool finite = x.finite && isfinite(w->bias[j]);
    double most = fmax(fmax(x.absolute, w->product[j]), fmax(fabs((double)w->l[j]), w->product[j] + fabs(w->bias[j])));
    if (finite && !(most <= w->acc_max)) row->skipped = 1;
    row->n++;
  }
}

static bool one_number(const work *w) {
  bool first = true;
  double value = 0;
  for (int64_t j = 0; j < w->c->r.cast.Skv; j++) {
    if (!w->visible[j]) continue;
    double l = w->wide ? (double)w->l[j] : (double)(float)w->l[j];
    if (!first && l != value) return false;
    value = l;
    first = false;
  }
  return true;
}

/* E_i; least: keys below it cannot carry weight and do not count. */
static double largest_error(const work *w, double least, double *flushed) {
  double product = 0, bias = 0;
  *flushed = 0;
  for (int64_t j = 0; j < w->c->r.cast.Skv; j++) {
    if (!w->visible[j] || !isfinite((double)w->l[j]) || (double)w->l[j] + 2 * w->error[j] < least) continue;
    product = fmax(product, w->product[j]);
    bias = fmax(bias, fabs(w->bias[j]));
    *flushed = fmax(*flushed, w->flushed[j]);
  }
  return tc_gamma((double)w->c->r.cast.D + 8, w->u) * product + 8 * w->u * bias;
}

static void find_error(const work *w, tc_row *row, real largest) {
  row->E = largest_error(w, -INFINITY, &row->flushed_qk);
  if (row->E <= 1.0 / 16) return;
  row->E = one_number(w) ? 0 : largest_error(w, (double)largest - 120, &row->flushed_qk);
}

static void weigh(work *w, tc_oracle *o, int64_t at, int64_t b, int64_t h) {
  const rapt_problem *p = &w->c->r.cast;
  const double *v = w->v + (b * p->Hkv + h / (p->Hq / p->Hkv)) * p->Skv * p->Dv;
  for (int64_t d = 0; d < p->Dv; d++) {
    real out = 0, A = 0;
    double V = 0, flushed = 0;
    unsigned char expect = TC_FINITE;
    for (int64_t j = 0; j < p->Skv; j++) {
      if (!w->visible[j]) continue;
      double x = v[j * p->Dv + d];
      if (!isfinite(x)) {   /* where the weight is surely not rounded to 0 the output cannot be finite (N10) */
        bool weighs = w->weight[j] > 0x1p-20L;
        if (weighs) expect = TC_NONFINITE;
        else if (expect == TC_FINITE) expect = TC_ANY;
        continue;
      }
      out += w->weight[j] * x;
      A += w->weight[j] * fabsl(x);
      V = fmax(V, fabs(x));
      flushed += (double)w->weight[j] + fabs(x);
    }
    int64_t e = at * p->Dv + d;
    o->out[e] = (double)out;
    o->A[e] = (double)A;
    o->V[e] = V;
    o->flushed_pv[e] = flushed;
    o->expect[e] = expect;
  }
}

static void expect_all(tc_oracle *o, int64_t at, tc_expect out, tc_expect lse, double lse_value) {
  for (int64_t d = 0; d < o->Dv; d++) o->expect[at * o->Dv + d] = (unsigned char)out;
  o->row[at].lse_expect = (unsigned char)lse;
  o->row[at].lse = lse_value;
}

static void run_row(work *w, tc_oracle *o, int64_t at) {
  const rapt_problem *p = &w->c->r.cast;
  int64_t i = at % p->Sq, h = at / p->Sq % p->Hq, b = at / p->Sq / p->Hq;
  tc_row *row = &o->row[at];
  find_logits(w, row, b, h, i);
  real largest = -INFINITY, Z = 0;
  bool nan = false;
  for (int64_t j = 0; j < p->Skv; j++) {
    if (!w->visible[j]) continue;
    nan |= isnan(w->l[j]);
    if (w->l[j] > largest) largest = w->l[j];
  }
  row->plus_inf = largest == INFINITY;
  if (row->skipped) { expect_all(o, at, TC_ANY, TC_ANY, 0); return; }
  if (nan || row->plus_inf) { expect_all(o, at, TC_NAN, TC_NAN, NAN); return; }
  if (largest == -INFINITY) { expect_all(o, at, TC_ZERO, TC_ZERO, -INFINITY); return; }
  for (int64_t j = 0; j < p->Skv; j++)
    if (w->visible[j]) Z += w->weight[j] = expl(w->l[j] - largest);
  for (int64_t j = 0; j < p->Skv; j++)
    if (w->visible[j]) w->weight[j] /= Z;
  row->lse = (double)(largest + logl(Z));
  find_error(w, row, largest);
  weigh(w, o, at, b, h);
}

tc_oracle *tc_oracle_new(const tc_case *c) {
  const rapt_problem *p = &c->r.cast;
  tc_oracle *o = calloc(1, sizeof *o);
  assert_non_null(o);
  o->rows = p->B * p->Hq * p->Sq;
  o->Dv = p->Dv;
  size_t rows = (size_t)o->rows + 1, all = (size_t)(o->rows * o->Dv) + 1, keys = (size_t)p->Skv + 1;
  o->row = calloc(rows, sizeof *o->row);
  o->out = calloc(all, sizeof(double));
  o->A = calloc(all, sizeof(double));
  o->V = calloc(all, sizeof(double));
  o->flushed_pv = calloc(all, sizeof(double));
  o->expect = calloc(all, 1);
  work w = {.c = c, .wide = p->q.dtype == RAPT_FP64};
  w.u = w.wide ? 0x1p-53 : 0x1p-24;
  w.acc_max = w.wide ? DBL_MAX : FLT_MAX;
  w.scale = w.wide ? p->scale : (double)(float)p->scale;   /* N3 */
  w.q = dense(&c->q);
  w.k = dense(&c->k);
  w.v = dense(&c->v);
  w.l = calloc(keys, sizeof(real));
  w.weight = calloc(keys, sizeof(real));
  w.error = calloc(4 * keys, sizeof(double));
  w.product = w.error + keys;
  w.bias = w.product + keys;
  w.flushed = w.bias + keys;
  w.visible = calloc(keys, sizeof(bool));
  for (int64_t at = 0; at < o->rows; at++) run_row(&w, o, at);
  free(w.q);
  free(w.k);
  free(w.v);
  free(w.l);
  free(w.weight);
  free(w.error);
  free(w.visible);
  return o;
}

void tc_oracle_free(tc_oracle *o) {
  if (!o) return;
  free(o->row);
  free(o->out);
  free(o->A);
  free(o->V);
  free(o->flushed_pv);
  free(o->expect);
  free(o);
}

tc_element tc_oracle_element(const tc_oracle *o, int64_t row, int64_t d) {
  const tc_row *r = &o->row[row];
  tc_element e = {.n = (double)r->n, .E = r->E, .flushed_qk = r->flushed_qk};
  if (d < 0) return e;
  e.A = o->A[row * o->Dv + d];
  e.V = o->V[row * o->Dv + d];
  e.flushed_pv = o->flushed_pv[row * o->Dv + d];
  return e;
}
