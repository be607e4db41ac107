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
  fake_make(&f, "fake");
  f.backend.run = NULL;                                /* first, and nobody to run it: plain calls would fail */
  expect(ctx, &f, RAPT_ARG, RAPT_CODE_NULL, "fake");
  static const char *const aliases[] = {"Fast", "a,,b", ",a", "a,", "a b", "", "a:b"};
  for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
    fake_make(&f, "fake");
    f.row.aliases = aliases[i];
    expect(ctx, &f, RAPT_ARG, RAPT_CODE_SYNTAX, aliases[i]);
  }
  assert_int_equal(rapt_backend_register(NULL, &f.backend, NULL), RAPT_ARG);
  assert_int_equal(rapt_backend_register(ctx, NULL, NULL), RAPT_ARG);
  rapt_ctx_destroy(ctx);
}

/* D8: every name keeps its meaning. Own ids, another provider's ids, and what a policy already calls another backend's
 * rows are refused, naming the owner. */
static void test_names_are_taken_d8(void **state) {
  (void)state;
  static const struct { const char *id, *display, *aliases, *got, *owner; } cases[] = {
    {"cpu.avx2", NULL, NULL, "cpu.avx2", "rapt"},      {"cpu.mine", NULL, NULL, "cpu.mine", "rapt"},
    {"cpu", NULL, NULL, "cpu", "rapt"},                {"ref", NULL, NULL, "ref", "rapt"},
    {"ref.fast", NULL, NULL, "ref.fast", "rapt"},      {"mine", "cpu", NULL, "cpu", "cpu.scalar"},
    {"mine", NULL, "x,reference", "reference", "ref"}, {"mine", NULL, "fa2", "fa2", "fa2"},
    {"mine", "flash_attention_2", NULL, "flash_attention_2", "fa2"},
    {"mine", NULL, "flash2", "flash2", "fa2"},         {"flash2", NULL, NULL, "flash2", "fa2"},
    {"mine", NULL, "torch.math", "torch.math", "torch.math"},
    {"other.a", NULL, NULL, "other.a", "other"},       {"mine", NULL, "other", "other", "other.a"},
    {"mine", "Other", NULL, "Other", "other.a"},
  };
  rapt_ctx *ctx = ctx_plain();
  fake other, f;
  fake_make(&other, "other.a");
  other.row.display = "Other";
  fake_register(ctx, &other);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    fake_make(&f, cases[i].id);
    f.row.display = cases[i].display;
    f.row.aliases = cases[i].aliases;
    rapt_reason why = RAPT_REASON_INIT;
    uint32_t n = rapt_row_count(ctx);
    assert_int_equal(rapt_backend_register(ctx, &f.backend, &why), RAPT_ARG);
    assert_int_equal(why.code, RAPT_CODE_UNKNOWN_NAME);
    assert_string_equal(why.got, cases[i].got);
    const char *owner = strstr(why.want, "belongs to ");
    if (!owner || strncmp(owner + 11, cases[i].owner, strlen(cases[i].owner))) fail_msg("%s: %s", why.got, why.want);
    assert_int_equal(rapt_row_count(ctx), n);
  }
  /* A package of the tables that is brought keeps its own names, in whole or in part, once and again. */
  rapt_backend known = *rapt_backend_known("fa2");
  rapt_row one = known.rows[0];
  known.self = &other;
  known.run = fake_run;
  assert_int_equal(rapt_backend_register(ctx, &known, NULL), RAPT_OK);
  assert_int_equal(rapt_backend_register(ctx, &known, NULL), RAPT_OK);
  known.self = &f;                                     /* somebody else's */
  assert_int_equal(rapt_backend_register(ctx, &known, NULL), RAPT_ARG);
  rapt_ctx_destroy(ctx);
  ctx = ctx_plain();
  known.rows = &one;
  known.n_rows = 1;
  assert_int_equal(rapt_backend_register(ctx, &known, NULL), RAPT_OK);
  rapt_ctx_destroy(ctx);
}

