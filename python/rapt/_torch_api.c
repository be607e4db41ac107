/* SPDX-License-Identifier: Apache-2.0 */
/* What the operators of the PyTorch binding stand on: the shim's functions, tensors, preferences, reports. */
#include "_torch_ops.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

torch_api torch;
static pid_t home;                      /* the process that imported rapt.torch */

/* ---- The shim ---- */

#define S(name) {#name, offsetof(torch_api, name)}
static const struct { const char *name; size_t at; } symbols[] = {
  S(aoti_torch_library_init_fragment), S(aoti_torch_library_init_impl), S(torch_library_def_with_tags),
  S(torch_library_impl), S(aoti_torch_delete_library_object), S(torch_tag_pt2_compliant_tag),
  S(torch_tag_needs_fixed_stride_order), S(aoti_torch_abi_version), S(aoti_torch_get_sizes), S(aoti_torch_get_strides),
  S(aoti_torch_get_dim), S(aoti_torch_get_dtype), S(torch_get_const_data_ptr), S(torch_get_mutable_data_ptr),
  S(aoti_torch_empty_strided), S(aoti_torch_delete_tensor_object), S(torch_delete_stable_ivalue),
  S(torch_new_string_handle), S(torch_string_c_str), S(torch_delete_string), S(torch_call_dispatcher),
  S(torch_exception_get_what_without_backtrace), S(aoti_torch_check), S(aoti_torch_grad_mode_is_enabled),
  S(torch_parallel_for), S(aoti_torch_device_type_cpu), S(aoti_torch_dtype_float16), S(aoti_torch_dtype_bfloat16),
  S(aoti_torch_dtype_float32), S(aoti_torch_dtype_float64), S(aoti_torch_dtype_bool), S(aoti_torch_dtype_int32),
  S(aoti_torch_dtype_int64), S(aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu),
};
#define REQUIRES_GRAD "_ZNK3c1010TensorImpl13requires_gradEv"
#define CONTEXT "_ZN2at13globalContextEv"
#define FLASH_ENABLED "_ZNK2at7Context19userEnabledFlashSDPEv"
#define WRAP "_Z16THPVariable_WrapRKN2at10TensorBaseE"

/* torch's own Python module loads its libraries for itself alone, so the process's symbols do not show them; the name
 * of a loaded library does. */
void *torch_symbol(const char *library, const char *name)
{
  void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD), *symbol = loaded ? dlsym(loaded, name) : NULL;
  if (!symbol)
    PyErr_Format(PyExc_ImportError, "rapt.torch needs %s of %s, which %s", name, library,
                 loaded ? "this version of PyTorch does not have" : "is not loaded");
  return symbol;
}

static bool find(const char *library, const char *name, size_t at)
{
  void *symbol = torch_symbol(library, name);
  if (symbol) memcpy((char *)&torch + at, &symbol, sizeof symbol);
  return symbol != NULL;
}

static int32_t dtypes[RAPT_FP8E5M2 + 1];        /* the host's numbers, by the core's */

bool torch_api_load(void)
{
  for (size_t i = 0; i < COUNT(symbols); i++)
    if (!find("libtorch_cpu.so", symbols[i].name, symbols[i].at)) return false;
  if (!find("libc10.so", REQUIRES_GRAD, offsetof(torch_api, requires_grad))) return false;
  if (!find("libtorch_cpu.so", CONTEXT, offsetof(torch_api, global_context))) return false;
  if (!find("libtorch_cpu.so", FLASH_ENABLED, offsetof(torch_api, flash_enabled))) return false;
  if (!find("libtorch_python.so", WRAP, offsetof(torch_api, wrap))) return false;
  for (size_t i = 0; i < COUNT(dtypes); i++) dtypes[i] = -1;
  dtypes[RAPT_FP16] = torch.aoti_torch_dtype_float16();
  dtypes[RAPT_BF16] = torch.aoti_torch_dtype_bfloat16();
  dtypes[RAPT_FP32] = torch.aoti_torch_dtype_float32();
  dtypes[RAPT_FP64] = torch.aoti_torch_dtype_float64();
  dtypes[RAPT_BOOL] = torch.aoti_torch_dtype_bool();
  dtypes[RAPT_INT32] = torch.aoti_torch_dtype_int32();
  dtypes[RAPT_INT64] = torch.aoti_torch_dtype_int64();
  home = getpid();
  return true;
}

