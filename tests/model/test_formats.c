/* Formats by group: the list that users write, which matrices get what, 8-bit floats, integer rows on every
 * level, and what each table of formats costs the actions of goldens. */
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
#include "lab/verify/eight_bits.h"
#include "openpi_internal.h"
#include "ops/reference.h"
#include "verify_rows.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* ---- the list --------------------------------------------------------------------------------------- */

static void lists_are_read_and_written(void **state) {
    (void)state;
    static const struct {
        openpi_dtype dtype;
        const char *list, *written;
    } cases[] = {
        {OPENPI_BF16, "bf16", "bf16"},
        {OPENPI_F32, "bf16", "bf16"},
        {OPENPI_F32, "file", "file"},
        {OPENPI_BF16, "f32", "f32"},
        {OPENPI_BF16, "expert=int8", "bf16,expert=int8"},
        {OPENPI_F32, "expert=int8", "file,expert=int8"},
        {OPENPI_BF16, "expert=int8,ffn=int8x8", "bf16,ffn=int8x8,expert=int8"},
        {OPENPI_BF16, "expert=bf16", "bf16"},
        {OPENPI_BF16, "heads=f32,e4m3,vision=bf16", "e4m3,vision=bf16,heads=f32"},
        {OPENPI_BF16, "ffn=int8x8+smooth,expert=int8", "bf16,ffn=int8x8+smooth,expert=int8"},
        {OPENPI_BF16, "ffn=int8x8+static", "bf16,ffn=int8x8+static"},
        {OPENPI_BF16, "ffn=int8x8+static+smooth,int8", "int8,ffn=int8x8+smooth+static"},
        {OPENPI_BF16, "int8x8,ffn=int8x8+static", "int8x8,ffn=int8x8+static"},
        {OPENPI_BF16, "int8+smooth,expert=bf16",
         "int8,vision=int8+smooth,attention=int8+smooth,ffn=int8+smooth,expert=bf16"},
        {OPENPI_BF16, "int8x8,vision=int8,attention=e4m3,ffn=f32,expert=file,heads=e4m3",
         "int8x8,vision=int8,attention=e4m3,ffn=f32,expert=file,heads=e4m3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_types types, again;
        char text[FORMATS_TEXT];
        must(engine_formats(cases[i].dtype, OPENPI_WEIGHTS_AUTO, cases[i].list, &types, &error));
        formats_write(&types, text);
        assert_string_equal(text, cases[i].written);
        must(engine_formats(cases[i].dtype, OPENPI_WEIGHTS_AUTO, text, &again, &error));
        assert_memory_equal(&types, &again, sizeof types);
    }
}

static void wrong_lists_are_refused(void **state) {
    (void)state;
    static const char formats[] = "expected bf16, f32, int8, int8x8, e4m3 or file";
    static const struct {
        const char *list, *sentence;
    } cases[] = {
        {"exprt=int8", "\"exprt\" is no group, expected vision, attention, ffn, expert or heads; did you "
                       "mean \"expert\"?"},
        {"int9", "\"int9\" is no format, expected bf16, f32, int8, int8x8, e4m3 or file; did you mean "
                 "\"int8\"?"},
        {"ffn=int88", formats},
        {"ffn=", formats},
        {"expert", "group expert is without a format, expected expert=bf16, f32"},
        {"expert=int8,ffn=bf16,expert=int8", "group expert is there twice, expected once"},
        {"int8,bf16", "two formats for all groups, int8 and bf16, expected one"},
        {"", "an entry is empty, expected FORMAT or GROUP=FORMAT"},
        {"int8,", "an entry is empty"},
        {"ffn=bf16+smooth", "bf16+smooth, expected int8, int8x8 or e4m3 before +smooth"},
        {"ffn=+smooth", formats},
        {"ffn=+static", formats},
        {"ffn=int8x8+static+static", formats},
        {"ffn=int8+static", "ffn=int8+static, expected +static after ffn=int8x8 only"},
        {"expert=int8x8+static", "expert=int8x8+static, expected +static after ffn=int8x8 only"},
        {"int8x8+static", "int8x8+static, expected +static after ffn=int8x8 only"},
        {"ffn=int8+smoth", formats},
        {"heads=int8+smooth", "heads=int8+smooth, expected bf16, f32, int8, e4m3 or file"},
        {"heads=int8x8", "heads=int8x8, expected bf16, f32, int8, e4m3 or file: rows of heads stay fp32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_types types;
        char head[80];
        snprintf(head, sizeof head, "weights is \"%s\": ", cases[i].list);
        assert_int_equal(engine_formats(OPENPI_BF16, OPENPI_WEIGHTS_AUTO, cases[i].list, &types, &error),
                         OPENPI_BAD_ARGUMENT);
        if (strncmp(error.message, head, strlen(head)) || !strstr(error.message, cases[i].sentence))
            fail_msg("%s: %s", cases[i].list, error.message);
    }
}

/* ---- 8-bit floats ----------------------------------------------------------------------------------- */

/* By the format's table: sign, exponent, mantissa. */
static double e4m3_of(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double size = exponent ? (1 + mantissa / 8.0) * pow(2, exponent - 7) : mantissa / 8.0 * pow(2, -6);
    return code & 0x80 ? -size : size;
}

static void e4m3_has_256_codes(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        float x = e4m3_to_float((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(x));
            assert_int_equal(e4m3_from_float(x) & 0x7f, 0x7f);
            continue;
        }
        assert_true((double)x == e4m3_of(code) && !signbit(x) == !(code & 0x80));
        assert_int_equal(e4m3_from_float(x), code);
    }
    assert_true(e4m3_to_float(0x7e) == 448 && e4m3_to_float(1) == 0x1p-9f);
}

/* Between two neighbours: the nearer one, at the middle the even one. */
static void e4m3_rounds_to_nearest_even(void **state) {
    (void)state;
    for (int code = 0; code < 0x7e; code++)
        for (int sign = 0; sign < 256; sign += 128) {
            float low = e4m3_to_float((uint8_t)(code + sign));
            float high = e4m3_to_float((uint8_t)(code + 1 + sign));
            float middle = (low + high) / 2;
            assert_int_equal(e4m3_from_float(middle), sign + (code & 1 ? code + 1 : code));
            assert_int_equal(e4m3_from_float(nextafterf(middle, low)), sign + code);
            assert_int_equal(e4m3_from_float(nextafterf(middle, high)), sign + code + 1);
        }
    static const float beyond[] = {448.1f, 463, 464, 480, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        assert_int_equal(e4m3_from_float(beyond[i]), 0x7e);
        assert_int_equal(e4m3_from_float(-beyond[i]), 0xfe);
    }
    assert_int_equal(e4m3_from_float(-0.0f), 0x80);
}

static void e4m3_has_a_scale_an_output(void **state) {
    (void)state;
    enum { K = 150 };
    const weight_format *f = &weight_formats[WEIGHT_E4M3];
    float row[K], zero[K] = {0}, scale[2], out[K];
    uint8_t codes[K];
    for (int i = 0; i < K; i++) row[i] = 7 * sinf((float)i);
    row[70] = -9;
    assert_int_equal(weight_groups(f, K), 1);
    assert_int_equal(weight_row_bytes(f, K), K);
    weight_encode(f, row, K, codes, scale);
    weight_decode(f, codes, scale, K, 0, K, out);
    assert_true(scale[0] == 9.0f / 448 && codes[70] == 0xfe);
    for (int i = 0; i < K; i++)              /* half a unit of three bits, or of the smallest step         */
        assert_true(fabsf(out[i] - row[i]) <= fmaxf(fabsf(row[i]) / 16, scale[0] * 0x1p-10f) * 1.00001f);
    weight_encode(f, zero, K, codes, scale);
    weight_decode(f, codes, scale, K, 0, K, out);
    for (int i = 0; i < K; i++) assert_true(out[i] == 0);
}

/* ---- integer rows ----------------------------------------------------------------------------------- */

enum { A_ROWS = 7, N = 40, WIDE = 4304 };

typedef struct rows_problem {
    float a[A_ROWS * WIDE], x[A_ROWS * N], expected[A_ROWS * N], scales[N];
    int8_t codes[N * WIDE];
    int32_t count;
    op op;
} rows_problem;

/* Ordinary rows, zeros of both signs, a NaN, an infinity, one huge channel, numbers too small for codes, and
 * one like the weights of output 0: where k is large its sum is more than fp32 holds. */
static rows_problem *rows_make(int k) {
    rows_problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    p->count = A_ROWS;
    for (int i = 0; i < N * k; i++) p->codes[i] = (int8_t)(i * 37 % 255 - 127);
    for (int o = 0; o < N; o++) p->scales[o] = 0.001f * (float)(o + 1);
    for (int r = 0; r < A_ROWS; r++)
        for (int i = 0; i < k; i++) {
            float *x = &p->a[r * k + i];
            *x = sinf((float)(r * 1000 + i)) * (float)(r + 1);
            if (r == 1) *x = i % 2 ? -0.0f : 0;
            if (r == 2 && i == k / 2) *x = NAN;
            if (r == 3 && i == k - 1) *x = -INFINITY;
            if (r == 4 && i == 0) *x = 1e6f;
            if (r == 5) *x *= 0x1p-120f;
            if (r == 6) *x = (float)p->codes[i];
        }
    p->op = (op){.kind = OP_LINEAR_RESIDUAL, .type = DTYPE_F32};
    p->op.linear_residual = (op_linear_residual){.rows = {.capacity = A_ROWS, .count = &p->count},
                                                 .a = p->a,
                                                 .x = p->x,
                                                 .weight = {.data = p->codes,
                                                            .scales = p->scales,
                                                            .n = N,
                                                            .k = k,
                                                            .type = WEIGHT_INT8_ROW,
                                                            .form = MATRIX_PLAIN,
                                                            .input = INPUT_INT8}};
    return p;
}

/* ops.h, in other words: codes by division in double, sums in 64 bits. */
static void rows_expect(rows_problem *p, int k) {
    for (int r = 0; r < A_ROWS; r++) {
        float top = 0;
        int finite = 1;
        for (int i = 0; i < k; i++) {
            finite &= isfinite(p->a[r * k + i]) != 0;
            top = fmaxf(top, fabsf(p->a[r * k + i]));
        }
        int none = top < 0x1p-100f;
        float scale = none ? 0 : top / 127, inverse = none ? 0 : 127 / top;
        for (int o = 0; o < N; o++) {
            int64_t sum = 0;
            for (int i = 0; i < k && finite; i++)
                sum += (int64_t)lrint((double)(p->a[r * k + i] * inverse)) * p->codes[o * k + i];
            p->expected[r * N + o] = finite ? (float)sum * (scale * p->scales[o]) : NAN;
        }
    }
}

static void definitions_multiply_integers(void **state) {
    (void)state;
    static const int widths[] = {1, 37, 256, WIDE};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        float *scratch = malloc(WIDE * sizeof *scratch);
        rows_problem *p = rows_make(widths[w]);
        rows_expect(p, widths[w]);
        reference_linear_residual(&p->op, 0, A_ROWS, scratch);
        for (int i = 0; i < A_ROWS * N; i++)
            if (!(isnan(p->expected[i]) ? isnan(p->x[i]) : p->x[i] == p->expected[i]))
                fail_msg("k %d, row %d, output %d: %.9g, expected %.9g", widths[w], i / N, i % N,
                         (double)p->x[i], (double)p->expected[i]);
        free(p);
        free(scratch);
    }
}

