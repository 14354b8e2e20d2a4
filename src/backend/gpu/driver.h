/* What the host side needs of a GPU driver: memory, streams, events, modules, launches, graphs.
 *
 * A table of functions that one file per vendor fills from its driver library, opened at run time; no header or
 * library of the vendor is needed to build this. Every function returns 0 or the driver's error number. Names and
 * signatures are the driver's own, so that a test can put a function of its own in any place.
 *
 * The surprise: addresses on the device are 64-bit integers here and pointers everywhere else in this project;
 * on every platform served the two have one size. */
#ifndef BACKEND_GPU_DRIVER_H
#define BACKEND_GPU_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "backend/gpu/kernels/args.h"

typedef uint64_t gpu_address;

/* A launch, as the driver's own structure is laid out. */
typedef struct gpu_attribute {
    int id;
    char pad[4];
    union {
        unsigned cluster[3];
        int flag;
        char bytes[64];
    } value;
} gpu_attribute;

typedef struct gpu_launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    gpu_attribute *attributes;
    unsigned attribute_count;
} gpu_launch;

enum {
    GPU_OUT_OF_MEMORY = 2,                 /* errors                                                          */
    GPU_NOT_SUPPORTED = 801,
    GPU_CAPTURE_UNSUPPORTED = 900,
    GPU_ATTRIBUTE_COOPERATIVE = 2,         /* launch attributes: all blocks start together                    */
    GPU_ATTRIBUTE_CLUSTER = 4,
    GPU_ATTRIBUTE_OVERLAP = 6,             /* start while the kernel before still runs                        */
    GPU_DEVICE_CORE_KHZ = 13,
    GPU_DEVICE_MULTIPROCESSORS = 16,
    GPU_DEVICE_MEMORY_KHZ = 36,
    GPU_DEVICE_CACHE_BYTES = 38,
    GPU_DEVICE_MAJOR = 75,
    GPU_DEVICE_MINOR = 76,
    GPU_DEVICE_SHARED_BYTES = 97,          /* most a block may ask for                                        */
    GPU_FUNCTION_SHARED_BYTES = 8,
    GPU_FUNCTION_WIDE_CLUSTERS = 14,       /* more than 8 blocks a cluster                                    */
    GPU_STREAM_NON_BLOCKING = 1,
    GPU_CAPTURE_THREAD_LOCAL = 1,
    GPU_EVENT_EXTERNAL = 1,                /* in a capture: a node that records the event                     */
    GPU_MAP_FLOAT32 = 7,
    GPU_MAP_BF16 = 9,
    GPU_MAP_SWIZZLE_NONE = 0,
    GPU_MAP_SWIZZLE_128 = 3,
    GPU_MAP_PROMOTE_256 = 3,
};

