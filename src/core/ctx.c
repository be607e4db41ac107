/* SPDX-License-Identifier: Apache-2.0 */
/* The context: memory, lock, options, lifetime. */
#include "base/float_state.h"
#include "core/ctx.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 4096u
#define MAX_TAIL 4096u          /* bytes that a struct of a later version may have more: beyond, the size is garbage */

/* ---- Lock ---- */

static atomic_uint forks;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void forked(void) { atomic_fetch_add(&forks, 1); }
static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, forked); }

bool rapti_lock_take(rapti_lock *l) {
  unsigned mine = atomic_load_explicit(&forks, memory_order_relaxed) << 1 | 1u;
  for (unsigned tries = 1;; tries++) {
    unsigned seen = 0;
    if (atomic_compare_exchange_weak_explicit(&l->word, &seen, mine, memory_order_acquire, memory_order_relaxed))
      return false;
    if (seen != 0 && seen != mine &&
        atomic_compare_exchange_strong_explicit(&l->word, &seen, mine, memory_order_acquire, memory_order_relaxed))
      return true;
    if (tries % 64 == 0) sched_yield();
  }
}

void rapti_lock_drop(rapti_lock *l) { atomic_store_explicit(&l->word, 0, memory_order_release); }

void rapti_ctx_lock(rapt_ctx *ctx) {
  if (!rapti_lock_take(&ctx->lock)) return;
  /* Lists that another thread was changing at the fork: the child leaves them alone and starts new ones. */
  memset(&ctx->cache, 0, sizeof ctx->cache);
  ctx->arenas = NULL;
}

void rapti_ctx_unlock(rapt_ctx *ctx) { rapti_lock_drop(&ctx->lock); }

/* ---- Memory ---- */

static void *libc_alloc(void *self, size_t bytes, size_t align) {
  (void)self;
  if (align < sizeof(void *)) align = sizeof(void *);
  if (bytes > SIZE_MAX - align) return NULL;
  return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void libc_free(void *self, void *p) {
  (void)self;
  free(p);
}

void *rapti_alloc(rapt_ctx *ctx, size_t bytes) {
  return ctx->services.alloc(ctx->services.alloc_self, bytes ? bytes : 1, 64);
}

void *rapti_zalloc(rapt_ctx *ctx, size_t bytes) {
  void *p = rapti_alloc(ctx, bytes);
  if (p) memset(p, 0, bytes);
  return p;
}

void rapti_free(rapt_ctx *ctx, void *p) {
  if (p) ctx->services.free(ctx->services.alloc_self, p);
}

void *rapti_block_alloc(rapt_ctx *ctx, size_t bytes) {
  const size_t head = 64;                 /* keeps the payload aligned */
  if (bytes > SIZE_MAX - head) return NULL;
  rapti_block *block = rapti_zalloc(ctx, head + bytes);
  if (!block) return NULL;
  rapti_ctx_lock(ctx);
  block->next = ctx->blocks;
  ctx->blocks = block;
  rapti_ctx_unlock(ctx);
  return (char *)block + head;
}

const char *rapti_block_copy(rapt_ctx *ctx, const char *s, size_t n) {
  char *copy = rapti_block_alloc(ctx, n + 1);
  if (copy) memcpy(copy, s, n);
  return copy;
}

/* ---- Structs of the caller ---- */

rapt_status rapti_struct_check(const void *given, size_t known, const char *name, rapt_reason *why) {
  uint32_t size;
  memcpy(&size, given, sizeof size);
  bool bad = size < known || size - known > MAX_TAIL;
  for (size_t i = known; !bad && i < size; i++) bad = ((const unsigned char *)given)[i] != 0;
  if (!bad) return RAPT_OK;
  rapti_reason_set(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE, -1, -1);
  rapti_reason_got(why, "a %s of %lld bytes%s", name, (long long)size, size > known ? ", not all zero at its end" : "");
  rapti_reason_want(why, "this version's %s has %lld bytes; what is longer must be zero behind them", name,
                    (long long)known);
  return RAPT_ABI;
}

rapt_status rapti_struct_give(void *to, const void *filled, size_t known) {
  uint32_t size;
  memcpy(&size, to, sizeof size);
  if (size < known) return RAPT_ABI;
  memcpy((char *)to + sizeof size, (const char *)filled + sizeof size, known - sizeof size);
  return RAPT_OK;
}

/* ---- Options ---- */

static rapt_status fault(rapt_reason *why, int code, int field, const char *got, const char *want) {
  rapti_reason_set(why, code, field, -1, -1);
  rapti_reason_got(why, "%s", got);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

static rapt_status options_check(const rapt_ctx_opts *o, rapt_reason *why) {
  if (o->reserved || o->flags & ~(uint64_t)RAPT_CTX_NO_ENV)
    return fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_FLAGS, "an unknown flag", "RAPT_CTX_NO_ENV or 0");
  if (o->has & ~RAPT_HAS_MEMORY_LIMIT)
    return fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_HAS, "an unknown bit", "RAPT_HAS_MEMORY_LIMIT or 0");
  if (o->memory_limit && !(o->has & RAPT_HAS_MEMORY_LIMIT))
    return fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_MEMORY_LIMIT, "set", "its bit in has is not set");
  if (!o->alloc != !o->free)
    return fault(why, RAPT_CODE_NULL, RAPT_FIELD_ALLOC, "one of alloc and free", "both or neither");
  if (o->verify)
    return fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_VERIFY, "a number of rows", "not in this version");
  if (o->memory_limit < 0) {
    rapti_reason_set(why, RAPT_CODE_SIZE, RAPT_FIELD_MEMORY_LIMIT, -1, -1);
    rapti_reason_got(why, "%lld", (long long)o->memory_limit);
    rapti_reason_want(why, "0 or more bytes");
    return RAPT_ARG;
  }
  if (o->max_threads > MAX_THREADS) {
    rapti_reason_set(why, RAPT_CODE_SIZE, RAPT_FIELD_MAX_THREADS, -1, -1);
    rapti_reason_got(why, "%lld", (long long)o->max_threads);
    rapti_reason_want(why, "0..%lld", (long long)MAX_THREADS);
    return RAPT_ARG;
  }
  return RAPT_OK;
}

