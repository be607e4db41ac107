/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that come to nothing: NULL and structs of another size (E1, E6), statuses of callbacks (E2), and the log of
 * both (E4). */
#include "fake.h"

#include <sys/mman.h>
#include <unistd.h>

/* The fault of a report without rows, which formats in every form. */
static void fault_is(rapt_report *r, rapt_status status, int code, int field) {
  rapt_reason why = RAPT_REASON_INIT;
  rapt_decision d = RAPT_DECISION_INIT;
  assert_non_null(r);
  assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
  assert_string_equal(rapt_code_name(why.code), rapt_code_name(code));
  assert_string_equal(rapt_field_name(why.field), rapt_field_name(field));
  assert_int_equal(rapt_report_decision(r, &d), RAPT_OK);
  assert_int_equal(d.status, status);
  assert_string_equal(d.backend, "");
  assert_int_equal(rapt_report_count(r), 0);
  assert_int_equal(rapt_report_entered(r), RAPT_ARG);
  char *text = report_text(r, RAPT_FORM_TEXT), *json = report_text(r, RAPT_FORM_JSON);
  assert_int_equal(strncmp(text, rapt_status_name((int32_t)status), strlen(rapt_status_name((int32_t)status))), 0);
  if (!strstr(text, rapt_field_name(field))) fail_msg("%s", text);
  assert_int_equal(strncmp(json, "{\"schema\":\"rapt.decision/1\"", 27), 0);
  free(text);
  free(json);
  rapt_report_destroy(r);
}

