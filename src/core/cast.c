/* SPDX-License-Identifier: Apache-2.0 */
/* The casts of the autocast policy (A8): one rounding, to nearest even; a finite bias saturates. Any strides in, the
 * dense copy of the resolved request out; only addressed elements are read. */
#include "base/half.h"
#include "core/ctx.h"

#include <string.h>

/* ---- Rows. The plain loops of base/half.h, which the compiler turns into vector code for each level. ---- */

typedef struct row_kernels {
  void (*widen_fp16)(const uint16_t *from, float *to, size_t n);
  void (*widen_bf16)(const uint16_t *from, float *to, size_t n);
  void (*narrow_fp16)(const float *from, uint16_t *to, size_t n, bool saturate);
  void (*narrow_bf16)(const float *from, uint16_t *to, size_t n, bool saturate);
} row_kernels;

RAPTI_ALWAYS_INLINE void widen_fp16(const uint16_t *restrict from, float *restrict to, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = rapti_fp16_to_f32(from[i]);
}
RAPTI_ALWAYS_INLINE void widen_bf16(const uint16_t *restrict from, float *restrict to, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = rapti_bf16_to_f32(from[i]);
}
RAPTI_ALWAYS_INLINE void narrow_fp16(const float *restrict from, uint16_t *restrict to, size_t n, bool saturate) {
  const uint32_t largest = saturate ? 0x7bffu : 0x7c00u;
  for (size_t i = 0; i < n; i++) to[i] = rapti_f32_to_fp16_within(from[i], largest);
}
RAPTI_ALWAYS_INLINE void narrow_bf16(const float *restrict from, uint16_t *restrict to, size_t n, bool saturate) {
  const uint32_t largest = saturate ? 0x7f7fu : 0x7f80u;
  for (size_t i = 0; i < n; i++) to[i] = rapti_f32_to_bf16_within(from[i], largest);
}

static void widen_fp16_base(const uint16_t *from, float *to, size_t n) { widen_fp16(from, to, n); }
static void widen_bf16_base(const uint16_t *from, float *to, size_t n) { widen_bf16(from, to, n); }
static void narrow_fp16_base(const float *from, uint16_t *to, size_t n, bool sat) { narrow_fp16(from, to, n, sat); }
static void narrow_bf16_base(const float *from, uint16_t *to, size_t n, bool sat) { narrow_bf16(from, to, n, sat); }
static const row_kernels base_kernels = {widen_fp16_base, widen_bf16_base, narrow_fp16_base, narrow_bf16_base};

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
AVX2 static void widen_fp16_avx2(const uint16_t *from, float *to, size_t n) { widen_fp16(from, to, n); }
AVX2 static void widen_bf16_avx2(const uint16_t *from, float *to, size_t n) { widen_bf16(from, to, n); }
AVX2 static void narrow_fp16_avx2(const float *from, uint16_t *to, size_t n, bool sat) { narrow_fp16(from, to, n, sat); }
AVX2 static void narrow_bf16_avx2(const float *from, uint16_t *to, size_t n, bool sat) { narrow_bf16(from, to, n, sat); }
static const row_kernels avx2_kernels = {widen_fp16_avx2, widen_bf16_avx2, narrow_fp16_avx2, narrow_bf16_avx2};

static const row_kernels *kernels_for(int isa) {
  return isa >= 0 && rapti_isa_covers(isa, RAPTI_ISA_AVX2) ? &avx2_kernels : &base_kernels;
}
#else
static const row_kernels *kernels_for(int isa) {
  (void)isa;
  return &base_kernels;
}
#endif

/* ---- One tensor ---- */

#define TILE 256
#define CHUNK 32768              /* elements below which a thread is not worth waking */

typedef struct cast_job {
  const row_kernels *kernels;
  const char *from;
  char *to;
  int32_t from_dtype, to_dtype;
  bool saturate;
  int axes;                      /* outermost first by the copy's strides; the last is contiguous in the copy */
  int64_t size[4], from_stride[4], to_stride[4];
  int64_t total, chunk;          /* elements, and those of one task */
} cast_job;

