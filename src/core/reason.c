/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons: filled field by field, turned into sentences from codes.def. */
#include "core/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void rapti_reason_set(rapt_reason *why, int code, int field, int axis, int64_t index) {
  if (!why) return;
  rapt_reason r;
  memset(&r, 0, sizeof r);
  r.struct_size = why->struct_size;
  r.code = code;
  r.state = RAPT_FAILED;
  r.field = field;
  r.axis = axis;
  r.index = index;
  memcpy(why, &r, why->struct_size < sizeof r ? why->struct_size : sizeof r);
}

/* got or want as text to write to; nothing where the caller's struct ends before it. */
static rapti_text text_of(rapt_reason *why, size_t offset, size_t size) {
  bool there = why && why->struct_size >= offset + size;
  return rapti_text_begin(there ? (char *)why + offset : NULL, there ? size : 0);
}

static rapti_text got_of(rapt_reason *why) { return text_of(why, offsetof(rapt_reason, got), sizeof why->got); }
static rapti_text want_of(rapt_reason *why) { return text_of(why, offsetof(rapt_reason, want), sizeof why->want); }

static void put_args(rapti_text *t, const char *format, va_list args) {
  int n = vsnprintf(t->buf, t->n, format, args);
  if (n > 0) t->len = (size_t)n;
  rapti_text_end(t);
}

void rapti_reason_got(rapt_reason *why, const char *format, ...) {
  va_list args;
  va_start(args, format);
  rapti_text t = got_of(why);
  put_args(&t, format, args);
  va_end(args);
}

void rapti_reason_want(rapt_reason *why, const char *format, ...) {
  va_list args;
  va_start(args, format);
  rapti_text t = want_of(why);
  put_args(&t, format, args);
  va_end(args);
}

void rapti_reason_got_double(rapt_reason *why, double v) {
  rapti_text t = got_of(why);
  rapti_text_double(&t, v);
}

void rapti_reason_got_bytes(rapt_reason *why, const char *s, size_t n) {
  rapti_text t = got_of(why);
  for (size_t i = 0; i < n; i++) rapti_text_putc(&t, s[i] > ' ' && s[i] < 127 ? s[i] : '?');
}

static bool is_space(char c) { return c == ' ' || c == '\t'; }

void rapti_syntax(rapt_reason *why, int field, const char *text, size_t len, size_t at, const char *want) {
  enum { BEFORE = 60 };                                      /* bytes of a long word that are shown before the fault */
  size_t begin = at, end = at;
  while (begin > 0 && at - begin < BEFORE && !is_space(text[begin - 1])) begin--;
  while (end < len && !is_space(text[end])) end++;
  rapti_reason_set(why, RAPT_CODE_SYNTAX, field, -1, (int64_t)at);
  rapti_reason_got_bytes(why, text + begin, end - begin);
  rapti_reason_want(why, "%s", want);
}

/* ---- Sentences ---- */

typedef struct filling {
  const rapt_reason *reason;
  const char *row, *arg;
} filling;

