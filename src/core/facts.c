/* SPDX-License-Identifier: Apache-2.0 */
/* The facts string: one device, its packages, their versions. A key that is not there is a missing fact (D4). */
#include "core/core.h"

#include <string.h>

#define MAX_TEXT 4096

void rapti_facts_init(rapt_facts *f, int kind) {
  memset(f, 0, sizeof *f);
  f->kind = kind;
  f->cc = f->isa = f->threads = -1;
  f->mem = -1;
  for (int i = 0; i < RAPTI_PACKAGES; i++) f->package[i].n_cc = -1;
}

/* ---- Values ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* Letters, digits and the marks of version, symbol and architecture names. */
static bool is_word(const char *s, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!is_digit(s[i]) && !is_alpha(s[i]) && !memchr(".+_-:", s[i], 5)) return false;
  return n > 0;
}

/* A pre-release: its suffix starts with a word other than "post", or has "dev" in it. */
static bool is_beta(const char *s, size_t n) {
  const char *local = memchr(s, '+', n);
  size_t end = local ? (size_t)(local - s) : n, word = 0;
  while (word < end && !is_alpha(s[word])) word++;
  if (word == end) return false;
  if (end - word < 4 || memcmp(s + word, "post", 4)) return true;
  return memmem(s, end, "dev", 3) != NULL;
}

uint64_t rapti_version_pack(const char *s, size_t n, int32_t *beta) {
  uint64_t packed = 0;
  size_t i = 0;
  if (beta) *beta = 0;
  if (!is_word(s, n)) return 0;
  for (int field = 0; field < 4; field++) {
    bool more = field == 0 || (i + 1 < n && s[i] == '.' && is_digit(s[i + 1]));
    uint64_t number = 0;
    if (more) {
      i += field > 0;
      if (!is_digit(s[i])) return 0;
      for (; i < n && is_digit(s[i]); i++)
        if ((number = number * 10 + (uint64_t)(s[i] - '0')) > 65535) return 0;
    }
    packed = packed << 16 | number;
  }
  if (i + 1 < n && s[i] == '.' && is_digit(s[i + 1])) return 0;      /* a fifth number */
  if (beta) *beta = is_beta(s + i, n - i);
  return packed;
}

bool rapti_cc_parse(const char *s, size_t n, int32_t *cc) {
  const char *point = memchr(s, '.', n);
  int64_t major, minor;
  if (!point || !rapti_parse_int(s, (size_t)(point - s), &major)) return false;
  if (!rapti_parse_int(point + 1, n - (size_t)(point - s) - 1, &minor)) return false;
  if (major < 0 || major > 255 || minor < 0 || minor > 255) return false;
  *cc = (int32_t)(major << 8 | minor);
  return true;
}

static void put_cc(rapti_text *t, int32_t cc) {
  rapti_text_int(t, cc >> 8);
  rapti_text_putc(t, '.');
  rapti_text_int(t, cc & 255);
}

/* Next item of a comma separated list; false at its end. *rest moves behind it. */
static bool next_item(const char **rest, const char *end, const char **item, size_t *n) {
  if (*rest > end) return false;
  const char *comma = memchr(*rest, ',', (size_t)(end - *rest));
  *item = *rest;
  *n = (size_t)((comma ? comma : end) - *rest);
  *rest = (comma ? comma : end) + 1;
  return true;
}

static bool set_cc_list(rapti_package *p, const char *s, size_t n) {
  const char *end = s + n, *item;
  size_t length;
  uint16_t list[12];
  int count = 0;
  while (next_item(&s, end, &item, &length)) {
    int32_t cc;
    int at = count;
    if (count == 12 || !rapti_cc_parse(item, length, &cc)) return false;
    while (at > 0 && list[at - 1] > cc) at--;
    if (at > 0 && list[at - 1] == cc) continue;
    memmove(list + at + 1, list + at, (size_t)(count++ - at) * sizeof list[0]);
    list[at] = (uint16_t)cc;
  }
  char text[sizeof p->cc_text];
  rapti_text t = rapti_text_begin(text, sizeof text);
  for (int i = 0; i < count; i++) {
    if (i) rapti_text_putc(&t, ',');
    put_cc(&t, list[i]);
  }
  if (t.len >= sizeof text) return false;
  memcpy(p->cc, list, sizeof list[0] * (size_t)count);
  memcpy(p->cc_text, text, sizeof text);
  p->n_cc = count;
  return true;
}

