/* Opens a policy: finds its robot, variant, statistics and tokenizer. The caller's options come first, then
 * the checkpoint's files; where neither says, the error sentence tells what to give.
 *
 * Note: openpi's config.json does not say whether a model is π0 or π0.5; the tensors do (checkpoint.h). */
#include "policy/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/file.h"
#include "base/report.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/home.h"
#include "checkpoint/variant.h"
#include "policy/assets.h"
#include "policy/configs.h"
#include "policy/policy_source.h"

/* ---- statistics ----------------------------------------------------------------------------------- */

/* The file that norm_stats names, or that its folder holds; malloc. */
static openpi_status find_given(const char *given, char **path, openpi_error *error) {
    if (file_is_folder(given)) {
        TRY(policy_find_file(given, "norm_stats.json", path, error));
        return *path ? OPENPI_OK
                     : report(error, OPENPI_NOT_FOUND, "%s: the folder holds no norm_stats.json", given);
    }
    *path = strdup(given);
    return *path ? OPENPI_OK : report_no_memory(error, strlen(given) + 1, "a path");
}

/* The path of the statistics, malloc; NULL: they are synthetic and made in memory. */
static openpi_status find_statistics(const policy_source *from, const robot *robot, char **path,
                                     openpi_error *error) {
    const assets_choice choice = {from->folder, from->options.assets, robot};
    *path = NULL;
    if (from->options.norm_stats) return find_given(from->options.norm_stats, path, error);
    TRY(assets_find(&choice, path, error));
    if (*path || (from->options.synthetic && !choice.chosen)) return OPENPI_OK;
    return assets_missing(&choice, error);
}

/* Options of statistics, before any file is opened. */
static openpi_status check_statistics_options(const openpi_policy_options *options, openpi_error *error) {
    if (!options->assets) return OPENPI_OK;
    TRY(assets_check(options->assets, error));
    if (!options->norm_stats) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "both norm_stats \"%.128s\" and assets \"%s\" are given, expected one of them",
                  options->norm_stats, options->assets);
}

/* Statistics are given to a policy that has none or its own. `why` ends the sentence. */
static openpi_status refuse_statistics(const openpi_policy_options *options, const char *why,
                                       openpi_error *error) {
    const char *given = options->norm_stats ? options->norm_stats : options->assets;
    if (!given) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "%s is \"%.128s\", but %s",
                  options->norm_stats ? "norm_stats" : "assets", given, why);
}

static openpi_status check_statistics(const openpi_policy *policy, const char *name, openpi_error *error) {
    const char *robot = policy->robot.name;
    if (policy->mode == STATS_QUANTILE && (!policy->state.quantiles || !policy->actions.quantiles))
        return report(error, OPENPI_BAD_FILE, "%s: no q01 and q99 of %s, which %s needs", name,
                      policy->state.quantiles ? "actions" : "state",
                      policy->robot.normalization == ROBOT_NORM_AUTO ? "π0.5 (quantile normalisation)"
                                                                     : "quantile normalisation");
    if (policy->state.dims < policy->state_length)
        return report(error, OPENPI_BAD_FILE, "%s: statistics of a state of %d numbers, robot \"%s\" has %d",
                      name, policy->state.dims, robot, policy->state_length);
    if (policy->actions.dims < policy->action_dim)
        return report(error, OPENPI_BAD_FILE, "%s: statistics of %d action dimensions, robot \"%s\" has %d",
                      name, policy->actions.dims, robot, policy->action_dim);
    return OPENPI_OK;
}

static openpi_status open_statistics(const policy_source *from, openpi_policy *policy, openpi_error *error) {
    static const norm_mode modes[] = {[ROBOT_NORM_ZSCORE] = STATS_ZSCORE,
                                      [ROBOT_NORM_QUANTILE] = STATS_QUANTILE,
                                      [ROBOT_NORM_NONE] = STATS_NONE};
    const robot *robot = &policy->robot;
    char *path = NULL;
    policy->mode = robot->normalization != ROBOT_NORM_AUTO ? modes[robot->normalization]
                   : variant_of(policy->variant)->quantiles ? STATS_QUANTILE
                                                            : STATS_ZSCORE;
    if (policy->mode == STATS_NONE) {
        char why[ROBOT_KEY_BYTES + 64];
        snprintf(why, sizeof why, "robot \"%s\" works in normalised units and takes none", robot->name);
        return refuse_statistics(&from->options, why, error);
    }
    TRY(find_statistics(from, robot, &path, error));
    policy->statistics_path = path;
    policy->made_statistics = !path;
    if (path) TRY(normalize_read(path, &policy->state, &policy->actions, error));
    else normalize_synthetic_stats(from->options.synthetic->seed, &policy->state, &policy->actions);
    return check_statistics(policy, path ? path : "synthetic statistics", error);
}

