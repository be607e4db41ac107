/* SPDX-License-Identifier: Apache-2.0 */
/* One line a new decision or refusal (E4), and the notices of fallbacks (R8). */
#include "core/ctx.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define LINE 8192

/* ---- RAPT_LOG=stderr|PATH[:decisions|refusals] ---- */

static bool ends_with(const char *s, size_t n, const char *tail) {
  size_t m = strlen(tail);
  return n >= m && memcmp(s + n - m, tail, m) == 0;
}

static rapt_status log_fault(const char *spec, const char *want, rapt_reason *why) {
  rapti_reason_set(why, RAPT_CODE_SYNTAX, RAPT_FIELD_LOG, -1, -1);
  rapti_reason_got(why, "RAPT_LOG=%s", spec);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

rapt_status rapti_log_open(rapti_log *log, const char *spec, rapt_reason *why) {
  static const char decisions[] = ":decisions", refusals[] = ":refusals";
  char path[4096];
  size_t n = strlen(spec);
  log->kinds = 1u << RAPT_LOG_DECISION | 1u << RAPT_LOG_REFUSAL;
  if (ends_with(spec, n, decisions)) {
    log->kinds = 1u << RAPT_LOG_DECISION;
    n -= sizeof decisions - 1;
  } else if (ends_with(spec, n, refusals)) {
    log->kinds = 1u << RAPT_LOG_REFUSAL;
    n -= sizeof refusals - 1;
  }
  if (n == 0 || n >= sizeof path) return log_fault(spec, "stderr or a path", why);
  memcpy(path, spec, n);
  path[n] = '\0';
  if (strcmp(path, "stderr") == 0) {
    log->fd = STDERR_FILENO;
    return RAPT_OK;
  }
  log->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  log->close_fd = log->fd >= 0;
  return log->fd >= 0 ? RAPT_OK : log_fault(spec, "a file that can be written", why);
}

void rapti_log_close(rapti_log *log) {
  if (log->close_fd) close(log->fd);
  log->close_fd = 0;
  log->fd = -1;
}

/* One write a line, so that lines of several threads and processes do not mix. */
static void write_line(int fd, char *line, size_t n) {
  int saved = errno;
  line[n] = '\n';
  size_t done = 0;
  while (done < n + 1) {
    ssize_t m = write(fd, line + done, n + 1 - done);
    if (m < 0 && errno == EINTR) continue;
    if (m <= 0) break;                    /* a full disk is no reason to fail a call */
    done += (size_t)m;
  }
  errno = saved;
}

static void emit(const rapti_log *log, int kind, char *line, size_t room) {
  size_t n = strnlen(line, room - 1);
  if (log->line) log->line(log->self, kind, line);
  else if (kind != RAPT_LOG_NOTICE && log->kinds >> kind & 1u) write_line(log->fd, line, n);
}

/* ---- Lines ---- */

static void put_choice(const rapti_decided *d, const rapti_cap *cap, rapti_text *t) {
  static const int fields[] = {RAPT_FIELD_Q, RAPT_FIELD_K, RAPT_FIELD_V, RAPT_FIELD_BIAS};
  rapti_text_put(t, cap->row.id);
  rapti_text_putc(t, ' ');
  rapti_text_put(t, d->kernel);
  rapti_text_putc(t, ' ');
  rapti_text_put(t, *rapti_row_isa(cap) ? rapti_row_isa(cap) : "-");
  rapti_text_putc(t, ' ');
  rapti_text_uint(t, d->policy.threads);
  rapti_text_putc(t, ' ');
  bool any = false;
  for (int i = 0; i < 4; i++) {
    if (!(d->request.casts >> fields[i] & 1u)) continue;
    if (any) rapti_text_putc(t, ',');
    any = true;
    rapti_text_put(t, rapt_field_name(fields[i]));
    rapti_text_putc(t, ':');
    rapti_text_put(t, rapt_dtype_name(d->request.given[i]));
    rapti_text_put(t, "->");
    rapti_text_put(t, rapt_dtype_name(d->request.cast_dtype));
  }
  if (!any) rapti_text_putc(t, '-');
}

/* R8: a fallback from prefer or to the reference, once for each (backend passed over, code). */
static void notice(const rapti_decided *d, const rapti_cap *cap, uint32_t row, const rapti_match *m) {
  const rapt_row *passed = &d->registry->rows[row].row;
  bool reference = (cap->row.classes & RAPT_CLASS_REFERENCE) != 0 && d->choice.level == RAPTI_BUILTIN;
  bool preferred = rapti_names_find(&d->policy.prefer, passed, passed->classes, false) != NULL;
  if (!d->ctx->log.line || !(reference || (preferred && d->choice.fallback))) return;
  uint32_t first = 0;
  while (d->registry->rows[first].backend != d->registry->rows[row].backend) first++;
  uint64_t bit = UINT64_C(1) << (m->reason[0].code & 63);
  if (atomic_fetch_or(&rapti_life(&d->registry->rows[first])->noticed, bit) & bit) return;
  char line[LINE];
  rapti_text t = rapti_text_begin(line, sizeof line - 1);
  rapti_text_put(&t, "rapt: ");
  rapti_text_put(&t, cap->row.id);
  rapti_text_put(&t, " in place of ");
  rapti_text_put(&t, passed->id);
  rapti_text_put(&t, ": ");
  rapti_put_brief(d, row, &m->reason[0], &t);
  rapti_text_end(&t);
  emit(&d->ctx->log, RAPT_LOG_NOTICE, line, sizeof line);
}

void rapti_log_decided(const rapti_decided *d, rapt_status status) {
  const rapti_log *log = &d->ctx->log;
  if (!log->line && log->fd < 0) return;
  char line[LINE], problem[4352];
  const rapti_cap *cap = rapti_chosen(d);
  rapti_text t = rapti_text_begin(line, sizeof line - 1);
  rapt_problem_format(&d->problem, problem, sizeof problem);
  rapti_text_put(&t, "rapt: ");
  rapti_text_put(&t, problem);
  rapti_text_put(&t, " -> ");
  if (cap) put_choice(d, cap, &t);
  else rapti_text_put(&t, rapt_status_name((int32_t)status));
  for (uint32_t i = 0; i < d->registry->n_rows; i++) {
    rapti_match m;
    if (cap && !rapti_row_before(d, i, (uint32_t)d->choice.row)) continue;
    rapti_match_row(d->registry, i, &d->request, &d->policy, false, &m, NULL);
    if (!rapti_row_in_question(d, i, &m)) continue;
    rapti_text_put(&t, "; ");
    rapti_text_put(&t, d->registry->rows[i].row.id);
    rapti_text_putc(&t, ' ');
    rapti_put_brief(d, i, &m.reason[0], &t);
    if (cap) notice(d, cap, i, &m);
  }
  rapti_text_end(&t);
  emit(log, cap ? RAPT_LOG_DECISION : RAPT_LOG_REFUSAL, line, sizeof line);
}
