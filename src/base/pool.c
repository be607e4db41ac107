/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool. A run opens a gate, wakes sleeping workers and takes part itself; workers that come through the gate
 * take task indices from one counter. When no index is left the caller closes the gate and waits only for those inside:
 * a worker that the machine had no time to wake costs nothing. Workers spin briefly, then sleep. */
#include "base/base.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define GATE_OPEN UINT64_C(0x80000000)         /* gate: run number in the high half, OPEN, workers inside */
#define GATE_INSIDE UINT64_C(0x7fffffff)
#define SPINS 4000                             /* some 20 to 50 microseconds */

struct rapti_pool {
  uint32_t max_threads, started;               /* started: workers alive in process `pid` */
  atomic_int user;                             /* pid of the process that is in a run, 0 = free */
  pid_t pid;                                   /* process that the workers belong to */
  pthread_t *worker;                           /* max_threads - 1 */
  pthread_mutex_t lock;
  pthread_cond_t wake, done;
  uint32_t sleeping;                           /* under lock */
  bool quit;                                   /* under lock */
  bool waiting;                                /* under lock: the caller sleeps on done */
  void (*task)(void *arg, uint32_t i);
  void *arg;
  uint32_t n;
  _Alignas(64) atomic_uint_fast64_t gate;
  _Alignas(64) atomic_uint_fast64_t next;      /* 64 bits: late comers may count past n */
};

static inline void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static bool gate_opened(uint64_t gate, uint64_t seen) { return (gate & GATE_OPEN) && gate >> 32 != seen; }

static void take_tasks(rapti_pool *p) {
  for (;;) {
    const uint64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
    if (i >= p->n) return;
    p->task(p->arg, (uint32_t)i);
  }
}

/* Through the gate if it is open; the job's fields are valid inside. */
static bool enter(rapti_pool *p, uint64_t seen) {
  uint_fast64_t gate = atomic_load(&p->gate);
  while (gate_opened(gate, seen))
    if (atomic_compare_exchange_weak(&p->gate, &gate, gate + 1)) return true;
  return false;
}

static void leave(rapti_pool *p) {
  const uint64_t before = atomic_fetch_sub(&p->gate, 1);
  if ((before & (GATE_OPEN | GATE_INSIDE)) != 1) return;   /* not the last one out of a closed gate */
  pthread_mutex_lock(&p->lock);
  if (p->waiting) pthread_cond_signal(&p->done);
  pthread_mutex_unlock(&p->lock);
}

/* false: the pool is being destroyed. */
static bool wait_for_run(rapti_pool *p, uint64_t seen) {
  for (int i = 0; i < SPINS; i++) {
    if (gate_opened(atomic_load_explicit(&p->gate, memory_order_relaxed), seen)) return true;
    relax();
  }
  pthread_mutex_lock(&p->lock);
  p->sleeping++;
  while (!p->quit && !gate_opened(atomic_load(&p->gate), seen)) pthread_cond_wait(&p->wake, &p->lock);
  p->sleeping--;
  const bool go = !p->quit;
  pthread_mutex_unlock(&p->lock);
  return go;
}

static void *worker_main(void *arg) {
  rapti_pool *p = arg;
  uint64_t seen = 0;
  while (wait_for_run(p, seen)) {
    if (!enter(p, seen)) continue;             /* closed again: that run is over */
    seen = atomic_load(&p->gate) >> 32;        /* cannot change while we are inside */
    take_tasks(p);
    leave(p);
  }
  return NULL;
}

rapti_pool *rapti_pool_create(uint32_t max_threads) {
  rapti_pool *p = NULL;
  if (posix_memalign((void **)&p, 64, sizeof *p) != 0) return NULL;
  *p = (rapti_pool){.max_threads = max_threads ? max_threads : 1};
  p->worker = calloc(p->max_threads, sizeof *p->worker);
  if (!p->worker) {
    free(p);
    return NULL;
  }
  return p;                                    /* lock and conditions: adopt() */
}

void rapti_pool_destroy(rapti_pool *p) {
  if (!p) return;
  if (p->pid == getpid()) {                    /* in a forked child there is nobody to join */
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->started; i++) pthread_join(p->worker[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
  }
  free(p->worker);
  free(p);
}

/* Workers receive no signals: those are the host's (D22). A thread that cannot be made is not missed. */
static void start_workers(rapti_pool *p, uint32_t wanted) {
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  while (p->started < wanted && pthread_create(&p->worker[p->started], NULL, worker_main, p) == 0) p->started++;
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* First use in this process. After a fork the workers, and whoever held the lock, exist only in the parent. */
static void adopt(rapti_pool *p, pid_t me) {
  p->pid = me;
  p->started = p->sleeping = 0;
  p->waiting = false;
  atomic_store(&p->gate, 0);
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->wake, NULL);
  pthread_cond_init(&p->done, NULL);
}

/* The right to be the one caller. A pid that is not ours was left by a run in progress at the time of a fork. */
static bool acquire(rapti_pool *p, pid_t me) {
  int user = atomic_load(&p->user);
  while (user != me)
    if (atomic_compare_exchange_weak(&p->user, &user, me)) return true;
  return false;
}

static void wait_for_workers(rapti_pool *p) {
  for (int i = 0; i < SPINS; i++) {
    if (!(atomic_load(&p->gate) & GATE_INSIDE)) return;
    relax();
  }
  pthread_mutex_lock(&p->lock);
  p->waiting = true;
  while (atomic_load(&p->gate) & GATE_INSIDE) pthread_cond_wait(&p->done, &p->lock);
  p->waiting = false;
  pthread_mutex_unlock(&p->lock);
}

static void run_shared(rapti_pool *p) {
  const uint32_t helpers = p->n - 1 < p->max_threads - 1 ? p->n - 1 : p->max_threads - 1;
  if (p->started < helpers) start_workers(p, helpers);
  atomic_store(&p->next, 0);
  const uint64_t run = (atomic_load(&p->gate) >> 32) + 1;
  atomic_store(&p->gate, run << 32 | GATE_OPEN);
  pthread_mutex_lock(&p->lock);
  for (uint32_t i = 0; i < p->sleeping && i < helpers; i++) pthread_cond_signal(&p->wake);
  pthread_mutex_unlock(&p->lock);
  take_tasks(p);
  atomic_fetch_and(&p->gate, ~GATE_OPEN);
  wait_for_workers(p);
}

void rapti_pool_run(rapti_pool *p, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg) {
  const pid_t me = n > 1 && p->max_threads > 1 ? getpid() : 0;
  if (!me || !acquire(p, me)) {
    for (uint32_t i = 0; i < n; i++) task(arg, i);
    return;
  }
  if (p->pid != me) adopt(p, me);
  p->task = task;
  p->arg = arg;
  p->n = n;
  run_shared(p);
  atomic_store(&p->user, 0);
}
