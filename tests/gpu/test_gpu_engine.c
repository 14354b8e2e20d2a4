/* labels: skips */
/* The whole engine on the GPU: one answer however it runs, and that of the definition.
 * Without a GPU every test is counted and skipped, with the reason. */
#include <math.h>

#include "gpu_engine.h"
#include "timed_steps.h"
#include "relative.h"
#include "resident.h"

static void watch(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows,
                  int columns) {
    (void)tensor, (void)sample, (void)index, (void)data, (void)rows, (void)columns;
    ++*(int *)user;
}

static double largest_difference(const float *a, const float *b, size_t count) {
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double d = (double)a[i] - (double)b[i];
        if (d < 0) d = -d;
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

/* As a graph, launched op by op, and op by op with a wait after each: bit for bit the same, run after run. A
 * resident kernel computes many ops and adds in another order, so with it the ops are not run one by one. */
static void ways_agree(openpi_engine *engine, int resident, const char *what, int rounds, int batch,
                       int horizon) {
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    static float first[BATCH * HORIZON * OPENPI_ACTION_DIM], again[BATCH * HORIZON * OPENPI_ACTION_DIM];
    static const char *const kinds[] = {"graph", "launches", "one by one"};
    inputs *in = calloc(1, sizeof *in);
    int bad = 0, seen = 0;
    const int had = has_resident(engine), had_vision = has_switch(engine, SWITCH_PERSISTENT_VISION);
    set_resident(engine, had && resident);
    set_switch(engine, SWITCH_PERSISTENT_VISION, had_vision && resident);
    in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
    options.batch = batch;
    options.horizon = horizon;
    options.max_prompt = PROMPT;
    must(openpi_session_create(engine, &options, &session, &error));
    if (!session->kinds.recordings[CALL_ANY])
        print_message("%s: no graph: %s\n", what, session->kinds.no_recording);
    for (int round = 0; round < rounds; round++) {
        struct recording *recording = session->kinds.recordings[CALL_ANY];
        size_t count = (size_t)(batch * horizon * OPENPI_ACTION_DIM);
        draw(in);
        if (!resident) openpi_session_observe(session, watch, &seen);
        must(openpi_session_run(session, in->samples, batch, in->noise, first, NULL, &error));
        openpi_session_observe(session, NULL, NULL);
        for (int way = 0; way < 2; way++) {
            session->kinds.recordings[CALL_ANY] = way ? NULL : recording;
            for (int repeat = 0; repeat < 3; repeat++) {
                must(openpi_session_run(session, in->samples, batch, in->noise, again, NULL, &error));
                if (!memcmp(first, again, count * sizeof *first)) continue;
                if (bad++ < 10)
                    print_message("%s, round %d: %s differs from %s by %.3g\n", what, round, kinds[way],
                                  kinds[resident ? 0 : 2], largest_difference(first, again, count));
            }
        }
        session->kinds.recordings[CALL_ANY] = recording;
    }
    openpi_session_close(session);
    set_resident(engine, had);
    set_switch(engine, SWITCH_PERSISTENT_VISION, had_vision);
    free(in->images);
    free(in);
    print_message("%s%s: %d of %d runs differ\n", what, resident ? ", resident" : "", bad, rounds * 6);
    assert_int_equal(bad, 0);
}

static void test_ways(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};
    (void)state;
    for (int i = 0; i < 4; i++)
        for (int d = OPENPI_BF16; d <= OPENPI_F32; d++) {
            openpi_engine *engine;
            char what[80];
            if (!open_engine(specs[i], (openpi_dtype)d, &engine)) skip();
            for (int batch = 1; batch <= BATCH; batch += BATCH - 1)
                for (int horizon = 10; horizon <= HORIZON; horizon += HORIZON - 10) {
                    snprintf(what, sizeof what, "%s %s batch %d horizon %d", specs[i],
                             d == OPENPI_F32 ? "f32" : "bf16", batch, horizon);
                    for (int resident = 0; resident <= has_resident(engine); resident++)
                        ways_agree(engine, resident, what, 3, batch, horizon);
                }
            openpi_engine_close(engine);
        }
}

