/* SPDX-License-Identifier: Apache-2.0 */
/* .safetensors files: eight bytes of header length, a JSON header, the data. All tensors of a header are checked, the
 * one that is asked for is read. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { HEADER_MAX = 100000000 };       /* the format's own limit */

static const struct {
  const char *name;
  int32_t dtype;
  int bits;
} dtypes[] = {
    {"F16", RAPT_FP16, 16},  {"BF16", RAPT_BF16, 16}, {"F32", RAPT_FP32, 32},       {"F64", RAPT_FP64, 64},
    {"BOOL", RAPT_BOOL, 8},  {"U8", RAPT_UINT8, 8},   {"I8", RAPT_INT8, 8},         {"I16", RAPT_INT16, 16},
    {"I32", RAPT_INT32, 32}, {"I64", RAPT_INT64, 64}, {"F8_E4M3", RAPT_FP8E4M3, 8}, {"F8_E5M2", RAPT_FP8E5M2, 8},
    {"U16", RAPT_NONE, 16},  {"U32", RAPT_NONE, 32},  {"U64", RAPT_NONE, 64},
};

typedef struct st_entry {
  const char *name;
  int64_t begin, end;
} st_entry;

static int by_begin(const void *a, const void *b) {
  const st_entry *x = a, *y = b;
  return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin) : (x->end > y->end) - (x->end < y->end);
}

/* The number of elements; false where a size is no whole number from 0, or their product leaves 64 bits. */
static bool count_elements(const json_t *shape, int64_t *count) {
  *count = 1;
  for (size_t i = 0; i < json_array_size(shape); i++) {
    const json_t *s = json_array_get(shape, i);
    if (!json_is_integer(s) || json_integer_value(s) < 0 ||
        __builtin_mul_overflow(*count, (int64_t)json_integer_value(s), count))
      return false;
  }
  return true;
}

/* dtype, shape and data_offsets of one tensor, checked against each other and the data's size. A dtype that is not
 * known, or too many axes, is no fault of the file: rank -1, such a tensor cannot be asked for. */
static bool check_entry(const char *name, const json_t *j, int64_t data, cli_array *a, st_entry *e, cli_str *error) {
  const char *word = json_string_value(json_object_get(j, "dtype"));
  const json_t *shape = json_object_get(j, "shape"), *offsets = json_object_get(j, "data_offsets");
  const json_t *b = json_array_get(offsets, 0), *n = json_array_get(offsets, 1);
  *a = (cli_array){0};
  *e = (st_entry){name, json_integer_value(b), json_integer_value(n)};
  if (!word || !json_is_array(shape) || json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(n)) {
    cli_str_printf(error, "tensor '%s': want dtype, shape and two data_offsets", name);
    return false;
  }
  int bits = 0;
  for (size_t i = 0; i < CLI_COUNT(dtypes); i++)
    if (!strcmp(word, dtypes[i].name)) a->dtype = dtypes[i].dtype, bits = dtypes[i].bits;
  int64_t count, bytes;
  if (!count_elements(shape, &count) || __builtin_mul_overflow(count, bits / 8, &bytes)) {
    cli_str_printf(error, "tensor '%s': shape is negative, no whole number, or leaves 64 bits", name);
    return false;
  }
  bool inside = e->begin >= 0 && e->end >= e->begin && e->end <= data;
  if (inside && !bits) bytes = e->end - e->begin;              /* its elements have a size that we do not know */
  if (!inside || e->end - e->begin != bytes) {
    cli_str_printf(error, "tensor '%s': data_offsets %lld,%lld, want %lld bytes within the file's %lld", name,
                   (long long)e->begin, (long long)e->end, (long long)bytes, (long long)data);
    return false;
  }
  a->bytes = (size_t)bytes;
  a->rank = json_array_size(shape) > CLI_COUNT(a->size) ? -1 : (int32_t)json_array_size(shape);
  for (int i = 0; i < a->rank; i++) a->size[i] = json_integer_value(json_array_get(shape, (size_t)i));
  return true;
}

/* Can the tensor that was asked for be read? */
static bool check_wanted(const json_t *j, const char *tensor, const cli_array *a, cli_str *error) {
  const json_t *entry = json_object_get(j, tensor);
  if (!a->dtype)
    cli_str_printf(error, "tensor '%s': dtype '%s' is not read, want F16 BF16 F32 F64 BOOL U8 I8 I16 I32 I64", tensor,
                   json_string_value(json_object_get(entry, "dtype")));
  else if (a->rank < 0)
    cli_str_printf(error, "tensor '%s': shape has %zu axes, at most 8 are read", tensor,
                   json_array_size(json_object_get(entry, "shape")));
  return !error->n;
}

/* No two tensors share a byte. */
static bool check_overlap(st_entry *e, size_t n, cli_str *error) {
  qsort(e, n, sizeof *e, by_begin);
  for (size_t i = 1; i < n; i++)
    if (e[i].begin < e[i - 1].end) {
      cli_str_printf(error, "tensors '%s' and '%s' overlap at byte %lld", e[i - 1].name, e[i].name,
                     (long long)e[i].begin);
      return false;
    }
  return true;
}

