/* SPDX-License-Identifier: Apache-2.0 */
/* From the JSON of a case to tensors, problem and buffers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

enum { ELEMENTS_MAX = 1 << 26 };

const char *const case_tensor_names[CASE_TENSORS] = {"q",     "k",      "v",    "mask", "bias",     "sinks", "slopes",
                                                     "q_len", "kv_len", "cu_q", "cu_k", "q_offset", "out",   "lse"};
static const size_t buffer_of[CASE_TENSORS] = {
    offsetof(rapt_buffers, q),      offsetof(rapt_buffers, k),     offsetof(rapt_buffers, v),
    offsetof(rapt_buffers, mask),   offsetof(rapt_buffers, bias),  offsetof(rapt_buffers, sinks),
    offsetof(rapt_buffers, slopes), offsetof(rapt_buffers, q_len), offsetof(rapt_buffers, kv_len),
    offsetof(rapt_buffers, cu_q),   offsetof(rapt_buffers, cu_k),  offsetof(rapt_buffers, q_offset),
    offsetof(rapt_buffers, out),    offsetof(rapt_buffers, lse)};

int case_tensor_find(const char *name) {
  for (int i = 0; i < CASE_TENSORS; i++)
    if (!strcmp(name, case_tensor_names[i])) return i;
  return -1;
}

/* ---- Shapes, dtypes, strides ---- */

static int32_t dtype_named(const json_t *v, const char *what) {
  const char *s = case_text(v, what);
  int32_t d = cli_dtype_find(s);
  if (d <= RAPT_NONE) case_bad("%s: '%s' is no dtype", what, s);
  return d;
}

/* One name for all, or an object by tensor; an absent out is as q. */
static int32_t dtype_of(const case_call *c, const char *name) {
  const json_t *d = case_field(c->json, "dtype");
  if (json_is_string(d)) return dtype_named(d, "dtype");
  const json_t *own = case_field(d, name);
  return dtype_named(own ? own : case_field(d, "q"), "dtype");
}

static void set_shape(case_tensor *t, int32_t dtype, const char *axes, int rank, const int64_t *size) {
  *t = (case_tensor){.dtype = dtype, .rank = rank, .axes = axes};
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; i--) {
    t->size[i] = size[i];
    t->stride[i] = step;
    if (size[i] > 0) step *= size[i] < ELEMENTS_MAX ? size[i] : ELEMENTS_MAX;
  }
  if (!cli_count(t->size, rank, &t->count) || t->count > ELEMENTS_MAX)
    case_bad("shapes: want at most %d elements a tensor, none negative", ELEMENTS_MAX);
}

/* Shapes that contradict the others, strides that are not dense. */
static void apply_layout(case_call *c, int i) {
  case_tensor *t = &c->t[i];
  const char *name = case_tensor_names[i];
  const json_t *shape = case_field(case_field(c->json, "shape_of"), name);
  const json_t *strides = case_field(case_field(c->json, "strides"), name);
  int64_t size[4];
  if (shape) {
    int rank = case_ints(shape, size, 4, "shape_of");
    set_shape(t, t->dtype, rank == 3 ? "hsd" : t->axes, rank, size);
  }
  if (strides && case_ints(strides, t->stride, 4, "strides") != t->rank) case_bad("strides.%s: want one an axis", name);
}

static void make_tensor(case_call *c, int i, int64_t heads, int64_t tokens, int64_t width) {
  const int64_t dense[4] = {c->B, heads, tokens, width}, packed[3] = {tokens, heads, width};
  set_shape(&c->t[i], dtype_of(c, case_tensor_names[i]), c->packed ? "shd" : "bhsd", c->packed ? 3 : 4,
            c->packed ? packed : dense);
  apply_layout(c, i);
}

/* A vector of numbers that the library reads densely. */
static void make_vector(case_call *c, int i, int32_t dtype, const json_t *list, const char *what) {
  int64_t n = (int64_t)json_array_size(list);
  if (!json_is_array(list)) case_bad("%s: want a list", what);
  set_shape(&c->t[i], dtype, "b", 1, &n);
  c->t[i].value = cli_alloc((size_t)n + 1, sizeof(double));
  int64_t want = i == CASE_CUQ || i == CASE_CUK                           ? c->B + 1
                 : i == CASE_QLEN || i == CASE_KVLEN || i == CASE_QOFFSET ? c->B
                                                                          : n;
  if (n != want) case_bad("%s: has %lld numbers, want %lld", what, (long long)n, (long long)want);
  for (int64_t k = 0; k < n; k++)
    c->t[i].value[k] = cli_round(dtype, case_number(json_array_get(list, (size_t)k), what));
}

