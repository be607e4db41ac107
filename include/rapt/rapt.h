/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: attention that always runs the right kernel and says why.
 *
 * The smallest program:
 *     rapt_ctx *ctx; rapt_ctx_create(NULL, &ctx, NULL);
 *     rapt_problem p = RAPT_PROBLEM_INIT;
 *     p.q.dtype = p.k.dtype = p.v.dtype = RAPT_FP32;
 *     p.B = 1; p.Hq = p.Hkv = 8; p.Sq = p.Skv = 256; p.D = p.Dv = 64;
 *     rapt_buffers b = RAPT_BUFFERS_INIT; b.q = q; b.k = k; b.v = v; b.out = out;
 *     rapt_status st = rapt_attention(ctx, &p, &b, NULL);
 *
 * Rule ids (S1, M5, ...) are those of docs/contract.md.
 *
 * Conventions. Every function that can fail returns rapt_status; `why` and `report` arguments may be NULL. Every
 * struct passed by pointer starts with struct_size: set it with the RAPT_*_INIT macros. A zeroed field means "the
 * default" or "absent"; a number whose zero would mean something counts only with its bit in `has`. Sizes and strides
 * are elements, names ending in _bytes are bytes. Text goes to buffers of the caller: the functions return the full
 * length without the final NUL, as snprintf does, and cut at a character boundary. The library never prints, aborts
 * or changes process state. All functions may be called from any thread; a problem, buffers or options struct is only
 * read during the call. Contexts are reference counted inside: a plan or report stays valid after its context was
 * destroyed.
 *
 * C99 and C++11 clean; needs stddef.h and stdint.h only. */
#ifndef RAPT_RAPT_H
#define RAPT_RAPT_H
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RAPT_API __attribute__((visibility("default")))
#else
#define RAPT_API
#endif

#define RAPT_VERSION_MAJOR 0
#define RAPT_VERSION_MINOR 1
#define RAPT_VERSION_PATCH 0

/* Zeroed but for struct_size, the first member, in a way that neither language warns about at -Wextra. */
#ifdef __cplusplus
template <class T> inline T rapt_sized() {
  T t = T();
  t.struct_size = (uint32_t)sizeof(T);
  return t;
}
#define RAPT_SIZED(type) rapt_sized<type>()
#else
#define RAPT_SIZED(type) { .struct_size = (uint32_t)sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Enums. Values are appended, never reused. Struct fields hold them as int32_t. ---- */

typedef enum rapt_status {          /* E1 */
  RAPT_OK = 0,
  RAPT_ARG,                         /* wrong for any backend */
  RAPT_ABI,                         /* struct_size or interface version */
  RAPT_REFUSED,                     /* legal, but no permitted backend can run it */
  RAPT_NOMEM,
  RAPT_DEVICE_ERROR,
  RAPT_VERIFY_FAILED,
  RAPT_STALE,
  RAPT_INTERNAL                     /* broken invariant: a bug in rapt or in a provider */
} rapt_status;

typedef enum rapt_dtype {
  RAPT_NONE = 0, RAPT_FP16, RAPT_BF16, RAPT_FP32, RAPT_FP64,
  RAPT_BOOL,                        /* one byte an element, nonzero = true (M8) */
  RAPT_UINT8, RAPT_INT8, RAPT_INT16, RAPT_INT32, RAPT_INT64, RAPT_FP8E4M3, RAPT_FP8E5M2
} rapt_dtype;

typedef enum rapt_kind {            /* device kinds */
  RAPT_CPU = 0, RAPT_CUDA, RAPT_HIP, RAPT_XPU, RAPT_MPS, RAPT_XLA, RAPT_HPU, RAPT_IPU, RAPT_NPU, RAPT_META
} rapt_kind;

typedef enum rapt_align {           /* M2: where query row 0 stands among the keys */
  RAPT_UNSET = 0, RAPT_TOP_LEFT, RAPT_BOTTOM_RIGHT,
  RAPT_OFFSET,                      /* q_offset of the problem */
  RAPT_OFFSET_ARRAY                 /* q_offset of the buffers, int64 [B] */
} rapt_align;

