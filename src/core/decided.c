/* SPDX-License-Identifier: Apache-2.0 */
/* One decision from a problem, the context's settings and its registry: the same function for explain, plans, the
 * one-shot call and reports (D1, D5). */
#include "base/float_state.h"
#include "core/ctx.h"

#include <string.h>

rapt_status rapti_problem_readable(const rapt_problem *p, rapt_reason *why) {
  if (p) return rapti_struct_check(p, sizeof *p, "rapt_problem", why);
  rapti_reason_set(why, RAPT_CODE_NULL, RAPT_FIELD_PROBLEM, -1, -1);
  return RAPT_ARG;
}

size_t rapti_names_bytes(const rapt_problem *p) {
  const char *names[] = {p->require, p->prefer, p->forbid, p->origin};
  size_t n = 0;
  for (int i = 0; i < 4; i++) n += names[i] ? strlen(names[i]) + 1 : 0;
  return n;
}

static const char *copy_name(const char *s, char **at) {
  if (!s) return NULL;
  size_t n = strlen(s) + 1;
  char *to = *at;
  memcpy(to, s, n);
  *at += n;
  return to;
}

void rapti_decided_begin(rapti_decided *d, rapt_ctx *ctx, rapti_registry *g, const rapt_problem *p, char *names) {
  d->ctx = ctx;
  d->registry = g;
  memcpy(&d->problem, p, sizeof d->problem);   /* whose size rapti_struct_check has seen */
  d->problem.struct_size = sizeof d->problem;
  d->problem.require = copy_name(p->require, &names);
  d->problem.prefer = copy_name(p->prefer, &names);
  d->problem.forbid = copy_name(p->forbid, &names);
  d->problem.origin = copy_name(p->origin, &names);
  d->choice.row = -1;
  d->kernel = "";
}

static rapt_status make_policy(rapti_decided *d, rapt_reason *why) {
  const rapt_problem *p = &d->problem;
  rapti_settings levels[RAPTI_LEVELS];
  memcpy(levels, d->ctx->levels, sizeof levels);
  rapti_settings *call = &levels[RAPTI_CALL];
  call->require = p->require;
  call->prefer = p->prefer;
  call->forbid = p->forbid;
  call->memory_limit = p->memory_limit;
  call->has_memory_limit = (p->has & RAPT_HAS_MEMORY_LIMIT) != 0;
  rapt_status st = rapti_policy_make(levels, d->registry, p->origin, &d->policy, why);
  d->policy.threads = d->ctx->threads;
  d->policy.isa = d->ctx->isa;
  return st;
}

/* Faults that come after the names in the order of checks (E7): they appear only in post-policy dtypes and strides. */
static bool after_names(const rapt_reason *why) {
  switch (why->code) {
    case RAPT_CODE_DTYPE_MIX: case RAPT_CODE_BIAS: case RAPT_CODE_OVERLAP: case RAPT_CODE_MEM_ALIGN: return true;
    case RAPT_CODE_DTYPE: return why->field >= RAPT_FIELD_DOUT && why->field <= RAPT_FIELD_DSINKS;
    default: return false;
  }
}

/* An empty problem whose result the core knows: no keys, or no rows. Zero width with keys still needs a kernel (S7). */
static bool core_writes(const rapti_request *r, const rapti_cap *cap) {
  const rapt_problem *p = &r->cast;
  bool nothing_seen = p->Skv == 0 && !p->sinks.dtype;
  bool no_rows = p->B == 0 || p->Hq == 0 || p->Sq == 0;
  return r->empty && cap->row.place != RAPT_PLACE_OWN && (nothing_seen || no_rows);
}

rapt_status rapti_decide(rapti_decided *d, rapti_match *matches, rapt_reason *why) {
  rapt_status st = rapti_request_make(&d->problem, &d->request, why);
  if (st == RAPT_ABI) return st;
  rapt_reason names = RAPT_REASON_INIT;
  if (st == RAPT_OK || after_names(why)) {
    rapt_status policy = make_policy(d, &names);
    if (policy != RAPT_OK) {
      *why = names;
      st = policy;
    }
  }
  if (st != RAPT_OK) return st;
  const rapti_float_state modes = rapti_float_enter();   /* rows count threads and work in floating point (D22) */
  rapti_select(d->registry, &d->request, &d->policy, matches, &d->choice);
  rapti_float_leave(modes);
  if (d->choice.row < 0) return RAPT_REFUSED;
  const rapti_cap *cap = rapti_chosen(d);
  const rapt_backend *b = &d->registry->backends[cap->backend];
  const char *name = b->kernel_name ? b->kernel_name(b->self, cap->local, &d->request.cast) : NULL;
  d->kernel = name ? name : cap->row.kernel ? cap->row.kernel : cap->row.id;
  d->core_writes = core_writes(&d->request, cap);
  d->workspace = d->core_writes ? 0 : (size_t)d->request.cast_bytes + d->choice.workspace;
  return RAPT_OK;
}

