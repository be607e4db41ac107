/* SPDX-License-Identifier: Apache-2.0 */
/* The matcher on synthetic rows: each field of a row against the request (D3, D5-D7, D16, D17, M15, N7, X7). */
#include "common/cm.h"

#include "common/synth.h"

#include <string.h>

#define PLAIN "fp16 b1 h4 q64 k64 d64"

static tc_synth s;
static rapt_row row;

/* One external row with the facts of a what-if. */
static void only(const char *facts) {
  tc_synth_begin(&s, facts);
  tc_synth_add_row(&s, &row, 0);
}

#define explains(problem, verdict) assert_string_equal(tc_synth_explain(&s, 0, problem), verdict)
#define says(problem, i, text) assert_string_equal(tc_synth_reason(&s, 0, problem, i), text)

static void D6_a_row_that_can_do_all(void **state) {
  (void)state;
  row = tc_synth_row("x");
  only("cpu isa=avx2");
  explains(PLAIN, "ok");
  explains("fp32 b2 h8/2 q32 k64 d64/32 causal=br window=3,0 mask=bool:1x1x1x64 bias=fp16:1x8x1x64 softcap=3 sinks=fp32 "
           "scale=-1 lse kvlen=int32 out=fp32 strict det=batch capture", "ok");
}

/* D6: the values used count, not that a field was touched. */
static void D6_neutral_values_never_disqualify(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.can = RAPT_CAN_DENSE;
  only("cpu isa=avx2");
  explains(PLAIN " softcap=0 dropout=0 window=-1,-1", "ok");
  explains("fp16 b1 h4 q64 k64 d64 scale=0.125", "ok");
  explains("fp32 b1 h4 q64 k64 d64 strict", "ok");
  explains(PLAIN " align=br", "ok");
}

