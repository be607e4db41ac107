/* SPDX-License-Identifier: Apache-2.0 */
/* E5: the n-th allocation fails, once or from then on. Every call answers NOMEM or does its work; nothing leaks and the
 * context goes on. */
#include "fake.h"

typedef struct faulty { long calls, fail_at; bool all_after; long live; bool tripped; } faulty;

static void *faulty_alloc(void *self, size_t bytes, size_t align) {
  faulty *f = self;
  f->calls++;
  if (f->fail_at && (f->calls == f->fail_at || (f->all_after && f->calls > f->fail_at))) {
    f->tripped = true;
    return NULL;
  }
  f->live++;
  return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void faulty_free(void *self, void *p) {
  assert_non_null(p);
  ((faulty *)self)->live--;
  free(p);
}

static void inline_for(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg) {
  (void)self;
  for (uint32_t i = 0; i < n; i++) task(arg, i);
}

static void arm(faulty *f, long n, bool all_after) {
  f->calls = 0;
  f->fail_at = n;
  f->all_after = all_after;
  f->tripped = false;
}

static rapt_status create(faulty *f, rapt_ctx **ctx) {
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.alloc = faulty_alloc;
  o.free = faulty_free;
  o.alloc_self = f;
  o.parallel_for = inline_for;
  o.prefer = "ref";
  o.forbid = "class:flash";
  o.max_threads = 2;
  return rapt_ctx_create(&o, ctx, NULL);
}

/* One call on a context; what it hands out is destroyed. */
typedef rapt_status (*step)(rapt_ctx *ctx, small *s);

static rapt_status do_explain(rapt_ctx *ctx, small *s) {
  rapt_report *r;
  rapt_status st = rapt_explain(ctx, &s->p, &r);
  assert_int_equal(r == NULL, st == RAPT_NOMEM);
  rapt_report_destroy(r);
  return st;
}

static rapt_status do_plan(rapt_ctx *ctx, small *s) {
  rapt_plan *plan;
  rapt_report *r;
  rapt_status st = rapt_plan_create(ctx, &s->p, &plan, &r);
  assert_int_equal(plan != NULL, st == RAPT_OK);
  assert_int_equal(r == NULL, st == RAPT_NOMEM);
  rapt_report_destroy(r);
  rapt_plan_destroy(plan);
  return st;
}

static rapt_status do_plan_report(rapt_ctx *ctx, small *s) {
  rapt_plan *plan;
  rapt_report *r = NULL;
  rapt_status st = rapt_plan_create(ctx, &s->p, &plan, NULL);
  if (st == RAPT_OK) st = rapt_plan_report(plan, &r);
  rapt_report_destroy(r);
  rapt_plan_destroy(plan);
  return st;
}

static rapt_status do_attention(rapt_ctx *ctx, small *s) {
  s->out[0] = 5.0f;
  rapt_status st = rapt_attention(ctx, &s->p, &s->b, NULL);
  if (st != RAPT_OK) assert_true(s->out[0] == 5.0f);   /* E2 */
  return st;
}

static rapt_status do_attention_report(rapt_ctx *ctx, small *s) {
  rapt_report *r;
  s->out[0] = 5.0f;
  rapt_status st = rapt_attention(ctx, &s->p, &s->b, &r);
  if (st == RAPT_NOMEM) {
    assert_true(s->out[0] == 5.0f);
    assert_null(r);
  }
  rapt_report_destroy(r);
  return st;
}

static rapt_status do_register(rapt_ctx *ctx, small *s) {
  static fake f;
  (void)s;
  fake_make(&f, "fake");
  f.row.place = RAPT_PLACE_OPT_IN;
  f.backend.probe = fake_probe;
  f.probe_says = RAPT_DEVICE_ERROR;
  return rapt_backend_register(ctx, &f.backend, NULL);
}

static void walk(step call, rapt_status good, const char *problem) {
  for (int all_after = 0; all_after < 2; all_after++) {
    long n = 1;
    for (bool tripped = true; tripped; n++) {
      assert_true(n < 500);
      faulty f = {0};
      rapt_ctx *ctx = NULL;
      small s;
      small_make(&s, problem);
      assert_int_equal(create(&f, &ctx), RAPT_OK);
      arm(&f, n, all_after);
      rapt_status st = call(ctx, &s);
      tripped = f.tripped;
      assert_int_equal(st, tripped ? RAPT_NOMEM : good);
      arm(&f, 0, false);
      assert_int_equal(call(ctx, &s), good);           /* the context goes on */
      rapt_ctx_destroy(ctx);
      assert_int_equal(f.live, 0);
    }
    assert_true(n > 2);                                /* at least one allocation failed */
  }
}

static void test_explain_e5(void **state) { (void)state; walk(do_explain, RAPT_OK, SMALL); }
static void test_explain_refused_e5(void **state) { (void)state; walk(do_explain, RAPT_REFUSED, SMALL " require=ref forbid=ref"); }
static void test_explain_arg_e5(void **state) { (void)state; walk(do_explain, RAPT_ARG, SMALL " causal"); }
static void test_plan_e5(void **state) { (void)state; walk(do_plan, RAPT_OK, SMALL " autocast=bf16"); }
static void test_plan_refused_e5(void **state) { (void)state; walk(do_plan, RAPT_REFUSED, SMALL " forbid=ref require=ref"); }
static void test_plan_arg_e5(void **state) { (void)state; walk(do_plan, RAPT_ARG, SMALL " causal"); }
static void test_plan_report_e5(void **state) { (void)state; walk(do_plan_report, RAPT_OK, SMALL); }
static void test_attention_e5(void **state) { (void)state; walk(do_attention, RAPT_OK, SMALL " autocast=bf16"); }
static void test_attention_report_e5(void **state) { (void)state; walk(do_attention_report, RAPT_OK, SMALL); }
static void test_attention_arg_e5(void **state) { (void)state; walk(do_attention_report, RAPT_ARG, SMALL " causal"); }
static void test_register_e5(void **state) { (void)state; walk(do_register, RAPT_OK, SMALL); }

static void test_create_e5(void **state) {
  (void)state;
  for (int all_after = 0; all_after < 2; all_after++) {
    long n = 1;
    for (bool tripped = true; tripped; n++) {
      assert_true(n < 500);
      faulty f = {0};
      arm(&f, n, all_after);
      rapt_ctx *ctx = NULL;
      rapt_status st = create(&f, &ctx);
      tripped = f.tripped;
      assert_int_equal(st, tripped ? RAPT_NOMEM : RAPT_OK);
      assert_int_equal(ctx != NULL, st == RAPT_OK);
      rapt_ctx_destroy(ctx);
      assert_int_equal(f.live, 0);
    }
    assert_true(n > 4);
  }
}

/* P2: a run allocates nothing. */
static void test_run_p2(void **state) {
  (void)state;
  faulty f = {0};
  rapt_ctx *ctx;
  assert_int_equal(create(&f, &ctx), RAPT_OK);
  small s;
  small_make(&s, SMALL " autocast=bf16");
  rapt_plan *plan;
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, NULL), RAPT_OK);
  size_t n = rapt_plan_workspace(plan);
  void *ws = aligned_alloc(64, n / 64 * 64 + 64);
  arm(&f, 1, true);
  assert_int_equal(rapt_plan_run(plan, &s.b, ws, n, NULL), RAPT_OK);
  assert_int_equal(f.calls, 0);
  /* P8: nor does the one-shot call, once warm. */
  arm(&f, 0, false);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  arm(&f, 1, true);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(f.calls, 0);
  rapt_plan_destroy(plan);
  free(ws);
  rapt_ctx_destroy(ctx);
  assert_int_equal(f.live, 0);
}

