/* SPDX-License-Identifier: Apache-2.0 */
/* The order of docs/api.md section 7 and what is chosen from it (D3, D5, D8-D10, D14, D28). */
#include "common/cm.h"

#include "common/synth.h"

#include <string.h>

#define PLAIN "fp32 b1 h4 q64 k64 d64"

enum { EXT_B, CPU_AVX2, REF, CPU_AVX512, CPU_SCALAR, HOST_ANY, HOST_A, HOST_B, EXT_A, FIRST, CPU_TWIN, EXT_C, N };
static tc_synth s;
static rapt_row rows[N];
static int picked;

static int picks(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, uint32_t *member) {
  (void)self, (void)cast, (void)facts;
  if (row != HOST_ANY) return 2;
  *member = (uint32_t)picked;
  return 1;
}

static size_t workspace_of(void *self, uint32_t row, const rapt_problem *cast, uint32_t threads) {
  (void)self, (void)cast;
  return 100u * row + threads;
}

static void build(const char *facts) {
  tc_synth_begin(&s, facts);
  rapt_backend *b = tc_synth_add(&s, rows, N, 1);
  b->pick = picks;
  b->workspace = workspace_of;
}

static int setup(void **state) {
  (void)state;
  static const struct { const char *id, *isa; int place, rank; uint32_t classes; } given[N] = {
    [EXT_B] = {"ext.b", NULL, RAPT_PLACE_OPT_IN, 5, RAPT_CLASS_FUSED},
    [CPU_AVX2] = {"cpu.avx2", "avx2", RAPT_PLACE_OWN, 0, RAPT_CLASS_FUSED},
    [REF] = {"ref", NULL, RAPT_PLACE_OWN, 0, RAPT_CLASS_REFERENCE},
    [CPU_AVX512] = {"cpu.avx512", "avx512", RAPT_PLACE_OWN, 0, RAPT_CLASS_FUSED},
    [CPU_SCALAR] = {"cpu.scalar", "scalar", RAPT_PLACE_OWN, 0, RAPT_CLASS_FUSED},
    [HOST_ANY] = {"host.any", NULL, RAPT_PLACE_HOST, 0, RAPT_CLASS_HOST},
    [HOST_A] = {"host.a", NULL, RAPT_PLACE_HOST, 0, RAPT_CLASS_HOST | RAPT_CLASS_FLASH},
    [HOST_B] = {"host.b", NULL, RAPT_PLACE_HOST, 0, RAPT_CLASS_HOST},
    [EXT_A] = {"ext.a", NULL, RAPT_PLACE_OPT_IN, 2, RAPT_CLASS_FLASH},
    [CPU_TWIN] = {"twin", "avx2", RAPT_PLACE_OWN, 0, 0},
    [EXT_C] = {"ext.c", NULL, RAPT_PLACE_OPT_IN, 2, 0},
    [FIRST] = {"first", NULL, RAPT_PLACE_FIRST, 0, 0},
  };
  for (int i = 0; i < N; i++) {
    rows[i] = tc_synth_row(given[i].id);
    rows[i].isa = given[i].isa;
    rows[i].place = given[i].place;
    rows[i].rank = given[i].rank;
    rows[i].classes = given[i].classes;
    if (given[i].place == RAPT_PLACE_OWN) rows[i].kinds = RAPT_KIND(RAPT_CPU);
  }
  rows[HOST_A].can &= ~RAPT_CAN_SOFTCAP;
  picked = HOST_A;
  build("cpu isa=avx2 threads=2");
  return 0;
}

/* Both forms of selection must agree (D5). The return: the id chosen, or why none. */
static const char *chosen(const char *problem, const rapti_policy *policy, rapti_choice *choice) {
  rapti_request r;
  rapti_choice quick;
  rapti_match matches[N];
  tc_synth_request(problem, &r);
  rapti_select(&s.g, &r, policy, NULL, &quick);
  rapti_select(&s.g, &r, policy, matches, choice);
  assert_int_equal(quick.row, choice->row);
  assert_int_equal(quick.level, choice->level);
  assert_int_equal(quick.fallback, choice->fallback);
  assert_int_equal(quick.undecided, choice->undecided);
  assert_int_equal(quick.workspace, choice->workspace);
  if (choice->row < 0) return choice->undecided ? "undecided" : "refused";
  return s.rows[choice->row].row.id;
}

static const char *choose(const char *problem, const char *require, const char *prefer, const char *forbid) {
  rapti_policy policy;
  rapti_choice choice;
  tc_synth_policy(&s, require, prefer, forbid, &policy);
  return chosen(problem, &policy, &choice);
}

