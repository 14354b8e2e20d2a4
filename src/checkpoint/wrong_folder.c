/* Names what a folder contains where weights were expected, and says what to do about it. Called only after
 * no checkpoint was found in it, so nothing here can refuse a good one. */
#define _GNU_SOURCE
#include "checkpoint/wrong_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "base/text.h"
#include "checkpoint/jax/orbax_folder.h"

enum {
    DEPTH = 4, /* folders below the one given: models--NAME/snapshots/HASH of a download   */
    ENTRIES_LIMIT = 20000, /* names looked at in all, so that "/" is an answer too                     */
};

/* What is in a folder, and the first folder below that holds weights. Names are the smallest in byte order,
 * so that the sentence does not depend on the order of the disk. */
typedef struct survey {
    int entries, folders;        /* in the folder itself; folders: below that hold weights       */
    int seen;                    /* in all                                                        */
    int jax;                     /* one of those folders is JAX's                                 */
    char below[400];             /* "checkpoints/last/pretrained_model", empty: none              */
    char newest[400];            /* among those whose path names a step: "last", else the highest */
    char safetensors[100], pickle[100], gguf[100];
} survey;

static void keep_smallest(char *kept, size_t size, const char *name) {
    if (!*kept || strcmp(name, kept) < 0) snprintf(kept, size, "%s", name);
}

static void note_name(survey *s, const char *name) {
    static const char *const pickles[] = {".bin", ".pt", ".pth", ".ckpt", ".pkl"};
    s->entries++;
    if (text_ends_with(name, ".safetensors")) keep_smallest(s->safetensors, sizeof s->safetensors, name);
    if (text_ends_with(name, ".gguf")) keep_smallest(s->gguf, sizeof s->gguf, name);
    for (size_t i = 0; i < sizeof pickles / sizeof *pickles; i++)
        if (text_ends_with(name, pickles[i])) keep_smallest(s->pickle, sizeof s->pickle, name);
}

static int holds_weights(const char *name) {
    return !strcmp(name, "model.safetensors") || !strcmp(name, "model.safetensors.index.json");
}

/* 1: a part of the path is a step of a training run, "last" or a number; 2: "last". */
static int names_step(const char *path) {
    int found = 0;
    for (const char *part = path; *part; part += strspn(part, "/")) {
        size_t length = strcspn(part, "/");
        if (length == 4 && !strncmp(part, "last", 4)) return 2;
        if (strspn(part, "0123456789") == length) found = 1;
        part += length;
    }
    return found;
}

static void note_weights(survey *s, const char *below) {
    int step = names_step(below), kept = names_step(s->newest);
    s->folders++;
    keep_smallest(s->below, sizeof s->below, below);
    if (step > kept || (step && step == kept && strverscmp(below, s->newest) > 0))
        snprintf(s->newest, sizeof s->newest, "%s", below);
}

/* `below`: the folder's path from the one given, "" for that itself. A folder that cannot be read is
 * skipped. */
static openpi_status look(survey *s, const char *folder, const char *below, int depth, openpi_error *error) {
    DIR *list = opendir(folder);
    const struct dirent *entry;
    openpi_status status = OPENPI_OK;
    int counted = 0;
    char *params = depth ? orbax_folder_find(folder) : NULL;
    if (params) {
        free(params);
        if (list) closedir(list);
        s->jax = 1;
        note_weights(s, below);
        return OPENPI_OK;
    }
    if (!list && errno == ENOMEM) return report_no_memory(error, sizeof *entry, folder);
    while (list && status == OPENPI_OK && s->seen < ENTRIES_LIMIT && (entry = readdir(list))) {
        const char *name = entry->d_name;
        char inner[400];
        if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
        s->seen++;
        if (!depth) note_name(s, name);
        if (depth && holds_weights(name) && !counted++) note_weights(s, below);
        if (depth == DEPTH || *name == '.') continue;
        if (snprintf(inner, sizeof inner, "%s%s%s", below, *below ? "/" : "", name) >= (int)sizeof inner)
            continue;
        char *path = file_join(folder, name);
        if (!path) status = report_no_memory(error, strlen(folder) + strlen(name) + 2, folder);
        else if (file_is_folder(path)) status = look(s, path, inner, depth + 1, error);
        free(path);
    }
    if (list) closedir(list);
    return status;
}

openpi_status wrong_folder(const char *folder, openpi_error *error) {
    survey s = {0};
    TRY(orbax_folder_explain(folder, error));
    TRY(look(&s, folder, "", 0, error));
    if (!s.entries)
        return report(error, OPENPI_NOT_FOUND,
                      "%s: an empty folder, expected model.safetensors or model.safetensors.index.json",
                      folder);
    const char *absent = s.jax ? "neither model.safetensors nor params/" : "no model.safetensors";
    if (*s.below && s.folders == 1)
        return report(error, OPENPI_NOT_FOUND, "%s: %s is here, but one is in %s/%s: give that folder",
                      folder, absent, folder, s.below);
    if (*s.below)
        return report(error, OPENPI_NOT_FOUND,
                      "%s: %s is here, but %d folders below hold one, the %s is %s/%s: give one of them",
                      folder, absent, s.folders, *s.newest ? "last step" : "first", folder,
                      *s.newest ? s.newest : s.below);
    if (*s.safetensors)
        return report(
            error, OPENPI_NOT_FOUND,
            "%s: neither model.safetensors nor model.safetensors.index.json is there, but %s is: rename or "
            "index it, or give that file by its own path",
            folder, s.safetensors);
    if (*s.gguf)
        return report(error, OPENPI_NOT_FOUND,
                      "%s: %s is there, a GGUF file (llama.cpp's format, and vla.cpp's), but no "
                      "model.safetensors: give the checkpoint that it was made from",
                      folder, s.gguf);
    if (*s.pickle)
        return report(
            error, OPENPI_NOT_FOUND,
            "%s: %s is there, a Python pickle, but no model.safetensors: load it in Python and write it with "
            "safetensors.torch.save_file",
            folder, s.pickle);
    return report(
        error, OPENPI_NOT_FOUND,
        "%s: neither model.safetensors nor model.safetensors.index.json is there, nor in a folder below",
        folder);
}
