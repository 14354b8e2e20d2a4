/* labels: skips */
/* The GPU's instruments: launches of a timed recording, facts, ceilings. Without a GPU every test is counted
 * and skipped, with the reason. */
#include "gpu_engine.h"

/* A timed recording computes the same, and its launches fill its stages. */
static void test_timed_recording(void **state) {
    enum { MOST = 8192 };
    openpi_engine *engine;
    openpi_session *session;
    struct recording *timed = NULL, *plain, *kept[CALL_KINDS];
    openpi_timing timing = OPENPI_TIMING_INIT;
    static float expected[10 * OPENPI_ACTION_DIM], actions[10 * OPENPI_ACTION_DIM];
    static launch_record seen[MOST];
    double stages[OPENPI_STAGES] = {0}, last = 0, shortest = 1e9, finest = 1e9;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    inputs *in = calloc(1, sizeof *in);
    (void)state;
    if (!open_engine("tiny:pi0", OPENPI_BF16, &engine)) {
        free(in);
        skip();
    }
    options.horizon = 10;
    in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
    draw(in);
    in->samples[0].token_count = 20;
    must(openpi_session_create(engine, &options, &session, &error));
    const backend *backend = engine->device->backend;
    const plan *plan = session->plan;
    must(openpi_session_run(session, in->samples, 1, in->noise, expected, NULL, &error));
    /* The ops are as that call chose them now; whichever graph such a call takes, it is to be the timed
     * one. */
    must(backend->record_timed(engine->device, plan_list(plan), session->work, &timed, &error));
    plain = session->kinds.recordings[CALL_ANY];
    memcpy(kept, session->kinds.recordings, sizeof kept);
    for (int kind = 0; kind < CALL_KINDS; kind++)
        if (kept[kind]) session->kinds.recordings[kind] = timed;
    for (int i = 0; i < 3; i++)
        must(openpi_session_run(session, in->samples, 1, in->noise, actions, &timing, &error));
    memcpy(session->kinds.recordings, kept, sizeof kept);
    assert_memory_equal(expected, actions, sizeof expected);
    int count = backend->launches(engine->device, timed, seen, MOST);
    assert_true(count >= 20 && count <= MOST);
    for (int i = 0; i < count; i++) {
        double ms = seen[i].end_ms - seen[i].start_ms;
        assert_true(ms > 0 && seen[i].start_ms >= last);
        assert_true(seen[i].op >= 0 && seen[i].op + seen[i].ops <= plan->count && seen[i].kernel[0]);
        last = seen[i].end_ms;
        stages[plan->ops[seen[i].op].stage] += ms;
        if (ms < shortest) shortest = ms;
        for (int j = 0; j < i; j++) {
            double d = ms - (seen[j].end_ms - seen[j].start_ms);
            if (d < 0) d = -d;
            if (d > 1e-6 && d < finest) finest = d;
        }
    }
    print_message("%d launches, %d nodes plain and %d timed; shortest %.3f us, times differ by %.4f us at "
                  "least\n",
                  count, backend->nodes(plain), backend->nodes(timed), shortest * 1e3, finest * 1e3);
    for (int s = OPENPI_STAGE_VISION; s <= OPENPI_STAGE_DENOISE; s++) {
        print_message("stage %d: launches %.4f ms, stage %.4f ms\n", s, stages[s], timing.stage_ms[s]);
        assert_true(stages[s] <= timing.stage_ms[s] * 1.001 + 1e-4 &&
                    stages[s] >= timing.stage_ms[s] * 0.98 - 0.01);
    }
    backend->forget(engine->device, timed);
    openpi_session_close(session);
    openpi_engine_close(engine);
    free(in->images);
    free(in);
}

/* Facts, free memory and ceilings are there, and measuring the ceilings leaves nothing allocated. */
static void test_facts(void **state) {
    openpi_engine *engine;
    device_facts facts;
    device_roofs roofs;
    uint64_t before, after, total;
    (void)state;
    if (!open_engine("tiny:pi0", OPENPI_BF16, &engine)) skip();
    const backend *backend = engine->device->backend;
    must(backend->facts(engine->device, &facts, &error));
    print_message("%s, %s, %d.%d, %d multiprocessors, %.1f GB, cache %.1f MB, up to %.0f and %.0f MHz\n",
                  facts.name, facts.driver, facts.capability_major, facts.capability_minor,
                  facts.multiprocessors, (double)facts.memory_bytes * 1e-9, (double)facts.cache_bytes * 1e-6,
                  facts.core_mhz, facts.memory_mhz);
    assert_true(facts.name[0] && facts.driver[0] && facts.multiprocessors > 0 && facts.cache_bytes &&
                facts.core_mhz > 0 && facts.memory_mhz > 0);
    must(backend->memory(engine->device, &before, &total, &error));
    assert_true(before > 0 && before < total && total <= facts.memory_bytes);
    for (int i = 0; i < 3; i++) {
        must(backend->roof(engine->device, DTYPE_BF16, &roofs, &error));
        print_message("bf16 %.1f TFLOP/s at %.0f MHz, f32 %.1f TFLOP/s, read %.0f GB/s, copy %.0f GB/s\n",
                      roofs.bf16_tflops, roofs.core_mhz, roofs.f32_tflops, roofs.read_gbs, roofs.copy_gbs);
    }
    must(backend->memory(engine->device, &after, &total, &error));
    assert_true(roofs.bf16_tflops > 1 && roofs.f32_tflops > 0.5 && roofs.read_gbs > 50 &&
                roofs.copy_gbs > 50);
    assert_int_equal(after, before);
    openpi_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timed_recording),
        cmocka_unit_test(test_facts),
    };
    return verdict(cmocka_run_group_tests_name("gpu measure", tests, NULL, NULL));
}
