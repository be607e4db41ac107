/* SPDX-License-Identifier: Apache-2.0 */
/* AITER on ROCm (docs/backends.md section 6). */
#include "backends/external/ext.h"

#include <string.h>

enum { CK, ASM_V3, OPUS, ROWS };

#define BOTTOM_RIGHT (RAPT_CAN_CAUSAL | RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_CAUSAL_WIDE)
/* softmax_scale is an argument; nobody recorded values that are not positive. */
#define UNKNOWN (RAPTI_EXT_UNKNOWN | RAPT_CAN_SCALE_ZERO | RAPT_CAN_SCALE_NEGATIVE)

static const rapt_dims asm_dims[] = {{128, 128}, {192, 128}};
static const rapt_dims opus_dims[] = {{64, 64}, {128, 128}, {192, 128}};

static const rapt_row rows[ROWS] = {
  [CK] = {.struct_size = RAPT_ROW_SIZE, .id = "aiter.ck", .display = "aiter",
    .source = "docs/backends.md 6, column aiter.ck", .classes = RAPT_CLASS_FUSED | RAPT_CLASS_FLASH, .rank = 72,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_HIP), .package = "aiter", .needs = "aiter>=0.1.9",
    .arch = "gfx942 gfx950 gfx9*?", .dtypes = RAPTI_EXT_HALF, .d_max = 256, .d_step = 8, .dv_rule = RAPT_DV_ANY,
    .dv_max = 256, .dv_step = 8, .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    /* Packed by the varlen entry; (Sq,Skv) bias by extra. */
    .can = RAPTI_EXT_HEADS | RAPT_CAN_BIAS | RAPT_CAN_BROADCAST | RAPT_CAN_BIAS_CAUSAL | BOTTOM_RIGHT |
           RAPT_CAN_WINDOW | RAPT_CAN_SOFTCAP | RAPT_CAN_SINKS | RAPT_CAN_ALIBI | RAPT_CAN_DROPOUT | RAPT_CAN_LSE |
           RAPT_CAN_DENSE | RAPT_CAN_PACKED | RAPT_CAN_ON_DEVICE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE,
    .unknown = UNKNOWN | RAPT_CAN_GRAD_BIAS, .rng = "Philox of its own"},
  [ASM_V3] = {.struct_size = RAPT_ROW_SIZE, .id = "aiter.asm_v3", .display = "aiter",
    .source = "docs/backends.md 6, column aiter.asm_v3", .classes = RAPT_CLASS_FUSED | RAPT_CLASS_FLASH, .rank = 70,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_HIP), .package = "aiter", .needs = "aiter>=0.1.9",
    .arch = "gfx942 gfx950", .dtypes = RAPT_DT(RAPT_BF16), .dims = asm_dims, .n_dims = 2, .min_sq = 129,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | BOTTOM_RIGHT | RAPT_CAN_LSE | RAPT_CAN_DENSE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE,
    .unknown = UNKNOWN | RAPT_CAN_ANY_STRIDE},
  [OPUS] = {.struct_size = RAPT_ROW_SIZE, .id = "aiter.opus", .display = "aiter",
    .source = "docs/backends.md 6, column aiter.opus / native", .classes = RAPT_CLASS_FUSED | RAPT_CLASS_FLASH,
    .rank = 71, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_HIP), .package = "aiter", .needs = "aiter>=0.1.9",
    .arch = "gfx950 gfx942 gfx1250?", .dtypes = RAPT_DT(RAPT_BF16), .dims = opus_dims, .n_dims = 3,
    .determinism = RAPT_DET_RUN, .can = RAPT_CAN_DENSE | RAPT_CAN_SCALE,
    .unknown = UNKNOWN | RAPT_CAN_ANY_STRIDE | RAPTI_EXT_HEADS | RAPT_CAN_CAUSAL | RAPT_CAN_BOTTOM_RIGHT},
};

static const uint32_t notes[ROWS] = {
  [ASM_V3] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN, [OPUS] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN};

