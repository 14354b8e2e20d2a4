/* openpi bench --runner: how long the control thread's call takes beside a model that computes all the time.
 *
 * A runner over a source that runs the made-up call of the other benchmarks, so no robot or statistics are
 * needed: its actions are zeros. The control thread wakes at the given rate and times openpi_runner_next by
 * its own clock; it has SCHED_FIFO where the system allows it. */
#define _GNU_SOURCE              /* SCHED_FIFO's names */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "cli.h"
#include "json_file.h"
#include "openpi_runner.h"

enum { DIMS = 8, PRIORITY = 50, ROWS_A_SECOND = 50, MOST_CALLS = 1000 };

/* A DROID arm's action, without its cameras. */
#define VELOCITY "\"velocity\", "
static const char robot[] =
    "{\"name\": \"arm\", \"cameras\": {\"front\": \"base\"}, \"state\": {\"state\": 8}, \"actions\": 8, "
    "\"rate_hz\": 50, \"kinds\": [" VELOCITY VELOCITY VELOCITY VELOCITY VELOCITY VELOCITY VELOCITY
    "\"position\"]}";

typedef struct runner_bench {
    bench_job *job;
    openpi_session *session;
    workload_inputs inputs;
    openpi_runner *runner;
    double rate;
    int ticks, first;            /* that count; those before them that do not                              */
    double *us;                  /* [ticks], sorted at the end                                             */
    double late_ms;              /* the latest a tick began                                                */
    int is_fifo;                 /* 1: the control thread had SCHED_FIFO                                   */
    char not_fifo[120];
    int failed;
} runner_bench;

static void sleep_until(double ms) {
    struct timespec until = {.tv_sec = (time_t)(ms / 1e3)};
    until.tv_nsec = (long)((ms - (double)until.tv_sec * 1e3) * 1e6);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {}
}

static openpi_status infer(void *user, const openpi_chunk_call *call, openpi_chunk *chunk,
                           openpi_error *error) {
    runner_bench *b = user;
    openpi_session_info info = OPENPI_SESSION_INFO_INIT;
    (void)call;
    openpi_status status = workload_run(b->session, &b->inputs, NULL, error);
    if (status == OPENPI_OK) status = openpi_session_get_info(b->session, &info, error);
    chunk->rows = info.horizon;
    memset(chunk->actions, 0, (size_t)chunk->rows * (size_t)chunk->action_dim * sizeof *chunk->actions);
    return status;
}

/* ---- the control thread ----------------------------------------------------------------------------- */

static void ask_for_fifo(runner_bench *b) {
    const struct sched_param highest = {.sched_priority = PRIORITY};
    int code = pthread_setschedparam(pthread_self(), SCHED_FIFO, &highest);
    b->is_fifo = !code;
    if (code)
        snprintf(b->not_fifo, sizeof b->not_fifo, "%s", code == EPERM ? "it is not allowed" : "it failed");
}

/* One tick: an observation every row, as a camera thread would give it, and the call that is timed. */
static double tick(runner_bench *b, int number) {
    double state[DIMS] = {0}, action[DIMS];
    openpi_runner_state told = OPENPI_RUNNER_STATE_INIT;
    openpi_observation seen = OPENPI_OBSERVATION_INIT;
    seen.state = state;
    seen.state_length = DIMS;
    if (number % (int)fmax(b->rate / ROWS_A_SECOND, 1) == 0)
        b->failed |= openpi_runner_observe(b->runner, &seen, now_ms(), NULL) != OPENPI_OK;
    double began = now_ms();
    openpi_runner_next(b->runner, began, action, &told);
    return (now_ms() - began) * 1e3;
}

static void *control(void *user) {
    runner_bench *b = user;
    ask_for_fifo(b);
    double due = now_ms();
    for (int t = -b->first; t < b->ticks; t++) {
        sleep_until(due);
        double late = now_ms() - due, us = tick(b, t + b->first);
        if (t >= 0) {
            b->us[t] = us;
            b->late_ms = fmax(b->late_ms, late);
        }
        due = fmax(due + 1000 / b->rate, now_ms());
    }
    return NULL;
}

/* ---- results ---------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double part(const runner_bench *b, double part) {
    return b->us[(int)fmin(part * b->ticks, b->ticks - 1)];
}

static int show(runner_bench *b) {
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    if (openpi_runner_get_info(b->runner, &info, &error)) return library_error(&verb_bench, &error);
    if (info.failure[0]) return input_error(&verb_bench, "%s", info.failure);
    qsort(b->us, (size_t)b->ticks, sizeof *b->us, by_size);
    printf("openpi_runner_next at %g Hz beside %d calls of the model, %.3g ms each; %s%s\n", b->rate,
           (int)info.calls, info.call_ms, b->is_fifo ? "SCHED_FIFO" : "without SCHED_FIFO: ", b->not_fifo);
    printf("%10s %10s %10s %10s %10s %10s\n", "calls", "p50", "p99", "p99.9", "max", "late");
    printf("%10d %7.2f us %7.2f us %7.2f us %7.2f us %7.3g ms\n", b->ticks, part(b, 0.5), part(b, 0.99),
           part(b, 0.999), b->us[b->ticks - 1], b->late_ms);
    if (!b->job->v.json) return END_FINE;
    json_t *root = subject_json(&b->job->subject, "bench-runner");
    json_object_set_new(root, "runner",
                        json_pack("{s:f, s:i, s:i, s:f, s:b, s:f, s:f, s:f, s:f, s:f}", "rate_hz", b->rate,
                                  "calls", b->ticks, "model_calls", (int)info.calls, "model_ms", info.call_ms,
                                  "sched_fifo", b->is_fifo, "p50_us", part(b, 0.5), "p99_us", part(b, 0.99),
                                  "p999_us", part(b, 0.999), "max_us", b->us[b->ticks - 1], "late_ms",
                                  b->late_ms));
    return json_save(&verb_bench, b->job->v.json, root);
}

/* ---- running ---------------------------------------------------------------------------------------- */

static int open_runner(runner_bench *b) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_runner_options options = OPENPI_RUNNER_OPTIONS_INIT;
    openpi_source source = OPENPI_SOURCE_INIT;
    int end = subject_session(&b->job->subject, 1, 0, &b->session);
    if (end != END_FINE) return end;
    source.user = b;
    source.infer = infer;
    options.robot = robot;
    options.calls_per_step = (int)fmin(fmax(b->rate / ROWS_A_SECOND, 1), MOST_CALLS);
    options.ask_after = 1;
    options.max_age_ms = options.deadline_ms = INFINITY;
    if (workload_make(b->session, &b->job->subject.call, &b->inputs, &error) ||
        openpi_runner_over_source(&source, &options, &b->runner, &error))
        return library_error(&verb_bench, &error);
    return END_FINE;
}

static int time_it(runner_bench *b) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, control, b)) return input_error(&verb_bench, "the thread cannot start");
    pthread_join(thread, NULL);
    if (b->failed) return input_error(&verb_bench, "the runner took no observation");
    return show(b);
}

int bench_runner(bench_job *job) {
    runner_bench *b = allocate(sizeof *b);
    *b = (runner_bench){.job = job, .rate = job->v.runner};
    b->ticks = job->v.runner * job->v.seconds;
    b->first = job->v.runner;
    b->us = allocate((size_t)b->ticks * sizeof *b->us);
    subject_print(&job->subject);
    int end = open_runner(b);
    if (end == END_FINE) end = time_it(b);
    openpi_runner_close(b->runner);
    workload_free(&b->inputs);
    openpi_session_close(b->session);
    free(b->us);
    free(b);
    return end;
}
