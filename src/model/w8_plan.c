/* A weight plan, read and checked. */
#include "model/w8_plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/base64.h"
#include "base/file.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/home.h"
#include "checkpoint/identity.h"
#include "model/model.h"
#include "model/smoothing.h"
#include "model/w8_parts.h"
#include "ops/int8_rows.h"
#include "ops/limits.h"

static const double reproduced = 0.10;           /* share of the recorded distance                        */

int w8_asked(const char *formats) {
    return formats && (!strcmp(formats, "w8") || !strncmp(formats, "w8=", 3));
}

/* ---- sentences ---------------------------------------------------------------------------------------- */

/* Ends a refusal with what to do. */
static openpi_status refuse(openpi_error *error, openpi_status status, const char *source) {
    char text[200];
    snprintf(text, sizeof text, "; run: openpi quantize %.120s --observations FOLDER", source);
    return report_more(error, status, text);
}

static openpi_status wrong(const w8_plan *p, const char *key, openpi_error *error) {
    return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is missing or not what a plan has there", p->path, key);
}

/* ---- where it lies ------------------------------------------------------------------------------------ */

openpi_status w8_place(const char *formats, const char *checkpoint, const char *adapter, int without_lora,
                       char path[W8_PATH], openpi_error *error) {
    model_place place = {0};
    char *home = NULL;
    if (formats && !strncmp(formats, "w8=", 3)) {
        int length = snprintf(path, W8_PATH, "%s", formats + 3);
        return length > 0 && length < W8_PATH
                   ? OPENPI_OK
                   : report(error, OPENPI_BAD_ARGUMENT,
                            "weights is \"%.40s\", expected w8, or w8=FILE with a path of at most %d bytes",
                            formats, W8_PATH - 1);
    }
    if (!checkpoint)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "weights is w8, and a synthetic model has no folder for its plan, expected w8=FILE");
    openpi_status status = model_place_find(checkpoint, adapter, without_lora, &place, error);
    const char *folder = place.adapter && !without_lora ? place.adapter : NULL;
    if (status == OPENPI_OK && !folder) status = home_find(place.base, &home, error);
    if (status == OPENPI_OK) {
        int length = snprintf(path, W8_PATH, "%s/" W8_FILE, folder ? folder : home);
        if (length >= W8_PATH)
            status = report(error, OPENPI_BAD_ARGUMENT, "%.80s: the path is too long for its plan",
                            checkpoint);
    }
    free(home);
    model_place_free(&place);
    return status;
}

/* ---- what the file says ------------------------------------------------------------------------------- */

int w8_above(const w8_bound *bound) { return !(bound->found <= bound->limit); }

static double nearness(const w8_bound *b) {
    return b->limit > 0 ? b->found / b->limit : b->found > 0 ? 2 : 0;
}

static openpi_status read_bounds(w8_plan *p, openpi_error *error) {
    const json_t *list = json_object_get(p->root, "bounds");
    size_t count = json_array_size(list);
    if (!count || count > W8_BOUNDS) return wrong(p, "bounds", error);
    for (size_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(list, i), *found = json_object_get(row, "found"),
                     *limit = json_object_get(row, "limit");
        const char *what = json_string_value(json_object_get(row, "what"));
        w8_bound *b = &p->bounds[i];
        if (!what || !json_is_number(found) || !json_is_number(limit)) return wrong(p, "bounds", error);
        snprintf(b->what, sizeof b->what, "%s", what);
        b->found = json_number_value(found);
        b->limit = json_number_value(limit);
        if (nearness(b) > nearness(&p->bounds[p->worst])) p->worst = (int)i;
    }
    p->bound_count = (int)count;
    return OPENPI_OK;
}

static int read_floats(const json_t *list, float *to, size_t count) {
    if (json_array_size(list) != count) return 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_number(item)) return 0;
        to[i] = (float)json_number_value(item);
    }
    return 1;
}

