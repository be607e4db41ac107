/* SPDX-License-Identifier: Apache-2.0 */
/* Providers (provider.h): what a registration checks, what it changes, what a plan does with the callbacks. */
#include "fake.h"

static void expect(rapt_ctx *ctx, const fake *f, rapt_status status, int code, const char *got) {
  rapt_reason why = RAPT_REASON_INIT;
  uint32_t n = rapt_row_count(ctx);
  assert_int_equal(rapt_backend_register(ctx, &f->backend, &why), status);
  assert_string_equal(rapt_code_name(why.code), rapt_code_name(code));
  if (got) assert_string_equal(why.got, got);
  assert_int_equal(rapt_row_count(ctx), n);            /* nothing of it stays */
}

static void test_bad_registrations(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.backend.api_version = 77;
  expect(ctx, &f, RAPT_ABI, RAPT_CODE_VERSION, "77");
  fake_make(&f, "fake");
  f.backend.struct_size--;
  expect(ctx, &f, RAPT_ABI, RAPT_CODE_UNKNOWN_FIELD, NULL);
  fake_make(&f, "fake");
  f.row.struct_size--;
  expect(ctx, &f, RAPT_ABI, RAPT_CODE_UNKNOWN_FIELD, NULL);
  fake_make(&f, "Fake");
  expect(ctx, &f, RAPT_ARG, RAPT_CODE_SYNTAX, "Fake");
  fake_make(&f, NULL);
  expect(ctx, &f, RAPT_ARG, RAPT_CODE_SYNTAX, "no id");
  fake_make(&f, "fake");
  f.row.place = RAPT_PLACE_OWN;
  expect(ctx, &f, RAPT_ARG, RAPT_CODE_UNKNOWN_FIELD, NULL);
  fake_make(&f, "fake");
  f.row.needs = "no-such-package>=1";
  f.backend.probe = fake_probe;
  expect(ctx, &f, RAPT_ARG, RAPT_CODE_UNKNOWN_NAME, NULL);
  assert_int_equal(f.probes, 0);                       /* a row that does not parse is not asked what is there */
  fake_make(&f, "fake");
  f.row.n_dims = 2;
  expect(ctx, &f, RAPT_ARG, RAPT_CODE_NULL, NULL);
  fake_make(&f, "fake");
  f.backend.n_rows = 0;
  expect(ctx, &f, RAPT_ARG, RAPT_CODE_NULL, NULL);
  fake_make(&f, "fake");
  rapt_row twice[2] = {f.row, f.row};
  f.backend.rows = twice;
  f.backend.n_rows = 2;
  expect(ctx, &f, RAPT_ARG, RAPT_CODE_UNKNOWN_NAME, "fake");
  assert_int_equal(rapt_backend_register(NULL, &f.backend, NULL), RAPT_ARG);
  assert_int_equal(rapt_backend_register(ctx, NULL, NULL), RAPT_ARG);
  rapt_ctx_destroy(ctx);
}

/* Rows and texts are copied; a longer row struct with a zero tail is understood. */
static void test_copies(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  struct { rapt_row row; char tail[16]; } rows[2];
  memset(rows, 0, sizeof rows);
  fake f;
  fake_make(&f, "fake");
  char id[] = "copied.a", display[] = "Shown", kernel[] = "stem";
  rapt_dims dims[1] = {{8, 8}};
  for (int i = 0; i < 2; i++) {
    rows[i].row = f.row;
    rows[i].row.struct_size = sizeof rows[0];
    rows[i].row.id = i ? "copied.b" : id;
    rows[i].row.display = display;
    rows[i].row.kernel = kernel;
    rows[i].row.dims = dims;
    rows[i].row.n_dims = 1;
  }
  f.backend.rows = &rows[0].row;
  f.backend.n_rows = 2;
  uint32_t n = rapt_row_count(ctx);
  fake_register(ctx, &f);
  assert_int_equal(rapt_row_count(ctx), n + 2);
  memset(rows, 0xff, sizeof rows);
  memset(id, 'x', 4);
  memset(display, 'x', 4);
  dims[0].D = 99;
  rapt_row_info info = RAPT_ROW_INFO_INIT;
  assert_int_equal(rapt_row_get(ctx, row_index(ctx, "copied.a"), &info), RAPT_OK);
  assert_string_equal(info.display, "Shown");
  assert_string_equal(info.kernel, "stem");
  assert_string_equal(info.backend, "copied");
  small s;
  small_make(&s, SMALL);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(f.runs, 1);
  assert_int_equal(row_entered(ctx, "copied.a"), 1);
  rapt_ctx_destroy(ctx);
}

