#include "checkpoint/jax/orbax_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"

#define MANIFEST "manifest.ocdbt"
#define METADATA "_CHECKPOINT_METADATA"
#define PROCESS "ocdbt.process_"
#define UNFINISHED ".orbax-checkpoint-tmp"

enum { DEPTH = 8 };              /* folders below an array's: chunks of a/0/0 and of zarr v3 */

static int has(const char *folder, const char *name) {
    char *path = file_join(folder, name);
    int there = path && file_exists(path);
    free(path);
    return there;
}

/* ---- files of arrays ---- */

/* All files below a folder; key: what their keys begin with. */
static openpi_status list_below(values *list, const char *folder, const char *key, int depth,
                                openpi_error *error) {
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    openpi_status status = OPENPI_OK;
    while (entries && status == OPENPI_OK && (entry = readdir(entries))) {
        char inner[600];
        file_reader reader;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(inner, sizeof inner, "%.340s/%.255s", key, entry->d_name);
        char *path = file_join(folder, entry->d_name);
        if (!path) status = report_no_memory(error, strlen(folder) + 256, folder);
        else if (file_is_folder(path) && depth < DEPTH)
            status = list_below(list, path, inner, depth + 1, error);
        else if ((status = file_reader_open(path, &reader, error)) == OPENPI_OK) {
            status = values_add(list, inner, path, 0, reader.bytes, NULL, error);
            file_reader_close(&reader);
        }
        free(path);
    }
    if (entries) closedir(entries);
    return status;
}

openpi_status orbax_folder_list(const char *params, values **out, openpi_error *error) {
    values *list = values_create();
    DIR *entries = opendir(params);
    const struct dirent *entry;
    openpi_status status = list ? OPENPI_OK : report_no_memory(error, sizeof(void *), params);
    while (entries && status == OPENPI_OK && (entry = readdir(entries))) {
        if (strncmp(entry->d_name, "params.", 7)) continue;
        char *path = file_join(params, entry->d_name);
        if (!path) status = report_no_memory(error, strlen(params) + 256, params);
        else if (file_is_folder(path)) status = list_below(list, path, entry->d_name, 0, error);
        free(path);
    }
    if (entries) closedir(entries);
    if (status == OPENPI_OK) status = values_finish(list, params, error);
    if (status == OPENPI_OK)
        *out = list;
    else
        values_close(list);
    return status;
}

/* ---- which folder ---- */

int orbax_folder_is_database(const char *params) { return has(params, MANIFEST); }

static int is_params(const char *folder) {
    return orbax_folder_is_database(folder) || has(folder, "params.PaliGemma.img.head.kernel") ||
           has(folder, "params.PaliGemma.img.head.kernel.value");
}

/* -1: the name is not a step's. */
static long long step_number(const char *name) {
    char *end;
    long long number = *name >= '0' && *name <= '9' ? strtoll(name, &end, 10) : -1;
    return number >= 0 && !*end ? number : -1;
}

/* A step of a training run. */
typedef struct step {
    char *params;                /* NULL: none yet                                                        */
    long long number;
} step;

static void keep_newer(step *s, char *params, long long number) {
    char *other = params;
    if (!s->params || number > s->number) {
        other = s->params;
        *s = (step){params, number};
    }
    free(other);
}

/* On Google's storage Orbax marks a finished save by a file: where one step has it, those without are
 * unfinished. */
static char *newest_step(const char *run) {
    DIR *entries = opendir(run);
    const struct dirent *entry;
    step newest[2] = {{NULL, 0}, {NULL, 0}};     /* [1]: of those that are marked */
    while (entries && (entry = readdir(entries))) {
        char inner[300];
        long long number = step_number(entry->d_name);
        if (number < 0) continue;
        snprintf(inner, sizeof inner, "%.255s/params", entry->d_name);
        char *params = file_join(run, inner);
        snprintf(inner, sizeof inner, "%.255s/commit_success.txt", entry->d_name);
        if (params && is_params(params)) keep_newer(&newest[has(run, inner)], params, number);
        else free(params);
    }
    if (entries) closedir(entries);
    if (!newest[1].params) return newest[0].params;
    free(newest[0].params);
    return newest[1].params;
}

char *orbax_folder_find(const char *folder) {
    char *params = file_join(folder, "params");
    if (is_params(folder)) {
        free(params);
        return strdup(folder);
    }
    if (params && is_params(params)) return params;
    free(params);
    return newest_step(folder);
}

/* ---- a run's steps ---- */

static int by_number(const void *a, const void *b) {
    long long x = *(const long long *)a, y = *(const long long *)b;
    return x < y ? -1 : x > y;
}

/* Steps of a run whose arrays are there. */
static openpi_status list_steps(const char *run, long long **steps, int *count, openpi_error *error) {
    DIR *entries = opendir(run);
    const struct dirent *entry;
    openpi_status status = OPENPI_OK;
    while (entries && status == OPENPI_OK && (entry = readdir(entries))) {
        char inner[300];
        if (step_number(entry->d_name) < 0) continue;
        snprintf(inner, sizeof inner, "%.255s/params", entry->d_name);
        char *params = file_join(run, inner);
        long long *grown = realloc(*steps, ((size_t)*count + 1) * sizeof *grown);
        if (grown) *steps = grown;
        if (!params || !grown) status = report_no_memory(error, strlen(run) + 300, run);
        else if (is_params(params)) (*steps)[(*count)++] = step_number(entry->d_name);
        free(params);
    }
    if (entries) closedir(entries);
    if (*count) qsort(*steps, (size_t)*count, sizeof **steps, by_number);
    return status;
}

