#include "checkpoint/jax/orbax_gaps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/jax/orbax_folder.h"

#define STORED "store_array_data_equal_to_fill_value"
#define METADATA "_METADATA"

enum { NAME = 500 };             /* an array's name, for sentences */

/* ---- what the checkpoint says about itself ---- */

/* "params.PaliGemma.img.head.kernel" of an entry of "tree_metadata"; 0: it has no such key. */
static int entry_name(const json_t *entry, char name[NAME]) {
    const json_t *keys = json_object_get(entry, "key_metadata");
    size_t at = 0;
    for (size_t i = 0; i < json_array_size(keys); i++) {
        const char *key = json_string_value(json_object_get(json_array_get(keys, i), "key"));
        if (!key || at + strlen(key) + 2 > NAME) return 0;
        at += (size_t)snprintf(name + at, NAME - at, "%s%s", i ? "." : "", key);
    }
    return at && !strncmp(name, "params.", 7);
}

static int is_there(const values *values, const char *name, const char *tail) {
    char key[NAME + 32];
    snprintf(key, sizeof key, "%s/%s", name, tail);
    return values_find(values, key) != NULL;
}

static openpi_status check_tree(const orbax_gaps *g, const json_t *tree, const char *file, int without_lora,
                                openpi_error *error) {
    const char *unused;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)tree, unused, entry) {
        const json_t *value = json_object_get(entry, "value_metadata");
        char name[NAME];
        if (json_is_true(json_object_get(value, "skip_deserialize")) || !entry_name(entry, name)) continue;
        if (is_there(g->values, name, ".zarray") || (without_lora && strstr(name, "lora"))) continue;
        return report(error, OPENPI_BAD_FILE,
                      "%s: array \"%s\" is not there, but %s names it: download or copy the checkpoint again",
                      g->params, name, file);
    }
    return OPENPI_OK;
}

static openpi_status read_metadata(orbax_gaps *g, const char *file, int without_lora, openpi_error *error) {
    json_t *root = NULL;
    TRY(json_read(file, &root, error));
    const json_t *stored = json_object_get(root, STORED);
    openpi_status status = OPENPI_OK;
    /* As Orbax, also where it is absent. */
    g->saved = json_is_true(stored) ? SAVED_ALL : SAVED_WITHOUT_ZEROS;
    if (!json_is_object(root))
        status = report(error, OPENPI_BAD_FILE, "%s: is %s, expected an object", file, json_kind(root));
    else if (stored && !json_is_boolean(stored))
        status = report(error, OPENPI_BAD_FILE, "%s: \"" STORED "\" is %s, expected true or false", file,
                        json_kind(stored));
    else
        status = check_tree(g, json_object_get(root, "tree_metadata"), file, without_lora, error);
    json_decref(root);
    return status;
}

/* In the folder of arrays, or around it where the database of the one process that wrote it is given. */
static openpi_status find_metadata(orbax_gaps *g, int without_lora, openpi_error *error) {
    static const char *const places[] = {METADATA, "../" METADATA};
    for (int i = 0; i < 1 + (strstr(g->params, "ocdbt.process_") != NULL); i++) {
        char *file = file_join(g->params, places[i]);
        if (!file) return report_no_memory(error, strlen(g->params) + 16, g->params);
        int there = file_exists(file);
        openpi_status status = there ? read_metadata(g, file, without_lora, error) : OPENPI_OK;
        free(file);
        if (there || status != OPENPI_OK) return status;
    }
    return OPENPI_OK;
}

/* Chunks without the header that says what they are. */
static openpi_status check_headers(const orbax_gaps *g, int without_lora, openpi_error *error) {
    for (int i = 0; i < values_count(g->values); i++) {
        const char *key = values_at(g->values, i)->key, *chunk = strchr(key, '/');
        char name[NAME];
        if (!chunk || strncmp(key, "params.", 7) || chunk[1 + strspn(chunk + 1, "0123456789./")]) continue;
        if (chunk - key >= NAME) continue;
        snprintf(name, sizeof name, "%.*s", (int)(chunk - key), key);
        if (is_there(g->values, name, ".zarray") || is_there(g->values, name, "zarr.json")) continue;
        if (without_lora && strstr(name, "lora")) continue;
        return report(error, OPENPI_BAD_FILE,
                      "%s: array \"%s\" has chunks but no .zarray, which says what they are: download or "
                      "copy it again",
                      g->params, name);
    }
    return OPENPI_OK;
}

openpi_status orbax_gaps_begin(orbax_gaps *g, const char *params, const values *values, int without_lora,
                               openpi_error *error) {
    *g = (orbax_gaps){.params = params, .values = values};
    TRY(check_headers(g, without_lora, error));
    return find_metadata(g, without_lora, error);
}

/* ---- chunks ---- */

/* The file of a chunk, the array and the chunk, for sentences. */
static void name_chunk(const orbax_gaps *g, const zarr_array *a, const char *key, char name[ORBAX_GAP]) {
    const char *chunk = key + strlen(a->name) + 1;
    if (orbax_folder_is_database(g->params))
        snprintf(name, ORBAX_GAP, "%.200s/manifest.ocdbt: array \"%.100s\": chunk %.40s", g->params, a->name,
                 chunk);
    else
        snprintf(name, ORBAX_GAP, "%.130s/%.140s: array \"%.100s\": chunk %.40s", g->params, key, a->name,
                 chunk);
}

void orbax_gaps_look(orbax_gaps *g, const zarr_array *a) {
    int64_t chunks = 1;
    for (int i = 0; i < zarr_axes(a); i++) chunks *= a->grid[i];
    for (int64_t n = 0; n < chunks; n++) {
        int64_t index[ZARR_AXES] = {0}, rest = n;
        char key[ZARR_KEY];
        for (int axis = zarr_axes(a) - 1; axis >= 0; axis--) {
            index[axis] = rest % a->grid[axis];
            rest /= a->grid[axis];
        }
        zarr_chunk_key(a, index, key);
        const stored_value *found = values_find(g->values, key);
        if (found && !found->bytes && !g->empty[0]) name_chunk(g, a, key, g->empty);
        if (!found && !g->chunks++) name_chunk(g, a, key, g->first);
    }
}

openpi_status orbax_gaps_end(orbax_gaps *g, missing_chunks missing, openpi_error *error) {
    char more[64] = "";
    if (g->empty[0])
        return report(error, OPENPI_BAD_FILE, "%s is empty: download or copy the checkpoint again", g->empty);
    if (!g->chunks) return OPENPI_OK;
    if (g->chunks > 1) snprintf(more, sizeof more, ", the first of %d chunks,", g->chunks);
    if (g->saved == SAVED_ALL)
        return report(error, OPENPI_BAD_FILE,
                      "%s%s is not there, but " METADATA " says that all were saved (\"" STORED
                      "\"): download or copy the checkpoint again",
                      g->first, more);
    if (g->saved == SAVED_UNKNOWN && missing == MISSING_REFUSED)
        return report(error, OPENPI_BAD_FILE,
                      "%s%s is not there, and no " METADATA " says whether zeros were saved: copy the "
                      "checkpoint again, or give missing_chunks_are_zero to take zeros",
                      g->first, more);
    snprintf(g->why, sizeof g->why, "%.240s%s is not there and taken as zeros, as %s", g->first, more,
             g->saved == SAVED_UNKNOWN ? "missing_chunks_are_zero says"
                                       : "its " METADATA " says (\"" STORED "\" is not true)");
    return OPENPI_OK;
}