static int32_t index_type(const json_t *object) {
  const json_t *type = case_field(object, "type");
  return type ? dtype_named(type, "type") : RAPT_INT32;
}

static void make_plane(case_call *c, int i) {
  const json_t *m = case_field(c->json, case_tensor_names[i]);
  int64_t size[4];
  if (!m) return;
  int rank = case_ints(case_field(m, "shape"), size, 4, "shape");
  set_shape(&c->t[i], dtype_named(case_field(m, "dtype"), "dtype"), &"bhij"[4 - rank], rank, size);
  apply_layout(c, i);
  case_fill(&c->t[i], m);
}

static void make_slopes(case_call *c, const json_t *slopes) {
  const json_t *first = json_array_get(slopes, 0);
  if (!json_is_array(first)) {
    make_vector(c, CASE_SLOPES, RAPT_FP32, slopes, "alibi.slopes");
    return;
  }
  int64_t size[2] = {(int64_t)json_array_size(slopes), (int64_t)json_array_size(first)};
  case_tensor *t = &c->t[CASE_SLOPES];
  set_shape(t, RAPT_FP32, "bh", 2, size);
  t->value = cli_alloc((size_t)t->count + 1, sizeof(double));
  for (int64_t b = 0; b < size[0]; b++)
    for (int64_t h = 0; h < size[1]; h++)
      t->value[b * size[1] + h] = cli_round(
          RAPT_FP32, case_number(json_array_get(json_array_get(slopes, (size_t)b), (size_t)h), "alibi.slopes"));
}

static void make_tensors(case_call *c) {
  const json_t *j = c->json, *fill = case_field(j, "fill"), *lengths = case_field(j, "lengths"),
               *packed = case_field(j, "packed");
  make_tensor(c, CASE_Q, c->Hq, c->Sq, c->D);
  make_tensor(c, CASE_K, c->Hkv, c->Skv, c->D);
  make_tensor(c, CASE_V, c->Hkv, c->Skv, c->Dv);
  make_tensor(c, CASE_OUT, c->Hq, c->Sq, c->Dv);
  for (int i = CASE_Q; i <= CASE_V; i++) case_fill(&c->t[i], case_field(fill, case_tensor_names[i]));
  int32_t acc = c->t[CASE_Q].dtype == RAPT_FP64 ? RAPT_FP64 : RAPT_FP32;
  int64_t lse[3] = {c->B, c->Hq, c->Sq};
  set_shape(&c->t[CASE_LSE], acc, c->packed ? "hs" : "bhs", c->packed ? 2 : 3, c->packed ? lse + 1 : lse);
  apply_layout(c, CASE_LSE);
  make_plane(c, CASE_MASK);
  make_plane(c, CASE_BIAS);
  if (case_field(j, "sinks"))
    make_vector(c, CASE_SINKS,
                case_field(j, "sinks_dtype") ? dtype_named(case_field(j, "sinks_dtype"), "sinks_dtype") : RAPT_FP32,
                case_field(j, "sinks"), "sinks");
  if (case_field(j, "alibi")) make_slopes(c, case_field(case_field(j, "alibi"), "slopes"));
  if (case_field(lengths, "q")) make_vector(c, CASE_QLEN, index_type(lengths), case_field(lengths, "q"), "lengths.q");
  if (case_field(lengths, "kv"))
    make_vector(c, CASE_KVLEN, index_type(lengths), case_field(lengths, "kv"), "lengths.kv");
  if (packed) {
    make_vector(c, CASE_CUQ, index_type(packed), case_field(packed, "cu_q"), "packed.cu_q");
    make_vector(c, CASE_CUK, index_type(packed), case_field(packed, "cu_k"), "packed.cu_k");
  }
  if (json_is_array(case_field(j, "offset")))
    make_vector(c, CASE_QOFFSET, RAPT_INT64, case_field(j, "offset"), "offset");
}

/* ---- The problem ---- */

