/* SPDX-License-Identifier: Apache-2.0 */
/* Context, plan and report as their files share them. Nothing outside src/core includes this. */
#ifndef RAPTI_CTX_H
#define RAPTI_CTX_H
#include "core/backend.h"
#include "core/core.h"
#include "core/decide.h"

#include <stdatomic.h>

/* ---- A lock that a fork cannot leave taken for ever (P10) ---- */

/* 0 free, else fork count << 1 | 1. Held for a few hundred instructions at most, never across an allocation or a
 * callback, so waiting threads yield instead of sleeping. */
typedef struct rapti_lock { atomic_uint word; } rapti_lock;
/* true: a thread that does not exist in this process held it when the process forked: what it guards may be torn. */
bool rapti_lock_take(rapti_lock *l);
void rapti_lock_drop(rapti_lock *l);

/* ---- Context ---- */

typedef struct rapti_block { struct rapti_block *next; } rapti_block;   /* memory of the context, freed with it */

/* Lives as long as the context, one for each row id, whatever registry the row is in. */
typedef struct rapti_row_life {
  atomic_uint_fast64_t entered;           /* first: rapti_cap.entered points to it */
  atomic_uint_fast64_t noticed;           /* 1 << code: notices given (R8) */
} rapti_row_life;

typedef struct rapti_arena {
  struct rapti_arena *next;
  void *data;
  size_t bytes;
} rapti_arena;

#define RAPTI_CACHE_PLANS 256u
#define RAPTI_CACHE_BUCKETS 512u
typedef struct rapti_cache {
  rapt_plan *bucket[RAPTI_CACHE_BUCKETS];
  rapt_plan *newest, *oldest;
  uint32_t n;
} rapti_cache;

typedef struct rapti_log {
  void (*line)(void *self, int kind, const char *line);
  void *self;
  int fd;                                 /* of RAPT_LOG; -1: none */
  int close_fd;
  uint32_t kinds;                         /* 1 << RAPT_LOG_x: kinds that go there */
} rapti_log;

struct rapt_ctx {
  atomic_uint refs;                       /* the handle, and every plan and report the caller holds */
  rapti_services services;                /* self of the own backends */
  void (*parallel_for)(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg);   /* the caller's or NULL */
  void *parallel_self;
  rapti_pool *pool;                       /* NULL: the caller's parallel_for */
  rapti_log log;
  rapti_settings levels[RAPTI_LEVELS];    /* texts in blocks; the call's level stays empty */
  int32_t what_if;
  int32_t isa;                            /* level in force, -1: a missing fact */
  uint32_t threads;                       /* what a decision counts on: max_threads, or those of the what-if */
  rapti_lock lock;                        /* guards all below */
  rapti_registry *registry;
  rapti_block *blocks;
  rapti_cache cache;
  rapti_arena *arenas;                    /* idle ones */
};

void *rapti_alloc(rapt_ctx *ctx, size_t bytes);           /* 64-byte aligned; NULL: out of memory */
void *rapti_zalloc(rapt_ctx *ctx, size_t bytes);
void rapti_free(rapt_ctx *ctx, void *p);
void *rapti_block_alloc(rapt_ctx *ctx, size_t bytes);     /* zeroed, lives as long as the context */
const char *rapti_block_copy(rapt_ctx *ctx, const char *s, size_t n);
void rapti_ctx_lock(rapt_ctx *ctx);
void rapti_ctx_unlock(rapt_ctx *ctx);
void rapti_ctx_ref(rapt_ctx *ctx);
void rapti_ctx_unref(rapt_ctx *ctx);

/* The head of a struct given by the caller: ABI when it is too small or has a non-zero tail that this version does not
 * know (E6). Comes before any other read of it. why: the struct's name and both sizes; may be NULL. */
rapt_status rapti_struct_check(const void *given, size_t known, const char *name, rapt_reason *why);
/* Copies a filled struct out, as much as the caller's struct_size says. ABI: too small to hold it. */
rapt_status rapti_struct_give(void *to, const void *filled, size_t known);

/* ---- Environment and log ---- */

/* What the variables of D23 say. Texts are those of getenv: valid until the environment changes. */
typedef struct rapti_env {
  const char *require, *prefer, *forbid, *isa, *log;
  int64_t memory_limit;
  uint64_t ref_limit;
  int32_t has_memory_limit, has_ref_limit;
} rapti_env;
rapt_status rapti_env_read(rapti_env *env, rapt_reason *why);
/* A fault of a text of the environment names the variable: the field becomes the variable's own. */
void rapti_env_blame(rapt_reason *why, int field);

rapt_status rapti_log_open(rapti_log *log, const char *spec, rapt_reason *why);
void rapti_log_close(rapti_log *log);

