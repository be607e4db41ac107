/* SPDX-License-Identifier: Apache-2.0 */
/* Options: --name, --name VALUE, --name=VALUE; "--" ends them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static int find_option(const cli_args *a, const char *s, size_t n) {
  for (size_t i = 0; i < a->n_options; i++)
    if (strlen(a->options[i].name) == n && !memcmp(a->options[i].name, s, n)) return (int)i;
  return -1;
}

static int unknown_option(const cli_args *a, const char *s) {
  cli_str known = {0};
  for (size_t i = 0; i < a->n_options; i++) cli_str_printf(&known, " %s", a->options[i].name);
  cli_usage("option", s, "is not known here, want one of:%s --json", known.n ? known.s : "");
  cli_str_free(&known);
  return CLI_USAGE;
}

/* One option at argv[*i]; moves *i to its last word. */
static int take_option(cli_args *a, int *i, int argc, char **argv) {
  const char *word = argv[*i], *equal = strchr(word, '=');
  size_t n = equal ? (size_t)(equal - word) : strlen(word);
  if (n == 6 && !memcmp(word, "--json", n) && !equal) return CLI_OK;      /* read before, by main */
  int option = find_option(a, word, n);
  if (option < 0) return unknown_option(a, word);
  const cli_option *o = &a->options[option];
  cli_given g = {.option = option};
  if (o->kind == CLI_FLAG) {
    if (equal) return cli_usage(o->name, equal + 1, "takes no value");
  } else if (equal && o->kind != CLI_PAIR) {
    g.value = equal + 1;
  } else {
    if (*i + (o->kind == CLI_PAIR) + 1 >= argc || equal)
      return cli_usage("option", o->name,
                       o->kind == CLI_PAIR ? "needs two values behind it" : "needs a value behind it");
    g.value = argv[++*i];
    if (o->kind == CLI_PAIR) g.second = argv[++*i];
  }
  if (o->kind != CLI_LIST && cli_args_nth(a, o->name, 0))
    return cli_usage(o->name, g.value, "is given twice, want it once");
  a->given[a->n_given++] = g;
  return CLI_OK;
}

int cli_args_parse(cli_args *a, const cli_option *options, size_t n, int argc, char **argv) {
  *a = (cli_args){.options = options, .n_options = n};
  a->given = cli_alloc((size_t)argc + 1, sizeof *a->given);
  a->words = cli_alloc((size_t)argc + 1, sizeof *a->words);
  bool words_only = false;
  for (int i = 0; i < argc; i++) {
    if (!words_only && !strcmp(argv[i], "--")) {
      words_only = true;
    } else if (!words_only && !strncmp(argv[i], "--", 2)) {
      int rc = take_option(a, &i, argc, argv);
      if (rc) return rc;
    } else {
      a->words[a->n_words++] = argv[i];
    }
  }
  return CLI_OK;
}

void cli_args_free(cli_args *a) {
  free(a->given);
  free(a->words);
  *a = (cli_args){0};
}

const cli_given *cli_args_nth(const cli_args *a, const char *name, size_t i) {
  for (size_t g = 0; g < a->n_given; g++)
    if (!strcmp(a->options[a->given[g].option].name, name) && i-- == 0) return &a->given[g];
  return NULL;
}

bool cli_args_has(const cli_args *a, const char *name) { return cli_args_nth(a, name, 0) != NULL; }

const char *cli_args_value(const cli_args *a, const char *name) {
  const cli_given *g = cli_args_nth(a, name, 0);
  return g ? g->value : NULL;
}

int cli_args_int(const cli_args *a, const char *name, int64_t low, int64_t high, int64_t *value) {
  const char *s = cli_args_value(a, name);
  if (!s) return CLI_OK;
  char *end;
  errno = 0;
  long long x = strtoll(s, &end, 10);
  if (errno || end == s || *end || x < low || x > high)
    return cli_usage(name, s, "want a whole number from %lld to %lld", (long long)low, (long long)high);
  *value = x;
  return CLI_OK;
}
