/* SPDX-License-Identifier: Apache-2.0 */
/* Probes on several threads, in short chunks of which the best counts: a chunk that lost its core says nothing. */
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "probe.h"

enum { CHUNK_US = 60, CHUNKS = 24, THREADS_MAX = 256 };

static double seconds_of(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double probe_now(void) { return seconds_of(CLOCK_MONOTONIC); }
double probe_cpu_now(void) { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

const probe_level *probe_find(const char *isa) {
#if defined(__x86_64__)
  if (!strcmp(isa, "scalar")) return &probe_scalar;
  if (!strcmp(isa, "avx2")) return &probe_avx2;
  if (!strncmp(isa, "avx512", 6)) return &probe_avx512;
#endif
  (void)isa;
  return NULL;
}

/* Rounds that take about one chunk. */
static long chunk_rounds(void (*loop)(long)) {
  long rounds = 64;
  for (;;) {
    double start = probe_now();
    loop(rounds);
    double t = probe_now() - start;
    if (t > CHUNK_US * 1e-6 / 4 || rounds > 1L << 30) return (long)((double)rounds * (CHUNK_US * 1e-6) / t) + 1;
    rounds *= 2;
  }
}

static double best_rate(void (*loop)(long), double work_per_round) {
  long rounds = chunk_rounds(loop);
  double best = 0;
  for (int i = 0; i < CHUNKS; i++) {
    double start = probe_now();
    loop(rounds);
    best = fmax(best, (double)rounds * work_per_round / (probe_now() - start));
  }
  return best;
}

typedef struct task {
  const probe_level *level;
  double flops;
  pthread_barrier_t *start;
} task;

static void *run_task(void *arg) {
  task *t = arg;
  pthread_barrier_wait(t->start);
  t->flops = best_rate(t->level->loop, t->level->flop_per_round);
  return NULL;
}

probe_sample probe_run(const probe_level *level, unsigned threads) {
  pthread_t id[THREADS_MAX];
  task tasks[THREADS_MAX];
  pthread_barrier_t start;
  unsigned started = 0;
  probe_sample s = {0, 0};
  if (threads > THREADS_MAX) threads = THREADS_MAX;
  if (threads > 1) {
    pthread_barrier_init(&start, NULL, threads);
    for (; started + 1 < threads; started++) {
      tasks[started] = (task){level, 0, &start};
      if (pthread_create(&id[started], NULL, run_task, &tasks[started])) return s;   /* no rate: not trusted */
    }
    pthread_barrier_wait(&start);
  }
  s.flops = best_rate(level->loop, level->flop_per_round);
  for (unsigned i = 0; i < started; i++) {
    pthread_join(id[i], NULL);
    s.flops += tasks[i].flops;
  }
  if (threads > 1) pthread_barrier_destroy(&start);
  s.hertz = best_rate(probe_clock_loop, PROBE_ADDS);
  return s;
}

bool probe_trusted(double flop_per_cycle) {
  for (double p = 8; p <= 64; p *= 2)
    if (fabs(flop_per_cycle / p - 1) <= 0.05) return true;
  return false;
}
