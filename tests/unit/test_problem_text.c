/* SPDX-License-Identifier: Apache-2.0 */
/* The problem string (docs/api.md section 2): canonical form, round trips, hostile text. */
#include "core/problem.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "common/cm.h"

static const char *const examples[] = {
    "fp32 b1 h12 q128 k128 d64",
    "bf16 b1 h24 q4608 k4608 d128 layout=bshd",
    "fp32/fp32/bf16 b1 h24 q512 k512 d128 autocast=bf16",
    "fp32/fp16/fp16 b1 h32/8 q1 k4096 d128 mixed_kv",
    "bf16 b2 h32/8 q128 k4096 d192/128 causal=br window=1023,0 lse",
    "fp16 b4 h16 q1 k8192 d64 causal=off:int64 kvlen=int32",
    "fp32 b1 h8 q256 k77 d40 mask=bool:1x1x1x77 bias=fp32:1x8x256x77",
    "fp32 b1 h4 q16 k48 d32 align=tl window=7,7 alibi=h softcap=30 sinks=fp32",
    "bf16 b3 h8/2 q512 k700 d64 causal=br packed=int32,200/300",
    "fp32 b2 h4 q64 k64 d32 dropout=0.1 base=0,4,0,0 grad=q,k,v det=batch",
    "bf16 b1 h24 q4608 k4608 d128 gdt=fp32 bwd grad=q,k,v dlse",
    "bf16 b1 h24 q4608 k4608 d128 capture allow=rng dev=cuda prefer=fa2,torch.cudnn",
    "fp32 b1 h2 q8 k8 d16 out=fp32 q.st=4096,16,32,1 ptr=16 scale=-0.25 strict verify=4",
    "fp16 b1 h8 q64 k64 d64 assume_finite mem=1048576 dev=cuda:1 require=sage",
    "fp16 b2 h4 q9 k9 d64 qlen=int32@dev seed=dev forbid=class:flash",
    "fp32 b1 h4 q64 k64 d32 autocast=auto@cpu require=ref",
};
enum { EXAMPLES = sizeof examples / sizeof examples[0], MAX = 4096 };

typedef struct parsed {
  rapt_problem p;
  rapt_reason why;
  rapt_status status;
  char names[MAX];
} parsed;

static parsed parse_bytes(const char *text, size_t len) {
  static parsed r;
  memset(&r, 0, sizeof r);
  r.p.struct_size = (uint32_t)sizeof r.p;
  r.why.struct_size = (uint32_t)sizeof r.why;
  char *exact = malloc(len ? len : 1);                       /* no byte behind the text may be read */
  memcpy(exact, text, len);
  r.status = rapt_problem_parse(exact, len, &r.p, r.names, sizeof r.names, &r.why);
  free(exact);
  return r;
}

static parsed parse(const char *text) { return parse_bytes(text, strlen(text)); }

/* The copy of the result moved its names. */
static const char *format(parsed *r) {
  static char buf[2 * MAX];
  const char **const lists[] = {&r->p.require, &r->p.prefer, &r->p.forbid};
  static char storage[3][MAX];
  for (int i = 0; i < 3; i++) {
    if (!*lists[i]) continue;
    snprintf(storage[i], MAX, "%s", *lists[i]);
    *lists[i] = storage[i];
  }
  size_t n = rapt_problem_format(&r->p, buf, sizeof buf);
  assert_int_equal(n, strlen(buf));
  return buf;
}

static void assert_canonical(const char *text, const char *canonical) {
  parsed r = parse(text);
  if (r.status) print_error("%s: byte %s, expected %s\n", text, r.why.got, r.why.want);
  assert_int_equal(r.status, RAPT_OK);
  assert_string_equal(format(&r), canonical);
}

static void s8_examples_are_canonical(void **state) {
  (void)state;
  for (int i = 0; i < EXAMPLES; i++) assert_canonical(examples[i], examples[i]);
}

