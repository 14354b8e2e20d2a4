/* The words a person typed: which one was meant, and what the library's sentences call them. */
#ifndef CLI_WORDS_H
#define CLI_WORDS_H

#include <stddef.h>

#include "cli.h"

/* The candidate that `word` most likely stands for: few letters missing, added, changed or swapped. NULL:
 * none. Candidates are offered one after the other. */
typedef struct guess {
    const char *word;
    size_t length;               /* of the word                                                           */
    const char *best;
    size_t best_length;
    int distance;                /* of the best                                                           */
} guess;
void guess_start(guess *guess, const char *word, size_t length);
void guess_offer(guess *guess, const char *candidate, size_t length);

enum { GUESS_TEXT = 96 };
/* "; did you mean '--horizon'?" with `before` before the best candidate; "" where there is none. */
const char *guess_text(const guess *guess, const char *before, char text[GUESS_TEXT]);

/* A sentence of the library as the user should read it: options as they are typed (--norm-stats, not
 * norm_stats), and where a name is not known, the known one that was probably meant. */
enum { SENTENCE_TEXT = 800 };
void words_translate(const verb *verb, const openpi_error *error, char sentence[SENTENCE_TEXT]);

#endif