typedef struct job {
  void (*task)(void *arg, uint32_t i);
  void *arg;
} job;

/* The threads that take part have modes of their own, whoever made them (N18, D22). */
static void run_job(void *arg, uint32_t i) {
  const job *j = arg;
  const rapti_float_state modes = rapti_float_enter();
  j->task(j->arg, i);
  rapti_float_leave(modes);
}

static void parallel_for(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg) {
  const rapt_ctx *ctx = self;
  job j = {task, arg};
  if (ctx->parallel_for) ctx->parallel_for(ctx->parallel_self, n, run_job, &j);
  else rapti_pool_run(ctx->pool, n, run_job, &j);
}

static rapt_ctx *ctx_new(const rapt_ctx_opts *o) {
  void *(*alloc)(void *, size_t, size_t) = o->alloc ? o->alloc : libc_alloc;
  rapt_ctx *ctx = alloc(o->alloc_self, sizeof *ctx, 64);
  if (!ctx) return NULL;
  memset(ctx, 0, sizeof *ctx);
  atomic_init(&ctx->refs, 1);
  rapti_services *s = &ctx->services;
  s->alloc = alloc;
  s->free = o->alloc ? o->free : libc_free;
  s->alloc_self = o->alloc_self;
  s->max_threads = o->max_threads ? o->max_threads : rapti_usable_cores();
  s->parallel_for = parallel_for;
  s->parallel_self = ctx;
  ctx->parallel_for = o->parallel_for;
  ctx->parallel_self = o->parallel_self;
  ctx->log.fd = -1;
  ctx->log.line = o->log;
  ctx->log.self = o->log_self;
  return ctx;
}

/* Copies a text into the context. false: out of memory. */
static bool keep(rapt_ctx *ctx, const char *s, const char **to) {
  *to = NULL;
  if (!s) return true;
  *to = rapti_block_copy(ctx, s, strlen(s));
  return *to != NULL;
}

