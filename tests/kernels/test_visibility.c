/* SPDX-License-Identifier: Apache-2.0 */
/* M1 to M16 and M23: who sees whom, however it is said, and that nobody else has any influence. */
#include "common/run.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void judge(tc_engine *e, tc_case *c) {
  tc_oracle *o = tc_oracle_new(c);
  tc_run(e, c);
  tc_judge(e, c, o);
  tc_oracle_free(o);
}

static const tc_fill fill = {.seed = 3};

/* Two texts whose tensors have the same logical values: same bits, and both right. */
static void same(tc_engine *e, const char *a, const char *b) {
  tc_case *x = tc_case_new(a, &fill), *y = tc_case_new(b, &fill);
  tc_case_copy(y, x);
  judge(e, x);
  judge(e, y);
  tc_same_outputs(x, y);
  tc_case_free(x);
  tc_case_free(y);
}

/* ---- M1 to M7: positions ---- */

static void corners_m1_m4(tc_engine *e) {
  same(e, "fp32 b2 h2 q9 k21 d16 causal=tl lse", "fp32 b2 h2 q9 k21 d16 causal=off:0 lse");
  same(e, "fp32 b2 h2 q9 k21 d16 causal=br lse", "fp32 b2 h2 q9 k21 d16 causal=off:12 lse");
  same(e, "fp32 b2 h2 q21 k9 d16 causal=br lse", "fp32 b2 h2 q21 k9 d16 causal=off:-12 lse");   /* M5: rows without keys */
  same(e, "fp32 b2 h2 q9 k21 d16 align=br window=3,2 lse", "fp32 b2 h2 q9 k21 d16 align=off:12 window=3,2 lse");
  same(e, "fp32 b2 h2 q17 k17 d16 causal lse", "fp32 b2 h2 q17 k17 d16 causal=tl lse");         /* M3: all corners agree */
  same(e, "fp32 b2 h2 q17 k17 d16 causal lse", "fp32 b2 h2 q17 k17 d16 causal=br lse");
  same(e, "fp32 b2 h2 q9 k21 d16 align=br lse", "fp32 b2 h2 q9 k21 d16 lse");                   /* M4: no effect alone */
  same(e, "fp32 b1 h2 q40 k9 d16 causal=tl lse", "fp32 b1 h2 q40 k9 d16 causal=off:0 lse");     /* M5: rows past the keys */
}

/* M2: an offset a batch entry, far outside on both sides too; M7: BOTTOM_RIGHT counts from the lengths. */
static void offsets_m2_m7(tc_engine *e) {
  static const int64_t offsets[] = {0, 12, -4, -100, 100, INT64_C(1) << 62, -(INT64_C(1) << 62)};
  for (int i = 0; i < 7; i++) {
    char text[200];
    snprintf(text, sizeof text, "fp32 b2 h2 q9 k21 d16 causal=off:%lld window=5,-1 lse", (long long)offsets[i]);
    tc_case *scalar = tc_case_new(text, &fill);
    tc_case *array = tc_case_new("fp32 b2 h2 q9 k21 d16 causal=off:int64 window=5,-1 lse", &fill);
    tc_case_copy(scalar, array);
    for (int b = 0; b < 2; b++) memcpy(tc_at(&array->q_offset, 0, 0, 0, b), &offsets[i], sizeof offsets[i]);
    judge(e, scalar);
    judge(e, array);
    tc_same_outputs(scalar, array);
    tc_case_free(scalar);
    tc_case_free(array);
  }
  for (int i = 0; i < 12; i++) {
    tc_case *c = tc_case_new(i % 2 ? "fp32 b2 h2 q9 k21 d16 causal=br qlen=int32 kvlen=int64 lse"
                                   : "bf16 b2 h2 q9 k21 d16 align=br window=4,1 qlen=int64 kvlen=int32 lse", &fill);
    tc_set(&c->q_len, 0, 0, 0, 0, i % 10);
    tc_set(&c->kv_len, 0, 0, 0, 0, i * 2 % 22);
    tc_set(&c->kv_len, 0, 0, 0, 1, i == 3 ? 0 : 21 - i);
    judge(e, c);
    tc_case_free(c);
  }
}

