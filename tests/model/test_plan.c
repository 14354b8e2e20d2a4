/* labels: isa_slow */
/* The plan as data: what the goldens see only faintly (a norm's epsilon) or not at all (work that was left
 * out). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "block_check.h"
#include "openpi_internal.h"
#include "tuning/tuning.h"

typedef struct opened {
    openpi_engine *engine;
    openpi_session *session;
} opened;

static opened open_plan(const char *spec, int steps, int state_every_step) {
    opened o;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
    assert_int_equal(openpi_synthetic_parse(spec, &synthetic, &error), OPENPI_OK);
    options.synthetic = &synthetic;
    session.steps = steps;
    session.horizon = 10;
    assert_int_equal(openpi_engine_open(NULL, &options, &o.engine, &error), OPENPI_OK);
    assert_int_equal(session_create(o.engine, &session, state_every_step, &o.session, &error), OPENPI_OK);
    return o;
}

static void close_plan(opened o) {
    openpi_session_close(o.session);
    openpi_engine_close(o.engine);
}

static const norm *norm_of(const op *op) {
    return op->kind == OP_NORM_LINEAR ? &op->norm_linear.norm : op->kind == OP_NORM_QKV ? &op->norm_qkv.norm
           : op->kind == OP_VELOCITY  ? &op->velocity.norm : NULL;
}

/* Every norm and scale of both variants, by the stage it stands in. */
static void constants_are_the_model_s(void **state) {
    (void)state;
    const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};
    for (int s = 0; s < 4; s++) {
        opened o = open_plan(specs[s], 3, 0);
        const plan *p = o.session->plan;
        for (int i = 0; i < p->count; i++) {
            const op *op = &p->ops[i];
            const norm *n = norm_of(op);
            if (n) {
                assert_true(n->eps == 1e-6f);
                assert_int_equal(n->kind, op->stage == OPENPI_STAGE_VISION ? NORM_LAYER : NORM_RMS);
                int adaptive = p->model->variant == OPENPI_PI05 && op->stage == OPENPI_STAGE_DENOISE;
                assert_int_equal(n->bias != NULL, op->stage == OPENPI_STAGE_VISION || adaptive);
            }
            if (op->kind == OP_IMAGE_ATTENTION) assert_true(op->image_attention.scale == 1 / sqrtf(72));
            if (op->kind == OP_CACHE_ATTENTION) assert_true(op->cache_attention.scale == 0.0625f);
            if (op->kind == OP_EMBED_TEXT)
                assert_true(op->embed_text.scale == (float)sqrt(p->model->dims.width));
            if (op->kind == OP_VELOCITY) assert_true(op->velocity.dt == (float)(-1.0 / 3));
            if (op->kind == OP_LINEAR_RESIDUAL && op->stage == OPENPI_STAGE_DENOISE)
                assert_int_equal(op->linear_residual.gate != NULL, p->model->variant == OPENPI_PI05);
        }
        close_plan(o);
    }
}

/* The x that an op norms before its product, and its rows; NULL: it norms none. */
static const void *normed_by(const op *op, const row_set **rows) {
    if (op->kind == OP_NORM_QKV) {
        *rows = &op->norm_qkv.rows;
        return op->norm_qkv.norm.kind ? op->norm_qkv.x : NULL;
    }
    *rows = &op->norm_linear.rows;
    return op->kind == OP_NORM_LINEAR && op->norm_linear.norm.kind ? op->norm_linear.x : NULL;
}

/* Devices compute a residual and the product that norms it at once where the plan says so: it says so of all
 * that are, and of no other. */
