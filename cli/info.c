/* SPDX-License-Identifier: Apache-2.0 */
/* rapt info: what is here. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static const char *const places[] = {"opt-in", "first", "own", "host", "binding"};
static const char *const classes[] = {"reference", "fused", "flash", "host", "approx"};

/* The value of a key of the facts string, "" where it is missing. The caller frees. */
static char *fact(const char *facts, const char *key) {
  size_t n = strlen(key);
  cli_str t = {0};
  cli_str_add(&t, "");
  for (const char *s = strchr(facts, ' '); s; s = strchr(s + 1, ' '))
    if (!strncmp(s + 1, key, n) && s[1 + n] == '=') cli_str_put(&t, s + n + 2, strcspn(s + n + 2, " "));
  return t.s;
}

static json_t *row_json(const rapt_row_info *r) {
  json_t *list = json_array();
  for (size_t i = 0; i < CLI_COUNT(classes); i++)
    if (r->classes >> i & 1) json_array_append_new(list, json_string(classes[i]));
  return json_pack("{s:s,s:s,s:s,s:s,s:o,s:I}", "row", r->id, "display", r->display, "backend", r->backend, "place",
                   places[r->place], "classes", list, "entered", (json_int_t)r->entered);
}

static void print_json(const rapt_ctx *ctx, const char *facts, const char *isa, const char *threads) {
  json_t *environment = json_object(), *rows = json_array();
  for (size_t i = 0; i < cli_n_variables; i++) {
    const char *v = getenv(cli_variables[i].name);
    json_object_set_new(environment, cli_variables[i].name, v ? json_string(v) : json_null());
  }
  for (uint32_t i = 0; i < rapt_row_count(ctx); i++) {
    rapt_row_info r = RAPT_ROW_INFO_INIT;
    if (rapt_row_get(ctx, i, &r) == RAPT_OK) json_array_append_new(rows, row_json(&r));
  }
  json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:i,s:o,s:o}", "schema", "rapt.info/1", "version", rapt_version(), "facts",
                        facts, "isa", isa, "threads", atoi(threads), "environment", environment, "rows", rows);
  json_dumpf(j, stdout, JSON_COMPACT);
  putchar('\n');
  json_decref(j);
}

static void print_text(const rapt_ctx *ctx, const char *facts, const char *isa, const char *threads) {
  printf("rapt %s\nfacts: %s\nisa: %s\nthreads: %s\n", rapt_version(), facts, *isa ? isa : "?",
         *threads ? threads : "?");
  int set = 0;
  for (size_t i = 0; i < cli_n_variables; i++) {
    const char *v = getenv(cli_variables[i].name);
    if (v) printf("%s=%s\n", cli_variables[i].name, v), set++;
  }
  if (!set) printf("environment: no RAPT_ variable is set\n");
  printf("rows: %u\n", rapt_row_count(ctx));
  for (uint32_t i = 0; i < rapt_row_count(ctx); i++) {
    rapt_row_info r = RAPT_ROW_INFO_INIT;
    if (rapt_row_get(ctx, i, &r) != RAPT_OK) continue;
    printf("  %-18s %-24s %-7s", r.id, r.display, places[r.place]);
    for (size_t k = 0; k < CLI_COUNT(classes); k++)
      if (r.classes >> k & 1) printf(" %s", classes[k]);
    printf("  entered %llu\n", (unsigned long long)r.entered);
  }
}

extern char **environ;

/* A misspelled variable has no effect, which its user should hear. */
static void say_unknown_variables(void) {
  for (char **e = environ; e && *e; e++) {
    size_t n = strcspn(*e, "="), i = 0;
    if (strncmp(*e, "RAPT_", 5)) continue;
    while (i < cli_n_variables && (strlen(cli_variables[i].name) != n || memcmp(cli_variables[i].name, *e, n))) i++;
    if (i == cli_n_variables) cli_notice("%.*s is set, but no variable that is read; rapt --help lists those", (int)n, *e);
  }
}

int cli_info(int argc, char **argv) {
  cli_args a;
  int rc = cli_args_parse(&a, NULL, 0, argc, argv);
  if (!rc && a.n_words) rc = cli_usage("argument", a.words[0], "info takes none");
  cli_args_free(&a);
  rapt_ctx *ctx = NULL;
  if (rc || (rc = cli_ctx_create(NULL, 0, &ctx))) return rc;
  char *facts = cli_facts_text(ctx), *isa = fact(facts, "isa"), *threads = fact(facts, "threads");
  (cli_out_json() ? print_json : print_text)(ctx, facts, isa, threads);
  say_unknown_variables();
  free(facts);
  free(isa);
  free(threads);
  rapt_ctx_destroy(ctx);
  return CLI_OK;
}
