/* SPDX-License-Identifier: Apache-2.0 */
/* The extension under the Python package: structs in, structs out, no semantics. Handles are capsules, so the files
 * need nothing but the stable ABI of Python 3.11. What an argument means is decided in the core; what it is called, and
 * which exception it becomes, in the Python files beside this one. Here: faults, calls, reports, the module. */
#include "_rapt.h"
#include "_torch_ops.h"

#define CALL_NAME "rapt.call"
#define REPORT_NAME "rapt.report"

PyObject *fault_type;

/* ---- Faults ---- */

PyObject *reason_tuple(rapt_status status, const rapt_reason *r)
{
  return Py_BuildValue("(iiiiLss)", (int)status, (int)r->code, (int)r->field, (int)r->axis, (long long)r->index, r->got,
                       r->want);
}

PyObject *raise_fault(rapt_status status, const rapt_reason *r)
{
  if (status == RAPT_NOMEM) return PyErr_NoMemory();
  PyObject *args = reason_tuple(status, r);
  if (args) {
    PyErr_SetObject(fault_type, args);
    Py_DECREF(args);
  }
  return NULL;
}

#define P(member) offsetof(rapt_problem, member)
static const field problem_fields[] = {
  {"causal", P(flags), FLAG, RAPT_CAUSAL},
  {"want_lse", P(flags), FLAG, RAPT_WANT_LSE},
  {"scale", P(scale), F64, RAPT_HAS_SCALE},
  {"alignment", P(alignment), I32, 0},
  {"q_offset", P(q_offset), I64, 0},
  {"window_left", P(window[0]), I64, RAPT_HAS_WINDOW},
  {"window_right", P(window[1]), I64, RAPT_HAS_WINDOW},
  {"autocast_dtype", P(autocast_dtype), I32, RAPT_HAS_AUTOCAST},
  {"autocast_device", P(autocast_device), I32, RAPT_HAS_AUTOCAST},
  {"grad_q", P(flags), FLAG, RAPT_GRAD_Q},
  {"grad_k", P(flags), FLAG, RAPT_GRAD_K},
  {"grad_v", P(flags), FLAG, RAPT_GRAD_V},
  {"grad_bias", P(flags), FLAG, RAPT_GRAD_BIAS},
  {"grad_sinks", P(flags), FLAG, RAPT_GRAD_SINKS},
  {"dropout", P(dropout), F64, 0},
  {"softcap", P(softcap), F64, 0},
  {"strict", P(flags), FLAG, RAPT_STRICT},
  {"mixed_kv", P(flags), FLAG, RAPT_MIXED_KV},
  {"assume_finite", P(flags), FLAG, RAPT_ASSUME_FINITE},
  {"determinism", P(determinism), I32, 0},
  {"memory_limit", P(memory_limit), I64, RAPT_HAS_MEMORY_LIMIT},
  {"verify", P(verify), U32, 0},
  {"require", P(require), TEXT, 0},
  {"prefer", P(prefer), TEXT, 0},
  {"forbid", P(forbid), TEXT, 0},
  {"origin", P(origin), TEXT, 0},
  {"q_len", P(q_len), I32, 0},
  {"kv_len", P(kv_len), I32, 0},
  {"cu", P(cu), I32, 0},
  {"packed_sequences", P(B), I64, 0},
  {"sinks_dtype", P(sinks.dtype), I32, 0},
  {"sinks_size", P(sinks.size[0]), I64, 0},
  {"slopes_dtype", P(slopes.dtype), I32, 0},
  {"slopes_size_b", P(slopes.size[0]), I64, 0},
  {"slopes_size_h", P(slopes.size[1]), I64, 0},
};

/* ---- A call: problem, pointers, and what keeps them alive ---- */

#define MAX_VIEWS 20
typedef struct call {
  rapt_problem p;
  rapt_buffers b;
  PyObject *keep;
  Py_buffer view[MAX_VIEWS];
  int n_views;
  unsigned generation;                  /* of the context, when the call ran last with a report */
} call;

