/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of the extension share. */
#ifndef RAPT_PYTHON_RAPT_H
#define RAPT_PYTHON_RAPT_H
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "rapt/provider.h"

#include <stdlib.h>
#include <string.h>

#define CTX_NAME "rapt.ctx"
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

typedef enum kind { I32, U32, I64, U64, F64, FLAG, TEXT } kind;
typedef struct field {
  const char *name;
  size_t at;
  kind kind;
  uint64_t bit;                         /* FLAG: the bit to set when true; else the bit of `has` that makes it count */
} field;

/* Sets fields of a struct from a dict; texts join the list `keep`, since they must outlive the struct. A name that the
 * table does not have is an error of the Python files, not of their caller. */
int fill(void *base, size_t has_at, const field *table, size_t n, PyObject *options, PyObject *keep);

extern PyObject *fault_type;            /* _rapt.Fault: args (status, code, field, axis, index, got, want) */
PyObject *reason_tuple(rapt_status status, const rapt_reason *r);
PyObject *raise_fault(rapt_status status, const rapt_reason *r);       /* NULL, always */

/* (status, report or None). The report keeps its context, a capsule, and so the providers, alive. */
PyObject *answer(rapt_status st, rapt_report *report, PyObject *ctx);

/* The arrays of rapt_buffers. */
typedef struct slot { const char *name; size_t at; int writable; } slot;
#define N_SLOTS 14
extern const slot slots[N_SLOTS];

/* The handle behind a context capsule: args[0] of n arguments, checked against `want`. */
rapt_ctx *as_ctx(PyObject *const *args, Py_ssize_t n, Py_ssize_t want);
typedef struct context context;         /* what a context capsule holds: lives as long as the capsule */
context *as_context(PyObject *const *args, Py_ssize_t n, Py_ssize_t want);
rapt_ctx *ctx_current(const context *c);        /* the one whose pool is in use */
unsigned ctx_generation(PyObject *ctx);         /* how often rows have been registered */
/* The problem of a call of Python's, and the generation of the context that ran it last. */
const rapt_problem *call_problem(PyObject *call, unsigned *generation);
PyObject *ctx_create(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_rows(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_facts(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_enter(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_age(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_explain(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_line(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_register(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_pool_add(PyObject *module, PyObject *const *args, Py_ssize_t n);
PyObject *ctx_pool(PyObject *module, PyObject *const *args, Py_ssize_t n);

/* parallel_for of rapt_ctx_opts on PyTorch's threads; rapt.torch has been imported. */
void torch_parallel(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg);

/* A context's log: the hook, and what RAPT_LOG says. RAPT_INTERNAL: an exception is set. */
rapt_status log_options(rapt_ctx_opts *opts, rapt_reason *why);
void log_line(void *sink, int kind, const char *text);
void log_tell(void);                    /* with the interpreter's lock: hands on the lines that wait */
PyObject *log_to(PyObject *module, PyObject *const *args, Py_ssize_t n);
#endif
