/* SPDX-License-Identifier: Apache-2.0 */
/* xFormers / MSLK: memory_efficient_attention and its operators (docs/backends.md section 5). */
#include "backends/external/ext.h"

/* Members in the order of the page's rules. */
enum { AUTO, FA3, FA2, CUTLASS, SPLITK, BLACKWELL, CK, ROWS };

#define FLASH (RAPT_CLASS_FUSED | RAPT_CLASS_FLASH)
#define NEEDS "torch>=2.10 xformers>=0.0.29"
#define TOP_LEFT (RAPT_CAN_CAUSAL | RAPT_CAN_TOP_LEFT)
#define BOTTOM_RIGHT (RAPT_CAN_CAUSAL | RAPT_CAN_BOTTOM_RIGHT)
/* GQA as 5-D groups. A scale that is not positive, and strides that do not end in 1, are not recorded. */
#define COMMON (RAPTI_EXT_HEADS | RAPT_CAN_DENSE | RAPT_CAN_LSE | RAPT_CAN_SCALE)
#define UNKNOWN (RAPTI_EXT_UNKNOWN | RAPT_CAN_SCALE_ZERO | RAPT_CAN_SCALE_NEGATIVE)
#define CUTLASS_CAN \
  (COMMON | RAPT_CAN_BIAS | RAPT_CAN_BIAS_CAUSAL | TOP_LEFT | BOTTOM_RIGHT | RAPT_CAN_CAUSAL_WIDE | RAPT_CAN_WINDOW | \
   RAPT_CAN_DROPOUT | RAPT_CAN_BACKWARD | RAPT_CAN_GRAD_BIAS)
#define RNG "Philox of its own"

static const rapt_dims splitk_dims[] = {{16, 16}, {32, 32}, {64, 64}, {128, 128}, {256, 256}, {512, 512}};

