/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: attention that always runs the right kernel and says why. This header is the manual. An id in brackets or at the
 * end of a comment (S1, M5, ..) is the footnote: the rule of docs/contract.md that has the whole of it.
 *
 * The smallest program:
 *     rapt_ctx *ctx; rapt_ctx_create(NULL, &ctx, NULL);
 *     rapt_problem p = RAPT_PROBLEM_INIT;
 *     p.q.dtype = p.k.dtype = p.v.dtype = RAPT_FP32;
 *     p.B = 1; p.Hq = p.Hkv = 8; p.Sq = p.Skv = 256; p.D = p.Dv = 64;
 *     rapt_buffers b = RAPT_BUFFERS_INIT; b.q = q; b.k = k; b.v = v; b.out = out;
 *     rapt_status st = rapt_attention(ctx, &p, &b, NULL);
 *
 * Words.
 *     row         what one kernel, or one operator of a host, can run, written as data. A decision chooses a row.
 *     backend     some rows and the code that runs them: "cpu" has the rows cpu.scalar, cpu.avx2, ..
 *     provider    whoever registers a backend at run time with rapt/provider.h: a binding, a plugin, a test.
 *     host        a framework whose program calls rapt; binding: the code between the two; host row: the host's own
 *                 operator, which its binding runs when rapt has chosen it.
 *     place       where automatic choice puts a row: first, own, host, or opt-in (only when prefer or require name it);
 *                 binding: as opt-in, and run by the binding that registered it, as a host row is.
 *     rank        the order of opt-in rows among themselves where require admits several; the lower goes first.
 *     member      the row that another one picks when it runs: torch.sdpa picks torch.flash, torch.efficient, ..
 *     stem        the part of a kernel's name that is the same for all calls: "sdpa_fwd" of "sdpa_fwd_bf16_tile_avx2".
 *     ISA level   the CPU instructions a kernel needs: scalar < avx2 < avx512 < avx512bf16; scalar < neon < neon_bf16.
 *     policy      require, prefer, forbid and the limits. level: who set one: call, context, environment or built-in;
 *                 the narrowest that says something counts, only forbids of all levels add up.
 *     facts       what is known of the device and of installed packages. what-if: a context made on facts of another
 *                 machine; it explains and cannot run.
 *     off         the position of query row 0 among the keys: row i stands at off + i, key j at j.
 *     site        a place in a program that calls attention; family: its problems, alike but for device and dtype.
 *
 * Texts, by example (grammar: docs/api.md section 2).
 *     problem     "bf16 b1 h32/8 q1 k4096 d128 causal=br kvlen=int32 prefer=fa2"     B Hq/Hkv Sq Skv D, then options
 *     facts       "cuda cc=9.0 torch=2.13.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0 sageattention=none"
 *     names       "cpu.avx2,ref"  "fa2,torch.sdpa,class:host"       at most 32, commas without spaces: a row id, the
 *                 part of ids before a dot (all rows below it), an alias, a display name, or class:reference,
 *                 class:fused, class:flash, class:host, class:approx. NULL and "" are no list.
 *
 * Environment, read once by rapt_ctx_create; an empty variable is not set; a bad value is ARG (D23).
 *     RAPT_REQUIRE RAPT_PREFER RAPT_FORBID    lists of names, as the fields of rapt_ctx_opts
 *     RAPT_MEMORY_LIMIT                       bytes a call may need beyond its tensors
 *     RAPT_REF_LIMIT                          products up to which the reference is chosen by itself; 1 or more
 *     RAPT_ISA                                cap on the ISA level
 *     RAPT_LOG=stderr|PATH[:decisions|refusals]    the log, where the context has no log function; a PATH has a "/".
 *                                             A line a decision or refusal that is new, and one a faulty call
 *     RAPT_VERIFY                             not in this version: 0 or unset
 *
 * Conventions.
 *   - Every function that can fail returns rapt_status. `why` and `report` may be NULL unless a function's comment says
 *     otherwise. `why` needs its struct_size (RAPT_REASON_INIT); it is filled for ARG and ABI, after OK and NOMEM it says
 *     nothing. *report is NULL after NOMEM and is made with any other status: destroy it.
 *   - Structs start with struct_size: set it with RAPT_*_INIT. Those without one never change: rapt_desc and
 *     rapt_dims (members of others), and rapt_tensor.
 *   - A zeroed field means "the default" or "absent". A number whose zero would mean something counts only with its bit
 *     in `has`; set without it, it is refused. Sizes are the exception: a size of 0 is an empty tensor, a legal call
 *     that computes nothing, and no "unknown".
 *   - "Not in this version" beside a field: it must be 0, or every row of rapt refuses the call with that option's code;
 *     rows of a host or provider may take it.
 *   - Sizes and strides are elements, names ending in _bytes are bytes. Text goes to buffers of the caller: the functions
 *     return the full length without the final NUL, as snprintf does, and cut at a character boundary.
 *   - The library never prints, aborts or changes process state. All functions may be called from any thread; a problem,
 *     buffers or options struct is only read during the call.
 *   - Contexts are reference counted inside: a plan or report stays valid after its context was destroyed.
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
  t.struct_size = static_cast<uint32_t>(sizeof(T));
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
  RAPT_OK = 0,                      /* every element of every requested output is written (S16) */
  RAPT_ARG,                         /* wrong for any backend */
  RAPT_ABI,                         /* struct_size or interface version */
  RAPT_REFUSED,                     /* legal, but no permitted backend can run it */
  RAPT_NOMEM,
  RAPT_DEVICE_ERROR,                /* a provider's device or library failed */
  RAPT_VERIFY_FAILED,               /* never returned: not in this version */
  RAPT_STALE,                       /* never returned: not in this version */
  RAPT_INTERNAL                     /* broken invariant: a bug in rapt or in a provider */
} rapt_status;

