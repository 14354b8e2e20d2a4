/* Which ops the resident denoise kernel takes as one launch, on plans of the full model. Neither a GPU nor
 * weights are needed: only sizes and addresses count, and matrices get addresses that lead nowhere. */
#include "backend/gpu/cuda/resident_steps.h"
#include "full_plans.h"
#include "ops/reference.h"

static void place(const float **vector, uintptr_t address) {
    if (!*vector) *vector = (const float *)address;
}

/* An address for each matrix of each layer, and for the vectors of the weights; the same in every step. */
static void place_weights(plan *plan) {
    for (int i = 0; i < plan->count; i++) {
        matrix *list[OP_MATRICES];
        op *op = &plan->ops[i];
        const uintptr_t address = (uintptr_t)(8192 * (1 + 64 * (op->layer + 2) + 4 * (int)op->kind));
        const int count = op_matrices(op, list);
        for (int m = 0; m < count; m++)
            if (list[m]->n) list[m]->data = (const void *)(address + 1024 * (uintptr_t)m);
        if (op->kind == OP_NORM_QKV) place(&op->norm_qkv.norm.weight, address + 4096);
        if (op->kind == OP_VELOCITY) place(&op->velocity.norm.weight, address + 4096);
        if (op->kind == OP_NORM_LINEAR && op->norm_linear.norm.kind == NORM_RMS)
            place(&op->norm_linear.norm.weight, address + 4096);
        if (op->kind == OP_ACTION_EMBED && op->action_embed.mlp_out.n)
            place(&op->action_embed.mlp_out_bias, address + 4096);
        else if (op->kind == OP_ACTION_EMBED) place(&op->action_embed.in_bias, address + 4096);
        if (op->kind == OP_GUIDE) op->guide.gain = (const float *)(uintptr_t)4096 + op->step;
    }
}

static int prompt = 20, samples = 1, max_delay = 0;

static plan *open_plan(const subject *s, plan_kind kind, int horizon, int steps) {
    const plan_shape shape = {.batch = samples, .horizon = horizon, .steps = steps, .max_prompt = prompt,
                              .rtc = kind != PLAN_ORDINARY, .known = kind == PLAN_TRAINED ? 4 : max_delay};
    plan *plan;
    must(plan_create(s->model, &shape, kind, &plan, &error));
    place_weights(plan);
    return plan;
}

/* The launches of a plan: how many steps each has. */
typedef struct launches {
    int count, steps[16], velocities, embeddings, guides;  /* of ops that are in no launch          */
    int apart;                                     /* launches of the kernel with shifts apart      */
    int many;                                      /* and of that for long horizons                 */
} launches;

static launches walk(const plan *plan) {
    launches l = {0};
    for (int i = 0; i < plan->count;) {
        resident_chain c = resident_chain_of(&plan->ops[i], plan->count - i, RESIDENT_FEW);
        const resident_chain apart = resident_chain_of(&plan->ops[i], plan->count - i, RESIDENT_APART);
        const resident_chain many = resident_chain_of(&plan->ops[i], plan->count - i, RESIDENT_LONG);
        assert_true(!!c.depth + !!apart.depth + !!many.depth <= 1);
        if (apart.depth) c = apart, l.apart++;
        if (many.depth) c = many, l.many++;
        if (!c.depth) {
            l.velocities += plan->ops[i].kind == OP_VELOCITY;
            l.guides += plan->ops[i].kind == OP_GUIDE;
            l.embeddings += plan->ops[i++].kind == OP_ACTION_EMBED;
            continue;
        }
        assert_int_equal(c.depth, 18);
        assert_int_equal(c.samples, samples);
        assert_int_equal(c.ops, c.steps * (c.depth * LAYER_OPS + c.velocity + c.guided) +
                                    (c.steps - 1) * c.velocity);
        assert_true(l.count < 16);
        l.steps[l.count++] = c.steps;
        i += c.ops;
    }
    return l;
}

