/* Finds the goldens at a path and verifies each by its kind: see verify.h. */
#include "lab/verify/verify.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "lab/verify/verify_case.h"
#include "model/w8_plan.h"

enum { DEEPEST = 8 };

int verify_asks_plan(const char *formats) { return w8_asked(formats); }

const char *verify_result_text(verify_result result) {
    static const char *const text[] = {"ok", "FAIL", "skipped"};
    return text[result];
}

void verify_name(const char *path, char *name, size_t bytes) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t start = end;
    for (int slashes = 0; start && (path[start - 1] != '/' || ++slashes < 2);) start--;
    if (end > start && end - start > 12 && !strncmp(path + end - 12, ".safetensors", 12)) end -= 12;
    else if (end - start > 5 && !strncmp(path + end - 5, ".json", 5)) end -= 5;
    snprintf(name, bytes, "%.*s", (int)(end - start), path + start);
}

/* ---- kinds ------------------------------------------------------------------------------------------ */

typedef openpi_status (*verify_kind)(verify_walk *walk, const char *path, openpi_error *error);

/* The files that make a folder a case, and the names that make a file one. */
static const struct {
    const char *has, *has_too;
    verify_kind verify;
} folder_kinds[] = {
    {"request.msgpack", NULL, verify_policy},
    {"norm_stats.json", "expected.safetensors", verify_policy},
    {"checkpoint", NULL, verify_lerobot},
    {"config_exp", NULL, verify_lerobot},
};

static const struct {
    const char *name;
    verify_kind verify;
} file_kinds[] = {
    {"steps.json", verify_steps},
    {"resize.safetensors", NULL},        /* read with steps.json                                          */
    {"encode.json", verify_encode},
    {"synth_hashes.json", verify_hashes},
};

static openpi_status folder_kind(const char *folder, verify_kind *kind, openpi_error *error) {
    *kind = NULL;
    for (size_t i = 0; i < sizeof folder_kinds / sizeof *folder_kinds && !*kind; i++) {
        int found, too = 1;
        TRY(file_is_in(folder, folder_kinds[i].has, &found, error));
        if (folder_kinds[i].has_too) TRY(file_is_in(folder, folder_kinds[i].has_too, &too, error));
        if (found && too) *kind = folder_kinds[i].verify;
    }
    return OPENPI_OK;
}

static verify_kind file_kind(const char *path, int *known) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    *known = 1;
    for (size_t i = 0; i < sizeof file_kinds / sizeof *file_kinds; i++)
        if (!strcmp(name, file_kinds[i].name)) return file_kinds[i].verify;
    *known = file_has_ending(name, ".safetensors");
    return *known ? verify_model : NULL;
}

/* A file without a name of its own, such as standard input, is known by its bytes: the length of its
 * header, then the header, which is JSON. */
static int is_safetensors(const char *path) {
    file_reader reader;
    unsigned char head[9] = {0};
    uint64_t length = 0;
    if (file_reader_open(path, &reader, NULL) != OPENPI_OK) return 0;
    if (reader.bytes >= sizeof head) file_reader_read(&reader, path, 0, sizeof head, head, NULL);
    file_reader_close(&reader);
    for (int i = 7; i >= 0; i--) length = length << 8 | head[i];
    return head[8] == '{' && length <= reader.bytes;
}

/* A case that is not verified with --checkpoint. */
static openpi_status not_recorded(verify_walk *walk, const char *path, openpi_error *error) {
    verify_case c;
    char name[sizeof c.row.name];
    verify_name(path, name, sizeof name);
    case_begin(&c, walk, name);
    case_end(&c, walk,
             report(error, OPENPI_BAD_ARGUMENT,
                    "not recorded by tools/record-golden: verify it without --checkpoint"),
             error);
    return OPENPI_OK;
}

static openpi_status run_kind(verify_walk *walk, verify_kind kind, const char *path, openpi_error *error) {
    if (kind == verify_model && (walk->options.checkpoint || verify_is_recorded(path)))
        kind = verify_recorded;
    if (kind != verify_recorded && walk->options.checkpoint) kind = not_recorded;
    return kind(walk, path, error);
}

/* ---- walking ---------------------------------------------------------------------------------------- */

typedef struct names {
    char **list;
    size_t count, capacity;
} names;

