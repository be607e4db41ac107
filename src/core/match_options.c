/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked beyond the plain call, ALIGNMENT to CAPTURE. The capability bits a request needs are worked out once
 * (rapti_needs_make); here each lacking bit becomes its reason. */
#include "core/match.h"

#include <math.h>

#define MAX_SQUARE_BYTES (UINT64_C(256) << 20)   /* D17 */

static bool has(const rapti_matcher *x, uint64_t bit) { return (x->row->can & ~x->row->unknown & bit) != 0; }

/* What nobody recorded whether the row supports it. */
static void put_what(rapti_text *t, int code, int field, const char *got) {
  switch (code) {
    case RAPT_CODE_PACKED: rapti_text_put(t, got); rapti_text_put(t, " calls"); return;
    case RAPT_CODE_LSE: rapti_text_put(t, "lse"); return;
    case RAPT_CODE_GRAD: rapti_text_put(t, "a backward"); return;
    case RAPT_CODE_GRAD_BIAS: rapti_text_put(t, "a gradient of bias"); return;
    case RAPT_CODE_GRAD_SINK: rapti_text_put(t, "a gradient of sinks"); return;
    case RAPT_CODE_ISOLATION: rapti_text_put(t, "isolation"); return;
    case RAPT_CODE_CAPTURE: rapti_text_put(t, "capture"); return;
    default: break;
  }
  rapti_text_put(t, rapt_field_name(field));
  if (*got) rapti_text_putc(t, ' ');
  rapti_text_put(t, got);
}

/* A lacking bit whose got and want are constant words. */
static void lack_words(rapti_matcher *x, uint64_t bit, int code, int field, const char *got, const char *want) {
  if (!(x->lacks & bit)) return;
  char what[96];
  rapti_text t = rapti_text_begin(what, sizeof what);
  if (x->text) put_what(&t, code, field, got);
  rapt_reason *why = rapti_lack(x, bit, code, field, what);
  if (!why) return;
  rapti_reason_got(why, "%s", got);
  rapti_reason_want(why, "%s", want);
}

static void lack_number(rapti_matcher *x, uint64_t bit, int code, int field, const char *name, double got,
                        const char *want) {
  if (!(x->lacks & bit)) return;
  char what[64] = "";
  if (x->text) {
    rapti_text t = rapti_text_begin(what, sizeof what);
    rapti_text_put(&t, name);
    rapti_text_putc(&t, ' ');
    rapti_text_double(&t, got);
    rapti_text_end(&t);
  }
  rapt_reason *why = rapti_lack(x, bit, code, field, what);
  if (!why) return;
  rapti_reason_got_double(why, got);
  rapti_reason_want(why, "%s", want);
}

/* ---- Corners ---- */

static void put_corner(rapti_text *t, const rapt_problem *p) {
  if (p->alignment == RAPT_TOP_LEFT || p->alignment == RAPT_UNSET) rapti_text_put(t, "tl");
  else if (p->alignment == RAPT_BOTTOM_RIGHT) rapti_text_put(t, "br");
  else if (p->alignment == RAPT_OFFSET_ARRAY) rapti_text_put(t, "off:int64 (an offset a batch entry)");
  else { rapti_text_put(t, "off:"); rapti_text_int(t, p->q_offset); }
}

static void want_corners(rapt_reason *why, const rapti_matcher *x) {
  static const struct { uint64_t bit; const char *name; } corners[] = {
    {RAPT_CAN_TOP_LEFT, "tl"}, {RAPT_CAN_BOTTOM_RIGHT, "br"}, {RAPT_CAN_OFFSET, "off:N"},
    {RAPT_CAN_OFFSET_ARRAY, "off:int64"},
  };
  const rapt_problem *p = x->p;
  char buf[sizeof why->want];
  rapti_text t = rapti_text_begin(buf, sizeof buf);
  for (int i = 0; i < 4; i++) {
    if (!has(x, corners[i].bit)) continue;
    if (t.len) rapti_text_put(&t, " or ");
    rapti_text_put(&t, corners[i].name);
    if (corners[i].bit != RAPT_CAN_BOTTOM_RIGHT || p->cu || p->q_len || p->kv_len) continue;
    rapti_text_put(&t, " (off:");
    rapti_text_int(&t, p->Skv - p->Sq);
    rapti_text_putc(&t, ')');
  }
  if (t.len == 0) rapti_text_put(&t, has(x, RAPT_CAN_CAUSAL) ? "tl with Sq = Skv" : "no corner");
  rapti_text_end(&t);
  rapti_reason_want(why, "%s", buf);
}

