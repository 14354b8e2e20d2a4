/* Robots that tools/openpi_config.py printed for openpi's TrainConfigs and for those of a user
 * (tests/configs), read by the engine: openpi's are what the built-in table says, field by field; a user's
 * are what their Python says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "policy/configs.h"
#include "policy/robots/robots.h"
#include "policy_golden.h"

static json_t *recorded(const char *path) {
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *all;
    WORKS(json_read(path, &all, &error));
    assert_true(json_is_object(all));
    return all;
}

static openpi_status read_robot(const json_t *printed, robot *out, openpi_error *error) {
    char *text = json_text(printed, 0);
    assert_non_null(text);
    openpi_status status = robot_parse(text, strlen(text), "printed", out, error);
    free(text);
    return status;
}

/* ---- openpi's ------------------------------------------------------------------------------------- */

/* The order of cameras does not count: each is found by its key. */
static void same_cameras(const robot *a, const robot *b) {
    assert_int_equal(a->camera_count, b->camera_count);
    for (int i = 0; i < a->camera_count; i++) {
        int found = 0;
        for (int k = 0; k < b->camera_count; k++) {
            if (strcmp(a->cameras[i].key, b->cameras[k].key)) continue;
            assert_int_equal(a->cameras[i].slot, b->cameras[k].slot);
            assert_int_equal(a->cameras[i].required, b->cameras[k].required);
            found++;
        }
        assert_int_equal(found, 1);
    }
}

/* Every field but the name, which is the config's in one and the robot's in the other, and what no
 * TrainConfig says of actions: names, units and rate. Those are then empty. */
static void same_robot(const robot *printed, const robot *built_in) {
    same_cameras(printed, built_in);
    for (int i = 0; i < OPENPI_ACTION_DIM; i++) {
        assert_int_equal(printed->action_names[i][0], 0);
        assert_int_equal(printed->units[i][0], 0);
    }
    assert_true(printed->rate_hz == 0);
    assert_int_equal(printed->refuse_other_pictures, built_in->refuse_other_pictures);
    assert_int_equal(printed->always_chw, built_in->always_chw);
    assert_int_equal(printed->part_count, built_in->part_count);
    for (int i = 0; i < printed->part_count; i++) {
        assert_string_equal(printed->parts[i].key, built_in->parts[i].key);
        assert_int_equal(printed->parts[i].length, built_in->parts[i].length);
    }
    assert_int_equal(printed->state_length, built_in->state_length);
    assert_int_equal(printed->action_dim, built_in->action_dim);
    assert_int_equal(printed->delta_count, built_in->delta_count);
    assert_memory_equal(printed->delta, built_in->delta, (size_t)built_in->delta_count);
    assert_int_equal(printed->transform, built_in->transform);
    assert_int_equal(printed->normalization, built_in->normalization);
    assert_int_equal(printed->prompt_state, built_in->prompt_state);
    assert_int_equal(printed->has_prompt, built_in->has_prompt);
    assert_string_equal(printed->prompt, built_in->prompt);
    assert_string_equal(printed->assets, built_in->assets);
    assert_int_equal(printed->variant, built_in->variant);
    assert_int_equal(printed->horizon, built_in->horizon);
    assert_int_equal(printed->max_prompt, built_in->max_prompt);
    assert_int_equal(printed->lora_vlm, built_in->lora_vlm);
    assert_int_equal(printed->lora_expert, built_in->lora_expert);
}

static void openpis_configs_are_the_built_in_ones(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *all = recorded(TESTS_DIR "/configs/openpi.json"), *printed;
    const char *name;
    int run = 0, refused = 0, built_in = 0;
    json_object_foreach(all, name, printed) {
        const char *sentence = json_string_value(json_object_get(printed, "refused"));
        robot own, table;
        if (sentence) {
            print_message("%s\n", sentence);
            assert_true(!strncmp(sentence, name, strlen(name)));
            REFUSES(robot_from_config(name, &table, &error), OPENPI_UNSUPPORTED, name);
            refused++;
            continue;
        }
        print_message("%s\n", name);
        WORKS(read_robot(printed, &own, &error));
        WORKS(robot_from_config(name, &table, &error));
        assert_string_equal(own.name, name);
        same_robot(&own, &table);
        run++;
    }
    for (; config_name(built_in); built_in++) assert_non_null(json_object_get(all, config_name(built_in)));
    assert_int_equal(run, built_in);
    assert_int_equal(run + refused, 31);              /* TrainConfigs of openpi 15a9616 */
    json_decref(all);
}

