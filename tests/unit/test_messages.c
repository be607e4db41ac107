/* SPDX-License-Identifier: Apache-2.0 */
/* Every message as a user reads it, against messages.txt: a change of wording is seen in review (D7, E3). The reasons come
 * from real calls wherever one can have them; what no call of this version gives is made by hand and marked so. */
#include "core/ctx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cm.h"

#define PLAIN "fp16 b1 h4 q64 k64 d64"
enum { MAX_SEEN = 600 };

static struct { int16_t code, field; bool row; } seen[MAX_SEEN];
static uint32_t n_seen;
static FILE *out;

static bool was_seen(int code, int field, bool row) {
  for (uint32_t i = 0; i < n_seen; i++)
    if (seen[i].code == code && (field < 0 || seen[i].field == field) && seen[i].row == row) return true;
  return false;
}

/* Byte counts of structs and workspaces change with the library: digits before " bytes" and " are needed" become #. */
static void put_line(const char *text) {
  for (const char *s = text; *s;) {
    size_t n = strspn(s, "0123456789");
    bool count = n > 2 && (strncmp(s + n, " bytes", 6) == 0 || strncmp(s + n, " are needed", 11) == 0);
    if (count) fputc('#', out);
    else fprintf(out, "%.*s", (int)(n ? n : 1), s);
    s += n ? n : 1;
  }
  fputc('\n', out);
}

static void mark(int code, int field, bool row) {
  if (was_seen(code, field, row)) return;
  assert_true(n_seen < MAX_SEEN);
  seen[n_seen].code = (int16_t)code;
  seen[n_seen].field = (int16_t)field;
  seen[n_seen++].row = row;
}

/* What must hold of any sentence. */
static void write_sentence(const rapt_reason *why, const char *row) {
  char text[768];
  size_t n = rapt_reason_format(why, row, NULL, text, sizeof text);
  assert_true(n < sizeof text);
  char last = text[n - 1];
  bool bad = strpbrk(text, "{}|") || strstr(text, "  ") || strstr(text, " .") || strstr(text, "..,") || last != '.' ||
             strstr(text, ": .");
  if (bad) print_error("%s\n", text);
  assert_false(bad);
  put_line(text);
}

static void fault(const rapt_reason *why) {
  mark(why->code, why->field, false);
  write_sentence(why, NULL);
}

/* ---- Faults of the call ---- */

static void section(const char *title) { fprintf(out, "\n# %s\n", title); }

static bool request(const rapt_problem *p) {
  rapti_request r;
  rapt_reason why = RAPT_REASON_INIT;
  if (rapti_request_make(p, &r, &why) == RAPT_OK) return false;
  fault(&why);
  return true;
}

static void problem(const char *text) {
  rapt_problem p = RAPT_PROBLEM_INIT;
  char names[256];
  rapt_reason why = RAPT_REASON_INIT;
  if (rapt_problem_parse(text, strlen(text), &p, names, sizeof names, &why) != RAPT_OK) fault(&why);
  else if (!request(&p)) fail_msg("no fault: %s", text);
}

