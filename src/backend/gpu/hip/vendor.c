/* AMD's GPUs: the driver table over libamdhip64, and what is asked of a device.
 *
 * Note: none of this has run on hardware; docs/amd.md says what stands in for it. */
#include "backend/gpu/hip/vendor.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/hip/library.h"

static const hip_library *library_of(const gpu_driver *driver) { return driver->library; }
static void *pointer(gpu_address address) { return (void *)(uintptr_t)address; }

/* ---- errors ----------------------------------------------------------------------------------------- */

static gpu_error error_class(int code) {
    if (code == HIP_OUT_OF_MEMORY) return GPU_ERROR_OUT_OF_MEMORY;
    return code == HIP_NOT_SUPPORTED || code == HIP_CAPTURE_UNSUPPORTED ? GPU_ERROR_CANNOT_CAPTURE
                                                                        : GPU_ERROR_OTHER;
}

static const char *error_text(const gpu_driver *driver, int code) {
    const char *text = library_of(driver)->error_text(code);
    return text ? text : "unknown error";
}

/* ---- functions that the library has in this form ---------------------------------------------------- */

/* X(member of gpu_driver, its parameters, the call of the library) */
#define PASSED_LIST(X)                                                                                      \
    X(memory_info, (const gpu_driver *d, size_t *unused, size_t *total), memory_info(unused, total))        \
    X(release, (const gpu_driver *d, gpu_address address), release(pointer(address)))                       \
    X(allocate_host, (const gpu_driver *d, void **memory, size_t bytes), allocate_host(memory, bytes, 0))   \
    X(release_host, (const gpu_driver *d, void *memory), release_host(memory))                              \
    X(upload, (const gpu_driver *d, gpu_address to, const void *from, size_t bytes, void *stream),          \
      upload(pointer(to), (void *)(uintptr_t)from, bytes, stream))                                          \
    X(download, (const gpu_driver *d, void *to, gpu_address from, size_t bytes, void *stream),              \
      download(to, pointer(from), bytes, stream))                                                           \
    X(copy_rows,                                                                                            \
      (const gpu_driver *d, gpu_address to, gpu_address from, size_t pitch, size_t bytes, size_t rows,      \
       void *stream),                                                                                       \
      copy_rows(pointer(to), pitch, pointer(from), pitch, bytes, rows, HIP_ON_DEVICE, stream))              \
    X(fill, (const gpu_driver *d, gpu_address to, unsigned char value, size_t bytes, void *stream),         \
      fill(pointer(to), value, bytes, stream))                                                              \
    X(stream_create, (const gpu_driver *d, void **stream), stream_create(stream, HIP_STREAM_NON_BLOCKING))  \
    X(stream_destroy, (const gpu_driver *d, void *stream), stream_destroy(stream))                          \
    X(stream_wait, (const gpu_driver *d, void *stream), stream_wait(stream))                                \
    X(event_create, (const gpu_driver *d, void **event), event_create(event))                               \
    X(event_destroy, (const gpu_driver *d, void *event), event_destroy(event))                              \
    X(event_wait, (const gpu_driver *d, void *event), event_wait(event))                                    \
    X(event_elapsed, (const gpu_driver *d, float *ms, void *start, void *end),                              \
      event_elapsed(ms, start, end))                                                                        \
    X(module_unload, (const gpu_driver *d, void *module), module_unload(module))                            \
    X(capture_begin, (const gpu_driver *d, void *stream), capture_begin(stream, HIP_CAPTURE_THREAD_LOCAL))  \
    X(capture_end, (const gpu_driver *d, void *stream, void **graph), capture_end(stream, graph))           \
    X(graph_nodes, (const gpu_driver *d, void *graph, size_t *count), graph_nodes(graph, NULL, count))      \
    X(graph_destroy, (const gpu_driver *d, void *graph), graph_destroy(graph))                              \
    X(graph_instantiate, (const gpu_driver *d, void **exec, void *graph), graph_instantiate(exec, graph, 0))\
    X(graph_upload, (const gpu_driver *d, void *exec, void *stream), graph_upload(exec, stream))            \
    X(graph_launch, (const gpu_driver *d, void *exec, void *stream), graph_launch(exec, stream))            \
    X(graph_exec_destroy, (const gpu_driver *d, void *exec), graph_exec_destroy(exec))

