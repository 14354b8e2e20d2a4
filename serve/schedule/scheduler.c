/* See scheduler.h. */
#include "scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pace.h"
#include "rhythm.h"

/* The rate that a reserved token states: one for all its connections. */
typedef struct budget {
    int members;                 /* connections; 0: it is nobody's                                        */
    pace pace;
} budget;

typedef struct scheduler_client {
    int left;                    /* 1: gone, but a running batch still has its request                    */
    scheduler_class class;
    budget *budget;              /* a reserved client's; NULL: it is shared                               */
    rhythm rhythm, before;       /* now, and before the queued request came                                */
    void *queued;                /* NULL: none                                                            */
    int samples;                 /* its samples that no batch has yet                                      */
    int whole;                   /* 1: they are one call                                                  */
    int begun;                   /* 1: a batch had others of it                                           */
    int64_t deadline;
    uint64_t arrival;            /* the queued request's number                                           */
    int64_t start;               /* where the account stood when the queued request could run             */
    int64_t account;             /* device time used as a shared one, and where it began                  */
    int64_t used;                /* device time used                                                      */
    int running;
} scheduler_client;

/* A set of clients; no order. */
typedef struct client_set {
    int count;
    int *items;                  /* [count]                                                               */
    int *place;                  /* [client] in items; only for members                                   */
} client_set;

typedef struct scheduler_device {
    batch_times measured;        /* at start                                                              */
    double slower;               /* than measured: a moving mean                                          */
    batch_times times;           /* measured × slower                                                     */
    int count;                   /* members of the running batch; 0: idle                                 */
    int samples;                 /* their samples together; 0: a whole request's                          */
    int shorter;                 /* 1: its time tells nothing about the device                            */
    int taken[BATCH_TIMES_MAX];            /* each one's samples                                          */
    int shared;                  /* 1: they run as shared ones                                            */
    int members[BATCH_TIMES_MAX];          /* clients                                                     */
    void *requests[BATCH_TIMES_MAX], *late[BATCH_TIMES_MAX];      /* the last action of each kind          */
    int64_t began, ends;         /* the running batch; `ends` as the times say                            */
    int64_t holding;             /* since when it holds; 0: it does not                                   */
    int64_t may_hold;            /* what is left in its account, ns                                       */
} scheduler_device;

struct scheduler {
    int device_count, client_count;
    double max_block;
    int64_t now;
    int64_t shift;               /* now less the caller's clock: above 0 after that was set back          */
    int64_t level;               /* where the shared request that started last stood                      */
    uint64_t arrivals;
    double reserved;             /* calls a second declared                                               */
    int64_t held;
    scheduler_client *clients;   /* [client_count]                                                        */
    budget *budgets;             /* [client_count]                                                        */
    int *memory;                 /* the three lists' block                                                */
    int *free;                   /* [free_count] clients without a connection                             */
    int free_count;
    client_set queue;            /* those with a queued request                                           */
    client_set reserving;        /* those of the reserved class                                           */
    scheduler_device devices[SCHEDULER_DEVICES];
};

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static void set_add(client_set *set, int who) {
    set->place[who] = set->count;
    set->items[set->count++] = who;
}

static void set_remove(client_set *set, int who) {
    int last = set->items[--set->count];
    set->items[set->place[who]] = last;
    set->place[last] = set->place[who];
}

/* Threads may come with their times in another order than they read them; a longer way back is a clock that
 * was set, and time goes on from where it was. */
static int64_t advance(scheduler *s, int64_t now) {
    const int64_t second = 1000000000;
    int64_t time = now + s->shift;
    if (time < s->now - second) s->shift += s->now - time;
    if (time > s->now) s->now = time;
    return s->now;
}

/* ---- made and gone ------------------------------------------------------------------------------- */

