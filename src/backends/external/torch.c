/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's own attention operators (docs/backends.md section 3). */
#include "backends/external/ext.h"

/* Table order is the host's order of the members. */
enum { SDPA, FLASH_CPU, FLASH, EFFICIENT, MATH, CUDNN, VARLEN, FLASH_SLOT, ROWS };

#define FLOATS (RAPTI_EXT_HALF | RAPT_DT(RAPT_FP32) | RAPT_DT(RAPT_FP64))
#define DEVICES ((RAPT_KIND(RAPT_META) << 1) - 1)
#define TOP_LEFT (RAPT_CAN_CAUSAL | RAPT_CAN_TOP_LEFT | RAPT_CAN_CAUSAL_WIDE)
#define ANY_SCALE (RAPT_CAN_SCALE | RAPT_CAN_SCALE_ZERO | RAPT_CAN_SCALE_NEGATIVE)
#define MASKS (RAPT_CAN_MASK | RAPT_CAN_BIAS | RAPT_CAN_BROADCAST)
/* Both applied, or the call raises, depending on an unrecorded release. */
#define MASKS_CAUSAL (RAPT_CAN_MASK_CAUSAL | RAPT_CAN_BIAS_CAUSAL)
#define RNG "the host framework's generator"

/* F.scaled_dot_product_attention has torch.math's limits at most; the member picked narrows them. */
#define MATH_CAN \
  (RAPTI_EXT_HEADS | MASKS | RAPT_CAN_ANY_BIAS_DTYPE | TOP_LEFT | RAPT_CAN_DROPOUT | RAPT_CAN_DENSE | \
   RAPT_CAN_BACKWARD | RAPT_CAN_GRAD_BIAS | RAPT_CAN_ANY_STRIDE | ANY_SCALE)

