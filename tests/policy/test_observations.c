/* labels: isa_slow threads */
/* Observations: messages, cameras, states and prompts as they come, and what is refused
 * (policy/request.c). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/policy.h"
#include "synthetic_policy.h"

/* ---- requests of our own ---------------------------------------------------------------------------- */

typedef struct pack_field {
    const char *key, *type;      /* type NULL: text in data; "" a number                                  */
    int shape[4], rank;
    const char *data;            /* NULL: zeros                                                           */
} pack_field;

static void pack_message(msgpack_sbuffer *bytes, const pack_field *fields) {
    static const char zeros[4096];
    msgpack_packer packer;
    size_t count = 0;
    while (fields[count].key) count++;
    msgpack_sbuffer_init(bytes);
    msgpack_packer_init(&packer, bytes, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, count);
    for (const pack_field *f = fields; f->key; f++) {
        size_t size = f->type && f->type[0] ? (size_t)(f->type[2] - '0') : 0;
        for (int i = 0; i < f->rank; i++) size *= (size_t)f->shape[i];
        pack_text(&packer, f->key);
        if (!f->type) pack_text(&packer, f->data);
        else if (!f->type[0]) msgpack_pack_double(&packer, 0.5);
        else pack_array(&packer, f->type, f->shape, f->rank, f->data ? f->data : zeros, size);
    }
}

#define JOINTS {"observation/joint_position", "<f8", {7}, 1, NULL}
#define GRIPPER {"observation/gripper_position", "", {0}, 0, NULL}
#define OUTSIDE {"observation/exterior_image_1_left", "|u1", {4, 6, 3}, 3, NULL}
#define WRIST {"observation/wrist_image_left", "|u1", {4, 6, 3}, 3, NULL}
#define HIGH {"images/cam_high", "|u1", {3, 4, 6}, 3, NULL}
#define ARMS {"state", "<f4", {14}, 1, NULL}
#define GO {"prompt", NULL, {0}, 0, "go"}

