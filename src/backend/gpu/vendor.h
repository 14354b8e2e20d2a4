/* A GPU vendor, as this backend sees it: a driver table, how a device is judged, and kernel families.
 *
 * A vendor is a folder of src/backend/gpu and one line in backends.c. It fills in a gpu_vendor; everything
 * outside of its folder is neutral. The parts of one:
 *
 *   driver    gpu_vendor.open fills a gpu_driver. Its functions adapt the vendor's signatures, structures
 *             and numbers, and return 0 or the driver's own error number, which error_class and error_text
 *             explain. `library` is the vendor's own; every function receives the table it was called
 *             through.
 *   devices   gpu_vendor.learn describes a device and says why it cannot be used; gpu_vendor.offers says
 *             which of the vendor's paths, each a set of modules, it can run.
 *   modules   a kernel family each (family.h), with its machine code, the one path it is made for (NULL:
 *             all), and a hash of its sources. Ended by one without a family. Where a build has no
 *             kernels, every image is NULL and learn gives that as the reason.
 *
 * Note: addresses on the device are 64-bit integers here and pointers everywhere else in this project; on
 * every platform served the two have one size. */
#ifndef BACKEND_GPU_VENDOR_H
#define BACKEND_GPU_VENDOR_H

#include <stddef.h>
#include <stdint.h>

#include "backend/backend.h"

typedef uint64_t gpu_address;
typedef struct gpu_driver gpu_driver;
typedef struct gpu_device gpu_device;
typedef struct gpu_family gpu_family;

/* What an error of the driver means to its caller. */
typedef enum gpu_error {
    GPU_ERROR_OTHER,                       /* the device is lost                                            */
    GPU_ERROR_OUT_OF_MEMORY,
    GPU_ERROR_CANNOT_CAPTURE,              /* this driver makes no graphs: ops run one by one               */
    GPU_ERROR_NO_CODE,                     /* nothing in a module's image runs on this device               */
} gpu_error;

/* A kernel. In a family's table it may be the first member of a larger structure
 * (gpu_family.kernel_bytes). */
typedef struct gpu_kernel {
    const char *name;                      /* of its function, and in reports and tables                    */
    int dynamic; /* 1: may ask for shared memory per launch, up to the device's limit;
                                              2: also, a multiprocessor has all its shared memory ready,
                                              so that the next kernel finds a place beside it               */
    int wide;                              /* 1: clusters of more than 8 blocks                             */
} gpu_kernel;

/* A launch. A kernel takes one structure, by value: the driver copies `bytes` bytes of `arguments` before
 * it returns. */
typedef struct gpu_launch {
    void *function;
    unsigned grid[3], block[3];
    unsigned cluster;                      /* blocks in x that share their shared memory; 1: none           */
    size_t shared_bytes;
    int overlap;                           /* 1: may start while the kernel before it still runs            */
    int together;                          /* 1: all blocks start together, or not yet                      */
    const void *arguments;
    size_t bytes;
} gpu_launch;

/* Streams, events, graphs, modules and functions are the vendor's, opaque here. Work of a stream happens
 * in order. Where a function is marked "early" it may return before the work is done. */
struct gpu_driver {
    void *library;
    void (*close)(gpu_driver *driver);
    gpu_error (*error_class)(int code);
    const char *(*error_text)(const gpu_driver *driver, int code);
    int (*device_count)(const gpu_driver *driver, int *count);

    /* One context a device and process; `enter` makes it current in the calling thread (NULL: none). */
    int (*context_open)(const gpu_driver *driver, int ordinal, void **context);
    void (*context_close)(const gpu_driver *driver, int ordinal);
    int (*enter)(const gpu_driver *driver, void *context);

    int (*memory_info)(const gpu_driver *driver, size_t *unused, size_t *total);
    int (*allocate)(const gpu_driver *driver, gpu_address *address, size_t bytes);
    int (*release)(const gpu_driver *driver, gpu_address address);
    int (*allocate_host)(const gpu_driver *driver, void **memory,
                         size_t bytes); /* that copies are quick from */
    int (*release_host)(const gpu_driver *driver, void *memory);
    /* Early. Ordinary memory at `from` may be reused on return, memory of allocate_host after a wait. */
    int (*upload)(const gpu_driver *driver, gpu_address to, const void *from, size_t bytes, void *stream);
    int (*download)(const gpu_driver *driver, void *to, gpu_address from, size_t bytes,
                    void *stream); /* early */
    /* `rows` pieces of the device's memory, `pitch` bytes apart; early */
    int (*copy_rows)(const gpu_driver *driver, gpu_address to, gpu_address from, size_t pitch, size_t bytes,
                     size_t rows, void *stream);
    int (*fill)(const gpu_driver *driver, gpu_address to, unsigned char value, size_t bytes,
                void *stream); /* early */

    int (*stream_create)(const gpu_driver *driver, void **stream);
    int (*stream_destroy)(const gpu_driver *driver, void *stream);
    int (*stream_wait)(const gpu_driver *driver, void *stream);
    int (*event_create)(const gpu_driver *driver, void **event);
    int (*event_destroy)(const gpu_driver *driver, void *event);
    /* in_graph: the stream is being captured, and every replay records the event anew. */
    int (*event_record)(const gpu_driver *driver, void *event, void *stream, int in_graph);
    int (*event_wait)(const gpu_driver *driver, void *event);
    int (*event_elapsed)(const gpu_driver *driver, float *ms, void *start, void *end);

