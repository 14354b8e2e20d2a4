/* labels: isa_slow threads */
/* Where a policy takes its robot, statistics and tokenizer from, and which options it refuses
 * (policy/policy.c). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "synthetic_policy.h"

static const char folder[] = "test_policy_checkpoint";

static void write_file(const char *name, const void *bytes, size_t count) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

static void write_text(const char *name, const char *text) {
    write_file(name, text, strlen(text));
}

static void remove_file(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

/* A file with one tensor of one number: enough to see the variant. */
static void write_weights(const char *tensor) {
    char header[256], file[512];
    int bytes = snprintf(header, sizeof header,
                         "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}", tensor);
    while (bytes % 8) header[bytes++] = ' ';
    memset(file, 0, sizeof file);
    file[0] = (char)bytes;
    memcpy(file + 8, header, (size_t)bytes);
    write_file("model.safetensors", file, 8 + (size_t)bytes + 4);
}

static void copy_golden(const char *from, const char *to) {
    size_t bytes;
    char *data = golden_read(from, &bytes);
    write_file(to, data, bytes);
    free(data);
}

static const char ADAPTIVE[] = "paligemma_with_expert.gemma_expert.model.layers.0.input_layernorm.dense."
                               "weight";

static void write_checkpoint(void) {
    write_weights("state_proj.weight");
    write_text("config.json", "{\"action_dim\": 32, \"action_horizon\": 50}");
    copy_golden(GOLDEN "/tokenizer.model", "tokenizer.model");
    copy_golden(GOLDEN "/policy/droid_pi0/norm_stats.json", "assets/droid/norm_stats.json");
    copy_golden(GOLDEN "/policy/libero_pi0/norm_stats.json", "assets/physical-intelligence/libero/"
                                                             "norm_stats.json");
}

static void remove_checkpoint(void) {
    static const char *const files[] = {"model.safetensors",
                                        "config.json",
                                        "tokenizer.model",
                                        "assets/droid/norm_stats.json",
                                        "assets/physical-intelligence/libero/norm_stats.json",
                                        "assets/synthetic/norm_stats.json",
                                        "arm.json"};
    static const char *const folders[] = {"/assets/droid",
                                          "/assets/physical-intelligence/libero",
                                          "/assets/physical-intelligence",
                                          "/assets/synthetic",
                                          "/assets",
                                          ""};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) remove_file(files[i]);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s%s", folder, folders[i]);
        rmdir(path);
    }
}

typedef struct open_case {
    const char *robot, *config, *norm_stats, *tokenizer;
    openpi_prompt_state prompt_state;
    int max_prompt;
    openpi_status status;
    const char *sentence;        /* or the robot's name where the status is OPENPI_OK */
} open_case;

static void try_open(const char *checkpoint, const open_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_policy *policy = NULL;
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_policy_options options = {.size = sizeof options,
                                         .robot = cases[i].robot,
                                         .config = cases[i].config,
                                         .norm_stats = cases[i].norm_stats,
                                         .tokenizer = cases[i].tokenizer,
                                         .prompt_state = cases[i].prompt_state,
                                         .max_prompt = cases[i].max_prompt};
        if (cases[i].status != OPENPI_OK) {
            REFUSES(openpi_policy_open(checkpoint, &options, &policy, &error), cases[i].status, cases[i].sentence);
            assert_null(policy);
            continue;
        }
        WORKS(openpi_policy_open(checkpoint, &options, &policy, &error));
        openpi_policy_get_info(policy, &info, NULL);
        assert_string_equal(info.robot, cases[i].sentence);
        openpi_policy_close(policy);
    }
}

