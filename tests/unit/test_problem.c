/* SPDX-License-Identifier: Apache-2.0 */
/* From a problem to a request: faults and their order (E6, E7), and what follows from the metadata. Most calls are
 * written as problem strings, which parse without being legal. */
#include "core/problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cm.h"

static rapt_problem problem_of(const char *text) {
  static char names[256];
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  if (rapt_problem_parse(text, strlen(text), &p, names, sizeof names, &why))
    fail_msg("%s: byte %s, expected %s", text, why.got, why.want);
  return p;
}

static rapt_status make(const rapt_problem *p, rapti_request *r, rapt_reason *why) {
  *why = (rapt_reason)RAPT_REASON_INIT;
  memset(r, 0x5a, sizeof *r);                                /* every field has to be written */
  return rapti_request_make(p, r, why);
}

static rapti_request request_of(const char *text) {
  rapt_problem p = problem_of(text);
  rapti_request r;
  rapt_reason why;
  if (make(&p, &r, &why)) fail_msg("%s: %s of %s: %s, %s", text, rapt_code_name(why.code), rapt_field_name(why.field), why.got, why.want);
  return r;
}

typedef struct fault { const char *text; int code, field; const char *got, *want; } fault;

static void assert_fault(const fault *f) {
  rapt_problem p = problem_of(f->text);
  rapti_request r;
  rapt_reason why;
  char sentence[512];
  assert_int_equal(make(&p, &r, &why), RAPT_ARG);
  if (why.code != f->code || why.field != f->field || strcmp(why.got, f->got))
    print_error("%s: %s of %s: %s, %s\n", f->text, rapt_code_name(why.code), rapt_field_name(why.field), why.got, why.want);
  assert_int_equal(why.code, f->code);
  assert_int_equal(why.field, f->field);
  assert_string_equal(why.got, f->got);
  if (f->want) assert_non_null(strstr(why.want, f->want));
  rapt_reason_format(&why, NULL, NULL, sentence, sizeof sentence);
  assert_non_null(strstr(sentence, rapt_field_name(f->field)));             /* E3 */
  if (*why.got) assert_non_null(strstr(sentence, why.got));
}