/* ---- a user's ------------------------------------------------------------------------------------- */

/* What the answers make of the printed file: `answers` in JSON are put over it, the questions are removed. */
static void answer(json_t *printed, const char *answers) {
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *given;
    WORKS(json_parse(answers, strlen(answers), "answers", &given, &error));
    assert_int_equal(json_object_update(printed, given), 0);
    json_object_del(printed, "questions");
    json_decref(given);
}

static void check_delta(const robot *r, const int *runs, int count) {
    int at = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < abs(runs[i]); k++) assert_int_equal(r->delta[at++], runs[i] > 0);
    assert_int_equal(r->delta_count, at);
}

/* The configs of tests/configs/own.py, by hand. */
static void a_users_config_is_read(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *all = recorded(TESTS_DIR "/configs/own.json"), *ur5 = json_object_get(all, "pi0_ur5_low_mem"),
           *hand = json_object_get(all, "pi05_hand");
    robot r;
    REFUSES(read_robot(ur5, &r, &error), OPENPI_BAD_FILE,
            "printed: 2 of the \"questions\" are unanswered, the first is \"state: how many numbers has "
            "joints?");
    answer(ur5, "{\"state\": {\"joints\": 6, \"gripper\": 1}}");
    WORKS(read_robot(ur5, &r, &error));
    assert_int_equal(r.camera_count, 2);
    assert_int_equal(robot_camera_slot(&r, "front_rgb"), 0);
    assert_int_equal(robot_camera_slot(&r, "wrist_rgb"), 1);
    assert_true(r.cameras[0].required && !r.cameras[1].required);
    assert_int_equal(r.state_length, 7);
    assert_string_equal(r.parts[0].key, "joints");
    assert_int_equal(r.action_dim, 7);
    check_delta(&r, (const int[]){6, -1}, 2);
    assert_int_equal(r.variant, OPENPI_PI0);
    assert_int_equal(r.horizon, 20);
    assert_int_equal(r.max_prompt, 48);
    assert_int_equal(r.lora_vlm, 16);
    assert_int_equal(r.lora_expert, 32);
    assert_string_equal(r.assets, "me/ur5");
    assert_int_equal(r.normalization, ROBOT_NORM_AUTO);

    answer(hand, "{\"state\": {\"hand/wrist\": 2, \"hand/fingers\": 12}}");
    WORKS(read_robot(hand, &r, &error));
    assert_int_equal(robot_camera_slot(&r, "views/top"), 0);
    assert_int_equal(robot_camera_slot(&r, "views/palm"), 2);
    assert_int_equal(r.state_length, 14);
    assert_int_equal(r.action_dim, 20);
    check_delta(&r, (const int[]){-2, 12, -6}, 3);
    assert_int_equal(r.variant, OPENPI_PI05);
    assert_int_equal(r.prompt_state, OPENPI_PROMPT_STATE_OFF);
    assert_int_equal(r.max_prompt, 64);
    assert_int_equal(r.lora_vlm + r.lora_expert, 0);

    WORKS(read_robot(json_object_get(all, "pi05_arm"), &r, &error));     /* lengths: make_arm_example */
    assert_int_equal(r.camera_count, 1);
    assert_int_equal(robot_camera_slot(&r, "observation/top"), 0);
    assert_int_equal(r.part_count, 2);
    assert_string_equal(r.parts[0].key, "observation/gripper");
    assert_int_equal(r.parts[0].length, 1);
    assert_string_equal(r.parts[1].key, "observation/joint_angles");
    assert_int_equal(r.parts[1].length, 5);
    check_delta(&r, (const int[]){-1, 5}, 2);
    assert_string_equal(r.prompt, "wave");
    assert_int_equal(r.horizon, 12);
    assert_int_equal(r.max_prompt, 200);

    WORKS(read_robot(json_object_get(all, "pi0_measured"), &r, &error)); /* length: assets/bench */
    assert_string_equal(r.assets, "bench");
    assert_int_equal(r.part_count, 1);
    assert_int_equal(r.parts[0].length, 9);
    WORKS(read_robot(json_object_get(all, "pi0_cast"), &r, &error));
    check_delta(&r, (const int[]){6, -1}, 2);
    json_decref(all);
}

