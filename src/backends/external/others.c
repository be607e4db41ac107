/* SPDX-License-Identifier: Apache-2.0 */
/* FlexAttention, NPU, XLA, JAX, oneDNN Graph and cuDNN (docs/backends.md sections 7 to 9). */
#include "backends/external/ext.h"

#include <string.h>

enum { FLEX, NPU, XLA, JAX_XLA, JAX_CUDNN, ONEDNN, CUDNN_HALF, CUDNN_FP8, CUDNN_UNIFIED, ROWS };

#define FLASH (RAPT_CLASS_FUSED | RAPT_CLASS_FLASH)
#define DEVICES ((RAPT_KIND(RAPT_META) << 1) - 1)
#define FP32 RAPT_DT(RAPT_FP32)
#define ANY_SCALE (RAPT_CAN_SCALE | RAPT_CAN_SCALE_ZERO | RAPT_CAN_SCALE_NEGATIVE)
#define SCALE_UNKNOWN (RAPT_CAN_SCALE_ZERO | RAPT_CAN_SCALE_NEGATIVE)
#define TOP_LEFT (RAPT_CAN_CAUSAL | RAPT_CAN_TOP_LEFT | RAPT_CAN_CAUSAL_WIDE)
#define CORNERS (TOP_LEFT | RAPT_CAN_BOTTOM_RIGHT)
#define MASKS (RAPT_CAN_MASK | RAPT_CAN_BIAS)
#define MASKS_CAUSAL (RAPT_CAN_MASK_CAUSAL | RAPT_CAN_BIAS_CAUSAL)
#define LENGTHS (RAPT_CAN_Q_LEN | RAPT_CAN_KV_LEN | RAPT_CAN_ON_DEVICE)
#define PHILOX "Philox of its own"