static void check_corner(rapti_matcher *x) {
  /* The corner is a question only for an option that the row has at all; (L,0) asks for a window before causal. */
  bool causal = x->r->causal && ((x->p->flags & RAPT_CAUSAL) || !x->needs->window);
  bool asked = causal || (x->needs->window && has(x, RAPT_CAN_WINDOW)) ||
               (x->p->slopes.dtype && has(x, RAPT_CAN_ALIBI));
  if (!asked) return;
  if (x->needs->corner && !(x->row->can & ~x->row->unknown & x->needs->corner)) {
    char got[48];
    rapti_text t = rapti_text_begin(got, sizeof got);
    if (x->text) put_corner(&t, x->p);
    rapti_text_end(&t);
    char what[64] = "";
    if (x->text) {
      rapti_text u = rapti_text_begin(what, sizeof what);
      put_what(&u, RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, got);
    }
    rapt_reason *why = rapti_lack(x, x->needs->corner, RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, what);
    if (!why) return;
    rapti_reason_got(why, "%s", got);
    want_corners(why, x);
    return;
  }
  lack_words(x, RAPT_CAN_CAUSAL_WIDE, RAPT_CODE_ALIGNMENT, RAPT_FIELD_ALIGN, "causal with Sq above Skv", "Sq up to Skv");
  if (x->p->flags & RAPT_OFFSET_ON_DEVICE && x->p->alignment == RAPT_OFFSET_ARRAY)
    lack_words(x, RAPT_CAN_ON_DEVICE, RAPT_CODE_ALIGNMENT, RAPT_FIELD_Q_OFFSET, "on the device", "one in host memory");
}

static void check_window(rapti_matcher *x) {
  if (!(x->lacks & RAPT_CAN_WINDOW)) return;
  rapt_reason *why = rapti_lack(x, RAPT_CAN_WINDOW, RAPT_CODE_WINDOW, RAPT_FIELD_WINDOW, "a window");
  if (!why) return;
  rapti_reason_got(why, "%lld,%lld", (long long)x->p->window[0], (long long)x->p->window[1]);
  rapti_reason_want(why, "-1 on both sides");
}

/* ---- Masks ---- */

static bool broadcasts(const rapt_problem *p, int field) {
  const int64_t full[4] = {p->B, p->Hq, p->Sq, p->Skv};
  const rapt_desc *d = rapti_desc(p, field);
  for (int axis = 0; axis < 4; axis++)
    if (d->dtype && d->size[axis] == 1 && full[axis] > 1) return true;
  return false;
}

static void check_broadcast(rapti_matcher *x, int field) {
  if (!(x->lacks & RAPT_CAN_BROADCAST) || !broadcasts(x->p, field)) return;
  const rapt_problem *p = x->p;
  const int64_t *size = rapti_desc(p, field)->size;
  rapt_reason *why = rapti_lack(x, RAPT_CAN_BROADCAST, RAPT_CODE_BROADCAST, field, "broadcast axes");
  if (!why) return;
  rapti_reason_got(why, "shape %lldx%lldx%lldx%lld", (long long)size[0], (long long)size[1], (long long)size[2],
                   (long long)size[3]);
  rapti_reason_want(why, "shape %lldx%lldx%lldx%lld", (long long)p->B, (long long)p->Hq, (long long)p->Sq, (long long)p->Skv);
}

