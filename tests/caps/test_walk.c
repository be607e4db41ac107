/* SPDX-License-Identifier: Apache-2.0 */
/* The boundary walk (D3, D4, D6): for every own row and every field of it, a problem just inside its limit can run and
 * one just outside is refused by exactly that field's code. It reads the rows: a new row is walked by itself. */
#include "common/cm.h"

#include "common/synth.h"
#include "core/backend.h"

#include <stdio.h>
#include <string.h>

static const rapt_backend *(*const backends[])(void) = {
#define RAPTI_BACKEND(name) rapti_backend_##name,
#include "core/backends.def"
#undef RAPTI_BACKEND
};

static tc_synth s;
static const rapt_row *row;
static uint32_t at;           /* its index in s */
static int checked, skipped;

/* All that is wrong with the row for this problem, other policy aside: its own limits. */
static void expect(const char *problem, const char *verdict) {
  rapti_request r;
  rapti_policy policy;
  tc_synth_request(problem, &r);
  tc_synth_policy(&s, row->id, NULL, NULL, &policy);
  const char *got = tc_synth_verdict(&s, at, &r, &policy);
  if (strcmp(got, verdict) != 0) fail_msg("%s, \"%s\": %s, not %s", row->id, problem, got, verdict);
  checked++;
}

static int first_dtype(uint32_t among) {
  for (int dtype = RAPT_FP16; dtype <= RAPT_FP64; dtype++)
    if (row->dtypes & among & RAPT_DT(dtype)) return dtype;
  return RAPT_NONE;
}

static int common_dim(void) {
  if (row->n_dims) return row->dims[0].D;
  int step = row->d_step > 1 ? row->d_step : 1, d = 64;
  if (row->d_max && d > row->d_max) d = row->d_max;
  if (d < row->d_min) d = row->d_min;
  return d / step * step;
}

static int common_kind(void) {
  int kind = RAPT_CPU;
  while (!(row->kinds & RAPT_KIND(kind))) kind++;
  return kind;
}

typedef struct shape { int64_t b, h, hkv, q, k; int d, dv; } shape;

static const char *problem_of(int dtype, shape n, int kind, const char *options) {
  static char text[300];
  snprintf(text, sizeof text, "%s b%lld h%lld/%lld q%lld k%lld d%d/%d %s dev=%s", rapt_dtype_name(dtype), (long long)n.b,
           (long long)n.h, (long long)n.hkv, (long long)n.q, (long long)n.k, n.d, n.dv, options, rapti_kind_name(kind));
  return text;
}

static shape plain(void) {
  int64_t q = row->min_sq > 16 ? row->min_sq : 16, k = row->min_skv > 16 ? row->min_skv : 16;
  return (shape){1, 4, 4, q, k, common_dim(), common_dim()};
}

static void with_shape(shape n, const char *verdict) {
  expect(problem_of(first_dtype(~0u), n, common_kind(), ""), verdict);
}

/* ---- Capability bits ---- */

#define HALF (RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16))

/* options asked of a half or any dtype. after: bits without which the option has another answer first. */
typedef struct trigger {
  uint64_t bit, after;
  const char *options, *verdict;
  uint32_t dtypes;
  int q, k, hkv;               /* 0: as plain */
} trigger;

