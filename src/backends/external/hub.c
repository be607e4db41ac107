/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that the `kernels` package fetches from a hub (docs/backends.md section 2.1). Limits are those of the page,
 * not of an older branch that a caller may pin. */
#include "backends/external/ext.h"

#include <string.h>

enum { FA2_CUDA, FA2_XPU, FA2_CPU, FA2_VARLEN, FA3, FA3_VARLEN, FA4, SAGE, AITER_CK, AITER_TRITON, ROWS };

#define FLASH (RAPT_CLASS_FUSED | RAPT_CLASS_FLASH)
#define BOTTOM_RIGHT (RAPT_CAN_CAUSAL | RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_CAUSAL_WIDE)
#define COMMON (RAPTI_EXT_HEADS | BOTTOM_RIGHT | RAPT_CAN_WINDOW | RAPT_CAN_LSE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE)
#define PACKED (RAPT_CAN_PACKED | RAPT_CAN_ON_DEVICE)
#define UNKNOWN (RAPTI_EXT_UNKNOWN | RAPT_CAN_SCALE_ZERO)
#define FA2_CAN (COMMON | RAPT_CAN_SOFTCAP | RAPT_CAN_ALIBI | RAPT_CAN_DROPOUT)

static const rapt_dims aiter_ck_dims[] = {{64, 64}, {128, 128}};

