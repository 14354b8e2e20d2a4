/* A backend is a table: memory, copies, packed weights, operations.
 *
 * The engine opens one device. Sessions run plans on it, each with its own work block, so that several
 * sessions may run at once.
 */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include "ops/blocks.h"
#include "ops/ops.h"
#include "ops/switches.h"

struct backend;
struct pool;
struct recording;

typedef struct device {
    const struct backend *backend;
    char path[32];               /* kernels in use, "avx512_bf16"                                         */
    int shared_memory;           /* 1: a GPU without memory of its own, which uses the processor's        */
} device;                        /* backends extend it                                                    */

typedef struct device_options {
    const char *isa;             /* CPU: cap or NULL                                                      */
    struct pool *pool;           /* the engine's workers, which outlive the device                        */
    const char *path;            /* GPU: one of its paths, "portable" say; NULL: the best                  */
    uint32_t off;                /* switches that are off (ops/switches.h)                                */
    const char *as_card;         /* GPU: the card that choices and limits are for, "rtx4090" say; NULL: its
                                    own                                                                   */
} device_options;

/* Ceilings of a device, measured just now. 0: not known or not applicable. */
typedef struct device_roofs {
    /* Multiply-adds of the instructions that its kernels use, operands at hand; bf16 0: such products run at
     * the rate of f32. */
    double bf16_tflops, f32_tflops;
    double read_gbs, copy_gbs;             /* memory far larger than the caches; copy counts both ways      */
    double core_mhz;                       /* the clock that the fastest products ran at; 0: not known      */
} device_roofs;

/* What reports say of a device; 0 and "": not known. */
typedef struct device_facts {
    char name[96], driver[64];   /* of the device and of its driver                                       */
    int capability_major, capability_minor, multiprocessors;
    uint64_t memory_bytes, cache_bytes;    /* of the device; of its last-level cache                      */
    double core_mhz, memory_mhz; /* the highest that it may run at                                          */
} device_facts;

/* A choice of how to run an op: a kernel and its tile, say. */
typedef struct candidate {
    char name[56];               /* "gemm_mma_64_64", "panels 24"                                         */
    int heuristic;               /* 1: what choice 0 runs                                                 */
} candidate;

/* One launch of a timed recording. */
typedef struct launch_record {
    int op, ops;                 /* the first op it computes, and how many                                */
    char kernel[40];
    unsigned grid[3], block[3], cluster;
    size_t shared_bytes;
    double start_ms, end_ms;     /* in the last replay, from its beginning                                */
} launch_record;

/* Bytes that a replay copies to the device or back. */
typedef struct device_copy {
    void *to;
    const void *from;
    size_t bytes;
} device_copy;

/* Gives rows row … row+count-1 (logical, as in ops.h) of a matrix, all k columns, as codes of matrix.type.
 * Called by several threads at once. */
typedef struct matrix_source {
    void (*read)(const void *context, int row, int count, void *out);
    const void *context;
} matrix_source;

/* A matrix that nothing stores: rows of up to three tensors on top of each other, a range of their
 * columns. Element i of a tensor, in row order, is offset + scale·hash_uniform(key, i), from raise_from on
 * with `raise` added: in double, each step rounded; then to float, then to bf16, also where the matrix is
 * f32. */
typedef struct generated_part {
    uint64_t key;
    double offset, scale, raise;
    int64_t raise_from;
    int rows;
} generated_part;

enum { GENERATED_PARTS = 3 };
typedef struct generated_matrix {
    generated_part parts[GENERATED_PARTS];
    int count;                   /* of parts                                                              */
    int column, row_length;      /* of a part: the first column taken, of matrix.k; how many a row has    */
} generated_matrix;