static int compare_items(const char *a, size_t n, const char *b, size_t m) {
  int order = memcmp(a, b, n < m ? n : m);
  return order ? order : n < m ? -1 : n > m;
}

/* Sorted without duplicates: at most 16 names. */
static bool set_has(rapti_package *p, const char *s, size_t n) {
  const char *end = s + n, *item, *list[16];
  size_t length, lengths[16];
  int count = 0;
  while (next_item(&s, end, &item, &length)) {
    int at = count, order = 1;
    if (count == 16 || !is_word(item, length)) return false;
    while (at > 0 && (order = compare_items(list[at - 1], lengths[at - 1], item, length)) > 0) at--;
    if (at > 0 && order == 0) continue;
    memmove(list + at + 1, list + at, (size_t)(count - at) * sizeof list[0]);
    memmove(lengths + at + 1, lengths + at, (size_t)(count++ - at) * sizeof lengths[0]);
    list[at] = item;
    lengths[at] = length;
  }
  char text[sizeof p->has];
  rapti_text t = rapti_text_begin(text, sizeof text);
  for (int i = 0; i < count; i++) {
    if (i) rapti_text_putc(&t, ',');
    rapti_text_putn(&t, list[i], lengths[i]);
  }
  if (t.len >= sizeof text) return false;
  memcpy(p->has, text, sizeof text);
  return true;
}

/* A version, "none" or "broken". A version too long for the table loses its local part ("+..."). */
static bool set_version(rapti_package *p, const char *s, size_t n) {
  bool absent = n == 4 && !memcmp(s, "none", 4), broken = n == 6 && !memcmp(s, "broken", 6);
  const char *local = memchr(s, '+', n);
  if (n >= sizeof p->text && local) n = (size_t)(local - s);
  if (!absent && !broken && (!is_word(s, n) || !is_digit(s[0]))) return false;
  if (n >= sizeof p->text) return false;
  memset(p->text, 0, sizeof p->text);
  memcpy(p->text, s, n);
  p->presence = absent ? RAPTI_ABSENT : broken ? RAPTI_BROKEN : RAPTI_PRESENT;
  p->version = absent || broken ? 0 : rapti_version_pack(s, n, &p->beta);
  if (absent || broken) p->beta = 0;
  return true;
}

/* v as text, "" for a missing one. */
static void number_text(char *buf, size_t n, int64_t v) {
  rapti_text t = rapti_text_begin(buf, n);
  if (v >= 0) rapti_text_int(&t, v);
}

void rapti_facts_texts(rapt_facts *f) {
  rapti_text t = rapti_text_begin(f->cc_text, sizeof f->cc_text);
  if (f->cc >= 0) put_cc(&t, f->cc);
  number_text(f->threads_text, sizeof f->threads_text, f->threads);
  number_text(f->mem_text, sizeof f->mem_text, f->mem);
}

static bool set_cc(rapt_facts *f, const char *s, size_t n) { return rapti_cc_parse(s, n, &f->cc); }

static bool set_arch(rapt_facts *f, const char *s, size_t n) {
  if (!is_word(s, n) || n >= sizeof f->arch) return false;
  memset(f->arch, 0, sizeof f->arch);
  memcpy(f->arch, s, n);
  return true;
}

static bool set_isa(rapt_facts *f, const char *s, size_t n) {
  int isa = rapti_isa_find(s, n);
  if (isa >= 0) f->isa = isa;
  return isa >= 0;
}

static bool set_threads(rapt_facts *f, const char *s, size_t n) {
  int64_t v;
  if (!rapti_parse_int(s, n, &v) || v < 1 || v > INT32_MAX) return false;
  f->threads = (int32_t)v;
  return true;
}

static bool set_mem(rapt_facts *f, const char *s, size_t n) {
  int64_t v;
  if (!rapti_parse_int(s, n, &v) || v < 0) return false;
  f->mem = v;
  return true;
}

