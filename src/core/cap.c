/* SPDX-License-Identifier: Apache-2.0 */
/* A row's checks and the parsing of its texts, once, at registration. */
#include "core/decide.h"

#include <string.h>

typedef struct word { const char *s; size_t n; } word;

/* The next word of a text, words being separated by sep; false at the end. */
static bool next_word(const char **text, char sep, word *w) {
  const char *s = *text;
  while (*s == sep) s++;
  if (*s == '\0') return false;
  const char *end = strchr(s, sep);
  w->s = s;
  w->n = end ? (size_t)(end - s) : strlen(s);
  *text = s + w->n;
  return true;
}

static rapt_status bad_text(rapt_reason *why, const char *got, const char *want) {
  rapti_reason_set(why, RAPT_CODE_SYNTAX, RAPT_FIELD_BACKEND, -1, -1);
  rapti_reason_got(why, "%s", got);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

static rapt_status bad_field(rapt_reason *why, const char *got, const char *want) {
  rapti_reason_set(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_BACKEND, -1, -1);
  rapti_reason_got(why, "%s", got);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

static rapt_status find_package(const char *s, size_t n, int32_t *package, rapt_reason *why) {
  *package = rapti_package_find(s, n);
  if (*package >= 0) return RAPT_OK;
  char name[64];
  rapti_text t = rapti_text_begin(name, sizeof name);
  rapti_text_putn(&t, s, n);
  rapti_text_end(&t);
  rapti_reason_set(why, RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_BACKEND, -1, -1);
  rapti_reason_got(why, "%s", name);
  rapti_reason_want(why, "a package of the facts string, such as torch or flash-attn");
  return RAPT_ARG;
}

static bool is_runtime(int32_t package) {
  const char *name = rapti_package_name(package);
  return strcmp(name, "cuda") == 0 || strcmp(name, "rocm") == 0;
}

static size_t operator_parse(const char *s, size_t n, int8_t *op) {
  size_t len = n > 1 && s[1] == '=' ? 2 : 1;
  if (n && s[0] == '>') *op = len == 2 ? RAPTI_GE : RAPTI_GT;
  else if (n && s[0] == '<') *op = len == 2 ? RAPTI_LE : RAPTI_LT;
  else if (n && s[0] == '=') { *op = RAPTI_EQ; len = 1; }
  else len = 0;
  return len;
}

/* "flash-attn>=2.8.0,<2.8.1 torch>=2.2": bounds of one package are joined by commas. */
static rapt_status parse_bounds(const char *text, rapti_version_bound *bounds, int32_t *count, rapt_reason *why) {
  const char *rest = text;
  word w;
  *count = 0;
  while (next_word(&rest, ' ', &w)) {
    size_t name = 0;
    int32_t package;
    while (name < w.n && !strchr("<>=", w.s[name])) name++;
    rapt_status st = find_package(w.s, name, &package, why);
    if (st != RAPT_OK) return st;
    for (size_t i = name; i < w.n;) {
      rapti_version_bound b = {.package = (int16_t)package, .runtime = is_runtime(package)};
      size_t op = operator_parse(w.s + i, w.n - i, &b.op), version = i + op, end = version;
      while (end < w.n && w.s[end] != ',') end++;
      b.version = op ? rapti_version_pack(w.s + version, end - version, NULL) : 0;
      if (b.version == 0) return bad_text(why, text, "PACKAGE with >= > < <= or = and a version");
      if (*count == RAPTI_MAX_BOUNDS) return bad_text(why, text, "fewer versions in one row");
      b.more = end < w.n;
      bounds[(*count)++] = b;
      i = end < w.n ? end + 1 : end;
    }
    if (name == w.n || w.s[w.n - 1] == ',') return bad_text(why, text, "PACKAGE with >= > < <= or = and a version");
  }
  return RAPT_OK;
}

/* "9.0" or "12.x". */
static bool parse_cc(const char *s, size_t n, uint16_t *low, uint16_t *high) {
  int32_t cc;
  if (n > 2 && s[n - 2] == '.' && s[n - 1] == 'x') {
    int64_t major;
    if (!rapti_parse_int(s, n - 2, &major) || major < 0 || major > 255) return false;
    *low = (uint16_t)(major << 8);
    *high = (uint16_t)(*low | 0xff);
    return true;
  }
  if (!rapti_cc_parse(s, n, &cc)) return false;
  *low = *high = (uint16_t)cc;
  return true;
}

static rapt_status parse_cc_list(const char *text, rapti_cap *cap, rapt_reason *why) {
  const char *rest = text;
  word w;
  while (next_word(&rest, ' ', &w)) {
    rapti_cc_range r = {0};
    if (w.s[w.n - 1] == '?') { r.unknown = 1; w.n--; }
    const char *dash = memchr(w.s, '-', w.n);
    size_t first = dash ? (size_t)(dash - w.s) : w.n;
    uint16_t unused;
    bool good = parse_cc(w.s, first, &r.low, &r.high);
    if (dash) good = good && parse_cc(dash + 1, w.n - first - 1, &unused, &r.high) && r.low <= r.high;
    if (!good) return bad_text(why, text, "generations as in \"8.0-9.0 12.x\"");
    if (cap->n_cc == RAPTI_MAX_CC) return bad_text(why, text, "fewer generations in one row");
    cap->cc[cap->n_cc++] = r;
  }
  return RAPT_OK;
}

static bool good_id(const char *id) {
  if (!id || !*id || *id == '.') return false;
  for (const char *s = id; *s; s++) {
    bool ok = (*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9') || *s == '_' || *s == '.';
    if (!ok || (*s == '.' && (s[1] == '.' || s[1] == '\0'))) return false;
  }
  return true;
}

#define KNOWN_CAN ((RAPT_CAN_CAUSAL_WIDE << 1) - 1)
#define KNOWN_CLASSES \
  (RAPT_CLASS_REFERENCE | RAPT_CLASS_FUSED | RAPT_CLASS_FLASH | RAPT_CLASS_HOST | RAPT_CLASS_APPROX)

static bool in(int32_t v, int32_t low, int32_t high) { return v >= low && v <= high; }

static rapt_status check_values(const rapt_row *row, rapt_reason *why) {
  if (!good_id(row->id)) return bad_text(why, row->id ? row->id : "", "an id of a-z, 0-9, \".\" and \"_\"");
  const int32_t positive[] = {row->d_min, row->d_max, row->d_step, row->d_unknown_above, row->d_max_backward,
                              row->d_step_backward, row->dv_max, row->dv_step, row->max_b, row->max_hq, row->max_sq,
                              row->max_skv, row->min_sq, row->min_skv, row->ptr_align, row->bias_stride_bytes};
  for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
    if (positive[i] < 0) return bad_field(why, row->id, "limits that are not negative");
  if ((row->can | row->unknown) & ~KNOWN_CAN) return bad_field(why, row->id, "capability bits of this version");
  if (row->kinds == 0 || row->kinds >= RAPT_KIND(RAPT_META + 1)) return bad_field(why, row->id, "device kinds");
  if (row->classes & ~KNOWN_CLASSES) return bad_field(why, row->id, "classes of this version");
  if (row->dtypes >= RAPT_DT(RAPT_FP8E5M2 + 1)) return bad_field(why, row->id, "dtypes of this version");
  if (!in(row->place, RAPT_PLACE_OPT_IN, RAPT_PLACE_BINDING)) return bad_field(why, row->id, "a place");
  if (!in(row->accuracy, RAPT_EXACT, RAPT_APPROX)) return bad_field(why, row->id, "an accuracy");
  if (!in(row->dv_rule, RAPT_DV_SAME, RAPT_DV_ANY)) return bad_field(why, row->id, "a dv_rule");
  if (!in(row->offset_bits, 0, 63) || row->mem_per_score < -1) return bad_field(why, row->id, "limits in range");
  if (!in(row->determinism, RAPT_DET_NONE, RAPT_DET_BATCH) ||
      !in(row->determinism_backward, RAPT_DET_NONE, RAPT_DET_BATCH))
    return bad_field(why, row->id, "a determinism level");
  if (row->n_dims && !row->dims) return bad_field(why, row->id, "the list of n_dims pairs");
  return RAPT_OK;
}

/* Takes a row of another size: a shorter one is padded with zeros, a longer one must end in zeros. */
static rapt_status copy_row(const rapt_row *row, rapt_row *to, rapt_reason *why) {
  const unsigned char *bytes = (const unsigned char *)row;
  bool good = row->struct_size >= offsetof(rapt_row, dtypes);
  for (size_t i = sizeof *to; good && i < row->struct_size; i++) good = bytes[i] == 0;
  if (!good) {
    rapti_reason_set(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE, -1, -1);
    rapti_reason_got(why, "a rapt_row of %zu bytes", (size_t)row->struct_size);
    rapti_reason_want(why, "this version's has %zu bytes; what is longer must be zero behind them", sizeof *to);
    return RAPT_ABI;
  }
  memset(to, 0, sizeof *to);
  memcpy(to, row, row->struct_size < sizeof *to ? row->struct_size : sizeof *to);
  to->struct_size = RAPT_ROW_SIZE;
  if (!to->display) to->display = to->id;
  if (!to->kernel) to->kernel = to->id;
  return RAPT_OK;
}

rapt_status rapti_cap_compile(const rapt_row *row, rapti_cap *cap, rapt_reason *why) {
  memset(cap, 0, sizeof *cap);
  cap->package = cap->cc_built = cap->isa = -1;
  rapt_status st = copy_row(row, &cap->row, why);
  if (st == RAPT_OK) st = check_values(&cap->row, why);
  const rapt_row *r = &cap->row;
  if (st == RAPT_OK && r->package) st = find_package(r->package, strlen(r->package), &cap->package, why);
  if (st == RAPT_OK && r->cc_built) st = find_package(r->cc_built, strlen(r->cc_built), &cap->cc_built, why);
  if (st == RAPT_OK && r->needs) st = parse_bounds(r->needs, cap->needs, &cap->n_needs, why);
  if (st == RAPT_OK && r->known_bad) st = parse_bounds(r->known_bad, cap->bad, &cap->n_bad, why);
  if (st == RAPT_OK && r->cc) st = parse_cc_list(r->cc, cap, why);
  if (st == RAPT_OK && r->isa) {
    cap->isa = rapti_isa_find(r->isa, strlen(r->isa));
    if (cap->isa < 0) st = bad_text(why, r->isa, "scalar, avx2, avx512, avx512bf16, neon or neon_bf16");
  }
  return st;
}
