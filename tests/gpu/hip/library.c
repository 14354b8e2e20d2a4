/* The fake libamdhip64 (fake_hip.h). A device's memory is the host's, streams do everything at once, a graph
 * is a list of launches, copies of their arguments, and events. Kernels are the project's own, compiled for
 * the emulated GPU; one that does what no kernel may is reported as a failed launch, the sentence on stderr.
 * */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/gpu/hip/library.h"
#include "emulation.h"
#include "fake_hip.h"
#include "image.h"

#define EXPORTED __attribute__((visibility("default")))
#define X(member, symbol, type, parameters) EXPORTED type symbol parameters;
HIP_LIBRARY_LIST(X)
#undef X

enum { INVALID = 1, NOT_FOUND = 500, SIZE_BYTES = 64, MOST_BLOCKS_Y = 65535 };

static void set_fault(int fault, int n) { emu_set_fault((emu_fault)fault, n); }

extern EXPORTED fake_hip fake_hip_state;
EXPORTED fake_hip fake_hip_state = {.devices = 1,
                                    .version = 70100000,
                                    .architecture = "gfx942:sramecc+:xnack-",
                                    .memory_bytes = (size_t)2 << 30,
                                    .set_fault = set_fault};
static fake_hip *const state = &fake_hip_state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What the power counter asks of the runtime, beside the table. */
EXPORTED int hipDeviceGetPCIBusId(char *text, int bytes, int device);
int hipDeviceGetPCIBusId(char *text, int bytes, int device) {
    if (device < 0 || device >= state->devices) return INVALID;
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", 0x3b + device);
    return 0;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* 0, or what a call of this name has to fail with. Every call holds the lock while it works. */
static int begin(const char *name, int reaches_device) {
    pthread_mutex_lock(&lock);
    if (reaches_device && state->lost) return HIP_LAUNCH_FAILED;
    if (strcmp(name, state->failing) || state->after-- > 0) return 0;
    state->failing[0] = 0;
    return state->code;
}

static int end(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

#define CALL(reaches_device)                                     \
    do {                                                         \
        int code_ = begin(__func__, reaches_device);             \
        if (code_) return end(code_);                            \
    } while (0)

static int take(void **out, size_t bytes) {
    *out = calloc(1, bytes);
    if (!*out) return HIP_OUT_OF_MEMORY;
    state->alive++;
    return 0;
}

static int give(void *thing) {
    if (!thing) return INVALID;
    free(thing);
    state->alive--;
    return 0;
}

/* ---- the runtime and its devices ----------------------------------------------------------------------- */

int hipInit(unsigned flags) {
    CALL(0);
    return end(flags ? INVALID : 0);
}
int hipRuntimeGetVersion(int *version) {
    CALL(0);
    *version = state->version;
    return end(0);
}
const char *hipGetErrorString(int error) {
    return error == HIP_OUT_OF_MEMORY ? "out of memory"
         : error == HIP_LAUNCH_FAILED ? "unspecified launch failure"
         : error == HIP_NOT_SUPPORTED ? "operation not supported"
                                      : "some error";
}
int hipGetDeviceCount(int *count) {
    CALL(0);
    *count = state->devices;
    return end(state->devices ? 0 : HIP_NO_DEVICE);
}
int hipSetDevice(int device) {
    CALL(0);
    return end(device >= 0 && device < state->devices ? 0 : INVALID);
}
int hipGetDevicePropertiesR0600(hip_properties *p, int device) {
    CALL(0);
    if (device < 0 || device >= state->devices) return end(INVALID);
    memset(p, 0, offsetof(hip_properties, rest) + 56);
    snprintf(p->name, sizeof p->name, "Emulated GPU");
    snprintf(p->architecture, sizeof p->architecture, "%s", state->architecture);
    p->memory_bytes = state->memory_bytes;
    p->shared_bytes = 64 << 10;
    p->lanes = EMU_WAVE;
    p->multiprocessors = 4;
    p->major = 9;
    p->minor = 4;
    p->core_khz = 2100000;
    p->memory_khz = 1300000;
    p->cache_bytes = 4 << 20;
    return end(0);
}

/* ---- memory: a block's size stands before it ----------------------------------------------------------- */

int hipMemGetInfo(size_t *free_bytes, size_t *total) {
    CALL(1);
    *total = state->memory_bytes;
    *free_bytes = state->memory_bytes - state->bytes;
    return end(0);
}
int hipMalloc(void **memory, size_t bytes) {
    char *block;
    CALL(1);
    if (bytes > state->memory_bytes - state->bytes || take((void **)&block, bytes + SIZE_BYTES))
        return end(HIP_OUT_OF_MEMORY);
    memset(block, 0xcd, bytes + SIZE_BYTES);
    memcpy(block, &bytes, sizeof bytes);
    state->bytes += bytes;
    *memory = block + SIZE_BYTES;
    return end(0);
}
int hipFree(void *memory) {
    char *block = (char *)memory - SIZE_BYTES;
    size_t bytes;
    CALL(0);
    if (!memory) return end(0);
    memcpy(&bytes, block, sizeof bytes);
    state->bytes -= bytes;
    return end(give(block));
}
int hipHostMalloc(void **memory, size_t bytes, unsigned flags) {
    CALL(0);
    return end(flags ? INVALID : take(memory, bytes));
}
int hipHostFree(void *memory) {
    CALL(0);
    return end(give(memory));
}

/* ---- streams and graphs -------------------------------------------------------------------------------- */

typedef struct event {
    double ms;
} event;

/* A launch, or an event that is recorded. */
typedef struct node {
    const emu_kernel *kernel;
    int blocks[2], threads;
    void *arguments;
    event *event;
} node;

typedef struct graph {
    node **nodes;
    size_t count;
} graph;

typedef struct stream {
    graph *capturing;
    node *last;                            /* that the next node follows                                   */
} stream;

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int run(const node *n) {
    if (n->event) return n->event->ms = now_ms(), 0;
    emu_set_gfx950(!strncmp(state->architecture, "gfx950", 6));
    const char *trouble = emu_launch(n->kernel, n->blocks, n->threads, n->arguments);
    state->launches++;
    if (!trouble) return 0;
    snprintf(state->trouble, sizeof state->trouble, "%s", trouble);
    fprintf(stderr, "libamdhip64: %s\n", trouble);
    state->lost = 1;
    return HIP_LAUNCH_FAILED;
}

static void free_node(node *n) {
    if (n) free(n->arguments);
    free(n);
}

/* A copy of its own. */
static node *copy_node(const node *from) {
    size_t bytes = from->kernel ? from->kernel->bytes : 0;
    node *n = malloc(sizeof *n);
    void *arguments = bytes ? malloc(bytes) : NULL;
    if (!n || (bytes && !arguments)) return free(n), free(arguments), NULL;
    *n = *from;
    if (bytes) memcpy(arguments, from->arguments, bytes);
    n->arguments = arguments;
    return n;
}

static int append(graph *g, const node *from, node **out) {
    node *copy = copy_node(from), **nodes = realloc(g->nodes, (g->count + 1) * sizeof *nodes);
    if (nodes) g->nodes = nodes;
    if (!copy || !nodes) return free_node(copy), HIP_OUT_OF_MEMORY;
    nodes[g->count++] = *out = copy;
    return 0;
}

static int free_graph(graph *g) {
    if (!g) return INVALID;
    for (size_t i = 0; i < g->count; i++) free_node(g->nodes[i]);
    free(g->nodes);
    return give(g);
}

int hipStreamCreateWithFlags(void **out, unsigned flags) {
    CALL(1);
    return end(flags == HIP_STREAM_NON_BLOCKING ? take(out, sizeof(stream)) : INVALID);
}
int hipStreamDestroy(void *stream) {
    CALL(0);
    return end(give(stream));
}
int hipStreamSynchronize(void *of) {
    const stream *s = of;
    CALL(1);
    return end(s->capturing ? HIP_CAPTURE_UNSUPPORTED : 0);
}

/* While a stream is captured nothing else may be asked of it. */
static int not_capturing(const stream *s) { return s->capturing ? HIP_CAPTURE_UNSUPPORTED : 0; }

int hipMemcpyHtoDAsync(void *to, void *from, size_t bytes, void *stream) {
    CALL(1);
    int code = not_capturing(stream);
    if (!code) memcpy(to, from, bytes);
    return end(code);
}
int hipMemcpyDtoHAsync(void *to, void *from, size_t bytes, void *stream) {
    CALL(1);
    int code = not_capturing(stream);
    if (!code) memcpy(to, from, bytes);
    return end(code);
}
int hipMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                     size_t rows, int kind, void *stream) {
    CALL(1);
    int code = kind == HIP_ON_DEVICE ? not_capturing(stream) : INVALID;
    for (size_t row = 0; !code && row < rows; row++)
        memcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, bytes);
    return end(code);
}
int hipMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    CALL(1);
    int code = not_capturing(stream);
    if (!code) memset(to, value, bytes);
    return end(code);
}