#define F(text, code, field, got, want) {text, RAPT_CODE_##code, RAPT_FIELD_##field, got, want}
static const fault faults[] = {
    /* S2 */
    F("int8 b1 h1 q4 k4 d8", DTYPE, Q, "int8", "fp16, bf16, fp32 or fp64"),
    F("fp32/fp8e4m3/fp32 b1 h1 q4 k4 d8", DTYPE, K, "fp8e4m3", NULL),
    F("fp32 b1 h1 q4 k4 d8 out=int32", DTYPE, OUT, "int32", NULL),
    F("bf16 b1 h1 q4 k4 d8 out=fp16", DTYPE, OUT, "fp16", "bf16 or fp32"),
    F("fp32 b1 h1 q4 k4 d8 out=fp64", DTYPE, OUT, "fp64", "fp32"),
    F("fp32/fp32/bf16 b1 h1 q4 k4 d8", DTYPE_MIX, QKV, "fp32/fp32/bf16", NULL),
    /* S4 */
    F("fp32 b1 h3/2 q4 k4 d8", HEADS, K, "2", "3"),
    F("fp32 b1 h2/3 q4 k4 d8", HEADS, K, "3", "2"),
    F("fp32 b1 h4/0 q4 k4 d8", HEADS, K, "0", "4"),
    /* S8 */
    F("fp32 b4294967296 h1 q1073741824 k4 d8", SIZE, Q, "4294967296x1x1073741824x8", NULL),
    F("fp32 b1 h1 q4 k4611686018427387904 d1", SIZE, K, "1x1x4611686018427387904x1", NULL),
    F("fp32 b1 h1 q4 k4 d8 q.st=0,0,9223372036854775807,1", SIZE, Q, "1x1x4x8", NULL),
    F("fp32 b1 h1 q4 k4 d8 v.st=0,0,4611686018427387904,-1", SIZE, V, "1x1x4x8", NULL),
    F("fp32 b1 h1 q4 k4 d8 bias=fp32:1x1x4x4 bias.st=0,0,3074457345618258602,1", SIZE, BIAS, "1x1x4x4", NULL),
    /* M8, M12 */
    F("fp32 b1 h2 q4 k6 d8 mask=uint8:1x1x4x6", MASK, MASK, "uint8", "bool"),
    F("fp32 b1 h2 q4 k6 d8 mask=fp32:1x1x4x6", MASK, MASK, "fp32", "bool"),
    F("fp32 b4 h4 q8 k8 d4 mask=bool:4x1x1x7", SHAPE, MASK, "4x1x1x7", "8 or 1 as in 4x4x8x8"),
    F("fp32 b2 h4/2 q8 k8 d4 bias=fp32:2x2x8x8", SHAPE, BIAS, "2x2x8x8", "4 or 1"),
    F("fp32 b2 h3 q4 k5 d8 mask=bool:2x3x5x4", SHAPE, MASK, "2x3x5x4", "5 or 1"),
    F("fp32 b2 h3 q4 k5 d8 mask=bool:0x1x1x1", SHAPE, MASK, "0x1x1x1", "2 or 1"),
    /* M2, M3 */
    F("fp32 b1 h2 q4 k6 d8 causal", ALIGNMENT_UNSET, ALIGN, "Sq 4 and Skv 6", "top-left"),
    F("fp32 b1 h2 q4 k6 d8 window=2,2", ALIGNMENT_UNSET, ALIGN, "Sq 4 and Skv 6", "off:N"),
    F("fp32 b1 h2 q4 k6 d8 alibi=h", ALIGNMENT_UNSET, ALIGN, "Sq 4 and Skv 6", "br"),
    F("fp32 b1 h2 q4 k4 d8 causal kvlen=int32", ALIGNMENT_UNSET, ALIGN, "lengths (kv_len)", "br"),
    F("fp32 b1 h2 q4 k4 d8 causal packed=int32", ALIGNMENT_UNSET, ALIGN, "packed sequences", "br"),
    F("fp32 b1 h2 q4 k6 d8 causal=off:4611686018427387905", SIZE, Q_OFFSET, "4611686018427387905", "2^62"),
    F("fp32 b1 h2 q4 k6 d8 causal=off:-4611686018427387905", SIZE, Q_OFFSET, "-4611686018427387905", "2^62"),
    /* M6, M18, M19, M20, M21 */
    F("fp32 b1 h2 q4 k4 d8 window=-2,0", WINDOW, WINDOW, "-2,0", NULL),
    F("fp32 b1 h2 q4 k4 d8 window=0,-5", WINDOW, WINDOW, "0,-5", NULL),
    F("fp32 b1 h2 q4 k4 d8 packed=int32 mask=bool:1x1x4x4", PACKED, PACKED, "mask", NULL),
    F("fp32 b1 h2 q4 k4 d8 packed=int32 bias=fp32:1x1x4x4", PACKED, PACKED, "bias", NULL),
    F("fp32 b1 h2 q4 k4 d8 packed=int32 kvlen=int64", PACKED, PACKED, "kv_len", NULL),
    F("fp32 b1 h2 q4 k4 d8 packed=int32,5/4", SIZE, MAX_Q, "5", "0 to the 4 tokens"),
    F("fp32 b1 h2 q4 k4 d8 packed=int32,4/-1", SIZE, MAX_K, "-1", "0 to the 4 tokens"),
    F("fp32 b1 h2 q4 k4 d8 softcap=-1", SOFTCAP, SOFTCAP, "-1", NULL),
    F("fp32 b1 h2 q4 k4 d8 softcap=nan", SOFTCAP, SOFTCAP, "nan", NULL),
    F("fp32 b1 h2 q4 k4 d8 softcap=inf", SOFTCAP, SOFTCAP, "inf", NULL),
    F("fp32 b1 h2 q4 k4 d8 softcap=1e39", SOFTCAP, SOFTCAP, "1e+39", NULL),
    F("fp32 b1 h4/2 q1 k3 d4 sinks=fp32:2", SINK, SINKS, "2 values", "4"),
    F("fp32 b1 h4/2 q1 k3 d4 sinks=fp32:8", SINK, SINKS, "8 values", "4"),
    F("fp32 b1 h4/2 q1 k3 d4 sinks=int32", SINK, SINKS, "dtype int32", NULL),
    /* N3, S7 */
    F("fp32 b1 h1 q2 k2 d0/3", SCALE, SCALE, "1/sqrt(D) with D = 0", NULL),
    F("fp32 b1 h1 q2 k2 d8 scale=nan", SCALE, SCALE, "nan", NULL),
    F("fp32 b1 h1 q2 k2 d8 scale=-inf", SCALE, SCALE, "-inf", NULL),
    F("bf16 b1 h1 q2 k2 d8 scale=1e39", SCALE, SCALE, "1e+39", NULL),
    /* X4, X6 */
    F("fp32 b1 h1 q2 k2 d8 dropout=1.5", DROPOUT, DROPOUT, "1.5", NULL),
    F("fp32 b1 h1 q2 k2 d8 dropout=nan", DROPOUT, DROPOUT, "nan", NULL),
    F("fp32 b1 h1 q2 k2 d8 dropout=-0.1", DROPOUT, DROPOUT, "-0.1", NULL),
    F("fp32 b1 h1 q2 k2 d8 dropout=0.1 base=0,0,4294967295,0", SIZE, BASE, "4294967295 for a size of 2", "2^32"),
    F("fp32 b1 h1 q2 k2 d8 dropout=0.1 base=0,0,0,17179869183", SIZE, BASE, "17179869183 for a size of 2", "2^34"),
    F("fp32 b1 h1 q2 k2 d8 base=0,-1,0,0", SIZE, BASE, "-1 for a size of 1", NULL),
    /* B1, B5, B7, M9 */
    F("fp32 b1 h1 q2 k2 d8 bwd", GRAD, GRAD, "nothing", NULL),
    F("fp32 b1 h1 q2 k2 d8 bwd grad=q,bias", GRAD, GRAD, "bias", NULL),
    F("fp32 b1 h1 q2 k2 d8 grad=sinks", GRAD, GRAD, "sinks", NULL),
    F("bf16 b1 h1 q2 k2 d8 bwd grad=q gdt=fp16", DTYPE, DQ, "fp16", "bf16"),
    F("fp32 b1 h1 q2 k2 d8 bias=fp64:1x1x2x2", BIAS, BIAS, "fp64", "fp16, bf16 or fp32"),
    F("fp32 b1 h1 q2 k2 d8 bias=bool:1x1x2x2", BIAS, BIAS, "bool", NULL),
    F("fp64 b1 h1 q2 k2 d8 bias=fp8e4m3:1x1x2x2", BIAS, BIAS, "fp8e4m3", "fp64"),
    /* D16, S10, S12, A10 */
    F("fp32 b1 h1 q2 k2 d8 mem=-1", SIZE, MEMORY_LIMIT, "-1", NULL),
    F("fp32 b1 h1 q2 k2 d8 out.st=0,0,0,1", OVERLAP, OUT, "itself: strides 16,16,0,1", NULL),
    F("fp32 b2 h2 q2 k2 d8 out.st=16,16,8,1", OVERLAP, OUT, "itself: strides 16,16,8,1", NULL),
    F("fp32 b1 h1 q2 k2 d8 out.st=0,0,7,1", OVERLAP, OUT, "itself: strides 16,16,7,1", NULL),
    F("fp32 b1 h2 q4 k2 d8 lse lse.st=0,3,1", OVERLAP, LSE, "itself: strides 8,3,1,1", NULL),
    F("fp32 b1 h1 q2 k2 d8 bwd grad=k dk.st=0,0,4,1", OVERLAP, DK, "itself: strides 16,16,4,1", NULL),
    F("fp32 b1 h1 q2 k2 d8 q.ptr=2", MEM_ALIGN, Q, "2", "4"),
    F("fp32 b1 h1 q2 k2 d8 out.ptr=24", MEM_ALIGN, OUT, "24", "power of two"),
    F("fp32 b1 h1 q2 k2 d8 k.ptr=-8", MEM_ALIGN, K, "-8", NULL),
    F("fp32 b1 h1 q2 k2 d8 autocast=int8", AUTOCAST_DTYPE, AUTOCAST, "int8", NULL),
    F("fp32 b1 h1 q2 k2 d8 verify=4", UNKNOWN_FIELD, VERIFY, "4", "not in this version"),
    F("fp32 b1 h1 q2 k2 d8 dev=cuda:-1", DEVICE, DEVICE, "cuda:-1", NULL),
};

