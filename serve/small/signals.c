/* See signals.h.
 *
 * Note: the state is the process's, as signals are; the thread may outlive the server. */
#include "signals.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "clock.h"
#include "thread.h"

enum { LOOK_MS = 200 };

typedef enum phase { LOADING, SERVING, CLOSING, CLOSED } phase;

static struct {
    pthread_mutex_t lock;        /* guards what follows                                                    */
    int started;
    phase phase;
    signals_seen seen;
    double since_ms;             /* when the first one came that asks a load to end, or closing began      */
    logger *log;
    void (*woken)(void *user);
    void *user;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

static sigset_t set_of_all(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

/* Under the lock. */
static void count(int number) {
    if (number == SIGHUP) all.seen.reloads++;
    else all.seen.ends++;
    if (all.phase == LOADING && all.seen.ends == 1 && number != SIGHUP) all.since_ms = clock_now();
    if (all.woken) all.woken(all.user);
}

/* Under the lock. Why the process ends now; NULL: it does not. `number` 0: no signal came. */
static const char *why_now(int number) {
    double waited = all.since_ms > 0 ? clock_now() - all.since_ms : 0;
    int end = number == SIGTERM || number == SIGINT;
    switch (all.phase) {
    case LOADING:
        return (end && all.seen.ends > 1) || waited > 1e3 * SIGNALS_GRACE_S
                   ? "ended while the model was loaded: the load did not end by itself" : NULL;
    case SERVING: return end && all.seen.ends > 2 ? "ended at the third signal" : NULL;
    case CLOSING:
        return (end && all.seen.ends > 2) || waited > 1e3 * SIGNALS_CLOSING_S
                   ? "ended: something that was under way did not end by itself" : NULL;
    case CLOSED: break;
    }
    return NULL;
}

static void *run(void *unused) {
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000L};
    sigset_t set = set_of_all();
    (void)unused;
    for (;;) {
        int number = sigtimedwait(&set, NULL, &look);
        pthread_mutex_lock(&all.lock);
        if (number > 0) count(number);
        const char *why = why_now(number);
        if (why) {
            log_line(all.log, "ended", "%s", why);
            _exit(0);
        }
        pthread_mutex_unlock(&all.lock);
    }
    return NULL;
}

/* What waits for this thread alone is taken here. */
openpi_status signals_open(logger *log, openpi_error *error) {
    const struct timespec now = {0};
    sigset_t set = set_of_all();
    pthread_t thread;
    pthread_mutex_lock(&all.lock);
    all.log = log;
    all.phase = LOADING;
    all.seen = (signals_seen){.ends = 0};
    all.since_ms = 0;
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    for (int number; (number = sigtimedwait(&set, NULL, &now)) > 0;) count(number);
    openpi_status status = all.started ? OPENPI_OK
                                       : serve_thread_start(&thread, run, NULL, "signals",
                                                            "the thread that waits for signals", error);
    if (status == OPENPI_OK && !all.started) pthread_detach(thread);
    all.started = status == OPENPI_OK;
    pthread_mutex_unlock(&all.lock);
    return status;
}

signals_seen signals_look(void) {
    pthread_mutex_lock(&all.lock);
    signals_seen seen = all.seen;
    pthread_mutex_unlock(&all.lock);
    return seen;
}

void signals_serve(void (*woken)(void *user), void *user) {
    pthread_mutex_lock(&all.lock);
    all.phase = SERVING;
    all.woken = woken;
    all.user = user;
    if (woken) woken(user);
    pthread_mutex_unlock(&all.lock);
}

void signals_close(void) {
    pthread_mutex_lock(&all.lock);
    all.phase = CLOSING;
    all.woken = NULL;
    all.since_ms = clock_now();
    pthread_mutex_unlock(&all.lock);
}

void signals_closed(void) {
    pthread_mutex_lock(&all.lock);
    all.phase = CLOSED;
    pthread_mutex_unlock(&all.lock);
}
