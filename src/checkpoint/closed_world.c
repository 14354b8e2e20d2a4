#include "checkpoint/closed_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"

#define MODES "\"IDENTITY\", \"MEAN_STD\", \"MIN_MAX\", \"QUANTILES\", \"QUANTILE10\""
#define OFF "false, null, [], {}"
#define MEMORY "a memory of earlier observations is not supported"
#define TRAINING "of the training"
#define HUB "about the upload to the Hub"
#define LAYOUT "padding has no position and is never attended"

/* LeRobot 0.1 to 0.6 (configuration_pi0.py, configuration_pi05.py, policies.py, configuration_rtc.py, the
 * processors' get_config) and peft 0.18 (LoraConfig). */
static const closed_key keys[] = {
    {"config.json", "type", KEY_USED, NULL, "π0 or π0.5"},
    {"config.json", "input_features", KEY_USED, "feature", "cameras and the state's length"},
    {"config.json", "output_features", KEY_USED, "feature", "the actions' length"},
    {"config.json", "chunk_size", KEY_USED, NULL, "actions of a chunk"},
    {"config.json", "num_inference_steps", KEY_USED, NULL, "denoising steps"},
    {"config.json", "num_steps", KEY_USED, NULL, "denoising steps, in LeRobot 0.1 to 0.3"},
    {"config.json", "empty_cameras", KEY_USED, NULL, "cameras that are never there"},
    {"config.json", "tokenizer_max_length", KEY_USED, NULL, "tokens of a prompt, for the tokenizer's step"},
    {"config.json", "rtc_config", KEY_USED, "rtc_config", "real-time chunking where a call does not say it"},
    {"config.json", "rtc_training_max_delay", KEY_USED, NULL, "the largest delay that was trained"},
    {"config.json", "use_peft", KEY_USED, NULL, "the weights need an adapter"},
    {"config.json", "pretrained_path", KEY_USED, NULL, "not null: a fine-tune, which needs statistics"},
    {"config.json", "normalization_mapping", KEY_USED, "normalization_mapping",
     "for the training; the processors' norm_map decides, a difference is told"},
    {"config.json", "use_relative_actions", KEY_USED, NULL,
     "for the training; the processors' steps decide, a difference is told"},
    {"config.json", "relative_exclude_joints", KEY_HARMLESS, NULL,
     "for the training; relative_actions_processor has the joints"},
    {"config.json", "action_feature_names", KEY_USED, NULL, "the actions' names"},
    {"config.json", "max_state_dim", KEY_ONLY, "32", "the model's state has 32 numbers"},
    {"config.json", "max_action_dim", KEY_USED, NULL, "must be the tensors'"},
    {"config.json", "n_obs_steps", KEY_ONLY, "1", "one observation makes a chunk"},
    {"config.json", "min_period", KEY_ONLY, "0.004", "the times' embedding is fixed"},
    {"config.json", "max_period", KEY_ONLY, "4", "the times' embedding is fixed"},
    {"config.json", "image_resolution", KEY_ONLY, "[224, 224]", "the vision tower takes 224 by 224 pixels"},
    {"config.json", "use_visual_memory", KEY_ONLY, "false, null", MEMORY},
    {"config.json", "use_proprioceptive_memory", KEY_ONLY, "false, null", MEMORY},
    {"config.json", "rtc_training_schedule", KEY_ONLY, "\"prefix\", null",
     "another noise schedule of the training needs another denoising"},
    {"config.json", "adapt_to_pi_aloha", KEY_ONLY, "false, null",
     "LeRobot 0.1 to 0.3: turned joints' signs and scaled grippers of ALOHA, which LeRobot no longer does"},
    {"config.json", "use_delta_joint_actions_aloha", KEY_ONLY, "false, null",
     "LeRobot 0.1 to 0.3: actions relative to the state, which no processor's step undoes"},
    {"config.json", "resize_imgs_with_padding", KEY_ONLY, "[224, 224]",
     "LeRobot 0.1 to 0.3: the vision tower takes 224 by 224 pixels"},
    {"config.json", "proj_width", KEY_ONLY, "1024", "LeRobot 0.1 to 0.3: the action expert's width"},
    {"config.json", "paligemma_variant", KEY_ONLY, "\"gemma_2b\", \"gemma_300m\"",
     "the tensors have the sizes; other names may mean other layers"},
    {"config.json", "action_expert_variant", KEY_ONLY, "\"gemma_300m\", \"gemma_2b\"",
     "the tensors have the sizes; other names may mean other layers"},
    {"config.json", "dtype", KEY_ONLY, "\"float32\", \"bfloat16\", null",
     "here the option dtype says what is computed in"},
    {"config.json", "attention_implementation", KEY_ONLY, "\"eager\", \"fa2\", \"flex\", \"sdpa\", null",
     "LeRobot 0.1 to 0.3: ways to compute the same attention"},
    {"config.json", "n_action_steps", KEY_HARMLESS, NULL,
     "how much of a chunk is executed, which the caller decides"},
    {"config.json", "use_cache", KEY_HARMLESS, NULL, "speed alone"},
    {"config.json", "compile_model", KEY_HARMLESS, NULL, "speed alone"},
    {"config.json", "compile_mode", KEY_HARMLESS, NULL, "speed alone"},
    {"config.json", "device", KEY_HARMLESS, NULL, "here the option device says where it runs"},
    {"config.json", "use_amp", KEY_HARMLESS, NULL, "here the option dtype says what is computed in"},
    {"config.json", "memory_frames", KEY_HARMLESS, NULL, "of a memory, which must be off"},
    {"config.json", "memory_stride", KEY_HARMLESS, NULL, "of a memory, which must be off"},
    {"config.json", "memory_temporal_attention_every", KEY_HARMLESS, NULL, "of a memory, which must be off"},
    {"config.json", "staircase_warmup_prob", KEY_HARMLESS, NULL, "of a noise schedule that is refused"},
    {"config.json", "staircase_time_jitter", KEY_HARMLESS, NULL, "of a noise schedule that is refused"},
    {"config.json", "time_sampling_beta_alpha", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "time_sampling_beta_beta", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "time_sampling_scale", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "time_sampling_offset", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "gradient_checkpointing", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "freeze_vision_encoder", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "train_expert_only", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "train_state_proj", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "optimizer_lr", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "optimizer_betas", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "optimizer_eps", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "optimizer_weight_decay", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "optimizer_grad_clip_norm", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "optimizer_foreach", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "optimizer_fused", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "scheduler_warmup_steps", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "scheduler_decay_steps", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "scheduler_decay_lr", KEY_HARMLESS, NULL, TRAINING},
    {"config.json", "push_to_hub", KEY_HARMLESS, NULL, HUB},
    {"config.json", "repo_id", KEY_HARMLESS, NULL, HUB},
    {"config.json", "private", KEY_HARMLESS, NULL, HUB},
    {"config.json", "tags", KEY_HARMLESS, NULL, HUB},
    {"config.json", "license", KEY_HARMLESS, NULL, HUB},
    {"config.json", "pretrained_revision", KEY_HARMLESS, NULL, "where the training began"},

    {"feature", "type", KEY_ONLY,
     "\"STATE\", \"VISUAL\", \"ACTION\", \"ENV\", \"REWARD\", \"LANGUAGE\"", "kinds of features"},
    {"feature", "shape", KEY_USED, NULL, "lengths of state and actions"},

    {"normalization_mapping", "STATE", KEY_ONLY, MODES, "modes that are computed"},
    {"normalization_mapping", "ACTION", KEY_ONLY, MODES, "modes that are computed"},
    {"normalization_mapping", "VISUAL", KEY_ONLY, MODES, "modes of LeRobot; pictures are never normalised"},
    {"normalization_mapping", "ENV", KEY_ONLY, MODES, "modes of LeRobot; the model reads no such feature"},
    {"normalization_mapping", "REWARD", KEY_ONLY, MODES, "modes of LeRobot; the model reads no such feature"},
    {"normalization_mapping", "LANGUAGE", KEY_ONLY, MODES, "modes of LeRobot; the model reads no such feature"},

    {"rtc_config", "enabled", KEY_USED, NULL, "false: the other keys set no defaults"},
    {"rtc_config", "mode", KEY_ONLY, "\"guided\", \"trained\", null", "modes that are computed"},
    {"rtc_config", "prefix_attention_schedule", KEY_ONLY,
     "\"ZEROS\", \"ONES\", \"LINEAR\", \"EXP\", null", "schedules that are computed"},
    {"rtc_config", "max_guidance_weight", KEY_USED, NULL, "the default of a call's max_weight"},
    {"rtc_config", "execution_horizon", KEY_USED, NULL, "the default of a call's horizon"},
    {"rtc_config", "debug", KEY_HARMLESS, NULL, "records, changes nothing"},
    {"rtc_config", "debug_maxlen", KEY_HARMLESS, NULL, "records, changes nothing"},

    {"processor", "name", KEY_HARMLESS, NULL, "a title"},
    {"processor", "steps", KEY_USED, NULL, "run in their order"},

    {"step", "registry_name", KEY_USED, NULL, "which step it is"},
    {"step", "class", KEY_HARMLESS, NULL, "LeRobot takes it where there is no registry_name, which is refused"},
    {"step", "config", KEY_USED, NULL, "the step's own keys, below"},
    {"step", "state_file", KEY_USED, NULL, "statistics of a normalising step"},
    {"step", "artifacts", KEY_USED, "artifacts", "the tokenizer's folder in the checkpoint"},
    {"artifacts", "tokenizer_name", KEY_USED, NULL, "the tokenizer's folder in the checkpoint"},

    {"rename_observations_processor", "rename_map", KEY_USED, NULL, "names of cameras"},
    {"device_processor", "device", KEY_HARMLESS, NULL, "here the option device says where it runs"},
    {"device_processor", "float_dtype", KEY_ONLY, "null, \"float32\", \"float\"",
     "the processors compute in float32"},
    {"relative_actions_processor", "enabled", KEY_USED, NULL,
     "for the training; absolute_actions_processor must say the same, else a warning"},
    {"relative_actions_processor", "exclude_joints", KEY_USED, NULL, "joints that stay absolute"},
    {"relative_actions_processor", "action_names", KEY_USED, NULL, "the joints' names"},
    {"absolute_actions_processor", "enabled", KEY_USED, NULL, "adds the state to the actions"},
    {"normalizer_processor", "eps", KEY_USED, NULL, "in place of a span of 0, and beside a deviation"},
    {"normalizer_processor", "features", KEY_USED, "feature", "which observations are normalised"},
    {"normalizer_processor", "norm_map", KEY_USED, "normalization_mapping", "the mode of each kind"},
    {"normalizer_processor", "normalize_observation_keys", KEY_USED, NULL, "the only keys that are normalised"},
    {"unnormalizer_processor", "eps", KEY_USED, NULL, "in place of a span of 0"},
    {"unnormalizer_processor", "features", KEY_HARMLESS, NULL, "LeRobot unnormalises \"action\" in any case"},
    {"unnormalizer_processor", "norm_map", KEY_USED, "normalization_mapping", "the mode of each kind"},
    {"unnormalizer_processor", "normalize_observation_keys", KEY_HARMLESS, NULL, "about observations"},
    {"pi05_prepare_state_tokenizer_processor_step", "max_state_dim", KEY_ONLY, "32",
     "LeRobot 0.4 padded the prompt's state to it, later versions do not"},
    {"pi05_prepare_state_tokenizer_processor_step", "task_key", KEY_ONLY, "\"task\"",
     "the prompt is the request's only text"},
    {"pi05_prepare_state_tokenizer_processor_step", "include_state_in_prompt", KEY_ONLY, "true",
     "a prompt of this format without the state is not supported"},
    {"tokenizer_processor", "max_length", KEY_USED, NULL, "tokens of a prompt"},
    {"tokenizer_processor", "tokenizer_name", KEY_USED, NULL,
     "PaliGemma's, or that of a tokenizer in the checkpoint"},
    {"tokenizer_processor", "task_key", KEY_ONLY, "\"task\"", "the prompt is the request's only text"},
    {"tokenizer_processor", "truncation", KEY_ONLY, "true", "longer prompts are cut"},
    {"tokenizer_processor", "padding_side", KEY_ONLY, "\"right\", \"left\", null", LAYOUT},
    {"tokenizer_processor", "padding", KEY_ONLY, "\"max_length\", \"longest\", true, false, null", LAYOUT},

    {"adapter_config.json", "peft_type", KEY_ONLY, "\"LORA\"", "other adapters change weights in other ways"},
    {"adapter_config.json", "base_model_name_or_path", KEY_USED, NULL, "where the base is"},
    {"adapter_config.json", "r", KEY_USED, NULL, "the rank"},
    {"adapter_config.json", "lora_alpha", KEY_USED, NULL, "the factor's numerator"},
    {"adapter_config.json", "rank_pattern", KEY_USED, NULL, "ranks of single modules"},
    {"adapter_config.json", "alpha_pattern", KEY_USED, NULL, "factors of single modules"},
    {"adapter_config.json", "use_rslora", KEY_USED, NULL, "the factor's denominator is √r"},
    {"adapter_config.json", "bias", KEY_ONLY, "\"none\", \"all\", \"lora_only\", null",
     "an adapter without biases; one that has some is refused"},
    {"adapter_config.json", "modules_to_save", KEY_USED, NULL, "modules that are replaced"},
    {"adapter_config.json", "init_lora_weights", KEY_USED, NULL,
     "those that change the base are refused: pissa, olora, corda, loftq, lora_ga"},
    {"adapter_config.json", "use_dora", KEY_ONLY, OFF, "DoRA scales the merged columns"},
    {"adapter_config.json", "use_qalora", KEY_ONLY, OFF, "QALoRA pools the inputs"},
    {"adapter_config.json", "use_bdlora", KEY_ONLY, OFF, "its factors are block-diagonal"},
    {"adapter_config.json", "lora_bias", KEY_ONLY, OFF, "its B has a bias"},
    {"adapter_config.json", "fan_in_fan_out", KEY_ONLY, OFF, "its weights are transposed"},
    {"adapter_config.json", "layer_replication", KEY_ONLY, OFF, "it repeats layers"},
    {"adapter_config.json", "alora_invocation_tokens", KEY_ONLY, OFF, "it acts on some tokens only"},
    {"adapter_config.json", "trainable_token_indices", KEY_ONLY, OFF, "it trains single tokens"},
    {"adapter_config.json", "target_parameters", KEY_ONLY, OFF,
     "it changes parameters that are no modules' weights"},
    {"adapter_config.json", "arrow_config", KEY_ONLY, OFF, "it chooses among adapters"},
    {"adapter_config.json", "kasa_config", KEY_ONLY, OFF, "it changes the base"},
    {"adapter_config.json", "monteclora_config", KEY_ONLY, OFF, "it draws random weights"},
    {"adapter_config.json", "megatron_config", KEY_ONLY, OFF, "it is Megatron's"},
    {"adapter_config.json", "target_modules", KEY_USED, NULL, "a tensor of another module is refused, a module without one is told"},
    {"adapter_config.json", "exclude_modules", KEY_USED, NULL, "a tensor of such a module is refused"},
    {"adapter_config.json", "layers_to_transform", KEY_USED, NULL, "a tensor of another layer is refused"},
    {"adapter_config.json", "layers_pattern", KEY_HARMLESS, NULL, "the tensors' names say it"},
    {"adapter_config.json", "task_type", KEY_HARMLESS, NULL, "which class of peft's wraps it"},
    {"adapter_config.json", "auto_mapping", KEY_HARMLESS, NULL, "which class of peft's wraps it"},
    {"adapter_config.json", "inference_mode", KEY_HARMLESS, NULL, TRAINING},
    {"adapter_config.json", "lora_dropout", KEY_HARMLESS, NULL, TRAINING},
    {"adapter_config.json", "loftq_config", KEY_HARMLESS, NULL, "of an init_lora_weights that is refused"},
    {"adapter_config.json", "corda_config", KEY_HARMLESS, NULL, "of an init_lora_weights that is refused"},
    {"adapter_config.json", "lora_ga_config", KEY_HARMLESS, NULL, "of an init_lora_weights that is refused"},
    {"adapter_config.json", "eva_config", KEY_HARMLESS, NULL, "how the factors began"},
    {"adapter_config.json", "velora_config", KEY_HARMLESS, NULL, TRAINING},
    {"adapter_config.json", "qalora_group_size", KEY_HARMLESS, NULL, "of QALoRA, which must be off"},
    {"adapter_config.json", "megatron_core", KEY_HARMLESS, NULL, "of Megatron, which must be off"},
    {"adapter_config.json", "runtime_config", KEY_HARMLESS, NULL, "speed and memory alone"},
    {"adapter_config.json", "ensure_weight_tying", KEY_HARMLESS, NULL, "the tensors' names say it"},
    {"adapter_config.json", "revision", KEY_HARMLESS, NULL, "of the base on the Hub"},
    {"adapter_config.json", "peft_version", KEY_HARMLESS, NULL, "which peft saved it"},
};

