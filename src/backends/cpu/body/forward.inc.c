/* SPDX-License-Identifier: Apache-2.0 */
/* The forward algorithm, against the vocabulary of one isa/vec_<level>.h. */
#include "backends/cpu/body/rows.inc.c"
#include "backends/cpu/body/pack.inc.c"
#include "backends/cpu/body/tile.inc.c"
#include "backends/cpu/body/chunk.inc.c"
#include "backends/cpu/body/few.inc.c"

#define RAPTI_KERNEL(level) \
  _Static_assert(VF_PER_PANEL * VF_LEN == RAPTI_WIDTH_##level && VF_LEN == RAPTI_LANES_##level, "levels.def"); \
  const rapti_cpu_kernel rapti_cpu_##level = {pack_head, run_chunk, run_few}
