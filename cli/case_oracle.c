/* SPDX-License-Identifier: Apache-2.0 */
/* What a case calls "oracle": a forward in plain double loops, straight from contract N1 and M13. It is a check of
 * the library, so it shares nothing with it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

typedef struct oracle {
  const case_call *c;
  double scale, largest, *logit;
  bool *sees;
} oracle;

/* Element of a mask or bias, aligned from the right (M12); 0 or 1 elsewhere where it is absent. */
static double plane(const case_tensor *t, const int64_t index[4], double absent) {
  int64_t flat = 0;
  if (!t->dtype) return absent;
  for (int i = 0; i < t->rank; i++) flat = flat * t->size[i] + (t->size[i] == 1 ? 0 : index[4 - t->rank + i]);
  return t->value[flat];
}

static int64_t length(const case_tensor *t, int64_t b, int64_t all) { return t->dtype ? (int64_t)t->value[b] : all; }

static int64_t position(const case_call *c, int64_t b, int64_t i) {
  const rapt_problem *p = &c->p;
  if (p->alignment == RAPT_OFFSET) return p->q_offset + i;
  if (p->alignment == RAPT_OFFSET_ARRAY) return (int64_t)c->t[CASE_QOFFSET].value[b] + i;
  if (p->alignment == RAPT_BOTTOM_RIGHT)
    return length(&c->t[CASE_KVLEN], b, c->Skv) - length(&c->t[CASE_QLEN], b, c->Sq) + i;
  return i;
}

/* M13 */
static bool visible(const case_call *c, const int64_t at[4], int64_t where) {
  const rapt_problem *p = &c->p;
  int64_t j = at[3];
  if (at[2] >= length(&c->t[CASE_QLEN], at[0], c->Sq) || j >= length(&c->t[CASE_KVLEN], at[0], c->Skv)) return false;
  if (p->flags & RAPT_CAUSAL && j > where) return false;
  if (p->has & RAPT_HAS_WINDOW && p->window[0] >= 0 && j < where - p->window[0]) return false;
  if (p->has & RAPT_HAS_WINDOW && p->window[1] >= 0 && j > where + p->window[1]) return false;
  return plane(&c->t[CASE_MASK], at, 1) != 0 && plane(&c->t[CASE_BIAS], at, 0) != -INFINITY;
}

static double slope(const case_call *c, int64_t b, int64_t h) {
  const case_tensor *s = &c->t[CASE_SLOPES];
  return s->dtype ? s->value[s->rank == 2 ? b * c->Hq + h : h] : 0;
}

static double logit(const oracle *o, const int64_t at[4], int64_t where) {
  const case_call *c = o->c;
  int64_t g = at[1] / (c->Hq / c->Hkv);
  const double *q = c->t[CASE_Q].value + ((at[0] * c->Hq + at[1]) * c->Sq + at[2]) * c->D;
  const double *k = c->t[CASE_K].value + ((at[0] * c->Hkv + g) * c->Skv + at[3]) * c->D;
  double x = 0;
  for (int64_t d = 0; d < c->D; d++) x += q[d] * k[d];
  x *= o->scale;
  if (fabs(x) > o->largest) x = copysign(INFINITY, x);
  if (c->p.softcap > 0) x = c->p.softcap * tanh(x / c->p.softcap);
  x += plane(&c->t[CASE_BIAS], at, 0);
  if (c->t[CASE_SLOPES].dtype) x -= slope(c, at[0], at[1]) * fabs((double)(where - at[3]));
  return fabs(x) > o->largest ? copysign(INFINITY, x) : x;
}

static void row(const oracle *o, int64_t b, int64_t h, int64_t i, double *out, double *lse) {
  const case_call *c = o->c;
  int64_t where = position(c, b, i), g = h / (c->Hq / c->Hkv);
  double z = c->t[CASE_SINKS].dtype ? c->t[CASE_SINKS].value[h] : -INFINITY, m = z, sum = 0;
  for (int64_t j = 0; j < c->Skv; j++) {
    int64_t at[4] = {b, h, i, j};
    o->sees[j] = visible(c, at, where);
    o->logit[j] = o->sees[j] ? logit(o, at, where) : -INFINITY;
    if (o->sees[j] && !(o->logit[j] <= m)) m = o->logit[j];
  }
  memset(out, 0, (size_t)c->Dv * sizeof *out);
  *lse = m;
  if (m == -INFINITY) return;
  for (int64_t j = 0; j < c->Skv; j++) {
    if (!o->sees[j]) continue;
    double e = exp(o->logit[j] - m);
    const double *v = c->t[CASE_V].value + ((b * c->Hkv + g) * c->Skv + j) * c->Dv;
    sum += e;
    for (int64_t d = 0; d < c->Dv; d++) out[d] += e * v[d];
  }
  if (z > -INFINITY) sum += exp(z - m);
  for (int64_t d = 0; d < c->Dv; d++) out[d] /= sum;
  *lse = m + log(sum);
}

bool case_oracle(const case_call *c, double *out, double *lse) {
  bool wide = c->t[CASE_Q].dtype == RAPT_FP64;
  if (c->packed || c->p.dropout > 0 || c->Hkv < 1) return false;
  oracle o = {c, c->p.has & RAPT_HAS_SCALE ? c->p.scale : 1 / sqrt((double)c->D),
              wide ? 0x1.fffffffffffffp1023 : 0x1.fffffep127, NULL, NULL};
  if (!wide) o.scale = (double)(float)o.scale;                       /* N3 */
  o.logit = cli_alloc((size_t)c->Skv + 1, sizeof *o.logit);
  o.sees = cli_alloc((size_t)c->Skv + 1, sizeof *o.sees);
  for (int64_t b = 0; b < c->B; b++)
    for (int64_t h = 0; h < c->Hq; h++)
      for (int64_t i = 0; i < c->Sq; i++) {
        int64_t r = (b * c->Hq + h) * c->Sq + i;
        row(&o, b, h, i, out + r * c->Dv, lse + r);
      }
  free(o.logit);
  free(o.sees);
  return true;
}
