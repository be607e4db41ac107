/* SPDX-License-Identifier: Apache-2.0 */
/* Facts read and objections raised by the rows of external backends. */
#include "backends/external/ext.h"

#include <string.h>

/* "2.13.0+cpu" as 2, 13, 0: release numbers only (docs/backends.md 10.5), 0 where it starts with no number. */
uint64_t rapti_ext_pack(const char *s) {
  uint64_t v = 0;
  for (int i = 0; i < 4; i++) {
    uint64_t part = 0;
    while (*s >= '0' && *s <= '9' && part < 0x10000) part = part * 10 + (uint64_t)(*s++ - '0');
    v = v << 16 | (part & 0xffff);
    if (*s == '.' && s[1] >= '0' && s[1] <= '9') s++;
    else s = "";
  }
  return v;
}

uint64_t rapti_ext_version(const rapt_facts *facts, const char *package) {
  const char *text = rapt_facts_get(facts, package);
  return text ? rapti_ext_pack(text) : 0;
}

rapti_tri rapti_ext_before(const rapt_facts *facts, const char *package, uint64_t version) {
  uint64_t v = rapti_ext_version(facts, package);
  return v == 0 ? RAPTI_OPEN : rapti_tri_of(v < version);
}

int rapti_ext_cc(const rapt_facts *facts) {
  const char *text = rapt_facts_get(facts, "cc");
  if (!text) return -1;
  uint64_t v = rapti_ext_pack(text);
  return (int)(v >> 40 & 0xff00) | (int)(v >> 32 & 0xff);
}

rapti_tri rapti_ext_cc_in(const rapt_facts *facts, int low, int high) {
  int cc = rapti_ext_cc(facts);
  return cc < 0 ? RAPTI_OPEN : rapti_tri_of(cc >= low && cc <= high);
}

/* ---- Objections ---- */

static void copy_text(char *to, size_t n, const char *from) {
  rapti_text t = rapti_text_begin(to, n);
  rapti_text_put(&t, from);
  rapti_text_end(&t);
}

static void say(rapti_ext *e, int code, int state, int field, const char *got, const char *want) {
  uint32_t i = e->count++;
  if (i >= e->n) return;
  rapt_reason *r = &e->why[i];
  memset(r, 0, sizeof *r);
  r->struct_size = (uint32_t)sizeof *r;
  r->code = code;
  r->state = state;
  r->field = field;
  r->axis = -1;
  r->index = -1;
  copy_text(r->got, sizeof r->got, got);
  copy_text(r->want, sizeof r->want, want);
}

void rapti_ext_fail(rapti_ext *e, int code, int field, const char *got, const char *want) {
  say(e, code, RAPT_FAILED, field, got, want);
}

void rapti_ext_fail_int(rapti_ext *e, int code, int field, int64_t got, const char *want) {
  char text[24];
  rapti_text t = rapti_text_begin(text, sizeof text);
  rapti_text_int(&t, got);
  rapti_text_end(&t);
  say(e, code, RAPT_FAILED, field, text, want);
}

void rapti_ext_unknown(rapti_ext *e, int field, const char *what) {
  say(e, RAPT_CODE_UNKNOWN_SUPPORT, RAPT_FAILED, field, what, "");
}

void rapti_ext_if(rapti_ext *e, rapti_tri bad, const char *fact, int code, int field, const char *got, const char *want) {
  if (bad == RAPTI_YES) say(e, code, RAPT_FAILED, field, got, want);
  if (bad == RAPTI_OPEN) say(e, code, RAPT_NOT_EVALUATED, field, "", fact);
}

void rapti_ext_dims(rapti_ext *e, rapti_tri head, rapti_tri value, const char *fact, const char *want) {
  const rapt_problem *p = e->p;
  char d[24], dv[24];
  rapti_text t = rapti_text_begin(d, sizeof d), tv = rapti_text_begin(dv, sizeof dv);
  rapti_text_int(&t, p->D);
  rapti_text_int(&tv, p->Dv);
  if (p->D == p->Dv) head = rapti_tri_or(head, value);
  rapti_ext_if(e, head, fact, RAPT_CODE_HEAD_DIM, RAPT_FIELD_Q, d, want);
  if (p->D != p->Dv) rapti_ext_if(e, value, fact, RAPT_CODE_VALUE_DIM, RAPT_FIELD_V, dv, want);
}

/* ---- The problem ---- */

bool rapti_ext_grads(const rapt_problem *p) { return p->backward || (p->flags & RAPTI_EXT_GRADS); }

static int64_t times(int64_t a, int64_t b) {
  int64_t r;
  return rapti_mul(a, b, &r) ? r : INT64_MAX;
}

/* Packed: every sequence as long as the longest, of which max_q and max_k speak; else all tokens at once. */
int64_t rapti_ext_scores(const rapt_problem *p) {
  int64_t rows = times(times(p->cu ? 1 : p->B, p->Hq), p->Sq);
  return times(rows, p->cu && p->max_k ? p->max_k : p->Skv);
}

static bool beyond_31_bits(const rapt_problem *p) {
  int64_t batch = p->cu ? 1 : p->B;
  int64_t q = times(times(batch, p->Hq), times(p->Sq, p->D > p->Dv ? p->D : p->Dv));
  int64_t k = times(times(batch, p->Hkv), times(p->Skv, p->D > p->Dv ? p->D : p->Dv));
  return (q > k ? q : k) >= INT64_C(1) << 31;
}

void rapti_ext_memory(rapti_ext *e, int64_t bytes) {
  int64_t limit = e->p->has & RAPT_HAS_MEMORY_LIMIT ? e->p->memory_limit : INT64_C(256) << 20;
  char want[24];
  rapti_text t = rapti_text_begin(want, sizeof want);
  rapti_text_int(&t, limit);
  if (bytes > limit) rapti_ext_fail_int(e, RAPT_CODE_MEMORY, RAPT_FIELD_MEMORY_LIMIT, bytes, want);
}

/* D16 counts the copy of a mask; D17 lets one of up to four times its bytes pass where no limit is given. */
static void mask_copy(rapti_ext *e) {
  const rapt_desc *m = &e->p->mask;
  int64_t size = (int64_t)rapt_dtype_bytes(e->p->q.dtype);
  if (!m->dtype || (size <= 4 && !(e->p->has & RAPT_HAS_MEMORY_LIMIT))) return;
  rapti_ext_memory(e, times(times(times(m->size[0], m->size[1]), times(m->size[2], m->size[3])), size));
}

void rapti_ext_notes(rapti_ext *e, uint32_t notes) {
  bool det = notes & RAPTI_EXT_DET_UNKNOWN || (notes & RAPTI_EXT_DET_GRAD_UNKNOWN && rapti_ext_grads(e->p));
  if (det && e->p->determinism > RAPT_DET_NONE) rapti_ext_unknown(e, RAPT_FIELD_DETERMINISM, "a determinism level");
  if (notes & RAPTI_EXT_INDEX_UNKNOWN && beyond_31_bits(e->p))
    rapti_ext_unknown(e, RAPT_FIELD_SIZES, "tensors of 2^31 elements and more");
  if (notes & RAPTI_EXT_MASK_COPY) mask_copy(e);
}