static const trigger triggers[] = {
  {RAPT_CAN_GQA, 0, "", "HEADS(k)", 0, 0, 0, 2},
  {RAPT_CAN_MQA, 0, "", "HEADS(k)", 0, 0, 0, 1},
  {RAPT_CAN_MASK, 0, "mask=bool:1x4x16x16 assume_finite", "MASK(mask)", 0, 0, 0, 0},
  {RAPT_CAN_BIAS, 0, "bias=DTYPE:1x4x16x16 assume_finite", "BIAS(bias)", 0, 0, 0, 0},
  {RAPT_CAN_BROADCAST, RAPT_CAN_MASK, "mask=bool:1x1x1x16 assume_finite", "BROADCAST(mask)", 0, 0, 0, 0},
  {RAPT_CAN_BROADCAST, RAPT_CAN_BIAS, "bias=DTYPE:1x1x16x1 assume_finite", "BROADCAST(bias)", 0, 0, 0, 0},
  {RAPT_CAN_MASK_CAUSAL, RAPT_CAN_MASK | RAPT_CAN_CAUSAL,
   "mask=bool:1x4x16x16 causal assume_finite", "MASK(mask)", 0, 0, 0, 0},
  {RAPT_CAN_MASK_CAUSAL, RAPT_CAN_MASK | RAPT_CAN_WINDOW,
   "mask=bool:1x4x16x16 window=2,2 assume_finite", "MASK(mask)", 0, 0, 0, 0},
  {RAPT_CAN_BIAS_CAUSAL, RAPT_CAN_BIAS | RAPT_CAN_CAUSAL,
   "bias=DTYPE:1x4x16x16 causal assume_finite", "BIAS(bias)", 0, 0, 0, 0},
  {RAPT_CAN_MASK_BIAS, RAPT_CAN_MASK | RAPT_CAN_BIAS,
   "mask=bool:1x4x16x16 bias=DTYPE:1x4x16x16 assume_finite", "MASK(mask)", 0, 0, 0, 0},
  {RAPT_CAN_CAUSAL | RAPT_CAN_TOP_LEFT | RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_OFFSET, 0,
   "causal assume_finite", "ALIGNMENT(align)", 0, 0, 0, 0},
  {RAPT_CAN_TOP_LEFT | RAPT_CAN_OFFSET, 0, "causal=tl assume_finite", "ALIGNMENT(align)", 0, 16, 20, 0},
  {RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_OFFSET, 0, "causal=br assume_finite", "ALIGNMENT(align)", 0, 16, 20, 0},
  {RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_OFFSET, 0, "causal=off:4 assume_finite", "ALIGNMENT(align)", 0, 16, 20, 0},
  {RAPT_CAN_OFFSET, 0, "causal=off:3 assume_finite", "ALIGNMENT(align)", 0, 16, 20, 0},
  {RAPT_CAN_OFFSET_ARRAY, 0, "causal=off:int64 assume_finite", "ALIGNMENT(align)", 0, 0, 0, 0},
  {RAPT_CAN_CAUSAL_WIDE, RAPT_CAN_TOP_LEFT, "causal=tl assume_finite", "ALIGNMENT(align)", 0, 20, 16, 0},
  {RAPT_CAN_WINDOW, 0, "window=2,2 assume_finite", "WINDOW(window)", 0, 0, 0, 0},
  {RAPT_CAN_SOFTCAP, 0, "softcap=2", "SOFTCAP(softcap)", 0, 0, 0, 0},
  {RAPT_CAN_SINKS, 0, "sinks=fp32", "SINK(sinks)", 0, 0, 0, 0},
  {RAPT_CAN_ALIBI, 0, "alibi=h", "ALIBI(slopes)", 0, 0, 0, 0},
  {RAPT_CAN_DROPOUT, 0, "dropout=0.5 allow=rng", "DROPOUT(dropout)", 0, 0, 0, 0},
  {RAPT_CAN_LSE, 0, "lse", "LSE(lse)", 0, 0, 0, 0},
  {RAPT_CAN_Q_LEN, 0, "qlen=int64 assume_finite", "LENGTHS(q_len)", 0, 0, 0, 0},
  {RAPT_CAN_KV_LEN, 0, "kvlen=int32 assume_finite", "LENGTHS(kv_len)", 0, 0, 0, 0},
  {RAPT_CAN_DENSE, 0, "", "PACKED(packed)", 0, 0, 0, 0},
  {RAPT_CAN_PACKED, 0, "packed=int32,16/16 assume_finite", "PACKED(packed)", 0, 0, 0, 0},
  {RAPT_CAN_CU_INT64, RAPT_CAN_PACKED, "packed=int64,16/16 assume_finite", "CU_SEQLENS(cu_q)", 0, 0, 0, 0},
  {RAPT_CAN_MAX_UNKNOWN, RAPT_CAN_PACKED, "packed=int32 assume_finite", "PACKED(max_q)", 0, 0, 0, 0},
  {RAPT_CAN_BACKWARD, 0, "grad=q,k,v", "GRAD(grad)", 0, 0, 0, 0},
  {RAPT_CAN_GRAD_BIAS, RAPT_CAN_BIAS | RAPT_CAN_BACKWARD,
   "bias=DTYPE:1x4x16x16 grad=q,bias assume_finite", "GRAD_BIAS(grad)", 0, 0, 0, 0},
  {RAPT_CAN_GRAD_SINKS, RAPT_CAN_SINKS | RAPT_CAN_BACKWARD, "sinks=fp32 grad=q,sinks", "GRAD_SINK(grad)", 0, 0, 0, 0},
  {RAPT_CAN_STRICT, 0, "strict", "STRICT(strict)", HALF, 0, 0, 0},
  {RAPT_CAN_ISOLATE, RAPT_CAN_KV_LEN, "kvlen=int32", "ISOLATION(assume_finite)", 0, 0, 0, 0},
  {RAPT_CAN_CAPTURE, 0, "capture", "CAPTURE(capture)", 0, 0, 0, 0},
  {RAPT_CAN_OUT_FP32, 0, "out=fp32", "DTYPE(out)", HALF, 0, 0, 0},
  {RAPT_CAN_ANY_STRIDE, 0, "v.st=99999,9999,99,-1", "STRIDE(v)", 0, 0, 0, 0},
  {RAPT_CAN_ANY_BIAS_DTYPE, RAPT_CAN_BIAS, "bias=fp32:1x4x16x16 assume_finite", "BIAS(bias)", HALF, 0, 0, 0},
  {RAPT_CAN_SCALE, 0, "scale=2", "SCALE(scale)", 0, 0, 0, 0},
  {RAPT_CAN_SCALE_ZERO, 0, "scale=0", "SCALE(scale)", 0, 0, 0, 0},
  {RAPT_CAN_SCALE_NEGATIVE, 0, "scale=-2", "SCALE(scale)", 0, 0, 0, 0},
  {RAPT_CAN_ON_DEVICE, RAPT_CAN_KV_LEN, "kvlen=int32@dev assume_finite", "LENGTHS(kv_len)", 0, 0, 0, 0},
  {RAPT_CAN_ON_DEVICE, RAPT_CAN_OFFSET_ARRAY, "causal=off:int64@dev assume_finite", "ALIGNMENT(q_offset)", 0, 0, 0, 0},
  {RAPT_CAN_ON_DEVICE, RAPT_CAN_PACKED, "packed=int32@dev,16/16 assume_finite", "CU_SEQLENS(cu_q)", 0, 0, 0, 0},
  {RAPT_CAN_X1_PATTERN, RAPT_CAN_DROPOUT, "dropout=0.5", "", 0, 0, 0, 0},   /* its name in require consents (N7) */
};

