/* SPDX-License-Identifier: Apache-2.0 */
/* The matcher on synthetic rows: each field of a row, each code, the missing facts (D3-D7, M15, N7, X7, D14-D17). */
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
    /* The same bit as unknown: UNKNOWN_SUPPORT of the same field, never assumed. ANY_BIAS_DTYPE is no answer by itself. */
    if (cases[i].bit == RAPT_CAN_ANY_BIAS_DTYPE) continue;
    row.unknown = cases[i].bit;
    only("cpu isa=avx2");
    char unknown[64] = "UNKNOWN_SUPPORT";
    strcat(unknown, strchr(cases[i].verdict, '('));
    explains(cases[i].problem, unknown);
  }
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
  says("fp32 b1 h4 q64 k64 d64", 0, "fp32 | fp16, bf16");
  explains("fp32/fp32/bf16 b1 h4 q64 k64 d64 autocast=bf16", "ok");   /* A5: post-policy dtypes */
  explains("fp16 b1 h4 q64 k64 d64 bias=fp16:1x4x64x64", "ok");       /* q's own dtype always */
  explains("fp16 b1 h4 q64 k64 d64 bias=bf16:1x4x64x64", "ok");
  explains("fp16 b1 h4 q64 k64 d64 bias=fp32:1x4x64x64", "BIAS(bias)");
  says("fp16 b1 h4 q64 k64 d64 bias=fp32:1x4x64x64", 0, "fp32 | fp16, bf16");
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

/* ---- Facts ---- */

