/* SPDX-License-Identifier: Apache-2.0 */
/* Texts and messages. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const char *out_verb = "";
static bool out_json;

void *cli_grow(void *p, size_t count, size_t size) {
  size_t bytes;
  void *q = __builtin_mul_overflow(count, size, &bytes) ? NULL : realloc(p, bytes ? bytes : 1);
  if (!q) {
    fputs("rapt: out of memory\n", stderr);
    exit(CLI_USAGE);
  }
  return q;
}

void *cli_alloc(size_t count, size_t size) {
  void *p = cli_grow(NULL, count, size);
  memset(p, 0, count * size);
  return p;
}

void cli_str_put(cli_str *t, const char *s, size_t n) {
  if (t->n + n + 1 > t->cap) {
    t->cap = 2 * t->cap + n + 64;
    t->s = cli_grow(t->s, t->cap, 1);
  }
  if (n) memcpy(t->s + t->n, s, n);
  t->n += n;
  t->s[t->n] = 0;
}

void cli_str_add(cli_str *t, const char *s) { cli_str_put(t, s, strlen(s)); }

static void str_vprintf(cli_str *t, const char *format, va_list args) {
  va_list again;
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, format, again);
  va_end(again);
  if (n < 0) return;
  char *s = cli_alloc((size_t)n + 1, 1);
  vsnprintf(s, (size_t)n + 1, format, args);
  cli_str_put(t, s, (size_t)n);
  free(s);
}

void cli_str_printf(cli_str *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  str_vprintf(t, format, args);
  va_end(args);
}

void cli_str_free(cli_str *t) {
  free(t->s);
  *t = (cli_str){0};
}

void cli_out_begin(const char *verb, bool json) {
  out_verb = verb;
  out_json = json;
}

bool cli_out_json(void) { return out_json; }

static const char *escape(const char *sequence) { return isatty(STDOUT_FILENO) ? sequence : ""; }
const char *cli_bad(void) { return escape("\033[31m"); }
const char *cli_good(void) { return escape("\033[32m"); }
const char *cli_plain(void) { return escape("\033[0m"); }

int cli_usage(const char *argument, const char *value, const char *format, ...) {
  cli_str text = {0};
  va_list args;
  va_start(args, format);
  str_vprintf(&text, format, args);
  va_end(args);
  fprintf(stderr, "rapt%s%s: %s", *out_verb ? " " : "", out_verb, argument);
  if (value) fprintf(stderr, " '%s'", value);
  fprintf(stderr, ": %s\n", text.s);
  if (out_json) {
    json_t *j = json_pack("{s:s,s:{s:s,s:s?,s:s}}", "schema", "rapt.error/1", "error", "argument", argument, "value",
                          value, "text", text.s);
    if (j) json_dumpf(j, stdout, JSON_COMPACT);
    else fputs("{\"schema\":\"rapt.error/1\"}", stdout);   /* an argument that is no UTF-8 */
    fputc('\n', stdout);
    json_decref(j);
  }
  cli_str_free(&text);
  return CLI_USAGE;
}

int cli_usage_reason(const char *argument, const char *value, const rapt_reason *why) {
  char *text = cli_reason_text(why, NULL);
  cli_usage(argument, value, "%s", text);
  free(text);
  return CLI_USAGE;
}

static json_t *text_or_null(const char *s) { return s && *s ? json_string(s) : json_null(); }

/* The document of a real report of a faulty call, so that it has the keys of every report. */
static void print_fault_json(rapt_ctx *ctx, const rapt_reason *why, const char *sentence) {
  rapt_problem nothing = RAPT_PROBLEM_INIT;
  rapt_report *r = NULL;
  rapt_explain(ctx, &nothing, &r);
  char *text = r ? cli_report_text(r, RAPT_FORM_JSON) : NULL;
  json_t *j = text ? json_loads(text, 0, NULL) : json_object();
  json_object_set_new(j, "status", json_string(cli_status(RAPT_ARG)));
  json_object_set_new(j, "error",
                      json_pack("{s:s,s:o,s:o,s:o,s:o,s:o,s:s}", "code", rapt_code_name(why->code), "field",
                                text_or_null(why->field ? rapt_field_name(why->field) : NULL), "axis",
                                why->axis < 0 ? json_null() : json_integer(why->axis), "index",
                                why->index < 0 ? json_null() : json_integer(why->index), "got", text_or_null(why->got),
                                "want", text_or_null(why->want), "text", sentence));
  json_object_set_new(j, "problem", json_null());
  json_dumpf(j, stdout, JSON_COMPACT);
  putchar('\n');
  json_decref(j);
  free(text);
  rapt_report_destroy(r);
}

int cli_fault(rapt_ctx *ctx, const char *what, const rapt_reason *why) {
  char *sentence = cli_reason_text(why, NULL);
  if (out_json) print_fault_json(ctx, why, sentence);
  else printf("%s for %s\n  fault      %s\n", cli_status(RAPT_ARG), what, sentence);
  free(sentence);
  return CLI_FAILED;
}

void cli_report_print(const rapt_report *r, int form) {
  char *text = cli_report_text(r, form);
  printf("%s%s", text, *text && text[strlen(text) - 1] == '\n' ? "" : "\n");
  free(text);
}

void cli_notice(const char *format, ...) {
  cli_str text = {0};
  va_list args;
  va_start(args, format);
  str_vprintf(&text, format, args);
  va_end(args);
  fprintf(stderr, "rapt%s%s: %s\n", *out_verb ? " " : "", out_verb, text.s);
  cli_str_free(&text);
}

/* The library's text functions return the length; the text is fetched in a second call. */
char *cli_report_text(const rapt_report *r, int form) {
  size_t n = rapt_report_format(r, form, NULL, NULL, 0) + 1;
  char *s = cli_alloc(n, 1);
  rapt_report_format(r, form, NULL, s, n);
  return s;
}

char *cli_problem_text(const rapt_problem *p) {
  size_t n = rapt_problem_format(p, NULL, 0) + 1;
  char *s = cli_alloc(n, 1);
  rapt_problem_format(p, s, n);
  return s;
}

char *cli_facts_text(const rapt_ctx *ctx) {
  size_t n = rapt_ctx_facts_format(ctx, NULL, 0) + 1;
  char *s = cli_alloc(n, 1);
  rapt_ctx_facts_format(ctx, s, n);
  return s;
}

char *cli_reason_text(const rapt_reason *why, const char *row) {
  size_t n = rapt_reason_format(why, row, NULL, NULL, 0) + 1;
  char *s = cli_alloc(n, 1);
  rapt_reason_format(why, row, NULL, s, n);
  return s;
}
