/* The fake libcuda (fake_cuda.h, fake_gpu.h). Kernels are the project's own, compiled for the emulated GPU;
 * one that does what no kernel may is reported as a failed launch, the sentence on stderr. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/cuda/library.h"
#include "emulation.h"
#include "fake_cuda.h"

#define EXPORTED __attribute__((visibility("default")))
/* A function of the table has the library's name as its symbol. */
#define X(member, symbol, needed, parameters) EXPORTED int cu_##member parameters __asm__(symbol);
CUDA_LIBRARY_LIST(X)
#undef X

extern EXPORTED fake_gpu fake_cuda_state;
static void set_fault(int fault, int n) { emu_set_fault((emu_fault)fault, n); }

EXPORTED fake_gpu fake_cuda_state = {
    .devices = 1, .version = 13000, .multiprocessors = 4, .held = 1, .memory_bytes = (size_t)2 << 30,
    .set_fault = set_fault};
fake_gpu *const fake_state = &fake_cuda_state;
const char fake_name[] = "libcuda";

/* ---- the driver and its devices ------------------------------------------------------------------------ */


/* Shared memory: most of a block, all of a multiprocessor. */
typedef struct chip {
    const char *name;
    int major, minor, block_bytes, all_bytes;
} chip;

static const chip chips[] = {
    {"sm_75", 7, 5, 64 << 10, 64 << 10},  {"sm_80", 8, 0, 163 << 10, 164 << 10},
    {"sm_86", 8, 6, 99 << 10, 100 << 10}, {"sm_89", 8, 9, 99 << 10, 100 << 10},
    {"sm_90", 9, 0, 227 << 10, 228 << 10}, {"sm_120", 12, 0, 99 << 10, 100 << 10},
};

/* The first, where there is none of the name. */
static const chip *chip_now(void) {
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (!strcmp(chips[i].name, fake_state->architecture)) return &chips[i];
    return &chips[0];
}

__attribute__((constructor)) static void choose_chip(void) {
    const char *name = getenv("OPENPI_EMULATED_CHIP");
    snprintf(fake_state->architecture, sizeof fake_state->architecture, "%s", name ? name : "sm_86");
}

