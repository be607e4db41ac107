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

static const char help[] =
    "usage: rapt VERB ..\n"
    "  info                                    what runs here: facts, rows, environment\n"
    "  explain PROBLEM [--device D] [--with KEY=VALUE].. [--facts S|FILE] [--all]\n"
    "                                          what would be chosen and why; --all lists every row with every reason\n"
    "  line FAMILY [--devices cpu,cuda] [--dtypes fp16,bf16,fp32] [facts as explain]\n"
    "                                          one line for a call site\n"
    "  run --q FILE[:TENSOR] --k .. --v .. --out FILE [--lse FILE] [--mask|--bias|.. FILE] [TOKEN]..\n"
    "                                          one call on .npy or .safetensors files\n"
    "  cases FILE.. [--backend ROW] [--verbose]\n"
    "                                          the case files, by automatic choice and with every own row\n"
    "  bench PROBLEM|FILE [--ab A B] [--threads N] [--seconds S] | bench --targets [FILE]\n"
    "                                          time, GFLOP/s, share of the peak of this machine\n"
    "  help | --help | --version\n"
    "--json puts one document on stdout. A problem string: bf16 b1 h24 q4608 k4608 d128 causal=tl\n"
    "Exit: 0 ok, 1 a check failed or the call was refused, 2 usage or malformed input, 3 undecided or not measured.\n";

int main(int argc, char **argv) {
  const char *verb = argc > 1 ? argv[1] : "";
  bool json = false;
  for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) json |= !strcmp(argv[i], "--json");
  cli_out_begin("", json);
  if (!strcmp(verb, "help") || !strcmp(verb, "--help") || !strcmp(verb, "-h")) {
    fputs(help, stdout);
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
      cli_out_begin(verb, json);
      int rc = verbs[i].run(argc - 2, argv + 2);
      if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "rapt %s: stdout: cannot be written\n", verb);
        rc = CLI_USAGE;
      }
      return rc;
    }
  if (!*verb) fputs(help, stderr);
  return cli_usage("verb", *verb ? verb : NULL, "want info, explain, line, run, cases, bench or help");
}
