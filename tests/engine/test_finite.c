/* Nothing that is no number leaves with status OK: NaN and infinity in a checkpoint, in pictures, in what the
 * model computes and in a robot's actions, at every level of instructions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "backend/cpu/isa.h"
#include "base/finite.h"
#include "policy_golden.h"
#include "scratch.h"
#include "verify_rows.h"
#include "structs.h"

enum { DIMS = OPENPI_ACTION_DIM, SIDE = OPENPI_IMAGE_SIZE, PICTURE = SIDE * SIDE * 3, H = 3, STATES = 8 };

#define LENGTH(table) (sizeof(table) / sizeof *(table))
#define FILE_NAME "model.safetensors"

static openpi_error error = OPENPI_ERROR_INIT;
static scratch place; /* folders pi0 and pi05: checkpoints, to be damaged */

static int write_checkpoints(void **state) {
    (void)state;
    static const char *const models[][2] = {{"odd:pi0:5", "pi0"}, {"odd:pi05:5", "pi05"}};
    if (scratch_open(&place)) return -1;
    for (size_t i = 0; i < LENGTH(models); i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        WORKS(openpi_synthetic_parse(models[i][0], &synthetic, &error));
        WORKS(
            openpi_synthetic_write(&synthetic, scratch_path(&place, models[i][1]), 0, 1, NULL, NULL, &error));
    }
    return 0;
}

static int remove_checkpoints(void **state) {
    (void)state;
    scratch_close(&place);
    return 0;
}

/* ---- the loops ---------------------------------------------------------------------------------------- */

/* A number at any place of any length, at an odd address, is found; nothing is found where there is none. */
static void the_loops_see_every_place(void **state) {
    (void)state;
    static const float wrong[] = {NAN, -NAN, INFINITY, -INFINITY};
    static const uint16_t halves[] = {0x7fc0, 0xffc0, 0x7f80, 0xff80, 0x7fff};
    static char bytes[4 * 700 + 1];
    char *at = bytes + 1;
    for (int count = 0; count < 700; count += count < 3 ? 1 : 87) {
        for (int i = 0; i < count; i++) {
            float fine = i & 1 ? -3.402823466e38f : 1e-44f;
            uint16_t large = 0x7f7f;
            memset(bytes, 0, sizeof bytes);
            memcpy(at + 4 * i, &fine, 4);
            assert_true(all_finite_f32(at, (size_t)count));
            for (size_t k = 0; k < LENGTH(wrong); k++) {
                memcpy(at + 4 * i, &wrong[k], 4);
                assert_false(all_finite_f32(at, (size_t)count));
                assert_false(all_near_f32(at, (size_t)count, 0, 1));
            }
            static const float far[] = {1.001f, -1.001f, 3e38f, 1, -1, 0.5f};
            for (size_t k = 0; k < LENGTH(far); k++) {
                memcpy(at + 4 * i, &far[k], 4);
                assert_int_equal(all_near_f32(at, (size_t)count, 0, 1), fabsf(far[k]) <= 1);
                assert_int_equal(all_near_f32(at, (size_t)count, 0.5f, 0.5f), far[k] >= 0 && far[k] <= 1);
            }
            memset(bytes, 0, sizeof bytes);
            memcpy(at + 2 * i, &large, 2);
            assert_true(all_finite_bf16(at, (size_t)count));
            for (size_t k = 0; k < LENGTH(halves); k++) {
                memcpy(at + 2 * i, &halves[k], 2);
                assert_false(all_finite_bf16(at, (size_t)count));
            }
        }
        memset(bytes, 0, sizeof bytes);
        assert_true(all_finite_f32(at, (size_t)count) && all_finite_bf16(at, (size_t)count) &&
                    all_near_f32(at, (size_t)count, 0, 1));
    }
}

/* ---- weights ------------------------------------------------------------------------------------------ */

#define TOWER "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
#define LANGUAGE "paligemma_with_expert.paligemma.model.language_model."
#define EXPERT "paligemma_with_expert.gemma_expert.model."
#define EMBEDDING "paligemma_with_expert.paligemma.lm_head.weight"

