/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tol.h"

#include <float.h>
#include <math.h>

static double roundoff(int dtype) {
  switch (dtype) {
  case RAPT_FP16: return 0x1p-11;
  case RAPT_BF16: return 0x1p-8;
  case RAPT_FP32: return 0x1p-24;
  default: return 0x1p-53;
  }
}

tc_tol tc_tol_make(const rapt_problem *p, const rapt_row *row) {
  bool wide = p->q.dtype == RAPT_FP64;
  bool half = p->q.dtype == RAPT_FP16 || p->q.dtype == RAPT_BF16;
  bool rounds_p = half && !(p->flags & RAPT_STRICT) && !(row->can & RAPT_CAN_STRICT);   /* N6: fp32 never */
  bool to_fp16 = p->out.dtype == RAPT_FP16 || (rounds_p && p->q.dtype == RAPT_FP16);
  tc_tol t = {.u = roundoff(wide ? RAPT_FP64 : RAPT_FP32), .u_o = roundoff(p->out.dtype)};
  t.rho = rounds_p ? roundoff(p->q.dtype) : 0;
  t.tau = to_fp16 ? 0x1p-25 : wide ? DBL_MIN : FLT_MIN;
  t.acc_max = wide ? DBL_MAX : FLT_MAX;
  t.doubled = wide ? 2 : 1;
  t.ftz = row->ftz != 0;
  return t;
}

double tc_gamma(double t, double u) { return t * u / (1 - t * u); }

/* E with what flushed subnormals of q . k may add (N12). */
static double logit_error(const tc_tol *t, const tc_element *e) {
  return e->E + (t->ftz ? 0x1p-126 * e->flushed_qk : 0);
}

double tc_out_bound(const tc_tol *t, const tc_element *e, double exact) {
  double K = 2 * e->n + 64;
  double relative = expm1(2 * logit_error(t, e)) + 2 * tc_gamma(K, t->u) + 16 * t->u + t->rho;
  double flushed = t->ftz ? 0x1p-126 * e->flushed_pv : 0;
  double weighted = e->A > 0 ? e->A * relative : 0;   /* expm1 may be infinite where A is 0 */
  return t->doubled * (weighted + e->n * t->tau * e->V + t->u_o * fabs(exact) + t->tau + flushed);
}

double tc_lse_bound(const tc_tol *t, const tc_element *e, double exact) {
  double K = 2 * e->n + 64;
  return t->doubled * (logit_error(t, e) + 2 * tc_gamma(K, t->u) + 8 * t->u * (1 + fabs(exact)));
}
