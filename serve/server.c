/* The server: opens its parts in order, runs the loop, and closes them.
 *
 *   policy -> address -> model, first call -> threads -> listening -> events … -> SIGTERM -> drained
 *
 * Whatever can be wrong with the options is found before the model is loaded, and the port only accepts
 * robots when a call was answered. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "serve/admin/about.h"
#include "serve/admin/admin.h"
#include "serve/small/clock.h"
#include "connection.h"
#include "serve/schedule/device.h"
#include "serve/schedule/dispatch.h"
#include "serve/schedule/drain.h"
#include "serve/small/fail.h"
#include "serve/who/gate.h"
#include "serve/log/log.h"
#include "messages.h"
#include "serve/net/net.h"
#include "prepare.h"
#include "serve/admin/process.h"
#include "serve/record/recorder.h"
#include "serve/small/queue.h"
#include "reload.h"
#include "serve.h"
#include "serve/small/signals.h"
#include "systemd.h"
#include "serve/net/tls.h"

enum {
    METADATA_BYTES = 4096 + MODEL_NOTES * 416,
    PREPARED = 64,               /* shared requests that may be prepared at a time                         */
    TICK_MS = 250,
    OTHER_FILES = 512,           /* descriptors besides four for each connection that there may be         */
    WAITING = 128,               /* connections besides them that are no WebSocket                         */
};

static const char device_lost[] = DEVICE_LOST_SENTENCE;

typedef struct server {
    const serve_options *options;
    loading loading;
    serve_model *model;          /* the first one; those of reloads are as large                           */
    net *net;
    queue answered;              /* jobs for their connections                                             */
    serve_device *devices[SCHEDULER_DEVICES];  /* from dispatch_open on its own                             */
    gate gate;
    logger log;
    metrics metrics;
    admin admin;
    about about;
    systemd systemd;
    dispatch *dispatch;
    prepare *prepare;
    reload *reload;
    shadow *shadow;              /* NULL: nothing is computed again                                        */
    recorder *recorder;          /* NULL: nothing is recorded                                              */
    connections connections;
    uint64_t described;          /* the number of the model that the metadata are about                    */
    uint8_t metadata[METADATA_BYTES], last_words[NET_HEADROOM + sizeof device_lost];
    int draining, ending, reloading;
    signals_seen signals;        /* that were acted on                                                     */
    pthread_mutex_t lock;        /* guards `lost`                                                          */
    char lost[500];              /* the sentence of the first device that was lost                         */
} server;

/* ---- jobs on their way ------------------------------------------------------------------------------ */

/* On the I/O thread. Both threads wake up while the rest of the request comes. */
static void on_coming(void *user, int reserved) {
    server *s = user;
    prepare_expect(s->prepare, reserved);
    dispatch_expect(s->dispatch);
}

static void on_preparing(void *user) {
    server *s = user;
    dispatch_expect(s->dispatch);
}

static void submit(void *user, job *job) {
    server *s = user;
    prepare_put(s->prepare, job);
}

static void on_prepared(void *user, job *job) {
    server *s = user;
    dispatch_submit(s->dispatch, job);
}

/* On the I/O thread, which does the rest. */
static void on_withdrawn(void *user, job *job) {
    server *s = user;
    prepare_release(s->prepare, job);
}

/* The loop ends, and the program with a status that says: try again. */
static void on_lost(void *user, const char *sentence) {
    server *s = user;
    pthread_mutex_lock(&s->lock);
    if (!s->lost[0]) snprintf(s->lost, sizeof s->lost, "%s", sentence);
    pthread_mutex_unlock(&s->lock);
    net_wake(s->net);
}

static void on_refused(void *user, job *job) {
    server *s = user;
    queue_put(&s->answered, job, NULL);
    net_wake(s->net);
}

static void on_reloaded(void *user) {
    server *s = user;
    net_wake(s->net);
}

static void on_again(void *user, job *job) {
    server *s = user;
    prepare_release(s->prepare, job);
    prepare_put(s->prepare, job);
}

static void on_answered(void *user, job *job) {
    server *s = user;
    prepare_release(s->prepare, job);
    queue_put(&s->answered, job, connection_send_early);
    net_wake(s->net);
}

/* ---- the loop's events ------------------------------------------------------------------------------ */

/* Every reply that a robot has is counted when this returns. */
static void settle(void *user) {
    server *s = user;
    job *next;
    for (job *job = queue_take_all(&s->answered); job; job = next) {
        next = job->next;
        connection_answered(job);
    }
}

