/* labels: server threads links=serve */
/* The threads of serve/prepare.c: a job of a reserved connection is prepared while all threads that shared
 * connections use are inside jobs that do not end. And what preparing takes, which counts in flight. Messages
 * with several observations (serve/parts.c): threads share one, and its samples do not depend on them. */
#include <errno.h>
#include <sched.h>
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
#include "serve/prepare_inside.h"

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

/* ---- messages of several observations ---------------------------------------------------------------- */

enum { PARTS = 40, BROKEN = 7 };

/* Milliseconds; the least of all is that of a request in the middle. */
static int deadline_of(int part) { return 1000 + (7 * part + 20) % PARTS; }

/* The golden request, PARTS times, each with a deadline; number BROKEN of them is a number. */
static char *list_of_requests(size_t *bytes) {
    size_t one, at = 3;
    char *request = golden_read(GOLDEN "/policy/aloha_sim/request.msgpack", &one);
    static const char key[] = "\xb2openpi/deadline_ms";
    char *list = malloc(at + PARTS * (one + sizeof key + 2));
    assert_non_null(list);
    memcpy(list, (const char[]){'\xdc', 0, PARTS}, at);
    for (int i = 0; i < PARTS; i++) {
        char value[] = {'\xcd', (char)(deadline_of(i) >> 8), (char)deadline_of(i)};
        if (i == BROKEN) {
            list[at++] = 1;
            continue;
        }
        memcpy(list + at, request, one);
        list[at]++;                                    /* a map with one entry more                        */
        memcpy(list + at + one, key, sizeof key - 1);
        memcpy(list + at + one + sizeof key - 1, value, sizeof value);
        at += one + sizeof key - 1 + sizeof value;
    }
    free(request);
    *bytes = at;
    return list;
}

static prepare *start(int threads, size_t most) {
    prepare *made;
    prepare_options options = {.model = served_model,
                               .threads = threads,
                               .most = PARTS,
                               .in_flight = &pool.in_flight,
                               .seed = 3,
                               .preparing = count_taken,
                               .prepared = prepared,
                               .refused = must_not_fit};
    pool.in_flight.most = most;
    atomic_store(&taken, 0);
    WORKS(prepare_open(&options, &made, &error));
    return made;
}

static sem_t met[2];

/* Ends when another thread is inside, too. */
static void meet(prepare *p, job *job, int part) {
    (void)p;
    (void)job;
    sem_post(&met[part]);
    await(&met[!part], "a thread is alone with all parts");
}

static void threads_share_the_parts(void **state) {
    (void)state;
    prepare *prepare = start(1, 1 << 30);
    job *job = make_job(0);
    for (int i = 0; i < 2; i++) sem_init(&met[i], 0, 0);
    assert_true(job_make_parts(job, 2));
    prepare_each(prepare, job, meet);
    prepare_close(prepare);
    job_give(&pool, job);
}

static void same_part(const job *one, const job *many, int i) {
    enum { PIXELS = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3 };
    const job_part *a = &one->parts[i], *b = &many->parts[i];
    assert_int_equal(a->status, b->status);
    assert_string_equal(a->sentence, b->sentence);
    assert_int_equal(a->status == OPENPI_OK, i != BROKEN);
    if (i == BROKEN) return;
    assert_memory_equal(a->sample.image_mask, b->sample.image_mask, sizeof a->sample.image_mask);
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        assert_memory_equal(a->sample.images[c], b->sample.images[c], PIXELS);
    assert_int_equal(a->sample.token_count, b->sample.token_count);
    assert_memory_equal(a->sample.tokens, b->sample.tokens,
                        (size_t)a->sample.token_count * sizeof *a->sample.tokens);
    assert_memory_equal(a->sample.state, b->sample.state, OPENPI_ACTION_DIM * sizeof *a->sample.state);
}

