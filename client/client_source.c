/* See client_source.h.
 *
 * The loop runs while a call waits, on the runner's thread. A call that is given up or answered too late ends
 * the connection: the server then stops working on it, and no later call finds its reply. */
#include "client_source.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_MS = 20, FIELDS = 32, MAP = 64, ROWS = 64 };

typedef enum outcome { WAITING, READY, REPLIED, REFUSED, BROKEN, GIVEN_UP, TOO_LATE } outcome;

typedef struct remote {
    client_source_options options;
    client_address address;
    char *key;
    client_loop *loop;           /* NULL: not connected */
    client_socket *socket;
    int ready;                   /* 1: the metadata came */
    outcome outcome;             /* how it ended, of the loop */
    double until;                /* ms; 0: for ever */
    atomic_int cancelled;
    client_metadata about;       /* without its notes */
    client_message message;
    client_reply reply;
    double *actions;             /* the waiting call's */
    int dims;
    char why[CLIENT_SENTENCE];
} remote;

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- the loop's events ------------------------------------------------------------------------------ */

static void finish(remote *r, outcome outcome) {
    r->outcome = outcome;
    client_stop(r->loop);
}

static void on_opened(void *user, client_socket *socket) { ((remote *)user)->socket = socket; }

static void take_metadata(remote *r, const uint8_t *bytes, size_t count) {
    int read = client_metadata_read(bytes, count, &r->about, r->why);
    for (int i = 0; read && r->options.tell && i < r->about.note_count; i++)
        r->options.tell(r->options.tell_user, r->about.notes[i]);
    r->ready = read;
    client_metadata_free(&r->about);
    finish(r, read ? READY : BROKEN);
}

static void on_received(void *user, const uint8_t *bytes, size_t count, int text) {
    remote *r = user;
    if (!r->ready && !text) {
        take_metadata(r, bytes, count);
        return;
    }
    if (!r->actions) return;
    int read =
        client_reply_read(bytes, count, text, &r->reply, r->actions, (size_t)ROWS * (size_t)r->dims, r->why);
    if (read && r->reply.dims != r->dims) {
        read = 0;
        snprintf(r->why, sizeof r->why,
                 "the server's actions have %d numbers, expected %d of the runner's robot", r->reply.dims,
                 r->dims);
    }
    finish(r, read ? REPLIED : REFUSED);
}

static void on_sent(void *user) { (void)user; }

static void on_closed(void *user, const char *why) {
    remote *r = user;
    snprintf(r->why, sizeof r->why, "%s", why);
    r->socket = NULL;
    r->ready = 0;
    finish(r, BROKEN);
}

static void on_timed(void *user) {
    remote *r = user;
    if (atomic_load(&r->cancelled)) finish(r, GIVEN_UP);
    else if (r->until > 0 && now_ms() >= r->until) finish(r, TOO_LATE);
    else client_after(r->loop, LOOK_MS);
}

/* ---- a connection ------------------------------------------------------------------------------------ */

static void disconnect(remote *r) {
    r->actions = NULL;
    if (r->loop) client_close(r->loop);
    r->loop = NULL;
    r->socket = NULL;
    r->ready = 0;
}

static outcome run(remote *r) {
    r->outcome = WAITING;
    client_after(r->loop, LOOK_MS);
    while (r->outcome == WAITING) client_run(r->loop);
    return r->outcome;
}

static outcome connect_now(remote *r) {
    static const client_events events = {on_opened, on_received, on_sent, on_closed, on_timed};
    if (r->ready) return READY;
    disconnect(r);
    r->loop = client_open(&events, &r->address, r, r->why);
    if (!r->loop) return BROKEN;
    r->outcome = WAITING;
    if (client_connect(r->loop, r->key, r)) return r->outcome == WAITING ? run(r) : r->outcome;
    snprintf(r->why, sizeof r->why, "out of memory: a connection");
    return BROKEN;
}

/* ---- a call ------------------------------------------------------------------------------------------- */

/* "images/cam_high" stands in the map "images", as openpi's ALOHA sends it; all other names are keys. */
static const char *split(const char *name, char map[MAP]) {
    const char *slash = strchr(name, '/');
    if (strncmp(name, "images/", 7) || !slash) return NULL;
    snprintf(map, MAP, "images");
    return slash + 1;
}

static int convert(const openpi_field *from, client_field *to, char map[MAP], char why[CLIENT_SENTENCE]) {
    static const client_kind kinds[] = {CLIENT_U8, CLIENT_F32, CLIENT_F64};
    const char *inside = split(from->name, map);
    *to = (client_field){inside ? map : NULL, inside ? inside : from->name, CLIENT_TEXT, from->text, 0, {0}};
    if (from->text) return 1;
    if ((unsigned)from->element > OPENPI_FLOAT64 || from->rank < 1 || from->rank > 3) {
        snprintf(why, CLIENT_SENTENCE,
                 "\"%s\" has an element or a rank that cannot be sent, expected uint8, float32 or "
                 "float64 of 1 to 3 dimensions",
                 from->name);
        return 0;
    }
    to->kind = kinds[from->element];
    to->data = from->data;
    to->rank = from->rank;
    for (int i = 0; i < from->rank; i++) to->shape[i] = (int)from->shape[i];
    return 1;
}

