/* SPDX-License-Identifier: Apache-2.0 */
/* Names and levels (D8, D9; docs/api.md section 6). */
#include "common/cm.h"

#include "common/synth.h"

#include <string.h>

static tc_synth s;
static rapt_row rows[6];

static int setup(void **state) {
  (void)state;
  static const struct { const char *id, *display, *aliases; uint32_t classes; } given[6] = {
    {"cpu.avx2", "cpu", NULL, RAPT_CLASS_FUSED},
    {"ref", NULL, "reference", RAPT_CLASS_REFERENCE},
    {"fa2", "flash_two", "flash2,flash", RAPT_CLASS_FUSED | RAPT_CLASS_FLASH},
    {"fa2.varlen", "flash_two", "flash_varlen", RAPT_CLASS_FUSED | RAPT_CLASS_FLASH},
    {"sage.auto", "sage", "sage", RAPT_CLASS_APPROX},
    {"hub.flash_two", "flash2", NULL, RAPT_CLASS_HOST},
  };
  for (int i = 0; i < 6; i++) {
    rows[i] = tc_synth_row(given[i].id);
    rows[i].display = given[i].display;
    rows[i].aliases = given[i].aliases;
    rows[i].classes = given[i].classes;
  }
  tc_synth_begin(&s, "cpu isa=avx2 threads=3");
  tc_synth_add(&s, rows, 6, 0);
  return 0;
}

/* By a list of one name. */
static bool covers(const char *name, uint32_t row, bool *by_class) {
  rapti_settings levels[RAPTI_LEVELS] = {0};
  rapti_policy policy;
  levels[RAPTI_CALL].prefer = name;
  if (rapti_policy_make(levels, &s.g, NULL, &policy, NULL) != RAPT_OK) return false;
  assert_int_equal(policy.prefer.n, 1);
  *by_class = policy.prefer.name[0].kind == RAPTI_NAME_CLASS;
  bool found = rapti_names_find(&policy.prefer, &s.rows[row].row, rows[row].classes, false) != NULL;
  assert_int_equal(rapti_names_find(&policy.prefer, &s.rows[row].row, rows[row].classes, true) != NULL, found && !*by_class);
  return found;
}

