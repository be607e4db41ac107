/* SPDX-License-Identifier: Apache-2.0 */
/* Twelve independent chains of fused multiply-adds on 512-bit registers. */
#include "probe.h"

#if defined(__x86_64__)
static void loop(long rounds) {
  static const float small = 0x1p-20f, one = 1;
  __asm__ volatile(
    "vbroadcastss %1, %%zmm12\n vbroadcastss %2, %%zmm13\n"
    "vmovaps %%zmm12, %%zmm0\n vmovaps %%zmm12, %%zmm1\n vmovaps %%zmm12, %%zmm2\n vmovaps %%zmm12, %%zmm3\n"
    "vmovaps %%zmm12, %%zmm4\n vmovaps %%zmm12, %%zmm5\n vmovaps %%zmm12, %%zmm6\n vmovaps %%zmm12, %%zmm7\n"
    "vmovaps %%zmm12, %%zmm8\n vmovaps %%zmm12, %%zmm9\n vmovaps %%zmm12, %%zmm10\n vmovaps %%zmm12, %%zmm11\n"
    ".p2align 5\n1:\n"
    "vfmadd231ps %%zmm12, %%zmm13, %%zmm0\n vfmadd231ps %%zmm12, %%zmm13, %%zmm1\n"
    "vfmadd231ps %%zmm12, %%zmm13, %%zmm2\n vfmadd231ps %%zmm12, %%zmm13, %%zmm3\n"
    "vfmadd231ps %%zmm12, %%zmm13, %%zmm4\n vfmadd231ps %%zmm12, %%zmm13, %%zmm5\n"
    "vfmadd231ps %%zmm12, %%zmm13, %%zmm6\n vfmadd231ps %%zmm12, %%zmm13, %%zmm7\n"
    "vfmadd231ps %%zmm12, %%zmm13, %%zmm8\n vfmadd231ps %%zmm12, %%zmm13, %%zmm9\n"
    "vfmadd231ps %%zmm12, %%zmm13, %%zmm10\n vfmadd231ps %%zmm12, %%zmm13, %%zmm11\n"
    "dec %0\n jnz 1b\n vzeroupper\n"
    : "+r"(rounds) : "m"(small), "m"(one)
    : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
      "xmm13");
}
#else
static void loop(long rounds) { (void)rounds; }
#endif
const probe_level probe_avx512 = {"avx512", loop, 12 * 16 * 2};
