/* SPDX-License-Identifier: Apache-2.0 */
/* base: no attention words. Checked arithmetic, bounded text, numbers as text in any locale. Needs libc only. */
#ifndef RAPTI_BASE_H
#define RAPTI_BASE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RAPTI_ALWAYS_INLINE static inline __attribute__((always_inline))
#define RAPTI_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define RAPTI_ALWAYS_INLINE static inline
#define RAPTI_PRINTF(f, a)
#endif

/* a*b and a+b in int64; false on overflow, *r is then unspecified. */
static inline bool rapti_mul(int64_t a, int64_t b, int64_t *r) { return !__builtin_mul_overflow(a, b, r); }
static inline bool rapti_add(int64_t a, int64_t b, int64_t *r) { return !__builtin_add_overflow(a, b, r); }
static inline size_t rapti_align64(size_t n) { return (n + 63u) & ~(size_t)63u; }

/* Text into a caller's buffer: counts everything, writes what fits, always ends in NUL where n > 0 (E7). */
typedef struct rapti_text {
  char *buf;
  size_t n, len;          /* len: full length so far, without NUL */
} rapti_text;
static inline rapti_text rapti_text_begin(char *buf, size_t n) {
  if (n) buf[0] = '\0';
  rapti_text t = {buf, n, 0};
  return t;
}
void rapti_text_putn(rapti_text *t, const char *s, size_t n);
void rapti_text_put(rapti_text *t, const char *s);
void rapti_text_putc(rapti_text *t, char c);
void rapti_text_int(rapti_text *t, int64_t v);
void rapti_text_uint(rapti_text *t, uint64_t v);
/* Shortest text that reads back as the same double; "inf", "-inf", "nan"; "." in any locale. */
void rapti_text_double(rapti_text *t, double v);
/* JSON string with quotes, escapes and invalid UTF-8 replaced. */
void rapti_text_json(rapti_text *t, const char *s);
/* Cuts a truncated text at a UTF-8 character boundary; call last. Returns the full length. */
size_t rapti_text_end(rapti_text *t);
/* For the got and want fields of reasons: %s %c %d %ld %lld %zu PRId64 only, never floats (locale). */
void rapti_text_printf(rapti_text *t, const char *format, ...) RAPTI_PRINTF(2, 3);

/* Whole of s[0..n) as a number, any locale. false: malformed or out of range. */
bool rapti_parse_int(const char *s, size_t n, int64_t *v);
bool rapti_parse_double(const char *s, size_t n, double *v);   /* decimal, inf, -inf, nan */

/* CPU levels, weakest to strongest within an architecture (D26). The CPU's bits and what the OS enabled; never an
 * override. Values index rapti_isa_name. */
typedef enum rapti_isa {
  RAPTI_ISA_SCALAR = 0, RAPTI_ISA_AVX2, RAPTI_ISA_AVX512, RAPTI_ISA_AVX512BF16, RAPTI_ISA_NEON, RAPTI_ISA_NEON_BF16,
  RAPTI_ISA_COUNT
} rapti_isa;
rapti_isa rapti_isa_detect(void);
const char *rapti_isa_name(int isa);                 /* "avx2"; "?" for an unknown value */
int rapti_isa_find(const char *name, size_t n);      /* -1: unknown */
bool rapti_isa_covers(int have, int need);           /* have can run code of need: scalar < avx2 < ..; scalar < neon < .. */
/* The same from given words, for tests: leaf 1 ecx, leaf 7 ebx, leaf 7.1 eax, xcr0 (0 where OSXSAVE is off). */
rapti_isa rapti_isa_from_x86(uint32_t l1_ecx, uint32_t l7_ebx, uint32_t l7_1_eax, uint64_t xcr0);
uint32_t rapti_usable_cores(void);                   /* affinity mask and cgroup quota; >= 1 */

/* The pool: fork-safe, created without threads; threads start at the first run that needs them. */
typedef struct rapti_pool rapti_pool;
rapti_pool *rapti_pool_create(uint32_t max_threads); /* NULL: out of memory */
void rapti_pool_destroy(rapti_pool *p);
/* task(arg, 0) .. task(arg, n-1), each once, the caller takes part; returns when all are done. Nested or concurrent
 * calls run inline in the caller. In a forked child new threads are started. Results may not depend on who runs what. */
void rapti_pool_run(rapti_pool *p, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg);
#endif
