/* See guess.h. Near words by the number of edits between them. */
#include "base/guess.h"

#include <stdio.h>
#include <string.h>

#include "base/ascii.h"
#include "base/report.h"

enum { LENGTH_MAX = 64 };

static int least(int a, int b) { return a < b ? a : b; }

static int same_letter(char a, char b) { return ascii_lower(a) == ascii_lower(b); }

/* Letters added, dropped or changed, and neighbours swapped, that make one word of the other. */
static int edits(const char *a, size_t m, const char *b, size_t n) {
    int rows[3][LENGTH_MAX + 1];
    for (size_t j = 0; j <= n; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        int *now = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            now[j] = least(least(above[j], now[j - 1]) + 1, above[j - 1] + !same_letter(a[i - 1], b[j - 1]));
            if (i > 1 && j > 1 && same_letter(a[i - 1], b[j - 2]) && same_letter(a[i - 2], b[j - 1]))
                now[j] = least(now[j], two_above[j - 2] + 1);
        }
    }
    return rows[m % 3][n];
}

void guess_start(guess *g, const char *word, size_t length) { *g = (guess){.word = word, .length = length}; }

/* A third of the word may be wrong, two letters at most; else a candidate may begin with the whole word. */
void guess_offer(guess *g, const char *candidate, size_t length) {
    if (g->length > LENGTH_MAX || length > LENGTH_MAX) return;
    int distance = edits(g->word, g->length, candidate, length);
    if (!distance && memcmp(g->word, candidate, length)) distance = 1;               /* another case        */
    if (distance > 2 || distance > (int)(g->length + 1) / 3) {
        if (g->length < 3 || length < g->length || memcmp(candidate, g->word, g->length)) return;
        distance = LENGTH_MAX;
    }
    if (g->best && distance >= g->distance) return;
    g->best = candidate;
    g->best_length = length;
    g->distance = distance;
}

int guess_made(const guess *g) { return g->best && g->distance; }

int openpi_near_word(const char *word, const char *const *known, int count) {
    guess g;
    int found = -1;
    if (!word || !known) return -1;
    guess_start(&g, word, strlen(word));
    for (int i = 0; i < count; i++) {
        const char *before = g.best;
        if (known[i]) guess_offer(&g, known[i], strlen(known[i]));
        if (g.best != before) found = i;
    }
    return guess_made(&g) ? found : -1;
}

/* ---- sentences ------------------------------------------------------------------------------------ */

/* The words of a list, and of a key's path its last part where the word itself is no path. */
static void offer_list(guess *g, const char *list) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:";
    int path = memchr(g->word, '/', g->length) != NULL;
    for (const char *at = list; *at;) {
        size_t length = strspn(at, letters), tail = length;
        while (tail && at[tail - 1] != '/') tail--;
        if (length > 1) guess_offer(g, at, length);
        if (tail && !path) guess_offer(g, at + tail, length - tail);
        at += length ? length : 1;
    }
}

openpi_status guess_add(openpi_error *error, openpi_status status, const char *word, const char *known) {
    char question[LENGTH_MAX + 32];
    guess g;
    if (!error) return status;
    guess_start(&g, word, strlen(word));
    offer_list(&g, known);
    if (!guess_made(&g)) return status;
    snprintf(question, sizeof question, "; did you mean \"%.*s\"?", (int)g.best_length, g.best);
    return report_more(error, status, question);
}

openpi_status guess_add_missing(openpi_error *error, openpi_status status, const char *wanted,
                                const char *came) {
    char question[2 * LENGTH_MAX + 32];
    guess g;
    if (!error) return status;
    guess_start(&g, wanted, strlen(wanted));
    offer_list(&g, came);
    if (!guess_made(&g)) return status;
    snprintf(question, sizeof question, "; did you mean \"%.64s\" by \"%.*s\"?", wanted, (int)g.best_length,
             g.best);
    return report_more(error, status, question);
}
