/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RAPTI_ALIAS_H
#define RAPTI_ALIAS_H
#include "base/base.h"

/* lead and a comma separated list of names in canonical form: aliases and display names of the built-in tables become
 * ids or prefixes, sorted without duplicates where the order means nothing. Nothing is written for NULL or "". */
void rapti_put_names(rapti_text *t, const char *lead, const char *names, bool sorted);
#endif