typedef struct backend {
    const char *name;            /* "cpu"                                                                 */

    /* As openpi_devices: this backend's devices, usable or not; returns how many there are. */
    int (*devices)(openpi_device *devices, int capacity);
    openpi_status (*open)(const char *which, const device_options *options, device **out,
                          openpi_error *error);
    void (*close)(device *device);

    /* Device memory, zeroed. */
    openpi_status (*allocate)(device *device, size_t bytes, const char *what, void **out,
                              openpi_error *error);
    void (*release)(device *device, void *memory);
    /* Host memory that the device copies from quickly, zeroed. NULL for the processor: the session then fills
     * its inputs in place. Where device.shared_memory is 1, ops may have it as operands, and the session's
     * inputs are there alone. upload and download copy nothing onto itself. */
    openpi_status (*allocate_host)(device *device, size_t bytes, const char *what, void **out,
                                   openpi_error *error);
    void (*release_host)(device *device, void *memory);
    /* Ordered with all other calls on the device (except replay); may return before the copy is done.
     * Ordinary memory at `from` may be reused when it returns; memory of allocate_host once a run, a download
     * or a replay with `up` NULL has returned. */
    openpi_status (*upload)(device *device, void *to, const void *from, size_t bytes, openpi_error *error);
    /* Returns when the bytes are there. */
    openpi_status (*download)(device *device, void *to, const void *from, size_t bytes, openpi_error *error);

    /* Copies `rows` pieces of `bytes` within the device's memory, each `pitch` bytes after the one before.
     * Ordered as upload; may return before it is done. */
    openpi_status (*copy_rows)(device *device, void *to, const void *from, size_t pitch, size_t bytes,
                               int rows, openpi_error *error);

    /* 1: products with weights of this format and rows made into `input` run, under activations of `type`.
     * What a table of embeddings is gathered from is fp32 or bf16. */
    int (*takes_weights)(const device *device, dtype type, weight_type weights, matrix_input input);
    int takes_row_scales;        /* 1: also those whose rows have one scale (matrix.row_scale)             */
    /* Packing: `matrix` has everything but data. A matrix packs in independent blocks, so that threads can
     * share one; scratch is the caller's, matrix_scratch bytes. */
    size_t (*matrix_bytes)(const device *device, const matrix *matrix);
    int (*matrix_blocks)(const device *device, const matrix *matrix);
    size_t (*matrix_scratch)(const device *device, const matrix *matrix);
    openpi_status (*matrix_pack)(device *device, const matrix *matrix, int first, int count,
                                 const matrix_source *source, void *to, void *scratch, openpi_error *error);
    /* Optional: makes and packs a matrix on the device, the same bytes as matrix_pack; whatever reads it
     * later waits for it. */
    openpi_status (*matrix_generate)(device *device, const matrix *matrix, const generated_matrix *from,
                                     void *to, openpi_error *error);
    /* Optional, both or none: what kernels want besides packed weights, derived from those of a block once a
     * model. prepared_bytes: the device memory that it takes, 0: nothing is wanted; asked before there is
     * any, so no address in `block` may be read. prepare: writes it to block->prepared, when all weights are
     * packed; ordered as upload. */
    size_t (*prepared_bytes)(const device *device, const block_weights *block);
    openpi_status (*prepare)(device *device, const block_weights *block, openpi_error *error);

    /* Bytes of one sample's block of K (V takes the same). */
    size_t (*cache_bytes)(const device *device, int capacity, int head_dim, dtype type);
    /* Rows 0 … rows-1 of a sample, in fp32; which: 0 k, 1 v. */
    openpi_status (*cache_read)(device *device, const kv_cache *cache, dtype type, int which, int sample,
                                int rows, float *out, openpi_error *error);

    /* Work block that running these ops needs. */
    size_t (*work_bytes)(const device *device, const op *ops, int count);

    /* Runs ops in order and returns when they are done; blocks may be computed as a whole. stage_ms
     * [OPENPI_STAGES]: time is added to each op's stage; may be NULL. Allocates nothing. Sessions that run op
     * by op take turns. */
    openpi_status (*run)(device *device, op_list list, void *work, double *stage_ms, openpi_error *error);

    /* Optional (all NULL: sessions call run). Records ops once, so that a call replays them without
     * building or launching anything anew; the recording reads every changing number from device memory.
     * OPENPI_UNSUPPORTED: this device cannot record, or is asked not to, and run serves; any other failure
     * is one of the device or of its memory. */
    openpi_status (*record)(device *device, op_list list, void *work, struct recording **out,
                            openpi_error *error);
    /* Copies `up` to the device, runs what is recorded, copies `down` back (may be NULL): queued at once
     * in an order of the recording's own, and waited for once. When it returns, all has happened. Replays
     * of different recordings do not wait for each other. With `up`, be it of no copies, a replay does not
     * wait either for what the device was asked for before; where `up` is NULL it does. */
    openpi_status (*replay)(device *device, struct recording *recording, const device_copy *up, int up_count,
                            const device_copy *down, double *stage_ms, openpi_error *error);
    void (*forget)(device *device, struct recording *recording);
    /* Optional, for instruments: as record, with clock marks around every launch. Slower to replay, since
     * launches no longer overlap; `launches` tells of the last replay (times 0 before one) and returns how
     * many there are. */
    openpi_status (*record_timed)(device *device, op_list list, void *work, struct recording **out,
                                  openpi_error *error);
    int (*launches)(device *device, struct recording *recording, launch_record *out, int capacity);
    int (*nodes)(const struct recording *recording);       /* of a recording's graph                       */

    /* Optional: the choices of how to run this op, in an order that never changes for its shape; returns
     * how many. op.choice names one. None where there is nothing to choose. */
    int (*candidates)(const device *device, const op *op, candidate *out, int capacity);
    /* Optional: a hash of the sources of all kernels that a candidate of this name runs, for tables that
     * outlive a version of the project. 0: the device has no candidate of that name. */
    uint64_t (*kernel_hash)(const device *device, const char *name);
    /* Optional: percent of a call that a tuning table won over the heuristic with these kernels on another
     * card; 0: not known. */
    int (*untuned_percent)(const device *device);
    /* Optional: 1 where, without a table, fewer cameras are worth choices and a recording of their own. */
    int (*chooses_by_rows)(const device *device);
    /* Optional, for comparison only: what the vendor's library takes for the plain bf16 product of m rows,
     * n outputs and k inputs with weights from memory; `name` receives the library (at least 200 bytes).
     * OPENPI_UNSUPPORTED: there is none. */
    openpi_status (*library_product)(device *device, int m, int n, int k, double *us, char *name,
                                     openpi_error *error);

    /* Measures the device's ceilings in about a second, with everything that it has. `type`: of the
     * activations they are wanted for; the other type's may be left out. */
    openpi_status (*roof)(device *device, dtype type, device_roofs *out, openpi_error *error);

    /* Optional: bytes of device memory that nobody uses, and of all that there is. NULL for the processor.
     * Where device.shared_memory is 1, cached pages of files count as unused: the kernel gives them back. */
    openpi_status (*memory)(device *device, uint64_t *unused, uint64_t *total, openpi_error *error);
    /* Optional. */
    openpi_status (*facts)(device *device, device_facts *out, openpi_error *error);
    /* Optional, for instruments: the switches that are off, as device_options.off, from the next recording
     * or run on. */
    void (*set_off)(device *device, uint32_t off);
    /* Optional: the switches that change nothing here, for want of a kernel or of hardware. */
    uint32_t (*missing)(const device *device);
} backend;

/* The backends of this build, NULL-terminated. */
extern const backend *const backends[];
extern const backend backend_cpu;

#endif
