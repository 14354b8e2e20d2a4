/* What is called of NVIDIA's driver library: a table of its functions, in their own signatures, structures
 * and numbers.
 *
 * cuda_library_open fills it from libcuda.so.1, at run time; no header or library of the vendor is needed
 * to build this. Every function returns 0 or the driver's error number. A test puts functions of its own
 * in any place. */
#ifndef BACKEND_GPU_CUDA_LIBRARY_H
#define BACKEND_GPU_CUDA_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "backend/gpu/cuda/maps.h"
#include "backend/gpu/vendor.h"

/* A launch, as the driver's own structure is laid out. */
typedef struct cuda_attribute {
    int id;
    char pad[4];
    union {
        unsigned cluster[3];
        int flag;
        char bytes[64];
    } value;
} cuda_attribute;

typedef struct cuda_launch {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    cuda_attribute *attributes;
    unsigned attribute_count;
} cuda_launch;

/* A copy of rows, of which only addresses on the device are used. */
typedef struct cuda_rows {
    struct cuda_rows_end {
        size_t x, y;
        int memory;
        void *host;
        gpu_address device;
        void *array;
        size_t pitch;
    } from, to;
    size_t bytes, rows;
} cuda_rows;

enum {
    CUDA_OUT_OF_MEMORY = 2,                 /* errors                                                       */
    CUDA_NO_BINARY = 209,                   /* no machine code for the chip, and no PTX                     */
    CUDA_NO_PTX_COMPILER = 221,
    CUDA_NEWER_PTX = 222,                   /* PTX for a newer driver                                       */
    CUDA_NOT_SUPPORTED = 801,
    CUDA_CAPTURE_UNSUPPORTED = 900,
    CUDA_ATTRIBUTE_COOPERATIVE = 2,         /* launch attributes: all blocks start together                 */
    CUDA_ATTRIBUTE_CLUSTER = 4,
    CUDA_ATTRIBUTE_OVERLAP = 6,             /* start while the kernel before still runs                     */
    CUDA_DEVICE_CORE_KHZ = 13,
    CUDA_DEVICE_MULTIPROCESSORS = 16,
    CUDA_DEVICE_INTEGRATED = 18,            /* its memory is the host's                                     */
    CUDA_DEVICE_MEMORY_KHZ = 36,
    CUDA_DEVICE_CACHE_BYTES = 38,
    CUDA_DEVICE_MAJOR = 75,
    CUDA_DEVICE_MINOR = 76,
    CUDA_DEVICE_ALL_SHARED_BYTES = 81,      /* that the blocks of a multiprocessor have together */
    CUDA_DEVICE_SHARED_BYTES = 97,          /* most a block may ask for                                     */
    CUDA_FUNCTION_SHARED_BYTES = 8,
    CUDA_FUNCTION_SHARED_PERCENT = 9,       /* of a multiprocessor's memory, against the first-level cache  */
    CUDA_FUNCTION_WIDE_CLUSTERS = 14,       /* more than 8 blocks a cluster                                 */
    CUDA_STREAM_NON_BLOCKING = 1,
    CUDA_CAPTURE_THREAD_LOCAL = 1,
    CUDA_EVENT_EXTERNAL = 1,                /* in a capture: a node that records the event                  */
    CUDA_MEMORY_DEVICE = 2,
    CUDA_MAP_FLOAT32 = 7,
    CUDA_MAP_BF16 = 9,
    CUDA_MAP_SWIZZLE_NONE = 0,
    CUDA_MAP_SWIZZLE_128 = 3,
    CUDA_MAP_PROMOTE_256 = 3,
};

