/* labels: threads */
/* π0's merged action matrix is the product of the two that it is made of, whatever the file's and the plan's
 * types, and nothing is merged where it should not be. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "openpi_internal.h"

enum { K = OPENPI_ACTION_DIM, PARTS = 4 };
enum { IN, IN_BIAS, MLP_IN, MLP_IN_BIAS };
static const char *const names[PARTS] = {"action_in_proj.weight", "action_in_proj.bias",
                                         "action_time_mlp_in.weight", "action_time_mlp_in.bias"};

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

/* An engine whose device keeps weights row by row in memory that a test can read. */
static openpi_engine *open_engine(const char *spec) {
    openpi_engine *engine;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    options.synthetic = &synthetic;
    options.isa = "reference";
    options.threads = 3;
    must(openpi_engine_open(NULL, &options, &engine, &error));
    return engine;
}

static model *load(openpi_engine *e, dtype type, uint32_t off) {
    model *m;
    model_types types = formats_all(type, type == DTYPE_BF16 ? FORMAT_BF16 : FORMAT_FILE);
    must(model_load(e->checkpoint, e->device, types, off, e->pool, NULL, NULL, &m, &error));
    return m;
}

/* The four tensors' values; with `f32` they become those of an fp32 file, which no bf16 could hold. */
static void take_values(openpi_engine *e, int f32, float *values[PARTS]) {
    for (int i = 0; i < PARTS; i++) {
        tensor *t = (tensor *)(uintptr_t)tensors_find(e->checkpoint->tensors, names[i]);
        assert_non_null(t);
        values[i] = malloc((size_t)t->count * sizeof(float));
        assert_non_null(values[i]);
        tensor_read_f32(t, 0, t->count, values[i]);
        for (int64_t j = 0; f32 && j < t->count; j++)
            values[i][j] = values[i][j] * 1.0001f + 1e-4f * (float)(j % 7);
        if (f32) {
            t->type = DTYPE_F32;
            t->data = values[i];
        }
    }
}

static void check(float got, double expected) {
    if (!(fabs(got - expected) <= 0x1p-24 * fabs(expected) + 1e-15))
        fail_msg("%.9g, expected %.17g", (double)got, expected);
}

static void check_merged(const model *m, float *const values[PARTS]) {
    int width = m->dims.expert_width;
    const matrix *in = &m->action_in;
    assert_true(in->n == width && in->k == K && in->type == WEIGHT_F32 && in->form == MATRIX_PLAIN);
    assert_true(!m->mlp_in.n && !m->mlp_in.data && !m->action_in_bias);
    for (int o = 0; o < width; o++) {
        const float *row = values[MLP_IN] + (size_t)o * 2 * (size_t)width;
        double bias = values[MLP_IN_BIAS][o];
        for (int j = 0; j < width; j++) bias += (double)row[j] * values[IN_BIAS][j];
        check(m->time_in_bias[o], bias);
        for (int i = 0; i < K; i++) {
            double sum = 0;
            for (int j = 0; j < width; j++) sum += (double)row[j] * values[IN][j * K + i];
            check(((const float *)in->data)[o * K + i], sum);
        }
    }
}

static void check_apart(const model *m, int f32, float *const values[PARTS]) {
    int width = m->dims.expert_width;
    weight_type kept = f32 ? WEIGHT_F32 : WEIGHT_BF16;
    assert_true(m->action_in.n == width && m->action_in.k == K && m->action_in.type == kept);
    assert_true(m->mlp_in.n == width && m->mlp_in.k == width && m->mlp_in.type == kept);
    assert_memory_equal(m->action_in_bias, values[IN_BIAS], (size_t)width * sizeof(float));
    assert_memory_equal(m->time_in_bias, values[MLP_IN_BIAS], (size_t)width * sizeof(float));
    for (int i = 0; i < width * width; i++) {
        float got =
            f32 ? ((const float *)m->mlp_in.data)[i] : bf16_to_float(((const bf16 *)m->mlp_in.data)[i]);
        assert_true(got == values[MLP_IN][i / width * 2 * width + i % width]);
    }
}

static void merged_is_the_product(void **state) {
    (void)state;
    const char *const specs[] = {"tiny:pi0", "odd:pi0"};
    for (int s = 0; s < 2; s++)
        for (int f32 = 0; f32 < 2; f32++) {
            float *values[PARTS];
            openpi_engine *e = open_engine(specs[s]);
            take_values(e, f32, values);
            for (int plan = 0; plan < 2; plan++) {
                model *m = load(e, plan ? DTYPE_F32 : DTYPE_BF16, 0);
                check_merged(m, values);
                model_close(m);
                m = load(e, plan ? DTYPE_F32 : DTYPE_BF16, 1u << SWITCH_FOLDED_CONSTANTS);
                check_apart(m, f32, values);
                model_close(m);
            }
            openpi_engine_close(e);
            for (int i = 0; i < PARTS; i++) free(values[i]);
        }
}

/* π0.5's action_in_proj has nothing after it. */
static void adaptive_is_not_merged(void **state) {
    (void)state;
    openpi_engine *e = open_engine("odd:pi05");
    model *m = load(e, DTYPE_BF16, 0);
    assert_non_null(m->action_in_bias);
    assert_int_equal(m->action_in.type, DTYPE_BF16);
    model_close(m);
    openpi_engine_close(e);
}

/* What the products cost: a merged one has no [n x n] matrix in the middle. */
static void costs_follow(void **state) {
    (void)state;
    enum { N = 1024, ROWS = 10 };
    const matrix in = {.n = N, .k = K, .type = WEIGHT_F32}, wide = {.n = N, .k = N, .type = WEIGHT_BF16};
    op op = {.kind = OP_ACTION_EMBED, .type = DTYPE_BF16, .action_embed = {.in = in}};
    op_cost one = op_get_cost(&op, ROWS, 0);
    assert_int_equal(action_embed_products(&op.action_embed), 1);
    assert_true(one.flops == 2.0 * ROWS * N * K && one.weight_bytes == 4.0 * N * K);
    op.action_embed.mlp_out = wide;
    op_cost two = op_get_cost(&op, ROWS, 0);
    assert_int_equal(action_embed_products(&op.action_embed), 2);
    assert_true(two.flops == one.flops + 2.0 * ROWS * N * N &&
                two.weight_bytes == one.weight_bytes + 2.0 * N * N);
    op.action_embed.mlp_in = wide;
    op_cost three = op_get_cost(&op, ROWS, 0);
    assert_int_equal(action_embed_products(&op.action_embed), 3);
    assert_true(three.flops == two.flops + 2.0 * ROWS * N * N &&
                three.weight_bytes == two.weight_bytes + 2.0 * N * N);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(merged_is_the_product),
                                       cmocka_unit_test(adaptive_is_not_merged),
                                       cmocka_unit_test(costs_follow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
