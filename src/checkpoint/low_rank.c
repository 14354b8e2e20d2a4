#include "checkpoint/low_rank.h"

/* to[n] += factor · a[rank] · b[rank][n], whose rows are `columns` apart. Inlined: loops of a constant n
 * are vectorised. */
static inline __attribute__((always_inline)) void add_block(const float *a, const float *b, int64_t rank,
                                                            int64_t columns, float factor, int n, float *to) {
    float change[LOW_RANK_BLOCK] = {0};
    for (int64_t k = 0; k < rank; k++)
        for (int c = 0; c < n; c++) change[c] += a[k] * b[k * columns + c];
    for (int c = 0; c < n; c++) to[c] += factor * change[c];
}

void low_rank_add(const float *a, const float *b, int64_t rank, int64_t columns, float factor, int64_t count,
                  float *to) {
    for (; count >= LOW_RANK_BLOCK; count -= LOW_RANK_BLOCK, b += LOW_RANK_BLOCK, to += LOW_RANK_BLOCK)
        add_block(a, b, rank, columns, factor, LOW_RANK_BLOCK, to);
    if (count) add_block(a, b, rank, columns, factor, (int)count, to);
}
