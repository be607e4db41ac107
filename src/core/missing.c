/* SPDX-License-Identifier: Apache-2.0 */
/* Which facts a decision waits for, and which rows would then be in question (D4). */
#include "core/ctx.h"

#include <string.h>

static void add_name(rapti_missing *set, const rapt_facts *facts, const char *name, size_t n) {
  char copy[sizeof set->name[0]];
  if (n == 0 || n >= sizeof copy) return;
  memcpy(copy, name, n);
  copy[n] = '\0';
  for (uint32_t i = 0; i < set->n; i++)
    if (strcmp(set->name[i], copy) == 0) return;
  if (rapt_facts_get(facts, copy) || set->n == sizeof set->name / sizeof set->name[0]) return;
  memcpy(set->name[set->n++], copy, sizeof copy);
}

/* "the fact cc", or a backend's own "cc, cudnn": what is known of them already is not missing. */
static void add_names(rapti_missing *set, const rapt_facts *facts, const char *want) {
  static const char lead[] = "the fact ";
  if (strncmp(want, lead, sizeof lead - 1) == 0) want += sizeof lead - 1;
  while (*want) {
    size_t n = strcspn(want, ", ");
    add_name(set, facts, want, n);
    want += n + strspn(want + n, ", ");
  }
}

/* Does a match fail by the policy alone? A member does where only the row that picks it was named. */
static bool fails_by_policy_alone(const rapti_match *m) {
  for (uint32_t j = 0; j < m->n; j++)
    if (m->reason[j].state == RAPT_FAILED && !rapti_is_policy_code(m->reason[j].code)) return false;
  return true;
}

static bool add_reasons(const rapt_report *r, uint32_t row, rapti_missing *set) {
  const rapti_match *m = &r->matches[row];
  bool picks = false;
  for (uint32_t j = 0; j < m->n; j++) {
    if (m->reason[j].state != RAPT_NOT_EVALUATED) continue;
    rapt_reason reason = RAPT_REASON_INIT;
    rapti_reason_of(&r->d, row, &m->reason[j], &reason);
    if (strcmp(reason.want, RAPTI_WANT_MEMBER) == 0) picks = true;
    else add_names(set, &r->d.registry->facts, reason.want);
  }
  return picks;
}

void rapti_report_missing(const rapt_report *r, uint32_t row, rapti_missing *set) {
  const rapti_cap *rows = r->d.registry->rows;
  if (!add_reasons(r, row, set)) return;
  /* Which member it picks depends on what its members wait for. */
  for (uint32_t i = 0; i < r->d.registry->n_rows; i++)
    if (i != row && rows[i].backend == rows[row].backend && rows[i].row.place == rows[row].row.place &&
        fails_by_policy_alone(&r->matches[i]))
      add_reasons(r, i, set);
}

bool rapti_report_open(const rapt_report *r, uint32_t row) {
  if (!r->has_rows || r->matches[row].can != RAPT_UNDECIDED) return false;
  return r->d.choice.row < 0 || rapti_row_before(&r->d, row, (uint32_t)r->d.choice.row);
}
