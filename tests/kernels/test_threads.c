/* SPDX-License-Identifier: Apache-2.0 */
/* N16, N18, P10: the same bits for any number of threads, whoever runs the tasks, nested, concurrent and after fork. */
#include "common/run.h"

#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const texts[] = {
  "fp32 b2 h4/2 q70 k130 d40 causal=br lse", "bf16 b1 h2 q3 k1500 d64 lse", "fp16 b3 h1 q33 k64 d16/72 kvlen=int32 lse",
  "fp32 b1 h1 q1 k3000 d64 lse", "bf16 b1 h1 q300 k90 d32 mask=bool:1x1x300x90 lse"};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static void judge(tc_engine *e, tc_case *c) {
  tc_oracle *o = tc_oracle_new(c);
  tc_judge(e, c, o);
  tc_oracle_free(o);
}

static void same_bits_n18(tc_engine *e) {
  tc_case *one[N_TEXTS];
  for (int t = 0; t < N_TEXTS; t++) {
    one[t] = tc_case_new(texts[t], NULL);
    tc_run(e, one[t]);
    judge(e, one[t]);
  }
  for (uint32_t threads = 1; threads <= 8; threads++) {
    rapt_ctx *ctx = tc_context(e->isa, threads);
    for (int t = 0; t < N_TEXTS; t++) {
      tc_case *c = tc_case_new(texts[t], NULL);
      for (int repeat = 0; repeat < 2; repeat++) {
        tc_run_on(e, ctx, c);
        tc_same_outputs(one[t], c);
      }
      tc_case_free(c);
    }
    rapt_ctx_destroy(ctx);
  }
  for (int t = 0; t < N_TEXTS; t++) tc_case_free(one[t]);
}

/* ---- A caller's parallel_for: two threads, each with a task of its own first, in descending order ---- */

typedef struct hook {
  atomic_int calls, threads_that_ran;
  uint32_t most;          /* tasks in one call */
} hook;

typedef struct slice { void (*task)(void *, uint32_t); void *arg; atomic_int next; hook *hook; } slice;
typedef struct worker { slice *slice; int first; } worker;

static void *drain(void *arg) {
  worker *w = arg;
  slice *s = w->slice;
  if (w->first >= 0) atomic_fetch_add(&s->hook->threads_that_ran, 1);
  for (int mine = w->first; mine >= 0; mine = atomic_fetch_sub(&s->next, 1)) s->task(s->arg, (uint32_t)mine);
  return NULL;
}

static void parallel_for(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg) {
  hook *h = self;
  slice s = {.task = task, .arg = arg, .hook = h};
  worker other = {&s, (int)n - 1}, mine = {&s, (int)n - 2};
  pthread_t thread;
  atomic_init(&s.next, (int)n - 3);
  atomic_fetch_add(&h->calls, 1);
  if (n > h->most) h->most = n;
  atomic_store(&h->threads_that_ran, 0);
  assert_int_equal(pthread_create(&thread, NULL, drain, &other), 0);
  drain(&mine);
  pthread_join(thread, NULL);
}

static void hook_p10(tc_engine *e) {
  hook h = {.most = 0};
  rapt_ctx_opts opts = {.struct_size = sizeof opts};
  opts.isa = e->isa;
  opts.max_threads = 4;
  opts.flags = RAPT_CTX_NO_ENV;
  opts.parallel_for = parallel_for;
  opts.parallel_self = &h;
  rapt_ctx *ctx = NULL;
  assert_int_equal(rapt_ctx_create(&opts, &ctx, NULL), RAPT_OK);
  int both = 0;
  for (int t = 0; t < N_TEXTS; t++) {
    tc_case *one = tc_case_new(texts[t], NULL), *c = tc_case_new(texts[t], NULL);
    tc_run(e, one);
    tc_run_on(e, ctx, c);
    both += atomic_load(&h.threads_that_ran) == 2;
    tc_same_outputs(one, c);
    tc_case_free(one);
    tc_case_free(c);
  }
  assert_true(atomic_load(&h.calls) > 0);
  assert_in_range(h.most, 2, 4);      /* never more tasks than threads were promised (P3) */
  assert_true(both > 0);              /* two threads did run parts of one call */
  rapt_ctx_destroy(ctx);
}

/* ---- The own pool ---- */

static int count_threads(void) {
  int n = 0;
  DIR *dir = opendir("/proc/self/task");
  if (!dir) return -1;
  for (struct dirent *d; (d = readdir(dir));) n += d->d_name[0] != '.';
  closedir(dir);
  return n;
}

