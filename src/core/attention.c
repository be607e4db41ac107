/* SPDX-License-Identifier: Apache-2.0 */
/* The one-shot call: a cached plan and a run on memory of the context (P8). */
#include "core/ctx.h"

#include <string.h>

/* ---- Workspaces of the context: one a running call, kept for the next ---- */

static rapti_arena *arena_pop(rapt_ctx *ctx) {
  rapti_ctx_lock(ctx);
  rapti_arena *arena = ctx->arenas;
  if (arena) ctx->arenas = arena->next;
  rapti_ctx_unlock(ctx);
  return arena;
}

static void arena_give(rapt_ctx *ctx, rapti_arena *arena) {
  rapti_ctx_lock(ctx);
  arena->next = ctx->arenas;
  ctx->arenas = arena;
  rapti_ctx_unlock(ctx);
}

/* A quarter more than asked, so that slowly growing calls do not allocate each time. */
static size_t arena_bytes(size_t need) {
  size_t room = need / 4 + 4096;
  return need <= SIZE_MAX - room ? need + room : need;
}

static rapti_arena *arena_take(rapt_ctx *ctx, size_t need) {
  rapti_arena *arena = arena_pop(ctx);
  if (!arena) arena = rapti_zalloc(ctx, sizeof *arena);
  if (!arena || arena->bytes >= need) return arena;
  rapti_free(ctx, arena->data);
  arena->bytes = arena_bytes(need);
  arena->data = rapti_alloc(ctx, arena->bytes);
  if (arena->data) return arena;
  rapti_free(ctx, arena);
  return NULL;
}

/* ---- The call ---- */

static rapt_status find_or_make(rapt_ctx *ctx, const rapt_problem *p, rapt_plan **plan, rapt_reason *why) {
  uint64_t hash = rapti_problem_hash(p);
  *plan = rapti_cache_find(ctx, p, hash);
  if (*plan) return RAPT_OK;
  rapt_status st = rapti_plan_make(ctx, p, plan, why);
  if (st == RAPT_OK) rapti_cache_add(ctx, *plan, hash);
  return st;
}

/* Everything that can fail before the first write, the report included (E2). */
static rapt_status ready(rapt_plan *plan, const rapt_buffers *b, rapti_arena **arena, rapt_report **report,
                         rapt_reason *why) {
  rapt_ctx *ctx = plan->d.ctx;
  rapt_status st = rapti_plan_runnable(plan, why);
  bool host = st != RAPT_OK;                /* its decision was logged; the binding goes on from here (D28) */
  if (st == RAPT_OK && !b) {
    rapti_reason_set(why, RAPT_CODE_NULL, RAPT_FIELD_BUFFERS, -1, -1);
    st = RAPT_ARG;
  }
  if (st == RAPT_OK) st = rapti_check_run(plan, b, NULL, why);
  if (st != RAPT_OK && !host) rapti_log_fault(ctx, &plan->d.problem, st, why);
  st = rapti_report_for(ctx, plan->d.registry, &plan->d.problem, st, why, report);
  if (st == RAPT_OK && plan->d.workspace) {
    *arena = arena_take(ctx, plan->d.workspace);
    if (!*arena) st = RAPT_NOMEM;
  }
  return st;
}

static rapt_status run(rapt_plan *plan, const rapt_buffers *b, rapt_report **report) {
  rapt_reason why = RAPT_REASON_INIT;
  rapti_arena *arena = NULL;
  rapt_status st = ready(plan, b, &arena, report, &why);
  if (st == RAPT_NOMEM && report) {
    rapt_report_destroy(*report);
    *report = NULL;
  }
  if (st != RAPT_OK) return st;
  st = rapti_plan_execute(plan, b, arena ? arena->data : NULL, NULL, &why);
  if (arena) arena_give(plan->d.ctx, arena);
  if (st != RAPT_OK) rapti_log_fault(plan->d.ctx, &plan->d.problem, st, &why);
  if (report) {
    (*report)->ran = 1;
    if (st != RAPT_OK) rapti_report_fail(*report, st, &why);
  }
  return st;
}

rapt_status rapt_attention(rapt_ctx *ctx, const rapt_problem *p, const rapt_buffers *b, rapt_report **report) {
  if (report) *report = NULL;
  if (!ctx) return rapti_report_null(RAPT_FIELD_CTX, report);
  rapt_problem cut;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_status st;
  if (!p || p->struct_size != sizeof *p) {
    st = rapti_problem_readable(p, &why);
    if (st != RAPT_OK) {
      rapti_log_fault(ctx, NULL, st, &why);
      return rapti_report_bare(ctx, st, &why, report);
    }
    memcpy(&cut, p, sizeof cut);
    cut.struct_size = sizeof cut;
    p = &cut;
  }
  rapt_plan *plan;
  st = find_or_make(ctx, p, &plan, &why);
  if (st == RAPT_OK) {
    st = run(plan, b, report);
    rapti_plan_unref(plan);
    return st;
  }
  rapti_registry *g = rapti_registry_get(ctx);
  st = rapti_report_for(ctx, g, p, st, &why, report);
  rapti_registry_unref(ctx, g);
  return st;
}
