/* LeRobot's config.json: what model it is and its features (cameras, state, actions); and the small readers
 * that all files of a checkpoint share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"
#include "checkpoint/closed_world.h"
#include "checkpoint/variant.h"
#include "policy/lerobot/lerobot_parts.h"

/* ---- small readers -------------------------------------------------------------------------------- */

openpi_status lerobot_copy_text(const char *text, const char *name, const char *what, char *out, size_t bytes,
                               openpi_error *error) {
    size_t length = strlen(text);
    if (!length || length >= bytes)
        return report(error, OPENPI_BAD_FILE, "%s: %s \"%.80s\" has %zu bytes, expected 1 to %zu", name, what,
                      text, length, bytes - 1);
    memcpy(out, text, length + 1);
    return OPENPI_OK;
}

void lerobot_list_text(const json_t *array, char out[LEROBOT_KEY_BYTES]) {
    out[0] = 0;
    char *text = json_array_size(array) ? json_text(array, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL;
    if (text) snprintf(out, LEROBOT_KEY_BYTES, "%s", text);
    free(text);
}

openpi_status lerobot_check_inside(const char *path, const char *name, const char *what,
                                   openpi_error *error) {
    if (path[0] && path[0] != '/' && !strstr(path, "..")) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE,
                  "%s: %s is \"%.80s\", expected a name inside the checkpoint's folder", name, what, path);
}

openpi_status lerobot_read_json(const char *folder, const char *file, char **path, json_t **root,
                               openpi_error *error) {
    *path = file_join(folder, file);
    if (!*path) return report_no_memory(error, strlen(folder) + strlen(file) + 2, "a path");
    openpi_status status = json_read(*path, root, error);
    if (status == OPENPI_OK && !json_is_object(*root)) {
        status = report(error, OPENPI_BAD_FILE, "%s: the file holds %s, expected an object", *path,
                        json_kind(*root));
        json_decref(*root);
    }
    if (status != OPENPI_OK) free(*path);
    return status;
}

/* ---- config.json ---------------------------------------------------------------------------------- */

openpi_status lerobot_detect(const char *folder, int *found, openpi_error *error) {
    char *path = file_join(folder, "config.json");
    if (!path) return report_no_memory(error, strlen(folder) + 13, "a path");
    int there = file_exists(path);
    free(path);
    *found = 0;
    if (!there) return OPENPI_OK;
    json_t *root;
    TRY(lerobot_read_json(folder, "config.json", &path, &root, error));
    *found = json_is_string(json_object_get(root, "type"));
    json_decref(root);
    free(path);
    return OPENPI_OK;
}

/* The first dimension of a one-dimensional feature. */
static openpi_status read_length(const json_t *feature, const char *name, const char *key, int *out,
                                 openpi_error *error) {
    const json_t *shape = json_object_get(feature, "shape"), *first = json_array_get(shape, 0);
    json_int_t length = json_integer_value(first);
    if (json_array_size(shape) != 1 || !json_is_integer(first) || length < 1 || length > LEROBOT_DIMS)
        return report(error, OPENPI_BAD_FILE,
                      "%s: the shape of feature \"%s\" is not one number from 1 to %d", name, key,
                      LEROBOT_DIMS);
    *out = (int)length;
    return OPENPI_OK;
}

static int is_empty_camera(const char *key) {
    static const char prefix[] = LEROBOT_IMAGES "empty_camera_";
    return !strncmp(key, prefix, sizeof prefix - 1);
}

static openpi_status add_camera(lerobot *out, const char *key, const char *name, openpi_error *error) {
    if (out->camera_count == OPENPI_CAMERAS)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: more than %d cameras, the model has slots for %d; \"%.64s\" is one too many", name,
                      OPENPI_CAMERAS, OPENPI_CAMERAS, key);
    TRY(lerobot_copy_text(key, name, "the camera", out->cameras[out->camera_count], LEROBOT_KEY_BYTES,
                          error));
    out->empty[out->camera_count++] = (uint8_t)is_empty_camera(key);
    return OPENPI_OK;
}

/* A feature that the model reads or makes by its key has the kind that LeRobot reads or makes. */
static openpi_status check_kind(const json_t *feature, const char *name, const char *key, const char *wanted,
                                openpi_error *error) {
    const char *type = json_string_value(json_object_get(feature, "type"));
    if (type && !strcmp(type, wanted)) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: the type of feature \"%s\" is \"%s\", expected \"%s\"", name,
                  key, type ? type : "null", wanted);
}

/* Three numbers, one of them the three colours, in front or at the end. */
static openpi_status check_picture(const json_t *feature, const char *name, const char *key,
                                   openpi_error *error) {
    const json_t *shape = json_object_get(feature, "shape");
    if (json_array_size(shape) == 3 && (json_integer_value(json_array_get(shape, 0)) == 3 ||
                                        json_integer_value(json_array_get(shape, 2)) == 3))
        return OPENPI_OK;
    return report(error, OPENPI_UNSUPPORTED,
                  "%s: the shape of camera \"%.64s\" is not [3, height, width], expected a picture of three "
                  "colours", name, key);
}

