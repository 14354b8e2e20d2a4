/* A driver library that is not there, under the vendor's own driver table: functions that count, keep
 * "device" memory on the heap and fail when told. Kernels do nothing, but the one that makes synthetic
 * weights: it is plain C and runs. */
#ifndef TESTS_FAKE_GPU_H
#define TESTS_FAKE_GPU_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/gpu/cuda/library.h"
#include "backend/gpu/cuda/vendor.h"
#include "backend/gpu/gpu.h"

enum { SICK = 719, LOG = 4096 };

typedef struct asked_launch {
    unsigned blocks, threads, shared_bytes, cluster;
} asked_launch;

static struct {
    const char *log[LOG];        /* names of the calls, in order                                          */
    void *streams[LOG];          /* that copies, graphs and waits among them are of; else NULL            */
    uint64_t launched;           /* hash over functions, grids and shared memory of the launches so far    */
    int graph_uploads;
    int calls, fail_at, code;    /* from call fail_at on (counted from 0) every call fails; -1: never      */
    const char *fail_name;       /* only calls of this name do                                            */
    void (*on_wait)(void);       /* called once, in the next wait for a stream                            */
    int alive;                   /* things taken and not yet given back                                    */
    size_t memory, most_memory, limit;
    int graphs_refused, no_copy;
    int clusters, single_blocks; /* of a launch that the device holds at once, single_blocks where it has no
                                    clusters; both 0: the driver has no function that tells                */
    int most_blocks;             /* a multiprocessor's of any kernel; 0: no function tells               */
    asked_launch asked, asked_single;      /* the launch it was asked about last                           */
    int capability;              /* the device's, times ten; 0: 9.0                                        */
    int integrated;              /* 1: its memory is the host's                                            */
    int driver_version;          /* 0: 13000                                                               */
    int older_loads;             /* modules whose code was the older compiler's                            */
    const char *proc;            /* in place of /proc                                                      */
    int multiprocessors, shared_bytes;                                 /* on the device; 0: 132, 227 KB */
    int all_shared_bytes;        /* that a multiprocessor has; 0: 228 KB                                   */
    const char *title;           /* the device's name; NULL: "Paper GPU"                                   */
    void (*on_launch)(const cuda_launch *launch, const void *arguments);       /* NULL: none                */
    int capturing, captured;     /* nodes of the graph so far                                              */
    void *generator;             /* the module whose kernel really runs                                    */
    int generated;               /* its launches                                                           */
    struct { const char *to; size_t bytes; } uploads[LOG];
    int upload_count;
} fake;

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;      /* threads pack, and so upload, at once */

static int called_on(const char *name, void *stream) {
    pthread_mutex_lock(&fake_lock);
    int n = fake.calls++;
    if (n < LOG) {
        fake.log[n] = name;
        fake.streams[n] = stream;
    }
    pthread_mutex_unlock(&fake_lock);
    if (fake.fail_name && strcmp(fake.fail_name, name)) return 0;
    return fake.fail_at >= 0 && n >= fake.fail_at ? fake.code : 0;
}

static int called(const char *name) { return called_on(name, NULL); }

static int take(void **out, const char *name) {
    int code = called(name);
    if (code) return code;
    *out = malloc(1);
    fake.alive++;
    return 0;
}

static int give(void *thing, const char *name) {
    called(name);
    free(thing);
    fake.alive--;
    return 0;                    /* what is given back is gone, whatever the driver says */
}