static void D3_every_bit_has_its_code(void **state) {
  (void)state;
  static const struct { uint64_t bit; const char *problem, *verdict; } cases[] = {
    {RAPT_CAN_GQA, "fp16 b1 h4/2 q64 k64 d64", "HEADS(k)"},
    {RAPT_CAN_MQA, "fp16 b1 h4/1 q64 k64 d64", "HEADS(k)"},
    {RAPT_CAN_MASK, PLAIN " mask=bool:1x4x64x64 assume_finite", "MASK(mask)"},
    {RAPT_CAN_BIAS, PLAIN " bias=fp16:1x4x64x64 assume_finite", "BIAS(bias)"},
    {RAPT_CAN_BROADCAST, PLAIN " mask=bool:1x1x64x64", "BROADCAST(mask)"},
    {RAPT_CAN_BROADCAST, PLAIN " bias=fp16:1x4x64x1", "BROADCAST(bias)"},
    {RAPT_CAN_MASK_CAUSAL, PLAIN " mask=bool:1x4x64x64 causal", "MASK(mask)"},
    {RAPT_CAN_BIAS_CAUSAL, PLAIN " bias=fp16:1x4x64x64 window=3,3", "BIAS(bias)"},
    {RAPT_CAN_MASK_BIAS, PLAIN " mask=bool:1x4x64x64 bias=fp16:1x4x64x64", "MASK(mask)"},
    {RAPT_CAN_OFFSET_ARRAY, PLAIN " causal=off:int64", "ALIGNMENT(align)"},
    {RAPT_CAN_WINDOW, PLAIN " window=3,3", "WINDOW(window)"},
    {RAPT_CAN_SOFTCAP, PLAIN " softcap=3", "SOFTCAP(softcap)"},
    {RAPT_CAN_SINKS, PLAIN " sinks=fp32", "SINK(sinks)"},
    {RAPT_CAN_ALIBI, PLAIN " alibi=h", "ALIBI(slopes)"},
    {RAPT_CAN_DROPOUT, PLAIN " dropout=0.5", "DROPOUT(dropout)"},
    {RAPT_CAN_X1_PATTERN, PLAIN " dropout=0.5", "RNG(dropout)"},
    {RAPT_CAN_LSE, PLAIN " lse", "LSE(lse)"},
    {RAPT_CAN_Q_LEN, PLAIN " qlen=int32", "LENGTHS(q_len)"},
    {RAPT_CAN_KV_LEN, PLAIN " kvlen=int32", "LENGTHS(kv_len)"},
    {RAPT_CAN_DENSE, PLAIN, "PACKED(packed)"},
    {RAPT_CAN_PACKED, PLAIN " packed=int32,9/9", "PACKED(packed)"},
    {RAPT_CAN_CU_INT64, PLAIN " packed=int64,9/9", "CU_SEQLENS(cu_q)"},
    {RAPT_CAN_MAX_UNKNOWN, PLAIN " packed=int32", "PACKED(max_q)"},
    {RAPT_CAN_BACKWARD, PLAIN " grad=q", "GRAD(grad)"},
    {RAPT_CAN_GRAD_BIAS, PLAIN " bias=fp16:1x4x64x64 grad=q,bias", "GRAD_BIAS(grad)"},
    {RAPT_CAN_GRAD_SINKS, PLAIN " sinks=fp32 grad=sinks", "GRAD_SINK(grad)"},
    {RAPT_CAN_STRICT, PLAIN " strict", "STRICT(strict)"},
    {RAPT_CAN_ISOLATE, PLAIN " causal", "ISOLATION(assume_finite)"},
    {RAPT_CAN_CAPTURE, PLAIN " capture", "CAPTURE(capture)"},
    {RAPT_CAN_MIXED_KV, "fp32/fp16/fp16 b1 h4 q64 k64 d64 mixed_kv", "DTYPE_MIX(q,k,v)"},
    {RAPT_CAN_OUT_FP32, PLAIN " out=fp32", "DTYPE(out)"},
    {RAPT_CAN_ANY_STRIDE, PLAIN " k.st=16384,4096,64,2", "STRIDE(k)"},
    {RAPT_CAN_ANY_BIAS_DTYPE, PLAIN " bias=fp32:1x4x64x64", "BIAS(bias)"},
    {RAPT_CAN_SCALE, PLAIN " scale=0.5", "SCALE(scale)"},
    {RAPT_CAN_SCALE_ZERO, PLAIN " scale=0", "SCALE(scale)"},
    {RAPT_CAN_SCALE_NEGATIVE, PLAIN " scale=-0.125", "SCALE(scale)"},
    {RAPT_CAN_ON_DEVICE, PLAIN " kvlen=int32@dev", "LENGTHS(kv_len)"},
    {RAPT_CAN_ON_DEVICE, PLAIN " packed=int32@dev,9/9", "CU_SEQLENS(cu_q)"},
    {RAPT_CAN_ON_DEVICE, PLAIN " causal=off:int64@dev", "ALIGNMENT(q_offset)"},
    {RAPT_CAN_ON_DEVICE, PLAIN " dropout=0.5 seed=dev", "RNG(seed)"},
    {RAPT_CAN_CAUSAL_WIDE, "fp16 b1 h4 q65 k64 d64 causal=tl", "ALIGNMENT(align)"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    row = tc_synth_row("x");
    only("cpu isa=avx2");
    explains(cases[i].problem, "ok");
    row.can &= ~cases[i].bit;
    only("cpu isa=avx2");
    explains(cases[i].problem, cases[i].verdict);
    const char *words = tc_synth_reason(&s, 0, cases[i].problem, 0);    /* D5: what was found, and what would do */
    assert_true(strncmp(words, " |", 2) != 0 && words[strlen(words) - 1] != ' ');
    /* The same bit as unknown: UNKNOWN_SUPPORT of the same field, never assumed. ANY_BIAS_DTYPE is no answer by itself. */
    if (cases[i].bit == RAPT_CAN_ANY_BIAS_DTYPE) continue;
    row.unknown = cases[i].bit;
    only("cpu isa=avx2");
    char unknown[64] = "UNKNOWN_SUPPORT";
    strcat(unknown, strchr(cases[i].verdict, '('));
    explains(cases[i].problem, unknown);
  }
}

/* D6: a bit for two options together does not touch either alone. */
static void D6_combinations(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.can &= ~(RAPT_CAN_MASK_CAUSAL | RAPT_CAN_BIAS_CAUSAL | RAPT_CAN_MASK_BIAS | RAPT_CAN_CAUSAL_WIDE | RAPT_CAN_ON_DEVICE |
               RAPT_CAN_X1_PATTERN | RAPT_CAN_CU_INT64 | RAPT_CAN_MAX_UNKNOWN);
  only("cpu isa=avx2");
  explains(PLAIN " mask=bool:1x1x64x64", "ok");
  explains(PLAIN " bias=fp16:1x1x64x64", "ok");
  explains(PLAIN " causal", "ok");
  explains(PLAIN " window=3,3", "ok");
  explains("fp16 b1 h4 q65 k64 d64", "ok");
  explains("fp16 b1 h4 q64 k64 d64 causal=off:int64 kvlen=int32 qlen=int64", "ok");
  explains(PLAIN " packed=int32,9/9", "ok");
  explains(PLAIN " packed=int64,9/9 causal=tl", "CU_SEQLENS(cu_q)");
  says(PLAIN " window=3,3 mask=bool:1x1x64x64", 0, "given with causal or a window | one of the two");
  row = tc_synth_row("x");
  row.can &= ~(RAPT_CAN_PACKED | RAPT_CAN_CU_INT64 | RAPT_CAN_BROADCAST | RAPT_CAN_SCALE);
  only("cpu isa=avx2");
  explains(PLAIN " packed=int64,9/9", "PACKED(packed)");
  explains(PLAIN " mask=bool:1x4x64x64 bias=fp16:1x4x64x64", "ok");
  explains(PLAIN " scale=0", "ok");
  explains(PLAIN " scale=-2", "ok");
  row.can |= RAPT_CAN_SCALE;
  row.can &= ~(RAPT_CAN_SCALE_ZERO | RAPT_CAN_SCALE_NEGATIVE);
  only("cpu isa=avx2");
  explains(PLAIN " scale=2", "ok");
  row.can &= ~RAPT_CAN_WINDOW;
  only("cpu isa=avx2");
  says(PLAIN " window=3,4", 0, "3,4 | -1 on both sides");
}

/* M1, M2, H10: a corner is what its off is, not how it was spelled. */
static void M2_corners(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.can &= ~(RAPT_CAN_CAUSAL | RAPT_CAN_TOP_LEFT | RAPT_CAN_OFFSET | RAPT_CAN_OFFSET_ARRAY);
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k128 d64 causal=br", "ok");
  explains("fp16 b1 h4 q64 k128 d64 causal=off:64", "ok");
  explains("fp16 b1 h4 q64 k64 d64 causal", "ok");
  explains("fp16 b1 h4 q64 k128 d64 causal=tl", "ALIGNMENT(align)");
  says("fp16 b1 h4 q64 k128 d64 causal=tl", 0, "tl | br (off:64)");
  explains("fp16 b1 h4 q64 k128 d64 causal=off:63", "ALIGNMENT(align)");
  says("fp16 b1 h4 q64 k128 d64 causal=off:63", 0, "off:63 | br (off:64)");
  explains("fp16 b1 h4 q64 k128 d64 align=tl window=3,3", "ALIGNMENT(align)");
  explains("fp16 b1 h4 q64 k128 d64 align=tl alibi=h", "ALIGNMENT(align)");
  explains("fp16 b2 h4 q64 k128 d64 causal=tl packed=int32,9/9", "ALIGNMENT(align)");
  explains("fp16 b2 h4 q64 k128 d64 causal=br packed=int32,9/9", "ok");
  explains("fp16 b2 h4 q64 k64 d64 causal=tl kvlen=int32", "ALIGNMENT(align)");
  row.can = tc_synth_row("x").can & ~(RAPT_CAN_CAUSAL | RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_OFFSET | RAPT_CAN_OFFSET_ARRAY);
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k128 d64 causal=tl", "ok");
  explains("fp16 b1 h4 q64 k128 d64 causal=off:0", "ok");
  explains("fp16 b1 h4 q64 k128 d64 causal=br", "ALIGNMENT(align)");
  says("fp16 b1 h4 q64 k128 d64 causal=br", 0, "br | tl");
  explains("fp16 b2 h4 q64 k64 d64 causal=tl kvlen=int32", "ok");
  row.can = (tc_synth_row("x").can & ~(RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_OFFSET | RAPT_CAN_OFFSET_ARRAY | RAPT_CAN_TOP_LEFT));
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d64 causal=br", "ok");
  explains("fp16 b1 h4 q64 k64 d64 causal=off:1", "ALIGNMENT(align)");
  row.can &= ~RAPT_CAN_CAUSAL;
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d64 causal", "ALIGNMENT(align)");
  explains("fp16 b1 h4 q64 k64 d64 window=3,3", "ok");
  /* Where the row has no such option at all, the option is the reason and not its corner. */
  row.can &= ~(RAPT_CAN_WINDOW | RAPT_CAN_ALIBI);
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k128 d64 align=tl window=3,3 alibi=h", "WINDOW(window),ALIBI(slopes)");
  explains("fp16 b1 h4 q64 k128 d64 align=tl window=3,0", "WINDOW(window)");
  explains("fp16 b1 h4 q64 k128 d64 causal=tl window=3,0", "ALIGNMENT(align),WINDOW(window)");
}

static void D3_head_dims(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.d_min = 16; row.d_max = 128; row.d_step = 8;
  row.dv_rule = RAPT_DV_SAME;
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d16", "ok");
  explains("fp16 b1 h4 q64 k64 d8", "HEAD_DIM(q)");
  explains("fp16 b1 h4 q64 k64 d128", "ok");
  explains("fp16 b1 h4 q64 k64 d136", "HEAD_DIM(q)");
  explains("fp16 b1 h4 q64 k64 d100", "HEAD_DIM(q)");
  says("fp16 b1 h4 q64 k64 d100", 0, "100 | 16..128, a multiple of 8");
  explains("fp16 b1 h4 q64 k64 d128/64", "VALUE_DIM(v)");
  says("fp16 b1 h4 q64 k64 d128/64", 0, "64 | 128");
  row.d_unknown_above = 64;
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d72", "UNKNOWN_SUPPORT(q)");
  explains("fp16 b1 h4 q64 k64 d136", "HEAD_DIM(q)");      /* outside whatever nobody recorded */
  row.dv_rule = RAPT_DV_ANY; row.dv_max = 96; row.dv_step = 4;
  row.d_max_backward = 64; row.d_step_backward = 32; row.d_unknown_above = 120;
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d64/96", "ok");
  explains("fp16 b1 h4 q64 k64 d64/98", "VALUE_DIM(v)");
  explains("fp16 b1 h4 q64 k64 d64/100", "VALUE_DIM(v)");
  explains("fp16 b1 h4 q64 k64 d104", "HEAD_DIM(q)");      /* Dv = D: HEAD_DIM alone */
  explains("fp16 b1 h4 q64 k64 d128/64", "UNKNOWN_SUPPORT(q)");
  explains("fp16 b1 h4 q64 k64 d64 grad=q", "ok");
  explains("fp16 b1 h4 q64 k64 d72 grad=q", "HEAD_DIM(q)");
  says("fp16 b1 h4 q64 k64 d72 grad=q", 0, "72 | 16..64, a multiple of 32");
  explains("fp16 b1 h4 q64 k64 d48 grad=q", "HEAD_DIM(q)");
}

static void D3_closed_lists_of_dims(void **state) {
  (void)state;
  static const rapt_dims dims[] = {{128, 128}, {192, 128}};
  row = tc_synth_row("x");
  row.dims = dims;
  row.n_dims = 2;
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d128", "ok");
  explains("fp16 b1 h4 q64 k64 d192/128", "ok");
  explains("fp16 b1 h4 q64 k64 d192/64", "VALUE_DIM(v)");
  explains("fp16 b1 h4 q64 k64 d192", "HEAD_DIM(q)");
  explains("fp16 b1 h4 q64 k64 d64/128", "HEAD_DIM(q)");
  says("fp16 b1 h4 q64 k64 d64", 0, "64 | 128, 192/128");
}

static void D3_sizes_and_memory_layout(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.max_b = 2; row.max_hq = 8; row.max_sq = 128; row.max_skv = 256; row.min_sq = 2; row.min_skv = 3;
  only("cpu isa=avx2");
  explains("fp16 b2 h8 q128 k256 d64", "ok");
  explains("fp16 b3 h9/3 q129 k257 d64", "SIZE(B),SIZE(Hq),SIZE(Sq),SIZE(Skv)");
  explains("fp16 b1 h1 q1 k2 d64", "SIZE(Sq),SIZE(Skv)");
  explains("fp16 b1 h1 q2 k3 d64", "ok");
  explains("fp16 b1 h1 q0 k0 d64", "ok");                  /* answered without the backend (S6) */
  says("fp16 b1 h1 q1 k3 d64", 0, "1 | 2..128");
  explains("fp16 b2 h8 q200 k500 d64 packed=int32,128/256", "ok");
  explains("fp16 b2 h8 q200 k500 d64 packed=int32,129/256", "SIZE(Sq)");
  row = tc_synth_row("x");
  row.offset_bits = 15;
  only("cpu isa=avx2");
  explains("fp16 b1 h8 q64 k64 d64", "ok");                /* the last element is 2^15 - 1 from the base */
  explains("fp16 b1 h8 q64 k65 d64", "OFFSET_RANGE(k),OFFSET_RANGE(v)");
  says("fp16 b1 h8 q64 k65 d64", 0, "33279 | 32767");
  row = tc_synth_row("x");
  row.ptr_align = 16;
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d64 ptr=16", "ok");
  explains("fp16 b1 h4 q64 k64 d64 ptr=16 k.ptr=8", "MEM_ALIGN(k)");
  says("fp16 b1 h4 q64 k64 d64 ptr=16 k.ptr=8", 0, "8 | 16");
  row = tc_synth_row("x");
  row.bias_stride_bytes = 16;
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d64 bias=fp16:1x4x64x64", "ok");
  explains("fp16 b1 h4 q64 k62 d64 bias=fp16:1x4x64x62", "STRIDE(bias)");
}

static void S9_strides(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.can &= ~RAPT_CAN_ANY_STRIDE;
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d64 layout=bshd", "ok");
  explains("fp16 b1 h4 q64 k64 d64 q.st=16384,4096,64,-1 v.st=0,4096,64,2", "STRIDE(q),STRIDE(v)");
  says("fp16 b1 h4 q64 k64 d64 q.st=16384,4096,64,-1", 0, "-1 | 1 on the last axis");
  explains("fp16 b1 h4 q64 k64 d1 q.st=256,64,1,9", "ok"); /* axes of size 1 have no stride */
}

static void D3_dtypes(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.dtypes = RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16);
  row.bias_dtypes = RAPT_DT(RAPT_BF16);
  only("cpu isa=avx2");
  explains("fp16 b1 h4 q64 k64 d64", "ok");
  explains("fp32 b1 h4 q64 k64 d64", "DTYPE(q)");
  says("fp32 b1 h4 q64 k64 d64", 0, "fp32 | fp16 or bf16");
  explains("fp32/fp32/bf16 b1 h4 q64 k64 d64 autocast=bf16", "ok");   /* A5: post-policy dtypes */
  explains("fp16 b1 h4 q64 k64 d64 bias=fp16:1x4x64x64", "ok");       /* q's own dtype always */
  explains("fp16 b1 h4 q64 k64 d64 bias=bf16:1x4x64x64", "ok");
  explains("fp16 b1 h4 q64 k64 d64 bias=fp32:1x4x64x64", "BIAS(bias)");
  says("fp16 b1 h4 q64 k64 d64 bias=fp32:1x4x64x64", 0, "fp32 | fp16 or bf16");
}