static void test_ways_full(void **state) {
    openpi_engine *engine;
    (void)state;
    if (!open_engine("full:pi0", OPENPI_BF16, &engine)) skip();
    for (int resident = 0; resident <= has_resident(engine); resident++)
        ways_agree(engine, resident, "full:pi0 bf16 batch 1", 5, 1, 10);
    /* residuals and the products after them are taken together */
    ways_agree(engine, 0, "full:pi0 bf16 batch 1 horizon 50", 2, 1, HORIZON);
    openpi_engine_close(engine);
}

/* Gives every op that medium_hopper runs its kernel, with the norm inside. Returns how many have it. */
static int choose_medium(openpi_session *session) {
    static const char *const wanted[] = {"medium_hopper_qkv", "medium_hopper_residual",
                                         "medium_hopper_gated"};
    static candidate list[GPU_CHOICES];
    device *device = session->engine->device;
    plan *plan = session->plan;
    int chosen = 0;
    for (int i = 0; i < plan->count; i++) {
        op *op = &plan->ops[i];
        int count = device->backend->candidates(device, op, list, GPU_CHOICES);
        for (int c = 0; c < count; c++)
            for (int w = 0; w < 3; w++)
                if (!strcmp(list[c].name, wanted[w])) op->choice = c + 1, chosen++;
        if (session->kinds.choices) session->kinds.choices[CALL_ANY * plan->count + i] = op->choice;
    }
    return chosen;
}

/* A residual and the product that norms its output, launched together and one by one: the same bits. The
 * session has several samples, so one kind of call. */
static void pairs_agree(openpi_engine *engine, const char *spec, int batch, int horizon) {
    openpi_session *session;
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    static float apart[BATCH * HORIZON * OPENPI_ACTION_DIM], together[BATCH * HORIZON * OPENPI_ACTION_DIM];
    size_t count = (size_t)(batch * horizon * OPENPI_ACTION_DIM);
    inputs *in = calloc(1, sizeof *in);
    int seen = 0, had = has_resident(engine);
    set_resident(engine, 0);
    in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
    options.batch = batch;
    options.horizon = horizon;
    options.max_prompt = PROMPT;
    must(openpi_session_create(engine, &options, &session, &error));
    struct recording *recording = session->kinds.recordings[CALL_ANY];
    session->kinds.recordings[CALL_ANY] = NULL;
    int chosen = choose_medium(session);
    if (!strcmp(engine->device->path, "hopper")) assert_true(chosen > 0);
    draw(in);
    openpi_session_observe(session, watch, &seen);
    must(openpi_session_run(session, in->samples, batch, in->noise, apart, NULL, &error));
    openpi_session_observe(session, NULL, NULL);
    must(openpi_session_run(session, in->samples, batch, in->noise, together, NULL, &error));
    session->kinds.recordings[CALL_ANY] = recording;
    openpi_session_close(session);
    set_resident(engine, had);
    free(in->images);
    free(in);
    if (memcmp(apart, together, count * sizeof *apart))
        fail_msg("%s batch %d horizon %d: pairs differ from single ops by %.3g", spec, batch, horizon,
                 largest_difference(apart, together, count));
}

static void test_pairs(void **state) {
    static const char *const specs[] = {"full:pi0", "full:pi05"};
    openpi_engine *engine;
    (void)state;
    for (int i = 0; i < 2; i++) {
        if (!open_engine(specs[i], OPENPI_BF16, &engine)) skip();
        pairs_agree(engine, specs[i], 2, 10);
        pairs_agree(engine, specs[i], 3, 15);
        pairs_agree(engine, specs[i], 3, 20);
        openpi_engine_close(engine);
    }
}