static void D4_packages(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.package = "flash-attn";
  row.needs = "flash-attn>=2.6.3,<=2.8.4 torch>=2.2";
  row.known_bad = "flash-attn=2.7.0 flash-attn>=2.8.0,<2.8.1 cuda=12.5";
  static const struct { const char *facts, *verdict; } cases[] = {
    {"cpu flash-attn=2.6.3 torch=2.2 cuda=12.8", "ok"},
    {"cpu flash-attn=2.8.4 torch=2.2 cuda=12.8", "ok"},
    {"cpu flash-attn=2.6.2 torch=2.2 cuda=12.8", "VERSION(backend)"},
    {"cpu flash-attn=2.8.5 torch=2.1.9 cuda=12.8", "VERSION(backend),VERSION(backend)"},
    {"cpu flash-attn=2.7.0 torch=2.2 cuda=12.8", "KNOWN_BAD(backend)"},
    {"cpu flash-attn=2.8.0 torch=2.2 cuda=12.5", "KNOWN_BAD(backend),KNOWN_BAD(backend)"},
    {"cpu flash-attn=2.8.1 torch=2.2 cuda=12.8", "ok"},
    {"cpu flash-attn=none torch=2.2 cuda=12.8", "AVAIL(backend),VERSION(backend)?,KNOWN_BAD(backend)?"},
    {"cpu flash-attn=broken torch=2.2 cuda=12.8", "AVAIL(backend),VERSION(backend)?,KNOWN_BAD(backend)?"},
    {"cpu torch=2.2 cuda=12.8", "AVAIL(backend)?,VERSION(backend)?,KNOWN_BAD(backend)?"},
    {"cpu flash-attn=2.8.2", "VERSION(backend)?,KNOWN_BAD(backend)?"},
    {"cpu flash-attn=2.8.2 torch=none cuda=none", "VERSION(backend)"},
    {"cpu flash-attn=2.8.2b1 torch=2.2 cuda=12.8", "UNKNOWN_SUPPORT(backend)"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    only(cases[i].facts);
    explains(PLAIN, cases[i].verdict);
  }
  only("cpu flash-attn=2.6.2 torch=2.2 cuda=12.8");
  says(PLAIN, 0, "flash-attn 2.6.2 | flash-attn >=2.6.3,<=2.8.4");
  only("cpu flash-attn=none torch=2.2 cuda=12.8");
  says(PLAIN, 0, "not installed | flash-attn");
  says(PLAIN, 1, "not known | the fact flash-attn");
}

static void D4_devices(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.kinds = RAPT_KIND(RAPT_CUDA) | RAPT_KIND(RAPT_HIP);
  row.package = "flash-attn";
  row.cc = "8.0-9.0 10.x 12.0?";
  row.cc_built = "flash-attn";
  row.arch = "gfx942 gfx90a? gfx11*";
  static const struct { const char *facts, *device, *verdict; } cases[] = {
    {"cuda cc=8.0 flash-attn=2.8 flash-attn.cc=8.0,9.0", "cuda", "ok"},
    {"cuda cc=8.6 flash-attn=2.8 flash-attn.cc=8.0,9.0", "cuda", "ok"},
    {"cuda cc=10.3 flash-attn=2.8 flash-attn.cc=8.0,10.0", "cuda", "ok"},
    {"cuda cc=10.0 flash-attn=2.8 flash-attn.cc=8.0,10.3", "cuda", "AVAIL(backend)"},
    {"cuda cc=9.0 flash-attn=2.8 flash-attn.cc=8.0", "cuda", "AVAIL(backend)"},
    {"cuda cc=9.0 flash-attn=2.8", "cuda", "AVAIL(backend)?"},
    {"cuda flash-attn=2.8 flash-attn.cc=8.0", "cuda", "AVAIL(backend)?,DEVICE(device)?"},
    {"cuda cc=7.5 flash-attn=2.8 flash-attn.cc=8.0,9.0", "cuda", "DEVICE(device)"},
    {"cuda cc=11.0 flash-attn=2.8 flash-attn.cc=8.0,9.0", "cuda", "DEVICE(device)"},
    {"cuda cc=12.0 flash-attn=2.8 flash-attn.cc=12.0", "cuda", "UNKNOWN_SUPPORT(device)"},
    {"cuda cc=9.0 flash-attn=2.8 flash-attn.cc=8.0", "cpu", "DEVICE(device)"},
    {"cpu flash-attn=2.8 flash-attn.cc=8.0", "cuda", "AVAIL(backend)?,DEVICE(device)?"},
    {"hip arch=gfx942 flash-attn=2.8", "hip", "ok"},
    {"hip arch=gfx1100 flash-attn=2.8", "hip", "ok"},
    {"hip arch=gfx90a flash-attn=2.8", "hip", "UNKNOWN_SUPPORT(device)"},
    {"hip arch=gfx950 flash-attn=2.8", "hip", "DEVICE(device)"},
    {"hip flash-attn=2.8", "hip", "DEVICE(device)?"},
    {"cuda cc=9.0 flash-attn=2.8", "hip", "DEVICE(device)?"},   /* device keys speak of one kind only */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char problem[80] = PLAIN " dev=";
    strcat(problem, cases[i].device);
    only(cases[i].facts);
    explains(problem, cases[i].verdict);
  }
  only("cuda cc=9.0 flash-attn=2.8 flash-attn.cc=8.0,8.6");
  says(PLAIN " dev=cuda", 0, "built for 8.0,8.6 | a build of flash-attn for cc 9.0");
  only("cuda cc=7.5 flash-attn=2.8 flash-attn.cc=8.0");
  says(PLAIN " dev=cuda", 0, "cuda cc=7.5 | cuda cc 8.0-9.0 10.x 12.0?, hip arch gfx942 gfx90a? gfx11*");
}

static void D26_isa(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.kinds = RAPT_KIND(RAPT_CPU);
  row.isa = "avx512";
  only("cpu isa=avx512bf16");
  explains(PLAIN, "ok");
  only("cpu isa=avx2");
  explains(PLAIN, "ISA(isa)");
  says(PLAIN, 0, "avx2 | avx512");
  only("cpu isa=neon");
  explains(PLAIN, "ISA(isa)");
  only("cpu threads=2");
  explains(PLAIN, "ISA(isa)?");
  only("cuda cc=9.0");
  explains(PLAIN " dev=cuda", "DEVICE(device)");
  explains(PLAIN, "ISA(isa)?");
}

/* D4, D15: on this machine a row takes part only where a provider registered it. */
static void D4_real_contexts(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.package = "torch";
  row.needs = "torch>=2.5";
  row.dtypes = RAPT_DT(RAPT_FP32);
  tc_synth_begin(&s, NULL);
  tc_synth_add_row(&s, &row, 0);
  explains(PLAIN, "AVAIL(backend),VERSION(backend)?,DTYPE(q)");
  says(PLAIN, 0, "no provider registered | torch");
  s.g.facts.package[rapti_package_find("torch", 5)] =
    (rapti_package){.presence = RAPTI_PRESENT, .version = rapti_version_pack("2.4.0", 5, NULL), .n_cc = -1};
  explains(PLAIN, "AVAIL(backend),VERSION(backend),DTYPE(q)");
  s.rows[0].registered = 1;
  explains(PLAIN, "VERSION(backend),DTYPE(q)");
  row.needs = NULL;
  tc_synth_begin(&s, NULL);
  tc_synth_add_row(&s, &row, 1);
  explains("fp32 b1 h4 q64 k64 d64", "ok");                /* the provider speaks for its package */
  s.broken[0] = "libx.so: no such file";
  explains("fp32 b1 h4 q64 k64 d64", "AVAIL(backend)");
  says("fp32 b1 h4 q64 k64 d64", 0, "libx.so: no such file | torch");
}

/* ---- Callbacks ---- */

static uint32_t objects(void *self, uint32_t i, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                        uint32_t n) {
  (void)self, (void)i, (void)facts;
  assert_true(n >= 2);
  if (cast->D == 64) return 0;
  why[0].code = RAPT_CODE_SOFTCAP;
  why[0].field = RAPT_FIELD_SOFTCAP;
  strcpy(why[0].got, "3");
  strcpy(why[0].want, "none with D 32");
  why[1].code = RAPT_CODE_MASK;
  why[1].field = RAPT_FIELD_MASK;
  why[1].state = RAPT_NOT_EVALUATED;
  why[1].axis = 2;
  strcpy(why[1].want, "the fact cudnn");
  return 2;
}

static void D3_extra_objections_sorted_by_code(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.can &= ~(RAPT_CAN_LSE | RAPT_CAN_WINDOW);
  tc_synth_begin(&s, "cpu isa=avx2");
  tc_synth_add_row(&s, &row, 0)->extra = objects;
  explains(PLAIN, "ok");
  explains("fp16 b1 h4 q64 k64 d32 lse window=3,3", "WINDOW(window),MASK(mask)?,SOFTCAP(softcap),LSE(lse)");
  says("fp16 b1 h4 q64 k64 d32 lse window=3,3", 1, " | the fact cudnn");
  says("fp16 b1 h4 q64 k64 d32 lse window=3,3", 2, "3 | none with D 32");
}

static int picked;
static int picks(void *self, uint32_t i, const rapt_problem *cast, const rapt_facts *facts, uint32_t *member) {
  (void)self, (void)cast, (void)facts;
  if (i != 0) return 2;
  *member = 1;
  return picked;
}

/* D28: the verdict, the classes and the bans of the member. */
static void D28_a_row_that_picks(void **state) {
  (void)state;
  rapt_row rows[2] = {tc_synth_row("x.any"), tc_synth_row("x.member")};
  rows[0].classes = RAPT_CLASS_HOST;
  rows[1].classes = RAPT_CLASS_FLASH;
  rows[1].can &= ~RAPT_CAN_LSE;
  tc_synth_begin(&s, "cpu isa=avx2");
  tc_synth_add(&s, rows, 2, 0)->pick = picks;
  picked = 1;
  explains(PLAIN, "ok");
  explains(PLAIN " lse", "LSE(lse)");
  rapti_request r;
  rapti_policy policy;
  tc_synth_request(PLAIN, &r);
  static const struct { const char *require, *prefer, *forbid, *verdict; } cases[] = {
    {NULL, "x.any", "x.member", "FORBIDDEN(forbid)"},
    {NULL, "x.any", "class:flash", "FORBIDDEN(forbid)"},
    {NULL, "x.any", "class:fused", "ok"},
    {"class:flash", NULL, NULL, "ok"},
    {"class:host", NULL, NULL, "ok"},
    {"x.member", NULL, NULL, "NOT_REQUIRED(require),OPT_IN(prefer)"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tc_synth_policy(&s, cases[i].require, cases[i].prefer, cases[i].forbid, &policy);
    assert_string_equal(tc_synth_verdict(&s, 0, &r, &policy), cases[i].verdict);
  }
  picked = 0;
  explains(PLAIN " lse", "AVAIL(backend)?");
  picked = -1;
  explains(PLAIN " lse", "UNKNOWN_SUPPORT(backend)");
}

/* ---- Policy codes ---- */

static void D8_policy_codes(void **state) {
  (void)state;
  rapt_row rows[3] = {tc_synth_row("own.a"), tc_synth_row("ref"), tc_synth_row("ext")};
  rows[0].place = rows[1].place = RAPT_PLACE_OWN;
  rows[0].ran_on_hardware = 0;
  rows[0].classes = rows[2].classes = RAPT_CLASS_FUSED;
  rows[1].classes = RAPT_CLASS_REFERENCE;
  tc_synth_begin(&s, "cpu isa=avx2");
  tc_synth_add(&s, rows, 3, 0);
  rapti_request r;
  rapti_policy policy;
  tc_synth_request("fp32 b1 h1 q4096 k4096 d64", &r);      /* 2^31 products */
  static const struct { const char *require, *prefer, *forbid, *verdict[3]; } cases[] = {
    {NULL, NULL, NULL, {"UNTESTED(require)", "ok", "OPT_IN(prefer)"}},
    {NULL, "own", NULL, {"UNTESTED(require)", "ok", "OPT_IN(prefer)"}},
    {"own", NULL, NULL, {"ok", "NOT_REQUIRED(require)", "NOT_REQUIRED(require),OPT_IN(prefer)"}},
    {"class:fused", NULL, NULL, {"UNTESTED(require)", "NOT_REQUIRED(require)", "ok"}},
    {NULL, "ext", "ref", {"UNTESTED(require)", "FORBIDDEN(forbid)", "ok"}},
    {NULL, "class:fused", "ref,ext,own", {"FORBIDDEN(forbid),UNTESTED(require)", "FORBIDDEN(forbid)", "FORBIDDEN(forbid)"}},
    {"ref", NULL, "class:reference", {"NOT_REQUIRED(require),UNTESTED(require)", "FORBIDDEN(forbid)",
                                      "NOT_REQUIRED(require),OPT_IN(prefer)"}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    tc_synth_policy(&s, cases[i].require, cases[i].prefer, cases[i].forbid, &policy);
    for (uint32_t j = 0; j < 3; j++) assert_string_equal(tc_synth_verdict(&s, j, &r, &policy), cases[i].verdict[j]);
  }
  /* D14: only the reference, only by itself. */
  static const struct { const char *problem, *require, *verdict; } slow[] = {
    {"fp32 b1 h1 q4096 k4096 d64", NULL, "ok"},
    {"fp32 b1 h1 q4096 k4097 d64", NULL, "SLOW(ref_limit)"},
    {"fp32 b1 h1 q4096 k4097 d64", "ref", "ok"},
    {"fp32 b1 h1 q4096 k4097 d64", "class:reference", "ok"},
  };
  for (size_t i = 0; i < sizeof slow / sizeof slow[0]; i++) {
    tc_synth_request(slow[i].problem, &r);
    tc_synth_policy(&s, slow[i].require, NULL, NULL, &policy);
    assert_string_equal(tc_synth_verdict(&s, 1, &r, &policy), slow[i].verdict);
  }
}

static void spelled(uint32_t i, const rapti_request *r, const rapti_policy *policy, uint32_t reason, const char *text) {
  rapti_match m, again;
  rapt_reason why = {.struct_size = sizeof why};
  char got[300];
  rapti_match_row(&s.g, i, r, policy, false, &m, NULL);
  assert_true(reason < m.n);
  rapti_text_of of = {m.reason[reason].seq, &why};
  rapti_match_row(&s.g, i, r, policy, false, &again, &of);
  strcpy(got, why.got);
  strcat(got, " | ");
  strcat(got, why.want);
  assert_string_equal(got, text);
}

static void D9_policy_codes_name_the_level(void **state) {
  (void)state;
  row = tc_synth_row("x");
  only("cpu isa=avx2");
  rapti_settings levels[RAPTI_LEVELS] = {0};
  levels[RAPTI_ENVIRONMENT].forbid = "x";
  levels[RAPTI_CONTEXT].require = "class:host,class:flash";
  levels[RAPTI_CALL].forbid = "class:fused,x";
  rapti_request r;
  rapti_policy policy;
  tc_synth_request(PLAIN, &r);
  assert_int_equal(rapti_policy_make(levels, &s.g, "scope", &policy, NULL), RAPT_OK);
  assert_string_equal(tc_synth_verdict(&s, 0, &r, &policy),
                      "FORBIDDEN(forbid),FORBIDDEN(forbid),NOT_REQUIRED(require),OPT_IN(prefer)");
  spelled(0, &r, &policy, 0, "x | environment");
  spelled(0, &r, &policy, 1, "x | scope");
  spelled(0, &r, &policy, 2, "context | class:host, class:flash");
}

/* D5: the short form stops at the first failure and says the same as the full one. */
static void D5_first_agrees_with_all(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.package = "torch";
  row.dtypes = RAPT_DT(RAPT_FP16);
  row.can &= ~(RAPT_CAN_WINDOW | RAPT_CAN_LSE);
  static const char *const problems[] = {PLAIN, PLAIN " lse", "fp32 b1 h4 q64 k64 d64 lse window=3,3", PLAIN " window=1,1"};
  static const char *const facts[] = {"cpu torch=2.13", "cpu torch=none", "cpu isa=avx2"};
  for (size_t f = 0; f < 3; f++)
    for (size_t i = 0; i < 4; i++) {
      rapti_request r;
      rapti_policy policy;
      rapti_match all, first;
      only(facts[f]);
      tc_synth_request(problems[i], &r);
      tc_synth_policy(&s, NULL, "x", NULL, &policy);
      rapti_match_row(&s.g, 0, &r, &policy, false, &all, NULL);
      rapti_match_row(&s.g, 0, &r, &policy, true, &first, NULL);
      assert_int_equal(first.can, all.can);
      assert_int_equal(first.n, all.can == RAPT_UNABLE);
      if (!first.n) continue;
      uint32_t at = 0;
      while (all.reason[at].state != RAPT_FAILED) at++;
      assert_int_equal(first.reason[0].code, all.reason[at].code);
    }
}

/* ---- Rows as given ---- */

static void D7_rows_with_faults(void **state) {
  (void)state;
  rapti_cap cap;
  const rapt_row good = tc_synth_row("a.b_1");
  rapt_reason why = {.struct_size = sizeof why};
  assert_int_equal(rapti_cap_compile(&good, &cap, &why), RAPT_OK);
  assert_string_equal(cap.row.display, "a.b_1");
#define refused(field, value, c) \
  do { rapt_row bad = good; bad.field = value; \
    assert_int_equal(rapti_cap_compile(&bad, &cap, &why), RAPT_ARG); assert_int_equal(why.code, RAPT_CODE_##c); } while (0)
  refused(id, NULL, SYNTAX);
  refused(id, "", SYNTAX);
  refused(id, "A", SYNTAX);
  refused(id, "a.", SYNTAX);
  refused(id, "a..b", SYNTAX);
  refused(package, "flash", UNKNOWN_NAME);
  refused(cc_built, "flash", UNKNOWN_NAME);
  refused(needs, "flash>=1", UNKNOWN_NAME);
  refused(needs, "torch", SYNTAX);
  refused(needs, "torch>=", SYNTAX);
  refused(needs, "torch>=2.1,", SYNTAX);
  refused(needs, "torch~2.1", UNKNOWN_NAME);
  refused(known_bad, "torch=x", SYNTAX);
  refused(needs, "torch>1 torch>2 torch>3 torch>4 torch>5 torch>6 torch>7 torch>8 torch>9", SYNTAX);
  refused(cc, "8", SYNTAX);
  refused(cc, "9.0-8.0", SYNTAX);
  refused(isa, "sse9", SYNTAX);
  refused(kinds, 0, UNKNOWN_FIELD);
  refused(can, UINT64_C(1) << 60, UNKNOWN_FIELD);
  refused(unknown, UINT64_C(1) << 60, UNKNOWN_FIELD);
  refused(classes, 1u << 20, UNKNOWN_FIELD);
  refused(place, 9, UNKNOWN_FIELD);
  refused(accuracy, 3, UNKNOWN_FIELD);
  refused(d_max, -1, UNKNOWN_FIELD);
  refused(n_dims, 1, UNKNOWN_FIELD);
  refused(determinism, 4, UNKNOWN_FIELD);
  rapt_row small = good;
  small.struct_size = 8;
  assert_int_equal(rapti_cap_compile(&small, &cap, &why), RAPT_ABI);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(D6_a_row_that_can_do_all),
    cmocka_unit_test(D6_neutral_values_never_disqualify),
    cmocka_unit_test(D3_every_bit_has_its_code),
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
    cmocka_unit_test(D4_packages),
    cmocka_unit_test(D4_devices),
    cmocka_unit_test(D26_isa),
    cmocka_unit_test(D4_real_contexts),
    cmocka_unit_test(D3_extra_objections_sorted_by_code),
    cmocka_unit_test(D28_a_row_that_picks),
    cmocka_unit_test(D8_policy_codes),
    cmocka_unit_test(D9_policy_codes_name_the_level),
    cmocka_unit_test(D5_first_agrees_with_all),
    cmocka_unit_test(D7_rows_with_faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
