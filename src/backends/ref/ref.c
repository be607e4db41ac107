/* SPDX-License-Identifier: Apache-2.0 */
/* The reference backend: what attention means here, as plain loops (D14).
 *
 * One row of the result depends on one query row and the keys that it may see:
 *
 *     visible keys j of row i             M13: lengths, causal, window, mask, bias != -inf
 *     l_j = scale * (q_i . k_j) + bias    N1, for visible j only
 *     m   = max_j l_j,  Z = sum_j exp(l_j - m)
 *     P_j = exp(l_j - m) / Z
 *     out = sum_j P_j v_j,  lse = m + ln Z
 *     no visible key: out = 0, lse = -inf            M16
 *
 * Everything is computed in double, whatever the dtypes (N2), and rounded once where it is stored. Sums run over the
 * visible keys in ascending order, so a row's bits depend on its visible list alone: not on strides (S14), other rows or
 * sizes (N17), on how visibility was expressed (M23) or on the number of threads (N18). Keys that a row does not see are
 * never read for it, which is all that isolation takes (M14). */
#include "base/base.h"
#include "base/half.h"
#include "core/backend.h"

#include <math.h>
#include <stdatomic.h>

/* ---- Elements ---- */

static double load(const void *base, int dtype, int64_t at) {
  switch (dtype) {
  case RAPT_FP16: return rapti_fp16_to_f32(((const uint16_t *)base)[at]);
  case RAPT_BF16: return rapti_bf16_to_f32(((const uint16_t *)base)[at]);
  case RAPT_FP32: return ((const float *)base)[at];
  default: return ((const double *)base)[at];
  }
}

/* The one rounding of an output, to nearest even (N2). */
static void store(void *base, int dtype, int64_t at, double value) {
  switch (dtype) {
  case RAPT_FP16: ((uint16_t *)base)[at] = rapti_f64_to_fp16(value); break;
  case RAPT_BF16: ((uint16_t *)base)[at] = rapti_f64_to_bf16(value); break;
  case RAPT_FP32: ((float *)base)[at] = (float)value; break;
  default: ((double *)base)[at] = value; break;
  }
}

static int64_t load_int(const void *base, int dtype, int64_t at) {
  return dtype == RAPT_INT32 ? ((const int32_t *)base)[at] : ((const int64_t *)base)[at];
}

/* Offset of element (b,h,s,d); the strides of axes of one element do not count, their index is 0 (S9). */
static int64_t offset_of(const rapt_desc *t, int64_t b, int64_t h, int64_t s, int64_t d) {
  return b * t->stride[0] + h * t->stride[1] + s * t->stride[2] + d * t->stride[3];
}

/* The same for mask and bias, whose axes of size 1 stand for every index (M12). */
static int64_t offset_of_broadcast(const rapt_desc *t, int64_t b, int64_t h, int64_t i, int64_t j) {
  return offset_of(t, t->size[0] > 1 ? b : 0, t->size[1] > 1 ? h : 0, t->size[2] > 1 ? i : 0, t->size[3] > 1 ? j : 0);
}

/* to[d] = element (b,h,s,d), d < n. */
static void load_row(double *to, const void *base, const rapt_desc *t, int64_t b, int64_t h, int64_t s, int64_t n) {
  int64_t at = offset_of(t, b, h, s, 0);
  for (int64_t d = 0; d < n; d++) to[d] = load(base, t->dtype, at + d * t->stride[3]);
}

/* ---- Positions and visibility ---- */

/* Lengths on the caller's device are not checked before the run, so they are clamped (M7). */
static int64_t length_of(const void *lengths, int dtype, int64_t b, int64_t size) {
  if (dtype == RAPT_NONE) return size;
  int64_t n = load_int(lengths, dtype, b);
  return n < 0 ? 0 : n > size ? size : n;
}

#define MAX_OFFSET (INT64_C(1) << 62)   /* M2 */