typedef enum rapt_dtype {
  RAPT_NONE = 0, RAPT_FP16, RAPT_BF16, RAPT_FP32, RAPT_FP64,
  RAPT_BOOL,                        /* one byte an element, nonzero = true (M8) */
  RAPT_UINT8, RAPT_INT8, RAPT_INT16, RAPT_INT32, RAPT_INT64, RAPT_FP8E4M3, RAPT_FP8E5M2
} rapt_dtype;

typedef enum rapt_kind {            /* device kinds. Rows of rapt run on RAPT_CPU; the others are for what-ifs and providers */
  RAPT_CPU = 0, RAPT_CUDA, RAPT_HIP, RAPT_XPU, RAPT_MPS, RAPT_XLA, RAPT_HPU, RAPT_IPU, RAPT_NPU, RAPT_META
} rapt_kind;

typedef enum rapt_align {           /* off: the position of query row 0 among the keys (M2) */
  RAPT_UNSET = 0,                   /* off = 0; with causal, window or slopes only where all corners agree (Sq = Skv, no
                                       lengths, not packed), else ARG, ALIGNMENT_UNSET (M3) */
  RAPT_TOP_LEFT,                    /* off = 0 */
  RAPT_BOTTOM_RIGHT,                /* off = Skv - Sq; with lengths off = kv_len[b] - q_len[b] */
  RAPT_OFFSET,                      /* off = q_offset of the problem; may be negative */
  RAPT_OFFSET_ARRAY                 /* off = q_offset[b] of the buffers, int64 [B] */
} rapt_align;

typedef enum rapt_det {             /* same bits again, each level with all those before it (N16) */
  RAPT_DET_NONE = 0,
  RAPT_DET_RUN,                     /* on the same machine, plan and inputs */
  RAPT_DET_THREADS,                 /* and for any number of threads */
  RAPT_DET_BATCH                    /* and of a row, whatever the other rows, heads and batch entries are */
} rapt_det;

typedef enum rapt_code {            /* D7; the sentence and the remedy of a reason: rapt_reason_format */
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
  RAPT_FIELD_ENV_REQUIRE, RAPT_FIELD_ENV_PREFER, RAPT_FIELD_ENV_FORBID, RAPT_FIELD_ENV_MEMORY_LIMIT,
  RAPT_FIELD_ENV_REF_LIMIT, RAPT_FIELD_ENV_ISA, RAPT_FIELD_ENV_VERIFY, RAPT_FIELD_ENV_LOG,   /* variables of the environment */
  RAPT_FIELD_COUNT
} rapt_field;

