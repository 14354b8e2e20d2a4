/* NVIDIA's GPUs: the driver table over libcuda.so.1, and what is asked of a device.
 *
 * Every function of the table is a thin one: it passes its arguments on in the library's own form. */
#include "backend/gpu/cuda/vendor.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/cuda/chips.h"
#include "backend/gpu/cuda/library.h"
#include "backend/gpu/cuda/weight_tile.h"
#include "base/free_memory.h"

static const cuda_library *library_of(const gpu_driver *driver) { return driver->library; }

static int ask(const cuda_library *library, int attribute, int device, int *code) {
    int value = 0;
    if (!*code) *code = library->device_attribute(&value, attribute, device);
    return *code ? 0 : value;
}

/* As ask, but the driver need not know. */
static int ask_kindly(const cuda_library *library, int attribute, int device) {
    int code = 0;
    return ask(library, attribute, device, &code);
}

/* ---- errors ----------------------------------------------------------------------------------------- */

static gpu_error error_class(int code) {
    if (code == CUDA_OUT_OF_MEMORY) return GPU_ERROR_OUT_OF_MEMORY;
    if (code == CUDA_NO_BINARY || code == CUDA_NO_PTX_COMPILER || code == CUDA_NEWER_PTX)
        return GPU_ERROR_NO_CODE;
    return code == CUDA_NOT_SUPPORTED || code == CUDA_CAPTURE_UNSUPPORTED ? GPU_ERROR_CANNOT_CAPTURE
                                                                          : GPU_ERROR_OTHER;
}

static const char *error_text(const gpu_driver *driver, int code) {
    const char *text = NULL;
    return library_of(driver)->error_text(code, &text) || !text ? "unknown error" : text;
}

/* ---- functions that the library has in this form ---------------------------------------------------- */

/* X(member of gpu_driver, its parameters, the call of the library) */
#define PASSED_LIST(X)                                                                                      \
    X(device_count, (const gpu_driver *d, int *count), device_count(count))                                 \
    X(enter, (const gpu_driver *d, void *context), context_set(context))                                    \
    X(allocate, (const gpu_driver *d, gpu_address *address, size_t bytes), allocate(address, bytes))        \
    X(release, (const gpu_driver *d, gpu_address address), release(address))                                \
    X(allocate_host, (const gpu_driver *d, void **memory, size_t bytes), allocate_host(memory, bytes, 0))   \
    X(release_host, (const gpu_driver *d, void *memory), release_host(memory))                              \
    X(upload, (const gpu_driver *d, gpu_address to, const void *from, size_t bytes, void *stream),          \
      upload(to, from, bytes, stream))                                                                      \
    X(download, (const gpu_driver *d, void *to, gpu_address from, size_t bytes, void *stream),              \
      download(to, from, bytes, stream))                                                                    \
    X(fill, (const gpu_driver *d, gpu_address to, unsigned char value, size_t bytes, void *stream),         \
      fill(to, value, bytes, stream))                                                                       \
    X(stream_create, (const gpu_driver *d, void **stream), stream_create(stream, CUDA_STREAM_NON_BLOCKING)) \
    X(stream_destroy, (const gpu_driver *d, void *stream), stream_destroy(stream))                          \
    X(stream_wait, (const gpu_driver *d, void *stream), stream_wait(stream))                                \
    X(event_create, (const gpu_driver *d, void **event), event_create(event, 0))                            \
    X(event_destroy, (const gpu_driver *d, void *event), event_destroy(event))                              \
    X(event_record, (const gpu_driver *d, void *event, void *stream, int in_graph),                         \
      event_record(event, stream, in_graph ? CUDA_EVENT_EXTERNAL : 0))                                      \
    X(event_wait, (const gpu_driver *d, void *event), event_wait(event))                                    \
    X(event_elapsed, (const gpu_driver *d, float *ms, void *start, void *end),                              \
      event_elapsed(ms, start, end))                                                                        \
    X(module_unload, (const gpu_driver *d, void *module), module_unload(module))                            \
    X(capture_begin, (const gpu_driver *d, void *stream), capture_begin(stream, CUDA_CAPTURE_THREAD_LOCAL)) \
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
    cuda_library *library = driver->library;
    if (library && library->handle) dlclose(library->handle);
    free(library);
    driver->library = NULL;
}

static int context_open(const gpu_driver *driver, int ordinal, void **context) {
    cuda_library *library = driver->library;
    int device, code = library->device_get(&device, ordinal);
    if (!code) library->integrated = ask_kindly(library, CUDA_DEVICE_INTEGRATED, device);
    if (!code) code = library->context_retain(context, device);
    if (code) *context = NULL;
    return code;
}

