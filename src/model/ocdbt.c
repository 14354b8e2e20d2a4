/* Reading an OCDBT database. Every count and length comes from a file that may be hostile: a cursor never
 * passes its end, counts are compared with the bytes that are left before anything is allocated, and the walk
 * over the tree is bounded by height, nodes and keys.
 *
 * Note: the empty key prefix of the root and the transitive path of the manifest grow downwards: a child
 * inherits its key prefix from its parent, and the folder in which its files lie from the file that it lies
 * in itself. */
#include "model/ocdbt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/report.h"
#include "base/unzstd.h"

enum {
    MANIFEST_MAGIC = 0x0CDB3A2A,
    NODE_MAGIC = 0x0CDB20DE,
    HEADER_BYTES = 12,           /* magic, length                                                         */
    FOOTER_BYTES = 4,            /* CRC-32C                                                               */
    NODE_LIMIT = 1 << 28,        /* bytes of a manifest or node, packed or not, and of all nodes together */
    MOST_HEIGHT = 16,
    MOST_NODES = 1 << 16,
    MOST_KEYS = 1 << 20,
    PATH_LIMIT = 1024,           /* of a data file, and of a key                                          */
    LABEL = 512,
};

/* ---- a cursor over bytes ---- */

typedef struct cursor {
    const uint8_t *at, *end;
    int bad;                     /* 1: something was asked for beyond the end, or a number was too large  */
} cursor;