static void residuals_tell_what_norms_them(void **state) {
    (void)state;
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05"};
    for (size_t s = 0; s < 2; s++) {
        opened o = open_plan(specs[s], 3, 0);
        const plan *p = o.session->plan;
        int told = 0;
        for (int i = 0; i + 1 < p->count; i++) {
            const op_linear_residual *a = &p->ops[i].linear_residual;
            if (p->ops[i].kind != OP_LINEAR_RESIDUAL) continue;
            const row_set *rows;
            const void *x = normed_by(&p->ops[i + 1], &rows);
            int same = x == a->x && rows->count == a->rows.count && rows->capacity == a->rows.capacity;
            assert_int_equal(a->normed_next, x && same);
            told += a->normed_next;
        }
        /* Vision: both of a layer. Prefix: of the last layer none is there. Expert: all but a step's last. */
        const openpi_dims *dims = &p->model->dims;
        assert_int_equal(told, 2 * dims->vision_depth + (2 + 3 * 2) * (dims->depth - 1) + 3);
        close_plan(o);
    }
}

static int count_ops(const plan *p, openpi_stage stage, op_kind kind) {
    int count = 0;
    for (int i = 0; i < p->count; i++) count += p->ops[i].stage == stage && p->ops[i].kind == kind;
    return count;
}

/* Rows that the expert runs over in a step. */
static int expert_rows(const plan *p, int step) {
    for (int i = 0; i < p->count; i++)
        if (p->ops[i].kind == OP_NORM_QKV && p->ops[i].step == step) return p->ops[i].norm_qkv.rows.capacity;
    return 0;
}

/* The exact savings: the last prefix layer stops at K and V, π0's state token is among the rows of the first
 * step alone. */
static void dead_work_is_left_out(void **state) {
    (void)state;
    opened o = open_plan("tiny:pi0", 4, 0);
    const plan *p = o.session->plan;
    int depth = p->model->dims.depth;
    assert_int_equal(count_ops(p, OPENPI_STAGE_PREFIX, OP_NORM_QKV), depth);
    assert_int_equal(count_ops(p, OPENPI_STAGE_PREFIX, OP_CACHE_ATTENTION), depth - 1);
    assert_int_equal(count_ops(p, OPENPI_STAGE_PREFIX, OP_LINEAR_RESIDUAL), 2 * (depth - 1));
    assert_int_equal(p->model->prefix[depth - 1].qkv.n, 2 * p->model->dims.head_dim);
    assert_int_equal(count_ops(p, OPENPI_STAGE_DENOISE, OP_STATE_EMBED), 1);
    assert_int_equal(count_ops(p, OPENPI_STAGE_DENOISE, OP_NORM_QKV), 4 * depth);
    assert_int_equal(expert_rows(p, 0), 11);
    assert_int_equal(expert_rows(p, 1), 10);
    close_plan(o);
    o = open_plan("tiny:pi0", 4, 1);
    assert_int_equal(count_ops(o.session->plan, OPENPI_STAGE_DENOISE, OP_STATE_EMBED), 4);
    assert_int_equal(expert_rows(o.session->plan, 1), 11);
    close_plan(o);
}

