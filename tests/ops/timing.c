/* Times a full-size op. Weights rotate over copies that together exceed any cache, as they do in a real call,
 * where every layer has its own. Each line is set against the machine's roofs measured a moment before. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "harness.h"

enum { COPIES = 64, MOST_RUNS = 400 };
static const double cold_bytes = 400e6, least_ms = 300;

void timing_head(device *device, pool *pool, dtype type, device_roofs *roofs) {
    device->backend->roof(device, type, roofs, NULL);
    printf("%s, %d threads: bf16 %.3f, f32 %.3f TFLOP/s, read %.1f, copy %.1f GB/s\n", device->path,
           pool_threads(pool), roofs->bf16_tflops, roofs->f32_tflops, roofs->read_gbs, roofs->copy_gbs);
    printf("%-24s %5s %9s %9s %8s %8s %6s\n", "op", "type", "ms best", "ms mid", "TFLOP/s", "GB/s", "roof");
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct rows_source {
    const char *data;
    size_t row_bytes;
} rows_source;

static void read_rows(const void *context, int row, int count, void *out) {
    const rows_source *s = context;
    memcpy(out, s->data + (size_t)row * s->row_bytes, (size_t)count * s->row_bytes);
}

void timing_run(const op_shape *shape, dtype type, device *device, pool *pool, dice *r, device_roofs now,
                int again) {
    static double times[MOST_RUNS];
    const backend *backend = device->backend;
    problem p;
    op ops[COPIES];
    void *blocks[COPIES][MATRICES] = {{NULL}}, *work = NULL, *cache[2] = {NULL, NULL};
    if (!problem_make(&p, shape, type, WEIGHT_BF16, 1, r, pool, 0)) return;
    for (int i = 0; i < p.buffer_count; i++) { /* full: finite numbers everywhere, all rows see all keys */
        buffer *b = &p.buffers[i];
        if (b->role == ROLE_OUT || b->role == ROLE_INOUT) memset(b->data, 0, b->count * dtype_bytes(b->type));
        for (size_t j = 0; !strcmp(b->name, "keys") && j < b->count; j++)
            ((int32_t *)b->data)[j] = shape->keys;
    }
    double weights = op_get_cost(&p.op, 1, 1).weight_bytes;
    int copies = weights > 0 ? (int)(cold_bytes / weights) + 1 : 1, count = 0;
    if (copies > COPIES) copies = COPIES;
    if (shape->kind == OP_NORM_QKV || shape->kind == OP_CACHE_ATTENTION) {
        kv_cache *c = shape->kind == OP_NORM_QKV ? &p.op.norm_qkv.cache : &p.op.cache_attention.cache;
        size_t bytes = backend->cache_bytes(device, c->capacity, c->head_dim, type);
        if (backend->allocate(device, bytes, "keys", &cache[0], NULL) != OPENPI_OK) return;
        if (backend->allocate(device, bytes, "values", &cache[1], NULL) != OPENPI_OK) return;
        c->k = cache[0];
        c->v = cache[1];
    }
    for (int c = 0; c < copies; c++) {
        ops[c] = p.op;
        for (int i = 0; i < p.matrix_count; i++) {
            matrix *m = (matrix *)((char *)&ops[c] + p.matrices[i].field);
            rows_source rows = {p.matrices[i].data, weight_row_bytes(&weight_formats[m->type], m->k)};
            matrix_source source = {read_rows, &rows};
            char *scratch = aligned_alloc(64, (backend->matrix_scratch(device, m) + 127) / 64 * 64);
            if (!scratch || backend->allocate(device, backend->matrix_bytes(device, m), "weights",
                                              &blocks[c][i], NULL) != OPENPI_OK)
                return;
            if (c == 0)
                backend->matrix_pack(device, m, 0, backend->matrix_blocks(device, m), &source, blocks[c][i],
                                     scratch, NULL);
            else
                memcpy(blocks[c][i], blocks[0][i], backend->matrix_bytes(device, m));
            m->data = blocks[c][i];
            free(scratch);
        }
    }
    if (backend->allocate(device, backend->work_bytes(device, &p.op, 1), "work", &work, NULL) != OPENPI_OK)
        return;
    if (again) backend->roof(device, type, &now, NULL);
    double rate = type == DTYPE_BF16 && now.bf16_tflops > 0 ? now.bf16_tflops : now.f32_tflops;
    for (double all = 0; count < MOST_RUNS && (count < 3 || all < least_ms); count++) {
        double start = clock_ms();
        backend->run(device, op_alone(&ops[count % copies]), work, NULL, NULL);
        times[count] = clock_ms() - start;
        all += times[count];
    }
    qsort(times, (size_t)count, sizeof *times, ascending);
    op_cost cost = op_get_cost(&p.op, shape->rows, shape->keys);
    double best = times[0] * 1e-3, middle = times[count / 2];
    double compute = cost.flops / (rate * 1e12), memory = cost.weight_bytes / (now.read_gbs * 1e9);
    printf("%-24s %5s %9.3f %9.3f %8.3f %8.1f %4.0f %% of %s, %.0f %% at the middle\n", shape->name,
           type == DTYPE_BF16 ? "bf16" : "f32", times[0], middle, cost.flops / best * 1e-12,
           cost.weight_bytes / best * 1e-9, 100 * (compute > memory ? compute : memory) / best,
           compute > memory ? "compute" : "memory",
           100 * (compute > memory ? compute : memory) / (middle * 1e-3));
    fflush(stdout);
    for (int c = 0; c < copies; c++)
        for (int i = 0; i < p.matrix_count; i++) backend->release(device, blocks[c][i]);
    backend->release(device, work);
    backend->release(device, cache[0]);
    backend->release(device, cache[1]);
    problem_free(&p);
}
