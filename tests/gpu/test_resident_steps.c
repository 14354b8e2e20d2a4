/* Which steps the resident denoise kernels take as one launch, on plans of the full model. Neither a GPU nor
 * weights are needed: only sizes count. */
#include "backend/gpu/cuda/resident/few/resident_family.h"
#include "full_plans.h"

static int prompt = 20, samples = 1, max_delay = 0;
static const char *formats;
static int int8_launches;                          /* in the plan that was walked last              */

static plan *open_plan(const subject *s, plan_kind kind, int horizon, int steps) {
    const plan_shape shape = {.batch = samples, .horizon = horizon, .steps = steps, .max_prompt = prompt,
                              .rtc = kind != PLAN_ORDINARY, .known = kind == PLAN_TRAINED ? 4 : max_delay};
    plan *plan;
    must(plan_create(s->model, &shape, kind, &plan, &error));
    return plan;
}

/* The launches of a plan: how many steps each has. */
typedef struct launches {
    int count, steps[16], velocities, embeddings, guides;  /* of ops that are in no launch          */
    int apart;                                     /* launches of the kernel with shifts apart      */
    int many;                                      /* and of that for long horizons                 */
    int wide;                                      /* and of that for up to eight samples           */
} launches;

/* The kernel that takes the block, and how many of its steps; at most one does. */
static int steps_of(const op_block *block, resident_rows *kind) {
    int steps = 0;
    for (int k = RESIDENT_FEW; k <= RESIDENT_WIDE; k++) {
        const int these = resident_steps_of(block, (resident_rows)k);
        assert_true(!these || !steps);
        if (these) steps = these, *kind = (resident_rows)k;
    }
    return steps;
}

static launches walk(const plan *plan) {
    const op_list list = plan_list(plan);
    launches l = {0};
    int8_launches = 0;
    for (int i = 0; i < plan->count;) {
        const op *op = &plan->ops[i];
        resident_rows kind = RESIDENT_FEW;
        op_block block;
        const int steps = block_at(&list, i, &block) ? steps_of(&block, &kind) : 0;
        if (!steps) {
            l.velocities += op->kind == OP_VELOCITY;
            l.guides += op->kind == OP_GUIDE;
            l.embeddings += op->kind == OP_ACTION_EMBED;
            i++;
            continue;
        }
        assert_true(op->kind == OP_NORM_QKV && op->stage == OPENPI_STAGE_DENOISE);
        assert_int_equal(block.layers, 18);
        assert_int_equal(block.samples, samples);
        assert_true(l.count < 16);
        l.apart += kind == RESIDENT_APART || kind == RESIDENT_INT8_APART;
        int8_launches += kind == RESIDENT_INT8_FEW || kind == RESIDENT_INT8_APART;
        l.many += kind == RESIDENT_LONG;
        l.wide += kind == RESIDENT_WIDE;
        l.steps[l.count++] = steps;
        i += resident_ops_of(&block, kind, steps);
    }
    return l;
}

static void expect(const char *spec, plan_kind kind, int horizon, int steps, uint32_t off,
                   const launches *expected) {
    subject s = open_subject(spec, NULL, OPENPI_BF16, formats, off);
    plan *plan = open_plan(&s, kind, horizon, steps);
    const launches found = walk(plan);
    if (found.count != expected->count || found.velocities != expected->velocities ||
        found.embeddings != expected->embeddings || found.guides != expected->guides ||
        found.apart != expected->apart || found.many != expected->many || found.wide != expected->wide)
        fail_msg("%s kind %d horizon %d steps %d: %d launches, %d apart, %d long, %d wide; %d velocities, "
                 "%d embeddings, %d guides beside them, expected %d, %d, %d, %d; %d, %d, %d",
                 spec, (int)kind, horizon, steps, found.count, found.apart, found.many, found.wide,
                 found.velocities, found.embeddings, found.guides, expected->count, expected->apart,
                 expected->many, expected->wide, expected->velocities, expected->embeddings,
                 expected->guides);
    for (int i = 0; i < found.count; i++) assert_int_equal(found.steps[i], expected->steps[i]);
    plan_close(plan);
    close_subject(&s);
}

