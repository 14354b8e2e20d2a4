/* labels: long isa wrap=plan_linear_residual no_asan */
/* Every switch, off alone and all off together: the plan, its rows or its weights really change, and the
 * actions stay those of the whole within the ladder's bounds, whatever the masks, the prompts and the
 * batch. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/measure/ladder.h"
#include "lab/measure/rounding.h"
#include "openpi_internal.h"
#include "verify_rows.h"

enum {
    STEPS = 3,
    HORIZON = 10,
    PROMPT = 12,
    BATCH = 2,
    PICTURE = 224 * 224 * 3,
    ACTIONS = BATCH * HORIZON * OPENPI_ACTION_DIM
};
static const uint32_t ALL_OFF = (1u << SWITCHES) - 1;

typedef struct opened {
    openpi_engine *engine;
    openpi_session *session;
} opened;

static openpi_error error = OPENPI_ERROR_INIT;

static void must(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s", error.message);
}

static opened open_with(const char *spec, openpi_dtype dtype, uint32_t off) {
    opened o;
    char names[400];
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    openpi_session_options session = OPENPI_SESSION_OPTIONS_INIT;
    switches_write(off, names, sizeof names);
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    options.synthetic = &synthetic;
    options.dtype = dtype;
    options.without = names;
    options.threads = 2;
    session.steps = STEPS;
    session.horizon = HORIZON;
    session.max_prompt = PROMPT;
    session.batch = BATCH;
    must(openpi_engine_open(NULL, &options, &o.engine, &error));
    must(openpi_session_create(o.engine, &session, &o.session, &error));
    return o;
}

static void close_all(opened o) {
    openpi_session_close(o.session);
    openpi_engine_close(o.engine);
}

/* ---- what a plan is made of ----------------------------------------------------------------------- */

static int count(const plan *p, op_kind kind) {
    int n = 0;
    for (int i = 0; i < p->count; i++) n += p->ops[i].kind == kind;
    return n;
}

static int count_form(const plan *p, matrix_form form) {
    int n = 0;
    for (int i = 0; i < p->count; i++) {
        matrix *list[OP_MATRICES];
        op copy = p->ops[i];
        for (int j = op_matrices(&copy, list) - 1; j >= 0; j--) n += list[j]->form == form;
    }
    return n;
}

static int count_raw(const plan *p) {
    int n = 0;
    for (int i = 0; i < p->count; i++) {
        matrix *list[OP_MATRICES];
        op copy = p->ops[i];
        for (int j = op_matrices(&copy, list) - 1; j >= 0; j--) n += list[j]->raw;
    }
    return n;
}

/* Work that a product does besides the product. */
static int count_fused(const plan *p) {
    int n = count(p, OP_LINEAR_RESIDUAL) + count(p, OP_NORM_QKV);
    for (int i = 0; i < p->count; i++) {
        const op_norm_linear *a = &p->ops[i].norm_linear;
        int plain = a->norm.kind == NORM_NONE && !a->bias &&
                    (a->activation == ACT_NONE || a->weight.form == MATRIX_GATED);
        if (p->ops[i].kind == OP_NORM_LINEAR && !p->ops[i].parameters) n += !plain;
        if (p->ops[i].kind == OP_VELOCITY) n += p->ops[i].velocity.norm.kind != NORM_NONE;
    }
    return n;
}

static int count_parameters(const plan *p) {
    int n = 0;
    for (int i = 0; i < p->count; i++) n += p->ops[i].parameters;
    return n;
}

static size_t work_bytes(const plan *p) {
    const device *device = p->model->device;
    return device->backend->work_bytes(device, p->ops, p->count);
}