static void N7_X7_consents(void **state) {
  (void)state;
  static const struct { const char *require; int consents; } cases[] = {
    {"x.a", 1}, {"x", 1}, {"xx", 1}, {"shown", 1}, {"class:fused", 0},
  };
  row = tc_synth_row("x.a");
  row.aliases = "yy,xx";
  row.display = "shown";
  row.classes = RAPT_CLASS_FUSED;
  row.can &= ~RAPT_CAN_X1_PATTERN;
  for (int accuracy = RAPT_EXACT; accuracy <= RAPT_APPROX; accuracy++) {
    row.accuracy = accuracy;
    only("cpu isa=avx2");
    const char *no = accuracy == RAPT_EXACT ? "RNG(dropout)" : accuracy == RAPT_REDUCED ? "RNG(dropout),REDUCED(allow)"
                                                                                       : "RNG(dropout),APPROX(allow)";
    explains(PLAIN " dropout=0.5", no);
    explains(PLAIN " dropout=0.5 allow=approx,reduced,rng", "ok");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
      rapti_request r;
      rapti_policy policy;
      tc_synth_request(PLAIN " dropout=0.5", &r);
      tc_synth_policy(&s, cases[i].require, NULL, NULL, &policy);
      assert_string_equal(tc_synth_verdict(&s, 0, &r, &policy), cases[i].consents ? "ok" : no);
    }
  }
}

