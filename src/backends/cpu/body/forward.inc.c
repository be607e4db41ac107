/* SPDX-License-Identifier: Apache-2.0 */
/* The forward algorithm, against the vocabulary of one isa/vec_<level>.h. */
#include "backends/cpu/body/rows.inc.c"
#include "backends/cpu/body/pack.inc.c"
#include "backends/cpu/body/tile.inc.c"
#include "backends/cpu/body/chunk.inc.c"
#include "backends/cpu/body/few.inc.c"

#define RAPTI_KERNEL {VF_PER_PANEL * VF_LEN, VF_LEN, pack_head, run_chunk, run_few}
