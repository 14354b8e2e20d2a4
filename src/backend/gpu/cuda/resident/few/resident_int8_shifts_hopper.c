/* resident_int8_shifts_hopper.cu: denoise steps with int8 weights as one kernel where rows and shifts are
 * more than 12. All else is as in resident_hopper.c. */
#include "backend/gpu/cuda/resident/few/resident.h"
#include "backend/gpu/cuda/resident/few/resident_family.h"

static const gpu_kernel kernels[] = {{"resident_denoise", 1, 0}};

static int resident_int8_shifts_open_exchange(gpu_device *device, int family, void **state) {
    return resident_open(device, family, RESIDENT_INT8_APART_SHARED, state);
}

static int resident_int8_shifts_take(gpu_issue *issue, const op_block *block) {
    return resident_take(issue, block, RESIDENT_INT8_APART);
}

const gpu_family gpu_family_resident_int8_shifts_hopper = {
    .name = "resident_int8_shifts_hopper",
    GPU_KERNELS(kernels),
    .take_block = resident_int8_shifts_take,
    .take_switches = 1u << SWITCH_PERSISTENT_DENOISE,
    .whole_device = 1,
    .open = resident_int8_shifts_open_exchange,
    .close = cuda_close_resident,
};
