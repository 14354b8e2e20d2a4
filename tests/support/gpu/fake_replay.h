/* A device that records: the CPU with a recording that is a list of ops, and launches as an instrument may
 * meet them on a GPU: an op in two launches, several ops in one. For one source file of a test. */
#ifndef TESTS_FAKE_REPLAY_H
#define TESTS_FAKE_REPLAY_H

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "openpi_internal.h"

enum { FAKE_SPLIT = 1, FAKE_JOINED = 3, FAKE_JOIN = 4, FAKE_NODES = 77 };

struct recording {
    const op *ops;
    int count, timed;
    void *work;
    launch_record *launches;
    int launch_count;
};

static void fake_add(struct recording *r, int first, int ops, const char *kernel) {
    launch_record *l = &r->launches[r->launch_count++];
    *l = (launch_record){.op = first, .ops = ops, .grid = {4, 2, 1}, .block = {128, 1, 1}, .cluster = 1};
    strcpy(l->kernel, kernel);
}

/* Op FAKE_SPLIT takes two launches; FAKE_JOIN ops from FAKE_JOINED on take one. */
static openpi_status fake_make(const op *ops, int count, void *work, int timed, struct recording **made) {
    struct recording *r = calloc(1, sizeof *r);
    r->launches = calloc((size_t)count + 1, sizeof *r->launches);
    r->ops = ops;
    r->count = count;
    r->work = work;
    r->timed = timed;
    for (int i = 0; i < count;) {
        if (i == FAKE_SPLIT) {
            fake_add(r, i, 1, "first");
            fake_add(r, i++, 1, "second");
        } else if (i == FAKE_JOINED) {
            fake_add(r, i, FAKE_JOIN, "joined");
            i += FAKE_JOIN;
        } else {
            fake_add(r, i++, 1, "plain");
        }
    }
    *made = r;
    return OPENPI_OK;
}

static openpi_status fake_record(device *device, op_list list, void *work, struct recording **made,
                                 openpi_error *error) {
    (void)device, (void)error;
    return fake_make(list.ops, list.count, work, 0, made);
}

static openpi_status fake_record_timed(device *device, op_list list, void *work, struct recording **made,
                                       openpi_error *error) {
    (void)device, (void)error;
    return fake_make(list.ops, list.count, work, 1, made);
}

/* A launch of n ops is timed as a whole; the second launch of a split op takes next to nothing. */
static openpi_status fake_replay(device *device, struct recording *r, const device_copy *up, int up_count,
                                 const device_copy *down, double *stage_ms, openpi_error *error) {
    double begin = clock_ms();
    (void)up;
    if (up_count) return OPENPI_BAD_ARGUMENT;      /* its memory is the host's */
    for (int l = 0, next = 0; l < r->launch_count; l++) {
        launch_record *launch = &r->launches[l];
        double start = clock_ms();
        if (launch->op == next) {
            op_list list = {.ops = &r->ops[next], .count = launch->ops};
            openpi_status status = backend_cpu.run(device, list, r->work, stage_ms, error);
            if (status != OPENPI_OK) return status;
            next += launch->ops;
        }
        launch->start_ms = start - begin;
        launch->end_ms = clock_ms() - begin;
    }
    if (down) memcpy(down->to, down->from, down->bytes);
    return OPENPI_OK;
}

static void fake_forget(device *device, struct recording *r) {
    (void)device;
    if (r) free(r->launches);
    free(r);
}

static int fake_launches(device *device, struct recording *r, launch_record *to, int capacity) {
    (void)device;
    for (int i = 0; i < r->launch_count && i < capacity; i++) to[i] = r->launches[i];
    return r->launch_count;
}

static int fake_nodes(const struct recording *r) { return r->timed ? 2 * FAKE_NODES : FAKE_NODES; }

/* The CPU's table with a recording; the engine's sessions opened from then on have one. */
static void fake_replays(openpi_engine *engine, backend *table) {
    *table = backend_cpu;
    table->record = fake_record;
    table->record_timed = fake_record_timed;
    table->replay = fake_replay;
    table->forget = fake_forget;
    table->launches = fake_launches;
    table->nodes = fake_nodes;
    engine->device->backend = table;
}

#endif
