/* resident_long_hopper.cu: the layers of denoise steps with many rows as one kernel. Can the device run it,
 * which layers does it take, with what arguments, its launch.
 *
 * Note: blocks wait for each other, so all of them must be resident at once. The driver is asked when the
 * device opens, and the launch is a cooperative one: it starts whole or not yet, whatever else runs on the
 * card. */
#include "backend/gpu/cuda/resident/many/long_family.h"

#include <string.h>

static const gpu_kernel kernels[] = {{"resident_long", 1, 0}};

static const long_sizes sizes_long = {.grid = LONG_GRID(LONG),
                                      .state = LONG_STATE,
                                      .rows = LONG_ROWS,
                                      .samples = LONG_SAMPLES,
                                      .head_rows = LONG_HEAD_ROWS,
                                      .tiles = LONG_TILES,
                                      .kind = RESIDENT_LONG};

/* ---- what the family keeps on a device --------------------------------------------------------------- */

int long_open_state(gpu_device *device, int family, const long_sizes *sizes, void **state) {
    const gpu_driver *driver = gpu_driver_of(device);
    const int code = cuda_open_resident(device, family, 0, &sizes->grid, (size_t)sizes->state, state);
    if (code || !*state) return code;
    return driver->fill(driver, (gpu_address)(uintptr_t)*state, 0, (size_t)sizes->state, gpu_stream(device));
}

static int resident_long_open_state(gpu_device *device, int family, void **state) {
    return long_open_state(device, family, &sizes_long, state);
}

/* ---- what is legal ---------------------------------------------------------------------------------- */

int long_layers_fit(const op_block *block) {
    if (!resident_layers_fit(block, WEIGHT_BF16)) return 0;
    const op_norm_qkv *q = &block->ops[LAYER_QKV].norm_qkv;
    return !q->rows.known && q->cache.capacity <= LONG_PARTS * LONG_PART_KEYS;
}

static int with_shifts(const op_block *block) {
    return block->rows + resident_shifts_of(&block->ops[LAYER_QKV].norm_qkv);
}

int long_samples_fit(const op_block *block, const long_sizes *sizes) {
    const int samples = block->samples;
    return samples > 1 && samples <= sizes->samples && block->rows / samples <= sizes->head_rows &&
           with_shifts(block) <= sizes->rows;
}

/* More rows of one sample than the other kernels are for, or several samples. */
int resident_long_of(const op_block *block) {
    if (!long_layers_fit(block)) return 0;
    if (block->samples > 1) return long_samples_fit(block, &sizes_long);
    return block->rows > RESIDENT_ROWS && with_shifts(block) <= LONG_ROWS;
}

/* ---- arguments -------------------------------------------------------------------------------------- */

/* Boxes of `chunks` chunks of 64 dims. */
static void resident_long_map_cache(gpu_issue *issue, gpu_tensor_map *map, const gpu_resident_long *p,
                                    const void *base, int64_t layer_bytes, int capacity, int chunks) {
    const uint64_t row = RESIDENT_HEAD * sizeof(bf16), part = GPU_ATOM_K * sizeof(bf16),
                   sample = (uint64_t)p->sample_bytes, samples = (uint64_t)(p->rows / p->each);
    const uint64_t dims[5] = {GPU_ATOM_K, (uint64_t)capacity, RESIDENT_HEAD / GPU_ATOM_K, (uint64_t)p->depth,
                              samples},
                   strides[4] = {row, part, p->depth > 1 ? (uint64_t)layer_bytes : sample, sample};
    const unsigned box[5] = {GPU_ATOM_K, LONG_PART_KEYS, (unsigned)chunks, 1, 1};
    cuda_make_map(issue, map, 1, 5, base, dims, strides, box);
}

/* Boxes of a slot: so many groups of 8 columns. */
static void map_weights(gpu_issue *issue, gpu_tensor_map *map, const matrix *m, unsigned groups) {
    gpu_weights weights = gpu_weights_of(m);
    unsigned atoms = LONG_SLOT / (unsigned)cuda_atom_of(weights.type).bytes;
    cuda_map_weight_blocks(issue, map, weights, atoms / groups, groups);
}

/* Boxes of `lines` lines. */
static void map_state(gpu_issue *issue, gpu_tensor_map *map, const void *memory, int bytes, int lines) {
    const uint64_t dims[2] = {GPU_ATOM_K, (uint64_t)bytes / LONG_LINE}, strides[1] = {LONG_LINE};
    const unsigned box[2] = {GPU_ATOM_K, (unsigned)lines};
    cuda_make_map(issue, map, 1, 2, memory, dims, strides, box);
}

