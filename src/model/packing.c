/* From jobs to packed weights: one parallel pass over all matrices, whose tasks are numbered across them,
 * so that no thread waits at a matrix's end. The backend's packer reads rows from the file (or the
 * generator) and writes them into the block: there is no second copy of the model.
 *
 * Matrices of a JAX checkpoint are packed chain after chain (chains.h): a thread decodes a layer of its
 * chain's arrays, packs what is made of it, and goes on to the next layer.
 *
 * A device that can generate synthetic matrices itself does, without tasks. */
#include "model/packing.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/first_failure.h"
#include "base/report.h"
#include "checkpoint/damage.h"
#include "model/chains.h"
#include "ops/scalar.h"

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
    int chained;                           /* the first piece of those in chains                            */
    chains chains;                         /* chains for the other matrices                                 */
    atomic_ullong decoded;                 /* bytes, for the chains so far                                  */
    load_progress progress;                /* NULL: nobody asks                                             */
    void *progress_user;
    char *scratch;                         /* [threads][scratch_bytes]: of the backend, then a row of fp32  */
    size_t scratch_bytes;
    float *scales;                         /* all pieces' scales, before they are uploaded                  */
    size_t scale_count;
    int base;                              /* first task of this slice                                      */
    first_failure failure;                 /* the first failed task                                         */
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

