/* SPDX-License-Identifier: Apache-2.0 */
/* rapt explain and rapt line: decisions without a run. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* The one word of a verb that takes a problem string; several words are joined, so that quotes may be left out. */
static int join_words(const cli_args *a, const char *what, cli_str *text) {
  for (size_t i = 0; i < a->n_words; i++) cli_str_printf(text, "%s%s", i ? " " : "", a->words[i]);
  if (!text->n) return cli_usage(what, NULL, "is missing, want a problem string as in \"fp32 b1 h8 q256 k256 d64\"");
  return CLI_OK;
}

/* Problem and context of a question, from the words and the facts. */
static int ask(const cli_args *a, const char *what, cli_problem *problem, rapt_ctx **ctx) {
  cli_str text = {0}, facts = {0};
  int32_t kind = 0;
  *ctx = NULL;
  int rc = join_words(a, what, &text);
  if (!rc) rc = cli_problem_parse(problem, what, text.s);
  if (!rc) {
    rc = cli_facts_build(a, problem->p.device, &facts, &kind);
    if (!rc && kind != problem->p.device && !cli_problem_has_token(text.s, "dev=")) {
      cli_problem_free(problem);                               /* the facts' kind sets dev */
      cli_str_printf(&text, " dev=%s", cli_kind_name(kind));
      rc = cli_problem_parse(problem, what, text.s);
    }
    if (!rc) rc = cli_ctx_create(facts.s, 0, ctx);
    if (rc) cli_problem_free(problem);
  }
  cli_str_free(&text);
  cli_str_free(&facts);
  return rc;
}

/* No row can run: undecided where for some it depends on facts that nobody gave. */
static int outcome(const rapt_report *r) {
  rapt_decision d = RAPT_DECISION_INIT;
  if (rapt_report_decision(r, &d) == RAPT_OK && d.status == RAPT_OK) return CLI_OK;
  for (uint32_t i = 0; i < rapt_report_count(r); i++) {
    rapt_verdict v = RAPT_VERDICT_INIT;
    if (rapt_report_verdict(r, i, &v) == RAPT_OK && v.can == RAPT_UNDECIDED) return CLI_OPEN;
  }
  return CLI_FAILED;
}

int cli_explain(int argc, char **argv) {
  static const cli_option options[] = {
      {"--facts", CLI_VALUE}, {"--device", CLI_VALUE}, {"--with", CLI_LIST}, {"--record", CLI_VALUE},
      {"--all", CLI_FLAG}};
  cli_args a;
  cli_problem problem;
  rapt_ctx *ctx;
  int rc = cli_args_parse(&a, options, CLI_COUNT(options), argc, argv);
  if (!rc && cli_args_has(&a, "--record"))
    rc = cli_usage("--record", cli_args_value(&a, "--record"), "not in this version");
  if (!rc) rc = ask(&a, "PROBLEM", &problem, &ctx);
  int32_t form = cli_out_json() ? RAPT_FORM_JSON : cli_args_has(&a, "--all") ? RAPT_FORM_TEXT : RAPT_FORM_BRIEF;
  cli_args_free(&a);
  if (rc) return rc;
  rapt_report *report = NULL;
  rapt_status st = rapt_explain(ctx, &problem.p, &report);
  if (report) {
    char *text = cli_report_text(report, form);
    fputs(text, stdout);
    if (*text && text[strlen(text) - 1] != '\n') putchar('\n');
    free(text);
    rc = outcome(report);
  } else {
    rc = cli_usage("PROBLEM", problem.text, "%s", cli_status(st));
  }
  rapt_report_destroy(report);
  rapt_ctx_destroy(ctx);
  cli_problem_free(&problem);
  return rc;
}

int cli_line(int argc, char **argv) {
  static const cli_option options[] = {{"--facts", CLI_VALUE},
                                       {"--device", CLI_VALUE},
                                       {"--with", CLI_LIST},
                                       {"--devices", CLI_VALUE},
                                       {"--dtypes", CLI_VALUE}};
  cli_args a;
  cli_problem family;
  rapt_ctx *ctx;
  int rc = cli_args_parse(&a, options, CLI_COUNT(options), argc, argv);
  if (!rc) rc = ask(&a, "FAMILY", &family, &ctx);
  if (rc) {
    cli_args_free(&a);
    return rc;
  }
  const char *dtypes = cli_args_value(&a, "--dtypes"), *devices = cli_args_value(&a, "--devices");
  rapt_reason why = RAPT_REASON_INIT;
  size_t n = 0;
  int undecided = 0;
  rapt_status st = rapt_line_format(ctx, &family.p, dtypes, devices, NULL, 0, &n, &undecided, &why);
  char *line = cli_alloc(n + 1, 1);
  if (st == RAPT_OK) st = rapt_line_format(ctx, &family.p, dtypes, devices, line, n + 1, &n, &undecided, &why);
  if (st != RAPT_OK && why.code) {
    rc = cli_usage_reason("FAMILY", family.text, &why);
    if (why.code != RAPT_CODE_SYNTAX && why.code != RAPT_CODE_UNKNOWN_FIELD) rc = CLI_FAILED;
  } else if (st != RAPT_OK) {
    rc = cli_usage("FAMILY", family.text, "%s", cli_status(st));
  } else if (cli_out_json()) {
    json_t *j = json_pack("{s:s,s:s,s:b}", "schema", "rapt.line/1", "line", line, "undecided", undecided);
    json_dumpf(j, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(j);
  } else {
    printf("%s\n", line);
  }
  if (!rc && undecided) rc = CLI_OPEN;
  free(line);
  rapt_ctx_destroy(ctx);
  cli_problem_free(&family);
  cli_args_free(&a);
  return rc;
}
