/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs of the command line tool share. The tool sees the public headers only and has no semantics of its
 * own: it reads arguments and files, calls the library and prints. */
#ifndef RAPT_CLI_H
#define RAPT_CLI_H
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rapt/rapt.h"

#define CLI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define CLI_COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Exit codes of docs/api.md section 10. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_OPEN = 3 };

/* ---- Text, memory, messages (out.c) ---- */

/* A growing text, always terminated once something was added. Zero is the empty text. */
typedef struct cli_str { char *s; size_t n, cap; } cli_str;
void cli_str_add(cli_str *t, const char *s);
void cli_str_put(cli_str *t, const char *s, size_t n);
void cli_str_printf(cli_str *t, const char *format, ...) CLI_PRINTF(2, 3);
void cli_str_free(cli_str *t);

/* Zeroed memory. They end the process with exit code 2 when there is none. */
void *cli_alloc(size_t count, size_t size);
void *cli_grow(void *p, size_t count, size_t size);

/* Says whether results go out as JSON, and the name of the verb for messages. */
void cli_out_begin(const char *verb, bool json);
bool cli_out_json(void);
/* One line on stderr: "rapt VERB: ARGUMENT 'VALUE': text". With --json one document on stdout as well. value may be
 * NULL. Returns CLI_USAGE. */
int cli_usage(const char *argument, const char *value, const char *format, ...) CLI_PRINTF(3, 4);
int cli_usage_reason(const char *argument, const char *value, const rapt_reason *why);
/* A fault of the call that no report was made of, as the report of such a call on stdout: the result, in both forms. what:
 * the arguments that hold it. Returns CLI_FAILED. */
int cli_fault(rapt_ctx *ctx, const char *what, const rapt_reason *why);
/* The report on stdout, and a newline behind it. */
void cli_report_print(const rapt_report *r, int form);
void cli_notice(const char *format, ...) CLI_PRINTF(1, 2);
/* Escape sequences on a terminal, else "". */
const char *cli_bad(void);
const char *cli_good(void);
const char *cli_plain(void);

/* Texts of the library, whole. The caller frees. */
char *cli_report_text(const rapt_report *r, int form);
char *cli_problem_text(const rapt_problem *p);
char *cli_facts_text(const rapt_ctx *ctx);
char *cli_reason_text(const rapt_reason *why, const char *row);
static inline const char *cli_status(rapt_status st) { return rapt_status_name((int32_t)st); }

/* ---- Files (file.c) ---- */

/* A regular file, opened without waiting; -1: *error says why. Writing makes or empties it. */
int cli_open_read(const char *path, int64_t *size, cli_str *error);
int cli_open_write(const char *path, cli_str *error);
/* n bytes at an offset; false on a short or failed read. */
bool cli_read_at(int fd, void *p, size_t n, int64_t offset);
bool cli_write_all(int fd, const void *p, size_t n);
/* The whole of a regular file of at most max bytes, with a NUL behind it. NULL: *error says why. */
char *cli_file_read(const char *path, size_t max, size_t *n, cli_str *error);
/* Do both paths name one file, whatever their spelling and links, or would they once it is made? */
bool cli_same_file(const char *a, const char *b);

/* ---- Arguments (args.c) ---- */

typedef enum cli_kind { CLI_FLAG, CLI_VALUE, CLI_LIST, CLI_PAIR } cli_kind;   /* LIST: a value, may come again */
typedef struct cli_option { const char *name; cli_kind kind; } cli_option;
typedef struct cli_given { int option; const char *value, *second; } cli_given;
typedef struct cli_args {
  const cli_option *options;
  size_t n_options, n_given, n_words;
  cli_given *given;
  const char **words;                 /* what is no option */
} cli_args;
/* CLI_OK or CLI_USAGE (said). Every verb knows --json besides its own options. */
int cli_args_parse(cli_args *a, const cli_option *options, size_t n, int argc, char **argv);
void cli_args_free(cli_args *a);
bool cli_args_has(const cli_args *a, const char *name);
const char *cli_args_value(const cli_args *a, const char *name);
const cli_given *cli_args_nth(const cli_args *a, const char *name, size_t i);
/* A whole number between low and high; *value stays where the option is absent. CLI_OK or CLI_USAGE. */
int cli_args_int(const cli_args *a, const char *name, int64_t low, int64_t high, int64_t *value);

