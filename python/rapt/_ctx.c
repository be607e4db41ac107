/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and providers of the extension, and the tables that fill their structs. */
#include "_rapt.h"

#include <stdatomic.h>
#include <stdbool.h>

/* ---- Struct fields from a dict ---- */

static int fill_text(char *at, PyObject *value, PyObject *keep)
{
  Py_ssize_t n = 0;
  const char *text = PyUnicode_AsUTF8AndSize(value, &n);
  if (!text) return -1;
  if (strlen(text) != (size_t)n) {
    PyErr_SetString(PyExc_ValueError, "a text holds a NUL character");
    return -1;
  }
  memcpy(at, &text, sizeof text);
  return PyList_Append(keep, value);
}

static int fill_number(char *at, const field *f, PyObject *value)
{
  if (f->kind == F64) {
    double v = PyFloat_AsDouble(value);
    memcpy(at, &v, sizeof v);
    return PyErr_Occurred() ? -1 : 0;
  }
  if (f->kind == U64) {
    uint64_t v = PyLong_AsUnsignedLongLong(value);
    memcpy(at, &v, sizeof v);
    return PyErr_Occurred() ? -1 : 0;
  }
  long long v = PyLong_AsLongLong(value);
  if (PyErr_Occurred()) return -1;
  if (f->kind == I64) {
    int64_t wide = v;
    memcpy(at, &wide, sizeof wide);
    return 0;
  }
  if (f->kind == I32 ? (v < INT32_MIN || v > INT32_MAX) : (v < 0 || v > (long long)UINT32_MAX)) {
    PyErr_Format(PyExc_OverflowError, "%s is out of range", f->name);
    return -1;
  }
  uint32_t narrow = (uint32_t)v;        /* two's complement: the same four bytes for both signs */
  memcpy(at, &narrow, sizeof narrow);
  return 0;
}

static int fill_one(char *base, size_t has_at, const field *f, PyObject *value, PyObject *keep)
{
  uint64_t bits = 0;
  if (f->kind == TEXT) return fill_text(base + f->at, value, keep);
  if (f->kind == FLAG) {
    int on = PyObject_IsTrue(value);
    if (on <= 0) return on;
  } else if (fill_number(base + f->at, f, value)) {
    return -1;
  }
  size_t at = f->kind == FLAG ? f->at : has_at;
  memcpy(&bits, base + at, sizeof bits);
  bits |= f->bit;
  memcpy(base + at, &bits, sizeof bits);
  return 0;
}

int fill(void *base, size_t has_at, const field *table, size_t n, PyObject *options, PyObject *keep)
{
  PyObject *key, *value;
  Py_ssize_t pos = 0;
  while (PyDict_Next(options, &pos, &key, &value)) {
    const char *name = PyUnicode_AsUTF8AndSize(key, NULL);
    if (!name) return -1;
    size_t i = 0;
    while (i < n && strcmp(table[i].name, name)) i++;
    if (i == n) {
      PyErr_Format(PyExc_KeyError, "no field %s", name);
      return -1;
    }
    if (fill_one(base, has_at, &table[i], value, keep)) return -1;
  }
  return 0;
}

#define O(member) offsetof(rapt_ctx_opts, member)
static const field ctx_fields[] = {
  {"max_threads", O(max_threads), U32, 0},
  {"isa", O(isa), TEXT, 0},
  {"require", O(require), TEXT, 0},
  {"prefer", O(prefer), TEXT, 0},
  {"forbid", O(forbid), TEXT, 0},
  {"facts", O(facts), TEXT, 0},
  {"memory_limit", O(memory_limit), I64, RAPT_HAS_MEMORY_LIMIT},
  {"ref_limit", O(ref_limit), U64, 0},
  {"no_env", O(flags), FLAG, RAPT_CTX_NO_ENV},
};
#define R(member) offsetof(rapt_row, member)
static const field row_fields[] = {
  {"id", R(id), TEXT, 0},
  {"display", R(display), TEXT, 0},
  {"package", R(package), TEXT, 0},
  {"needs", R(needs), TEXT, 0},
  {"kinds", R(kinds), U32, 0},
  {"classes", R(classes), U32, 0},
  {"place", R(place), I32, 0},
  {"ran_on_hardware", R(ran_on_hardware), U32, 0},
  {"dtypes", R(dtypes), U32, 0},
  {"d_max", R(d_max), I32, 0},
  {"dv_rule", R(dv_rule), I32, 0},
  {"determinism", R(determinism), I32, 0},
  {"can", R(can), U64, 0},
  {"unknown", R(unknown), U64, 0},
};

