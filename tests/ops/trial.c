/* An op on a device, compared with its definition.
 *
 * Every operand stands between guards; outputs, spare rows, the cache and the work block hold poison before.
 * Each problem runs four times: with many threads, with one, with half of the rows, and with its rows in
 * other places; all must agree bit for bit where they did the same row, for neither threads nor neighbours
 * nor a row's place may show in a result. Of a shape too large for the definition only some rows are
 * compared, but all must be written.
 *
 * Note: the layout of a cache is the backend's own, so keys and values get there by an op, a norm_qkv whose
 * weights are the identity and whose angles are zero. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { GUARD = 256, GUARD_BYTE = 0xa5 };

typedef struct block {
    char *memory;                /* guard, bytes, guard                                                   */
    size_t bytes;
} block;

typedef struct run {
    const problem *p;
    device *device;
    op op;                       /* over device operands                                                  */
    block buffers[BUFFERS], matrices[MATRICES], scales[MATRICES], work;
    void *results[BUFFERS];      /* on the host, canonical                                                */
    char failure[500];
} run;

#define FAIL(r, ...) (snprintf((r)->failure, sizeof (r)->failure, __VA_ARGS__), 0)

/* ---- guarded memory ------------------------------------------------------------------------------- */

static int block_take(run *r, block *b, size_t bytes, int fill) {
    openpi_error error = OPENPI_ERROR_INIT;
    void *memory;
    char guard[GUARD];
    if (r->device->backend->allocate(r->device, bytes + 2 * GUARD, "a test", &memory, &error) != OPENPI_OK)
        return FAIL(r, "%s", error.message);
    *b = (block){memory, bytes};
    memset(guard, GUARD_BYTE, sizeof guard);
    r->device->backend->upload(r->device, b->memory, guard, GUARD, NULL);
    r->device->backend->upload(r->device, b->memory + GUARD + bytes, guard, GUARD, NULL);
    if (fill < 0) return 1;
    char *filled = malloc(bytes ? bytes : 1);
    if (!filled) return FAIL(r, "out of memory");
    memset(filled, fill, bytes);
    r->device->backend->upload(r->device, b->memory + GUARD, filled, bytes, NULL);
    free(filled);
    return 1;
}

static void *inside(const block *b) { return b->memory + GUARD; }

static int guards_hold(run *r, const block *b, const char *name) {
    unsigned char guard[2 * GUARD];
    r->device->backend->download(r->device, guard, b->memory, GUARD, NULL);
    r->device->backend->download(r->device, guard + GUARD, b->memory + GUARD + b->bytes, GUARD, NULL);
    for (int i = 0; i < 2 * GUARD; i++)
        if (guard[i] != GUARD_BYTE) return FAIL(r, "wrote %s the %s", i < GUARD ? "before" : "after", name);
    return 1;
}

/* ---- matrices ------------------------------------------------------------------------------------- */

typedef struct rows_source {
    const char *data;
    size_t row_bytes;
} rows_source;

static void read_rows(const void *context, int row, int count, void *out) {
    const rows_source *s = context;
    memcpy(out, s->data + (size_t)row * s->row_bytes, (size_t)count * s->row_bytes);
}

/* Packs in two calls, the later half first: blocks must be independent. */
static int pack(run *r, const matrix *m, const void *data, void *to) {
    const backend *b = r->device->backend;
    rows_source rows = {data, weight_row_bytes(&weight_formats[m->type], m->k)};
    matrix_source source = {read_rows, &rows};
    int blocks = b->matrix_blocks(r->device, m);
    size_t bytes = b->matrix_scratch(r->device, m);
    char *scratch = aligned_alloc(64, (bytes + 64 + 63) / 64 * 64);
    if (!scratch) return FAIL(r, "out of memory");
    memset(scratch, GUARD_BYTE, bytes + 64);
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status =
        b->matrix_pack(r->device, m, blocks / 2, blocks - blocks / 2, &source, to, scratch, &error);
    if (status == OPENPI_OK)
        status = b->matrix_pack(r->device, m, 0, blocks / 2, &source, to, scratch, &error);
    int whole = (unsigned char)scratch[bytes] == GUARD_BYTE;
    free(scratch);
    if (status != OPENPI_OK) return FAIL(r, "%s", error.message);
    return whole ? 1 : FAIL(r, "wrote past the packing scratch");
}