/* ---- Keys ---- */

typedef enum part { VERSION, CC, HAS } part;
enum { KEY_CC = 0, KEY_ARCH, KEY_ISA, KEY_THREADS, KEY_MEM, DEVICE_KEYS };
static const struct {
  const char *name;
  bool (*set)(rapt_facts *f, const char *s, size_t n);
  const char *want;
} device_keys[DEVICE_KEYS] = {{"cc", set_cc, "a generation such as 9.0"},
                              {"arch", set_arch, "an architecture of at most 15 characters"},
                              {"isa", set_isa, "a CPU level such as avx2"},
                              {"threads", set_threads, "a count of at least 1"},
                              {"mem", set_mem, "a count of bytes"}};
static const struct {
  const char *suffix;
  bool (*set)(rapti_package *p, const char *s, size_t n);
  const char *want;
} parts[] = {{"", set_version, "a version of at most 23 characters, none or broken"},
             {".cc", set_cc_list, "at most 12 generations such as 8.0,9.0"},
             {".has", set_has, "names such as a,b, at most 16, 63 characters together"}};

/* Number of a key: device keys, then three for each package; -1 unknown. */
static int find_key(const char *s, size_t n) {
  for (int i = 0; i < DEVICE_KEYS; i++)
    if (strlen(device_keys[i].name) == n && !memcmp(device_keys[i].name, s, n)) return i;
  for (int i = VERSION; i <= HAS; i++) {
    size_t tail = strlen(parts[i].suffix);
    if (tail >= n || memcmp(s + n - tail, parts[i].suffix, tail)) continue;
    int package = rapti_package_find(s, n - tail);
    if (package >= 0) return DEVICE_KEYS + 3 * package + i;
  }
  return -1;
}

static bool set_key(rapt_facts *f, int key, const char *value, size_t n) {
  if (key < DEVICE_KEYS) return device_keys[key].set(f, value, n);
  return parts[(key - DEVICE_KEYS) % 3].set(&f->package[(key - DEVICE_KEYS) / 3], value, n);
}

static const char *want_of_key(int key) {
  return key < DEVICE_KEYS ? device_keys[key].want : parts[(key - DEVICE_KEYS) % 3].want;
}

rapt_status rapt_facts_set(rapt_facts *facts, const char *key, const char *value) {
  if (!facts || !key || !value || !facts->open) return RAPT_ARG;
  int number = find_key(key, strlen(key));
  if (number < 0) return RAPT_ARG;
  if (!set_key(facts, number, value, strlen(value))) return RAPT_ARG;
  rapti_facts_texts(facts);
  return RAPT_OK;
}

static const char *text_of_key(const rapt_facts *f, int key) {
  switch (key) {
    case KEY_CC: return f->cc_text;
    case KEY_ARCH: return f->arch;
    case KEY_ISA: return f->isa < 0 ? "" : rapti_isa_name(f->isa);
    case KEY_THREADS: return f->threads_text;
    case KEY_MEM: return f->mem_text;
    default: break;
  }
  const rapti_package *p = &f->package[(key - DEVICE_KEYS) / 3];
  const char *const texts[] = {p->text, p->cc_text, p->has};
  return texts[(key - DEVICE_KEYS) % 3];
}

const char *rapt_facts_get(const rapt_facts *facts, const char *key) {
  int number = facts && key ? find_key(key, strlen(key)) : -1;
  const char *text = number < 0 ? "" : text_of_key(facts, number);
  return *text ? text : NULL;
}

/* ---- The string ---- */

static bool is_space(char c) { return c == ' ' || c == '\t'; }

/* The text that is parsed. */
typedef struct facts_text { const char *s; size_t len; rapt_reason *why; } facts_text;

static rapt_status syntax(const facts_text *x, size_t byte, const char *want) {
  rapti_syntax(x->why, RAPT_FIELD_FACTS, x->s, x->len, byte, want);
  return RAPT_ARG;
}

