/* SPDX-License-Identifier: Apache-2.0 */
/* The autocast policy (A1-A12, A15), alone and inside a request. */
#include "core/core.h"

#include <string.h>

#include "common/cm.h"

static rapt_problem problem(int q, int k, int v) {
  rapt_problem p = RAPT_PROBLEM_INIT;
  p.q.dtype = q;
  p.k.dtype = k;
  p.v.dtype = v;
  p.B = 1;
  p.Hq = p.Hkv = 2;
  p.Sq = p.Skv = 4;
  p.D = p.Dv = 8;
  return p;
}

static rapt_problem active(rapt_problem p, int dtype, int device) {
  p.has |= RAPT_HAS_AUTOCAST;
  p.autocast_dtype = dtype;
  p.autocast_device = device;
  return p;
}

static rapt_status resolve(const rapt_problem *p, rapt_problem *cast, rapt_reason *why) {
  *cast = (rapt_problem)RAPT_PROBLEM_INIT;
  *why = (rapt_reason)RAPT_REASON_INIT;
  return rapt_autocast_resolve(p, cast, why);
}

/* A2, A3: each tensor by itself; fp64 and what is no float stay. */
static void a3_each_tensor_by_itself(void **state) {
  (void)state;
  const int dtypes[] = {RAPT_FP16, RAPT_BF16, RAPT_FP32, RAPT_FP64};
  const int targets[] = {RAPT_FP16, RAPT_BF16, RAPT_FP32};
  for (int d = 0; d < 4; d++)
    for (int t = 0; t < 3; t++)
      for (int b = 0; b < 4; b++) {
        rapt_problem p = active(problem(dtypes[d], dtypes[d], dtypes[d]), targets[t], RAPT_CPU), cast;
        rapt_reason why;
        p.bias.dtype = dtypes[b];
        p.mask.dtype = RAPT_BOOL;
        p.sinks.dtype = RAPT_FP32;
        assert_int_equal(resolve(&p, &cast, &why), RAPT_OK);
        int want = dtypes[d] == RAPT_FP64 ? RAPT_FP64 : targets[t];
        assert_int_equal(cast.q.dtype, want);
        assert_int_equal(cast.k.dtype, want);
        assert_int_equal(cast.v.dtype, want);
        assert_int_equal(cast.bias.dtype, dtypes[b] == RAPT_FP64 ? RAPT_FP64 : targets[t]);
        assert_int_equal(cast.mask.dtype, RAPT_BOOL);        /* A4 */
        assert_int_equal(cast.sinks.dtype, RAPT_FP32);
        assert_false(cast.has & RAPT_HAS_AUTOCAST);
        assert_int_equal(cast.autocast_dtype | cast.autocast_device, 0);
      }
}

/* A6: q, k promoted to fp32 by a norm, v still half, under half autocast. */
static void a6_promoted_q_and_k_come_back_to_half(void **state) {
  (void)state;
  rapt_problem p = active(problem(RAPT_FP32, RAPT_FP32, RAPT_BF16), RAPT_BF16, RAPT_CPU), cast;
  rapt_reason why;
  rapti_request r;
  assert_int_equal(resolve(&p, &cast, &why), RAPT_OK);
  assert_int_equal(cast.q.dtype, RAPT_BF16);
  assert_int_equal(rapti_request_make(&p, &r, &why), RAPT_OK);
  assert_int_equal(r.cast.out.dtype, RAPT_BF16);
  assert_int_equal(r.casts, 1u << RAPT_FIELD_Q | 1u << RAPT_FIELD_K);
  assert_int_equal(r.cast_dtype, RAPT_BF16);
  assert_int_equal(r.given[0], RAPT_FP32);
  assert_int_equal(r.given[2], RAPT_BF16);
  assert_int_equal(r.cast_bytes, 2 * 128);                   /* 1x2x4x8 bf16, each already a multiple of 64 */
  assert_int_equal(r.autocast, 1);
}

