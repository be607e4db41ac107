/* SPDX-License-Identifier: Apache-2.0 */
/* An independent oracle: contract N1 over logical indices in extended precision, with what the bounds of N13 need. */
#ifndef TC_ORACLE_H
#define TC_ORACLE_H
#include "common/case.h"
#include "common/tol.h"

/* What a right output element may be. */
typedef enum tc_expect {
  TC_FINITE = 0,          /* within the bound */
  TC_ZERO,                /* exactly: a fully masked row, or logits that are all -inf (M16, N10) */
  TC_NAN,                 /* N10; an lse may also be +inf where a logit is */
  TC_NONFINITE,           /* N10: a visible v is not finite */
  TC_ANY                  /* N2, N10: either outcome is right */
} tc_expect;

typedef struct tc_row {
  int64_t n;              /* visible keys */
  double lse, E, flushed_qk;
  unsigned char lse_expect, plus_inf;
  unsigned char skipped;  /* a logit of finite numbers overflows acc: not compared (N2) */
} tc_row;

typedef struct tc_oracle {
  int64_t rows, Dv;
  tc_row *row;            /* [B*Hq*Sq] */
  double *out, *A, *V, *flushed_pv;   /* [rows*Dv] */
  unsigned char *expect;  /* [rows*Dv] */
} tc_oracle;

tc_oracle *tc_oracle_new(const tc_case *c);
void tc_oracle_free(tc_oracle *o);
tc_element tc_oracle_element(const tc_oracle *o, int64_t row, int64_t d);
#endif