/* ---- Registry ---- */

rapt_status rapti_registry_builtin(rapt_ctx *ctx, const rapt_facts *facts, rapti_registry **out, rapt_reason *why);
rapti_registry *rapti_registry_get(rapt_ctx *ctx);        /* counted */
void rapti_registry_unref(rapt_ctx *ctx, rapti_registry *g);
uint64_t rapti_registry_hash(const rapti_registry *g);    /* of the row tables (R7) */
static inline rapti_row_life *rapti_life(const rapti_cap *cap) { return (rapti_row_life *)(void *)cap->entered; }

/* ---- A decision ---- */

/* All that a decision came from and what it was: enough to make it again (D5). */
typedef struct rapti_decided {
  rapt_ctx *ctx;
  rapti_registry *registry;               /* counted */
  rapt_problem problem;                   /* as given; names point behind the struct that holds this */
  rapti_request request;
  rapti_policy policy;
  rapti_choice choice;
  const char *kernel;                     /* full name; "" without a row */
  size_t workspace;                       /* casts, then the backend's */
  int32_t core_writes;                    /* an empty problem of a foreign row: the core gives the result (S6, S7) */
} rapti_decided;
/* NULL (ARG) or of another size (ABI): before any other read of the problem. */
rapt_status rapti_problem_readable(const rapt_problem *p, rapt_reason *why);
size_t rapti_names_bytes(const rapt_problem *p);
/* Copies the problem, names to `names`; takes the counted registry over. */
void rapti_decided_begin(rapti_decided *d, rapt_ctx *ctx, rapti_registry *g, const rapt_problem *p, char *names);
/* OK, ARG, REFUSED, ABI. matches: NULL, or registry->n_rows to fill. */
rapt_status rapti_decide(rapti_decided *d, rapti_match *matches, rapt_reason *why);
/* Would this row have come before that one, had it been able to (the order of docs/api.md section 7)? */
bool rapti_row_before(const rapti_decided *d, uint32_t row, uint32_t than);
/* Did this row, which cannot run, stand in the way of another at all? Not one that takes part only when named, that
 * others are required in place of, that is of another CPU architecture, or, where a row was chosen, of another kind of
 * device, unless that is why a preference had no effect. */
bool rapti_row_in_question(const rapti_decided *d, uint32_t row, const rapti_match *m);
static inline const rapti_cap *rapti_chosen(const rapti_decided *d) {
  return d->choice.row < 0 ? NULL : &d->registry->rows[d->choice.row];
}
void rapti_log_decided(const rapti_decided *d, rapt_status status);
/* A call that came to a fault or a failure. p: NULL where there is none that could be read. */
void rapti_log_fault(const rapt_ctx *ctx, const rapt_problem *p, rapt_status status, const rapt_reason *why);

/* ---- Plan ---- */

/* One pointer of rapt_buffers as the run checks (P4) need it; in the order of the struct. */
typedef struct rapti_operand {
  uint16_t at;                            /* offset in rapt_buffers */
  int16_t field;
  int32_t output;
  int32_t dtype;                          /* of a tensor; of an index array */
  uint32_t align;
  int64_t low, high;                      /* bytes from the pointer, high exclusive; equal: no elements */
  int64_t period, batch;                  /* S11 (b): sequence and batch stride, bytes; 0: an axis of size <= 1 */
  int64_t span_low, span;                 /* bytes of the head and dim axes; span 0: no packed tensor */
} rapti_operand;
#define RAPTI_OPERANDS 23

struct rapt_plan {
  rapti_decided d;
  atomic_uint refs;
  int32_t counts_ctx;                     /* 1: the caller's, keeps the context; 0: only the cache's */
  void *state;                            /* of the backend */
  int32_t prepared;
  uint32_t allowed;                       /* 1 << slot: pointers that may be given */
  uint32_t n_operands;
  rapti_operand operand[RAPTI_OPERANDS];
  uint64_t hash;                          /* the rest: of the cache */
  rapt_plan *chain, *newer, *older;
};
/* OK: *plan is counted once. Not OK: NULL, and why says what, for REFUSED and NOMEM apart. Logs what it came to. */
rapt_status rapti_plan_make(rapt_ctx *ctx, const rapt_problem *p, rapt_plan **plan, rapt_reason *why);
void rapti_plan_unref(rapt_plan *plan);
/* After the checks: casts, counts, enters the backend. OK, DEVICE_ERROR, INTERNAL, whatever the backend returned; why:
 * what it returned, may be NULL. */
rapt_status rapti_plan_execute(const rapt_plan *plan, const rapt_buffers *b, void *workspace, void *stream,
                               rapt_reason *why);
