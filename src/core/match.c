/* SPDX-License-Identifier: Apache-2.0 */
/* One row against one request: the whole of "can run", and the policy codes that keep a row from being chosen (D4). */
#include "core/match.h"

#include <string.h>

/* The reason that is to be spelled out, if this is it. */
static rapt_reason *spell(const rapti_matcher *x, uint32_t seq, int code, int field, int state, int axis) {
  if (seq != x->text->seq) return NULL;
  rapti_reason_set(x->text->reason, code, field, axis, -1);
  x->text->reason->state = state;
  return x->text->reason;
}

static rapt_reason *record(rapti_matcher *x, int code, int field, int state) {
  const uint32_t seq = x->seq++;
  const int axis = x->axis;
  x->axis = -1;
  if (x->text) return spell(x, seq, code, field, state, axis);
  rapti_match *m = x->m;
  if (m->n == x->room) return NULL;
  m->reason[m->n++] = (rapti_brief){(int16_t)code, (int16_t)field, (int8_t)state, (int8_t)axis, (uint16_t)seq};
  if (code < x->last) x->unsorted = true;
  x->last = code;
  return NULL;
}

rapt_reason *rapti_fail(rapti_matcher *x, int code, int field) {
  x->failed = true;
  x->stop = x->first;
  return record(x, code, field, RAPT_FAILED);
}

static rapt_reason *miss(rapti_matcher *x, int code, int field) {
  x->missing = true;
  return x->first ? NULL : record(x, code, field, RAPT_NOT_EVALUATED);
}

rapt_reason *rapti_miss(rapti_matcher *x, int code, int field, const char *fact) {
  rapt_reason *why = miss(x, code, field);
  if (!why) return NULL;
  rapti_reason_got(why, "not known");
  rapti_reason_want(why, "the fact %s", fact);
  return why;
}

void rapti_unknown(rapti_matcher *x, int field, const char *what) {
  rapt_reason *why = rapti_fail(x, RAPT_CODE_UNKNOWN_SUPPORT, field);
  if (!why) return;
  rapti_reason_got(why, "%s", what);
  rapti_reason_want(why, "what is recorded");
}

rapt_reason *rapti_lack(rapti_matcher *x, uint64_t bit, int code, int field, const char *what) {
  if (!(x->row->unknown & bit)) return rapti_fail(x, code, field);
  rapti_unknown(x, field, what);
  return NULL;
}

/* What the backend's own code objects to. Only codes of a row are taken from it. */
static void match_extra(rapti_matcher *x) {
  const rapt_backend *b = &x->g->backends[x->cap->backend];
  if (!b->extra) return;
  /* Most calls find nothing: asked with no room first, which needs nothing cleared. */
  rapt_reason found[8];
  rapt_problem limited;
  const rapt_problem *p = x->p;
  if (x->policy->has_memory_limit && !(p->has & RAPT_HAS_MEMORY_LIMIT)) {
    limited = *p;                                  /* the limit in force, whatever level it came from (D9) */
    limited.has |= RAPT_HAS_MEMORY_LIMIT;
    limited.memory_limit = x->policy->memory_limit;
    p = &limited;
  }
  uint32_t n = b->extra(b->self, x->cap->local, p, &x->g->facts, found, 0);
  if (n == 0) return;
  memset(found, 0, sizeof found);
  for (int i = 0; i < 8; i++) {
    found[i].struct_size = (uint32_t)sizeof found[i];
    found[i].axis = -1;
    found[i].index = -1;
  }
  n = b->extra(b->self, x->cap->local, p, &x->g->facts, found, 8);
  for (uint32_t i = 0; i < n && i < 8; i++) {
    bool known = found[i].code > RAPT_CODE_NONE && found[i].code < RAPT_CODE_COUNT;
    if (known) known = rapti_code_get(found[i].code)->sentence && !rapti_is_policy_code(found[i].code);
    int code = known ? found[i].code : RAPT_CODE_UNKNOWN_SUPPORT;
    int field = found[i].field > RAPT_FIELD_NONE && found[i].field < RAPT_FIELD_COUNT ? found[i].field : RAPT_FIELD_NONE;
    bool missing = found[i].state == RAPT_NOT_EVALUATED;
    x->axis = found[i].axis;
    rapt_reason *why = missing ? miss(x, code, field) : rapti_fail(x, code, field);
    if (!why) continue;
    why->index = found[i].index;
    found[i].got[sizeof found[i].got - 1] = found[i].want[sizeof found[i].want - 1] = '\0';
    bool bare = missing && *found[i].want && strncmp(found[i].want, "the fact ", 9);
    rapti_reason_got(why, "%s", missing && !*found[i].got ? "not known" : found[i].got);
    rapti_reason_want(why, "%s%s", bare ? "the fact " : "", found[i].want);
  }
}

