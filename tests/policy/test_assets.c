/* checkpoint/home.c and policy/assets.c: the folder of a checkpoint's other files, whichever of its folders
 * is given, and which of its statistics a policy takes. The checkpoints are small ones that orbax-checkpoint
 * wrote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "checkpoint/home.h"
#include "policy/assets.h"
#include "policy_golden.h"
#include "scratch.h"

#define ORBAX TESTS_DIR "/orbax"

static openpi_error error = OPENPI_ERROR_INIT;

/* ---- a checkpoint ---------------------------------------------------------------------------------- */

/* Makes the folders above the last name of a path in the scratch folder. */
static const char *place(scratch *s, const char *name) {
    char path[400];
    snprintf(path, sizeof path, "%s", scratch_path(s, name));
    for (char *slash = path + strlen(s->folder) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
    return scratch_path(s, name);
}

static void put_params(scratch *s, const char *name) {
    assert_int_equal(symlink(ORBAX "/pi0_released/params", place(s, name)), 0);
}

/* Statistics of eight numbers. */
static void put_assets(scratch *s, const char *below, const char *asset) {
    static const char numbers[] = "{\"mean\": [0,0,0,0,0,0,0,0], \"std\": [1,1,1,1,1,1,1,1]}";
    char name[200], text[400];
    snprintf(name, sizeof name, "%s/assets/%s/norm_stats.json", below, asset);
    int bytes = snprintf(text, sizeof text,
                         "{\"norm_stats\": {\"state\": %s, \"actions\": %s}}", numbers, numbers);
    place(s, name);
    assert_int_equal(scratch_write(s, name, text, (size_t)bytes), 0);
}

/* ---- the folder ------------------------------------------------------------------------------------ */

static void every_accepted_path_has_a_home(void **state) {
    (void)state;
    static const struct {
        const char *given, *home;
    } cases[] = {
        {"run/100", "run/100"},
        {"run/100/params", "run/100"},
        {"run/100/params/", "run/100"},
        {"run", "run/100"},                        /* the newest with arrays, by number */
        {"renamed", "renamed"},                    /* arrays and assets in one folder */
        {"outer/arrays", "outer/arrays/.."},       /* arrays in a folder of another name, assets beside it */
        {"bare", "bare"},
        {"torch", "torch"},                        /* weights and a folder of JAX: the weights count */
        {"torch/model.safetensors", "torch"},
        {"empty", "empty"},
    };
    scratch s;
    assert_int_equal(scratch_open(&s), 0);
    put_params(&s, "run/9/params");
    put_params(&s, "run/100/params");
    place(&s, "run/2000/other/x");                 /* no arrays: a save that was not finished */
    put_assets(&s, "run/9", "nine");
    put_params(&s, "torch/params");
    assert_int_equal(scratch_write(&s, "torch/model.safetensors", "", 0), 0);
    place(&s, "empty/x");
    static const char *const files[] = {"renamed/manifest.ocdbt", "outer/arrays/manifest.ocdbt",
                                        "bare/manifest.ocdbt"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        place(&s, files[i]);
        assert_int_equal(scratch_write(&s, files[i], "", 0), 0);
    }
    put_assets(&s, "renamed", "own");
    put_assets(&s, "outer", "beside");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char given[400], want[400], *home;
        snprintf(given, sizeof given, "%s", scratch_path(&s, cases[i].given));
        snprintf(want, sizeof want, "%s", scratch_path(&s, cases[i].home));
        WORKS(home_find(given, &home, &error));
        assert_string_equal(home, want);
        free(home);
    }
    scratch_close(&s);
}

static void a_relative_path_has_a_home(void **state) {
    (void)state;
    static const struct {
        const char *given, *home;
    } cases[] = {{".", "./.."}, {"../params", ".."}, {"../../100", "../../100"}, {"manifest.ocdbt", "."}};
    char before[4096];
    scratch s;
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(scratch_open(&s), 0);
    static const char manifest[] = "run/100/params/manifest.ocdbt";
    place(&s, manifest);
    assert_int_equal(scratch_write(&s, manifest, "", 0), 0);
    put_assets(&s, "run/100", "droid");
    assert_int_equal(chdir(scratch_path(&s, "run/100/params")), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *home;
        WORKS(home_find(cases[i].given, &home, &error));
        assert_string_equal(home, cases[i].home);
        free(home);
    }
    assert_int_equal(chdir(before), 0);
    scratch_close(&s);
}

/* ---- which statistics ------------------------------------------------------------------------------ */

#define DROID_OF(asset) "{\"like\": \"droid\", \"assets\": \"" asset "\"}"

typedef struct wish {
    const char *checkpoint, *robot, *config, *assets, *norm_stats;
    openpi_status status;
    const char *found;           /* the path's end, or a part of the sentence */
} wish;

