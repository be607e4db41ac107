/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: the exact workspace (P3), the checks of a run in their order (P4, E7), casts (A8, A9), empty problems (S6, S7,
 * S16), concurrent runs (P5). */
#include "base/half.h"
#include "fake.h"

#include <math.h>
#include <pthread.h>

static rapt_plan *plan_of(rapt_ctx *ctx, const rapt_problem *p) {
  rapt_plan *plan = NULL;
  rapt_report *r = NULL;
  if (rapt_plan_create(ctx, p, &plan, &r) != RAPT_OK) fail_msg("%s", report_text(r, RAPT_FORM_TEXT));
  rapt_report_destroy(r);
  return plan;
}

static void expect(const rapt_plan *plan, const rapt_buffers *b, const void *ws, size_t n, int code, int field) {
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_plan_check(plan, b, ws, n, &why), RAPT_ARG);
  assert_string_equal(rapt_code_name(why.code), rapt_code_name(code));
  assert_string_equal(rapt_field_name(why.field), rapt_field_name(field));
  assert_int_equal(rapt_plan_run(plan, b, (void *)(uintptr_t)ws, n, NULL), RAPT_ARG);
}

static void test_workspace_p3(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.workspace = 100;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  rapt_plan *plan = plan_of(ctx, &s.p);
  size_t n = rapt_plan_workspace(plan);
  assert_int_equal(n, 100);
  unsigned char *ws = aligned_alloc(64, 192);
  memset(ws, 0xee, 192);
  expect(plan, &s.b, ws, n - 1, RAPT_CODE_MEMORY, RAPT_FIELD_WORKSPACE);
  expect(plan, &s.b, NULL, n, RAPT_CODE_NULL, RAPT_FIELD_WORKSPACE);
  expect(plan, &s.b, ws + 32, n, RAPT_CODE_MEM_ALIGN, RAPT_FIELD_WORKSPACE);
  expect(plan, &s.b, (char *)s.q - (uintptr_t)s.q % 64, n, RAPT_CODE_OVERLAP, RAPT_FIELD_WORKSPACE);
  assert_int_equal(f.runs, 0);
  assert_int_equal(rapt_plan_run(plan, &s.b, ws, n, NULL), RAPT_OK);
  assert_ptr_equal(f.used, ws);
  for (int i = 0; i < 192; i++) assert_int_equal(ws[i], i < 100 ? 0x5a : 0xee);
  rapt_plan_destroy(plan);
  assert_int_equal(f.releases, 1);
  free(ws);
  rapt_ctx_destroy(ctx);
}

/* Two faults at once: the earlier check answers. */
static void test_check_order_e7(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.workspace = 64;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL " kvlen=int32 lse");
  int32_t lengths[1] = {5};
  s.b.kv_len = lengths;
  rapt_plan *plan = plan_of(ctx, &s.p);
  unsigned char *ws = aligned_alloc(64, 128);
  s.b.lse = NULL;
  s.b.v = (char *)s.v + 2;
  expect(plan, &s.b, ws, 0, RAPT_CODE_NULL, RAPT_FIELD_LSE);
  s.b.q = NULL;
  expect(plan, &s.b, ws, 0, RAPT_CODE_NULL, RAPT_FIELD_Q);
  s.b.q = s.q;
  s.b.lse = s.out;                        /* overlaps out */
  expect(plan, &s.b, ws, 0, RAPT_CODE_MEM_ALIGN, RAPT_FIELD_V);
  s.b.v = s.v;
  expect(plan, &s.b, ws, 0, RAPT_CODE_MEMORY, RAPT_FIELD_WORKSPACE);
  expect(plan, &s.b, ws, 64, RAPT_CODE_OVERLAP, RAPT_FIELD_OUT);
  s.b.lse = s.lse;
  expect(plan, &s.b, ws, 64, RAPT_CODE_LENGTHS, RAPT_FIELD_KV_LEN);
  rapt_reason why = RAPT_REASON_INIT;
  rapt_plan_check(plan, &s.b, ws, 64, &why);
  assert_int_equal(why.index, 0);
  assert_string_equal(why.got, "5");
  assert_string_equal(why.want, "0..4");
  lengths[0] = -1;
  expect(plan, &s.b, ws, 64, RAPT_CODE_LENGTHS, RAPT_FIELD_KV_LEN);
  lengths[0] = 4;
  s.b.mask = s.q;                         /* nothing in the problem asks for one (D12) */
  expect(plan, &s.b, ws, 64, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_MASK);
  s.b.mask = NULL;
  s.b.dq = s.q;
  expect(plan, &s.b, ws, 64, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_DQ);
  s.b.dq = NULL;
  s.b.reserved = 1;
  expect(plan, &s.b, ws, 64, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_BUFFERS);
  s.b.reserved = 0;
  assert_int_equal(rapt_plan_check(plan, &s.b, ws, 64, NULL), RAPT_OK);
  s.b.struct_size--;
  assert_int_equal(rapt_plan_check(plan, &s.b, ws, 64, NULL), RAPT_ABI);
  assert_int_equal(rapt_plan_run(plan, &s.b, ws, 64, NULL), RAPT_ABI);
  assert_int_equal(f.runs, 0);
  rapt_plan_destroy(plan);
  free(ws);
  rapt_ctx_destroy(ctx);
}

