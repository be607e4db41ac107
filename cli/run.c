/* SPDX-License-Identifier: Apache-2.0 */
/* rapt run: one call on arrays in files. Sizes and dtypes come from the files, the rest from tokens. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { Q, K, V, MASK, BIAS, SINKS, SLOPES, Q_LEN, KV_LEN, CU_Q, CU_K, Q_OFFSET, INPUTS, OUT = INPUTS, LSE, ARRAYS };

typedef struct run_array {
  const char *option, *name;
  int32_t field;
  size_t buffer;
} run_array;
#define BUFFER(name) offsetof(rapt_buffers, name)
static const run_array arrays[ARRAYS] = {
    {"--q", "q", RAPT_FIELD_Q, BUFFER(q)},
    {"--k", "k", RAPT_FIELD_K, BUFFER(k)},
    {"--v", "v", RAPT_FIELD_V, BUFFER(v)},
    {"--mask", "mask", RAPT_FIELD_MASK, BUFFER(mask)},
    {"--bias", "bias", RAPT_FIELD_BIAS, BUFFER(bias)},
    {"--sinks", "sinks", RAPT_FIELD_SINKS, BUFFER(sinks)},
    {"--slopes", "slopes", RAPT_FIELD_SLOPES, BUFFER(slopes)},
    {"--q-len", "q_len", RAPT_FIELD_Q_LEN, BUFFER(q_len)},
    {"--kv-len", "kv_len", RAPT_FIELD_KV_LEN, BUFFER(kv_len)},
    {"--cu-q", "cu_q", RAPT_FIELD_CU_Q, BUFFER(cu_q)},
    {"--cu-k", "cu_k", RAPT_FIELD_CU_K, BUFFER(cu_k)},
    {"--q-offset", "q_offset", RAPT_FIELD_Q_OFFSET, BUFFER(q_offset)},
    {"--out", "out", RAPT_FIELD_OUT, BUFFER(out)},
    {"--lse", "lse", RAPT_FIELD_LSE, BUFFER(lse)},
};
static const cli_option options[] = {
    {"--q", CLI_VALUE},      {"--k", CLI_VALUE},     {"--v", CLI_VALUE},      {"--mask", CLI_VALUE},
    {"--bias", CLI_VALUE},   {"--sinks", CLI_VALUE}, {"--slopes", CLI_VALUE}, {"--q-len", CLI_VALUE},
    {"--kv-len", CLI_VALUE}, {"--cu-q", CLI_VALUE},  {"--cu-k", CLI_VALUE},   {"--q-offset", CLI_VALUE},
    {"--out", CLI_VALUE},    {"--lse", CLI_VALUE},   {"--seed", CLI_VALUE},   {"--offset", CLI_VALUE},
    {"--dout", CLI_VALUE},   {"--dlse", CLI_VALUE},  {"--dq", CLI_VALUE},     {"--dk", CLI_VALUE},
    {"--dv", CLI_VALUE},     {"--dbias", CLI_VALUE}, {"--dsinks", CLI_VALUE},
};
static const char *const later[] = {"--dout", "--dlse", "--dq", "--dk", "--dv", "--dbias", "--dsinks"};

typedef struct run {
  cli_args args;
  cli_place place[ARRAYS];
  cli_array array[ARRAYS];
  rapt_tensor tensor[ARRAYS];    /* the arrays on their logical axes */
  char *tokens;
  bool packed, one_file;         /* one_file: out and lse go into one .safetensors file */
  cli_problem problem;
  rapt_buffers buffers;
} run;

/* ---- Tokens ---- */

/* What the files say must not be said a second time. */
static int check_token(const char *w) {
  static const char *const said[] = {"mask=", "bias=", "sinks=", "alibi=", "qlen=", "kvlen="};
  for (size_t i = 0; i < CLI_COUNT(said); i++)
    if (!strncmp(w, said[i], strlen(said[i])))
      return cli_usage("TOKEN", w, "comes from the file of that array, leave it out");
  if (!strcmp(w, "lse")) return cli_usage("TOKEN", w, "want --lse FILE instead");
  if (strchr("bhqkd", *w) && isdigit((unsigned char)w[1]))
    return cli_usage("TOKEN", w, "sizes come from the files, leave it out");
  const char *st = strstr(w, ".st=");
  if (st && st < w + 8 && !isalpha((unsigned char)st[4]))
    return cli_usage("TOKEN", w, "strides come from the files, want an axis order as in q.st=bshd");
  return CLI_OK;
}