static const rapt_row rows[ROWS] = {
  /* Compiled: widths from 16 on, Dv = D. mask_mod gives every position, tensors come in by closure only. */
  [FLEX] = {.struct_size = RAPT_ROW_SIZE, .id = "flex", .display = "flex_attention",
    .source = "docs/backends.md 7, column flex", .rank = 100, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CPU) | RAPT_KIND(RAPT_CUDA) | RAPT_KIND(RAPT_XPU) | RAPT_KIND(RAPT_HPU),
    .package = "torch", .needs = "torch>=2.5", .dtypes = RAPTI_EXT_HALF | FP32, .d_min = 16,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | CORNERS | RAPT_CAN_OFFSET | RAPT_CAN_WINDOW | RAPT_CAN_SOFTCAP | RAPT_CAN_LSE |
           RAPT_CAN_DENSE | RAPT_CAN_BACKWARD | ANY_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | RAPT_CAN_SINKS | RAPT_CAN_ANY_STRIDE},
  [NPU] = {.struct_size = RAPT_ROW_SIZE, .id = "npu", .aliases = "_native_npu",
    .source = "docs/backends.md 7, column npu", .classes = RAPT_CLASS_FUSED, .rank = 110, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_NPU), .package = "torch_npu", .dtypes = RAPTI_EXT_HALF | FP32, .d_max = 512,
    .d_step = 16, .max_b = 2048, .max_hq = 256, .max_sq = 524288, .max_skv = 524288, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | RAPT_CAN_MASK | RAPT_CAN_CAUSAL | RAPT_CAN_WINDOW | RAPT_CAN_DROPOUT | RAPT_CAN_DENSE |
           RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | SCALE_UNKNOWN | RAPT_CAN_BROADCAST | RAPT_CAN_TOP_LEFT | RAPT_CAN_BOTTOM_RIGHT |
               RAPT_CAN_CAUSAL_WIDE | RAPT_CAN_SOFTCAP | RAPT_CAN_SINKS | RAPT_CAN_BACKWARD | RAPT_CAN_ANY_STRIDE,
    .rng = "the device's generator"},
  [XLA] = {.struct_size = RAPT_ROW_SIZE, .id = "xla", .aliases = "_native_xla",
    .source = "docs/backends.md 7, column xla", .classes = RAPT_CLASS_FUSED, .rank = 111, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_XLA), .package = "torch_xla", .needs = "torch_xla>=2.2",
    .dtypes = RAPT_DT(RAPT_BF16) | FP32, .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = RAPT_CAN_BIAS | RAPT_CAN_CAUSAL | RAPT_CAN_DENSE | RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | SCALE_UNKNOWN | RAPT_CAN_BIAS_CAUSAL | RAPT_CAN_BACKWARD | RAPT_CAN_ANY_STRIDE},
  [JAX_XLA] = {.struct_size = RAPT_ROW_SIZE, .id = "jax.xla", .display = "jax_xla",
    .source = "docs/backends.md 8, column jax.xla", .classes = RAPT_CLASS_HOST, .place = RAPT_PLACE_HOST,
    .ran_on_hardware = 1, .kinds = DEVICES, .package = "jax",
    .dtypes = RAPTI_EXT_HALF | FP32 | RAPT_DT(RAPT_FP64), .mem_per_score = 16, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | MASKS | RAPT_CAN_BROADCAST | RAPT_CAN_MASK_BIAS | TOP_LEFT | RAPT_CAN_WINDOW |
           RAPT_CAN_LSE | LENGTHS | RAPT_CAN_DENSE | RAPT_CAN_BACKWARD | ANY_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | MASKS_CAUSAL | RAPT_CAN_GRAD_BIAS | RAPT_CAN_ANY_STRIDE},
  [JAX_CUDNN] = {.struct_size = RAPT_ROW_SIZE, .id = "jax.cudnn", .display = "jax_cudnn",
    .source = "docs/backends.md 8, column jax.cudnn", .classes = RAPT_CLASS_HOST | FLASH, .place = RAPT_PLACE_HOST,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "jax", .cc = "8.0-12.x",
    .dtypes = RAPTI_EXT_HALF, .d_max = 256, .d_step = 8, .dv_rule = RAPT_DV_ANY, .dv_max = 256, .dv_step = 8,
    .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | MASKS | TOP_LEFT | RAPT_CAN_WINDOW | RAPT_CAN_LSE | LENGTHS | RAPT_CAN_DENSE |
           RAPT_CAN_PACKED | RAPT_CAN_BACKWARD | ANY_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | MASKS_CAUSAL | RAPT_CAN_MASK_BIAS | RAPT_CAN_BROADCAST | RAPT_CAN_GRAD_BIAS |
               RAPT_CAN_ANY_STRIDE},
  [ONEDNN] = {.struct_size = RAPT_ROW_SIZE, .id = "onednn_graph.cpu", .display = "onednn_graph",
    .source = "docs/backends.md 8, column onednn_graph.cpu", .rank = 120, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CPU), .package = "onednn", .needs = "onednn>=3.6", .dtypes = RAPTI_EXT_HALF | FP32,
    .dv_rule = RAPT_DV_ANY, .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | MASKS | CORNERS | RAPT_CAN_LSE | RAPT_CAN_DENSE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | SCALE_UNKNOWN | MASKS_CAUSAL | RAPT_CAN_MASK_BIAS | RAPT_CAN_BROADCAST |
               RAPT_CAN_GRAD_BIAS | RAPT_CAN_ANY_STRIDE},
  /* A bool mask goes in as a bias of 0 and -inf (H11). */
  [CUDNN_HALF] = {.struct_size = RAPT_ROW_SIZE, .id = "cudnn.half", .display = "cudnn",
    .source = "docs/backends.md 9, columns cudnn.half", .classes = FLASH, .rank = 80, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "cudnn", .known_bad = "cudnn=9.10.0 cudnn=9.10.1", .cc = "8.0-12.x",
    .dtypes = RAPTI_EXT_HALF, .d_step = 8, .dv_rule = RAPT_DV_ANY, .dv_step = 8, .determinism = RAPT_DET_RUN,
    .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | MASKS | MASKS_CAUSAL | RAPT_CAN_BROADCAST | CORNERS | RAPT_CAN_WINDOW | RAPT_CAN_SINKS |
           RAPT_CAN_ALIBI | RAPT_CAN_DROPOUT | RAPT_CAN_LSE | LENGTHS | RAPT_CAN_DENSE | RAPT_CAN_PACKED |
           RAPT_CAN_BACKWARD | RAPT_CAN_GRAD_BIAS | RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | SCALE_UNKNOWN | RAPT_CAN_MASK_BIAS | RAPT_CAN_GRAD_SINKS, .rng = PHILOX},
  /* No call has fp8 tensors in this version (S2): accuracy never decides, and is left open. */
  [CUDNN_FP8] = {.struct_size = RAPT_ROW_SIZE, .id = "cudnn.fp8", .display = "cudnn",
    .source = "docs/backends.md 9, column cudnn.fp8", .classes = FLASH | RAPT_CLASS_APPROX, .rank = 82,
    .ran_on_hardware = 1, .kinds = RAPT_KIND(RAPT_CUDA), .package = "cudnn", .known_bad = "cudnn=9.10.0 cudnn<9.1",
    .cc = "9.0-12.x", .dtypes = RAPT_DT(RAPT_FP8E4M3) | RAPT_DT(RAPT_FP8E5M2), .d_step = 16,
    .dv_rule = RAPT_DV_ANY, .dv_step = 16, .determinism = RAPT_DET_RUN, .determinism_backward = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | CORNERS | RAPT_CAN_LSE | LENGTHS | RAPT_CAN_DENSE | RAPT_CAN_BACKWARD | RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | SCALE_UNKNOWN | RAPT_CAN_WINDOW | RAPT_CAN_SINKS | RAPT_CAN_DROPOUT |
               RAPT_CAN_PACKED},
  [CUDNN_UNIFIED] = {.struct_size = RAPT_ROW_SIZE, .id = "cudnn.unified", .display = "cudnn",
    .source = "docs/backends.md 9, column unified op", .classes = FLASH, .rank = 81, .ran_on_hardware = 1,
    .kinds = RAPT_KIND(RAPT_CUDA), .package = "cudnn", .needs = "cudnn>=9.13.1", .known_bad = "cudnn<=9.13.0",
    .cc = "9.0-12.x 0.0-8.255?", .dtypes = RAPTI_EXT_HALF, .d_step = 8, .d_unknown_above = 128,
    .dv_rule = RAPT_DV_ANY, .dv_step = 8, .determinism = RAPT_DET_RUN,
    .can = RAPTI_EXT_HEADS | RAPT_CAN_BIAS | RAPT_CAN_BIAS_CAUSAL | CORNERS | RAPT_CAN_WINDOW | RAPT_CAN_SINKS |
           RAPT_CAN_DROPOUT | RAPT_CAN_LSE | LENGTHS | RAPT_CAN_DENSE | RAPT_CAN_SCALE,
    .unknown = RAPTI_EXT_UNKNOWN | SCALE_UNKNOWN | RAPT_CAN_BROADCAST, .rng = PHILOX},
};