static const char *with_dtype(const char *options, int dtype) {
  static char text[200];
  const char *hole = strstr(options, "DTYPE");
  if (!hole) return options;
  snprintf(text, sizeof text, "%.*s%s%s", (int)(hole - options), options, rapt_dtype_name(dtype), hole + 5);
  return text;
}

static void walk_bit(const trigger *t) {
  int dtype = first_dtype(t->dtypes ? t->dtypes : ~0u);
  const uint64_t can = row->can & ~row->unknown;
  if (!dtype || (can & t->after) != t->after) { skipped++; return; }
  shape n = plain();
  if (t->q) n.q = t->q;
  if (t->k) n.k = t->k;
  if (t->hkv) n.hkv = t->hkv;
  char verdict[64] = "ok";
  if (row->unknown & t->bit) snprintf(verdict, sizeof verdict, "UNKNOWN_SUPPORT%s", strchr(t->verdict, '('));
  else if (!(can & t->bit) && t->verdict[0]) snprintf(verdict, sizeof verdict, "%s", t->verdict);
  expect(problem_of(dtype, n, common_kind(), with_dtype(t->options, dtype)), verdict);
}

/* ---- Limits ---- */

static void walk_dtypes(void) {
  for (int dtype = RAPT_FP16; dtype <= RAPT_FP64; dtype++)
    expect(problem_of(dtype, plain(), common_kind(), ""), row->dtypes & RAPT_DT(dtype) ? "ok" : "DTYPE(q)");
  int half = first_dtype(HALF), other = half == RAPT_FP16 ? RAPT_BF16 : RAPT_FP16;
  if (!half) { skipped++; return; }
  char mixed[200];
  snprintf(mixed, sizeof mixed, "%s/%s/%s b1 h4 q16 k16 d%d mixed_kv dev=%s", rapt_dtype_name(half), rapt_dtype_name(other),
           rapt_dtype_name(other), common_dim(), rapti_kind_name(common_kind()));
  expect(mixed, row->can & RAPT_CAN_MIXED_KV ? "ok" : "DTYPE_MIX(q,k,v)");
}

static void walk_kinds(void) {
  for (int kind = RAPT_CPU; kind <= RAPT_META; kind++)
    expect(problem_of(first_dtype(~0u), plain(), kind, ""), row->kinds & RAPT_KIND(kind) ? "ok" : "DEVICE(device)");
}

