/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding: one plan for all steps of two sequences of unequal length over one KV cache. At the end the same tokens go
 * through one causal call, which must have given the same bits. */
#include <rapt/rapt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, HQ = 8, HKV = 2, D = 64, CAPACITY = 96, STEPS = 40 };
static const int32_t lead[B] = {0, 17};            /* tokens of each sequence that are in the cache before the first step */

static float q_all[B][CAPACITY][HQ][D], k_all[B][CAPACITY][HKV][D], v_all[B][CAPACITY][HKV][D];   /* of all tokens */
static float k_cache[B][CAPACITY][HKV][D], v_cache[B][CAPACITY][HKV][D];                          /* BSHD */
static float q_step[B][1][HQ][D], out_step[B][1][HQ][D];
static float decoded[B][CAPACITY][HQ][D], whole[B][CAPACITY][HQ][D];

static void fill(float *x, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 8) / (float)(1u << 23) - 1;
  }
}

static int failed(const char *what, rapt_status status, const rapt_reason *why) {
  char text[512];
  rapt_reason_format(why, NULL, NULL, text, sizeof text);
  fprintf(stderr, "%s: %s: %s\n", what, rapt_status_name((int32_t)status), text);
  return 1;
}

/* [B, tokens, heads, D] in memory, seen as the logical axes [B, heads, tokens, D]. */
static void bshd(rapt_desc *t, int64_t tokens, int64_t heads) {
  t->stride[0] = tokens * heads * D;
  t->stride[1] = D;
  t->stride[2] = heads * D;
  t->stride[3] = 1;
}

static rapt_problem problem(int64_t queries, int64_t keys) {
  rapt_problem p = RAPT_PROBLEM_INIT;
  p.q.dtype = p.k.dtype = p.v.dtype = RAPT_FP32;
  p.B = B, p.Hq = HQ, p.Hkv = HKV, p.Sq = queries, p.Skv = keys, p.D = p.Dv = D;
  p.has = RAPT_HAS_Q_STRIDES | RAPT_HAS_K_STRIDES | RAPT_HAS_V_STRIDES | RAPT_HAS_OUT_STRIDES;
  bshd(&p.q, queries, HQ);
  bshd(&p.k, keys, HKV);
  bshd(&p.v, keys, HKV);
  bshd(&p.out, queries, HQ);
  p.flags = RAPT_CAUSAL;
  p.determinism = RAPT_DET_BATCH;                  /* the bits of a row do not depend on how many rows go with it */
  return p;
}

/* What the model does between two steps: the queries of the next token, its key and value behind the others. */
static void next_token(int32_t b, int32_t at) {
  memcpy(q_step[b][0], q_all[b][at], sizeof q_step[b][0]);
  memcpy(k_cache[b][at], k_all[b][at], sizeof k_cache[b][at]);
  memcpy(v_cache[b][at], v_all[b][at], sizeof v_cache[b][at]);
}

static int decode(rapt_ctx *ctx) {
  rapt_reason why = RAPT_REASON_INIT;
  rapt_plan *plan;
  int32_t kv_len[B];

  /* Once: the shape is the cache's, how much of it holds is kv_len. */
  rapt_problem p = problem(1, CAPACITY);           /* Sq = 1, Skv = CAPACITY, causal, BSHD strides */
  p.alignment = RAPT_BOTTOM_RIGHT;                 /* the last query row sees every key before kv_len */
  p.kv_len = RAPT_INT32;
  rapt_status status = rapt_plan_create(ctx, &p, &plan, NULL);
  if (status != RAPT_OK) return failed("plan", status, &why);
  size_t bytes = rapt_plan_workspace(plan);        /* a multiple of 64 need not be: round up for aligned_alloc */
  void *workspace = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;

  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = q_step, b.k = k_cache, b.v = v_cache, b.kv_len = kv_len, b.out = out_step;
  for (int32_t t = 0; t < STEPS; t++) {            /* every step: nothing is decided and nothing allocated */
    for (int32_t i = 0; i < B; i++) {
      next_token(i, lead[i] + t);
      kv_len[i] = lead[i] + t + 1;
    }
    status = rapt_plan_run(plan, &b, workspace, bytes, NULL);
    if (status != RAPT_OK) break;
    for (int32_t i = 0; i < B; i++) memcpy(decoded[i][lead[i] + t], out_step[i][0], sizeof out_step[i][0]);
  }
  if (status == RAPT_ARG) rapt_plan_check(plan, &b, workspace, bytes, &why);
  free(workspace);
  rapt_plan_destroy(plan);
  return status == RAPT_OK ? 0 : failed("step", status, &why);
}

static int compare(void) {
  for (int32_t i = 0; i < B; i++)
    for (int32_t at = lead[i]; at < lead[i] + STEPS; at++)
      if (memcmp(decoded[i][at], whole[i][at], sizeof whole[i][at]) != 0) {
        fprintf(stderr, "sequence %d, token %d: not the bits of the whole call\n", (int)i, (int)at);
        return 1;
      }
  printf("decode: %d steps of %d sequences, one plan, the bits of one causal call\n", STEPS, B);
  return 0;
}

int main(void) {
  rapt_reason why = RAPT_REASON_INIT;
  rapt_ctx *ctx;
  fill(&q_all[0][0][0][0], sizeof q_all / sizeof(float), 1);
  fill(&k_all[0][0][0][0], sizeof k_all / sizeof(float), 2);
  fill(&v_all[0][0][0][0], sizeof v_all / sizeof(float), 3);
  memset(k_cache, 0xff, sizeof k_cache);           /* NaN: what lies behind kv_len changes nothing */
  memset(v_cache, 0xff, sizeof v_cache);
  for (int32_t i = 0; i < B; i++)
    for (int32_t at = 0; at < lead[i]; at++) next_token(i, at);

  rapt_status status = rapt_ctx_create(NULL, &ctx, &why);
  if (status != RAPT_OK) return failed("context", status, &why);
  int bad = decode(ctx);

  rapt_problem p = problem(CAPACITY, CAPACITY);
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = q_all, b.k = k_all, b.v = v_all, b.out = whole;
  if (!bad && rapt_attention(ctx, &p, &b, NULL) != RAPT_OK) bad = 1;
  rapt_ctx_destroy(ctx);
  return bad || compare();
}