/* π0's first step has the state token among its rows: a launch of its own. More than 12 rows, π0.5's shift
 * among them, take the other kernel. */
static void test_one_launch(void **state) {
    (void)state;
    expect("full:pi0", PLAN_ORDINARY, 10, 10, 0, &(launches){2, {1, 9}, 0, 2, 0, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 10, 2, 0, &(launches){2, {1, 1}, 0, 2, 0, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 11, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 12, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 1, 0, 0}); /* 13 at first */
    expect("full:pi0", PLAN_ORDINARY, 13, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 2, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 15, 1, 0, &(launches){1, {1}, 0, 1, 0, 1, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 16, 4, 0, &(launches){2, {1, 3}, 1, 2, 0, 1, 1, 0}); /* 17 at first */
    expect("full:pi05", PLAN_ORDINARY, 10, 10, 0, &(launches){1, {10}, 0, 1, 0, 0, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 11, 3, 0, &(launches){1, {3}, 0, 1, 0, 0, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 12, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 15, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 16, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
    expect("tiny:pi0", PLAN_ORDINARY, 10, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0, 0});
}

/* The expert's weights are int8: kernels of their own for the same rows. There is none for rows as int8. */
static void test_int8(void **state) {
    (void)state;
    formats = "expert=int8";
    expect("full:pi0", PLAN_ORDINARY, 10, 10, 0, &(launches){2, {1, 9}, 0, 2, 0, 0, 0, 0});
    assert_int_equal(int8_launches, 2);
    expect("full:pi0", PLAN_ORDINARY, 12, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 1, 0, 0});
    assert_int_equal(int8_launches, 2);
    expect("full:pi05", PLAN_ORDINARY, 11, 3, 0, &(launches){1, {3}, 0, 1, 0, 0, 0, 0});
    assert_int_equal(int8_launches, 1);
    expect("full:pi05", PLAN_ORDINARY, 16, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
    assert_int_equal(int8_launches, 1);
    expect("full:pi05", PLAN_ORDINARY, 17, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0, 0});
    formats = "expert=int8x8";
    expect("full:pi05", PLAN_ORDINARY, 11, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0, 0});
    formats = NULL;
}

/* More than 16 rows: the layers of each step. With its shift π0.5 has 64 rows at most; there is room for
 * 1,024 keys, of which cameras and prompt take 788 or 968; known rows have no such kernel. */
static void test_long_horizons(void **state) {
    (void)state;
    expect("full:pi05", PLAN_ORDINARY, 17, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 0, 0, 3, 0});
    expect("full:pi05", PLAN_ORDINARY, 63, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    expect("full:pi05", PLAN_ORDINARY, 64, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 17, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    expect("full:pi0", PLAN_ORDINARY, 63, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    expect("full:pi0", PLAN_ORDINARY, 64, 3, 0, &(launches){2, {1, 1}, 3, 3, 0, 0, 2, 0});  /* 65 at first */
    expect("full:pi0", PLAN_ORDINARY, 65, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0, 0});
    expect("full:pi05", PLAN_GUIDED, 50, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 3, 0, 3, 0});
    expect("full:pi05", PLAN_TRAINED, 50, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0, 0});
    prompt = 200;
    expect("full:pi05", PLAN_ORDINARY, 55, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    expect("full:pi05", PLAN_ORDINARY, 56, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0, 0});
    prompt = 20;
}

/* Two to four samples of 16 rows at most each, the state token among them; 64 rows with the shift. Guides are
 * ops of their own, and keys count for each sample. */
static void test_samples(void **state) {
    (void)state;
    samples = 2;
    expect("full:pi05", PLAN_ORDINARY, 10, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 0, 0, 3, 0});
    expect("full:pi05", PLAN_ORDINARY, 1, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    expect("full:pi05", PLAN_ORDINARY, 16, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    expect("full:pi05", PLAN_ORDINARY, 17, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0, 0});
    expect("full:pi05", PLAN_GUIDED, 10, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 3, 0, 3, 0});
    expect("full:pi05", PLAN_TRAINED, 10, 3, 0, &(launches){0, {0}, 3, 3, 3, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 15, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 0, 0, 3, 0});
    expect("full:pi0", PLAN_ORDINARY, 16, 3, 0, &(launches){2, {1, 1}, 3, 3, 0, 0, 2, 0});  /* 17 at first */
    max_delay = 4;                                 /* of a neighbour: no plan of the session has it */
    expect("full:pi05", PLAN_ORDINARY, 10, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0, 0});
    expect("full:pi05", PLAN_GUIDED, 10, 3, 0, &(launches){0, {0}, 3, 3, 3, 0, 0, 0});
    max_delay = 0;
    samples = 4;
    expect("full:pi0", PLAN_ORDINARY, 15, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    expect("full:pi05", PLAN_ORDINARY, 15, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    prompt = 200;
    expect("full:pi05", PLAN_ORDINARY, 10, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    prompt = 20;
    samples = 1;
}

/* Up to eight samples: from 60 rows on, 96 with the shift, 16 of a sample. What the kernel for 64 rows takes
 * stays with it. */
static void test_many_samples(void **state) {
    (void)state;
    samples = 4;
    expect("full:pi05", PLAN_ORDINARY, 16, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 0, 2}); /* 65 */
    expect("full:pi05", PLAN_ORDINARY, 17, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 15, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2, 0});
    samples = 5;
    expect("full:pi05", PLAN_ORDINARY, 11, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 12, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 0, 2});
    samples = 6;
    expect("full:pi0", PLAN_ORDINARY, 15, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 0, 2}); /* 96 at first */
    expect("full:pi05", PLAN_ORDINARY, 16, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0, 0});      /* 97 */
    samples = 8;
    expect("full:pi0", PLAN_ORDINARY, 10, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 0, 0, 0, 3});
    expect("full:pi05", PLAN_GUIDED, 10, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 3, 0, 0, 3});
    expect("full:pi05", PLAN_TRAINED, 10, 3, 0, &(launches){0, {0}, 3, 3, 3, 0, 0, 0});
    prompt = 200;
    expect("full:pi05", PLAN_ORDINARY, 11, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 0, 2});
    prompt = 20;
    samples = 9;
    expect("full:pi05", PLAN_ORDINARY, 9, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0, 0});
    samples = 1;
}

