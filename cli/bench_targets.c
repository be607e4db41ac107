/* SPDX-License-Identifier: Apache-2.0 */
/* rapt bench --targets: the figures that a release has to reach. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { FILE_MAX = 1 << 20 };

typedef struct target {
  const char *name, *figure, *problem, *beside;
  int64_t threads;
  double bar;
} target;
typedef struct outcome {
  double value;
  char note[160];
} outcome;      /* value NaN: not measured, note says why */

static bool read_target(const json_t *j, target *t, cli_str *error) {
  *t = (target){json_string_value(json_object_get(j, "name")),     json_string_value(json_object_get(j, "figure")),
                json_string_value(json_object_get(j, "problem")),  json_string_value(json_object_get(j, "beside")),
                json_integer_value(json_object_get(j, "threads")), json_number_value(json_object_get(j, "bar"))};
  const char *f = t->figure;
  if (!t->name || !f || !t->problem || !(t->bar > 0)) cli_str_add(error, "want name, figure, problem and bar");
  else if (strcmp(f, "peak_share") && strcmp(f, "rate_ratio") && strcmp(f, "thread_gain"))
    cli_str_printf(error, "figure '%s': want peak_share, rate_ratio or thread_gain", f);
  else if (!strcmp(f, "rate_ratio") && !t->beside)
    cli_str_add(error, "beside: is missing, a rate_ratio has two problems");
  else if (!strcmp(f, "thread_gain") && t->threads < 2) cli_str_add(error, "threads: want 2 or more");
  return !error->n;
}

/* ---- The figures ---- */

static int peak_share(const target *t, double seconds, json_t *results, outcome *o) {
  bench_subject s;
  bench_figure f;
  int rc = bench_subject_make(&s, "problem", t->problem, 1, results);
  if (rc) return rc;
  if (!bench_measure(&s, seconds, &f)) {
    snprintf(o->note, sizeof o->note, "the run failed");
    rc = CLI_FAILED;
  } else if (!f.trusted) {
    snprintf(o->note, sizeof o->note, "%s: no probe to trust for %s (%.2f FLOP/cycle)", s.decision.row, s.decision.isa,
             f.flop_per_cycle);
  } else {
    o->value = f.share;
    snprintf(o->note, sizeof o->note, "%s, %.1f of %.1f GFLOP/s, %.2f FLOP/cycle at %.2f GHz, core shared %.0f %%",
             s.decision.row, f.gflops, f.peak_gflops, f.flop_per_cycle, f.hertz * 1e-9, 100 * bench_subject_busy(&s));
  }
  bench_subject_free(&s);
  return rc;
}

static int rate_ratio(const target *t, double seconds, json_t *results, outcome *o) {
  bench_subject a, b;
  bench_ratio r;
  int rc = bench_subject_make(&a, "beside", t->beside, 1, results);
  if (rc) return rc;
  if (!(rc = bench_subject_make(&b, "problem", t->problem, 1, results))) {
    if (bench_compare(&a, &b, seconds, &r)) {
      o->value = b.flops / a.flops / r.ratio;
      snprintf(o->note, sizeof o->note, "%s beside %s, %.1f and %.1f GFLOP/s, threshold %.3f", b.decision.row,
               a.decision.row, b.flops / r.b_s * 1e-9, a.flops / r.a_s * 1e-9, r.threshold);
    } else {
      snprintf(o->note, sizeof o->note, "the run failed");
      rc = CLI_FAILED;
    }
    bench_subject_free(&b);
  }
  bench_subject_free(&a);
  return rc;
}

/* The gain of the call by the gain of the probe, from the same rounds. */
static int thread_gain(const target *t, double seconds, json_t *results, outcome *o) {
  bench_subject one, many;
  bench_gain g;
  if (bench_cores() < (unsigned)t->threads) {
    snprintf(o->note, sizeof o->note, "%u usable cores", bench_cores());
    return CLI_OK;
  }
  int rc = bench_subject_make(&one, "problem", t->problem, 1, results);
  if (rc) return rc;
  if (!(rc = bench_subject_make(&many, "problem", t->problem, (unsigned)t->threads, results))) {
    if (!bench_measure_gain(&one, &many, (unsigned)t->threads, seconds, &g)) {
      snprintf(o->note, sizeof o->note, "the run failed");
      rc = CLI_FAILED;
    } else if (g.clean < g.rounds && g.clean < 7) {
      snprintf(o->note, sizeof o->note, "others had %.0f %% of %d cores, %zu of %zu rounds were clean", 100 * g.others,
               (int)t->threads, g.clean, g.rounds);
    } else if (!probe_trusted(g.flop_per_cycle)) {
      snprintf(o->note, sizeof o->note, "no probe to trust (%.2f FLOP/cycle)", g.flop_per_cycle);
    } else {
      o->value = g.gain / g.probe;
      snprintf(o->note, sizeof o->note, "%u threads, gain %.2f, the probe's %.2f, %zu of %zu rounds clean",
               many.decision.threads, g.gain, g.probe, g.clean, g.rounds);
    }
    bench_subject_free(&many);
  }
  bench_subject_free(&one);
  return rc;
}