/* What each switch is for, in a plan that has it off (`o`) and in the whole (`w`). */
static void looks_like(int which, const plan *o, const plan *w) {
    const openpi_dims *d = &w->model->dims;
    int passes = d->depth * (STEPS + 1), pi05 = w->model->variant == OPENPI_PI05;
    switch ((op_switch)which) {
    case SWITCH_BATCHED_VISION:
        assert_int_equal(count(w, OP_PATCH_EMBED), 1);
        assert_int_equal(count(o, OP_PATCH_EMBED), OPENPI_CAMERAS);
        assert_int_equal(count(o, OP_IMAGE_ATTENTION), OPENPI_CAMERAS * d->vision_depth);
        break;
    case SWITCH_FUSED_QKV:
        assert_int_equal(count(w, OP_NORM_QKV), passes);
        assert_int_equal(count(o, OP_NORM_QKV), 0);
        assert_int_equal(count(o, OP_ROPE_CACHE), passes);
        /* the last prefix layer has no q */
        assert_int_equal(count(o, OP_NORM_LINEAR) - count(w, OP_NORM_LINEAR),
                         3 * passes - 1 + 2 * d->vision_depth);
        break;
    case SWITCH_FUSED_GATE_UP:
        assert_int_equal(count_form(w, MATRIX_GATED), passes - 1);
        assert_int_equal(count_form(o, MATRIX_GATED), 0);
        assert_int_equal(count(o, OP_ACTIVATE), passes - 1);
        break;
    case SWITCH_FUSED_POINTWISE:
        assert_true(count_fused(w) > 0);
        assert_int_equal(count_fused(o), 0);
        assert_int_equal(count(o, OP_ADD), 2 * (passes - 1 + d->vision_depth));
        assert_int_equal(count(o, OP_ROPE_CACHE), passes);
        break;
    case SWITCH_FOLDED_CONSTANTS:
        assert_int_equal(pi05, 0);
        assert_int_equal(w->setup_count, 1);
        assert_int_equal(o->setup_count, 0);
        assert_int_equal(count_parameters(o), STEPS);
        assert_int_equal(w->model->mlp_in.n, 0);
        assert_int_equal(o->model->mlp_in.n, d->expert_width);
        break;
    case SWITCH_FUSED_ATTENTION:
        assert_int_equal(count(o, OP_IMAGE_ATTENTION) + count(o, OP_CACHE_ATTENTION), 0);
        assert_int_equal(count(o, OP_SOFTMAX), count(w, OP_IMAGE_ATTENTION) + count(w, OP_CACHE_ATTENTION));
        assert_int_equal(count(o, OP_SCORES), count(o, OP_VALUES));
        assert_true(o->device_bytes > w->device_bytes);
        break;
    case SWITCH_DEAD_WORK_REMOVAL:
        assert_int_equal(count(o, OP_CACHE_ATTENTION), count(w, OP_CACHE_ATTENTION) + 1);
        assert_true(o->model->bytes > w->model->bytes);
        break;
    case SWITCH_STATE_TOKEN_ONCE:
        assert_int_equal(count(w, OP_STATE_EMBED), 1);
        assert_int_equal(count(o, OP_STATE_EMBED), STEPS);
        break;
    case SWITCH_PRECOMPUTED_MODULATIONS:
        assert_int_equal(pi05, 1);
        assert_int_equal(o->setup_count, 0);
        assert_int_equal(count_parameters(o), STEPS * w->setup_count);
        assert_int_equal(w->setup_count, 2 * d->depth + 3);
        break;
    case SWITCH_PACKED_WEIGHTS:
        assert_int_equal(count_raw(w), 0);
        assert_int_equal(count_raw(o), count_form(o, MATRIX_PLAIN) + count_form(o, MATRIX_GATED) +
                                           count_form(o, MATRIX_QKV));
        assert_true(work_bytes(o) > work_bytes(w));
        break;
    case SWITCH_MASKED_CAMERAS_DROPPED:    /* the same plan over other rows: rows_of_absent_cameras */
    case SWITCH_GRAPH_REPLAY:
    case SWITCH_DEPENDENT_LAUNCH:
    case SWITCH_TUNED_TILES:
    case SWITCH_PERSISTENT_DENOISE:
    case SWITCH_PERSISTENT_VISION:
    case SWITCHES: break;
    }
}

static const workload two_cameras = {.batch = 1, .cameras = {1, 0, 1}, .prompt = 4};

/* Those without which the plan is another one; every_switch_changes_the_plan shows that the others' is the
 * same. All together: bit SWITCHES. */
static uint32_t that_apply(const char *spec) {
    uint32_t apply = 1u << SWITCHES;
    opened whole = open_with(spec, OPENPI_F32, 0);
    for (int which = 0; which < SWITCHES; which++)
        if (!*ladder_reason(whole.engine, &two_cameras, which)) apply |= 1u << which;
    close_all(whole);
    return apply;
}

