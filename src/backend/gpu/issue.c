/* The walk over ops, and its uses: to launch kernels (now or in a capture), to measure the work block, to
 * list an op's choices. All take the same steps; what a step does is decided in launch.c and choices.c, by
 * gpu_issue.purpose. */
#include "backend/gpu/issue.h"

#include "backend/gpu/ops.h"
#include "backend/gpu/prepare.h"

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

/* What pairs of ops take of the work block, whichever family would have them. */
static void issue_pair(gpu_issue *issue, const op *ops, int count) {
    const gpu_device *self = issue->device;
    for (int i = 0; i < self->loaded_count; i++) {
        const gpu_family *family = self->vendor->modules[i].family;
        if (!takes(self, i) || !family->take) continue;
        issue->family = i;
        gpu_work_begin(&issue->work);
        family->take(issue, ops, count);
    }
}

size_t gpu_work_bytes(const device *device, const op *ops, int count) {
    gpu_issue issue = {.device = (gpu_device *)(uintptr_t)device, .purpose = GPU_MEASURE};
    for (int i = 0; i < issue.device->loaded_count; i++) {
        gpu_work_begin(&issue.work);
        gpu_work_take(&issue, issue.device->vendor->modules[i].family->take_bytes);
    }
    for (int i = 0; i < count; i++) {
        issue_op(&issue, &ops[i]);
        issue_pair(&issue, &ops[i], count - i);
    }
    return issue.work.most;
}

int gpu_candidates(const device *device, const op *op, candidate *out, int capacity) {
    gpu_issue issue = {.device = (gpu_device *)(uintptr_t)device, .purpose = GPU_LIST,
                       .listing = {.list = out, .capacity = capacity}};
    issue_op(&issue, op);
    return issue.listing.count;
}
