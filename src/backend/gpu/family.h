/* A kernel family: what runs which tasks, on which kernels, with what tiles.
 *
 * The frame turns an op into tasks (ops.c), asks the families of the device in turn for their choices,
 * picks one and lets its family launch it (choices.c). A family is two files of a vendor's folder: X.cu
 * (or the vendor's suffix) with the kernels, and X.c with `const gpu_family gpu_family_X`. Nothing else
 * names it.
 *
 * What a family decides, it decides from capacities, types and the device's limits, never from the numbers
 * of a call: those live on the device, and a block that finds no rows left ends at once. */
#ifndef BACKEND_GPU_FAMILY_H
#define BACKEND_GPU_FAMILY_H

#include <limits.h>

#include "backend/gpu/kernels/args.h"
#include "backend/gpu/kernels/generate.h"
#include "backend/gpu/kernels/guide.h"
#include "backend/gpu/vendor.h"

typedef struct gpu_issue gpu_issue;

/* ---- tasks ------------------------------------------------------------------------------------------ */

/* X(kind, member, type of its arguments) */
#define GPU_TASK_LIST(X)                                                \
    X(GPU_PRODUCT, product, gpu_linear)                                 \
    X(GPU_IMAGE_ATTENTION, image_attention, gpu_image_attention)        \
    X(GPU_CACHE_ATTENTION, cache_attention, gpu_cache_attention)        \
    X(GPU_PRODUCT_CHAIN, chain, gpu_chain)                              \
    X(GPU_NORM, norm, gpu_norm)                                         \
    X(GPU_EMBED_TEXT, embed_text, gpu_text)                             \
    X(GPU_PATCHES, patches, gpu_patches)                                \
    X(GPU_ACTIVATE, activate, gpu_activate)                             \
    X(GPU_ADD, add, gpu_add)                                            \
    X(GPU_ROPE_CACHE, rope_cache, gpu_rope_cache)                       \
    X(GPU_SOFTMAX, softmax, gpu_softmax)                                \
    X(GPU_SCORES, scores, gpu_attend)                                   \
    X(GPU_VALUES, values, gpu_attend)                                   \
    X(GPU_GUIDE, guide, gpu_guide)                                      \
    X(GPU_PACK, pack, gpu_raw)                                          \
    X(GPU_UNPACK, unpack, gpu_unpack)                                   \
    X(GPU_GENERATE, generate, gpu_generate)

/* Products of which one reads what the other wrote, with numbers of fp32 between them: stored as they are,
 * or as bf16 + bf16 (gpu_epilogue.split). A family that lists this has nothing to launch: it says by
 * gpu_choice.split in which of the two forms it wants the numbers, and the frame issues the products. */
typedef struct gpu_chain {
    int k;                                 /* inputs of the products that read such numbers                 */
    int bf16;                              /* 1: their weights and the last output are bf16                 */
} gpu_chain;

typedef enum gpu_task_kind {
#define X(kind, member, type) kind,
    GPU_TASK_LIST(X)
#undef X
} gpu_task_kind;

/* One scale for rows of integers (matrix.row_scale). */
typedef struct gpu_row_scale {
    float scale;                           /* 0: each row has its own                                       */
    uint32_t *counts;                      /* as matrix.counts                                              */
} gpu_row_scale;

typedef struct gpu_task {
    gpu_task_kind kind;
    int rows; /* most rows (GPU_PACK, GPU_GENERATE: groups of 8 packed columns) */
    int rows_a_block;                      /* GPU_NORM: 4, 2 or 1                                           */
    int outputs;                           /* GPU_SCORES, GPU_VALUES: keys or dimensions                    */
    gpu_row_scale fixed;                   /* GPU_PRODUCT: of its rows                                      */
    gpu_row_scale leaves;                  /* GPU_PRODUCT: of codes that it leaves in out in place of
                                              numbers, their scales behind them                             */
    int coded;                             /* GPU_PRODUCT: its rows are such codes                          */
    union {
#define X(kind, member, type) type member;
        GPU_TASK_LIST(X)
#undef X
    };
} gpu_task;

/* ---- choices ---------------------------------------------------------------------------------------- */

/* The heuristic takes the choice with the lowest rank; among equals, the first in the list. A vendor names
 * its ranks in one place. This one is for choices that only a tuning table takes. */
enum { GPU_RANK_NEVER = INT_MAX };

/* One choice of how to run a task. */
typedef struct gpu_choice {
    int rank;
    int family;                            /* its place among the vendor's modules: filled in by the frame  */
    int kernel;                            /* its place in the family's table                               */
    int count; /* stages, splits or parts, named "x COUNT"; 0: nothing of the sort */
    int norm;                              /* rows a block of the norm that goes first; 0: none does        */
    int split;                             /* GPU_PRODUCT_CHAIN                                             */
} gpu_choice;

