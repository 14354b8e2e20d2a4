/* What is neither product nor attention. A block is a row of the call; for the two kernels that make packed
 * weights it is a group of 8 packed columns. */
#include "kernels.h"

enum { PIXELS = 588 };                     /* numbers in a patch */

static void normalize(const void *arguments, host_block block) {
    const gpu_norm *p = arguments;
    size_t k = (size_t)p->k;
    float *row = block.shared;
    if (block.x >= *p->count) return;
    const norm norm = norm_of(p->kind, p->weight, p->bias, known_at(&p->known, block.x), p->eps);
    norm_row(&norm, p->x, type_of(p->f32), row_of(&p->from, block.x) * k, p->k, row);
    for (size_t i = 0; i < k; i++) store(p->out, type_of(p->f32), (size_t)block.x * k + i, row[i]);
}

static void text(const void *arguments, host_block block) {
    const gpu_text *p = arguments;
    size_t width = (size_t)p->width;
    if (block.x >= *p->count) return;
    for (size_t i = 0; i < width; i++)
        store(p->out, type_of(p->f32), (size_t)p->out_row[block.x] * width + i,
              load(p->table, type_of(p->table_f32), (size_t)p->ids[block.x] * width + i) * p->scale);
}

static void split_pixels(const void *arguments, host_block block) {
    const gpu_patches *p = arguments;
    if (block.x >= *p->count) return;
    for (int i = 0; i < p->ld; i++) {
        float x = i < PIXELS ? pixel_at(p->images, *p->pixels, block.x, i) : 0;
        size_t at = (size_t)block.x * 2 * (size_t)p->ld + (size_t)i;
        store(p->out, DTYPE_BF16, at, x);
        store(p->out, DTYPE_BF16, at + (size_t)p->ld, x - round_to(DTYPE_BF16, x));
    }
}

static void activate(const void *arguments, host_block block) {
    const gpu_activate *p = arguments;
    if (block.x >= *p->count) return;
    const float *bias = p->bias ? p->bias + known_at(&p->known, block.x) : NULL;
    for (int i = 0; i < p->n; i++) {
        size_t at = (size_t)(p->row ? p->row[block.x] : block.x) * (size_t)p->n + (size_t)i;
        double y = load(p->x, type_of(p->f32), at) + (double)(bias ? bias[i] : 0);
        y = activated(p->activation, y);
        if (p->up) y *= load(p->up, type_of(p->f32), (size_t)block.x * (size_t)p->n + (size_t)i);
        store(p->x, type_of(p->f32), at, (float)y);
    }
}

static void add(const void *arguments, host_block block) {
    const gpu_add *p = arguments;
    if (block.x >= *p->count) return;
    const float *gate = p->gate ? p->gate + known_at(&p->known, block.x) : NULL;
    const double factor = (double)(p->factor ? p->factor[block.x] : 1);
    if (factor == 0) return;
    for (int i = 0; i < p->n; i++) {
        size_t at = (size_t)block.x * (size_t)p->n + (size_t)i;
        double x = load(p->x, type_of(p->f32), at), y = load(p->y, type_of(p->f32), at);
        y += (double)(p->bias ? p->bias[i] : 0);
        store(p->x, type_of(p->f32), at, (float)(x + y * (gate ? (double)gate[i] : factor)));
    }
}

static void guide(const void *arguments, host_block block) {
    const gpu_guide *p = arguments;
    if (block.x >= *p->count) return;
    float weight = p->weight[block.x], gain = p->gain[p->sample[block.x]];
    for (int i = 0; i < p->n && weight != 0; i++) {
        size_t at = (size_t)block.x * (size_t)p->n + (size_t)i;
        float ahead = p->x_t[at] - p->t * p->velocity[at];
        p->x_t[at] += gain * ((p->target[at] - ahead) * weight);
    }
}

/* One head from in to out, rotated by the angles of its place. */
static void rotate_head(const void *in, size_t from, void *out, size_t to, dtype type, int d,
                        const float *rope) {
    for (int i = 0, half = d / 2; i < half; i++) {
        double a = load(in, type, from + (size_t)i), b = load(in, type, from + (size_t)(i + half));
        store(out, type, to + (size_t)i, (float)(a * rope[2 * i] - b * rope[2 * i + 1]));
        store(out, type, to + (size_t)(i + half), (float)(b * rope[2 * i] + a * rope[2 * i + 1]));
    }
}