static int join_tokens(run *r) {
  cli_str t = {0};
  int rc = CLI_OK;
  cli_str_add(&t, "");
  for (size_t i = 0; i < r->args.n_words && !rc; i++) {
    char *copy = cli_alloc(strlen(r->args.words[i]) + 1, 1), *state = NULL;
    strcpy(copy, r->args.words[i]);
    for (char *w = strtok_r(copy, " \t", &state); w && !rc; w = strtok_r(NULL, " \t", &state)) {
      rc = check_token(w);
      cli_str_printf(&t, " %s", w);
    }
    free(copy);
  }
  r->tokens = t.s;
  return rc;
}

/* The value of a token, "" where it is not there. */
static void token_value(const char *tokens, const char *key, char *value, size_t n) {
  size_t m = strlen(key);
  *value = 0;
  for (const char *s = strchr(tokens, ' '); s; s = strchr(s + 1, ' '))
    if (!strncmp(s + 1, key, m)) snprintf(value, n, "%.*s", (int)strcspn(s + 1 + m, " "), s + 1 + m);
}

/* The axis order of a tensor: its own token, layout=, the default. lse has the order bhs, packed hs. */
static void axis_order(const run *r, int i, char order[8]) {
  char key[16];
  snprintf(key, sizeof key, "%s.st=", arrays[i].name);
  token_value(r->tokens, key, order, 8);
  if (i == LSE && !*order) strcpy(order, r->packed ? "hs" : "bhs");
  if (!*order) token_value(r->tokens, "layout=", order, 8);
  if (!*order) strcpy(order, r->packed ? "shd" : "bhsd");
}

/* ---- Inputs ---- */

static int read_inputs(run *r) {
  for (int i = 0; i < ARRAYS; i++) {
    const char *text = cli_args_value(&r->args, arrays[i].option);
    cli_str error = {0};
    if (!text) {
      if (i <= V || i == OUT)
        return cli_usage(arrays[i].option, NULL, "is missing, want FILE.npy or FILE.safetensors[:TENSOR]");
      continue;
    }
    if (!cli_place_parse(text, arrays[i].name, &r->place[i], &error) ||
        (i < INPUTS && !cli_place_read(&r->place[i], &r->array[i], &error))) {
      cli_usage(arrays[i].option, text, "%s", error.s);
      cli_str_free(&error);
      return CLI_USAGE;
    }
  }
  r->packed = r->array[CU_Q].dtype || r->array[CU_K].dtype;
  return CLI_OK;
}

/* The tensor on the axes b h s d (rank 4), from the file's axes in the order of its letters; a missing b is 1. */
static int arrange(run *r, int i) {
  const cli_array *a = &r->array[i];
  rapt_tensor *t = &r->tensor[i];
  char order[8];
  axis_order(r, i, order);
  const char *o = order;
  if (*o == 'b' && (size_t)a->rank + 1 == strlen(o)) o++;
  if ((size_t)a->rank != strlen(o))
    return cli_usage(arrays[i].option, cli_args_value(&r->args, arrays[i].option),
                     "has %d axes, want %zu in the order %s", a->rank, strlen(order), order);
  if (a->rank != r->array[Q].rank)                             /* S3 */
    return cli_usage(arrays[i].option, cli_args_value(&r->args, arrays[i].option), "has %d axes, --q has %d, want one rank",
                     a->rank, r->array[Q].rank);
  *t = (rapt_tensor){.dtype = a->dtype, .rank = 4, .size = {1, 1, 1, 1}};
  for (int axis = 0; axis < a->rank; axis++) {
    const char *letter = strchr("bhsd", o[axis]);
    if (!letter) return cli_usage("layout", order, "want an order of the axes b h s d");
    t->size[letter - "bhsd"] = a->size[axis];
    t->stride[letter - "bhsd"] = a->stride[axis];
  }
  return CLI_OK;
}

static int check_vector(const run *r, int i, int64_t want) {
  const cli_array *a = &r->array[i];
  if (!a->dtype) return CLI_OK;
  const char *text = cli_args_value(&r->args, arrays[i].option);
  if (a->dtype != RAPT_INT64 && (i == Q_OFFSET || a->dtype != RAPT_INT32))
    return cli_usage(arrays[i].option, text, "is %s, want int64%s", rapt_dtype_name(a->dtype),
                     i == Q_OFFSET ? "" : " or int32");
  if (a->rank != 1 || a->size[0] != want)
    return cli_usage(arrays[i].option, text, "has %d axes and %lld elements, want one axis of %lld", a->rank,
                     (long long)(a->rank ? a->size[0] : 1), (long long)want);
  return CLI_OK;
}