static const rapt_row rows[ROWS] = {
  [AUTO] = {.struct_size = RAPT_ROW_SIZE, .id = "mslk.auto", .display = "xformers", .aliases = "xformers",
    .source = "docs/backends.md 5, rules", .classes = RAPT_CLASS_FUSED, .rank = 90, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA) | RAPT_KIND(RAPT_HIP), .package = "mslk", .needs = NEEDS,
    .dtypes = RAPTI_EXT_HALF | RAPT_DT(RAPT_FP32), .d_max = 65536, .dv_rule = RAPT_DV_ANY,
    .determinism = RAPT_DET_RUN, .can = CUTLASS_CAN, .unknown = UNKNOWN, .rng = RNG},
  [FA3] = {.struct_size = RAPT_ROW_SIZE, .id = "mslk.fa3", .display = "xformers_fa3", .aliases = "xformers",
    .source = "docs/backends.md 5, column fa3F / B", .classes = FLASH, .rank = 91, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "mslk", .needs = NEEDS " flash-attn-3>=3.0.0", .cc = "8.0-9.0",
    .cc_built = "flash-attn-3", .dtypes = RAPTI_EXT_HALF, .d_min = 64, .d_max = 256, .d_step = 64,
    .dv_rule = RAPT_DV_ANY, .dv_max = 512, .dv_step = 8, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN,
    .can = COMMON | BOTTOM_RIGHT | RAPT_CAN_CAUSAL_WIDE | RAPT_CAN_WINDOW | RAPT_CAN_BACKWARD, .unknown = UNKNOWN},
  [FA2] = {.struct_size = RAPT_ROW_SIZE, .id = "mslk.fa2", .display = "xformers_fa2", .aliases = "xformers",
    .source = "docs/backends.md 5, column fa2F / B", .classes = FLASH, .rank = 92, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "mslk", .needs = NEEDS " flash-attn>=2.6.3,<=2.8.4", .cc = "8.0-12.x",
    .cc_built = "flash-attn", .dtypes = RAPTI_EXT_HALF, .d_max = 256, .d_step = 8, .determinism = RAPT_DET_RUN,
    .can = COMMON | BOTTOM_RIGHT | RAPT_CAN_CAUSAL_WIDE | RAPT_CAN_WINDOW | RAPT_CAN_DROPOUT | RAPT_CAN_BACKWARD,
    .unknown = UNKNOWN, .rng = RNG},
  [CUTLASS] = {.struct_size = RAPT_ROW_SIZE, .id = "mslk.cutlass", .display = "xformers_cutlass",
    .aliases = "xformers", .source = "docs/backends.md 5, column cutlassF / B", .classes = RAPT_CLASS_FUSED,
    .rank = 93, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "mslk", .needs = NEEDS,
    .cc = "5.0-9.0", .dtypes = RAPTI_EXT_HALF | RAPT_DT(RAPT_FP32), .d_max = 65536, .d_step = 4,
    .dv_rule = RAPT_DV_ANY, .dv_max = 65536, .dv_step = 4, .bias_stride_bytes = 16, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN, .can = CUTLASS_CAN, .unknown = UNKNOWN, .rng = RNG},
  /* Dense calls have no triangular class; windows only for up to 16 query rows. */
  [SPLITK] = {.struct_size = RAPT_ROW_SIZE, .id = "mslk.splitk", .display = "xformers_splitk", .aliases = "xformers",
    .source = "docs/backends.md 5, column triton_splitK", .classes = RAPT_CLASS_FUSED, .rank = 94,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA) | RAPT_KIND(RAPT_HIP), .package = "mslk", .needs = NEEDS,
    .cc = "8.0-12.x", .arch = "gfx942", .dtypes = RAPTI_EXT_HALF, .dims = splitk_dims, .n_dims = 6,
    .determinism = RAPT_DET_RUN,
    .can = COMMON | RAPT_CAN_BIAS | RAPT_CAN_BIAS_CAUSAL | RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_WINDOW,
    .unknown = UNKNOWN},
  [BLACKWELL] = {.struct_size = RAPT_ROW_SIZE, .id = "mslk.blackwell", .display = "xformers_blackwell",
    .aliases = "xformers", .source = "docs/backends.md 5, column cutlass-blackwell", .classes = RAPT_CLASS_FUSED,
    .rank = 95, .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "mslk", .needs = NEEDS,
    .cc = "10.0-12.x", .dtypes = RAPTI_EXT_HALF, .d_min = 64, .d_max = 128, .d_step = 64,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = COMMON | TOP_LEFT | BOTTOM_RIGHT | RAPT_CAN_WINDOW | RAPT_CAN_BACKWARD, .unknown = UNKNOWN},
  [CK] = {.struct_size = RAPT_ROW_SIZE, .id = "mslk.ck", .display = "xformers_ck", .aliases = "xformers",
    .source = "docs/backends.md 5, column ckF", .classes = RAPT_CLASS_FUSED, .rank = 96, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_HIP), .package = "mslk", .needs = NEEDS, .arch = "*?", .dtypes = RAPTI_EXT_HALF,
    .d_max = 256, .dv_rule = RAPT_DV_ANY, .dv_max = 256, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN, .can = CUTLASS_CAN & ~RAPT_CAN_GRAD_BIAS,
    .unknown = UNKNOWN | RAPT_CAN_GRAD_BIAS, .rng = RNG},
};

static const uint32_t notes[ROWS] = {
  [FA3] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_GRAD_UNKNOWN, [FA2] = RAPTI_EXT_INDEX_UNKNOWN,
  [CUTLASS] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN,
  [SPLITK] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN,
  [BLACKWELL] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN, [CK] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN};

