/* SPDX-License-Identifier: Apache-2.0 */
/* rapt/provider.h: rows and callbacks registered at run time. For fakes in tests, host operators, plugins; rapt's own
 * backends use the same structs. The words are explained at the top of rapt.h.
 *
 * A row says what a kernel can run, as data. Zero means "cannot" for a capability bit and "no limit stated" for a
 * limit. What nobody has recorded goes into `unknown`: it is refused as UNKNOWN_SUPPORT, never assumed.
 *
 * The smallest provider: a row of RAPT_ROW_INIT with kinds, id, dtypes, can and, once it ran there, ran_on_hardware; a
 * backend of RAPT_BACKEND_INIT with api_version, n_rows, rows and run; then rapt_backend_register. */
#ifndef RAPT_PROVIDER_H
#define RAPT_PROVIDER_H
#include "rapt/rapt.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RAPT_PROVIDER_VERSION 1u

/* rapt_row.can and rapt_row.unknown. The code in brackets is the reason when the bit is absent and the problem has it. */
#define RAPT_CAN_GQA            (UINT64_C(1) << 0)   /* Hkv < Hq, Hkv > 1 [HEADS] */
#define RAPT_CAN_MQA            (UINT64_C(1) << 1)   /* Hkv = 1 < Hq [HEADS] */
#define RAPT_CAN_MASK           (UINT64_C(1) << 2)   /* bool mask [MASK] */
#define RAPT_CAN_BIAS           (UINT64_C(1) << 3)   /* [BIAS] */
#define RAPT_CAN_BROADCAST      (UINT64_C(1) << 4)   /* mask, bias with an axis of 1 where the problem's is larger [BROADCAST] */
#define RAPT_CAN_MASK_CAUSAL    (UINT64_C(1) << 5)   /* mask together with causal or a window [MASK] */
#define RAPT_CAN_BIAS_CAUSAL    (UINT64_C(1) << 6)   /* bias together with causal or a window [BIAS] */
#define RAPT_CAN_MASK_BIAS      (UINT64_C(1) << 7)   /* mask and bias in one call [MASK] */
#define RAPT_CAN_CAUSAL         (UINT64_C(1) << 8)   /* causal where all corners agree (Sq = Skv, no lengths) [ALIGNMENT] */
#define RAPT_CAN_TOP_LEFT       (UINT64_C(1) << 9)   /* causal, window, ALiBi with off = 0, Sq != Skv [ALIGNMENT] */
#define RAPT_CAN_BOTTOM_RIGHT   (UINT64_C(1) << 10)  /* the same with off = Skv - Sq [ALIGNMENT] */
#define RAPT_CAN_OFFSET         (UINT64_C(1) << 11)  /* any scalar off [ALIGNMENT] */
#define RAPT_CAN_OFFSET_ARRAY   (UINT64_C(1) << 12)  /* [ALIGNMENT] */
#define RAPT_CAN_WINDOW         (UINT64_C(1) << 13)  /* [WINDOW] */
#define RAPT_CAN_SOFTCAP        (UINT64_C(1) << 14)  /* [SOFTCAP] */
#define RAPT_CAN_SINKS          (UINT64_C(1) << 15)  /* [SINK] */
#define RAPT_CAN_ALIBI          (UINT64_C(1) << 16)  /* [ALIBI] */
#define RAPT_CAN_DROPOUT        (UINT64_C(1) << 17)  /* [DROPOUT] */
#define RAPT_CAN_X1_PATTERN     (UINT64_C(1) << 18)  /* drops by X1; without it the generator is its own [RNG] */
#define RAPT_CAN_LSE            (UINT64_C(1) << 19)  /* [LSE] */
#define RAPT_CAN_Q_LEN          (UINT64_C(1) << 20)  /* [LENGTHS] */
#define RAPT_CAN_KV_LEN         (UINT64_C(1) << 21)  /* [LENGTHS] */
#define RAPT_CAN_DENSE          (UINT64_C(1) << 22)  /* not packed [PACKED] */
#define RAPT_CAN_PACKED         (UINT64_C(1) << 23)  /* [PACKED] */
#define RAPT_CAN_CU_INT64       (UINT64_C(1) << 24)  /* int64 cu_q, cu_k; int32 comes with PACKED [CU_SEQLENS] */
#define RAPT_CAN_BACKWARD       (UINT64_C(1) << 25)  /* gradients of q,k,v [GRAD] */
#define RAPT_CAN_GRAD_BIAS      (UINT64_C(1) << 26)  /* [GRAD_BIAS] */
#define RAPT_CAN_GRAD_SINKS     (UINT64_C(1) << 27)  /* [GRAD_SINK] */
#define RAPT_CAN_STRICT         (UINT64_C(1) << 28)  /* never rounds P or ds [STRICT] */
#define RAPT_CAN_ISOLATE        (UINT64_C(1) << 29)  /* M14 [ISOLATION] */
#define RAPT_CAN_CAPTURE        (UINT64_C(1) << 30)  /* [CAPTURE] */
#define RAPT_CAN_MIXED_KV       (UINT64_C(1) << 31)  /* [DTYPE_MIX] */
#define RAPT_CAN_OUT_FP32       (UINT64_C(1) << 32)  /* fp32 out with half inputs [DTYPE] */
#define RAPT_CAN_ANY_STRIDE     (UINT64_C(1) << 33)  /* any last-axis stride; without it the last stride is 1 [STRIDE] */
#define RAPT_CAN_ANY_BIAS_DTYPE (UINT64_C(1) << 34)  /* without it bias has q's dtype [BIAS] */
#define RAPT_CAN_SCALE          (UINT64_C(1) << 35)  /* a positive scale other than the default [SCALE] */
#define RAPT_CAN_SCALE_ZERO     (UINT64_C(1) << 36)  /* [SCALE] */
#define RAPT_CAN_SCALE_NEGATIVE (UINT64_C(1) << 37)  /* [SCALE] */
#define RAPT_CAN_MAX_UNKNOWN    (UINT64_C(1) << 38)  /* packed without max_q, max_k [PACKED] */
#define RAPT_CAN_ON_DEVICE      (UINT64_C(1) << 39)  /* lengths, cu, offsets, seeds read on the device [LENGTHS, CU_SEQLENS, ALIGNMENT, RNG] */
#define RAPT_CAN_CAUSAL_WIDE    (UINT64_C(1) << 40)  /* causal with Sq > Skv [ALIGNMENT] */

