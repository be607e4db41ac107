/* SPDX-License-Identifier: Apache-2.0 */
/* The operators rapt::sdpa and rapt::sdpa_ag, and the override of the host's CPU operator. A kernel owns the inputs on
 * its stack: it deletes each on every way out, before an error is raised, since raising unwinds it. */
#include "_torch_ops.h"

#include <math.h>
#include <stdio.h>

#define ABOUT 3072                      /* bytes for the words of a refusal */

/* ---- Arguments ---- */

/* Bits of the argument `flags`. */
enum { STRICT = 1, MIXED_KV = 2, CONTIGUOUS = 4, GRAD_Q = 8, GRAD_K = 16, GRAD_V = 32, GRAD_BIAS = 64 };

#define ARGUMENTS \
  "(Tensor q, Tensor k, Tensor v, float? scale=None, bool causal=False, Tensor? mask=None, Tensor? bias=None, " \
  "int align=0, SymInt q_offset=0, SymInt left=-1, SymInt right=-1, Tensor? q_len=None, Tensor? kv_len=None, " \
  "Tensor? offsets=None, int flags=0, int determinism=0, int autocast=0, str policy='')"
enum { Q, K, V, SCALE, CAUSAL, MASK, BIAS, ALIGN, Q_OFFSET, LEFT, RIGHT, Q_LEN, KV_LEN, OFFSETS, FLAGS, DETERMINISM,
       AUTOCAST, POLICY, N_ARGUMENTS };
static const char argument_kinds[] = "TTTf.tt....ttt...s";

static tensor_handle tensor_at(const slot_value *stack, int i)
{
  if (argument_kinds[i] == 'T') return (tensor_handle)(uintptr_t)stack[i];
  const slot_value *held = (const slot_value *)(uintptr_t)stack[i];
  return held ? (tensor_handle)(uintptr_t)*held : NULL;
}

static bool number_at(const slot_value *stack, int i, double *value)
{
  const slot_value *held = (const slot_value *)(uintptr_t)stack[i];
  if (held) memcpy(value, held, sizeof *value);
  return held != NULL;
}

static const void *address(tensor_handle t)
{
  const void *p = NULL;
  torch.torch_get_const_data_ptr(t, &p);
  return p;
}

void torch_begin(job *j)
{
  memset(j, 0, sizeof *j);
  j->p.struct_size = (uint32_t)sizeof j->p;
  j->b.struct_size = (uint32_t)sizeof j->b;
  j->why.struct_size = (uint32_t)sizeof j->why;
}

rapt_status torch_operands(job *j, tensor_handle q, tensor_handle k, tensor_handle v)
{
  rapt_tensor t[3];
  torch_describe(q, &t[0]);
  torch_describe(k, &t[1]);
  torch_describe(v, &t[2]);
  j->b.q = address(q);
  j->b.k = address(k);
  j->b.v = address(v);
  return rapt_problem_set_qkv(&j->p, &t[0], &t[1], &t[2], &j->why);
}

rapt_status torch_planes(job *j, tensor_handle mask, tensor_handle bias)
{
  rapt_tensor t;
  rapt_status st = RAPT_OK;
  if (mask) {
    torch_describe(mask, &t);
    j->b.mask = address(mask);
    st = rapt_problem_set_mask(&j->p, &t, &j->why);
  }
  if (bias && st == RAPT_OK) {
    torch_describe(bias, &t);
    j->b.bias = address(bias);
    st = rapt_problem_set_bias(&j->p, &t, &j->why);
  }
  return st;
}

