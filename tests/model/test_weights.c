/* Formats of weights: the table's codes and scales, how the definitions read them, which matrices of a model
 * get which format, and a format with scales from a checkpoint to the actions of a golden. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "openpi_internal.h"
#include "ops/reference.h"
#include "verify_rows.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* ---- integers -------------------------------------------------------------------------------------- */

/* weights.h's formula in other words, for numbers of every size: any bits, halves of codes, subnormals. */
static void integers_are_rounded_to_nearest_even(void **state) {
    (void)state;
    enum { MOST = 67 };
    const weight_format *f = &weight_formats[WEIGHT_INT8_ROW];
    uint64_t random = 1;
    for (int round = 0; round < 4000; round++) {
        float row[MOST], scale, top = 0;
        int8_t codes[MOST];
        int count = 1 + round % MOST;
        for (int i = 0; i < count; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t bits = (uint32_t)(random >> 32);
            if ((bits & 0x7f800000) == 0x7f800000) bits ^= 0x40000000;   /* finite                        */
            memcpy(&row[i], &bits, sizeof bits);
            if (round % 4 == 1) row[i] = (float)((int)(bits % 509) - 254) / 2;
            if (round % 4 == 2) row[i] = (float)((double)(int32_t)bits * 0x1p-170);
            if (round % 4 == 3) row[i] = round % 8 == 3 ? 0 : -0.0f;
            top = fmaxf(top, fabsf(row[i]));
        }
        weight_encode(f, row, count, codes, &scale);
        assert_true(scale == top / 127);
        for (int i = 0; i < count; i++) {
            double x = scale > 0 ? nearbyint((double)(row[i] / scale)) : 0;
            if (codes[i] != (int)fmax(-127, fmin(127, x)))
                fail_msg("%.9g / %.9g is %d", (double)row[i], (double)scale, codes[i]);
        }
    }
}

/* ---- codes and scales ----------------------------------------------------------------------------- */

/* A format of this test: halves of the group's largest weight, two bits a code, four codes a byte, -1 is code
 * 3. */
static void halves_decode(const void *row, size_t first, int count, float *out) {
    const uint8_t *bytes = row;
    for (int i = 0; i < count; i++) {
        int code = bytes[(first + (size_t)i) / 4] >> 2 * ((first + (size_t)i) % 4) & 3;
        out[i] = code == 3 ? -1 : 0.5f * (float)code;
    }
}

static void halves_encode(const float *from, int count, void *codes, float *scale) {
    uint8_t *bytes = codes;
    float top = 0;
    for (int i = 0; i < count; i++) top = fmaxf(top, fabsf(from[i]));
    for (int i = 0; i < count; i++) {
        int code = top > 0 ? (int)lrintf(2 * from[i] / top) : 0;
        if (i % 4 == 0) bytes[i / 4] = 0;
        bytes[i / 4] = (uint8_t)(bytes[i / 4] | (code < 0 ? 3 : code) << 2 * (i % 4));
    }
    *scale = top;
}

static weight_format halves(int group) {
    return (weight_format){.name = "halves",
                           .bits = 2,
                           .group = group,
                           .source = DTYPE_F32,
                           .decode = halves_decode,
                           .encode = halves_encode};
}

/* k 11: the last group is short, and a row ends inside a byte. */
static void a_made_up_format_decodes(void **state) {
    (void)state;
    static const float row[11] = {1, -2, 2, 0, 8, 4, -8, 0, 0, -0.5f, 0.25f};
    static const float by_four[11] = {1, -2, 2, 0, 8, 4, -8, 0, 0, -0.5f, 0.25f},
                       whole[11] = {0, -8, 0, 0, 8, 4, -8};
    weight_format f = halves(4);
    uint8_t codes[4] = {0, 0, 0, 0xa5};
    float scales[4] = {0, 0, 0, -7}, out[11];
    assert_int_equal(weight_groups(&f, 11), 3);
    assert_int_equal(weight_row_bytes(&f, 11), 3);
    weight_encode(&f, row, 11, codes, scales);
    assert_true(scales[0] == 2 && scales[1] == 8 && scales[2] == 0.5f && scales[3] == -7);
    assert_int_equal(codes[3], 0xa5);
    for (int first = 0; first < 11; first++)
        for (int count = 1; first + count <= 11; count++) {
            weight_decode(&f, codes, scales, 11, first, count, out);
            for (int i = 0; i < count; i++) assert_true(out[i] == by_four[first + i]);
        }
    f = halves(WEIGHT_WHOLE_ROW);
    assert_int_equal(weight_groups(&f, 11), 1);
    weight_encode(&f, (float[11]){0, -8, 1, 0, 8, 4, -8}, 11, codes, scales);
    weight_decode(&f, codes, scales, 11, 0, 11, out);
    assert_true(scales[0] == 8);
    for (int i = 0; i < 11; i++) assert_true(out[i] == whole[i]);
}

/* Each of 64 weights has the scale of its group, whose largest weight is ±127 of it; what is lost is half a
 * step. */