static void walk_isa(void) {
  int have = s.g.facts.isa, need = row->isa ? rapti_isa_find(row->isa, strlen(row->isa)) : RAPTI_ISA_SCALAR;
  for (int isa = RAPTI_ISA_SCALAR; isa < RAPTI_ISA_COUNT; isa++) {
    s.g.facts.isa = isa;
    with_shape(plain(), rapti_isa_covers(isa, need) ? "ok" : "ISA(isa)");
  }
  s.g.facts.isa = -1;
  with_shape(plain(), need > RAPTI_ISA_SCALAR ? "ISA(isa)?" : "ok");
  s.g.facts.isa = have;
}

static void walk_dims(void) {
  const int32_t step = row->d_step > 1 ? row->d_step : 1;
  shape n = plain();
  if (row->n_dims) {
    for (uint32_t i = 0; i < row->n_dims; i++) {
      n.d = row->dims[i].D;
      n.dv = row->dims[i].Dv;
      with_shape(n, "ok");
    }
    n.d = n.dv = 7;
    with_shape(n, "HEAD_DIM(q)");
    return;
  }
  const int32_t inside[] = {row->d_min, row->d_max, row->d_max && row->d_min ? row->d_min + step : 0};
  const int32_t outside[] = {row->d_min > step ? row->d_min - step : 0, row->d_max ? row->d_max + step : 0,
                             step > 1 ? common_dim() + 1 : 0};
  for (int i = 0; i < 3; i++) {
    n.d = n.dv = inside[i];
    if (n.d) with_shape(n, "ok");
    n.d = n.dv = outside[i];
    if (n.d) with_shape(n, "HEAD_DIM(q)");
  }
  n = plain();
  n.dv = n.d + (row->dv_step > 1 ? row->dv_step : 1);
  with_shape(n, row->dv_rule == RAPT_DV_ANY && (!row->dv_max || n.dv <= row->dv_max) ? "ok" : "VALUE_DIM(v)");
  if (row->dv_rule == RAPT_DV_ANY && !row->dv_max && !row->dv_step) {
    n.dv = 999;
    with_shape(n, "ok");
  }
}

static void walk_size(int32_t max, int32_t min, int64_t *field_of_n, shape *n, const char *verdict) {
  const int64_t before = *field_of_n;
  if (max) {
    *field_of_n = max;
    with_shape(*n, "ok");
    *field_of_n = (int64_t)max + 1;
    with_shape(*n, verdict);
  }
  if (min > 1) {
    *field_of_n = min;
    with_shape(*n, "ok");
    *field_of_n = min - 1;
    with_shape(*n, verdict);
  }
  *field_of_n = before;
}

static void walk_sizes(void) {
  shape n = plain();
  walk_size(row->max_b, 0, &n.b, &n, "SIZE(B)");
  n.hkv = 1;
  walk_size(row->max_hq, 0, &n.h, &n, "SIZE(Hq)");
  n.hkv = n.h;
  walk_size(row->max_sq, row->min_sq, &n.q, &n, "SIZE(Sq)");
  walk_size(row->max_skv, row->min_skv, &n.k, &n, "SIZE(Skv)");
}

/* No limit stated means none: sizes far beyond memory are the workspace's affair, not the row's. */
static void walk_layout(void) {
  const int dtype = first_dtype(~0u);
  char options[100];
  if (row->ptr_align) {
    snprintf(options, sizeof options, "ptr=%d", row->ptr_align);
    expect(problem_of(dtype, plain(), common_kind(), options), "ok");
    snprintf(options, sizeof options, "ptr=%d q.ptr=%d", row->ptr_align, row->ptr_align / 2);
    expect(problem_of(dtype, plain(), common_kind(), options), "MEM_ALIGN(q)");
  } else {
    expect(problem_of(dtype, plain(), common_kind(), ""), "ok");
  }
  const int bits = row->offset_bits ? row->offset_bits : 40;
  shape n = plain();
  const int64_t inner = (n.q - 1) * n.d + n.d - 1, head = ((INT64_C(1) << bits) - 1 - inner) / (n.h - 1);
  snprintf(options, sizeof options, "q.st=0,%lld,%d,1", (long long)head, n.d);
  expect(problem_of(dtype, n, common_kind(), options), "ok");
  snprintf(options, sizeof options, "q.st=0,%lld,%d,1", (long long)head + 1, n.d);
  expect(problem_of(dtype, n, common_kind(), options), row->offset_bits ? "OFFSET_RANGE(q)" : "ok");
}