/* A7: all three, as given and after the policy, whether autocast is on or off. */
static void a7_mixtures_are_refused_with_all_three(void **state) {
  (void)state;
  const struct { int q, k, v; bool on; int flags; const char *got; } cases[] = {
      {RAPT_FP32, RAPT_FP32, RAPT_BF16, false, 0, "fp32/fp32/bf16"},
      {RAPT_FP32, RAPT_FP64, RAPT_BF16, true, 0, "fp32->bf16/fp64/bf16"},
      {RAPT_FP32, RAPT_FP16, RAPT_BF16, false, 1, "fp32/fp16/bf16"},
      {RAPT_FP64, RAPT_FP16, RAPT_FP16, false, 1, "fp64/fp16/fp16"},
      {RAPT_FP16, RAPT_FP32, RAPT_FP32, false, 1, "fp16/fp32/fp32"},
      {RAPT_FP32, RAPT_FP16, RAPT_FP16, false, 0, "fp32/fp16/fp16"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rapt_problem p = problem(cases[i].q, cases[i].k, cases[i].v), cast;
    rapt_reason why;
    rapti_request r;
    if (cases[i].on) p = active(p, RAPT_BF16, RAPT_CPU);
    if (cases[i].flags) p.flags |= RAPT_MIXED_KV;
    for (int way = 0; way < 2; way++) {
      why = (rapt_reason)RAPT_REASON_INIT;
      assert_int_equal(way ? rapti_request_make(&p, &r, &why) : resolve(&p, &cast, &why), RAPT_ARG);
      assert_int_equal(why.code, RAPT_CODE_DTYPE_MIX);
      assert_int_equal(why.field, RAPT_FIELD_QKV);
      assert_string_equal(why.got, cases[i].got);
    }
  }
}

/* S2: the pairs that mixed_kv admits. */
static void s2_mixed_kv_admits_half_pairs(void **state) {
  (void)state;
  const int pairs[][2] = {{RAPT_FP32, RAPT_FP16}, {RAPT_FP32, RAPT_BF16}, {RAPT_BF16, RAPT_FP16}, {RAPT_FP16, RAPT_BF16}, {RAPT_FP32, RAPT_FP32}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    rapt_problem p = problem(pairs[i][0], pairs[i][1], pairs[i][1]);
    rapti_request r;
    p.flags |= RAPT_MIXED_KV;
    assert_int_equal(rapti_request_make(&p, &r, NULL), RAPT_OK);
    assert_int_equal(r.cast.out.dtype, pairs[i][0]);         /* everything else follows q */
  }
}

/* A10, A12, A15: the target by device type. */
static void a15_default_targets(void **state) {
  (void)state;
  const int want[RAPTI_KINDS] = {[RAPT_CPU] = RAPT_BF16, [RAPT_CUDA] = RAPT_FP16, [RAPT_HIP] = RAPT_FP16,
      [RAPT_XPU] = RAPT_FP16, [RAPT_MPS] = RAPT_FP16, [RAPT_XLA] = RAPT_BF16, [RAPT_HPU] = RAPT_BF16,
      [RAPT_IPU] = RAPT_FP16, [RAPT_NPU] = RAPT_FP16, [RAPT_META] = RAPT_FP32};
  for (int kind = 0; kind < RAPTI_KINDS; kind++) {
    rapt_problem p = active(problem(RAPT_FP32, RAPT_FP32, RAPT_FP32), RAPT_NONE, kind), cast;
    rapt_reason why;
    p.device = kind;
    assert_int_equal(resolve(&p, &cast, &why), RAPT_OK);     /* A12: never an error */
    assert_int_equal(cast.q.dtype, want[kind]);
    p.device = kind == RAPT_CPU ? RAPT_CUDA : RAPT_CPU;      /* A2: tensors of another device type */
    assert_int_equal(resolve(&p, &cast, &why), RAPT_OK);
    assert_int_equal(cast.q.dtype, RAPT_FP32);
  }
  rapt_problem p = active(problem(RAPT_FP32, RAPT_FP32, RAPT_FP32), RAPT_BF16, RAPT_META), cast;
  rapt_reason why;
  p.device = RAPT_META;
  assert_int_equal(resolve(&p, &cast, &why), RAPT_OK);
  assert_int_equal(cast.q.dtype, RAPT_FP32);                 /* A12: off, whatever dtype was named */
}

static void a10_only_float_targets(void **state) {
  (void)state;
  const int bad[] = {RAPT_FP64, RAPT_BOOL, RAPT_INT8, RAPT_FP8E4M3};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    rapt_problem p = active(problem(RAPT_FP32, RAPT_FP32, RAPT_FP32), bad[i], RAPT_CPU), cast;
    rapt_reason why;
    rapti_request r;
    assert_int_equal(resolve(&p, &cast, &why), RAPT_ARG);
    assert_int_equal(why.code, RAPT_CODE_AUTOCAST_DTYPE);
    assert_string_equal(why.got, rapt_dtype_name(bad[i]));
    assert_int_equal(rapti_request_make(&p, &r, &why), RAPT_ARG);
    assert_int_equal(why.code, RAPT_CODE_AUTOCAST_DTYPE);
  }
}