/* An array of one number a batch entry, dense. */
static rapt_status lengths(job *j, tensor_handle array, int field, int32_t *dtype, const void **pointer)
{
  if (!array) return RAPT_OK;
  rapt_tensor t;
  torch_describe(array, &t);
  bool whole = t.dtype == RAPT_INT64 || (t.dtype == RAPT_INT32 && field != RAPT_FIELD_Q_OFFSET);
  *pointer = address(array);
  if (dtype) *dtype = t.dtype;
  if (whole && t.rank == 1 && t.size[0] == j->p.B && (t.stride[0] == 1 || t.size[0] < 2)) return RAPT_OK;
  j->why.code = whole ? RAPT_CODE_LENGTHS : RAPT_CODE_DTYPE;
  j->why.field = field;
  j->why.axis = -1;
  j->why.index = -1;
  snprintf(j->why.got, sizeof j->why.got, "%s rank %d", rapt_dtype_name(t.dtype), (int)t.rank);
  snprintf(j->why.want, sizeof j->why.want, "a dense integer array of %lld", (long long)j->p.B);
  return RAPT_ARG;
}

static void options(job *j, const slot_value *stack)
{
  static const struct { int bit; uint64_t flag; } bits[] = {
    {STRICT, RAPT_STRICT}, {MIXED_KV, RAPT_MIXED_KV}, {GRAD_Q, RAPT_GRAD_Q}, {GRAD_K, RAPT_GRAD_K},
    {GRAD_V, RAPT_GRAD_V}, {GRAD_BIAS, RAPT_GRAD_BIAS}};
  rapt_problem *p = &j->p;
  int64_t flags = (int64_t)stack[FLAGS];
  for (size_t i = 0; i < COUNT(bits); i++)
    if (flags & bits[i].bit) p->flags |= bits[i].flag;
  if (stack[CAUSAL] & 1) p->flags |= RAPT_CAUSAL;
  if (number_at(stack, SCALE, &p->scale)) p->has |= RAPT_HAS_SCALE;
  p->alignment = (int32_t)stack[ALIGN];
  p->q_offset = (int64_t)stack[Q_OFFSET];
  int64_t left = (int64_t)stack[LEFT], right = (int64_t)stack[RIGHT];
  if (left != -1 || right != -1) {
    p->window[0] = left;
    p->window[1] = right;
    p->has |= RAPT_HAS_WINDOW;
  }
  p->determinism = (int32_t)stack[DETERMINISM];
  if (!stack[AUTOCAST]) return;
  p->has |= RAPT_HAS_AUTOCAST;
  p->autocast_dtype = (int32_t)stack[AUTOCAST];
  p->autocast_device = RAPT_CPU;
}

/* Inside sdpa_kernel without FLASH_ATTENTION the host's operator alone may run. */
static const char sdpa_kernel[] = "sdpa_kernel";
static bool fused_allowed(void) { return torch.flash_enabled(torch.global_context()); }

static rapt_status read_arguments(job *j, const slot_value *stack, bool want_lse)
{
  const char *policy = "";
  rapt_status st = torch_operands(j, tensor_at(stack, Q), tensor_at(stack, K), tensor_at(stack, V));
  if (st == RAPT_OK) st = torch_planes(j, tensor_at(stack, MASK), tensor_at(stack, BIAS));
  options(j, stack);
  if (want_lse) j->p.flags |= RAPT_WANT_LSE;
  if (st == RAPT_OK) st = lengths(j, tensor_at(stack, Q_LEN), RAPT_FIELD_Q_LEN, &j->p.q_len, &j->b.q_len);
  if (st == RAPT_OK) st = lengths(j, tensor_at(stack, KV_LEN), RAPT_FIELD_KV_LEN, &j->p.kv_len, &j->b.kv_len);
  if (st == RAPT_OK) st = lengths(j, tensor_at(stack, OFFSETS), RAPT_FIELD_Q_OFFSET, NULL, &j->b.q_offset);
  if (stack[POLICY]) torch.torch_string_c_str((void *)(uintptr_t)stack[POLICY], &policy);
  if (st == RAPT_OK && !torch_policy(&j->p, policy, fused_allowed() ? NULL : sdpa_kernel)) st = RAPT_INTERNAL;
  return st;
}

/* ---- Results ---- */

tensor_handle torch_allocate(int rank, const int64_t *size, const int64_t *stride, int32_t dtype, void **data)
{
  tensor_handle t = NULL;
  torch.aoti_torch_empty_strided(rank, size, stride, torch_dtype(dtype), torch.aoti_torch_device_type_cpu(), 0, &t);
  if (t) torch.torch_get_mutable_data_ptr(t, data);
  return t;
}

