/* SentencePiece's .model: a protobuf message with the pieces in id order, the trainer's settings and those of
 * the text's normalisation. Fills a vocabulary; refuses every setting that the engine does not implement.
 *
 * Note: an absent setting has a default, and this engine refuses most defaults (unigram, dummy prefix,
 * collapsed white space). So a file that is truncated at a field's end is refused too. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "policy/tokenizer/vocabulary.h"

/* ---- protobuf ------------------------------------------------------------------------------------------ */

typedef enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 } wire;

typedef struct message {
    const uint8_t *at, *end;
} message;

typedef struct field {
    uint32_t number;
    wire wire;
    uint64_t value;                     /* WIRE_VARINT, WIRE_64, WIRE_32; the length of WIRE_BYTES */
    const uint8_t *bytes;               /* WIRE_BYTES                                              */
} field;

/* 0: truncated, or longer than 64 bits. */
static int read_varint(message *from, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && from->at < from->end; shift += 7) {
        uint8_t byte = *from->at++;
        if (shift == 63 && byte > 1) return 0;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return 1;
    }
    return 0;
}

/* The next field of a message that is not at its end. 0: damaged. */
static int read_field(message *from, field *out) {
    uint64_t tag;
    size_t fixed = 0;
    if (!read_varint(from, &tag) || tag >> 32 || !(tag >> 3)) return 0;
    *out = (field){(uint32_t)(tag >> 3), (wire)(tag & 7), 0, NULL};
    switch (out->wire) {
    case WIRE_VARINT: return read_varint(from, &out->value);
    case WIRE_BYTES:
        if (!read_varint(from, &out->value) || out->value > (uint64_t)(from->end - from->at)) return 0;
        out->bytes = from->at;
        from->at += out->value;
        return 1;
    case WIRE_64: fixed = 8; break;
    case WIRE_32: fixed = 4; break;
    default: return 0;                  /* groups: not in this format */
    }
    if ((size_t)(from->end - from->at) < fixed) return 0;
    for (size_t i = 0; i < fixed; i++) out->value |= (uint64_t)from->at[i] << 8 * i;
    from->at += fixed;
    return 1;
}

static message message_of(const field *field) {
    return (message){field->bytes, field->bytes + field->value};
}

/* ---- the model's fields -------------------------------------------------------------------------------- */

enum { MODEL_PIECE = 1, MODEL_TRAINER = 2, MODEL_NORMALIZER = 3 };
enum { PIECE_TEXT_FIELD = 1, PIECE_SCORE = 2, PIECE_TYPE = 3 };
enum {
    TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4, TYPE_UNUSED = 5,
    TYPE_BYTE = 6
};

/* A setting that the engine implements with one value only. */
typedef struct setting {
    uint32_t message, field;
    wire wire;
    uint64_t absent, expected;          /* a WIRE_BYTES: its length */
    const char *name, *meaning;
} setting;

static const setting settings[] = {
    {MODEL_TRAINER, 3, WIRE_VARINT, 1, 2, "trainer_spec.model_type", "BPE"},
    {MODEL_TRAINER, 24, WIRE_VARINT, 0, 0, "trainer_spec.treat_whitespace_as_suffix", "no"},
    {MODEL_NORMALIZER, 2, WIRE_BYTES, 0, 0, "the length of normalizer_spec.precompiled_charsmap",
     "the identity"},
    {MODEL_NORMALIZER, 3, WIRE_VARINT, 1, 0, "normalizer_spec.add_dummy_prefix", "no"},
    {MODEL_NORMALIZER, 4, WIRE_VARINT, 1, 0, "normalizer_spec.remove_extra_whitespaces", "no"},
    {MODEL_NORMALIZER, 5, WIRE_VARINT, 1, 1, "normalizer_spec.escape_whitespaces", "yes"},
};
enum { SETTINGS = sizeof settings / sizeof *settings, TRAINER_BYTE_FALLBACK = 35, TRAINER_BOS_PIECE = 46 };

