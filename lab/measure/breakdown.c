/* Assigns kernels to stages. Ranges nest, so one walk along each track with a stack of the open ranges finds
 * the ranges that enclose a moment. */
#include "lab/measure/breakdown.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/report.h"

typedef struct kernel {
    int name, stage, group; /* name: place among names; stage, group: breakdown's, or NO_…  */
    double start_us, dur_us;
    int64_t pid, tid, correlation;
} kernel;

typedef struct range {
    int64_t pid, tid;
    double start_us, end_us;
    int stage;
} range;

/* A moment on a track, whose enclosing ranges are searched for a kernel. */
typedef struct moment {
    int64_t pid, tid;
    double at_us;
    int kernel;
} moment;

typedef struct launch {
    int64_t correlation, pid, tid;
    double at_us;
} launch;

/* A list that grows. */
typedef struct list {
    void *items;
    int count, capacity;
} list;

struct breakdown {
    list kernels, device_ranges, host_ranges, launches, names, strays;
    int *slots; /* hash table over names: place + 1, 0 empty                             */
    int slot_count; /* a power of two                                                        */
    int profiler_steps;
};

static openpi_status grow(list *l, size_t item, void **place, openpi_error *error) {
    if (l->count == l->capacity) {
        int capacity = l->capacity ? l->capacity * 2 : 256;
        void *items = l->capacity < INT_MAX / 2 ? realloc(l->items, (size_t)capacity * item) : NULL;
        if (!items) return report_no_memory(error, (size_t)capacity * item, "the trace's events");
        l->items = items;
        l->capacity = capacity;
    }
    *place = (char *)l->items + (size_t)l->count++ * item;
    return OPENPI_OK;
}

breakdown *breakdown_create(void) { return calloc(1, sizeof(breakdown)); }

void breakdown_free(breakdown *b) {
    if (!b) return;
    for (int i = 0; i < b->names.count; i++) free(((char **)b->names.items)[i]);
    list *const all[] = {&b->kernels,  &b->device_ranges, &b->host_ranges,
                         &b->launches, &b->names,         &b->strays};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->items);
    free(b->slots);
    free(b);
}

/* ---- names ---------------------------------------------------------------------------------------- */

static const char *name_of(const breakdown *b, int name) { return ((char *const *)b->names.items)[name]; }

static int *find_slot(const breakdown *b, const char *name) {
    uint64_t at = hash_fnv1a64(HASH_FNV_START, name, strlen(name));
    while (1) {
        int *slot = &b->slots[hash_mix(at) & (uint64_t)(b->slot_count - 1)];
        if (!*slot || !strcmp(name_of(b, *slot - 1), name)) return slot;
        at++;
    }
}

static openpi_status more_slots(breakdown *b, openpi_error *error) {
    int count = b->slot_count ? b->slot_count * 2 : 1024, *old = b->slots;
    int *slots = calloc((size_t)count, sizeof *slots);
    if (!slots) return report_no_memory(error, (size_t)count * sizeof *slots, "the trace's names");
    b->slots = slots;
    b->slot_count = count;
    for (int i = 0; i < b->names.count; i++) *find_slot(b, name_of(b, i)) = i + 1;
    free(old);
    return OPENPI_OK;
}

static openpi_status intern(breakdown *b, const char *name, int *out, openpi_error *error) {
    void *place;
    if (b->names.count * 2 >= b->slot_count) TRY(more_slots(b, error));
    int *slot = find_slot(b, name);
    if (!*slot) {
        char *copy = strdup(name);
        if (!copy) return report_no_memory(error, strlen(name) + 1, "a name of the trace");
        openpi_status status = grow(&b->names, sizeof copy, &place, error);
        if (status != OPENPI_OK) {
            free(copy);
            return status;
        }
        *(char **)place = copy;
        *slot = b->names.count;
    }
    *out = *slot - 1;
    return OPENPI_OK;
}

/* ---- events --------------------------------------------------------------------------------------- */

