/* LoRA in JAX checkpoints, on random layers of openpi's widths: the merged layer against x·W + (x·A)·B in
 * double, head by head and part by part (the heads of attn_vec_einsum with the sum of their b), layers in
 * order and out of order; and pairs that are none. The merge
 * of a whole checkpoint, and actions, are in test_orbax.c and test_orbax_actions.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "orbax_write.h"
#include "policy_golden.h"
#include "scratch.h"

#define LAYERS "PaliGemma.llm.layers."
#define LANGUAGE "paligemma_with_expert.paligemma.model.language_model.layers.%d."
#define EXPERT "paligemma_with_expert.gemma_expert.model.layers.%d."

static openpi_error error = OPENPI_ERROR_INIT;

/* An array of random numbers in -scale … scale, as they are after rounding to its type. */
typedef struct numbers {
    float *values;
    int64_t count;
} numbers;

static numbers write_numbers(const char *params, const char *name, dtype type, int rank, const int64_t *shape,
                             float scale) {
    static const char *const types[] = {[DTYPE_F32] = "<f4", [DTYPE_BF16] = "bfloat16"};
    static uint32_t seed = 1;
    numbers out = {.count = 1};
    for (int i = 0; i < rank; i++) out.count *= shape[i];
    out.values = malloc((size_t)out.count * sizeof(float));
    bf16 *narrow = malloc((size_t)out.count * sizeof *narrow);
    assert_true(out.values && narrow);
    for (int64_t i = 0; i < out.count; i++) {
        seed = seed * 1664525 + 1013904223;
        float value = scale * ((float)(seed >> 8) * 0x1p-23f - 1);
        narrow[i] = float_to_bf16(value);
        out.values[i] = type == DTYPE_F32 ? value : bf16_to_float(narrow[i]);
    }
    orbax_write_whole(params, name, types[type], rank, shape,
                      type == DTYPE_F32 ? (void *)out.values : (void *)narrow,
                      (size_t)out.count * dtype_bytes(type));
    free(narrow);
    return out;
}

/* A folder needs this array to be a checkpoint's. */
static void write_head(const char *params) {
    int64_t shape[] = {2, 2};
    free(write_numbers(params, "PaliGemma.img.head.kernel", DTYPE_F32, 2, shape, 1).values);
}

/* One target: matrices [rows][columns], `groups` of them a layer, and where they are in PyTorch's tensors:
 * one a tensor (two names), stacked along the outputs, or side by side along the inputs. */
typedef struct target {
    const char *w, *pair, *tensors[2];
    int rank;
    int64_t shape[5];
    enum { APART, OUTPUTS, INPUTS } groups;
    int64_t lora_rank;
    dtype w_type, pair_type;
} target;

static const target targets[] = {
    {LAYERS "attn.q_einsum.w", LAYERS "attn.q_einsum.lora_", {LANGUAGE "self_attn.q_proj.weight"},
     4, {2, 8, 2048, 256}, OUTPUTS, 16, DTYPE_BF16, DTYPE_F32},
    {LAYERS "attn.kv_einsum.w", LAYERS "attn.kv_einsum.lora_",
     {LANGUAGE "self_attn.k_proj.weight", LANGUAGE "self_attn.v_proj.weight"},
     5, {3, 2, 1, 2048, 256}, APART, 16, DTYPE_F32, DTYPE_F32},
    {LAYERS "attn.attn_vec_einsum_1.w", LAYERS "attn.attn_vec_einsum_1.lora_", {EXPERT "self_attn.o_proj.weight"},
     4, {2, 8, 256, 1024}, INPUTS, 32, DTYPE_BF16, DTYPE_F32},
    {LAYERS "mlp_1.gating_einsum", LAYERS "mlp_1.gating_einsum_lora_",
     {EXPERT "mlp.gate_proj.weight", EXPERT "mlp.up_proj.weight"},
     4, {2, 2, 1024, 4096}, APART, 32, DTYPE_BF16, DTYPE_BF16},
    {LAYERS "mlp.linear", LAYERS "mlp.linear_lora_", {LANGUAGE "mlp.down_proj.weight"},
     3, {2, 1000, 77}, APART, 3, DTYPE_F32, DTYPE_BF16},
};

static numbers write_factor(const char *params, const target *t, char which) {
    char name[200];
    int64_t shape[5];
    memcpy(shape, t->shape, sizeof shape);
    shape[which == 'a' ? t->rank - 1 : t->rank - 2] = t->lora_rank;
    snprintf(name, sizeof name, "%s%c", t->pair, which);
    return write_numbers(params, name, t->pair_type, t->rank, shape, 0.25f);
}

