/* labels: threads */
/* A runner with its thread, in virtual time: the source answers when the test lets it. What is asked of a
 * source, when a chunk takes over, why a robot is held and how it recovers, who owns pictures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "allocator.h"
#include "policy_golden.h"
#include "runner/runner.h"
#include "structs.h"

enum { DIMS = 3, ROWS = 12, SIDE = 4, PIXELS = SIDE * SIDE * 3, TICK = 20 };

#define ARM                                                                                                 \
    "{\"name\": \"arm\", \"cameras\": {\"images/front\": \"base\"}, \"state\": {\"joints\": 2, "            \
    "\"gripper\": 1}, "                                                                                     \
    "\"actions\": 3, \"rate_hz\": 50"
#define KINDS ", \"kinds\": [\"position\", \"velocity\", \"position\"]}"

/* ---- a source that answers when it is let ------------------------------------------------------------ */

typedef struct gate {
    sem_t asked, answer;
    openpi_status status;
    int lost, rows;
    double first;                /* number 0 of the chunk's first row                                     */
    openpi_chunk_call call;      /* as it came                                                            */
    double state[DIMS];
    char names[8][64];           /* its fields'                                                           */
    int calls, cancelled, closed;
} gate;

static openpi_status gate_infer(void *user, const openpi_chunk_call *call, openpi_chunk *chunk,
                                openpi_error *error) {
    gate *g = user;
    g->call = *call;
    memcpy(g->state, call->observation->state, sizeof g->state);
    for (int f = 0; f < call->field_count; f++) snprintf(g->names[f], 64, "%s", call->fields[f].name);
    g->calls++;
    sem_post(&g->asked);
    while (sem_wait(&g->answer)) {}
    chunk->rows = g->rows;
    chunk->lost = g->lost;
    for (int r = 0; r < g->rows; r++)
        for (int d = 0; d < DIMS; d++) chunk->actions[r * DIMS + d] = g->first + r;
    if (g->status) snprintf(error->message, sizeof error->message, "it does not answer");
    return g->status;
}

static void gate_cancel(void *user) {
    gate *g = user;
    g->cancelled++;
    sem_post(&g->answer);
}

static void gate_close(void *user) { ((gate *)user)->closed++; }

/* ---- a robot ---------------------------------------------------------------------------------------- */

typedef struct rig {
    gate gate;
    openpi_runner *runner;
    double now;
    uint8_t pixels[PIXELS];
    double state[DIMS];
    openpi_runner_state told;
    double action[DIMS];
} rig;

static openpi_error error = OPENPI_ERROR_INIT;

static openpi_source source_of(rig *g) {
    return (openpi_source){.size = sizeof(openpi_source), .user = &g->gate, .infer = gate_infer,
                           .cancel = gate_cancel, .close = gate_close};
}

static void begin(rig *g, openpi_runner_options options) {
    memset(g, 0, sizeof *g);
    sem_init(&g->gate.asked, 0, 0);
    sem_init(&g->gate.answer, 0, 0);
    g->gate.rows = ROWS;
    g->now = 1000;
    g->told.size = sizeof g->told;
    memset(g->pixels, 100, PIXELS);
    openpi_source source = source_of(g);
    source.wants_fields = 1;
    if (!options.robot) options.robot = ARM KINDS;
    WORKS(openpi_runner_over_source(&source, &options, &g->runner, &error));
}

static void end(rig *g) {
    openpi_runner_close(g->runner);
    assert_int_equal(g->gate.closed, 1);
    sem_destroy(&g->gate.asked);
    sem_destroy(&g->gate.answer);
}

static openpi_observation look(rig *g, openpi_image *image) {
    *image = (openpi_image)IMAGE("front", g->pixels, OPENPI_U8, OPENPI_HWC, SIDE, SIDE);
    return (openpi_observation)OBSERVATION(image, 1, g->state, DIMS, "go", 0);
}

/* At the time of the next tick, before its action. Each picture is another one. */
static void observe(rig *g) {
    openpi_image image;
    openpi_observation o = look(g, &image);
    g->pixels[0] = (uint8_t)(g->pixels[0] + 1) | 64;
    WORKS(openpi_runner_observe(g->runner, &o, g->now + TICK, &error));
}