static void read_codes(const void *context, int row, int count, void *out) {
    const matrix *w = context;
    memcpy(out, (const char *)w->data + (size_t)row * (size_t)w->k, (size_t)count * (size_t)w->k);
}

/* The op's weights as the device's kernels read them; free. */
static void *rows_pack(rows_problem *p, device *device) {
    const matrix own = p->op.linear_residual.weight;
    const matrix_source source = {read_codes, &own};
    void *to = aligned_alloc(64, (backend_cpu.matrix_bytes(device, &own) + 63) / 64 * 64);
    void *scratch = malloc(backend_cpu.matrix_scratch(device, &own) + 1);
    assert_true(to && scratch);
    must(backend_cpu.matrix_pack(device, &own, 0, backend_cpu.matrix_blocks(device, &own), &source, to,
                                 scratch, &error));
    free(scratch);
    p->op.linear_residual.weight.data = to;
    return to;
}

/* Sums are integers on every level, so every level gives the definition's bits, however large they are. */
static void levels_multiply_integers(void **state) {
    (void)state;
    pool *pool;
    must(pool_create(2, 0, &pool, &error));
    static const int widths[] = {37, 112, 337, 1013, WIDE};
    for (int l = 1; l < cpu_isa_count(); l++)
        for (size_t w = 0; cpu_isa_available(l) && w < sizeof widths / sizeof *widths; w++) {
            const int k = widths[w];
            const device_options options = {.isa = cpu_isa_name(l), .pool = pool};
            device *device;
            must(backend_cpu.open("cpu", &options, &device, &error));
            rows_problem *p = rows_make(k);
            rows_expect(p, k);
            void *packed = rows_pack(p, device);
            void *work = aligned_alloc(64, (backend_cpu.work_bytes(device, &p->op, 1) + 63) / 64 * 64 + 64);
            must(backend_cpu.run(device, op_alone(&p->op), work, NULL, &error));
            for (int i = 0; i < A_ROWS * N; i++)
                if (!(isnan(p->expected[i]) ? isnan(p->x[i]) : p->x[i] == p->expected[i]))
                    fail_msg("%s, k %d, row %d, output %d: %.9g, expected %.9g", device->path, k, i / N,
                             i % N, (double)p->x[i], (double)p->expected[i]);
            free(work);
            free(packed);
            free(p);
            backend_cpu.close(device);
        }
    pool_close(pool);
}