static void expect(const char *spec, plan_kind kind, int horizon, int steps, uint32_t off,
                   const launches *expected) {
    subject s = open_subject(spec, NULL, OPENPI_BF16, off);
    plan *plan = open_plan(&s, kind, horizon, steps);
    const launches found = walk(plan);
    if (found.count != expected->count || found.velocities != expected->velocities ||
        found.embeddings != expected->embeddings || found.guides != expected->guides ||
        found.apart != expected->apart || found.many != expected->many)
        fail_msg("%s kind %d horizon %d steps %d: %d launches, %d apart, %d long; %d velocities, %d "
                 "embeddings, %d guides beside them, expected %d, %d, %d; %d, %d, %d",
                 spec, (int)kind, horizon, steps, found.count, found.apart, found.many, found.velocities,
                 found.embeddings, found.guides, expected->count, expected->apart, expected->many,
                 expected->velocities, expected->embeddings, expected->guides);
    for (int i = 0; i < found.count; i++) assert_int_equal(found.steps[i], expected->steps[i]);
    plan_close(plan);
    close_subject(&s);
}

/* π0's first step has the state token among its rows: a launch of its own. More than 12 rows, π0.5's shift
 * among them, take the other kernel. */
static void test_one_launch(void **state) {
    (void)state;
    expect("full:pi0", PLAN_ORDINARY, 10, 10, 0, &(launches){2, {1, 9}, 0, 2, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 10, 2, 0, &(launches){2, {1, 1}, 0, 2, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 11, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 12, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 1, 0}); /* 13 rows at first */
    expect("full:pi0", PLAN_ORDINARY, 13, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 2, 0});
    expect("full:pi0", PLAN_ORDINARY, 15, 1, 0, &(launches){1, {1}, 0, 1, 0, 1, 0});
    expect("full:pi0", PLAN_ORDINARY, 16, 4, 0, &(launches){2, {1, 3}, 1, 2, 0, 1, 1}); /* 17 rows at first */
    expect("full:pi05", PLAN_ORDINARY, 10, 10, 0, &(launches){1, {10}, 0, 1, 0, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 11, 3, 0, &(launches){1, {3}, 0, 1, 0, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 12, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0});
    expect("full:pi05", PLAN_ORDINARY, 15, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0});
    expect("full:pi05", PLAN_ORDINARY, 16, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0});
    expect("tiny:pi0", PLAN_ORDINARY, 10, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0});
}

/* More than 16 rows: the layers of each step. With its shift π0.5 has 64 rows at most; there is room for
 * 1,024 keys, of which cameras and prompt take 788 or 968; known rows have no such kernel. */
static void test_long_horizons(void **state) {
    (void)state;
    expect("full:pi05", PLAN_ORDINARY, 17, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 0, 0, 3});
    expect("full:pi05", PLAN_ORDINARY, 63, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    expect("full:pi05", PLAN_ORDINARY, 64, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 17, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    expect("full:pi0", PLAN_ORDINARY, 63, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    expect("full:pi0", PLAN_ORDINARY, 64, 3, 0, &(launches){2, {1, 1}, 3, 3, 0, 0, 2});  /* 65 at first */
    expect("full:pi0", PLAN_ORDINARY, 65, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0});
    expect("full:pi05", PLAN_GUIDED, 50, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 3, 0, 3});
    expect("full:pi05", PLAN_TRAINED, 50, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0});
    prompt = 200;
    expect("full:pi05", PLAN_ORDINARY, 55, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    expect("full:pi05", PLAN_ORDINARY, 56, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0});
    prompt = 20;
}

/* Two to four samples of 16 rows at most each, the state token among them; 64 rows with the shift. Guides are
 * ops of their own, and keys count for each sample. */
static void test_samples(void **state) {
    (void)state;
    samples = 2;
    expect("full:pi05", PLAN_ORDINARY, 10, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 0, 0, 3});
    expect("full:pi05", PLAN_ORDINARY, 1, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    expect("full:pi05", PLAN_ORDINARY, 16, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    expect("full:pi05", PLAN_ORDINARY, 17, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0});
    expect("full:pi05", PLAN_GUIDED, 10, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 3, 0, 3});
    expect("full:pi05", PLAN_TRAINED, 10, 3, 0, &(launches){0, {0}, 3, 3, 3, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 15, 3, 0, &(launches){3, {1, 1, 1}, 3, 3, 0, 0, 3});
    expect("full:pi0", PLAN_ORDINARY, 16, 3, 0, &(launches){2, {1, 1}, 3, 3, 0, 0, 2});  /* 17 at first */
    max_delay = 4;                                 /* of a neighbour: no plan of the session has it */
    expect("full:pi05", PLAN_ORDINARY, 10, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0});
    expect("full:pi05", PLAN_GUIDED, 10, 3, 0, &(launches){0, {0}, 3, 3, 3, 0, 0});
    max_delay = 0;
    samples = 4;
    expect("full:pi0", PLAN_ORDINARY, 15, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    expect("full:pi05", PLAN_ORDINARY, 15, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    expect("full:pi05", PLAN_ORDINARY, 16, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0});    /* 65 */
    prompt = 200;
    expect("full:pi05", PLAN_ORDINARY, 10, 2, 0, &(launches){2, {1, 1}, 2, 2, 0, 0, 2});
    prompt = 20;
    samples = 5;
    expect("full:pi05", PLAN_ORDINARY, 1, 2, 0, &(launches){0, {0}, 2, 2, 0, 0, 0});
    samples = 1;
}