typedef struct damaged_weights {
    const char *model, *tensor;
    int first, count; /* elements that are overwritten */
    bf16 bits;
    const char *says;
} damaged_weights;

static const damaged_weights damaged[] = {
    {.model = "pi0",
     .tensor = LANGUAGE "layers.0.self_attn.q_proj.weight",
     .first = 100,
     .count = 1,
     .bits = 0x7fc0,
     .says = "has 1 element that is no finite "},
    {.model = "pi0",
     .tensor = LANGUAGE "layers.0.self_attn.q_proj.weight",
     .first = 100,
     .count = 3,
     .bits = 0x7f80,
     .says = "has 3 elements that are no finite float, the first is element 100, which is inf"},
    {.model = "pi0",
     .tensor = LANGUAGE "layers.1.self_attn.v_proj.weight",
     .first = 95,
     .count = 1,
     .bits = 0xff80,
     .says = "the first is element 95, which is -inf"},
    {.model = "pi0",
     .tensor = EXPERT "layers.1.mlp.down_proj.weight",
     .first = 0,
     .count = 1,
     .bits = 0x7fc0,
     .says = "the first is element 0, which is nan"},
    {.model = "pi0",
     .tensor = TOWER "embeddings.position_embedding.weight",
     .first = 255 * 72,
     .count = 72,
     .bits = 0x7fc0,
     .says = "has 72 elements"},
    {.model = "pi0",
     .tensor = TOWER "encoder.layers.2.layer_norm2.bias",
     .first = 71,
     .count = 1,
     .bits = 0x7fc0,
     .says = "the first is element 71, "},
    {.model = "pi0",
     .tensor = TOWER "embeddings.patch_embedding.weight",
     .first = 7,
     .count = 1,
     .bits = 0x7fc0,
     .says = "the first is element 7, "},
    {.model = "pi0",
     .tensor = "action_in_proj.weight",
     .first = 40 * 32 - 1,
     .count = 1,
     .bits = 0x7fc0,
     .says = "has 1 element"},
    {.model = "pi0",
     .tensor = "action_in_proj.bias",
     .first = 0,
     .count = 1,
     .bits = 0x7fc0,
     .says = "has 1 element"},
    {.model = "pi0",
     .tensor = "action_time_mlp_in.weight",
     .first = 0,
     .count = 1,
     .bits = 0x7f80,
     .says = "has 1 element"},
    {.model = "pi0",
     .tensor = "action_time_mlp_in.weight",
     .first = 2 * 40 * 40 - 1,
     .count = 1,
     .bits = 0x7fc0,
     .says = "has 1 element"},
    {.model = "pi0",
     .tensor = "state_proj.bias",
     .first = 3,
     .count = 1,
     .bits = 0x7fc0,
     .says = "the first is element 3, "},
    {.model = "pi0",
     .tensor = EMBEDDING,
     .first = 2048 * 96 - 1,
     .count = 1,
     .bits = 0x7fc0,
     .says = "the first is element 196607, which is nan"},
    {.model = "pi05",
     .tensor = EMBEDDING,
     .first = 0,
     .count = 5,
     .bits = 0xff80,
     .says = "has 5 elements that are no finite "},
    {.model = "pi05",
     .tensor = EXPERT "norm.dense.bias",
     .first = 119,
     .count = 1,
     .bits = 0x7fc0,
     .says = "the first is element 119, "},
    {.model = "pi05",
     .tensor = "time_mlp_out.weight",
     .first = 8,
     .count = 1,
     .bits = 0x7fc0,
     .says = "the first is element 8, "},
};

static void overwrite(uint8_t *file, size_t bytes, const char *tensor, int first, int count, bf16 bits) {
    size_t size;
    uint8_t *data = tensor_data(file, bytes, tensor, &size);
    if (!data || (size_t)(first + count) * sizeof bits > size)
        fail_msg("%s has no elements %d to %d", tensor, first, first + count);
    for (int i = 0; i < count; i++) memcpy(data + (size_t)(first + i) * sizeof bits, &bits, sizeof bits);
}

