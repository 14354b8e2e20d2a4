/* LeRobot's pipelines: opened from a checkpoint's files or made for a synthetic one, and run in fp32. */
#include "policy/lerobot/lerobot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "checkpoint/variant.h"
#include "policy/lerobot/lerobot_parts.h"
#include "policy/robots/robots.h"

/* ---- a checkpoint's pipelines ---------------------------------------------------------------------- */

/* A state that gets its name after a step that reads it: that step would not find it. */
static openpi_status check_renaming(const lerobot *p, const char *folder, openpi_error *error) {
    int reader = -1, renames_state = 0;
    for (int r = 0; r < p->rename_count; r++) renames_state |= !strcmp(p->renames[r][1], LEROBOT_STATE);
    for (int i = 0; i < p->before_count; i++) {
        lerobot_kind kind = p->before[i].kind;
        if (kind == LEROBOT_RELATIVE || kind == LEROBOT_NORMALIZE || kind == LEROBOT_STATE_TEXT) reader = i;
        if (kind == LEROBOT_RENAME && renames_state && reader >= 0)
            return report(error, OPENPI_UNSUPPORTED,
                          "%s/policy_preprocessor.json: step %d gives the state its name after step %d, "
                          "which reads it", folder, i, reader);
    }
    return OPENPI_OK;
}

/* Checks the order of the steps: one tokenizer, before it one step that writes the prompt; a remembered state
 * if actions are made absolute. */
static openpi_status check_pipeline(const lerobot *p, const char *folder, openpi_error *error) {
    int formats = 0, tokenizers = 0, remembered = 0;
    TRY(check_renaming(p, folder, error));
    for (int i = 0; i < p->before_count; i++) {
        lerobot_kind kind = p->before[i].kind;
        if (kind == LEROBOT_NEW_LINE || kind == LEROBOT_STATE_TEXT) {
            if (tokenizers)
                return report(error, OPENPI_UNSUPPORTED,
                              "%s/policy_preprocessor.json: step %d changes the prompt after the tokenizer",
                              folder, i);
            formats++;
        }
        if (kind == LEROBOT_TOKENIZE) tokenizers++;
        if (kind == LEROBOT_RELATIVE) remembered++;
    }
    if (tokenizers != 1 || formats != 1)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s/policy_preprocessor.json: %d tokenizer steps after %d steps that write the prompt "
                      "(pi0_new_line_processor, "
                      "pi05_prepare_state_tokenizer_processor_step), expected one of each",
                      folder, tokenizers, formats);
    for (int i = 0; i < p->after_count; i++) {
        if (p->after[i].kind != LEROBOT_ABSOLUTE) continue;
        if (!remembered)
            return report(
                error, OPENPI_BAD_FILE,
                "%s/policy_postprocessor.json: step %d makes actions absolute, but the preprocessor has no "
                "relative_actions_processor",
                folder, i);
        if (p->state_length < p->action_dim)
            return report(
                error, OPENPI_BAD_FILE,
                "%s/policy_postprocessor.json: step %d adds a state of %d numbers to %d action dimensions",
                folder, i, p->state_length, p->action_dim);
    }
    return OPENPI_OK;
}