/* A10: equal dtype, no cast, no copy. Casts keep the axis order, and broadcast axes stay broadcast. */
static void a10_copies_are_dense_in_the_order_of_the_source(void **state) {
  (void)state;
  rapt_problem p = active(problem(RAPT_BF16, RAPT_BF16, RAPT_BF16), RAPT_BF16, RAPT_CPU);
  rapti_request r;
  assert_int_equal(rapti_request_make(&p, &r, NULL), RAPT_OK);
  assert_int_equal(r.casts, 0);
  assert_int_equal(r.cast_dtype, RAPT_NONE);
  assert_int_equal(r.cast_bytes, 0);
  p = active(problem(RAPT_FP32, RAPT_FP32, RAPT_FP32), RAPT_BF16, RAPT_CPU);
  p.B = 3;
  const int64_t q[4] = {1000, -8, 16, 1}, k[4] = {0, 32, 8, 1}, v[4] = {100, 50, 2, -10};
  memcpy(p.q.stride, q, sizeof q);
  memcpy(p.k.stride, k, sizeof k);
  memcpy(p.v.stride, v, sizeof v);
  p.has |= RAPT_HAS_Q_STRIDES | RAPT_HAS_K_STRIDES | RAPT_HAS_V_STRIDES;
  p.bias.dtype = RAPT_FP32;
  p.bias.size[0] = p.bias.size[2] = 1;
  p.bias.size[1] = 2;
  p.bias.size[3] = 4;
  assert_int_equal(rapti_request_make(&p, &r, NULL), RAPT_OK);
  const int64_t q_copy[4] = {64, 8, 16, 1}, k_copy[4] = {0, 32, 8, 1}, v_copy[4] = {64, 32, 1, 4}, bias_copy[4] = {0, 4, 0, 1};
  assert_memory_equal(r.cast.q.stride, q_copy, sizeof q_copy);
  assert_memory_equal(r.cast.k.stride, k_copy, sizeof k_copy);
  assert_memory_equal(r.cast.v.stride, v_copy, sizeof v_copy);
  assert_memory_equal(r.cast.bias.stride, bias_copy, sizeof bias_copy);
  assert_int_equal(r.cast_bytes, 384 + 128 + 384 + 64);      /* 192, 64, 192 and 8 elements of two bytes */
  assert_int_equal(r.cast.q.ptr_align, 64);
}

static void a1_the_state_needs_its_bit(void **state) {
  (void)state;
  rapt_problem p = problem(RAPT_FP32, RAPT_FP32, RAPT_FP32), cast;
  rapt_reason why;
  p.autocast_dtype = RAPT_BF16;
  assert_int_equal(resolve(&p, &cast, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_UNKNOWN_FIELD);
  assert_int_equal(why.field, RAPT_FIELD_AUTOCAST);
  p = problem(RAPT_INT8, RAPT_FP32, RAPT_FP32);
  assert_int_equal(resolve(&p, &cast, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_DTYPE);               /* A5: dtypes are checked too */
  p = problem(99, RAPT_FP32, RAPT_FP32);
  assert_int_equal(resolve(&p, &cast, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_UNKNOWN_FIELD);
  assert_int_equal(rapt_autocast_resolve(NULL, &cast, &why), RAPT_ARG);
  assert_int_equal(rapt_autocast_resolve(&p, NULL, &why), RAPT_ARG);
  p = active(problem(RAPT_FP32, RAPT_FP32, RAPT_FP32), RAPT_FP16, RAPT_CPU);
  assert_int_equal(rapt_autocast_resolve(&p, &p, NULL), RAPT_OK);           /* in place */
  assert_int_equal(p.v.dtype, RAPT_FP16);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a3_each_tensor_by_itself),
      cmocka_unit_test(a6_promoted_q_and_k_come_back_to_half),
      cmocka_unit_test(a7_mixtures_are_refused_with_all_three),
      cmocka_unit_test(s2_mixed_kv_admits_half_pairs),
      cmocka_unit_test(a15_default_targets),
      cmocka_unit_test(a10_only_float_targets),
      cmocka_unit_test(a10_copies_are_dense_in_the_order_of_the_source),
      cmocka_unit_test(a1_the_state_needs_its_bit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