static void plain_tensor(const cli_array *a, rapt_tensor *t) {
  *t = (rapt_tensor){.dtype = a->dtype, .rank = a->rank};
  memcpy(t->size, a->size, sizeof t->size);
  memcpy(t->stride, a->stride, sizeof t->stride);
}

/* ---- The problem ---- */

/* The tokens behind what the files say, one by one, so that a fault is one token's. */
static int parse_tokens(run *r, cli_str *t) {
  rapt_reason why = RAPT_REASON_INIT;
  int rc = CLI_OK;
  for (const char *s = r->tokens; *s && !rc; s += 1 + strcspn(s + 1, " ")) {
    size_t n = 1 + strcspn(s + 1, " ");
    rapt_problem p = RAPT_PROBLEM_INIT;
    cli_str_put(t, s, n);
    char *names = cli_alloc(t->n + 1, 1), *word = cli_alloc(n, 1);
    memcpy(word, s + 1, n - 1);
    if (rapt_problem_parse(t->s, t->n, &p, names, t->n + 1, &why) != RAPT_OK)
      rc = cli_usage_reason("TOKEN", word, &why);
    free(word);
    free(names);
  }
  return rc ? rc : cli_problem_parse(&r->problem, "TOKEN", t->s);
}

static int parse_problem(run *r) {
  const rapt_tensor *q = &r->tensor[Q], *k = &r->tensor[K], *v = &r->tensor[V];
  int64_t batch = r->packed ? r->array[CU_Q].size[0] - 1 : q->size[0];
  cli_str t = {0};
  cli_str_printf(&t, "%s/%s/%s b%lld h%lld/%lld q%lld k%lld d%lld/%lld", rapt_dtype_name(q->dtype),
                 rapt_dtype_name(k->dtype), rapt_dtype_name(v->dtype), (long long)batch, (long long)q->size[1],
                 (long long)k->size[1], (long long)q->size[2], (long long)k->size[2], (long long)q->size[3],
                 (long long)v->size[3]);
  if (r->packed && !strstr(r->tokens, " packed="))
    cli_str_printf(&t, " packed=%s", rapt_dtype_name(r->array[CU_Q].dtype));
  if (r->place[LSE].path) cli_str_add(&t, " lse");
  int rc = parse_tokens(r, &t);
  cli_str_free(&t);
  return rc;
}

static void set_strides(rapt_problem *p, int32_t field, const rapt_tensor *t) {
  rapt_desc *d = &p->q + (field - RAPT_FIELD_Q);
  memcpy(d->stride, t->stride, sizeof d->stride);
  p->has |= RAPT_HAS_Q_STRIDES << (field - RAPT_FIELD_Q);
}

/* Sizes, strides and optional arrays. *why is set where the call is a fault already here. */
static rapt_status fill_problem(run *r, rapt_reason *why) {
  rapt_problem *p = &r->problem.p;
  rapt_tensor t;
  rapt_status st = RAPT_OK;
  for (int i = Q; i <= V; i++) {
    r->tensor[i].kind = p->device;
    r->tensor[i].index = p->device_index;
    if (r->packed) set_strides(p, arrays[i].field, &r->tensor[i]);
  }
  if (!r->packed) st = rapt_problem_set_qkv(p, &r->tensor[Q], &r->tensor[K], &r->tensor[V], why);
  for (int i = MASK; i <= BIAS && st == RAPT_OK; i++) {
    if (!r->array[i].dtype) continue;
    plain_tensor(&r->array[i], &t);
    t.kind = p->device;
    t.index = p->device_index;
    st = i == MASK ? rapt_problem_set_mask(p, &t, why) : rapt_problem_set_bias(p, &t, why);
  }
  p->sinks.dtype = r->array[SINKS].dtype;
  p->sinks.size[0] = r->array[SINKS].size[0];
  const cli_array *slopes = &r->array[SLOPES];
  p->slopes.dtype = slopes->dtype;
  p->slopes.size[0] = slopes->rank == 2 ? slopes->size[0] : slopes->dtype ? 1 : 0;
  p->slopes.size[1] = slopes->rank == 2 ? slopes->size[1] : slopes->size[0];
  p->q_len = r->array[Q_LEN].dtype;
  p->kv_len = r->array[KV_LEN].dtype;
  return st;
}