/* ---- Policy ---- */

bool rapti_is_policy_code(int code) {
  return code == RAPT_CODE_FORBIDDEN || code == RAPT_CODE_NOT_REQUIRED || code == RAPT_CODE_SLOW ||
         code == RAPT_CODE_UNTESTED || code == RAPT_CODE_OPT_IN;
}

static void put_names(rapt_reason *why, const rapti_name_set *set) {
  char buf[sizeof why->want];
  rapti_list list = rapti_list_begin(buf, sizeof buf);
  for (uint32_t i = 0; i < set->n; i++) rapti_list_add(&list, set->name[i].text, set->name[i].len);
  rapti_reason_want(why, "%s", buf);
}

/* Where a name came from: the level, and the variable that a user can change. */
static const char *origin_of(const rapti_policy *policy, int level, const char *variable) {
  return level == RAPTI_ENVIRONMENT ? variable : rapti_policy_level_name(policy, level);
}

/* One reason a level: bans of all levels add up; one that hits the picked member hits the row that picks it (D9, D28). */
static void check_forbidden(rapti_matcher *x) {
  const rapti_policy *policy = x->policy;
  uint32_t said = 0;
  for (uint32_t i = 0; i < policy->forbid.n; i++) {
    const rapti_name *ban = &policy->forbid.name[i];
    if (said >> ban->level & 1u) continue;
    if (!rapti_name_matches(ban, &x->self->row, x->classes) && !rapti_name_matches(ban, x->row, 0)) continue;
    said |= 1u << ban->level;
    rapt_reason *why = rapti_fail(x, RAPT_CODE_FORBIDDEN, RAPT_FIELD_FORBID);
    if (!why) continue;
    char name[sizeof why->got];
    rapti_text t = rapti_text_begin(name, sizeof name);
    rapti_text_putn(&t, ban->text, ban->len);
    rapti_text_end(&t);
    rapti_reason_got(why, "%s", name);
    rapti_reason_want(why, "%s", origin_of(policy, ban->level, "environment (RAPT_FORBID)"));
  }
}

static void check_slow(rapti_matcher *x, bool required) {
  if (!(x->classes & RAPT_CLASS_REFERENCE) || required || x->r->products <= x->policy->ref_limit) return;
  rapt_reason *why = rapti_fail(x, RAPT_CODE_SLOW, RAPT_FIELD_REF_LIMIT);
  if (!why) return;
  rapti_reason_got(why, "%lld", (long long)(x->r->products > INT64_MAX ? INT64_MAX : (int64_t)x->r->products));
  rapti_reason_want(why, "%lld", (long long)(x->policy->ref_limit > INT64_MAX ? INT64_MAX : (int64_t)x->policy->ref_limit));
}

void rapti_match_policy(rapti_matcher *x) {
  const rapti_policy *policy = x->policy;
  const rapt_row *self = &x->self->row;
  bool required = policy->require.n && rapti_names_find(&policy->require, self, x->classes, false);
  if (policy->forbid.n) check_forbidden(x);
  if (policy->require.n && !required) {
    rapt_reason *why = rapti_fail(x, RAPT_CODE_NOT_REQUIRED, RAPT_FIELD_REQUIRE);
    if (why) {
      rapti_reason_got(why, "%s", origin_of(policy, policy->require_level, "environment, RAPT_REQUIRE"));
      put_names(why, &policy->require);
    }
  }
  check_slow(x, required);
  if (!x->row->ran_on_hardware && !(required && rapti_names_find(&policy->require, self, 0, true))) {
    rapt_reason *why = rapti_fail(x, RAPT_CODE_UNTESTED, RAPT_FIELD_REQUIRE);
    if (why) rapti_reason_want(why, "require=%s", self->id);
  }
  if ((self->place != RAPT_PLACE_OPT_IN && self->place != RAPT_PLACE_BINDING) || required) return;
  if (policy->prefer.n && rapti_names_find(&policy->prefer, self, x->classes, false)) return;
  rapt_reason *why = rapti_fail(x, RAPT_CODE_OPT_IN, RAPT_FIELD_PREFER);
  if (why) rapti_reason_want(why, "prefer=%s", self->id);
}

/* ---- One row ---- */

