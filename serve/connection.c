/* See connection.h. */
#include "connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/small/clock.h"
#include "serve/who/tokens.h"

struct connection {
    connections *all;
    connection *before, *after;  /* in the list                                                            */
    net_peer *peer;              /* NULL: the socket is gone                                               */
    net_sender sender;           /* sends replies on the device's thread                                   */
    net_message hello;           /* its data are in the next line's memory                                 */
    uint8_t *hello_memory;       /* [NET_HEADROOM + hello.bytes]; NULL: it is sent                         */
    net_message last_words[2];   /* connections_lose: for the running request and the one read ahead       */
    job *receiving;              /* its message is not complete                                            */
    job *ahead;                  /* complete, waits for its turn                                           */
    job *running;                /* being computed                                                         */
    job *sending;                /* its answer is on the way out                                           */
    double prev_total_ms;
    double *chunk;               /* the last reply's, for "openpi/rtc" of the next request; NULL: none     */
    int noted;                   /* 1: the log has had the note of a request                               */
    int limited;                 /* 1: it has had a chunk that limits changed                              */
    uint64_t chunk_model;        /* the number of the model that made it                                   */
    int number;                  /* dispatch.h's                                                           */
    uint64_t id;
    char name[TOKEN_NAME], address[NET_ADDRESS];
    uint8_t key[DIGEST_BYTES];
    connection_who who;          /* its pointers are to the three above                                    */
    uint64_t requests;           /* that were answered                                                     */
    int refusals;                /* requests in a row that did not fit                                     */
    recent recent;
    watch *watch;                /* NULL: nobody looks at it                                               */
    trail *trail;                /* its last minute; NULL: no answer yet, or no memory                     */
};

enum {
    REFUSALS = 64,               /* requests in a row that are refused before the connection has to rest   */
    REST_MS = 250,               /* once; twice as long after each further one                             */
    RESTS = 3,                   /* so often twice as long, at most                                        */
};

static const char *const going_away = "the server shuts down";

/* ---- the list --------------------------------------------------------------------------------------- */

static void join(connection *c) {
    c->after = c->all->first;
    if (c->after) c->after->before = c;
    c->all->first = c;
    c->all->count++;
}

static void leave(connection *c) {
    if (c->before) c->before->after = c->after;
    else c->all->first = c->after;
    if (c->after) c->after->before = c->before;
    c->all->count--;
}

static double between(const job *job, moment from, moment to) {
    return job->at_ms[from] > 0 && job->at_ms[to] > 0 ? job->at_ms[to] - job->at_ms[from] : 0;
}

/* Requests that fail have a line, the others where that is asked for. */
static void log_request(const connection *c, const job *job, int gone) {
    int fine = !gone && job->result == REQUEST_OK;
    if (!c->all->log_requests && (fine || gone)) return;
    log_entry entry = {.level = fine ? LOG_LEVEL_INFO : LOG_LEVEL_WARNING,
                       .event = fine ? "request" : "request failed",
                       .reason = c->all->log_requests ? NULL : "",
                       .address = c->address,
                       .robot = c->name,
                       .id = c->id,
                       .numbers = {{"bytes", (double)job->count},
                                   {"queue_ms", between(job, MOMENT_PREPARED, MOMENT_RUN)},
                                   {"model_ms", between(job, MOMENT_RUN, MOMENT_RAN)},
                                   {"total_ms", between(job, MOMENT_ARRIVED, MOMENT_SENT)}}};
    if (fine) log_entry_write(c->all->log, &entry, "request answered");
    else if (gone) log_entry_write(c->all->log, &entry, "request failed: the robot left before its answer");
    else
        log_entry_write(c->all->log, &entry, "request failed: %.*s", (int)job->answer.bytes,
                        (const char *)job->answer.data);
}

/* What a request told: once a connection. */
static void log_note(connection *c, const job *job) {
    if (c->noted || job->status != OPENPI_OK || !job->note[0]) return;
    log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "note", .reason = "", .address = c->address,
                       .robot = c->name, .id = c->id};
    c->noted = 1;
    log_entry_write(c->all->log, &entry, "%s", job->note);
}

/* The first chunk that the robot's limits changed: once a connection. Metrics count them all. */
static void log_limited(connection *c, const job *job) {
    const openpi_limited *l = &job->limited;
    if (c->limited || job->status != OPENPI_OK || !l->changed) return;
    log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "limited", .reason = "", .address = c->address,
                       .robot = c->name, .id = c->id};
    c->limited = 1;
    log_entry_write(c->all->log, &entry,
                    "the robot's limits changed %d numbers of a chunk: %d below min, %d above max, %d beyond "
                    "max_step, %d beyond max_start_jump, %d steps held; openpi/limited of each reply and the "
                    "metrics count on", l->changed, l->below_min, l->above_max, l->beyond_step,
                    l->beyond_start, l->held);
}

