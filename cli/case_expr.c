/* SPDX-License-Identifier: Apache-2.0 */
/* C expressions without division: a recursive-descent parser that writes a postfix program. No short cuts are needed,
 * since nothing has a side effect. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "case.h"

enum {
  OP_NUMBER,
  OP_VARIABLE,
  OP_NEG,
  OP_NOT,
  OP_ADD,
  OP_SUB,
  OP_MUL,
  OP_MOD,
  OP_LT,
  OP_LE,
  OP_GT,
  OP_GE,
  OP_EQ,
  OP_NE,
  OP_AND,
  OP_OR
};
enum { DEPTH = 24 };

typedef struct parser {
  case_expr *e;
  const char *s, *letters, *error;
  int depth;
} parser;

static void emit(parser *p, uint8_t op, double number) {
  if (p->e->n == (int)CLI_COUNT(p->e->op)) {
    p->error = "is too long";
    return;
  }
  p->e->op[p->e->n] = op;
  p->e->number[p->e->n++] = number;
}

static bool eat(parser *p, const char *token) {
  while (*p->s == ' ') p->s++;
  size_t n = strlen(token);
  if (strncmp(p->s, token, n)) return false;
  if (!strcmp(token, "!") && p->s[1] == '=') return false;
  p->s += n;
  return true;
}

/* Binary operators by level, the loosest first; the longer spelling of two goes first. */
static const struct {
  const char *token;
  uint8_t op;
  int level;
} operators[] = {
    {"||", OP_OR, 0}, {"&&", OP_AND, 1}, {"==", OP_EQ, 2}, {"!=", OP_NE, 2}, {"<=", OP_LE, 3}, {">=", OP_GE, 3},
    {"<", OP_LT, 3},  {">", OP_GT, 3},   {"+", OP_ADD, 4}, {"-", OP_SUB, 4}, {"*", OP_MUL, 5}, {"%", OP_MOD, 5},
};
enum { LEVELS = 6 };

static void parse_level(parser *p, int level);

static void parse_unary(parser *p) {
  if (++p->depth > DEPTH) p->error = "is nested too deeply";
  while (*p->s == ' ') p->s++;
  const char *letter = *p->s ? strchr(p->letters, *p->s) : NULL;
  if (p->error) {
    ;
  } else if (eat(p, "!")) {
    parse_unary(p);
    emit(p, OP_NOT, 0);
  } else if (eat(p, "-")) {
    parse_unary(p);
    emit(p, OP_NEG, 0);
  } else if (eat(p, "(")) {
    parse_level(p, 0);
    if (!p->error && !eat(p, ")")) p->error = "wants a closing parenthesis";
  } else if (letter) {
    p->s++;
    emit(p, OP_VARIABLE, (double)(letter - p->letters));
  } else if (isdigit((unsigned char)*p->s)) {
    char *end;
    emit(p, OP_NUMBER, strtod(p->s, &end));
    p->s = end;
  } else {
    p->error = "wants a number, a variable or a parenthesis";
  }
  p->depth--;
}

static void parse_level(parser *p, int level) {
  if (level == LEVELS) {
    parse_unary(p);
    return;
  }
  parse_level(p, level + 1);
  for (size_t i = 0; i < CLI_COUNT(operators) && !p->error; i++) {
    if (operators[i].level != level || !eat(p, operators[i].token)) continue;
    parse_level(p, level + 1);
    emit(p, operators[i].op, 0);
    i = (size_t)-1;                            /* the next operator of this level may be any */
  }
}

const char *case_expr_parse(case_expr *e, const char *text, const char *letters) {
  parser p = {.e = e, .s = text, .letters = letters};
  e->n = 0;
  parse_level(&p, 0);
  while (*p.s == ' ') p.s++;
  if (!p.error && *p.s) p.error = "has something behind its end";
  return p.error;
}

static double binary(uint8_t op, double x, double y) {
  switch (op) {
    case OP_ADD: return x + y;
    case OP_SUB: return x - y;
    case OP_MUL: return x * y;
    case OP_MOD: return fmod(x, y);
    case OP_LT: return x < y;
    case OP_LE: return x <= y;
    case OP_GT: return x > y;
    case OP_GE: return x >= y;
    case OP_EQ: return x == y;
    case OP_NE: return x != y;
    case OP_AND: return x != 0 && y != 0;
    default: return x != 0 || y != 0;
  }
}

double case_expr_value(const case_expr *e, const int64_t *variables) {
  double stack[CLI_COUNT(e->op) + 1];
  int n = 0;
  for (int i = 0; i < e->n; i++) {
    switch (e->op[i]) {
      case OP_NUMBER: stack[n++] = e->number[i]; break;
      case OP_VARIABLE: stack[n++] = (double)variables[(int)e->number[i]]; break;
      case OP_NEG: stack[n - 1] = -stack[n - 1]; break;
      case OP_NOT: stack[n - 1] = stack[n - 1] == 0; break;
      default: n--; stack[n - 1] = binary(e->op[i], stack[n - 1], stack[n]);
    }
  }
  return n ? stack[n - 1] : NAN;
}
