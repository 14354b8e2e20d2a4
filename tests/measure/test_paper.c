/* The static model against the card that was measured: fed with the H200's numbers it must predict every
 * stage of every call of one sample in docs/results/h200 within 25 %. And what must hold of any card,
 * whatever its numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "lab/paper/paper.h"

#define RESULTS TESTS_DIR "/../docs/results/h200/"

static const char *const stage_names[] = {"vision", "prefix", "denoise"};
static const openpi_stage stages[] = {OPENPI_STAGE_VISION, OPENPI_STAGE_PREFIX, OPENPI_STAGE_DENOISE};

static double stage_ms(const profile *p, openpi_stage stage) {
    double sum = 0;
    for (int i = 0; i < p->count; i++)
        if (p->ops[i].stage == stage) sum += p->ops[i].ms;
    return sum;
}

static void run(const char *preset, const workload *w, int horizon, int steps, const paper_card *card,
                paper_call *call) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    assert_int_equal(openpi_synthetic_parse(preset, &synthetic, &error), OPENPI_OK);
    if (paper_run(NULL, &synthetic, w, horizon, steps, card, call, &error) != OPENPI_OK)
        fail_msg("%s", error.message);
}

static double number(const json_t *at, const char *key) {
    const json_t *value = json_object_get(at, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

/* ---- the measured card ------------------------------------------------------------------------------ */

static double measured_ms(const json_t *list, const char *name) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *stage = json_array_get(list, i);
        if (!strcmp(json_string_value(json_object_get(stage, "name")), name)) return number(stage, "p50_ms");
    }
    fail_msg("no stage %s", name);
    return 0;
}

/* A file's call, as bench was told to run it. The plan that is predicted has every switch on; the model knows
 * by the card that the layers of a step, and those of vision, are one launch each. */
static void compare(const char *file, int resident, int resident_vision) {
    char path[300], preset[40];
    snprintf(path, sizeof path, RESULTS "%s.json", file);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    const json_t *call = json_object_get(root, "workload");
    workload w = {.batch = (int)number(root, "batch"), .prompt = (int)number(call, "prompt")};
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        w.cameras[c] = json_string_value(json_object_get(call, "cameras"))[c] == '1';
    paper_card card = *paper_card_of("h200");
    if (!resident) card.resident_rows = 0;
    if (!resident_vision) card.resident_images = 0;
    paper_call paper;
    snprintf(preset, sizeof preset, "full:%s",
             json_string_value(json_object_get(json_object_get(root, "model"), "variant")));
    run(preset, &w, (int)number(call, "horizon"), (int)number(call, "steps"), &card, &paper);
    int wrong = 0;
    for (int i = 0; i < 3; i++) {
        double is = measured_ms(json_object_get(root, "stages"), stage_names[i]);
        double said = stage_ms(&paper.profile, stages[i]);
        print_message("%-20s %-8s measured %7.3f ms, predicted %7.3f ms, %+5.1f %%\n", file, stage_names[i],
                      is, said, (said / is - 1) * 100);
        wrong += !(fabs(said / is - 1) <= 0.25);
    }
    profile_free(&paper.profile);
    json_decref(root);
    if (wrong) fail_msg("%s: %d stages are not predicted within 25 %%", file, wrong);
}

