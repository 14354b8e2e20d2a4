/* See request_folder.h. */
#include "lab/measure/request_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/file.h"
#include "base/report.h"

enum { LARGEST = 64 << 20 };     /* bytes of a request                                                     */

/* Takes the path. Memory for paths doubles where their number is a power of two. */
static openpi_status add(request_folder *folder, char *path, openpi_error *error) {
    size_t count = (size_t)folder->count, most = count ? 2 * count : 1;
    if (path && !(count & (count - 1))) {
        char **larger = realloc(folder->paths, most * sizeof *larger);
        if (larger) folder->paths = larger;
        else free(path), path = NULL;
    }
    if (!path) return report(error, OPENPI_NO_MEMORY, "out of memory: the names of requests");
    folder->paths[folder->count++] = path;
    return OPENPI_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static openpi_status list_names(const char *path, DIR *names, request_folder *folder, openpi_error *error) {
    const struct dirent *entry;
    while ((entry = readdir(names))) {
        if (!file_has_ending(entry->d_name, ".msgpack")) continue;
        if (folder->count == REQUEST_FOLDER_MOST)
            return report(error, OPENPI_UNSUPPORTED, "%s: more than %d requests", path, REQUEST_FOLDER_MOST);
        TRY(add(folder, file_join(path, entry->d_name), error));
    }
    if (!folder->count)
        return report(error, OPENPI_NOT_FOUND,
                      "%s: no file ends in .msgpack, expected requests as openpi clients send them", path);
    qsort(folder->paths, (size_t)folder->count, sizeof *folder->paths, by_name);
    return OPENPI_OK;
}

static openpi_status open_folder(const char *path, request_folder *folder, openpi_error *error) {
    DIR *names = opendir(path);
    if (!names)
        return report(error, OPENPI_SYSTEM, "%s: cannot be listed: %s", path, ascii_errno(errno));
    openpi_status status = list_names(path, names, folder, error);
    closedir(names);
    return status;
}

openpi_status request_folder_open(const char *path, request_folder *folder, openpi_error *error) {
    *folder = (request_folder){.count = 0};
    if (!file_exists(path))
        return report(error, OPENPI_NOT_FOUND,
                      "%s: nothing of that name is there, expected a folder of requests as openpi clients "
                      "send them, NAME.msgpack each", path);
    openpi_status status = file_is_folder(path) ? open_folder(path, folder, error)
                                                : add(folder, strdup(path), error);
    if (status != OPENPI_OK) request_folder_close(folder);
    return status;
}

openpi_status request_folder_over(request_reader read, void *user, const char *what, int count,
                                  request_folder *folder, openpi_error *error) {
    char name[300];
    openpi_status status = OPENPI_OK;
    *folder = (request_folder){.read = read, .user = user};
    for (int i = 0; i < count && status == OPENPI_OK; i++) {
        ascii_print(name, sizeof name, "%.200s: request %d", what, i);
        status = add(folder, strdup(name), error);
    }
    if (status != OPENPI_OK) request_folder_close(folder);
    return status;
}

void request_folder_close(request_folder *folder) {
    for (int i = 0; i < folder->count; i++) free(folder->paths[i]);
    free(folder->paths);
    *folder = (request_folder){.count = 0};
}

openpi_status request_folder_read(const request_folder *folder, int index, char **bytes, size_t *count,
                                  openpi_error *error) {
    if (folder->read) return folder->read(folder->user, index, bytes, count, error);
    return file_read(folder->paths[index], LARGEST, bytes, count, error);
}
