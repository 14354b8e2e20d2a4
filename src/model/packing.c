/* From jobs to packed weights: one parallel pass over all matrices, whose tasks are numbered across them,
 * so that no thread waits at a matrix's end. The backend's packer reads rows from the file (or the
 * generator) and writes them into the block: there is no second copy of the model.
 *
 * A device that can generate synthetic matrices itself does, without tasks. */
#include "model/packing.h"

#include <stdlib.h>
#include <string.h>

#include "base/first_failure.h"
#include "base/report.h"
#include "model/damage.h"
#include "model/synth.h"

enum { BLOCKS_PER_TASK = 8, SLICES = 64 };

/* A matrix that the threads pack, and which tasks belong to it. */
typedef struct piece {
    const matrix_job *job;
    int blocks, first_task;
    size_t scales;                         /* the first of its own among packing.scales                     */
} piece;

typedef struct packing {
    device *device;
    piece *pieces;
    int piece_count, tasks, generated;     /* generated: matrices that the device has made itself           */
    int *stage_tasks;                      /* [stages + 1]: the first task of each stage                    */
    char *scratch;                         /* [threads][scratch_bytes]: of the backend, then a row of fp32  */
    size_t scratch_bytes;
    float *scales;                         /* of all pieces, before they are uploaded                       */
    size_t scale_count;
    int base;                              /* first task of this slice                                      */
    first_failure failure;                 /* of a task                                                     */
    atomic_int *damaged;
} packing;

typedef struct row_source {
    const matrix_job *job;
    const weight_format *format;
    float *row, *scales;                /* where there is an encoder: [k] scratch; of all the matrix's rows */
    atomic_int *damaged;
} row_source;

static int smaller(int a, int b) { return a < b ? a : b; }

static size_t align_64(size_t bytes) { return (bytes + 63) & ~(size_t)63; }

/* Logical rows of a job as format->source, wherever they lie. Whole rows of a tensor are read at once. */
static void read_values(const row_source *source, int row, int count, void *out) {
    const matrix_job *job = source->job;
    dtype type = source->format->source;
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
            tensor_read(t, type, at, elements, out);
            if (!tensor_is_generated(t)) damage_look(type, out, (size_t)elements, source->damaged);
            out = (char *)out + (size_t)elements * dtype_bytes(type);
            row += rows;
            count -= rows;
        }
    }
}

