/* A backend is a table: memory, copies, packed weights, operations.
 *
 * The engine opens one device. Sessions run plans on it, each with its own work block, so that several
 * sessions may run at once.
 */
#ifndef BACKEND_BACKEND_H
#define BACKEND_BACKEND_H

#include "ops/ops.h"

struct backend;
struct pool;
struct recording;

typedef struct device {
    const struct backend *backend;
    char path[32];               /* kernels in use, "avx512_bf16"                                         */
} device;                        /* backends extend it                                                    */

typedef struct device_options {
    const char *isa;             /* CPU: cap or NULL                                                      */
    struct pool *pool;           /* the engine's workers, which outlive the device                        */
    const char *path;            /* GPU: kernels to use, "portable" or "hopper"; NULL the best            */
    int no_graph;                /* GPU: 1: record refuses, plans run op by op                            */
} device_options;

/* Gives rows row … row+count-1 (logical, as in ops.h) of a matrix, all k columns, in matrix.type. Called by
 * several threads at once. */
typedef struct matrix_source {
    void (*read)(const void *context, int row, int count, void *out);
    const void *context;
} matrix_source;

typedef struct backend {
    const char *name;            /* "cpu"                                                                 */

    /* As openpi_devices: this backend's devices, usable or not; returns how many there are. */
    int (*devices)(openpi_device *devices, int capacity);
    openpi_status (*open)(const char *which, const device_options *options, device **out, openpi_error *error);
    void (*close)(device *device);

    /* Device memory, zeroed. */
    openpi_status (*allocate)(device *device, size_t bytes, const char *what, void **out, openpi_error *error);
    void (*release)(device *device, void *memory);
    /* Host memory that the device copies from quickly. NULL where device memory is host memory: the session
     * then fills its inputs in place and upload copies nothing onto itself. */
    openpi_status (*allocate_host)(device *device, size_t bytes, const char *what, void **out, openpi_error *error);
    void (*release_host)(device *device, void *memory);
    openpi_status (*upload)(device *device, void *to, const void *from, size_t bytes, openpi_error *error);
    openpi_status (*download)(device *device, void *to, const void *from, size_t bytes, openpi_error *error);

    /* Packing: `matrix` has everything but data. A matrix packs in independent blocks, so that threads can
     * share one; scratch is the caller's, matrix_scratch bytes. */
    size_t (*matrix_bytes)(const device *device, const matrix *matrix);
    int (*matrix_blocks)(const device *device, const matrix *matrix);
    size_t (*matrix_scratch)(const device *device, const matrix *matrix);
    openpi_status (*matrix_pack)(device *device, const matrix *matrix, int first, int count, const matrix_source *source,
                                 void *to, void *scratch, openpi_error *error);

    /* Bytes of one sample's block of K (V takes the same). */
    size_t (*cache_bytes)(const device *device, int capacity, int head_dim, dtype type);
    /* Rows 0 … rows-1 of a sample, in fp32; which: 0 k, 1 v. */
    openpi_status (*cache_read)(device *device, const kv_cache *cache, dtype type, int which, int sample, int rows, float *out,
                                openpi_error *error);

    /* Work block that running these ops needs. */
    size_t (*work_bytes)(const device *device, const op *ops, int count);

    /* Runs ops in order and returns when they are done. stage_ms[OPENPI_STAGES]: time is added to each op's
     * stage; may be NULL. Allocates nothing. */
    openpi_status (*run)(device *device, const op *ops, int count, void *work, double *stage_ms, openpi_error *error);

    /* Optional (all NULL: sessions call run). Records ops once, so that a call replays them without building or
     * launching anything anew; the recording reads every changing number from device memory. */
    openpi_status (*record)(device *device, const op *ops, int count, void *work, struct recording **out, openpi_error *error);
    openpi_status (*replay)(device *device, struct recording *recording, double *stage_ms, openpi_error *error);
    void (*forget)(device *device, struct recording *recording);
} backend;

/* The backends of this build, NULL-terminated. */
extern const backend *const backends[];
extern const backend backend_cpu;
extern const backend backend_cuda;

#endif
