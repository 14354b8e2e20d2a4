/* openpi_synthetic_write: a whole synthetic checkpoint in a folder, as openpi or as LeRobot lays it out.
 *
 * Weights come from the model's generator; statistics and tokenizer are those that a synthetic policy uses in
 * memory. A failed call removes what it has made. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/json.h"
#include "base/new_folder.h"
#include "base/report.h"
#include "base/threads.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/synthetic/synth_write.h"
#include "policy/normalize.h"
#include "policy/tokenizer/tokenizer.h"

enum { HORIZON = 50 };

/* ---- openpi's layout ---- */

static json_t *numbers(const double *values, int count) {
    json_t *list = json_array();
    int failed = 0;
    for (int i = 0; i < count; i++) failed |= json_array_append_new(list, json_real(values[i]));
    if (list && !failed) return list;
    json_decref(list);
    return NULL;
}

static json_t *entry(const norm_stats *s) {
    return json_pack("{s:o,s:o,s:o,s:o}", "mean", numbers(s->mean, s->dims), "std", numbers(s->std, s->dims),
                     "q01", numbers(s->q01, s->dims), "q99", numbers(s->q99, s->dims));
}

static openpi_status make_norm_stats(new_folder *m, const norm_stats *state, const norm_stats *actions,
                                     openpi_error *error) {
    json_t *root = json_pack("{s:{s:o,s:o}}", "norm_stats", "state", entry(state), "actions", entry(actions));
    char *text = root ? json_text(root, JSON_INDENT(2)) : NULL;
    openpi_status status = text ? new_folder_text(m, "assets/synthetic/norm_stats.json", text, error)
                                : report_no_memory(error, 4096, "norm_stats.json");
    free(text);
    json_decref(root);
    return status;
}

static openpi_status make_openpi(new_folder *m, const norm_stats *state, const norm_stats *actions,
                                 openpi_error *error) {
    char config[300];
    snprintf(config, sizeof config,
             "{\n  \"action_dim\": %d,\n  \"action_horizon\": %d,\n  \"paligemma_variant\": \"gemma_2b\",\n"
             "  \"action_expert_variant\": \"gemma_300m\",\n  \"precision\": \"bfloat16\"\n}\n",
             OPENPI_ACTION_DIM, HORIZON);
    TRY(new_folder_text(m, "config.json", config, error));
    TRY(new_folder_subfolder(m, "assets", error));
    TRY(new_folder_subfolder(m, "assets/synthetic", error));
    return make_norm_stats(m, state, actions, error);
}

/* ---- LeRobot's layout ---- */

#define PICTURE(name) "\"observation.images." name "\": {\"type\": \"VISUAL\", \"shape\": [3, 224, 224]}"
#define PICTURES PICTURE("base_0_rgb") ", " PICTURE("left_wrist_0_rgb") ", " PICTURE("right_wrist_0_rgb")
#define STATE "\"observation.state\": {\"type\": \"STATE\", \"shape\": [32]}"
#define ACTION "\"action\": {\"type\": \"ACTION\", \"shape\": [32]}"
#define NORM_MAP "{\"VISUAL\": \"IDENTITY\", \"STATE\": \"%s\", \"ACTION\": \"%s\"}"
#define RENAME                                                                                               \
    "    {\"registry_name\": \"rename_observations_processor\", \"config\": {\"rename_map\": {}}},\n"
#define BATCH "    {\"registry_name\": \"to_batch_processor\", \"config\": {}},\n"
#define NEW_LINE "    {\"registry_name\": \"pi0_new_line_processor\", \"config\": {}},\n"
#define STATE_TEXT                                                                                           \
    "    {\"registry_name\": \"pi05_prepare_state_tokenizer_processor_step\", \"config\": {}},\n"
#define DEVICE                                                                                               \
    "    {\"registry_name\": \"device_processor\", \"config\": {\"device\": \"cpu\", \"float_dtype\": null}}"
#define RELATIVE                                                                                             \
    "    {\"registry_name\": \"relative_actions_processor\", "                                               \
    "\"config\": {\"enabled\": false, \"exclude_joints\": [\"gripper\"], \"action_names\": null}},\n"
#define TOKENIZE(length)                                                                                     \
    "    {\"registry_name\": \"tokenizer_processor\", \"config\": {\"max_length\": " length                  \
    ", \"task_key\": \"task\", "                                                                             \
    "\"padding_side\": \"right\", \"padding\": \"max_length\", \"truncation\": true, "                       \
    "\"tokenizer_name\": \"google/paligemma-3b-pt-224\"}},\n"