enum { GPU_CHOICES = 512 };
typedef struct gpu_choices {
    gpu_choice list[GPU_CHOICES];
    int count, heuristic;                  /* heuristic: its place, -1 while the list is empty              */
    int family;                            /* that is being asked                                           */
} gpu_choices;

/* What is beyond the list's end is left out. */
void gpu_choices_add(gpu_choices *choices, gpu_choice choice);

/* A product with a norm may be listed once with the norm inside (choice.norm 0), and once for every launch
 * of the norm that may go first: rows a block, the usual first. The frame launches that norm; the family
 * receives the product without. Without a norm there is one entry, 0. */
enum { GPU_NORM_ROWS = 4 };
int gpu_norms_first(const gpu_linear *p);
int gpu_norm_first(const gpu_linear *p, int i);
/* The rank, where `norm` is the one that a heuristic would take; else never. */
static inline int gpu_usual(int norm, int rank) {
    return !norm || norm == GPU_NORM_ROWS ? rank : GPU_RANK_NEVER;
}

/* ---- families --------------------------------------------------------------------------------------- */

/* What a kernel measures of a device's ceilings (roof.c). */
typedef enum gpu_roof_kind {
    GPU_ROOF_FILL,
    GPU_ROOF_READ,
    GPU_ROOF_COPY,
    GPU_ROOF_F32,
    GPU_ROOF_BF16,
    GPU_ROOFS
} gpu_roof_kind;

typedef struct gpu_roof_kernel {
    gpu_roof_kind kind;
    int rank;                              /* of a kind the lowest of the device's families is taken        */
    int kernel;
    int blocks;                            /* a multiprocessor                                              */
    int loops;                             /* products: about 20 ms on a large card                         */
    double flops;                          /* products: of a thread and loop                                */
    size_t shared_bytes;
} gpu_roof_kernel;

struct gpu_family {
    const char *name;                      /* as its files and its image are called                         */
    const void *kernels;                   /* structures of kernel_bytes that begin with a gpu_kernel       */
    size_t kernel_bytes;
    int kernel_count;

    /* Adds the choices that this family has for a task; none where it cannot run it. NULL: it runs no
     * single tasks. */
    void (*list)(const gpu_device *device, const gpu_task *task, gpu_choices *choices);
    /* Launches one of them; `task` is the frame's copy. */
    void (*launch)(gpu_issue *issue, gpu_task *task, const gpu_choice *choice);

    /* Optional: runs several ops at once. Issues a block, or its first layers or steps, with gpu_take before
     * the first launch; returns how many ops that were, 0: none. It decides from the block and from the types
     * and sizes of its first operations, which all others share (ops/blocks.h). */
    int (*take_block)(gpu_issue *issue, const op_block *block);
    /* Optional: the same for ops[0] and ops[1] of `count`, where one hands numbers to the other, in a block
     * or not. */
    int (*take)(gpu_issue *issue, const op *ops, int count);
    uint32_t take_switches;                /* a set: off, or without a state here, it takes nothing         */
    int whole_device;                      /* 1: what it takes needs the device for itself                  */
    size_t take_bytes;                     /* most of the work block that the ops it takes share            */
    /* Optional, of a family that takes blocks: what it wants to have derived from a block's weights when a
     * model is loaded. Returns how many bytes that is, 0: nothing of this block, and where launches are
     * wanted (gpu_emitting) makes it at `place`, which is NULL else. Each launch waits for the one before.
     * It is asked also where its switches are off, since that may change while the weights stay.
     * gpu_prepared finds the place again. */
    size_t (*prepare)(gpu_issue *issue, const block_weights *block, void *place);

    /* Optional: with the kernels loaded, makes what the family keeps on a device (gpu_state); 0 or the
     * driver's error. close receives whatever open has left there, also after a failure. */
    int (*open)(gpu_device *device, int family, void **state);
    void (*close)(gpu_device *device, void *state);

    const gpu_roof_kernel *roofs;
    int roof_count;
};

/* Kernels of a table whose elements are, or begin with, a gpu_kernel. */
#define GPU_KERNELS(table) \
    .kernels = (table), .kernel_bytes = sizeof *(table), .kernel_count = sizeof(table) / sizeof *(table)

static inline const gpu_kernel *gpu_kernel_at(const gpu_family *family, int kernel) {
    return (const gpu_kernel *)((const char *)family->kernels + (size_t)kernel * family->kernel_bytes);
}

/* ---- what a family may ask the frame for ------------------------------------------------------------ */