typedef enum rapt_det {             /* N16 */
  RAPT_DET_NONE = 0, RAPT_DET_RUN, RAPT_DET_THREADS, RAPT_DET_BATCH
} rapt_det;

typedef enum rapt_code {            /* D7; text and remedy: rapt_code_name and the report */
  RAPT_CODE_NONE = 0,
  RAPT_CODE_AVAIL, RAPT_CODE_VERSION, RAPT_CODE_KNOWN_BAD, RAPT_CODE_ISA, RAPT_CODE_DEVICE, RAPT_CODE_DTYPE,
  RAPT_CODE_DTYPE_MIX, RAPT_CODE_RANK, RAPT_CODE_SHAPE, RAPT_CODE_HEADS, RAPT_CODE_HEAD_DIM, RAPT_CODE_VALUE_DIM,
  RAPT_CODE_SIZE, RAPT_CODE_OFFSET_RANGE, RAPT_CODE_STRIDE, RAPT_CODE_OVERLAP, RAPT_CODE_MEM_ALIGN,
  RAPT_CODE_ALIGNMENT_UNSET, RAPT_CODE_ALIGNMENT, RAPT_CODE_WINDOW, RAPT_CODE_MASK, RAPT_CODE_BIAS,
  RAPT_CODE_BROADCAST, RAPT_CODE_LENGTHS, RAPT_CODE_PACKED, RAPT_CODE_CU_SEQLENS, RAPT_CODE_BLOCK_MASK,
  RAPT_CODE_ALIBI, RAPT_CODE_SOFTCAP, RAPT_CODE_SINK, RAPT_CODE_SCALE, RAPT_CODE_DROPOUT, RAPT_CODE_RNG,
  RAPT_CODE_LSE, RAPT_CODE_GRAD, RAPT_CODE_GRAD_BIAS, RAPT_CODE_GRAD_SINK, RAPT_CODE_STRICT, RAPT_CODE_REDUCED,
  RAPT_CODE_APPROX, RAPT_CODE_DETERMINISM, RAPT_CODE_ISOLATION, RAPT_CODE_MEMORY, RAPT_CODE_CAPTURE,
  RAPT_CODE_AUTOCAST_DTYPE, RAPT_CODE_NULL, RAPT_CODE_HYPOTHETICAL, RAPT_CODE_UNKNOWN_SUPPORT,
  RAPT_CODE_UNKNOWN_FIELD, RAPT_CODE_UNKNOWN_NAME, RAPT_CODE_FORBIDDEN, RAPT_CODE_NOT_REQUIRED, RAPT_CODE_SLOW,
  RAPT_CODE_UNTESTED, RAPT_CODE_OPT_IN, RAPT_CODE_SYNTAX,
  RAPT_CODE_COUNT
} rapt_code;