int hipStreamBeginCapture(void *of, int mode) {
    stream *s = of;
    CALL(1);
    if (s->capturing || mode != HIP_CAPTURE_THREAD_LOCAL) return end(INVALID);
    s->last = NULL;
    return end(take((void **)&s->capturing, sizeof *s->capturing));
}
int hipStreamEndCapture(void *of, void **graph) {
    stream *s = of;
    *graph = NULL;
    CALL(0);
    if (!s->capturing) return end(INVALID);
    /* A node that nothing follows in this stream would be lost. */
    int whole = !s->capturing->count || s->last == s->capturing->nodes[s->capturing->count - 1];
    *graph = s->capturing;
    s->capturing = NULL;
    return end(whole ? 0 : INVALID);
}
int hipStreamGetCaptureInfo_v2(void *of, int *status, unsigned long long *id, void **graph,
                               void *const **nodes, size_t *count) {
    stream *s = of;
    CALL(0);
    *status = !!s->capturing;
    *id = (unsigned long long)(uintptr_t)s->capturing;
    *graph = s->capturing;
    *nodes = (void *const *)&s->last;
    *count = !!s->last;
    return end(s->capturing ? 0 : INVALID);
}
int hipStreamUpdateCaptureDependencies(void *of, void **nodes, size_t count, unsigned flags) {
    stream *s = of;
    CALL(0);
    if (!s->capturing || count != 1 || flags != HIP_SET_DEPENDENCIES) return end(INVALID);
    s->last = nodes[0];
    return end(0);
}
int hipGraphAddEventRecordNode(void **out, void *graph, void *const *after, size_t count, void *event) {
    node *added = NULL;
    struct graph *g = graph;
    CALL(0);
    if (count > 1 || (count && *after != g->nodes[g->count - 1])) return end(INVALID);
    int code = append(graph, &(node){.event = event}, &added);
    *out = added;
    return end(code);
}
int hipGraphGetNodes(void *graph, void **nodes, size_t *count) {
    CALL(0);
    *count = ((struct graph *)graph)->count;
    return end(nodes ? INVALID : 0);
}
int hipGraphDestroy(void *graph) {
    CALL(0);
    return end(free_graph(graph));
}
int hipGraphInstantiateWithFlags(void **exec, void *of, unsigned long long flags) {
    const graph *from = of;
    graph *to;
    node *added;
    CALL(1);
    int code = flags ? INVALID : take((void **)&to, sizeof *to);
    for (size_t i = 0; !code && i < from->count; i++)
        if ((code = append(to, from->nodes[i], &added))) free_graph(to);
    if (!code) *exec = to;
    return end(code);
}
int hipGraphUpload(void *exec, void *stream) {
    CALL(1);
    return end(exec ? not_capturing(stream) : INVALID);
}
int hipGraphLaunch(void *exec, void *stream) {
    const graph *g = exec;
    CALL(1);
    int code = not_capturing(stream);
    state->replays++;
    for (size_t i = 0; !code && i < g->count; i++) code = run(g->nodes[i]);
    return end(code);
}
int hipGraphExecDestroy(void *exec) {
    CALL(0);
    return end(free_graph(exec));
}