static void check_mask(rapti_matcher *x) {
  lack_words(x, RAPT_CAN_MASK, RAPT_CODE_MASK, RAPT_FIELD_MASK, "bool", "none");
  if (!has(x, RAPT_CAN_MASK)) return;
  lack_words(x, RAPT_CAN_MASK_CAUSAL, RAPT_CODE_MASK, RAPT_FIELD_MASK, "given with causal or a window", "one of the two");
  if (has(x, RAPT_CAN_BIAS))
    lack_words(x, RAPT_CAN_MASK_BIAS, RAPT_CODE_MASK, RAPT_FIELD_MASK, "given with bias", "one of the two");
}

/* Dtypes of bias besides q's own. */
static uint32_t bias_dtypes(const rapt_row *row) {
  if (!(row->can & RAPT_CAN_ANY_BIAS_DTYPE)) return 0;
  return row->bias_dtypes ? row->bias_dtypes : RAPT_DT(RAPT_FP16) | RAPT_DT(RAPT_BF16) | RAPT_DT(RAPT_FP32);
}

static void check_bias(rapti_matcher *x) {
  int dtype = x->p->bias.dtype;
  if (!dtype) return;
  lack_words(x, RAPT_CAN_BIAS, RAPT_CODE_BIAS, RAPT_FIELD_BIAS, rapt_dtype_name(dtype), "none");
  if (!has(x, RAPT_CAN_BIAS)) return;
  if (dtype != x->p->q.dtype && !(bias_dtypes(x->row) & RAPT_DT(dtype))) {
    rapt_reason *why = rapti_fail(x, RAPT_CODE_BIAS, RAPT_FIELD_BIAS);
    if (why) {
      char buf[sizeof why->want];
      rapti_text t = rapti_text_begin(buf, sizeof buf);
      rapti_put_dtypes(&t, bias_dtypes(x->row) | RAPT_DT(x->p->q.dtype));
      rapti_text_end(&t);
      rapti_reason_got(why, "%s", rapt_dtype_name(dtype));
      rapti_reason_want(why, "%s", buf);
    }
  }
  lack_words(x, RAPT_CAN_BIAS_CAUSAL, RAPT_CODE_BIAS, RAPT_FIELD_BIAS, "given with causal or a window", "one of the two");
}

/* ---- Lengths and packed sequences ---- */

static void check_lengths(rapti_matcher *x) {
  const rapt_problem *p = x->p;
  lack_words(x, RAPT_CAN_Q_LEN, RAPT_CODE_LENGTHS, RAPT_FIELD_Q_LEN, rapt_dtype_name(p->q_len), "none");
  lack_words(x, RAPT_CAN_KV_LEN, RAPT_CODE_LENGTHS, RAPT_FIELD_KV_LEN, rapt_dtype_name(p->kv_len), "none");
  if (!(p->flags & RAPT_LENGTHS_ON_DEVICE)) return;
  if (p->q_len && has(x, RAPT_CAN_Q_LEN))
    lack_words(x, RAPT_CAN_ON_DEVICE, RAPT_CODE_LENGTHS, RAPT_FIELD_Q_LEN, "on the device", "one in host memory");
  if (p->kv_len && has(x, RAPT_CAN_KV_LEN))
    lack_words(x, RAPT_CAN_ON_DEVICE, RAPT_CODE_LENGTHS, RAPT_FIELD_KV_LEN, "on the device", "one in host memory");
}

