/* SPDX-License-Identifier: Apache-2.0 */
/* The short way of rapt.torch.sdpa: plain tensors, nothing of PyTorch's going on that wants a say, and a problem that has
 * run on a row of ours before. The answer to anything else is None, and the call is made in full, in Python. */
#include "_torch_ops.h"

/* ---- PyTorch's objects ----
 *
 * Where a Python object holds its tensor, and a tensor its dispatch keys, is found from what PyTorch says of a sample; the
 * keys are all that makes a tensor other than plain: negated, wrapped, sparse, on another device. A thread's dispatch
 * state has a bit for every mode that would see an operator: autocast, function transforms, dispatch modes, tracers. It is
 * kept as the difference from the usual one, zero. */

typedef struct dispatch_state { uint64_t included, excluded; } dispatch_state;
#define STATE "_ZN3c104impl26raw_local_dispatch_key_setE"       /* thread-local, of libc10 */

static struct {
  size_t at_tensor, at_keys;
  uint64_t keys[2];                     /* of a plain tensor, made outside and inside of inference mode */
  dispatch_state state[2];              /* in the same two places */
  PyObject *tensor, *parameter;         /* the types whose objects are plain */
  PyObject *forward_ad, *level;         /* the dict of a module, and the name in it: >= 0 while forward-mode AD is on */
  PyObject *flash, *modes;              /* () -> bool: sdpa_kernel allows flash; a function mode is on */
  PyObject *set_last, *broken;          /* (report), what last_report() says; (status, report), which raises */
  PyObject *scale, *gqa;                /* names of keywords */
} host;

static const dispatch_state *state_here(void)
{
  static _Thread_local const dispatch_state *here;
  if (!here) here = torch_symbol("libc10.so", STATE);
  return here;
}

static size_t find_word(const void *object, uint64_t word, size_t words)
{
  for (size_t i = 1; i < words; i++)
    if (memcmp((const char *)object + 8 * i, &word, 8) == 0) return 8 * i;
  return 0;
}

/* known_learn(inference, tensor, address, keys): twice, in a new thread, of a sample made outside and one made inside of
 * inference mode; address: of its implementation. */
PyObject *known_learn(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  if (n != 4) return PyErr_Format(PyExc_TypeError, "four arguments");
  int inference = PyObject_IsTrue(args[0]);
  uint64_t address = PyLong_AsUnsignedLongLong(args[2]), keys = PyLong_AsUnsignedLongLong(args[3]);
  const dispatch_state *here = state_here();
  if (PyErr_Occurred() || !here) return NULL;
  size_t at_tensor = find_word(args[1], address, 6);
  size_t at_keys = at_tensor ? find_word((const void *)(uintptr_t)address, keys, 24) : 0;
  bool usual = !(here->included | here->excluded);
  if (!at_keys || usual == inference || (inference && (at_tensor != host.at_tensor || at_keys != host.at_keys)))
    return PyErr_Format(PyExc_ImportError, "rapt.torch does not know the inside of this version's %s",
                        !at_tensor ? "torch.Tensor objects" : !at_keys ? "c10::TensorImpl" : "dispatch state");
  host.at_tensor = at_tensor;
  host.at_keys = at_keys;
  host.keys[inference] = keys;
  host.state[inference] = *here;
  Py_RETURN_NONE;
}

/* known_begin(Tensor, Parameter, forward_ad, flash, modes, set_last, broken): the rest, once a process. Where that did not
 * happen, no call takes the short way. */
PyObject *known_begin(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  PyObject **slot[] = {&host.tensor, &host.parameter, &host.forward_ad, &host.flash, &host.modes, &host.set_last,
                       &host.broken};
  if (n != (Py_ssize_t)COUNT(slot)) return PyErr_Format(PyExc_TypeError, "seven arguments");
  for (size_t i = 0; i < COUNT(slot); i++) *slot[i] = Py_NewRef(args[i]);
  host.level = PyUnicode_InternFromString("_current_level");
  host.scale = PyUnicode_InternFromString("scale");
  host.gqa = PyUnicode_InternFromString("enable_gqa");
  Py_RETURN_NONE;
}