scheduler *scheduler_create(const scheduler_options *options) {
    size_t count = (size_t)options->connections;
    scheduler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->device_count = options->devices;
    s->client_count = s->free_count = options->connections;
    s->max_block = fmax(1, fmin(options->max_block, BATCH_TIMES_MAX));
    s->now = 1;
    s->clients = calloc(count, sizeof *s->clients);
    s->budgets = calloc(count, sizeof *s->budgets);
    s->memory = calloc(5 * count, sizeof *s->memory);
    if (!s->clients || !s->budgets || !s->memory) {
        scheduler_destroy(s);
        return NULL;
    }
    s->free = s->memory;
    s->queue = (client_set){0, s->memory + count, s->memory + 2 * count};
    s->reserving = (client_set){0, s->memory + 3 * count, s->memory + 4 * count};
    for (int i = 0; i < s->client_count; i++) s->free[i] = s->client_count - 1 - i;
    for (int d = 0; d < s->device_count; d++) scheduler_measured(s, d, &options->times[d]);
    return s;
}

void scheduler_destroy(scheduler *s) {
    if (!s) return;
    free(s->clients);
    free(s->budgets);
    free(s->memory);
    free(s);
}

void scheduler_measured(scheduler *s, int which, const batch_times *times) {
    s->devices[which].measured = s->devices[which].times = *times;
    s->devices[which].slower = 1;
    s->devices[which].may_hold = SCHEDULER_HOLD_CALLS * times->ns[1];
}

/* ---- what happens -------------------------------------------------------------------------------- */

/* Calls a second that all devices make one by one, as far as they may be reserved. */
static double reservable(const scheduler *s) {
    double calls = 0;
    for (int d = 0; d < s->device_count; d++) calls += 1e9 / (double)s->devices[d].times.ns[1];
    return SCHEDULER_RESERVABLE * calls;
}

static int take_client(scheduler *s, scheduler_class class) {
    int which = s->free[--s->free_count];
    scheduler_client *c = &s->clients[which];
    *c = (scheduler_client){.class = class, .account = s->level};
    return which;
}

static void give_budget(scheduler *s, int which, budget *budget) {
    s->clients[which].budget = budget;
    budget->members++;
    set_add(&s->reserving, which);
}

scheduler_joined scheduler_join(scheduler *s, scheduler_class class, double rate, int64_t now,
                                int *connection) {
    now = advance(s, now);
    if (!s->free_count) return SCHEDULER_FULL;
    if (class == SCHEDULER_RESERVED && !(rate > 0 && s->reserved + rate <= reservable(s)))
        return SCHEDULER_OVERBOOKED;
    *connection = take_client(s, class);
    if (class == SCHEDULER_RESERVED) {
        budget *free = s->budgets;           /* there are as many as connections                          */
        while (free->members) free++;
        free->pace = pace_start(rate, now);
        s->reserved += rate;
        give_budget(s, *connection, free);
    }
    return SCHEDULER_JOINED;
}

scheduler_joined scheduler_join_token(scheduler *s, int other, int64_t now, int *connection) {
    advance(s, now);
    if (!s->free_count) return SCHEDULER_FULL;
    *connection = take_client(s, SCHEDULER_RESERVED);
    give_budget(s, *connection, s->clients[other].budget);
    return SCHEDULER_JOINED;
}

static void release(scheduler *s, const scheduler_client *c) {
    s->free[s->free_count++] = (int)(c - s->clients);
}

static void forget(scheduler *s, int connection) {
    scheduler_client *c = &s->clients[connection];
    if (c->queued) set_remove(&s->queue, connection);
    c->queued = NULL;
}

void scheduler_forget_request(scheduler *s, int connection, const void *request) {
    if (s->clients[connection].queued == request) forget(s, connection);
}

void *scheduler_leave(scheduler *s, int connection, int64_t now) {
    scheduler_client *c = &s->clients[connection];
    void *dropped = c->running && c->begun ? NULL : c->queued;
    advance(s, now);
    forget(s, connection);
    if (c->class == SCHEDULER_RESERVED) {
        set_remove(&s->reserving, connection);
        if (!--c->budget->members) s->reserved -= c->budget->pace.rate;
        if (!s->reserving.count) s->reserved = 0;      /* without what rounding left                      */
    }
    c->left = 1;
    if (!c->running) release(s, c);
    return dropped;
}

