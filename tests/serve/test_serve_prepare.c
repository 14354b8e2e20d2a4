/* labels: server threads links=serve */
/* The threads of serve/prepare.c: a job of a reserved connection is prepared while all threads that shared
 * connections use are inside jobs that do not end. And what preparing takes, which counts in flight. */
#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "policy_golden.h"
#include "serve/prepare.h"

enum { THREADS = 2, H = 5, ARMS = 14, SHARED = THREADS + 1, RESERVED = 3 };

static openpi_error error = OPENPI_ERROR_INIT;
static serve_model *served_model;
static job_pool pool = {.horizon = H, .action_dim = ARMS, .in_flight = {.most = 1 << 30}};
static atomic_int blocking;      /* threads that are still to be stopped inside a job                      */
static sem_t inside, go_on, over[2];

static int set_up(void **state) {
    (void)state;
    static openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    WORKS(openpi_synthetic_parse("tiny", &synthetic, &error));
    options.synthetic = &synthetic;
    options.robot = "aloha";
    WORKS(model_open(NULL, &options, H, 1, &served_model, &error));
    sem_init(&inside, 0, 0);
    sem_init(&go_on, 0, 0);
    for (int i = 0; i < 2; i++) sem_init(&over[i], 0, 0);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    model_drop(served_model);
    job_pool_close(&pool);
    return 0;
}

/* A busy machine may take seconds. */
static void await(sem_t *semaphore, const char *what) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 60;
    int status = sem_timedwait(semaphore, &end);
    while (status && errno == EINTR) status = sem_timedwait(semaphore, &end);
    if (status) fail_msg("%s", what);
}

static void stand_still(void *user) {
    (void)user;
    if (atomic_fetch_sub(&blocking, 1) <= 0) return;
    sem_post(&inside);
    sem_wait(&go_on);
}

static void must_not_fit(void *user, job *job) {
    (void)user;
    (void)job;
    abort();
}

static void refused(void *user, job *job) {
    (void)user;
    sem_post(&over[job->reserved]);
}

/* Its message is no request: what becomes of it does not matter here. */
static job *make_job(int reserved) {
    job *made = job_take(&pool);
    assert_non_null(made);
    assert_true(job_append(&pool, made, (const uint8_t *)"?", 1));
    made->reserved = reserved;
    return made;
}

static void shared_jobs_do_not_stop_reserved_ones(void **state) {
    (void)state;
    job *shared[SHARED], *reserved[RESERVED];
    prepare *prepare;
    prepare_options options = {.model = served_model,
                               .threads = THREADS,
                               .most = 64,
                               .preparing = stand_still,
                               .prepared = must_not_fit,
                               .refused = refused};
    atomic_init(&blocking, THREADS);
    WORKS(prepare_open(&options, &prepare, &error));
    for (int i = 0; i < SHARED; i++) prepare_put(prepare, shared[i] = make_job(0));
    for (int i = 0; i < THREADS; i++) await(&inside, "a shared job is not taken");
    for (int i = 0; i < RESERVED; i++) {
        prepare_expect(prepare, 1);
        prepare_put(prepare, reserved[i] = make_job(1));
    }
    for (int i = 0; i < RESERVED; i++) await(&over[1], "a reserved job waits for the shared ones");
    int value = -1;
    sem_getvalue(&over[0], &value);
    assert_int_equal(value, 0);
    for (int i = 0; i < THREADS; i++) sem_post(&go_on);
    for (int i = 0; i < SHARED; i++) await(&over[0], "a shared job is not prepared");
    /* three were in use at a time; who is idle since the look before is closed, but for one a thread */
    assert_int_equal(prepare_trim(prepare, 1e6), 0);
    assert_int_equal(prepare_trim(prepare, 1e6 + 1000), 0);
    assert_int_equal(prepare_trim(prepare, 2e6), 1);
    assert_int_equal(prepare_trim(prepare, 3e6), 0);
    prepare_close(prepare);
    for (int i = 0; i < SHARED; i++) job_give(&pool, shared[i]);
    for (int i = 0; i < RESERVED; i++) job_give(&pool, reserved[i]);
}