/* Strides of out, dense in the order of its axes or in that of q's (H2): an axis of one element, or without a stride,
 * counts as wide as the widest after it. This is the core's rule; _ops.py has it for traced sizes. */
void torch_dense(rapt_problem *p, bool contiguous)
{
  int64_t *stride = p->out.stride;
  const int64_t size[4] = {p->B, p->Hq, p->Sq, p->Dv}, q_size[4] = {p->B, p->Hq, p->Sq, p->D};
  int perm[4] = {0, 1, 2, 3};
  int64_t weight[4], widest = 1, run = 1;
  for (int i = 3; i >= 0; i--) {
    weight[i] = q_size[i] > 1 && p->q.stride[i] ? p->q.stride[i] : widest;
    if (weight[i] > widest) widest = weight[i];
  }
  for (int i = 1; i < 4 && !contiguous; i++) {
    int at = i;
    for (; at > 0 && weight[perm[at - 1]] < weight[i]; at--) perm[at] = perm[at - 1];
    perm[at] = i;
  }
  for (int i = 3; i >= 0; i--) {
    stride[perm[i]] = run;
    run *= size[perm[i]] > 1 ? size[perm[i]] : 1;
  }
  p->has |= RAPT_HAS_OUT_STRIDES;
}

/* skip: 1 for operands without a batch axis. */
static rapt_status output_out(job *j, int skip, bool contiguous, tensor_handle *t)
{
  rapt_problem *p = &j->p;
  const int64_t size[4] = {p->B, p->Hq, p->Sq, p->Dv};
  rapt_tensor want = {.dtype = p->q.dtype};
  rapt_status st = p->has & RAPT_HAS_AUTOCAST ? rapt_problem_output(p, RAPT_FIELD_OUT, &want, &j->why) : RAPT_OK;
  if (st) return st;
  torch_dense(p, contiguous);
  *t = torch_allocate(4 - skip, size + skip, p->out.stride + skip, want.dtype, &j->b.out);
  return *t ? RAPT_OK : RAPT_NOMEM;
}

static rapt_status output_lse(job *j, int skip, tensor_handle *t)
{
  rapt_problem *p = &j->p;
  const int64_t size[3] = {p->B, p->Hq, p->Sq};
  int64_t at[3] = {(p->Hq > 1 ? p->Hq : 1) * (p->Sq > 1 ? p->Sq : 1), p->Sq > 1 ? p->Sq : 1, 1};
  memcpy(p->lse.stride, at, sizeof at);
  p->has |= RAPT_HAS_LSE_STRIDES;
  int32_t dtype = p->q.dtype == RAPT_FP64 ? RAPT_FP64 : RAPT_FP32;      /* N8 */
  *t = torch_allocate(3 - skip, size + skip, at + skip, dtype, &j->b.lse);
  return *t ? RAPT_OK : RAPT_NOMEM;
}

/* ---- Our own operators ---- */

/* rapt::host(q, k, v, scale, causal, mask, bias, flags, autocast, row) -> (out, lse): takes the inputs over. */
static bool run_host(slot_value *stack, const char *row, slot_value result[2], char *text)
{
  void *name = NULL;
  slot_value causal = (stack[CAUSAL] & 1) || (int64_t)stack[RIGHT] == 0;        /* M6 */
  slot_value s[10] = {stack[Q], stack[K], stack[V], stack[SCALE], causal, stack[MASK], stack[BIAS],
                      stack[FLAGS], stack[AUTOCAST], 0};
  torch.torch_new_string_handle(row, strlen(row), &name);
  s[9] = (slot_value)(uintptr_t)name;
  static const int taken[] = {Q, K, V, SCALE, MASK, BIAS};
  for (size_t i = 0; i < COUNT(taken); i++) stack[taken[i]] = 0;
  if (torch.torch_call_dispatcher("rapt::host", "", s, torch.aoti_torch_abi_version())) {
    snprintf(text, ABOUT, "%s", torch.torch_exception_get_what_without_backtrace());
    return false;
  }
  memcpy(result, s, 2 * sizeof *result);
  return true;
}

