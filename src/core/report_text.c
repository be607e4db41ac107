/* SPDX-License-Identifier: Apache-2.0 */
/* A report for a person: the decision first, then why better rows were passed over, then every row with every
 * reason (R2, R3, E3). */
#include "core/ctx.h"

#include <string.h>

#define ROOM 5120                         /* of a problem string or a sentence */

static void put_problem(const rapt_report *r, rapti_text *t) {
  char problem[ROOM];
  rapt_problem_format(&r->d.problem, problem, sizeof problem);
  rapti_text_put(t, problem);
}

static void put_label(rapti_text *t, const char *label) {
  rapti_text_put(t, "  ");
  rapti_text_put(t, label);
  for (size_t n = strlen(label); n < 11; n++) rapti_text_putc(t, ' ');
}

static void put_bytes(rapti_text *t, uint64_t bytes) {
  rapti_text_uint(t, bytes);
  rapti_text_put(t, bytes == 1 ? " byte" : " bytes");
}

/* Before a call nothing "uses" anything (R3). */
static void headline(const rapt_report *r, rapti_text *t) {
  const rapti_cap *cap = r->has_rows ? rapti_chosen(&r->d) : NULL;
  bool ran = cap && r->ran;
  if (r->bare) {
    rapti_text_put(t, rapt_status_name((int32_t)r->status));
    rapti_text_put(t, " before a problem could be read\n");
    return;
  }
  if (r->has_error) {
    rapti_text_put(t, rapt_status_name((int32_t)r->status));
    rapti_text_put(t, ran ? " from " : " for ");
    if (ran) rapti_text_put(t, cap->row.id);
  } else if (ran) {
    rapti_text_put(t, cap->row.id);
    rapti_text_put(t, " ran ");
  } else if (cap) {
    rapti_text_put(t, "would choose ");
    rapti_text_put(t, cap->row.id);
    rapti_text_put(t, " when called with ");
  } else {
    rapti_text_put(t, r->d.choice.undecided ? "undecided: more facts are needed for " : "REFUSED: no permitted backend can run ");
  }
  if (r->has_error && ran) rapti_text_put(t, " for ");
  put_problem(r, t);
  rapti_text_putc(t, '\n');
}

static void put_error(const rapt_report *r, const char *const *names, rapti_text *t) {
  if (!r->has_error) return;
  char sentence[ROOM];
  put_label(t, "fault");
  if (r->error.code) {
    rapt_reason_format(&r->error, NULL, names, sentence, sizeof sentence);
    rapti_text_put(t, sentence);
  } else {
    rapti_text_put(t, r->error.got);
    if (*r->error.want) rapti_text_put(t, "; ");
    rapti_text_put(t, r->error.want);
    if (r->ran) rapti_text_put(t, "; outputs may be partly written");
  }
  rapti_text_putc(t, '\n');
}

static void put_kernel(const rapt_report *r, const rapti_cap *cap, rapti_text *t) {
  const char *isa = rapti_row_isa(cap);
  uint32_t threads = rapti_decided_threads(&r->d);
  put_label(t, "kernel");
  rapti_text_put(t, r->d.kernel);
  if (*isa || threads) rapti_text_put(t, " (");
  rapti_text_put(t, isa);
  if (*isa && threads) rapti_text_put(t, ", ");
  if (threads) rapti_text_uint(t, threads);
  if (threads) rapti_text_put(t, threads == 1 ? " thread" : " threads");
  rapti_text_put(t, *isa || threads ? ")\n" : "\n");
  put_label(t, "decided by");
  rapti_text_put(t, rapti_report_level(r));
  if (r->d.choice.level == RAPTI_BUILTIN) rapti_text_put(t, " order");
  if (r->d.choice.fallback && !r->d.choice.undecided) rapti_text_put(t, "; a preferred row could not run");
  rapti_text_putc(t, '\n');
}

