/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements: one subject between probes, two subjects in turn. */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"

enum { SAMPLES_MIN = 7, SAMPLES_MAX = 2000, GAIN_PATIENCE = 20 };
static const double others_max = 0.05;
static const double round_seconds = 0.3;           /* idleness is counted in steps of some 0.01 */

unsigned bench_cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

/* Seconds that the usable cores have been idle since the start of the machine. */
static double idle_seconds(void) {
  cpu_set_t set;
  char line[256];
  double idle = 0;
  FILE *f = sched_getaffinity(0, sizeof set, &set) ? NULL : fopen("/proc/stat", "r");
  while (f && fgets(line, sizeof line, f)) {
    unsigned core;
    unsigned long long rest, waits;
    if (sscanf(line, "cpu%u %*u %*u %*u %llu %llu", &core, &rest, &waits) == 3 && core < CPU_SETSIZE &&
        CPU_ISSET(core, &set))
      idle += (double)(rest + waits) / (double)sysconf(_SC_CLK_TCK);
  }
  if (f) fclose(f);
  return idle;
}

/* Half the distance of the quartiles, as a part of the median. */
static double spread(const double *x, size_t n) {
  double m = cli_median(x, n), *d = cli_alloc(n, sizeof *d);
  for (size_t i = 0; i < n; i++) d[i] = fabs(x[i] - m);
  double s = cli_median(d, n) / m;
  free(d);
  return s;
}

/* Every sample has a probe before it, on as many threads; the peak is the median of the probes. */
bool bench_measure(bench_subject *s, double seconds, bench_figure *f) {
  double t[SAMPLES_MAX], flops[SAMPLES_MAX], hertz[SAMPLES_MAX], end = probe_now() + seconds;
  unsigned threads = s->decision.threads ? s->decision.threads : 1;
  const probe_level *level = s->decision.isa ? probe_find(s->decision.isa) : NULL;
  size_t n = 0;
  *f = (bench_figure){.peak_gflops = NAN, .hertz = NAN, .flop_per_cycle = NAN, .share = NAN};
  while (n < SAMPLES_MIN || (n < SAMPLES_MAX && probe_now() < end)) {
    probe_sample p = level ? probe_run(level, threads) : (probe_sample){0, 0};
    flops[n] = p.flops;
    hertz[n] = p.hertz;
    if ((t[n++] = bench_subject_time(s)) < 0) return false;
  }
  f->samples = n;
  f->median_s = cli_median(t, n);
  f->spread = spread(t, n);
  f->gflops = s->flops / f->median_s * 1e-9;
  if (!level) return true;
  for (size_t i = 0; i < n; i++) t[i] = flops[i] / threads / hertz[i];
  f->peak_gflops = cli_median(flops, n) * 1e-9;
  f->hertz = cli_median(hertz, n);
  f->flop_per_cycle = cli_median(t, n);
  f->trusted = probe_trusted(f->flop_per_cycle);
  if (f->trusted) f->share = f->gflops / f->peak_gflops;
  return true;
}

/* Rounds of A, B and A again, the order turning. The second A gives the ratio that no difference gives: the threshold
 * is twice the error of its median (from the median distance), and what it lies off 1. */
bool bench_compare(bench_subject *a, bench_subject *b, double seconds, bench_ratio *r) {
  double ratio[SAMPLES_MAX], same[SAMPLES_MAX], ta[SAMPLES_MAX], tb[SAMPLES_MAX], end = probe_now() + seconds;
  size_t n = 0;
  while (n < 3 * SAMPLES_MIN || (n < SAMPLES_MAX && probe_now() < end)) {
    double t[3];
    for (size_t k = 0; k < 3; k++) {
      size_t who = (k + n) % 3;                              /* 0, 2: A; 1: B */
      if ((t[who] = bench_subject_time(who == 1 ? b : a)) < 0) return false;
    }
    ta[n] = t[0];
    tb[n] = t[1];
    ratio[n] = t[1] / t[0];
    same[n++] = t[2] / t[0];
  }
  *r = (bench_ratio){.ratio = cli_median(ratio, n), .a_s = cli_median(ta, n), .b_s = cli_median(tb, n), .rounds = n};
  r->threshold = fabs(cli_median(same, n) - 1) + 2 * 1.2533 * 1.4826 * spread(same, n) / sqrt((double)n);
  return true;
}

/* The part of `threads` cores that neither this process nor idleness had, beyond what the other usable cores can give. */
static double others_share(double wall, double mine, double idle, unsigned threads) {
  double spare = wall * (bench_cores() > threads ? bench_cores() - threads : 0);
  return fmax(0, wall * bench_cores() - mine - idle - spare) / (wall * threads);
}

bool bench_measure_gain(bench_subject *one, bench_subject *many, unsigned threads, double seconds, bench_gain *g) {
  double gain[SAMPLES_MAX], probe[SAMPLES_MAX], cycle[SAMPLES_MAX], others[SAMPLES_MAX], start = probe_now();
  const probe_level *level = many->decision.isa ? probe_find(many->decision.isa) : NULL;
  size_t n = 0, clean = 0;
  while (n < SAMPLES_MAX && (n < SAMPLES_MIN || (clean < SAMPLES_MIN && probe_now() < start + GAIN_PATIENCE * seconds) ||
                             probe_now() < start + seconds)) {
    probe_sample p1 = level ? probe_run(level, 1) : (probe_sample){0, 0};
    probe_sample pn = level ? probe_run(level, threads) : (probe_sample){0, 0};
    double wall = probe_now(), cpu = probe_cpu_now(), idle = idle_seconds();
    double t1 = 0, tn = 0;
    do {
      double a = bench_subject_wall(one), b = bench_subject_wall(many);
      if (a < 0 || b < 0) return false;
      t1 += a;
      tn += b;
    } while (probe_now() < wall + round_seconds);
    others[n] = others_share(probe_now() - wall, probe_cpu_now() - cpu, idle_seconds() - idle, threads);
    if (others[n++] > others_max) continue;
    gain[clean] = t1 / tn;
    probe[clean] = pn.flops / p1.flops;
    cycle[clean++] = fmin(p1.flops / p1.hertz, pn.flops / threads / pn.hertz);
  }
  *g = (bench_gain){.gain = NAN, .others = cli_median(others, n), .clean = clean, .rounds = n};
  if (clean) {
    g->gain = cli_median(gain, clean);
    g->probe = cli_median(probe, clean);
    g->flop_per_cycle = cli_median(cycle, clean);
  }
  return true;
}