/* ---- a model's matrices ----------------------------------------------------------------------------- */

/* One group at a time: its matrices, and no others. */
static void each_group_has_its_matrices(void **state) {
    (void)state;
    static const char *const models[] = {"odd:pi0", "odd:pi05"};
    for (int i = 0; i < 2 * GROUPS; i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine_info info = OPENPI_ENGINE_INFO_INIT;
        openpi_engine *e;
        char list[64], written[80];
        weight_group g = (weight_group)(i / 2);
        snprintf(list, sizeof list, "%s=e4m3", weight_group_name(g));
        snprintf(written, sizeof written, "bf16,%s", list);
        must(openpi_synthetic_parse(models[i % 2], &synthetic, &error));
        options.synthetic = &synthetic;
        options.formats = list;
        options.threads = 1;
        must(openpi_engine_open(NULL, &options, &e, &error));
        must(openpi_engine_get_info(e, &info, &error));
        assert_string_equal(info.formats, written);
        assert_true(strstr(openpi_engine_note(e, 0, NULL), written) != NULL);
        const model *m = e->model;
        const gemma_layer *prefix = &m->prefix[0], *expert = &m->expert[1];
        const struct {
            const matrix *matrix;
            weight_group group;
        } all[] = {
            {&m->vision[0].qkv, GROUP_VISION},     {&m->vision[1].fc2, GROUP_VISION},
            {&m->projector, GROUP_VISION},         {&prefix->qkv, GROUP_ATTENTION},
            {&prefix->o, GROUP_ATTENTION},         {&prefix->gate_up, GROUP_FFN},
            {&prefix->down, GROUP_FFN},            {&expert->qkv, GROUP_EXPERT},
            {&expert->o, GROUP_EXPERT},            {&expert->gate_up, GROUP_EXPERT},
            {&expert->down, GROUP_EXPERT},         {&m->patch, GROUP_HEADS},
            {&m->action_out, GROUP_HEADS},         {&m->time_in, GROUP_HEADS},
            {&m->prefix[m->dims.depth - 1].qkv, GROUP_ATTENTION},
        };
        size_t bytes = m->embedding_bytes;
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            if ((all[j].matrix->type == WEIGHT_E4M3) != (all[j].group == g))
                fail_msg("%s, %s: matrix %zu is %s", models[i % 2], list, j,
                         weight_formats[all[j].matrix->type].name);
        for (int k = 0; k < GROUPS; k++) bytes += m->group_bytes[k];
        assert_true(bytes < m->bytes && m->bytes - bytes < m->bytes / 10);
        openpi_engine_close(e);
    }
}

