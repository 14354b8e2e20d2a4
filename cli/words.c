/* Fields of the library by the options that set them, in its sentences.
 *
 * The library names the field of its options (norm_stats), since its caller may be any program. The field of
 * --norm-stats is norm_stats: the two names differ by - and _ only, but for the few names in `others`. */
#include "words.h"

#include <stdio.h>
#include <string.h>

const char *guess_text(const guess *g, const char *before, char text[GUESS_TEXT]) {
    *text = 0;
    if (guess_made(g))
        snprintf(text, GUESS_TEXT, "; did you mean '%s%.*s'?", before, (int)g->best_length, g->best);
    return text;
}

/* ---- the library's sentences ---------------------------------------------------------------------- */

/* What the library calls by another name than the option's. */
static const struct {
    const char *field, *option;
} others[] = {{"max_prompt", "prompt"}, {"synthetic model", "synthetic"}, {"as_card", "as"}};

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

/* True if the word at `at` is a field's name rather than English. Names with "_" always are, except in the
 * list of what is known in a file; any other name is one if the sentence begins with it and says what it is,
 * or asks for it. */
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

void words_translate(const verb *verb, const openpi_error *error, char sentence[SENTENCE_TEXT]) {
    const char *from = error->message[0] ? error->message : openpi_status_text(error->status);
    size_t at = 0;
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
}