static void check_packed(rapti_matcher *x) {
  const rapt_problem *p = x->p;
  lack_words(x, RAPT_CAN_DENSE, RAPT_CODE_PACKED, RAPT_FIELD_PACKED, "dense", "packed sequences only");
  lack_words(x, RAPT_CAN_PACKED, RAPT_CODE_PACKED, RAPT_FIELD_PACKED, "packed", "dense calls only");
  if (!p->cu || !has(x, RAPT_CAN_PACKED)) return;
  lack_words(x, RAPT_CAN_MAX_UNKNOWN, RAPT_CODE_PACKED, p->max_q ? RAPT_FIELD_MAX_K : RAPT_FIELD_MAX_Q,
             "packed without one of them", "max_q and max_k");
  lack_words(x, RAPT_CAN_CU_INT64, RAPT_CODE_CU_SEQLENS, RAPT_FIELD_CU_Q, "int64", "int32");
  if (p->flags & RAPT_CU_ON_DEVICE)
    lack_words(x, RAPT_CAN_ON_DEVICE, RAPT_CODE_CU_SEQLENS, RAPT_FIELD_CU_Q, "on the device", "one in host memory");
}

/* ---- Scores ---- */

static void check_scale(rapti_matcher *x) {
  const double scale = x->p->scale;
  lack_number(x, RAPT_CAN_SCALE, RAPT_CODE_SCALE, RAPT_FIELD_SCALE, "scale", scale, "the default only");
  lack_number(x, RAPT_CAN_SCALE_ZERO, RAPT_CODE_SCALE, RAPT_FIELD_SCALE, "scale", scale, "scales other than 0");
  lack_number(x, RAPT_CAN_SCALE_NEGATIVE, RAPT_CODE_SCALE, RAPT_FIELD_SCALE, "scale", scale, "scales above 0");
}

static void check_scores(rapti_matcher *x) {
  const rapt_problem *p = x->p;
  lack_words(x, RAPT_CAN_ALIBI, RAPT_CODE_ALIBI, RAPT_FIELD_SLOPES, rapt_dtype_name(p->slopes.dtype), "none");
  lack_number(x, RAPT_CAN_SOFTCAP, RAPT_CODE_SOFTCAP, RAPT_FIELD_SOFTCAP, "softcap", p->softcap, "0 (off)");
  lack_words(x, RAPT_CAN_SINKS, RAPT_CODE_SINK, RAPT_FIELD_SINKS, rapt_dtype_name(p->sinks.dtype), "none");
  check_scale(x);
  lack_number(x, RAPT_CAN_DROPOUT, RAPT_CODE_DROPOUT, RAPT_FIELD_DROPOUT, "dropout", p->dropout, "0 (off)");
  if (!(p->dropout > 0) || !has(x, RAPT_CAN_DROPOUT)) return;
  lack_words(x, RAPT_CAN_X1_PATTERN, RAPT_CODE_RNG, RAPT_FIELD_DROPOUT,
             x->row->rng ? x->row->rng : "a generator of its own", "the pattern of X1");
  if (p->flags & RAPT_SEED_ON_DEVICE)
    lack_words(x, RAPT_CAN_ON_DEVICE, RAPT_CODE_RNG, RAPT_FIELD_SEED, "on the device", "one by value");
}

/* ---- Results ---- */

static void check_results(rapti_matcher *x) {
  const char *dtype = rapt_dtype_name(x->p->q.dtype);
  lack_words(x, RAPT_CAN_LSE, RAPT_CODE_LSE, RAPT_FIELD_LSE, "asked for", "calls without it");
  lack_words(x, RAPT_CAN_BACKWARD, RAPT_CODE_GRAD, RAPT_FIELD_GRAD, "any call", "calls without gradients");
  lack_words(x, RAPT_CAN_GRAD_BIAS, RAPT_CODE_GRAD_BIAS, RAPT_FIELD_GRAD, rapt_dtype_name(x->p->bias.dtype),
             "calls without it");
  lack_words(x, RAPT_CAN_GRAD_SINKS, RAPT_CODE_GRAD_SINK, RAPT_FIELD_GRAD, "sinks", "calls without it");
  lack_words(x, RAPT_CAN_STRICT, RAPT_CODE_STRICT, RAPT_FIELD_STRICT, dtype, "not strict");
}

