/* The device: its errors, memory, copies and facts (device.c). */
#ifndef BACKEND_GPU_DEVICE_H
#define BACKEND_GPU_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/gpu/card.h"
#include "backend/gpu/family.h"

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
    const gpu_card *as;                    /* the card that it stands for; NULL: for itself                 */
    uint32_t off;                          /* switches that are off                                         */
    int overlap;                           /* kernels may start before the one before has ended             */
    void *context;
    void *stream; /* loading, clearing and op-by-op runs; recordings have their own */
    void *calls;                           /* all calls, while a recording needs the device for itself      */
    gpu_loaded *loaded;                    /* one a module                                                  */
    int loaded_count;
    void *events[OPENPI_STAGES + 1];       /* of run                                                        */
    pthread_mutex_t running;               /* one op-by-op run at a time                                    */
    atomic_int whole_device_recordings;    /* that need the device for themselves: while there are any, all
                                              calls share `calls`                                           */

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

/* ---- errors ----------------------------------------------------------------------------------------- */

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

/* ---- functions of the backend table ------------------------------------------------------------------ */

void gpu_close(device *device);
openpi_status gpu_allocate(device *device, size_t bytes, const char *what, void **out, openpi_error *error);
void gpu_release(device *device, void *memory);
openpi_status gpu_allocate_host(device *device, size_t bytes, const char *what, void **out,
                                openpi_error *error);
void gpu_release_host(device *device, void *memory);
openpi_status gpu_copy_rows(device *device, void *to, const void *from, size_t pitch, size_t bytes, int rows,
                            openpi_error *error);
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
int gpu_untuned_percent(const device *device);
int gpu_chooses_by_rows(const device *device);

#endif
