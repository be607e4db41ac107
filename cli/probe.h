/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic peak of one ISA level, measured beside a benchmark, and the clock at that moment. */
#ifndef RAPT_PROBE_H
#define RAPT_PROBE_H
#include <stdbool.h>
#include <stddef.h>

/* A loop of independent multiply-adds. The loops are assembly, so that no compiler option can weaken them. */
typedef struct probe_level { const char *isa; void (*loop)(long rounds); double flop_per_round; } probe_level;
extern const probe_level probe_scalar, probe_avx2, probe_avx512;
void probe_clock_loop(long rounds);            /* PROBE_ADDS dependent adds a round: one cycle each */
enum { PROBE_ADDS = 64 };

typedef struct probe_sample { double flops, hertz; } probe_sample;   /* of all threads together; of one core */

/* The level of a row's isa; NULL where there is no loop for it on this architecture. */
const probe_level *probe_find(const char *isa);
/* Runs the loop on that many threads for some milliseconds: the best rates seen. */
probe_sample probe_run(const probe_level *level, unsigned threads);
/* FLOP per cycle and core within 5 % of a power of two from 8 to 64: a weak probe must not raise a share. */
bool probe_trusted(double flop_per_cycle);
double probe_now(void);                        /* seconds, monotonic */
double probe_cpu_now(void);                    /* seconds of processor time of this process */
#endif