/* off_b of M2: the position of query row 0 among the keys. */
static int64_t row_zero(const rapt_problem *p, const rapt_buffers *buf, int64_t b, int64_t q_len, int64_t kv_len) {
  int64_t off = 0;
  if (p->alignment == RAPT_BOTTOM_RIGHT) off = kv_len - q_len;
  if (p->alignment == RAPT_OFFSET) off = p->q_offset;
  if (p->alignment == RAPT_OFFSET_ARRAY) off = ((const int64_t *)buf->q_offset)[b];
  return off < -MAX_OFFSET ? -MAX_OFFSET : off > MAX_OFFSET ? MAX_OFFSET : off;
}

/* Causal (M5) and window (M6), given how far key j lies behind (negative) or ahead (positive) of the row's position. */
static bool position_allows(const rapt_problem *p, int64_t ahead) {
  if ((p->flags & RAPT_CAUSAL) && ahead > 0) return false;
  if (!(p->has & RAPT_HAS_WINDOW)) return true;
  if (p->window[0] >= 0 && ahead < -p->window[0]) return false;
  return p->window[1] < 0 || ahead <= p->window[1];
}

/* ---- One row ---- */

typedef struct row {
  const rapt_problem *p;
  const rapt_buffers *buf;
  int64_t b, h, h_kv, i;      /* h_kv: the key and value head that query head h reads (S5) */
  double *logit;              /* [Skv], of the visible keys */
  double *q, *key_or_value;   /* [D], [max(D,Dv)]: one row of an operand */
  double *acc;                /* [Dv]: the output row */
  uint8_t *visible;           /* [Skv] */
} row;

static double dot(const row *r, int64_t j) {
  const rapt_problem *p = r->p;
  load_row(r->key_or_value, r->buf->k, &p->k, r->b, r->h_kv, j, p->D);
  double sum = 0;
  for (int64_t d = 0; d < p->D; d++) sum += r->q[d] * r->key_or_value[d];
  return sum;
}

/* Fills logit and visible; returns the number of visible keys. */
static int64_t find_logits(const row *r, double scale) {
  const rapt_problem *p = r->p;
  int64_t q_len = length_of(r->buf->q_len, p->q_len, r->b, p->Sq);
  int64_t kv_len = length_of(r->buf->kv_len, p->kv_len, r->b, p->Skv);
  int64_t position = row_zero(p, r->buf, r->b, q_len, kv_len) + r->i;   /* P_i (M1) */
  int64_t n = 0;
  load_row(r->q, r->buf->q, &p->q, r->b, r->h, r->i, p->D);
  for (int64_t j = 0; j < p->Skv; j++) {
    r->visible[j] = 0;
    if (r->i >= q_len || j >= kv_len || !position_allows(p, j - position)) continue;
    if (p->mask.dtype && !((const uint8_t *)r->buf->mask)[offset_of_broadcast(&p->mask, r->b, r->h, r->i, j)]) continue;
    double bias = 0;
    if (p->bias.dtype) {
      bias = load(r->buf->bias, p->bias.dtype, offset_of_broadcast(&p->bias, r->b, r->h, r->i, j));
      if (bias == -INFINITY) continue;   /* M10: no other number makes a pair invisible */
    }
    r->logit[j] = scale * dot(r, j) + bias;
    r->visible[j] = 1;
    n++;
  }
  return n;
}

/* The largest visible logit. A NaN is kept once met, so that it reaches the output (N10). */
static double largest_logit(const row *r) {
  double m = -INFINITY;
  for (int64_t j = 0; j < r->p->Skv; j++)
    if (r->visible[j] && !isnan(m) && !(r->logit[j] <= m)) m = r->logit[j];
  return m;
}

