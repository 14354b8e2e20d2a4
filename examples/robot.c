/* A robot that talks to `openpi serve` with real-time chunking, in C: it moves at its rate while the next
 * chunk is computed.
 *
 *   robot ws://127.0.0.1:8000 RATE STEPS      OPENPI_KEY: the key of a token, where the server wants one
 *
 * One thread and one loop: a timer ticks at the robot's rate, and replies come in between. At a tick the
 * robot takes an observation, sends it if no other one waits for its reply, and executes the next action. A
 * reply replaces the queue of actions, without the steps that were executed since its observation.
 *
 * A server that drains, because it is restarted, closes the connection: the robot executes what is left of
 * its chunk, holds still, and connects again every second.
 *
 * examples/rtc_client.py is the same in Python. Connections, requests and replies are client/client.h. This
 * robot is a DROID arm that sees grey: observe() and execute() are yours.
 *
 * `make test` builds build/tests/robot. By hand, in a checkout:
 *   cc -O2 -D_POSIX_C_SOURCE=200809L -I. -o robot examples/robot.c client/client_address.c \
 *      client/client_bytes.c client/client_reply.c client/client_request.c client/client_socket.c \
 *      $(pkg-config --cflags --libs libwebsockets libuv) -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/client.h"

enum {
    SIDE = 224,
    JOINTS = 7,
    DIMS = 8,                    /* numbers in an action: joint velocities and the gripper                 */
    EVERY = 5,                   /* steps of a chunk to execute before the next one is asked for           */
    CHUNK = 64,                  /* steps of a chunk at most                                               */
    LATENCIES = 20,
    AGAIN_MS = 1000,             /* until the next try to connect                                          */
};

typedef struct observation {
    uint8_t outside[SIDE][SIDE][3], wrist[SIDE][SIDE][3];      /* RGB                                      */
    double joints[JOINTS], gripper;
} observation;

typedef struct robot {
    client_loop *loop;
    client_socket *socket;           /* NULL: none                                                          */
    const char *key;             /* a token's key; NULL: none                                              */
    int ready, ticks;            /* 1: the server's metadata came; the control loop has begun              */
    double connect_ms;           /* when to connect again; 0: not                                          */
    double rate, due_ms;         /* steps a second; when the next tick is                                  */
    int steps, executed, held;   /* to execute; so far; ticks without an action                            */
    double chunk[CHUNK][DIMS];
    int rows, next;              /* rows in the chunk, 0: none yet; the row that is executed next          */
    int trained_delay;           /* the longest delay that the checkpoint was trained for; 0: any          */
    client_message request;
    int asked;                   /* 1: a request is not yet answered                                       */
    int asked_at;                /* `next` at its observation                                              */
    double asked_ms;
    double latencies[LATENCIES]; /* the last ones, ms                                                      */
    int chunks, applied, failed;
} robot;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- the robot's own -------------------------------------------------------------------------------- */

static void observe(observation *o) {
    memset(o->outside, 127, sizeof o->outside);
    memset(o->wrist, 127, sizeof o->wrist);
    memset(o->joints, 0, sizeof o->joints);
    o->gripper = 0;
}

static void execute(const double action[DIMS]) { (void)action; }

/* ---- a request -------------------------------------------------------------------------------------- */

/* The steps that will be executed before the reply is there, as long as the slowest of late. A longer delay
 * than the checkpoint was trained for would be refused. */
static int expected_delay(const robot *r) {
    double slowest = 1000 / r->rate;
    int most = r->trained_delay ? r->trained_delay : r->rows ? r->rows - 1 : 1;
    for (int i = 0; i < LATENCIES; i++) slowest = fmax(slowest, r->latencies[i]);
    int delay = (int)ceil(slowest * r->rate / 1000);
    return delay < most ? delay : most;
}

static void stop(robot *r, const char *why) {
    r->failed |= why != NULL;
    if (why) fprintf(stderr, "robot: %s\n", why);
    client_stop(r->loop);
}

static void ask(robot *r) {
    static observation now;
    char why[CLIENT_SENTENCE];
    observe(&now);
    const client_field fields[] = {
        client_picture("observation/exterior_image_1_left", now.outside[0][0], SIDE, SIDE),
        client_picture("observation/wrist_image_left", now.wrist[0][0], SIDE, SIDE),
        client_state("observation/joint_position", now.joints, JOINTS),
        client_state("observation/gripper_position", &now.gripper, 1),
        client_text("prompt", "pick up the fork"),
    };
    const client_rtc rtc = {.executed = r->next, .delay = expected_delay(r)};
    const client_request request = {
        .fields = fields, .field_count = sizeof fields / sizeof *fields, .rtc = &rtc};
    if (!client_request_write(&request, &r->request, why)) {
        stop(r, why);
        return;
    }
    r->asked = 1;
    r->asked_at = r->next;
    r->asked_ms = now_ms();
    client_send(r->socket, r->request.bytes, r->request.count);
}

