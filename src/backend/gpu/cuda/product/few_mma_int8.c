/* few_mma_int8.cu: products of at most 16 rows with weights of 8-bit integers, the denoise loop's, a norm
 * inside; and such weights as fp32 for whatever else multiplies them. */
#include "backend/gpu/cuda/product/few_mma.h"

enum { UNPACK = 7, TILES = UNPACK };

/* The first of a kind that is legal is the heuristic's. */
static const few_tile kernels[] = {
    {{"few_int8_qkv_16_1", 2, 0}, GPU_EPILOGUE_QKV, 2, 1},
    {{"few_int8_qkv_32_1", 2, 0}, GPU_EPILOGUE_QKV, 4, 1},
    {{"few_int8_gated_64_1", 2, 0}, GPU_EPILOGUE_GATED, 8, 1},
    {{"few_int8_gated_32_1", 2, 0}, GPU_EPILOGUE_GATED, 4, 1},
    {{"few_int8_residual_8_2", 2, 0}, GPU_EPILOGUE_RESIDUAL, 1, 2},
    {{"few_int8_residual_16_2", 2, 0}, GPU_EPILOGUE_RESIDUAL, 2, 2},
    {{"few_int8_residual_8_4", 2, 0}, GPU_EPILOGUE_RESIDUAL, 1, 4},
    [UNPACK] = {.kernel = {"unpack_int8", 1, 0}},
};

static int whole_lanes(const gpu_linear *p) {
    return p->weights.type == GPU_WEIGHT_INT8 && p->x_type == GPU_X_BF16 &&
           p->k_blocks == p->weights.blocks && p->ldx % 16 == 0;
}

static void few_mma_int8_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    if (task->kind == GPU_UNPACK) gpu_choices_add(to, (gpu_choice){.rank = RANK_SIMT, .kernel = UNPACK});
    if (task->kind == GPU_PRODUCT && task->rows <= FEW_MMA_ROWS && whole_lanes(&task->product))
        few_mma_add(device, kernels, TILES, &task->product, to);
}

static void few_mma_int8_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    if (task->kind == GPU_PRODUCT) {
        few_mma_emit(issue, kernels, choice->kernel, &task->product);
        return;
    }
    const gpu_unpack *unpack = &task->unpack;
    const int64_t pieces = (int64_t)ceil_div(unpack->weights.k, 4) * unpack->weights.columns;
    gpu_emit(issue, UNPACK, (gpu_grid){.x = (int)((pieces + 255) / 256), .y = 1, .threads = 256}, unpack,
             sizeof *unpack);
}

const gpu_family gpu_family_few_mma_int8 = {.name = "few_mma_int8",
                                            GPU_KERNELS(kernels),
                                            .list = few_mma_int8_list,
                                            .launch = few_mma_int8_launch};
