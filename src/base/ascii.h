/* Letters, numbers and sentences as in the C locale, whatever locale the program has chosen: under tr_TR the
 * C library's tolower('I') is no 'i', and under de_DE its strtod stops at the point of "0.5".
 * Note: tools/form-check refuses the C library's functions that follow the locale everywhere but here. */
#ifndef BASE_ASCII_H
#define BASE_ASCII_H

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- characters ------------------------------------------------------------------------------------- */

static inline int ascii_lower(int c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; }

static inline int ascii_is_digit(int c) { return c >= '0' && c <= '9'; }

static inline int ascii_is_letter(int c) {
    c = ascii_lower(c);
    return c >= 'a' && c <= 'z';
}

static inline int ascii_is_alnum(int c) { return ascii_is_digit(c) || ascii_is_letter(c); }

static inline int ascii_is_space(int c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* ---- words, A to Z as a to z ------------------------------------------------------------------------ */

/* Whether `text` begins with `word`. */
static inline int ascii_begins(const char *text, const char *word) {
    while (*word && ascii_lower(*text) == ascii_lower(*word)) text++, word++;
    return !*word;
}

static inline int ascii_same(const char *a, const char *b) {
    return strlen(a) == strlen(b) && ascii_begins(a, b);
}

/* Where `word` is in `text`; NULL: nowhere. */
static inline const char *ascii_find(const char *text, const char *word) {
    for (;; text++) {
        if (ascii_begins(text, word)) return text;
        if (!*text) return NULL;
    }
}

/* ---- what only the C library can do ----------------------------------------------------------------- */

/* The C locale for this thread, until ascii_leave with what ascii_enter returned. Neither allocates. */
static inline locale_t ascii_enter(void) { return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); }
static inline void ascii_leave(locale_t before) { uselocale(before); }

/* strtod. */
static inline double ascii_number(const char *text, char **end) {
    locale_t before = ascii_enter();
    double value = strtod(text, end);
    ascii_leave(before);
    return value;
}

/* snprintf and vsnprintf, for what prints a number with a point. */
static inline int ascii_print_list(char *text, size_t bytes, const char *format, va_list list) {
    locale_t before = ascii_enter();
    int length = vsnprintf(text, bytes, format, list);
    ascii_leave(before);
    return length;
}

__attribute__((format(printf, 3, 4))) static inline int ascii_print(char *text, size_t bytes,
                                                                    const char *format, ...) {
    va_list list;
    va_start(list, format);
    int length = ascii_print_list(text, bytes, format, list);
    va_end(list);
    return length;
}

/* What the system says of an errno. */
static inline const char *ascii_errno(int error) {
    return strerror_l(error, newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

#endif