static inline const rapt_backend *rapti_plan_backend(const rapt_plan *plan) {
  return &plan->d.registry->backends[rapti_chosen(&plan->d)->backend];
}
/* Runs that only a binding can do (D28): ARG, NULL, `run`. */
rapt_status rapti_plan_runnable(const rapt_plan *plan, rapt_reason *why);

/* run_check.c */
typedef struct rapti_workspace { const void *data; size_t bytes; } rapti_workspace;
void rapti_operands_make(rapt_plan *plan);
/* ws: NULL when the workspace is the context's own. */
rapt_status rapti_check_run(const rapt_plan *plan, const rapt_buffers *b, const rapti_workspace *ws, rapt_reason *why);

/* cast.c: copies of the cast tensors into the workspace; *to gets their pointers. */
void rapti_cast_run(const rapt_plan *plan, const rapt_buffers *b, void *workspace, rapt_buffers *to);
void rapti_given_strides(const rapti_decided *d, int field, int64_t stride[4]);   /* as the caller has the tensor */
size_t rapti_cast_copy_bytes(const rapti_decided *d, int field);                  /* rounded up to 64 */

/* cache.c: the key is the problem's bytes and the texts of its names */
uint64_t rapti_problem_hash(const rapt_problem *p);
rapt_plan *rapti_cache_find(rapt_ctx *ctx, const rapt_problem *p, uint64_t hash);  /* counted; NULL */
void rapti_cache_add(rapt_ctx *ctx, rapt_plan *plan, uint64_t hash);
void rapti_cache_clear(rapt_ctx *ctx);

/* ---- Report ---- */

struct rapt_report {
  rapti_decided d;
  rapt_status status;
  atomic_int ran;                         /* 1: of a call that was executed (R3) */
  int32_t bare;                           /* 1: no problem could be read: only status and error say something */
  int32_t has_rows;
  rapt_reason error;                      /* code 0 and empty got: none */
  int32_t has_error;
  uint32_t classes;
  rapti_match *matches;                   /* registry->n_rows, behind the struct */
};
/* Decides again with every row (D5). OK, REFUSED, ARG as decided, and the report says so; NOMEM: *report is NULL. */
rapt_status rapti_report_make(rapt_ctx *ctx, rapti_registry *g, const rapt_problem *p, rapt_report **report);
/* The report of a call whose problem is absent or of another size (never read). st; NOMEM. */
rapt_status rapti_report_bare(rapt_ctx *ctx, rapt_status st, const rapt_reason *why, rapt_report **report);
/* The report of a call without a context (RAPT_FIELD_CTX) or plan (RAPT_FIELD_PLAN). A constant. ARG. */
rapt_status rapti_report_null(int field, rapt_report **report);
/* The report of a call that came to st, where one is asked for. st; NOMEM when the report cannot be made. */
rapt_status rapti_report_for(rapt_ctx *ctx, rapti_registry *g, const rapt_problem *p, rapt_status st,
                             const rapt_reason *why, rapt_report **report);
void rapti_report_fail(rapt_report *r, rapt_status status, const rapt_reason *why);
const char *rapti_report_level(const rapt_report *r);
const char *rapti_report_rng(const rapt_report *r);
uint32_t rapti_report_consents(const rapti_decided *d, const char *out[3]);
uint32_t rapti_decided_threads(const rapti_decided *d);   /* of the kernel; 0: not a CPU's, or a host's own */
/* Promises that the chosen host row is excused from (M15, X7): RAPT_CAN_ISOLATE, RAPT_CAN_X1_PATTERN. */
uint64_t rapti_report_exempt(const rapt_report *r);
/* Facts that an undecided decision waits for. */
typedef struct rapti_missing { uint32_t n; char name[24][32]; } rapti_missing;
bool rapti_report_open(const rapt_report *r, uint32_t row);            /* may this row, with more facts, be the choice? */
void rapti_report_missing(const rapt_report *r, uint32_t row, rapti_missing *set);   /* adds what this row waits for */
const char *rapti_row_display(const rapti_cap *cap);
const char *rapti_row_isa(const rapti_cap *cap);          /* "" where the row has no level */
void rapti_report_text(const rapt_report *r, const char *const *names, bool all_rows, rapti_text *t);
void rapti_report_json(const rapt_report *r, const char *const *names, rapti_text *t);
/* One reason in short: CODE(got, want), CODE? where it was not evaluated. */
void rapti_put_fault(const rapt_reason *reason, rapti_text *t);
void rapti_put_brief(const rapti_decided *d, uint32_t row, const rapti_brief *brief, rapti_text *t);
void rapti_reason_of(const rapti_decided *d, uint32_t row, const rapti_brief *brief, rapt_reason *reason);
#endif
