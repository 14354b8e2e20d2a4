/* Which ops the resident vision kernel takes as one launch, on plans of the full model, and that it takes no
 * layer of which it would ignore something. Neither a GPU nor weights are needed: only sizes and addresses
 * count, and matrices get addresses that lead nowhere. */
#include <string.h>

#include "backend/gpu/cuda/vision.h"
#include "backend/gpu/cuda/vision_layers.h"
#include "full_plans.h"

/* No two the same. */
static const float *next_address(void) {
    static uintptr_t last = 1 << 16;
    return (const float *)(last += 1 << 16);
}

/* An address for each matrix of the vision tower and each vector of its weights. */
static void place_weights(plan *plan) {
    for (int i = 0; i < plan->count; i++) {
        matrix *list[OP_MATRICES];
        op *op = &plan->ops[i];
        if (op->stage != OPENPI_STAGE_VISION) continue;
        const int count = op_matrices(op, list);
        for (int m = 0; m < count; m++) list[m]->data = next_address();
        if (op->kind == OP_NORM_LINEAR) {
            norm *n = &op->norm_linear.norm;
            if (n->kind == NORM_LAYER) {
                n->weight = next_address(), n->bias = next_address();
                op->norm_linear.folded = next_address();
            }
            op->norm_linear.bias = next_address();
        }
        if (op->kind == OP_LINEAR_RESIDUAL) op->linear_residual.bias = next_address();
    }
}

static plan *open_plan(const subject *s, int batch) {
    const plan_shape shape = {.batch = batch, .horizon = 10, .steps = 2, .max_prompt = 20};
    plan *plan;
    must(plan_create(s->model, &shape, PLAN_ORDINARY, &plan, &error));
    place_weights(plan);
    return plan;
}

/* The launches of a plan: how many layers each has. */
typedef struct launches {
    int count, depth[4];
} launches;

static launches walk(const plan *plan) {
    launches l = {0};
    for (int i = 0; i < plan->count;) {
        const int depth = vision_depth_of(&plan->ops[i], plan->count - i);
        if (depth) {
            assert_true(l.count < 4);
            assert_string_equal(plan->ops[i].name, "vision.qkv");
            l.depth[l.count++] = depth;
        }
        i += depth ? depth * VISION_OPS : 1;
    }
    return l;
}

static void expect(const char *spec, const char *dims, openpi_dtype dtype, int batch, uint32_t off,
                   launches expected) {
    subject s = open_subject(spec, dims, dtype, off);
    plan *plan = open_plan(&s, batch);
    const launches found = walk(plan);
    if (memcmp(&found, &expected, sizeof found))
        fail_msg("%s %s batch %d: %d launches, the first with %d layers, expected %d and %d", spec,
                 dims ? dims : "", batch, found.count, found.depth[0], expected.count, expected.depth[0]);
    plan_close(plan);
    close_subject(&s);
}

#define DIMS(vision) "{\"vision\":" vision ",\"vlm\":[24,1,8,256,40],\"expert\":[24,40],\"vocab\":2048}"

static void test_whole_towers(void **state) {
    (void)state;
    expect("full:pi0", NULL, OPENPI_BF16, 1, 0, (launches){1, {27}});
    expect("full:pi05", NULL, OPENPI_BF16, 1, 0, (launches){1, {27}});
    /* A pass a camera: 256 rows a sample. */
    expect("full:pi0", NULL, OPENPI_BF16, 1, 1u << SWITCH_BATCHED_VISION, (launches){3, {27, 27, 27}});
    expect("full:pi0", NULL, OPENPI_BF16, 3, 1u << SWITCH_BATCHED_VISION, (launches){3, {27, 27, 27}});
    expect("full:pi0", DIMS("[1152,1,16,4304]"), OPENPI_BF16, 1, 0, (launches){1, {1}});
    expect("full:pi0", DIMS("[1152,28,16,4304]"), OPENPI_BF16, 1, 0, (launches){2, {27, 1}});
}

static void test_other_towers(void **state) {
    (void)state;
    expect("full:pi0", NULL, OPENPI_BF16, 2, 0, (launches){0});            /* six images                    */
    expect("full:pi0", NULL, OPENPI_BF16, 4, 1u << SWITCH_BATCHED_VISION, (launches){0});
    expect("full:pi0", NULL, OPENPI_F32, 1, 0, (launches){0});
    expect("full:pi0", NULL, OPENPI_BF16, 1, 1u << SWITCH_FUSED_QKV, (launches){0});
    expect("full:pi0", NULL, OPENPI_BF16, 1, 1u << SWITCH_FUSED_POINTWISE, (launches){0});
    expect("full:pi0", NULL, OPENPI_BF16, 1, 1u << SWITCH_FUSED_ATTENTION, (launches){0});
    expect("full:pi0", NULL, OPENPI_BF16, 1, 1u << SWITCH_PACKED_WEIGHTS, (launches){0});
    expect("tiny:pi0", NULL, OPENPI_BF16, 1, 0, (launches){0});
    expect("full:pi0", DIMS("[1152,2,16,4288]"), OPENPI_BF16, 1, 0, (launches){0});
    expect("full:pi0", DIMS("[1152,2,12,4304]"), OPENPI_BF16, 1, 0, (launches){0});
    expect("full:pi0", DIMS("[1296,2,18,4304]"), OPENPI_BF16, 1, 0, (launches){0});
}

