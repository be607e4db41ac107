/* SPDX-License-Identifier: Apache-2.0 */
/* N1 to N11: order of operations, scales, special values, stored precision. */
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

static const char *const dtypes[] = {"fp32", "bf16", "fp16", "fp64"};

static bool takes(const tc_engine *e, int i) {
  static const int ids[] = {RAPT_FP32, RAPT_BF16, RAPT_FP16, RAPT_FP64};
  return e->row->dtypes & RAPT_DT(ids[i]);
}

static void check(tc_engine *e, int dtype, const char *rest, const tc_fill *fill) {
  char text[300];
  snprintf(text, sizeof text, "%s %s", dtypes[dtype], rest);
  if (takes(e, dtype)) tc_check(e, text, fill);
}

/* N1, N3, N4: the scale multiplies the product, the bias comes after it; 0 and negative scales are what they say. */
static void scales_n1_n3(tc_engine *e) {
  static const char *const scales[] = {"", "scale=0", "scale=-0", "scale=-0.25", "scale=1", "scale=3.7", "scale=1e-30",
                                       "scale=-2"};
  for (int i = 0; i < 32; i++) {
    char rest[200];
    snprintf(rest, sizeof rest, "b1 h2 q17 k67 d48/24 causal=br bias=fp32:1x2x1x67 %s lse", scales[i / 4]);
    check(e, i % 4, rest, NULL);
    snprintf(rest, sizeof rest, "b1 h2 q3 k130 d20 %s lse", scales[i / 4]);
    check(e, i % 4, rest, NULL);
  }
}

/* N3: the default is 1/sqrt(D) of the D passed, before any padding: the bits of the same number given. */
static void default_scale_n3(tc_engine *e) {
  static const int dims[] = {1, 3, 16, 20, 72, 100};
  for (int i = 0; i < 6; i++) {
    char a[100], b[200];
    snprintf(a, sizeof a, "fp32 b1 h1 q9 k33 d%d lse", dims[i]);
    snprintf(b, sizeof b, "%s scale=%.17g", a, 1 / sqrt(dims[i]));
    tc_case *x = tc_case_new(a, NULL), *y = tc_case_new(b, NULL);
    tc_case_copy(y, x);
    judge(e, x);
    tc_run(e, y);
    tc_same_outputs(x, y);
    tc_case_free(x);
    tc_case_free(y);
  }
}

/* N5: logits of hundreds and thousands, both signs; the maximum grows late, early and never. */
static void huge_logits_n5(tc_engine *e) {
  static const double amplitudes[] = {10, 40, 200};
  for (int i = 0; i < 24; i++) {
    tc_fill fill = {.amplitude = amplitudes[i / 4 % 3], .one_hot = i >= 12};
    check(e, i % 4, "b1 h2 q18 k133 d32 causal=br lse", &fill);
    check(e, i % 4, "b1 h1 q2 k400 d16 scale=-1 lse", &fill);
  }
}

/* N5: rising, falling and far apart logits by bias; a change of base must not turn them infinite. */
static void steep_bias_n5(tc_engine *e) {
  static const double steps[] = {1, -1, 90, -90, 1e4, -1e4, 1e36, -1e36};
  for (int s = 0; s < 8; s++) {
    tc_case *c = tc_case_new("fp32 b1 h1 q20 k150 d16 bias=fp32:1x1x20x150 lse", NULL);
    for (int i = 0; i < 20; i++)
      for (int j = 0; j < 150; j++) {
        double base = i == 7 ? 3e38 - 150 * fabs(steps[s]) : 0;
        tc_set(&c->bias, 0, 0, i, j, base + steps[s] * (i % 3 ? j : j / 50));
      }
    judge(e, c);
    tc_case_free(c);
  }
}

/* N1, N13: the maximum grows from block to block of keys by little, so that what came before still counts: slowly rising
 * and falling logits, and single spikes, along many keys and for each way of taking rows. */