typedef enum rapt_field {           /* the argument a reason speaks of; rapt_field_name gives the spelling used here */
  RAPT_FIELD_NONE = 0,
  RAPT_FIELD_Q, RAPT_FIELD_K, RAPT_FIELD_V, RAPT_FIELD_OUT, RAPT_FIELD_LSE, RAPT_FIELD_MASK, RAPT_FIELD_BIAS,
  RAPT_FIELD_SINKS, RAPT_FIELD_SLOPES, RAPT_FIELD_DOUT, RAPT_FIELD_DLSE, RAPT_FIELD_DQ, RAPT_FIELD_DK,
  RAPT_FIELD_DV, RAPT_FIELD_DBIAS, RAPT_FIELD_DSINKS,                       /* tensors, in the order of rapt_problem */
  RAPT_FIELD_QKV,                                                          /* "q,k,v" */
  RAPT_FIELD_B, RAPT_FIELD_HQ, RAPT_FIELD_HKV, RAPT_FIELD_SQ, RAPT_FIELD_SKV, RAPT_FIELD_D, RAPT_FIELD_DV_SIZE,
  RAPT_FIELD_SIZES, RAPT_FIELD_STRUCT_SIZE, RAPT_FIELD_HAS, RAPT_FIELD_FLAGS, RAPT_FIELD_BACKWARD,
  RAPT_FIELD_DEVICE, RAPT_FIELD_ALIGN, RAPT_FIELD_Q_OFFSET, RAPT_FIELD_WINDOW, RAPT_FIELD_Q_LEN, RAPT_FIELD_KV_LEN,
  RAPT_FIELD_PACKED, RAPT_FIELD_CU_Q, RAPT_FIELD_CU_K, RAPT_FIELD_MAX_Q, RAPT_FIELD_MAX_K, RAPT_FIELD_SOFTCAP,
  RAPT_FIELD_SCALE, RAPT_FIELD_DROPOUT, RAPT_FIELD_BASE, RAPT_FIELD_SEED, RAPT_FIELD_OFFSET, RAPT_FIELD_GRAD,
  RAPT_FIELD_DETERMINISM, RAPT_FIELD_STRICT, RAPT_FIELD_MIXED_KV, RAPT_FIELD_ASSUME_FINITE, RAPT_FIELD_CAPTURE,
  RAPT_FIELD_ALLOW, RAPT_FIELD_MEMORY_LIMIT, RAPT_FIELD_VERIFY, RAPT_FIELD_AUTOCAST, RAPT_FIELD_REQUIRE,
  RAPT_FIELD_PREFER, RAPT_FIELD_FORBID, RAPT_FIELD_ORIGIN, RAPT_FIELD_BACKEND, RAPT_FIELD_ISA, RAPT_FIELD_FACTS,
  RAPT_FIELD_TEXT, RAPT_FIELD_REF_LIMIT, RAPT_FIELD_MAX_THREADS, RAPT_FIELD_LOG, RAPT_FIELD_WORKSPACE,
  RAPT_FIELD_RUN, RAPT_FIELD_CTX, RAPT_FIELD_PROBLEM, RAPT_FIELD_BUFFERS, RAPT_FIELD_PLAN, RAPT_FIELD_ALLOC,
  RAPT_FIELD_BLOCK_MASK,
  RAPT_FIELD_COUNT
} rapt_field;

/* rapt_problem.has: numbers and strides that count. The tensors' bits stand in the order of rapt_problem. */
#define RAPT_HAS_SCALE          (UINT64_C(1) << 0)
#define RAPT_HAS_WINDOW         (UINT64_C(1) << 1)
#define RAPT_HAS_MEMORY_LIMIT   (UINT64_C(1) << 2)
#define RAPT_HAS_AUTOCAST       (UINT64_C(1) << 3)
#define RAPT_HAS_Q_STRIDES      (UINT64_C(1) << 8)
#define RAPT_HAS_K_STRIDES      (UINT64_C(1) << 9)
#define RAPT_HAS_V_STRIDES      (UINT64_C(1) << 10)
#define RAPT_HAS_OUT_STRIDES    (UINT64_C(1) << 11)
#define RAPT_HAS_LSE_STRIDES    (UINT64_C(1) << 12)
#define RAPT_HAS_MASK_STRIDES   (UINT64_C(1) << 13)
#define RAPT_HAS_BIAS_STRIDES   (UINT64_C(1) << 14)
/* bits 15, 16: sinks and slopes are dense, they have no strides (S9) */
#define RAPT_HAS_DOUT_STRIDES   (UINT64_C(1) << 17)
#define RAPT_HAS_DLSE_STRIDES   (UINT64_C(1) << 18)
#define RAPT_HAS_DQ_STRIDES     (UINT64_C(1) << 19)
#define RAPT_HAS_DK_STRIDES     (UINT64_C(1) << 20)
#define RAPT_HAS_DV_STRIDES     (UINT64_C(1) << 21)
#define RAPT_HAS_DBIAS_STRIDES  (UINT64_C(1) << 22)
/* bit 23: dsinks is dense */