/* P8: a second pass over the same thousand calls holds no more memory than the first. */
static void test_no_growth_p8(void **state) {
  (void)state;
  faulty f = {0};
  rapt_ctx *ctx;
  assert_int_equal(create(&f, &ctx), RAPT_OK);
  static float data[1000 * 8];
  float out[8];
  rapt_problem p = parsed("fp32 b1 h1 q1 k1 d8");
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = b.k = b.v = data;
  b.out = out;
  long live = 0;
  for (int pass = 0; pass < 2; pass++) {
    for (p.Skv = 1; p.Skv <= 1000; p.Skv++) assert_int_equal(rapt_attention(ctx, &p, &b, NULL), RAPT_OK);
    if (pass) assert_int_equal(f.live, live);
    live = f.live;
  }
  rapt_ctx_destroy(ctx);
  assert_int_equal(f.live, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_create_e5), cmocka_unit_test(test_explain_e5), cmocka_unit_test(test_explain_refused_e5),
    cmocka_unit_test(test_explain_arg_e5), cmocka_unit_test(test_plan_e5), cmocka_unit_test(test_plan_refused_e5),
    cmocka_unit_test(test_plan_arg_e5), cmocka_unit_test(test_plan_report_e5), cmocka_unit_test(test_attention_e5),
    cmocka_unit_test(test_attention_report_e5), cmocka_unit_test(test_attention_arg_e5),
    cmocka_unit_test(test_register_e5), cmocka_unit_test(test_run_p2), cmocka_unit_test(test_no_growth_p8),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