static double tick(rig *g, openpi_move move) {
    g->now += TICK;
    openpi_move found = openpi_runner_next(g->runner, g->now, g->action, &g->told);
    if (found != move) fail_msg("move %d because %s", found, openpi_reason_text(g->told.reason));
    return g->action[0];
}

static void asked(rig *g) {
    while (sem_wait(&g->gate.asked)) {}
}

/* Until the runner's thread has done with the answer. */
static void answer(rig *g, double first) {
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    WORKS(openpi_runner_get_info(g->runner, &info, &error));
    uint64_t calls = info.calls;
    int place = atomic_load(&g->runner->chunks.middle);
    g->gate.first = first;
    sem_post(&g->gate.answer);
    do {
        sched_yield();
        WORKS(openpi_runner_get_info(g->runner, &info, &error));
    } while (info.calls == calls);
    while (!g->gate.status && atomic_load(&g->runner->chunks.middle) == place) sched_yield();
    while (g->gate.status && !atomic_load(&g->runner->trouble)) sched_yield();
}

static void must_hold(rig *g, openpi_reason reason, double position, double velocity) {
    tick(g, OPENPI_MOVE_HOLD);
    assert_int_equal(g->told.reason, reason);
    assert_true(isnan(position) ? isnan(g->action[0]) : g->action[0] == position);
    assert_true(g->action[1] == velocity);
}

/* ---- chunks ------------------------------------------------------------------------------------------ */

static void chunks_follow_each_other(void **state) {
    static rig g;
    (void)state;
    begin(&g, (openpi_runner_options){.size = sizeof(openpi_runner_options), .rtc = OPENPI_RTC_GUIDED});
    tick(&g, OPENPI_MOVE_HOLD);
    assert_int_equal(g.told.reason, OPENPI_REASON_STARTING);
    assert_true(isnan(g.action[0]) && g.action[1] == 0 && isnan(g.action[2]) && !g.told.known);
    assert_true(isinf(g.told.age_ms));
    observe(&g);
    asked(&g);
    assert_int_equal(g.gate.call.follows, 0);
    assert_string_equal(g.gate.names[0], "images/front");
    assert_string_equal(g.gate.names[1], "joints");
    assert_string_equal(g.gate.names[2], "gripper");
    assert_string_equal(g.gate.names[3], "prompt");
    answer(&g, 0);
    for (int i = 0; i < 5; i++) {
        observe(&g);
        assert_true(tick(&g, OPENPI_MOVE_ACTION) == i);
    }
    /* Five rows are executed, four of them when the newest observation was taken. */
    asked(&g);
    assert_int_equal(g.gate.call.follows, 1);
    assert_int_equal(g.gate.call.executed, 4);
    assert_in_range(g.gate.call.delay, 1, ROWS - 4);
    for (int i = 5; i < 8; i++) assert_true(tick(&g, OPENPI_MOVE_ACTION) == i);
    answer(&g, 100);
    assert_true(tick(&g, OPENPI_MOVE_ACTION) == 104);
    assert_int_equal(g.told.delay, 4);
    assert_int_equal(g.told.row, 4);
    assert_int_equal(g.told.chunk, 2);
    assert_int_equal(g.told.step, 9);
    end(&g);
}

/* How long the robot was held and why, each hold once; a call that fails tells nothing. */
static void holds_are_told_once(void **state) {
    static rig g;
    (void)state;
    begin(&g, (openpi_runner_options)OPENPI_RUNNER_OPTIONS_INIT);
    for (int i = 0; i < 3; i++) tick(&g, OPENPI_MOVE_HOLD);    /* held from the first to the third         */
    for (int fails = 1; fails >= 0; fails--) {
        observe(&g);
        asked(&g);
        assert_true(g.gate.call.held_ms == 2 * TICK && g.gate.call.used == -1);
        assert_int_equal(g.gate.call.reason, OPENPI_REASON_STARTING);
        g.gate.status = fails ? OPENPI_SYSTEM : OPENPI_OK;
        answer(&g, 0);
    }
    for (int i = 0; i < 5; i++) {
        observe(&g);
        assert_true(tick(&g, OPENPI_MOVE_ACTION) == i);
    }
    asked(&g);
    assert_true(g.gate.call.held_ms == 0 && g.gate.call.used == 4 && !g.gate.call.follows);
    assert_int_equal(g.gate.call.reason, OPENPI_REASON_NONE);
    answer(&g, 100);
    end(&g);
}

