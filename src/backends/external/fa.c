/* SPDX-License-Identifier: Apache-2.0 */
/* FlashAttention-2, -3 and -4 from their own packages (docs/backends.md section 2). */
#include "backends/external/ext.h"

enum { FA2, FA2_VARLEN, FA2_ROCM_CK, FA2_ROCM_TRITON, FA3, FA3_VARLEN, FA4, ROWS };

#define FLASH (RAPT_CLASS_FUSED | RAPT_CLASS_FLASH)
#define BOTTOM_RIGHT (RAPT_CAN_CAUSAL | RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_CAUSAL_WIDE)
/* A negative scale overflows the exponential, zero is not recorded. */
#define COMMON (RAPTI_EXT_HEADS | BOTTOM_RIGHT | RAPT_CAN_WINDOW | RAPT_CAN_SOFTCAP | RAPT_CAN_LSE | \
                RAPT_CAN_BACKWARD | RAPT_CAN_SCALE)
#define PACKED (RAPT_CAN_PACKED | RAPT_CAN_ON_DEVICE)
#define UNKNOWN (RAPTI_EXT_UNKNOWN | RAPT_CAN_SCALE_ZERO)
#define FA2_CAN (COMMON | RAPT_CAN_ALIBI | RAPT_CAN_DROPOUT)
/* The ROCm pages record device, dtypes and width only. */
#define ROCM_UNKNOWN \
  (UNKNOWN | RAPTI_EXT_HEADS | BOTTOM_RIGHT | RAPT_CAN_SOFTCAP | RAPT_CAN_ALIBI | RAPT_CAN_DROPOUT | RAPT_CAN_LSE | \
   RAPT_CAN_SCALE | RAPT_CAN_SCALE_NEGATIVE)
#define AMD_ARCH "gfx90a gfx942 gfx950 gfx1100 gfx1101 gfx1102 gfx1103 gfx1200 gfx1201"
#define PHILOX "CUDA Philox, in steps of 1/256"

