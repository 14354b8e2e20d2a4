/* A robot that talks to `openpi serve` with real-time chunking, in C: it moves at its rate while the next
 * chunk is computed.
 *
 *   robot ws://127.0.0.1:8000 RATE STEPS [trained]
 *
 * trained: the checkpoint was trained for a delay. OPENPI_KEY: the key of a token, where one is wanted.
 *
 * The runner (docs/runner.md) does what is hard: it asks for chunks in a thread of its own, always with the
 * newest observation, goes on with the row of the measured delay, holds the arm still where no action is
 * there, and connects again where the server is restarted.
 *
 * examples/rtc_client.py is the same in Python. This robot is a DROID arm that sees grey: observe() and
 * execute() are yours. Over a model in this process it is openpi_runner_open in place of the source.
 *
 * `make test` builds build/tests/robot. By hand, in a checkout that is installed:
 *   cc -O2 -D_POSIX_C_SOURCE=200809L -I. -o robot examples/robot.c client/client_address.c \
 *      client/client_bytes.c client/client_reply.c client/client_request.c client/client_socket.c \
 *      client/client_source.c $(pkg-config --cflags --libs openpi libwebsockets libuv) -lm */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/client_source.h"

enum { SIDE = 224, JOINTS = 7, STATES = JOINTS + 1, DIMS = 8 };

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void sleep_until(double ms) {
    struct timespec until = {.tv_sec = (time_t)(ms / 1e3)};
    until.tv_nsec = (long)((ms - (double)until.tv_sec * 1e3) * 1e6);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* ---- the robot's own -------------------------------------------------------------------------------- */

static openpi_observation observe(void) {
    static uint8_t grey[SIDE * SIDE * 3];
    static double state[STATES];     /* joints, then the gripper */
    static openpi_image images[2] = {OPENPI_IMAGE_INIT, OPENPI_IMAGE_INIT};
    openpi_observation seen = OPENPI_OBSERVATION_INIT;
    memset(grey, 127, sizeof grey);
    images[0].name = "observation/exterior_image_1_left";
    images[1].name = "observation/wrist_image_left";
    for (int i = 0; i < 2; i++) images[i].data = grey, images[i].height = images[i].width = SIDE;
    seen.images = images, seen.image_count = 2;
    seen.state = state, seen.state_length = STATES;
    seen.prompt = "pick up the fork";
    return seen;
}

static void execute(const double action[DIMS]) { (void)action; }

/* ---- the control loop ------------------------------------------------------------------------------- */

/* A change is said once. */
static void tell(openpi_runner *runner, openpi_reason reason) {
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    openpi_runner_get_info(runner, &info, NULL);
    fprintf(stderr, "robot: %s%s%s\n", openpi_reason_text(reason), *info.failure ? ": " : "", info.failure);
}

/* Until `steps` are executed. 0: the server cannot be reached, or refuses, before the first. */
static int move(openpi_runner *runner, double rate, uint64_t steps, openpi_error *error) {
    openpi_runner_state state = OPENPI_RUNNER_STATE_INIT;
    openpi_reason before = OPENPI_REASON_STARTING;
    double action[DIMS], due = now_ms();
    while (state.step < steps) {
        openpi_observation seen = observe();
        if (openpi_runner_observe(runner, &seen, now_ms(), error)) return 0;
        openpi_runner_next(runner, now_ms(), action, &state);
        if (state.known) execute(action);              /* also where it holds still                       */
        if (state.reason != before) tell(runner, state.reason);
        before = state.reason;
        if (!state.known && before != OPENPI_REASON_STARTING) return 0;
        due += 1000 / rate;
        if (due < now_ms()) due = now_ms();
        sleep_until(due);
    }
    return 1;
}

static void print_note(void *user, const char *sentence) {
    (void)user;
    fprintf(stderr, "robot: the server: %s\n", sentence);
}

int main(int count, char **words) {
    double rate = count > 3 ? atof(words[2]) : 0;
    int steps = count > 3 ? atoi(words[3]) : 0, trained = count == 5 && !strcmp(words[4], "trained");
    openpi_runner_options options = OPENPI_RUNNER_OPTIONS_INIT;
    openpi_runner_info info = OPENPI_RUNNER_INFO_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    client_source_options server = {.key = getenv("OPENPI_KEY"), .tell = print_note};
    openpi_source source;
    openpi_runner *runner;
    if (rate < 1 || steps < 1 || count != 4 + trained) {
        fprintf(stderr, "usage: robot ws://HOST:PORT RATE STEPS [trained]\n");
        return 2;
    }
    server.address = words[1];
    options.rtc = server.rtc = trained ? OPENPI_RTC_TRAINED : OPENPI_RTC_GUIDED;
    options.robot = "droid";
    options.rate_hz = rate;
    options.deadline_ms = 5000;      /* a chunk that is older than that is of no use                        */
    options.frozen_after = -1;       /* this arm's pictures do not change: leave it out where yours do      */
    if (!client_source_open(&server, &source, error.message) ||
        openpi_runner_over_source(&source, &options, &runner, &error)) {
        fprintf(stderr, "robot: %s\n", error.message);
        return 1;
    }
    int moved = move(runner, rate, (uint64_t)steps, &error);
    if (error.status) fprintf(stderr, "robot: %s\n", error.message);
    openpi_runner_get_info(runner, &info, NULL);
    printf("%d steps, %d held, %d chunks, %d late\n", (int)info.steps, (int)info.held,
           (int)(info.calls - info.failed), (int)info.late);
    openpi_runner_close(runner);
    return !moved;
}
