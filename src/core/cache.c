/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of the one-shot call, by problem; the least recently used leaves first (P8). */
#include "core/ctx.h"

#include <assert.h>
#include <string.h>

/* A problem is its words, then the texts of its names, which are its last members. */
#define WORD_BYTES offsetof(rapt_problem, require)
static_assert(WORD_BYTES % 32 == 0, "hashed by words, four at a time");
static_assert(WORD_BYTES + 4 * sizeof(char *) == sizeof(rapt_problem), "names are the tail");

static uint64_t mix(uint64_t h, uint64_t w) { return ((h << 5 | h >> 59) ^ w) * UINT64_C(0x9e3779b97f4a7c15); }

static uint64_t hash_text(uint64_t h, const char *s) {
  if (!s) return h;
  for (; *s; s++) h = mix(h, (unsigned char)*s);
  return mix(h, 256);
}

uint64_t rapti_problem_hash(const rapt_problem *p) {
  const char *bytes = (const char *)p;
  uint64_t lane[4] = {0}, w[4];             /* four chains: one alone waits for each of its products */
  for (size_t i = 0; i < WORD_BYTES; i += sizeof w) {
    memcpy(w, bytes + i, sizeof w);
    for (int n = 0; n < 4; n++) lane[n] = mix(lane[n], w[n]);
  }
  uint64_t h = mix(mix(mix(lane[0], lane[1]), lane[2]), lane[3]);
  h = hash_text(hash_text(h, p->require), p->prefer);
  h = hash_text(hash_text(h, p->forbid), p->origin);
  return h ^ h >> 32;
}

static bool same_text(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static bool same_problem(const rapt_problem *a, const rapt_problem *b) {
  return memcmp(a, b, WORD_BYTES) == 0 && same_text(a->require, b->require) && same_text(a->prefer, b->prefer) &&
         same_text(a->forbid, b->forbid) && same_text(a->origin, b->origin);
}

static rapt_plan **bucket_of(rapti_cache *c, uint64_t hash) { return &c->bucket[hash % RAPTI_CACHE_BUCKETS]; }

static void lru_remove(rapti_cache *c, rapt_plan *plan) {
  *(plan->newer ? &plan->newer->older : &c->newest) = plan->older;
  *(plan->older ? &plan->older->newer : &c->oldest) = plan->newer;
}

static void lru_add(rapti_cache *c, rapt_plan *plan) {
  plan->newer = NULL;
  plan->older = c->newest;
  *(c->newest ? &c->newest->newer : &c->oldest) = plan;
  c->newest = plan;
}

static rapt_plan *lookup(rapti_cache *c, const rapt_problem *p, uint64_t hash) {
  rapt_plan *plan = *bucket_of(c, hash);
  while (plan && (plan->hash != hash || !same_problem(&plan->d.problem, p))) plan = plan->chain;
  return plan;
}

rapt_plan *rapti_cache_find(rapt_ctx *ctx, const rapt_problem *p, uint64_t hash) {
  rapti_ctx_lock(ctx);
  rapt_plan *plan = lookup(&ctx->cache, p, hash);
  if (plan) {
    atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
    if (plan != ctx->cache.newest) {
      lru_remove(&ctx->cache, plan);
      lru_add(&ctx->cache, plan);
    }
  }
  rapti_ctx_unlock(ctx);
  return plan;
}

static rapt_plan *take_oldest(rapti_cache *c) {
  rapt_plan *plan = c->oldest;
  rapt_plan **link = bucket_of(c, plan->hash);
  while (*link != plan) link = &(*link)->chain;
  *link = plan->chain;
  lru_remove(c, plan);
  c->n--;
  return plan;
}

void rapti_cache_add(rapt_ctx *ctx, rapt_plan *plan, uint64_t hash) {
  rapt_plan *dropped = NULL;
  rapti_ctx_lock(ctx);
  rapti_cache *c = &ctx->cache;
  /* Not when rows were registered meanwhile, nor when another thread has just planned the same. */
  if (plan->d.registry == ctx->registry && !lookup(c, &plan->d.problem, hash)) {
    if (c->n == RAPTI_CACHE_PLANS) dropped = take_oldest(c);
    plan->hash = hash;
    plan->chain = *bucket_of(c, hash);
    *bucket_of(c, hash) = plan;
    lru_add(c, plan);
    c->n++;
    atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
  }
  rapti_ctx_unlock(ctx);
  if (dropped) rapti_plan_unref(dropped);
}

void rapti_cache_clear(rapt_ctx *ctx) {
  rapti_ctx_lock(ctx);
  rapt_plan *plan = ctx->cache.newest;
  memset(&ctx->cache, 0, sizeof ctx->cache);
  rapti_ctx_unlock(ctx);
  while (plan) {                          /* outside the lock: a backend's release may be anything */
    rapt_plan *older = plan->older;
    rapti_plan_unref(plan);
    plan = older;
  }
}
