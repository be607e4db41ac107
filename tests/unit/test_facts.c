/* SPDX-License-Identifier: Apache-2.0 */
/* The facts string (docs/api.md section 2), versions, facts as JSON (D2, D4, R6). */
#include "core/core.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cm.h"

static rapt_status parse(const char *text, size_t len, rapt_facts *f, rapt_reason *why) {
  char *exact = malloc(len ? len : 1);
  memcpy(exact, text, len);
  rapt_status status = rapti_facts_parse(exact, len, f, why);
  free(exact);
  return status;
}

static void assert_canonical(const char *text, const char *canonical) {
  rapt_facts f;
  rapt_reason why = RAPT_REASON_INIT;
  char buf[4096];
  rapt_status status = parse(text, strlen(text), &f, &why);
  if (status) print_error("%s: byte %s, expected %s\n", text, why.got, why.want);
  assert_int_equal(status, RAPT_OK);
  assert_int_equal(f.what_if, 1);
  assert_int_equal(rapti_facts_format(&f, buf, sizeof buf), strlen(canonical));
  assert_string_equal(buf, canonical);
}

static void d4_facts_have_one_canonical_string(void **state) {
  (void)state;
  static const char *const pairs[][2] = {
      {"cpu isa=avx2 threads=2 torch=2.13.0", "cpu isa=avx2 threads=2 torch=2.13.0"},
      {"cuda cc=9.0 torch=2.13.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0 cudnn=9.12.0 sageattention=none",
       "cuda cc=9.0 torch=2.13.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0 sageattention=none cudnn=9.12.0"},
      {"hip arch=gfx942 aiter=0.1.9", "hip arch=gfx942 aiter=0.1.9"},
      {" meta\t", "meta"},
      {"cuda mem=85899345920 flash-attn.has=b,a,b flash-attn.cc=9.0,8.0,9.0 flash-attn=broken python=3.13 cc=10.3",
       "cuda cc=10.3 mem=85899345920 flash-attn=broken flash-attn.cc=8.0,9.0 flash-attn.has=a,b python=3.13"},
      {"cpu torch=2.14.0.dev20260101+cpu.with.a.long.local.part", "cpu torch=2.14.0.dev20260101"},
  };
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
    assert_canonical(pairs[i][0], pairs[i][1]);
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
    assert_canonical(pairs[i][1], pairs[i][1]);
}

static void d4_what_is_not_said_is_missing(void **state) {
  (void)state;
  rapt_facts f;
  const char *text = "cuda torch=none flash-attn=broken cudnn.cc=9.0";
  assert_int_equal(rapti_facts_parse(text, strlen(text), &f, NULL), RAPT_OK);
  assert_int_equal(f.kind, RAPT_CUDA);
  assert_int_equal(f.cc, -1);
  assert_int_equal(f.isa, -1);
  assert_int_equal(f.threads, -1);
  assert_true(f.mem == -1);
  assert_int_equal(f.package[rapti_package_find("torch", 5)].presence, RAPTI_ABSENT);
  assert_int_equal(f.package[rapti_package_find("flash-attn", 10)].presence, RAPTI_BROKEN);
  const rapti_package *cudnn = &f.package[rapti_package_find("cudnn", 5)];
  assert_int_equal(cudnn->presence, RAPTI_MISSING);
  assert_int_equal(cudnn->n_cc, 1);
  assert_int_equal(cudnn->cc[0], 0x900);
  assert_int_equal(f.package[rapti_package_find("jax", 3)].n_cc, -1);
  assert_string_equal(rapt_facts_get(&f, "torch"), "none");
  assert_string_equal(rapt_facts_get(&f, "cudnn.cc"), "9.0");
  assert_null(rapt_facts_get(&f, "cudnn"));
  assert_null(rapt_facts_get(&f, "cc"));
  assert_null(rapt_facts_get(&f, "no-such-key"));
}

