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

/* ---- Sentences ---- */

typedef struct filling {
  const rapt_reason *reason;
  const char *row, *arg;
} filling;

/* Text of the placeholder {name}; "" = nothing to say. number: storage for axis and index. */
static const char *placeholder(const filling *f, const char *name, size_t n, char number[24]) {
  rapti_text t = rapti_text_begin(number, 24);
  if (n == 3 && !memcmp(name, "row", n)) return f->row;
  if (n == 3 && !memcmp(name, "arg", n)) return f->arg;
  if (n == 3 && !memcmp(name, "got", n)) return f->reason->got;
  if (n == 4 && !memcmp(name, "want", n)) return f->reason->want;
  if (n == 4 && !memcmp(name, "axis", n) && f->reason->axis >= 0) rapti_text_int(&t, f->reason->axis);
  if (n == 5 && !memcmp(name, "index", n) && f->reason->index >= 0) rapti_text_int(&t, f->reason->index);
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
    rapti_text_put(t, *text ? text : "?");
    i = (size_t)(close - s);
  }
  return all;
}

/* A [part] or [part|otherwise]; open points at the bracket, close at its end. */
static void put_optional(rapti_text *t, const char *open, const char *close, const filling *f) {
  const char *bar = memchr(open, '|', (size_t)(close - open)), *end = bar ? bar : close;
  char unused[1];
  rapti_text trial = rapti_text_begin(unused, 1);
  if (put_filled(&trial, open + 1, (size_t)(end - open) - 1, f)) put_filled(t, open + 1, (size_t)(end - open) - 1, f);
  else if (bar) put_filled(t, bar + 1, (size_t)(close - bar) - 1, f);
}

static void put_template(rapti_text *t, const char *s, const filling *f) {
  while (*s) {
    size_t plain = strcspn(s, "[");
    const char *close = s[plain] ? strchr(s + plain, ']') : NULL;
    put_filled(t, s, plain, f);
    if (!close) return;
    put_optional(t, s + plain, close, f);
    s = close + 1;
  }
}

/* The template for this use of a code. Codes without one are failures of the call itself: NOMEM, INTERNAL, .. */
static const char *sentence_of(const rapti_code_info *info, const rapt_reason *r, bool row) {
  if (r->state == RAPT_NOT_EVALUATED) return "{row} was not checked here[: {got}][, it needs {want}].";
  const char *first = row ? info->sentence : info->fault, *second = row ? info->fault : info->sentence;
  return first ? first : second ? second : "{arg}[: {got}][; {want}].";
}

size_t rapt_reason_format(const rapt_reason *reason, const char *row, const char *const *names, char *buf, size_t n) {
  rapti_text t = rapti_text_begin(buf, n);
  if (!reason || reason->struct_size < sizeof *reason) return 0;
  const rapti_code_info *info = rapti_code_get(reason->code);
  bool own = reason->field >= 0 && reason->field < RAPT_FIELD_COUNT && names && names[reason->field];
  filling f = {reason, row ? row : "the backend", own ? names[reason->field] : rapt_field_name(reason->field)};
  if (reason->code != RAPT_CODE_NONE) {
    rapti_text_put(&t, rapt_code_name(reason->code));
    rapti_text_put(&t, ": ");
  }
  put_template(&t, sentence_of(info, reason, row != NULL), &f);
  if (info->remedy[0] && reason->state == RAPT_FAILED) {
    rapti_text_putc(&t, ' ');
    put_template(&t, info->remedy, &f);
  }
  return rapti_text_end(&t);
}