static int place_matrix(run *r, block *b, const matrix *m, const void *data, matrix *out) {
    *out = *m;
    if (!block_take(r, b, r->device->backend->matrix_bytes(r->device, m), 0xff)) return 0;
    out->data = inside(b);
    return pack(r, m, data, inside(b));
}

static int place_scales(run *r, block *b, const problem_matrix *from, matrix *to) {
    if (!from->scales) return 1;
    if (!block_take(r, b, from->scale_bytes, 0xff)) return 0;
    r->device->backend->upload(r->device, inside(b), from->scales, from->scale_bytes, NULL);
    to->scales = inside(b);
    return 1;
}

/* ---- caches --------------------------------------------------------------------------------------- */

/* Everything that filling a cache needs, as one op over host arrays that are uploaded in one block each. */
static int fill_cache(run *r, const kv_cache *from, const kv_cache *to) {
    const problem *p = r->p;
    const backend *backend = r->device->backend;
    int d = from->head_dim, used = p->shape.keys, rows = p->samples * used;
    size_t wide = (size_t)(2 * d), act = dtype_bytes(p->type), span = (size_t)(used * d) * act,
           block = (size_t)(from->capacity * d) * act;
    if (!strcmp(r->device->path, "reference")) {               /* canonical already */
        for (int b = 0; b < p->samples; b++) {
            backend->upload(r->device, (char *)to->k + (size_t)b * block, (char *)from->k + (size_t)b * block,
                            span, NULL);
            backend->upload(r->device, (char *)to->v + (size_t)b * block, (char *)from->v + (size_t)b * block,
                            span, NULL);
        }
        return 1;
    }
    int32_t *tables = malloc((size_t)(1 + 2 * rows) * sizeof *tables);
    char *x = malloc((size_t)rows * wide * act);
    float *rope = calloc((size_t)(from->capacity * d), sizeof *rope);
    bf16 *identity = calloc(wide * wide, sizeof *identity);
    struct block blocks[5] = {{NULL, 0}};
    int ok = tables && x && rope && identity;
    if (ok) {
        tables[0] = rows;
        for (int i = 0; i < rows; i++) {
            int sample = i / used, place = i % used;
            size_t at = (size_t)sample * block + (size_t)(place * d) * act;
            tables[1 + i] = sample;
            tables[1 + rows + i] = place;
            memcpy(x + (size_t)i * wide * act, (const char *)from->k + at, (size_t)d * act);
            memcpy(x + ((size_t)i * wide + (size_t)d) * act, (const char *)from->v + at, (size_t)d * act);
        }
        for (int i = 0; i < from->capacity * d; i += 2) rope[i] = 1;
        for (size_t i = 0; i < wide; i++) identity[i * wide + i] = float_to_bf16(1);
        ok = block_take(r, &blocks[0], (size_t)(1 + 2 * rows) * sizeof *tables, -1) &&
             block_take(r, &blocks[1], (size_t)rows * wide * act, -1) &&
             block_take(r, &blocks[2], (size_t)(from->capacity * d) * sizeof *rope, -1);
    }
    if (ok) {
        matrix weight = {
            .n = 2 * d, .k = 2 * d, .type = WEIGHT_BF16, .form = MATRIX_QKV, .heads = 0, .head_dim = d};
        op op = {.kind = OP_NORM_QKV, .type = p->type, .name = "fill"};
        const int32_t *at = inside(&blocks[0]);
        backend->upload(r->device, inside(&blocks[0]), tables, blocks[0].bytes, NULL);
        backend->upload(r->device, inside(&blocks[1]), x, blocks[1].bytes, NULL);
        backend->upload(r->device, inside(&blocks[2]), rope, blocks[2].bytes, NULL);
        ok = place_matrix(r, &blocks[3], &weight, identity, &weight);
        op.norm_qkv = (op_norm_qkv){.rows = {.capacity = rows,
                                             .count = at,
                                             .sample = at + 1,
                                             .position = at + 1 + rows,
                                             .keys = at + 1},
                                    .x = inside(&blocks[1]),
                                    .weight = weight,
                                    .rope = inside(&blocks[2]),
                                    .cache = *to};
        ok = ok && block_take(r, &blocks[4], backend->work_bytes(r->device, &op, 1), 0xff) &&
             backend->run(r->device, op_alone(&op), inside(&blocks[4]), NULL, NULL) == OPENPI_OK;
    }
    for (int i = 0; i < 5; i++)
        if (blocks[i].memory) backend->release(r->device, blocks[i].memory);
    free(tables);
    free(x);
    free(rope);
    free(identity);
    return ok ? 1 : *r->failure ? 0 : FAIL(r, "the cache could not be filled");
}