/* ---- Problem strings (problem.c) ---- */

typedef struct cli_problem { rapt_problem p; char *names, *text; } cli_problem;
/* CLI_OK or CLI_USAGE (said, with the argument's name). */
int cli_problem_parse(cli_problem *c, const char *argument, const char *text);
void cli_problem_free(cli_problem *c);
bool cli_problem_has_token(const char *text, const char *key);
/* "cpu.avx2 flash_attention_blocked avx2, 2 threads" */
void cli_decision_words(const rapt_decision *d, cli_str *t);
const char *cli_kind_name(int32_t kind);
int32_t cli_kind_find(const char *s, size_t n);          /* -1 */

/* ---- Facts (facts.c) ---- */

/* The facts string that --facts, --device and --with write together; empty where none is given. problem_kind: the
 * kind where only --with is given. *kind: the kind of the facts. */
int cli_facts_build(const cli_args *a, int32_t problem_kind, cli_str *facts, int32_t *kind);
/* A context for them (a what-if), or of this machine where facts is empty. threads 0: all. */
int cli_ctx_create(const char *facts, uint32_t threads, rapt_ctx **ctx);

/* ---- Numbers (num.c) ---- */

double cli_load(int32_t dtype, const void *p);           /* an element as a double; bool as 0 or 1 */
void cli_store(int32_t dtype, void *p, double x);        /* rounded once, to nearest even */
double cli_round(int32_t dtype, double x);
int32_t cli_dtype_find(const char *s);                   /* -1 */
/* Product of sizes; false where a size is negative or the product leaves int64. */
bool cli_count(const int64_t *size, int rank, int64_t *count);
int cli_compare_doubles(const void *a, const void *b);   /* for qsort */
double cli_median(const double *x, size_t n);

/* ---- Arrays in files (npy.c, safetensors.c, tensors.c) ---- */

typedef struct cli_array {
  int32_t dtype, rank;
  int64_t size[8], stride[8];         /* of the file's axes, elements */
  void *data;                         /* 64-byte aligned, to element 0 */
  size_t bytes;
} cli_array;
void cli_array_free(cli_array *a);
/* A dense array in C order, zeroed. false: too large. */
bool cli_array_make(cli_array *a, int32_t dtype, int rank, const int64_t *size);

/* Each fills *error and returns false when the file is not what it should be. */
bool cli_npy_read(const char *path, cli_array *a, cli_str *error);
bool cli_npy_write(const char *path, const cli_array *a, cli_str *error);
bool cli_npy_has_dtype(int32_t dtype);
bool cli_safetensors_read(const char *path, const char *tensor, cli_array *a, cli_str *error);
typedef struct cli_named { const char *name; const cli_array *array; } cli_named;
bool cli_safetensors_write(const char *path, cli_named *tensors, size_t n, cli_str *error);

/* FILE or FILE:TENSOR. path: the caller frees. */
typedef struct cli_place { char *path, *tensor; bool safetensors; } cli_place;
bool cli_place_parse(const char *text, const char *name, cli_place *place, cli_str *error);
void cli_place_free(cli_place *place);
bool cli_place_read(const cli_place *place, cli_array *a, cli_str *error);

/* ---- Verbs ---- */

typedef struct cli_variable { const char *name, *text; } cli_variable;
extern const cli_variable cli_variables[];               /* that the library reads (help.c) */
extern const size_t cli_n_variables;
void cli_help(const char *verb);                         /* "": of the whole tool */

int cli_info(int argc, char **argv);
int cli_explain(int argc, char **argv);
int cli_line(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_cases(int argc, char **argv);
int cli_bench(int argc, char **argv);
#endif
