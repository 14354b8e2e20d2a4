/* Robots of `openpi bench --server`: each asks at the ticks of its own clock, and where a reply comes after
 * the next tick, at the one after that. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

static const double reconnect_ms = 1000, patience_ms = 60000;

typedef struct crowd crowd;

typedef struct robot {
    crowd *crowd;
    const load_group *group;
    load_outcome *outcome;
    client_socket *socket;           /* NULL: not connected                                                 */
    int greeted;                 /* the metadata has come                                                 */
    int asking;                  /* a request is on its way                                               */
    long replies, counted;       /* counted: with actions, while it is measured                           */
    long came;                   /* the same, also those that were asked for before                       */
    double first_ms, last_ms;    /* when the first and the last of them came                              */
    double due_ms;               /* when it asks or connects next; infinite: it waits for an event        */
    double tick_ms;
    double asked_ms, sent_ms;    /* sent: its last byte; negative: not yet                                */
    uint8_t *message;            /* the request                                                            */
} robot;

struct crowd {
    const load_plan *plan;
    load_result *result;
    client_loop *loop;
    robot *robots;
    int count, end;              /* end: the code to end with                                             */
    client_message request;      /* empty until the robot is known                                        */
    uint64_t seed;
    double begin_ms, begin_counting_ms;    /* counting: from the time when all are warm; 0: not yet       */
};

/* ---- times ---------------------------------------------------------------------------------------- */

static void times_add(load_times *t, double ms) {
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 1024;
        double *larger = realloc(t->ms, capacity * sizeof *larger);
        if (!larger) return;
        t->ms = larger;
        t->capacity = capacity;
    }
    t->ms[t->count++] = ms;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double load_percentile(load_times *t, double p) {
    if (!t->count) return 0;
    qsort(t->ms, t->count, sizeof *t->ms, by_value);
    size_t rank = (size_t)ceil(p * (double)t->count);
    return t->ms[rank ? rank - 1 : 0];
}

void load_result_free(load_result *result) {
    for (int g = 0; g < LOAD_GROUPS; g++) {
        free(result->groups[g].round.ms);
        free(result->groups[g].model.ms);
        free(result->groups[g].beside.ms);
    }
}

