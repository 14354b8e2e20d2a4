/* The CPU backend: opens the best level of kernels that the processor has, and runs ops one after the
 * other, each shared out over the engine's threads.
 *
 * Note: level "reference" runs the scalar definitions of src/ops/reference*.c themselves, on their
 * canonical layouts, so `--isa reference` computes the model exactly as it is defined. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/blocking.h"
#include "backend/cpu/device.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/layout.h"
#include "backend/cpu/levels.h"
#include "backend/cpu/memory.h"
#include "backend/cpu/raw.h"
#include "backend/cpu/roof.h"
#include "backend/cpu/run.h"
#include "base/clock.h"
#include "base/free_memory.h"
#include "base/guess.h"
#include "base/report.h"
#include "base/threads.h"
#include "ops/reference.h"

static const cpu_device *self_of(const device *device) { return (const cpu_device *)device; }

static int cpu_devices(openpi_device *devices, int capacity) {
    char brand[49];
    if (capacity < 1) return 1;
    cpu_brand(brand);
    devices[0] = (openpi_device){.name = "cpu", .usable = 1};
    long threads = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES),
         page = sysconf(_SC_PAGESIZE);
    snprintf(devices[0].description, sizeof devices[0].description, "%s, %ld threads", brand, threads);
    strcpy(devices[0].path, cpu_isa_name(cpu_isa_choose(cpu_isa_count() - 1)));
    if (pages > 0 && page > 0) devices[0].memory_bytes = (uint64_t)pages * (uint64_t)page;
    return 1;
}

static openpi_status cpu_facts(device *device, device_facts *out, openpi_error *error) {
    char brand[49];
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    (void)device, (void)error;
    *out = (device_facts){0};
    cpu_brand(brand);
    snprintf(out->name, sizeof out->name, "%s", brand);
    if (pages > 0 && page > 0) out->memory_bytes = (uint64_t)pages * (uint64_t)page;
    return OPENPI_OK;
}

/* The names are those of this machine's architecture. */
static openpi_status unknown_isa(const char *name, openpi_error *error) {
    char names[100];
    cpu_isa_names(names, sizeof names);
    report(error, OPENPI_BAD_ARGUMENT, "isa is \"%s\", expected %s", name, names);
    return guess_add(error, OPENPI_BAD_ARGUMENT, name, names);
}

static openpi_status cpu_open(const char *which, const device_options *options, device **out,
                              openpi_error *error) {
    int cap = cpu_isa_count() - 1;
    if (which && *which && strcmp(which, "cpu"))
        return report(error, OPENPI_NO_DEVICE, "there is no device \"%s\", expected \"cpu\"", which);
    if (options->path)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "path is \"%s\", expected none on cpu: path is for a GPU's kernels", options->path);
    if (options->as_card)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "as_card is \"%s\", expected none on cpu: only a GPU stands for another card",
                      options->as_card);
    if (options->isa) {
        cap = cpu_isa_find(options->isa);
        if (cap < 0) return unknown_isa(options->isa, error);
    }
    cpu_device *self = calloc(1, sizeof *self);
    if (!self) return report_no_memory(error, sizeof *self, "the device");
    self->base.backend = &backend_cpu;
    self->pool = options->pool;
    int isa = cpu_isa_choose(cap);
    self->kernels = cpu_kernels_of(isa);
    strcpy(self->base.path, cpu_isa_name(isa));
    *out = &self->base;
    return OPENPI_OK;
}

static void cpu_close(device *device) { free(device); }

static openpi_status cpu_allocate(device *device, size_t bytes, const char *what, void **out,
                                  openpi_error *error) {
    pool *pool = self_of(device)->pool;
    uint64_t unused = cpu_memory_is_mapped(bytes) ? free_memory() : UINT64_MAX;
    if (bytes > unused)
        return report(error, OPENPI_NO_MEMORY, "out of memory: %zu bytes for %s, %" PRIu64 " bytes are free",
                      bytes, what, unused);
    void *memory = cpu_memory_take(bytes);
    if (!memory && unused < UINT64_MAX)
        return report(error, OPENPI_NO_MEMORY,
                      "out of memory: %zu bytes for %s, %" PRIu64
                      " bytes are free but this process may not have them (ulimit)",
                      bytes, what, unused);
    if (!memory) return report_no_memory(error, bytes, what);
    if (pool) cpu_memory_touch(memory, bytes, pool);
    *out = memory;
    return OPENPI_OK;
}

