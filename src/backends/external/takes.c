/* SPDX-License-Identifier: Apache-2.0 */
/* Entries that pick a member: which member their own checks let through, read from the members' rows. */
#include "backends/external/ext.h"

#include <stdlib.h>
#include <string.h>

/* ---- Device and packages ---- */

/* "9.0" or "12.x" at s: the range it stands for; the return is behind it. */
static const char *read_cc(const char *s, int *low, int *high) {
  char *end;
  int major = (int)strtol(s, &end, 10);
  if (*end == '.') end++;
  *low = RAPTI_CC(major, 0);
  *high = RAPTI_CC(major, 0xff);
  if (*end == 'x') return end + 1;
  *low = *high = RAPTI_CC(major, (int)strtol(end, &end, 10));
  return end;
}

static rapti_takes takes_device(const rapt_row *row, const rapt_problem *p, const rapt_facts *facts) {
  if (!(row->kinds & RAPT_KIND(p->device))) return RAPTI_TAKES_NOT;
  if (p->device == RAPT_HIP && row->arch) return RAPTI_TAKES_UNRECORDED;
  if (p->device != RAPT_CUDA || !row->cc) return RAPTI_TAKES;
  int cc = rapti_ext_cc(facts);
  if (cc < 0) return RAPTI_TAKES_MISSING;
  for (const char *s = row->cc; *s;) {
    int low, high, unused;
    s = read_cc(s, &low, &high);
    if (*s == '-') s = read_cc(s + 1, &unused, &high);
    if (cc >= low && cc <= high) return *s == '?' ? RAPTI_TAKES_UNRECORDED : RAPTI_TAKES;
    s += strcspn(s, " ");
    s += strspn(s, " ");
  }
  return RAPTI_TAKES_NOT;
}

/* Was the member's package built for this device: same major, minor not above. */
static rapti_takes takes_build(const rapt_row *row, const rapt_problem *p, const rapt_facts *facts) {
  if (!row->cc_built || p->device != RAPT_CUDA) return RAPTI_TAKES;
  char key[40];
  rapti_text t = rapti_text_begin(key, sizeof key);
  rapti_text_put(&t, row->cc_built);
  rapti_text_put(&t, ".cc");
  rapti_text_end(&t);
  const char *s = rapt_facts_get(facts, key);
  int cc = rapti_ext_cc(facts), low, high;
  if (!s || cc < 0) return RAPTI_TAKES_MISSING;
  while (*s) {
    s = read_cc(s, &low, &high);
    if (low >> 8 == cc >> 8 && low <= cc) return RAPTI_TAKES;
    s += *s == ',';
  }
  return RAPTI_TAKES_NOT;
}

/* "name>=1.2,<=3.4": a member whose package is absent or of another version is not offered. */
static rapti_takes takes_word(const char *word, size_t n, const rapt_facts *facts) {
  char name[32];
  size_t len = strcspn(word, "<>=");
  if (len >= sizeof name) return RAPTI_TAKES_NOT;
  memcpy(name, word, len);
  name[len] = '\0';
  if (!rapt_facts_get(facts, name)) return RAPTI_TAKES_MISSING;
  uint64_t have = rapti_ext_version(facts, name);
  if (have == 0) return RAPTI_TAKES_NOT;
  for (const char *s = word + len; s < word + n; s += *s == ',') {
    bool less = *s == '<', equal = *s == '=' || s[1] == '=';
    s += strspn(s, "<>=");
    uint64_t limit = rapti_ext_pack(s);
    if (have == limit ? !equal : less != (have < limit)) return RAPTI_TAKES_NOT;
    s += strspn(s, ".0123456789");
  }
  return RAPTI_TAKES;
}

static bool has_word(const char *list, const char *word, size_t n) {
  for (const char *s = list; s && *s; s += strspn(s, " ")) {
    size_t m = strcspn(s, " ");
    if (m == n && memcmp(s, word, n) == 0) return true;
    s += m;
  }
  return false;
}

/* What the entry itself needs is no part of its choice: those words are left out. */
static rapti_takes takes_packages(const rapt_row *row, const char *entry, const rapt_facts *facts) {
  for (const char *s = row->needs; s && *s; s += strspn(s, " ")) {
    size_t n = strcspn(s, " ");
    rapti_takes t = has_word(entry, s, n) ? RAPTI_TAKES : takes_word(s, n, facts);
    if (t != RAPTI_TAKES) return t;
    s += n;
  }
  return RAPTI_TAKES;
}