#define B(member) offsetof(rapt_buffers, member)
const slot slots[N_SLOTS] = {
  {"q", B(q), 0}, {"k", B(k), 0}, {"v", B(v), 0}, {"mask", B(mask), 0}, {"bias", B(bias), 0}, {"sinks", B(sinks), 0},
  {"slopes", B(slopes), 0}, {"q_len", B(q_len), 0}, {"kv_len", B(kv_len), 0}, {"cu_q", B(cu_q), 0},
  {"cu_k", B(cu_k), 0}, {"q_offset", B(q_offset), 0}, {"out", B(out), 1}, {"lse", B(lse), 1},
};

static void call_free(PyObject *capsule)
{
  call *c = PyCapsule_GetPointer(capsule, CALL_NAME);
  if (!c) return;
  for (int i = 0; i < c->n_views; i++) PyBuffer_Release(&c->view[i]);
  Py_XDECREF(c->keep);
  free(c);
}

static int read_ints(PyObject *seq, int64_t out[8], int32_t *n)
{
  Py_ssize_t len = PySequence_Size(seq);
  if (len < 0) return -1;
  *n = (int32_t)(len < 100 ? len : 100);                /* more than 8 axes: the core refuses the rank */
  for (Py_ssize_t i = 0; i < len && i < 8; i++) {
    PyObject *item = PySequence_GetItem(seq, i);
    if (!item) return -1;
    out[i] = PyLong_AsLongLong(item);
    Py_DECREF(item);
    if (PyErr_Occurred()) return -1;
  }
  return 0;
}

static int misaligned(int field, Py_ssize_t bytes, Py_ssize_t itemsize)
{
  rapt_reason why = RAPT_REASON_INIT;
  Py_ssize_t power = 1;
  while (bytes % (2 * power) == 0) power *= 2;
  why.code = RAPT_CODE_MEM_ALIGN;
  why.field = field;
  why.axis = -1;
  why.index = -1;
  PyOS_snprintf(why.got, sizeof why.got, "%ld", (long)power);
  PyOS_snprintf(why.want, sizeof why.want, "%ld", (long)itemsize);
  raise_fault(RAPT_ARG, &why);
  return -1;
}

/* (buffer, dtype): an object with the buffer protocol, of any strides. */
static int read_buffer(call *c, PyObject *object, int writable, int field, rapt_tensor *t, void **ptr)
{
  if (c->n_views == MAX_VIEWS) {
    PyErr_SetString(PyExc_SystemError, "too many buffers");
    return -1;
  }
  Py_buffer *view = &c->view[c->n_views];
  if (PyObject_GetBuffer(object, view, PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0))) return -1;
  c->n_views++;
  t->rank = view->ndim < 100 ? view->ndim : 100;
  for (int i = 0; i < view->ndim && i < 8; i++) {
    t->size[i] = view->shape[i];
    if (view->strides[i] % view->itemsize && view->shape[i] > 1) return misaligned(field, view->strides[i], view->itemsize);
    t->stride[i] = view->strides[i] / view->itemsize;
  }
  *ptr = view->buf;
  return 0;
}

/* (address, dtype, sizes, strides, kind, index): memory that the caller keeps alive. */
static int read_address(PyObject *object, rapt_tensor *t, void **ptr)
{
  PyObject *sizes = NULL, *strides = NULL;
  unsigned long long address = 0;
  int32_t n = 0;
  if (!PyArg_ParseTuple(object, "KiOOii", &address, &t->dtype, &sizes, &strides, &t->kind, &t->index)) return -1;
  if (read_ints(sizes, t->size, &t->rank) || read_ints(strides, t->stride, &n)) return -1;
  *ptr = (void *)(uintptr_t)address;
  return 0;
}

static int read_tensor(call *c, PyObject *object, int writable, int field, rapt_tensor *t, void **ptr)
{
  memset(t, 0, sizeof *t);
  if (PyTuple_Size(object) != 2) return read_address(object, t, ptr);
  PyObject *buffer = PyTuple_GetItem(object, 0), *dtype = PyTuple_GetItem(object, 1);
  if (!buffer || !dtype) return -1;
  t->dtype = (int32_t)PyLong_AsLong(dtype);
  if (PyErr_Occurred()) return -1;
  return read_buffer(c, buffer, writable, field, t, ptr);
}

