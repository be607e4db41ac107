/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of every dtype as doubles and back. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

int32_t cli_dtype_find(const char *s) {
  for (int32_t d = RAPT_FP16; d <= RAPT_FP8E5M2; d++)
    if (!strcmp(rapt_dtype_name(d), s)) return d;
  return -1;
}

bool cli_count(const int64_t *size, int rank, int64_t *count) {
  int64_t n = 1;
  bool zero = false;
  for (int i = 0; i < rank; i++) {
    if (size[i] < 0) return false;
    zero |= size[i] == 0;
    if (size[i] && __builtin_mul_overflow(n, size[i], &n)) return false;
  }
  *count = zero ? 0 : n;
  return true;
}

/* Nearest number with that many significant bits and that smallest unit, ties to even; top and above is infinite. */
static double narrow(double x, int bits, int lowest, double top) {
  if (x == 0 || !isfinite(x)) return x;
  int e;
  frexp(x, &e);
  int unit = e - bits > lowest ? e - bits : lowest;
  double y = ldexp(nearbyint(ldexp(x, -unit)), unit);
  return fabs(y) < top ? copysign(fabs(y), x) : copysign(INFINITY, x);
}

double cli_round(int32_t dtype, double x) {
  switch (dtype) {
    case RAPT_FP16: return narrow(x, 11, -24, 65536.0);
    case RAPT_BF16: return narrow(x, 8, -133, 0x1p128);
    case RAPT_FP32: return narrow(x, 24, -149, 0x1p128);
    default: return x;
  }
}

static uint16_t half_bits(double x) {
  uint16_t sign = signbit(x) ? 0x8000 : 0;
  double a = fabs(cli_round(RAPT_FP16, x));
  if (isnan(x)) return 0x7E00;
  if (isinf(a)) return (uint16_t)(sign | 0x7C00);
  if (a < 0x1p-14) return (uint16_t)(sign | (uint16_t)ldexp(a, 24));
  int e;
  double m = frexp(a, &e);                                     /* a = m 2^e, m in [1/2, 1) */
  return (uint16_t)(sign | ((e + 14) << 10) | ((int)ldexp(m, 11) & 0x3FF));
}

static double half_value(uint16_t h) {
  int e = (h >> 10) & 31, m = h & 0x3FF;
  double a = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(m + 1024, e - 25) : ldexp(m, -24);
  return h & 0x8000 ? -a : a;
}

typedef union element {
  uint16_t h;
  float f;
  double d;
  uint32_t u;
  int16_t s;
  int32_t i;
  int64_t l;
  uint8_t b;
  int8_t c;
} element;

double cli_load(int32_t dtype, const void *p) {
  element x;
  memset(&x, 0, sizeof x);
  memcpy(&x, p, rapt_dtype_bytes(dtype));
  switch (dtype) {
    case RAPT_FP16: return half_value(x.h);
    case RAPT_BF16: x.u = (uint32_t)x.h << 16; return (double)x.f;
    case RAPT_FP32: return (double)x.f;
    case RAPT_FP64: return x.d;
    case RAPT_BOOL: return x.b != 0;
    case RAPT_UINT8: return x.b;
    case RAPT_INT8: return x.c;
    case RAPT_INT16: return x.s;
    case RAPT_INT32: return x.i;
    case RAPT_INT64: return (double)x.l;
    default: return NAN;
  }
}

void cli_store(int32_t dtype, void *p, double x) {
  element y;
  memset(&y, 0, sizeof y);
  switch (dtype) {
    case RAPT_FP16: y.h = half_bits(x); break;
    case RAPT_BF16:
      y.f = (float)cli_round(RAPT_BF16, x);
      y.h = (uint16_t)(y.u >> 16);
      break;
    case RAPT_FP32: y.f = (float)x; break;
    case RAPT_FP64: y.d = x; break;
    case RAPT_BOOL:
    case RAPT_UINT8: y.b = (uint8_t)x; break;
    case RAPT_INT8: y.c = (int8_t)x; break;
    case RAPT_INT16: y.s = (int16_t)x; break;
    case RAPT_INT32: y.i = (int32_t)x; break;
    default: y.l = (int64_t)x; break;
  }
  memcpy(p, &y, rapt_dtype_bytes(dtype));
}

int cli_compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double cli_median(const double *x, size_t n) {
  if (!n) return NAN;
  double *s = cli_alloc(n, sizeof *s);
  memcpy(s, x, n * sizeof *s);
  qsort(s, n, sizeof *s, cli_compare_doubles);
  double m = n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
  free(s);
  return m;
}
