/* velocity.cu: the end of a denoise step, norm, product and x_t in one. */
#include "backend/gpu/cuda/vendor.h"

enum { VELOCITY_BF16, VELOCITY_F32, MOST_INPUTS = 1024, ROWS = 8 };

/* For weights of bf16 and of fp32. */
static const gpu_kernel kernels[] = {
    [VELOCITY_BF16] = {"velocity_rows", 0, 0}, [VELOCITY_F32] = {"velocity_rows_f32", 0, 0}};

static int velocity_legal(const gpu_linear *p) {
    const gpu_epilogue *e = &p->epilogue;
    return cuda_plain_weights(p) && p->x_type == GPU_X_BF16 && p->round && p->norm != GPU_NORM_LAYER &&
           p->weights.k % 8 == 0 && p->weights.k <= MOST_INPUTS && e->kind == GPU_EPILOGUE_STORE && e->x_t &&
           e->f32 && !e->split && !e->add && e->activation == GPU_ACT_NONE && !e->to.map && !e->to.group;
}

static void velocity_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    (void)device;
    if (task->kind != GPU_PRODUCT || !velocity_legal(&task->product)) return;
    gpu_choices_add(to, (gpu_choice){.rank = RANK_MADE_FOR_IT,
                                     .kernel = task->product.weights.type == GPU_WEIGHT_F32 ? VELOCITY_F32
                                                                                            : VELOCITY_BF16});
}

static void velocity_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gpu_linear *p = &task->product;
    int columns = p->weights.columns / (choice->kernel == VELOCITY_BF16 ? 16 : 8);
    gpu_emit(issue, choice->kernel, (gpu_grid){.x = columns, .y = ceil_div(task->rows, ROWS), .threads = 256},
             p, sizeof *p);
}

const gpu_family gpu_family_velocity = {
    .name = "velocity", GPU_KERNELS(kernels), .list = velocity_list, .launch = velocity_launch};