static void put_casts(const rapt_report *r, rapti_text *t) {
  static const int fields[] = {RAPT_FIELD_Q, RAPT_FIELD_K, RAPT_FIELD_V, RAPT_FIELD_BIAS};
  if (!r->d.request.casts) return;
  bool first = true;
  put_label(t, "casts");
  for (int i = 0; i < 4; i++) {
    if (!(r->d.request.casts >> fields[i] & 1u)) continue;
    if (!first) rapti_text_put(t, ", ");
    first = false;
    rapti_text_put(t, rapt_field_name(fields[i]));
    rapti_text_putc(t, ' ');
    rapti_text_put(t, rapt_dtype_name(r->d.request.given[i]));
    rapti_text_put(t, " -> ");
    rapti_text_put(t, rapt_dtype_name(r->d.request.cast_dtype));
    rapti_text_put(t, " (");
    put_bytes(t, rapti_cast_copy_bytes(&r->d, fields[i]));
    rapti_text_putc(t, ')');
  }
  rapti_text_putc(t, '\n');
}

/* Nothing of a forward's outputs has an element (S6). */
static bool nothing_to_do(const rapti_decided *d) {
  const rapt_problem *p = &d->request.cast;
  bool no_rows = p->B == 0 || p->Hq == 0 || p->Sq == 0;
  return !p->backward && (no_rows || (p->Dv == 0 && !(p->flags & RAPT_WANT_LSE)));
}

/* What more facts could change, and which they are. The last line of an undecided report. */
static void put_missing(const rapti_missing *set, const char *between, rapti_text *t) {
  for (uint32_t i = 0; i < set->n; i++) {
    if (i) rapti_text_put(t, between);
    rapti_text_put(t, set->name[i]);
  }
  rapti_text_putc(t, '\n');
}

static void put_maybe(const rapt_report *r, rapti_text *t) {
  for (uint32_t i = 0; r->d.choice.row >= 0 && i < rapt_report_count(r); i++) {
    rapti_missing set = {0};
    if (!rapti_report_open(r, i)) continue;
    rapti_report_missing(r, i, &set);
    put_label(t, "undecided");
    rapti_text_put(t, "may be ");
    rapti_text_put(t, r->d.registry->rows[i].row.id);
    rapti_text_put(t, set.n == 0 ? " instead" : set.n == 1 ? " instead: add the fact " : " instead: add the facts ");
    put_missing(&set, ", ", t);
  }
}

static void put_all_missing(const rapt_report *r, rapti_text *t) {
  rapti_missing set = {0};
  for (uint32_t i = 0; i < rapt_report_count(r); i++)
    if (rapti_report_open(r, i)) rapti_report_missing(r, i, &set);
  if (set.n == 0) return;
  rapti_text_put(t, "  missing facts: ");
  put_missing(&set, ", ", t);
}

static void put_details(const rapt_report *r, rapti_text *t) {
  const char *consents[3];
  uint32_t n = rapti_report_consents(&r->d, consents);
  put_label(t, "scale");
  rapti_text_double(t, r->d.request.cast.scale);
  if (r->d.request.off != INT64_MIN) {
    rapti_text_put(t, ", row 0 stands at key ");
    rapti_text_int(t, r->d.request.off);
  }
  rapti_text_putc(t, '\n');
  put_label(t, "workspace");
  put_bytes(t, r->d.workspace);
  rapti_text_putc(t, '\n');
  if (nothing_to_do(&r->d)) {
    put_label(t, "empty");
    rapti_text_put(t, "nothing to do: out has no elements\n");
  } else if (r->d.core_writes) {
    put_label(t, "rewrites");
    rapti_text_put(t, "empty: no row sees a key, the result is written without a kernel\n");
  }
  if (*rapti_report_rng(r)) {
    put_label(t, "dropout by");
    rapti_text_put(t, rapti_report_rng(r));
    rapti_text_putc(t, '\n');
  }
  if (r->d.problem.flags & RAPT_ASSUME_FINITE) {
    put_label(t, "promised");
    rapti_text_put(t, "assume_finite\n");
  }
  uint64_t exempt = rapti_report_exempt(r);
  if (exempt & RAPT_CAN_ISOLATE) {
    put_label(t, "host row");
    rapti_text_put(t, "NaN or Inf of invisible elements may get through, as in the host's own call\n");
  }
  if (exempt & RAPT_CAN_X1_PATTERN) {
    put_label(t, "host row");
    rapti_text_put(t, "drops by the host's own pattern, as in the host's own call\n");
  }
  if (n == 0) return;
  put_label(t, "consents");
  for (uint32_t i = 0; i < n; i++) {
    if (i) rapti_text_put(t, ", ");
    rapti_text_put(t, consents[i]);
  }
  rapti_text_put(t, " (the row is required by name)\n");
}

