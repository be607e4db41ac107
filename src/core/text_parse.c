/* SPDX-License-Identifier: Apache-2.0 */
/* A problem string as a problem (docs/api.md section 2). The text may be hostile: at most 4,096 bytes, any bytes, no
 * NUL at the end. Tokens come in any order, so what depends on others is kept and applied at the end. */
#include "core/problem.h"

#include <string.h>

#define MAX_TEXT 4096

typedef struct span { const char *s; size_t n; } span;       /* s NULL: not given */
enum { REQUIRE, PREFER, FORBID, LISTS };

typedef struct parser {
  const char *text;
  size_t len;
  rapt_problem p;
  rapt_reason *why;
  uint64_t seen_sizes, seen_keys;
  span layout, ptr, corner, causal_corner, alibi, autocast, lists[LISTS];
  span strides[RAPT_FIELD_QKV], aligns[RAPT_FIELD_QKV];      /* by tensor */
  bool qlen_on_device, kvlen_on_device, dlse;
} parser;

static bool expected(parser *ps, const char *at, const char *want) {
  rapti_syntax(ps->why, RAPT_FIELD_TEXT, ps->text, ps->len, (size_t)(at - ps->text), want);
  return false;
}

static bool is(span v, const char *word) { return v.n == strlen(word) && !memcmp(v.s, word, v.n); }
static bool is_space(char c) { return c == ' ' || c == '\t'; }

/* Splits v at the first c: the part before it, *rest the part behind, or rest->s NULL where there is no c. */
static span cut(span v, char c, span *rest) {
  const char *at = v.n ? memchr(v.s, c, v.n) : NULL;
  *rest = (span){NULL, 0};
  if (!at) return v;
  *rest = (span){at + 1, v.n - (size_t)(at - v.s) - 1};
  return (span){v.s, (size_t)(at - v.s)};
}

/* Next item of a list with separators c; false behind the last one. */
static bool next_item(span *rest, char c, span *item) {
  if (!rest->s) return false;
  span list = *rest;
  *item = cut(list, c, rest);
  return true;
}

static bool take_int(parser *ps, span v, int64_t *out) {
  return rapti_parse_int(v.s, v.n, out) || expected(ps, v.s, "a whole number of 64 bits");
}

/* A size has no sign (S8). */
static bool take_size(parser *ps, span v, int64_t *out) {
  if (v.n && v.s[0] == '-') return expected(ps, v.s, "a size of 0 or more");
  return take_int(ps, v, out);
}

static bool take_number(parser *ps, span v, double *out) {
  return rapti_parse_double(v.s, v.n, out) || expected(ps, v.s, "a decimal number, inf, -inf or nan");
}

static bool take_dtype(parser *ps, span v, int32_t *out) {
  int dtype = rapti_dtype_find(v.s, v.n);
  *out = dtype;
  return dtype >= 0 || expected(ps, v.s, "a dtype such as fp16, bf16 or fp32");
}

/* n numbers separated by c, no more and no fewer. */
static bool take_ints(parser *ps, span v, char c, int n, int64_t *out, const char *want) {
  span item;
  const char *end = v.s + v.n;
  for (int i = 0; i < n; i++) {
    if (!next_item(&v, c, &item)) return expected(ps, end, want);
    if (!rapti_parse_int(item.s, item.n, &out[i])) return expected(ps, item.s, want);
  }
  return v.s ? expected(ps, v.s, want) : true;
}

/* ---- Tokens with a value ---- */

static bool set_out(parser *ps, span v) { return take_dtype(ps, v, &ps->p.out.dtype); }

static bool set_gdt(parser *ps, span v) {
  bool ok = take_dtype(ps, v, &ps->p.dq.dtype);
  ps->p.dk.dtype = ps->p.dv.dtype = ps->p.dq.dtype;
  return ok;
}