static const rapt_row rows[ROWS] = {
  [SDPA] = {.struct_size = RAPT_ROW_SIZE, .id = "torch.sdpa", .display = "torch_sdpa", .aliases = "sdpa,native",
    .source = "docs/backends.md 3", .classes = RAPT_CLASS_HOST, .place = RAPT_PLACE_HOST, .ran_on_hardware = 1,
    .kinds = DEVICES, .package = "torch", .dtypes = FLOATS, .bias_dtypes = RAPT_DT(RAPT_FP32), .dv_rule = RAPT_DV_ANY, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN, .mem_per_score = 16, .can = MATH_CAN, .unknown = RAPTI_EXT_UNKNOWN,
    .rng = RNG},
  [FLASH_CPU] = {.struct_size = RAPT_ROW_SIZE, .id = "torch.flash_cpu", .display = "torch_sdpa_flash_cpu",
    .source = "docs/backends.md 3, column torch.flash_cpu", .classes = RAPT_CLASS_HOST | RAPT_CLASS_FUSED,
    .place = RAPT_PLACE_HOST, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CPU), .package = "torch",
    .dtypes = FLOATS, .bias_dtypes = RAPT_DT(RAPT_FP32), .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | MASKS | RAPT_CAN_ANY_BIAS_DTYPE | TOP_LEFT | RAPT_CAN_DENSE | RAPT_CAN_LSE |
           RAPT_CAN_BACKWARD | ANY_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | MASKS_CAUSAL},
  [FLASH] = {.struct_size = RAPT_ROW_SIZE, .id = "torch.flash", .display = "torch_sdpa_flash",
    .aliases = "_native_flash", .source = "docs/backends.md 3, column torch.flash",
    .classes = RAPT_CLASS_HOST | RAPT_CLASS_FUSED | RAPT_CLASS_FLASH, .place = RAPT_PLACE_HOST, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA) | RAPT_KIND(RAPT_HIP), .package = "torch", .cc = "8.0-12.1", .arch = "*?",
    .dtypes = RAPTI_EXT_HALF, .d_max = 256, .determinism = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | RAPT_CAN_CAUSAL | RAPT_CAN_DROPOUT | RAPT_CAN_DENSE | RAPT_CAN_LSE | RAPT_CAN_BACKWARD |
           RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN, .rng = RNG},
  [EFFICIENT] = {.struct_size = RAPT_ROW_SIZE, .id = "torch.efficient", .display = "torch_sdpa_efficient",
    .aliases = "_native_efficient", .source = "docs/backends.md 3, column torch.efficient",
    .classes = RAPT_CLASS_HOST | RAPT_CLASS_FUSED, .place = RAPT_PLACE_HOST, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA) | RAPT_KIND(RAPT_HIP), .package = "torch", .cc = "5.0-12.1", .arch = "*?",
    .dtypes = RAPTI_EXT_HALF | RAPT_DT(RAPT_FP32), .d_min = 1, .dv_rule = RAPT_DV_ANY, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN,
    .can = MASKS | TOP_LEFT | RAPT_CAN_DROPOUT | RAPT_CAN_DENSE | RAPT_CAN_LSE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | RAPTI_EXT_HEADS | MASKS_CAUSAL | RAPT_CAN_GRAD_BIAS, .rng = RNG},
  [MATH] = {.struct_size = RAPT_ROW_SIZE, .id = "torch.math", .display = "torch_sdpa_math", .aliases = "_native_math",
    .source = "docs/backends.md 3, column torch.math", .classes = RAPT_CLASS_HOST, .place = RAPT_PLACE_HOST,
    .ran_on_hardware = 1, .kinds = DEVICES, .package = "torch", .dtypes = FLOATS, .bias_dtypes = RAPT_DT(RAPT_FP32),
    .dv_rule = RAPT_DV_ANY, .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    /* Scores and weights, fp32 inside for half; 16 covers both in fp64, and the dropout's buffers in fp32. */
    .mem_per_score = 16, .can = MATH_CAN, .unknown = RAPTI_EXT_UNKNOWN, .rng = RNG},
  [CUDNN] = {.struct_size = RAPT_ROW_SIZE, .id = "torch.cudnn", .display = "torch_sdpa_cudnn",
    .aliases = "_native_cudnn", .source = "docs/backends.md 3, column torch.cudnn",
    .classes = RAPT_CLASS_HOST | RAPT_CLASS_FUSED | RAPT_CLASS_FLASH, .place = RAPT_PLACE_HOST, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "torch", .needs = "cudnn>=9.0", .cc = "8.0-12.1",
    .dtypes = RAPTI_EXT_HALF, .d_step = 8, .dv_rule = RAPT_DV_ANY, .dv_step = 8, .max_b = 65535, .max_hq = 65535,
    .min_skv = 2,
    .can = RAPTI_EXT_HEADS | MASKS | TOP_LEFT | RAPT_CAN_DROPOUT | RAPT_CAN_DENSE | RAPT_CAN_LSE | RAPT_CAN_BACKWARD |
           RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | MASKS_CAUSAL, .rng = RNG},
  [VARLEN] = {.struct_size = RAPT_ROW_SIZE, .id = "torch.varlen", .display = "torch_varlen", .aliases = "varlen_attn",
    .source = "docs/backends.md 3, row torch.varlen", .classes = RAPT_CLASS_FUSED | RAPT_CLASS_FLASH, .rank = 1,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "torch", .cc = "8.0-12.1",
    .dtypes = RAPTI_EXT_HALF, .d_max = 256, .determinism = RAPT_DET_RUN,
    .can = RAPT_CAN_WINDOW | RAPT_CAN_LSE | RAPT_CAN_PACKED | RAPT_CAN_ON_DEVICE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | RAPT_CAN_BOTTOM_RIGHT},
  [FLASH_SLOT] = {.struct_size = RAPT_ROW_SIZE, .id = "torch.flash_slot", .display = "torch_flash_slot",
    .source = "docs/backends.md 3, row torch.flash_slot", .classes = RAPT_CLASS_FUSED | RAPT_CLASS_FLASH, .rank = 2,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "flash-attn-4", .needs = "torch>=2.13",
    .cc = "9.x 10.x", .dtypes = RAPTI_EXT_HALF, .d_max = 256, .d_unknown_above = 128, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN,
    .can = RAPT_CAN_CAUSAL | RAPT_CAN_DENSE | RAPT_CAN_LSE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | RAPTI_EXT_HEADS},
};

