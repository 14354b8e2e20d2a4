#include "checkpoint/jax/orbax_array.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/convert.h"
#include "base/report.h"
#include "base/transpose.h"

enum {
    MOST_LAYERS = 1024,
    ALIGN = 64,
    PIECE = 1 << 16,             /* bytes that are decoded before they are converted: they stay in a cache */
    LORA_LINES = 16,             /* that share a read of b                                                 */
};

/* ---- sizes ---- */

static int64_t axis_product(const orbax_array *a, const char *which) {
    int64_t product = 1;
    for (int i = 0; i < a->zarr.rank; i++)
        if (strchr(which, a->rule->axes[i])) product *= a->zarr.shape[i];
    return product;
}

/* The sizes that the axes say. */
static openpi_status learn(orbax_array *a, openpi_error *error) {
    const char *axes = a->rule->axes;
    int rank = (int)strlen(axes);
    if (a->zarr.rank != rank)
        return report(error, OPENPI_BAD_FILE, "array \"%s\" has %d axes, expected %d", a->zarr.name,
                      a->zarr.rank, rank);
    for (int i = 0; i < rank; i++) {
        int64_t expected = axes[i] == '1' ? 1 : axes[i] == 'p' ? 2 : axes[i] == 's' ? 14 : a->zarr.shape[i];
        if (a->zarr.shape[i] != expected || !expected)
            return report(error, OPENPI_BAD_FILE, "array \"%s\": axis %d is %lld, expected %lld",
                          a->zarr.name, i, (long long)a->zarr.shape[i], (long long)(expected ? expected : 1));
    }
    if (*axes == 'L' && a->zarr.shape[0] > MOST_LAYERS)
        return report(error, OPENPI_BAD_FILE, "array \"%s\" has %lld layers, expected at most %d",
                      a->zarr.name, (long long)a->zarr.shape[0], MOST_LAYERS);
    a->layers = (int)axis_product(a, "L");
    a->parts = (int)axis_product(a, "p");
    a->batch = axis_product(a, "b");
    a->inputs = axis_product(a, "ics");
    a->channels = strchr(axes, 'c') ? axis_product(a, "c") : 0;
    a->outputs = axis_product(a, "o");
    a->group = a->outputs / (rank < 2 ? 1 : a->zarr.shape[rank - 1]);
    a->sequential = array_rule_sequential(a->rule);
    a->tensors = calloc((size_t)a->layers * (size_t)a->parts, sizeof *a->tensors);
    if (!a->tensors) return report_no_memory(error, (size_t)a->layers * sizeof *a->tensors, a->zarr.name);
    for (int i = 0; i < a->layers * a->parts; i++) a->tensors[i].array = a;
    return OPENPI_OK;
}

openpi_status orbax_array_open(const array_rule *rule, const values *values, const char *key, orbax_array *a,
                               openpi_error *error) {
    char *name = strdup(key);
    *a = (orbax_array){.rule = rule, .held = -1, .last_line = -1};
    if (!name) return report_no_memory(error, strlen(key) + 1, key);
    openpi_status status = zarr_open(values, name, &a->zarr, error);
    a->zarr.name = name;
    TRY(status);
    a->type = a->zarr.type;
    return learn(a, error);
}

void orbax_array_close(orbax_array *a) {
    orbax_array_release(a);
    free(a->tensors);
    lora_close(a->lora);
    free((char *)(uintptr_t)a->zarr.name);
}

int orbax_array_is_stacked(const orbax_array *a) { return *a->rule->axes == 'L' && a->inputs > 1; }

/* ---- tensors ---- */

static int64_t part_count(const orbax_array *a) { return a->batch * a->outputs * a->inputs; }

static size_t part_bytes(const orbax_array *a) { return (size_t)part_count(a) * dtype_bytes(a->type); }

openpi_status orbax_array_tensors(orbax_array *a, tensors *list, const char *folder, openpi_error *error) {
    int vector = !strpbrk(a->rule->axes, "ibcs");
    tensor t = {.file = folder, .type = a->type, .rank = vector ? 1 : 2, .count = part_count(a)};
    t.shape[0] = a->batch * a->outputs;
    t.shape[1] = a->inputs;
    if (!vector && a->inputs == 1 && strchr(a->rule->axes, 'b'))
        t.shape[0] = a->batch, t.shape[1] = a->outputs;
    if (a->channels) {
        t.rank = 4;
        t.shape[1] = a->channels;
        t.shape[2] = t.shape[3] = 14;
    }
    t.source = &orbax_source;
    for (int i = 0; i < a->layers * a->parts; i++) {
        char name[256];
        snprintf(name, sizeof name, a->rule->tensors[i % a->parts], i / a->parts);
        t.name = name;
        t.place = &a->tensors[i];
        TRY(tensors_add(list, &t, error));
    }
    return OPENPI_OK;
}

