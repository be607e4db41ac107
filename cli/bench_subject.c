/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors and a plan for a problem string. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { SAMPLE_US = 2000 };

static int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

double bench_useful_pairs(const rapt_problem *p) {
  int64_t off = p->alignment == RAPT_BOTTOM_RIGHT ? p->Skv - p->Sq : p->alignment == RAPT_OFFSET ? p->q_offset : 0;
  double pairs = 0;
  for (int64_t i = 0; i < p->Sq; i++) {
    int64_t low = 0, high = p->Skv - 1;
    if (p->flags & RAPT_CAUSAL) high = at_most(high, off + i);
    if (p->has & RAPT_HAS_WINDOW && p->window[0] >= 0) low = at_least(low, off + i - p->window[0]);
    if (p->has & RAPT_HAS_WINDOW && p->window[1] >= 0) high = at_most(high, off + i + p->window[1]);
    if (high >= low) pairs += (double)(high - low + 1);
  }
  return pairs * (double)p->B * (double)p->Hq;
}

/* ---- Memory ---- */

/* Bytes from the lowest to the highest element, and the offset of element 0; dense where no strides are given. */
static bool extent(const rapt_desc *d, bool strided, const int64_t size[4], int64_t *elements, int64_t *zero) {
  int64_t low = 0, high = 0, count;
  if (!cli_count(size, 4, &count)) return false;
  for (int i = 0; i < 4 && strided; i++) {
    int64_t step;
    if (size[i] < 2) continue;
    if (__builtin_mul_overflow(size[i] - 1, d->stride[i], &step)) return false;
    if (__builtin_add_overflow(step < 0 ? low : high, step, step < 0 ? &low : &high)) return false;
  }
  *elements = strided ? high - low + 1 : count;
  *zero = strided ? -low : 0;
  return *elements >= 0 && *elements < (int64_t)1 << 40;
}

static void fill(void *p, int32_t dtype, int64_t n, uint32_t seed) {
  size_t es = rapt_dtype_bytes(dtype);
  uint32_t x = seed * 2654435761u + 1;
  for (int64_t i = 0; i < n; i++) {
    x = x * 1664525u + 1013904223u;
    double u = dtype == RAPT_BOOL ? (x >> 29) != 0 : (double)(x >> 8) / 8388608.0 - 1.0;
    cli_store(dtype, (char *)p + (size_t)i * es, u);
  }
}

static bool make_tensor(bench_subject *s, const rapt_problem *p, int32_t field, int32_t dtype, const int64_t size[4],
                        size_t buffer, int slot) {
  const rapt_desc *d = &p->q + (field - RAPT_FIELD_Q);
  bool strided = (p->has & RAPT_HAS_Q_STRIDES << (field - RAPT_FIELD_Q)) != 0;
  int64_t elements, zero;
  cli_array a;
  if (!dtype) return true;
  if (!extent(d, strided, size, &elements, &zero) || !cli_array_make(&a, dtype, 1, &elements)) return false;
  fill(a.data, dtype, elements, (uint32_t)field);
  s->memory[slot] = a.data;
  void *first = (char *)a.data + zero * (int64_t)rapt_dtype_bytes(dtype);
  memcpy((char *)&s->b + buffer, &first, sizeof first);
  return true;
}

/* A vector of one value an element: lengths, offsets. */
static bool make_vector(bench_subject *s, int32_t dtype, int64_t n, double value, size_t buffer, int slot) {
  cli_array a;
  if (!dtype) return true;
  if (!cli_array_make(&a, dtype, 1, &n)) return false;
  for (int64_t i = 0; i < n; i++) cli_store(dtype, (char *)a.data + (size_t)i * rapt_dtype_bytes(dtype), value);
  s->memory[slot] = a.data;
  memcpy((char *)&s->b + buffer, &a.data, sizeof a.data);
  return true;
}

static bool make_tensors(bench_subject *s, const rapt_problem *p) {
  const int64_t q[4] = {p->B, p->Hq, p->Sq, p->D}, k[4] = {p->B, p->Hkv, p->Skv, p->D},
                v[4] = {p->B, p->Hkv, p->Skv, p->Dv};
  const int64_t out[4] = {p->B, p->Hq, p->Sq, p->Dv}, lse[4] = {p->B, p->Hq, p->Sq, 1}, sinks[4] = {p->Hq, 1, 1, 1};
  const int64_t slopes[4] = {p->slopes.size[0] > 1 ? p->slopes.size[0] : 1, p->Hq, 1, 1};
  rapt_tensor o = {0}, l = {0};
  if (rapt_problem_output(p, RAPT_FIELD_OUT, &o, NULL) != RAPT_OK) return false;
  if (p->flags & RAPT_WANT_LSE && rapt_problem_output(p, RAPT_FIELD_LSE, &l, NULL) != RAPT_OK) return false;
  return make_tensor(s, p, RAPT_FIELD_Q, p->q.dtype, q, offsetof(rapt_buffers, q), 0) &&
         make_tensor(s, p, RAPT_FIELD_K, p->k.dtype, k, offsetof(rapt_buffers, k), 1) &&
         make_tensor(s, p, RAPT_FIELD_V, p->v.dtype, v, offsetof(rapt_buffers, v), 2) &&
         make_tensor(s, p, RAPT_FIELD_MASK, p->mask.dtype, p->mask.size, offsetof(rapt_buffers, mask), 3) &&
         make_tensor(s, p, RAPT_FIELD_BIAS, p->bias.dtype, p->bias.size, offsetof(rapt_buffers, bias), 4) &&
         make_tensor(s, p, RAPT_FIELD_SINKS, p->sinks.dtype, sinks, offsetof(rapt_buffers, sinks), 5) &&
         make_tensor(s, p, RAPT_FIELD_SLOPES, p->slopes.dtype, slopes, offsetof(rapt_buffers, slopes), 6) &&
         make_tensor(s, p, RAPT_FIELD_OUT, o.dtype, out, offsetof(rapt_buffers, out), 7) &&
         make_tensor(s, p, RAPT_FIELD_LSE, l.dtype, lse, offsetof(rapt_buffers, lse), 8) &&
         make_vector(s, p->q_len, p->B, (double)p->Sq, offsetof(rapt_buffers, q_len), 9) &&
         make_vector(s, p->kv_len, p->B, (double)p->Skv, offsetof(rapt_buffers, kv_len), 10) &&
         make_vector(s, p->alignment == RAPT_OFFSET_ARRAY ? RAPT_INT64 : 0, p->B, 0, offsetof(rapt_buffers, q_offset),
                     11);
}

