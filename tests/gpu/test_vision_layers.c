/* Which layers the resident vision kernel takes as one launch, on plans of the full model. Neither a GPU nor
 * weights are needed: only sizes count. */
#include <string.h>

#include "backend/gpu/cuda/resident/vision/vision_layers.h"
#include "full_plans.h"

static plan *open_plan(const subject *s, int batch) {
    const plan_shape shape = {.batch = batch, .horizon = 10, .steps = 2, .max_prompt = 20};
    plan *plan;
    must(plan_create(s->model, &shape, PLAN_ORDINARY, &plan, &error));
    return plan;
}

/* The launches of a plan: how many layers each has. */
typedef struct launches {
    int count, depth[4];
} launches;

static launches walk(const plan *plan) {
    const op_list list = plan_list(plan);
    launches l = {0};
    for (int i = 0; i < plan->count;) {
        op_block block;
        const int depth = block_at(&list, i, &block) ? vision_layers_of(&block) : 0;
        if (depth) {
            assert_true(l.count < 4);
            assert_string_equal(plan->ops[i].name, "vision.qkv");
            l.depth[l.count++] = depth;
        }
        i += depth ? depth * LAYER_OPS : 1;
    }
    return l;
}

static void expect(const char *spec, const char *dims, openpi_dtype dtype, int batch, uint32_t off,
                   launches expected) {
    subject s = open_subject(spec, dims, dtype, NULL, off);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_towers),
        cmocka_unit_test(test_other_towers),
    };
    return cmocka_run_group_tests_name("vision layers", tests, NULL, NULL);
}
