/* SPDX-License-Identifier: Apache-2.0 */
/* The matcher's parts share this: one row against one request, reasons recorded in the order of docs/api.md section 3. */
#ifndef RAPTI_MATCH_H
#define RAPTI_MATCH_H
#include "core/decide.h"

typedef struct rapti_matcher {
  const rapti_registry *g;
  const rapti_cap *self;        /* the row asked about: its names, its place, its registration */
  const rapti_cap *cap;         /* the row whose limits count: the picked member, or self */
  const rapt_row *row;          /* of cap */
  const rapti_request *r;
  const rapt_problem *p;
  const rapti_needs *needs;
  const rapti_policy *policy;
  rapti_match *m;
  const rapti_text_of *text;
  uint64_t lacks;               /* needed bits that the row does not have for certain */
  uint32_t classes;             /* of self and the picked member */
  uint32_t seq;
  int axis;                     /* of the next reason; -1 again after it */
  uint32_t room;                /* reasons that m takes */
  int last;                     /* code of the last reason */
  bool first, stop;             /* stop: first is set and a failure was found */
  bool failed, missing, unsorted;
  bool same_kind;               /* the facts' device keys speak of the problem's device */
  bool real_provider;           /* registered in a context of this machine */
} rapti_matcher;

/* Record a reason; the return is the text to fill in, or NULL where nobody asks for it. */
rapt_reason *rapti_fail(rapti_matcher *x, int code, int field);
rapt_reason *rapti_miss(rapti_matcher *x, int code, int field, const char *fact);   /* not evaluated for want of the fact */
void rapti_unknown(rapti_matcher *x, int field, const char *what);
/* The capability bit is lacking: UNKNOWN_SUPPORT where nobody recorded it, else the code. what: for UNKNOWN_SUPPORT. */
rapt_reason *rapti_lack(rapti_matcher *x, uint64_t bit, int code, int field, const char *what);

void rapti_match_avail(rapti_matcher *x);     /* AVAIL .. DEVICE */
void rapti_match_shape(rapti_matcher *x);     /* DTYPE .. MEM_ALIGN */
void rapti_match_options(rapti_matcher *x);   /* ALIGNMENT .. CAPTURE */
void rapti_match_policy(rapti_matcher *x);    /* FORBIDDEN .. OPT_IN */

/* "fp16, bf16" of RAPT_DT() bits. */
void rapti_put_dtypes(rapti_text *t, uint32_t dtypes);
#endif