/* rapt_problem.has: numbers and strides that count. The tensors' bits stand in the order of rapt_problem: the bit of a
 * tensor is 7 + its RAPT_FIELD_. A set bit counts all four strides. */
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
#define RAPT_CAUSAL             (UINT64_C(1) << 0)   /* row i sees key j where j <= i + off (M5) */
#define RAPT_WANT_LSE           (UINT64_C(1) << 1)   /* also write lse: the natural logarithm of the sum of exp(logit) over
                                                        visible keys, scale and bias included; fp32, fp64 for fp64 q (N8) */
#define RAPT_STRICT             (UINT64_C(1) << 2)   /* weights are not rounded to the io dtype between the products (N6) */
#define RAPT_MIXED_KV           (UINT64_C(1) << 3)   /* k and v may share a half type that is not q's (S2) */
#define RAPT_ASSUME_FINITE      (UINT64_C(1) << 4)   /* q, k, v, dout hold no NaN or Inf: admits backends that compute 0 * NaN
                                                        at invisible pairs. Own rows never do: NaN behind kv_len, or under a
                                                        false mask, changes no result (M14, M15) */
#define RAPT_CAPTURE            (UINT64_C(1) << 5)   /* will run under graph capture (D18). Not in this version */
#define RAPT_ALLOW_REDUCED      (UINT64_C(1) << 6)   /* admits rows that multiply in TF32 and the like (N7) */
#define RAPT_ALLOW_APPROX       (UINT64_C(1) << 7)   /* admits quantised and approximate rows (N7) */
#define RAPT_ALLOW_BACKEND_RNG  (UINT64_C(1) << 8)   /* admits rows that drop by a generator of their own (X7) */
#define RAPT_GRAD_Q             (UINT64_C(1) << 9)   /* GRAD_*: gradients needed later (B8), or with backward: to write (B1). */
#define RAPT_GRAD_K             (UINT64_C(1) << 10)  /* Not in this version */
#define RAPT_GRAD_V             (UINT64_C(1) << 11)
#define RAPT_GRAD_BIAS          (UINT64_C(1) << 12)
#define RAPT_GRAD_SINKS         (UINT64_C(1) << 13)
#define RAPT_LENGTHS_ON_DEVICE  (UINT64_C(1) << 14)  /* *_ON_DEVICE: the arrays' pointers are the device's; the host does */
#define RAPT_CU_ON_DEVICE       (UINT64_C(1) << 15)  /* not check their values, the kernel clamps them to range (M7, S15) */
#define RAPT_OFFSET_ON_DEVICE   (UINT64_C(1) << 16)
#define RAPT_SEED_ON_DEVICE     (UINT64_C(1) << 17)

/* ---- Structs ---- */

/* One tensor's metadata. dtype RAPT_NONE = not given: absent, or for out, lse and d* the default dtype. Where a stride is
 * not given the tensor is dense in the order of its logical axes. */
typedef struct rapt_desc {
  int32_t dtype;
  int32_t ptr_align;      /* declared alignment of the pointer, bytes, a power of two; 0 = element size (S12) */
  int64_t size[4];        /* mask, bias: all four, right-aligned against [B,Hq,Sq,Skv]; 1, not 0, where it is broadcast;
                             sinks: [0] length or 0 = Hq; slopes: [0],[1] = B,Hq with [0] = 1 for [Hq];
                             all zero for the others: they follow B..Dv */
  int64_t stride[4];      /* elements, one a logical axis, any sign, 0 = broadcast (inputs only); ignored on axes of size
                             0 and 1. Count only with the tensor's bit in `has` (S9, S10) */
} rapt_desc;

