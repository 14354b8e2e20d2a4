/* Near words by the number of edits between them; fields of the library by the options that set them.
 *
 * The library names the field of its options (norm_stats), since its caller may be any program. The field of
 * --norm-stats is norm_stats: the two names differ by - and _ only, but for the few names in `others`. */
#include "words.h"

#include <stdio.h>
#include <string.h>

enum { LENGTH_MAX = 48 };

/* ---- near words ----------------------------------------------------------------------------------- */

static int least(int a, int b) { return a < b ? a : b; }

/* Letters added, dropped or changed, and neighbours swapped, that make one word of the other. */
static int edits(const char *a, size_t m, const char *b, size_t n) {
    int rows[3][LENGTH_MAX + 1];
    for (size_t j = 0; j <= n; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= m; i++) {
        int *now = rows[i % 3];
        const int *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= n; j++) {
            now[j] = least(least(above[j], now[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
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
    if (distance > 2 || distance > (int)(g->length + 1) / 3) {
        if (g->length < 3 || length < g->length || memcmp(candidate, g->word, g->length)) return;
        distance = LENGTH_MAX;
    }
    if (g->best && distance >= g->distance) return;
    g->best = candidate;
    g->best_length = length;
    g->distance = distance;
}

const char *guess_text(const guess *g, const char *before, char text[GUESS_TEXT]) {
    *text = 0;
    if (g->best && g->distance)
        snprintf(text, GUESS_TEXT, "; did you mean '%s%.*s'?", before, (int)g->best_length, g->best);
    return text;
}

/* ---- the library's sentences ---------------------------------------------------------------------- */

/* What the library calls by another name than the option's. */
static const struct {
    const char *field, *option;
} others[] = {{"max_prompt", "prompt"}, {"synthetic model", "synthetic"}};

static const option_row *find_option(const verb *verb, const char *field, size_t length) {
    for (const option_row *row = verb->options; row->name; row++) {
        size_t i = 0;
        if (row->kind == OPTION_HEADING || strlen(row->name) != length) continue;
        while (i < length && (row->name[i] == field[i] || (row->name[i] == '-' && field[i] == '_'))) i++;
        if (i == length) return row;
    }
    return NULL;
}

static int begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

/* Does the word at `at` stand for a field, and is it not a word of the language? With "_" in it there is no
 * doubt, but in the list of what is known in a file; else the sentence begins with it and says what it is, or
 * asks for it. */
static int is_field(const char *sentence, const char *at, size_t length) {
    const char *after = at + length, *asked = at - strlen("give "), *or = at - strlen("or ");
    const char *known = strstr(sentence, " known are ");
    if ((at > sentence && at[-1] != ' ') || (known && known < at)) return 0;
    if (memchr(at, '_', length)) return !*after || strchr(" ,;)", *after) != NULL;
    if (at == sentence) return begins(after, " is ") || (begins(after, " \"") && strstr(after, "known"));
    if (asked >= sentence && begins(asked, "give ")) return 1;
    return or >= sentence && begins(or, "or ") && begins(after, " (");
}

/* The field at `at`: its length, and the option that sets it; NULL where there is none. */
static const option_row *field_at(const verb *verb, const char *sentence, const char *at, size_t *length) {
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        *length = strlen(others[i].field);
        if (!strncmp(at, others[i].field, *length) && begins(at + *length, " is ") && at == sentence)
            return find_option(verb, others[i].option, strlen(others[i].option));
    }
    *length = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
    return *length && is_field(sentence, at, *length) ? find_option(verb, at, *length) : NULL;
}

/* Where a word in quotes is not known, its sentence lists those that are. */
static void guess_in(const char *sentence, char text[GUESS_TEXT]) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_-+";
    const char *open = strchr(sentence, '"'), *close = open ? strchr(open + 1, '"') : NULL;
    const char *list = close ? strstr(close, "expected ") : NULL;
    guess g;
    *text = 0;
    if (close && !list) list = strstr(close, "known are ");
    if (!list) return;
    guess_start(&g, open + 1, (size_t)(close - open - 1));
    for (const char *at = list; *at;) {
        size_t length = strspn(at, letters);
        if (length > 2) guess_offer(&g, at, length);
        at += length ? length : 1;
    }
    guess_text(&g, "", text);
}

void words_translate(const verb *verb, const openpi_error *error, char sentence[SENTENCE_TEXT]) {
    const char *from = error->message[0] ? error->message : openpi_status_text(error->status);
    size_t at = 0;
    char guessed[GUESS_TEXT] = "";
    for (const char *c = from; *c && at + 80 < SENTENCE_TEXT;) {
        size_t length;
        const option_row *row = verb ? field_at(verb, from, c, &length) : NULL;
        if (row) {
            at += (size_t)snprintf(sentence + at, SENTENCE_TEXT - at, "--%s", row->name);
            c += length;
        } else {
            sentence[at++] = *c++;
        }
    }
    sentence[at] = 0;
    if (error->status == OPENPI_BAD_ARGUMENT || error->status == OPENPI_NOT_FOUND) guess_in(from, guessed);
    snprintf(sentence + at, SENTENCE_TEXT - at, "%s", guessed);
}
