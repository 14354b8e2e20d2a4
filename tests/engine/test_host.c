/* labels: isa_slow threads */
/* The engine as a guest in its caller's process: forked, closed before its sessions, with options of another
 * device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/sanitizer.h"
#include "fork_child.h"
#include "openpi.h"

enum { HORIZON = 2, ACTIONS = HORIZON * OPENPI_ACTION_DIM };

static openpi_error error = OPENPI_ERROR_INIT;
static const int32_t tokens[3] = {2, 5, 9};
static const float state_of_robot[OPENPI_ACTION_DIM], noise[ACTIONS];

static openpi_engine *open_engine(void) {
    openpi_synthetic model = OPENPI_SYNTHETIC_INIT;
    openpi_engine *engine;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    assert_int_equal(openpi_synthetic_parse("odd", &model, &error), OPENPI_OK);
    options.synthetic = &model;
    options.threads = 3;
    if (openpi_engine_open(NULL, &options, &engine, &error) != OPENPI_OK) fail_msg("%s", error.message);
    return engine;
}

static openpi_status create(openpi_engine *engine, openpi_session **session) {
    openpi_session_options options = OPENPI_SESSION_OPTIONS_INIT;
    options.steps = 1;
    options.horizon = HORIZON;
    options.max_prompt = 3;
    return openpi_session_create(engine, &options, session, &error);
}

static openpi_status infer(openpi_session *session, float *actions) {
    openpi_sample sample = {
        .size = sizeof sample, .tokens = tokens, .token_count = 3, .state = state_of_robot};
    return openpi_session_run(session, &sample, 1, noise, actions, NULL, &error);
}

typedef struct opened {
    openpi_engine *engine;
    openpi_session *session;
} opened;

static int refused(const char *what, openpi_status status, const char *sentence) {
    if (status == OPENPI_SYSTEM && strstr(error.message, sentence) && strstr(error.message, "forked from it"))
        return 0;
    fprintf(stderr, "%s in a child: status %d, \"%s\"\n", what, (int)status, error.message);
    return 1;
}

static int use_the_parents(void *argument) {
    opened *o = argument;
    openpi_session *other = NULL;
    float actions[ACTIONS];
    int failed = refused("run", infer(o->session, actions), "session run: process ") |
                 refused("create", create(o->engine, &other), "session create: process ");
    openpi_session_close(o->session);
    openpi_engine_close(o->engine);
    return failed;
}

static int close_the_engine_first(void *argument) {
    opened *o = argument;
    openpi_engine_close(o->engine);
    openpi_session_close(o->session);
    return 0;
}

#ifndef SANITIZER_THREAD                /* which forbids new threads in a child */
static int open_its_own(void *argument) {
    float actions[ACTIONS];
    opened *parent = argument, own = {open_engine(), NULL};
    int failed = create(own.engine, &own.session) != OPENPI_OK || infer(own.session, actions) != OPENPI_OK;
    openpi_session_close(own.session);
    openpi_engine_close(own.engine);
    return failed | use_the_parents(parent);
}
#endif

static void a_forked_child_comes_back(void **state) {
    (void)state;
    opened o = {open_engine(), NULL};
    float before[ACTIONS], after[ACTIONS];
    assert_int_equal(create(o.engine, &o.session), OPENPI_OK);
    assert_int_equal(infer(o.session, before), OPENPI_OK);
    in_child(use_the_parents, &o);
    in_child(close_the_engine_first, &o);
#ifndef SANITIZER_THREAD
    in_child(open_its_own, &o);
#endif
    assert_int_equal(infer(o.session, after), OPENPI_OK);      /* nothing of the parent's is touched */
    assert_memory_equal(before, after, sizeof before);
    openpi_session_close(o.session);
    openpi_engine_close(o.engine);
}

static void an_engine_lives_as_long_as_its_sessions(void **state) {
    (void)state;
    opened o = {open_engine(), NULL};
    openpi_session *second;
    float before[ACTIONS], after[ACTIONS];
    assert_int_equal(create(o.engine, &o.session), OPENPI_OK);
    assert_int_equal(create(o.engine, &second), OPENPI_OK);
    assert_int_equal(infer(o.session, before), OPENPI_OK);
    openpi_engine_close(o.engine);
    assert_int_equal(infer(o.session, after), OPENPI_OK);
    assert_memory_equal(before, after, sizeof before);
    openpi_session_close(o.session);
    assert_int_equal(infer(second, after), OPENPI_OK);
    assert_memory_equal(before, after, sizeof before);
    openpi_session_close(second);
}

static void options_of_another_device(void **state) {
    (void)state;
    openpi_synthetic model = OPENPI_SYNTHETIC_INIT;
    openpi_engine *engine = NULL;
    openpi_engine_options options = OPENPI_ENGINE_OPTIONS_INIT;
    assert_int_equal(openpi_synthetic_parse("odd", &model, &error), OPENPI_OK);
    options.synthetic = &model;
    options.path = "hopper";
    assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), OPENPI_BAD_ARGUMENT);
    assert_string_equal(error.message, "path is \"hopper\", expected none on cpu: path is for a GPU's "
                                       "kernels");
    options.path = NULL;
    options.isa = "avx2";
    options.device = "cuda:0";             /* before the driver is looked for */
    assert_int_equal(openpi_engine_open(NULL, &options, &engine, &error), OPENPI_BAD_ARGUMENT);
    assert_string_equal(error.message, "isa is \"avx2\", expected none on cuda:0: isa is for the CPU's "
                                       "kernels");
    assert_null(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_forked_child_comes_back),
                                       cmocka_unit_test(an_engine_lives_as_long_as_its_sessions),
                                       cmocka_unit_test(options_of_another_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