/* n elements as float: in place where they are that already, else in the tile, which may be the copy itself. */
static const float *load(const cast_job *job, const char *from, int64_t step, size_t n, float *tile) {
  if (job->from_dtype == RAPT_FP32) {
    const float *f = (const float *)(const void *)from;
    if (step == 1) return f;
    for (size_t i = 0; i < n; i++) tile[i] = f[(int64_t)i * step];
    return tile;
  }
  const uint16_t *h = (const uint16_t *)(const void *)from;
  uint16_t gathered[TILE];
  if (step != 1) {
    for (size_t i = 0; i < n; i++) gathered[i] = h[(int64_t)i * step];
    h = gathered;
  }
  if (job->from_dtype == RAPT_FP16) job->kernels->widen_fp16(h, tile, n);
  else job->kernels->widen_bf16(h, tile, n);
  return tile;
}

static void store(const cast_job *job, const float *from, char *to, size_t n) {
  uint16_t *h = (uint16_t *)(void *)to;
  if (job->to_dtype == RAPT_FP16) job->kernels->narrow_fp16(from, h, n, job->saturate);
  else if (job->to_dtype == RAPT_BF16) job->kernels->narrow_bf16(from, h, n, job->saturate);
  else if ((const void *)from != (const void *)to) memcpy(to, from, n * sizeof *from);
}

static void cast_row(const cast_job *job, const char *from, char *to, int64_t step, int64_t n) {
  int64_t from_bytes = (int64_t)rapt_dtype_bytes(job->from_dtype), to_bytes = (int64_t)rapt_dtype_bytes(job->to_dtype);
  bool straight = step == 1 && job->from_dtype == RAPT_FP32;
  float tile[TILE];
  for (int64_t i = 0; i < n;) {
    int64_t m = straight || n - i < TILE ? n - i : TILE;
    float *room = job->to_dtype == RAPT_FP32 ? (float *)(void *)(to + i * to_bytes) : tile;
    store(job, load(job, from + i * step * from_bytes, step, (size_t)m, room), to + i * to_bytes, (size_t)m);
    i += m;
  }
}

static void cast_chunk(void *arg, uint32_t task) {
  const cast_job *job = arg;
  int64_t at = (int64_t)task * job->chunk, end = job->total - at < job->chunk ? job->total : at + job->chunk;
  int inner = job->axes - 1;
  int64_t from_bytes = (int64_t)rapt_dtype_bytes(job->from_dtype), to_bytes = (int64_t)rapt_dtype_bytes(job->to_dtype);
  while (at < end) {
    int64_t col = at % job->size[inner], rest = at / job->size[inner];
    int64_t n = job->size[inner] - col < end - at ? job->size[inner] - col : end - at;
    int64_t from = col * job->from_stride[inner], to = col * job->to_stride[inner];
    for (int axis = inner - 1; axis >= 0; axis--) {
      int64_t i = rest % job->size[axis];
      rest /= job->size[axis];
      from += i * job->from_stride[axis];
      to += i * job->to_stride[axis];
    }
    cast_row(job, job->from + from * from_bytes, job->to + to * to_bytes, job->from_stride[inner], n);
    at += n;
  }
}

static void add_axis(cast_job *job, int64_t size, int64_t from, int64_t to) {
  int at = job->axes++;
  for (; at > 0 && job->to_stride[at - 1] < to; at--) {
    job->size[at] = job->size[at - 1];
    job->from_stride[at] = job->from_stride[at - 1];
    job->to_stride[at] = job->to_stride[at - 1];
  }
  job->size[at] = size;
  job->from_stride[at] = from;
  job->to_stride[at] = to;
}

