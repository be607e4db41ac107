/* SPDX-License-Identifier: Apache-2.0 */
/* "rapt.decision/1" (docs/api.md section 8, R6): fixed key order, equal decisions give equal bytes. */
#include "core/ctx.h"

#include <math.h>
#include <string.h>

#define ROOM 5120                         /* of a problem string or a sentence */

static void key(rapti_text *t, const char *name) {
  rapti_text_putc(t, '"');
  rapti_text_put(t, name);
  rapti_text_put(t, "\":");
}

static void next_key(rapti_text *t, const char *name) {
  rapti_text_putc(t, ',');
  key(t, name);
}

static void string_or_null(rapti_text *t, const char *s) {
  if (s && *s) rapti_text_json(t, s);
  else rapti_text_put(t, "null");
}

static void boolean(rapti_text *t, bool b) { rapti_text_put(t, b ? "true" : "false"); }

static void number(rapti_text *t, double v) {
  bool finite = isfinite(v);
  if (!finite) rapti_text_putc(t, '"');
  rapti_text_double(t, v);
  if (!finite) rapti_text_putc(t, '"');
}

static void int_or_null(rapti_text *t, int64_t v, bool there) {
  if (there) rapti_text_int(t, v);
  else rapti_text_put(t, "null");
}

static const char *field_name(int field, const char *const *names) {
  if (field == RAPT_FIELD_NONE) return NULL;
  return names && names[field] ? names[field] : rapt_field_name(field);
}

/* code .. want, text: the part that errors and reasons share. */
static void reason_tail(const rapt_reason *reason, const char *row, const char *const *names, rapti_text *t) {
  char sentence[ROOM];
  next_key(t, "field");
  string_or_null(t, field_name(reason->field, names));
  next_key(t, "axis");
  int_or_null(t, reason->axis, reason->axis >= 0);
  next_key(t, "index");
  int_or_null(t, reason->index, reason->index >= 0);
  next_key(t, "got");
  string_or_null(t, reason->got);
  next_key(t, "want");
  string_or_null(t, reason->want);
  rapt_reason_format(reason, row, names, sentence, sizeof sentence);
  next_key(t, "text");
  rapti_text_json(t, sentence);
  rapti_text_putc(t, '}');
}

static void error(const rapt_report *r, const char *const *names, rapti_text *t) {
  if (!r->has_error) {
    rapti_text_put(t, "null");
    return;
  }
  rapti_text_putc(t, '{');
  key(t, "code");
  string_or_null(t, r->error.code ? rapt_code_name(r->error.code) : NULL);
  reason_tail(&r->error, NULL, names, t);
}

/* ---- Policy ---- */

static void name_list(const rapti_name_set *set, rapti_text *t) {
  if (set->n == 0) {
    rapti_text_put(t, "null");
    return;
  }
  for (uint32_t i = 0; i < set->n; i++) {
    char name[128];
    rapti_text one = rapti_text_begin(name, sizeof name);
    rapti_text_putn(&one, set->name[i].text, set->name[i].len);
    rapti_text_end(&one);
    rapti_text_putc(t, i ? ',' : '[');
    rapti_text_json(t, name);
  }
  rapti_text_putc(t, ']');
}

static void level(const rapti_policy *policy, const char *name, int at, bool there, bool *first, rapti_text *t) {
  if (!there) return;
  if (!*first) rapti_text_putc(t, ',');
  *first = false;
  key(t, name);
  rapti_text_json(t, rapti_policy_level_name(policy, at));
}

/* Forbids of all levels add up (D9): the narrowest that has one. */
static int forbid_level(const rapti_policy *policy) {
  int at = RAPTI_BUILTIN;
  for (uint32_t i = 0; i < policy->forbid.n; i++)
    if (policy->forbid.name[i].level > at) at = policy->forbid.name[i].level;
  return at;
}

static void put_policy(const rapti_policy *policy, rapti_text *t) {
  bool first = true;
  rapti_text_putc(t, '{');
  key(t, "require");
  name_list(&policy->require, t);
  next_key(t, "prefer");
  name_list(&policy->prefer, t);
  next_key(t, "forbid");
  name_list(&policy->forbid, t);
  next_key(t, "memory_limit");
  int_or_null(t, policy->memory_limit, policy->has_memory_limit);
  next_key(t, "ref_limit");
  rapti_text_uint(t, policy->ref_limit);
  next_key(t, "isa");
  string_or_null(t, policy->isa < 0 ? NULL : rapti_isa_name(policy->isa));
  next_key(t, "threads");
  rapti_text_uint(t, policy->threads);
  next_key(t, "verify");
  rapti_text_int(t, 0);
  next_key(t, "levels");
  rapti_text_putc(t, '{');
  level(policy, "require", policy->require_level, policy->require.n > 0, &first, t);
  level(policy, "prefer", policy->prefer_level, policy->prefer.n > 0, &first, t);
  level(policy, "forbid", forbid_level(policy), policy->forbid.n > 0, &first, t);
  level(policy, "memory_limit", policy->memory_level, policy->has_memory_limit, &first, t);
  level(policy, "ref_limit", policy->ref_level, true, &first, t);
  rapti_text_put(t, "}}");
}

