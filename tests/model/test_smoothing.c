/* Smoothing: whatever its powers are, the model remains the same function, in each way that its matrices may
 * be put together; powers follow from the sizes of channels; lists of channels have no gap. That it keeps
 * 8 bits from losing what they lose to outlier channels is tested by test_cli_w8_choice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/smoothing.h"
#include "openpi_internal.h"
#include "verify_rows.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* Loads the model again, of these groups the channels divided by powers from -4 to 4. */
static void load_smoothed(void *user, openpi_engine *e) {
    const char *groups = user;
    model_types types = e->model->types;
    size_t count = smooth_count(&e->checkpoint->dims);
    int8_t *powers = malloc(count);
    assert_non_null(powers);
    for (size_t i = 0; i < count; i++) powers[i] = (int8_t)(i * 2654435761u % 9231 % 9 - 4);
    for (int g = 0; g < GROUPS; g++)
        types.smooth[g] = strstr(groups, weight_group_name((weight_group)g)) != NULL;
    types.powers = powers;
    model_close(e->model);
    must(model_load(e->checkpoint, e->device, types, e->off, e->pool, NULL, NULL, &e->model, &error));
    e->model->tuning = e->tuning;
    free(powers);
}

static double off_by(const char *golden, const char *without, const char *groups) {
    verify_options options = VERIFY_OPTIONS_INIT;
    char path[256];
    rows r = {0};
    options.batch_only = 1;
    options.without = without;
    options.on_engine = load_smoothed;
    options.hook_user = (void *)(uintptr_t)groups;
    snprintf(path, sizeof path, GOLDEN "/model/%s.safetensors", golden);
    must(verify_path(path, &options, rows_take, &r, &error));
    assert_int_equal(r.count, 1);
    return r.row[0].rms;
}

static void the_function_stays(void **state) {
    (void)state;
    static const char *const goldens[] = {"pi0_odd", "pi05_odd"},
                            *const groups[] = {"", "vision", "attention", "ffn", "expert",
                                               "vision attention ffn expert"},
                            *const without[] = {NULL, "fused-qkv,fused-gate-up", "dead-work-removal"};
    for (int i = 0; i < 2; i++)
        for (size_t w = 0; w < sizeof without / sizeof *without; w++)
            for (size_t g = w ? 5 : 0; g < sizeof groups / sizeof *groups; g++) {
                double rms = off_by(goldens[i], without[w], groups[g]);
                if (!(rms < 2e-5))
                    fail_msg("%s, without %s, smoothed %s: rms %g", goldens[i], without[w] ? without[w] : "-",
                             groups[g], rms);
            }
}

/* ---- beside another model ---------------------------------------------------------------------------- */

/* Actions of a made-up call. */
static void run_once(openpi_engine *e, float actions[OPENPI_ACTION_DIM]) {
    static uint8_t picture[OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3];
    static const int32_t tokens[] = {2, 7, 5};
    static const float state[OPENPI_ACTION_DIM] = {0.5f, -0.25f};
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_session *session;
    float noise[OPENPI_ACTION_DIM];
    for (size_t i = 0; i < sizeof picture; i++) picture[i] = (uint8_t)(i * 31 % 251);
    sample.images[0] = picture;
    sample.image_mask[0] = 1;
    sample.tokens = tokens;
    sample.token_count = 3;
    sample.state = state;
    shape.horizon = 1;
    shape.steps = 2;
    openpi_noise(1, 0, noise, OPENPI_ACTION_DIM);
    must(openpi_session_create(e, &shape, &session, &error));
    must(openpi_session_run(session, &sample, 1, noise, actions, NULL, &error));
    openpi_session_close(session);
}

/* A model that shares matrices has the bits of one that was opened whole, and the base keeps its own. */
static void sharing_changes_nothing(void **state) {
    (void)state;
    static const char *const models[] = {"odd:pi0", "odd:pi05"},
                            *const lists[] = {"ffn=int8x8", "attention=int8+smooth,ffn=int8x8+smooth",
                                              "vision=int8+smooth", "expert=int8+smooth", "bf16"};
    for (size_t i = 0; i < 2 * sizeof lists / sizeof *lists; i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine *base, *whole, *beside;
        float before[OPENPI_ACTION_DIM], a[OPENPI_ACTION_DIM], b[OPENPI_ACTION_DIM];
        must(openpi_synthetic_parse(models[i % 2], &synthetic, &error));
        options.synthetic = &synthetic;
        options.threads = 1;
        must(engine_open_more(NULL, &options, &(engine_more){.keep_files = 1}, &base, &error));
        size_t count = smooth_count(&base->checkpoint->dims);
        int8_t *powers = malloc(count);
        assert_non_null(powers);
        for (size_t k = 0; k < count; k++) powers[k] = (int8_t)(k * 7 % 5) - 2;
        options.formats = lists[i / 2];
        must(engine_open_more(NULL, &options, &(engine_more){.measured.powers = powers}, &whole, &error));
        run_once(base, before);
        run_once(whole, a);
        must(engine_beside(base, options.formats, (formats_measured){.powers = powers}, &beside, &error));
        run_once(beside, b);
        if (memcmp(a, b, sizeof a)) fail_msg("%s, %s: other bits", models[i % 2], lists[i / 2]);
        assert_true((i / 2 == 4) == !memcmp(a, before, sizeof a));
        assert_true(beside->model->bytes == whole->model->bytes);
        assert_true(beside->model->own_bytes < whole->model->own_bytes);
        run_once(base, b);
        assert_memory_equal(b, before, sizeof b);
        openpi_engine_close(base);           /* it stays until the one beside it is closed                */
        run_once(beside, b);
        assert_memory_equal(a, b, sizeof a);
        openpi_engine_close(beside);
        openpi_engine_close(whole);
        free(powers);
    }
}