static const rapt_row rows[ROWS] = {
  [FA2_CUDA] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.fa2.cuda", .display = "flash_attention_2_hub",
    .aliases = "flash_hub", .source = "docs/backends.md 2.1, hub.fa2.cuda", .classes = FLASH, .rank = 50,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "kernels", .needs = "kernels>=0.12 torch>=2.10",
    .cc = "8.x 9.x 10.x 12.x", .dtypes = RAPTI_EXT_HALF, .d_max = 256, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN, .can = FA2_CAN | RAPT_CAN_DENSE, .unknown = UNKNOWN,
    .rng = "CUDA Philox, in steps of 1/256"},
  [FA2_XPU] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.fa2.xpu", .display = "flash_attention_2_hub",
    .aliases = "flash_hub", .source = "docs/backends.md 2.1, hub.fa2.xpu", .classes = FLASH, .rank = 51,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_XPU), .package = "kernels", .needs = "kernels>=0.12",
    /* 256 or 512, by build. Softcap and ALiBi are accepted and not used: refused. */
    .dtypes = RAPTI_EXT_HALF, .d_max = 512, .d_unknown_above = 256, .d_step_backward = 8,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = COMMON | RAPT_CAN_DROPOUT | RAPT_CAN_DENSE, .unknown = UNKNOWN, .rng = "a Philox of its own"},
  [FA2_CPU] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.fa2.cpu", .display = "flash_attention_2_hub",
    .aliases = "flash_hub", .source = "docs/backends.md 2.1, hub.fa2.cpu", .rank = 52, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CPU), .package = "kernels", .needs = "kernels>=0.12", .dtypes = RAPTI_EXT_HALF,
    .determinism = RAPT_DET_RUN, .can = RAPTI_EXT_HEADS | BOTTOM_RIGHT | RAPT_CAN_PACKED | RAPT_CAN_SCALE,
    .unknown = UNKNOWN},
  [FA2_VARLEN] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.fa2.varlen", .display = "flash_attention_2_hub",
    .aliases = "flash_hub,flash_varlen_hub", .source = "docs/backends.md 2.1, hub.fa2.cuda; 2, row varlen",
    .classes = FLASH, .rank = 53, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "kernels",
    .needs = "kernels>=0.12 torch>=2.10", .cc = "8.x 9.x 10.x 12.x", .dtypes = RAPTI_EXT_HALF, .d_max = 256,
    .offset_bits = 32, .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN, .can = FA2_CAN | PACKED,
    .unknown = UNKNOWN, .rng = "CUDA Philox, in steps of 1/256"},
  [FA3] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.fa3", .display = "flash_attention_3_hub",
    .aliases = "_flash_3_hub", .source = "docs/backends.md 2.1, hub.fa3; 2, column fa3", .classes = FLASH, .rank = 40,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "kernels",
    .needs = "kernels>=0.12 torch>=2.9 cuda>=12.6,<13.1", .cc = "8.0-9.0", .dtypes = RAPTI_EXT_HALF, .d_max = 256,
    .d_step = 8, .dv_rule = RAPT_DV_ANY, .dv_max = 512, .dv_step = 8, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN, .can = COMMON | RAPT_CAN_SOFTCAP | RAPT_CAN_DENSE, .unknown = UNKNOWN},
  [FA3_VARLEN] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.fa3.varlen", .display = "flash_attention_3_hub",
    .aliases = "_flash_3_hub,_flash_3_varlen_hub", .source = "docs/backends.md 2.1, hub.fa3; 2, row varlen",
    .classes = FLASH, .rank = 41, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "kernels",
    .needs = "kernels>=0.12 torch>=2.9 cuda>=12.6,<13.1", .cc = "8.0-9.0", .dtypes = RAPTI_EXT_HALF, .d_max = 256,
    .d_step = 8, .dv_rule = RAPT_DV_ANY, .dv_max = 512, .dv_step = 8, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN, .can = COMMON | RAPT_CAN_SOFTCAP | PACKED, .unknown = UNKNOWN},
  /* Reports 4.0.0.beta8; what fa4 gained later is not known here. */
  [FA4] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.fa4", .display = "flash_attention_4_hub",
    .aliases = "flash_4_hub", .source = "docs/backends.md 2.1, hub.fa4; 2, column fa4", .classes = FLASH, .rank = 60,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "kernels", .needs = "kernels>=0.12.3 cuda>=12.8",
    .cc = "9.x 10.x 8.x? 11.x? 12.x?", .dtypes = RAPTI_EXT_HALF, .d_min = 8, .d_max = 512, .d_step = 8,
    .d_unknown_above = 128, .dv_rule = RAPT_DV_ANY, .dv_max = 512, .dv_step = 8, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | BOTTOM_RIGHT | RAPT_CAN_LSE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE | RAPT_CAN_DENSE,
    .unknown = UNKNOWN | RAPT_CAN_ANY_STRIDE | RAPT_CAN_WINDOW | RAPT_CAN_SOFTCAP | RAPT_CAN_SINKS |
               RAPT_CAN_GRAD_SINKS},
  [SAGE] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.sage", .display = "sage_hub",
    .source = "docs/backends.md 2.1, hub.sage; 4", .classes = RAPT_CLASS_FUSED | RAPT_CLASS_APPROX, .rank = 139,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "kernels", .needs = "kernels>=0.12 cuda>=12.8",
    .cc = "8.0 8.9 9.0 12.0", .dtypes = RAPTI_EXT_HALF, .d_max = 128, .offset_bits = 31, .accuracy = RAPT_APPROX,
    .determinism = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | RAPT_CAN_CAUSAL | RAPT_CAN_DENSE | RAPT_CAN_LSE | RAPT_CAN_SCALE,
    .unknown = UNKNOWN | RAPT_CAN_SCALE_NEGATIVE},
  /* Unknown keywords are ignored there; the page lists a forward with sinks, nothing of windows and caps. */
  [AITER_CK] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.aiter_ck", .display = "aiter_hub", .aliases = "aiter_fa2_hub",
    .source = "docs/backends.md 2.1, hub.aiter_ck", .classes = FLASH, .rank = 74, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_HIP), .package = "kernels", .needs = "kernels>=0.12", .arch = "gfx942 gfx950",
    .dtypes = RAPT_DT(RAPT_BF16), .dims = aiter_ck_dims, .n_dims = 2, .determinism = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | BOTTOM_RIGHT | RAPT_CAN_SINKS | RAPT_CAN_LSE | RAPT_CAN_DENSE | PACKED | RAPT_CAN_SCALE,
    .unknown = UNKNOWN | RAPT_CAN_SCALE_NEGATIVE | RAPT_CAN_WINDOW | RAPT_CAN_ALIBI | RAPT_CAN_SOFTCAP |
               RAPT_CAN_DROPOUT},
  [AITER_TRITON] = {.struct_size = RAPT_ROW_SIZE, .id = "hub.aiter_triton", .display = "aiter_hub",
    .source = "docs/backends.md 2.1, hub.aiter_triton", .classes = FLASH, .rank = 75, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_HIP), .package = "kernels", .needs = "kernels>=0.12",
    .arch = "gfx942 gfx950 gfx1250 gfx1150 gfx1151", .dtypes = RAPTI_EXT_HALF, .d_unknown_above = 128,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = BOTTOM_RIGHT | RAPT_CAN_WINDOW | RAPT_CAN_BACKWARD | RAPT_CAN_DENSE | RAPT_CAN_SCALE,
    .unknown = UNKNOWN | RAPT_CAN_SCALE_NEGATIVE | RAPTI_EXT_HEADS | RAPT_CAN_ALIBI | RAPT_CAN_SOFTCAP |
               RAPT_CAN_DROPOUT | RAPT_CAN_LSE | RAPT_CAN_SINKS},
};