/* The job's request is over: it was answered, or `gone`. */
static void report(connection *c, const job *job, int gone) {
    if (!job) return;
    metrics_request request = {.class = c->who.class,
                               .result = gone ? REQUEST_GONE : job->result,
                               .at_ms = job->at_ms,
                               .bytes = job->count,
                               .truncated = job->status == OPENPI_OK && job->truncated,
                               .limited = &job->limited,
                               .rtc_delay = job->rtc.mode == OPENPI_RTC_OFF || job->status != OPENPI_OK ? -1
                                                                                         : job->rtc.delay};
    metrics_add_request(c->all->metrics, &request);
    history_add(&c->all->history, clock_now(), request.result == REQUEST_OK,
                between(job, MOMENT_ARRIVED, MOMENT_SENT));
    log_request(c, job, gone);
    log_note(c, job);
    log_limited(c, job);
}

/* A request that was withdrawn has no answer. */
static void record(connection *c, job *job) {
    recorder_client client = {c->id, c->name, c->address};
    if (!c->all->recorder || !job->answer.bytes) return;
    if (job->samples || job->many) metrics_add_recorded(c->all->metrics, 0);
    else recorder_put(c->all->recorder, &c->all->pool, job, &client);
}

/* A sent answer becomes part of the robot's last minute. A message of several observations is no robot's. */
static void follow(connection *c, const job *job) {
    const job_pool *pool = &c->all->pool;
    if (job->many) return;
    if (!c->trail) c->trail = trail_create(pool->horizon, pool->action_dim);
    trail_add(c->trail, &(trail_call){.arrived_ms = job->at_ms[MOMENT_ARRIVED],
                                      .sent_ms = job->at_ms[MOMENT_SENT],
                                      .status = job->status,
                                      .actions = job->sent,
                                      .limited = &job->limited,
                                      .rate_hz = job->rate_hz,
                                      .executed = job->executed,
                                      .held_ms = job->held_ms,
                                      .reason = (openpi_reason)job->held_reason});
}

static void unwatch(connection *c) {
    if (!c || !c->watch) return;
    watch_free(c->watch);
    c->watch = NULL;
    c->all->watched--;
}

static void forget(connection *c) {
    leave(c);
    unwatch(c);
    trail_free(c->trail);
    job_give(&c->all->pool, c->receiving);
    job_give(&c->all->pool, c->ahead);
    job_give(&c->all->pool, c->sending);
    free(c->chunk);
    free(c->hello_memory);
    net_sender_close(&c->sender);
    free(c);
}

static void forget_and_tell(connection *c) {
    connections *all = c->all;
    forget(c);
    if (!all->count) all->emptied(all->user);
}

/* ---- one connection --------------------------------------------------------------------------------- */

static snapshot *wanted_snapshot(connection *c, double now) {
    if (c->watch && now - c->watch->asked_ms > WATCH_MS) unwatch(c);
    return c->watch ? watch_take(c->watch, c->all->pool.horizon, c->all->pool.action_dim, now) : NULL;
}

static void start_next(connection *c) {
    job *job = c->ahead;
    if (!job || c->running || c->sending) return;
    c->ahead = NULL;
    c->running = job;
    job->at_ms[MOMENT_TURN] = clock_now();
    job->snapshot = wanted_snapshot(c, job->at_ms[MOMENT_TURN]);
    job->prev_total_ms = c->prev_total_ms;
    job->last = c->chunk;
    job->last_model = c->chunk_model;
    job->order = c->all->requests++;
    job->number = c->number;
    job->reserved = c->who.class == SCHEDULER_RESERVED;
    net_hold(c->peer, 0);
    c->all->submit(c->all->user, job);
}

static void end_if_idle(connection *c) {
    if (c->peer && !c->running && !c->ahead && !c->sending) net_end(c->peer, CLOSE_GOING_AWAY, going_away);
}

/* A copy, because the next connection's may be about another model. */
static int make_hello(connection *c) {
    const net_message *metadata = &c->all->metadata;
    c->hello_memory = malloc(NET_HEADROOM + metadata->bytes);
    if (!c->hello_memory) return 0;
    c->hello = (net_message){.data = c->hello_memory + NET_HEADROOM, .bytes = metadata->bytes};
    memcpy(c->hello.data, metadata->data, metadata->bytes);
    return 1;
}

