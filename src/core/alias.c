/* SPDX-License-Identifier: Apache-2.0 */
/* Names of backends in canonical problem strings (docs/api.md sections 2 and 6). */
#include "core/alias.h"

#include "core/backend.h"

#include <string.h>

typedef struct piece { const char *text; size_t n; } piece;

/* Next item of a comma separated list; false at its end. */
static bool next_piece(const char **rest, piece *item) {
  while (**rest == ',') (*rest)++;
  item->text = *rest;
  item->n = strcspn(*rest, ",");
  *rest += item->n;
  return item->n > 0;
}

static int compare(piece a, piece b) {
  int order = memcmp(a.text, b.text, a.n < b.n ? a.n : b.n);
  return order ? order : a.n < b.n ? -1 : a.n > b.n;
}

static bool equals(piece a, const char *text) { return text && !strncmp(text, a.text, a.n) && text[a.n] == '\0'; }

/* prefix means id: equal, or id goes on with a dot. */
static bool covers(piece prefix, const char *id) {
  return !strncmp(id, prefix.text, prefix.n) && (id[prefix.n] == '\0' || id[prefix.n] == '.');
}

static bool in_list(piece name, const char *list) {
  piece item;
  while (list && next_piece(&list, &item))
    if (compare(item, name) == 0) return true;
  return false;
}

typedef const rapt_backend *(*backend_getter)(void);
static const backend_getter getters[] = {
#define RAPTI_BACKEND(name) rapti_backend_##name,
#include "core/backends.def"
#undef RAPTI_BACKEND
};

typedef enum meaning { AS_ID = 0, AS_ALIAS, AS_DISPLAY, MEANINGS } meaning;

static bool means(piece name, const rapt_row *row, meaning how) {
  if (how == AS_ID) return covers(name, row->id);
  return how == AS_ALIAS ? in_list(name, row->aliases) : equals(name, row->display);
}

/* Calls visit for every built-in row. */
typedef struct walk {
  piece name;
  meaning how;
  uint32_t n;              /* rows that name means */
  piece common;            /* the longest dotted prefix of their ids */
  uint32_t n_common;       /* rows under that prefix */
  rapti_text *out;         /* NULL: count only */
} walk;

/* Shortens a dotted prefix until it covers id too. */
static piece shorten(piece prefix, const char *id) {
  while (prefix.n && !covers(prefix, id)) {
    do prefix.n--; while (prefix.n && prefix.text[prefix.n] != '.');
  }
  return prefix;
}

static void each_row(walk *w, void (*visit)(walk *w, const rapt_row *row)) {
  for (size_t i = 0; i < sizeof getters / sizeof getters[0]; i++) {
    const rapt_backend *b = getters[i]();
    for (uint32_t j = 0; b && j < b->n_rows; j++) visit(w, &b->rows[j]);
  }
}

static void count_meaning(walk *w, const rapt_row *row) {
  if (!means(w->name, row, w->how)) return;
  w->common = w->n ? shorten(w->common, row->id) : (piece){row->id, strlen(row->id)};
  w->n++;
}

static void count_common(walk *w, const rapt_row *row) { w->n_common += w->common.n && covers(w->common, row->id); }

static void put_id(walk *w, const rapt_row *row) {
  if (!means(w->name, row, w->how)) return;
  if (w->n++) rapti_text_putc(w->out, ',');
  rapti_text_put(w->out, row->id);
}

/* Only characters of a NAME: what else a caller passed could not be read back. */
static void put_plain(rapti_text *t, piece name) {
  for (size_t i = 0; i < name.n; i++) {
    char c = name.text[i];
    bool legal = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == ':';
    rapti_text_putc(t, legal ? c : '?');
  }
}

static void put_name(rapti_text *t, piece name) {
  walk w = {.name = name, .out = t};
  for (w.how = AS_ID; w.how < MEANINGS; w.how = (meaning)(w.how + 1)) {
    each_row(&w, count_meaning);
    if (w.n) break;
  }
  if (w.n == 0 || w.how == AS_ID) { put_plain(t, name); return; }
  each_row(&w, count_common);
  if (w.n_common == w.n) { rapti_text_putn(t, w.common.text, w.common.n); return; }
  w.n = 0;
  each_row(&w, put_id);
}

/* The smallest name of the list above `after` (NULL text: the smallest of all). */
static bool next_sorted(const char *list, piece after, piece *found) {
  piece item;
  found->text = NULL;
  while (next_piece(&list, &item)) {
    if (after.text && compare(item, after) <= 0) continue;
    if (!found->text || compare(item, *found) < 0) *found = item;
  }
  return found->text != NULL;
}

void rapti_put_names(rapti_text *t, const char *lead, const char *names, bool sorted) {
  char ids[4096];
  rapti_text u = rapti_text_begin(ids, sizeof ids);
  piece item, last = {NULL, 0};
  if (!names) return;
  for (const char *rest = names; next_piece(&rest, &item);) {
    if (u.len) rapti_text_putc(&u, ',');
    put_name(&u, item);
  }
  if (u.len == 0) return;
  rapti_text_put(t, lead);
  if (!sorted) { rapti_text_put(t, ids); return; }
  for (; next_sorted(ids, last, &item); last = item) {
    if (last.text) rapti_text_putc(t, ',');
    rapti_text_putn(t, item.text, item.n);
  }
}