static void on_emptied(void *user) {
    server *s = user;
    if (s->draining) net_stop(s->net);
}

static int answer(net_page *page, int status, const char *sentence) {
    *page = (net_page){.status = status, .type = "text/plain", .body = sentence, .bytes = strlen(sentence)};
    return 1;
}

static int on_asked(void *user, const net_head *head, net_page *page) {
    server *s = user;
    if (head->side == NET_ADMIN) {
        settle(s);
        admin_asked(&s->admin, head, page);
        return 1;
    }
    if (strcmp(head->path, "/healthz") || head->query)
        return head->upgrade && gate_refuse(&s->gate, head, page);
    return s->draining ? answer(page, 503, "draining\n") : answer(page, 200, "OK\n");
}

/* Who connects from now on is told of the model that requests are prepared for. */
static void describe_model(server *s) {
    serve_model *model = prepare_model(s->prepare);
    if (model->number != s->described) {
        metadata about = {.version = openpi_version(),
                          .horizon = model->horizon,
                          .action_dim = model->info.action_dim,
                          .max_message_bytes = s->options->max_message_bytes,
                          .rtc_max_delay = model->rtc.max_delay,
                          .model = model};
        about.reset_pose = openpi_policy_reset_pose(model->policy, &about.reset_pose_count);
        s->connections.metadata = (net_message){
            .data = s->metadata, .bytes = metadata_write(&about, s->metadata, METADATA_BYTES)};
        s->described = model->number;
    }
    model_drop(model);
}

static void *on_opened(void *user, net_peer *peer, const net_head *head) {
    server *s = user;
    const token *token = gate_token(&s->gate, head);
    if (!token) return NULL;
    connection_who who = gate_who(token, head);
    describe_model(s);
    void *connection = connection_opened(&s->connections, peer, &who);
    if (!connection) return NULL;
    log_entry entry = {.event = "connected",
                       .reason = "",
                       .address = head->address,
                       .robot = token->name,
                       .id = connection_id(connection)};
    if (token->class == SCHEDULER_RESERVED)
        log_entry_write(&s->log, &entry, "connected, reserved, %g calls a second", token->rate);
    else log_entry_write(&s->log, &entry, "connected");
    return connection;
}

/* To who waits for a reply, and the end of all. */
static void say_last_words(server *s) {
    net_message message = {
        .data = s->last_words + NET_HEADROOM, .bytes = sizeof device_lost - 1, .text = 1};
    memcpy(message.data, device_lost, sizeof device_lost);
    connections_lose(&s->connections, &message, CLOSE_RESTART, device_lost);
}

/* Connections that are open keep the certificate that they began with. */
static void renew_certificate(server *s) {
    const serve_options *o = s->options;
    openpi_error error = OPENPI_ERROR_INIT;
    tls_pair *pair;
    if (!o->tls_certificate) return;
    if (tls_read(o->tls_certificate, o->tls_key, &pair, &error) != OPENPI_OK) {
        log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "certificate"};
        log_entry_write(&s->log, &entry, "the certificate stays as it was: %s", error.message);
        return;
    }
    log_line(&s->log, "certificate", "the certificate is read again: %s, valid until %s", o->tls_certificate,
             tls_until(pair));
    net_renew(s->net, pair);
}

/* The admin port stays open until the end. */
static void drain(void *user) {
    server *s = user;
    if (s->draining) return;
    reload_cancel(s->reload);
    log_line(&s->log, "draining", "draining: the port is closed, connections: %d", s->connections.count);
    systemd_report(&s->systemd, "STOPPING=1\nSTATUS=draining, connections: %d", s->connections.count);
    s->draining = 1;
    net_deafen(s->net, NET_ROBOTS);
    net_after(s->net, drain_divide(s->options->drain_seconds).answers_ms);
    connections_drain(&s->connections);
    if (!s->connections.count) net_stop(s->net);
}

/* The certificate and the tokens at once, the checkpoint by a thread of its own. */
static void reload_all(void *user) {
    server *s = user;
    systemd_report(&s->systemd, "RELOADING=1\nMONOTONIC_USEC=%lld", (long long)(clock_ns() / 1000));
    s->reloading = 1;
    renew_certificate(s);
    gate_renew(&s->gate);
    reload_ask(s->reload);
}

/* On the signals' thread. */
static void on_signal(void *user) {
    server *s = user;
    net_wake(s->net);
}

