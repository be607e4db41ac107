/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of `want`. Values are compared as doubles; a dtype's bits and its doubles are one to one, NaN aside. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

typedef struct check {
  case_suite *s;
  size_t i, slot;
  case_call *c;
  case_result *r;
  const json_t *want;
  double tol;
  cli_str *text;
} check;

static void fail(const check *k, const char *format, ...) CLI_PRINTF(2, 3);
static void fail(const check *k, const char *format, ...) {
  char line[300];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  cli_str_printf(k->text, "%s\n", line);
}

static bool close_to(double x, double y, double tol) { return x == y || (isnan(x) && isnan(y)) || fabs(x - y) <= tol; }

/* ---- What a check speaks of ---- */

typedef struct piece {
  const case_tensor *t;
  const char *of;
  int64_t first, n;
} piece;

static bool is_gradient(const char *of) { return *of == 'd'; }

/* The elements behind `at` and `rows` of a tensor, as a range of flat indices. */
static piece pick(const json_t *want, const case_call *c, const char *of) {
  int i = !strcmp(of, "out") ? CASE_OUT : !strcmp(of, "lse") ? CASE_LSE : -1;
  if (i < 0) case_bad("of: '%s' is no output", of);
  const case_tensor *t = &c->t[i];
  const json_t *at = case_field(want, "at"), *rows = case_field(want, "rows");
  int64_t index[4], ends[2], first = 0;
  int n = at ? case_ints(at, index, t->rank, "at") : 0;
  for (int a = 0; a < n; a++) {
    if (index[a] < 0 || index[a] >= t->size[a]) case_bad("at: index %lld of %s is outside", (long long)index[a], of);
    first += index[a] * case_span(t, a + 1);
  }
  if (!rows) return (piece){t, of, first, case_span(t, n)};
  if (n >= t->rank || case_ints(rows, ends, 2, "rows") != 2 || ends[0] < 0 || ends[1] < ends[0] ||
      ends[1] >= t->size[n])
    case_bad("rows: want the first and the last on the next axis");
  int64_t step = case_span(t, n + 1);
  return (piece){t, of, first + ends[0] * step, (ends[1] - ends[0] + 1) * step};
}

static const double *values_of(const case_result *r, const char *of) { return !strcmp(of, "lse") ? r->lse : r->out; }

/* ---- is ---- */

static void check_list(const check *k, const piece *p, const double *x, const json_t *list) {
  bool exact = json_is_true(case_field(k->want, "exact")), zeros = case_field(k->want, "zeros") != NULL;
  const json_t *rtol = case_field(k->want, "rtol");
  if ((int64_t)json_array_size(list) > p->n)
    case_bad("is: %zu values, %lld elements", json_array_size(list), (long long)p->n);
  for (size_t i = 0; i < json_array_size(list); i++) {
    double want = case_number(json_array_get(list, i), "is"), tol = k->tol;
    if (rtol) tol = case_number(rtol, "rtol") * fabs(want);
    if (exact) want = cli_round(p->t->dtype, want);
    if (exact || (zeros && want == 0)) tol = 0;
    if (!close_to(x[i], want, tol))
      fail(k, "%s, element %zu: is %.9g, want %.9g within %.2g", p->of, i, x[i], want, tol);
  }
}

static void check_oracle(const check *k, const piece *p, const double *x) {
  const case_call *c = k->c;
  double *out = cli_alloc((size_t)c->t[CASE_OUT].count + 1, sizeof *out),
         *lse = cli_alloc((size_t)c->t[CASE_LSE].count + 1, sizeof *lse);
  if (case_oracle(c, out, lse)) {
    const double *want = (!strcmp(p->of, "lse") ? lse : out) + p->first;
    for (int64_t i = 0; i < p->n; i++)
      if (!close_to(x[i], want[i], k->tol)) {
        fail(k, "%s, element %lld: is %.9g, the oracle says %.9g within %.2g", p->of, (long long)i, x[i], want[i],
             k->tol);
        break;
      }
  }
  free(out);
  free(lse);
}

static void check_is(const check *k, const piece *p, const double *x) {
  const json_t *is = case_field(k->want, "is");
  const char *word = json_string_value(is);
  if (!word) {
    check_list(k, p, x, is);
  } else if (!strcmp(word, "oracle")) {
    check_oracle(k, p, x);
  } else {
    double y = !strcmp(word, "zero") ? 0 : case_number(is, "is");
    for (int64_t i = 0; i < p->n; i++)
      if (x[i] != y) {
        fail(k, "%s, element %lld: is %.9g, want %s", p->of, (long long)i, x[i], word);
        return;
      }
  }
}

