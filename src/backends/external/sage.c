/* SPDX-License-Identifier: Apache-2.0 */
/* SageAttention (docs/backends.md section 4): quantised products, unknown keywords swallowed, no gradients. */
#include "backends/external/ext.h"

enum { AUTO, FP16_CUDA, TRITON, FP8_CUDA, FP8_SM90, VARLEN, SAGE3, ROWS };

#define CLASSES (RAPT_CLASS_FUSED | RAPT_CLASS_APPROX)
#define BASE (RAPTI_EXT_HEADS | RAPT_CAN_SCALE)
#define DENSE (BASE | RAPT_CAN_CAUSAL | RAPT_CAN_DENSE | RAPT_CAN_LSE)
#define UNKNOWN (RAPTI_EXT_UNKNOWN | RAPT_CAN_SCALE_ZERO | RAPT_CAN_SCALE_NEGATIVE)
#define NEEDS "sageattention>=2.1.1 torch>=2.3 triton>=3.0"

static const rapt_dims sage3_dims[] = {{64, 64}, {128, 128}};

static const rapt_row rows[ROWS] = {
  [AUTO] = {.struct_size = RAPT_ROW_SIZE, .id = "sage.auto", .display = "sage",
    .source = "docs/backends.md 4, row `sageattn` picks it on", .classes = CLASSES, .rank = 130,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "sageattention", .needs = NEEDS " cuda>=12.0",
    .cc = "8.0 8.6 8.9 9.0 12.x", .dtypes = RAPTI_EXT_HALF, .d_max = 128, .offset_bits = 31,
    .accuracy = RAPT_APPROX, .determinism = RAPT_DET_RUN, .can = DENSE, .unknown = UNKNOWN},
  [FP16_CUDA] = {.struct_size = RAPT_ROW_SIZE, .id = "sage.fp16_cuda", .display = "sage_fp16_cuda",
    .aliases = "_sage_qk_int8_pv_fp16_cuda", .source = "docs/backends.md 4, column sage.fp16_cuda",
    .classes = CLASSES, .rank = 131, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA),
    .package = "sageattention", .needs = NEEDS " cuda>=12.0", .cc = "8.0 8.6? 8.7? 8.9? 9.0? 10.0? 12.x?",
    .dtypes = RAPTI_EXT_HALF, .d_max = 128, .offset_bits = 31, .accuracy = RAPT_APPROX,
    .determinism = RAPT_DET_RUN, .can = DENSE, .unknown = UNKNOWN},
  [TRITON] = {.struct_size = RAPT_ROW_SIZE, .id = "sage.triton", .display = "sage_triton",
    .aliases = "_sage_qk_int8_pv_fp16_triton", .source = "docs/backends.md 4, column sage.triton",
    .classes = CLASSES, .rank = 132, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA),
    .package = "sageattention", .needs = NEEDS " cuda>=12.0", .cc = "8.6 0.0-8.5? 8.7-11.255? 12.1-255.255?",
    .dtypes = RAPTI_EXT_HALF, .d_max = 128, .offset_bits = 31, .accuracy = RAPT_APPROX,
    /* The mask is given in full and not with causal; an additive one acts in base 2: no bias. */
    .determinism = RAPT_DET_RUN, .can = DENSE | RAPT_CAN_MASK, .unknown = UNKNOWN},
  [FP8_CUDA] = {.struct_size = RAPT_ROW_SIZE, .id = "sage.fp8_cuda", .display = "sage_fp8_cuda",
    .aliases = "_sage_qk_int8_pv_fp8_cuda", .source = "docs/backends.md 4, column sage.fp8_cuda",
    .classes = CLASSES, .rank = 133, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA),
    .package = "sageattention", .needs = NEEDS " cuda>=12.4", .cc = "8.9 12.0 12.1 9.0? 10.0?",
    .dtypes = RAPTI_EXT_HALF, .d_max = 128, .offset_bits = 31, .accuracy = RAPT_APPROX,
    .determinism = RAPT_DET_RUN, .can = DENSE, .unknown = UNKNOWN},
  [FP8_SM90] = {.struct_size = RAPT_ROW_SIZE, .id = "sage.fp8_sm90", .display = "sage_fp8_sm90",
    .aliases = "_sage_qk_int8_pv_fp8_cuda_sm90", .source = "docs/backends.md 4, column sage.fp8_sm90",
    .classes = CLASSES, .rank = 134, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA),
    .package = "sageattention", .needs = NEEDS " cuda>=12.3", .known_bad = "sageattention=2.2.0", .cc = "9.0",
    .dtypes = RAPTI_EXT_HALF, .d_max = 128, .offset_bits = 31, .accuracy = RAPT_APPROX,
    .determinism = RAPT_DET_RUN, .can = DENSE, .unknown = UNKNOWN},
  /* Causal needs equal lengths in every sequence, which no metadata shows. */
  [VARLEN] = {.struct_size = RAPT_ROW_SIZE, .id = "sage.varlen", .display = "sage_varlen", .aliases = "sage_varlen",
    .source = "docs/backends.md 4, column sage.varlen", .classes = CLASSES, .rank = 135, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "sageattention", .needs = NEEDS " cuda>=12.0",
    .cc = "8.x 9.0 0.0-7.255? 9.1-255.255?", .dtypes = RAPTI_EXT_HALF, .d_max = 128, .offset_bits = 31,
    .accuracy = RAPT_APPROX, .determinism = RAPT_DET_RUN, .can = BASE | RAPT_CAN_PACKED | RAPT_CAN_ON_DEVICE,
    .unknown = UNKNOWN},
  /* Scale, mask and window are accepted and ignored; k is changed in place: give it a copy. */
  [SAGE3] = {.struct_size = RAPT_ROW_SIZE, .id = "sage3", .aliases = "sage_blackwell_hub",
    .source = "docs/backends.md 4, column sage3",
    .classes = CLASSES, .rank = 140, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "sageattn3",
    .needs = "sageattn3>=1.0.0 torch>=2.8 cuda>=12.8 python>=3.13", .cc = "12.0 12.1 10.0?",
    .dtypes = RAPTI_EXT_HALF, .dims = sage3_dims, .n_dims = 2, .offset_bits = 31, .accuracy = RAPT_APPROX,
    .determinism = RAPT_DET_RUN, .can = RAPT_CAN_DENSE, .unknown = RAPTI_EXT_UNKNOWN | RAPT_CAN_CAUSAL},
};

