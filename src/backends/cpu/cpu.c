/* SPDX-License-Identifier: Apache-2.0 */
/* The own CPU kernels: one row a CPU level, the same body compiled for each (levels.def, body/, isa/). */
#include "backends/cpu/kernel.h"
#include "core/backend.h"

#include <stdatomic.h>

/* ---- Levels ---- */

typedef struct level {
  int32_t width, lanes;                        /* known also where the code is not built */
  const rapti_cpu_kernel *kernel;              /* NULL: another architecture; its row fails ISA */
  const char *name[3][2];                      /* by dtype, few rows */
} level;

#define KERNEL_ANY(name) &rapti_cpu_##name
#if defined(__x86_64__)
#define KERNEL_X86(name) &rapti_cpu_##name
#else
#define KERNEL_X86(name) NULL
#endif
#define NAMES(dtype, level) {"sdpa_fwd_" dtype "_tile_" level, "sdpa_fwd_" dtype "_few_" level}

static const level levels[] = {
#define RAPTI_LEVEL(name, architecture, width, lanes, ran) \
  {width, lanes, KERNEL_##architecture(name), {NAMES("fp16", #name), NAMES("bf16", #name), NAMES("fp32", #name)}},
#include "backends/cpu/levels.def"
#undef RAPTI_LEVEL
};

static bool shape(uint32_t row, const rapt_problem *p, uint32_t threads, rapti_cpu_call *c, size_t *workspace) {
  return rapti_cpu_shape(p, levels[row].width, levels[row].lanes, threads, c, workspace);
}

/* ---- A run ---- */

typedef struct run_state {
  const rapti_cpu_call *call;
  const rapti_cpu_kernel *kernel;
  int64_t heads;
} run_state;

static int64_t next_of(_Atomic int64_t *counter) { return atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }

static void run_item(const run_state *s, char *scratch, int64_t head, int64_t n, int64_t *packed) {
  const rapti_cpu_call *c = s->call;
  if (c->few_rows) {
    s->kernel->few(c, scratch, head);
    return;
  }
  if (c->pack_head && *packed != head) {
    s->kernel->pack(c, scratch, head);
    *packed = head;
  }
  s->kernel->chunk(c, scratch, head, c->chunks - 1 - n);   /* causal: the long ones first */
}

static void run_all(const run_state *s) {
  int64_t packed = -1;
  for (int64_t head = 0; head < s->heads; head++)
    for (int64_t n = 0; n < s->call->chunks; n++) run_item(s, s->call->scratch, head, n, &packed);
}

/* A thread takes heads as long as there are any, then helps with chunks of the others' heads. Which thread computes a
 * chunk changes no bit (N18). */
static void run_share(void *arg, uint32_t slot) {
  const run_state *s = arg;
  const rapti_cpu_call *c = s->call;
  char *scratch = c->scratch + slot * c->thread_bytes;
  int64_t packed = -1, head, n;
  while ((head = next_of(&c->counters[0])) < s->heads)
    while ((n = next_of(&c->counters[1 + head])) < c->chunks) run_item(s, scratch, head, n, &packed);
  for (head = 0; head < s->heads && c->chunks > 1; head++)
    while ((n = next_of(&c->counters[1 + head])) < c->chunks) run_item(s, scratch, head, n, &packed);
}

static rapt_status run(void *self, uint32_t row, void *state, const rapt_problem *p, const rapt_buffers *b,
                       void *workspace, void *stream) {
  const rapti_services *services = self;
  rapti_cpu_call c;
  size_t bytes;
  (void)state;
  (void)stream;
  if (!levels[row].kernel || !shape(row, p, services->max_threads, &c, &bytes)) return RAPT_INTERNAL;
  if (p->B == 0 || p->Hq == 0 || p->Sq == 0) return RAPT_OK;
  rapti_cpu_bind(p, b, workspace, &c);
  run_state s = {&c, levels[row].kernel, p->B * p->Hkv};
  if (c.threads == 1) {
    run_all(&s);
    return RAPT_OK;
  }
  for (int64_t i = 0; i <= s.heads; i++) atomic_init(&c.counters[i], 0);
  services->parallel_for(services->parallel_self, c.threads, run_share, &s);
  return RAPT_OK;
}

static size_t workspace_of(void *self, uint32_t row, const rapt_problem *p, uint32_t threads) {
  rapti_cpu_call c;
  size_t bytes;
  (void)self;
  return shape(row, p, threads, &c, &bytes) ? bytes : SIZE_MAX;
}

static const char *kernel_name(void *self, uint32_t row, const rapt_problem *p) {
  (void)self;
  const int dtype = p->q.dtype == RAPT_FP16 ? 0 : p->q.dtype == RAPT_BF16 ? 1 : 2;
  return levels[row].name[dtype][rapti_cpu_few_rows(p)];
}

/* ---- Rows ---- */

#define CAN_MASKS (RAPT_CAN_MASK | RAPT_CAN_BIAS | RAPT_CAN_BROADCAST | RAPT_CAN_MASK_CAUSAL | RAPT_CAN_BIAS_CAUSAL | \
  RAPT_CAN_MASK_BIAS | RAPT_CAN_ANY_BIAS_DTYPE)
#define CAN_CORNERS (RAPT_CAN_CAUSAL | RAPT_CAN_TOP_LEFT | RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_OFFSET | \
  RAPT_CAN_OFFSET_ARRAY | RAPT_CAN_CAUSAL_WIDE | RAPT_CAN_WINDOW)
#define CAN_SHAPES (RAPT_CAN_GQA | RAPT_CAN_MQA | RAPT_CAN_DENSE | RAPT_CAN_Q_LEN | RAPT_CAN_KV_LEN | RAPT_CAN_MIXED_KV | \
  RAPT_CAN_OUT_FP32 | RAPT_CAN_ANY_STRIDE | RAPT_CAN_ON_DEVICE)
#define CAN_NUMBERS (RAPT_CAN_LSE | RAPT_CAN_STRICT | RAPT_CAN_ISOLATE | RAPT_CAN_SCALE | RAPT_CAN_SCALE_ZERO | \
  RAPT_CAN_SCALE_NEGATIVE)
#define ALL_LEVELS .struct_size = RAPT_ROW_SIZE, .kinds = RAPT_KIND(RAPT_CPU), .classes = RAPT_CLASS_FUSED, \
  .place = RAPT_PLACE_OWN, .display = "cpu", .kernel = "sdpa_fwd", .source = "src/backends/cpu", ALL_LIMITS
#define ALL_LIMITS .dtypes = RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16) | RAPT_DT(RAPT_FP32), .dv_rule = RAPT_DV_ANY, \
  .determinism = RAPT_DET_BATCH, .can = CAN_MASKS | CAN_CORNERS | CAN_SHAPES | CAN_NUMBERS

static const rapt_row rows[] = {
#define RAPTI_LEVEL(name, architecture, width, lanes, ran) \
  {.id = "cpu." #name, .isa = #name, .ran_on_hardware = ran, ALL_LEVELS},
#include "backends/cpu/levels.def"
#undef RAPTI_LEVEL
};

const rapt_backend *rapti_backend_cpu(void) {
  static const rapt_backend backend = {
    .struct_size = RAPT_BACKEND_SIZE,
    .api_version = RAPT_PROVIDER_VERSION,
    .n_rows = sizeof rows / sizeof *rows,
    .rows = rows,
    .name = "cpu",
    .workspace = workspace_of,
    .kernel_name = kernel_name,
    .run = run,
  };
  return &backend;
}