/* ---- equals, expr, only, finite, shape ---- */

static void check_equals(const check *k, const piece *p, const double *x) {
  const json_t *e = case_field(k->want, "equals");
  int i = case_tensor_find(case_text(json_array_get(e, 0), "equals"));
  if (i < 0 || i > CASE_V) case_bad("equals: want q, k or v first");
  const case_tensor *t = &k->c->t[i];
  int64_t first = 0;
  for (size_t a = 1; a < json_array_size(e); a++)
    first += case_int(json_array_get(e, a), "equals") * case_span(t, (int)a);
  if (first < 0 || first + p->n > t->count) case_bad("equals: is outside of %s", case_tensor_names[i]);
  for (int64_t n = 0; n < p->n; n++)
    if (!close_to(x[n], t->value[first + n], 0)) {
      fail(k, "%s, element %lld: is %.9g, want the row of %s: %.9g", p->of, (long long)n, x[n], case_tensor_names[i],
           t->value[first + n]);
      return;
    }
}

static void check_expr(const check *k, const piece *p, const double *x) {
  case_expr e;
  const char *s = case_text(case_field(k->want, "expr"), "expr");
  const char *error = case_expr_parse(&e, s, "bhid");
  if (error) case_bad("expression '%.60s': %s", s, error);
  for (int64_t i = 0; i < p->n; i++) {
    int64_t index[4] = {0};
    case_indices(p->t, p->first + i, index);
    double want = cli_round(p->t->dtype, case_expr_value(&e, index));
    if (!close_to(x[i], want, json_is_true(case_field(k->want, "exact")) ? 0 : k->tol)) {
      fail(k, "%s, element %lld: is %.9g, want %s = %.9g", p->of, (long long)i, x[i], s, want);
      return;
    }
  }
}

static void check_only(const check *k, const piece *p, const double *x) {
  const json_t *only = case_field(k->want, "only");
  for (int64_t i = 0; i < p->n; i++) {
    bool found = false;
    for (size_t n = 0; n < json_array_size(only); n++)
      found |= close_to(x[i], case_number(json_array_get(only, n), "only"), k->tol);
    if (!found) {
      fail(k, "%s, element %lld: %.9g is not among the allowed values", p->of, (long long)i, x[i]);
      return;
    }
  }
}

static void check_finite(const check *k, const piece *p, const double *x) {
  for (int64_t i = 0; i < p->n; i++)
    if (!isfinite(x[i])) {
      fail(k, "%s, element %lld: is %g, want a finite number", p->of, (long long)i, x[i]);
      return;
    }
}

static void check_shape(const check *k, const piece *p) {
  int64_t size[4];
  int n = case_ints(case_field(k->want, "shape"), size, 4, "shape");
  bool same = n == p->t->rank;
  for (int i = 0; i < n && same; i++) same = size[i] == p->t->size[i];
  if (!same) fail(k, "%s: its shape is another", p->of);
}

/* ---- values and bounds ---- */

/* Words stand for what no number says; README, "Values and bounds". */
static bool value_fits(double x, const json_t *want, double bound) {
  const char *word = json_string_value(want);
  if (!word) return close_to(x, json_number_value(want), bound);
  if (!strcmp(word, "any")) return true;
  if (!strcmp(word, "finite")) return isfinite(x);
  if (!strcmp(word, "nonfinite")) return !isfinite(x);
  if (!strcmp(word, "nan/inf")) return isnan(x) || x == INFINITY;
  return close_to(x, case_number(want, "values"), 0);
}

