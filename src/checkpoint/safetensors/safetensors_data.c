/* Tensors that can be read at any place are cut into pieces, which the threads share. Those of a JAX
 * checkpoint's arrays are decoded in order: each array is one task, layer after layer, so memory is a layer a
 * thread. */
#include "checkpoint/safetensors/safetensors_data.h"

#include <stdlib.h>
#include <string.h>

#include "base/finite.h"
#include "base/first_failure.h"
#include "base/report.h"

enum { PIECE = 1 << 18 };

typedef struct piece {
    int tensor;
    int64_t first, count;
} piece;

/* A tensor of an array. */
typedef struct member {
    int tensor, array, stage;
} member;

typedef struct array {
    const void *id;              /* tensor_array                                                          */
    int first, count;            /* range of writer.members                                               */
    uint64_t bytes;
} array;

typedef struct writer {
    const safetensors_files *files;
    const safetensors_order *order;
    char *scratch;               /* [threads][PIECE] of up to four bytes                                  */
    piece *pieces;               /* [group]: those that the threads write now                             */
    int group, waiting;          /* waiting: how many of them there are                                   */
    member *members;             /* those of an array one after the other, by layer                       */
    array *arrays;               /* the largest first                                                     */
    int member_count, array_count;
    _Atomic uint64_t done;       /* bytes                                                                 */
    first_failure failure;
} writer;

static int stops(const writer *w) {
    return first_failure_there(&w->failure) || (w->order->damaged && atomic_load(w->order->damaged));
}

/* ---- pieces ---- */

static int all_finite(dtype type, const void *values, size_t count) {
    return type == DTYPE_F32    ? all_finite_f32(values, count)
           : type == DTYPE_BF16 ? all_finite_bf16(values, count)
                                : all_finite_f16(values, count);
}

static void narrow_to_f16(char *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, values + i * sizeof value, sizeof value);
        uint16_t half = float_to_f16(value);
        memcpy(values + i * sizeof half, &half, sizeof half);
    }
}

/* Piece by piece from `first` on; the last one of a tensor is shorter. */
static piece cut_piece(const writer *w, int tensor, int64_t first) {
    int64_t rest = w->order->list[tensor]->count - first;
    return (piece){tensor, first, rest < PIECE ? rest : PIECE};
}

static void write_piece(writer *w, const piece *p, int worker) {
    const safetensors_order *o = w->order;
    const safetensors_place *place = &w->files->places[p->tensor];
    dtype type = o->list[p->tensor]->type;
    size_t count = (size_t)p->count, size = dtype_bytes(type);
    char *buffer = w->scratch + (size_t)worker * PIECE * sizeof(float);
    openpi_error error = OPENPI_ERROR_INIT;
    dtype read = type == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    tensor_read(o->sources[p->tensor], read, p->first, p->count, buffer);
    if (type == DTYPE_F16) narrow_to_f16(buffer, count);
    if (o->damaged && !all_finite(type, buffer, count)) atomic_store(o->damaged, 1);
    if (safetensors_put(w->files, place->shard, buffer, count * size, place->at + (uint64_t)p->first * size,
                        &error) != OPENPI_OK)
        first_failure_keep(&w->failure, &error);
    atomic_fetch_add(&w->done, count * size);
}

static void tell(writer *w) {
    const safetensors_order *o = w->order;
    openpi_error error = OPENPI_ERROR_INIT;
    if (stops(w)) return;
    if (o->progress) o->progress(o->progress_user, "writing weights", atomic_load(&w->done), w->files->total);
    if (!o->cancel || !o->cancel(o->progress_user)) return;
    report(&error, OPENPI_CANCELLED, "writing the weights was cancelled");
    first_failure_keep(&w->failure, &error);
}

/* ---- tensors that can be read at any place ---- */

static void piece_task(void *argument, int task, int worker) {
    writer *w = argument;
    if (!stops(w)) write_piece(w, &w->pieces[task], worker);
}

static void write_group(writer *w) {
    if (!w->waiting || stops(w)) return;
    pool_run(w->order->pool, piece_task, w, w->waiting);
    w->waiting = 0;
    tell(w);
}