static void own_pool_n18(tc_engine *e) {
  int before = count_threads();
  rapt_ctx *ctx = tc_context(e->isa, 2);
  tc_case *c = tc_case_new(texts[0], NULL);
  tc_run_on(e, ctx, c);
  judge(e, c);
  int during = count_threads();
  if (before < 0) print_message("not measured here: no /proc/self/task\n");
  else assert_int_equal(during, before + 1);   /* the caller takes part, so one more */
  rapt_ctx_destroy(ctx);
  tc_case_free(c);
}

typedef struct meeting { atomic_int here; } meeting;

static void meet(void *arg, uint32_t i) {
  (void)i;
  meeting *m = arg;
  atomic_fetch_add(&m->here, 1);
  for (int tries = 0; tries < 5000 && atomic_load(&m->here) < 2; tries++) {
    struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL);
  }
}

/* Two tasks that wait for each other can only end on two threads. */
static void pool_is_parallel(void **state) {
  (void)state;
  rapti_pool *pool = rapti_pool_create(2);
  meeting m;
  atomic_init(&m.here, 0);
  rapti_pool_run(pool, 2, meet, &m);
  assert_int_equal(atomic_load(&m.here), 2);
  rapti_pool_destroy(pool);
}

/* ---- Nested, concurrent, forked (P5, P10) ---- */

/* cmocka's assertions belong to the main thread: here only statuses and bits are kept. */
typedef struct caller { tc_engine *e; rapt_ctx *ctx; tc_case *c[2]; atomic_int failed; } caller;

static void call(void *arg, uint32_t i) {
  caller *k = arg;
  rapt_problem p = k->c[i]->p;
  p.require = k->e->row->id;
  for (int repeat = 0; repeat < 20; repeat++)
    if (rapt_attention(k->ctx, &p, &k->c[i]->b, NULL) != RAPT_OK) atomic_fetch_add(&k->failed, 1);
}

static void *call_first(void *arg) {
  call(arg, 0);
  return NULL;
}

static void prepare(caller *k, tc_engine *e, uint32_t threads) {
  k->e = e;
  k->ctx = tc_context(e->isa, threads);
  for (int i = 0; i < 2; i++) k->c[i] = tc_case_new(texts[0], NULL);
  atomic_init(&k->failed, 0);
}

static void finish(caller *k) {
  tc_case *one = tc_case_new(texts[0], NULL);
  assert_int_equal(atomic_load(&k->failed), 0);
  tc_run(k->e, one);
  for (int i = 0; i < 2; i++) {
    tc_same_outputs(one, k->c[i]);
    tc_case_free(k->c[i]);
  }
  tc_case_free(one);
  rapt_ctx_destroy(k->ctx);
}

static void nested_p10(tc_engine *e) {
  caller k;
  prepare(&k, e, 2);
  rapti_pool *outer = rapti_pool_create(2);
  rapti_pool_run(outer, 2, call, &k);
  rapti_pool_destroy(outer);
  finish(&k);
}

static void concurrent_p5(tc_engine *e) {
  caller k;
  prepare(&k, e, 3);
  pthread_t other;
  assert_int_equal(pthread_create(&other, NULL, call_first, &k), 0);
  call(&k, 1);
  pthread_join(other, NULL);
  finish(&k);
}

/* The child's pool has lost its threads; it must start new ones, not wait for them. */
static void fork_p10(tc_engine *e) {
  caller k;
  prepare(&k, e, 2);
  tc_run_on(e, k.ctx, k.c[1]);
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    alarm(60);
    call(&k, 0);
    bool same = tc_same_bits(&k.c[0]->out, &k.c[1]->out) && tc_same_bits(&k.c[0]->lse, &k.c[1]->lse);
    _exit(atomic_load(&k.failed) || !same);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  call(&k, 0);
  finish(&k);
}

int main(void) {
  static const tc_test tests[] = {
    {"same_bits_n16_n18", same_bits_n18},
    {"hook_p10", hook_p10},
    {"own_pool_n18", own_pool_n18},
    {"nested_p10", nested_p10},
    {"concurrent_p5", concurrent_p5},
    {"fork_p10", fork_p10},
  };
  const struct CMUnitTest pool[] = {cmocka_unit_test(pool_is_parallel)};
  int failed = tc_run_tests("threads", tests, sizeof tests / sizeof *tests);
  return failed + cmocka_run_group_tests_name("pool", pool, NULL, NULL);
}
