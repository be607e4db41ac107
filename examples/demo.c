/* SPDX-License-Identifier: Apache-2.0 */
/* The main job on real input, in four parts: a mixed-dtype call is refused (a), served under autocast (b), explained for a
 * machine that is not here (c), and two layers of real models are computed and checked (d). argv[1]: examples/data. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "demo.h"

#define BLOCK "b1 h24 q512 k512 d128"
#define FACTS "cuda cc=9.0 torch=2.13.0 cuda=12.8 cudnn=9.12.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0"

static int failures;

static void expect(int ok, const char *what) {
  if (ok) return;
  printf("   FAILED: %s\n", what);
  failures++;
}

double demo_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void *demo_alloc(size_t bytes) {
  void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (!p) {
    fputs("out of memory\n", stderr);
    exit(2);
  }
  return p;
}

rapt_problem demo_problem(const char *text) {
  static char names[1024];
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  if (rapt_problem_parse(text, strlen(text), &p, names, sizeof names, &why) != RAPT_OK) {
    fprintf(stderr, "%s: %s %s\n", text, why.got, why.want);
    exit(2);
  }
  return p;
}

static void print_indented(const char *text) {
  for (const char *line = text; *line;) {
    size_t n = strcspn(line, "\n");
    printf("   %.*s\n", (int)n, line);
    line += n + (line[n] == '\n');
  }
}

void demo_print_report(const rapt_report *r, int form) {
  size_t n = rapt_report_format(r, form, NULL, NULL, 0);
  char *text = demo_alloc(n + 1);
  rapt_report_format(r, form, NULL, text, n + 1);
  print_indented(text);
  free(text);
}

/* ---- The tensors of the seeds' call: one Flux-shaped block ---- */

enum { HEADS = 24, TOKENS = 512, DIM = 128, ELEMENTS = HEADS * TOKENS * DIM };

static uint16_t to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static float noise(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return (float)(*state >> 8) / 8388608.0f - 1.0f;
}

/* What an RMS norm under autocast hands over: fp32 rows of root mean square 1. */
static void fill_normed(float *x, uint32_t seed) {
  for (int row = 0; row < HEADS * TOKENS; row++) {
    double sum = 0;
    for (int d = 0; d < DIM; d++) {
      float v = noise(&seed);
      x[row * DIM + d] = v;
      sum += (double)v * v;
    }
    float scale = (float)(1 / sqrt(sum / DIM));
    for (int d = 0; d < DIM; d++) x[row * DIM + d] *= scale;
  }
}

typedef struct block {
  float *q, *k;
  uint16_t *v, *q_cast, *k_cast, *out, *out_cast;
} block;

static block make_block(void) {
  block x = {.q = demo_alloc(ELEMENTS * 4), .k = demo_alloc(ELEMENTS * 4), .v = demo_alloc(ELEMENTS * 2),
             .q_cast = demo_alloc(ELEMENTS * 2), .k_cast = demo_alloc(ELEMENTS * 2),
             .out = demo_alloc(ELEMENTS * 2), .out_cast = demo_alloc(ELEMENTS * 2)};
  fill_normed(x.q, 1);
  fill_normed(x.k, 2);
  uint32_t seed = 3;
  for (int i = 0; i < ELEMENTS; i++) {
    x.v[i] = to_bf16(noise(&seed));
    x.q_cast[i] = to_bf16(x.q[i]);
    x.k_cast[i] = to_bf16(x.k[i]);
  }
  memset(x.out, 0xff, ELEMENTS * 2);
  memset(x.out_cast, 0xff, ELEMENTS * 2);
  return x;
}

