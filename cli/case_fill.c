/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes: the elements of a tensor from U, const, list, eye or expr, then `set`, then rounding to the dtype. */
#include <stdlib.h>
#include <string.h>

#include "case.h"

/* U(seed)[i] in [-1, 1), exact in fp32. */
static double uniform(uint32_t seed, uint32_t i) {
  uint32_t h = i * 2654435761u + seed * 2246822519u + 374761393u;
  h ^= h >> 15;
  h *= 2246822519u;
  h ^= h >> 13;
  h *= 3266489917u;
  h ^= h >> 16;
  return (double)(h >> 9) / 4194304.0 - 1.0;
}

typedef struct storage {
  int axis[4];
  int64_t size[4], start[4];
} storage;

/* The order, sizes and start of the flat index that U counts; default: the tensor's own. */
static void read_storage(const case_tensor *t, const json_t *j, storage *s) {
  const char *axes = j && case_field(j, "axes") ? case_text(case_field(j, "axes"), "storage.axes") : t->axes;
  const json_t *sizes = j ? case_field(j, "sizes") : NULL, *start = j ? case_field(j, "start") : NULL;
  memset(s, 0, sizeof *s);
  if ((int)strlen(axes) != t->rank) case_bad("storage.axes '%s': want the axes of '%s'", axes, t->axes);
  for (int i = 0; i < t->rank; i++) {
    const char *letter = strchr(t->axes, axes[i]);
    if (!letter || strchr(axes, axes[i]) != axes + i)
      case_bad("storage.axes '%s': want the axes of '%s'", axes, t->axes);
    s->axis[i] = (int)(letter - t->axes);
    s->size[i] = t->size[s->axis[i]];
  }
  if (sizes && case_ints(sizes, s->size, t->rank, "storage.sizes") != t->rank)
    case_bad("storage.sizes: want one an axis");
  if (start && case_ints(start, s->start, t->rank, "storage.start") != t->rank)
    case_bad("storage.start: want one an axis");
  for (int i = 0; i < t->rank; i++)
    if (s->size[i] != 1 && (s->start[i] < 0 || s->start[i] + t->size[s->axis[i]] > s->size[i]))
      case_bad("storage: is too small on the axis %c", axes[i]);
}

static void fill_uniform(case_tensor *t, const json_t *recipe) {
  uint32_t seed = (uint32_t)case_whole(case_field(recipe, "U"), "U");
  const json_t *below = case_field(recipe, "below"), *mul = case_field(recipe, "mul");
  double limit = below ? case_number(below, "below") : 0, factor = mul ? case_number(mul, "mul") : 1;
  storage s;
  read_storage(t, case_field(recipe, "storage"), &s);
  for (int64_t i = 0; i < t->count; i++) {
    int64_t index[4], flat = 0;
    case_indices(t, i, index);
    for (int k = 0; k < t->rank; k++) flat = flat * s.size[k] + (s.size[k] == 1 ? 0 : s.start[k] + index[s.axis[k]]);
    double x = uniform(seed, (uint32_t)flat);
    t->value[i] = below ? x < limit : factor * x;
  }
}

static void fill_list(case_tensor *t, const json_t *list) {
  if ((int64_t)json_array_size(list) != t->count)
    case_bad("list: has %zu elements, want %lld", json_array_size(list), (long long)t->count);
  for (int64_t i = 0; i < t->count; i++) t->value[i] = case_number(json_array_get(list, (size_t)i), "list");
}

static void parse_expression(case_expr *e, const json_t *text, const char *letters) {
  const char *s = case_text(text, "expr"), *error = case_expr_parse(e, s, letters);
  if (error) case_bad("expression '%.60s': %s", s, error);
}

static void fill_expression(case_tensor *t, const json_t *text) {
  case_expr e;
  parse_expression(&e, text, t->axes);
  for (int64_t i = 0; i < t->count; i++) {
    int64_t index[4] = {0};
    case_indices(t, i, index);
    t->value[i] = case_expr_value(&e, index);
  }
}

static void set_where(case_tensor *t, const json_t *where, double value) {
  case_expr e;
  parse_expression(&e, where, t->axes);
  for (int64_t i = 0; i < t->count; i++) {
    int64_t index[4] = {0};
    case_indices(t, i, index);
    if (case_expr_value(&e, index) != 0) t->value[i] = value;
  }
}

static void set_at(case_tensor *t, const json_t *lead, double value) {
  int64_t index[4], first = 0;
  int n = case_ints(lead, index, t->rank, "at");
  for (int i = 0; i < n; i++) {
    if (index[i] < 0 || index[i] >= t->size[i])
      case_bad("at: index %lld is outside 0..%lld", (long long)index[i], (long long)t->size[i] - 1);
    first += index[i] * case_span(t, i + 1);
  }
  for (int64_t i = 0; i < case_span(t, n); i++) t->value[first + i] = value;
}

static void apply_set(case_tensor *t, const json_t *set) {
  size_t i, k;
  const json_t *one, *lead;
  json_array_foreach(set, i, one) {
    double value = case_number(case_field(one, "value"), "set.value");
    if (case_field(one, "where")) set_where(t, case_field(one, "where"), value);
    json_array_foreach(case_field(one, "at"), k, lead) set_at(t, lead, value);
  }
}

void case_fill(case_tensor *t, const json_t *recipe) {
  const json_t *expr = case_field(recipe, "expr") ? case_field(recipe, "expr") : case_field(recipe, "keep");
  t->value = cli_alloc((size_t)t->count + 1, sizeof *t->value);
  if (case_field(recipe, "U")) {
    fill_uniform(t, recipe);
  } else if (case_field(recipe, "const")) {
    double x = case_number(case_field(recipe, "const"), "const");
    for (int64_t i = 0; i < t->count; i++) t->value[i] = x;
  } else if (case_field(recipe, "list")) {
    fill_list(t, case_field(recipe, "list"));
  } else if (case_field(recipe, "eye")) {
    for (int64_t i = 0; i < t->count; i++) {
      int64_t index[4];
      case_indices(t, i, index);
      t->value[i] = t->rank > 1 && index[t->rank - 1] == index[t->rank - 2];
    }
  } else if (expr) {
    fill_expression(t, expr);
  } else {
    case_bad("recipe: want one of U, const, list, eye, expr");
  }
  apply_set(t, case_field(recipe, "set"));
  const json_t *byte = case_field(recipe, "true_byte");
  for (int64_t i = 0; i < t->count; i++) {
    if (case_field(recipe, "keep") || case_field(recipe, "below"))
      t->value[i] = t->value[i] != 0 ? byte ? case_number(byte, "true_byte") : 1 : 0;
    t->value[i] = cli_round(t->dtype, t->value[i]);
  }
}