/* acc = sum_j P_j v_j; returns ln of the denominator plus the maximum (N8). */
static double weigh_values(const row *r, double m) {
  const rapt_problem *p = r->p;
  double z = 0;
  for (int64_t j = 0; j < p->Skv; j++)
    if (r->visible[j]) z += exp(r->logit[j] - m);
  for (int64_t j = 0; j < p->Skv; j++) {
    if (!r->visible[j]) continue;
    double weight = exp(r->logit[j] - m) / z;
    load_row(r->key_or_value, r->buf->v, &p->v, r->b, r->h_kv, j, p->Dv);
    for (int64_t d = 0; d < p->Dv; d++) r->acc[d] += weight * r->key_or_value[d];
  }
  return m + log(z);
}

static void run_row(const row *r) {
  const rapt_problem *p = r->p;
  double scale = p->q.dtype == RAPT_FP64 ? p->scale : (double)(float)p->scale;   /* rounded once to acc (N3) */
  double lse = -INFINITY;
  for (int64_t d = 0; d < p->Dv; d++) r->acc[d] = 0;
  if (find_logits(r, scale) > 0) {
    double m = largest_logit(r);
    if (m != -INFINITY) lse = weigh_values(r, m);   /* N10: logits that all overflowed to -inf leave o = 0 */
  }
  int64_t out = offset_of(&p->out, r->b, r->h, r->i, 0);
  for (int64_t d = 0; d < p->Dv; d++) store(r->buf->out, p->out.dtype, out + d * p->out.stride[3], r->acc[d]);
  if (p->flags & RAPT_WANT_LSE) store(r->buf->lse, p->lse.dtype, offset_of(&p->lse, r->b, r->h, r->i, 0), lse);
}

/* ---- All rows, shared by the threads ---- */

typedef struct call {
  const rapt_problem *p;
  const rapt_buffers *buf;
  unsigned char *scratch;
  size_t scratch_bytes;       /* of one task */
  int64_t rows;
  atomic_int_fast64_t next;   /* rows are handed out one by one: who computes a row cannot change its bits */
} call;

static bool count_rows(const rapt_problem *p, int64_t *rows) {
  return rapti_mul(p->B, p->Hq, rows) && rapti_mul(*rows, p->Sq, rows);
}

/* Bytes of one task: the arrays of a row. Never 0, so that there is always an address. false: no memory holds them. */
static bool task_bytes(const rapt_problem *p, int64_t *bytes) {
  int64_t n = p->Skv;
  bool ok = rapti_add(n, p->D, &n) && rapti_add(n, p->D > p->Dv ? p->D : p->Dv, &n) && rapti_add(n, p->Dv, &n) &&
            rapti_mul(n, sizeof(double), &n) && rapti_add(n, p->Skv, &n) && rapti_add(n, 64, &n);
  *bytes = n & ~INT64_C(63);
  return ok;
}

static uint32_t count_tasks(int64_t rows, uint32_t threads) { return rows < (int64_t)threads ? (uint32_t)rows : threads; }

static size_t workspace(void *self, uint32_t index, const rapt_problem *p, uint32_t threads) {
  (void)self;
  (void)index;
  int64_t bytes, rows;
  bool ok = task_bytes(p, &bytes) && count_rows(p, &rows) && rapti_mul(bytes, count_tasks(rows, threads), &bytes);
  return ok ? (size_t)bytes : SIZE_MAX;
}

static void run_task(void *arg, uint32_t task) {
  call *c = arg;
  const rapt_problem *p = c->p;
  unsigned char *scratch = c->scratch + task * c->scratch_bytes;
  row r = {.p = p, .buf = c->buf, .logit = (double *)(void *)scratch};
  r.q = r.logit + p->Skv;
  r.acc = r.q + p->D;
  r.key_or_value = r.acc + p->Dv;
  r.visible = (uint8_t *)(r.key_or_value + (p->D > p->Dv ? p->D : p->Dv));
  int64_t n;
  while ((n = atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed)) < c->rows) {
    r.i = n % p->Sq;
    r.h = n / p->Sq % p->Hq;
    r.b = n / p->Sq / p->Hq;
    r.h_kv = r.h / (p->Hq / p->Hkv);
    run_row(&r);
  }
}

