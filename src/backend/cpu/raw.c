/* From rows to panels: once, when weights are loaded, or before each product over raw ones. */
#include "backend/cpu/raw.h"

#include <string.h>

#include "backend/cpu/layout.h"

enum { ALIGN = 256 };

void cpu_pack_panel(const cpu_kernels *kernels, const matrix *m, const void *const rows[PANEL], char *to) {
    int pairs = m->type == WEIGHT_BF16, words = pairs ? m->k / 2 : m->k;
    uint32_t *end = (uint32_t *)to + (size_t)words * PANEL;
    size_t rest = layout_panel_bytes(m->type, m->k) - (size_t)words * PANEL * sizeof *end;
    kernels->elements->columns((uint32_t *)to, rows, words);
    if (rest) memset(end, 0, rest);
    if (pairs && m->k & 1)
        for (int c = 0; c < PANEL; c++)
            if (rows[c]) memcpy(end + c, (const char *)rows[c] + (size_t)words * sizeof *end, sizeof(bf16));
}

static size_t packed_bytes(const matrix *m) {
    return m->raw ? ((size_t)layout_panels(m) * layout_panel_bytes(m->type, m->k) + ALIGN - 1) / ALIGN * ALIGN
                  : 0;
}

size_t cpu_raw_bytes(const op *op) {
    struct op copy = *op;
    matrix *list[OP_MATRICES];
    size_t bytes = 0;
    for (int i = 0, count = op_matrices(&copy, list); i < count; i++) bytes += packed_bytes(list[i]);
    return bytes;
}

typedef struct loop {
    const cpu_kernels *kernels;
    const matrix *matrix;
    char *to;
} loop;

static void panel_task(void *argument, int panel, int worker) {
    const loop *l = argument;
    const matrix *m = l->matrix;
    size_t row_bytes = weight_row_bytes(&weight_formats[m->type], m->k);
    int rows[PANEL];
    const void *columns[PANEL];
    (void)worker;
    layout_columns(m, panel, rows);
    for (int c = 0; c < PANEL; c++)
        columns[c] = rows[c] < 0 ? NULL : (const char *)m->data + (size_t)rows[c] * row_bytes;
    cpu_pack_panel(l->kernels, m, columns, l->to + (size_t)panel * layout_panel_bytes(m->type, m->k));
}

void *cpu_raw_pack(const cpu_kernels *kernels, pool *pool, op *op, void *work) {
    matrix *list[OP_MATRICES];
    char *to = work;
    for (int i = 0, count = op_matrices(op, list); i < count; i++) {
        loop l = {kernels, list[i], to};
        if (!list[i]->raw) continue;
        pool_run(pool, panel_task, &l, layout_panels(list[i]));
        to += packed_bytes(list[i]);
        list[i]->data = l.to;
        list[i]->raw = 0;
    }
    return to;
}