/* By one thread and by four. The second message is prepared although the first one is not computed. */
static void parts_do_not_depend_on_threads(void **state) {
    (void)state;
    static const int threads[] = {1, 4};
    size_t bytes, noises = PARTS * (size_t)H * OPENPI_ACTION_DIM * sizeof(float);
    char *list = list_of_requests(&bytes);
    job *jobs[2];
    prepare *prepares[2];
    for (int i = 0; i < 2; i++) {
        prepares[i] = start(threads[i], (size_t)1 << 32);
        for (int again = 0; again < 2; again++) {
            jobs[i] = make_request(0, list, bytes);
            jobs[i]->order = 5;
            prepare_put(prepares[i], jobs[i]);
            await(&over[0], "a message is not prepared while another one waits for a device");
            if (again) continue;
            job *first = jobs[i];
            jobs[i] = make_request(0, list, bytes);
            prepare_put(prepares[i], jobs[i]);
            await(&over[0], "a message is not prepared beside another one");
            for (int k = 0; k < 2; k++) {
                prepare_release(prepares[i], k ? jobs[i] : first);
                job_give(&pool, k ? jobs[i] : first);
            }
        }
    }
    assert_int_equal(jobs[0]->fit_count, PARTS - 1);
    for (int i = 0; i < 2; i++) assert_true(jobs[i]->deadline_ms == 1000);
    assert_memory_equal(jobs[0]->fit, jobs[1]->fit, (PARTS - 1) * sizeof *jobs[0]->fit);
    for (int i = 0; i < PARTS; i++) same_part(jobs[0], jobs[1], i);
    for (int k = 0; k < PARTS - 1; k++) {
        size_t at = (size_t)jobs[0]->fit[k] * H * OPENPI_ACTION_DIM, one = noises / PARTS;
        assert_memory_equal(jobs[0]->noise + at, jobs[1]->noise + at, one);
    }
    for (int i = 0; i < 2; i++) {
        prepare_release(prepares[i], jobs[i]);
        prepare_close(prepares[i]);
        job_give(&pool, jobs[i]);
    }
    assert_int_equal(atomic_load(&pool.in_flight.taken), 0);
    free(list);
}

static int waits_again(prepare *p, const job *job) {
    pthread_mutex_lock(&p->lock);
    int waits = p->lanes[SCHEDULER_SHARED].first == job && job->needs;
    pthread_mutex_unlock(&p->lock);
    return waits;
}

/* What a message of several needs is known when its observations are counted. Where that is more than half of
 * what is left, it waits until no other job has a request; its memory is kept for the next message. */
static void messages_of_several_wait_for_memory(void **state) {
    (void)state;
    size_t bytes;
    char *list = list_of_requests(&bytes);
    job *jobs[2];
    for (int i = 0; i < 2; i++) jobs[i] = make_request(0, list, bytes);
    prepare *prepare = start(2, (size_t)1 << 32);
    size_t messages = atomic_load(&pool.in_flight.taken);
    prepare_put(prepare, jobs[0]);
    await(&over[0], "a message alone is not prepared");
    size_t needs = jobs[0]->needs, whole = openpi_request_bytes(served_model->policy, bytes, NULL);
    assert_true(needs > whole && jobs[0]->preparing_bytes < needs);
    pool.in_flight.most = atomic_load(&pool.in_flight.taken) + 2 * needs - 1;      /* whole would fit       */
    prepare_put(prepare, jobs[1]);
    time_t end = time(NULL) + 60;
    while (!waits_again(prepare, jobs[1])) {
        assert_true(time(NULL) < end);
        int value = -1;
        sem_getvalue(&over[0], &value);
        assert_int_equal(value, 0);
        sched_yield();
    }
    job *one = make_request(1, list, bytes);
    prepare_put(prepare, one);
    await(&over[1], "a reserved message waits");
    prepare_release(prepare, one);
    prepare_release(prepare, jobs[0]);
    await(&over[0], "the message is not prepared when no job has a request");
    prepare_release(prepare, jobs[1]);
    uint8_t *memory = jobs[1]->bytes;
    assert_true(jobs[1]->room > 1);
    job_give(&pool, one);
    job_give(&pool, jobs[0]);
    job_give(&pool, jobs[1]);
    job *next = job_take(&pool);
    assert_ptr_equal(next->bytes, memory);
    assert_int_equal(next->room, 1);
    job_give(&pool, next);
    prepare_close(prepare);
    assert_true(messages >= 2 * bytes);
    assert_int_equal(atomic_load(&pool.in_flight.taken), 0);
    pool.in_flight.most = 1 << 30;
    free(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_jobs_do_not_stop_reserved_ones),
        cmocka_unit_test(others_help),
        cmocka_unit_test(preparing_counts),
        cmocka_unit_test(threads_share_the_parts),
        cmocka_unit_test(parts_do_not_depend_on_threads),
        cmocka_unit_test(messages_of_several_wait_for_memory),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