static void problems(void) {
  static const char *const texts[] = {
    "int8 b1 h1 q4 k4 d8", "bf16 b1 h1 q4 k4 d8 out=fp16", "fp32 b1 h1 q4 k4 d8 out=fp64", "fp32/fp32/bf16 b1 h1 q4 k4 d8",
    "fp32/fp32/bf16 b1 h1 q4 k4 d8 autocast=bf16@cuda", "fp32/fp16/bf16 b1 h1 q4 k4 d8 mixed_kv",
    "fp64/fp32/fp32 b1 h1 q4 k4 d8 autocast=bf16", "fp32 b1 h4/3 q4 k4 d8",
    "fp32 b4294967296 h1 q1073741824 k4 d8", "fp32 b1 h1 q4 k4611686018427387904 d1",
    "fp32 b1 h1 q4 k4 d8 v.st=0,0,4611686018427387904,-1", "fp32 b1 h2 q4 k6 d8 causal", "fp32 b1 h2 q4 k4 d8 causal kvlen=int32",
    "fp32 b2 h2 q4 k4 d8 window=1,1 packed=int32", "fp32 b1 h2 q4 k6 d8 causal=off:4611686018427387905",
    "fp32 b1 h2 q4 k4 d8 window=-2,0", "fp32 b1 h2 q4 k8 d8 mask=uint8:1x1x1x8", "fp32 b1 h2 q4 k8 d8 mask=bool:1x1x1x7",
    "fp32 b1 h2 q4 k8 d8 bias=fp16:1x3x4x8", "fp32 b1 h2 q4 k8 d8 bias=fp64:1x1x1x8", "fp32 b1 h2 q4 k8 d8 bias=int32:1x1x1x8",
    "fp32 b2 h2 q4 k4 d8 packed=int32 mask=bool:1x1x4x4", "fp32 b2 h2 q4 k4 d8 packed=int32 kvlen=int32",
    "fp32 b2 h2 q4 k4 d8 packed=int32,5/4", "fp32 b2 h2 q4 k4 d8 packed=int32,4/-1", "fp32 b1 h2 q4 k4 d8 softcap=-1",
    "fp32 b1 h2 q4 k4 d8 softcap=1e39", "fp32 b1 h2 q4 k4 d8 sinks=int8", "fp32 b1 h2 q4 k4 d8 sinks=fp32:3",
    "fp32 b1 h2 q4 k4 d8 scale=inf", "fp32 b1 h2 q4 k4 d0", "fp32 b1 h2 q4 k4 d8 dropout=1.5",
    "fp32 b1 h2 q4 k4 d8 dropout=0.5 base=4294967296,0,0,0", "fp32 b1 h2 q4 k4 d8 bwd", "fp32 b1 h2 q4 k4 d8 grad=bias",
    "fp32 b1 h2 q4 k4 d8 grad=sinks", "fp32 b1 h2 q4 k4 d8 mem=-1", "fp32 b1 h2 q4 k4 d8 autocast=int8",
    "fp32 b1 h2 q4 k4 d8 dev=cuda:-1", "bf16 b1 h2 q4 k4 d8 grad=q gdt=fp16", "fp32 b1 h2 q4 k4 d8 verify=4",
    "fp32 b1 h2 q4 k4 d8 dlse", "fp32 b1 h2 q4 k4 d8 gdt=fp32", "fp32 b1 h2 q4 k4 d8 lse.st=8,4,1", "fp32 b1 h2 q4 k4 d8 bias.ptr=16",
    "fp32 b1 h2 q4 k4 d8 out.st=0,0,8,1", "fp32 b1 h2 q4 k4 d8 q.ptr=2", "fp32 b1 h2 q4 k4 d8 q.ptr=12"};
  section("Faults of a call, written as a problem string");
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) problem(texts[i]);
}

static void texts(void) {
  static const char *const bad[] = {
    "", "fp33 b1", "fp32/fp16 b1 h1 q1 k1 d1", "fp32 b1 h1 q1", "fp32 b1 b1 h1 q1 k1 d1", "fp32 b1 h1 q1 k-1 d1",
    "fp32 b1x h1 q1 k1 d1", "fp32 b1 h1 q1 k1 d1 lse=1", "fp32 b1 h1 q1 k1 d1 mask", "fp32 b1 h1 q1 k1 d1 mask=bool",
    "fp32 b1 h1 q1 k1 d1 window=1", "fp32 b1 h1 q1 k1 d1 scale=0,5", "fp32 b1 h1 q1 k1 d1 causal=left",
    "fp32 b1 h1 q1 k1 d1 causal=tl align=br", "fp32 b1 h1 q1 k1 d1 det=none", "fp32 b1 h1 q1 k1 d1 require=a,,b",
    "fp32 b1 h1 q1 k1 d1 layout=shd", "fp32 b1 h1 q1 k1 d1 qlen=int16", "fp32 b1 h1 q1 k1 d1 autocast=auto@gpu",
    "fp32 b1 h1 q1 k1 d1 dropuot=0.1", "fp32 b1 h1 q1 k1 d1 heads=2", "fp32 b1 h1 q1 k1 d1 q.size=1", "fp32 b=1 h1 q1 k1 d1"};
  section("Problem strings that cannot be read");
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) problem(bad[i]);
  static const char *const lists[] = {"require", "prefer", "forbid"};
  for (int i = 0; i < 3; i++) {
    char text[80];
    rapt_problem p = RAPT_PROBLEM_INIT;
    rapt_reason why = RAPT_REASON_INIT;
    int n = snprintf(text, sizeof text, PLAIN " %s=fa2", lists[i]);
    assert_int_equal(rapt_problem_parse(text, (size_t)n, &p, NULL, 0, &why), RAPT_ARG);
    fault(&why);
  }
}