static int fake_init(unsigned flags) { return (void)flags, called("init"); }
static int fake_version(int *version) {
    return *version = fake.driver_version ? fake.driver_version : 13000, called("driver_version");
}
static int fake_text(int error, const char **text) {
    *text = error == SICK                 ? "unspecified launch failure"
            : error == CUDA_OUT_OF_MEMORY ? "out of memory"
                                          : "some error";
    return 0;
}
static int fake_count(int *count) { return *count = 1, called("device_count"); }
static int fake_get(int *device, int ordinal) { return *device = ordinal, called("device_get"); }
static int fake_name(char *name, int length, int device) {
    const char *title = fake.title ? fake.title : "Paper GPU";
    return (void)device, snprintf(name, (size_t)length, "%s", title), called("device_name");
}
static int fake_total(size_t *bytes, int device) {
    return (void)device, *bytes = (size_t)1 << 33, called("device_memory");
}
static int fake_attribute(int *value, int attribute, int device) {
    (void)device;
    const int multiprocessors = fake.multiprocessors ? fake.multiprocessors : 132;
    *value = attribute == CUDA_DEVICE_MAJOR             ? (fake.capability ? fake.capability / 10 : 9)
             : attribute == CUDA_DEVICE_MINOR           ? fake.capability % 10
             : attribute == CUDA_DEVICE_MULTIPROCESSORS ? multiprocessors
             : attribute == CUDA_DEVICE_INTEGRATED      ? fake.integrated
             : attribute == CUDA_DEVICE_ALL_SHARED_BYTES
                 ? (fake.all_shared_bytes ? fake.all_shared_bytes : 228 << 10)
             : fake.shared_bytes                        ? fake.shared_bytes
                                                        : 227 << 10;
    return called("device_attribute");
}
static int fake_retain(void **context, int device) { return (void)device, take(context, "context_retain"); }
static void *the_context;
static int fake_set(void *context) {
    return the_context = context ? context : the_context, called("context_set");
}
static int fake_context_release(int device) { return (void)device, give(the_context, "context_release"); }
static int fake_info(size_t *left, size_t *total) {
    return *left = fake.limit - fake.memory, *total = fake.limit, called("memory_info");
}

