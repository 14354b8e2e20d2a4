/* The walk over ops, and its uses: to launch kernels (now or in a capture), to measure the work block, to
 * list an op's choices. All take the same steps; what a step does is decided here and in work.c, by
 * gpu_issue.purpose. */
#include "backend/gpu/gpu.h"

#include <string.h>

#include "base/report.h"

/* ---- what a family may ask for ---------------------------------------------------------------------- */

gpu_device *gpu_device_of(const gpu_issue *issue) { return issue->device; }

int gpu_family_of(const gpu_issue *issue) { return issue->family; }

int gpu_emitting(const gpu_issue *issue) { return issue->purpose == GPU_LAUNCH && !issue->emit.code; }

void gpu_issue_fail(gpu_issue *issue, int code) {
    if (!issue->emit.code) issue->emit.code = code;
}

void gpu_emit(gpu_issue *issue, int kernel, gpu_grid grid, const void *arguments, size_t bytes) {
    gpu_device *self = issue->device;
    const gpu_family *family = self->vendor->modules[issue->family].family;
    gpu_emission *emit = &issue->emit;
    if (!gpu_emitting(issue) || grid.x <= 0 || grid.y <= 0) return;
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
    if (emit->recording && !emit->code) gpu_note_launch(issue, gpu_kernel_at(family, kernel)->name, &launch);
}

gpu_ahead gpu_ahead_of(const gpu_issue *issue) {
    enum { AFTER_NEXT = 2 };
    matrix *list[OP_MATRICES];
    if (!issue->device->overlap || issue->left <= AFTER_NEXT) return (gpu_ahead){0};
    op later = issue->op[AFTER_NEXT];
    if (op_matrices(&later, list) != 1 || list[0]->raw) return (gpu_ahead){0};
    return (gpu_ahead){list[0]->data, (uint32_t)gpu_matrix_bytes(&issue->device->base, list[0])};
}

void gpu_take(gpu_issue *issue, int ops) {
    issue->ops = ops;
    if (issue->emit.recording && issue->device->vendor->modules[issue->family].family->whole_device)
        gpu_note_whole_device(issue);
}

void gpu_take_next(gpu_issue *issue) { issue->place += issue->ops; }

gpu_task gpu_product_of(const gpu_issue *issue, const op *op) {
    gpu_task task = {.kind = GPU_PRODUCT};
    gpu_issue build = {.device = issue->device, .purpose = GPU_BUILD, .built = &task, .op = op};
    gpu_op_tasks(&build, op);
    return task;
}

/* ---- one op, or a run of them ----------------------------------------------------------------------- */

static void issue_op(gpu_issue *issue, const op *op) {
    issue->op = op;
    issue->choice = op->choice;
    gpu_work_begin(&issue->work);
    gpu_op_tasks(issue, op);
    if (op->parameters) issue->emit.alone = 1;
}

/* Module i's family may take several ops at once. */
static int takes(const gpu_device *self, int i) {
    return gpu_could_take(self, i) && !(self->vendor->modules[i].family->take_switches & self->off);
}

/* Ops that the first family takes which takes any: of the block that begins here (NULL: none), or a pair. */
static int issue_together(gpu_issue *issue, const op *ops, const op_block *block) {
    const gpu_device *self = issue->device;
    for (int i = 0; i < self->loaded_count; i++) {
        const gpu_family *family = self->vendor->modules[i].family;
        int taken = 0;
        if (!takes(self, i)) continue;
        issue->family = i;
        if (block && family->take_block) taken = family->take_block(issue, block);
        if (!taken && family->take) taken = family->take(issue, ops, issue->left);
        if (taken) return taken;
    }
    return 0;
}

int gpu_issue_next(gpu_issue *issue, const op_list *list, int place) {
    const op *ops = &list->ops[place];
    op_block block;
    issue->place = place;
    issue->left = list->count - place;
    issue->ops = 1;
    gpu_work_begin(&issue->work);
    int taken = issue_together(issue, ops, block_at(list, place, &block) ? &block : NULL);
    if (taken) return taken;
    issue_op(issue, ops);
    return 1;
}

size_t gpu_work_bytes(const device *device, const op *ops, int count) {
    gpu_issue issue = {.device = (gpu_device *)(uintptr_t)device, .purpose = GPU_MEASURE};
    for (int i = 0; i < issue.device->loaded_count; i++) {
        gpu_work_begin(&issue.work);
        gpu_work_take(&issue, issue.device->vendor->modules[i].family->take_bytes);
    }
    for (int i = 0; i < count; i++) issue_op(&issue, &ops[i]);
    return issue.work.most;
}

int gpu_candidates(const device *device, const op *op, candidate *out, int capacity) {
    gpu_issue issue = {.device = (gpu_device *)(uintptr_t)device, .purpose = GPU_LIST,
                       .listing = {.list = out, .capacity = capacity}};
    issue_op(&issue, op);
    return issue.listing.count;
}

int gpu_issue_task(gpu_device *self, gpu_task *task) {
    gpu_issue issue = {.device = self, .purpose = GPU_LAUNCH, .emit = {.stream = self->stream, .alone = 1}};
    gpu_launch_usual(&issue, task);
    return issue.emit.code;
}