static void every_switch_changes_the_plan(void **state) {
    (void)state;
    const char *const specs[] = {"odd:pi0", "odd:pi05"};
    for (int s = 0; s < 2; s++) {
        opened whole = open_with(specs[s], OPENPI_F32, 0);
        for (int which = 0; which < SWITCHES; which++) {
            const char *reason = ladder_reason(whole.engine, &two_cameras, which);
            opened o = open_with(specs[s], OPENPI_F32, 1u << which);
            const plan *a = o.session->plan, *b = whole.session->plan;
            if (*reason)                   /* then nothing does change */
                assert_true(a->count == b->count && a->device_bytes == b->device_bytes &&
                            a->model->bytes == b->model->bytes);
            else
                looks_like(which, a, b);
            close_all(o);
        }
        close_all(whole);
    }
}

static void reasons_are_given(void **state) {
    (void)state;
    opened pi0 = open_with("odd:pi0", OPENPI_F32, 0), pi05 = open_with("odd:pi05", OPENPI_F32, 0);
    workload all = two_cameras;
    all.cameras[1] = 1;
    assert_string_equal(ladder_reason(pi0.engine, &all, SWITCH_FUSED_QKV), "");
    assert_string_equal(ladder_reason(pi0.engine, &all, SWITCH_STATE_TOKEN_ONCE), "");
    assert_string_equal(ladder_reason(pi0.engine, &two_cameras, SWITCH_MASKED_CAMERAS_DROPPED), "");
    assert_string_not_equal(ladder_reason(pi0.engine, &all, SWITCH_MASKED_CAMERAS_DROPPED), "");
    assert_string_not_equal(ladder_reason(pi0.engine, &all, SWITCH_PRECOMPUTED_MODULATIONS), "");
    assert_string_not_equal(ladder_reason(pi05.engine, &all, SWITCH_STATE_TOKEN_ONCE), "");
    assert_string_not_equal(ladder_reason(pi05.engine, &all, SWITCH_FOLDED_CONSTANTS), "");
    assert_string_not_equal(ladder_reason(pi0.engine, &all, SWITCH_GRAPH_REPLAY), "");       /* a CPU */
    assert_string_not_equal(ladder_reason(pi0.engine, &all, SWITCH_PERSISTENT_DENOISE), "");
    assert_string_not_equal(ladder_reason(pi0.engine, &all, SWITCH_PERSISTENT_VISION), "");
    close_all(pi0);
    close_all(pi05);
}

/* ---- actions -------------------------------------------------------------------------------------- */

static uint8_t pictures[3][PICTURE];
static int32_t tokens[PROMPT];
static float robot[OPENPI_ACTION_DIM], noise[ACTIONS];

static int make_inputs(void **state) {
    (void)state;
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < PICTURE; i++) pictures[c][i] = (uint8_t)(i * 7 + i / 911 * (c + 3) + c * 31);
    for (int i = 0; i < PROMPT; i++) tokens[i] = i * 5 + 1;
    openpi_noise(3, 0, noise, ACTIONS);
    openpi_noise(3, 1, robot, OPENPI_ACTION_DIM);
    return 0;
}

typedef struct call {
    uint8_t masks[BATCH][OPENPI_CAMERAS];
    int prompts[BATCH], batch;
} call;

static const call calls[] = {
    {{{1, 1, 1}, {1, 1, 1}}, {PROMPT, 3}, 2},
    {{{0, 1, 0}, {1, 0, 1}}, {1, PROMPT}, 2},
    {{{0, 0, 0}, {1, 1, 0}}, {5, 0}, 2},
    {{{1, 0, 0}, {0}}, {7, 0}, 1},
};
enum { CALLS = sizeof calls / sizeof *calls };

static void run_call(opened o, const call *c, float *actions) {
    openpi_sample samples[BATCH];
    for (int b = 0; b < c->batch; b++) {
        samples[b] = (openpi_sample){.size = sizeof(openpi_sample), .tokens = tokens,
                                     .token_count = c->prompts[b], .state = robot};
        for (int i = 0; i < OPENPI_CAMERAS; i++) {
            samples[b].image_mask[i] = c->masks[b][i];
            samples[b].images[i] = c->masks[b][i] ? pictures[(i + b) % 3] : NULL;
        }
    }
    must(openpi_session_run(o.session, samples, c->batch, noise, actions, NULL, &error));
}