static int fake_allocate(gpu_address *address, size_t bytes) {
    int code = called("allocate");
    if (code) return code;
    if (fake.memory + bytes > fake.limit) return CUDA_OUT_OF_MEMORY;
    size_t *p = malloc(bytes + 16);
    p[0] = bytes;
    fake.memory += bytes;
    if (fake.memory > fake.most_memory) fake.most_memory = fake.memory;
    fake.alive++;
    memset((char *)p + 16, 0xa5, bytes);   /* what the driver gives is not clear */
    *address = (gpu_address)(uintptr_t)((char *)p + 16);
    return 0;
}
/* How much was taken at once there, at whose beginning this is. */
static inline size_t fake_bytes_at(const void *memory) {
    return *(const size_t *)(const void *)((const char *)memory - 16);
}
static int fake_release(gpu_address address) {
    size_t *p = (size_t *)((char *)(uintptr_t)address - 16);
    fake.memory -= p[0];
    return give(p, "release");
}
static int fake_allocate_host(void **memory, size_t bytes, unsigned flags) {
    int code = called("allocate_host");
    (void)flags;
    if (code) return code;
    *memory = malloc(bytes);
    fake.alive++;
    return 0;
}
static int fake_release_host(void *memory) { return give(memory, "release_host"); }
static int fake_upload(gpu_address to, const void *from, size_t bytes, void *stream) {
    int code = called_on("upload", stream);
    if (code) return code;
    memcpy((void *)(uintptr_t)to, from, bytes);
    pthread_mutex_lock(&fake_lock);
    if (fake.upload_count < LOG) {
        fake.uploads[fake.upload_count].to = (const char *)(uintptr_t)to;
        fake.uploads[fake.upload_count++].bytes = bytes;
    }
    pthread_mutex_unlock(&fake_lock);
    return 0;
}
static int fake_download(void *to, gpu_address from, size_t bytes, void *stream) {
    int code = called_on("download", stream);
    if (!code) memcpy(to, (void *)(uintptr_t)from, bytes);
    return code;
}
static int fake_copy_rows(const cuda_rows *copy, void *stream) {
    int code = called_on("copy_rows", stream);
    for (size_t row = 0; !code && row < copy->rows; row++)
        memcpy((char *)(uintptr_t)copy->to.device + row * copy->to.pitch,
               (const char *)(uintptr_t)copy->from.device + row * copy->from.pitch, copy->bytes);
    return code;
}
static int fake_fill(gpu_address to, unsigned char value, size_t bytes, void *stream) {
    int code = called("fill");
    (void)stream;
    if (!code) memset((void *)(uintptr_t)to, value, bytes);
    return code;
}
static int fake_stream_create(void **stream, unsigned flags) {
    return (void)flags, take(stream, "stream_create");
}
static int fake_stream_destroy(void *stream) { return give(stream, "stream_destroy"); }
static int fake_stream_wait(void *stream) {
    void (*on_wait)(void) = fake.on_wait;
    int code = called_on("stream_wait", stream);
    fake.on_wait = NULL;
    if (on_wait) on_wait();
    return code;
}
static int fake_capture_begin(void *stream, int mode) {
    (void)stream, (void)mode;
    fake.capturing = 1;
    fake.captured = 0;
    return called("capture_begin");
}
static int fake_capture_end(void *stream, void **graph) {
    (void)stream;
    fake.capturing = 0;
    if (fake.graphs_refused) return *graph = NULL, called("capture_end"), CUDA_CAPTURE_UNSUPPORTED;
    return take(graph, "capture_end");
}
static int fake_event_create(void **event, unsigned flags) {
    return (void)flags, take(event, "event_create");
}
static int fake_event_destroy(void *event) { return give(event, "event_destroy"); }
static int fake_event_record(void *event, void *stream, unsigned flags) {
    return (void)event, (void)stream, (void)flags, fake.captured += fake.capturing, called("event_record");
}
static int fake_event_wait(void *event) { return (void)event, called("event_wait"); }
static int fake_elapsed(float *ms, void *start, void *end) {
    return (void)start, (void)end, *ms = 1, called("event_elapsed");
}
/* Code of the older compiler is a family's name with a '.' before it. */
static int fake_module_load(void **module, const void *image) {
    int code = take(module, "module_load");
    const int older = *(const char *)image == '.';
    fake.older_loads += older;
    image = (const char *)image + older;
    if (!code && !strcmp(image, "generate")) fake.generator = *module;
    return code;
}
static int fake_module_unload(void *module) { return give(module, "module_unload"); }
static int fake_function(void **function, void *module, const char *name) {
    return *function = module, (void)name, called("module_function");
}
static int fake_function_set(void *function, int attribute, int value) {
    return (void)function, (void)attribute, (void)value, called("function_set");
}
/* Blocks of the one kernel that is plain C. */
static void run_generate(const cuda_launch *launch, const gpu_generate *p) {
    for (unsigned group = 0; group < launch->grid[0]; group++)
        for (unsigned piece = 0; piece < launch->grid[1]; piece++)
            for (int i = 0; i < GPU_GENERATE_UNITS; i++) {
                int unit = (int)piece * GPU_GENERATE_UNITS + i;
                if (unit < p->units) gpu_generate_unit(p, (int)group, unit);
            }
    fake.generated++;
}
static int fake_launch(const cuda_launch *launch, void *function, void **arguments, void **extra) {
    (void)extra;
    assert_non_null(function);
    assert_true(launch->grid[0] && launch->grid[1] && launch->grid[2] && launch->block[0] &&
                launch->block[0] <= 1024);
    assert_true(launch->grid[1] <= 65535 && launch->shared_bytes <= 227 << 10);
    fake.captured += fake.capturing;
    int code = called("launch");
    fake.launched = fake.launched * 31 + (uintptr_t)function + launch->grid[0] * 7 + launch->grid[1] * 5 +
                    launch->shared_bytes;
    if (!code && function == fake.generator) run_generate(launch, arguments[0]);
    if (!code && fake.on_launch) fake.on_launch(launch, arguments[0]);
    return code;
}
static int fake_instantiate(void **exec, void *graph, unsigned long long flags) {
    return (void)graph, (void)flags, take(exec, "graph_instantiate");
}
static int fake_graph_nodes(void *graph, void **nodes, size_t *count) {
    return (void)graph, (void)nodes, *count = (size_t)fake.captured, called("graph_nodes");
}
static int fake_graph_upload(void *exec, void *stream) {
    return (void)exec, (void)stream, fake.graph_uploads++, called("graph_upload");
}
static int fake_graph_launch(void *exec, void *stream) {
    return (void)exec, called_on("graph_launch", stream);
}
static int fake_exec_destroy(void *exec) { return give(exec, "graph_exec_destroy"); }
static int fake_graph_destroy(void *graph) { return give(graph, "graph_destroy"); }
/* Where a map that was made here has its numbers; before them base and type. */
enum { FAKE_DIMS = 2, FAKE_BOX = FAKE_DIMS + 5, FAKE_STRIDES = FAKE_BOX + 5 };
static int fake_map(gpu_tensor_map *map, int type, unsigned rank, void *base, const uint64_t *dims,
                    const uint64_t *strides, const unsigned *box, const unsigned *steps, int interleave,
                    int swizzle, int promotion, int fill) {
    const unsigned bytes = type == CUDA_MAP_FLOAT32 ? 4 : 2;
    (void)promotion;
    assert_true(type == CUDA_MAP_FLOAT32 || type == CUDA_MAP_BF16);
    assert_in_range(rank, 2, 5);
    assert_false((uintptr_t)base & 15 || interleave || fill);
    assert_true(box[0] * bytes % 16 == 0 && (swizzle != CUDA_MAP_SWIZZLE_128 || box[0] * bytes <= 128));
    for (unsigned i = 0; i < rank; i++)
        assert_true(dims[i] >= 1 && box[i] >= 1 && box[i] <= 256 && steps[i] == 1);
    for (unsigned i = 0; i + 1 < rank; i++) assert_false(strides[i] & 15);
    memset(map, 0, sizeof *map);
    map->words[0] = (uintptr_t)base;
    map->words[1] = (unsigned)type << 16 | rank << 8 | (unsigned)swizzle;
    for (unsigned i = 0; i < rank; i++) map->words[FAKE_DIMS + i] = dims[i];
    for (unsigned i = 0; i < rank; i++) map->words[FAKE_BOX + i] = box[i];
    for (unsigned i = 0; i + 1 < rank; i++) map->words[FAKE_STRIDES + i] = strides[i];
    return called("tensor_map");
}
/* Is it the map that these make? */
static inline void fake_map_is(const gpu_tensor_map *map, const void *base, int type, int swizzle,
                               unsigned rank, const uint64_t *dims, const unsigned *box,
                               const uint64_t *strides) {
    assert_ptr_equal((void *)(uintptr_t)map->words[0], base);
    assert_int_equal(map->words[1], (unsigned)type << 16 | rank << 8 | (unsigned)swizzle);
    for (unsigned i = 0; i < rank; i++) assert_int_equal(map->words[FAKE_DIMS + i], dims[i]);
    for (unsigned i = 0; i < rank; i++) assert_int_equal(map->words[FAKE_BOX + i], box[i]);
    for (unsigned i = 0; i + 1 < rank; i++) assert_int_equal(map->words[FAKE_STRIDES + i], strides[i]);
}