static rapt_status unknown_key(const facts_text *x, size_t byte, size_t n) {
  const char *key = x->s + byte;
  rapti_near near = rapti_near_begin(key, n);
  for (int i = 0; i < DEVICE_KEYS; i++) rapti_near_try(&near, device_keys[i].name, strlen(device_keys[i].name));
  for (int i = 0; i < RAPTI_PACKAGES; i++) rapti_near_try(&near, rapti_package_name(i), strlen(rapti_package_name(i)));
  rapti_reason_set(x->why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_FACTS, -1, (int64_t)byte);
  rapti_reason_got_bytes(x->why, key, n);
  if (near.best) rapti_reason_want(x->why, "the nearest key is %.*s", (int)near.best_n, near.best);
  else rapti_reason_want(x->why, "keys are cc, arch, isa, threads, mem, a package such as torch, PACKAGE.cc and PACKAGE.has");
  return RAPT_ARG;
}

/* Another kind of device has no such fact: it would be taken in and never looked at (D12). */
static const char *foreign_key(int key, int kind) {
  if (key == KEY_ARCH && kind != RAPT_HIP) return kind == RAPT_CUDA ? "cc=MAJOR.MINOR, as in cc=9.0" : "arch with hip only";
  if (key == KEY_CC && kind != RAPT_CUDA) return kind == RAPT_HIP ? "arch=NAME, as in arch=gfx942" : "cc with cuda only";
  return NULL;
}

/* One token key=value at byte; seen: which keys came before. */
static rapt_status parse_token(const facts_text *x, size_t byte, size_t n, rapt_facts *f, bool *seen) {
  const char *token = x->s + byte, *equals = memchr(token, '=', n);
  if (!equals) return syntax(x, byte, "key=value");
  size_t key_length = (size_t)(equals - token);
  int key = find_key(token, key_length);
  if (key < 0) return unknown_key(x, byte, key_length);
  const char *instead = foreign_key(key, f->kind);
  if (instead) return syntax(x, byte, instead);
  if (seen[key]) return syntax(x, byte, "each key once");
  seen[key] = true;
  if (!set_key(f, key, equals + 1, n - key_length - 1)) return syntax(x, byte + key_length + 1, want_of_key(key));
  return RAPT_OK;
}

/* The first word is no device kind. "cuda:sm90", as the command line has it, is two words here. */
static rapt_status no_kind(const facts_text *x, size_t at, size_t n) {
  const char *word = x->s + at, *colon = memchr(word, ':', n);
  size_t kind_length = colon ? (size_t)(colon - word) : n, rest = n - kind_length;
  int kind = colon ? rapti_kind_find(word, kind_length) : -1;
  bool sm = rest > 4 && !memcmp(colon, ":sm", 3);
  for (size_t i = 3; sm && i < rest; i++) sm = is_digit(colon[i]);
  if (kind < 0) return syntax(x, at, "a device kind first, such as cpu or cuda");
  syntax(x, at + kind_length, "");
  if (kind == RAPT_CUDA && sm)
    rapti_reason_want(x->why, "\"cuda cc=%.*s.%c\"", (int)rest - 4, colon + 3, colon[rest - 1]);
  else if (kind == RAPT_HIP && is_word(colon + 1, rest - 1))
    rapti_reason_want(x->why, "\"hip arch=%.*s\"", (int)rest - 1, colon + 1);
  else rapti_reason_want(x->why, "\"%s\" and then key=value", rapti_kind_name(kind));
  return RAPT_ARG;
}

rapt_status rapti_facts_parse(const char *text, size_t len, rapt_facts *f, rapt_reason *why) {
  bool seen[DEVICE_KEYS + 3 * RAPTI_PACKAGES] = {false}, first = true;
  rapt_facts local;
  rapti_facts_init(&local, RAPT_CPU);
  local.what_if = 1;
  const facts_text x = {text, len, why};
  if (len > MAX_TEXT) return syntax(&x, MAX_TEXT, "at most 4096 bytes");
  size_t at = 0, end;
  for (; at < len; at = end) {
    if (is_space(text[at])) { end = at + 1; continue; }
    for (end = at; end < len && !is_space(text[end]);) end++;
    if (first && (local.kind = rapti_kind_find(text + at, end - at)) < 0) return no_kind(&x, at, end - at);
    rapt_status status = first ? RAPT_OK : parse_token(&x, at, end - at, &local, seen);
    if (status) return status;
    first = false;
  }
  if (first) return syntax(&x, at, "a device kind first, such as cpu or cuda");
  rapti_facts_texts(&local);
  *f = local;
  return RAPT_OK;
}

