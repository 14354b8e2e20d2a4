/* A tokenizer's data, in one form for both file formats: its pieces, the merges between them, and the pieces
 * that are cut out of a text before any merging. The two readers fill it, tokenizer.c uses it.
 *
 * Note: SentencePiece merges two symbols when their joined *text* is a piece, even where a symbol alone is
 * not; Hugging Face merges when the *pair of ids* is in a list. So there are two look-ups of a merge and one
 * order of ranks. */
#ifndef POLICY_VOCABULARY_H
#define POLICY_VOCABULARY_H

#include "policy/tokenizer/tokenizer.h"

enum {
    VOCABULARY_LIMIT = 1 << 20,         /* ids                                                          */
    PIECE_LIMIT = 1024,                 /* bytes of a piece; PaliGemma's longest has 93                 */
    TOKENIZER_FILE_LIMIT = 64 << 20,
};

#define SPACE_MARK "\xe2\x96\x81"       /* U+2581, what a space becomes                                 */

typedef enum piece_kind {
    PIECE_ABSENT,                       /* no piece has this id                                         */
    PIECE_RESERVED,                     /* never the result of a merge: control, unknown, byte          */
    PIECE_TEXT,
} piece_kind;

typedef struct piece {
    uint32_t start, bytes;              /* in tokenizer.text                                            */
    uint32_t rank;                      /* SentencePiece: the higher the score, the lower               */
    piece_kind kind;
    int atomic;                         /* in an atom_set                                               */
} piece;

/* Pieces found in a text before merging: at each position the longest. Sorted by their bytes. */
typedef struct atom {
    const char *text;
    uint32_t bytes;
    int32_t id;
} atom;

typedef struct atom_set {
    atom *atoms;
    uint32_t count;
    uint32_t first[257];                /* atoms[first[b]] is the first that starts with byte b or more */
} atom_set;

/* Hugging Face's list of merges: open addressing by pair. */
typedef struct merge {
    uint64_t pair;                      /* left id << 32 | right id                                     */
    uint32_t rank;
    int32_t id;                         /* -1: free slot                                                */
} merge;

struct tokenizer {
    int hugging_face;
    int vocab;                          /* ids are 0 … vocab-1                                          */
    piece *pieces;                      /* [vocab]                                                      */
    char *text;                         /* all pieces' bytes                                            */
    size_t text_used;
    int32_t *table;                     /* ids by hash of their text, -1: free                          */
    uint32_t table_mask;
    uint32_t longest;                   /* bytes of the longest PIECE_TEXT                              */
    merge *merges;                      /* NULL: SentencePiece                                          */
    uint32_t merges_mask;
    atom_set before, after;             /* searched for before and after spaces become U+2581           */
    int byte_fallback;
    int32_t byte[256];                  /* ids of <0x00> … <0xFF>, where byte_fallback                  */
    int32_t unknown;                    /* id of an unknown character, where not byte_fallback          */
    int fuse_unknown;                   /* a run of unknown characters is one id                        */
    uint8_t apart[256];                 /* 1: no piece has a space after this byte: a text may be cut there */
    int ignore_merges;                  /* a whole text that is a piece is not split                    */
};

/* An empty vocabulary for ids below `vocab` and pieces of `text_bytes` bytes in all. tokenizer_close frees
 * it. */
openpi_status vocabulary_create(int vocab, size_t text_bytes, const char *name, tokenizer **out,
                                openpi_error *error);

/* Refuses an id out of range or used before, and a text that is empty, too long, not UTF-8 or another
 * piece's. */
openpi_status vocabulary_add(tokenizer *tokenizer, int64_t id, const char *text, size_t bytes,
                             piece_kind kind, uint32_t rank, const char *name, openpi_error *error);

/* The id of a PIECE_TEXT with this text, or -1. vocabulary_find_any: whatever its kind. */
int32_t vocabulary_find(const tokenizer *tokenizer, const char *text, size_t bytes);
int32_t vocabulary_find_any(const tokenizer *tokenizer, const char *text, size_t bytes);

/* Fills tokenizer->byte from the pieces <0x00> … <0xFF>; refuses when one is missing. */
openpi_status vocabulary_find_bytes(tokenizer *tokenizer, const char *name, openpi_error *error);

/* Allocates for `count` merges; of two with the same pair the later one is kept. */
openpi_status vocabulary_create_merges(tokenizer *tokenizer, size_t count, const char *name,
                                       openpi_error *error);
void vocabulary_add_merge(tokenizer *tokenizer, int32_t left, int32_t right, uint32_t rank, int32_t id);
const merge *vocabulary_find_merge(const tokenizer *tokenizer, int32_t left, int32_t right);

/* Allocates for `count` atoms. Then atom_set_add once for each (id: a piece that was added), then
 * atom_set_sort. */
openpi_status atom_set_create(atom_set *set, size_t count, const char *name, openpi_error *error);
void atom_set_add(atom_set *set, tokenizer *tokenizer, int32_t id);
void atom_set_sort(atom_set *set);

/* Bytes of the longest atom that `text` (of `left` bytes, at least 1) starts with, its id in *id; 0: none. */
size_t atom_set_match(const atom_set *set, const char *text, size_t left, int32_t *id);

/* The readers. On failure *out is untouched. */
openpi_status tokenizer_read_sentencepiece(const void *bytes, size_t count, const char *name, tokenizer **out,
                                           openpi_error *error);
openpi_status tokenizer_read_json(const void *bytes, size_t count, const char *name, tokenizer **out,
                                  openpi_error *error);

#endif