static void rotate(const void *arguments, host_block block) {
    const gpu_rope_cache *p = arguments;
    int r = block.x;
    dtype type = type_of(p->f32);
    if (r >= *p->count) return;
    size_t d = (size_t)p->head_dim, position = (size_t)p->position[r], kv = (size_t)r * (size_t)p->kv_stride;
    size_t place = ((size_t)p->sample[r] * (size_t)p->capacity + position) * d, heads = (size_t)p->heads;
    const float *rope = p->rope + position * d;
    for (size_t h = 0; h < heads; h++) {
        size_t from = (size_t)r * (size_t)p->q_stride + h * d, to = ((size_t)r * heads + h) * d;
        rotate_head(p->q_in, from, p->q, to, type, p->head_dim, rope);
    }
    rotate_head(p->k_in, kv, p->k, place, type, p->head_dim, rope);
    for (size_t i = 0; i < d; i++) store(p->v, type, place + i, load(p->v_in, type, kv + i));
}

static void pack(const void *arguments, host_block block) {
    const gpu_raw *p = arguments;
    int grain = p->f32 ? 4 : GPU_ATOM_K, padded = ceil_div(p->k, grain) * grain, rows;
    int row = gpu_group_rows(&p->order, block.x, &rows);
    for (int column = 0; column < 8; column++)
        for (int i = 0; i < padded; i++) {
            size_t from = (size_t)(row + column) * (size_t)p->k + (size_t)i;
            float w = column < rows && i < p->k ? load(p->rows, type_of(p->f32), from) : 0;
            store(p->out, type_of(p->f32), packed_at(p->f32, p->k, block.x * 8 + column, i), w);
        }
}

static void generate(const void *arguments, host_block block) {
    const gpu_generate *p = arguments;
    for (int unit = 0; unit < p->units; unit++) gpu_generate_unit(p, block.x, unit);
}

/* ---- choices: one a task ------------------------------------------------------------------------------- */

/* X(kernel, kind of task, its member) */
#define KERNEL_LIST(X)                       \
    X(normalize, GPU_NORM, norm)             \
    X(text, GPU_EMBED_TEXT, embed_text)      \
    X(split_pixels, GPU_PATCHES, patches)    \
    X(activate, GPU_ACTIVATE, activate)      \
    X(add, GPU_ADD, add)                     \
    X(rotate, GPU_ROPE_CACHE, rope_cache)    \
    X(guide, GPU_GUIDE, guide)               \
    X(pack, GPU_PACK, pack)                  \
    X(generate, GPU_GENERATE, generate)

typedef struct pointwise_kernel {
    gpu_kernel kernel;
    gpu_task_kind kind;
    size_t arguments, bytes;               /* where in a task they stand, and how many                     */
} pointwise_kernel;

static const pointwise_kernel kernels[] = {
#define X(name, kind, member) \
    {{#name, 1, 0}, kind, offsetof(gpu_task, member), sizeof ((gpu_task *)0)->member},
    KERNEL_LIST(X)
#undef X
};
const host_function host_image_pointwise[] = {
#define X(name, kind, member) {#name, name},
    KERNEL_LIST(X)
#undef X
    {NULL, NULL},
};

static void list(const gpu_device *device, const gpu_task *task, gpu_choices *choices) {
    (void)device;
    for (int i = 0; i < (int)(sizeof kernels / sizeof *kernels); i++)
        if (kernels[i].kind == task->kind) gpu_choices_add(choices, (gpu_choice){.kernel = i});
}

static void launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    const pointwise_kernel *k = &kernels[choice->kernel];
    size_t shared = task->kind == GPU_NORM ? (size_t)task->norm.k * sizeof(float) : 0;
    gpu_grid grid = {.x = task->rows, .y = 1, .threads = 1, .shared = shared};
    gpu_emit(issue, choice->kernel, grid, (const char *)task + k->arguments, k->bytes);
}

const gpu_family gpu_family_host_pointwise = {
    .name = "pointwise", GPU_KERNELS(kernels), .list = list, .launch = launch,
};