/* What is asked, without pointers to data. Zeroed but for struct_size, the dtypes of q,k,v and the seven sizes it is
 * the plain dense call. Logical axes: q [B,Hq,Sq,D], k [B,Hkv,Skv,D], v [B,Hkv,Skv,Dv], out [B,Hq,Sq,Dv],
 * lse [B,Hq,Sq]. Packed (cu set): q [Sq,Hq,D] with Sq all query tokens, k, v [Skv,Hkv,.], lse [Hq,Sq], B sequences;
 * a packed tensor's stride[] keeps four axes with the batch axis unused.
 *
 * A pair (query row i, key j) is visible where lengths, causal, window, mask and bias all admit it (M13). A row that sees
 * no key is written too: out = 0, lse = -inf (M16). */
typedef struct rapt_problem {
  uint32_t struct_size;
  int32_t backward;                         /* 1: a backward (section 5). Not in this version */
  uint64_t has, flags;                      /* RAPT_HAS_*; RAPT_CAUSAL .. */
  int64_t B, Hq, Hkv, Sq, Skv, D, Dv;       /* 0 = empty, see Conventions: with B, Hq or Sq = 0 nothing is written, with
                                               Skv = 0 rows of 0 and -inf, with Dv = 0 only lse (S6, S7). D = 0 needs a
                                               scale; Hkv divides Hq, else HEADS (S4) */
  int32_t device, device_index;             /* rapt_kind */
  rapt_desc q, k, v;                        /* fp16, bf16, fp32 or fp64, one dtype after autocast, but for mixed_kv (S2) */
  rapt_desc out;                            /* dtype 0: that of q after autocast, so an autocast call to bf16 on fp32
                                               tensors writes 2 bytes an element: rapt_problem_output tells the size.
                                               RAPT_FP32 may be asked with half q */
  rapt_desc lse;                            /* with RAPT_WANT_LSE; its dtype is not a choice */
  rapt_desc mask;                           /* RAPT_BOOL, one byte an element: nonzero = may attend (M8) */
  rapt_desc bias;                           /* fp16, bf16, fp32 (fp64 with fp64 q), added to the scaled product; -inf hides
                                               its pair, the lowest finite number does not (M9, M10) */
  rapt_desc sinks, slopes;                  /* M21, M19. Not in this version */
  rapt_desc dout, dlse, dq, dk, dv, dbias, dsinks;                          /* not in this version */
  int32_t alignment;                        /* rapt_align; without causal, window or slopes it has no effect (M2-M4) */
  int32_t determinism;                      /* rapt_det: what is asked; rows that give less are passed over */
  int64_t q_offset;                         /* with RAPT_OFFSET; |q_offset| <= 2^62 */
  int64_t window[2];                        /* left, right: row i sees i + off - left <= j <= i + off + right, both ends
                                               included, -1 = open; with causal right is at most 0. Needs RAPT_HAS_WINDOW
                                               (M6) */
  int32_t q_len, kv_len;                    /* RAPT_INT32, RAPT_INT64 or 0 = absent: dtype of the arrays [B] given at run.
                                               Row i counts where i < q_len[b], key j where j < kv_len[b]; rows behind
                                               q_len are written as rows that see nothing (M7, M16) */
  int32_t cu;                               /* the same for cu_q, cu_k [B+1]: packed sequences (M17). Not in this version */
  int32_t autocast_dtype, autocast_device;  /* q, k, v and bias in fp16, bf16 or fp32 are cast to this dtype where `device`
                                               is autocast_device (A1-A3); dtype 0: that kind's default, bf16 on a CPU
                                               (A15). Need RAPT_HAS_AUTOCAST */
  uint32_t verify;                          /* not in this version: must be 0, else ARG */
  int64_t max_q, max_k;                     /* packed only: longest sequence, 0 = not known */
  double softcap;                           /* M20; 0 = off. Not in this version */
  double scale;                             /* of the dot product, 0 and below as given; needs RAPT_HAS_SCALE, else
                                               1/sqrt(D) (N3) */
  double dropout;                           /* probability (X5); 0 = off. Not in this version */
  int64_t base[4];                          /* b0,h0,i0,j0 of dropout's pattern (X3); without dropout no effect */
  int64_t memory_limit;                     /* bytes the call may need beyond its tensors (D16), 0 = none at all; needs
                                               RAPT_HAS_MEMORY_LIMIT. Else that of the context or environment, else 256 MiB
                                               for what grows with Sq * Skv (D17) */
  const char *require, *prefer, *forbid;    /* lists of names: only these may run; these first; never these (D8); or NULL */
  const char *origin;                       /* a binding's word for where these names came from, e.g. "scope"; or NULL */
} rapt_problem;
#define RAPT_PROBLEM_INIT RAPT_SIZED(rapt_problem)