/* Work of the published workload: 788 prefix rows, 11 suffix rows, full size; sizes need no weights. */
static void costs_add_up(void **state) {
    (void)state;
    op linear = {.kind = OP_NORM_LINEAR, .type = DTYPE_BF16};
    linear.norm_linear.weight = (matrix){.n = 32768, .k = 2048, .type = WEIGHT_BF16, .form = MATRIX_GATED};
    op_cost cost = op_get_cost(&linear, 788, 0);
    assert_true(cost.flops == 2.0 * 788 * 32768 * 2048);
    assert_true(cost.weight_bytes == 2.0 * 32768 * 2048);
    assert_true(cost.bytes == cost.weight_bytes + 788.0 * 2 * (2048 + 16384));
    op attention = {.kind = OP_CACHE_ATTENTION, .type = DTYPE_BF16};
    attention.cache_attention.heads = 8;
    attention.cache_attention.cache.head_dim = 256;
    assert_true(op_get_cost(&attention, 10, 799).flops == 4.0 * 10 * 8 * 256 * 799);
    /* Its parts: the same multiplications, and scores that are written once, read and written, read once. */
    op scores = {.kind = OP_SCORES, .type = DTYPE_BF16}, softmax = {.kind = OP_SOFTMAX, .type = DTYPE_BF16},
       values = {.kind = OP_VALUES, .type = DTYPE_BF16};
    scores.scores.heads = softmax.softmax.heads = values.values.heads = 8;
    scores.scores.head_dim = values.values.head_dim = 256;
    assert_true(op_get_cost(&scores, 10, 799).flops + op_get_cost(&values, 10, 799).flops ==
                op_get_cost(&attention, 10, 799).flops);
    double apart = op_get_cost(&scores, 10, 799).bytes + op_get_cost(&softmax, 10, 799).bytes +
                   op_get_cost(&values, 10, 799).bytes;
    assert_true(apart == op_get_cost(&attention, 10, 799).bytes + 4.0 * sizeof(float) * 10 * 8 * 799);
    op add = {.kind = OP_ADD, .type = DTYPE_BF16, .add = {.n = 1024}},
       norm = {.kind = OP_NORM, .type = DTYPE_F32, .norm = {.n = 1024}};
    assert_true(op_get_cost(&add, 10, 0).bytes == 10.0 * 1024 * 2 * 3 &&
                op_get_cost(&add, 10, 0).flops == 10.0 * 1024);
    assert_true(op_get_cost(&norm, 10, 0).bytes == 10.0 * 1024 * 4 * 2 &&
                op_get_cost(&norm, 10, 0).weight_bytes == 0);
    assert_string_equal(op_kind_name(OP_NORM_QKV), "norm_qkv");
    assert_string_equal(op_kind_name(OP_ROPE_CACHE), "rope_cache");
}

/* The ordinary plan, in numbers: with every switch on nothing but the fused operations is in it. */
static void the_whole_plan_is_fused(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int ops, setup;
    } plans[] = {{"tiny:pi0", 93, 1}, {"tiny:pi05", 92, 9}, {"odd:pi0", 73, 1}, {"odd:pi05", 72, 7}};
    for (int s = 0; s < 4; s++) {
        opened o = open_plan(plans[s].spec, 4, 0);
        const plan *p = o.session->plan;
        assert_int_equal(p->count, plans[s].ops);
        assert_int_equal(p->setup_count, plans[s].setup);
        for (int i = 0; i < p->count; i++) {
            matrix *list[OP_MATRICES];
            op copy = p->ops[i];
            assert_true(copy.kind <= OP_VELOCITY && !copy.parameters);
            for (int j = op_matrices(&copy, list) - 1; j >= 0; j--) assert_int_equal(list[j]->raw, 0);
        }
        assert_null(p->buffers.normed);
        assert_null(p->buffers.sums);
        assert_null(p->buffers.scores);
        close_plan(o);
    }
}

static void times_are_openpi_s_or_lerobot_s(void **state) {
    (void)state;
    const float openpi[10] = {1.0f,
                              0.8999999761581421f,
                              0.7999999523162842f,
                              0.6999999284744263f,
                              0.5999999046325684f,
                              0.49999991059303284f,
                              0.3999999165534973f,
                              0.2999999225139618f,
                              0.19999992847442627f,
                              0.09999992698431015f};
    const float lerobot[10] = {
        1.0f, 0.8999999761581421f, 0.800000011920929f,   0.699999988079071f,   0.6000000238418579f,
        0.5f, 0.4000000059604645f, 0.30000001192092896f, 0.20000000298023224f, 0.10000000149011612f};
    const int at[] = {0, 1, 2, 511, 512, 513, 1023};
    const float one[] = {-1.607e-13f, -0.78321898f, 0.87174052f, 1.0f, 1.0f, -0.62174594f, 6.1232e-17f};
    const float nine[] = {-3.7450704e-05f, -0.13228215f, -0.010427628f, 0.98768836f, 1.0f,
                          0.99121213f,     0.15643451f};
    float temb[1024];
    opened o = open_plan("tiny:pi0", 10, 0);
    assert_memory_equal(o.session->plan->times, openpi, sizeof openpi);
    o.engine->checkpoint->lerobot = 1;
    schedule_times(o.session->plan);
    assert_memory_equal(o.session->plan->times, lerobot, sizeof lerobot);
    close_plan(o);
    schedule_temb(1.0f, 1024, temb);
    for (int i = 0; i < 7; i++)
        assert_true(fabsf(temb[at[i]] - one[i]) <= 1e-7f * fmaxf(1e-3f, fabsf(one[i])));
    schedule_temb(0.9f, 1024, temb);
    for (int i = 0; i < 7; i++)
        assert_true(fabsf(temb[at[i]] - nine[i]) <= 1e-7f * fmaxf(1e-3f, fabsf(nine[i])));
}