static bool levels_keep(rapt_ctx *ctx, const rapt_ctx_opts *o, const rapti_env *env) {
  rapti_settings *e = &ctx->levels[RAPTI_ENVIRONMENT], *c = &ctx->levels[RAPTI_CONTEXT];
  e->memory_limit = env->memory_limit;
  e->has_memory_limit = env->has_memory_limit;
  e->ref_limit = env->ref_limit;
  e->has_ref_limit = env->has_ref_limit;
  c->memory_limit = o->memory_limit;
  c->has_memory_limit = (o->has & RAPT_HAS_MEMORY_LIMIT) != 0;
  c->ref_limit = o->ref_limit;
  c->has_ref_limit = o->ref_limit != 0;
  return keep(ctx, env->require, &e->require) && keep(ctx, env->prefer, &e->prefer) &&
         keep(ctx, env->forbid, &e->forbid) && keep(ctx, o->require, &c->require) &&
         keep(ctx, o->prefer, &c->prefer) && keep(ctx, o->forbid, &c->forbid);
}

/* A cap lowers the level, it never raises it (D26). */
static rapt_status isa_cap(const char *name, int32_t *isa, rapt_reason *why) {
  if (!name) return RAPT_OK;
  int cap = rapti_isa_find(name, strlen(name));
  if (cap < 0)
    return fault(why, RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_ISA, name, "scalar, avx2, avx512, avx512bf16, neon or neon_bf16");
  if (*isa < 0) return RAPT_OK;           /* a what-if that does not say its level */
  if (!rapti_isa_covers(*isa, cap)) return fault(why, RAPT_CODE_ISA, RAPT_FIELD_ISA, name, rapti_isa_name(*isa));
  *isa = cap;
  return RAPT_OK;
}

/* The narrower level counts (D9), both must be legal. A what-if of a lesser machine is no fault of the environment's. */
static rapt_status isa_in_force(const char *of_ctx, const char *of_env, rapt_facts *f, rapt_reason *why) {
  int32_t by_ctx = f->isa, by_env = f->isa;
  rapt_status st = isa_cap(of_ctx, &by_ctx, why);
  if (st != RAPT_OK) return st;
  rapt_reason env = RAPT_REASON_INIT;
  st = isa_cap(of_env, &by_env, &env);
  if (st != RAPT_OK && !(f->what_if && env.code == RAPT_CODE_ISA)) {
    rapti_env_blame(&env, RAPT_FIELD_ENV_ISA);
    if (why) rapti_struct_give(why, &env, sizeof env);
    return st;
  }
  f->isa = of_ctx ? by_ctx : by_env;
  return RAPT_OK;
}

static rapt_status facts_make(rapt_ctx *ctx, const rapt_ctx_opts *o, const rapti_env *env, rapt_facts *f,
                              rapt_reason *why) {
  rapt_status st = RAPT_OK;
  rapti_facts_init(f, RAPT_CPU);
  if (o->facts) {
    st = rapti_facts_parse(o->facts, strlen(o->facts), f, why);
    f->what_if = 1;
  } else {
    f->isa = (int32_t)rapti_isa_detect();
    f->threads = (int32_t)ctx->services.max_threads;
    rapti_facts_texts(f);
  }
  if (st == RAPT_OK) st = isa_in_force(o->isa, env->isa, f, why);
  ctx->what_if = f->what_if;
  ctx->isa = f->isa;
  ctx->threads = f->what_if && f->threads > 0 ? (uint32_t)f->threads : ctx->services.max_threads;
  return st;
}

/* Names of a level that no call has to stumble over later (D8, D23). */
static rapt_status names_check(rapt_ctx *ctx, rapt_reason *why) {
  for (int level = RAPTI_ENVIRONMENT; level <= RAPTI_CONTEXT; level++) {
    static const int variable[] = {RAPT_FIELD_ENV_REQUIRE, RAPT_FIELD_ENV_PREFER, RAPT_FIELD_ENV_FORBID};
    const char *texts[3] = {ctx->levels[level].require, ctx->levels[level].prefer, ctx->levels[level].forbid};
    for (int i = 0; i < 3; i++) {
      rapti_settings one[RAPTI_LEVELS] = {{0}};
      rapti_policy policy;
      rapti_settings *s = &one[level];
      *(i == 0 ? &s->require : i == 1 ? &s->prefer : &s->forbid) = texts[i];
      rapt_status st = rapti_policy_make(one, ctx->registry, NULL, &policy, why);
      if (st == RAPT_OK) continue;
      if (level == RAPTI_ENVIRONMENT) rapti_env_blame(why, variable[i]);
      return st;
    }
  }
  return RAPT_OK;
}