static void write_pieces(writer *w) {
    const safetensors_order *o = w->order;
    for (int i = 0; i < o->count && !stops(w); i++) {
        if (!o->sources[i] || tensor_array(o->sources[i])) continue;
        for (int64_t first = 0; first < o->list[i]->count && !stops(w); first += PIECE) {
            w->pieces[w->waiting++] = cut_piece(w, i, first);
            if (w->waiting == w->group) write_group(w);
        }
    }
    write_group(w);
}

/* ---- arrays ---- */

static int by_layer(const void *a, const void *b) {
    const member *x = a, *y = b;
    if (x->array != y->array) return x->array < y->array ? -1 : 1;
    if (x->stage != y->stage) return x->stage < y->stage ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static int by_bytes(const void *a, const void *b) {
    const array *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static void collect_arrays(writer *w) {
    const safetensors_order *o = w->order;
    for (int i = 0; i < o->count; i++) {
        const void *id = o->sources[i] ? tensor_array(o->sources[i]) : NULL;
        int which = 0;
        if (!id) continue;
        while (which < w->array_count && w->arrays[which].id != id) which++;
        if (which == w->array_count) w->arrays[w->array_count++] = (array){.id = id};
        w->arrays[which].count++;
        w->arrays[which].bytes += tensor_bytes(o->list[i]);
        w->members[w->member_count++] = (member){i, which, tensor_stage(o->sources[i])};
    }
    qsort(w->members, (size_t)w->member_count, sizeof *w->members, by_layer);
    for (int i = 1; i < w->array_count; i++)
        w->arrays[i].first = w->arrays[i - 1].first + w->arrays[i - 1].count;
    qsort(w->arrays, (size_t)w->array_count, sizeof *w->arrays, by_bytes);
}

/* Pieces in ascending order: a sequential tensor is decoded as it is read. Worker 0 is the calling thread,
 * which reports progress. */
static void array_task(void *argument, int which, int worker) {
    writer *w = argument;
    const array *a = &w->arrays[which];
    const tensor *source = NULL;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_status status = OPENPI_OK;
    for (int m = a->first; m < a->first + a->count && status == OPENPI_OK && !stops(w); m++) {
        int tensor = w->members[m].tensor;
        source = w->order->sources[tensor];
        status = tensor_hold(source, NULL, &error);
        for (int64_t first = 0; first < source->count && status == OPENPI_OK && !stops(w); first += PIECE) {
            piece p = cut_piece(w, tensor, first);
            write_piece(w, &p, worker);
            if (!worker) tell(w);
        }
    }
    if (status != OPENPI_OK) first_failure_keep(&w->failure, &error);
    if (source) tensor_release(source);
}

/* ---- all ---- */

openpi_status safetensors_write_data(const safetensors_files *files, openpi_error *error) {
    const safetensors_order *o = files->order;
    int threads = pool_threads(o->pool);
    size_t scratch = (size_t)threads * PIECE * sizeof(float), count = (size_t)o->count + 1;
    writer w = {.files = files, .order = o, .group = 4 * threads};
    w.scratch = malloc(scratch);
    w.pieces = malloc((size_t)w.group * sizeof *w.pieces);
    w.members = malloc(count * sizeof *w.members);
    w.arrays = malloc(count * sizeof *w.arrays);
    openpi_status status = OPENPI_OK;
    if (!w.scratch || !w.pieces || !w.members || !w.arrays)
        status = report_no_memory(error, scratch, "writing weights");
    if (status == OPENPI_OK) status = tensors_stage(o->from, 0, o->pool, error);
    if (status == OPENPI_OK) {
        write_pieces(&w);
        collect_arrays(&w);
        if (!stops(&w)) pool_run(o->pool, array_task, &w, w.array_count);
        if (w.array_count) tell(&w);
        status = first_failure_report(&w.failure, error);
    }
    free(w.arrays);
    free(w.members);
    free(w.pieces);
    free(w.scratch);
    return status == OPENPI_OK ? tensors_check(o->from, error) : status;
}
