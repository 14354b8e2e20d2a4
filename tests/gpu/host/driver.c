/* A driver whose device is the host: memory of malloc, streams that do everything at once, graphs that are
 * lists of launches with a copy of their arguments. It refuses a launch that asks for what no block has: more
 * than one thread, clusters, more shared memory than the device's. The driver that fails on purpose is
 * tests/support/gpu/fake_gpu.h. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/clock.h"
#include "host.h"
#include "kernels.h"

enum { NO_MEMORY = 1, WRONG = 2, LOST = 3, MEMORY_BYTES = 1 << 30, SIZE_BYTES = 64 };

/* ---- what is taken and given back ---------------------------------------------------------------------- */

static atomic_int alive, replays, copies;
static atomic_size_t device_bytes, pinned_bytes, most_bytes, up_bytes, down_bytes, memory_bytes;
static atomic_int integrated = -1;         /* -1: as the environment says */

int host_alive(void) { return atomic_load(&alive); }
int host_replays(void) { return atomic_load(&replays); }
size_t host_device_bytes(void) { return atomic_load(&device_bytes); }
size_t host_pinned_bytes(void) { return atomic_load(&pinned_bytes); }

void host_integrate(int on) { atomic_store(&integrated, on); }
int host_is_integrated(void) {
    int on = atomic_load(&integrated);
    return on < 0 ? getenv("HOST_INTEGRATED") != NULL : on;
}

void host_set_memory(size_t bytes) { atomic_store(&memory_bytes, bytes); }
static size_t all_memory(void) {
    size_t set = atomic_load(&memory_bytes);
    return set ? set : MEMORY_BYTES;
}

static size_t taken(void) { return host_device_bytes() + host_pinned_bytes(); }

void host_count(void) {
    atomic_store(&up_bytes, 0);
    atomic_store(&down_bytes, 0);
    atomic_store(&copies, 0);
    atomic_store(&most_bytes, taken());
}
host_counts host_counted(void) {
    return (host_counts){atomic_load(&up_bytes), atomic_load(&down_bytes), atomic_load(&most_bytes),
                         atomic_load(&copies)};
}

static int take(void **out, size_t bytes) {
    *out = calloc(1, bytes);
    if (!*out) return NO_MEMORY;
    atomic_fetch_add(&alive, 1);
    return 0;
}

static int give(const gpu_driver *driver, void *thing) {
    (void)driver;
    free(thing);
    atomic_fetch_sub(&alive, 1);
    return 0;
}

/* ---- a device that stands still, or is gone ------------------------------------------------------------ */

static atomic_int condition;

void host_become(host_condition what) { atomic_store(&condition, what); }

/* Where every call of a session begins to compute, and where it ends. A thread that stands still has a name
 * that says so. */
static int settle(void) {
    const struct timespec moment = {.tv_nsec = 1000000};
    if (atomic_load(&condition) == HOST_STALLED) prctl(PR_SET_NAME, "stalled");
    while (atomic_load(&condition) == HOST_STALLED) nanosleep(&moment, NULL);
    return atomic_load(&condition) == HOST_LOST ? LOST : 0;
}
static int stream_wait(const gpu_driver *driver, void *stream) {
    return (void)driver, (void)stream, settle();
}

/* ---- the device ---------------------------------------------------------------------------------------- */

static gpu_error error_class(int code) {
    return code == NO_MEMORY ? GPU_ERROR_OUT_OF_MEMORY : GPU_ERROR_OTHER;
}
static const char *error_text(const gpu_driver *driver, int code) {
    (void)driver;
    return code == NO_MEMORY ? "out of memory" : code == LOST ? "it is gone" : "the host has no such thing";
}
static void close_driver(gpu_driver *driver) { give(driver, driver->library); }
static int device_count(const gpu_driver *driver, int *count) { return (void)driver, *count = 1, 0; }
static int context_open(const gpu_driver *driver, int ordinal, void **context) {
    return (void)driver, (void)ordinal, *context = &alive, 0;
}
static void context_close(const gpu_driver *driver, int ordinal) { (void)driver, (void)ordinal; }
static int enter(const gpu_driver *driver, void *context) { return (void)driver, (void)context, 0; }

/* ---- memory: a block's size stands before it ----------------------------------------------------------- */