static void drop(tensor_handle t)
{
  if (t) torch.aoti_torch_delete_tensor_object(t);
}

/* A row that failed while it ran: its outputs are not to be used, and nothing else may run in its place (D13). */
static bool broken(rapt_status st, char *text)
{
  if (st != RAPT_NOMEM && st != RAPT_DEVICE_ERROR && st != RAPT_INTERNAL) return false;
  const char *name = rapt_status_name((int32_t)st);
  snprintf(text, ABOUT, "%s: the chosen row failed while it ran; nothing else was tried", name);
  return true;
}

/* After a call that no row of ours has run: the host's operator, or the words of the refusal. */
static bool otherwise(rapt_ctx *ctx, job *j, slot_value *stack, slot_value result[2], char *text)
{
  verdict v;
  torch_verdict(ctx, &j->p, &v);
  if (v.status != RAPT_OK || v.row < 0) {
    torch_refusal(ctx, &j->p, text, ABOUT);
    return false;
  }
  if (!run_host(stack, v.id, result, text)) return false;
  torch_host_ran(ctx, &v);
  torch_ran();
  return true;
}

static const char unread[] = "rapt: the preferences in scope could not be read; nothing was run";

static bool run_own(rapt_ctx *ctx, job *j, slot_value *stack, bool want_lse, slot_value result[2], char *text)
{
  tensor_handle out = NULL, lse = NULL;
  int64_t rank = 4;
  torch.aoti_torch_get_dim(tensor_at(stack, Q), &rank);
  rapt_status st = read_arguments(j, stack, want_lse);
  if (st == RAPT_OK) st = output_out(j, rank == 3, stack[FLAGS] & CONTIGUOUS, &out);
  if (st == RAPT_OK && want_lse) st = output_lse(j, rank == 3, &lse);
  if (st != RAPT_OK) {
    drop(out);
    drop(lse);
    if (st == RAPT_NOMEM) snprintf(text, ABOUT, "rapt: out of memory");
    else if (st == RAPT_INTERNAL) snprintf(text, ABOUT, "%s", unread);
    else rapt_reason_format(&j->why, NULL, torch_spelling, text, ABOUT);
    return false;
  }
  torch_remember(&j->p);
  st = rapt_attention(ctx, &j->p, &j->b, NULL);
  if (st == RAPT_OK) {
    torch_ran();
    result[0] = (slot_value)(uintptr_t)out;
    result[1] = (slot_value)(uintptr_t)lse;
    return true;
  }
  drop(out);
  drop(lse);
  return !broken(st, text) && otherwise(ctx, j, stack, result, text);
}

static void sdpa(slot_value *stack, bool want_lse)
{
  char text[ABOUT] = "rapt: no context";
  job j;
  torch_begin(&j);
  slot_value result[2] = {0, 0};
  rapt_ctx *ctx = torch_ctx();
  bool done = ctx && run_own(ctx, &j, stack, want_lse, result, text);
  torch_release(stack, argument_kinds);
  if (!done) torch_raise(text);
  stack[0] = result[0];
  if (want_lse) stack[1] = result[1];
  else drop((tensor_handle)(uintptr_t)result[1]);
}

static void op_sdpa(slot_value *stack, uint64_t n_in, uint64_t n_out)
{
  (void)n_in, (void)n_out;
  sdpa(stack, false);
}

static void op_sdpa_lse(slot_value *stack, uint64_t n_in, uint64_t n_out)
{
  (void)n_in, (void)n_out;
  sdpa(stack, true);
}

/* A tensor is one pointer to its implementation, which knows. */
static bool wants_gradient(tensor_handle t) { return t && torch.requires_grad(*(void **)t); }

/* ---- aten::_scaled_dot_product_flash_attention_for_cpu ---- */