/* Kept for the end: what depends on other tokens. */
static bool keep_layout(parser *ps, span v) { ps->layout = v; return true; }
static bool keep_ptr(parser *ps, span v) { ps->ptr = v; return true; }
static bool keep_alibi(parser *ps, span v) { ps->alibi = v; return true; }
static bool keep_autocast(parser *ps, span v) { ps->autocast = v; return true; }
static bool keep_require(parser *ps, span v) { ps->lists[REQUIRE] = v; return true; }
static bool keep_prefer(parser *ps, span v) { ps->lists[PREFER] = v; return true; }
static bool keep_forbid(parser *ps, span v) { ps->lists[FORBID] = v; return true; }

/* dt ":" dims, right-aligned in four sizes. */
static bool set_plane(parser *ps, span v, rapt_desc *d) {
  span dims, item, dtype = cut(v, ':', &dims);
  if (!take_dtype(ps, dtype, &d->dtype)) return false;
  if (!dims.s) return expected(ps, v.s + v.n, "\":\" and sizes such as 1x8x256x77");
  int n = 1;
  for (size_t i = 0; i < dims.n; i++) n += dims.s[i] == 'x';
  if (n > 4) return expected(ps, dims.s, "at most four sizes");
  for (int i = 0; i < 4 - n; i++) d->size[i] = 1;
  for (int i = 4 - n; next_item(&dims, 'x', &item); i++)
    if (!take_int(ps, item, &d->size[i])) return false;
  return true;
}

static bool set_mask(parser *ps, span v) { return set_plane(ps, v, &ps->p.mask); }
static bool set_bias(parser *ps, span v) { return set_plane(ps, v, &ps->p.bias); }

static bool set_corner(parser *ps, span v) {
  span offset, kind = cut(v, ':', &offset);
  if (is(v, "tl")) ps->p.alignment = RAPT_TOP_LEFT;
  else if (is(v, "br")) ps->p.alignment = RAPT_BOTTOM_RIGHT;
  else if (is(v, "off:int64") || is(v, "off:int64@dev")) ps->p.alignment = RAPT_OFFSET_ARRAY;
  else if (is(kind, "off") && offset.s) ps->p.alignment = RAPT_OFFSET;
  else return expected(ps, v.s, "tl, br, off:INT, off:int64 or off:int64@dev");
  if (is(v, "off:int64@dev")) ps->p.flags |= RAPT_OFFSET_ON_DEVICE;
  return ps->p.alignment != RAPT_OFFSET || take_int(ps, offset, &ps->p.q_offset);
}

static bool set_causal(parser *ps, span v) {
  ps->p.flags |= RAPT_CAUSAL;
  ps->causal_corner = v;
  return !v.s || set_corner(ps, v);
}

static bool set_align(parser *ps, span v) {
  ps->corner = v;
  return set_corner(ps, v);
}

static bool set_window(parser *ps, span v) {
  ps->p.has |= RAPT_HAS_WINDOW;
  return take_ints(ps, v, ',', 2, ps->p.window, "two bounds such as 255,0");
}

/* arr */
static bool take_array(parser *ps, span v, int32_t *dtype, bool *on_device) {
  span place, name = cut(v, '@', &place);
  *dtype = is(name, "int32") ? RAPT_INT32 : is(name, "int64") ? RAPT_INT64 : RAPT_NONE;
  *on_device = place.s != NULL;
  if (*dtype != RAPT_NONE && (!place.s || is(place, "dev"))) return true;
  return expected(ps, v.s, "int32, int64, int32@dev or int64@dev");
}

static bool set_qlen(parser *ps, span v) { return take_array(ps, v, &ps->p.q_len, &ps->qlen_on_device); }
static bool set_kvlen(parser *ps, span v) { return take_array(ps, v, &ps->p.kv_len, &ps->kvlen_on_device); }