int cu_init(unsigned flags) {
    FAKE_CALL("cuInit", 0);
    return fake_end(flags ? FAKE_INVALID : 0);
}
int cu_driver_version(int *version) {
    FAKE_CALL("cuDriverGetVersion", 0);
    *version = fake_state->version;
    return fake_end(0);
}
int cu_error_text(int error, const char **text) {
    *text = error == FAKE_OUT_OF_MEMORY         ? "out of memory"
            : error == FAKE_LAUNCH_FAILED       ? "unspecified launch failure"
            : error == FAKE_CAPTURE_UNSUPPORTED ? "operation not permitted when stream is capturing"
                                                : "some error";
    return 0;
}
int cu_error_name(int error, const char **text) { return cu_error_text(error, text); }
int cu_device_count(int *count) {
    FAKE_CALL("cuDeviceGetCount", 0);
    *count = fake_state->devices;
    return fake_end(0);
}
int cu_device_get(int *device, int ordinal) {
    FAKE_CALL("cuDeviceGet", 0);
    *device = ordinal;
    return fake_end(ordinal >= 0 && ordinal < fake_state->devices ? 0 : FAKE_INVALID);
}
int cu_device_name(char *name, int length, int device) {
    FAKE_CALL("cuDeviceGetName", 0);
    snprintf(name, (size_t)length, "Emulated GPU");
    return fake_end(device ? FAKE_INVALID : 0);
}
int cu_device_memory(size_t *bytes, int device) {
    FAKE_CALL("cuDeviceTotalMem_v2", 0);
    *bytes = fake_state->memory_bytes;
    return fake_end(device ? FAKE_INVALID : 0);
}
int cu_device_attribute(int *value, int attribute, int device) {
    const chip *c = chip_now();
    const struct {
        int attribute, value;
    } facts[] = {
        {CUDA_DEVICE_CORE_KHZ, 1700000},     {CUDA_DEVICE_MULTIPROCESSORS, fake_state->multiprocessors},
        {CUDA_DEVICE_INTEGRATED, 0},         {CUDA_DEVICE_MEMORY_KHZ, 9750000},
        {CUDA_DEVICE_CACHE_BYTES, 6 << 20},  {CUDA_DEVICE_MAJOR, c->major},
        {CUDA_DEVICE_MINOR, c->minor},       {CUDA_DEVICE_ALL_SHARED_BYTES, c->all_bytes},
        {CUDA_DEVICE_SHARED_BYTES, c->block_bytes},
    };
    FAKE_CALL("cuDeviceGetAttribute", 0);
    for (size_t i = 0; i < sizeof facts / sizeof *facts && !device; i++)
        if (facts[i].attribute == attribute) return *value = facts[i].value, fake_end(0);
    return fake_end(FAKE_INVALID);
}
/* The one primary context is counted, as others are. */
int cu_context_retain(void **context, int device) {
    static int primary;
    FAKE_CALL("cuDevicePrimaryCtxRetain", 1);
    *context = &primary;
    fake_state->alive += !device;
    return fake_end(device ? FAKE_INVALID : 0);
}
int cu_context_release(int device) {
    FAKE_CALL("cuDevicePrimaryCtxRelease_v2", 0);
    fake_state->alive -= !device;
    return fake_end(device ? FAKE_INVALID : 0);
}
int cu_context_set(void *context) {
    FAKE_CALL("cuCtxSetCurrent", 1);
    return fake_end(context ? 0 : FAKE_INVALID);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static void *at(gpu_address address) { return (void *)(uintptr_t)address; }

int cu_memory_info(size_t *free_bytes, size_t *total) {
    FAKE_CALL("cuMemGetInfo_v2", 1);
    *total = fake_state->memory_bytes;
    *free_bytes = fake_state->memory_bytes - fake_state->bytes;
    return fake_end(0);
}
int cu_allocate(gpu_address *address, size_t bytes) {
    void *memory = NULL;
    FAKE_CALL("cuMemAlloc_v2", 1);
    int code = fake_allocate(&memory, bytes);
    *address = (gpu_address)(uintptr_t)memory;
    return fake_end(code);
}
int cu_release(gpu_address address) {
    FAKE_CALL("cuMemFree_v2", 0);
    return fake_end(fake_release(at(address)));
}
int cu_allocate_host(void **memory, size_t bytes, unsigned flags) {
    FAKE_CALL("cuMemHostAlloc", 0);
    return fake_end(flags ? FAKE_INVALID : fake_take(memory, bytes));
}
int cu_release_host(void *memory) {
    FAKE_CALL("cuMemFreeHost", 0);
    return fake_end(fake_give(memory));
}
int cu_upload(gpu_address to, const void *from, size_t bytes, void *stream) {
    FAKE_CALL("cuMemcpyHtoDAsync_v2", 1);
    return fake_end(fake_copy(stream, at(to), from, bytes));
}
int cu_download(void *to, gpu_address from, size_t bytes, void *stream) {
    FAKE_CALL("cuMemcpyDtoHAsync_v2", 1);
    return fake_end(fake_copy(stream, to, at(from), bytes));
}
/* Within device memory, from its beginning on. */
int cu_copy_rows(const cuda_rows *r, void *stream) {
    FAKE_CALL("cuMemcpy2DAsync_v2", 1);
    const int sound = r->from.memory == CUDA_MEMORY_DEVICE && r->to.memory == CUDA_MEMORY_DEVICE &&
                      !(r->from.x | r->from.y | r->to.x | r->to.y);
    return fake_end(sound ? fake_copy_rows(stream, at(r->to.device), r->to.pitch, at(r->from.device),
                                           r->from.pitch, r->bytes, r->rows)
                          : FAKE_INVALID);
}
int cu_fill(gpu_address to, unsigned char value, size_t bytes, void *stream) {
    FAKE_CALL("cuMemsetD8Async", 1);
    return fake_end(fake_fill(stream, at(to), value, bytes));
}

/* ---- streams, events, graphs --------------------------------------------------------------------------- */

int cu_stream_create(void **stream, unsigned flags) {
    FAKE_CALL("cuStreamCreate", 1);
    return fake_end(flags == CUDA_STREAM_NON_BLOCKING ? fake_take(stream, sizeof(fake_stream))
                                                      : FAKE_INVALID);
}
int cu_stream_destroy(void *stream) {
    FAKE_CALL("cuStreamDestroy_v2", 0);
    return fake_end(fake_give(stream));
}
int cu_stream_wait(void *stream) {
    FAKE_CALL("cuStreamSynchronize", 1);
    return fake_end(fake_not_capturing(stream));
}
int cu_capture_begin(void *stream, int mode) {
    FAKE_CALL("cuStreamBeginCapture_v2", 1);
    return fake_end(mode == CUDA_CAPTURE_THREAD_LOCAL ? fake_capture_begin(stream) : FAKE_INVALID);
}
int cu_capture_end(void *stream, void **graph) {
    *graph = NULL;
    FAKE_CALL("cuStreamEndCapture", 0);
    return fake_end(fake_capture_end(stream, graph));
}
int cu_event_create(void **event, unsigned flags) {
    FAKE_CALL("cuEventCreate", 1);
    return fake_end(flags ? FAKE_INVALID : fake_take(event, sizeof(fake_event)));
}
int cu_event_destroy(void *event) {
    FAKE_CALL("cuEventDestroy_v2", 0);
    return fake_end(fake_give(event));
}
/* In a capture it must be a node of the graph. */
int cu_event_record(void *event, void *of, unsigned flags) {
    fake_stream *stream = of;
    FAKE_CALL("cuEventRecordWithFlags", 1);
    const int external = flags == CUDA_EVENT_EXTERNAL;
    return fake_end(external == !!stream->capturing ? fake_do(stream, &(fake_node){.event = event})
                                                    : FAKE_INVALID);
}
int cu_event_wait(void *event) {
    FAKE_CALL("cuEventSynchronize", 1);
    return fake_end(event ? 0 : FAKE_INVALID);
}
int cu_event_elapsed(float *ms, void *start, void *stop) {
    FAKE_CALL("cuEventElapsedTime", 1);
    *ms = (float)(((fake_event *)stop)->ms - ((fake_event *)start)->ms);
    return fake_end(0);
}
int cu_graph_nodes(void *graph, void **nodes, size_t *count) {
    FAKE_CALL("cuGraphGetNodes", 0);
    *count = ((fake_graph *)graph)->count;
    return fake_end(nodes ? FAKE_INVALID : 0);
}
int cu_graph_destroy(void *graph) {
    FAKE_CALL("cuGraphDestroy", 0);
    return fake_end(fake_free_graph(graph));
}
int cu_graph_instantiate(void **exec, void *graph, unsigned long long flags) {
    FAKE_CALL("cuGraphInstantiateWithFlags", 1);
    return fake_end(flags ? FAKE_INVALID : fake_instantiate((fake_graph **)exec, graph));
}
int cu_graph_upload(void *exec, void *stream) {
    FAKE_CALL("cuGraphUpload", 1);
    return fake_end(exec ? fake_not_capturing(stream) : FAKE_INVALID);
}
int cu_graph_launch(void *exec, void *stream) {
    FAKE_CALL("cuGraphLaunch", 1);
    return fake_end(fake_replay(stream, exec));
}
int cu_graph_exec_destroy(void *exec) {
    FAKE_CALL("cuGraphExecDestroy", 0);
    return fake_end(fake_free_graph(exec));
}

/* ---- modules and launches ------------------------------------------------------------------------------ */

/* A function of a module: the kernel and how much dynamic shared memory it was said to have, at most. */
typedef struct module_function {
    const emu_kernel *kernel;
    int shared_bytes;
    struct module_function *next;
} module_function;

enum { UNSAID_SHARED = 48 << 10 };

int cu_module_load(void **module, const void *image) {
    FAKE_CALL("cuModuleLoadData", 1);
    if (strcmp(image, STAND_IN)) return fake_end(CUDA_NO_BINARY);
    return fake_end(fake_take(module, sizeof(module_function *)));
}
int cu_module_unload(void *module) {
    FAKE_CALL("cuModuleUnload", 0);
    for (module_function *f = *(module_function **)module, *next; f; f = next) next = f->next, free(f);
    return fake_end(fake_give(module));
}
int cu_module_function(void **function, void *module, const char *name) {
    FAKE_CALL("cuModuleGetFunction", 1);
    const emu_kernel *kernel = emu_find(name);
    module_function *f = kernel ? malloc(sizeof *f) : NULL;
    if (!f) return fake_end(FAKE_NOT_FOUND);
    *f = (module_function){kernel, UNSAID_SHARED, *(module_function **)module};
    *function = *(module_function **)module = f;
    return fake_end(0);
}
int cu_function_set(void *function, int attribute, int value) {
    FAKE_CALL("cuFuncSetAttribute", 1);
    if (attribute == CUDA_FUNCTION_SHARED_BYTES) {
        if (value > chip_now()->block_bytes) return fake_end(FAKE_INVALID);
        ((module_function *)function)->shared_bytes = value;
    }
    return fake_end(attribute == CUDA_FUNCTION_WIDE_CLUSTERS ? FAKE_INVALID : 0);
}

/* Threads' registers are not known here. */
int cu_max_blocks(int *blocks, void *function, int threads, size_t shared_bytes) {
    const module_function *f = function;
    FAKE_CALL("cuOccupancyMaxActiveBlocksPerMultiprocessor", 1);
    *blocks = threads <= EMU_MOST_THREADS && shared_bytes <= (size_t)f->shared_bytes ? fake_state->held : 0;
    return fake_end(0);
}

const char *fake_run_kernel(const fake_launch *l) {
    return emu_run(l->kernel, &(emu_launch){{l->grid[0], l->grid[1], l->grid[2]},
                                            {l->block[0], l->block[1], l->block[2]},
                                            l->shared_bytes, l->arguments, l->together});
}

/* Clusters are for other kernels; early start, on chips that have it, is nothing. A cooperative launch has at
 * most a block a multiprocessor. */
static int attributes_are_known(const cuda_launch *l, int *together) {
    *together = 0;
    for (unsigned i = 0; i < l->attribute_count; i++) {
        const unsigned id = l->attributes[i].id;
        if (id == CUDA_ATTRIBUTE_COOPERATIVE) *together = l->attributes[i].value.flag;
        else if (id != CUDA_ATTRIBUTE_OVERLAP || chip_now()->major < 9) return 0;
    }
    return !*together || l->grid[0] <= (unsigned)fake_state->multiprocessors;
}

int cu_launch(const cuda_launch *l, void *function, void **arguments, void **extra) {
    const module_function *f = function;
    int together;
    FAKE_CALL("cuLaunchKernelEx", 1);
    if (!f || extra || !attributes_are_known(l, &together) || l->shared_bytes > (unsigned)f->shared_bytes)
        return fake_end(FAKE_INVALID);
    const fake_node n = {.launch = {f->kernel,
                                    {l->grid[0], l->grid[1], l->grid[2]},
                                    {l->block[0], l->block[1], l->block[2]},
                                    l->shared_bytes, arguments[0], f->kernel->bytes, together}};
    return fake_end(fake_do(l->stream, &n));
}
