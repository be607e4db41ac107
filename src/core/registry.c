/* SPDX-License-Identifier: Apache-2.0 */
/* The rows a context knows: the built-in ones, then what providers register. A registry never changes: a registration
 * publishes a new one, and what was decided on the old one keeps it. */
#include "core/ctx.h"

#include <string.h>

static const rapt_backend *(*const builtin[])(void) = {
#define RAPTI_BACKEND(name) rapti_backend_##name,
#include "core/backends.def"
#undef RAPTI_BACKEND
};
#define N_BUILTIN (sizeof builtin / sizeof builtin[0])

static rapti_registry *registry_alloc(rapt_ctx *ctx, uint32_t n_backends, uint32_t n_rows) {
  size_t head = rapti_align64(sizeof(rapti_registry)), backends = rapti_align64(n_backends * sizeof(rapt_backend));
  size_t broken = rapti_align64(n_backends * sizeof(char *));
  char *p = rapti_zalloc(ctx, head + backends + broken + n_rows * sizeof(rapti_cap));
  if (!p) return NULL;
  rapti_registry *g = (rapti_registry *)(void *)p;
  atomic_init(&g->refs, 1);
  g->backends = (rapt_backend *)(void *)(p + head);
  g->broken = (const char **)(void *)(p + head + backends);
  g->rows = (rapti_cap *)(void *)(p + head + backends + broken);
  return g;
}

rapti_registry *rapti_registry_get(rapt_ctx *ctx) {
  rapti_ctx_lock(ctx);
  rapti_registry *g = ctx->registry;
  atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
  rapti_ctx_unlock(ctx);
  return g;
}

void rapti_registry_unref(rapt_ctx *ctx, rapti_registry *g) {
  if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) == 1) rapti_free(ctx, g);
}

static int64_t find_id(const rapti_registry *g, const char *id) {
  for (uint32_t i = 0; i < g->n_rows; i++)
    if (strcmp(g->rows[i].row.id, id) == 0) return i;
  return -1;
}