/* ---- events -------------------------------------------------------------------------------------------- */

int hipEventCreate(void **out) {
    CALL(1);
    return end(take(out, sizeof(event)));
}
int hipEventDestroy(void *event) {
    CALL(0);
    return end(give(event));
}
int hipEventRecord(void *event, void *stream) {
    CALL(1);
    int code = not_capturing(stream);
    if (!code) ((struct event *)event)->ms = now_ms();
    return end(code);
}
int hipEventSynchronize(void *event) {
    CALL(1);
    return end(event ? 0 : INVALID);
}
int hipEventElapsedTime(float *ms, void *start, void *stop) {
    CALL(1);
    *ms = (float)(((event *)stop)->ms - ((event *)start)->ms);
    return end(0);
}

/* ---- modules and launches ------------------------------------------------------------------------------ */

/* A module's code object must be of the device's architecture. */
int hipModuleLoadData(void **module, const void *image) {
    CALL(1);
    if (!image_is_for(image, state->architecture)) return end(HIP_NO_BINARY);
    int code = take(module, sizeof image);
    if (!code) memcpy(*module, &image, sizeof image);
    return end(code);
}
int hipModuleUnload(void *module) {
    CALL(0);
    return end(give(module));
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
    const void *image;
    CALL(1);
    memcpy(&image, module, sizeof image);
    const emu_kernel *kernel = emu_find(name);
    *function = (void *)(uintptr_t)kernel;
    return end(kernel && image_has_kernel(image, name) ? 0 : NOT_FOUND);
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared_bytes, void *of, void **arguments, void **extra) {
    stream *s = of;
    node *added, n = {.kernel = function, .blocks = {(int)gx, (int)gy}, .threads = (int)bx};
    CALL(1);
    int sound = gz == 1 && by == 1 && bz == 1 && gy <= MOST_BLOCKS_Y && !shared_bytes && !extra;
    if (!function || !sound) return end(INVALID);
    n.arguments = arguments[0];
    if (!s->capturing) return end(run(&n));
    int code = append(s->capturing, &n, &added);
    if (!code) s->last = added;
    return end(code);
}
