/* SPDX-License-Identifier: Apache-2.0 */
/* One call as a test makes it: a problem string, tensors filled by a recipe, buffers that point at them. */
#ifndef TC_CASE_H
#define TC_CASE_H
#include "common/tensor.h"
#include "core/core.h"

/* How tensors are filled. A zeroed fill is uniform values in [-1,1), masks that keep 70 %, biases with 20 % -inf. */
typedef struct tc_fill {
  uint64_t seed;          /* 0: from the problem's text */
  double amplitude;       /* of q and k; 0 = 1 */
  bool unit;              /* q, k, v in [0,1) */
  bool one_hot;           /* v: one element of each key is not 0, where N13 is tight */
  bool finite_bias;       /* no -inf in a bias */
  double keep;            /* share of a mask that keeps; 0 = 0.7 */
  bool full_lengths;      /* q_len = Sq, kv_len = Skv; else random from 0 on */
  int place;              /* 0: by seed, else tc_place + 1 */
} tc_fill;

typedef struct tc_case {
  char text[512];
  rapt_problem p;         /* as parsed; names NULL */
  rapti_request r;        /* r.cast: resolved */
  tc_tensor q, k, v, mask, bias, q_len, kv_len, q_offset, out, lse;
  rapt_buffers b;
} tc_case;

/* Aborts the test on a text that does not parse or resolve. Tensors are writable until the first run. */
tc_case *tc_case_new(const char *problem, const tc_fill *fill);
void tc_case_free(tc_case *c);
/* Copies the logical values of every input of a (same shapes, any strides). */
void tc_case_copy(tc_case *to, const tc_case *from);

/* M13, from the logical values alone and apart from any kernel's code. */
bool tc_visible(const tc_case *c, int64_t b, int64_t h, int64_t i, int64_t j);
/* NaN and Inf in everything that row (b,h,i) does not see, or that no row at all sees (M14). Dense tensors only. */
void tc_poison_for_row(tc_case *c, int64_t b, int64_t h, int64_t i, uint64_t seed);
void tc_poison_unseen(tc_case *c, uint64_t seed);
#endif