static void check_values(const check *k, const char *of) {
  const json_t *w = k->want, *values = case_field(w, "values"), *bound = case_field(w, "bound"),
               *lead = case_field(w, "lead"), *cols = case_field(w, "cols");
  piece all = pick(w, k->c, of);
  const case_tensor *t = all.t;
  int rank = !strcmp(of, "lse") ? t->rank : t->rank - 1;
  int64_t width = case_span(t, rank), col[4096];
  int n_cols = cols ? case_ints(cols, col, (int)CLI_COUNT(col), "cols") : (int)width;
  int64_t vectors = lead ? (int64_t)json_array_size(lead) : width ? t->count / width : 0;
  if ((int64_t)json_array_size(values) != vectors * n_cols ||
      (json_is_array(bound) && json_array_size(bound) != json_array_size(values)))
    case_bad("values: %zu of them, want %lld and as many bounds", json_array_size(values), (long long)vectors * n_cols);
  const double *x = values_of(k->r, of);
  for (int64_t v = 0; v < vectors; v++) {
    int64_t index[4], first = v * width;
    if (lead) {
      const json_t *l = json_array_get(lead, (size_t)v);
      if (case_ints(l, index, 4, "lead") != rank) case_bad("lead: want %d indices", rank);
      first = 0;
      for (int a = 0; a < rank; a++) first += index[a] * case_span(t, a + 1);
    }
    for (int d = 0; d < n_cols; d++) {
      size_t at = (size_t)(v * n_cols + d);
      int64_t element = first + (cols ? col[d] : d);
      double b = case_number(json_is_array(bound) ? json_array_get(bound, at) : bound, "bound");
      if (element < 0 || element >= t->count) case_bad("lead or cols: outside of %s", of);
      if (value_fits(x[element], json_array_get(values, at), b)) continue;
      char *said = json_dumps(json_array_get(values, at), JSON_ENCODE_ANY);
      fail(k, "%s, value %zu: is %.17g, want %s within %.3g", of, at, x[element], said ? said : "?", b);
      free(said);
      return;
    }
  }
}

/* ---- Other calls ---- */

/* The same values and options, only memory differs (S14). */
static bool only_memory_differs(const case_call *a, const case_call *b) {
  static const char *const options[] = {"dtype",   "shapes", "causal",   "align",   "offset", "window",
                                        "lengths", "alibi",  "scale",    "softcap", "sinks",  "sinks_dtype",
                                        "dropout", "strict", "mixed_kv", "packed"};
  for (size_t i = 0; i < CLI_COUNT(options); i++) {
    const json_t *x = case_field(a->json, options[i]), *y = case_field(b->json, options[i]);
    if ((x || y) && !json_equal(x, y)) return false;
  }
  for (int i = CASE_Q; i <= CASE_BIAS; i++) {
    const case_tensor *x = &a->t[i], *y = &b->t[i];
    if (x->dtype != y->dtype || x->rank != y->rank || memcmp(x->size, y->size, sizeof x->size)) return false;
    if (x->dtype && !case_bits_equal(x->value, y->value, x->count)) return false;
  }
  return true;
}

static void compare_bits(const check *k, const char *of, const double *x, const double *y, int64_t n, bool bits,
                         const char *what) {
  for (int64_t i = 0; i < n; i++) {
    if (bits ? case_bits_equal(x + i, y + i, 1) : close_to(x[i], y[i], k->tol)) continue;
    fail(k, "%s, element %lld: is %.17g, %s gives %.17g, want %s", of, (long long)i, x[i], what, y[i],
         bits ? "the same bits" : "them close");
    return;
  }
}

/* The same call on dense tensors. */
static void check_dense(const check *k, const char *what) {
  json_t *copy = json_copy((json_t *)k->c->json);
  json_object_del(copy, "strides");
  json_object_del(copy, "surround");
  case_call dense;
  case_build(&dense, copy);
  const case_tensor *o = &k->c->t[CASE_OUT], *l = &k->c->t[CASE_LSE];
  double *out = cli_alloc((size_t)o->count + 1, sizeof *out), *lse = cli_alloc((size_t)l->count + 1, sizeof *lse);
  if (dense.built == RAPT_OK && case_place(&dense)) {
    if (case_again(k->s, &dense, k->slot, out, lse) != RAPT_OK) fail(k, "%s: is not served", what);
    else {
      compare_bits(k, "out", k->r->out, out, o->count, true, what);
      compare_bits(k, "lse", k->r->lse, lse, l->count, true, what);
    }
  }
  free(out);
  free(lse);
  case_free(&dense);
  json_decref(copy);
}

