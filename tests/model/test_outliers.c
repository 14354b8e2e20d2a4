/* Synthetic checkpoints with outlier channels: their weights differ from the plain ones, their actions do
 * not, to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/open.h"
#include "openpi.h"
#include "scratch.h"

enum { HORIZON = 2, ACTIONS = HORIZON * OPENPI_ACTION_DIM, TOKENS = 3 };

static scratch box;
static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

static openpi_synthetic synthetic_of(const char *spec, openpi_outliers outliers) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    synthetic.outliers = outliers;
    return synthetic;
}

/* Writes one into the box, which held another before. */
static const char *write_one(const char *spec, openpi_outliers outliers) {
    const openpi_synthetic synthetic = synthetic_of(spec, outliers);
    scratch_remove(scratch_path(&box, "one"));
    must(openpi_synthetic_write(&synthetic, scratch_path(&box, "one"), 0, 2, NULL, NULL, &error));
    return scratch_path(&box, "one");
}

static void act(const char *checkpoint, openpi_dtype dtype, float actions[ACTIONS]) {
    static uint8_t picture[224 * 224 * 3];
    static const int32_t tokens[TOKENS] = {2, 7, 9};
    const float state[OPENPI_ACTION_DIM] = {0.3f, -0.7f};
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_engine *engine;
    openpi_session *session;
    for (size_t i = 0; i < sizeof picture; i++) picture[i] = (uint8_t)(i * 7 + i / 640);
    sample.images[0] = picture;
    sample.image_mask[0] = 1;
    sample.tokens = tokens;
    sample.token_count = TOKENS;
    sample.state = state;
    options.dtype = dtype;
    options.threads = 2;
    shape.horizon = HORIZON;
    shape.steps = 2;
    shape.max_prompt = TOKENS;
    must(openpi_engine_open(checkpoint, &options, &engine, &error));
    must(openpi_session_create(engine, &shape, &session, &error));
    must(openpi_session_run(session, &sample, 1, NULL, actions, NULL, &error));
    openpi_session_close(session);
    openpi_engine_close(engine);
}

static void actions_stay_to_the_bit(void **state) {
    (void)state;
    static const char *const specs[] = {"tiny:pi0", "odd:pi05"};
    for (int s = 0; s < 2; s++) {
        float plain[2][ACTIONS], found[ACTIONS];
        for (int t = 0; t < 2; t++)
            act(write_one(specs[s], OPENPI_OUTLIERS_NONE), t ? OPENPI_F32 : OPENPI_BF16, plain[t]);
        for (int kind = OPENPI_OUTLIERS_64; kind <= OPENPI_OUTLIERS_SPREAD; kind++) {
            const char *checkpoint = write_one(specs[s], (openpi_outliers)kind);
            for (int t = 0; t < 2; t++) {
                act(checkpoint, t ? OPENPI_F32 : OPENPI_BF16, found);
                for (int i = 0; i < ACTIONS; i++)
                    if (found[i] != plain[t][i])
                        fail_msg("%s, outliers %d, %s: action %d is %.9g, expected %.9g", specs[s], kind,
                                 t ? "f32" : "bf16", i, (double)found[i], (double)plain[t][i]);
            }
        }
    }
}

/* The share of a tensor's elements that differ from the plain checkpoint's. */
static double share_changed(const char *name, openpi_outliers outliers) {
    static float plain[1 << 20], planted[1 << 20];
    float *const into[2] = {plain, planted};
    int64_t count = 0, changed = 0;
    for (int i = 0; i < 2; i++) {
        char path[500];
        tensors *file;
        write_one("tiny:pi0", i ? outliers : OPENPI_OUTLIERS_NONE);
        snprintf(path, sizeof path, "%s/model.safetensors", scratch_path(&box, "one"));
        must(tensors_open(path, &file, &error));
        const tensor *t = tensors_find(file, name);
        if (!t || t->count > 1 << 20) fail_msg("%s is missing or too large", name);
        tensor_read_f32(t, 0, count = t->count, into[i]);
        tensors_close(file);
    }
    for (int64_t i = 0; i < count; i++) changed += plain[i] != planted[i];
    return (double)changed / (double)count;
}

static void weights_change(void **state) {
    (void)state;
    static const char *const names[] = {
        "paligemma_with_expert.paligemma.model.vision_tower.vision_model.encoder.layers.0.layer_norm1.weight",
        "paligemma_with_expert.paligemma.model.language_model.layers.1.mlp.down_proj.weight",
        "paligemma_with_expert.gemma_expert.model.layers.1.self_attn.o_proj.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        double few = share_changed(names[i], OPENPI_OUTLIERS_64);
        assert_true(few > 0 && few < 0.02);
        assert_true(share_changed(names[i], OPENPI_OUTLIERS_SPREAD) > 0.5);
    }
}

static void only_files_have_them(void **state) {
    (void)state;
    openpi_synthetic synthetic = synthetic_of("tiny:pi0", OPENPI_OUTLIERS_64);
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_engine *engine = NULL;
    options.synthetic = &synthetic;
    assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "only a checkpoint that is written has them"));
    synthetic.outliers = (openpi_outliers)4;
    assert_int_equal(openpi_synthetic_write(&synthetic, scratch_path(&box, "no"), 0, 1, NULL, NULL, &error),
                     OPENPI_BAD_ARGUMENT);
}

static int open_box(void **state) {
    (void)state;
    return scratch_open(&box);
}

static int close_box(void **state) {
    (void)state;
    scratch_close(&box);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(actions_stay_to_the_bit),
                                       cmocka_unit_test(weights_change),
                                       cmocka_unit_test(only_files_have_them)};
    return cmocka_run_group_tests(tests, open_box, close_box);
}
