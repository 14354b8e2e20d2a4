/* The list of tensors: owns names and stores (source.h); finds tensors by name; reads elements in a wanted
 * type.
 *
 * Threads read at the same time and cannot report: the first read that fails leaves its sentence in the
 * store, for tensors_check. A tensor's bytes in memory may lie at any address, so elements are copied out
 * before they are used. */
#include "checkpoint/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/convert.h"
#include "base/file.h"
#include "base/report.h"
#include "checkpoint/source.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/tensors_build.h"

typedef struct entry {
    tensor tensor;
    char *stored;                /* the name in the file */
} entry;

typedef struct owned {
    const tensor_store *functions;
    void *store;
} owned;

struct tensors {
    entry *entries;
    owned *stores;
    int *order;                  /* indices of entries by name */
    int count, capacity, store_count;
};

/* ---- building ---- */

tensors *tensors_create(void) { return calloc(1, sizeof(tensors)); }

static char *copy_text(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

openpi_status tensors_own(tensors *tensors, const tensor_store *functions, void *store, openpi_error *error) {
    size_t bytes = ((size_t)tensors->store_count + 1) * sizeof *tensors->stores;
    owned *grown = realloc(tensors->stores, bytes);
    if (!grown) {
        functions->close(store);
        return report_no_memory(error, bytes, "the list of tensors");
    }
    tensors->stores = grown;
    grown[tensors->store_count++] = (owned){functions, store};
    return OPENPI_OK;
}

void *tensors_owned(const tensors *tensors, const tensor_store *functions) {
    for (int i = 0; i < tensors->store_count; i++)
        if (tensors->stores[i].functions == functions) return tensors->stores[i].store;
    return NULL;
}

openpi_status tensors_add(tensors *tensors, const tensor *tensor, openpi_error *error) {
    if (tensors->count == tensors->capacity) {
        int capacity = tensors->capacity ? 2 * tensors->capacity : 64;
        entry *grown = realloc(tensors->entries, (size_t)capacity * sizeof *grown);
        if (!grown) return report_no_memory(error, (size_t)capacity * sizeof *grown, "the list of tensors");
        tensors->entries = grown;
        tensors->capacity = capacity;
    }
    char *name = copy_text(tensor->name);
    if (!name) return report_no_memory(error, strlen(tensor->name) + 1, "a tensor's name");
    entry *e = &tensors->entries[tensors->count++];
    *e = (entry){*tensor, name};
    e->tensor.name = name;
    return OPENPI_OK;
}

/* qsort passes its comparison two elements only, so each name is sorted together with its index. */
typedef struct named {
    const char *name;
    int index;
} named;

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

openpi_status tensors_finish(tensors *tensors, openpi_error *error) {
    size_t count = (size_t)tensors->count;
    named *sorted = malloc((count + 1) * sizeof *sorted);
    int *order = realloc(tensors->order, (count + 1) * sizeof *order);
    if (order) tensors->order = order;
    if (!sorted || !order) {
        free(sorted);
        return report_no_memory(error, (count + 1) * sizeof *sorted, "the list of tensors");
    }
    for (int i = 0; i < tensors->count; i++) sorted[i] = (named){tensors->entries[i].tensor.name, i};
    qsort(sorted, count, sizeof *sorted, by_name);
    openpi_status status = OPENPI_OK;
    for (int i = 0; i < tensors->count; i++) {
        order[i] = sorted[i].index;
        if (status != OPENPI_OK || i == 0 || strcmp(sorted[i - 1].name, sorted[i].name)) continue;
        const entry *a = &tensors->entries[sorted[i - 1].index], *b = &tensors->entries[sorted[i].index];
        if (a->tensor.file != b->tensor.file)
            status = report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is also in %s, expected in one file",
                            a->tensor.file, a->stored, b->tensor.file);
        else
            status = report(error, OPENPI_BAD_FILE,
                            "%s: tensors \"%s\" and \"%s\" are both there, expected one of them",
                            a->tensor.file, a->stored, b->stored);
    }
    free(sorted);
    return status;
}

