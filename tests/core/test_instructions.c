/* SPDX-License-Identifier: Apache-2.0 */
/* What the one-shot call costs beside its kernel (P8), and what a decision with every reason costs (R2), in instructions, which do not depend on the machine's load. The
 * program runs itself under valgrind with a kernel that does nothing; two lengths of the same loop give one call. */
#include "fake.h"

#include <unistd.h>

#define WARM_CALL 3000           /* a call whose plan is found */
#define NEW_CALL 15000           /* a call that decides anew and drops another's plan */
#define EXPLAIN_ROW 2000         /* rapt_explain and rapt_report_destroy, for each row .. */
#define EXPLAIN 20000            /* .. and once */
#define MORE_ROWS 40             /* that other providers add */

static rapt_status no_kernel(void *self, uint32_t row, void *state, const rapt_problem *cast, const rapt_buffers *b,
                             void *workspace, void *stream) {
  (void)self, (void)row, (void)state, (void)cast, (void)b, (void)workspace, (void)stream;
  return RAPT_OK;
}

static int calls(const char *mode, long n) {
  rapt_ctx *ctx = ctx_plain();
  fake f;
  fake_make(&f, "fake");
  f.workspace = 4096;
  f.backend.run = no_kernel;
  fake_register(ctx, &f);
  rapt_problem p = parsed("fp32 b1 h8 q1 k1 d64 causal=br lse");
  static float data[8 * 64 * 1000], out[8 * 64], lse[8];
  rapt_buffers b = RAPT_BUFFERS_INIT;
  b.q = b.k = b.v = data;
  b.out = out;
  b.lse = lse;
  bool anew = strcmp(mode, "new") == 0;
  int bad = 0;
  for (long i = 0; i < n; i++) {
    p.Skv = anew ? 1 + i % 1000 : 1000;
    bad |= rapt_attention(ctx, &p, &b, NULL) != RAPT_OK;
  }
  rapt_ctx_destroy(ctx);
  return bad;
}

/* "explain": the rows of this library; "crowded": MORE_ROWS beside them. */
static int explains(const char *mode, long n) {
  static fake f[MORE_ROWS];
  static char ids[MORE_ROWS][16];
  rapt_ctx *ctx = ctx_plain();
  rapt_problem p = parsed("fp32 b1 h8 q512 k512 d64");
  int bad = 0;
  for (int i = 0; i < MORE_ROWS && strcmp(mode, "crowded") == 0; i++) {
    snprintf(ids[i], sizeof ids[i], "fake%d", i);
    fake_make(&f[i], ids[i]);
    f[i].row.place = RAPT_PLACE_OPT_IN;
    fake_register(ctx, &f[i]);
  }
  for (long i = 0; i < n; i++) {
    rapt_report *report = NULL;
    bad |= rapt_explain(ctx, &p, &report) != RAPT_OK;
    rapt_report_destroy(report);
  }
  rapt_ctx_destroy(ctx);
  return bad;
}

/* Instructions of the whole program with n calls; -1: no valgrind here. */
static long measure(const char *mode, long n) {
  char self[512] = {0}, command[1024], line[256];
  assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  snprintf(command, sizeof command,
           "valgrind --tool=callgrind --callgrind-out-file=/dev/null '%s' %s %ld 2>&1", self, mode, n);
  FILE *out = popen(command, "r");
  assert_non_null(out);
  long count = -1;
  while (fgets(line, sizeof line, out)) {
    const char *at = strstr(line, "Collected :");
    if (at) count = strtol(at + 11, NULL, 10);
  }
  int status = pclose(out);
  if (count >= 0) assert_int_equal(status, 0);
  return count;
}

static long at_most(const char *mode, long few, long many, long limit) {
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  print_message("only an optimised build without sanitizers is measured\n");
  skip();
#endif
  long a = measure(mode, few), b = measure(mode, many);
  if (a < 0 || b < 0) {
    print_message("valgrind does not run here\n");
    skip();
  }
  long each = (b - a) / (many - few);
  print_message("%s: %ld instructions a call, at most %ld\n", mode, each, limit);
  assert_true(each > 100);                             /* the loop was counted */
  assert_true(each <= limit);
  return each;
}

static void warm_call_p8(void **state) { (void)state; at_most("warm", 100, 1100, WARM_CALL); }
static void new_call_p8(void **state) { (void)state; at_most("new", 1000, 2000, NEW_CALL); }

/* A decision costs by the row, and a row that somebody adds costs no more than one of ours. */
static void explain_r2(void **state) {
  (void)state;
  rapt_ctx *ctx = ctx_plain();
  long rows = (long)rapt_row_count(ctx);
  rapt_ctx_destroy(ctx);
  long plain = at_most("explain", 10, 60, EXPLAIN_ROW * rows + EXPLAIN);
  long crowded = at_most("crowded", 10, 60, EXPLAIN_ROW * (rows + MORE_ROWS) + EXPLAIN);
  long growth = (crowded - plain) / MORE_ROWS;
  print_message("growth: %ld instructions a row more, at most %d\n", growth, EXPLAIN_ROW);
  assert_true(growth > 0 && growth <= EXPLAIN_ROW);
}

int main(int argc, char **argv) {
  if (argc == 3) {
    bool one_shot = strcmp(argv[1], "warm") == 0 || strcmp(argv[1], "new") == 0;
    return (one_shot ? calls : explains)(argv[1], strtol(argv[2], NULL, 10));
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(warm_call_p8), cmocka_unit_test(new_call_p8),
                                     cmocka_unit_test(explain_r2)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