static openpi_status open_level(const char *model, const char *level, openpi_dtype dtype,
                                openpi_engine **engine) {
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    options.isa = level;
    options.dtype = dtype;
    options.threads = 2;
    return openpi_engine_open(scratch_path(&place, model), &options, engine, &error);
}

static void damaged_weights_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(damaged); i++) {
        const damaged_weights *d = &damaged[i];
        char path[64];
        size_t bytes;
        openpi_engine *engine = NULL;
        snprintf(path, sizeof path, "%s/" FILE_NAME, d->model);
        uint8_t *file = file_bytes(scratch_path(&place, path), &bytes), *keep = malloc(bytes);
        assert_true(file && keep);
        memcpy(keep, file, bytes);
        overwrite(file, bytes, d->tensor, d->first, d->count, d->bits);
        assert_int_equal(scratch_write(&place, path, file, bytes), 0);
        for (int l = 0; l < cpu_isa_count(); l++) {
            if (!cpu_isa_available(l)) continue;
            REFUSES(open_level(d->model, cpu_isa_name(l), OPENPI_F32, &engine), OPENPI_BAD_FILE, d->says);
            assert_non_null(strstr(error.message, FILE_NAME ": tensor \""));
            assert_non_null(strstr(error.message, d->tensor));
            assert_null(strstr(error.message, "more tensor"));
            REFUSES(open_level(d->model, cpu_isa_name(l), OPENPI_BF16, &engine), OPENPI_BAD_FILE, d->tensor);
        }
        overwrite(file, bytes, "action_out_proj.bias", 31, 1, 0x7fc0);
        assert_int_equal(scratch_write(&place, path, file, bytes), 0);
        REFUSES(open_level(d->model, NULL, OPENPI_BF16, &engine), OPENPI_BAD_FILE,
                "; 1 more tensor is like it");
        assert_null(engine);
        assert_int_equal(scratch_write(&place, path, keep, bytes), 0);
        WORKS(open_level(d->model, NULL, OPENPI_BF16, &engine));
        openpi_engine_close(engine);
        free(keep);
        free(file);
    }
}

/* ---- what a call is given and gives ------------------------------------------------------------------- */

static float pixels[OPENPI_CAMERAS][PICTURE];
static const int32_t tokens[] = {2, 17, 33, 4};
static const float model_state[DIMS] = {0.5f, -0.25f};

static openpi_sample float_sample(void) {
    return (openpi_sample){.size = sizeof(openpi_sample),
                           .images = {pixels[0], pixels[1], pixels[2]},
                           .pixels = OPENPI_PIXELS_F32,
                           .image_mask = {1, 1, 0},
                           .tokens = tokens,
                           .token_count = 4,
                           .state = model_state};
}

static openpi_session *open_session(openpi_engine *engine, int batch) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session;
    options.batch = batch;
    options.horizon = H;
    options.steps = 2;
    options.max_prompt = 16;
    WORKS(openpi_session_create(engine, &options, &session, &error));
    return session;
}