static rapt_status ctx_fill(rapt_ctx *ctx, const rapt_ctx_opts *o, rapt_reason *why) {
  rapti_env env = {0};
  rapt_facts facts;
  rapt_status st = RAPT_OK;
  if (!(o->flags & RAPT_CTX_NO_ENV)) st = rapti_env_read(&env, why);
  if (st == RAPT_OK) st = facts_make(ctx, o, &env, &facts, why);
  if (st == RAPT_OK && env.log && !ctx->log.line) st = rapti_log_open(&ctx->log, env.log, why);
  if (st != RAPT_OK) return st;
  if (!ctx->parallel_for) {
    ctx->pool = rapti_pool_create(ctx->services.max_threads);
    if (!ctx->pool) return RAPT_NOMEM;
  }
  if (!levels_keep(ctx, o, &env)) return RAPT_NOMEM;
  st = rapti_registry_builtin(ctx, &facts, &ctx->registry, why);
  return st == RAPT_OK ? names_check(ctx, why) : st;
}

rapt_status rapt_ctx_create(const rapt_ctx_opts *opts, rapt_ctx **out, rapt_reason *why) {
  static const rapt_ctx_opts defaults = RAPT_CTX_OPTS_INIT;
  rapti_reason_set(why, RAPT_CODE_NONE, RAPT_FIELD_NONE, -1, -1);
  if (!out) return fault(why, RAPT_CODE_NULL, RAPT_FIELD_CTX, "NULL", "a place for the context");
  *out = NULL;
  const rapt_ctx_opts *o = opts ? opts : &defaults;
  rapt_status st = rapti_struct_check(o, sizeof *o, "rapt_ctx_opts", why);
  if (st == RAPT_OK) st = options_check(o, why);
  if (st != RAPT_OK) return st;
  (void)pthread_once(&fork_once, watch_forks);
  rapt_ctx *ctx = ctx_new(o);
  st = ctx ? ctx_fill(ctx, o, why) : RAPT_NOMEM;
  if (st == RAPT_OK) *out = ctx;
  else if (ctx) rapti_ctx_unref(ctx);
  return st;
}

/* ---- Lifetime ---- */

static void arenas_free(rapt_ctx *ctx) {
  rapti_ctx_lock(ctx);
  rapti_arena *arena = ctx->arenas;
  ctx->arenas = NULL;
  rapti_ctx_unlock(ctx);
  while (arena) {
    rapti_arena *next = arena->next;
    rapti_free(ctx, arena->data);
    rapti_free(ctx, arena);
    arena = next;
  }
}

void rapti_ctx_ref(rapt_ctx *ctx) { atomic_fetch_add_explicit(&ctx->refs, 1, memory_order_relaxed); }

void rapti_ctx_unref(rapt_ctx *ctx) {
  if (atomic_fetch_sub_explicit(&ctx->refs, 1, memory_order_acq_rel) != 1) return;
  rapt_ctx_trim(ctx);
  if (ctx->registry) rapti_registry_unref(ctx, ctx->registry);
  rapti_pool_destroy(ctx->pool);
  rapti_log_close(&ctx->log);
  while (ctx->blocks) {
    rapti_block *next = ctx->blocks->next;
    rapti_free(ctx, ctx->blocks);
    ctx->blocks = next;
  }
  ctx->services.free(ctx->services.alloc_self, ctx);
}

void rapt_ctx_destroy(rapt_ctx *ctx) {
  if (!ctx) return;
  rapt_ctx_trim(ctx);
  rapti_ctx_unref(ctx);
}

void rapt_ctx_trim(rapt_ctx *ctx) {
  if (!ctx) return;
  rapti_cache_clear(ctx);
  arenas_free(ctx);
}

size_t rapt_ctx_facts_format(const rapt_ctx *ctx, char *buf, size_t n) {
  rapt_ctx *c = (rapt_ctx *)(uintptr_t)ctx;            /* only the reference count changes */
  if (!c) {
    if (n) buf[0] = '\0';
    return 0;
  }
  rapti_registry *g = rapti_registry_get(c);
  size_t len = rapti_facts_format(&g->facts, buf, n);
  rapti_registry_unref(c, g);
  return len;
}