static rapt_status run(void *self, uint32_t index, void *state, const rapt_problem *p, const rapt_buffers *buf,
                       void *scratch, void *stream) {
  (void)index;
  (void)state;
  (void)stream;
  const rapti_services *s = self;
  int64_t bytes, rows;
  if (!task_bytes(p, &bytes) || !count_rows(p, &rows)) return RAPT_INTERNAL;   /* their workspace was refused */
  uint32_t tasks = count_tasks(rows, s->max_threads);
  call c = {.p = p, .buf = buf, .scratch = scratch, .scratch_bytes = (size_t)bytes, .rows = rows};
  atomic_init(&c.next, 0);
  if (tasks == 1) run_task(&c, 0);
  if (tasks > 1) s->parallel_for(s->parallel_self, tasks, run_task, &c);
  return RAPT_OK;
}

static const char *kernel_name(void *self, uint32_t index, const rapt_problem *p) {
  (void)self;
  (void)index;
  switch (p->q.dtype) {
  case RAPT_FP16: return "attention_fp16_loops_scalar";
  case RAPT_BF16: return "attention_bf16_loops_scalar";
  case RAPT_FP32: return "attention_fp32_loops_scalar";
  default: return "attention_fp64_loops_scalar";
  }
}

/* ---- The row ---- */

static const rapt_row rows[] = {{
  .struct_size = RAPT_ROW_SIZE,
  .kinds = RAPT_KIND(RAPT_CPU),
  .classes = RAPT_CLASS_REFERENCE,
  .place = RAPT_PLACE_OWN,
  .ran_on_hardware = 1,
  .id = "ref",
  .display = "ref",
  .aliases = "reference",
  .kernel = "attention_loops",
  .source = "src/backends/ref/ref.c",
  .dtypes = RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16) | RAPT_DT(RAPT_FP32) | RAPT_DT(RAPT_FP64),
  .bias_dtypes = RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16) | RAPT_DT(RAPT_FP32) | RAPT_DT(RAPT_FP64),   /* M9 */
  .dv_rule = RAPT_DV_ANY,
  .determinism = RAPT_DET_BATCH,
  .accuracy = RAPT_EXACT,
  .can = RAPT_CAN_GQA | RAPT_CAN_MQA | RAPT_CAN_MASK | RAPT_CAN_BIAS | RAPT_CAN_BROADCAST | RAPT_CAN_MASK_CAUSAL |
         RAPT_CAN_BIAS_CAUSAL | RAPT_CAN_MASK_BIAS | RAPT_CAN_CAUSAL | RAPT_CAN_TOP_LEFT | RAPT_CAN_BOTTOM_RIGHT |
         RAPT_CAN_OFFSET | RAPT_CAN_OFFSET_ARRAY | RAPT_CAN_WINDOW | RAPT_CAN_LSE | RAPT_CAN_Q_LEN | RAPT_CAN_KV_LEN |
         RAPT_CAN_DENSE | RAPT_CAN_STRICT | RAPT_CAN_ISOLATE | RAPT_CAN_MIXED_KV | RAPT_CAN_OUT_FP32 |
         RAPT_CAN_ANY_STRIDE | RAPT_CAN_ANY_BIAS_DTYPE | RAPT_CAN_SCALE | RAPT_CAN_SCALE_ZERO | RAPT_CAN_SCALE_NEGATIVE |
         RAPT_CAN_ON_DEVICE | RAPT_CAN_CAUSAL_WIDE,
}};

const rapt_backend *rapti_backend_ref(void) {
  static const rapt_backend backend = {
    .struct_size = RAPT_BACKEND_SIZE,
    .api_version = RAPT_PROVIDER_VERSION,
    .n_rows = 1,
    .rows = rows,
    .name = "ref",
    .workspace = workspace,
    .kernel_name = kernel_name,
    .run = run,
  };
  return &backend;
}