static void facts(void) {
  static const char *const bad[] = {
    "", "gpu cc=9.0", "cuda:sm90", "hip:gfx942", "cuda cc", "cuda cc=9", "cuda arch=sm90", "hip cc=9.0", "cpu arch=x", "xpu cc=1.0",
    "cuda cc=9.0 cc=9.0", "cpu threads=0", "cpu isa=sse", "cpu mem=-1", "cpu torch=new", "cpu torch.has=a,,b", "cpu torch.cc=8",
    "cpu flash_attn=2.8", "cpu tensorflow=1.0"};
  section("Facts strings that cannot be read");
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    rapt_facts f;
    rapt_reason why = RAPT_REASON_INIT;
    assert_int_equal(rapti_facts_parse(bad[i], strlen(bad[i]), &f, &why), RAPT_ARG);
    fault(&why);
  }
}

/* ---- Faults of the struct ---- */

typedef struct change { void (*make)(rapt_problem *p); } change;
static void negative_b(rapt_problem *p) { p->B = -1; }
static void negative_hq(rapt_problem *p) { p->Hq = p->Hkv = -2; }
static void negative_sq(rapt_problem *p) { p->Sq = -1; }
static void negative_skv(rapt_problem *p) { p->Skv = -1; }
static void negative_d(rapt_problem *p) { p->D = -1; }
static void negative_dv(rapt_problem *p) { p->Dv = -1; }
static void no_heads(rapt_problem *p) { p->Hq = 0; p->Hkv = -1; }
static void has_bit(rapt_problem *p) { p->has = UINT64_C(1) << 40; }
static void flag_bit(rapt_problem *p) { p->flags = UINT64_C(1) << 60; }
static void lengths_flag(rapt_problem *p) { p->flags = RAPT_LENGTHS_ON_DEVICE; }
static void cu_flag(rapt_problem *p) { p->flags = RAPT_CU_ON_DEVICE; }
static void offset_flag(rapt_problem *p) { p->flags = RAPT_OFFSET_ON_DEVICE; }
static void backward_two(rapt_problem *p) { p->backward = 2; }
static void device_far(rapt_problem *p) { p->device = 99; }
static void dtype_far(rapt_problem *p) { p->q.dtype = 99; }
static void align_far(rapt_problem *p) { p->alignment = 9; }
static void det_far(rapt_problem *p) { p->determinism = 9; }
static void q_len_far(rapt_problem *p) { p->q_len = RAPT_FP32; }
static void kv_len_far(rapt_problem *p) { p->kv_len = RAPT_FP32; }
static void cu_far(rapt_problem *p) { p->cu = RAPT_FP32; }
static void autocast_far(rapt_problem *p) { p->has = RAPT_HAS_AUTOCAST; p->autocast_dtype = 99; }
static void autocast_kind(rapt_problem *p) { p->has = RAPT_HAS_AUTOCAST; p->autocast_device = 99; }
static void lone_autocast(rapt_problem *p) { p->autocast_dtype = RAPT_BF16; }
static void lone_offset(rapt_problem *p) { p->q_offset = 3; }
static void lone_window(rapt_problem *p) { p->window[0] = 128; }
static void lone_scale(rapt_problem *p) { p->scale = 0.5; }
static void lone_limit(rapt_problem *p) { p->memory_limit = 4096; }
static void lone_max_q(rapt_problem *p) { p->max_q = 4; }
static void lone_max_k(rapt_problem *p) { p->max_k = 4; }
static void mask_size(rapt_problem *p) { p->mask.size[3] = 64; }
static void q_size(rapt_problem *p) { p->q.size[0] = 1; }
static void q_strides(rapt_problem *p) { p->q.stride[3] = 1; }
static void sink_strides(rapt_problem *p) { p->sinks.dtype = RAPT_FP32; p->sinks.stride[0] = 2; }
static void slope_dtype(rapt_problem *p) { p->slopes.dtype = RAPT_FP16; p->slopes.size[0] = 1; p->slopes.size[1] = 4; }
static void lse_dtype(rapt_problem *p) { p->flags = RAPT_WANT_LSE; p->lse.dtype = RAPT_FP16; }
static void dout_dtype(rapt_problem *p) { p->flags = RAPT_GRAD_Q; p->dout.dtype = RAPT_FP32; }
static void dlse_dtype(rapt_problem *p) { p->flags = RAPT_GRAD_Q; p->dlse.dtype = RAPT_FP16; }
static void dk_dtype(rapt_problem *p) { p->flags = RAPT_GRAD_K; p->dk.dtype = RAPT_BF16; }
static void dv_dtype(rapt_problem *p) { p->flags = RAPT_GRAD_V; p->dv.dtype = RAPT_BF16; }
static void bias_of(rapt_problem *p) {
  p->bias.dtype = RAPT_FP16;
  for (int i = 0; i < 4; i++) p->bias.size[i] = 1;
}
static void dbias_dtype(rapt_problem *p) { bias_of(p); p->flags = RAPT_GRAD_BIAS; p->dbias.dtype = RAPT_FP32; }
static void dsinks_dtype(rapt_problem *p) { p->sinks.dtype = RAPT_FP16; p->flags = RAPT_GRAD_SINKS; p->dsinks.dtype = RAPT_FP32; }
static void short_struct(rapt_problem *p) { p->struct_size = 8; }