/* The first signal drains, the second one ends. */
static void act_on_signals(server *s) {
    signals_seen now = signals_look();
    int reloads = now.reloads > s->signals.reloads, ends = now.ends - s->signals.ends;
    s->signals = now;
    if (reloads) reload_all(s);
    for (int i = 0; i < ends; i++) {
        if (s->draining) net_after(s->net, 0);
        drain(s);
    }
}

static void on_woken(void *user) {
    server *s = user;
    settle(s);
    act_on_signals(s);
    if (s->reloading && reload_is_over(s->reload)) {
        s->reloading = 0;
        if (!s->draining) systemd_report(&s->systemd, "READY=1");
    }
    pthread_mutex_lock(&s->lock);
    int lost = s->lost[0] != 0;
    pthread_mutex_unlock(&s->lock);
    if (!lost || s->ending) return;
    log_entry entry = {.level = LOG_LEVEL_ERROR, .event = "device lost"};
    log_entry_write(&s->log, &entry, "%s", s->lost);
    systemd_report(&s->systemd, "STOPPING=1\nSTATUS=%s", s->lost);
    s->draining = s->ending = 1;
    net_deafen(s->net, NET_ROBOTS);
    say_last_words(s);
    net_after(s->net, DRAIN_CLOSING_MS);
}

/* The time for draining is over: connections that are left are closed, then the loop ends. */
static void on_timed(void *user) {
    server *s = user;
    if (s->ending) {
        net_stop(s->net);
        return;
    }
    s->ending = 1;
    connections_end(&s->connections, CLOSE_GOING_AWAY, "the server shuts down");
    net_after(s->net, drain_divide(s->options->drain_seconds).closing_ms);
}

static void on_dropped(void *user, const void *connection, const char *address, drop_reason why) {
    server *s = user;
    const char *sentence = drop_sentence(why);
    metrics_add_dropped(&s->metrics, why);
    log_entry entry = {.level = LOG_LEVEL_WARNING,
                       .event = "dropped",
                       .reason = sentence,
                       .address = address,
                       .robot = connection ? connection_name(connection) : NULL,
                       .id = connection ? connection_id(connection) : 0};
    log_entry_write(&s->log, &entry, "dropped: %s", sentence);
}

static void on_too_often(void *user, const char *address) {
    static const char reason[] = "this address has connected as often in a second as --max-attempts";
    server *s = user;
    metrics_add_rejected(&s->metrics, REJECTED_ATTEMPTS);
    log_entry entry = {.level = LOG_LEVEL_WARNING, .event = "refused", .reason = reason, .address = address};
    log_entry_write(&s->log, &entry, "refused: %s", reason);
}

/* What the log has counted, and signs of life for systemd's watchdog. */
static void on_ticked(void *user) {
    server *s = user;
    log_tick(&s->log);
    prepare_trim(s->prepare, clock_now());
    metrics_counts counts = metrics_get(&s->metrics);
    double busy = 0;
    for (int i = 0; i < counts.device_count; i++) busy += counts.devices[i].busy_seconds * 1e3;
    history_busy(&s->connections.history, clock_now(), busy);
    int64_t now = clock_ns();
    int hung = dispatch_hung(s->dispatch, s->systemd.watchdog_ns, now);
    systemd_alive(&s->systemd, hung < 0 ? NULL : s->loading.names[hung], now);
}

static const net_events events = {
    .asked = on_asked,
    .opened = on_opened,
    .announced = connection_announced,
    .received = connection_received,
    .sent = connection_sent,
    .closed = connection_closed,
    .woken = on_woken,
    .timed = on_timed,
    .dropped = on_dropped,
    .too_often = on_too_often,
    .ticked = on_ticked,
};

/* ---- opening ---------------------------------------------------------------------------------------- */

static int least(int a, int b) { return a < b ? a : b; }