/* ---- The subject ---- */

static int refused(const bench_subject *s, const char *argument, rapt_status st, json_t *results) {
  if (!s->report) return cli_usage(argument, s->problem, "%s", cli_status(st));
  if (!results || !cli_out_json()) {
    cli_report_print(s->report, cli_out_json() ? RAPT_FORM_JSON : RAPT_FORM_BRIEF);
    return CLI_FAILED;
  }
  char *text = cli_report_text(s->report, RAPT_FORM_JSON);
  json_array_append_new(results, json_pack("{s:s,s:o}", "problem", s->problem, "refused", json_loads(text, 0, NULL)));
  free(text);
  return CLI_FAILED;
}

int bench_subject_make(bench_subject *s, const char *argument, const char *text, unsigned threads, json_t *results) {
  cli_problem problem;
  *s = (bench_subject){.b = RAPT_BUFFERS_INIT, .decision = RAPT_DECISION_INIT, .calls = 1, .threads = threads};
  int rc = cli_problem_parse(&problem, argument, text);
  if (rc) return rc;
  if (problem.p.cu || problem.p.backward) {
    rc = cli_usage(argument, text, "packed calls and backwards are not in this version");
  } else if (!(rc = cli_ctx_create(NULL, threads, &s->ctx))) {
    s->problem = cli_problem_text(&problem.p);
    rapt_status st = rapt_plan_create(s->ctx, &problem.p, &s->plan, &s->report);
    if (st != RAPT_OK) rc = refused(s, argument, st, results);
    else if (!make_tensors(s, &problem.p)) rc = cli_usage(argument, text, "memory for its tensors cannot be had");
  }
  if (!rc) {
    rapt_report_decision(s->report, &s->decision);
    s->flops = 2.0 * (double)(problem.p.D + problem.p.Dv) * bench_useful_pairs(&problem.p);
    s->workspace_bytes = rapt_plan_workspace(s->plan);
    s->workspace = aligned_alloc(64, s->workspace_bytes / 64 * 64 + 64);
    double t = bench_subject_time(s);                        /* warms up as well */
    if (t >= 0) t = bench_subject_time(s);
    if (t < 0) rc = cli_usage(argument, text, "the run failed");
    else if (t < SAMPLE_US * 1e-6) s->calls = (int64_t)(SAMPLE_US * 1e-6 / (t > 1e-8 ? t : 1e-8)) + 1;
  }
  cli_problem_free(&problem);
  if (rc) bench_subject_free(s);
  return rc;
}

void bench_subject_free(bench_subject *s) {
  for (size_t i = 0; i < CLI_COUNT(s->memory); i++) free(s->memory[i]);
  free(s->workspace);
  free(s->problem);
  rapt_report_destroy(s->report);
  rapt_plan_destroy(s->plan);
  rapt_ctx_destroy(s->ctx);
  *s = (bench_subject){0};
}

static bool sample(bench_subject *s) {
  for (int64_t i = 0; i < s->calls; i++)
    if (rapt_plan_run(s->plan, &s->b, s->workspace, s->workspace_bytes, NULL) != RAPT_OK) return false;
  return true;
}

double bench_subject_wall(bench_subject *s) {
  double start = probe_now();
  return sample(s) ? (probe_now() - start) / (double)s->calls : -1;
}

/* One thread's call never waits, so where it had less of its core than the clock says, another process had the rest:
 * then the processor time counts. With several threads waiting is part of the work, and the clock counts. */
double bench_subject_time(bench_subject *s) {
  double start = probe_now(), cpu = probe_cpu_now();
  if (!sample(s)) return -1;
  double wall = probe_now() - start;
  cpu = probe_cpu_now() - cpu;
  s->busy += s->threads == 1 && cpu < wall ? 1 - cpu / wall : 0;
  s->samples++;
  return (s->threads == 1 && cpu < 0.98 * wall ? cpu : wall) / (double)s->calls;
}

double bench_subject_busy(const bench_subject *s) { return s->samples ? s->busy / (double)s->samples : 0; }
