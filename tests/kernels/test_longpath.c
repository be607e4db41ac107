/* SPDX-License-Identifier: Apache-2.0 */
/* N15: many keys, few of them visible, one-hot values: there the bounds of N13 are tight. */
#include "common/run.h"

#include <stdio.h>

static const int64_t keys[] = {1024, 2047, 3001, 5000};
static const int64_t visible[] = {1, 2, 17, 64};
static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
enum { N_KEYS = 4, N_VISIBLE = 4, N_DTYPES = 3 };

static const tc_fill one_hot = {.one_hot = true, .full_lengths = true};

static void judge(tc_engine *e, tc_case *c) {
  tc_oracle *o = tc_oracle_new(c);
  tc_run(e, c);
  tc_judge(e, c, o);
  tc_oracle_free(o);
  tc_case_free(c);
}

static void title(char *s, size_t n, int i, int64_t sq, int64_t skv, const char *rest) {
  snprintf(s, n, "%s b1 h2/1 q%lld k%lld d%d/%d lse %s", dtypes[i % N_DTYPES], (long long)sq, (long long)skv,
           i % 2 ? 64 : 40, i % 3 ? 32 : 64, rest);
}

/* n keys at random places, or all of them among the last. */
static void keep_only(tc_case *c, int64_t n, bool at_end) {
  tc_rng r = {(uint64_t)n + 5};
  int64_t skv = c->r.cast.Skv, span = at_end ? n + 3 : skv;
  for (int64_t i = 0; i < c->mask.size[2]; i++) {
    for (int64_t j = 0; j < skv; j++) tc_set(&c->mask, 0, 0, i, j, 0);
    for (int64_t left = n; left > 0;) {
      int64_t j = skv - span + tc_below(&r, span);
      left -= tc_get(&c->mask, 0, 0, i, j) == 0;
      tc_set(&c->mask, 0, 0, i, j, 1);
    }
  }
}

static void by_mask_n15(tc_engine *e) {
  char text[300], mask[100];
  for (int i = 0; i < N_KEYS * N_VISIBLE * 2; i++) {
    int64_t skv = keys[i % N_KEYS], sq = i % 5 ? 1 + i % 37 : 1;
    snprintf(mask, sizeof mask, "mask=bool:1x1x%lldx%lld", (long long)sq, (long long)skv);
    title(text, sizeof text, i, sq, skv, mask);
    tc_case *c = tc_case_new(text, &one_hot);
    keep_only(c, visible[i / N_KEYS % N_VISIBLE], i >= N_KEYS * N_VISIBLE);
    judge(e, c);
  }
}

static void by_window_n15(tc_engine *e) {
  char text[300], rest[100];
  for (int i = 0; i < N_KEYS * N_VISIBLE * 2; i++) {
    int64_t skv = keys[i % N_KEYS], n = visible[i / N_KEYS % N_VISIBLE];
    if (i % 2) snprintf(rest, sizeof rest, "align=br window=%lld,0", (long long)(n - 1));
    else snprintf(rest, sizeof rest, "causal=off:%lld window=%lld,-1", (long long)skv / 2, (long long)(n - 1));
    title(text, sizeof text, i, 1 + i % 41, skv, rest);
    judge(e, tc_case_new(text, &one_hot));
  }
}

static void by_lengths_n15(tc_engine *e) {
  char text[300];
  for (int i = 0; i < N_KEYS * N_VISIBLE; i++) {
    title(text, sizeof text, i, 1 + i % 3 * 20, keys[i % N_KEYS], i % 2 ? "kvlen=int32" : "kvlen=int64");
    tc_case *c = tc_case_new(text, &one_hot);
    tc_set(&c->kv_len, 0, 0, 0, 0, (double)visible[i / N_KEYS]);
    judge(e, c);
  }
}

/* Everything visible: the sum of many small weights. */
static void all_visible_n13(tc_engine *e) {
  char text[300];
  for (int i = 0; i < N_KEYS * N_DTYPES; i++) {
    title(text, sizeof text, i, 1 + i % 4 * 8, keys[i % N_KEYS], i % 2 ? "causal=br" : "");
    tc_check(e, text, i % 3 ? NULL : &one_hot);
  }
}

int main(void) {
  static const tc_test tests[] = {
    {"by_mask_n15", by_mask_n15},
    {"by_window_n15", by_window_n15},
    {"by_lengths_n15", by_lengths_n15},
    {"all_visible_n13", all_visible_n13},
  };
  return tc_run_tests("longpath", tests, sizeof tests / sizeof *tests);
}