static void e6_faults_name_the_byte_or_the_key(void **state) {
  (void)state;
  static const struct { const char *text; int code, byte; } cases[] = {
      {"", RAPT_CODE_SYNTAX, 0}, {"gpu cc=9.0", RAPT_CODE_SYNTAX, 0}, {"  gpu", RAPT_CODE_SYNTAX, 2},
      {"cuda cc", RAPT_CODE_SYNTAX, 5}, {"cuda cc=9", RAPT_CODE_SYNTAX, 8}, {"cuda cc=9.x", RAPT_CODE_SYNTAX, 8},
      {"cuda cc=9.0 cc=9.0", RAPT_CODE_SYNTAX, 12}, {"cpu threads=0", RAPT_CODE_SYNTAX, 12},
      {"cpu threads=4294967297", RAPT_CODE_SYNTAX, 12}, {"cpu isa=sse", RAPT_CODE_SYNTAX, 8}, {"cpu mem=-1", RAPT_CODE_SYNTAX, 8},
      {"cpu torch=", RAPT_CODE_SYNTAX, 10}, {"cpu torch=new", RAPT_CODE_SYNTAX, 10},
      {"cpu torch=2.13.0.with.a.long.suffix.here", RAPT_CODE_SYNTAX, 10}, {"cpu torch.has=a,,b", RAPT_CODE_SYNTAX, 14},
      {"cpu torch.cc=8.0,", RAPT_CODE_SYNTAX, 13}, {"cpu tensorflow=1.0", RAPT_CODE_UNKNOWN_FIELD, 4},
      {"cpu torch.size=1", RAPT_CODE_UNKNOWN_FIELD, 4}, {"cpu =1", RAPT_CODE_UNKNOWN_FIELD, 4}, {"cpu .cc=1.0", RAPT_CODE_UNKNOWN_FIELD, 4},
      {"hip arch=gfx942-much-too-long", RAPT_CODE_SYNTAX, 9},
      {"cuda arch=sm90", RAPT_CODE_SYNTAX, 5}, {"cpu arch=gfx942", RAPT_CODE_SYNTAX, 4}, {"hip cc=9.0", RAPT_CODE_SYNTAX, 4},
      {"xpu cc=9.0", RAPT_CODE_SYNTAX, 4}, {"cuda:sm90", RAPT_CODE_SYNTAX, 4}, {" hip:gfx942 aiter=0.1", RAPT_CODE_SYNTAX, 4}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rapt_facts f;
    rapt_reason why = RAPT_REASON_INIT;
    memset(&f, 0x55, sizeof f);
    assert_int_equal(parse(cases[i].text, strlen(cases[i].text), &f, &why), RAPT_ARG);
    if (why.index != cases[i].byte) print_error("%s: %s %s\n", cases[i].text, why.got, why.want);
    assert_int_equal(why.code, cases[i].code);
    assert_int_equal(why.field, RAPT_FIELD_FACTS);
    assert_int_equal(why.index, cases[i].byte);
    assert_int_equal(f.kind, 0x55555555);                    /* nothing was written */
  }
}

