/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: the command line tool. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
} verbs[] = {
    {"info", cli_info}, {"explain", cli_explain}, {"line", cli_line},
    {"run", cli_run},   {"cases", cli_cases},     {"bench", cli_bench},
};
static const char *const later[] = {"verify", "matrix"};

/* An option of the whole tool, before a "--". */
static bool has_flag(int argc, char **argv, const char *flag) {
  for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
    if (!strcmp(argv[i], flag)) return true;
  return false;
}

int main(int argc, char **argv) {
  const char *verb = argc > 1 ? argv[1] : "";
  bool json = has_flag(argc, argv, "--json");
  cli_out_begin("", json);
  if (!strcmp(verb, "help") || !strcmp(verb, "--help") || !strcmp(verb, "-h")) {
    cli_help(argc > 2 ? argv[2] : "");
    return CLI_OK;
  }
  if (!strcmp(verb, "--version")) {
    printf("rapt %s\n", rapt_version());
    return CLI_OK;
  }
  for (size_t i = 0; i < CLI_COUNT(later); i++)
    if (!strcmp(verb, later[i])) return cli_usage("verb", verb, "not in this version");
  for (size_t i = 0; i < CLI_COUNT(verbs); i++)
    if (!strcmp(verb, verbs[i].name)) {
      if (has_flag(argc, argv, "--help")) {
        cli_help(verb);
        return CLI_OK;
      }
      cli_out_begin(verb, json);
      int rc = verbs[i].run(argc - 2, argv + 2);
      if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "rapt %s: stdout: cannot be written\n", verb);
        rc = CLI_USAGE;
      }
      return rc;
    }
  return cli_usage("verb", *verb ? verb : NULL, "want info, explain, line, run, cases, bench or help");
}