/* No call of the source, no lock and no memory: while the source computes for ever. */
static void next_allocates_nothing(void **state) {
    static rig g;
    (void)state;
    begin(&g, (openpi_runner_options)OPENPI_RUNNER_OPTIONS_INIT);
    observe(&g);
    asked(&g);
    answer(&g, 0);
    for (int i = 0; i < 6; i++) {
        observe(&g);
        tick(&g, OPENPI_MOVE_ACTION);
    }
    asked(&g);
    pthread_mutex_lock(&g.runner->observing);
    pthread_mutex_lock(&g.runner->telling);
#if ALLOCATOR
    long long before = atomic_load(&allocator_calls);
#endif
    for (int i = 0; i < 6; i++) tick(&g, OPENPI_MOVE_ACTION);
    for (int i = 0; i < 1000; i++) tick(&g, OPENPI_MOVE_HOLD);
#if ALLOCATOR
    assert_int_equal(atomic_load(&allocator_calls), before);
#endif
    pthread_mutex_unlock(&g.runner->observing);
    pthread_mutex_unlock(&g.runner->telling);
    assert_int_equal(g.gate.calls, 2);
    end(&g);
}

/* An answer that was given up is not used, and the next one is no continuation of it. */
static void a_call_is_cancelled(void **state) {
    static rig g;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    (void)state;
    begin(&g, (openpi_runner_options){.size = sizeof(openpi_runner_options), .rtc = OPENPI_RTC_GUIDED});
    observe(&g);
    asked(&g);
    openpi_runner_cancel(g.runner);
    observe(&g);
    asked(&g);
    must_hold(&g, OPENPI_REASON_STARTING, NAN, 0);
    answer(&g, 50);
    assert_true(tick(&g, OPENPI_MOVE_ACTION) == 50);
    assert_int_equal(g.gate.call.follows, 0);
    assert_int_equal(g.gate.cancelled, 1);
    WORKS(openpi_runner_get_info(g.runner, &info, &error));
    assert_int_equal(info.late, 1);
    end(&g);
}

static void late_chunks_are_not_used(void **state) {
    static rig g;
    (void)state;
    begin(&g, (openpi_runner_options){.size = sizeof(openpi_runner_options), .deadline_ms = 100});
    observe(&g);
    asked(&g);
    assert_true(g.gate.call.deadline_ms == 100);
    for (int i = 0; i < 6; i++) tick(&g, OPENPI_MOVE_HOLD);
    answer(&g, 0);
    must_hold(&g, OPENPI_REASON_STARTING, NAN, 0);
    observe(&g);
    asked(&g);
    answer(&g, 10);
    assert_true(tick(&g, OPENPI_MOVE_ACTION) == 10);
    end(&g);
}

/* ---- holding ------------------------------------------------------------------------------------------ */

static void old_observations(void **state) {
    static rig g;
    (void)state;
    begin(&g, (openpi_runner_options){.size = sizeof(openpi_runner_options), .max_age_ms = 30});
    observe(&g);
    asked(&g);
    answer(&g, 0);
    for (int i = 0; i < 2; i++) assert_true(tick(&g, OPENPI_MOVE_ACTION) == i);
    must_hold(&g, OPENPI_REASON_OLD_OBSERVATION, 1, 0);
    observe(&g);
    asked(&g);
    must_hold(&g, OPENPI_REASON_NO_ACTIONS, 1, 0);     /* what was left of the old chunk is not executed    */
    answer(&g, 5);
    assert_true(tick(&g, OPENPI_MOVE_ACTION) == 5);
    end(&g);
}

