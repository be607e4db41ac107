/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cpu/body/begin.h"
#include "backends/cpu/isa/vec_avx512.h"
#include "backends/cpu/body/forward.inc.c"
const rapti_cpu_kernel rapti_cpu_avx512 = RAPTI_KERNEL;