static void parts_come_from_the_checkpoint(void **state) {
    (void)state;
    static const char stats[] = GOLDEN "/policy/droid_pi0/norm_stats.json", arm[] = "test_policy_checkpoint/"
                                                                                    "arm.json";
    static const open_case cases[] = {
        {NULL, NULL, NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "does not say which robot it is for"},
        {"droid", NULL, NULL, NULL, 0, 0, OPENPI_OK, "droid"},
        {NULL, "pi0_droid", NULL, NULL, 0, 0, OPENPI_OK, "droid"},
        {NULL, "pi0_libero", NULL, NULL, 0, 0, OPENPI_OK, "libero"},
        {arm, NULL, NULL, NULL, 0, 0, OPENPI_OK, "my_arm"},
        {"droid", NULL, GOLDEN "/policy/droid_pi0", GOLDEN, 0, 100, OPENPI_OK, "droid"},
        {"none", NULL, NULL, NULL, 0, 0, OPENPI_OK, "none"},
        {"droid", "pi0_droid", NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "both robot \"droid\" and config \"pi0_droid\""},
        {NULL, "pi05_droid", NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT,
         "config \"pi05_droid\" is for π0.5, but test_policy_checkpoint is a π0 model"},
        {NULL, "pi0_fast_droid", NULL, NULL, 0, 0, OPENPI_UNSUPPORTED, "π0-FAST"},
        {NULL, "pi9", NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "known are pi0_aloha"},
        {"aloha", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND,
         "assets/trossen/norm_stats.json, the statistics of robot \"aloha\", is not there; assets holds"},
        {"aloha", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "physical-intelligence/libero"},
        {"aloha", NULL, stats, NULL, 0, 0, OPENPI_BAD_FILE, "a state of 8 numbers, robot \"aloha\" has 14"},
        {"droid", NULL, "nowhere.json", NULL, 0, 0, OPENPI_NOT_FOUND, "nowhere.json"},
        {"droid", NULL, GOLDEN, NULL, 0, 0, OPENPI_NOT_FOUND, "holds no norm_stats.json"},
        {"droid", NULL, GOLDEN "/steps.json", NULL, 0, 0, OPENPI_BAD_FILE, "steps.json"},
        {"none", NULL, stats, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "takes none"},
        {"droid", NULL, NULL, "nowhere.model", 0, 0, OPENPI_NOT_FOUND, "nowhere.model"},
        {"droid", NULL, NULL, GOLDEN "/policy", 0, 0, OPENPI_NOT_FOUND, "holds no tokenizer.model or tokenizer.json"},
        {"droid", NULL, NULL, NULL, 0, -1, OPENPI_BAD_ARGUMENT, "max_prompt is -1"},
        {"lerobot", NULL, NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "is no LeRobot checkpoint"},
        {"nobody", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "robot \"nobody\" is not known"},
        {"{\"like\": \"droid\", \"assets\": \"\"}", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "does not say whose statistics"},
        {"{\"like\": \"droid\", \"normalization\": \"quantile\"}", NULL, NULL, NULL, 0, 0, OPENPI_BAD_FILE,
         "no q01 and q99 of state"},
    };
    write_checkpoint();
    write_text("arm.json", "{\"name\": \"my_arm\", \"cameras\": {\"front\": \"base\"}, \"state\": "
                           "{\"joints\": 7}, \"actions\": "
                           "7, \"assets\": \"droid\"}");
    try_open(folder, cases, sizeof cases / sizeof *cases);
    try_open("test_policy_checkpoint/model.safetensors", cases + 1, 1);
    static const open_case nowhere[] = {
        {"droid", NULL, NULL, NULL, 0, 0, OPENPI_NOT_FOUND, "no such checkpoint"}};
    try_open("test_policy_nowhere", nowhere, 1);

    write_weights(ADAPTIVE);
    static const open_case pi05[] = {
        {NULL, "pi0_droid", NULL, NULL, 0, 0, OPENPI_BAD_ARGUMENT, "is for π0, but test_policy_checkpoint is a π0.5 model"},
        {NULL, "pi05_droid", NULL, NULL, 0, 0, OPENPI_BAD_FILE,
         "no q01 and q99 of state, which π0.5 (quantile normalisation) needs"},
        {NULL, "pi05_droid", GOLDEN "/policy/droid_jointpos/norm_stats.json", NULL, 0, 0, OPENPI_OK, "droid"},
    };
    try_open(folder, pi05, sizeof pi05 / sizeof *pi05);

    write_weights("lm_head.weight");
    static const open_case neither[] = {
        {"droid", NULL, NULL, NULL, 0, 0, OPENPI_BAD_FILE,
         "neither \"state_proj.weight\" of π0 nor an adaptive norm of π0.5 is among its 1 tensors"}};
    try_open(folder, neither, 1);

    write_weights("state_proj.weight");
    copy_golden(GOLDEN "/policy/libero_pi0/norm_stats.json", "assets/synthetic/norm_stats.json");
    static const open_case synthetic[] = {
        {NULL, NULL, NULL, NULL, 0, 0, OPENPI_OK, "none"},
        {"libero", NULL, NULL, NULL, 0, 0, OPENPI_OK, "libero"},
        {"aloha", NULL, NULL, NULL, 0, 0, OPENPI_OK, "aloha"},
    };
    try_open(folder, synthetic, sizeof synthetic / sizeof *synthetic);

    write_text("config.json", "{\"type\": \"pi0_fast\"}");
    static const open_case fast[] = {
        {NULL, NULL, NULL, NULL, 0, 0, OPENPI_UNSUPPORTED, "\"type\" is \"pi0_fast\""}};
    try_open(folder, fast, 1);
    remove_checkpoint();
}