static int fake_most_clusters(int *clusters, void *function, const cuda_launch *launch) {
    assert_non_null(function);
    assert_int_equal(launch->attribute_count, 1);
    assert_int_equal(launch->attributes[0].id, CUDA_ATTRIBUTE_CLUSTER);
    const unsigned cluster = launch->attributes[0].value.cluster[0];
    asked_launch *asked = cluster > 1 ? &fake.asked : &fake.asked_single;
    asked->blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
    asked->threads = launch->block[0] * launch->block[1] * launch->block[2];
    asked->shared_bytes = launch->shared_bytes;
    asked->cluster = cluster;
    return *clusters = cluster > 1 ? fake.clusters : fake.single_blocks, called("max_clusters");
}

static int fake_most_blocks(int *blocks, void *function, int threads, size_t shared_bytes) {
    assert_non_null(function);
    assert_true(threads > 0 && shared_bytes <= 227 << 10);
    return *blocks = fake.most_blocks, called("max_blocks");
}

/* As of an archive with both. */
static int fake_compilers[CUDA_COMPILERS] = {13000, 12040};

static const cuda_library fake_library = {
    .init = fake_init,
    .driver_version = fake_version,
    .error_name = fake_text,
    .error_text = fake_text,
    .device_count = fake_count,
    .device_get = fake_get,
    .device_name = fake_name,
    .device_memory = fake_total,
    .device_attribute = fake_attribute,
    .context_retain = fake_retain,
    .context_release = fake_context_release,
    .context_set = fake_set,
    .memory_info = fake_info,
    .allocate = fake_allocate,
    .release = fake_release,
    .allocate_host = fake_allocate_host,
    .release_host = fake_release_host,
    .upload = fake_upload,
    .copy_rows = fake_copy_rows,
    .download = fake_download,
    .fill = fake_fill,
    .stream_create = fake_stream_create,
    .stream_destroy = fake_stream_destroy,
    .stream_wait = fake_stream_wait,
    .capture_begin = fake_capture_begin,
    .capture_end = fake_capture_end,
    .event_create = fake_event_create,
    .event_destroy = fake_event_destroy,
    .event_record = fake_event_record,
    .event_wait = fake_event_wait,
    .event_elapsed = fake_elapsed,
    .module_load = fake_module_load,
    .module_unload = fake_module_unload,
    .module_function = fake_function,
    .function_set = fake_function_set,
    .launch = fake_launch,
    .graph_instantiate = fake_instantiate,
    .graph_nodes = fake_graph_nodes,
    .graph_upload = fake_graph_upload,
    .graph_launch = fake_graph_launch,
    .graph_exec_destroy = fake_exec_destroy,
    .graph_destroy = fake_graph_destroy,
    .tensor_map = fake_map,
};