/* Real-time chunking: a guide ends each step, or rows may be known, whose shift is one more row. */
static void test_chunking(void **state) {
    (void)state;
    expect("full:pi0", PLAN_GUIDED, 10, 4, 0, &(launches){2, {1, 3}, 0, 2, 0, 0, 0});
    expect("full:pi0", PLAN_GUIDED, 16, 4, 0, &(launches){2, {1, 3}, 1, 2, 1, 1, 1});
    expect("full:pi05", PLAN_GUIDED, 10, 10, 0, &(launches){1, {10}, 0, 1, 0, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 10, 10, 0, &(launches){1, {10}, 0, 1, 0, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 11, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0});
    expect("full:pi05", PLAN_TRAINED, 14, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0});
    expect("full:pi05", PLAN_TRAINED, 15, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0});
    expect("full:pi05", PLAN_TRAINED, 16, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0});
    expect("full:pi05", PLAN_TRAINED, 17, 3, 0, &(launches){0, {0}, 3, 3, 0, 0, 0});
    expect("full:pi05", PLAN_GUIDED, 16, 3, 0, &(launches){1, {3}, 0, 1, 0, 1, 0});
}

/* Something is between the steps, or a step is not like the first one: a launch each. */
static void test_a_launch_a_step(void **state) {
    const uint32_t every_step = 1u << SWITCH_STATE_TOKEN_ONCE,
                   modulations = 1u << SWITCH_PRECOMPUTED_MODULATIONS,
                   constants = 1u << SWITCH_FOLDED_CONSTANTS;
    (void)state;
    expect("full:pi0", PLAN_GUIDED, 10, 3, every_step, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0});
    expect("full:pi05", PLAN_TRAINED, 10, 3, modulations, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 10, 3, every_step, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0});
    expect("full:pi05", PLAN_ORDINARY, 10, 3, modulations, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0});
    expect("full:pi0", PLAN_ORDINARY, 10, 3, constants, &(launches){3, {1, 1, 1}, 0, 3, 0, 0, 0});
}

/* The first op of the first layer of a denoise step. */
static int layers_of(const plan *plan, int step) {
    int i = 0;
    while (plan->ops[i].kind != OP_NORM_QKV || plan->ops[i].stage != OPENPI_STAGE_DENOISE ||
           plan->ops[i].step != step)
        i++;
    return i;
}

static void move_norm(norm *n, int floats) {
    n->weight += floats;
    if (n->bias) n->bias += floats;
}

/* All parameters of a step with modulations move by so many floats. */
static void move_step(op *ops, int length, int floats) {
    for (int i = 0; i < length; i++) {
        if (ops[i].kind == OP_NORM_QKV) move_norm(&ops[i].norm_qkv.norm, floats);
        if (ops[i].kind == OP_NORM_LINEAR) move_norm(&ops[i].norm_linear.norm, floats);
        if (ops[i].kind == OP_LINEAR_RESIDUAL) ops[i].linear_residual.gate += floats;
        if (ops[i].kind == OP_VELOCITY) move_norm(&ops[i].velocity.norm, floats);
    }
}