/* The rows of an op of the expert. */
static const row_set *rows_of(const op *op) {
    switch (op->kind) {
    case OP_NORM_QKV: return &op->norm_qkv.rows;
    case OP_CACHE_ATTENTION: return &op->cache_attention.rows;
    case OP_LINEAR_RESIDUAL: return &op->linear_residual.rows;
    case OP_NORM_LINEAR: return &op->norm_linear.rows;
    case OP_VELOCITY: return &op->velocity.rows;
    default: return NULL;
    }
}

/* Of an op with a modulation: that of the step, and that of rows at time 0, after the last step's. */
static void check_modulation(const plan *p, const op *op) {
    const row_set *rows = rows_of(op);
    size_t width = (size_t)p->model->dims.expert_width, columns = (size_t)plan_columns(p);
    const norm *n = norm_of(op);
    const float *at = n                                ? n->weight
                      : op->kind == OP_LINEAR_RESIDUAL ? op->linear_residual.gate
                                                       : NULL;
    assert_ptr_equal(rows->known, p->buffers.in.tables.known);
    if (!at) return;
    size_t from = (size_t)(at - p->buffers.modulation) / width, to = from + (size_t)rows->known_at / width;
    assert_int_equal((size_t)rows->known_at % width, 0);
    assert_int_equal(from / 3 % columns, op->step);
    assert_int_equal(to / 3 % columns, plan_known_column(p));
    assert_true(from / 3 / columns == to / 3 / columns && from % 3 == to % 3);
}

/* The plans of real-time chunking are the ordinary one, over the same buffers, by the same kernels: with
 * guidance after each step, where samples may be guided, or with rows that may be known. In a batch, whose
 * samples may be in any of the plans, all plans have rows that may be known. */
