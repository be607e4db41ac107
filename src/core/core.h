/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of core share: faults, the resolved request, facts. */
#ifndef RAPTI_CORE_H
#define RAPTI_CORE_H
#include "base/base.h"
#include "rapt/provider.h"
#include "rapt/rapt.h"

/* ---- Reasons ---- */

/* Fills *why (may be NULL; a smaller struct_size is respected) with empty got and want. */
void rapti_reason_set(rapt_reason *why, int code, int field, int axis, int64_t index);
/* Formats into why->got / why->want; no effect where why is NULL. Formats as rapti_text_printf. */
void rapti_reason_got(rapt_reason *why, const char *format, ...) RAPTI_PRINTF(2, 3);
void rapti_reason_want(rapt_reason *why, const char *format, ...) RAPTI_PRINTF(2, 3);
void rapti_reason_got_double(rapt_reason *why, double v);
/* got from bytes of a caller's text: what does not print in ASCII becomes '?'. */
void rapti_reason_got_bytes(rapt_reason *why, const char *s, size_t n);
/* SYNTAX at byte `at` of text[0..len): got is the word there. */
void rapti_syntax(rapt_reason *why, int field, const char *text, size_t len, size_t at, const char *want);

typedef struct rapti_code_info {
  const char *name, *sentence, *advice;           /* as a reason of a row: what is wrong, what helps */
  const char *fault, *correction;                 /* likewise as a fault of the call; NULL: no such use */
} rapti_code_info;
const rapti_code_info *rapti_code_get(int code);  /* from codes.def */

/* ---- Lists of legal names, for want ---- */

/* "a, b, c"; where not all fits it ends in ", and more", never within a name. */
typedef struct rapti_list { rapti_text text; bool cut; } rapti_list;
rapti_list rapti_list_begin(char *buf, size_t n);
void rapti_list_add(rapti_list *list, const char *s, size_t n);
/* The name nearest to a misspelt word among those tried: one slip in up to five letters, two in more. best NULL: none. */
typedef struct rapti_near { const char *word; size_t n; const char *best; size_t best_n; unsigned slips; } rapti_near;
rapti_near rapti_near_begin(const char *word, size_t n);
void rapti_near_try(rapti_near *near, const char *s, size_t n);

/* ---- Names of dtypes, kinds, corners as the grammar spells them ---- */
const char *rapti_kind_name(int kind);            /* "cuda"; "?" */
int rapti_kind_find(const char *s, size_t n);     /* -1 */
#define RAPTI_KINDS 10                            /* length of kinds.def, checked */
int rapti_kind_autocast(int kind);                /* A15: default dtype; RAPT_NONE: the kind has no autocast */
int rapti_dtype_find(const char *s, size_t n);    /* -1; "none" is not found */
bool rapti_dtype_is_float(int dtype);             /* fp16 bf16 fp32 fp64 */

/* ---- The request ---- */

/* A problem after every check that asks no row (docs/api.md section 4), and what follows from it. All of decide reads
 * this and nothing else of the call. */
typedef struct rapti_request {
  rapt_problem cast;          /* resolved as provider.h says */
  int32_t given[4];           /* dtypes of q, k, v, bias before the policy */
  uint32_t casts;             /* 1u << RAPT_FIELD_x of the tensors that are cast */
  int32_t cast_dtype;         /* RAPT_NONE: nothing is cast */
  int32_t autocast;           /* 1: active */
  uint64_t cast_bytes;        /* copies of the cast tensors, each rounded up to 64 bytes */
  int64_t off;                /* M2's off where one scalar holds for all; INT64_MIN: varies, or no positional option */
  int64_t window[2];          /* effective: causal caps right at 0; -1,-1 = no window; at most 3 * 2^61, so that
                                 P - window[0] and P + window[1] stay in 64 bits */
  int32_t causal;             /* causal flag, or a window that equals it: kernels may use window alone */
  int32_t positional;         /* causal, window or ALiBi present */
  int32_t all_visible;        /* metadata shows every pair visible (M15) */
  int32_t corners_agree;      /* Sq = Skv, no lengths, not packed, scalar off: TL = BR */
  int32_t default_scale;      /* no scale was given */
  int32_t needs_grad;         /* any RAPT_GRAD_* or backward */
  int32_t empty;              /* some operand has no elements (S6, S7) */
  uint64_t scores;            /* B*Hq*Sq*Skv, saturating (packed: Hq*Tq*max_k or Tk) */
  uint64_t products;          /* scores*(D+Dv), times 3 for a backward, saturating (D14) */
} rapti_request;
/* OK, ABI, ARG. Does not look at names of backends, policy levels or facts. */
rapt_status rapti_request_make(const rapt_problem *p, rapti_request *r, rapt_reason *why);