static void test_null_e1(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  small s;
  small_make(&s, SMALL);
  rapt_report *r = NULL;
  rapt_plan *plan = NULL;
  assert_int_equal(rapt_explain(NULL, &s.p, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_CTX);
  assert_int_equal(rapt_plan_create(NULL, &s.p, &plan, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_CTX);
  assert_int_equal(rapt_attention(NULL, NULL, NULL, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_CTX);
  assert_int_equal(rapt_plan_create(ctx, &s.p, NULL, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_PLAN);
  assert_int_equal(rapt_plan_report(NULL, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_PLAN);
  assert_int_equal(rapt_explain(ctx, NULL, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_PROBLEM);
  assert_int_equal(rapt_plan_create(ctx, NULL, &plan, &r), RAPT_ARG);
  assert_null(plan);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_PROBLEM);
  assert_int_equal(rapt_attention(ctx, NULL, &s.b, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_PROBLEM);
  assert_int_equal(rapt_attention(ctx, &s.p, NULL, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_NULL, RAPT_FIELD_BUFFERS);
  s.p.Skv = -4;                                        /* the problem's own fault goes before */
  assert_int_equal(rapt_attention(ctx, &s.p, NULL, &r), RAPT_ARG);
  fault_is(r, RAPT_ARG, RAPT_CODE_SIZE, RAPT_FIELD_SKV);
  rapt_decision d = RAPT_DECISION_INIT;
  assert_int_equal(rapt_report_decision(NULL, &d), RAPT_ARG);
  assert_string_equal(d.backend, "");                  /* printable, whatever came before */
  assert_string_equal(d.rng, "");
  assert_int_equal(d.status, RAPT_ARG);
  rapt_ctx_destroy(ctx);
}

static void abi_is(rapt_report *r, const char *name, size_t given, size_t known) {
  rapt_reason why = RAPT_REASON_INIT;
  char text[64];
  assert_non_null(r);
  assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
  snprintf(text, sizeof text, "a %s of %zu bytes", name, given);
  if (strncmp(why.got, text, strlen(text))) fail_msg("%s", why.got);
  snprintf(text, sizeof text, "this version's %s has %zu bytes", name, known);
  if (strncmp(why.want, text, strlen(text))) fail_msg("%s", why.want);
  fault_is(r, RAPT_ABI, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE);
}

/* E6: the report names the struct and both sizes; of a shorter struct nothing behind its end is read. */
static void test_abi_e6(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(two != MAP_FAILED);
  assert_int_equal(mprotect(two + page, page, PROT_NONE), 0);
  static const size_t sizes[] = {4, 8, 64, sizeof(rapt_problem) - 8};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    size_t room = (sizes[i] + 7) / 8 * 8;              /* up to the guard page, and aligned as a struct is */
    rapt_problem *p = (rapt_problem *)(void *)(two + page - room);
    rapt_report *r = NULL;
    rapt_plan *plan = NULL;
    small s;
    small_make(&s, SMALL);
    s.p.struct_size = (uint32_t)sizes[i];
    memcpy(p, &s.p, sizes[i]);
    assert_int_equal(rapt_explain(ctx, p, &r), RAPT_ABI);
    abi_is(r, "rapt_problem", sizes[i], sizeof *p);
    assert_int_equal(rapt_plan_create(ctx, p, &plan, &r), RAPT_ABI);
    abi_is(r, "rapt_problem", sizes[i], sizeof *p);
    assert_int_equal(rapt_attention(ctx, p, &s.b, &r), RAPT_ABI);
    abi_is(r, "rapt_problem", sizes[i], sizeof *p);
    rapt_reason why = RAPT_REASON_INIT;
    char line[64];
    size_t len;
    assert_int_equal(rapt_line_format(ctx, p, NULL, NULL, line, sizeof line, &len, NULL, &why), RAPT_ABI);
    if (sizes[i] > sizeof(rapt_buffers)) continue;
    rapt_buffers *b = (rapt_buffers *)(void *)(two + page - room);
    s.p.struct_size = sizeof s.p;
    s.b.struct_size = (uint32_t)sizes[i];
    memcpy(b, &s.b, sizes[i]);
    assert_int_equal(rapt_attention(ctx, &s.p, b, &r), RAPT_ABI);
    abi_is(r, "rapt_buffers", sizes[i], sizeof *b);
  }
  munmap(two, 2 * page);
  struct { rapt_problem p; char tail[8]; } big;        /* of a later version: fine with zeros at its end */
  small s;
  small_make(&s, SMALL);
  memset(&big, 0, sizeof big);
  big.p = s.p;
  big.p.struct_size = sizeof big;
  rapt_report *r = NULL;
  assert_int_equal(rapt_explain(ctx, &big.p, &r), RAPT_OK);
  rapt_report_destroy(r);
  big.tail[7] = 1;
  assert_int_equal(rapt_explain(ctx, &big.p, &r), RAPT_ABI);
  abi_is(r, "rapt_problem", sizeof big, sizeof big.p);
  rapt_ctx_destroy(ctx);
}

/* ---- Statuses of callbacks ---- */

static void ran_to(rapt_status says, rapt_status want, const char *got, const char *wants) {
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.run_says = says;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  rapt_report *r = NULL;
  rapt_reason why = RAPT_REASON_INIT;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, &r), want);
  assert_int_equal(f.runs, 1);
  assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
  assert_string_equal(why.got, got);
  assert_string_equal(why.want, wants);
  char *text = report_text(r, RAPT_FORM_BRIEF);
  assert_non_null(strstr(text, "outputs may be partly written"));
  assert_int_equal(strncmp(text, rapt_status_name((int32_t)want), strlen(rapt_status_name((int32_t)want))), 0);
  free(text);
  rapt_report_destroy(r);
  rapt_plan *plan;
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, NULL), RAPT_OK);
  assert_int_equal(rapt_plan_run(plan, &s.b, NULL, 0, NULL), want);
  rapt_plan_destroy(plan);
  rapt_ctx_destroy(ctx);
}

#define MAY "it may return OK, DEVICE_ERROR or INTERNAL"

/* A run is OK, DEVICE_ERROR or INTERNAL: what a provider says beyond is no answer of the core's (E2, D10). */
static void test_run_statuses_e2(void **state) {
  (void)state;
  ran_to(RAPT_DEVICE_ERROR, RAPT_DEVICE_ERROR, "run of fake returned DEVICE_ERROR", "");
  ran_to(RAPT_INTERNAL, RAPT_INTERNAL, "run of fake returned INTERNAL", "");
  ran_to(RAPT_REFUSED, RAPT_INTERNAL, "run of fake returned REFUSED", MAY);
  ran_to(RAPT_ARG, RAPT_INTERNAL, "run of fake returned ARG", MAY);
  ran_to(RAPT_NOMEM, RAPT_INTERNAL, "run of fake returned NOMEM", MAY);
  ran_to((rapt_status)99, RAPT_INTERNAL, "run of fake returned 99", MAY);
}

static void prepared_to(rapt_status says, rapt_status want, const char *got) {
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.prepare_says = says;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  s.out[0] = 3.0f;
  for (int way = 0; way < 2; way++) {
    rapt_report *r = NULL;
    rapt_plan *plan = NULL;
    rapt_reason why = RAPT_REASON_INIT;
    assert_int_equal(way ? rapt_plan_create(ctx, &s.p, &plan, &r) : rapt_attention(ctx, &s.p, &s.b, &r), want);
    assert_null(plan);
    if (want == RAPT_NOMEM) {
      assert_null(r);
      continue;
    }
    assert_int_equal(rapt_report_error(r, &why), RAPT_OK);
    assert_string_equal(why.got, got);
    char *text = report_text(r, RAPT_FORM_BRIEF);
    assert_non_null(strstr(text, got));
    assert_null(strstr(text, "partly written"));       /* nothing was entered */
    free(text);
    rapt_report_destroy(r);
  }
  assert_int_equal(f.releases, 0);
  assert_true(s.out[0] == 3.0f);
  rapt_ctx_destroy(ctx);
}

static void test_prepare_statuses_e2(void **state) {
  (void)state;
  prepared_to(RAPT_NOMEM, RAPT_NOMEM, NULL);
  prepared_to(RAPT_DEVICE_ERROR, RAPT_DEVICE_ERROR, "prepare of fake returned DEVICE_ERROR");
  prepared_to(RAPT_REFUSED, RAPT_INTERNAL, "prepare of fake returned REFUSED");
  prepared_to((rapt_status)-7, RAPT_INTERNAL, "prepare of fake returned -7");
}

/* ---- Log ---- */

typedef struct lines { int faults, others; char last[1024]; } lines;

static void on_line(void *self, int kind, const char *line) {
  lines *l = self;
  assert_null(strchr(line, '\n'));
  if (kind != RAPT_LOG_FAULT) {
    l->others++;
    return;
  }
  l->faults++;
  snprintf(l->last, sizeof l->last, "%s", line);
}

static void logged(const lines *l, int faults, const char *what) {
  assert_int_equal(l->faults, faults);
  if (!strstr(l->last, what)) fail_msg("no '%s' in '%s'", what, l->last);
}

static void test_log_e4(void **state) {
  (void)state;
  lines l = {0};
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = RAPT_CTX_NO_ENV;
  o.log = on_line;
  o.log_self = &l;
  rapt_ctx *ctx;
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  fake f;
  fake_make(&f, "fake");
  f.run_says = RAPT_DEVICE_ERROR;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  rapt_plan *plan;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_DEVICE_ERROR);
  logged(&l, 1, SMALL " -> DEVICE_ERROR; run (run of fake returned DEVICE_ERROR)");
  s.b.k = NULL;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_ARG);
  logged(&l, 2, SMALL " -> ARG; k NULL(");
  s.b.struct_size = 8;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_ABI);
  logged(&l, 3, SMALL " -> ABI; struct_size UNKNOWN_FIELD(a rapt_buffers of 8 bytes");
  s.p.require = "no\nbody";                            /* a caller's text does not start a line of its own */
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, NULL), RAPT_ARG);
  logged(&l, 4, " -> ARG; require UNKNOWN_NAME(no");
  s.p.struct_size = 8;
  assert_int_equal(rapt_plan_create(ctx, &s.p, &plan, NULL), RAPT_ABI);
  logged(&l, 5, "no problem -> ABI; struct_size UNKNOWN_FIELD(a rapt_problem of 8 bytes");
  assert_int_equal(rapt_attention(ctx, NULL, &s.b, NULL), RAPT_ARG);
  logged(&l, 6, "no problem -> ARG; problem NULL(");
  assert_int_equal(l.others, 1);                       /* the one decision */
  /* D28: a host row that comes back to its binding is no fault. */
  fake host;
  fake_make(&host, "hosted");
  host.row.place = RAPT_PLACE_HOST;
  host.backend.run = NULL;
  fake_register(ctx, &host);
  small_make(&s, SMALL " require=hosted");
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_ARG);
  assert_int_equal(l.faults, 6);
  assert_int_equal(l.others, 2);
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_null_e1),         cmocka_unit_test(test_abi_e6), cmocka_unit_test(test_run_statuses_e2),
    cmocka_unit_test(test_prepare_statuses_e2), cmocka_unit_test(test_log_e4),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