/* ---- Contexts and providers ---- */

typedef struct provider {
  struct provider *next;
  rapt_backend backend;
  const rapt_backend *known;            /* whose rows these are, or some of them */
  uint32_t *index;                      /* of each row in known */
  rapt_row *rows;
  PyObject *run, *facts, *keep;
} provider;

/* Two contexts of the core where a binding lends the host's threads: they differ in nothing else, so that which of them
 * runs a call changes neither what is decided nor its bits (N18). */
struct context {
  _Atomic(rapt_ctx *) ctx;              /* the one in use */
  rapt_ctx *own, *lent;                 /* on rapt's threads; on the host's, or NULL */
  provider *providers;
  PyObject *options;
  unsigned generation;
};

static void provider_free(provider *p)
{
  Py_XDECREF(p->run);
  Py_XDECREF(p->facts);
  Py_XDECREF(p->keep);
  free(p->index);
  free(p->rows);
  free(p);
}

static void ctx_free(PyObject *capsule)
{
  context *c = PyCapsule_GetPointer(capsule, CTX_NAME);
  if (!c) return;
  rapt_ctx_destroy(c->own);
  rapt_ctx_destroy(c->lent);
  Py_XDECREF(c->options);
  while (c->providers) {
    provider *next = c->providers->next;
    provider_free(c->providers);
    c->providers = next;
  }
  free(c);
}

context *as_context(PyObject *const *args, Py_ssize_t n, Py_ssize_t want)
{
  if (n == want) return PyCapsule_GetPointer(args[0], CTX_NAME);
  PyErr_Format(PyExc_TypeError, "%zd arguments are needed", want);
  return NULL;
}

rapt_ctx *as_ctx(PyObject *const *args, Py_ssize_t n, Py_ssize_t want)
{
  context *c = as_context(args, n, want);
  return c ? c->ctx : NULL;
}

rapt_ctx *ctx_current(const context *c) { return c->ctx; }

unsigned ctx_generation(PyObject *ctx)
{
  context *c = PyCapsule_GetPointer(ctx, CTX_NAME);
  return c ? c->generation : 0;
}

/* ctx_age(ctx) -> int: changes whenever rows are registered, and what was decided before may no longer hold */
PyObject *ctx_age(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  context *c = as_context(args, n, 1);
  return c ? PyLong_FromUnsignedLong(c->generation) : NULL;
}

/* A context of the core from the options of Python. parallel: the threads to use, NULL for rapt's own. */
static int core_create(rapt_ctx **made, PyObject *options,
                       void (*parallel)(void *, uint32_t, void (*)(void *, uint32_t), void *))
{
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  PyObject *keep = PyList_New(0);
  rapt_status st = RAPT_INTERNAL;
  if (keep && !fill(&opts, O(has), ctx_fields, COUNT(ctx_fields), options, keep)) {
    opts.parallel_for = parallel;
    st = log_options(&opts, &why);
    if (!st) st = rapt_ctx_create(&opts, made, &why);
    if (st && !PyErr_Occurred()) raise_fault(st, &why);
  }
  Py_XDECREF(keep);
  return PyErr_Occurred() ? -1 : 0;
}

/* ctx_create(options) -> ctx */
PyObject *ctx_create(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  if (n != 1 || !PyDict_Check(args[0])) return PyErr_Format(PyExc_TypeError, "a dict");
  context *c = calloc(1, sizeof *c);
  if (!c) return PyErr_NoMemory();
  PyObject *capsule = core_create(&c->own, args[0], NULL) ? NULL : PyCapsule_New(c, CTX_NAME, ctx_free);
  if (!capsule) {
    rapt_ctx_destroy(c->own);
    free(c);
    return NULL;
  }
  c->ctx = c->own;
  c->options = Py_NewRef(args[0]);
  return capsule;
}

/* ctx_pool_add(ctx): PyTorch's threads can be chosen from now on. Before any provider is registered. */
PyObject *ctx_pool_add(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  context *c = as_context(args, n, 1);
  if (!c || c->providers || c->lent || core_create(&c->lent, c->options, torch_parallel))
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "a new context is needed");
  Py_RETURN_NONE;
}

/* ctx_pool(ctx, name) -> whose threads run calls until now, "own" or "torch"; name None leaves it so. */
PyObject *ctx_pool(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  context *c = as_context(args, n, 2);
  if (!c) return NULL;
  const char *before = c->ctx == c->own ? "own" : "torch", *name = before;
  if (args[1] != Py_None && !(name = PyUnicode_AsUTF8AndSize(args[1], NULL))) return NULL;
  rapt_ctx *chosen = strcmp(name, "own") == 0 ? c->own : strcmp(name, "torch") == 0 ? c->lent : NULL;
  if (!chosen) return PyErr_Format(PyExc_KeyError, "no pool %s", name);
  c->ctx = chosen;
  return PyUnicode_FromString(before);
}