static void cpu_release(device *device, void *memory) {
    (void)device;
    cpu_memory_give(memory);
}

static openpi_status cpu_copy(device *device, void *to, const void *from, size_t bytes, openpi_error *error) {
    (void)device, (void)error;
    if (bytes && to != from) memcpy(to, from, bytes);
    return OPENPI_OK;
}

static openpi_status cpu_copy_rows(device *device, void *to, const void *from, size_t pitch, size_t bytes,
                                   int rows, openpi_error *error) {
    (void)device, (void)error;
    for (size_t row = 0; row < (size_t)rows; row++)
        memcpy((char *)to + row * pitch, (const char *)from + row * pitch, bytes);
    return OPENPI_OK;
}

/* ---- weights: panels (layout.h), or row-major (raw.h) and for the reference ----------------- */

/* Every format: a level without a product for it decodes before each use (raw.h). */
static int cpu_takes_weights(const device *device, dtype type, weight_type weights, matrix_input input) {
    (void)device, (void)type, (void)weights, (void)input;
    return 1;
}

static size_t row_bytes(const matrix *matrix) {
    return weight_row_bytes(&weight_formats[matrix->type], matrix->k);
}

static int in_panels(const device *device, const matrix *matrix) {
    const cpu_kernels *kernels = self_of(device)->kernels;
    return kernels && !cpu_in_rows(kernels, matrix);
}

static size_t cpu_matrix_bytes(const device *device, const matrix *matrix) {
    if (in_panels(device, matrix))
        return (size_t)layout_panels(matrix) * layout_panel_bytes(matrix->type, matrix->k);
    return (size_t)matrix->n * row_bytes(matrix);
}

static int cpu_matrix_blocks(const device *device, const matrix *matrix) {
    return in_panels(device, matrix) ? layout_panels(matrix) : panels_of(matrix->n);
}

/* The rows of one panel, each beginning at a whole 32-bit word. */
static size_t source_row_bytes(const matrix *matrix) { return (row_bytes(matrix) + 3) / 4 * 4; }

static size_t cpu_matrix_scratch(const device *device, const matrix *matrix) {
    return in_panels(device, matrix) ? PANEL * source_row_bytes(matrix) + 4 : 0;
}

/* Reads the rows that become a panel's columns; consecutive rows are read at once. */
static void read_columns(const matrix *matrix, const int *rows, const matrix_source *source, char *scratch,
                         const void **columns) {
    size_t bytes = row_bytes(matrix);
    for (int c = 0; c < PANEL;) {
        int count = 1;
        if (rows[c] < 0) {
            columns[c++] = NULL;
            continue;
        }
        while (c + count < PANEL && rows[c + count] == rows[c] + count) count++;
        source->read(source->context, rows[c], count, scratch);
        for (int i = 0; i < count; i++, scratch += bytes) columns[c++] = scratch;
    }
}

static void pack_panel(const cpu_kernels *kernels, const matrix *matrix, int panel,
                       const matrix_source *source, char *to, char *scratch) {
    int rows[PANEL];
    const void *columns[PANEL];
    layout_columns(matrix, panel, rows);
    read_columns(matrix, rows, source, scratch, columns);
    cpu_pack_panel(kernels, matrix, columns, to);
}

static openpi_status cpu_matrix_pack(device *device, const matrix *matrix, int first, int count,
                                     const matrix_source *source, void *to, void *scratch,
                                     openpi_error *error) {
    const cpu_kernels *kernels = self_of(device)->kernels;
    size_t panel_bytes = layout_panel_bytes(matrix->type, matrix->k);
    (void)error;
    if (in_panels(device, matrix)) {
        for (int i = first; i < first + count; i++)
            pack_panel(kernels, matrix, i, source, (char *)to + (size_t)i * panel_bytes, scratch);
        return OPENPI_OK;
    }
    int row = first * PANEL, end = (first + count) * PANEL;
    if (end > matrix->n) end = matrix->n;
    if (row < end)
        source->read(source->context, row, end - row, (char *)to + (size_t)row * row_bytes(matrix));
    return OPENPI_OK;
}

/* ---- keys and values ----------------------------------------------------------------------------------- */

