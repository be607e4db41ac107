/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RAPT_DEMO_H
#define RAPT_DEMO_H
#include <stddef.h>
#include <stdint.h>

#include "rapt/rapt.h"

double demo_now(void);                      /* seconds */
void *demo_alloc(size_t bytes);             /* 64-byte aligned; ends the program when there is no memory */
double demo_median(double *x, int n);       /* sorts x */
rapt_problem demo_problem(const char *text);
void demo_print_report(const rapt_report *r, int form);   /* rapt_form */
/* Part (d): the layers of folder. Returns the number of failures. */
int demo_layers(rapt_ctx *ctx, const char *folder);
#endif
