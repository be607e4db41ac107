/* SPDX-License-Identifier: Apache-2.0 */
/* One forward call as the kernels see it, and what a kernel of one CPU level offers.
 *
 * The work of one KV head: its `rows` are the query rows of all query heads of the group, head after head, and are cut
 * into panels (one vector lane a row) and these into chunks. A chunk is the unit that a thread takes. Keys are cut into
 * blocks at fixed positions, multiples of `block`, which depends on D and Dv alone: so a row's bits depend on what it
 * sees, not on the sizes, the other rows or the way visibility was expressed (M23, N17). */
#ifndef RAPTI_CPU_KERNEL_H
#define RAPTI_CPU_KERNEL_H
#include "base/base.h"
#include "base/half.h"
#include "rapt/rapt.h"

enum { RAPTI_MAX_WIDTH = 64, RAPTI_KEY_TILE = 4 };

/* A tensor: byte strides; axes of one element, and broadcast axes, have stride 0. dtype 0: absent. */
typedef struct rapti_in {
  const char *base;
  int64_t sb, sh, ss, sd;
  int32_t dtype;
} rapti_in;
typedef struct rapti_out {
  char *base;
  int64_t sb, sh, ss, sd;
  int32_t dtype;
} rapti_out;

typedef struct rapti_cpu_call {
  int64_t B, Hq, Hkv, Sq, Skv, D, Dv, group;
  rapti_in q, k, v, mask, bias;
  rapti_out out, lse;
  float scale;
  /* Positions (section 2): off_b from alignment; left, right: -1 open, causal is right = 0. */
  int32_t alignment, q_len_dtype, kv_len_dtype, positional;
  int64_t offset, left, right;
  const int64_t *offsets;
  const void *q_len, *kv_len;
  /* Geometry, from sizes alone. */
  int64_t block, blocks;                       /* keys a block, blocks a head */
  int64_t rows, panels, chunk_panels, chunks;  /* of one KV head */
  int64_t dv_pad;                              /* Dv rounded up to the tile */
  bool pack_head;                              /* K and V of a head are packed once, else block by block in each chunk */
  bool few_rows;                               /* rows <= RAPTI_FEW_ROWS: the kernel without packing */
  /* Scratch of one thread: byte offsets. */
  size_t k_at, v_at, flags_at, q_at, o_at, s_at, t_at, fetch_at, panels_at, thread_bytes;
  int64_t fetch_row;                           /* floats a row of the fetch area: `lanes` rows, with few_rows twice that */
  int64_t few_row;                             /* floats a row of scores with few_rows */
  uint32_t threads;
  _Atomic int64_t *counters;                   /* threads > 1: next head, then next chunk of each head */
  char *scratch;
} rapti_cpu_call;

enum { RAPTI_FEW_ROWS = 8, RAPTI_FEW_GROUP = 4 };   /* most rows; rows that share one reading of a vector */

/* Rows of one KV head; false on overflow. Hkv may be 0: there are none then. */
static inline bool rapti_cpu_rows(const rapt_problem *p, int64_t *rows) {
  return rapti_mul(p->Hkv > 0 ? p->Hq / p->Hkv : 0, p->Sq, rows);
}

static inline bool rapti_cpu_few_rows(const rapt_problem *p) {
  int64_t rows;
  return rapti_cpu_rows(p, &rows) && rows <= RAPTI_FEW_ROWS;
}

/* Rows of one panel: which keys each sees, and its softmax state. Lanes past `rows` repeat the last row. */
typedef struct rapti_panel {
  int64_t lo[RAPTI_MAX_WIDTH], hi[RAPTI_MAX_WIDTH];   /* visible keys by metadata, inclusive; lo > hi: none */
  int64_t any_lo, any_hi, all_lo, all_hi;             /* seen by some live lane, by every live lane */
  float m[RAPTI_MAX_WIDTH], l[RAPTI_MAX_WIDTH];       /* running maximum and sum */
  int64_t first;                                      /* row of lane 0 */
  int32_t rows, vectors;
} rapti_panel;

typedef struct rapti_cpu_kernel {
  void (*pack)(const rapti_cpu_call *c, char *scratch, int64_t head);               /* head = b * Hkv + h_kv */
  void (*chunk)(const rapti_cpu_call *c, char *scratch, int64_t head, int64_t chunk);
  void (*few)(const rapti_cpu_call *c, char *scratch, int64_t head);
} rapti_cpu_kernel;

/* Of all levels; defined where the architecture has the code. */
#define RAPTI_LEVEL(name, architecture, width, lanes, ran) \
  extern const rapti_cpu_kernel rapti_cpu_##name; \
  enum { RAPTI_WIDTH_##name = width, RAPTI_LANES_##name = lanes };
#include "backends/cpu/levels.def"
#undef RAPTI_LEVEL

/* geometry.c */
/* Sizes, strides and scratch layout; false where a size overflows. Pointers stay NULL. */
bool rapti_cpu_shape(const rapt_problem *p, int64_t width, int64_t lanes, uint32_t max_threads, rapti_cpu_call *c,
                     size_t *workspace);
void rapti_cpu_bind(const rapt_problem *p, const rapt_buffers *b, void *workspace, rapti_cpu_call *c);
/* Keys that query row i of batch entry b sees by causal, window and lengths (M1-M7). */
void rapti_cpu_visible(const rapti_cpu_call *c, int64_t b, int64_t i, int64_t *lo, int64_t *hi);
/* Lanes first .. of a head's rows: ranges and an empty softmax state. */
void rapti_cpu_panel(const rapti_cpu_call *c, int64_t b, int64_t first, int64_t width, int64_t lanes, rapti_panel *panel);
#endif
