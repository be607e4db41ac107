/* SPDX-License-Identifier: Apache-2.0 */
/* Names of rows, and the policy in force from the settings of every level (D8, D9). */
#include "core/decide.h"

#include <string.h>

static const struct { const char *name; uint32_t bit; } classes[] = {
  {"class:reference", RAPT_CLASS_REFERENCE}, {"class:fused", RAPT_CLASS_FUSED}, {"class:flash", RAPT_CLASS_FLASH},
  {"class:host", RAPT_CLASS_HOST}, {"class:approx", RAPT_CLASS_APPROX},
};
enum { N_CLASSES = sizeof classes / sizeof classes[0] };
static const char class_prefix[] = "class:";
enum { CLASS_PREFIX = sizeof class_prefix - 1 };

static bool same(const char *name, size_t len, const char *text) {
  return text && strncmp(name, text, len) == 0 && text[len] == '\0';
}

/* A row id, or a dotted prefix of it. */
static bool means_id(const char *name, size_t len, const char *id) {
  return strncmp(name, id, len) == 0 && (id[len] == '\0' || id[len] == '.');
}

static bool means_alias(const char *name, size_t len, const char *aliases) {
  for (const char *s = aliases; s && *s;) {
    size_t n = strcspn(s, ",");
    if (n == len && memcmp(s, name, n) == 0) return true;
    s += n + (s[n] == ',');
  }
  return false;
}

bool rapti_name_matches(const rapti_name *name, const rapt_row *row, uint32_t row_classes) {
  switch (name->kind) {
    case RAPTI_NAME_ID: return means_id(name->text, name->len, row->id);
    case RAPTI_NAME_ALIAS: return means_alias(name->text, name->len, row->aliases);
    case RAPTI_NAME_DISPLAY: return same(name->text, name->len, row->display);
    default: return (name->classes & row_classes) != 0;
  }
}

/* Finds what a name speaks of: an id or prefix goes before an alias, an alias before a display name. */
static bool resolve(const char *text, size_t len, const rapti_registry *g, rapti_name *name) {
  *name = (rapti_name){.text = text, .len = (uint16_t)len};
  if (len > CLASS_PREFIX && memcmp(text, class_prefix, CLASS_PREFIX) == 0) {
    name->kind = RAPTI_NAME_CLASS;
    for (int i = 0; i < N_CLASSES; i++)
      if (same(text, len, classes[i].name)) name->classes = classes[i].bit;
    return name->classes != 0;
  }
  for (uint8_t kind = RAPTI_NAME_ID; kind <= RAPTI_NAME_DISPLAY; kind++) {
    name->kind = kind;
    for (uint32_t i = 0; i < g->n_rows; i++)
      if (rapti_name_matches(name, &g->rows[i].row, 0)) return true;
  }
  return false;
}

const rapti_name *rapti_names_find(const rapti_name_set *set, const rapt_row *row, uint32_t row_classes, bool by_name) {
  for (uint32_t i = 0; i < set->n; i++) {
    if (by_name && set->name[i].kind == RAPTI_NAME_CLASS) continue;
    if (rapti_name_matches(&set->name[i], row, row_classes)) return &set->name[i];
  }
  return NULL;
}

const char *rapti_level_name(int level) {
  static const char *const names[RAPTI_LEVELS] = {"built-in", "environment", "context", "call"};
  return level >= 0 && level < RAPTI_LEVELS ? names[level] : "?";
}

const char *rapti_policy_level_name(const rapti_policy *policy, int level) {
  return level == RAPTI_CALL && policy->origin && *policy->origin ? policy->origin : rapti_level_name(level);
}

/* Tries every name that a row goes by. */
static void near_row(rapti_near *near, const rapt_row *row) {
  rapti_near_try(near, row->id, strcspn(row->id, "."));
  rapti_near_try(near, row->id, strlen(row->id));
  for (const char *s = row->aliases; s && *s;) {
    size_t n = strcspn(s, ",");
    rapti_near_try(near, s, n);
    s += n + (s[n] == ',');
  }
  rapti_near_try(near, row->display, strlen(row->display));
}

/* got: the name. want: the nearest of all names, and the legal ones as far as they fit: the first parts of the ids, then
 * the classes. */
