/* labels: skips */
/* Two sessions of one engine on a GPU, each in a thread of its own: a call gives the same actions whether the
 * other session runs at the same time or not. What the calls took alone and side by side is printed; nothing
 * here judges it. Skipped without a GPU. */
#include <pthread.h>

#include "base/clock.h"
#include "gpu_engine.h"

enum { SESSIONS = 2, CALLS = 60 };

typedef struct caller {
    openpi_session *session;
    inputs *in;
    float *alone, *actions;
    size_t count;
    double ms[CALLS];
    int differ, failed;
    pthread_barrier_t *together; /* NULL: the caller runs by itself                                       */
} caller;

static void *call_again_and_again(void *argument) {
    caller *c = argument;
    openpi_error why = OPENPI_ERROR_INIT;
    if (c->together) pthread_barrier_wait(c->together);
    for (int i = 0; i < CALLS; i++) {
        double start = clock_ms();
        c->failed += openpi_session_run(c->session, c->in->samples, 1, c->in->noise, c->actions, NULL,
                                        &why) != OPENPI_OK;
        c->ms[i] = clock_ms() - start;
        c->differ += memcmp(c->actions, c->alone, c->count * sizeof(float)) != 0;
    }
    return NULL;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void tell(const char *what, caller *callers) {
    for (int i = 0; i < SESSIONS; i++) {
        qsort(callers[i].ms, CALLS, sizeof(double), by_size);
        print_message("%s: session %d, horizon %d: p50 %.2f ms, longest %.2f ms\n", what, i,
                      callers[i].session->options.horizon, callers[i].ms[CALLS / 2],
                      callers[i].ms[CALLS - 1]);
    }
}

static void side_by_side(const char *spec) {
    openpi_engine *engine;
    caller callers[SESSIONS] = {{0}};
    pthread_barrier_t together;
    if (!open_engine(spec, OPENPI_BF16, &engine)) skip();
    for (int i = 0; i < SESSIONS; i++) {
        caller *c = &callers[i];
        openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
        options.horizon = i ? HORIZON : 10;
        options.max_prompt = PROMPT;
        c->count = (size_t)options.horizon * OPENPI_ACTION_DIM;
        c->in = calloc(1, sizeof *c->in);
        c->in->images = malloc((size_t)BATCH * OPENPI_CAMERAS * PIXELS);
        c->alone = malloc(c->count * sizeof(float));
        c->actions = malloc(c->count * sizeof(float));
        draw(c->in);
        must(openpi_session_create(engine, &options, &c->session, &error));
        must(openpi_session_run(c->session, c->in->samples, 1, c->in->noise, c->alone, NULL, &error));
        call_again_and_again(c);
    }
    print_message("%s\n", spec);
    tell("alone       ", callers);
    pthread_barrier_init(&together, NULL, SESSIONS);
    pthread_t threads[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) {
        callers[i].together = &together;
        assert_int_equal(pthread_create(&threads[i], NULL, call_again_and_again, &callers[i]), 0);
    }
    for (int i = 0; i < SESSIONS; i++) pthread_join(threads[i], NULL);
    tell("side by side", callers);
    pthread_barrier_destroy(&together);
    for (int i = 0; i < SESSIONS; i++) {
        caller *c = &callers[i];
        assert_int_equal(c->failed, 0);
        assert_int_equal(c->differ, 0);
        openpi_session_close(c->session);
        free(c->in->images);
        free(c->in);
        free(c->alone);
        free(c->actions);
    }
    openpi_engine_close(engine);
}

static void tiny(void **state) {
    (void)state;
    side_by_side("tiny:pi0");
    side_by_side("tiny:pi05");
}

static void full(void **state) {
    (void)state;
    side_by_side("full:pi05");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiny), cmocka_unit_test(full)};
    return verdict(cmocka_run_group_tests_name("gpu sessions", tests, NULL, NULL));
}
