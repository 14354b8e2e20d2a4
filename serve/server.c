/* The server: opens its parts in order, runs the loop, and closes them.
 *
 *   policy -> address -> model, first call -> threads -> listening -> events … -> SIGTERM -> drained
 *
 * Whatever can be wrong with the options is found before the model is loaded, and the port only accepts
 * robots when a call was answered. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "connection.h"
#include "device.h"
#include "fail.h"
#include "log.h"
#include "messages.h"
#include "net.h"
#include "prepare.h"
#include "queue.h"
#include "serve.h"

enum {
    METADATA_BYTES = 4096,
    REQUESTS_A_THREAD = 2,       /* prepared requests that may wait for the device, for each prepare thread */
    CLOSING_MS = 1000,           /* for the close frames after the last answer                             */
};

typedef struct server {
    const serve_options *options;
    openpi_policy *policy;
    openpi_policy_info policy_info;
    net *net;
    queue prepared, answered;    /* jobs for the device; jobs for their connections                        */
    device *device;
    prepare *prepare;
    connections connections;
    uint8_t metadata[NET_HEADROOM + METADATA_BYTES];
    int draining, ending;
} server;

/* ---- jobs on their way ------------------------------------------------------------------------------ */

static void submit(void *user, job *job) {
    server *s = user;
    prepare_put(s->prepare, job);
}

static void on_prepared(void *user, job *job) {
    server *s = user;
    queue_put(&s->prepared, job);
}

static void on_refused(void *user, job *job) {
    server *s = user;
    queue_put(&s->answered, job);
    net_wake(s->net);
}

static void on_answered(void *user, job *job) {
    server *s = user;
    prepare_release(s->prepare, job);
    queue_put(&s->answered, job);
    net_wake(s->net);
}

/* ---- the loop's events ------------------------------------------------------------------------------ */

static void on_emptied(void *user) {
    server *s = user;
    if (s->draining) net_stop(s->net);
}

static int on_asked(void *user, const net_head *head, net_page *page) {
    static const char ok[] = "OK\n", draining[] = "draining\n";
    server *s = user;
    if (strcmp(head->path, "/healthz") || head->query) return 0;
    page->type = "text/plain";
    page->status = s->draining ? 503 : 200;
    page->body = s->draining ? draining : ok;
    page->bytes = strlen(page->body);
    return 1;
}

static void *on_opened(void *user, net_peer *peer, const char *address) {
    server *s = user;
    log_line("%s connected", address);
    return connection_opened(&s->connections, peer);
}

static void on_woken(void *user) {
    server *s = user;
    job *next;
    for (job *job = queue_take_all(&s->answered); job; job = next) {
        next = job->next;
        connection_answered(job);
    }
}

/* The first signal drains, the second one ends. */
static void on_signalled(void *user, int number) {
    server *s = user;
    int most = s->options->drain_seconds * 1000 - CLOSING_MS;
    if (number == SIGHUP) return;
    if (s->draining) most = 0;
    else log_line("draining: the port is closed, connections: %d", s->connections.count);
    s->draining = 1;
    net_deafen(s->net);
    net_after(s->net, most);
    connections_drain(&s->connections);
    if (!s->connections.count) net_stop(s->net);
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
    net_after(s->net, CLOSING_MS);
}

static const net_events events = {
    .asked = on_asked,
    .opened = on_opened,
    .announced = connection_announced,
    .received = connection_received,
    .sent = connection_sent,
    .closed = connection_closed,
    .woken = on_woken,
    .signalled = on_signalled,
    .timed = on_timed,
};

/* ---- opening ---------------------------------------------------------------------------------------- */

static openpi_status open_policy(server *s, openpi_error *error) {
    SERVE_TRY(openpi_policy_open(s->options->checkpoint, &s->options->policy, &s->policy, error));
    s->policy_info = (openpi_policy_info)OPENPI_POLICY_INFO_INIT;
    return openpi_policy_get_info(s->policy, &s->policy_info, error);
}

static openpi_status open_address(server *s, openpi_error *error) {
    const serve_options *o = s->options;
    SERVE_TRY(net_open(&events, s, &s->net, error));
    return net_bind(s->net, o->host ? o->host : "127.0.0.1", o->port, !o->trust_network, error);
}