static void test_declared_alignment_s12(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL " k.ptr=64");
  rapt_plan *plan = plan_of(ctx, &s.p);
  size_t n = rapt_plan_workspace(plan);
  void *ws = aligned_alloc(64, n / 64 * 64 + 64);
  float *k = aligned_alloc(64, 512);
  memcpy(k + 4, s.k, 2 * 4 * 8 * 4);
  s.b.k = k + 4;
  expect(plan, &s.b, ws, n, RAPT_CODE_MEM_ALIGN, RAPT_FIELD_K);
  s.b.k = k;
  assert_int_equal(rapt_plan_check(plan, &s.b, ws, n, NULL), RAPT_OK);
  rapt_plan_destroy(plan);
  free(k);
  free(ws);
  rapt_ctx_destroy(ctx);
}

static void test_offsets_m2(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL " causal=off:int64");
  rapt_plan *plan = plan_of(ctx, &s.p);
  size_t n = rapt_plan_workspace(plan);
  void *ws = aligned_alloc(64, n / 64 * 64 + 64);
  int64_t off[1] = {(INT64_C(1) << 62) + 1};
  expect(plan, &s.b, ws, n, RAPT_CODE_NULL, RAPT_FIELD_Q_OFFSET);
  s.b.q_offset = off;
  expect(plan, &s.b, ws, n, RAPT_CODE_LENGTHS, RAPT_FIELD_Q_OFFSET);
  off[0] = -(INT64_C(1) << 62);
  assert_int_equal(rapt_plan_check(plan, &s.b, ws, n, NULL), RAPT_OK);
  rapt_plan_destroy(plan);
  free(ws);
  rapt_ctx_destroy(ctx);
}

/* S11: out may lie between q, k and v of one packed array, and nowhere else within it. */
static void test_interleaved_s11(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  fake_register(ctx, &f);
  static float all[2 * 5 * 4 * 16 + 64];  /* [B, S, (q k v out), H, D] */
  const char *text = "fp32 b2 h2 q5 k5 d8 q.st=320,8,64,1 k.st=320,8,64,1 v.st=320,8,64,1 out.st=320,8,64,1";
  rapt_problem p = parsed(text);
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = all;
  b.k = all + 16;
  b.v = all + 32;
  b.out = all + 48;
  rapt_plan *plan = plan_of(ctx, &p);
  assert_int_equal(rapt_plan_check(plan, &b, NULL, 0, NULL), RAPT_OK);
  b.out = all + 47;                       /* touches v's last element of each token */
  expect(plan, &b, NULL, 0, RAPT_CODE_OVERLAP, RAPT_FIELD_OUT);
  b.out = all + 49;                       /* touches q's first element of the next token */
  expect(plan, &b, NULL, 0, RAPT_CODE_OVERLAP, RAPT_FIELD_OUT);
  b.out = all + 48 + 64;                  /* one token on: still between */
  assert_int_equal(rapt_plan_check(plan, &b, NULL, 0, NULL), RAPT_OK);
  rapt_plan_destroy(plan);
  p = parsed("fp32 b2 h2 q5 k5 d8 q.st=320,8,64,1 k.st=320,8,64,1 v.st=320,8,64,1 out.st=384,8,64,1");
  plan = plan_of(ctx, &p);                /* another batch stride: no proof */
  b.out = all + 48;
  expect(plan, &b, NULL, 0, RAPT_CODE_OVERLAP, RAPT_FIELD_OUT);
  rapt_plan_destroy(plan);
  p = parsed("fp32 b2 h2 q1 k1 d8 q.st=64,8,1,1 k.st=64,8,1,1 v.st=64,8,1,1 out.st=64,8,1,1");
  plan = plan_of(ctx, &p);                /* one token: the batch stride steps */
  assert_int_equal(rapt_plan_check(plan, &b, NULL, 0, NULL), RAPT_OK);
  b.out = all + 40;
  expect(plan, &b, NULL, 0, RAPT_CODE_OVERLAP, RAPT_FIELD_OUT);
  rapt_plan_destroy(plan);
  rapt_ctx_destroy(ctx);
}

