/* Inside the GPU backend: the device, its kernels, and how an op becomes launches.
 *
 *   gpu.c      opening, memory, copies; the device's states
 *   record.c   running ops now, or recording them into a graph; times of its launches
 *   resident.c the layers of a denoise step as one launch of the resident kernel
 *   roof.c     the device's ceilings
 *   pack.c     weights into the layout of kernels/args.h, through pinned staging
 *   generate.c synthetic weights into that layout, made on the device
 *   launch.c   which kernels an op runs on, with what tiles; the work block (launch.h: its parts) */
#ifndef BACKEND_GPU_GPU_H
#define BACKEND_GPU_GPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/gpu/driver.h"
#include "backend/gpu/kernels/args.h"
#include "backend/gpu/kernels/row_order.h"

/* X(kernel, image, dynamic shared memory) */
#define GPU_KERNEL_LIST(X)                  \
    X(norm_rows, simt, 0)                   \
    X(norm_rows_bf16, simt, 0)              \
    X(embed_text, simt, 0)                  \
    X(patches, simt, 0)                     \
    X(linear_simt, simt, 0)                 \
    X(linear_rows, simt, 1)                 \
    X(linear_short, simt, 0)                \
    X(attention_simt_image, simt, 1)        \
    X(attention_simt_cache, simt, 1)        \
    X(activate, pointwise, 0)               \
    X(add, pointwise, 0)                    \
    X(rope_cache, pointwise, 0)             \
    X(softmax_rows, pointwise, 0)           \
    X(scores_simt, pointwise, 0)            \
    X(values_simt, pointwise, 0)            \
    X(scores_mma, pointwise, 0)             \
    X(values_mma, pointwise, 0)             \
    X(pack_raw, pointwise, 0)               \
    X(generate, generate, 0)                \
    X(velocity_rows, velocity, 0)           \
    X(velocity_rows_f32, velocity, 0)       \
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
    X(hopper_64x208_turned, gemm_hopper, 1) \
    X(hopper_128x200_gated, gemm_hopper, 1) \
    X(hopper_128x184_gated, gemm_hopper, 1) \
    X(hopper_128x168_gated, gemm_hopper, 1) \
    X(hopper_128x144_gated, gemm_hopper, 1) \
    X(hopper_128x200_parts, gemm_hopper, 1) \
    X(hopper_128x144_parts, gemm_hopper, 1) \
    X(hopper_128x128_parts, gemm_hopper, 1) \
    X(skinny_hopper_qkv_2, skinny_hopper, 1) \
    X(skinny_hopper_qkv_4, skinny_hopper, 1) \
    X(skinny_hopper_gated_4, skinny_hopper, 1) \
    X(skinny_hopper_gated_8, skinny_hopper, 1) \
    X(skinny_hopper_residual_2, skinny_hopper, 1) \
    X(skinny_hopper_residual_4, skinny_hopper, 1) \
    X(skinny_hopper_store_2, skinny_hopper, 1) \
    X(attention_cluster, attention_hopper, 1) \
    X(attention_wgmma, attention_hopper, 1) \
    X(resident_denoise, resident_hopper, 1) \
    X(roof_fill, roof, 0)                   \
    X(roof_read, roof, 0)                   \
    X(roof_copy, roof, 0)                   \
    X(roof_fma, roof, 0)                    \
    X(roof_mma, roof, 0)                    \
    X(roof_wgmma, roof_hopper, 1)

typedef enum gpu_kernel {
#define X(name, image, dynamic) GPU_##name,
    GPU_KERNEL_LIST(X)
#undef X
    GPU_KERNELS
} gpu_kernel;

enum { GPU_IMAGES = 16, GPU_SLOTS = 24, GPU_SLOT_BYTES = 1 << 20 };

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
    int resident;                          /* the layers of a denoise step may be one kernel                  */
    gpu_address exchange;                  /* of that kernel (cuda/resident.h); 0: the card cannot hold it */
    atomic_int resident_recordings;        /* that hold it: while there are any, calls share `stream`         */
    int overlap;                           /* kernels may start before the one in front has ended             */
    int no_graph;                          /* asked for: plans run op by op                                   */
    void *context;
    void *stream;                          /* loading, clearing and op-by-op runs; recordings have their own  */
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

