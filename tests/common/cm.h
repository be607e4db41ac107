/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka with the headers it needs before it. */
#ifndef TC_CM_H
#define TC_CM_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#endif
