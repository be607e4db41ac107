/* SPDX-License-Identifier: Apache-2.0 */
/* Should run: a total order over the rows, and the first in it that can (D3, docs/api.md section 7). */
#include "core/decide.h"

/* ---- Ranking without prefer ---- */

typedef enum stage { FIRST, OWN, HOST, OPT_IN, REFERENCE } stage;

/* Provider rows registered to be first; own kernels; host rows; those that take part only when named; the reference is
 * always last (D14). */
static stage stage_of(const rapt_row *row) {
  if (row->classes & RAPT_CLASS_REFERENCE && row->place == RAPT_PLACE_OWN) return REFERENCE;
  switch (row->place) {
    case RAPT_PLACE_FIRST: return FIRST;
    case RAPT_PLACE_OWN: return OWN;
    case RAPT_PLACE_HOST: return HOST;
    default: return OPT_IN;
  }
}

/* a before b: among own kernels the wider level, among opt-in rows the lower rank. Equal ones keep table order. */
static bool before(const rapti_cap *a, const rapti_cap *b) {
  stage sa = stage_of(&a->row), sb = stage_of(&b->row);
  if (sa != sb) return sa < sb;
  if (sa == OWN) return a->isa > b->isa;
  return sa == OPT_IN && a->row.rank < b->row.rank;
}

void rapti_registry_finish(rapti_registry *g) {
  g->first_ranked = 0;
  for (uint32_t i = 0; i < g->n_rows; i++) {
    uint32_t *link = &g->first_ranked;
    while (*link && !before(&g->rows[i], &g->rows[*link - 1])) link = &g->rows[*link - 1].next_ranked;
    g->rows[i].next_ranked = *link;
    *link = i + 1;
  }
}

/* ---- Walking the order ---- */

typedef struct walk {
  const rapti_registry *g;
  const rapti_request *r;
  const rapti_policy *policy;
  rapti_match *matches;
  rapti_needs needs;
  rapti_match scratch;
  bool undecided;
  const rapti_name *ban;      /* the first ban that alone kept a better row from running */
} walk;

uint32_t rapti_prefer_rank(const rapti_registry *g, uint32_t row, const rapti_request *r, const rapti_policy *policy) {
  const rapti_name_set *prefer = &policy->prefer;
  const rapt_row *self = &g->rows[row].row;
  uint32_t classes = self->classes;
  bool by_class = false;                    /* only a class name needs the member, which may cost a few checks */
  for (uint32_t i = 0; i < prefer->n; i++) by_class |= prefer->name[i].kind == RAPTI_NAME_CLASS;
  if (by_class) classes |= g->rows[rapti_member_row(g, row, r)].row.classes;
  const rapti_name *name = rapti_names_find(prefer, self, classes, false);
  return name ? (uint32_t)(name - prefer->name) : prefer->n;
}

static const rapti_match *match_of(walk *w, uint32_t row) {
  if (w->matches) return &w->matches[row];
  rapti_match_with(w->g, row, w->r, &w->needs, w->policy, true, &w->scratch, NULL);
  return &w->scratch;
}

static void note_ban(walk *w, uint32_t row, const rapti_match *m) {
  uint32_t i = 0;
  while (i < m->n && m->reason[i].state != RAPT_FAILED) i++;
  if (w->ban || i == m->n || m->reason[i].code != RAPT_CODE_FORBIDDEN) return;
  const rapt_row *self = &w->g->rows[row].row, *member = &w->g->rows[m->effective].row;
  w->ban = rapti_names_find(&w->policy->forbid, self, self->classes | member->classes, false);
  if (!w->ban) w->ban = rapti_names_find(&w->policy->forbid, member, 0, false);
}

static bool can_run(walk *w, uint32_t row) {
  const rapti_match *m = match_of(w, row);
  if (m->can == RAPT_UNDECIDED) w->undecided = true;
  if (m->can == RAPT_UNABLE && w->policy->forbid.n) note_ban(w, row, m);
  return m->can == RAPT_ABLE;
}

/* The first row that can run among those with this preference. */
static int32_t first_of(walk *w, uint32_t wanted) {
  for (uint32_t at = w->g->first_ranked; at; at = w->g->rows[at - 1].next_ranked) {
    uint32_t row = at - 1;
    if (w->policy->prefer.n && rapti_prefer_rank(w->g, row, w->r, w->policy) != wanted) continue;
    if (can_run(w, row)) return (int32_t)row;
  }
  return -1;
}

static int32_t deciding_level(const walk *w, uint32_t preferred) {
  if (preferred < w->policy->prefer.n) return w->policy->prefer_level;
  if (w->policy->require.n) return w->policy->require_level;
  return w->ban ? w->ban->level : RAPTI_BUILTIN;
}

void rapti_select(const rapti_registry *g, const rapti_request *r, const rapti_policy *policy, rapti_match *matches,
                  rapti_choice *choice) {
  walk w;
  w.g = g;
  w.r = r;
  w.policy = policy;
  w.matches = matches;
  w.undecided = false;
  w.ban = NULL;
  rapti_needs_make(r, &w.needs);
  for (uint32_t i = 0; matches && i < g->n_rows; i++)
    rapti_match_with(g, i, r, &w.needs, policy, false, &matches[i], NULL);
  uint32_t preferred = 0;
  int32_t row = -1;
  for (; preferred <= policy->prefer.n; preferred++)
    if ((row = first_of(&w, preferred)) >= 0) break;
  *choice = (rapti_choice){.row = row, .level = RAPTI_BUILTIN, .undecided = w.undecided};
  if (row < 0) return;
  choice->level = deciding_level(&w, preferred);
  choice->fallback = policy->prefer.n && preferred > 0;
  const rapti_cap *cap = &g->rows[row];
  const rapt_backend *b = &g->backends[cap->backend];
  if (b->workspace) choice->workspace = b->workspace(b->self, cap->local, &r->cast, policy->threads);
}