/* ---- robot ---------------------------------------------------------------------------------------- */

/* A checkpoint that `openpi synth` wrote. */
static openpi_status is_synthetic(const policy_source *from, int *synthetic, openpi_error *error) {
    char *path = NULL;
    *synthetic = from->options.synthetic != NULL;
    if (*synthetic || !from->folder) return OPENPI_OK;
    TRY(policy_find_file(from->folder, "assets/synthetic/norm_stats.json", &path, error));
    *synthetic = path != NULL;
    free(path);
    return OPENPI_OK;
}

static openpi_status choose_robot(const policy_source *from, int lerobot_checkpoint, openpi_policy *policy,
                                  openpi_error *error) {
    const openpi_policy_options *options = &from->options;
    int synthetic;
    if (options->robot && options->config)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "both robot \"%.64s\" and config \"%.64s\" are given, expected one of them",
                      options->robot, options->config);
    if (options->config) return robot_from_config(options->config, &policy->robot, error);
    policy->lerobot = options->robot ? !strcmp(options->robot, "lerobot") : lerobot_checkpoint;
    if (policy->lerobot && !lerobot_checkpoint)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "robot is \"lerobot\", but %s is no LeRobot checkpoint (a folder whose config.json has "
                      "a \"type\")",
                      from->checkpoint ? from->checkpoint : "a synthetic model in memory");
    if (policy->lerobot) return OPENPI_OK;
    if (options->robot) return robot_open(options->robot, &policy->robot, error);
    TRY(is_synthetic(from, &synthetic, error));
    if (synthetic) return robot_open("none", &policy->robot, error);
    return report(error, OPENPI_BAD_ARGUMENT,
                  "%s does not say which robot it is for: give robot (aloha, aloha_sim, droid, "
                  "droid_jointpos, libero, none or a "
                  "robot's JSON file) "
                  "or config (openpi's name, such as pi05_droid)",
                  from->checkpoint);
}

static openpi_status check_variant(const policy_source *from, const openpi_policy *policy,
                                   openpi_error *error) {
    if (policy->lerobot || policy->robot.variant == ROBOT_VARIANT_ANY ||
        policy->robot.variant == (int)policy->variant)
        return OPENPI_OK;
    const char *config = from->options.config;
    const char *symbol = variant_of((openpi_variant)policy->robot.variant)->symbol;
    return report(error, OPENPI_BAD_ARGUMENT, "%s \"%s\" is for %s, but %s is a %s model",
                  config ? "config" : "robot", config ? config : policy->robot.name, symbol,
                  from->checkpoint ? from->checkpoint : "the synthetic checkpoint",
                  variant_of(policy->variant)->symbol);
}

/* ---- opening -------------------------------------------------------------------------------------- */

/* Statistics that are given are for a checkpoint that lacks those of its state or its actions. */
static openpi_status settle_statistics(const policy_source *from, const char *name, openpi_policy *policy,
                                       openpi_error *error) {
    lerobot *pipeline = &policy->pipeline;
    norm_stats state, actions;
    char why[400];
    int taken = 0;
    if (from->options.norm_stats) {
        TRY(find_given(from->options.norm_stats, &policy->statistics_path, error));
        TRY(normalize_read(policy->statistics_path, &state, &actions, error));
        TRY(lerobot_take_statistics(pipeline, &state, &actions, policy->statistics_path, &taken, error));
    }
    if (taken) return OPENPI_OK;
    if (pipeline->state_statistics.file[0] || pipeline->action_statistics.file[0] || from->options.assets)
        snprintf(why, sizeof why, "%.256s has its own statistics: those of LeRobot's processors", name);
    else
        snprintf(why, sizeof why, "%.128s takes none: of the state, %.64s; of the actions, %.64s", name,
                 pipeline->state_statistics.why, pipeline->action_statistics.why);
    return refuse_statistics(&from->options, why, error);
}