/* Where memory is the host's, the driver leaves out what the kernel would give back: cached pages of files,
 * most of the memory after a checkpoint was copied. */
static int memory_info(const gpu_driver *driver, size_t *unused, size_t *total) {
    const cuda_library *library = library_of(driver);
    int code = library->memory_info(unused, total);
    if (code || !library->integrated) return code;
    const uint64_t available = available_memory_at(library->proc ? library->proc : "/proc");
    if (available > *unused) *unused = available < *total ? (size_t)available : *total;
    return 0;
}

static void context_close(const gpu_driver *driver, int ordinal) {
    const cuda_library *library = library_of(driver);
    int device;
    if (library->device_get(&device, ordinal)) device = ordinal;       /* what every driver so far answers */
    library->context_release(device);
}

/* Loads the code of that compiler which the driver takes; where it takes none, learn refused the device. */
static int module_load(const gpu_driver *driver, void **module, const void *image) {
    const cuda_library *library = library_of(driver);
    int version = 0, code = library->driver_version(&version);
    const int compiler = cuda_compiler_for(library, version);
    if (code) return code;
    if (compiler < 0) return CUDA_NO_BINARY;
    return library->module_load(module, ((const cuda_image *)image)->code[compiler]);
}

static int module_function(const gpu_driver *driver, void **function, void *module, const gpu_kernel *kernel,
                           size_t shared_bytes) {
    const cuda_library *library = library_of(driver);
    int code = library->module_function(function, module, kernel->name);
    if (!code && kernel->dynamic)
        code = library->function_set(*function, CUDA_FUNCTION_SHARED_BYTES, (int)shared_bytes);
    if (!code && kernel->dynamic > 1)
        code = library->function_set(*function, CUDA_FUNCTION_SHARED_PERCENT, 100);
    if (!code && kernel->wide) code = library->function_set(*function, CUDA_FUNCTION_WIDE_CLUSTERS, 1);
    return code;
}

enum { MOST_ATTRIBUTES = 3 };

static cuda_launch launch_of(const gpu_launch *launch, void *stream,
                             cuda_attribute attributes[MOST_ATTRIBUTES]) {
    unsigned count = 0;
    if (launch->cluster > 1)
        attributes[count++] =
            (cuda_attribute){.id = CUDA_ATTRIBUTE_CLUSTER, .value.cluster = {launch->cluster, 1, 1}};
    if (launch->together)
        attributes[count++] = (cuda_attribute){.id = CUDA_ATTRIBUTE_COOPERATIVE, .value.flag = 1};
    if (launch->overlap)
        attributes[count++] = (cuda_attribute){.id = CUDA_ATTRIBUTE_OVERLAP, .value.flag = 1};
    return (cuda_launch){
        .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
        .block = {launch->block[0], launch->block[1], launch->block[2]},
        .shared_bytes = (unsigned)launch->shared_bytes,
        .stream = stream,
        .attributes = attributes,
        .attribute_count = count,
    };
}

static int copy_rows(const gpu_driver *driver, gpu_address to, gpu_address from, size_t pitch, size_t bytes,
                     size_t rows, void *stream) {
    const cuda_rows copy = {{.memory = CUDA_MEMORY_DEVICE, .device = from, .pitch = pitch},
                            {.memory = CUDA_MEMORY_DEVICE, .device = to, .pitch = pitch},
                            bytes,
                            rows};
    return library_of(driver)->copy_rows(&copy, stream);
}

static int launch_kernel(const gpu_driver *driver, const gpu_launch *launch, void *stream) {
    cuda_attribute attributes[MOST_ATTRIBUTES];
    cuda_launch config = launch_of(launch, stream, attributes);
    void *list[] = {(void *)(uintptr_t)launch->arguments};
    return library_of(driver)->launch(&config, launch->function, list, NULL);
}

int cuda_most_clusters(const gpu_driver *driver, const gpu_launch *launch, int *clusters) {
    cuda_attribute attributes[MOST_ATTRIBUTES];
    gpu_launch alone = *launch;
    alone.together = alone.overlap = 0;
    cuda_launch config = launch_of(&alone, NULL, attributes);
    /* The driver wants the size of a cluster, also where that is one block. */
    attributes[0] = (cuda_attribute){.id = CUDA_ATTRIBUTE_CLUSTER, .value.cluster = {launch->cluster, 1, 1}};
    config.attribute_count = 1;
    *clusters = 0;
    return library_of(driver)->max_clusters
             ? library_of(driver)->max_clusters(clusters, launch->function, &config)
             : 0;
}