/* M6: both ends inclusive, -1 open, causal caps the right one at 0; exact per element. */
static void windows_m6(tc_engine *e) {
  same(e, "fp32 b1 h2 q19 k33 d16 align=br window=4,0 lse", "fp32 b1 h2 q19 k33 d16 causal=br window=4,0 lse");
  same(e, "fp32 b1 h2 q19 k33 d16 align=br window=4,0 lse", "fp32 b1 h2 q19 k33 d16 causal=br window=4,-1 lse");
  same(e, "fp32 b1 h2 q19 k33 d16 align=br window=4,0 lse", "fp32 b1 h2 q19 k33 d16 causal=br window=4,9 lse");
  same(e, "fp32 b1 h2 q19 k33 d16 align=tl window=-1,0 lse", "fp32 b1 h2 q19 k33 d16 causal=tl lse");
  same(e, "fp32 b1 h2 q19 k33 d16 align=tl window=-1,-1 lse", "fp32 b1 h2 q19 k33 d16 lse");
  same(e, "fp32 b1 h2 q19 k33 d16 align=tl window=100,100 lse", "fp32 b1 h2 q19 k33 d16 lse");
  same(e, "fp32 b1 h2 q19 k33 d16 align=br window=9223372036854775807,9223372036854775807 lse",
       "fp32 b1 h2 q19 k33 d16 lse");
  for (int left = -1; left < 5; left++)      /* exact per element: every small window at several corners */
    for (int right = -1; right < 4; right++) {
      char text[200];
      snprintf(text, sizeof text, "fp32 b1 h1 q37 k41 d8 align=%s window=%d,%d lse", right % 2 ? "off:7" : "br", left,
               right);
      tc_check(e, text, NULL);
    }
}

/* M3: no corner named where the corners differ: nobody guesses one. */
static void unset_m3(tc_engine *e) {
  static const char *const texts[] = {"fp32 b1 h2 q9 k21 d16 causal", "fp32 b1 h2 q9 k21 d16 window=3,0",
                                      "fp32 b1 h2 q9 k9 d16 causal kvlen=int32"};
  for (int t = 0; t < 3; t++) {
    rapt_problem p = {.struct_size = sizeof p};
    rapt_report *report = NULL;
    rapt_reason why = {.struct_size = sizeof why};
    assert_int_equal(rapt_problem_parse(texts[t], strlen(texts[t]), &p, NULL, 0, NULL), RAPT_OK);
    p.require = e->row->id;
    assert_int_equal(rapt_explain(e->ctx, &p, &report), RAPT_ARG);
    assert_int_equal(rapt_report_error(report, &why), RAPT_OK);
    assert_int_equal(why.code, RAPT_CODE_ALIGNMENT_UNSET);
    rapt_report_destroy(report);
  }
  tc_check(e, "fp32 b1 h2 q9 k9 d16 causal lse", NULL);
}

/* ---- M8 to M12: arrays ---- */

/* M8: any nonzero byte keeps; M12 is in test_layouts.c. */
static void mask_bytes_m8(tc_engine *e) {
  tc_case *c = tc_case_new("fp32 b1 h2 q11 k256 d16 mask=bool:1x1x11x256 lse", &fill);
  tc_case *ones = tc_case_new(c->text, &fill);
  for (int i = 0; i < 11; i++)
    for (int j = 0; j < 256; j++) {
      tc_set(&c->mask, 0, 0, i, j, (j + i) % 256);
      tc_set(&ones->mask, 0, 0, i, j, (j + i) % 256 != 0);
    }
  judge(e, c);
  judge(e, ones);
  tc_same_outputs(c, ones);
  tc_case_free(c);
  tc_case_free(ones);
}