void tensors_close(tensors *tensors) {
    if (!tensors) return;
    for (int i = 0; i < tensors->count; i++) free(tensors->entries[i].stored);
    for (int i = 0; i < tensors->store_count; i++) {
        const owned *o = &tensors->stores[i];
        o->functions->close(o->store);
    }
    free(tensors->entries);
    free(tensors->stores);
    free(tensors->order);
    free(tensors);
}

/* ---- names ---- */

const char *tensors_stored_name(const tensors *tensors, int index) { return tensors->entries[index].stored; }

/* The length of what stands before openpi's names; LeRobot's prefix counts as a part of the name. */
static size_t wrapper_of(const char *name) {
    static const char *const firsts[] = {"paligemma_with_expert.", "action_in_proj.", "action_out_proj."};
    const size_t lerobot = sizeof LEROBOT_PREFIX - 1;
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        const char *at = strstr(name, firsts[i]);
        size_t length = at ? (size_t)(at - name) : 0;
        if (!length || name[length - 1] != '.') continue;
        int own = length >= lerobot && !strncmp(at - lerobot, LEROBOT_PREFIX, lerobot) &&
                  (length == lerobot || at[-(ptrdiff_t)lerobot - 1] == '.');
        return length - (own ? lerobot : 0);
    }
    return 0;
}

void tensors_unwrap(tensors *tensors, char *prefix, size_t bytes) {
    size_t length = 0;
    *prefix = 0;
    for (int i = 0; i < tensors->count && !length; i++) length = wrapper_of(tensors->entries[i].stored);
    if (!length || length >= bytes) return;
    for (int i = 0; i < tensors->count; i++)
        if (strncmp(tensors->entries[i].stored, tensors->entries[0].stored, length)) return;
    snprintf(prefix, bytes, "%.*s", (int)length, tensors->entries[0].stored);
    for (int i = 0; i < tensors->count; i++) {
        char *name = tensors->entries[i].stored;
        memmove(name, name + length, strlen(name + length) + 1);
    }
}

void tensors_strip_prefix(tensors *tensors) {
    for (int i = 0; i < tensors->count; i++)
        tensors->entries[i].tensor.name = without_lerobot_prefix(tensors->entries[i].stored);
}

void tensors_rename(tensors *tensors, int index, const char *name) {
    tensors->entries[index].tensor.name = name;
}

void tensors_drop(tensors *tensors, int index) {
    free(tensors->entries[index].stored);
    tensors->count--;
    memmove(&tensors->entries[index], &tensors->entries[index + 1],
            (size_t)(tensors->count - index) * sizeof *tensors->entries);
}

/* ---- looking ---- */

int tensors_count(const tensors *tensors) { return tensors->count; }

const tensor *tensors_at(const tensors *tensors, int index) { return &tensors->entries[index].tensor; }

int tensors_index(const tensors *tensors, const char *name) {
    for (int low = 0, high = tensors->count - 1; low <= high;) {
        int middle = low + (high - low) / 2;
        int index = tensors->order[middle], side = strcmp(name, tensors->entries[index].tensor.name);
        if (!side) return index;
        if (side < 0)
            high = middle - 1;
        else
            low = middle + 1;
    }
    return -1;
}

const tensor *tensors_find(const tensors *tensors, const char *name) {
    int index = tensors_index(tensors, name);
    return index < 0 ? NULL : &tensors->entries[index].tensor;
}

tensor *tensors_edit(tensors *tensors, int place) { return &tensors->entries[place].tensor; }

/* ---- stores ---- */

const char *tensors_metadata(const tensors *tensors, const char *key) {
    for (int i = 0; i < tensors->store_count; i++) {
        const owned *o = &tensors->stores[i];
        const char *value = o->functions->metadata ? o->functions->metadata(o->store, key) : NULL;
        if (value) return value;
    }
    return NULL;
}

static int files_of(const owned *o) { return o->functions->files ? o->functions->files(o->store) : 0; }

int tensors_files(const tensors *tensors) {
    int files = 0;
    for (int i = 0; i < tensors->store_count; i++) files += files_of(&tensors->stores[i]);
    return files;
}

