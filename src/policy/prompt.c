/* The prompt formats of openpi and LeRobot, before tokenizer_encode. For π0.5 both clean the text and fill
 * the template in the same way. For π0 openpi strips the text and tokenises the newline by itself, LeRobot
 * does neither. */
#include "policy/prompt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "base/utf8.h"

enum {
    BIN_BYTES = 4,                      /* " 255"                                        */
    TEMPLATE_BYTES = 32,                /* "Task: , State: ;\nAction: " and a final zero */
    TEXT_LIMIT = 1 << 26,
    STATE_LIMIT = 1 << 16,
};

struct prompt_buffer {
    size_t capacity;
    char *text;
};

size_t prompt_bytes(size_t text_bytes, int state_count) {
    return text_bytes + (size_t)state_count * BIN_BYTES + TEMPLATE_BYTES;
}

static openpi_status buffer_reserve(prompt_buffer *buffer, size_t text_bytes, int state_count,
                                    openpi_error *error) {
    if (text_bytes > TEXT_LIMIT)
        return report(error, OPENPI_BAD_INPUT, "the prompt has %zu bytes, expected at most %d", text_bytes,
                      TEXT_LIMIT);
    if (state_count < 0 || state_count > STATE_LIMIT)
        return report(error, OPENPI_BAD_ARGUMENT, "the prompt's state has %d values, expected 0 to %d",
                      state_count, STATE_LIMIT);
    size_t bytes = prompt_bytes(text_bytes, state_count);
    if (bytes <= buffer->capacity) return OPENPI_OK;
    char *grown = malloc(bytes);
    if (!grown) return report_no_memory(error, bytes, "a prompt");
    free(buffer->text);
    buffer->text = grown;
    buffer->capacity = bytes;
    return OPENPI_OK;
}

openpi_status prompt_buffer_create(size_t text_bytes, int state_count, prompt_buffer **out,
                                   openpi_error *error) {
    prompt_buffer *made = calloc(1, sizeof *made);
    if (!made) return report_no_memory(error, sizeof *made, "a prompt");
    openpi_status status = buffer_reserve(made, text_bytes, state_count, error);
    if (status != OPENPI_OK) prompt_buffer_close(made);
    else *out = made;
    return status;
}

void prompt_buffer_close(prompt_buffer *buffer) {
    if (!buffer) return;
    free(buffer->text);
    free(buffer);
}

void prompt_buffer_trim(prompt_buffer *buffer, size_t text_bytes, int state_count) {
    if (buffer->capacity <= prompt_bytes(text_bytes, state_count)) return;
    free(buffer->text);
    buffer->text = NULL;
    buffer->capacity = 0;
    buffer_reserve(buffer, text_bytes, state_count, NULL);     /* else when it is needed                    */
}

/* Where Python's str.isspace() is true. */
static int is_space(uint32_t code) {
    return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
           code == 0x202f || code == 0x205f || code == 0x3000;
}

openpi_status prompt_clean(const char *text, size_t bytes, char *out, size_t *out_bytes,
                           openpi_error *error) {
    size_t start = bytes, end = 0;      /* first character that is no space; after the last such */
    for (size_t at = 0, taken; at < bytes; at += taken) {
        uint32_t code;
        taken = utf8_decode(text + at, bytes - at, &code);
        if (!taken)
            return report(error, OPENPI_BAD_INPUT, "the prompt is not UTF-8: byte %zu is 0x%02x", at,
                          (unsigned)(uint8_t)text[at]);
        if (is_space(code)) continue;
        if (start == bytes) start = at;
        end = at + taken;
    }
    *out_bytes = start < end ? end - start : 0;
    for (size_t i = 0; i < *out_bytes; i++) {
        char c = text[start + i];
        out[i] = c == '_' || c == '\n' ? ' ' : c;
    }
    out[*out_bytes] = 0;
    return OPENPI_OK;
}

int state_bin(double x) {
    double bin = floor(128 * x) + 128;
    if (!(bin < 255)) return 255;       /* NaN too: it sorts after every edge */
    return bin < -1 ? -1 : (int)bin;
}

