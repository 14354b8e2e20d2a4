/* The order of a packed matrix's columns; layout.h draws it. */
#include "backend/cpu/layout.h"

int layout_panels(const matrix *m) {
    switch (m->form) {
    case MATRIX_PLAIN: return panels_of(m->n);
    case MATRIX_GATED: return halves_of(m->n / 2);
    case MATRIX_QKV: return (m->heads + 1) * halves_of(m->head_dim / 2) + panels_of(m->head_dim);
    }
    return 0;
}

/* 16 columns: rows from … that stay below end. */
static void half(int *rows, int from, int end) {
    for (int c = 0; c < HALF_PANEL; c++) rows[c] = from + c < end ? from + c : -1;
}

static void two_halves(int *rows, int from, int from_end, int to, int to_end) {
    half(rows, from, from_end);
    half(rows + HALF_PANEL, to, to_end);
}

void layout_columns(const matrix *m, int panel, int rows[PANEL]) {
    if (m->form == MATRIX_GATED) {
        int gates = m->n / 2, at = panel * HALF_PANEL;
        two_halves(rows, at, gates, gates + at, m->n);
    } else if (m->form == MATRIX_QKV) {
        qkv_panel p = layout_qkv_panel(m->heads, m->head_dim, panel);
        int head = p.head * m->head_dim, middle = head + m->head_dim / 2, end = head + m->head_dim;
        if (p.head <= m->heads)
            two_halves(rows, head + p.first, middle, middle + p.first, end);
        else
            two_halves(rows, head + p.first, end, head + p.first + HALF_PANEL, end);
    } else {
        two_halves(rows, panel * PANEL, m->n, panel * PANEL + HALF_PANEL, m->n);
    }
}
