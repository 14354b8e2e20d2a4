/* Inside the GPU backend: the device, its kernels, and how an op becomes launches.
 *
 *   gpu.c      opening, memory, copies, running, recording; the device's states
 *   pack.c     weights into the layout of kernels/args.h, through pinned staging
 *   launch.c   which kernels an op runs on, with what tiles; the work block */
#ifndef BACKEND_GPU_GPU_H
#define BACKEND_GPU_GPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/gpu/driver.h"
#include "backend/gpu/kernels/args.h"

/* X(kernel, image, dynamic shared memory) */
#define GPU_KERNEL_LIST(X)                  \
    X(norm_rows, simt, 0)                   \
    X(norm_rows_bf16, simt, 0)              \
    X(embed_text, simt, 0)                  \
    X(patches, simt, 0)                     \
    X(linear_simt, simt, 0)                 \
    X(linear_rows, simt, 1)                 \
    X(attention_simt_image, simt, 1)        \
    X(attention_simt_cache, simt, 1)        \
    X(gemm_mma_128_128, gemm_mma, 1)        \
    X(gemm_mma_64_64, gemm_mma, 1)          \
    X(skinny_16_8, skinny_mma, 1)           \
    X(skinny_16_16, skinny_mma, 1)          \
    X(skinny_16_64, skinny_mma, 1)          \
    X(skinny_64_8, skinny_mma, 1)           \
    X(skinny_64_16, skinny_mma, 1)          \
    X(skinny_64_32, skinny_mma, 1)          \
    X(attention_image, attention_mma, 1)    \
    X(attention_cache_1, attention_mma, 1)  \
    X(attention_cache_3, attention_mma, 1)  \
    X(attention_combine, attention_mma, 0)  \
    X(hopper_160x128, gemm_hopper, 1)       \
    X(hopper_200x128, gemm_hopper, 1)       \
    X(hopper_256x128, gemm_hopper, 1)       \
    X(hopper_256x64, gemm_hopper, 1)        \
    X(hopper_128x64, gemm_hopper, 1)        \
    X(hopper_64x200_turned, gemm_hopper, 1) \
    X(hopper_128x200_gated, gemm_hopper, 1) \
    X(skinny_hopper_qkv, skinny_hopper, 1)  \
    X(skinny_hopper_gated, skinny_hopper, 1) \
    X(skinny_hopper_residual_2, skinny_hopper, 1) \
    X(skinny_hopper_residual_4, skinny_hopper, 1) \
    X(skinny_hopper_store_2, skinny_hopper, 1) \
    X(attention_cluster, attention_hopper, 1) \
    X(attention_wgmma, attention_hopper, 1)

typedef enum gpu_kernel {
#define X(name, image, dynamic) GPU_##name,
    GPU_KERNEL_LIST(X)
#undef X
    GPU_KERNELS
} gpu_kernel;

enum { GPU_IMAGES = 8, GPU_SLOTS = 24, GPU_SLOT_BYTES = 1 << 20 };

/* A piece of pinned memory on its way to the device. */
typedef struct gpu_slot {
    char *memory;
    void *event;                           /* after its last copy                                             */
} gpu_slot;

typedef struct gpu_device {
    device base;
    gpu_driver driver;
    int ordinal, handle, major, minor, multiprocessors;
    size_t shared_bytes;                   /* most a block may have                                           */
    size_t memory_bytes;
    int hopper;                            /* the Hopper kernels are in use                                   */
    int overlap;                           /* kernels may start before the one in front has ended             */
    int no_graph;                          /* asked for: plans run op by op                                   */
    void *context, *stream;
    void *modules[GPU_IMAGES];
    void *kernels[GPU_KERNELS];
    void *events[OPENPI_STAGES + 1];       /* of run                                                          */
    pthread_mutex_t running;               /* one op-by-op run at a time                                      */

    /* Once a driver call has failed on the device, nothing on it can be trusted: every later call says this. */
    atomic_int lost;
    char lost_text[300];
    pthread_mutex_t losing;

    gpu_slot slots[GPU_SLOTS];
    int free_slots[GPU_SLOTS], free_first, free_count;
    pthread_mutex_t slot_lock;
    pthread_cond_t slot_freed;
} gpu_device;

/* As backend.open over a driver table that is already filled; images of kernels, ended by one without a name. */
openpi_status gpu_open(const gpu_driver *driver, const gpu_image *images, const backend *backend, int ordinal,
                       const device_options *options, device **out, openpi_error *error);

/* What a failed driver call means; `doing` completes "while …". Marks the device as lost. */
openpi_status gpu_fail(gpu_device *self, int code, const char *doing, openpi_error *error);
/* OPENPI_OK with the context current in this thread, or the sentence of a lost device. */
openpi_status gpu_enter(gpu_device *self, openpi_error *error);

/* launch.c: where launches go. */
typedef struct gpu_issue {
    gpu_device *device;
    void *stream;
    char *work;
    int measure;                           /* 1: nothing is launched, only `work_bytes` is learned            */
    size_t work_bytes;
    int first;                             /* the next launch waits for all before it                         */
    int code;                              /* of the first driver call that failed                            */
} gpu_issue;

void gpu_issue_op(gpu_issue *issue, const op *op);

/* pack.c: functions of the backend table. */
size_t gpu_matrix_bytes(const device *device, const matrix *matrix);
int gpu_matrix_blocks(const device *device, const matrix *matrix);
size_t gpu_matrix_scratch(const device *device, const matrix *matrix);
openpi_status gpu_matrix_pack(device *device, const matrix *matrix, int first, int count, const matrix_source *source, void *to,
                              void *scratch, openpi_error *error);
/* The kernels' view of a packed matrix. */
gpu_weights gpu_weights_of(const matrix *matrix);
int gpu_head_columns(int head_dim);        /* packed columns of a q or k head                                 */

#endif
