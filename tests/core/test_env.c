/* SPDX-License-Identifier: Apache-2.0 */
/* The environment (D23): read once, validated, each variable named in its fault; the log (E4, R8). */
#include "fake.h"

#include <sys/stat.h>
#include <unistd.h>

static const char *const all[] = {"RAPT_REQUIRE", "RAPT_PREFER", "RAPT_FORBID", "RAPT_MEMORY_LIMIT", "RAPT_REF_LIMIT",
                                  "RAPT_ISA", "RAPT_VERIFY", "RAPT_LOG"};

static int clear(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) unsetenv(all[i]);
  return 0;
}

static rapt_status make(rapt_ctx **ctx, rapt_reason *why, uint64_t flags) {
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.flags = flags;
  *why = (rapt_reason)RAPT_REASON_INIT;
  return rapt_ctx_create(&o, ctx, why);
}

static void bad(const char *name, const char *value, int code, int field) {
  rapt_ctx *ctx = NULL;
  rapt_reason why;
  setenv(name, value, 1);
  assert_int_equal(make(&ctx, &why, 0), RAPT_ARG);
  assert_string_equal(rapt_code_name(why.code), rapt_code_name(code));
  assert_string_equal(rapt_field_name(why.field), rapt_field_name(field));
  assert_string_equal(rapt_field_name(why.field), name);
  assert_null(strstr(why.got, "RAPT_"));
  assert_int_equal(make(&ctx, &why, RAPT_CTX_NO_ENV), RAPT_OK);
  rapt_ctx_destroy(ctx);
  setenv(name, "", 1);                                 /* empty: not set */
  assert_int_equal(make(&ctx, &why, 0), RAPT_OK);
  rapt_ctx_destroy(ctx);
}

static void test_bad_values_d23(void **state) {
  (void)state;
  bad("RAPT_REQUIRE", "nobody", RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_ENV_REQUIRE);
  bad("RAPT_PREFER", "ref,nobody", RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_ENV_PREFER);
  bad("RAPT_FORBID", "class:slow", RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_ENV_FORBID);
  bad("RAPT_FORBID", "ref,", RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_FORBID);
  bad("RAPT_MEMORY_LIMIT", "lots", RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_MEMORY_LIMIT);
  bad("RAPT_MEMORY_LIMIT", "-1", RAPT_CODE_SIZE, RAPT_FIELD_ENV_MEMORY_LIMIT);
  bad("RAPT_REF_LIMIT", "0", RAPT_CODE_SIZE, RAPT_FIELD_ENV_REF_LIMIT);
  bad("RAPT_REF_LIMIT", "1e9", RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_REF_LIMIT);
  bad("RAPT_ISA", "sse9", RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_ENV_ISA);
#if defined(__x86_64__)
  bad("RAPT_ISA", "neon_bf16", RAPT_CODE_ISA, RAPT_FIELD_ENV_ISA);
#endif
  bad("RAPT_VERIFY", "2", RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_ENV_VERIFY);
  bad("RAPT_VERIFY", "x", RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_VERIFY);
  bad("RAPT_LOG", "/no/such/folder/log", RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_LOG);
  bad("RAPT_LOG", ":refusals", RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_LOG);
  /* E4: a word that is neither stderr nor a path makes no file of that name. */
  static const char *const words[] = {"stdout", "stderr:foo", "stderr:", "log.txt", "./log:foo", "./log:refusals,decisions", "./",
                                      "./:refusals"};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) bad("RAPT_LOG", words[i], RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_LOG);
  assert_int_not_equal(access("stdout", F_OK), 0);
  assert_int_not_equal(access("stderr:foo", F_OK), 0);
}

/* The sentence names the variable, and quotes its value alone. */
static void test_wording_e3(void **state) {
  (void)state;
  rapt_ctx *ctx = NULL;
  rapt_reason why;
  char text[512];
  setenv("RAPT_MEMORY_LIMIT", "4G", 1);
  assert_int_equal(make(&ctx, &why, 0), RAPT_ARG);
  rapt_reason_format(&why, NULL, NULL, text, sizeof text);
  assert_string_equal(why.got, "4G");
  if (!strstr(text, "RAPT_MEMORY_LIMIT") || !strstr(text, "a whole number")) fail_msg("%s", text);
  unsetenv("RAPT_MEMORY_LIMIT");
  setenv("RAPT_PREFER", "nobody", 1);
  assert_int_equal(make(&ctx, &why, 0), RAPT_ARG);
  rapt_reason_format(&why, NULL, NULL, text, sizeof text);
  if (!strstr(text, "RAPT_PREFER names nobody")) fail_msg("%s", text);
}