/* Reads the tensor called `name` and stores its pointer. 1: read, 0: not given. */
static int take(call *c, PyObject *tensors, const char *name, int field, rapt_tensor *t)
{
  PyObject *object = PyDict_GetItemString(tensors, name);
  if (!object) return 0;
  size_t i = 0;
  while (strcmp(slots[i].name, name)) i++;
  void *ptr = NULL;
  if (read_tensor(c, object, slots[i].writable, field, t, &ptr)) return -1;
  memcpy((char *)&c->b + slots[i].at, &ptr, sizeof ptr);
  return 1;
}

static int take_all(call *c, PyObject *tensors)
{
  static const char *const rest[] = {"sinks", "slopes", "q_len", "kv_len", "cu_q", "cu_k", "q_offset"};
  static const int field[] = {RAPT_FIELD_SINKS, RAPT_FIELD_SLOPES, RAPT_FIELD_Q_LEN, RAPT_FIELD_KV_LEN, RAPT_FIELD_CU_Q,
                              RAPT_FIELD_CU_K, RAPT_FIELD_Q_OFFSET};
  rapt_tensor q, k, v, t;
  rapt_reason why = RAPT_REASON_INIT;
  if (take(c, tensors, "q", RAPT_FIELD_Q, &q) != 1 || take(c, tensors, "k", RAPT_FIELD_K, &k) != 1 ||
      take(c, tensors, "v", RAPT_FIELD_V, &v) != 1) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_KeyError, "q, k and v are needed");
    return -1;
  }
  rapt_status st = rapt_problem_set_qkv(&c->p, &q, &k, &v, &why);
  int mask = st ? 0 : take(c, tensors, "mask", RAPT_FIELD_MASK, &t);
  if (mask == 1) st = rapt_problem_set_mask(&c->p, &t, &why);
  int bias = st || mask < 0 ? 0 : take(c, tensors, "bias", RAPT_FIELD_BIAS, &t);
  if (bias == 1) st = rapt_problem_set_bias(&c->p, &t, &why);
  if (mask < 0 || bias < 0) return -1;
  if (st) return raise_fault(st, &why) ? 0 : -1;
  for (size_t i = 0; i < COUNT(rest); i++)
    if (take(c, tensors, rest[i], field[i], &t) < 0) return -1;
  return 0;
}

/* prepare(tensors, options) -> call */
static PyObject *prepare(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  if (n != 2 || !PyDict_Check(args[0]) || !PyDict_Check(args[1])) return PyErr_Format(PyExc_TypeError, "two dicts");
  call *c = calloc(1, sizeof *c);
  if (!c) return PyErr_NoMemory();
  c->p.struct_size = (uint32_t)sizeof c->p;
  c->b.struct_size = (uint32_t)sizeof c->b;
  c->keep = PyList_New(0);
  PyObject *capsule = c->keep ? PyCapsule_New(c, CALL_NAME, call_free) : NULL;
  if (!capsule) {
    Py_XDECREF(c->keep);
    free(c);
    return NULL;
  }
  if (take_all(c, args[0]) || fill(&c->p, P(has), problem_fields, COUNT(problem_fields), args[1], c->keep)) {
    Py_DECREF(capsule);
    return NULL;
  }
  return capsule;
}

static PyObject *ints_tuple(const int64_t *v, int32_t n)
{
  PyObject *tuple = PyTuple_New(n);
  for (int32_t i = 0; tuple && i < n; i++) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(v[i]));
  return tuple;
}

