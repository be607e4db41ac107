/* SPDX-License-Identifier: Apache-2.0 */
/* Part (d) of the demo: q, k, v that real models handed to their attention, and what their framework computed from them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/probe.h"
#include "common/tol.h"
#include "demo.h"

typedef struct layer {
  const char *file, *title, *options;
  int masked, causal;
} layer;

static const layer layers[] = {
  {"encoder.safetensors", "MiniLM-L6 encoder layer, two texts, the shorter one padded", "", 1, 0},
  {"decoder.safetensors", "SmolLM2-135M decoder layer, causal, 9 query heads on 3 key heads", " causal=tl", 0, 1},
};

typedef struct tensors { cli_array q, k, v, out, mask; } tensors;

static int load(const char *folder, const layer *l, tensors *t) {
  char path[1024];
  cli_str error = {0};
  snprintf(path, sizeof path, "%s/%s", folder, l->file);
  int ok = cli_safetensors_read(path, "q", &t->q, &error) && cli_safetensors_read(path, "k", &t->k, &error) &&
           cli_safetensors_read(path, "v", &t->v, &error) && cli_safetensors_read(path, "out", &t->out, &error) &&
           (!l->masked || cli_safetensors_read(path, "mask", &t->mask, &error));
  if (!ok) printf("   FAILED: %s: %s\n", path, error.s);
  cli_str_free(&error);
  return ok;
}

/* One row by the definition (N1), in double, with what the bound of N13 needs of it. */
typedef struct exact_row { double out[256], A[256], V[256], E; int n; } exact_row;

static void exact(const tensors *t, const rapt_problem *p, int causal, int64_t b, int64_t h, int64_t i, exact_row *r) {
  const float *q = (const float *)t->q.data + ((b * p->Hq + h) * p->Sq + i) * p->D;
  int64_t kv = b * p->Hkv + h / (p->Hq / p->Hkv);
  const float *k = (const float *)t->k.data + kv * p->Skv * p->D, *v = (const float *)t->v.data + kv * p->Skv * p->Dv;
  const unsigned char *mask = t->mask.data ? (const unsigned char *)t->mask.data + b * p->Skv : NULL;
  double scale = (double)(float)(1 / sqrt((double)p->D)), largest = -INFINITY, z = 0, u = ldexp(1, -24), reach = 0;
  double *logit = demo_alloc((size_t)p->Skv * sizeof(double));
  memset(r, 0, sizeof *r);
  for (int64_t j = 0; j < p->Skv; j++) {
    logit[j] = -INFINITY;
    if ((mask && !mask[j]) || (causal && j > i)) continue;
    double dot = 0, size = 0;
    for (int64_t d = 0; d < p->D; d++) dot += (double)q[d] * k[j * p->D + d], size += fabs((double)q[d] * k[j * p->D + d]);
    logit[j] = scale * dot;
    reach = fmax(reach, scale * size);
    largest = fmax(largest, logit[j]);
    r->n++;
  }
  r->E = tc_gamma((double)p->D + 8, u) * reach;
  for (int64_t j = 0; j < p->Skv; j++) z += exp(logit[j] - largest);
  for (int64_t j = 0; j < p->Skv; j++)
    for (int64_t d = 0; d < p->Dv && logit[j] > -INFINITY; d++) {
      double w = exp(logit[j] - largest) / z, x = v[j * p->Dv + d];
      r->out[d] += w * x, r->A[d] += w * fabs(x), r->V[d] = fmax(r->V[d], fabs(x));
    }
  free(logit);
}

/* Worst errors of `got` and of the framework's result, as they are and as shares of the bound. Returns the pairs seen. */
static double judge(const tensors *t, const rapt_problem *p, int causal, const float *got, double share[2], double *apart, double *bound) {
  const rapt_row row = {.can = RAPT_CAN_STRICT};      /* fp32 kernels never round P (N6) */
  tc_tol tol = tc_tol_make(p, &row);
  double pairs = 0;
  for (int64_t n = 0; n < p->B * p->Hq * p->Sq; n++) {
    exact_row r;
    exact(t, p, causal, n / p->Sq / p->Hq, n / p->Sq % p->Hq, n % p->Sq, &r);
    pairs += r.n;
    for (int64_t d = 0; d < p->Dv; d++) {
      tc_element e = {.n = r.n, .E = r.E, .A = r.A[d], .V = r.V[d]};
      double limit = tc_out_bound(&tol, &e, r.out[d]);
      double host = ((const float *)t->out.data)[n * p->Dv + d], mine = got[n * p->Dv + d];
      share[0] = fmax(share[0], fabs(mine - r.out[d]) / limit);
      share[1] = fmax(share[1], fabs(host - r.out[d]) / limit);
      if (!(fabs(mine - host) <= *apart)) *apart = fabs(mine - host), *bound = 2 * limit;
    }
  }
  return pairs;
}