/* matrix_source: logical rows of a job, as codes. */
static void read_rows(const void *context, int row, int count, void *out) {
    const row_source *source = context;
    int k = source->job->matrix->k;
    size_t bytes = weight_row_bytes(source->format, k), groups = (size_t)weight_groups(source->format, k);
    if (!source->format->encode) {
        read_values(source, row, count, out);
        return;
    }
    for (int i = 0; i < count; i++) {
        read_values(source, row + i, 1, source->row);
        weight_encode(source->format, source->row, k, (char *)out + (size_t)i * bytes,
                      source->scales + (size_t)(row + i) * groups);
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
    const backend *backend = p->device->backend;
    char *scratch = p->scratch + (size_t)worker * p->scratch_bytes;
    row_source rows = {.job = job,
                       .format = &weight_formats[job->matrix->type],
                       .row = (float *)(scratch + align_64(backend->matrix_scratch(p->device, job->matrix))),
                       .scales = p->scales + found->scales,
                       .damaged = p->damaged};
    matrix_source source = {read_rows, &rows};
    openpi_status status =
        backend->matrix_pack(p->device, job->matrix, first, count, &source, job->to, scratch, &error);
    if (status != OPENPI_OK) first_failure_keep(&p->failure, &error);
}

/* 1: nothing of it is stored, and the device can make it itself. */
static int is_generated(const device *device, const matrix_job *job) {
    int generated = device->backend->matrix_generate != NULL && !job->computed &&
                    !weight_formats[job->matrix->type].encode;
    for (int i = 0; i < job->part_count; i++) generated &= tensor_is_generated(job->parts[i]);
    return generated;
}

static openpi_status generate(device *device, const matrix_job *job, openpi_error *error) {
    generated_matrix from = {.count = job->part_count, .column = job->column, .row_length = job->row_length};
    for (int i = 0; i < job->part_count; i++) {
        const tensor *t = job->parts[i];
        from.parts[i] = (generated_part){.key = t->key,
                                         .offset = t->offset,
                                         .scale = t->scale,
                                         .raise = SYNTH_RAISE,
                                         .raise_from = t->raise_from,
                                         .rows = job->rows[i]};
    }
    return device->backend->matrix_generate(device, job->matrix, &from, job->to, error);
}

static size_t job_scales(const matrix_job *job) {
    const matrix *m = job->matrix;
    return (size_t)m->n * (size_t)weight_groups(&weight_formats[m->type], m->k);
}

static int job_stage(const matrix_job *job) {
    int stage = 0;
    for (int i = 0; i < job->part_count; i++)
        if (tensor_stage(job->parts[i]) > stage) stage = tensor_stage(job->parts[i]);
    return stage;
}

static int is_sequential(const matrix_job *job) {
    return job->part_count == 1 && tensor_is_sequential(job->parts[0]);
}

static void add_piece(packing *p, const matrix_job *job) {
    const backend *backend = p->device->backend;
    const matrix *m = job->matrix;
    int blocks = backend->matrix_blocks(p->device, m);
    size_t bytes = align_64(backend->matrix_scratch(p->device, m));
    if (weight_formats[m->type].encode) bytes += align_64((size_t)m->k * sizeof(float));
    if (bytes > p->scratch_bytes) p->scratch_bytes = bytes;
    p->pieces[p->piece_count++] = (piece){job, blocks, p->tasks, p->scale_count};
    p->tasks += (blocks + BLOCKS_PER_TASK - 1) / BLOCKS_PER_TASK;
    p->scale_count += job_scales(job);
}

/* Every matrix becomes a piece, or the device's, or is left to pack_sequential; pieces in the order of their
 * stages. */
static openpi_status share_out(packing *p, const matrix_job *jobs, int count, int stages,
                               openpi_error *error) {
    for (int stage = 0; stage < stages; stage++) {
        p->stage_tasks[stage] = p->tasks;
        for (int i = 0; i < count; i++) {
            if (job_stage(&jobs[i]) != stage || is_sequential(&jobs[i])) continue;
            if (is_generated(p->device, &jobs[i])) {
                TRY(generate(p->device, &jobs[i], error));
                p->generated++;
            } else {
                add_piece(p, &jobs[i]);
            }
        }
    }
    p->stage_tasks[stages] = p->tasks;
    return OPENPI_OK;
}

/* Rows that are read in order and lie in order, by the calling thread; progress in bytes of the result. */
static openpi_status pack_sequential(const packing *p, const matrix_job *job, openpi_progress progress,
                                     void *user, openpi_error *error) {
    enum { ROWS = 256 };
    const matrix *m = job->matrix;
    const weight_format *format = &weight_formats[m->type];
    size_t row = weight_row_bytes(format, m->k);
    openpi_status status = OPENPI_OK;
    if (!m->raw || format->encode || m->k != job->row_length)
        return report(error, OPENPI_UNSUPPORTED,
                      "tensor \"%s\" can only be read in order, expected a table of plain rows",
                      job->parts[0]->name);
    char *rows = malloc(ROWS * row);
    if (!rows) return report_no_memory(error, ROWS * row, "packing weights");
    for (int at = 0; at < m->n && status == OPENPI_OK; at += ROWS) {
        int count = smaller(ROWS, m->n - at);
        int64_t elements = (int64_t)count * m->k;
        tensor_read(job->parts[0], format->source, (int64_t)at * m->k, elements, rows);
        damage_look(format->source, rows, (size_t)elements, p->damaged);
        status = p->device->backend->upload(p->device, (char *)job->to + (size_t)at * row, rows,
                                            (size_t)count * row, error);
        if (progress && status == OPENPI_OK)
            progress(user, "reading the embedding", (uint64_t)(at + count) * row, (uint64_t)m->n * row);
    }
    free(rows);
    return status;
}

/* The pool has no progress of its own, so a stage's work is cut into slices with a report after each. */
static void pack_stage(packing *p, int stage, int stages, pool *pool, openpi_progress progress, void *user) {
    int first = p->stage_tasks[stage], tasks = p->stage_tasks[stage + 1] - first,
        slices = (SLICES + stages - 1) / stages;
    for (int slice = 0; slice < slices && !first_failure_there(&p->failure); slice++) {
        p->base = first + (int)((int64_t)tasks * slice / slices);
        int end = first + (int)((int64_t)tasks * (slice + 1) / slices);
        pool_run(pool, pack_task, p, end - p->base);
        if (progress)
            progress(user, "packing weights", (uint64_t)(p->generated + end),
                     (uint64_t)(p->generated + p->tasks));
    }
}

static openpi_status pack_pieces(packing *p, const tensors *tensors, pool *pool, openpi_progress progress,
                                 void *user, openpi_error *error) {
    size_t bytes = p->scratch_bytes * (size_t)pool_threads(pool);
    int stages = tensors_stages(tensors);
    openpi_status status = OPENPI_OK;
    p->scratch = aligned_alloc(64, bytes ? bytes : 64);
    if (!p->scratch) return report_no_memory(error, bytes, "packing weights");
    for (int stage = 0; stage < stages && status == OPENPI_OK && !first_failure_there(&p->failure);
         stage++) {
        status = tensors_stage(tensors, stage, pool, error);
        if (status == OPENPI_OK) pack_stage(p, stage, stages, pool, progress, user);
    }
    free(p->scratch);
    return status == OPENPI_OK ? first_failure_report(&p->failure, error) : status;
}

/* The scales that packing has computed. */
static openpi_status upload_scales(const packing *p, openpi_error *error) {
    for (int i = 0; i < p->piece_count; i++) {
        const piece *piece = &p->pieces[i];
        size_t bytes = job_scales(piece->job) * sizeof *p->scales;
        if (bytes)
            TRY(p->device->backend->upload(p->device, piece->job->scales_to, p->scales + piece->scales, bytes,
                                           error));
    }
    return OPENPI_OK;
}

/* All pieces, once they are known. */
static openpi_status pack_all(packing *p, const tensors *tensors, pool *pool, openpi_progress progress,
                              void *user, openpi_error *error) {
    size_t bytes = p->scale_count * sizeof *p->scales;
    p->scales = malloc(bytes ? bytes : 1);
    if (!p->scales) return report_no_memory(error, bytes, "packing weights");
    openpi_status status = pack_pieces(p, tensors, pool, progress, user, error);
    if (status == OPENPI_OK) status = upload_scales(p, error);
    free(p->scales);
    return status;
}

openpi_status pack_matrices(device *device, const tensors *tensors, const matrix_job *jobs, int count,
                            pool *pool, openpi_progress progress, void *progress_user, atomic_int *damaged,
                            openpi_error *error) {
    packing p = {.device = device, .damaged = damaged};
    int stages = tensors_stages(tensors);
    size_t bytes = (size_t)count * sizeof *p.pieces,
           stage_bytes = ((size_t)stages + 1) * sizeof *p.stage_tasks;
    openpi_status status = OPENPI_OK;
    p.pieces = malloc(bytes);
    p.stage_tasks = malloc(stage_bytes);
    if (!p.pieces || !p.stage_tasks) status = report_no_memory(error, bytes + stage_bytes, "packing weights");
    if (status == OPENPI_OK) status = share_out(&p, jobs, count, stages, error);
    if (status == OPENPI_OK) status = pack_all(&p, tensors, pool, progress, progress_user, error);
    for (int i = 0; i < count && status == OPENPI_OK; i++)
        if (is_sequential(&jobs[i]))
            status = pack_sequential(&p, &jobs[i], progress, progress_user, error);
    free(p.pieces);
    free(p.stage_tasks);
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
