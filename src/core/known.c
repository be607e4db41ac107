/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of backends that come from outside, for the binding or plugin that brings one of them. */
#include "core/backend.h"

#include <string.h>

const rapt_backend *rapt_backend_known(const char *row)
{
  static const rapt_backend *(*const all[])(void) = {
#define RAPTI_BACKEND(name) rapti_backend_##name,
#include "core/backends.def"
#undef RAPTI_BACKEND
  };
  for (size_t i = 0; row && i < sizeof all / sizeof all[0]; i++) {
    const rapt_backend *b = all[i]();
    for (uint32_t j = 0; j < b->n_rows; j++)
      if (strcmp(b->rows[j].id, row) == 0) return b->rows[j].place == RAPT_PLACE_OWN ? NULL : b;
  }
  return NULL;
}