/* Pointers of one run, each to element (0,..,0). Nothing is kept after the call. NULL: absent, or a tensor without
 * elements. A pointer that the problem does not ask for is ARG, UNKNOWN_FIELD, not ignored. */
typedef struct rapt_buffers {
  uint32_t struct_size;
  int32_t reserved;                         /* 0 */
  const void *q, *k, *v, *mask, *bias, *sinks, *slopes;
  const void *q_len, *kv_len;               /* int32|int64 [B], as the problem says; 0..Sq, 0..Skv, else ARG, LENGTHS */
  const void *cu_q, *cu_k;                  /* int32|int64 [B+1]; packed: not in this version */
  const void *q_offset;                     /* int64 [B], with RAPT_OFFSET_ARRAY */
  uint64_t seed, offset;                    /* dropout: not in this version; read only where dropout > 0 */
  const uint64_t *seed_ptr, *offset_ptr;    /* with RAPT_SEED_ON_DEVICE */
  void *out;                                /* written forward, read backward. Its dtype follows autocast: ask
                                               rapt_problem_output how large it is */
  void *lse;                                /* written forward with RAPT_WANT_LSE, read backward */
  const void *dout, *dlse;                  /* backward: not in this version */
  void *dq, *dk, *dv, *dbias, *dsinks;
} rapt_buffers;
#define RAPT_BUFFERS_INIT RAPT_SIZED(rapt_buffers)

/* One fault of a call, or one reason of one row. field: rapt_field; axis, index: -1 where they say nothing. */
typedef struct rapt_reason {
  uint32_t struct_size;
  int32_t code;                             /* rapt_code; RAPT_CODE_NONE: nothing, or a status without a code */
  int32_t state;                            /* rapt_state */
  int32_t field, axis;                      /* the argument, and its axis */
  int64_t index;                            /* element of an array, byte of a text */
  char got[96], want[160];                  /* what was found, and the limit (D5) */
} rapt_reason;
#define RAPT_REASON_INIT RAPT_SIZED(rapt_reason)

/* NOT_EVALUATED: the constraint needs a fact that is missing (D4). A row with a failed constraint is UNABLE; one with
 * none failed and some not evaluated is UNDECIDED and is never chosen. */
typedef enum rapt_state { RAPT_FAILED = 0, RAPT_NOT_EVALUATED } rapt_state;
typedef enum rapt_can { RAPT_ABLE = 0, RAPT_UNABLE, RAPT_UNDECIDED } rapt_can;
/* BINDING: ranks as an opt-in row; its binding runs it, as it runs a host row. */
typedef enum rapt_place {
  RAPT_PLACE_OPT_IN = 0, RAPT_PLACE_FIRST, RAPT_PLACE_OWN, RAPT_PLACE_HOST, RAPT_PLACE_BINDING
} rapt_place;
/* EXACT: within the error bounds of the contract (N13). REDUCED: products in TF32 and the like. APPROX: quantised. (N7) */
typedef enum rapt_accuracy { RAPT_EXACT = 0, RAPT_REDUCED, RAPT_APPROX } rapt_accuracy;

#define RAPT_CLASS_REFERENCE 1u             /* class:reference: the contract as loops */
#define RAPT_CLASS_FUSED     2u             /* class:fused: no buffer that grows with Sq * Skv */
#define RAPT_CLASS_FLASH     4u             /* class:flash: the FlashAttention and cuDNN families on accelerators */
#define RAPT_CLASS_HOST      8u             /* class:host: the calling framework's own operator */
#define RAPT_CLASS_APPROX    16u            /* class:approx: quantised or otherwise approximate */