openpi_status lerobot_open(const char *folder, lerobot *out, notes *notes, openpi_error *error) {
    static const char *const files[] = {"config.json", "policy_preprocessor.json",
                                        "policy_postprocessor.json"};
    lerobot *p = calloc(1, sizeof *p);
    if (!p) return report_no_memory(error, sizeof *p, "a LeRobot pipeline");
    p->relative_enabled = p->absolute_enabled = -1;
    p->state_statistics =
        (lerobot_statistics){.mode = "IDENTITY", .why = "there is no normalizer_processor"};
    p->action_statistics =
        (lerobot_statistics){.mode = "IDENTITY", .why = "there is no unnormalizer_processor"};
    openpi_status status = OPENPI_OK;
    for (int f = 0; f < 3 && status == OPENPI_OK; f++) {
        char *path;
        json_t *root;
        status = lerobot_read_json(folder, files[f], &path, &root, error);
        if (status != OPENPI_OK) break;
        if (f == 0) status = lerobot_read_config(root, path, p, error);
        if (f == 0 && status == OPENPI_OK) lerobot_read_names(root, path, p, notes);
        if (f == 1)
            status =
                lerobot_read_steps(folder, root, path, LEROBOT_BEFORE, p, p->before, &p->before_count, error);
        if (f == 2)
            status =
                lerobot_read_steps(folder, root, path, LEROBOT_AFTER, p, p->after, &p->after_count, error);
        json_decref(root);
        free(path);
    }
    if (status == OPENPI_OK) status = check_pipeline(p, folder, error);
    if (status == OPENPI_OK) *out = *p;
    free(p);
    return status;
}

/* ---- a synthetic checkpoint's pipelines ------------------------------------------------------------ */

static void fill_synthetic(int quantiles, const norm_stats *stats, lerobot_norm *norm) {
    norm->mode = quantiles ? LEROBOT_QUANTILES : LEROBOT_MEAN_STD;
    norm->eps = 1e-8f;
    for (int i = 0; i < LEROBOT_DIMS; i++) {
        norm->low[i] = (float)(quantiles ? stats->q01[i] : stats->mean[i]);
        norm->high[i] = (float)(quantiles ? stats->q99[i] : stats->std[i]);
    }
}

void lerobot_synthetic(const openpi_synthetic *synthetic, lerobot *out) {
    static const char *const cameras[] = {"base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"};
    /* Where the state is written into the prompt, it is normalised before that. */
    static const lerobot_kind orders[][4] = {
        {LEROBOT_NEW_LINE, LEROBOT_TOKENIZE, LEROBOT_RELATIVE, LEROBOT_NORMALIZE},
        {LEROBOT_RELATIVE, LEROBOT_NORMALIZE, LEROBOT_STATE_TEXT, LEROBOT_TOKENIZE},
    };
    const variant_traits *traits = variant_of(synthetic->variant);
    const lerobot_kind *steps = orders[traits->state_in_prompt];
    norm_stats state, actions;
    normalize_synthetic_stats(synthetic->seed, &state, &actions);
    *out = (lerobot){.variant = synthetic->variant,
                     .state_length = LEROBOT_DIMS,
                     .action_dim = LEROBOT_DIMS,
                     .horizon = 50,
                     .max_prompt = traits->max_prompt,
                     .camera_count = OPENPI_CAMERAS,
                     .before_count = 4,
                     .after_count = 1,
                     .state_in_prompt = traits->state_in_prompt,
                     .said = {.state = 1, .actions = 1, .relative = -1}};
    lerobot_statistics made = {.mode = traits->quantiles ? "QUANTILES" : "MEAN_STD", .file = "embedded"};
    out->state_statistics = out->action_statistics = made;
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        snprintf(out->cameras[c], LEROBOT_KEY_BYTES, "%s%s", LEROBOT_IMAGES, cameras[c]);
    for (int i = 0; i < out->before_count; i++) {
        out->before[i].kind = steps[i];
        if (steps[i] == LEROBOT_NORMALIZE) fill_synthetic(traits->quantiles, &state, &out->before[i].norm);
    }
    out->after[0].kind = LEROBOT_UNNORMALIZE;
    fill_synthetic(traits->quantiles, &actions, &out->after[0].norm);
    memset(out->relative, 1, sizeof out->relative);
}

/* ---- pictures ------------------------------------------------------------------------------------- */

static const char *renamed(const lerobot *p, const char *key) {
    for (int r = 0; r < p->rename_count; r++)
        if (!strcmp(p->renames[r][0], key)) return p->renames[r][1];
    return key;
}

static int find_feature(const lerobot *p, const char *key) {
    key = renamed(p, key);
    for (int c = 0; c < p->camera_count; c++)
        if (!p->empty[c] && !strcmp(p->cameras[c], key)) return c;
    return -1;
}