/* How many of a recording's launches are this kernel's. */
static int launches_of(const openpi_session *session, const char *kernel) {
    enum { MOST = 4096 };
    static launch_record seen[MOST];
    device *device = session->engine->device;
    const int count = device->backend->launches(device, session->kinds.recordings[CALL_ANY], seen, MOST);
    int these = 0;
    assert_in_range(count, 1, MOST);
    for (int i = 0; i < count; i++) these += !strcmp(seen[i].kernel, kernel);
    return these;
}

/* The join of a residual's parts that norms what it makes, and both apart: the same bits. */
static void joined_norms_agree(openpi_engine *engine, const char *spec, int batch, int horizon) {
    static float together[BATCH * HORIZON * OPENPI_ACTION_DIM], apart[BATCH * HORIZON * OPENPI_ACTION_DIM];
    const size_t count = (size_t)(batch * horizon * OPENPI_ACTION_DIM);
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    openpi_session *session;
    struct recording *recordings[CALL_KINDS];
    inputs *in = calloc(1, sizeof *in);
    in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
    options.batch = batch;
    options.horizon = horizon;
    options.max_prompt = PROMPT;
    must(openpi_session_create(engine, &options, &session, &error));
    const int joined = launches_of(session, "gemm_mma_join_norm");
    if (!gpu_facts_of((gpu_device *)engine->device)->overlap) assert_true(batch > 1 || joined > 0);
    draw(in);
    must(openpi_session_run(session, in->samples, batch, in->noise, together, NULL, &error));
    memcpy(recordings, session->kinds.recordings, sizeof recordings);
    memset(session->kinds.recordings, 0, sizeof recordings);
    for (int i = 0; i < session->plan->count; i++)
        if (session->plan->ops[i].kind == OP_LINEAR_RESIDUAL)
            session->plan->ops[i].linear_residual.normed_next = 0;
    must(openpi_session_run(session, in->samples, batch, in->noise, apart, NULL, &error));
    memcpy(session->kinds.recordings, recordings, sizeof recordings);
    openpi_session_close(session);
    free(in->images);
    free(in);
    print_message("%s batch %d horizon %d: %d joins with a norm\n", spec, batch, horizon, joined);
    if (memcmp(together, apart, count * sizeof *apart))
        fail_msg("%s batch %d horizon %d: joined norms differ from norms apart by %.3g", spec, batch, horizon,
                 largest_difference(together, apart, count));
}

static void test_joined_norms(void **state) {
    static const char *const specs[] = {"full:pi0", "full:pi05"};
    openpi_engine *engine;
    (void)state;
    for (int i = 0; i < 2; i++) {
        if (!open_engine(specs[i], OPENPI_BF16, &engine)) skip();
        joined_norms_agree(engine, specs[i], 1, 10);
        joined_norms_agree(engine, specs[i], 1, 50);
        joined_norms_agree(engine, specs[i], 2, 10);
        openpi_engine_close(engine);
    }
}

/* One graph serves every prompt that its session may get. */
static void test_prompt_lengths(void **state) {
    enum { LONGEST = 48, ACTIONS = 10 };
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        openpi_engine *engine;
        openpi_session *session;
        openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
        static float replayed[ACTIONS * OPENPI_ACTION_DIM], launched[ACTIONS * OPENPI_ACTION_DIM],
            before[ACTIONS * OPENPI_ACTION_DIM];
        inputs *in = calloc(1, sizeof *in);
        int bad = 0;
        in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
        if (!open_engine(specs[i], OPENPI_BF16, &engine)) {
            free(in->images);
            free(in);
            skip();
        }
        options.max_prompt = LONGEST;
        options.horizon = ACTIONS;
        must(openpi_session_create(engine, &options, &session, &error));
        struct recording *recording = session->kinds.recordings[CALL_ANY];
        assert_non_null(recording);
        draw(in);
        for (int n = 1; n <= LONGEST; n++) {
            in->samples[0].token_count = n;
            must(openpi_session_run(session, in->samples, 1, in->noise, replayed, NULL, &error));
            assert_ptr_equal(session->kinds.recordings[CALL_ANY], recording);
            session->kinds.recordings[CALL_ANY] = NULL;
            must(openpi_session_run(session, in->samples, 1, in->noise, launched, NULL, &error));
            session->kinds.recordings[CALL_ANY] = recording;
            bad += memcmp(replayed, launched, sizeof launched) != 0;
            if (n > 1) bad += !memcmp(replayed, before, sizeof before);      /* the length does matter */
            memcpy(before, replayed, sizeof before);
        }
        print_message("%s: %d of %d lengths differ\n", specs[i], bad, LONGEST);
        openpi_session_close(session);
        openpi_engine_close(engine);
        free(in->images);
        free(in);
        assert_int_equal(bad, 0);
    }
}