static openpi_status read_pictures(w8_plan *p, const json_t *check, openpi_error *error) {
    const json_t *list = json_object_get(check, "images");
    openpi_sample *s = &p->check.sample;
    size_t bytes = IMAGE_BYTES * (s->pixels == OPENPI_PIXELS_F32 ? sizeof(float) : 1);
    if (json_array_size(list) != OPENPI_CAMERAS) return wrong(p, "images", error);
    for (int c = 0; c < OPENPI_CAMERAS; c++) {
        const char *text = json_string_value(json_array_get(list, (size_t)c));
        s->image_mask[c] = text != NULL;
        if (!text) continue;
        if (!(p->pictures[c] = malloc(bytes))) return report_no_memory(error, bytes, "a plan's picture");
        if (!base64_bytes(text, p->pictures[c], bytes)) return wrong(p, "images", error);
        s->images[c] = p->pictures[c];
    }
    return OPENPI_OK;
}

static openpi_status read_tokens(w8_plan *p, const json_t *check, openpi_error *error) {
    const json_t *list = json_object_get(check, "tokens");
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count > LIMIT_PROMPT) return wrong(p, "tokens", error);
    if (!(p->tokens = malloc((count + 1) * sizeof *p->tokens)))
        return report_no_memory(error, count * sizeof *p->tokens, "a plan's tokens");
    for (size_t i = 0; i < count; i++) p->tokens[i] = (int32_t)json_integer_value(json_array_get(list, i));
    p->check.sample.tokens = p->tokens;
    p->check.sample.token_count = (int)count;
    return OPENPI_OK;
}

static openpi_status read_numbers(w8_plan *p, const json_t *check, openpi_error *error) {
    w8_check *c = &p->check;
    size_t state = OPENPI_ACTION_DIM, actions = (size_t)c->horizon * OPENPI_ACTION_DIM;
    p->state = calloc(state, sizeof *p->state);
    p->actions = calloc(actions, sizeof *p->actions);
    if (!p->state || !p->actions) return report_no_memory(error, actions * sizeof(float), "a plan's actions");
    if (!read_floats(json_object_get(check, "state"), p->state, state)) return wrong(p, "state", error);
    if (!read_floats(json_object_get(check, "actions"), p->actions, actions))
        return wrong(p, "actions", error);
    c->sample.state = p->state;
    c->actions = p->actions;
    return OPENPI_OK;
}

static openpi_status read_check(w8_plan *p, openpi_error *error) {
    const json_t *check = json_object_get(p->root, "check"), *rms = json_object_get(check, "rms");
    w8_check *c = &p->check;
    const char *pixels = NULL;
    int seed = 0, stream = 0;
    *c = (w8_check){.sample = OPENPI_SAMPLE_INIT};
    if (!json_is_object(check) || !json_is_number(rms)) return wrong(p, "check", error);
    c->rms = json_number_value(rms);
    TRY(json_get_string(check, "pixels", p->path, &pixels, error));
    TRY(json_get_int(check, "horizon", p->path, 1, OPENPI_MAX_HORIZON, &c->horizon, error));
    TRY(json_get_int(check, "steps", p->path, 1, OPENPI_MAX_STEPS, &c->steps, error));
    TRY(json_get_int(check, "max_prompt", p->path, 1, LIMIT_PROMPT, &c->max_prompt, error));
    TRY(json_get_int(check, "action_dim", p->path, 1, OPENPI_ACTION_DIM, &c->action_dim, error));
    TRY(json_get_int(check, "seed", p->path, 0, INT32_MAX, &seed, error));
    TRY(json_get_int(check, "stream", p->path, 0, INT32_MAX, &stream, error));
    if (!pixels || !c->horizon || !c->steps || !c->max_prompt || !c->action_dim)
        return wrong(p, "check", error);
    c->seed = (uint64_t)seed;
    c->stream = (uint64_t)stream;
    c->sample.pixels = strcmp(pixels, "f32") ? OPENPI_PIXELS_U8 : OPENPI_PIXELS_F32;
    TRY(read_pictures(p, check, error));
    TRY(read_tokens(p, check, error));
    return read_numbers(p, check, error);
}