static int check_vectors(const run *r) {
  const rapt_problem *p = &r->problem.p;
  for (int i = Q_LEN; i <= KV_LEN; i++)
    if (check_vector(r, i, p->B)) return CLI_USAGE;
  if (r->packed && (!r->array[CU_Q].dtype || !r->array[CU_K].dtype))
    return cli_usage(r->array[CU_Q].dtype ? "--cu-k" : "--cu-q", NULL, "is missing, a packed call has both");
  if (r->packed && r->array[CU_Q].dtype != r->array[CU_K].dtype)
    return cli_usage("--cu-k", cli_args_value(&r->args, "--cu-k"), "is %s, want %s as --cu-q",
                     rapt_dtype_name(r->array[CU_K].dtype), rapt_dtype_name(r->array[CU_Q].dtype));
  for (int i = CU_Q; i <= CU_K; i++)
    if (check_vector(r, i, p->B + 1)) return CLI_USAGE;
  bool array = p->alignment == RAPT_OFFSET_ARRAY;
  if (array != (r->array[Q_OFFSET].dtype != 0))
    return cli_usage("--q-offset", NULL,
                     array ? "is missing, off:int64 reads it" : "needs causal=off:int64 or align=off:int64");
  const cli_array *s = &r->array[SLOPES];
  if (r->array[SINKS].dtype && r->array[SINKS].rank != 1)
    return cli_usage("--sinks", cli_args_value(&r->args, "--sinks"), "has %d axes, want one", r->array[SINKS].rank);
  if (s->dtype && (s->rank < 1 || s->rank > 2 || (s->rank == 2 && s->stride[1] != 1)))
    return cli_usage("--slopes", cli_args_value(&r->args, "--slopes"), "want one axis, or two in C order");
  return check_vector(r, Q_OFFSET, p->B);
}

/* ---- Outputs ---- */

/* An array in the file's axis order, and its strides in the problem. */
static int make_output(run *r, int i, rapt_reason *why) {
  rapt_tensor t;
  if (rapt_problem_output(&r->problem.p, arrays[i].field, &t, why) != RAPT_OK) return CLI_FAILED;
  if (!r->place[i].safetensors && !cli_npy_has_dtype(t.dtype))
    return cli_usage(arrays[i].option, cli_args_value(&r->args, arrays[i].option),
                     "is %s, for which .npy has no type: name a .safetensors file", rapt_dtype_name(t.dtype));
  const rapt_problem *p = &r->problem.p;
  char order[8];
  axis_order(r, i, order);
  const char *o = order;
  if (*o == 'b' && (size_t)r->array[Q].rank + 1 == strlen(i == LSE ? "bhsd" : order)) o++;   /* q came without b */
  int64_t all[4] = {p->B, p->Hq, p->Sq, p->Dv}, size[8] = {0};
  int rank = 0;
  for (; o[rank]; rank++) {
    if (!strchr("bhsd", o[rank])) return cli_usage("layout", order, "want an order of the axes b h s d");
    size[rank] = all[strchr("bhsd", o[rank]) - "bhsd"];
  }
  if (!cli_array_make(&r->array[i], t.dtype, rank, size))
    return cli_usage(arrays[i].option, NULL, "memory for it cannot be had");
  rapt_tensor logical = {0};
  for (int axis = 0; axis < rank; axis++) logical.stride[strchr("bhsd", o[axis]) - "bhsd"] = r->array[i].stride[axis];
  set_strides(&r->problem.p, arrays[i].field, &logical);
  return CLI_OK;
}

static int write_outputs(run *r) {
  cli_str error = {0};
  int failed = -1;
  for (int i = OUT; i <= LSE && failed < 0; i++) {
    if (!r->array[i].dtype || (r->one_file && i == LSE)) continue;
    if (!r->place[i].safetensors) {
      if (!cli_npy_write(r->place[i].path, &r->array[i], &error)) failed = i;
      continue;
    }
    cli_named named[2] = {{r->place[i].tensor, &r->array[i]}, {r->place[LSE].tensor, &r->array[LSE]}};
    if (!cli_safetensors_write(r->place[i].path, named, r->one_file ? 2 : 1, &error)) failed = i;
  }
  if (failed >= 0) cli_usage(arrays[failed].option, r->place[failed].path, "%s", error.s);
  cli_str_free(&error);
  return failed >= 0 ? CLI_USAGE : CLI_OK;
}