static void name_unknown(const char *name, size_t len, const rapti_registry *g, rapt_reason *why) {
  char text[sizeof why->want];
  rapti_near near = rapti_near_begin(name, len);
  for (uint32_t i = 0; i < g->n_rows; i++) near_row(&near, &g->rows[i].row);
  for (int i = 0; i < N_CLASSES; i++) rapti_near_try(&near, classes[i].name, strlen(classes[i].name));
  size_t lead = 0;
  if (near.best) {
    rapti_text t = rapti_text_begin(text, sizeof text);
    rapti_text_putn(&t, near.best, near.best_n);
    rapti_text_put(&t, ", the nearest name, or ");
    lead = t.len < sizeof text / 2 ? t.len : 0;
  }
  memcpy(text + lead, "one of ", 7);
  lead += 7;
  rapti_list list = rapti_list_begin(text + lead, sizeof text - lead);
  const char *before = "";
  size_t before_len = 0;
  for (uint32_t i = 0; i < g->n_rows; i++) {
    const char *id = g->rows[i].row.id;
    size_t n = strcspn(id, ".");
    if (n == before_len && memcmp(id, before, n) == 0) continue;
    rapti_list_add(&list, id, n);
    before = id;
    before_len = n;
  }
  for (int i = 0; i < N_CLASSES; i++) rapti_list_add(&list, classes[i].name, strlen(classes[i].name));
  rapti_reason_got_bytes(why, name, len);
  rapti_reason_want(why, "%s", text);
}

static bool is_set(const char *names) { return names && *names; }

static rapt_status add_names(const char *text, int level, int field, const rapti_registry *g, rapti_name_set *set,
                             rapt_reason *why) {
  for (const char *s = text;; s++) {
    size_t len = strcspn(s, ",");
    if (len == 0 || set->n == RAPTI_MAX_NAMES) {
      rapti_syntax(why, field, text, strlen(text), (size_t)(s - text), "a name");
      if (len != 0) rapti_reason_want(why, "at most %d names", RAPTI_MAX_NAMES);
      return RAPT_ARG;
    }
    if (len > UINT16_MAX || !resolve(s, len, g, &set->name[set->n])) {
      rapti_reason_set(why, RAPT_CODE_UNKNOWN_NAME, field, -1, -1);
      if (why) name_unknown(s, len, g, why);
      return RAPT_ARG;
    }
    set->name[set->n++].level = (uint8_t)level;
    s += len;
    if (*s == '\0') return RAPT_OK;
  }
}

rapt_status rapti_policy_make(const rapti_settings levels[RAPTI_LEVELS], const rapti_registry *g, const char *origin,
                              rapti_policy *out, rapt_reason *why) {
  const char *require = NULL, *prefer = NULL;
  out->require.n = out->prefer.n = out->forbid.n = 0;
  out->require_level = out->prefer_level = out->memory_level = out->ref_level = RAPTI_BUILTIN;
  out->has_memory_limit = 0;
  out->memory_limit = 0;
  out->ref_limit = UINT64_C(1) << 31;
  out->threads = g->facts.threads > 0 ? (uint32_t)g->facts.threads : 1u;
  out->isa = g->facts.isa;
  out->origin = origin;
  rapt_status st = RAPT_OK;
  for (int i = RAPTI_BUILTIN; i < RAPTI_LEVELS && st == RAPT_OK; i++) {
    const rapti_settings *s = &levels[i];
    if (is_set(s->require)) { require = s->require; out->require_level = i; }
    if (is_set(s->prefer)) { prefer = s->prefer; out->prefer_level = i; }
    if (s->has_memory_limit) { out->has_memory_limit = 1; out->memory_limit = s->memory_limit; out->memory_level = i; }
    if (s->has_ref_limit) { out->ref_limit = s->ref_limit; out->ref_level = i; }
  }
  if (require) st = add_names(require, out->require_level, RAPT_FIELD_REQUIRE, g, &out->require, why);
  if (prefer && st == RAPT_OK) st = add_names(prefer, out->prefer_level, RAPT_FIELD_PREFER, g, &out->prefer, why);
  for (int i = RAPTI_BUILTIN; i < RAPTI_LEVELS && st == RAPT_OK; i++)
    if (is_set(levels[i].forbid)) st = add_names(levels[i].forbid, i, RAPT_FIELD_FORBID, g, &out->forbid, why);
  return st;
}
