/* Every JSON of a user or a checkpoint. The input's first byte says which it is:
 *   n  norm_stats.json                r  a robot's own file            d  dimensions
 *   s  a synthetic checkpoint's spec  x  model.safetensors.index.json beside one shard
 *   m  LeRobot's state file of its normalizer (no JSON)                c  LeRobot's config.json
 *   b  policy_preprocessor.json       a  policy_postprocessor.json, each beside good others */
#include <math.h>

#include "../support/scratch.h"
#include "base/file.h"
#include "fuzz.h"
#include "checkpoint/open.h"
#include "policy/lerobot/lerobot.h"
#include "policy/normalize.h"
#include "policy/robots/robots.h"

#define CHECKPOINT GOLDEN "/lerobot/pi05_mean_std/checkpoint/"

static const struct { char letter; const char *name; } parts[] = {
    {'c', "config.json"},
    {'b', "policy_preprocessor.json"},
    {'a', "policy_postprocessor.json"},
    {'m', "policy_preprocessor_step_3_normalizer_processor.safetensors"},
    {' ', "policy_postprocessor_step_0_unnormalizer_processor.safetensors"},
};
enum { PARTS = sizeof parts / sizeof parts[0] };

static scratch lerobot_folder, shard_folder;
static char *originals[PARTS];
static size_t original_bytes[PARTS];

static void remove_folders(void) {
    scratch_close(&lerobot_folder);
    scratch_close(&shard_folder);
    for (int i = 0; i < PARTS; i++) free(originals[i]);
}

static void make_folders(void) {
    static const char shard[] = "\x40\0\0\0\0\0\0\0"
                                "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}          "
                                "\0\0\0\0\0\0\0";
    openpi_error error = OPENPI_ERROR_INIT;
    PROMISE(!scratch_open(&lerobot_folder) && !scratch_open(&shard_folder));
    PROMISE(!scratch_write(&shard_folder, "a.safetensors", shard, sizeof shard));
    for (int i = 0; i < PARTS; i++) {
        char path[1024];
        snprintf(path, sizeof path, CHECKPOINT "%s", parts[i].name);
        if (file_read(path, 1 << 20, &originals[i], &original_bytes[i], &error) != OPENPI_OK) {
            fprintf(stderr, "%s\n", error.message);
            exit(1);
        }
        PROMISE(!scratch_write(&lerobot_folder, parts[i].name, originals[i], original_bytes[i]));
    }
    atexit(remove_folders);
    static lerobot good;
    static const char index[] = "{\"weight_map\": {\"x\": \"a.safetensors\"}}";
    tensors *tensors;
    PROMISE(lerobot_open(lerobot_folder.folder, &good, NULL, &error) == OPENPI_OK);
    PROMISE(!scratch_write(&shard_folder, "model.safetensors.index.json", index, strlen(index)));
    PROMISE(tensors_open(shard_folder.folder, &tensors, &error) == OPENPI_OK);
    tensors_close(tensors);
}

static void open_lerobot(int part, const uint8_t *data, size_t size) {
    static lerobot pipeline;
    openpi_error error = OPENPI_ERROR_INIT;
    int found;
    PROMISE(!scratch_write(&lerobot_folder, parts[part].name, data, size));
    went_well(lerobot_detect(lerobot_folder.folder, &found, &error), &error);
    if (went_well(lerobot_open(lerobot_folder.folder, &pipeline, NULL, &error), &error)) {
        float state[LEROBOT_DIMS] = {0}, reference[LEROBOT_DIMS], text[LEROBOT_DIMS],
              actions[LEROBOT_DIMS] = {0};
        lerobot_state_in(&pipeline, state, reference, text);
        lerobot_actions_out(&pipeline, reference, actions);
        for (int i = 0; i < pipeline.camera_count; i++)
            lerobot_camera(&pipeline, lerobot_camera_name(&pipeline, i));
    }
    PROMISE(!scratch_write(&lerobot_folder, parts[part].name, originals[part], original_bytes[part]));
}

static void open_index(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    tensors *tensors;
    PROMISE(!scratch_write(&shard_folder, "model.safetensors.index.json", data, size));
    if (went_well(tensors_open(shard_folder.folder, &tensors, &error), &error)) tensors_close(tensors);
}

/* What leaves limits that were read is within them, or nothing leaves. */
static void hold_limits(const limits *l, size_t seed) {
    enum { STEPS = 4 };
    double actions[STEPS * LIMITS_DIMS], previous[LIMITS_DIMS], start[LIMITS_DIMS];
    limits_report report;
    PROMISE(l->dims >= 1 && l->dims <= LIMITS_DIMS);
    for (int i = 0; i < STEPS * l->dims; i++) actions[i] = (double)((seed * 31 + (size_t)i * 7) % 41) / 8 - 2;
    for (int d = 0; d < l->dims; d++) previous[d] = start[d] = (double)(d % 5) / 4;
    if (!limits_apply(l, previous, start, actions, STEPS, &report)) {
        PROMISE(report.stop != LIMITS_SENT);
        return;
    }
    for (int s = 0; s < STEPS; s++)
        for (int d = 0; d < l->dims; d++) {
            double now = actions[s * l->dims + d], before = s ? actions[(s - 1) * l->dims + d] : previous[d];
            PROMISE(now >= l->min[d] && now <= l->max[d] && fabs(now - before) <= l->max_step[d]);
            PROMISE(s || fabs(now - start[d]) <= l->max_start_jump[d]);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static norm_stats state, actions;
    static robot robot;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_dims dims = OPENPI_DIMS_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    if (!originals[0]) make_folders();
    if (!size) return 0;
    char *text = exact_copy(data + 1, size - 1, 1);
    switch (data[0]) {
    case 'n':
        if (went_well(normalize_parse(text, size - 1, "fuzz", &state, &actions, &error), &error)) {
            double x[NORM_DIMS] = {0};
            for (int mode = STATS_NONE; mode <= (state.quantiles ? STATS_QUANTILE : STATS_ZSCORE); mode++) {
                normalize_apply((norm_mode)mode, &state, x, state.dims);
                normalize_invert((norm_mode)mode, &state, x, NORM_DIMS);
            }
        }
        break;
    case 'r':
        if (went_well(robot_parse(text, size - 1, "fuzz", &robot, &error), &error)) {
            double x[OPENPI_ACTION_DIM] = {0};
            char cameras[256];
            robot_state_in(&robot, x);
            robot_actions_out(&robot, x);
            robot_describe_cameras(&robot, cameras, sizeof cameras);
            for (int i = 0; i < robot.camera_count; i++) robot_camera_slot(&robot, robot.cameras[i].key);
            hold_limits(&robot.limits, size);
        }
        break;
    case 'd': went_well(openpi_dims_parse(text, &dims, &error), &error); break;
    case 's': went_well(openpi_synthetic_parse(text, &synthetic, &error), &error); break;
    case 'x': open_index(data + 1, size - 1); break;
    default:
        for (int i = 0; i < PARTS; i++)
            if (parts[i].letter == data[0] && data[0] != ' ') open_lerobot(i, data + 1, size - 1);
    }
    free(text);
    return 0;
}
