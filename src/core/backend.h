/* SPDX-License-Identifier: Apache-2.0 */
/* What the own backends see of core: nothing but this, provider.h and base. */
#ifndef RAPTI_BACKEND_H
#define RAPTI_BACKEND_H
#include "base/base.h"
#include "rapt/provider.h"

/* `self` of the own backends: the context's services. */
typedef struct rapti_services {
  uint32_t max_threads;
  void (*parallel_for)(void *self, uint32_t n, void (*task)(void *arg, uint32_t i), void *arg);
  void *parallel_self;
  void *(*alloc)(void *self, size_t bytes, size_t align);
  void (*free)(void *self, void *ptr);
  void *alloc_self;
} rapti_services;

/* Each returns a constant backend; the context fills self in. */
#define RAPTI_BACKEND(name) const rapt_backend *rapti_backend_##name(void);
#include "core/backends.def"
#undef RAPTI_BACKEND
#endif
