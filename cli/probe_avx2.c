/* SPDX-License-Identifier: Apache-2.0 */
/* Twelve independent chains of fused multiply-adds on 256-bit registers. */
#include "probe.h"

#if defined(__x86_64__)
static void loop(long rounds) {
  static const float small = 0x1p-20f, one = 1;
  __asm__ volatile(
    "vbroadcastss %1, %%ymm12\n vbroadcastss %2, %%ymm13\n"
    "vmovaps %%ymm12, %%ymm0\n vmovaps %%ymm12, %%ymm1\n vmovaps %%ymm12, %%ymm2\n vmovaps %%ymm12, %%ymm3\n"
    "vmovaps %%ymm12, %%ymm4\n vmovaps %%ymm12, %%ymm5\n vmovaps %%ymm12, %%ymm6\n vmovaps %%ymm12, %%ymm7\n"
    "vmovaps %%ymm12, %%ymm8\n vmovaps %%ymm12, %%ymm9\n vmovaps %%ymm12, %%ymm10\n vmovaps %%ymm12, %%ymm11\n"
    ".p2align 5\n1:\n"
    "vfmadd231ps %%ymm12, %%ymm13, %%ymm0\n vfmadd231ps %%ymm12, %%ymm13, %%ymm1\n"
    "vfmadd231ps %%ymm12, %%ymm13, %%ymm2\n vfmadd231ps %%ymm12, %%ymm13, %%ymm3\n"
    "vfmadd231ps %%ymm12, %%ymm13, %%ymm4\n vfmadd231ps %%ymm12, %%ymm13, %%ymm5\n"
    "vfmadd231ps %%ymm12, %%ymm13, %%ymm6\n vfmadd231ps %%ymm12, %%ymm13, %%ymm7\n"
    "vfmadd231ps %%ymm12, %%ymm13, %%ymm8\n vfmadd231ps %%ymm12, %%ymm13, %%ymm9\n"
    "vfmadd231ps %%ymm12, %%ymm13, %%ymm10\n vfmadd231ps %%ymm12, %%ymm13, %%ymm11\n"
    "dec %0\n jnz 1b\n vzeroupper\n"
    : "+r"(rounds) : "m"(small), "m"(one)
    : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
      "xmm13");
}
#else
static void loop(long rounds) { (void)rounds; }
#endif
const probe_level probe_avx2 = {"avx2", loop, 12 * 8 * 2};