static const rapt_row rows[ROWS] = {
  [FA2] = {.struct_size = RAPT_ROW_SIZE, .id = "fa2", .display = "flash_attention_2", .aliases = "flash2,flash",
    .source = "docs/backends.md 2, column fa2", .classes = FLASH, .rank = 20, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "flash-attn", .needs = "flash-attn>=2.6.3 torch>=2.2 cuda>=12.0",
    .cc = "8.0-12.x", .cc_built = "flash-attn", .dtypes = RAPTI_EXT_HALF, .d_max = 256,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN, .can = FA2_CAN | RAPT_CAN_DENSE,
    .unknown = UNKNOWN, .rng = PHILOX},
  [FA2_VARLEN] = {.struct_size = RAPT_ROW_SIZE, .id = "fa2.varlen", .display = "flash_attention_2",
    .aliases = "flash2,flash,flash_varlen", .source = "docs/backends.md 2, column fa2, row varlen", .classes = FLASH,
    .rank = 21, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "flash-attn",
    .needs = "flash-attn>=2.6.3 torch>=2.2 cuda>=12.0", .cc = "8.0-12.x", .cc_built = "flash-attn",
    .dtypes = RAPTI_EXT_HALF, .d_max = 256, .offset_bits = 32, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN, .can = FA2_CAN | PACKED, .unknown = UNKNOWN, .rng = PHILOX},
  [FA2_ROCM_CK] = {.struct_size = RAPT_ROW_SIZE, .id = "fa2.rocm_ck", .display = "flash_attention_2",
    .aliases = "flash2,flash", .source = "docs/backends.md 2, ROCm builds", .classes = FLASH, .rank = 22,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_HIP), .package = "flash-attn",
    .needs = "flash-attn>=2.6.3 rocm>=6.0", .arch = AMD_ARCH, .dtypes = RAPTI_EXT_HALF, .d_max = 256,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN, .can = RAPT_CAN_DENSE | RAPT_CAN_BACKWARD,
    .unknown = ROCM_UNKNOWN | RAPT_CAN_WINDOW},
  [FA2_ROCM_TRITON] = {.struct_size = RAPT_ROW_SIZE, .id = "fa2.rocm_triton", .display = "flash_attention_2",
    .aliases = "flash2,flash", .source = "docs/backends.md 2, ROCm builds", .classes = FLASH, .rank = 23,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_HIP), .package = "flash-attn", .needs = "flash-attn>=2.6.3",
    .arch = AMD_ARCH " gfx908 gfx1030", .dtypes = RAPTI_EXT_HALF | RAPT_DT(RAPT_FP32), .d_unknown_above = 256,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN, .can = RAPT_CAN_DENSE,
    .unknown = ROCM_UNKNOWN | RAPT_CAN_BACKWARD},
  [FA3] = {.struct_size = RAPT_ROW_SIZE, .id = "fa3", .display = "flash_attention_3", .aliases = "flash3,_flash_3",
    .source = "docs/backends.md 2, column fa3", .classes = FLASH, .rank = 10, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "flash-attn-3", .needs = "flash-attn-3>=3.0.0 cuda>=12.3",
    .cc = "8.0-9.0", .cc_built = "flash-attn-3", .dtypes = RAPTI_EXT_HALF, .d_max = 256, .d_step = 8,
    .dv_rule = RAPT_DV_ANY, .dv_max = 512, .dv_step = 8, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN, .can = COMMON | RAPT_CAN_DENSE, .unknown = UNKNOWN},
  [FA3_VARLEN] = {.struct_size = RAPT_ROW_SIZE, .id = "fa3.varlen", .display = "flash_attention_3",
    .aliases = "flash3,_flash_3,_flash_varlen_3", .source = "docs/backends.md 2, column fa3, row varlen",
    .classes = FLASH, .rank = 11, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "flash-attn-3",
    .needs = "flash-attn-3>=3.0.0 cuda>=12.3", .cc = "8.0-9.0", .cc_built = "flash-attn-3",
    .dtypes = RAPTI_EXT_HALF, .d_max = 256, .d_step = 8, .dv_rule = RAPT_DV_ANY, .dv_max = 512, .dv_step = 8,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN, .can = COMMON | PACKED, .unknown = UNKNOWN},
  [FA4] = {.struct_size = RAPT_ROW_SIZE, .id = "fa4", .display = "flash_attention_4", .aliases = "flash4",
    .source = "docs/backends.md 2, column fa4", .classes = FLASH, .rank = 30, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "flash-attn-4", .needs = "python>=3.10", .cc = "8.0-12.x",
    .dtypes = RAPTI_EXT_HALF, .d_min = 8, .d_max = 512, .d_step = 8, .dv_rule = RAPT_DV_ANY, .dv_max = 512,
    .dv_step = 8, .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = COMMON | RAPT_CAN_DENSE | RAPT_CAN_SINKS | RAPT_CAN_GRAD_SINKS,
    .unknown = UNKNOWN | RAPT_CAN_ANY_STRIDE},
};

static const uint32_t notes[ROWS] = {
  [FA2_ROCM_CK] = RAPTI_EXT_DET_UNKNOWN | RAPTI_EXT_INDEX_UNKNOWN,
  [FA2_ROCM_TRITON] = RAPTI_EXT_DET_UNKNOWN | RAPTI_EXT_INDEX_UNKNOWN, [FA3] = RAPTI_EXT_INDEX_UNKNOWN,
  [FA3_VARLEN] = RAPTI_EXT_INDEX_UNKNOWN, [FA4] = RAPTI_EXT_INDEX_UNKNOWN};