#define RAPT_DT(dtype) (1u << (dtype))                /* for rapt_row.dtypes */
#define RAPT_KIND(kind) (1u << (kind))                /* for rapt_row.kinds */

typedef struct rapt_dims { int32_t D, Dv; } rapt_dims;

typedef struct rapt_row {
  uint32_t struct_size;
  uint32_t kinds;               /* RAPT_KIND() bits [DEVICE] */
  uint32_t classes;             /* RAPT_CLASS_* */
  int32_t place, rank;          /* rapt_place; own is rapt's. rank: among opt-in and binding rows, lower first */
  uint32_t ran_on_hardware;     /* 0: UNTESTED unless required by name (D15) */
  const char *id, *display;     /* id: a-z 0-9 _ . as "mypkg.half"; display NULL = id */
  const char *aliases;          /* comma separated, may be NULL */
  const char *kernel;           /* a stem, may be NULL = id */
  const char *exactness;        /* a label: equal labels promise equal bits (N18); NULL = no promise */
  const char *source;           /* where the limits were read, may be NULL */
  /* What must be there. Texts below are parsed once, at registration; a bad one is ARG. */
  const char *package;          /* its facts key decides AVAIL; NULL = needs none */
  const char *needs;            /* "flash-attn>=2.6.3 cuda>=12.0 python>=3.10": VERSION; the row's own package included */
  const char *known_bad;        /* "sageattention=2.2.0 flash-attn>=2.8.0,<2.8.1": KNOWN_BAD */
  const char *cc;               /* CUDA generations "8.0-9.0 12.x": DEVICE; "8.6?": UNKNOWN_SUPPORT there */
  const char *cc_built;         /* a package whose NAME.cc must cover the device (same major, minor not above): AVAIL */
  const char *arch;             /* HIP "gfx942 gfx950"; "*?" after the list: others UNKNOWN_SUPPORT, else DEVICE */
  const char *isa;              /* CPU level by name [ISA] */
  uint32_t dtypes;              /* RAPT_DT() bits of q,k,v [DTYPE] */
  uint32_t bias_dtypes;         /* with RAPT_CAN_ANY_BIAS_DTYPE; 0 = fp16, bf16, fp32 [BIAS] */
  int32_t d_min, d_max, d_step;             /* [HEAD_DIM]; 0 = no limit */
  int32_t d_unknown_above;                  /* above it UNKNOWN_SUPPORT; 0 = none */
  int32_t d_max_backward, d_step_backward;  /* 0 = as forward */
  int32_t dv_rule;                          /* rapt_dv_rule [VALUE_DIM] */
  int32_t dv_max, dv_step;                  /* with RAPT_DV_ANY */
  const rapt_dims *dims; uint32_t n_dims;   /* a closed list of (D,Dv): HEAD_DIM where no pair has this D, else VALUE_DIM */
  int32_t max_b, max_hq, max_sq, max_skv;   /* [SIZE]; 0 = no limit */
  int32_t min_sq, min_skv;
  int32_t offset_bits;                      /* 31, 32: largest element offset of any tensor [OFFSET_RANGE]; 0 = 63 */
  int32_t ptr_align;                        /* bytes [MEM_ALIGN]; 0 = element */
  int32_t bias_stride_bytes;                /* strides of bias but the last are multiples of it [STRIDE]; 0 = any */
  int32_t determinism, determinism_backward;/* best rapt_det [DETERMINISM] */
  int32_t accuracy;                         /* rapt_accuracy [REDUCED, APPROX]; 0 = EXACT is a promise: say so only if kept */
  int32_t mem_per_score;                    /* bytes that grow with B*Hq*Sq*Skv, a score [MEMORY, D17]; -1 = unknown */
  int32_t ftz;                              /* 1: subnormal inputs of a product count as 0 (N12) */
  int32_t reserved;                         /* 0 */
  uint64_t can, unknown;                    /* RAPT_CAN_* */
  const char *rng;                          /* its own generator, for the report [RNG] */
} rapt_row;
#define RAPT_ROW_SIZE ((uint32_t)sizeof(rapt_row))   /* for tables: .struct_size = RAPT_ROW_SIZE */
#define RAPT_ROW_INIT RAPT_SIZED(rapt_row)