/* The shortest call of one sample. */
static int64_t shortest_call(const scheduler *s) {
    int64_t least = s->devices[0].times.ns[1];
    for (int d = 1; d < s->device_count; d++) least = earlier(least, s->devices[d].times.ns[1]);
    return least;
}

/* The queued request may run from now on. Who has used less than the others goes before them, but by one call
 * at most: time that was not used is not saved up. */
static void may_start(const scheduler *s, scheduler_client *c) {
    c->start = later(c->account, s->level - shortest_call(s));
}

int scheduler_submit(scheduler *s, int connection, void *request, int64_t deadline, int64_t now) {
    return scheduler_submit_many(s, connection, request, 1, 0, deadline, now);
}

int scheduler_submit_many(scheduler *s, int connection, void *request, int samples, int whole,
                          int64_t deadline, int64_t now) {
    scheduler_client *c = &s->clients[connection];
    now = advance(s, now);
    if (c->queued) return 0;
    c->queued = request;
    c->samples = samples;
    c->whole = whole;
    c->begun = 0;
    c->deadline = deadline == SCHEDULER_NEVER ? deadline : later(deadline, 0) + s->shift;
    c->arrival = s->arrivals++;
    c->before = c->rhythm;
    rhythm_request(&c->rhythm, now);
    set_add(&s->queue, connection);
    if (!c->running) may_start(s, c);
    return 1;
}

void *scheduler_withdraw(scheduler *s) {
    if (!s->queue.count) return NULL;
    int who = s->queue.items[0];
    scheduler_client *c = &s->clients[who];
    void *request = c->queued;
    c->queued = NULL;
    c->rhythm = c->before;
    set_remove(&s->queue, who);
    return request;
}

/* A device may become slower than it was at start (heat, a power limit, neighbours on a CPU). */
static void follow_speed(scheduler_device *d, int64_t took) {
    if (!d->samples || d->shorter) return;
    double now = (double)took / (double)d->measured.ns[d->samples];
    d->slower += (fmin(fmax(now, 0.25), 4) - d->slower) / 16;
    d->times = batch_times_scaled(&d->measured, d->slower);
}

void scheduler_shorter(scheduler *s, int device) { s->devices[device].shorter = 1; }

void scheduler_finish(scheduler *s, int which, int64_t now) {
    scheduler_device *d = &s->devices[which];
    now = advance(s, now);
    int64_t all = d->ends - d->began, ran = now - d->began;
    int samples = d->samples ? d->samples : 1;
    for (int i = 0; i < d->count; i++) {
        scheduler_client *c = &s->clients[d->members[i]];
        int64_t foreseen = all * d->taken[i] / samples, took = ran * d->taken[i] / samples;
        if (!d->samples) foreseen = all, took = ran;
        c->running = 0;
        c->used += took;
        if (d->shared) c->account += earlier(took, 2 * foreseen) - foreseen;     /* more is not their doing */
        if (c->left) release(s, c);
        else if (c->queued) may_start(s, c);
        else rhythm_reply(&c->rhythm, now);
    }
    follow_speed(d, now - d->began);
    d->count = 0;
}

/* ---- who may run --------------------------------------------------------------------------------- */

/* Whether a client's request at that time would be a reserved one. */
static int goes_first(const scheduler_client *c, int64_t when) {
    return c->class == SCHEDULER_RESERVED && pace_allows(&c->budget->pace, when);
}

/* Whether client a's queued request goes before b's. Reserved: who came earlier; shared: who used less. */
static int before(const scheduler_client *a, const scheduler_client *b, int shared) {
    if (shared && a->start != b->start) return a->start < b->start;
    return a->arrival < b->arrival;
}

typedef struct selection {
    int count;                   /* in `clients`                                                          */
    int all;                     /* samples that could run, whether or not they are of `clients`          */
    int samples;                 /* those that `clients` have, at most what a batch takes                 */
    int whole;                   /* 1: the first one's are one call                                       */
    int clients[BATCH_TIMES_MAX];          /* the first ones, in order                                    */
} selection;

