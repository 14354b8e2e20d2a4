/* labels: threads */
/* The pool as a good guest: its workers take no signals, and a caller with nothing left to do sleeps, so that
 * it keeps no worker from a processor that both need, whatever the caller's priority. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/threads.h"

enum { PATIENCE = 60000 };       /* looks, a millisecond apart */

static void pause_a_millisecond(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

/* 'R' running or ready, 'S' asleep, … */
static char state_of(long thread) {
    char path[64], line[400] = "";
    snprintf(path, sizeof path, "/proc/self/task/%ld/stat", thread);
    FILE *file = fopen(path, "r");
    if (!file) return '?';
    const char *name_ends = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
    fclose(file);
    return name_ends && name_ends[1] ? name_ends[2] : '?';
}

typedef struct meeting {
    atomic_int present;
    int people;
    long caller;
    atomic_int caller_slept, signals_open;
} meeting;

/* No thread leaves before all have come: so each has one of the tasks. */
static void meet(meeting *m) {
    atomic_fetch_add(&m->present, 1);
    while (atomic_load(&m->present) < m->people) pause_a_millisecond();
}

/* ---- signals -------------------------------------------------------------------------------------- */

static void look_at_signals(void *argument, int task, int worker) {
    meeting *m = argument;
    sigset_t blocked;
    (void)task;
    meet(m);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    for (int s = 1; s < 32 && worker; s++)
        if (s != SIGKILL && s != SIGSTOP && !sigismember(&blocked, s)) atomic_fetch_add(&m->signals_open, 1);
}

static void workers_block_signals(void **state) {
    (void)state;
    pool *pool;
    sigset_t before, after;
    meeting m = {.people = 3};
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(pool_create(3, 0, &pool, NULL), OPENPI_OK);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int s = 1; s < 32; s++) assert_int_equal(sigismember(&before, s), sigismember(&after, s));
    pool_run(pool, look_at_signals, &m, 3);
    assert_int_equal(atomic_load(&m.signals_open), 0);
    pool_close(pool);
}

/* ---- sleeping ------------------------------------------------------------------------------------- */

/* The caller's task ends at once; a worker's lasts until the caller sleeps. */
static void last_until_the_caller_sleeps(void *argument, int task, int worker) {
    meeting *m = argument;
    (void)task;
    meet(m);
    for (int i = 0; i < PATIENCE && worker && !atomic_load(&m->caller_slept); i++) {
        if (state_of(m->caller) == 'S') atomic_store(&m->caller_slept, 1);
        else pause_a_millisecond();
    }
}

static void run_until_it_sleeps(int threads) {
    pool *pool;
    assert_int_equal(pool_create(threads, 0, &pool, NULL), OPENPI_OK);
    for (int i = 0; i < 20; i++) {
        meeting m = {.people = threads, .caller = syscall(SYS_gettid)};
        pool_run(pool, last_until_the_caller_sleeps, &m, threads);
        assert_int_equal(atomic_load(&m.caller_slept), 1);
    }
    pool_close(pool);
}

static void the_caller_sleeps(void **state) {
    (void)state;
    run_until_it_sleeps(2);
}

/* Workers without priority and a caller under SCHED_FIFO on one processor: where they may not run it is
 * theirs no more. */
static void *prior_caller(void *argument) {
    pool *pool = argument;
    struct sched_param priority = {.sched_priority = 1};
    int why = pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority);
    if (why) return (void *)(uintptr_t)strerror(why);
    for (int i = 0; i < 20; i++) {
        meeting m = {.people = 3, .caller = syscall(SYS_gettid)};
        pool_run(pool, last_until_the_caller_sleeps, &m, 3);
        if (!atomic_load(&m.caller_slept)) return (void *)(uintptr_t)"the caller never slept";
    }
    return NULL;
}

static void a_prior_caller_starves_nobody(void **state) {
    (void)state;
    cpu_set_t before, one;
    pool *pool;
    pthread_t caller;
    void *why;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* threads made from here on stay there */
    assert_int_equal(pool_create(3, 0, &pool, NULL), OPENPI_OK);
    assert_int_equal(pthread_create(&caller, NULL, prior_caller, pool), 0);
    assert_int_equal(pthread_join(caller, &why), 0);
    sched_setaffinity(0, sizeof before, &before);
    pool_close(pool);
    if (why && strcmp(why, strerror(1)) == 0) {
        print_message("           skipped: this user may not give a thread a priority (%s)\n", (char *)why);
        skip();
    }
    if (why) fail_msg("%s", (char *)why);
}

/* ---- whatever the order --------------------------------------------------------------------------- */

static void add_one(void *argument, int task, int worker) {
    (void)worker;
    ((int *)argument)[task]++;
}

static void *run_many(void *argument) {
    static _Thread_local int counts[64];
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < 3000; i++) pool_run(argument, add_one, counts, 2 + i % 63);
    for (int task = 0; task < 64; task++)
        for (int expected = 0, i = 0; i <= 3000; i++) {
            if (i < 3000) expected += task < 2 + i % 63;
            else if (counts[task] != expected) return (void *)(uintptr_t)"a task was lost or ran twice";
        }
    return NULL;
}

/* More threads than processors, so that callers and workers fall asleep at every point. */
static void every_task_runs_once(void **state) {
    (void)state;
    pool *pool;
    pthread_t callers[3];
    assert_int_equal(pool_create(5, 0, &pool, NULL), OPENPI_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&callers[i], NULL, run_many, pool), 0);
    for (int i = 0; i < 3; i++) {
        void *why;
        pthread_join(callers[i], &why);
        if (why) fail_msg("%s", (char *)why);
    }
    pool_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_block_signals), cmocka_unit_test(the_caller_sleeps),
        cmocka_unit_test(a_prior_caller_starves_nobody), cmocka_unit_test(every_task_runs_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
