/* labels: threads isa no_asan */
/* Other weights for an engine that runs (engine_update.c): with all tensors of another model it computes what
 * that one computes, bit for bit; a call beside an update has either the weights before or those after; a
 * prefix of the weights before is never taken; a file changes several engines or none; and what cannot be is
 * refused and changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "calls_beside.h"
#include "openpi_internal.h"
#include "parts_of_calls.h"
#include "scratch.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) { parts_must(status, &error); }

static void refuses(openpi_status status, openpi_status expected, const char *part) {
    assert_int_equal(status, expected);
    if (!strstr(error.message, part)) fail_msg("\"%s\" says nothing of \"%s\"", error.message, part);
}

/* All tensors of a model as a caller has them. */
typedef struct all_weights {
    openpi_field *fields;
    int count;
} all_weights;

static all_weights weights_of(const openpi_engine *engine) {
    const tensors *list = engine->checkpoint->tensors;
    all_weights w = {calloc((size_t)tensors_count(list), sizeof *w.fields), tensors_count(list)};
    for (int i = 0; i < w.count; i++) {
        const tensor *t = tensors_at(list, i);
        float *data = malloc((size_t)t->count * sizeof *data);
        assert_non_null(data);
        tensor_read_f32(t, 0, t->count, data);
        w.fields[i] = (openpi_field){.size = sizeof *w.fields, .name = t->name, .data = data,
                                     .element = OPENPI_FLOAT32, .rank = t->rank};
        for (int k = 0; k < t->rank; k++) w.fields[i].shape[k] = t->shape[k];
    }
    return w;
}

static void free_weights(all_weights *w) {
    for (int i = 0; i < w->count; i++) free((void *)(uintptr_t)w->fields[i].data);
    free(w->fields);
}

static const openpi_field *weight(const all_weights *w, const char *part) {
    for (int i = 0; i < w->count; i++)
        if (strstr(w->fields[i].name, part)) return &w->fields[i];
    fail_msg("no weight is called %s", part);
    return NULL;
}

static void run(openpi_session *session, const mixed *m, float *actions) {
    must(openpi_session_run(session, m->samples + 1, 1, m->noise, actions, NULL, &error));
}

/* "tiny:pi0:8" after an update with all of its weights, and back. */
static void becomes_another_model(void **state) {
    static const char *const models[][2] = {{"odd:pi0:7", "odd:pi0:8"}, {"odd:pi05:7", "odd:pi05:8"}};
    static mixed m;
    (void)state;
    mixed_make(&m, 0);
    for (int which = 0; which < 4; which++) {
        openpi_dtype type = which % 2 ? OPENPI_BF16 : OPENPI_F32;
        openpi_engine *one = mixed_engine(models[which / 2][0], NULL, type, 0);
        openpi_engine *other = mixed_engine(models[which / 2][1], NULL, type, 0);
        openpi_session *changing = parts_session(one, 1, 0), *fixed = parts_session(other, 1, 0);
        all_weights before = weights_of(one), after = weights_of(other);
        openpi_engine_info first = OPENPI_ENGINE_INFO_INIT, second = OPENPI_ENGINE_INFO_INIT;
        float old[MIXED_ONE], want[MIXED_ONE], got[MIXED_ONE];
        run(changing, &m, old);
        run(fixed, &m, want);
        assert_memory_not_equal(old, want, sizeof old);
        must(openpi_engine_get_info(one, &first, &error));
        must(openpi_engine_update(one, after.fields, after.count, &error));
        must(openpi_engine_get_info(one, &second, &error));
        assert_string_not_equal(first.checkpoint_hash, second.checkpoint_hash);
        run(changing, &m, got);
        mixed_same("all weights", which, got, want);
        must(openpi_engine_update(one, before.fields, before.count, &error));
        must(openpi_engine_update(one, weight(&after, "action_out_proj.weight"), 1, &error));
        run(changing, &m, got);
        assert_memory_not_equal(got, old, sizeof old);
        must(openpi_engine_update(one, weight(&before, "action_out_proj.weight"), 1, &error));
        run(changing, &m, got);
        mixed_same("and back", which, got, old);
        free_weights(&before);
        free_weights(&after);
        openpi_session_close(changing);
        openpi_session_close(fixed);
        openpi_engine_close(one);
        openpi_engine_close(other);
    }
}