static const uint32_t notes[ROWS] = {
  [FLASH_CPU] = RAPTI_EXT_MASK_COPY, [FLASH] = RAPTI_EXT_INDEX_UNKNOWN,
  [EFFICIENT] = RAPTI_EXT_DET_UNKNOWN | RAPTI_EXT_MASK_COPY, [CUDNN] = RAPTI_EXT_MASK_COPY,
  [VARLEN] = RAPTI_EXT_INDEX_UNKNOWN, [FLASH_SLOT] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN};

/* Fully masked rows were NaN before 2.5 (M16): any mask or bias may have one. */
static void check_empty_rows(rapti_ext *e) {
  if (!e->p->mask.dtype && !e->p->bias.dtype) return;
  rapti_ext_if(e, rapti_ext_before(e->facts, "torch", RAPTI_VER(2, 5, 0)), "torch", RAPT_CODE_KNOWN_BAD,
               RAPT_FIELD_BACKEND, "torch before 2.5", "fully masked rows are NaN");
}

static void check_heads(rapti_ext *e, uint64_t version, const char *want) {
  if (e->p->Hkv >= e->p->Hq) return;
  rapti_ext_if(e, rapti_ext_before(e->facts, "torch", version), "torch", RAPT_CODE_HEADS, RAPT_FIELD_K,
               "fewer kv heads than query heads", want);
}

/* 2.4 stops at 9.0; the first release that goes on to 12.1 is not recorded, 2.13 does. */
static void check_generation(rapti_ext *e) {
  int cc = rapti_ext_cc(e->facts);
  if (cc <= RAPTI_CC(9, 0) || cc > RAPTI_CC(12, 1)) return;
  rapti_tri old = rapti_ext_before(e->facts, "torch", RAPTI_VER(2, 5, 0));
  rapti_ext_if(e, old, "torch", RAPT_CODE_DEVICE, RAPT_FIELD_DEVICE, "torch before 2.5", "cc 8.0-9.0");
  if (old == RAPTI_NO && rapti_ext_before(e->facts, "torch", RAPTI_VER(2, 13, 0)) == RAPTI_YES)
    rapti_ext_unknown(e, RAPT_FIELD_DEVICE, "cc above 9.0 in a torch before 2.13");
}

static void flash(rapti_ext *e) {
  const rapt_problem *p = e->p;
  check_generation(e);
  check_heads(e, RAPTI_VER(2, 5, 0), "torch >= 2.5");
  bool wide = p->D > 192 && p->D <= 256 && (p->D <= 224 || p->dropout > 0);
  if (!rapti_ext_grads(p) || !wide) return;
  rapti_tri small = rapti_tri_or(rapti_ext_cc_in(e->facts, RAPTI_CC(8, 6), RAPTI_CC(8, 9)),
                                 rapti_ext_cc_in(e->facts, RAPTI_CC(12, 0), RAPTI_CC(12, 1)));
  rapti_ext_dims(e, small, RAPTI_NO, "cc", "at most 192, or over 224 without dropout, for a backward on this device");
}

