/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool (P10). */
#include "base/base.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 1000 };
typedef struct counts {
  atomic_uint hits[N];
  rapti_pool *pool;
  atomic_uint threads;                         /* distinct threads seen, an upper count */
} counts;

static _Thread_local const counts *seen_in;

static void count(void *arg, uint32_t i) {
  counts *c = arg;
  if (seen_in != c) {
    seen_in = c;
    atomic_fetch_add(&c->threads, 1);
  }
  atomic_fetch_add(&c->hits[i], 1);
}

static int wrong(const counts *c, uint32_t n, unsigned times) {
  for (uint32_t i = 0; i < N; i++)
    if (atomic_load(&c->hits[i]) != (i < n ? times : 0)) return 1;
  return 0;
}

static void every_index_runs_once(void **state) {
  (void)state;
  const uint32_t sizes[] = {0, 1, 2, 3, 7, 64, N};
  for (uint32_t threads = 0; threads <= 5; threads++) {
    rapti_pool *p = rapti_pool_create(threads);
    assert_non_null(p);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
      for (int again = 0; again < 20; again++) {
        counts *c = calloc(1, sizeof *c);
        rapti_pool_run(p, sizes[s], count, c);
        assert_false(wrong(c, sizes[s], 1));
        assert_true(atomic_load(&c->threads) <= (threads ? threads : 1));
        free(c);
      }
    rapti_pool_destroy(p);
  }
}

/* Two tasks that wait for each other finish only on two threads. */
static void meet(void *arg, uint32_t i) {
  atomic_uint *here = arg;
  (void)i;
  atomic_fetch_add(here, 1);
  for (int t = 0; t < 10000 && atomic_load(here) < 2; t++) nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void work_is_shared(void **state) {
  (void)state;
  rapti_pool *p = rapti_pool_create(2);
  for (int again = 0; again < 3; again++) {
    atomic_uint here = 0;
    const time_t start = time(NULL);
    rapti_pool_run(p, 2, meet, &here);
    assert_int_equal(atomic_load(&here), 2);
    assert_true(time(NULL) - start < 9);
    nanosleep(&(struct timespec){0, 20000000}, NULL);   /* the worker goes to sleep and must be woken */
  }
  rapti_pool_destroy(p);
}

typedef struct slow {
  atomic_uint here, done;
  pthread_t caller;
} slow;

static void finish_late(void *arg, uint32_t i) {
  slow *s = arg;
  meet(&s->here, i);
  if (!pthread_equal(pthread_self(), s->caller)) nanosleep(&(struct timespec){0, 30000000}, NULL);
  atomic_fetch_add(&s->done, 1);
}

static void a_run_ends_after_its_last_task(void **state) {
  (void)state;
  rapti_pool *p = rapti_pool_create(2);
  slow *s = calloc(1, sizeof *s);
  s->caller = pthread_self();
  rapti_pool_run(p, 2, finish_late, s);
  assert_int_equal(atomic_load(&s->done), 2);
  rapti_pool_destroy(p);
  free(s);
}

static atomic_uint other_thread;

static void nest(void *arg, uint32_t i) {
  counts *c = arg;
  (void)i;
  rapti_pool_run(c->pool, 10, count, c);
  if (seen_in != c) atomic_store(&other_thread, 1);
}

static void p10_nested_calls_run_inline(void **state) {
  (void)state;
  counts *c = calloc(1, sizeof *c);
  c->pool = rapti_pool_create(3);
  rapti_pool_run(c->pool, 8, nest, c);
  assert_false(wrong(c, 10, 8));
  assert_int_equal(atomic_load(&other_thread), 0);
  rapti_pool_destroy(c->pool);
  free(c);
}

static void *caller(void *arg) {
  counts *c = arg;
  for (int i = 0; i < 200; i++) rapti_pool_run(c->pool, 16, count, c);
  return NULL;
}

static void p10_concurrent_callers(void **state) {
  (void)state;
  counts *c = calloc(1, sizeof *c);
  c->pool = rapti_pool_create(3);
  pthread_t t[4];
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, caller, c), 0);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  assert_false(wrong(c, 16, 800));
  rapti_pool_destroy(c->pool);
  free(c);
}

/* exit status of a child that runs the pool; a hang is ended by the alarm. */
static int child_run(rapti_pool *p) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    counts *c = calloc(1, sizeof *c);
    atomic_uint here = 0;
    rapti_pool_run(p, N, count, c);
    rapti_pool_run(p, 2, meet, &here);         /* new workers were started */
    const int bad = wrong(c, N, 1) || atomic_load(&here) != 2;
    rapti_pool_destroy(p);
    _exit(bad);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

static void p10_after_fork(void **state) {
  (void)state;
  rapti_pool *p = rapti_pool_create(3);
  assert_int_equal(child_run(p), 0);           /* before any thread exists */
  counts *c = calloc(1, sizeof *c);
  rapti_pool_run(p, N, count, c);
  assert_int_equal(child_run(p), 0);           /* workers spinning or asleep in the parent */
  rapti_pool_run(p, N, count, c);
  assert_false(wrong(c, N, 2));                /* the parent's pool still works */
  rapti_pool_destroy(p);
  free(c);
}

static void nothing(void *arg, uint32_t i) {
  (void)arg;
  (void)i;
}

static void *keep_busy(void *arg) {
  counts *c = arg;
  while (!atomic_load(&c->threads)) rapti_pool_run(c->pool, 64, nothing, NULL);
  return NULL;
}

static void p10_fork_during_a_run(void **state) {
  (void)state;
  counts *c = calloc(1, sizeof *c);
  c->pool = rapti_pool_create(3);
  pthread_t t;
  assert_int_equal(pthread_create(&t, NULL, keep_busy, c), 0);
  for (int i = 0; i < 5; i++) assert_int_equal(child_run(c->pool), 0);
  atomic_store(&c->threads, 1);                /* stop */
  pthread_join(t, NULL);
  rapti_pool_destroy(c->pool);
  free(c);
}

static void destroy_null(void **state) {
  (void)state;
  rapti_pool_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_index_runs_once),   cmocka_unit_test(work_is_shared),
    cmocka_unit_test(a_run_ends_after_its_last_task),
    cmocka_unit_test(p10_nested_calls_run_inline), cmocka_unit_test(p10_concurrent_callers),
    cmocka_unit_test(p10_after_fork),          cmocka_unit_test(p10_fork_during_a_run),
    cmocka_unit_test(destroy_null),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