void rapti_ext_fa2(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (!(p->dropout > 0)) return;
  if (p->dropout >= 1) rapti_ext_fail(e, RAPT_CODE_DROPOUT, RAPT_FIELD_DROPOUT, "1", "less than 1");
  if (p->softcap > 0) rapti_ext_fail(e, RAPT_CODE_SOFTCAP, RAPT_FIELD_SOFTCAP, "used with dropout", "one of the two");
  if (!rapti_ext_grads(p) || p->D <= 192) return;
  rapti_tri small = rapti_tri_or(rapti_ext_cc_in(e->facts, RAPTI_CC(8, 6), RAPTI_CC(8, 6)),
                                 rapti_ext_cc_in(e->facts, RAPTI_CC(8, 9), RAPTI_CC(8, 9)));
  small = rapti_tri_or(small, rapti_ext_cc_in(e->facts, RAPTI_CC(12, 0), RAPTI_CC(12, 255)));
  rapti_ext_dims(e, small, RAPTI_NO, "cc", "at most 192 for a backward with dropout on cc 8.6, 8.9 and 12.x");
}

/* Dv other than D: on cc 9.0 and in two ranges. */
void rapti_ext_fa3_dims(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (p->D == p->Dv) return;
  bool pair = (p->D > 128 && p->D <= 192 && p->Dv > 96 && p->Dv <= 128) || (p->D <= 64 && p->Dv <= 512);
  rapti_tri here = rapti_tri_and(rapti_tri_of(pair), rapti_ext_cc_in(e->facts, RAPTI_CC(9, 0), RAPTI_CC(9, 0)));
  rapti_ext_dims(e, RAPTI_NO, rapti_tri_not(here), "cc", "D, or on cc 9.0 97..128 for D 129..192, up to 512 for D <= 64");
}

void rapti_ext_fa3(rapti_ext *e) {
  const rapt_problem *p = e->p;
  rapti_ext_fa3_dims(e);
  /* Widths are rounded up to 64, 96, 128, 192 or 256; a deterministic backward stops before the last. */
  if (rapti_ext_grads(p) && p->determinism > RAPT_DET_NONE && (p->D > 192 || p->Dv > 192))
    rapti_ext_fail(e, RAPT_CODE_DETERMINISM, RAPT_FIELD_DETERMINISM, "none in a backward above D 192", "run or more");
}

/* ---- FlashAttention-4: limits by generation ---- */

static bool fa4_pair(int64_t d, int64_t dv) {
  return (d == 192 && dv == 128) || (d == 256 && dv == 256) || ((d == 64 || d == 512) && dv == 512);
}

static void fa4_dims(rapti_ext *e, int major) {
  const rapt_problem *p = e->p;
  bool small = p->D <= 128 && p->Dv <= 128;
  if (major < 0) {
    if (p->D != p->Dv || !small) rapti_ext_dims(e, RAPTI_OPEN, RAPTI_OPEN, "cc", "");
  } else if (major == 9) {
    rapti_ext_dims(e, rapti_tri_of(p->D > 256), rapti_tri_of(p->Dv > 256 || p->Dv < 8), "cc", "8..256 on cc 9.0");
  } else if (major == 10 || major == 11) {
    bool good = fa4_pair(p->D, p->Dv) || (small && p->D == p->Dv);
    bool head = p->D > 128 && p->D != 192 && p->D != 256 && p->D != 512;
    rapti_ext_dims(e, rapti_tri_of(head), rapti_tri_of(!good && !head), "cc",
                   "8..128, (192,128), (256,256), (64,512), (512,512) on cc 10 and 11");
  } else if (p->D != p->Dv || !small) {
    rapti_ext_unknown(e, RAPT_FIELD_Q, "D above 128, or Dv other than D, on cc 8 and 12");
  }
}

/* Strides but the last are multiples of 16 bytes; those of axes of size 1 count for nothing (S9). Where the width is no
 * such multiple, its own code says so. */