/* ---- one run -------------------------------------------------------------------------------------- */

static int is_cache(const buffer *b) { return b->role == ROLE_KEYS || b->role == ROLE_VALUES; }

static kv_cache *cache_of(op *op) {
    switch (op->kind) {
    case OP_NORM_QKV: return &op->norm_qkv.cache;
    case OP_ROPE_CACHE: return &op->rope_cache.cache;
    case OP_SCORES: return &op->scores.keys.cache;
    case OP_VALUES: return &op->values.values.cache;
    default: return &op->cache_attention.cache;
    }
}

/* Its keys and values are operands, not results. */
static int reads_cache(const op *op) {
    if (op->kind == OP_SCORES) return !op->scores.keys.stride;
    if (op->kind == OP_VALUES) return !op->values.values.stride;
    return op->kind == OP_CACHE_ATTENTION;
}

static int poison_cache(run *r, int i) {
    size_t bytes = r->buffers[i].bytes;
    void *poisoned = malloc(bytes);
    if (!poisoned) return FAIL(r, "out of memory");
    poison(poisoned, r->p->type, bytes / dtype_bytes(r->p->type));
    r->device->backend->upload(r->device, inside(&r->buffers[i]), poisoned, bytes, NULL);
    free(poisoned);
    return 1;
}

static int place_operands(run *r) {
    const problem *p = r->p;
    const backend *backend = r->device->backend;
    for (int i = 0; i < p->buffer_count; i++) {
        const buffer *b = &p->buffers[i];
        size_t bytes = b->count * dtype_bytes(b->type);
        if (is_cache(b)) {
            kv_cache *cache = cache_of(&r->op);
            bytes = (size_t)p->samples *
                    backend->cache_bytes(r->device, cache->capacity, cache->head_dim, p->type);
        }
        if (!block_take(r, &r->buffers[i], bytes, -1)) return 0;
        if (is_cache(b)) {
            if (!poison_cache(r, i)) return 0;
        } else {
            backend->upload(r->device, inside(&r->buffers[i]), b->data, bytes, NULL);
        }
        void *at = inside(&r->buffers[i]);
        memcpy((char *)&r->op + b->field, &at, sizeof at);
    }
    for (int i = 0; i < p->matrix_count; i++) {
        matrix *m = (matrix *)((char *)&r->op + p->matrices[i].field);
        if (!place_matrix(r, &r->matrices[i], m, p->matrices[i].data, m)) return 0;
        if (!place_scales(r, &r->scales[i], &p->matrices[i], m)) return 0;
    }
    struct op canonical = p->op;
    if (reads_cache(&canonical) && !fill_cache(r, cache_of(&canonical), cache_of(&r->op))) return 0;
    return 1;
}

static int fetch_cache(run *r, const buffer *b, void *to) {
    const problem *p = r->p;
    const kv_cache *cache = cache_of(&r->op);
    size_t count = (size_t)(cache->capacity * cache->head_dim);
    float *values = malloc(count * sizeof *values);
    if (!values) return FAIL(r, "out of memory");
    for (int s = 0; s < p->samples; s++) {
        r->device->backend->cache_read(r->device, cache, p->type, b->role == ROLE_VALUES, s, cache->capacity,
                                       values, NULL);
        for (size_t i = 0; i < count; i++)
            if (p->type == DTYPE_BF16)
                ((bf16 *)to)[(size_t)s * count + i] = float_to_bf16(values[i]);
            else
                memcpy((float *)to + (size_t)s * count + i, values + i, sizeof *values);
    }
    free(values);
    return 1;
}