/* A whole request runs when it is the first, and then alone. */
static void part_whole(const scheduler *s, int most, selection *out) {
    int kept = 0;
    out->whole = out->count && s->clients[out->clients[0]].whole;
    out->samples = 0;
    for (int i = 0; i < out->count; i++) {
        const scheduler_client *c = &s->clients[out->clients[i]];
        if (c->whole != out->whole || (out->whole && i)) continue;
        out->clients[kept++] = out->clients[i];
        out->samples += out->whole ? 1 : c->samples;
    }
    out->count = kept;
    if (out->samples > most) out->samples = most;
}

/* The requests of one class that could run now and come first, at most as many as a batch has samples. */
static void select_class(const scheduler *s, int shared, int most, selection *out) {
    out->count = out->all = 0;
    for (int i = 0; i < s->queue.count; i++) {
        int who = s->queue.items[i];
        const scheduler_client *c = &s->clients[who];
        if (c->running || goes_first(c, s->now) == shared) continue;
        out->all += c->whole ? 1 : c->samples;
        int at = out->count;
        while (at > 0 && before(c, &s->clients[out->clients[at - 1]], shared)) at--;
        if (at == most) continue;
        if (out->count < most) out->count++;
        memmove(&out->clients[at + 1], &out->clients[at], (size_t)(out->count - 1 - at) * sizeof(int));
        out->clients[at] = who;
    }
    part_whole(s, most, out);
}

/* ---- hold ---------------------------------------------------------------------------------------- */

/* Devices other than this one that are free at that time, as far as one can know. */
static int others_free(const scheduler *s, const scheduler_device *d, int64_t when) {
    int count = 0;
    for (int i = 0; i < s->device_count; i++) {
        const scheduler_device *other = &s->devices[i];
        count += other != d && (!other->count || other->ends <= when);
    }
    return count;
}

typedef struct expectation {
    int robots;                  /* that are expected from the same time on                               */
    rhythm_window window;        /* to the earliest end of them                                           */
} expectation;

/* The first time after `after` at which reserved robots are expected; its begin is SCHEDULER_NEVER where
 * there is none. */
static expectation next_expected(const scheduler *s, int64_t after) {
    expectation next = {0, {SCHEDULER_NEVER, SCHEDULER_NEVER}};
    for (int i = 0; i < s->reserving.count; i++) {
        const scheduler_client *c = &s->clients[s->reserving.items[i]];
        rhythm_window w;
        if (c->queued || c->running || !rhythm_expect(&c->rhythm, &w) || w.end <= s->now) continue;
        if (w.begin <= after || w.begin > next.window.begin || !goes_first(c, w.end)) continue;
        if (w.begin < next.window.begin) next = (expectation){0, w};
        next.robots++;
        next.window.end = earlier(next.window.end, w.end);
    }
    return next;
}

/* Until when the device may compute shared requests: the first time at which more reserved robots are
 * expected than other devices are free. *over: when the first of these robots is no longer expected. */
static int64_t free_until(const scheduler *s, const scheduler_device *d, int64_t *over) {
    int64_t after = INT64_MIN;
    *over = SCHEDULER_NEVER;
    for (int robots = 0;;) {
        expectation next = next_expected(s, after);
        after = next.window.begin;
        *over = earlier(*over, next.window.end);
        robots += next.robots;
        if (after == SCHEDULER_NEVER || robots > others_free(s, d, after)) return after;
    }
}

int scheduler_quiet(scheduler *s, int which, int64_t ns, int64_t now) {
    const scheduler_device *d = &s->devices[which];
    int64_t over;
    advance(s, now);
    return !s->queue.count && !d->count && free_until(s, d, &over) >= later(s->now + ns, s->now);
}

/* What a hold that goes on till now has cost. */
static void account_hold(scheduler *s, scheduler_device *d) {
    if (!d->holding) return;
    d->may_hold = later(d->may_hold - (s->now - d->holding), 0);
    s->held += s->now - d->holding;
    d->holding = 0;
}

