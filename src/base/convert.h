/* Elements of any type as fp32 or bf16. `from` may have any alignment. */
#ifndef BASE_CONVERT_H
#define BASE_CONVERT_H

#include "base/dtype.h"

/* out must not overlap from. bf16 rounds to nearest even. */
void convert_to_f32(dtype type, const void *from, size_t count, float *out);
void convert_to_bf16(dtype type, const void *from, size_t count, bf16 *out);

/* `count` bf16 values at the start of `values` become fp32 in place. */
void convert_widen(float *values, size_t count);
/* fp32 values become the nearest bf16 values. */
void convert_round(float *values, size_t count);

#endif