#define NORMALIZE(name, features, file)                                                                      \
    "    {\"registry_name\": \"" name "\", \"config\": {\"eps\": 1e-08, \"features\": {" features "}, "      \
    "\"norm_map\": " NORM_MAP "}, \"state_file\": \"" file "\"}"
#define ABSOLUTE                                                                                             \
    "    {\"registry_name\": \"absolute_actions_processor\", \"config\": {\"enabled\": false}},\n"
#define BEFORE(steps) "{\n  \"name\": \"policy_preprocessor\",\n  \"steps\": [\n" steps "\n  ]\n}\n"

#define AFTER_STATE "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
#define PI0_STATE "policy_preprocessor_step_6_normalizer_processor.safetensors"
#define PI05_STATE "policy_preprocessor_step_3_normalizer_processor.safetensors"

/* LeRobot's processors: [0] leaves the state out of the prompt, [1] normalises it and writes it into the
 * prompt. */
static const struct {
    const char *state_file, *text;
} before[] = {
    {PI0_STATE, BEFORE(RENAME BATCH NEW_LINE TOKENIZE("48") DEVICE ",\n" RELATIVE
                           NORMALIZE("normalizer_processor", PICTURES ", " STATE ", " ACTION, PI0_STATE))},
    {PI05_STATE, BEFORE(RENAME BATCH RELATIVE
                            NORMALIZE("normalizer_processor", PICTURES ", " STATE ", " ACTION, PI05_STATE)
                                ",\n" STATE_TEXT TOKENIZE("200") DEVICE)},
};

static const char after[] = "{\n  \"name\": \"policy_postprocessor\",\n  \"steps\": [\n"
    NORMALIZE("unnormalizer_processor", ACTION, AFTER_STATE) ",\n" ABSOLUTE DEVICE "\n  ]\n}\n";

static const char lerobot_config[] =
    "{\n  \"type\": \"%s\",\n  \"n_obs_steps\": 1,\n"
    "  \"input_features\": {" PICTURES ", " STATE "},\n  \"output_features\": {" ACTION
    "},\n  \"device\": \"cpu\",\n"
    "  \"paligemma_variant\": \"gemma_2b\",\n  \"action_expert_variant\": \"gemma_300m\",\n"
    "  \"dtype\": \"bfloat16\",\n"
    "  \"chunk_size\": %d,\n  \"n_action_steps\": %d,\n  \"max_state_dim\": 32,\n  \"max_action_dim\": 32,\n"
    "  \"num_inference_steps\": 10,\n  \"min_period\": 0.004,\n  \"max_period\": 4.0,\n"
    "  \"use_relative_actions\": false,\n  \"relative_exclude_joints\": [\"gripper\"],\n"
    "  \"action_feature_names\": null,\n"
    "  \"rtc_config\": null,\n%s  \"image_resolution\": [224, 224],\n  \"empty_cameras\": 0,\n"
    "  \"normalization_mapping\": " NORM_MAP ",\n  \"tokenizer_max_length\": %d\n}\n";

/* Statistics as LeRobot's state files hold them: float32, one tensor a feature and statistic. Minimum and
 * maximum lie half a quantile's distance beyond the quantiles. */
static openpi_status make_state_files(new_folder *m, openpi_variant variant, const norm_stats *state,
                                      const norm_stats *actions, openpi_error *error) {
    enum { STATISTICS = 6, TENSORS = 2 * STATISTICS };
    static const char *const names[TENSORS] = {
        "action.max", "action.mean", "action.min", "action.q01", "action.q99", "action.std",
        "observation.state.max", "observation.state.mean", "observation.state.min", "observation.state.q01",
        "observation.state.q99", "observation.state.std"};
    tensor list[TENSORS];
    const tensor *order[TENSORS];
    float data[TENSORS][NORM_DIMS];
    for (int t = 0; t < TENSORS; t++) {
        const norm_stats *s = t < STATISTICS ? actions : state;
        for (int i = 0; i < NORM_DIMS; i++) {
            double reach = 0.5 * (s->q99[i] - s->q01[i]);
            const double values[STATISTICS] = {s->q99[i] + reach, s->mean[i], s->q01[i] - reach,
                                               s->q01[i],         s->q99[i],  s->std[i]};
            data[t][i] = (float)values[t % STATISTICS];
        }
        list[t] = (tensor){
            .name = names[t], .type = DTYPE_F32, .rank = 1, .shape = {NORM_DIMS}, .count = NORM_DIMS};
        order[t] = &list[t];
    }
    char *header;
    size_t bytes;
    TRY(safetensors_header(order, TENSORS, "", NULL, &header, &bytes, error));
    char *file = realloc(header, bytes + sizeof data);
    if (!file) {
        free(header);
        return report_no_memory(error, bytes + sizeof data, "statistics");
    }
    memcpy(file + bytes, data, sizeof data);
    const char *name = before[variant_of(variant)->state_in_prompt].state_file;
    openpi_status status = new_folder_file(m, name, file, bytes + sizeof data, error);
    if (status == OPENPI_OK) status = new_folder_file(m, AFTER_STATE, file, bytes + sizeof data, error);
    free(file);
    return status;
}

