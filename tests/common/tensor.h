/* SPDX-License-Identifier: Apache-2.0 */
/* Test tensors: logical [a,b,c,d] in memory of any strides, beside guard pages, with canary bytes in every gap. */
#ifndef TC_TENSOR_H
#define TC_TENSOR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a tensor lies in its pages; the pages before and after cannot be touched. */
typedef enum tc_place {
  TC_AT_END = 0,          /* its last byte is the last before a guard page */
  TC_AT_START,            /* its first byte is the first after a guard page */
  TC_SHIFTED              /* an odd number of elements after a page's start */
} tc_place;

typedef struct tc_tensor {
  int dtype;              /* RAPT_NONE: absent, base is NULL */
  size_t element;         /* bytes */
  int64_t size[4], stride[4];
  unsigned char *map;     /* usable pages, without the guards */
  size_t bytes;           /* of map */
  unsigned char *base;    /* element (0,0,0,0); with no elements an address that cannot be read */
} tc_tensor;

int64_t tc_count(const tc_tensor *t);                       /* elements, logical */
void tc_tensor_make(tc_tensor *t, int dtype, const int64_t size[4], const int64_t stride[4], tc_place place);
void tc_tensor_free(tc_tensor *t);
/* at: logical index; conversions are this file's own, not the library's. Rounds to nearest even. */
double tc_get(const tc_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d);
void tc_set(tc_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d, double value);
unsigned char *tc_at(const tc_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d);
/* Every logical element in order, for generators: index n = ((a*B + b)*C + c)*D + d. */
void tc_set_nth(tc_tensor *t, int64_t n, double value);
double tc_get_nth(const tc_tensor *t, int64_t n);
void tc_read_only(tc_tensor *t, bool on);                   /* a write then faults (S13) */
/* Outputs. Canary bytes are 0xff: a NaN of every float type. */
void tc_canary(tc_tensor *t);
int64_t tc_unwritten(const tc_tensor *t);                   /* elements still all canary: S16 */
int64_t tc_spilled(const tc_tensor *t);                     /* bytes changed outside the elements: S13 */
bool tc_same_bits(const tc_tensor *a, const tc_tensor *b);  /* same logical elements, bit for bit */

double tc_fp16_decode(uint16_t bits);
uint16_t tc_fp16_encode(double value);
uint16_t tc_bf16_encode(double value);
double tc_round_to(int dtype, double value);

/* xorshift generator: the same cases on every machine. */
typedef struct tc_rng { uint64_t state; } tc_rng;
uint64_t tc_next(tc_rng *r);
int64_t tc_below(tc_rng *r, int64_t n);                     /* 0 .. n-1; n >= 1 */
double tc_unit(tc_rng *r);                                  /* [0,1) */
#endif
