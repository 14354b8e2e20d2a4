#include "checkpoint/jax/lora.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/convert.h"
#include "base/report.h"
#include "checkpoint/low_rank.h"

/* ---- names ---- */

int lora_names(const char *name, char *target, size_t bytes, int *which) {
    static const struct { const char *tail, *w; } forms[] = {{".lora_a", ".w"},
                                                             {".lora_b", ".w"},
                                                             {".gating_einsum_lora_a", ".gating_einsum"},
                                                             {".gating_einsum_lora_b", ".gating_einsum"},
                                                             {".linear_lora_a", ".linear"},
                                                             {".linear_lora_b", ".linear"}};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        size_t tail = strlen(forms[i].tail);
        if (length <= tail || strcmp(name + length - tail, forms[i].tail)) continue;
        snprintf(target, bytes, "%.*s%s", (int)(length - tail), name, forms[i].w);
        *which = name[length - 1] == 'a' ? LORA_A : LORA_B;
        return 1;
    }
    return 0;
}

/* ---- opening ---- */

openpi_status lora_add(lora *lora, int which, const values *values, const char *key, openpi_error *error) {
    struct lora_factor *f = &lora->factors[which];
    if (f->zarr.name) return report(error, OPENPI_BAD_FILE, "array \"%s\" is there twice", key);
    char *name = strdup(key);
    if (!name) return report_no_memory(error, strlen(key) + 1, key);
    openpi_status status = zarr_open(values, name, &f->zarr, error);
    f->zarr.name = name;
    return status;
}

/* The factor has W's axes but for one, `axis`, which is the rank. */
static openpi_status check_shape(const zarr_array *f, const zarr_array *w, int axis, openpi_error *error) {
    if (f->rank != w->rank)
        return report(error, OPENPI_BAD_FILE, "array \"%s\" has %d axes, expected %d as \"%s\" has", f->name,
                      f->rank, w->rank, w->name);
    for (int i = 0; i < w->rank; i++)
        if (i != axis && f->shape[i] != w->shape[i])
            return report(error, OPENPI_BAD_FILE,
                          "array \"%s\": axis %d is %lld, expected %lld as \"%s\" has", f->name, i,
                          (long long)f->shape[i], (long long)w->shape[i], w->name);
    return OPENPI_OK;
}

openpi_status lora_check(lora *lora, const zarr_array *w, openpi_error *error) {
    const zarr_array *a = &lora->factors[LORA_A].zarr, *b = &lora->factors[LORA_B].zarr;
    int last = w->rank - 1;
    if (!a->name || !b->name)
        return report(error, OPENPI_BAD_FILE, "array \"%s\" is half of a LoRA pair, its lora_%c is missing",
                      a->name ? a->name : b->name, a->name ? 'b' : 'a');
    TRY(check_shape(a, w, last, error));
    TRY(check_shape(b, w, last - 1, error));
    lora->rows = w->shape[last - 1];
    lora->columns = w->shape[last];
    lora->rank = a->shape[last];
    lora->summed = strstr(w->name, "attn_vec_einsum") != NULL;
    if (b->shape[last - 1] != lora->rank)
        return report(error, OPENPI_BAD_FILE, "array \"%s\" is of rank %lld, expected %lld as \"%s\" is",
                      b->name, (long long)b->shape[last - 1], (long long)lora->rank, a->name);
    int64_t most = lora->rows < lora->columns ? lora->rows : lora->columns;
    if (lora->rank < 1 || lora->rank > most)
        return report(error, OPENPI_BAD_FILE, "array \"%s\" is of rank %lld, expected 1 to %lld", a->name,
                      (long long)lora->rank, (long long)most);
    return OPENPI_OK;
}

void lora_rewind(lora *lora) {
    for (int i = 0; i < 2; i++) {
        struct lora_factor *f = &lora->factors[i];
        zarr_reader_close(f->reader);
        free(f->values);
        f->reader = NULL;
        f->values = NULL;
        f->next = 0;
    }
}

void lora_close(lora *lora) {
    if (!lora) return;
    lora_rewind(lora);
    for (int i = 0; i < 2; i++) free((char *)(uintptr_t)lora->factors[i].zarr.name);
    free(lora);
}

/* ---- decoding ---- */

/* The layer that the reader stands before. */
static openpi_status read_layer(struct lora_factor *f, int64_t lines, openpi_error *error) {
    int64_t count = lines * zarr_line_length(&f->zarr);
    size_t bytes = (size_t)count * sizeof(float), stored = (size_t)count * dtype_bytes(f->zarr.type);
    if (!f->values && !(f->values = malloc(bytes))) return report_no_memory(error, bytes, f->zarr.name);
    if (f->zarr.type == DTYPE_F32) return zarr_reader_lines(f->reader, lines, f->values, error);
    char *narrow = malloc(stored);
    if (!narrow) return report_no_memory(error, stored, f->zarr.name);
    openpi_status status = zarr_reader_lines(f->reader, lines, narrow, error);
    if (status == OPENPI_OK) convert_to_f32(f->zarr.type, narrow, (size_t)count, f->values);
    free(narrow);
    return status;
}

/* Every head's b becomes the sum of all of them. */
static void sum_heads(const lora *lora) {
    float *b = lora->factors[LORA_B].values;
    int64_t one = lora->rank * lora->columns, heads = lora->factors[LORA_B].zarr.shape[1];
    for (int64_t head = 1; head < heads; head++)
        for (int64_t i = 0; i < one; i++) b[i] += b[head * one + i];
    for (int64_t head = 1; head < heads; head++) memcpy(b + head * one, b, (size_t)one * sizeof *b);
}

openpi_status lora_layer(lora *lora, int64_t layer, openpi_error *error) {
    for (int i = 0; i < 2; i++) {
        struct lora_factor *f = &lora->factors[i];
        int64_t lines = zarr_lines(&f->zarr) / f->zarr.shape[0];
        if (!f->reader) TRY(zarr_reader_open(&f->zarr, &f->reader, error));
        TRY(zarr_reader_lines(f->reader, lines * (layer - f->next), NULL, error));
        f->next = layer + 1;
        TRY(read_layer(f, lines, error));
    }
    if (lora->summed) sum_heads(lora);
    return OPENPI_OK;
}

void lora_merge(const lora *lora, dtype type, const void *w, int64_t line, int64_t count, float *out) {
    int64_t columns = lora->columns, rank = lora->rank;
    convert_to_f32(type, w, (size_t)(count * columns), out);
    for (int64_t first = 0; first < columns; first += LOW_RANK_BLOCK) {
        int64_t width = columns - first < LOW_RANK_BLOCK ? columns - first : LOW_RANK_BLOCK;
        for (int64_t i = 0; i < count; i++) {
            const float *a = lora->factors[LORA_A].values + (line + i) * rank;
            const float *b =
                lora->factors[LORA_B].values + (line + i) / lora->rows * rank * columns + first;
            low_rank_add(a, b, rank, columns, 1, width, out + i * columns + first);
        }
    }
}