static void compare(const char *spec, openpi_dtype dtype, uint32_t off, const float *a, const float *b,
                    int batch) {
    char names[400];
    double most = 0, squares = 0;
    int n = batch * HORIZON * OPENPI_ACTION_DIM;
    for (int i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]);
        if (!(d <= most)) most = d;
        squares += d * d;
    }
    double rms = sqrt(squares / n);
    switches_write(off, names, sizeof names);
    openpi_synthetic model = OPENPI_SYNTHETIC_INIT;
    must(openpi_synthetic_parse(spec, &model, &error));
    rounding_bound bound = rounding_between(&model.dims, a, noise, (size_t)n);
    if (dtype == OPENPI_F32 ? most > 1e-4 : most > bound.max || rms > bound.rms)
        fail_msg("%s without %s: off by %.2e, rms %.2e", spec, names, most, rms);
    if (isnan(most)) fail_msg("%s without %s: NaN", spec, names);
}

/* Each switch that applies alone, and all of them, over calls that follow each other in one session. */
static void actions_stay(void **state) {
    (void)state;
    const char *const specs[] = {"odd:pi0", "odd:pi05"};
    static float expected[CALLS][ACTIONS], actions[ACTIONS];
    for (int s = 0; s < 2; s++) {
        uint32_t apply = that_apply(specs[s]);
        for (openpi_dtype dtype = OPENPI_BF16; dtype <= OPENPI_F32; dtype++) {
            opened whole = open_with(specs[s], dtype, 0);
            for (int i = 0; i < CALLS; i++) run_call(whole, &calls[i], expected[i]);
            close_all(whole);
            for (int which = 0; which <= SWITCHES; which++) {
                uint32_t off = which < SWITCHES ? 1u << which : ALL_OFF;
                if (!(apply >> which & 1)) continue;
                opened o = open_with(specs[s], dtype, off);
                for (int i = 0; i < CALLS; i++) {
                    run_call(o, &calls[i], actions);
                    compare(specs[s], dtype, off, expected[i], actions, calls[i].batch);
                }
                close_all(o);
            }
        }
    }
}

/* Switches that change the order of nothing but the work leave every bit. */
static void actions_stay_bit_by_bit(void **state) {
    (void)state;
    static const int exact[] = {SWITCH_BATCHED_VISION,    SWITCH_PRECOMPUTED_MODULATIONS,
                                SWITCH_DEAD_WORK_REMOVAL, SWITCH_MASKED_CAMERAS_DROPPED,
                                SWITCH_STATE_TOKEN_ONCE,  SWITCH_PACKED_WEIGHTS};
    static float expected[ACTIONS], actions[ACTIONS];
    opened whole = open_with("odd:pi0", OPENPI_BF16, 0);
    run_call(whole, &calls[1], expected);
    close_all(whole);
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
        opened o = open_with("odd:pi0", OPENPI_BF16, 1u << exact[i]);
        run_call(o, &calls[1], actions);
        assert_memory_equal(expected, actions, sizeof actions);
        close_all(o);
    }
}

static void absent_cameras_have_rows(void **state) {
    (void)state;
    static float actions[ACTIONS];
    opened dropped = open_with("odd:pi0", OPENPI_F32, 0),
           kept = open_with("odd:pi0", OPENPI_F32, 1u << SWITCH_MASKED_CAMERAS_DROPPED);
    run_call(dropped, &calls[1], actions);
    run_call(kept, &calls[1], actions);
    const call_tables *a = &dropped.session->in.tables, *b = &kept.session->in.tables;
    int tokens_in = calls[1].prompts[0] + calls[1].prompts[1];
    assert_int_equal(*a->vision.count, 3 * 256);
    assert_int_equal(*b->vision.count, 6 * 256);
    assert_int_equal(*a->prefix.count, 3 * 256 + tokens_in);
    assert_int_equal(*b->prefix.count, 6 * 256 + tokens_in);
    for (int r = 0; r < *b->prefix.count; r++) {
        int sample = b->prefix.sample[r],
            length = sample ? 512 + calls[1].prompts[1] : 256 + calls[1].prompts[0];
        assert_int_equal(b->prefix.keys[r], length);         /* nobody attends an absent camera */
        assert_true(b->prefix.position[r] < length || b->prefix.position[r] >= length + 1 + HORIZON);
        assert_true(b->prefix.position[r] < kept.session->plan->buffers.cache_capacity);
    }
    close_all(dropped);
    close_all(kept);
}