/* ---- what to do ---------------------------------------------------------------------------------- */

/* The earliest time at which a queued request becomes late or a reserved client is within its rate again. */
static int64_t next_change(const scheduler *s) {
    int64_t until = SCHEDULER_NEVER, call = shortest_call(s);
    for (int i = 0; i < s->queue.count; i++) {
        const scheduler_client *c = &s->clients[s->queue.items[i]];
        if (c->running) continue;
        if (c->deadline != SCHEDULER_NEVER) until = earlier(until, c->deadline - call + 1);
        if (c->class == SCHEDULER_RESERVED && !goes_first(c, s->now))
            until = earlier(until, pace_again(&c->budget->pace));
    }
    return later(until, s->now + 1);
}

/* Requests that can no longer be answered in time leave the queue. */
static int take_late(scheduler *s, scheduler_device *d) {
    int64_t soonest = s->now + shortest_call(s);
    int count = 0;
    for (int i = 0; i < s->queue.count && count < BATCH_TIMES_MAX;) {
        int who = s->queue.items[i];
        scheduler_client *c = &s->clients[who];
        if (c->running || c->deadline >= soonest) {
            i++;
            continue;
        }
        d->late[count++] = c->queued;
        c->queued = NULL;
        set_remove(&s->queue, who);
        rhythm_reply(&c->rhythm, s->now);
    }
    return count;
}

/* A call of a whole request, at most: as long as its samples take in the largest batches. */
static int64_t whole_time(const scheduler *s, const scheduler_device *d, const selection *chosen) {
    int samples = s->clients[chosen->clients[0]].samples, largest = d->times.largest;
    return d->times.ns[largest] * (samples / largest) + d->times.ns[samples % largest];
}

/* The next `samples` of the client's request become member i of the device's batch. */
static void take_member(scheduler *s, scheduler_device *d, int i, int who, int samples) {
    scheduler_client *c = &s->clients[who];
    d->members[i] = who;
    d->requests[i] = c->queued;
    d->taken[i] = samples;
    c->running = 1;
    c->begun = samples < c->samples;
    c->samples -= samples;
    if (c->begun) return;
    c->queued = NULL;
    set_remove(&s->queue, who);
}

/* The member's share of a batch that has `samples`. */
static void charge(scheduler *s, const scheduler_device *d, int i, int samples) {
    scheduler_client *c = &s->clients[d->members[i]];
    int turns = d->samples ? d->taken[i] : 1;
    if (d->shared) {
        s->level = later(s->level, c->start);
        c->account = c->start + (d->ends - d->began) * turns / samples;
    } else {
        for (int turn = 0; turn < turns; turn++) pace_take(&c->budget->pace, s->now);
    }
}

/* `samples`: of the batch, one of a whole request. */
static scheduler_action run(scheduler *s, scheduler_device *d, const selection *chosen, int samples,
                            int shared) {
    int64_t took = chosen->whole ? whole_time(s, d, chosen) : d->times.ns[samples];
    d->samples = chosen->whole ? 0 : samples;
    d->shorter = 0;
    d->shared = shared;
    d->began = s->now;
    d->ends = s->now + took;
    d->count = 0;
    for (int left = samples; left; d->count++) {
        int who = chosen->clients[d->count], all = s->clients[who].samples;
        int taken = chosen->whole || all < left ? all : left;
        take_member(s, d, d->count, who, taken);
        charge(s, d, d->count, samples);
        left -= chosen->whole ? 1 : taken;
    }
    if (shared)
        d->may_hold =
            earlier(SCHEDULER_HOLD_CALLS * d->times.ns[1], d->may_hold + SCHEDULER_HOLD_SHARE * took);
    return (scheduler_action){.verb = SCHEDULER_RUN, .count = d->count, .requests = d->requests,
                              .samples = d->taken};
}