static bool set_packed(parser *ps, span v) {
  span longest, array = cut(v, ',', &longest);
  bool on_device;
  int64_t max[2] = {0, 0};
  if (!take_array(ps, array, &ps->p.cu, &on_device)) return false;
  if (on_device) ps->p.flags |= RAPT_CU_ON_DEVICE;
  if (longest.s && !take_ints(ps, longest, '/', 2, max, "two lengths such as 200/300")) return false;
  ps->p.max_q = max[0];
  ps->p.max_k = max[1];
  return true;
}

static bool set_softcap(parser *ps, span v) { return take_number(ps, v, &ps->p.softcap); }
static bool set_dropout(parser *ps, span v) { return take_number(ps, v, &ps->p.dropout); }

static bool set_scale(parser *ps, span v) {
  ps->p.has |= RAPT_HAS_SCALE;
  return take_number(ps, v, &ps->p.scale);
}

static bool set_sinks(parser *ps, span v) {
  span length, dtype = cut(v, ':', &length);
  if (!take_dtype(ps, dtype, &ps->p.sinks.dtype)) return false;
  return !length.s || take_int(ps, length, &ps->p.sinks.size[0]);
}

static bool set_base(parser *ps, span v) { return take_ints(ps, v, ',', 4, ps->p.base, "four bases such as 0,4,0,0"); }

static bool set_seed(parser *ps, span v) {
  ps->p.flags |= RAPT_SEED_ON_DEVICE;
  return is(v, "dev") || expected(ps, v.s, "dev");
}

typedef struct flag_word { const char *word; uint64_t flag; } flag_word;

/* A list of words, each once, as flags. */
static bool take_words(parser *ps, span v, const flag_word *words, size_t n, const char *want) {
  uint64_t seen = 0;
  for (span item; next_item(&v, ',', &item);) {
    size_t i = 0;
    while (i < n && !is(item, words[i].word)) i++;
    if (i == n || (seen & words[i].flag)) return expected(ps, item.s, want);
    seen |= words[i].flag;
  }
  ps->p.flags |= seen;
  return true;
}

static bool set_grad(parser *ps, span v) {
  static const flag_word words[] = {{"q", RAPT_GRAD_Q}, {"k", RAPT_GRAD_K}, {"v", RAPT_GRAD_V},
                                    {"bias", RAPT_GRAD_BIAS}, {"sinks", RAPT_GRAD_SINKS}};
  return take_words(ps, v, words, 5, "some of q,k,v,bias,sinks, each once");
}

static bool set_allow(parser *ps, span v) {
  static const flag_word words[] = {{"approx", RAPT_ALLOW_APPROX}, {"reduced", RAPT_ALLOW_REDUCED},
                                    {"rng", RAPT_ALLOW_BACKEND_RNG}};
  return take_words(ps, v, words, 3, "some of approx,reduced,rng, each once");
}

static bool set_det(parser *ps, span v) {
  ps->p.determinism = is(v, "run") ? RAPT_DET_RUN : is(v, "threads") ? RAPT_DET_THREADS
                      : is(v, "batch") ? RAPT_DET_BATCH : RAPT_DET_NONE;
  return ps->p.determinism != RAPT_DET_NONE || expected(ps, v.s, "run, threads or batch");
}

static bool set_mem(parser *ps, span v) {
  ps->p.has |= RAPT_HAS_MEMORY_LIMIT;
  return take_int(ps, v, &ps->p.memory_limit);
}

static bool set_verify(parser *ps, span v) {
  int64_t rows;
  if (!take_int(ps, v, &rows)) return false;
  if (rows < 0 || rows > UINT32_MAX) return expected(ps, v.s, "a count of rows");
  ps->p.verify = (uint32_t)rows;
  return true;
}

static bool take_kind(parser *ps, span v, int32_t *out) {
  int kind = rapti_kind_find(v.s, v.n);
  *out = kind;
  return kind >= 0 || expected(ps, v.s, "a device kind such as cpu or cuda");
}