static void a_prefix_of_other_weights(void **state) {
    static mixed m;
    float x[MIXED_ONE], want[MIXED_ONE], got[MIXED_ONE];
    (void)state;
    mixed_make(&m, 0);
    openpi_engine *engine = mixed_engine("odd:pi05:7", NULL, OPENPI_BF16, 0);
    openpi_engine *other = mixed_engine("odd:pi05:8", NULL, OPENPI_BF16, 0);
    openpi_session *session = parts_session(engine, 1, 1), *fixed = parts_session(other, 1, 0);
    all_weights after = weights_of(other);
    run(fixed, &m, want);
    must(openpi_session_prefix(session, m.samples + 1, 1, 1, NULL, &error));
    must(openpi_engine_update(engine, after.fields, after.count, &error));
    memcpy(x, m.noise, sizeof x);
    refuses(openpi_session_denoise(session, x, 1, 0, 1, NULL, &error), OPENPI_BAD_ARGUMENT,
            "weights have changed since the prefix was computed");
    assert_memory_equal(x, m.noise, sizeof x);
    run(session, &m, got);
    mixed_same("after an update", 0, got, want);
    assert_int_equal(parts_kept(session), 0);
    run(session, &m, got);
    mixed_same("and kept again", 0, got, want);
    assert_int_equal(parts_kept(session), 1);
    free_weights(&after);
    openpi_session_close(session);
    openpi_session_close(fixed);
    openpi_engine_close(engine);
    openpi_engine_close(other);
}

static void refused(void **state) {
    static mixed m;
    float old[MIXED_ONE], got[MIXED_ONE];
    (void)state;
    mixed_make(&m, 0);
    openpi_engine *engine = mixed_engine("odd:pi0:7", NULL, OPENPI_BF16, 0);
    openpi_session *session = parts_session(engine, 1, 0);
    all_weights w = weights_of(engine);
    run(session, &m, old);
    openpi_field f = *weight(&w, "action_out_proj.weight");
    float *numbers = (float *)(uintptr_t)f.data, kept = numbers[3];
    f.shape[0]++;
    refuses(openpi_engine_update(engine, &f, 1, &error), OPENPI_BAD_ARGUMENT,
            "action_out_proj.weight has shape [33,");
    f.shape[0]--;
    numbers[3] = NAN;
    refuses(openpi_engine_update(engine, &f, 1, &error), OPENPI_BAD_INPUT, "has a NaN or an infinity");
    numbers[3] = kept;
    f.element = OPENPI_FLOAT64;
    refuses(openpi_engine_update(engine, &f, 1, &error), OPENPI_BAD_ARGUMENT, "expected float32 numbers");
    f.element = OPENPI_FLOAT32;
    f.name = "action_out.weight";
    refuses(openpi_engine_update(engine, &f, 1, &error), OPENPI_NOT_FOUND, "no tensor \"action_out.weight\"");
    refuses(openpi_engine_update(engine, weight(&w, "mlp.gate_proj.weight"), 1, &error), OPENPI_BAD_ARGUMENT,
            "expected both: they are packed as one");
    refuses(openpi_engine_update(engine, weight(&w, "action_in_proj.weight"), 1, &error), OPENPI_BAD_ARGUMENT,
            "there is action_in_proj.weight without");
    openpi_field twice[2] = {w.fields[0], w.fields[0]};
    refuses(openpi_engine_update(engine, twice, 2, &error), OPENPI_BAD_ARGUMENT, "is there twice");
    refuses(openpi_engine_update(engine, w.fields, 0, &error), OPENPI_BAD_ARGUMENT, "there are no tensors");
    run(session, &m, got);
    mixed_same("refused", 0, got, old);
    free_weights(&w);
    openpi_session_close(session);
    openpi_engine_close(engine);
}

/* ---- a file for several engines --------------------------------------------------------------------- */

/* The weights of an engine of this spec as a file in the box. Returns its path. */
static const char *write_model(scratch *box, const char *spec, const openpi_engine *engine) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
    static char folder[500];
    snprintf(folder, sizeof folder, "%s", scratch_path(box, "model"));
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    must(openpi_engine_get_info(engine, &info, &error));
    synthetic.dims = info.dims;
    must(openpi_synthetic_write(&synthetic, folder, 0, 1, NULL, NULL, &error));
    return scratch_path(box, "model/model.safetensors");
}