static void e3_each_fault_has_its_code_argument_and_values(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) assert_fault(&faults[i]);
}

/* S8: a problem string has no sign for sizes, the struct has. */
static void s8_sizes_are_not_negative(void **state) {
  (void)state;
  for (int i = 0; i < 7; i++) {
    rapt_problem p = problem_of("fp32 b1 h1 q4 k4 d8");
    rapti_request r;
    rapt_reason why;
    (&p.B)[i] = -3;
    assert_int_equal(make(&p, &r, &why), RAPT_ARG);
    assert_int_equal(why.code, i == 2 ? RAPT_CODE_HEADS : RAPT_CODE_SIZE);   /* Hkv does not divide: S4 comes first */
    assert_int_equal(why.field, i == 2 ? RAPT_FIELD_K : RAPT_FIELD_B + i);
  }
}

/* E7: of several faults the first in the fixed order is the answer; removing it shows the next. */
static void e7_faults_come_in_a_fixed_order(void **state) {
  (void)state;
  static const struct { const char *text; int code; } steps[] = {      /* those that begin with "-" have Sq = -4 */
      {"-int8 b1 h3/2 q4 k8 d8 mask=uint8:1 causal window=-3,0 softcap=-1 scale=nan dropout=2 verify=1", RAPT_CODE_UNKNOWN_FIELD},
      {"-int8 b1 h3/2 q4 k8 d8 mask=uint8:1 causal window=-3,0 softcap=-1 scale=nan dropout=2 mem=-1", RAPT_CODE_DTYPE},
      {"-fp32 b1 h3/2 q4 k8 d8 mask=uint8:1 causal window=-3,0 softcap=-1 scale=nan dropout=2 mem=-1", RAPT_CODE_HEADS},
      {"-fp32 b1 h2 q4 k8 d8 mask=uint8:1 causal window=-3,0 softcap=-1 scale=nan dropout=2 mem=-1", RAPT_CODE_SIZE},
      {"fp32 b1 h2 q4 k8 d8 mask=uint8:1x1x1x7 causal window=-3,0 softcap=-1 scale=nan dropout=2 mem=-1", RAPT_CODE_MASK},
      {"fp32 b1 h2 q4 k8 d8 mask=bool:7 causal window=-3,0 softcap=-1 scale=nan dropout=2 mem=-1", RAPT_CODE_SHAPE},
      {"fp32 b1 h2 q4 k8 d8 mask=bool:8 causal window=-3,0 softcap=-1 scale=nan dropout=2 mem=-1", RAPT_CODE_ALIGNMENT_UNSET},
      {"fp32 b1 h2 q4 k8 d8 causal=br window=-3,0 softcap=-1 sinks=int8 scale=nan dropout=2 mem=-1", RAPT_CODE_WINDOW},
      {"fp32 b1 h2 q4 k8 d8 causal=br kvlen=int32 packed=int32 softcap=-1 sinks=int8 scale=nan dropout=2", RAPT_CODE_PACKED},
      {"fp32 b1 h2 q4 k8 d8 softcap=-1 sinks=int8 scale=nan dropout=2 mem=-1 autocast=int8", RAPT_CODE_SOFTCAP},
      {"fp32 b1 h2 q4 k8 d8 sinks=int8 scale=nan dropout=2 mem=-1 autocast=int8", RAPT_CODE_SINK},
      {"fp32/fp16/fp32 b1 h2 q4 k8 d8 scale=nan dropout=2 bwd mem=-1 autocast=int8 q.ptr=1", RAPT_CODE_SCALE},
      {"fp32/fp16/fp32 b1 h2 q4 k8 d8 dropout=2 bwd mem=-1 autocast=int8 q.ptr=1", RAPT_CODE_DROPOUT},
      {"fp32/fp16/fp32 b1 h2 q4 k8 d8 bwd mem=-1 autocast=int8 q.ptr=1", RAPT_CODE_GRAD},
      {"fp32/fp16/fp32 b1 h2 q4 k8 d8 mem=-1 autocast=int8 q.ptr=1", RAPT_CODE_SIZE},
      {"fp32/fp16/fp32 b1 h2 q4 k8 d8 autocast=int8 q.ptr=1", RAPT_CODE_AUTOCAST_DTYPE},
      {"fp32/fp16/fp32 b1 h2 q4 k8 d8 bias=fp64:1 out.st=0,0,0,0 q.ptr=1", RAPT_CODE_DTYPE_MIX},
      {"fp32 b1 h2 q4 k8 d8 bias=fp64:1 grad=q gdt=bf16 out.st=0,0,0,0 q.ptr=1", RAPT_CODE_DTYPE},
      {"fp32 b1 h2 q4 k8 d8 bias=fp64:1 out.st=0,0,0,0 q.ptr=1", RAPT_CODE_BIAS},
      {"fp32 b1 h2 q4 k8 d8 out.st=0,0,0,0 q.ptr=1", RAPT_CODE_OVERLAP},
      {"fp32 b1 h2 q4 k8 d8 q.ptr=1", RAPT_CODE_MEM_ALIGN}};
  for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
    bool negative = steps[i].text[0] == '-';
    rapt_problem p = problem_of(steps[i].text + negative);
    rapti_request r;
    rapt_reason why;
    p.Sq = negative ? -4 : p.Sq;
    assert_int_equal(make(&p, &r, &why), RAPT_ARG);
    if (why.code != steps[i].code) fail_msg("%s: %s", steps[i].text, rapt_code_name(why.code));
  }
}