enum { F_Q, F_K, F_V, F_DROPOUT, F_CAUSAL, F_MASK, F_SCALE };
static const char flash_kinds[] = "TTT..tf";

/* Strides of empty_like(q): q's own where it is dense, else dense in its order, with the host's rule for ties. */
static void like(const rapt_tensor *q, int64_t stride[4])
{
  int perm[4] = {3, 2, 1, 0};
  for (int i = 1; i < 4; i++)
    for (int at = i, before = i - 1; before >= 0; before--) {
      int a = perm[before], b = perm[at];
      int64_t sa = q->stride[a], sb = q->stride[b];
      if (sa == 0 || sb == 0 || (sa == sb && q->size[a] <= q->size[b])) continue;
      if (sa < sb) break;
      perm[before] = b;
      perm[at] = a;
      at = before;
    }
  int64_t run = 1;
  bool same = true;
  for (int i = 0; i < 4; i++) {
    int axis = perm[i];
    if (q->size[axis] > 1 && q->stride[axis] != run) same = false;
    stride[axis] = run;
    if (q->size[axis] > 1) run *= q->size[axis];
  }
  if (same) memcpy(stride, q->stride, 4 * sizeof *stride);
}

/* barred: why only the host's own operator may run, NULL where ours may. */
static bool flash_problem(job *j, const slot_value *stack, bool graph, const char *barred)
{
  rapt_problem *p = &j->p;
  const slot_value *scale = (const slot_value *)(uintptr_t)stack[F_SCALE];
  if (scale) {
    memcpy(&p->scale, scale, sizeof p->scale);
    p->has |= RAPT_HAS_SCALE;
  }
  memcpy(&p->dropout, &stack[F_DROPOUT], sizeof p->dropout);
  if (stack[F_CAUSAL] & 1) {
    p->flags |= RAPT_CAUSAL;
    p->alignment = RAPT_TOP_LEFT;
  }
  if (graph) p->flags |= RAPT_GRAD_Q | RAPT_GRAD_K | RAPT_GRAD_V;
  return torch_policy(p, "", barred);
}

/* The host gives 0 as the log-sum-exp of a row without keys, where the core gives -inf (M14): its backward wants 0. */
static void host_lse(float *lse, int64_t n)
{
  for (int64_t i = 0; i < n; i++)
    if (isinf(lse[i]) && lse[i] < 0) lse[i] = 0;
}

static rapt_status flash_own(rapt_ctx *ctx, job *j, const rapt_tensor *q, slot_value result[2])
{
  rapt_problem *p = &j->p;
  rapt_status st = RAPT_NOMEM;
  int64_t rows[3] = {p->B, p->Hq, p->Sq}, at[3] = {p->Sq * p->Hq, 1, p->Hq};
  p->flags |= RAPT_WANT_LSE;
  p->has |= RAPT_HAS_OUT_STRIDES | RAPT_HAS_LSE_STRIDES;
  like(q, p->out.stride);
  memcpy(p->lse.stride, at, sizeof at);
  tensor_handle out = torch_allocate(4, q->size, p->out.stride, q->dtype, &j->b.out);
  tensor_handle lse = out ? torch_allocate(3, rows, at, RAPT_FP32, &j->b.lse) : NULL;
  if (lse) st = rapt_attention(ctx, p, &j->b, NULL);
  if (st == RAPT_OK) {
    torch_remember(p);
    torch_ran();
    if (j->b.bias) host_lse(j->b.lse, p->B * p->Hq * p->Sq);
    result[0] = (slot_value)(uintptr_t)out;
    result[1] = (slot_value)(uintptr_t)lse;
    return st;
  }
  drop(out);
  drop(lse);
  p->flags &= ~RAPT_WANT_LSE;           /* the host's row answers without one, which is what was asked for at the top */
  p->has &= ~(RAPT_HAS_OUT_STRIDES | RAPT_HAS_LSE_STRIDES);
  memset(p->out.stride, 0, sizeof p->out.stride);
  memset(p->lse.stride, 0, sizeof p->lse.stride);
  return st;
}

