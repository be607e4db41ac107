/* SPDX-License-Identifier: Apache-2.0 */
/* One decision from a problem, the context's settings and its registry: the same function for explain, plans, the
 * one-shot call and reports (D1, D5). */
#include "core/ctx.h"

#include <string.h>

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
  memcpy(&d->problem, p, sizeof d->problem);
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
  rapti_select(d->registry, &d->request, &d->policy, matches, &d->choice);
  if (d->choice.row < 0) return RAPT_REFUSED;
  const rapti_cap *cap = rapti_chosen(d);
  const rapt_backend *b = &d->registry->backends[cap->backend];
  const char *name = b->kernel_name ? b->kernel_name(b->self, cap->local, &d->request.cast) : NULL;
  d->kernel = name ? name : cap->row.kernel ? cap->row.kernel : cap->row.id;
  d->core_writes = core_writes(&d->request, cap);
  d->workspace = d->core_writes ? 0 : (size_t)d->request.cast_bytes + d->choice.workspace;
  return RAPT_OK;
}

/* Index in the list of prefer, or past it. */
static uint32_t prefer_rank(const rapti_decided *d, const rapt_row *row) {
  const rapti_name *name = rapti_names_find(&d->policy.prefer, row, row->classes, false);
  return name ? (uint32_t)(name - d->policy.prefer.name) : d->policy.prefer.n;
}

bool rapti_row_before(const rapti_decided *d, uint32_t row, uint32_t than) {
  const rapti_cap *rows = d->registry->rows;
  uint32_t a = prefer_rank(d, &rows[row].row), b = prefer_rank(d, &rows[than].row);
  if (row == than || a != b) return row != than && a < b;
  for (uint32_t next = d->registry->first_ranked; next; next = rows[next - 1].next_ranked) {
    if (next - 1 == row) return true;
    if (next - 1 == than) return false;
  }
  return false;
}

bool rapti_row_in_question(const rapti_decided *d, uint32_t row, const rapti_match *m) {
  const rapti_cap *cap = &d->registry->rows[row];
  if (m->can == RAPT_ABLE || m->n == 0) return false;
  if (!d->ctx->what_if && !cap->registered && !rapti_names_find(&d->policy.require, &cap->row, cap->row.classes, false) &&
      !rapti_names_find(&d->policy.prefer, &cap->row, cap->row.classes, false)) return false;
  for (uint32_t j = 0; j < m->n; j++)
    if (m->reason[j].code == RAPT_CODE_OPT_IN || m->reason[j].code == RAPT_CODE_NOT_REQUIRED) return false;
  int need = cap->isa, have = d->policy.isa;
  return need < 0 || have < 0 || rapti_isa_covers(have, need) || rapti_isa_covers(need, have);
}

void rapti_reason_of(const rapti_decided *d, uint32_t row, const rapti_brief *brief, rapt_reason *reason) {
  rapti_match m;
  rapti_text_of text = {brief->seq, reason};
  rapti_reason_set(reason, brief->code, brief->field, brief->axis, -1);
  reason->state = brief->state;
  rapti_match_row(d->registry, row, &d->request, &d->policy, false, &m, &text);
}

void rapti_put_brief(const rapti_decided *d, uint32_t row, const rapti_brief *brief, rapti_text *t) {
  rapt_reason reason = RAPT_REASON_INIT;
  rapti_reason_of(d, row, brief, &reason);
  rapti_text_put(t, rapt_code_name(reason.code));
  if (reason.state == RAPT_NOT_EVALUATED) rapti_text_putc(t, '?');
  rapti_text_putc(t, '(');
  rapti_text_put(t, reason.got);
  if (*reason.got && *reason.want) rapti_text_put(t, ", ");
  rapti_text_put(t, reason.want);
  rapti_text_putc(t, ')');
}