/* Powers of all channels, a byte each, where a group is smoothed. */
static openpi_status read_powers(w8_plan *p, const openpi_dims *dims, const model_types *types,
                                 openpi_error *error) {
    const char *text = json_string_value(json_object_get(p->root, "smoothing"));
    size_t count = smooth_count(dims);
    if (!formats_smooth(types)) return OPENPI_OK;
    p->powers = malloc(count);
    if (!p->powers) return report_no_memory(error, count, "a plan's smoothing");
    if (!text || !base64_bytes(text, p->powers, count)) return wrong(p, "smoothing", error);
    for (size_t i = 0; i < count; i++)
        if (abs(p->powers[i]) > SMOOTH_MOST) return wrong(p, "smoothing", error);
    return OPENPI_OK;
}

/* A number a layer, where rows have one scale. */
static openpi_status read_row_scales(w8_plan *p, const openpi_dims *dims, const model_types *types,
                                     openpi_error *error) {
    const json_t *list = json_object_get(p->root, "row_scales");
    size_t count = (size_t)formats_row_scales(dims);
    if (!types->fixed) return OPENPI_OK;
    p->row_scales = malloc((count + 1) * sizeof *p->row_scales);
    if (!p->row_scales) return report_no_memory(error, count * sizeof *p->row_scales, "a plan's scales");
    if (!json_is_array(list) || json_array_size(list) != count)
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"row_scales\" has %zu numbers, expected %zu: one for each layer but the last",
                      p->path, json_array_size(list), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        p->row_scales[i] = json_is_number(item) ? (float)json_number_value(item) : 0;
        if (!int8_scale_is_fit(p->row_scales[i]))
            return report(error, OPENPI_BAD_FILE,
                          "%s: \"row_scales\" has no number from 2^-100 to 2^100 for layer %zu", p->path, i);
    }
    return OPENPI_OK;
}

static openpi_status read_table(w8_plan *p, const openpi_dims *dims, dtype act, openpi_error *error) {
    const char *of = act == DTYPE_F32 ? "f32" : "bf16", *type = NULL;
    model_types types = formats_all(act, FORMAT_BF16);
    TRY(json_get_string(p->root, "formats", p->path, &p->formats, error));
    TRY(json_get_string(p->root, "path", p->path, &p->path_name, error));
    TRY(json_get_string(p->root, "dtype", p->path, &type, error));
    TRY(json_get_int(p->root, "observations", p->path, 0, INT32_MAX, &p->observations, error));
    TRY(json_get_bool(p->root, "synthetic", p->path, &p->synthetic, error));
    if (!p->formats || !p->path_name || !type) return wrong(p, "formats", error);
    TRY(formats_parse(p->formats, &types, error));
    TRY(read_powers(p, dims, &types, error));
    TRY(read_row_scales(p, dims, &types, error));
    if (!strcmp(type, of)) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "%s: was measured with %s activations, and dtype is %s",
                  p->path, type, of);
}

/* ---- reading it --------------------------------------------------------------------------------------- */

static openpi_status check_seal(w8_plan *p, openpi_error *error) {
    char digest[W8_DIGEST];
    const char *kind = json_string_value(json_object_get(p->root, "kind")),
               *sealed = json_string_value(json_object_get(p->root, "digest"));
    const json_t *format = json_object_get(p->root, "format");
    if (!kind || strcmp(kind, W8_KIND))
        return report(error, OPENPI_BAD_FILE, "%s: its kind is \"%.40s\", expected \"" W8_KIND "\"", p->path,
                      kind ? kind : "");
    if (json_integer_value(format) != W8_FORMAT)
        return report(error, OPENPI_UNSUPPORTED, "%s: its format is %lld, this program reads %d", p->path,
                      (long long)json_integer_value(format), W8_FORMAT);
    TRY(w8_digest(p->root, digest, error));
    if (sealed && !strcmp(sealed, digest)) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: was changed after openpi quantize wrote it", p->path);
}