/* Bias is (Sq,Skv), and not together with ALiBi. */
static void ck_bias(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const int64_t *size = p->bias.size;
  if (!p->bias.dtype) return;
  if (size[0] != 1 || size[1] != 1 || size[2] != p->Sq || size[3] != p->Skv)
    rapti_ext_fail(e, RAPT_CODE_BROADCAST, RAPT_FIELD_BIAS, "another shape", "shape 1x1xSqxSkv");
  if (p->slopes.dtype) rapti_ext_fail(e, RAPT_CODE_ALIBI, RAPT_FIELD_SLOPES, "given with bias", "one of the two");
}

/* A zero side is not seen as a window; (-1,0) goes as causal. */
static bool zero_sided(const rapt_problem *p) {
  if (!rapti_ext_window(p)) return false;
  int64_t right = rapti_ext_causal(p) ? 0 : p->window[1];
  return (p->window[0] == 0 || right == 0) && !(p->window[0] == -1 && right == 0);
}

static void ck(rapti_ext *e) {
  const rapt_problem *p = e->p;
  int64_t keys, width = p->D > p->Dv ? p->D : p->Dv;
  ck_bias(e);
  if (zero_sided(p)) rapti_ext_fail(e, RAPT_CODE_WINDOW, RAPT_FIELD_WINDOW, "one with a zero side", "sides above 0, or causal");
  if (p->softcap > 0 && !p->cu)
    rapti_ext_fail(e, RAPT_CODE_SOFTCAP, RAPT_FIELD_SOFTCAP, "used in a dense call", "it in packed calls only");
  if (p->dropout >= 1) rapti_ext_fail(e, RAPT_CODE_DROPOUT, RAPT_FIELD_DROPOUT, "1", "less than 1");
  if (p->sinks.dtype && rapti_ext_grads(p))
    rapti_ext_fail(e, RAPT_CODE_GRAD_SINK, RAPT_FIELD_GRAD, "sinks", "calls without it: its backward leaves them out");
  bool fits = rapti_mul(p->cu ? 1 : p->B, p->Hkv, &keys) && rapti_mul(keys, p->Skv, &keys) &&
              rapti_mul(keys, width, &keys) && keys < INT64_C(1) << 31;   /* two bytes an element */
  if (!fits) rapti_ext_unknown(e, RAPT_FIELD_K, "k or v of 2^32 bytes and more");
}

static void asm_v3(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const char *arch = rapt_facts_get(e->facts, "arch");
  if (!rapti_ext_grads(p)) return;
  rapti_ext_if(e, arch ? rapti_tri_of(strcmp(arch, "gfx942") != 0) : RAPTI_OPEN, "arch", RAPT_CODE_GRAD,
               RAPT_FIELD_GRAD, arch ? arch : "", "gfx942");
  if (rapti_ext_causal(p) && p->Sq != p->Skv)
    rapti_ext_fail(e, RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, "given for a backward with Sq and Skv that differ", "Sq = Skv");
}

/* gfx950 has the widths 128 and (192,128), gfx942 a split-K kernel at 64. */
static void opus(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const char *arch = rapt_facts_get(e->facts, "arch");
  bool small = p->D == 64 && p->Dv == 64;
  if (!arch) { rapti_ext_dims(e, RAPTI_OPEN, RAPTI_NO, "arch", ""); return; }
  if (strcmp(arch, "gfx950") == 0) rapti_ext_dims(e, rapti_tri_of(small), RAPTI_NO, "arch", "128, (192,128)");
  if (strcmp(arch, "gfx942") == 0) rapti_ext_dims(e, rapti_tri_of(!small), RAPTI_NO, "arch", "64");
}

static uint32_t extra(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                      uint32_t n) {
  static void (*const checks[ROWS])(rapti_ext *e) = {[CK] = ck, [ASM_V3] = asm_v3, [OPUS] = opus};
  rapti_ext e = {cast, facts, why, n, 0};
  (void)self;
  if (!(rows[row].kinds & RAPT_KIND(cast->device))) return 0;
  checks[row](&e);
  rapti_ext_notes(&e, notes[row]);
  return e.count;
}

const rapt_backend *rapti_backend_aiter(void) {
  static const rapt_backend backend = {.struct_size = RAPT_BACKEND_SIZE, .api_version = RAPT_PROVIDER_VERSION,
                                       .n_rows = ROWS, .rows = rows, .name = "aiter", .extra = extra};
  return &backend;
}
