#include "tuning/step_ranges.h"

#include <stdlib.h>

#include "base/report.h"

static int most_steps(const step_ranges *r) { return RANGES_SHARE * r->kinds->plan->shape.steps; }

openpi_status step_ranges_open(step_ranges *r, call_kinds *kinds, openpi_error *error) {
    *r = (step_ranges){.kinds = kinds};
    size_t bytes = (size_t)most_steps(r) * sizeof *r->list;
    r->list = malloc(bytes);
    return r->list ? OPENPI_OK : report_no_memory(error, bytes, "ranges of steps");
}

static device *device_of(const step_ranges *r) { return r->kinds->plan->model->device; }

static void forget(step_ranges *r, int i) {
    step_range *range = &r->list[i];
    device_of(r)->backend->forget(device_of(r), range->recording);
    r->steps -= range->to - range->from;
    *range = r->list[--r->count];
}

void step_ranges_forget(step_ranges *r) {
    while (r->count) forget(r, r->count - 1);
}

/* Until `steps` more are few enough. */
static void make_room(step_ranges *r, int steps) {
    while (r->steps + steps > most_steps(r)) {
        int oldest = 0;
        for (int i = 1; i < r->count; i++)
            if (r->list[i].used < r->list[oldest].used) oldest = i;
        forget(r, oldest);
    }
}

static step_range *find(const step_ranges *r, int from, int to, int kind) {
    for (int i = 0; i < r->count; i++) {
        step_range *range = &r->list[i];
        if (range->from == from && range->to == to && range->kind == kind) return range;
    }
    return NULL;
}

/* A driver that cannot capture, or has no memory for one more graph, is no failure: *range stays NULL, and
 * the call runs all the same. */
static openpi_status record(step_ranges *r, int from, int to, int kind, void *work, step_range **range,
                            openpi_error *error) {
    device *device = device_of(r);
    op_block cut[OPENPI_MAX_STEPS];
    struct recording *recording = NULL;
    openpi_error why = OPENPI_ERROR_INIT;
    make_room(r, to - from);
    openpi_status status =
        device->backend->record(device, plan_steps(r->kinds->plan, from, to, cut), work, &recording, &why);
    if (status == OPENPI_UNSUPPORTED || status == OPENPI_NO_MEMORY) {
        r->cannot = 1;
        return OPENPI_OK;
    }
    if (status != OPENPI_OK) return report_again(error, &why);
    *range = &r->list[r->count++];
    **range = (step_range){from, to, kind, 0, recording};
    r->steps += to - from;
    r->recorded++;
    return OPENPI_OK;
}

openpi_status step_ranges_find(step_ranges *r, int from, int to, int kind, void *work, struct recording **out,
                               openpi_error *error) {
    int same = r->kinds->same_as[kind];
    *out = NULL;
    if (!call_kinds_recording(r->kinds, kind)) return OPENPI_OK;
    step_range *range = find(r, from, to, same);
    if (!range && !r->cannot) TRY(record(r, from, to, same, work, &range, error));
    if (!range) return OPENPI_OK;
    range->used = ++r->turns;
    *out = range->recording;
    return OPENPI_OK;
}

void step_ranges_close(step_ranges *r) {
    free(r->list);
    r->list = NULL;
}