static void walk_results(void) {
  static const char *const levels[] = {"", "det=run", "det=threads", "det=batch"};
  const int dtype = first_dtype(~0u);
  for (int level = RAPT_DET_NONE; level <= RAPT_DET_BATCH; level++)
    expect(problem_of(dtype, plain(), common_kind(), levels[level]),
           level <= row->determinism ? "ok" : "DETERMINISM(determinism)");
  if (!(row->can & RAPT_CAN_BACKWARD)) return;
  for (int level = RAPT_DET_NONE; level <= RAPT_DET_BATCH; level++) {
    char options[40];
    snprintf(options, sizeof options, "grad=q,k,v %s", levels[level]);
    expect(problem_of(dtype, plain(), common_kind(), options),
           level <= row->determinism && level <= row->determinism_backward ? "ok" : "DETERMINISM(determinism)");
  }
}

/* What a run takes: exactly that much is enough (D16). */
static void walk_memory(void) {
  rapti_request r;
  rapti_policy policy;
  rapti_choice choice;
  tc_synth_request(problem_of(first_dtype(~0u), plain(), common_kind(), ""), &r);
  tc_synth_policy(&s, row->id, NULL, NULL, &policy);
  rapti_select(&s.g, &r, &policy, NULL, &choice);
  assert_int_equal(choice.row, at);
  policy.has_memory_limit = 1;
  policy.memory_limit = (int64_t)choice.workspace + (int64_t)r.scores * row->mem_per_score;
  assert_string_equal(tc_synth_verdict(&s, at, &r, &policy), "ok");
  checked++;
  if (policy.memory_limit-- == 0) return;
  assert_string_equal(tc_synth_verdict(&s, at, &r, &policy), "MEMORY(memory_limit)");
  checked++;
}

/* By itself, not by name. */
static void walk_policy(void) {
  rapti_request r;
  rapti_policy policy;
  tc_synth_policy(&s, NULL, NULL, NULL, &policy);
  tc_synth_request(problem_of(first_dtype(~0u), plain(), common_kind(), ""), &r);
  const char *hardware = row->ran_on_hardware ? "ok" : "UNTESTED(require)";
  assert_string_equal(tc_synth_verdict(&s, at, &r, &policy), hardware);
  r.products = policy.ref_limit;
  assert_string_equal(tc_synth_verdict(&s, at, &r, &policy), hardware);
  r.products++;
  assert_string_equal(tc_synth_verdict(&s, at, &r, &policy),
                      row->classes & RAPT_CLASS_REFERENCE ? "SLOW(ref_limit)" : hardware);
  checked += 3;
}

static void walk_row(void) {
  with_shape(plain(), "ok");
  walk_kinds();
  walk_isa();
  walk_dtypes();
  walk_dims();
  walk_sizes();
  walk_layout();
  walk_results();
  walk_memory();
  walk_policy();
  for (size_t i = 0; i < sizeof triggers / sizeof triggers[0]; i++) walk_bit(&triggers[i]);
}

/* Every bit of the header is walked: a new one needs its line in `triggers`. */
static void D7_every_bit_has_a_trigger(void **state) {
  (void)state;
  uint64_t seen = RAPT_CAN_MIXED_KV;                       /* walk_dtypes */
  for (size_t i = 0; i < sizeof triggers / sizeof triggers[0]; i++) seen |= triggers[i].bit;
  assert_true(seen == (RAPT_CAN_CAUSAL_WIDE << 1) - 1);
}

static void D3_D4_D6_own_rows(void **state) {
  (void)state;
  static rapti_services services = {.max_threads = 2};
  int rows = 0;
  for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
    const rapt_backend *b = backends[i]();
    if (b->n_rows == 0 || b->rows[0].place != RAPT_PLACE_OWN) continue;
    for (uint32_t j = 0; j < b->n_rows; j++, rows++) {
      tc_synth_begin(&s, "cpu isa=scalar threads=2");
      row = &b->rows[j];
      at = j;
      if (row->isa) s.g.facts.isa = rapti_isa_find(row->isa, strlen(row->isa));
      rapt_backend *added = tc_synth_add(&s, b->rows, b->n_rows, 1);
      *added = *b;
      added->self = &services;
      walk_row();
    }
  }
  print_message("%d rows, %d problems; %d lines need an option that the row does not have\n", rows, checked, skipped);
  assert_true(rows >= 3 && checked > 60 * rows);           /* ref and at least two CPU levels */
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(D7_every_bit_has_a_trigger),
    cmocka_unit_test(D3_D4_D6_own_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
