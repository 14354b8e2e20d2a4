/* labels: cost */
/* A model at each limit of ops/limits.h, the rest of it small, opens and runs on every device and every level
 * of instructions, with the definitions' actions; one past the limit is refused with a sentence. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/isa.h"
#include "openpi.h"
#include "ops/limits.h"

enum {
    HORIZON = 2,
    ACTIONS = HORIZON * OPENPI_ACTION_DIM,
    PICTURE = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3
};

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status, const char *what) {
    if (status != OPENPI_OK) fail_msg("%s: %s", what, error.message);
}

/* vision width, depth, heads, mlp; language width, depth, heads, head dimension, mlp; expert width, mlp;
 * vocabulary */
static const openpi_dims small = {sizeof small, 8, 1, 1, 8, 8, 1, 1, 4, 8, 8, 8, 16, {0}};

static const struct limit_case {
    const char *what;
    size_t size, second; /* the sizes of openpi_dims at their limit, as offsets; second 0: there is none   */
    int value, second_value;
    int cameras, prompt;         /* cameras and prompt tokens of the call                              */
    const char *sentence;        /* with the first size one step past its limit                        */
    int step;
    int heavy; /* 1: minutes in scalar code, whose arrays other cases fill: runs from AVX2 on   */
} limit_cases[] = {
#define SIZE(name) offsetof(openpi_dims, name)
    {"vision width", SIZE(vision_width), SIZE(vision_heads), LIMIT_WIDTH, 16, 1, 1,
     "vision width is 4097, expected a number from 1 to 4096", 1, 1},
    {"vision depth", SIZE(vision_depth), 0, LIMIT_DEPTH, 0, 1, 1,
     "vision depth is 257, expected a number from 1 to 256", 1, 0},
    {"vision heads", SIZE(vision_heads), SIZE(vision_width), LIMIT_HEADS, 512, 1, 1,
     "vision heads is 257, expected a number from 1 to 256", 1, 0},
    {"vision head", SIZE(vision_width), 0, LIMIT_HEAD_DIM, 0, 1, 1,
     "a vision head is 257 wide (vision width 257, 1 heads), expected at most 256", 1, 0},
    {"vision mlp", SIZE(vision_mlp), 0, LIMIT_INPUTS, 0, 1, 1,
     "vision mlp is 32769, expected a number from 1 to 32768", 1, 0},
    {"language width", SIZE(width), 0, LIMIT_WIDTH, 0, 0, 3,
     "language width is 4097, expected a number from 1 to 4096", 1, 0},
    {"language depth", SIZE(depth), 0, LIMIT_DEPTH, 0, 0, 3,
     "language depth is 257, expected a number from 1 to 256", 1, 0},
    {"heads", SIZE(heads), 0, LIMIT_HEADS, 0, 0, 3, "heads is 257, expected a number from 1 to 256", 1, 0},
    {"head dimension", SIZE(head_dim), 0, LIMIT_HEAD_DIM, 0, 0, 3,
     "head dimension is 258, expected an even number from 2 to 256", 2, 0},
    {"all heads", SIZE(head_dim), SIZE(heads), LIMIT_INPUTS / LIMIT_HEADS, LIMIT_HEADS, 0, 3,
     "256 heads of dimension 130 are 33280 wide together, expected at most 32768", 2, 0},
    {"language mlp", SIZE(mlp), 0, LIMIT_INPUTS, 0, 0, 3,
     "language mlp is 32769, expected a number from 1 to 32768", 1, 0},
    {"expert width", SIZE(expert_width), 0, LIMIT_WIDTH, 0, 0, 3,
     "expert width is 4098, expected an even number from 4 to 4096", 2, 0},
    {"expert mlp", SIZE(expert_mlp), 0, LIMIT_INPUTS, 0, 0, 3,
     "expert mlp is 32769, expected a number from 1 to 32768", 1, 0},
    {"prompt", SIZE(vocab), 0, 16, 0, 3, LIMIT_PROMPT, NULL, 0, 0},
#undef SIZE
};
enum { CASES = sizeof limit_cases / sizeof *limit_cases };

static void set(openpi_dims *dims, size_t size, int value) {
    memcpy((char *)dims + size, &value, sizeof value);
}

static openpi_synthetic model_of(const struct limit_case *c) {
    openpi_synthetic model = {.size = sizeof model, .dims = small, .variant = OPENPI_PI0, .seed = 5};
    set(&model.dims, c->size, c->value);
    if (c->second_value) set(&model.dims, c->second, c->second_value);
    return model;
}

static uint8_t picture[PICTURE];
static int32_t tokens[LIMIT_PROMPT];
static float robot[OPENPI_ACTION_DIM], noise[ACTIONS];