/* An observation that waited for its turn until it was too old. */
static void a_stale_picture_is_not_computed(void **state) {
    static rig g;
    (void)state;
    begin(&g, (openpi_runner_options){.size = sizeof(openpi_runner_options), .max_age_ms = 30});
    observe(&g);
    asked(&g);
    answer(&g, 0);
    g.state[0] = 1;
    observe(&g);
    for (int i = 0; i < 2; i++) tick(&g, OPENPI_MOVE_ACTION);
    for (int i = 0; i < 2; i++) must_hold(&g, OPENPI_REASON_OLD_OBSERVATION, 1, 0);
    while (exchange_waits(&g.runner->sights)) sched_yield();
    g.state[0] = 2;
    observe(&g);
    asked(&g);
    assert_true(g.gate.state[0] == 2);
    assert_int_equal(g.gate.calls, 2);
    end(&g);
}

static void wait_for(const atomic_int *what, int value) {
    while (atomic_load(what) != value) sched_yield();
}

static void cameras_that_do_not_see(void **state) {
    static rig g;
    openpi_image image;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    (void)state;
    begin(&g,
          (openpi_runner_options){.size = sizeof(openpi_runner_options), .frozen_after = 3,
                                       .ask_after = 1});
    openpi_observation o = look(&g, &image);
    WORKS(openpi_runner_observe(g.runner, &o, g.now, &error));
    asked(&g);
    answer(&g, 0);
    tick(&g, OPENPI_MOVE_ACTION);
    WORKS(openpi_runner_observe(g.runner, &o, g.now, &error));
    asked(&g);                                         /* twice the same picture is not frozen              */
    answer(&g, 10);
    tick(&g, OPENPI_MOVE_ACTION);
    WORKS(openpi_runner_observe(g.runner, &o, g.now, &error));
    wait_for(&g.runner->camera, OPENPI_REASON_FROZEN_CAMERA);
    must_hold(&g, OPENPI_REASON_FROZEN_CAMERA, g.action[0], 0);
    WORKS(openpi_runner_get_info(g.runner, &info, &error));
    assert_string_equal(info.camera, "front");
    memset(g.pixels, 3, PIXELS);
    WORKS(openpi_runner_observe(g.runner, &o, g.now, &error));
    wait_for(&g.runner->camera, OPENPI_REASON_BLACK_CAMERA);
    must_hold(&g, OPENPI_REASON_BLACK_CAMERA, g.action[0], 0);
    g.pixels[PIXELS - 1] = 4;
    WORKS(openpi_runner_observe(g.runner, &o, g.now, &error));
    asked(&g);
    answer(&g, 70);
    assert_true(tick(&g, OPENPI_MOVE_ACTION) == 70);
    WORKS(openpi_runner_get_info(g.runner, &info, &error));
    assert_string_equal(info.camera, "");
    end(&g);
}

static void a_server_that_is_lost(void **state) {
    static rig g;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    (void)state;
    begin(&g, (openpi_runner_options){.size = sizeof(openpi_runner_options), .retry_ms = 1});
    observe(&g);
    asked(&g);
    answer(&g, 0);
    for (int i = 0; i < 5; i++) tick(&g, OPENPI_MOVE_ACTION);
    g.gate.status = OPENPI_SYSTEM, g.gate.lost = 1;
    observe(&g);
    asked(&g);
    answer(&g, 0);
    for (int i = 5; i < ROWS; i++) assert_true(tick(&g, OPENPI_MOVE_ACTION) == i);
    must_hold(&g, OPENPI_REASON_LOST, ROWS - 1, 0);
    WORKS(openpi_runner_get_info(g.runner, &info, &error));
    assert_string_equal(info.failure, "it does not answer");
    assert_int_equal(info.failed, 1);
    g.gate.status = OPENPI_OK, g.gate.lost = 0;
    observe(&g);
    asked(&g);
    answer(&g, 30);
    assert_true(tick(&g, OPENPI_MOVE_ACTION) == 30);
    WORKS(openpi_runner_get_info(g.runner, &info, &error));
    assert_string_equal(info.failure, "");
    end(&g);
}

/* An answer that no robot can execute. */
static void answers_that_are_wrong(void **state) {
    static rig g;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    (void)state;
    begin(&g, (openpi_runner_options)OPENPI_RUNNER_OPTIONS_INIT);
    for (int i = 0; i < 2; i++) {
        observe(&g);
        asked(&g);
        g.gate.rows = i ? ROWS : 0;
        g.gate.first = NAN;
        atomic_store(&g.runner->trouble, OPENPI_REASON_NONE);
        sem_post(&g.gate.answer);
        wait_for(&g.runner->trouble, OPENPI_REASON_FAILED);
        must_hold(&g, OPENPI_REASON_FAILED, NAN, 0);
        WORKS(openpi_runner_get_info(g.runner, &info, &error));
        assert_non_null(strstr(info.failure, i ? "no finite number" : "0 rows, expected 1 to 64"));
    }
    end(&g);
}