int32_t torch_dtype(int32_t dtype) { return dtypes[dtype]; }

bool torch_describe(tensor_handle t, rapt_tensor *out)
{
  int64_t rank = 0, *sizes = NULL, *strides = NULL;
  int32_t dtype = -1;
  torch.aoti_torch_get_dim(t, &rank);
  torch.aoti_torch_get_sizes(t, &sizes);
  torch.aoti_torch_get_strides(t, &strides);
  torch.aoti_torch_get_dtype(t, &dtype);
  out->rank = (int32_t)(rank < 100 ? rank : 100);
  for (int i = 0; i < out->rank && i < 8; i++) {
    out->size[i] = sizes[i];
    out->stride[i] = strides[i];
  }
  out->kind = RAPT_CPU;
  out->index = 0;
  for (out->dtype = RAPT_FP16; out->dtype < (int32_t)COUNT(dtypes); out->dtype++)
    if (dtypes[out->dtype] == dtype) return true;
  out->dtype = RAPT_NONE;
  return false;
}

void torch_release(slot_value *stack, const char *kinds)
{
  for (size_t i = 0; kinds[i]; i++) {
    slot_value *held = (slot_value *)(uintptr_t)stack[i];
    if (!held) continue;
    if (kinds[i] == 'T') torch.aoti_torch_delete_tensor_object(held);
    if (kinds[i] == 't') torch.aoti_torch_delete_tensor_object((tensor_handle)(uintptr_t)*held);
    if (kinds[i] == 't' || kinds[i] == 'f') torch.torch_delete_stable_ivalue(held);
    if (kinds[i] == 's') torch.torch_delete_string(held);
  }
}

void torch_raise(const char *text) { torch.aoti_torch_check(0, __func__, __FILE__, __LINE__, text); }

/* ---- The context and the scopes, which live in Python ---- */

static PyObject *make_context, *merge_policy;   /* () -> ctx; (text of the call) -> text with the scopes' */
static _Atomic(context *) known;
static atomic_int scopes;                       /* scopes of preference that are open somewhere in the process */

rapt_ctx *torch_ctx(void)
{
  context *c = atomic_load_explicit(&known, memory_order_acquire);
  if (c) return ctx_current(c);
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *capsule = PyObject_CallNoArgs(make_context);        /* one of the binding's, which lives as long as it */
  c = capsule ? as_context(&capsule, 1, 1) : NULL;
  if (!c) PyErr_WriteUnraisable(make_context);
  atomic_store_explicit(&known, c, memory_order_release);
  PyGILState_Release(gil);
  return c ? ctx_current(c) : NULL;
}

/* Preferences as texts that never die: problems that are remembered point to them. There are as many as a program has
 * different ones written down. */
typedef struct preference {
  struct preference *next;
  const char *part[5];                  /* require, prefer, forbid, origin, memory limit; NULL for none */
  char text[];
} preference;
static preference *preferences;
static pthread_mutex_t preferences_lock = PTHREAD_MUTEX_INITIALIZER;

/* text: the five parts, each but the last ended by byte 1. */
static preference *preference_make(const char *text)
{
  size_t bytes = strlen(text) + 1;
  preference *made = calloc(1, sizeof *made + 2 * bytes);
  if (!made) return NULL;
  memcpy(made->text, text, bytes);
  char *at = memcpy(made->text + bytes, text, bytes);
  for (int i = 0; i < 5 && at; i++) {
    char *end = strchr(at, 1);
    if (end) *end = 0;
    made->part[i] = *at ? at : NULL;
    at = end ? end + 1 : NULL;
  }
  return made;
}

static const preference *preference_of(const char *text)
{
  pthread_mutex_lock(&preferences_lock);
  preference *p = preferences;
  while (p && strcmp(p->text, text)) p = p->next;
  if (!p && (p = preference_make(text))) {
    p->next = preferences;
    preferences = p;
  }
  pthread_mutex_unlock(&preferences_lock);
  return p;
}

static const preference *preference_in_scope(const char *text)
{
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *merged = PyObject_CallFunction(merge_policy, "s", text);
  const char *bytes = merged ? PyUnicode_AsUTF8AndSize(merged, NULL) : NULL;
  const preference *p = bytes ? preference_of(bytes) : NULL;
  if (!p) PyErr_WriteUnraisable(merge_policy);
  Py_XDECREF(merged);
  PyGILState_Release(gil);
  return p;
}

bool torch_scoped(void) { return atomic_load_explicit(&scopes, memory_order_relaxed) > 0; }