int orbax_part_layer(const orbax_part *part) {
    return (int)(part - part->array->tensors) / part->array->parts;
}

const char *orbax_part_data(const orbax_part *part) {
    const orbax_array *a = part->array;
    int index = (int)(part - a->tensors), layer = index / a->parts;
    if (!a->data || a->sequential || a->held < 0 || (a->stage && a->held != layer)) return NULL;
    return a->data + (size_t)(a->stage ? index % a->parts : index) * part_bytes(a);
}

/* ---- decoding ---- */

static dtype merged_type(const orbax_array *a) { return a->lora ? DTYPE_F32 : a->zarr.type; }

void orbax_array_round(orbax_array *a, int on) {
    orbax_array_release(a);
    a->type = on && !a->sequential && !a->kept ? DTYPE_BF16 : merged_type(a);
}

void orbax_array_drop(orbax_array *a) {
    free(a->data);
    a->data = NULL;
    a->held = -1;
    a->last_line = -1;
}

static void rewind_array(orbax_array *a) {
    if (a->lora) lora_rewind(a->lora);
    zarr_reader_close(a->reader);
    a->reader = NULL;
    a->next = 0;
    a->line = 0;
}

void orbax_array_release(orbax_array *a) {
    orbax_array_drop(a);
    rewind_array(a);
}

/* Input i of the array is column … of the tensor: a patch's channels come first there. */
static int64_t column_of(const orbax_array *a, int64_t i) {
    return a->channels ? i % a->channels * (a->inputs / a->channels) + i / a->channels : i;
}

/* A layer that is being decoded: a piece of it as it is stored, the same with LoRA merged, and a strip of
 * inputs in the tensors' type, which is transposed at once. Pieces that would be the same share their memory.
 */
typedef struct decoding {
    orbax_array *array;
    const decode_watch *watch;
    char *stored, *merged, *strip;
    int64_t piece_lines;         /* at most this many lines are decoded at once                           */
    int64_t next;                /* line of the layer                                                     */
} decoding;

static openpi_status decoding_open(decoding *d, openpi_error *error) {
    const orbax_array *a = d->array;
    size_t line = (size_t)zarr_line_length(&a->zarr), size = dtype_bytes(a->type);
    size_t strip = (size_t)transpose_lines(size) * (size_t)a->outputs * size;
    d->piece_lines = a->lora ? LORA_LINES : (int64_t)(PIECE / (line * sizeof(float)));
    if (d->piece_lines < 1) d->piece_lines = 1;
    size_t piece = (size_t)d->piece_lines * line * sizeof(float);
    d->stored = malloc(piece);
    d->merged = a->lora ? malloc(piece) : d->stored;
    d->strip = aligned_alloc(ALIGN, (strip + ALIGN - 1) / ALIGN * ALIGN);
    return d->stored && d->merged && d->strip ? OPENPI_OK
                                              : report_no_memory(error, 2 * piece + strip, a->zarr.name);
}

static void decoding_close(decoding *d) {
    free(d->strip);
    if (d->merged != d->stored) free(d->merged);
    free(d->stored);
}

/* The next `count` lines of the layer in the tensors' type. */
static openpi_status decode_lines(decoding *d, int64_t count, char *out, openpi_error *error) {
    orbax_array *a = d->array;
    int64_t length = zarr_line_length(&a->zarr);
    int direct = !a->lora && a->type == a->zarr.type;
    for (int64_t n; count; count -= n) {
        size_t elements, stored;
        n = direct || count < d->piece_lines ? count : d->piece_lines;
        elements = (size_t)(n * length);
        stored = elements * dtype_bytes(a->zarr.type);
        TRY(zarr_reader_lines(a->reader, n, direct ? out : d->stored, error));
        char *merged = a->lora && a->type == DTYPE_F32 ? out : d->merged;
        if (a->lora) lora_merge(a->lora, a->zarr.type, d->stored, d->next, n, (float *)(void *)merged);
        if (a->type != merged_type(a))
            convert_to_bf16(merged_type(a), merged, elements, (bf16 *)(void *)out);
        d->next += n;
        out += elements * dtype_bytes(a->type);
        if (d->watch) d->watch->decoded(d->watch->user, stored);
    }
    return OPENPI_OK;
}

