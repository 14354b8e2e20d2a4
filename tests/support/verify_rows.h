/* Rows of verify_path, kept for assertions; and copies of goldens to damage. */
#ifndef TESTS_VERIFY_ROWS_H
#define TESTS_VERIFY_ROWS_H

#include <dirent.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lab/verify/verify.h"

enum { ROWS = 64 };

typedef struct rows {
    verify_row row[ROWS];
    int count, results[3];
} rows;

static inline void rows_take(void *user, const verify_row *row) {
    rows *r = user;
    if (r->count < ROWS) r->row[r->count] = *row;
    r->count++;
    r->results[row->result]++;
}

/* ---- files ---- */

static inline uint8_t *file_bytes(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    *bytes = 0;
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*bytes + 1);
    if (data && fread(data, 1, *bytes, file) != *bytes) {
        free(data);
        data = NULL;
    }
    if (data) data[*bytes] = 0;
    fclose(file);
    return data;
}

static inline int file_put(const char *path, const void *data, size_t bytes) {
    unlink(path);
    FILE *file = fopen(path, "wb");
    if (!file) return -1;
    size_t put = fwrite(data, 1, bytes, file);
    return fclose(file) || put != bytes ? -1 : 0;
}

static inline int file_copy(const char *from, const char *to) {
    size_t bytes;
    uint8_t *data = file_bytes(from, &bytes);
    int failed = !data || file_put(to, data, bytes);
    free(data);
    return failed ? -1 : 0;
}

/* A file, or a folder with all below it. */
static inline int tree_copy(const char *from, const char *to) {
    struct stat st;
    if (stat(from, &st)) return -1;
    if (!S_ISDIR(st.st_mode)) return file_copy(from, to);
    DIR *list = opendir(from);
    const struct dirent *entry;
    int failed = mkdir(to, 0700) || !list;
    while (!failed && (entry = readdir(list))) {
        char a[1024], b[1024];
        if (entry->d_name[0] == '.') continue;
        snprintf(a, sizeof a, "%s/%s", from, entry->d_name);
        snprintf(b, sizeof b, "%s/%s", to, entry->d_name);
        failed = tree_copy(a, b);
    }
    if (list) closedir(list);
    return failed ? -1 : 0;
}

/* ---- a tensor inside a safetensors file's bytes ---- */

/* Where a tensor's data start, and how many bytes they are. NULL: no such tensor. */
static inline uint8_t *tensor_data(uint8_t *file, size_t bytes, const char *name, size_t *count) {
    uint64_t header = 0;
    if (count) *count = 0;
    if (bytes < 8) return NULL;
    memcpy(&header, file, 8);
    json_t *root = json_loadb((const char *)file + 8, (size_t)header, 0, NULL);
    const json_t *range = json_object_get(json_object_get(root, name), "data_offsets");
    uint8_t *data = NULL;
    if (range) {
        size_t from = (size_t)json_integer_value(json_array_get(range, 0)),
               to = (size_t)json_integer_value(json_array_get(range, 1));
        data = file + 8 + header + from;
        if (count) *count = to - from;
    }
    json_decref(root);
    return data;
}

#endif
