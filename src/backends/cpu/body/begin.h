/* SPDX-License-Identifier: Apache-2.0 */
/* First include of every isa/<level>.c. */
#include "backends/cpu/kernel.h"

#include <math.h>
#include <string.h>

#if defined(__clang__)
#define RAPTI_UNROLL _Pragma("clang loop unroll(full)")
#define RAPTI_UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define RAPTI_UNROLL _Pragma("GCC unroll 16")
#define RAPTI_UNROLL_4 _Pragma("GCC unroll 4")
#endif
#define RAPTI_NOINLINE static __attribute__((noinline))