/* What a config clips is in the robot's file. */
static void limits_are_found(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *all = recorded(TESTS_DIR "/configs/own.json");
    robot r;
    WORKS(read_robot(json_object_get(all, "pi0_limits"), &r, &error));
    assert_int_equal(robot_limit_count(r.state_limits, OPENPI_ACTION_DIM), 9);
    assert_int_equal(robot_limit_count(r.action_limits, OPENPI_ACTION_DIM), 7);
    for (int i = 0; i < 8; i++) assert_true(r.state_limits[i].low == -3.14 && r.state_limits[i].high == 3.14);
    for (int i = 0; i < 6; i++)
        assert_true(r.action_limits[i].low == -3.14 && r.action_limits[i].high == 3.14);
    assert_true(r.state_limits[8].low == 0 && r.state_limits[8].high == (double)INFINITY);
    assert_true(r.action_limits[6].low == 0 && r.action_limits[6].high == 1);
    WORKS(read_robot(json_object_get(all, "pi0_measured"), &r, &error));
    assert_int_equal(robot_limit_count(r.action_limits, OPENPI_ACTION_DIM), 0);
    json_decref(all);
}

/* What no robot of openpi.c can be is said by the tool, with the config's name. */
static void too_large_ones_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"pi0_wide", "pi0_wide: action_dim is 64; openpi.c runs 1 to 32"},
        {"pi0_many_steps", "pi0_many_steps: action_horizon is 100; openpi.c runs 1 to 64"},
    };
    json_t *all = recorded(TESTS_DIR "/configs/own.json");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(json_string_value(json_object_get(json_object_get(all, cases[i][0]), "refused")),
                            cases[i][1]);
    json_decref(all);
}