/* ---- from a checkpoint to actions ------------------------------------------------------------------- */

/* What a table costs: the rms of the actions' distance from openpi's fp32, by the definitions in fp32.
 * Measured, and held to 5 %: the definitions sum in double, so that another machine differs in libm's last
 * digits alone. bf16 is 0.0049 off on such goldens. verify's own bound is the derived one of eight_bits.h. */
static const struct {
    const char *golden, *list;
    double rms;
} costs[] = {
    {"pi0_odd", "expert=int8", 0.00825},
    {"pi0_odd", "ffn=int8x8", 0.00363},
    {"pi0_odd", "expert=int8,ffn=int8x8", 0.00947},
    {"pi0_odd", "e4m3", 0.08346},
    {"pi05_odd", "expert=int8", 0.00612},
    {"pi05_odd", "ffn=int8x8", 0.00326},
    {"pi05_odd", "expert=int8,ffn=int8x8", 0.00758},
    {"pi05_odd", "e4m3", 0.09403},
    {"pi0_tiny", "expert=int8,ffn=int8x8", 0.00917},
    {"pi05_tiny", "expert=int8,ffn=int8x8", 0.00898},
};

static verify_row judged(const char *golden, verify_options options, const char *list) {
    char path[256];
    rows r = {0};
    if (!options.isa) options.isa = "reference";
    if (options.dtype == OPENPI_DTYPE_DEFAULT) options.dtype = OPENPI_F32;
    options.batch_only = 1;
    options.formats = list;
    snprintf(path, sizeof path, GOLDEN "/model/%s.safetensors", golden);
    must(verify_path(path, &options, rows_take, &r, &error));
    assert_int_equal(r.count, 1);
    return r.row[0];
}

