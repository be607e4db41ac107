/* SPDX-License-Identifier: Apache-2.0 */
/* A report: the decision made again with every row, and what it says (D4, D5, R1, R2). */
#include "core/ctx.h"

#include <string.h>

rapt_status rapti_report_make(rapt_ctx *ctx, rapti_registry *g, const rapt_problem *p, rapt_report **out) {
  *out = NULL;
  size_t matches = g->n_rows * sizeof(rapti_match);
  rapt_report *r = rapti_alloc(ctx, sizeof *r + matches + rapti_names_bytes(p));
  if (!r) return RAPT_NOMEM;
  memset(r, 0, sizeof *r);
  r->matches = (rapti_match *)(void *)(r + 1);
  r->error.struct_size = sizeof r->error;
  rapti_ctx_ref(ctx);
  atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
  rapti_decided_begin(&r->d, ctx, g, p, (char *)r->matches + matches);
  r->status = rapti_decide(&r->d, r->matches, &r->error);
  r->has_rows = r->status == RAPT_OK || r->status == RAPT_REFUSED;
  r->has_error = !r->has_rows;
  const rapti_cap *cap = rapti_chosen(&r->d);
  if (cap) r->classes = cap->row.classes | g->rows[r->matches[r->d.choice.row].effective].row.classes;
  *out = r;
  return r->status;
}

rapt_status rapti_report_bare(rapt_ctx *ctx, rapt_status st, const rapt_reason *why, rapt_report **out) {
  if (!out) return st;
  rapt_report *r = rapti_zalloc(ctx, sizeof *r);
  if (!r) return RAPT_NOMEM;
  rapti_ctx_ref(ctx);
  r->d.ctx = ctx;
  r->d.registry = rapti_registry_get(ctx);
  r->d.choice.row = -1;
  r->d.kernel = "";
  r->bare = 1;
  r->error.struct_size = sizeof r->error;
  rapti_report_fail(r, st, why);
  *out = r;
  return st;
}

/* Without a context there is no memory to make a report in. These are never written to. */
#define NULL_REPORT(at) \
  {.d = {.choice = {.row = -1}, .kernel = ""}, .status = RAPT_ARG, .bare = 1, .has_error = 1, \
   .error = {.struct_size = sizeof(rapt_reason), .code = RAPT_CODE_NULL, .field = at, .axis = -1, .index = -1}}
static const rapt_report null_ctx = NULL_REPORT(RAPT_FIELD_CTX), null_plan = NULL_REPORT(RAPT_FIELD_PLAN);

rapt_status rapti_report_null(int field, rapt_report **out) {
  if (out) *out = (rapt_report *)(uintptr_t)(field == RAPT_FIELD_CTX ? &null_ctx : &null_plan);
  return RAPT_ARG;
}

void rapti_report_fail(rapt_report *r, rapt_status status, const rapt_reason *why) {
  r->status = status;
  r->error = *why;
  r->has_error = 1;
  if (status == RAPT_ARG || status == RAPT_ABI) r->has_rows = 0;
}

rapt_status rapti_report_for(rapt_ctx *ctx, rapti_registry *g, const rapt_problem *p, rapt_status st,
                             const rapt_reason *why, rapt_report **report) {
  if (!report || st == RAPT_NOMEM) return st;
  rapt_status decided = rapti_report_make(ctx, g, p, report);
  if (decided == RAPT_NOMEM) return decided;
  if (st != decided) rapti_report_fail(*report, st, why);
  return st;
}

rapt_status rapt_explain(rapt_ctx *ctx, const rapt_problem *p, rapt_report **report) {
  if (report) *report = NULL;
  if (!report) return RAPT_ARG;
  if (!ctx) return rapti_report_null(RAPT_FIELD_CTX, report);
  rapt_reason why = RAPT_REASON_INIT;
  rapt_status readable = rapti_problem_readable(p, &why);
  if (readable != RAPT_OK) return rapti_report_bare(ctx, readable, &why, report);
  rapti_registry *g = rapti_registry_get(ctx);
  rapt_status st = rapti_report_make(ctx, g, p, report);
  rapti_registry_unref(ctx, g);
  return st;
}

