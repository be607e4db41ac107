/* SPDX-License-Identifier: Apache-2.0 */
/* Can run and should run: rows as compiled at registration, one matcher, one selection. Pure functions of (request,
 * policy, registry): no clock, environment, tensor data or framework (D1). */
#ifndef RAPTI_DECIDE_H
#define RAPTI_DECIDE_H
#include "core/core.h"

#include <stdatomic.h>

/* ---- Rows ---- */

typedef struct rapti_version_bound {
  uint64_t version;
  int16_t package;
  int8_t op;
  int8_t more;                         /* the next bound belongs to the same condition (known_bad: all hold together) */
  int8_t runtime;                      /* of cuda or rocm: a fact that other device kinds do not have */
} rapti_version_bound;
typedef enum rapti_op { RAPTI_GE = 0, RAPTI_LT, RAPTI_EQ, RAPTI_LE, RAPTI_GT } rapti_op;
typedef struct rapti_cc_range { uint16_t low, high; int16_t unknown; } rapti_cc_range;   /* inclusive, major << 8 | minor */

#define RAPTI_MAX_BOUNDS 8
#define RAPTI_MAX_CC 12

/* A row with its texts parsed once. */
typedef struct rapti_cap {
  rapt_row row;                        /* texts owned by the backend below */
  uint32_t backend;                    /* index in the registry */
  uint32_t local;                      /* row index in its backend */
  int32_t package, cc_built, isa;      /* -1: none */
  int32_t n_needs, n_bad, n_cc;
  int32_t registered;                  /* 1: a provider registered it, or it is our own: AVAIL needs no provider */
  rapti_version_bound needs[RAPTI_MAX_BOUNDS], bad[RAPTI_MAX_BOUNDS];
  rapti_cc_range cc[RAPTI_MAX_CC];     /* the first range that holds counts */
  uint32_t next_ranked;                /* 1 + the row that follows in ranking order; 0 = the last (rapti_registry_finish) */
  atomic_uint_fast64_t *entered;       /* owned by the context */
} rapti_cap;
/* Rows that the core decides and counts and their binding calls (D28). */
static inline bool rapti_run_by_binding(const rapt_row *row) {
  return row->place == RAPT_PLACE_HOST || row->place == RAPT_PLACE_BINDING;
}
/* Checks a row and parses its texts into *cap, which is overwritten: backend, local, registered and entered are the
 * caller's to set afterwards. ABI (struct_size). ARG: SYNTAX, UNKNOWN_NAME (an unknown package), UNKNOWN_FIELD. */
rapt_status rapti_cap_compile(const rapt_row *row, rapti_cap *cap, rapt_reason *why);

typedef struct rapti_registry {        /* immutable once published; counted references */
  atomic_uint refs;
  uint32_t n_backends, n_rows;
  rapt_backend *backends;              /* rows and name: copies owned by the registry's context */
  const char **broken;                 /* per backend: text of a failed probe, or NULL */
  rapti_cap *rows;                     /* table order: backends.def, then registration order */
  rapt_facts facts;
  uint64_t generation;                 /* differs between any two registries of a context */
  uint32_t first_ranked;               /* 1 + the row that ranks first without prefer; 0 = no rows */
} rapti_registry;
/* Once, after the last row was added and before the registry is published: ranks the rows (docs/api.md section 7). */
void rapti_registry_finish(rapti_registry *g);

/* ---- Policy ---- */

typedef enum rapti_level { RAPTI_BUILTIN = 0, RAPTI_ENVIRONMENT, RAPTI_CONTEXT, RAPTI_CALL, RAPTI_LEVELS } rapti_level;
const char *rapti_level_name(int level);          /* "built-in" "environment" "context" "call" */

/* One level's settings, as given. NULL and has_* = 0: not set at this level. */
typedef struct rapti_settings {
  const char *require, *prefer, *forbid;
  int64_t memory_limit; int32_t has_memory_limit;
  int32_t has_ref_limit; uint64_t ref_limit;
} rapti_settings;

#define RAPTI_MAX_NAMES 32
typedef enum rapti_name_kind { RAPTI_NAME_ID = 0, RAPTI_NAME_ALIAS, RAPTI_NAME_DISPLAY, RAPTI_NAME_CLASS } rapti_name_kind;
typedef struct rapti_name {
  const char *text;                    /* into the caller's strings */
  uint16_t len;
  uint8_t level, kind;                 /* rapti_level, rapti_name_kind: an id or prefix before an alias before a display */
  uint32_t classes;                    /* RAPTI_NAME_CLASS: its bit */
} rapti_name;
typedef struct rapti_name_set {        /* a list of names, resolved against the registry */
  uint32_t n;
  rapti_name name[RAPTI_MAX_NAMES];
} rapti_name_set;