extern const backend backend_cuda;

static int fake_open(gpu_driver *driver, char *why, size_t why_bytes) {
    cuda_library *library = malloc(sizeof *library);
    (void)why, (void)why_bytes;
    assert_non_null(library);
    *library = fake_library;
    library->proc = fake.proc;
    library->compilers = fake_compilers;
    if (fake.clusters || fake.single_blocks) library->max_clusters = fake_most_clusters;
    if (fake.most_blocks) library->max_blocks = fake_most_blocks;
    cuda_driver_over(library, driver);     /* which frees it */
    return 0;
}

/* The vendor, over this library and with names in place of every image. */
static const gpu_vendor *fake_vendor(void) {
    static gpu_module modules[32];
    static cuda_image images[32];
    static char older[32][64];
    static gpu_vendor vendor;
    for (int i = 0; cuda_modules[i].family; i++) {
        assert_true(i < 31);
        modules[i] = cuda_modules[i];
        snprintf(older[i], sizeof older[i], ".%s", cuda_modules[i].family->name);
        images[i] = (cuda_image){{older[i] + 1, older[i]}};
        modules[i].image = &images[i];
    }
    vendor = gpu_vendor_cuda;
    vendor.open = fake_open;
    vendor.modules = modules;
    return &vendor;
}

static void reset(void) {
    memset(&fake, 0, sizeof fake);
    fake.fail_at = -1;
    fake.code = SICK;
    fake.limit = (size_t)1 << 32;
}

#endif
