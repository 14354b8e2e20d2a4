#include "checkpoint/place.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/jax/orbax_folder.h"

static const char file_name[] = "adapter_config.json";

/* Has adapter_config.json; and has weights of a whole model. */
static openpi_status look(const char *path, int *adapter, int *model, openpi_error *error) {
    int single = 0, sharded = 0;
    *adapter = *model = 0;
    if (file_is_folder(path)) TRY(file_is_in(path, file_name, adapter, error));
    if (!*adapter) return OPENPI_OK;
    TRY(file_is_in(path, "model.safetensors", &single, error));
    TRY(file_is_in(path, "model.safetensors.index.json", &sharded, error));
    char *params = orbax_folder_find(path);
    *model = single || sharded || params;
    free(params);
    return OPENPI_OK;
}

static openpi_status copy_path(const char *path, char **out, openpi_error *error) {
    *out = strdup(path);
    return *out ? OPENPI_OK : report_no_memory(error, strlen(path) + 1, path);
}

/* The base that the adapter's config names: in its folder, else as the path is given. */
static openpi_status find_base(const char *folder, const json_t *root, const char *config, char **out,
                               openpi_error *error) {
    const char *name = NULL;
    int adapter, model;
    if (!json_is_object(root))
        return report(error, OPENPI_BAD_FILE, "%s: is %s, expected an object", config, json_kind(root));
    TRY(json_get_string(root, "base_model_name_or_path", config, &name, error));
    if (!name || !*name)
        return report(error, OPENPI_NOT_FOUND,
                      "%s: \"base_model_name_or_path\" is %s: give adapter, this folder, and the base as the "
                      "checkpoint",
                      config, name ? "empty" : "null");
    *out = *name == '/' ? strdup(name) : file_join(folder, name);
    if (*out && *name != '/' && !file_is_folder(*out)) {
        free(*out);
        *out = strdup(name);
    }
    if (!*out) return report_no_memory(error, strlen(folder) + strlen(name) + 2, config);
    if (!file_is_folder(*out))
        return report(error, OPENPI_NOT_FOUND,
                      "%s: \"base_model_name_or_path\" is \"%s\", which is no folder here: download it, then "
                      "give adapter, this folder, and the base as the checkpoint",
                      config, name);
    TRY(look(*out, &adapter, &model, error));
    if (adapter && !model)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"base_model_name_or_path\" is \"%s\", an adapter itself, expected a whole model",
                      config, name);
    return OPENPI_OK;
}

static openpi_status read_base(const char *folder, char **out, openpi_error *error) {
    char *config = file_join(folder, file_name);
    json_t *root = NULL;
    if (!config) return report_no_memory(error, strlen(folder) + sizeof file_name, folder);
    openpi_status status = json_read(config, &root, error);
    if (status == OPENPI_OK) status = find_base(folder, root, config, out, error);
    json_decref(root);
    free(config);
    return status;
}

openpi_status model_place_find(const char *path, const char *adapter, int without_lora, model_place *place,
                               openpi_error *error) {
    int own, model, there, whole;
    *place = (model_place){0};
    if (adapter) {
        TRY(look(adapter, &there, &whole, error));
        if (!there)
            return report(error, OPENPI_NOT_FOUND, "adapter is \"%s\", expected a folder with %s", adapter,
                          file_name);
    }
    TRY(look(path, &own, &model, error));
    if (adapter && own && !model)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: an adapter itself, which adapter %s cannot change, expected a whole model", path,
                      adapter);
    if (!adapter && own && model && !without_lora)
        return report(error, OPENPI_BAD_FILE,
                      "%s: both a whole model and adapter_config.json are there, expected one of them; "
                      "give adapter, the same folder, to apply it",
                      path);
    if (!adapter && own && !model) {
        TRY(read_base(path, &place->base, error));
        return copy_path(path, &place->adapter, error);
    }
    TRY(copy_path(path, &place->base, error));
    return adapter ? copy_path(adapter, &place->adapter, error) : OPENPI_OK;
}

void model_place_free(model_place *place) {
    free(place->base);
    free(place->adapter);
    *place = (model_place){0};
}
