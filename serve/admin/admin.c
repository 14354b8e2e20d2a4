/* See admin.h. */
#include "admin.h"

#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "serve/small/clock.h"
#include "serve/small/fail.h"
#include "serve/who/origin.h"
#include "pages.h"
#include "state.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* The page may use what this port has, and nothing else; nobody may frame it. */
#define SAFE_HEADERS                                                                                        \
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' "    \
    "blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"           \
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"                                  \
    "Cross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\n"

/* ---- the address ------------------------------------------------------------------------------------ */

openpi_status admin_split(const char *address, char host[ADMIN_HOST], int *port, openpi_error *error) {
    const char *colon = strrchr(address, ':'), *begin = address;
    size_t count = colon ? (size_t)(colon - address) : 0;
    char *end = NULL;
    long number = colon ? strtol(colon + 1, &end, 10) : -1;
    if (count > 2 && address[0] == '[' && address[count - 1] == ']') {
        begin++;
        count -= 2;
    } else if (count && memchr(address, ':', count)) {
        count = 0;
    }
    if (!count || count >= ADMIN_HOST || !end || end == colon + 1 || *end || number < 0 || number > 65535)
        return fail(error, OPENPI_BAD_ARGUMENT,
                    "--admin is '%.100s', expected HOST:PORT, as 127.0.0.1:8642 or [::1]:8642", address);
    memcpy(host, begin, count);
    host[count] = 0;
    *port = (int)number;
    return OPENPI_OK;
}

/* ---- who may ---------------------------------------------------------------------------------------- */

static int has_token(const admin *a, const net_head *head) {
    return !tokens_has_admin(a->tokens) || tokens_find_admin(a->tokens, head->authorization);
}

/* ---- pages ------------------------------------------------------------------------------------------ */

static void say(net_page *page, int status, const char *sentence) {
    *page = (net_page){.status = status,
                       .type = "text/plain; charset=utf-8",
                       .headers = SAFE_HEADERS,
                       .body = sentence,
                       .bytes = strlen(sentence)};
}

/* The answer is what was written into a->text. */
static void show(const admin *a, const char *type, net_page *page) {
    if (a->text.failed) {
        say(page, 503, "no memory for the answer\n");
        return;
    }
    *page = (net_page){.status = 200,
                       .type = type,
                       .headers = SAFE_HEADERS,
                       .body = a->text.data,
                       .bytes = a->text.count};
}

/* What a route is asked with: the numbers of its path, or the name at its end. */
typedef struct asked {
    const char *path, *name;
    uint64_t id, slot;
} asked;

static void get_health(admin *a, const asked *asked, net_page *page) {
    (void)asked;
    if (a->connections->draining) say(page, 503, "draining\n");
    else say(page, 200, "OK\n");
}

static void get_metrics(admin *a, const asked *asked, net_page *page) {
    (void)asked;
    metrics_counts counts = metrics_get(a->metrics);
    scheduler_state state = dispatch_state(a->dispatch);
    metrics_now now = {.connections = a->connections->count,
                       .process = process_look(),
                       .version = openpi_version()};
    serve_model *model = prepare_model(a->prepare);
    now.warnings = model->warning_count;
    now.notes = model->note_count - model->warning_count;
    model_drop(model);
    memcpy(now.queued, state.queued, sizeof now.queued);
    text_clear(&a->text);
    metrics_write(&counts, &now, &a->text);
    show(a, "text/plain; version=0.0.4; charset=utf-8", page);
}

static void get_file(admin *a, const asked *asked, net_page *page) {
    page_file file;
    (void)a;
    if (!page_find(asked->path, &file)) {
        say(page, 404, "there is no such page\n");
        return;
    }
    *page = (net_page){.status = 200,
                       .type = file.type,
                       .headers = SAFE_HEADERS,
                       .body = file.data,
                       .bytes = file.bytes};
}

static void get_state(admin *a, const asked *asked, net_page *page) {
    double now = clock_now();
    connection_look looks[ADMIN_ROBOTS];
    metrics_counts counts = metrics_get(a->metrics);
    log_recent warnings = log_look(a->log);
    serve_model *model = prepare_model(a->prepare);
    state state = {.version = openpi_version(),
                   .about = a->about,
                   .model = model,
                   .horizon = a->connections->pool.horizon,
                   .action_dim = a->connections->pool.action_dim,
                   .draining = a->connections->draining,
                   .update = update_look_served(a->reload),
                   .now_ms = now,
                   .up_seconds = (now - a->began_ms) * 1e-3,
                   .counts = &counts,
                   .history = &a->connections->history,
                   .warnings = &warnings,
                   .queue = dispatch_state(a->dispatch),
                   .robots = looks,
                   .robot_count = connections_look(a->connections, looks, ADMIN_ROBOTS, now),
                   .connections = a->connections->count,
                   .watched = asked->id,
                   .watch = asked->id ? connection_watch(a->connections, asked->id, now) : NULL,
                   .trail = asked->id ? connection_trail(a->connections, asked->id) : NULL};
    text_clear(&a->text);
    state_write(&state, &a->text);
    model_drop(model);
    show(a, "application/json", page);
}