static void N16_determinism(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.determinism = RAPT_DET_THREADS;
  row.determinism_backward = RAPT_DET_RUN;
  only("cpu isa=avx2");
  explains(PLAIN " det=threads", "ok");
  explains(PLAIN " det=batch", "DETERMINISM(determinism)");
  says(PLAIN " det=batch", 0, "threads | batch");
  explains(PLAIN " det=threads grad=q", "DETERMINISM(determinism)");
  explains(PLAIN " det=run grad=q", "ok");
}

/* M15: exempt by metadata, by the caller's word, or as the operator that the binding replaced. */
static void M15_isolation(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.can &= ~(RAPT_CAN_ISOLATE | RAPT_CAN_X1_PATTERN);
  row.place = RAPT_PLACE_HOST;
  only("cpu isa=avx2");
  explains(PLAIN, "ok");
  explains(PLAIN " causal", "ISOLATION(assume_finite)");
  explains(PLAIN " kvlen=int32", "ISOLATION(assume_finite)");
  explains(PLAIN " causal assume_finite", "ok");
  tc_synth_begin(&s, NULL);
  tc_synth_add_row(&s, &row, 1);
  explains(PLAIN " causal dropout=0.5", "ok");
  tc_synth_begin(&s, "cpu isa=avx2");                      /* a what-if has no binding */
  tc_synth_add_row(&s, &row, 1);
  explains(PLAIN " causal dropout=0.5", "RNG(dropout),ISOLATION(assume_finite)");
  row.place = RAPT_PLACE_OPT_IN;
  tc_synth_begin(&s, NULL);
  tc_synth_add_row(&s, &row, 1);
  explains(PLAIN " causal dropout=0.5", "RNG(dropout),ISOLATION(assume_finite)");
}