static void growing_maximum_n13(tc_engine *e) {
  static const double slopes[] = {0.004, 0.02, 0.05, 0.2, -0.01, 0};
  static const int rows[] = {1, 3, 20, 70};
  for (int n = 0; n < 24; n++) {
    char text[200];
    int sq = rows[n % 4];
    snprintf(text, sizeof text, "%s b1 h2/1 q%d k1500 d16/24 bias=fp32:1x1x%dx1500 lse", dtypes[n % 3], sq, sq);
    tc_fill fill = {.one_hot = n % 2};
    tc_case *c = tc_case_new(text, &fill);
    for (int i = 0; i < sq; i++)
      for (int j = 0; j < 1500; j++) {
        double spike = (j * 7 + i * 131) % 311 == 0 ? 2 + 0.004 * j : 0;   /* later ones are higher */
        tc_set(&c->bias, 0, 0, i, j, slopes[n / 4] * j + spike);
      }
    judge(e, c);
    tc_case_free(c);
  }
}

/* N13: values near the largest number of the type: their mean has a place even where a sum of them has none. */
static void huge_values_n13(tc_engine *e) {
  static const int rows[] = {1, 3, 20, 70}, keys[] = {37, 700};
  for (int n = 0; n < 32; n++) {
    char text[200];
    snprintf(text, sizeof text, "%s b1 h2/1 q%d k%d d16/24 %s lse", dtypes[n % 2], rows[n / 2 % 4], keys[n / 8 % 2],
             n / 16 ? "bias=fp32:1x1x1x1" : "causal=br");
    tc_case *c = tc_case_new(text, NULL);
    for (int64_t i = 0, count = tc_count(&c->v); i < count; i++)   /* columns of one sign, of both, and with zeros */
      tc_set_nth(&c->v, i, 3.3e38 * (i % 24 < 8 ? 1 : i % 24 < 16 ? tc_get_nth(&c->v, i) : (double)(i % 3 - 1)));
    judge(e, c);
    tc_case_free(c);
  }
}

/* N2, N10: finite numbers whose logits overflow acc to -inf, all of them: zeros, or what exact arithmetic gives. */
static void overflow_n2_n10(tc_engine *e) {
  tc_case *c = tc_case_new("fp32 b1 h1 q4 k19 d8 lse", NULL);
  for (int n = 0; n < 4 * 8; n++) tc_set_nth(&c->q, n, 1e30);
  for (int n = 0; n < 19 * 8; n++) tc_set_nth(&c->k, n, -1e30);
  tc_run(e, c);
  double mean = 0;
  for (int j = 0; j < 19; j++) mean += tc_get(&c->v, 0, 0, j, 0) / 19;
  for (int i = 0; i < 4; i++) {
    assert_true(tc_get(&c->lse, 0, 0, i, 0) == -INFINITY);   /* the finite lse has no fp32 either */
    tc_element element = {.n = 19, .A = 1, .V = 1};
    tc_tol tol = tc_tol_make(&c->r.cast, e->row);
    double got = tc_get(&c->out, 0, 0, i, 0);
    assert_true(got == 0 || fabs(got - mean) <= tc_out_bound(&tol, &element, mean));
  }
  tc_case_free(c);
}

/* N10: NaN and Inf in visible places reach exactly the rows that see them. */
static void non_finite_n10(tc_engine *e) {
  static const double values[] = {NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 4 * 3 * 4; i++) {
    char text[200];
    snprintf(text, sizeof text, "%s b1 h2/1 q37 k70 d16 causal=br bias=fp32:1x1x37x70 lse", dtypes[i % 4]);
    if (!takes(e, i % 4)) continue;
    tc_fill fill = {.finite_bias = i % 2, .seed = 5};
    tc_case *c = tc_case_new(text, &fill);
    double value = values[i / 4 % 3];
    switch (i / 12) {
    case 0: tc_set(&c->k, 0, 0, 41, 3, value); break;
    case 1: tc_set(&c->v, 0, 0, 50, 7, value); break;
    case 2: tc_set(&c->q, 0, 1, 11, 2, value); break;
    default: tc_set(&c->bias, 0, 0, 20, 30, value); break;
    }
    judge(e, c);
    tc_case_free(c);
  }
}