/* 2^power, |power| <= 126 */
static float power_of_two(int power) {
    uint32_t bits = (uint32_t)(127 + power) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Logical rows row … row+count-1, in place. */
static void scale_rows(const matrix_job *job, dtype type, int row, int count, void *values) {
    int k = job->matrix->k;
    for (int r = 0; r < count; r++) {
        int whole = scaling_power(&job->by_row, row + r);
        for (int i = 0; i < k; i++) {
            int power = whole + scaling_power(&job->by_column, i);
            size_t at = (size_t)r * (size_t)k + (size_t)i;
            if (power) store(values, type, at, load(values, type, at) * power_of_two(power));
        }
    }
}

static int is_scaled(const matrix_job *job) { return job->by_row.powers || job->by_column.powers; }

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
            if (is_scaled(job)) scale_rows(job, type, row, rows, out);
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

static void pack_blocks(packing *p, const piece *piece, int first, int count, int worker) {
    const matrix_job *job = piece->job;
    const backend *backend = p->device->backend;
    openpi_error error = OPENPI_ERROR_INIT;
    char *scratch = p->scratch + (size_t)worker * p->scratch_bytes;
    row_source rows = {.job = job,
                       .format = &weight_formats[job->matrix->type],
                       .row = (float *)(scratch + align_64(backend->matrix_scratch(p->device, job->matrix))),
                       .scales = p->scales + piece->scales,
                       .damaged = p->damaged};
    matrix_source source = {read_rows, &rows};
    openpi_status status =
        backend->matrix_pack(p->device, job->matrix, first, count, &source, job->to, scratch, &error);
    if (status != OPENPI_OK) first_failure_keep(&p->failure, &error);
}

static void pack_task(void *argument, int task, int worker) {
    packing *p = argument;
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
    int first = (task - found->first_task) * BLOCKS_PER_TASK;
    pack_blocks(p, found, first, smaller(found->blocks - first, BLOCKS_PER_TASK), worker);
}

/* 1: nothing of it is stored, and the device can make it itself. */
static int is_generated(const device *device, const matrix_job *job) {
    int generated = device->backend->matrix_generate != NULL && !job->computed && !is_scaled(job) &&
                    !weight_formats[job->matrix->type].encode;
    for (int i = 0; i < job->part_count; i++) generated &= tensor_is_generated(job->parts[i]);
    return generated;
}

static openpi_status generate(device *device, const matrix_job *job, openpi_error *error) {
    generated_matrix from = {.count = job->part_count, .column = job->column, .row_length = job->row_length};
    for (int i = 0; i < job->part_count; i++) {
        const tensor_recipe *r = tensor_recipe_of(job->parts[i]);
        from.parts[i] = (generated_part){.key = r->key,
                                         .offset = r->offset,
                                         .scale = r->scale,
                                         .raise = r->raise,
                                         .raise_from = r->raise_from,
                                         .rows = job->rows[i]};
    }
    return device->backend->matrix_generate(device, job->matrix, &from, job->to, error);
}

static size_t job_scales(const matrix_job *job) {
    const matrix *m = job->matrix;
    return (size_t)m->n * (size_t)weight_groups(&weight_formats[m->type], m->k);
}

/* `tasks`: how many of them the pool's loop over all pieces gives it. */
static void add_piece(packing *p, const matrix_job *job, int tasks) {
    const matrix *m = job->matrix;
    size_t bytes = align_64(p->device->backend->matrix_scratch(p->device, m));
    if (weight_formats[m->type].encode) bytes += align_64((size_t)m->k * sizeof(float));
    if (bytes > p->scratch_bytes) p->scratch_bytes = bytes;
    p->pieces[p->piece_count++] =
        (piece){job, p->device->backend->matrix_blocks(p->device, m), p->tasks, p->scale_count};
    p->tasks += tasks;
    p->scale_count += job_scales(job);
}

/* Every matrix becomes a piece, or the device's. Those of chains come last, in the order of chains.jobs. */
static openpi_status share_out(packing *p, const matrix_job *jobs, int count, openpi_error *error) {
    for (int i = 0; i < count; i++) {
        int blocks = p->device->backend->matrix_blocks(p->device, jobs[i].matrix);
        if (chains_take(&jobs[i])) continue;
        if (is_generated(p->device, &jobs[i])) {
            TRY(generate(p->device, &jobs[i], error));
            p->generated++;
        } else {
            add_piece(p, &jobs[i], (blocks + BLOCKS_PER_TASK - 1) / BLOCKS_PER_TASK);
        }
    }
    p->chained = p->piece_count;
    for (int i = 0; i < p->chains.job_count; i++) add_piece(p, p->chains.jobs[i], 0);
    return OPENPI_OK;
}

/* Reports progress, on the thread that loads; the caller may cancel. */
static void tell(packing *p, const char *what, uint64_t done, uint64_t total) {
    openpi_error error = OPENPI_ERROR_INIT;
    if (!p->progress || !p->progress(p->progress_user, what, done, total)) return;
    report(&error, OPENPI_CANCELLED, "loading the weights was cancelled");
    first_failure_keep(&p->failure, &error);
}

/* The pool has no progress of its own, so the work is cut into slices with a report after each. */
static void pack_pieces(packing *p, pool *pool) {
    for (int slice = 0; slice < SLICES && !first_failure_there(&p->failure); slice++) {
        p->base = (int)((int64_t)p->tasks * slice / SLICES);
        int end = (int)((int64_t)p->tasks * (slice + 1) / SLICES);
        pool_run(pool, pack_task, p, end - p->base);
        tell(p, "packing weights", (uint64_t)(p->generated + end), (uint64_t)(p->generated + p->tasks));
    }
}

/* ---- chains ---- */

/* A thread at work on a chain. */
typedef struct chain_worker {
    packing *packing;
    int worker;
} chain_worker;

/* decode_watch.decoded. Worker 0 is the thread that wants to hear of progress. */
static void add_decoded(void *user, uint64_t bytes) {
    const chain_worker *w = user;
    packing *p = w->packing;
    uint64_t decoded = atomic_fetch_add(&p->decoded, bytes) + bytes, all = p->chains.bytes;
    if (!w->worker) tell(p, "decoding weights", decoded < all ? decoded : all, all);
}

/* Blocks in ascending order: a sequential tensor is decoded while it is packed. */
static void pack_chained(chain_worker *w, const piece *piece) {
    packing *p = w->packing;
    const matrix_job *job = piece->job;
    uint64_t bytes = 0, told = 0;
    for (int i = 0; i < job->part_count; i++)
        if (tensor_is_sequential(job->parts[i])) bytes += tensor_stored_bytes(job->parts[i]);
    for (int first = 0; first < piece->blocks && !first_failure_there(&p->failure);
         first += BLOCKS_PER_TASK) {
        int count = smaller(piece->blocks - first, BLOCKS_PER_TASK);
        pack_blocks(p, piece, first, count, w->worker);
        uint64_t now = bytes / (uint64_t)piece->blocks * (uint64_t)(first + count);
        if (now > told) add_decoded(w, now - told);
        told = now;
    }
}

static void chain_task(void *argument, int which, int worker) {
    packing *p = argument;
    const chain *chain = &p->chains.list[which];
    chain_worker w = {p, worker};
    decode_watch watch = {add_decoded, &w};
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = OPENPI_OK;
    for (int i = chain->first; i < chain->first + chain->count && status == OPENPI_OK; i++) {
        const piece *piece = &p->pieces[p->chained + i];
        if (first_failure_there(&p->failure)) break;
        for (int part = 0; part < piece->job->part_count && status == OPENPI_OK; part++)
            status = tensor_hold(piece->job->parts[part], &watch, &error);
        if (status == OPENPI_OK) pack_chained(&w, piece);
    }
    if (status != OPENPI_OK) first_failure_keep(&p->failure, &error);
    for (int i = chain->first; i < chain->first + chain->count; i++)
        for (int part = 0; part < p->chains.jobs[i]->part_count; part++)
            tensor_release(p->chains.jobs[i]->parts[part]);
}

static void pack_chains(packing *p, pool *pool) {
    if (!p->chains.count || first_failure_there(&p->failure)) return;
    pool_run(pool, chain_task, p, p->chains.count);
    tell(p, "decoding weights", p->chains.bytes, p->chains.bytes);
}

/* ---- all ---- */

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
static openpi_status pack_all(packing *p, pool *pool, openpi_error *error) {
    size_t scales = p->scale_count * sizeof *p->scales,
           scratch = p->scratch_bytes * (size_t)pool_threads(pool);
    p->scales = malloc(scales ? scales : 1);
    p->scratch = aligned_alloc(64, scratch ? scratch : 64);
    openpi_status status = OPENPI_OK;
    if (!p->scales || !p->scratch) status = report_no_memory(error, scales + scratch, "packing weights");
    if (status == OPENPI_OK) {
        pack_pieces(p, pool);
        pack_chains(p, pool);
        status = first_failure_report(&p->failure, error);
    }
    if (status == OPENPI_OK) status = upload_scales(p, error);
    free(p->scales);
    free(p->scratch);
    return status;
}

openpi_status pack_matrices(device *device, const matrix_job *jobs, int count, pool *pool,
                            load_progress progress, void *progress_user, atomic_int *damaged,
                            openpi_error *error) {
    packing p = {
        .device = device, .damaged = damaged, .progress = progress, .progress_user = progress_user};
    size_t bytes = (size_t)(count + 1) * sizeof *p.pieces;
    openpi_status status = chains_make(jobs, count, &p.chains, error);
    p.pieces = malloc(bytes);
    if (status == OPENPI_OK && !p.pieces) status = report_no_memory(error, bytes, "packing weights");
    if (status == OPENPI_OK) status = share_out(&p, jobs, count, error);
    if (status == OPENPI_OK) status = pack_all(&p, pool, error);
    chains_free(&p.chains);
    free(p.pieces);
    return status;
}

/* A gain 1 + w becomes by·(1 + w). */
static void scale_vector(const scaling *s, float *values, int count) {
    for (int i = 0; s->powers && i < count; i++) {
        double by = ldexp(1, scaling_power(s, i)), one = i < s->plus_one;
        values[i] = (float)(by * (one + (double)values[i]) - one);
    }
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
        scale_vector(&job->by, row, job->part_count ? job->count : 0);
        const float *values = job->computed ? job->computed : row;
        damage_look(DTYPE_F32, values, (size_t)job->count, damaged);
        status = device->backend->upload(device, job->to, values, (size_t)job->count * sizeof(float), error);
    }
    free(row);
    return status;
}