static void try_policies(scratch *s, const wish *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_policy *policy = NULL;
        options.robot = cases[i].robot;
        options.config = cases[i].config;
        options.assets = cases[i].assets;
        options.norm_stats = cases[i].norm_stats;
        options.tokenizer = GOLDEN "/tokenizer.model";
        const char *checkpoint = scratch_path(s, cases[i].checkpoint);
        if (cases[i].status != OPENPI_OK) {
            REFUSES(openpi_policy_open(checkpoint, &options, &policy, &error), cases[i].status,
                    cases[i].found);
            assert_null(policy);
            continue;
        }
        WORKS(openpi_policy_open(checkpoint, &options, &policy, &error));
        WORKS(openpi_policy_get_info(policy, &info, &error));
        size_t all = strlen(info.statistics), end = strlen(cases[i].found);
        if (all < end || strcmp(info.statistics + all - end, cases[i].found))
            fail_msg("case %zu: statistics %s, expected %s", i, info.statistics, cases[i].found);
        openpi_policy_close(policy);
    }
}

static void statistics_are_chosen(void **state) {
    (void)state;
    static const char long_name[] =
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567";
    static const wish cases[] = {
        {"run/100", "droid", NULL, NULL, NULL, OPENPI_OK, "run/100/assets/droid/norm_stats.json"},
        {"run/100/params", "droid", NULL, NULL, NULL, OPENPI_OK, "run/100/assets/droid/norm_stats.json"},
        {"run", "droid", NULL, NULL, NULL, OPENPI_OK, "run/100/assets/droid/norm_stats.json"},
        {"run", NULL, "pi0_libero", NULL, NULL, OPENPI_OK, "run/100/assets/physical-intelligence/libero/norm_stats.json"},
        {"run", "droid", NULL, "trossen", NULL, OPENPI_OK, "run/100/assets/trossen/norm_stats.json"},
        {"run", NULL, "pi0_droid", "physical-intelligence/libero", NULL, OPENPI_OK, "libero/norm_stats.json"},
        {"run", DROID_OF("trossen"), NULL, NULL, NULL, OPENPI_OK, "run/100/assets/trossen/norm_stats.json"},
        {"run", DROID_OF("trossen"), NULL, "droid", NULL, OPENPI_OK, "run/100/assets/droid/norm_stats.json"},
        {"run", "none", NULL, NULL, NULL, OPENPI_OK, ""},
        {"run/9", DROID_OF(""), NULL, NULL, NULL, OPENPI_OK, "run/9/assets/nine/norm_stats.json"},
        {"run", DROID_OF(""), NULL, NULL, NULL, OPENPI_NOT_FOUND,
         "/run/100/assets holds droid, physical-intelligence/libero, trossen: give assets, one of these"},
        {"run/9", "droid", NULL, NULL, NULL, OPENPI_NOT_FOUND,
         "/9/assets/droid/norm_stats.json, the statistics of robot \"droid\", is not there; assets holds"},
        {"run", "droid", NULL, "ur5", NULL, OPENPI_NOT_FOUND,
         "/run/100/assets holds droid, physical-intelligence/libero, trossen: give assets, one of these"},
        {"run", "droid", NULL, "ur5", NULL, OPENPI_NOT_FOUND, "assets is \"ur5\", but "},
        {"bare", "droid", NULL, "ur5", NULL, OPENPI_NOT_FOUND, "/bare/assets holds none: give norm_stats, a norm_stats.json"},
        {"bare", "droid", NULL, NULL, NULL, OPENPI_NOT_FOUND,
         "the statistics of robot \"droid\", is not there; assets holds none: give norm_stats"},
        {"bare", DROID_OF(""), NULL, NULL, NULL, OPENPI_NOT_FOUND, "does not say whose statistics it needs (\"assets\"): give norm_stats"},
        {"run", "droid", NULL, "trossen", "x.json", OPENPI_BAD_ARGUMENT, "both norm_stats \"x.json\" and assets \"trossen\""},
        {"run", "none", NULL, "trossen", NULL, OPENPI_BAD_ARGUMENT, "assets is \"trossen\", but robot \"none\" works in"},
        {"run", "droid", NULL, "../100", NULL, OPENPI_BAD_ARGUMENT, "assets is \"../100\", expected the name of a folder"},
        {"run", "droid", NULL, "/etc", NULL, OPENPI_BAD_ARGUMENT, "assets is \"/etc\", expected"},
        {"run", "droid", NULL, "", NULL, OPENPI_BAD_ARGUMENT, "assets is \"\", expected"},
        {"run", "droid", NULL, long_name, NULL, OPENPI_BAD_ARGUMENT, "at most 127 bytes"},
        {"many", DROID_OF(""), NULL, NULL, NULL, OPENPI_NOT_FOUND, "holds a00, a01, a02"},
        {"many", DROID_OF(""), NULL, NULL, NULL, OPENPI_NOT_FOUND, " more: give assets"},
        {"many", DROID_OF("a69"), NULL, NULL, NULL, OPENPI_OK, "many/assets/a69/norm_stats.json"},
    };
    scratch s;
    assert_int_equal(scratch_open(&s), 0);
    put_params(&s, "run/9/params");
    put_params(&s, "run/100/params");
    put_params(&s, "bare/params");
    put_params(&s, "many/params");
    put_assets(&s, "run/9", "nine");
    put_assets(&s, "run/100", "trossen");
    put_assets(&s, "run/100", "physical-intelligence/libero");
    put_assets(&s, "run/100", "droid");
    place(&s, "run/100/assets/no_statistics/x");
    for (int i = 0; i < 70; i++) {
        char name[8];
        snprintf(name, sizeof name, "a%02d", i);
        put_assets(&s, "many", name);
    }
    try_policies(&s, cases, sizeof cases / sizeof *cases);
    scratch_close(&s);
}