static void tables_cost_what_was_measured(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        verify_row row = judged(costs[i].golden, (verify_options)VERIFY_OPTIONS_INIT, costs[i].list);
        int good = row.result == VERIFY_OK && fabs(row.rms / costs[i].rms - 1) < 0.05;
        print_message("           %-10s %-24s rms %.5f, max %.4f, allowed %.3f%s\n", costs[i].golden,
                      costs[i].list, row.rms, row.max, row.bound_rms, good ? "" : "  <- differs");
        wrong += !good;
    }
    assert_int_equal(wrong, 0);
}

/* The same tables by every level's kernels. In fp32 only the order of sums differs from the definitions; bf16
 * adds its own distance, of which two orders of roundings differ by up to a quarter. */
static void levels_cost_the_same(void **state) {
    (void)state;
    static const double bf16 = 0.0049;
    int wrong = 0;
    for (int level = 1; level < cpu_isa_count(); level++)
        for (size_t i = 0; cpu_isa_available(level) && i < 2 * sizeof costs / sizeof *costs; i++) {
            const char *golden = costs[i / 2].golden, *list = costs[i / 2].list;
            int f32 = i % 2 == 0;
            verify_options options = VERIFY_OPTIONS_INIT;
            options.isa = cpu_isa_name(level), options.dtype = f32 ? OPENPI_F32 : OPENPI_BF16;
            if (!strstr(golden, "odd")) continue;
            verify_row row = judged(golden, options, list);
            double expected = hypot(costs[i / 2].rms, f32 ? 0 : bf16);
            if (row.result == VERIFY_OK && fabs(row.rms / expected - 1) < (f32 ? 0.05 : 0.25)) continue;
            print_message("           %s, %s, %s, %s: rms %.5f, expected %.5f\n", row.device, row.dtype,
                          golden, list, row.rms, expected);
            wrong++;
        }
    assert_int_equal(wrong, 0);
}

