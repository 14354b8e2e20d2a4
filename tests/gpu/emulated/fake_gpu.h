/* What the fake driver libraries of emulated GPUs share: a device's memory is the host's, streams do
 * everything at once, a graph is a list of launches, copies of their arguments, and events. */
#ifndef TESTS_GPU_EMULATED_FAKE_GPU_H
#define TESTS_GPU_EMULATED_FAKE_GPU_H

#include <stddef.h>

/* What a test may ask of such a library and set. The library has it as a symbol. */
typedef struct fake_gpu {
    int devices, version;
    char architecture[64];
    size_t memory_bytes;
    /* The function of this name fails with `code` when it has been called `after` times more; "": none. */
    char failing[64];
    int after, code;
    int multiprocessors;                   /* the CUDA device's                                             */
    int held;                              /* blocks of a grid that waits, on a multiprocessor              */
    int lost;                              /* 1: every function that reaches the device fails               */
    int alive;                             /* what was made and not given back                              */
    size_t bytes;                          /* device memory in it                                           */
    int launches, replays;
    char trouble[300];                     /* what a kernel did wrong; "": nothing                          */
    void (*set_fault)(int fault, int n);   /* a fault of the machine (emulation.h); NULL: it has none       */
} fake_gpu;

/* ---- for the libraries --------------------------------------------------------------------------------- */

/* Numbers of errors, which CUDA and HIP have in common. */
enum {
    FAKE_INVALID = 1, FAKE_OUT_OF_MEMORY = 2, FAKE_NO_BINARY = 209, FAKE_NOT_FOUND = 500,
    FAKE_LAUNCH_FAILED = 719, FAKE_CAPTURE_UNSUPPORTED = 900
};

typedef struct fake_launch {
    const void *kernel;
    unsigned grid[3], block[3];
    size_t shared_bytes;
    const void *arguments;
    size_t argument_bytes;
    int together;                          /* 1: all blocks are alive at once                               */
} fake_launch;

typedef struct fake_event {
    double ms;
} fake_event;

/* A launch, or an event that is recorded. */
typedef struct fake_node {
    fake_launch launch;
    void *arguments;
    fake_event *event;
} fake_node;

typedef struct fake_graph {
    fake_node **nodes;
    size_t count;
} fake_graph;

typedef struct fake_stream {
    fake_graph *capturing;
    fake_node *last;                       /* that the next node follows                                   */
} fake_stream;

/* A library says what it is: its state, its name in messages, and how a kernel runs (NULL, or what went
 * wrong). */
extern fake_gpu *const fake_state;
extern const char fake_name[];
const char *fake_run_kernel(const fake_launch *launch);

/* 0, or what a call of this name has to fail with. Every call holds the lock while it works. */
int fake_begin(const char *function, int reaches_device);
int fake_end(int code);
#define FAKE_CALL(function, reaches_device)                      \
    do {                                                         \
        int code_ = fake_begin(function, reaches_device);        \
        if (code_) return fake_end(code_);                       \
    } while (0)

/* All of these are called between the two. */
int fake_take(void **out, size_t bytes);
int fake_give(void *thing);
int fake_allocate(void **memory, size_t bytes);
int fake_release(void *memory);
int fake_copy(const fake_stream *stream, void *to, const void *from, size_t bytes);
int fake_copy_rows(const fake_stream *stream, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                   size_t bytes, size_t rows);
int fake_fill(const fake_stream *stream, void *to, int value, size_t bytes);

/* While a stream is captured nothing else may be asked of it. */
int fake_not_capturing(const fake_stream *stream);
int fake_capture_begin(fake_stream *stream);
int fake_capture_end(fake_stream *stream, void **graph);
int fake_append(fake_graph *graph, const fake_node *node, fake_node **out);
/* In the graph that is captured, else at once. */
int fake_do(fake_stream *stream, const fake_node *node);
int fake_instantiate(fake_graph **to, const fake_graph *from);
int fake_replay(const fake_stream *stream, const fake_graph *graph);
int fake_free_graph(fake_graph *graph);

#endif
