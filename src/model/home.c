/* From the path that a user gives to the folder that a checkpoint's other files are in. Note: a JAX
 * checkpoint is accepted as three folders (the checkpoint, its params, its run); its assets are in one of
 * them. */
#include "model/home.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "model/orbax_folder.h"

static int holds(const char *folder, const char *name) {
    char *path = file_join(folder, name);
    int there = path && file_exists(path);
    free(path);
    return there;
}

/* Where the last name of a path begins, without slashes at its end: 0 if it is the only one. */
static size_t last_name(const char *path, size_t *end) {
    for (*end = strlen(path); *end > 1 && path[*end - 1] == '/';) --*end;
    size_t at = *end;
    while (at && path[at - 1] != '/') at--;
    return at;
}

/* The folder around a path, by its text: "a/b" -> "a", "b" -> ".", "/b" -> "/". */
static char *around(const char *path) {
    size_t end, at = last_name(path, &end);
    while (at > 1 && path[at - 1] == '/') at--;
    return at ? strndup(path, at) : strdup(".");
}

/* Arrays that are in no folder "params" (a copy with another name, or "." inside of it) may have the assets
 * beside them. */
static char *around_params(const char *params) {
    size_t end, at = last_name(params, &end);
    if (end - at == 6 && !strncmp(params + at, "params", 6)) return around(params);
    return holds(params, "assets") || !holds(params, "../assets") ? strdup(params) : file_join(params, "..");
}

openpi_status home_find(const char *checkpoint, char **home, openpi_error *error) {
    char *params = NULL;
    if (!file_is_folder(checkpoint)) *home = around(checkpoint);
    else if (holds(checkpoint, "model.safetensors") || holds(checkpoint, "model.safetensors.index.json") ||
             !(params = orbax_folder_find(checkpoint)))
        *home = strdup(checkpoint);
    else *home = around_params(params);
    free(params);
    return *home ? OPENPI_OK : report_no_memory(error, strlen(checkpoint) + 3, "a path");
}
