/* Rows of integers with one scale for all, ffn=int8x8+static: codes to the bit, in the definition and on
 * every level; what was clipped and what is not finite, counted once; each layer's own scale; refusals. */
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
#include "openpi_internal.h"
#include "ops/int8_rows.h"
#include "ops/reference.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* ---- one product ------------------------------------------------------------------------------------- */

enum { N = 40, MOST_ROWS = 70, MOST_K = 4304, KINDS = 7 };

typedef struct problem {
    float *a, x[MOST_ROWS * N], expected[MOST_ROWS * N], scales[N];
    int8_t *codes;
    uint32_t counts[INT8_COUNTS], lost[INT8_COUNTS];
    int32_t count;
    int k;
    op op;
} problem;

static const float scale = 0.0173f;

/* Row r of kind r % KINDS: ordinary, of which few are clipped; zeros of both signs; between 127 and 128 of
 * the scale, where rounding decides; all clipped; with NaN and infinities; too small for codes; huge. */
static float number(int r, int i) {
    float x = sinf((float)(r * 1000 + i));
    switch (r % KINDS) {
    case 0: return x * 130 * scale;
    case 1: return i % 2 ? -0.0f : 0;
    case 2: return copysignf(126.99f + fabsf(x), x) * scale;
    case 3: return copysignf(200 + fabsf(x), x) * scale;
    case 4: return i % 5 == 1 ? NAN : i % 5 == 3 ? INFINITY : i % 5 == 4 ? -INFINITY : x * scale * 100;
    case 5: return x * 0x1p-130f;
    default: return x * 3e38f;
    }
}

/* ops.h in other words: numbers by double, sums in 64 bits. */
static void expect(problem *p) {
    float inverse = 1 / scale;
    for (int r = 0; r < p->count; r++) {
        int64_t sums[N] = {0};
        uint32_t clipped = 0;
        for (int i = 0; i < p->k; i++) {
            float x = p->a[r * p->k + i], product = x * inverse;
            double code = isnan(x) ? 0 : isfinite(product) ? rint((double)product) : copysign(1e9, (double)x);
            p->lost[INT8_NOT_FINITE] += !isfinite(x);
            clipped += isfinite(x) && fabs(code) > 127;
            code = code > 127 ? 127 : code < -127 ? -127 : code;
            for (int o = 0; o < N; o++) sums[o] += (int64_t)code * p->codes[o * p->k + i];
        }
        p->lost[INT8_CLIPPED] += clipped;
        p->lost[INT8_CLIPPED_ROWS] += clipped > 0;
        for (int o = 0; o < N; o++) p->expected[r * N + o] = (float)sums[o] * (scale * p->scales[o]);
    }
}

static problem *make(int rows, int k) {
    problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->a = malloc((size_t)(rows * k) * sizeof *p->a);
    p->codes = malloc((size_t)(N * k));
    assert_true(p->a && p->codes);
    p->count = rows, p->k = k;
    for (int i = 0; i < N * k; i++) p->codes[i] = (int8_t)(i * 37 % 255 - 127);
    for (int o = 0; o < N; o++) p->scales[o] = 0.001f * (float)(o + 1);
    for (int i = 0; i < rows * k; i++) p->a[i] = number(i / k, i % k);
    p->op = (op){.kind = OP_LINEAR_RESIDUAL, .type = DTYPE_F32};
    p->op.linear_residual = (op_linear_residual){.rows = {.capacity = rows, .count = &p->count},
                                                 .a = p->a,
                                                 .x = p->x,
                                                 .weight = {.data = p->codes,
                                                            .scales = p->scales,
                                                            .n = N,
                                                            .k = k,
                                                            .type = WEIGHT_INT8_ROW,
                                                            .form = MATRIX_PLAIN,
                                                            .input = INPUT_INT8,
                                                            .row_scale = scale,
                                                            .counts = p->counts}};
    expect(p);
    return p;
}

static void compare(const problem *p, const char *who) {
    for (int i = 0; i < p->count * N; i++)
        if (p->x[i] != p->expected[i])
            fail_msg("%s, %d rows, k %d, row %d, output %d: %.9g, expected %.9g", who, p->count, p->k, i / N,
                     i % N, (double)p->x[i], (double)p->expected[i]);
    for (int i = 0; i < INT8_COUNTS; i++)
        if (p->counts[i] != p->lost[i])
            fail_msg("%s, %d rows, k %d: counter %d is %u, expected %u", who, p->count, p->k, i, p->counts[i],
                     p->lost[i]);
}

static void release(problem *p) {
    free(p->a);
    free(p->codes);
    free(p);
}

static void the_definition_clips_and_counts(void **state) {
    (void)state;
    static const int widths[] = {1, 37, 256, MOST_K};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        problem *p = make(2 * KINDS, widths[w]);
        float *scratch = malloc(MOST_K * sizeof *scratch);
        reference_linear_residual(&p->op, 0, p->count, scratch);
        compare(p, "the definition");
        free(scratch);
        release(p);
    }
}

