/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded text and numbers as text. Numbers never depend on LC_NUMERIC (R6): printf's decimal point is dropped by
 * keeping digits only, and strtod is given digits and an exponent without any point. */
#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void rapti_text_putn(rapti_text *t, const char *s, size_t n) {
  if (t->n && t->len < t->n - 1) {
    size_t room = t->n - 1 - t->len, fit = n < room ? n : room;
    memcpy(t->buf + t->len, s, fit);
    t->buf[t->len + fit] = '\0';
  }
  t->len += n;
}

void rapti_text_put(rapti_text *t, const char *s) { rapti_text_putn(t, s, strlen(s)); }
void rapti_text_putc(rapti_text *t, char c) { rapti_text_putn(t, &c, 1); }

void rapti_text_uint(rapti_text *t, uint64_t v) {
  char digits[20];
  size_t at = sizeof digits;
  do digits[--at] = (char)('0' + v % 10); while (v /= 10);
  rapti_text_putn(t, digits + at, sizeof digits - at);
}

void rapti_text_int(rapti_text *t, int64_t v) {
  if (v < 0) rapti_text_putc(t, '-');
  rapti_text_uint(t, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

/* ---- Doubles ---- */

/* digits[0..n) * 10^exponent through strtod, which sees no decimal point in this form and rounds correctly. */
static bool from_digits(const char *digits, size_t n, int64_t exponent, double *v) {
  char text[1200], *end;
  if (n > sizeof text - 32) return false;
  if (exponent > 100000) exponent = 100000;
  if (exponent < -100000) exponent = -100000;
  memcpy(text, digits, n);
  snprintf(text + n, sizeof text - n, "e%d", (int)exponent);
  int saved = errno;
  *v = strtod(text, &end);
  errno = saved;
  return *end == '\0';
}

/* Fewest significant digits that read back as v > 0: v = 0.d1d2..dn * 10^*point. Returns n. */
static int shortest_digits(double v, char digits[24], int *point) {
  for (int n = 1;; n++) {
    char text[40];
    snprintf(text, sizeof text, "%.*e", n - 1, v);
    char *e = strchr(text, 'e');
    int count = 0;
    for (char *c = text; c < e; c++)
      if (*c >= '0' && *c <= '9') digits[count++] = *c;
    *point = atoi(e + 1) + 1;
    double back;
    if (n == 17 || (from_digits(digits, (size_t)count, *point - count, &back) && back == v)) return count;
  }
}

static void put_zeros(rapti_text *t, int n) {
  while (n-- > 0) rapti_text_putc(t, '0');
}

/* The layout of RFC 8785 (JSON canonical form): plain digits from 1e-6 up to below 1e21, else one digit before the
 * point and an exponent with its sign. -0 keeps its sign, since parse(format(p)) = p. */
void rapti_text_double(rapti_text *t, double v) {
  if (v != v) { rapti_text_put(t, "nan"); return; }
  if (signbit(v)) { rapti_text_putc(t, '-'); v = -v; }
  if (isinf(v)) { rapti_text_put(t, "inf"); return; }
  if (v == 0) { rapti_text_putc(t, '0'); return; }
  char digits[24];
  int point, n = shortest_digits(v, digits, &point);
  while (n > 1 && digits[n - 1] == '0') n--;
  if (point > 21 || point < -5) {
    rapti_text_putc(t, digits[0]);
    if (n > 1) { rapti_text_putc(t, '.'); rapti_text_putn(t, digits + 1, (size_t)n - 1); }
    rapti_text_put(t, point > 0 ? "e+" : "e");
    rapti_text_int(t, point - 1);
  } else if (point <= 0) {
    rapti_text_put(t, "0.");
    put_zeros(t, -point);
    rapti_text_putn(t, digits, (size_t)n);
  } else if (point >= n) {
    rapti_text_putn(t, digits, (size_t)n);
    put_zeros(t, point - n);
  } else {
    rapti_text_putn(t, digits, (size_t)point);
    rapti_text_putc(t, '.');
    rapti_text_putn(t, digits + point, (size_t)(n - point));
  }
}

bool rapti_parse_int(const char *s, size_t n, int64_t *v) {
  size_t i = n && s[0] == '-';
  if (i == n) return false;
  int64_t sum = 0;
  for (; i < n; i++) {
    if (s[i] < '0' || s[i] > '9') return false;
    int digit = s[0] == '-' ? '0' - s[i] : s[i] - '0';
    if (!rapti_mul(sum, 10, &sum) || !rapti_add(sum, digit, &sum)) return false;
  }
  *v = sum;
  return true;
}

/* Splits a decimal number into its significant digits and a power of ten. false: malformed, or more than max digits. */
static bool split_decimal(const char *s, size_t n, char *digits, size_t max, size_t *count, int64_t *exponent) {
  size_t i = 0, seen = 0;
  bool point = false;
  *count = 0;
  *exponent = 0;
  for (; i < n && ((s[i] >= '0' && s[i] <= '9') || (s[i] == '.' && !point)); i++) {
    if (s[i] == '.') { point = true; continue; }
    seen++;
    *exponent -= point;
    if (*count == 0 && s[i] == '0') continue;
    if (*count == max) return false;
    digits[(*count)++] = s[i];
  }
  if (!seen) return false;
  if (i == n) return true;
  if (s[i] != 'e' && s[i] != 'E') return false;
  i++;
  if (i < n && s[i] == '+' && i + 1 < n && s[i + 1] != '-') i++;
  int64_t e;
  if (!rapti_parse_int(s + i, n - i, &e) || e > 1000000 || e < -1000000) return false;
  *exponent += e;
  return true;
}

bool rapti_parse_double(const char *s, size_t n, double *v) {
  bool negative = n && s[0] == '-';
  if (negative) { s++; n--; }
  char digits[1100];
  size_t count;
  int64_t exponent;
  double magnitude = 0;
  if (n == 3 && !memcmp(s, "inf", 3)) magnitude = HUGE_VAL;
  else if (n == 3 && !memcmp(s, "nan", 3) && !negative) magnitude = (double)NAN;
  else if (!split_decimal(s, n, digits, sizeof digits, &count, &exponent)) return false;
  else if (count) {
    if (!from_digits(digits, count, exponent, &magnitude)) return false;
    if (magnitude == 0 || isinf(magnitude)) return false;   /* out of range: a zero or an inf would mean another thing */
  }
  *v = negative ? -magnitude : magnitude;
  return true;
}

/* ---- UTF-8 ---- */

/* Length of the well-formed UTF-8 character at s, 0 where there is none; s ends in NUL. */
static size_t utf8_length(const unsigned char *s) {
  if (s[0] < 0x80) return 1;
  size_t n = s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < n; i++)
    if ((s[i] & 0xc0) != 0x80) return 0;
  if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0;   /* overlong, surrogates */
  if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;   /* overlong, above U+10FFFF */
  return n;
}

static void json_escape(rapti_text *t, unsigned char c) {
  static const char hex[] = "0123456789abcdef", plain[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
  const char *at = memchr(plain, c, sizeof plain - 1);
  char text[7] = {'\\', at ? letter[at - plain] : 'u', '0', '0', hex[c >> 4], hex[c & 15], 0};
  rapti_text_putn(t, text, at ? 2 : 6);
}

void rapti_text_json(rapti_text *t, const char *s) {
  rapti_text_putc(t, '"');
  for (const unsigned char *c = (const unsigned char *)s; *c;) {
    size_t n = utf8_length(c);
    if (n == 0) rapti_text_put(t, "\xef\xbf\xbd");          /* U+FFFD */
    else if (*c < 0x20 || *c == '"' || *c == '\\') json_escape(t, *c);
    else rapti_text_putn(t, (const char *)c, n);
    c += n ? n : 1;
  }
  rapti_text_putc(t, '"');
}

size_t rapti_text_end(rapti_text *t) {
  if (!t->n || t->len < t->n) return t->len;
  size_t end = t->n - 1, lead = end;
  while (lead > 0 && end - lead < 3 && ((unsigned char)t->buf[lead - 1] & 0xc0) == 0x80) lead--;
  if (lead == 0) return t->len;
  unsigned char c = (unsigned char)t->buf[lead - 1];
  size_t need = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
  if (need > end - lead + 1) t->buf[lead - 1] = '\0';        /* the last character was cut (E7) */
  return t->len;
}

void rapti_text_printf(rapti_text *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  size_t at = t->n ? (t->len < t->n ? t->len : t->n - 1) : 0;
  int n = vsnprintf(t->n ? t->buf + at : NULL, t->n - at, format, args);
  va_end(args);
  if (n > 0) t->len += (size_t)n;
}