    int (*module_load)(const gpu_driver *driver, void **module, const void *image);
    int (*module_unload)(const gpu_driver *driver, void *module);
    /* `shared_bytes`: most that a launch will ask for, where kernel->dynamic. */
    int (*module_function)(const gpu_driver *driver, void **function, void *module, const gpu_kernel *kernel,
                           size_t shared_bytes);
    int (*launch)(const gpu_driver *driver, const gpu_launch *launch, void *stream);       /* early         */

    /* Between begin and end a stream runs nothing: its launches and events become a graph. */
    int (*capture_begin)(const gpu_driver *driver, void *stream);
    int (*capture_end)(const gpu_driver *driver, void *stream, void **graph);
    int (*graph_nodes)(const gpu_driver *driver, void *graph, size_t *count);
    int (*graph_destroy)(const gpu_driver *driver, void *graph);
    int (*graph_instantiate)(const gpu_driver *driver, void **exec, void *graph);
    /* Early; so that the first launch is not slower than others. */
    int (*graph_upload)(const gpu_driver *driver, void *exec, void *stream);
    int (*graph_launch)(const gpu_driver *driver, void *exec, void *stream);               /* early         */
    int (*graph_exec_destroy)(const gpu_driver *driver, void *exec);
};

/* A card by name, whether it is here or not. */
typedef struct gpu_card {
    const char *name, *title;              /* for device_options.as_card; as the driver calls it            */
    int major, minor;                      /* compute capability                                            */
    size_t multiprocessor_shared_bytes;
    int threads;                           /* that a multiprocessor holds at most                           */
    int overlap;                           /* 1: launches may start early (gpu_launch.overlap)              */
    int multiprocessors, cache_mb;
    double memory_gbs, bf16_tflops, int8_tops;             /* bf16 with sums of fp32, dense                 */
    int memory_gb, watts;
} gpu_card;

/* Of a multiprocessor's shared memory the driver keeps as much for itself with every block. */
enum { GPU_BLOCK_RESERVE = 1024 };

/* A device as the vendor describes it. */
typedef struct gpu_facts {
    device_facts report; /* name, driver, capability, multiprocessors, memory, caches, clocks */
    char description[128];                 /* a line for openpi_devices                                     */
    char reason[256];                      /* why it cannot be used; "": it can                             */
    size_t shared_bytes;                   /* most shared memory a block may have                           */
    size_t multiprocessor_shared_bytes;    /* that its blocks have together; 0: not known                   */
    double bf16_tflops, int8_tops;         /* as gpu_card's, for heuristics; 0: not known                   */
    int overlap;                           /* 1: launches may start early (gpu_launch.overlap)              */
    int integrated;                        /* 1: its memory is the host's, and allocate_host gives memory
                                              that kernels reach at the same address                        */
} gpu_facts;

/* A kernel family of this build. */
typedef struct gpu_module {
    const gpu_family *family;
    const void *image;                     /* for gpu_driver.module_load; NULL: not in this build           */
    const char *path;                      /* the only path that uses it; NULL: all                         */
    uint64_t hash;                         /* of the sources of its kernels and of its host side            */
} gpu_module;

typedef struct gpu_vendor {
    const char *name;                      /* of the backend and its devices: "x" makes "x:0"               */
    const char *title;                     /* in sentences                                                  */
    const char *const *paths;              /* the best first, ended by NULL                                 */
    const int *untuned_percent;            /* backend.untuned_percent for each path; NULL: not known        */
    const gpu_module *modules;
    const char *no_kernels;                /* where no image is in this build: a sentence with the reason   */
    /* Optional: what device_options.as_card may name, ended by one without a name, and the path whose kernels
     * run on all of them. */
    const gpu_card *cards;
    const char *cards_path;
    int layout;                            /* of packed bf16 weights: GPU_LAYOUT_* (kernels/args.h)         */
    /* Opens and starts the driver; `why` (at least 256 bytes) gets a reason where there is none. 0 or -1. */
    int (*open)(gpu_driver *driver, char *why, size_t why_bytes);
    void (*learn)(const gpu_driver *driver, int ordinal, const gpu_module *modules, gpu_facts *out);
    /* 1 where the device runs the path; else `why` (at least 160 bytes) completes "path P …". */
    int (*offers)(const gpu_driver *driver, const gpu_facts *facts, const char *path, char *why,
                  size_t why_bytes);
    /* Optional: backend.library_product. */
    openpi_status (*library_product)(device *device, int m, int n, int k, double *us, char *name,
                                     openpi_error *error);
} gpu_vendor;

/* ---- the backend of a vendor: device.c; gpu.h's GPU_BACKEND makes its table ------------------------- */

int gpu_devices(const gpu_vendor *vendor, openpi_device *devices, int capacity);
openpi_status gpu_open(const gpu_vendor *vendor, const backend *backend, const char *which,
                       const device_options *options, device **out, openpi_error *error);

#endif