static void get_picture(admin *a, const asked *asked, net_page *page) {
    const watch *watch = connection_watch(a->connections, asked->id, clock_now());
    const snapshot *seen = watch ? watch->seen : NULL;
    if (!seen || asked->slot >= OPENPI_CAMERAS || !seen->mask[asked->slot]) {
        say(page, 404, "there is no such picture\n");
        return;
    }
    *page = (net_page){.status = 200,
                       .type = "image/bmp",
                       .headers = SAFE_HEADERS,
                       .body = (const char *)seen->pictures + (size_t)asked->slot * SNAPSHOT_PICTURE,
                       .bytes = SNAPSHOT_PICTURE};
}

static void post_drain(admin *a, const asked *asked, net_page *page) {
    (void)asked;
    a->drain(a->user);
    say(page, 200, "draining\n");
}

static void post_reload(admin *a, const asked *asked, net_page *page) {
    (void)asked;
    if (a->connections->draining) {
        say(page, 503, "draining\n");
        return;
    }
    a->reload_all(a->user);
    say(page, 200, "reloading\n");
}

static void get_reload(admin *a, const asked *asked, net_page *page) {
    char outcome[RELOAD_TEXT];
    (void)asked;
    reload_look(a->reload, outcome);
    text_clear(&a->text);
    text_put(&a->text, "%s\n", outcome);
    show(a, "text/plain; charset=utf-8", page);
}

static void ask_update(admin *a, const char *name, net_page *page) {
    if (a->connections->draining) {
        say(page, 503, "draining\n");
        return;
    }
    switch (update_ask(a->reload, name)) {
    case UPDATE_ASKED: say(page, 200, "updating\n"); return;
    case UPDATE_BUSY: say(page, 503, "another update is under way\n"); return;
    case UPDATE_OFF: say(page, 403, "the server was started without --updates FOLDER\n"); return;
    case UPDATE_NO_NAME: break;
    }
    say(page, 404, "expected /weights/NAME, the name of a file in the folder of --updates\n");
}

static void post_weights(admin *a, const asked *asked, net_page *page) { ask_update(a, asked->name, page); }

static void post_restore(admin *a, const asked *asked, net_page *page) {
    (void)asked;
    ask_update(a, NULL, page);
}

static void get_weights(admin *a, const asked *asked, net_page *page) {
    char outcome[RELOAD_TEXT];
    (void)asked;
    update_look(a->reload, outcome);
    text_clear(&a->text);
    text_put(&a->text, "%s\n", outcome);
    show(a, "text/plain; charset=utf-8", page);
}

/* ---- routes ----------------------------------------------------------------------------------------- */

/* The page itself has nothing to hide: it asks for the token that its requests then send. A number in a path
 * is "#", a name at its end is "*". */
static const struct route {
    net_method method;
    const char *path;
    int open;                    /* 1: needs no token                                                      */
    void (*answer)(admin *admin, const asked *asked, net_page *page);
} routes[] = {
    {NET_GET, "/", 1, get_file},
    {NET_GET, "/page.css", 1, get_file},
    {NET_GET, "/page.js", 1, get_file},
    {NET_GET, "/icon.svg", 1, get_file},
    {NET_GET, "/healthz", 1, get_health},
    {NET_GET, "/metrics", 0, get_metrics},
    {NET_GET, "/state", 0, get_state},
    {NET_GET, "/state/#", 0, get_state},
    {NET_GET, "/picture/#/#", 0, get_picture},
    {NET_POST, "/drain", 0, post_drain},
    {NET_POST, "/reload", 0, post_reload},
    {NET_GET, "/reload", 0, get_reload},
    {NET_POST, "/weights/*", 0, post_weights},
    {NET_GET, "/weights", 0, get_weights},
    {NET_POST, "/restore", 0, post_restore},
};

/* Returns 0 where the path is not of this form. Numbers have at most 18 digits. */
static int matches(const char *form, const char *path, uint64_t numbers[2], const char **name) {
    int count = 0;
    *name = NULL;
    for (; *form; form++) {
        if (*form == '*') {
            *name = path;
            return 1;
        }
        if (*form != '#') {
            if (*path++ != *form) return 0;
            continue;
        }
        size_t digits = strspn(path, "0123456789");
        if (!digits || digits > 18) return 0;
        numbers[count++] = strtoull(path, NULL, 10);
        path += digits;
    }
    return !*path;
}

/* NULL: *page says why there is none. */
static const struct route *find(const net_head *head, asked *asked, net_page *page) {
    net_method method = head->method == NET_HEAD ? NET_GET : head->method;
    int known = 0;
    for (int i = 0; i < LENGTH(routes); i++) {
        uint64_t numbers[2] = {0, 0};
        if (!matches(routes[i].path, head->path, numbers, &asked->name)) continue;
        asked->id = numbers[0];
        asked->slot = numbers[1];
        if (routes[i].method == method) return &routes[i];
        known = 1;
    }
    if (known) say(page, 405, "another method\n");
    else say(page, 404, "there is no such page\n");
    return NULL;
}

void admin_asked(admin *a, const net_head *head, net_page *page) {
    asked asked = {.path = head->path};
    const struct route *route = find(head, &asked, page);
    if (!route) return;
    if (!tokens_has_admin(a->tokens) && !origin_is_own_host(head->host, a->host))
        say(page, 403, "the header Host names no address of this machine\n");
    else if (head->method == NET_POST && !origin_is_own(head->origin, head->host))
        say(page, 403, "the header Origin is of another page\n");
    else if (!route->open && !has_token(a, head))
        say(page, 401, "no token of the class admin, or an unknown one\n");
    else route->answer(a, &asked, page);
}