/* ---- Casts ---- */

static uint16_t half_of(float x, int dtype, bool saturate) {
  uint16_t h = dtype == RAPT_FP16 ? rapti_f32_to_fp16(x) : rapti_f32_to_bf16(x);
  uint16_t inf = dtype == RAPT_FP16 ? 0x7c00 : 0x7f80;
  if (saturate && isfinite(x) && (h & 0x7fff) == inf) h--;
  return h;
}

static float cast_input(int i) {          /* edges first: ties, overflow, subnormals, -inf, NaN */
  static const float edge[] = {0.0f, -0.0f, 1.0f, -65504.0f, 65520.0f, 65519.0f, 3e38f, -3.4028235e38f, 6e-8f, 2.98e-8f,
                               -3.1e-5f, 1.00048828125f, 1.00146484375f, 1.00390625f, 1e-40f, 0.1f};
  if (i < 16) return edge[i];
  if (i == 16) return -INFINITY;
  if (i == 17) return INFINITY;
  if (i == 18) return NAN;
  return (float)(((uint32_t)i * 2654435761u) >> 8) / 8388608.0f - 1.0f;
}

/* The copies a backend gets, against the conversions of base, from transposed and broadcast memory. */
static void cast_case(rapt_ctx *ctx, fake *f, const char *dtype, int to) {
  enum { B = 2, H = 3, S = 11, D = 24, N = B * H * S * D };
  char text[256];
  snprintf(text, sizeof text, "fp32 b2 h3 q11 k11 d24 q.st=792,1,72,3 k.st=0,264,24,1 bias=fp32:1x3x11x11 autocast=%s", dtype);
  rapt_problem p = parsed(text);
  p.has |= RAPT_HAS_BIAS_STRIDES;
  p.bias.stride[1] = -121;                /* heads run backwards */
  p.bias.stride[2] = 11;
  p.bias.stride[3] = 1;
  float *q = malloc(N * 4), *k = malloc(N * 4), *v = malloc(N * 4), *bias = malloc(363 * 4);
  for (int i = 0; i < N; i++) q[i] = k[i] = v[i] = cast_input(i);
  for (int i = 0; i < 363; i++) bias[i] = cast_input(i);
  uint16_t *out = malloc(N * 2);
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = q;
  b.k = k;
  b.v = v;
  b.bias = bias + 242;
  b.out = out;
  assert_int_equal(rapt_attention(ctx, &p, &b, NULL), RAPT_OK);
  const rapt_problem *c = &f->problem;
  assert_int_equal(c->q.dtype, to);
  for (int n = 0; n < B; n++)
    for (int h = 0; h < H; h++)
      for (int i = 0; i < S; i++)
        for (int d = 0; d < D; d++) {
          const int64_t *sq = c->q.stride, *sk = c->k.stride;
          uint16_t gq = ((const uint16_t *)f->buffers.q)[n * sq[0] + h * sq[1] + i * sq[2] + d * sq[3]];
          uint16_t gk = ((const uint16_t *)f->buffers.k)[n * sk[0] + h * sk[1] + i * sk[2] + d * sk[3]];
          assert_int_equal(gq, half_of(q[n * 792 + h + i * 72 + d * 3], to, false));
          assert_int_equal(gk, half_of(k[h * 264 + i * 24 + d], to, false));
        }
  const int64_t *sb = c->bias.stride;
  for (int h = 0; h < H; h++)
    for (int i = 0; i < S; i++)
      for (int j = 0; j < S; j++) {
        uint16_t got = ((const uint16_t *)f->buffers.bias)[h * sb[1] + i * sb[2] + j * sb[3]];
        assert_int_equal(got, half_of(bias[242 - h * 121 + i * 11 + j], to, true));
      }
  free(q);
  free(k);
  free(v);
  free(bias);
  free(out);
}