/* In memory there are no assets, and LeRobot's processors have their own statistics. */
static void statistics_of_synthetic_models(void **state) {
    (void)state;
    openpi_synthetic tiny = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_policy *policy;
    WORKS(openpi_synthetic_parse("tiny:pi0:7", &tiny, &error));
    options.synthetic = &tiny;
    options.robot = "droid";
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    WORKS(openpi_policy_get_info(policy, &info, &error));
    assert_string_equal(info.statistics, "embedded");
    openpi_policy_close(policy);
    options.assets = "droid";
    REFUSES(openpi_policy_open(NULL, &options, &policy, &error), OPENPI_NOT_FOUND,
            "assets is \"droid\", but the synthetic checkpoint/assets holds none");
    options.robot = "lerobot";
    tiny.lerobot = 1;
    REFUSES(openpi_policy_open(NULL, &options, &policy, &error), OPENPI_BAD_ARGUMENT,
            "assets is \"droid\", but the synthetic checkpoint has its own statistics");
}

/* ---- besides statistics ---------------------------------------------------------------------------- */

static void a_tokenizer_is_found_beside_the_path_given(void **state) {
    (void)state;
    static const char *const places[] = {"run/100/tokenizer.model", "run/tokenizer.model"};
    scratch s;
    assert_int_equal(scratch_open(&s), 0);
    put_params(&s, "run/100/params");
    put_assets(&s, "run/100", "droid");
    for (size_t i = 0; i < 2; i++) {
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_policy *policy;
        assert_int_equal(symlink(GOLDEN "/tokenizer.model", scratch_path(&s, places[i])), 0);
        options.robot = "droid";
        WORKS(openpi_policy_open(scratch_path(&s, "run"), &options, &policy, &error));
        WORKS(openpi_policy_get_info(policy, &info, &error));
        assert_string_equal(info.tokenizer, scratch_path(&s, places[i]));
        openpi_policy_close(policy);
        unlink(scratch_path(&s, places[i]));
    }
    scratch_close(&s);
}

static void inspect_names_them(void **state) {
    (void)state;
    scratch s;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char *text;
    json_t *root;
    assert_int_equal(scratch_open(&s), 0);
    put_params(&s, "run/100/params");
    put_assets(&s, "run/100", "trossen");
    put_assets(&s, "run/100", "droid");
    options.tokenizer = GOLDEN "/tokenizer.model";
    for (int named = 0; named < 2; named++) {
        options.robot = named ? "droid" : NULL;
        WORKS(openpi_inspect(scratch_path(&s, "run"), &options, &text, &error));
        WORKS(json_parse(text, strlen(text), "inspect", &root, &error));
        const json_t *names = json_object_get(root, "assets"), *policy = json_object_get(root, "policy");
        assert_int_equal(json_array_size(names), 2);
        assert_string_equal(json_string_value(json_array_get(names, 0)), "droid");
        assert_string_equal(json_string_value(json_array_get(names, 1)), "trossen");
        const char *statistics = json_string_value(json_object_get(policy, "statistics"));
        if (named) assert_string_equal(statistics, scratch_path(&s, "run/100/assets/droid/norm_stats.json"));
        else assert_non_null(json_object_get(policy, "reason"));
        json_decref(root);
        openpi_free(text);
    }
    scratch_close(&s);
}

/* LoRA's ranks as the config has them, beside those that the checkpoint holds. */
static void inspect_names_the_ranks_of_a_config(void **state) {
    (void)state;
    static const struct {
        const char *config;
        int vlm, expert;
    } cases[] = {{"pi0_libero_low_mem_finetune", 16, 32}, {"pi0_libero", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        char *text;
        json_t *root;
        options.config = cases[i].config;
        options.assets = "trossen";
        options.tokenizer = GOLDEN "/tokenizer.model";
        WORKS(openpi_inspect(ORBAX "/pi0_lora/100", &options, &text, &error));
        WORKS(json_parse(text, strlen(text), "inspect", &root, &error));
        const json_t *ranks = json_object_get(json_object_get(root, "policy"), "lora");
        assert_int_equal(json_integer_value(json_object_get(ranks, "vlm")), cases[i].vlm);
        assert_int_equal(json_integer_value(json_object_get(ranks, "expert")), cases[i].expert);
        assert_non_null(json_object_get(root, "lora"));
        json_decref(root);
        openpi_free(text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_accepted_path_has_a_home),
        cmocka_unit_test(a_relative_path_has_a_home),
        cmocka_unit_test(statistics_are_chosen),
        cmocka_unit_test(statistics_of_synthetic_models),
        cmocka_unit_test(a_tokenizer_is_found_beside_the_path_given),
        cmocka_unit_test(inspect_names_them),
        cmocka_unit_test(inspect_names_the_ranks_of_a_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
