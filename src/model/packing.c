/* From jobs to packed weights: one parallel pass over all matrices, whose tasks are numbered through, so that no thread
 * waits at a matrix's end. Rows go from the file (or the generator) straight through the backend's packer into the block:
 * there is no second copy of the model.
 *
 * Synthetic matrices have no tasks where the device makes them itself. */
#include "model/packing.h"

#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "model/damage.h"
#include "model/synth.h"

enum { BLOCKS_PER_TASK = 8, SLICES = 64 };

/* A matrix that the threads pack, and which tasks are its. */
typedef struct piece {
    const matrix_job *job;
    int blocks, first_task;
} piece;

typedef struct packing {
    device *device;
    piece *pieces;
    int piece_count, tasks, generated;     /* generated: matrices that the device has made itself             */
    char *scratch;                         /* [threads][scratch_bytes]                                        */
    size_t scratch_bytes;
    int base;                              /* first task of this slice                                        */
    atomic_int failed, *damaged;
    openpi_error error;                    /* of the task that failed first                                   */
} packing;

typedef struct row_source {
    const matrix_job *job;
    atomic_int *damaged;
} row_source;

static int smaller(int a, int b) { return a < b ? a : b; }

/* matrix_source: logical rows of a job, wherever they lie. Whole rows of a tensor are read at once. */
static void read_rows(const void *context, int row, int count, void *out) {
    const row_source *source = context;
    const matrix_job *job = source->job;
    dtype type = job->matrix->type;
    int k = job->matrix->k, first = 0, most = k == job->row_length ? count : 1;
    if (job->computed) {
        memcpy(out, job->computed + (size_t)row * (size_t)k, (size_t)count * (size_t)k * dtype_bytes(type));
        damage_look(type, out, (size_t)count * (size_t)k, source->damaged);
    }
    for (int part = 0; part < job->part_count; first += job->rows[part++]) {
        const tensor *t = job->parts[part];
        while (count && row - first < job->rows[part]) {
            int rows = smaller(smaller(count, most), job->rows[part] - (row - first));
            int64_t at = (int64_t)(row - first) * job->row_length + job->column, elements = (int64_t)rows * k;
            if (type == DTYPE_BF16) tensor_read_bf16(t, at, elements, out);
            else tensor_read_f32(t, at, elements, out);
            if (!tensor_is_generated(t)) damage_look(type, out, (size_t)elements, source->damaged);
            out = (char *)out + (size_t)elements * dtype_bytes(type);
            row += rows;
            count -= rows;
        }
    }
}

static void pack_task(void *argument, int task, int worker) {
    packing *p = argument;
    openpi_error error = OPENPI_ERROR_INIT;
    int low = 0, high = p->piece_count - 1;
    task += p->base;
    while (low < high) {                   /* the last piece that starts at or before this task */
        int middle = (low + high + 1) / 2;
        if (p->pieces[middle].first_task <= task)
            low = middle;
        else
            high = middle - 1;
    }
    const piece *found = &p->pieces[low];
    const matrix_job *job = found->job;
    int first = (task - found->first_task) * BLOCKS_PER_TASK;
    int count = found->blocks - first < BLOCKS_PER_TASK ? found->blocks - first : BLOCKS_PER_TASK;
    row_source rows = {job, p->damaged};
    matrix_source source = {read_rows, &rows};
    openpi_status status = p->device->backend->matrix_pack(p->device, job->matrix, first, count, &source, job->to,
                                                           p->scratch + (size_t)worker * p->scratch_bytes, &error);
    int none = 0;
    if (status != OPENPI_OK && atomic_compare_exchange_strong(&p->failed, &none, 1)) p->error = error;
}

/* 1: nothing of it is stored, and the device can make it itself. */
static int is_generated(const device *device, const matrix_job *job) {
    int generated = device->backend->matrix_generate != NULL && !job->computed;
    for (int i = 0; i < job->part_count; i++) generated &= tensor_is_generated(job->parts[i]);
    return generated;
}