/* Joins neighbouring axes that step as one in both tensors. */
static void join_axes(cast_job *job) {
  int last = 0;
  for (int i = 1; i < job->axes; i++) {
    bool one = job->from_stride[last] == job->size[i] * job->from_stride[i] &&
               job->to_stride[last] == job->size[i] * job->to_stride[i];
    if (one) job->size[last] *= job->size[i];
    else job->size[++last] = job->size[i];
    job->from_stride[last] = job->from_stride[i];
    job->to_stride[last] = job->to_stride[i];
  }
  job->axes = last + 1;
}

static void job_make(const rapti_decided *d, int field, cast_job *job) {
  int64_t size[4], from[4];
  const rapt_desc *to = rapti_desc(&d->request.cast, field);
  rapti_tensor_sizes(&d->request.cast, field, size);
  rapti_given_strides(d, field, from);
  job->total = 1;
  for (int i = 0; i < 4; i++) {
    job->total *= size[i];
    if (size[i] > 1) add_axis(job, size[i], from[i], to->stride[i]);
  }
  if (job->axes == 0) add_axis(job, 1, 1, 1);
  join_axes(job);
}

static void cast_tensor(const rapti_decided *d, int field, const void *from, void *to) {
  cast_job job = {.from = from, .to = to};
  job_make(d, field, &job);
  if (job.total == 0) return;
  const rapti_services *s = &d->ctx->services;
  job.kernels = kernels_for(d->ctx->isa);
  job.from_dtype = d->request.given[field == RAPT_FIELD_BIAS ? 3 : field - RAPT_FIELD_Q];
  job.to_dtype = rapti_desc(&d->request.cast, field)->dtype;
  job.saturate = field == RAPT_FIELD_BIAS;
  job.chunk = job.total / ((int64_t)s->max_threads * 4) & ~(int64_t)63;   /* whole cache lines to a thread */
  if (job.chunk < CHUNK) job.chunk = CHUNK;
  uint32_t tasks = (uint32_t)((job.total + job.chunk - 1) / job.chunk);
  if (tasks == 1) cast_chunk(&job, 0);
  else s->parallel_for(s->parallel_self, tasks, cast_chunk, &job);
}

/* ---- All of a call ---- */

void rapti_given_strides(const rapti_decided *d, int field, int64_t stride[4]) {
  static const int dense[4] = {0, 1, 2, 3}, packed[4] = {0, 2, 1, 3};
  const rapt_problem *p = &d->problem;
  if (!(d->request.casts >> field & 1u)) {
    memcpy(stride, rapti_desc(&d->request.cast, field)->stride, 4 * sizeof *stride);
  } else if (p->has & rapti_stride_bit(field)) {
    memcpy(stride, rapti_desc(p, field)->stride, 4 * sizeof *stride);
  } else {
    int64_t size[4];
    rapti_tensor_sizes(&d->request.cast, field, size);
    rapti_dense_strides(size, p->cu ? packed : dense, stride);
  }
}

size_t rapti_cast_copy_bytes(const rapti_decided *d, int field) {
  int64_t size[4], low, high;
  const rapt_desc *to = rapti_desc(&d->request.cast, field);
  rapti_tensor_sizes(&d->request.cast, field, size);
  if (!rapti_extent(size, to->stride, &low, &high)) return 0;
  return rapti_align64((size_t)(high + 1) * rapt_dtype_bytes(to->dtype));
}

void rapti_cast_run(const rapt_plan *plan, const rapt_buffers *b, void *workspace, rapt_buffers *to) {
  static const int fields[] = {RAPT_FIELD_Q, RAPT_FIELD_K, RAPT_FIELD_V, RAPT_FIELD_BIAS};
  const void *const from[] = {b->q, b->k, b->v, b->bias};
  const void **const copies[] = {&to->q, &to->k, &to->v, &to->bias};
  char *at = workspace;
  for (int i = 0; i < 4; i++) {
    if (!(plan->d.request.casts >> fields[i] & 1u)) continue;
    cast_tensor(&plan->d, fields[i], from[i], at);
    *copies[i] = at;
    at += rapti_cast_copy_bytes(&plan->d, fields[i]);
  }
}