static void check_determinism(rapti_matcher *x) {
  static const char *const names[] = {"none", "run", "threads", "batch"};
  int have = x->row->determinism;
  if (x->r->needs_grad && x->row->determinism_backward < have) have = x->row->determinism_backward;
  if (x->p->determinism <= have) return;
  rapt_reason *why = rapti_fail(x, RAPT_CODE_DETERMINISM, RAPT_FIELD_DETERMINISM);
  if (!why) return;
  rapti_reason_got(why, "%s", names[have]);
  rapti_reason_want(why, "%s", names[x->p->determinism]);
}

/* Results that are not those of the contract need a flag, or the row's name in require (N7). */
static void check_accuracy(rapti_matcher *x, bool consent) {
  int accuracy = x->row->accuracy;
  if (accuracy == RAPT_EXACT || consent) return;
  bool approx = accuracy == RAPT_APPROX;
  if (x->p->flags & (approx ? RAPT_ALLOW_APPROX : RAPT_ALLOW_REDUCED)) return;
  rapt_reason *why = rapti_fail(x, approx ? RAPT_CODE_APPROX : RAPT_CODE_REDUCED, RAPT_FIELD_ALLOW);
  if (!why) return;
  rapti_reason_got(why, approx ? "quantised or approximate products" : "reduced precision");
  rapti_reason_want(why, approx ? "allow=approx" : "allow=reduced");
}