/* Scales of the group's down products become those of the next output. */
static void shift_scales(void *user, openpi_engine *e) {
    for (int i = 0; i < e->model->dims.depth; i++) {
        gemma_layer *layer = *(int *)user ? &e->model->expert[i] : &e->model->prefix[i];
        matrix *all[] = {&layer->gate_up, &layer->down};
        for (int j = 0; j < 2; j++) {
            size_t groups = (size_t)weight_groups(&weight_formats[all[j]->type], all[j]->k);
            float *scales = (float *)(uintptr_t)all[j]->scales;
            size_t bytes = (size_t)(all[j]->n - 1) * groups * sizeof *scales;
            if (all[j]->n) memmove(scales, scales + groups, bytes);
        }
    }
}

/* The next output's scale, although scales of made-up weights differ by a few per cent only. */
static void shifted_scales_are_noticed(void **state) {
    (void)state;
    for (int expert = 0; expert < 2; expert++) {
        verify_options options = VERIFY_OPTIONS_INIT;
        options.on_engine = shift_scales, options.hook_user = &expert;
        verify_row row = judged("pi05_odd", options, expert ? "expert=int8" : "ffn=int8x8");
        double fine = expert ? 0.00612 : 0.00326;
        print_message("           %s: rms %.5f, %.5f without the fault\n", expert ? "expert" : "ffn", row.rms,
                      fine);
        assert_true(row.rms > 1.2 * fine);
    }
}

/* Weights of the expert twice as large. */
static void double_scales(void *user, openpi_engine *e) {
    (void)user;
    for (int i = 0; i < e->model->dims.depth; i++) {
        const matrix *w = &e->model->expert[i].gate_up;
        float *scales = (float *)(uintptr_t)w->scales;
        size_t count = (size_t)w->n * (size_t)weight_groups(&weight_formats[w->type], w->k);
        for (size_t s = 0; s < count; s++) scales[s] *= 2;
    }
}

/* Goldens of every kind that runs a model have the bound for 8 bits, in fp32 and in bf16, and it finds a
 * fault. */
static void goldens_of_every_kind_are_judged(void **state) {
    (void)state;
    static const struct {
        const char *path;
        int rows;                /* of which a model runs                                                  */
    } goldens[] = {{"/policy/droid_pi0", 1}, {"/lerobot/pi0", 2}, {"/lerobot/pi05_rtc", 10}};
    for (int i = 0; i < 3 * 4; i++) {
        int kind = i / 4, f32 = i % 2, faulty = i % 4 / 2, ran = 0;
        verify_options options = {.dtype = f32 ? OPENPI_F32 : OPENPI_BF16,
                                  .formats = "expert=int8,ffn=int8x8",
                                  .on_engine = faulty ? double_scales : NULL};
        rows r = {0};
        char path[256];
        snprintf(path, sizeof path, GOLDEN "%s", goldens[kind].path);
        must(verify_path(path, &options, rows_take, &r, &error));
        for (int k = 0; k < r.count; k++) {
            const verify_row *row = &r.row[k];
            if (!(row->max >= 0)) continue;
            ran++;
            if ((row->result == VERIFY_OK) == faulty || !(row->bound_rms > 0.03) || !(row->max > 0.005))
                fail_msg("%s, %s: %s", row->name, row->dtype, row->detail);
        }
        assert_int_equal(ran, goldens[kind].rows);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_and_written),
        cmocka_unit_test(wrong_lists_are_refused),
        cmocka_unit_test(e4m3_has_256_codes),
        cmocka_unit_test(e4m3_rounds_to_nearest_even),
        cmocka_unit_test(e4m3_has_a_scale_an_output),
        cmocka_unit_test(definitions_multiply_integers),
        cmocka_unit_test(levels_multiply_integers),
        cmocka_unit_test(each_group_has_its_matrices),
        cmocka_unit_test(tables_cost_what_was_measured),
        cmocka_unit_test(levels_cost_the_same),
        cmocka_unit_test(shifted_scales_are_noticed),
        cmocka_unit_test(goldens_of_every_kind_are_judged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