int cuda_most_blocks(gpu_device *device, int family, int kernel, int threads, size_t shared, int *blocks) {
    const cuda_library *library = library_of(gpu_driver_of(device));
    void *function = gpu_function(device, family, kernel);
    *blocks = 0;
    return library->max_blocks ? library->max_blocks(blocks, function, threads, shared) : 0;
}

int cuda_open_resident(gpu_device *device, int family, int kernel, const gpu_grid *grid, size_t bytes,
                       void **state) {
    const gpu_driver *driver = gpu_driver_of(device);
    const int cluster = grid->cluster > 1 ? grid->cluster : 1;
    const gpu_launch launch = {.function = gpu_function(device, family, kernel),
                               .grid = {(unsigned)grid->x, 1, 1},
                               .block = {(unsigned)grid->threads, 1, 1},
                               .cluster = (unsigned)cluster,
                               .shared_bytes = grid->shared};
    int clusters = 0, code;
    gpu_address memory = 0;
    if (gpu_shared_bytes(device) < grid->shared) return 0;
    if ((code = cuda_most_clusters(driver, &launch, &clusters))) return code;
    if (clusters < grid->x / cluster) return 0;
    if ((code = driver->allocate(driver, &memory, bytes))) return code;
    *state = (void *)(uintptr_t)memory;
    return 0;
}

void cuda_close_resident(gpu_device *device, void *state) {
    const gpu_driver *driver = gpu_driver_of(device);
    driver->release(driver, (gpu_address)(uintptr_t)state);
}

void cuda_driver_over(cuda_library *library, gpu_driver *driver) {
    *driver = (gpu_driver){
        .library = library,
        .close = driver_close,
        .error_class = error_class,
        .error_text = error_text,
        .context_open = context_open,
        .context_close = context_close,
        .memory_info = memory_info,
        .copy_rows = copy_rows,
        .module_load = module_load,
        .module_function = module_function,
        .launch = launch_kernel,
#define X(member, parameters, call) .member = pass_##member,
        PASSED_LIST(X)
#undef X
    };
}

static int open_driver(gpu_driver *driver, char *why, size_t why_bytes) {
    cuda_library *library = calloc(1, sizeof *library);
    if (!library) {
        snprintf(why, why_bytes, "out of memory: %zu bytes for the driver's functions", sizeof *library);
        return -1;
    }
    if (cuda_library_open(library, why, why_bytes)) {
        free(library);
        return -1;
    }
    cuda_driver_over(library, driver);
    int code = library->init(0);
    if (!code) return 0;
    snprintf(why, why_bytes, "the NVIDIA driver does not start: %.150s (error %d)", error_text(driver, code),
             code);
    driver_close(driver);
    return -1;
}

/* ---- devices ---------------------------------------------------------------------------------------- */

enum { OLDEST_MAJOR = 8, HOPPER_MAJOR = 9 };

static int read_facts(const cuda_library *library, int ordinal, gpu_facts *f, int *version) {
    device_facts *report = &f->report;
    size_t bytes = 0;
    int device, code = library->device_get(&device, ordinal);
    if (!code) code = library->device_name(report->name, sizeof report->name, device);
    if (!code) code = library->device_memory(&bytes, device);
    if (code) return code;
    report->memory_bytes = bytes;
    report->capability_major = ask(library, CUDA_DEVICE_MAJOR, device, &code);
    report->capability_minor = ask(library, CUDA_DEVICE_MINOR, device, &code);
    report->multiprocessors = ask(library, CUDA_DEVICE_MULTIPROCESSORS, device, &code);
    f->shared_bytes = (size_t)ask(library, CUDA_DEVICE_SHARED_BYTES, device, &code);
    if (!code) code = library->driver_version(version);
    if (code) return code;
    snprintf(report->driver, sizeof report->driver, "CUDA %d.%d", *version / 1000, *version % 1000 / 10);
    report->cache_bytes = (uint64_t)ask_kindly(library, CUDA_DEVICE_CACHE_BYTES, device);
    report->core_mhz = ask_kindly(library, CUDA_DEVICE_CORE_KHZ, device) * 1e-3;
    report->memory_mhz = ask_kindly(library, CUDA_DEVICE_MEMORY_KHZ, device) * 1e-3;
    f->multiprocessor_shared_bytes = (size_t)ask_kindly(library, CUDA_DEVICE_ALL_SHARED_BYTES, device);
    f->overlap = report->capability_major >= HOPPER_MAJOR;
    f->integrated = ask_kindly(library, CUDA_DEVICE_INTEGRATED, device) > 0;
    const gpu_card *card =
        cuda_card_of(report->name, report->capability_major, report->capability_minor);
    if (!card) return 0;
    f->bf16_tflops = card->bf16_tflops * report->multiprocessors / card->multiprocessors;
    f->int8_tops = card->int8_tops * report->multiprocessors / card->multiprocessors;
    return 0;
}