static void stop_and_go(void **state) {
    static rig g;
    (void)state;
    begin(&g, (openpi_runner_options)OPENPI_RUNNER_OPTIONS_INIT);
    observe(&g);
    asked(&g);
    answer(&g, 0);
    tick(&g, OPENPI_MOVE_ACTION);
    openpi_runner_stop(g.runner);
    for (int i = 0; i < 3; i++) assert_true(tick(&g, OPENPI_MOVE_STOP) == 0);
    assert_int_equal(g.told.reason, OPENPI_REASON_ASKED);
    openpi_runner_resume(g.runner);
    must_hold(&g, OPENPI_REASON_NO_ACTIONS, 0, 0);
    observe(&g);
    asked(&g);
    answer(&g, 40);
    assert_true(tick(&g, OPENPI_MOVE_ACTION) == 40);
    end(&g);
}

/* A robot's file says the limits. */
static void limits_of_the_robot(void **state) {
    static rig g;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    (void)state;
    begin(&g, (openpi_runner_options){.size = sizeof(openpi_runner_options), .robot = ARM
              ", \"kinds\": \"position\", \"limits\": {\"max\": [2.5, null, null]}}"});
    observe(&g);
    asked(&g);
    answer(&g, 0);
    for (int i = 0; i < 4; i++) assert_true(tick(&g, OPENPI_MOVE_ACTION) == (i < 3 ? i : 2.5));
    assert_int_equal(g.told.limited, 1);
    WORKS(openpi_runner_get_info(g.runner, &info, &error));
    assert_int_equal(info.limits, 1);
    assert_int_equal(info.limited, 1);
    end(&g);
}

/* ---- pictures that stay where they are ----------------------------------------------------------------- */

static void release_one(void *user) { atomic_fetch_add((atomic_int *)user, 1); }