static void put_reason(const rapt_report *r, uint32_t i, uint32_t j, const char *const *names, rapti_text *t) {
  char sentence[ROOM];
  rapt_reason reason = RAPT_REASON_INIT;
  rapti_reason_of(&r->d, i, &r->matches[i].reason[j], &reason);
  rapt_reason_format(&reason, r->d.registry->rows[i].row.id, names, sentence, sizeof sentence);
  rapti_text_put(t, sentence);
  rapti_text_putc(t, '\n');
}

/* In full sentences: what kept better rows out, or, where no row was chosen, what keeps out each row that is asked for. */
static void put_passed_over(const rapt_report *r, const char *const *names, rapti_text *t) {
  bool any = false, chosen = r->d.choice.row >= 0;
  for (uint32_t i = 0; i < rapt_report_count(r); i++) {
    if (!rapti_row_in_question(&r->d, i, &r->matches[i])) continue;
    if (chosen && !rapti_row_before(&r->d, i, (uint32_t)r->d.choice.row)) continue;
    if (!any) rapti_text_put(t, chosen ? "  better rows passed over\n" : "  why\n");
    any = true;
    for (uint32_t j = 0; j < r->matches[i].n; j++) {
      rapti_text_put(t, "    ");
      put_reason(r, i, j, names, t);
    }
  }
}

/* Every row on one line with every reason in short. */
static void put_rows(const rapt_report *r, rapti_text *t) {
  static const char *const can[] = {"can run", "no", "undecided"};
  size_t width = 0;
  for (uint32_t i = 0; i < rapt_report_count(r); i++) {
    size_t n = strlen(r->d.registry->rows[i].row.id);
    if (n > width) width = n;
  }
  if (width) rapti_text_put(t, "  rows: CODE(found, wanted); CODE? was not evaluated, a fact is missing\n");
  for (uint32_t i = 0; i < rapt_report_count(r); i++) {
    const char *id = r->d.registry->rows[i].row.id;
    rapti_text_put(t, "    ");
    rapti_text_put(t, id);
    for (size_t n = strlen(id); n < width + 2; n++) rapti_text_putc(t, ' ');
    rapti_text_put(t, r->d.choice.row == (int32_t)i ? "chosen" : can[r->matches[i].can]);
    for (uint32_t j = 0; j < r->matches[i].n; j++) {
      rapti_text_put(t, j ? "; " : ": ");
      rapti_put_brief(&r->d, i, &r->matches[i].reason[j], t);
    }
    rapti_text_putc(t, '\n');
  }
}

/* A row that a person asks about: it can run, or it would have but for what the report says. */
static bool takes_part(const rapt_report *r, uint32_t i) {
  return r->matches[i].can == RAPT_ABLE || rapti_row_in_question(&r->d, i, &r->matches[i]);
}

static void put_others(const rapt_report *r, rapti_text *t) {
  uint32_t others = 0;
  for (uint32_t i = 0; i < rapt_report_count(r); i++) others += !takes_part(r, i);
  if (others == 0) return;
  put_label(t, "others");
  rapti_text_uint(t, others);
  rapti_text_put(t, " more rows have no part in this call; the full report lists them with their reasons\n");
}

void rapti_report_text(const rapt_report *r, const char *const *names, bool all_rows, rapti_text *t) {
  headline(r, t);
  put_error(r, names, t);
  const rapti_cap *cap = r->has_rows ? rapti_chosen(&r->d) : NULL;
  if (!r->bare && r->d.ctx->what_if) {
    char facts[1024];
    rapti_facts_format(&r->d.registry->facts, facts, sizeof facts);
    put_label(t, "what if");
    rapti_text_put(t, facts);
    rapti_text_putc(t, '\n');
  }
  if (cap) {
    put_maybe(r, t);
    put_kernel(r, cap, t);
    put_casts(r, t);
    put_details(r, t);
  }
  put_passed_over(r, names, t);
  if (all_rows) put_rows(r, t);
  else put_others(r, t);
  put_all_missing(r, t);
}