/* ---- The call ---- */

static bool takes_width(const rapt_row *row, const rapt_problem *p) {
  bool grads = rapti_ext_grads(p);
  bool good = p->D >= row->d_min && (!row->d_max || p->D <= row->d_max) && (!row->d_step || p->D % row->d_step == 0);
  if (grads && row->d_max_backward && p->D > row->d_max_backward) good = false;
  if (grads && row->d_step_backward && p->D % row->d_step_backward) good = false;
  bool any = row->dv_rule == RAPT_DV_ANY && (!row->dv_max || p->Dv <= row->dv_max) &&
             (!row->dv_step || p->Dv % row->dv_step == 0);
  for (uint32_t i = 0; i < row->n_dims; i++)
    if (row->dims[i].D == p->D && row->dims[i].Dv == p->Dv) return true;
  return row->n_dims == 0 && good && (p->D == p->Dv || any);
}

static bool takes_sizes(const rapt_row *row, const rapt_problem *p) {
  return (!row->max_b || p->B <= row->max_b) && (!row->max_hq || p->Hq <= row->max_hq) && p->Sq >= row->min_sq &&
         p->Skv >= row->min_skv && (!row->max_sq || p->Sq <= row->max_sq) && (!row->max_skv || p->Skv <= row->max_skv);
}

/* Every capability that gives this call's corner: one of them is enough. 0: none is asked. */
static uint64_t corner_bits(const rapt_problem *p) {
  bool where = rapti_ext_causal(p) || rapti_ext_window(p) || p->slopes.dtype;
  if (!where || (rapti_ext_square(p) && !rapti_ext_causal(p))) return 0;
  if (rapti_ext_square(p)) return RAPT_CAN_CAUSAL | RAPT_CAN_TOP_LEFT | RAPT_CAN_BOTTOM_RIGHT | RAPT_CAN_OFFSET;
  if (p->alignment == RAPT_BOTTOM_RIGHT) return RAPT_CAN_BOTTOM_RIGHT;
  if (p->alignment == RAPT_OFFSET_ARRAY) return RAPT_CAN_OFFSET_ARRAY;
  if (p->alignment != RAPT_OFFSET) return RAPT_CAN_TOP_LEFT | RAPT_CAN_OFFSET;
  return RAPT_CAN_OFFSET | (p->q_offset == 0 ? RAPT_CAN_TOP_LEFT : 0) |
         (!p->cu && p->q_offset == p->Skv - p->Sq ? RAPT_CAN_BOTTOM_RIGHT : 0);
}

static bool broadcasts(const rapt_problem *p, const rapt_desc *d) {
  return d->dtype && (d->size[0] < p->B || d->size[1] < p->Hq || d->size[2] < p->Sq || d->size[3] < p->Skv);
}

static uint64_t mask_bits(const rapt_problem *p) {
  bool mask = p->mask.dtype != 0, bias = p->bias.dtype != 0, where = rapti_ext_causal(p) || rapti_ext_window(p);
  uint64_t bits = 0;
  if (mask) bits |= RAPT_CAN_MASK | (where ? RAPT_CAN_MASK_CAUSAL : 0) | (bias ? RAPT_CAN_MASK_BIAS : 0);
  if (bias) bits |= RAPT_CAN_BIAS | (where ? RAPT_CAN_BIAS_CAUSAL : 0);
  if (broadcasts(p, &p->mask) || broadcasts(p, &p->bias)) bits |= RAPT_CAN_BROADCAST;
  return bits;
}

static uint64_t needed_bits(const rapt_problem *p) {
  uint64_t bits = mask_bits(p) | (p->cu ? RAPT_CAN_PACKED : RAPT_CAN_DENSE);
  if (p->Hkv < p->Hq) bits |= p->Hkv == 1 ? RAPT_CAN_MQA : RAPT_CAN_GQA;
  if (rapti_ext_window(p)) bits |= RAPT_CAN_WINDOW;
  if (p->softcap > 0) bits |= RAPT_CAN_SOFTCAP;
  if (p->sinks.dtype) bits |= RAPT_CAN_SINKS;
  if (p->slopes.dtype) bits |= RAPT_CAN_ALIBI;
  if (p->dropout > 0) bits |= RAPT_CAN_DROPOUT;
  if (p->q_len) bits |= RAPT_CAN_Q_LEN;
  if (p->kv_len) bits |= RAPT_CAN_KV_LEN;
  if (rapti_ext_grads(p)) bits |= RAPT_CAN_BACKWARD;
  if (p->flags & RAPT_GRAD_BIAS) bits |= RAPT_CAN_GRAD_BIAS;
  if (rapti_ext_causal(p) && !p->cu && p->Sq > p->Skv) bits |= RAPT_CAN_CAUSAL_WIDE;
  if ((p->D > 1 && (p->q.stride[3] != 1 || p->k.stride[3] != 1)) || (p->Dv > 1 && p->v.stride[3] != 1))
    bits |= RAPT_CAN_ANY_STRIDE;
  return bits;
}