typedef struct summary {
    int pieces, user_defined;
    size_t text_bytes;
    uint64_t settings[SETTINGS];
    int byte_fallback;
    const char *bos;
    size_t bos_bytes;
} summary;

typedef struct piece_fields {
    const char *text;
    size_t bytes;
    float score;
    uint64_t type;
} piece_fields;

static openpi_status damaged(const char *name, const void *start, const message *at, openpi_error *error) {
    return report(error, OPENPI_BAD_FILE, "%s: not a SentencePiece model: damaged or cut off at byte %zu",
                  name, (size_t)(at->at - (const uint8_t *)start));
}

static openpi_status expect_wire(const field *field, wire expected, const char *what, const char *name,
                                 openpi_error *error) {
    if (field->wire == expected) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: %s has wire type %d, expected %d", name, what,
                  (int)field->wire, (int)expected);
}

static openpi_status read_piece(message from, int id, const void *start, const char *name, piece_fields *out,
                                openpi_error *error) {
    *out = (piece_fields){"", 0, 0, TYPE_NORMAL};
    while (from.at < from.end) {
        field field;
        if (!read_field(&from, &field)) return damaged(name, start, &from, error);
        if (field.number == PIECE_TEXT_FIELD) {
            TRY(expect_wire(&field, WIRE_BYTES, "a piece's text", name, error));
            out->text = (const char *)field.bytes;
            out->bytes = (size_t)field.value;
        } else if (field.number == PIECE_SCORE) {
            TRY(expect_wire(&field, WIRE_32, "a piece's score", name, error));
            uint32_t bits = (uint32_t)field.value;
            memcpy(&out->score, &bits, sizeof bits);
        } else if (field.number == PIECE_TYPE) {
            TRY(expect_wire(&field, WIRE_VARINT, "a piece's type", name, error));
            out->type = field.value;
        }
    }
    if (!isfinite(out->score))
        return report(error, OPENPI_BAD_FILE, "%s: the score of piece %d is not finite", name, id);
    if (out->type == TYPE_UNUSED)
        return report(error, OPENPI_UNSUPPORTED, "%s: piece %d is marked unused, which is not supported",
                      name, id);
    if (out->type < TYPE_NORMAL || out->type > TYPE_BYTE)
        return report(error, OPENPI_BAD_FILE, "%s: piece %d has type %llu, expected 1 to 6", name, id,
                      (unsigned long long)out->type);
    return OPENPI_OK;
}

static openpi_status read_settings(message from, uint32_t which, const void *start, const char *name,
                                   summary *out, openpi_error *error) {
    while (from.at < from.end) {
        field field;
        if (!read_field(&from, &field)) return damaged(name, start, &from, error);
        for (int i = 0; i < SETTINGS; i++) {
            if (settings[i].message != which || settings[i].field != field.number) continue;
            TRY(expect_wire(&field, settings[i].wire, settings[i].name, name, error));
            out->settings[i] = field.value;
        }
        if (which == MODEL_TRAINER && field.number == TRAINER_BYTE_FALLBACK) {
            TRY(expect_wire(&field, WIRE_VARINT, "trainer_spec.byte_fallback", name, error));
            out->byte_fallback = field.value != 0;
        } else if (which == MODEL_TRAINER && field.number == TRAINER_BOS_PIECE) {
            TRY(expect_wire(&field, WIRE_BYTES, "trainer_spec.bos_piece", name, error));
            out->bos = (const char *)field.bytes;
            out->bos_bytes = (size_t)field.value;
        }
    }
    return OPENPI_OK;
}

