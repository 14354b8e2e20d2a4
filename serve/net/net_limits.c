/* What a client may take: the time of each connection, room among those that wait, frames, pings; see
 * net_inside.h.
 *
 * Note: the library answers pings by itself, at most one of those that came together, and tells nobody. So
 * pings are counted by their pongs, and by what a socket has received besides messages. */
#include <stdio.h>
#include <string.h>

#include "serve/small/clock.h"
#include "net_inside.h"
#include "sockets.h"

enum {
    EMPTY_FRAMES = 1000,         /* most in a message                                                      */
    TURN_FRAMES = 128,           /* read of one socket before others have their turn                       */
    PINGS = 100,                 /* a second                                                               */
    PING_BYTES = 131,            /* the longest ping                                                       */
    FRAME_HEAD = 6,              /* with its mask, of up to 125 bytes; longer ones have 2 or 8 more         */
    SECOND_MS = 1000,
};

/* ---- closes ----------------------------------------------------------------------------------------- */

/* The closes for what a client sends, and what it reads in them: the limit stands between two texts. */
typedef enum limit { NO_LIMIT, OF_MESSAGE, OF_SECONDS, OF_FLIGHT, OF_FRAMES, OF_PINGS } limit;

static const struct { drop_reason why; int code; limit limit; const char *before, *after; } closes[] = {
    {DROP_TEXT, CLOSE_UNSUPPORTED, NO_LIMIT, "a text message; expected msgpack in a binary one", ""},
    {DROP_SIZE, CLOSE_TOO_BIG, OF_MESSAGE, "the message has more than the ", " bytes of --max-message"},
    {DROP_MEMORY, CLOSE_TRY_LATER, OF_FLIGHT, "no memory for another message now, --max-in-flight is ",
     " bytes; try again later"},
    {DROP_MESSAGE, CLOSE_TOO_SLOW, OF_SECONDS, "the message took longer than the ", " s of --message-timeout"},
    {DROP_EMPTY, CLOSE_TOO_MANY, OF_FRAMES, "more than ", " frames without a byte in one message"},
    {DROP_PINGS, CLOSE_TOO_MANY, OF_PINGS, "more than ", " pings in a second"},
};

enum { CLOSES = sizeof closes / sizeof *closes };

static unsigned long long limit_of(const net_limits *most, limit which) {
    switch (which) {
    case OF_MESSAGE: return most->message_bytes;
    case OF_SECONDS: return (unsigned long long)most->message;
    case OF_FLIGHT: return most->in_flight;
    case OF_FRAMES: return EMPTY_FRAMES;
    case OF_PINGS: return PINGS;
    case NO_LIMIT: break;
    }
    return 0;
}

void limits_open(net *net) {
    for (int i = 0; i < CLOSES; i++) {
        char number[32] = "";
        if (closes[i].limit)
            snprintf(number, sizeof number, "%llu", limit_of(&net->limits, closes[i].limit));
        snprintf(net->reasons[closes[i].why], sizeof *net->reasons, "%s%s%s", closes[i].before, number,
                 closes[i].after);
    }
}

static void end_as(net_peer *peer, int row) {
    net *net = peer->net;
    if (peer->close_code) return;
    net->events->dropped(net->user, peer->connection, peer->address, closes[row].why);
    peer->floods = closes[row].code == CLOSE_TOO_MANY && closes[row].limit >= OF_FRAMES;
    net_end(peer, closes[row].code, net->reasons[closes[row].why]);
}

void peer_end_for(net_peer *peer, drop_reason why) {
    for (int i = 0; i < CLOSES; i++)
        if (closes[i].why == why) end_as(peer, i);
}

void peer_end_with(net_peer *peer, int code) {
    int i = 0;
    while (closes[i].code != code) i++;
    end_as(peer, i);
}

/* ---- WebSockets ------------------------------------------------------------------------------------- */

void peer_join(net_peer *peer) {
    net *net = peer->net;
    peer->after = net->peers;
    if (peer->after) peer->after->before = peer;
    net->peers = peer;
}

void peer_leave(net_peer *peer) {
    if (peer->before) peer->before->after = peer->after;
    else peer->net->peers = peer->after;
    if (peer->after) peer->after->before = peer->before;
}

int net_count(const net *net, address_key key) {
    int count = 0;
    for (const net_peer *peer = net->peers; peer; peer = peer->after)
        count += address_key_equal(peer->key, key);
    return count;
}

/* 1: it is not read now. */
static int rests(const net_peer *peer) {
    return peer->yields || (peer->close_code ? peer->floods : peer->held || peer->rest_ms > 0);
}

void peer_read_or_not(net_peer *peer) {
    int reads = !rests(peer);
    if (reads) peer->heard_ms = peer->read_again_ms = clock_now();
    peer->pinged_ms = 0;
    peer->unasked |= reads;
    lws_rx_flow_control(peer->wsi, reads);
}

/* ---- frames ----------------------------------------------------------------------------------------- */

void limits_go_on(uv_idle_t *yielding) {
    net *net = yielding->data;
    uv_idle_stop(yielding);
    for (net_peer *peer = net->peers; peer; peer = peer->after) {
        if (!peer->yields) continue;
        peer->yields = 0;
        if (!peer->dropped) peer_read_or_not(peer);
    }
}

/* Many frames may lie in one read, and each costs as much as a whole message: so after some of them the loop
 * leaves the socket, and comes back in its next turn. */