static openpi_status settle_lerobot(const policy_source *from, openpi_policy *policy, openpi_error *error) {
    const openpi_policy_options *options = &from->options;
    const char *name = from->checkpoint ? from->checkpoint : "the synthetic checkpoint";
    if (from->folder) TRY(lerobot_open(from->folder, &policy->pipeline, &policy->notes, error));
    else lerobot_synthetic(options->synthetic, &policy->pipeline);
    TRY(settle_statistics(from, name, policy, error));
    lerobot_tell(&policy->pipeline, name, &policy->notes);
    policy->variant = policy->pipeline.variant;
    policy->state_in_prompt = policy->pipeline.state_in_prompt;
    if (options->prompt_state != OPENPI_PROMPT_STATE_DEFAULT &&
        (options->prompt_state == OPENPI_PROMPT_STATE_ON) != policy->state_in_prompt)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "prompt_state cannot be changed: the processors of %s write %s into the prompt", name,
                      policy->state_in_prompt ? "the state" : "no state");
    policy->state_length = policy->pipeline.state_length;
    policy->action_dim = policy->pipeline.action_dim;
    policy->max_prompt = policy->pipeline.max_prompt;
    policy->horizon = policy->pipeline.horizon;
    return OPENPI_OK;
}

/* Synthetic weights state no horizon: the robot's programs expect that of openpi's config for it (DROID's
 * assert 10 rows). */
static openpi_status settle_horizon(const policy_source *from, openpi_policy *policy, openpi_error *error) {
    robot like;
    int synthetic;
    policy->horizon = policy->robot.horizon;
    if (policy->horizon) return OPENPI_OK;
    TRY(is_synthetic(from, &synthetic, error));
    const char *config = synthetic ? config_served(policy->robot.name, policy->variant) : NULL;
    if (!config) return OPENPI_OK;
    TRY(robot_from_config(config, &like, error));
    policy->horizon = like.horizon;
    return OPENPI_OK;
}

static openpi_status settle_robot(const policy_source *from, openpi_policy *policy, openpi_error *error) {
    const robot *robot = &policy->robot;
    const variant_traits *traits = variant_of(policy->variant);
    openpi_prompt_state on = from->options.prompt_state;
    if (on == OPENPI_PROMPT_STATE_DEFAULT) on = robot->prompt_state;
    policy->state_in_prompt =
        on == OPENPI_PROMPT_STATE_DEFAULT ? traits->state_in_prompt : on == OPENPI_PROMPT_STATE_ON;
    policy->state_length = robot->state_length;
    policy->action_dim = robot->action_dim;
    policy->max_prompt = robot->max_prompt ? robot->max_prompt : traits->max_prompt;
    TRY(settle_horizon(from, policy, error));
    int states = robot_limit_count(robot->state_limits, OPENPI_ACTION_DIM),
        actions = robot_limit_count(robot->action_limits, robot->action_dim);
    if (states || actions)
        notes_add(&policy->notes, 0,
                  "robot \"%s\" has limits for %d of its %d actions and %s of the state: beyond them the "
                  "limit is taken, as \"limits\" of its file says",
                  robot->name, actions, robot->action_dim, states ? "numbers" : "no number");
    if (robot->limits.count) {
        static const char *const then[] = {"becomes the nearest one within them",
                                           "and the rest of its chunk become the last one within them",
                                           "is sent nowhere, nor is its chunk"};
        notes_add(&policy->notes, 0,
                  "robot \"%s\" has %d limits for the actions that it is sent: an action beyond them %s, as "
                  "\"limits\" of its file says",
                  robot->name, robot->limits.count, then[robot->limits.on_violation]);
    }
    return open_statistics(from, policy, error);
}

/* What the robot or config says about a model, and the checkpoint does not. */
static void tell_brief(const policy_source *from, openpi_policy *policy, const checkpoint_brief *brief) {
    const robot *robot = &policy->robot;
    const char *name = from->options.config ? from->options.config : robot->name;
    const struct {
        const char *stack;
        int trained, there;
    } ranks[] = {{"the language model", robot->lora_vlm, brief->lora_vlm},
                 {"the action expert", robot->lora_expert, brief->lora_expert}};
    char others[160];
    for (int i = 0; i < 2 && !from->options.without_lora && !from->options.adapter; i++) {
        if (ranks[i].trained == ranks[i].there || (!brief->jax && !ranks[i].trained)) continue;
        notes_add(&policy->notes, brief->jax,
                  "\"%.64s\" has LoRA of rank %d in %s (0: none), but %.160s has rank %d: %s", name,
                  ranks[i].trained, ranks[i].stack, from->checkpoint, ranks[i].there,
                  brief->jax ? "what the checkpoint holds is run; give the config that it was trained with"
                             : "it must be merged into the weights, which cannot be seen in them");
    }
    if (policy->horizon || brief->horizon || from->options.horizon) return;
    int differ = config_horizons(robot->name, others, sizeof others);
    notes_add(&policy->notes, differ,
              "%.160s says no horizon, and robot \"%.64s\" does not: unless horizon is given, chunks have "
              "openpi's default of 50 steps%s%s: give horizon or config",
              from->checkpoint, robot->name, differ ? "; configs of this robot have " : "", others);
}

