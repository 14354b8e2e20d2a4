/* What families derive from a block's weights when a model is loaded, and where each finds it again: the
 * parts of all families, one after the other, from block_weights.prepared on. */
#include "backend/gpu/prepare.h"

#include "backend/gpu/launch.h"
#include "base/report.h"

enum { PART_ALIGN = 256 };

int gpu_could_take(const gpu_device *self, int i) {
    return self->loaded[i].module &&
           (!self->vendor->modules[i].family->take_switches || self->loaded[i].state);
}

/* The parts of the families before module `end`, made where launches are wanted; their bytes. */
static size_t walk(gpu_issue *issue, const block_weights *block, int end) {
    const gpu_device *self = issue->device;
    size_t at = 0;
    for (int i = 0; i < end; i++) {
        const gpu_family *family = self->vendor->modules[i].family;
        if (!family->prepare || !gpu_could_take(self, i)) continue;
        issue->family = i;
        at += family->prepare(issue, block, block->prepared ? (char *)block->prepared + at : NULL);
        at = (at + PART_ALIGN - 1) & ~(size_t)(PART_ALIGN - 1);
    }
    return at;
}

static size_t measure(const gpu_device *self, const block_weights *block, int end) {
    gpu_issue issue = {.device = (gpu_device *)(uintptr_t)self, .purpose = GPU_MEASURE};
    block_weights unplaced = *block;
    unplaced.prepared = NULL;
    return walk(&issue, &unplaced, end);
}

size_t gpu_prepared_bytes(const device *device, const block_weights *block) {
    const gpu_device *self = (const gpu_device *)device;
    return measure(self, block, self->loaded_count);
}

openpi_status gpu_prepare(device *device, const block_weights *block, openpi_error *error) {
    gpu_device *self = (gpu_device *)device;
    gpu_issue issue = {.device = self,
                       .purpose = GPU_LAUNCH,
                       .emit = {.stream = self->stream, .alone = 1, .in_turn = 1}};
    TRY(gpu_enter(self, error));
    walk(&issue, block, self->loaded_count);
    return issue.emit.code ? gpu_fail(self, issue.emit.code, "preparing weights", error) : OPENPI_OK;
}

void *gpu_prepared(const gpu_issue *issue, const op_block *block) {
    const block_weights *weights = block->weights;
    if (!weights || !weights->prepared) return NULL;
    const size_t at = measure(issue->device, weights, issue->family),
                 end = measure(issue->device, weights, issue->family + 1);
    return end > at ? (char *)weights->prepared + at : NULL;
}
