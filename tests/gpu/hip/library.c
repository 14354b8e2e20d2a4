/* The fake libamdhip64 (fake_hip.h, fake_gpu.h). Kernels are the project's own, compiled for the emulated
 * GPU; one that does what no kernel may is reported as a failed launch, the sentence on stderr. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "backend/gpu/hip/library.h"
#include "emulation.h"
#include "fake_hip.h"
#include "image.h"

#define EXPORTED __attribute__((visibility("default")))
#define X(member, symbol, type, parameters) EXPORTED type symbol parameters;
HIP_LIBRARY_LIST(X)
#undef X

enum { MOST_BLOCKS_Y = 65535 };

#define CALL(reaches_device) FAKE_CALL(__func__, reaches_device)

static void set_fault(int fault, int n) { emu_set_fault((emu_fault)fault, n); }

extern EXPORTED fake_gpu fake_hip_state;
EXPORTED fake_gpu fake_hip_state = {.devices = 1,
                                    .version = 70100000,
                                    .architecture = "gfx942:sramecc+:xnack-",
                                    .memory_bytes = (size_t)2 << 30,
                                    .set_fault = set_fault};
fake_gpu *const fake_state = &fake_hip_state;
const char fake_name[] = "libamdhip64";

/* What the power counter asks of the runtime, beside the table. */
EXPORTED int hipDeviceGetPCIBusId(char *text, int bytes, int device);
int hipDeviceGetPCIBusId(char *text, int bytes, int device) {
    if (device < 0 || device >= fake_state->devices) return FAKE_INVALID;
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", 0x3b + device);
    return 0;
}

/* ---- the runtime and its devices ----------------------------------------------------------------------- */

int hipInit(unsigned flags) {
    CALL(0);
    return fake_end(flags ? FAKE_INVALID : 0);
}
int hipRuntimeGetVersion(int *version) {
    CALL(0);
    *version = fake_state->version;
    return fake_end(0);
}
const char *hipGetErrorString(int error) {
    return error == HIP_OUT_OF_MEMORY ? "out of memory"
         : error == HIP_LAUNCH_FAILED ? "unspecified launch failure"
         : error == HIP_NOT_SUPPORTED ? "operation not supported"
                                      : "some error";
}
int hipGetDeviceCount(int *count) {
    CALL(0);
    *count = fake_state->devices;
    return fake_end(fake_state->devices ? 0 : HIP_NO_DEVICE);
}
int hipSetDevice(int device) {
    CALL(0);
    return fake_end(device >= 0 && device < fake_state->devices ? 0 : FAKE_INVALID);
}
int hipGetDevicePropertiesR0600(hip_properties *p, int device) {
    CALL(0);
    if (device < 0 || device >= fake_state->devices) return fake_end(FAKE_INVALID);
    memset(p, 0, offsetof(hip_properties, rest) + 56);
    snprintf(p->name, sizeof p->name, "Emulated GPU");
    snprintf(p->architecture, sizeof p->architecture, "%s", fake_state->architecture);
    p->memory_bytes = fake_state->memory_bytes;
    p->shared_bytes = 64 << 10;
    p->lanes = EMU_WAVE;
    p->multiprocessors = 4;
    p->major = 9;
    p->minor = 4;
    p->core_khz = 2100000;
    p->memory_khz = 1300000;
    p->cache_bytes = 4 << 20;
    return fake_end(0);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

int hipMemGetInfo(size_t *free_bytes, size_t *total) {
    CALL(1);
    *total = fake_state->memory_bytes;
    *free_bytes = fake_state->memory_bytes - fake_state->bytes;
    return fake_end(0);
}
int hipMalloc(void **memory, size_t bytes) {
    CALL(1);
    return fake_end(fake_allocate(memory, bytes));
}
int hipFree(void *memory) {
    CALL(0);
    return fake_end(fake_release(memory));
}
int hipHostMalloc(void **memory, size_t bytes, unsigned flags) {
    CALL(0);
    return fake_end(flags ? FAKE_INVALID : fake_take(memory, bytes));
}
int hipHostFree(void *memory) {
    CALL(0);
    return fake_end(fake_give(memory));
}

/* ---- streams and graphs -------------------------------------------------------------------------------- */

int hipStreamCreateWithFlags(void **out, unsigned flags) {
    CALL(1);
    return fake_end(flags == HIP_STREAM_NON_BLOCKING ? fake_take(out, sizeof(fake_stream)) : FAKE_INVALID);
}
int hipStreamDestroy(void *stream) {
    CALL(0);
    return fake_end(fake_give(stream));
}
int hipStreamSynchronize(void *stream) {
    CALL(1);
    return fake_end(fake_not_capturing(stream));
}
int hipMemcpyHtoDAsync(void *to, void *from, size_t bytes, void *stream) {
    CALL(1);
    return fake_end(fake_copy(stream, to, from, bytes));
}
int hipMemcpyDtoHAsync(void *to, void *from, size_t bytes, void *stream) {
    CALL(1);
    return fake_end(fake_copy(stream, to, from, bytes));
}
int hipMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                     size_t rows, int kind, void *stream) {
    CALL(1);
    if (kind != HIP_ON_DEVICE) return fake_end(FAKE_INVALID);
    return fake_end(fake_copy_rows(stream, to, to_pitch, from, from_pitch, bytes, rows));
}
int hipMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    CALL(1);
    return fake_end(fake_fill(stream, to, value, bytes));
}