static rapti_takes takes_options(const rapt_row *row, const rapt_problem *p) {
  uint64_t lacking = needed_bits(p) & ~row->can, corner = corner_bits(p);
  bool bias = p->bias.dtype && p->bias.dtype != p->q.dtype &&
              !((row->can & RAPT_CAN_ANY_BIAS_DTYPE) && (row->bias_dtypes & RAPT_DT(p->bias.dtype)));
  if (bias || (lacking & ~row->unknown)) return RAPTI_TAKES_NOT;
  if (corner && !(row->can & corner)) return row->unknown & corner ? RAPTI_TAKES_UNRECORDED : RAPTI_TAKES_NOT;
  return (needed_bits(p) & row->unknown) ? RAPTI_TAKES_UNRECORDED : RAPTI_TAKES;
}

/* Codes that an entry's own choice does not look at: it takes the call and gives a wrong result, none, or an error. */
static bool decides(const rapt_reason *why) {
  switch (why->code) {
    case RAPT_CODE_SCALE: case RAPT_CODE_KNOWN_BAD: case RAPT_CODE_MEMORY: case RAPT_CODE_LSE:
    case RAPT_CODE_DETERMINISM: return false;
    default: return why->field != RAPT_FIELD_DETERMINISM;
  }
}

static rapti_takes takes_extra(const rapt_backend *b, uint32_t row, const rapt_problem *p, const rapt_facts *facts) {
  rapt_reason why[8];
  uint32_t n = b->extra ? b->extra(b->self, row, p, facts, why, 8) : 0;
  rapti_takes result = RAPTI_TAKES;
  for (uint32_t i = 0; i < n && i < 8; i++) {
    if (!decides(&why[i])) continue;
    if (why[i].state == RAPT_NOT_EVALUATED) result = RAPTI_TAKES_MISSING;
    else if (why[i].code != RAPT_CODE_UNKNOWN_SUPPORT) return RAPTI_TAKES_NOT;
    else if (result == RAPTI_TAKES) result = RAPTI_TAKES_UNRECORDED;
  }
  return result;
}

rapti_takes rapti_ext_takes(const rapt_backend *b, uint32_t i, const rapt_problem *p, const rapt_facts *facts) {
  const rapt_row *row = &b->rows[i];
  bool one = p->k.dtype == p->q.dtype && p->v.dtype == p->q.dtype && (row->dtypes & RAPT_DT(p->q.dtype));
  if (!one || !takes_width(row, p) || !takes_sizes(row, p)) return RAPTI_TAKES_NOT;
  const rapti_takes parts[] = {takes_options(row, p), takes_device(row, p, facts),
                               takes_packages(row, b->rows[0].needs, facts), takes_build(row, p, facts),
                               takes_extra(b, i, p, facts)};
  rapti_takes result = RAPTI_TAKES;
  for (size_t j = 0; j < sizeof parts / sizeof parts[0]; j++) {
    if (parts[j] == RAPTI_TAKES_NOT) return RAPTI_TAKES_NOT;
    if (parts[j] != RAPTI_TAKES && result != RAPTI_TAKES_MISSING) result = parts[j];
  }
  return result;
}

int rapti_ext_pick(const rapt_backend *b, const uint32_t *order, uint32_t n, const rapt_problem *p,
                   const rapt_facts *facts, uint32_t *member) {
  for (uint32_t i = 0; i < n; i++) {
    *member = order[i];
    switch (rapti_ext_takes(b, order[i], p, facts)) {
      case RAPTI_TAKES: return 1;
      case RAPTI_TAKES_MISSING: return 0;
      case RAPTI_TAKES_UNRECORDED: return -1;
      default: break;
    }
  }
  return 1;
}
