/* Names what a path contains where weights were expected, and says what to do about it.
 *
 * A file is recognised by its first bytes, a folder by the names in it. Called only after the path was found
 * not to be a safetensors checkpoint, so nothing here can refuse a good one. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/report.h"
#include "base/text.h"
#include "base/utf8.h"
#include "checkpoint/jax/orbax_folder.h"
#include "checkpoint/tensors_build.h"

enum {
    DEPTH = 4, /* folders below the one given: models--NAME/snapshots/HASH of a download   */
    ENTRIES_LIMIT = 20000, /* names looked at in all, so that "/" is an answer too                     */
};

/* ---- files ---- */

/* The first `bytes` of a file; text ends with a NUL and has no NUL before. */
typedef struct opening {
    char text[WRONG_FILE_BYTES + 1];
    const uint8_t *data;
    size_t bytes;
} opening;

static int begins_with(const opening *file, const char *magic, size_t length) {
    return file->bytes >= length && !memcmp(file->data, magic, length);
}

static int has_text(const opening *file, const char *text) { return ascii_find(file->text, text) != NULL; }

/* UTF-8 without control characters but those that lay out a text. Its last character may be cut. */
static int is_text(const opening *file) {
    if (utf8_valid_prefix((const char *)file->data, file->bytes) + 3 < file->bytes) return 0;
    if (file->bytes && utf8_valid_prefix((const char *)file->data, file->bytes) == 0) return 0;
    for (size_t i = 0; i < file->bytes; i++)
        if (file->data[i] == 127 || (file->data[i] < 32 && !memchr("\t\n\r\f", file->data[i], 4))) return 0;
    return 1;
}

static openpi_status report_pointer(const char *path, const opening *file, openpi_error *error) {
    const char *size = strstr(file->text, "\nsize ");
    unsigned long long bytes = size ? strtoull(size + 6, NULL, 10) : 0;
    char missing[64] = "";
    if (bytes) snprintf(missing, sizeof missing, " of %llu bytes", bytes);
    return report(
        error, OPENPI_BAD_FILE,
        "%s: a Git LFS pointer, which only names a file%s that is not here, expected the weights themselves: "
        "run `git lfs pull` in its folder, or download the file from where the repository came from",
        path, missing);
}

/* Kinds of file by their first bytes. The first row that fits counts, so the special rows come first. */
static const struct {
    const char *magic;
    size_t length;
    const char *text;            /* must be among the first bytes too; NULL: nothing more     */
    const char *what, *advice;
} kinds[] = {
#define MAGIC(bytes) .magic = bytes, .length = sizeof(bytes) - 1
    {MAGIC("PK\3\4"), .text = "data.pkl", .what = "a PyTorch pickle (torch.save)",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("PK\3\4"), .what = "a zip archive",
     .advice = "unpack it, and give the folder that holds model.safetensors"},
    {MAGIC("\200\2"), .what = "a Python pickle",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("\200\3"), .what = "a Python pickle",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("\200\4"), .what = "a Python pickle",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("\200\5"), .what = "a Python pickle",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("GGUF"), .what = "a GGUF file (llama.cpp's format, and vla.cpp's)",
     .advice = "give the checkpoint that it was made from"},
    {MAGIC("\211HDF\r\n\032\n"), .what = "an HDF5 file", .advice = "take the PyTorch checkpoint"},
    {MAGIC("\223NUMPY"), .what = "a NumPy array", .advice = "take the PyTorch checkpoint"},
    {MAGIC("\037\213"), .what = "a gzip archive",
     .advice = "unpack it, and give the folder that holds model.safetensors"},
    {MAGIC("\050\265\057\375"), .what = "a zstd archive",
     .advice = "unpack it, and give the folder that holds model.safetensors"},
    {MAGIC(""), .text = "<html", .what = "a web page",
     .advice =
         "download the file itself (on Hugging Face the address has /resolve/, not /blob/, and some "
     "need a login)"},
    {MAGIC(""), .text = "<!doctype html", .what = "a web page",
     .advice =
         "download the file itself (on Hugging Face the address has /resolve/, not /blob/, and some "
     "need a login)"},
    {MAGIC("<?xml"), .what = "an XML answer of a server",
     .advice = "download the file again, with a login where one is needed"},
    {MAGIC("{"), .what = "a JSON text", .advice = "give the folder that holds model.safetensors"},
#undef MAGIC
};

/* The length of a header that the first 8 bytes say. */
static uint64_t header_length(const opening *file) {
    uint64_t length = 0;
    for (size_t i = 0; i < 8 && i < file->bytes; i++) length |= (uint64_t)file->data[i] << 8 * i;
    return length;
}

openpi_status wrong_file(const char *path, const uint8_t *first, uint64_t bytes, uint64_t limit,
                         openpi_error *error) {
    static const char pointer[] = "version https://git-lfs.github.com/spec/";
    opening file = {.data = first, .bytes = bytes < WRONG_FILE_BYTES ? (size_t)bytes : WRONG_FILE_BYTES};
    if (!bytes)
        return report(error, OPENPI_BAD_FILE,
                      "%s: an empty file, expected weights: download or copy it again", path);
    for (size_t i = 0; i < file.bytes; i++) file.text[i] = first[i] ? (char)first[i] : ' ';
    uint64_t length = header_length(&file);
    if (bytes >= 8 && length <= limit && (bytes == 8 || first[8] == '{'))
        return report(
            error, OPENPI_BAD_FILE,
            "%s: cut short: the file has %llu bytes, its header alone needs %llu: download or copy it again",
            path, (unsigned long long)bytes, (unsigned long long)length + 8);
    if (begins_with(&file, pointer, sizeof pointer - 1)) return report_pointer(path, &file, error);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (begins_with(&file, kinds[i].magic, kinds[i].length) &&
            (!kinds[i].text || has_text(&file, kinds[i].text)))
            return report(error, OPENPI_BAD_FILE, "%s: %s, expected a safetensors file: %s", path,
                          kinds[i].what, kinds[i].advice);
    if (bytes < 8)
        return report(error, OPENPI_BAD_FILE,
                      "%s: %llu bytes, expected a safetensors file, which has at least 8", path,
                      (unsigned long long)bytes);
    if (is_text(&file))
        return report(error, OPENPI_BAD_FILE,
                      "%s: a text file, expected weights: give a checkpoint's folder or model.safetensors",
                      path);
    return report(
        error, OPENPI_BAD_FILE,
        "%s: not a safetensors file: its first 8 bytes would be a header of %llu bytes, expected at most "
        "%llu",
        path, (unsigned long long)length, (unsigned long long)(bytes - 8 < limit ? bytes - 8 : limit));
}

/* ---- folders ---- */

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
