/* What `openpi run` reads before the weights: pictures, state, request, noise, the previous chunk. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "input.h"
#include "json_file.h"
#include "npy.h"
#include "run.h"

static int read_picture(run_job *j, const char *text) {
    const char *equals = strchr(text, '=');
    openpi_error error = OPENPI_ERROR_INIT;
    int slot = 0;
    while (j->picture_names[slot]) slot++;
    openpi_image *picture = &j->pictures[slot];
    if (!equals || equals == text || !equals[1])
        return usage_error(&verb_run, "--image is '%s', expected NAME=FILE such as base=front.png", text);
    char *name = allocate((size_t)(equals - text) + 1), *bytes;
    memcpy(name, text, (size_t)(equals - text));
    name[equals - text] = 0;
    j->picture_names[slot] = name;
    for (int i = 0; i < slot; i++)
        if (!strcmp(j->picture_names[i], name))
            return usage_error(&verb_run, "--image %s is given twice", name);
    size_t count;
    int end = picture_load(&verb_run, equals + 1, &bytes, &count);
    if (end != END_FINE) return end;
    uint8_t *pixels = NULL;
    openpi_status status = openpi_image_decode(bytes, count, input_name(equals + 1), &pixels,
                                               &picture->height, &picture->width, &error);
    free(bytes);
    if (status != OPENPI_OK) return library_error(&verb_run, &error);
    picture->size = sizeof *picture;
    picture->name = name;
    picture->data = pixels;
    picture->element = OPENPI_U8;
    picture->layout = OPENPI_HWC;
    return END_FINE;
}

static int read_state_json(run_job *j, const char *path) {
    json_t *root;
    int end = json_input(&verb_run, path, &root);
    if (end != END_FINE) return end;
    path = input_name(path);
    json_t *list = json_is_object(root) ? json_object_get(root, "state") : root;
    if (!json_is_array(list)) {
        json_decref(root);
        return input_error(&verb_run,
                           "%s: expected an array of numbers, or an object with such an array under "
                           "\"state\"",
                           path);
    }
    size_t numbers = json_array_size(list);
    for (size_t i = 0; i < numbers && end == END_FINE; i++) {
        json_t *item = json_array_get(list, i);
        if (numbers > STATE_MAX)
            end = input_error(&verb_run, "%s: %zu numbers, expected at most %d", path, numbers, STATE_MAX);
        else if (!json_is_number(item))
            end = input_error(&verb_run, "%s: value %zu is not a number", path, i + 1);
        else j->state[j->state_count++] = json_number_value(item);
    }
    json_decref(root);
    return end;
}

static int read_state(run_job *j, const char *text) {
    size_t length = strlen(text);
    if (!strcmp(text, "-") || (length > 5 && !strcmp(text + length - 5, ".json")))
        return read_state_json(j, text);
    for (const char *at = text; *at;) {
        char *end;
        double value = ascii_number(at, &end);
        size_t word = strcspn(at, ",");
        while (*end == ' ') end++;
        if (end != at + word || end == at) {
            if (!j->state_count)
                return usage_error(&verb_run,
                                   "--state is '%s', expected numbers such as \"0.1,-0.2,1\" or a file that "
                                   "ends in .json",
                                   text);
            return usage_error(&verb_run, "--state: value %d is '%.*s', expected a number",
                               j->state_count + 1, (int)(word > 40 ? 40 : word), at);
        }
        if (j->state_count == STATE_MAX)
            return usage_error(&verb_run, "--state has more than %d numbers", STATE_MAX);
        j->state[j->state_count++] = value;
        at = end;
        if (*at == ',' && !at[1]) return usage_error(&verb_run, "--state ends with a comma");
        if (*at == ',') at++;
    }
    return END_FINE;
}

static int read_noise(run_job *j, const char *path) {
    char *bytes, why[NPY_REASON];
    size_t count;
    int end = file_load(&verb_run, path, &bytes, &count);
    if (end != END_FINE) return end;
    path = input_name(path);
    const char *data = npy_read(bytes, count, &j->noise_rows, &j->noise_columns, NULL, why);
    if (!data) end = input_error(&verb_run, "%s: %s", path, why);
    else if (j->noise_columns > OPENPI_ACTION_DIM || j->noise_rows > OPENPI_MAX_HORIZON)
        end = input_error(&verb_run,
                          "%s: shape is [%d, %d], expected [horizon, %d] with a horizon of at most %d", path,
                          j->noise_rows, j->noise_columns, OPENPI_ACTION_DIM, OPENPI_MAX_HORIZON);
    if (end == END_FINE) {
        size_t need = (size_t)j->noise_rows * (size_t)j->noise_columns * sizeof(float);
        j->noise = allocate(need);
        memcpy(j->noise, data, need);
    }
    free(bytes);
    return end;
}

const char *run_noise_name(const run_job *j) {
    return j->v->noise ? j->v->noise : j->noise ? "openpi/noise of the request" : NULL;
}

int run_read(run_job *j) {
    const run_values *v = j->v;
    int end = END_FINE;
    if (!v->request && !v->images.count)
        return usage_error(&verb_run, "no picture: give --image NAME=FILE, or a whole request with --request "
                                      "FILE");
    for (int i = 0; i < v->images.count && end == END_FINE; i++) end = read_picture(j, v->images.items[i]);
    if (end == END_FINE && v->state) end = read_state(j, v->state);
    if (end == END_FINE && v->request)
        end = file_load(&verb_run, v->request, &j->request_bytes, &j->request_count);
    if (end == END_FINE && v->noise) end = read_noise(j, v->noise);
    return end == END_FINE ? previous_read(&verb_run, &v->previous, &j->previous) : end;
}