/* By a feature's own name, with or without the prefix. */
static int find_named(const lerobot *p, const char *name) {
    char key[LEROBOT_KEY_BYTES];
    int camera = find_feature(p, name);
    if (camera < 0 && snprintf(key, sizeof key, "%s%s", LEROBOT_IMAGES, name) < (int)sizeof key)
        camera = find_feature(p, key);
    return camera;
}

/* The feature that has the name of a slot, "base_0_rgb" or "base". */
static int find_slot(const lerobot *p, int slot) {
    char name[32];
    snprintf(name, sizeof name, "%s_0_rgb", robot_slot_name(slot));
    int camera = find_named(p, name);
    return camera < 0 ? find_named(p, robot_slot_name(slot)) : camera;
}

/* The feature in the place of the slot, unless it has the name of another one. */
static int find_place(const lerobot *p, int slot) {
    for (int s = 0; s < OPENPI_CAMERAS; s++)
        if (find_slot(p, s) == slot) return -1;
    return slot < p->camera_count && !p->empty[slot] ? slot : -1;
}

int lerobot_camera(const lerobot *p, const char *name) {
    int camera = find_named(p, name), slot = robot_slot(name);
    if (camera < 0 && slot >= 0) camera = find_slot(p, slot);
    return camera < 0 && slot >= 0 ? find_place(p, slot) : camera;
}

int lerobot_camera_by_position(const lerobot *p, const char *name) {
    int slot = robot_slot(name);
    return slot >= 0 && find_named(p, name) < 0 && find_slot(p, slot) < 0 && find_place(p, slot) >= 0;
}

const char *lerobot_camera_name(const lerobot *p, int camera) {
    const char *key = p->cameras[camera];
    for (int r = 0; r < p->rename_count; r++)
        if (!strcmp(p->renames[r][1], key)) {
            key = p->renames[r][0];
            break;
        }
    size_t prefix = sizeof LEROBOT_IMAGES - 1;
    return strncmp(key, LEROBOT_IMAGES, prefix) ? key : key + prefix;
}

/* ---- running (lerobot processor/normalize_processor.py, relative_action_processor.py) -------------- */

void lerobot_state_in(const lerobot *p, float *state, float *reference, float *text) {
    size_t bytes = (size_t)p->state_length * sizeof *state;
    memcpy(reference, state, bytes);
    memcpy(text, state, bytes);
    for (int i = 0; i < p->before_count; i++) {
        switch (p->before[i].kind) {
        case LEROBOT_RELATIVE: memcpy(reference, state, bytes); break;
        case LEROBOT_NORMALIZE: lerobot_normalize(&p->before[i].norm, state, p->state_length); break;
        case LEROBOT_STATE_TEXT: memcpy(text, state, bytes); break;
        default: break;
        }
    }
}

void lerobot_actions_out(const lerobot *p, const float *reference, float *actions) {
    for (int i = 0; i < p->after_count; i++) {
        if (p->after[i].kind == LEROBOT_UNNORMALIZE)
            lerobot_unnormalize(&p->after[i].norm, actions, p->action_dim);
        if (p->after[i].kind != LEROBOT_ABSOLUTE) continue;
        for (int d = 0; d < p->action_dim; d++) actions[d] += reference[d] * (float)p->relative[d];
    }
}

int lerobot_start_state(const lerobot *p, int action) {
    int normalized = 0, absolute = 0;
    for (int i = 0; i < p->before_count; i++) {
        if (p->before[i].kind == LEROBOT_RELATIVE && normalized) return -1;
        normalized |= p->before[i].kind == LEROBOT_NORMALIZE;
    }
    for (int i = 0; i < p->after_count; i++) {
        if (p->after[i].kind == LEROBOT_UNNORMALIZE && absolute) return -1;
        absolute |= p->after[i].kind == LEROBOT_ABSOLUTE;
    }
    return absolute && p->relative[action] ? action : -1;
}