/* output(call, field) -> (dtype, sizes, strides): what to allocate for out or lse; the call then expects just that. */
static PyObject *output(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  call *c = n == 2 ? PyCapsule_GetPointer(args[0], CALL_NAME) : NULL;
  if (!c) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a call and a field");
  int which = (int)PyLong_AsLong(args[1]);
  rapt_tensor t;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_status st = rapt_problem_output(&c->p, which, &t, &why);
  if (st) return raise_fault(st, &why);
  rapt_desc *d = which == RAPT_FIELD_OUT ? &c->p.out : &c->p.lse;
  static const int all[] = {0, 1, 2, 3}, packed_out[] = {2, 1, 3}, packed_lse[] = {1, 2};   /* M17: [S,H,D], [H,S] */
  const int *axis = !c->p.cu ? all : which == RAPT_FIELD_OUT ? packed_out : packed_lse;
  memset(d->stride, 0, sizeof d->stride);
  for (int i = 0; i < t.rank; i++) d->stride[axis[i]] = t.stride[i];
  c->p.has |= which == RAPT_FIELD_OUT ? RAPT_HAS_OUT_STRIDES : RAPT_HAS_LSE_STRIDES;
  return Py_BuildValue("(iNN)", (int)t.dtype, ints_tuple(t.size, t.rank), ints_tuple(t.stride, t.rank));
}

/* attach(call, name, tensor): the memory of out or lse. */
static PyObject *attach(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  call *c = n == 3 ? PyCapsule_GetPointer(args[0], CALL_NAME) : NULL;
  if (!c) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a call, a name, a tensor");
  rapt_tensor t;
  void *ptr = NULL;
  const char *name = PyUnicode_AsUTF8AndSize(args[1], NULL);
  if (!name || read_tensor(c, args[2], 1, RAPT_FIELD_OUT, &t, &ptr)) return NULL;
  if (strcmp(name, "out") == 0) c->b.out = ptr;
  else c->b.lse = ptr;
  Py_RETURN_NONE;
}

/* ---- Calls and reports ---- */

static void report_free(PyObject *capsule)
{
  rapt_report_destroy(PyCapsule_GetPointer(capsule, REPORT_NAME));
  Py_XDECREF((PyObject *)PyCapsule_GetContext(capsule));
}

/* (status, report or None). The report keeps its context, and so the providers, alive. */
PyObject *answer(rapt_status st, rapt_report *report, PyObject *ctx)
{
  if (st == RAPT_NOMEM) return PyErr_NoMemory();
  if (!report) return Py_BuildValue("(iO)", (int)st, Py_None);
  PyObject *capsule = PyCapsule_New(report, REPORT_NAME, report_free);
  if (!capsule) {
    rapt_report_destroy(report);
    return NULL;
  }
  PyCapsule_SetContext(capsule, Py_NewRef(ctx));
  return Py_BuildValue("(iN)", (int)st, capsule);
}

static PyObject *ask(PyObject *const *args, Py_ssize_t n, int run)
{
  rapt_ctx *c = as_ctx(args, n, 2);
  call *k = c ? PyCapsule_GetPointer(args[1], CALL_NAME) : NULL;
  if (!k) return NULL;
  rapt_report *report = NULL;
  rapt_status st;
  if (run) k->generation = ctx_generation(args[0]);
  Py_BEGIN_ALLOW_THREADS
  st = run ? rapt_attention(c, &k->p, &k->b, &report) : rapt_explain(c, &k->p, &report);
  Py_END_ALLOW_THREADS
  log_tell();
  return answer(st, report, args[0]);
}

/* attention(ctx, call), explain(ctx, call) -> (status, report) */
static PyObject *attention(PyObject *module, PyObject *const *args, Py_ssize_t n) { (void)module; return ask(args, n, 1); }
static PyObject *explain(PyObject *module, PyObject *const *args, Py_ssize_t n) { (void)module; return ask(args, n, 0); }

/* again(ctx, call, q, k, v, mask, bias, out, lse) -> status: the same problem on other memory, by address, 0 for none; no
 * report. -1, and nothing ran: rows have been registered since the run that made its report. Many threads may use one
 * call, so its own pointers stay as they are. */
static PyObject *again(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  static const size_t at[] = {B(q), B(k), B(v), B(mask), B(bias), B(out), B(lse)};
  rapt_ctx *c = as_ctx(args, n, 2 + (Py_ssize_t)COUNT(at));
  call *k = c ? PyCapsule_GetPointer(args[1], CALL_NAME) : NULL;
  if (!k) return NULL;
  if (k->generation != ctx_generation(args[0])) return PyLong_FromLong(-1);
  rapt_buffers b = RAPT_BUFFERS_INIT;
  for (size_t i = 0; i < COUNT(at); i++) {
    void *ptr = PyLong_AsVoidPtr(args[2 + i]);
    if (!ptr && PyErr_Occurred()) return NULL;
    memcpy((char *)&b + at[i], &ptr, sizeof ptr);
  }
  rapt_status st;
  Py_BEGIN_ALLOW_THREADS
  st = rapt_attention(c, &k->p, &b, NULL);
  Py_END_ALLOW_THREADS
  log_tell();
  return PyLong_FromLong((long)st);
}

