/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tensor.h"

#include "rapt/rapt.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void die(const char *what) {
  fprintf(stderr, "test memory: %s failed\n", what);
  exit(99);
}

static size_t bytes_of(int dtype) {
  switch (dtype) {
  case RAPT_FP16: case RAPT_BF16: return 2;
  case RAPT_FP32: case RAPT_INT32: return 4;
  case RAPT_FP64: case RAPT_INT64: return 8;
  default: return 1;
  }
}

/* ---- Half types, apart from the library's conversions ---- */

double tc_fp16_decode(uint16_t bits) {
  int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double value = exponent == 31 ? (fraction ? NAN : INFINITY)
                 : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                : ldexp(fraction, -24);
  return bits & 0x8000 ? -value : value;
}

/* A magnitude in units of its last place, rounded to even, as bits of a type with `fraction` stored fraction bits and
 * smallest normal exponent `low`: the carry of a full fraction moves into the exponent by itself. */
static uint64_t encode(double magnitude, int fraction, int low, uint64_t infinity) {
  int e = 0;
  frexp(magnitude, &e);
  e -= 1;
  if (magnitude == 0 || e < low) e = low;
  double units = nearbyint(ldexp(magnitude, fraction - e));
  uint64_t bits = (uint64_t)units + ((uint64_t)(e - low) << fraction);
  return bits > infinity ? infinity : bits;
}

uint16_t tc_fp16_encode(double value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  if (isnan(value)) return 0x7e00;
  if (isinf(value)) return (uint16_t)(sign | 0x7c00);
  return (uint16_t)(sign | encode(fabs(value), 10, -14, 0x7c00));
}

uint16_t tc_bf16_encode(double value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  if (isnan(value)) return 0x7fc0;
  if (isinf(value)) return (uint16_t)(sign | 0x7f80);
  return (uint16_t)(sign | encode(fabs(value), 7, -126, 0x7f80));
}

static double bf16_decode(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float f;
  memcpy(&f, &wide, 4);
  return (double)f;
}

double tc_round_to(int dtype, double value) {
  if (dtype == RAPT_FP16) return tc_fp16_decode(tc_fp16_encode(value));
  if (dtype == RAPT_BF16) return bf16_decode(tc_bf16_encode(value));
  return dtype == RAPT_FP32 ? (double)(float)value : value;
}

static double decode_at(const unsigned char *p, int dtype) {
  uint16_t h;
  float f;
  double d;
  int32_t i;
  int64_t l;
  switch (dtype) {
  case RAPT_FP16: memcpy(&h, p, 2); return tc_fp16_decode(h);
  case RAPT_BF16: memcpy(&h, p, 2); return bf16_decode(h);
  case RAPT_FP32: memcpy(&f, p, 4); return (double)f;
  case RAPT_FP64: memcpy(&d, p, 8); return d;
  case RAPT_INT32: memcpy(&i, p, 4); return i;
  case RAPT_INT64: memcpy(&l, p, 8); return (double)l;
  default: return *p;
  }
}

static void encode_at(unsigned char *p, int dtype, double value) {
  uint16_t h = dtype == RAPT_FP16 ? tc_fp16_encode(value) : dtype == RAPT_BF16 ? tc_bf16_encode(value) : 0;
  float f = dtype == RAPT_FP32 ? (float)value : 0;
  int32_t i = dtype == RAPT_INT32 ? (int32_t)value : 0;
  int64_t l = dtype == RAPT_INT64 ? (int64_t)value : 0;
  switch (dtype) {
  case RAPT_FP16: case RAPT_BF16: memcpy(p, &h, 2); break;
  case RAPT_FP32: memcpy(p, &f, 4); break;
  case RAPT_FP64: memcpy(p, &value, 8); break;
  case RAPT_INT32: memcpy(p, &i, 4); break;
  case RAPT_INT64: memcpy(p, &l, 8); break;
  default: *p = (unsigned char)value; break;
  }
}

/* ---- Memory ---- */

int64_t tc_count(const tc_tensor *t) { return t->size[0] * t->size[1] * t->size[2] * t->size[3]; }

static void extent(const tc_tensor *t, int64_t *low, int64_t *high) {
  *low = *high = 0;
  for (int a = 0; a < 4; a++) {
    int64_t reach = t->size[a] > 1 ? (t->size[a] - 1) * t->stride[a] : 0;
    *(reach < 0 ? low : high) += reach;
  }
}