static void other_spellings_become_canonical(void **state) {
  (void)state;
  static const char *const pairs[][2] = {
      {"  fp32\tk128 q128  b1 d64/64 h12/12\t", "fp32 b1 h12 q128 k128 d64"},
      {"fp32/fp32/fp32 b1 h12 q128 k128 d64", "fp32 b1 h12 q128 k128 d64"},
      {"fp32 b1 h12 q128 k128 d64 layout=bhsd softcap=0 dropout=0 window=-1,-1 align=br", "fp32 b1 h12 q128 k128 d64"},
      {"fp32 b1 h2 q4 k4 d8 q.st=64,32,8,1 k.st=0,32,8,1", "fp32 b1 h2 q4 k4 d8"},   /* dense; B = 1 does not count */
      {"fp32 b2 h2 q4 k4 d8 q.st=bshd k.st=bshd v.st=bshd out.st=bshd", "fp32 b2 h2 q4 k4 d8 layout=bshd"},
      {"fp32 b2 h2 q4 k4 d8 q.st=64,8,16,1 k.st=bshd v.st=bshd out.st=bshd", "fp32 b2 h2 q4 k4 d8 layout=bshd"},
      {"fp32 b2 h2 q4 k4 d8 layout=bshd k.st=bhsd", "fp32 b2 h2 q4 k4 d8 q.st=bshd v.st=bshd out.st=bshd"},
      {"fp32 b2 h2 q4 k4 d8 layout=sbhd lse", "fp32 b2 h2 q4 k4 d8 layout=sbhd lse"},
      {"fp32 b2 h2 q4 k4 d8 lse lse.st=8,1,2", "fp32 b2 h2 q4 k4 d8 lse.st=bshd lse"},
      {"fp32 b1 h2 q4 k4 d8 q.st=7,8,16,1", "fp32 b1 h2 q4 k4 d8 q.st=7,8,16,1"},
      {"fp32 b1 h2 q4 k4 d8 q.st=7,8,16,1 k.st=bshd v.st=0,8,16,1 out.st=bshd", "fp32 b1 h2 q4 k4 d8 layout=bshd"},
      {"fp32 b2 h1 q4 k4 d8 layout=bshd", "fp32 b2 h1 q4 k4 d8"},                     /* one head: both orders agree */
      {"fp32 b2 h2 q4 k4 d8 q.ptr=64 k.ptr=64 v.ptr=64 out.ptr=64", "fp32 b2 h2 q4 k4 d8 ptr=64"},
      {"fp32 b2 h2 q4 k4 d8 ptr=64 k.ptr=32", "fp32 b2 h2 q4 k4 d8 q.ptr=64 k.ptr=32 v.ptr=64 out.ptr=64"},
      {"fp32 b1 h2 q4 k4 d8 mask=bool:4 bias=bf16:2x1x4", "fp32 b1 h2 q4 k4 d8 mask=bool:1x1x1x4 bias=bf16:1x2x1x4"},
      {"fp32 b1 h2 q4 k5 d8 causal align=br", "fp32 b1 h2 q4 k5 d8 causal=br"},
      {"fp32 b1 h2 q4 k5 d8 causal=off:-3", "fp32 b1 h2 q4 k5 d8 causal=off:-3"},
      {"fp32 b1 h2 q4 k5 d8 align=off:int64@dev alibi=bh", "fp32 b1 h2 q4 k5 d8 align=off:int64@dev alibi=h"},
      {"fp32 b2 h2 q4 k5 d8 align=tl alibi=bh", "fp32 b2 h2 q4 k5 d8 align=tl alibi=bh"},
      {"fp32 b2 h2 q4 k4 d8 allow=rng,approx,reduced grad=v,q", "fp32 b2 h2 q4 k4 d8 grad=q,v allow=approx,reduced,rng"},
      {"fp32 b2 h2 q4 k4 d8 forbid=ref,cpu,ref require=cpu.scalar,cpu prefer=ref,cpu",
       "fp32 b2 h2 q4 k4 d8 require=cpu,cpu.scalar prefer=ref,cpu forbid=cpu,ref"},
      {"fp32 b2 h2 q4 k4 d8 sinks=bf16:2", "fp32 b2 h2 q4 k4 d8 sinks=bf16"},
      {"fp32 b2 h2 q4 k4 d8 sinks=bf16:3", "fp32 b2 h2 q4 k4 d8 sinks=bf16:3"},
      {"fp32 b2 h2 q4 k4 d8 scale=0", "fp32 b2 h2 q4 k4 d8 scale=0"},                 /* N3: a given zero stays */
      {"fp32 b2 h2 q4 k4 d8 scale=1e-1 softcap=3e1", "fp32 b2 h2 q4 k4 d8 softcap=30 scale=0.1"},
      {"fp32 b2 h2 q4 k4 d8 scale=-inf softcap=nan", "fp32 b2 h2 q4 k4 d8 softcap=nan scale=-inf"},
      {"fp32 b2 h2 q4 k4 d8 autocast=auto", "fp32 b2 h2 q4 k4 d8 autocast=auto@cpu"},
      {"fp32 b2 h2 q4 k4 d8 autocast=bf16@cpu", "fp32 b2 h2 q4 k4 d8 autocast=bf16"},
      {"fp32 b2 h2 q4 k4 d8 dev=cuda autocast=bf16@cpu", "fp32 b2 h2 q4 k4 d8 autocast=bf16@cpu dev=cuda"},
      {"fp32 b2 h2 q4 k4 d8 dev=cpu:0 det=threads", "fp32 b2 h2 q4 k4 d8 det=threads"},
      {"fp32 b2 h2 q6 k7 d8 packed=int64@dev layout=hsd", "fp32 b2 h2 q6 k7 d8 layout=hsd packed=int64@dev"},
      {"fp32 b2 h2 q6 k7 d8 packed=int32 q.st=8,48,1 lse lse.st=1,2", "fp32 b2 h2 q6 k7 d8 q.st=hsd lse.st=shd packed=int32 lse"},
      {"fp32 b2 h2 q6 k7 d8 packed=int32 layout=shd", "fp32 b2 h2 q6 k7 d8 packed=int32"},
      {"int8 b2 h4/3 q4 k4 d8 mem=-1", "int8 b2 h4/3 q4 k4 d8 mem=-1"},               /* illegal calls can be said */
  };
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    assert_canonical(pairs[i][0], pairs[i][1]);
    assert_canonical(pairs[i][1], pairs[i][1]);
  }
}

