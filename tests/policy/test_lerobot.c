/* labels: isa_slow threads */
/* policy/lerobot/lerobot.c: LeRobot's checkpoints and pipelines against LeRobot's own numbers, bit for bit;
 * and what a pipeline may not hold. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "lerobot_folder.h"
#include "policy/policy.h"
#include "policy_golden.h"
#include "structs.h"

enum { DIMS = 32, SIDE = 224, PIXELS = SIDE * SIDE * 3, MAX_ROWS = 64 };

static openpi_policy *open_golden(const char *name) {
    char path[512];
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = NULL;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    snprintf(path, sizeof path, GOLDEN "/lerobot/%s/checkpoint", name);
    if (strcmp(name, "pi05"))                              /* a file, or the folder that holds it */
        options.tokenizer = strncmp(name, "pi05", 4) ? GOLDEN "/lerobot/pi05/checkpoint/tokenizer/"
                                                              "tokenizer.json"
                                                     : GOLDEN "/lerobot/pi05/checkpoint/tokenizer";
    WORKS(openpi_policy_open(path, &options, &policy, &error));
    return policy;
}

/* The state's fp32 bits, carried by doubles. */
static void check_state(const openpi_request *request, const float *want, int length) {
    int count;
    const double *state = openpi_request_state(request, &count);
    assert_int_equal(count, length);
    for (int i = 0; i < length; i++) {
        if (!(state[i] == (double)want[i]))
            fail_msg("state[%d] is %.9g, expected %.9g", i, state[i], (double)want[i]);
        assert_true(prepared(request).state[i] == want[i]);
    }
    for (int i = length; i < DIMS; i++) assert_true(prepared(request).state[i] == 0);
}

/* model [rows][columns] through the postprocessor, against want [rows][a], exactly. */
static void check_actions(const openpi_request *request, const float *model, int columns, const float *want,
                          int rows, int a) {
    openpi_error error = OPENPI_ERROR_INIT;
    float padded[MAX_ROWS * DIMS] = {0};
    double actions[MAX_ROWS * DIMS];
    assert_true(rows <= MAX_ROWS);
    for (int h = 0; h < rows; h++)
        memcpy(padded + h * DIMS, model + h * columns, (size_t)columns * sizeof *model);
    WORKS(openpi_request_finish(request, padded, rows, actions, CAPACITY(actions), &error));
    for (int i = 0; i < rows * a; i++)
        if (!(actions[i] == (double)want[i]))
            fail_msg("action %d of dim %d: %.9g, expected %.9g", i / a, i % a, actions[i], (double)want[i]);
}

/* ---- the pipelines alone -------------------------------------------------------------------------- */

static void check_pipeline(const char *name, int rows) {
    static const uint8_t dark[3];
    char path[512];
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_request *request;
    openpi_policy *policy = open_golden(name);
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_policy_get_info(policy, &info, NULL);
    snprintf(path, sizeof path, GOLDEN "/lerobot/%s/expected.safetensors", name);
    tensors *file = golden_open(path);
    json_t *note = golden_metadata(file, "case"), *tasks = json_object_get(note, "tasks");
    int n = info.state_length, a = info.action_dim, length = info.max_prompt;
    assert_int_equal(json_array_size(tasks), rows);
    assert_int_equal(length, strncmp(name, "pi05", 4) ? 48 : 200);
    float *raw = golden_copy(file, "in.state", DTYPE_F32, rows * n),
          *state = golden_copy(file, "state", DTYPE_F32, rows * n);
    float *model = golden_copy(file, "in.actions_normalized", DTYPE_F32, rows * 5 * a),
          *want = golden_copy(file, "actions", DTYPE_F32, rows * 5 * a);
    int32_t *tokens = golden_copy(file, "tokens", DTYPE_I32, rows * length);
    const uint8_t *mask = golden_data(file, "token_mask", DTYPE_U8, rows * length);
    WORKS(openpi_request_create(policy, &request, &error));
    for (int b = 0; b < rows; b++) {
        double given[DIMS];
        openpi_image image = IMAGE("base", dark, OPENPI_U8, OPENPI_HWC, 1, 1);
        openpi_observation observation = OBSERVATION(&image, 1, given, n,
                                                     json_string_value(json_array_get(tasks, (size_t)b)), 0);
        for (int i = 0; i < n; i++) given[i] = (double)raw[b * n + i];
        WORKS(openpi_request_prepare(request, &observation, NULL, &error));
        check_state(request, state + b * n, n);
        const openpi_sample held = prepared(request);
        golden_tokens(&held, tokens + b * length, mask + b * length, length);
        check_actions(request, model + b * 5 * a, a, want + b * 5 * a, 5, a);
    }
    if (tensors_find(file, "relative_mask"))
        assert_memory_equal(policy->pipeline.relative, golden_data(file, "relative_mask", DTYPE_U8, a),
                            (size_t)a);
    openpi_request_close(request);
    openpi_policy_close(policy);
    tensors_close(file);
    json_decref(note);
    free(tokens), free(want), free(model), free(state), free(raw);
}

