/* SPDX-License-Identifier: Apache-2.0 */
/* A problem as its canonical string (docs/api.md section 2): tokens in the order of the grammar, defaults left out. */
#include "core/alias.h"
#include "core/problem.h"

static void key(rapti_text *t, const char *name) {
  rapti_text_putc(t, ' ');
  rapti_text_put(t, name);
}

static void put_int_key(rapti_text *t, const char *name, int64_t v) {
  key(t, name);
  rapti_text_int(t, v);
}

static void put_number_key(rapti_text *t, const char *name, double v) {
  key(t, name);
  rapti_text_double(t, v);
}

static void put_pair(rapti_text *t, const char *name, int64_t first, int64_t second) {
  put_int_key(t, name, first);
  if (second == first) return;
  rapti_text_putc(t, '/');
  rapti_text_int(t, second);
}

static void put_sizes(rapti_text *t, const rapt_problem *p) {
  rapti_text_put(t, rapt_dtype_name(p->q.dtype));
  if (p->k.dtype != p->q.dtype || p->v.dtype != p->q.dtype) {
    rapti_text_putc(t, '/');
    rapti_text_put(t, rapt_dtype_name(p->k.dtype));
    rapti_text_putc(t, '/');
    rapti_text_put(t, rapt_dtype_name(p->v.dtype));
  }
  put_int_key(t, "b", p->B);
  put_pair(t, "h", p->Hq, p->Hkv);
  put_int_key(t, "q", p->Sq);
  put_int_key(t, "k", p->Skv);
  put_pair(t, "d", p->D, p->Dv);
}

static void put_dtype_key(rapti_text *t, const char *name, int dtype) {
  if (dtype == RAPT_NONE) return;
  key(t, name);
  rapti_text_put(t, rapt_dtype_name(dtype));
}

static void put_output_dtypes(rapti_text *t, const rapt_problem *p) {
  put_dtype_key(t, "out=", p->out.dtype);
  put_dtype_key(t, "gdt=", p->dq.dtype ? p->dq.dtype : p->dk.dtype ? p->dk.dtype : p->dv.dtype);
}

/* ---- Memory ---- */

static bool shown(const rapt_problem *p, int field) {
  return rapti_in_grammar(field) && rapti_tensor_present(p, field);
}

static bool is_default(const rapt_problem *p, int field) {
  int64_t size[4], stride[4], dense[4];
  int perm[4];
  rapti_tensor_strides(p, field, size, stride);
  rapti_default_order(p, field, perm);
  rapti_dense_strides(size, perm, dense);
  return rapti_same_strides(size, stride, dense);
}

static bool is_in_order(const rapt_problem *p, int field, const rapti_order *order) {
  int64_t size[4], stride[4], dense[4];
  if (order->packed != (p->cu != RAPT_NONE)) return false;
  rapti_tensor_strides(p, field, size, stride);
  rapti_dense_strides(size, order->perm, dense);
  return rapti_same_strides(size, stride, dense);
}

/* The given numbers themselves, those of axes of size <= 1 included: a string of numbers keeps what was passed. */
static bool is_exactly(const rapt_problem *p, int field, const rapti_order *order) {
  int64_t size[4], dense[4];
  int axes[4], n = rapti_logical_axes(p, field, axes);
  rapti_tensor_sizes(p, field, size);
  rapti_dense_strides(size, order->perm, dense);
  for (int i = 0; i < n; i++)
    if (rapti_desc(p, field)->stride[axes[i]] != dense[axes[i]]) return false;
  return order->packed == (p->cu != RAPT_NONE);
}

static void put_own_strides(rapti_text *t, const rapt_problem *p, int field) {
  if (is_default(p, field)) return;
  key(t, rapt_field_name(field));
  rapti_text_put(t, ".st=");
  for (int i = 0; i < RAPTI_ORDERS; i++) {
    if (!is_exactly(p, field, &rapti_orders[i])) continue;
    rapti_text_put(t, rapti_orders[i].name);
    return;
  }
  int axes[4], n = rapti_logical_axes(p, field, axes);
  for (int i = 0; i < n; i++) {
    if (i) rapti_text_putc(t, ',');
    rapti_text_int(t, rapti_desc(p, field)->stride[axes[i]]);
  }
}