static void test_casts_a8(void **state) {
  (void)state;
  static const char *const levels[] = {NULL, "scalar"};
  for (int i = 0; i < 2; i++) {
    rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
    o.flags = RAPT_CTX_NO_ENV;
    o.isa = levels[i];
    o.max_threads = 2;
    rapt_ctx *ctx;
    assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
    fake f;
    fake_make(&f, "fake");
    fake_register(ctx, &f);
    cast_case(ctx, &f, "bf16", RAPT_BF16);
    cast_case(ctx, &f, "fp16", RAPT_FP16);
    rapt_ctx_destroy(ctx);
  }
}

/* Every half value to the other types; -inf and NaN of a bias stay, its finite values saturate. */
static void test_casts_of_halves_a8(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  fake_register(ctx, &f);
  uint16_t *all = malloc(65536 * 2), *out = malloc(65536 * 2);
  float *wide = malloc(65536 * 4);
  for (int i = 0; i < 65536; i++) all[i] = (uint16_t)i;
  static const char *const texts[] = {"fp16 b1 h1 q1024 k64 d64 autocast=fp32", "bf16 b1 h1 q1024 k64 d64 autocast=fp32",
                                      "bf16 b1 h1 q1024 k64 d64 autocast=fp16", "fp16 b1 h1 q1024 k64 d64 autocast=bf16"};
  for (int t = 0; t < 4; t++) {
    rapt_problem p = parsed(texts[t]);
    rapt_buffers b = RAPT_BUFFERS_INIT;
    b.q = b.k = b.v = all;
    b.out = t < 2 ? (void *)wide : (void *)out;
    assert_int_equal(rapt_attention(ctx, &p, &b, NULL), RAPT_OK);
    for (int i = 0; i < 65536; i++) {
      float x = t == 0 || t == 3 ? rapti_fp16_to_f32((uint16_t)i) : rapti_bf16_to_f32((uint16_t)i);
      if (t < 2) {
        uint32_t got = ((const uint32_t *)f.buffers.q)[i];
        if (isnan(x)) assert_true(isnan(rapti_float32(got)));
        else assert_int_equal(got, rapti_bits32(x));
      } else {
        uint16_t got = ((const uint16_t *)f.buffers.q)[i], want = half_of(x, t == 2 ? RAPT_FP16 : RAPT_BF16, false);
        if (isnan(x)) assert_true((got & 0x7fff) > (t == 2 ? 0x7c00 : 0x7f80));
        else assert_int_equal(got, want);
      }
    }
  }
  free(all);
  free(out);
  free(wide);
  rapt_ctx_destroy(ctx);
}

/* A9: the same bits as on tensors cast beforehand, by the backend that runs by itself. */
static void test_cast_equals_precast_a9(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  enum { N = 2 * 33 * 16 };
  float q[N];
  uint16_t h[N], a[N], b[N];
  for (int i = 0; i < N; i++) h[i] = rapti_f32_to_bf16(q[i] = cast_input(i + 19));
  rapt_problem given = parsed("fp32 b1 h2 q33 k33 d16 autocast=bf16"), cast = parsed("bf16 b1 h2 q33 k33 d16");
  rapt_buffers x = RAPT_BUFFERS_INIT, y = RAPT_BUFFERS_INIT;
  x.q = x.k = x.v = q;
  x.out = a;
  y.q = y.k = y.v = h;
  y.out = b;
  assert_int_equal(rapt_attention(ctx, &given, &x, NULL), RAPT_OK);
  assert_int_equal(rapt_attention(ctx, &cast, &y, NULL), RAPT_OK);
  assert_memory_equal(a, b, sizeof a);
  rapt_ctx_destroy(ctx);
}