static int fetch_results(run *r) {
    const problem *p = r->p;
    for (int i = 0; i < p->buffer_count; i++) {
        const buffer *b = &p->buffers[i];
        size_t bytes = b->count * dtype_bytes(b->type);
        if (!guards_hold(r, &r->buffers[i], b->name)) return 0;
        r->results[i] = malloc(bytes);
        if (!r->results[i]) return FAIL(r, "out of memory");
        if (is_cache(b)) {
            if (!fetch_cache(r, b, r->results[i])) return 0;
            continue;
        }
        r->device->backend->download(r->device, r->results[i], inside(&r->buffers[i]), bytes, NULL);
        if (b->role == ROLE_IN && strcmp(b->name, "count") && memcmp(r->results[i], b->data, bytes))
            return FAIL(r, "changed its input %s", b->name);
    }
    for (int i = 0; i < p->matrix_count; i++) {
        if (!guards_hold(r, &r->matrices[i], "matrix")) return 0;
        if (r->scales[i].memory && !guards_hold(r, &r->scales[i], "scales")) return 0;
    }
    return guards_hold(r, &r->work, "work block");
}

static int run_once(run *r, const problem *p, device *device, int rows) {
    const backend *backend = device->backend;
    openpi_error error = OPENPI_ERROR_INIT;
    *r = (run){.p = p, .device = device, .op = p->op};
    if (!place_operands(r)) return 0;
    for (int i = 0; i < p->buffer_count; i++)
        if (!strcmp(p->buffers[i].name, "count"))
            backend->upload(device, inside(&r->buffers[i]), &(int32_t){rows}, sizeof(int32_t), NULL);
    if (!block_take(r, &r->work, backend->work_bytes(device, &r->op, 1), 0xff)) return 0;
    if (backend->run(device, op_alone(&r->op), inside(&r->work), NULL, &error) != OPENPI_OK)
        return FAIL(r, "%s", error.message);
    return fetch_results(r);
}

static void run_end(run *r) {
    const backend *backend = r->device->backend;
    for (int i = 0; i < BUFFERS; i++) {
        if (r->buffers[i].memory) backend->release(r->device, r->buffers[i].memory);
        free(r->results[i]);
    }
    for (int i = 0; i < MATRICES; i++) {
        if (r->matrices[i].memory) backend->release(r->device, r->matrices[i].memory);
        if (r->scales[i].memory) backend->release(r->device, r->scales[i].memory);
    }
    if (r->work.memory) backend->release(r->device, r->work.memory);
}

/* ---- comparing ------------------------------------------------------------------------------------ */

static int same_bits(const void *a, const void *b, dtype type, size_t i) {
    size_t bytes = dtype_bytes(type);
    return !memcmp((const char *)a + i * bytes, (const char *)b + i * bytes, bytes);
}

/* Only an intermediate result that was not rounded as the definition rounds it moves many bf16 results by
 * their last bit: each is within its bound, together they are too many. Note: a row's factor that differs in
 * its last bit moves, in about one row of a hundred, one element of the normed row to the neighbour, and that
 * a tenth of the row's results. So where there are few rows, more may differ. */
enum { ENOUGH = 600 };

static double most_neighbours(const problem *p, allowance allowed) {
    int attends = p->shape.kind == OP_IMAGE_ATTENTION || p->shape.kind == OP_CACHE_ATTENTION,
        rows = p->checked < p->shape.rows ? p->checked : p->shape.rows;
    return (attends ? allowed.attention_neighbours : allowed.neighbours) + 0.2 / rows;
}

static void compare(const run *r, allowance allowed, verdict *v) {
    double neighbours = most_neighbours(r->p, allowed);
    for (int i = 0; i < r->p->buffer_count && v->ok; i++) {
        const buffer *b = &r->p->buffers[i];
        size_t written = 0, differ = 0;
        for (size_t j = 0; b->expected && j < b->count && v->ok; j++) {
            double expected = problem_value(b->expected, b->type, j),
                   found = problem_value(r->results[i], b->type, j);
            if (isinf(b->bound[j])) {
                v->ok = isfinite(found) && !is_poison(r->results[i], b->type, j);
                if (!v->ok)
                    snprintf(v->detail, sizeof v->detail, "%s[%zu] is %g, expected a number", b->name, j,
                             found);
                continue;
            }
            if (is_poison(b->expected, b->type, j)) {
                v->ok = same_bits(b->expected, r->results[i], b->type, j);
                if (!v->ok)
                    snprintf(v->detail, sizeof v->detail, "%s[%zu] is %g, expected untouched", b->name, j,
                             found);
                continue;
            }
            double distance = fabs(found - expected) / (b->bound[j] > 0 ? b->bound[j] : 1e-30);
            written++;
            differ += found != expected;
            if (found == expected) distance = 0;
            if (!(distance <= v->worst)) v->worst = distance;
            v->ok = distance <= 1;
            if (!v->ok)
                snprintf(v->detail, sizeof v->detail, "%s[%zu] is %.8g, expected %.8g within %.2g", b->name,
                         j, found, expected, b->bound[j]);
        }
        double part = (double)differ / (double)(written ? written : 1);
        if (!v->ok || b->type != DTYPE_BF16 || written < ENOUGH) continue;
        if (part > v->neighbours) v->neighbours = part;
        if (part <= neighbours) continue;
        v->ok = 0;
        snprintf(v->detail, sizeof v->detail,
                 "%.1f %% of %s are the neighbour of what is expected, at most %.0f %% should be", 100 * part,
                 b->name, 100 * neighbours);
    }
}