static uint64_t saturating_add(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

/* D16: with a memory_limit all that a run takes beyond its tensors; D17: else what grows with Sq*Skv. */
static void check_memory(rapti_matcher *x) {
  const rapt_row *row = x->row;
  const rapt_backend *b = &x->g->backends[x->cap->backend];
  bool given = x->policy->has_memory_limit != 0, unknown = row->mem_per_score < 0;
  size_t workspace = b->workspace ? b->workspace(b->self, x->cap->local, x->p, x->policy->threads) : 0;
  bool beyond = workspace == SIZE_MAX;            /* no address space holds it, whatever the limit */
  if (!given && row->mem_per_score == 0 && !beyond) return;
  uint64_t need = 0, limit = MAX_SQUARE_BYTES;
  if (!unknown && __builtin_mul_overflow(x->r->scores, (uint64_t)row->mem_per_score, &need)) need = UINT64_MAX;
  if (given) {
    limit = x->policy->memory_limit > 0 ? (uint64_t)x->policy->memory_limit : 0;
    need = saturating_add(need, x->r->cast_bytes);
  }
  if (beyond && !given) limit = INT64_MAX;
  if (given || beyond) need = saturating_add(need, beyond ? UINT64_MAX : workspace);
  if (!unknown && need <= limit) return;
  rapt_reason *why = rapti_fail(x, RAPT_CODE_MEMORY, RAPT_FIELD_MEMORY_LIMIT);
  if (!why) return;
  if (unknown) rapti_reason_got(why, "an unknown number of");
  else rapti_reason_got(why, "%s%lld", need == UINT64_MAX ? "over " : "",
                        (long long)(need > INT64_MAX ? INT64_MAX : (int64_t)need));
  rapti_reason_want(why, "%lld", (long long)limit);
}

void rapti_match_options(rapti_matcher *x) {
  bool consent = x->policy->require.n && rapti_names_find(&x->policy->require, &x->self->row, 0, true);
  bool replaced = x->real_provider && x->self->row.place == RAPT_PLACE_HOST;   /* M15: what the call had before */
  if (consent || replaced) x->lacks &= ~RAPT_CAN_X1_PATTERN;
  if (replaced) x->lacks &= ~RAPT_CAN_ISOLATE;
  if (x->r->positional) check_corner(x);
  if (x->lacks) check_window(x);
  if (x->lacks) check_mask(x);
  check_bias(x);
  if (x->lacks) {
    if (has(x, RAPT_CAN_MASK)) check_broadcast(x, RAPT_FIELD_MASK);
    if (has(x, RAPT_CAN_BIAS)) check_broadcast(x, RAPT_FIELD_BIAS);
    check_lengths(x);
    check_packed(x);
    check_scores(x);
    check_results(x);
  }
  check_accuracy(x, consent);
  check_determinism(x);
  lack_words(x, RAPT_CAN_ISOLATE, RAPT_CODE_ISOLATION, RAPT_FIELD_ASSUME_FINITE, "no isolation", "assume_finite");
  check_memory(x);
  lack_words(x, RAPT_CAN_CAPTURE, RAPT_CODE_CAPTURE, RAPT_FIELD_CAPTURE, "synchronises, allocates or reads device data",
             "no capture");
}

/* ---- Needs ---- */

static uint64_t when(bool condition, uint64_t bit) { return condition ? bit : 0; }

/* The corners of M2 that give this request's positions, by value where one off holds for all of the call. */
static uint64_t corner_bits(const rapti_request *r) {
  const rapt_problem *p = &r->cast;
  if (!r->positional) return 0;
  if (p->alignment == RAPT_OFFSET_ARRAY) return RAPT_CAN_OFFSET_ARRAY;
  if (p->cu || p->q_len || p->kv_len) {
    if (p->alignment == RAPT_BOTTOM_RIGHT) return RAPT_CAN_BOTTOM_RIGHT;
    return RAPT_CAN_OFFSET | when(r->off == 0, RAPT_CAN_TOP_LEFT);
  }
  uint64_t fixed = RAPT_CAN_OFFSET | when(r->off == 0, RAPT_CAN_TOP_LEFT) |
                   when(r->off == p->Skv - p->Sq, RAPT_CAN_BOTTOM_RIGHT);
  if (r->off != 0 || p->Sq != p->Skv) return fixed;
  return r->causal ? fixed | RAPT_CAN_CAUSAL : 0;
}

static uint64_t mask_bits(const rapti_request *r, bool window) {
  const rapt_problem *p = &r->cast;
  bool mask = p->mask.dtype != 0, bias = p->bias.dtype != 0, positional = r->causal || window;
  return when(mask, RAPT_CAN_MASK) | when(bias, RAPT_CAN_BIAS) | when(mask && bias, RAPT_CAN_MASK_BIAS) |
         when(mask && positional, RAPT_CAN_MASK_CAUSAL) | when(bias && positional, RAPT_CAN_BIAS_CAUSAL) |
         when(broadcasts(p, RAPT_FIELD_MASK) || broadcasts(p, RAPT_FIELD_BIAS), RAPT_CAN_BROADCAST);
}

static uint64_t layout_bits(const rapt_problem *p) {
  bool on_device = (p->flags & RAPT_LENGTHS_ON_DEVICE && (p->q_len || p->kv_len)) ||
                   (p->flags & RAPT_CU_ON_DEVICE && p->cu) || (p->flags & RAPT_SEED_ON_DEVICE && p->dropout > 0) ||
                   (p->flags & RAPT_OFFSET_ON_DEVICE && p->alignment == RAPT_OFFSET_ARRAY);
  return when(p->q_len != 0, RAPT_CAN_Q_LEN) | when(p->kv_len != 0, RAPT_CAN_KV_LEN) | when(on_device, RAPT_CAN_ON_DEVICE) |
         (p->cu ? RAPT_CAN_PACKED : RAPT_CAN_DENSE) | when(p->cu == RAPT_INT64, RAPT_CAN_CU_INT64) |
         when(p->cu && (!p->max_q || !p->max_k), RAPT_CAN_MAX_UNKNOWN);
}

static uint64_t score_bits(const rapti_request *r) {
  const rapt_problem *p = &r->cast;
  bool other = !r->default_scale && p->scale != 1.0 / sqrt((double)p->D);
  return when(p->slopes.dtype != 0, RAPT_CAN_ALIBI) | when(p->softcap > 0, RAPT_CAN_SOFTCAP) |
         when(p->sinks.dtype != 0, RAPT_CAN_SINKS) | when(other && p->scale > 0, RAPT_CAN_SCALE) |
         when(other && p->scale == 0, RAPT_CAN_SCALE_ZERO) | when(other && p->scale < 0, RAPT_CAN_SCALE_NEGATIVE) |
         when(p->dropout > 0, RAPT_CAN_DROPOUT) |
         when(p->dropout > 0 && !(p->flags & RAPT_ALLOW_BACKEND_RNG), RAPT_CAN_X1_PATTERN);
}

static uint64_t result_bits(const rapti_request *r) {
  const rapt_problem *p = &r->cast;
  bool half = p->q.dtype == RAPT_FP16 || p->q.dtype == RAPT_BF16;   /* strict has an effect on these alone (N6) */
  return when((p->flags & RAPT_WANT_LSE) != 0, RAPT_CAN_LSE) | when(r->needs_grad != 0, RAPT_CAN_BACKWARD) |
         when((p->flags & RAPT_GRAD_BIAS) != 0, RAPT_CAN_GRAD_BIAS) |
         when((p->flags & RAPT_GRAD_SINKS) != 0, RAPT_CAN_GRAD_SINKS) |
         when(p->flags & RAPT_STRICT && half, RAPT_CAN_STRICT) |
         when(!r->all_visible && !(p->flags & RAPT_ASSUME_FINITE), RAPT_CAN_ISOLATE) |
         when((p->flags & RAPT_CAPTURE) != 0, RAPT_CAN_CAPTURE) |
         when(p->k.dtype != p->q.dtype || p->v.dtype != p->q.dtype, RAPT_CAN_MIXED_KV) |
         when(p->out.dtype != p->q.dtype, RAPT_CAN_OUT_FP32);
}

/* Tensors of the call that have strides: as rapti_needs says. */
static void tensor_needs(const rapti_request *r, rapti_needs *needs) {
  const rapt_problem *p = &r->cast;
  needs->align = INT32_MAX;
  for (int field = RAPT_FIELD_Q; field <= RAPT_FIELD_DBIAS; field++) {
    const rapt_desc *d = rapti_desc(p, field);
    bool vector = field == RAPT_FIELD_LSE || field == RAPT_FIELD_DLSE;
    if (!d->dtype || field == RAPT_FIELD_SINKS || field == RAPT_FIELD_SLOPES) continue;
    if (field == RAPT_FIELD_LSE && !(p->flags & RAPT_WANT_LSE) && !p->backward) continue;
    if (field >= RAPT_FIELD_DOUT && !p->backward) continue;
    int64_t size[4], low, high;
    rapti_tensor_sizes(p, field, size);
    needs->tensors |= 1u << field;
    if (!vector && size[3] > 1 && d->stride[3] != 1) needs->strided |= 1u << field;
    if (!rapti_extent(size, d->stride, &low, &high)) needs->reach = INT64_MAX;
    if (high > needs->reach) needs->reach = high;
    if (-low > needs->reach) needs->reach = -low;
    int32_t align = d->ptr_align ? d->ptr_align : (int32_t)rapt_dtype_bytes(d->dtype);
    if (align < needs->align && !(r->casts >> field & 1u)) needs->align = align;
  }
}

void rapti_needs_make(const rapti_request *r, rapti_needs *needs) {
  const rapt_problem *p = &r->cast;
  *needs = (rapti_needs){0};
  needs->window = !(r->window[0] == -1 && (r->window[1] == -1 || (r->window[1] == 0 && r->causal)));
  needs->corner = corner_bits(r);
  tensor_needs(r, needs);
  needs->bits = mask_bits(r, needs->window != 0) | layout_bits(p) | score_bits(r) | result_bits(r) |
                when(needs->window != 0, RAPT_CAN_WINDOW) | when(needs->strided != 0, RAPT_CAN_ANY_STRIDE) |
                when(r->causal && !p->cu && p->Sq > p->Skv, RAPT_CAN_CAUSAL_WIDE) |
                when(p->Hq != p->Hkv && p->Hkv == 1, RAPT_CAN_MQA) | when(p->Hq != p->Hkv && p->Hkv > 1, RAPT_CAN_GQA);
}