static void measured_stages(void **state) {
    static const struct {
        const char *file;
        int resident, resident_vision;
    } calls[] = {
        {"bench-pi0", 1, 1},       {"bench-pi05", 1, 1},      {"bench-not-resident", 0, 1},
        {"bench-cameras-1", 1, 1}, {"bench-cameras-2", 1, 1}, {"bench-not-persistent-vision", 1, 0},
        {"bench-horizon", 1, 1},   {"bench-pi05-50", 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        compare(calls[i].file, calls[i].resident, calls[i].resident_vision);
}

/* The card's own numbers are those of the file, not others. */
static void measured_roofs(void **state) {
    const paper_card *card = paper_card_of("h200");
    json_t *root = json_load_file(RESULTS "bench-pi0.json", 0, NULL);
    const json_t *roofs = json_object_get(root, "roofs");
    (void)state;
    assert_non_null(roofs);
    assert_true(fabs(card->matrix_tflops / number(roofs, "bf16_tflops") - 1) < 0.03);
    assert_true(fabs(card->memory_gbs / number(roofs, "read_gbs") - 1) < 0.03);
    assert_true(fabs(card->core_mhz / number(roofs, "core_mhz") - 1) < 0.03);
    json_decref(root);
}

/* ---- any card --------------------------------------------------------------------------------------- */

/* Nothing is predicted to take less than the card's own ceilings allow. */
static void not_above_the_roof(void **state) {
    workload w = {.batch = 2, .cameras = {1, 1, 1}, .prompt = 20};
    (void)state;
    for (const paper_card *card = paper_cards; card->name; card++) {
        paper_call paper;
        run("full", &w, 10, 10, card, &paper);
        double sum = 0;
        assert_int_equal(paper.profile.method, TIMED_PREDICTED);
        for (int i = 0; i < paper.profile.count; i++) {
            const profile_op *o = &paper.profile.ops[i];
            if (!(o->ms >= o->floor_ms && o->ms > 0))
                fail_msg("%s, %s: %g ms, floor %g ms", card->name, o->name, o->ms, o->floor_ms);
            sum += o->ms;
        }
        assert_true(fabs(sum - paper.profile.sum_ms) <= 1e-9 * sum);
        profile_free(&paper.profile);
    }
}

static double total(const paper_card *card, int batch) {
    workload w = {.batch = batch, .cameras = {1, 1, 1}, .prompt = 20};
    paper_call paper;
    run("full", &w, 10, 10, card, &paper);
    double ms = paper.profile.sum_ms;
    profile_free(&paper.profile);
    return ms;
}

/* Each number of a card matters, in the direction that it must. */
static void every_number_counts(void **state) {
    const paper_card *plain = paper_card_of("mi300x");
    double ms = total(plain, 1);
    (void)state;
#define CHANGED(change, sign)                                                                               \
    {                                                                                                       \
        paper_card card = *plain;                                                                           \
        change;                                                                                             \
        if (!((total(&card, 1) - ms) * (sign) > 0)) fail_msg("%s changes nothing as it should", #change);  \
    }
    CHANGED(card.units *= 2, -1)
    CHANGED(card.flops_per_cycle /= 2, 1)
    CHANGED(card.core_mhz *= 2, -1)
    CHANGED(card.matrix_tflops /= 20, 1)
    CHANGED(card.memory_gbs /= 10, 1)
    CHANGED(card.move_bytes /= 20, 1)
    CHANGED(card.launch_us *= 2, 1)
    CHANGED(card.load_us *= 2, 1)
    CHANGED(card.epilogue_cycles *= 4, 1)
    CHANGED(card.softmax_cycles = 1, 1)
    CHANGED(card.attention_inner[0] /= 2, 1)
    CHANGED(card.attention_split = 0, 1)
    CHANGED(card.ahead = 4, -1)
    CHANGED(card.few_rows = 16, -1)
    CHANGED(card.norm_rows = 1 << 20, -1)
    CHANGED((card.resident_samples = 1, card.resident_rows = 16), -1)
    CHANGED(card.resident_images = 3, -1)
    CHANGED(for (int i = 0; i < PAPER_TILES; i++) card.tiles[i].inner /= 2, 1)
#undef CHANGED
    assert_true(total(plain, 64) > 8 * ms);
    paper_card one = *plain, two = *plain;
    one.resident_samples = 1, two.resident_samples = 2;
    one.resident_rows = two.resident_rows = 64;
    assert_true(total(&one, 2) == total(plain, 2));
    assert_true(total(&two, 2) < total(plain, 2));
}

static void bad_input(void **state) {
    openpi_error error = OPENPI_ERROR_INIT;
    paper_call paper;
    workload w = {.batch = 1, .cameras = {1, 1, 1}, .prompt = 20};
    (void)state;
    assert_null(paper_card_of("mi300"));
    assert_int_not_equal(paper_run("/nowhere", NULL, &w, 10, 10, paper_cards, &paper, &error), OPENPI_OK);
    assert_non_null(strstr(error.message, "/nowhere"));
    profile_free(&paper.profile);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_stages),     cmocka_unit_test(measured_roofs),
        cmocka_unit_test(not_above_the_roof),  cmocka_unit_test(every_number_counts),
        cmocka_unit_test(bad_input),
    };
    return cmocka_run_group_tests_name("paper", tests, NULL, NULL);
}
