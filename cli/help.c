/* SPDX-License-Identifier: Apache-2.0 */
/* What --help says, and the variables that the library reads. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

/* D23 */
const cli_variable cli_variables[] = {
    {"RAPT_REQUIRE", "names of backends, rows or classes: no other may run"},
    {"RAPT_PREFER", "names that come first, in this order"},
    {"RAPT_FORBID", "names that may not run"},
    {"RAPT_MEMORY_LIMIT", "bytes a call may need beyond its tensors, a whole number"},
    {"RAPT_REF_LIMIT", "products of a call up to which ref is chosen by itself, 1 or more"},
    {"RAPT_ISA", "highest instruction level: scalar, avx2, avx512, neon"},
    {"RAPT_VERIFY", "0; not in this version"},
    {"RAPT_LOG", "stderr or a path with a / in it, and :decisions or :refusals behind it: a line for each new one"},
};
const size_t cli_n_variables = CLI_COUNT(cli_variables);

static const char facts_help[] =
    "  --device D       cpu, cuda, cuda:sm90, hip:gfx942, ..: a machine that is not here\n"
    "  --with KEY=VALUE one fact more, again and again: torch=2.13.0, flash-attn.cc=8.0,9.0; without --device and\n"
    "                   --facts it is added to this machine's facts\n"
    "  --facts S|FILE   a facts string, or a file with it or its JSON form\n";

static const struct {
  const char *verb, *usage, *text, *more;
} verbs[] = {
    {"info", "info", "  what runs here: version, facts, rows, the variables that are set\n", NULL},
    {"explain", "explain PROBLEM [--device D] [--with KEY=VALUE].. [--facts S|FILE] [--all]",
     "  what would be chosen and why; a problem string is for example: bf16 b1 h24 q4608 k4608 d128 causal=tl\n"
     "  --all            every row with every reason\n",
     facts_help},
    {"line", "line FAMILY [--devices cpu,cuda] [--dtypes fp16,bf16,fp32] [facts as explain]",
     "  one line for a call site: which backend, where, and what otherwise\n", facts_help},
    {"run", "run --q FILE[:TENSOR] --k .. --v .. --out FILE [--lse FILE] [TOKEN]..",
     "  one call on .npy or .safetensors files; sizes and dtypes come from them, the rest from tokens: causal=tl scale=0.5\n"
     "  --q --k --v --mask --bias --sinks --slopes --q-len --kv-len --cu-q --cu-k --q-offset FILE[:TENSOR]\n"
     "                   inputs; TENSOR: default the option's name\n"
     "  --out --lse FILE outputs\n"
     "  --seed N, --offset N\n",
     NULL},
    {"cases", "cases FILE.. [--backend ROW] [--verbose]",
     "  the case files, by automatic choice and with every own row, or with ROW alone\n", NULL},
    {"bench", "bench PROBLEM|FILE [--ab A B] [--threads N] [--seconds S] | bench --targets [FILE]",
     "  time, GFLOP/s, share of the peak of this machine\n"
     "  --ab A B         PROBLEM with the tokens A and with the tokens B, in turn\n"
     "  --targets [FILE] the bars of bench/targets.json\n",
     NULL},
};

static void help_end(void) {
  printf("--json puts one document on stdout: the result, a refusal, or what is wrong.\n"
         "Exit: 0 ok, 1 a check failed or the call was refused, 2 usage or malformed input, 3 undecided or not measured.\n"
         "Variables:\n");
  for (size_t i = 0; i < cli_n_variables; i++) printf("  %-18s %s\n", cli_variables[i].name, cli_variables[i].text);
}

void cli_help(const char *verb) {
  for (size_t i = 0; i < CLI_COUNT(verbs); i++)
    if (!strcmp(verbs[i].verb, verb)) {
      printf("usage: rapt %s\n%s%s", verbs[i].usage, verbs[i].text, verbs[i].more ? verbs[i].more : "");
      help_end();
      return;
    }
  printf("usage: rapt VERB ..\n");
  for (size_t i = 0; i < CLI_COUNT(verbs); i++)
    printf("  %s\n    %.*s\n", verbs[i].usage, (int)strcspn(verbs[i].text, "\n"), verbs[i].text);
  printf("  help [VERB] | VERB --help | --version\n");
  help_end();
}
