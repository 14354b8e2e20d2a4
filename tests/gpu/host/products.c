/* x·Wᵀ of any type and shape, with all that may come before and after it: one kernel.
 *
 * A block takes 1 or 8 rows and all columns. Its rows stand in shared memory as the product reads them:
 * gathered, normalised, rounded; where a row comes in two parts (bf16 + bf16), their sum. */
#include "kernels.h"

typedef struct tiled_product {
    gpu_linear linear;
    int rows;                              /* a block                                                      */
} tiled_product;

/* ---- operands ------------------------------------------------------------------------------------------ */

/* Row r of x. */
static void load_row(const gpu_linear *p, int r, float *row) {
    const int own = known_at(&p->epilogue.known, r);
    const norm before = norm_of(p->norm, p->norm_weight, p->norm_bias, own, p->eps);
    int k = p->weights.k, parts = p->k_blocks / p->weights.blocks;
    if (p->x_type == GPU_X_PIXELS) {
        for (int i = 0; i < k; i++) row[i] = pixel_at(p->x, *p->pixels, r, i);
        return;
    }
    dtype type = type_of(p->x_type == GPU_X_F32);
    size_t at = row_of(&p->from, r) * (size_t)p->ldx;
    widen(p->x, type, at, k, row);
    for (int part = 1; part < parts; part++)
        for (int i = 0; i < k; i++) row[i] += load(p->x, type, at + (size_t)(part * (p->ldx / parts) + i));
    norm_row(&before, row, DTYPE_F32, 0, k, row);
    for (int i = 0; p->norm && p->round && i < k; i++) row[i] = round_to(DTYPE_BF16, row[i]);
}

/* A packed column's inputs, which stand together eight at a time. */
static void load_column(const gpu_weights *w, int column, float *out) {
    int f32 = w->type == GPU_WEIGHT_F32;
    for (int i = 0; i < w->k; i += 8)
        widen(w->data, type_of(f32), packed_at(f32, w->k, column, i), least(w->k - i, 8), out + i);
}

/* ---- what becomes of a row's sums ---------------------------------------------------------------------- */

static void put_plain(const gpu_epilogue *e, int r, int o, double y) {
    size_t row = row_of(&e->to, r), at = row * (size_t)e->n + (size_t)o;
    if (o >= e->n) return;
    if (e->bias) y += e->bias[o];
    if (e->kind == GPU_EPILOGUE_RESIDUAL) {
        y = load(e->out, type_of(e->f32), at) + y * (e->gate ? e->gate[known_at(&e->known, r) + o] : 1);
    } else {
        if (e->add) y += e->add[(size_t)(r % e->add_period) * (size_t)e->n + (size_t)o];
        y = activated(e->activation, y);
        if (e->x_t && !known_at(&e->known, r)) e->x_t[at] += e->dt * (float)y;
    }
    if (e->split) {                        /* a row is [upper n | lower n] */
        at += row * (size_t)e->n;
        store(e->out, DTYPE_BF16, at + (size_t)e->n, (float)(y - round_to(DTYPE_BF16, (float)y)));
    }
    store(e->out, type_of(e->f32), at, (float)y);
}

static void put_gated(const gpu_epilogue *e, int r, int o, double gate, double up) {
    if (o >= e->n) return;
    if (e->bias) gate += e->bias[o], up += e->bias[e->n_second + o];
    store(e->out, type_of(e->f32), row_of(&e->to, r) * (size_t)e->n + (size_t)o, (float)(gelu(gate) * up));
}

/* Elements i and i + half of a q head or (head == heads) of k. */
static void put_rotated(const gpu_epilogue *e, int r, int head, int i, double a, double b) {
    int half = e->head_dim / 2;
    if (i >= half) return;
    size_t d = (size_t)e->head_dim, position = (size_t)e->position[r];
    size_t at = ((size_t)r * (size_t)e->heads + (size_t)head) * d;
    if (head == e->heads) at = ((size_t)e->sample[r] * (size_t)e->capacity + position) * d;
    void *out = head < e->heads ? e->out : e->k;
    const float *angle = e->rope + position * d + 2 * i;
    store(out, type_of(e->f32), at + (size_t)i, (float)(a * angle[0] - b * angle[1]));
    store(out, type_of(e->f32), at + (size_t)(i + half), (float)(b * angle[0] + a * angle[1]));
}

static void put_value(const gpu_epilogue *e, int r, int i, double y) {
    size_t place = (size_t)e->sample[r] * (size_t)e->capacity + (size_t)e->position[r];
    if (i < e->head_dim) store(e->v, type_of(e->f32), place * (size_t)e->head_dim + (size_t)i, (float)y);
}