/* A row without code, not a host's: data for what-ifs. Here it is refused as such, and plain calls do not meet it. */
static void test_no_code_d4(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.row.place = RAPT_PLACE_OPT_IN;
  f.backend.run = NULL;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL " prefer=fake");
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  small_make(&s, SMALL " require=fake");
  rapt_report *r;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_REFUSED);
  assert_int_equal(rapt_report_reason(r, row_index(ctx, "fake"), 0, &why), RAPT_OK);
  assert_int_equal(why.code, RAPT_CODE_AVAIL);
  assert_string_equal(why.got, "no code to run it");
  rapt_report_destroy(r);
  assert_int_equal(f.prepares, 0);
  rapt_ctx_destroy(ctx);
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.facts = "cpu isa=scalar threads=1";
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  fake_register(ctx, &f);
  assert_int_equal(rapt_explain(ctx, &s.p, &r), RAPT_OK);   /* D20 */
  rapt_report_destroy(r);
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
  /* R1, R3: with its report in hand the binding counts and says so at once. */
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_explain(ctx, &s.p, &r), RAPT_OK);
  char *text = report_text(r, RAPT_FORM_TEXT);
  assert_int_equal(strncmp(text, "would choose hosted when called with " SMALL, 36 + strlen(SMALL)), 0);
  free(text);
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_int_equal(d.ran, 0);
  assert_int_equal(rapt_report_entered(r), RAPT_OK);
  assert_int_equal(row_entered(ctx, "hosted"), 2);
  text = report_text(r, RAPT_FORM_BRIEF);
  assert_int_equal(strncmp(text, "hosted ran " SMALL, 11 + strlen(SMALL)), 0);
  assert_null(strstr(text, "thread"));                 /* of whose number nobody here knows */
  free(text);
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_int_equal(d.ran, 1);
  assert_int_equal(d.threads, 0);
  rapt_report_destroy(r);
  small_make(&s, SMALL " require=ref");
  assert_int_equal(rapt_explain(ctx, &s.p, &r), RAPT_OK);
  assert_int_equal(rapt_report_entered(r), RAPT_ARG);  /* not the binding's to run */
  assert_int_equal(row_entered(ctx, "ref"), 0);
  rapt_report_destroy(r);
  assert_int_equal(rapt_report_entered(NULL), RAPT_ARG);
  /* A report made after the call says so when told, and counts nothing. */
  small_make(&s, SMALL " require=ref");
  assert_int_equal(rapt_explain(ctx, &s.p, &r), RAPT_OK);
  assert_int_equal(rapt_report_ran(r), RAPT_OK);
  text = report_text(r, RAPT_FORM_BRIEF);
  assert_int_equal(strncmp(text, "ref ran " SMALL, 8 + strlen(SMALL)), 0);
  free(text);
  assert_int_equal(row_entered(ctx, "ref"), 0);
  rapt_report_destroy(r);
  assert_int_equal(rapt_report_ran(NULL), RAPT_ARG);
  rapt_plan_destroy(plan);
  rapt_ctx_destroy(ctx);
}

/* M15, X7: what a host row is excused from stands in the report, and only where the call has it. */
static void test_exempt_m15(void **state) {
  (void)state;
  static const struct { const char *more; bool isolation, rng; } cases[] = {
    {" mask=bool:1x1x3x4", true, false}, {"", false, false}, {" mask=bool:1x1x3x4 assume_finite", false, false},
    {" mask=bool:1x1x3x4 dropout=0.5", true, true}, {" dropout=0.5 allow=rng", false, false},
  };
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "hosted");
  f.row.place = RAPT_PLACE_HOST;
  f.row.classes = RAPT_CLASS_HOST;
  f.row.can |= RAPT_CAN_DROPOUT;
  f.row.can &= ~(RAPT_CAN_ISOLATE | RAPT_CAN_X1_PATTERN);
  f.backend.run = NULL;
  fake_register(ctx, &f);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char problem[160];
    snprintf(problem, sizeof problem, SMALL "%s require=class:host", cases[i].more);
    rapt_problem p = parsed(problem);
    rapt_report *r;
    assert_int_equal(rapt_explain(ctx, &p, &r), RAPT_OK);
    char *text = report_text(r, RAPT_FORM_BRIEF), *json = report_text(r, RAPT_FORM_JSON);
    assert_int_equal(strstr(text, "NaN or Inf of invisible elements may get through") != NULL, cases[i].isolation);
    assert_int_equal(strstr(text, "the host's own pattern") != NULL, cases[i].rng);
    const char *want = cases[i].rng ? "\"exempt\":[\"ISOLATION\",\"RNG\"]"
                     : cases[i].isolation ? "\"exempt\":[\"ISOLATION\"]" : "\"exempt\":[]";
    if (!strstr(json, want)) fail_msg("%s: %s", problem, json);
    free(text);
    free(json);
    rapt_report_destroy(r);
  }
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

