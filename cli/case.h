/* SPDX-License-Identifier: Apache-2.0 */
/* rapt cases: the case files of tests/cases (its README defines the form). A case is read, its tensors are built and
 * scattered into guarded memory, it is called by automatic choice and with each own row, and its checks are made. */
#ifndef RAPT_CASE_H
#define RAPT_CASE_H
#include <jansson.h>
#include <setjmp.h>

#include "cli.h"

/* ---- Expressions (case_expr.c): C without division in whole-number variables ---- */

typedef struct case_expr { uint8_t op[96]; double number[96]; int n; } case_expr;
/* letters: the variables' names, one letter each. NULL, or what is wrong. */
const char *case_expr_parse(case_expr *e, const char *text, const char *letters);
double case_expr_value(const case_expr *e, const int64_t *variables);

/* ---- Memory (case_mem.c) ---- */

/* Bytes between two inaccessible pages; the last byte lies before the second one. */
typedef struct case_region { void *map; size_t map_bytes; unsigned char *bytes; size_t n; } case_region;
bool case_region_make(case_region *r, size_t n);         /* false: the mapping is not granted */
void case_region_free(case_region *r);
void case_region_protect(const case_region *r, bool read_only);

typedef struct case_tensor {
  int32_t dtype, rank;                /* dtype 0: absent */
  const char *axes;                   /* letters of the axes: "bhsd", packed "shd", "bhij" from the right */
  int64_t size[4], stride[4], count;
  double *value;                      /* logical elements, the last axis fastest; NULL for outputs */
  case_region region;
  unsigned char *base;                /* element (0,..,0) */
  unsigned char *saved;               /* the bytes before the call; NULL where the region is too large */
} case_tensor;

/* Element count behind the first `lead` indices. */
int64_t case_span(const case_tensor *t, int lead);
/* Element offset of a flat logical index. */
int64_t case_offset(const case_tensor *t, int64_t flat);
void case_indices(const case_tensor *t, int64_t flat, int64_t index[4]);
/* Memory around the elements; surround: the value between and around them (dtype 0 of it: a pattern). */
bool case_tensor_place(case_tensor *t, bool guard, const double *surround);
void case_tensor_scatter(const case_tensor *t, const double *value);
void case_tensor_gather(const case_tensor *t, double *value);
void case_tensor_save(case_tensor *t);
bool case_tensor_gaps_same(const case_tensor *t);        /* no byte outside the elements changed */
bool case_tensor_same(const case_tensor *t);             /* no byte changed */
void case_tensor_restore(const case_tensor *t);          /* the saved bytes */
void case_tensor_free(case_tensor *t);
#define CASE_PATTERN 0xFF                                /* unwritten bytes: a NaN that no arithmetic makes */
int64_t case_tensor_unwritten(const case_tensor *t);     /* an element that still holds the pattern; -1 */

/* ---- A file (case_file.c) ---- */

typedef struct case_file { const char *path; json_t *root; const json_t *cases; } case_file;
int case_file_load(case_file *f, const char *path);      /* CLI_OK or CLI_USAGE (said) */

/* A malformed case: leaves through the jump of case_guard with its message in text. */
typedef struct case_fault { jmp_buf jump; char text[320]; } case_fault;
extern case_fault case_fault_now;
_Noreturn void case_bad(const char *format, ...) CLI_PRINTF(1, 2);

/* Fields; they leave with case_bad on a wrong type. what: the field's name for messages. */
const json_t *case_field(const json_t *object, const char *name);            /* NULL where absent or null */
double case_number(const json_t *v, const char *what);                       /* a number or "nan", "inf", "-inf" */
int64_t case_int(const json_t *v, const char *what);
uint64_t case_whole(const json_t *v, const char *what);                      /* a whole number or a decimal string */
const char *case_text(const json_t *v, const char *what);
int case_ints(const json_t *list, int64_t *out, int max, const char *what);  /* the length */

/* ---- A call (case_build.c, case_fill.c) ---- */

enum { CASE_Q, CASE_K, CASE_V, CASE_MASK, CASE_BIAS, CASE_SINKS, CASE_SLOPES, CASE_QLEN, CASE_KVLEN, CASE_CUQ, CASE_CUK,
       CASE_QOFFSET, CASE_INPUTS, CASE_OUT = CASE_INPUTS, CASE_LSE, CASE_TENSORS };
extern const char *const case_tensor_names[CASE_TENSORS];
int case_tensor_find(const char *name);                  /* -1 */

typedef struct case_call {
  const json_t *json;
  const char *id, *kind;
  int64_t B, Hq, Hkv, Sq, Skv, D, Dv;
  bool packed, rank3, huge;           /* huge: a tensor's memory is a mapping that is not filled */
  case_tensor t[CASE_TENSORS];
  int alias_out, alias_v;             /* the input whose memory out, v use; -1 */
  rapt_problem p;
  rapt_buffers b;
  rapt_status built;                  /* not OK: a fault found while the problem was filled, in why */
  rapt_reason why;
} case_call;
void case_fill(case_tensor *t, const json_t *recipe);
void case_build(case_call *c, const json_t *json);       /* may leave with case_bad; built, no memory yet */
bool case_place(case_call *c);                           /* memory; false: not granted */
void case_free(case_call *c);

/* ---- The oracle (case_oracle.c): a forward in plain double loops ---- */
/* out and lse of a dense call without dropout; false where it does not serve the call. */
bool case_oracle(const case_call *c, double *out, double *lse);

/* ---- Runs (case_run.c) ---- */

typedef struct case_result {
  bool made;
  const char *skip;                   /* why there was no call; NULL */
  rapt_status status;
  char row[32], kernel[96];
  double *out, *lse;                  /* of an OK call */
  cli_str wrong;                      /* what is wrong with a refusal, or with memory after the call */
  bool no_backward;                   /* a backward case whose gradients are refused */
} case_result;

typedef struct case_suite {
  rapt_ctx *ctx;
  const json_t **cases;               /* of all files */
  case_call *calls;                   /* one a case; json NULL: not built */
  size_t n_cases, n_slots;
  const char **slots;                 /* slot 0: NULL, automatic choice; then own rows by id */
  case_result *results;               /* [n_cases][n_slots] */
} case_suite;
size_t case_find(const case_suite *s, const char *id);
case_call *case_get(case_suite *s, size_t i);            /* built and placed; NULL: memory is not granted */
case_result *case_run(case_suite *s, size_t i, size_t slot);
/* One more call on the memory as it is; out and lse are written where it is OK. */
rapt_status case_again(const case_suite *s, const case_call *c, size_t slot, double *out, double *lse);
bool case_bits_equal(const double *a, const double *b, int64_t n);

/* ---- Checks (case_want.c) ---- */

/* All checks of an OK result; what fails is added to text, a line each. */
void case_check(case_suite *s, size_t i, size_t slot, cli_str *text);
/* Is a refusal of a row with this code explained by what the case asks? (case_refuse.c) */
bool case_code_fits(const case_call *c, int32_t code, const char *row);
void case_check_refusal(const case_call *c, const rapt_report *r, const char *row, cli_str *text);
void case_check_fault(const case_call *c, rapt_status st, const rapt_reason *why, cli_str *text);
#endif
