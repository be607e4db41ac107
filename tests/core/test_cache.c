/* SPDX-License-Identifier: Apache-2.0 */
/* The one-shot call's plans (P8): found again, at most 256, the least recently used leave first, dropped when rows are
 * registered; usable from many threads and after a fork (P10). */
#include "core/ctx.h"
#include "fake.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void call(rapt_ctx *ctx, const rapt_problem *p) {
  static float data[3 * 4096];
  float out[64];
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = data;
  b.k = b.v = data + 64;
  b.out = out;
  assert_int_equal(rapt_attention(ctx, p, &b, NULL), RAPT_OK);
}

static void call_k(rapt_ctx *ctx, int64_t k) {
  rapt_problem p = parsed("fp32 b1 h1 q1 k1 d8");
  p.Skv = k;
  call(ctx, &p);
}

static void test_lru_p8(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  fake_register(ctx, &f);
  for (int k = 1; k <= 256; k++) call_k(ctx, k);
  assert_int_equal(f.prepares, 256);
  assert_int_equal(f.releases, 0);
  for (int k = 1; k <= 256; k++) call_k(ctx, k);       /* all still there */
  assert_int_equal(f.prepares, 256);
  call_k(ctx, 1);                                      /* 2 is now the least recently used */
  call_k(ctx, 257);
  assert_int_equal(f.prepares, 257);
  assert_int_equal(f.releases, 1);
  call_k(ctx, 1);
  assert_int_equal(f.prepares, 257);
  call_k(ctx, 2);
  assert_int_equal(f.prepares, 258);
  assert_int_equal(f.releases, 2);
  rapt_ctx_trim(ctx);
  assert_int_equal(f.releases, 258);
  call_k(ctx, 1);
  assert_int_equal(f.prepares, 259);
  rapt_ctx_destroy(ctx);
  assert_int_equal(f.releases, 259);
}

static void test_key(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  fake_register(ctx, &f);
  rapt_problem p = parsed("fp32 b1 h1 q1 k1 d8");
  call(ctx, &p);
  call(ctx, &p);
  assert_int_equal(f.prepares, 1);
  char names[] = "fake,ref";
  p.prefer = names;
  call(ctx, &p);
  assert_int_equal(f.prepares, 2);
  char again[] = "fake,ref";              /* equal texts, not equal pointers, are the same problem */
  p.prefer = again;
  call(ctx, &p);
  assert_int_equal(f.prepares, 2);
  strcpy(again, "ref,fake");              /* the same pointer, another text */
  call(ctx, &p);
  assert_int_equal(f.runs, 4);            /* by ref */
  assert_int_equal(row_entered(ctx, "ref"), 1);
  p.prefer = NULL;
  p.require = names;
  call(ctx, &p);
  assert_int_equal(f.prepares, 3);
  struct { rapt_problem p; char tail[8]; } big = {.p = parsed("fp32 b1 h1 q1 k1 d8")};
  big.p.struct_size = sizeof big;
  call(ctx, &big.p);
  assert_int_equal(f.prepares, 3);        /* a longer struct with a zero tail is the same problem */
  big.tail[7] = 1;
  rapt_buffers b = RAPT_BUFFERS_INIT;
  assert_int_equal(rapt_attention(ctx, &big.p, &b, NULL), RAPT_ABI);
  rapt_ctx_destroy(ctx);
}

/* Two problems of one hash are still two: every word and every name is compared. */
static void test_equal_hash(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  rapt_problem p = parsed("fp32 b1 h1 q1 k1 d8"), other;
  p.require = "ref";
  p.prefer = "ref";
  call(ctx, &p);
  uint64_t hash = rapti_problem_hash(&p);
  rapt_plan *plan = rapti_cache_find(ctx, &p, hash);
  assert_non_null(plan);
  rapti_plan_unref(plan);
  for (size_t at = 0; at < offsetof(rapt_problem, require); at++) {
    other = p;
    ((unsigned char *)&other)[at] ^= 1;
    assert_null(rapti_cache_find(ctx, &other, hash));
    assert_true(rapti_problem_hash(&other) != hash);
  }
  const char **const names[] = {&other.require, &other.prefer, &other.forbid, &other.origin};
  for (int i = 0; i < 4; i++) {
    other = p;
    *names[i] = "class:fused";
    assert_null(rapti_cache_find(ctx, &other, hash));
    assert_true(rapti_problem_hash(&other) != hash);
    *names[i] = i < 2 ? NULL : "";
    assert_null(rapti_cache_find(ctx, &other, hash));
  }
  rapt_ctx_destroy(ctx);
}