static openpi_status check_identity(const w8_plan *p, const checkpoint *checkpoint, openpi_error *error) {
    char identity[IDENTITY_TEXT];
    const char *made_for = json_string_value(json_object_get(p->root, "checkpoint"));
    TRY(checkpoint_identity(checkpoint, identity, error));
    if (made_for && !strcmp(made_for, identity)) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE,
                  "%s: was made for other weights, of hash %.16s where this checkpoint has %s", p->path,
                  made_for ? made_for : "none", identity);
}

static openpi_status check_bounds(const w8_plan *p, openpi_error *error) {
    const w8_bound *b = &p->bounds[p->worst];
    char numbers[80];
    if (!w8_above(b)) return OPENPI_OK;
    ascii_print(numbers, sizeof numbers, "%.4g, above its bound of %.4g", b->found, b->limit);
    return report(error, OPENPI_BAD_ARGUMENT,
                  "%s: %s is %s, which only accept_error lets pass", p->path, b->what, numbers);
}

static openpi_status read_all(w8_plan *p, const checkpoint *checkpoint, dtype act, int accept,
                              openpi_error *error) {
    TRY(json_read(p->path, &p->root, error));
    TRY(check_seal(p, error));
    TRY(check_identity(p, checkpoint, error));
    TRY(read_table(p, &checkpoint->dims, act, error));
    TRY(read_bounds(p, error));
    TRY(read_check(p, error));
    return accept ? OPENPI_OK : check_bounds(p, error);
}

openpi_status w8_read(const char *path, const checkpoint *checkpoint, const char *source, dtype act,
                      int accept, w8_plan **out, openpi_error *error) {
    w8_plan *p = calloc(1, sizeof *p);
    if (!p) return report_no_memory(error, sizeof *p, "a weight plan");
    snprintf(p->path, sizeof p->path, "%s", path);
    openpi_status status =
        file_exists(path) ? read_all(p, checkpoint, act, accept, error)
                          : report(error, OPENPI_NOT_FOUND,
                                   "weights is w8, and its plan %s is not there", path);
    if (status == OPENPI_OK) {
        *out = p;
        return OPENPI_OK;
    }
    w8_close(p);
    return status == OPENPI_NO_MEMORY ? status : refuse(error, status, source);
}

formats_measured w8_measured(const w8_plan *p) {
    return (formats_measured){.powers = p->powers, .row_scales = {p->row_scales, p->row_scales}};
}

void w8_close(w8_plan *p) {
    if (!p) return;
    for (int c = 0; c < OPENPI_CAMERAS; c++) free(p->pictures[c]);
    free(p->tokens);
    free(p->state);
    free(p->actions);
    free(p->powers);
    free(p->row_scales);
    json_decref(p->root);
    free(p);
}

/* ---- the stored observation --------------------------------------------------------------------------- */

double w8_distance(const w8_check *check, const float *actions) {
    double squares = 0;
    for (int r = 0; r < check->horizon; r++)
        for (int i = 0; i < check->action_dim; i++) {
            size_t at = (size_t)r * OPENPI_ACTION_DIM + (size_t)i;
            double off = (double)actions[at] - (double)check->actions[at];
            squares += off * off;
        }
    return sqrt(squares / (check->horizon * check->action_dim));
}

openpi_status w8_judge(const w8_plan *p, double found, const char *source, openpi_error *error) {
    char numbers[80];
    if (fabs(found - p->check.rms) <= reproduced * p->check.rms) return OPENPI_OK;
    ascii_print(numbers, sizeof numbers, "rms %.4g here and %.4g when it was written", found, p->check.rms);
    report(error, OPENPI_BAD_FILE,
           "%s: the actions of its stored observation are off by %s (kernels %.20s), expected within 10 %%",
           p->path, numbers, p->path_name);
    return refuse(error, OPENPI_BAD_FILE, source);
}
