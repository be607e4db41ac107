/* SPDX-License-Identifier: Apache-2.0 */
/* One line a new decision or refusal (E4), and the notices of fallbacks (R8). */
#include "core/ctx.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define LINE 8192

/* ---- RAPT_LOG=stderr|PATH[:decisions|refusals] ---- */

static rapt_status log_fault(const char *spec, size_t at, const char *want, rapt_reason *why) {
  rapti_reason_set(why, RAPT_CODE_SYNTAX, RAPT_FIELD_ENV_LOG, -1, (int64_t)at);
  rapti_reason_got(why, "%s", spec + at);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

/* Which lines are wanted, by the suffix behind the last folder's name. false: no such suffix. */
static bool kinds_of(const char *suffix, uint32_t *kinds) {
  const uint32_t decisions = 1u << RAPT_LOG_DECISION, refusals = 1u << RAPT_LOG_REFUSAL | 1u << RAPT_LOG_FAULT;
  *kinds = decisions | refusals;
  if (*suffix == '\0') return true;
  *kinds = strcmp(suffix, ":decisions") == 0 ? decisions : strcmp(suffix, ":refusals") == 0 ? refusals : 0;
  return *kinds != 0;
}

/* A path is told from a mistyped word by its slash. A pipe that nobody reads is a fault, not a wait. */
static int open_file(const char *path) {
  int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (fd >= 0) (void)fcntl(fd, F_SETFL, O_APPEND);
  return fd;
}

rapt_status rapti_log_open(rapti_log *log, const char *spec, rapt_reason *why) {
  char path[4096];
  const char *slash = strrchr(spec, '/'), *name = slash ? slash + 1 : spec;
  size_t n = (size_t)(name - spec) + strcspn(name, ":");
  if (!kinds_of(spec + n, &log->kinds)) return log_fault(spec, n, ":decisions, :refusals or nothing", why);
  bool to_stderr = n == 6 && memcmp(spec, "stderr", n) == 0;
  if (!to_stderr && !slash) return log_fault(spec, 0, "stderr or a path with a /, as ./rapt.log", why);
  if (n >= sizeof path || *name == '\0' || *name == ':') return log_fault(spec, 0, "the path of a file", why);
  memcpy(path, spec, n);
  path[n] = '\0';
  log->fd = to_stderr ? STDERR_FILENO : open_file(path);
  log->close_fd = !to_stderr && log->fd >= 0;
  return log->fd >= 0 ? RAPT_OK : log_fault(spec, 0, "a file that can be written", why);
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

/* Texts of the caller may be anything: a line stays one line. */
static void emit(const rapti_log *log, int kind, char *line, size_t room) {
  size_t n = strnlen(line, room - 1);
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)line[i] < ' ') line[i] = ' ';
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
  if (rapti_decided_threads(d)) rapti_text_uint(t, rapti_decided_threads(d));
  else rapti_text_putc(t, '-');
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

_Static_assert(RAPT_CODE_COUNT <= 64, "noticed codes are bits of one word");

/* R8: a fallback from prefer or to the reference, once for each (backend passed over, code). */
static void notice(const rapti_decided *d, const rapti_cap *cap, uint32_t row, const rapti_match *m) {
  const rapt_row *passed = &d->registry->rows[row].row;
  bool reference = (cap->row.classes & RAPT_CLASS_REFERENCE) != 0 && d->choice.level == RAPTI_BUILTIN;
  bool preferred = rapti_prefer_rank(d->registry, row, &d->request, &d->policy) < d->policy.prefer.n;
  if (!d->ctx->log.line || !(reference || (preferred && d->choice.fallback))) return;
  uint32_t first = 0;
  while (d->registry->rows[first].backend != d->registry->rows[row].backend) first++;
  uint64_t bit = UINT64_C(1) << m->reason[0].code;
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

void rapti_log_fault(const rapt_ctx *ctx, const rapt_problem *p, rapt_status status, const rapt_reason *why) {
  const rapti_log *log = &ctx->log;
  if (!log->line && log->fd < 0) return;
  char line[LINE], problem[4352] = "no problem";
  if (p) rapt_problem_format(p, problem, sizeof problem);
  rapti_text t = rapti_text_begin(line, sizeof line - 1);
  rapti_text_put(&t, "rapt: ");
  rapti_text_put(&t, problem);
  rapti_text_put(&t, " -> ");
  rapti_text_put(&t, rapt_status_name((int32_t)status));
  if (status != RAPT_NOMEM && (why->code || *why->got)) {
    rapti_text_put(&t, "; ");
    rapti_text_put(&t, rapt_field_name(why->field));
    rapti_text_putc(&t, ' ');
    rapti_put_fault(why, &t);
  }
  rapti_text_end(&t);
  emit(log, RAPT_LOG_FAULT, line, sizeof line);
}