const rapt_problem *call_problem(PyObject *object, unsigned *generation)
{
  call *k = PyCapsule_GetPointer(object, CALL_NAME);
  if (k) *generation = k->generation;
  return k ? &k->p : NULL;
}

static PyObject *problem_text(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  char text[4097];
  call *k = n == 1 ? PyCapsule_GetPointer(args[0], CALL_NAME) : NULL;
  if (!k) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a call");
  rapt_problem_format(&k->p, text, sizeof text);
  return PyUnicode_FromString(text);
}

/* A host's own spellings: None, or RAPT_FIELD_COUNT strings and Nones (E3). */
static int read_names(PyObject *names, const char *spelling[RAPT_FIELD_COUNT])
{
  for (int i = 0; i < RAPT_FIELD_COUNT; i++) {
    PyObject *name = names == Py_None ? Py_None : PyTuple_GetItem(names, i);
    if (!name) return -1;
    spelling[i] = name == Py_None ? NULL : PyUnicode_AsUTF8AndSize(name, NULL);
    if (!spelling[i] && name != Py_None) return -1;
  }
  return 0;
}

/* report_format(report, form, names) -> str */
static PyObject *report_format(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  const char *names[RAPT_FIELD_COUNT];
  rapt_report *r = n == 3 ? PyCapsule_GetPointer(args[0], REPORT_NAME) : NULL;
  if (!r) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a report, a form, names");
  int form = (int)PyLong_AsLong(args[1]);
  if (PyErr_Occurred() || read_names(args[2], names)) return NULL;
  size_t len = rapt_report_format(r, form, names, NULL, 0);
  char *text = malloc(len + 1);
  if (!text) return PyErr_NoMemory();
  rapt_report_format(r, form, names, text, len + 1);
  PyObject *result = PyUnicode_FromStringAndSize(text, (Py_ssize_t)len);
  free(text);
  return result;
}

/* report_decision(report) -> (status, row, kernel, level, cast_dtype, casts); casts: a set of bits, one a field */
static PyObject *report_decision(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  rapt_decision d = RAPT_DECISION_INIT;
  rapt_report *r = n == 1 ? PyCapsule_GetPointer(args[0], REPORT_NAME) : NULL;
  if (!r) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a report");
  rapt_report_decision(r, &d);
  return Py_BuildValue("(isssiI)", (int)d.status, d.row, d.kernel, d.level, (int)d.cast_dtype, (unsigned)d.casts);
}

/* report_entered(report) -> status: the binding has just run the host row of this report itself (D28, R1) */
static PyObject *report_entered(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  rapt_report *r = n == 1 ? PyCapsule_GetPointer(args[0], REPORT_NAME) : NULL;
  if (!r) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a report");
  return PyLong_FromLong((long)rapt_report_entered(r));
}

/* report_error(report) -> the tuple of Fault, or None */
static PyObject *report_error(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_report *r = n == 1 ? PyCapsule_GetPointer(args[0], REPORT_NAME) : NULL;
  if (!r) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "a report");
  if (rapt_report_error(r, &why)) Py_RETURN_NONE;
  return reason_tuple(RAPT_ARG, &why);
}

/* reason_text((code, field, axis, index, got, want), names) -> the sentence of a fault */
static PyObject *reason_text(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  const char *names[RAPT_FIELD_COUNT], *got, *want;
  rapt_reason r = RAPT_REASON_INIT;
  long long index;
  char text[1024];
  if (n != 2) return PyErr_Format(PyExc_TypeError, "a reason and names");
  if (!PyArg_ParseTuple(args[0], "iiiLss", &r.code, &r.field, &r.axis, &index, &got, &want)) return NULL;
  if (read_names(args[1], names)) return NULL;
  r.index = index;
  PyOS_snprintf(r.got, sizeof r.got, "%s", got);
  PyOS_snprintf(r.want, sizeof r.want, "%s", want);
  rapt_reason_format(&r, NULL, names, text, sizeof text);
  return PyUnicode_FromString(text);
}