static rapt_status fault(rapt_reason *why, int code, int field, const char *got, const char *want) {
  rapti_reason_set(why, code, field, -1, -1);
  rapti_reason_got(why, "%s", got);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

/* ---- Names that are taken ---- */

/* The built-in backend that has this row; -1: none. */
static int64_t home_of(const char *id) {
  for (size_t i = 0; i < N_BUILTIN; i++)
    for (uint32_t j = 0; j < builtin[i]()->n_rows; j++)
      if (strcmp(builtin[i]()->rows[j].id, id) == 0) return (int64_t)i;
  return -1;
}

static bool same_length(const char *a, size_t n, const char *b) { return strncmp(a, b, n) == 0 && b[n] == '\0'; }

/* Is the id one of rapt's own, or would it stand below or above one: cpu, cpu.avx2, cpu.mine, ref? */
static bool is_own(const rapti_registry *g, const char *id) {
  size_t n = strcspn(id, ".");
  for (uint32_t i = 0; i < g->n_rows; i++) {
    const rapt_row *row = &g->rows[i].row;
    if (row->place == RAPT_PLACE_OWN && strcspn(row->id, ".") == n && strncmp(row->id, id, n) == 0) return true;
  }
  return false;
}

/* May these rows replace that one: is it the same provider again? */
static bool same_provider(const rapt_backend *a, const rapt_backend *b) {
  return a->self == b->self && a->name && b->name && strcmp(a->name, b->name) == 0;
}

static bool has_row(const rapt_backend *b, const char *id) {
  for (uint32_t i = 0; i < b->n_rows; i++)
    if (strcmp(b->rows[i].id, id) == 0) return true;
  return false;
}

/* Does a name of the policy already speak of this row: its id or what is above it, an alias, its display? */
static bool speaks_of(const char *name, size_t n, const rapt_row *row) {
  if (strncmp(name, row->id, n) == 0 && (row->id[n] == '\0' || row->id[n] == '.')) return true;
  if (row->display && same_length(name, n, row->display)) return true;
  for (const char *s = row->aliases; s && *s;) {
    size_t len = strcspn(s, ",");
    if (len == n && memcmp(s, name, n) == 0) return true;
    s += len + (s[len] == ',');
  }
  return false;
}

/* A row of another backend that has the name; rows that the new one replaces or belongs to share theirs. */
static const rapt_row *taken_by(const rapti_registry *g, const rapt_backend *b, const rapt_row *row, const char *name,
                                size_t n) {
  int64_t home = home_of(row->id);
  for (uint32_t i = 0; i < g->n_rows; i++) {
    const rapt_row *other = &g->rows[i].row;
    if (!speaks_of(name, n, other) || has_row(b, other->id)) continue;
    if (home >= 0 && home_of(other->id) == home) continue;
    if (same_provider(&g->backends[g->rows[i].backend], b)) continue;
    return other;
  }
  return NULL;
}

static rapt_status name_fault(const char *name, size_t n, const char *what, const char *owner, rapt_reason *why) {
  rapti_reason_set(why, RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_BACKEND, -1, -1);
  rapti_reason_got(why, "%.*s", (int)n, name);
  rapti_reason_want(why, "another %s: this one belongs to %s", what, owner);
  return RAPT_ARG;
}

static rapt_status row_names_free(const rapti_registry *g, const rapt_backend *b, const rapt_row *row, rapt_reason *why) {
  const rapt_row *owner;
  size_t n = strlen(row->id);
  int64_t at = find_id(g, row->id);
  if (is_own(g, row->id)) return name_fault(row->id, n, "id", "rapt", why);
  if (at >= 0 && g->rows[at].registered && !same_provider(&g->backends[g->rows[at].backend], b))
    return name_fault(row->id, n, "id", g->backends[g->rows[at].backend].name, why);
  if (at < 0 && (owner = taken_by(g, b, row, row->id, n))) return name_fault(row->id, n, "id", owner->id, why);
  const char *display = row->display;
  if (display && strcmp(display, row->id) && (owner = taken_by(g, b, row, display, strlen(display))))
    return name_fault(display, strlen(display), "display name", owner->id, why);
  for (const char *s = row->aliases; s && *s;) {
    n = strcspn(s, ",");
    if ((owner = taken_by(g, b, row, s, n))) return name_fault(s, n, "alias", owner->id, why);
    s += n + (s[n] == ',');
  }
  return RAPT_OK;
}

/* A provider brings names of its own: none that a policy already uses for another backend's rows (D8). */
static rapt_status names_free(const rapti_registry *g, const rapt_backend *b, rapt_reason *why) {
  rapt_status st = RAPT_OK;
  for (uint32_t i = 0; i < b->n_rows && st == RAPT_OK; i++) st = row_names_free(g, b, &b->rows[i], why);
  return st;
}

/* Adds a backend whose texts live long enough. lives: one a row, for ids that are new. */
static rapt_status add_backend(rapti_registry *g, const rapt_backend *b, bool registered, rapti_row_life *lives,
                               rapt_reason *why) {
  uint32_t index = g->n_backends++;
  g->backends[index] = *b;
  for (uint32_t i = 0; i < b->n_rows; i++) {
    rapti_cap cap;
    memset(&cap, 0, sizeof cap);
    rapt_status st = rapti_cap_compile(&b->rows[i], &cap, why);
    if (st != RAPT_OK) return st;
    int64_t at = find_id(g, cap.row.id);
    if (at >= 0 && g->rows[at].backend == index)
      return fault(why, RAPT_CODE_UNKNOWN_NAME, RAPT_FIELD_BACKEND, cap.row.id, "ids that differ within a backend");
    cap.backend = index;
    cap.local = i;
    cap.registered = registered;
    cap.entered = at >= 0 ? g->rows[at].entered : &lives[i].entered;
    g->rows[at >= 0 ? (uint32_t)at : g->n_rows++] = cap;
  }
  return RAPT_OK;
}

/* The text of a failed probe, kept by the context; NULL: it succeeded. */
static const char *probe(rapt_ctx *ctx, const rapt_backend *b, rapt_facts *facts, bool *nomem) {
  if (!b->probe || ctx->what_if) return NULL;          /* a what-if says itself what is there */
  rapt_reason why = RAPT_REASON_INIT;
  rapt_facts tried = *facts;
  tried.open = 1;
  rapt_status st = b->probe(b->self, &tried, &why);
  if (st == RAPT_OK) {
    *facts = tried;
    facts->open = 0;
    return NULL;
  }
  const char *text = why.got[0] ? why.got : rapt_status_name((int32_t)st);
  text = rapti_block_copy(ctx, text, strlen(text));
  *nomem = text == NULL;
  return text;
}

rapt_status rapti_registry_builtin(rapt_ctx *ctx, const rapt_facts *facts, rapti_registry **out, rapt_reason *why) {
  uint32_t n_rows = 0;
  for (size_t i = 0; i < N_BUILTIN; i++) n_rows += builtin[i]()->n_rows;
  rapti_row_life *lives = rapti_block_alloc(ctx, n_rows * sizeof *lives);
  rapti_registry *g = lives ? registry_alloc(ctx, (uint32_t)N_BUILTIN, n_rows) : NULL;
  if (!g) return RAPT_NOMEM;
  rapt_status st = RAPT_OK;
  g->facts = *facts;
  for (size_t i = 0; i < N_BUILTIN && st == RAPT_OK; i++) {
    rapt_backend b = *builtin[i]();
    bool own = b.run != NULL, nomem = false;           /* the others are rows alone: their code is a provider's */
    b.self = &ctx->services;
    st = add_backend(g, &b, own, lives, why);
    lives += b.n_rows;
    if (st == RAPT_OK && own) g->broken[i] = probe(ctx, &b, &g->facts, &nomem);
    if (nomem) st = RAPT_NOMEM;
  }
  if (st == RAPT_OK) {
    rapti_registry_finish(g);
    *out = g;
  } else {
    rapti_registry_unref(ctx, g);
  }
  return st;
}

/* ---- Registration ---- */

#define ROW_TEXTS 14
static void row_texts(const rapt_row *row, const char *out[ROW_TEXTS]) {
  const char *texts[ROW_TEXTS] = {row->id, row->display, row->aliases, row->kernel, row->exactness, row->source,
                                  row->package, row->needs, row->known_bad, row->cc, row->cc_built, row->arch,
                                  row->isa, row->rng};
  memcpy(out, texts, sizeof texts);
}

static bool id_legal(const char *id) {
  if (!id || !*id) return false;
  for (const char *s = id; *s; s++)
    if (!((*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9') || *s == '_' || *s == '.')) return false;
  return true;
}

static rapt_status aliases_check(const rapt_row *row, rapt_reason *why) {
  static const char legal[] = "abcdefghijklmnopqrstuvwxyz0123456789_.-";
  for (const char *s = row->aliases; s; s += s[strcspn(s, ",")] ? strcspn(s, ",") + 1 : 0) {
    size_t n = strspn(s, legal);
    if (n == 0 || (s[n] != ',' && s[n] != '\0'))
      return fault(why, RAPT_CODE_SYNTAX, RAPT_FIELD_BACKEND, row->aliases, "aliases of a-z 0-9 _ . - with commas between");
    if (s[n] == '\0') return RAPT_OK;
  }
  return RAPT_OK;
}

/* Rows of a provider built for a later version are longer: the first says by how much. */
static const rapt_row *row_at(const rapt_backend *b, uint32_t i) {
  return (const rapt_row *)(const void *)((const char *)b->rows + (size_t)i * b->rows[0].struct_size);
}

static rapt_status row_check(const rapt_row *row, rapt_reason *why) {
  rapt_status st = rapti_struct_check(row, sizeof *row, "rapt_row", why);
  if (st != RAPT_OK) return st;
  if (!id_legal(row->id))
    return fault(why, RAPT_CODE_SYNTAX, RAPT_FIELD_BACKEND, row->id ? row->id : "no id", "an id of a-z, 0-9, \".\" and \"_\"");
  if (row->place < RAPT_PLACE_OPT_IN || row->place > RAPT_PLACE_BINDING || row->place == RAPT_PLACE_OWN)
    return fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_BACKEND, row->id, "place first, host, binding or opt-in");
  if (row->n_dims && !row->dims) return fault(why, RAPT_CODE_NULL, RAPT_FIELD_BACKEND, row->id, "the list dims");
  return aliases_check(row, why);
}

static rapt_status backend_check(const rapt_backend *b, rapt_reason *why) {
  rapt_status st = rapti_struct_check(b, sizeof *b, "rapt_backend", why);
  if (st != RAPT_OK) return st;
  if (b->api_version != RAPT_PROVIDER_VERSION) {
    rapti_reason_set(why, RAPT_CODE_VERSION, RAPT_FIELD_BACKEND, -1, -1);
    rapti_reason_got(why, "%lld", (long long)b->api_version);
    rapti_reason_want(why, "%lld", (long long)RAPT_PROVIDER_VERSION);
    return RAPT_ABI;
  }
  if (!b->rows || !b->n_rows) return fault(why, RAPT_CODE_NULL, RAPT_FIELD_BACKEND, "no rows", "one row or more");
  for (uint32_t i = 0; i < b->n_rows; i++) {
    if (row_at(b, i)->struct_size != b->rows[0].struct_size) {
      fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE, "rows of different sizes", "one struct_size");
      return RAPT_ABI;
    }
    st = row_check(row_at(b, i), why);
    if (st != RAPT_OK) return st;
    if (!b->run && row_at(b, i)->place == RAPT_PLACE_FIRST)
      return fault(why, RAPT_CODE_NULL, RAPT_FIELD_RUN, row_at(b, i)->id, "run, for a row of place first");
  }
  return RAPT_OK;
}

static const char *put_text(char **at, const char *s, size_t n) {
  if (!s) return NULL;
  char *copy = *at;
  memcpy(copy, s, n);
  copy[n] = '\0';
  *at += n + 1;
  return copy;
}

static const char *put(char **at, const char *s) { return put_text(at, s, s ? strlen(s) : 0); }

static void copy_row(rapt_row *to, const rapt_row *from, rapt_dims **dims, char **text) {
  memcpy(to, from, sizeof *to);
  to->struct_size = sizeof *to;
  const char **const fields[ROW_TEXTS] = {&to->id, &to->display, &to->aliases, &to->kernel, &to->exactness, &to->source,
                                 &to->package, &to->needs, &to->known_bad, &to->cc, &to->cc_built, &to->arch, &to->isa,
                                 &to->rng};
  for (size_t i = 0; i < ROW_TEXTS; i++) *fields[i] = put(text, *fields[i]);
  if (!to->n_dims) return;
  memcpy(*dims, to->dims, to->n_dims * sizeof **dims);
  to->dims = *dims;
  *dims += to->n_dims;
}

/* One block: row lives, rows, dims, texts. */
static rapti_row_life *copy_backend(rapt_ctx *ctx, const rapt_backend *b, rapt_backend *copy) {
  size_t text = 0, dims = 0, n = b->n_rows;
  for (uint32_t i = 0; i < n; i++) {
    const rapt_row *row = row_at(b, i);
    const char *texts[ROW_TEXTS];
    row_texts(row, texts);
    for (int j = 0; j < ROW_TEXTS; j++) text += texts[j] ? strlen(texts[j]) + 1 : 0;
    dims += row->n_dims;
  }
  const char *name = b->name ? b->name : b->rows[0].id;
  size_t name_len = b->name ? strlen(name) : strcspn(name, ".");
  rapti_row_life *lives = rapti_block_alloc(ctx, n * (sizeof *lives + sizeof(rapt_row)) + dims * sizeof(rapt_dims) +
                                                     text + name_len + 1);
  if (!lives) return NULL;
  rapt_row *rows = (rapt_row *)(void *)(lives + n);
  rapt_dims *dim = (rapt_dims *)(void *)(rows + n);
  char *at = (char *)(dim + dims);
  for (uint32_t i = 0; i < n; i++) copy_row(&rows[i], row_at(b, i), &dim, &at);
  memcpy(copy, b, sizeof *copy);
  copy->struct_size = sizeof *copy;
  copy->rows = rows;
  copy->name = put_text(&at, name, name_len);
  return lives;
}

/* What a probe added on `before` to facts that another registration may have changed since. */
static void facts_merge(rapt_facts *to, const rapt_facts *before, const rapt_facts *after) {
  for (int i = 0; i < RAPTI_PACKAGES; i++)
    if (memcmp(&before->package[i], &after->package[i], sizeof before->package[i])) to->package[i] = after->package[i];
  if (before->cc != after->cc) to->cc = after->cc;
  if (before->mem != after->mem) to->mem = after->mem;
  if (strcmp(before->arch, after->arch)) memcpy(to->arch, after->arch, sizeof to->arch);
  rapti_facts_texts(to);
}

static rapt_status extend(rapt_ctx *ctx, const rapti_registry *old, const rapt_backend *b, rapti_row_life *lives,
                          rapti_registry **out, rapt_reason *why) {
  rapti_registry *g = registry_alloc(ctx, old->n_backends + 1, old->n_rows + b->n_rows);
  if (!g) return RAPT_NOMEM;
  g->n_backends = old->n_backends;
  g->n_rows = old->n_rows;
  g->facts = old->facts;
  g->generation = old->generation + 1;
  memcpy(g->backends, old->backends, old->n_backends * sizeof *old->backends);
  memcpy(g->broken, old->broken, old->n_backends * sizeof *old->broken);
  memcpy(g->rows, old->rows, old->n_rows * sizeof *old->rows);
  rapt_status st = names_free(old, b, why);
  if (st == RAPT_OK) st = add_backend(g, b, true, lives, why);
  if (st == RAPT_OK) {
    rapti_registry_finish(g);
    *out = g;
  } else {
    rapti_registry_unref(ctx, g);
  }
  return st;
}

static bool publish(rapt_ctx *ctx, rapti_registry *old, rapti_registry *g) {
  rapti_ctx_lock(ctx);
  bool first = ctx->registry == old;
  if (first) ctx->registry = g;
  rapti_ctx_unlock(ctx);
  if (first) rapti_registry_unref(ctx, old);           /* the context's own reference */
  return first;
}

rapt_status rapt_backend_register(rapt_ctx *ctx, const rapt_backend *backend, rapt_reason *why) {
  rapti_reason_set(why, RAPT_CODE_NONE, RAPT_FIELD_NONE, -1, -1);
  if (!ctx || !backend)
    return fault(why, RAPT_CODE_NULL, ctx ? RAPT_FIELD_BACKEND : RAPT_FIELD_CTX, "NULL", "a context and a backend");
  rapt_status st = backend_check(backend, why);
  if (st != RAPT_OK) return st;
  rapt_backend copy;
  rapti_row_life *lives = copy_backend(ctx, backend, &copy);
  if (!lives) return RAPT_NOMEM;
  rapt_facts before, after;
  const char *broken = NULL;
  bool probed = false, published = false, nomem = false;
  while (st == RAPT_OK && !published) {
    rapti_registry *old = rapti_registry_get(ctx), *g = NULL;
    st = extend(ctx, old, &copy, lives, &g, why);
    if (st == RAPT_OK && !probed) {                    /* once, and only for rows that are well formed */
      before = after = old->facts;
      broken = probe(ctx, &copy, &after, &nomem);
      probed = true;
    }
    if (nomem) st = RAPT_NOMEM;
    if (st == RAPT_OK) {
      facts_merge(&g->facts, &before, &after);
      g->broken[g->n_backends - 1] = broken;
      published = publish(ctx, old, g);
    }
    if (g && !published) rapti_registry_unref(ctx, g);
    rapti_registry_unref(ctx, old);
  }
  if (published) rapti_cache_clear(ctx);
  return st;
}

/* ---- Looking at rows ---- */

uint32_t rapt_row_count(const rapt_ctx *ctx) {
  rapt_ctx *c = (rapt_ctx *)(uintptr_t)ctx;            /* only the reference count changes */
  if (!c) return 0;
  rapti_registry *g = rapti_registry_get(c);
  uint32_t n = g->n_rows;
  rapti_registry_unref(c, g);
  return n;
}

static void fill_info(const rapti_registry *g, uint32_t i, rapt_row_info *info) {
  const rapti_cap *cap = &g->rows[i];
  info->classes = cap->row.classes;
  info->place = cap->row.place;
  info->rank = cap->row.rank;
  info->id = cap->row.id;
  info->display = rapti_row_display(cap);
  info->kernel = cap->row.kernel ? cap->row.kernel : cap->row.id;
  info->backend = g->backends[cap->backend].name;
  info->entered = atomic_load_explicit(cap->entered, memory_order_relaxed);
}

rapt_status rapt_row_get(const rapt_ctx *ctx, uint32_t i, rapt_row_info *info) {
  rapt_ctx *c = (rapt_ctx *)(uintptr_t)ctx;
  if (!c || !info) return RAPT_ARG;
  rapti_registry *g = rapti_registry_get(c);
  rapt_status st = RAPT_ARG;
  if (i < g->n_rows) {
    rapt_row_info full = RAPT_ROW_INFO_INIT;
    fill_info(g, i, &full);
    st = rapti_struct_give(info, &full, sizeof full);
  }
  rapti_registry_unref(c, g);
  return st;
}

rapt_status rapt_row_enter(rapt_ctx *ctx, uint32_t i) {
  if (!ctx) return RAPT_ARG;
  rapti_registry *g = rapti_registry_get(ctx);
  bool known = i < g->n_rows;
  if (known) atomic_fetch_add_explicit(g->rows[i].entered, 1, memory_order_relaxed);
  rapti_registry_unref(ctx, g);
  return known ? RAPT_OK : RAPT_ARG;
}

/* ---- Hash of the tables (R7) ---- */

static uint64_t mix(uint64_t h, uint64_t w) { return ((h << 5 | h >> 59) ^ w) * UINT64_C(0x9e3779b97f4a7c15); }

static uint64_t mix_text(uint64_t h, const char *s) {
  for (; s && *s; s++) h = mix(h, (unsigned char)*s);
  return mix(h, 256);
}

static uint64_t mix_row(uint64_t h, const rapt_row *row) {
  const char *texts[ROW_TEXTS];
  row_texts(row, texts);
  for (int i = 0; i < ROW_TEXTS; i++) h = mix_text(h, texts[i]);
  h = mix(mix(h, row->can), row->unknown);
  const int64_t numbers[] = {
      row->kinds, row->classes, row->place, row->rank, row->ran_on_hardware, row->dtypes, row->bias_dtypes, row->d_min,
      row->d_max, row->d_step, row->d_unknown_above, row->d_max_backward, row->d_step_backward, row->dv_rule,
      row->dv_max, row->dv_step, row->n_dims, row->max_b, row->max_hq, row->max_sq, row->max_skv, row->min_sq,
      row->min_skv, row->offset_bits, row->ptr_align, row->bias_stride_bytes, row->determinism,
      row->determinism_backward, row->accuracy, row->mem_per_score, row->ftz};
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) h = mix(h, (uint64_t)numbers[i]);
  for (uint32_t i = 0; i < row->n_dims; i++) h = mix(mix(h, (uint64_t)row->dims[i].D), (uint64_t)row->dims[i].Dv);
  return h;
}

uint64_t rapti_registry_hash(const rapti_registry *g) {
  uint64_t h = g->n_rows;
  for (uint32_t i = 0; i < g->n_rows; i++) h = mix_row(mix(h, (uint64_t)g->rows[i].registered), &g->rows[i].row);
  return h ^ h >> 32;
}