static openpi_status open_address(server *s, openpi_error *error) {
    const serve_options *o = s->options;
    int attempts = o->max_attempts ? o->max_attempts : SERVE_ATTEMPTS * o->max_per_address;
    int files = 4 * o->max_connections + OTHER_FILES, places = process_allow_files(files);
    process_return_memory();
    net_limits limits = {.handshake = o->handshake_seconds,
                         .message = o->message_seconds,
                         .reply = o->reply_seconds,
                         .ping = o->ping_seconds,
                         .attempts = attempts,
                         .files = files,
                         .per_address = o->max_per_address,
                         .waiting = {least(o->max_connections + WAITING, places / 4),
                                     least(WAITING, places / 8)},
                         .message_bytes = o->max_message_bytes,
                         .in_flight = o->max_in_flight};
    int only_loopback = !o->trust_network && !(o->tokens && o->tls_certificate);
    int only_admin_here = !tokens_has_admin(&s->gate.tokens) || !(o->trust_network || o->tls_certificate);
    tls_pair *pair = NULL;
    SERVE_TRY(systemd_open(&s->systemd, o->notify_socket, o->watchdog_us, error));
    if (o->tls_certificate) SERVE_TRY(tls_read(o->tls_certificate, o->tls_key, &pair, error));
    SERVE_TRY(net_open(&events, s, &limits, pair, &s->net, error));
    const char *host = o->host ? o->host : "127.0.0.1";
    if (o->inherited)
        SERVE_TRY(net_inherit(s->net, o->first_inherited, o->inherited, only_loopback, error));
    else SERVE_TRY(net_bind(s->net, NET_ROBOTS, host, o->port, only_loopback, error));
    if (!o->admin) return OPENPI_OK;
    SERVE_TRY(admin_split(o->admin, s->admin.host, &s->admin.port, error));
    return net_bind(s->net, NET_ADMIN, s->admin.host, s->admin.port, only_admin_here, error);
}

static int is_cancelled(void *user) {
    (void)user;
    return signals_look().ends > 0;
}

static openpi_status open_weights(server *s, openpi_error *error) {
    loading *l = &s->loading;
    SERVE_TRY(loading_run(l, s->options->checkpoint, s->model, NULL, is_cancelled, NULL, s->devices, error));
    for (int i = 0; i < l->count; i++) metrics_add_device(&s->metrics, l->names[i]);
    return OPENPI_OK;
}

static openpi_status open_threads(server *s, openpi_error *error) {
    const serve_options *o = s->options;
    dispatch_options devices = {.devices = s->devices,
                                .device_count = s->loading.count,
                                .connections = o->max_connections,
                                .max_block = o->max_block,
                                .metrics = &s->metrics,
                                .answered = on_answered,
                                .again = on_again,
                                .lost = on_lost,
                                .user = s};
    prepare_options preparing = {.model = s->model,
                                 .threads = o->prepare_threads,
                                 .most = PREPARED,
                                 .in_flight = &s->connections.pool.in_flight,
                                 .seed = o->seed,
                                 .preparing = on_preparing,
                                 .prepared = on_prepared,
                                 .refused = on_refused,
                                 .user = s};
    s->connections.pool.in_flight.most = o->max_in_flight;
    SERVE_TRY(dispatch_open(&devices, &s->dispatch, error));
    SERVE_TRY(prepare_open(&preparing, &s->prepare, error));
    reload_options reloading = {.loading = &s->loading,
                                .dispatch = s->dispatch,
                                .prepare = s->prepare,
                                .devices = s->devices,
                                .model = s->model,
                                .log = &s->log,
                                .metrics = &s->metrics,
                                .over = on_reloaded,
                                .user = s};
    return reload_open(&reloading, &s->reload, error);
}

static void open_connections(server *s) {
    const serve_model *model = s->model;
    connections *c = &s->connections;
    c->pool.horizon = model->horizon;
    c->pool.action_dim = model->info.action_dim;
    c->max_message_bytes = s->options->max_message_bytes;
    c->dispatch = s->dispatch;
    c->log = &s->log;
    c->log_requests = s->options->log_requests;
    c->metrics = &s->metrics;
    c->coming = on_coming;
    c->submit = submit;
    c->withdrawn = on_withdrawn;
    c->emptied = on_emptied;
    c->settle = settle;
    c->user = s;
}

/* Whether the folder can be written to is found out before the model is loaded. */
static openpi_status open_recorder(server *s, openpi_error *error) {
    const serve_options *o = s->options;
    recorder_options recording = {.folder = o->record,
                                  .most = o->record_most ? o->record_most : SERVE_RECORD_BYTES,
                                  .seed = o->seed,
                                  .log = &s->log,
                                  .metrics = &s->metrics};
    return o->record ? recorder_open(&recording, &s->recorder, error) : OPENPI_OK;
}

static void describe_recording(server *s) {
    recorder_model model = {.checkpoint = s->options->checkpoint,
                            .config = s->options->policy.config,
                            .robot = s->model->info.robot,
                            .engine = device_engine_info(s->devices[0]),
                            .session = device_session_info(s->devices[0])};
    if (s->recorder) recorder_describe(s->recorder, &model);
    s->connections.recorder = s->recorder;
}