static void structs(void) {
  static const change changes[] = {
    {negative_b}, {negative_hq}, {negative_sq}, {negative_skv}, {negative_d}, {negative_dv}, {no_heads}, {has_bit}, {flag_bit},
    {lengths_flag}, {cu_flag}, {offset_flag}, {backward_two}, {device_far}, {dtype_far}, {align_far}, {det_far}, {q_len_far},
    {kv_len_far}, {cu_far}, {autocast_far}, {autocast_kind}, {lone_autocast}, {lone_offset}, {lone_window}, {lone_scale},
    {lone_limit}, {lone_max_q}, {lone_max_k}, {mask_size}, {q_size}, {q_strides}, {sink_strides}, {slope_dtype}, {lse_dtype},
    {dout_dtype}, {dlse_dtype}, {dk_dtype}, {dv_dtype}, {dbias_dtype}, {dsinks_dtype}, {short_struct}};
  section("Faults of a call, filled in as a struct");
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    rapt_problem p = RAPT_PROBLEM_INIT;
    assert_int_equal(rapt_problem_parse(PLAIN, strlen(PLAIN), &p, NULL, 0, NULL), RAPT_OK);
    changes[i].make(&p);
    if (!request(&p)) fail_msg("no fault: change %zu", i);
  }
}

static rapt_tensor tensor(int dtype, int rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  rapt_tensor t = {.dtype = dtype, .rank = rank, .size = {a, b, c, d}};
  for (int i = rank - 1; i >= 0; i--) t.stride[i] = i == rank - 1 ? 1 : t.stride[i + 1] * t.size[i + 1];
  return t;
}

static void set_qkv(rapt_tensor q, rapt_tensor k, rapt_tensor v) {
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_problem_set_qkv(&p, &q, &k, &v, &why), RAPT_ARG);
  fault(&why);
}

static void tensors(void) {
  rapt_tensor q = tensor(RAPT_FP32, 4, 2, 6, 4, 8), one = tensor(RAPT_FP32, 1, 8, 0, 0, 0), three = tensor(RAPT_FP32, 3, 6, 4, 8, 0);
  rapt_tensor far = q, other = tensor(RAPT_FP32, 4, 3, 6, 4, 8), heads = tensor(RAPT_FP32, 4, 2, 4, 4, 8);
  far.kind = RAPT_CUDA;
  section("Faults of tensors that a host has");
  set_qkv(one, q, q);
  set_qkv(q, three, q);
  set_qkv(q, far, q);
  set_qkv(q, other, q);
  set_qkv(q, q, heads);
  set_qkv(q, heads, heads);
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_problem_set_qkv(&p, &q, &q, &q, NULL), RAPT_OK);
  rapt_tensor planes[] = {tensor(RAPT_INT32, 2, 4, 4, 0, 0), tensor(RAPT_BOOL, 2, 4, 5, 0, 0), tensor(RAPT_BOOL, 4, 2, 5, 4, 4)};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(rapt_problem_set_mask(&p, &planes[i], &why), RAPT_ARG);
    fault(&why);
  }
  assert_int_equal(rapt_problem_set_bias(&p, &planes[0], &why), RAPT_ARG);
  fault(&why);
  assert_int_equal(rapt_problem_set_bias(&p, NULL, &why), RAPT_ARG);
  fault(&why);
  assert_int_equal(rapt_problem_output(&p, RAPT_FIELD_Q, &q, &why), RAPT_ARG);
  fault(&why);
}