/* rapt_problem.flags */
#define RAPT_CAUSAL             (UINT64_C(1) << 0)   /* M5 */
#define RAPT_WANT_LSE           (UINT64_C(1) << 1)   /* N8 */
#define RAPT_STRICT             (UINT64_C(1) << 2)   /* N6 */
#define RAPT_MIXED_KV           (UINT64_C(1) << 3)   /* S2 */
#define RAPT_ASSUME_FINITE      (UINT64_C(1) << 4)   /* M15 */
#define RAPT_CAPTURE            (UINT64_C(1) << 5)   /* D18 */
#define RAPT_ALLOW_REDUCED      (UINT64_C(1) << 6)   /* N7 */
#define RAPT_ALLOW_APPROX       (UINT64_C(1) << 7)   /* N7 */
#define RAPT_ALLOW_BACKEND_RNG  (UINT64_C(1) << 8)   /* X7 */
#define RAPT_GRAD_Q             (UINT64_C(1) << 9)   /* gradients needed later (B8), or with backward: to write (B1) */
#define RAPT_GRAD_K             (UINT64_C(1) << 10)
#define RAPT_GRAD_V             (UINT64_C(1) << 11)
#define RAPT_GRAD_BIAS          (UINT64_C(1) << 12)
#define RAPT_GRAD_SINKS         (UINT64_C(1) << 13)
#define RAPT_LENGTHS_ON_DEVICE  (UINT64_C(1) << 14)  /* S15 */
#define RAPT_CU_ON_DEVICE       (UINT64_C(1) << 15)
#define RAPT_OFFSET_ON_DEVICE   (UINT64_C(1) << 16)
#define RAPT_SEED_ON_DEVICE     (UINT64_C(1) << 17)

/* ---- Structs ---- */

/* One tensor's metadata. dtype RAPT_NONE = not given (absent, or the default dtype for out, lse, d*). */
typedef struct rapt_desc {
  int32_t dtype;
  int32_t ptr_align;      /* declared alignment of the pointer, bytes; 0 = element size (S12) */
  int64_t size[4];        /* mask, bias: right-aligned against [B,Hq,Sq,Skv], 1 = broadcast; sinks: [0] length or 0 = Hq;
                             slopes: [0],[1] = B,Hq with [0] = 1 for [Hq]; all zero for the others: they follow B..Dv */
  int64_t stride[4];      /* elements, one a logical axis, any sign; count only with the tensor's bit in `has` (S9) */
} rapt_desc;

/* What is asked, without pointers to data. Zeroed but for struct_size, the dtypes of q,k,v and the seven sizes it is
 * the plain dense call. Logical axes: q [B,Hq,Sq,D], k [B,Hkv,Skv,D], v [B,Hkv,Skv,Dv], out [B,Hq,Sq,Dv],
 * lse [B,Hq,Sq]. Packed (cu set): q [Sq,Hq,D] with Sq all query tokens, k, v [Skv,Hkv,.], lse [Hq,Sq], B sequences;
 * a packed tensor's stride[] keeps four axes with the batch axis unused. */
typedef struct rapt_problem {
  uint32_t struct_size;
  int32_t backward;                         /* 1: a backward (section 5) */
  uint64_t has, flags;                      /* RAPT_HAS_*; RAPT_CAUSAL .. */
  int64_t B, Hq, Hkv, Sq, Skv, D, Dv;
  int32_t device, device_index;             /* rapt_kind */
  rapt_desc q, k, v, out, lse, mask, bias, sinks, slopes, dout, dlse, dq, dk, dv, dbias, dsinks;
  int32_t alignment;                        /* rapt_align (M2, M3) */
  int32_t determinism;                      /* rapt_det */
  int64_t q_offset;                         /* with RAPT_OFFSET */
  int64_t window[2];                        /* left, right, inclusive, -1 open (M6); needs RAPT_HAS_WINDOW */
  int32_t q_len, kv_len, cu;                /* RAPT_INT32, RAPT_INT64 or 0 = absent: dtype of the arrays given at run */
  int32_t autocast_dtype, autocast_device;  /* A1; need RAPT_HAS_AUTOCAST. dtype 0: the device type's default (A15) */
  uint32_t verify;                          /* rows to recompute (R9) */
  int64_t max_q, max_k;                     /* packed only: longest sequence, 0 = not known */
  double softcap;                           /* M20; 0 = off */
  double scale;                             /* N3; needs RAPT_HAS_SCALE */
  double dropout;                           /* p (X5) */
  int64_t base[4];                          /* b0,h0,i0,j0 (X3) */
  int64_t memory_limit;                     /* bytes (D16); needs RAPT_HAS_MEMORY_LIMIT */
  const char *require, *prefer, *forbid;    /* comma separated row ids, prefixes, aliases, class:NAME (D8); may be NULL */
  const char *origin;                       /* a binding's word for where these names came from, e.g. "scope"; may be NULL */
} rapt_problem;
#define RAPT_PROBLEM_INIT RAPT_SIZED(rapt_problem)