/* Section 6: aliases become ids, or the prefix that means the same rows; prefer keeps its order. */
static void aliases_become_ids(void **state) {
  (void)state;
  static const char *const pairs[][2] = {
      {"reference", "ref"}, {"flash2", "fa2"}, {"flash_attention_2", "fa2"}, {"sage", "sage"}, {"_native_flash", "torch.flash"},
      {"flash_hub", "hub.fa2"}, {"torch_sdpa", "torch.sdpa"}, {"class:fused", "class:fused"}, {"no_such_name", "no_such_name"},
      {"flash4,reference,cpu.avx2", "fa4,ref,cpu.avx2"}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    char text[128], canonical[128];
    snprintf(text, sizeof text, "fp32 b2 h2 q4 k4 d8 prefer=%s", pairs[i][0]);
    snprintf(canonical, sizeof canonical, "fp32 b2 h2 q4 k4 d8 prefer=%s", pairs[i][1]);
    assert_canonical(text, canonical);
  }
  assert_canonical("fp32 b2 h2 q4 k4 d8 require=reference,flash2,fa2", "fp32 b2 h2 q4 k4 d8 require=fa2,ref");
}

static void fields_land_where_they_belong(void **state) {
  (void)state;
  parsed r = parse("bf16/fp16/fp16 b2 h32/8 q128 k4096 d192/128 causal=off:-7 window=1023,0 lse mixed_kv dev=cuda:3 mem=12");
  assert_int_equal(r.status, RAPT_OK);
  assert_int_equal(r.p.q.dtype, RAPT_BF16);
  assert_int_equal(r.p.v.dtype, RAPT_FP16);
  assert_int_equal(r.p.Hkv, 8);
  assert_int_equal(r.p.Dv, 128);
  assert_int_equal(r.p.q_offset, -7);
  assert_int_equal(r.p.alignment, RAPT_OFFSET);
  assert_int_equal(r.p.window[0], 1023);
  assert_int_equal(r.p.device_index, 3);
  assert_int_equal(r.p.memory_limit, 12);
  assert_int_equal(r.p.has, RAPT_HAS_WINDOW | RAPT_HAS_MEMORY_LIMIT);
  assert_int_equal(r.p.flags, RAPT_CAUSAL | RAPT_WANT_LSE | RAPT_MIXED_KV);
  r = parse("fp16 b2 h4 q6 k7 d8 layout=bshd bias=fp32:2x4x6x7 packed=int32");
  assert_int_equal(r.status, RAPT_ARG);                      /* packed tensors have no batch axis */
  r = parse("fp16 b2 h4 q6 k7 d8 layout=bshd bias=fp32:2x4x6x7");
  assert_int_equal(r.status, RAPT_OK);
  assert_int_equal(r.p.bias.stride[1], 7);                   /* layout= speaks of all tensors */
  assert_int_equal(r.p.q.stride[2], 32);
}