/* Column c of one matrix: sum over x of the merged tensor, against both products apart. */
static void check_column(const float *merged, int64_t step, const float *x, const float *w, const float *a,
                         const float *b, int64_t b_count, const target *t, int64_t c) {
    int64_t rows = t->shape[t->rank - 2], columns = t->shape[t->rank - 1];
    double got = 0, want = 0, size = 0;
    for (int64_t i = 0; i < rows; i++) {
        got += (double)x[i] * (double)merged[i * step];
        want += (double)x[i] * (double)w[i * columns + c];
        size += fabs((double)x[i]) * (1 + 0.0625 * (double)(t->lora_rank * b_count));
    }
    for (int64_t k = 0; k < t->lora_rank; k++) {
        double low = 0;
        for (int64_t i = 0; i < rows; i++) low += (double)x[i] * (double)a[i * t->lora_rank + k];
        for (int64_t n = 0; n < b_count; n++)
            want += low * (double)b[(n * t->lora_rank + k) * columns + c];
    }
    if (!(fabs(got - want) <= 2e-7 * size))
        fail_msg("%s, column %d: %.9g, expected %.9g", t->w, (int)c, got, want);
}

static void check_layer(const tensors *list, const target *t, int layer, const numbers *w, const numbers *a,
                        const numbers *b) {
    int64_t rows = t->shape[t->rank - 2], columns = t->shape[t->rank - 1];
    int64_t all = w->count / rows / columns, groups = all / t->shape[0];
    float *merged = malloc((size_t)(groups * rows * columns) * sizeof *merged), x[2048];
    assert_non_null(merged);
    for (int i = 0; i < 2048; i++) x[i] = (float)((i * 37 + layer) % 101) * 0.02f - 1;
    for (int64_t g = 0; g < groups; g++) {
        char name[200];
        int64_t group = layer * groups + g, wide = t->groups == INPUTS ? groups * rows : rows;
        snprintf(name, sizeof name, t->tensors[t->groups == APART ? g : 0], layer);
        const tensor *found = tensors_find(list, name);
        assert_non_null(found);
        assert_int_equal(found->type, DTYPE_F32);
        tensor_read_f32(found, 0, found->count, merged);
        /* openpi's einsum of the attention's output sums b over the heads before a meets it */
        int64_t b_count = t->groups == INPUTS ? groups : 1;
        int64_t first = t->groups == INPUTS ? layer * groups : group;
        const float *b_of = b->values + first * t->lora_rank * columns;
        for (int64_t c = 0; c < columns; c += columns / 11) {
            int64_t row = t->groups == OUTPUTS ? g * columns + c : c;
            check_column(merged + row * wide + (t->groups == INPUTS ? g * rows : 0), 1, x,
                         w->values + group * rows * columns, a->values + group * rows * t->lora_rank,
                         b_of, b_count, t, c);
        }
    }
    free(merged);
}

/* Stages forwards, then the first layer once more. */
static void test_merged(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        const target *t = &targets[i];
        scratch folder;
        tensors *list = NULL;
        const char *name;
        int layers;
        assert_int_equal(scratch_open(&folder), 0);
        write_head(folder.folder);
        numbers w = write_numbers(folder.folder, t->w, t->w_type, t->rank, t->shape, 1);
        numbers a = write_factor(folder.folder, t, 'a'), b = write_factor(folder.folder, t, 'b');
        WORKS(tensors_open(folder.folder, &list, &error));
        assert_int_equal(orbax_lora(orbax_of(list), 0, &name, &layers), t->lora_rank);
        assert_string_equal(name, t->w);
        assert_int_equal(layers, t->shape[0]);
        assert_int_equal(orbax_lora(orbax_of(list), 1, &name, &layers), 0);
        assert_int_equal(tensors_stages(list), 1 + t->shape[0]);
        for (int turn = 0; turn <= t->shape[0]; turn++) {
            int layer = turn < t->shape[0] ? turn : 0;
            WORKS(tensors_stage(list, 1 + layer, NULL, &error));
            check_layer(list, t, layer, &w, &a, &b);
        }
        WORKS(tensors_check(list, &error));
        tensors_close(list);
        free(w.values), free(a.values), free(b.values);
        scratch_close(&folder);
    }
}