typedef struct rapti_policy {
  rapti_name_set require, prefer, forbid;         /* require, prefer: of the narrowest level; forbid: all levels */
  int32_t require_level, prefer_level, memory_level, ref_level;
  int32_t has_memory_limit;
  int64_t memory_limit;                           /* D16, D17; without it 256 MiB for buffers that grow with Sq*Skv */
  uint64_t ref_limit;
  uint32_t threads;                               /* the context's max_threads */
  int32_t isa;                                    /* level in force: detected or what-if, capped; -1 = missing fact */
  const char *origin;                             /* p->origin or NULL */
} rapti_policy;
/* levels[RAPTI_LEVELS], narrowest last. threads and isa come from the registry's facts; a context sets them anew where
 * it has fewer threads or a cap. NULL and "" are not set. ARG: UNKNOWN_NAME listing the legal ones, SYNTAX for an empty
 * name or more than RAPTI_MAX_NAMES. */
rapt_status rapti_policy_make(const rapti_settings levels[RAPTI_LEVELS], const rapti_registry *g, const char *origin,
                              rapti_policy *out, rapt_reason *why);
/* The level's name, or p->origin for the call level where a binding gave one (D9). */
const char *rapti_policy_level_name(const rapti_policy *policy, int level);
/* Is a name of the set meant for this row, whose classes count as given (its own and a picked member's)? The first such
 * name, or NULL. by_name: class names do not count (N7). */
const rapti_name *rapti_names_find(const rapti_name_set *set, const rapt_row *row, uint32_t classes, bool by_name);
/* Does a resolved name mean this row, whose classes count as given? */
bool rapti_name_matches(const rapti_name *name, const rapt_row *row, uint32_t classes);

/* ---- Can run ---- */

typedef struct rapti_brief { int16_t code, field; int8_t state, axis; uint16_t seq; } rapti_brief;
#define RAPTI_MAX_REASONS 48
typedef struct rapti_match {
  uint32_t n;                                     /* reasons, sorted by code */
  int32_t can;                                    /* rapt_can */
  uint32_t effective;                             /* the row whose limits counted: the picked member, or itself */
  rapti_brief reason[RAPTI_MAX_REASONS];
} rapti_match;
typedef struct rapti_text_of { uint32_t seq; rapt_reason *reason; } rapti_text_of;   /* format got and want of one reason */
/* Everything that keeps a row from being chosen, policy codes (SLOW UNTESTED OPT_IN FORBIDDEN NOT_REQUIRED) included.
 * first: stop at the first failure (then n <= 1). text: NULL, or which reason to spell out. */
void rapti_match_row(const rapti_registry *g, uint32_t row, const rapti_request *r, const rapti_policy *policy,
                     bool first, rapti_match *m, const rapti_text_of *text);
bool rapti_is_policy_code(int code);
#define RAPTI_WANT_MEMBER "the fact that picks its member"   /* want of a row whose member depends on a missing fact */
/* The row whose limits count for this one: the member it picks, or itself. */
uint32_t rapti_member_row(const rapti_registry *g, uint32_t row, const rapti_request *r);

/* What a request asks of a row, worked out once for all rows. */
typedef struct rapti_needs {
  uint64_t bits;             /* RAPT_CAN_* that must be there, corners apart */
  uint64_t corner;           /* any one of these; 0 = no corner asked */
  uint32_t strided;          /* 1u << field: tensors whose last stride is not 1 */
  uint32_t tensors;          /* 1u << field: tensors of the call with strides */
  int32_t align;             /* the weakest declared pointer alignment, bytes */
  int32_t window;            /* 1: a window that is not causal alone */
  int64_t reach;             /* largest distance of an element from its tensor's base, elements */
} rapti_needs;
void rapti_needs_make(const rapti_request *r, rapti_needs *needs);
/* rapti_match_row with the needs at hand. */
void rapti_match_with(const rapti_registry *g, uint32_t row, const rapti_request *r, const rapti_needs *needs,
                      const rapti_policy *policy, bool first, rapti_match *m, const rapti_text_of *text);

/* ---- Should run ---- */

typedef struct rapti_choice {
  int32_t row;                                    /* -1: none can */
  int32_t level;                                  /* rapti_level that decided */
  int32_t fallback;                               /* a preferred name exists, another row was chosen */
  int32_t undecided;                              /* a row that would come before, or where none can run any, waits for facts */
  size_t workspace;                               /* of the backend, bytes; casts come on top */
} rapti_choice;
/* Index of the first name of prefer that means the row, prefer.n where none does. The classes of a member that it would
 * pick count, in every use of prefer alike. */
uint32_t rapti_prefer_rank(const rapti_registry *g, uint32_t row, const rapti_request *r, const rapti_policy *policy);
/* matches: NULL (stop at the first in ranking order that can run, D5), or g->n_rows of them to fill. */
void rapti_select(const rapti_registry *g, const rapti_request *r, const rapti_policy *policy, rapti_match *matches,
                  rapti_choice *choice);

/* ---- The qualified line (R4) ---- */

/* As rapt_line_format; levels: the context's settings, the call's entry is filled from the family. threads, isa: as in
 * rapti_policy. */
rapt_status rapti_line(const rapti_registry *g, const rapti_settings levels[RAPTI_LEVELS], uint32_t threads, int32_t isa,
                       const rapt_problem *family, const char *dtypes, const char *devices, char *buf, size_t n,
                       size_t *len, int *undecided, rapt_reason *why);
#endif