/* M9: a bias of any narrower type is added exactly: the bits of the same numbers in fp32. */
static void bias_dtypes_m9(tc_engine *e) {
  static const char *const q[] = {"fp32", "bf16", "fp16"}, *const bias[] = {"fp16", "bf16", "fp32"};
  for (int i = 0; i < 9; i++) {
    char text[200];
    snprintf(text, sizeof text, "%s b1 h2 q11 k40 d16 bias=%s:1x2x11x40 lse", q[i / 3], bias[i % 3]);
    tc_case *c = tc_case_new(text, &fill);
    snprintf(text, sizeof text, "%s b1 h2 q11 k40 d16 bias=fp32:1x2x11x40 lse", q[i / 3]);
    tc_case *wide = tc_case_new(text, &fill);
    for (int64_t n = 0; n < tc_count(&c->bias); n++) tc_set_nth(&wide->bias, n, tc_get_nth(&c->bias, n));
    judge(e, c);
    judge(e, wide);
    tc_same_outputs(c, wide);
    tc_case_free(c);
    tc_case_free(wide);
  }
  if (e->row->dtypes & RAPT_DT(RAPT_FP64)) tc_check(e, "fp64 b1 h2 q11 k40 d16 bias=fp64:1x2x11x40 lse", NULL);
}

/* M10: the lowest finite number is no mask. A row of it alone gives the mean of v, beside other numbers nothing. */
static void lowest_bias_m10(tc_engine *e) {
  static const char *const texts[] = {"fp32 b1 h1 q8 k37 d16 bias=fp32:1x1x8x37 lse",
                                      "bf16 b1 h1 q8 k37 d16 bias=bf16:1x1x8x37 lse",
                                      "fp16 b1 h1 q8 k37 d16 bias=fp32:1x1x8x37 lse"};
  for (int t = 0; t < 3; t++) {
    tc_case *c = tc_case_new(texts[t], &fill);
    double lowest = c->bias.dtype == RAPT_BF16 ? -0x1.fep127 : -(double)FLT_MAX;
    for (int i = 0; i < 8; i++)
      for (int j = 0; j < 37; j++)
        tc_set(&c->bias, 0, 0, i, j, i < 4 || j % 3 ? lowest : i == 5 ? -INFINITY : i == 6 && j == 0 ? 1 : lowest);
    judge(e, c);
    for (int d = 0; d < 16 && t == 0; d++) {   /* against a plain mean too, within the same bound */
      double mean = 0, bound = 0;
      for (int j = 0; j < 37; j++) mean += tc_get(&c->v, 0, 0, j, d) / 37;
      tc_element element = {.n = 37, .A = 1, .V = 1};
      tc_tol tol = tc_tol_make(&c->r.cast, e->row);
      bound = tc_out_bound(&tol, &element, mean);
      assert_true(fabs(tc_get(&c->out, 0, 0, 0, d) - mean) <= bound);
    }
    tc_case_free(c);
  }
}

/* M11, M13: everything at once, the intersection. */
static void intersection_m11_m13(tc_engine *e) {
  static const char *const all = "mask=bool:2x1x29x67 bias=fp32:1x4x29x67 qlen=int32 kvlen=int32 lse";
  static const char *const positions[] = {"causal=br", "causal=tl window=9,-1", "align=br window=20,3",
                                          "causal=off:int64", "causal=off:11"};
  for (int i = 0; i < 15; i++) {
    char text[300];
    snprintf(text, sizeof text, "%s b2 h4/2 q29 k67 d24 %s %s", i % 3 ? i % 3 == 1 ? "bf16" : "fp16" : "fp32",
             positions[i / 3], all);
    tc_check(e, text, NULL);
  }
}

/* ---- M14, M15: isolation ---- */