static openpi_status add_kernel(breakdown *b, const breakdown_event *e, openpi_error *error) {
    void *place;
    int name = 0;
    TRY(intern(b, e->name, &name, error));
    TRY(grow(&b->kernels, sizeof(kernel), &place, error));
    kernel *k = place;
    *k = (kernel){.name = name,
                  .stage = BREAKDOWN_NO_STAGE,
                  .group = BREAKDOWN_NO_GROUP,
                  .start_us = e->start_us,
                  .dur_us = e->dur_us,
                  .pid = e->pid,
                  .tid = e->tid,
                  .correlation = e->correlation};
    if (e->stage) k->stage = (int)breakdown_stage_of(e->stage);
    if (!e->group) k->group = (int)breakdown_group_of_words(e->name);
    for (int g = 0; e->group && g < BREAKDOWN_GROUPS; g++)
        if (!strcmp(breakdown_group_name((breakdown_group)g), e->group)) k->group = g;
    return OPENPI_OK;
}

static openpi_status add_range(breakdown *b, const breakdown_event *e, openpi_error *error) {
    void *place;
    breakdown_stage stage = breakdown_stage_of_words(e->name);
    if (e->kind == BREAKDOWN_HOST_RANGE && !strncmp(e->name, "ProfilerStep#", 13)) b->profiler_steps++;
    if (stage == BREAKDOWN_NO_STAGE) return OPENPI_OK;
    TRY(grow(e->kind == BREAKDOWN_HOST_RANGE ? &b->host_ranges : &b->device_ranges, sizeof(range), &place,
             error));
    *(range *)place = (range){.pid = e->pid,
                              .tid = e->tid,
                              .start_us = e->start_us,
                              .end_us = e->start_us + e->dur_us,
                              .stage = (int)stage};
    return OPENPI_OK;
}

openpi_status breakdown_add(breakdown *b, const breakdown_event *e, openpi_error *error) {
    void *place;
    if (e->kind == BREAKDOWN_KERNEL) return add_kernel(b, e, error);
    if (e->kind != BREAKDOWN_LAUNCH) return add_range(b, e, error);
    if (e->correlation < 0) return OPENPI_OK;
    TRY(grow(&b->launches, sizeof(launch), &place, error));
    *(launch *)place = (launch){e->correlation, e->pid, e->tid, e->start_us};
    return OPENPI_OK;
}

/* ---- stages from annotations ---------------------------------------------------------------------- */

static int order(int64_t pid_a, int64_t tid_a, double at_a, int64_t pid_b, int64_t tid_b, double at_b) {
    if (pid_a != pid_b) return pid_a < pid_b ? -1 : 1;
    if (tid_a != tid_b) return tid_a < tid_b ? -1 : 1;
    return (at_a > at_b) - (at_a < at_b);
}

/* Of ranges that start together the longer encloses the other. */
static int by_start(const void *a, const void *b) {
    const range *x = a, *y = b;
    int o = order(x->pid, x->tid, x->start_us, y->pid, y->tid, y->start_us);
    return o ? o : (x->end_us < y->end_us) - (x->end_us > y->end_us);
}

static int by_moment(const void *a, const void *b) {
    const moment *x = a, *y = b;
    return order(x->pid, x->tid, x->at_us, y->pid, y->tid, y->at_us);
}

static int by_correlation(const void *a, const void *b) {
    int64_t x = ((const launch *)a)->correlation, y = ((const launch *)b)->correlation;
    return (x > y) - (x < y);
}

static void place_moments(list *ranges, moment *moments, int count, kernel *kernels, int *stack) {
    const range *all = ranges->items;
    int next = 0, depth = 0;
    qsort(ranges->items, (size_t)ranges->count, sizeof(range), by_start);
    qsort(moments, (size_t)count, sizeof *moments, by_moment);
    for (int i = 0; i < count; i++) {
        const moment *m = &moments[i];
        for (; next < ranges->count; next++) {
            const range *r = &all[next];
            if (order(r->pid, r->tid, r->start_us, m->pid, m->tid, m->at_us) > 0) break;
            while (depth && (all[stack[depth - 1]].pid != r->pid || all[stack[depth - 1]].tid != r->tid ||
                             all[stack[depth - 1]].end_us <= r->start_us))
                depth--;
            stack[depth++] = next;
        }
        for (int d = depth - 1; d >= 0; d--) {
            const range *r = &all[stack[d]];
            if (r->pid != m->pid || r->tid != m->tid) break;
            if (r->end_us <= m->at_us) continue;
            kernels[m->kernel].stage = r->stage;
            break;
        }
    }
}

