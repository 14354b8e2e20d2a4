/* The definition of every operation: plain scalar C over canonical layouts, kept for ever.
 *
 * Canonical layouts: a matrix is row-major [n][k] in its type; a sample's K (or V) block is row-major
 * [capacity][head_dim] act, and blocks of samples follow each other. Sums run in double, so that a fast
 * version's error is its own. first … end-1 are the rows to do (of *rows.count): rows do not depend on each
 * other within one call, so callers may share them out. Each caller brings a scratch of its own of
 * reference_bytes: a row may be longer than a thread's stack.
 */
#ifndef OPS_REFERENCE_H
#define OPS_REFERENCE_H

#include "ops/ops.h"

#define X(kind, member, type) void reference_##member(const op *op, int first, int end, void *scratch);
OP_LIST(X)
#undef X

typedef void (*reference_op)(const op *op, int first, int end, void *scratch);

/* By op_kind. */
extern const reference_op reference_ops[OP_KINDS];

/* Bytes of scratch of an op, a multiple of 64; it is aligned as malloc aligns. */
size_t reference_bytes(const op *op);

/* The row_set that shares out an op's work. */
const row_set *op_rows(const op *op);

/* Where row r's norm weight, norm bias and gate begin, in floats after those of the op. */
static inline int modulation_of(const row_set *rows, int r) {
    return rows->known ? rows->known[r] * rows->known_at : 0;
}
/* A velocity's; 0 where row r stays as it is. */
static inline float dt_of_row(const row_set *rows, const float *own_dt, float dt, int r) {
    if (own_dt) return own_dt[r];
    return rows->known && rows->known[r] ? 0 : dt;
}
static inline norm norm_of_row(const norm *norm, const row_set *rows, int r) {
    struct norm own = *norm;
    int at = modulation_of(rows, r);
    if (at && own.weight) own.weight += at;     /* a norm of nothing has neither */
    if (at && own.bias) own.bias += at;
    return own;
}

#endif