#define OPEN (RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_DET_UNKNOWN)
static const uint32_t notes[ROWS] = {
  [FLEX] = OPEN, [NPU] = OPEN, [XLA] = OPEN, [JAX_XLA] = OPEN, [JAX_CUDNN] = OPEN | RAPTI_EXT_MASK_COPY,
  [ONEDNN] = OPEN, [CUDNN_HALF] = RAPTI_EXT_INDEX_UNKNOWN | RAPTI_EXT_MASK_COPY, [CUDNN_FP8] = OPEN,
  [CUDNN_UNIFIED] = OPEN};

static bool power_of_two(int64_t v) { return v > 0 && (v & (v - 1)) == 0; }

static void flex(rapti_ext *e) {
  const rapt_problem *p = e->p;
  rapti_tri old = rapti_ext_before(e->facts, "torch", RAPTI_VER(2, 7, 0));
  rapti_ext_dims(e, rapti_tri_and(old, rapti_tri_of(!power_of_two(p->D))), RAPTI_NO, "torch",
                 "a power of two up to torch 2.6");
  if (p->Hkv > 0 && !power_of_two(p->Hq / p->Hkv) && old == RAPTI_YES)
    rapti_ext_unknown(e, RAPT_FIELD_K, "a head ratio that is no power of two, in an early version");
  /* Not compiled there: scores, weights and what the modifications make of them (at most 29 bytes a score measured). */
  int64_t scores = rapti_ext_scores(p);
  if (p->device == RAPT_CPU) rapti_ext_memory(e, scores > INT64_MAX / 32 ? INT64_MAX : 32 * scores);
  if (!rapti_ext_grads(p)) return;
  if (p->device == RAPT_CPU) rapti_ext_fail(e, RAPT_CODE_GRAD, RAPT_FIELD_GRAD, "cpu", "cuda");
  else if (p->device != RAPT_CUDA) rapti_ext_unknown(e, RAPT_FIELD_GRAD, "a backward on this device");
  else if (p->D > 128)
    rapti_ext_dims(e, rapti_ext_cc_in(e->facts, RAPTI_CC(12, 0), RAPTI_CC(12, 255)), RAPTI_NO, "cc",
                   "at most 128 for a backward on cc 12");
}

static void npu(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if (p->q.dtype == RAPT_FP32) rapti_ext_unknown(e, RAPT_FIELD_Q, "fp32, which later versions take");
  if (p->Sq != p->Skv) rapti_ext_unknown(e, RAPT_FIELD_SQ, "Sq and Skv that differ");
}

static void xla(rapti_ext *e) {
  const rapt_problem *p = e->p;
  rapti_ext_unknown(e, RAPT_FIELD_Q, "widths and dtypes of this kernel");
  if (p->Sq != p->Skv)
    rapti_ext_fail(e, RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, "given for Sq and Skv that differ", "Sq = Skv");
}