/* ---- against the scalar definition, stage by stage ------------------------------------------------ */

enum { TENSOR_KINDS = OPENPI_TENSOR_X + 1, KEPT = 1 << 25 };

/* Everything that an observed run shows, in order. */
typedef struct shown {
    float *values;
    size_t count;
    struct { openpi_tensor tensor; int sample, index; size_t at, count; } parts[4096];
    int part_count;
} shown;

static void keep(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows,
                 int columns) {
    shown *s = user;
    size_t n = (size_t)rows * (size_t)columns;
    assert_true(s->part_count < 4096 && s->count + n <= KEPT);
    s->parts[s->part_count].tensor = tensor;
    s->parts[s->part_count].sample = sample;
    s->parts[s->part_count].index = index;
    s->parts[s->part_count].at = s->count;
    s->parts[s->part_count++].count = n;
    memcpy(s->values + s->count, data, n * sizeof *data);
    s->count += n;
}

static int g_bad;

/* The definition on the CPU and the GPU take the same inputs; bf16 differs by its roundings. */
static void follows_definition(const char *spec, openpi_dtype dtype, int batch, int used, int horizon,
                               int prompt, double bound) {
    static const char *const names[TENSOR_KINDS] = {"image tokens", "k", "v", "suffix", "velocity", "x"};
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_engine *engines[2];
    shown *seen[2];
    inputs *in = calloc(1, sizeof *in);
    float actions[2][BATCH * HORIZON * OPENPI_ACTION_DIM], graph[BATCH * HORIZON * OPENPI_ACTION_DIM];
    double worst[TENSOR_KINDS] = {0};
    in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
    draw(in);
    for (int b = 0; b < BATCH; b++) in->samples[b].token_count = prompt - b * 5;
    must(openpi_synthetic_parse(spec, &synthetic, &error));
    for (int i = 0; i < 2; i++) {
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_session_options shape = OPENPI_SESSION_OPTIONS_INIT;
        openpi_session *session;
        options.synthetic = &synthetic;
        options.device = i ? "cuda:0" : "cpu";
        if (i) options.path = getenv("OPENPI_TEST_GPU_PATH");
        options.dtype = dtype;
        seen[i] = calloc(1, sizeof *seen[i]);
        seen[i]->values = malloc((size_t)KEPT * sizeof(float));
        must(openpi_engine_open(NULL, &options, &engines[i], &error));
        shape.batch = batch;
        shape.horizon = horizon;
        shape.max_prompt = PROMPT;
        must(openpi_session_create(engines[i], &shape, &session, &error));
        openpi_session_observe(session, keep, seen[i]);
        must(openpi_session_run(session, in->samples, used, in->noise, actions[i], NULL, &error));
        openpi_session_observe(session, NULL, NULL);
        must(openpi_session_run(session, in->samples, used, in->noise, graph, NULL, &error));
        if (memcmp(graph, actions[i], (size_t)(used * horizon * OPENPI_ACTION_DIM) * sizeof(float)))
            print_message(
                "%s: the graph's actions differ by %.3g\n", spec,
                largest_difference(graph, actions[i], (size_t)(used * horizon * OPENPI_ACTION_DIM)));
        openpi_session_close(session);
        openpi_engine_close(engines[i]);
    }
    assert_int_equal(seen[0]->part_count, seen[1]->part_count);
    for (int i = 0; i < seen[0]->part_count; i++) {
        double d = relative_difference(seen[1]->values + seen[0]->parts[i].at,
                                       seen[0]->values + seen[0]->parts[i].at, seen[0]->parts[i].count);
        if (!(d <= worst[seen[0]->parts[i].tensor])) worst[seen[0]->parts[i].tensor] = d;
    }
    print_message("%-9s batch %d of %d horizon %d, %s:", spec, used, batch, horizon,
                  dtype == OPENPI_F32 ? "f32 " : "bf16");
    int bad = 0;
    for (int t = 0; t < TENSOR_KINDS; t++) {
        print_message(" %s %.1e", names[t], worst[t]);
        bad += !(worst[t] <= bound);
    }
    print_message("\n");
    for (int i = 0; i < 2; i++) {
        free(seen[i]->values);
        free(seen[i]);
    }
    free(in->images);
    free(in);
    g_bad += bad;
}