static void cutlass(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (p->q.dtype == RAPT_BF16)
    rapti_ext_if(e, rapti_tri_not(rapti_ext_cc_in(e->facts, RAPTI_CC(8, 0), RAPTI_CC(255, 0))), "cc", RAPT_CODE_DTYPE,
                 RAPT_FIELD_Q, "bf16", "fp16 or fp32; bf16 on cc 8.0 and above");
  if (p->q.dtype != RAPT_FP32)
    rapti_ext_dims(e, rapti_tri_of(p->D % 8 != 0), rapti_tri_of(p->Dv % 8 != 0), "", "a multiple of 8");
  /* Local classes count from the bottom right. */
  if (rapti_ext_window(p) && !rapti_ext_square(p) && p->alignment == RAPT_TOP_LEFT)
    rapti_ext_fail(e, RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, "tl with a window", "br");
  if (!rapti_ext_grads(p)) return;
  if (rapti_ext_window(p))
    rapti_ext_fail(e, RAPT_CODE_GRAD, RAPT_FIELD_GRAD, "a window", "no window");
  if (rapti_ext_causal(p) && p->bias.dtype)
    rapti_ext_fail(e, RAPT_CODE_GRAD, RAPT_FIELD_GRAD, "causal and bias", "one of the two");
}

static void splitk(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (rapti_ext_causal(p))
    rapti_ext_fail(e, RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, "given for a dense causal call", "block-diagonal causal");
  if (rapti_ext_window(p) && p->Sq > 16)
    rapti_ext_fail(e, RAPT_CODE_WINDOW, RAPT_FIELD_WINDOW, "used with more than 16 query rows", "at most 16 query rows");
}

/* Its decode path is bf16. */
static void blackwell(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (p->Sq == 1 && p->q.dtype == RAPT_FP16) rapti_ext_unknown(e, RAPT_FIELD_Q, "fp16 with one query row");
  if (rapti_ext_grads(p) && p->Sq < 8)
    rapti_ext_fail_int(e, RAPT_CODE_GRAD, RAPT_FIELD_GRAD, p->Sq, "at least 8 query rows");
}

static uint32_t extra(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                      uint32_t n) {
  static void (*const checks[ROWS])(rapti_ext *e) = {[FA3] = rapti_ext_fa3_dims, [CUTLASS] = cutlass,
                                                     [SPLITK] = splitk, [BLACKWELL] = blackwell};
  rapti_ext e = {cast, facts, why, n, 0};
  (void)self;
  if (!(rows[row].kinds & RAPT_KIND(cast->device))) return 0;
  if (checks[row]) checks[row](&e);
  /* Groups are a fifth axis, which only the forward takes. */
  if (cast->Hkv < cast->Hq && rapti_ext_grads(cast) && (rows[row].can & RAPT_CAN_BACKWARD))
    rapti_ext_fail(&e, RAPT_CODE_GRAD, RAPT_FIELD_GRAD, "fewer kv heads than query heads", "equal head counts");
  rapti_ext_notes(&e, notes[row]);
  return e.count;
}

static int pick(void *self, uint32_t row, const rapt_problem *p, const rapt_facts *facts, uint32_t *member);
static const rapt_backend backend = {.struct_size = RAPT_BACKEND_SIZE, .api_version = RAPT_PROVIDER_VERSION,
                                     .n_rows = ROWS, .rows = rows, .name = "mslk", .extra = extra, .pick = pick};

/* split-K goes first for one kv head read by all, few rows, many keys and few heads. The last of each order is the
 * widest member: its limits speak where none takes the call. */
static int pick(void *self, uint32_t row, const rapt_problem *p, const rapt_facts *facts, uint32_t *member) {
  static const uint32_t decode[] = {SPLITK, FA3, FA2, CUTLASS}, usual[] = {FA3, FA2, CUTLASS, SPLITK, CUTLASS};
  (void)self;
  *member = row;
  if (row != AUTO || !(rows[AUTO].kinds & RAPT_KIND(p->device))) return 1;
  *member = CK;
  if (p->device == RAPT_HIP) return 1;
  bool one_head = p->Hkv > 1 && p->k.stride[1] == 0 && p->v.stride[1] == 0;
  if (one_head && p->Sq <= 32 && p->Skv >= 256 && p->B < 64 && p->Hq < 64 && p->B * p->Hq < 64)
    return rapti_ext_pick(&backend, decode, 4, p, facts, member);
  return rapti_ext_pick(&backend, usual, 5, p, facts, member);
}

const rapt_backend *rapti_backend_mslk(void) { return &backend; }