/* X(member, symbol, needed, parameters) */
#define CUDA_LIBRARY_LIST(X)                                                                             \
    X(init, "cuInit", 1, (unsigned flags))                                                               \
    X(driver_version, "cuDriverGetVersion", 1, (int *version))                                           \
    X(error_name, "cuGetErrorName", 1, (int error, const char **text))                                   \
    X(error_text, "cuGetErrorString", 1, (int error, const char **text))                                 \
    X(device_count, "cuDeviceGetCount", 1, (int *count))                                                 \
    X(device_get, "cuDeviceGet", 1, (int *device, int ordinal))                                          \
    X(device_name, "cuDeviceGetName", 1, (char *name, int length, int device))                           \
    X(device_memory, "cuDeviceTotalMem_v2", 1, (size_t * bytes, int device))                             \
    X(device_attribute, "cuDeviceGetAttribute", 1, (int *value, int attribute, int device))              \
    X(context_retain, "cuDevicePrimaryCtxRetain", 1, (void **context, int device))                       \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", 1, (int device))                                  \
    X(context_set, "cuCtxSetCurrent", 1, (void *context))                                                \
    X(memory_info, "cuMemGetInfo_v2", 1, (size_t * free_bytes, size_t * total))                          \
    X(allocate, "cuMemAlloc_v2", 1, (gpu_address * address, size_t bytes))                               \
    X(release, "cuMemFree_v2", 1, (gpu_address address))                                                 \
    X(allocate_host, "cuMemHostAlloc", 1, (void **memory, size_t bytes, unsigned flags))                 \
    X(release_host, "cuMemFreeHost", 1, (void *memory))                                                  \
    X(upload, "cuMemcpyHtoDAsync_v2", 1, (gpu_address to, const void *from, size_t bytes, void *stream)) \
    X(download, "cuMemcpyDtoHAsync_v2", 1, (void *to, gpu_address from, size_t bytes, void *stream))     \
    X(copy_rows, "cuMemcpy2DAsync_v2", 1, (const cuda_rows *rows, void *stream))                          \
    X(fill, "cuMemsetD8Async", 1, (gpu_address to, unsigned char value, size_t bytes, void *stream))     \
    X(stream_create, "cuStreamCreate", 1, (void **stream, unsigned flags))                               \
    X(stream_destroy, "cuStreamDestroy_v2", 1, (void *stream))                                           \
    X(stream_wait, "cuStreamSynchronize", 1, (void *stream))                                             \
    X(capture_begin, "cuStreamBeginCapture_v2", 1, (void *stream, int mode))                             \
    X(capture_end, "cuStreamEndCapture", 1, (void *stream, void **graph))                                \
    X(event_create, "cuEventCreate", 1, (void **event, unsigned flags))                                  \
    X(event_destroy, "cuEventDestroy_v2", 1, (void *event))                                              \
    X(event_record, "cuEventRecordWithFlags", 1, (void *event, void *stream, unsigned flags))            \
    X(event_wait, "cuEventSynchronize", 1, (void *event))                                                \
    X(event_elapsed, "cuEventElapsedTime", 1, (float *ms, void *start, void *end))                       \
    X(module_load, "cuModuleLoadData", 1, (void **module, const void *image))                            \
    X(module_unload, "cuModuleUnload", 1, (void *module))                                                \
    X(module_function, "cuModuleGetFunction", 1, (void **function, void *module, const char *name))      \
    X(function_set, "cuFuncSetAttribute", 1, (void *function, int attribute, int value))                 \
    X(launch, "cuLaunchKernelEx", 1,                                                                     \
      (const cuda_launch *launch, void *function, void **arguments, void **extra))                       \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", 1,                                               \
      (void **exec, void *graph, unsigned long long flags))                                              \
    X(graph_nodes, "cuGraphGetNodes", 1, (void *graph, void **nodes, size_t *count))                     \
    X(graph_upload, "cuGraphUpload", 1, (void *exec, void *stream))                                      \
    X(graph_launch, "cuGraphLaunch", 1, (void *exec, void *stream))                                      \
    X(graph_exec_destroy, "cuGraphExecDestroy", 1, (void *exec))                                         \
    X(graph_destroy, "cuGraphDestroy", 1, (void *graph))                                                 \
    X(tensor_map, "cuTensorMapEncodeTiled", 0,                                                           \
      (gpu_tensor_map * map, int type, unsigned rank, void *base, const uint64_t *dims,                  \
       const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave, int swizzle, \
       int promotion, int fill))                                                                         \
    X(max_clusters, "cuOccupancyMaxActiveClusters", 0,                                                   \
      (int *clusters, void *function, const cuda_launch *launch))                                       \
    X(max_blocks, "cuOccupancyMaxActiveBlocksPerMultiprocessor", 0,                                      \
      (int *blocks, void *function, int threads, size_t shared_bytes))

typedef struct cuda_library {
    void *handle;                          /* dlopen's handle                                               */
    int integrated;                        /* the device whose context was opened                           */
    const char *proc;                      /* a test's own root in place of /proc; NULL: none               */
    const int *compilers;                  /* a test's own versions in place of cuda_compilers; NULL: none  */
#define X(member, symbol, needed, parameters) int (*member) parameters;
    CUDA_LIBRARY_LIST(X)
#undef X
} cuda_library;

/* Fills the table; `why` (at least 200 bytes) gets the reason where there is no driver. 0 or -1. */
int cuda_library_open(cuda_library *library, char *why, size_t why_bytes);
/* The driver table over such a library, which it frees when it is closed. */
void cuda_driver_over(cuda_library *library, gpu_driver *driver);

/* A driver takes no code of a compiler for a newer CUDA, so a build may have two of them: the code of each
 * family by the newest first, and versions of the compilers, 13000 for 13.0; 0: this build lacks it. */
enum { CUDA_COMPILERS = 2 };
typedef struct cuda_image {
    const void *code[CUDA_COMPILERS];
} cuda_image;
extern const int cuda_compilers[CUDA_COMPILERS];
/* Which compiler's code the driver takes: the first that is for no newer CUDA than the driver; -1: none. */
int cuda_compiler_for(const cuda_library *library, int driver_version);

#endif