static void test_definition(void **state) {
    static const char *const specs[] = {"tiny:pi0", "tiny:pi05", "odd:pi0", "odd:pi05"};
    openpi_engine *engine;
    (void)state;
    if (!open_engine("tiny", OPENPI_BF16, &engine)) skip();
    openpi_engine_close(engine);
    for (int i = 0; i < 4; i++)
        for (int d = OPENPI_BF16; d <= OPENPI_F32; d++) {
            double bound = d == OPENPI_F32 ? 1e-4 : 0.05;
            follows_definition(specs[i], (openpi_dtype)d, 1, 1, 10, 120, bound);
            follows_definition(specs[i], (openpi_dtype)d, 1, 1, 15, 45, bound);
            follows_definition(specs[i], (openpi_dtype)d, BATCH, BATCH, 10, 40, bound);
            follows_definition(specs[i], (openpi_dtype)d, BATCH, BATCH, 50, 200, bound);
            follows_definition(specs[i], (openpi_dtype)d, BATCH, 1, 50, 30, bound);
        }
    assert_int_equal(g_bad, 0);
}

/* Samples with and without real-time chunking in one graph. */
static void test_chunking(void **state) {
    static const char *const specs[] = {"odd:pi0", "odd:pi05", "tiny:pi05"};
    static mixed m;
    (void)state;
    for (int i = 0; i < 6; i++) {
        openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
        openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
        openpi_engine *engine;
        if (!open_engine(specs[i / 2], i % 2 ? OPENPI_BF16 : OPENPI_F32, &engine)) skip();
        openpi_engine_close(engine);
        must(openpi_synthetic_parse(specs[i / 2], &synthetic, &error));
        synthetic.rtc_max_delay = i / 2 ? MIXED_DELAY : 0;
        options.synthetic = &synthetic;
        options.device = "cuda:0";
        options.dtype = i % 2 ? OPENPI_BF16 : OPENPI_F32;
        options.path = getenv("OPENPI_TEST_GPU_PATH");
        must(openpi_engine_open(NULL, &options, &engine, &error));
        openpi_session *session = mixed_session(engine, MIXED, 1);
        mixed_make(&m, i / 2);
        mixed_in_one_session(session, &m);
        parts_are_the_whole(engine, &m, 0);
        timed_all(engine, &m, i / 2 > 0, i % 2 ? 0.1 : 1e-3);
        openpi_session_close(session);
        openpi_engine_close(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunking),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_ways),
        cmocka_unit_test(test_ways_full),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_joined_norms),
        cmocka_unit_test(test_prompt_lengths),
    };
    return verdict(cmocka_run_group_tests_name("gpu engine", tests, NULL, NULL));
}