/* A model with fewer action dimensions than 32 has as many of the state. A robot that takes all of them takes
 * the model's. */
static openpi_status check_dims(const policy_source *from, openpi_policy *policy, int dims,
                                openpi_error *error) {
    int state = variant_of(policy->variant)->state_token ? policy->state_length : 0;
    if (!policy->lerobot && !strcmp(policy->robot.name, "none")) policy->action_dim = dims;
    if (policy->action_dim <= dims && state <= dims) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "robot \"%s\" has %d %s, but %s is a model of %d action dimensions",
                  policy->lerobot ? "lerobot" : policy->robot.name,
                  policy->action_dim > dims ? policy->action_dim : state,
                  policy->action_dim > dims ? "actions" : "numbers of state", from->checkpoint, dims);
}

static openpi_status open_policy(const policy_source *from, openpi_policy *policy, openpi_error *error) {
    const openpi_policy_options *options = &from->options;
    int lerobot_checkpoint = !from->folder && options->synthetic->lerobot;
    checkpoint_brief brief = {.variant = policy->variant};
    if (options->synthetic) TRY(variant_check(options->synthetic->variant, "the synthetic variant", error));
    if (options->prompt_state < OPENPI_PROMPT_STATE_DEFAULT || options->prompt_state > OPENPI_PROMPT_STATE_ON)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "prompt_state is %d, expected OPENPI_PROMPT_STATE_OFF or OPENPI_PROMPT_STATE_ON",
                      (int)options->prompt_state);
    TRY(check_statistics_options(options, error));
    if (from->folder) TRY(lerobot_detect(from->folder, &lerobot_checkpoint, error));
    policy->lerobot_checkpoint = lerobot_checkpoint;
    TRY(choose_robot(from, lerobot_checkpoint, policy, error));
    if (!policy->lerobot && options->synthetic) policy->variant = options->synthetic->variant;
    if (!policy->lerobot && !options->synthetic)
        TRY(checkpoint_read_brief(from->place, &brief, error));
    if (!policy->lerobot && !options->synthetic) policy->variant = brief.variant;
    if (policy->lerobot) TRY(settle_lerobot(from, policy, error));
    if (options->synthetic && options->synthetic->variant != policy->variant)
        return report(error, OPENPI_BAD_ARGUMENT, "%s is a %s model, the synthetic one is %s",
                      from->checkpoint, variant_of(policy->variant)->symbol,
                      variant_of(options->synthetic->variant)->symbol);
    TRY(check_variant(from, policy, error));
    if (!policy->lerobot) TRY(settle_robot(from, policy, error));
    policy->model_dims = brief.action_dim ? brief.action_dim : OPENPI_ACTION_DIM;
    if (brief.action_dim) TRY(check_dims(from, policy, brief.action_dim, error));
    if (!policy->lerobot && !options->synthetic) tell_brief(from, policy, &brief);
    if (options->max_prompt < 0 || options->max_prompt > ROBOT_MAX_PROMPT)
        return report(error, OPENPI_BAD_ARGUMENT, "max_prompt is %d, expected 1 to %d tokens",
                      options->max_prompt, ROBOT_MAX_PROMPT);
    if (options->max_prompt) policy->max_prompt = options->max_prompt;
    return policy_open_tokenizer(from, policy, error);
}

static openpi_status find_folder(const char *checkpoint, char **folder, openpi_error *error) {
    *folder = NULL;
    if (!checkpoint) return OPENPI_OK;
    if (!*checkpoint)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "the checkpoint's path is empty, expected a folder or a .safetensors file");
    if (!file_exists(checkpoint))
        return report(error, OPENPI_NOT_FOUND, "%s: no such checkpoint", checkpoint);
    return home_find(checkpoint, folder, error);
}

/* The folders of the files beside the weights: an adapter of LeRobot's has its own processors and statistics,
 * and tokenizers that it lacks are the base's. */