/* Pointers of one run, each to element (0,..,0); absent = NULL. Nothing is kept after the call. */
typedef struct rapt_buffers {
  uint32_t struct_size;
  int32_t reserved;
  const void *q, *k, *v, *mask, *bias, *sinks, *slopes;
  const void *q_len, *kv_len;               /* int32|int64 [B] */
  const void *cu_q, *cu_k;                  /* int32|int64 [B+1] */
  const void *q_offset;                     /* int64 [B], with RAPT_OFFSET_ARRAY */
  uint64_t seed, offset;
  const uint64_t *seed_ptr, *offset_ptr;    /* with RAPT_SEED_ON_DEVICE */
  void *out, *lse;                          /* written forward, read backward */
  const void *dout, *dlse;
  void *dq, *dk, *dv, *dbias, *dsinks;
} rapt_buffers;
#define RAPT_BUFFERS_INIT RAPT_SIZED(rapt_buffers)

/* One fault or one reason of one row. field: rapt_field; axis, index: -1 where they say nothing. */
typedef struct rapt_reason {
  uint32_t struct_size;
  int32_t code;                             /* rapt_code */
  int32_t state;                            /* rapt_state */
  int32_t field, axis;
  int64_t index;
  char got[96], want[160];
} rapt_reason;
#define RAPT_REASON_INIT RAPT_SIZED(rapt_reason)

typedef enum rapt_state { RAPT_FAILED = 0, RAPT_NOT_EVALUATED } rapt_state;     /* D4 */
typedef enum rapt_can { RAPT_ABLE = 0, RAPT_UNABLE, RAPT_UNDECIDED } rapt_can;
typedef enum rapt_place { RAPT_PLACE_OPT_IN = 0, RAPT_PLACE_FIRST, RAPT_PLACE_OWN, RAPT_PLACE_HOST } rapt_place;
typedef enum rapt_accuracy { RAPT_EXACT = 0, RAPT_REDUCED, RAPT_APPROX } rapt_accuracy;   /* N7 */

#define RAPT_CLASS_REFERENCE 1u
#define RAPT_CLASS_FUSED     2u
#define RAPT_CLASS_FLASH     4u
#define RAPT_CLASS_HOST      8u
#define RAPT_CLASS_APPROX    16u

/* kind: one of these; a notice is a fallback from prefer or to the reference, once a context, backend and code (R8).
 * line: no newline, valid during the call. */
enum { RAPT_LOG_DECISION = 0, RAPT_LOG_REFUSAL = 1, RAPT_LOG_NOTICE = 2 };