/* The sums of a unit of 16 packed columns. */
static void put_unit(const gpu_epilogue *e, int r, int unit, const float *sums) {
    int column = unit * GPU_UNIT, head = e->kind == GPU_EPILOGUE_QKV ? column / e->head_columns : 0;
    for (int i = 0; i < GPU_UNIT; i++) {
        int paired = i < GPU_UNIT / 2;
        if (e->kind == GPU_EPILOGUE_GATED && paired) put_gated(e, r, column / 2 + i, sums[i], sums[i + 8]);
        if (e->kind == GPU_EPILOGUE_STORE || e->kind == GPU_EPILOGUE_RESIDUAL)
            put_plain(e, r, column + i, sums[i]);
        if (e->kind == GPU_EPILOGUE_QKV && head > e->heads)
            put_value(e, r, column - (e->heads + 1) * e->head_columns + i, sums[i]);
        if (e->kind == GPU_EPILOGUE_QKV && head <= e->heads && paired)
            put_rotated(e, r, head, (column - head * e->head_columns) / 2 + i, sums[i], sums[i + 8]);
    }
}

/* Shared memory: the block's rows, a column, the sums of a unit. */
static size_t shared_of(const gpu_linear *p, int rows) {
    return ((size_t)(rows + 1) * (size_t)p->weights.k + (size_t)rows * GPU_UNIT) * sizeof(float);
}

static void product(const void *arguments, host_block block) {
    const tiled_product *tile = arguments;
    const gpu_linear *p = &tile->linear;
    int first = block.x * tile->rows, count = least(*p->count - first, tile->rows), k = p->weights.k;
    float *rows = block.shared, *column = rows + (size_t)tile->rows * (size_t)k, *sums = column + k;
    for (int r = 0; r < count; r++) load_row(p, first + r, rows + (size_t)r * (size_t)k);
    for (int unit = 0; count > 0 && unit < p->weights.columns / GPU_UNIT; unit++) {
        for (int i = 0; i < GPU_UNIT; i++) {
            load_column(&p->weights, unit * GPU_UNIT + i, column);
            for (int r = 0; r < count; r++)
                sums[r * GPU_UNIT + i] = sum_products(rows + (size_t)r * (size_t)k, column, k);
        }
        for (int r = 0; r < count; r++) put_unit(&p->epilogue, first + r, unit, sums + r * GPU_UNIT);
    }
}

/* ---- choices ------------------------------------------------------------------------------------------- */

static const gpu_kernel kernels[] = {{"product", 1, 0}};
const host_function host_image_products[] = {{"product", product}, {NULL, NULL}};

enum { FEW = 1, MANY = 8 };

static void list_product(const gpu_device *device, const gpu_task *task, gpu_choices *choices) {
    const gpu_linear *p = &task->product;
    int tiles[] = {task->rows < MANY ? FEW : MANY, task->rows < MANY ? MANY : FEW};
    if (p->weights.type != GPU_WEIGHT_F32 && p->weights.type != GPU_WEIGHT_BF16) return;
    for (int i = 0; i < 2; i++) {
        if (shared_of(p, tiles[i]) > gpu_shared_bytes(device)) continue;
        gpu_choice inside = {.rank = i, .count = tiles[i]}, first = inside;
        first.rank = GPU_RANK_NEVER;
        gpu_choices_add(choices, inside);
        for (int n = 0; p->norm && n < gpu_norms_first(p); n++) {
            first.norm = gpu_norm_first(p, n);
            gpu_choices_add(choices, first);
        }
    }
}

static void list(const gpu_device *device, const gpu_task *task, gpu_choices *choices) {
    if (task->kind == GPU_PRODUCT) list_product(device, task, choices);
    if (task->kind != GPU_PRODUCT_CHAIN) return;
    gpu_choices_add(choices, (gpu_choice){.rank = 0});
    if (task->chain.bf16) gpu_choices_add(choices, (gpu_choice){.rank = 1, .count = 2, .split = 1});
}

static void launch(gpu_issue *issue, gpu_task *task, const gpu_choice *choice) {
    tiled_product p = {task->product, choice->count};
    size_t shared = shared_of(&p.linear, p.rows);
    gpu_grid grid = {.x = ceil_div(task->rows, p.rows), .y = 1, .threads = 1, .shared = shared};
    gpu_emit(issue, choice->kernel, grid, &p, sizeof p);
}

const gpu_family gpu_family_host_products = {
    .name = "products", GPU_KERNELS(kernels), .list = list, .launch = launch,
};
