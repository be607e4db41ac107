/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cpu/body/begin.h"
#include "backends/cpu/isa/vec_avx512.h"
#include "backends/cpu/body/forward.inc.c"
RAPTI_KERNEL(avx512);