static bool says(PyObject *question, PyObject *answer)
{
  PyObject *given = PyObject_CallNoArgs(question);
  Py_XDECREF(given);                    /* True and False never die */
  return given == answer;
}

/* Nothing is going on that only the call in full knows how to treat. */
static bool quiet(void)
{
  const dispatch_state *here = state_here();
  if (!here || (memcmp(here, &host.state[0], sizeof *here) && memcmp(here, &host.state[1], sizeof *here))) return false;
  PyObject *level = PyDict_GetItemWithError(host.forward_ad, host.level);
  return level && PyLong_AsLong(level) < 0 && !torch_scoped() && says(host.modes, Py_False) &&
         says(host.flash, Py_True);
}

/* The tensor of a Python object; NULL for one that is not plain. */
static tensor_handle plain(PyObject *object)
{
  PyObject *type = (PyObject *)Py_TYPE(object);
  if (type != host.tensor && type != host.parameter) return NULL;
  tensor_handle t = (char *)object + host.at_tensor;
  uint64_t keys;
  memcpy(&keys, *(char **)t + host.at_keys, sizeof keys);
  return keys == host.keys[0] || keys == host.keys[1] ? t : NULL;
}

static bool wanted(tensor_handle t) { return t && torch.requires_grad(*(void **)t); }

/* ---- Calls that ran on a row of ours ---- */

typedef struct entry {
  rapt_problem p;
  PyObject *report;
  unsigned generation;
} entry;

#define SLOTS 512                       /* half of them in use at most, as many as the core has plans (P8) */
static entry *table[SLOTS];
static int entries;
static PyObject *context_of_table;

static void replace(PyObject **at, PyObject *object)
{
  PyObject *before = *at;
  *at = Py_NewRef(object);
  Py_XDECREF(before);
}

static void forget_all(void)
{
  PyObject *reports[SLOTS];
  int n = 0;
  for (int i = 0; i < SLOTS; i++) {
    if (!table[i]) continue;
    reports[n++] = table[i]->report;
    free(table[i]);
    table[i] = NULL;
  }
  entries = 0;
  while (n) Py_DECREF(reports[--n]);    /* what hangs on one may call here */
}

/* The slot of a problem, or the empty one where it belongs. */
static entry **slot_of(const rapt_problem *p)
{
  const uint64_t words[] = {p->has, p->flags, (uint64_t)p->B, (uint64_t)p->Hq, (uint64_t)p->Sq, (uint64_t)p->Skv,
                            (uint64_t)p->D, (uint64_t)p->q.dtype, (uint64_t)p->q.stride[2], (uint64_t)p->k.stride[2],
                            (uint64_t)p->mask.stride[0], (uint64_t)p->bias.stride[0]};
  uint64_t h = 0;
  for (size_t i = 0; i < COUNT(words); i++) h = (h << 5 ^ h >> 59 ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
  size_t at = h >> 55;
  while (table[at] && memcmp(&table[at]->p, p, sizeof *p)) at = (at + 1) % SLOTS;
  return &table[at];
}

/* known_keep(ctx, call, report): this call, made in full with none but the host's own arguments, ran on a row of ours. */
PyObject *known_keep(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  unsigned generation;
  const rapt_problem *p = n == 3 ? call_problem(args[1], &generation) : NULL;
  if (!p) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "three arguments");
  if (p->require || p->prefer || p->forbid || p->has & (RAPT_HAS_AUTOCAST | RAPT_HAS_MEMORY_LIMIT)) Py_RETURN_NONE;
  if (entries >= SLOTS / 2 || context_of_table != args[0]) forget_all();
  replace(&context_of_table, args[0]);
  entry **slot = slot_of(p), *made = *slot;
  if (!made && !(made = calloc(1, sizeof *made))) return PyErr_NoMemory();
  entries += !*slot;
  made->p = *p;
  made->generation = generation;
  *slot = made;
  replace(&made->report, args[2]);
  Py_RETURN_NONE;
}

/* ---- The call ---- */

