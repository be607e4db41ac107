/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of external backends against tests/cases/facts.tsv: what each can run, by problem and facts, written from
 * docs/backends.md by another hand (D3, D4, D6, D20). A line is a what-if; its verdict leaves policy codes out. */
#include "common/cm.h"

#include "core/decide.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ID, PROBLEM, FACTS, ROW, VERDICT, SOURCE, COLUMNS };

/* Splits a line at its tabs; false where it has not exactly six columns. */
static bool split(char *line, char *column[COLUMNS]) {
  line[strcspn(line, "\n")] = '\0';
  for (int i = 0; i < COLUMNS; i++) {
    column[i] = line;
    char *tab = strchr(line, '\t');
    if (i == COLUMNS - 1) return tab == NULL && *line;
    if (!tab) return false;
    *tab = '\0';
    line = tab + 1;
  }
  return true;
}

/* Reasons come sorted by code. Each code once; one that failed anywhere counts as failed. */
static void render(const rapt_report *r, uint32_t row, uint32_t n, char *buf, size_t size) {
  bool failed[RAPT_CODE_COUNT] = {false}, open[RAPT_CODE_COUNT] = {false};
  rapti_text t = rapti_text_begin(buf, size);
  for (uint32_t j = 0; j < n; j++) {
    rapt_reason why = RAPT_REASON_INIT;
    assert_int_equal(rapt_report_reason(r, row, j, &why), RAPT_OK);
    assert_in_range(why.code, 1, RAPT_CODE_COUNT - 1);
    if (rapti_is_policy_code(why.code)) continue;
    if (why.state == RAPT_FAILED) failed[why.code] = true;
    else open[why.code] = true;
  }
  for (int code = 1; code < RAPT_CODE_COUNT; code++) {
    if (!failed[code] && !open[code]) continue;
    if (t.len) rapti_text_putc(&t, ',');
    rapti_text_put(&t, rapt_code_name(code));
    if (!failed[code]) rapti_text_putc(&t, '?');
  }
  if (t.len == 0) rapti_text_put(&t, "ok");
  rapti_text_end(&t);
}

static void verdict_of(const rapt_report *r, const char *row, char *buf, size_t size) {
  rapti_text t = rapti_text_begin(buf, size);
  rapti_text_put(&t, "no such row");
  rapti_text_end(&t);
  for (uint32_t i = 0; i < rapt_report_count(r); i++) {
    rapt_verdict v = RAPT_VERDICT_INIT;
    assert_int_equal(rapt_report_verdict(r, i, &v), RAPT_OK);
    if (strcmp(v.row, row) == 0) render(r, i, v.n_reasons, buf, size);
  }
}

/* The verdict of one row on one line, or what went wrong before any row was asked. */
static void ask(char *column[COLUMNS], char *buf, size_t size) {
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  rapt_problem p = RAPT_PROBLEM_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  rapt_ctx *ctx = NULL;
  rapt_report *report = NULL;
  char names[512];
  opts.flags = RAPT_CTX_NO_ENV;
  opts.facts = column[FACTS];
  opts.max_threads = 1;
  snprintf(buf, size, "not explained");
  rapt_status st = rapt_ctx_create(&opts, &ctx, &why);
  if (st == RAPT_OK) st = rapt_problem_parse(column[PROBLEM], strlen(column[PROBLEM]), &p, names, sizeof names, &why);
  if (st == RAPT_OK) {
    st = rapt_explain(ctx, &p, &report);
    if (report && st != RAPT_ARG) verdict_of(report, column[ROW], buf, size);
    else if (report) rapt_report_error(report, &why);
  }
  if (!report || st == RAPT_ARG)
    snprintf(buf, size, "%s %s got %s want %s", rapt_status_name((int32_t)st), rapt_code_name(why.code), why.got, why.want);
  rapt_report_destroy(report);
  rapt_ctx_destroy(ctx);
}

/* Lines: canonical problem strings too, so that the table says what it means (section 2 of docs/api.md). */
static void check_canonical(char *column[COLUMNS]) {
  rapt_problem p = RAPT_PROBLEM_INIT;
  char names[512], text[1024];
  assert_int_equal(rapt_problem_parse(column[PROBLEM], strlen(column[PROBLEM]), &p, names, sizeof names, NULL), RAPT_OK);
  rapt_problem_format(&p, text, sizeof text);
  if (strcmp(text, column[PROBLEM]) != 0) printf("%s: not canonical: %s\n", column[ID], text);
  assert_string_equal(text, column[PROBLEM]);
}

static void D3_D4_rows_give_the_verdicts_of_the_facts_table(void **state) {
  (void)state;
  FILE *f = fopen(RAPT_SOURCE_DIR "/tests/cases/facts.tsv", "r");
  assert_non_null(f);
  char line[2048], got[512], *column[COLUMNS];
  unsigned right = 0, missed = 0, missing = 0;
  assert_non_null(fgets(line, sizeof line, f));
  assert_true(split(line, column) && strcmp(column[VERDICT], "verdict") == 0);
  while (fgets(line, sizeof line, f)) {
    assert_true(split(line, column));
    check_canonical(column);
    ask(column, got, sizeof got);
    if (strcmp(got, column[VERDICT]) == 0) { right++; continue; }
    if (strcmp(got, "no such row") == 0) missing++;
    else missed++;
    printf("%s: expected %s, got %s (%s)\n", column[ID], column[VERDICT], got, column[SOURCE]);
  }
  fclose(f);
  printf("facts: %u right, %u missed, %u rows missing\n", right, missed, missing);
  printf("floor: facts_right %u\n", right);
  assert_true(right + missed + missing >= 600);
  assert_int_equal(missing, 0);
  /* Ninety-five of a hundred would do for a table by another hand; every line is right since both were compared. */
  assert_int_equal(missed, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(D3_D4_rows_give_the_verdicts_of_the_facts_table)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