/* LeRobot gives the model one output, "action"; where there are others and not this one, theirs is another
 * meaning. */
static openpi_status read_action(const json_t *outputs, const char *name, lerobot *out, openpi_error *error) {
    const char *key;
    json_t *feature;
    json_object_foreach((json_t *)(uintptr_t)outputs, key, feature)
        if (!json_object_get(outputs, LEROBOT_ACTION))
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: \"output_features\" has \"%.64s\" and no \"" LEROBOT_ACTION "\", the only one "
                          "that the model makes", name, key);
    feature = json_object_get(outputs, LEROBOT_ACTION);
    if (!feature) return OPENPI_OK;
    TRY(check_kind(feature, name, LEROBOT_ACTION, "ACTION", error));
    out->said.actions = 1;
    return read_length(feature, name, LEROBOT_ACTION, &out->action_dim, error);
}

static openpi_status read_features(const json_t *root, const char *name, lerobot *out, openpi_error *error) {
    json_t *inputs = json_object_get(root, "input_features"),
           *outputs = json_object_get(root, "output_features"), *feature;
    const char *key;
    int empty = 0;
    if (!json_is_object(inputs))
        return report(error, OPENPI_BAD_FILE, "%s: \"input_features\" is %s, expected an object", name,
                      json_kind(inputs));
    out->state_length = out->action_dim = LEROBOT_DIMS;              /* LeRobot's own defaults */
    json_object_foreach(inputs, key, feature) {
        const char *type = json_string_value(json_object_get(feature, "type"));
        if (!type) return report(error, OPENPI_BAD_FILE, "%s: feature \"%.64s\" has no type", name, key);
        if (!strcmp(key, LEROBOT_STATE)) {
            TRY(check_kind(feature, name, key, "STATE", error));
            TRY(read_length(feature, name, key, &out->state_length, error));
            out->said.state = 1;
        } else if (!strcmp(type, "VISUAL")) {
            TRY(check_picture(feature, name, key, error));
            TRY(add_camera(out, key, name, error));
        } else snprintf(out->said.unread, sizeof out->said.unread, "%s", key);
    }
    TRY(read_action(outputs, name, out, error));
    TRY(json_get_int(root, "empty_cameras", name, 0, OPENPI_CAMERAS, &empty, error));
    for (int i = 0; i < empty; i++) {
        char camera[LEROBOT_KEY_BYTES];
        int known = 0;
        snprintf(camera, sizeof camera, LEROBOT_IMAGES "empty_camera_%d", i);
        for (int c = 0; c < out->camera_count; c++) known |= !strcmp(out->cameras[c], camera);
        if (!known) TRY(add_camera(out, camera, name, error));
    }
    for (int c = 0; c < out->camera_count; c++)
        if (!out->empty[c]) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: \"input_features\" has no camera (no feature of type VISUAL)",
                  name);
}

/* What the processors' steps decide, or what only notes tell. */
static openpi_status read_said(const json_t *root, const char *name, lerobot_said *said,
                               openpi_error *error) {
    const json_t *modes = json_object_get(root, "normalization_mapping"),
                 *relative = json_object_get(root, "use_relative_actions");
    const char *state = json_string_value(json_object_get(modes, "STATE")),
               *action = json_string_value(json_object_get(modes, "ACTION")), *path = NULL;
    said->relative = -1;
    if (relative && !json_is_null(relative))
        TRY(json_get_bool(root, "use_relative_actions", name, &said->relative, error));
    TRY(json_get_int(root, "tokenizer_max_length", name, 1, 1 << 20, &said->max_prompt, error));
    TRY(json_get_string(root, "pretrained_path", name, &path, error));
    said->fine_tune = path != NULL;
    lerobot_list_text(json_object_get(root, "relative_exclude_joints"), said->excluded);
    said->old_resize = json_object_get(root, "resize_imgs_with_padding") != NULL;
    snprintf(said->state_mode, sizeof said->state_mode, "%s", state ? state : "");
    snprintf(said->action_mode, sizeof said->action_mode, "%s", action ? action : "");
    return OPENPI_OK;
}

openpi_status lerobot_read_config(const json_t *root, const char *name, lerobot *out, openpi_error *error) {
    const char *type = NULL;
    TRY(json_get_string(root, "type", name, &type, error));
    if (!type)
        return report(error, OPENPI_BAD_FILE, "%s: \"type\" is absent, so this is no LeRobot checkpoint",
                      name);
    if (!variant_parse(type, strlen(type), &out->variant))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"type\" is \"%.32s\", supported are \"pi0\" and \"pi05\"", name, type);
    out->horizon = 50;
    TRY(json_get_int(root, "chunk_size", name, 1, OPENPI_MAX_HORIZON, &out->horizon, error));
    TRY(closed_world_check("config.json", root, name, "", error));
    TRY(read_said(root, name, &out->said, error));
    return read_features(root, name, out, error);
}

int lerobot_tokenizer_is_foreign(const lerobot *pipeline) {
    static const char paligemma[] = "google/paligemma-3b-";      /* all its trainings have one tokenizer */
    return !pipeline->tokenizer[0] && strncmp(pipeline->tokenizer_name, paligemma, sizeof paligemma - 1);
}