const char *tensors_file(const tensors *tensors, int index, uint64_t *bytes) {
    const owned *o = tensors->stores;
    for (; index >= files_of(o); o++) index -= files_of(o);
    return o->functions->file(o->store, index, bytes);
}

void tensors_forget_pages(const tensors *tensors) {
    uint64_t bytes;
    for (int i = tensors_files(tensors) - 1; i >= 0; i--)
        file_forget_pages(tensors_file(tensors, i, &bytes));
}

void tensors_close_files(tensors *tensors) {
    for (int i = 0; i < tensors->store_count; i++) {
        const owned *o = &tensors->stores[i];
        if (o->functions->close_files) o->functions->close_files(o->store);
    }
}

openpi_status tensors_check(const tensors *tensors, openpi_error *error) {
    for (int i = 0; i < tensors->store_count; i++) {
        const owned *o = &tensors->stores[i];
        if (o->functions->check) TRY(o->functions->check(o->store, error));
    }
    return OPENPI_OK;
}

int tensors_stages(const tensors *tensors) {
    int most = 1;
    for (int i = 0; i < tensors->store_count; i++) {
        const owned *o = &tensors->stores[i];
        int stages = o->functions->stages ? o->functions->stages(o->store) : 1;
        if (stages > most) most = stages;
    }
    return most;
}

openpi_status tensors_stage(const tensors *tensors, int stage, struct pool *pool, openpi_error *error) {
    for (int i = tensors->store_count - 1; i >= 0; i--) {
        const owned *o = &tensors->stores[i];
        if (o->functions->stage) TRY(o->functions->stage(o->store, stage, pool, error));
    }
    return OPENPI_OK;
}

/* ---- a tensor's source ---- */

static const tensor_source *source_of(const tensor *tensor) {
    static const tensor_source none;
    return tensor->source ? tensor->source : &none;
}

const tensor_recipe *tensor_recipe_of(const tensor *tensor) {
    const tensor_source *source = source_of(tensor);
    return source->recipe && !tensor->data ? source->recipe(tensor) : NULL;
}

tensor_order tensor_order_of(const tensor *tensor) {
    const tensor_source *source = source_of(tensor);
    return source->order ? source->order(tensor) : (tensor_order){0};
}

openpi_status tensor_hold(const tensor *tensor, const decode_watch *watch, openpi_error *error) {
    const tensor_source *source = source_of(tensor);
    return source->hold ? source->hold(tensor, watch, error) : OPENPI_OK;
}

void tensor_release(const tensor *tensor) {
    const tensor_source *source = source_of(tensor);
    if (source->release) source->release(tensor);
}

dtype tensor_stored_type(const tensor *tensor) {
    const tensor_source *source = source_of(tensor);
    return source->stored_type ? source->stored_type(tensor) : tensor->type;
}

int tensor_has_lora(const tensor *tensor) {
    const tensor_source *source = source_of(tensor);
    return source->has_lora ? source->has_lora(tensor) : 0;
}

uint64_t tensor_stored_bytes(const tensor *tensor) {
    return (uint64_t)tensor_stored_count(tensor) * dtype_bytes(tensor_stored_type(tensor));
}

openpi_status tensors_load(tensors *tensors, openpi_error *error) {
    for (int i = 0; i < tensors->store_count; i++) {
        const owned *o = &tensors->stores[i];
        if (o->functions->load) TRY(o->functions->load(o->store, error));
    }
    for (int i = 0; i < tensors->count; i++) {
        tensor *t = tensors_edit(tensors, i);
        if (source_of(t)->loaded) t->data = t->source->loaded(t);
    }
    return OPENPI_OK;
}

void tensors_round(tensors *tensors, int on) {
    int rounds = 0;
    for (int i = 0; i < tensors->store_count; i++) {
        const owned *o = &tensors->stores[i];
        if (!o->functions->round) continue;
        o->functions->round(o->store, on);
        rounds = 1;
    }
    for (int i = 0; rounds && i < tensors->count; i++) {
        tensor *t = tensors_edit(tensors, i);
        t->rounded = on;
        if (source_of(t)->type) t->type = t->source->type(t);
    }
}

