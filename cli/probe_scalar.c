/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline of x86-64: SSE multiplies and adds, eight independent chains of each. And the clock. */
#include "probe.h"

#if defined(__x86_64__)
/* Multiplies start from 1 and adds from 0, each register with itself: all sixteen are chains. */
static void loop(long rounds) {
  static const float one[4] __attribute__((aligned(16))) = {1, 1, 1, 1};
  __asm__ volatile(
    "movaps %1, %%xmm0\n movaps %%xmm0, %%xmm1\n movaps %%xmm0, %%xmm2\n movaps %%xmm0, %%xmm3\n"
    "movaps %%xmm0, %%xmm4\n movaps %%xmm0, %%xmm5\n movaps %%xmm0, %%xmm6\n movaps %%xmm0, %%xmm7\n"
    "xorps %%xmm8, %%xmm8\n xorps %%xmm9, %%xmm9\n xorps %%xmm10, %%xmm10\n xorps %%xmm11, %%xmm11\n"
    "xorps %%xmm12, %%xmm12\n xorps %%xmm13, %%xmm13\n xorps %%xmm14, %%xmm14\n xorps %%xmm15, %%xmm15\n"
    ".p2align 5\n1:\n .rept 8\n"
    "mulps %%xmm0, %%xmm0\n addps %%xmm8, %%xmm8\n mulps %%xmm1, %%xmm1\n addps %%xmm9, %%xmm9\n"
    "mulps %%xmm2, %%xmm2\n addps %%xmm10, %%xmm10\n mulps %%xmm3, %%xmm3\n addps %%xmm11, %%xmm11\n"
    "mulps %%xmm4, %%xmm4\n addps %%xmm12, %%xmm12\n mulps %%xmm5, %%xmm5\n addps %%xmm13, %%xmm13\n"
    "mulps %%xmm6, %%xmm6\n addps %%xmm14, %%xmm14\n mulps %%xmm7, %%xmm7\n addps %%xmm15, %%xmm15\n .endr\n"
    "dec %0\n jnz 1b\n"
    : "+r"(rounds) : "m"(one)
    : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
      "xmm13", "xmm14", "xmm15");
}
const probe_level probe_scalar = {"scalar", loop, 8 * 16 * 4};

/* Two registers: an add of a constant can be folded away by some cores. */
void probe_clock_loop(long rounds) {
  unsigned long x = 0, y = 3;
  __asm__ volatile(
    ".p2align 5\n1:\n"
    ".rept 64\n add %2, %1\n .endr\n"
    "dec %0\n jnz 1b\n"
    : "+r"(rounds), "+r"(x) : "r"(y) : "cc");
}
#else
static void loop(long rounds) { (void)rounds; }
const probe_level probe_scalar = {"scalar", loop, 0};
void probe_clock_loop(long rounds) { (void)rounds; }
#endif