static void chunking_adds_to_the_ordinary_plan(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int max_delay, batch;
        plan_kind kind;
    } cases[] = {{"odd:pi0", 0, 1, PLAN_GUIDED},
                 {"odd:pi05", 4, 1, PLAN_GUIDED},
                 {"odd:pi05", 4, 1, PLAN_TRAINED},
                 {"odd:pi05", 4, 2, PLAN_GUIDED},
                 {"odd:pi05", 4, 2, PLAN_TRAINED}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        opened without = open_plan(cases[c].spec, 3, 0), o;
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
        openpi_error error = OPENPI_ERROR_INIT;
        int trained = cases[c].kind == PLAN_TRAINED, several = cases[c].max_delay && cases[c].batch > 1;
        int at = 0, guides = 0;
        assert_int_equal(openpi_synthetic_parse(cases[c].spec, &synthetic, &error), OPENPI_OK);
        synthetic.rtc_max_delay = cases[c].max_delay;
        options.synthetic = &synthetic;
        session.batch = cases[c].batch;
        session.steps = 3;
        session.horizon = 10;
        session.rtc = 1;
        assert_int_equal(openpi_engine_open(NULL, &options, &o.engine, &error), OPENPI_OK);
        assert_int_equal(openpi_session_create(o.engine, &session, &o.session, &error), OPENPI_OK);
        const plan *p = o.session->plan, *q = o.session->more_plans[cases[c].kind];
        assert_int_equal(p->count, without.session->plan->count);
        assert_true(!o.session->more_plans[PLAN_TRAINED] == !cases[c].max_delay);
        assert_ptr_equal(p->buffers.in.x_t, q->buffers.in.x_t);
        assert_ptr_equal(p->buffers.cache_v, q->buffers.cache_v);
        assert_ptr_equal(p->buffers.suffix_h, q->buffers.suffix_h);
        for (int i = 0; i < q->count; i++) {
            const op *op = &q->ops[i], *same = &p->ops[at];
            if (op->kind == OP_GUIDE) {
                assert_true(op[-1].kind == OP_VELOCITY && op->step == guides++);
                continue;
            }
            assert_true(at++ < p->count && op->kind == same->kind && op->step == same->step);
            assert_true(op->layer == same->layer && op->choice == same->choice);
            if (!rows_of(op)) continue;
            assert_ptr_equal(rows_of(op)->count, rows_of(same)->count);
            if (several && op->stage == OPENPI_STAGE_DENOISE) check_modulation(p, same);
            else assert_null(rows_of(same)->known);
            if ((several || trained) && op->stage == OPENPI_STAGE_DENOISE) check_modulation(q, op);
            else assert_null(rows_of(op)->known);
        }
        assert_int_equal(at, p->count);
        assert_int_equal(guides, trained && cases[c].batch == 1 ? 0 : 3);
        close_plan(o);
        close_plan(without);
    }
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/* A session with these switches off; its actions may be guided, and known where max_delay is not 0. */
static opened open_blocks(const openpi_synthetic *synthetic, uint32_t off, int batch, int horizon, int steps,
                          int state_every_step, int rtc) {
    opened o;
    char names[400];
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    switches_write(off, names, sizeof names);
    options.synthetic = synthetic;
    options.without = names;
    session.batch = batch;
    session.horizon = horizon;
    session.steps = steps;
    session.max_prompt = 12;
    session.rtc = rtc;
    assert_int_equal(openpi_engine_open(NULL, &options, &o.engine, &error), OPENPI_OK);
    assert_int_equal(session_create(o.engine, &session, state_every_step, &o.session, &error), OPENPI_OK);
    return o;
}

static int blocks_of_kind(const plan *p, block_kind kind, int *steps) {
    int count = 0;
    *steps = 0;
    for (int i = 0; i < p->block_count; i++)
        if (p->blocks[i].kind == kind) count++, *steps += p->blocks[i].steps;
    return count;
}

/* How many blocks of each kind a plan has, expert's for so many steps in all. */
static void expect_blocks(const plan *p, int vision, int prefix, int expert, int steps) {
    int found = 0;
    assert_int_equal(block_check_plan(p), vision + prefix + expert);
    assert_int_equal(blocks_of_kind(p, BLOCK_VISION_LAYERS, &found), vision);
    assert_int_equal(blocks_of_kind(p, BLOCK_PREFIX_LAYERS, &found), prefix);
    assert_int_equal(blocks_of_kind(p, BLOCK_EXPERT_STEPS, &found), expert);
    assert_int_equal(found, steps);
}

/* With nothing switched off: a tower, the prefix, and one run of steps, but that π0's first one has its state
 * token as well. The same for every batch, horizon and number of steps, and with real-time chunking. */
static void blocks_of_every_plan(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};
    static const struct { int batch, horizon, steps, rtc; } shapes[] = {
        {1, 10, 10, 1}, {1, 10, 1, 0}, {1, 1, 2, 1}, {2, 10, 3, 1}, {4, 5, 4, 1}, {3, 50, 2, 0}};
    (void)state;
    for (int s = 0; s < 4; s++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
            openpi_error error = OPENPI_ERROR_INIT;
            const int pi05 = s % 2, steps = shapes[i].steps, runs = pi05 || steps == 1 ? 1 : 2;
            assert_int_equal(openpi_synthetic_parse(specs[s], &synthetic, &error), OPENPI_OK);
            synthetic.rtc_max_delay = pi05 ? 4 : 0;
            const int batch = shapes[i].batch, horizon = shapes[i].horizon, rtc = shapes[i].rtc;
            opened o = open_blocks(&synthetic, 0, batch, horizon, steps, 0, rtc);
            expect_blocks(o.session->plan, 1, 1, runs, steps);
            for (int kind = 0; kind < PLAN_KINDS; kind++) {
                const plan *p = o.session->more_plans[kind];
                if (!p) continue;
                expect_blocks(p, 1, 1, runs, steps);
                assert_int_equal(p->blocks[p->block_count - 1].guided, plan_guides(p));
            }
            close_plan(o);
            if (pi05) continue;
            o = open_blocks(&synthetic, 0, batch, horizon, steps, 1, rtc);
            expect_blocks(o.session->plan, 1, 1, steps, steps);    /* the state token is in every step     */
            close_plan(o);
        }
}

