/* SPDX-License-Identifier: Apache-2.0 */
/* Case files: read with a size cap, duplicate keys refused, fields checked. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

enum { FILE_MAX = 64 << 20, CASES_MAX = 100000 };

case_fault case_fault_now;

void case_bad(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(case_fault_now.text, sizeof case_fault_now.text, format, args);
  va_end(args);
  longjmp(case_fault_now.jump, 1);
}

static const char *const common[] = {"id", "record", "kind", "topic", "title", "note", "open", "needs"};
static const char *const of_call[] = {
    "dtype",    "shapes", "fill",    "shape_of", "strides",  "mask",        "bias",    "causal", "align",
    "offset",   "window", "lengths", "scale",    "softcap",  "sinks",       "dropout", "grads",  "prefill",
    "surround", "place",  "alias",   "readonly", "repeat",   "want",        "fault",   "refuse", "or_refuse",
    "tol",      "packed", "alibi",   "strict",   "mixed_kv", "sinks_dtype", "rank"};
static const char *const of_merge[] = {"parts", "want", "tol"};
static const char *const of_scenario[] = {"calls", "steps", "expect"};

static bool among(const char *s, const char *const *list, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(s, list[i])) return true;
  return false;
}

/* NULL, or what is wrong with the case. */
static bool check_case(const json_t *c, cli_str *error) {
  const char *id = json_string_value(json_object_get(c, "id")), *kind = json_string_value(json_object_get(c, "kind"));
  if (!id || !kind) {
    cli_str_add(error, "want id and kind");
    return false;
  }
  bool call = !strcmp(kind, "forward") || !strcmp(kind, "backward") || !strcmp(kind, "refuse");
  if (!call && strcmp(kind, "merge") && strcmp(kind, "scenario")) {
    cli_str_printf(error, "%s: kind '%s': want forward, backward, refuse, merge or scenario", id, kind);
    return false;
  }
  const char *const *own = call ? of_call : !strcmp(kind, "merge") ? of_merge : of_scenario;
  size_t n = call ? CLI_COUNT(of_call) : CLI_COUNT(of_merge);
  const char *name;
  json_t *value;
  json_object_foreach((json_t *)c, name, value) {
    if (among(name, common, CLI_COUNT(common)) || among(name, own, n)) continue;
    cli_str_printf(error, "%s: field '%s': is not known for the kind %s", id, name, kind);
    return false;
  }
  if (call && !json_object_get(c, strcmp(kind, "refuse") ? "want" : "refuse")) {
    cli_str_printf(error, "%s: field '%s': is missing", id, strcmp(kind, "refuse") ? "want" : "refuse");
    return false;
  }
  return true;
}

static bool check_root(case_file *f, cli_str *error) {
  f->cases = json_object_get(f->root, "cases");
  if (json_integer_value(json_object_get(f->root, "format")) != 1) {
    cli_str_add(error, "field 'format': want 1");
    return false;
  }
  if (!json_is_array(f->cases) || !json_array_size(f->cases) || json_array_size(f->cases) > CASES_MAX) {
    cli_str_printf(error, "field 'cases': want a list of 1 to %d cases", CASES_MAX);
    return false;
  }
  for (size_t i = 0; i < json_array_size(f->cases); i++) {
    cli_str why = {0};
    bool ok = check_case(json_array_get(f->cases, i), &why);
    if (!ok) cli_str_printf(error, "case %zu: %s", i, why.s);
    cli_str_free(&why);
    if (!ok) return false;
  }
  return true;
}

int case_file_load(case_file *f, const char *path) {
  cli_str error = {0};
  size_t n = 0;
  *f = (case_file){.path = path};
  char *text = cli_file_read(path, FILE_MAX, &n, &error);
  if (text) {
    json_error_t e;
    f->root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
    if (!f->root) cli_str_printf(&error, "line %d, column %d: %s", e.line, e.column, e.text);
    else check_root(f, &error);
  }
  free(text);
  bool ok = !error.n;
  if (!ok) cli_usage("FILE", path, "%s", error.s);
  cli_str_free(&error);
  return ok ? CLI_OK : CLI_USAGE;
}

const json_t *case_field(const json_t *object, const char *name) {
  const json_t *v = json_object_get(object, name);
  return json_is_null(v) ? NULL : v;
}

double case_number(const json_t *v, const char *what) {
  const char *s = json_string_value(v);
  if (json_is_number(v)) return json_number_value(v);
  if (json_is_boolean(v)) return json_is_true(v);
  if (s && !strcmp(s, "nan")) return NAN;
  if (s && (!strcmp(s, "inf") || !strcmp(s, "-inf"))) return *s == '-' ? -INFINITY : INFINITY;
  case_bad("%s: want a number, nan, inf or -inf", what);
}

int64_t case_int(const json_t *v, const char *what) {
  if (!json_is_integer(v)) case_bad("%s: want a whole number", what);
  return json_integer_value(v);
}

uint64_t case_whole(const json_t *v, const char *what) {
  const char *s = json_string_value(v);
  if (s) {
    char *end;
    errno = 0;
    uint64_t x = strtoull(s, &end, 10);
    if (*s >= '0' && *s <= '9' && !*end && !errno) return x;
  } else if (json_is_integer(v) && json_integer_value(v) >= 0) {
    return (uint64_t)json_integer_value(v);
  }
  case_bad("%s: want a whole number from 0 to 2^64-1", what);
}

const char *case_text(const json_t *v, const char *what) {
  if (!json_is_string(v)) case_bad("%s: want a text", what);
  return json_string_value(v);
}

int case_ints(const json_t *list, int64_t *out, int max, const char *what) {
  if (!json_is_array(list) || json_array_size(list) > (size_t)max)
    case_bad("%s: want a list of at most %d whole numbers", what, max);
  int n = (int)json_array_size(list);
  for (int i = 0; i < n; i++) out[i] = case_int(json_array_get(list, (size_t)i), what);
  return n;
}
