/* Names the kernels of 1 … N rows: a product's inner loop is compiled once for each number of rows, so
 * that its accumulators are registers. `tile` is an always-inline function whose first argument is that
 * number. */
#ifndef CPU_BROADCAST_H
#define CPU_BROADCAST_H

#include "base/sanitizer.h"

#define BROADCAST_INLINE SANITIZER_BLIND static inline __attribute__((always_inline))

/* Before a loop over registers: without it gcc keeps the array in memory. */
#if defined(__clang__)
#define BROADCAST_UNROLL _Pragma("unroll")
#else
#define BROADCAST_UNROLL _Pragma("GCC unroll 32")
#endif

#define BROADCAST_ROWS_6(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define BROADCAST_ROWS_12(X) BROADCAST_ROWS_6(X) X(7) X(8) X(9) X(10) X(11) X(12)

typedef void (*broadcast_kernel)(int k, const void *a, const void *b, float *c, int accumulate);

#endif