void rapt_report_destroy(rapt_report *r) {
  if (!r || !r->d.ctx) return;              /* no context: one of the constants */
  rapt_ctx *ctx = r->d.ctx;
  rapti_registry_unref(ctx, r->d.registry);
  rapti_free(ctx, r);
  rapti_ctx_unref(ctx);
}

/* ---- What a decision says ---- */

const char *rapti_row_display(const rapti_cap *cap) { return cap->row.display ? cap->row.display : cap->row.id; }

/* Own rows without a level are plain C, compiled for every CPU. */
const char *rapti_row_isa(const rapti_cap *cap) {
  if (cap->isa >= 0) return rapti_isa_name(cap->isa);
  return cap->row.place == RAPT_PLACE_OWN ? rapti_isa_name(RAPTI_ISA_SCALAR) : "";
}

const char *rapti_report_level(const rapt_report *r) {
  return rapti_policy_level_name(&r->d.policy, r->d.choice.level);
}

const char *rapti_report_rng(const rapt_report *r) {
  const rapti_cap *cap = rapti_chosen(&r->d);
  if (!cap || !(r->d.problem.dropout > 0)) return "";
  if (cap->row.can & RAPT_CAN_X1_PATTERN) return "x1";
  return cap->row.rng ? cap->row.rng : "own";
}

/* What naming the row in require agreed to (N7, X7). */
uint32_t rapti_report_consents(const rapti_decided *d, const char *out[3]) {
  const rapti_cap *cap = rapti_chosen(d);
  uint32_t n = 0;
  if (!cap || !rapti_names_find(&d->policy.require, &cap->row, cap->row.classes, true)) return 0;
  const rapt_problem *p = &d->problem;
  if (cap->row.accuracy == RAPT_REDUCED && !(p->flags & RAPT_ALLOW_REDUCED)) out[n++] = "reduced";
  if (cap->row.accuracy == RAPT_APPROX && !(p->flags & RAPT_ALLOW_APPROX)) out[n++] = "approx";
  if (p->dropout > 0 && !(cap->row.can & RAPT_CAN_X1_PATTERN) && !(p->flags & RAPT_ALLOW_BACKEND_RNG)) out[n++] = "rng";
  return n;
}

uint64_t rapti_report_exempt(const rapt_report *r) {
  const rapti_cap *cap = r->has_rows ? rapti_chosen(&r->d) : NULL;
  if (!cap || cap->row.place != RAPT_PLACE_HOST || !cap->registered || r->d.ctx->what_if) return 0;
  rapti_needs needs;
  rapti_needs_make(&r->d.request, &needs);
  const rapt_row *limits = &r->d.registry->rows[r->matches[r->d.choice.row].effective].row;
  uint64_t lacks = needs.bits & ~(limits->can & ~limits->unknown);
  if (rapti_names_find(&r->d.policy.require, &cap->row, cap->row.classes, true)) lacks &= ~RAPT_CAN_X1_PATTERN;
  return lacks & (RAPT_CAN_ISOLATE | RAPT_CAN_X1_PATTERN);
}

/* Elements of out times their size; its dtype is that of the request, whoever is chosen (D19). */
static void fill_out(const rapt_problem *cast, rapt_decision *d) {
  int64_t size[4];
  d->out_dtype = cast->out.dtype;
  d->out_bytes = rapt_dtype_bytes(cast->out.dtype);
  rapti_tensor_sizes(cast, RAPT_FIELD_OUT, size);
  for (int i = 0; i < 4; i++) d->out_bytes *= (uint64_t)size[i];
}

static void fill_chosen(const rapt_report *r, const rapti_cap *cap, rapt_decision *d) {
  d->row = cap->row.id;
  d->backend = r->d.registry->backends[cap->backend].name;
  d->display = rapti_row_display(cap);
  d->kernel = r->d.kernel;
  d->isa = rapti_row_isa(cap);
  d->level = rapti_report_level(r);
  d->exactness = cap->row.exactness ? cap->row.exactness : "";
  d->rng = rapti_report_rng(r);
  d->classes = r->classes;
  d->accuracy = cap->row.accuracy;
  d->threads = rapti_decided_threads(&r->d);
  d->fallback = r->d.choice.fallback;
  d->workspace_bytes = r->d.workspace;
}