/* X(member, symbol, needed, parameters) */
#define GPU_DRIVER_LIST(X)                                                                              \
    X(init, "cuInit", 1, (unsigned flags))                                                              \
    X(driver_version, "cuDriverGetVersion", 1, (int *version))                                          \
    X(error_name, "cuGetErrorName", 1, (int error, const char **text))                                  \
    X(error_text, "cuGetErrorString", 1, (int error, const char **text))                                \
    X(device_count, "cuDeviceGetCount", 1, (int *count))                                                \
    X(device_get, "cuDeviceGet", 1, (int *device, int ordinal))                                         \
    X(device_name, "cuDeviceGetName", 1, (char *name, int length, int device))                          \
    X(device_memory, "cuDeviceTotalMem_v2", 1, (size_t *bytes, int device))                             \
    X(device_attribute, "cuDeviceGetAttribute", 1, (int *value, int attribute, int device))             \
    X(context_retain, "cuDevicePrimaryCtxRetain", 1, (void **context, int device))                      \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", 1, (int device))                                 \
    X(context_set, "cuCtxSetCurrent", 1, (void *context))                                               \
    X(memory_info, "cuMemGetInfo_v2", 1, (size_t *free_bytes, size_t *total))                           \
    X(allocate, "cuMemAlloc_v2", 1, (gpu_address *address, size_t bytes))                               \
    X(release, "cuMemFree_v2", 1, (gpu_address address))                                                \
    X(allocate_host, "cuMemHostAlloc", 1, (void **memory, size_t bytes, unsigned flags))                \
    X(release_host, "cuMemFreeHost", 1, (void *memory))                                                 \
    X(upload, "cuMemcpyHtoDAsync_v2", 1, (gpu_address to, const void *from, size_t bytes, void *stream)) \
    X(download, "cuMemcpyDtoHAsync_v2", 1, (void *to, gpu_address from, size_t bytes, void *stream))    \
    X(fill, "cuMemsetD8Async", 1, (gpu_address to, unsigned char value, size_t bytes, void *stream))    \
    X(stream_create, "cuStreamCreate", 1, (void **stream, unsigned flags))                              \
    X(stream_destroy, "cuStreamDestroy_v2", 1, (void *stream))                                          \
    X(stream_wait, "cuStreamSynchronize", 1, (void *stream))                                            \
    X(capture_begin, "cuStreamBeginCapture_v2", 1, (void *stream, int mode))                            \
    X(capture_end, "cuStreamEndCapture", 1, (void *stream, void **graph))                               \
    X(event_create, "cuEventCreate", 1, (void **event, unsigned flags))                                 \
    X(event_destroy, "cuEventDestroy_v2", 1, (void *event))                                             \
    X(event_record, "cuEventRecordWithFlags", 1, (void *event, void *stream, unsigned flags))           \
    X(event_wait, "cuEventSynchronize", 1, (void *event))                                               \
    X(event_elapsed, "cuEventElapsedTime", 1, (float *ms, void *start, void *end))                      \
    X(module_load, "cuModuleLoadData", 1, (void **module, const void *image))                           \
    X(module_unload, "cuModuleUnload", 1, (void *module))                                               \
    X(module_function, "cuModuleGetFunction", 1, (void **function, void *module, const char *name))     \
    X(function_set, "cuFuncSetAttribute", 1, (void *function, int attribute, int value))                \
    X(launch, "cuLaunchKernelEx", 1, (const gpu_launch *launch, void *function, void **arguments, void **extra)) \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", 1, (void **exec, void *graph, unsigned long long flags)) \
    X(graph_nodes, "cuGraphGetNodes", 1, (void *graph, void **nodes, size_t *count))                    \
    X(graph_upload, "cuGraphUpload", 1, (void *exec, void *stream))                                     \
    X(graph_launch, "cuGraphLaunch", 1, (void *exec, void *stream))                                     \
    X(graph_exec_destroy, "cuGraphExecDestroy", 1, (void *exec))                                        \
    X(graph_destroy, "cuGraphDestroy", 1, (void *graph))                                                \
    X(tensor_map, "cuTensorMapEncodeTiled", 0,                                                          \
      (gpu_tensor_map *map, int type, unsigned rank, void *base, const uint64_t *dims, const uint64_t *strides, \
       const unsigned *box, const unsigned *steps, int interleave, int swizzle, int promotion, int fill)) \
    X(max_clusters, "cuOccupancyMaxActiveClusters", 0, (int *clusters, void *function, const gpu_launch *launch))

typedef struct gpu_driver {
    void *library;
#define X(member, symbol, needed, parameters) int (*member) parameters;
    GPU_DRIVER_LIST(X)
#undef X
} gpu_driver;

/* One module of kernels: an image with machine code for several chips. */
typedef struct gpu_image {
    const char *name;                      /* "gemm_mma"                                                      */
    const void *data;
    int hopper;                            /* only for chips of compute capability 9.0                        */
} gpu_image;

/* Opens the driver's library; `why` (at least 200 bytes) gets the reason where there is none. 0 or -1. */
int gpu_driver_open_cuda(gpu_driver *driver, char *why, size_t why_bytes);
void gpu_driver_close(gpu_driver *driver);

/* The images of this build, ended by one without a name; empty in a build without the CUDA compiler. */
extern const gpu_image gpu_images_cuda[];
/* Version of the compiler that made them, 13000 for 13.0; 0 without. */
extern const int gpu_images_cuda_version;

#endif