typedef enum pick_state { PICK_OWN, PICK_MISSING, PICK_UNKNOWN } pick_state;

/* A row of the same backend. Rows that a provider replaced stand where the replaced ones stood. */
static const rapti_cap *sibling(const rapti_registry *g, const rapti_cap *self, uint32_t local) {
  const rapti_cap *end = g->rows + g->n_rows, *guess = self + ((int64_t)local - (int64_t)self->local);
  if (guess >= g->rows && guess < end && guess->backend == self->backend && guess->local == local) return guess;
  for (const rapti_cap *cap = g->rows; cap < end; cap++)
    if (cap->backend == self->backend && cap->local == local) return cap;
  return self;
}

/* For a row that picks a member: the member, where its choice is known. */
static pick_state find_member(const rapti_registry *g, const rapti_cap *self, const rapt_problem *p,
                              const rapti_cap **cap) {
  const rapt_backend *b = &g->backends[self->backend];
  uint32_t member = self->local;
  int found = b->pick ? b->pick(b->self, self->local, p, &g->facts, &member) : 2;
  *cap = found == 1 && member != self->local ? sibling(g, self, member) : self;
  return found == 0 ? PICK_MISSING : found == -1 ? PICK_UNKNOWN : PICK_OWN;
}

uint32_t rapti_member_row(const rapti_registry *g, uint32_t row, const rapti_request *r) {
  const rapti_cap *cap;
  find_member(g, &g->rows[row], &r->cast, &cap);
  return (uint32_t)(cap - g->rows);
}

static void match_limits(rapti_matcher *x) {
  x->lacks = x->needs->bits & ~(x->row->can & ~x->row->unknown);
  rapti_match_avail(x);
  if (!x->stop) rapti_match_shape(x);
  if (!x->stop) rapti_match_options(x);
  if (!x->stop) match_extra(x);
}

/* By code, in the order found within one code: UNKNOWN_SUPPORT and extra reasons come in anywhere. */
static void sort_reasons(rapti_match *m) {
  for (uint32_t i = 1; i < m->n; i++) {
    rapti_brief b = m->reason[i];
    uint32_t j = i;
    for (; j && m->reason[j - 1].code > b.code; j--) m->reason[j] = m->reason[j - 1];
    m->reason[j] = b;
  }
}

static void begin(rapti_matcher *x, const rapti_registry *g, uint32_t row, const rapti_request *r,
                  const rapti_needs *needs, const rapti_policy *policy, rapti_match *m) {
  *x = (rapti_matcher){.g = g, .self = &g->rows[row], .r = r, .p = &r->cast, .needs = needs, .policy = policy, .m = m};
  x->axis = -1;
  x->same_kind = r->cast.device == g->facts.kind;
  x->real_provider = x->self->registered && !g->facts.what_if;
  m->n = 0;
}

void rapti_match_with(const rapti_registry *g, uint32_t row, const rapti_request *r, const rapti_needs *needs,
                      const rapti_policy *policy, bool first, rapti_match *m, const rapti_text_of *text) {
  rapti_matcher x;
  begin(&x, g, row, r, needs, policy, m);
  x.first = first;
  x.room = first ? 1 : RAPTI_MAX_REASONS;
  x.text = text;
  pick_state pick = find_member(g, x.self, x.p, &x.cap);
  x.row = &x.cap->row;
  x.classes = x.self->row.classes | x.row->classes;
  match_limits(&x);
  if (pick == PICK_UNKNOWN && !x.stop) rapti_unknown(&x, RAPT_FIELD_BACKEND, "this call: which member it picks");
  if (pick == PICK_MISSING && !x.missing) {
    rapt_reason *why = miss(&x, RAPT_CODE_AVAIL, RAPT_FIELD_BACKEND);
    if (why) {
      rapti_reason_got(why, "not known");
      rapti_reason_want(why, RAPTI_WANT_MEMBER);
    }
  }
  if (!x.stop) rapti_match_policy(&x);
  m->effective = (uint32_t)(x.cap - g->rows);
  m->can = x.failed ? RAPT_UNABLE : x.missing ? RAPT_UNDECIDED : RAPT_ABLE;
  if (x.unsorted) sort_reasons(m);
}

void rapti_match_row(const rapti_registry *g, uint32_t row, const rapti_request *r, const rapti_policy *policy,
                     bool first, rapti_match *m, const rapti_text_of *text) {
  rapti_needs needs;
  rapti_needs_make(r, &needs);
  rapti_match_with(g, row, r, &needs, policy, first, m, text);
}
