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
 * Matrix instructions follow AMD's published layouts of v_mfma_f32_16x16x16_bf16 and v_mfma_f32_16x16x4_f32:
 * lane l has of A row l % 16 and of B column l % 16, k = 4·(l / 16) … + 3 (fp32: l / 16), and of the result
 * column l % 16, rows 4·(l / 16) … + 3. */
#ifndef TESTS_GPU_HIP_EMULATION_H
#define TESTS_GPU_HIP_EMULATION_H

#include <stddef.h>
#include <stdint.h>

enum { EMU_WAVE = 64, EMU_MOST_THREADS = 1024 };

typedef short emu_bf16x4 __attribute__((vector_size(8)));
typedef float emu_f32x4 __attribute__((vector_size(16)));

/* ---- for kernels (machine.h) --------------------------------------------------------------------------- */

typedef struct emu_kernel {
    const char *name;
    void (*run)(const void *arguments);
    size_t bytes;                          /* of its arguments                                             */
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
emu_f32x4 emu_mma_bf16(emu_bf16x4 a, emu_bf16x4 b, emu_f32x4 c, const char *file, int line);
emu_f32x4 emu_mma_f32(float a, float b, emu_f32x4 c, const char *file, int line);

/* ---- for whoever launches ------------------------------------------------------------------------------ */

/* Faults of the machine, for tests of what notices them. */
typedef enum emu_fault {
    EMU_SOUND,
    EMU_SKIPPED_WAIT,                      /* block_wait number n of a block (from 0) does nothing         */
    EMU_WRONG_LANES,                       /* matrix instructions leave rows 4·(l / 16) + r at … + (3 - r) */
    EMU_SWAPPED_LANES,                     /* lane_from reads the neighbour of the lane that was asked for */
} emu_fault;

void emu_set_fault(emu_fault fault, int n);

/* NULL: there is none of the name. */
const emu_kernel *emu_find(const char *name);
/* One launch at a time. NULL, or what went wrong, good until the next launch. */
const char *emu_launch(const emu_kernel *kernel, const int blocks[2], int threads, const void *arguments);

#endif