static void names_free(names *n) {
    for (size_t i = 0; i < n->count; i++) free(n->list[i]);
    free(n->list);
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static openpi_status list_folder(const char *folder, names *out, openpi_error *error) {
    DIR *dir = opendir(folder);
    if (!dir) return report(error, OPENPI_BAD_FILE, "%s: the folder cannot be read", folder);
    openpi_status status = OPENPI_OK;
    for (struct dirent *entry; status == OPENPI_OK && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        if (out->count == out->capacity) {
            size_t capacity = out->capacity ? 2 * out->capacity : 32;
            char **grown = realloc(out->list, capacity * sizeof *grown);
            if (!grown) {
                status = report_no_memory(error, capacity * sizeof *grown, folder);
                break;
            }
            out->list = grown;
            out->capacity = capacity;
        }
        char *path = file_join(folder, entry->d_name);
        if (path) out->list[out->count++] = path;
        else status = report_no_memory(error, strlen(entry->d_name), folder);
    }
    closedir(dir);
    if (out->count) qsort(out->list, out->count, sizeof *out->list, by_text);
    return status;
}

/* Every file that a MANIFEST lists for this folder exists. A missing golden would otherwise only be one case
 * less. */
static openpi_status walk_manifest(verify_walk *walk, const char *folder, openpi_error *error) {
    verify_case c;
    int found;
    char *path, name[sizeof c.row.name];
    TRY(file_is_in(folder, "MANIFEST", &found, error));
    if (!found) return OPENPI_OK;
    path = file_join(folder, "MANIFEST");
    if (!path) return report_no_memory(error, strlen(folder), "a path");
    verify_name(path, name, sizeof name);
    free(path);
    case_begin(&c, walk, name);
    case_end(&c, walk, case_manifest(&c, folder, error), error);
    return OPENPI_OK;
}

static openpi_status walk_folder(verify_walk *walk, const char *folder, int depth, openpi_error *error) {
    verify_kind kind;
    names n = {0};
    TRY(folder_kind(folder, &kind, error));
    if (kind) return run_kind(walk, kind, folder, error);
    if (depth == DEEPEST) return OPENPI_OK;
    TRY(walk_manifest(walk, folder, error));
    openpi_status status = list_folder(folder, &n, error);
    for (size_t i = 0; status == OPENPI_OK && i < n.count; i++) {
        int known;
        if (file_is_folder(n.list[i])) {
            status = walk_folder(walk, n.list[i], depth + 1, error);
        } else if ((kind = file_kind(n.list[i], &known))) {
            status = run_kind(walk, kind, n.list[i], error);
        }
    }
    names_free(&n);
    return status;
}

openpi_status verify_path(const char *path, const verify_options *options, verify_each row, void *user,
                          openpi_error *error) {
    verify_options none = VERIFY_OPTIONS_INIT;
    openpi_error own = OPENPI_ERROR_INIT; /* rows quote it even if the caller passes NULL */
    if (!error) error = &own;
    if (!path || !row) return report(error, OPENPI_BAD_ARGUMENT, "verify: %s is NULL", path ? "row" : "path");
    verify_walk walk = {.options = options ? *options : none, .each = row, .user = user};
    walk.every_dtype = !walk.options.dtype && walk.options.checkpoint;
    if (!walk.options.dtype) walk.options.dtype = OPENPI_F32;
    if (walk.options.dtype != OPENPI_F32 && walk.options.dtype != OPENPI_BF16)
        return report(error, OPENPI_BAD_ARGUMENT, "verify: dtype is %d, expected f32 or bf16",
                      (int)walk.options.dtype);
    if (!*path)
        return report(error, OPENPI_BAD_ARGUMENT, "the path is empty, expected a golden or a folder of them");
    if (!file_exists(path)) return report(error, OPENPI_NOT_FOUND, "%s: no such file or folder", path);
    if (file_is_folder(path)) {
        TRY(walk_folder(&walk, path, 0, error));
        if (walk.rows) return OPENPI_OK;
        return report(error, OPENPI_NOT_FOUND,
                      "%s: no golden here: expected model/NAME.safetensors, a policy or lerobot folder, "
                      "steps.json, or folders of such",
                      path);
    }
    int known;
    verify_kind kind = file_kind(path, &known);
    if (known && !kind) {                /* resize.safetensors by itself: the steps beside it */
        char *steps = malloc(strlen(path) + 1);
        if (!steps) return report_no_memory(error, strlen(path) + 1, "a path");
        const char *slash = strrchr(path, '/');
        snprintf(steps, strlen(path) + 1, "%.*ssteps.json", slash ? (int)(slash - path) + 1 : 0, path);
        openpi_status status = file_exists(steps)
                                   ? verify_steps(&walk, steps, error)
                                   : report(error, OPENPI_NOT_FOUND, "%s: no steps.json beside it", path);
        free(steps);
        return status;
    }
    if (!kind && is_safetensors(path)) kind = verify_model;
    if (kind) return run_kind(&walk, kind, path, error);
    return report(error, OPENPI_BAD_ARGUMENT,
                  "%s: no golden: expected model/NAME.safetensors, steps.json, encode.json, "
                  "synth_hashes.json or a folder",
                  path);
}
