/* Attention: whole, as ops of a plan with everything on run it, and in the three steps it is made of. */
#include "kernels.h"
#include "ops/limits.h"

/* ---- one query ----------------------------------------------------------------------------------------- */

/* Keys or values of one query: place j starts at `at` + j·stride. */
typedef struct places {
    const void *data;
    size_t at, stride;
    int count;
} places;

static void score(const void *q, size_t q_at, dtype type, int d, const places *keys, float scale,
                  float *scores) {
    float query[LIMIT_HEAD_DIM], key[LIMIT_HEAD_DIM];
    widen(q, type, q_at, d, query);
    for (int j = 0; j < keys->count; j++) {
        widen(keys->data, type, keys->at + (size_t)j * keys->stride, d, key);
        scores[j] = sum_products(query, key, d) * scale;
    }
}

static void to_probabilities(float *scores, int count, dtype type) {
    double top = -HUGE_VAL, sum = 0;
    for (int j = 0; j < count; j++) top = fmax(top, scores[j]);
    for (int j = 0; j < count; j++) sum += exp(scores[j] - top);
    for (int j = 0; j < count; j++) scores[j] = round_to(type, (float)(exp(scores[j] - top) / sum));
}

static void weigh(const float *shares, const places *values, dtype type, int d, void *out, size_t to) {
    float sums[LIMIT_HEAD_DIM] = {0}, value[LIMIT_HEAD_DIM];
    for (int j = 0; j < values->count; j++) {
        widen(values->data, type, values->at + (size_t)j * values->stride, d, value);
        for (int i = 0; i < d; i++) sums[i] += shares[j] * value[i];
    }
    for (int i = 0; i < d; i++) store(out, type, to + (size_t)i, sums[i]);
}

/* ---- whole: a block is a row and a head ---------------------------------------------------------------- */

static void attend_image(const void *arguments, host_block block) {
    const gpu_image_attention *p = arguments;
    int r = block.x, first = r / OPENPI_IMAGE_TOKENS * OPENPI_IMAGE_TOKENS;
    dtype type = type_of(p->f32);
    if (r >= *p->count) return;
    size_t stride = (size_t)p->stride, head = (size_t)(block.y * p->head_dim), next = (size_t)p->next;
    places keys = {p->qkv, (size_t)first * stride + next + head, stride, OPENPI_IMAGE_TOKENS}, values = keys;
    values.at += next;
    score(p->qkv, (size_t)r * stride + head, type, p->head_dim, &keys, p->scale, block.shared);
    to_probabilities(block.shared, keys.count, type);
    size_t to = (size_t)(r * p->heads) * (size_t)p->head_dim + head;
    weigh(block.shared, &values, type, p->head_dim, p->out, to);
}

static void attend_cache(const void *arguments, host_block block) {
    const gpu_cache_attention *p = arguments;
    int r = block.x;
    dtype type = type_of(p->f32);
    if (r >= *p->count) return;
    size_t d = (size_t)p->head_dim, q = (size_t)(r * p->heads + block.y) * d;
    places keys = {p->k, (size_t)p->sample[r] * (size_t)p->capacity * d, d, p->keys[r]}, values = keys;
    values.data = p->v;
    score(p->q, q, type, p->head_dim, &keys, p->scale, block.shared);
    to_probabilities(block.shared, keys.count, type);
    weigh(block.shared, &values, type, p->head_dim, p->out, q);
}

/* ---- in steps ------------------------------------------------------------------------------------------ */

/* What head h of row r attends: its image, or its sample's cache. */
static places places_of(const gpu_attend *p, int r, int h) {
    int first = r / OPENPI_IMAGE_TOKENS * OPENPI_IMAGE_TOKENS;
    size_t d = (size_t)p->head_dim, stride = (size_t)p->stride;
    if (p->stride) return (places){p->from, (size_t)first * stride + (size_t)h * d, stride, p->keys[r]};
    return (places){p->from, (size_t)p->sample[r] * (size_t)p->capacity * d, d, p->keys[r]};
}

/* A row and head's line of scores or probabilities. */
static float *line_of(float *scores, int r, int heads, int h, int places) {
    return scores + (size_t)(r * heads + h) * (size_t)places;
}

static void scores(const void *arguments, host_block block) {
    const gpu_attend *p = arguments;
    int r = block.x, h = block.y;
    if (r >= *p->count) return;
    places keys = places_of(p, r, h);
    size_t q = (size_t)r * (size_t)p->q_stride + (size_t)(h * p->head_dim);
    float *line = line_of(p->scores, r, p->heads, h, p->places);
    score(p->q, q, type_of(p->f32), p->head_dim, &keys, p->scale, line);
}

static void softmax(const void *arguments, host_block block) {
    const gpu_softmax *p = arguments;
    int r = block.x;
    if (r >= *p->count) return;
    to_probabilities(line_of(p->scores, r, p->heads, block.y, p->places), p->keys[r], type_of(p->f32));
}

static void values(const void *arguments, host_block block) {
    const gpu_attend *p = arguments;
    int r = block.x, h = block.y;
    if (r >= *p->count) return;
    places values = places_of(p, r, h);
    size_t to = (size_t)(r * p->heads + h) * (size_t)p->head_dim;
    weigh(line_of(p->scores, r, p->heads, h, p->places), &values, type_of(p->f32), p->head_dim, p->out, to);
}

/* ---- choices: one a task ------------------------------------------------------------------------------- */

enum { IMAGE, CACHE, SCORES, SOFTMAX, VALUES, KERNELS };

static const gpu_kernel kernels[KERNELS] = {
    {"attend_image", 1, 0}, {"attend_cache", 1, 0}, {"scores", 0, 0}, {"softmax", 0, 0}, {"values", 0, 0},
};
const host_function host_image_attention[] = {
    {"attend_image", attend_image}, {"attend_cache", attend_cache}, {"scores", scores},
    {"softmax", softmax},           {"values", values},             {NULL, NULL},
};

static void list(const gpu_device *device, const gpu_task *task, gpu_choices *choices) {
    static const gpu_task_kind kinds[KERNELS] = {
        GPU_IMAGE_ATTENTION, GPU_CACHE_ATTENTION, GPU_SCORES, GPU_SOFTMAX, GPU_VALUES,
    };
    (void)device;
    for (int i = 0; i < KERNELS; i++)
        if (kinds[i] == task->kind) gpu_choices_add(choices, (gpu_choice){.kernel = i});
}

static void launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    gpu_grid grid = {.x = task->rows, .threads = 1};
    switch (choice->kernel) {
    case IMAGE:
        grid.y = task->image_attention.heads;
        grid.shared = OPENPI_IMAGE_TOKENS * sizeof(float);
        gpu_emit(issue, IMAGE, grid, &task->image_attention, sizeof task->image_attention);
        return;
    case CACHE:
        grid.y = task->cache_attention.heads;
        grid.shared = (size_t)task->cache_attention.capacity * sizeof(float);
        gpu_emit(issue, CACHE, grid, &task->cache_attention, sizeof task->cache_attention);
        return;
    case SOFTMAX:
        grid.y = task->softmax.heads;
        gpu_emit(issue, SOFTMAX, grid, &task->softmax, sizeof task->softmax);
        return;
    default:
        grid.y = task->scores.heads;
        gpu_emit(issue, choice->kernel, grid, &task->scores, sizeof task->scores);
    }
}

const gpu_family gpu_family_host_attention = {
    .name = "attention", GPU_KERNELS(kernels), .list = list, .launch = launch,
};