static const char *const isolated[] = {
  "fp32 b1 h2/1 q33 k70 d16 causal=br lse",
  "bf16 b2 h2 q33 k70 d16 align=tl window=7,3 lse",
  "fp16 b2 h2/1 q19 k150 d24 kvlen=int32 qlen=int32 lse",
  "fp32 b2 h2 q19 k150 d24 mask=bool:2x2x19x150 lse",
  "bf16 b1 h2 q19 k150 d24 bias=fp32:1x2x19x150 lse",
  "fp32 b1 h2 q40 k40 d8 causal bias=fp32:1x1x40x40 mask=bool:1x1x1x40 lse",
  "fp32 b1 h2 q1 k300 d64 kvlen=int64 lse",
  "fp16 b1 h4/2 q3 k257 d64 mask=bool:1x1x1x257 lse",
  "fp32 b1 h1 q70 k33 d16 causal=br lse",
  "fp16 b1 h1 q5 k200 d128 align=br window=15,0 lse",
  "fp64 b1 h2 q9 k40 d16 causal=br bias=fp32:1x2x9x40 lse",
};
enum { N_ISOLATED = sizeof isolated / sizeof *isolated };

static void compare_row(const tc_engine *e, const tc_case *a, const tc_case *b, int64_t batch, int64_t h, int64_t i) {
  for (int64_t d = 0; d < a->r.cast.Dv; d++)
    if (memcmp(tc_at(&a->out, batch, h, i, d), tc_at(&b->out, batch, h, i, d), a->out.element))
      fail_msg("%s: %s: row b %lld h %lld i %lld changed with what it cannot see (M14)", e->row->id, a->text,
               (long long)batch, (long long)h, (long long)i);
  assert_memory_equal(tc_at(&a->lse, batch, h, i, 0), tc_at(&b->lse, batch, h, i, 0), a->lse.element);
}

/* NaN and Inf in every q, k, v and bias element that one row does not see: that row keeps its bits. */
static void one_row_m14(tc_engine *e) {
  for (int t = 0; t < N_ISOLATED; t++) {
    tc_case *clean = tc_case_new(isolated[t], &fill);
    const rapt_problem *p = &clean->r.cast;
    if (tc_takes(e, p)) {
      judge(e, clean);
      for (int64_t n = 0; n < p->B * p->Hq * p->Sq; n += 1 + p->Sq / 4) {
        tc_case *c = tc_case_new(isolated[t], &fill);
        int64_t b = n / p->Sq / p->Hq, h = n / p->Sq % p->Hq, i = n % p->Sq;
        tc_poison_for_row(c, b, h, i, (uint64_t)n);
        tc_run(e, c);
        compare_row(e, clean, c, b, h, i);
        tc_case_free(c);
      }
    }
    tc_case_free(clean);
  }
}

/* M14, M15: NaN and Inf in everything that no row sees, without assume_finite: the whole result keeps its bits. */
static void unseen_m14(tc_engine *e) {
  for (int t = 0; t < N_ISOLATED; t++) {
    tc_case *clean = tc_case_new(isolated[t], &fill), *c = tc_case_new(isolated[t], &fill);
    if (tc_takes(e, &clean->r.cast)) {
      tc_run(e, clean);
      tc_poison_unseen(c, 17);
      tc_run(e, c);
      tc_same_outputs(clean, c);
    }
    tc_case_free(clean);
    tc_case_free(c);
  }
}

/* ---- M16: rows that see nothing, for each reason ---- */

static void masked_row_m16(tc_engine *e) {
  static const char *const texts[] = {
    "fp32 b1 h2 q9 k21 d16 causal=off:-5 lse",
    "fp32 b1 h2 q9 k21 d16 align=tl window=2,-1 mask=bool:1x1x9x21 lse",
    "bf16 b1 h2 q9 k21 d16 mask=bool:1x1x9x21 lse",
    "fp16 b1 h2 q9 k21 d16 bias=fp32:1x1x9x21 lse",
    "fp32 b1 h2 q9 k21 d16 qlen=int32 lse",
    "fp32 b1 h2 q9 k21 d16 kvlen=int32 lse",
  };
  for (int t = 0; t < 6; t++) {
    tc_case *c = tc_case_new(texts[t], &fill);
    for (int j = 0; j < 21; j++) {
      if (c->mask.base) tc_set(&c->mask, 0, 0, 4, j, 0);
      if (c->bias.base) tc_set(&c->bias, 0, 0, 4, j, -INFINITY);
    }
    if (c->q_len.base) tc_set(&c->q_len, 0, 0, 0, 0, 4);
    if (c->kv_len.base) tc_set(&c->kv_len, 0, 0, 0, 0, 0);
    judge(e, c);
    for (int d = 0; d < 16; d++) assert_true(tc_get(&c->out, 0, 1, 4, d) == 0);
    assert_true(tc_get(&c->lse, 0, 1, 4, 0) == -INFINITY);
    tc_case_free(c);
  }
}