void tc_tensor_make(tc_tensor *t, int dtype, const int64_t size[4], const int64_t stride[4], tc_place place) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  memset(t, 0, sizeof *t);
  t->dtype = dtype;
  t->element = bytes_of(dtype);
  memcpy(t->size, size, sizeof t->size);
  memcpy(t->stride, stride, sizeof t->stride);
  int64_t low, high;
  extent(t, &low, &high);
  size_t span = tc_count(t) ? (size_t)(high - low + 1) * t->element : 0;
  size_t shift = place == TC_SHIFTED ? 3 * t->element : 0;
  t->bytes = (span + shift + page - 1) / page * page;
  if (!t->bytes) t->bytes = page;
  unsigned char *all = mmap(NULL, t->bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) die("mmap");
  t->map = all + page;
  if (mprotect(t->map, t->bytes, PROT_READ | PROT_WRITE)) die("mprotect");
  memset(t->map, 0xff, t->bytes);
  t->base = t->map + shift;
  if (place == TC_AT_END || !span) t->base = t->map + t->bytes - span;
  t->base -= low * (int64_t)t->element;
}

void tc_tensor_free(tc_tensor *t) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (t->map) munmap(t->map - page, t->bytes + 2 * page);
  memset(t, 0, sizeof *t);
}

unsigned char *tc_at(const tc_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
  int64_t at = a * t->stride[0] + b * t->stride[1] + c * t->stride[2] + d * t->stride[3];
  return t->base + at * (int64_t)t->element;
}

double tc_get(const tc_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d) {
  return decode_at(tc_at(t, a, b, c, d), t->dtype);
}

void tc_set(tc_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d, double value) {
  encode_at(tc_at(t, a, b, c, d), t->dtype, value);
}

static unsigned char *nth(const tc_tensor *t, int64_t n) {
  int64_t d = n % t->size[3], c = n / t->size[3] % t->size[2], b = n / t->size[3] / t->size[2] % t->size[1];
  return tc_at(t, n / t->size[3] / t->size[2] / t->size[1], b, c, d);
}

void tc_set_nth(tc_tensor *t, int64_t n, double value) { encode_at(nth(t, n), t->dtype, value); }
double tc_get_nth(const tc_tensor *t, int64_t n) { return decode_at(nth(t, n), t->dtype); }

void tc_read_only(tc_tensor *t, bool on) {
  if (t->map && mprotect(t->map, t->bytes, on ? PROT_READ : PROT_READ | PROT_WRITE)) die("mprotect");
}

void tc_canary(tc_tensor *t) {
  if (t->map) memset(t->map, 0xff, t->bytes);
}

static bool all_canary(const unsigned char *p, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (p[i] != 0xff) return false;
  return true;
}

int64_t tc_unwritten(const tc_tensor *t) {
  int64_t unwritten = 0;
  for (int64_t n = 0, count = tc_count(t); n < count; n++) unwritten += all_canary(nth(t, n), t->element);
  return unwritten;
}

int64_t tc_spilled(const tc_tensor *t) {
  if (!t->map) return 0;
  unsigned char *addressed = calloc(t->bytes, 1);
  if (!addressed) die("calloc");
  for (int64_t n = 0, count = tc_count(t); n < count; n++) memset(addressed + (nth(t, n) - t->map), 1, t->element);
  int64_t spilled = 0;
  for (size_t i = 0; i < t->bytes; i++) spilled += !addressed[i] && t->map[i] != 0xff;
  free(addressed);
  return spilled;
}

bool tc_same_bits(const tc_tensor *a, const tc_tensor *b) {
  if (a->dtype != b->dtype || memcmp(a->size, b->size, sizeof a->size)) return false;
  for (int64_t n = 0, count = tc_count(a); n < count; n++)
    if (memcmp(nth(a, n), nth(b, n), a->element)) return false;
  return true;
}

/* ---- Generator ---- */

uint64_t tc_next(tc_rng *r) {
  uint64_t x = r->state ? r->state : 0x9e3779b97f4a7c15u;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  r->state = x;
  return x * 0x2545f4914f6cdd1du >> 11;
}

int64_t tc_below(tc_rng *r, int64_t n) { return (int64_t)(tc_next(r) % (uint64_t)n); }
double tc_unit(tc_rng *r) { return (double)tc_next(r) * 0x1p-53; }
