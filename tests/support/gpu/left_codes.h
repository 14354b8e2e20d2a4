/* ffn=int8x8+static on a device: what a gated product leaves as codes against the numbers that it leaves
 * otherwise, by every choice that the device has, and the product that reads either. Include after cmocka.h,
 * openpi_internal.h, `error` and must(). */
#ifndef TESTS_LEFT_CODES_H
#define TESTS_LEFT_CODES_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/int8_rows.h"

/* 192 packed columns fill no tile, 2,048 k are shared by blocks; the sizes of a full layer. */
#define CODES_RAGGED \
    "{\"vision\":[72,1,1,64],\"vlm\":[2048,2,1,256,96],\"expert\":[72,64],\"vocab\":256}"
#define CODES_FULL \
    "{\"vision\":[72,1,1,64],\"vlm\":[2048,2,8,256,16384],\"expert\":[72,64],\"vocab\":256}"

/* What a gated product leaves as numbers, and the codes of the definition. */
typedef struct left_rows {
    int rows, n, capacity;
    bf16 *numbers;
    int8_t *codes, *found;       /* [rows][n]                                                              */
    float scale, scales[1024];
    uint32_t lost[INT8_COUNTS], counts[INT8_COUNTS];
    int candidates;
} left_rows;
static left_rows left;

static inline void fetch_left(openpi_session *s, void *to, const void *from, size_t bytes) {
    must(s->engine->device->backend->download(s->engine->device, to, from, bytes, &error));
}

static inline void put_left(openpi_session *s, void *to, const void *from, size_t bytes) {
    must(s->engine->device->backend->upload(s->engine->device, to, from, bytes, &error));
}

static inline void take_left(void) {
    size_t count = (size_t)(left.rows * left.n);
    assert_true(left.rows <= (int)(sizeof left.scales / sizeof *left.scales));
    left.numbers = malloc(count * sizeof *left.numbers);
    left.codes = malloc(count);
    left.found = malloc(count);
    assert_true(left.numbers && left.codes && left.found);
}

/* With a work block of its own: the session's is for the plan's choices, and for down of codes. */
static inline void run_op(openpi_session *s, const op *op) {
    device *device = s->engine->device;
    const backend *backend = device->backend;
    size_t bytes = backend->work_bytes(device, op, 1);
    void *work = NULL;
    if (bytes) must(backend->allocate(device, bytes, "a test's work block", &work, &error));
    must(backend->run(device, op_alone(op), work, NULL, &error));
    if (work) backend->release(device, work);
}

static inline void clear_counts(openpi_session *s, uint32_t *counts) {
    static const uint32_t none[INT8_COUNTS];
    put_left(s, counts, none, sizeof none);
}

/* The numbers' codes, under a scale that some are beyond. */
static inline void expect_codes(void) {
    float top = 0;
    for (int i = 0; i < left.rows * left.n; i++) {
        float size = fabsf(bf16_to_float(left.numbers[i]));
        if (isfinite(size)) top = fmaxf(top, size);
    }
    left.scale = top / 200;
    memset(left.lost, 0, sizeof left.lost);
    for (int r = 0; r < left.rows; r++) {
        int8_lost lost = {0};
        for (int i = r * left.n; i < (r + 1) * left.n; i++)
            left.codes[i] =
                (int8_t)int8_fixed_code(bf16_to_float(left.numbers[i]), 1 / left.scale, &lost);
        left.lost[INT8_CLIPPED] += lost.clipped;
        left.lost[INT8_CLIPPED_ROWS] += lost.clipped > 0;
        left.lost[INT8_NOT_FINITE] += lost.not_finite;
    }
    assert_true(left.lost[INT8_CLIPPED] > 3 && left.lost[INT8_CLIPPED_ROWS] < (uint32_t)left.rows);
    assert_true(left.lost[INT8_NOT_FINITE] > 0);
}

/* By each choice, whole and in parts. */
static inline void check_codes(openpi_session *s, op gate) {
    candidate list[64];
    device *device = s->engine->device;
    gate.norm_linear.next_scale = left.scale;
    left.candidates = device->backend->candidates(device, &gate, list, 64);
    for (int c = 0; c < left.candidates; c++) {
        const char *out = gate.norm_linear.out;
        gate.choice = c + 1;
        clear_counts(s, gate.norm_linear.next_counts);
        run_op(s, &gate);
        fetch_left(s, left.found, out, (size_t)(left.rows * left.n));
        fetch_left(s, left.scales, out + left.capacity * left.n, (size_t)left.rows * sizeof *left.scales);
        fetch_left(s, left.counts, gate.norm_linear.next_counts, sizeof left.counts);
        for (int i = 0; i < left.rows * left.n; i++)
            if (left.found[i] != left.codes[i])
                fail_msg("%s: row %d, output %d: code %d, expected %d", list[c].name, i / left.n, i % left.n,
                         left.found[i], left.codes[i]);
        for (int r = 0; r < left.rows; r++) assert_true(left.scales[r] == left.scale);
        assert_memory_equal(left.counts, left.lost, sizeof left.counts);
    }
}