static int shared_device(const server *s, const char *name) {
    for (int i = 0; i < s->loading.count; i++)
        if (!strcmp(s->loading.names[i], name)) return i;
    return -1;
}

static openpi_status open_shadow(server *s, openpi_error *error) {
    const serve_options *o = s->options;
    const openpi_session_info *session = device_session_info(s->devices[0]);
    shadow_options options = {.serve = o,
                              .device = o->shadow_device ? o->shadow_device : s->loading.names[0],
                              .model = s->model,
                              .session = OPENPI_SESSION_OPTIONS_INIT,
                              .cancel = is_cancelled,
                              .log = &s->log,
                              .metrics = &s->metrics};
    if (!o->shadow) return OPENPI_OK;
    options.shared = shared_device(s, options.device);
    options.session.batch = options.session.rtc = 1;
    options.session.horizon = session->horizon;
    options.session.steps = session->steps;
    options.session.max_prompt = session->max_prompt;
    return shadow_open(&options, &s->shadow, error);
}

static void begin_shadow(server *s) {
    const serve_options *o = s->options;
    if (!s->shadow) return;
    shadow_begin(s->shadow, s->prepare, s->dispatch);
    s->connections.shadow = s->shadow;
    log_line(&s->log, "shadow", "every %d requests one is computed again with the weights %s", o->shadow,
             o->shadow_weights ? o->shadow_weights : "bf16");
}

static void open_gate(server *s) {
    s->gate.net = s->net;
    s->gate.dispatch = s->dispatch;
    s->gate.connections = &s->connections;
    s->gate.metrics = &s->metrics;
    s->gate.log = &s->log;
}

static void open_admin(server *s) {
    about_fill(&s->about, &s->loading, s->devices, net_is_plain(s->net, NET_ROBOTS),
               net_port(s->net, NET_ROBOTS));
    s->admin.about = &s->about.shown;
    s->admin.prepare = s->prepare;
    s->admin.log = &s->log;
    s->admin.began_ms = clock_now();
    s->admin.tokens = &s->gate.tokens;
    s->admin.connections = &s->connections;
    s->admin.dispatch = s->dispatch;
    s->admin.metrics = &s->metrics;
    s->admin.drain = drain;
    s->admin.reload_all = reload_all;
    s->admin.reload = s->reload;
    s->admin.user = s;
}

static void say_address(server *s, net_side side, const char *event, const char *what, const char *host) {
    int brackets = strchr(host, ':') != NULL, port = net_port(s->net, side);
    log_entry entry = {.event = event, .numbers = {{"port", port}}};
    if (s->log.format == LOG_TEXT) entry.numbers[0].name = NULL;
    log_entry_write(&s->log, &entry, "%s%s://%s%s%s:%d", what, net_is_plain(s->net, side) ? "" : "s",
                    brackets ? "[" : "", host, brackets ? "]" : "", port);
}

static void say_model(server *s) {
    const openpi_engine_info *e = device_engine_info(s->devices[0]);
    log_line(&s->log, "loaded", "robot %s, chunks of %d steps of %d actions, on %s (%s)",
             s->model->info.robot, s->model->horizon, s->model->info.action_dim, e->device, e->path);
    model_say_notes(s->model, &s->log);
    for (int i = 0; i < s->loading.count; i++) {
        e = device_engine_info(s->devices[i]);
        if (e->table_ignored[0])
            log_line(&s->log, "table", "device %s: table %s: %s", s->loading.names[i], e->table,
                     e->table_ignored);
    }
}

/* To the log, and to systemd, which from here on waits for signs of life. */
static void say_ready(server *s) {
    if (s->options->admin) say_address(s, NET_ADMIN, "admin", "page and metrics on http", s->admin.host);
    say_address(s, NET_ROBOTS, "ready", "ready on ws", s->options->host ? s->options->host : "127.0.0.1");
    systemd_report(&s->systemd, "READY=1\nSTATUS=serving");
    int interval = systemd_interval(&s->systemd);
    net_every(s->net, interval && interval < TICK_MS ? interval : TICK_MS);
}

static openpi_status check_limits(const serve_options *o, openpi_error *error) {
    if (o->max_in_flight >= o->max_message_bytes) return OPENPI_OK;
    return fail(error, OPENPI_BAD_ARGUMENT,
                "--max-in-flight is %llu bytes, less than the %llu bytes that --max-message allows",
                (unsigned long long)o->max_in_flight, (unsigned long long)o->max_message_bytes);
}

