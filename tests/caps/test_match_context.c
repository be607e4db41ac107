/* SPDX-License-Identifier: Apache-2.0 */
/* The matcher on synthetic rows: facts, registration, callbacks, policy codes, rows with faults (D4, D8, D9, D14, D28). */
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
    {"cpu flash-attn=2.7.0 torch=2.2 cuda=12.8", "KNOWN_BAD(backend)"},                /* D25 */
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
  only("hip flash-attn=2.8");
  says(PLAIN " dev=hip", 0, "not known | the fact arch");
  only("hip arch=gfx950 flash-attn=2.8");
  says(PLAIN " dev=hip", 0, "hip arch=gfx950 | cuda (cc 8.0-9.0, 10.x), hip (arch gfx942, gfx11*)");
  only("cuda flash-attn=2.8 flash-attn.cc=8.0");
  says(PLAIN " dev=cuda", 1, "not known | the fact cc");
  only("cuda cc=7.5 flash-attn=2.8 flash-attn.cc=8.0");
  says(PLAIN " dev=cuda", 0, "cuda cc=7.5 | cuda (cc 8.0-9.0, 10.x), hip (arch gfx942, gfx11*)");
}

/* A runtime that another device kind does not have is part of DEVICE; its version where known is not. */
static void D4_runtimes_of_other_kinds(void **state) {
  (void)state;
  row = tc_synth_row("x");
  row.kinds = RAPT_KIND(RAPT_CUDA);
  row.needs = "cuda>=12.0 torch>=2.2";
  only("cpu torch=2.13");
  explains(PLAIN, "DEVICE(device)");
  only("cpu");
  explains(PLAIN, "VERSION(backend)?,DEVICE(device)");
  only("cpu torch=2.13 cuda=11.8");
  explains(PLAIN, "VERSION(backend),DEVICE(device)");
  only("cuda cc=9.0 torch=2.13");
  explains(PLAIN " dev=cuda", "VERSION(backend)?");
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
  if (cast->D == 64) return 0;
  if (n < 2) return 2;
  why[0].code = RAPT_CODE_SOFTCAP;
  why[0].field = RAPT_FIELD_SOFTCAP;
  strcpy(why[0].got, "3");
  strcpy(why[0].want, "none with D 32");
  why[1].code = RAPT_CODE_MASK;
  why[1].field = RAPT_FIELD_MASK;
  why[1].state = RAPT_NOT_EVALUATED;
  why[1].axis = 2;
  strcpy(why[1].want, "cudnn");                              /* bare, as the own objections say it */
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
  says("fp16 b1 h4 q64 k64 d32 lse window=3,3", 1, "not known | the fact cudnn");
  says("fp16 b1 h4 q64 k64 d32 lse window=3,3", 2, "3 | none with D 32");
}

static uint32_t sees_limit(void *self, uint32_t i, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                           uint32_t n) {
  (void)self, (void)i, (void)facts;
  if (!(cast->has & RAPT_HAS_MEMORY_LIMIT) || cast->memory_limit != 77) return 0;
  if (n) why[0].code = RAPT_CODE_MEMORY;
  return 1;
}

/* D9: the memory limit that callbacks see is the one in force, not the call's own alone. */
static void D9_extra_sees_the_limit_of_any_level(void **state) {
  (void)state;
  row = tc_synth_row("x");
  tc_synth_begin(&s, "cpu isa=avx2");
  tc_synth_add_row(&s, &row, 0)->extra = sees_limit;
  rapti_settings levels[RAPTI_LEVELS] = {0};
  levels[RAPTI_CONTEXT] = (rapti_settings){.prefer = "x", .memory_limit = 77, .has_memory_limit = 1};
  rapti_request r;
  rapti_policy policy;
  tc_synth_request(PLAIN, &r);
  assert_int_equal(rapti_policy_make(levels, &s.g, NULL, &policy, NULL), RAPT_OK);
  assert_string_equal(tc_synth_verdict(&s, 0, &r, &policy), "MEMORY(none)");
  levels[RAPTI_CONTEXT].has_memory_limit = 0;
  assert_int_equal(rapti_policy_make(levels, &s.g, NULL, &policy, NULL), RAPT_OK);
  assert_string_equal(tc_synth_verdict(&s, 0, &r, &policy), "ok");
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

static void D7_which_codes_are_policy(void **state) {
  (void)state;
  int n = 0;
  for (int code = RAPT_CODE_NONE; code < RAPT_CODE_COUNT; code++) n += rapti_is_policy_code(code);
  assert_int_equal(n, 5);
  static const int codes[] = {RAPT_CODE_FORBIDDEN, RAPT_CODE_NOT_REQUIRED, RAPT_CODE_SLOW, RAPT_CODE_UNTESTED,
                              RAPT_CODE_OPT_IN};
  for (int i = 0; i < 5; i++) assert_true(rapti_is_policy_code(codes[i]));
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
  spelled(0, &r, &policy, 0, "x | environment (RAPT_FORBID)");
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
  const rapt_row good = tc_synth_row("a.b_19");
  rapt_reason why = {.struct_size = sizeof why};
  assert_int_equal(rapti_cap_compile(&good, &cap, &why), RAPT_OK);
  assert_string_equal(cap.row.display, "a.b_19");
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
    cmocka_unit_test(D4_packages),
    cmocka_unit_test(D4_devices),
    cmocka_unit_test(D4_runtimes_of_other_kinds),
    cmocka_unit_test(D26_isa),
    cmocka_unit_test(D4_real_contexts),
    cmocka_unit_test(D3_extra_objections_sorted_by_code),
    cmocka_unit_test(D9_extra_sees_the_limit_of_any_level),
    cmocka_unit_test(D28_a_row_that_picks),
    cmocka_unit_test(D8_policy_codes),
    cmocka_unit_test(D7_which_codes_are_policy),
    cmocka_unit_test(D9_policy_codes_name_the_level),
    cmocka_unit_test(D5_first_agrees_with_all),
    cmocka_unit_test(D7_rows_with_faults),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