#define GPU(call, doing)                                                   \
    do {                                                                   \
        int gpu_code_ = self->driver.call;                                 \
        if (gpu_code_) return gpu_fail(self, gpu_code_, doing, error);     \
    } while (0)

const char *gpu_error_text(const gpu_driver *driver, int code);
const char *gpu_kernel_name(gpu_kernel kernel);

/* launch.c: where launches go. */
typedef struct gpu_issue {
    gpu_device *device;
    void *stream;
    char *work;
    struct recording *recording;           /* hears of every launch; NULL: none                               */
    const struct op *at;                   /* the op being issued                                             */
    int op, left;                          /* its place, and how many there are from it on; left 0: it alone  */
    int ops;                               /* how many the next launches compute: 1 unless gpu_issue_op says more */
    int measure;                           /* 1: nothing is launched, only `work_bytes` is learned            */
    size_t work_bytes;
    int first;                             /* the next launch waits for all before it                         */
    int choice;                            /* of the op being issued, as op.choice                            */
    int listing;                           /* 1: nothing is launched, the op's ways are written to `list`     */
    candidate *list;
    int list_capacity, list_count;
    int code;                              /* of the first driver call that failed                            */
} gpu_issue;

void gpu_issue_op(gpu_issue *issue, const op *op);
int gpu_candidates(const device *device, const op *op, candidate *out, int capacity);      /* of the backend table */

/* record.c. The launch was issued to issue->recording's capture; cluster: blocks a cluster, 1 without. */
void gpu_note_launch(gpu_issue *issue, gpu_kernel kernel, const gpu_launch *config, unsigned cluster);
/* Functions of the backend table. */
size_t gpu_work_bytes(const device *device, const op *ops, int count);
openpi_status gpu_run(device *device, const op *ops, int count, void *work, double *stage_ms, openpi_error *error);
openpi_status gpu_record(device *device, const op *ops, int count, void *work, struct recording **out, openpi_error *error);
openpi_status gpu_record_timed(device *device, const op *ops, int count, void *work, struct recording **out, openpi_error *error);
openpi_status gpu_replay(device *device, struct recording *recording, const device_copy *up, int up_count,
                         const device_copy *down, double *stage_ms, openpi_error *error);
void gpu_forget(device *device, struct recording *recording);
int gpu_launches(device *device, struct recording *recording, launch_record *out, int capacity);
int gpu_nodes(const struct recording *recording);

/* resident.c. With the kernels loaded: asks whether the card holds the resident kernel, and takes the memory of its
 * exchange if so; 0 or the driver's error. */
int gpu_resident_open(gpu_device *self);
void gpu_resident_close(gpu_device *self);
/* Issues the layers of the denoise step at ops[0] as one kernel; returns how many ops that were, 0: none. */
int gpu_resident_take(gpu_issue *issue, const op *ops, int count);

/* roof.c: function of the backend table. */
openpi_status gpu_roof(device *device, dtype type, device_roofs *out, openpi_error *error);

/* cublaslt.c: function of the backend table. */
openpi_status gpu_library_product(device *device, int m, int n, int k, double *us, char *name, openpi_error *error);

/* pack.c: functions of the backend table. */
int gpu_takes_weights(const device *device, dtype type, weight_type weights);
size_t gpu_matrix_bytes(const device *device, const matrix *matrix);
int gpu_matrix_blocks(const device *device, const matrix *matrix);
size_t gpu_matrix_scratch(const device *device, const matrix *matrix);
openpi_status gpu_matrix_pack(device *device, const matrix *matrix, int first, int count, const matrix_source *source, void *to,
                              void *scratch, openpi_error *error);
/* The rows behind its packed columns, or of a raw matrix behind its rows. */
gpu_row_order gpu_row_order_of(const matrix *matrix);
/* The kernels' view of a packed matrix. */
gpu_weights gpu_weights_of(const matrix *matrix);
int gpu_head_columns(int head_dim);        /* packed columns of a q or k head                                 */

/* generate.c: function of the backend table. */
openpi_status gpu_matrix_generate(device *device, const matrix *matrix, const generated_matrix *from, void *to,
                                  openpi_error *error);

#endif
