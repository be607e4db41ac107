/* SPDX-License-Identifier: Apache-2.0 */
/* The facts of a what-if: --facts S|FILE, --device KIND[:ARCH] and --with KEY=VALUE write one facts string. */
#include <ctype.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { FACTS_MAX = 1 << 20 };

/* A number, a text, or a list of them joined by commas, as " key=value". */
static void add_fact(cli_str *t, const char *name, const char *suffix, const json_t *v) {
  cli_str value = {0};
  size_t n = json_is_array(v) ? json_array_size(v) : 1;
  for (size_t i = 0; i < n; i++) {
    const json_t *e = json_is_array(v) ? json_array_get(v, i) : v;
    if (i) cli_str_add(&value, ",");
    if (json_is_string(e)) cli_str_add(&value, json_string_value(e));
    else if (json_is_integer(e)) cli_str_printf(&value, "%lld", (long long)json_integer_value(e));
    else if (json_is_real(e)) cli_str_printf(&value, "%.15g", json_real_value(e));
  }
  if (value.n) cli_str_printf(t, " %s%s=%s", name, suffix, value.s);
  cli_str_free(&value);
}

/* A "rapt.facts/1" document as a facts string. */
static bool facts_of_json(const char *text, size_t n, cli_str *t, cli_str *error) {
  json_error_t e;
  json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
  const char *schema = json_string_value(json_object_get(j, "schema"));
  const json_t *device = json_object_get(j, "device"), *cpu = json_object_get(j, "cpu");
  const char *kind = json_string_value(json_object_get(device, "kind"));
  bool ok = false;
  if (!j) cli_str_printf(error, "line %d: %s", e.line, e.text);
  else if (!schema || strcmp(schema, "rapt.facts/1")) cli_str_add(error, "schema: want \"rapt.facts/1\"");
  else if (!kind) cli_str_add(error, "device.kind: want a device kind");
  else ok = true;
  if (ok) {
    cli_str_add(t, kind);
    const char *const device_keys[] = {"cc", "arch", "mem"}, *const cpu_keys[] = {"isa", "threads"};
    for (size_t i = 0; i < 3; i++) add_fact(t, device_keys[i], "", json_object_get(device, device_keys[i]));
    for (size_t i = 0; i < 2; i++) add_fact(t, cpu_keys[i], "", json_object_get(cpu, cpu_keys[i]));
    const char *name;
    json_t *package;
    json_object_foreach(json_object_get(j, "packages"), name, package) {
      add_fact(t, name, "", json_is_object(package) ? json_object_get(package, "version") : package);
      add_fact(t, name, ".cc", json_object_get(package, "cc"));
      add_fact(t, name, ".has", json_object_get(package, "has"));
    }
  }
  json_decref(j);
  return ok;
}

/* The value of --facts: a file's content where there is such a file, else the string itself. */
static int add_facts(const char *s, cli_str *t) {
  if (access(s, F_OK)) {
    cli_str_add(t, s);
    return CLI_OK;
  }
  cli_str error = {0};
  size_t n;
  char *text = cli_file_read(s, FACTS_MAX, &n, &error);
  bool ok = text != NULL;
  if (ok && n && text[strspn(text, " \t\r\n")] == '{') {
    ok = facts_of_json(text, n, t, &error);
  } else if (ok) {
    while (n && isspace((unsigned char)text[n - 1])) text[--n] = 0;
    for (size_t i = 0; i < n; i++)
      if (text[i] == '\n' || text[i] == '\r') text[i] = ' ';
    cli_str_put(t, text, n);
  }
  if (!ok) cli_usage("--facts", s, "%s", error.s);
  free(text);
  cli_str_free(&error);
  return ok ? CLI_OK : CLI_USAGE;
}

/* "cuda:sm90" -> "cuda", "cc=9.0" (the last digit is the minor one); "hip:gfx942" -> "hip", "arch=gfx942". */
static int split_device(const char *s, int32_t *kind, cli_str *fact) {
  const char *colon = strchr(s, ':');
  *kind = cli_kind_find(s, colon ? (size_t)(colon - s) : strlen(s));
  if (*kind < 0)
    return cli_usage("--device", s,
                     "want cpu, cuda, hip, xpu, mps, xla, hpu, ipu, npu or meta, or cuda:smNN, hip:gfxNNN");
  if (!colon) return CLI_OK;
  const char *arch = colon + 1;
  if (*kind == RAPT_CUDA && !strncmp(arch, "sm", 2)) {
    size_t n = strspn(arch + 2, "0123456789");
    if (n >= 2 && n <= 3 && !arch[2 + n]) {
      cli_str_printf(fact, "cc=%.*s.%c", (int)n - 1, arch + 2, arch[1 + n]);
      return CLI_OK;
    }
  }
  if (*kind == RAPT_HIP && !strncmp(arch, "gfx", 3) && strlen(arch) > 5 && strlen(arch) < 16) {
    cli_str_printf(fact, "arch=%s", arch);
    return CLI_OK;
  }
  return cli_usage("--device", s, "want cuda:smNN (cuda:sm90) or hip:gfxNNN (hip:gfx942) behind the colon");
}