static void check_repeat(const check *k) {
  const case_tensor *o = &k->c->t[CASE_OUT], *l = &k->c->t[CASE_LSE];
  double *out = cli_alloc((size_t)o->count + 1, sizeof *out), *lse = cli_alloc((size_t)l->count + 1, sizeof *lse);
  int64_t n = case_field(k->c->json, "repeat") ? case_int(case_field(k->c->json, "repeat"), "repeat") : 2;
  for (int64_t i = 1; i < n && i < 100; i++) {
    if (case_again(k->s, k->c, k->slot, out, lse) != RAPT_OK) fail(k, "call %lld is not served", (long long)i + 1);
    compare_bits(k, "out", k->r->out, out, o->count, true, "the next call");
    compare_bits(k, "lse", k->r->lse, lse, l->count, true, "the next call");
  }
  free(out);
  free(lse);
}

static void check_same(const check *k) {
  const char *id = case_text(case_field(k->want, "same_bits_as"), "same_bits_as"),
             *only = json_string_value(case_field(k->want, "of"));
  if (!strcmp(id, "packed")) {
    check_dense(k, "the packed copy");
    return;
  }
  if (!strcmp(id, "repeat")) {
    check_repeat(k);
    return;
  }
  size_t other = case_find(k->s, id);
  case_result *r = case_run(k->s, other, k->slot);
  if (r->skip || r->status != RAPT_OK) return;
  const case_call *c = case_get(k->s, other);
  bool bits = !strcmp(r->kernel, k->r->kernel) || only_memory_differs(k->c, c);
  const char *names[] = {"out", "lse"};
  for (int n = 0; n < 2; n++) {
    if (only && strcmp(only, names[n])) continue;
    piece p = pick(k->want, k->c, names[n]), q = pick(k->want, c, names[n]);
    if (p.n != q.n) case_bad("same_bits_as: '%s' has another shape", id);
    compare_bits(k, names[n], values_of(k->r, names[n]) + p.first, values_of(r, names[n]) + q.first, p.n, bits, id);
  }
}

/* Half a unit of the last digit that was written, for numbers like 0.93 or 0.0063. */
static double last_digit(double x) {
  char s[40];
  snprintf(s, sizeof s, "%.12g", x);
  const char *dot = strchr(s, '.');
  return dot ? 0.5001 * pow(10, -(double)strlen(dot + 1)) : 0.5001;
}

static void check_differs(const check *k) {
  const char *id = case_text(case_field(k->want, "differs_from"), "differs_from");
  const json_t *by = case_field(k->want, "by");
  size_t other = case_find(k->s, id);
  case_result *r = case_run(k->s, other, k->slot);
  if (r->skip || r->status != RAPT_OK) return;
  piece p = pick(k->want, k->c, "out"), q = pick(k->want, case_get(k->s, other), "out");
  if (p.n != q.n) case_bad("differs_from: '%s' has another shape", id);
  double most = 0;
  for (int64_t i = 0; i < p.n; i++) most = fmax(most, fabs(k->r->out[p.first + i] - r->out[q.first + i]));
  if (!(most > k->tol)) fail(k, "out: differs from %s by %g, want more than %g", id, most, k->tol);
  if (by && fabs(most - case_number(by, "by")) > last_digit(case_number(by, "by")) + 2 * k->tol)
    fail(k, "out: differs from %s by %g, want %g", id, most, case_number(by, "by"));
}

static void check_minus(const check *k, const piece *p, const double *x) {
  const char *id = case_text(case_field(k->want, "minus"), "minus");
  size_t other = case_find(k->s, id);
  case_result *r = case_run(k->s, other, k->slot);
  if (r->skip || r->status != RAPT_OK) return;
  piece q = pick(k->want, case_get(k->s, other), p->of);
  const json_t *is = case_field(k->want, "is");
  for (size_t i = 0; i < json_array_size(is) && (int64_t)i < p->n && (int64_t)i < q.n; i++) {
    double d = x[i] - values_of(r, p->of)[q.first + (int64_t)i], want = case_number(json_array_get(is, i), "is");
    if (!close_to(d, want, k->tol)) fail(k, "%s, element %zu: minus %s is %.9g, want %.9g", p->of, i, id, d, want);
  }
}

typedef struct ignored {
  int tensor;
  case_expr where;
} ignored;

/* The named places of q, k, v hold x. */
static void poison(const case_call *c, const ignored *places, int n, double x) {
  for (int i = 0; i < n; i++) {
    const case_tensor *t = &c->t[places[i].tensor];
    double *value = cli_alloc((size_t)t->count + 1, sizeof *value);
    for (int64_t f = 0; f < t->count; f++) {
      int64_t index[4] = {0};
      case_indices(t, f, index);
      value[f] = case_expr_value(&places[i].where, index) != 0 ? x : t->value[f];
    }
    case_tensor_scatter(t, value);
    free(value);
  }
}

