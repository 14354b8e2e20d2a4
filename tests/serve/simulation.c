#include "simulation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const batch_time sim_h200[5] = {{1, 9740000}, {2, 18200000}, {4, 32480000}, {8, 62200000}, {16, 117370000}};

/* ---- chance -------------------------------------------------------------------------------------- */

static uint64_t next(uint64_t *seed) {
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

double sim_uniform(uint64_t *seed) { return (double)(next(seed) >> 11) * 0x1p-53; }

double sim_normal(uint64_t *seed) {
    double radius = sqrt(-2 * log(1 - sim_uniform(seed)));
    return radius * cos(6.283185307179586 * sim_uniform(seed));
}

/* ---- the world ----------------------------------------------------------------------------------- */

typedef struct person {
    sim_robot *robot;
    int connection;              /* -1: not there                                                         */
    int64_t joins, leaves, asks; /* SCHEDULER_NEVER: not                                                  */
    int64_t asked;               /* when the request came that is on its way; 0: none                     */
    int64_t tick;                /* the next of its clock                                                 */
    int on_device;
    int left_of_burst;
} person;

typedef struct machine {
    int count;                   /* requests in the running batch; 0: idle                                */
    person *members[BATCH_TIMES_MAX];
    int64_t began, ends, wakes;
} machine;

typedef struct world {
    sim *sim;
    scheduler *scheduler;
    batch_times times;
    int64_t now, warm;
    person people[SIM_ROBOTS];
    machine machines[SIM_DEVICES];
} world;

static int64_t ns(double ms) { return (int64_t)(ms * 1e6); }

static void note(world *w, uint64_t what, uint64_t who) {
    w->sim->hash = (w->sim->hash ^ (what * 1000 + who + (uint64_t)w->now)) * 0x100000001b3u;
}

static void plan_next(world *w, person *p) {
    sim_robot *r = p->robot;
    if (p->left_of_burst > 0) {
        p->left_of_burst--;
        p->asks = w->now;
        return;
    }
    p->left_of_burst = r->burst > 0 ? r->burst - 1 : 0;
    double jitter = r->jitter_ms > 0 ? r->jitter_ms * sim_normal(&w->sim->seed) : 0;
    if (r->kind == SIM_TICKS) {
        while (p->tick <= w->now) p->tick += ns(r->pause_ms);
        p->asks = p->tick + ns(jitter);
    } else {
        double pause = r->kind == SIM_ROAMS ? 2 * r->pause_ms * sim_uniform(&w->sim->seed) : r->pause_ms;
        p->asks = w->now + ns(fmax(pause + jitter, 0));
    }
    if (p->asks < w->now) p->asks = w->now;
}

static void answer(world *w, person *p, int late) {
    sim_robot *r = p->robot;
    assert_true(p->asked > 0);
    int64_t until = p->asked + ns(r->deadline_ms);
    if (r->deadline_ms > 0 && w->sim->slower == 1) {
        if (late) assert_int_equal(w->now, until - w->times.ns[1] + 1);
        else assert_true(w->now <= until);
    }
    if (w->now > w->warm && late) r->late++;
    else if (w->now > w->warm) {
        if (r->answers < SIM_LATENCIES) r->latency_ms[r->answers] = (double)(w->now - p->asked) * 1e-6;
        r->answers++;
    }
    p->asked = 0;
    if (p->connection >= 0) plan_next(w, p);
}

static void ask(world *w, person *p) {
    double deadline = p->robot->deadline_ms;
    int64_t until = deadline > 0 ? w->now + ns(deadline) : SCHEDULER_NEVER;
    assert_int_equal(p->asked, 0);
    p->asked = w->now;
    p->asks = SCHEDULER_NEVER;
    assert_true(scheduler_submit(w->scheduler, p->connection, p, until, w->now));
}

static void join(world *w, person *p) {
    sim_robot *r = p->robot;
    p->joins = SCHEDULER_NEVER;
    if (scheduler_join(w->scheduler, r->class, r->rate, w->now, &p->connection) != SCHEDULER_JOINED) {
        p->connection = -1;
        p->leaves = SCHEDULER_NEVER;
        r->refused++;
        return;
    }
    p->tick = p->asks = w->now;
}

static void leave(world *w, person *p) {
    void *dropped = scheduler_leave(w->scheduler, p->connection, w->now);
    assert_ptr_equal(dropped, p->asked && !p->on_device ? p : NULL);
    p->connection = -1;
    p->leaves = p->asks = SCHEDULER_NEVER;
    if (dropped) p->asked = 0;
}

static void start(world *w, int device, const scheduler_action *a) {
    machine *m = &w->machines[device];
    assert_int_equal(m->count, 0);
    m->count = a->count;
    m->began = w->now;
    m->ends = w->now + (int64_t)((double)w->times.ns[a->count] * w->sim->slower);
    note(w, 1, (uint64_t)a->count);
    for (int i = 0; i < a->count; i++) {
        person *p = m->members[i] = a->requests[i];
        assert_int_equal(p->on_device, 0);
        p->on_device = 1;
        note(w, 2, (uint64_t)(p - w->people));
    }
}

static void finish(world *w, int device) {
    machine *m = &w->machines[device];
    scheduler_finish(w->scheduler, device, w->now);
    for (int i = 0; i < m->count; i++) {
        person *p = m->members[i];
        p->on_device = 0;
        if (w->now > w->warm) p->robot->device_ns += (m->ends - m->began) / m->count;
        answer(w, p, 0);
    }
    m->count = 0;
}

/* Where nobody is reserved, nothing is held: no request waits for an idle device. */
static void assert_nothing_waits(const world *w) {
    for (int i = 0; i < w->sim->robot_count; i++)
        if (w->people[i].robot->class == SCHEDULER_RESERVED) return;
    for (int i = 0; i < w->sim->robot_count; i++)
        assert_true(!w->people[i].asked || w->people[i].on_device);
}

/* Asks for every device until nothing more happens at this time. */
static void settle(world *w) {
    for (int d = 0; d < w->sim->devices; d++)
        for (;;) {
            scheduler_action a = scheduler_next(w->scheduler, d, w->now);
            w->machines[d].wakes = SCHEDULER_NEVER;
            if (a.verb == SCHEDULER_RUN) start(w, d, &a);
            else if (a.verb == SCHEDULER_LATE)
                for (int i = 0; i < a.count; i++) answer(w, a.requests[i], 1);
            else {
                assert_true(a.until > w->now);
                w->machines[d].wakes = a.until;
                if (!w->machines[d].count) assert_nothing_waits(w);
                break;
            }
        }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t next_event(const world *w) {
    int64_t at = ns(w->sim->end_ms);
    for (int i = 0; i < w->sim->robot_count; i++) {
        const person *p = &w->people[i];
        at = least(at, least(p->joins, least(p->leaves, p->asks)));
    }
    for (int d = 0; d < w->sim->devices; d++) {
        const machine *m = &w->machines[d];
        at = least(at, least(m->count ? m->ends : SCHEDULER_NEVER, m->wakes));
    }
    return at;
}

static void step(world *w) {
    for (int d = 0; d < w->sim->devices; d++)
        if (w->machines[d].count && w->machines[d].ends == w->now) finish(w, d);
    for (int i = 0; i < w->sim->robot_count; i++) {
        person *p = &w->people[i];
        if (p->joins == w->now) join(w, p);
        if (p->leaves == w->now) leave(w, p);
        if (p->asks == w->now) ask(w, p);
    }
    settle(w);
}

/* ---- for the tests ------------------------------------------------------------------------------- */

sim *sim_create(uint64_t seed, double seconds) {
    sim *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->devices = 1;
    s->table = sim_h200;
    s->table_count = sizeof sim_h200 / sizeof *sim_h200;
    s->max_block = s->slower = 1;
    s->warmup_ms = 5000;
    s->end_ms = s->warmup_ms + seconds * 1000;
    s->seed = seed;
    return s;
}

sim_robot *sim_add(sim *s, int count, sim_robot like) {
    sim_robot *first = &s->robots[s->robot_count];
    assert_in_range(s->robot_count + count, 1, SIM_ROBOTS);
    for (int i = 0; i < count; i++) s->robots[s->robot_count++] = like;
    return first;
}

void sim_run(sim *s) {
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->sim = s;
    w->warm = ns(s->warmup_ms);
    assert_true(batch_times_fill(&w->times, s->table, s->table_count));
    batch_times times[SIM_DEVICES] = {w->times, w->times};
    scheduler_options options = {s->devices, times, SIM_ROBOTS, s->max_block};
    w->scheduler = scheduler_create(&options);
    assert_non_null(w->scheduler);
    for (int i = 0; i < s->robot_count; i++) {
        sim_robot *r = &s->robots[i];
        w->people[i] = (person){.robot = r, .connection = -1, .joins = ns(r->first_ms) + 1,
                                .leaves = r->last_ms > 0 ? ns(r->last_ms) : SCHEDULER_NEVER,
                                .asks = SCHEDULER_NEVER};
    }
    while ((w->now = next_event(w)) < ns(s->end_ms)) step(w);
    s->held_ms = (double)scheduler_get_state(w->scheduler).held_ns * 1e-6;
    scheduler_destroy(w->scheduler);
    free(w);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sim_percentile(const sim_robot *r, double p) {
    double *sorted = malloc(sizeof r->latency_ms);
    assert_non_null(sorted);
    assert_in_range(r->answers, 1, SIM_LATENCIES);
    memcpy(sorted, r->latency_ms, (size_t)r->answers * sizeof *sorted);
    qsort(sorted, (size_t)r->answers, sizeof *sorted, by_value);
    double value = sorted[(int)ceil(p * r->answers) - 1];
    free(sorted);
    return value;
}

double sim_rate(const sim *s, const sim_robot *robots, int count) {
    double answers = 0;
    for (int i = 0; i < count; i++) answers += robots[i].answers;
    return answers / ((s->end_ms - s->warmup_ms) * 1e-3);
}