/* What is beside a W of [2, 6, 5]. */
static void test_refusals(void **state) {
    static const struct {
        const char *names[2];
        int ranks[2];
        int64_t shapes[2][4];
        openpi_status status;
        const char *piece;
    } rows[] = {
        {{"mlp.linear_lora_a"}, {3}, {{2, 6, 2}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_a.value\" is half of a LoRA pair, its lora_b is missing"},
        {{"mlp.linear_lora_b"}, {3}, {{2, 2, 5}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_b.value\" is half of a LoRA pair, its lora_a is missing"},
        {{"mlp.linear_lora_a", "mlp.linear_lora_b"}, {3, 3}, {{2, 6, 2}, {2, 3, 5}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_b.value\" is of rank 3, expected 2 as"},
        {{"mlp.linear_lora_a", "mlp.linear_lora_b"}, {3, 3}, {{2, 7, 2}, {2, 2, 5}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_a.value\": axis 1 is 7, expected 6 as"},
        {{"mlp.linear_lora_a", "mlp.linear_lora_b"}, {3, 3}, {{2, 6, 2}, {2, 2, 4}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_b.value\": axis 2 is 4, expected 5 as"},
        {{"mlp.linear_lora_a", "mlp.linear_lora_b"}, {3, 3}, {{3, 6, 2}, {2, 2, 5}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_a.value\": axis 0 is 3, expected 2 as"},
        {{"mlp.linear_lora_a", "mlp.linear_lora_b"}, {2, 3}, {{6, 2}, {2, 2, 5}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_a.value\" has 2 axes, expected 3 as"},
        {{"mlp.linear_lora_a", "mlp.linear_lora_b"}, {3, 3}, {{2, 6, 6}, {2, 6, 5}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_a.value\" is of rank 6, expected 1 to 5"},
        {{"mlp.linear_lora_a", "mlp.linear_lora_b"}, {3, 3}, {{2, 6, 0}, {2, 0, 5}}, OPENPI_BAD_FILE,
         "mlp.linear_lora_a.value\" is of rank 0, expected 1 to 5"},
        {{"mlp_1.linear_lora_a", "mlp_1.linear_lora_b"}, {3, 3}, {{2, 6, 2}, {2, 2, 5}}, OPENPI_UNSUPPORTED,
         "mlp_1.linear_lora_a\" is LoRA of an unknown target"},
        {{"mlp.linear_lora_c"}, {3}, {{2, 6, 2}}, OPENPI_UNSUPPORTED,
         "mlp.linear_lora_c\" is LoRA of an unknown target"},
        {{"final_norm.lora_a"}, {3}, {{2, 6, 2}}, OPENPI_UNSUPPORTED, "is LoRA of an unknown target"},
    };
    static const int64_t shape[] = {2, 6, 5};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scratch folder;
        tensors *list = NULL;
        assert_int_equal(scratch_open(&folder), 0);
        write_head(folder.folder);
        free(write_numbers(folder.folder, LAYERS "mlp.linear", DTYPE_F32, 3, shape, 1).values);
        for (int n = 0; n < 2 && rows[i].names[n]; n++) {
            char name[200];
            snprintf(name, sizeof name, LAYERS "%s", rows[i].names[n]);
            numbers factor =
                write_numbers(folder.folder, name, DTYPE_F32, rows[i].ranks[n], rows[i].shapes[n], 1);
            free(factor.values);
        }
        REFUSES(tensors_open(folder.folder, &list, &error), rows[i].status, rows[i].piece);
        scratch_close(&folder);
    }
}

static void write_pair(scratch *folder) {
    static const int64_t w[] = {2, 6, 5}, a[] = {2, 6, 2}, b[] = {2, 2, 5};
    assert_int_equal(scratch_open(folder), 0);
    write_head(folder->folder);
    free(write_numbers(folder->folder, LAYERS "mlp.linear", DTYPE_F32, 3, w, 1).values);
    free(write_numbers(folder->folder, LAYERS "mlp.linear_lora_a", DTYPE_F32, 3, a, 1).values);
    free(write_numbers(folder->folder, LAYERS "mlp.linear_lora_b", DTYPE_F32, 3, b, 1).values);
}

/* A factor under both of its names, with ".value" and without. */
static void test_twice(void **state) {
    static const int64_t b[] = {2, 2, 5};
    scratch folder;
    char from[400];
    tensors *list = NULL;
    (void)state;
    write_pair(&folder);
    strcpy(from, scratch_path(&folder, "params." LAYERS "mlp.linear_lora_b.value"));
    assert_int_equal(rename(from, scratch_path(&folder, "params." LAYERS "mlp.linear_lora_b")), 0);
    free(write_numbers(folder.folder, LAYERS "mlp.linear_lora_b", DTYPE_F32, 3, b, 1).values);
    REFUSES(tensors_open(folder.folder, &list, &error), OPENPI_BAD_FILE, "is there twice");
    scratch_close(&folder);
}

/* A factor's chunk that ends early is named when its layer is decoded. */
static void test_cut(void **state) {
    static const char bytes[8];
    scratch folder;
    tensors *list = NULL;
    (void)state;
    write_pair(&folder);
    WORKS(tensors_open(folder.folder, &list, &error));
    assert_int_equal(scratch_write(&folder, "params." LAYERS "mlp.linear_lora_b.value/0.0.0", bytes, 8), 0);
    REFUSES(tensors_stage(list, 1, NULL, &error), OPENPI_BAD_FILE, "mlp.linear_lora_b.value, chunk 0.0.0");
    tensors_close(list);
    scratch_close(&folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_merged), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_twice), cmocka_unit_test(test_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