typedef enum rapt_dv_rule { RAPT_DV_SAME = 0, RAPT_DV_ANY } rapt_dv_rule;

typedef struct rapt_facts rapt_facts;

/* Adds or reads a fact: keys and values of the facts string (docs/api.md section 2): rapt_facts_set(f, "torch", "2.13.0").
 * set, in probe only: ARG for an unknown key or a bad value. get: NULL where missing, else a text that lives as long as
 * the facts, which a callback has for the time of its call. */
RAPT_API rapt_status rapt_facts_set(rapt_facts *facts, const char *key, const char *value);
RAPT_API const char *rapt_facts_get(const rapt_facts *facts, const char *key);

/* Callbacks see a resolved problem: dtypes after autocast; out and lse dtypes, every stride and the effective scale
 * filled in, with their bits in `has`; autocast off; alignment RAPT_UNSET exactly when no positional option is set;
 * no names. `row` is the row's index in `rows`. All are called on the thread that calls the library, so several may be at
 * work at once, with no lock held; they must not unwind. extra, pick, workspace and kernel_name belong to the decision
 * (D1): no data, clock or environment, equal arguments give equal answers. Each callback may be NULL; what that means for
 * run stands there. */
typedef struct rapt_backend {
  uint32_t struct_size, api_version, n_rows;   /* api_version: RAPT_PROVIDER_VERSION */
  const rapt_row *rows;                     /* copied, the texts too */
  const char *name;                         /* "fa2"; NULL = the first row's id up to the dot */
  void *self;                               /* given to every callback; must outlive the last plan and report, which keep
                                               their context alive and may ask extra and pick again */
  /* Once, at registration, not in a what-if context: adds facts. Not OK: every row of the backend fails AVAIL with
   * why->got as the text; the facts it had set are dropped. */
  rapt_status (*probe)(void *self, rapt_facts *facts, rapt_reason *why);
  /* Objections that a row cannot say, from metadata alone: returns how many, writes at most n (0..8), the same each time.
   * Called in every decision that looks at the row, first with n = 0; again when a report's reason is read. The entries
   * of `why` come zeroed with axis and index -1: fill code (AVAIL .. UNKNOWN_SUPPORT), field, got, want, and state where
   * a fact is missing. A limit of any level stands in cast->memory_limit with its bit. */
  uint32_t (*extra)(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, rapt_reason *why,
                    uint32_t n);
  /* For a row that picks a member: 1 and *member (a row index of this backend), 0 = depends on a missing fact,
   * -1 = nobody recorded, 2 = none: a row that picks no member, or a call that no member takes; the row's own limits
   * then count. Its verdict, classes and bans are else the member's. Called as often as extra, for every row. */
  int (*pick)(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, uint32_t *member);
  /* Bytes of workspace a run needs with that many threads, from metadata alone; in every decision, for rows that can run.
   * NULL: none. */
  size_t (*workspace)(void *self, uint32_t row, const rapt_problem *cast, uint32_t threads);
  /* Picks the kernel; the only place that may allocate. Once a plan, so once for all equal one-shot calls while theirs is
   * cached. *state (NULL before) goes to run and release; cast lives until release. OK, NOMEM, DEVICE_ERROR or INTERNAL,
   * anything else counts as INTERNAL; after a failure release is not called. NULL: no state. */
  rapt_status (*prepare)(void *self, uint32_t row, const rapt_problem *cast, uint32_t threads, void **state);
  /* Full kernel name "<op>_<dtype>_<variant>_<isa>", a constant; for the chosen row. NULL: the row's stem. */
  const char *(*kernel_name)(void *self, uint32_t row, const rapt_problem *cast);
  /* Runs, after all checks of P4 and the casts; the run has been counted (`entered`). It writes every element of the
   * outputs, allocates nothing and does not wait for a device. workspace: as many bytes as were asked, aligned to 64, NULL
   * where none. stream: rapt_plan_run's, NULL in rapt_attention. Runs of one plan may overlap. Called under the default
   * floating-point modes; what it sets of them on this thread is undone. OK, DEVICE_ERROR or INTERNAL, anything else counts as
   * INTERNAL. NULL: rows of place host and binding, which their binding runs, and rows that are data for what-ifs only. */
  rapt_status (*run)(void *self, uint32_t row, void *state, const rapt_problem *cast, const rapt_buffers *b,
                     void *workspace, void *stream);
  /* Once for each prepare that was OK, when the last user of the plan goes: on any thread, perhaps after
   * rapt_ctx_destroy. */
  void (*release)(void *self, void *state);
} rapt_backend;
#define RAPT_BACKEND_SIZE ((uint32_t)sizeof(rapt_backend))   /* for constants */
#define RAPT_BACKEND_INIT RAPT_SIZED(rapt_backend)

