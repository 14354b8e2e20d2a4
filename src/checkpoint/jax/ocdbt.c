/* The walk over an OCDBT database. It is bounded by height, nodes and keys: a hostile tree ends with a
 * sentence.
 *
 * Note: the empty key prefix of the root and the transitive path of the manifest grow downwards: a child
 * inherits its key prefix from its parent, and the folder in which its files lie from the file that it lies
 * in itself. */
#include "checkpoint/jax/ocdbt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "checkpoint/jax/ocdbt_block.h"

enum { MOST_HEIGHT = 16, MOST_NODES = 1 << 16 };

/* ---- data files ---- */

typedef struct file_table {
    size_t count;
    char **paths;                /* below the database's folder                                           */
    uint64_t *bases;             /* for each, how much its nodes' files start with                        */
} file_table;

static void free_files(file_table *t) {
    block_texts_free(t->paths, t->count);
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
    if (b->body.bad) return block_damaged(b, "its table of files is cut short", error);
    openpi_status status = take_column(&b->body, t->count > 0, t->count - (t->count > 0), &prefix, error);
    if (status == OPENPI_OK) status = take_column(&b->body, 0, t->count, &suffix, error);
    if (status == OPENPI_OK) status = take_column(&b->body, 0, t->count, &t->bases, error);
    if (status == OPENPI_OK) status = block_texts(b, t->count, prefix, suffix, transitive, &t->paths, error);
    free(prefix);
    free(suffix);
    TRY(status);
    for (size_t i = 0; i < t->count; i++) {
        t->bases[i] += lead;
        if (t->bases[i] < lead || t->bases[i] > strlen(t->paths[i]))
            return block_damaged(b, "a file's base is longer than its path", error);
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
    uint64_t bytes;                        /* decoded size of all nodes so far                            */
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
    block_texts_free(n->keys, n->count);
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
        if (n->kind[i] > 1)
            return block_damaged(&n->block, "a value is neither in the node nor in a file", error);
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

/* n->height: the one expected. Heights fall by one from node to node, so a walk ends. */
static openpi_status take_node(node *n, const char *transitive, const char *inherited, openpi_error *error) {
    block *b = &n->block;
    int height = (int)take_fixed(&b->body, 1);
    if (height != n->height)
        return report(error, OPENPI_BAD_FILE, "%s has height %d, expected %d", b->label, height, n->height);
    TRY(take_files(b, transitive, &n->files, error));
    n->count = take_count(&b->body);
    if (b->body.bad || !n->count) {
        n->count = 0;
        return block_damaged(b, "it has no entries", error);
    }
    TRY(take_column(&b->body, 1, n->count - 1, &n->prefix, error));
    TRY(take_column(&b->body, 0, n->count, &n->suffix, error));
    if (n->height) TRY(take_column(&b->body, 0, n->count, &n->common, error));
    if (b->body.bad) return block_damaged(b, "its entries are cut short", error);
    TRY(block_texts(b, n->count, n->prefix, n->suffix, inherited, &n->keys, error));
    TRY(n->height ? take_inner(n, error) : take_leaf(n, error));
    return b->body.bad ? block_damaged(b, "its entries are cut short", error) : OPENPI_OK;
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
        if (!data) return block_damaged(&n->block, "a value in it is cut short", error);
        return values_add(w->values, key, n->block.label, 0, n->bytes[i], data, error);
    }
    if (n->file[i] >= n->files.count)
        return block_damaged(&n->block, "a value lies in a file that is not in its table", error);
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
        return block_damaged(&n->block, "a child lies in a file that is not in its table", error);
    size_t base = (size_t)n->files.bases[n->file[i]];
    /* The common prefix counts from where the keys of this node begin: what they inherited comes on top. */
    size_t own = lead - (size_t)(n->prefix[i] + n->suffix[i]), keep = own + (size_t)n->common[i];
    if (n->common[i] > lead || keep > lead)
        return block_damaged(&n->block, "a child's key prefix is longer than its key", error);
    snprintf(transitive, sizeof transitive, "%.*s", (int)base, n->files.paths[n->file[i]]);
    snprintf(inherited, sizeof inherited, "%.*s", (int)keep, n->keys[i]);
    return walk_node(w, n->files.paths[n->file[i]], transitive, n->offset[i], n->bytes[i], n->height - 1,
                     inherited, n->key_count[i], error);
}

static openpi_status walk_entries(walk *w, node *n, uint64_t key_count, openpi_error *error) {
    int before = values_count(w->values);
    for (size_t i = 0; i < n->count; i++)
        TRY(n->height ? walk_child(w, n, i, error) : add_value(w, n, i, error));
    if (!n->height && n->block.body.at != n->block.body.end)
        return block_damaged(&n->block, "bytes follow its last value", error);
    if ((uint64_t)(values_count(w->values) - before) != key_count)
        return report(error, OPENPI_BAD_FILE, "%s leads to %d keys, expected %llu", n->block.label,
                      values_count(w->values) - before, (unsigned long long)key_count);
    return OPENPI_OK;
}

static openpi_status walk_node(walk *w, const char *file, const char *transitive, uint64_t offset,
                               uint64_t bytes, int height, const char *inherited, uint64_t key_count,
                               openpi_error *error) {
    node n = {.height = height};
    char what[64], *path;
    if (w->nodes++ == MOST_NODES)
        return report(error, OPENPI_BAD_FILE, "%s: the database has more than %d nodes", w->folder,
                      MOST_NODES);
    if (!bytes) return report(error, OPENPI_BAD_FILE, "%s: a node of no bytes in %s", w->folder, file);
    if (!(path = file_join(w->folder, file))) return report_no_memory(error, PATH_LIMIT, w->folder);
    snprintf(what, sizeof what, "node at byte %llu", (unsigned long long)offset);
    openpi_status status = block_read(path, what, offset, bytes, NODE_MAGIC, &n.block, error);
    if (status == OPENPI_OK) status = values_note_file(w->values, path, error);
    free(path);
    w->bytes += (uint64_t)(n.block.body.end - n.block.body.at);
    if (status == OPENPI_OK && w->bytes > NODE_LIMIT)
        status = report(error, OPENPI_BAD_FILE, "%s: the database's nodes have more than %d bytes", w->folder,
                        NODE_LIMIT);
    if (status == OPENPI_OK) status = take_node(&n, transitive, inherited, error);
    if (status == OPENPI_OK) status = walk_entries(w, &n, key_count, error);
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
    if (c->bad) return block_damaged(b, "its settings are cut short", error);
    if (kind)
        return report(
            error, OPENPI_UNSUPPORTED,
            "%s keeps its versions in numbered manifests, expected a single one: restore the checkpoint with "
            "Orbax and save it again, which writes one",
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
    if (c->bad || !count) return block_damaged(b, "it has no version", error);
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
    if (v.file >= files->count)
        return block_damaged(b, "its tree lies in a file that is not in its table", error);
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
    if (status == OPENPI_OK) status = values_note_file(w.values, path, error);
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
