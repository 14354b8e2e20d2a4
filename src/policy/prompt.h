/* From an instruction (and a normalised state) to the ids that the model reads: cleaning, template, state
 * bins, BOS, truncation. No padding: the ids end where the prompt ends. */
#ifndef POLICY_PROMPT_H
#define POLICY_PROMPT_H

#include "policy/tokenizer/tokenizer.h"

/* The text between cleaning and tokenising. One thread; grows with the longest prompt so far. */
typedef struct prompt_buffer prompt_buffer;

/* `text_bytes` of instruction and `state_count` values fit without another allocation. */
openpi_status prompt_buffer_create(size_t text_bytes, int state_count, prompt_buffer **out,
                                   openpi_error *error);
void prompt_buffer_close(prompt_buffer *buffer);
/* Gives back what is there for more than prompt_buffer_create was asked for with these. */
void prompt_buffer_trim(prompt_buffer *buffer, size_t text_bytes, int state_count);

/* Bytes of the longest prompt made of such parts, for tokenizer_scratch_create. */
size_t prompt_bytes(size_t text_bytes, int state_count);

/* Python's str.strip() (every Unicode white space, both ends), then '_' and '\n' become spaces. `out` holds
 * bytes + 1, may not overlap `text`, and ends with a 0 that *out_bytes does not count. */
openpi_status prompt_clean(const char *text, size_t bytes, char *out, size_t *out_bytes, openpi_error *error);

/* clamp(floor(128 x) + 128, -1, 255): the last of 256 edges -1 + i/128 that is not above x. NaN is 255. */
int state_bin(double x);

/* openpi. state_count 0, π0's form:  BOS, clean text, then "\n" tokenised by itself.
 * Otherwise, π0.5's form:            BOS, "Task: TEXT, State: BIN BIN …;\nAction: ".
 * Writes the first `max` (at least 1) ids and sets *count to how many were written. */
openpi_status prompt_openpi(const tokenizer *tokenizer, tokenizer_scratch *scratch, prompt_buffer *buffer,
                            const char *text, size_t bytes, const double *state, int state_count,
                            int32_t *ids, int max, int *count, openpi_error *error);

/* LeRobot's π0: the text as it is, "\n" added unless it ends with one, tokenised together. */
openpi_status prompt_lerobot_pi0(const tokenizer *tokenizer, tokenizer_scratch *scratch,
                                 prompt_buffer *buffer, const char *text, size_t bytes, int32_t *ids, int max,
                                 int *count, openpi_error *error);

/* LeRobot's π0.5: openpi's π0.5 form; `state` holds its float32 values; state_count 0 gives "State: ;". */
openpi_status prompt_lerobot_pi05(const tokenizer *tokenizer, tokenizer_scratch *scratch,
                                  prompt_buffer *buffer, const char *text, size_t bytes, const double *state,
                                  int state_count, int32_t *ids, int max, int *count, openpi_error *error);

#endif