/* A pipe that nobody reads is a fault, not a wait for ever. */
static void test_log_pipe(void **state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "./rapt-pipe-%d", (int)getpid());
  assert_int_equal(mkfifo(path, 0600), 0);
  bad("RAPT_LOG", path, RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_LOG);
  assert_int_equal(unlink(path), 0);
}

static char *decided(rapt_ctx *ctx, const char *problem, rapt_status status) {
  rapt_problem p = parsed(problem);
  rapt_report *r;
  assert_int_equal(rapt_explain(ctx, &p, &r), status);
  char *json = report_text(r, RAPT_FORM_JSON);
  rapt_report_destroy(r);
  return json;
}

static void has(rapt_ctx *ctx, const char *problem, rapt_status status, const char *what) {
  char *json = decided(ctx, problem, status);
  if (!strstr(json, what)) fail_msg("no %s in %s", what, json);
  free(json);
}

static void test_in_force_d9(void **state) {
  (void)state;
  rapt_ctx *ctx;
  rapt_reason why;
  setenv("RAPT_REQUIRE", "ref", 1);
  setenv("RAPT_MEMORY_LIMIT", "123456", 1);
  setenv("RAPT_REF_LIMIT", "777777777", 1);
  setenv("RAPT_ISA", "scalar", 1);
  setenv("RAPT_VERIFY", "0", 1);
  assert_int_equal(make(&ctx, &why, 0), RAPT_OK);
  clear(NULL);                                         /* read at creation only */
  has(ctx, SMALL, RAPT_OK, "\"row\":\"ref\"");
  has(ctx, SMALL, RAPT_OK, "\"level\":\"environment\"");
  has(ctx, SMALL, RAPT_OK, "\"memory_limit\":123456,\"ref_limit\":777777777,\"isa\":\"scalar\"");
  has(ctx, SMALL " mem=99999", RAPT_OK, "\"memory_limit\":99999,");
  rapt_ctx_destroy(ctx);
  setenv("RAPT_FORBID", "ref", 1);
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.require = "ref";
  o.has = RAPT_HAS_MEMORY_LIMIT;
  o.memory_limit = 5;
  assert_int_equal(rapt_ctx_create(&o, &ctx, &why), RAPT_OK);
  has(ctx, SMALL, RAPT_REFUSED, "\"code\":\"FORBIDDEN\"");   /* no narrower require lifts it */
  has(ctx, SMALL, RAPT_REFUSED, "\"levels\":{\"require\":\"context\",\"forbid\":\"environment\",\"memory_limit\":\"context\"");
  rapt_ctx_destroy(ctx);
}

static void isa_case(const char *of_env, const char *of_ctx, const char *facts, const char *want) {
  rapt_ctx *ctx;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.isa = of_ctx;
  o.facts = facts;
  setenv("RAPT_ISA", of_env, 1);
  rapt_status st = rapt_ctx_create(&o, &ctx, &why);
  assert_int_equal(st, want ? RAPT_OK : RAPT_ARG);
  if (!want) {
    assert_int_equal(why.code, RAPT_CODE_ISA);
    return;
  }
  has(ctx, SMALL, RAPT_OK, want);
  rapt_ctx_destroy(ctx);
}

/* D9: the context's level goes before the environment's; D26: neither raises it. */
static void test_isa_levels_d26(void **state) {
  (void)state;
  isa_case("scalar", "avx2", "cpu isa=avx512 threads=1", "\"isa\":\"avx2\"");
  isa_case("avx2", "scalar", "cpu isa=avx512 threads=1", "\"isa\":\"scalar\"");
  isa_case("avx2", NULL, "cpu isa=avx512 threads=1", "\"isa\":\"avx2\"");
  isa_case("avx2", NULL, "cpu isa=neon threads=1", "\"isa\":\"neon\"");
  isa_case("scalar", "avx512", "cpu isa=avx2 threads=1", NULL);
#if defined(__x86_64__)
  isa_case("neon", NULL, NULL, NULL);
#endif
}

/* ---- Log ---- */

static char *file_text(const char *path) {
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  static char text[65536];
  size_t n = fread(text, 1, sizeof text - 1, f);
  text[n] = '\0';
  fclose(f);
  return text;
}