typedef struct rapt_ctx_opts {
  uint32_t struct_size;
  uint32_t max_threads;                     /* fixed for the context's life; 0 = usable cores */
  void *(*alloc)(void *self, size_t bytes, size_t align);   /* both or neither; NULL = the C library's */
  void (*free)(void *self, void *ptr);
  void *alloc_self;
  /* runs task(arg, 0) .. task(arg, n-1), each once, on any threads, and returns when all are done; NULL: rapt's own pool */
  void (*parallel_for)(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg);
  void *parallel_self;
  void (*log)(void *self, int kind, const char *line);      /* NULL: RAPT_LOG, or nothing (E4) */
  void *log_self;
  const char *isa;                          /* cap on the CPU level: scalar, avx2, avx512, ..; may be NULL */
  const char *require, *prefer, *forbid;    /* as in rapt_problem; may be NULL */
  const char *facts;                        /* a facts string makes a what-if context (D20); may be NULL */
  int64_t memory_limit;                     /* with RAPT_HAS_MEMORY_LIMIT */
  uint64_t ref_limit;                       /* D14; 0 = 2^31 */
  uint32_t verify, reserved;
  uint64_t has, flags;                      /* has: RAPT_HAS_MEMORY_LIMIT; flags: RAPT_CTX_NO_ENV */
} rapt_ctx_opts;
#define RAPT_CTX_OPTS_INIT RAPT_SIZED(rapt_ctx_opts)
#define RAPT_CTX_NO_ENV 1u                  /* do not read the environment (D23) */

/* A tensor as a host has it. rank 3 = (H,S,D), 4 = (B,H,S,D) (S3). stride: elements. */
typedef struct rapt_tensor {
  int32_t dtype, kind, index, rank;
  int64_t size[8], stride[8];
} rapt_tensor;

typedef struct rapt_row_info {
  uint32_t struct_size, classes;            /* RAPT_CLASS_* */
  int32_t place, rank;
  const char *id, *display, *kernel, *backend;   /* kernel: a stem. Strings live as long as the context */
  uint64_t entered;                         /* runs of this row in this context (R1) */
} rapt_row_info;
#define RAPT_ROW_INFO_INIT RAPT_SIZED(rapt_row_info)

typedef struct rapt_verdict {
  uint32_t struct_size;
  int32_t can, chosen;                      /* rapt_can; 1 = this row was chosen */
  uint32_t n_reasons;
  const char *row, *backend, *display;      /* live as long as the report */
} rapt_verdict;
#define RAPT_VERDICT_INIT RAPT_SIZED(rapt_verdict)

/* The decision of a report. Strings live as long as the report; empty string = nothing to say. */
typedef struct rapt_decision {
  uint32_t struct_size;
  int32_t status;                           /* rapt_status: OK, ARG or REFUSED */
  int32_t hypothetical;                     /* 1: facts of another machine (D20) */
  int32_t fallback;                         /* 1: a preferred row could not run */
  int32_t accuracy;                         /* rapt_accuracy */
  uint32_t threads, classes;
  int32_t cast_dtype;                       /* rapt_dtype of the casts, 0 = none */
  uint32_t casts;                           /* bit RAPT_FIELD_x for each tensor cast: 1u << RAPT_FIELD_Q .. */
  uint32_t n_rows;
  const char *row, *backend, *display, *kernel, *isa, *level, *exactness, *rng;
  int64_t off;                              /* M2's off for every batch entry; INT64_MIN where it varies or does not matter */
  double scale;                             /* the effective one, N3 */
  uint64_t workspace_bytes, cast_bytes, copy_bytes;   /* the workspace holds the casts and copies */
} rapt_decision;
#define RAPT_DECISION_INIT RAPT_SIZED(rapt_decision)

typedef struct rapt_ctx rapt_ctx;
typedef struct rapt_plan rapt_plan;
typedef struct rapt_report rapt_report;

/* ---- Names. The strings are constants; an unknown value gives "?". ---- */
RAPT_API const char *rapt_version(void);                    /* "0.1.0" */
RAPT_API const char *rapt_status_name(int32_t status);      /* "REFUSED" */
RAPT_API const char *rapt_code_name(int32_t code);          /* "DTYPE_MIX" */
RAPT_API const char *rapt_dtype_name(int32_t dtype);        /* "bf16" */
RAPT_API const char *rapt_field_name(int32_t field);        /* "kv_len" */
RAPT_API size_t rapt_dtype_bytes(int32_t dtype);            /* 0 for RAPT_NONE and unknown values */