/* o and down have a group of columns for each block of a cluster. */
static void resident_long_fill_layer(gpu_issue *issue, long_layer *to, const op *ops, int cluster) {
    const norm *in = &ops[LAYER_QKV].norm_qkv.norm, *post = &ops[LAYER_UP].norm_linear.norm;
    const op_linear_residual *o = &ops[LAYER_OUT].linear_residual, *down = &ops[LAYER_DOWN].linear_residual;
    map_weights(issue, &to->qkv, &ops[LAYER_QKV].norm_qkv.weight, LONG_QKV_GROUPS);
    map_weights(issue, &to->gate_up, &ops[LAYER_UP].norm_linear.weight, LONG_GATE_UP_GROUPS);
    map_weights(issue, &to->o, &o->weight, (unsigned)cluster);
    map_weights(issue, &to->down, &down->weight, (unsigned)cluster);
    to->scale_in = in->weight, to->shift_in = in->bias, to->gate_in = o->gate;
    to->scale_post = post->weight, to->shift_post = post->bias, to->gate_post = down->gate;
}

/* Two tiles have all of a sample's heads in a unit, and no room between them. */
static void fill_units(gpu_resident_long *p, int samples, int tiles) {
    p->heads_log2 = samples == 1 ? 0 : tiles > 1 ? WIDE_HEADS_LOG2 : LONG_HEADS_LOG2;
    p->unit_height = samples == 1 ? LONG_HEIGHT(p->rows, p->shifts)
                     : tiles > 1  ? RESIDENT_HEADS * p->each
                                  : LONG_ROWS;
}

static void resident_long_fill(gpu_issue *issue, gpu_resident_long *p, const op_block *block,
                               const long_sizes *sizes) {
    enum { CHUNKS = LONG_SLOT_K / GPU_ATOM_K };
    const op *ops = block->ops;
    const int depth = block->layers, samples = block->samples, chunks = sizes->tiles > 1 ? 1 : CHUNKS;
    const op_norm_qkv *q = &ops[LAYER_QKV].norm_qkv;
    memset(p, 0, sizeof *p);
    p->rows = block->rows;
    p->each = p->rows / samples;
    p->count = q->rows.count;
    p->position = q->rows.position;
    p->keys = q->rows.keys;
    p->rope = q->rope;
    p->k_cache = q->cache.k;
    p->v_cache = q->cache.v;
    p->sample_bytes = (int64_t)q->cache.capacity * RESIDENT_HEAD * (int64_t)sizeof(bf16);
    p->k_layer = p->v_layer = (int64_t)block->cache_bytes;
    p->x = ops[LAYER_OUT].linear_residual.x;
    p->memory = gpu_state(gpu_device_of(issue), gpu_family_of(issue));
    p->shifts = resident_shifts_of(q);
    p->depth = depth;
    fill_units(p, samples, sizes->tiles);
    p->eps = q->norm.eps;
    p->scale = ops[LAYER_ATTENTION].cache_attention.scale;
    map_state(issue, &p->state, p->memory, sizes->state, CHUNKS * LONG_HEIGHT(p->rows, p->shifts));
    map_state(issue, &p->queries, p->memory, sizes->state, chunks * p->unit_height);
    resident_long_map_cache(issue, &p->k, p, q->cache.k, p->k_layer, q->cache.capacity, chunks);
    resident_long_map_cache(issue, &p->v, p, q->cache.v, p->v_layer, q->cache.capacity, chunks);
    for (int i = 0; i < depth; i++)
        resident_long_fill_layer(issue, &p->layers[i], block_layer(block, i), sizes->grid.cluster);
}

int long_emit(gpu_issue *issue, const op_block *block, const long_sizes *sizes) {
    gpu_resident_long p;
    const int ops = resident_ops_of(block, sizes->kind, 1);
    gpu_take(issue, ops);
    resident_long_fill(issue, &p, block, sizes);
    gpu_emit(issue, 0, sizes->grid, &p, sizeof p);
    return ops;
}

static int resident_long_take(gpu_issue *issue, const op_block *block) {
    return resident_long_of(block) ? long_emit(issue, block, &sizes_long) : 0;
}

/* ---- the family ------------------------------------------------------------------------------------- */

const gpu_family gpu_family_resident_long_hopper = {
    .name = "resident_long_hopper",
    GPU_KERNELS(kernels),
    .take_block = resident_long_take,
    .take_switches = 1u << SWITCH_PERSISTENT_DENOISE,
    .whole_device = 1,
    .open = resident_long_open_state,
    .close = cuda_close_resident,
};