/* What the callbacks see: a resolved problem (provider.h), the caller's pointers, its own state. */
static void test_callbacks(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL " require=fake lse");
  s.b.lse = s.lse;
  rapt_report *r;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_OK);
  assert_true(s.out[0] == 42.0f);
  assert_int_equal(f.problem.out.dtype, RAPT_FP32);
  assert_int_equal(f.problem.lse.dtype, RAPT_FP32);
  assert_true(f.problem.has & RAPT_HAS_SCALE);
  assert_true(f.problem.has & RAPT_HAS_OUT_STRIDES);
  assert_int_equal(f.problem.q.stride[1], 24);
  assert_null(f.problem.require);
  assert_ptr_equal(f.buffers.q, s.q);
  assert_ptr_equal(f.buffers.lse, s.lse);
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_string_equal(d.row, "fake");
  assert_string_equal(d.kernel, "fake_kernel");
  assert_string_equal(d.level, "call");
  rapt_report_destroy(r);
  rapt_ctx_destroy(ctx);
}

/* D28: a host row is decided and recorded here, run and counted by its binding. */
static void test_host_row_d28(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "hosted");
  f.row.place = RAPT_PLACE_HOST;
  f.row.classes = RAPT_CLASS_HOST;
  f.backend.run = NULL;
  f.backend.prepare = NULL;
  f.backend.release = NULL;
  f.backend.workspace = NULL;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL " require=hosted");
  rapt_plan *plan;
  rapt_report *r;
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, &r), RAPT_OK);
  rapt_report_destroy(r);
  assert_int_equal(rapt_plan_check(plan, &s.b, NULL, 0, NULL), RAPT_OK);
  assert_int_equal(rapt_plan_run(plan, &s.b, NULL, 0, NULL), RAPT_ARG);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_ARG);
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
  assert_int_equal(why.code, RAPT_CODE_NULL);
  assert_int_equal(why.field, RAPT_FIELD_RUN);
  rapt_report_destroy(r);
  assert_int_equal(row_entered(ctx, "hosted"), 0);
  assert_int_equal(rapt_row_enter(ctx, row_index(ctx, "hosted")), RAPT_OK);
  assert_int_equal(row_entered(ctx, "hosted"), 1);
  rapt_plan_destroy(plan);
  rapt_ctx_destroy(ctx);
}

/* A failed probe is AVAIL with its own text (D15), a good one adds facts, once. */
static void test_probe(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f, g;
  fake_make(&f, "fake");
  f.backend.probe = fake_probe;
  f.probe_says = RAPT_DEVICE_ERROR;
  fake_register(ctx, &f);
  assert_int_equal(f.probes, 1);
  small s;
  small_make(&s, SMALL " require=fake");
  rapt_report *r;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_REFUSED);
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_report_reason(r, row_index(ctx, "fake"), 0, &why), RAPT_OK);
  assert_int_equal(why.code, RAPT_CODE_AVAIL);
  assert_string_equal(why.got, "libfake.so: no such file");
  rapt_report_destroy(r);
  assert_int_equal(f.prepares + f.runs, 0);            /* D10: nothing is entered */
  assert_int_equal(row_entered(ctx, "ref"), 0);
  fake_make(&g, "sound");
  g.backend.probe = fake_probe;
  g.row.package = "sageattention";
  g.row.needs = "sageattention>=2.0";
  fake_register(ctx, &g);
  assert_int_equal(g.probes, 1);
  char facts[512];
  rapt_ctx_facts_format(ctx, facts, sizeof facts);
  assert_non_null(strstr(facts, "sageattention=2.2.0"));
  small_make(&s, SMALL " require=sound");
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(g.runs, 1);
  rapt_ctx_destroy(ctx);
}

/* D1: a what-if says itself what is there; no probe adds facts of this machine. */
static void test_what_if_not_probed(void **state) {
  (void)state;
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.facts = "cpu isa=scalar threads=1";
  rapt_ctx *ctx;
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  fake f;
  fake_make(&f, "fake");
  f.backend.probe = fake_probe;
  fake_register(ctx, &f);
  assert_int_equal(f.probes, 0);
  rapt_ctx_destroy(ctx);
}

static void test_places(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.row.place = RAPT_PLACE_OPT_IN;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(f.runs, 0);
  small_make(&s, SMALL " prefer=fake");
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(f.runs, 1);
  f.row.place = RAPT_PLACE_FIRST;                      /* again, now first: in place of its row */
  uint32_t n = rapt_row_count(ctx);
  fake_register(ctx, &f);
  assert_int_equal(rapt_row_count(ctx), n);
  small_make(&s, SMALL);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(f.runs, 2);
  assert_int_equal(row_entered(ctx, "fake"), 2);       /* counted by id, R1 */
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_bad_registrations), cmocka_unit_test(test_copies), cmocka_unit_test(test_callbacks),
    cmocka_unit_test(test_host_row_d28), cmocka_unit_test(test_probe), cmocka_unit_test(test_what_if_not_probed),
    cmocka_unit_test(test_places),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