static inline const rapt_desc *rapti_desc(const rapt_problem *p, int field) { return &p->q + (field - RAPT_FIELD_Q); }
static inline uint64_t rapti_stride_bit(int field) { return RAPT_HAS_Q_STRIDES << (field - RAPT_FIELD_Q); }
/* Sizes of a tensor on its four logical axes (missing axes 1): q, k, v, out, lse, mask, bias, d*. Packed q: 1,Hq,Tq,D. */
void rapti_tensor_sizes(const rapt_problem *p, int field, int64_t size[4]);
/* Strides of a dense tensor whose axes, outermost first, are perm[0..3] of the logical axes. */
void rapti_dense_strides(const int64_t size[4], const int perm[4], int64_t stride[4]);
/* Axes outermost first by |stride| (H2); axes of size <= 1 or stride 0 keep their place before the next inner axis. */
void rapti_axis_order(const int64_t size[4], const int64_t stride[4], int perm[4]);
/* Strides of a dense copy in the axis order of `stride`; stride-0 axes stay 0, so a copy never grows by broadcasting. */
void rapti_copy_strides(const int64_t size[4], const int64_t stride[4], int64_t copy[4]);
/* Elements of that copy: the product of the sizes, stride-0 axes counted once; -1 on overflow. */
int64_t rapti_copy_elements(const int64_t size[4], const int64_t stride[4]);
/* Smallest and largest element offset of a tensor; false on overflow. Zero-element tensors: 0, -1. */
bool rapti_extent(const int64_t size[4], const int64_t stride[4], int64_t *low, int64_t *high);

/* ---- Facts ---- */

#define RAPTI_PACKAGES 21     /* length of packages.def, checked */
typedef enum rapti_presence { RAPTI_MISSING = 0, RAPTI_ABSENT, RAPTI_BROKEN, RAPTI_PRESENT } rapti_presence;

typedef struct rapti_package {
  int32_t presence;           /* MISSING: nobody said; ABSENT: "none"; BROKEN: does not load */
  int32_t beta;               /* the version is a pre-release */
  uint64_t version;           /* rapti_version_pack; 0 with BROKEN or unparsed */
  uint16_t cc[12];            /* NAME.cc, major << 8 | minor */
  int32_t n_cc;               /* -1: not said */
  char text[24];              /* the version as given */
  char has[64];               /* NAME.has, comma separated, sorted; "" = not said */
  char cc_text[64];           /* NAME.cc as text, sorted; "" = not said */
} rapti_package;

struct rapt_facts {
  int32_t kind;               /* rapt_kind the device keys speak of */
  int32_t what_if;            /* made from a facts string: hypothetical (D20) */
  int32_t cc;                 /* major << 8 | minor; -1 missing */
  int32_t isa;                /* rapti_isa of the machine or the what-if; -1 missing */
  int32_t threads;            /* -1 missing */
  int32_t open;               /* 1 while a probe may add facts */
  int64_t mem;                /* -1 missing */
  char arch[16];              /* "" missing */
  char cc_text[8], threads_text[12], mem_text[24];   /* the numbers as text, for rapt_facts_get; "" missing */
  rapti_package package[RAPTI_PACKAGES];
};
void rapti_facts_init(rapt_facts *f, int kind);   /* everything missing */
rapt_status rapti_facts_parse(const char *text, size_t len, rapt_facts *f, rapt_reason *why);
size_t rapti_facts_format(const rapt_facts *f, char *buf, size_t n);
void rapti_facts_texts(rapt_facts *f);            /* call after writing cc, threads or mem: the texts that get returns */
void rapti_facts_json(const rapt_facts *f, rapti_text *t);        /* "rapt.facts/1" */
int rapti_package_find(const char *name, size_t n);               /* -1 */
const char *rapti_package_name(int i);
/* "2.8.3", "3.0.0b1", "2.13.0+cpu": up to four numbers, 16 bits each; 0 = malformed. *beta may be NULL. */
uint64_t rapti_version_pack(const char *s, size_t n, int32_t *beta);
bool rapti_cc_parse(const char *s, size_t n, int32_t *cc);        /* "9.0" */
#endif