const gpu_facts *gpu_facts_of(const gpu_device *device);
const gpu_driver *gpu_driver_of(const gpu_device *device);
/* OPENPI_OK with the context current in this thread, or the sentence of a lost device. */
openpi_status gpu_enter(gpu_device *device, openpi_error *error);
const char *gpu_path(const gpu_device *device);
void *gpu_function(const gpu_device *device, int family, int kernel); /* NULL: the device's path has it not */
void *gpu_stream(const gpu_device *device);                                    /* of loading, for open      */
void *gpu_state(const gpu_device *device, int family);                         /* what open has made        */

/* What heuristics count on: the device's, or of the card that it stands for (device_options.as_card). A grid
 * whose blocks wait for each other also asks the driver how many the device holds. */
int gpu_multiprocessors(const gpu_device *device);
/* Most dynamic shared memory of a block. */
size_t gpu_shared_bytes(const gpu_device *device);
/* Most blocks with so much of it that a multiprocessor's shared memory holds, of `most`; 0: a block may not
 * have so much. */
int gpu_blocks_held(const gpu_device *device, size_t shared, int most);
/* TFLOP/s of a multiprocessor in bf16 with sums of fp32; 0: not known. */
double gpu_multiprocessor_tflops(const gpu_device *device);
/* TOP/s of a multiprocessor in 8-bit integers; 0: not known. */
double gpu_multiprocessor_int8_tops(const gpu_device *device);

/* x and y are blocks, x a multiple of cluster; cluster 0 is 1. */
typedef struct gpu_grid {
    int x, y, threads;
    size_t shared;
    int cluster, together;
} gpu_grid;

/* 1 where launches are wanted: not while the ops are only measured or listed, and not after an error. What
 * costs time or reads addresses to prepare a launch is left out else. */
int gpu_emitting(const gpu_issue *issue);
/* One launch of a kernel of the family that is being asked. x or y of 0 or less launches nothing. */
void gpu_emit(gpu_issue *issue, int kernel, gpu_grid grid, const void *arguments, size_t bytes);
/* Bytes of the work block that nothing else of this op has; NULL while they are only added up. What was taken
 * since a mark is free again for what is launched later. */
void *gpu_work_take(gpu_issue *issue, size_t bytes);
size_t gpu_work_mark(const gpu_issue *issue);
void gpu_work_back(gpu_issue *issue, size_t mark);
/* The counters of the work block, NULL as above: zero when a kernel begins, if every kernel leaves them so.
 * The first who asks finds *unclear 1 and launches a kernel that clears them all. One stream runs the
 * launches that share them: they are touched after wait_before() only. */
enum { GPU_COUNTERS = 1024 };
uint32_t *gpu_counters(gpu_issue *issue, int *unclear);
/* The device, and a place for the first error of the driver: later launches are left out. */
gpu_device *gpu_device_of(const gpu_issue *issue);
void gpu_issue_fail(gpu_issue *issue, int code);
/* The place of the family that is being asked. */
int gpu_family_of(const gpu_issue *issue);
/* The weights that the op after the next one reads, for kernels that read little themselves: the op after
 * this one fetches its own while it waits. */
gpu_ahead gpu_ahead_of(const gpu_issue *issue);
/* The kernels' view of a packed matrix. */
gpu_weights gpu_weights_of(const matrix *matrix);
/* Where a family takes ops: the launches that follow belong to the next `ops` ops; then to as many ops after
 * those. */
void gpu_take(gpu_issue *issue, int ops);
void gpu_take_next(gpu_issue *issue);
/* What this family has prepared of the weights that a block's layers read, all of them; NULL: nothing. */
void *gpu_prepared(const gpu_issue *issue, const op_block *block);
/* The product of an op LINEAR_RESIDUAL, NORM_LINEAR or NORM_QKV, whose matrix must be packed. */
gpu_task gpu_product_of(const gpu_issue *issue, const op *op);
/* The choice that such a product, which is the op's, is launched with alone: a tuning table's, else the
 * heuristic's. 0: none runs it. */
int gpu_choice_of(const gpu_issue *issue, const op *op, const gpu_task *product, gpu_choice *choice);
/* 1: ops[0] is a residual whose x ops[1], a product, norms; bf16, weights packed, and neither changes norms
 * or gates of later ops. */
int gpu_is_pair(const op *ops, int count);
/* The norm of a product's x on its own, and the product that reads what it leaves. */
gpu_norm gpu_norm_of(const gpu_linear *p, void *out);
void gpu_read_normed(gpu_linear *p, const void *normed);
/* The product of a choice with a norm that goes first, where that norm has been taken. */
void gpu_launch_normed(gpu_issue *issue, gpu_task *product, const gpu_choice *choice, const void *normed);

static inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
static inline int least(int a, int b) { return a < b ? a : b; }

#endif