static void put_layout(rapti_text *t, const rapt_problem *p) {
  bool defaults = true, agree[RAPTI_ORDERS] = {true, true, true, true, true};
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST; field++) {
    if (!shown(p, field)) continue;
    defaults = defaults && is_default(p, field);
    for (int i = 0; i < RAPTI_ORDERS; i++) agree[i] = agree[i] && is_in_order(p, field, &rapti_orders[i]);
  }
  for (int i = 0; i < RAPTI_ORDERS && !defaults; i++) {
    if (!agree[i]) continue;
    key(t, "layout=");
    rapti_text_put(t, rapti_orders[i].name);
    return;
  }
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST && !defaults; field++)
    if (shown(p, field)) put_own_strides(t, p, field);
}

static void put_alignments(rapti_text *t, const rapt_problem *p) {
  int32_t common = p->q.ptr_align;
  bool all = true;
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST; field++)
    if (shown(p, field) && rapti_desc(p, field)->ptr_align != common) all = false;
  if (all && common) put_int_key(t, "ptr=", common);
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST && !all; field++) {
    int32_t declared = rapti_desc(p, field)->ptr_align;
    if (!shown(p, field) || !declared) continue;
    key(t, rapt_field_name(field));
    rapti_text_put(t, ".ptr=");
    rapti_text_int(t, declared);
  }
}

/* ---- Options ---- */

static void put_plane(rapti_text *t, const char *name, const rapt_desc *d) {
  if (d->dtype == RAPT_NONE) return;
  put_dtype_key(t, name, d->dtype);
  rapti_text_putc(t, ':');
  rapti_put_dims(t, d->size, 4);
}

static void put_corner(rapti_text *t, const rapt_problem *p) {
  switch (p->alignment) {
    case RAPT_TOP_LEFT: rapti_text_put(t, "tl"); break;
    case RAPT_BOTTOM_RIGHT: rapti_text_put(t, "br"); break;
    case RAPT_OFFSET_ARRAY: rapti_text_put(t, p->flags & RAPT_OFFSET_ON_DEVICE ? "off:int64@dev" : "off:int64"); break;
    default:
      rapti_text_put(t, "off:");
      rapti_text_int(t, p->q_offset);
      break;
  }
}

/* An alignment without a positional option has no effect and is left out (M4). */
static void put_position(rapti_text *t, const rapt_problem *p) {
  bool causal = p->flags & RAPT_CAUSAL, window = p->has & RAPT_HAS_WINDOW;
  bool corner = p->alignment != RAPT_UNSET && rapti_positional(p);
  if (causal) key(t, corner ? "causal=" : "causal");
  else if (corner) key(t, "align=");
  if (corner) put_corner(t, p);
  if (!window || (p->window[0] == -1 && p->window[1] == -1)) return;
  put_int_key(t, "window=", p->window[0]);
  rapti_text_putc(t, ',');
  rapti_text_int(t, p->window[1]);
}

static void put_array(rapti_text *t, const char *name, int dtype, bool on_device) {
  put_dtype_key(t, name, dtype);
  if (dtype != RAPT_NONE && on_device) rapti_text_put(t, "@dev");
}

static void put_lengths(rapti_text *t, const rapt_problem *p) {
  bool on_device = p->flags & RAPT_LENGTHS_ON_DEVICE;
  put_array(t, "qlen=", p->q_len, on_device);
  put_array(t, "kvlen=", p->kv_len, on_device);
  put_array(t, "packed=", p->cu, p->flags & RAPT_CU_ON_DEVICE);
  if (!p->cu || !(p->max_q | p->max_k)) return;
  rapti_text_putc(t, ',');
  rapti_text_int(t, p->max_q);
  rapti_text_putc(t, '/');
  rapti_text_int(t, p->max_k);
}

static void put_numbers(rapti_text *t, const rapt_problem *p) {
  if (p->slopes.dtype != RAPT_NONE) key(t, p->slopes.size[0] == 1 ? "alibi=h" : "alibi=bh");
  if (!(p->softcap == 0)) put_number_key(t, "softcap=", p->softcap);
  put_dtype_key(t, "sinks=", p->sinks.dtype);
  if (p->sinks.dtype != RAPT_NONE && p->sinks.size[0] && p->sinks.size[0] != p->Hq) {
    rapti_text_putc(t, ':');
    rapti_text_int(t, p->sinks.size[0]);
  }
  if (p->has & RAPT_HAS_SCALE) put_number_key(t, "scale=", p->scale);
  if (!(p->dropout == 0)) put_number_key(t, "dropout=", p->dropout);
  if (!(p->base[0] | p->base[1] | p->base[2] | p->base[3])) return;
  put_int_key(t, "base=", p->base[0]);
  for (int i = 1; i < 4; i++) {
    rapti_text_putc(t, ',');
    rapti_text_int(t, p->base[i]);
  }
}

