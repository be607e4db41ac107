/* SPDX-License-Identifier: Apache-2.0 */
/* Legal names in a message, and which of them a misspelt one was meant to be. Only faults come here (E3). */
#include "core/core.h"

#include <string.h>

enum { MAX_WORD = 48 };

static const char more[] = ", and more";

rapti_list rapti_list_begin(char *buf, size_t n) { return (rapti_list){rapti_text_begin(buf, n), false}; }

void rapti_list_add(rapti_list *list, const char *s, size_t n) {
  rapti_text *t = &list->text;
  if (list->cut) return;
  list->cut = t->len + 2 + n + sizeof more > t->n;
  if (list->cut) { rapti_text_put(t, t->len ? more : more + 6); return; }
  if (t->len) rapti_text_put(t, ", ");
  rapti_text_putn(t, s, n);
}

static unsigned least(unsigned a, unsigned b, unsigned c) { return a < b ? (a < c ? a : c) : b < c ? b : c; }

/* Letters to put in, leave out, change or swap with their neighbour to make b of a. */
static unsigned slips_between(const char *a, size_t n, const char *b, size_t m) {
  unsigned rows[3][MAX_WORD + 1];
  for (size_t j = 0; j <= m; j++) rows[0][j] = (unsigned)j;
  for (size_t i = 1; i <= n; i++) {
    unsigned *now = rows[i % 3], *before = rows[(i - 1) % 3], *earlier = rows[(i + 1) % 3];
    now[0] = (unsigned)i;
    for (size_t j = 1; j <= m; j++) {
      now[j] = least(before[j] + 1, now[j - 1] + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped && earlier[j - 2] + 1 < now[j]) now[j] = earlier[j - 2] + 1;
    }
  }
  return rows[n % 3][m];
}

rapti_near rapti_near_begin(const char *word, size_t n) {
  return (rapti_near){word, n, NULL, 0, n < 3 ? 0u : n < 6 ? 1u : 2u};
}

void rapti_near_try(rapti_near *near, const char *s, size_t n) {
  if (near->slips == 0 && !near->best) return;               /* too short to tell */
  if (n > MAX_WORD || near->n > MAX_WORD || n + near->slips < near->n || near->n + near->slips < n) return;
  unsigned slips = slips_between(near->word, near->n, s, n);
  if (slips > near->slips || (near->best && slips == near->slips)) return;
  *near = (rapti_near){near->word, near->n, s, n, slips};
}