/* ---- Contexts, rows and runs ---- */

static rapt_ctx *context(const rapt_ctx_opts *opts) {
  rapt_ctx *ctx = NULL;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_status status = rapt_ctx_create(opts, &ctx, &why);
  if (status != RAPT_OK) fault(&why);
  return ctx;
}

static rapt_ctx *what_if(const char *facts, uint64_t flags) {
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  opts.facts = facts;
  opts.flags = flags;
  return context(&opts);
}

static void contexts(void) {
  section("Faults of a context, its options and the environment");
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  const char *names[] = {"fa9", "sagee", "class:flush", "nothing-like-it", ",cpu"};
  opts.flags = RAPT_CTX_NO_ENV;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    opts.require = names[i];
    assert_null(context(&opts));
  }
  opts.require = NULL;
  opts.isa = "sse";
  assert_null(context(&opts));
  opts.isa = "neon";
  opts.facts = "cpu isa=avx2";
  assert_null(context(&opts));
  opts.isa = opts.facts = NULL;
  opts.max_threads = 1u << 30;
  assert_null(context(&opts));
  opts.max_threads = 0;
  opts.memory_limit = 5;
  assert_null(context(&opts));
  opts.has = RAPT_HAS_MEMORY_LIMIT;
  opts.memory_limit = -5;
  assert_null(context(&opts));
  static const char *const set[][2] = {{"RAPT_REQUIRE", "fa9"}, {"RAPT_MEMORY_LIMIT", "4G"}, {"RAPT_MEMORY_LIMIT", "-4"},
                                       {"RAPT_REF_LIMIT", "0"}, {"RAPT_ISA", "sse"}, {"RAPT_VERIFY", "4"}};
  rapt_ctx_opts plain = RAPT_CTX_OPTS_INIT;
  for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) {
    setenv(set[i][0], set[i][1], 1);
    rapt_ctx *ctx = context(&plain);
    unsetenv(set[i][0]);
    assert_null(ctx);
  }
}

static void bad_row(const rapt_row *row) {
  rapti_cap cap;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_not_equal(rapti_cap_compile(row, &cap, &why), RAPT_OK);
  fault(&why);
}

static rapt_row own_row(void) {
  rapt_row row = {.struct_size = (uint32_t)sizeof row, .id = "mine", .kinds = RAPT_KIND(RAPT_CPU)};
  return row;
}

static void rows(void) {
  rapt_row row = own_row();
  section("Faults of a row that a provider registers");
  row.id = "Bad Id";
  bad_row(&row);
  row = own_row();
  row.d_max = -1;
  bad_row(&row);
  row = own_row();
  row.package = "mypkg";
  bad_row(&row);
  row = own_row();
  row.cc = "9.x-";
  bad_row(&row);
  row = own_row();
  row.needs = "torch 2";
  bad_row(&row);
  row = own_row();
  row.isa = "sse";
  bad_row(&row);
  row = own_row();
  row.struct_size = 8;
  bad_row(&row);
  row = own_row();
  row.dtypes = RAPT_DT(RAPT_FP32);
  rapt_backend b = {.struct_size = (uint32_t)sizeof b, .api_version = RAPT_PROVIDER_VERSION + 1, .n_rows = 1, .rows = &row};
  rapt_ctx *ctx = what_if("cpu isa=avx2", RAPT_CTX_NO_ENV);
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_backend_register(ctx, &b, &why), RAPT_ABI);
  fault(&why);
  b.api_version = RAPT_PROVIDER_VERSION;
  row.id = "cpu.avx2";
  assert_int_equal(rapt_backend_register(ctx, &b, &why), RAPT_ARG);
  fault(&why);
  rapt_ctx_destroy(ctx);
}

