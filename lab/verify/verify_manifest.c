/* A golden's integrity: the hashes of MANIFEST. */
#define _XOPEN_SOURCE 700            /* realpath */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/report.h"
#include "lab/verify/verify_case.h"

uint64_t fnv1a64(const void *bytes, size_t count) { return hash_fnv1a64(HASH_FNV_START, bytes, count); }

static openpi_status check_listed(verify_case *c, const char *root, const char *name, const char *hex,
                                  openpi_error *error) {
    char *path, found[17], piece[1 << 16];
    file_reader reader;
    uint64_t hash = HASH_FNV_START;
    TRY(case_join(c, root, name, &path, error));
    TRY(file_reader_open(path, &reader, error));
    openpi_status status = OPENPI_OK;
    for (uint64_t at = 0; at < reader.bytes && status == OPENPI_OK; at += sizeof piece) {
        size_t bytes = reader.bytes - at < sizeof piece ? (size_t)(reader.bytes - at) : sizeof piece;
        status = file_reader_read(&reader, path, at, bytes, piece, error);
        if (status == OPENPI_OK) hash = hash_fnv1a64(hash, piece, bytes);
    }
    file_reader_close(&reader);
    if (status != OPENPI_OK) return status;
    snprintf(found, sizeof found, "%016" PRIx64, hash);
    if (strcmp(found, hex))
        case_fail(c, "%s differs from MANIFEST: FNV-1a64 %s, listed %s", name, found, hex);
    return OPENPI_OK;
}

/* Every listed file that is `inside` (relative to root; "" for all) or below it. */
static openpi_status check_manifest(verify_case *c, const char *root, const char *manifest,
                                    const char *inside, openpi_error *error) {
    char *text, *line, *rest;
    size_t bytes, length = strlen(inside);
    TRY(case_read(c, manifest, &text, &bytes, error));
    for (line = text; line && *line; line = rest) {
        rest = strchr(line, '\n');
        if (rest) *rest++ = 0;
        if (strlen(line) < 19 || line[16] != ' ' || line[17] != ' ')
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"%.40s\", expected 16 hex digits, two spaces and a path", manifest, line);
        line[16] = 0;
        const char *name = line + 18;
        if (!length || (!strncmp(name, inside, length) && (!name[length] || name[length] == '/')))
            TRY(check_listed(c, root, name, line, error));
    }
    return OPENPI_OK;
}

openpi_status case_manifest(verify_case *c, const char *path, openpi_error *error) {
    char *full = realpath(path, NULL), *root = NULL, *manifest;
    if (!full && file_exists(path)) return OPENPI_OK;        /* standard input: a file that is in no folder */
    if (!full) return report(error, OPENPI_NOT_FOUND, "%s: no such file or folder", path);
    TRY(case_close_later(c, free, full, error));
    size_t end = strlen(full);
    TRY(case_take(c, end + 1, 1, &root, error));             /* a copy to cut folder by folder */
    memcpy(root, full, end);
    for (int folders = 0, folder = file_is_folder(full); folders < 3; folders++, folder = 0) {
        if (!folder) {
            char *slash = strrchr(root, '/');
            if (!slash || slash == root) return OPENPI_OK;
            *slash = 0;
        }
        TRY(case_join(c, root, "MANIFEST", &manifest, error));
        size_t cut = strlen(root);
        if (file_exists(manifest))
            return check_manifest(c, root, manifest, cut < end ? full + cut + 1 : "", error);
    }
    return OPENPI_OK;
}