static const uint32_t notes[ROWS] = {
  [FA2_XPU] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN, [FA2_CPU] = RAPTI_EXT_DET_UNKNOWN,
  [FA3] = RAPTI_EXT_INDEX_UNKNOWN, [FA3_VARLEN] = RAPTI_EXT_INDEX_UNKNOWN,
  [FA4] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN, [SAGE] = RAPTI_EXT_DET_UNKNOWN,
  [AITER_CK] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN,
  [AITER_TRITON] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN};

/* The AMX and AVX512-BF16 path takes even widths; without those instructions a dense fallback with all scores runs. */
static void fa2_cpu(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const char *isa = rapt_facts_get(e->facts, "isa");
  rapti_tri slow = isa ? rapti_tri_of(strcmp(isa, "avx512bf16") != 0) : RAPTI_OPEN;
  if (p->Hkv < p->Hq)
    rapti_ext_if(e, slow, "isa", RAPT_CODE_HEADS, RAPT_FIELD_K, "fewer kv heads than query heads", "avx512bf16 and AMX");
  rapti_ext_dims(e, rapti_tri_and(rapti_tri_not(slow), rapti_tri_of(p->D % 2 != 0)), RAPTI_NO, "isa", "an even D");
  if (slow == RAPTI_YES) rapti_ext_memory(e, rapti_ext_scores(p) > INT64_MAX / 8 ? INT64_MAX : 8 * rapti_ext_scores(p));
  if (slow == RAPTI_OPEN) rapti_ext_if(e, slow, "isa", RAPT_CODE_MEMORY, RAPT_FIELD_MEMORY_LIMIT, "", "");
}

static void fa4(rapti_ext *e) {
  if (e->p->D <= 128 && e->p->D == e->p->Dv) rapti_ext_fa4(e);
  else if (e->p->D <= 128) rapti_ext_unknown(e, RAPT_FIELD_V, "Dv other than D");
}

/* s_aux is fp32. */
static void aiter_ck(rapti_ext *e) {
  int dtype = e->p->sinks.dtype;
  if (dtype && dtype != RAPT_FP32) rapti_ext_fail(e, RAPT_CODE_SINK, RAPT_FIELD_SINKS, rapt_dtype_name(dtype), "fp32");
}

static uint32_t extra(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                      uint32_t n) {
  static void (*const checks[ROWS])(rapti_ext *e) = {
    [FA2_CUDA] = rapti_ext_fa2, [FA2_XPU] = rapti_ext_fa2, [FA2_CPU] = fa2_cpu, [FA2_VARLEN] = rapti_ext_fa2,
    [FA3] = rapti_ext_fa3, [FA3_VARLEN] = rapti_ext_fa3, [FA4] = fa4, [AITER_CK] = aiter_ck};
  rapti_ext e = {cast, facts, why, n, 0};
  (void)self;
  if (!(rows[row].kinds & RAPT_KIND(cast->device))) return 0;
  if (checks[row]) checks[row](&e);
  rapti_ext_notes(&e, notes[row]);
  return e.count;
}

const rapt_backend *rapti_backend_hub(void) {
  static const rapt_backend backend = {.struct_size = RAPT_BACKEND_SIZE, .api_version = RAPT_PROVIDER_VERSION,
                                       .n_rows = ROWS, .rows = rows, .name = "hub", .extra = extra};
  return &backend;
}