/* ---- a reply ---------------------------------------------------------------------------------------- */

/* What the server says of itself, before any reply. */
static void take_metadata(robot *r, const uint8_t *bytes, size_t count) {
    client_metadata about;
    char why[CLIENT_SENTENCE];
    if (!client_metadata_read(bytes, count, &about, why)) stop(r, why);
    for (int i = 0; i < about.note_count; i++) fprintf(stderr, "robot: the server: %s\n", about.notes[i]);
    r->trained_delay = about.rtc_max_delay;
    client_metadata_free(&about);
}

static void take_reply(robot *r, const uint8_t *bytes, size_t count, int text) {
    client_reply reply;
    char why[CLIENT_SENTENCE];
    if (!client_reply_read(bytes, count, text, &reply, r->chunk[0], CHUNK * DIMS, why)) {
        stop(r, why);
        return;
    }
    if (reply.dims != DIMS) {
        stop(r, "the actions are not those of this robot");
        return;
    }
    r->rows = reply.steps;
    r->latencies[r->chunks++ % LATENCIES] = now_ms() - r->asked_ms;
    r->applied += reply.rtc_applied;
    r->next -= r->asked_at;      /* row 0 of the new chunk is the step of the observation                  */
    r->asked = 0;
}

/* ---- the loop's events ------------------------------------------------------------------------------ */

static void on_opened(void *user, client_socket *socket) {
    robot *r = user;
    r->socket = socket;
}

/* The first message has the server's metadata; then the control loop begins. */
static void on_received(void *user, const uint8_t *bytes, size_t count, int text) {
    robot *r = user;
    if (r->asked || text) {
        take_reply(r, bytes, count, text);
    } else {
        take_metadata(r, bytes, count);
        r->ready = 1;
        if (r->ticks) return;
        r->ticks = 1;
        r->due_ms = now_ms();
        client_after(r->loop, 0);
    }
}

static void on_sent(void *user) { (void)user; }

static void on_closed(void *user, const char *why) {
    robot *r = user;
    if (r->executed == r->steps) return;
    if (!r->ticks) {             /* there was no server from the beginning                                 */
        stop(r, why);
        return;
    }
    if (r->ready) fprintf(stderr, "robot: %s; connects again\n", why);
    r->socket = NULL;
    r->ready = r->asked = 0;
    r->connect_ms = now_ms() + AGAIN_MS;
}

static void connect_again(robot *r) {
    if (!(r->connect_ms > 0) || now_ms() < r->connect_ms) return;
    r->connect_ms = 0;
    if (!client_connect(r->loop, r->key, r)) stop(r, "no memory to connect again");
}

/* A step of the robot. */
static void on_tick(void *user) {
    robot *r = user;
    int due = !r->rows || r->next >= (EVERY < r->rows ? EVERY : r->rows);
    connect_again(r);
    if (r->ready && !r->asked && due) ask(r);
    if (r->next < r->rows) {
        execute(r->chunk[r->next++]);
        r->executed++;
    } else {
        r->held++;
    }
    if (r->executed == r->steps) {
        stop(r, NULL);
        return;
    }
    r->due_ms = fmax(r->due_ms + 1000 / r->rate, now_ms() - 1000 / r->rate);
    client_after(r->loop, r->due_ms - now_ms());
}

int main(int count, char **words) {
    static const client_events events = {on_opened, on_received, on_sent, on_closed, on_tick};
    static robot r;
    client_address address;
    char why[CLIENT_SENTENCE];
    if (count != 4 || !client_address_read(words[1], &address) || (r.rate = atof(words[2])) < 1 ||
        (r.steps = atoi(words[3])) < 1) {
        fprintf(stderr, "usage: robot ws://HOST:PORT RATE STEPS\n");
        return 2;
    }
    r.loop = client_open(&events, &address, &r, why);
    r.key = getenv("OPENPI_KEY");
    if (!r.loop || !client_connect(r.loop, r.key, &r)) {
        fprintf(stderr, "robot: %s\n", why);
        return 1;
    }
    client_run(r.loop);
    printf("%d steps, %d held, %d chunks, %d follow on from the one before\n", r.executed, r.held, r.chunks,
           r.applied);
    client_close(r.loop);
    client_message_free(&r.request);
    return r.failed;
}
