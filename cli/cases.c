/* SPDX-License-Identifier: Apache-2.0 */
/* rapt cases: every call of the case files, counted by row. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

typedef struct counts {
  int64_t served, refused, failed, skipped;
} counts;
typedef struct tally {
  case_suite s;
  case_file *files;
  size_t n_files;
  const char **path;                  /* the file of each case */
  counts *slot;                       /* one a slot */
  int64_t later, skipped;             /* kinds that this version does not run; needs that are not here */
  json_t *failures;
  cli_str text;                       /* what failed in the call at hand */
  bool verbose;
} tally;

static const char *slot_name(const case_suite *s, size_t slot) { return s->slots[slot] ? s->slots[slot] : "automatic"; }

/* ---- Preparation ---- */

static int load_files(tally *t, const cli_args *a) {
  t->n_files = a->n_words;
  t->files = cli_alloc(t->n_files + 1, sizeof *t->files);
  if (!t->n_files) return cli_usage("FILE", NULL, "is missing, want case files as tests/cases/cases.json");
  size_t n = 0;
  for (size_t f = 0; f < t->n_files; f++) {
    int rc = case_file_load(&t->files[f], a->words[f]);
    if (rc) return rc;
    n += json_array_size(t->files[f].cases);
  }
  t->s.cases = cli_alloc(n, sizeof *t->s.cases);
  t->path = cli_alloc(n, sizeof *t->path);
  for (size_t f = 0; f < t->n_files; f++)
    for (size_t i = 0; i < json_array_size(t->files[f].cases); i++) {
      t->path[t->s.n_cases] = t->files[f].path;
      t->s.cases[t->s.n_cases++] = json_array_get(t->files[f].cases, i);
    }
  json_t *seen = json_object();
  int rc = CLI_OK;
  for (size_t i = 0; i < n && !rc; i++) {
    const char *id = json_string_value(json_object_get(t->s.cases[i], "id"));
    if (json_object_get(seen, id)) rc = cli_usage("FILE", t->path[i], "case '%s' is there twice", id);
    json_object_set_new(seen, id, json_true());
  }
  json_decref(seen);
  return rc;
}

/* Slot 0 is the automatic choice, the others are rapt's own rows; --backend leaves one. */
static int find_rows(tally *t, const char *backend) {
  case_suite *s = &t->s;
  cli_str known = {0};
  s->slots = cli_alloc(rapt_row_count(s->ctx) + 1, sizeof *s->slots);
  if (!backend) s->n_slots = 1;
  for (uint32_t i = 0; i < rapt_row_count(s->ctx); i++) {
    rapt_row_info r = RAPT_ROW_INFO_INIT;
    if (rapt_row_get(s->ctx, i, &r) != RAPT_OK || r.place != RAPT_PLACE_OWN ||
        !(r.classes & (RAPT_CLASS_FUSED | RAPT_CLASS_REFERENCE)))
      continue;
    cli_str_printf(&known, " %s", r.id);
    if (!backend || !strcmp(backend, r.id)) s->slots[s->n_slots++] = r.id;
  }
  int rc = s->n_slots ? CLI_OK : cli_usage("--backend", backend, "want one of:%s", known.n ? known.s : "");
  cli_str_free(&known);
  s->results = cli_alloc(s->n_cases * s->n_slots + 1, sizeof *s->results);
  s->calls = cli_alloc(s->n_cases + 1, sizeof *s->calls);
  t->slot = cli_alloc(s->n_slots + 1, sizeof *t->slot);
  return rc;
}

/* ---- One case ---- */

/* What a case needs and this tool has not. */
static const char *lacks(const json_t *c) {
  static const char *const have[] = {"cpu", "threads", "guard-page", "no-reserve-mapping"};
  const json_t *name;
  size_t i;
  json_array_foreach(case_field(c, "needs"), i, name) {
    bool found = false;
    for (size_t k = 0; k < CLI_COUNT(have); k++)
      found |= json_is_string(name) && !strcmp(json_string_value(name), have[k]);
    if (!found) return json_is_string(name) ? json_string_value(name) : "?";
  }
  return NULL;
}

static void record(tally *t, size_t i, size_t slot) {
  cli_str *text = &t->text;
  const char *id = json_string_value(json_object_get(t->s.cases[i], "id"));
  while (text->n && text->s[text->n - 1] == '\n') text->s[--text->n] = 0;
  t->slot[slot].failed++;
  if (!cli_out_json()) printf("%sFAILED%s %s, %s: %s\n", cli_bad(), cli_plain(), id, slot_name(&t->s, slot), text->s);
  json_array_append_new(t->failures,
                        json_pack("{s:s,s:s,s:s}", "case", id, "row", slot_name(&t->s, slot), "text", text->s));
}

static void one_slot(tally *t, size_t i, size_t slot) {
  case_result *r = case_run(&t->s, i, slot);
  counts *n = &t->slot[slot];
  const char *kind = json_string_value(json_object_get(t->s.cases[i], "kind"));
  cli_str *text = &t->text;
  cli_str_free(text);
  if (r->skip) {
    n->skipped++;
    cli_notice("%s, %s: skipped, %s", json_string_value(json_object_get(t->s.cases[i], "id")), slot_name(&t->s, slot),
               r->skip);
    return;
  }
  if (r->wrong.n) cli_str_add(text, r->wrong.s);
  bool served = r->status == RAPT_OK && strcmp(kind, "refuse");
  if (served) case_check(&t->s, i, slot, text);
  if (text->n) record(t, i, slot);
  else if (served && !r->no_backward) n->served++;
  else n->refused++;
}

