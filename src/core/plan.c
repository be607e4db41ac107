/* SPDX-License-Identifier: Apache-2.0 */
/* A plan: one decision, frozen (P1-P7). */
#include "base/float_state.h"
#include "core/ctx.h"

#include <limits.h>
#include <string.h>

/* ---- Making ---- */

/* A callback may return some statuses only; whatever else it returns is a broken invariant, not the core's answer. */
static rapt_status returned(const rapti_cap *cap, const char *callback, rapt_status raw, bool may_nomem, rapt_reason *why) {
  bool named = raw >= RAPT_OK && raw <= RAPT_INTERNAL;
  bool legal = raw == RAPT_OK || raw == RAPT_DEVICE_ERROR || raw == RAPT_INTERNAL || (may_nomem && raw == RAPT_NOMEM);
  if (raw == RAPT_OK) return raw;
  rapti_reason_set(why, RAPT_CODE_NONE, RAPT_FIELD_RUN, -1, -1);
  if (named) rapti_reason_got(why, "%s of %s returned %s", callback, cap->row.id, rapt_status_name((int32_t)raw));
  else rapti_reason_got(why, "%s of %s returned %d", callback, cap->row.id, (int)raw);
  if (!legal) rapti_reason_want(why, "it may return OK, %sDEVICE_ERROR or INTERNAL", may_nomem ? "NOMEM, " : "");
  return legal ? raw : RAPT_INTERNAL;
}

static rapt_status prepare(rapt_plan *plan, rapt_reason *why) {
  if (plan->d.core_writes) return RAPT_OK;
  const rapt_backend *b = rapti_plan_backend(plan);
  const rapti_cap *cap = rapti_chosen(&plan->d);
  if (!b->prepare) return RAPT_OK;
  rapt_status st = b->prepare(b->self, cap->local, &plan->d.request.cast, plan->d.policy.threads, &plan->state);
  plan->prepared = st == RAPT_OK;
  return returned(cap, "prepare", st, true, why);
}

static rapt_status not_here(const rapti_decided *d, rapt_reason *why) {
  rapti_reason_set(why, RAPT_CODE_HYPOTHETICAL, RAPT_FIELD_FACTS, -1, -1);
  char facts[80];
  rapti_facts_format(&d->registry->facts, facts, sizeof facts);
  rapti_reason_got(why, "%s", facts);
  rapti_reason_want(why, "a context of this machine");
  return RAPT_ARG;
}

rapt_status rapti_plan_make(rapt_ctx *ctx, const rapt_problem *p, rapt_plan **out, rapt_reason *why) {
  *out = NULL;
  rapt_plan *plan = rapti_alloc(ctx, sizeof *plan + rapti_names_bytes(p));
  if (!plan) return RAPT_NOMEM;
  memset(plan, 0, sizeof *plan);
  atomic_init(&plan->refs, 1);
  rapti_decided_begin(&plan->d, ctx, rapti_registry_get(ctx), p, (char *)(plan + 1));
  rapt_status st = rapti_decide(&plan->d, NULL, why);
  if (ctx->what_if && (st == RAPT_OK || st == RAPT_REFUSED)) st = not_here(&plan->d, why);
  if (st == RAPT_OK) st = prepare(plan, why);
  if (st == RAPT_OK || st == RAPT_REFUSED) rapti_log_decided(&plan->d, st);
  else rapti_log_fault(ctx, &plan->d.problem, st, why);
  if (st == RAPT_OK) {
    rapti_operands_make(plan);
    *out = plan;
  } else {
    rapti_plan_unref(plan);
  }
  return st;
}

void rapti_plan_unref(rapt_plan *plan) {
  if (atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1) return;
  rapt_ctx *ctx = plan->d.ctx;
  bool counts_ctx = plan->counts_ctx;
  if (plan->prepared) {
    const rapt_backend *b = rapti_plan_backend(plan);
    if (b->release) b->release(b->self, plan->state);
  }
  rapti_registry_unref(ctx, plan->d.registry);
  rapti_free(ctx, plan);
  if (counts_ctx) rapti_ctx_unref(ctx);
}

rapt_status rapt_plan_create(rapt_ctx *ctx, const rapt_problem *p, rapt_plan **out, rapt_report **report) {
  if (report) *report = NULL;
  if (out) *out = NULL;
  if (!ctx) return rapti_report_null(RAPT_FIELD_CTX, report);
  if (!out) return rapti_report_null(RAPT_FIELD_PLAN, report);
  rapt_reason why = RAPT_REASON_INIT;
  rapt_status st = rapti_problem_readable(p, &why);
  if (st != RAPT_OK) {
    rapti_log_fault(ctx, NULL, st, &why);
    return rapti_report_bare(ctx, st, &why, report);
  }
  rapt_plan *plan;
  st = rapti_plan_make(ctx, p, &plan, &why);
  rapti_registry *g = plan ? plan->d.registry : rapti_registry_get(ctx);
  st = rapti_report_for(ctx, g, p, st, &why, report);
  if (!plan) rapti_registry_unref(ctx, g);
  if (st == RAPT_OK) {
    plan->counts_ctx = 1;
    rapti_ctx_ref(ctx);
    *out = plan;
  } else if (plan) {
    rapti_plan_unref(plan);
  }
  return st;
}