static int make_inputs(void **state) {
    (void)state;
    for (int i = 0; i < PICTURE; i++) picture[i] = (uint8_t)(i * 7 + i / 911);
    for (int i = 0; i < LIMIT_PROMPT; i++) tokens[i] = i * 5 % 16;
    openpi_noise(3, 0, noise, ACTIONS);
    openpi_noise(3, 1, robot, OPENPI_ACTION_DIM);
    return 0;
}

/* One step, one camera slot or three or none. `engine` names device, level and dtype. */
static void run_case(const struct limit_case *c, openpi_engine_options engine_options, float *actions) {
    openpi_synthetic model = model_of(c);
    openpi_engine *engine;
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_sample sample = {
        .size = sizeof sample, .tokens = tokens, .token_count = c->prompt, .state = robot};
    for (int i = 0; i < c->cameras; i++) sample.images[i] = picture, sample.image_mask[i] = 1;
    engine_options.synthetic = &model;
    engine_options.threads = 2;
    options.steps = 1;
    options.horizon = HORIZON;
    options.max_prompt = c->prompt;
    must(openpi_engine_open(NULL, &engine_options, &engine, &error), c->what);
    must(openpi_session_create(engine, &options, &session, &error), c->what);
    must(openpi_session_run(session, &sample, 1, noise, actions, NULL, &error), c->what);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* The first result is what the others must be: in fp32 as near as sums of 32768 terms are in another order.
 * In bf16, whose roundings weigh more at these sizes than any bound that is of use, finite. */
static void compare(const struct limit_case *c, const char *where, openpi_dtype dtype, const float *got,
                    float *expected, int *known) {
    for (int i = 0; i < ACTIONS; i++) {
        if (!isfinite(got[i])) fail_msg("%s on %s: action %d is %g", c->what, where, i, (double)got[i]);
        if (dtype == OPENPI_F32 && *known && fabsf(got[i] - expected[i]) > 1e-3f)
            fail_msg("%s on %s: action %d is %g, expected %g", c->what, where, i, (double)got[i],
                     (double)expected[i]);
    }
    if (dtype != OPENPI_F32 || *known) return;
    memcpy(expected, got, ACTIONS * sizeof *expected);
    *known = 1;
}

static void at_the_limit(void **state) {
    (void)state;
    openpi_device devices[16] = {OPENPI_DEVICE_INIT};
    int count;
    must(openpi_devices(devices, 16, &count, &error), "devices");
    for (int i = 0; i < CASES; i++) {
        const struct limit_case *c = &limit_cases[i];
        float expected[ACTIONS] = {0}, actions[ACTIONS];
        int known = 0;
        for (openpi_dtype dtype = OPENPI_BF16; dtype <= OPENPI_F32; dtype++) {
            openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
            options.dtype = dtype;
            for (int level = c->heavy ? 1 : 0; level < cpu_isa_count(); level++) {
                if (!cpu_isa_available(level)) continue;
                options.isa = cpu_isa_name(level);
                run_case(c, options, actions);
                compare(c, options.isa, dtype, actions, expected, &known);
            }
            options.isa = NULL;
            for (int d = 0; d < count && d < 16; d++) {
                if (!devices[d].usable || !strcmp(devices[d].name, "cpu")) continue;
                options.device = devices[d].name;
                run_case(c, options, actions);
                compare(c, options.device, dtype, actions, expected, &known);
            }
        }
    }
}

static void past_the_limit(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const struct limit_case *c = &limit_cases[i];
        openpi_synthetic model = model_of(c);
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine *engine = NULL;
        if (!c->sentence) continue;
        set(&model.dims, c->size, c->value + c->step);
        options.synthetic = &model;
        if (openpi_engine_open(NULL, &options, &engine, &error) != OPENPI_BAD_ARGUMENT)
            fail_msg("%s past its limit: %s", c->what, engine ? "opened" : error.message);
        if (!strstr(error.message, c->sentence))
            fail_msg("%s: \"%s\", expected \"%s\"", c->what, error.message, c->sentence);
    }
}

static void prompt_past_the_limit(void **state) {
    (void)state;
    openpi_synthetic model = {.size = sizeof model, .dims = small, .variant = OPENPI_PI0, .seed = 5};
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options session_options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_engine *engine;
    openpi_session *session;
    options.synthetic = &model;
    must(openpi_engine_open(NULL, &options, &engine, &error), "small");
    session_options.max_prompt = LIMIT_PROMPT + 1;
    assert_int_equal(openpi_session_create(engine, &session_options, &session, &error), OPENPI_BAD_ARGUMENT);
    assert_string_equal(error.message, "session options: max_prompt is 4097, expected 1 to 4096");
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(at_the_limit), cmocka_unit_test(past_the_limit),
                                       cmocka_unit_test(prompt_past_the_limit)};
    return cmocka_run_group_tests(tests, make_inputs, NULL);
}