/* SYNTAX names the byte, UNKNOWN_FIELD the key (section 3). */
static void e6_faults_name_the_byte_or_the_key(void **state) {
  (void)state;
  static const struct { const char *text; int code, byte; } cases[] = {
      {"", RAPT_CODE_SYNTAX, 0}, {"   ", RAPT_CODE_SYNTAX, 3}, {"fp33 b1", RAPT_CODE_SYNTAX, 0},
      {"fp32/fp16 b1 h1 q1 k1 d1", RAPT_CODE_SYNTAX, 9}, {"fp32/fp16/fp16/fp16 b1", RAPT_CODE_SYNTAX, 15},
      {"fp32 b1 h1 q1 k1", RAPT_CODE_SYNTAX, 16}, {"fp32 b1 b1 h1 q1 k1 d1", RAPT_CODE_SYNTAX, 8},
      {"fp32 b1 h1 q1 k1 d1 lse lse", RAPT_CODE_SYNTAX, 24}, {"fp32 b1 h1 q1 k1 d1 lse=1", RAPT_CODE_SYNTAX, 23},
      {"fp32 b1 h1 q1 k1 d1 mask", RAPT_CODE_SYNTAX, 24}, {"fp32 b1 h1 q1 k1 d1 mask=bool", RAPT_CODE_SYNTAX, 29},
      {"fp32 b1 h1 q1 k1 d1 mask=bool:1x1x1x1x1", RAPT_CODE_SYNTAX, 30},
      {"fp32 b1 h1 q1 k1 d1 mask=bool:1xx1", RAPT_CODE_SYNTAX, 32}, {"fp32 b1/1 h1 q1 k1 d1", RAPT_CODE_SYNTAX, 8},
      {"fp32 b-1 h1 q1 k1 d1", RAPT_CODE_SYNTAX, 6}, {"fp32 b1 h1 q1 k-1 d1", RAPT_CODE_SYNTAX, 15},
      {"fp32 b1 h1/-1 q1 k1 d1", RAPT_CODE_SYNTAX, 11}, {"fp32 b1 h1 q1 k1 d1/-0", RAPT_CODE_SYNTAX, 20},
      {"fp32 b1x h1 q1 k1 d1", RAPT_CODE_SYNTAX, 6}, {"fp32 b1 h1/ q1 k1 d1", RAPT_CODE_SYNTAX, 11},
      {"fp32 b99999999999999999999 h1 q1 k1 d1", RAPT_CODE_SYNTAX, 6}, {"fp32 b1 h1 q1 k1 d1 window=1", RAPT_CODE_SYNTAX, 28},
      {"fp32 b1 h1 q1 k1 d1 window=1,2,3", RAPT_CODE_SYNTAX, 31}, {"fp32 b1 h1 q1 k1 d1 scale=0,5", RAPT_CODE_SYNTAX, 26},
      {"fp32 b1 h1 q1 k1 d1 causal=", RAPT_CODE_SYNTAX, 27}, {"fp32 b1 h1 q1 k1 d1 causal=off:", RAPT_CODE_SYNTAX, 31},
      {"fp32 b1 h1 q1 k1 d1 causal=tl align=br", RAPT_CODE_SYNTAX, 36},
      {"fp32 b1 h1 q1 k1 d1 grad=q,q", RAPT_CODE_SYNTAX, 27}, {"fp32 b1 h1 q1 k1 d1 det=none", RAPT_CODE_SYNTAX, 24},
      {"fp32 b1 h1 q1 k1 d1 require=", RAPT_CODE_SYNTAX, 28}, {"fp32 b1 h1 q1 k1 d1 require=a,,b", RAPT_CODE_SYNTAX, 30},
      {"fp32 b1 h1 q1 k1 d1 require=Fa2", RAPT_CODE_SYNTAX, 28}, {"fp32 b1 h1 q1 k1 d1 layout=shd", RAPT_CODE_SYNTAX, 27},
      {"fp32 b1 h1 q1 k1 d1 packed=int32 layout=bhsd", RAPT_CODE_SYNTAX, 40},
      {"fp32 b1 h1 q1 k1 d1 q.st=1,2,3", RAPT_CODE_SYNTAX, 30}, {"fp32 b1 h1 q1 k1 d1 lse lse.st=1,2,3,4", RAPT_CODE_SYNTAX, 37},
      {"fp32 b1 h1 q1 k1 d1 qlen=int32 kvlen=int32@dev", RAPT_CODE_SYNTAX, 46},
      {"fp32 b1 h1 q1 k1 d1 qlen=int16", RAPT_CODE_SYNTAX, 25}, {"fp32 b1 h1 q1 k1 d1 autocast=auto@gpu", RAPT_CODE_SYNTAX, 34},
      {"fp32 b1 h1 q1 k1 d1 Causal", RAPT_CODE_UNKNOWN_FIELD, 20}, {"fp32 b1 h1 q1 k1 d1 dropuot=0.1", RAPT_CODE_UNKNOWN_FIELD, 20},
      {"fp32 b1 h1 q1 k1 d1 sinks.st=1", RAPT_CODE_UNKNOWN_FIELD, 20}, {"fp32 b1 h1 q1 k1 d1 q.size=1", RAPT_CODE_UNKNOWN_FIELD, 20},
      {"fp32 b1 h1 q1 k1 d1 =", RAPT_CODE_UNKNOWN_FIELD, 20}, {"fp32 b=1 h1 q1 k1 d1", RAPT_CODE_UNKNOWN_FIELD, 5},
      {"fp32 b1 h1 q1 k1 d1\nlse", RAPT_CODE_SYNTAX, 18},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    parsed r = parse(cases[i].text);
    if (r.why.index != cases[i].byte) print_error("%s: byte %s, expected %s\n", cases[i].text, r.why.got, r.why.want);
    assert_int_equal(r.status, RAPT_ARG);
    assert_int_equal(r.why.code, cases[i].code);
    assert_int_equal(r.why.index, cases[i].byte);
    assert_int_equal(r.p.q.dtype, RAPT_NONE);                /* nothing was written */
  }
  parsed r = parse("fp32 b1 h1 q1 k1 d1 dropuot=0.1");
  assert_string_equal(r.why.got, "dropuot");
  assert_string_equal(r.why.want, "the nearest key is dropout");
  assert_string_equal(parse("fp32 b1 h1 q1 k1 d1 bogus").why.want,
                      "keys are b, h, q, k, d, out, gdt, layout, ptr, mask, bias, causal, align, window, qlen, kvlen, packed, alibi, "
                      "softcap, sinks, scale, dropout, and more");
  assert_string_equal(parse("fp32 b=1 h1 q1 k1 d1").why.want, "a size follows its letter, as in b1");
  assert_string_equal(parse("fp32 b1 h1 q1 k1 d1 window=1").why.got, "window=1");     /* SYNTAX shows the word */
  assert_string_equal(parse("fp32 b1 q1").why.want, "h, k, d as well");
}