void *connection_opened(connections *all, net_peer *peer, const connection_who *who) {
    connection *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->all = all;
    c->peer = peer;
    c->prev_total_ms = -1;
    c->id = ++all->numbered;
    snprintf(c->name, sizeof c->name, "%s", who->name);
    snprintf(c->address, sizeof c->address, "%s", who->address);
    memcpy(c->key, who->key, sizeof c->key);
    c->who = (connection_who){c->name, c->address, who->class, who->rate, c->key};
    recent_open(&c->recent, clock_now());
    int other = connections_find(all, who);
    if (!make_hello(c) ||
        dispatch_join(all->dispatch, who->class, who->rate, other, &c->number) != SCHEDULER_JOINED) {
        free(c->hello_memory);
        free(c);
        return NULL;
    }
    net_sender_open(&c->sender);
    join(c);
    net_share(peer, &c->sender);
    net_send(peer, &c->hello);
    if (all->draining) end_if_idle(c);
    return c;
}

uint64_t connection_id(const void *connection_) {
    const connection *c = connection_;
    return c->id;
}

const char *connection_name(const void *connection_) {
    const connection *c = connection_;
    return c->name;
}

int connection_announced(void *connection_, size_t bytes, int text) {
    connection *c = connection_;
    if (text) return CLOSE_UNSUPPORTED;
    return bytes > c->all->max_message_bytes ? CLOSE_TOO_BIG : 0;
}

int connection_received(void *connection_, const uint8_t *bytes, size_t count, int last) {
    connection *c = connection_;
    if (!c->receiving) {
        if (c->running) c->all->settle(c->all->user);
        if (c->ahead) return CLOSE_TRY_LATER;
        c->receiving = job_take(&c->all->pool);
        if (!c->receiving) return CLOSE_TRY_LATER;
        c->receiving->connection = c;
        c->receiving->at_ms[MOMENT_FIRST_BYTE] = clock_now();
        if (!last && !c->running && !c->sending)
            c->all->coming(c->all->user, c->who.class == SCHEDULER_RESERVED);
    }
    metrics_add_received(c->all->metrics, count);
    if (!job_append(&c->all->pool, c->receiving, bytes, count)) return CLOSE_TRY_LATER;
    if (!last) return 0;
    c->receiving->at_ms[MOMENT_ARRIVED] = clock_now();
    c->ahead = c->receiving;
    c->receiving = NULL;
    if (c->running || c->sending) net_hold(c->peer, 1);
    else start_next(c);
    return 0;
}

/* A client whose requests do not fit, again and again, costs the loop as much as robots do. It is read less
 * and less often, until a request fits. */
static void rest_after(connection *c, const job *job) {
    c->refusals = job->result == REQUEST_REFUSED ? c->refusals + 1 : 0;
    int twice = c->refusals - REFUSALS;
    if (twice >= 0) net_rest(c->peer, REST_MS << (twice < RESTS ? twice : RESTS));
}

/* The job's next user gets the memory of the chunk that is over. */
static void swap_chunks(connection *c, job *job) {
    double *over = c->chunk;
    c->chunk = job->chunk;
    c->chunk_model = job->samples || job->many ? 0 : job->model_number;    /* which one is executed? */
    job->chunk = over;
}

void connection_answered(job *job) {
    connection *c = job->connection;
    c->running = NULL;
    if (!c->peer) {
        if (job->answer.sent) metrics_add_sent(c->all->metrics, job->answer.bytes);
        report(c, job, !job->answer.sent);
        record(c, job);
        job_give(&c->all->pool, job);
        forget_and_tell(c);
        return;
    }
    if (job->status == OPENPI_OK) swap_chunks(c, job);
    if (c->watch) {
        watch_give(c->watch, job->snapshot);
        job->snapshot = NULL;
    }
    c->sending = job;
    if (job->answer.sent) connection_sent(c, &job->answer);
    else net_send(c->peer, &job->answer);
}

void connection_send_early(job *job) {
    if (net_sender_send(&job->connection->sender, &job->answer)) job->at_ms[MOMENT_SENT] = clock_now();
}