/* Everything that `other` did, it did as `first`. */
static void compare_runs(const run *first, const run *other, const char *what, verdict *v) {
    for (int i = 0; i < first->p->buffer_count && v->ok; i++) {
        const buffer *b = &first->p->buffers[i];
        for (size_t j = 0; b->expected && j < b->count && v->ok; j++) {
            if (same_bits(first->results[i], other->results[i], b->type, j) ||
                same_bits(b->data, other->results[i], b->type, j))
                continue;
            v->ok = 0;
            snprintf(v->detail, sizeof v->detail, "%s[%zu] is %.8g %s, else %.8g", b->name, j,
                     problem_value(other->results[i], b->type, j), what,
                     problem_value(first->results[i], b->type, j));
        }
    }
}

/* `count` elements of `other` from `to` on are those of `first` from `from` on. */
static void compare_part(const run *first, const run *other, int i, size_t to, size_t from, size_t count,
                         verdict *v) {
    const buffer *b = &other->p->buffers[i];
    const size_t bytes = dtype_bytes(b->type);
    const char *x = (const char *)other->results[i] + to * bytes,
               *y = (const char *)first->results[i] + from * bytes;
    if (!v->ok || !memcmp(x, y, count * bytes)) return;
    v->ok = 0;
    for (size_t k = 0; k < count; k++) {
        if (!memcmp(x + k * bytes, y + k * bytes, bytes)) continue;
        snprintf(v->detail, sizeof v->detail, "%s[%zu] is %.8g with moved rows, else [%zu] %.8g", b->name,
                 to + k, problem_value(other->results[i], b->type, to + k), from + k,
                 problem_value(first->results[i], b->type, from + k));
        return;
    }
}

/* `other`: of the problem whose rows are moved. */
static void compare_moved(const run *first, const run *other, move by, verdict *v) {
    for (int i = 0; i < other->p->buffer_count; i++) {
        const buffer *b = &other->p->buffers[i];
        const rotation part = moved_part(other->p, b, by);
        if (!b->expected) continue;
        compare_part(first, other, i, 0, part.first, part.all - part.first, v);
        compare_part(first, other, i, part.all - part.first, 0, part.first, v);
        compare_part(first, other, i, part.all, part.all, b->count - part.all, v);
    }
}

static int fewer_rows(const op_shape *s) {
    if (s->kind == OP_PATCH_EMBED || s->kind == OP_IMAGE_ATTENTION || s->options & SHAPE_IMAGE)
        return s->rows / 512 * 256;
    if (s->kind == OP_ACTION_EMBED || s->kind == OP_VELOCITY) return s->rows % 2 ? 0 : s->rows / 2;
    return s->rows / 2;
}

/* Outputs as they were before the first run. */
static int reset_outputs(run *r) {
    const problem *p = r->p;
    for (int i = 0; i < p->buffer_count; i++) {
        const buffer *b = &p->buffers[i];
        free(r->results[i]);
        r->results[i] = NULL;
        if (!b->expected) continue;
        if (is_cache(b) && reads_cache(&p->op)) continue;      /* only read */
        if (is_cache(b)) {
            if (!poison_cache(r, i)) return 0;
        } else {
            r->device->backend->upload(r->device, inside(&r->buffers[i]), b->data,
                                       b->count * dtype_bytes(b->type), NULL);
        }
    }
    return 1;
}