/* N11: one visible key: the output is v, exactly. By mask, window, length and size. */
static void one_key_n11(tc_engine *e) {
  static const char *const ways[] = {"b1 h2/1 q33 k33 d24/40 align=tl window=0,0 lse",
                                     "b1 h2 q5 k300 d64 kvlen=int32 lse",
                                     "b2 h2 q7 k1 d16/8 lse", "b1 h1 q9 k140 d32 mask=bool:1x1x1x140 lse",
                                     "b1 h1 q3 k90 d32 causal=off:0 window=0,-1 lse"};
  for (int i = 0; i < 20; i++) {
    char text[200];
    snprintf(text, sizeof text, "%s %s", dtypes[i % 4], ways[i / 4]);
    if (!takes(e, i % 4)) continue;
    tc_fill fill = {.amplitude = 20};
    tc_case *c = tc_case_new(text, &fill);
    const rapt_problem *p = &c->r.cast;
    for (int j = 0; c->mask.base && j < 140; j++) tc_set(&c->mask, 0, 0, 0, j, j == 77);
    if (c->kv_len.base) tc_set(&c->kv_len, 0, 0, 0, 0, 1);
    judge(e, c);
    for (int64_t n = 0; n < tc_count(&c->out); n++) {
      int64_t d = n % p->Dv, s = n / p->Dv % p->Sq, h = n / p->Dv / p->Sq % p->Hq, b = n / p->Dv / p->Sq / p->Hq;
      int64_t j = c->mask.base ? 77 : p->Sq == p->Skv || i / 4 == 4 ? s : 0;
      assert_true(tc_get_nth(&c->out, n) == tc_get(&c->v, b, h / (p->Hq / p->Hkv), j, d));
    }
    tc_case_free(c);
  }
}

/* S2, N9: fp32 output from half inputs is not rounded to half on the way; strict where the row claims it. */
static void wide_output_s2(tc_engine *e) {
  for (int i = 1; i < 3; i++) {
    check(e, i, "b1 h2 q17 k67 d48/24 out=fp32 lse", NULL);
    check(e, i, "b1 h2 q17 k67 d48/24 out=fp32 strict causal=br lse", NULL);
    check(e, i, "b1 h2 q40 k300 d64 strict lse", NULL);
    check(e, i, "b1 h2 q1 k300 d64 out=fp32 strict lse", NULL);
  }
  check(e, 0, "b1 h2 q17 k67 d48/24 out=fp32 strict lse", NULL);
}

/* S2: mixed_kv. */
static void mixed_kv_s2(tc_engine *e) {
  static const char *const mixes[] = {"fp32/fp16/fp16", "fp32/bf16/bf16", "bf16/fp16/fp16", "fp16/bf16/bf16"};
  static const char *const rest[] = {"b1 h4/2 q19 k70 d40/24 causal=br lse", "b2 h2 q1 k300 d64 kvlen=int32 lse",
                                     "b1 h2 q9 k33 d16 mask=bool:1x1x9x33 bias=fp16:1x1x1x33 out=fp32 lse"};
  for (int i = 0; i < 12; i++) {
    char text[200];
    snprintf(text, sizeof text, "%s %s mixed_kv", mixes[i % 4], rest[i / 4]);
    if (e->row->can & RAPT_CAN_MIXED_KV) tc_check(e, text, NULL);
  }
}

/* N2: an fp16 output that overflows is infinite, subnormal ones are kept. */
static void stored_range_n2(tc_engine *e) {
  if (!takes(e, 2)) return;
  tc_case *c = tc_case_new("fp16/bf16/bf16 b1 h1 q3 k20 d8 mixed_kv lse", NULL);
  for (int j = 0; j < 20; j++) {
    tc_set(&c->v, 0, 0, j, 0, 1e5);
    tc_set(&c->v, 0, 0, j, 1, -1e5);
    tc_set(&c->v, 0, 0, j, 2, 0x1p-20);
    tc_set(&c->v, 0, 0, j, 3, 0x1p-24);
  }
  judge(e, c);
  assert_true(tc_get(&c->out, 0, 0, 0, 0) == INFINITY);
  assert_true(tc_get(&c->out, 0, 0, 0, 1) == -INFINITY);
  assert_true(tc_get(&c->out, 0, 0, 0, 2) > 0);
  tc_case_free(c);
}

