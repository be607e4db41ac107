/* SPDX-License-Identifier: Apache-2.0 */
/* The public structs' layout: offsets only grow at the end (E6, ABI). Update the numbers only with a new SOVERSION. */
#include "rapt/provider.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void struct_offsets_are_golden(void **state) {
  (void)state;
  assert_int_equal(offsetof(rapt_problem, B), 24);
  assert_int_equal(offsetof(rapt_problem, q), 88);
  assert_int_equal(sizeof(rapt_desc), 72);
  assert_int_equal(offsetof(rapt_problem, alignment), 88 + 16 * 72);
  assert_int_equal(offsetof(rapt_problem, require), sizeof(rapt_problem) - 4 * sizeof(char *));
  assert_int_equal(offsetof(rapt_buffers, q), 8);
  assert_int_equal(offsetof(rapt_buffers, dsinks), sizeof(rapt_buffers) - sizeof(void *));
  assert_int_equal(offsetof(rapt_reason, got), 32);
}

/* The plan cache compares problems as bytes: the struct may have no padding. */
static void problem_has_no_padding(void **state) {
  (void)state;
  size_t sum = 2 * 4 + 2 * 8 + 7 * 8 + 2 * 4 + 16 * sizeof(rapt_desc) + 2 * 4 + 3 * 8 + 6 * 4 + 2 * 8 + 3 * 8 + 4 * 8 + 8
               + 4 * sizeof(char *);
  assert_int_equal(sum, sizeof(rapt_problem));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(struct_offsets_are_golden),
    cmocka_unit_test(problem_has_no_padding),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
