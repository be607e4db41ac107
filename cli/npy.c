/* SPDX-License-Identifier: Apache-2.0 */
/* .npy files, header versions 1.0 to 3.0: little endian f2 f4 f8 i4 i8, b1 and u1, C or Fortran order. Everything is
 * checked before the data is read; what is not understood is refused with a word. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

enum { HEADER_MAX = 65536 };

static const struct {
  const char *descr;
  int32_t dtype;
} descrs[] = {
    {"<f2", RAPT_FP16},  {"<f4", RAPT_FP32}, {"<f8", RAPT_FP64},  {"<i4", RAPT_INT32},
    {"<i8", RAPT_INT64}, {"|b1", RAPT_BOOL}, {"|u1", RAPT_UINT8},
};

bool cli_npy_has_dtype(int32_t dtype) {
  for (size_t i = 0; i < CLI_COUNT(descrs); i++)
    if (descrs[i].dtype == dtype) return true;
  return false;
}

/* ---- The header: a Python dict of a text, a truth value and a tuple ---- */

typedef struct npy_text {
  const char *s, *end;
  cli_str *error;
} npy_text;

static void skip_space(npy_text *t) {
  while (t->s < t->end && (*t->s == ' ' || *t->s == '\n' || *t->s == '\t' || *t->s == '\r')) t->s++;
}

static bool take(npy_text *t, char c) {
  skip_space(t);
  if (t->s == t->end || *t->s != c) return false;
  t->s++;
  return true;
}

static bool take_word(npy_text *t, const char *word) {
  size_t n = strlen(word);
  skip_space(t);
  if ((size_t)(t->end - t->s) < n || memcmp(t->s, word, n)) return false;
  t->s += n;
  return true;
}

static bool take_quoted(npy_text *t, char *buf, size_t n) {
  skip_space(t);
  if (t->s == t->end || (*t->s != '\'' && *t->s != '"')) return false;
  char quote = *t->s++;
  size_t i = 0;
  while (t->s < t->end && *t->s != quote && *t->s >= ' ' && *t->s != '\\' && i + 1 < n) buf[i++] = *t->s++;
  buf[i] = 0;
  return take(t, quote);
}

static bool take_int(npy_text *t, int64_t *x) {
  skip_space(t);
  const char *first = t->s;
  *x = 0;
  for (; t->s < t->end && *t->s >= '0' && *t->s <= '9'; t->s++)
    if (__builtin_mul_overflow(*x, 10, x) || __builtin_add_overflow(*x, *t->s - '0', x)) return false;
  return t->s > first;
}

static bool take_shape(npy_text *t, cli_array *a) {
  if (!take(t, '(')) return false;
  while (!take(t, ')')) {
    if (a->rank == 8) {
      cli_str_add(t->error, "shape: has more than 8 axes");
      return false;
    }
    if (!take_int(t, &a->size[a->rank])) return false;
    a->rank++;
    if (!take(t, ',')) {
      if (take(t, ')')) break;
      return false;
    }
  }
  return true;
}

static bool set_descr(const char *descr, cli_array *a, cli_str *error) {
  for (size_t i = 0; i < CLI_COUNT(descrs); i++)
    if (!strcmp(descr, descrs[i].descr)) a->dtype = descrs[i].dtype;
  if (a->dtype) return true;
  if (*descr == '>') cli_str_printf(error, "descr '%s': is big endian, want little endian", descr);
  else if (!strcmp(descr, "|V2") || !strcmp(descr, "<V2"))
    cli_str_printf(error, "descr '%s': two bytes without a type. .npy has no bf16, put bf16 into .safetensors", descr);
  else if (!strcmp(descr, "|O")) cli_str_add(error, "descr '|O': Python objects are not read");
  else cli_str_printf(error, "descr '%s': want one of <f2 <f4 <f8 <i4 <i8 |b1 |u1", descr);
  return false;
}

static bool parse_header(npy_text *t, cli_array *a, bool *fortran) {
  char key[32], descr[64] = "";
  unsigned seen = 0;
  if (!take(t, '{')) return false;
  while (!take(t, '}')) {
    if (!take_quoted(t, key, sizeof key) || !take(t, ':')) return false;
    unsigned bit = !strcmp(key, "descr") ? 1 : !strcmp(key, "fortran_order") ? 2 : !strcmp(key, "shape") ? 4 : 0;
    if (!bit || seen & bit) {
      cli_str_printf(t->error, "header key '%s': is %s", key, bit ? "given twice" : "not known");
      return false;
    }
    seen |= bit;
    if (bit == 1 && !take_quoted(t, descr, sizeof descr)) {
      cli_str_add(t->error, "descr: want one dtype, records are not read");
      return false;
    }
    if (bit == 2 && !(*fortran = take_word(t, "True")) && !take_word(t, "False")) return false;
    if (bit == 4 && !take_shape(t, a)) return false;
    if (!take(t, ',') && !(take(t, '}') && (t->s--, true))) return false;
  }
  skip_space(t);
  if (seen != 7 || t->s != t->end) return false;
  return set_descr(descr, a, t->error);
}