static void lent_pictures_come_back_once(void **state) {
    static rig g;
    static atomic_int released[40];
    static uint8_t pixels[40][PIXELS];     /* what is lent is the runner's until it comes back              */
    openpi_image image;
    (void)state;
    begin(&g, (openpi_runner_options)OPENPI_RUNNER_OPTIONS_INIT);
    openpi_observation o = look(&g, &image);
    for (int i = 0; i < 40; i++) {
        memset(pixels[i], 100, PIXELS);
        pixels[i][0] = (uint8_t)(100 + i);
        image.data = pixels[i];
        g.now += i % 7 == 3 ? -15 : 5;                 /* some are older than those before                  */
        WORKS(openpi_runner_lend(g.runner, &o, g.now, release_one, &released[i], &error));
        if (i % 10 == 9) {
            asked(&g);
            const uint8_t *seen = g.gate.call.observation->images[0].data;
            assert_true(seen >= pixels[0] && seen <= pixels[i]);
            answer(&g, i);
            for (int k = 0; k < 2 * ROWS; k++) openpi_runner_next(g.runner, g.now += TICK, g.action, NULL);
        }
    }
    o.image_count = 9;
    REFUSES(openpi_runner_lend(g.runner, &o, g.now, release_one, &released[0], &error), OPENPI_BAD_INPUT,
            "9 pictures");
    end(&g);
    for (int i = 0; i < 40; i++) assert_int_equal(released[i], 1);
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

static void options_that_are_refused(void **state) {
    static const struct {
        openpi_runner_options options;
        const char *says;
    } cases[] = {
#define WITH(...) {.size = sizeof(openpi_runner_options), __VA_ARGS__}
        {WITH(.robot = NULL), "option robot is NULL"},
        {WITH(.robot = "no_such"), "no_such"},
        {WITH(.robot = ARM "}"), "arm does not say whether action 0 is a position or a velocity"},
        {WITH(.robot = "none", .kind = OPENPI_ACTION_POSITION), "none does not say how many steps"},
        {WITH(.robot = "droid", .calls_per_step = 1001), "calls_per_step is 1001, expected 1 to 1000"},
        {WITH(.robot = "droid", .blend_steps = -1), "blend_steps is -1, expected 1 to 64"},
        {WITH(.robot = "droid", .ask_after = 65), "ask_after is 65"},
        {WITH(.robot = "droid", .decelerate_steps = 65), "decelerate_steps is 65"},
        {WITH(.robot = "droid", .frozen_after = -2), "frozen_after is -2"},
        {WITH(.robot = "droid", .max_age_ms = -1), "max_age_ms is -1"},
        {WITH(.robot = "droid", .deadline_ms = NAN), "deadline_ms is nan"},
        {WITH(.robot = "droid", .retry_ms = -1), "retry_ms is -1"},
        {WITH(.robot = "droid", .rate_hz = -3), "rate_hz is -3"},
        {WITH(.robot = "droid", .rtc = OPENPI_RTC_VJP), "rtc 3"},
        {WITH(.robot = "droid", .seam = (openpi_seam)3), "seam 3"},
        {WITH(.robot = "droid", .seam = OPENPI_SEAM_APPEND, .rtc = OPENPI_RTC_GUIDED), "seam is append and rtc"},
#undef WITH
    };
    static rig g;
    openpi_runner *runner = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_source source = source_of(&g);
        g.gate.closed = 0;
        error.message[0] = 0;
        assert_int_not_equal(openpi_runner_over_source(&source, &cases[i].options, &runner, &error),
                             OPENPI_OK);
        if (!strstr(error.message, cases[i].says))
            fail_msg("\"%s\" lacks \"%s\"", error.message, cases[i].says);
        assert_int_equal(g.gate.closed, 1);
    }
    assert_int_equal(openpi_runner_next(NULL, 0, NULL, NULL), OPENPI_MOVE_STOP);
    openpi_runner_close(NULL);
    openpi_runner_stop(NULL);
    assert_string_equal(openpi_reason_text(OPENPI_REASON_LOST), "the policy server cannot be reached");
    assert_string_equal(openpi_reason_text((openpi_reason)77), "unknown reason");
}

/* ---- many threads --------------------------------------------------------------------------------- */

typedef struct crowd {
    rig g;
    atomic_int done, released;
} crowd;

static void nap(int microseconds) { nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL); }

static openpi_status quick_infer(void *user, const openpi_chunk_call *call, openpi_chunk *chunk,
                                 openpi_error *why) {
    static const int naps[] = {0, 0, 300, 2000};
    (void)user, (void)why;
    nap(naps[(int)call->observation->state[0] % 4]);
    chunk->rows = ROWS;
    for (int i = 0; i < ROWS * DIMS; i++) chunk->actions[i] = call->observation->state[1] + i / DIMS;
    return OPENPI_OK;
}

static void release_crowd(void *user) { atomic_fetch_add(&((crowd *)user)->released, 1); }

static void *watch_and_tell(void *user) {
    crowd *c = user;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    uint8_t pixels[PIXELS] = {9};
    openpi_image image = IMAGE("front", pixels, OPENPI_U8, OPENPI_HWC, SIDE, SIDE);
    int lent = 0;
    for (int i = 0; !atomic_load(&c->done); i++) {
        double state[DIMS] = {i, 0, 0};
        openpi_observation o = OBSERVATION(&image, 1, state, DIMS, NULL, 0);
        double now = atomic_load(&c->g.runner->now);
        if (i % 3) openpi_runner_observe(c->g.runner, &o, now, NULL);
        else lent += !openpi_runner_lend(c->g.runner, &o, now, release_crowd, c, NULL);
        openpi_runner_get_info(c->g.runner, &info, NULL);
        if (i % 64 == 63) openpi_runner_cancel(c->g.runner);
        nap(50);
    }
    return (void *)(intptr_t)lent;
}