static void hostile_lengths_and_bytes(void **state) {
  (void)state;
  static char text[MAX + 2];
  memset(text, ' ', sizeof text);
  memcpy(text, examples[0], strlen(examples[0]));
  assert_int_equal(parse_bytes(text, MAX).status, RAPT_OK);
  parsed r = parse_bytes(text, MAX + 1);
  assert_int_equal(r.status, RAPT_ARG);
  assert_int_equal(r.why.code, RAPT_CODE_SYNTAX);
  assert_int_equal(r.why.index, MAX);
  memset(text, ',', sizeof text);                            /* as many names as fit */
  size_t head = (size_t)snprintf(text, sizeof text, "%s forbid=", examples[0]);
  for (size_t i = 0; head + 2 * i < MAX; i++) text[head + 2 * i] = (char)('a' + 25 - i % 26);
  text[MAX - 1] = 'b';
  r = parse_bytes(text, MAX);
  assert_int_equal(r.status, RAPT_OK);
  const char *canonical = strstr(format(&r), "forbid=");
  assert_memory_equal(canonical, "forbid=a,b,c,d,e,f,", 19);
  assert_in_range(strlen(canonical), strlen("forbid=") + 51, strlen("forbid=") + 54);
  assert_int_equal(parse_bytes("fp32 b1 h1 q1 k1 d1 ls\0", 23).why.code, RAPT_CODE_UNKNOWN_FIELD);
  assert_int_equal(parse_bytes("fp32\0b1", 7).why.code, RAPT_CODE_SYNTAX);
}