static openpi_status make_lerobot(new_folder *m, const openpi_synthetic *synthetic, const norm_stats *state,
                                  const norm_stats *actions, openpi_error *error) {
    char text[4096], delay[64] = "";
    const variant_traits *traits = variant_of(synthetic->variant);
    const char *mode = traits->quantiles ? "QUANTILES" : "MEAN_STD";
    if (synthetic->rtc_max_delay)
        snprintf(delay, sizeof delay, "  \"rtc_training_max_delay\": %d,\n", synthetic->rtc_max_delay);
    snprintf(text, sizeof text, lerobot_config, traits->name, HORIZON, HORIZON, delay, mode, mode,
             traits->max_prompt);
    TRY(new_folder_text(m, "config.json", text, error));
    snprintf(text, sizeof text, before[traits->state_in_prompt].text, mode, mode);
    TRY(new_folder_text(m, "policy_preprocessor.json", text, error));
    snprintf(text, sizeof text, after, mode, mode);
    TRY(new_folder_text(m, "policy_postprocessor.json", text, error));
    return make_state_files(m, synthetic->variant, state, actions, error);
}

/* ---- all of it ---- */

typedef struct order {
    const openpi_synthetic *synthetic;
    uint64_t shard_bytes;
    pool *pool;
    openpi_progress progress;
    void *progress_user;
} order;

/* The small files first: a folder that cannot be written says so before the long work. */
static openpi_status make_all(new_folder *m, const order *o, openpi_error *error) {
    norm_stats state, actions;
    size_t bytes;
    const void *tokenizer = tokenizer_synthetic_bytes(&bytes);
    TRY(new_folder_begin(m, error));
    normalize_synthetic_stats(o->synthetic->seed, &state, &actions);
    TRY(o->synthetic->lerobot ? make_lerobot(m, o->synthetic, &state, &actions, error)
                              : make_openpi(m, &state, &actions, error));
    TRY(new_folder_file(m, "tokenizer.model", tokenizer, bytes, error));
    return synth_write_weights(o->synthetic, m->path, o->shard_bytes, o->pool, new_folder_note, m,
                               o->progress, o->progress_user, error);
}

openpi_status openpi_synthetic_write(const openpi_synthetic *given, const char *folder, uint64_t shard_bytes,
                                     int threads,
                                     openpi_progress progress, void *progress_user, openpi_error *error) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    if (!given || !folder || !*folder)
        return report(error, OPENPI_BAD_ARGUMENT, "%s, expected a synthetic model and a folder's path",
                      given ? "the folder's path is empty" : "the synthetic model is NULL");
    TRY(BOUNDARY_TAKE(openpi_synthetic, given, &synthetic, error));
    TRY(variant_check(synthetic.variant, "the synthetic model's variant", error));
    TRY(dims_check(&synthetic.dims, "the synthetic model", error));
    if (synthetic.outliers < OPENPI_OUTLIERS_NONE || synthetic.outliers > OPENPI_OUTLIERS_SPREAD)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the synthetic model's outliers is %d, expected one of OPENPI_OUTLIERS_…",
                      (int)synthetic.outliers);
    if (synthetic.rtc_max_delay && (!synthetic.lerobot || synthetic.rtc_max_delay < 0))
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the synthetic model's rtc_max_delay is %d, expected 0%s", synthetic.rtc_max_delay,
                      synthetic.lerobot ? " or more" : ": only LeRobot's config.json has such a setting");
    order o = {.synthetic = &synthetic, .shard_bytes = shard_bytes, .progress = progress,
               .progress_user = progress_user};
    new_folder m = {.path = folder};
    TRY(pool_create(threads, 0, &o.pool, error));
    openpi_status status = make_all(&m, &o, error);
    pool_close(o.pool);
    new_folder_end(&m, status != OPENPI_OK);
    return status;
}