/* How far parameters move from step to step, and that a step which moves otherwise ends the launch. */
static void test_parameters(void **state) {
    (void)state;
    subject s = open_subject("full:pi05", NULL, OPENPI_BF16, 0);
    plan *plan = open_plan(&s, PLAN_ORDINARY, 10, 4);
    int first = layers_of(plan, 0), length = 18 * LAYER_OPS + 2;
    op *ops = &plan->ops[first];
    const int left = plan->count - first;
    resident_chain c = resident_chain_of(ops, left, RESIDENT_FEW);
    assert_int_equal(c.steps, 4);
    assert_int_equal(c.floats, 3 * 1024);
    assert_int_equal(c.in_floats, 0);
    const float *gate = ops[2 * length + OUT].linear_residual.gate;
    ops[2 * length + OUT].linear_residual.gate = gate + 4;
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    ops[2 * length + OUT].linear_residual.gate = gate;
    /* A step further, and the one after it as far from the first as one step: no even distance. */
    move_step(ops + 2 * length, length, 3 * 1024);
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    move_step(ops + 2 * length, length, -3 * 1024);
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 4);
    for (int i = 0; i < 18; i++) ops[2 * length + i * LAYER_OPS + ATTENTION].cache_attention.scale *= 2;
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    for (int i = 0; i < 18; i++) ops[2 * length + i * LAYER_OPS + ATTENTION].cache_attention.scale /= 2;
    ops[3 * length - 2].velocity.dt *= 2;
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    ops[length - 2].velocity.weight.type = WEIGHT_INT8;
    c = resident_chain_of(ops, left, RESIDENT_FEW);
    assert_int_equal(c.steps, 1);
    assert_int_equal(c.velocity, 0);
    plan_close(plan);
    close_subject(&s);
    s = open_subject("full:pi0", NULL, OPENPI_BF16, 0);
    plan = open_plan(&s, PLAN_ORDINARY, 10, 5);
    first = layers_of(plan, 1);
    ops = &plan->ops[first];
    c = resident_chain_of(ops, plan->count - first, RESIDENT_FEW);
    assert_int_equal(c.steps, 4);
    assert_int_equal(c.floats, 0);
    assert_int_equal(c.in_floats, 1024);
    op_velocity *last = &ops[3 * length + length - 2].velocity;
    last->horizon--, last->rows.capacity--, last->x_offset++;  /* the first row moves no more               */
    assert_int_equal(resident_chain_of(ops, plan->count - first, RESIDENT_FEW).steps, 3);
    plan_close(plan);
    close_subject(&s);
}

/* A guide that pulls otherwise than the first one ends the launch before its step, as do rows whose time 0 is
 * not where it was. */
static void test_chunking_parameters(void **state) {
    const int length = 18 * LAYER_OPS + 3;         /* embedding, layers, velocity, guide                    */
    (void)state;
    subject s = open_subject("full:pi05", NULL, OPENPI_BF16, 0);
    plan *plan = open_plan(&s, PLAN_GUIDED, 10, 4);
    int first = layers_of(plan, 0);
    op *ops = &plan->ops[first];
    const int left = plan->count - first;
    op_guide *guide = &ops[2 * length + length - 2].guide, kept = *guide;
    resident_chain c = resident_chain_of(ops, left, RESIDENT_FEW);
    assert_int_equal(c.steps, 4);
    assert_true(c.guided);
    guide->t += 0.01f;
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    *guide = kept, guide->gain++;
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    *guide = kept, guide->target = kept.gain;
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    *guide = kept, guide->weight = kept.gain;
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    *guide = kept, guide->velocity = kept.gain;
    assert_int_equal(resident_chain_of(ops, left, RESIDENT_FEW).steps, 2);
    *guide = kept;
    /* Where the list ends before the last guide, the launch ends before that guide's step. */
    assert_int_equal(resident_chain_of(ops, left - 1, RESIDENT_FEW).steps, 3);
    plan_close(plan);
    plan = open_plan(&s, PLAN_TRAINED, 10, 4);
    first = layers_of(plan, 0);
    ops = &plan->ops[first];
    assert_int_equal(resident_chain_of(ops, plan->count - first, RESIDENT_FEW).steps, 4);
    for (int i = 0; i < length - 2; i++) {         /* one op fewer than with a guide                        */
        const row_set *rows = op_rows(&ops[2 * (length - 1) + i]);
        ((row_set *)(uintptr_t)rows)->known_at += 4;
    }
    assert_int_equal(resident_chain_of(ops, plan->count - first, RESIDENT_FEW).steps, 2);
    plan_close(plan);
    close_subject(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_launch),
        cmocka_unit_test(test_long_horizons),
        cmocka_unit_test(test_samples),
        cmocka_unit_test(test_chunking),
        cmocka_unit_test(test_a_launch_a_step),
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_chunking_parameters),
    };
    return cmocka_run_group_tests_name("resident steps", tests, NULL, NULL);
}