/* N11: permuted rows, heads and batches permute the result, bit for bit under BATCH (N17). */
static void permuted_n11_n17(tc_engine *e) {
  if (e->row->determinism < RAPT_DET_BATCH) {
    print_message("%s does not claim BATCH: not compared\n", e->row->id);
    check(e, 0, "b3 h2 q19 k70 d16 lse", NULL);
    return;
  }
  const char *text = "fp32 b3 h2 q19 k70 d16 lse det=batch";
  tc_case *a = tc_case_new(text, NULL), *b = tc_case_new(text, NULL);
  for (int batch = 0; batch < 3; batch++)
    for (int h = 0; h < 2; h++) {
      for (int64_t n = 0; n < 19 * 16; n++)
        tc_set(&b->q, batch, h, n / 16, n % 16, tc_get(&a->q, 2 - batch, 1 - h, 18 - n / 16, n % 16));
      for (int64_t n = 0; n < 70 * 16; n++) {
        tc_set(&b->k, batch, h, n / 16, n % 16, tc_get(&a->k, 2 - batch, 1 - h, n / 16, n % 16));
        tc_set(&b->v, batch, h, n / 16, n % 16, tc_get(&a->v, 2 - batch, 1 - h, n / 16, n % 16));
      }
    }
  judge(e, a);
  judge(e, b);
  for (int64_t n = 0; n < 3 * 2 * 19; n++) {
    int64_t i = n % 19, h = n / 19 % 2, batch = n / 38;
    assert_memory_equal(tc_at(&b->out, batch, h, i, 0), tc_at(&a->out, 2 - batch, 1 - h, 18 - i, 0),
                        16 * sizeof(float));
  }
  tc_case_free(a);
  tc_case_free(b);
}

/* N17: a row alone has the bits it has among others, and past a longer key array (BATCH). */
static void row_alone_n17(tc_engine *e) {
  if (e->row->determinism < RAPT_DET_BATCH) {
    check(e, 1, "b1 h1 q1 k70 d64 lse", NULL);
    return;
  }
  for (int t = 0; t < 3; t++) {
    char text[200];
    snprintf(text, sizeof text, "%s b2 h2 q41 k300 d64 kvlen=int32 lse det=batch", dtypes[t]);
    tc_case *all = tc_case_new(text, NULL);
    tc_set(&all->kv_len, 0, 0, 0, 1, 130);
    snprintf(text, sizeof text, "%s b1 h1 q1 k130 d64 lse det=batch", dtypes[t]);
    tc_case *one = tc_case_new(text, NULL);
    for (int64_t d = 0; d < 64; d++) tc_set(&one->q, 0, 0, 0, d, tc_get(&all->q, 1, 1, 23, d));
    for (int64_t n = 0; n < 130 * 64; n++) {
      tc_set_nth(&one->k, n, tc_get(&all->k, 1, 1, n / 64, n % 64));
      tc_set_nth(&one->v, n, tc_get(&all->v, 1, 1, n / 64, n % 64));
    }
    tc_run(e, all);
    judge(e, one);
    assert_memory_equal(tc_at(&one->out, 0, 0, 0, 0), tc_at(&all->out, 1, 1, 23, 0), 64 * one->out.element);
    assert_memory_equal(tc_at(&one->lse, 0, 0, 0, 0), tc_at(&all->lse, 1, 1, 23, 0), sizeof(float));
    tc_case_free(all);
    tc_case_free(one);
  }
}

int main(void) {
  static const tc_test tests[] = {
    {"scales_n1_n3_n4", scales_n1_n3},
    {"default_scale_n3", default_scale_n3},
    {"huge_logits_n5", huge_logits_n5},
    {"steep_bias_n5", steep_bias_n5},
    {"growing_maximum_n13", growing_maximum_n13},
    {"huge_values_n13", huge_values_n13},
    {"overflow_n2_n10", overflow_n2_n10},
    {"non_finite_n10", non_finite_n10},
    {"one_key_n11", one_key_n11},
    {"wide_output_s2_n6", wide_output_s2},
    {"mixed_kv_s2", mixed_kv_s2},
    {"stored_range_n2", stored_range_n2},
    {"permuted_n11_n17", permuted_n11_n17},
    {"row_alone_n17", row_alone_n17},
  };
  return tc_run_tests("numerics", tests, sizeof tests / sizeof *tests);
}
