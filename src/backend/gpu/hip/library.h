/* What is called of AMD's HIP runtime: a table of its functions, in their own signatures, structures and
 * numbers.
 *
 * hip_library_open fills it from libamdhip64.so.7 or .6, or whatever .so names, at run time; no header or
 * library of the vendor is needed to build this. Every function but hipGetErrorString returns 0 or the
 * runtime's error number. */
#ifndef BACKEND_GPU_HIP_LIBRARY_H
#define BACKEND_GPU_HIP_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#include "backend/gpu/vendor.h"

/* What hipGetDevicePropertiesR0600 writes (ROCm 6 and 7), with names for what is read here. */
typedef struct hip_properties {
    char name[256];
    char identity[32];
    size_t memory_bytes;
    size_t shared_bytes;                   /* local memory of a block                                      */
    int registers, lanes;
    size_t pitch;
    int most_threads, most_block[3], most_grid[3];
    int core_khz;
    size_t constant_bytes;
    int major, minor;
    size_t texture[2];
    int overlap;
    int multiprocessors;                   /* compute units                                                */
    char unread[216];
    int memory_khz, memory_bits, cache_bytes;
    char unread_too[540];
    char architecture[256];                /* "gfx942:sramecc+:xnack-"                                     */
    char rest[2048];                       /* 56 bytes today                                               */
} hip_properties;

_Static_assert(offsetof(hip_properties, multiprocessors) == 388, "as in ROCm 6 and 7");
_Static_assert(offsetof(hip_properties, memory_khz) == 608, "as in ROCm 6 and 7");
_Static_assert(offsetof(hip_properties, architecture) == 1160, "as in ROCm 6 and 7");

enum {
    HIP_OUT_OF_MEMORY = 2,                 /* errors                                                       */
    HIP_NO_DEVICE = 100,
    HIP_NO_BINARY = 209,
    HIP_LAUNCH_FAILED = 719,
    HIP_NOT_SUPPORTED = 801,
    HIP_CAPTURE_UNSUPPORTED = 900,
    HIP_STREAM_NON_BLOCKING = 1,
    HIP_CAPTURE_THREAD_LOCAL = 1,
    HIP_SET_DEPENDENCIES = 1,
    HIP_ON_DEVICE = 3,                     /* a copy from the device to the device                         */
    HIP_OLDEST = 60000000,                 /* as hipRuntimeGetVersion: major·10⁷ + minor·10⁵ + patch       */
};

/* X(member, symbol, type, parameters) */
#define HIP_LIBRARY_LIST(X)                                                                                  \
    X(init, hipInit, int, (unsigned flags))                                                                  \
    X(runtime_version, hipRuntimeGetVersion, int, (int *version))                                            \
    X(error_text, hipGetErrorString, const char *, (int error))                                              \
    X(device_count, hipGetDeviceCount, int, (int *count))                                                    \
    X(device_set, hipSetDevice, int, (int device))                                                           \
    X(device_properties, hipGetDevicePropertiesR0600, int, (hip_properties *properties, int device))         \
    X(memory_info, hipMemGetInfo, int, (size_t *free_bytes, size_t *total))                                  \
    X(allocate, hipMalloc, int, (void **memory, size_t bytes))                                               \
    X(release, hipFree, int, (void *memory))                                                                 \
    X(allocate_host, hipHostMalloc, int, (void **memory, size_t bytes, unsigned flags))                      \
    X(release_host, hipHostFree, int, (void *memory))                                                        \
    X(upload, hipMemcpyHtoDAsync, int, (void *to, void *from, size_t bytes, void *stream))                   \
    X(download, hipMemcpyDtoHAsync, int, (void *to, void *from, size_t bytes, void *stream))                 \
    X(copy_rows, hipMemcpy2DAsync, int,                                                                      \
      (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows, int kind,  \
       void *stream))                                                                                        \
    X(fill, hipMemsetAsync, int, (void *to, int value, size_t bytes, void *stream))                          \
    X(stream_create, hipStreamCreateWithFlags, int, (void **stream, unsigned flags))                         \
    X(stream_destroy, hipStreamDestroy, int, (void *stream))                                                 \
    X(stream_wait, hipStreamSynchronize, int, (void *stream))                                                \
    X(capture_begin, hipStreamBeginCapture, int, (void *stream, int mode))                                   \
    X(capture_end, hipStreamEndCapture, int, (void *stream, void **graph))                                   \
    X(capture_info, hipStreamGetCaptureInfo_v2, int,                                                         \
      (void *stream, int *status, unsigned long long *id, void **graph, void *const **nodes, size_t *count)) \
    X(capture_follow, hipStreamUpdateCaptureDependencies, int,                                               \
      (void *stream, void **nodes, size_t count, unsigned flags))                                            \
    X(event_create, hipEventCreate, int, (void **event))                                                     \
    X(event_destroy, hipEventDestroy, int, (void *event))                                                    \
    X(event_record, hipEventRecord, int, (void *event, void *stream))                                        \
    X(event_wait, hipEventSynchronize, int, (void *event))                                                   \
    X(event_elapsed, hipEventElapsedTime, int, (float *ms, void *start, void *end))                          \
    X(module_load, hipModuleLoadData, int, (void **module, const void *image))                               \
    X(module_unload, hipModuleUnload, int, (void *module))                                                   \
    X(module_function, hipModuleGetFunction, int, (void **function, void *module, const char *name))         \
    X(launch, hipModuleLaunchKernel, int,                                                                    \
      (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,         \
       unsigned shared_bytes, void *stream, void **arguments, void **extra))                                 \
    X(graph_event, hipGraphAddEventRecordNode, int,                                                          \
      (void **node, void *graph, void *const *after, size_t count, void *event))                             \
    X(graph_nodes, hipGraphGetNodes, int, (void *graph, void **nodes, size_t *count))                        \
    X(graph_instantiate, hipGraphInstantiateWithFlags, int,                                                  \
      (void **exec, void *graph, unsigned long long flags))                                                  \
    X(graph_upload, hipGraphUpload, int, (void *exec, void *stream))                                         \
    X(graph_launch, hipGraphLaunch, int, (void *exec, void *stream))                                         \
    X(graph_exec_destroy, hipGraphExecDestroy, int, (void *exec))                                            \
    X(graph_destroy, hipGraphDestroy, int, (void *graph))

typedef struct hip_library {
    void *handle;                          /* dlopen's handle                                              */
    char architecture[64];                 /* the device that was opened last, "gfx942"                    */
#define X(member, symbol, type, parameters) type(*member) parameters;
    HIP_LIBRARY_LIST(X)
#undef X
} hip_library;

/* Fills the table; `why` (at least 200 bytes) gets the reason where there is no runtime. 0 or -1. */
int hip_library_open(hip_library *library, char *why, size_t why_bytes);

#endif
