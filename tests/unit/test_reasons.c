/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons as data and as sentences (D5, D7, E3), names of all enum values (E7). */
#include "core/core.h"

#include <stdio.h>
#include <string.h>

#include "common/cm.h"

static rapt_reason reason_of(int code, int field) {
  rapt_reason r = RAPT_REASON_INIT;
  rapti_reason_set(&r, code, field, 2, 7);
  rapti_reason_got(&r, "%s", "GOT");
  rapti_reason_want(&r, "%s", "WANT");
  return r;
}

static void assert_sentence(const char *text, int code) {
  char lead[64];
  snprintf(lead, sizeof lead, "%s: ", rapt_code_name(code));
  if (strpbrk(text, "{}[]|") || strstr(text, "  ") || strstr(text, "..") || strstr(text, "?")) print_error("%s\n", text);
  assert_null(strpbrk(text, "{}[]|"));
  assert_null(strstr(text, "  "));
  assert_null(strstr(text, ".."));
  assert_null(strchr(text, '?'));
  assert_memory_equal(text, lead, strlen(lead));
  assert_int_equal(text[strlen(text) - 1], '.');
}

static void d7_every_template_formats(void **state) {
  (void)state;
  for (int code = 1; code < RAPT_CODE_COUNT; code++) {
    const rapti_code_info *info = rapti_code_get(code);
    rapt_reason r = reason_of(code, RAPT_FIELD_K);
    char text[512];
    assert_true(info->sentence || info->fault);
    assert_true(!info->sentence == !info->advice);
    assert_true(!info->fault == !info->correction || code == RAPT_CODE_SYNTAX);   /* its sentence is the remedy */
    for (int use = 0; use < 2; use++) {
      if (!(use ? info->sentence : info->fault)) continue;
      size_t length = rapt_reason_format(&r, use ? "fa2" : NULL, NULL, text, sizeof text);
      assert_int_equal(length, strlen(text));
      assert_sentence(text, code);
      if (use) assert_non_null(strstr(text, "fa2"));
    }
  }
}

/* E3: a fault of the call names the argument, its value and the limit where its template has them. */
static void e3_faults_name_the_argument_as_spelled(void **state) {
  (void)state;
  static const char *names[RAPT_FIELD_COUNT];
  names[RAPT_FIELD_K] = "key";
  char text[512];
  rapt_reason r = reason_of(RAPT_CODE_HEADS, RAPT_FIELD_K);
  rapt_reason_format(&r, NULL, names, text, sizeof text);
  assert_string_equal(text, "HEADS: key has GOT heads, which do not divide the WANT query heads. Use a number of kv heads that divides WANT.");
  r = reason_of(RAPT_CODE_SHAPE, RAPT_FIELD_MASK);
  rapt_reason_format(&r, NULL, names, text, sizeof text);
  assert_string_equal(text, "SHAPE: mask is GOT, axis 2 must be WANT. Make the sizes agree.");
  for (int code = 1; code < RAPT_CODE_COUNT; code++) {
    const char *fault = rapti_code_get(code)->fault;
    bool of_the_context = code == RAPT_CODE_AVAIL || code == RAPT_CODE_VERSION || code == RAPT_CODE_HYPOTHETICAL;
    if (fault && !of_the_context) assert_non_null(strstr(fault, "{arg}"));
  }
}

static void parts_without_anything_to_say_are_left_out(void **state) {
  (void)state;
  rapt_reason r = RAPT_REASON_INIT;
  char text[512];
  rapti_reason_set(&r, RAPT_CODE_AVAIL, RAPT_FIELD_BACKEND, -1, -1);
  rapt_reason_format(&r, "fa2", NULL, text, sizeof text);
  assert_string_equal(text, "AVAIL: fa2 is not available here. Install or load it.");
  rapti_reason_set(&r, RAPT_CODE_LENGTHS, RAPT_FIELD_KV_LEN, -1, 3);
  rapti_reason_got(&r, "%d", 9);
  rapti_reason_want(&r, "0..8");
  rapt_reason_format(&r, NULL, NULL, text, sizeof text);
  assert_string_equal(text, "LENGTHS: kv_len at index 3 is 9, outside 0..8. Correct the array, or leave it out.");
  rapti_reason_set(&r, RAPT_CODE_NONE, RAPT_FIELD_ALLOC, -1, -1);           /* NOMEM and the like have no code */
  rapti_reason_got(&r, "out of memory");
  rapt_reason_format(&r, NULL, NULL, text, sizeof text);
  assert_string_equal(text, "alloc: out of memory.");
}

/* D4: what was not evaluated says so and gives no remedy. */
static void d4_not_evaluated_reads_differently(void **state) {
  (void)state;
  rapt_reason r = reason_of(RAPT_CODE_VERSION, RAPT_FIELD_BACKEND);
  char text[512];
  r.state = RAPT_NOT_EVALUATED;
  rapt_reason_format(&r, "fa2", NULL, text, sizeof text);
  assert_string_equal(text, "VERSION: fa2 was not checked: WANT is missing.");
}