#ifndef OPENPI_CUDA_ABSENT            /* cmake/cuda.cmake says more */
#define OPENPI_CUDA_ABSENT "it was asked for"
#endif
static const char no_kernels[] = "this openpi was built without CUDA kernels (" OPENPI_CUDA_ABSENT ")";

static int oldest_compiler(const cuda_library *library) {
    const int *versions = library->compilers ? library->compilers : cuda_compilers;
    return versions[CUDA_COMPILERS - 1] ? versions[CUDA_COMPILERS - 1] : versions[0];
}

static void learn(const gpu_driver *driver, int ordinal, const gpu_module *modules, gpu_facts *f) {
    const device_facts *report = &f->report;
    int version = 0;
    memset(f, 0, sizeof *f);
    int code = read_facts(library_of(driver), ordinal, f, &version);
    snprintf(f->description, sizeof f->description, "%.60s, compute capability %d.%d, driver for CUDA %d.%d",
             report->name, report->capability_major, report->capability_minor, version / 1000,
             version % 1000 / 10);
    if (code)
        snprintf(f->reason, sizeof f->reason, "the driver does not answer for it: %.150s (error %d)",
                 error_text(driver, code), code);
    else if (report->capability_major < OLDEST_MAJOR)
        snprintf(f->reason, sizeof f->reason, "its compute capability is %d.%d, expected %d.0 or newer",
                 report->capability_major, report->capability_minor, OLDEST_MAJOR);
    else if (!modules[0].image)
        snprintf(f->reason, sizeof f->reason, "%s", no_kernels);
    else if (cuda_compiler_for(library_of(driver), version) < 0)
        snprintf(f->reason, sizeof f->reason, "the driver is for CUDA %d.%d, expected %d.0 or newer",
                 version / 1000, version % 1000 / 10, oldest_compiler(library_of(driver)) / 1000);
}

/* The paths of chips.h. */
#define X(suffix, path, chips, major, minor) path,
static const char *const paths[] = {CUDA_CHIPS(X) NULL};
#undef X

/* docs/tune.md says which measurements these are. */
static const int untuned_percent[] = {11, 3};
_Static_assert(sizeof untuned_percent / sizeof *untuned_percent == sizeof paths / sizeof *paths - 1,
               "one for each path of chips.h");

/* What a path needs; major 0: nothing. */
typedef struct path_needs {
    int major, minor;
} path_needs;
#define X(suffix, path, chips, major, minor) {major, minor},
static const path_needs needs[] = {CUDA_CHIPS(X)};
#undef X

static int offers(const gpu_driver *driver, const gpu_facts *f, const char *path, char *why,
                  size_t why_bytes) {
    int major = f->report.capability_major, minor = f->report.capability_minor, i = 0;
    while (strcmp(path, paths[i])) i++;
    const path_needs *n = &needs[i];
    if (!n->major || (major == n->major && minor == n->minor && library_of(driver)->tensor_map)) return 1;
    snprintf(why, why_bytes, "needs compute capability %d.%d, this device has %d.%d", n->major, n->minor,
             major, minor);
    return 0;
}

const gpu_vendor gpu_vendor_cuda = {
    .name = "cuda",
    .title = "NVIDIA",
    .paths = paths,
    .untuned_percent = untuned_percent,
    .cards = cuda_cards,
    .cards_path = "portable",
    .modules = cuda_modules,
    .no_kernels = no_kernels,
    .open = open_driver,
    .learn = learn,
    .offers = offers,
    .library_product = cuda_library_product,
};

/* ---- what families ask for -------------------------------------------------------------------------- */

int cuda_rank_few(const gpu_device *device, const gpu_task *task, int rank) {
    int hopper = !strcmp(gpu_path(device), "hopper"),
        full = hopper ? task->product.epilogue.kind == GPU_EPILOGUE_GATED && task->rows > GATED_ROWS
                      : task->rows > PORTABLE_ROWS;
    return full ? RANK_TOO_MANY_ROWS : rank;
}

