/* SPDX-License-Identifier: Apache-2.0 */
/* Is the backend here, in a version that works, on hardware it was made for: AVAIL VERSION KNOWN_BAD ISA DEVICE. */
#include "core/match.h"

#include <string.h>

typedef enum device_state { DEVICE_GOOD, DEVICE_BAD, DEVICE_MISSING, DEVICE_UNKNOWN } device_state;

/* "gfx942 gfx90a? *?": the first word that fits decides; "*" at its end stands for any rest. */
static device_state arch_state(const char *list, const char *arch) {
  for (const char *s = list; *s;) {
    size_t n = strcspn(s, " "), len = n;
    bool unknown = len && s[len - 1] == '?';
    if (unknown) len--;
    bool open = len && s[len - 1] == '*';
    if (open) len--;
    if (n && strncmp(s, arch, len) == 0 && (open || arch[len] == '\0')) return unknown ? DEVICE_UNKNOWN : DEVICE_GOOD;
    s += n + (s[n] == ' ');
  }
  return DEVICE_BAD;
}

static device_state device_find(const rapti_matcher *x) {
  const rapt_facts *f = &x->g->facts;
  if (!(x->row->kinds & RAPT_KIND(x->p->device))) return DEVICE_BAD;
  if (x->p->device == RAPT_CUDA && x->cap->n_cc) {
    if (f->cc < 0) return DEVICE_MISSING;
    for (int32_t i = 0; i < x->cap->n_cc; i++) {
      const rapti_cc_range *c = &x->cap->cc[i];
      if (f->cc >= c->low && f->cc <= c->high) return c->unknown ? DEVICE_UNKNOWN : DEVICE_GOOD;
    }
    return DEVICE_BAD;
  }
  if (x->p->device == RAPT_HIP && x->row->arch) {
    if (!f->arch[0]) return DEVICE_MISSING;
    return arch_state(x->row->arch, f->arch);
  }
  return DEVICE_GOOD;
}

static void put_version(rapti_text *t, uint64_t version) {
  int last = version & 0xffff ? 4 : version >> 16 & 0xffff ? 3 : 2;
  for (int i = 0; i < last; i++) {
    if (i) rapti_text_putc(t, '.');
    rapti_text_uint(t, version >> (48 - 16 * i) & 0xffff);
  }
}

static bool holds(const rapti_version_bound *b, uint64_t version) {
  switch (b->op) {
    case RAPTI_GE: return version >= b->version;
    case RAPTI_LT: return version < b->version;
    case RAPTI_EQ: return version == b->version;
    case RAPTI_LE: return version <= b->version;
    default: return version > b->version;
  }
}

/* All bounds of one package, from the first on: "flash-attn >=2.6.3,<=2.8.4". */
static void want_bounds(rapt_reason *why, const rapti_version_bound *b, int32_t n, int package) {
  static const char *const ops[] = {">=", "<", "=", "<=", ">"};
  char buf[sizeof why->want];
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  rapti_text_put(&t, rapti_package_name(package));
  char before = ' ';
  for (int32_t i = 0; i < n; i++) {
    if (b[i].package != package) continue;
    rapti_text_putc(&t, before);
    rapti_text_put(&t, ops[b[i].op]);
    put_version(&t, b[i].version);
    before = ',';
  }
  rapti_text_end(&t);
  rapti_reason_want(why, "%s", buf);
}

static void got_version(rapt_reason *why, const rapt_facts *f, int package) {
  const rapti_package *k = &f->package[package];
  const char *text = k->presence == RAPTI_ABSENT ? "none" : k->presence == RAPTI_BROKEN ? "broken" : k->text;
  rapti_reason_got(why, "%s %s", rapti_package_name(package), text);
}

static void put_cc(rapti_text *t, int32_t cc) {
  rapti_text_int(t, cc >> 8);
  rapti_text_putc(t, '.');
  rapti_text_int(t, cc & 0xff);
}

/* Was the package built for this device: the same major generation, the minor not above (AVAIL). */
static void check_build(rapti_matcher *x, device_state device) {
  const rapt_facts *f = &x->g->facts;
  if (x->cap->cc_built < 0 || x->p->device != RAPT_CUDA || device == DEVICE_BAD) return;
  const rapti_package *k = &f->package[x->cap->cc_built];
  const char *name = rapti_package_name(x->cap->cc_built);
  char buf[96];
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  if (k->presence != RAPTI_PRESENT || k->n_cc < 0) {
    rapti_text_put(&t, name);
    rapti_text_put(&t, ".cc");
    rapti_miss(x, RAPT_CODE_AVAIL, RAPT_FIELD_BACKEND, buf);
    return;
  }
  if (f->cc < 0) { rapti_miss(x, RAPT_CODE_AVAIL, RAPT_FIELD_BACKEND, "cc"); return; }
  for (int32_t i = 0; i < k->n_cc; i++)
    if (k->cc[i] >> 8 == f->cc >> 8 && k->cc[i] <= f->cc) return;
  rapt_reason *why = rapti_fail(x, RAPT_CODE_AVAIL, RAPT_FIELD_BACKEND);
  if (!why) return;
  rapti_text_put(&t, "built for ");
  for (int32_t i = 0; i < k->n_cc; i++) {
    if (i) rapti_text_putc(&t, ',');
    put_cc(&t, k->cc[i]);
  }
  rapti_text_end(&t);
  rapti_reason_got(why, "%s", buf);
  rapti_reason_want(why, "a build of %s for cc %d.%d", name, (int)(f->cc >> 8), (int)(f->cc & 0xff));
}