typedef struct flag_word { uint64_t flag; const char *word; } flag_word;

/* name=word,word for the flags that are set. */
static void put_words(rapti_text *t, uint64_t flags, const char *name, const flag_word *words, size_t n) {
  const char *lead = name;
  for (size_t i = 0; i < n; i++) {
    if (!(flags & words[i].flag)) continue;
    if (lead == name) key(t, lead);
    else rapti_text_put(t, lead);
    rapti_text_put(t, words[i].word);
    lead = ",";
  }
}

static void put_flags(rapti_text *t, const rapt_problem *p) {
  static const flag_word grads[] = {{RAPT_GRAD_Q, "q"}, {RAPT_GRAD_K, "k"}, {RAPT_GRAD_V, "v"},
                                    {RAPT_GRAD_BIAS, "bias"}, {RAPT_GRAD_SINKS, "sinks"}};
  static const flag_word allowed[] = {{RAPT_ALLOW_APPROX, "approx"}, {RAPT_ALLOW_REDUCED, "reduced"},
                                      {RAPT_ALLOW_BACKEND_RNG, "rng"}};
  static const char *const levels[] = {NULL, "det=run", "det=threads", "det=batch"};
  if (p->flags & RAPT_SEED_ON_DEVICE) key(t, "seed=dev");
  if (p->flags & RAPT_WANT_LSE) key(t, "lse");
  if (p->backward) key(t, "bwd");
  put_words(t, p->flags, "grad=", grads, sizeof grads / sizeof grads[0]);
  if (p->dlse.dtype != RAPT_NONE) key(t, "dlse");
  if (p->determinism > RAPT_DET_NONE && p->determinism <= RAPT_DET_BATCH) key(t, levels[p->determinism]);
  if (p->flags & RAPT_STRICT) key(t, "strict");
  if (p->flags & RAPT_MIXED_KV) key(t, "mixed_kv");
  if (p->flags & RAPT_ASSUME_FINITE) key(t, "assume_finite");
  if (p->flags & RAPT_CAPTURE) key(t, "capture");
  put_words(t, p->flags, "allow=", allowed, sizeof allowed / sizeof allowed[0]);
}

/* "auto" depends on the device type and so always names it; a dtype only names one that is not the tensors'. */
static void put_autocast(rapti_text *t, const rapt_problem *p) {
  if (!(p->has & RAPT_HAS_AUTOCAST)) return;
  key(t, "autocast=");
  rapti_text_put(t, p->autocast_dtype == RAPT_NONE ? "auto" : rapt_dtype_name(p->autocast_dtype));
  if (p->autocast_dtype != RAPT_NONE && p->autocast_device == p->device) return;
  rapti_text_putc(t, '@');
  rapti_text_put(t, rapti_kind_name(p->autocast_device));
}

static void put_device(rapti_text *t, const rapt_problem *p) {
  if (p->device == RAPT_CPU && p->device_index == 0) return;
  key(t, "dev=");
  rapti_text_put(t, rapti_kind_name(p->device));
  if (p->device_index == 0) return;
  rapti_text_putc(t, ':');
  rapti_text_int(t, p->device_index);
}

static void put_policy(rapti_text *t, const rapt_problem *p) {
  if (p->has & RAPT_HAS_MEMORY_LIMIT) put_int_key(t, "mem=", p->memory_limit);
  if (p->verify) put_int_key(t, "verify=", p->verify);
  put_autocast(t, p);
  put_device(t, p);
  rapti_put_names(t, " require=", p->require, true);
  rapti_put_names(t, " prefer=", p->prefer, false);
  rapti_put_names(t, " forbid=", p->forbid, true);
}

size_t rapt_problem_format(const rapt_problem *p, char *buf, size_t n) {
  rapti_text t = rapti_text_begin(buf, n);
  if (!p || p->struct_size < sizeof *p) return 0;
  put_sizes(&t, p);
  put_output_dtypes(&t, p);
  put_layout(&t, p);
  put_alignments(&t, p);
  put_plane(&t, "mask=", &p->mask);
  put_plane(&t, "bias=", &p->bias);
  put_position(&t, p);
  put_lengths(&t, p);
  put_numbers(&t, p);
  put_flags(&t, p);
  put_policy(&t, p);
  return rapti_text_end(&t);
}