/* Steps that are run by themselves: their operations, and their part of the blocks. */
static void steps_are_cut_out(void **state) {
    enum { STEPS = 4 };
    static const char *const specs[] = {"tiny:pi0", "odd:pi05"};
    op_block cut[OPENPI_MAX_STEPS];
    (void)state;
    for (int s = 0; s < 4; s++) {
        opened o = open_plan(specs[s % 2], STEPS, s / 2);
        plan *p = NULL;
        openpi_error error = OPENPI_ERROR_INIT;
        assert_int_equal(plan_create(o.engine->model, &o.session->plan->shape, PLAN_DENOISE, &p, &error),
                         OPENPI_OK);
        for (int from = 0; from < STEPS; from++)
            for (int to = from + 1; to <= STEPS; to++) {
                const op_list list = plan_steps(p, from, to, cut);
                plan part = *p;
                part.ops = p->ops + (list.ops - p->ops);
                part.count = list.count;
                part.blocks = cut;
                part.block_count = list.block_count;
                for (int i = 0; i < list.count; i++) assert_in_range(list.ops[i].step, from, to - 1);
                assert_true(list.ops == p->ops || list.ops[-1].step == from - 1);
                assert_true(list.ops + list.count == p->ops + p->count || list.ops[list.count].step == to);
                int runs = block_check_plan(&part), found;
                assert_int_equal(blocks_of_kind(&part, BLOCK_EXPERT_STEPS, &found), runs);
                assert_int_equal(found, to - from);
                for (int i = 0; i < runs; i++)
                    assert_int_equal(cut[i].ops->step, i ? cut[i - 1].ops->step + cut[i - 1].steps : from);
            }
        plan_close(p);
        close_plan(o);
    }
}

/* In a session of three samples the prefix of one has the operations, rows and choices of a session of one;
 * only its K and V are further apart. */
static void a_prefix_of_one(void **state) {
    static const char *const specs[] = {"tiny:pi0", "odd:pi05"};
    (void)state;
    for (int s = 0; s < 2; s++) {
        opened o = open_plan(specs[s], 2, 0);
        openpi_error error = OPENPI_ERROR_INIT;
        plan_shape shape = o.session->plan->shape;
        plan *alone, *among;
        assert_int_equal(plan_create(o.engine->model, &shape, PLAN_PREFIX, &alone, &error), OPENPI_OK);
        shape.batch = 3;
        assert_int_equal(plan_create(o.engine->model, &shape, PLAN_PREFIX_ONE, &among, &error), OPENPI_OK);
        assert_int_equal(among->count, alone->count);
        for (int i = 0; i < alone->count; i++) {
            const tuning_key one = tuning_key_of(&alone->ops[i]), other = tuning_key_of(&among->ops[i]);
            assert_true(tuning_same(&one, &other));
        }
        assert_int_equal(among->block_count, alone->block_count);
        for (int i = 0; i < alone->block_count; i++) {
            assert_int_equal(among->blocks[i].samples, alone->blocks[i].samples);
            assert_int_equal(among->blocks[i].rows, alone->blocks[i].rows);
            assert_int_equal(among->blocks[i].cache_bytes, 3 * alone->blocks[i].cache_bytes);
        }
        plan_close(alone);
        plan_close(among);
        close_plan(o);
    }
}