/* A plan decided on rows that a registration has since replaced is not kept. */
static void test_late_plan(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  rapt_problem p = parsed("fp32 b1 h1 q1 k1 d8");
  uint64_t hash = rapti_problem_hash(&p);
  rapt_plan *plan;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapti_plan_make(ctx, &p, &plan, &why), RAPT_OK);
  fake_register(ctx, &f);
  rapti_cache_add(ctx, plan, hash);
  rapti_plan_unref(plan);
  assert_null(rapti_cache_find(ctx, &p, hash));
  call(ctx, &p);
  assert_int_equal(f.runs, 1);
  rapt_ctx_destroy(ctx);
}

/* Rows registered later count at once, and plans held by the caller go on as they are. */
static int runs_again;
static rapt_status run_again(void *self, uint32_t row, void *state, const rapt_problem *cast, const rapt_buffers *b,
                             void *workspace, void *stream) {
  runs_again++;
  return fake_run(self, row, state, cast, b, workspace, stream);
}

static void test_registration(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  fake_register(ctx, &f);
  rapt_problem p = parsed("fp32 b1 h1 q1 k1 d8");
  call(ctx, &p);
  rapt_plan *held;
  assert_int_equal(rapt_plan_create(ctx, &p, &held, NULL), RAPT_OK);
  runs_again = 0;
  f.backend.run = run_again;              /* the same provider again, in place of its row */
  fake_register(ctx, &f);
  assert_int_equal(f.releases, 1);
  call(ctx, &p);
  assert_int_equal(f.runs, 2);
  assert_int_equal(runs_again, 1);
  assert_int_equal(row_entered(ctx, "fake"), 2);
  small s;
  small_make(&s, "fp32 b1 h1 q1 k1 d8");
  assert_int_equal(rapt_plan_run(held, &s.b, NULL, 0, NULL), RAPT_OK);
  assert_int_equal(f.runs, 3);
  assert_int_equal(runs_again, 1);        /* a plan keeps the code it was made for */
  rapt_plan_destroy(held);
  assert_int_equal(f.releases, 2);
  rapt_ctx_destroy(ctx);
}

/* A hit gives the decision, bits and report of a fresh context. */
static void test_same_decision(void **state) {
  (void)state;
  rapt_ctx *warm = ctx_plain(), *cold = ctx_plain();
  small a, b;
  small_make(&a, SMALL);
  small_make(&b, SMALL);
  rapt_report *ra, *rb;
  for (int i = 0; i < 3; i++) assert_int_equal(rapt_attention(warm, &a.p, &a.b, NULL), RAPT_OK);
  assert_int_equal(rapt_attention(warm, &a.p, &a.b, &ra), RAPT_OK);
  assert_int_equal(rapt_attention(cold, &b.p, &b.b, &rb), RAPT_OK);
  assert_memory_equal(a.out, b.out, sizeof a.out);
  char *ta = report_text(ra, RAPT_FORM_JSON), *tb = report_text(rb, RAPT_FORM_JSON);
  assert_string_equal(ta, tb);
  free(ta);
  free(tb);
  rapt_report_destroy(ra);
  rapt_report_destroy(rb);
  rapt_ctx_destroy(warm);
  rapt_ctx_destroy(cold);
}

typedef struct worker { rapt_ctx *ctx; int first, bad; } worker;

static void *many_calls(void *arg) {
  worker *w = arg;
  static const float data[1024];
  rapt_problem p = RAPT_PROBLEM_INIT;
  p.q.dtype = p.k.dtype = p.v.dtype = RAPT_FP32;
  p.B = p.Hq = p.Hkv = p.Sq = 1;
  p.D = p.Dv = 8;
  for (int i = 0; i < 600; i++) {
    float out[8];
    rapt_buffers b = RAPT_BUFFERS_INIT;
    p.Skv = 1 + (w->first + i * 7) % 120;
    p.memory_limit = i % 3;
    p.has = RAPT_HAS_MEMORY_LIMIT;        /* 360 problems in all: plans leave while others run them */
    if (p.memory_limit == 0) p.has = 0;
    b.q = b.k = b.v = data;
    b.out = out;
    rapt_status st = rapt_attention(w->ctx, &p, &b, NULL);
    if (st != RAPT_OK && st != RAPT_REFUSED) w->bad++;
    if (i % 100 == 99) rapt_ctx_trim(w->ctx);
  }
  return NULL;
}

