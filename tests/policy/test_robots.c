/* policy/robots/robots.c and configs.c: the built-in records, the JSON form and its faults, ALOHA's
 * transform, the examples of docs/robots.md. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "policy/configs.h"
#include "policy/robots/robots.h"
#include "policy_golden.h"

/* ---- ALOHA ---------------------------------------------------------------------------------------- */

/* openpi's own values (its policies/aloha_policy.py) of the gripper maps, in both directions. */
static void aloha_grippers(void **state) {
    (void)state;
    static const double in[5][2] = {
        {0, -1.07986555}, {.25, -0.51307761}, {.5, -0.14005592}, {.75, 0.22332758}, {1, 0.94565280}};
    static const double out[5][2] = {
        {0, 0.55337783}, {.25, 0.67173224}, {.5, 0.79008664}, {.75, 0.90844104}, {1, 1.02679543}};
    static const double signs[7] = {1, -1, -1, 1, 1, 1, 1};
    openpi_error error = OPENPI_ERROR_INIT;
    robot aloha;
    WORKS(robot_open("aloha", &aloha, &error));
    for (int k = 0; k < 5; k++) {
        double joints[14], actions[14];
        for (int i = 0; i < 14; i++) {
            joints[i] = i % 7 == 6 ? in[k][0] : 0.1 + i;
            actions[i] = i % 7 == 6 ? out[k][0] : 0.1 + i;
        }
        robot_state_in(&aloha, joints);
        robot_actions_out(&aloha, actions);
        for (int i = 0; i < 14; i++) {
            double state_want = i % 7 == 6 ? in[k][1] : signs[i % 7] * (0.1 + i),
                   action_want = i % 7 == 6 ? out[k][1] : signs[i % 7] * (0.1 + i);
            assert_true(fabs(joints[i] - state_want) < 1e-8);
            assert_true(fabs(actions[i] - action_want) < 1e-8);
        }
    }
    double far[14] = {[6] = -10, [13] = 10};
    robot_state_in(&aloha, far);                                     /* asin's argument is clipped */
    assert_true(isfinite(far[6]) && isfinite(far[13]));
}

static void others_are_plain(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    robot droid;
    double x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8];
    memcpy(y, x, sizeof x);
    WORKS(robot_open("droid", &droid, &error));
    robot_state_in(&droid, x);
    robot_actions_out(&droid, x);
    assert_memory_equal(x, y, sizeof x);
}

/* ---- records -------------------------------------------------------------------------------------- */

static void check_delta(const robot *r, const int *runs, int count) {
    int at = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < abs(runs[i]); k++) assert_int_equal(r->delta[at++], runs[i] > 0);
    assert_int_equal(r->delta_count, at);
}