/* CUDA 12.4 on 8.9 (the row's own floor), 12.8 on 12.x. */
static void fp8_cuda(rapti_ext *e) {
  rapti_tri new = rapti_ext_cc_in(e->facts, RAPTI_CC(12, 0), RAPTI_CC(12, 255));
  rapti_ext_if(e, rapti_tri_and(new, rapti_ext_before(e->facts, "cuda", RAPTI_VER(12, 8, 0))), "cc, cuda",
               RAPT_CODE_VERSION, RAPT_FIELD_BACKEND, "cuda before 12.8 on cc 12", "cuda >=12.8");
}

static uint32_t extra(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                      uint32_t n) {
  rapti_ext e = {cast, facts, why, n, 0};
  (void)self;
  if (!(rows[row].kinds & RAPT_KIND(cast->device))) return 0;
  if (row == FP8_CUDA) fp8_cuda(&e);
  rapti_ext_notes(&e, RAPTI_EXT_DET_UNKNOWN);
  return e.count;
}

/* `sageattn` goes by the generation alone and raises on those it does not know, as the cc list of its row says. */
static int pick(void *self, uint32_t row, const rapt_problem *p, const rapt_facts *facts, uint32_t *member) {
  (void)self;
  *member = row;
  if (row != AUTO || p->device != RAPT_CUDA) return 1;
  int cc = rapti_ext_cc(facts);
  if (cc < 0) return 0;
  if (cc == RAPTI_CC(8, 0)) *member = FP16_CUDA;
  if (cc == RAPTI_CC(8, 6)) *member = TRITON;
  if (cc == RAPTI_CC(8, 9) || cc >> 8 == 12) *member = FP8_CUDA;
  if (cc == RAPTI_CC(9, 0)) *member = FP8_SM90;
  return 1;
}

const rapt_backend *rapti_backend_sage(void) {
  static const rapt_backend backend = {.struct_size = RAPT_BACKEND_SIZE, .api_version = RAPT_PROVIDER_VERSION,
                                       .n_rows = ROWS, .rows = rows, .name = "sage", .extra = extra, .pick = pick};
  return &backend;
}