/* ---- Decision ---- */

static void class_list(uint32_t classes, rapti_text *t) {
  static const struct { uint32_t bit; const char *name; } all[] = {{RAPT_CLASS_REFERENCE, "reference"},
    {RAPT_CLASS_FUSED, "fused"}, {RAPT_CLASS_FLASH, "flash"}, {RAPT_CLASS_HOST, "host"}, {RAPT_CLASS_APPROX, "approx"}};
  bool first = true;
  rapti_text_putc(t, '[');
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    if (!(classes & all[i].bit)) continue;
    if (!first) rapti_text_putc(t, ',');
    first = false;
    rapti_text_json(t, all[i].name);
  }
  rapti_text_putc(t, ']');
}

static void chosen(const rapt_report *r, const rapti_cap *cap, rapti_text *t) {
  static const char *const accuracy[] = {"exact", "reduced", "approx"};
  const char *consents[3];
  uint32_t n = rapti_report_consents(&r->d, consents);
  rapti_text_putc(t, '{');
  key(t, "backend");
  string_or_null(t, r->d.registry->backends[cap->backend].name);
  next_key(t, "row");
  rapti_text_json(t, cap->row.id);
  next_key(t, "kernel");
  rapti_text_json(t, r->d.kernel);
  next_key(t, "isa");
  string_or_null(t, rapti_row_isa(cap));
  next_key(t, "threads");
  int_or_null(t, rapti_decided_threads(&r->d), rapti_decided_threads(&r->d) > 0);
  next_key(t, "classes");
  class_list(r->classes, t);
  next_key(t, "accuracy");
  rapti_text_json(t, accuracy[cap->row.accuracy]);
  next_key(t, "exactness");
  string_or_null(t, cap->row.exactness);
  next_key(t, "level");
  rapti_text_json(t, rapti_report_level(r));
  next_key(t, "fallback");
  boolean(t, r->d.choice.fallback);
  next_key(t, "consents");
  rapti_text_putc(t, '[');
  for (uint32_t i = 0; i < n; i++) {
    if (i) rapti_text_putc(t, ',');
    rapti_text_json(t, consents[i]);
  }
  rapti_text_put(t, "]}");
}

static void casts(const rapt_report *r, rapti_text *t) {
  static const int fields[] = {RAPT_FIELD_Q, RAPT_FIELD_K, RAPT_FIELD_V, RAPT_FIELD_BIAS};
  bool first = true;
  rapti_text_putc(t, '[');
  for (int i = 0; i < 4; i++) {
    if (!r->has_rows || !(r->d.request.casts >> fields[i] & 1u)) continue;
    if (!first) rapti_text_putc(t, ',');
    first = false;
    rapti_text_putc(t, '{');
    key(t, "tensor");
    rapti_text_json(t, rapt_field_name(fields[i]));
    next_key(t, "from");
    rapti_text_json(t, rapt_dtype_name(r->d.request.given[i]));
    next_key(t, "to");
    rapti_text_json(t, rapt_dtype_name(r->d.request.cast_dtype));
    next_key(t, "bytes");
    rapti_text_uint(t, rapti_cast_copy_bytes(&r->d, fields[i]));
    rapti_text_putc(t, '}');
  }
  rapti_text_putc(t, ']');
}

static void put_row(const rapt_report *r, uint32_t i, const char *const *names, rapti_text *t) {
  static const char *const can[] = {"able", "unable", "undecided"};
  const rapti_match *m = &r->matches[i];
  const char *id = r->d.registry->rows[i].row.id;
  rapti_text_putc(t, '{');
  key(t, "row");
  rapti_text_json(t, id);
  next_key(t, "verdict");
  rapti_text_json(t, can[m->can]);
  next_key(t, "reasons");
  rapti_text_putc(t, '[');
  for (uint32_t j = 0; j < m->n; j++) {
    rapt_reason reason = RAPT_REASON_INIT;
    rapti_reason_of(&r->d, i, &m->reason[j], &reason);
    if (j) rapti_text_putc(t, ',');
    rapti_text_putc(t, '{');
    key(t, "code");
    rapti_text_json(t, rapt_code_name(reason.code));
    next_key(t, "state");
    rapti_text_json(t, reason.state == RAPT_FAILED ? "failed" : "not evaluated");
    reason_tail(&reason, id, names, t);
  }
  rapti_text_put(t, "]}");
}

