#include "fake_gpu.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIZE_BYTES = 64, FRESH = 0xcd };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- calls --------------------------------------------------------------------------------------------- */

int fake_begin(const char *function, int reaches_device) {
    pthread_mutex_lock(&lock);
    if (reaches_device && fake_state->lost) return FAKE_LAUNCH_FAILED;
    if (strcmp(function, fake_state->failing) || fake_state->after-- > 0) return 0;
    fake_state->failing[0] = 0;
    return fake_state->code;
}

int fake_end(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

int fake_take(void **out, size_t bytes) {
    *out = calloc(1, bytes);
    if (!*out) return FAKE_OUT_OF_MEMORY;
    fake_state->alive++;
    return 0;
}

int fake_give(void *thing) {
    if (!thing) return FAKE_INVALID;
    free(thing);
    fake_state->alive--;
    return 0;
}

/* ---- memory: a block's size stands before it ----------------------------------------------------------- */

int fake_allocate(void **memory, size_t bytes) {
    void *block;
    if (bytes > fake_state->memory_bytes - fake_state->bytes || fake_take(&block, bytes + SIZE_BYTES))
        return FAKE_OUT_OF_MEMORY;
    memset(block, FRESH, bytes + SIZE_BYTES);
    memcpy(block, &bytes, sizeof bytes);
    fake_state->bytes += bytes;
    *memory = (char *)block + SIZE_BYTES;
    return 0;
}

int fake_release(void *memory) {
    char *block = (char *)memory - SIZE_BYTES;
    size_t bytes;
    if (!memory) return 0;
    memcpy(&bytes, block, sizeof bytes);
    fake_state->bytes -= bytes;
    return fake_give(block);
}

int fake_copy(const fake_stream *stream, void *to, const void *from, size_t bytes) {
    const int code = fake_not_capturing(stream);
    if (!code) memcpy(to, from, bytes);
    return code;
}

int fake_copy_rows(const fake_stream *stream, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                   size_t bytes, size_t rows) {
    const int code = fake_not_capturing(stream);
    for (size_t row = 0; !code && row < rows; row++)
        memcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, bytes);
    return code;
}

int fake_fill(const fake_stream *stream, void *to, int value, size_t bytes) {
    const int code = fake_not_capturing(stream);
    if (!code) memset(to, value, bytes);
    return code;
}

/* ---- streams and graphs -------------------------------------------------------------------------------- */

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int run(const fake_node *n) {
    if (n->event) return n->event->ms = now_ms(), 0;
    const char *trouble = fake_run_kernel(&n->launch);
    fake_state->launches++;
    if (!trouble) return 0;
    snprintf(fake_state->trouble, sizeof fake_state->trouble, "%s", trouble);
    fprintf(stderr, "%s: %s\n", fake_name, trouble);
    fake_state->lost = 1;
    return FAKE_LAUNCH_FAILED;
}

static void free_node(fake_node *n) {
    if (n) free(n->arguments);
    free(n);
}

/* A copy of its own. */
static fake_node *copy_node(const fake_node *from) {
    size_t bytes = from->launch.argument_bytes;
    fake_node *n = malloc(sizeof *n);
    void *arguments = bytes ? malloc(bytes) : NULL;
    if (!n || (bytes && !arguments)) return free(n), free(arguments), NULL;
    *n = *from;
    if (bytes) memcpy(arguments, from->launch.arguments, bytes);
    n->launch.arguments = n->arguments = arguments;
    return n;
}

int fake_append(fake_graph *g, const fake_node *from, fake_node **out) {
    fake_node *copy = copy_node(from), **nodes = realloc(g->nodes, (g->count + 1) * sizeof *nodes);
    if (nodes) g->nodes = nodes;
    if (!copy || !nodes) return free_node(copy), FAKE_OUT_OF_MEMORY;
    nodes[g->count++] = *out = copy;
    return 0;
}

int fake_do(fake_stream *stream, const fake_node *node) {
    fake_node *added;
    if (!stream->capturing) return run(node);
    int code = fake_append(stream->capturing, node, &added);
    if (!code) stream->last = added;
    return code;
}

int fake_free_graph(fake_graph *g) {
    if (!g) return FAKE_INVALID;
    for (size_t i = 0; i < g->count; i++) free_node(g->nodes[i]);
    free(g->nodes);
    return fake_give(g);
}

int fake_not_capturing(const fake_stream *s) { return s->capturing ? FAKE_CAPTURE_UNSUPPORTED : 0; }

int fake_capture_begin(fake_stream *s) {
    if (s->capturing) return FAKE_INVALID;
    s->last = NULL;
    return fake_take((void **)&s->capturing, sizeof *s->capturing);
}

int fake_capture_end(fake_stream *s, void **graph) {
    if (!s->capturing) return FAKE_INVALID;
    /* A node that nothing follows in this stream would be lost. */
    int whole = !s->capturing->count || s->last == s->capturing->nodes[s->capturing->count - 1];
    *graph = s->capturing;
    s->capturing = NULL;
    return whole ? 0 : FAKE_INVALID;
}

int fake_instantiate(fake_graph **to, const fake_graph *from) {
    fake_node *added;
    int code = fake_take((void **)to, sizeof **to);
    for (size_t i = 0; !code && i < from->count; i++)
        if ((code = fake_append(*to, from->nodes[i], &added))) fake_free_graph(*to);
    return code;
}

int fake_replay(const fake_stream *stream, const fake_graph *g) {
    int code = fake_not_capturing(stream);
    fake_state->replays++;
    for (size_t i = 0; !code && i < g->count; i++) code = run(g->nodes[i]);
    return code;
}