static void test_threads_p5(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  pthread_t t[4];
  worker w[4];
  for (int i = 0; i < 4; i++) {
    w[i] = (worker){ctx, i * 31, 0};
    assert_int_equal(pthread_create(&t[i], NULL, many_calls, &w[i]), 0);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(t[i], NULL);
    assert_int_equal(w[i].bad, 0);
  }
  rapt_ctx_destroy(ctx);
}

static void *until_told(void *arg) {
  worker *w = arg;
  while (!__atomic_load_n(&w->bad, __ATOMIC_RELAXED)) {
    worker one = {w->ctx, w->first, 0};
    many_calls(&one);
  }
  return NULL;
}

static int child_works(rapt_ctx *ctx) {
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(20);                            /* a lock left taken would hang here */
    rapt_problem p = RAPT_PROBLEM_INIT;
    p.q.dtype = p.k.dtype = p.v.dtype = RAPT_FP32;
    p.B = p.Hq = p.Hkv = p.Sq = p.Skv = 1;
    p.D = p.Dv = 8;
    float x[8] = {1.0f}, out[8] = {0};
    rapt_buffers b = RAPT_BUFFERS_INIT;
    b.q = b.k = b.v = x;
    b.out = out;
    int ok = rapt_attention(ctx, &p, &b, NULL) == RAPT_OK && out[0] == 1.0f;
    ok = ok && rapt_attention(ctx, &p, &b, NULL) == RAPT_OK;
    rapt_ctx_trim(ctx);
    _exit(ok ? 0 : 1);
  }
  int how = 0;
  assert_int_equal(waitpid(child, &how, 0), child);
  return WIFEXITED(how) && WEXITSTATUS(how) == 0;
}

/* The fork comes while another thread is in the middle of the lists: the child leaves these alone. */
static void test_fork_within_p10(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  rapti_cache *saved = malloc(sizeof *saved);
  rapti_ctx_lock(ctx);
  *saved = ctx->cache;
  memset(&ctx->cache, 0x41, sizeof ctx->cache);
  int ok = child_works(ctx);
  ctx->cache = *saved;
  rapti_ctx_unlock(ctx);
  assert_true(ok);
  assert_true(child_works(ctx));
  free(saved);
  rapt_ctx_destroy(ctx);
}

/* The sanitizers do not survive a fork of a process with threads at work: there the context has one thread. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define BUSY 0
#endif
#endif
#if !defined(BUSY) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define BUSY 0
#endif
#ifndef BUSY
#define BUSY 2
#endif

/* Forks while other threads plan and run: the child has a usable context and the same bits. */
static void test_fork_p10(void **state) {
  (void)state;
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.max_threads = BUSY ? 2 : 1;
  rapt_ctx *ctx;
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  small s;
  small_make(&s, SMALL);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  float want[48];
  memcpy(want, s.out, sizeof want);
  pthread_t t[2];
  worker w[2] = {{ctx, 0, 0}, {ctx, 50, 0}};
  for (int i = 0; i < BUSY; i++) assert_int_equal(pthread_create(&t[i], NULL, until_told, &w[i]), 0);
  for (int i = 0; i < 20; i++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      alarm(20);                          /* a lock left taken would hang here */
      memset(s.out, 0, sizeof s.out);
      int ok = rapt_attention(ctx, &s.p, &s.b, NULL) == RAPT_OK && memcmp(s.out, want, sizeof want) == 0;
      s.p.Sq = 2;
      ok = ok && rapt_attention(ctx, &s.p, &s.b, NULL) == RAPT_OK;
      rapt_ctx_trim(ctx);
      _exit(ok ? 0 : 1);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  }
  for (int i = 0; i < BUSY; i++) __atomic_store_n(&w[i].bad, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < BUSY; i++) pthread_join(t[i], NULL);
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_lru_p8), cmocka_unit_test(test_key), cmocka_unit_test(test_equal_hash),
    cmocka_unit_test(test_late_plan), cmocka_unit_test(test_registration),
    cmocka_unit_test(test_same_decision), cmocka_unit_test(test_threads_p5),
    cmocka_unit_test(test_fork_within_p10), cmocka_unit_test(test_fork_p10),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