/* kind: one of these. A decision or refusal is told when it is made, not when the cache has it; a notice is a fallback from
 * prefer or to the reference, once a context, backend and code (R8). line: no newline, valid during the call. */
enum { RAPT_LOG_DECISION = 0, RAPT_LOG_REFUSAL = 1, RAPT_LOG_NOTICE = 2,
       RAPT_LOG_FAULT = 3 };  /* a call that came to ARG, ABI, NOMEM, DEVICE_ERROR or INTERNAL. Not by rapt_plan_run (P2) */

/* Callbacks are called from whatever thread calls the library, several at once, and must not unwind. A plan or report
 * keeps its context alive inside: every self must outlive the last of them. */
typedef struct rapt_ctx_opts {
  uint32_t struct_size;
  uint32_t max_threads;                     /* fixed for the context's life; 0 = usable cores; at most 4096 */
  /* alloc: at least `bytes` (never 0) at a multiple of `align` (a power of two: 64); NULL = none left, the call is NOMEM.
   * free: never of NULL, perhaps on another thread than alloc. No call during rapt_plan_run (P2). Both or neither; NULL =
   * the C library's, from which the pool takes its few hundred bytes in any case. */
  void *(*alloc)(void *self, size_t bytes, size_t align);
  void (*free)(void *self, void *ptr);
  void *alloc_self;
  /* Runs task(arg, 0) .. task(arg, n-1), each exactly once, on any threads, and returns when all are done. Tasks neither
   * wait for one another nor call parallel_for, so a plain loop is right, and calls of it come from the thread that runs
   * the attention call. n >= 2; a kernel has at most max_threads tasks, a cast of autocast about four times as many.
   * NULL: rapt's own pool; while that one is busy with another call, a call does its work on its own thread. */
  void (*parallel_for)(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg);
  void *parallel_self;
  void (*log)(void *self, int kind, const char *line);      /* no lock is held; NULL: RAPT_LOG, or nothing (E4) */
  void *log_self;
  const char *isa;                          /* cap on the ISA level: scalar, avx2, avx512, ..; NULL = RAPT_ISA, else none */
  const char *require, *prefer, *forbid;    /* as in rapt_problem; NULL = what the environment says */
  const char *facts;                        /* a facts string makes a what-if context (D20); NULL = this machine */
  int64_t memory_limit;                     /* as in rapt_problem; with RAPT_HAS_MEMORY_LIMIT */
  uint64_t ref_limit;                       /* products B*Hq*Sq*Skv*(D+Dv) up to which the reference is chosen without being
                                               required (D14); 0 = RAPT_REF_LIMIT, else 2^31 */
  uint32_t verify, reserved;                /* not in this version: both must be 0 */
  uint64_t has, flags;                      /* has: RAPT_HAS_MEMORY_LIMIT; flags: RAPT_CTX_NO_ENV */
} rapt_ctx_opts;
#define RAPT_CTX_OPTS_INIT RAPT_SIZED(rapt_ctx_opts)
#define RAPT_CTX_NO_ENV 1u                  /* do not read the environment (D23) */

/* A tensor as a host has it. q, k, v: rank 3 = (H,S,D), 4 = (B,H,S,D) (S3). stride: elements. No struct_size: it never
 * changes. */
typedef struct rapt_tensor {
  int32_t dtype, kind, index, rank;         /* kind, index: the device */
  int64_t size[8], stride[8];
} rapt_tensor;

