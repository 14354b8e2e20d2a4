/* What a LeRobot checkpoint tells (policy/lerobot/lerobot_notes.c), statistics that are given to one that
 * has none, tokenizers by name, and LeRobot's eps where a span or a deviation is 0. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lerobot_folder.h"
#include "policy/policy.h"
#include "structs.h"

static openpi_error error = OPENPI_ERROR_INIT;
static const char config[] = "config.json", before[] = "policy_preprocessor.json",
                  after[] = "policy_postprocessor.json",
                  state_file[] = "policy_preprocessor_step_3_normalizer_processor.safetensors",
                  action_file[] = "policy_postprocessor_step_0_unnormalizer_processor.safetensors";

static openpi_policy *open_folder(const char *norm_stats) {
    openpi_policy *policy = NULL;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    options.tokenizer = GOLDEN "/tokenizer.model";
    options.norm_stats = norm_stats;
    WORKS(openpi_policy_open(folder_name, &options, &policy, &error));
    return policy;
}

/* Exactly `count` sentences; one of them has `piece` and this level. Spans of 0, which the goldens have, do
 * not count: they are real-time chunking's. */
static void tells(int count, int warning, const char *piece) {
    openpi_policy *policy = open_folder(NULL);
    const char *text;
    int found = !count, told = 0, level;
    for (int i = 0; (text = openpi_policy_note(policy, i, &level)); i++) {
        if (strstr(text, "have no span in dimension")) continue;
        found |= level == warning && strstr(text, piece) != NULL;
        if (told++ >= count) print_error("also told: %s\n", text);
    }
    for (int i = 0; !found && (text = openpi_policy_note(policy, i, NULL)); i++)
        print_error("told: %s\n", text);
    if (!found) fail_msg("\"%s\" is not told as level %d", piece, warning);
    assert_int_equal(told, count);
    openpi_policy_close(policy);
}