typedef struct wording {
  int16_t code, field;
  const char *sentence, *advice, *fault, *correction;
} wording;
static const wording wordings[] = {
#define RAPTI_WORDS(code, field, sentence, advice, fault, correction) \
  {RAPT_CODE_##code, RAPT_FIELD_##field, sentence, advice, fault, correction},
#include "core/words.def"
#undef RAPTI_WORDS
};

static bool named(const char *name, size_t n, const char *word) { return strlen(word) == n && !memcmp(name, word, n); }

/* Text of the placeholder {name}; "" = nothing to say. number: storage for axis and index. */
static const char *placeholder(const filling *f, const char *name, size_t n, char number[24]) {
  rapti_text t = rapti_text_begin(number, 24);
  if (named(name, n, "row")) return f->row;
  if (named(name, n, "arg")) return f->arg;
  if (named(name, n, "got")) return f->reason->got;
  if (named(name, n, "want")) return f->reason->want;
  if (named(name, n, "es")) return strcmp(f->reason->got, "1") ? "es" : "is";
  if (named(name, n, "axis") && f->reason->axis >= 0) rapti_text_int(&t, f->reason->axis);
  if (named(name, n, "index") && f->reason->index >= 0) rapti_text_int(&t, f->reason->index);
  return number;
}

/* Writes s[0..n) with its placeholders; false where one of them has nothing to say. */
static bool put_filled(rapti_text *t, const char *s, size_t n, const filling *f) {
  bool all = true;
  for (size_t i = 0; i < n; i++) {
    const char *close = s[i] == '{' ? memchr(s + i, '}', n - i) : NULL;
    if (!close) { rapti_text_putc(t, s[i]); continue; }
    char number[24];
    const char *text = placeholder(f, s + i + 1, (size_t)(close - s) - i - 1, number);
    all = all && *text;
    rapti_text_put(t, text);
    i = (size_t)(close - s);
  }
  return all;
}

static bool fills(const char *s, size_t n, const filling *f) {
  char unused[1];
  rapti_text trial = rapti_text_begin(unused, 1);
  return put_filled(&trial, s, n, f);
}

/* A [part] or [part|otherwise]; open points at the bracket, close at its end. False where neither can be said. */
static bool put_optional(rapti_text *t, const char *open, const char *close, const filling *f) {
  const char *bar = memchr(open, '|', (size_t)(close - open)), *end = bar ? bar : close;
  if (fills(open + 1, (size_t)(end - open) - 1, f)) return put_filled(t, open + 1, (size_t)(end - open) - 1, f);
  return !bar || put_filled(t, bar + 1, (size_t)(close - bar) - 1, f);
}

/* False where a placeholder that must be there has nothing to say. */
static bool put_template(rapti_text *t, const char *s, const filling *f) {
  bool all = true;
  while (*s) {
    size_t plain = strcspn(s, "[");
    const char *close = s[plain] ? strchr(s + plain, ']') : NULL;
    all = put_filled(t, s, plain, f) && all;
    if (!close) break;
    all = put_optional(t, s + plain, close, f) && all;
    s = close + 1;
  }
  return all;
}

/* The template, or what can be said without the value that nobody gave. */
static void put_sentence(rapti_text *t, const char *s, const char *less, const filling *f) {
  char unused[1];
  rapti_text trial = rapti_text_begin(unused, 1);
  put_template(t, put_template(&trial, s, f) ? s : less, f);
}

/* What codes.def says, in the words for this argument where it has its own. */
static wording wording_of(const rapt_reason *r) {
  const rapti_code_info *info = rapti_code_get(r->code);
  wording w = {0, 0, info->sentence, info->advice, info->fault, info->correction};
  for (size_t i = 0; i < sizeof wordings / sizeof wordings[0]; i++) {
    if (wordings[i].code != r->code || wordings[i].field != r->field) continue;
    if (wordings[i].sentence) w.sentence = wordings[i].sentence;
    if (wordings[i].advice) w.advice = wordings[i].advice;
    if (wordings[i].fault) w.fault = wordings[i].fault;
    if (wordings[i].correction) w.correction = wordings[i].correction;
  }
  return w;
}

static void put_reason(rapti_text *t, const rapt_reason *r, bool row, const filling *f) {
  wording w = wording_of(r);
  bool as_row = row ? w.sentence != NULL : w.fault == NULL;
  const char *sentence = as_row ? w.sentence : w.fault, *help = as_row ? w.advice : w.correction;
  if (r->state == RAPT_NOT_EVALUATED) {
    put_template(t, "{row} was not checked[: {want} is missing].", f);
    return;
  }
  /* Codes without words are failures of the call itself: NOMEM, INTERNAL, .. */
  if (!sentence) sentence = "[{arg}|the call][: {got}][; {want}].";
  put_sentence(t, sentence, as_row ? "{row} does not take [{arg} of |]this call."
                                   : "[{arg}|The call] is not accepted[: {got}][; {want}].", f);
  if (!help) return;
  rapti_text_putc(t, ' ');
  put_sentence(t, help, as_row ? "Use another backend." : "Correct it, or leave it out.", f);
}

size_t rapt_reason_format(const rapt_reason *reason, const char *row, const char *const *names, char *buf, size_t n) {
  rapti_text t = rapti_text_begin(buf, n);
  if (!reason || reason->struct_size < sizeof *reason) return 0;
  bool known = reason->field > RAPT_FIELD_NONE && reason->field < RAPT_FIELD_COUNT;
  const char *own = known && names ? names[reason->field] : NULL;
  filling f = {reason, row ? row : "the backend", own ? own : known ? rapt_field_name(reason->field) : ""};
  if (reason->code != RAPT_CODE_NONE) {
    rapti_text_put(&t, rapt_code_name(reason->code));
    rapti_text_put(&t, ": ");
  }
  put_reason(&t, reason, row != NULL, &f);
  return rapti_text_end(&t);
}