/* A recording says once which weights its actions are of. */
static openpi_status check_updates(const serve_options *o, openpi_error *error) {
    struct stat about;
    if (!o->updates) return OPENPI_OK;
    if (o->shadow)
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "--updates and --shadow exclude each other: the shadow keeps the checkpoint's weights");
    if (o->record)
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "--updates and --record exclude each other: no recording could be replayed");
    if (!o->admin)
        return fail(error, OPENPI_BAD_ARGUMENT, "--updates needs the admin port, not --no-admin");
    if (!stat(o->updates, &about) && S_ISDIR(about.st_mode)) return OPENPI_OK;
    return fail(error, OPENPI_NOT_FOUND, "--updates is '%.300s', expected a folder", o->updates);
}

static openpi_status run(server *s, openpi_error *error) {
    const serve_options *o = s->options;
    SERVE_TRY(check_limits(o, error));
    SERVE_TRY(check_updates(o, error));
    SERVE_TRY(loading_devices(&s->loading, error));
    if (o->tokens) SERVE_TRY(tokens_open(o->tokens, &s->gate.tokens, error));
    SERVE_TRY(model_open(o->checkpoint, &o->policy, o->horizon, 1, &s->model, error));
    SERVE_TRY(model_default_prompt(s->model, o->default_prompt, error));
    SERVE_TRY(open_address(s, error));
    SERVE_TRY(open_recorder(s, error));
    systemd_report(&s->systemd, "STATUS=loading the model");
    SERVE_TRY(open_weights(s, error));
    say_model(s);
    SERVE_TRY(open_shadow(s, error));
    SERVE_TRY(open_threads(s, error));
    open_connections(s);
    describe_recording(s);
    begin_shadow(s);
    open_gate(s);
    open_admin(s);
    SERVE_TRY(net_listen(s->net, error));
    say_ready(s);
    signals_serve(on_signal, s);
    net_run(s->net);
    return s->lost[0] ? fail(error, OPENPI_DEVICE_LOST, "%s", s->lost) : OPENPI_OK;
}

/* ---- closing ---------------------------------------------------------------------------------------- */

/* The threads wake the loop, so they end before it is closed. */
static void end_threads(server *s) {
    reload_cancel(s->reload);
    shadow_close(s->shadow);
    s->connections.shadow = NULL;
    prepare_end(s->prepare);
    dispatch_end(s->dispatch);
    reload_close(s->reload);
}

/* After the threads. Closing the loop ends the connections, which leave the scheduler. */
static void close_all(server *s) {
    net_close(s->net);
    prepare_close(s->prepare);
    dispatch_close(s->dispatch);
    for (int i = 0; i < s->loading.count; i++) device_close(s->devices[i]);
    recorder_close(s->recorder);
    connections_close(&s->connections);
    model_drop(s->model);
    queue_close(&s->answered);
    tokens_close(&s->gate.tokens);
    text_close(&s->admin.text);
    metrics_close(&s->metrics);
    systemd_close(&s->systemd);
    pthread_mutex_destroy(&s->lock);
}

openpi_status serve(const serve_options *options, int *busy, openpi_error *error) {
    server *s = calloc(1, sizeof *s);
    if (!s) return fail(error, OPENPI_NO_MEMORY, "out of memory: the server");
    s->options = s->loading.options = s->gate.options = options;
    s->systemd.fd = -1;
    log_open(&s->log, STDERR_FILENO, options->log_json ? LOG_JSON : LOG_TEXT, options->log_prefix);
    *busy = 0;
    queue_open(&s->answered);
    metrics_open(&s->metrics);
    pthread_mutex_init(&s->lock, NULL);
    openpi_status status = signals_open(&s->log, error);
    if (status == OPENPI_OK) status = run(s, error);
    signals_close();
    *busy = status == OPENPI_OK && connections_running(&s->connections) > 0;
    if (*busy) {
        reload_abandon(s->reload);
        return status;
    }
    end_threads(s);
    log_flush(&s->log);
    if (status == OPENPI_OK) log_line(&s->log, "drained", "drained");
    if (status == OPENPI_CANCELLED) log_line(&s->log, "ended", "ended while the model was loaded");
    close_all(s);
    signals_closed();
    log_close(&s->log);
    free(s);
    return status == OPENPI_CANCELLED ? OPENPI_OK : status;
}