void connection_sent(void *connection_, net_message *message) {
    connection *c = connection_;
    metrics_add_sent(c->all->metrics, message->bytes);
    if (message == &c->hello) {
        free(c->hello_memory);
        c->hello_memory = NULL;
    }
    if (!c->sending || message != &c->sending->answer) return;
    if (!message->sent) c->sending->at_ms[MOMENT_SENT] = clock_now();
    c->prev_total_ms = c->sending->at_ms[MOMENT_SENT] - c->sending->at_ms[MOMENT_ARRIVED];
    recent_add(&c->recent, c->sending->at_ms[MOMENT_SENT], c->prev_total_ms);
    c->requests++;
    follow(c, c->sending);
    report(c, c->sending, 0);
    rest_after(c, c->sending);
    if (c->all->shadow) shadow_put(c->all->shadow, c->sending);
    record(c, c->sending);
    job_give(&c->all->pool, c->sending);
    c->sending = NULL;
    start_next(c);
    if (c->all->draining) end_if_idle(c);
}

void connection_closed(void *connection_) {
    connection *c = connection_;
    connections *all = c->all;
    report(c, c->ahead, 1);
    report(c, c->sending, 1);
    job *withdrawn = dispatch_leave(all->dispatch, c->number, c->running);
    c->peer = NULL;
    if (withdrawn) {
        all->withdrawn(all->user, withdrawn);
        connection_answered(withdrawn);
    } else if (!c->running) {
        forget_and_tell(c);
    }
}

/* ---- all connections -------------------------------------------------------------------------------- */

void connections_drain(connections *all) {
    all->draining = 1;
    for (connection *c = all->first; c; c = c->after) end_if_idle(c);
}

void connections_end(connections *all, int code, const char *reason) {
    for (connection *c = all->first; c; c = c->after)
        if (c->peer) net_end(c->peer, code, reason);
}

int connections_keep(connections *all, int (*keeps)(const void *user, const uint8_t *key), const void *user,
                     int code, const char *reason) {
    int closed = 0;
    for (connection *c = all->first; c; c = c->after) {
        if (!c->peer || keeps(user, c->key)) continue;
        net_end(c->peer, code, reason);
        closed++;
    }
    return closed;
}

void connections_lose(connections *all, const net_message *sentence, int code, const char *reason) {
    for (connection *c = all->first; c; c = c->after) {
        if (!c->peer) continue;
        net_share(c->peer, NULL);
        int waiting = (c->running && !c->running->answer.sent) + (c->ahead != NULL);
        for (int i = 0; i < waiting; i++) {
            c->last_words[i] = *sentence;
            net_send(c->peer, &c->last_words[i]);
        }
        net_end(c->peer, code, reason);
    }
}

int connections_find(const connections *all, const connection_who *who) {
    if (who->class != SCHEDULER_RESERVED) return -1;
    for (const connection *c = all->first; c; c = c->after)
        if (c->peer && c->who.class == who->class && c->who.rate == who->rate &&
            digest_equal(c->key, who->key))
            return c->number;
    return -1;
}

int connections_running(const connections *all) {
    int running = 0;
    for (const connection *c = all->first; c; c = c->after) running += c->running != NULL;
    return running;
}

void connections_close(connections *all) {
    while (all->first) {
        connection *c = all->first;
        job_give(&all->pool, c->running);
        forget(c);
    }
    job_pool_close(&all->pool);
}

/* ---- what the admin page shows ---------------------------------------------------------------------- */

int connections_look(const connections *all, connection_look *looks, int most, double now) {
    int count = 0;
    for (const connection *c = all->first; c && count < most; c = c->after) {
        if (!c->peer) continue;
        looks[count++] = (connection_look){.id = c->id,
                                           .who = c->who,
                                           .requests = c->requests,
                                           .waiting = (c->ahead != NULL) + (c->running != NULL),
                                           .recent = recent_look(&c->recent, now)};
    }
    return count;
}

/* Of those that are looked at. */
static connection *asked_longest_ago(const connections *all) {
    connection *found = NULL;
    for (connection *c = all->first; c; c = c->after)
        if (c->watch && (!found || c->watch->asked_ms < found->watch->asked_ms)) found = c;
    return found;
}

static connection *find(const connections *all, uint64_t id) {
    connection *c = all->first;
    while (c && (c->id != id || !c->peer)) c = c->after;
    return c;
}

trail *connection_trail(const connections *all, uint64_t id) {
    const connection *c = find(all, id);
    return c ? c->trail : NULL;
}

const watch *connection_watch(connections *all, uint64_t id, double now) {
    connection *c = find(all, id);
    if (!c) return NULL;
    if (!c->watch) {
        if (all->watched == WATCHES) unwatch(asked_longest_ago(all));
        c->watch = watch_create();
        if (!c->watch) return NULL;
        all->watched++;
    }
    c->watch->asked_ms = now;
    return c->watch;
}