static void names_need_storage_of_the_caller(void **state) {
  (void)state;
  const char *text = "fp32 b1 h1 q1 k1 d1 require=ab prefer=cd forbid=ef";
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  char names[9];
  assert_int_equal(rapt_problem_parse(text, strlen(text), &p, NULL, 0, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_NULL);
  assert_int_equal(rapt_problem_parse(text, strlen(text), &p, names, 8, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_NULL);
  assert_int_equal(why.field, RAPT_FIELD_FORBID);
  assert_int_equal(rapt_problem_parse(text, strlen(text), &p, names, 9, &why), RAPT_OK);
  assert_string_equal(p.require, "ab");
  assert_string_equal(p.prefer, "cd");
  assert_string_equal(p.forbid, "ef");
  assert_int_equal(rapt_problem_parse(examples[0], strlen(examples[0]), &p, NULL, 0, NULL), RAPT_OK);
  assert_null(p.require);
  assert_int_equal(rapt_problem_parse(NULL, 0, &p, NULL, 0, &why), RAPT_ARG);
  p.struct_size = 8;
  assert_int_equal(rapt_problem_parse(examples[0], 4, &p, NULL, 0, &why), RAPT_ABI);
}

static void e7_format_cuts_and_counts(void **state) {
  (void)state;
  for (int i = 0; i < EXAMPLES; i++) {
    parsed r = parse(examples[i]);
    char whole[256];
    snprintf(whole, sizeof whole, "%s", format(&r));
    for (size_t n = 0; n <= strlen(whole) + 1; n++) {
      char buf[256];
      memset(buf, '#', sizeof buf);
      assert_int_equal(rapt_problem_format(&r.p, buf, n), strlen(whole));
      if (n) assert_int_equal(strlen(buf), n - 1);
      if (n) assert_memory_equal(buf, whole, n - 1);
      assert_int_equal(buf[n], '#');
    }
  }
}

/* Mutations of the examples: no crash, and whatever parses has one canonical form that parses to itself. */
static void fuzz_parse_format_parse_is_stable(void **state) {
  (void)state;
  uint64_t x = 0x2545f4914f6cdd1du;
  int accepted = 0;
  for (int round = 0; round < 30000; round++) {
    char text[512], canonical[2 * MAX];
    const char *base = examples[round % EXAMPLES], *other = examples[(round / EXAMPLES) % EXAMPLES];
    int n = snprintf(text, 256, "%s", base);
    for (int edits = 1 + round % 4; edits > 0; edits--) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      size_t at = (size_t)(x >> 8) % (size_t)n;
      static const char bytes[] = " 0123456789-/=,:.x@bhqkdelsf\t\xff\0";
      switch (x % 5) {
        case 0: text[at] = bytes[(x >> 40) % (sizeof bytes - 1)]; break;
        case 1: memmove(text + at, text + at + 1, (size_t)n - at); n--; break;
        case 2: memmove(text + at + 1, text + at, (size_t)n - at); text[at] = bytes[(x >> 40) % (sizeof bytes - 1)]; n++; break;
        case 3: {                                            /* a token of another example at the end */
          const char *token = strchr(other + (x >> 40) % 20, ' ');
          size_t length = token ? 1 + strcspn(token + 1, " ") : 0;
          if ((size_t)n + length < 400 && length) memcpy(text + n, token, length), n += (int)length;
          break;
        }
        default: text[at] = (char)(x >> 32); break;
      }
      if (n < 1) n = 1;
    }
    parsed r = parse_bytes(text, (size_t)n);
    if (r.status) continue;
    accepted++;
    snprintf(canonical, sizeof canonical, "%s", format(&r));
    assert_canonical(canonical, canonical);
  }
  print_message("%d of 30000 mutations were legal\n", accepted);
  assert_true(accepted > 500);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(s8_examples_are_canonical),
      cmocka_unit_test(other_spellings_become_canonical),
      cmocka_unit_test(aliases_become_ids),
      cmocka_unit_test(fields_land_where_they_belong),
      cmocka_unit_test(e6_faults_name_the_byte_or_the_key),
      cmocka_unit_test(hostile_lengths_and_bytes),
      cmocka_unit_test(names_need_storage_of_the_caller),
      cmocka_unit_test(e7_format_cuts_and_counts),
      cmocka_unit_test(fuzz_parse_format_parse_is_stable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