static void checked(const rapt_plan *plan, const rapt_buffers *b, const void *ws, size_t n) {
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_plan_check(plan, b, ws, n, &why), RAPT_ARG);
  fault(&why);
}

static void runs(void) {
  static _Alignas(64) float data[4096];
  static _Alignas(64) unsigned char scratch[1 << 20];
  static int32_t lengths[] = {4, 9};
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  opts.flags = RAPT_CTX_NO_ENV;
  opts.max_threads = 1;
  opts.isa = "scalar";
  rapt_ctx *ctx = context(&opts);
  rapt_problem p = RAPT_PROBLEM_INIT;
  char names[64];
  const char *text = "fp32 b2 h2 q3 k8 d8 kvlen=int32 require=cpu.scalar";
  rapt_plan *plan;
  section("Faults of a run");
  assert_int_equal(rapt_problem_parse(text, strlen(text), &p, names, sizeof names, NULL), RAPT_OK);
  assert_int_equal(rapt_plan_create(ctx, &p, &plan, NULL), RAPT_OK);
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = data;
  b.k = data + 256;
  b.v = data + 512;
  b.kv_len = lengths;
  checked(plan, &b, scratch, sizeof scratch);
  b.out = (char *)(data + 1024) + 2;
  checked(plan, &b, scratch, sizeof scratch);
  b.out = data + 300;
  checked(plan, &b, scratch, sizeof scratch);
  b.out = data + 1024;
  checked(plan, &b, scratch, sizeof scratch);
  b.lse = data + 2048;
  checked(plan, &b, scratch, sizeof scratch);
  b.lse = NULL;
  lengths[1] = 8;
  size_t n = rapt_plan_workspace(plan);
  if (n) {
    checked(plan, &b, scratch, 16);
    checked(plan, &b, NULL, n);
    checked(plan, &b, scratch + 4, n);
  }
  rapt_plan_destroy(plan);
  rapt_ctx_destroy(ctx);
  ctx = what_if("cuda cc=9.0", RAPT_CTX_NO_ENV);
  rapt_report *report;
  assert_int_equal(rapt_plan_create(ctx, &p, &plan, &report), RAPT_ARG);
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_report_error(report, &why), RAPT_OK);
  fault(&why);
  rapt_report_destroy(report);
  rapt_ctx_destroy(ctx);
}

/* ---- Reasons of rows ---- */

static struct { rapt_reason reason; char row[48]; } kept[MAX_SEEN];
static uint32_t n_kept;

/* Two sentences of a code and argument at most, with different words. */
static void keep(const rapt_reason *why, const char *row) {
  uint32_t same = 0;
  for (uint32_t i = 0; i < n_kept; i++) {
    const rapt_reason *r = &kept[i].reason;
    if (r->code != why->code || r->field != why->field || r->state != why->state) continue;
    if (++same == 2 || !strcmp(r->want, why->want) || r->state == RAPT_NOT_EVALUATED) return;
  }
  assert_true(n_kept < MAX_SEEN);
  kept[n_kept].reason = *why;
  snprintf(kept[n_kept++].row, sizeof kept[0].row, "%s", row);
}

static void explained_by(rapt_ctx *ctx, const char *text) {
  rapt_problem p = RAPT_PROBLEM_INIT;
  char names[64];
  rapt_report *report;
  rapt_verdict v = RAPT_VERDICT_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_problem_parse(text, strlen(text), &p, names, sizeof names, &why), RAPT_OK);
  rapt_status status = rapt_explain(ctx, &p, &report);
  if (status != RAPT_OK && status != RAPT_REFUSED) fail_msg("%s: %s", text, rapt_status_name((int32_t)status));
  for (uint32_t i = 0; i < rapt_report_count(report); i++) {
    assert_int_equal(rapt_report_verdict(report, i, &v), RAPT_OK);
    for (uint32_t j = 0; j < v.n_reasons; j++) {
      assert_int_equal(rapt_report_reason(report, i, j, &why), RAPT_OK);
      keep(&why, v.row);
    }
  }
  rapt_report_destroy(report);
  rapt_ctx_destroy(ctx);
}

static void explained(const char *facts, const char *text) { explained_by(what_if(facts, RAPT_CTX_NO_ENV), text); }