static int run_choice(run *r, int choice) {
    openpi_error error = OPENPI_ERROR_INIT;
    const backend *backend = r->device->backend;
    r->op.choice = choice;
    if (r->work.memory) backend->release(r->device, r->work.memory);
    r->work.memory = NULL;
    if (!reset_outputs(r) || !block_take(r, &r->work, backend->work_bytes(r->device, &r->op, 1), 0xff))
        return 0;
    if (backend->run(r->device, op_alone(&r->op), inside(&r->work), NULL, &error) != OPENPI_OK)
        return FAIL(r, "%s", error.message);
    return fetch_results(r);
}

/* A GPU's kernels for rows of 8 bits have the same integers as sums. With a gate only some of them fuse its
 * product with the addition. */
static int exact(const problem *p) { return p->input == INPUT_INT8 && !(p->shape.options & SHAPE_GATE); }

/* Every choice that the device offers, by turns on both devices. A level's blockings are one result to the
 * bit; kernels of a GPU differ by rounding where they are not exact. Each of these is asked with moved rows
 * too. */
static void try_candidates(const run *first, problem *p, const problem *moved, move by, device *device,
                           struct device *single, allowance allowed, verdict *v) {
    static candidate names[CANDIDATES];
    int count =
        device->backend->candidates ? device->backend->candidates(device, &first->op, names, CANDIDATES) : 0;
    run others[3];
    /* A level cuts mixed types as it cuts others. */
    if (count < 2 || (single != device && weight_of(p->type) != p->weights)) return;
    int gpu = single == device, runs = gpu && by.rows ? 3 : 2;
    for (int i = 0; i < runs; i++) {
        others[i] = (run){.p = i < 2 ? p : moved, .device = i ? single : device, .op = p->op};
        if (!place_operands(&others[i])) v->ok = 0, memcpy(v->detail, others[i].failure, sizeof v->detail);
    }
    for (int i = 0; i < count && i < CANDIDATES && v->ok; i++) {
        run *r = &others[i % 2];
        v->ok = run_choice(r, i + 1);
        if (!v->ok) memcpy(v->detail, r->failure, sizeof v->detail);
        if (v->ok && gpu) compare(r, allowed, v);
        if (v->ok && (!gpu || exact(p))) compare_runs(first, r, "that choice", v);
        if (v->ok && runs > 2) {
            v->ok = run_choice(&others[2], i + 1);
            if (!v->ok) memcpy(v->detail, others[2].failure, sizeof v->detail);
            if (v->ok) compare_moved(r, &others[2], by, v);
        }
        if (!v->ok) {
            char why[300];
            snprintf(why, sizeof why, "%.299s", v->detail);
            snprintf(v->detail, sizeof v->detail, "candidate %d of %d, \"%.55s\": %s", i + 1, count,
                     names[i].name, why);
        }
    }
    for (int i = 0; i < runs; i++) run_end(&others[i]);
}

verdict trial_run(problem *p, device *device, struct device *single, allowance allowed, dice *r) {
    verdict v = {.ok = 1};
    run many, other;
    problem moved = {.buffer_count = 0};
    int fewer = fewer_rows(&p->shape);
    move by = moved_by(p, r);
    if (by.rows && !moved_make(&moved, p, by)) return (verdict){.detail = "out of memory"};
    v.ok = run_once(&many, p, device, p->shape.rows);
    if (!v.ok) memcpy(v.detail, many.failure, sizeof v.detail);
    if (v.ok) compare(&many, allowed, &v);
    for (int i = 0; i < 2 && v.ok; i++) {
        if (i && !fewer) break;
        v.ok = run_once(&other, p, i ? device : single, i ? fewer : p->shape.rows);
        if (!v.ok) memcpy(v.detail, other.failure, sizeof v.detail);
        if (v.ok)
            compare_runs(&many, &other,
                         i                  ? "with half of the rows"
                         : single == device ? "once more"
                                            : "with one thread",
                         &v);
        run_end(&other);
    }
    if (v.ok && by.rows) {
        v.ok = run_once(&other, &moved, device, p->shape.rows);
        if (!v.ok) memcpy(v.detail, other.failure, sizeof v.detail);
        if (v.ok) compare_moved(&many, &other, by, &v);
        run_end(&other);
    }
    if (v.ok) try_candidates(&many, p, &moved, by, device, single, allowed, &v);
    if (by.rows) moved_free(&moved, p);
    run_end(&many);
    return v;
}