static double uniform(crowd *c) {
    uint64_t x = c->seed += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

static double normal(crowd *c) {
    double radius = sqrt(-2 * log(1 - uniform(c)));
    return radius * cos(6.283185307179586 * uniform(c));
}

/* ---- one robot ------------------------------------------------------------------------------------ */

/* When it asks next, after a reply or, at first, somewhere in its period. */
static void plan_next(robot *r, int first) {
    crowd *c = r->crowd;
    double now = load_clock(), rate = r->group->rate;
    r->due_ms = now;
    if (rate <= 0) return;
    double period = 1000 / rate;
    if (first) r->tick_ms = now + uniform(c) * period;
    else do r->tick_ms += period; while (r->tick_ms <= now);     /* one call a tick, also one before it */
    double jitter = r->group->jitter_ms > 0 ? r->group->jitter_ms * normal(c) : 0;
    r->due_ms = fmax(now, r->tick_ms + jitter);
}

/* No request is like the one before, so the server has no prefix of it. Pictures are all but some hundred
 * bytes of a request, so its middle is in one. */
static void change_picture(robot *r) {
    int observations = r->crowd->plan->observations;
    const client_message *all = &r->crowd->request;
    size_t middle = (observations ? all->count / (size_t)observations : all->count) / 2;
    for (size_t i = middle; i < middle + 4; i++)
        r->message[i] = all->bytes[i] ^ (uint8_t)(((unsigned long)r->replies + 1) >> 8 * (i - middle));
}

static void ask(robot *r) {
    crowd *c = r->crowd;
    change_picture(r);
    r->asking = 1;
    r->due_ms = INFINITY;
    r->asked_ms = load_clock();
    r->sent_ms = -1;
    client_send(r->socket, r->message, c->request.count);
}

static void say_error(robot *r, const char *sentence) {
    snprintf(r->outcome->last_error, sizeof r->outcome->last_error, "%s", sentence);
}

static void give_up(crowd *c, int code) {
    c->end = code;
    client_stop(c->loop);
}

static int is_warm(const robot *r) { return r->replies >= r->crowd->plan->warmup; }

/* ---- the server's messages ------------------------------------------------------------------------ */

/* The first message: now it is known which robot the server expects. */
static void greet(robot *r, const uint8_t *bytes, size_t count) {
    crowd *c = r->crowd;
    client_metadata about;
    char why[CLIENT_SENTENCE];
    if (!client_metadata_read(bytes, count, &about, why)) {
        client_metadata_free(&about);
        give_up(c, input_error(&verb_bench, "%s", why));
        return;
    }
    client_metadata_free(&about);          /* the notes; the numbers stay                                  */
    if (!c->request.count) {
        load_env env = c->plan->env ? c->plan->env : load_env_of(about.action_dim);
        c->result->metadata = about;
        c->result->env = env;
        if (!env) {
            give_up(c, usage_error(&verb_bench, "the server does not say which of openpi's examples it "
                                                "is for; give --env"));
            return;
        }
        if (!load_request_write(env, c->plan->seed, c->plan->observations, &c->request)) {
            give_up(c, input_error(&verb_bench, "out of memory: a request"));
            return;
        }
        c->result->request_bytes = c->request.count;
    }
    if (!r->message) {
        r->message = allocate(c->request.count);
        memcpy(r->message, c->request.bytes, c->request.count);
    }
    r->greeted = 1;
    r->outcome->connected += !r->replies;
    plan_next(r, 1);
}

static void take_reply(robot *r, const uint8_t *bytes, size_t count, int text) {
    crowd *c = r->crowd;
    client_reply reply;
    char why[CLIENT_SENTENCE];
    double now = load_clock(), round = now - r->asked_ms;
    int good = client_reply_read(bytes, count, text, &reply, NULL, 0, why);
    r->asking = 0;
    r->replies++;
    plan_next(r, 0);
    if (!good) {
        r->outcome->errors++;
        say_error(r, why);
        return;
    }
    if (!c->begin_counting_ms) return;
    if (!r->came++) r->first_ms = now;
    r->last_ms = now;
    if (r->asked_ms < c->begin_counting_ms) return;
    times_add(&r->outcome->round, round);
    r->counted++;
    if (reply.model_ms < 0) return;
    times_add(&r->outcome->model, reply.model_ms);
    if (r->sent_ms >= 0) times_add(&r->outcome->beside, now - r->sent_ms - reply.model_ms);
}

/* ---- the client's events -------------------------------------------------------------------------- */

static void arm(crowd *c) {
    double now = load_clock(), next = now + 100;
    for (int i = 0; i < c->count; i++) next = fmin(next, c->robots[i].due_ms);
    client_after(c->loop, next - now);
}

static void on_opened(void *user, client_socket *socket) {
    robot *r = user;
    r->socket = socket;
    r->due_ms = INFINITY;
}

static void on_received(void *user, const uint8_t *bytes, size_t count, int text) {
    robot *r = user;
    if (!r->greeted) greet(r, bytes, count);
    else if (r->asking) take_reply(r, bytes, count, text);
    else {
        r->outcome->errors++;
        say_error(r, "a message without a request");
    }
    if (!r->crowd->end) arm(r->crowd);
}

static void on_sent(void *user) {
    robot *r = user;
    r->sent_ms = load_clock();
}

static void on_closed(void *user, const char *why) {
    robot *r = user;
    if (r->greeted) r->outcome->broken++;
    else r->outcome->refused++;
    say_error(r, why);
    r->socket = NULL;
    r->greeted = r->asking = 0;
    r->due_ms = load_clock() + reconnect_ms;
}

static void act(robot *r) {
    if (r->socket) {
        if (r->greeted && !r->asking) ask(r);
        return;
    }
    r->due_ms = INFINITY;
    if (!client_connect(r->crowd->loop, r->group->key, r)) r->due_ms = load_clock() + reconnect_ms;
}

/* Whether every group has something to show: a run does not end before, as long as there is patience. */
static int has_results(const crowd *c) {
    for (int g = 0; g < c->plan->group_count; g++) {
        const load_outcome *o = &c->result->groups[g];
        if (!o->round.count && !o->errors && !o->broken && !o->refused) return 0;
    }
    return 1;
}

/* Counting begins when every robot is warm or has lost its connection. */
static void mind_the_time(crowd *c) {
    double now = load_clock();
    int cold = 0, greeted = c->request.count > 0;
    for (int i = 0; i < c->count; i++) cold += c->robots[i].greeted && !is_warm(&c->robots[i]);
    if (!c->begin_counting_ms && greeted && !cold && now > c->begin_ms + 500) c->begin_counting_ms = now;
    double over = c->begin_counting_ms + 1000 * c->plan->seconds;
    if (c->begin_counting_ms && now >= over && (has_results(c) || now > over + patience_ms)) {
        c->result->seconds = (now - c->begin_counting_ms) * 1e-3;
        client_stop(c->loop);
    } else if (!c->begin_counting_ms && now > c->begin_ms + patience_ms) {
        const robot *first = &c->robots[0];
        give_up(c, input_error(&verb_bench, "%s, port %d: no robot was answered within %.0f s%s%s",
                               c->plan->address.host, c->plan->address.port, patience_ms / 1000,
                               first->outcome->last_error[0] ? ": " : "", first->outcome->last_error));
    } else if (!greeted && now > c->begin_ms + 500 && c->robots[0].outcome->refused) {
        give_up(c, input_error(&verb_bench, "%s, port %d: %s", c->plan->address.host, c->plan->address.port,
                               c->robots[0].outcome->last_error));
    }
}

static void on_timed(void *user) {
    crowd *c = user;
    double now = load_clock();
    for (int i = 0; i < c->count && !c->end; i++)
        if (c->robots[i].due_ms <= now + 0.5) act(&c->robots[i]);
    mind_the_time(c);
    arm(c);
}

/* The fewest and the most answers that a robot of a group has, and the rates of all together. */
static void compare(crowd *c) {
    for (int i = 0; i < c->count; i++) {
        const robot *r = &c->robots[i];
        load_outcome *o = r->outcome;
        int first = i == 0 || c->robots[i - 1].outcome != o;
        if (first || r->counted < o->least) o->least = r->counted;
        if (first || r->counted > o->most) o->most = r->counted;
        if (r->came > 1) o->rate += (double)(r->came - 1) * 1e3 / (r->last_ms - r->first_ms);
    }
}

/* Where no robot had two answers. */
static void estimate_rates(load_result *result) {
    for (int g = 0; g < LOAD_GROUPS; g++) {
        load_outcome *o = &result->groups[g];
        if (o->rate <= 0 && result->seconds > 0) o->rate = (double)o->round.count / result->seconds;
    }
}

/* ---- all of them ---------------------------------------------------------------------------------- */

static void gather(crowd *c) {
    for (int g = 0; g < c->plan->group_count; g++) c->count += c->plan->groups[g].count;
    c->robots = allocate((size_t)c->count * sizeof *c->robots);
    robot *r = c->robots;
    for (int g = 0; g < c->plan->group_count; g++)
        for (int i = 0; i < c->plan->groups[g].count; i++)
            *r++ = (robot){.crowd = c, .group = &c->plan->groups[g], .outcome = &c->result->groups[g],
                           .due_ms = -INFINITY};
}

int load_robots(const load_plan *plan, load_result *result) {
    static const client_events events = {on_opened, on_received, on_sent, on_closed, on_timed};
    char why[CLIENT_SENTENCE];
    crowd c = {.plan = plan, .result = result, .end = END_FINE, .seed = plan->seed, .begin_ms = load_clock()};
    c.loop = client_open(&events, &plan->address, &c, why);
    if (!c.loop) {
        input_error(&verb_bench, "%s", why);
        return END_DEVICE;
    }
    gather(&c);
    client_after(c.loop, 0);
    client_run(c.loop);
    compare(&c);
    estimate_rates(result);
    load_outcome counted[LOAD_GROUPS];
    memcpy(counted, result->groups, sizeof counted);           /* closing now is no one's error             */
    client_close(c.loop);
    memcpy(result->groups, counted, sizeof counted);
    for (int i = 0; i < c.count; i++) free(c.robots[i].message);
    free(c.robots);
    client_message_free(&c.request);
    return c.end;
}
