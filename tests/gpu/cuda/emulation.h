/* A GPU with warps of 32 lanes and the instructions of sm_80, on one thread of the host.
 *
 * Every thread of a block is a fiber with a stack of its own. A lane runs until its next collective, then
 * another lane of the warp does; when no lane of the mask is left, the last one carries the collective out. A
 * warp runs until all its lanes wait for the block, or have ended, then another warp does. In which order
 * lanes and warps run is drawn anew each time, so what is read with no barrier after it was written is read
 * too early somewhere.
 *
 * Blocks run one after the other, unless the launch says that they are together: then all are alive, and
 * one runs until its threads have ended, or wait for it or for a count that other blocks bring (emu_await).
 * Which block goes on is drawn.
 *
 * Shared memory is poisoned with NaN when a block begins: the launch's own (`extern __shared__`, whatever its
 * name) and that of the kernels (`__shared__`), which is all thread-local memory of the library: see
 * EMU_DYNAMIC_NAMES. Asynchronous copies poison the place that they go to when they are issued, and are done
 * when the thread waits for their group.
 *
 * A launch fails with a sentence, and its kernel is left where it stands, when
 *   - lanes of a warp, or warps of a block, arrive at different collectives, or a lane of the mask has ended.
 *     Threads that have ended are not waited for at __syncthreads()
 *   - warps wait at a barrier of their own for more threads than will ever come
 *   - an instruction's address in shared memory lies outside of the launch's, or is not aligned
 *   - something is written in shared memory right behind the launch's
 *   - all blocks wait for each other, or one waits for blocks that need not be alive
 *   - a shuffle asks for a lane that is not of the mask
 *
 * What C++ itself reads and writes is not checked, but for what was poisoned. */
#ifndef TESTS_GPU_CUDA_EMULATION_H
#define TESTS_GPU_CUDA_EMULATION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_WARP = 32, EMU_MOST_THREADS = 1024, EMU_MOST_SHARED = 227 << 10, EMU_MOST_TOGETHER = 16 };

/* The names that kernels give to `extern __shared__` memory: one block of memory with all of them. */
#define EMU_DYNAMIC_NAMES(X) X(memory) X(image_tiles) X(x) X(scores)

/* The kernels' argument types. A kernel is found by its C++ name, which tells its argument's. */
#define EMU_ARGUMENTS(X)                                                                                    \
    X(gpu_linear) X(gpu_linear_parts) X(gpu_norm) X(gpu_patches) X(gpu_text) X(gpu_image_attention)         \
    X(gpu_cache_attention) X(gpu_activate) X(gpu_add) X(gpu_rope_cache) X(gpu_softmax) X(gpu_attend)        \
    X(gpu_some) X(gpu_joined_attention) X(gpu_raw) X(gpu_roof_work) X(gpu_guide) X(gpu_generate)            \
    X(gpu_int8_product) X(gpu_int8_rows) X(gpu_unpack) X(gpu_resident_mma)         \
    X(gpu_int8_coded) X(gpu_int8_fixed_rows)                                       \
    X(gpu_join_norm)

/* ---- for kernels (instructions.cuh) -------------------------------------------------------------------- */

typedef struct emu_index {
    unsigned x, y, z;
} emu_index;

typedef struct emu_place {
    emu_index thread, block, threads, blocks;
} emu_place;

extern const emu_place *emu_now;           /* the place of the thread that runs                            */

void emu_block_wait(const char *file, int line);
/* `threads` threads, whole warps, at barrier `id`. */
void emu_group_wait(int id, int threads, const char *file, int line);
void emu_warp_wait(uint32_t mask, const char *file, int line);
/* What lane `from` gives. */
uint32_t emu_shuffle(uint32_t mask, uint32_t x, int from, const char *file, int line);
int emu_most(uint32_t mask, int x, const char *file, int line);
/* 8 x 8 matrices of 16 bits (1, 2 or 4), a register each. */
void emu_load_matrix(uint32_t *r, int matrices, int transposed, uint32_t at, const char *file, int line);
/* c += A 16 x k · B k x 8, k 8 or 16. */
void emu_mma(float *c, const uint32_t *a, const uint32_t *b, int k, const char *file, int line);
/* The same with 8-bit integers, k 32. */
void emu_mma_int8(int32_t *c, const uint32_t *a, const uint32_t *b, const char *file, int line);

uint32_t emu_shared_address(const void *p);
/* `bytes` bytes of shared memory, aligned to as many. */
void *emu_shared(uint32_t at, uint32_t bytes, const char *file, int line);
void emu_copy16(uint32_t to, const void *from, int there, const char *file, int line);
void emu_copy_commit(void);
void emu_copy_wait(int left);
/* Until other blocks have brought the count there. */
void emu_await(const uint64_t *count, uint64_t target, const char *file, int line);

/* ---- for the library that launches --------------------------------------------------------------------- */

typedef struct emu_kernel {
    char name[64];
    void (*function)(void);
    void (*run)(void (*function)(void), const void *arguments);
    size_t bytes;                          /* size of its arguments                                        */
    struct emu_kernel *next;
} emu_kernel;

typedef struct emu_launch {
    unsigned grid[3], block[3];
    size_t shared_bytes;
    const void *arguments;
    int together;                          /* 1: all blocks are alive at once                              */
} emu_launch;

/* Faults of the machine, for tests of what notices them. */
typedef enum emu_fault {
    EMU_SOUND,
    EMU_SKIPPED_BARRIER,                   /* __syncthreads() number n of a block (from 0) does nothing    */
    EMU_EARLY_COPIES,                      /* one group of copies more may be on its way after a wait      */
    EMU_WRONG_ROWS,                        /* a matrix instruction exchanges rows g and g + 8              */
    EMU_WRONG_SWIZZLE,                     /* ldmatrix reads the neighbour of the 16 bytes that were asked
                                              for                                                         */
    EMU_SWAPPED_LANES,                     /* a shuffle reads the neighbour of the lane that was asked for */
} emu_fault;

void emu_set_fault(emu_fault fault, int n);

/* NULL: there is none of the name in the library that emulation.c is in. */
const emu_kernel *emu_find(const char *name);
/* One launch at a time. NULL, or what went wrong, good until the next launch. */
const char *emu_run(const emu_kernel *kernel, const emu_launch *launch);

#ifdef __cplusplus
}
#endif
#endif
