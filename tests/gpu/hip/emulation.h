/* A GPU with waves of 64 lanes, on one thread of the host.
 *
 * Every thread of a block is a fiber with a stack of its own. A lane runs until its next collective, then the
 * next lane does; when the whole wave has arrived, the last one carries the collective out. So between two
 * collectives lanes run one after the other, which is one of the orders that the hardware may take.
 *
 * A launch fails with a sentence, and its kernel is left where it stands, when
 *   - lanes of a wave, or waves of a block, arrive at different collectives, or some have ended
 *   - local memory is indexed out of its array, or read where this block has put nothing
 *   - a thread gets what another has put, or puts where another has got or put, with no block_wait between
 *
 * Matrix instructions follow AMD's published layouts (the ISA documents of CDNA3 and CDNA4, and the matrix
 * instruction calculator). Of an instruction of M x M whose lanes hold n numbers of an operand, lane l has of
 * A row l % M and of B column l % M, k = n·(l / M) … + n - 1; number r of the result is of column l % M and
 * row 256 / M·(r / 4) + 4·(l / M) + r % 4. */
#ifndef TESTS_GPU_HIP_EMULATION_H
#define TESTS_GPU_HIP_EMULATION_H

#include <stddef.h>
#include <stdint.h>

enum { EMU_WAVE = 64, EMU_MOST_THREADS = 1024 };

typedef short emu_bf16x4 __attribute__((vector_size(8)));
typedef short emu_bf16x8 __attribute__((vector_size(16)));
typedef float emu_f32x4 __attribute__((vector_size(16)));
typedef float emu_f32x16 __attribute__((vector_size(64)));

/* ---- for kernels (machine.h) --------------------------------------------------------------------------- */

typedef struct emu_kernel {
    const char *name;
    void (*run)(const void *arguments);
    size_t bytes;                          /* size of its arguments                                        */
    int most_threads;
    struct emu_kernel *next;
} emu_kernel;

void emu_register(emu_kernel *kernel);

/* Where a kernel's thread is. */
typedef struct emu_place {
    int thread, threads, block[2], blocks[2];
} emu_place;

const emu_place *emu_now(void);

/* Of an element of local memory: the epochs (between two block_waits) in which it was last put and got. */
typedef struct emu_mark {
    uint32_t put, got;
    int16_t putter, getter;                /* threads; getter -1: several                                  */
} emu_mark;

typedef struct emu_local {
    const char *name;
    emu_mark *marks;
    int count;
} emu_local;

/* The index, where it is legal. */
int emu_get(const emu_local *local, int index, const char *file, int line);
int emu_put(const emu_local *local, int index, const char *file, int line);

void emu_block_wait(const char *file, int line);
float emu_lane_from(float x, int lane, const char *file, int line);

/* Matrix instructions v_mfma_f32_…: rows x columns x k. The long ones are gfx950's. */
typedef enum emu_shape {
    EMU_16X16X4_F32,
    EMU_16X16X16_BF16,
    EMU_32X32X8_BF16,
    EMU_16X16X32_BF16,
    EMU_32X32X16_BF16,
    EMU_SHAPES
} emu_shape;

/* c += A·B; a, b and c are a lane's numbers. */
void emu_mma(emu_shape shape, const void *a, const void *b, void *c, const char *file, int line);
float emu_exp2(float x);
int emu_has(emu_shape shape);              /* this chip does                                               */

/* ---- for whoever launches ------------------------------------------------------------------------------ */

/* Faults of the machine, for tests of what notices them. */
typedef enum emu_fault {
    EMU_SOUND,
    EMU_SKIPPED_WAIT,                      /* block_wait number n of a block (from 0) does nothing         */
    EMU_WRONG_LANES,                       /* matrix instruction number n leaves its result as if lane l
                                              had the rows that follow each other: M / 4·(l / M)… (32 x 32:
                                              16·(l / 32) + r), and 16 x 16 in reverse                     */
    EMU_UNSCALED_PARTS,                    /* exp2 is 1 in attention_combine: parts keep their own maxima  */
    EMU_SWAPPED_LANES,                     /* lane_from reads the neighbour of the lane that was asked for */
} emu_fault;

void emu_set_fault(emu_fault fault, int n);

/* 1: the chip is a gfx950, 0: a gfx942. */
void emu_set_gfx950(int gfx950);

/* NULL: there is none of the name. */
const emu_kernel *emu_find(const char *name);
/* One launch at a time. NULL, or what went wrong, good until the next launch. */
const char *emu_launch(const emu_kernel *kernel, const int blocks[2], int threads, const void *arguments);

#endif