static bool set_dev(parser *ps, span v) {
  span index, kind = cut(v, ':', &index);
  int64_t number = 0;
  if (!take_kind(ps, kind, &ps->p.device) || (index.s && !take_int(ps, index, &number))) return false;
  if (number < INT32_MIN || number > INT32_MAX) return expected(ps, index.s, "a device index");
  ps->p.device_index = (int32_t)number;
  return true;
}

/* ---- Tokens without a value ---- */

static bool set_lse(parser *ps, span v) { (void)v; ps->p.flags |= RAPT_WANT_LSE; return true; }
static bool set_bwd(parser *ps, span v) { (void)v; ps->p.backward = 1; return true; }
static bool set_dlse(parser *ps, span v) { (void)v; ps->dlse = true; return true; }
static bool set_strict(parser *ps, span v) { (void)v; ps->p.flags |= RAPT_STRICT; return true; }
static bool set_mixed_kv(parser *ps, span v) { (void)v; ps->p.flags |= RAPT_MIXED_KV; return true; }
static bool set_finite(parser *ps, span v) { (void)v; ps->p.flags |= RAPT_ASSUME_FINITE; return true; }
static bool set_capture(parser *ps, span v) { (void)v; ps->p.flags |= RAPT_CAPTURE; return true; }

typedef enum value_use { BARE, VALUE, EITHER } value_use;
static const struct {
  const char *name;
  value_use use;
  bool (*set)(parser *ps, span v);
} keys[] = {{"out", VALUE, set_out}, {"gdt", VALUE, set_gdt}, {"layout", VALUE, keep_layout}, {"ptr", VALUE, keep_ptr},
            {"mask", VALUE, set_mask}, {"bias", VALUE, set_bias}, {"causal", EITHER, set_causal},
            {"align", VALUE, set_align}, {"window", VALUE, set_window}, {"qlen", VALUE, set_qlen},
            {"kvlen", VALUE, set_kvlen}, {"packed", VALUE, set_packed}, {"alibi", VALUE, keep_alibi},
            {"softcap", VALUE, set_softcap}, {"sinks", VALUE, set_sinks}, {"scale", VALUE, set_scale},
            {"dropout", VALUE, set_dropout}, {"base", VALUE, set_base}, {"seed", VALUE, set_seed},
            {"lse", BARE, set_lse}, {"bwd", BARE, set_bwd}, {"grad", VALUE, set_grad}, {"dlse", BARE, set_dlse},
            {"det", VALUE, set_det}, {"strict", BARE, set_strict}, {"mixed_kv", BARE, set_mixed_kv},
            {"assume_finite", BARE, set_finite}, {"capture", BARE, set_capture}, {"allow", VALUE, set_allow},
            {"mem", VALUE, set_mem}, {"verify", VALUE, set_verify}, {"autocast", VALUE, keep_autocast},
            {"dev", VALUE, set_dev}, {"require", VALUE, keep_require}, {"prefer", VALUE, keep_prefer},
            {"forbid", VALUE, keep_forbid}};
enum { KEYS = sizeof keys / sizeof keys[0] };

static bool unknown_key(parser *ps, span key) {
  rapti_near near = rapti_near_begin(key.s, key.n);
  char list[sizeof ps->why->want - 16];
  rapti_list names = rapti_list_begin(list, sizeof list);
  for (const char *size = "bhqkd"; *size; size++) rapti_list_add(&names, size, 1);
  for (int i = 0; i < KEYS; i++) {
    rapti_near_try(&near, keys[i].name, strlen(keys[i].name));
    rapti_list_add(&names, keys[i].name, strlen(keys[i].name));
  }
  rapti_reason_set(ps->why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_TEXT, -1, key.s - ps->text);
  rapti_reason_got_bytes(ps->why, key.s, key.n);
  if (key.n == 1 && strchr("bhqkd", key.s[0])) rapti_reason_want(ps->why, "a size follows its letter, as in %c1", key.s[0]);
  else if (near.best) rapti_reason_want(ps->why, "the nearest key is %.*s", (int)near.best_n, near.best);
  else rapti_reason_want(ps->why, "keys are %s", list);
  return false;
}