/* ---- Context ---- */

/* Gathers the facts of this machine (or takes opts->facts), reads the environment once. opts may be NULL.
 * OK: *ctx is the caller's. ABI, ARG (an option, or a variable of the environment, is wrong: why names it), NOMEM. */
RAPT_API rapt_status rapt_ctx_create(const rapt_ctx_opts *opts, rapt_ctx **ctx, rapt_reason *why);
RAPT_API void rapt_ctx_destroy(rapt_ctx *ctx);              /* NULL is fine */
RAPT_API void rapt_ctx_trim(rapt_ctx *ctx);                 /* gives cached plans and idle workspaces back */
RAPT_API size_t rapt_ctx_facts_format(const rapt_ctx *ctx, char *buf, size_t n);
RAPT_API uint32_t rapt_row_count(const rapt_ctx *ctx);
RAPT_API rapt_status rapt_row_get(const rapt_ctx *ctx, uint32_t i, rapt_row_info *info);    /* ARG: no such row */

/* ---- Problem ---- */

/* Fills dtypes, sizes, strides, device of q,k,v from tensors of rank 3 or 4. ARG: RANK, DEVICE, SHAPE, HEADS. The
 * problem must have its struct_size; other fields stay. */
RAPT_API rapt_status rapt_problem_set_qkv(rapt_problem *p, const rapt_tensor *q, const rapt_tensor *k,
                                          const rapt_tensor *v, rapt_reason *why);
/* After set_qkv. Rank 0..4, right-aligned against [B,Hq,Sq,Skv] (M12). ARG: RANK, SHAPE, MASK or BIAS, DEVICE. */
RAPT_API rapt_status rapt_problem_set_mask(rapt_problem *p, const rapt_tensor *mask, rapt_reason *why);
RAPT_API rapt_status rapt_problem_set_bias(rapt_problem *p, const rapt_tensor *bias, rapt_reason *why);
/* The tensor a binding has to allocate for out or lse (which: RAPT_FIELD_OUT, RAPT_FIELD_LSE): dtype after the policy,
 * sizes, strides dense in q's axis order (H2). Depends on the request only (D19). ARG as rapt_explain. */
RAPT_API rapt_status rapt_problem_output(const rapt_problem *p, int32_t which, rapt_tensor *tensor, rapt_reason *why);
/* Canonical problem string (docs/api.md section 2). An illegal problem formats as far as it can be said. */
RAPT_API size_t rapt_problem_format(const rapt_problem *p, char *buf, size_t n);
/* text: len bytes (at most 4,096), need not end in NUL. names: the caller's storage of n bytes to which the require,
 * prefer and forbid lists of the text are copied and p then points; len bytes always suffice, NULL is fine for a text
 * without names. ARG: SYNTAX with the byte, UNKNOWN_FIELD with the key, NULL when names are there and storage is not. */
RAPT_API rapt_status rapt_problem_parse(const char *text, size_t len, rapt_problem *p, char *names, size_t n,
                                        rapt_reason *why);

/* ---- Decide ---- */

/* The autocast policy alone (section 6): *cast_p is *p with the post-policy dtypes of q,k,v,bias and autocast switched
 * off. A pure function. ARG: AUTOCAST_DTYPE, DTYPE, DTYPE_MIX (A7). */
RAPT_API rapt_status rapt_autocast_resolve(const rapt_problem *p, rapt_problem *cast_p, rapt_reason *why);

/* What would happen, with one verdict a row; runs nothing. OK, ARG, REFUSED: *report is the caller's in all three.
 * ABI, NOMEM: *report is NULL. */
RAPT_API rapt_status rapt_explain(rapt_ctx *ctx, const rapt_problem *p, rapt_report **report);

/* The qualified line of a site (R4), e.g. "flash_attention_2 (CUDA fp16/bf16 only; torch_sdpa otherwise)". family: its
 * dtypes and device give way to each pair of the two lists ("fp16,bf16,fp32" and "cpu,cuda" where NULL). *len: length
 * without NUL. OK, ARG (why), NOMEM; *undecided (may be NULL) is set to 1 when a pair could not be decided. */