typedef struct rapt_row_info {
  uint32_t struct_size, classes;            /* RAPT_CLASS_* */
  int32_t place, rank;
  const char *id, *display, *kernel, *backend;   /* display: as in rapt_line_format, several rows may share one; kernel: a
                                               stem. Strings live as long as the context */
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
  int32_t status;                           /* rapt_status of the call */
  int32_t hypothetical;                     /* 1: facts of another machine (D20) */
  int32_t fallback;                         /* 1: a preferred row could not run */
  int32_t accuracy;                         /* rapt_accuracy */
  uint32_t threads, classes;                /* threads: at most these; 0 for host rows and devices other than a CPU */
  int32_t cast_dtype;                       /* dtype that autocast casts to, 0 = no cast */
  uint32_t casts;                           /* bit RAPT_FIELD_x for each tensor cast: 1u << RAPT_FIELD_Q .. */
  uint32_t n_rows;
  const char *row, *backend, *display, *kernel, *isa;   /* kernel: full name; isa: "" where none is said */
  const char *level, *exactness, *rng;      /* level: who decided, "built-in" .. "call" or origin; exactness: equal labels, equal bits
                                               (N18); rng: the dropout generator */
  int64_t off;                              /* M2's off for every batch entry; INT64_MIN where it varies or does not matter */
  double scale;                             /* the effective one, N3 */
  uint64_t workspace_bytes, cast_bytes, copy_bytes;   /* the workspace holds the casts and copies */
  int32_t undecided;                        /* 1: a row that comes before the chosen one, or where none is chosen any row,
                                               could run with more facts: the report names them */
  int32_t ran;                              /* 1: of a call that was run, not only decided */
  int32_t out_dtype, reserved;              /* rapt_dtype of out after autocast; 0 for a faulty call */
  uint64_t out_bytes;                       /* elements of out * their size, whatever its strides */
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
RAPT_API size_t rapt_ctx_facts_format(const rapt_ctx *ctx, char *buf, size_t n);    /* the facts string in force */
RAPT_API uint32_t rapt_row_count(const rapt_ctx *ctx);      /* rows in table order, those that are new by registration behind */
RAPT_API rapt_status rapt_row_get(const rapt_ctx *ctx, uint32_t i, rapt_row_info *info);    /* ARG: no such row */

/* ---- Problem ---- */

/* Fills dtypes, sizes, strides, device of q,k,v from tensors of rank 3 or 4. ARG: RANK, DEVICE, SHAPE, HEADS. The
 * problem must have its struct_size; other fields stay. */
RAPT_API rapt_status rapt_problem_set_qkv(rapt_problem *p, const rapt_tensor *q, const rapt_tensor *k,
                                          const rapt_tensor *v, rapt_reason *why);
/* After set_qkv. Rank 0..4, right-aligned against [B,Hq,Sq,Skv], each axis equal or 1 (M12). mask: RAPT_BOOL. ARG: RANK,
 * SHAPE, MASK or BIAS, DEVICE. */
RAPT_API rapt_status rapt_problem_set_mask(rapt_problem *p, const rapt_tensor *mask, rapt_reason *why);
RAPT_API rapt_status rapt_problem_set_bias(rapt_problem *p, const rapt_tensor *bias, rapt_reason *why);
/* The tensor to allocate for out or lse (which: RAPT_FIELD_OUT, RAPT_FIELD_LSE): dtype after autocast, sizes, and strides
 * dense in q's axis order (H2), lse's in its own. The strides are a proposal: where q is not in the default order set them
 * in p->out too. Depends on the request only, not on the backend (D19). ARG as rapt_explain. */
RAPT_API rapt_status rapt_problem_output(const rapt_problem *p, int32_t which, rapt_tensor *tensor, rapt_reason *why);
/* The canonical problem string: equal problems, equal strings. An illegal problem formats as far as it can be said. */
RAPT_API size_t rapt_problem_format(const rapt_problem *p, char *buf, size_t n);
/* text: len bytes (at most 4,096), need not end in NUL. names: the caller's storage of n bytes to which the require,
 * prefer and forbid lists of the text are copied and p then points; len bytes always suffice, NULL is fine for a text
 * without names. ARG: SYNTAX with the byte, UNKNOWN_FIELD with the key, NULL when names are there and storage is not. */
RAPT_API rapt_status rapt_problem_parse(const char *text, size_t len, rapt_problem *p, char *names, size_t n,
                                        rapt_reason *why);

/* ---- Decide ---- */

/* Autocast alone: *cast_p (with its struct_size) is *p with the dtypes of q, k, v, bias after it, and autocast switched
 * off. A pure function (section 6). ARG: UNKNOWN_FIELD, AUTOCAST_DTYPE, DTYPE, DTYPE_MIX (A7). */
RAPT_API rapt_status rapt_autocast_resolve(const rapt_problem *p, rapt_problem *cast_p, rapt_reason *why);

/* What would happen, with one verdict a row; runs nothing. report may not be NULL. OK, ARG, ABI, REFUSED, NOMEM. */
RAPT_API rapt_status rapt_explain(rapt_ctx *ctx, const rapt_problem *p, rapt_report **report);

/* The qualified line of a site (R4), e.g. "flash_attention_2 (CUDA fp16/bf16 only; torch_sdpa otherwise)". family: its
 * dtypes and device give way to each pair of the two lists ("fp16,bf16,fp32" and "cpu,cuda" where NULL). *len: length
 * without NUL. OK, ARG, ABI; *undecided (may be NULL) is set to 1 when a pair could not be decided. */
RAPT_API rapt_status rapt_line_format(rapt_ctx *ctx, const rapt_problem *family, const char *dtypes,
                                      const char *devices, char *buf, size_t n, size_t *len, int *undecided,
                                      rapt_reason *why);

/* ---- Plan ---- */

/* Freezes a decision. OK: *plan is the caller's, else it is NULL. ARG, ABI, REFUSED, NOMEM; DEVICE_ERROR and INTERNAL from a
 * provider's prepare. A what-if context cannot plan: ARG, HYPOTHETICAL. A host row that only its binding runs can be
 * planned and not run. */
RAPT_API rapt_status rapt_plan_create(rapt_ctx *ctx, const rapt_problem *p, rapt_plan **plan, rapt_report **report);
RAPT_API void rapt_plan_destroy(rapt_plan *plan);           /* NULL is fine */
RAPT_API size_t rapt_plan_workspace(const rapt_plan *plan); /* bytes a run needs, aligned to 64; 0 = none (P3) */
RAPT_API rapt_status rapt_plan_report(const rapt_plan *plan, rapt_report **report);   /* report may not be NULL. OK, NOMEM */
/* The checks of a run (P4) alone, in `why` what rapt_plan_run has no room to say: null, alignment and overlap of pointers,
 * host lengths, workspace size. */
RAPT_API rapt_status rapt_plan_check(const rapt_plan *plan, const rapt_buffers *b, const void *workspace,
                                     size_t workspace_bytes, rapt_reason *why);
/* Runs. Checks first, as rapt_plan_check: ARG and ABI leave every output untouched. workspace: 64-byte aligned, not
 * shared with a concurrent run; NULL where none is needed. stream: the device's, NULL on a CPU. Never allocates; one plan
 * may run on several threads at once with outputs and workspaces of their own. ARG also where only a binding runs the
 * row. DEVICE_ERROR, INTERNAL: outputs are undefined, nothing else is tried. */
RAPT_API rapt_status rapt_plan_run(const rapt_plan *plan, const rapt_buffers *b, void *workspace,
                                   size_t workspace_bytes, void *stream);

/* ---- One call ---- */

/* Cached plan and run on memory of the context (P8), with stream NULL. OK, ARG, ABI, REFUSED, NOMEM, DEVICE_ERROR,
 * INTERNAL: as rapt_plan_create and rapt_plan_run. */
RAPT_API rapt_status rapt_attention(rapt_ctx *ctx, const rapt_problem *p, const rapt_buffers *b, rapt_report **report);

/* ---- Report ---- */

/* A report is made, and is the caller's, with every status but NOMEM: OK and REFUSED have all rows, ARG and ABI the fault and
 * no rows, DEVICE_ERROR and INTERNAL of a run both.
 * TEXT: everything, every row on a line. BRIEF: the same without the rows that have no part in the call. */
typedef enum rapt_form { RAPT_FORM_TEXT = 0, RAPT_FORM_JSON, RAPT_FORM_BRIEF } rapt_form;

RAPT_API rapt_status rapt_report_decision(const rapt_report *r, rapt_decision *d);
/* The fault of an ARG or ABI report, or of a failed run. OK; ARG when there is none. */
RAPT_API rapt_status rapt_report_error(const rapt_report *r, rapt_reason *reason);
RAPT_API uint32_t rapt_report_count(const rapt_report *r);  /* rows, in the order of rapt_row_get; 0 without rows */
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
