/* What the families of a vendor are shown of a plan: its blocks, and the rest of one where a family has taken
 * its first layers or steps. For one source file of a test. */
#ifndef TESTS_BLOCK_WATCH_H
#define TESTS_BLOCK_WATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/gpu/gpu.h"
#include "openpi_internal.h"

enum { WATCHED = 256, WATCHED_MODULES = 32 };

static struct {
    op_block seen[WATCHED];
    int count, takes;            /* takes: 1 what is shown, 0 nothing                                      */
} watch;

static int watch_block(gpu_issue *issue, const op_block *block) {
    assert_true(watch.count < WATCHED);
    watch.seen[watch.count++] = *block;
    if (!watch.takes) return 0;
    gpu_take(issue, block->count);
    return block->count;
}

/* The vendor, whose first family watches. */
static gpu_vendor watched_vendor(const gpu_vendor *vendor) {
    static gpu_module modules[WATCHED_MODULES + 1];
    static gpu_family family;
    gpu_vendor copy = *vendor;
    int count = 0;
    while (vendor->modules[count].family) count++;
    assert_in_range(count, 1, WATCHED_MODULES);
    memcpy(modules, vendor->modules, (size_t)(count + 1) * sizeof *modules);
    family = *modules[0].family;
    family.take_block = watch_block;
    modules[0].family = &family;
    copy.modules = modules;
    return copy;
}

static void watch_saw(int at, const op_block *block) {
    const op_block *seen = &watch.seen[at];
    assert_true(at < watch.count && seen->ops == block->ops);
    assert_int_equal(seen->kind, block->kind);
    assert_int_equal(seen->count, block->count);
    assert_int_equal(seen->layers, block->layers);
    assert_int_equal(seen->steps, block->steps);
    assert_int_equal(seen->step_ops, block->step_ops);
    assert_int_equal(seen->cache_bytes, block->cache_bytes);
}

/* A session is recorded: where nothing is taken, families are asked at each layer and step. */
static void watch_recording(openpi_engine *engine, int takes) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_session *session;
    int at = 0;
    watch.count = 0;
    watch.takes = takes;
    options.horizon = 10;
    options.steps = 4;
    assert_int_equal(openpi_session_create(engine, &options, &session, &error), OPENPI_OK);
    assert_non_null(session->kinds.recordings[CALL_ANY]);
    const op_list list = plan_list(session->plan);
    assert_true(list.block_count >= 3);
    for (int i = 0; i < list.block_count && takes; i++) watch_saw(at++, &list.blocks[i]);
    for (int i = 0; i < list.count && !takes; i++) {
        op_block rest;
        if (block_at(&list, i, &rest)) watch_saw(at++, &rest);
    }
    assert_int_equal(watch.count, at);
    openpi_session_close(session);
}

static void check_blocks_are_shown(const gpu_vendor *vendor, const backend *backend, const char *name) {
    const gpu_vendor watched = watched_vendor(vendor);
    const model_types types = formats_all(DTYPE_BF16, FORMAT_BF16);
    for (int variant = 0; variant < 2; variant++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_error error = OPENPI_ERROR_INIT;
        openpi_engine *e = engine_new();
        device_options options = {0};
        assert_int_equal(openpi_synthetic_parse(variant ? "odd:pi05" : "odd:pi0", &synthetic, &error),
                         OPENPI_OK);
        assert_int_equal(pool_create(1, 0, &e->pool, &error), OPENPI_OK);
        e->dtype = OPENPI_BF16;
        options.pool = e->pool;
        assert_int_equal(gpu_open(&watched, backend, name, &options, &e->device, &error), OPENPI_OK);
        assert_int_equal(checkpoint_open(NULL, &synthetic, &e->checkpoint, &error), OPENPI_OK);
        assert_int_equal(
            model_load(e->checkpoint, e->device, types, 0, e->pool, NULL, NULL, &e->model, &error),
            OPENPI_OK);
        for (int takes = 0; takes < 2; takes++) watch_recording(e, takes);
        openpi_engine_close(e);
    }
}

#endif