/* ---- shapes and types ---- */

const char *tensor_shape_text(int rank, const int64_t *shape, char *text, size_t bytes) {
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < rank && at < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%lld", i ? ", " : "[", (long long)shape[i]);
    if (at < bytes) snprintf(text + at, bytes - at, rank ? "]" : "[]");
    return text;
}

const char *dtype_name(dtype type) {
    static const char *const names[DTYPES] = {"F32", "BF16", "F16", "F64", "I64",  "I32",     "U8",     "I8",
                                              "I16", "U16",  "U32", "U64", "BOOL", "F8_E4M3", "F8_E5M2"};
    return names[type];
}

void tensors_widen(tensors *tensors, int place, int64_t rows, int64_t columns) {
    tensor *t = &tensors->entries[place].tensor;
    if (!rows && !t->narrow_rows) return;
    if (!rows) {
        rows = t->narrow_rows;
        columns = t->narrow_columns;
        t->narrow_rows = t->narrow_columns = 0;
    } else {
        t->narrow_rows = t->shape[0];
        t->narrow_columns = t->rank > 1 ? t->shape[1] : 1;
    }
    t->shape[0] = rows;
    if (t->rank > 1) t->shape[1] = columns;
    t->count = rows * (t->rank > 1 ? columns : 1);
}

/* ---- reading elements ---- */

static void copy_bytes(const tensor *tensor, uint64_t from, size_t bytes, void *to) {
    if (tensor->data) memcpy(to, (const char *)tensor->data + from, bytes);
    else tensor->source->bytes(tensor, from, bytes, to);
}

/* Elements that are converted at once, on the reading thread's stack. */
enum { PIECE = 2048, WIDEST = 8 };

/* Of a tensor with zeros around what is stored: row after row of what is wanted. */
static void read_wide(const tensor *wide, dtype type, int64_t first, int64_t count, char *out) {
    int64_t columns = wide->rank > 1 ? wide->shape[1] : 1, stored = wide->narrow_columns;
    size_t size = dtype_bytes(type);
    tensor narrow = *wide;
    narrow.narrow_rows = narrow.narrow_columns = 0;
    memset(out, 0, (size_t)count * size);
    for (int64_t at = first, end = first + count; at < end;) {
        int64_t row = at / columns, column = at % columns, next = (row + 1) * columns;
        int64_t last = next < end ? next : end, kept = row * columns + stored;
        if (kept > last) kept = last;
        if (row < wide->narrow_rows && at < kept)
            tensor_read(&narrow, type, row * stored + column, kept - at, out + (size_t)(at - first) * size);
        at = last;
    }
}

/* What is stored as bytes, or in memory. */
static void read_bytes(const tensor *tensor, dtype type, int64_t first, int64_t count, void *out) {
    size_t stored = dtype_bytes(tensor->type), wanted = dtype_bytes(type);
    char piece[PIECE * WIDEST];
    if (tensor->type == type && !(tensor->rounded && type == DTYPE_F32)) {
        copy_bytes(tensor, (uint64_t)first * stored, (size_t)count * stored, out);
        return;
    }
    for (int64_t at = 0; at < count; at += PIECE) {
        int n = count - at < PIECE ? (int)(count - at) : PIECE;
        void *to = (char *)out + (size_t)at * wanted;
        copy_bytes(tensor, (uint64_t)(first + at) * stored, (size_t)n * stored, piece);
        if (type == DTYPE_BF16) convert_to_bf16(tensor->type, piece, (size_t)n, to);
        else convert_to_f32(tensor->type, piece, (size_t)n, to);
        if (tensor->rounded && type == DTYPE_F32) convert_round(to, (size_t)n);
    }
}

void tensor_read(const tensor *tensor, dtype type, int64_t first, int64_t count, void *out) {
    if (count <= 0) return;
    if (tensor->narrow_rows) read_wide(tensor, type, first, count, out);
    else if (source_of(tensor)->read && !tensor->data) tensor->source->read(tensor, type, first, count, out);
    else read_bytes(tensor, type, first, count, out);
}