/* In the order of openpi_reason; NULL: it was not held. */
static const char *reason_name(openpi_reason reason) {
    static const char *const names[] = {NULL,           "starting", "no_actions", "old_observation",
                                        "frozen_camera", "black_camera", "lost", "failed",
                                        "limit",         "asked"};
    return (unsigned)reason < sizeof names / sizeof *names ? names[reason] : NULL;
}

static int write_request(remote *r, const openpi_chunk_call *call) {
    client_field fields[FIELDS];
    char maps[FIELDS][MAP];
    client_rtc rtc = {.executed = call->executed, .delay = call->delay};
    const client_runner told = {call->used, call->held_ms, reason_name(call->reason)};
    if (call->field_count > FIELDS) {
        snprintf(r->why, sizeof r->why, "the observation has %d fields, at most %d can be sent",
                 call->field_count, FIELDS);
        return 0;
    }
    for (int f = 0; f < call->field_count; f++)
        if (!convert(&call->fields[f], &fields[f], maps[f], r->why)) return 0;
    int trained = r->options.rtc == OPENPI_RTC_TRAINED,
        known = r->about.rtc && (!trained || r->about.rtc_max_delay);
    rtc.mode = trained ? "trained" : "guided";
    if (trained && rtc.delay > r->about.rtc_max_delay) rtc.delay = r->about.rtc_max_delay;
    const client_request request = {.fields = fields,
                                    .field_count = call->field_count,
                                    .rtc = r->options.rtc && known && call->follows ? &rtc : NULL,
                                    .runner = r->about.runner ? &told : NULL,
                                    .deadline_ms = call->deadline_ms};
    return client_request_write(&request, &r->message, r->why);
}

static outcome ask(remote *r, const openpi_chunk_call *call, openpi_chunk *chunk) {
    if (!write_request(r, call)) return REFUSED;
    r->actions = chunk->actions;
    r->dims = chunk->action_dim;
    client_send(r->socket, r->message.bytes, r->message.count);
    outcome outcome = run(r);
    r->actions = NULL;
    return outcome;
}

static openpi_status say(openpi_error *error, openpi_status status, const char *what, const char *why) {
    snprintf(error->message, sizeof error->message, "%s%.480s", what, why);
    return error->status = status;
}

static openpi_status infer(void *user, const openpi_chunk_call *call, openpi_chunk *chunk,
                           openpi_error *error) {
    remote *r = user;
    r->until = call->deadline_ms > 0 ? now_ms() + call->deadline_ms : 0;
    outcome outcome = atomic_load(&r->cancelled) ? GIVEN_UP : connect_now(r);
    if (outcome == READY) outcome = ask(r, call, chunk);
    atomic_store(&r->cancelled, 0);
    if (outcome == REPLIED) {
        chunk->rows = r->reply.steps;
        return OPENPI_OK;
    }
    if (outcome == REFUSED) return say(error, OPENPI_BAD_INPUT, "the server: ", r->why);
    disconnect(r);
    if (outcome == GIVEN_UP) return say(error, OPENPI_CANCELLED, "the call was given up", "");
    chunk->lost = 1;
    if (outcome == TOO_LATE)
        return say(error, OPENPI_SYSTEM, "the server did not answer before the deadline", "");
    return say(error, OPENPI_SYSTEM, "the server: ", r->why);
}

/* ---- life --------------------------------------------------------------------------------------------- */

static void cancel(void *user) { atomic_store(&((remote *)user)->cancelled, 1); }

static void close_remote(void *user) {
    remote *r = user;
    disconnect(r);
    client_message_free(&r->message);
    free(r->key);
    free(r);
}

int client_source_open(const client_source_options *options, openpi_source *source,
                       char why[CLIENT_SENTENCE]) {
    remote *r = calloc(1, sizeof *r);
    size_t key = options->key ? strlen(options->key) + 1 : 0;
    int works = r && client_address_read(options->address, &r->address);
    if (r) r->options = *options;
    if (works && key) {
        r->key = malloc(key);
        if (r->key) memcpy(r->key, options->key, key);
    }
    if (works && (r->key || !key)) {
        *source = (openpi_source){sizeof *source, r, infer, cancel, close_remote, 1};
        return 1;
    }
    snprintf(why, CLIENT_SENTENCE, "%s%.200s%s", works || !r ? "out of memory: a connection" : "\"",
             works || !r ? "" : options->address,
             works || !r ? "" : "\" is no address, expected ws://HOST:PORT");
    if (r) close_remote(r);
    return 0;
}