int hipStreamBeginCapture(void *stream, int mode) {
    CALL(1);
    return fake_end(mode == HIP_CAPTURE_THREAD_LOCAL ? fake_capture_begin(stream) : FAKE_INVALID);
}
int hipStreamEndCapture(void *stream, void **graph) {
    *graph = NULL;
    CALL(0);
    return fake_end(fake_capture_end(stream, graph));
}
int hipStreamGetCaptureInfo_v2(void *of, int *status, unsigned long long *id, void **graph,
                               void *const **nodes, size_t *count) {
    fake_stream *s = of;
    CALL(0);
    *status = !!s->capturing;
    *id = (unsigned long long)(uintptr_t)s->capturing;
    *graph = s->capturing;
    *nodes = (void *const *)&s->last;
    *count = !!s->last;
    return fake_end(s->capturing ? 0 : FAKE_INVALID);
}
int hipStreamUpdateCaptureDependencies(void *of, void **nodes, size_t count, unsigned flags) {
    fake_stream *s = of;
    CALL(0);
    if (!s->capturing || count != 1 || flags != HIP_SET_DEPENDENCIES) return fake_end(FAKE_INVALID);
    s->last = nodes[0];
    return fake_end(0);
}
int hipGraphAddEventRecordNode(void **out, void *graph, void *const *after, size_t count, void *event) {
    fake_node *added = NULL;
    fake_graph *g = graph;
    CALL(0);
    if (count > 1 || (count && *after != g->nodes[g->count - 1])) return fake_end(FAKE_INVALID);
    int code = fake_append(graph, &(fake_node){.event = event}, &added);
    *out = added;
    return fake_end(code);
}
int hipGraphGetNodes(void *graph, void **nodes, size_t *count) {
    CALL(0);
    *count = ((fake_graph *)graph)->count;
    return fake_end(nodes ? FAKE_INVALID : 0);
}
int hipGraphDestroy(void *graph) {
    CALL(0);
    return fake_end(fake_free_graph(graph));
}
int hipGraphInstantiateWithFlags(void **exec, void *of, unsigned long long flags) {
    CALL(1);
    return fake_end(flags ? FAKE_INVALID : fake_instantiate((fake_graph **)exec, of));
}
int hipGraphUpload(void *exec, void *stream) {
    CALL(1);
    return fake_end(exec ? fake_not_capturing(stream) : FAKE_INVALID);
}
int hipGraphLaunch(void *exec, void *stream) {
    CALL(1);
    return fake_end(fake_replay(stream, exec));
}
int hipGraphExecDestroy(void *exec) {
    CALL(0);
    return fake_end(fake_free_graph(exec));
}

/* ---- events -------------------------------------------------------------------------------------------- */

int hipEventCreate(void **out) {
    CALL(1);
    return fake_end(fake_take(out, sizeof(fake_event)));
}
int hipEventDestroy(void *event) {
    CALL(0);
    return fake_end(fake_give(event));
}
int hipEventRecord(void *event, void *of) {
    fake_stream *stream = of;
    CALL(1);
    const int code = fake_not_capturing(stream);
    return fake_end(code ? code : fake_do(stream, &(fake_node){.event = event}));
}
int hipEventSynchronize(void *event) {
    CALL(1);
    return fake_end(event ? 0 : FAKE_INVALID);
}
int hipEventElapsedTime(float *ms, void *start, void *stop) {
    CALL(1);
    *ms = (float)(((fake_event *)stop)->ms - ((fake_event *)start)->ms);
    return fake_end(0);
}

/* ---- modules and launches ------------------------------------------------------------------------------ */

/* A module's code object must be of the device's architecture. */
int hipModuleLoadData(void **module, const void *image) {
    CALL(1);
    if (!image_is_for(image, fake_state->architecture)) return fake_end(HIP_NO_BINARY);
    int code = fake_take(module, sizeof image);
    if (!code) memcpy(*module, &image, sizeof image);
    return fake_end(code);
}
int hipModuleUnload(void *module) {
    CALL(0);
    return fake_end(fake_give(module));
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
    const void *image;
    CALL(1);
    memcpy(&image, module, sizeof image);
    const emu_kernel *kernel = emu_find(name);
    *function = (void *)(uintptr_t)kernel;
    return fake_end(kernel && image_has_kernel(image, name) ? 0 : FAKE_NOT_FOUND);
}
const char *fake_run_kernel(const fake_launch *l) {
    emu_set_gfx950(!strncmp(fake_state->architecture, "gfx950", 6));
    return emu_launch(l->kernel, (int[]){(int)l->grid[0], (int)l->grid[1]}, (int)l->block[0], l->arguments);
}

int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared_bytes, void *stream, void **arguments, void **extra) {
    const emu_kernel *kernel = function;
    CALL(1);
    int sound = gz == 1 && by == 1 && bz == 1 && gy <= MOST_BLOCKS_Y && !shared_bytes && !extra;
    if (!kernel || !sound) return fake_end(FAKE_INVALID);
    const fake_node n = {.launch = {kernel, {gx, gy, gz}, {bx, by, bz}, 0, arguments[0], kernel->bytes, 0}};
    return fake_end(fake_do(stream, &n));
}