static int measure(const target *t, double seconds, json_t *results, outcome *o) {
  *o = (outcome){.value = NAN};
  if (!strcmp(t->figure, "peak_share")) return peak_share(t, seconds, results, o);
  if (!strcmp(t->figure, "rate_ratio")) return rate_ratio(t, seconds, results, o);
  return thread_gain(t, seconds, results, o);
}

/* ---- The list ---- */

static json_t *load(const char *path, cli_str *error) {
  size_t n;
  json_error_t e;
  char *text = cli_file_read(path, FILE_MAX, &n, error);
  json_t *j = text ? json_loadb(text, n, JSON_REJECT_DUPLICATES, &e) : NULL;
  const json_t *list = json_object_get(j, "targets");
  const char *schema = json_string_value(json_object_get(j, "schema"));
  if (text && !j) cli_str_printf(error, "line %d: %s", e.line, e.text);
  else if (j && (!schema || strcmp(schema, "rapt.targets/1"))) cli_str_add(error, "schema: want \"rapt.targets/1\"");
  else if (j && !json_array_size(list)) cli_str_add(error, "targets: want a list");
  for (size_t i = 0; !error->n && i < json_array_size(list); i++) {
    target t;
    cli_str why = {0};
    if (!read_target(json_array_get(list, i), &t, &why)) cli_str_printf(error, "target %zu: %s", i, why.s);
    cli_str_free(&why);
  }
  free(text);
  if (!error->n) return j;
  json_decref(j);
  return NULL;
}

int bench_targets(const char *path, double seconds) {
  cli_str error = {0};
  json_t *j = load(path, &error), *results = json_array();
  if (!j) {
    cli_usage("--targets", path, "%s", error.s);
    cli_str_free(&error);
    json_decref(results);
    return CLI_USAGE;
  }
  const json_t *list = json_object_get(j, "targets");
  int missed = 0, open = 0, met = 0, rc = CLI_OK;
  for (size_t i = 0; i < json_array_size(list) && rc != CLI_USAGE; i++) {
    target t;
    outcome o;
    read_target(json_array_get(list, i), &t, &error);
    rc = measure(&t, seconds, results, &o);
    bool failed = rc == CLI_FAILED || o.value < t.bar;
    const char *verdict = failed ? "missed" : isnan(o.value) ? "not measured" : "met";
    failed ? missed++ : isnan(o.value) ? open++ : met++;
    char value[32] = "-";
    if (!isnan(o.value)) snprintf(value, sizeof value, "%.3f", o.value);
    if (!cli_out_json())
      printf("%-40s %6s  bar %.2f  %s%s%s  (%s)\n", t.name, value, t.bar, failed ? cli_bad() : cli_good(), verdict,
             cli_plain(), o.note);
    fflush(stdout);
    json_array_append_new(results,
                          json_pack("{s:s,s:s,s:s,s:o,s:f,s:s,s:s}", "name", t.name, "figure", t.figure, "problem",
                                    t.problem, "value", isnan(o.value) ? json_null() : json_real(o.value), "bar", t.bar,
                                    "verdict", verdict, "note", o.note));
  }
  if (rc != CLI_USAGE) {
    if (cli_out_json()) {
      json_t *out = json_pack("{s:s,s:O}", "schema", "rapt.bench.targets/1", "results", results);
      json_dumpf(out, stdout, JSON_COMPACT);
      putchar('\n');
      json_decref(out);
    } else {
      printf("%d met, %d missed, %d not measured\n", met, missed, open);
    }
    rc = missed ? CLI_FAILED : open ? CLI_OPEN : CLI_OK;
  }
  json_decref(results);
  json_decref(j);
  cli_str_free(&error);
  return rc;
}