/* T.st=, T.ptr= */
static bool tensor_token(parser *ps, span key, span value) {
  span part, name = cut(key, '.', &part);
  bool strides = part.s && is(part, "st");
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST; field++) {
    if (!rapti_in_grammar(field) || !is(name, rapt_field_name(field))) continue;
    if (!strides && !(part.s && is(part, "ptr"))) break;
    span *slot = strides ? &ps->strides[field] : &ps->aligns[field];
    if (!value.s) return expected(ps, key.s + key.n, "\"=\" and a value");
    if (slot->s) return expected(ps, key.s, "each key once");
    *slot = value;
    return true;
  }
  return unknown_key(ps, key);
}

static bool key_token(parser *ps, span token) {
  span value, key = cut(token, '=', &value);
  int i = 0;
  while (i < KEYS && !is(key, keys[i].name)) i++;
  if (i == KEYS) return memchr(key.s, '.', key.n) ? tensor_token(ps, key, value) : unknown_key(ps, key);
  if (ps->seen_keys >> i & 1) return expected(ps, token.s, "each key once");
  ps->seen_keys |= UINT64_C(1) << i;
  if (!value.s && keys[i].use == VALUE) return expected(ps, key.s + key.n, "\"=\" and a value");
  if (value.s && keys[i].use == BARE) return expected(ps, key.s + key.n, "the word alone, without \"=\"");
  return keys[i].set(ps, value);
}

/* b, h, q, k, d */
static bool size_token(parser *ps, span token) {
  rapt_problem *p = &ps->p;
  static const char letters[] = "bhqkd";
  int which = (int)(strchr(letters, token.s[0]) - letters);
  int64_t *const first[] = {&p->B, &p->Hq, &p->Sq, &p->Skv, &p->D};
  int64_t *const second[] = {NULL, &p->Hkv, NULL, NULL, &p->Dv};
  if (ps->seen_sizes >> which & 1) return expected(ps, token.s, "each key once");
  ps->seen_sizes |= UINT64_C(1) << which;
  span other, size = cut((span){token.s + 1, token.n - 1}, '/', &other);
  if (!take_size(ps, size, first[which])) return false;
  if (!second[which]) return other.s ? expected(ps, other.s, "one size") : true;
  *second[which] = *first[which];
  return !other.s || take_size(ps, other, second[which]);
}

static bool dtypes_token(parser *ps, span token) {
  rapt_problem *p = &ps->p;
  span rest, third, fourth, first = cut(token, '/', &rest);
  if (!take_dtype(ps, first, &p->q.dtype)) return false;
  p->k.dtype = p->v.dtype = p->q.dtype;
  if (!rest.s) return true;
  span second = cut(rest, '/', &third);
  if (!third.s) return expected(ps, token.s + token.n, "one dtype, or three as in fp32/fp16/fp16");
  third = cut(third, '/', &fourth);
  if (fourth.s) return expected(ps, fourth.s, "three dtypes");
  return take_dtype(ps, second, &p->k.dtype) && take_dtype(ps, third, &p->v.dtype);
}

static bool take_token(parser *ps, span token, bool first) {
  if (first) return dtypes_token(ps, token);
  bool size = token.n > 1 && strchr("bhqkd", token.s[0]) && token.s[0] &&
              ((token.s[1] >= '0' && token.s[1] <= '9') || token.s[1] == '-');
  return size ? size_token(ps, token) : key_token(ps, token);
}

/* ---- What depends on other tokens ---- */