/* What device memory may still grow by: on an integrated device pinned memory is of the same bytes. */
static size_t left(void) {
    size_t used = host_is_integrated() ? taken() : host_device_bytes();
    return used < all_memory() ? all_memory() - used : 0;
}
static int memory_info(const gpu_driver *driver, size_t *unused, size_t *total) {
    return (void)driver, *total = all_memory(), *unused = left(), 0;
}
static int take_block(size_t bytes, atomic_size_t *sum, void **out) {
    void *block;
    if (take(&block, bytes + SIZE_BYTES)) return NO_MEMORY;
    *(size_t *)block = bytes;
    atomic_fetch_add(sum, bytes);
    size_t most = atomic_load(&most_bytes), now = taken();
    while (now > most && !atomic_compare_exchange_weak(&most_bytes, &most, now)) continue;
    *out = (char *)block + SIZE_BYTES;
    return 0;
}
static int give_block(const gpu_driver *driver, atomic_size_t *sum, void *memory) {
    void *block = (char *)memory - SIZE_BYTES;
    atomic_fetch_sub(sum, *(size_t *)block);
    return give(driver, block);
}
static int allocate(const gpu_driver *driver, gpu_address *address, size_t bytes) {
    void *memory;
    (void)driver;
    if (bytes > left() || take_block(bytes, &device_bytes, &memory)) return NO_MEMORY;
    *address = (gpu_address)(uintptr_t)memory;
    return 0;
}
static int release(const gpu_driver *driver, gpu_address address) {
    return give_block(driver, &device_bytes, (void *)(uintptr_t)address);
}
static int allocate_host(const gpu_driver *driver, void **memory, size_t bytes) {
    (void)driver;
    if (host_is_integrated() && bytes > left()) return NO_MEMORY;
    return take_block(bytes, &pinned_bytes, memory);
}
static int release_host(const gpu_driver *driver, void *memory) {
    return give_block(driver, &pinned_bytes, memory);
}
static int upload(const gpu_driver *driver, gpu_address to, const void *from, size_t bytes, void *stream) {
    (void)driver, (void)stream;
    atomic_fetch_add(&up_bytes, bytes);
    atomic_fetch_add(&copies, 1);
    return memcpy((void *)(uintptr_t)to, from, bytes), 0;
}
static int download(const gpu_driver *driver, void *to, gpu_address from, size_t bytes, void *stream) {
    (void)driver, (void)stream;
    atomic_fetch_add(&down_bytes, bytes);
    atomic_fetch_add(&copies, 1);
    return memcpy(to, (const void *)(uintptr_t)from, bytes), 0;
}
static int copy_rows(const gpu_driver *driver, gpu_address to, gpu_address from, size_t pitch, size_t bytes,
                     size_t rows, void *stream) {
    (void)driver, (void)stream;
    for (size_t at = 0; at < rows * pitch; at += pitch)
        memcpy((void *)(uintptr_t)(to + at), (const void *)(uintptr_t)(from + at), bytes);
    return 0;
}
static int fill(const gpu_driver *driver, gpu_address to, unsigned char value, size_t bytes, void *stream) {
    return (void)driver, (void)stream, memset((void *)(uintptr_t)to, value, bytes), 0;
}

/* ---- launches and clock marks: now, or into a graph ---------------------------------------------------- */

typedef struct event {
    double ms;
} event;

typedef struct node {
    gpu_launch launch;
    event *event;                          /* not NULL: no launch, but the time                            */
} node;

typedef struct graph {
    node *nodes;
    size_t count;
} graph;

typedef struct stream {
    graph *capturing;                      /* NULL: launches run                                           */
} stream;

static int run(const node *n) {
    const gpu_launch *l = &n->launch;
    if (n->event) return n->event->ms = clock_ms(), 0;
    void *shared = malloc(l->shared_bytes + 1);
    if (!shared) return NO_MEMORY;
    for (int x = 0; x < (int)l->grid[0]; x++)
        for (int y = 0; y < (int)l->grid[1]; y++) {
            memset(shared, 0xff, l->shared_bytes);
            ((const host_function *)l->function)->run(l->arguments, (host_block){x, y, shared});
        }
    free(shared);
    return 0;
}

static int append(graph *g, const node *n) {
    node *nodes = realloc(g->nodes, (g->count + 1) * sizeof *nodes);
    void *arguments = n->event ? NULL : malloc(n->launch.bytes);
    if (nodes) g->nodes = nodes;
    if (!nodes || (!n->event && !arguments)) return free(arguments), NO_MEMORY;
    if (arguments) memcpy(arguments, n->launch.arguments, n->launch.bytes);
    nodes[g->count] = *n;
    nodes[g->count++].launch.arguments = arguments;
    return 0;
}

static int issue(stream *s, const node *n) { return s->capturing ? append(s->capturing, n) : run(n); }

static int launch(const gpu_driver *driver, const gpu_launch *l, void *stream) {
    int threads = (int)(l->block[0] * l->block[1] * l->block[2]);
    (void)driver;
    if (!l->function || !l->grid[0] || !l->grid[1] || l->grid[2] != 1 || threads != 1) return WRONG;
    if (l->cluster > 1 || l->together || l->shared_bytes > HOST_SHARED_BYTES) return WRONG;
    return issue(stream, &(node){.launch = *l});
}