/* Processor time: one thread, and what else the machine does does not count. */
static double seconds_of(rapt_ctx *ctx, const rapt_problem *p, const rapt_buffers *b, const char *isa, double *peak) {
  const probe_level *level = probe_find(isa);
  enum { ROUNDS = 9, CALLS = 20 };
  double time[ROUNDS], probe[ROUNDS];
  for (int i = 0; i < ROUNDS; i++) {
    probe[i] = level ? probe_run(level, 1).flops * 1e-9 : NAN;
    double t0 = probe_cpu_now();
    for (int c = 0; c < CALLS; c++) rapt_attention(ctx, p, b, NULL);
    time[i] = (probe_cpu_now() - t0) / CALLS;
  }
  *peak = demo_median(probe, ROUNDS);
  return demo_median(time, ROUNDS);
}

static int run_layer(rapt_ctx *ctx, const char *folder, const layer *l) {
  tensors t = {0};
  if (!load(folder, l, &t)) return 1;
  char text[256];
  snprintf(text, sizeof text, "fp32 b%d h%d/%d q%d k%d d%d%s", (int)t.q.size[0], (int)t.q.size[1], (int)t.k.size[1],
           (int)t.q.size[2], (int)t.k.size[2], (int)t.q.size[3], l->options);
  rapt_problem p = demo_problem(text);
  if (l->masked) {
    p.mask.dtype = RAPT_BOOL;
    for (int i = 0; i < 4; i++) p.mask.size[i] = t.mask.size[i];
  }
  float *out = demo_alloc(t.out.bytes);
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = t.q.data, b.k = t.k.data, b.v = t.v.data, b.mask = t.mask.data, b.out = out;
  rapt_report *report;
  rapt_status status = rapt_attention(ctx, &p, &b, &report);
  rapt_decision d = RAPT_DECISION_INIT;
  rapt_report_decision(report, &d);
  int bad = status != RAPT_OK;
  char line[512];
  rapt_problem_format(&p, line, sizeof line);
  printf("   %s\n   %s -> %s\n", l->title, line, bad ? rapt_status_name((int)status) : d.kernel);
  if (bad) demo_print_report(report, RAPT_FORM_BRIEF);
  char isa[32];
  snprintf(isa, sizeof isa, "%s", d.isa);
  rapt_report_destroy(report);
  if (!bad) {
    double share[2] = {0, 0}, apart = 0, bound = 0, peak;
    double pairs = judge(&t, &p, l->causal, out, share, &apart, &bound);
    double seconds = seconds_of(ctx, &p, &b, isa, &peak), rate = 2 * pairs * (double)(p.D + p.Dv) / seconds * 1e-9;
    bad = !(share[0] <= 1);
    printf("   largest difference to the framework's output %.2g, the contract allows %.2g there\n", apart, bound);
    printf("   largest error against exact attention, as a share of the bound (N13): rapt %.4f, the framework %.4f\n", share[0], share[1]);
    printf("   %.1f us a call, %.1f GFLOP/s, %.0f %% of the FMA peak measured between the calls (%.1f), one thread%s\n", seconds * 1e6, rate,
           100 * rate / peak, peak, bad ? "   FAILED" : "");
  }
  free(out);
  cli_array_free(&t.q), cli_array_free(&t.k), cli_array_free(&t.v), cli_array_free(&t.out);
  if (l->masked) cli_array_free(&t.mask);
  return bad;
}

int demo_layers(rapt_ctx *ctx, const char *folder) {
  int failures = 0;
  for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) failures += run_layer(ctx, folder, &layers[i]);
  return failures;
}
