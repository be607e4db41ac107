/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point modes of a thread: rounding, flushing of subnormals, traps, and the flags raised. The host's are
 * neither ours to compute under (N18, A8) nor ours to change (D22): what computes stands between enter and leave.
 * The memory barriers keep the compiler from moving what reads and writes memory out of there. */
#ifndef RAPTI_FLOAT_STATE_H
#define RAPTI_FLOAT_STATE_H
#include "base/base.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned rapti_float_state;
RAPTI_ALWAYS_INLINE rapti_float_state rapti_float_get(void) { return _mm_getcsr(); }
RAPTI_ALWAYS_INLINE void rapti_float_set(rapti_float_state s) { _mm_setcsr(s); }
#define RAPTI_FLOAT_DEFAULT 0x1f80u            /* nearest even, no flushing, nothing traps */
#elif defined(__aarch64__)
typedef struct rapti_float_state { uint64_t fpcr, fpsr; } rapti_float_state;
RAPTI_ALWAYS_INLINE rapti_float_state rapti_float_get(void) {
  rapti_float_state s;
  __asm__ volatile("mrs %0, fpcr\n mrs %1, fpsr" : "=r"(s.fpcr), "=r"(s.fpsr));
  return s;
}
RAPTI_ALWAYS_INLINE void rapti_float_set(rapti_float_state s) {
  __asm__ volatile("msr fpcr, %0\n msr fpsr, %1" : : "r"(s.fpcr), "r"(s.fpsr));
}
#define RAPTI_FLOAT_DEFAULT ((rapti_float_state){0, 0})
#else
#include <fenv.h>
typedef fenv_t rapti_float_state;
static inline rapti_float_state rapti_float_get(void) {
  fenv_t s;
  (void)fegetenv(&s);
  return s;
}
static inline void rapti_float_set(rapti_float_state s) { (void)fesetenv(&s); }
#define RAPTI_FLOAT_DEFAULT (*FE_DFL_ENV)
#endif

RAPTI_ALWAYS_INLINE rapti_float_state rapti_float_enter(void) {
  const rapti_float_state old = rapti_float_get();
  rapti_float_set(RAPTI_FLOAT_DEFAULT);
  __asm__ volatile("" : : : "memory");
  return old;
}

RAPTI_ALWAYS_INLINE void rapti_float_leave(rapti_float_state old) {
  __asm__ volatile("" : : : "memory");
  rapti_float_set(old);
}
#endif
