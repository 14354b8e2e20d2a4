/* PaliGemma's tokenizer from either of its two files: SentencePiece's .model or Hugging Face's
 * tokenizer.json. Immutable after opening, any thread. */
#ifndef POLICY_TOKENIZER_H
#define POLICY_TOKENIZER_H

#include "openpi.h"

typedef struct tokenizer tokenizer;

/* By content, not by name: a JSON object or a SentencePiece protobuf. */
openpi_status tokenizer_open(const char *path, tokenizer **out, openpi_error *error);
openpi_status tokenizer_parse(const void *bytes, size_t count, const char *name, tokenizer **out,
                              openpi_error *error);
/* The small model that every synthetic checkpoint uses, embedded in the library. */
openpi_status tokenizer_synthetic(tokenizer **out, openpi_error *error);
const void *tokenizer_synthetic_bytes(size_t *count);
void tokenizer_close(tokenizer *tokenizer);

int tokenizer_vocab(const tokenizer *tokenizer);
/* 1: read from tokenizer.json, whose added tokens such as <bos> match inside text. */
int tokenizer_is_hugging_face(const tokenizer *tokenizer);

/* Scratch of one thread; grows with the longest text so far. */
typedef struct tokenizer_scratch tokenizer_scratch;
openpi_status tokenizer_scratch_create(size_t text_bytes, tokenizer_scratch **out, openpi_error *error);
void tokenizer_scratch_close(tokenizer_scratch *scratch);
/* Gives back what is there for more than `text_bytes`. */
void tokenizer_scratch_trim(tokenizer_scratch *scratch, size_t text_bytes);
/* Bytes of scratch for a text of this length, of which tokenizer_encode takes a stretch at a time. */
size_t tokenizer_scratch_bytes(size_t text_bytes);

/* The raw pieces of a UTF-8 text, no BOS: writes at most `capacity` ids, *count is how many there are; where
 * that is more than `capacity`, some number above it, because the rest of the text is not tokenised. Invalid
 * UTF-8 and a word of more than 128 KiB are bad input. */
openpi_status tokenizer_encode(const tokenizer *tokenizer, tokenizer_scratch *scratch, const char *text,
                               size_t bytes, int32_t *ids, int capacity, int *count, openpi_error *error);

enum { TOKEN_PAD = 0, TOKEN_EOS = 1, TOKEN_BOS = 2 };

#endif