/* A registered row that nobody can run here: its provider has no `run`, and it is no host row (D28). */
static bool no_code(const rapti_matcher *x) {
  int place = x->self->row.place;
  return x->real_provider && (place == RAPT_PLACE_OPT_IN || place == RAPT_PLACE_FIRST) &&
         !x->g->backends[x->self->backend].run;
}

static void check_avail(rapti_matcher *x, device_state device) {
  const rapt_facts *f = &x->g->facts;
  const char *broken = x->g->broken ? x->g->broken[x->self->backend] : NULL;
  const char *package = x->cap->package >= 0 ? rapti_package_name(x->cap->package) : NULL;
  const char *got = NULL;
  if (!f->what_if && !x->self->registered) got = "no provider registered";
  else if (no_code(x)) got = "no code to run it";
  else if (broken) got = broken;
  else if (package) {
    const rapti_package *k = &f->package[x->cap->package];
    if (k->presence == RAPTI_ABSENT) got = "not installed";
    else if (k->presence == RAPTI_BROKEN) got = "does not load";
    else if (k->presence == RAPTI_MISSING && !x->real_provider) {
      rapti_miss(x, RAPT_CODE_AVAIL, RAPT_FIELD_BACKEND, package);
      return;
    }
  }
  if (!got) { check_build(x, device); return; }
  rapt_reason *why = rapti_fail(x, RAPT_CODE_AVAIL, RAPT_FIELD_BACKEND);
  if (!why) return;
  rapti_reason_got(why, "%s", got);
  if (no_code(x)) rapti_reason_want(why, "a provider that runs it");
  else rapti_reason_want(why, "%s", package ? package : "its provider");
}

/* Can a constraint on this package's version be evaluated? The row's own package counts as missing where it is known to
 * be absent: AVAIL says so (docs/api.md section 7). */
static bool evaluable(const rapti_matcher *x, int package) {
  const rapti_package *k = &x->g->facts.package[package];
  if (k->presence == RAPTI_PRESENT) return k->version != 0;
  return k->presence != RAPTI_MISSING && package != x->cap->package;
}

/* The runtime of another device kind than the tensors': a fact that this kind does not have is part of DEVICE. */
static bool foreign_runtime(const rapti_matcher *x, const rapti_version_bound *b) {
  return b->runtime && !(x->row->kinds & RAPT_KIND(x->p->device)) &&
         x->g->facts.package[b->package].presence == RAPTI_MISSING;
}

static void check_version(rapti_matcher *x) {
  const rapt_facts *f = &x->g->facts;
  uint64_t seen = 0;
  for (int32_t i = 0; i < x->cap->n_needs; i++) {
    const rapti_version_bound *b = &x->cap->needs[i];
    uint64_t bit = UINT64_C(1) << b->package;
    if (seen & bit || foreign_runtime(x, b)) continue;
    if (!evaluable(x, b->package)) {
      rapti_miss(x, RAPT_CODE_VERSION, RAPT_FIELD_BACKEND, rapti_package_name(b->package));
      seen |= bit;
      continue;
    }
    const rapti_package *k = &f->package[b->package];
    if (k->presence == RAPTI_PRESENT && holds(b, k->version)) continue;
    seen |= bit;
    rapt_reason *why = rapti_fail(x, RAPT_CODE_VERSION, RAPT_FIELD_BACKEND);
    if (!why) continue;
    got_version(why, f, b->package);
    want_bounds(why, x->cap->needs, x->cap->n_needs, b->package);
  }
}

static void check_known_bad(rapti_matcher *x) {
  const rapt_facts *f = &x->g->facts;
  const rapti_version_bound *b = x->cap->bad;
  uint64_t seen = 0;
  for (int32_t i = 0, n; i < x->cap->n_bad; i += n) {
    for (n = 1; b[i + n - 1].more; n++) {}
    const rapti_package *k = &f->package[b[i].package];
    uint64_t bit = UINT64_C(1) << b[i].package;
    if (!evaluable(x, b[i].package)) {
      if (!(seen & bit)) rapti_miss(x, RAPT_CODE_KNOWN_BAD, RAPT_FIELD_BACKEND, rapti_package_name(b[i].package));
      seen |= bit;
      continue;
    }
    bool all = k->presence == RAPTI_PRESENT;
    for (int32_t j = 0; all && j < n; j++) all = holds(&b[i + j], k->version);
    rapt_reason *why = all ? rapti_fail(x, RAPT_CODE_KNOWN_BAD, RAPT_FIELD_BACKEND) : NULL;
    if (!why) continue;
    got_version(why, f, b[i].package);
    want_bounds(why, b + i, n, b[i].package);
  }
}

