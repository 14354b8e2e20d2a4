/* The words a person typed: which one was meant, and what the library's sentences call them. */
#ifndef CLI_WORDS_H
#define CLI_WORDS_H

#include <stddef.h>

#include "base/guess.h"
#include "cli.h"

enum { GUESS_TEXT = 96 };
/* "; did you mean '--horizon'?" with `before` before the best candidate; "" where there is none. */
const char *guess_text(const guess *guess, const char *before, char text[GUESS_TEXT]);

/* A sentence of the library as the user should read it: options as they are typed (--norm-stats, not
 * norm_stats). */
enum { SENTENCE_TEXT = 800 };
void words_translate(const verb *verb, const openpi_error *error, char sentence[SENTENCE_TEXT]);

#endif
