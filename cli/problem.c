/* SPDX-License-Identifier: Apache-2.0 */
/* Problem strings from the command line. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char *const kinds[] = {"cpu", "cuda", "hip", "xpu", "mps", "xla", "hpu", "ipu", "npu", "meta"};

const char *cli_kind_name(int32_t kind) { return kind >= 0 && (size_t)kind < CLI_COUNT(kinds) ? kinds[kind] : "?"; }

int32_t cli_kind_find(const char *s, size_t n) {
  for (size_t i = 0; i < CLI_COUNT(kinds); i++)
    if (strlen(kinds[i]) == n && !memcmp(kinds[i], s, n)) return (int32_t)i;
  return -1;
}

int cli_problem_parse(cli_problem *c, const char *argument, const char *text) {
  size_t n = strlen(text);
  *c = (cli_problem){.p = RAPT_PROBLEM_INIT};
  c->names = cli_alloc(n + 1, 1);
  c->text = cli_alloc(n + 1, 1);
  memcpy(c->text, text, n);
  rapt_reason why = RAPT_REASON_INIT;
  if (rapt_problem_parse(c->text, n, &c->p, c->names, n + 1, &why) == RAPT_OK) return CLI_OK;
  cli_usage_reason(argument, text, &why);
  cli_problem_free(c);
  return CLI_USAGE;
}

void cli_decision_words(const rapt_decision *d, cli_str *t) {
  cli_str_printf(t, "%s %s", d->row, d->kernel);
  if (d->isa && *d->isa) cli_str_printf(t, " %s", d->isa);
  cli_str_printf(t, ", %u thread%s", d->threads, d->threads == 1 ? "" : "s");
}

void cli_problem_free(cli_problem *c) {
  free(c->names);
  free(c->text);
  c->names = c->text = NULL;
}

/* Is there a token that starts with key? */
bool cli_problem_has_token(const char *text, const char *key) {
  size_t n = strlen(key);
  for (const char *s = text; *s; s++)
    if ((s == text || s[-1] == ' ' || s[-1] == '\t') && !strncmp(s, key, n)) return true;
  return false;
}