/* false: the case is malformed, case_fault_now says how. */
static bool one_case(tally *t, size_t i) {
  if (setjmp(case_fault_now.jump)) return false;
  for (size_t slot = 0; slot < t->s.n_slots; slot++) one_slot(t, i, slot);
  return true;
}

static int all_cases(tally *t) {
  for (size_t i = 0; i < t->s.n_cases; i++) {
    const json_t *c = t->s.cases[i];
    const char *id = json_string_value(json_object_get(c, "id")), *kind = json_string_value(json_object_get(c, "kind"));
    const char *missing = lacks(c);
    if (!strcmp(kind, "scenario") || !strcmp(kind, "merge")) {
      t->later++;
      if (t->verbose) cli_notice("%s: kind %s, not in this version", id, kind);
    } else if (missing) {
      t->skipped++;
      cli_notice("%s: skipped, it needs %s", id, missing);
    } else if (!one_case(t, i)) {
      return cli_usage("FILE", t->path[i], "case %s: %s", id, case_fault_now.text);
    }
  }
  return CLI_OK;
}

/* ---- Results ---- */

static counts sum(const tally *t) {
  counts all = {0};
  for (size_t i = 0; i < t->s.n_slots; i++) {
    all.served += t->slot[i].served;
    all.refused += t->slot[i].refused;
    all.failed += t->slot[i].failed;
    all.skipped += t->slot[i].skipped;
  }
  return all;
}

static json_t *counts_json(const char *row, const counts *n) {
  return json_pack("{s:s?,s:I,s:I,s:I,s:I}", "row", row, "served", (json_int_t)n->served, "refused",
                   (json_int_t)n->refused, "failed", (json_int_t)n->failed, "skipped", (json_int_t)n->skipped);
}

static void print_results(tally *t) {
  counts all = sum(t);
  if (cli_out_json()) {
    json_t *rows = json_array();
    for (size_t i = 0; i < t->s.n_slots; i++)
      json_array_append_new(rows, counts_json(slot_name(&t->s, i), &t->slot[i]));
    json_t *j = json_pack("{s:s,s:I,s:o,s:o,s:I,s:I,s:O}", "schema", "rapt.cases/1", "cases", (json_int_t)t->s.n_cases,
                          "rows", rows, "total", counts_json(NULL, &all), "needs_missing", (json_int_t)t->skipped,
                          "not_in_this_version", (json_int_t)t->later, "failures", t->failures);
    json_dumpf(j, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(j);
    return;
  }
  printf("%-18s %8s %8s %8s %8s\n", "row", "served", "refused", "failed", "skipped");
  for (size_t i = 0; i < t->s.n_slots; i++)
    printf("%-18s %8lld %8lld %8lld %8lld\n", slot_name(&t->s, i), (long long)t->slot[i].served,
           (long long)t->slot[i].refused, (long long)t->slot[i].failed, (long long)t->slot[i].skipped);
  printf(
      "%zu cases: %lld not in this version, %lld skipped for what they need; calls: %lld served, %lld refused, %s%lld failed%s\n",
      t->s.n_cases, (long long)t->later, (long long)t->skipped, (long long)all.served, (long long)all.refused,
      all.failed ? cli_bad() : "", (long long)all.failed, cli_plain());
}

static void free_tally(tally *t) {
  case_suite *s = &t->s;
  for (size_t i = 0; s->calls && i < s->n_cases; i++)
    if (s->calls[i].json) case_free(&s->calls[i]);
  for (size_t i = 0; s->results && i < s->n_cases * s->n_slots; i++) {
    free(s->results[i].out);
    free(s->results[i].lse);
    cli_str_free(&s->results[i].wrong);
  }
  for (size_t i = 0; i < t->n_files; i++) json_decref(t->files[i].root);
  rapt_ctx_destroy(s->ctx);
  json_decref(t->failures);
  cli_str_free(&t->text);
  free(t->files);
  free(t->path);
  free(t->slot);
  free(s->cases);
  free(s->calls);
  free(s->slots);
  free(s->results);
}

int cli_cases(int argc, char **argv) {
  static const cli_option options[] = {{"--backend", CLI_VALUE}, {"--verbose", CLI_FLAG}};
  cli_args a;
  tally t = {.failures = json_array()};
  int rc = cli_args_parse(&a, options, CLI_COUNT(options), argc, argv);
  t.verbose = !rc && cli_args_has(&a, "--verbose");
  if (!rc) rc = load_files(&t, &a);
  if (!rc) rc = cli_ctx_create(NULL, 0, &t.s.ctx);
  if (!rc) rc = find_rows(&t, cli_args_value(&a, "--backend"));
  if (!rc) rc = all_cases(&t);
  if (!rc) {
    counts all = sum(&t);
    if (all.served + all.refused + all.failed == 0) {
      rc = cli_usage("FILE", t.path[0], "no case was run");
    } else {
      print_results(&t);
      if (all.failed) rc = CLI_FAILED;
    }
  }
  cli_args_free(&a);
  free_tally(&t);
  return rc;
}
