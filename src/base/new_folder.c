#include "base/new_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/ascii.h"
#include "base/file.h"
#include "base/report.h"

openpi_status new_folder_note(void *user, const char *path, openpi_error *error) {
    new_folder *f = user;
    char **grown = realloc(f->made, ((size_t)f->count + 1) * sizeof *grown), *copy = malloc(strlen(path) + 1);
    if (grown) f->made = grown;
    if (!grown || !copy) {
        free(copy);
        return report_no_memory(error, strlen(path) + 1, path);
    }
    strcpy(copy, path);
    f->made[f->count++] = copy;
    return OPENPI_OK;
}

void new_folder_end(new_folder *f, int remove_all) {
    while (f->count--) {
        if (remove_all) remove(f->made[f->count]);
        free(f->made[f->count]);
    }
    free(f->made);
}

static openpi_status make_folder(new_folder *f, const char *path, openpi_error *error) {
    TRY(new_folder_note(f, path, error));
    if (!mkdir(path, 0777)) return OPENPI_OK;
    int why = errno;
    free(f->made[--f->count]);
    return report(error, OPENPI_SYSTEM, "%s: the folder cannot be made: %s", path, ascii_errno(why));
}

openpi_status new_folder_begin(new_folder *f, openpi_error *error) {
    if (!file_exists(f->path)) return make_folder(f, f->path, error);
    if (!file_is_folder(f->path))
        return report(error, OPENPI_BAD_ARGUMENT, "%s: is a file, expected a new or empty folder", f->path);
    DIR *list = opendir(f->path);
    if (!list)
        return report(error, errno == ENOMEM ? OPENPI_NO_MEMORY : OPENPI_SYSTEM, "%s: cannot be read: %s",
                      f->path, ascii_errno(errno));
    const struct dirent *entry;
    openpi_status status = OPENPI_OK;
    while ((entry = readdir(list)) && status == OPENPI_OK)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            status = report(error, OPENPI_BAD_ARGUMENT, "%s: holds \"%s\", expected a new or empty folder",
                            f->path, entry->d_name);
    closedir(list);
    return status;
}

openpi_status new_folder_subfolder(new_folder *f, const char *name, openpi_error *error) {
    char *path = file_join(f->path, name);
    if (!path) return report_no_memory(error, strlen(f->path) + strlen(name) + 2, "a path");
    openpi_status status = make_folder(f, path, error);
    free(path);
    return status;
}

openpi_status new_folder_file(new_folder *f, const char *name, const void *data, size_t bytes,
                              openpi_error *error) {
    char *path = file_join(f->path, name);
    if (!path) return report_no_memory(error, strlen(f->path) + strlen(name) + 2, "a path");
    openpi_status status = new_folder_note(f, path, error);
    if (status == OPENPI_OK) status = file_write(path, data, bytes, error);
    free(path);
    return status;
}

openpi_status new_folder_text(new_folder *f, const char *name, const char *text, openpi_error *error) {
    return new_folder_file(f, name, text, strlen(text), error);
}

/* ---- copying ---- */

enum { COPY_LIMIT = 64 << 20, COPY_DEPTH = 16 };

static openpi_status copy_file(new_folder *f, const char *name, const char *from, openpi_error *error) {
    char *data;
    size_t bytes;
    TRY(file_read(from, COPY_LIMIT, &data, &bytes, error));
    openpi_status status = new_folder_file(f, name, data, bytes, error);
    free(data);
    return status;
}

static openpi_status copy(new_folder *f, const char *name, const char *from, int depth, openpi_error *error);

static openpi_status copy_entry(new_folder *f, const char *name, const char *from, const char *entry,
                                int depth, openpi_error *error) {
    char *inner = file_join(name, entry), *path = file_join(from, entry);
    openpi_status status = inner && path ? copy(f, inner, path, depth, error)
                                         : report_no_memory(error, strlen(from) + strlen(entry) + 2, from);
    free(inner);
    free(path);
    return status;
}

static openpi_status copy(new_folder *f, const char *name, const char *from, int depth, openpi_error *error) {
    if (!file_is_folder(from)) return copy_file(f, name, from, error);
    if (depth == COPY_DEPTH)
        return report(error, OPENPI_BAD_FILE, "%s: more than %d folders deep", from, COPY_DEPTH);
    TRY(new_folder_subfolder(f, name, error));
    DIR *list = opendir(from);
    if (!list)
        return report(error, errno == ENOMEM ? OPENPI_NO_MEMORY : OPENPI_BAD_FILE, "%s: cannot be read: %s",
                      from, ascii_errno(errno));
    const struct dirent *entry;
    openpi_status status = OPENPI_OK;
    while (status == OPENPI_OK && (entry = readdir(list)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            status = copy_entry(f, name, from, entry->d_name, depth + 1, error);
    closedir(list);
    return status;
}

openpi_status new_folder_copy(new_folder *f, const char *name, const char *from, openpi_error *error) {
    return copy(f, name, from, 0, error);
}