#define X(member, parameters, call) \
    static int pass_##member parameters { return library_of(d)->call; }
PASSED_LIST(X)
#undef X

/* ---- and those that it has not ---------------------------------------------------------------------- */

static void driver_close(gpu_driver *driver) {
    hip_library *library = driver->library;
    if (library && library->handle) dlclose(library->handle);
    free(library);
    driver->library = NULL;
}

/* No device is no failure. */
static int device_count(const gpu_driver *driver, int *count) {
    int code = library_of(driver)->device_count(count);
    if (code == HIP_NO_DEVICE) *count = 0;
    return code == HIP_NO_DEVICE ? 0 : code;
}

/* The runtime has a current device for each thread, and no contexts: one is the device's number and 1. */
static int enter(const gpu_driver *driver, void *context) {
    return context ? library_of(driver)->device_set((int)(uintptr_t)context - 1) : 0;
}

/* "gfx942" of "gfx942:sramecc+:xnack-". */
static void copy_architecture(const char *from, char *to, size_t bytes) {
    snprintf(to, bytes, "%.*s", (int)strcspn(from, ":"), from);
}

static int context_open(const gpu_driver *driver, int ordinal, void **context) {
    hip_library *library = driver->library;
    hip_properties properties;
    memset(&properties, 0, sizeof properties);
    int code = library->device_properties(&properties, ordinal);
    if (!code) code = library->device_set(ordinal);
    copy_architecture(properties.architecture, library->architecture, sizeof library->architecture);
    *context = code ? NULL : (void *)((uintptr_t)ordinal + 1);
    return code;
}

static void context_close(const gpu_driver *driver, int ordinal) { (void)driver, (void)ordinal; }

static int allocate(const gpu_driver *driver, gpu_address *address, size_t bytes) {
    void *memory = NULL;
    int code = library_of(driver)->allocate(&memory, bytes);
    *address = (gpu_address)(uintptr_t)memory;
    return code;
}

/* An event in a graph is recorded anew by every replay: a node of its own, which what is captured next
 * follows. */
static int record_in_graph(const hip_library *library, void *event, void *stream) {
    void *graph = NULL, *node = NULL, *const *before = NULL;
    unsigned long long id = 0;
    size_t count = 0;
    int status = 0, code = library->capture_info(stream, &status, &id, &graph, &before, &count);
    if (!code) code = library->graph_event(&node, graph, before, count, event);
    if (!code) code = library->capture_follow(stream, &node, 1, HIP_SET_DEPENDENCIES);
    return code;
}

static int event_record(const gpu_driver *driver, void *event, void *stream, int in_graph) {
    const hip_library *library = library_of(driver);
    return in_graph ? record_in_graph(library, event, stream) : library->event_record(event, stream);
}

static const void *code_for(const hip_image *image, const char *architecture) {
    while (image->architecture && strcmp(image->architecture, architecture)) image++;
    return image->code;
}

static int module_load(const gpu_driver *driver, void **module, const void *image) {
    const hip_library *library = library_of(driver);
    const void *code = code_for(image, library->architecture);
    return code ? library->module_load(module, code) : HIP_NO_BINARY;
}

static int module_function(const gpu_driver *driver, void **function, void *module, const gpu_kernel *kernel,
                           size_t shared_bytes) {
    (void)shared_bytes;                    /* kernels declare all of their local memory                     */
    return library_of(driver)->module_function(function, module, kernel->name);
}

static int launch_kernel(const gpu_driver *driver, const gpu_launch *l, void *stream) {
    void *arguments[] = {(void *)(uintptr_t)l->arguments};
    return library_of(driver)->launch(l->function, l->grid[0], l->grid[1], l->grid[2], l->block[0],
                                      l->block[1], l->block[2], (unsigned)l->shared_bytes, stream, arguments,
                                      NULL);
}

static const gpu_driver driver_table = {
    .close = driver_close,
    .error_class = error_class,
    .error_text = error_text,
    .device_count = device_count,
    .context_open = context_open,
    .context_close = context_close,
    .enter = enter,
    .allocate = allocate,
    .event_record = event_record,
    .module_load = module_load,
    .module_function = module_function,
    .launch = launch_kernel,
#define X(member, parameters, call) .member = pass_##member,
    PASSED_LIST(X)
#undef X
};