static void e7_cut_text_keeps_its_length(void **state) {
  (void)state;
  rapt_reason r = reason_of(RAPT_CODE_DTYPE, RAPT_FIELD_Q);
  char whole[512], buf[512];
  size_t full = rapt_reason_format(&r, "fa2", NULL, whole, sizeof whole);
  for (size_t n = 0; n <= full; n++) {
    memset(buf, '#', sizeof buf);
    assert_int_equal(rapt_reason_format(&r, "fa2", NULL, buf, n), full);
    if (n) assert_int_equal(strlen(buf), n - 1);
    assert_memory_equal(buf, whole, n ? n - 1 : 0);
    assert_int_equal(buf[n], '#');
  }
}

/* E6, E7: a caller built against a shorter struct, and got and want longer than theirs. */
static void e6_a_shorter_struct_is_not_written_past_its_end(void **state) {
  (void)state;
  union { rapt_reason r; unsigned char bytes[sizeof(rapt_reason)]; } u;
  for (uint32_t size = 0; size <= sizeof u.r; size++) {
    memset(&u, 0xa5, sizeof u);
    u.r.struct_size = size;
    rapti_reason_set(&u.r, RAPT_CODE_DTYPE, RAPT_FIELD_Q, 1, 2);
    rapti_reason_got(&u.r, "%0100d", 1);
    rapti_reason_want(&u.r, "%0200d", 1);
    for (size_t i = size > 4 ? size : 4; i < sizeof u; i++) assert_int_equal(u.bytes[i], 0xa5);
    if (size >= 8) assert_int_equal(u.r.code, RAPT_CODE_DTYPE);
    if (size == sizeof u.r) assert_int_equal(strlen(u.r.got), sizeof u.r.got - 1);
    if (size == sizeof u.r) assert_int_equal(strlen(u.r.want), sizeof u.r.want - 1);
  }
  rapti_reason_set(NULL, RAPT_CODE_DTYPE, RAPT_FIELD_Q, 1, 2);
  rapti_reason_got(NULL, "%d", 1);
  rapti_reason_got_double(NULL, 1);
}

static void e7_all_values_have_a_name_of_their_own(void **state) {
  (void)state;
  const struct { const char *(*name)(int32_t); int count; } lists[] = {{rapt_status_name, RAPT_INTERNAL + 1},
      {rapt_code_name, RAPT_CODE_COUNT}, {rapt_dtype_name, RAPT_FP8E5M2 + 1}, {rapt_field_name, RAPT_FIELD_COUNT}};
  for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++) {
    for (int i = 0; i < lists[l].count; i++) {
      assert_true(*lists[l].name(i) != '\0');
      for (int j = 0; j < i; j++) assert_string_not_equal(lists[l].name(i), lists[l].name(j));
    }
    assert_string_equal(lists[l].name(-1), "?");
    assert_string_equal(lists[l].name(lists[l].count), "?");
    assert_string_equal(lists[l].name(INT32_MIN), "?");
  }
  assert_string_equal(rapt_status_name(RAPT_REFUSED), "REFUSED");
  assert_string_equal(rapt_code_name(RAPT_CODE_DTYPE_MIX), "DTYPE_MIX");
  assert_string_equal(rapt_code_name(RAPT_CODE_NULL), "NULL");
  assert_string_equal(rapt_code_name(RAPT_CODE_SYNTAX), "SYNTAX");
  assert_string_equal(rapt_field_name(RAPT_FIELD_KV_LEN), "kv_len");
  assert_string_equal(rapti_kind_name(RAPT_META), "meta");
  assert_string_equal(rapti_kind_name(RAPTI_KINDS), "?");
  assert_int_equal(rapt_dtype_bytes(RAPT_BF16), 2);
  assert_int_equal(rapt_dtype_bytes(RAPT_NONE), 0);
  assert_int_equal(rapt_dtype_bytes(99), 0);
  assert_string_equal(rapt_version(), "0.1.0");
}

static void names_are_found_by_their_text(void **state) {
  (void)state;
  for (int i = RAPT_FP16; i <= RAPT_FP8E5M2; i++)
    assert_int_equal(rapti_dtype_find(rapt_dtype_name(i), strlen(rapt_dtype_name(i))), i);
  for (int i = 0; i < RAPTI_KINDS; i++)
    assert_int_equal(rapti_kind_find(rapti_kind_name(i), strlen(rapti_kind_name(i))), i);
  for (int i = 0; i < RAPTI_PACKAGES; i++)
    assert_int_equal(rapti_package_find(rapti_package_name(i), strlen(rapti_package_name(i))), i);
  assert_int_equal(rapti_dtype_find("none", 4), -1);
  assert_int_equal(rapti_dtype_find("fp3", 3), -1);
  assert_int_equal(rapti_dtype_find("fp32\0x", 6), -1);
  assert_int_equal(rapti_kind_find("", 0), -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(d7_every_template_formats),
      cmocka_unit_test(e3_faults_name_the_argument_as_spelled),
      cmocka_unit_test(parts_without_anything_to_say_are_left_out),
      cmocka_unit_test(d4_not_evaluated_reads_differently),
      cmocka_unit_test(e7_cut_text_keeps_its_length),
      cmocka_unit_test(e6_a_shorter_struct_is_not_written_past_its_end),
      cmocka_unit_test(e7_all_values_have_a_name_of_their_own),
      cmocka_unit_test(names_are_found_by_their_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
