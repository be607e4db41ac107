/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a case on one row and judges it; makes cmocka tests out of (function, row) pairs. */
#ifndef TC_RUN_H
#define TC_RUN_H
#include "common/case.h"
#include "common/cm.h"
#include "common/oracle.h"
#include "core/backend.h"

/* One of the library's own rows that computes on this kind of machine, or not: see `here`. */
typedef struct tc_engine {
  const rapt_row *row;
  const char *isa;        /* the cap of ctx: the row's level; NULL for ref */
  bool here;              /* the CPU reaches the row's level */
  rapt_ctx *ctx;          /* capped at isa, one thread; NULL where not here */
  int64_t cases, checked; /* runs, output elements compared with the oracle */
  double worst[5];        /* largest share of a bound, by the dtype of the output */
  char worst_case[5][512];
  char kernel[96], ran_isa[16];   /* of the last run, as reported (R1) */
} tc_engine;

/* Runs require=row on ctx: OK, the report names that row, inputs read-only, every output element written and nothing
 * beside them (S13, S16). Fails the test otherwise. */
void tc_run_on(tc_engine *e, rapt_ctx *ctx, tc_case *c);
void tc_run(tc_engine *e, tc_case *c);                      /* on e->ctx */
/* Every element of the last run against the oracle, within N13. */
void tc_judge(tc_engine *e, const tc_case *c, const tc_oracle *o);
/* New case, run, judge, free. */
void tc_check(tc_engine *e, const char *problem, const tc_fill *fill);
bool tc_takes(const tc_engine *e, const rapt_problem *p);   /* the row lists q's dtype */
rapt_ctx *tc_context(const char *isa, uint32_t threads);
/* Canary bytes into the outputs; then whether every element was written and nothing else, else the test fails. */
void tc_before_run(tc_engine *e, tc_case *c);
void tc_after_run(tc_engine *e, tc_case *c);
void tc_same_outputs(const tc_case *a, const tc_case *b);   /* out and lse bit for bit, else the test fails */

typedef void (*tc_test_fn)(tc_engine *e);
typedef struct tc_test { const char *name; tc_test_fn run; } tc_test;
/* Every test once per own row, as "name[row]". Rows that this CPU cannot run are skipped with "not measured here: ROW".
 * Returns what main returns: failures, and 1 when nothing was measured. */
int tc_run_tests(const char *group, const tc_test *tests, size_t n);
#endif