static void pixels_are_in_their_range(void **state) {
    (void)state;
    static const struct {
        int camera, at;
        float value;
        const char *says; /* NULL: taken */
    } cases[] = {
        {0, 0, NAN, "images[0][0] is nan, expected -1 to 1"},
        {1, PICTURE - 1, NAN, "images[1][150527] is nan, expected -1 to 1"},
        {0, 777, INFINITY, "images[0][777] is inf, expected -1 to 1"},
        {0, 777, -INFINITY, "images[0][777] is -inf, expected -1 to 1"},
        {1, 9, 1.0001f, "images[1][9] is 1.0001, expected -1 to 1"},
        {1, 9, -1.0001f, "images[1][9] is -1.0001, expected -1 to 1"},
        {1, 9, 255, "images[1][9] is 255, expected -1 to 1"},
        {1, 9, 1.000001f, NULL},
        {1, 9, -1.000001f, NULL},
        {2, 9, NAN, NULL}, /* masked out */
    };
    openpi_engine *engine;
    openpi_sample samples[2] = {float_sample(), float_sample()};
    float actions[2 * H * DIMS], before[2 * H * DIMS];
    WORKS(open_level("pi0", NULL, OPENPI_F32, &engine));
    openpi_session *session = open_session(engine, 2);
    static float fine[PICTURE];
    samples[0].images[0] = samples[0].images[1] = fine;
    memset(before, 0x5a, sizeof before);
    for (size_t i = 0; i < LENGTH(cases); i++) {
        memcpy(actions, before, sizeof before);
        pixels[cases[i].camera][cases[i].at] = cases[i].value;
        if (cases[i].says) {
            REFUSES(openpi_session_run(session, samples, 2, NULL, actions, NULL, &error), OPENPI_BAD_INPUT,
                    cases[i].says);
            assert_non_null(strstr(error.message, "sample 1: "));
            assert_memory_equal(actions, before, sizeof before);
        } else {
            WORKS(openpi_session_run(session, samples, 2, NULL, actions, NULL, &error));
            assert_true(all_finite_f32(actions, 2 * H * DIMS));
        }
        pixels[cases[i].camera][cases[i].at] = 0;
    }
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* Finite weights, whose products are not: nothing is handed out, whatever computed it. */
static void overflow_is_not_handed_out(void **state) {
    (void)state;
    size_t bytes;
    uint8_t *file = file_bytes(scratch_path(&place, "pi05/" FILE_NAME), &bytes), *keep = malloc(bytes);
    assert_true(file && keep);
    memcpy(keep, file, bytes);
    overwrite(file, bytes, "action_out_proj.weight", 0, 32 * 40, 0x7f61); /* 2.99e38 */
    assert_int_equal(scratch_write(&place, "pi05/" FILE_NAME, file, bytes), 0);
    for (int i = 0; i < cpu_isa_count() * 2; i++) {
        if (!cpu_isa_available(i / 2)) continue;
        openpi_engine *engine;
        openpi_sample samples[2] = {float_sample(), float_sample()};
        float actions[2 * H * DIMS], before[2 * H * DIMS];
        openpi_session_info info = OPENPI_SESSION_INFO_INIT;
        WORKS(open_level("pi05", cpu_isa_name(i / 2), i & 1 ? OPENPI_BF16 : OPENPI_F32, &engine));
        openpi_session *session = open_session(engine, 2);
        memset(before, 0x5a, sizeof before);
        memcpy(actions, before, sizeof before);
        REFUSES(openpi_session_run(session, samples, 2, NULL, actions, NULL, &error), OPENPI_BAD_INPUT,
                "sample 0: the model's action of step 0, dimension ");
        assert_non_null(strstr(error.message, "expected a finite number"));
        assert_memory_equal(actions, before, sizeof before);
        openpi_session_get_info(session, &info, NULL);
        assert_int_equal(info.runs, 0);
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
    assert_int_equal(scratch_write(&place, "pi05/" FILE_NAME, keep, bytes), 0);
    free(keep);
    free(file);
}

/* ---- a robot's actions -------------------------------------------------------------------------------- */

static void put_list(FILE *file, const char *name, double value, int at, double there) {
    fprintf(file, "\"%s\": [", name);
    for (int i = 0; i < STATES; i++) fprintf(file, "%s%.17g", i ? ", " : "", i == at ? there : value);
    fprintf(file, "]");
}

/* Statistics that take a model's fine numbers beyond what a double holds. */
static void robot_actions_are_finite(void **state) {
    (void)state;
    static const struct {
        const char *normalization, *says;
        double mean, std, q01, q99; /* statistics of action 5 */
        float action;
    } cases[] = {
        {.normalization = "zscore", .mean = 0, .std = 1, .q01 = 0, .q99 = 1, .action = 2},
        {.normalization = "zscore",
         .says = "action of step 1, dimension 5 is inf, expected a finite number: the model's is 2",
         .mean = 0,
         .std = 1.7e308,
         .q01 = 0,
         .q99 = 1,
         .action = 2},
        {.normalization = "zscore",
         .says = "dimension 5 is -inf",
         .mean = 0,
         .std = 1.7e308,
         .q01 = 0,
         .q99 = 1,
         .action = -2},
        {.normalization = "zscore",
         .says = "dimension 5 is inf",
         .mean = 1.7e308,
         .std = 1.7e308,
         .q01 = 0,
         .q99 = 1,
         .action = 0.5f},
        {.normalization = "zscore",
         .says = "dimension 5 is nan, expected a finite number",
         .mean = 0,
         .std = 1,
         .q01 = 0,
         .q99 = 1,
         .action = NAN},
        {.normalization = "zscore",
         .says = "dimension 5 is inf, expected a finite number",
         .mean = 0,
         .std = 1,
         .q01 = 0,
         .q99 = 1,
         .action = INFINITY},
        {.normalization = "quantile",
         .says = "dimension 5 is inf",
         .mean = 0,
         .std = 1,
         .q01 = -1.7e308,
         .q99 = 1.7e308,
         .action = 0.5f},
        {.normalization = "quantile", .mean = 0, .std = 1, .q01 = -1, .q99 = 1, .action = 0.5f},
    };
    for (size_t i = 0; i < LENGTH(cases); i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
        openpi_policy *policy;
        openpi_request *request;
        char robot[256], stats[512];
        static const uint8_t picture[PICTURE];
        double raw[STATES] = {0}, actions[H * STATES], before[H * STATES];
        float chunk[H * DIMS] = {0};
        openpi_image images[] = {IMAGE("base", picture, OPENPI_U8, OPENPI_HWC, SIDE, SIDE),
                                 IMAGE("left_wrist", picture, OPENPI_U8, OPENPI_HWC, SIDE, SIDE)};
        openpi_observation observation = OBSERVATION(images, 2, raw, STATES, "go", 0);
        snprintf(stats, sizeof stats, "%s", scratch_path(&place, "norm_stats.json"));
        FILE *file = fopen(stats, "wb");
        assert_non_null(file);
        fprintf(file, "{\"norm_stats\": {");
        for (int k = 0; k < 2; k++) {
            int at = k ? 5 : -1;
            fprintf(file, "%s\"%s\": {", k ? ", " : "", k ? "actions" : "state");
            put_list(file, "mean", 0, at, cases[i].mean), fprintf(file, ", ");
            put_list(file, "std", 1, at, cases[i].std), fprintf(file, ", ");
            put_list(file, "q01", 0, at, cases[i].q01), fprintf(file, ", ");
            put_list(file, "q99", 1, at, cases[i].q99), fprintf(file, "}");
        }
        fprintf(file, "}}");
        fclose(file);
        snprintf(robot, sizeof robot, "{\"like\": \"droid\", \"name\": \"arm\", \"normalization\": \"%s\"}",
                 cases[i].normalization);
        WORKS(openpi_synthetic_parse("odd:pi0:5", &synthetic, &error));
        options.synthetic = &synthetic;
        options.robot = robot;
        options.norm_stats = stats;
        WORKS(openpi_policy_open(NULL, &options, &policy, &error));
        WORKS(openpi_request_create(policy, &request, &error));
        WORKS(openpi_request_prepare(request, &observation, NULL, &error));
        chunk[DIMS + 5] = cases[i].action;
        memset(before, 0x5a, sizeof before);
        memcpy(actions, before, sizeof before);
        if (cases[i].says) {
            REFUSES(openpi_request_finish(request, chunk, H, actions, CAPACITY(actions), &error),
                    OPENPI_BAD_INPUT, cases[i].says);
            assert_memory_equal(actions, before, sizeof before);
        } else {
            WORKS(openpi_request_finish(request, chunk, H, actions, CAPACITY(actions), &error));
        }
        openpi_request_close(request);
        openpi_policy_close(policy);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loops_see_every_place), cmocka_unit_test(damaged_weights_are_named),
        cmocka_unit_test(pixels_are_in_their_range), cmocka_unit_test(overflow_is_not_handed_out),
        cmocka_unit_test(robot_actions_are_finite),
    };
    return cmocka_run_group_tests(tests, write_checkpoints, remove_checkpoints);
}