rapt_status rapt_report_decision(const rapt_report *r, rapt_decision *out) {
  if (!out) return RAPT_ARG;
  rapt_decision d = RAPT_DECISION_INIT;
  d.row = d.backend = d.display = d.kernel = d.isa = d.level = d.exactness = d.rng = "";
  d.status = r ? (int32_t)r->status : RAPT_ARG;
  d.hypothetical = r && r->d.ctx && r->d.ctx->what_if;
  d.off = INT64_MIN;
  if (r && r->has_rows) {
    const rapti_cap *cap = rapti_chosen(&r->d);
    d.n_rows = r->d.registry->n_rows;
    d.cast_dtype = r->d.request.cast_dtype;
    d.casts = r->d.request.casts;
    d.cast_bytes = r->d.request.cast_bytes;
    d.off = r->d.request.off;
    d.scale = r->d.request.cast.scale;
    d.undecided = r->d.choice.undecided;
    d.ran = cap && atomic_load_explicit(&((rapt_report *)(uintptr_t)r)->ran, memory_order_relaxed);
    fill_out(&r->d.request.cast, &d);
    if (cap) fill_chosen(r, cap, &d);
  }
  rapt_status st = rapti_struct_give(out, &d, sizeof d);
  return r ? st : RAPT_ARG;
}

rapt_status rapt_report_entered(rapt_report *r) {
  const rapti_cap *cap = r && r->has_rows ? rapti_chosen(&r->d) : NULL;
  if (!cap || !rapti_run_by_binding(&cap->row) || r->d.ctx->what_if) return RAPT_ARG;
  atomic_fetch_add_explicit(cap->entered, 1, memory_order_relaxed);
  return rapt_report_ran(r);
}

rapt_status rapt_report_ran(rapt_report *r) {
  if (!r || !r->has_rows || !rapti_chosen(&r->d) || r->d.ctx->what_if) return RAPT_ARG;
  atomic_store_explicit(&r->ran, 1, memory_order_relaxed);
  return RAPT_OK;
}

rapt_status rapt_report_error(const rapt_report *r, rapt_reason *reason) {
  if (!r || !reason || !r->has_error) return RAPT_ARG;
  return rapti_struct_give(reason, &r->error, sizeof r->error);
}

uint32_t rapt_report_count(const rapt_report *r) { return r && r->has_rows ? r->d.registry->n_rows : 0; }

rapt_status rapt_report_verdict(const rapt_report *r, uint32_t i, rapt_verdict *out) {
  if (!out || i >= rapt_report_count(r)) return RAPT_ARG;
  const rapti_cap *cap = &r->d.registry->rows[i];
  rapt_verdict v = RAPT_VERDICT_INIT;
  v.can = r->matches[i].can;
  v.chosen = r->d.choice.row == (int32_t)i;
  v.n_reasons = r->matches[i].n;
  v.row = cap->row.id;
  v.backend = r->d.registry->backends[cap->backend].name;
  v.display = rapti_row_display(cap);
  return rapti_struct_give(out, &v, sizeof v);
}

rapt_status rapt_report_reason(const rapt_report *r, uint32_t i, uint32_t j, rapt_reason *out) {
  if (!out || i >= rapt_report_count(r) || j >= r->matches[i].n) return RAPT_ARG;
  rapt_reason reason = RAPT_REASON_INIT;
  rapti_reason_of(&r->d, i, &r->matches[i].reason[j], &reason);
  return rapti_struct_give(out, &reason, sizeof reason);
}

size_t rapt_report_format(const rapt_report *r, int32_t form, const char *const *names, char *buf, size_t n) {
  rapti_text t = rapti_text_begin(buf, n);
  if (r && form == RAPT_FORM_JSON) rapti_report_json(r, names, &t);
  else if (r && form == RAPT_FORM_TEXT) rapti_report_text(r, names, true, &t);
  else if (r && form == RAPT_FORM_BRIEF) rapti_report_text(r, names, false, &t);
  return rapti_text_end(&t);
}