void peer_count_frame(net_peer *peer, size_t length) {
    peer->data_bytes += FRAME_HEAD + length + (length > 125 ? length > 65535 ? 8 : 2 : 0);
    peer->empty_frames = length ? peer->empty_frames : peer->empty_frames + 1;
    if (peer->empty_frames > EMPTY_FRAMES) {
        peer_end_for(peer, DROP_EMPTY);
    } else if (++peer->turn_frames >= TURN_FRAMES) {
        peer->turn_frames = 0;
        peer->yields = 1;
        uv_idle_start(&peer->net->yielding, limits_go_on);
        peer_read_or_not(peer);
    }
}

/* ---- pings ------------------------------------------------------------------------------------------ */

/* What the library has read besides messages. */
static uint64_t other_bytes(const net_peer *peer) {
    uint64_t read = socket_bytes_read(lws_get_socket_fd(peer->wsi));
    uint64_t known = peer->first_bytes + peer->data_bytes;
    return read > known ? read - known : 0;
}

/* The library may keep one read of a peer that is held back, or just was. With TLS each record has bytes of
 * its own: as many as the messages are allowed. */
static uint64_t other_allowed(const net_peer *peer, double now) {
    uint64_t allowed = PINGS * PING_BYTES;
    if (rests(peer) || now - peer->read_again_ms < SECOND_MS) allowed += READ_BYTES;
    if (lws_is_ssl(peer->wsi)) allowed += peer->data_bytes;
    return allowed;
}

void peer_count_from_here(net_peer *peer) {
    peer->second_ms = clock_now();
    peer->first_bytes = other_bytes(peer);
}

/* Messages count when their frames begin: a part of one may not be there. */
static void count_bytes(net_peer *peer, double now) {
    if (peer->close_code || peer->dropped) return;
    uint64_t other = other_bytes(peer);
    if (other > peer->other_bytes + other_allowed(peer, now)) {
        peer_end_for(peer, DROP_PINGS);
    } else if (now - peer->second_ms >= SECOND_MS) {
        peer->second_ms = now;
        peer->other_bytes = other;
        peer->pings = 0;
    }
}

/* The library also writes where it kept what it had read of a peer that was held back. */
void peer_count_pong(net_peer *peer) {
    int unasked = peer->unasked;
    peer->unasked = 0;
    if (peer->close_code || unasked) return;
    count_bytes(peer, clock_now());
    if (++peer->pings > PINGS) peer_end_for(peer, DROP_PINGS);
}

/* ---- time ------------------------------------------------------------------------------------------- */

static int is_over(double since_ms, int seconds, double now) {
    return since_ms > 0 && now - since_ms > 1000.0 * seconds;
}

/* Cuts it off without a close frame, which it would not read. A close that was ordered has its own reason. */
static void drop(net_peer *peer, drop_reason why) {
    peer->dropped = 1;
    peer_share(peer, 0);
    net *net = peer->net;
    if (!peer->close_code) net->events->dropped(net->user, peer->connection, peer->address, why);
    lws_set_timeout(peer->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    net_wake(net);               /* or the library would look at its timeouts with the next event only     */
}

/* A peer that is held back is not read, so that its silence says nothing. */
static void watch_peer(net_peer *peer, double now) {
    const net_limits *most = &peer->net->limits;
    int ends = peer->close_code && !peer->close_sent;
    int waits = peer->first || peer->flushing || ends || lws_partial_buffered(peer->wsi);
    if (!waits) peer->unread_ms = 0;
    else if (!peer->unread_ms) peer->unread_ms = now;
    count_bytes(peer, now);
    if (peer->rest_ms > 0 && now >= peer->rest_ms) {
        peer->rest_ms = 0;
        if (peer->began_ms > 0) peer->began_ms = now;          /* it could not send the rest                */
        peer_read_or_not(peer);
    }
    if (is_over(peer->unread_ms, most->reply, now)) {
        drop(peer, DROP_REPLY);
    } else if (peer->close_code || peer->held || peer->rest_ms > 0) {
        return;
    } else if (is_over(peer->began_ms, most->message, now)) {
        peer_end_for(peer, DROP_MESSAGE);
    } else if (is_over(peer->pinged_ms, most->ping, now)) {
        drop(peer, DROP_PING);
    } else if (!peer->pinged_ms && is_over(peer->heard_ms, most->ping, now)) {
        peer->pinged_ms = now;
        peer->ping_due = 1;
        lws_callback_on_writable(peer->wsi);
    }
}

/* ---- who is no WebSocket ---------------------------------------------------------------------------- */

void visitor_wait(net *net, visitor *v, int seconds) {
    waiting_join(&net->waiting[v->to->side], &v->waiter, clock_now() + 1e3 * seconds);
}

void visitor_enter(net *net, visitor *v) {
    v->visit = VISIT_ANSWERED;
    waiting_leave(&net->waiting[v->to->side], &v->waiter);
}

/* The library frees it when the loop comes to it; it counts no more from now on. */
static void hang_up(net *net, visitor *v, drop_reason why) {
    waiting_leave(&net->waiting[v->to->side], &v->waiter);
    if (why != DROP_REASONS) visitor_tell(net, v, why);
    v->visit = VISIT_DROPPED;
    lws_set_timeout(v->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
    net_wake(net);
}

void visitors_make_room(net *net, net_side side, address_key key) {
    waiting *all = &net->waiting[side];
    waiter *one = waiting_crowded(all, key, net->limits.per_address, net->limits.waiting[side]);
    if (one) hang_up(net, (visitor *)one, DROP_CROWD);
}

void limits_watch(uv_timer_t *watch) {
    net *net = watch->data;
    double now = clock_now();
    for (net_peer *peer = net->peers; peer; peer = peer->after)
        if (!peer->dropped) watch_peer(peer, now);
    for (int side = 0; side < NET_SIDES; side++)
        for (waiter *one; (one = waiting_late(&net->waiting[side], now));)
            hang_up(net, (visitor *)one, visitor_reason(net, (visitor *)one));
}