/* D28: a row that its binding runs ranks as one that must be named, is decided and counted, and runs nothing here. */
static void test_binding_place_d28(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "bound");
  f.row.place = RAPT_PLACE_BINDING;
  f.backend.run = NULL;
  f.backend.workspace = NULL;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(row_entered(ctx, "bound"), 0);
  small_make(&s, SMALL " prefer=bound");
  rapt_report *r;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), RAPT_ARG);
  assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
  assert_int_equal(why.code, RAPT_CODE_NULL);
  assert_int_equal(why.field, RAPT_FIELD_RUN);
  rapt_report_destroy(r);
  assert_int_equal(rapt_explain(ctx, &s.p, &r), RAPT_OK);
  assert_int_equal(rapt_report_entered(r), RAPT_OK);
  assert_int_equal(row_entered(ctx, "bound"), 1);
  rapt_report_destroy(r);
  rapt_ctx_destroy(ctx);
}

static rapt_status probe_cc(void *self, rapt_facts *facts, rapt_reason *why) {
  (void)self, (void)why;
  return rapt_facts_set(facts, "cc", "8.0");
}

/* A generation is CUDA's alone: a machine whose tensors are mostly on the CPU may have one too (D2). */
static void test_generation_of_a_real_context_d2(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "bound");
  f.row.place = RAPT_PLACE_BINDING;
  f.row.kinds = RAPT_KIND(RAPT_CUDA);
  f.row.cc = "9.0-9.9";
  f.backend.run = NULL;
  f.backend.workspace = NULL;
  fake_register(ctx, &f);
  rapt_problem p = parsed(SMALL " dev=cuda require=bound");
  rapt_report *r;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_explain(ctx, &p, &r), RAPT_REFUSED);
  assert_int_equal(rapt_report_reason(r, row_index(ctx, "bound"), 0, &why), RAPT_OK);
  assert_int_equal(why.state, RAPT_NOT_EVALUATED);
  rapt_report_destroy(r);
  f.backend.probe = probe_cc;
  fake_register(ctx, &f);
  assert_int_equal(rapt_explain(ctx, &p, &r), RAPT_REFUSED);
  assert_int_equal(rapt_report_reason(r, row_index(ctx, "bound"), 0, &why), RAPT_OK);
  assert_int_equal(why.code, RAPT_CODE_DEVICE);
  assert_int_equal(why.state, RAPT_FAILED);
  rapt_report_destroy(r);
  rapt_ctx_destroy(ctx);
}

/* P1, D5: rows that come later change neither what a plan runs nor what its report says. */
static void test_plan_is_frozen_p1(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL);
  rapt_plan *plan;
  rapt_report *before, *after;
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, &before), RAPT_OK);
  fake f;
  fake_make(&f, "fake");                               /* place first: the automatic choice from now on */
  fake_register(ctx, &f);
  assert_int_equal(rapt_plan_report(plan, &after), RAPT_OK);
  char *a = report_text(before, RAPT_FORM_JSON), *b = report_text(after, RAPT_FORM_JSON);
  assert_string_equal(a, b);
  size_t n = rapt_plan_workspace(plan);
  void *workspace = aligned_alloc(64, (n + 64) / 64 * 64);
  assert_int_equal(rapt_plan_run(plan, &s.b, workspace, n, NULL), RAPT_OK);
  assert_int_equal(f.runs, 0);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(f.runs, 1);
  free(workspace);
  free(a);
  free(b);
  rapt_report_destroy(before);
  rapt_report_destroy(after);
  rapt_plan_destroy(plan);
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_plan_is_frozen_p1),
    cmocka_unit_test(test_bad_registrations), cmocka_unit_test(test_names_are_taken_d8),
    cmocka_unit_test(test_no_code_d4), cmocka_unit_test(test_exempt_m15), cmocka_unit_test(test_copies), cmocka_unit_test(test_callbacks),
    cmocka_unit_test(test_host_row_d28), cmocka_unit_test(test_probe), cmocka_unit_test(test_what_if_not_probed),
    cmocka_unit_test(test_places), cmocka_unit_test(test_binding_place_d28),
    cmocka_unit_test(test_generation_of_a_real_context_d2),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