/* Which row of the host's is to run. Its operator takes causal beside a bias, for which no row of it stands: the core
 * is asked about the same call with one mask, and the report says so. true: that was needed. */
static bool flash_verdict(rapt_ctx *ctx, job *j, verdict *v)
{
  torch_verdict(ctx, &j->p, v);
  if (v->row >= 0 || !j->b.bias || !(j->p.flags & RAPT_CAUSAL)) return false;
  rapt_problem given = j->p;
  j->p.flags &= ~RAPT_CAUSAL;
  j->p.alignment = 0;
  torch_verdict(ctx, &j->p, v);
  if (v->row >= 0) return true;
  j->p = given;
  return false;
}

/* Whatever arrives has passed the host's own checks and must run (D28), unless the user's preferences forbid it. */
static bool flash_host(rapt_ctx *ctx, job *j, const slot_value *stack, slot_value result[2], char *text)
{
  verdict v = {.status = RAPT_OK, .row = -1};
  bool joined = ctx && flash_verdict(ctx, j, &v);
  const rapt_problem *p = &j->p;
  if (v.status == RAPT_REFUSED && v.banned) {
    torch_remember(p);
    torch_refusal(ctx, p, text, ABOUT);
    return false;
  }
  if (ctx && v.status == RAPT_OK && v.row < 0) {        /* a provider's, and the host was not chosen */
    torch_remember(p);
    snprintf(text, ABOUT, "rapt: no operator is known for row %s", v.id);
    return false;
  }
  double dropout, scale = 0;
  memcpy(&dropout, &stack[F_DROPOUT], sizeof dropout);
  const slot_value *given = (const slot_value *)(uintptr_t)stack[F_SCALE];
  if (given) memcpy(&scale, given, sizeof scale);
  tensor_handle out = NULL, lse = NULL;
  tensor_handle *mask = (tensor_handle *)(uintptr_t)stack[F_MASK];
  int32_t failed = torch.aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu(
      (tensor_handle)(uintptr_t)stack[F_Q], (tensor_handle)(uintptr_t)stack[F_K], (tensor_handle)(uintptr_t)stack[F_V],
      dropout, (int32_t)(stack[F_CAUSAL] & 1), mask, given ? &scale : NULL, &out, &lse);
  if (failed) {
    snprintf(text, ABOUT, "%s", torch.torch_exception_get_what_without_backtrace());
    return false;
  }
  if (ctx) {
    torch_remember(p);
    if (joined) torch_note("causal and attn_mask count as one mask for the host's operator");
    torch_ran();
    torch_host_ran(ctx, &v);
  }
  result[0] = (slot_value)(uintptr_t)out;
  result[1] = (slot_value)(uintptr_t)lse;
  return true;
}

static _Thread_local int host_only;     /* the binding is calling the host's operator itself */

/* ops_host(change) -> how deep this thread now is in calls that are the host's whatever is installed. */
PyObject *ops_host(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  long change = n == 1 ? PyLong_AsLong(args[0]) : 0;
  if (PyErr_Occurred()) return NULL;
  host_only += (int)change;
  return PyLong_FromLong(host_only);
}

static bool flash_run(const slot_value *stack, slot_value result[2], char *text)
{
  job j;
  torch_begin(&j);
  tensor_handle t[3];
  for (int i = 0; i < 3; i++) t[i] = (tensor_handle)(uintptr_t)stack[i];
  const slot_value *held = (const slot_value *)(uintptr_t)stack[F_MASK];
  tensor_handle bias = held ? (tensor_handle)(uintptr_t)*held : NULL;
  bool graph = torch.aoti_torch_grad_mode_is_enabled() &&
               (wants_gradient(t[0]) || wants_gradient(t[1]) || wants_gradient(t[2]));
  rapt_ctx *ctx = host_only ? NULL : torch_ctx();
  if (!ctx) return flash_host(NULL, &j, stack, result, text);
  if (torch_operands(&j, t[0], t[1], t[2]) != RAPT_OK || torch_planes(&j, NULL, bias) != RAPT_OK) {
    rapt_reason_format(&j.why, NULL, torch_spelling, text, ABOUT);      /* the host would read past the end */
    return false;
  }
  const char *barred = j.p.q.dtype == RAPT_FP64 ? "install, where fp64 is the host's" : NULL;
  if (!fused_allowed()) barred = sdpa_kernel;
  if (!flash_problem(&j, stack, graph, barred)) {
    snprintf(text, ABOUT, "%s", unread);
    return false;
  }
  rapt_tensor q;
  torch_describe(t[0], &q);
  rapt_status st = RAPT_REFUSED;
  if (!graph && !barred && j.p.D == j.p.Dv && q.rank == 4) st = flash_own(ctx, &j, &q, result);
  return st == RAPT_OK || (!broken(st, text) && flash_host(ctx, &j, stack, result, text));
}