/* ctx_rows(ctx) -> [(id, display, backend, kernel, place, classes, entered)], in the order of ctx_enter */
PyObject *ctx_rows(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  context *c = as_context(args, n, 1);
  PyObject *list = c ? PyList_New(0) : NULL;
  for (uint32_t i = 0; list && i < rapt_row_count(c->ctx); i++) {
    rapt_row_info r = RAPT_ROW_INFO_INIT;
    rapt_row_get(c->ctx, i, &r);
    uint64_t entered = r.entered;       /* by either context */
    if (c->lent && rapt_row_get(c->ctx == c->own ? c->lent : c->own, i, &r) == RAPT_OK) entered += r.entered;
    PyObject *row = Py_BuildValue("(ssssiIK)", r.id, r.display, r.backend, r.kernel, (int)r.place, (unsigned)r.classes,
                                  (unsigned long long)entered);
    if (!row || PyList_Append(list, row)) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

PyObject *ctx_facts(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  char text[2048];
  context *c = as_context(args, n, 1);
  if (!c) return NULL;
  rapt_ctx_facts_format(c->ctx, text, sizeof text);
  return PyUnicode_FromString(text);
}

/* ctx_enter(ctx, i): the binding has just run a host row itself (D28). */
PyObject *ctx_enter(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  context *c = as_context(args, n, 2);
  if (!c) return NULL;
  unsigned long i = PyLong_AsUnsignedLong(args[1]);
  if (PyErr_Occurred()) return NULL;
  return PyLong_FromLong((long)rapt_row_enter(c->ctx, (uint32_t)i));
}

/* ctx_line(ctx, family, dtypes, devices) -> (text, undecided): R4; None for the default lists. */
PyObject *ctx_line(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  context *c = as_context(args, n, 4);
  Py_ssize_t len = 0;
  const char *family = c ? PyUnicode_AsUTF8AndSize(args[1], &len) : NULL;
  const char *lists[2] = {NULL, NULL};
  for (int i = 0; family && i < 2; i++)
    if (args[2 + i] != Py_None && !(lists[i] = PyUnicode_AsUTF8AndSize(args[2 + i], NULL))) return NULL;
  if (!family) return NULL;
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  char line[1024], *names = malloc((size_t)len + 1);
  size_t length = 0;
  int undecided = 0;
  if (!names) return PyErr_NoMemory();
  rapt_status st = rapt_problem_parse(family, (size_t)len, &p, names, (size_t)len + 1, &why);
  if (!st) st = rapt_line_format(c->ctx, &p, lists[0], lists[1], line, sizeof line, &length, &undecided, &why);
  free(names);
  return st ? raise_fault(st, &why) : Py_BuildValue("(si)", line, undecided);
}

/* ctx_explain(ctx, problem string) -> (status, report): what would happen to such a call. */
PyObject *ctx_explain(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  context *c = as_context(args, n, 2);
  Py_ssize_t len = 0;
  const char *text = c ? PyUnicode_AsUTF8AndSize(args[1], &len) : NULL;
  if (!text) return NULL;
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_report *report = NULL;
  char *names = malloc((size_t)len + 1);
  if (!names) return PyErr_NoMemory();
  rapt_status st = rapt_problem_parse(text, (size_t)len, &p, names, (size_t)len + 1, &why);
  bool parsed = st == RAPT_OK;
  if (parsed) st = rapt_explain(c->ctx, &p, &report);
  free(names);
  return parsed ? answer(st, report, args[0]) : raise_fault(st, &why);
}

/* Facts, or in their place the text of what went wrong. */
static rapt_status provider_probe(void *self, rapt_facts *facts, rapt_reason *why)
{
  provider *p = self;
  PyObject *key, *value;
  if (PyUnicode_Check(p->facts)) {
    const char *text = PyUnicode_AsUTF8AndSize(p->facts, NULL);
    PyOS_snprintf(why->got, sizeof why->got, "%s", text ? text : "a text that is no UTF-8");
    PyErr_Clear();
    return RAPT_DEVICE_ERROR;
  }
  Py_ssize_t pos = 0;
  rapt_status st = RAPT_OK;
  while (!st && PyDict_Next(p->facts, &pos, &key, &value)) {
    const char *name = PyUnicode_AsUTF8AndSize(key, NULL), *text = name ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
    st = text ? rapt_facts_set(facts, name, text) : RAPT_INTERNAL;
    if (st) PyOS_snprintf(why->got, sizeof why->got, "fact %s was refused", name ? name : "?");
  }
  PyErr_Clear();
  return st;
}

/* run(row id, problem string, {name: address}) -> status. Comes from a thread without the interpreter's lock. An
 * exception becomes DEVICE_ERROR: nothing unwinds through the core (E4); Python's hook for such cases hears of it. */
static rapt_status provider_run(void *self, uint32_t row, void *state, const rapt_problem *cast, const rapt_buffers *b,
                                void *workspace, void *stream)
{
  (void)state, (void)workspace, (void)stream;
  provider *p = self;
  rapt_status st = RAPT_DEVICE_ERROR;
  char text[4097];
  rapt_problem_format(cast, text, sizeof text);
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *pointers = PyDict_New(), *result = NULL;
  for (size_t i = 0; pointers && i < N_SLOTS; i++) {
    void *ptr;
    memcpy(&ptr, (const char *)b + slots[i].at, sizeof ptr);
    PyObject *address = ptr ? PyLong_FromVoidPtr(ptr) : NULL;
    if (address) PyDict_SetItemString(pointers, slots[i].name, address);
    Py_XDECREF(address);
  }
  if (pointers) result = PyObject_CallFunction(p->run, "ssO", p->rows[row].id, text, pointers);
  if (result) st = (rapt_status)PyLong_AsLong(result);
  if (PyErr_Occurred()) {
    PyErr_WriteUnraisable(p->run);
    st = RAPT_DEVICE_ERROR;
  }
  Py_XDECREF(result);
  Py_XDECREF(pointers);
  PyGILState_Release(gil);
  return st;
}

/* The callbacks of a known backend go by the numbers of its own rows. */
static uint32_t provider_extra(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts,
                               rapt_reason *why, uint32_t n)
{
  provider *p = self;
  return p->known->extra(p->known->self, p->index[row], cast, facts, why, n);
}

static int provider_pick(void *self, uint32_t row, const rapt_problem *cast, const rapt_facts *facts, uint32_t *member)
{
  provider *p = self;
  uint32_t known = p->index[row];
  int found = p->known->pick(p->known->self, p->index[row], cast, facts, &known);
  if (found != 1) return found;
  for (uint32_t i = 0; i < p->backend.n_rows; i++)
    if (p->index[i] == known) {
      *member = i;
      return 1;
    }
  return -1;
}

/* Some rows of one known backend, by id. */
static int provider_some(provider *p, PyObject *ids)
{
  uint32_t n = (uint32_t)PyTuple_Size(ids);
  const char *first = n ? PyUnicode_AsUTF8AndSize(PyTuple_GetItem(ids, 0), NULL) : "";
  p->known = first ? rapt_backend_known(first) : NULL;
  if (!p->known) return first ? (PyErr_Format(PyExc_KeyError, "no known row %s", first), -1) : -1;
  p->rows = calloc(n, sizeof *p->rows);
  p->index = calloc(n, sizeof *p->index);
  if (!p->rows || !p->index) return PyErr_NoMemory() ? 0 : -1;
  for (uint32_t i = 0; i < n; i++) {
    const char *id = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(ids, (Py_ssize_t)i), NULL);
    if (!id) return -1;
    uint32_t at = 0;
    while (at < p->known->n_rows && strcmp(p->known->rows[at].id, id)) at++;
    if (at == p->known->n_rows) return PyErr_Format(PyExc_KeyError, "%s is not of the backend of %s", id, first), -1;
    p->rows[i] = p->known->rows[at];
    p->index[i] = at;
  }
  p->backend.n_rows = n;
  p->backend.extra = p->known->extra ? provider_extra : NULL;
  p->backend.pick = p->known->pick ? provider_pick : NULL;
  return 0;
}

/* changes: None, or fields of every row; "also" adds capabilities, which the binding's way of calling brings. */
static int provider_change(provider *p, PyObject *changes)
{
  if (changes == Py_None) return 0;
  PyObject *fields = PyDict_Check(changes) ? PyDict_Copy(changes) : PyErr_Format(PyExc_TypeError, "a dict of fields");
  PyObject *also = fields ? PyDict_GetItemString(fields, "also") : NULL;
  uint64_t bits = also ? PyLong_AsUnsignedLongLong(also) : 0;
  int bad = !fields || PyErr_Occurred() || (also && PyDict_DelItemString(fields, "also"));
  for (uint32_t i = 0; i < p->backend.n_rows && !bad; i++) {
    p->rows[i].can |= bits;
    p->rows[i].unknown &= ~bits;
    bad = fill(&p->rows[i], 0, row_fields, COUNT(row_fields), fields, p->keep);
  }
  Py_XDECREF(fields);
  return bad ? -1 : 0;
}

/* The rows of a provider: those the tables know for a row id, some of these, or one dict a row. */
static int provider_rows(provider *p, PyObject *rows, PyObject *place)
{
  if (PyTuple_Check(rows)) return provider_some(p, rows) ? -1 : provider_change(p, place);
  if (PyList_Check(rows)) {
    p->backend.n_rows = (uint32_t)PyList_Size(rows);
  } else {
    const char *id = PyUnicode_AsUTF8AndSize(rows, NULL);
    const rapt_backend *known = id ? rapt_backend_known(id) : NULL;
    if (!known) return id ? (PyErr_Format(PyExc_KeyError, "no known row %s", id), -1) : -1;
    p->backend = *known;
  }
  p->rows = calloc(p->backend.n_rows + 1, sizeof *p->rows);
  if (!p->rows) return PyErr_NoMemory() ? 0 : -1;
  for (uint32_t i = 0; i < p->backend.n_rows; i++) {
    if (p->backend.rows) p->rows[i] = p->backend.rows[i];
    p->rows[i].struct_size = RAPT_ROW_SIZE;
    if (PyList_Check(rows) &&
        fill(&p->rows[i], 0, row_fields, COUNT(row_fields), PyList_GetItem(rows, (Py_ssize_t)i), p->keep))
      return -1;
    if (place != Py_None) p->rows[i].place = (int32_t)PyLong_AsLong(place);
  }
  return PyErr_Occurred() ? -1 : 0;
}

static provider *provider_named(const context *c, const char *name)
{
  provider *p = c->providers;
  while (p && strcmp(p->backend.name, name)) p = p->next;
  return p;
}

/* The same rows with other facts: what was read before it was loaded, then what loading found. */
static PyObject *provider_again(context *c, provider *p, PyObject *facts)
{
  PyObject *before = p->facts;
  p->facts = Py_NewRef(facts);
  Py_DECREF(before);
  rapt_reason why = RAPT_REASON_INIT;
  rapt_status st = rapt_backend_register(c->own, &p->backend, &why);
  if (!st && c->lent) st = rapt_backend_register(c->lent, &p->backend, &why);
  if (st) return raise_fault(st, &why);
  c->generation++;
  Py_RETURN_NONE;
}

/* ctx_register(ctx, name, rows, run, facts, place): rows: an id for its whole backend, a tuple of ids of one backend, or
 * a list of dicts; run None: rows that the binding runs; facts: a dict, or the text of a load that failed; place: a
 * number, for a tuple a dict of fields as provider_change, or None. A tuple under a name that is there gives the rows
 * of that name other facts. */
PyObject *ctx_register(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  context *c = as_context(args, n, 6);
  const char *name = c ? PyUnicode_AsUTF8AndSize(args[1], NULL) : NULL;
  if (!name || !(PyDict_Check(args[4]) || PyUnicode_Check(args[4])))
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "facts: a dict or a text");
  provider *p = PyTuple_Check(args[2]) ? provider_named(c, name) : NULL;
  if (p) return provider_again(c, p, args[4]);
  p = calloc(1, sizeof *p);
  if (!p) return PyErr_NoMemory();
  p->keep = PyList_New(0);
  p->facts = Py_NewRef(args[4]);
  p->run = Py_NewRef(args[3]);
  if (!p->keep || PyList_Append(p->keep, args[1]) || provider_rows(p, args[2], args[5])) {
    provider_free(p);
    return NULL;
  }
  p->backend.struct_size = RAPT_BACKEND_SIZE;
  p->backend.api_version = RAPT_PROVIDER_VERSION;
  p->backend.rows = p->rows;
  p->backend.name = name;
  p->backend.self = p;
  p->backend.probe = provider_probe;
  p->backend.run = p->run == Py_None ? NULL : provider_run;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_status st = rapt_backend_register(c->own, &p->backend, &why);
  if (st) {
    provider_free(p);
    return raise_fault(st, &why);
  }
  c->generation++;
  p->next = c->providers;               /* kept for the context's life, as provider.h asks */
  c->providers = p;
  if (c->lent) st = rapt_backend_register(c->lent, &p->backend, &why);
  if (st) return raise_fault(st, &why);
  Py_RETURN_NONE;
}