static void fa4_strides(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const rapt_desc *t[] = {&p->q, &p->k, &p->v};
  for (int i = 0; i < 3; i++)
    for (int axis = 0; axis < 3 && (i < 2 ? p->D : p->Dv) % 8 == 0; axis++) {
      const int64_t size[] = {p->B, i ? p->Hkv : p->Hq, i ? p->Skv : p->Sq};
      if (size[axis] > 1 && t[i]->stride[axis] % 8) {
        rapti_ext_fail_int(e, RAPT_CODE_STRIDE, RAPT_FIELD_Q + i, t[i]->stride[axis], "a multiple of 8 elements");
        break;
      }
    }
}

static void fa4_backward(rapti_ext *e, int major) {
  const rapt_problem *p = e->p;
  const rapti_tri old = major < 0 ? RAPTI_OPEN : rapti_tri_of(major == 8);
  const rapti_tri new = major < 0 ? RAPTI_OPEN : rapti_tri_of(major == 12);
  rapti_ext_if(e, old, "cc", RAPT_CODE_GRAD, RAPT_FIELD_GRAD, "cc 8", "cc 9 to 12");
  if (p->determinism > RAPT_DET_NONE)
    rapti_ext_if(e, new, "cc", RAPT_CODE_DETERMINISM, RAPT_FIELD_DETERMINISM, "none in a backward on cc 12", "run or more");
  if (p->sinks.dtype)
    rapti_ext_if(e, rapti_tri_or(old, new), "cc", RAPT_CODE_GRAD_SINK, RAPT_FIELD_GRAD, "sinks", "cc 9 to 11");
  if (p->D == 256 && p->softcap > 0)
    rapti_ext_fail(e, RAPT_CODE_SOFTCAP, RAPT_FIELD_SOFTCAP, "used in a backward at D 256", "another D");
  if (p->D == 256 && p->dlse.dtype) rapti_ext_fail(e, RAPT_CODE_GRAD, RAPT_FIELD_DLSE, "dlse at D 256", "no dlse");
}

void rapti_ext_fa4(rapti_ext *e) {
  const rapt_problem *p = e->p;
  int cc = rapti_ext_cc(e->facts), major = cc < 0 ? -1 : cc >> 8;
  rapti_tri ten = rapti_ext_cc_in(e->facts, RAPTI_CC(10, 0), RAPTI_CC(10, 255));
  if (major >= 0 && (major < 8 || major > 12)) return;          /* DEVICE says it */
  fa4_dims(e, major);
  fa4_strides(e);
  if (p->D == 256 && p->softcap > 0)
    rapti_ext_if(e, ten, "cc", RAPT_CODE_SOFTCAP, RAPT_FIELD_SOFTCAP, "used with D 256 on cc 10", "another D");
  if (p->D == 256 && p->sinks.dtype)
    rapti_ext_if(e, ten, "cc", RAPT_CODE_SINK, RAPT_FIELD_SINKS, "given with D 256 on cc 10", "another D");
  if (rapti_ext_grads(p)) fa4_backward(e, major);
}

static uint32_t extra(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                      uint32_t n) {
  static void (*const checks[ROWS])(rapti_ext *e) = {[FA2] = rapti_ext_fa2, [FA2_VARLEN] = rapti_ext_fa2,
                                                     [FA3] = rapti_ext_fa3, [FA3_VARLEN] = rapti_ext_fa3,
                                                     [FA4] = rapti_ext_fa4};
  rapti_ext e = {cast, facts, why, n, 0};
  (void)self;
  if (!(rows[row].kinds & RAPT_KIND(cast->device))) return 0;
  if (checks[row]) checks[row](&e);
  rapti_ext_notes(&e, notes[row]);
  return e.count;
}

const rapt_backend *rapti_backend_fa(void) {
  static const rapt_backend backend = {.struct_size = RAPT_BACKEND_SIZE, .api_version = RAPT_PROVIDER_VERSION,
                                       .n_rows = ROWS, .rows = rows, .name = "fa", .extra = extra};
  return &backend;
}