/* The same preferences and a ban on our own rows, which adds to the others (D9). */
static bool with_ban(const char *policy, const char *why, char *text, size_t n)
{
  const char *part[5];
  int bytes[5];
  for (int i = 0; i < 5; i++) {
    part[i] = policy;
    bytes[i] = (int)strcspn(policy, "\1");
    policy += bytes[i] + (policy[bytes[i]] != 0);
  }
  int all = snprintf(text, n, "%.*s\1%.*s\1%.*s%scpu,ref\1%s\1%.*s", bytes[0], part[0], bytes[1], part[1], bytes[2],
                     part[2], bytes[2] ? "," : "", why, bytes[4], part[4]);
  return all > 0 && (size_t)all < n;
}

/* Of a call's preferences and the scopes' and a ban; NULL: they could not be read. */
static const preference *preference_found(const char *policy, const char *barred)
{
  char text[2048];
  if (barred) {
    if (!with_ban(policy, barred, text, sizeof text)) return NULL;
    policy = text;
  }
  return torch_scoped() ? preference_in_scope(policy) : preference_of(policy);
}

bool torch_policy(rapt_problem *p, const char *policy, const char *barred)
{
  static _Thread_local struct { const char *barred; const preference *found; } last_ban;
  bool alone = !*policy && !torch_scoped();
  if (alone && !barred) return true;
  const preference *found = alone && last_ban.barred == barred ? last_ban.found : preference_found(policy, barred);
  if (!found) return false;
  if (alone) {
    last_ban.barred = barred;
    last_ban.found = found;
  }
  p->require = found->part[0];
  p->prefer = found->part[1];
  p->forbid = found->part[2];
  p->origin = found->part[3];
  if (!found->part[4]) return true;
  p->memory_limit = strtoll(found->part[4], NULL, 10);
  p->has |= RAPT_HAS_MEMORY_LIMIT;
  return true;
}

/* ops_scope(change): how many scopes are open has changed by this number. */
PyObject *ops_scope(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  long change = n == 1 ? PyLong_AsLong(args[0]) : 0;
  if (PyErr_Occurred()) return NULL;
  atomic_fetch_add(&scopes, (int)change);
  Py_RETURN_NONE;
}

void torch_python(PyObject *make, PyObject *merge)
{
  make_context = Py_NewRef(make);
  merge_policy = Py_NewRef(merge);
}

/* ---- PyTorch's threads ---- */

typedef struct shared {
  void (*task)(void *arg, uint32_t i);
  void *arg;
  uint32_t n;
  _Atomic uint32_t next;
} shared;

/* The range only says how many threads may come; which task is whose, the counter says. */
static void take_tasks(int64_t begin, int64_t end, void *arg)
{
  (void)begin, (void)end;
  shared *s = arg;
  for (uint32_t i; (i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed)) < s->n;) s->task(s->arg, i);
}

/* In a forked child PyTorch's threads are gone and its pool waits for them for ever, so the caller does the work; and it
 * does what is left where PyTorch refused. */
void torch_parallel(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg)
{
  (void)self;
  shared s = {task, arg, n, 0};
  if (getpid() == home) (void)torch.torch_parallel_for(0, n, 1, take_tasks, &s);
  take_tasks(0, n, &s);
}

/* ---- Reports, made when somebody asks ---- */

static _Thread_local rapt_problem last;
static _Thread_local bool last_known, last_ran;
static _Thread_local const char *last_note;

void torch_remember(const rapt_problem *p)
{
  last = *p;
  last_known = true;
  last_ran = false;
  last_note = NULL;
}

void torch_ran(void) { last_ran = true; }

void torch_note(const char *note) { last_note = note; }

/* ops_report() -> (status, report, note or None) of the last call of an operator in this thread, once; else None. */
PyObject *ops_report(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module, (void)args, (void)n;
  if (!last_known) Py_RETURN_NONE;
  last_known = false;
  PyObject *capsule = PyObject_CallNoArgs(make_context);
  rapt_ctx *ctx = capsule ? as_ctx(&capsule, 1, 1) : NULL;
  if (!ctx) {
    Py_XDECREF(capsule);
    return NULL;
  }
  rapt_report *report = NULL;
  rapt_status st = rapt_explain(ctx, &last, &report);
  if (st == RAPT_OK && last_ran) rapt_report_ran(report);       /* R3 */
  PyObject *told = answer(st, report, capsule), *result = NULL;
  if (told) result = Py_BuildValue("(OOz)", PyTuple_GetItem(told, 0), PyTuple_GetItem(told, 1), last_note);
  Py_XDECREF(told);
  Py_DECREF(capsule);
  return result;
}