static void log_case(const char *suffix, bool decisions, bool refusals) {
  char path[64], spec[128];
  snprintf(path, sizeof path, "./rapt-log-%d.txt", (int)getpid());
  snprintf(spec, sizeof spec, "%s%s", path, suffix);
  setenv("RAPT_LOG", spec, 1);
  rapt_ctx *ctx;
  rapt_reason why;
  assert_int_equal(make(&ctx, &why, 0), RAPT_OK);
  unsetenv("RAPT_LOG");
  fake f;
  fake_make(&f, "fake");
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  for (int i = 0; i < 3; i++) assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);   /* one new decision */
  has(ctx, SMALL, RAPT_OK, "fake");                    /* explain decides nothing */
  small_make(&s, "fp64 b1 h2 q3 k4 d8 require=fake");
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_REFUSED);
  small_make(&s, SMALL);
  s.p.Skv = -4;
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_ARG);
  rapt_ctx_destroy(ctx);
  char want[512] = "", *got = file_text(path);
  char line[256];
  snprintf(line, sizeof line, "rapt: %s -> fake fake_kernel - ", SMALL);
  if (decisions) {
    assert_int_equal(strncmp(got, line, strlen(line)), 0);
    got = strchr(got, '\n') + 1;
  }
  if (refusals) strcpy(want, "rapt: fp64 b1 h2 q3 k4 d8 require=fake -> REFUSED; fake DTYPE(fp64, ");
  assert_int_equal(strncmp(got, want, strlen(want)), 0);
  if (refusals) got = strchr(got, '\n') + 1;
  if (refusals && strncmp(got, "rapt: fp32 b1 h2 q3 k-4 d8 -> ARG; Skv SIZE(-4, ", 48)) fail_msg("%s", got);
  if (refusals) got = strchr(got, '\n') + 1;
  assert_string_equal(got, "");
  assert_int_equal(unlink(path), 0);
}

static void test_log_e4(void **state) {
  (void)state;
  log_case("", true, true);
  log_case(":decisions", true, false);
  log_case(":refusals", false, true);
}

typedef struct lines { int decisions, refusals, notices; char last[512]; } lines;

static void on_line(void *self, int kind, const char *line) {
  lines *l = self;
  assert_null(strchr(line, '\n'));
  if (kind == RAPT_LOG_DECISION) l->decisions++;
  if (kind == RAPT_LOG_REFUSAL) l->refusals++;
  if (kind != RAPT_LOG_NOTICE) return;
  l->notices++;
  snprintf(l->last, sizeof l->last, "%s", line);
}

static void test_notices_r8(void **state) {
  (void)state;
  lines l = {0};
  rapt_ctx_opts o = RAPT_CTX_OPTS_INIT;
  o.log = on_line;
  o.log_self = &l;
  setenv("RAPT_LOG", "stderr", 1);                     /* the hook goes first: nothing on stderr */
  rapt_ctx *ctx;
  assert_int_equal(rapt_ctx_create(&o, &ctx, NULL), RAPT_OK);
  fake f;
  fake_make(&f, "fake");
  f.row.place = RAPT_PLACE_OPT_IN;
  f.row.d_min = f.row.d_max = 128;
  fake_register(ctx, &f);
  small s;
  small_make(&s, SMALL);
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  int before = l.notices;
  assert_int_equal(l.decisions, 1);
  small_make(&s, SMALL " prefer=fake");
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(l.notices, before + 1);
  assert_non_null(strstr(l.last, " in place of fake: HEAD_DIM("));
  small_make(&s, "fp32 b1 h2 q2 k4 d8 prefer=fake");
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_OK);
  assert_int_equal(l.notices, before + 1);             /* once a (context, backend, code) */
  assert_int_equal(l.decisions, 3);
  small_make(&s, SMALL " require=fake");
  assert_int_equal(rapt_attention(ctx, &s.p, &s.b, NULL), RAPT_REFUSED);
  assert_int_equal(l.refusals, 1);
  assert_int_equal(l.notices, before + 1);
  rapt_ctx_destroy(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_bad_values_d23, clear, clear),
    cmocka_unit_test_setup_teardown(test_wording_e3, clear, clear),
    cmocka_unit_test_setup_teardown(test_log_pipe, clear, clear),
    cmocka_unit_test_setup_teardown(test_in_force_d9, clear, clear),
    cmocka_unit_test_setup_teardown(test_isa_levels_d26, clear, clear),
    cmocka_unit_test_setup_teardown(test_log_e4, clear, clear),
    cmocka_unit_test_setup_teardown(test_notices_r8, clear, clear),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
