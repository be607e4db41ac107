/* SPDX-License-Identifier: Apache-2.0 */
/* FILE or FILE:TENSOR, and the memory of arrays. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

bool cli_array_make(cli_array *a, int32_t dtype, int rank, const int64_t *size) {
  int64_t count;
  size_t bytes;
  *a = (cli_array){.dtype = dtype, .rank = rank};
  if (!cli_count(size, rank, &count) || __builtin_mul_overflow((size_t)count, rapt_dtype_bytes(dtype), &bytes) ||
      bytes > PTRDIFF_MAX - 64)
    return false;
  int64_t step = 1;
  for (int i = rank - 1; i >= 0; i--) {
    a->size[i] = size[i];
    a->stride[i] = step;
    if (size[i]) step *= size[i];
  }
  a->bytes = bytes;
  a->data = aligned_alloc(64, (bytes + 64) / 64 * 64);
  if (a->data) memset(a->data, 0, bytes);
  return a->data != NULL;
}

void cli_array_free(cli_array *a) {
  free(a->data);
  *a = (cli_array){0};
}

static bool ends_with(const char *s, const char *end) {
  size_t n = strlen(s), m = strlen(end);
  return n > m && !strcmp(s + n - m, end);
}

bool cli_place_parse(const char *text, const char *name, cli_place *place, cli_str *error) {
  *place = (cli_place){0};
  const char *mark = ".safetensors:", *colon = strstr(text, mark);
  for (const char *next; colon && (next = strstr(colon + 1, mark));) colon = next;     /* the last one */
  size_t n = colon ? (size_t)(colon - text) + strlen(mark) - 1 : strlen(text);
  place->path = cli_alloc(n + 1, 1);
  memcpy(place->path, text, n);
  const char *tensor = colon ? text + n + 1 : name;
  place->tensor = cli_alloc(strlen(tensor) + 1, 1);
  memcpy(place->tensor, tensor, strlen(tensor));
  place->safetensors = ends_with(place->path, ".safetensors");
  if (!place->safetensors && !ends_with(place->path, ".npy"))
    cli_str_add(error, "want FILE.npy, FILE.safetensors or FILE.safetensors:TENSOR");
  else if (colon && !*tensor) cli_str_add(error, "want the name of a tensor behind the colon");
  else return true;
  cli_place_free(place);
  return false;
}

void cli_place_free(cli_place *place) {
  free(place->path);
  free(place->tensor);
  *place = (cli_place){0};
}

bool cli_place_read(const cli_place *place, cli_array *a, cli_str *error) {
  return place->safetensors ? cli_safetensors_read(place->path, place->tensor, a, error)
                            : cli_npy_read(place->path, a, error);
}
