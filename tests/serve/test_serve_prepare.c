/* The threads of serve/prepare.c: a job of a reserved connection is prepared while all threads that shared
 * connections use are inside jobs that do not end. */
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
static model *served_model;
static job_pool pool = {.horizon = H, .action_dim = ARMS, .most_taken = 1 << 30};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_jobs_do_not_stop_reserved_ones),
        cmocka_unit_test(others_help),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