/* From codes and from numbers the same bits, and from numbers the same counts. */
static inline void check_down(openpi_session *s, op down) {
    op_linear_residual *a = &down.linear_residual;
    size_t bytes = (size_t)(left.rows * a->weight.n) * sizeof(bf16);
    bf16 *before = malloc(bytes), *coded = malloc(bytes), *apart = malloc(bytes);
    assert_true(before && coded && apart);
    a->weight.row_scale = left.scale;
    fetch_left(s, before, a->x, bytes);
    run_op(s, &down);
    fetch_left(s, coded, a->x, bytes);
    put_left(s, a->x, before, bytes);
    a->coded = 0;
    put_left(s, (void *)(uintptr_t)a->a, left.numbers, (size_t)(left.rows * left.n) * sizeof(bf16));
    clear_counts(s, a->weight.counts);
    run_op(s, &down);
    fetch_left(s, apart, a->x, bytes);
    fetch_left(s, left.counts, a->weight.counts, sizeof left.counts);
    assert_memory_equal(left.counts, left.lost, sizeof left.counts);
    assert_memory_equal(coded, apart, bytes);
    assert_memory_not_equal(coded, before, bytes);
    free(before);
    free(coded);
    free(apart);
}

/* openpi_session.on_run: ends with the first layer. */
static inline openpi_status check_layer(void *user, openpi_session *s, double *stage_ms, openpi_error *why) {
    const float odd[3] = {INFINITY, NAN, NAN};     /* outputs of up                                         */
    (void)user, (void)stage_ms, (void)why;
    for (int i = 0;; i++) {
        op gate = s->plan->ops[i], down = s->plan->ops[i + 1];
        if (strcmp(gate.name, "prefix.gate_up")) {
            run_op(s, &gate);
            continue;
        }
        int32_t rows;
        assert_true(gate.norm_linear.next_scale > 0 && down.linear_residual.coded);
        fetch_left(s, &rows, gate.norm_linear.rows.count, sizeof rows);
        left.rows = rows;
        left.n = gate.norm_linear.weight.n / 2;
        left.capacity = gate.norm_linear.rows.capacity;
        gate.norm_linear.next_scale = 0;
        take_left();
        float *scales = (float *)(uintptr_t)gate.norm_linear.weight.scales;
        for (int j = 0; j < 3; j++) put_left(s, scales + left.n + 3 + j, &odd[j], sizeof *odd);
        run_op(s, &gate);
        fetch_left(s, left.numbers, gate.norm_linear.out, (size_t)(left.rows * left.n) * sizeof(bf16));
        expect_codes();
        check_codes(s, gate);
        check_down(s, down);
        clear_counts(s, gate.norm_linear.next_counts);   /* what was planted is no failure of the call */
        free(left.numbers);
        free(left.codes);
        free(left.found);
        return OPENPI_OK;
    }
}

static inline openpi_status codes_open(const char *device, const char *dims, const char *without,
                                       openpi_engine **engine) {
    static const float row_scales[4] = {0.01f, 0.01f, 0.01f, 0.01f};
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    const engine_more more = {.measured.row_scales = {row_scales, row_scales}};
    must(openpi_dims_parse(dims, &synthetic.dims, &error));
    synthetic.variant = OPENPI_PI05;
    options.synthetic = &synthetic;
    options.device = device;
    options.path = getenv("OPENPI_TEST_GPU_PATH");
    options.formats = "ffn=int8x8+static";
    options.without = without;
    return engine_open_more(NULL, &options, &more, engine, &error);
}

static inline openpi_session *codes_session(openpi_engine *engine) {
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session;
    shape.horizon = 2;
    shape.steps = 1;
    must(openpi_session_create(engine, &shape, &session, &error));
    return session;
}

/* The first layer, with pictures of `cameras`; returns how many choices it has. */
static inline int codes_check(openpi_engine *engine, int cameras) {
    static uint8_t image[OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3];
    static const int32_t tokens[] = {2, 5, 9};
    float actions[2 * OPENPI_ACTION_DIM];
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    openpi_session *session = codes_session(engine);
    for (size_t i = 0; i < sizeof image; i++) image[i] = (uint8_t)(i * 7 + i / 224);
    for (int c = 0; c < cameras; c++) sample.images[c] = image, sample.image_mask[c] = 1;
    sample.tokens = tokens;
    sample.token_count = 3;
    session->on_run = check_layer;
    must(openpi_session_run(session, &sample, 1, NULL, actions, NULL, &error));
    openpi_session_close(session);
    return left.candidates;
}

#endif