/* ---- what is refused --------------------------------------------------------------------------------- */

enum { LAYERS = 3, OPS = LAYERS * VISION_OPS };
static op ops[OPS + 1];
static const int32_t other_count, known;

static op *at(int layer, int which) { return &ops[layer * VISION_OPS + which]; }

#define QKV(layer) at(layer, VISION_QKV)->norm_linear
#define ATTENTION(layer) at(layer, VISION_ATTENTION)->image_attention
#define OUT(layer) at(layer, VISION_OUT)->linear_residual
#define FC1(layer) at(layer, VISION_FC1)->norm_linear
#define FC2(layer) at(layer, VISION_FC2)->linear_residual

static row_set *rows_at(int layer, int which) {
    row_set *list[VISION_OPS] = {&QKV(layer).rows, &ATTENTION(layer).rows, &OUT(layer).rows, &FC1(layer).rows,
                                 &FC2(layer).rows};
    return list[which];
}

static matrix *matrix_at(int layer, int which) {
    matrix *list[VISION_OPS] = {&QKV(layer).weight, NULL, &OUT(layer).weight, &FC1(layer).weight,
                                &FC2(layer).weight};
    return list[which];
}

/* With this change of a layer the launch ends before it; of the first one there is no launch then. */
#define REFUSED(change)                                                                        \
    do {                                                                                       \
        for (int layer = 0; layer < LAYERS; layer++) {                                         \
            static op kept[OPS];                                                               \
            memcpy(kept, ops, sizeof kept);                                                    \
            change;                                                                            \
            if (vision_depth_of(ops, OPS) != layer)                                            \
                fail_msg("layer %d, " #change ": %d layers are taken", layer,                  \
                         vision_depth_of(ops, OPS));                                           \
            memcpy(ops, kept, sizeof kept);                                                    \
            assert_int_equal(vision_depth_of(ops, OPS), LAYERS);                               \
        }                                                                                      \
    } while (0)

/* As REFUSED, for what a launch has in common: where the first layer has it, the others do not fit. */
#define COMMON(change)                                                                         \
    do {                                                                                       \
        for (int layer = 0; layer < LAYERS; layer++) {                                         \
            static op kept[OPS];                                                               \
            memcpy(kept, ops, sizeof kept);                                                    \
            change;                                                                            \
            if (vision_depth_of(ops, OPS) != (layer ? layer : 1))                              \
                fail_msg("layer %d, " #change ": %d layers are taken", layer,                  \
                         vision_depth_of(ops, OPS));                                           \
            memcpy(ops, kept, sizeof kept);                                                    \
        }                                                                                      \
    } while (0)

static subject small;
static plan *small_plan;

static int open_layers(void **state) {
    int first = 0;
    (void)state;
    small = open_subject("full:pi0", DIMS("[1152,3,16,4304]"), OPENPI_BF16, 0);
    small_plan = open_plan(&small, 1);
    while (strcmp(small_plan->ops[first].name, "vision.qkv")) first++;
    memcpy(ops, &small_plan->ops[first], sizeof ops);
    return vision_depth_of(ops, OPS) != LAYERS;
}

static int close_layers(void **state) {
    (void)state;
    plan_close(small_plan);
    close_subject(&small);
    return 0;
}

/* The list may end within a layer. */
static void test_counts(void **state) {
    (void)state;
    for (int count = 0; count <= OPS; count++)
        assert_int_equal(vision_depth_of(ops, count), count / VISION_OPS);
    for (int i = 1; i < OPS; i++)
        assert_int_equal(vision_depth_of(ops + i, OPS - i), i % VISION_OPS ? 0 : LAYERS - i / VISION_OPS);
    assert_int_equal(vision_depth_of(ops, OPS + 1), LAYERS);       /* the projector comes next              */
}