static void options_are_checked(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = NULL;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    REFUSES(openpi_policy_open(NULL, &options, &policy, &error), OPENPI_BAD_ARGUMENT, "neither a checkpoint nor a synthetic one");
    REFUSES(openpi_policy_open(NULL, NULL, &policy, &error), OPENPI_BAD_ARGUMENT, "neither a checkpoint nor a synthetic one");
    REFUSES(openpi_policy_open("x", &options, NULL, &error), OPENPI_BAD_ARGUMENT, "policy is NULL");
    options.size = 3;
    REFUSES(openpi_policy_open("x", &options, &policy, &error), OPENPI_BAD_ARGUMENT,
            "size is 3, expected 104: begin with OPENPI_POLICY_OPTIONS_INIT");
    openpi_policy_close(NULL);
    openpi_request_close(NULL);
}

/* What openpi's configs of these names set (its training/config.py). */
static void configs_set_everything(void **state) {
    (void)state;
    static const struct {
        const char *name;
        openpi_variant variant;
        int horizon, max_prompt, prompt_state, state, actions, delta;
    } cases[] = {
        {"pi0_aloha", OPENPI_PI0, 50, 48, 0, 14, 14, 14},
        {"pi05_aloha", OPENPI_PI05, 50, 200, 1, 14, 14, 14},
        {"pi0_aloha_sim", OPENPI_PI0, 50, 48, 0, 14, 14, 0},
        {"pi0_droid", OPENPI_PI0, 10, 48, 0, 8, 8, 0},
        {"pi05_droid", OPENPI_PI05, 15, 200, 1, 8, 8, 0},
        {"pi05_full_droid_finetune", OPENPI_PI05, 16, 200, 1, 8, 8, 8},
        {"pi05_droid_finetune", OPENPI_PI05, 16, 200, 1, 8, 8, 0},
        {"pi0_libero", OPENPI_PI0, 50, 48, 0, 8, 7, 7},
        {"pi0_libero_low_mem_finetune", OPENPI_PI0, 50, 48, 0, 8, 7, 7},
        {"pi05_libero", OPENPI_PI05, 10, 200, 0, 8, 7, 0},
        {"pi05_droid_jointpos_polaris", OPENPI_PI05, 15, 200, 1, 8, 8, 8},
        {"pi0_droid_jointpos_polaris", OPENPI_PI0, 10, 100, 0, 8, 8, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_policy *policy = open_synthetic(NULL, cases[i].name, cases[i].variant);
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_policy_get_info(policy, &info, NULL);
        assert_int_equal(info.horizon, cases[i].horizon);
        assert_int_equal(info.max_prompt, cases[i].max_prompt);
        assert_int_equal(info.prompt_state, cases[i].prompt_state);
        assert_int_equal(info.state_length, cases[i].state);
        assert_int_equal(info.action_dim, cases[i].actions);
        assert_int_equal(info.lerobot, 0);
        assert_int_equal(policy->robot.delta_count, cases[i].delta);
        assert_int_equal(policy->mode, cases[i].variant == OPENPI_PI05 ? STATS_QUANTILE : STATS_ZSCORE);
        openpi_policy_close(policy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_come_from_the_checkpoint),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(configs_set_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