/* scale and enable_gqa, of the types that need no look at their values. */
static bool keywords(job *j, PyObject *given, bool *gqa)
{
  *gqa = false;
  if (!PyDict_Size(given)) return true;
  PyObject *scale = PyDict_GetItemWithError(given, host.scale), *grouped = PyDict_GetItemWithError(given, host.gqa);
  if (PyDict_Size(given) != (scale != NULL) + (grouped != NULL)) return false;
  if (scale && scale != Py_None) {
    if (!PyFloat_CheckExact(scale)) return false;
    j->p.scale = PyFloat_AsDouble(scale);
    j->p.has |= RAPT_HAS_SCALE;
  }
  *gqa = grouped == Py_True;
  return !grouped || grouped == Py_True || grouped == Py_False;
}

/* args: those of known_call behind its first. The problem and its pointers, but for out; false: not a call for here. */
static bool understood(job *j, PyObject *const *args)
{
  tensor_handle t[4] = {NULL};
  bool gqa;
  for (int i = 0; i < 4; i++)
    if ((i < 3 || args[3] != Py_None) && !(t[i] = plain(args[i]))) return false;
  if (!PyFloat_CheckExact(args[4]) || PyFloat_AsDouble(args[4]) != 0 || (args[5] != Py_True && args[5] != Py_False))
    return false;
  if (torch.aoti_torch_grad_mode_is_enabled() && (wanted(t[0]) || wanted(t[1]) || wanted(t[2]) || wanted(t[3]))) return false;
  torch_begin(j);
  if (!keywords(j, args[6], &gqa) || torch_operands(j, t[0], t[1], t[2])) return false;
  rapt_tensor mask = {.dtype = RAPT_BOOL};
  if (t[3]) torch_describe(t[3], &mask);
  bool boolean = mask.dtype == RAPT_BOOL;
  if (torch_planes(j, boolean ? t[3] : NULL, boolean ? NULL : t[3])) return false;
  if (args[5] == Py_True) {
    j->p.flags |= RAPT_CAUSAL;
    j->p.alignment = RAPT_TOP_LEFT;
  }
  torch_dense(&j->p, false);
  return gqa || j->p.Hkv == 1 || j->p.Hkv == j->p.Hq;   /* H4 */
}

static PyObject *result_of(tensor_handle out, PyObject *report)
{
  Py_XDECREF(ops_forget(NULL, NULL, 0));
  PyObject *said = PyObject_CallFunctionObjArgs(host.set_last, report, NULL);
  Py_XDECREF(said);
  return said ? torch.wrap(out) : NULL;
}

/* known_call(ctx, query, key, value, attn_mask, dropout_p, is_causal, keywords) -> the result, or None, and nothing ran. */
PyObject *known_call(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  job j;
  if (n != 8) return PyErr_Format(PyExc_TypeError, "eight arguments");
  if (!host.broken || args[0] != context_of_table || !quiet() || !understood(&j, args + 1)) {
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
  }
  entry *known = *slot_of(&j.p);
  if (!known || known->generation != ctx_generation(args[0])) Py_RETURN_NONE;
  rapt_ctx *ctx = as_ctx(args, 1, 1);
  int64_t rank = 4, size[4] = {j.p.B, j.p.Hq, j.p.Sq, j.p.Dv};
  torch.aoti_torch_get_dim((char *)args[1] + host.at_tensor, &rank);
  tensor_handle out = torch_allocate((int)rank, size + 4 - rank, j.p.out.stride + 4 - rank, j.p.q.dtype, &j.b.out);
  if (!out) Py_RETURN_NONE;
  PyObject *report = Py_NewRef(known->report), *result = NULL;
  rapt_status st;
  Py_BEGIN_ALLOW_THREADS                /* the table may change meanwhile */
  st = rapt_attention(ctx, &j.p, &j.b, NULL);
  Py_END_ALLOW_THREADS
  log_tell();
  if (st == RAPT_OK) result = result_of(out, report);
  else if (st == RAPT_DEVICE_ERROR || st == RAPT_INTERNAL)
    result = PyObject_CallFunction(host.broken, "iO", (int)st, report);
  else result = Py_NewRef(Py_None);
  torch.aoti_torch_delete_tensor_object(out);
  Py_DECREF(report);
  return result;
}