static bool check_header(json_t *j, const char *tensor, int64_t data, cli_array *a, st_entry *wanted, cli_str *error) {
  st_entry *entries = cli_alloc(json_object_size(j) + 1, sizeof *entries);
  size_t n = 0;
  bool ok = true, found = false;
  const char *name;
  json_t *value;
  cli_str known = {0};
  json_object_foreach(j, name, value) {
    cli_array one;
    if (!strcmp(name, "__metadata__")) continue;
    if (!(ok = check_entry(name, value, data, &one, &entries[n], error))) break;
    if (known.n < 200) cli_str_printf(&known, " %s", name);
    if (!strcmp(name, tensor)) {
      *a = one;
      *wanted = entries[n];
      found = true;
    }
    n++;
  }
  if (ok) ok = check_overlap(entries, n, error);
  if (ok && !found) {
    cli_str_printf(error, "has no tensor '%s', want one of:%s (FILE:TENSOR)", tensor, known.n ? known.s : " none");
    ok = false;
  } else if (ok) {
    ok = check_wanted(j, tensor, a, error);
  }
  cli_str_free(&known);
  free(entries);
  return ok;
}

static bool read_tensor(int fd, const char *header, size_t n, int64_t size, const char *tensor, cli_array *a,
                        cli_str *error) {
  json_error_t e;
  json_t *j = json_loadb(header, n, JSON_REJECT_DUPLICATES, &e);
  if (!json_is_object(j)) {
    cli_str_printf(error, "header line %d: %s", j ? 1 : e.line, j ? "want an object" : e.text);
    json_decref(j);
    return false;
  }
  st_entry wanted = {0};
  cli_array found = {0};
  int64_t start = 8 + (int64_t)n;
  bool ok = check_header(j, tensor, size - start, &found, &wanted, error);
  if (ok && !(ok = cli_array_make(a, found.dtype, found.rank, found.size)))
    cli_str_printf(error, "tensor '%s': %zu bytes cannot be had", tensor, found.bytes);
  if (ok && !(ok = cli_read_at(fd, a->data, a->bytes, start + wanted.begin))) {
    cli_str_printf(error, "cannot be read: %s", strerror(errno));
    cli_array_free(a);
  }
  json_decref(j);
  return ok;
}

bool cli_safetensors_read(const char *path, const char *tensor, cli_array *a, cli_str *error) {
  *a = (cli_array){0};
  unsigned char head[8];
  uint64_t n = 0;
  int64_t size;
  int fd = cli_open_read(path, &size, error);
  if (fd < 0) return false;
  bool ok = false;
  if (size < 10 || !cli_read_at(fd, head, 8, 0)) {
    cli_str_add(error, "is no .safetensors file: it has no header");
  } else {
    for (int i = 7; i >= 0; i--) n = n << 8 | head[i];
    if (n > HEADER_MAX || n > (uint64_t)size - 8) {
      cli_str_printf(error, "header length %llu: want at most %d and no more than the file holds",
                     (unsigned long long)n, HEADER_MAX);
    } else {
      char *header = cli_alloc((size_t)n + 1, 1);
      if (!cli_read_at(fd, header, (size_t)n, 8)) cli_str_printf(error, "cannot be read: %s", strerror(errno));
      else ok = read_tensor(fd, header, (size_t)n, size, tensor, a, error);
      free(header);
    }
  }
  close(fd);
  return ok;
}

static int by_element(const void *a, const void *b) {
  size_t x = rapt_dtype_bytes(((const cli_named *)a)->array->dtype);
  size_t y = rapt_dtype_bytes(((const cli_named *)b)->array->dtype);
  return (x < y) - (x > y);
}

/* Wide elements first, so that every tensor is aligned to its element. */
bool cli_safetensors_write(const char *path, cli_named *tensors, size_t n, cli_str *error) {
  json_t *j = json_object();
  int64_t offset = 0;
  qsort(tensors, n, sizeof *tensors, by_element);
  for (size_t i = 0; i < n; i++) {
    const cli_array *a = tensors[i].array;
    const char *word = "";
    for (size_t d = 0; d < CLI_COUNT(dtypes); d++)
      if (dtypes[d].dtype == a->dtype) word = dtypes[d].name;
    json_t *shape = json_array();
    for (int k = 0; k < a->rank; k++) json_array_append_new(shape, json_integer(a->size[k]));
    json_object_set_new(j, tensors[i].name,
                        json_pack("{s:s,s:o,s:[I,I]}", "dtype", word, "shape", shape, "data_offsets",
                                  (json_int_t)offset, (json_int_t)(offset + (int64_t)a->bytes)));
    offset += (int64_t)a->bytes;
  }
  cli_str h = {0};
  char *text = json_dumps(j, JSON_COMPACT);
  cli_str_add(&h, "........");
  cli_str_add(&h, text ? text : "{}");
  while (h.n % 8) cli_str_add(&h, " ");
  for (int i = 0; i < 8; i++) h.s[i] = (char)((uint64_t)(h.n - 8) >> (8 * i) & 255);
  int fd = cli_open_write(path, error);
  bool ok = fd >= 0 && cli_write_all(fd, h.s, h.n);
  for (size_t i = 0; ok && i < n; i++) ok = cli_write_all(fd, tensors[i].array->data, tensors[i].array->bytes);
  if (fd >= 0 && close(fd)) ok = false;
  if (!ok && !error->n) cli_str_printf(error, "cannot be written: %s", strerror(errno));
  cli_str_free(&h);
  free(text);
  json_decref(j);
  return ok;
}