/* One of a tensor's batches: [inputs][outputs] becomes [outputs][inputs]. */
static openpi_status decode_matrix(decoding *d, char *to, openpi_error *error) {
    const orbax_array *a = d->array;
    size_t size = dtype_bytes(a->type);
    int most = a->channels ? 1 : transpose_lines(size);
    if (a->inputs == 1) return decode_lines(d, a->group, to, error);
    for (int64_t i = 0; i < a->inputs; i += most) {
        int count = a->inputs - i < most ? (int)(a->inputs - i) : most;
        TRY(decode_lines(d, count * a->group, d->strip, error));
        transpose_strip(d->strip, count, a->outputs, size, to + (size_t)column_of(a, i) * size, a->inputs);
    }
    return OPENPI_OK;
}

/* The layer that the reader stands before, which then is held. */
static openpi_status decode_layer(orbax_array *a, char *to, const decode_watch *watch, openpi_error *error) {
    decoding d = {.array = a, .watch = watch};
    size_t matrix = (size_t)(a->outputs * a->inputs) * dtype_bytes(a->type);
    openpi_status status = decoding_open(&d, error);
    if (a->lora && status == OPENPI_OK) status = lora_layer(a->lora, a->next, error);
    for (int64_t i = 0; i < a->parts * a->batch && status == OPENPI_OK; i++)
        status = decode_matrix(&d, to + (size_t)i * matrix, error);
    decoding_close(&d);
    if (status == OPENPI_OK) a->held = a->next;
    if (++a->next == a->layers || status != OPENPI_OK) rewind_array(a);    /* closes its files */
    return status;
}

openpi_status orbax_array_hold(orbax_array *a, int layer, const decode_watch *watch, openpi_error *error) {
    size_t bytes = part_bytes(a) * (size_t)a->parts;
    int last = a->stage ? layer : a->layers - 1;
    if (a->data && a->held == last) return OPENPI_OK;
    if (!a->data) {
        size_t all = a->stage ? bytes : bytes * (size_t)a->layers;
        a->data = aligned_alloc(ALIGN, (all + ALIGN - 1) / ALIGN * ALIGN);
        if (!a->data) return report_no_memory(error, all, a->zarr.name);
    }
    a->held = -1;
    if (a->next > layer || !a->stage) rewind_array(a);
    if (!a->reader) TRY(zarr_reader_open(&a->zarr, &a->reader, error));
    if (a->stage) {
        int64_t lines = zarr_lines(&a->zarr) / a->layers * (layer - a->next);
        TRY(zarr_reader_lines(a->reader, lines, NULL, error));
        a->next = layer;
        return decode_layer(a, a->data, watch, error);
    }
    for (int i = 0; i < a->layers; i++) TRY(decode_layer(a, a->data + (size_t)i * bytes, watch, error));
    return OPENPI_OK;
}

/* ---- an array that is never in memory as a whole ---- */

static openpi_status read_lines(orbax_array *a, int64_t line, int64_t count, char *out, openpi_error *error) {
    if (line < a->line) rewind_array(a);
    if (!a->reader) TRY(zarr_reader_open(&a->zarr, &a->reader, error));
    TRY(zarr_reader_lines(a->reader, line - a->line, NULL, error));
    a->line = line + count;
    return zarr_reader_lines(a->reader, count, out, error);
}

/* A line of which only a part is wanted is kept for whoever wants the rest. */
openpi_status orbax_array_read(orbax_array *a, uint64_t from, size_t bytes, char *out, openpi_error *error) {
    size_t size = (size_t)zarr_line_length(&a->zarr) * dtype_bytes(a->zarr.type);
    while (bytes) {
        int64_t line = (int64_t)(from / size), whole = (int64_t)(bytes / size);
        size_t inside = from % size, taken = (size_t)whole * size;
        if (inside || !whole) {
            taken = size - inside < bytes ? size - inside : bytes;
            if (!a->data && !(a->data = malloc(size))) return report_no_memory(error, size, a->zarr.name);
            if (a->last_line != line) TRY(read_lines(a, line, 1, a->data, error));
            a->last_line = line;
            memcpy(out, a->data + inside, taken);
        } else {
            TRY(read_lines(a, line, whole, out, error));
        }
        from += taken;
        out += taken;
        bytes -= taken;
    }
    return OPENPI_OK;
}