static uint32_t prefer_rank(const rapti_decided *d, uint32_t row) {
  return rapti_prefer_rank(d->registry, row, &d->request, &d->policy);
}

bool rapti_row_before(const rapti_decided *d, uint32_t row, uint32_t than) {
  const rapti_cap *rows = d->registry->rows;
  uint32_t a = prefer_rank(d, row), b = prefer_rank(d, than);
  if (row == than || a != b) return row != than && a < b;
  for (uint32_t next = d->registry->first_ranked; next; next = rows[next - 1].next_ranked) {
    if (next - 1 == row) return true;
    if (next - 1 == than) return false;
  }
  return false;
}

static bool elsewhere(const rapti_decided *d, const rapti_cap *cap) {
  return !(cap->row.kinds & RAPT_KIND(d->request.cast.device));
}

/* Does a preference mean this row and none of the tensors' kind of device? Then its device is the answer to it. */
static bool asked_for_elsewhere(const rapti_decided *d, uint32_t row) {
  uint32_t rank = prefer_rank(d, row);
  if (rank == d->policy.prefer.n) return false;
  for (uint32_t i = 0; i < d->registry->n_rows; i++)
    if (prefer_rank(d, i) == rank && !elsewhere(d, &d->registry->rows[i])) return false;
  return true;
}

bool rapti_row_in_question(const rapti_decided *d, uint32_t row, const rapti_match *m) {
  const rapti_cap *cap = &d->registry->rows[row];
  if (m->can == RAPT_ABLE || m->n == 0) return false;
  const rapti_cap *member = &d->registry->rows[m->effective];
  bool named = prefer_rank(d, row) < d->policy.prefer.n ||
               rapti_names_find(&d->policy.require, &cap->row, cap->row.classes | member->row.classes, false);
  if (!d->ctx->what_if && !cap->registered && !named) return false;
  if (d->choice.row >= 0 && elsewhere(d, cap) && !asked_for_elsewhere(d, row)) return false;
  for (uint32_t j = 0; j < m->n; j++)
    if (m->reason[j].code == RAPT_CODE_OPT_IN || m->reason[j].code == RAPT_CODE_NOT_REQUIRED) return false;
  int need = cap->isa, have = d->policy.isa;
  return need < 0 || have < 0 || rapti_isa_covers(have, need) || rapti_isa_covers(need, have);
}

/* A CPU kernel runs on the context's threads; a host's operator on its own, a device's kernel on none. */
uint32_t rapti_decided_threads(const rapti_decided *d) {
  const rapti_cap *cap = rapti_chosen(d);
  return cap && !rapti_run_by_binding(&cap->row) && d->request.cast.device == RAPT_CPU ? d->policy.threads : 0;
}

void rapti_reason_of(const rapti_decided *d, uint32_t row, const rapti_brief *brief, rapt_reason *reason) {
  rapti_match m;
  rapti_text_of text = {brief->seq, reason};
  rapti_reason_set(reason, brief->code, brief->field, brief->axis, -1);
  reason->state = brief->state;
  rapti_match_row(d->registry, row, &d->request, &d->policy, false, &m, &text);
}

void rapti_put_fault(const rapt_reason *reason, rapti_text *t) {
  if (reason->code) rapti_text_put(t, rapt_code_name(reason->code));
  if (reason->state == RAPT_NOT_EVALUATED) rapti_text_putc(t, '?');
  rapti_text_putc(t, '(');
  rapti_text_put(t, reason->got);
  if (*reason->got && *reason->want) rapti_text_put(t, ", ");
  rapti_text_put(t, reason->want);
  rapti_text_putc(t, ')');
}

void rapti_put_brief(const rapti_decided *d, uint32_t row, const rapti_brief *brief, rapti_text *t) {
  rapt_reason reason = RAPT_REASON_INIT;
  rapti_reason_of(d, row, brief, &reason);
  rapti_put_fault(&reason, t);
}
