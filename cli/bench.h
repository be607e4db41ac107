/* SPDX-License-Identifier: Apache-2.0 */
/* rapt bench: planned calls on random tensors, timed between probes of the arithmetic peak. */
#ifndef RAPT_BENCH_H
#define RAPT_BENCH_H
#include <jansson.h>

#include "cli.h"
#include "probe.h"

/* One problem that is ready to run (bench_subject.c). */
typedef struct bench_subject {
  rapt_ctx *ctx;
  rapt_plan *plan;
  rapt_report *report;
  rapt_decision decision;
  rapt_buffers b;
  void *memory[12], *workspace;
  size_t workspace_bytes;
  char *problem;                       /* canonical */
  double flops;                        /* useful ones of one call */
  int64_t calls;                       /* in one sample, so that a sample is long enough to time */
  unsigned threads;                    /* of the context; 0 = all usable cores */
  double busy;                         /* sum of the parts of a core that others had, one-thread samples */
  int64_t samples;
} bench_subject;
/* CLI_OK, CLI_USAGE, or CLI_FAILED where the call is refused; what is wrong was said. With --json there is one document:
 * where there are results of several problems (else NULL), a refusal is one of them. */
int bench_subject_make(bench_subject *s, const char *argument, const char *text, unsigned threads, json_t *results);
void bench_subject_free(bench_subject *s);
/* Seconds a call, of one sample; negative when it failed. */
double bench_subject_time(bench_subject *s);
double bench_subject_wall(bench_subject *s);         /* the same, by the clock whoever had the cores */
double bench_subject_busy(const bench_subject *s);   /* mean part of its core that a sample did not have */
/* Pairs that metadata leaves visible, of all batch entries and heads. */
double bench_useful_pairs(const rapt_problem *p);

typedef struct bench_figure {
  double median_s, spread, gflops;
  double peak_gflops, hertz, flop_per_cycle, share;      /* NaN where there is no probe or it is not trusted */
  bool trusted;
  size_t samples;
} bench_figure;
bool bench_measure(bench_subject *s, double seconds, bench_figure *f);

/* Two subjects in turn (bench_pair.c). Ratios are time of B by time of A. */
typedef struct bench_ratio { double ratio, threshold, a_s, b_s; size_t rounds; } bench_ratio;
bool bench_compare(bench_subject *a, bench_subject *b, double seconds, bench_ratio *r);

/* How much faster many is than one, by the clock, and how much faster the probe is on as many threads. Rounds in which
 * others had more than 5 % of the cores do not count: the clock shows their work too. gain NaN: no round was clean. */
typedef struct bench_gain { double gain, probe, flop_per_cycle, others; size_t clean, rounds; } bench_gain;
bool bench_measure_gain(bench_subject *one, bench_subject *many, unsigned threads, double seconds, bench_gain *g);

int bench_targets(const char *path, double seconds);
unsigned bench_cores(void);
#endif
