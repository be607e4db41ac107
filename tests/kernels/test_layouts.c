/* SPDX-License-Identifier: Apache-2.0 */
/* S9, S13, S14: any strides, any base address, any broadcasting: the bits of the dense call. */
#include "common/run.h"

#include <stdio.h>
#include <string.h>

/* Runs `tokens` with these strides and the same call dense in logical order (plain: tokens with materialised shapes);
 * compares bits, and both with the oracle. */
static void same_as(tc_engine *e, const char *strided, const char *plain, int place) {
  tc_fill fill = {.seed = 11, .place = place};
  tc_case *c = tc_case_new(strided, &fill), *dense = tc_case_new(plain, &fill);
  tc_case_copy(dense, c);
  tc_oracle *o = tc_oracle_new(dense);
  tc_run(e, dense);
  tc_judge(e, dense, o);
  tc_run(e, c);
  tc_same_outputs(c, dense);
  tc_oracle_free(o);
  tc_case_free(c);
  tc_case_free(dense);
}

static void layouts_s9_s14(tc_engine *e) {
  static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
  static const char *const shapes[] = {"b2 h4/2 q33 k47 d40/24", "b3 h2 q5 k70 d64", "b1 h6/3 q1 k130 d16/33"};
  static const char *const orders[] = {"layout=bshd", "layout=sbhd", "q.st=bshd v.st=sbhd", "out.st=sbhd k.st=bshd"};
  char a[300], b[300];
  for (int i = 0; i < 3 * 3 * 4; i++) {
    const char *options = i % 2 ? "causal=br lse" : "lse";
    snprintf(a, sizeof a, "%s %s %s %s", dtypes[i % 3], shapes[i / 3 % 3], orders[i / 9], options);
    snprintf(b, sizeof b, "%s %s %s", dtypes[i % 3], shapes[i / 3 % 3], options);
    same_as(e, a, b, 1 + i % 3);
  }
}

/* Sizes b2 h2 q9 k13 d8/6; strides of each logical axis. */
static const char sizes[] = "b2 h2 q9 k13 d8/6";

static void any_stride_s9_s14(tc_engine *e) {
  static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
  static const char *const strides[] = {
    "q.st=288,144,16,2",                        /* last stride 2 */
    "k.st=832,416,32,3",                        /* last stride 3, a gap after each row */
    "v.st=156,78,6,-1",                         /* negative last */
    "q.st=-144,-72,-8,-1",                      /* everything backwards */
    "k.st=-208,104,-8,1 v.st=156,-78,6,1",
    "k.st=0,104,8,1",                           /* one batch for all */
    "v.st=156,0,6,1 k.st=0,0,8,1",              /* one head for all */
    "v.st=0,0,0,1 q.st=0,0,0,0",                /* one value row, one query element */
    "k.st=208,104,0,1",                         /* one key for all: equal weights */
    "q.st=1,2,4,36 k.st=1,2,4,52 v.st=1,2,4,52",/* innermost axis outermost */
    "q.st=145,73,8,1 k.st=211,105,8,1",         /* odd gaps */
    "out.st=216,108,12,2",                      /* gaps in the output */
    "out.st=-108,54,-6,-1 lse.st=-18,9,-1",     /* a backward output */
    "out.st=1,2,4,36 lse.st=1,2,4",
    "lse.st=100,40,3"};
  char a[300], b[300];
  for (int i = 0; i < 15 * 3; i++) {
    snprintf(a, sizeof a, "%s %s %s lse", dtypes[i % 3], sizes, strides[i / 3]);
    snprintf(b, sizeof b, "%s %s lse", dtypes[i % 3], sizes);
    same_as(e, a, b, 1 + i % 3);
  }
}