static size_t workspace_100(void *self, uint32_t i, const rapt_problem *cast, uint32_t threads) {
  (void)self, (void)i, (void)cast;
  return 50u * threads;
}

static void D16_D17_memory(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.mem_per_score = 4;                                   /* 256 MiB are 2^26 scores */
  tc_synth_begin(&s, "cpu isa=avx2 threads=2");
  tc_synth_add_row(&s, &row, 0)->workspace = workspace_100;
  explains("fp16 b1 h1 q8192 k8192 d64", "ok");
  explains("fp16 b1 h1 q8192 k8193 d64", "MEMORY(memory_limit)");
  says("fp16 b1 h1 q8192 k8193 d64", 0, "268468224 | 268435456");
  rapti_request r;
  rapti_policy policy;
  tc_synth_request("fp32 b1 h1 q8 k8 d64 autocast=bf16", &r);         /* 256 bytes of scores, 100, and three casts */
  tc_synth_policy(&s, NULL, "x", NULL, &policy);
  policy.has_memory_limit = 1;
  policy.memory_limit = 356 + 3 * 1024;
  assert_string_equal(tc_synth_verdict(&s, 0, &r, &policy), "ok");
  policy.memory_limit--;
  assert_string_equal(tc_synth_verdict(&s, 0, &r, &policy), "MEMORY(memory_limit)");
  row.mem_per_score = -1;
  only("cpu isa=avx2");
  explains("fp16 b1 h1 q1 k1 d64", "MEMORY(memory_limit)");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(D6_a_row_that_can_do_all),
    cmocka_unit_test(D6_neutral_values_never_disqualify),
    cmocka_unit_test(D3_every_bit_has_its_code),
    cmocka_unit_test(D6_combinations),
    cmocka_unit_test(M2_corners),
    cmocka_unit_test(D3_head_dims),
    cmocka_unit_test(D3_closed_lists_of_dims),
    cmocka_unit_test(D3_sizes_and_memory_layout),
    cmocka_unit_test(S9_strides),
    cmocka_unit_test(D3_dtypes),
    cmocka_unit_test(N7_X7_consents),
    cmocka_unit_test(N16_determinism),
    cmocka_unit_test(M15_isolation),
    cmocka_unit_test(D16_D17_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