/* Real-time chunking: a guide ends each step, or rows may be known, whose shift is one more row. */
static void test_chunking(void **state) {
    (void)state;
    expect("full:pi0", PLAN_GUIDED, 10, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 0, 0, 0});
    expect("full:pi0", PLAN_GUIDED, 16, 4, 0, &(launches){2, {1, 3}, 1, 2, 1, 1, 1, 0});
    expect("full:pi05", PLAN_GUIDED, 10, 10, 0, &(launches){1, {10}, 0, 1, 0, 0, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 10, 10, 0, &(launches){1, {10}, 0, 1, 0, 0, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 11, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 14, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 15, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 16, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 17, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0, 0});
    expect("full:pi05", PLAN_GUIDED, 16, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0, 0});
}

/* Something is between the steps, or a step is not like the first one: a launch each. */
static void test_a_launch_a_step(void **state) {
    const uint32_t every_step = 1u << SWITCH_STATE_TOKEN_ONCE,
                   modulations = 1u << SWITCH_PRECOMPUTED_MODULATIONS,
                   constants = 1u << SWITCH_FOLDED_CONSTANTS;
    (void)state;
    expect("full:pi0", PLAN_GUIDED, 10, 3, every_step, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 10, 3, modulations, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 10, 3, every_step, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 10, 3, modulations, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 10, 3, constants, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0, 0});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_launch),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_long_horizons),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_many_samples),
        cmocka_unit_test(test_chunking),
        cmocka_unit_test(test_a_launch_a_step),
    };
    return cmocka_run_group_tests_name("resident steps", tests, NULL, NULL);
}