static openpi_status generate(device *device, const matrix_job *job, openpi_error *error) {
    generated_matrix from = {.count = job->part_count, .column = job->column, .row_length = job->row_length};
    for (int i = 0; i < job->part_count; i++) {
        const tensor *t = job->parts[i];
        from.parts[i] = (generated_part){t->key, t->offset, t->scale, SYNTH_RAISE, t->raise_from, job->rows[i]};
    }
    return device->backend->matrix_generate(device, job->matrix, &from, job->to, error);
}

/* Every matrix becomes a piece, or the device's. */
static openpi_status share_out(packing *p, const matrix_job *jobs, int count, openpi_error *error) {
    const backend *backend = p->device->backend;
    for (int i = 0; i < count; i++) {
        const matrix_job *job = &jobs[i];
        if (is_generated(p->device, job)) {
            TRY(generate(p->device, job, error));
            p->generated++;
            continue;
        }
        int blocks = backend->matrix_blocks(p->device, job->matrix);
        size_t bytes = backend->matrix_scratch(p->device, job->matrix);
        if (bytes > p->scratch_bytes) p->scratch_bytes = bytes;
        p->pieces[p->piece_count++] = (piece){job, blocks, p->tasks};
        p->tasks += (blocks + BLOCKS_PER_TASK - 1) / BLOCKS_PER_TASK;
    }
    return OPENPI_OK;
}

static openpi_status pack_pieces(packing *p, pool *pool, openpi_progress progress, void *user, openpi_error *error) {
    p->scratch_bytes = (p->scratch_bytes + 63) & ~(size_t)63;
    size_t bytes = p->scratch_bytes * (size_t)pool_threads(pool);
    p->scratch = aligned_alloc(64, bytes ? bytes : 64);
    if (!p->scratch) return report_no_memory(error, bytes, "packing weights");
    /* The pool reports to nobody, so the work goes in slices and progress is told in between. */
    for (int slice = 0; slice < SLICES && !atomic_load(&p->failed); slice++) {
        p->base = (int)((int64_t)p->tasks * slice / SLICES);
        int end = (int)((int64_t)p->tasks * (slice + 1) / SLICES);
        pool_run(pool, pack_task, p, end - p->base);
        if (progress) progress(user, "packing weights", (uint64_t)(p->generated + end), (uint64_t)(p->generated + p->tasks));
    }
    free(p->scratch);
    if (!atomic_load(&p->failed)) return OPENPI_OK;
    return report_again(error, &p->error);
}

openpi_status pack_matrices(device *device, const matrix_job *jobs, int count, pool *pool, openpi_progress progress,
                            void *progress_user, atomic_int *damaged, openpi_error *error) {
    packing p = {.device = device, .damaged = damaged, .error = OPENPI_ERROR_INIT};
    size_t bytes = (size_t)count * sizeof *p.pieces;
    p.pieces = malloc(bytes);
    if (!p.pieces) return report_no_memory(error, bytes, "packing weights");
    openpi_status status = share_out(&p, jobs, count, error);
    if (status == OPENPI_OK) status = pack_pieces(&p, pool, progress, progress_user, error);
    free(p.pieces);
    return status;
}

openpi_status pack_vectors(device *device, const vector_job *jobs, int count, atomic_int *damaged,
                           openpi_error *error) {
    int longest = 0;
    for (int i = 0; i < count; i++) {
        if (jobs[i].count > longest) longest = jobs[i].count;
    }
    size_t bytes = (size_t)longest * sizeof(float);
    float *row = malloc(bytes);
    openpi_status status = OPENPI_OK;
    if (!row) return report_no_memory(error, bytes, "packing weights");
    for (int i = 0; i < count && status == OPENPI_OK; i++) {
        const vector_job *job = &jobs[i];
        float *to = row;
        for (int part = 0; part < job->part_count; to += job->parts[part++]->count)
            tensor_read_f32(job->parts[part], 0, job->parts[part]->count, to);
        const float *values = job->computed ? job->computed : row;
        damage_look(DTYPE_F32, values, (size_t)job->count, damaged);
        status = device->backend->upload(device, job->to, values, (size_t)job->count * sizeof(float), error);
    }
    free(row);
    return status;
}