#define CUDA "cuda cc=9.0 cuda=12.8 torch=2.13.0 flash-attn=2.8.3 flash-attn.cc=8.0,9.0 cudnn=9.12.0 sageattention=2.2.0 kernels=0.9.0"
static void verdicts(void) {
  static const char *const options[] = {
    "", "causal", "causal window=9,0", "causal=off:5", "causal=off:int64", "causal=off:int64@dev", "window=9,3", "mask=bool:1x1x1x64",
    "mask=bool:1x4x64x64", "causal mask=bool:1x4x64x64", "bias=fp32:1x4x64x64", "causal bias=fp16:1x1x64x64", "kvlen=int32", "qlen=int64@dev",
    "packed=int32,64/64", "packed=int64@dev causal=br", "alibi=h", "softcap=30", "softcap=30 dropout=0.1", "sinks=fp32", "scale=0.5",
    "scale=0", "scale=-1", "dropout=0.1", "dropout=0.1 seed=dev", "dropout=1", "lse", "lse dropout=0.25", "grad=q,k,v",
    "grad=q,bias bias=fp16:1x4x64x64", "grad=sinks sinks=fp32", "strict", "det=run", "det=batch grad=q", "mem=0", "capture", "out=fp32",
    "q.st=16384,4096,64,2", "ptr=2", "require=fa2", "forbid=class:flash,cpu", "alibi=h bias=fp16:1x4x64x64", "window=0,9"};
  static const char *const devices[] = {CUDA, "cpu isa=avx2 threads=2 torch=2.13.0", "cuda", "hip arch=gfx1100 aiter=0.1.9 torch=2.4"};
  static const char *const kinds[] = {"cuda", "cpu", "cuda", "hip"};
  char text[160];
  for (size_t d = 0; d < 4; d++)
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
      snprintf(text, sizeof text, PLAIN " %s dev=%s", options[i], kinds[d]);
      explained(devices[d], text);
    }
  explained(CUDA, "fp32 b1 h4 q64 k64 d64 dev=cuda");
  explained(CUDA, "fp64 b70000 h4 q64 k64 d64 grad=q dev=cuda");
  explained(CUDA, "fp32/fp16/fp16 b1 h4 q64 k64 d64 mixed_kv dev=cuda");
  explained(CUDA, "fp16 b1 h4/2 q8 k64 d300/60 causal=br dev=cuda");
  explained(CUDA, "fp16 b1 h4/1 q1 k64 d64/96 causal=tl dev=cuda");
  explained(CUDA, "fp16 b1 h4 q65 k64 d64 causal=tl bias=fp16:1x4x65x64 bias.st=0,4160,63,1 dev=cuda");
  explained(CUDA, "fp16 b64 h64 q65536 k65536 d256 dev=cuda");
  explained("cuda cc=7.5 torch=2.1 flash-attn=2.0.1 flash-attn.cc=7.0 cudnn=9.12.0", PLAIN " causal dev=cuda");
  explained("cuda cc=9.0 torch=none flash-attn=broken cudnn=9.14.0", PLAIN " dev=cuda");
  explained("cpu isa=scalar threads=2", "fp32 b8 h32 q8192 k8192 d128");
  explained("cpu threads=2", "fp32 b1 h2 q8 k8 d8");
  setenv("RAPT_REQUIRE", "fa3,class:fused", 1);
  setenv("RAPT_FORBID", "cpu", 1);
  rapt_ctx *ctx = what_if("cpu isa=avx2 threads=2", 0);
  unsetenv("RAPT_REQUIRE");
  unsetenv("RAPT_FORBID");
  explained_by(ctx, "fp32 b1 h2 q8 k8 d8");
}

static int by_code(const void *a, const void *b) {
  const rapt_reason *x = a, *y = b;
  if (x->code != y->code) return x->code < y->code ? -1 : 1;
  if (x->field != y->field) return x->field < y->field ? -1 : 1;
  return x->state - y->state;
}

static void reasons(void) {
  section("Reasons of rows, from what-if reports, two of a code and argument at most");
  verdicts();
  qsort(kept, n_kept, sizeof kept[0], by_code);
  for (uint32_t i = 0; i < n_kept; i++) {
    if (kept[i].reason.state == RAPT_FAILED) mark(kept[i].reason.code, kept[i].reason.field, true);
    write_sentence(&kept[i].reason, kept[i].row);
  }
}

