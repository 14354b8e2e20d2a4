/* Which kind of checkpoint a path is: the one place that knows them all. */
#include "checkpoint/open.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/notes.h"
#include "base/report.h"
#include "checkpoint/jax/orbax_folder.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/tensors_build.h"
#include "checkpoint/wrong_folder.h"

/* Of a training run: its newest step is not finished, and an older one is read. */
static void tell_step(const char *run, const char *params, notes *notes) {
    char name[256];
    long long step;
    if (orbax_folder_unfinished(run, params, &step, name))
        notes_add(notes, 1,
                  "%.120s: step %.60s is not finished, so step %lld runs: give %.120s/%lld to say so, "
                  "or copy the newer one again",
                  run, name, step, run, step);
}

static openpi_status read_folder(tensors *tensors, const char *folder, const orbax_options *options,
                                 openpi_error *error) {
    char *single = file_join(folder, "model.safetensors"),
         *index = file_join(folder, "model.safetensors.index.json"), *params = NULL;
    openpi_status status;
    if (!single || !index)
        status = report_no_memory(error, strlen(folder) + 32, folder);
    else if (file_exists(single))
        status = safetensors_read(tensors, single, error);
    else if (file_exists(index))
        status = safetensors_read_shards(tensors, folder, index, error);
    else if ((params = orbax_folder_find(folder))) {
        tell_step(folder, params, options->notes);
        status = orbax_read(tensors, params, options, error);
    }
    else
        status = wrong_folder(folder, error);
    free(single);
    free(index);
    free(params);
    return status;
}

openpi_status tensors_open_with(const char *path, const orbax_options *options, tensors **out,
                                openpi_error *error) {
    if (!path || !*path)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the checkpoint's path is empty, expected a folder or a .safetensors file");
    if (!file_is_folder(path)) return safetensors_open(path, out, error);
    tensors *tensors = tensors_create();
    if (!tensors) return report_no_memory(error, sizeof(void *), path);
    openpi_status status = read_folder(tensors, path, options, error);
    if (status == OPENPI_OK) status = tensors_finish(tensors, error);
    if (status == OPENPI_OK) *out = tensors;
    else tensors_close(tensors);
    return status;
}

openpi_status tensors_open(const char *path, tensors **out, openpi_error *error) {
    return tensors_open_with(path, &(orbax_options){.missing = MISSING_REFUSED}, out, error);
}