static void contradictions_are_told(void **state) {
    static const struct {
        const char *file, *path, *value;
        int count, warning;
        const char *piece;
    } cases[] = {
        {config, "n_action_steps", "3", 0, 0, ""},
        {after, "steps/1/config/enabled", "false", 1, 1, "actions leave relative to the state"},
        {after, "steps/1", NULL, 1, 1, "absolute_actions_processor is absent in policy_postprocessor.json"},
        {before, "steps/2/config/enabled", "false", 1, 1, "the state is added to actions that may be absolute"},
        {config, "use_relative_actions", "false", 1, 1, "use_relative_actions is false, but"},
        {before, "steps/2/config/action_names", "null", 1, 1, "no action_names has it"},
        {before, "steps/2/config/exclude_joints", "[\"thumb\"]", 2, 1, "exclude_joints has \"thumb\""},
        {before, "steps/2/config/exclude_joints", "[\"yaw\"]", 1, 1,
         "relative_exclude_joints is [\"gripper\"], but the processor's exclude_joints is [\"yaw\"], which"},
        {before, "steps/2/config/exclude_joints", "null", 1, 1, "the processor's exclude_joints is [], which is"},
        {before, "steps/2/config/action_names/0", "\"base.pos\"", 1, 1,
         "1 of action_names are not those of config.json's"},
        {config, "normalization_mapping", "{\"STATE\": \"MIN_MAX\"}", 1, 1,
         "normalization_mapping.STATE is MIN_MAX, but the processor's norm_map says QUANTILES"},
        {config, "tokenizer_max_length", "77", 1, 1, "tokenizer_max_length is 77, but the tokenizer's step has"},
        {config, "resize_imgs_with_padding", "[224, 224]", 1, 1, "padded pictures on the left and at the top"},
        {config, "input_features/observation.environment_state", "{\"type\": \"ENV\", \"shape\": [4]}", 1, 0,
         "does not read \"observation.environment_state\""},
        {before, "steps/4/registry_name", "\"pi0_new_line_processor\"", 1, 1,
         "its steps write no state into the prompt"},
        {before, "steps/3/state_file", NULL, 1, 1, "the state is not normalised, since the step names no state file"},
        {after, "steps/0/state_file", NULL, 1, 1,
         "the actions are not unnormalised, since the step names no state file"},
        {before, "steps/3/config/norm_map/STATE", NULL, 2, 1, "not normalised, since norm_map has no STATE"},
        {before, "steps/3/config/norm_map/STATE", "\"IDENTITY\"", 2, 0, "since norm_map.STATE is IDENTITY"},
        {before, "steps/3/config/features/observation.state", NULL, 1, 1,
         "since the step's features have no \"observation.state\""},
        {before, "steps/3/config/normalize_observation_keys", "[]", 2, 0, "normalize_observation_keys leaves"},
        {after, "steps/0", NULL, 2, 1, "since there is no unnormalizer_processor"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_copy("pi05_relative");
        folder_patch(cases[i].file, cases[i].path, cases[i].value);
        tells(cases[i].count, cases[i].warning, cases[i].piece);
    }
    folder_remove();
}

/* A base model's two halves are one line; a fine-tune's are warnings. */
static void a_base_is_one_line(void **state) {
    (void)state;
    folder_copy("pi05_no_stats");
    tells(1, 0, "neither state nor actions have statistics, as in a base model");
    folder_patch(config, "pretrained_path", "\"lerobot/pi05_base\"");
    tells(2, 1, "the actions are not unnormalised, since the step names no state file");
    folder_patch(config, "input_features/observation.state", NULL);
    tells(3, 0, "input_features has no \"observation.state\": its length is 32, LeRobot's default");
    folder_patch(config, "output_features/action", NULL);
    tells(4, 0, "output_features has no \"action\": there are 32 actions, LeRobot's default");
    folder_remove();
}

/* One tensor a statistic, each [count] of the same number. */
static void write_statistics(const char *file, const char *key, int count, float low, float high) {
    static const char *const names[] = {"max", "mean", "min", "q01", "q99", "std"};
    const float values[] = {high, low, low, low, high, high};
    char path[256], header[1024] = "{";
    for (int i = 0; key && i < 6; i++)
        snprintf(header + strlen(header), sizeof header - strlen(header),
                 "%s\"%s.%s\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%d,%d]}", i ? "," : "",
                 key, names[i], count, 4 * i * count, 4 * (i + 1) * count);
    strcat(header, "}");
    while (strlen(header) % 8) strcat(header, " ");
    snprintf(path, sizeof path, "%s/%s", folder_name, file);
    FILE *out = fopen(path, "wb");
    uint64_t length = strlen(header);
    assert_non_null(out);
    assert_int_equal(fwrite(&length, 8, 1, out), 1);
    assert_int_equal(fwrite(header, 1, length, out), length);
    for (int i = 0; key && i < 6; i++)
        for (int n = 0; n < count; n++) assert_int_equal(fwrite(&values[i], 4, 1, out), 1);
    fclose(out);
}

static void lost_statistics_are_told(void **state) {
    (void)state;
    folder_copy("pi05_relative");
    write_statistics(state_file, NULL, 0, 0, 0);
    tells(1, 1, "since policy_preprocessor_step_3_normalizer_processor.safetensors holds no tensor");
    write_statistics(state_file, "so100.buffer.observation.state", 8, 0, 1);
    tells(1, 1, "has \"so100.buffer.observation.state.std\" and no \"observation.state.q01\"");
    write_statistics(state_file, "observation.state", 8, 0, 1);
    tells(0, 0, "");
    write_statistics(action_file, "actions", 7, 0, 1);
    tells(1, 1, "has \"actions.max\" and no \"action.q01\"");
    folder_remove();
}

/* Spans and deviations: negative ones are refused, those of 0 in the state are told. */
static void spans_of_the_state(void **state) {
    static const struct {
        const char *mode, *piece;
    } negative[] = {
        {"\"QUANTILES\"", "tensor \"observation.state.q99\"[0] is 1, expected at least q01, which is 2"},
        {"\"MIN_MAX\"", "tensor \"observation.state.max\"[0] is 1, expected at least min, which is 2"},
        {"\"MEAN_STD\"", NULL},
    };
    openpi_policy *policy;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    (void)state;
    options.tokenizer = GOLDEN "/tokenizer.model";
    folder_copy("pi05_relative");
    for (int i = 0; i < 3; i++) {
        folder_patch(before, "steps/3/config/norm_map/STATE", negative[i].mode);
        write_statistics(state_file, "observation.state", 8, 2, negative[i].piece ? 1 : -1);
        REFUSES(openpi_policy_open(folder_name, &options, &policy, &error), OPENPI_BAD_FILE,
                negative[i].piece ? negative[i].piece
                                  : "tensor \"observation.state.std\"[0] is -1, expected at least 0");
    }
    write_statistics(state_file, "observation.state", 8, 2, 0);
    policy = open_folder(NULL);
    int level = 1, told = 0;
    const char *text;
    for (int i = 0; (text = openpi_policy_note(policy, i, &level)); i++)
        told += !level && strstr(text, "of the state have no span in dimension 0, 1, 2, 3, 4, 5, 6, 7: a");
    assert_int_equal(told, 1);
    openpi_policy_close(policy);
    folder_remove();
}

/* norm_stats is named where it is taken and nowhere else. */
static void the_remedy_is_one(void **state) {
    static const struct {
        const char *path, *value;
        int named;
    } cases[] = {{"steps/0/state_file", NULL, 1},
                 {"steps/0/config/norm_map/ACTION", NULL, 0},
                 {"steps/0/config/norm_map/ACTION", "\"MIN_MAX\"", 0},
                 {"steps/0", NULL, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_copy("pi05_relative");
        write_statistics(action_file, NULL, 0, 0, 0);
        folder_patch(after, cases[i].path, cases[i].value);
        openpi_policy *policy = open_folder(NULL);
        const char *text;
        int told = 0, named = 0;
        for (int n = 0; (text = openpi_policy_note(policy, n, NULL)); n++) {
            told += strstr(text, "the actions are not unnormalised") != NULL;
            named += strstr(text, "norm_stats") != NULL;
        }
        assert_int_equal(told, 1);
        assert_int_equal(named, cases[i].named);
        openpi_policy_close(policy);
    }
    folder_remove();
}

/* norm_stats.json of openpi: state q01 -1 and q99 3, actions q01 0 and q99 4; mean 1, std 2. */
static const char *write_norm_stats(void) {
    static char path[256];
    snprintf(path, sizeof path, "%s/norm_stats.json", folder_name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("{\"norm_stats\": {", out);
    for (int e = 0; e < 2; e++) {
        static const char *const keys[] = {"mean", "std", "q01", "q99"};
        static const int values[2][4] = {{1, 2, -1, 3}, {1, 2, 0, 4}};
        fprintf(out, "%s\"%s\": {", e ? ", " : "", e ? "actions" : "state");
        for (int k = 0; k < 4; k++) {
            fprintf(out, "%s\"%s\": [", k ? ", " : "", keys[k]);
            for (int i = 0; i < 32; i++) fprintf(out, "%s%d", i ? ", " : "", values[e][k]);
            fputs("]", out);
        }
        fputs("}", out);
    }
    fputs("}}", out);
    fclose(out);
    return path;
}

static void given_statistics_are_taken(void **state) {
    float x[32] = {2}, reference[32], text[32], actions[32] = {0.5f};
    openpi_policy *policy;
    (void)state;
    folder_copy("pi05_no_stats");
    policy = open_folder(write_norm_stats());
    assert_null(openpi_policy_note(policy, 0, NULL));
    lerobot_state_in(&policy->pipeline, x, reference, text);
    lerobot_actions_out(&policy->pipeline, reference, actions);
    assert_float_equal(x[0], 2 * (2.0f + 1) / 4 - 1, 1e-6);
    assert_float_equal(actions[0], (0.5f + 1) * 4 / 2, 1e-6);
    openpi_policy_close(policy);
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    options.tokenizer = GOLDEN "/tokenizer.model";
    options.norm_stats = write_norm_stats();
    folder_patch(after, "steps/0/config/norm_map/ACTION", "\"MIN_MAX\"");
    REFUSES(openpi_policy_open(folder_name, &options, &policy, &error), OPENPI_UNSUPPORTED,
            "normalises its action dimensions by MIN_MAX");
    folder_patch(after, "steps/0/config/norm_map/ACTION", "\"IDENTITY\"");
    folder_patch(before, "steps/3/config/norm_map/STATE", "\"IDENTITY\"");
    REFUSES(openpi_policy_open(folder_name, &options, &policy, &error), OPENPI_BAD_ARGUMENT,
            "takes none: of the state, norm_map.STATE is IDENTITY");
    unlink(options.norm_stats);
    folder_remove();
}

/* Only half of the statistics is there: that half is kept. */
static void half_is_taken(void **state) {
    float x[32] = {2}, reference[32], text[32];
    (void)state;
    folder_copy("pi05_relative");
    write_statistics(state_file, "observation.state", 8, 0, 8);
    write_statistics(action_file, NULL, 0, 0, 0);
    openpi_policy *policy = open_folder(write_norm_stats());
    lerobot_state_in(&policy->pipeline, x, reference, text);
    assert_float_equal(x[0], 2 * 2.0f / 8 - 1, 1e-6);
    assert_string_equal(policy->pipeline.state_statistics.file, state_file);
    assert_non_null(strstr(policy->pipeline.action_statistics.file, "norm_stats.json"));
    openpi_policy_close(policy);
    unlink(write_norm_stats());
    folder_remove();
}

static int tells_of_tokenizer(const openpi_policy *policy) {
    const char *text;
    for (int i = 0; (text = openpi_policy_note(policy, i, NULL)); i++)
        if (strstr(text, "names the tokenizer \"my-org/my-tokenizer\", which is not PaliGemma's; ")) return 1;
    return 0;
}

/* One that lies there stands in for another's name. */
static void a_tokenizer_in_the_folder_is_told(void) {
    char path[256];
    size_t bytes;
    openpi_policy *policy = NULL;
    folder_patch(before, "steps/5/config/tokenizer_name", "\"my-org/my-tokenizer\"");
    snprintf(path, sizeof path, "%s/tokenizer.model", folder_name);
    char *data = golden_read(GOLDEN "/tokenizer.model", &bytes);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
    free(data);
    WORKS(openpi_policy_open(folder_name, NULL, &policy, &error));
    assert_true(tells_of_tokenizer(policy));
    openpi_policy_close(policy);
    unlink(path);
}

static void tokenizers_by_name(void **state) {
    static const struct {
        const char *name;
        openpi_status status;
        const char *piece;
    } cases[] = {
        {"\"my-org/my-tokenizer\"", OPENPI_NOT_FOUND, "\"tokenizer_name\" is \"my-org/my-tokenizer\", which is not"},
        {"null", OPENPI_NOT_FOUND, "has no \"tokenizer_name\""},
        {"\"google/paligemma-3b-pt-224\"", OPENPI_OK, ""},
        {"\"google/paligemma-3b-mix-448\"", OPENPI_OK, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_policy *policy = NULL;
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        options.tokenizer_cache = GOLDEN;
        folder_copy("pi05_relative");
        folder_patch(before, "steps/5/artifacts", NULL);
        folder_patch(before, "steps/5/config/tokenizer_name", cases[i].name);
        REFUSES(openpi_policy_open(folder_name, &options, &policy, &error), cases[i].status, cases[i].piece);
        openpi_policy_close(policy);
        policy = open_folder(NULL);                                  /* given: the caller decides */
        assert_false(tells_of_tokenizer(policy));
        openpi_policy_close(policy);
    }
    a_tokenizer_in_the_folder_is_told();
    folder_remove();
}

/* LeRobot's formulas where the span or the deviation is 0: MEAN_STD divides by std + eps, the others by eps
 * in place of the span. eps is 1e-8 unless the step says another. */
static void eps_is_lerobots(void **state) {
    static const struct {
        const char *mode, *eps;
        double normalised, unnormalised;                             /* of 2^-20 and of 3 */
    } cases[] = {
        {"\"MEAN_STD\"", NULL, 95.367431640625, 0},
        {"\"MIN_MAX\"", NULL, 2 * 95.367431640625 - 1, 2e-8},
        {"\"QUANTILES\"", NULL, 2 * 95.367431640625 - 1, 2e-8},
        {"\"QUANTILES\"", "0.001", 2 * 95.367431640625e-5 - 1, 2e-3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float x[32] = {0x1p-20f}, reference[32], text[32], actions[32] = {3};
        folder_copy("pi05_relative");
        write_statistics(state_file, "observation.state", 8, 0, 0);
        write_statistics(action_file, "action", 7, 0, 0);
        folder_patch(before, "steps/3/config/norm_map/STATE", cases[i].mode);
        folder_patch(after, "steps/0/config/norm_map/ACTION", cases[i].mode);
        folder_patch(after, "steps/1/config/enabled", "false");
        folder_patch(before, "steps/3/config/eps", cases[i].eps);
        folder_patch(after, "steps/0/config/eps", cases[i].eps);
        openpi_policy *policy = open_folder(NULL);
        lerobot_state_in(&policy->pipeline, x, reference, text);
        lerobot_actions_out(&policy->pipeline, reference, actions);
        if (!(fabs((double)x[0] - cases[i].normalised) <= 1e-6 * fabs(cases[i].normalised)))
            fail_msg("%s: %.9g, expected %.9g", cases[i].mode, (double)x[0], cases[i].normalised);
        if (!(fabs((double)actions[0] - cases[i].unnormalised) <= 1e-6 * cases[i].unnormalised))
            fail_msg("%s: %.9g, expected %.9g", cases[i].mode, (double)actions[0], cases[i].unnormalised);
        openpi_policy_close(policy);
    }
    folder_remove();
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    lerobot pipeline;
    lerobot_synthetic(&synthetic, &pipeline);
    assert_true(pipeline.after[0].norm.eps == 1e-8f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contradictions_are_told), cmocka_unit_test(a_base_is_one_line),
        cmocka_unit_test(lost_statistics_are_told), cmocka_unit_test(given_statistics_are_taken),
        cmocka_unit_test(half_is_taken),           cmocka_unit_test(tokenizers_by_name),
        cmocka_unit_test(eps_is_lerobots),         cmocka_unit_test(spans_of_the_state),
        cmocka_unit_test(the_remedy_is_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