/* Appends the ids of buffer->text. */
static openpi_status append(const tokenizer *tokenizer, tokenizer_scratch *scratch, const char *text,
                            size_t bytes, int32_t *ids, int max, int *count, openpi_error *error) {
    int more;
    TRY(tokenizer_encode(tokenizer, scratch, text, bytes, ids + *count, max - *count, &more, error));
    *count = more < max - *count ? *count + more : max;
    return OPENPI_OK;
}

static openpi_status begin(prompt_buffer *buffer, size_t text_bytes, int state_count, int32_t *ids, int max,
                           openpi_error *error) {
    if (max < 1)
        return report(error, OPENPI_BAD_ARGUMENT, "a capacity of %d prompt ids, expected at least 1", max);
    TRY(buffer_reserve(buffer, text_bytes, state_count, error));
    ids[0] = TOKEN_BOS;
    return OPENPI_OK;
}

static openpi_status with_state(const tokenizer *tokenizer, tokenizer_scratch *scratch, prompt_buffer *buffer,
                                const char *text, size_t bytes, const double *state, int state_count,
                                int32_t *ids, int max, int *count, openpi_error *error) {
    static const char before[] = "Task: ", between[] = ", State: ", after[] = ";\nAction: ";
    size_t at = sizeof before - 1, cleaned;
    int used = 1;
    TRY(begin(buffer, bytes, state_count, ids, max, error));
    memcpy(buffer->text, before, at);
    TRY(prompt_clean(text, bytes, buffer->text + at, &cleaned, error));
    at += cleaned;
    memcpy(buffer->text + at, between, sizeof between - 1);
    at += sizeof between - 1;
    for (int i = 0; i < state_count; i++)
        at +=
            (size_t)snprintf(buffer->text + at, buffer->capacity - at, i ? " %d" : "%d", state_bin(state[i]));
    memcpy(buffer->text + at, after, sizeof after - 1);
    at += sizeof after - 1;
    TRY(append(tokenizer, scratch, buffer->text, at, ids, max, &used, error));
    *count = used;
    return OPENPI_OK;
}

openpi_status prompt_openpi(const tokenizer *tokenizer, tokenizer_scratch *scratch, prompt_buffer *buffer,
                            const char *text, size_t bytes, const double *state, int state_count,
                            int32_t *ids, int max, int *count, openpi_error *error) {
    if (state_count)
        return with_state(tokenizer, scratch, buffer, text, bytes, state, state_count, ids, max, count,
                          error);
    size_t cleaned;
    int used = 1;
    TRY(begin(buffer, bytes, 0, ids, max, error));
    TRY(prompt_clean(text, bytes, buffer->text, &cleaned, error));
    TRY(append(tokenizer, scratch, buffer->text, cleaned, ids, max, &used, error));
    TRY(append(tokenizer, scratch, "\n", 1, ids, max, &used, error));
    *count = used;
    return OPENPI_OK;
}

openpi_status prompt_lerobot_pi0(const tokenizer *tokenizer, tokenizer_scratch *scratch,
                                 prompt_buffer *buffer, const char *text, size_t bytes, int32_t *ids, int max,
                                 int *count, openpi_error *error) {
    int used = 1;
    TRY(begin(buffer, bytes, 0, ids, max, error));
    if (bytes) memcpy(buffer->text, text, bytes);
    if (!bytes || text[bytes - 1] != '\n') buffer->text[bytes++] = '\n';
    TRY(append(tokenizer, scratch, buffer->text, bytes, ids, max, &used, error));
    *count = used;
    return OPENPI_OK;
}

openpi_status prompt_lerobot_pi05(const tokenizer *tokenizer, tokenizer_scratch *scratch,
                                  prompt_buffer *buffer, const char *text, size_t bytes, const double *state,
                                  int state_count, int32_t *ids, int max, int *count, openpi_error *error) {
    return with_state(tokenizer, scratch, buffer, text, bytes, state, state_count, ids, max, count, error);
}