static bool apply_order(parser *ps, int field, span name) {
  for (int i = 0; i < RAPTI_ORDERS; i++) {
    if (!is(name, rapti_orders[i].name) || rapti_orders[i].packed != (ps->p.cu != RAPT_NONE)) continue;
    int64_t size[4], dense[4];
    int perm[4];
    rapt_desc *d = rapti_desc_of(&ps->p, field);
    rapti_tensor_sizes(&ps->p, field, size);
    rapti_dense_strides(size, rapti_orders[i].perm, d->stride);
    rapti_default_order(&ps->p, field, perm);
    rapti_dense_strides(size, perm, dense);
    if (rapti_same_strides(size, dense, d->stride)) memset(d->stride, 0, sizeof d->stride);
    else ps->p.has |= rapti_stride_bit(field);
    return true;
  }
  return expected(ps, name.s, ps->p.cu ? "shd or hsd" : "bhsd, bshd or sbhd");
}

static bool apply_strides(parser *ps, int field, span v) {
  int axes[4], n = rapti_logical_axes(&ps->p, field, axes);
  int64_t strides[4];
  bool number = v.n && (v.s[0] == '-' || (v.s[0] >= '0' && v.s[0] <= '9'));
  if (!number) return apply_order(ps, field, v);
  if (!take_ints(ps, v, ',', n, strides, "a stride for each logical axis")) return false;
  for (int i = 0; i < n; i++) rapti_desc_of(&ps->p, field)->stride[axes[i]] = strides[i];
  ps->p.has |= rapti_stride_bit(field);
  return true;
}

static bool apply_alignment(parser *ps, int field, span v) {
  int64_t bytes;
  if (!take_int(ps, v, &bytes)) return false;
  if (bytes < INT32_MIN || bytes > INT32_MAX) return expected(ps, v.s, "an alignment in bytes");
  rapti_desc_of(&ps->p, field)->ptr_align = (int32_t)bytes;
  return true;
}

static bool apply_memory(parser *ps) {
  for (int field = RAPTI_FIRST; field <= RAPTI_LAST; field++) {
    if (!rapti_in_grammar(field)) continue;
    bool present = rapti_tensor_present(&ps->p, field);
    span own = ps->strides[field], align = ps->aligns[field];
    if (own.s && !apply_strides(ps, field, own)) return false;
    if (!own.s && present && ps->layout.s && !apply_order(ps, field, ps->layout)) return false;
    if (align.s && !apply_alignment(ps, field, align)) return false;
    if (!align.s && present && ps->ptr.s && !apply_alignment(ps, field, ps->ptr)) return false;
  }
  return true;
}

static bool apply_alibi(parser *ps) {
  if (!ps->alibi.s) return true;
  ps->p.slopes.dtype = RAPT_FP32;
  ps->p.slopes.size[0] = is(ps->alibi, "bh") ? ps->p.B : 1;
  ps->p.slopes.size[1] = ps->p.Hq;
  return is(ps->alibi, "h") || is(ps->alibi, "bh") || expected(ps, ps->alibi.s, "h or bh");
}

static bool apply_autocast(parser *ps) {
  if (!ps->autocast.s) return true;
  span kind, dtype = cut(ps->autocast, '@', &kind);
  ps->p.has |= RAPT_HAS_AUTOCAST;
  ps->p.autocast_device = ps->p.device;
  if (!is(dtype, "auto") && !take_dtype(ps, dtype, &ps->p.autocast_dtype)) return false;
  return !kind.s || take_kind(ps, kind, &ps->p.autocast_device);
}

static bool apply_lengths(parser *ps) {
  if (ps->p.q_len && ps->p.kv_len && ps->qlen_on_device != ps->kvlen_on_device)
    return expected(ps, ps->text + ps->len, "qlen and kvlen in one place: both @dev or neither");
  if (ps->qlen_on_device || ps->kvlen_on_device) ps->p.flags |= RAPT_LENGTHS_ON_DEVICE;
  return true;
}

static bool check_names(parser *ps, span v) {
  for (span item; next_item(&v, ',', &item);) {
    if (item.n == 0) return expected(ps, item.s, "a name");
    for (size_t i = 0; i < item.n; i++) {
      char c = item.s[i];
      bool legal = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == ':';
      if (!legal) return expected(ps, item.s + i, "a name of a-z, 0-9, \"_\", \".\" and \":\"");
    }
  }
  return true;
}