/* ---- goldens, observed step by step --------------------------------------------------------------- */

/* With everything off, bf16 rounds at more places than openpi does. With noise that differs by 3e-5 the
 * largest of the 512 differences of pi05_odd then lies between 0.6 and 1.2 of its bound, on every level, and
 * between 0.3 and 0.5 with everything on. So half as much again is allowed; the root mean square is judged as
 * ever. */
static int is_right(const verify_row *row, int all_off) {
    if (row->result == VERIFY_OK) return 1;
    return all_off && !strcmp(row->dtype, "bf16") && !strncmp(row->detail, "actions: element", 16) &&
           row->max <= 1.5 * row->bound_max && row->rms <= row->bound_rms;
}

static void goldens_pass(void **state) {
    (void)state;
    const char *const goldens[] = {"pi0_odd", "pi05_odd", "pi0_tiny_droid"};
    const uint32_t apply[] = {that_apply("odd:pi0"), that_apply("odd:pi05")};
    for (int g = 0; g < 3; g++)
        for (int which = 0; which <= SWITCHES; which++)
            for (int bf16 = 0; bf16 < (g == 2 ? 1 : 2); bf16++) {
                char path[256], names[400];
                verify_options options = VERIFY_OPTIONS_INIT;
                rows r = {0};
                if (!(apply[g == 1] >> which & 1)) continue;
                switches_write(which < SWITCHES ? 1u << which : ALL_OFF, names, sizeof names);
                snprintf(path, sizeof path, GOLDEN "/model/%s.safetensors", goldens[g]);
                options.without = names;
                options.dtype = bf16 ? OPENPI_BF16 : OPENPI_F32;
                must(verify_path(path, &options, rows_take, &r, &error));
                if (r.count != 1 || !is_right(&r.row[0], which == SWITCHES))
                    fail_msg("%s without %s: %s", goldens[g], names, r.row[0].detail);
            }
}

/* ---- the ladder ----------------------------------------------------------------------------------- */

/* An engine that is switched over is the engine that was opened so. */
static void switching_over_is_opening(void **state) {
    (void)state;
    static float expected[ACTIONS], actions[ACTIONS];
    uint32_t off = 1u << SWITCH_FUSED_ATTENTION | 1u << SWITCH_BATCHED_VISION | 1u << SWITCH_STATE_TOKEN_ONCE;
    opened fresh = open_with("odd:pi0", OPENPI_BF16, off), over = open_with("odd:pi0", OPENPI_BF16, 0);
    run_call(fresh, &calls[0], expected);
    assert_int_equal(engine_set_off(over.engine, off | 1u << SWITCH_FUSED_QKV), 0); /* packed otherwise */
    assert_int_equal(engine_set_off(over.engine, off), 1);
    openpi_session_options session = over.session->options;
    openpi_session_close(over.session);
    must(openpi_session_create(over.engine, &session, &over.session, &error));
    assert_int_equal(over.session->plan->count, fresh.session->plan->count);
    run_call(over, &calls[0], actions);
    assert_memory_equal(expected, actions, sizeof actions);
    close_all(fresh);
    close_all(over);
}

