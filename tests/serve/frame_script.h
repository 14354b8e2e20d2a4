/* Frames as text, for tables: what a client sends and what must come back. Frames have spaces between them.
 *
 *   81:hello     the first byte in hex, then the payload: as text,
 *   88=03e8      in hex,
 *   82*300       or a letter so many times; nothing: empty
 *   !81:hello    as a client must not send it: without a mask,
 *   >81:hello    with its length in 16 bits though 7 would do,
 *   >>81:hello   in 64 bits,
 *   ?82          or of 2^63 bytes, of which none follow
 *   ~81:hello    may come or not
 *
 * Include after cmocka.h and websocket.h. */
#ifndef TESTS_FRAME_SCRIPT_H
#define TESTS_FRAME_SCRIPT_H

typedef struct script_frame {
    int first;                   /* byte: FIN, RSV, opcode                                                 */
    int unmasked, wide;          /* wide: additional bytes of the length at least: 0, 2 or 8               */
    int endless, optional;
    size_t bytes;
    uint8_t *payload;            /* to be freed                                                            */
} script_frame;

static inline int script_digit(char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; }

/* Reads one frame and returns where the next one begins; NULL at the end. */
static inline const char *script_next(const char *at, script_frame *frame) {
    *frame = (script_frame){.first = 0};
    while (*at == ' ') at++;
    if (!*at) return NULL;
    for (;; at++) {
        if (*at == '!') frame->unmasked = 1;
        else if (*at == '?') frame->endless = 1;
        else if (*at == '~') frame->optional = 1;
        else if (*at == '>') frame->wide = frame->wide ? 8 : 2;
        else break;
    }
    frame->first = script_digit(at[0]) << 4 | script_digit(at[1]);
    at += 2;
    const char *end = at + strcspn(at, " ");
    size_t length = end > at ? (size_t)(end - at - 1) : 0;
    frame->bytes = *at == '*' ? strtoul(at + 1, NULL, 10) : *at == '=' ? length / 2 : length;
    frame->payload = calloc(1, frame->bytes + 1);
    assert_non_null(frame->payload);
    for (size_t i = 0; i < frame->bytes; i++) {
        const char *digits = at + 1 + 2 * i;
        frame->payload[i] = *at == '*'   ? 'x'
                            : *at == '=' ? (uint8_t)(script_digit(digits[0]) << 4 | script_digit(digits[1]))
                                         : (uint8_t)at[1 + i];
    }
    return end;
}

/* All frames of a script as bytes on the wire, to be freed. */
static inline uint8_t *script_bytes(const char *text, size_t *count) {
    static const uint8_t mask[4] = {0x5a, 0x00, 0xc3, 0x21};
    uint8_t *all = NULL;
    script_frame f;
    *count = 0;
    while ((text = script_next(text, &f))) {
        all = realloc(all, *count + f.bytes + 14);
        assert_non_null(all);
        uint8_t *at = all + *count;
        int wide = f.endless || f.bytes > 65535 ? 8 : f.wide ? f.wide : f.bytes > 125 ? 2 : 0;
        uint64_t length = f.endless ? 1ull << 63 : f.bytes;
        *at++ = (uint8_t)f.first;
        *at++ = (uint8_t)((f.unmasked ? 0 : 0x80) | (wide == 8 ? 127 : wide ? 126 : (int)f.bytes));
        for (int i = wide; i-- > 0;) *at++ = (uint8_t)(length >> 8 * i);
        if (!f.unmasked) memcpy(at, mask, 4), at += 4;
        for (size_t i = 0; i < f.bytes; i++) *at++ = f.payload[i] ^ (f.unmasked ? 0 : mask[i % 4]);
        *count = (size_t)(at - all);
        free(f.payload);
    }
    return all;
}

#endif
