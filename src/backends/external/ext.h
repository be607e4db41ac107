/* SPDX-License-Identifier: Apache-2.0 */
/* What the rows of external backends share: objections that a row cannot say, and whether a member takes a call. */
#ifndef RAPTI_EXT_H
#define RAPTI_EXT_H
#include "core/backend.h"

/* No page speaks of capture or of how P is rounded for any of these kernels: unknown in every row. */
#define RAPTI_EXT_UNKNOWN (RAPT_CAN_CAPTURE | RAPT_CAN_STRICT)
#define RAPTI_EXT_HALF (RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16))
#define RAPTI_EXT_HEADS (RAPT_CAN_GQA | RAPT_CAN_MQA)
#define RAPTI_EXT_GRADS (RAPT_GRAD_Q | RAPT_GRAD_K | RAPT_GRAD_V | RAPT_GRAD_BIAS | RAPT_GRAD_SINKS)
#define RAPTI_CC(major, minor) ((major) << 8 | (minor))
#define RAPTI_VER(a, b, c) ((uint64_t)(a) << 48 | (uint64_t)(b) << 32 | (uint64_t)(c) << 16)

/* Notes of a row, beside its fields. */
#define RAPTI_EXT_DET_UNKNOWN 1u        /* whether it repeats its bits is not recorded; its row then says RUN */
#define RAPTI_EXT_DET_GRAD_UNKNOWN 2u   /* the same for a backward alone */
#define RAPTI_EXT_INDEX_UNKNOWN 4u      /* behaviour from 2^31 elements a tensor on is not recorded */
#define RAPTI_EXT_MASK_COPY 8u          /* a bool mask becomes an additive tensor of q's dtype (D16) */

typedef enum rapti_tri { RAPTI_OPEN = -1, RAPTI_NO = 0, RAPTI_YES = 1 } rapti_tri;   /* OPEN: the fact is missing */
static inline rapti_tri rapti_tri_of(bool b) { return b ? RAPTI_YES : RAPTI_NO; }
static inline rapti_tri rapti_tri_not(rapti_tri a) { return a == RAPTI_OPEN ? a : rapti_tri_of(a == RAPTI_NO); }
static inline rapti_tri rapti_tri_and(rapti_tri a, rapti_tri b) {
  return a == RAPTI_NO || b == RAPTI_NO ? RAPTI_NO : a == RAPTI_OPEN || b == RAPTI_OPEN ? RAPTI_OPEN : RAPTI_YES;
}
static inline rapti_tri rapti_tri_or(rapti_tri a, rapti_tri b) {
  return rapti_tri_not(rapti_tri_and(rapti_tri_not(a), rapti_tri_not(b)));
}

/* ---- Facts ---- */
uint64_t rapti_ext_pack(const char *version);                                 /* as RAPTI_VER; stops where no number follows */
uint64_t rapti_ext_version(const rapt_facts *facts, const char *package);     /* packed as RAPTI_VER; 0 = not there */
rapti_tri rapti_ext_before(const rapt_facts *facts, const char *package, uint64_t version);
int rapti_ext_cc(const rapt_facts *facts);                                    /* as RAPTI_CC; -1 missing */
rapti_tri rapti_ext_cc_in(const rapt_facts *facts, int low, int high);

/* ---- Objections ---- */
typedef struct rapti_ext {
  const rapt_problem *p;
  const rapt_facts *facts;
  rapt_reason *why;
  uint32_t n, count;          /* room, objections so far */
} rapti_ext;
void rapti_ext_fail(rapti_ext *e, int code, int field, const char *got, const char *want);
void rapti_ext_fail_int(rapti_ext *e, int code, int field, int64_t got, const char *want);
void rapti_ext_unknown(rapti_ext *e, int field, const char *what);            /* UNKNOWN_SUPPORT */
/* YES fails, OPEN is not evaluated for want of the named fact. */
void rapti_ext_if(rapti_ext *e, rapti_tri bad, const char *fact, int code, int field, const char *got, const char *want);
/* Widths: head, value: this D, this Dv is outside. With Dv = D either is HEAD_DIM; else each has its own code. */
void rapti_ext_dims(rapti_ext *e, rapti_tri head, rapti_tri value, const char *fact, const char *want);
void rapti_ext_notes(rapti_ext *e, uint32_t notes);
/* MEMORY where bytes a score (or a mask copy) exceed the call's limit; without one the 256 MiB of D17. */
void rapti_ext_memory(rapti_ext *e, int64_t bytes);
int64_t rapti_ext_scores(const rapt_problem *p);                              /* B*Hq*Sq*Skv, saturating */

/* ---- The problem ---- */
bool rapti_ext_grads(const rapt_problem *p);                                  /* any gradient now or later */
static inline bool rapti_ext_causal(const rapt_problem *p) { return (p->flags & RAPT_CAUSAL) != 0; }
static inline bool rapti_ext_window(const rapt_problem *p) {
  return (p->has & RAPT_HAS_WINDOW) && (p->window[0] >= 0 || p->window[1] >= 0);
}
static inline bool rapti_ext_positional(const rapt_problem *p) {
  return rapti_ext_causal(p) || rapti_ext_window(p) || p->slopes.dtype;
}
static inline bool rapti_ext_square(const rapt_problem *p) {                  /* all corners are one */
  return !p->cu && !p->q_len && !p->kv_len && p->Sq == p->Skv && p->alignment <= RAPT_BOTTOM_RIGHT;
}

/* ---- Rules that several backends share ---- */
void rapti_ext_fa2(rapti_ext *e);               /* docs/backends.md section 2, column fa2 */
void rapti_ext_fa3_dims(rapti_ext *e);
void rapti_ext_fa3(rapti_ext *e);
void rapti_ext_fa4(rapti_ext *e);
void rapti_ext_cudnn_half(rapti_ext *e);        /* section 9 */
void rapti_ext_cudnn_fp8(rapti_ext *e);
void rapti_ext_cudnn_unified(rapti_ext *e);

/* ---- Members ---- */
typedef enum rapti_takes { RAPTI_TAKES_NOT = 0, RAPTI_TAKES, RAPTI_TAKES_MISSING, RAPTI_TAKES_UNRECORDED } rapti_takes;
/* Does an entry that picks hand this call to that member? Its own checks: packages, device, dtypes, widths, options.
 * Policy, scale, lse and accuracy are no part of such a choice. */
rapti_takes rapti_ext_takes(const rapt_backend *b, uint32_t row, const rapt_problem *p, const rapt_facts *facts);
/* The first of order that takes the call; otherwise the last one, whose limits then say why. As rapt_backend.pick. */
int rapti_ext_pick(const rapt_backend *b, const uint32_t *order, uint32_t n, const rapt_problem *p,
                   const rapt_facts *facts, uint32_t *member);
#endif
