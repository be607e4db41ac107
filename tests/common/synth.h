/* SPDX-License-Identifier: Apache-2.0 */
/* Small registries built in a test: rows that can do all, from which a test takes something away. */
#ifndef TC_SYNTH_H
#define TC_SYNTH_H
#include "core/decide.h"

enum { TC_SYNTH_BACKENDS = 8, TC_SYNTH_ROWS = 24 };

typedef struct tc_synth {
  rapti_registry g;
  rapt_backend backends[TC_SYNTH_BACKENDS];
  const char *broken[TC_SYNTH_BACKENDS];
  rapti_cap rows[TC_SYNTH_ROWS];
} tc_synth;

/* facts: of a what-if. NULL: this machine, a CPU with avx2. */
void tc_synth_begin(tc_synth *s, const char *facts);
/* Every capability, dtype and kind, no limits, place opt-in. */
rapt_row tc_synth_row(const char *id);
/* A backend with these rows, which must outlive s; callbacks may be set in the return before the first match. */
rapt_backend *tc_synth_add(tc_synth *s, const rapt_row *rows, uint32_t n, int registered);
/* One row in a backend of its own. */
rapt_backend *tc_synth_add_row(tc_synth *s, const rapt_row *row, int registered);

/* A problem string as a request, names aside. */
void tc_synth_request(const char *text, rapti_request *r);
/* The policy of one call with these lists; the context has none. */
void tc_synth_policy(const tc_synth *s, const char *require, const char *prefer, const char *forbid, rapti_policy *policy);

/* "ok", or "CODE(field)" for failed and "CODE(field)?" for not evaluated reasons, comma separated, in order. */
const char *tc_synth_verdict(const tc_synth *s, uint32_t row, const rapti_request *r, const rapti_policy *policy);
/* The same for a problem string; prefer names the row, so that its own limits are what is left. */
const char *tc_synth_explain(const tc_synth *s, uint32_t row, const char *problem);
/* got and want of the i-th reason, "got | want". */
const char *tc_synth_reason(const tc_synth *s, uint32_t row, const char *problem, uint32_t i);
#endif