/* An output takes the place of no input, and of the other output only as another tensor of one file. */
static int check_places(run *r) {
  for (int o = OUT; o <= LSE; o++)
    for (int i = 0; i < INPUTS && r->place[o].path; i++)
      if (r->place[i].path && cli_same_file(r->place[o].path, r->place[i].path))
        return cli_usage(arrays[o].option, r->place[o].path, "is the file of %s, which it would overwrite",
                         arrays[i].option);
  if (!r->place[LSE].path || !cli_same_file(r->place[OUT].path, r->place[LSE].path)) return CLI_OK;
  r->one_file = true;
  if (!r->place[OUT].safetensors || !r->place[LSE].safetensors || !strcmp(r->place[OUT].tensor, r->place[LSE].tensor))
    return cli_usage("--lse", r->place[LSE].path, "is the place of --out, want another file or tensor");
  return CLI_OK;
}

/* ---- The verb ---- */

static int refused(const rapt_report *report, rapt_status st) {
  if (!report) return cli_usage("call", NULL, "%s", cli_status(st));
  cli_report_print(report, cli_out_json() ? RAPT_FORM_JSON : RAPT_FORM_BRIEF);
  return CLI_FAILED;
}

static void say_what_ran(const run *r, const rapt_report *report) {
  rapt_decision d = RAPT_DECISION_INIT;
  cli_str words = {0};
  char *text = cli_problem_text(&r->problem.p);
  rapt_report_decision(report, &d);
  cli_decision_words(&d, &words);
  cli_notice("%s -> %s", text, words.s);
  if (cli_out_json()) cli_report_print(report, RAPT_FORM_JSON);
  cli_str_free(&words);
  free(text);
}

static int call(run *r) {
  rapt_ctx *ctx;
  rapt_report *report = NULL;
  rapt_reason why = RAPT_REASON_INIT;
  int rc = cli_ctx_create(NULL, 0, &ctx);
  if (rc) return rc;
  rapt_status st = fill_problem(r, &why);
  if (st == RAPT_OK) rc = check_vectors(r);
  if (!rc && st == RAPT_OK) rc = make_output(r, OUT, &why);
  if (!rc && st == RAPT_OK && r->place[LSE].path) rc = make_output(r, LSE, &why);
  if (st != RAPT_OK || rc == CLI_FAILED) rc = cli_fault(ctx, "the arrays of these files", &why);
  if (!rc) {
    for (int i = 0; i < ARRAYS; i++)
      if (r->array[i].dtype) memcpy((char *)&r->buffers + arrays[i].buffer, &r->array[i].data, sizeof(void *));
    st = rapt_attention(ctx, &r->problem.p, &r->buffers, &report);
    if (st != RAPT_OK) rc = refused(report, st);
    else if (!(rc = write_outputs(r))) say_what_ran(r, report);
  }
  rapt_report_destroy(report);
  rapt_ctx_destroy(ctx);
  return rc;
}

static int number(const cli_args *a, const char *name, uint64_t *value) {
  const char *s = cli_args_value(a, name);
  char *end;
  if (!s) return CLI_OK;
  errno = 0;
  *value = strtoull(s, &end, 10);
  if (errno || !isdigit((unsigned char)*s) || *end) return cli_usage(name, s, "want a whole number from 0 to 2^64-1");
  return CLI_OK;
}

int cli_run(int argc, char **argv) {
  run *r = cli_alloc(1, sizeof *r);
  r->buffers.struct_size = (uint32_t)sizeof r->buffers;
  int rc = cli_args_parse(&r->args, options, CLI_COUNT(options), argc, argv);
  for (size_t i = 0; i < CLI_COUNT(later) && !rc; i++)
    if (cli_args_has(&r->args, later[i]))
      rc = cli_usage(later[i], cli_args_value(&r->args, later[i]), "not in this version");
  if (!rc) rc = number(&r->args, "--seed", &r->buffers.seed);
  if (!rc) rc = number(&r->args, "--offset", &r->buffers.offset);
  if (!rc) rc = join_tokens(r);
  if (!rc) rc = read_inputs(r);
  if (!rc) rc = check_places(r);
  for (int i = Q; i <= V && !rc; i++) rc = arrange(r, i);
  if (!rc && r->packed && r->array[CU_Q].rank != 1)
    rc = cli_usage("--cu-q", cli_args_value(&r->args, "--cu-q"), "has %d axes, want one", r->array[CU_Q].rank);
  if (!rc) rc = parse_problem(r);
  if (!rc) rc = call(r);
  for (int i = 0; i < ARRAYS; i++) {
    cli_array_free(&r->array[i]);
    cli_place_free(&r->place[i]);
  }
  cli_problem_free(&r->problem);
  cli_args_free(&r->args);
  free(r->tokens);
  free(r);
  return rc;
}