/* Where its own thread stands still, the others prepare reserved jobs; no shared job goes to its own. */
static void others_help(void **state) {
    (void)state;
    job *jobs[RESERVED];
    prepare *prepare;
    prepare_options options = {.model = served_model,
                               .threads = THREADS,
                               .most = 64,
                               .preparing = stand_still,
                               .prepared = must_not_fit,
                               .refused = refused};
    atomic_store(&blocking, 1);
    WORKS(prepare_open(&options, &prepare, &error));
    for (int i = 0; i < RESERVED; i++) prepare_put(prepare, jobs[i] = make_job(1));
    await(&inside, "a reserved job is not taken");
    for (int i = 1; i < RESERVED; i++) await(&over[1], "a reserved job waits for the one before");
    sem_post(&go_on);
    await(&over[1], "the first one is not prepared");
    prepare_close(prepare);
    for (int i = 0; i < RESERVED; i++) job_give(&pool, jobs[i]);
}

/* ---- what counts in flight --------------------------------------------------------------------------- */

static atomic_int taken;         /* jobs that a thread has begun with                                      */

static void count_taken(void *user) {
    (void)user;
    atomic_fetch_add(&taken, 1);
}

static void prepared(void *user, job *job) {
    (void)user;
    sem_post(&over[job->reserved]);
}

static job *make_request(int reserved, const char *bytes, size_t count) {
    job *made = job_take(&pool);
    assert_non_null(made);
    assert_true(job_append(&pool, made, (const uint8_t *)bytes, count));
    made->reserved = reserved;
    return made;
}

/* Messages take what they have; a prepared request, and one that is being prepared, what it may need. Shared
 * ones wait where that is more than half of what is left, reserved ones do not, and one alone goes on. */
static void preparing_counts(void **state) {
    (void)state;
    enum { ALL = 5 };
    size_t bytes, kept, most, messages;
    char *request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &bytes);
    job *jobs[ALL];
    prepare *prepare;
    prepare_options options = {.model = served_model,
                               .threads = 1,
                               .most = 64,
                               .in_flight = &pool.in_flight,
                               .preparing = count_taken,
                               .prepared = prepared,
                               .refused = must_not_fit};
    most = openpi_request_bytes(served_model->policy, bytes, &kept);
    assert_true(kept > bytes && kept < most);
    atomic_init(&taken, 0);
    assert_int_equal(atomic_load(&pool.in_flight.taken), 0);
    for (int i = 0; i < ALL; i++) jobs[i] = make_request(i == 2 || i == 3, request, bytes);
    messages = atomic_load(&pool.in_flight.taken);
    assert_true(messages >= ALL * bytes);
    pool.in_flight.most = messages + kept + most;
    WORKS(prepare_open(&options, &prepare, &error));
    prepare_put(prepare, jobs[0]);
    await(&over[0], "a job alone is not prepared");
    assert_int_equal(atomic_load(&pool.in_flight.taken), messages + kept);
    prepare_put(prepare, jobs[1]);           /* most is less than twice of what is left                    */
    for (int i = 2; i < 4; i++) {
        prepare_put(prepare, jobs[i]);
        await(&over[1], "a reserved job waits");
        assert_int_equal(atomic_load(&taken), i);
    }
    assert_int_equal(atomic_load(&pool.in_flight.taken), messages + 3 * kept);
    in_flight_add(&pool.in_flight, most);    /* so more is taken than there may be                         */
    assert_int_equal(in_flight_left(&pool.in_flight), 0);
    assert_false(job_append(&pool, jobs[4], (const uint8_t *)request, jobs[4]->capacity));
    for (int i = 0; i < 4; i++) {
        if (i == 1) continue;
        int value = -1;
        sem_getvalue(&over[0], &value);
        assert_int_equal(value, 0);
        prepare_release(prepare, jobs[i]);
    }
    await(&over[0], "the shared job is not prepared when nobody has a request");
    in_flight_give(&pool.in_flight, most);
    assert_int_equal(atomic_load(&pool.in_flight.taken), messages + kept);
    prepare_release(prepare, jobs[1]);
    assert_int_equal(atomic_load(&pool.in_flight.taken), messages);
    prepare_close(prepare);
    pool.in_flight.most = 1 << 30;
    for (int i = 0; i < ALL; i++) job_give(&pool, jobs[i]);
    assert_int_equal(atomic_load(&pool.in_flight.taken), 0);
    free(request);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_jobs_do_not_stop_reserved_ones),
        cmocka_unit_test(others_help),
        cmocka_unit_test(preparing_counts),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