/* The moments of kernels that have no stage yet: on the device's axis, or of their launch on the host's. */
static int list_moments(const breakdown *b, int host, moment *out) {
    const kernel *kernels = b->kernels.items;
    int count = 0;
    for (int i = 0; i < b->kernels.count; i++) {
        const kernel *k = &kernels[i];
        launch key = {.correlation = k->correlation}, *from = NULL;
        if (k->stage != BREAKDOWN_NO_STAGE) continue;
        if (!host) {
            out[count++] = (moment){k->pid, k->tid, k->start_us, i};
            continue;
        }
        if (b->launches.count)
            from = bsearch(&key, b->launches.items, (size_t)b->launches.count, sizeof key, by_correlation);
        if (from) out[count++] = (moment){from->pid, from->tid, from->at_us, i};
    }
    return count;
}

static openpi_status place_stages(breakdown *b, openpi_error *error) {
    size_t deep = (size_t)b->device_ranges.count + (size_t)b->host_ranges.count + 1;
    moment *moments = malloc(((size_t)b->kernels.count + 1) * sizeof *moments);
    int *stack = malloc(deep * sizeof *stack);
    openpi_status status = OPENPI_OK;
    if (moments && stack) {
        if (b->launches.count)
            qsort(b->launches.items, (size_t)b->launches.count, sizeof(launch), by_correlation);
        for (int host = 0; host < 2; host++) {
            list *ranges = host ? &b->host_ranges : &b->device_ranges;
            if (ranges->count)
                place_moments(ranges, moments, list_moments(b, host, moments), b->kernels.items, stack);
        }
    } else {
        status = report_no_memory(error, (size_t)b->kernels.count * sizeof *moments,
                                  "placing the trace's kernels");
    }
    free(moments);
    free(stack);
    return status;
}

/* ---- sums ----------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b) {
    const kernel *x = a, *y = b;
    if (x->name != y->name) return x->name < y->name ? -1 : 1;
    if (x->stage != y->stage) return x->stage < y->stage ? -1 : 1;
    return (x->group > y->group) - (x->group < y->group);
}

static int by_time(const void *a, const void *b) {
    double x = ((const breakdown_stray *)a)->cell.ms, y = ((const breakdown_stray *)b)->cell.ms;
    return (x < y) - (x > y);
}

static void count_kernel(breakdown_cell *cell, const kernel *k) {
    cell->launches++;
    cell->ms += k->dur_us * 1e-3;
}

/* A kernel without a stage counts as stray only if others have one; if none has, the report says so once. */
static openpi_status gather(breakdown *b, breakdown_sums *out, openpi_error *error) {
    const kernel *kernels = b->kernels.items;
    double first = 0, last = 0;
    if (b->kernels.count) qsort(b->kernels.items, (size_t)b->kernels.count, sizeof(kernel), by_name);
    for (int i = 0; i < b->kernels.count; i++) {
        const kernel *k = &kernels[i];
        count_kernel(&out->cells[k->stage][k->group], k);
        count_kernel(&out->all, k);
        out->staged += k->stage != BREAKDOWN_NO_STAGE;
        if (!i || k->start_us < first) first = k->start_us;
        if (!i || k->start_us + k->dur_us > last) last = k->start_us + k->dur_us;
    }
    out->span_ms = (last - first) * 1e-3;
    for (int i = 0; i < b->kernels.count; i++) {
        const kernel *k = &kernels[i];
        void *place;
        if (k->group != BREAKDOWN_NO_GROUP && (k->stage != BREAKDOWN_NO_STAGE || !out->staged)) continue;
        breakdown_stray *s =
            b->strays.count ? (breakdown_stray *)b->strays.items + b->strays.count - 1 : NULL;
        if (!s || by_name(k, k - 1) || s->name != name_of(b, k->name)) {
            TRY(grow(&b->strays, sizeof(breakdown_stray), &place, error));
            s = place;
            *s = (breakdown_stray){
                name_of(b, k->name), (breakdown_stage)k->stage, (breakdown_group)k->group, {0, 0}};
        }
        count_kernel(&s->cell, k);
    }
    if (b->strays.count) qsort(b->strays.items, (size_t)b->strays.count, sizeof(breakdown_stray), by_time);
    out->strays = b->strays.items;
    out->stray_count = b->strays.count;
    return OPENPI_OK;
}

openpi_status breakdown_finish(breakdown *b, breakdown_sums *out, openpi_error *error) {
    *out = (breakdown_sums){.profiler_steps = b->profiler_steps};
    TRY(place_stages(b, error));
    return gather(b, out, error);
}