/* The steps are counted without a gap, whatever other threads do at the same time. */
static void many_threads(void **state) {
    static crowd c;
    openpi_runner_options options = {.size = sizeof options, .robot = ARM KINDS, .frozen_after = -1,
                                     .seam = OPENPI_SEAM_BLEND, .max_age_ms = 1e6, .deadline_ms = 1e6};
    openpi_source source = {.size = sizeof source, .infer = quick_infer};
    pthread_t watchers[3];
    int lent = 0;
    uint64_t steps = 0;
    (void)state;
    c.g.told.size = sizeof c.g.told;
    WORKS(openpi_runner_over_source(&source, &options, &c.g.runner, &error));
    openpi_runner_next(c.g.runner, 0, c.g.action, NULL);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&watchers[i], NULL, watch_and_tell, &c), 0);
    for (int i = 0; steps < 2000; i++) {
        openpi_move move = openpi_runner_next(c.g.runner, i, c.g.action, &c.g.told);
        steps += move == OPENPI_MOVE_ACTION;
        assert_int_equal(c.g.told.step, steps);
        nap(30);
    }
    atomic_store(&c.done, 1);
    for (int i = 0; i < 3; i++) {
        void *found;
        pthread_join(watchers[i], &found);
        lent += (int)(intptr_t)found;
    }
    openpi_runner_close(c.g.runner);
    assert_int_equal(c.released, lent);
}

/* ---- observations as fields ------------------------------------------------------------------------- */

static void observations_may_be_fields(void **state) {
    static rig g;
    openpi_field fields[4];
    double joints[2] = {0.25, 0.5}, gripper = 0.75;
    (void)state;
    begin(&g, (openpi_runner_options)OPENPI_RUNNER_OPTIONS_INIT);
    for (int f = 0; f < 4; f++) fields[f] = (openpi_field)OPENPI_FIELD_INIT;
    fields[0].name = "images/front", fields[0].data = g.pixels, fields[0].rank = 3;
    fields[0].shape[0] = fields[0].shape[1] = SIDE, fields[0].shape[2] = 3;
    fields[1].name = "gripper", fields[1].data = &gripper, fields[1].element = OPENPI_FLOAT64;
    fields[2].name = "joints", fields[2].data = joints, fields[2].element = OPENPI_FLOAT64;
    fields[2].rank = 1, fields[2].shape[0] = 2;
    fields[3].name = "prompt", fields[3].text = "go on", fields[3].text_length = 2;
    WORKS(openpi_runner_observe_fields(g.runner, fields, 4, g.now + TICK, &error));
    asked(&g);
    assert_memory_equal(g.gate.state, ((double[]){0.25, 0.5, 0.75}), sizeof g.gate.state);
    assert_string_equal(g.gate.names[0], "images/front");
    const openpi_observation *o = g.gate.call.observation;
    assert_int_equal(o->image_count, 1);
    assert_memory_equal(o->images[0].data, g.pixels, PIXELS);
    assert_string_equal(o->prompt, "go");
    answer(&g, 7);
    assert_true(tick(&g, OPENPI_MOVE_ACTION) == 7);
    fields[2].shape[0] = 1;
    REFUSES(openpi_runner_observe_fields(g.runner, fields, 4, g.now + TICK, &error), OPENPI_BAD_INPUT,
            "\"joints\" of the request has 1 numbers, expected 2");
    REFUSES(openpi_runner_observe_fields(g.runner, fields, 2, g.now + TICK, &error), OPENPI_BAD_INPUT,
            "the request has no \"joints\"");
    REFUSES(openpi_runner_observe_fields(NULL, fields, 4, 0, &error), OPENPI_BAD_ARGUMENT, "is NULL");
    end(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_follow_each_other), cmocka_unit_test(next_allocates_nothing),
        cmocka_unit_test(holds_are_told_once),
        cmocka_unit_test(a_call_is_cancelled),      cmocka_unit_test(late_chunks_are_not_used),
        cmocka_unit_test(old_observations),         cmocka_unit_test(cameras_that_do_not_see),
        cmocka_unit_test(a_server_that_is_lost),    cmocka_unit_test(answers_that_are_wrong),
        cmocka_unit_test(stop_and_go),              cmocka_unit_test(lent_pictures_come_back_once),
        cmocka_unit_test(limits_of_the_robot),      cmocka_unit_test(a_stale_picture_is_not_computed),
        cmocka_unit_test(options_that_are_refused), cmocka_unit_test(many_threads),
        cmocka_unit_test(observations_may_be_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