static void efficient(rapti_ext *e) {
  const rapt_problem *p = e->p;
  bool half = p->q.dtype != RAPT_FP32;
  int64_t step = half ? 8 : 4;
  rapti_tri tensor_cores = rapti_ext_cc_in(e->facts, half ? RAPTI_CC(7, 0) : RAPTI_CC(8, 0), RAPTI_CC(255, 0));
  rapti_ext_dims(e, rapti_tri_and(tensor_cores, rapti_tri_of(p->D % step != 0)),
                 rapti_tri_and(tensor_cores, rapti_tri_of(p->Dv % step != 0)), "cc",
                 half ? "a multiple of 8" : "a multiple of 4");
  if (p->q.dtype == RAPT_BF16)
    rapti_ext_if(e, rapti_tri_not(rapti_ext_cc_in(e->facts, RAPTI_CC(8, 0), RAPTI_CC(255, 0))), "cc", RAPT_CODE_DTYPE,
                 RAPT_FIELD_Q, "bf16", "fp16 or fp32; bf16 on cc 8.0 and above");
  if (rapti_ext_grads(p) && p->B >= 65536)
    rapti_ext_fail_int(e, RAPT_CODE_SIZE, RAPT_FIELD_B, p->B, "at most 65535 for a backward");
}

/* Widths above 128: MLA's (192,128), later everything up to 256 in builds with a new frontend. */
static void cudnn_dims(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const rapt_facts *f = e->facts;
  if (p->D <= 128 && p->Dv <= 128) return;
  rapti_tri big = rapti_ext_cc_in(f, RAPTI_CC(9, 0), RAPTI_CC(9, 0));
  big = rapti_tri_or(big, rapti_ext_cc_in(f, RAPTI_CC(10, 0), RAPTI_CC(10, 255)));
  rapti_tri mla = rapti_tri_and(big, rapti_tri_not(rapti_ext_before(f, "cudnn", RAPTI_VER(9, 11, 0))));
  rapti_tri wide = rapti_tri_and(big, rapti_tri_not(rapti_ext_before(f, "cudnn", RAPTI_VER(9, 22, 1))));
  rapti_tri late = rapti_tri_and(rapti_ext_cc_in(f, RAPTI_CC(10, 7), RAPTI_CC(10, 7)),
                                 rapti_ext_before(f, "cudnn", RAPTI_VER(9, 25, 1)));
  wide = rapti_tri_and(wide, rapti_tri_not(late));
  if (wide != RAPTI_NO) {
    rapti_tri frontend = rapti_tri_not(rapti_ext_before(f, "cudnn-frontend", RAPTI_VER(1, 24, 0)));
    wide = rapti_tri_and(wide, frontend);
  }
  if (rapti_ext_grads(p)) wide = rapti_tri_and(wide, rapti_tri_of(p->D == 256 && p->Dv == 256));
  rapti_tri in = rapti_tri_of(p->D <= 256 && p->Dv <= 256);
  rapti_tri pair = rapti_tri_and(mla, rapti_tri_of(p->D == 192));
  rapti_tri head = rapti_tri_or(rapti_tri_of(p->D <= 128), rapti_tri_or(pair, rapti_tri_and(in, wide)));
  rapti_tri value = rapti_tri_or(rapti_tri_of(p->Dv <= 128 && (p->D <= 128 || p->Dv == 128)), rapti_tri_and(in, wide));
  rapti_ext_dims(e, rapti_tri_not(head), rapti_tri_not(value), "cc, cudnn, cudnn-frontend",
                 "at most 128; (192,128) from cuDNN 9.11 on cc 9.0 and 10.x");
}

static void cudnn(rapti_ext *e) {
  const rapt_problem *p = e->p;
  check_generation(e);
  check_heads(e, RAPTI_VER(2, 5, 0), "torch >= 2.5");
  cudnn_dims(e);
  if (!(p->dropout > 0)) return;
  double sixteenths = p->dropout * 16;
  if (p->Sq == 1 || sixteenths != (double)(int)sixteenths)
    rapti_ext_fail(e, RAPT_CODE_DROPOUT, RAPT_FIELD_DROPOUT, p->Sq == 1 ? "used for one query row" : "no multiple of 1/16",
                   "multiples of 1/16, more than one query row");
  rapti_tri bad = rapti_tri_and(rapti_ext_before(e->facts, "cudnn", RAPTI_VER(9, 14, 0)),
                                rapti_tri_not(rapti_ext_before(e->facts, "cudnn", RAPTI_VER(9, 11, 1))));
  rapti_ext_if(e, bad, "cudnn", RAPT_CODE_DROPOUT, RAPT_FIELD_DROPOUT, "used with a cuDNN between 9.11 and 9.14",
               "another cuDNN version");
}

