/* SPDX-License-Identifier: Apache-2.0 */
/* The environment, read when a context is made and never again (D23). */
#include "core/ctx.h"

#include <stdlib.h>
#include <string.h>

static const char *variable(const char *name) {
  const char *s = getenv(name);
  return s && *s ? s : NULL;              /* an empty variable is not set */
}

void rapti_env_blame(rapt_reason *why, int field) {
  if (why && why->struct_size >= offsetof(rapt_reason, axis)) why->field = field;
}

static rapt_status fault(const char *value, int code, int field, const char *want, rapt_reason *why) {
  rapti_reason_set(why, code, field, -1, code == RAPT_CODE_SYNTAX ? 0 : -1);
  rapti_reason_got(why, "%s", value);
  rapti_reason_want(why, "%s", want);
  return RAPT_ARG;
}

static rapt_status number(int field, int64_t least, int64_t *v, int32_t *has, rapt_reason *why) {
  const char *s = variable(rapt_field_name(field));
  *has = s != NULL;
  if (!s) return RAPT_OK;
  if (!rapti_parse_int(s, strlen(s), v)) return fault(s, RAPT_CODE_SYNTAX, field, "a whole number", why);
  if (*v < least) return fault(s, RAPT_CODE_SIZE, field, least ? "1 or more" : "0 or more", why);
  return RAPT_OK;
}

rapt_status rapti_env_read(rapti_env *env, rapt_reason *why) {
  int64_t v = 0;
  int32_t has = 0;
  env->require = variable("RAPT_REQUIRE");
  env->prefer = variable("RAPT_PREFER");
  env->forbid = variable("RAPT_FORBID");
  env->isa = variable("RAPT_ISA");
  env->log = variable("RAPT_LOG");
  rapt_status st = number(RAPT_FIELD_ENV_MEMORY_LIMIT, 0, &env->memory_limit, &env->has_memory_limit, why);
  if (st == RAPT_OK) st = number(RAPT_FIELD_ENV_REF_LIMIT, 1, &v, &env->has_ref_limit, why);
  env->ref_limit = (uint64_t)v;
  v = 0;
  if (st == RAPT_OK) st = number(RAPT_FIELD_ENV_VERIFY, 0, &v, &has, why);
  if (st == RAPT_OK && v != 0)
    st = fault(variable("RAPT_VERIFY"), RAPT_CODE_UNKNOWN_FIELD, RAPT_FIELD_ENV_VERIFY, "not in this version", why);
  return st;
}
