/* Inside the GPU backend: the device, and how ops become launches. No vendor is named here.
 *
 *   vendor.h   what a vendor is: driver, devices, modules
 *   family.h   what a kernel family is, and what it may ask for
 *   device.c   opening, memory, copies, facts; the device's states
 *   issue.c    the walk over ops, and its four uses: launch, record, measure the work block, list choices
 *   ops.c      op -> tasks
 *   choices.c  a task's choices, from all families; the one that is taken; its launches
 *   work.c     the work block
 *   record.c   running ops now, or recording them into a graph; times of stages and launches
 *   pack.c     weights into the layout of kernels/args.h, through pinned staging
 *   prepare.c  what families derive from a block's weights
 *   generate.c synthetic weights into that layout, made on the device
 *   roof.c     the device's ceilings */
#ifndef BACKEND_GPU_GPU_H
#define BACKEND_GPU_GPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/gpu/family.h"
#include "backend/gpu/kernels/row_order.h"

enum { GPU_SLOTS = 24, GPU_SLOT_BYTES = 1 << 20 };

/* A piece of pinned memory that is copied to the device. */
typedef struct gpu_slot {
    char *memory;
    void *event;                           /* after its last copy                                           */
} gpu_slot;

/* A module of the vendor on a device. */
typedef struct gpu_loaded {
    void *module;                          /* NULL: the device's path does not use it                       */
    void **functions;                      /* of the family's kernels                                       */
    void *state;                           /* the family's own                                              */
} gpu_loaded;

struct gpu_device {
    device base;
    const gpu_vendor *vendor;
    gpu_driver driver;
    gpu_facts facts;
    int ordinal;
    char name[24];                         /* "VENDOR:0"                                                    */
    size_t shared_bytes;                   /* most dynamic shared memory of a block                         */
    uint32_t off;                          /* switches that are off                                         */
    int overlap;                           /* kernels may start before the one before has ended             */
    void *context;
    void *stream; /* loading, clearing and op-by-op runs; recordings have their own */
    gpu_loaded *loaded;                    /* one a module                                                  */
    int loaded_count;
    void *events[OPENPI_STAGES + 1];       /* of run                                                        */
    pthread_mutex_t running;               /* one op-by-op run at a time                                    */
    atomic_int whole_device_recordings;    /* that need the device for themselves: while there are any, all
                                              calls share `stream`                                          */

    /* Once a driver call has failed on the device, nothing on it can be trusted: every later call says
     * this. */
    atomic_int lost;
    char lost_text[300];
    pthread_mutex_t losing;

    gpu_slot slots[GPU_SLOTS];
    int free_slots[GPU_SLOTS], free_first, free_count;
    pthread_mutex_t slot_lock;
    pthread_cond_t slot_freed;
};

/* ---- errors (device.c) ------------------------------------------------------------------------------ */

/* Errors that are not the driver's. */
enum {
    GPU_NO_HOST_MEMORY = -1,
    GPU_NO_KERNEL = -2,                    /* no family of the device runs a task                           */
};

gpu_error gpu_error_class(const gpu_device *self, int code);
const char *gpu_error_text(const gpu_device *self, int code);
/* What a failed driver call means; `doing` completes "while …". Marks the device as lost. */
openpi_status gpu_fail(gpu_device *self, int code, const char *doing, openpi_error *error);

/* Calls the driver, and returns from an openpi_status function with `self` and `error` where that fails. */
#define GPU(function, doing, ...)                                                           \
    do {                                                                                    \
        int gpu_code_ = self->driver.function(&self->driver, __VA_ARGS__);                  \
        if (gpu_code_) return gpu_fail(self, gpu_code_, doing, error);                      \
    } while (0)

/* ---- issuing ops (issue.c) -------------------------------------------------------------------------- */

/* What a walk over ops is for. */
typedef enum gpu_purpose {
    GPU_LAUNCH,                            /* kernels start, now or in a capture                            */
    GPU_MEASURE,                           /* the work block is added up                                    */
    GPU_LIST,                              /* an op's choices are listed                                    */
    GPU_BUILD,                             /* an op's task is made                                          */
} gpu_purpose;

/* The work block, for one op after the other (work.c). */
typedef struct gpu_work {
    char *memory;                          /* NULL: it is only measured                                     */
    size_t used, most;                     /* bytes: of this op, and of all ops so far                      */
} gpu_work;

