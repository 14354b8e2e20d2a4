/* A weight plan, written. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/report.h"
#include "model/model.h"
#include "model/w8_parts.h"
#include "model/w8_plan.h"

openpi_status w8_digest(json_t *root, char text[W8_DIGEST], openpi_error *error) {
    json_t *without = json_copy(root);
    if (without) json_object_del(without, "digest");
    char *all = json_text(without, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(W8_DECIMALS));
    json_decref(without);
    if (!all) return report_no_memory(error, 4096, "a weight plan");
    snprintf(text, W8_DIGEST, "%016" PRIx64, hash_fnv1a64(HASH_FNV_START, all, strlen(all)));
    free(all);
    return OPENPI_OK;
}

static json_t *floats(const float *values, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(list, json_real((double)values[i]));
    return list;
}

static json_t *pictures(const openpi_sample *s) {
    size_t bytes = IMAGE_BYTES * (s->pixels == OPENPI_PIXELS_F32 ? sizeof(float) : 1);
    json_t *list = json_array();
    for (int c = 0; c < OPENPI_CAMERAS; c++) {
        char *text = s->image_mask[c] ? base64_text(s->images[c], bytes) : NULL;
        json_array_append_new(list, text ? json_string(text) : json_null());
        free(text);
    }
    return list;
}

static json_t *check_json(const w8_check *c) {
    static const float no_state[OPENPI_ACTION_DIM] = {0};
    const openpi_sample *s = &c->sample;
    json_t *tokens = json_array();
    for (int i = 0; i < s->token_count; i++) json_array_append_new(tokens, json_integer(s->tokens[i]));
    return json_pack("{s:f,s:I,s:I,s:i,s:i,s:i,s:i,s:s,s:o,s:o,s:o,s:o}", "rms", c->rms, "seed",
                     (json_int_t)c->seed, "stream", (json_int_t)c->stream, "horizon", c->horizon, "steps",
                     c->steps, "max_prompt", c->max_prompt, "action_dim", c->action_dim, "pixels",
                     s->pixels == OPENPI_PIXELS_F32 ? "f32" : "u8", "state",
                     floats(s->state ? s->state : no_state, OPENPI_ACTION_DIM), "tokens", tokens, "actions",
                     floats(c->actions, (size_t)c->horizon * OPENPI_ACTION_DIM), "images", pictures(s));
}

/* NULL: out of memory. */
static json_t *add_powers(json_t *root, const w8_contents *c) {
    char *text = base64_text(c->powers, c->power_count);
    int added = root && text && !json_object_set_new(root, "smoothing", json_string(text));
    free(text);
    if (!added) json_decref(root);
    return added ? root : NULL;
}

json_t *w8_json(const w8_contents *c) {
    json_t *bounds = json_array();
    for (int i = 0; i < c->bound_count; i++)
        json_array_append_new(bounds, json_pack("{s:s,s:f,s:f}", "what", c->bounds[i].what, "limit",
                                                c->bounds[i].limit, "found", c->bounds[i].found));
    json_t *root = json_pack("{s:s,s:s,s:s,s:s,s:i,s:b,s:o,s:o}", "checkpoint", c->identity, "formats",
                             c->formats, "dtype", c->act == DTYPE_F32 ? "f32" : "bf16", "path", c->path_name,
                             "observations", c->observations, "synthetic", c->synthetic, "bounds", bounds,
                             "check", check_json(c->check));
    if (root && c->row_scales)
        json_object_set_new(root, "row_scales", floats(c->row_scales, (size_t)c->row_scale_count));
    return c->powers ? add_powers(root, c) : root;
}

char *w8_text(json_t *root) {
    char digest[W8_DIGEST];
    if (!root || w8_digest(root, digest, NULL) != OPENPI_OK) return NULL;
    json_object_set_new(root, "digest", json_string(digest));
    return json_text(root, JSON_INDENT(1) | JSON_REAL_PRECISION(W8_DECIMALS));
}
