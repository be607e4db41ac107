/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the core on their way to Python's logging. The hook is called by threads that do not hold the interpreter's
 * lock, and whoever holds it may be waiting for such a thread. So a line is only put down here; the call that caused it
 * tells Python once it has the lock again, or the main thread does when it next comes by. */
#include "_rapt.h"

#include <stdatomic.h>
#include <stdbool.h>

#define MOST 4096                       /* lines that may wait; a program that never runs Python again keeps no more */

typedef struct line {
  struct line *next;
  unsigned long thread;                 /* that made the call */
  int kind, sink;
  char text[];
} line;

static _Atomic(line *) newest;          /* a stack: no lock that a fork could leave taken */
static atomic_uint waiting, lost;
static atomic_bool called, closed;      /* the main thread has been asked to come by; the interpreter is going away */
static _Thread_local bool telling;      /* what a handler causes itself is not logged: it would never end */
static PyObject *receiver, *open_sink;  /* receiver(kind, text, thread, sink, lost); open_sink(RAPT_LOG) -> sink */

static int come_by(void *unused)
{
  (void)unused;
  atomic_store(&called, false);
  log_tell();
  return 0;
}

void log_line(void *sink, int kind, const char *text)
{
  if (telling || atomic_load(&closed)) return;
  size_t bytes = strlen(text) + 1;
  line *l = atomic_fetch_add(&waiting, 1) < MOST ? malloc(sizeof *l + bytes) : NULL;
  if (!l) {
    atomic_fetch_sub(&waiting, 1);
    atomic_fetch_add(&lost, 1);
    return;
  }
  memcpy(l->text, text, bytes);
  l->kind = kind;
  l->sink = (int)(intptr_t)sink;
  l->thread = PyThread_get_thread_ident();
  l->next = atomic_load(&newest);
  while (!atomic_compare_exchange_weak(&newest, &l->next, l)) continue;
  if (!atomic_exchange(&called, true) && Py_AddPendingCall(come_by, NULL)) atomic_store(&called, false);
}

static line *oldest_first(void)
{
  line *l = atomic_exchange(&newest, NULL), *first = NULL;
  while (l) {
    line *next = l->next;
    l->next = first;
    first = l;
    l = next;
  }
  return first;
}

/* A handler's fault is the handler's; the call has run and keeps its result. Ctrl-C stays pending. */
static void tell(const line *l)
{
  PyObject *text = PyUnicode_DecodeUTF8(l->text, (Py_ssize_t)strlen(l->text), "replace");
  PyObject *done = text ? PyObject_CallFunction(receiver, "iOkiI", l->kind, text, l->thread, l->sink,
                                                (unsigned)atomic_exchange(&lost, 0)) : NULL;
  if (!done && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
    PyErr_Clear();
    PyErr_SetInterrupt();
  } else if (!done) {
    PyErr_WriteUnraisable(receiver);
  }
  Py_XDECREF(done);
  Py_XDECREF(text);
}

void log_tell(void)
{
  if (!atomic_load_explicit(&waiting, memory_order_relaxed) || telling || !receiver) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);   /* the caller's, of a call that failed */
  telling = true;
  for (line *l = oldest_first(), *next; l; l = next) {
    next = l->next;
    tell(l);
    free(l);
    atomic_fetch_sub(&waiting, 1);
  }
  telling = false;
  PyErr_Restore(type, value, trace);
}

/* The hook ignores RAPT_LOG: with one, the core leaves it to the caller (E4). A context without the hook has looked at the
 * variable, so here it is legal. */
static rapt_status environment_sink(const rapt_ctx_opts *opts, const char *spec, int *sink, rapt_reason *why)
{
  rapt_ctx *looked = NULL;
  rapt_status st = rapt_ctx_create(opts, &looked, why);
  rapt_ctx_destroy(looked);
  if (st) return st;
  PyObject *made = PyObject_CallFunction(open_sink, "s", spec);
  *sink = made ? (int)PyLong_AsLong(made) : 0;
  Py_XDECREF(made);
  return PyErr_Occurred() ? RAPT_INTERNAL : RAPT_OK;
}

rapt_status log_options(rapt_ctx_opts *opts, rapt_reason *why)
{
  int sink = 0;
  const char *spec = opts->flags & RAPT_CTX_NO_ENV ? NULL : getenv("RAPT_LOG");
  if (!receiver) return RAPT_OK;
  rapt_status st = spec && *spec ? environment_sink(opts, spec, &sink, why) : RAPT_OK;
  opts->log = log_line;
  opts->log_self = (void *)(intptr_t)sink;
  return st;
}

/* log_to(receiver, open_sink): who hears of lines; contexts made from now on. log_to(None, None): the last lines are told,
 * and no more come. */
PyObject *log_to(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  if (n != 2) return PyErr_Format(PyExc_TypeError, "two functions");
  if (args[0] == Py_None) {
    atomic_store(&closed, true);
    log_tell();
    Py_RETURN_NONE;
  }
  atomic_store(&closed, false);
  receiver = Py_NewRef(args[0]);
  open_sink = Py_NewRef(args[1]);
  Py_RETURN_NONE;
}