/* First walk: counts, and the settings, which follow the pieces. */
static openpi_status summarize(message from, const char *name, summary *out, openpi_error *error) {
    const void *start = from.at;
    *out = (summary){.bos = "<s>", .bos_bytes = 3};
    for (int i = 0; i < SETTINGS; i++) out->settings[i] = settings[i].absent;
    while (from.at < from.end) {
        field field;
        if (!read_field(&from, &field)) return damaged(name, start, &from, error);
        if (field.number > MODEL_NORMALIZER) continue;
        TRY(expect_wire(&field, WIRE_BYTES, "a part of the model", name, error));
        if (field.number != MODEL_PIECE) {
            TRY(read_settings(message_of(&field), field.number, start, name, out, error));
            continue;
        }
        piece_fields piece;
        if (out->pieces == VOCABULARY_LIMIT)
            return report(error, OPENPI_BAD_FILE, "%s: more than %d pieces", name, VOCABULARY_LIMIT);
        TRY(read_piece(message_of(&field), out->pieces++, start, name, &piece, error));
        out->text_bytes += piece.bytes;
        out->user_defined += piece.type == TYPE_USER_DEFINED;
    }
    for (int i = 0; i < SETTINGS; i++)
        if (out->settings[i] != settings[i].expected)
            return report(error, OPENPI_UNSUPPORTED, "%s: %s is %llu, expected %llu (%s)", name,
                          settings[i].name, (unsigned long long)out->settings[i],
                          (unsigned long long)settings[i].expected, settings[i].meaning);
    if (out->pieces <= TOKEN_BOS)
        return report(error, OPENPI_BAD_FILE, "%s: %d pieces, expected more than %d", name, out->pieces,
                      TOKEN_BOS);
    return OPENPI_OK;
}

/* Higher scores give lower ranks, equal ones (0 and -0 too) equal ranks. */
static uint32_t rank_of(float score) {
    uint32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? bits : ~bits & 0x7fffffffu;
}

/* Second walk: the pieces. */
static openpi_status fill(message from, const summary *summary, const char *name, tokenizer *out,
                          openpi_error *error) {
    const void *start = from.at;
    int id = 0;
    TRY(atom_set_create(&out->after, (size_t)summary->user_defined, name, error));
    while (from.at < from.end) {
        field field;
        if (!read_field(&from, &field)) return damaged(name, start, &from, error);
        if (field.number != MODEL_PIECE) continue;
        piece_fields piece;
        TRY(read_piece(message_of(&field), id, start, name, &piece, error));
        piece_kind kind =
            piece.type == TYPE_NORMAL || piece.type == TYPE_USER_DEFINED ? PIECE_TEXT : PIECE_RESERVED;
        TRY(vocabulary_add(out, id, piece.text, piece.bytes, kind, rank_of(piece.score), name, error));
        if (piece.type == TYPE_USER_DEFINED) atom_set_add(&out->after, out, id);
        if (piece.type == TYPE_UNKNOWN) {
            if (out->unknown >= 0)
                return report(error, OPENPI_BAD_FILE, "%s: pieces %d and %d are both the unknown piece", name,
                              out->unknown, id);
            out->unknown = id;
        }
        if (id == TOKEN_BOS && (piece.type != TYPE_CONTROL || piece.bytes != summary->bos_bytes ||
                                memcmp(piece.text, summary->bos, piece.bytes)))
            return report(error, OPENPI_UNSUPPORTED, "%s: piece %d is not the beginning-of-sentence piece",
                          name, TOKEN_BOS);
        id++;
    }
    atom_set_sort(&out->after);
    if (out->unknown < 0) return report(error, OPENPI_BAD_FILE, "%s: no piece is the unknown piece", name);
    return summary->byte_fallback ? vocabulary_find_bytes(out, name, error) : OPENPI_OK;
}

openpi_status tokenizer_read_sentencepiece(const void *bytes, size_t count, const char *name, tokenizer **out,
                                           openpi_error *error) {
    message all = {bytes, (const uint8_t *)bytes + count};
    summary summary;
    tokenizer *made;
    TRY(summarize(all, name, &summary, error));
    TRY(vocabulary_create(summary.pieces, summary.text_bytes, name, &made, error));
    openpi_status status = fill(all, &summary, name, made, error);
    if (status != OPENPI_OK) tokenizer_close(made);
    else *out = made;
    return status;
}
