/* Writes Orbax's folders of arrays, a file a chunk, as the OCDBT database that Orbax makes of them today: a
 * manifest, one node with all keys, and a file with all values. Include after cmocka.h. */
#ifndef TESTS_ORBAX_DATABASE_H
#define TESTS_ORBAX_DATABASE_H

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "ocdbt_write.h"

enum { DATABASE_KEYS = 400 };

typedef struct database {
    char *keys[DATABASE_KEYS];   /* "ARRAY/.zarray", "ARRAY/0.0", ascending                               */
    size_t offsets[DATABASE_KEYS], lengths[DATABASE_KEYS];
    int count;
    bytes values;
} database;

static inline int database_order(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The files of one array's folder, without those whose keys match the pattern `skip`. */
static inline void database_list(database *d, const char *params, const char *array, const char *skip) {
    char *folder = file_join(params, array), *key;
    DIR *files = opendir(folder);
    const struct dirent *entry;
    assert_non_null(files);
    while ((entry = readdir(files))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        key = file_join(array, entry->d_name);
        assert_true(d->count < DATABASE_KEYS);
        if (skip && !fnmatch(skip, key, 0)) free(key);
        else d->keys[d->count++] = key;
    }
    closedir(files);
    free(folder);
}

static inline void database_read(database *d, const char *params, const char *skip) {
    openpi_error error = OPENPI_ERROR_INIT;
    DIR *arrays = opendir(params);
    const struct dirent *entry;
    assert_non_null(arrays);
    while ((entry = readdir(arrays)))
        if (entry->d_name[0] == 'p') database_list(d, params, entry->d_name, skip);
    closedir(arrays);
    qsort(d->keys, (size_t)d->count, sizeof *d->keys, database_order);
    for (int i = 0; i < d->count; i++) {
        char *path = file_join(params, d->keys[i]), *data;
        if (file_read(path, 1 << 26, &data, &d->lengths[i], &error) != OPENPI_OK)
            fail_msg("%s", error.message);
        d->offsets[i] = d->values.count;
        put(&d->values, data, d->lengths[i]);
        free(data);
        free(path);
    }
}

static inline void database_put_files(bytes *b, const char *path) {
    put_varint(b, 1), put_varint(b, strlen(path)), put_varint(b, 0), put_text(b, path);
}

static inline void database_put_node(const database *d, bytes *b) {
    put_fixed(b, 0, 1);
    database_put_files(b, "d/v");
    put_varint(b, (uint64_t)d->count);
    for (int i = 1; i < d->count; i++) put_varint(b, 0);                   /* shared with the key before */
    for (int i = 0; i < d->count; i++) put_varint(b, strlen(d->keys[i]));
    for (int i = 0; i < d->count; i++) put_text(b, d->keys[i]);
    for (int i = 0; i < d->count; i++) put_varint(b, d->lengths[i]);
    for (int i = 0; i < d->count; i++) put_varint(b, 1);                   /* in a file */
    for (int i = 0; i < d->count; i++) put_varint(b, 0);
    for (int i = 0; i < d->count; i++) put_varint(b, d->offsets[i]);
}

static inline void database_put_manifest(int count, size_t node, bytes *b) {
    put(b, "0123456789abcdef", 16);
    put_varint(b, 0), put_varint(b, 100), put_varint(b, 100000000);
    put_fixed(b, 4, 1), put_varint(b, 0);
    database_put_files(b, "d/n");
    put_varint(b, 1), put_varint(b, 1), put_fixed(b, 0, 1);
    put_varint(b, 0), put_varint(b, 0), put_varint(b, node);
    put_varint(b, (uint64_t)count), put_varint(b, 0), put_varint(b, 0), put_fixed(b, 7, 8);
    put_varint(b, 0);
}

static inline void database_put(const char *folder, const char *name, const bytes *b) {
    openpi_error error = OPENPI_ERROR_INIT;
    char *path = file_join(folder, name);
    if (file_write(path, b->at, b->count, &error) != OPENPI_OK) fail_msg("%s", error.message);
    free(path);
}

/* The database in the new folder `to`, of the arrays below `params`. */
static inline void database_write(const char *params, const char *to, const char *skip) {
    database d = {0};
    bytes node = {0}, manifest = {0}, nodes = {0}, whole = {0};
    char *data = file_join(to, "d");
    assert_int_equal(mkdir(to, 0777), 0);
    assert_int_equal(mkdir(data, 0777), 0);
    free(data);
    database_read(&d, params, skip);
    database_put_node(&d, &node);
    ocdbt_block(&nodes, OCDBT_NODE, 0, &node);
    database_put_manifest(d.count, nodes.count, &manifest);
    ocdbt_block(&whole, OCDBT_MANIFEST, 0, &manifest);
    database_put(to, "d/v", &d.values);
    database_put(to, "d/n", &nodes);
    database_put(to, "manifest.ocdbt", &whole);
    for (int i = 0; i < d.count; i++) free(d.keys[i]);
    free(d.values.at), free(node.at), free(manifest.at), free(nodes.at), free(whole.at);
}

#endif
