/* SPDX-License-Identifier: Apache-2.0 */
/* Random problems over every option that the own rows serve, against the oracle: N13, M13, S13, S16. */
#include "common/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROBLEMS = 300 };

typedef struct text { char s[500]; size_t len; } text;

static void put(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(text *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  t->len += (size_t)vsnprintf(t->s + t->len, sizeof t->s - t->len, format, args);
  va_end(args);
  assert_true(t->len < sizeof t->s);
}

static bool chance(tc_rng *r, double p) { return tc_unit(r) < p; }

/* Mostly small, now and then past several blocks. */
static int64_t length(tc_rng *r) { return 1 + tc_below(r, chance(r, 0.12) ? 400 : chance(r, 0.5) ? 70 : 20); }

static void put_array(text *t, tc_rng *r, const char *name, const int64_t size[4]) {
  put(t, " %s:", name);
  for (int a = 0; a < 4; a++) put(t, "%s%lld", a ? "x" : "", chance(r, 0.3) ? 1LL : (long long)size[a]);
}

static void put_position(text *t, tc_rng *r, int64_t skv) {
  static const char *const corners[] = {"tl", "br", "off:int64"};
  char corner[40];
  int64_t pick = tc_below(r, 4);
  if (pick < 3) snprintf(corner, sizeof corner, "%s", corners[pick]);
  else snprintf(corner, sizeof corner, "off:%lld", (long long)(tc_below(r, 2 * skv + 4) - skv - 2));
  bool causal = chance(r, 0.6), window = !causal || chance(r, 0.3);
  put(t, " %s=%s", causal ? "causal" : "align", corner);
  if (window) put(t, " window=%lld,%lld", (long long)tc_below(r, 40) - 1, (long long)tc_below(r, 20) - 1);
}

static void put_layout(text *t, tc_rng *r) {
  static const char *const orders[] = {"bhsd", "bshd", "sbhd"};
  static const char *const names[] = {"q", "k", "v", "out", "lse"};
  if (chance(r, 0.4)) put(t, " layout=%s", orders[tc_below(r, 3)]);
  for (int i = 0; i < 4; i++)
    if (chance(r, 0.1)) put(t, " %s.st=%s", names[i], orders[tc_below(r, 3)]);
}

static void make_problem(text *t, tc_rng *r, const tc_engine *e) {
  static const char *const dtypes[] = {"fp32", "bf16", "fp16", "fp64"};
  static const char *const mixes[] = {"fp32/fp16/fp16", "fp32/bf16/bf16", "bf16/fp16/fp16", "fp16/bf16/bf16"};
  static const char *const bias[] = {"bias=fp32", "bias=fp16", "bias=bf16"};
  int64_t b = 1 + tc_below(r, 3), hkv = 1 + tc_below(r, 3), hq = hkv * (1 + tc_below(r, 3)), sq = length(r),
      skv = length(r);
  bool mixed = chance(r, 0.1), wide = e->row->dtypes & RAPT_DT(RAPT_FP64);
  const char *dtype = mixed ? mixes[tc_below(r, 4)] : dtypes[tc_below(r, wide ? 4 : 3)];
  *t = (text){.len = 0};
  put(t, "%s b%lld h%lld/%lld q%lld k%lld", dtype, (long long)b, (long long)hq, (long long)hkv, (long long)sq, (long long)skv);
  int64_t d = 1 + tc_below(r, chance(r, 0.3) ? 200 : 40), dv = 1 + tc_below(r, chance(r, 0.3) ? 200 : 40);
  put(t, " d%lld/%lld", (long long)d, (long long)dv);
  const int64_t size[4] = {b, hq, sq, skv};
  if (mixed) put(t, " mixed_kv");
  if (strncmp(dtype, "fp64", 4) && chance(r, 0.15)) put(t, " out=fp32");
  put_layout(t, r);
  if (chance(r, 0.3)) put_array(t, r, "mask=bool", size);
  if (chance(r, 0.3)) put_array(t, r, bias[tc_below(r, 3)], size);
  if (chance(r, 0.6)) put_position(t, r, skv);
  if (chance(r, 0.2)) put(t, " qlen=int%d", chance(r, 0.5) ? 32 : 64);
  if (chance(r, 0.3)) put(t, " kvlen=int%d", chance(r, 0.5) ? 32 : 64);
  if (chance(r, 0.2)) put(t, " scale=%s", (const char *const[]){"0", "-0.3", "1", "0.01", "4"}[tc_below(r, 5)]);
  if (chance(r, 0.6)) put(t, " lse");
  if (chance(r, 0.2)) put(t, " strict");
}

/* "strict" is refused by rows that cannot; those run without it. */
static void drop_strict(text *t, const tc_engine *e) {
  char *at = strstr(t->s, " strict");
  if (at && !(e->row->can & RAPT_CAN_STRICT)) *at = '\0';
}

static void random_n13(tc_engine *e) {
  const char *seed = getenv("RAPT_TEST_SEED");
  tc_rng r = {seed ? strtoull(seed, NULL, 0) : 20};
  print_message("seed %llu (RAPT_TEST_SEED)\n", (unsigned long long)r.state);
  for (int i = 0; i < PROBLEMS; i++) {
    text t;
    make_problem(&t, &r, e);
    drop_strict(&t, e);
    tc_fill fill = {.seed = 1 + tc_next(&r) % 100000, .unit = chance(&r, 0.2), .one_hot = chance(&r, 0.2)};
    if (chance(&r, 0.15)) fill.amplitude = 8;
    tc_check(e, t.s, &fill);
  }
}

/* The same, with NaN and Inf wherever no row looks (M14). */
static void random_m14(tc_engine *e) {
  tc_rng r = {77};
  for (int i = 0; i < PROBLEMS / 4; i++) {
    text t;
    make_problem(&t, &r, e);
    drop_strict(&t, e);
    tc_fill fill = {.seed = 1 + tc_next(&r) % 100000, .keep = 0.2};
    tc_case *clean = tc_case_new(t.s, &fill), *c = tc_case_new(t.s, &fill);
    tc_run(e, clean);
    tc_poison_unseen(c, (uint64_t)i);
    tc_run(e, c);
    tc_same_outputs(clean, c);
    tc_case_free(clean);
    tc_case_free(c);
  }
}

int main(void) {
  static const tc_test tests[] = {
    {"random_n13", random_n13},
    {"random_m14", random_m14},
  };
  return tc_run_tests("random", tests, sizeof tests / sizeof *tests);
}