static void pipelines_are_lerobots(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int rows;
    } cases[] = {{"pi05_mean_std", 3}, {"pi05_min_max", 3}, {"pi05_quantile10", 3},      {"pi05_no_stats", 3},
                 {"pi05_relative", 3}, {"pi0_relative", 6}, {"pi05_relative_unnamed", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_message("           %s\n", cases[i].name);
        check_pipeline(cases[i].name, cases[i].rows);
    }
}

/* ---- whole observations --------------------------------------------------------------------------- */

/* want[slots][3][rows][224] are some rows of each slot. */
static void check_images(const openpi_sample *sample, const float *want, const int32_t *rows, int count) {
    double worst = 0;
    for (int slot = 0; slot < 3; slot++)
        for (int c = 0; c < 3; c++)
            for (int r = 0; r < count; r++)
                for (int x = 0; x < SIDE; x++) {
                    const float *image = sample->images[slot];
                    double off = fabs((double)image[(rows[r] * SIDE + x) * 3 + c] -
                                      (double)want[((slot * 3 + c) * count + r) * SIDE + x]);
                    if (!(off <= 2e-6))
                        fail_msg("slot %d channel %d row %d column %d is off by %g", slot, c, rows[r], x,
                                 off);
                    if (off > worst) worst = off;
                }
    print_message("           pictures off by %g\n", worst);
}

static int find_images(const tensors *file, openpi_image *images) {
    static const char prefix[] = "in.image.";
    int count = 0;
    for (int i = 0; i < tensors_count(file); i++) {
        const tensor *t = tensors_at(file, i);
        if (strncmp(t->name, prefix, sizeof prefix - 1)) continue;
        assert_true(count < 3 && t->rank == 3 && t->shape[2] == 3 &&
                    (t->type == DTYPE_U8 || t->type == DTYPE_F32));
        images[count++] = (openpi_image)IMAGE(t->name + sizeof prefix - 1,
                                         t->data,
                                         t->type == DTYPE_U8 ? OPENPI_U8 : OPENPI_FLOAT32,
                                         OPENPI_HWC,
                                         (int)t->shape[0],
                                         (int)t->shape[1]);
    }
    return count;
}

static void check_whole(const char *name, const char *file_name, int cameras) {
    char path[512];
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_request *request;
    openpi_policy *policy = open_golden(name);
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_image images[3];
    double given[DIMS];
    openpi_policy_get_info(policy, &info, NULL);
    snprintf(path, sizeof path, GOLDEN "/lerobot/%s/%s.safetensors", name, file_name);
    tensors *file = golden_open(path);
    json_t *note = golden_metadata(file, "case");
    int n = info.state_length, a = info.action_dim, rows = info.horizon, length = info.max_prompt;
    float *raw = golden_copy(file, "in.state", DTYPE_F32, n),
          *state = golden_copy(file, "state", DTYPE_F32, n);
    float *model = golden_copy(file, "actions_model", DTYPE_F32, rows * DIMS),
          *want = golden_copy(file, "actions", DTYPE_F32, rows * a);
    float *pixels = golden_copy(file, "images", DTYPE_F32, 3 * 3 * 20 * SIDE);
    int32_t *image_rows = golden_copy(file, "image_rows", DTYPE_I32, 20),
            *tokens = golden_copy(file, "tokens", DTYPE_I32, length);
    for (int i = 0; i < n; i++) given[i] = (double)raw[i];
    assert_int_equal(find_images(file, images), cameras);
    openpi_observation observation = OBSERVATION(images, cameras, given, n,
                                                 json_string_value(json_object_get(note, "task")), 0);
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    const openpi_sample held = prepared(request), *sample = &held;
    assert_int_equal(sample->pixels, OPENPI_PIXELS_F32);
    assert_memory_equal(sample->image_mask, golden_data(file, "image_mask", DTYPE_U8, 3), 3);
    check_images(sample, pixels, image_rows, 20);
    if (tensors_find(file, "image0")) {
        const float *whole = golden_copy(file, "image0", DTYPE_F32, PIXELS), *image = sample->images[0];
        for (int i = 0; i < PIXELS; i++)
            assert_true(fabsf(image[i] - whole[i % 3 * SIDE * SIDE + i / 3]) <= 2e-6f);
        free((void *)(uintptr_t)whole);
    }
    check_state(request, state, n);
    golden_tokens(sample, tokens, golden_data(file, "token_mask", DTYPE_U8, length), length);
    check_actions(request, model, DIMS, want, rows, a);
    openpi_request_close(request);
    openpi_policy_close(policy);
    tensors_close(file);
    json_decref(note);
    free(tokens), free(image_rows), free(pixels), free(want), free(model), free(state), free(raw);
}

static void observations_are_lerobots(void **state) {
    (void)state;
    check_whole("pi0", "expected", 2);
    check_whole("pi0", "expected_missing", 1);
    check_whole("pi05", "expected", 3);
    check_whole("pi05", "expected_missing", 2);
}