/* ---- powers ------------------------------------------------------------------------------------------ */

static const openpi_dims dims = {.vision_width = 6, .vision_depth = 2, .vision_heads = 1, .vision_mlp = 4,
                                 .width = 5, .depth = 3, .heads = 2, .head_dim = 4, .mlp = 7,
                                 .expert_width = 3, .expert_mlp = 8};

/* Every set has its own place, but for the values that both Gemma stacks have. */
static void sets_lie_side_by_side(void **state) {
    (void)state;
    int owners[200] = {0};
    size_t count = smooth_count(&dims);
    assert_true(count == 2 * 18 + 3 * (5 + 5 + 7 + 4) + 3 * (3 + 3 + 8));
    for (int t = 0; t < SMOOTH_TOWERS; t++)
        for (int layer = 0; layer < (t == SMOOTH_VISION ? 2 : 3); layer++)
            for (int s = 0; s < SMOOTH_SETS; s++) {
                size_t at = smooth_at(&dims, (smooth_tower)t, layer, (smooth_set)s);
                int channels = smooth_channels(&dims, (smooth_tower)t, (smooth_set)s);
                for (int i = 0; i < channels; i++) owners[at + (size_t)i]++;
            }
    for (size_t i = 0; i < count; i++) {
        int shared = 0;
        for (int layer = 0; layer < 3; layer++) {
            size_t at = smooth_at(&dims, SMOOTH_EXPERT, layer, SMOOTH_VALUES);
            shared |= i >= at && i < at + 4;
        }
        assert_int_equal(owners[i], 1 + shared);
    }
    assert_int_equal(owners[count], 0);
}

/* Channels 64 times as large as the others, of which the weights have taken it back, are divided by 64 as
 * the others are by 1; a dead channel, an infinite one and a huge one do no harm. */
static void powers_follow_the_channels(void **state) {
    (void)state;
    float rows[200], weights[200];
    int8_t powers[200];
    for (int i = 0; i < 200; i++) rows[i] = 3, weights[i] = 0.25f;
    size_t at = smooth_at(&dims, SMOOTH_PREFIX, 1, SMOOTH_HIDDEN);       /* 7 channels                    */
    rows[at + 2] *= 64, weights[at + 2] /= 64;
    smooth_powers(&dims, rows, weights, powers);
    for (size_t i = 0; i < smooth_count(&dims); i++)
        assert_int_equal(powers[i], i == at + 2 ? 5 : i >= at && i < at + 7 ? -1 : 0);
    rows[at] = 0;
    rows[at + 1] = INFINITY;
    rows[at + 3] = 1e30f;
    smooth_powers(&dims, rows, weights, powers);
    assert_true(powers[at] == 0 && powers[at + 1] == 0 && powers[at + 3] == SMOOTH_MOST);
    assert_true(powers[at + 4] == -SMOOTH_MOST && powers[at + 7] == 0);
}

/* Powers are never guessed: a list with +smooth takes a plan. */
static void without_a_plan_it_is_refused(void **state) {
    (void)state;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine = NULL;
    must(openpi_synthetic_parse("tiny:pi0", &synthetic, &error));
    options.synthetic = &synthetic;
    options.formats = "ffn=int8x8+smooth";
    assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), OPENPI_BAD_ARGUMENT);
    assert_string_equal(error.message, "weights is bf16,ffn=int8x8+smooth, and smoothing takes a plan that "
                                       "openpi quantize has measured, expected w8 or a list without +smooth");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_function_stays),
                                       cmocka_unit_test(sharing_changes_nothing),
                                       cmocka_unit_test(sets_lie_side_by_side),
                                       cmocka_unit_test(powers_follow_the_channels),
                                       cmocka_unit_test(without_a_plan_it_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
