/* attention_image_hopper.cu: attention over images on Hopper. */
#include <string.h>

#include "backend/gpu/cuda/attention/attention_image_hopper.h"
#include "backend/gpu/cuda/vendor.h"

static const gpu_kernel kernels[] = {{"attention_image_wgmma", 1, 0}};

static void attention_image_list(const gpu_device *device, const gpu_task *task, gpu_choices *to) {
    const gpu_image_attention *p = &task->image_attention;
    if (task->kind != GPU_IMAGE_ATTENTION || p->f32 || p->head_dim != IMAGE_HEAD) return;
    if (p->stride % 8 || p->next % 8 || IMAGE_SHARED > gpu_shared_bytes(device)) return;
    gpu_choices_add(to, (gpu_choice){.rank = RANK_IMAGE_WGMMA});
}

/* Tiles of a unit: what ends first, where a unit's keys and values cost about as much as a tile. */
static int usual_tiles(int heads_of_images, int multiprocessors) {
    int best = IMAGE_TILES, least_cost = 0;
    for (int tiles = IMAGE_TILES; tiles > 1; tiles /= 2) {
        int units = heads_of_images * (IMAGE_TILES / tiles),
            each = ceil_div(tiles, IMAGE_CONSUMERS) * IMAGE_CONSUMERS + 1,
            cost = ceil_div(units, multiprocessors) * each;
        if (!least_cost || cost < least_cost) best = tiles, least_cost = cost;
    }
    return best;
}

static void attention_image_launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const gpu_image_attention *p = &task->image_attention;
    int heads = task->rows / IMAGE_KEYS * p->heads,
        multiprocessors = gpu_multiprocessors(gpu_device_of(issue));
    gpu_image_hopper h;
    (void)choice;
    if (!gpu_emitting(issue)) return;
    memset(&h, 0, sizeof h);
    cuda_map_image_heads(issue, &h.keys_main, p, task->rows, IMAGE_MAIN, IMAGE_KEYS);
    cuda_map_image_heads(issue, &h.keys_rest, p, task->rows, IMAGE_REST, IMAGE_KEYS);
    cuda_map_image_heads(issue, &h.rows_main, p, task->rows, IMAGE_MAIN, IMAGE_ROWS);
    cuda_map_image_heads(issue, &h.rows_rest, p, task->rows, IMAGE_REST, IMAGE_ROWS);
    h.attention = *p;
    h.tiles = usual_tiles(heads, multiprocessors);
    gpu_grid grid = {.x = least(heads * (IMAGE_TILES / h.tiles), multiprocessors),
                     .y = 1,
                     .threads = (IMAGE_CONSUMERS + 1) * 128,
                     .shared = IMAGE_SHARED};
    gpu_emit(issue, 0, grid, &h, sizeof h);
}

const gpu_family gpu_family_attention_image_hopper = {
    .name = "attention_image_hopper", GPU_KERNELS(kernels),
    .list = attention_image_list, .launch = attention_image_launch};