/* This machine's facts where it is of that kind, else the kind alone. */
static int add_machine(int32_t kind, cli_str *facts) {
  rapt_ctx *ctx;
  int rc = cli_ctx_create(NULL, 0, &ctx);
  if (rc) return rc;
  char *text = cli_facts_text(ctx);
  cli_str_add(facts, cli_kind_find(text, strcspn(text, " ")) == kind ? text : cli_kind_name(kind));
  free(text);
  rapt_ctx_destroy(ctx);
  return CLI_OK;
}

/* Takes " KEY=.." out of the facts. */
static void drop_fact(cli_str *facts, const char *key, size_t n) {
  for (char *s = strchr(facts->s, ' '); s; s = strchr(s + 1, ' '))
    if (!strncmp(s + 1, key, n) && s[1 + n] == '=') {
      size_t gone = 1 + strcspn(s + 1, " ");
      memmove(s, s + gone, strlen(s + gone) + 1);
      facts->n -= gone;
      return;
    }
}

/* machine: facts are this machine's, whose keys give way. */
static int add_with(const cli_args *a, bool machine, cli_str *facts) {
  const cli_given *with;
  for (size_t i = 0; (with = cli_args_nth(a, "--with", i)); i++) {
    const char *equal = strchr(with->value, '=');
    if (!equal || strpbrk(with->value, " \t"))
      return cli_usage("--with", with->value, "want KEY=VALUE, as in flash-attn=2.8.3");
    if (machine) drop_fact(facts, with->value, (size_t)(equal - with->value));
  }
  for (size_t i = 0; (with = cli_args_nth(a, "--with", i)); i++) cli_str_printf(facts, " %s", with->value);
  return CLI_OK;
}

int cli_facts_build(const cli_args *a, int32_t problem_kind, cli_str *facts, int32_t *kind) {
  const char *text = cli_args_value(a, "--facts"), *device = cli_args_value(a, "--device");
  cli_str fact = {0};
  *kind = problem_kind;
  int rc = CLI_OK;
  if (text) {
    rc = add_facts(text, facts);
    size_t n = facts->s ? strcspn(facts->s, " \t") : 0;
    *kind = n ? cli_kind_find(facts->s, n) : -1;
    if (!rc && *kind < 0)
      rc = cli_usage("--facts", text, "%swant a device kind first, as in \"cuda cc=9.0 torch=2.13.0\"",
                     access(text, F_OK) ? "no such file, and no facts: " : "");
  }
  if (!rc && device) {
    int32_t named;
    rc = split_device(device, &named, &fact);
    if (!rc && text && named != *kind)
      rc = cli_usage("--device", device, "--facts speaks of %s, want the same kind", cli_kind_name(*kind));
    if (!rc) *kind = named;
  }
  bool machine = !text && !device && cli_args_has(a, "--with");
  if (!rc && machine) rc = add_machine(*kind, facts);
  if (!rc && device && !text) cli_str_add(facts, cli_kind_name(*kind));
  if (!rc && fact.n) cli_str_printf(facts, " %s", fact.s);
  if (!rc) rc = add_with(a, machine, facts);
  cli_str_free(&fact);
  return rc;
}

int cli_ctx_create(const char *facts, uint32_t threads, rapt_ctx **ctx) {
  rapt_ctx_opts opts = RAPT_CTX_OPTS_INIT;
  rapt_reason why = RAPT_REASON_INIT;
  opts.facts = facts && *facts ? facts : NULL;
  opts.max_threads = threads;
  rapt_status st = rapt_ctx_create(&opts, ctx, &why);
  if (st == RAPT_OK) return CLI_OK;
  if (st == RAPT_NOMEM || !why.code) return cli_usage("context", NULL, "%s", cli_status(st));
  return cli_usage_reason(rapt_field_name(why.field), opts.facts, &why);
}
