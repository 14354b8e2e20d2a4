#define _GNU_SOURCE
#include "base/threads.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/ascii.h"
#include "base/report.h"

/* Spins before a thread sleeps: a worker that waits for the next loop, about 50 microseconds; the caller that
 * waits for the last task, longer, because its return delays the whole inference. */
enum { WORKER_SPINS = 4000, CALLER_SPINS = 10000, MAX_THREADS = 1024 };

typedef struct worker {
    struct pool *pool;
    pthread_t thread;
    int index;
} worker;

struct pool {
    int threads;                 /* with the caller                                            */
    int started;                 /* worker threads that run                                    */
    pid_t process;               /* that owns the threads: a forked child has none of them     */
    pthread_mutex_t turn;        /* held by the caller whose loop runs                         */
    pthread_mutex_t mutex;       /* guards the two conditions below                            */
    pthread_cond_t wake;         /* a loop starts                                              */
    pthread_cond_t ended;        /* the last task of a loop is done                            */
    int spins;                   /* 1: threads spin before they sleep; 0: there are too many    */
    pool_task task;
    void *argument;
    _Alignas(64) atomic_uint epoch;      /* counts loops; a change starts the workers          */
    atomic_int sleepers;
    _Alignas(64) atomic_ullong ticket;   /* upper half: tasks of this loop; lower: the next task    */
    _Alignas(64) atomic_int done;        /* tasks of this loop that are done                   */
    atomic_int waiting;                  /* 1: the caller sleeps until all tasks are done       */
    atomic_int closing;
    worker workers[];
};

/* Tells the processor that this thread only waits. */
static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A ticket holds the number of tasks of its loop, so it shows by itself whether it is valid. A worker that
 * wakes late, between two loops, draws an invalid ticket; one that wakes in the next loop works on that loop.
 * So no thread waits for a worker that has drawn no ticket. */
static void work(pool *pool, int index) {
    int count = 0, tasks;
    for (;;) {
        unsigned long long ticket = atomic_fetch_add_explicit(&pool->ticket, 1, memory_order_acquire);
        tasks = (int)(ticket >> 32);
        if ((uint32_t)ticket >= (uint32_t)tasks) break;
        pool->task(pool->argument, (int)(uint32_t)ticket, index);
        count++;
    }
    /* The caller sets `waiting` and then reads `done`; a worker adds to `done` and then reads `waiting`. So
     * at least one of the two sees the other's write. */
    if (!count || atomic_fetch_add(&pool->done, count) + count < tasks || !atomic_load(&pool->waiting))
        return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->ended);
    pthread_mutex_unlock(&pool->mutex);
}

/* The caller waits for tasks that workers hold. It may not spin for long: under a real-time policy it would
 * keep the processor from a worker of lower priority that needs it to finish. */
static void wait_for_tasks(pool *pool, int tasks) {
    for (int i = 0; i < pool->spins * CALLER_SPINS; i++) {
        if (atomic_load_explicit(&pool->done, memory_order_acquire) == tasks) return;
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->waiting, 1);
    while (atomic_load(&pool->done) < tasks) pthread_cond_wait(&pool->ended, &pool->mutex);
    atomic_store(&pool->waiting, 0);
    pthread_mutex_unlock(&pool->mutex);
}

static unsigned wait_for_epoch(pool *pool, unsigned seen) {
    unsigned now;
    for (int i = 0; i < pool->spins * WORKER_SPINS; i++) {
        now = atomic_load_explicit(&pool->epoch, memory_order_acquire);
        if (now != seen) return now;
        relax();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while ((now = atomic_load(&pool->epoch)) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
    return now;
}

static void *worker_main(void *argument) {
    worker *self = argument;
    pool *pool = self->pool;
    unsigned epoch = 0;
    for (;;) {
        epoch = wait_for_epoch(pool, epoch);
        if (atomic_load(&pool->closing)) return NULL;
        work(pool, self->index);
    }
}

static void start_loop(pool *pool) {
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
}

/* The processors this process may use, in ascending order; returns how many. */
static int allowed_processors(int *processors, int capacity) {
    cpu_set_t set;
    int count = 0;
    if (sched_getaffinity(0, sizeof set, &set)) return 0;
    for (int i = 0; i < CPU_SETSIZE && count < capacity; i++)
        if (CPU_ISSET(i, &set)) processors[count++] = i;
    return count;
}

/* A lock whose holder inherits the priority of the thread that waits for it. */
static void make_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setprotocol(&how, PTHREAD_PRIO_INHERIT);
    if (pthread_mutex_init(lock, &how)) pthread_mutex_init(lock, NULL);
    pthread_mutexattr_destroy(&how);
}

int thread_start(pthread_t *thread, void *(*main)(void *argument), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int why = pthread_create(thread, NULL, main, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return why;
}

openpi_status pool_create(int threads, int pin, pool **out, openpi_error *error) {
    int processors[MAX_THREADS];
    int allowed = allowed_processors(processors, MAX_THREADS);
    if (threads < 0 || threads > MAX_THREADS)
        return report(error, OPENPI_BAD_ARGUMENT, "threads is %d, expected 1 to %d (0: all)", threads,
                      MAX_THREADS);
    if (!threads) threads = allowed ? allowed : 1;
    size_t bytes = (sizeof(pool) + sizeof(worker) * (size_t)threads + 63) & ~(size_t)63;
    pool *pool = aligned_alloc(64, bytes);
    if (!pool) return report_no_memory(error, bytes, "the thread pool");
    memset(pool, 0, bytes);
    pool->threads = threads;
    pool->process = getpid();
    pool->spins = !allowed || threads <= allowed;
    make_lock(&pool->turn);
    make_lock(&pool->mutex);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->ended, NULL);
    for (int i = 1; i < threads; i++) {
        worker *w = &pool->workers[i];
        *w = (worker){pool, 0, i};
        int why = thread_start(&w->thread, worker_main, w);
        if (why) {
            pool_close(pool);
            return report(error, OPENPI_SYSTEM, "worker thread %d of %d cannot be started: %s", i, threads,
                          ascii_errno(why));
        }
        pool->started++;
        if (pin && allowed) {
            cpu_set_t set;
            CPU_ZERO(&set);
            CPU_SET(processors[i % allowed], &set);
            pthread_setaffinity_np(w->thread, sizeof set, &set);
        }
    }
    *out = pool;
    return OPENPI_OK;
}

void pool_close(pool *pool) {
    if (!pool) return;
    if (pool->process != getpid()) {     /* no threads to wake or to join, and locks that may stay held */
        free(pool);
        return;
    }
    atomic_store(&pool->closing, 1);
    start_loop(pool);
    for (int i = 1; i <= pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->ended);
    pthread_mutex_destroy(&pool->mutex);
    pthread_mutex_destroy(&pool->turn);
    free(pool);
}

int pool_threads(const pool *pool) { return pool->threads; }

void pool_run(pool *pool, pool_task task, void *argument, int tasks) {
    if (tasks <= 0) return;
    pthread_mutex_lock(&pool->turn);
    if (pool->threads == 1 || tasks == 1) {
        for (int i = 0; i < tasks; i++) task(argument, i, 0);
        pthread_mutex_unlock(&pool->turn);
        return;
    }
    pool->task = task;
    pool->argument = argument;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->ticket, (unsigned long long)tasks << 32, memory_order_release);
    start_loop(pool);
    work(pool, 0);
    wait_for_tasks(pool, tasks);
    pthread_mutex_unlock(&pool->turn);
}