/* ---- E6: fields of the struct itself ---- */

static void assert_unknown(const rapt_problem *p, int field) {
  rapti_request r;
  rapt_reason why;
  assert_int_equal(make(p, &r, &why), RAPT_ARG);
  if (why.field != field) print_error("%s instead of %s\n", rapt_field_name(why.field), rapt_field_name(field));
  assert_int_equal(why.code, RAPT_CODE_UNKNOWN_FIELD);
  assert_int_equal(why.field, field);
}

#define WITH(change, field) do { rapt_problem p = problem_of("fp32 b2 h2 q4 k4 d8"); change; assert_unknown(&p, RAPT_FIELD_##field); } while (0)

static void e6_bits_and_enum_values(void **state) {
  (void)state;
  for (int bit = 0; bit < 64; bit++) {
    rapt_problem p = problem_of("fp32 b2 h2 q4 k4 d8"), s = p;
    rapti_request r;
    rapt_reason why;
    p.flags = UINT64_C(1) << bit;
    rapt_status status = make(&p, &r, &why);
    if (bit >= 18) assert_unknown(&p, RAPT_FIELD_FLAGS);
    else assert_true(status == RAPT_OK || why.field != RAPT_FIELD_FLAGS || (bit >= 14 && bit <= 16));
    s.has = UINT64_C(1) << bit;
    if ((bit >= 4 && bit < 8) || bit > 23) assert_unknown(&s, RAPT_FIELD_HAS);
    if (bit == 15) assert_unknown(&s, RAPT_FIELD_SINKS);
    if (bit == 23) assert_unknown(&s, RAPT_FIELD_DSINKS);
  }
  WITH(p.backward = 2, BACKWARD);
  WITH(p.backward = -1, BACKWARD);
  WITH(p.device = RAPTI_KINDS, DEVICE);
  WITH(p.device = -1, DEVICE);
  WITH(p.q.dtype = RAPT_FP8E5M2 + 1, Q);
  WITH(p.dsinks.dtype = -1, DSINKS);
  WITH(p.alignment = RAPT_OFFSET_ARRAY + 1, ALIGN);
  WITH(p.determinism = 9, DETERMINISM);
  WITH(p.q_len = RAPT_FP32, Q_LEN);
  WITH(p.kv_len = RAPT_BOOL, KV_LEN);
  WITH(p.cu = RAPT_INT16, PACKED);
  WITH((p.has = RAPT_HAS_AUTOCAST, p.autocast_dtype = 77), AUTOCAST);
  WITH((p.has = RAPT_HAS_AUTOCAST, p.autocast_device = 77), AUTOCAST);
  WITH(p.flags = RAPT_CU_ON_DEVICE, FLAGS);
  WITH(p.flags = RAPT_LENGTHS_ON_DEVICE, FLAGS);
  WITH((p.flags = RAPT_OFFSET_ON_DEVICE, p.alignment = RAPT_OFFSET), FLAGS);
}

static void e6_fields_without_their_bit(void **state) {
  (void)state;
  WITH(p.scale = 0.5, SCALE);
  WITH(p.scale = (double)NAN, SCALE);
  WITH(p.window[0] = 3, WINDOW);
  WITH(p.window[1] = -1, WINDOW);
  WITH(p.memory_limit = 1, MEMORY_LIMIT);
  WITH(p.autocast_dtype = RAPT_BF16, AUTOCAST);
  WITH(p.autocast_device = RAPT_CUDA, AUTOCAST);
  WITH(p.q_offset = 1, Q_OFFSET);
  WITH((p.q_offset = 1, p.alignment = RAPT_TOP_LEFT), Q_OFFSET);
  WITH(p.max_q = 1, MAX_Q);
  WITH(p.max_k = 1, MAX_K);
  WITH(p.verify = 1, VERIFY);
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST; field++) {
    rapt_problem strides = problem_of("fp32 b2 h2 q4 k4 d8"), align = strides, size = strides;
    rapti_desc_of(&strides, field)->stride[2] = 5;
    assert_unknown(&strides, field);
    rapti_desc_of(&size, field)->size[3] = 5;
    assert_unknown(&size, field);
    rapti_desc_of(&align, field)->ptr_align = 64;            /* no tensor, no alignment of it */
    if (field > RAPT_FIELD_OUT) assert_unknown(&align, field);
  }
  WITH((p.sinks.dtype = RAPT_FP32, p.sinks.size[0] = 2, p.sinks.stride[0] = 1), SINKS);
  WITH((p.slopes.dtype = RAPT_FP32, p.slopes.size[0] = 1, p.slopes.size[1] = 2, p.slopes.size[2] = 1), SLOPES);
  WITH(p.lse.dtype = RAPT_FP32, LSE);
  WITH(p.dlse.dtype = RAPT_FP32, DLSE);
  WITH(p.dq.dtype = RAPT_FP32, DQ);
  WITH((p.flags = RAPT_GRAD_Q, p.dbias.dtype = RAPT_FP32), DBIAS);
}

