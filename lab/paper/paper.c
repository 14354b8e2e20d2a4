/* The static model: an operation on a card. */
#include "lab/paper/paper.h"

#include <math.h>

/* k of a step; rows of a block of attention; what it takes to start a block. */
enum { STEP = 64, QUERIES = 64, START_CYCLES = 500 };

static double most(double a, double b) { return a > b ? a : b; }
static double least(double a, double b) { return a < b ? a : b; }
static double whole(double a, double b) { return ceil(a / b); }

/* `blocks` equal ones, each of `steps` steps: the units take them in waves. A step takes `cycles` of its
 * unit; it waits for memory where too few others are on their way. */
static double in_waves(const paper_card *c, double blocks, double steps, double cycles, double after,
                       int ahead) {
    double waves = whole(blocks, c->units), load = c->load_us * c->core_mhz;
    double busy = waves * (steps * cycles + after), groups = whole(waves, c->blocks);
    double waiting = groups * (ahead ? steps * most(cycles, load / ahead) : steps * (cycles + load));
    return most(busy, waiting + after) / c->core_mhz;
}

static double multiplied(const paper_card *c, double flops) { return flops / (c->matrix_tflops * 1e6); }
static double moved(const paper_card *c, double bytes) { return bytes / (c->memory_gbs * 1e3); }

/* The tile that takes least. */
static double tiled(const paper_card *c, double m, double n, double k) {
    double best = INFINITY;
    for (const paper_tile *t = c->tiles; t < c->tiles + PAPER_TILES && t->rows; t++)
        for (int parts = 1; parts <= t->parts; parts++) {
            double tiles = whole(m, t->rows) * whole(n, t->columns), area = (double)t->rows * t->columns;
            double multiply = 2 * area * STEP / c->flops_per_cycle / t->inner;
            double move = (t->rows + t->columns) * 2.0 * STEP / c->move_bytes;
            double us = in_waves(c, tiles * parts, whole(whole(k, STEP), parts), most(multiply, move),
                                 START_CYCLES + c->epilogue_cycles * area, c->ahead);
            us = most(us, multiplied(c, 2 * tiles * area * k));
            best = least(best, us);
        }
    return best;
}

/* Weights come from memory; activations too, where the cache does not hold them. */
static double product(const paper_card *c, const matrix *w, double m) {
    double activations = m * ((double)w->k + w->n) * 2;
    double memory = moved(c, (double)w->n * w->k * 2 + (activations > c->cache_bytes ? activations : 0));
    return m <= c->few_rows ? memory : most(memory, tiled(c, m, w->n, w->k));
}

static double attention(const paper_card *c, double blocks, double keys, int head_dim) {
    double width = whole(head_dim, 16) * 16, parts = 1;
    double a_key = QUERIES * (4 * width / c->flops_per_cycle / c->attention_inner[head_dim > 128] +
                              c->softmax_cycles);
    if (c->attention_split && blocks < c->units)
        parts = least(floor(c->units / blocks), whole(keys, QUERIES));
    double after = START_CYCLES + c->epilogue_cycles * QUERIES * width;
    return in_waves(c, blocks * parts, whole(whole(keys, QUERIES), parts), a_key * QUERIES, after,
                    c->ahead > 1 ? c->ahead : 0);
}

static norm_kind norm_of(const op *op) {
    switch (op->kind) {
    case OP_NORM_LINEAR: return op->norm_linear.norm.kind;
    case OP_NORM_QKV: return op->norm_qkv.norm.kind;
    case OP_VELOCITY: return op->velocity.norm.kind;
    default: return NORM_NONE;
    }
}

/* What precedes a product as a launch of its own: the rows of x, read and written. */
static int first_launch(const paper_card *c, const op *op, int rows, int resident) {
    if (op->kind == OP_PATCH_EMBED) return 1;
    return norm_of(op) != NORM_NONE && rows > c->norm_rows && !resident;
}

static double attention_of(const paper_card *c, const op *op, int rows, double keys, int samples) {
    if (op->kind == OP_IMAGE_ATTENTION) {
        const op_image_attention *a = &op->image_attention;
        return attention(c, whole(rows, QUERIES) * a->heads, OPENPI_IMAGE_TOKENS, a->head_dim);
    }
    const op_cache_attention *a = &op->cache_attention;
    double each = whole((double)rows / samples * a->heads, QUERIES);
    return attention(c, samples * each, keys, a->cache.head_dim);
}

/* The layers of a step, or of vision, as one launch: an operation begins when all units have ended the last
 * one. */
static int is_resident(const paper_card *c, const op *op, int rows, int samples) {
    if (op->stage == OPENPI_STAGE_VISION)
        return op->layer >= 0 && rows <= c->resident_images * OPENPI_IMAGE_TOKENS;
    return op->stage == OPENPI_STAGE_DENOISE && samples <= c->resident_samples &&
           rows <= c->resident_rows;
}

paper_time paper_predict(const paper_card *c, const op *given, int rows, double keys, int samples) {
    op op = *given;
    matrix *list[OP_MATRICES];
    int products = op_matrices(&op, list), resident = is_resident(c, &op, rows, samples);
    paper_time time = {0, 1};
    if (op.kind == OP_IMAGE_ATTENTION || op.kind == OP_CACHE_ATTENTION) {
        time.us = attention_of(c, &op, rows, keys, samples);
    } else if (products) {
        for (int i = 0; i < products; i++) time.us += product(c, list[i], rows);
        time.launches = products;
        if (first_launch(c, &op, rows, resident)) {
            time.us += moved(c, 4.0 * rows * list[0]->k);
            time.launches++;
        }
    } else {
        time.us = moved(c, op_get_cost(&op, rows, keys).bytes);
    }
    /* Each begins with operands on their way from memory and ends with results on their way there. Without a
     * launch between them blocks then count each other in memory, too; few rows go from cluster to cluster
     * instead, and weights are there before them. */
    int trips = !resident ? 2 : rows > c->few_rows ? 3 : 1;
    time.us += time.launches * (trips * c->load_us + (resident ? 0 : c->launch_us));
    if (resident) time.launches = 0;
    return time;
}

bench_roofs paper_roofs(const paper_card *c) {
    return (bench_roofs){.tflops = c->matrix_tflops, .bf16_tflops = c->matrix_tflops, .gbs = c->memory_gbs};
}