/* A pre-release compares by its release and is not known to work. Not so the operator that a binding has replaced. */
static void check_pre_release(rapti_matcher *x) {
  bool replaced = x->real_provider && x->self->row.place != RAPT_PLACE_BINDING;
  if (x->cap->package < 0 || replaced) return;
  const rapti_package *k = &x->g->facts.package[x->cap->package];
  if (k->presence != RAPTI_PRESENT || !k->beta) return;
  char what[64];
  rapti_text t = rapti_text_begin(what, sizeof what);
  rapti_text_put(&t, "pre-release ");
  rapti_text_put(&t, k->text);
  rapti_text_end(&t);
  rapti_unknown(x, RAPT_FIELD_BACKEND, what);
}

/* Every CPU covers the scalar level: it needs no fact. */
static void check_isa(rapti_matcher *x) {
  if (x->cap->isa <= RAPTI_ISA_SCALAR || x->p->device != RAPT_CPU || !(x->row->kinds & RAPT_KIND(RAPT_CPU))) return;
  int have = x->same_kind ? x->policy->isa : -1;
  if (have < 0) { rapti_miss(x, RAPT_CODE_ISA, RAPT_FIELD_ISA, "isa"); return; }
  if (rapti_isa_covers(have, x->cap->isa)) return;
  rapt_reason *why = rapti_fail(x, RAPT_CODE_ISA, RAPT_FIELD_ISA);
  if (!why) return;
  int machine = x->g->facts.isa;
  if (machine == have) rapti_reason_got(why, "%s", rapti_isa_name(have));
  else rapti_reason_got(why, "%s, capped below the machine's %s", rapti_isa_name(have), rapti_isa_name(machine));
  rapti_reason_want(why, "%s", rapti_isa_name(x->cap->isa));
}

/* "cuda cc=8.6", "hip arch=gfx90a", "cpu". */
static void put_device(rapti_text *t, const rapti_matcher *x) {
  const rapt_facts *f = &x->g->facts;
  rapti_text_put(t, rapti_kind_name(x->p->device));
  if (x->p->device == RAPT_CUDA && f->cc >= 0) { rapti_text_put(t, " cc="); put_cc(t, f->cc); }
  if (x->p->device == RAPT_HIP && f->arch[0]) { rapti_text_put(t, " arch="); rapti_text_put(t, f->arch); }
}

/* The entries of a list that are recorded: those without a question mark. */
static void put_recorded(rapti_text *t, const char *label, const char *list) {
  bool any = false;
  for (const char *s = list; *s; s += strspn(s, " ")) {
    size_t n = strcspn(s, " ");
    if (s[n - 1] != '?') {
      if (!any) rapti_text_put(t, " (");
      rapti_text_put(t, any ? ", " : label);
      rapti_text_putn(t, s, n);
      any = true;
    }
    s += n;
  }
  if (any) rapti_text_putc(t, ')');
}

static void want_device(rapt_reason *why, const rapt_row *row) {
  char buf[sizeof why->want];
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  for (int kind = RAPT_CPU; kind <= RAPT_META; kind++) {
    if (!(row->kinds & RAPT_KIND(kind))) continue;
    if (t.len) rapti_text_put(&t, ", ");
    rapti_text_put(&t, rapti_kind_name(kind));
    if (kind == RAPT_CUDA && row->cc) put_recorded(&t, "cc ", row->cc);
    if (kind == RAPT_HIP && row->arch) put_recorded(&t, "arch ", row->arch);
  }
  rapti_text_end(&t);
  rapti_reason_want(why, "%s", buf);
}

static void check_device(rapti_matcher *x, device_state state) {
  if (state == DEVICE_GOOD) return;
  if (state == DEVICE_MISSING) {
    rapti_miss(x, RAPT_CODE_DEVICE, RAPT_FIELD_DEVICE, x->p->device == RAPT_CUDA ? "cc" : "arch");
    return;
  }
  char got[64];
  rapti_text t = rapti_text_begin(got, sizeof got);
  if (x->text) put_device(&t, x);
  rapti_text_end(&t);
  if (state == DEVICE_UNKNOWN) { rapti_unknown(x, RAPT_FIELD_DEVICE, got); return; }
  rapt_reason *why = rapti_fail(x, RAPT_CODE_DEVICE, RAPT_FIELD_DEVICE);
  if (!why) return;
  rapti_reason_got(why, "%s", got);
  want_device(why, x->row);
}

void rapti_match_avail(rapti_matcher *x) {
  device_state device = device_find(x);
  check_avail(x, device);
  check_version(x);
  if (x->cap->n_bad) check_known_bad(x);
  check_isa(x);
  check_device(x, device);
  check_pre_release(x);
}
