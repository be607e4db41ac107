/* SPDX-License-Identifier: Apache-2.0 */
/* A provider that counts what the core does with it, and the small problems of these tests. */
#ifndef RAPT_TEST_FAKE_H
#define RAPT_TEST_FAKE_H
#include "rapt/provider.h"
#include "rapt/rapt.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fake {
  rapt_row row;
  rapt_backend backend;
  int probes, prepares, releases, runs;
  rapt_status prepare_says, run_says, probe_says;
  size_t workspace;             /* bytes it asks for, all of which it writes */
  rapt_problem problem;         /* of the last prepare; names are not kept */
  rapt_buffers buffers;         /* of the last run */
  void *used;                   /* the workspace it got */
} fake;

static inline rapt_status fake_probe(void *self, rapt_facts *facts, rapt_reason *why) {
  fake *f = self;
  f->probes++;
  if (f->probe_says == RAPT_OK) return rapt_facts_set(facts, "sageattention", "2.2.0");
  snprintf(why->got, sizeof why->got, "libfake.so: no such file");
  return f->probe_says;
}

static inline size_t fake_workspace(void *self, uint32_t row, const rapt_problem *cast, uint32_t threads) {
  (void)row, (void)cast, (void)threads;
  return ((fake *)self)->workspace;
}

static inline rapt_status fake_prepare(void *self, uint32_t row, const rapt_problem *cast, uint32_t threads, void **state) {
  fake *f = self;
  (void)row, (void)threads;
  f->problem = *cast;
  f->prepares++;
  *state = f;
  return f->prepare_says;
}

static inline rapt_status fake_run(void *self, uint32_t row, void *state, const rapt_problem *cast,
                                   const rapt_buffers *b, void *workspace, void *stream) {
  fake *f = self;
  (void)row, (void)stream;
  assert_ptr_equal(state, f);
  f->runs++;
  f->buffers = *b;
  f->used = workspace;
  if (f->workspace) memset(workspace, 0x5a, f->workspace);
  if (b->out && cast->out.dtype == RAPT_FP32) *(float *)b->out = 42.0f;
  return f->run_says;
}

static inline void fake_release(void *self, void *state) {
  fake *f = self;
  assert_ptr_equal(state, f);
  f->releases++;
}

/* One row that can do everything on a CPU, place `first`: the automatic choice. */
static inline void fake_make(fake *f, const char *id) {
  memset(f, 0, sizeof *f);
  rapt_row *row = &f->row;
  row->struct_size = RAPT_ROW_SIZE;
  row->id = id;
  row->kinds = RAPT_KIND(RAPT_CPU);
  row->place = RAPT_PLACE_FIRST;
  row->ran_on_hardware = 1;
  row->classes = RAPT_CLASS_FUSED;
  row->kernel = "fake_kernel";
  row->dtypes = RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16) | RAPT_DT(RAPT_FP32);
  row->dv_rule = RAPT_DV_ANY;
  row->determinism = RAPT_DET_BATCH;
  row->can = (RAPT_CAN_CAUSAL_WIDE << 1) - 1;
  row->can &= ~(RAPT_CAN_BACKWARD | RAPT_CAN_DROPOUT);
  rapt_backend *b = &f->backend;
  b->struct_size = RAPT_BACKEND_SIZE;
  b->api_version = RAPT_PROVIDER_VERSION;
  b->n_rows = 1;
  b->rows = row;
  b->self = f;
  b->workspace = fake_workspace;
  b->prepare = fake_prepare;
  b->run = fake_run;
  b->release = fake_release;
}

static inline rapt_ctx *ctx_plain(void) {
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.max_threads = 2;
  rapt_ctx *ctx = NULL;
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  return ctx;
}

static inline void fake_register(rapt_ctx *ctx, fake *f) {
  rapt_reason why = RAPT_REASON_INIT;
  if (rapt_backend_register(ctx, &f->backend, &why) != RAPT_OK) fail_msg("%s %s", rapt_code_name(why.code), why.got);
}

/* The problem of a string; names point to static memory. */
static inline rapt_problem parsed(const char *text) {
  static char names[8][512];
  static unsigned next;
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  char *room = names[next++ % 8];
  if (rapt_problem_parse(text, strlen(text), &p, room, sizeof names[0], &why) != RAPT_OK)
    fail_msg("%s: %s %s", text, rapt_code_name(why.code), why.got);
  return p;
}

/* fp32 b1 h2 q3 k4 d8 and its tensors. */
typedef struct small {
  float q[2 * 3 * 8], k[2 * 4 * 8], v[2 * 4 * 8], out[2 * 3 * 8], lse[2 * 3];
  rapt_problem p;
  rapt_buffers b;
} small;
#define SMALL "fp32 b1 h2 q3 k4 d8"

static inline void small_make(small *s, const char *text) {
  memset(s, 0, sizeof *s);
  for (int i = 0; i < 2 * 3 * 8; i++) s->q[i] = (float)((i * 7) % 11) / 11.0f - 0.5f;
  for (int i = 0; i < 2 * 4 * 8; i++) {
    s->k[i] = (float)((i * 5) % 13) / 13.0f - 0.5f;
    s->v[i] = (float)((i * 3) % 17) / 17.0f - 0.5f;
  }
  s->p = parsed(text);
  s->b = (rapt_buffers)RAPT_BUFFERS_INIT;
  s->b.q = s->q;
  s->b.k = s->k;
  s->b.v = s->v;
  s->b.out = s->out;
}

static inline uint32_t row_index(const rapt_ctx *ctx, const char *id) {
  for (uint32_t i = 0; i < rapt_row_count(ctx); i++) {
    rapt_row_info info = RAPT_ROW_INFO_INIT;
    assert_int_equal(rapt_row_get(ctx, i, &info), RAPT_OK);
    if (strcmp(info.id, id) == 0) return i;
  }
  fail_msg("no row %s", id);
  return 0;
}

static inline uint64_t row_entered(const rapt_ctx *ctx, const char *id) {
  rapt_row_info info = RAPT_ROW_INFO_INIT;
  assert_int_equal(rapt_row_get(ctx, row_index(ctx, id), &info), RAPT_OK);
  return info.entered;
}

/* Text of a report on the heap. */
static inline char *report_text(const rapt_report *r, int form) {
  size_t n = rapt_report_format(r, form, NULL, NULL, 0);
  char *s = malloc(n + 1);
  assert_non_null(s);
  assert_int_equal(rapt_report_format(r, form, NULL, s, n + 1), n);
  assert_int_equal(strlen(s), n);
  return s;
}
#endif
