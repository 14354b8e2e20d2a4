/* Manifests and nodes of an OCDBT database as they lie in a file: an envelope with length and CRC-32C around
 * a body that may be compressed, and the numbers and names in the body.
 *
 * Every count and length comes from a file that may be hostile: a cursor never passes its end, and a count is
 * compared with the bytes that are left before anything is allocated for it. */
#ifndef MODEL_OCDBT_BLOCK_H
#define MODEL_OCDBT_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "openpi.h"

enum {
    MANIFEST_MAGIC = 0x0CDB3A2A,
    NODE_MAGIC = 0x0CDB20DE,
    NODE_LIMIT = 1 << 27,        /* bytes of a block, compressed or not, and of all nodes together: Orbax */
                                 /* asks for nodes of at most 100,000,000                                 */
    MOST_KEYS = 1 << 20,
    PATH_LIMIT = 1024,           /* longest path of a data file, and longest key                          */
};

typedef struct cursor {
    const uint8_t *at, *end;
    int bad;                     /* 1: something was asked for beyond the end, or a number was too large  */
} cursor;

uint64_t take_varint(cursor *c);
/* NULL: there are not so many. */
const uint8_t *take_bytes(cursor *c, uint64_t count);
uint64_t take_fixed(cursor *c, int bytes);
/* A count of things of at least one byte each. */
size_t take_count(cursor *c);
/* `count` numbers, after `lead` zeros that are not stored. malloc. */
openpi_status take_column(cursor *c, size_t lead, size_t count, uint64_t **out, openpi_error *error);

typedef struct block {
    char label[512];             /* leads the sentences: "FILE: node at byte 17"                          */
    uint8_t *stored;             /* the whole, header and footer too                                      */
    unsigned char *decoded;      /* the body, where it is compressed                                      */
    cursor body;
} block;

/* Bytes at … at + bytes - 1 of a file, checked and decompressed; bytes 0: all of the file. */
openpi_status block_read(const char *path, const char *what, uint64_t at, uint64_t bytes, uint32_t magic,
                         block *b, openpi_error *error);
void block_free(block *b);
/* "… is damaged: WHAT" */
openpi_status block_damaged(const block *b, const char *what, openpi_error *error);

/* Names that share beginnings: text[i] is `inherited`, the first prefix[i] bytes of what text[i-1] has after
 * it, then suffix[i] bytes of the body. */
openpi_status block_texts(block *b, size_t count, const uint64_t *prefix, const uint64_t *suffix,
                          const char *inherited, char ***out, openpi_error *error);
void block_texts_free(char **list, size_t count);

#endif
