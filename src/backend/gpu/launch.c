/* What a walk over ops hands to the device, kernel by kernel: launches, the first error, what a recording
 * notes of them; and the work block. Families ask for it through family.h.
 *
 * The work block is memory that one op after the other has for itself, each from the same place. Ops run in
 * order, and none touches the block before all earlier ones have ended. Ops that a family takes together
 * share it. At its beginning are counters, for blocks of a kernel that count who has arrived: the first
 * family that needs them clears them, and every kernel leaves them at zero. */
#include "backend/gpu/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gpu_device *gpu_device_of(const gpu_issue *issue) { return issue->device; }

int gpu_family_of(const gpu_issue *issue) { return issue->family; }

int gpu_emitting(const gpu_issue *issue) { return issue->purpose == GPU_LAUNCH && !issue->emit.code; }

void gpu_issue_fail(gpu_issue *issue, int code) {
    if (!issue->emit.code) issue->emit.code = code;
}

/* ---- what a recording notes ------------------------------------------------------------------------- */

/* Makes space for one mark more. 0 or an error. */
static int reserve(gpu_log *log) {
    if (log->count < log->capacity) return 0;
    int capacity = log->capacity ? 2 * log->capacity : 512;
    gpu_mark *marks = realloc(log->marks, (size_t)capacity * sizeof *marks);
    if (!marks) return GPU_NO_HOST_MEMORY;
    log->marks = marks;
    log->capacity = capacity;
    return 0;
}

/* The launch was issued to the capture. */
static void note(gpu_issue *issue, const char *kernel, const gpu_launch *launch) {
    gpu_log *log = issue->emit.log;
    const gpu_driver *driver = &issue->device->driver;
    int code = reserve(log);
    if (!code) {
        gpu_mark *m = &log->marks[log->count];
        *m = (gpu_mark){.launch = {.op = issue->place,
                                   .ops = issue->ops,
                                   .cluster = launch->cluster,
                                   .shared_bytes = launch->shared_bytes}};
        snprintf(m->launch.kernel, sizeof m->launch.kernel, "%s", kernel);
        memcpy(m->launch.grid, launch->grid, sizeof m->launch.grid);
        memcpy(m->launch.block, launch->block, sizeof m->launch.block);
        if (log->timed) code = driver->event_create(driver, &m->event);
        log->count += !code;
        if (!code && log->timed) code = driver->event_record(driver, m->event, issue->emit.stream, 1);
    }
    if (code) gpu_issue_fail(issue, code);
}

/* What was launched needs the device for itself. */
static void note_whole_device(gpu_issue *issue) {
    gpu_log *log = issue->emit.log;
    if (!log) return;
    if (!log->whole_device) atomic_fetch_add(&issue->device->whole_device_recordings, 1);
    log->whole_device = 1;
}

void gpu_forget_log(gpu_device *self, gpu_log *log) {
    if (log->whole_device) atomic_fetch_sub(&self->whole_device_recordings, 1);
    for (int i = 0; i < log->count; i++)
        if (log->marks[i].event) self->driver.event_destroy(&self->driver, log->marks[i].event);
    free(log->marks);
}

/* ---- launches --------------------------------------------------------------------------------------- */

void gpu_emit(gpu_issue *issue, int kernel, gpu_grid grid, const void *arguments, size_t bytes) {
    gpu_device *self = issue->device;
    const gpu_family *family = self->vendor->modules[issue->family].family;
    gpu_emission *emit = &issue->emit;
    if (!gpu_emitting(issue) || grid.x <= 0 || grid.y <= 0) return;
    if (gpu_kernel_at(family, kernel)->dynamic)
        grid.shared = gpu_card_shared(self->as, &self->facts, grid.shared, grid.threads);
    gpu_launch launch = {
        .function = gpu_function(self, issue->family, kernel),
        .grid = {(unsigned)grid.x, (unsigned)grid.y, 1},
        .block = {(unsigned)grid.threads, 1, 1},
        .cluster = grid.cluster ? (unsigned)grid.cluster : 1,
        .shared_bytes = grid.shared,
        .overlap = self->overlap && !emit->alone,
        .together = grid.together,
        .arguments = arguments,
        .bytes = bytes,
    };
    emit->alone = emit->in_turn;
    emit->code = self->driver.launch(&self->driver, &launch, emit->stream);
    if (emit->log && !emit->code) note(issue, gpu_kernel_at(family, kernel)->name, &launch);
}

void gpu_take(gpu_issue *issue, int ops) {
    issue->ops = ops;
    if (issue->device->vendor->modules[issue->family].family->whole_device) note_whole_device(issue);
}

void gpu_take_next(gpu_issue *issue) { issue->place += issue->ops; }

/* ---- the work block --------------------------------------------------------------------------------- */

static size_t round_256(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

enum { COUNTER_BYTES = GPU_COUNTERS * sizeof(uint32_t) };

void gpu_work_begin(gpu_work *work) { work->used = COUNTER_BYTES; }

void *gpu_work_take(gpu_issue *issue, size_t bytes) {
    gpu_work *work = &issue->work;
    size_t at = work->used;
    work->used = at + round_256(bytes);
    if (work->used > work->most) work->most = work->used;
    return work->memory ? work->memory + at : NULL;
}

size_t gpu_work_mark(const gpu_issue *issue) { return issue->work.used; }

void gpu_work_back(gpu_issue *issue, size_t mark) { issue->work.used = mark; }

uint32_t *gpu_counters(gpu_issue *issue, int *unclear) {
    gpu_work *work = &issue->work;
    if (work->most < COUNTER_BYTES) work->most = COUNTER_BYTES;
    *unclear = !work->cleared;
    work->cleared = 1;
    return (uint32_t *)work->memory;
}
