/* SPDX-License-Identifier: Apache-2.0 */
/* CPU levels (D26) and usable cores. */
#include "base/base.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { FMA = 12, OSXSAVE = 27, AVX = 28, F16C = 29, AVX2 = 5, AVX512F = 16, AVX512DQ = 17, AVX512BW = 30, AVX512VL = 31 };
static const uint32_t l1_avx2 = 1u << FMA | 1u << OSXSAVE | 1u << AVX | 1u << F16C;
static const uint32_t l7_avx2 = 1u << AVX2;
static const uint32_t l7_avx512 = 1u << AVX2 | 1u << AVX512F | 1u << AVX512DQ | 1u << AVX512BW | 1u << AVX512VL;
static const uint32_t l71_bf16 = 1u << 5;
static const uint64_t xcr0_ymm = 0x7, xcr0_zmm = 0xe7;

static void d26_levels_by_cpu_bits_and_os_state(void **state) {
  (void)state;
  assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx512, l71_bf16, xcr0_zmm), RAPTI_ISA_AVX512BF16);
  assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx512, 0, xcr0_zmm), RAPTI_ISA_AVX512);
  assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx2, 0, xcr0_ymm), RAPTI_ISA_AVX2);
  assert_int_equal(rapti_isa_from_x86(0, 0, 0, 0), RAPTI_ISA_SCALAR);
}

static void d26_what_the_os_did_not_enable_does_not_count(void **state) {
  (void)state;
  assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx512, l71_bf16, 0), RAPTI_ISA_SCALAR);
  assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx512, l71_bf16, 0x3), RAPTI_ISA_SCALAR);      /* ymm state off */
  assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx512, l71_bf16, xcr0_ymm), RAPTI_ISA_AVX2);   /* zmm state off */
  assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx512, l71_bf16, 0x67), RAPTI_ISA_AVX2);       /* upper 16 off */
  assert_int_equal(rapti_isa_from_x86(l1_avx2 & ~(1u << OSXSAVE), l7_avx512, 0, xcr0_zmm), RAPTI_ISA_SCALAR);
}

static void d26_every_bit_of_a_bundle_is_needed(void **state) {
  (void)state;
  const int first[] = {FMA, OSXSAVE, AVX, F16C}, seventh[] = {AVX512F, AVX512DQ, AVX512BW, AVX512VL};
  for (size_t i = 0; i < sizeof first / sizeof *first; i++)
    assert_int_equal(rapti_isa_from_x86(l1_avx2 & ~(1u << first[i]), l7_avx512, 0, xcr0_zmm), RAPTI_ISA_SCALAR);
  for (size_t i = 0; i < sizeof seventh / sizeof *seventh; i++)
    assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx512 & ~(1u << seventh[i]), l71_bf16, xcr0_zmm), RAPTI_ISA_AVX2);
  assert_int_equal(rapti_isa_from_x86(l1_avx2, l7_avx512 & ~l7_avx2, l71_bf16, xcr0_zmm), RAPTI_ISA_SCALAR);
}

static void isa_order_and_names(void **state) {
  (void)state;
  static const char *const names[] = {"scalar", "avx2", "avx512", "avx512bf16", "neon", "neon_bf16"};
  for (int i = 0; i < RAPTI_ISA_COUNT; i++) {
    assert_string_equal(rapti_isa_name(i), names[i]);
    assert_int_equal(rapti_isa_find(names[i], strlen(names[i])), i);
    assert_true(rapti_isa_covers(i, i));
    assert_true(rapti_isa_covers(i, RAPTI_ISA_SCALAR));
  }
  assert_string_equal(rapti_isa_name(-1), "?");
  assert_string_equal(rapti_isa_name(RAPTI_ISA_COUNT), "?");
  assert_int_equal(rapti_isa_find("avx", 3), -1);
  assert_int_equal(rapti_isa_find("avx5", 4), -1);
  assert_true(rapti_isa_covers(RAPTI_ISA_AVX512, RAPTI_ISA_AVX2));
  assert_false(rapti_isa_covers(RAPTI_ISA_AVX2, RAPTI_ISA_AVX512));
  assert_false(rapti_isa_covers(RAPTI_ISA_NEON, RAPTI_ISA_AVX2));
  assert_false(rapti_isa_covers(RAPTI_ISA_AVX512BF16, RAPTI_ISA_NEON));
  assert_true(rapti_isa_covers(RAPTI_ISA_NEON_BF16, RAPTI_ISA_NEON));
  assert_false(rapti_isa_covers(-1, RAPTI_ISA_SCALAR));
}

#if defined(__x86_64__) && defined(__linux__)
/* The kernel lists a flag only where the CPU has it and the kernel saves its state. */
static void d26_detection_agrees_with_the_kernel(void **state) {
  (void)state;
  static char text[1 << 16];
  FILE *f = fopen("/proc/cpuinfo", "r");
  if (!f) skip();
  const size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  text[n] = '\0';
  const bool avx2 = strstr(text, " avx2 ") && strstr(text, " fma ") && strstr(text, " f16c ");
  const bool avx512 = avx2 && strstr(text, " avx512f ") && strstr(text, " avx512bw ") && strstr(text, " avx512dq ") &&
                      strstr(text, " avx512vl ");
  assert_int_equal(rapti_isa_covers(rapti_isa_detect(), RAPTI_ISA_AVX2), avx2);
  assert_int_equal(rapti_isa_covers(rapti_isa_detect(), RAPTI_ISA_AVX512), avx512);
}
#endif

static void usable_cores_follow_the_affinity_mask(void **state) {
  (void)state;
  const uint32_t all = rapti_usable_cores();
  assert_true(all >= 1);
  cpu_set_t old, one;
  if (sched_getaffinity(0, sizeof old, &old) != 0) skip();
  assert_true(all <= (uint32_t)CPU_COUNT(&old));
  CPU_ZERO(&one);
  for (size_t i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &old)) {
      CPU_SET(i, &one);
      break;
    }
  if (sched_setaffinity(0, sizeof one, &one) != 0) skip();
  const uint32_t single = rapti_usable_cores();
  sched_setaffinity(0, sizeof old, &old);
  assert_int_equal(single, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(d26_levels_by_cpu_bits_and_os_state),
    cmocka_unit_test(d26_what_the_os_did_not_enable_does_not_count),
    cmocka_unit_test(d26_every_bit_of_a_bundle_is_needed),
    cmocka_unit_test(isa_order_and_names),
#if defined(__x86_64__) && defined(__linux__)
    cmocka_unit_test(d26_detection_agrees_with_the_kernel),
#endif
    cmocka_unit_test(usable_cores_follow_the_affinity_mask),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
