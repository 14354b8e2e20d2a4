/* Where an element is in the packed forms: weights, keys, values. All three are panels of 32 columns
 * (kernels.h).
 *
 *   weights   panel p holds 32 outputs, in an order in which a tile has all that its epilogue combines:
 *               PLAIN   32p … 32p+31
 *               GATED   16 gates and the 16 ups that they gate
 *               QKV     q and k: 16 of a head's first half and the 16 that RoPE pairs with them; v: plain
 *             Columns that no output fills are zero.
 *   keys      a sample's block: panels of 32 places, k of the product runs over head_dim (padded to 32)
 *   values    panels of 32 dimensions, k of the product runs over places */
#ifndef CPU_LAYOUT_H
#define CPU_LAYOUT_H

#include "backend/cpu/kernels.h"

static inline int round_up(int n, int step) { return (n + step - 1) / step * step; }
static inline int panels_of(int n) { return (n + PANEL - 1) / PANEL; }
static inline int halves_of(int n) { return (n + HALF_PANEL - 1) / HALF_PANEL; }

/* Pieces of a panel begin at multiples of this; its k is padded to one, but for fp32. */
static inline int layout_k_step(weight_type type) {
    return weight_formats[type].bits == 8 ? INT8_K_PAD : K_PAD;
}

/* k as stored in a panel. */
static inline int layout_k(weight_type type, int k) {
    return type == WEIGHT_F32 ? k : round_up(k, layout_k_step(type));
}

int layout_panels(const matrix *matrix);
/* The logical row of each column of a panel, -1 for none. */
void layout_columns(const matrix *matrix, int panel, int rows[PANEL]);

static inline size_t layout_panel_bytes(weight_type type, int k) {
    return PANEL * weight_row_bytes(&weight_formats[type], layout_k(type, k));
}

static inline size_t layout_cache_bytes(int capacity, int head_dim, dtype type) {
    return (size_t)round_up(capacity, PANEL) * (size_t)round_up(head_dim, PANEL) * dtype_bytes(type);
}

/* Elements from the start of a sample's block. */
static inline size_t layout_key(dtype type, int head_dim, int place, int i) {
    size_t panel = (size_t)(place / PANEL) * (size_t)round_up(head_dim, PANEL) * PANEL;
    if (type == DTYPE_F32) return panel + (size_t)i * PANEL + (size_t)(place % PANEL);
    return panel + (size_t)(i / 2) * PANEL * 2 + (size_t)(place % PANEL) * 2 + (size_t)(i & 1);
}

static inline size_t layout_value(dtype type, int capacity, int place, int i) {
    size_t panel = (size_t)(i / PANEL) * (size_t)round_up(capacity, PANEL) * PANEL;
    if (type == DTYPE_F32) return panel + (size_t)place * PANEL + (size_t)(i % PANEL);
    return panel + (size_t)(place / 2) * PANEL * 2 + (size_t)(i % PANEL) * 2 + (size_t)(place & 1);
}

/* What a panel of a QKV matrix is. */
typedef struct qkv_panel {
    int head;                    /* 0 … heads-1: q; heads: k; heads+1: v                                    */
    int first;                   /* q, k: first element of the half head; v: first element                  */
} qkv_panel;

static inline qkv_panel layout_qkv_panel(int heads, int head_dim, int panel) {
    int per_head = halves_of(head_dim / 2), head = panel / per_head;
    if (head <= heads) return (qkv_panel){head, panel % per_head * HALF_PANEL};
    return (qkv_panel){heads + 1, (panel - (heads + 1) * per_head) * PANEL};
}

#endif
