/* Two threads: the caller makes calls back to back; the watcher reads the energy counter at both ends of the
 * window and samples the clocks in between.
 *
 * Note: the caller's thread never reads the counter. A reading takes a GPU's counter some milliseconds, in
 * which the device would be idle: with a reading after every call a call took 7.8 J instead of 7.3 J. */
#include "lab/measure/energy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/ascii.h"
#include "base/clock.h"
#include "base/report.h"
#include "base/threads.h"

/* Each is entered by the thread in brackets. */
typedef enum window_phase {
    WARMING,                     /* until the first call has ended                                        */
    SEEKING_START,               /* [caller] the next movement of the counter is the start                */
    COUNTING,                    /* [watcher] inside the window: the watcher samples clocks               */
    SEEKING_END,                 /* [caller] long enough: the next movement of the counter is the end     */
    COUNTED,                     /* [watcher]                                                             */
    FAILED,                      /* [watcher] `error` holds the reason                                    */
} window_phase;

/* A movement of the counter. */
typedef struct movement {
    double ms, joules;
} movement;

typedef struct watcher {
    power *power;
    double patience_ms;          /* how long a counter may stand still                                    */
    atomic_int phase, stop;      /* a window_phase; 1: the calls are over                                 */
    movement start, end;         /* written before the phase that follows is entered                      */
    double core_mhz, memory_mhz; /* sums over the samples                                                 */
    int samples;
    char held[64];
    openpi_status status;
    openpi_error error;
} watcher;

/* ---- the watcher ----------------------------------------------------------------------------------- */

static void pause_a_millisecond(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

static openpi_status seek(watcher *w, movement *found) {
    double before, joules, begun = clock_ms();
    TRY(power_energy(w->power, &before, &w->error));
    do {
        if (clock_ms() - begun > w->patience_ms)
            return report(&w->error, OPENPI_UNSUPPORTED, "the energy counter (%s) does not move",
                          power_get_facts(w->power)->counter);
        pause_a_millisecond();
        TRY(power_energy(w->power, &joules, &w->error));
    } while (joules <= before && !atomic_load(&w->stop));
    *found = (movement){clock_ms(), joules};
    return OPENPI_OK;
}

static void sample_clocks(watcher *w) {
    power_reading now;
    power_clocks(w->power, &now);
    w->core_mhz += now.core_mhz;
    w->memory_mhz += now.memory_mhz;
    w->samples++;
    memcpy(w->held, now.held, sizeof w->held);
}

static void *watch(void *argument) {
    static const double between_ms = 100;
    watcher *w = argument;
    double sampled_ms = 0;
    for (; !atomic_load(&w->stop); pause_a_millisecond()) {
        int phase = atomic_load(&w->phase);
        if (phase == SEEKING_START || phase == SEEKING_END) {
            w->status = seek(w, phase == SEEKING_START ? &w->start : &w->end);
            phase = w->status != OPENPI_OK ? FAILED : phase == SEEKING_START ? COUNTING : COUNTED;
            atomic_store(&w->phase, phase);
        }
        if (phase != COUNTING || clock_ms() - sampled_ms < between_ms) continue;
        sample_clocks(w);
        sampled_ms = clock_ms();
    }
    return NULL;
}

static openpi_status start_watcher(watcher *w, pthread_t *thread, openpi_error *error) {
    int why = thread_start(thread, watch, w);
    if (!why) return OPENPI_OK;
    return report(error, OPENPI_SYSTEM, "the thread that reads the energy counter cannot be started: %s",
                  ascii_errno(why));
}

/* ---- the calls ------------------------------------------------------------------------------------- */

/* A call's number and when it ran. */
typedef struct one_call {
    int number;
    double begin_ms, end_ms;
} one_call;

/* The number of calls made until `ms`, which lies in this call: earlier calls and the elapsed part of this
 * one. */
static double calls_until(const one_call *c, double ms) {
    return c->number - 1 + (ms - c->begin_ms) / (c->end_ms - c->begin_ms);
}

/* Makes calls until the watcher has both ends of the window or has failed. *calls: the calls in between. */
static openpi_status run_calls(openpi_session *s, const bench_workload *w, workload_inputs *in,
                               watcher *watcher, double window_ms, double *calls, openpi_error *error) {
    double begun = clock_ms(), at_start = -1;
    one_call c = {.end_ms = begun};
    for (;;) {
        c = (one_call){.number = c.number + 1, .begin_ms = c.end_ms};
        if (w->changing_prompts) workload_change_prompts(in, &w->call, c.number);
        TRY(workload_run(s, in, NULL, error));
        c.end_ms = clock_ms();
        int phase = atomic_load(&watcher->phase);
        if (phase == FAILED) return OPENPI_OK;
        if (phase == WARMING) atomic_store(&watcher->phase, SEEKING_START);
        if (phase >= COUNTING && at_start < 0) at_start = calls_until(&c, watcher->start.ms);
        if (phase == COUNTING && c.end_ms - watcher->start.ms >= window_ms)
            atomic_store(&watcher->phase, SEEKING_END);
        uint64_t done = (uint64_t)(c.end_ms - begun), all = (uint64_t)window_ms;
        if (w->progress) w->progress(w->progress_user, "counting joules", done, all);
        if (phase != COUNTED) continue;
        *calls = calls_until(&c, watcher->end.ms) - at_start;
        return OPENPI_OK;
    }
}

static openpi_status run_window(openpi_session *s, const bench_workload *w, workload_inputs *in, power *power,
                                double window_ms, energy_report *out, openpi_error *error) {
    watcher watcher = {
        .power = power,
        .patience_ms = 3 * window_ms,
        .phase = WARMING,
        .error = OPENPI_ERROR_INIT,
    };
    pthread_t thread;
    double calls = 0;
    TRY(start_watcher(&watcher, &thread, error));
    openpi_status status = run_calls(s, w, in, &watcher, window_ms, &calls, error);
    atomic_store(&watcher.stop, 1);
    pthread_join(thread, NULL);
    if (status != OPENPI_OK) return status;
    if (watcher.status != OPENPI_OK) return report(error, watcher.status, "%s", watcher.error.message);
    *out = (energy_report){
        .window_s = (watcher.end.ms - watcher.start.ms) * 1e-3,
        .energy_j = watcher.end.joules - watcher.start.joules,
        .calls = calls,
        .core_mhz = watcher.core_mhz / watcher.samples,
        .memory_mhz = watcher.memory_mhz / watcher.samples,
    };
    memcpy(out->held, watcher.held, sizeof out->held);
    return OPENPI_OK;
}

openpi_status energy_run(openpi_session *s, const bench_workload *w, power *power, double seconds,
                         energy_report *out, openpi_error *error) {
    workload_inputs in = {0};
    *out = (energy_report){0};
    openpi_status status = workload_make(s, &w->call, &in, error);
    if (status == OPENPI_OK) status = run_window(s, w, &in, power, seconds * 1e3, out, error);
    workload_free(&in);
    return status;
}