static openpi_status open_model(server *s, openpi_error *error) {
    const serve_options *o = s->options;
    device_options options = {.checkpoint = o->checkpoint,
                              .engine = &o->engine,
                              .session = OPENPI_SESSION_OPTIONS_INIT,
                              .action_dim = s->policy_info.action_dim,
                              .prepared = &s->prepared,
                              .answered = on_answered,
                              .user = s};
    options.session.horizon = o->horizon ? o->horizon : s->policy_info.horizon;
    options.session.steps = o->steps;
    options.session.max_prompt = s->policy_info.max_prompt;
    return device_open(&options, &s->device, error);
}

static openpi_status open_threads(server *s, openpi_error *error) {
    int threads = s->options->prepare_threads;
    prepare_options options = {.policy = s->policy,
                               .threads = threads,
                               .requests = threads * (1 + REQUESTS_A_THREAD),
                               .horizon = device_session_info(s->device)->horizon,
                               .seed = s->options->seed,
                               .prepared = on_prepared,
                               .refused = on_refused,
                               .user = s};
    SERVE_TRY(prepare_open(&options, &s->prepare, error));
    return device_start(s->device, error);
}

static void open_connections(server *s) {
    int horizon = device_session_info(s->device)->horizon;
    metadata about = {.version = openpi_version(),
                      .horizon = horizon,
                      .action_dim = s->policy_info.action_dim,
                      .max_message_bytes = s->options->max_message_bytes};
    about.reset_pose = openpi_policy_reset_pose(s->policy, &about.reset_pose_count);
    connections *c = &s->connections;
    c->pool.horizon = horizon;
    c->pool.action_dim = s->policy_info.action_dim;
    c->max_message_bytes = s->options->max_message_bytes;
    c->submit = submit;
    c->emptied = on_emptied;
    c->user = s;
    c->metadata.data = s->metadata + NET_HEADROOM;
    c->metadata.bytes = metadata_write(&about, c->metadata.data, METADATA_BYTES);
}

static void say_ready(const server *s) {
    const openpi_engine_info *e = device_engine_info(s->device);
    const openpi_session_info *session = device_session_info(s->device);
    const char *host = s->options->host ? s->options->host : "127.0.0.1";
    log_line("robot %s, chunks of %d steps of %d actions, on %s (%s)", s->policy_info.robot, session->horizon,
             s->policy_info.action_dim, e->device, e->path);
    log_line("ready on ws://%s%s%s:%d", strchr(host, ':') ? "[" : "", host, strchr(host, ':') ? "]" : "",
             net_port(s->net));
}

static openpi_status run(server *s, openpi_error *error) {
    SERVE_TRY(open_policy(s, error));
    SERVE_TRY(open_address(s, error));
    SERVE_TRY(open_model(s, error));
    open_connections(s);
    SERVE_TRY(open_threads(s, error));
    SERVE_TRY(net_listen(s->net, error));
    say_ready(s);
    net_run(s->net);
    return OPENPI_OK;
}

/* ---- closing ---------------------------------------------------------------------------------------- */

static void close_all(server *s) {
    queue_end(&s->prepared);
    device_close(s->device);
    job *next;
    for (job *job = queue_take_all(&s->prepared); job; job = next) {
        next = job->next;
        prepare_release(s->prepare, job);
    }
    prepare_close(s->prepare);
    net_close(s->net);
    connections_close(&s->connections);
    openpi_policy_close(s->policy);
    queue_close(&s->prepared);
    queue_close(&s->answered);
}

openpi_status serve(const serve_options *options, int *busy, openpi_error *error) {
    server *s = calloc(1, sizeof *s);
    if (!s) return fail(error, OPENPI_NO_MEMORY, "out of memory: the server");
    s->options = options;
    *busy = 0;
    queue_open(&s->prepared);
    queue_open(&s->answered);
    openpi_status status = run(s, error);
    *busy = status == OPENPI_OK && connections_running(&s->connections) > 0;
    if (*busy) return status;
    if (status == OPENPI_OK) log_line("drained");
    close_all(s);
    free(s);
    return status;
}