static void messages_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *robot;
        pack_field fields[8];
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {"droid", {OUTSIDE, WRIST, JOINTS, GRIPPER, GO}, OPENPI_OK, ""},
        {"droid", {OUTSIDE, WRIST, JOINTS, GRIPPER, {"prompt", NULL, {0}, 0, ""}}, OPENPI_OK, ""},
        {"droid",
         {OUTSIDE, WRIST, JOINTS, GRIPPER, GO, {"observation/exterior_image_2_left", "|u1", {4, 6, 3}, 3, NULL}},
         OPENPI_OK,
         ""},
        {"droid",
         {OUTSIDE, JOINTS, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "camera \"observation/wrist_image_left\" (left_wrist), which robot \"droid\" needs"},
        {"droid", {OUTSIDE, WRIST, GRIPPER, GO}, OPENPI_BAD_INPUT, "has no \"observation/joint_position\", expected 7 numbers"},
        {"droid",
         {OUTSIDE, WRIST, {"observation/joint_position", "<f8", {8}, 1, NULL}, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "\"observation/joint_position\" of the request has 8 numbers, expected 7"},
        {"droid",
         {OUTSIDE, WRIST, {"observation/joint_position", NULL, {0}, 0, "7"}, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "observation/joint_position"},
        {"droid", {OUTSIDE, WRIST, JOINTS, GRIPPER}, OPENPI_BAD_INPUT, "a prompt is required"},
        {"droid", {OUTSIDE, WRIST, JOINTS, GRIPPER, {"prompt", "<f8", {3}, 1, NULL}}, OPENPI_BAD_INPUT, "prompt"},
        {"droid",
         {OUTSIDE, {"observation/wrist_image_left", "|u1", {4, 6}, 2, NULL}, JOINTS, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "observation/wrist_image_left"},
        {"droid",
         {OUTSIDE, {"base", "|u1", {4, 6, 3}, 3, NULL}, WRIST, JOINTS, GRIPPER, GO},
         OPENPI_BAD_INPUT,
         "are of the same camera"},
        {"aloha", {HIGH, ARMS, GO}, OPENPI_OK, ""},
        {"aloha", {HIGH, {"images/cam_low", "|u1", {3, 2, 2}, 3, NULL}, ARMS, GO}, OPENPI_OK, ""},
        {"aloha",
         {{"images/cam_high", "|u1", {4, 6, 3}, 3, NULL}, ARMS, GO},
         OPENPI_BAD_INPUT,
         "images/cam_high"}, /* always CHW */
        {"aloha",
         {HIGH, {"images/cam_front", "|u1", {3, 4, 6}, 3, NULL}, ARMS, GO},
         OPENPI_BAD_INPUT,
         "no camera \"images/cam_front\""},
        {"aloha",
         {HIGH, {"state", "<f4", {32}, 1, NULL}, GO},
         OPENPI_BAD_INPUT,
         "\"state\" of the request has 32 numbers, expected 14"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_policy *policy = open_synthetic(cases[i].robot, NULL, OPENPI_PI0);
        openpi_request *request;
        msgpack_sbuffer bytes;
        WORKS(openpi_request_create(policy, &request, &error));
        pack_message(&bytes, cases[i].fields);
        REFUSES(openpi_request_prepare_msgpack(request, bytes.data, bytes.size, NULL, &error),
                cases[i].status, cases[i].sentence);
        msgpack_sbuffer_destroy(&bytes);
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

/* ---- observations ------------------------------------------------------------------------------- */

static const uint8_t grey[4 * 6 * 3] = {90, 90, 90, 91, 92, 93};
static const double zeros[DIMS];

static openpi_image picture(const char *name) {
    return (openpi_image)IMAGE(name, grey, OPENPI_U8, OPENPI_HWC, 4, 6);
}

/* The same observation by any of a camera's names gives the same sample. */
static void names_of_cameras(void **state) {
    (void)state;
    static const struct {
        const char *robot, *names[3][4];
    } cases[] = {
        {"aloha",
         {{"images/cam_high", "cam_high", "base", "base_0_rgb"},
          {"images/cam_left_wrist", "cam_left_wrist", "left_wrist", "left_wrist_0_rgb"},
          {"images/cam_right_wrist", "cam_right_wrist", "right_wrist", "right_wrist_0_rgb"}}},
        {"droid",
         {{"observation/exterior_image_1_left", "exterior_image_1_left", "base", "base_0_rgb"},
          {"observation/wrist_image_left", "wrist_image_left", "left_wrist", "left_wrist_0_rgb"},
          {NULL, NULL, NULL, NULL}}},
        {"libero",
         {{"observation/image", "image", "base", "base_0_rgb"},
          {"observation/wrist_image", "wrist_image", "left_wrist", "left_wrist_0_rgb"},
          {NULL, NULL, NULL, NULL}}},
        {"none",
         {{"base", "base", "base", "base_0_rgb"},
          {"left_wrist", "left_wrist", "left_wrist", "left_wrist_0_rgb"},
          {"right_wrist", "right_wrist", "right_wrist", "right_wrist_0_rgb"}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_policy *policy = open_synthetic(cases[i].robot, NULL, OPENPI_PI05);
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_request *request;
        openpi_policy_get_info(policy, &info, NULL);
        assert_string_equal(info.robot, cases[i].robot);
        WORKS(openpi_request_create(policy, &request, &error));
        for (int form = 0; form < 4; form++) {
            openpi_image images[3];
            openpi_observation observation = OBSERVATION(images, 0, zeros,
                                                         info.state_length ? info.state_length : 5, "go", 0);
            for (int slot = 0; slot < 3; slot++) {
                assert_string_equal(info.cameras[slot],
                                    cases[i].names[slot][0] ? cases[i].names[slot][0] : "");
                if (cases[i].names[slot][0])
                    images[observation.image_count++] = picture(cases[i].names[slot][form]);
            }
            WORKS(openpi_request_prepare(request, &observation, NULL, &error));
            for (int slot = 0; slot < 3; slot++)
                assert_int_equal(prepared(request).image_mask[slot], cases[i].names[slot][0] != NULL);
        }
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

static void refuses_bad_observations(void **state) {
    (void)state;
    const double nan_state[14] = {0, 0, 0, NAN}, huge_state[14] = {0, 1e300},
                 infinite_state[14] = {-INFINITY};
    const openpi_image high = picture("cam_high"), low = picture("cam_low"), wrist = picture("left_wrist"),
                       twice = picture("base"), unknown = picture("cam_front"), unnamed = picture(NULL),
                       thin = IMAGE("cam_high", grey, OPENPI_U8, OPENPI_HWC, 2000, 3),
                       empty = IMAGE("cam_high", NULL, OPENPI_U8, OPENPI_HWC, 4, 6);
    const openpi_image two[2] = {high, twice}, both[2] = {high, low}, only_wrist[1] = {wrist};
    const struct {
        openpi_observation observation;
        openpi_status status;
        const char *sentence;
    } cases[] = {
        {OBSERVATION(&high, 1, zeros, 14, "go", 0), OPENPI_OK, ""},
        {OBSERVATION(both, 2, zeros, 14, "go", 0), OPENPI_OK, ""},
        {OBSERVATION(&high, 1, zeros, 14, "", 0), OPENPI_OK, ""},
        {OBSERVATION(NULL, 0, zeros, 14, "go", 0), OPENPI_BAD_INPUT,
         "camera \"images/cam_high\" (base), which robot \"aloha\" needs, is missing"},
        {OBSERVATION(only_wrist, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "\"images/cam_high\""},
        {OBSERVATION(&low, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "\"images/cam_high\""},
        {OBSERVATION(NULL, 1, zeros, 14, "go", 0), OPENPI_BAD_ARGUMENT, "1 pictures at NULL"},
        {OBSERVATION(&high, -1, zeros, 14, "go", 0), OPENPI_BAD_ARGUMENT, "-1 pictures"},
        {OBSERVATION(two, 2, zeros, 14, "go", 0), OPENPI_BAD_INPUT,
         "\"cam_high\" and \"base\" are of the same camera"},
        {OBSERVATION(&unknown, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT,
         "no camera \"cam_front\", it has images/cam_high (base), images/cam_left_wrist (left_wrist), "
         "images/cam_right_wrist "
         "(right_wrist), "
         "images/cam_low (unused)"},
        {OBSERVATION(&unnamed, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "picture 0 has no name"},
        {OBSERVATION(&thin, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "cam_high"},
        {OBSERVATION(&empty, 1, zeros, 14, "go", 0), OPENPI_BAD_INPUT, "cam_high"},
        {OBSERVATION(&high, 1, zeros, 13, "go", 0), OPENPI_BAD_INPUT,
         "the state has 13 numbers, robot \"aloha\" has 14"},
        {OBSERVATION(&high, 1, zeros, 0, "go", 0), OPENPI_BAD_INPUT, "the state has 0 numbers"},
        {OBSERVATION(&high, 1, NULL, 14, "go", 0), OPENPI_BAD_ARGUMENT, "state has 14 numbers at NULL"},
        {OBSERVATION(&high, 1, nan_state, 14, "go", 0), OPENPI_BAD_INPUT, "state[3] is nan"},
        {OBSERVATION(&high, 1, infinite_state, 14, "go", 0), OPENPI_BAD_INPUT, "state[0] is -inf"},
        {OBSERVATION(&high, 1, huge_state, 14, "go", 0), OPENPI_BAD_INPUT, "state[1] is 1e+300"},
        {OBSERVATION(&high, 1, zeros, 14, NULL, 0), OPENPI_BAD_INPUT, "a prompt is required"},
        {OBSERVATION(&high, 1, zeros, 14, "a\xff\xfe", 0), OPENPI_BAD_INPUT, "UTF-8"},
        {OBSERVATION(&high, 1, zeros, 14, "go", (size_t)2 << 20), OPENPI_BAD_INPUT,
         "the prompt has 2097152 bytes"},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    float model[64 * DIMS] = {0};
    double actions[64 * 14];
    WORKS(openpi_request_create(policy, &request, &error));
    assert_false(holds_sample(request));
    REFUSES(openpi_request_finish(request, model, 10, actions, CAPACITY(actions), &error),
            OPENPI_BAD_ARGUMENT, "nothing was prepared");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        REFUSES(openpi_request_prepare(request, &cases[i].observation, NULL, &error), cases[i].status, cases[i].sentence);
        assert_true(holds_sample(request) == (cases[i].status == OPENPI_OK));
    }
    WORKS(openpi_request_prepare(request, &cases[0].observation, NULL, &error));
    WORKS(openpi_request_finish(request, model, 64, actions, CAPACITY(actions), &error));
    actions[0] = 77;
    REFUSES(openpi_request_finish(request, model, 64, actions, 64 * 14 - 1, &error), OPENPI_BAD_ARGUMENT,
            "actions holds 895 numbers, expected 896: horizon 64 times 14 action dimensions");
    assert_true(actions[0] == 77);
    REFUSES(openpi_request_finish(request, model, 65, actions, CAPACITY(actions), &error),
            OPENPI_BAD_ARGUMENT, "horizon is 65");
    REFUSES(openpi_request_finish(request, model, 0, actions, CAPACITY(actions), &error),
            OPENPI_BAD_ARGUMENT, "horizon is 0");
    model[3 * DIMS + 5] = NAN;
    REFUSES(openpi_request_finish(request, model, 4, actions, CAPACITY(actions), &error), OPENPI_BAD_INPUT,
            "step 3, dimension 5 is nan");
    REFUSES(openpi_request_prepare(NULL, &cases[0].observation, NULL, &error), OPENPI_BAD_ARGUMENT, "request is NULL");
    REFUSES(openpi_request_prepare_msgpack(request, NULL, 3, NULL, &error), OPENPI_BAD_ARGUMENT, "bytes are NULL");
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* The default prompt stands in for one that is not there, and for no other. */
static void default_prompt(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    openpi_image image = picture("cam_high");
    openpi_observation with = OBSERVATION(&image, 1, zeros, 14, "fold", 0), without = with;
    int32_t ids[48];
    char large[1025] = "";
    without.prompt = NULL;
    memset(large, 'a', 1024);
    REFUSES(openpi_policy_default_prompt(policy, large, &error), OPENPI_BAD_ARGUMENT,
            "the default prompt has 1024 bytes, expected at most 1023");
    REFUSES(openpi_policy_default_prompt(policy, NULL, &error), OPENPI_BAD_ARGUMENT, "prompt is NULL");
    WORKS(openpi_policy_default_prompt(policy, "fold", &error));
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_prepare(request, &with, NULL, &error));
    int count = prepared(request).token_count;
    assert_true(count > 1 && count <= 48);
    memcpy(ids, prepared(request).tokens, (size_t)count * sizeof *ids);
    WORKS(openpi_request_prepare(request, &without, NULL, &error));
    assert_int_equal(prepared(request).token_count, count);
    assert_memory_equal(prepared(request).tokens, ids, (size_t)count * sizeof *ids);
    with.prompt = "fold the towel, then go on";
    WORKS(openpi_request_prepare(request, &with, NULL, &error));
    assert_true(prepared(request).token_count > count);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* A picture that was there is gone from the next request. */
static void cameras_come_and_go(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    openpi_image images[2] = {picture("cam_high"), picture("cam_left_wrist")};
    openpi_observation observation = OBSERVATION(images, 2, zeros, 14, "go", 0);
    static const uint8_t black[PIXELS];
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_int_equal(prepared(request).image_mask[1], 1);
    assert_memory_not_equal(prepared(request).images[1], black, PIXELS);
    observation.image_count = 1;
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_int_equal(prepared(request).image_mask[1], 0);
    assert_memory_equal(prepared(request).images[1], black, PIXELS);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* A request that borrows leaves a picture that needs no resize where it is, and copies all others. */
static void pictures_stay_where_they_are(void **state) {
    (void)state;
    static uint8_t fits[PIXELS], padded[PIXELS + 224 * 8], small[4 * 6 * 3];
    const struct {
        openpi_image image;
        int stays;
    } cases[] = {
        {{.data = fits, .height = 224, .width = 224}, 1},
        {{.data = fits, .height = 224, .width = 224, .row_bytes = 672}, 1},
        {{.data = padded, .height = 224, .width = 224, .row_bytes = 680}, 0},
        {{.data = fits, .height = 224, .width = 224, .channels = OPENPI_BGR}, 0},
        {{.data = fits, .height = 224, .width = 224, .layout = OPENPI_CHW}, 0},
        {{.data = small, .height = 4, .width = 6}, 0},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request, *copies;
    static const uint8_t black[PIXELS];
    for (size_t i = 0; i < sizeof padded; i++) {
        padded[i] = (uint8_t)(i * 11 % 251);
        if (i < sizeof fits) fits[i] = (uint8_t)(i * 7 % 253);
        if (i < sizeof small) small[i] = (uint8_t)(i * 5);
    }
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_create(policy, &copies, &error));
    openpi_request_borrow(request, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_image images[2] = {cases[i].image, picture("cam_left_wrist")};
        images[0].size = sizeof images[0];
        images[0].name = "cam_high";
        openpi_observation observation = OBSERVATION(images, 1, zeros, 14, "go", 0);
        WORKS(openpi_request_prepare(request, &observation, NULL, &error));
        WORKS(openpi_request_prepare(copies, &observation, NULL, &error));
        assert_int_equal(prepared(request).images[0] == images[0].data, cases[i].stays);
        assert_ptr_not_equal(prepared(copies).images[0], images[0].data);
        assert_memory_equal(prepared(request).images[0], prepared(copies).images[0], PIXELS);
        assert_memory_equal(prepared(request).images[1], black, PIXELS);
    }
    openpi_image one = cases[0].image;
    one.size = sizeof one;
    one.name = "cam_high";
    openpi_observation observation = OBSERVATION(&one, 1, zeros, 14, "go", 0);
    openpi_request_borrow(request, 0);
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_ptr_not_equal(prepared(request).images[0], fits);
    assert_memory_equal(prepared(request).images[0], fits, PIXELS);
    openpi_request_close(request);
    openpi_request_close(copies);
    openpi_policy_close(policy);
}

static void prompts(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy *policy = open_synthetic("aloha_sim", NULL, OPENPI_PI0);
    openpi_request *request;
    openpi_image image = picture("cam_high");
    openpi_observation observation = OBSERVATION(&image, 1, zeros, 14, NULL, 0);
    WORKS(openpi_request_create(policy, &request, &error));
    static const int32_t transfer_cube[7] = {2, 1987, 513, 347, 694, 1953, 4};     /* steps.json */
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_int_equal(prepared(request).token_count, 7);
    assert_memory_equal(prepared(request).tokens, transfer_cube, sizeof transfer_cube);
    observation.prompt = "";
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_int_equal(prepared(request).token_count, 2);
    observation.prompt = "Transfer cube and what stands after the length";
    observation.prompt_length = 13;
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_memory_equal(prepared(request).tokens, transfer_cube, sizeof transfer_cube);
    observation.prompt = "7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7";
    observation.prompt_length = 0;
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_true(openpi_request_prompt_truncated(request));
    int warning = 0;
    assert_string_equal(openpi_request_note(request, 0, &warning),
                        "the prompt is longer than the 48 tokens that the policy takes; its end was cut");
    assert_true(warning && !openpi_request_note(request, 1, NULL));
    assert_int_equal(prepared(request).token_count, 48);
    observation.prompt_length = 2 * 23; /* BOS, 45 pieces (the last space is stripped), newline */
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    assert_false(openpi_request_prompt_truncated(request));
    assert_null(openpi_request_note(request, 0, NULL));
    assert_int_equal(prepared(request).token_count, 47);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* "Transfer cube" has 7 tokens: with a capacity of 7 nothing is cut, with 6 its newline is. */
static void a_prompt_may_fill_its_room(void **state) {
    (void)state;
    for (int capacity = 6; capacity <= 8; capacity++) {
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_synthetic synthetic = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT, .seed = 7};
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_policy *policy;
        openpi_request *request;
        openpi_image image = picture("cam_high");
        openpi_observation observation = OBSERVATION(&image, 1, zeros, 14, "Transfer cube", 0);
        options.robot = "aloha_sim";
        options.max_prompt = capacity;
        options.synthetic = &synthetic;
        WORKS(openpi_policy_open(NULL, &options, &policy, &error));
        WORKS(openpi_request_create(policy, &request, &error));
        WORKS(openpi_request_prepare(request, &observation, NULL, &error));
        assert_int_equal(openpi_request_prompt_truncated(request), capacity < 7);
        assert_int_equal(prepared(request).token_count, capacity < 7 ? capacity : 7);
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

/* The model's own space: what is given is returned. */
static void none_is_the_models_space(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    for (int v = 0; v < 2; v++) {
        openpi_policy *policy = open_synthetic(NULL, NULL, v ? OPENPI_PI05 : OPENPI_PI0);
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        openpi_request *request;
        openpi_image image = picture("right_wrist");
        double given[3] = {0.5, -0.25, 1.75}, actions[2 * DIMS];
        float model[2 * DIMS];
        openpi_observation observation = OBSERVATION(&image, 1, given, 3, "go", 0);
        int count;
        openpi_policy_get_info(policy, &info, NULL);
        assert_string_equal(info.robot, "none");
        assert_int_equal(info.state_length, 0);
        assert_int_equal(info.action_dim, 32);
        assert_int_equal(info.max_prompt, v ? 200 : 48);
        assert_int_equal(info.prompt_state, v);
        WORKS(openpi_request_create(policy, &request, &error));
        WORKS(openpi_request_prepare(request, &observation, NULL, &error));
        assert_memory_equal(openpi_request_state(request, &count), given, sizeof given);
        assert_int_equal(count, 3);
        for (int i = 0; i < 2 * DIMS; i++) model[i] = (float)i / 7;
        WORKS(openpi_request_finish(request, model, 2, actions, CAPACITY(actions), &error));
        for (int i = 0; i < 2 * DIMS; i++) assert_true(actions[i] == (double)model[i]);
        observation.state_length = 0;
        REFUSES(openpi_request_prepare(request, &observation, NULL, &error), OPENPI_BAD_INPUT, "the state is missing");
        observation.state_length = 33;
        REFUSES(openpi_request_prepare(request, &observation, NULL, &error), OPENPI_BAD_INPUT, "33 numbers, expected at most 32");
        observation.state_length = 3;
        observation.image_count = 0;
        REFUSES(openpi_request_prepare(request, &observation, NULL, &error), OPENPI_BAD_INPUT, "no picture is given");
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

/* π0.5 that never sees the state does not ask for it. */
static void unseen_state_may_be_absent(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT,
                                  .variant = OPENPI_PI05};
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy;
    openpi_request *request;
    openpi_image image = picture("base");
    openpi_observation observation = OBSERVATION(&image, 1, NULL, 0, "go", 0);
    options.synthetic = &synthetic;
    options.prompt_state = OPENPI_PROMPT_STATE_OFF;
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_prepare(request, &observation, NULL, &error));
    openpi_request_close(request);
    openpi_policy_close(policy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_checked),
        cmocka_unit_test(names_of_cameras),
        cmocka_unit_test(refuses_bad_observations),
        cmocka_unit_test(default_prompt),
        cmocka_unit_test(cameras_come_and_go),
        cmocka_unit_test(pictures_stay_where_they_are),
        cmocka_unit_test(prompts),
        cmocka_unit_test(a_prompt_may_fill_its_room),
        cmocka_unit_test(none_is_the_models_space),
        cmocka_unit_test(unseen_state_may_be_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