static void the_ladder_climbs(void **state) {
    (void)state;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    ladder_report r;
    ladder_job job = {.engine = OPENPI_ENGINE_OPTIONS_INIT,
                      .session = OPENPI_SESSION_OPTIONS_INIT,
                      .call = two_cameras,
                      .runs = 1};
    must(openpi_synthetic_parse("odd:pi0", &synthetic, &error));
    job.engine.synthetic = &synthetic;
    job.engine.without = "fused-gate-up";
    job.session.steps = 2;
    job.session.horizon = HORIZON;
    job.session.max_prompt = PROMPT;
    must(ladder_run(&job, &r, &error));
    assert_int_equal(r.climb_count, SWITCHES + 1);
    assert_int_equal(r.without_count, SWITCHES);
    assert_int_equal(r.failed, 0);
    assert_int_equal(r.climb[0].which, -1);
    assert_true(r.foot_ms == r.climb[0].p50_ms && r.top_ms > 0);
    assert_string_equal(r.info.without, "fused-gate-up");
    for (int i = 0; i < SWITCHES; i++) {
        const ladder_rung *up = &r.climb[i + 1], *out = &r.without[i];
        int applies = !up->reason[0];
        assert_int_equal(up->which, i);
        assert_int_equal(out->which, i);
        assert_string_equal(up->reason, out->reason);
        assert_int_equal(applies, i == SWITCH_BATCHED_VISION || i == SWITCH_FUSED_QKV ||
                                      i == SWITCH_FUSED_POINTWISE || i == SWITCH_FOLDED_CONSTANTS ||
                                      i == SWITCH_FUSED_ATTENTION || i == SWITCH_DEAD_WORK_REMOVAL ||
                                      i == SWITCH_STATE_TOKEN_ONCE || i == SWITCH_MASKED_CAMERAS_DROPPED ||
                                      i == SWITCH_PACKED_WEIGHTS);
        if (!applies) continue;
        assert_true(up->within && out->within && up->p50_ms > 0 && out->p50_ms > 0 && up->before_ms > 0);
        assert_true(up->operations > 0 && up->weight_bytes > 0 && up->session_bytes > 0);
    }
    assert_true(r.climb[0].operations > r.climb[SWITCHES - 1].operations);
    job.runs = 0;
    assert_int_equal(ladder_run(&job, &r, &error), OPENPI_BAD_ARGUMENT);
    job.runs = 1;
    job.engine.without = "nothing-such";
    assert_int_equal(ladder_run(&job, &r, &error), OPENPI_BAD_ARGUMENT);
    job.engine.without = NULL;
    job.call.prompt = PROMPT + 1;
    assert_int_equal(ladder_run(&job, &r, &error), OPENPI_BAD_ARGUMENT);
}

/* Stands in for the model's function: where pointwise work is apart, the bias of a residual product is
 * lost. */
static int lose_biases;
void __real_plan_linear_residual(sublayer at, op_linear_residual a);
void __wrap_plan_linear_residual(sublayer at, op_linear_residual a);
void __wrap_plan_linear_residual(sublayer at, op_linear_residual a) {
    if (lose_biases && !plan_on(at.plan, SWITCH_FUSED_POINTWISE)) a.bias = NULL;
    __real_plan_linear_residual(at, a);
}

/* Right switches are within the bounds; one whose spelling loses a bias is not, neither in fp32 nor in
 * bf16. */
static void the_ladder_finds_a_lost_bias(void **state) {
    (void)state;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    must(openpi_synthetic_parse("odd:pi0", &synthetic, &error));
    for (int lost = 0; lost < 2; lost++)
        for (openpi_dtype dtype = OPENPI_BF16; dtype <= OPENPI_F32; dtype++)
            for (synthetic.seed = 1; synthetic.seed < 4; synthetic.seed++) {
                ladder_report r;
                ladder_job job = {
                    .engine = OPENPI_ENGINE_OPTIONS_INIT, .session = OPENPI_SESSION_OPTIONS_INIT, .runs = 1};
                job.call = (workload){.batch = 1, .cameras = {1, 0, 0}, .prompt = 3, .seed = 1};
                job.engine.synthetic = &synthetic;
                job.engine.dtype = dtype;
                job.session.steps = 1;
                job.session.horizon = 2;
                lose_biases = lost;
                openpi_status status = ladder_run(&job, &r, &error);
                lose_biases = 0;
                must(status);
                const ladder_rung *rung = &r.without[SWITCH_FUSED_POINTWISE];
                if (rung->within == lost || (r.failed > 0) != lost)
                    fail_msg("seed %d, dtype %d, %s: rms %.2e of %.2e, max %.2e of %.2e, %d rungs beyond",
                             (int)synthetic.seed, (int)dtype, lost ? "a bias lost" : "right",
                             rung->deviation_rms, r.bound_rms, rung->deviation_max, r.bound_max, r.failed);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_switch_changes_the_plan),
                                       cmocka_unit_test(reasons_are_given),
                                       cmocka_unit_test(actions_stay),
                                       cmocka_unit_test(actions_stay_bit_by_bit),
                                       cmocka_unit_test(absent_cameras_have_rows),
                                       cmocka_unit_test(goldens_pass),
                                       cmocka_unit_test(switching_over_is_opening),
                                       cmocka_unit_test(the_ladder_climbs),
                                       cmocka_unit_test(the_ladder_finds_a_lost_bias)};
    return cmocka_run_group_tests(tests, make_inputs, NULL);
}