static void infos(void **state) {
    (void)state;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_policy *policy = open_golden("pi05");
    openpi_policy_get_info(policy, &info, NULL);
    assert_string_equal(info.robot, "lerobot");
    assert_int_equal(info.lerobot, 1);
    assert_int_equal(info.state_length, 8);
    assert_int_equal(info.action_dim, 7);
    assert_int_equal(info.horizon, 15);
    assert_int_equal(info.prompt_state, 1);
    assert_string_equal(info.cameras[0], "front");
    assert_string_equal(info.cameras[1], "wrist");
    assert_string_equal(info.cameras[2], "side");
    openpi_policy_close(policy);
    policy = open_golden("pi0");
    openpi_policy_get_info(policy, &info, NULL);
    assert_string_equal(info.cameras[0], "top");
    assert_string_equal(info.cameras[1], "left_wrist");
    assert_string_equal(info.cameras[2], "");
    assert_int_equal(info.horizon, 10);
    assert_int_equal(info.prompt_state, 0);
    openpi_policy_close(policy);
}

static void names_of_cameras(void **state) {
    (void)state;
    openpi_policy *policy = open_golden("pi05");
    const lerobot *p = &policy->pipeline;
    static const char *const names[3][6] = {
        {"front", "observation.images.front", "base_0_rgb", "observation.images.base_0_rgb", "base", NULL},
        {"wrist", "observation.images.wrist", "left_wrist_0_rgb", "observation.images.left_wrist_0_rgb", "left_wrist", NULL},
        {"side", "observation.images.side", "right_wrist_0_rgb", "observation.images.right_wrist_0_rgb", "right_wrist", NULL},
    };
    for (int c = 0; c < 3; c++)
        for (int k = 0; names[c][k]; k++) assert_int_equal(lerobot_camera(p, names[c][k]), c);
    assert_int_equal(lerobot_camera(p, "top"), -1);
    assert_int_equal(lerobot_camera(p, ""), -1);
    openpi_policy_close(policy);
    policy = open_golden("pi0");
    assert_int_equal(lerobot_camera(&policy->pipeline, "left_wrist"), 1);
    assert_int_equal(lerobot_camera(&policy->pipeline, "base"), 0);
    assert_int_equal(lerobot_camera(&policy->pipeline, "empty_camera_0"), -1);
    assert_int_equal(lerobot_camera(&policy->pipeline, "right_wrist"), -1);
    assert_true(lerobot_camera_by_position(&policy->pipeline, "base"));
    assert_false(lerobot_camera_by_position(&policy->pipeline, "left_wrist"));
    assert_false(lerobot_camera_by_position(&policy->pipeline, "top"));
    openpi_policy_close(policy);
}

/* The name of a slot means the feature of that name, wherever it stands; never the feature of another slot's
 * name; and by position only else. */