void rapt_plan_destroy(rapt_plan *plan) {
  if (plan) rapti_plan_unref(plan);
}

size_t rapt_plan_workspace(const rapt_plan *plan) { return plan ? plan->d.workspace : 0; }

rapt_status rapt_plan_report(const rapt_plan *plan, rapt_report **report) {
  if (report) *report = NULL;
  if (!report) return RAPT_ARG;
  if (!plan) return rapti_report_null(RAPT_FIELD_PLAN, report);
  return rapti_report_make(plan->d.ctx, plan->d.registry, &plan->d.problem, report);
}

/* ---- Running ---- */

rapt_status rapti_plan_runnable(const rapt_plan *plan, rapt_reason *why) {
  if (plan->d.core_writes || rapti_plan_backend(plan)->run) return RAPT_OK;
  rapti_reason_set(why, RAPT_CODE_NULL, RAPT_FIELD_RUN, -1, -1);
  rapti_reason_got(why, "%s", rapti_chosen(&plan->d)->row.id);
  rapti_reason_want(why, "the binding that runs it");
  return RAPT_ARG;
}

rapt_status rapt_plan_check(const rapt_plan *plan, const rapt_buffers *b, const void *workspace, size_t bytes,
                            rapt_reason *why) {
  rapti_reason_set(why, RAPT_CODE_NONE, RAPT_FIELD_NONE, -1, -1);
  if (!plan || !b) {
    rapti_reason_set(why, RAPT_CODE_NULL, plan ? RAPT_FIELD_BUFFERS : RAPT_FIELD_PLAN, -1, -1);
    return RAPT_ARG;
  }
  rapti_workspace ws = {workspace, bytes};
  return rapti_check_run(plan, b, &ws, why);
}

rapt_status rapt_plan_run(const rapt_plan *plan, const rapt_buffers *b, void *workspace, size_t bytes, void *stream) {
  if (!plan || !b || rapti_plan_runnable(plan, NULL) != RAPT_OK) return RAPT_ARG;
  rapti_workspace ws = {workspace, bytes};
  rapt_status st = rapti_check_run(plan, b, &ws, NULL);
  return st == RAPT_OK ? rapti_plan_execute(plan, b, workspace, stream, NULL) : st;
}

/* Bytes of one element of value 0 or -inf, repeated over a tensor of any strides. */
static void fill(const rapti_decided *d, int field, int dtype, bool minus_inf, void *to) {
  static const float low32 = -__builtin_inff();
  static const double low64 = -__builtin_inf();
  int64_t size[4], stride[4];
  size_t bytes = rapt_dtype_bytes(dtype);
  char value[8] = {0};
  if (minus_inf) memcpy(value, dtype == RAPT_FP64 ? (const void *)&low64 : (const void *)&low32, bytes);
  rapti_tensor_sizes(&d->request.cast, field, size);
  memcpy(stride, rapti_desc(&d->request.cast, field)->stride, sizeof stride);
  for (int64_t i0 = 0; i0 < size[0]; i0++)
    for (int64_t i1 = 0; i1 < size[1]; i1++)
      for (int64_t i2 = 0; i2 < size[2]; i2++)
        for (int64_t i3 = 0; i3 < size[3]; i3++) {
          int64_t at = i0 * stride[0] + i1 * stride[1] + i2 * stride[2] + i3 * stride[3];
          memcpy((char *)to + at * (int64_t)bytes, value, bytes);
        }
}

/* No row sees a key, or there are no rows: o = 0, lse = -inf, gradients 0 (M16, S6). */
static void write_empty(const rapt_plan *plan, const rapt_buffers *b) {
  for (uint32_t i = 0; i < plan->n_operands; i++) {
    const rapti_operand *o = &plan->operand[i];
    void *to;
    memcpy(&to, (const char *)b + o->at, sizeof to);
    if (o->output && o->low < o->high) fill(&plan->d, o->field, o->dtype, o->field == RAPT_FIELD_LSE, to);
  }
}

rapt_status rapti_plan_execute(const rapt_plan *plan, const rapt_buffers *b, void *workspace, void *stream,
                               rapt_reason *why) {
  const rapti_decided *d = &plan->d;
  if (d->core_writes) {
    write_empty(plan, b);
    return RAPT_OK;
  }
  const rapt_backend *backend = rapti_plan_backend(plan);
  const rapti_cap *cap = rapti_chosen(d);
  rapt_buffers copy;
  memcpy(&copy, b, sizeof copy);
  copy.struct_size = sizeof copy;
  char *ws = workspace;
  /* Of foreign code too: its callback computes under the default modes, and what it sets on this thread is undone. */
  const rapti_float_state modes = rapti_float_enter();
  if (d->request.casts) {
    rapti_cast_run(plan, b, ws, &copy);
    ws += d->request.cast_bytes;
  }
  if (d->choice.workspace == 0) ws = NULL;
  atomic_fetch_add_explicit(cap->entered, 1, memory_order_relaxed);
  rapt_status st = backend->run(backend->self, cap->local, plan->state, &d->request.cast, &copy, ws, stream);
  rapti_float_leave(modes);
  return returned(cap, "run", st, false, why);
}