enum { KEYS = sizeof keys / sizeof *keys, SHOWN = 60 };

const closed_key *closed_world_at(int index) { return index >= 0 && index < KEYS ? &keys[index] : NULL; }

static const closed_key *find(const char *where, const char *key) {
    for (int i = 0; i < KEYS; i++)
        if (!strcmp(keys[i].where, where) && !strcmp(keys[i].key, key)) return &keys[i];
    return NULL;
}

/* 4 and 4.0 are one number; arrays element by element. */
static int equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        double difference = json_number_value(a) - json_number_value(b);
        return difference >= 0 && difference <= 0;
    }
    if (!json_is_array(a) || !json_is_array(b)) return json_equal(a, b);
    if (json_array_size(a) != json_array_size(b)) return 0;
    for (size_t i = 0; i < json_array_size(a); i++)
        if (!equal(json_array_get(a, i), json_array_get(b, i))) return 0;
    return 1;
}

static openpi_status check_value(const closed_key *row, const json_t *value, int *taken,
                                 openpi_error *error) {
    char text[256];
    json_t *list;
    int length = snprintf(text, sizeof text, "[%s]", row->values);
    TRY(json_parse(text, (size_t)length, "a row of the closed world", &list, error));
    *taken = 0;
    for (size_t i = 0; i < json_array_size(list); i++) *taken |= equal(json_array_get(list, i), value);
    json_decref(list);
    return OPENPI_OK;
}