static void slot_names_mean_the_feature(void **state) {
    static const struct {
        const char *features[3];
        int slots[3], guessed[3];            /* of base, left_wrist, right_wrist: the feature, by position */
    } cases[] = {
        {{"right_wrist_0_rgb", "base_0_rgb", "left_wrist_0_rgb"}, {1, 2, 0}, {0}},
        {{"right_wrist", "left_wrist", "base"}, {2, 1, 0}, {0}},
        {{"left_wrist", "top", "front"}, {-1, 0, 2}, {0, 0, 1}},
        {{"wrist", "base_0_rgb", "top"}, {1, -1, 2}, {0, 0, 1}},
        {{"front", "wrist", "side"}, {0, 1, 2}, {1, 1, 1}},
    };
    static const char *const names[3][2] = {
        {"base", "base_0_rgb"}, {"left_wrist", "left_wrist_0_rgb"}, {"right_wrist", "right_wrist_0_rgb"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lerobot p = {.camera_count = 3};
        for (int c = 0; c < 3; c++)
            snprintf(p.cameras[c], sizeof p.cameras[c], "observation.images.%s", cases[i].features[c]);
        for (int s = 0; s < 6; s++) {
            const char *name = names[s / 2][s % 2];
            if (lerobot_camera(&p, name) != cases[i].slots[s / 2])
                fail_msg("case %zu: %s is %d", i, name, lerobot_camera(&p, name));
            assert_int_equal(lerobot_camera_by_position(&p, name), cases[i].guessed[s / 2]);
        }
    }
}

static void bad_observations(void **state) {
    (void)state;
    static const uint8_t dark[12];
    const openpi_image top = IMAGE("top", dark, OPENPI_U8, OPENPI_HWC, 2, 2),
                       same = IMAGE("observation.images.top", dark, OPENPI_U8, OPENPI_HWC, 2, 2),
                       unknown = IMAGE("front", dark, OPENPI_U8, OPENPI_HWC, 2, 2),
                       empty = IMAGE("empty_camera_0", dark, OPENPI_U8, OPENPI_HWC, 2, 2);
    const openpi_image twice[2] = {top, same};
    const double zeros[DIMS] = {0}, huge[14] = {1e39};
    const struct {
        openpi_observation observation;
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {OBSERVATION(&top, 1, zeros, 14, "go", 0), OPENPI_OK, ""},
        {OBSERVATION(NULL, 0, zeros, 14, "go", 0), OPENPI_BAD_INPUT,
         "no picture is given; robot \"lerobot\" has cameras top, left_wrist"},
        {OBSERVATION(&unknown, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT,
         "no camera \"front\", it has top, left_wrist"},
        {OBSERVATION(&empty, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "no camera \"empty_camera_0\""},
        {OBSERVATION(twice, 2, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "of the same camera"},
        {OBSERVATION(&top, 1, zeros, 8, "go", 0), OPENPI_BAD_INPUT,
         "the state has 8 numbers, robot \"lerobot\" has 14"},
        {OBSERVATION(&top, 1, huge, 14, "go", 0), OPENPI_BAD_INPUT, "state[0] is 1e+39"},
        {OBSERVATION(&top, 1, zeros, 14, NULL, 0), OPENPI_BAD_INPUT, "a prompt is required"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_request *request;
    openpi_policy *policy = open_golden("pi0");
    WORKS(openpi_request_create(policy, &request, &error));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSES(openpi_request_prepare(request, &cases[i].observation, NULL, &error), cases[i].status, cases[i].sentence);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* ---- a LeRobot observation as msgpack --------------------------------------------------------------- */

static void msgpack_says_the_same(void **unused) {
    (void)unused;
    static const uint8_t dots[2 * 2 * 3] = {0, 50, 100, 150, 200, 250, 1, 2, 3, 4, 5, 6};
    const float state[8] = {0.1f, -0.2f, 0.3f, 0.4f, -0.5f, 0.6f, 0.7f, 0.8f};
    const struct {
        const char *camera, *state, *prompt;
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {"observation.images.front", "observation.state", "task", OPENPI_OK, ""},
        {"front", "state", "prompt", OPENPI_OK, ""},
        {"observation.images.back", "observation.state", "task", OPENPI_BAD_INPUT,
         "no camera \"observation.images.back\", it has front, wrist, side"},
        {"front", "observation.joints", "task", OPENPI_BAD_INPUT, "the request has no \"observation.state\", expected 8 numbers"},
        {"front", "observation.state", "words", OPENPI_BAD_INPUT, "a prompt is required"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_request *named, *packed;
    openpi_policy *policy = open_golden("pi05");
    double given[8];
    openpi_image image = IMAGE("front", dots, OPENPI_U8, OPENPI_HWC, 2, 2);
    openpi_observation observation = OBSERVATION(&image, 1, given, 8, "stack the_cups", 0);
    for (int i = 0; i < 8; i++) given[i] = (double)state[i];
    WORKS(openpi_request_create(policy, &named, &error));
    WORKS(openpi_request_create(policy, &packed, &error));
    WORKS(openpi_request_prepare(named, &observation, NULL, &error));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        msgpack_sbuffer bytes;
        msgpack_packer packer;
        msgpack_sbuffer_init(&bytes);
        msgpack_packer_init(&packer, &bytes, msgpack_sbuffer_write);
        msgpack_pack_map(&packer, 3);
        pack_text(&packer, cases[i].camera),
            pack_array(&packer, "|u1", (const int[]){2, 2, 3}, 3, dots, sizeof dots);
        pack_text(&packer, cases[i].state),
            pack_array(&packer, "<f4", (const int[]){8}, 1, state, sizeof state);
        pack_text(&packer, cases[i].prompt), pack_text(&packer, observation.prompt);
        REFUSES(openpi_request_prepare_msgpack(packed, bytes.data, bytes.size, NULL, &error), cases[i].status, cases[i].sentence);
        msgpack_sbuffer_destroy(&bytes);
        if (cases[i].status != OPENPI_OK) continue;
        const openpi_sample a_ = prepared(named), b_ = prepared(packed), *a = &a_, *b = &b_;
        assert_int_equal(a->token_count, b->token_count);
        assert_memory_equal(a->tokens, b->tokens, (size_t)a->token_count * sizeof *a->tokens);
        assert_memory_equal(a->state, b->state, DIMS * sizeof(float));
        assert_memory_equal(a->image_mask, b->image_mask, 3);
        for (int slot = 0; slot < 3; slot++)
            assert_memory_equal(a->images[slot], b->images[slot], PIXELS * sizeof(float));
    }
    openpi_request_close(packed);
    openpi_request_close(named);
    openpi_policy_close(policy);
}

/* ---- synthetic checkpoints -------------------------------------------------------------------------- */

/* The model in memory computes the same numbers as the files that openpi_synthetic_write makes. */
static void in_memory_as_on_disk(void **unused) {
    (void)unused;
    static const char path[] = "test_lerobot_synthetic";
    for (int v = 0; v < 2; v++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_policy *policies[2];
        openpi_request *requests[2];
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        static const uint8_t dots[2 * 2 * 3] = {0, 50, 100, 150, 200, 250, 1, 2, 3, 4, 5, 6};
        openpi_image image = IMAGE("left_wrist_0_rgb", dots, OPENPI_U8, OPENPI_HWC, 2, 2);
        double state[DIMS], actions[2][DIMS];
        float model[DIMS];
        openpi_observation observation = OBSERVATION(&image, 1, state, DIMS, "stack the_cups", 0);
        for (int i = 0; i < DIMS; i++) state[i] = 0.1 * i - 1, model[i] = 0.05f * (float)i;
        WORKS(openpi_synthetic_parse(v ? "tiny:pi05:9" : "tiny:pi0:9", &synthetic, &error));
        synthetic.lerobot = 1;
        WORKS(openpi_synthetic_write(&synthetic, path, 0, 1, NULL, NULL, &error));
        WORKS(openpi_policy_open(path, NULL, &policies[0], &error));
        options.synthetic = &synthetic;
        WORKS(openpi_policy_open(NULL, &options, &policies[1], &error));
        for (int p = 0; p < 2; p++) {
            assert_int_equal(policies[p]->lerobot, 1);
            assert_int_equal(policies[p]->horizon, policies[0]->horizon);
            assert_int_equal(policies[p]->max_prompt, policies[0]->max_prompt);
            WORKS(openpi_request_create(policies[p], &requests[p], &error));
            WORKS(openpi_request_prepare(requests[p], &observation, NULL, &error));
            WORKS(openpi_request_finish(requests[p], model, 1, actions[p], CAPACITY(actions[p]), &error));
        }
        const openpi_sample a_ = prepared(requests[0]), b_ = prepared(requests[1]), *a = &a_, *b = &b_;
        assert_memory_equal(a->state, b->state, DIMS * sizeof *a->state);
        assert_int_equal(a->token_count, b->token_count);
        assert_memory_equal(a->tokens, b->tokens, (size_t)a->token_count * sizeof *a->tokens);
        assert_memory_equal(a->image_mask, b->image_mask, 3);
        assert_memory_equal(actions[0], actions[1], sizeof actions[0]);
        assert_true(a->state[0] != (float)state[0] && actions[0][1] != (double)model[1]);
        for (int p = 0; p < 2; p++) {
            openpi_request_close(requests[p]);
            openpi_policy_close(policies[p]);
        }
        static const char *const names[] = {"config.json",
                                            "model.safetensors",
                                            "tokenizer.model",
                                            "policy_preprocessor.json",
                                            "policy_postprocessor.json",
                                            "policy_preprocessor_step_6_normalizer_processor.safetensors",
                                            "policy_preprocessor_step_3_normalizer_processor.safetensors",
                                            "policy_postprocessor_step_0_unnormalizer_processor.safetensors"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char file[256];
            snprintf(file, sizeof file, "%s/%s", path, names[i]);
            unlink(file);
        }
        assert_int_equal(rmdir(path), 0);
    }
}

/* ---- broken checkpoints ---------------------------------------------------------------------------- */

#define STEP(name, settings) "{\"registry_name\": \"" name "\", \"config\": {" settings "}}"

static void refuses_broken_checkpoints(void **state) {
    (void)state;
    static const char config[] = "config.json", before[] = "policy_preprocessor.json",
                      after[] = "policy_postprocessor.json";
    static const struct {
        const char *file, *path, *value;
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {config, "type", "\"smolvla\"", OPENPI_UNSUPPORTED, "\"type\" is \"smolvla\""},
        {config, "input_features", "3", OPENPI_BAD_FILE, "\"input_features\" is an integer"},
        {config, "input_features", "{}", OPENPI_BAD_FILE, "has no camera"},
        {config, "input_features/observation.state/shape", "[33]", OPENPI_BAD_FILE,
         "\"observation.state\" is not one number from 1 to 32"},
        {config, "input_features/observation.state/shape", "[2, 4]", OPENPI_BAD_FILE, "\"observation.state\""},
        {config, "input_features/observation.state/type", NULL, OPENPI_BAD_FILE, "has no type"},
        {config, "output_features/action/shape", "[0]", OPENPI_BAD_FILE, "\"action\""},
        {config, "empty_cameras", "1", OPENPI_UNSUPPORTED, "more than 3 cameras"},
        {config, "chunk_size", "65", OPENPI_BAD_FILE, "\"chunk_size\" is 65"},
        {config, "max_state_dim", "64", OPENPI_UNSUPPORTED, "\"max_state_dim\" is 64"},
        {config, "n_obs_steps", "2", OPENPI_UNSUPPORTED, "\"n_obs_steps\" is 2"},
        {config, "image_resolution", "[384, 384]", OPENPI_UNSUPPORTED, "\"image_resolution\""},
        {config, "use_visual_memory", "true", OPENPI_UNSUPPORTED, "memory"},
        {before, "steps", "{}", OPENPI_BAD_FILE, "\"steps\" is an object"},
        {before, "steps/1/registry_name", "\"vision_memory_processor\"", OPENPI_UNSUPPORTED,
         "step 1 is \"vision_memory_processor\""},
        {before, "steps/1/registry_name", NULL, OPENPI_UNSUPPORTED, "step 1 has no registry_name"},
        {before, "steps/1", "7", OPENPI_UNSUPPORTED, "step 1 has no registry_name"},
        {before, "steps/1/registry_name", "\"unnormalizer_processor\"", OPENPI_UNSUPPORTED,
         "step 1 is \"unnormalizer_processor\""},
        {before, "steps/1/config", "[]", OPENPI_BAD_FILE, "config of step 1 (to_batch_processor) is an array"},
        {before, "steps/1/config/squeeze", "true", OPENPI_UNSUPPORTED, "step 1 (to_batch_processor) has a setting \"squeeze\""},
        {before, "steps/0/config/rename_map", "{\"a\": 1}", OPENPI_BAD_FILE, "rename_map.\"a\" is an integer"},
        {before, "steps/1/registry_name", "\"rename_observations_processor\"", OPENPI_OK, ""},
        {before, "steps/2/config/action_names", "3", OPENPI_BAD_FILE, "\"action_names\" is an integer"},
        {before, "steps/2/config/action_names", "[3]", OPENPI_BAD_FILE, "action_names[0] is an integer"},
        {before, "steps/2/config/exclude_joints", "[3]", OPENPI_BAD_FILE, "exclude_joints[0]"},
        {before, "steps/2", NULL, OPENPI_BAD_FILE,
         "step 1 makes actions absolute, but the preprocessor has no relative_actions_processor"},
        {before, "steps/3/config/norm_map/STATE", "\"MAGIC\"", OPENPI_UNSUPPORTED, "norm_map: \"STATE\" is \"MAGIC\", expected one of"},
        {before, "steps/3/config/norm_map/STATE", "1", OPENPI_UNSUPPORTED, "norm_map: \"STATE\" is 1, expected one of"},
        {before, "steps/3/config/norm_map/VISUAL", "\"MEAN_STD\"", OPENPI_UNSUPPORTED,
         "pictures (\"observation.images.base_0_rgb\") are normalised"},
        {before, "steps/3/config/eps", "\"small\"", OPENPI_BAD_FILE, "\"eps\" is a string"},
        {before, "steps/3/state_file", "\"../other.safetensors\"", OPENPI_BAD_FILE, "expected a name inside"},
        {before, "steps/3/state_file", "\"/etc/passwd\"", OPENPI_BAD_FILE, "expected a name inside"},
        {before, "steps/3/state_file", "\"nowhere.safetensors\"", OPENPI_NOT_FOUND, "nowhere.safetensors"},
        {before, "steps/3/state_file", "\"config.json\"", OPENPI_BAD_FILE, "config.json"},
        {before, "steps/4", NULL, OPENPI_UNSUPPORTED, "1 tokenizer steps after 0 steps that write the prompt"},
        {before, "steps/5", NULL, OPENPI_UNSUPPORTED, "0 tokenizer steps"},
        {before, "steps/6/registry_name", "\"pi0_new_line_processor\"", OPENPI_UNSUPPORTED, "pi0_new_line_processor"},
        {before, "steps/5/config/max_length", NULL, OPENPI_BAD_FILE, "\"max_length\" is absent"},
        {before, "steps/5/config/max_length", "0", OPENPI_BAD_FILE, "\"max_length\" is 0"},
        {before, "steps/5/config/truncation", "false", OPENPI_UNSUPPORTED, "\"truncation\" is false, expected true"},
        {before, "steps/5/config/task_key", "\"subtask\"", OPENPI_UNSUPPORTED, "\"task_key\" is \"subtask\""},
        {before, "steps/5/artifacts/tokenizer_name", "\"../x\"", OPENPI_BAD_FILE, "the tokenizer's folder is \"../x\""},
        {before, "steps/6/config/float_dtype", "\"bfloat16\"", OPENPI_UNSUPPORTED, "\"float_dtype\" is \"bfloat16\""},
        {after, "steps/0/config/norm_map/ACTION", "\"QUANTILE50\"", OPENPI_UNSUPPORTED, "norm_map: \"ACTION\" is \"QUANTILE50\""},
        {after, "steps/1/config/enabled", "\"yes\"", OPENPI_BAD_FILE, "\"enabled\" is a string"},
        {after, "steps/0/registry_name", "\"normalizer_processor\"", OPENPI_UNSUPPORTED, "step 0 is \"normalizer_processor\""},
        {config, "normalization_mapping", "\"MEAN_STD\"", OPENPI_BAD_FILE, "\"normalization_mapping\" is a string, expected an object"},
        {config, "output_features", "[]", OPENPI_BAD_FILE, "\"output_features\" is an array, expected an object"},
        {config, "input_features/depth", "[3]", OPENPI_BAD_FILE, "feature \"depth\" is an array, expected an object"},
        {config, "input_features/observation.state/type", "\"VISUAL\"", OPENPI_BAD_FILE,
         "the type of feature \"observation.state\" is \"VISUAL\", expected \"STATE\""},
        {config, "output_features/action/type", "\"STATE\"", OPENPI_BAD_FILE,
         "the type of feature \"action\" is \"STATE\", expected \"ACTION\""},
        {config, "input_features/observation.images.base_0_rgb/shape", "[1, 224, 224]", OPENPI_UNSUPPORTED,
         "the shape of camera \"observation.images.base_0_rgb\" is not [3, height, width]"},
        {config, "input_features/observation.images.base_0_rgb/shape", NULL, OPENPI_UNSUPPORTED, "the shape of camera"},
        {config, "input_features/observation.images.base_0_rgb/shape", "[480, 640, 3]", OPENPI_OK, ""},
        {before, "steps/0/config/rename_map", "[\"a\"]", OPENPI_BAD_FILE, "\"rename_map\" is an array, expected an object"},
        {before, "steps/0/config/rename_map", "{\"observation.state\": \"observation.q\"}",
         OPENPI_UNSUPPORTED, "rename_map gives \"observation.state\", which the model reads, the name \""},
        {before, "steps/6",
         STEP("rename_observations_processor", "\"rename_map\": {\"q\": \"observation.state\"}"),
         OPENPI_UNSUPPORTED, "step 6 gives the state its name after step 4, which reads it"},
        {before, "steps/1", STEP("relative_actions_processor", ""), OPENPI_UNSUPPORTED,
         "step 2 (relative_actions_processor) is the same kind of step as step 1, expected one"},
        {before, "steps/1", STEP("normalizer_processor", ""), OPENPI_UNSUPPORTED,
         "step 3 (normalizer_processor) is the same kind of step as step 1, expected one"},
        {after, "steps/2", STEP("unnormalizer_processor", ""), OPENPI_UNSUPPORTED,
         "step 2 (unnormalizer_processor) is the same kind of step as step 0, expected one"},
        {after, "steps/2", STEP("absolute_actions_processor", "\"enabled\": true"), OPENPI_UNSUPPORTED,
         "step 2 (absolute_actions_processor) is the same kind of step as step 1, expected one"},
        {before, "steps/4/state_file", "\"x.safetensors\"", OPENPI_UNSUPPORTED, "has \"state_file\", which this step does not read"},
        {before, "steps/4/artifacts", "{}", OPENPI_UNSUPPORTED, "has \"artifacts\", which this step does not read"},
        {before, "steps/5/artifacts", "[\"tokenizer\"]", OPENPI_BAD_FILE, "\"artifacts\" is an array, expected an object"},
        {before, "steps/3/config/norm_map", "\"QUANTILES\"", OPENPI_BAD_FILE, "\"norm_map\" is a string, expected an object"},
        {before, "steps/3/config/features", "[]", OPENPI_BAD_FILE, "\"features\" is an array, expected an object"},
        {before, "steps/3/config/features/observation.state/type", "\"ACTION\"", OPENPI_BAD_FILE,
         "the type of feature \"observation.state\" is \"ACTION\", expected \"STATE\""},
        {before, "steps/3/config/features/observation.state/clip", "1", OPENPI_UNSUPPORTED,
         "step 3 (normalizer_processor): feature \"observation.state\" has a setting \"clip\""},
        {before, "steps/3/config/normalize_observation_keys", "\"observation.state\"", OPENPI_BAD_FILE,
         "\"normalize_observation_keys\" is a string, expected an array"},
        {before, "steps/3/config/normalize_observation_keys", "[1]", OPENPI_BAD_FILE,
         "normalize_observation_keys[0] is an integer, expected a string"},
        {before, "steps/3/config/eps", "-1", OPENPI_BAD_FILE, "\"eps\" is negative, expected a number of 0 or more"},
        {before, "steps/3/config/eps", "0", OPENPI_OK, ""},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    lerobot pipeline;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_copy("pi05_relative");
        folder_patch(cases[i].file, cases[i].path, cases[i].value);
        if (cases[i].status == OPENPI_OK) WORKS(lerobot_open(folder_name, &pipeline, NULL, &error));
        else REFUSES(lerobot_open(folder_name, &pipeline, NULL, &error), cases[i].status, cases[i].sentence);
    }
    for (size_t i = 0; i < 3; i++) {                                  /* a file that is absent, or no JSON */
        char path[512];
        folder_copy("pi05_relative");
        snprintf(path, sizeof path, "%s/%s", folder_name, folder_files[i]);
        assert_int_equal(truncate(path, 20), 0);
        REFUSES(lerobot_open(folder_name, &pipeline, NULL, &error), OPENPI_BAD_FILE, folder_files[i]);
        unlink(path);
        REFUSES(lerobot_open(folder_name, &pipeline, NULL, &error), OPENPI_NOT_FOUND, folder_files[i]);
    }
    folder_remove();
}

/* Excluded joints are found in names of any case; scripts/locale.sh runs this where 'I' is no capital 'i'. */
static void excluded_in_any_case(void **state) {
    (void)state;
    static const char before[] = "policy_preprocessor.json";
    static const char *const excluded[] = {"[\"gripper\"]", "[\"GRIP\"]"};
    static const uint8_t expected[7] = {1, 1, 1, 1, 1, 0, 0};
    openpi_error error = OPENPI_ERROR_INIT;
    lerobot pipeline;
    for (int i = 0; i < 2; i++) {
        folder_copy("pi05_relative");
        folder_patch(before, "steps/2/config/action_names",
              "[\"x\", \"y\", \"z\", \"Pitch\", \"trip\", \"GRIPPER\", \"left_gripper\"]");
        folder_patch(before, "steps/2/config/exclude_joints", excluded[i]);
        WORKS(lerobot_open(folder_name, &pipeline, NULL, &error));
        assert_memory_equal(pipeline.relative, expected, sizeof expected);
    }
    folder_remove();
}

/* config.json's action_feature_names, of seven actions: taken, or told and left out. */
static void names_of_actions(void **state) {
    (void)state;
    static const struct {
        const char *value, *note;
    } cases[] = {
        {"null", NULL},
        {"[\"pan.pos\",\"b\",\"c\",\"d\",\"e\",\"f\",\"gripper.pos\"]", ""},
        {"\"pan\"", "config.json: \"action_feature_names\" is a string, expected a different name of 1 to "
                    "63 bytes for each of the 7 actions: the actions have no names"},
        {"[\"motors\"]", "\"action_feature_names\" has 1 entries"},
        {"[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",7]", "\"action_feature_names\"[6] is no string"},
        {"[\"a\",\"\",\"c\",\"d\",\"e\",\"f\",\"g\"]", "[1] is empty"},
        {"[\"a\",\"b\",\"a\",\"d\",\"e\",\"f\",\"g\"]", "[2] is there twice"},
        {"[\"a,b\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\"]", "[0] is with a comma"},
        {"[\"0123456789012345678901234567890123456789012345678901234567890123\",\"b\",\"c\",\"d\",\"e\","
         "\"f\",\"g\"]",
         "[0] is too long"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lerobot pipeline;
        notes notes = {0};
        folder_copy("pi05_relative");
        folder_patch("config.json", "action_feature_names", cases[i].value);
        WORKS(lerobot_open(folder_name, &pipeline, &notes, &error));
        int named = cases[i].note && !cases[i].note[0], told = cases[i].note && cases[i].note[0];
        assert_string_equal(pipeline.action_names[0], named ? "pan.pos" : "");
        assert_string_equal(pipeline.action_names[6], named ? "gripper.pos" : "");
        int warning = 0;
        const char *note = notes_get(&notes, 0, &warning);
        assert_int_equal(!!note, told);
        if (told) assert_non_null(strstr(note, cases[i].note));
        assert_int_equal(warning, told);
    }
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    options.tokenizer = GOLDEN "/tokenizer.model";
    folder_patch("config.json", "action_feature_names", cases[1].value);
    WORKS(openpi_policy_open(folder_name, &options, &policy, &error));
    assert_string_equal(openpi_policy_action_name(policy, 6), "gripper.pos");
    openpi_policy_close(policy);
    folder_remove();
}

static void options_that_do_not_fit(void **state) {
    (void)state;
    static const openpi_synthetic pi0 = {.size = sizeof pi0, .lerobot = 1, .dims = OPENPI_DIMS_INIT},
                                  pi05 = {.size = sizeof pi05, .variant = OPENPI_PI05, .lerobot = 1,
                                          .dims = OPENPI_DIMS_INIT};
    static const struct {
        openpi_policy_options options;
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {{.norm_stats = GOLDEN "/policy/droid_pi0/norm_stats.json"}, OPENPI_BAD_ARGUMENT, "has its own statistics"},
        {{.prompt_state = OPENPI_PROMPT_STATE_OFF}, OPENPI_BAD_ARGUMENT, "prompt_state cannot be changed"},
        {{.tokenizer = "nowhere.json"}, OPENPI_NOT_FOUND, "nowhere.json"},
        {{.robot = NULL}, OPENPI_NOT_FOUND, "holds no tokenizer.json, which policy_preprocessor.json names"},
        {{.robot = "lerobot", .tokenizer = GOLDEN "/tokenizer.model", .max_prompt = 10}, OPENPI_OK, ""},
        {{.synthetic = &pi05}, OPENPI_OK, ""},
        {{.synthetic = &pi0}, OPENPI_BAD_ARGUMENT, "is a π0.5 model, the synthetic one is π0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_policy *policy = NULL;
        openpi_policy_options options = cases[i].options;
        options.size = sizeof options;
        REFUSES(openpi_policy_open(GOLDEN "/lerobot/pi05_relative/checkpoint", &options, &policy, &error),
                cases[i].status, cases[i].sentence);
        openpi_policy_close(policy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipelines_are_lerobots),
        cmocka_unit_test(observations_are_lerobots),
        cmocka_unit_test(infos),
        cmocka_unit_test(names_of_cameras),
        cmocka_unit_test(slot_names_mean_the_feature),
        cmocka_unit_test(bad_observations),
        cmocka_unit_test(msgpack_says_the_same),
        cmocka_unit_test(refuses_broken_checkpoints),
        cmocka_unit_test(excluded_in_any_case),
        cmocka_unit_test(names_of_actions),
        cmocka_unit_test(options_that_do_not_fit),
        cmocka_unit_test(in_memory_as_on_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