static void int8_rounds_to_its_steps(void **state) {
    (void)state;
    enum { K = 150, GROUP = 64, SCALES = 3 };
    const weight_format *f = &weight_formats[WEIGHT_INT8];
    float row[K], scales[SCALES], out[K];
    int8_t codes[K];
    for (int i = 0; i < K; i++) row[i] = i / GROUP == 1 ? 0 : sinf((float)i) * (i < GROUP ? 1 : 40);
    assert_int_equal(weight_groups(f, K), SCALES);
    assert_int_equal(weight_row_bytes(f, K), K);
    weight_encode(f, row, K, codes, scales);
    weight_decode(f, codes, scales, K, 0, K, out);
    for (int g = 0; g < SCALES; g++) {
        int end = g + 1 < SCALES ? (g + 1) * GROUP : K, most = 0;
        double top = 0;
        for (int i = g * GROUP; i < end; i++) top = fmax(top, fabs((double)row[i]));
        for (int i = g * GROUP; i < end; i++) {
            most = abs(codes[i]) > most ? abs(codes[i]) : most;
            assert_true(fabs((double)out[i] - row[i]) <= top / 127 / 2 * 1.00001);
            assert_true(fabs((double)out[i] - codes[i] * top / 127) <= top * 1e-6);
        }
        assert_int_equal(most, g == 1 ? 0 : 127);
    }
}

/* x += a·Wᵀ with codes and scales written by hand, summed here. */
static void definitions_read_scales(void **state) {
    (void)state;
    enum { N = 3, K = 130, SCALES = 3, A_ROWS = 2 };
    int8_t codes[N * K];
    float scales[N * SCALES], a[A_ROWS * K], x[A_ROWS * N], scratch[K];
    int32_t count = A_ROWS;
    for (int i = 0; i < N * K; i++) codes[i] = (int8_t)(i * 37 % 255 - 127);
    for (int i = 0; i < N * SCALES; i++) scales[i] = 0.001f * (float)(i + 1);
    for (int i = 0; i < A_ROWS * K; i++) a[i] = cosf((float)i);
    for (int i = 0; i < A_ROWS * N; i++) x[i] = (float)i;
    op op = {.kind = OP_LINEAR_RESIDUAL, .type = DTYPE_F32};
    op.linear_residual = (op_linear_residual){
        .rows = {.capacity = A_ROWS, .count = &count},
        .a = a,
        .x = x,
        .weight = {
            .data = codes, .scales = scales, .n = N, .k = K, .type = WEIGHT_INT8, .form = MATRIX_PLAIN}};
    reference_linear_residual(&op, 0, A_ROWS, scratch);
    for (int r = 0; r < A_ROWS; r++)
        for (int o = 0; o < N; o++) {
            double sum = r * N + o;
            for (int i = 0; i < K; i++)
                sum += (double)a[r * K + i] * codes[o * K + i] * scales[o * SCALES + i / 64];
            if (fabs(x[r * N + o] - sum) > 1e-5)
                fail_msg("row %d, output %d: %g, expected %g", r, o, (double)x[r * N + o], sum);
        }
    op_cost cost = op_get_cost(&op, A_ROWS, 0);
    assert_true(cost.weight_bytes == N * K + N * SCALES * sizeof(float));
}

/* ---- a model's matrices --------------------------------------------------------------------------- */

static openpi_engine *open_engine(const char *spec, const char *isa, openpi_dtype dtype,
                                  openpi_weights weights) {
    openpi_engine *engine;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    options.synthetic = &synthetic;
    options.dtype = dtype;
    options.weights = weights;
    options.isa = isa;
    options.threads = 2;
    must(openpi_engine_open(NULL, &options, &engine, &error));
    return engine;
}

/* Products, the time MLP that keeps the file's precision, embeddings. */
static const struct {
    openpi_dtype dtype;
    openpi_weights weights;
    int fp32_file;
    weight_type products, time, embeddings;
} kept[] = {
    {OPENPI_BF16, OPENPI_WEIGHTS_AUTO, 0, WEIGHT_BF16, WEIGHT_BF16, WEIGHT_BF16},
    {OPENPI_BF16, OPENPI_WEIGHTS_AUTO, 1, WEIGHT_BF16, WEIGHT_F32, WEIGHT_BF16},
    {OPENPI_F32, OPENPI_WEIGHTS_AUTO, 0, WEIGHT_BF16, WEIGHT_BF16, WEIGHT_BF16},
    {OPENPI_F32, OPENPI_WEIGHTS_AUTO, 1, WEIGHT_F32, WEIGHT_F32, WEIGHT_F32},
    {OPENPI_BF16, OPENPI_WEIGHTS_BF16, 1, WEIGHT_BF16, WEIGHT_F32, WEIGHT_BF16},
    {OPENPI_F32, OPENPI_WEIGHTS_BF16, 0, WEIGHT_BF16, WEIGHT_BF16, WEIGHT_BF16},
    {OPENPI_F32, OPENPI_WEIGHTS_BF16, 1, WEIGHT_BF16, WEIGHT_F32, WEIGHT_BF16},
    {OPENPI_BF16, OPENPI_WEIGHTS_F32, 0, WEIGHT_F32, WEIGHT_F32, WEIGHT_F32},
    {OPENPI_F32, OPENPI_WEIGHTS_F32, 1, WEIGHT_F32, WEIGHT_F32, WEIGHT_F32},
};