static uint64_t take_varint(cursor *c) {
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

static const uint8_t *take_bytes(cursor *c, uint64_t count) {
    const uint8_t *at = c->at;
    if (c->bad || count > (uint64_t)(c->end - c->at)) {
        c->bad = 1;
        return NULL;
    }
    c->at += count;
    return at;
}

static uint64_t take_fixed(cursor *c, int bytes) {
    const uint8_t *at = take_bytes(c, (uint64_t)bytes);
    uint64_t value = 0;
    for (int i = 0; at && i < bytes; i++) value |= (uint64_t)at[i] << 8 * i;
    return value;
}

/* A count of things of at least one byte each. */
static size_t take_count(cursor *c) {
    uint64_t count = take_varint(c);
    if (count > (uint64_t)(c->end - c->at) || count > MOST_KEYS) c->bad = 1;
    return c->bad ? 0 : (size_t)count;
}

/* `count` numbers, after `lead` zeros that are not stored. malloc. */
static openpi_status take_column(cursor *c, size_t lead, size_t count, uint64_t **out, openpi_error *error) {
    uint64_t *list = calloc(lead + count + 1, sizeof *list);
    if (!list) return report_no_memory(error, (lead + count + 1) * sizeof *list, "a node's columns");
    for (size_t i = 0; i < count && !c->bad; i++) list[lead + i] = take_varint(c);
    *out = list;
    return OPENPI_OK;
}

/* ---- manifests and nodes as they are stored ---- */

typedef struct block {
    char label[LABEL];           /* leads the sentences: "FILE: node at byte 17"                          */
    uint8_t *stored;             /* the whole, header and footer too                                      */
    unsigned char *decoded;      /* the body, where it is compressed                                      */
    cursor body;
} block;

static void block_free(block *b) {
    free(b->stored);
    free(b->decoded);
}

static openpi_status damaged(const block *b, const char *what, openpi_error *error) {
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
        return damaged(b, "its CRC-32C does not match its bytes", error);
    c.end -= FOOTER_BYTES;
    uint64_t version = take_varint(&c), compression = take_varint(&c);
    if (c.bad) return damaged(b, "its header is cut short", error);
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

/* Bytes at … at + bytes - 1 of a file; bytes 0: all of it. */
static openpi_status block_read(const char *path, const char *what, uint64_t at, uint64_t bytes,
                                uint32_t magic, block *b, openpi_error *error) {
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

/* text[i] is `inherited`, the first prefix[i] bytes of what text[i-1] has after it, suffix[i] bytes more. */
static openpi_status take_texts(block *b, size_t count, const uint64_t *prefix, const uint64_t *suffix,
                                const char *inherited, char ***out, openpi_error *error) {
    size_t lead = strlen(inherited), before = lead;
    char **list = calloc(count + 1, sizeof *list);
    *out = list;
    if (!list) return report_no_memory(error, (count + 1) * sizeof *list, b->label);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *bytes = take_bytes(&b->body, suffix[i]);
        if (!bytes || prefix[i] > before - lead || suffix[i] > PATH_LIMIT ||
            lead + prefix[i] + suffix[i] > PATH_LIMIT)
            return damaged(b, "the lengths of its names do not fit", error);
        size_t keep = lead + (size_t)prefix[i];
        list[i] = malloc(keep + (size_t)suffix[i] + 1);
        if (!list[i]) return report_no_memory(error, keep + (size_t)suffix[i] + 1, b->label);
        memcpy(list[i], i ? list[i - 1] : inherited, keep);
        memcpy(list[i] + keep, bytes, (size_t)suffix[i]);
        list[i][before = keep + (size_t)suffix[i]] = 0;
        if (memchr(list[i], 0, before)) return damaged(b, "a name holds a zero byte", error);
    }
    return OPENPI_OK;
}

static void free_texts(char **list, size_t count) {
    for (size_t i = 0; list && i < count; i++) free(list[i]);
    free(list);
}

/* ---- data files ---- */

typedef struct file_table {
    size_t count;
    char **paths;                /* below the database's folder                                           */
    uint64_t *bases;             /* of each, how much its nodes' files start with                         */
} file_table;

static void free_files(file_table *t) {
    free_texts(t->paths, t->count);
    free(t->bases);
}

static int path_is_safe(const char *path) {
    if (*path == '/') return 0;
    for (const char *part = path; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
        if (part[0] == '.' && part[1] == '.' && (!part[2] || part[2] == '/')) return 0;
    return 1;
}

/* transitive: the folder of the file that the node lies in. */
static openpi_status take_files(block *b, const char *transitive, file_table *t, openpi_error *error) {
    uint64_t *prefix = NULL, *suffix = NULL;
    size_t lead = strlen(transitive);
    t->count = take_count(&b->body);
    if (b->body.bad) return damaged(b, "its table of files is cut short", error);
    openpi_status status = take_column(&b->body, t->count > 0, t->count - (t->count > 0), &prefix, error);
    if (status == OPENPI_OK) status = take_column(&b->body, 0, t->count, &suffix, error);
    if (status == OPENPI_OK) status = take_column(&b->body, 0, t->count, &t->bases, error);
    if (status == OPENPI_OK) status = take_texts(b, t->count, prefix, suffix, transitive, &t->paths, error);
    free(prefix);
    free(suffix);
    TRY(status);
    for (size_t i = 0; i < t->count; i++) {
        t->bases[i] += lead;
        if (t->bases[i] < lead || t->bases[i] > strlen(t->paths[i]))
            return damaged(b, "a file's base is longer than its path", error);
        if (!path_is_safe(t->paths[i]))
            return report(error, OPENPI_BAD_FILE, "%s names the file \"%s\", expected one below its folder",
                          b->label, t->paths[i]);
    }
    return OPENPI_OK;
}

/* ---- the tree ---- */

typedef struct walk {
    const char *folder;
    values *values;
    int nodes;
    uint64_t bytes;                        /* of all nodes so far, decoded                                */
    char last_key[PATH_LIMIT + 1];         /* keys ascend over the whole tree                             */
} walk;

/* The columns of a node's entries. Leaf: kind, bytes; file and offset only of values in files. Inner: common,
 * keys too. */
typedef struct node {
    block block;
    int height;
    size_t count;
    file_table files;
    char **keys;
    uint64_t *prefix, *suffix, *common, *kind, *file, *offset, *bytes, *key_count;
} node;

static void node_free(node *n) {
    block_free(&n->block);
    free_files(&n->files);
    free_texts(n->keys, n->count);
    uint64_t *columns[] = {n->prefix, n->suffix, n->common, n->kind,
                           n->file,   n->offset, n->bytes,  n->key_count};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) free(columns[i]);
}

static openpi_status take_inner(node *n, openpi_error *error) {
    cursor *c = &n->block.body;
    uint64_t *unused[2] = {NULL, NULL};
    TRY(take_column(c, 0, n->count, &n->file, error));
    TRY(take_column(c, 0, n->count, &n->offset, error));
    TRY(take_column(c, 0, n->count, &n->bytes, error));
    TRY(take_column(c, 0, n->count, &n->key_count, error));
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < 2 && status == OPENPI_OK; i++) {                   /* tree bytes, value bytes */
        status = take_column(c, 0, n->count, &unused[i], error);
        free(unused[i]);
    }
    return status;
}

/* File and offset are stored for values in files only: they are spread over all entries. */
static openpi_status take_leaf(node *n, openpi_error *error) {
    cursor *c = &n->block.body;
    size_t in_files = 0;
    TRY(take_column(c, 0, n->count, &n->bytes, error));
    TRY(take_column(c, 0, n->count, &n->kind, error));
    for (size_t i = 0; i < n->count; i++) {
        if (n->kind[i] > 1) return damaged(&n->block, "a value is neither in the node nor in a file", error);
        in_files += (size_t)n->kind[i];
    }
    TRY(take_column(c, n->count - in_files, in_files, &n->file, error));
    TRY(take_column(c, n->count - in_files, in_files, &n->offset, error));
    for (size_t i = 0, from = n->count - in_files; i < n->count; i++) {
        if (!n->kind[i]) continue;
        n->file[i] = n->file[from];
        n->offset[i] = n->offset[from++];
    }
    return OPENPI_OK;
}

static openpi_status take_node(node *n, const char *transitive, const char *inherited, openpi_error *error) {
    block *b = &n->block;
    n->height = (int)take_fixed(&b->body, 1);
    TRY(take_files(b, transitive, &n->files, error));
    n->count = take_count(&b->body);
    if (b->body.bad || !n->count) {
        n->count = 0;
        return damaged(b, "it has no entries", error);
    }
    TRY(take_column(&b->body, 1, n->count - 1, &n->prefix, error));
    TRY(take_column(&b->body, 0, n->count, &n->suffix, error));
    if (n->height) TRY(take_column(&b->body, 0, n->count, &n->common, error));
    if (b->body.bad) return damaged(b, "its entries are cut short", error);
    TRY(take_texts(b, n->count, n->prefix, n->suffix, inherited, &n->keys, error));
    TRY(n->height ? take_inner(n, error) : take_leaf(n, error));
    return b->body.bad ? damaged(b, "its entries are cut short", error) : OPENPI_OK;
}

static openpi_status add_value(walk *w, node *n, size_t i, openpi_error *error) {
    const char *key = n->keys[i];
    if (values_count(w->values) && strcmp(w->last_key, key) >= 0)
        return report(error, OPENPI_BAD_FILE, "%s: key \"%s\" follows \"%s\", expected ascending keys",
                      n->block.label, key, w->last_key);
    if (values_count(w->values) == MOST_KEYS)
        return report(error, OPENPI_BAD_FILE, "%s: the database has more than %d keys", n->block.label,
                      MOST_KEYS);
    snprintf(w->last_key, sizeof w->last_key, "%s", key);
    if (!n->kind[i]) {
        const uint8_t *data = take_bytes(&n->block.body, n->bytes[i]);
        if (!data) return damaged(&n->block, "a value in it is cut short", error);
        return values_add(w->values, key, n->block.label, 0, n->bytes[i], data, error);
    }
    if (n->file[i] >= n->files.count)
        return damaged(&n->block, "a value lies in a file that is not in its table", error);
    char *path = file_join(w->folder, n->files.paths[n->file[i]]);
    if (!path) return report_no_memory(error, PATH_LIMIT, key);
    openpi_status status = values_add(w->values, key, path, n->offset[i], n->bytes[i], NULL, error);
    free(path);
    return status;
}

static openpi_status walk_node(walk *w, const char *file, const char *transitive, uint64_t offset,
                               uint64_t bytes, int height, const char *inherited, uint64_t key_count,
                               openpi_error *error);

static openpi_status walk_child(walk *w, const node *n, size_t i, openpi_error *error) {
    char transitive[PATH_LIMIT + 1], inherited[PATH_LIMIT + 1];
    size_t lead = strlen(n->keys[i]);
    if (n->file[i] >= n->files.count)
        return damaged(&n->block, "a child lies in a file that is not in its table", error);
    size_t base = (size_t)n->files.bases[n->file[i]];
    /* The common prefix counts from where the keys of this node begin: what they inherited comes on top. */
    size_t own = lead - (size_t)(n->prefix[i] + n->suffix[i]), keep = own + (size_t)n->common[i];
    if (n->common[i] > lead || keep > lead)
        return damaged(&n->block, "a child's key prefix is longer than its key", error);
    snprintf(transitive, sizeof transitive, "%.*s", (int)base, n->files.paths[n->file[i]]);
    snprintf(inherited, sizeof inherited, "%.*s", (int)keep, n->keys[i]);
    return walk_node(w, n->files.paths[n->file[i]], transitive, n->offset[i], n->bytes[i], n->height - 1,
                     inherited, n->key_count[i], error);
}

static openpi_status walk_entries(walk *w, node *n, int height, uint64_t key_count, openpi_error *error) {
    int before = values_count(w->values);
    if (n->height != height)
        return report(error, OPENPI_BAD_FILE, "%s has height %d, expected %d", n->block.label, n->height,
                      height);
    for (size_t i = 0; i < n->count; i++)
        TRY(n->height ? walk_child(w, n, i, error) : add_value(w, n, i, error));
    if (!n->height && n->block.body.at != n->block.body.end)
        return damaged(&n->block, "bytes follow its last value", error);
    if ((uint64_t)(values_count(w->values) - before) != key_count)
        return report(error, OPENPI_BAD_FILE, "%s leads to %d keys, expected %llu", n->block.label,
                      values_count(w->values) - before, (unsigned long long)key_count);
    return OPENPI_OK;
}

static openpi_status walk_node(walk *w, const char *file, const char *transitive, uint64_t offset,
                               uint64_t bytes, int height, const char *inherited, uint64_t key_count,
                               openpi_error *error) {
    node n = {.height = 0};
    char what[64], *path;
    if (w->nodes++ == MOST_NODES)
        return report(error, OPENPI_BAD_FILE, "%s: the database has more than %d nodes", w->folder,
                      MOST_NODES);
    if (!bytes) return report(error, OPENPI_BAD_FILE, "%s: a node of no bytes in %s", w->folder, file);
    if (!(path = file_join(w->folder, file))) return report_no_memory(error, PATH_LIMIT, w->folder);
    snprintf(what, sizeof what, "node at byte %llu", (unsigned long long)offset);
    openpi_status status = block_read(path, what, offset, bytes, NODE_MAGIC, &n.block, error);
    free(path);
    w->bytes += (uint64_t)(n.block.body.end - n.block.body.at);
    if (status == OPENPI_OK && w->bytes > NODE_LIMIT)
        status = report(error, OPENPI_BAD_FILE, "%s: the database's nodes have more than %d bytes", w->folder,
                        NODE_LIMIT);
    if (status == OPENPI_OK) status = take_node(&n, transitive, inherited, error);
    if (status == OPENPI_OK) status = walk_entries(w, &n, height, key_count, error);
    node_free(&n);
    return status;
}

/* ---- the manifest ---- */

/* The last of the versions that stand in the manifest itself. */
typedef struct version {
    uint64_t height, file, offset, bytes, keys;
} version;

static openpi_status take_settings(block *b, openpi_error *error) {
    cursor *c = &b->body;
    take_bytes(c, 16);                                                     /* uuid */
    uint64_t kind = take_varint(c);
    take_varint(c), take_varint(c), take_fixed(c, 1); /* largest inline value and node, arity */
    if (take_varint(c) == 1) take_fixed(c, 4);                             /* compression level */
    if (c->bad) return damaged(b, "its settings are cut short", error);
    if (kind)
        return report(
            error, OPENPI_UNSUPPORTED,
            "%s keeps its versions in numbered manifests, which Orbax never writes, expected a single one",
            b->label);
    return OPENPI_OK;
}

static openpi_status take_version(block *b, version *v, openpi_error *error) {
    enum { GENERATION, HEIGHT, FILE_INDEX, OFFSET, BYTES, KEYS, TREE_BYTES, VALUE_BYTES, COLUMNS };
    uint64_t last[COLUMNS] = {0};
    cursor *c = &b->body;
    size_t count = take_count(c);
    for (int column = 0; column < COLUMNS && !c->bad; column++)
        for (size_t i = 0; i < count; i++)
            last[column] = column == HEIGHT ? take_fixed(c, 1) : take_varint(c);
    if (c->bad || !count) return damaged(b, "it has no version", error);
    *v = (version){last[HEIGHT], last[FILE_INDEX], last[OFFSET], last[BYTES], last[KEYS]};
    return OPENPI_OK;
}

static openpi_status read_database(walk *w, block *b, file_table *files, openpi_error *error) {
    version v = {0};
    TRY(take_settings(b, error));
    TRY(take_files(b, "", files, error));
    TRY(take_version(b, &v, error));
    if (!v.bytes)
        return report(error, OPENPI_BAD_FILE, "%s: the database is empty: nothing was saved", b->label);
    if (v.height > MOST_HEIGHT)
        return report(error, OPENPI_BAD_FILE, "%s: its tree is %llu nodes high, expected at most %d",
                      b->label, (unsigned long long)v.height, MOST_HEIGHT);
    if (v.file >= files->count) return damaged(b, "its tree lies in a file that is not in its table", error);
    char transitive[PATH_LIMIT + 1];
    snprintf(transitive, sizeof transitive, "%.*s", (int)files->bases[v.file], files->paths[v.file]);
    return walk_node(w, files->paths[v.file], transitive, v.offset, v.bytes, (int)v.height, "", v.keys,
                     error);
}

openpi_status ocdbt_open(const char *folder, values **out, openpi_error *error) {
    walk w = {.folder = folder, .values = values_create()};
    block manifest = {.stored = NULL};
    file_table files = {0};
    char *path = file_join(folder, "manifest.ocdbt");
    openpi_status status = OPENPI_OK;
    if (!path || !w.values) status = report_no_memory(error, strlen(folder) + 16, folder);
    if (status == OPENPI_OK)
        status = block_read(path, "the manifest", 0, 0, MANIFEST_MAGIC, &manifest, error);
    if (status == OPENPI_OK) status = read_database(&w, &manifest, &files, error);
    if (status == OPENPI_OK) status = values_finish(w.values, folder, error);
    free(path);
    block_free(&manifest);
    free_files(&files);
    if (status == OPENPI_OK)
        *out = w.values;
    else
        values_close(w.values);
    return status;
}