static openpi_status find_folders(policy_source *from, const model_place *place, openpi_error *error) {
    int lerobot = 0;
    from->checkpoint = place->base;
    from->place = place;
    if (place->adapter) TRY(lerobot_detect(place->adapter, &lerobot, error));
    TRY(find_folder(place->base, lerobot ? &from->second : &from->folder, error));
    if (!lerobot) return OPENPI_OK;
    from->folder = strdup(place->adapter);
    return from->folder ? OPENPI_OK : report_no_memory(error, strlen(place->adapter) + 1, "a path");
}

static openpi_status open_from(policy_source *from, openpi_policy **out, openpi_error *error) {
    const openpi_policy_options *options = &from->options;
    model_place place = {0};
    openpi_policy *opened = calloc(1, sizeof *opened);
    openpi_status status = opened ? OPENPI_OK : report_no_memory(error, sizeof *opened, "a policy");
    if (status == OPENPI_OK && from->checkpoint)
        status = model_place_find(from->checkpoint, options->adapter, options->without_lora, &place, error);
    if (status == OPENPI_OK && from->checkpoint) status = find_folders(from, &place, error);
    if (status == OPENPI_OK) status = open_policy(from, opened, error);
    model_place_free(&place);
    free(from->folder);
    free(from->second);
    if (status == OPENPI_OK) leftover_note(opened);
    if (status == OPENPI_OK) *out = opened;
    else openpi_policy_close(opened);
    return status;
}

openpi_status openpi_policy_open(const char *checkpoint, const openpi_policy_options *options,
                                 openpi_policy **policy, openpi_error *error) {
    policy_source from = {.checkpoint = checkpoint};
    if (!policy)
        return report(error, OPENPI_BAD_ARGUMENT, "policy is NULL, expected where to put the policy");
    TRY(BOUNDARY_TAKE(openpi_policy_options, options, &from.options, error));
    if (from.options.synthetic) {
        TRY(BOUNDARY_TAKE(openpi_synthetic, from.options.synthetic, &from.synthetic, error));
        from.options.synthetic = &from.synthetic;
    }
    if (!checkpoint && !from.options.synthetic)
        return report(error, OPENPI_BAD_ARGUMENT, "neither a checkpoint nor a synthetic one is given");
    if (from.options.without_lora != 0 && from.options.without_lora != 1)
        return report(error, OPENPI_BAD_ARGUMENT, "policy options: without_lora is %d, expected 0 or 1",
                      from.options.without_lora);
    if (from.options.missing_chunks_are_zero != 0 && from.options.missing_chunks_are_zero != 1)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "policy options: missing_chunks_are_zero is %d, expected 0 or 1",
                      from.options.missing_chunks_are_zero);
    if (from.options.horizon < 0 || from.options.horizon > OPENPI_MAX_HORIZON)
        return report(error, OPENPI_BAD_ARGUMENT, "policy options: horizon is %d, expected 0 to %d",
                      from.options.horizon, OPENPI_MAX_HORIZON);
    if (from.options.reserved)
        return report(error, OPENPI_BAD_ARGUMENT, "policy options: reserved is %d, expected 0",
                      from.options.reserved);
    return open_from(&from, policy, error);
}

openpi_status openpi_policy_default_prompt(openpi_policy *policy, const char *prompt, openpi_error *error) {
    if (!policy || !prompt)
        return report(error, OPENPI_BAD_ARGUMENT, "%s is NULL", policy ? "prompt" : "policy");
    size_t bytes = strlen(prompt);
    if (bytes >= ROBOT_PROMPT_BYTES)
        return report(error, OPENPI_BAD_ARGUMENT, "the default prompt has %zu bytes, expected at most %d",
                      bytes, ROBOT_PROMPT_BYTES - 1);
    memcpy(policy->robot.prompt, prompt, bytes + 1);
    policy->robot.has_prompt = policy->given_prompt = 1;
    return OPENPI_OK;
}

void openpi_policy_close(openpi_policy *policy) {
    if (!policy) return;
    tokenizer_close(policy->tokenizer);
    free(policy->tokenizer_path);
    free(policy->statistics_path);
    free(policy);
}

const char *openpi_policy_note(const openpi_policy *policy, int index, int *warning) {
    return policy ? notes_get(&policy->notes, index, warning) : NULL;
}

const char *openpi_policy_action_name(const openpi_policy *policy, int action) {
    if (!policy || action < 0 || action >= policy->action_dim) return NULL;
    return policy->lerobot ? policy->pipeline.action_names[action] : policy->robot.action_names[action];
}