RAPT_API rapt_status rapt_line_format(rapt_ctx *ctx, const rapt_problem *family, const char *dtypes,
                                      const char *devices, char *buf, size_t n, size_t *len, int *undecided,
                                      rapt_reason *why);

/* ---- Plan ---- */

/* Freezes a decision. OK: *plan is the caller's, and *report where asked. ARG, REFUSED: *plan is NULL, *report is made.
 * ABI, NOMEM. A what-if context cannot plan: ARG, HYPOTHETICAL. */
RAPT_API rapt_status rapt_plan_create(rapt_ctx *ctx, const rapt_problem *p, rapt_plan **plan, rapt_report **report);
RAPT_API void rapt_plan_destroy(rapt_plan *plan);           /* NULL is fine */
RAPT_API size_t rapt_plan_workspace(const rapt_plan *plan); /* bytes a run needs, aligned to 64; 0 = none (P3) */
RAPT_API rapt_status rapt_plan_report(const rapt_plan *plan, rapt_report **report);
/* The checks of a run (P4) alone: null, alignment and overlap of pointers, host lengths, workspace size. */
RAPT_API rapt_status rapt_plan_check(const rapt_plan *plan, const rapt_buffers *b, const void *workspace,
                                     size_t workspace_bytes, rapt_reason *why);
/* Runs. Checks first, as rapt_plan_check: ARG and ABI leave every output untouched. workspace: 64-byte aligned, not
 * shared with a concurrent run. stream: the device's, NULL on a CPU. Never allocates. DEVICE_ERROR, INTERNAL: outputs
 * are undefined. */
RAPT_API rapt_status rapt_plan_run(const rapt_plan *plan, const rapt_buffers *b, void *workspace,
                                   size_t workspace_bytes, void *stream);

/* ---- One call ---- */

/* Cached plan and run on memory of the context (P8). *report, where asked, is the caller's for OK, ARG and REFUSED.
 * OK, ARG, ABI, REFUSED, NOMEM, DEVICE_ERROR, INTERNAL. */
RAPT_API rapt_status rapt_attention(rapt_ctx *ctx, const rapt_problem *p, const rapt_buffers *b, rapt_report **report);

/* ---- Report ---- */

/* TEXT: everything, every row on a line. BRIEF: the same without the rows that have no part in the call. */
typedef enum rapt_form { RAPT_FORM_TEXT = 0, RAPT_FORM_JSON, RAPT_FORM_BRIEF } rapt_form;

RAPT_API rapt_status rapt_report_decision(const rapt_report *r, rapt_decision *d);
/* The fault of an ARG report (or of a failed run). OK; ARG when there is none. */
RAPT_API rapt_status rapt_report_error(const rapt_report *r, rapt_reason *reason);
RAPT_API uint32_t rapt_report_count(const rapt_report *r);  /* rows, in table order; 0 for an ARG report */
RAPT_API rapt_status rapt_report_verdict(const rapt_report *r, uint32_t i, rapt_verdict *v);         /* ARG: no such row */
RAPT_API rapt_status rapt_report_reason(const rapt_report *r, uint32_t i, uint32_t j, rapt_reason *reason);
/* Text or JSON (docs/api.md section 8), full length returned. names: RAPT_FIELD_COUNT spellings of a host's own, NULL
 * entries and NULL = the ones of rapt_field_name (E3). */
RAPT_API size_t rapt_report_format(const rapt_report *r, int32_t form, const char *const *names, char *buf, size_t n);
RAPT_API void rapt_report_destroy(rapt_report *r);          /* NULL is fine */

/* The sentence of one reason: what, value, limit, remedy. row: the row it speaks of, or NULL for a fault of the call. */
RAPT_API size_t rapt_reason_format(const rapt_reason *reason, const char *row, const char *const *names, char *buf,
                                   size_t n);

#ifdef __cplusplus
}
#endif
#endif