static void read_codes(const void *context, int row, int count, void *out) {
    const matrix *w = context;
    memcpy(out, (const char *)w->data + (size_t)row * (size_t)w->k, (size_t)count * (size_t)w->k);
}

/* The op on a device, its weights packed. */
static void run_on(problem *p, device *device) {
    const matrix own = p->op.linear_residual.weight;
    const matrix_source source = {read_codes, &own};
    void *to = aligned_alloc(64, (backend_cpu.matrix_bytes(device, &own) + 63) / 64 * 64);
    void *scratch = malloc(backend_cpu.matrix_scratch(device, &own) + 1);
    void *work = aligned_alloc(64, (backend_cpu.work_bytes(device, &p->op, 1) + 63) / 64 * 64 + 64);
    assert_true(to && scratch && work);
    must(backend_cpu.matrix_pack(device, &own, 0, backend_cpu.matrix_blocks(device, &own), &source, to,
                                 scratch, &error));
    p->op.linear_residual.weight.data = to;
    must(backend_cpu.run(device, op_alone(&p->op), work, NULL, &error));
    free(work);
    free(scratch);
    free(to);
}

/* Few rows, which every thread packs for itself, and many, which threads share. */
static void levels_give_the_definitions_bits(void **state) {
    (void)state;
    static const struct {
        int rows, k;
    } sizes[] = {{KINDS, 37}, {KINDS, 1013}, {MOST_ROWS, 337}, {MOST_ROWS, MOST_K}};
    pool *pool;
    must(pool_create(3, 0, &pool, &error));
    for (int l = 1; l < cpu_isa_count(); l++)
        for (size_t s = 0; cpu_isa_available(l) && s < sizeof sizes / sizeof *sizes; s++) {
            const device_options options = {.isa = cpu_isa_name(l), .pool = pool};
            device *device;
            must(backend_cpu.open("cpu", &options, &device, &error));
            problem *p = make(sizes[s].rows, sizes[s].k);
            run_on(p, device);
            compare(p, device->path);
            release(p);
            backend_cpu.close(device);
        }
    pool_close(pool);
}

/* ---- a model ----------------------------------------------------------------------------------------- */

static uint8_t picture[OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3];

static openpi_sample a_sample(void) {
    static const int32_t tokens[] = {2, 7, 5};
    static const float at[OPENPI_ACTION_DIM] = {0.5f, -0.25f};
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    for (size_t i = 0; i < sizeof picture; i++) picture[i] = (uint8_t)(i * 31 % 251);
    sample.images[0] = picture;
    sample.image_mask[0] = 1;
    sample.tokens = tokens;
    sample.token_count = 3;
    sample.state = at;
    return sample;
}

static openpi_status try_open(const char *formats, const float *row_scales, openpi_engine **engine) {
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    const engine_more more = {.measured.row_scales = {row_scales, row_scales}};
    must(openpi_synthetic_parse("odd:pi0", &synthetic, &error));
    synthetic.dims.depth = 4;    /* three layers with scales                                               */
    options.synthetic = &synthetic;
    options.formats = formats;
    options.threads = 2;
    return engine_open_more(NULL, &options, &more, engine, &error);
}

static openpi_session *open_session(openpi_engine *e, int parts) {
    openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session;
    shape.horizon = 2;
    shape.steps = 2;
    shape.parts = parts;
    must(openpi_session_create(e, &shape, &session, &error));
    return session;
}

/* What the rows of a call lose, by looking at them before each op that reads them. */
typedef struct looked {
    uint64_t clipped, rows;
    int products, layers[32];
} looked;

static openpi_status look(void *user, openpi_session *s, double *stage_ms, openpi_error *why) {
    looked *l = user;
    device *device = s->engine->device;
    for (int i = 0; i < s->plan->count; i++) {
        const op *op = &s->plan->ops[i];
        const matrix *w = &op->linear_residual.weight;
        int fixed = op->kind == OP_LINEAR_RESIDUAL && w->row_scale > 0;
        for (int r = 0; fixed && r < *op->linear_residual.rows.count; r++) {
            int before = (int)l->clipped;
            for (int k = 0; k < w->k; k++) {
                bf16 x = ((const bf16 *)op->linear_residual.a)[r * w->k + k];
                l->clipped += fabsf(bf16_to_float(x) * (1 / w->row_scale)) >= 127.5f;
            }
            l->rows += (int)l->clipped > before;
        }
        if (fixed) l->layers[l->products++] = op->layer;
        openpi_status status = device->backend->run(device, op_alone(op), s->work, stage_ms, why);
        if (status != OPENPI_OK) return status;
    }
    return OPENPI_OK;
}

static openpi_session_info told(openpi_session *s) {
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    must(openpi_session_get_info(s, &info, &error));
    return info;
}

static float row_scales[32];

static void scales_of(float each) {
    for (int i = 0; i < 32; i++) row_scales[i] = each * (float)(i + 1);
}