/* E6, ABI: a shorter struct is not read past its end, a longer one needs zeros behind. */
static void e6_struct_sizes(void **state) {
  (void)state;
  rapt_problem p = problem_of("fp32 b2 h2 q4 k4 d8");
  rapti_request r;
  rapt_reason why;
  size_t size = sizeof p;
  unsigned char *bytes = malloc(size + 16);
  for (uint32_t shorter = 4; shorter < size; shorter += 4) {
    unsigned char *part = malloc(shorter);                   /* a sanitizer sees any read past it */
    memcpy(part, &p, shorter);
    memcpy(part, &shorter, 4);
    why = (rapt_reason)RAPT_REASON_INIT;
    assert_int_equal(rapti_request_make((const rapt_problem *)(void *)part, &r, &why), RAPT_ABI);
    assert_int_equal(why.field, RAPT_FIELD_STRUCT_SIZE);
    free(part);
  }
  memset(bytes, 0, size + 16);
  memcpy(bytes, &p, size);
  uint32_t longer = (uint32_t)size + 16;
  memcpy(bytes, &longer, 4);
  assert_int_equal(make((const rapt_problem *)(void *)bytes, &r, &why), RAPT_OK);
  assert_int_equal(r.cast.struct_size, size);
  bytes[size + 9] = 1;
  assert_int_equal(make((const rapt_problem *)(void *)bytes, &r, &why), RAPT_ABI);
  assert_int_equal(why.code, RAPT_CODE_UNKNOWN_FIELD);
  free(bytes);
  assert_int_equal(make(NULL, &r, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_NULL);
}

/* ---- What follows ---- */

static void assert_strides(const rapt_problem *p, int field, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t want[4] = {a, b, c, d};
  assert_memory_equal(rapti_desc(p, field)->stride, want, sizeof want);
  assert_true(rapti_has_strides(p, field));
}

/* S9: not given = dense in logical order; axes of size <= 1 count as dense; broadcast axes get stride 0. */
static void s9_strides_are_filled_in(void **state) {
  (void)state;
  rapti_request r = request_of("fp32 b2 h4/2 q8 k6 d16/10 mask=bool:1x4x1x6 lse");
  assert_strides(&r.cast, RAPT_FIELD_Q, 512, 128, 16, 1);
  assert_strides(&r.cast, RAPT_FIELD_K, 192, 96, 16, 1);
  assert_strides(&r.cast, RAPT_FIELD_V, 120, 60, 10, 1);
  assert_strides(&r.cast, RAPT_FIELD_OUT, 320, 80, 10, 1);
  assert_strides(&r.cast, RAPT_FIELD_LSE, 32, 8, 1, 1);
  assert_strides(&r.cast, RAPT_FIELD_MASK, 0, 6, 0, 1);
  assert_false(rapti_has_strides(&r.cast, RAPT_FIELD_BIAS));
  r = request_of("bf16 b1 h1 q8 k6 d16 q.st=7,9,-32,2 bias=fp16:1x1x8x6 bias.st=5,5,0,-1");
  assert_strides(&r.cast, RAPT_FIELD_Q, 128, 128, -32, 2);
  assert_strides(&r.cast, RAPT_FIELD_BIAS, 0, 0, 0, -1);
  assert_int_equal(r.cast.out.dtype, RAPT_BF16);
  assert_int_equal(r.cast.lse.dtype, RAPT_FP32);
  r = request_of("fp64 b3 h2 q9 k7 d4 packed=int32 lse");    /* M17: q [S,H,D], lse [H,S] */
  assert_strides(&r.cast, RAPT_FIELD_Q, 72, 4, 8, 1);
  assert_strides(&r.cast, RAPT_FIELD_LSE, 18, 9, 1, 1);
  assert_int_equal(r.cast.lse.dtype, RAPT_FP64);
}

static void s6_empty_calls_are_legal(void **state) {
  (void)state;
  static const char *const texts[] = {"fp32 b0 h2 q4 k4 d8", "fp32 b1 h0/0 q4 k4 d8", "fp32 b1 h0/3 q4 k4 d8", "fp32 b1 h2 q0 k4 d8",
                                      "fp32 b1 h2 q4 k0 d8", "fp32 b1 h2 q4 k4 d8/0", "fp32 b1 h2 q4 k4 d0/8 scale=1",
                                      "fp32 b9223372036854775807 h0/0 q9223372036854775807 k4 d8"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) assert_int_equal(request_of(texts[i]).empty, 1);
  assert_int_equal(request_of("fp32 b1 h2 q4 k4 d8").empty, 0);
}

/* N3: the effective scale, a given zero stays. */
static void n3_scale(void **state) {
  (void)state;
  rapti_request r = request_of("fp32 b1 h2 q4 k4 d64");
  assert_true(r.cast.scale == 0.125 && r.default_scale && (r.cast.has & RAPT_HAS_SCALE));
  r = request_of("fp32 b1 h2 q4 k4 d64 scale=0");
  assert_true(r.cast.scale == 0 && !r.default_scale);
  r = request_of("fp32 b1 h2 q4 k4 d64 scale=-2");
  assert_true(r.cast.scale == -2);
  assert_true(request_of("fp64 b1 h2 q4 k4 d64 scale=1e39").cast.scale == 1e39);
}

/* M2, M3, M5, M6 */
static void m2_positions(void **state) {
  (void)state;
  static const struct { const char *options; int64_t off, left, right; int causal, positional, visible, agree, alignment; } cases[] = {
      {"q4 k4", INT64_MIN, -1, -1, 0, 0, 1, 1, RAPT_UNSET},
      {"q4 k6 align=br", INT64_MIN, -1, -1, 0, 0, 1, 0, RAPT_UNSET},
      {"q4 k4 causal", 0, -1, 0, 1, 1, 0, 1, RAPT_TOP_LEFT},
      {"q1 k1 causal", 0, -1, 0, 1, 1, 1, 1, RAPT_TOP_LEFT},
      {"q1 k9 causal=br", 8, -1, 0, 1, 1, 1, 0, RAPT_BOTTOM_RIGHT},
      {"q1 k9 causal=tl", 0, -1, 0, 1, 1, 0, 0, RAPT_TOP_LEFT},
      {"q2 k9 causal=br", 7, -1, 0, 1, 1, 0, 0, RAPT_BOTTOM_RIGHT},
      {"q9 k2 causal=br", -7, -1, 0, 1, 1, 0, 0, RAPT_BOTTOM_RIGHT},
      {"q4 k4 causal=off:-4611686018427387904", -4611686018427387904, -1, 0, 1, 1, 0, 0, RAPT_OFFSET},
      {"q4 k4 causal=off:4611686018427387904", 4611686018427387904, -1, 0, 1, 1, 1, 0, RAPT_OFFSET},
      {"q4 k4 causal=off:int64", INT64_MIN, -1, 0, 1, 1, 0, 0, RAPT_OFFSET_ARRAY},
      {"q4 k4 causal=br kvlen=int32", INT64_MIN, -1, 0, 1, 1, 0, 0, RAPT_BOTTOM_RIGHT},
      {"q4 k4 causal=tl kvlen=int32", 0, -1, 0, 1, 1, 0, 0, RAPT_TOP_LEFT},
      {"q4 k4 window=-1,-1", INT64_MIN, -1, -1, 0, 0, 1, 1, RAPT_UNSET},
      {"q4 k4 window=-1,0", 0, -1, 0, 1, 1, 0, 1, RAPT_TOP_LEFT},
      {"q4 k4 window=2,0", 0, 2, 0, 1, 1, 0, 1, RAPT_TOP_LEFT},
      {"q4 k4 window=2,5 causal", 0, 2, 0, 1, 1, 0, 1, RAPT_TOP_LEFT},
      {"q4 k4 window=2,-1 causal", 0, 2, 0, 1, 1, 0, 1, RAPT_TOP_LEFT},
      {"q4 k4 window=3,3", 0, 3, 3, 0, 1, 1, 1, RAPT_TOP_LEFT},
      {"q4 k4 window=2,3", 0, 2, 3, 0, 1, 0, 1, RAPT_TOP_LEFT},
      {"q4 k4 window=3,2", 0, 3, 2, 0, 1, 0, 1, RAPT_TOP_LEFT},
      {"q4 k4 window=9223372036854775807,9223372036854775807", 0, INT64_C(3) << 61, INT64_C(3) << 61, 0, 1, 1, 1, RAPT_TOP_LEFT},
      {"q4 k4 alibi=h", 0, -1, -1, 0, 1, 1, 1, RAPT_TOP_LEFT},
      {"q4 k4 mask=bool:1", INT64_MIN, -1, -1, 0, 0, 0, 1, RAPT_UNSET},
      {"q4 k4 bias=fp32:1", INT64_MIN, -1, -1, 0, 0, 0, 1, RAPT_UNSET},
      {"q4 k4 qlen=int32", INT64_MIN, -1, -1, 0, 0, 0, 0, RAPT_UNSET},
      {"q4 k4 packed=int32", INT64_MIN, -1, -1, 0, 0, 0, 0, RAPT_UNSET}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[128] = "fp32 b2 h2 d8 ";
    rapti_request r = request_of(strcat(text, cases[i].options));
    if (r.off != cases[i].off || r.all_visible != cases[i].visible || r.window[0] != cases[i].left) print_error("%s\n", text);
    assert_true(r.off == cases[i].off);
    assert_true(r.window[0] == cases[i].left && r.window[1] == cases[i].right);
    assert_int_equal(r.causal, cases[i].causal);
    assert_int_equal(r.positional, cases[i].positional);
    assert_int_equal(r.all_visible, cases[i].visible);
    assert_int_equal(r.corners_agree, cases[i].agree);
    assert_int_equal(r.cast.alignment, cases[i].alignment);
  }
  assert_false(request_of("fp32 b2 h2 q4 k4 d8 window=-1,-1").cast.has & RAPT_HAS_WINDOW);
}

/* D14 */
static void d14_work_is_counted_without_wrapping(void **state) {
  (void)state;
  rapti_request r = request_of("fp32 b2 h4/2 q8 k6 d16/10");
  assert_true(r.scores == 2 * 4 * 8 * 6 && r.products == r.scores * 26 && !r.needs_grad);
  r = request_of("fp32 b2 h4/2 q8 k6 d16/10 bwd grad=v");
  assert_true(r.products == 3 * r.scores * 26 && r.needs_grad);
  r = request_of("fp32 b2 h4 q8 k6 d16 packed=int32");
  assert_true(r.scores == 4 * 8 * 6);
  r = request_of("fp32 b2 h4 q8 k6 d16 packed=int32,5/3");
  assert_true(r.scores == 4 * 8 * 3);
  r = request_of("fp32 b1 h1 q1099511627776 k1099511627776 d64");
  assert_true(r.scores == UINT64_MAX && r.products == UINT64_MAX);
  assert_true(request_of("fp32 b1 h1 q4 k0 d64").products == 0);
}

static void names_and_policy_stay_with_the_caller(void **state) {
  (void)state;
  rapti_request r = request_of("fp32 b1 h2 q4 k4 d8 autocast=fp32 require=ref prefer=ref forbid=cpu mem=5 sinks=fp32");
  assert_null(r.cast.require);
  assert_null(r.cast.prefer);
  assert_null(r.cast.forbid);
  assert_null(r.cast.origin);
  assert_int_equal(r.autocast, 1);
  assert_int_equal(r.casts, 0);
  assert_false(r.cast.has & RAPT_HAS_AUTOCAST);
  assert_int_equal(r.cast.memory_limit, 5);
  assert_int_equal(r.cast.sinks.size[0], 2);
  rapt_problem again = r.cast;                               /* a resolved problem is a legal problem */
  rapti_request twice;
  rapt_reason why;
  again.flags |= RAPT_WANT_LSE;
  assert_int_equal(make(&again, &twice, &why), RAPT_OK);
}

/* ---- Tensors of a host ---- */

static rapt_tensor tensor(int dtype, int rank, const int64_t *size, const int64_t *stride) {
  rapt_tensor t = {.dtype = dtype, .rank = rank};
  for (int i = 0; i < rank; i++) {
    t.size[i] = size[i];
    t.stride[i] = stride[i];
  }
  return t;
}

static void s3_tensors_of_rank_3_and_4(void **state) {
  (void)state;
  rapt_problem p = RAPT_PROBLEM_INIT;
  const int64_t size[4] = {2, 6, 4, 8}, kv[4] = {2, 3, 5, 8}, value[4] = {2, 3, 5, 7}, stride[4] = {192, 8, 48, 1};
  rapt_tensor q = tensor(RAPT_BF16, 4, size, stride), k = tensor(RAPT_BF16, 4, kv, stride), v = tensor(RAPT_FP16, 4, value, stride);
  p.k.ptr_align = 32;
  assert_int_equal(rapt_problem_set_qkv(&p, &q, &k, &v, NULL), RAPT_OK);
  assert_true(p.B == 2 && p.Hq == 6 && p.Hkv == 3 && p.Sq == 4 && p.Skv == 5 && p.D == 8 && p.Dv == 7);
  assert_int_equal(p.v.dtype, RAPT_FP16);
  assert_int_equal(p.k.ptr_align, 32);
  assert_strides(&p, RAPT_FIELD_Q, 192, 8, 48, 1);
  q = tensor(RAPT_FP32, 3, size + 1, stride + 1);
  k = tensor(RAPT_FP32, 3, kv + 1, stride + 1);
  v = tensor(RAPT_FP32, 3, value + 1, stride + 1);
  assert_int_equal(rapt_problem_set_qkv(&p, &q, &k, &v, NULL), RAPT_OK);
  assert_true(p.B == 1 && p.Hq == 6 && p.Sq == 4 && p.Dv == 7);
  assert_strides(&p, RAPT_FIELD_Q, 0, 8, 48, 1);
}

static void s4_tensors_that_do_not_fit(void **state) {
  (void)state;
  const int64_t size[4] = {2, 6, 4, 8}, stride[4] = {192, 32, 8, 1};
  const struct { int tensor, axis; int64_t value; int code, field; const char *got; } cases[] = {
      {1, 0, 3, RAPT_CODE_SHAPE, RAPT_FIELD_K, "3x6x4x8"}, {1, 3, 9, RAPT_CODE_SHAPE, RAPT_FIELD_K, "2x6x4x9"},
      {2, 0, 1, RAPT_CODE_SHAPE, RAPT_FIELD_V, "1x6x4x8"}, {2, 1, 3, RAPT_CODE_SHAPE, RAPT_FIELD_V, "2x3x4x8"},
      {2, 2, 5, RAPT_CODE_SHAPE, RAPT_FIELD_V, "2x6x5x8"}, {0, 1, 7, RAPT_CODE_HEADS, RAPT_FIELD_K, "6"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rapt_problem p = RAPT_PROBLEM_INIT, before = p;
    rapt_reason why = RAPT_REASON_INIT;
    rapt_tensor t[3];
    for (int j = 0; j < 3; j++) t[j] = tensor(RAPT_FP32, 4, size, stride);
    t[cases[i].tensor].size[cases[i].axis] = cases[i].value;
    assert_int_equal(rapt_problem_set_qkv(&p, &t[0], &t[1], &t[2], &why), RAPT_ARG);
    assert_int_equal(why.code, cases[i].code);
    assert_int_equal(why.field, cases[i].field);
    assert_string_equal(why.got, cases[i].got);
    if (why.code == RAPT_CODE_SHAPE) assert_int_equal(why.axis, cases[i].axis);
    assert_memory_equal(&p, &before, sizeof p);
  }
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_tensor q = tensor(RAPT_FP32, 4, size, stride), k = tensor(RAPT_FP32, 3, size + 1, stride), v = q;
  assert_int_equal(rapt_problem_set_qkv(&p, &q, &k, &v, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_RANK);
  assert_int_equal(why.field, RAPT_FIELD_K);
  assert_string_equal(why.got, "3");
  assert_non_null(strchr(why.want, '4'));
  q.rank = 2;
  assert_int_equal(rapt_problem_set_qkv(&p, &q, &k, &v, &why), RAPT_ARG);
  assert_int_equal(why.field, RAPT_FIELD_Q);
  q.rank = 4;
  k = q;
  k.kind = RAPT_CUDA;
  assert_int_equal(rapt_problem_set_qkv(&p, &q, &k, &v, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_DEVICE);              /* S15 */
  assert_int_equal(rapt_problem_set_qkv(&p, &q, NULL, &v, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_NULL);
  assert_int_equal(why.field, RAPT_FIELD_K);
}

/* M12: right-aligned, missing axes are 1. */
static void m12_masks_and_biases_of_any_rank(void **state) {
  (void)state;
  rapt_problem p = problem_of("fp32 b2 h3 q4 k5 d8");
  rapt_reason why = RAPT_REASON_INIT;
  const int64_t size[4] = {2, 3, 4, 5}, stride[4] = {60, 20, 5, 1};
  for (int rank = 0; rank <= 4; rank++) {
    rapt_tensor mask = tensor(RAPT_BOOL, rank, size + 4 - rank, stride + 4 - rank);
    assert_int_equal(rapt_problem_set_mask(&p, &mask, &why), RAPT_OK);
    for (int i = 0; i < 4; i++) assert_true(p.mask.size[i] == (i < 4 - rank ? 1 : size[i]));
    for (int i = 4 - rank; i < 4; i++) assert_true(p.mask.stride[i] == stride[i]);
  }
  rapt_tensor bias = tensor(RAPT_BF16, 3, size + 1, stride + 1);
  assert_int_equal(rapt_problem_set_bias(&p, &bias, &why), RAPT_OK);
  bias.size[0] = 2;
  assert_int_equal(rapt_problem_set_bias(&p, &bias, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_SHAPE);
  assert_int_equal(why.axis, 0);
  bias.dtype = RAPT_INT32;
  assert_int_equal(rapt_problem_set_bias(&p, &bias, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_BIAS);
  assert_int_equal(rapt_problem_set_mask(&p, &bias, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_MASK);
  assert_string_equal(why.got, "int32");
  bias.rank = 5;
  assert_int_equal(rapt_problem_set_bias(&p, &bias, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_RANK);
}

static void assert_output(const char *text, int which, int dtype, int rank, const int64_t *size, const int64_t *stride) {
  rapt_problem p = problem_of(text);
  rapt_tensor t;
  assert_int_equal(rapt_problem_output(&p, which, &t, NULL), RAPT_OK);
  assert_int_equal(t.dtype, dtype);
  assert_int_equal(t.rank, rank);
  assert_memory_equal(t.size, size, (size_t)rank * sizeof *size);
  assert_memory_equal(t.stride, stride, (size_t)rank * sizeof *stride);
}

/* H2, D19: dense in q's axis order, dtype after the policy. */
static void h2_outputs_follow_q(void **state) {
  (void)state;
  const int64_t size[4] = {2, 3, 4, 6}, bhsd[4] = {72, 24, 6, 1}, bshd[4] = {72, 6, 18, 1}, sbhd[4] = {18, 6, 36, 1};
  const int64_t lse[3] = {2, 3, 4}, lse_strides[3] = {12, 4, 1};
  assert_output("fp32 b2 h3 q4 k5 d8/6", RAPT_FIELD_OUT, RAPT_FP32, 4, size, bhsd);
  assert_output("fp32 b2 h3 q4 k5 d8/6 layout=bshd autocast=bf16", RAPT_FIELD_OUT, RAPT_BF16, 4, size, bshd);
  assert_output("fp16 b2 h3 q4 k5 d8/6 layout=sbhd out=fp32", RAPT_FIELD_OUT, RAPT_FP32, 4, size, sbhd);
  assert_output("fp32 b2 h3 q4 k5 d8/6 q.st=0,8,24,1", RAPT_FIELD_OUT, RAPT_FP32, 4, size, bshd);          /* broadcast batch */
  assert_output("fp16 b2 h3 q4 k5 d8/6 layout=bshd", RAPT_FIELD_LSE, RAPT_FP32, 3, lse, lse_strides);
  const int64_t one[4] = {1, 3, 4, 6};
  assert_output("fp32 b1 h3 q4 k5 d8/6 q.st=3,8,24,1", RAPT_FIELD_OUT, RAPT_FP32, 4, one, bshd);
  const int64_t packed[3] = {4, 3, 6}, packed_strides[3] = {18, 6, 1}, packed_lse[2] = {3, 4}, packed_lse_strides[2] = {4, 1};
  assert_output("fp16 b2 h3 q4 k5 d8/6 packed=int32", RAPT_FIELD_OUT, RAPT_FP16, 3, packed, packed_strides);
  assert_output("fp64 b2 h3 q4 k5 d8/6 packed=int32", RAPT_FIELD_LSE, RAPT_FP64, 2, packed_lse, packed_lse_strides);
  rapt_problem p = problem_of("fp32 b2 h3 q4 k5 d8");
  rapt_tensor t;
  assert_int_equal(rapt_problem_output(&p, RAPT_FIELD_Q, &t, NULL), RAPT_ARG);
  p.Hkv = 2;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_problem_output(&p, RAPT_FIELD_OUT, &t, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_HEADS);
}

static void s8_extents_in_64_bits(void **state) {
  (void)state;
  int64_t low, high;
  const int64_t size[4] = {2, 3, 4, 5}, stride[4] = {100, -20, 5, 1}, none[4] = {2, 0, 4, 5};
  assert_true(rapti_extent(size, stride, &low, &high) && low == -40 && high == 119);
  assert_true(rapti_extent(none, stride, &low, &high) && low == 0 && high == -1);
  const int64_t wide[4] = {1, 1, 3, 2}, far[4] = {INT64_MIN, INT64_MAX, INT64_MAX / 2, 1};
  assert_true(rapti_extent(wide, far, &low, &high) && high == INT64_MAX);
  const int64_t beyond[4] = {1, 1, 3, 3};
  assert_false(rapti_extent(beyond, far, &low, &high));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(e3_each_fault_has_its_code_argument_and_values),
      cmocka_unit_test(s8_sizes_are_not_negative),
      cmocka_unit_test(e7_faults_come_in_a_fixed_order),
      cmocka_unit_test(e6_bits_and_enum_values),
      cmocka_unit_test(e6_fields_without_their_bit),
      cmocka_unit_test(e6_struct_sizes),
      cmocka_unit_test(s9_strides_are_filled_in),
      cmocka_unit_test(s6_empty_calls_are_legal),
      cmocka_unit_test(n3_scale),
      cmocka_unit_test(m2_positions),
      cmocka_unit_test(d14_work_is_counted_without_wrapping),
      cmocka_unit_test(names_and_policy_stay_with_the_caller),
      cmocka_unit_test(s3_tensors_of_rank_3_and_4),
      cmocka_unit_test(s4_tensors_that_do_not_fit),
      cmocka_unit_test(m12_masks_and_biases_of_any_rank),
      cmocka_unit_test(h2_outputs_follow_q),
      cmocka_unit_test(s8_extents_in_64_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