static void matrices_are_kept_as_asked(void **state) {
    (void)state;
    openpi_engine *e = open_engine("tiny:pi05", NULL, OPENPI_BF16, OPENPI_WEIGHTS_AUTO);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        model *m;
        for (int t = 0; t < tensors_count(e->checkpoint->tensors); t++)
            ((tensor *)(uintptr_t)tensors_at(e->checkpoint->tensors, t))->type =
                kept[i].fp32_file ? DTYPE_F32 : DTYPE_BF16;
        must(model_measure(e->checkpoint, e->device, engine_types(kept[i].dtype, kept[i].weights), 0, &m,
                           &error));
        int good = m->vision[1].fc1.type == kept[i].products &&
                   m->prefix[0].gate_up.type == kept[i].products &&
                   m->expert[1].qkv.type == kept[i].products && m->projector.type == kept[i].products &&
                   m->time_in.type == kept[i].time && m->expert[0].ada_in.type == kept[i].time &&
                   m->embedding.type == kept[i].embeddings && !m->prefix[0].gate_up.scales;
        model_close(m);
        if (!good) fail_msg("row %zu: a matrix is not in the format expected", i);
    }
    openpi_engine_close(e);
}

static void engines_tell_their_weights(void **state) {
    (void)state;
    uint64_t bytes[2];
    for (int i = 0; i < 4; i++) {
        openpi_weights asked = i & 1 ? OPENPI_WEIGHTS_F32 : OPENPI_WEIGHTS_BF16;
        openpi_engine *e = open_engine("tiny:pi0", NULL, i & 2 ? OPENPI_F32 : OPENPI_BF16, asked);
        openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
        must(openpi_engine_get_info(e, &info, &error));
        assert_int_equal(info.weights, asked);
        bytes[i & 1] = info.weight_bytes;
        if (i & 1) assert_true(bytes[1] > 3 * bytes[0] / 2);
        openpi_engine_close(e);
    }
}

/* ---- from a checkpoint to actions ----------------------------------------------------------------- */

static void use_int8(void *user, openpi_engine *e) {
    model *m;
    model_types types = formats_all(e->model->type, FORMAT_INT8);
    must(model_load(e->checkpoint, e->device, types, e->off, e->pool, NULL, NULL, &m, &error));
    assert_true(m->bytes * 2 < e->model->bytes * 3 / 2);
    m->tuning = e->tuning;
    model_close(e->model);
    e->model = m;
    ++*(int *)user;
}

/* int8 over 64 inputs lies 0.005 to 0.03 from openpi's actions: neither exact nor lost. */
static void int8_reaches_the_goldens(void **state) {
    (void)state;
    static const char *const models[] = {"pi0_odd", "pi05_odd"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[256];
        int opened = 0;
        rows r = {0};
        verify_options options = {.isa = "reference", .dtype = OPENPI_F32, .weights = OPENPI_WEIGHTS_F32,
                                  .on_engine = use_int8, .hook_user = &opened, .batch_only = 1};
        snprintf(path, sizeof path, GOLDEN "/model/%s.safetensors", models[i]);
        must(verify_path(path, &options, rows_take, &r, &error));
        print_message("           %-10s rms %.2e, max %.2e\n", models[i], r.row[0].rms, r.row[0].max);
        assert_true(opened == 1 && r.count == 1);
        assert_true(r.row[0].rms > 1e-4 && r.row[0].rms < 0.03);
    }
}

/* Levels without products for 8 bits decode before each use: f32 activations, so that they may differ from
 * the definitions by rounding alone. */
static void every_level_runs_8_bits(void **state) {
    (void)state;
    for (int i = 0; i < cpu_isa_count(); i++) {
        if (!cpu_isa_available(i)) continue;
        openpi_engine *e = open_engine("odd", cpu_isa_name(i), OPENPI_BF16, OPENPI_WEIGHTS_AUTO);
        for (weight_type w = 0; w < WEIGHT_TYPES; w++)
            assert_true(e->device->backend->takes_weights(e->device, DTYPE_BF16, w, INPUT_INT8));
        openpi_engine_close(e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_rounded_to_nearest_even),
        cmocka_unit_test(a_made_up_format_decodes),
        cmocka_unit_test(int8_rounds_to_its_steps),
        cmocka_unit_test(definitions_read_scales),
        cmocka_unit_test(matrices_are_kept_as_asked),
        cmocka_unit_test(engines_tell_their_weights),
        cmocka_unit_test(int8_reaches_the_goldens),
        cmocka_unit_test(every_level_runs_8_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