static void as_library(const case_call *c, int i, rapt_tensor *out) {
  const case_tensor *t = &c->t[i];
  int skip = c->rank3 && i <= CASE_V && t->rank == 4;              /* rank 3: without the batch axis */
  *out = (rapt_tensor){.dtype = t->dtype, .rank = t->rank - skip};
  for (int k = skip; k < t->rank; k++) {
    out->size[k - skip] = t->size[k];
    out->stride[k - skip] = t->stride[k];
  }
}

/* Strides on the axes b h s d; a packed tensor's are s h d, its lse's h s. */
static void set_strides(case_call *c, int i, rapt_desc *d, uint64_t bit) {
  const case_tensor *t = &c->t[i];
  for (int k = 0; k < t->rank; k++) d->stride[strchr("bhsd", t->axes[k]) - "bhsd"] = t->stride[k];
  c->p.has |= bit;
}

static void fill_sizes(case_call *c) {
  rapt_problem *p = &c->p;
  rapt_tensor t[5];
  for (int i = CASE_Q; i <= CASE_BIAS; i++) as_library(c, i, &t[i]);
  if (!c->packed) {
    c->built = rapt_problem_set_qkv(p, &t[CASE_Q], &t[CASE_K], &t[CASE_V], &c->why);
  } else {
    p->q.dtype = t[CASE_Q].dtype;
    p->k.dtype = t[CASE_K].dtype;
    p->v.dtype = t[CASE_V].dtype;
    p->B = c->B, p->Hq = c->Hq, p->Hkv = c->Hkv, p->Sq = c->Sq, p->Skv = c->Skv, p->D = c->D, p->Dv = c->Dv;
    p->cu = c->t[CASE_CUQ].dtype;
    set_strides(c, CASE_Q, &p->q, RAPT_HAS_Q_STRIDES);
    set_strides(c, CASE_K, &p->k, RAPT_HAS_K_STRIDES);
    set_strides(c, CASE_V, &p->v, RAPT_HAS_V_STRIDES);
  }
  if (c->built == RAPT_OK && c->t[CASE_MASK].dtype) c->built = rapt_problem_set_mask(p, &t[CASE_MASK], &c->why);
  if (c->built == RAPT_OK && c->t[CASE_BIAS].dtype) c->built = rapt_problem_set_bias(p, &t[CASE_BIAS], &c->why);
}

static void fill_position(case_call *c) {
  rapt_problem *p = &c->p;
  const json_t *j = c->json, *align = case_field(j, "align"), *offset = case_field(j, "offset"),
               *window = case_field(j, "window");
  if (json_is_true(case_field(j, "causal"))) p->flags |= RAPT_CAUSAL;
  if (align) {
    const char *s = case_text(align, "align");
    if (!strcmp(s, "top-left")) p->alignment = RAPT_TOP_LEFT;
    else if (!strcmp(s, "bottom-right")) p->alignment = RAPT_BOTTOM_RIGHT;
    else if (!strcmp(s, "offset")) p->alignment = json_is_array(offset) ? RAPT_OFFSET_ARRAY : RAPT_OFFSET;
    else case_bad("align: '%s', want top-left, bottom-right or offset", s);
  }
  if (p->alignment == RAPT_OFFSET) p->q_offset = case_int(offset, "offset");
  if (!window) return;
  if (json_array_size(window) != 2) case_bad("window: want two bounds");
  p->has |= RAPT_HAS_WINDOW;
  for (size_t i = 0; i < 2; i++)
    p->window[i] = json_is_null(json_array_get(window, i)) ? -1 : case_int(json_array_get(window, i), "window");
}