static void D8_what_a_name_means(void **state) {
  (void)state;
  static const struct { const char *name; unsigned rows; bool by_class; } cases[] = {
    {"cpu", 0x01, false}, {"cpu.avx2", 0x01, false}, {"ref", 0x02, false}, {"reference", 0x02, false},
    {"fa2", 0x0c, false},                 /* an id is the prefix of those below it */
    {"fa2.varlen", 0x08, false}, {"flash", 0x04, false}, {"flash_varlen", 0x08, false},
    {"flash2", 0x04, false},              /* an alias before a display name */
    {"flash_two", 0x0c, false}, {"sage", 0x10, false}, {"hub", 0x20, false}, {"hub.flash_two", 0x20, false},
    {"class:fused", 0x0d, true}, {"class:flash", 0x0c, true}, {"class:reference", 0x02, true},
    {"class:approx", 0x10, true}, {"class:host", 0x20, true},
    {"fa", 0, false}, {"fa2.", 0, false}, {"fa22", 0, false}, {"FA2", 0, false}, {"flas", 0, false},
    {"class:", 0, false}, {"class:none", 0, false}, {"fused", 0, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
    for (uint32_t row = 0; row < 6; row++) {
      bool by_class = false;
      bool found = covers(cases[i].name, row, &by_class);
      if (found != (cases[i].rows >> row & 1u)) fail_msg("%s and row %u", cases[i].name, row);
      if (found) assert_int_equal(by_class, cases[i].by_class);
    }
}

static rapt_status make(const rapti_settings levels[RAPTI_LEVELS], rapti_policy *policy, rapt_reason *why) {
  memset(why, 0, sizeof *why);
  why->struct_size = sizeof *why;
  return rapti_policy_make(levels, &s.g, "scope", policy, why);
}

static void D9_built_in(void **state) {
  (void)state;
  rapti_settings levels[RAPTI_LEVELS] = {0};
  rapti_policy policy;
  rapt_reason why;
  levels[RAPTI_CALL].require = "";
  assert_int_equal(make(levels, &policy, &why), RAPT_OK);
  assert_int_equal(policy.require.n + policy.prefer.n + policy.forbid.n, 0);
  assert_int_equal(policy.has_memory_limit, 0);
  assert_true(policy.ref_limit == UINT64_C(1) << 31);
  assert_int_equal(policy.threads, 3);
  assert_int_equal(policy.isa, RAPTI_ISA_AVX2);
  assert_int_equal(policy.require_level, RAPTI_BUILTIN);
}

/* Each field from the narrowest level that sets it; bans add up. */
static void D9_narrowest_level(void **state) {
  (void)state;
  rapti_settings levels[RAPTI_LEVELS] = {0};
  rapti_policy policy;
  rapt_reason why;
  levels[RAPTI_ENVIRONMENT] = (rapti_settings){.require = "cpu", .prefer = "fa2,sage", .forbid = "ref", .memory_limit = 5,
                                               .has_memory_limit = 1, .has_ref_limit = 1, .ref_limit = 9};
  levels[RAPTI_CONTEXT] = (rapti_settings){.require = "fa2", .forbid = "class:approx", .memory_limit = 0,
                                           .has_memory_limit = 1};
  levels[RAPTI_CALL] = (rapti_settings){.prefer = "flash_varlen", .forbid = "cpu,hub"};
  assert_int_equal(make(levels, &policy, &why), RAPT_OK);
  assert_int_equal(policy.require.n, 1);
  assert_memory_equal(policy.require.name[0].text, "fa2", 3);
  assert_int_equal(policy.require_level, RAPTI_CONTEXT);
  assert_int_equal(policy.prefer.n, 1);
  assert_memory_equal(policy.prefer.name[0].text, "flash_varlen", policy.prefer.name[0].len);
  assert_int_equal(policy.prefer.name[0].kind, RAPTI_NAME_ALIAS);
  assert_int_equal(policy.prefer_level, RAPTI_CALL);
  assert_int_equal(policy.memory_limit, 0);
  assert_int_equal(policy.memory_level, RAPTI_CONTEXT);
  assert_true(policy.ref_limit == 9);
  assert_int_equal(policy.ref_level, RAPTI_ENVIRONMENT);
  static const struct { const char *text; int level; } bans[] = {
    {"ref", RAPTI_ENVIRONMENT}, {"class:approx", RAPTI_CONTEXT}, {"cpu", RAPTI_CALL}, {"hub", RAPTI_CALL},
  };
  assert_int_equal(policy.forbid.n, 4);
  for (uint32_t i = 0; i < 4; i++) {
    assert_memory_equal(policy.forbid.name[i].text, bans[i].text, strlen(bans[i].text));
    assert_int_equal(policy.forbid.name[i].len, strlen(bans[i].text));
    assert_int_equal(policy.forbid.name[i].level, bans[i].level);
  }
  assert_string_equal(rapti_policy_level_name(&policy, RAPTI_CALL), "scope");
  assert_string_equal(rapti_policy_level_name(&policy, RAPTI_CONTEXT), "context");
  policy.origin = NULL;
  assert_string_equal(rapti_policy_level_name(&policy, RAPTI_CALL), "call");
}

static void D8_unknown_names(void **state) {
  (void)state;
  rapti_policy policy;
  rapt_reason why;
  static const struct { int level, field; } where[] = {
    {RAPTI_ENVIRONMENT, RAPT_FIELD_REQUIRE}, {RAPTI_CONTEXT, RAPT_FIELD_PREFER}, {RAPTI_CALL, RAPT_FIELD_FORBID},
  };
  for (size_t i = 0; i < 3; i++) {
    rapti_settings levels[RAPTI_LEVELS] = {0};
    *(i == 0 ? &levels[1].require : i == 1 ? &levels[2].prefer : &levels[3].forbid) = "cpu,fa9,ref";
    assert_int_equal(make(levels, &policy, &why), RAPT_ARG);
    assert_int_equal(why.code, RAPT_CODE_UNKNOWN_NAME);
    assert_int_equal(why.field, where[i].field);
    assert_string_equal(why.got, "fa9");
    assert_string_equal(why.want, "fa2, the nearest name, or one of cpu, ref, fa2, sage, hub, class:reference, class:fused, "
                                  "class:flash, class:host, class:approx");
  }
}

static void D8_lists_with_faults(void **state) {
  (void)state;
  rapti_policy policy;
  rapt_reason why;
  static const struct { const char *list; int byte; } cases[] = {{",cpu", 0}, {"cpu,", 4}, {"cpu,,ref", 4}};
  for (size_t i = 0; i < 3; i++) {
    rapti_settings levels[RAPTI_LEVELS] = {0};
    levels[RAPTI_CALL].prefer = cases[i].list;
    assert_int_equal(make(levels, &policy, &why), RAPT_ARG);
    assert_int_equal(why.code, RAPT_CODE_SYNTAX);
    assert_int_equal(why.field, RAPT_FIELD_PREFER);
    assert_int_equal(why.index, cases[i].byte);
    assert_string_equal(why.want, "a name");
    assert_string_equal(why.got, cases[i].list);
  }
  char many[4 * (RAPTI_MAX_NAMES + 1)] = "";
  rapti_settings levels[RAPTI_LEVELS] = {0};
  for (int i = 0; i < RAPTI_MAX_NAMES; i++) strcat(many, i ? ",ref" : "ref");
  levels[RAPTI_CALL].forbid = many;
  assert_int_equal(make(levels, &policy, &why), RAPT_OK);
  levels[RAPTI_CONTEXT].forbid = "cpu";
  assert_int_equal(make(levels, &policy, &why), RAPT_ARG);
  assert_int_equal(why.code, RAPT_CODE_SYNTAX);
  assert_string_equal(why.want, "at most 32 names");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(D8_what_a_name_means), cmocka_unit_test(D9_built_in),
    cmocka_unit_test(D9_narrowest_level),   cmocka_unit_test(D8_unknown_names),
    cmocka_unit_test(D8_lists_with_faults),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
