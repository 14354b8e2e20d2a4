/* Which rows of W packed columns are (args.h). Plain C, read by both compilers, so that whoever
 * packs puts them in one order: the host (pack.c) and the kernels. */
#ifndef BACKEND_GPU_KERNELS_ROW_ORDER_H
#define BACKEND_GPU_KERNELS_ROW_ORDER_H

#ifndef GPU_BOTH                           /* a vendor's compiler of kernels has its own                    */
#define GPU_BOTH static inline
#endif

typedef struct gpu_row_order {
    int n;                                 /* rows of W                                                     */
    int paired_columns;                    /* packed columns that are paired; after them plain ones        */
    int head_columns;                      /* paired: packed columns of both halves of a head               */
    int half;                              /* paired: rows of a half                                        */
    int plain_row;                         /* the first row of plain columns                                */
} gpu_row_order;

/* The rows of packed columns 8·group … 8·group + 7: the first and how many; the rest is padding. */
GPU_BOTH int gpu_group_rows(const gpu_row_order *o, int group, int *count) {
    int row = o->plain_row + group * 8 - o->paired_columns, left = o->n - row;
    if (group * 8 < o->paired_columns) {
        int head_groups = o->head_columns / 8, head = group / head_groups, in = group % head_groups,
            i = in / 2 * 8;
        left = o->half - i;
        row = head * 2 * o->half + (in & 1 ? o->half : 0) + i;
    }
    *count = left < 0 ? 0 : left < 8 ? left : 8;
    return row;
}

#endif
