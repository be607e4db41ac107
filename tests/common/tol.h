/* SPDX-License-Identifier: Apache-2.0 */
/* The only tolerances of the tests: contract N12 and N13, from the inputs of each element. */
#ifndef TC_TOL_H
#define TC_TOL_H
#include "rapt/provider.h"

#include <stdbool.h>

/* Constants of N12 for one kernel and one resolved problem. */
typedef struct tc_tol {
  double u;               /* unit roundoff of acc */
  double u_o;             /* of the output's dtype */
  double rho;             /* of the dtype that P is rounded to (N6), else 0 */
  double tau;
  double acc_max;
  double doubled;         /* 2 for fp64: the oracle's own error (N14, last sentence) */
  bool ftz;               /* subnormal inputs of products are flushed */
} tc_tol;

/* row: declares FTZ, and by RAPT_CAN_STRICT that it never rounds P. */
tc_tol tc_tol_make(const rapt_problem *resolved, const rapt_row *row);
double tc_gamma(double t, double u);

/* What the oracle knows of one row and one output element. */
typedef struct tc_element {
  double n;               /* visible keys of the row */
  double E;               /* E_i */
  double A, V;            /* sum P|v|, max |v| */
  double flushed_qk;      /* max_j |scale| sum_d (|q|+|k|), for FTZ */
  double flushed_pv;      /* sum_j (P+|v|), for FTZ */
} tc_element;
double tc_out_bound(const tc_tol *t, const tc_element *e, double exact);
double tc_lse_bound(const tc_tol *t, const tc_element *e, double exact);
#endif
