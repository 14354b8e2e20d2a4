/* Packed weights as kernels for tensor cores see them: sizes of an atom, its place in memory, and how a
 * matrix instruction reads it. A kernel names its format once, in a typedef: `atom`.
 *
 * wgmma takes whole atoms from shared memory (operands in wgmma.cuh); mma16 takes what load_fragment reads. A
 * format is a row of weight_tile.h; where it has to be decoded, load_fragment is where. */
#ifndef KERNELS_CUDA_WEIGHT_TILE_CUH
#define KERNELS_CUDA_WEIGHT_TILE_CUH

#include "common.cuh"
#include "backend/gpu/cuda/weight_tile.h"

/* An atom's packed columns, its k, bytes of a column, bytes; matrix instructions that its k needs, and how
 * far it is from one to the next and (NEXT) to the next atom, in units of wgmma's descriptors, 16 bytes. */
template <int FORMAT> struct weight_tile;
#define WEIGHT_TILE(FORMAT, COLUMNS_, K_, ROW_, INSTRUCTION_K)                                               \
    template <> struct weight_tile<GPU_WEIGHT_##FORMAT> {                                                    \
        enum {                                                                                               \
            COLUMNS = COLUMNS_, K = K_, ROW = ROW_, BYTES = COLUMNS_ * ROW_,                                 \
            STEPS = K_ / INSTRUCTION_K, STEP = ROW_ / STEPS / 16, NEXT = BYTES / 16,                         \
        };                                                                                                   \
    };
GPU_WEIGHT_TILES(WEIGHT_TILE)
#undef WEIGHT_TILE

static_assert(weight_tile<GPU_WEIGHT_BF16>::BYTES == GPU_ATOM_BYTES, "the layout of args.h");

/* In memory: the atom of a group of columns and a block of k, where the matrix has `blocks` of these. */
template <class ATOM> DEV const char *atom_of(const void *data, int blocks, int group, int block) {
    return (const char *)data + ((size_t)group * blocks + block) * ATOM::BYTES;
}

/* Half `half` of an atom in shared memory, as mma16's B: b0 and b1 of two steps of 16 k. `at`: the atom, and
 * the lane's column of it. */
template <class ATOM> DEV u32 fragment_column(int lane) { return (lane & 7) * ATOM::ROW; }
template <class ATOM> DEV void load_fragment(u32 (&b)[4], u32 at, int half, int lane) {
    load_matrix4(b, at + (((4 * half + (lane >> 3)) ^ (lane & 7)) << 4));
}

#endif