/* ---- What no call of this version gives ---- */

static void made_of(int code, int field, bool row, const char *got, const char *want) {
  rapt_reason why = RAPT_REASON_INIT;
  rapti_reason_set(&why, code, field, -1, -1);
  rapti_reason_got(&why, "%s", got);
  rapti_reason_want(&why, "%s", want);
  mark(code, field, row);
  write_sentence(&why, row ? "ROW" : NULL);
}

/* The argument that the code speaks of. */
static int field_of(int code) {
  switch (code) {
    case RAPT_CODE_AVAIL: case RAPT_CODE_VERSION: return RAPT_FIELD_BACKEND;
    case RAPT_CODE_ALIGNMENT: return RAPT_FIELD_ALIGN;
    case RAPT_CODE_CU_SEQLENS: return RAPT_FIELD_CU_Q;
    case RAPT_CODE_BLOCK_MASK: return RAPT_FIELD_BLOCK_MASK;
    case RAPT_CODE_STRICT: return RAPT_FIELD_STRICT;
    case RAPT_CODE_REDUCED: return RAPT_FIELD_ALLOW;
    default: return RAPT_FIELD_Q;
  }
}

static void made(void) {
  section("Made by hand: what no call above gives");
  for (int code = RAPT_CODE_NONE + 1; code < RAPT_CODE_COUNT; code++) {
    const rapti_code_info *info = rapti_code_get(code);
    if (info->sentence && !was_seen(code, -1, true)) made_of(code, field_of(code), true, "GOT", "WANT");
    if (info->fault && !was_seen(code, -1, false)) made_of(code, field_of(code), false, "GOT", "WANT");
  }
  static const struct { int code, field; bool row, fault; } words[] = {
#define RAPTI_WORDS(code, field, sentence, advice, fault, correction) \
  {RAPT_CODE_##code, RAPT_FIELD_##field, sentence != NULL || advice != NULL, fault != NULL || correction != NULL},
#include "core/words.def"
#undef RAPTI_WORDS
  };
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
    if (words[i].row && !was_seen(words[i].code, words[i].field, true))
      made_of(words[i].code, words[i].field, true, "GOT", "WANT");
    if (words[i].fault && !was_seen(words[i].code, words[i].field, false))
      made_of(words[i].code, words[i].field, false, "GOT", "WANT");
  }
  section("Made by hand: a provider that leaves values out");
  for (int code = RAPT_CODE_NONE + 1; code <= RAPT_CODE_UNKNOWN_SUPPORT; code++)
    if (rapti_code_get(code)->sentence) made_of(code, RAPT_FIELD_NONE, true, "", "");
}

/* ---- The golden file ---- */

static char *read_file(const char *path) {
  FILE *f = fopen(path, "rb");
  char *text = calloc(1, 1 << 18);
  assert_non_null(text);
  if (!f) return text;
  assert_true(fread(text, 1, (1 << 18) - 1, f) < (1 << 18) - 1);
  fclose(f);
  return text;
}

static void e3_every_message_reads_as_recorded(void **state) {
  (void)state;
  static const char new_path[] = RAPT_BINARY_DIR "/messages.txt", path[] = RAPT_SOURCE_DIR "/tests/unit/messages.txt";
  out = fopen(new_path, "wb");
  assert_non_null(out);
  fprintf(out, "# Every message as a user reads it, written by test_messages.c. After a change of words: read this file, then put\n"
               "# the new one, BUILD/messages.txt, in its place.\n");
  problems();
  texts();
  facts();
  structs();
  tensors();
  contexts();
  rows();
  runs();
  reasons();
  made();
  assert_int_equal(fclose(out), 0);
  char *now = read_file(new_path), *golden = read_file(path);
  uint32_t line = 1;
  char *a = now, *b = golden;
  for (; *a && *a == *b; a++, b++) line += *a == '\n';
  if (*a || *b) {
    while (a > now && a[-1] != '\n') a--, b--;
    print_error("line %u\n  is  %.*s\n  was %.*s\n  all of it: %s\n", line, (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b, new_path);
  }
  assert_true(!*a && !*b);
  free(now);
  free(golden);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(e3_every_message_reads_as_recorded)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