/* SYNTAX shows the word that is wrong and what to write for it. */
static void e3_faults_show_the_word(void **state) {
  (void)state;
  static const struct { const char *text, *got, *want; } cases[] = {
      {"cuda:sm90", "cuda:sm90", "\"cuda cc=9.0\""}, {"cuda:sm120 torch=2.9", "cuda:sm120", "\"cuda cc=12.0\""},
      {"cuda:new", "cuda:new", "\"cuda\" and then key=value"}, {"hip:gfx942", "hip:gfx942", "\"hip arch=gfx942\""},
      {"hip:\033[m", "hip:?[m", "\"hip\" and then key=value"}, {"cpu:", "cpu:", "\"cpu\" and then key=value"},
      {"cuda arch=sm90", "arch=sm90", "cc=MAJOR.MINOR, as in cc=9.0"}, {"cuda cc=9", "cc=9", "a generation such as 9.0"},
      {"cpu tourch=2", "tourch", "the nearest key is torch"}, {"", "", "a device kind first, such as cpu or cuda"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rapt_facts f;
    rapt_reason why = RAPT_REASON_INIT;
    assert_int_equal(parse(cases[i].text, strlen(cases[i].text), &f, &why), RAPT_ARG);
    assert_string_equal(why.got, cases[i].got);
    assert_string_equal(why.want, cases[i].want);
  }
}

static void versions_order_as_people_read_them(void **state) {
  (void)state;
  static const char *const rising[] = {"0.0.35", "0.1.9", "2.8", "2.8.3", "2.8.3.1", "2.9.0", "2.10.0", "9.12.0", "10.0"};
  for (size_t i = 1; i < sizeof rising / sizeof rising[0]; i++)
    assert_true(rapti_version_pack(rising[i - 1], strlen(rising[i - 1]), NULL) <
                rapti_version_pack(rising[i], strlen(rising[i]), NULL));
  static const struct { const char *text, *plain; int beta; } cases[] = {
      {"3.0.0b1", "3.0.0", 1}, {"2.13.0+cpu", "2.13.0", 0}, {"2.13.0a0+git12", "2.13.0", 1}, {"1.0.post1", "1.0", 0},
      {"2.14.0.dev20260101", "2.14.0", 1}, {"1.0.0-rc1", "1.0.0", 1}, {"9.12.0", "9.12", 0}, {"1.0.post1.dev2", "1.0", 1}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    int32_t beta;
    uint64_t version = rapti_version_pack(cases[i].text, strlen(cases[i].text), &beta);
    assert_true(version != 0 && version == rapti_version_pack(cases[i].plain, strlen(cases[i].plain), NULL));
    assert_int_equal(beta, cases[i].beta);
  }
  static const char *const bad[] = {"", "x", ".1", "1.2.3.4.5", "65536", "1 2", "v1.0", "1.0/2"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_true(rapti_version_pack(bad[i], strlen(bad[i]), NULL) == 0);
}

/* D2: only a probe adds facts, and what it adds can be read back and shown. */
static void d2_a_probe_adds_facts(void **state) {
  (void)state;
  rapt_facts f;
  char buf[256];
  rapti_facts_init(&f, RAPT_CUDA);
  assert_int_equal(rapt_facts_set(&f, "torch", "2.13.0"), RAPT_ARG);
  f.open = 1;
  assert_int_equal(rapt_facts_set(&f, "torch", "2.13.0"), RAPT_OK);
  assert_int_equal(rapt_facts_set(&f, "cc", "9.0"), RAPT_OK);
  assert_int_equal(rapt_facts_set(&f, "mem", "85899345920"), RAPT_OK);
  assert_int_equal(rapt_facts_set(&f, "cc", "nine"), RAPT_ARG);
  assert_int_equal(rapt_facts_set(&f, "no-such-key", "1"), RAPT_ARG);
  assert_int_equal(rapt_facts_set(&f, NULL, "1"), RAPT_ARG);
  assert_string_equal(rapt_facts_get(&f, "cc"), "9.0");
  assert_string_equal(rapt_facts_get(&f, "mem"), "85899345920");
  f.threads = 4;                                             /* the context writes numbers */
  rapti_facts_format(&f, buf, sizeof buf);
  assert_string_equal(buf, "cuda cc=9.0 threads=4 mem=85899345920 torch=2.13.0");
  rapti_facts_texts(&f);
  assert_string_equal(rapt_facts_get(&f, "threads"), "4");
}

static void r6_facts_as_json(void **state) {
  (void)state;
  rapt_facts f;
  char buf[4096];
  const char *text = "cuda cc=9.0 isa=avx2 flash-attn=2.8.3 flash-attn.cc=8.0,9.0 jax.has=cudnn,x";
  assert_int_equal(rapti_facts_parse(text, strlen(text), &f, NULL), RAPT_OK);
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  rapti_facts_json(&f, &t);
  assert_string_equal(buf, "{\"schema\":\"rapt.facts/1\",\"device\":{\"kind\":\"cuda\",\"cc\":\"9.0\",\"arch\":null,\"mem\":null},"
                           "\"cpu\":{\"isa\":\"avx2\",\"threads\":null},\"packages\":{\"flash-attn\":{\"version\":\"2.8.3\","
                           "\"cc\":[\"8.0\",\"9.0\"],\"has\":null},\"jax\":{\"version\":null,\"cc\":null,\"has\":[\"cudnn\",\"x\"]}}}");
  json_t *parsed = json_loads(buf, JSON_REJECT_DUPLICATES, NULL);
  assert_non_null(parsed);
  json_decref(parsed);
}

/* Mutations: no crash, and what parses has one canonical string. */
static void fuzz_parse_format_parse_is_stable(void **state) {
  (void)state;
  static const char *const examples[] = {"cpu isa=avx2 threads=2 torch=2.13.0", "hip arch=gfx942 aiter=0.1.9 mem=12",
                                         "cuda cc=9.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0 jax=none jax.has=a,b"};
  static const char bytes[] = " 0123456789.,=-+abctorx\t\xff\0";
  uint64_t x = 0x2545f4914f6cdd1du;
  int accepted = 0;
  for (int round = 0; round < 20000; round++) {
    char text[128], first[4096];
    rapt_facts f;
    size_t n = (size_t)snprintf(text, sizeof text, "%s", examples[round % 3]);
    for (int edits = 1 + round % 3; edits > 0; edits--) {
      x ^= x << 13;
      x ^= x >> 7;
      x ^= x << 17;
      size_t at = (size_t)(x >> 8) % n;
      if (x & 1) text[at] = bytes[(x >> 40) % (sizeof bytes - 1)];
      else memmove(text + at, text + at + 1, n - at), n -= n > 1;
    }
    if (parse(text, n, &f, NULL)) continue;
    accepted++;
    rapti_facts_format(&f, first, sizeof first);
    assert_canonical(first, first);
  }
  assert_true(accepted > 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(d4_facts_have_one_canonical_string),
      cmocka_unit_test(d4_what_is_not_said_is_missing),
      cmocka_unit_test(e6_faults_name_the_byte_or_the_key),
      cmocka_unit_test(e3_faults_show_the_word), cmocka_unit_test(versions_order_as_people_read_them),
      cmocka_unit_test(d2_a_probe_adds_facts),
      cmocka_unit_test(r6_facts_as_json),
      cmocka_unit_test(fuzz_parse_format_parse_is_stable),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
