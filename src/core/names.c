/* SPDX-License-Identifier: Apache-2.0 */
/* Names of enum values: constants made from the X-macro lists (E7). */
#include "core/core.h"

#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

typedef struct dtype_info { const char *name; uint8_t bytes, is_float; } dtype_info;
static const dtype_info dtypes[] = {
#define RAPTI_DTYPE(value, text, bytes, is_float) [RAPT_##value] = {text, bytes, is_float},
#include "core/dtypes.def"
#undef RAPTI_DTYPE
};
_Static_assert(COUNT(dtypes) == RAPT_FP8E5M2 + 1, "dtypes.def");

static const char *const kinds[] = {
#define RAPTI_KIND(value, text, autocast) [RAPT_##value] = text,
#include "core/kinds.def"
#undef RAPTI_KIND
};
_Static_assert(COUNT(kinds) == RAPTI_KINDS, "kinds.def");

static const int8_t kind_autocast[] = {
#define RAPTI_KIND(value, text, autocast) [RAPT_##value] = RAPT_##autocast,
#include "core/kinds.def"
#undef RAPTI_KIND
};

static const char *const fields[] = {
#define RAPTI_FIELD(value, text) [RAPT_FIELD_##value] = text,
#include "core/fields.def"
#undef RAPTI_FIELD
};
_Static_assert(COUNT(fields) == RAPT_FIELD_COUNT, "fields.def");

static const rapti_code_info codes[] = {
    [RAPT_CODE_NONE] = {"NONE", NULL, NULL, NULL, NULL},
#define RAPTI_CODE(value, sentence, advice, fault, correction) \
  [RAPT_CODE_##value] = {#value, sentence, advice, fault, correction},
#include "core/codes.def"
#undef RAPTI_CODE
};
_Static_assert(COUNT(codes) == RAPT_CODE_COUNT, "codes.def");

static const char *const packages[] = {
#define RAPTI_PACKAGE(text) text,
#include "core/packages.def"
#undef RAPTI_PACKAGE
};
_Static_assert(COUNT(packages) == RAPTI_PACKAGES, "packages.def");

static const char *const statuses[] = {"OK",     "ARG",          "ABI",           "REFUSED", "NOMEM",
                                       "DEVICE_ERROR", "VERIFY_FAILED", "STALE",   "INTERNAL"};
_Static_assert(COUNT(statuses) == RAPT_INTERNAL + 1, "statuses");

#define TEXT(number) #number
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)
const char *rapt_version(void) { return DOTTED(RAPT_VERSION_MAJOR, RAPT_VERSION_MINOR, RAPT_VERSION_PATCH); }

static bool known(int32_t value, size_t count) { return value >= 0 && (size_t)value < count; }

const char *rapt_status_name(int32_t status) { return known(status, COUNT(statuses)) ? statuses[status] : "?"; }
const char *rapt_code_name(int32_t code) { return known(code, COUNT(codes)) ? codes[code].name : "?"; }
const char *rapt_dtype_name(int32_t dtype) { return known(dtype, COUNT(dtypes)) ? dtypes[dtype].name : "?"; }
const char *rapt_field_name(int32_t field) { return known(field, COUNT(fields)) ? fields[field] : "?"; }
size_t rapt_dtype_bytes(int32_t dtype) { return known(dtype, COUNT(dtypes)) ? dtypes[dtype].bytes : 0; }
bool rapti_dtype_is_float(int dtype) { return known(dtype, COUNT(dtypes)) && dtypes[dtype].is_float; }
const char *rapti_kind_name(int kind) { return known(kind, COUNT(kinds)) ? kinds[kind] : "?"; }
int rapti_kind_autocast(int kind) { return known(kind, COUNT(kinds)) ? kind_autocast[kind] : RAPT_NONE; }
const char *rapti_package_name(int i) { return known(i, COUNT(packages)) ? packages[i] : "?"; }

const rapti_code_info *rapti_code_get(int code) {
  return known(code, COUNT(codes)) ? &codes[code] : &codes[RAPT_CODE_NONE];
}

/* s[0..n) may hold any bytes, NUL too. */
static bool same(const char *name, const char *s, size_t n) { return strlen(name) == n && !memcmp(name, s, n); }

int rapti_dtype_find(const char *s, size_t n) {
  for (int i = RAPT_NONE + 1; i < (int)COUNT(dtypes); i++)
    if (same(dtypes[i].name, s, n)) return i;
  return -1;
}

int rapti_kind_find(const char *s, size_t n) {
  for (int i = 0; i < (int)COUNT(kinds); i++)
    if (same(kinds[i], s, n)) return i;
  return -1;
}

int rapti_package_find(const char *name, size_t n) {
  for (int i = 0; i < (int)COUNT(packages); i++)
    if (same(packages[i], name, n)) return i;
  return -1;
}
