/* SPDX-License-Identifier: Apache-2.0 */
/* N13 at every size where a tile, a vector or a block may end: sampled crosses in which each value of each axis meets
 * several values of the others. S13, S16 hold for each run (guard pages, canaries). */
#include "common/run.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
  for (int axis = 0; axis < 4; axis++)
    for (int i = 0, n = (axis < 2 ? N_LENGTHS : N_DIMS) * REPEATS; i < n; i++, turn++) {
      int64_t size[4];
      for (int a = 0; a < 4; a++) size[a] = a < 2 ? pick(&r, lengths, N_LENGTHS) : pick(&r, dims, N_DIMS);
      size[axis] = axis < 2 ? lengths[i % N_LENGTHS] : dims[i % N_DIMS];
      check_sizes(e, dtype, size[0], size[1], size[2], size[3], turn);
    }
}

static void edges_n13(tc_engine *e) {
  static const char *const names[] = {[RAPT_FP16] = "fp16", [RAPT_BF16] = "bf16", [RAPT_FP32] = "fp32",
                                      [RAPT_FP64] = "fp64"};
  for (int dtype = RAPT_FP16; dtype <= RAPT_FP64; dtype++)
    if (e->row->dtypes & RAPT_DT(dtype)) check_dtype(e, names[dtype], (uint64_t)dtype * 3);
}

/* Tensors without elements (S6, S7): nothing to write, or defined values; the addresses given cannot be read. */
static void empty_s6_s7(tc_engine *e) {
  static const char *const texts[] = {
    "fp32 b0 h2 q3 k4 d8 lse", "fp32 b2 h0/1 q3 k4 d8 lse", "fp32 b2 h0/0 q3 k4 d8", "fp32 b2 h2 q0 k4 d8 lse",
    "fp32 b2 h4/2 q3 k4 d8/0 lse", "fp32 b2 h2 q3 k0 d8/5 lse", "fp32 b1 h2 q3 k0 d0/5 scale=1 lse",
    "fp32 b1 h2 q3 k4 d0/5 scale=2 lse", "bf16 b2 h2 q17 k0 d8/5 lse", "fp16 b1 h2 q3 k4 d0/5 scale=0.5",
    "fp32 b2 h2 q0 k0 d8 causal=br lse", "fp32 b2 h2 q5 k0 d8 causal=br lse kvlen=int64",
        "fp32 b0 h2 q3 k4 d8 qlen=int32"};
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

/* ---- P3: n bytes of workspace suffice whatever they hold, n-1 are refused, no byte outside is touched ---- */

typedef struct room { unsigned char *pages, *start; size_t bytes; } room;

/* `bytes` at a 64-byte boundary, as near as that allows to a page that cannot be touched; more such pages before. */
static room make_room(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), usable = (bytes + page) / page * page;
  room r = {.bytes = usable + 2 * page};
  r.pages = mmap(NULL, r.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(r.pages != MAP_FAILED);
  assert_int_equal(mprotect(r.pages + page, usable, PROT_READ | PROT_WRITE), 0);
  r.start = r.pages + page + usable - rapti_align64(bytes);
  return r;
}

static void run_in(tc_engine *e, const rapt_plan *plan, tc_case *c, unsigned char *workspace, size_t n, int fill) {
  memset(workspace, fill, rapti_align64(n));
  tc_before_run(e, c);
  assert_int_equal(rapt_plan_run(plan, &c->b, workspace, n, NULL), RAPT_OK);
  tc_after_run(e, c);
  for (size_t i = n; i < rapti_align64(n); i++) assert_int_equal(workspace[i], fill);
}

static void check_workspace(tc_engine *e, rapt_ctx *ctx, const char *problem) {
  tc_case *zeros = tc_case_new(problem, NULL), *canary = tc_case_new(problem, NULL);
  rapt_problem p = zeros->p;
  rapt_plan *plan = NULL;
  rapt_reason why = {.struct_size = sizeof why};
  p.require = e->row->id;
  assert_int_equal(rapt_plan_create(ctx, &p, &plan, NULL), RAPT_OK);
  size_t n = rapt_plan_workspace(plan);
  room r = make_room(n);
  run_in(e, plan, zeros, r.start, n, 0);
  run_in(e, plan, canary, r.start, n, 0xff);
  tc_same_outputs(zeros, canary);
  if (n) {
    assert_int_equal(rapt_plan_check(plan, &zeros->b, r.start, n - 1, &why), RAPT_ARG);
    assert_int_equal(why.code, RAPT_CODE_MEMORY);
  }
  munmap(r.pages, r.bytes);
  rapt_plan_destroy(plan);
  tc_case_free(zeros);
  tc_case_free(canary);
}

static void workspace_p3(tc_engine *e) {
  static const char *const texts[] = {
    "fp32 b1 h2/1 q37 k70 d20/33 causal=br lse", "bf16 b2 h2 q1 k513 d64 lse", "fp16 b1 h4/2 q3 k1000 d80 kvlen=int32",
    "bf16 b1 h1 q130 k257 d128 mask=bool:1x1x130x257", "fp32 b1 h1 q1 k1 d1", "fp32 b3 h2/1 q65 k96 d40 layout=bshd",
    "fp32/fp16/fp16 b1 h2 q17 k90 d24 mixed_kv", "fp32 b1 h1 q16 k64 d64 k.st=8192,8192,128,2 bias=fp16:1x1x1x64"};
  for (uint32_t threads = 1; threads <= 3; threads++) {
    rapt_ctx *ctx = tc_context(e->isa, threads);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_workspace(e, ctx, texts[i]);
    rapt_ctx_destroy(ctx);
  }
}

int main(void) {
  static const tc_test tests[] = {
    {"edges_n13", edges_n13},
    {"empty_s6_s7", empty_s6_s7},
    {"capped_level_d26", capped_level_d26},
    {"workspace_p3", workspace_p3},
  };
  return tc_run_tests("edges", tests, sizeof tests / sizeof *tests);
}