static int stream_create(const gpu_driver *driver, void **out) {
    return (void)driver, take(out, sizeof(stream));
}
static int event_create(const gpu_driver *driver, void **out) {
    return (void)driver, take(out, sizeof(event));
}
static int event_record(const gpu_driver *driver, void *event, void *stream, int in_graph) {
    const struct stream *s = stream;
    (void)driver;
    return in_graph == !!s->capturing ? issue(stream, &(node){.event = event}) : WRONG;
}
static int event_wait(const gpu_driver *driver, void *event) { return (void)driver, (void)event, 0; }
static int event_elapsed(const gpu_driver *driver, float *ms, void *start, void *end) {
    return (void)driver, *ms = (float)(((event *)end)->ms - ((event *)start)->ms), 0;
}

static int capture_begin(const gpu_driver *driver, void *stream) {
    struct stream *s = stream;
    void *graph;
    (void)driver;
    if (s->capturing) return WRONG;
    int code = take(&graph, sizeof(struct graph));
    if (!code) s->capturing = graph;
    return code;
}
static int capture_end(const gpu_driver *driver, void *stream, void **graph) {
    struct stream *s = stream;
    (void)driver;
    *graph = s->capturing;
    s->capturing = NULL;
    return *graph ? 0 : WRONG;
}
static int graph_nodes(const gpu_driver *driver, void *graph, size_t *count) {
    return (void)driver, *count = ((struct graph *)graph)->count, 0;
}
static int graph_destroy(const gpu_driver *driver, void *graph) {
    struct graph *g = graph;
    for (size_t i = 0; i < g->count; i++) free((void *)(uintptr_t)g->nodes[i].launch.arguments);
    free(g->nodes);
    return give(driver, g);
}
/* A copy: what it is made from may go. */
static int graph_instantiate(const gpu_driver *driver, void **exec, void *graph) {
    const struct graph *from = graph;
    int code = take(exec, sizeof(struct graph));
    (void)driver;
    for (size_t i = 0; i < from->count && !code; i++) code = append(*exec, &from->nodes[i]);
    return code;
}
static int graph_upload(const gpu_driver *driver, void *exec, void *stream) {
    return (void)driver, (void)exec, (void)stream, 0;
}
static int graph_launch(const gpu_driver *driver, void *exec, void *stream) {
    const graph *g = exec;
    int code = settle();
    (void)driver, (void)stream;
    atomic_fetch_add(&replays, 1);
    for (size_t i = 0; i < g->count && !code; i++) code = run(&g->nodes[i]);
    return code;
}

/* ---- modules: an image's functions by their names ------------------------------------------------------ */

static int module_load(const gpu_driver *driver, void **module, const void *image) {
    int code = take(module, sizeof image);
    (void)driver;
    if (!code) memcpy(*module, &image, sizeof image);
    return code;
}
static int module_function(const gpu_driver *driver, void **function, void *module, const gpu_kernel *kernel,
                           size_t shared_bytes) {
    const host_function *f = *(const host_function **)module;
    (void)driver;
    while (f->name && strcmp(f->name, kernel->name)) f++;
    *function = (void *)(uintptr_t)f;
    return f->name && shared_bytes <= HOST_SHARED_BYTES && !kernel->wide ? 0 : WRONG;
}

void host_driver_open(gpu_driver *driver) {
    *driver = (gpu_driver){
        .close = close_driver,
        .error_class = error_class,
        .error_text = error_text,
        .device_count = device_count,
        .context_open = context_open,
        .context_close = context_close,
        .enter = enter,
        .memory_info = memory_info,
        .allocate = allocate,
        .release = release,
        .allocate_host = allocate_host,
        .release_host = release_host,
        .upload = upload,
        .copy_rows = copy_rows,
        .download = download,
        .fill = fill,
        .stream_create = stream_create,
        .stream_destroy = give,
        .stream_wait = stream_wait,
        .event_create = event_create,
        .event_destroy = give,
        .event_record = event_record,
        .event_wait = event_wait,
        .event_elapsed = event_elapsed,
        .module_load = module_load,
        .module_unload = give,
        .module_function = module_function,
        .launch = launch,
        .capture_begin = capture_begin,
        .capture_end = capture_end,
        .graph_nodes = graph_nodes,
        .graph_destroy = graph_destroy,
        .graph_instantiate = graph_instantiate,
        .graph_upload = graph_upload,
        .graph_launch = graph_launch,
        .graph_exec_destroy = graph_destroy,
    };
    take(&driver->library, 1);
}