/* GPU_LAUNCH: where launches go. */
typedef struct gpu_emission {
    void *stream;
    struct recording *recording;           /* notes every launch; NULL: none                                */
    int alone;                             /* 1: the next launch waits for all before it                    */
    int in_turn;                           /* 1: each launch does                                           */
    int code;                              /* the first error                                               */
} gpu_emission;

/* GPU_LIST: where choices are written. */
typedef struct gpu_listing {
    candidate *list;
    int capacity, count;                   /* count: all there are                                          */
} gpu_listing;

struct gpu_issue {
    gpu_device *device;
    gpu_purpose purpose;
    gpu_work work;
    gpu_emission emit;
    gpu_listing listing;
    gpu_task *built;                       /* GPU_BUILD                                                     */
    /* The op that is being issued. */
    const op *op;
    int place, left;                       /* its place; ops from it on, 0: it alone is known               */
    int ops;                               /* that the next launches compute: 1, or what a family takes     */
    int choice;                            /* op.choice, for the task that has choices                      */
    int family;                            /* that is being asked                                           */
};

/* Issues the op at a place of the list, or several that a family takes together; returns how many. */
int gpu_issue_next(gpu_issue *issue, const op_list *list, int place);
size_t gpu_work_bytes(const device *device, const op *ops, int count); /* of the backend table */
int gpu_candidates(const device *device, const op *op, candidate *out,
                   int capacity); /* of the backend table */
/* A launch that belongs to no op: by the device's stream, waiting for all before it. */
int gpu_issue_task(gpu_device *device, gpu_task *task);

/* ops.c: the tasks of an op. */
void gpu_op_tasks(gpu_issue *issue, const op *op);

/* prepare.c. 1: module i's family could take ops here, were its switches on. */
int gpu_could_take(const gpu_device *self, int i);
/* Functions of the backend table. */
size_t gpu_prepared_bytes(const device *device, const block_weights *block);
openpi_status gpu_prepare(device *device, const block_weights *block, openpi_error *error);

/* work.c: the next op begins, at the block's beginning. */
void gpu_work_begin(gpu_work *work);

/* choices.c */
void gpu_choices_of(const gpu_device *device, const gpu_task *task, gpu_choices *out);
/* The choice of op.choice, else the heuristic's. NULL: choices are only being listed, or there is none. */
const gpu_choice *gpu_choices_pick(gpu_issue *issue, const gpu_choices *choices);
/* Launches a task by the op's choice; by the heuristic's, whatever the op says. */
void gpu_launch_chosen(gpu_issue *issue, gpu_task *task);
void gpu_launch_usual(gpu_issue *issue, gpu_task *task);
uint64_t gpu_kernel_hash(const device *device, const char *name); /* of the backend table */

/* ---- record.c --------------------------------------------------------------------------------------- */

/* The launch was issued to issue->emit.recording's capture. */
void gpu_note_launch(gpu_issue *issue, const char *kernel, const gpu_launch *launch);
/* What was launched needs the device for itself. */
void gpu_note_whole_device(gpu_issue *issue);
/* Functions of the backend table. */
openpi_status gpu_run(device *device, op_list list, void *work, double *stage_ms, openpi_error *error);
openpi_status gpu_record(device *device, op_list list, void *work, struct recording **out,
                         openpi_error *error);
openpi_status gpu_record_timed(device *device, op_list list, void *work, struct recording **out,
                               openpi_error *error);
openpi_status gpu_replay(device *device, struct recording *recording, const device_copy *up, int up_count,
                         const device_copy *down, double *stage_ms, openpi_error *error);
void gpu_forget(device *device, struct recording *recording);
int gpu_launches(device *device, struct recording *recording, launch_record *out, int capacity);
int gpu_nodes(const struct recording *recording);

/* ---- the rest of the backend table ------------------------------------------------------------------ */

/* roof.c */
openpi_status gpu_roof(device *device, dtype type, device_roofs *out, openpi_error *error);

/* pack.c */
int gpu_takes_weights(const device *device, dtype type, weight_type weights, matrix_input input);
size_t gpu_matrix_bytes(const device *device, const matrix *matrix);
int gpu_matrix_blocks(const device *device, const matrix *matrix);
size_t gpu_matrix_scratch(const device *device, const matrix *matrix);
openpi_status gpu_matrix_pack(device *device, const matrix *matrix, int first, int count,
                              const matrix_source *source, void *to, void *scratch, openpi_error *error);
