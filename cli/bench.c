/* SPDX-License-Identifier: Apache-2.0 */
/* rapt bench: the verb. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

enum { FILE_MAX = 1 << 20, PROBLEMS_MAX = 10000 };

typedef struct bench {
  cli_args args;
  char *facts;
  json_t *results;
  double seconds;
  int64_t threads;
  int rc;
} bench;

static json_t *real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

/* ---- One problem ---- */

static void print_figure(const bench_subject *s, const bench_figure *f) {
  cli_str words = {0};
  cli_decision_words(&s->decision, &words);
  printf("%s\n  %s: median %.6g s (spread %.1f %%, %zu samples), %.1f GFLOP/s", s->problem,
         words.s, f->median_s, 100 * f->spread,
         f->samples, f->gflops);
  if (f->trusted) printf(", %.1f %% of the peak of %.1f", 100 * f->share, f->peak_gflops);
  else printf(", peak not measured");
  if (isfinite(f->flop_per_cycle))
    printf("\n  probe: %.2f FLOP/cycle at %.2f GHz%s", f->flop_per_cycle, f->hertz * 1e-9,
           f->trusted ? "" : ", not within 5 % of a power of two from 8 to 64");
  printf("\n");
  cli_str_free(&words);
  if (bench_subject_busy(s) > 0.02)
    cli_notice("others had %.0f %% of the core, processor time is counted", 100 * bench_subject_busy(s));
}

static int one_problem(bench *b, const char *text, json_t *results) {
  bench_subject s;
  bench_figure f;
  int rc = bench_subject_make(&s, "PROBLEM", text, (unsigned)b->threads, results);
  if (rc) return rc;
  if (!bench_measure(&s, b->seconds, &f)) {
    rc = cli_usage("PROBLEM", text, "the run failed");
  } else {
    if (!cli_out_json()) print_figure(&s, &f);
    json_t *probe = json_pack("{s:o,s:o,s:o,s:b}", "gflops", real(f.peak_gflops), "ghz", real(f.hertz * 1e-9),
                              "flop_per_cycle", real(f.flop_per_cycle), "trusted", f.trusted);
    json_array_append_new(b->results,
                          json_pack("{s:s,s:s,s:s,s:s,s:i,s:o,s:o,s:o,s:o,s:n,s:o}", "problem", s.problem, "row",
                                    s.decision.row, "kernel", s.decision.kernel, "isa", s.decision.isa, "threads",
                                    (int)s.decision.threads, "median_s", real(f.median_s), "spread", real(f.spread),
                                    "gflops", real(f.gflops), "peak_share", real(f.share), "peer", "probe", probe));
  }
  bench_subject_free(&s);
  return rc;
}

/* The lines of a file that are neither empty nor begin with '#'. */
static int file_of_problems(bench *b, const char *path) {
  cli_str error = {0};
  size_t n;
  char *text = cli_file_read(path, FILE_MAX, &n, &error), *state = NULL;
  int rc = CLI_OK, count = 0;
  if (!text) rc = cli_usage("FILE", path, "%s", error.s);
  else if (memchr(text, 0, n)) rc = cli_usage("FILE", path, "holds a NUL byte, want problem strings, one a line");
  for (char *line = rc ? NULL : strtok_r(text, "\r\n", &state); line && rc != CLI_USAGE;
       line = strtok_r(NULL, "\r\n", &state)) {
    if (*line == '#') continue;
    int one = CLI_OK;
    if (++count > PROBLEMS_MAX) rc = cli_usage("FILE", path, "has more than %d problems", PROBLEMS_MAX);
    else one = one_problem(b, line, b->results);
    if (one) rc = one;
  }
  if (!rc && !count) rc = cli_usage("FILE", path, "has no problem string");
  free(text);
  cli_str_free(&error);
  return rc;
}

/* ---- Two in turn ---- */

