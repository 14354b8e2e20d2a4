/* resident_wide_hopper.cu: the layers of denoise steps of up to eight samples as one kernel. All else is as
 * in resident_long_hopper.c. */
#include "backend/gpu/cuda/resident/many/long_family.h"

static const gpu_kernel kernels[] = {{"resident_wide", 1, 0}};

static const long_sizes sizes_wide = {.grid = LONG_GRID(WIDE),
                                      .state = WIDE_STATE,
                                      .rows = WIDE_ROWS,
                                      .samples = WIDE_SAMPLES,
                                      .head_rows = WIDE_HEAD_ROWS,
                                      .tiles = WIDE_TILES,
                                      .kind = RESIDENT_WIDE};

static int resident_wide_open_state(gpu_device *device, int family, void **state) {
    return long_open_state(device, family, &sizes_wide, state);
}

int resident_wide_of(const op_block *block) {
    return long_layers_fit(block) && !resident_long_of(block) && block->rows >= WIDE_LEAST_ROWS &&
           long_samples_fit(block, &sizes_wide);
}

static int resident_wide_take(gpu_issue *issue, const op_block *block) {
    return resident_wide_of(block) ? long_emit(issue, block, &sizes_wide) : 0;
}

const gpu_family gpu_family_resident_wide_hopper = {
    .name = "resident_wide_hopper",
    GPU_KERNELS(kernels),
    .take_block = resident_wide_take,
    .take_switches = 1u << SWITCH_PERSISTENT_DENOISE,
    .whole_device = 1,
    .open = resident_wide_open_state,
    .close = cuda_close_resident,
};