/* ---- Empty problems ---- */

static void test_empty_s6(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  fake_register(ctx, &f);
  small s;
  small_make(&s, "fp32 b1 h2 q3 k0 d8 lse");
  for (int i = 0; i < 48; i++) s.out[i] = 9.0f;
  s.b.lse = s.lse;
  s.b.k = s.b.v = NULL;                   /* no elements: no pointer needed */
  rapt_report *r;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_OK);
  for (int i = 0; i < 48; i++) assert_true(s.out[i] == 0.0f);
  for (int i = 0; i < 6; i++) assert_true(s.lse[i] == -INFINITY);
  assert_int_equal(f.runs, 0);
  assert_int_equal(row_entered(ctx, "fake"), 0);       /* R1 */
  char *json = report_text(r, RAPT_FORM_JSON);
  assert_non_null(strstr(json, "\"rewrites\":[\"empty\"]"));
  free(json);
  rapt_report_destroy(r);
  small_make(&s, "fp32 b0 h2 q3 k4 d8");
  s.b = (rapt_buffers)RAPT_BUFFERS_INIT;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(f.runs, 0);
  rapt_ctx_destroy(ctx);
}

/* ---- Runs ---- */

typedef struct worker { const rapt_plan *plan; small s; float want[48]; int bad; } worker;

static void *work(void *arg) {
  worker *w = arg;
  size_t n = rapt_plan_workspace(w->plan);
  void *ws = aligned_alloc(64, n / 64 * 64 + 64);
  for (int i = 0; i < 50; i++) {
    memset(w->s.out, 0, sizeof w->s.out);
    if (rapt_plan_run(w->plan, &w->s.b, ws, n, NULL) != RAPT_OK) w->bad = 1;
    if (memcmp(w->s.out, w->want, sizeof w->want)) w->bad = 1;
  }
  free(ws);
  return NULL;
}

static void test_concurrent_p5(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  static worker w[4];
  small_make(&w[0].s, SMALL);
  rapt_plan *plan = plan_of(ctx, &w[0].s.p);
  assert_int_equal(rapt_attention(ctx, &w[0].s.p, &w[0].s.b, NULL), RAPT_OK);
  pthread_t t[4];
  float want[48];
  memcpy(want, w[0].s.out, sizeof want);
  for (int i = 0; i < 4; i++) {
    small_make(&w[i].s, SMALL);
    memcpy(w[i].want, want, sizeof want);
    w[i].plan = plan;
    assert_int_equal(pthread_create(&t[i], NULL, work, &w[i]), 0);
  }
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  for (int i = 0; i < 4; i++) assert_int_equal(w[i].bad, 0);
  rapt_plan_destroy(plan);
  rapt_ctx_destroy(ctx);
}

/* D13: the error of a backend is the call's, and no second one is tried. */
static void test_backend_error_d13(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.run_says = RAPT_DEVICE_ERROR;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  rapt_report *r;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_DEVICE_ERROR);
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_int_equal(d.status, RAPT_DEVICE_ERROR);
  assert_string_equal(d.row, "fake");
  rapt_report_destroy(r);
  assert_int_equal(f.runs, 1);
  assert_int_equal(row_entered(ctx, "fake"), 1);
  assert_int_equal(row_entered(ctx, "ref"), 0);
  f.prepare_says = RAPT_NOMEM;
  rapt_plan *plan;
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, &r), RAPT_NOMEM);
  assert_null(plan);
  assert_null(r);
  rapt_ctx_destroy(ctx);
  assert_int_equal(f.releases, 1);        /* only what was prepared */
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_workspace_p3), cmocka_unit_test(test_check_order_e7),
    cmocka_unit_test(test_declared_alignment_s12), cmocka_unit_test(test_offsets_m2),
    cmocka_unit_test(test_interleaved_s11), cmocka_unit_test(test_casts_a8), cmocka_unit_test(test_casts_of_halves_a8),
    cmocka_unit_test(test_cast_equals_precast_a9), cmocka_unit_test(test_empty_s6), cmocka_unit_test(test_concurrent_p5),
    cmocka_unit_test(test_backend_error_d13),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