/* Peels the order off by forbidding what was chosen. */
static void expect_order(const char *problem, const char *require, const char *order) {
  char forbid[200] = "", seen[300] = "";
  for (;;) {
    const char *id = choose(problem, require, NULL, forbid);
    if (seen[0]) strcat(seen, " ");
    strcat(seen, id);
    if (strcmp(id, "refused") == 0) break;
    if (forbid[0]) strcat(forbid, ",");
    strcat(forbid, id);
  }
  assert_string_equal(seen, order);
}

static void D28_order_on_a_cpu(void **state) {
  (void)state;
  expect_order(PLAIN, NULL, "first cpu.avx2 twin cpu.scalar host.any host.a host.b ref refused");
  build("cpu isa=avx512");
  expect_order(PLAIN, NULL, "first cpu.avx512 cpu.avx2 twin cpu.scalar host.any host.a host.b ref refused");
  build("cpu isa=scalar");
  assert_string_equal(choose(PLAIN, NULL, NULL, "first"), "cpu.scalar");
  setup(NULL);
}

static void D28_order_elsewhere(void **state) {
  (void)state;
  build("cuda cc=9.0");
  expect_order(PLAIN " dev=cuda", NULL, "first host.any host.a host.b refused");
  setup(NULL);
}

/* Under require opt-in rows follow own and host rows, by rank; the reference stays last (D14). */
static void D8_order_under_require(void **state) {
  (void)state;
  expect_order(PLAIN, "ext,ref,host.b,cpu", "cpu.avx2 cpu.scalar host.b ext.a ext.c ext.b ref refused");
  expect_order(PLAIN, "ext.b", "ext.b refused");
  assert_string_equal(choose(PLAIN, "cpu.avx512", NULL, NULL), "refused");      /* D10 */
}

static void D8_prefer(void **state) {
  (void)state;
  assert_string_equal(choose(PLAIN, NULL, "ext.b,ext.a", NULL), "ext.b");
  assert_string_equal(choose(PLAIN, NULL, "cpu.avx512,ref", NULL), "ref");
  assert_string_equal(choose(PLAIN, NULL, "cpu.avx512", NULL), "first");
  assert_string_equal(choose(PLAIN, NULL, "ext", NULL), "ext.a");
  assert_string_equal(choose(PLAIN, NULL, "class:flash", NULL), "host.any");    /* by its member's class */
  assert_string_equal(choose(PLAIN, "cpu,ref", "ext,ref", NULL), "ref");
}

/* The rank that a row has by prefer counts the picked member's classes, wherever it is asked for. */
static void D8_prefer_rank(void **state) {
  (void)state;
  rapti_policy policy;
  rapti_request r;
  tc_synth_policy(&s, NULL, "ext.b,class:flash", NULL, &policy);
  tc_synth_request(PLAIN, &r);
  assert_int_equal(rapti_prefer_rank(&s.g, EXT_B, &r, &policy), 0);
  assert_int_equal(rapti_prefer_rank(&s.g, HOST_ANY, &r, &policy), 1);
  assert_int_equal(rapti_prefer_rank(&s.g, HOST_A, &r, &policy), 1);
  assert_int_equal(rapti_prefer_rank(&s.g, HOST_B, &r, &policy), 2);
  picked = HOST_B;
  assert_int_equal(rapti_prefer_rank(&s.g, HOST_ANY, &r, &policy), 2);
  picked = HOST_A;
}

/* If a ban hits the member, the members by themselves take part, in the host's order. */
static void D28_ban_of_the_member(void **state) {
  (void)state;
  build("cuda cc=9.0");
  assert_string_equal(choose(PLAIN " dev=cuda", NULL, NULL, "first"), "host.any");
  assert_string_equal(choose(PLAIN " dev=cuda", NULL, NULL, "first,class:flash"), "host.b");
  assert_string_equal(choose(PLAIN " dev=cuda softcap=3", NULL, NULL, "first"), "host.b");
  picked = HOST_B;
  assert_string_equal(choose(PLAIN " dev=cuda", NULL, NULL, "first,host.b"), "host.a");
  setup(NULL);
}