/* M12: an axis of 1, a stride of 0 and the written-out array mean the same, bit for bit (S14). */
static void broadcast_m12_s14(tc_engine *e) {
  char a[300], b[300];
  for (int axes = 0; axes < 16; axes++) {
    int n[4] = {axes & 1 ? 2 : 1, axes & 2 ? 4 : 1, axes & 4 ? 9 : 1, axes & 8 ? 33 : 1};
    snprintf(a, sizeof a, "fp32 b2 h4/2 q9 k33 d16 lse mask=bool:%dx%dx%dx%d", n[0], n[1], n[2], n[3]);
    same_as(e, a, "fp32 b2 h4/2 q9 k33 d16 lse mask=bool:2x4x9x33", 1 + axes % 3);
    snprintf(a, sizeof a, "bf16 b2 h4/2 q9 k33 d16 lse causal=br bias=fp32:%dx%dx%dx%d", n[0], n[1], n[2], n[3]);
    same_as(e, a, "bf16 b2 h4/2 q9 k33 d16 lse causal=br bias=fp32:2x4x9x33", 1 + axes % 3);
  }
  static const char *const strided[][2] = {{"2x4x9x33", "0,0,33,1"},  {"2x4x9x33", "-1188,-297,-33,-1"},
                                           {"2x4x9x33", "2376,594,66,2"}, {"2x4x9x33", "1,2,8,72"},
                                           {"1x4x9x33", "7,0,0,1"},   {"2x1x9x33", "0,5,40,1"}};
  for (int i = 0; i < 12; i++) {
    const char *name = i % 2 ? "mask" : "bias", *dtype = i % 2 ? "bool" : "fp16";
    snprintf(b, sizeof b, "fp16 b2 h4/2 q9 k33 d16 lse %s=%s:2x4x9x33", name, dtype);
    snprintf(a, sizeof a, "fp16 b2 h4/2 q9 k33 d16 lse %s=%s:%s %s.st=%s", name, dtype, strided[i / 2][0], name,
             strided[i / 2][1]);
    same_as(e, a, b, 1 + i % 3);
  }
}

/* S11, S14: q, k and v as slices of one array [B,S,3,H,D], read-only, against separate dense tensors. */
static void packed_slices_s11(tc_engine *e) {
  static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
  enum { B = 2, S = 29, H = 3, D = 24 };
  for (int t = 0; t < 3; t++) {
    char a[300], b[100];
    snprintf(b, sizeof b, "%s b2 h3 q29 k29 d24 causal lse", dtypes[t]);
    snprintf(a, sizeof a, "%s q.st=6264,24,216,1 k.st=6264,24,216,1 v.st=6264,24,216,1", b);
    tc_case *c = tc_case_new(a, NULL), *dense = tc_case_new(b, NULL);
    const int64_t size[4] = {B, S, 3 * H, D}, stride[4] = {S * 3 * H * D, 3 * H * D, D, 1};
    tc_tensor qkv, *from[3] = {&dense->q, &dense->k, &dense->v};
    tc_tensor_make(&qkv, c->q.dtype, size, stride, TC_AT_END);
    for (int64_t n = 0; n < (int64_t)B * S * 3 * H * D; n++) {
      int64_t d = n % D, h = n / D % H, which = n / D / H % 3, s = n / D / H / 3 % S, batch = n / D / H / 3 / S;
      tc_set(&qkv, batch, s, which * H + h, d, tc_get(from[which], batch, h, s, d));
    }
    tc_read_only(&qkv, true);
    c->b.q = tc_at(&qkv, 0, 0, 0, 0);
    c->b.k = tc_at(&qkv, 0, 0, H, 0);
    c->b.v = tc_at(&qkv, 0, 0, 2 * H, 0);
    tc_run(e, c);
    tc_run(e, dense);
    tc_same_outputs(c, dense);
    tc_tensor_free(&qkv);
    tc_case_free(c);
    tc_case_free(dense);
  }
}

/* S12, S14: every base address that an element may have within 64 bytes. */
static void base_address_s14(tc_engine *e) {
  tc_case *dense = tc_case_new("bf16 b1 h2 q19 k35 d32 lse", NULL);
  tc_run(e, dense);
  for (int shift = 0; shift < 32; shift++) {
    char text[200];   /* an odd gap after each row moves the rows against each other, the guard page moves the base */
    int q = 32 + shift, v = 33 + shift;
    snprintf(text, sizeof text, "bf16 b1 h2 q19 k35 d32 lse q.st=9999,%d,%d,1 v.st=9999,%d,%d,1", 19 * q, q, 35 * v, v);
    tc_fill fill = {.place = 1 + shift % 3};
    tc_case *c = tc_case_new(text, &fill);
    tc_case_copy(c, dense);
    tc_run(e, c);
    tc_same_outputs(c, dense);
    tc_case_free(c);
  }
  tc_case_free(dense);
}

int main(void) {
  static const tc_test tests[] = {
    {"layouts_s9_s14", layouts_s9_s14},
    {"any_stride_s9_s14", any_stride_s9_s14},
    {"broadcast_m12_s14", broadcast_m12_s14},
    {"packed_slices_s11", packed_slices_s11},
    {"base_address_s14", base_address_s14},
  };
  return tc_run_tests("layouts", tests, sizeof tests / sizeof *tests);
}