/* What a config does that no robot can express, and what it does not tell: the questions of its file. */
static void what_does_not_show_is_asked(void **state) {
    (void)state;
    static const struct {
        const char *name, *questions[3];          /* their beginnings */
    } cases[] = {
        {"pi0_ur5_low_mem", {"state: how many numbers has joints?", "state: how many numbers has gripper?"}},
        {"pi0_no_names", {"state: how many numbers has joints?"}},
        {"pi05_hand", {"state: how many numbers has wrist?"}},
        {"pi0_mirrored", {"cameras: base_0_rgb shows no camera's picture", "state: ", "state: "}},
        {"pi0_cropped", {"cameras: base_0_rgb shows no camera's picture", "state: ", "state: "}},
        {"pi0_shouting", {"state: ", "state: ", "prompt: why does 'a prompt' become 'A PROMPT'?"}},
        {"pi0_degrees", {"state: ", "state: ", "transform: what does the config do"}},
        {"pi0_thinned", {"state: ", "state: ", "transform: what does the config do"}},
        {"pi0_no_assets", {"state: ", "state: ", "assets: whose statistics?"}},
        {"pi0_wrap", {"actions: 3."}},
        {"pi0_steps", {"actions: "}},
        {"pi0_norm", {"actions: "}},
        {"pi0_bytes", {"state: 1."}},
        {"pi0_tight", {"state: how many numbers has gripper?", "state: how many numbers has joints?"}},
        {"pi0_more", {"outputs: who makes gripper?"}},
        {"pi0_short_prompts", {"state: ", "state: ", "prompt: why does ' Pick_up the RED cup"}},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *all = recorded(TESTS_DIR "/configs/own.json");
    enum { UNASKED = 4, REFUSED = 2 };
    assert_int_equal(json_object_size(all), sizeof cases / sizeof *cases + UNASKED + REFUSED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const json_t *printed = json_object_get(all, cases[i].name),
                     *questions = json_object_get(printed, "questions");
        size_t count = 0;
        robot r;
        print_message("%s\n", cases[i].name);
        for (; count < 3 && cases[i].questions[count]; count++) {
            const char *asked = json_string_value(json_array_get(questions, count)),
                       *want = cases[i].questions[count];
            assert_non_null(asked);
            assert_true(!strncmp(asked, want, strlen(want)));
        }
        assert_int_equal(json_array_size(questions), count);
        REFUSES(read_robot(printed, &r, &error), OPENPI_BAD_FILE, "unanswered, the first is");
        assert_non_null(strstr(error.message, json_string_value(json_array_get(questions, 0))));
    }
    /* Limits that hide all numbers: the parts' order and limits are found all the same. */
    const json_t *tight = json_object_get(json_object_get(all, "pi0_tight"), "limits");
    for (int i = 0; i < 2; i++) {
        const json_t *pair = json_object_get(json_object_get(tight, "state"), i ? "joints" : "gripper");
        assert_true(json_real_value(json_array_get(pair, 0)) == -0.02);
        assert_true(json_real_value(json_array_get(pair, 1)) == 0.02);
    }
    json_decref(all);
}

/* The two JSON blocks of docs/own-config.md: what the tool printed, and that with its answers. */
static void the_page_shows_what_was_printed(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *all = recorded(TESTS_DIR "/configs/own.json"), *block;
    size_t bytes;
    char *page = golden_read(TESTS_DIR "/../docs/own-config.md", &bytes), *at = page;
    robot r;
    for (int i = 0; i < 2; i++) {
        assert_non_null(at = strstr(at, "```json\n"));
        at += 8;
        char *end = strstr(at, "```");
        assert_non_null(end);
        WORKS(json_parse(at, (size_t)(end - at), "docs/own-config.md", &block, &error));
        if (i == 0) assert_true(json_equal(block, json_object_get(all, "pi0_ur5_low_mem")));
        else WORKS(read_robot(block, &r, &error));
        json_decref(block);
        at = end + 3;
    }
    assert_int_equal(r.state_length, 7);
    assert_string_equal(r.action_names[6], "gripper");
    json_decref(all);
    free(page);
}

/* Programs of a built-in robot find as many rows as with openpi's own weights; an own arm says its own. */
static void synthetic_weights_have_the_robots_horizon(void **state) {
    (void)state;
    static const struct {
        const char *robot;
        int horizons[2];                   /* [variant]; 0: the engine's                                  */
    } rows[] = {{"droid", {10, 15}},   {"droid_jointpos", {10, 15}}, {"libero", {50, 10}},
                {"aloha", {50, 50}},   {"aloha_sim", {50, 50}},      {"none", {0, 0}},
                {"{\"like\": \"droid\", \"name\": \"own\", \"horizon\": 7}", {7, 7}},
                {"{\"like\": \"droid\", \"name\": \"own\"}", {0, 0}}};
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        openpi_synthetic recipe = OPENPI_SYNTHETIC_INIT;
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_policy_info info = {.size = sizeof info};
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_policy *policy;
        recipe.variant = i % 2 ? OPENPI_PI05 : OPENPI_PI0;
        options.synthetic = &recipe;
        options.robot = rows[i / 2].robot;
        if (openpi_policy_open(NULL, &options, &policy, &error)) fail_msg("%s", error.message);
        assert_int_equal(openpi_policy_get_info(policy, &info, &error), OPENPI_OK);
        assert_int_equal(info.horizon, rows[i / 2].horizons[i % 2]);
        openpi_policy_close(policy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(synthetic_weights_have_the_robots_horizon),
        cmocka_unit_test(the_page_shows_what_was_printed),
        cmocka_unit_test(openpis_configs_are_the_built_in_ones),
        cmocka_unit_test(a_users_config_is_read),
        cmocka_unit_test(limits_are_found),
        cmocka_unit_test(too_large_ones_are_refused),
        cmocka_unit_test(what_does_not_show_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