/* Each layer has its own scale, and a call's losses are those of its rows: once in a call, whole or in parts,
 * and none where the prefix is kept. */
static void a_session_counts_what_its_rows_lose(void **state) {
    (void)state;
    openpi_engine *e;
    float actions[2 * OPENPI_ACTION_DIM];
    const openpi_sample sample = a_sample();
    scales_of(1e-5f);
    must(try_open("ffn=int8x8+static", row_scales, &e));
    for (int i = 0; i < e->model->dims.depth; i++) {
        float expected = i < e->model->dims.depth - 1 ? row_scales[i] : 0;
        assert_true(e->model->prefix[i].down.row_scale == expected);
        assert_true(e->model->expert[i].down.row_scale == 0);
    }
    openpi_session *s = open_session(e, 0);
    looked l = {0};
    s->on_run = look;
    s->on_run_user = &l;
    must(openpi_session_run(s, &sample, 1, NULL, actions, NULL, &error));
    assert_true(l.clipped > 100 && l.rows > 10 && l.products == e->model->dims.depth - 1);
    assert_true(told(s).w8_clipped == l.clipped && told(s).w8_clipped_rows == l.rows);
    s->on_run = NULL;
    must(openpi_session_run(s, &sample, 1, NULL, actions, NULL, &error));
    assert_true(told(s).w8_clipped == 2 * l.clipped && told(s).w8_clipped_rows == 2 * l.rows);
    assert_true(told(s).w8_not_finite == 0);
    openpi_session_close(s);
    s = open_session(e, 1);
    must(openpi_session_prefix(s, &sample, 1, 1, NULL, &error));
    assert_true(told(s).w8_clipped == l.clipped);
    must(openpi_session_run(s, &sample, 1, NULL, actions, NULL, &error));
    assert_true(told(s).prefixes_kept == 1 && told(s).w8_clipped == l.clipped);
    openpi_session_close(s);
    openpi_engine_close(e);
}

/* A scale that is wide enough loses nothing but what rounding does. */
static void a_wide_scale_clips_nothing(void **state) {
    (void)state;
    openpi_engine *e, *plain;
    float actions[2][2 * OPENPI_ACTION_DIM], noise[2 * OPENPI_ACTION_DIM];
    const openpi_sample sample = a_sample();
    openpi_noise(3, 0, noise, 2 * OPENPI_ACTION_DIM);
    scales_of(2);
    must(try_open("ffn=int8x8+static", row_scales, &e));
    must(try_open("bf16", NULL, &plain));
    openpi_session *s[2] = {open_session(e, 0), open_session(plain, 0)};
    for (int i = 0; i < 2; i++)
        must(openpi_session_run(s[i], &sample, 1, noise, actions[i], NULL, &error));
    assert_true(told(s[0]).w8_clipped == 0 && told(s[0]).w8_clipped_rows == 0);
    assert_true(told(s[1]).w8_clipped == 0);
    assert_memory_not_equal(actions[0], actions[1], sizeof *actions);
    for (int i = 0; i < 2; i++) openpi_session_close(s[i]);
    openpi_engine_close(e);
    openpi_engine_close(plain);
}

/* A number that is not finite has a code like others: the call fails, and it is counted. */
static void an_overflow_is_told(void **state) {
    (void)state;
    openpi_engine *e;
    float actions[2 * OPENPI_ACTION_DIM];
    const openpi_sample sample = a_sample();
    scales_of(0.05f);
    must(try_open("ffn=int8x8+static", row_scales, &e));
    for (int i = 0; i < e->model->prefix[0].gate_up.n; i++)
        ((float *)(uintptr_t)e->model->prefix[0].gate_up.scales)[i] = 1e30f;
    openpi_session *s = open_session(e, 0);
    assert_int_equal(openpi_session_run(s, &sample, 1, NULL, actions, NULL, &error), OPENPI_BAD_INPUT);
    assert_non_null(strstr(error.message, "numbers of the rows that ffn's down reads are NaN or infinite"));
    assert_true(told(s).w8_not_finite > 0 && told(s).runs == 0);
    openpi_session_close(s);
    openpi_engine_close(e);
}

/* Scales are never guessed: a list with +static takes a plan. */
static void without_a_plan_it_is_refused(void **state) {
    (void)state;
    openpi_engine *e = NULL;
    assert_int_equal(try_open("ffn=int8x8+static", NULL, &e), OPENPI_BAD_ARGUMENT);
    assert_string_equal(error.message,
                        "weights is bf16,ffn=int8x8+static, and a static scale takes a plan that openpi "
                        "quantize has measured, expected w8 or a list without +static");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_definition_clips_and_counts),
                                       cmocka_unit_test(levels_give_the_definitions_bits),
                                       cmocka_unit_test(a_session_counts_what_its_rows_lose),
                                       cmocka_unit_test(a_wide_scale_clips_nothing),
                                       cmocka_unit_test(an_overflow_is_told),
                                       cmocka_unit_test(without_a_plan_it_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