/* ---- M23: the same visible set, said in other ways, gives the same bits within a kernel ---- */

/* The visible set of `said` as a mask, or as a bias of 0 and -inf. */
static void same_as_array(tc_engine *e, const char *said, const char *bare, bool as_bias) {
  tc_case *c = tc_case_new(said, &fill);
  const rapt_problem *p = &c->r.cast;
  char text[300], kernel[96];
  snprintf(text, sizeof text, "%s %s:%lldx%lldx%lldx%lld", bare, as_bias ? "bias=fp32" : "mask=bool", (long long)p->B,
           (long long)p->Hq, (long long)p->Sq, (long long)p->Skv);
  tc_case *twin = tc_case_new(text, &fill);
  tc_tensor *array = as_bias ? &twin->bias : &twin->mask;
  for (int64_t n = 0; n < tc_count(array); n++) {
    int64_t j = n % p->Skv, i = n / p->Skv % p->Sq, h = n / p->Skv / p->Sq % p->Hq, b = n / p->Skv / p->Sq / p->Hq;
    bool visible = tc_visible(c, b, h, i, j);
    tc_set_nth(array, n, as_bias ? visible ? 0 : -INFINITY : visible);
  }
  judge(e, c);
  memcpy(kernel, e->kernel, sizeof kernel);
  judge(e, twin);
  if (!strcmp(kernel, e->kernel)) tc_same_outputs(c, twin);
  else print_message("%s: other kernel for the array (%s, %s): bits not compared\n", said, kernel, e->kernel);
  tc_case_free(c);
  tc_case_free(twin);
}

static void expressions_m23(tc_engine *e) {
  static const char *const bare[] = {"fp32 b2 h2/1 q37 k70 d16 lse", "bf16 b2 h2/1 q37 k70 d40 lse",
                                     "fp16 b1 h2/1 q65 k300 d64 lse",
                                     "fp32 b1 h2 q1 k300 d64 lse"};
  static const char *const ways[] = {"causal=br", "causal=tl", "align=br window=9,2", "align=br window=63,0",
                                     "kvlen=int32", "qlen=int32",
                                     "causal=br kvlen=int32", "causal=off:-3", "causal=off:40"};
  for (int i = 0; i < 36; i++) {
    char said[200];
    snprintf(said, sizeof said, "%s %s", bare[i / 9], ways[i % 9]);
    same_as_array(e, said, bare[i / 9], false);
    same_as_array(e, said, bare[i / 9], true);
  }
}

int main(void) {
  static const tc_test tests[] = {
    {"corners_m1_m4", corners_m1_m4},
    {"offsets_m2_m7", offsets_m2_m7},
    {"windows_m6", windows_m6},
    {"unset_m3", unset_m3},
    {"mask_bytes_m8", mask_bytes_m8},
    {"bias_dtypes_m9", bias_dtypes_m9},
    {"lowest_bias_m10", lowest_bias_m10},
    {"intersection_m11_m13", intersection_m11_m13},
    {"one_row_m14", one_row_m14},
    {"unseen_m14_m15", unseen_m14},
    {"masked_row_m16", masked_row_m16},
    {"expressions_m23", expressions_m23},
  };
  return tc_run_tests("visibility", tests, sizeof tests / sizeof *tests);
}