/* Two engines, whose first one must not change where the second one cannot. */
static void from_a_file(void **state) {
    static mixed m;
    float old[MIXED_ONE], want[MIXED_ONE], got[MIXED_ONE];
    scratch box;
    char path[500];
    int count = 0;
    (void)state;
    mixed_make(&m, 0);
    assert_int_equal(scratch_open(&box), 0);
    openpi_engine *engines[2], *other = mixed_engine("odd:pi0:8", NULL, OPENPI_BF16, 0);
    openpi_engine *apart = mixed_engine("odd:pi05:7", NULL, OPENPI_BF16, 0);
    openpi_session *sessions[2], *fixed = parts_session(other, 1, 0);
    snprintf(path, sizeof path, "%s", write_model(&box, "odd:pi0:8", other));
    for (int i = 0; i < 2; i++) {
        engines[i] = mixed_engine("odd:pi0:7", NULL, OPENPI_BF16, 0);
        sessions[i] = parts_session(engines[i], 1, 0);
    }
    run(sessions[0], &m, old);
    run(fixed, &m, want);
    openpi_engine *pairs[][2] = {{engines[0], apart}, {apart, engines[0]}};
    for (int i = 0; i < 2; i++)
        refuses(openpi_engine_update_file(pairs[i], 2, path, &count, &error), OPENPI_NOT_FOUND, path);
    openpi_engine *same[2] = {engines[0], engines[0]};
    refuses(openpi_engine_update_file(same, 2, path, &count, &error), OPENPI_BAD_ARGUMENT, "is there twice");
    refuses(openpi_engine_update_file(engines, 0, path, &count, &error), OPENPI_BAD_ARGUMENT, "no engines");
    refuses(openpi_engine_update_file(engines, 2, NULL, &count, &error), OPENPI_BAD_ARGUMENT, "file is NULL");
    refuses(openpi_engine_update_file(engines, 2, box.folder, &count, &error), OPENPI_BAD_FILE, "a folder");
    assert_int_equal(count, 0);
    run(sessions[0], &m, got);
    mixed_same("refused", 0, got, old);
    must(openpi_engine_update_file(engines, 2, path, &count, &error));
    assert_int_equal(count, tensors_count(other->checkpoint->tensors));
    for (int i = 0; i < 2; i++) {
        run(sessions[i], &m, got);
        mixed_same("from a file", i, got, want);
        openpi_session_close(sessions[i]);
        openpi_engine_close(engines[i]);
    }
    openpi_session_close(fixed);
    openpi_engine_close(other);
    openpi_engine_close(apart);
    scratch_close(&box);
}

/* ---- calls beside updates --------------------------------------------------------------------------- */

static void no_call_sees_half_an_update(void **state) {
    enum { UPDATES = 12 };
    static mixed m;
    float want[2][MIXED_ONE];
    (void)state;
    mixed_make(&m, 0);
    openpi_engine *engine = mixed_engine("odd:pi0:7", NULL, OPENPI_BF16, 0);
    openpi_engine *other = mixed_engine("odd:pi0:8", NULL, OPENPI_BF16, 0);
    openpi_session *session = parts_session(engine, 1, 0), *fixed = parts_session(other, 1, 0);
    all_weights weights[2] = {weights_of(engine), weights_of(other)};
    run(session, &m, want[0]);
    run(fixed, &m, want[1]);
    beside b = {.session = session, .m = &m, .want = {want[0], want[1]}};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, call_again, &b), 0);
    for (int i = 1; i <= UPDATES; i++) {
        int now = atomic_load(&b.seen[i % 2]);
        must(openpi_engine_update(engine, weights[i % 2].fields, weights[i % 2].count, &error));
        while (atomic_load(&b.seen[i % 2]) == now && !atomic_load(&b.wrong)) sched_yield();
    }
    atomic_store(&b.over, 1);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&b.wrong), 0);
    for (int i = 0; i < 2; i++) free_weights(&weights[i]);
    openpi_session_close(session);
    openpi_session_close(fixed);
    openpi_engine_close(engine);
    openpi_engine_close(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(becomes_another_model),
        cmocka_unit_test(a_prefix_of_other_weights),
        cmocka_unit_test(refused),
        cmocka_unit_test(from_a_file),
        cmocka_unit_test(no_call_sees_half_an_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