PyObject *ops_forget(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module, (void)args, (void)n;
  last_known = false;
  Py_RETURN_NONE;
}

/* ---- Calls that did not run on a row of ours ---- */

#define REMEMBERED 8
static _Thread_local struct { rapt_problem p; verdict v; rapt_ctx *ctx; uint32_t rows; } remembered[REMEMBERED];
static _Thread_local unsigned next_remembered;

static int32_t row_index(rapt_ctx *ctx, const char *id)
{
  uint32_t rows = rapt_row_count(ctx);
  for (uint32_t i = 0; i < rows; i++) {
    rapt_row_info info = RAPT_ROW_INFO_INIT;
    if (rapt_row_get(ctx, i, &info) == RAPT_OK && strcmp(info.id, id) == 0) return (int32_t)i;
  }
  return -1;
}

static bool banned(rapt_ctx *ctx, const rapt_report *report)
{
  rapt_reason why = RAPT_REASON_INIT;
  rapt_row_info info = RAPT_ROW_INFO_INIT;
  for (uint32_t i = 0; i < rapt_report_count(report); i++) {
    if (rapt_row_get(ctx, i, &info) != RAPT_OK || !(info.classes & RAPT_CLASS_HOST)) continue;
    for (uint32_t j = 0; rapt_report_reason(report, i, j, &why) == RAPT_OK; j++)
      if (why.code == RAPT_CODE_FORBIDDEN || why.code == RAPT_CODE_NOT_REQUIRED || why.code == RAPT_CODE_MEMORY)
        return true;
  }
  return false;
}

static void decide(rapt_ctx *ctx, const rapt_problem *p, verdict *v)
{
  rapt_report *report = NULL;
  rapt_decision d = RAPT_DECISION_INIT;
  v->status = rapt_explain(ctx, p, &report);
  v->row = -1;
  v->id[0] = 0;
  if (v->status == RAPT_OK && rapt_report_decision(report, &d) == RAPT_OK) {
    snprintf(v->id, sizeof v->id, "%s", d.row);
    if (d.classes & RAPT_CLASS_HOST) v->row = row_index(ctx, d.row);
  }
  v->banned = v->status == RAPT_REFUSED && banned(ctx, report);
  rapt_report_destroy(report);
}

/* A decision is a function of the problem and of the rows there are (D1); explaining one takes a hundred times as long
 * as comparing two problems. */
void torch_verdict(rapt_ctx *ctx, const rapt_problem *p, verdict *v)
{
  uint32_t rows = rapt_row_count(ctx);
  for (int i = 0; i < REMEMBERED; i++)
    if (remembered[i].ctx == ctx && remembered[i].rows == rows && memcmp(&remembered[i].p, p, sizeof *p) == 0) {
      *v = remembered[i].v;
      return;
    }
  decide(ctx, p, v);
  unsigned at = next_remembered++ % REMEMBERED;
  remembered[at].p = *p;
  remembered[at].v = *v;
  remembered[at].ctx = ctx;
  remembered[at].rows = rows;
}

void torch_host_ran(rapt_ctx *ctx, const verdict *v)
{
  if (v->row >= 0) (void)rapt_row_enter(ctx, (uint32_t)v->row);
}

const char *const torch_spelling[RAPT_FIELD_COUNT] = {
  [RAPT_FIELD_Q] = "query", [RAPT_FIELD_K] = "key", [RAPT_FIELD_V] = "value",
  [RAPT_FIELD_QKV] = "query, key and value", [RAPT_FIELD_DROPOUT] = "dropout_p",
};

void torch_refusal(rapt_ctx *ctx, const rapt_problem *p, char *text, size_t n)
{
  rapt_report *report = NULL;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_status st = rapt_explain(ctx, p, &report);
  if (report && rapt_report_error(report, &why) == RAPT_OK) rapt_reason_format(&why, NULL, torch_spelling, text, n);
  else if (report && st == RAPT_REFUSED) rapt_report_format(report, RAPT_FORM_BRIEF, torch_spelling, text, n);
  else snprintf(text, n, "rapt: %s", rapt_status_name((int32_t)st));
  rapt_report_destroy(report);
}