static void D9_deciding_level(void **state) {
  (void)state;
  static const struct { rapti_settings environment, context, call; const char *id; int level, fallback; } cases[] = {
    {{0}, {0}, {0}, "first", RAPTI_BUILTIN, 0},
    {{.prefer = "ext.a"}, {0}, {0}, "ext.a", RAPTI_ENVIRONMENT, 0},
    {{.prefer = "ext.a"}, {.prefer = "cpu.avx512"}, {0}, "first", RAPTI_BUILTIN, 1},
    {{0}, {0}, {.prefer = "cpu.avx512,ref"}, "ref", RAPTI_CALL, 1},
    {{.require = "cpu,ref"}, {0}, {0}, "cpu.avx2", RAPTI_ENVIRONMENT, 0},
    {{.require = "cpu,ref"}, {.prefer = "ref"}, {0}, "ref", RAPTI_CONTEXT, 0},
    {{0}, {.forbid = "first"}, {0}, "cpu.avx2", RAPTI_CONTEXT, 0},
    {{.forbid = "ref"}, {0}, {0}, "first", RAPTI_BUILTIN, 0},
    {{.forbid = "cpu,twin"}, {0}, {.forbid = "first"}, "host.any", RAPTI_CALL, 0},
    {{.forbid = "host.a"}, {.require = "host"}, {.forbid = "host.any"}, "host.b", RAPTI_CONTEXT, 0},
    {{.forbid = "cpu.avx512"}, {0}, {.forbid = "first"}, "cpu.avx2", RAPTI_CALL, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rapti_settings levels[RAPTI_LEVELS] = {{0}, cases[i].environment, cases[i].context, cases[i].call};
    rapti_policy policy;
    rapti_choice choice;
    assert_int_equal(rapti_policy_make(levels, &s.g, NULL, &policy, NULL), RAPT_OK);
    assert_string_equal(chosen(PLAIN, &policy, &choice), cases[i].id);
    assert_int_equal(choice.level, cases[i].level);
    assert_int_equal(choice.fallback, cases[i].fallback);
  }
}

/* A ban of the member alone decides, too. */
static void D9_level_of_a_ban_of_the_member(void **state) {
  (void)state;
  rapti_settings levels[RAPTI_LEVELS] = {{0}, {.forbid = "host.a"}, {.forbid = "cpu"}, {0}};
  rapti_policy policy;
  rapti_choice choice;
  rows[FIRST].kinds = RAPT_KIND(RAPT_CPU);
  build("cuda cc=9.0");
  assert_int_equal(rapti_policy_make(levels, &s.g, NULL, &policy, NULL), RAPT_OK);
  assert_string_equal(chosen(PLAIN " dev=cuda", &policy, &choice), "host.b");
  assert_int_equal(choice.level, RAPTI_ENVIRONMENT);
  setup(NULL);
}

static void D4_undecided_is_never_chosen(void **state) {
  (void)state;
  build("cpu threads=2");                                  /* no isa */
  assert_string_equal(choose(PLAIN, "cpu.avx2,cpu.avx512", NULL, NULL), "undecided");
  assert_string_equal(choose(PLAIN, "cpu.avx2,ref", NULL, NULL), "ref");
  assert_string_equal(choose(PLAIN, "cpu", NULL, NULL), "cpu.scalar");       /* every CPU has that level (D26) */
  assert_string_equal(choose(PLAIN " dev=cuda", "cpu", NULL, NULL), "refused");
  setup(NULL);
}

/* A row that comes before the chosen one and waits for a fact leaves the choice open; one that comes after does not. */
static void D4_undecided_beside_a_choice(void **state) {
  (void)state;
  static const struct { const char *prefer; int undecided; } cases[] = {
    {"cpu.avx2,ref", 1}, {"ref", 0}, {"ref,cpu.avx2", 0}, {"class:fused,ref", 1}, {NULL, 1},
  };
  build("cpu threads=2");                                  /* no isa */
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    rapti_policy policy;
    rapti_choice choice;
    tc_synth_policy(&s, "cpu.avx2,ref", cases[i].prefer, NULL, &policy);
    assert_string_equal(chosen(PLAIN, &policy, &choice), "ref");
    assert_int_equal(choice.undecided, cases[i].undecided);
  }
  setup(NULL);
}

static void D16_workspace_of_the_chosen_row(void **state) {
  (void)state;
  rapti_policy policy;
  rapti_choice choice;
  tc_synth_policy(&s, "ref", NULL, NULL, &policy);
  assert_string_equal(chosen(PLAIN, &policy, &choice), "ref");
  assert_int_equal(choice.workspace, 100 * REF + 2);
}

static void D14_ref_limit(void **state) {
  (void)state;
  rapti_policy policy;
  rapti_choice choice;
  tc_synth_policy(&s, NULL, NULL, "first,cpu,twin,host", &policy);
  policy.ref_limit = UINT64_C(4) * 64 * 64 * 128;
  assert_string_equal(chosen(PLAIN, &policy, &choice), "ref");
  policy.ref_limit--;
  assert_string_equal(chosen(PLAIN, &policy, &choice), "refused");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(D28_order_on_a_cpu),         cmocka_unit_test(D28_order_elsewhere),
    cmocka_unit_test(D8_order_under_require),     cmocka_unit_test(D8_prefer), cmocka_unit_test(D8_prefer_rank),
    cmocka_unit_test(D28_ban_of_the_member),      cmocka_unit_test(D9_deciding_level),
    cmocka_unit_test(D9_level_of_a_ban_of_the_member),
    cmocka_unit_test(D4_undecided_is_never_chosen), cmocka_unit_test(D4_undecided_beside_a_choice), cmocka_unit_test(D16_workspace_of_the_chosen_row),
    cmocka_unit_test(D14_ref_limit),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