static int open_driver(gpu_driver *driver, char *why, size_t why_bytes) {
    hip_library *library = calloc(1, sizeof *library);
    int version = 0;
    if (!library) {
        snprintf(why, why_bytes, "out of memory: %zu bytes for the runtime's functions", sizeof *library);
        return -1;
    }
    if (hip_library_open(library, why, why_bytes)) {
        free(library);
        return -1;
    }
    *driver = driver_table;
    driver->library = library;
    int code = library->init(0);
    if (code == HIP_NO_DEVICE) code = 0;   /* device_count says so                                          */
    if (!code) code = library->runtime_version(&version);
    if (!code && version >= HIP_OLDEST) return 0;
    if (code)
        snprintf(why, why_bytes, "the AMD runtime does not start: %.150s (error %d)",
                 error_text(driver, code), code);
    else
        snprintf(why, why_bytes, "the AMD runtime is of ROCm %d.%d, expected 6.0 or newer",
                 version / 10000000, version / 100000 % 100);
    driver_close(driver);
    return -1;
}

/* ---- devices ---------------------------------------------------------------------------------------- */

static int read_facts(const hip_library *library, int ordinal, gpu_facts *f, char *architecture,
                      size_t bytes) {
    device_facts *report = &f->report;
    hip_properties p;
    int version = 0;
    memset(&p, 0, sizeof p);
    int code = library->device_properties(&p, ordinal);
    if (!code) code = library->runtime_version(&version);
    if (code) return code;
    snprintf(report->name, sizeof report->name, "%.*s", (int)sizeof report->name - 1, p.name);
    snprintf(report->driver, sizeof report->driver, "ROCm %d.%d", version / 10000000, version / 100000 % 100);
    report->capability_major = p.major;
    report->capability_minor = p.minor;
    report->multiprocessors = p.multiprocessors;
    report->memory_bytes = p.memory_bytes;
    report->cache_bytes = (uint64_t)p.cache_bytes;
    report->core_mhz = p.core_khz * 1e-3;
    report->memory_mhz = p.memory_khz * 1e-3;
    f->shared_bytes = p.shared_bytes;
    copy_architecture(p.architecture, architecture, bytes);
    return 0;
}

/* "gfx942 or gfx950" */
static void write_architectures(const hip_image *image, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; image[i].architecture && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? " or " : "", image[i].architecture);
}

#ifndef OPENPI_HIP_ABSENT            /* cmake/hip.cmake says more */
#define OPENPI_HIP_ABSENT "it was asked for"
#endif
static const char no_kernels[] = "this openpi was built without AMD kernels (" OPENPI_HIP_ABSENT ")";

static void learn(const gpu_driver *driver, int ordinal, const gpu_module *modules, gpu_facts *f) {
    char architecture[64] = "", known[64];
    memset(f, 0, sizeof *f);
    int code = read_facts(library_of(driver), ordinal, f, architecture, sizeof architecture);
    snprintf(f->description, sizeof f->description, "%.60s, %.20s, %.20s", f->report.name, architecture,
             f->report.driver);
    if (code) {
        snprintf(f->reason, sizeof f->reason, "the driver does not answer for it: %.150s (error %d)",
                 error_text(driver, code), code);
    } else if (!modules[0].image) {
        snprintf(f->reason, sizeof f->reason, "%s", no_kernels);
    } else if (!code_for(modules[0].image, architecture)) {
        write_architectures(modules[0].image, known, sizeof known);
        snprintf(f->reason, sizeof f->reason, "its architecture is %.40s, expected %s", architecture, known);
    }
}

/* The one path that there is. */
static int offers(const gpu_driver *driver, const gpu_facts *facts, const char *path, char *why,
                  size_t why_bytes) {
    (void)driver, (void)facts, (void)path, (void)why, (void)why_bytes;
    return 1;
}

static const char *const paths[] = {"mfma", NULL};

const gpu_vendor gpu_vendor_hip = {
    .name = "hip",
    .title = "AMD",
    .paths = paths,
    .modules = hip_modules,
    .no_kernels = no_kernels,
    .layout = GPU_LAYOUT_LANES,
    .open = open_driver,
    .learn = learn,
    .offers = offers,
};
