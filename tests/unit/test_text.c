/* SPDX-License-Identifier: Apache-2.0 */
/* Text and numbers: R6 (shortest round trip, any LC_NUMERIC), E7 (caller buffers, cut at a character). */
#include "base/base.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cm.h"

static const char *number(double v) {
  static char buf[64];
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  rapti_text_double(&t, v);
  assert_int_equal(rapti_text_end(&t), strlen(buf));
  return buf;
}

static void r6_numbers_have_one_shortest_form(void **state) {
  (void)state;
  static const struct { double v; const char *text; } cases[] = {
      {0, "0"}, {-0.0, "-0"}, {1, "1"}, {-0.25, "-0.25"}, {0.1, "0.1"}, {30, "30"}, {100, "100"}, {1e6, "1000000"},
      {1e20, "100000000000000000000"}, {1e21, "1e+21"}, {1.5e300, "1.5e+300"}, {1e-6, "0.000001"}, {1e-7, "1e-7"},
      {0.1 + 0.2, "0.30000000000000004"}, {1.0 / 3, "0.3333333333333333"}, {5e-324, "5e-324"},
      {DBL_MAX, "1.7976931348623157e+308"}, {DBL_MIN, "2.2250738585072014e-308"}, {123456789012345680.0, "123456789012345680"},
      {(double)INFINITY, "inf"}, {-(double)INFINITY, "-inf"}, {(double)NAN, "nan"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) assert_string_equal(number(cases[i].v), cases[i].text);
}

static uint64_t next_random(uint64_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 7;
  *x ^= *x << 17;
  return *x;
}

static void assert_round_trip(uint64_t bits) {
  double v, back;
  memcpy(&v, &bits, 8);
  if (isnan(v)) return;
  const char *text = number(v);
  assert_true(rapti_parse_double(text, strlen(text), &back));
  assert_memory_equal(&back, &v, 8);
}

static void r6_numbers_read_back_bit_for_bit(void **state) {
  (void)state;
  uint64_t x = 88172645463325252u;
  for (int i = 0; i < 20000; i++) assert_round_trip(next_random(&x));
  for (uint64_t e = 0; e < 2047; e++)                        /* each binade: powers of two and their neighbours */
    for (int64_t d = -1; d <= 1; d++) assert_round_trip((e << 52) + (uint64_t)d);
}

static void r6_malformed_numbers_are_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"", "-", ".", "+1", "1,5", "1e", "1e+", "1e+-5", "1e--5", "0x10", "1 ", " 1", "--1", "1.2.3",
                                    "-nan", "infinity", "1e400", "1e-400", "nan(1)", "1f", "e5", "1e5.0", "1_0"};
  double v = 42;
  int64_t n = 42;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_false(rapti_parse_double(bad[i], strlen(bad[i]), &v));
    assert_false(rapti_parse_int(bad[i], strlen(bad[i]), &n));
  }
  assert_true(v == 42 && n == 42);
}

static void r6_whole_numbers_keep_64_bits(void **state) {
  (void)state;
  int64_t v;
  static const char *const edges[] = {"9223372036854775807", "-9223372036854775808", "0", "-1"};
  for (int i = 0; i < 4; i++) {
    char buf[32];
    assert_true(rapti_parse_int(edges[i], strlen(edges[i]), &v));
    rapti_text t = rapti_text_begin(buf, sizeof buf);
    rapti_text_int(&t, v);
    assert_string_equal(buf, edges[i]);
  }
  assert_false(rapti_parse_int("9223372036854775808", 19, &v));
  assert_false(rapti_parse_int("-9223372036854775809", 20, &v));
  assert_true(rapti_parse_int("0012x", 4, &v) && v == 12);   /* not past n */
  assert_true(rapti_parse_double("007.50e+0", 9, &(double){0}));
}

/* A long text of digits must be rounded once, and an over-long one refused, not cut. */
static void r6_long_decimals_round_once(void **state) {
  (void)state;
  double v;
  const char *half = "1.00000000000000011102230246251565404236316680908203125";       /* 1 + 2^-53, a tie */
  const char *above = "1.00000000000000011102230246251565404236316680908203126";
  assert_true(rapti_parse_double(half, strlen(half), &v) && v == 1);
  assert_true(rapti_parse_double(above, strlen(above), &v) && v == 1 + DBL_EPSILON);
  char *digits = malloc(5000);
  memset(digits, '1', 5000);
  assert_false(rapti_parse_double(digits, 5000, &v));
  memset(digits, '0', 5000);
  assert_true(rapti_parse_double(digits, 5000, &v) && v == 0);
  free(digits);
}

/* ---- A locale with a decimal comma, written by hand: no such locale need be installed ---- */

static void write_comma_locale(const char *dir) {
  char path[256];
  snprintf(path, sizeof path, "%s/xx_XX", dir);
  assert_int_equal(mkdir(path, 0700), 0);
  snprintf(path, sizeof path, "%s/xx_XX/LC_NUMERIC", dir);
  /* glibc: magic ^ category, count, offsets; decimal point, separator, grouping, both as wide characters, codeset */
  uint32_t words[16] = {0x20031114, 6, 32, 36, 40, 44, 48, 52};
  unsigned char tail[32] = {0};
  memcpy(tail, ",", 2);
  memcpy(tail + 4, ".", 2);
  memcpy(tail + 8, "\3\3", 3);
  memcpy(tail + 12, &(uint32_t){','}, 4);
  memcpy(tail + 16, &(uint32_t){'.'}, 4);
  memcpy(tail + 20, "UTF-8", 6);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(words, 4, 8, f), 8);
  assert_int_equal(fwrite(tail, 1, sizeof tail, f), sizeof tail);
  assert_int_equal(fclose(f), 0);
}