size_t rapti_facts_format(const rapt_facts *facts, char *buf, size_t n) {
  rapt_facts copy = *facts, *f = &copy;                      /* numbers count, whoever wrote them */
  rapti_facts_texts(f);
  rapti_text t = rapti_text_begin(buf, n);
  rapti_text_put(&t, rapti_kind_name(f->kind));
  for (int key = 0; key < DEVICE_KEYS + 3 * RAPTI_PACKAGES; key++) {
    const char *text = text_of_key(f, key);
    if (!*text) continue;
    rapti_text_putc(&t, ' ');
    if (key < DEVICE_KEYS) rapti_text_put(&t, device_keys[key].name);
    else rapti_text_put(&t, rapti_package_name((key - DEVICE_KEYS) / 3));
    if (key >= DEVICE_KEYS) rapti_text_put(&t, parts[(key - DEVICE_KEYS) % 3].suffix);
    rapti_text_putc(&t, '=');
    rapti_text_put(&t, text);
  }
  return rapti_text_end(&t);
}

/* ---- JSON (R6) ---- */

static void json_key(rapti_text *t, const char *key) {
  rapti_text_json(t, key);
  rapti_text_putc(t, ':');
}

static void json_text(rapti_text *t, const char *text) {
  if (*text) rapti_text_json(t, text);
  else rapti_text_put(t, "null");
}

static void json_number(rapti_text *t, int64_t v) {
  if (v >= 0) rapti_text_int(t, v);
  else rapti_text_put(t, "null");
}

/* A comma separated text as an array of strings; "" = null. */
static void json_list(rapti_text *t, const char *text) {
  if (!*text) { rapti_text_put(t, "null"); return; }
  const char *end = text + strlen(text), *item;
  size_t n;
  rapti_text_putc(t, '[');
  for (bool first = true; next_item(&text, end, &item, &n); first = false) {
    rapti_text_put(t, first ? "\"" : ",\"");                 /* items are words: nothing to escape */
    rapti_text_putn(t, item, n);
    rapti_text_putc(t, '"');
  }
  rapti_text_putc(t, ']');
}

static void json_package(rapti_text *t, int i, const rapti_package *p) {
  json_key(t, rapti_package_name(i));
  rapti_text_put(t, "{\"version\":");
  json_text(t, p->text);
  rapti_text_put(t, ",\"cc\":");
  json_list(t, p->cc_text);
  rapti_text_put(t, ",\"has\":");
  json_list(t, p->has);
  rapti_text_putc(t, '}');
}

void rapti_facts_json(const rapt_facts *facts, rapti_text *t) {
  rapt_facts copy = *facts, *f = &copy;
  rapti_facts_texts(f);
  rapti_text_put(t, "{\"schema\":\"rapt.facts/1\",\"device\":{\"kind\":");
  json_text(t, rapti_kind_name(f->kind));
  rapti_text_put(t, ",\"cc\":");
  json_text(t, f->cc_text);
  rapti_text_put(t, ",\"arch\":");
  json_text(t, f->arch);
  rapti_text_put(t, ",\"mem\":");
  json_number(t, f->mem);
  rapti_text_put(t, "},\"cpu\":{\"isa\":");
  json_text(t, f->isa < 0 ? "" : rapti_isa_name(f->isa));
  rapti_text_put(t, ",\"threads\":");
  json_number(t, f->threads);
  rapti_text_put(t, "},\"packages\":{");
  bool first = true;
  for (int i = 0; i < RAPTI_PACKAGES; i++) {
    const rapti_package *p = &f->package[i];
    if (!*p->text && !*p->cc_text && !*p->has) continue;
    if (!first) rapti_text_putc(t, ',');
    json_package(t, i, p);
    first = false;
  }
  rapti_text_put(t, "}}");
}
