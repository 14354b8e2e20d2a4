/* Which known word was probably meant by one that is not known. */
#ifndef BASE_GUESS_H
#define BASE_GUESS_H

#include "openpi.h"

/* The candidate that `word` most likely stands for: few letters missing, added, changed or swapped, or in
 * another case. NULL: none. Candidates are offered one after the other. */
typedef struct guess {
    const char *word;
    size_t length;               /* of the word                                                           */
    const char *best;
    size_t best_length;
    int distance;                /* of the best; 0: the word itself is known                              */
} guess;
void guess_start(guess *guess, const char *word, size_t length);
void guess_offer(guess *guess, const char *candidate, size_t length);
/* 1: there is a candidate, and the word itself is none. */
int guess_made(const guess *guess);

/* After report(): ends the sentence with `; did you mean "droid"?` where a word of the list `known` ("aloha,
 * droid (…)") is near. Returns status. `error` may be NULL. */
openpi_status guess_add(openpi_error *error, openpi_status status, const char *word, const char *known);
/* The other way about, `wanted` is missing and the list is what came: `; did you mean "state" by "stat"?` */
openpi_status guess_add_missing(openpi_error *error, openpi_status status, const char *wanted,
                                const char *came);

#endif