static void fill_options(case_call *c) {
  rapt_problem *p = &c->p;
  const json_t *j = c->json, *drop = case_field(j, "dropout"), *base = case_field(drop, "base");
  static const char *const bases[] = {"b", "h", "i", "j"};
  if (json_is_true(case_field(j, "strict"))) p->flags |= RAPT_STRICT;
  if (json_is_true(case_field(j, "mixed_kv"))) p->flags |= RAPT_MIXED_KV;
  p->flags |= RAPT_WANT_LSE;
  if (case_field(j, "scale")) {
    p->has |= RAPT_HAS_SCALE;
    p->scale = case_number(case_field(j, "scale"), "scale");
  }
  if (case_field(j, "softcap")) p->softcap = case_number(case_field(j, "softcap"), "softcap");
  p->q_len = c->t[CASE_QLEN].dtype;
  p->kv_len = c->t[CASE_KVLEN].dtype;
  p->sinks.dtype = c->t[CASE_SINKS].dtype;
  p->sinks.size[0] = c->t[CASE_SINKS].size[0];
  const case_tensor *s = &c->t[CASE_SLOPES];
  p->slopes.dtype = s->dtype;
  if (s->dtype) {
    p->slopes.size[0] = s->rank == 2 ? s->size[0] : 1;
    p->slopes.size[1] = s->size[s->rank - 1];
  }
  if (drop) {
    p->dropout = case_number(case_field(drop, "p"), "dropout.p");
    if (case_field(drop, "seed")) c->b.seed = case_whole(case_field(drop, "seed"), "dropout.seed");
    if (case_field(drop, "offset")) c->b.offset = case_whole(case_field(drop, "offset"), "dropout.offset");
    for (size_t i = 0; i < 4; i++)
      if (case_field(base, bases[i])) p->base[i] = case_int(case_field(base, bases[i]), "dropout.base");
  }
  if (json_is_object(case_field(j, "dtype")) && case_field(case_field(j, "dtype"), "out"))
    p->out.dtype = c->t[CASE_OUT].dtype;
  set_strides(c, CASE_OUT, &p->out, RAPT_HAS_OUT_STRIDES);
  set_strides(c, CASE_LSE, &p->lse, RAPT_HAS_LSE_STRIDES);
}

/* The input whose memory a tensor uses; it must reach as far as the tensor. */
static int alias_of(const case_call *c, int i) {
  const json_t *a = case_field(case_field(c->json, "alias"), case_tensor_names[i]);
  if (!a) return -1;
  int other = case_tensor_find(case_text(a, "alias"));
  const case_tensor *t = &c->t[i], *o = other < 0 || other >= CASE_V ? NULL : &c->t[other];
  if (!o || o->dtype != t->dtype || o->rank != t->rank || memcmp(o->stride, t->stride, sizeof o->stride) ||
      memcmp(o->size, t->size, sizeof o->size))
    case_bad("alias: '%s', want q or k of the same dtype, shape and strides", json_string_value(a));
  return other;
}

void case_build(case_call *c, const json_t *json) {
  static const char *const names[] = {"B", "Hq", "Hkv", "Sq", "Skv", "D", "Dv"};
  *c = (case_call){.json = json, .p = RAPT_PROBLEM_INIT, .b = RAPT_BUFFERS_INIT, .why = RAPT_REASON_INIT};
  c->id = case_text(case_field(json, "id"), "id");
  c->kind = case_text(case_field(json, "kind"), "kind");
  int64_t *const sizes[] = {&c->B, &c->Hq, &c->Hkv, &c->Sq, &c->Skv, &c->D, &c->Dv};
  for (size_t i = 0; i < CLI_COUNT(names); i++)
    *sizes[i] = case_int(case_field(case_field(json, "shapes"), names[i]), names[i]);
  c->packed = case_field(json, "packed") != NULL;
  c->rank3 = case_field(json, "rank") && case_int(case_field(json, "rank"), "rank") == 3;
  make_tensors(c);
  c->alias_out = alias_of(c, CASE_OUT);
  c->alias_v = alias_of(c, CASE_V);
  fill_sizes(c);
  fill_position(c);
  fill_options(c);
}

/* ---- Memory ---- */

bool case_place(case_call *c) {
  const json_t *surround = case_field(c->json, "surround"), *place = case_field(c->json, "place"),
               *prefill = case_field(c->json, "prefill");
  for (int i = 0; i < CASE_TENSORS; i++) {
    case_tensor *t = &c->t[i];
    const char *name = case_tensor_names[i];
    const json_t *around = case_field(surround, name), *before = case_field(prefill, name);
    int alias = i == CASE_OUT ? c->alias_out : i == CASE_V ? c->alias_v : -1;
    if (!t->dtype) continue;
    double x = around ? case_number(around, "surround") : 0, y = before ? case_number(before, "prefill") : 0;
    if (alias >= 0) {
      t->base = c->t[alias].base;
    } else if (!case_tensor_place(t, case_field(place, name) != NULL, around ? &x : before ? &y : NULL)) {
      return false;
    }
    c->huge |= t->region.n > (size_t)ELEMENTS_MAX;
    memcpy((char *)&c->b + buffer_of[i], &t->base, sizeof(void *));
    case_tensor_save(t);
  }
  return true;
}

void case_free(case_call *c) {
  for (int i = 0; i < CASE_TENSORS; i++) case_tensor_free(&c->t[i]);
}