static void test_each_op(void **state) {
    (void)state;
    for (int which = 0; which < VISION_OPS; which++) {
        REFUSED(at(layer, which)->kind = OP_NORM);
        REFUSED(at(layer, which)->type = DTYPE_F32);
        REFUSED(at(layer, which)->stage = OPENPI_STAGE_PREFIX);
        REFUSED(at(layer, which)->parameters = 1);
        if (which) REFUSED(rows_at(layer, which)->capacity = 512);
        if (which) REFUSED(rows_at(layer, which)->count = &other_count);
        REFUSED(rows_at(layer, which)->count = NULL);
        REFUSED(rows_at(layer, which)->known = &known);
        if (which == VISION_ATTENTION) continue;
        REFUSED(matrix_at(layer, which)->data = NULL);
        REFUSED(matrix_at(layer, which)->raw = 1);
        REFUSED(matrix_at(layer, which)->type = WEIGHT_INT8);
        REFUSED(matrix_at(layer, which)->type = WEIGHT_F32);
        REFUSED(matrix_at(layer, which)->form = MATRIX_GATED);
        REFUSED(matrix_at(layer, which)->n += 16);
        REFUSED(matrix_at(layer, which)->k += 64);
    }
}

static void test_each_field(void **state) {
    void *const other = (void *)(uintptr_t)(1 << 14);
    (void)state;
    REFUSED(QKV(layer).norm.kind = NORM_RMS);
    REFUSED(FC1(layer).norm.kind = NORM_RMS);
    REFUSED(QKV(layer).norm.kind = NORM_NONE);
    REFUSED(QKV(layer).norm.weight = NULL);
    REFUSED(FC1(layer).norm.weight = NULL);
    REFUSED(QKV(layer).norm.bias = NULL);
    REFUSED(FC1(layer).norm.bias = NULL);
    REFUSED(QKV(layer).folded = NULL);
    REFUSED(FC1(layer).folded = NULL);
    REFUSED(FC1(layer).norm.eps *= 2);
    REFUSED(QKV(layer).bias = NULL);
    REFUSED(OUT(layer).bias = NULL);
    REFUSED(FC1(layer).bias = NULL);
    REFUSED(FC2(layer).bias = NULL);
    REFUSED(OUT(layer).gate = FC1(layer).bias);
    REFUSED(FC2(layer).gate = FC1(layer).bias);
    REFUSED(QKV(layer).activation = ACT_GELU);
    REFUSED(FC1(layer).activation = ACT_NONE);
    REFUSED(FC1(layer).activation = ACT_SILU);
    REFUSED(QKV(layer).out_row = &known);
    REFUSED(FC1(layer).out_row = &known);
    REFUSED(FC1(layer).x = other);
    REFUSED(OUT(layer).x = other);
    REFUSED(FC2(layer).x = other);
    REFUSED(ATTENTION(layer).qkv = other);
    REFUSED(OUT(layer).a = other);
    REFUSED(FC2(layer).a = other);
    REFUSED(ATTENTION(layer).planar = 1);
    REFUSED(ATTENTION(layer).heads = 18);
    REFUSED(ATTENTION(layer).head_dim = 64);
}

/* What all layers of a launch have in common. */
static void test_common(void **state) {
    char *const other = (char *)(uintptr_t)(1 << 14);
    (void)state;
    COMMON(ATTENTION(layer).scale *= 2);
    COMMON((QKV(layer).norm.eps *= 2, FC1(layer).norm.eps *= 2));
    COMMON((QKV(layer).out = other, ATTENTION(layer).qkv = other));
    COMMON((ATTENTION(layer).out = other, OUT(layer).a = other));
    COMMON((FC1(layer).out = other, FC2(layer).a = other));
    COMMON((QKV(layer).x = other, FC1(layer).x = other, OUT(layer).x = other, FC2(layer).x = other));
    COMMON(for (int i = 0; i < VISION_OPS; i++) rows_at(layer, i)->count = &other_count);
    COMMON(for (int i = 0; i < VISION_OPS; i++) rows_at(layer, i)->capacity = 256);
}

/* Whole images, three at most. */
static void test_rows(void **state) {
    static const struct {
        int rows, depth;
    } cases[] = {{-256, 0}, {0, 0},        {128, 0},      {256, LAYERS},
                 {384, 0},  {512, LAYERS}, {768, LAYERS}, {1024, 0}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int layer = 0; layer < LAYERS; layer++)
            for (int i = 0; i < VISION_OPS; i++) rows_at(layer, i)->capacity = cases[c].rows;
        assert_int_equal(vision_depth_of(ops, OPS), cases[c].depth);
    }
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < VISION_OPS; i++) rows_at(layer, i)->capacity = 768;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_towers), cmocka_unit_test(test_other_towers),
        cmocka_unit_test(test_counts),       cmocka_unit_test(test_each_op),
        cmocka_unit_test(test_each_field),   cmocka_unit_test(test_common),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests_name("vision layers", tests, open_layers, close_layers);
}
