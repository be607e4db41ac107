/* SPDX-License-Identifier: Apache-2.0 */
/* N13 at every size where a tile, a vector or a block may end: sampled crosses in which each value of each axis meets
 * several values of the others. S13, S16 hold for each run (guard pages, canaries). */
#include "common/run.h"

#include <stdio.h>

static const int64_t lengths[] = {1,  2,  3,  7,  8,  9,  15, 16, 17, 23,  24,  25,  31,  32,  33,  47,  48,  49,
                                  63, 64, 65, 95, 96, 97, 127, 128, 129, 191, 192, 193, 197, 255, 256, 257};
static const int64_t dims[] = {1, 2, 3, 4, 5, 8, 13, 16, 31, 32, 40, 64, 72, 80, 96, 127, 128, 129, 160, 192, 256};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths, N_DIMS = sizeof dims / sizeof *dims, REPEATS = 2 };

static int64_t pick(tc_rng *r, const int64_t *list, int64_t n) { return list[tc_below(r, n)]; }

/* Options in turn, so that each size meets them too. */
static void put_options(char *s, size_t n, int turn, const char *dtype, int64_t sq, int64_t skv) {
  switch (turn % 8) {
  case 0: snprintf(s, n, "lse"); break;
  case 1: snprintf(s, n, "causal=tl lse"); break;
  case 2: snprintf(s, n, "causal=br"); break;
  case 3: snprintf(s, n, "mask=bool:1x1x%lldx%lld lse", (long long)sq, (long long)skv); break;
  case 4: snprintf(s, n, "bias=%s:1x1x1x%lld", dtype, (long long)skv); break;
  case 5: snprintf(s, n, "align=br window=%d,%d lse", turn % 19, turn % 7); break;
  case 6: snprintf(s, n, "kvlen=int32 lse"); break;
  default: snprintf(s, n, "scale=0.5"); break;
  }
}

static void check_sizes(tc_engine *e, const char *dtype, int64_t sq, int64_t skv, int64_t d, int64_t dv, int turn) {
  static const char *const heads[] = {"b1 h2", "b2 h2/1", "b1 h4/2", "b1 h1"};
  char text[400], options[100];
  bool large = sq * skv * (d + dv) > 2000000;
  put_options(options, sizeof options, turn, dtype, sq, skv);
  snprintf(text, sizeof text, "%s %s q%lld k%lld d%lld/%lld %s", dtype, heads[large ? 3 : turn / 8 % 4], (long long)sq,
           (long long)skv, (long long)d, (long long)dv, options);
  tc_check(e, text, NULL);
}

static void check_dtype(tc_engine *e, const char *dtype, uint64_t seed) {
  tc_rng r = {seed};
  int turn = (int)seed;
  for (int i = 0; i < N_LENGTHS * REPEATS; i++, turn++)
    check_sizes(e, dtype, lengths[i % N_LENGTHS], pick(&r, lengths, N_LENGTHS), pick(&r, dims, N_DIMS), pick(&r, dims, N_DIMS), turn);
  for (int i = 0; i < N_LENGTHS * REPEATS; i++, turn++)
    check_sizes(e, dtype, pick(&r, lengths, N_LENGTHS), lengths[i % N_LENGTHS], pick(&r, dims, N_DIMS), pick(&r, dims, N_DIMS), turn);
  for (int i = 0; i < N_DIMS * REPEATS; i++, turn++)
    check_sizes(e, dtype, pick(&r, lengths, N_LENGTHS), pick(&r, lengths, N_LENGTHS), dims[i % N_DIMS], pick(&r, dims, N_DIMS), turn);
  for (int i = 0; i < N_DIMS * REPEATS; i++, turn++)
    check_sizes(e, dtype, pick(&r, lengths, N_LENGTHS), pick(&r, lengths, N_LENGTHS), pick(&r, dims, N_DIMS), dims[i % N_DIMS], turn);
}

static void edges_n13(tc_engine *e) {
  static const char *const names[] = {[RAPT_FP16] = "fp16", [RAPT_BF16] = "bf16", [RAPT_FP32] = "fp32", [RAPT_FP64] = "fp64"};
  for (int dtype = RAPT_FP16; dtype <= RAPT_FP64; dtype++)
    if (e->row->dtypes & RAPT_DT(dtype)) check_dtype(e, names[dtype], (uint64_t)dtype * 3);
}

/* Tensors without elements (S6, S7): nothing to write, or defined values; the addresses given cannot be read. */
static void empty_s6_s7(tc_engine *e) {
  static const char *const texts[] = {
    "fp32 b0 h2 q3 k4 d8 lse", "fp32 b2 h0/1 q3 k4 d8 lse", "fp32 b2 h0/0 q3 k4 d8", "fp32 b2 h2 q0 k4 d8 lse",
    "fp32 b2 h4/2 q3 k4 d8/0 lse", "fp32 b2 h2 q3 k0 d8/5 lse", "fp32 b1 h2 q3 k0 d0/5 scale=1 lse",
    "fp32 b1 h2 q3 k4 d0/5 scale=2 lse", "bf16 b2 h2 q17 k0 d8/5 lse", "fp16 b1 h2 q3 k4 d0/5 scale=0.5",
    "fp32 b2 h2 q0 k0 d8 causal=br lse", "fp32 b2 h2 q5 k0 d8 causal=br lse kvlen=int64", "fp32 b0 h2 q3 k4 d8 qlen=int32"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) tc_check(e, texts[i], NULL);
}

/* D26: a level that is forced down runs the same kernel as on a machine that has no more; same bits. */
static void capped_level_d26(tc_engine *e) {
  rapt_ctx *full = tc_context(NULL, 1);
  tc_case *c = tc_case_new("fp32 b2 h4/2 q37 k129 d72/40 causal=br lse", NULL), *twin = tc_case_new(c->text, NULL);
  tc_run_on(e, full, c);
  tc_run(e, twin);
  if (e->isa) assert_string_equal(e->ran_isa, e->isa);
  tc_same_outputs(c, twin);
  tc_case_free(c);
  tc_case_free(twin);
  rapt_ctx_destroy(full);
}

int main(void) {
  static const tc_test tests[] = {{"edges_n13", edges_n13}, {"empty_s6_s7", empty_s6_s7}, {"capped_level_d26", capped_level_d26}};
  return tc_run_tests("edges", tests, sizeof tests / sizeof *tests);
}