/* lse is cast to the key's dtype there; N8 forbids 16 bits. */
static void jax_xla(rapti_ext *e) {
  const rapt_problem *p = e->p;
  if ((p->flags & RAPT_WANT_LSE) && (p->q.dtype == RAPT_FP16 || p->q.dtype == RAPT_BF16))
    rapti_ext_fail(e, RAPT_CODE_LSE, RAPT_FIELD_LSE, "asked for with a half dtype", "fp32: lse is cast to the key's dtype");
}

static void jax_cudnn(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const rapt_facts *f = e->facts;
  rapti_tri nine = rapti_ext_cc_in(f, RAPTI_CC(9, 0), RAPTI_CC(255, 0));
  rapti_tri hopper = rapti_ext_cc_in(f, RAPTI_CC(9, 0), RAPTI_CC(9, 0));
  rapti_tri mla = rapti_tri_and(hopper, rapti_tri_not(rapti_ext_before(f, "cudnn", RAPTI_VER(9, 10, 0))));
  rapti_ext_if(e, rapti_tri_and(rapti_ext_cc_in(f, RAPTI_CC(10, 3), RAPTI_CC(10, 3)),
                                rapti_ext_before(f, "cudnn", RAPTI_VER(9, 11, 0))),
               "cc, cudnn", RAPT_CODE_VERSION, RAPT_FIELD_BACKEND, "cudnn before 9.11 on cc 10.3", "cudnn >=9.11");
  rapti_ext_dims(e, rapti_tri_and(rapti_tri_of(p->D > 128), rapti_tri_not(nine)),
                 p->D == p->Dv ? RAPTI_NO : rapti_tri_not(mla), "cc, cudnn",
                 "at most 128, 256 from cc 9.0 on; Dv other than D on cc 9.0 with cuDNN 9.10");
  if (rapti_ext_window(p) && !rapti_ext_causal(p) && p->window[1] != 0)
    rapti_ext_fail(e, RAPT_CODE_WINDOW, RAPT_FIELD_WINDOW, "open to the right", "a right bound of 0, or causal");
  if (p->cu)
    rapti_ext_if(e, rapti_tri_not(nine), "cc", RAPT_CODE_PACKED, RAPT_FIELD_PACKED, "packed on cc 8", "cc 9.0 and above");
  if (rapti_ext_grads(p) && (p->mask.dtype || p->bias.dtype) && (p->Sq % 2 || p->Skv % 2))
    rapti_ext_fail(e, RAPT_CODE_GRAD, RAPT_FIELD_GRAD, "bias and odd lengths", "even Sq and Skv");
}

/* The reference kernel, with all scores in memory, runs for few heads a thread, and for the training patterns. */
static void onednn(rapti_ext *e) {
  const rapt_problem *p = e->p;
  const char *text = rapt_facts_get(e->facts, "threads");
  int64_t threads = 0, heads;
  rapti_tri reference = text && rapti_parse_int(text, strlen(text), &threads) && rapti_mul(p->B, p->Hq, &heads)
                          ? rapti_tri_of(heads <= 2 * threads) : RAPTI_OPEN;
  if (rapti_ext_grads(p) || (p->flags & RAPT_WANT_LSE)) reference = RAPTI_YES;
  int64_t scores = rapti_ext_scores(p), bytes = scores > INT64_MAX / 8 ? INT64_MAX : 8 * scores;
  if (reference == RAPTI_YES) rapti_ext_memory(e, bytes);
  if (reference == RAPTI_OPEN && bytes > INT64_C(256) << 20)
    rapti_ext_if(e, reference, "threads", RAPT_CODE_MEMORY, RAPT_FIELD_MEMORY_LIMIT, "", "");
}

static uint32_t extra(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                      uint32_t n) {
  static void (*const checks[ROWS])(rapti_ext *e) = {
    [FLEX] = flex, [NPU] = npu, [XLA] = xla, [JAX_XLA] = jax_xla, [JAX_CUDNN] = jax_cudnn, [ONEDNN] = onednn,
    [CUDNN_HALF] = rapti_ext_cudnn_half, [CUDNN_FP8] = rapti_ext_cudnn_fp8,
    [CUDNN_UNIFIED] = rapti_ext_cudnn_unified};
  rapti_ext e = {cast, facts, why, n, 0};
  (void)self;
  if (!(rows[row].kinds & RAPT_KIND(cast->device))) return 0;
  checks[row](&e);
  rapti_ext_notes(&e, notes[row]);
  return e.count;
}

const rapt_backend *rapti_backend_others(void) {
  static const rapt_backend backend = {.struct_size = RAPT_BACKEND_SIZE, .api_version = RAPT_PROVIDER_VERSION,
                                       .n_rows = ROWS, .rows = rows, .name = "others", .extra = extra};
  return &backend;
}