const char *openpi_policy_action_unit(const openpi_policy *policy, int action) {
    if (!policy || action < 0 || action >= policy->action_dim) return NULL;
    return policy->lerobot ? "" : policy->robot.units[action];
}

int openpi_policy_action_state(const openpi_policy *policy, int action) {
    if (!policy || action < 0 || action >= policy->action_dim) return -1;
    return policy->lerobot ? lerobot_start_state(&policy->pipeline, action)
                           : robot_start_state(&policy->robot, action);
}

openpi_action_kind openpi_policy_action_kind(const openpi_policy *policy, int action) {
    if (!policy || action < 0 || action >= policy->action_dim) return OPENPI_ACTION_UNKNOWN;
    if (!policy->lerobot) return robot_kind(&policy->robot, action);
    return lerobot_start_state(&policy->pipeline, action) < 0 ? OPENPI_ACTION_UNKNOWN
                                                              : OPENPI_ACTION_POSITION;
}

const char *openpi_policy_state_key(const openpi_policy *policy, int part, int *length) {
    int count = !policy ? 0 : policy->lerobot ? 1 : policy->robot.part_count;
    if (part < 0 || part >= count) return NULL;
    if (length) *length = policy->lerobot ? policy->pipeline.state_length : policy->robot.parts[part].length;
    return policy->lerobot ? "observation.state" : policy->robot.parts[part].key;
}

double openpi_policy_rate(const openpi_policy *policy) {
    return policy && !policy->lerobot ? policy->robot.rate_hz : 0;
}

const double *openpi_policy_reset_pose(const openpi_policy *policy, int *count) {
    int numbers = policy && !policy->lerobot ? policy->robot.reset_pose_count : 0;
    if (count) *count = numbers;
    return numbers ? policy->robot.reset_pose : NULL;
}

/* A path that is too long loses its beginning, because its end identifies it better. */
static void copy_end(const char *path, size_t bytes, char *out) {
    size_t length = strlen(path), most = bytes - 1;
    snprintf(out, bytes, "%s", length > most ? path + length - most : path);
}

static void describe_files(const openpi_policy *policy, openpi_policy_info *info) {
    const char *statistics = policy->statistics_path    ? policy->statistics_path
                             : policy->made_statistics ? "embedded"
                                                       : "";
    copy_end(statistics, sizeof info->statistics, info->statistics);
    copy_end(policy->tokenizer_path ? policy->tokenizer_path : "embedded", sizeof info->tokenizer,
             info->tokenizer);
    snprintf(info->tokenizer_kind, sizeof info->tokenizer_kind, "%s",
             tokenizer_is_hugging_face(policy->tokenizer) ? "tokenizer.json" : "sentencepiece");
}

openpi_status openpi_policy_get_info(const openpi_policy *policy, openpi_policy_info *info,
                                     openpi_error *error) {
    if (!policy || !info)
        return report(error, OPENPI_BAD_ARGUMENT, "policy info: %s is NULL", policy ? "info" : "the policy");
    TRY(BOUNDARY_CHECK(openpi_policy_info, info, error));
    openpi_policy_info own = {.state_length = policy->state_length,
                              .action_dim = policy->action_dim,
                              .horizon = policy->horizon,
                              .max_prompt = policy->max_prompt,
                              .prompt_state = policy->state_in_prompt,
                              .lerobot = policy->lerobot};
    snprintf(own.robot, sizeof own.robot, "%s", policy->lerobot ? "lerobot" : policy->robot.name);
    for (int slot = 0; policy->lerobot && slot < policy->pipeline.camera_count; slot++)
        if (!policy->pipeline.empty[slot])
            snprintf(own.cameras[slot], sizeof own.cameras[slot], "%s",
                     lerobot_camera_name(&policy->pipeline, slot));
    for (int c = 0; !policy->lerobot && c < policy->robot.camera_count; c++) {
        const robot_camera *camera = &policy->robot.cameras[c];
        if (camera->slot >= 0 && !own.cameras[camera->slot][0])
            memcpy(own.cameras[camera->slot], camera->key, sizeof own.cameras[camera->slot]);
    }
    if (!policy->lerobot) own.limits = policy->robot.limits.count;
    if (own.limits) own.on_violation = (openpi_on_violation)policy->robot.limits.on_violation;
    describe_files(policy, &own);
    BOUNDARY_GIVE(openpi_policy_info, &own, info);
    return OPENPI_OK;
}