static openpi_status refuse(const closed_key *row, const json_t *value, const char *file, const char *what,
                            openpi_error *error) {
    char *text = json_text(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    openpi_status status = OPENPI_UNSUPPORTED;
    if (!text) return report_no_memory(error, SHOWN, file);
    const char *one_of = *row->values != '[' && strchr(row->values, ',') ? "one of " : "";
    report(error, status, "%s: %s%s\"%s\" is %.*s%s, expected %s%s: %s", file, what, *what ? ": " : "",
           row->key, SHOWN, text, strlen(text) > SHOWN ? "…" : "", one_of, row->values, row->why);
    free(text);
    return status;
}

/* Every member of `value`, an object that the row describes; where it holds features, theirs. null says
 * nothing. */
static openpi_status check_inner(const closed_key *row, json_t *value, const char *file, const char *what,
                                 openpi_error *error) {
    const char *colon = *what ? ": " : "", *key;
    char inner[160];
    json_t *feature;
    if (json_is_null(value)) return OPENPI_OK;
    if (!json_is_object(value))
        return report(error, OPENPI_BAD_FILE, "%s: %s%s\"%s\" is %s, expected an object", file, what, colon,
                      row->key, json_kind(value));
    snprintf(inner, sizeof inner, "%s%s%s", what, colon, row->key);
    if (strcmp(row->values, "feature")) return closed_world_check(row->values, value, file, inner, error);
    json_object_foreach(value, key, feature) {
        snprintf(inner, sizeof inner, "%s%sfeature \"%.64s\"", what, colon, key);
        if (!json_is_object(feature))
            return report(error, OPENPI_BAD_FILE, "%s: %s is %s, expected an object", file, inner,
                          json_kind(feature));
        TRY(closed_world_check("feature", feature, file, inner, error));
    }
    return OPENPI_OK;
}

openpi_status closed_world_check(const char *where, const json_t *object, const char *file, const char *what,
                                 openpi_error *error) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        const closed_key *row = find(where, key);
        int taken = 1;
        if (!row)
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: %s%shas a setting \"%.64s\" that is not known, so that it may change actions "
                          "(docs/closed-world.md has the known ones)",
                          file, what, *what ? " " : "", key);
        if (row->use == KEY_ONLY) TRY(check_value(row, value, &taken, error));
        if (!taken) return refuse(row, value, file, what, error);
        if (row->use != KEY_ONLY && row->values) TRY(check_inner(row, value, file, what, error));
    }
    return OPENPI_OK;
}
