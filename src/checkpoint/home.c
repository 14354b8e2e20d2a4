/* From the path that a user gives to the folder that a checkpoint's other files are in. Note: a JAX
 * checkpoint is accepted as three folders (the checkpoint, its params, its run); its assets are in one of
 * them. */
#include "checkpoint/home.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "checkpoint/jax/orbax_folder.h"

/* The folder around a path, by its text: "a/b" -> "a", "b" -> ".", "/b" -> "/". */
static char *around(const char *path) {
    size_t end, at = file_last_name(path, &end);
    while (at > 1 && path[at - 1] == '/') at--;
    return at ? strndup(path, at) : strdup(".");
}

/* Arrays that are in no folder "params" (a copy with another name, or "." inside of it) may have the assets
 * beside them. */
static openpi_status around_params(const char *params, char **home, openpi_error *error) {
    size_t end, at = file_last_name(params, &end);
    int inside = 0, beside = 0;
    TRY(file_is_in(params, "assets", &inside, error));
    TRY(file_is_in(params, "../assets", &beside, error));
    if (end - at == 6 && !strncmp(params + at, "params", 6)) *home = around(params);
    else *home = inside || !beside ? strdup(params) : file_join(params, "..");
    return OPENPI_OK;
}

openpi_status home_find(const char *checkpoint, char **home, openpi_error *error) {
    int torch = 0, sharded = 0;
    *home = NULL;
    if (file_is_folder(checkpoint)) {
        TRY(file_is_in(checkpoint, "model.safetensors", &torch, error));
        TRY(file_is_in(checkpoint, "model.safetensors.index.json", &sharded, error));
        char *params = torch || sharded ? NULL : orbax_folder_find(checkpoint);
        openpi_status status = params ? around_params(params, home, error) : OPENPI_OK;
        if (!params) *home = strdup(checkpoint);
        free(params);
        TRY(status);
    } else {
        *home = around(checkpoint);
    }
    return *home ? OPENPI_OK : report_no_memory(error, strlen(checkpoint) + 3, "a path");
}
