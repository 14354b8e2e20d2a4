/* Ceilings: arithmetic that never leaves the registers, reading and copying that never finds a cache. Each
 * is done in many small tasks by all threads, several times over; the best time counts, for what disturbs
 * a measurement only makes it slower.
 *
 * Note: the arithmetic is the product's own instruction, not the widest that the processor has; so the
 * roof of bf16 is that of tiles or of vdpbf16ps, whichever the level uses. */
#include "backend/cpu/roof.h"

#include <stdint.h>
#include <string.h>

#include "backend/cpu/device.h"
#include "backend/cpu/memory.h"
#include "base/clock.h"
#include "base/report.h"
#include "base/sanitizer.h"

/* Beyond every cache; under a sanitizer, whose figures say nothing, beyond a small one. */
enum { TASKS_A_THREAD = 16, ROUNDS = 5, PIECE = 1 << 20, PIECES = SANITIZED ? 32 : 1024 };
static const double task_ms = 1;

typedef struct compute {
    const cpu_product *product;
    long loops;
} compute;

static void compute_task(void *argument, int task, int worker) {
    const compute *c = argument;
    (void)task, (void)worker;
    c->product->peak(c->loops);
}

static double measure_compute(pool *pool, const cpu_product *product) {
    compute c = {product, 1000};
    double best = 0, ms = 0, flops = 0;
    while (ms < task_ms) {       /* how many loops fill a task */
        double start = clock_ms();
        c.loops *= 2;
        flops = product->peak(c.loops);
        ms = clock_ms() - start;
    }
    int tasks = TASKS_A_THREAD * pool_threads(pool);
    for (int i = 0; i < ROUNDS; i++) {
        double start = clock_ms();
        pool_run(pool, compute_task, &c, tasks);
        double rate = flops * tasks / (clock_ms() - start) * 1e-9;
        if (rate > best) best = rate;
    }
    return best;
}

typedef struct reading {
    const cpu_elements *elements;
    char *memory;
} reading;

static void touch_task(void *argument, int task, int worker) {
    const reading *r = argument;
    (void)worker;
    for (size_t i = 0; i < PIECE; i += 4096) r->memory[(size_t)task * PIECE + i] = 1;
}

static void read_task(void *argument, int task, int worker) {
    const reading *r = argument;
    (void)worker;
    r->elements->read(r->memory + (size_t)task * PIECE, PIECE);
}

static void copy_task(void *argument, int task, int worker) {
    const reading *r = argument;
    (void)worker;
    memcpy(r->memory + (size_t)(PIECES / 2 + task) * PIECE, r->memory + (size_t)task * PIECE, PIECE);
}

static double measure_memory(pool *pool, pool_task task, int tasks, int directions, reading *r) {
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double start = clock_ms();
        pool_run(pool, task, r, tasks);
        double rate = (double)directions * PIECE * tasks / (clock_ms() - start) * 1e-6;
        if (rate > best) best = rate;
    }
    return best;
}

openpi_status cpu_roof(device *device, dtype type, device_roofs *out, openpi_error *error) {
    const cpu_device *self = (const cpu_device *)device;
    const cpu_kernels *kernels = self->kernels;
    (void)type;
    *out = (device_roofs){0};
    if (!kernels) return OPENPI_OK;
    out->f32_tflops = measure_compute(self->pool, kernels->product[0][0]);
    if (kernels->product[1][WEIGHT_BF16])
        out->bf16_tflops = measure_compute(self->pool, kernels->product[1][WEIGHT_BF16]);
    char *memory = cpu_memory_take((size_t)PIECE * PIECES);
    if (!memory) return report_no_memory(error, (size_t)PIECE * PIECES, "measuring the memory's speed");
    reading r = {kernels->elements, memory};
    pool_run(self->pool, touch_task, &r, PIECES);
    out->read_gbs = measure_memory(self->pool, read_task, PIECES, 1, &r);
    out->copy_gbs = measure_memory(self->pool, copy_task, PIECES / 2, 2, &r);
    cpu_memory_give(memory);
    return OPENPI_OK;
}
