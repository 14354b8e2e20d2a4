/* From rows to panels: once, when weights are loaded, or before each product over raw ones. */
#include "backend/cpu/raw.h"

#include <string.h>

#include "backend/cpu/layout.h"

enum { ALIGN = 256 };

/* The kernels that read its panels; NULL: there are none. */
static const cpu_product *product_of(const cpu_kernels *kernels, const matrix *m) {
    if (m->input == INPUT_INT8) return kernels->product[CPU_INT8][m->type];
    const cpu_product *floats = kernels->product[CPU_F32][m->type];
    return floats ? floats : kernels->product[CPU_BF16][m->type];
}

/* Columns of codes, [k][32]. */
static void pack_codes(const matrix *m, const void *const rows[PANEL], char *to) {
    memset(to, 0, layout_panel_bytes(m->type, m->k));
    for (int i = 0; i < m->k; i++, to += PANEL)
        for (int c = 0; c < PANEL; c++)
            if (rows[c]) to[c] = ((const char *)rows[c])[i];
}

/* Codes of 8 bits and their padding. */
static void add_bias(char *to, size_t bytes, int bias) {
    for (size_t i = 0; bias && i < bytes; i++) to[i] = (char)(to[i] + bias);
}

void cpu_pack_panel(const cpu_kernels *kernels, const matrix *m, const void *const rows[PANEL], char *to) {
    const cpu_product *product = product_of(kernels, m);
    size_t bytes = weight_row_bytes(&weight_formats[m->type], m->k), whole = bytes / sizeof(uint32_t);
    uint32_t *end = (uint32_t *)to + whole * PANEL;
    if (weight_formats[m->type].bits == 8 && m->input == INPUT_ACT) {
        pack_codes(m, rows, to);
        return;
    }
    size_t rest = layout_panel_bytes(m->type, m->k) - whole * PANEL * sizeof *end;
    kernels->elements->columns((uint32_t *)to, rows, (int)whole);
    if (rest) memset(end, 0, rest);
    whole *= sizeof *end;
    for (int c = 0; bytes > whole && c < PANEL; c++)
        if (rows[c]) memcpy(end + c, (const char *)rows[c] + whole, bytes - whole);
    if (product) add_bias(to, layout_panel_bytes(m->type, m->k), product->bias);
}

int cpu_in_rows(const cpu_kernels *kernels, const matrix *m) { return m->raw || !product_of(kernels, m); }

/* A matrix as its product sees it. */
static matrix seen(const cpu_kernels *kernels, const matrix *m) {
    matrix own = *m;
    own.raw = 0;
    if (!product_of(kernels, m)) own.type = WEIGHT_F32;
    return own;
}

void cpu_raw_types(const cpu_kernels *kernels, op *op) {
    matrix *list[OP_MATRICES];
    for (int i = 0, count = op_matrices(op, list); i < count; i++) *list[i] = seen(kernels, list[i]);
}

static size_t align(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static size_t packed_bytes(const cpu_kernels *kernels, const matrix *m) {
    const matrix own = seen(kernels, m);
    return align((size_t)layout_panels(m) * layout_panel_bytes(own.type, own.k));
}

/* A thread's columns of a panel, decoded. */
static size_t decoded_bytes(const cpu_kernels *kernels, const matrix *m) {
    return product_of(kernels, m) ? 0 : align(PANEL * (size_t)m->k * sizeof(float));
}

size_t cpu_raw_bytes(const cpu_kernels *kernels, pool *pool, const op *op) {
    struct op copy = *op;
    matrix *list[OP_MATRICES];
    size_t bytes = 0, decoded = 0;
    for (int i = 0, count = op_matrices(&copy, list); i < count; i++) {
        if (!cpu_in_rows(kernels, list[i])) continue;
        bytes += packed_bytes(kernels, list[i]);
        if (decoded_bytes(kernels, list[i]) > decoded) decoded = decoded_bytes(kernels, list[i]);
    }
    return bytes + decoded * (size_t)pool_threads(pool);
}

typedef struct loop {
    const cpu_kernels *kernels;
    const matrix *matrix;        /* row-major                                                              */
    matrix packed;
    char *to, *decoded;          /* decoded: [threads][decoded_bytes]                                      */
} loop;

/* Row r as numbers: of a product of integer rows its codes, else its weights. */
static void decode_row(const matrix *m, int r, float *out) {
    const weight_format *format = &weight_formats[m->type];
    const char *codes = (const char *)m->data + (size_t)r * weight_row_bytes(format, m->k);
    if (m->input == INPUT_INT8) format->decode(codes, 0, m->k, out);
    else weight_decode(format, codes, m->scales + r * weight_groups(format, m->k), m->k, 0, m->k, out);
}

static void panel_task(void *argument, int panel, int worker) {
    const loop *l = argument;
    const matrix *m = l->matrix;
    size_t row_bytes = weight_row_bytes(&weight_formats[m->type], m->k);
    float *decoded = (float *)(l->decoded + (size_t)worker * decoded_bytes(l->kernels, m));
    int rows[PANEL];
    const void *columns[PANEL];
    layout_columns(m, panel, rows);
    for (int c = 0; c < PANEL; c++) {
        columns[c] = rows[c] < 0 ? NULL : (const char *)m->data + (size_t)rows[c] * row_bytes;
        if (rows[c] < 0 || product_of(l->kernels, m)) continue;
        columns[c] = decoded + (size_t)c * (size_t)m->k;
        decode_row(m, rows[c], decoded + (size_t)c * (size_t)m->k);
    }
    cpu_pack_panel(l->kernels, &l->packed, columns,
                   l->to + (size_t)panel * layout_panel_bytes(l->packed.type, m->k));
}

void *cpu_raw_pack(const cpu_kernels *kernels, pool *pool, op *op, void *work) {
    matrix *list[OP_MATRICES];
    size_t used = 0;
    int count = op_matrices(op, list);
    for (int i = 0; i < count; i++)
        if (cpu_in_rows(kernels, list[i])) used += packed_bytes(kernels, list[i]);
    size_t all = cpu_raw_bytes(kernels, pool, op);
    char *to = work, *decoded = to + used;
    for (int i = 0; i < count; i++) {
        loop l = {kernels, list[i], seen(kernels, list[i]), to, decoded};
        if (!cpu_in_rows(kernels, list[i])) continue;
        pool_run(pool, panel_task, &l, layout_panels(list[i]));
        to += packed_bytes(kernels, list[i]);
        l.packed.data = l.to;
        *list[i] = l.packed;
    }
    return (char *)work + all;
}
