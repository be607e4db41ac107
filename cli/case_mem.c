/* SPDX-License-Identifier: Apache-2.0 */
/* Guarded memory for the tensors of a case. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "case.h"

enum { SAVE_MAX = 64 << 20, MARGIN = 64 };               /* bytes compared after a call; elements around a tensor */

bool case_region_make(case_region *r, size_t n) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (n + page - 1) / page * page;
  *r = (case_region){.map_bytes = body + 2 * page, .n = n};
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (n > SAVE_MAX ? MAP_NORESERVE : 0);
  r->map = mmap(NULL, r->map_bytes, PROT_NONE, flags, -1, 0);
  if (r->map == MAP_FAILED) {
    r->map = NULL;
    return false;
  }
  unsigned char *first = (unsigned char *)r->map + page;
  if (body && mprotect(first, body, PROT_READ | PROT_WRITE)) {
    case_region_free(r);
    return false;
  }
  r->bytes = first + body - n;
  if (n <= SAVE_MAX) memset(first, CASE_PATTERN, body);
  return true;
}

void case_region_free(case_region *r) {
  if (r->map) munmap(r->map, r->map_bytes);
  *r = (case_region){0};
}

void case_region_protect(const case_region *r, bool read_only) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (r->map && r->map_bytes > 2 * page)
    mprotect((char *)r->map + page, r->map_bytes - 2 * page, read_only ? PROT_READ : PROT_READ | PROT_WRITE);
}

int64_t case_span(const case_tensor *t, int lead) {
  int64_t n = 1;
  for (int i = lead; i < t->rank; i++) n *= t->size[i];
  return n;
}

void case_indices(const case_tensor *t, int64_t flat, int64_t index[4]) {
  for (int i = t->rank - 1; i >= 0; i--) {
    index[i] = flat % t->size[i];
    flat /= t->size[i];
  }
}

int64_t case_offset(const case_tensor *t, int64_t flat) {
  int64_t index[4], offset = 0;
  case_indices(t, flat, index);
  for (int i = 0; i < t->rank; i++) offset += index[i] * t->stride[i];
  return offset;
}

bool case_tensor_place(case_tensor *t, bool guard, const double *surround) {
  size_t es = rapt_dtype_bytes(t->dtype);
  int64_t low = 0, high = 0;
  for (int i = 0; i < t->rank; i++) {
    int64_t step;
    if (t->size[i] < 2) continue;
    if (__builtin_mul_overflow(t->size[i] - 1, t->stride[i], &step)) return false;
    if (__builtin_add_overflow(step < 0 ? low : high, step, step < 0 ? &low : &high)) return false;
  }
  if (!t->count) low = 0, high = -1;
  if (low < INT64_MIN / 64 || high > INT64_MAX / 64) return false;
  int64_t before = guard ? 0 : MARGIN, after = guard ? 0 : MARGIN;
  size_t elements = (size_t)(high - low + 1 + before + after);
  if (!case_region_make(&t->region, elements * es)) return false;
  t->base = t->region.bytes + (size_t)(before - low) * es;
  if (surround && t->region.n <= SAVE_MAX)
    for (size_t i = 0; i < elements; i++) cli_store(t->dtype, t->region.bytes + i * es, *surround);
  if (t->value) case_tensor_scatter(t, t->value);
  return true;
}

static unsigned char *element(const case_tensor *t, int64_t flat) {
  return t->base + case_offset(t, flat) * (int64_t)rapt_dtype_bytes(t->dtype);
}

void case_tensor_scatter(const case_tensor *t, const double *value) {
  for (int64_t i = 0; i < t->count; i++) cli_store(t->dtype, element(t, i), value[i]);
}

void case_tensor_gather(const case_tensor *t, double *value) {
  for (int64_t i = 0; i < t->count; i++) value[i] = cli_load(t->dtype, element(t, i));
}

void case_tensor_save(case_tensor *t) {
  if (!t->region.n || t->region.n > SAVE_MAX) return;
  if (!t->saved) t->saved = cli_alloc(t->region.n, 1);
  memcpy(t->saved, t->region.bytes, t->region.n);
}

bool case_tensor_same(const case_tensor *t) { return !t->saved || !memcmp(t->saved, t->region.bytes, t->region.n); }

static bool is_pattern(int32_t dtype, const unsigned char *e) {
  for (size_t i = 0; i < rapt_dtype_bytes(dtype); i++)
    if (e[i] != CASE_PATTERN) return false;
  return true;
}

/* In a copy of the bytes the elements are put back; then nothing may differ. */
bool case_tensor_gaps_same(const case_tensor *t) {
  size_t es = rapt_dtype_bytes(t->dtype);
  if (!t->saved) return true;
  unsigned char *now = cli_alloc(t->region.n, 1);
  memcpy(now, t->region.bytes, t->region.n);
  for (int64_t i = 0; i < t->count; i++) {
    size_t at = (size_t)(element(t, i) - t->region.bytes);
    memcpy(now + at, t->saved + at, es);
  }
  bool same = !memcmp(now, t->saved, t->region.n);
  free(now);
  return same;
}

void case_tensor_restore(const case_tensor *t) {
  if (t->saved) memcpy(t->region.bytes, t->saved, t->region.n);
}

int64_t case_tensor_unwritten(const case_tensor *t) {
  for (int64_t i = 0; i < t->count; i++)
    if (is_pattern(t->dtype, element(t, i))) return i;
  return -1;
}

void case_tensor_free(case_tensor *t) {
  case_region_free(&t->region);
  free(t->value);
  free(t->saved);
  *t = (case_tensor){0};
}