static void remove_comma_locale(const char *dir) {
  char path[256];
  snprintf(path, sizeof path, "%s/xx_XX/LC_NUMERIC", dir);
  unlink(path);
  snprintf(path, sizeof path, "%s/xx_XX", dir);
  rmdir(path);
  rmdir(dir);
}

static void r6_numbers_do_not_depend_on_the_locale(void **state) {
  (void)state;
  char dir[] = "/tmp/rapt-locale-XXXXXX", printed[16];
  assert_non_null(mkdtemp(dir));
  write_comma_locale(dir);
  setenv("LOCPATH", dir, 1);
  bool comma = setlocale(LC_NUMERIC, "xx_XX") != NULL;
  remove_comma_locale(dir);
  if (!comma) {
    print_message("no locale with a decimal comma can be made here\n");
    skip();
  }
  snprintf(printed, sizeof printed, "%.1f", 0.5);
  assert_string_equal(printed, "0,5");                       /* the locale is in force */
  assert_string_equal(number(0.1), "0.1");
  assert_string_equal(number(-1234567.25), "-1234567.25");
  assert_string_equal(number(1.5e-9), "1.5e-9");
  double v;
  assert_true(rapti_parse_double("0.1", 3, &v) && v == 0.1);
  assert_true(rapti_parse_double("1234.5e-3", 9, &v) && v == 1.2345);
  assert_false(rapti_parse_double("0,1", 3, &v));
  char buf[16];
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  rapti_text_printf(&t, "%lld", 1234567LL);
  assert_string_equal(buf, "1234567");
  setlocale(LC_NUMERIC, "C");
}

/* ---- Buffers ---- */

static void e7_full_length_and_nul_in_any_buffer(void **state) {
  (void)state;
  char full[64], buf[64];
  for (size_t n = 0; n <= 40; n++) {
    memset(buf, '#', sizeof buf);
    rapti_text t = rapti_text_begin(n ? buf : NULL, n);
    rapti_text_put(&t, "abc");
    rapti_text_int(&t, -12345);
    rapti_text_printf(&t, "<%s:%d>", "xyz", 7);
    rapti_text_double(&t, 0.125);
    rapti_text_putc(&t, '!');
    assert_int_equal(rapti_text_end(&t), 22);
    snprintf(full, sizeof full, "%s", "abc-12345<xyz:7>0.125!");
    full[n ? n - 1 : 0] = '\0';
    if (n) assert_string_equal(buf, full);
    assert_int_equal(buf[n], '#');
  }
}

static void e7_cut_at_a_character_boundary(void **state) {
  (void)state;
  static const struct { size_t n; const char *text; } cases[] = {
      {1, ""}, {2, "a"}, {3, "a"}, {4, "a\xc3\xa9"}, {5, "a\xc3\xa9"}, {7, "a\xc3\xa9\xe2\x82\xac"}, {8, "a\xc3\xa9\xe2\x82\xac"},
      {10, "a\xc3\xa9\xe2\x82\xac"}, {11, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"}, {12, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char buf[16];
    rapti_text t = rapti_text_begin(buf, cases[i].n);
    rapti_text_put(&t, "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z");
    assert_int_equal(rapti_text_end(&t), 11);
    assert_string_equal(buf, cases[i].text);
  }
}

static void r6_json_strings_are_valid_utf8(void **state) {
  (void)state;
  static const struct { const char *in, *out; } cases[] = {
      {"plain", "\"plain\""}, {"\"\\\b\f\n\r\t", "\"\\\"\\\\\\b\\f\\n\\r\\t\""}, {"\x01\x1f", "\"\\u0001\\u001f\""},
      {"\xc3\xa9", "\"\xc3\xa9\""}, {"\xff", "\"\xef\xbf\xbd\""}, {"a\xc3", "\"a\xef\xbf\xbd\""},
      {"\xc0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\""}, {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
      {"\xf4\x90\x80\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, {"\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\""}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char buf[64];
    rapti_text t = rapti_text_begin(buf, sizeof buf);
    rapti_text_json(&t, cases[i].in);
    assert_string_equal(buf, cases[i].out);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(r6_numbers_have_one_shortest_form),
      cmocka_unit_test(r6_numbers_read_back_bit_for_bit),
      cmocka_unit_test(r6_malformed_numbers_are_refused),
      cmocka_unit_test(r6_whole_numbers_keep_64_bits),
      cmocka_unit_test(r6_long_decimals_round_once),
      cmocka_unit_test(r6_numbers_do_not_depend_on_the_locale),
      cmocka_unit_test(e7_full_length_and_nul_in_any_buffer),
      cmocka_unit_test(e7_cut_at_a_character_boundary),
      cmocka_unit_test(r6_json_strings_are_valid_utf8),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