static int compare(bench *b, const char *text, const cli_given *ab) {
  bench_subject first, second;
  bench_ratio r;
  cli_str ta = {0}, tb = {0};
  cli_str_printf(&ta, "%s%s%s", text, *ab->value ? " " : "", ab->value);
  cli_str_printf(&tb, "%s%s%s", text, *ab->second ? " " : "", ab->second);
  int rc = bench_subject_make(&first, "--ab A", ta.s, (unsigned)b->threads, NULL);
  if (!rc) {
    if (!(rc = bench_subject_make(&second, "--ab B", tb.s, (unsigned)b->threads, NULL))) {
      if (!bench_compare(&first, &second, b->seconds, &r)) {
        rc = cli_usage("--ab", text, "a run failed");
      } else {
        const char *verdict = fabs(r.ratio - 1) <= r.threshold ? "no difference"
                              : r.ratio > 1                    ? "A is faster"
                                                               : "B is faster";
        if (!cli_out_json())
          printf(
              "A %s: %s, median %.6g s\nB %s: %s, median %.6g s\nB takes %.4f of A's time, threshold %.4f (A against A), %zu rounds: %s\n",
              first.decision.row, first.problem, r.a_s, second.decision.row, second.problem, r.b_s, r.ratio,
              r.threshold, r.rounds, verdict);
        json_array_append_new(b->results,
                              json_pack("{s:{s:s,s:s,s:f},s:{s:s,s:s,s:f},s:f,s:f,s:I,s:s}", "a", "problem",
                                        first.problem, "row", first.decision.row, "median_s", r.a_s, "b", "problem",
                                        second.problem, "row", second.decision.row, "median_s", r.b_s, "ratio", r.ratio,
                                        "threshold", r.threshold, "rounds", (json_int_t)r.rounds, "verdict", verdict));
      }
      bench_subject_free(&second);
    }
    bench_subject_free(&first);
  }
  cli_str_free(&ta);
  cli_str_free(&tb);
  return rc;
}

/* ---- The verb ---- */

static int run_words(bench *b) {
  const cli_given *ab = cli_args_nth(&b->args, "--ab", 0);
  cli_str text = {0};
  for (size_t i = 0; i < b->args.n_words; i++) cli_str_printf(&text, "%s%s", i ? " " : "", b->args.words[i]);
  int rc = CLI_OK;
  if (!text.n) rc = cli_usage("PROBLEM", NULL, "is missing, want a problem string, a file of them, or --targets");
  else if (ab) rc = compare(b, text.s, ab);
  else if (b->args.n_words == 1 && !access(text.s, F_OK)) rc = file_of_problems(b, text.s);
  else rc = one_problem(b, text.s, NULL);
  cli_str_free(&text);
  if (json_array_size(b->results) && cli_out_json() && rc != CLI_USAGE) {
    rapt_ctx *ctx = NULL;
    char *facts = cli_ctx_create(NULL, 0, &ctx) ? NULL : cli_facts_text(ctx);
    json_t *j = json_pack("{s:s,s:s?,s:O}", "schema", ab ? "rapt.bench.ab/1" : "rapt.bench/1", "facts", facts,
                          "results", b->results);
    json_dumpf(j, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(j);
    rapt_ctx_destroy(ctx);
    free(facts);
  }
  return rc;
}

int cli_bench(int argc, char **argv) {
  static const cli_option options[] = {
      {"--ab", CLI_PAIR}, {"--targets", CLI_FLAG}, {"--threads", CLI_VALUE}, {"--seconds", CLI_VALUE}};
  bench b = {.results = json_array()};
  int64_t seconds = 2;
  int rc = cli_args_parse(&b.args, options, CLI_COUNT(options), argc, argv);
  if (!rc) rc = cli_args_int(&b.args, "--threads", 1, 4096, &b.threads);
  if (!rc) rc = cli_args_int(&b.args, "--seconds", 0, 3600, &seconds);
  b.seconds = (double)seconds;
  if (!rc && cli_args_has(&b.args, "--targets")) {
    const char *path = b.args.n_words ? b.args.words[0] : "bench/targets.json";
    if (b.args.n_words > 1) rc = cli_usage("--targets", b.args.words[1], "want one file");
    else if (cli_args_has(&b.args, "--ab")) rc = cli_usage("--ab", NULL, "does not go with --targets");
    else rc = bench_targets(path, b.seconds);
  } else if (!rc) {
    rc = run_words(&b);
  }
  json_decref(b.results);
  cli_args_free(&b.args);
  return rc;
}
