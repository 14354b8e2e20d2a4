#include "checkpoint/jax/ocdbt_block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/report.h"
#include "base/unzstd.h"

enum { HEADER_BYTES = 12, FOOTER_BYTES = 4 };    /* magic and length; CRC-32C */

/* ---- a cursor over bytes ---- */

uint64_t take_varint(cursor *c) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && c->at < c->end; shift += 7) {
        uint8_t byte = *c->at++;
        if (shift == 63 && byte > 1) break;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return value;
    }
    c->bad = 1;
    return 0;
}

const uint8_t *take_bytes(cursor *c, uint64_t count) {
    const uint8_t *at = c->at;
    if (c->bad || count > (uint64_t)(c->end - c->at)) {
        c->bad = 1;
        return NULL;
    }
    c->at += count;
    return at;
}

uint64_t take_fixed(cursor *c, int bytes) {
    const uint8_t *at = take_bytes(c, (uint64_t)bytes);
    uint64_t value = 0;
    for (int i = 0; at && i < bytes; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

size_t take_count(cursor *c) {
    uint64_t count = take_varint(c);
    if (count > (uint64_t)(c->end - c->at) || count > MOST_KEYS) c->bad = 1;
    return c->bad ? 0 : (size_t)count;
}

openpi_status take_column(cursor *c, size_t lead, size_t count, uint64_t **out, openpi_error *error) {
    uint64_t *list = calloc(lead + count + 1, sizeof *list);
    if (!list) return report_no_memory(error, (lead + count + 1) * sizeof *list, "a node's columns");
    for (size_t i = 0; i < count && !c->bad; i++) list[lead + i] = take_varint(c);
    *out = list;
    return OPENPI_OK;
}

/* ---- manifests and nodes as they are stored ---- */

void block_free(block *b) {
    free(b->stored);
    free(b->decoded);
}

openpi_status block_damaged(const block *b, const char *what, openpi_error *error) {
    return report(error, OPENPI_BAD_FILE, "%s is damaged: %s", b->label, what);
}

static openpi_status check_envelope(block *b, uint32_t magic, uint64_t bytes, openpi_error *error) {
    cursor c = {b->stored, b->stored + bytes, 0},
           footer = {b->stored + bytes - FOOTER_BYTES, b->stored + bytes, 0};
    const uint8_t *first = take_bytes(&c, 4);
    uint32_t found = (uint32_t)first[0] << 24 | (uint32_t)first[1] << 16 | (uint32_t)first[2] << 8 | first[3];
    uint64_t length = take_fixed(&c, 8);
    if (found != magic)
        return report(error, OPENPI_BAD_FILE, "%s begins with 0x%08x, expected 0x%08x", b->label, found,
                      magic);
    if (length != bytes)
        return report(error, OPENPI_BAD_FILE, "%s says that it has %llu bytes, expected %llu", b->label,
                      (unsigned long long)length, (unsigned long long)bytes);
    if (crc32c(b->stored, (size_t)bytes - FOOTER_BYTES) != take_fixed(&footer, 4))
        return block_damaged(b, "its CRC-32C does not match its bytes", error);
    c.end -= FOOTER_BYTES;
    uint64_t version = take_varint(&c), compression = take_varint(&c);
    if (c.bad) return block_damaged(b, "its header is cut short", error);
    if (version || compression > 1)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s has version %llu and compression %llu, expected version 0 and compression 0 or 1",
                      b->label, (unsigned long long)version, (unsigned long long)compression);
    b->body = c;
    if (!compression) return OPENPI_OK;
    size_t count;
    TRY(unzstd_all(b->label, c.at, (size_t)(c.end - c.at), NODE_LIMIT, &b->decoded, &count, error));
    b->body = (cursor){b->decoded, b->decoded + count, 0};
    return OPENPI_OK;
}

openpi_status block_read(const char *path, const char *what, uint64_t at, uint64_t bytes, uint32_t magic,
                         block *b, openpi_error *error) {
    file_reader reader;
    *b = (block){.stored = NULL};
    snprintf(b->label, sizeof b->label, "%.400s: %s", path, what);
    TRY(file_reader_open(path, &reader, error));
    uint64_t all = reader.bytes;
    openpi_status status = OPENPI_OK;
    if (!bytes) bytes = all;
    if (at > all || bytes > all - at || bytes < HEADER_BYTES + 2 + FOOTER_BYTES || bytes > NODE_LIMIT)
        status = report(error, OPENPI_BAD_FILE,
                        "%s lies at bytes %llu to %llu, expected %d to %d bytes within the file's %llu",
                        b->label, (unsigned long long)at, (unsigned long long)(at + bytes),
                        HEADER_BYTES + 2 + FOOTER_BYTES, NODE_LIMIT, (unsigned long long)all);
    else if (!(b->stored = malloc((size_t)bytes)))
        status = report_no_memory(error, (size_t)bytes, path);
    if (status == OPENPI_OK) status = file_reader_read(&reader, path, at, (size_t)bytes, b->stored, error);
    file_reader_close(&reader);
    return status == OPENPI_OK ? check_envelope(b, magic, bytes, error) : status;
}

/* ---- strings that share beginnings ---- */

openpi_status block_texts(block *b, size_t count, const uint64_t *prefix, const uint64_t *suffix,
                          const char *inherited, char ***out, openpi_error *error) {
    size_t lead = strlen(inherited), before = lead;
    char **list = calloc(count + 1, sizeof *list);
    *out = list;
    if (!list) return report_no_memory(error, (count + 1) * sizeof *list, b->label);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *bytes = take_bytes(&b->body, suffix[i]);
        if (!bytes || prefix[i] > before - lead || suffix[i] > PATH_LIMIT ||
            lead + prefix[i] + suffix[i] > PATH_LIMIT)
            return block_damaged(b, "the lengths of its names do not fit", error);
        size_t keep = lead + (size_t)prefix[i];
        list[i] = malloc(keep + (size_t)suffix[i] + 1);
        if (!list[i]) return report_no_memory(error, keep + (size_t)suffix[i] + 1, b->label);
        memcpy(list[i], i ? list[i - 1] : inherited, keep);
        memcpy(list[i] + keep, bytes, (size_t)suffix[i]);
        list[i][before = keep + (size_t)suffix[i]] = 0;
        if (memchr(list[i], 0, before)) return block_damaged(b, "a name holds a zero byte", error);
    }
    return OPENPI_OK;
}

void block_texts_free(char **list, size_t count) {
    for (size_t i = 0; list && i < count; i++) free(list[i]);
    free(list);
}