static void flash_cpu(rapti_ext *e) {
  const rapt_problem *p = e->p;
  check_heads(e, RAPTI_VER(2, 9, 0), "torch >= 2.9");
  check_empty_rows(e);
  if (rapti_ext_causal(p) && (p->has & RAPT_HAS_SCALE) && p->scale <= 0)
    rapti_ext_fail(e, RAPT_CODE_SCALE, RAPT_FIELD_SCALE, "zero or negative with causal", "a positive one");
}

static void math(rapti_ext *e) {
  check_heads(e, RAPTI_VER(2, 5, 0), "torch >= 2.5");
  check_empty_rows(e);
  if (e->p->dropout > 0 && e->p->determinism > RAPT_DET_NONE)
    rapti_ext_fail(e, RAPT_CODE_DETERMINISM, RAPT_FIELD_DETERMINISM, "none with dropout", "run or more");
}

static uint32_t extra(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                      uint32_t n) {
  static void (*const checks[ROWS])(rapti_ext *e) = {[FLASH_CPU] = flash_cpu, [FLASH] = flash, [EFFICIENT] = efficient,
                                                     [MATH] = math, [CUDNN] = cudnn};
  rapti_ext e = {cast, facts, why, n, 0};
  (void)self;
  /* A device of another kind is refused as such; limits by generation say nothing then. */
  if (!(rows[row].kinds & RAPT_KIND(cast->device))) return 0;
  if (checks[row]) checks[row](&e);
  rapti_ext_notes(&e, notes[row]);
  return e.count;
}

static int pick(void *self, uint32_t row, const rapt_problem *p, const rapt_facts *facts, uint32_t *member);
static const rapt_backend backend = {.struct_size = RAPT_BACKEND_SIZE, .api_version = RAPT_PROVIDER_VERSION,
                                     .n_rows = ROWS, .rows = rows, .name = "torch", .extra = extra, .pick = pick};

/* cuDNN comes first only above 9.15.0 on cc 9.x and 10.x (section 9, rules); after torch.math it is never reached. */
static int pick_cuda(const rapt_problem *p, const rapt_facts *facts, uint32_t *member) {
  static const uint32_t order[] = {CUDNN, FLASH, EFFICIENT, MATH};
  rapti_tri first = rapti_tri_and(rapti_ext_cc_in(facts, RAPTI_CC(9, 0), RAPTI_CC(10, 255)),
                                  rapti_tri_not(rapti_ext_before(facts, "cudnn", RAPTI_VER(9, 15, 1))));
  if (first == RAPTI_OPEN) {
    if (rapti_ext_takes(&backend, CUDNN, p, facts) != RAPTI_TAKES_NOT) return 0;
    first = RAPTI_NO;
  }
  return first == RAPTI_YES ? rapti_ext_pick(&backend, order, 4, p, facts, member)
                            : rapti_ext_pick(&backend, order + 1, 3, p, facts, member);
}

static int pick(void *self, uint32_t row, const rapt_problem *p, const rapt_facts *facts, uint32_t *member) {
  static const uint32_t cpu[] = {FLASH_CPU, MATH};
  (void)self;
  *member = row;
  if (row != SDPA) return 1;
  /* The public call returns no lse whatever runs (H13): torch.math's limits say so. */
  *member = MATH;
  if (p->flags & RAPT_WANT_LSE) return 1;
  if (p->device == RAPT_CPU) return rapti_ext_pick(&backend, cpu, 2, p, facts, member);
  if (p->device == RAPT_CUDA) return pick_cuda(p, facts, member);
  return -1;
}

const rapt_backend *rapti_backend_torch(void) { return &backend; }
