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

/* Undecided: the choice depends on facts that nobody gave, whether or not a row was chosen without them. */
static int outcome(const rapt_report *r) {
  rapt_decision d = RAPT_DECISION_INIT;
  if (rapt_report_decision(r, &d) != RAPT_OK) return CLI_FAILED;
  return d.undecided ? CLI_OPEN : d.status == RAPT_OK ? CLI_OK : CLI_FAILED;
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
    cli_report_print(report, form);
    rc = outcome(report);
  } else {
    rc = cli_usage("PROBLEM", problem.text, "%s", cli_status(st));
  }
  rapt_report_destroy(report);
  rapt_ctx_destroy(ctx);
  cli_problem_free(&problem);
  return rc;
}

/* --devices or --dtypes: names joined by commas, each of which find knows. */
static int check_list(const cli_args *a, const char *option, bool (*known)(const char *, size_t), const char *want) {
  const char *list = cli_args_value(a, option);
  for (const char *s = list; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL)
    if (!known(s, strcspn(s, ",")))
      return cli_usage(option, list, "'%.*s' is no %s", (int)strcspn(s, ","), s, want);
  return CLI_OK;
}

static bool is_kind(const char *s, size_t n) { return cli_kind_find(s, n) >= 0; }

static bool is_float(const char *s, size_t n) {
  static const char *const names[] = {"fp16", "bf16", "fp32", "fp64", "fp8e4m3", "fp8e5m2"};
  for (size_t i = 0; i < CLI_COUNT(names); i++)
    if (strlen(names[i]) == n && !memcmp(names[i], s, n)) return true;
  return false;
}

/* A fault of the family: the report that explain gives of it. */
static int line_fault(rapt_ctx *ctx, const cli_problem *family, const rapt_reason *why) {
  rapt_report *report = NULL;
  int rc = CLI_FAILED;
  if (rapt_explain(ctx, &family->p, &report) == RAPT_ARG && report)
    cli_report_print(report, cli_out_json() ? RAPT_FORM_JSON : RAPT_FORM_BRIEF);
  else
    rc = cli_fault(ctx, family->text, why);
  rapt_report_destroy(report);
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
  if (!rc) rc = check_list(&a, "--devices", is_kind, "device kind, want a list as in cpu,cuda");
  if (!rc) rc = check_list(&a, "--dtypes", is_float, "floating dtype, want a list as in fp16,bf16,fp32");
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
    rc = line_fault(ctx, &family, &why);
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