static PyObject *name_list(const char *(*name)(int32_t), int32_t n)
{
  PyObject *tuple = PyTuple_New(n);
  for (int32_t i = 0; tuple && i < n; i++) PyTuple_SetItem(tuple, i, PyUnicode_FromString(name(i)));
  return tuple;
}

static PyMethodDef methods[] = {
#define FAST(name, doc) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, doc}
  FAST(prepare, "prepare(tensors, options) -> call"),
  FAST(output, "output(call, field) -> (dtype, sizes, strides)"),
  FAST(attach, "attach(call, name, tensor)"),
  FAST(attention, "attention(ctx, call) -> (status, report)"),
  FAST(explain, "explain(ctx, call) -> (status, report)"),
  FAST(again, "again(ctx, call, q, k, v, mask, bias, out, lse) -> status"),
  FAST(problem_text, "problem_text(call) -> str"),
  FAST(ctx_create, "ctx_create(options) -> ctx"),
  FAST(ctx_rows, "ctx_rows(ctx) -> list"),
  FAST(ctx_facts, "ctx_facts(ctx) -> str"),
  FAST(ctx_enter, "ctx_enter(ctx, row)"),
  FAST(ctx_age, "ctx_age(ctx) -> int"),
  FAST(ctx_explain, "ctx_explain(ctx, problem) -> (status, report)"),
  FAST(ctx_line, "ctx_line(ctx, family, dtypes, devices) -> (text, undecided)"),
  FAST(ctx_register, "ctx_register(ctx, name, rows, run, facts, place)"),
  FAST(ctx_pool_add, "ctx_pool_add(ctx)"),
  FAST(ctx_pool, "ctx_pool(ctx, name) -> name"),
  FAST(log_to, "log_to(receiver, open_sink)"),
  FAST(report_format, "report_format(report, form, names) -> str"),
  FAST(report_decision, "report_decision(report) -> tuple"),
  FAST(report_entered, "report_entered(report) -> status"),
  FAST(report_error, "report_error(report) -> tuple or None"),
  FAST(reason_text, "reason_text(reason, names) -> str"),
  FAST(ops_register, "ops_register(make_context, merge_policy)"),
  FAST(ops_override, "ops_override(on)"),
  FAST(ops_host, "ops_host(change) -> depth"),
  FAST(ops_scope, "ops_scope(change)"),
  FAST(ops_report, "ops_report() -> (status, report) or None"),
  FAST(ops_forget, "ops_forget()"),
  FAST(known_learn, "known_learn(inference, tensor, address, keys)"),
  FAST(known_begin, "known_begin(tensor, parameter, forward_ad, flash, modes, set_last, broken)"),
  FAST(known_keep, "known_keep(ctx, call, report)"),
  FAST(known_call, "known_call(ctx, query, key, value, attn_mask, dropout_p, is_causal, keywords) -> tensor or None"),
  {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rapt", "The extension under rapt.", -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rapt(void);
PyMODINIT_FUNC PyInit__rapt(void)
{
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  fault_type = PyErr_NewException("rapt._rapt.Fault", NULL, NULL);
  if (!fault_type || PyModule_AddObjectRef(module, "Fault", fault_type) ||
      PyModule_AddObject(module, "STATUSES", name_list(rapt_status_name, RAPT_INTERNAL + 1)) ||
      PyModule_AddObject(module, "CODES", name_list(rapt_code_name, RAPT_CODE_COUNT)) ||
      PyModule_AddObject(module, "DTYPES", name_list(rapt_dtype_name, RAPT_FP8E5M2 + 1)) ||
      PyModule_AddObject(module, "FIELDS", name_list(rapt_field_name, RAPT_FIELD_COUNT)) ||
      PyModule_AddStringConstant(module, "VERSION", rapt_version())) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