static void part_a(rapt_ctx *ctx, const block *x) {
  puts("(a) q, k fp32 out of an RMS norm, v bf16, no autocast: " BLOCK);
  rapt_problem p = demo_problem("fp32/fp32/bf16 " BLOCK);
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = x->q, b.k = x->k, b.v = x->v, b.out = x->out;
  rapt_report *report;
  rapt_status status = rapt_attention(ctx, &p, &b, &report);
  rapt_reason why = RAPT_REASON_INIT;
  rapt_report_error(report, &why);
  demo_print_report(report, RAPT_FORM_BRIEF);
  expect(status == RAPT_ARG && why.code == RAPT_CODE_DTYPE_MIX, "refused as DTYPE_MIX");
  expect(strstr(why.got, "fp32/fp32/bf16") != NULL, "the three dtypes are named");
  expect(x->out[0] == 0xffff && x->out[ELEMENTS - 1] == 0xffff, "no output byte was written");
  rapt_report_destroy(report);
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double demo_median(double *x, int n) {
  qsort(x, (size_t)n, sizeof *x, compare);
  return x[n / 2];
}

static void part_b(rapt_ctx *ctx, const block *x) {
  puts("\n(b) the same call under bf16 autocast");
  rapt_problem mixed = demo_problem("fp32/fp32/bf16 " BLOCK " autocast=bf16");
  rapt_problem cast = demo_problem("bf16 " BLOCK);
  rapt_buffers b = RAPT_BUFFERS_INIT, c = RAPT_BUFFERS_INIT;
  b.q = x->q, b.k = x->k, b.v = x->v, b.out = x->out;
  c.q = x->q_cast, c.k = x->k_cast, c.v = x->v, c.out = x->out_cast;
  rapt_report *report;
  rapt_status status = rapt_attention(ctx, &mixed, &b, &report);
  demo_print_report(report, RAPT_FORM_BRIEF);
  rapt_report_destroy(report);
  expect(status == RAPT_OK, "served");
  expect(rapt_attention(ctx, &cast, &c, NULL) == RAPT_OK, "the call on tensors cast beforehand is served");
  int same = memcmp(x->out, x->out_cast, ELEMENTS * 2) == 0;
  printf("   equal, bit for bit, to the call on tensors cast beforehand: %s\n", same ? "yes" : "NO");
  expect(same, "same bits as the call on tensors cast beforehand");
  enum { PAIRS = 15 };
  double ratio[PAIRS];
  for (int i = 0; i < PAIRS; i++) {
    double t0 = demo_now();
    rapt_attention(ctx, &mixed, &b, NULL);
    double t1 = demo_now();
    rapt_attention(ctx, &cast, &c, NULL);
    ratio[i] = (t1 - t0) / (demo_now() - t1);
  }
  double r = demo_median(ratio, PAIRS);
  printf("   time of the mixed call over the pre-cast call: %.3f (median of %d alternating pairs; bar 1.15: %s)\n", r,
         (int)PAIRS, r <= 1.15 ? "met" : "missed");
}

/* A context of one thread: part (d) compares with the peak of one. */
static rapt_ctx *one_thread(void) {
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  opts.max_threads = 1;
  rapt_ctx *ctx;
  rapt_reason why = RAPT_REASON_INIT;
  if (rapt_ctx_create(&opts, &ctx, &why) != RAPT_OK) {
    fprintf(stderr, "context: %s %s\n", why.got, why.want);
    exit(2);
  }
  return ctx;
}

static void part_c(void) {
  puts("\n(c) the same call as a what-if: CUDA sm90 with flash-attn 2.8.3, flash-attn preferred");
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  opts.facts = FACTS;
  opts.flags = RAPT_CTX_NO_ENV;
  rapt_ctx *ctx;
  rapt_reason why = RAPT_REASON_INIT;
  if (rapt_ctx_create(&opts, &ctx, &why) != RAPT_OK) {
    expect(0, why.got);
    return;
  }
  rapt_problem p = demo_problem("fp32/fp32/bf16 " BLOCK " autocast=bf16 dev=cuda assume_finite prefer=fa2");
  rapt_report *report;
  rapt_status status = rapt_explain(ctx, &p, &report);
  rapt_decision d = RAPT_DECISION_INIT;
  rapt_report_decision(report, &d);
  demo_print_report(report, RAPT_FORM_TEXT);
  expect(status == RAPT_OK && !strcmp(d.row, "fa2") && d.hypothetical, "fa2 would be chosen");
  rapt_report_destroy(report);

  rapt_problem family = demo_problem("fp32 " BLOCK " assume_finite require=fa2,torch.sdpa prefer=fa2");
  char line[256];
  size_t n;
  status = rapt_line_format(ctx, &family, NULL, "cuda,cpu", line, sizeof line, &n, NULL, &why);
  printf("   %s\n", status == RAPT_OK ? line : why.got);
  expect(status == RAPT_OK && !strcmp(line, "flash_attention_2 (CUDA fp16/bf16 only; torch_sdpa otherwise)"), "the line of the site");
  rapt_ctx_destroy(ctx);
}

int main(int argc, char **argv) {
  rapt_ctx *ctx;
  rapt_reason why = RAPT_REASON_INIT;
  if (rapt_ctx_create(NULL, &ctx, &why) != RAPT_OK) {
    fprintf(stderr, "context: %s %s\n", why.got, why.want);
    return 2;
  }
  block x = make_block();
  part_a(ctx, &x);
  part_b(ctx, &x);
  part_c();
  puts("\n(d) one layer of two real models (examples/data), against what their own framework computed");
  rapt_ctx_destroy(ctx);
  ctx = one_thread();
  failures += demo_layers(ctx, argc > 1 ? argv[1] : "examples/data");
  rapt_ctx_destroy(ctx);
  free(x.q), free(x.k), free(x.v), free(x.q_cast), free(x.k_cast), free(x.out), free(x.out_cast);
  printf("\ndemo: %s\n", failures ? "FAILED" : "every part came out as it should");
  return failures != 0;
}