/* The rows that its packed columns are, or of a raw matrix its rows. */
gpu_row_order gpu_row_order_of(const matrix *matrix);
int gpu_head_columns(int head_dim);        /* packed columns of a q or k head                               */

/* generate.c */
openpi_status gpu_matrix_generate(device *device, const matrix *matrix, const generated_matrix *from,
                                  void *to, openpi_error *error);

/* device.c */
void gpu_close(device *device);
openpi_status gpu_allocate(device *device, size_t bytes, const char *what, void **out, openpi_error *error);
void gpu_release(device *device, void *memory);
openpi_status gpu_allocate_host(device *device, size_t bytes, const char *what, void **out,
                                openpi_error *error);
void gpu_release_host(device *device, void *memory);
openpi_status gpu_upload(device *device, void *to, const void *from, size_t bytes, openpi_error *error);
openpi_status gpu_download(device *device, void *to, const void *from, size_t bytes, openpi_error *error);
size_t gpu_cache_bytes(const device *device, int capacity, int head_dim, dtype type);
openpi_status gpu_cache_read(device *device, const kv_cache *cache, dtype type, int which, int sample,
                             int rows, float *out, openpi_error *error);
openpi_status gpu_memory(device *device, uint64_t *unused, uint64_t *total, openpi_error *error);
openpi_status gpu_get_facts(device *device, device_facts *out, openpi_error *error);
openpi_status gpu_library_product(device *device, int m, int n, int k, double *us, char *name,
                                  openpi_error *error);
void gpu_set_off(device *device, uint32_t off);
uint32_t gpu_missing(const device *device);

/* Defines `const backend backend_VENDOR` of gpu_vendor_VENDOR, at file scope. */
#define GPU_BACKEND(vendor)                                                                                  \
    extern const gpu_vendor gpu_vendor_##vendor;                                                             \
    extern const backend backend_##vendor;                                                                   \
    static int devices_##vendor(openpi_device *devices, int capacity) {                                      \
        return gpu_devices(&gpu_vendor_##vendor, devices, capacity);                                         \
    }                                                                                                        \
    static openpi_status open_##vendor(const char *which, const device_options *options, device **out,       \
                                       openpi_error *error) {                                                \
        return gpu_open(&gpu_vendor_##vendor, &backend_##vendor, which, options, out, error);                \
    }                                                                                                        \
    const backend backend_##vendor = {                                                                       \
        .name = #vendor,                                                                                     \
        .devices = devices_##vendor,                                                                         \
        .open = open_##vendor,                                                                               \
        .close = gpu_close,                                                                                  \
        .allocate = gpu_allocate,                                                                            \
        .release = gpu_release,                                                                              \
        .allocate_host = gpu_allocate_host,                                                                  \
        .release_host = gpu_release_host,                                                                    \
        .upload = gpu_upload,                                                                                \
        .download = gpu_download,                                                                            \
        .takes_weights = gpu_takes_weights,                                                                  \
        .matrix_bytes = gpu_matrix_bytes,                                                                    \
        .matrix_blocks = gpu_matrix_blocks,                                                                  \
        .matrix_scratch = gpu_matrix_scratch,                                                                \
        .matrix_pack = gpu_matrix_pack,                                                                      \
        .matrix_generate = gpu_matrix_generate,                                                              \
        .prepared_bytes = gpu_prepared_bytes,                                                                \
        .prepare = gpu_prepare,                                                                              \
        .cache_bytes = gpu_cache_bytes,                                                                      \
        .cache_read = gpu_cache_read,                                                                        \
        .work_bytes = gpu_work_bytes,                                                                        \
        .run = gpu_run,                                                                                      \
        .record = gpu_record,                                                                                \
        .replay = gpu_replay,                                                                                \
        .forget = gpu_forget,                                                                                \
        .record_timed = gpu_record_timed,                                                                    \
        .launches = gpu_launches,                                                                            \
        .nodes = gpu_nodes,                                                                                  \
        .roof = gpu_roof,                                                                                    \
        .memory = gpu_memory,                                                                                \
        .facts = gpu_get_facts,                                                                              \
        .candidates = gpu_candidates,                                                                        \
        .kernel_hash = gpu_kernel_hash,                                                                      \
        .library_product = gpu_library_product,                                                              \
        .set_off = gpu_set_off,                                                                              \
        .missing = gpu_missing,                                                                              \
    }

#endif