/* "RUN/29999/params" */
openpi_status orbax_folder_steps(const char *params, long long **steps, int *count, long long *step,
                                 openpi_error *error) {
    char *run = strdup(params), *end = run ? strrchr(run, '/') : NULL;
    *steps = NULL;
    *count = 0;
    if (!run) return report_no_memory(error, strlen(params), params);
    if (end) *end = 0;
    char *name = end ? strrchr(run, '/') : NULL;
    *step = step_number(name ? name + 1 : run);
    openpi_status status = OPENPI_OK;
    if (end && *step >= 0) {
        if (name) *name = 0;
        status = list_steps(name ? run : ".", steps, count, error);
    }
    free(run);
    return status;
}

/* "29999", "29999.orbax-checkpoint-tmp-12"; -1: the name is no step's, finished or not. */
static long long any_step(const char *name) {
    char *end;
    long long number = *name >= '0' && *name <= '9' ? strtoll(name, &end, 10) : -1;
    return number >= 0 && (!*end || strstr(end, UNFINISHED) == end) ? number : -1;
}

int orbax_folder_unfinished(const char *run, const char *params, long long *found, char name[256]) {
    size_t length = strlen(run);
    const char *inside = strncmp(params, run, length) ? "" : params + length + strspn(params + length, "/");
    char *end;
    long long newest = *inside >= '0' && *inside <= '9' ? strtoll(inside, &end, 10) : -1;
    if (newest < 0 || strcmp(end, "/params")) return 0;
    DIR *entries = opendir(run);
    const struct dirent *entry;
    *found = newest;
    *name = 0;
    while (entries && (entry = readdir(entries)))
        if (any_step(entry->d_name) > newest) {
            newest = any_step(entry->d_name);
            snprintf(name, 256, "%s", entry->d_name);
        }
    if (entries) closedir(entries);
    return *name != 0;
}

/* ---- why there is none ---- */

/* What a folder without a manifest still has. */
typedef struct remains {
    int processes;               /* folders of one writer each                                            */
    int metadata;                /* a file that only Orbax writes                                         */
    char unfinished[256];        /* a folder that was not renamed when its save ended; empty: none        */
} remains;

static remains look(const char *folder) {
    remains r = {0};
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    while (entries && (entry = readdir(entries))) {
        const char *name = entry->d_name;
        r.processes += !strncmp(name, PROCESS, sizeof PROCESS - 1);
        r.metadata |= !strcmp(name, METADATA) || !strcmp(name, "_METADATA");
        if (strstr(name, UNFINISHED) && strcmp(name, r.unfinished) > 0)
            snprintf(r.unfinished, sizeof r.unfinished, "%s", name);
    }
    if (entries) closedir(entries);
    return r;
}

/* Newer Orbax writes when a save began and when it ended. */
static const char *why_missing(const char *params) {
    static const char *const places[] = {METADATA, "../" METADATA};
    const char *why = "its save was not finished, or files were not copied";
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        openpi_error unused = OPENPI_ERROR_INIT;
        char *path = file_join(params, places[i]);
        json_t *root = NULL;
        if (path && file_exists(path) && json_read(path, &root, &unused) == OPENPI_OK) {
            const json_t *end = json_object_get(root, "commit_timestamp_nsecs");
            if (json_is_integer(end)) why = "its save was finished, so files were not copied";
            else if (json_is_null(end)) why = "its save was not finished";
        }
        json_decref(root);
        free(path);
    }
    return why;
}

static openpi_status explain(const char *folder, const char *params, openpi_error *error) {
    remains outer = look(folder), inner = look(params);
    int below = strcmp(folder, params) != 0 && file_is_folder(params);
    char *name = file_join(params, PROCESS "0/" MANIFEST);
    int alone = name && inner.processes == 1 && file_exists(name);
    free(name);
    if (strstr(folder, UNFINISHED))
        return report(error, OPENPI_BAD_FILE,
                      "%s: a save of Orbax that was not finished, as its name says: give another step",
                      folder);
    if (alone)
        return report(error, OPENPI_BAD_FILE,
                      "%s: " MANIFEST " is missing: %s; where one process wrote the checkpoint, " PROCESS
                      "0 is complete by itself: give %s/" PROCESS "0",
                      params, why_missing(params), params);
    if (inner.processes)
        return report(error, OPENPI_BAD_FILE,
                      "%s: " MANIFEST " is missing, but %d folders " PROCESS
                      "… are there: %s: copy it again, or give another step",
                      params, inner.processes, why_missing(params));
    if (*outer.unfinished)
        return report(error, OPENPI_BAD_FILE,
                      "%s: no finished save of Orbax is in it, only %s: give another run", folder,
                      outer.unfinished);
    if (below || outer.metadata)
        return report(error, OPENPI_BAD_FILE, "%s: a JAX checkpoint (%s) without its " MANIFEST ": %s",
                      folder, below ? "params/" : "Orbax files", why_missing(below ? params : folder));
    return OPENPI_OK;
}

openpi_status orbax_folder_explain(const char *folder, openpi_error *error) {
    char *params = file_join(folder, "params");
    if (!params) return report_no_memory(error, strlen(folder) + 8, folder);
    openpi_status status = explain(folder, file_is_folder(params) ? params : folder, error);
    free(params);
    return status;
}
