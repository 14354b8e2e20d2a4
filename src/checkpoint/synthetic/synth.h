/* The generator of synthetic checkpoints: value(i) = offset + scale·u(i), see tests/golden/SYNTH.md. */
#ifndef MODEL_SYNTH_H
#define MODEL_SYNTH_H

#include "checkpoint/tensors.h"

/* A version of the generator. All give the same bits; they differ in the instructions they need. */
typedef struct synth_kernel {
    const char *name;
    void (*read_f32)(const tensor_recipe *recipe, int64_t first, int64_t count, float *out);
    void (*read_bf16)(const tensor_recipe *recipe, int64_t first, int64_t count, bf16 *out);
} synth_kernel;

enum { SYNTH_KERNELS = 3 };

/* Added to elements from raise_from on: the last third of an adaptive norm's bias, which opens its gates. */
#define SYNTH_RAISE 0.7

/* 0: scalar, 1: AVX2, 2: AVX-512. NULL where this machine or build lacks it. */
const synth_kernel *synth_kernel_at(int level);
/* The fastest that runs here. */
const synth_kernel *synth_kernel_best(void);

/* A tensor's recipe from its name and shape. */
tensor_recipe synth_recipe(const tensor *tensor, uint64_t seed);

/* The tensors of a synthetic checkpoint: nothing is stored. */
openpi_status tensors_synthetic(const openpi_synthetic *synthetic, tensors **out, openpi_error *error);

/* The kernels, one file each; NULL functions where not built. */
extern const synth_kernel synth_scalar, synth_avx2, synth_avx512;

#endif