/* Makes the rows of a backend take part in this context. Rows with an id that the tables already know replace those
 * rows' AVAIL "no provider registered"; place, can and limits are the registered ones. Names stay whose they are: ids of
 * rapt's own rows (cpu.., ref), ids that another provider registered, and ids, aliases or displays that speak of another
 * backend's rows are ARG, UNKNOWN_NAME; the same provider (equal self and name) may register its rows again. Aliases are
 * of a-z 0-9 _ . -. Without run a row of place first is ARG (NULL, run) and one of place opt-in is data: AVAIL here,
 * decided by its package's facts in a what-if. OK, ABI (VERSION: api_version),
 * ARG (UNKNOWN_FIELD, UNKNOWN_NAME, SYNTAX: a row's text), NOMEM. Plans made before keep running as they are. */
RAPT_API rapt_status rapt_backend_register(rapt_ctx *ctx, const rapt_backend *backend, rapt_reason *why);

/* The backend of the built-in tables that has this row; NULL: no such row, or one of rapt's own. Constant. To bring that
 * package: copy the struct, set self, probe and run, and register it; the limits are then those of the tables. */
RAPT_API const rapt_backend *rapt_backend_known(const char *row);

/* One more run of a host or binding row, which the binding has just run itself (D28). i: index of rapt_row_get. ARG: no such row. */
RAPT_API rapt_status rapt_row_enter(rapt_ctx *ctx, uint32_t i);

/* The same where the binding has the report of the call that chose the host row, in place of rapt_row_enter, once a run:
 * counts the run, and from then on the report says that the row ran (R1, R3): its text, and `ran` of rapt_decision. Not
 * while another thread reads this report. OK; ARG: no report, or one that chose neither a host nor a binding row. */
RAPT_API rapt_status rapt_report_entered(rapt_report *report);

/* For a binding that runs calls without a report and makes it when somebody asks, by rapt_explain of the same problem:
 * from now on the report says that its row ran. Counts nothing, the run itself did. OK; ARG: no report, one without a
 * chosen row, or a what-if. */
RAPT_API rapt_status rapt_report_ran(rapt_report *report);

#ifdef __cplusplus
}
#endif
#endif