/* How many of the chosen samples this device takes, so that idle devices share all that could run. */
static int part(const scheduler *s, const scheduler_device *d, const selection *chosen) {
    int idle = 1 + others_free(s, d, s->now), share = (chosen->all + idle - 1) / idle;
    return share < chosen->samples ? share : chosen->samples;
}

/* How many samples of reserved requests run as one batch: the most whose mean answer comes no later than one
 * by one; of one request, those that its last answer comes soonest with. */
static int reserved_batch(const scheduler_device *d, const selection *chosen, int count) {
    if (chosen->whole) return 1;
    if (chosen->count == 1) return batch_times_best(&d->times, count, SCHEDULER_NEVER);
    while (count > 1 && 2 * d->times.ns[count] > (count + 1) * d->times.ns[1]) count--;
    return count;
}

/* How many shared requests run as one batch; 0: the device holds, until *until at the latest. */
static int shared_batch(const scheduler *s, const scheduler_device *d, const selection *chosen, int count,
                        int64_t *until) {
    const int64_t *ns = d->times.ns;
    int64_t over, due = free_until(s, d, &over), least = chosen->whole ? whole_time(s, d, chosen) : ns[1];
    int64_t block = (int64_t)(s->max_block * (double)ns[1]);
    if (earlier(later(block, least), due - s->now) < least && over - s->now <= d->may_hold) {
        *until = over;
        return 0;
    }
    if (chosen->whole) return 1;
    count = batch_times_best(&d->times, count, earlier(block, (due - s->now) / 2));
    if (!count) count = 1;
    for (int i = 0; i < count && i < chosen->count; i++)       /* one that makes a member late is too large */
        while (count > 1 && s->clients[chosen->clients[i]].deadline < s->now + ns[count]) count--;
    return count;
}

/* The device's next batch, or until when nothing shared may start on it. */
static scheduler_action choose(scheduler *s, scheduler_device *d) {
    selection chosen;
    int shared = 0, count;
    int64_t until = SCHEDULER_NEVER;
    select_class(s, 0, d->times.largest, &chosen);
    if (!chosen.all) {
        shared = 1;
        select_class(s, 1, d->times.largest, &chosen);
    }
    count = part(s, d, &chosen);
    if (count && shared) count = shared_batch(s, d, &chosen, count, &until);
    else if (count) count = reserved_batch(d, &chosen, count);
    if (count) return run(s, d, &chosen, count, shared);
    if (chosen.all) d->holding = s->now;
    return (scheduler_action){.verb = SCHEDULER_WAIT, .until = until};
}

scheduler_action scheduler_next(scheduler *s, int which, int64_t now) {
    scheduler_device *d = &s->devices[which];
    scheduler_action action = {.verb = SCHEDULER_WAIT, .until = SCHEDULER_NEVER};
    advance(s, now);
    account_hold(s, d);
    int late = take_late(s, d);
    if (late)
        return (scheduler_action){.verb = SCHEDULER_LATE, .count = late, .requests = d->late};
    if (!d->count) action = choose(s, d);
    if (action.verb == SCHEDULER_WAIT) action.until = earlier(action.until, next_change(s));
    if (action.until != SCHEDULER_NEVER) action.until -= s->shift;
    return action;
}

/* ---- what it knows ------------------------------------------------------------------------------- */

scheduler_connection scheduler_look(const scheduler *s, int connection) {
    const scheduler_client *c = &s->clients[connection];
    scheduler_connection look = {
        .class = c->class, .rate = c->budget ? c->budget->pace.rate : 0, .device_ns = c->used};
    const rhythm_interval *known = rhythm_known(&c->rhythm);
    if (known) look.interval_ns = known->mean, look.deviation_ns = known->deviation;
    return look;
}

scheduler_state scheduler_get_state(const scheduler *s) {
    scheduler_state state = {.connections = s->client_count - s->free_count, .reserved = s->reserved,
                             .reservable = reservable(s), .held_ns = s->held};
    for (int i = 0; i < s->queue.count; i++) state.queued[s->clients[s->queue.items[i]].class]++;
    return state;
}