/* Copies the lists to the caller's storage and points the problem at them. */
static bool apply_names(parser *ps, char *names, size_t n) {
  const char **const targets[LISTS] = {&ps->p.require, &ps->p.prefer, &ps->p.forbid};
  size_t used = 0;
  for (int i = 0; i < LISTS; i++)
    if (ps->lists[i].s && !check_names(ps, ps->lists[i])) return false;
  for (int i = 0; i < LISTS; i++) {
    span list = ps->lists[i];
    if (!list.s) continue;
    if (!names || list.n >= n - used) {
      rapti_reason_set(ps->why, RAPT_CODE_NULL, RAPT_FIELD_REQUIRE + i, -1, -1);
      rapti_reason_got(ps->why, names ? "storage of %zu bytes" : "no storage", n);
      rapti_reason_want(ps->why, "storage of %zu bytes for names", ps->len);
      return false;
    }
    memcpy(names + used, list.s, list.n);
    names[used + list.n] = '\0';
    *targets[i] = names + used;
    used += list.n + 1;
  }
  return true;
}

static bool sizes_missing(parser *ps) {
  char list[32];
  rapti_list names = rapti_list_begin(list, sizeof list);
  for (size_t i = 0; i < 5; i++)
    if (!(ps->seen_sizes >> i & 1)) rapti_list_add(&names, &"bhqkd"[i], 1);
  rapti_syntax(ps->why, RAPT_FIELD_TEXT, ps->text, ps->len, ps->len, "");
  rapti_reason_want(ps->why, "%s as well", list);
  return false;
}

static bool apply_rest(parser *ps, char *names, size_t n) {
  if (ps->seen_sizes != 31) return sizes_missing(ps);
  if (ps->corner.s && ps->causal_corner.s) return expected(ps, ps->corner.s, "one corner, not causal= and align=");
  if (ps->dlse) ps->p.dlse.dtype = ps->p.q.dtype == RAPT_FP64 ? RAPT_FP64 : RAPT_FP32;
  return apply_lengths(ps) && apply_alibi(ps) && apply_autocast(ps) && apply_memory(ps) && apply_names(ps, names, n);
}

rapt_status rapt_problem_parse(const char *text, size_t len, rapt_problem *p, char *names, size_t n, rapt_reason *why) {
  if (!text || !p) return rapti_fault(why, RAPT_CODE_NULL, text ? RAPT_FIELD_PROBLEM : RAPT_FIELD_TEXT);
  if (p->struct_size < sizeof *p) {
    rapti_fault(why, RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_STRUCT_SIZE);
    rapti_reason_got(why, "a rapt_problem of %lu bytes", (unsigned long)p->struct_size);
    rapti_reason_want(why, "this version's has %zu bytes", sizeof *p);
    return RAPT_ABI;
  }
  parser ps;
  memset(&ps, 0, sizeof ps);
  ps.text = text;
  ps.len = len;
  ps.why = why;
  ps.p.struct_size = p->struct_size;
  if (len > MAX_TEXT) return expected(&ps, text + MAX_TEXT, "at most 4096 bytes") ? RAPT_OK : RAPT_ARG;
  bool first = true;
  for (size_t at = 0, end; at < len; at = end) {
    for (end = at; end < len && !is_space(text[end]);) end++;
    if (end == at) { end++; continue; }
    if (!take_token(&ps, (span){text + at, end - at}, first)) return RAPT_ARG;
    first = false;
  }
  if (first) return expected(&ps, text + len, "dtypes such as fp32 or fp32/fp16/fp16") ? RAPT_OK : RAPT_ARG;
  if (!apply_rest(&ps, names, n)) return RAPT_ARG;
  memcpy(p, &ps.p, sizeof *p);
  return RAPT_OK;
}