static size_t cpu_cache_bytes(const device *device, int capacity, int head_dim, dtype type) {
    if (self_of(device)->kernels) return layout_cache_bytes(capacity, head_dim, type);
    return (size_t)capacity * (size_t)head_dim * dtype_bytes(type);
}

static openpi_status cpu_cache_read(device *device, const kv_cache *cache, dtype type, int which, int sample,
                                    int rows, float *out, openpi_error *error) {
    int d = cache->head_dim, packed = self_of(device)->kernels != NULL;
    const char *block = (const char *)(which ? cache->v : cache->k) +
                        (size_t)sample * cpu_cache_bytes(device, cache->capacity, d, type);
    (void)error;
    for (int place = 0; place < rows; place++)
        for (int i = 0; i < d; i++) {
            size_t at = !packed ? (size_t)place * (size_t)d + (size_t)i
                        : which ? layout_value(type, cache->capacity, place, i)
                                : layout_key(type, d, place, i);
            if (type == DTYPE_BF16) *out++ = bf16_to_float(((const bf16 *)block)[at]);
            else *out++ = ((const float *)block)[at];
        }
    return OPENPI_OK;
}

/* ---- running ------------------------------------------------------------------------------------------- */

static size_t cpu_work_bytes(const device *device, const op *ops, int count) {
    const cpu_device *self = self_of(device);
    size_t most = 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = self->kernels ? cpu_op_bytes(self->kernels, self->pool, &ops[i])
                                     : reference_bytes(&ops[i]) * (size_t)pool_threads(self->pool);
        if (bytes > most) most = bytes;
    }
    return most;
}

static int cpu_candidates(const device *device, const op *op, candidate *out, int capacity) {
    const cpu_device *self = self_of(device);
    return self->kernels ? cpu_op_candidates(self->kernels, self->pool, op, out, capacity) : 0;
}

/* All choices run the same sources, cut differently. */
static uint64_t cpu_kernel_hash(const device *device, const char *name) {
    return self_of(device)->kernels && cpu_blocking_known(name) ? OPENPI_CPU_HASH : 0;
}

typedef struct row_loop {
    const op *op;
    int rows, step;
    char *scratch;               /* [threads][bytes] */
    size_t bytes;
} row_loop;

static void run_rows(void *argument, int task, int worker) {
    const row_loop *loop = argument;
    int first = task * loop->step, end = first + loop->step;
    reference_ops[loop->op->kind](loop->op, first, end < loop->rows ? end : loop->rows,
                                  loop->scratch + (size_t)worker * loop->bytes);
}

static void run_reference(pool *pool, const op *op, void *work) {
    row_loop loop = {op, *op_rows(op)->count, 1, work, reference_bytes(op)};
    loop.step = loop.rows / (pool_threads(pool) * 8) + 1;
    pool_run(pool, run_rows, &loop, (loop.rows + loop.step - 1) / loop.step);
}

static openpi_status cpu_run(device *device, op_list list, void *work, double *stage_ms,
                             openpi_error *error) {
    const cpu_device *self = self_of(device);
    const op *ops = list.ops;
    double since = stage_ms ? clock_ms() : 0;
    (void)error;
    for (int i = 0; i < list.count; i++) {
        if (self->kernels)
            cpu_op_run(self->kernels, self->pool, &ops[i], work);
        else
            run_reference(self->pool, &ops[i], work);
        if (stage_ms && (i + 1 == list.count || ops[i + 1].stage != ops[i].stage)) {
            double now = clock_ms();
            stage_ms[ops[i].stage] += now - since;
            since = now;
        }
    }
    return OPENPI_OK;
}

const backend backend_cpu = {
    .name = "cpu",
    .devices = cpu_devices,
    .open = cpu_open,
    .close = cpu_close,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy_rows = cpu_copy_rows,
    .takes_weights = cpu_takes_weights,
    .takes_row_scales = 1,
    .matrix_bytes = cpu_matrix_bytes,
    .matrix_blocks = cpu_matrix_blocks,
    .matrix_scratch = cpu_matrix_scratch,
    .matrix_pack = cpu_matrix_pack,
    .cache_bytes = cpu_cache_bytes,
    .cache_read = cpu_cache_read,
    .work_bytes = cpu_work_bytes,
    .run = cpu_run,
    .candidates = cpu_candidates,
    .kernel_hash = cpu_kernel_hash,
    .facts = cpu_facts,
    .roof = cpu_roof,
};