/* What each switch leaves of the blocks, for π0 and π0.5 in three steps: layers that are taken apart are in
 * none, and what is computed between steps makes each a block of its own. */
static void blocks_without_a_switch(void **state) {
    enum { STEPS = 3 };
    static const struct {
        uint32_t off;
        int vision, prefix, expert[2];
    } cases[] = {
        {1u << SWITCH_BATCHED_VISION, 3, 1, {2, 1}},
        {1u << SWITCH_FUSED_QKV, 0, 0, {0, 0}},
        {1u << SWITCH_FUSED_GATE_UP, 1, 0, {0, 0}},
        {1u << SWITCH_FUSED_POINTWISE, 0, 0, {0, 0}},
        {1u << SWITCH_FUSED_ATTENTION, 0, 0, {0, 0}},
        {1u << SWITCH_FOLDED_CONSTANTS, 1, 1, {STEPS, 1}},
        {1u << SWITCH_DEAD_WORK_REMOVAL, 1, 1, {2, 1}},
        {1u << SWITCH_STATE_TOKEN_ONCE, 1, 1, {STEPS, 1}},
        {1u << SWITCH_PRECOMPUTED_MODULATIONS, 1, 1, {2, STEPS}},
        {1u << SWITCH_PACKED_WEIGHTS, 1, 1, {2, 1}},
        {(1u << SWITCHES) - 1, 0, 0, {0, 0}},
    };
    static const char *const specs[2] = {"tiny:pi0", "odd:pi05"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int pi05 = 0; pi05 < 2; pi05++) {
            openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
            openpi_error error = OPENPI_ERROR_INIT;
            const int expert = cases[i].expert[pi05], steps = expert ? STEPS : 0;
            assert_int_equal(openpi_synthetic_parse(specs[pi05], &synthetic, &error), OPENPI_OK);
            synthetic.rtc_max_delay = pi05 ? 4 : 0;
            opened o = open_blocks(&synthetic, cases[i].off, 2, 6, STEPS, 0, 1);
            expect_blocks(o.session->plan, cases[i].vision, cases[i].prefix, expert, steps);
            for (int kind = 0; kind < PLAN_KINDS; kind++) {
                const plan *p = o.session->more_plans[kind];
                if (p) expect_blocks(p, cases[i].vision, cases[i].prefix, expert, steps);
            }
            close_plan(o);
        }
}

/* A language stack of one layer has no whole one, where that layer stops at K and V. */
static void blocks_of_one_layer(void **state) {
    static const char dims[] = "{\"vision\":[72,1,1,24],\"vlm\":[24,1,8,256,40],\"expert\":[24,40],"
                               "\"vocab\":2048}";
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    (void)state;
    assert_int_equal(openpi_dims_parse(dims, &synthetic.dims, &error), OPENPI_OK);
    opened o = open_blocks(&synthetic, 0, 1, 10, 3, 0, 0);
    expect_blocks(o.session->plan, 1, 0, 2, 3);
    close_plan(o);
    o = open_blocks(&synthetic, 1u << SWITCH_DEAD_WORK_REMOVAL, 1, 10, 3, 0, 0);
    expect_blocks(o.session->plan, 1, 1, 2, 3);
    close_plan(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_every_plan),
        cmocka_unit_test(steps_are_cut_out),
        cmocka_unit_test(a_prefix_of_one),
        cmocka_unit_test(blocks_without_a_switch),
        cmocka_unit_test(blocks_of_one_layer),
        cmocka_unit_test(chunking_adds_to_the_ordinary_plan),
        cmocka_unit_test(constants_are_the_model_s), cmocka_unit_test(residuals_tell_what_norms_them),
 cmocka_unit_test(dead_work_is_left_out),
        cmocka_unit_test(costs_add_up), cmocka_unit_test(the_whole_plan_is_fused),
        cmocka_unit_test(times_are_openpi_s_or_lerobot_s)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