static void op_flash(slot_value *stack, uint64_t n_in, uint64_t n_out)
{
  (void)n_in, (void)n_out;
  char text[ABOUT] = "";
  slot_value result[2] = {0, 0};
  bool done = flash_run(stack, result, text);
  torch_release(stack, flash_kinds);
  if (!done) torch_raise(text);
  stack[0] = result[0];
  stack[1] = result[1];
}

/* ---- Registration ---- */

static bool define(void)
{
  static const char *const schemas[] = {
    "sdpa" ARGUMENTS " -> Tensor", "sdpa.lse" ARGUMENTS " -> (Tensor, Tensor)", "sdpa_ag" ARGUMENTS " -> Tensor",
    ("host(Tensor q, Tensor k, Tensor v, float? scale, bool causal, Tensor? mask, Tensor? bias, int flags, "
     "int autocast, str row) -> (Tensor, Tensor)")};
  static library_handle defined, kernels;
  int32_t tags[2] = {torch.torch_tag_pt2_compliant_tag(), torch.torch_tag_needs_fixed_stride_order()};
  if (torch.aoti_torch_library_init_fragment("rapt", __FILE__, __LINE__, &defined)) return false;
  for (size_t i = 0; i < COUNT(schemas); i++)
    if (torch.torch_library_def_with_tags(defined, schemas[i], tags, 2)) return false;
  uint64_t abi = torch.aoti_torch_abi_version();
  return !torch.aoti_torch_library_init_impl("rapt", "CPU", __FILE__, __LINE__, &kernels) &&
         !torch.torch_library_impl(kernels, "sdpa", op_sdpa, abi) &&
         !torch.torch_library_impl(kernels, "sdpa.lse", op_sdpa_lse, abi) &&
         !torch.torch_library_impl(kernels, "sdpa_ag", op_sdpa, abi);
}

/* ops_register(make_context, merge_policy): once a process. */
PyObject *ops_register(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  static bool done;
  if (n != 2) return PyErr_Format(PyExc_TypeError, "two functions");
  if (done) Py_RETURN_NONE;
  if (!torch_api_load()) return NULL;
  torch_python(args[0], args[1]);
  if (!define()) return PyErr_Format(PyExc_ImportError, "rapt.torch: PyTorch refused the operators of rapt");
  done = true;
  Py_RETURN_NONE;
}

/* ops_override(on): puts our kernel in the place of the host's CPU operator, or gives the place back. */
PyObject *ops_override(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
  (void)module;
  static library_handle library;
  int on = n == 1 ? PyObject_IsTrue(args[0]) : -1;
  if (on < 0) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "one truth value");
  int32_t failed = 0;
  if (on && !library) {
    failed = torch.aoti_torch_library_init_impl("aten", "CPU", __FILE__, __LINE__, &library);
    if (!failed)
      failed = torch.torch_library_impl(library, "_scaled_dot_product_flash_attention_for_cpu", op_flash,
                                        torch.aoti_torch_abi_version());
  }
  if ((!on || failed) && library) {
    failed |= torch.aoti_torch_delete_library_object(library);
    library = NULL;
  }
  if (failed) return PyErr_Format(PyExc_RuntimeError, "PyTorch refused the operator");
  Py_RETURN_NONE;
}