static int read_ignored(const json_t *list, ignored *places) {
  const char *name;
  json_t *where;
  int n = 0;
  json_object_foreach((json_t *)list, name, where) {
    places[n].tensor = case_tensor_find(name);
    if (places[n].tensor < 0 || places[n].tensor > CASE_V ||
        case_expr_parse(&places[n].where, case_text(where, "ignores"), "bhsd"))
      case_bad("ignores: want expressions for q, k, v");
    n++;                                                     /* keys are unique: at most three */
  }
  return n;
}

/* Any values at the named places, NaN and infinities included, leave the bits of out alone (M14). */
static void check_ignores(const check *k) {
  static const double values[] = {NAN, INFINITY, -INFINITY, 1e30};
  const case_tensor *o = &k->c->t[CASE_OUT], *l = &k->c->t[CASE_LSE];
  const json_t *rows = case_field(k->want, "rows");
  int64_t ends[2] = {0, o->size[2] - 1};
  ignored places[3];
  if (k->c->packed || case_field(k->c->json, "readonly") || case_field(k->c->json, "alias") ||
      (rows && case_ints(rows, ends, 2, "rows") != 2))
    case_bad("ignores: want a dense call with memory of its own that may be written, and two numbers as rows");
  int n_places = read_ignored(case_field(k->want, "ignores"), places);
  double *out = cli_alloc((size_t)o->count + 1, sizeof *out), *lse = cli_alloc((size_t)l->count + 1, sizeof *lse);
  for (size_t n = 0; n < CLI_COUNT(values); n++) {
    poison(k->c, places, n_places, values[n]);
    if (case_again(k->s, k->c, k->slot, out, lse) != RAPT_OK)
      fail(k, "ignores: the call is not served with %g there", values[n]);
    for (int64_t f = 0; f < o->count; f++) {
      int64_t index[4];
      case_indices(o, f, index);
      if (index[2] < ends[0] || index[2] > ends[1] || case_bits_equal(out + f, k->r->out + f, 1)) continue;
      fail(k, "out, element %lld: %g at invisible places changes its bits", (long long)f, values[n]);
      break;
    }
    for (int i = CASE_Q; i <= CASE_V; i++) case_tensor_scatter(&k->c->t[i], k->c->t[i].value);
  }
  free(out);
  free(lse);
}

/* ---- All of a case ---- */

static void check_one(const check *k) {
  const json_t *w = k->want;
  const char *of = case_field(w, "of") ? case_text(case_field(w, "of"), "of") : "out";
  if (is_gradient(of)) return;                         /* this version has no backward */
  if (case_field(w, "values")) check_values(k, of);
  else if (case_field(w, "same_bits_as")) check_same(k);
  else if (case_field(w, "differs_from")) check_differs(k);
  else if (case_field(w, "ignores")) check_ignores(k);
  else if (case_field(w, "unchanged")) return;         /* input bytes are compared after every call */
  else {
    piece p = pick(w, k->c, of);
    const double *x = values_of(k->r, of) + p.first;
    if (case_field(w, "shape")) check_shape(k, &p);
    else if (case_field(w, "minus")) check_minus(k, &p, x);
    else if (case_field(w, "equals")) check_equals(k, &p, x);
    else if (case_field(w, "expr")) check_expr(k, &p, x);
    else if (case_field(w, "only")) check_only(k, &p, x);
    else if (case_field(w, "finite")) check_finite(k, &p, x);
    else if (case_field(w, "is")) check_is(k, &p, x);
    else case_bad("want: a check is not known");
  }
}

void case_check(case_suite *s, size_t i, size_t slot, cli_str *text) {
  check k = {s, i, slot, case_get(s, i), case_run(s, i, slot), NULL, 0, text};
  const json_t *tol = case_field(k.c->json, "tol");
  size_t n;
  json_array_foreach(case_field(k.c->json, "want"), n, k.want) {
    const json_t *own = case_field(k.want, "tol");
    k.tol = own ? case_number(own, "tol") : tol ? case_number(tol, "tol") : 0;
    check_one(&k);
  }
  if (case_field(k.c->json, "strides")) check_dense(&k, "the packed copy");       /* S14 */
}