/* ---- Files ---- */

static void set_strides(cli_array *a, bool fortran) {
  int64_t step = 1;
  for (int i = 0; i < a->rank; i++) {
    int axis = fortran ? i : a->rank - 1 - i;
    a->stride[axis] = step;
    if (a->size[axis]) step *= a->size[axis];          /* the count is checked, the product cannot overflow */
  }
}

static bool read_data(int fd, int64_t offset, int64_t file_size, cli_array *a, cli_str *error) {
  int64_t count, bytes;
  if (!cli_count(a->size, a->rank, &count) ||
      __builtin_mul_overflow(count, (int64_t)rapt_dtype_bytes(a->dtype), &bytes)) {
    cli_str_add(error, "shape: the number of bytes leaves 64 bits");
    return false;
  }
  if (bytes != file_size - offset) {
    cli_str_printf(error, "shape: needs %lld bytes of data, the file has %lld", (long long)bytes,
                   (long long)(file_size - offset));
    return false;
  }
  cli_array made = {0};
  if (!cli_array_make(&made, a->dtype, a->rank, a->size)) {
    cli_str_printf(error, "shape: %lld bytes cannot be had", (long long)bytes);
    return false;
  }
  a->data = made.data;
  a->bytes = made.bytes;
  if (cli_read_at(fd, a->data, a->bytes, offset)) return true;
  cli_str_printf(error, "cannot be read: %s", strerror(errno));
  cli_array_free(a);
  return false;
}

static bool read_open(int fd, int64_t size, cli_array *a, cli_str *error) {
  unsigned char head[12] = {0};
  if (size < 12 || !cli_read_at(fd, head, 12, 0) || memcmp(head, "\x93NUMPY", 6)) {
    cli_str_add(error, "is no .npy file: it does not start with its mark and a header");
    return false;
  }
  if (head[6] < 1 || head[6] > 3 || head[7]) {
    cli_str_printf(error, "header version %d.%d: want 1.0, 2.0 or 3.0", head[6], head[7]);
    return false;
  }
  int64_t start = head[6] == 1 ? 10 : 12;
  uint64_t n = head[8] | (uint64_t)head[9] << 8;
  if (head[6] > 1) n |= (uint64_t)head[10] << 16 | (uint64_t)head[11] << 24;
  if (n > HEADER_MAX || (int64_t)n > size - start) {
    cli_str_printf(error, "header length %llu: want at most %d and no more than the file holds", (unsigned long long)n,
                   HEADER_MAX);
    return false;
  }
  char header[HEADER_MAX];
  npy_text t = {header, header + n, error};
  bool fortran = false;
  if (!cli_read_at(fd, header, n, start) || !parse_header(&t, a, &fortran)) {
    if (!error->n) cli_str_printf(error, "header: byte %lld is not understood", (long long)(start + (t.s - header)));
    return false;
  }
  if (!read_data(fd, start + (int64_t)n, size, a, error)) return false;
  set_strides(a, fortran);
  return true;
}

bool cli_npy_read(const char *path, cli_array *a, cli_str *error) {
  *a = (cli_array){0};
  int64_t size;
  int fd = cli_open_read(path, &size, error);
  if (fd < 0) return false;
  bool ok = read_open(fd, size, a, error);
  close(fd);
  return ok;
}

bool cli_npy_write(const char *path, const cli_array *a, cli_str *error) {
  cli_str h = {0};
  const char *descr = NULL;
  for (size_t i = 0; i < CLI_COUNT(descrs); i++)
    if (descrs[i].dtype == a->dtype) descr = descrs[i].descr;
  if (!descr) {
    cli_str_printf(error, "%s has no .npy form, name a .safetensors file", rapt_dtype_name(a->dtype));
    return false;
  }
  cli_str_put(&h, "\x93NUMPY\x01\x00..", 10);
  cli_str_printf(&h, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
  for (int i = 0; i < a->rank; i++) cli_str_printf(&h, "%lld,%s", (long long)a->size[i], i + 1 < a->rank ? " " : "");
  cli_str_add(&h, "), }");
  while ((h.n + 1) % 64) cli_str_add(&h, " ");
  cli_str_add(&h, "\n");
  h.s[8] = (char)((h.n - 10) & 255);
  h.s[9] = (char)((h.n - 10) >> 8);
  int fd = cli_open_write(path, error);
  bool ok = fd >= 0 && cli_write_all(fd, h.s, h.n) && cli_write_all(fd, a->data, a->bytes);
  if (fd >= 0 && close(fd)) ok = false;
  if (!ok && !error->n) cli_str_printf(error, "cannot be written: %s", strerror(errno));
  cli_str_free(&h);
  return ok;
}