int cuda_cache_legal(const gpu_device *device, const gpu_cache_attention *p) {
    return !p->f32 && p->head_dim % 8 == 0 && p->head_dim <= 256 &&
           cuda_cache_shared(1) <= gpu_shared_bytes(device);
}

/* ---- tensor maps ------------------------------------------------------------------------------------ */

void cuda_make_map(gpu_issue *issue, gpu_tensor_map *map, int swizzled, unsigned rank, const void *base,
                   const uint64_t *dims, const uint64_t *strides, const unsigned *box) {
    static const unsigned ones[5] = {1, 1, 1, 1, 1};
    if (!gpu_emitting(issue)) return;
    gpu_issue_fail(issue, library_of(gpu_driver_of(gpu_device_of(issue)))
                              ->tensor_map(map, swizzled < 0 ? CUDA_MAP_FLOAT32 : CUDA_MAP_BF16, rank,
                                           (void *)(uintptr_t)base, dims, strides, box, ones, 0,
                                           swizzled > 0 ? CUDA_MAP_SWIZZLE_128 : CUDA_MAP_SWIZZLE_NONE,
                                           CUDA_MAP_PROMOTE_256, 0));
}

#define ATOM(FORMAT, COLUMNS, K, ROW, INSTRUCTION_K) [GPU_WEIGHT_##FORMAT] = {COLUMNS, COLUMNS * ROW},
static const cuda_atom atoms[] = {GPU_WEIGHT_TILES(ATOM)};
#undef ATOM

cuda_atom cuda_atom_of(int format) {
    int known = format >= 0 && (size_t)format < sizeof atoms / sizeof *atoms;
    return known ? atoms[format] : (cuda_atom){0};
}

void cuda_map_weight_blocks(gpu_issue *issue, gpu_tensor_map *map, gpu_weights weights, unsigned blocks,
                            unsigned groups) {
    const cuda_atom atom = cuda_atom_of(weights.type);
    const uint64_t words = atom.bytes / sizeof(float), all = (uint64_t)weights.blocks,
                   dims[3] = {words, all, (uint64_t)(weights.columns / atom.columns)},
                   strides[2] = {atom.bytes, atom.bytes * all};
    const unsigned box[3] = {(unsigned)words, blocks, groups};
    cuda_make_map(issue, map, -1, 3, weights.data, dims, strides, box);
}

void cuda_map_weights(gpu_issue *issue, gpu_tensor_map *map, gpu_weights weights, unsigned groups) {
    cuda_map_weight_blocks(issue, map, weights, 1, groups);
}

void cuda_map_image_heads(gpu_issue *issue, gpu_tensor_map *map, const gpu_image_attention *p, int rows,
                          unsigned box_dims, unsigned box_rows) {
    const uint64_t dim = (uint64_t)p->head_dim, part = (uint64_t)p->next, row = (uint64_t)p->stride,
                   dims[4] = {dim, (uint64_t)p->heads, 3, (uint64_t)rows},
                   strides[3] = {dim * sizeof(bf16), part * sizeof(bf16), row * sizeof(bf16)};
    const unsigned box[4] = {box_dims, 1, 1, box_rows};
    cuda_make_map(issue, map, box_dims * sizeof(bf16) == 128, 4, p->qkv, dims, strides, box);
}

void cuda_make_cache_maps(gpu_issue *issue, gpu_wgmma_attention *w, const gpu_cache_attention *p,
                          unsigned q_rows, unsigned keys) {
    const uint64_t row = (uint64_t)p->head_dim * sizeof(bf16), places = (uint64_t)p->capacity;
    const uint64_t q_dims[2] = {(uint64_t)p->head_dim, (uint64_t)p->part_rows},
                   dims[3] = {(uint64_t)p->head_dim, places, OPENPI_MAX_BATCH},
                   strides[2] = {row, row * places};
    const unsigned q_box[2] = {GPU_ATOM_K, q_rows}, box[3] = {GPU_ATOM_K, keys, 1};
    memset(w, 0, sizeof *w);
    w->attention = *p;
    cuda_make_map(issue, &w->q, 1, 2, p->q, q_dims, &row, q_box);
    cuda_make_map(issue, &w->k, 1, 3, p->k, dims, strides, box);
    cuda_make_map(issue, &w->v, 1, 3, p->v, dims, strides, box);
}