/* The facts that an undecided report waits for. */
static void missing(const rapt_report *r, rapti_text *t) {
  rapti_missing set = {0};
  for (uint32_t i = 0; i < rapt_report_count(r); i++)
    if (rapti_report_open(r, i)) rapti_report_missing(r, i, &set);
  rapti_text_putc(t, '[');
  for (uint32_t i = 0; i < set.n; i++) {
    if (i) rapti_text_putc(t, ',');
    rapti_text_json(t, set.name[i]);
  }
  rapti_text_putc(t, ']');
}

static void put_call(const rapt_report *r, rapti_text *t) {
  char problem[ROOM] = "", hash[17] = "";
  if (!r->bare) rapt_problem_format(&r->d.problem, problem, sizeof problem);
  next_key(t, "problem");
  string_or_null(t, problem);
  next_key(t, "policy");
  if (r->has_rows) put_policy(&r->d.policy, t);
  else rapti_text_put(t, "null");
  next_key(t, "facts");
  rapti_text h = rapti_text_begin(hash, sizeof hash);
  if (r->d.registry) {
    rapti_facts_json(&r->d.registry->facts, t);
    rapti_text_printf(&h, "%016llx", (unsigned long long)rapti_registry_hash(r->d.registry));
  } else {
    rapti_text_put(t, "null");
  }
  next_key(t, "tables");
  string_or_null(t, hash);
}

static void put_decision(const rapt_report *r, rapti_text *t) {
  const rapti_cap *cap = r->has_rows ? rapti_chosen(&r->d) : NULL;
  next_key(t, "chosen");
  if (cap) chosen(r, cap, t);
  else rapti_text_put(t, "null");
  next_key(t, "casts");
  casts(r, t);
  next_key(t, "off");
  int_or_null(t, r->d.request.off, r->has_rows && r->d.request.off != INT64_MIN);
  next_key(t, "scale");
  if (r->has_rows) number(t, r->d.request.cast.scale);
  else rapti_text_put(t, "null");
  next_key(t, "rewrites");
  rapti_text_put(t, cap && r->d.core_writes ? "[\"empty\"]" : "[]");
  next_key(t, "copies");
  rapti_text_put(t, "[]");
  next_key(t, "workspace");
  int_or_null(t, (int64_t)r->d.workspace, cap != NULL);
  next_key(t, "rng");
  string_or_null(t, rapti_report_rng(r));
  next_key(t, "assume_finite");
  boolean(t, (r->d.problem.flags & RAPT_ASSUME_FINITE) != 0);
  uint64_t exempt = rapti_report_exempt(r);
  next_key(t, "exempt");
  rapti_text_put(t, exempt & RAPT_CAN_ISOLATE ? "[\"ISOLATION\"" : "[");
  if (exempt & RAPT_CAN_X1_PATTERN) rapti_text_put(t, exempt & RAPT_CAN_ISOLATE ? ",\"RNG\"" : "\"RNG\"");
  rapti_text_putc(t, ']');
  next_key(t, "backward");
  rapti_text_put(t, "null");
  next_key(t, "verify");
  rapti_text_put(t, "null");
}

void rapti_report_json(const rapt_report *r, const char *const *names, rapti_text *t) {
  rapti_text_putc(t, '{');
  key(t, "schema");
  rapti_text_json(t, "rapt.decision/1");
  next_key(t, "version");
  rapti_text_json(t, rapt_version());
  next_key(t, "status");
  rapti_text_json(t, rapt_status_name((int32_t)r->status));
  next_key(t, "error");
  error(r, names, t);
  next_key(t, "hypothetical");
  boolean(t, r->d.ctx && r->d.ctx->what_if);
  next_key(t, "undecided");
  boolean(t, r->has_rows && r->d.choice.undecided);
  next_key(t, "missing");
  missing(r, t);
  put_call(r, t);
  put_decision(r, t);
  next_key(t, "rows");
  rapti_text_putc(t, '[');
  for (uint32_t i = 0; i < rapt_report_count(r); i++) {
    if (i) rapti_text_putc(t, ',');
    put_row(r, i, names, t);
  }
  rapti_text_put(t, "]}");
}