static void built_ins(void **state) {
    (void)state;
    static const struct {
        const char *name, *assets;
        int cameras, chw, refuse, state, actions, delta[4], runs;
        robot_transform transform;
        robot_normalization normalization;
        const char *prompt;
    } cases[] = {
        {"aloha", "trossen", 4, 1, 1, 14, 14, {6, -1, 6, -1}, 4, ROBOT_ALOHA, ROBOT_NORM_AUTO, NULL},
        {"aloha_sim",
         "lerobot/aloha_sim_transfer_cube_human",
         4,
         1,
         1,
         14,
         14,
         {0},
         0,
         ROBOT_ALOHA,
         ROBOT_NORM_AUTO,
         "Transfer cube"},
        {"droid", "droid", 2, 0, 0, 8, 8, {0}, 0, ROBOT_PLAIN, ROBOT_NORM_AUTO, NULL},
        {"droid_jointpos", "droid", 2, 0, 0, 8, 8, {7, -1}, 2, ROBOT_PLAIN, ROBOT_NORM_AUTO, NULL},
        {"libero", "physical-intelligence/libero", 2, 0, 0, 8, 7, {0}, 0, ROBOT_PLAIN, ROBOT_NORM_AUTO, NULL},
        {"none", "", 3, 0, 1, 0, 32, {0}, 0, ROBOT_PLAIN, ROBOT_NORM_NONE, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        robot r;
        WORKS(robot_open(cases[i].name, &r, &error));
        assert_string_equal(r.name, cases[i].name);
        assert_string_equal(r.assets, cases[i].assets);
        assert_int_equal(r.camera_count, cases[i].cameras);
        assert_int_equal(r.always_chw, cases[i].chw);
        assert_int_equal(r.refuse_other_pictures, cases[i].refuse);
        assert_int_equal(r.state_length, cases[i].state);
        assert_int_equal(r.action_dim, cases[i].actions);
        assert_int_equal(r.transform, cases[i].transform);
        assert_int_equal(r.normalization, cases[i].normalization);
        assert_int_equal(r.variant, ROBOT_VARIANT_ANY);
        assert_int_equal(r.has_prompt, cases[i].prompt != NULL);
        if (cases[i].prompt) assert_string_equal(r.prompt, cases[i].prompt);
        check_delta(&r, cases[i].delta, cases[i].runs);
    }
}

static void every_config_opens(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    robot r;
    int count = 0;
    for (; config_name(count); count++) {
        WORKS(robot_from_config(config_name(count), &r, &error));
        assert_true(r.horizon > 0 && r.max_prompt > 0 && r.variant != ROBOT_VARIANT_ANY);
        assert_true(r.variant == (strncmp(config_name(count), "pi05", 4) ? OPENPI_PI0 : OPENPI_PI05));
    }
    assert_int_equal(count, 17);
    assert_null(config_name(-1));
    static const struct {
        const char *name, *reason;
    } refused[] = {
        {"pi0_fast_droid", "π0-FAST"},
        {"pi0_fast_libero", "π0-FAST"},
        {"pi0_fast_libero_low_mem_finetune", "π0-FAST"},
        {"pi0_fast_full_droid_finetune", "π0-FAST"},
        {"pi0_fast_droid_jointpos_polaris", "π0-FAST"},
        {"debug", "debugging"},
        {"debug_restore", "debugging"},
        {"debug_pi05", "debugging"},
        {"paligemma_diffusion_droid", "openpi's own config fails"},
        {"paligemma_binning_droid", "openpi's own config fails"},
        {"paligemma_fast_droid", "openpi's own config fails"},
        {"paligemma_fast_specialist_droid", "openpi's own config fails"},
        {"paligemma_vq_droid", "openpi's own config fails"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        REFUSES(robot_from_config(refused[i].name, &r, &error), OPENPI_UNSUPPORTED, refused[i].reason);
        assert_non_null(strstr(error.message, refused[i].name));
    }
    REFUSES(robot_from_config("pi0_drone", &r, &error), OPENPI_NOT_FOUND, "pi0_droid_jointpos_100k_polaris");
    WORKS(robot_from_config("pi0_aloha_tupperware", &r, &error));
    assert_string_equal(r.prompt, "open the tupperware and put the food on the plate");
}

/* What the sources say of each robot's actions, in their own structure: parts in order, each a prefix before
 * names that several parts share. Sources are openpi's unless another project is named.
 *   ALOHA       parts and grippers: examples/aloha_real/real_env.py, RealEnv; joints: constants.py beside it,
 *               JOINT_NAMES; radians: docs/norm_stats.md; rate: examples/aloha_real/main.py, max_hz
 *   ALOHA sim   gym_aloha/tasks/sim.py, BimanualViperXTask; rate: examples/aloha_sim/main.py, max_hz
 *   DROID       src/openpi/training/droid_rlds_dataset.py, DroidRldsDataset (fields),
 *               examples/droid/main.py (-1 … 1 and DROID_CONTROL_FREQUENCY), docs/norm_stats.md (radians,
 *               gripper 0 … 1); the fields' elements have no names: numbers from 1
 *   LIBERO      robosuite docs/modules/controllers.rst, OSC_POSE; LeRobot envs/libero.py, ACTION_LOW and
 *               ACTION_HIGH; rate: LeRobot envs/configs.py, LiberoEnv.fps */
typedef struct action_part {
    const char *prefix;
    const char *const *names;
    int count;
    const char *unit;
} action_part;

static const char *const aloha_joints[] = {"waist",        "shoulder",    "elbow",
                                           "forearm_roll", "wrist_angle", "wrist_rotate"};
static const char *const numbers[] = {"1", "2", "3", "4", "5", "6", "7"};
static const char *const pose[] = {"x", "y", "z", "ax", "ay", "az"};
static const char *const whole[] = {""};

#define ALOHA_PARTS                                                                \
    {{"left_", aloha_joints, 6, "rad"}, {"left_gripper", whole, 1, "normalized"},  \
     {"right_", aloha_joints, 6, "rad"}, {"right_gripper", whole, 1, "normalized"}}

static const struct {
    const char *robot;
    double rate;
    action_part parts[4];
} action_sources[] = {
    {"aloha", 50, ALOHA_PARTS},
    {"aloha_sim", 50, ALOHA_PARTS},
    {"droid", 15, {{"joint_velocity_", numbers, 7, "normalized"}, {"gripper_position", whole, 1, "normalized"}}},
    {"droid_jointpos", 15, {{"joint_position_", numbers, 7, "rad"}, {"gripper_position", whole, 1, "normalized"}}},
    {"libero", 20, {{"", pose, 6, "normalized"}, {"gripper", whole, 1, "normalized"}}},
};

static void actions_are_named_as_in_their_sources(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    robot r;
    for (size_t i = 0; i < sizeof action_sources / sizeof *action_sources; i++) {
        int action = 0;
        WORKS(robot_open(action_sources[i].robot, &r, &error));
        assert_true(r.rate_hz == action_sources[i].rate);
        for (const action_part *part = action_sources[i].parts; part < action_sources[i].parts + 4; part++) {
            for (int k = 0; k < part->count; k++, action++) {
                char name[ROBOT_LABEL_BYTES];
                snprintf(name, sizeof name, "%s%s", part->prefix, part->names[k]);
                assert_string_equal(r.action_names[action], name);
                assert_string_equal(r.units[action], part->unit);
            }
        }
        assert_int_equal(action, r.action_dim);
    }
    WORKS(robot_open("none", &r, &error));                          /* no source: nothing is said */
    assert_true(r.rate_hz == 0);
    for (int a = 0; a < r.action_dim; a++) assert_true(!r.action_names[a][0] && !r.units[a][0]);
}

/* What "like" inherits, and what the public header gives out. */
static void actions_are_named(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    robot r;
    WORKS(robot_open("{\"like\": \"libero\", \"units\": \"m\", \"rate_hz\": 12.5}", &r, &error));
    assert_string_equal(r.action_names[6], "gripper");
    assert_string_equal(r.units[0], "m");
    assert_string_equal(r.units[6], "m");
    assert_true(r.rate_hz == 12.5);
    WORKS(robot_open("{\"like\": \"libero\", \"actions\": 6}", &r, &error));
    for (int a = 0; a < OPENPI_ACTION_DIM; a++) assert_true(!r.action_names[a][0] && !r.units[a][0]);

    openpi_synthetic tiny = {.size = sizeof tiny, .variant = OPENPI_PI0, .seed = 7, .dims = OPENPI_DIMS_INIT};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    WORKS(openpi_dims_parse("tiny", &tiny.dims, &error));
    options.synthetic = &tiny;
    options.robot = "aloha";
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    assert_string_equal(openpi_policy_action_name(policy, 7), "right_waist");
    assert_string_equal(openpi_policy_action_unit(policy, 13), "normalized");
    assert_null(openpi_policy_action_name(policy, 14));
    assert_null(openpi_policy_action_unit(policy, -1));
    assert_true(openpi_policy_rate(policy) == 50);
    openpi_policy_close(policy);
    assert_null(openpi_policy_action_name(NULL, 0));
    assert_true(openpi_policy_rate(NULL) == 0);
}

static void slots(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    robot r;
    WORKS(robot_open("aloha", &r, &error));
    assert_int_equal(robot_camera_slot(&r, "images/cam_high"), 0);
    assert_int_equal(robot_camera_slot(&r, "cam_left_wrist"), 1);
    assert_int_equal(robot_camera_slot(&r, "right_wrist_0_rgb"), 2);
    assert_int_equal(robot_camera_slot(&r, "cam_low"), ROBOT_SLOT_UNUSED);
    assert_int_equal(robot_camera_slot(&r, "cam"), ROBOT_SLOT_UNKNOWN);
    assert_int_equal(robot_camera_slot(&r, ""), ROBOT_SLOT_UNKNOWN);
    WORKS(robot_open("droid", &r, &error));
    assert_int_equal(robot_camera_slot(&r, "right_wrist"), ROBOT_SLOT_UNKNOWN); /* DROID has no such camera */
    static const char two[] = "{\"name\": \"two\", \"cameras\": {\"a/rgb\": \"base\", \"b/rgb\": "
                              "\"left_wrist\", \"front\": \"base\"},"
                              " \"state\": {\"x\": 1}, \"actions\": 1}";
    WORKS(robot_open(two, &r, &error));
    assert_int_equal(robot_camera_slot(&r, "rgb"), ROBOT_SLOT_UNKNOWN); /* it may be either of the two */
    assert_int_equal(robot_camera_slot(&r, "b/rgb"), 1);
    assert_int_equal(robot_camera_slot(&r, "front"), 0);
}

#define REST "\"cameras\": {\"front\": \"base\"}, \"state\": {\"joints\": 6}, \"actions\": 6"

static void refuses_broken_records(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"{", "not valid JSON"},
        {"{\"name\": \"a\", " REST ", \"camera\": 1}", "unknown key \"camera\", known are like, name"},
        {"{\"name\": \"a\", \"name\": \"b\"}", "duplicate"},
        {"{" REST "}", "\"name\" is absent"},
        {"{\"name\": 3, " REST "}", "\"name\" is an integer"},
        {"{\"name\": \"0123456789012345678901234567890123456789012345678901234567890123\", " REST "}",
         "\"name\" has 64 bytes, at most 63"},
        {"{\"like\": \"robot\", " REST "}", "\"like\" is \"robot\", expected one of aloha, aloha_sim"},
        {"{\"like\": \"lerobot\"}", "\"like\" is \"lerobot\""},
        {"{\"name\": \"a\", \"state\": {\"joints\": 6}, \"actions\": 6}", "\"cameras\" fill no slot"},
        {"{\"name\": \"a\", \"cameras\": {\"low\": null}, \"state\": {\"joints\": 6}, \"actions\": 6}",
         "\"cameras\" fill no slot"},
        {"{\"name\": \"a\", \"cameras\": [\"front\"]}", "\"cameras\" is an array"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"middle\"}}", "camera \"front\" has slot \"middle\""},
        {"{\"name\": \"a\", \"cameras\": {\"front\": 1}}", "camera \"front\" is an integer"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": {\"slot\": \"base\", \"need\": true}}}", "camera "
                                                                                              "\"front\" has "
                                                                                              "an unknown "
                                                                                              "key \"need\""},
        {"{\"name\": \"a\", \"cameras\": {\"front\": {\"slot\": \"base\", \"required\": 1}}}", "\"required\" "
                                                                                               "is an "
                                                                                               "integer"},
        {"{\"name\": \"a\", \"cameras\": {\"\": \"base\"}}", "has 0 bytes"},
        {"{\"name\": \"a\", \"cameras\": "
         "{\"1\":null,\"2\":null,\"3\":null,\"4\":null,\"5\":null,\"6\":null,\"7\":null,\"8\":null,\"9\":"
         "null}}",
         "\"cameras\" has 9 entries, at most 8"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"actions\": 6}", "\"state\" is absent"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": 6, \"actions\": 6}", "\"state\" "
                                                                                                "is an "
                                                                                                "integer"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": {}, \"actions\": 6}", "\"state\" "
                                                                                                 "has 0 "
                                                                                                 "entries"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": {\"joints\": null}, \"actions\": "
         "6}",
         "state \"joints\" is null"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": {\"joints\": -1}, \"actions\": 6}",
         "\"joints\" is -1"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": {\"joints\": 6, \"gripper\": 0}, "
         "\"actions\": 6}",
         "\"gripper\" is 0"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": {\"a\": 20, \"b\": 13}, "
         "\"actions\": 6}",
         "33 numbers in all"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": {\"joints\": 6}}", "\"actions\" "
                                                                                              "is absent"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": {\"joints\": 6}, \"actions\": 33}",
         "\"actions\" is 33"},
        {"{\"name\": \"a\", " REST ", \"delta\": 6}", "\"delta\" is an integer"},
        {"{\"name\": \"a\", " REST ", \"delta\": [0]}", "\"delta\"[0]"},
        {"{\"name\": \"a\", " REST ", \"delta\": [6, \"x\"]}", "\"delta\"[1]"},
        {"{\"name\": \"a\", " REST ", \"delta\": [30, -9223372036854775807]}", "\"delta\"[1]"},
        {"{\"name\": \"a\", " REST ", \"delta\": [6, -1]}", "\"delta\" covers 7 dimensions, \"actions\" are "
                                                            "6"},
        {"{\"name\": \"a\", \"cameras\": {\"front\": \"base\"}, \"state\": {\"joints\": 5}, \"actions\": 6, "
         "\"delta\": [6]}",
         "makes action 5 relative to the state, which has 5 numbers"},
        {"{\"name\": \"a\", " REST ", \"transform\": \"aloha\"}", "needs a state of 14 and 14 actions"},
        {"{\"name\": \"a\", " REST ", \"transform\": \"panda\"}", "\"transform\" is \"panda\", expected one "
                                                                  "of \"none\", \"aloha\""},
        {"{\"name\": \"a\", " REST ", \"normalization\": \"minmax\"}", "\"auto\", \"zscore\", \"quantile\", "
                                                                       "\"none\""},
        {"{\"name\": \"a\", " REST ", \"prompt_state\": true}", "\"prompt_state\" is true, expected a "
                                                                "string"},
        {"{\"name\": \"a\", " REST ", \"variant\": \"pi1\"}", "\"any\", \"pi0\", \"pi05\""},
        {"{\"name\": \"a\", " REST ", \"layout\": \"hwc\"}", "\"auto\", \"chw\""},
        {"{\"name\": \"a\", " REST ", \"assets\": \"../../etc\"}", "\"assets\" is \"../../etc\""},
        {"{\"name\": \"a\", " REST ", \"assets\": \"/etc\"}", "\"assets\" is \"/etc\""},
        {"{\"name\": \"a\", " REST ", \"horizon\": 65}", "\"horizon\" is 65"},
        {"{\"name\": \"a\", " REST ", \"max_prompt\": 0}", "\"max_prompt\" is 0"},
        {"{\"name\": \"a\", " REST ", \"lora\": 16}", "\"lora\" is an integer, expected an object of ranks"},
        {"{\"name\": \"a\", " REST ", \"lora\": {\"vision\": 16}}",
         "\"lora\" has an unknown key \"vision\", known are vlm and expert"},
        {"{\"name\": \"a\", " REST ", \"lora\": {\"vlm\": 0}}", "\"vlm\" is 0"},
        {"{\"name\": \"a\", " REST ", \"lora\": {\"expert\": 4097}}", "\"expert\" is 4097"},
        {"{\"name\": \"a\", " REST ", \"questions\": \"why?\"}", "\"questions\" is a string, expected an array"},
        {"{\"name\": \"a\", " REST ", \"questions\": [\"why?\"]}",
         "the robot's JSON: 1 of the \"questions\" is unanswered, the first is \"why?\": write the answers "},
        {"{\"name\": \"a\", \"state\": {\"joints\": null}, \"questions\": [\"how many?\", \"which?\"]}",
         "2 of the \"questions\" are unanswered, the first is \"how many?\""},
        {"{\"name\": \"a\", " REST ", \"action_names\": \"x\"}", "\"action_names\" is a string, expected an "
                                                                 "array of strings"},
        {"{\"name\": \"a\", " REST ", \"action_names\": [\"x\"]}", "\"action_names\" has 1 entries, expected "
                                                                   "6"},
        {"{\"name\": \"a\", " REST ", \"action_names\": [\"1\",\"2\",\"3\",\"4\",\"5\",6]}", "\"action_"
                                                                                             "names\"[5] is "
                                                                                             "an integer"},
        {"{\"name\": \"a\", " REST ", \"action_names\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"\"]}", "\"action_"
                                                                                                "names\"[5] "
                                                                                                "is \"\""},
        {"{\"name\": \"a\", " REST ", \"action_names\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"a,b\"]}", "without "
                                                                                                   "commas, "
                                                                                                   "quotes"},
        {"{\"name\": \"a\", " REST ", \"action_names\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"a\\n\"]}", "control "
                                                                                                    "characte"
                                                                                                    "rs"},
        {"{\"name\": \"a\", " REST ", \"action_names\": "
                                   "[\"1\",\"2\",\"3\",\"4\",\"5\",\"a_name_of_more_than_31_bytes_is_it\"]}",
         "expected 1 to 31 bytes"},
        {"{\"name\": \"a\", " REST ", \"action_names\": [\"1\",\"2\",\"3\",\"2\",\"5\",\"6\"]}",
         "\"action_names\"[1] and [3] are both \"2\""},
        {"{\"name\": \"a\", " REST ", \"units\": [\"rad\"]}", "\"units\" has 1 entries, expected 6"},
        {"{\"name\": \"a\", " REST ", \"units\": 7}", "\"units\" is an integer, expected an array of strings "
                                                      "or one string"},
        {"{\"name\": \"a\", " REST ", \"rate_hz\": 0}", "\"rate_hz\" is 0, expected a number above 0"},
        {"{\"name\": \"a\", " REST ", \"rate_hz\": -5}", "\"rate_hz\" is -5"},
        {"{\"name\": \"a\", " REST ", \"rate_hz\": 1e300}", "at most 100000"},
        {"{\"name\": \"a\", " REST ", \"rate_hz\": \"50\"}", "\"rate_hz\" is a string, expected a number "
                                                             "above 0"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    robot r;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSES(robot_open(cases[i].text, &r, &error), OPENPI_BAD_FILE, cases[i].sentence);
    WORKS(robot_open("{\"name\": \"a\", " REST "}", &r, &error));
    WORKS(robot_open("{\"name\": \"a\", " REST ", \"questions\": [], \"lora\": {\"expert\": 32}}", &r,
                     &error));
    assert_int_equal(r.lora_vlm, 0);
    assert_int_equal(r.lora_expert, 32);
    REFUSES(robot_open("test_robots_nowhere.json", &r, &error), OPENPI_NOT_FOUND,
            "known are aloha, aloha_sim, droid, droid_jointpos, libero, none, lerobot");
    REFUSES(robot_parse("[]", 2, "list", &r, &error), OPENPI_BAD_FILE, "the robot is an array");
}

/* ---- docs/robots.md ------------------------------------------------------------------------------- */

/* The n-th ```json block of the page, malloc. */
static char *example(int n) {
    size_t bytes;
    char *page = golden_read(TESTS_DIR "/../docs/robots.md", &bytes), *at = page;
    for (int i = 0; i <= n; i++) {
        at = strstr(at, "```json\n");
        assert_non_null(at);
        at += 8;
    }
    char *end = strstr(at, "```");
    assert_non_null(end);
    *end = 0;
    char *text = strdup(at);
    free(page);
    return text;
}

static void documented_examples(void **state) {
    (void)state;
    static const char path[] = "test_robots_arm.json";
    openpi_error error = OPENPI_ERROR_INIT;
    robot r;
    char *text = example(0);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    WORKS(robot_open(path, &r, &error));
    unlink(path);
    free(text);
    assert_string_equal(r.name, "my_ur5");
    assert_int_equal(robot_camera_slot(&r, "base_rgb"), 0);
    assert_int_equal(robot_camera_slot(&r, "wrist_rgb"), 1);
    assert_int_equal(r.state_length, 7);
    assert_string_equal(r.parts[0].key, "joints");
    assert_string_equal(r.parts[1].key, "gripper");
    assert_int_equal(r.action_dim, 7);
    check_delta(&r, (const int[]){6, -1}, 2);
    assert_string_equal(r.assets, "ur5e");
    assert_string_equal(r.prompt, "pick up the red cup");
    assert_string_equal(r.action_names[5], "wrist_3");
    assert_string_equal(r.units[6], "normalized");
    assert_true(r.rate_hz == 20);

    text = example(1);
    WORKS(robot_open(text, &r, &error));
    free(text);
    assert_string_equal(r.name, "my_franka");
    assert_int_equal(r.camera_count, 3);
    assert_int_equal(r.cameras[1].required, 0);
    assert_int_equal(robot_camera_slot(&r, "exterior_image_2_left"), ROBOT_SLOT_UNUSED);
    assert_int_equal(r.state_length, 8);
    assert_int_equal(r.horizon, 16);
    assert_true(r.rate_hz == 10);
    assert_string_equal(r.assets, "droid");
    check_delta(&r, (const int[]){7, -1}, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aloha_grippers),
        cmocka_unit_test(others_are_plain),
        cmocka_unit_test(built_ins),
        cmocka_unit_test(every_config_opens),
        cmocka_unit_test(slots),
        cmocka_unit_test(refuses_broken_records),
        cmocka_unit_test(documented_examples),
        cmocka_unit_test(actions_are_named),
        cmocka_unit_test(actions_are_named_as_in_their_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
