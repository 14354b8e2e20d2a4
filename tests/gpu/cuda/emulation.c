#define _GNU_SOURCE                        /* dladdr, dl_iterate_phdr                                      */
#include "emulation.h"

#include <dlfcn.h>
#include <link.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/cuda/attention/attention_joined.h"
#include "backend/gpu/cuda/product/int8.h"
#include "backend/gpu/cuda/product/join_norm.h"
#include "backend/gpu/cuda/product/some.h"
#include "backend/gpu/cuda/resident/portable/resident_mma.h"
#include "backend/gpu/kernels/args.h"
#include "backend/gpu/kernels/generate.h"
#include "backend/gpu/kernels/guide.h"
#include "backend/gpu/kernels/linear_parts.h"
#include "fiber.h"

enum { WARPS = EMU_MOST_THREADS / EMU_WARP, MOST_COPIES = 512, WATCHED_BYTES = 4096, POISON = 0xff };

/* ---- shared memory ------------------------------------------------------------------------------------- */

/* The launch's, and behind it what no thread may write. */
static _Thread_local char emu_dynamic[EMU_MOST_SHARED + WATCHED_BYTES] __attribute__((aligned(1024)));
#define X(name)                                                                                            \
    extern _Thread_local char name[EMU_MOST_SHARED + WATCHED_BYTES]                                        \
        __attribute__((alias("emu_dynamic"), visibility("hidden")));
EMU_DYNAMIC_NAMES(X)
#undef X

/* ---- a block ------------------------------------------------------------------------------------------- */

/* Where a fiber waits. */
typedef enum stop_kind {
    STOP_END, STOP_COUNT, STOP_GROUP, STOP_BLOCK, STOP_WARP, STOP_SHUFFLE, STOP_MOST, STOP_LOAD, STOP_MMA,
    STOP_MMA_INT8
} stop_kind;

typedef struct copy {
    uint32_t to;
    int there, group;
    const void *from;
} copy;

typedef struct thread {
    emu_place place;
    fiber fiber;
    int index;
    stop_kind stop;
    const char *file;
    int line;
    uint32_t mask;                         /* STOP_GROUP: which barrier                                    */
    const void *in;
    void *out;
    uint64_t target;                       /* STOP_COUNT: of the count at `in`; STOP_GROUP: threads        */
    copy copies[MOST_COPIES];              /* that were issued and not waited for                          */
    int copy_count, group;                 /* group: of the next copy                                      */
    int barriers;                          /* __syncthreads() so far                                       */
} thread;

typedef struct block {
    thread *threads;
    uint32_t ready[WARPS];                 /* lanes that do not wait                                       */
    int backward[WARPS];                   /* in which order its lanes run                                 */
    int warps_backward;
    char *shared;                          /* its memory, while another block runs                         */
} block;

/* All of a launch. */
static struct {
    block blocks[EMU_MOST_TOGETHER];       /* a launch whose blocks do not wait for each other has one     */
    block *block;                          /* which runs                                                   */
    int together;                          /* blocks that are alive at once                                */
    thread *now;
    void *launcher;                        /* its stack pointer                                            */
    const emu_kernel *kernel;
    const emu_launch *launch;
    int count, warps;
    uint32_t draw;
    char *segment;                         /* all thread-local memory of this library                      */
    size_t segment_bytes;
    emu_fault fault;
    int fault_at;
    char failure[400];
} emu = {.draw = 1};

const emu_place *emu_now;

/* 0 or 1, drawn. */
static int drawn(void) {
    emu.draw = emu.draw * 1664525 + 1013904223;
    return (int)(emu.draw >> 31);
}

/* To the launcher, from a kernel that failed. */
static void give_up(void) {
    void *never;
    fiber_switch(&never, emu.launcher);
}

/* Note: a sanitizer takes the stack of a caller for the thread's where the compiler sees that this never
 * returns; it does not see it through here. */
static void (*volatile leave)(void) = give_up;

static const char *short_name(const char *file) {
    const char *name = strrchr(file, '/');
    return name ? name + 1 : file;
}

static void fail_at(const char *file, int line, const char *what) {
    const emu_place *p = &emu.now->place;
    snprintf(emu.failure, sizeof emu.failure, "%s: %s:%d, block %u·%u, thread %d: %s", emu.kernel->name,
             short_name(file), line, p->block.x, p->block.y, emu.now->index, what);
    leave();
}

/* ---- the order of things ------------------------------------------------------------------------------- */

static void run_collective(thread *warp, const thread *first);

static thread *warp_of(int w) { return emu.block->threads + w * EMU_WARP; }

static thread *first_ready(int w) {
    const uint32_t ready = emu.block->ready[w];
    return warp_of(w) + (emu.block->backward[w] ? 31 - __builtin_clz(ready) : __builtin_ctz(ready));
}

static void all_ready(int w, uint32_t mask) {
    emu.block->ready[w] = mask;
    emu.block->backward[w] = drawn();
}

static void fail_apart(const thread *a, const thread *b) {
    static const char *const names[] = {
        "has ended", "waits for a count", "waits for a group", "waits for the block",
        "waits for its warp", "shuffles", "reduces", "loads matrices", "multiplies matrices"};
    char what[300];
    snprintf(what, sizeof what, "divergence: thread %d %s (%s:%d), thread %d %s (%s:%d)", a->index,
             names[a->stop], short_name(a->file), a->line, b->index, names[b->stop], short_name(b->file),
             b->line);
    fail_at(a->stop ? a->file : b->file, a->stop ? a->line : b->line, what);
}

static int together(const thread *a, const thread *b) {
    return a->stop == b->stop && a->mask == b->mask && a->line == b->line &&
           (a->file == b->file || !strcmp(a->file, b->file));
}

/* No lane of the warp is ready. Those that wait for each other go on; 0: all wait for the block or ended. */
static int go_on(int w) {
    thread *warp = warp_of(w), *first = NULL;
    for (int l = 0; l < EMU_WARP && !first; l++)
        if (warp[l].stop > STOP_BLOCK) first = warp + l;
    if (!first) return 0;
    for (int l = 0; l < EMU_WARP; l++)
        if (first->mask >> l & 1 && !together(first, warp + l)) fail_apart(first, warp + l);
    run_collective(warp, first);
    all_ready(w, first->mask);
    return 1;
}

/* All warps wait. 0: the block has ended. Threads that ended are not waited for. */
static int pass_block(void) {
    thread *first = NULL;
    for (int t = 0; t < emu.count; t++) {
        thread *one = emu.block->threads + t;
        if (one->stop == STOP_END) continue;
        if (!first) first = one;
        if (!together(first, one)) fail_apart(first, one);
        emu.block->ready[t / EMU_WARP] |= 1u << t % EMU_WARP;
    }
    for (int w = 0; w < emu.warps; w++) emu.block->backward[w] = drawn();
    emu.block->warps_backward = drawn();
    return first != NULL;
}

/* All warps wait, some of them for a group: those that are all there go on. 0: none waits for one. */
static int pass_groups(void) {
    const thread *waits = NULL;
    int passed = 0;
    for (int t = 0; t < emu.count; t++) {
        const thread *one = emu.block->threads + t;
        uint64_t there = 0;
        if (one->stop != STOP_GROUP) continue;
        waits = one;
        for (int u = 0; u < emu.count; u++) {
            const thread *other = emu.block->threads + u;
            if (other->stop != STOP_GROUP || other->mask != one->mask) continue;
            if (!together(one, other)) fail_apart(one, other);
            there++;
        }
        if (there != one->target) continue;
        emu.block->ready[t / EMU_WARP] |= 1u << t % EMU_WARP;
        passed = 1;
    }
    if (waits && !passed) fail_at(waits->file, waits->line, "a group that is never whole");
    return passed;
}

static thread *other_warp(void) {
    for (int i = 0; i < emu.warps; i++) {
        const int w = emu.block->warps_backward ? emu.warps - 1 - i : i;
        if (emu.block->ready[w]) return first_ready(w);
    }
    return NULL;
}

/* ---- blocks that wait for each other ------------------------------------------------------------------- */

/* Threads that wait for a count; those whose count is there go on. */
static int look_at_counts(void) {
    int waiting = 0;
    for (int t = 0; t < emu.count; t++) {
        const thread *one = emu.block->threads + t;
        const uint32_t lane = 1u << t % EMU_WARP;
        if (one->stop != STOP_COUNT || emu.block->ready[t / EMU_WARP] & lane) continue;
        waiting++;
        if (*(const uint64_t *)one->in >= one->target) emu.block->ready[t / EMU_WARP] |= lane;
    }
    return waiting;
}

static int has_ended(const block *b) {
    for (int t = 0; t < emu.count; t++)
        if (b->threads[t].stop != STOP_END || b->ready[t / EMU_WARP] >> t % EMU_WARP & 1) return 0;
    return 1;
}

static size_t segment_used(void) {
    return (size_t)(emu_dynamic - emu.segment) + emu.launch->shared_bytes + WATCHED_BYTES;
}

/* What stands behind the launch's memory belongs to the kernels. */
static void copy_shared(char *to, char *from) {
    const size_t used = segment_used(), after = (size_t)(emu_dynamic - emu.segment) + sizeof emu_dynamic;
    memcpy(to, from, used);
    memcpy(to + after, from + after, emu.segment_bytes - after);
}

static void go_to_block(block *b) {
    if (b == emu.block) return;
    copy_shared(emu.block->shared, emu.segment);
    copy_shared(emu.segment, b->shared);
    emu.block = b;
}

/* The block can go no further. A thread of another one, drawn; NULL: all have ended. */
static thread *other_block(void) {
    int waiting = 0;
    emu.draw = emu.draw * 1664525 + 1013904223;
    for (int i = 0; i < emu.together; i++) {
        block *b = &emu.blocks[(i + (int)(emu.draw >> 16)) % emu.together];
        if (has_ended(b)) continue;
        go_to_block(b);
        look_at_counts();
        thread *next = other_warp();
        if (next) return next;
        waiting++;
    }
    if (waiting) fail_at(emu.now->file, emu.now->line, "all blocks wait for each other");
    return NULL;
}

/* Who runs after the thread that has just stopped; NULL: the block has ended. */
static thread *next_after(const thread *t) {
    const int w = t->index / EMU_WARP;
    emu.block->ready[w] &= ~(1u << t->index % EMU_WARP);
    if (emu.block->ready[w] || go_on(w)) return first_ready(w);
    thread *next = other_warp();
    if (!next && (look_at_counts() || pass_groups() || pass_block())) next = other_warp();
    return next || emu.together < 2 ? next : other_block();
}

static void stop(stop_kind kind, uint32_t mask, const char *file, int line, const void *in, void *out) {
    thread *me = emu.now;
    me->stop = kind;
    me->mask = mask;
    me->file = file;
    me->line = line;
    me->in = in;
    me->out = out;
    if (kind > STOP_BLOCK && !(mask >> me->index % EMU_WARP & 1))
        fail_at(file, line, "the mask does not have the thread that names it");
    thread *next = next_after(me);
    emu.now = next;
    emu_now = next ? &next->place : NULL;
    if (next != me) fiber_switch(&me->fiber.stack_pointer, next ? next->fiber.stack_pointer : emu.launcher);
}

static void run_thread(void) {
    emu.kernel->run(emu.kernel->function, emu.launch->arguments);
    stop(STOP_END, 0, "", 0, NULL, NULL);  /* which does not return                                        */
}

/* ---- collectives --------------------------------------------------------------------------------------- */

typedef struct shuffle_in {
    uint32_t x;
    int from;
} shuffle_in;

typedef struct load_in {
    int matrices, transposed;
    uint32_t at;
} load_in;

typedef struct mma_in {
    const uint32_t *a, *b;
    int k;
} mma_in;

static void run_shuffle(thread *warp, uint32_t mask) {
    for (int l = 0; l < EMU_WARP; l++) {
        if (!(mask >> l & 1)) continue;
        const int from = ((const shuffle_in *)warp[l].in)->from;
        if (!(mask >> from & 1)) fail_at(warp[l].file, warp[l].line, "a shuffle from a lane beside the mask");
        const thread *of = warp + (emu.fault == EMU_SWAPPED_LANES ? from ^ 1 : from);
        *(uint32_t *)warp[l].out = ((const shuffle_in *)of->in)->x;
    }
}

static void run_most(thread *warp, uint32_t mask) {
    int most = INT32_MIN;
    for (int l = 0; l < EMU_WARP; l++)
        if (mask >> l & 1 && *(const int *)warp[l].in > most) most = *(const int *)warp[l].in;
    for (int l = 0; l < EMU_WARP; l++)
        if (mask >> l & 1) *(int *)warp[l].out = most;
}

/* Lanes 8·m … 8·m + 7 say where the rows of matrix m are. Of each, lane l gets numbers 2·(l % 4) and the next
 * of row l / 4; transposed, of column l / 4. */
static void run_load(thread *warp) {
    const load_in *in = warp->in;
    const uint32_t wrong = emu.fault == EMU_WRONG_SWIZZLE ? 16 : 0;
    for (int m = 0; m < in->matrices; m++) {
        const uint16_t *rows[8];
        for (int r = 0; r < 8; r++) {
            const thread *t = warp + 8 * m + r;
            rows[r] = emu_shared(((const load_in *)t->in)->at ^ wrong, 16, t->file, t->line);
        }
        for (int l = 0; l < EMU_WARP; l++) {
            const int i = l / 4, j = l % 4 * 2;
            const uint16_t low = in->transposed ? rows[j][i] : rows[i][j],
                           high = in->transposed ? rows[j + 1][i] : rows[i][j + 1];
            ((uint32_t *)warp[l].out)[m] = low | (uint32_t)high << 16;
        }
    }
}

static float number(uint32_t pair, int high) {
    const uint32_t bits = high ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Lane l = 4g + t holds of A rows g and g + 8, of B column g, of both k = 2t, 2t + 1 and these + 8; of the
 * result rows g and g + 8, columns 2t and 2t + 1. */
static void run_mma(thread *warp) {
    static float a[16][16], b[16][8], d[16][8];
    const int k = ((const mma_in *)warp->in)->k;
    for (int l = 0; l < EMU_WARP; l++) {
        const mma_in *in = warp[l].in;
        const float *c = warp[l].out;
        const int g = l / 4, t = l % 4 * 2;
        for (int h = 0; h < 2; h++) {
            for (int s = 0; s < k / 8; s++) {
                a[8 * s + t + h][g] = number(in->a[2 * s], h);
                a[8 * s + t + h][g + 8] = number(in->a[2 * s + 1], h);
                b[8 * s + t + h][g] = number(in->b[s], h);
            }
            d[g][t + h] = c[h];
            d[g + 8][t + h] = c[2 + h];
        }
    }
    for (int row = 0; row < 16; row++)
        for (int i = 0; i < k; i++)
            for (int j = 0; j < 8; j++) d[row][j] += a[i][row] * b[i][j];
    for (int l = 0; l < EMU_WARP; l++) {
        float *c = warp[l].out;
        const int g = l / 4, t = l % 4 * 2;
        const int row = emu.fault == EMU_WRONG_ROWS ? g + 8 : g;
        c[0] = d[row][t], c[1] = d[row][t + 1], c[2] = d[row ^ 8][t], c[3] = d[row ^ 8][t + 1];
    }
}

/* As run_mma's numbers, but four of 8 bits in a register: k 4t … 4t + 3 and these + 16. */
static void run_mma_int8(thread *warp) {
    static int8_t a[16][32], b[8][32];
    for (int l = 0; l < EMU_WARP; l++) {
        const mma_in *in = warp[l].in;
        const int g = l / 4, t = l % 4 * 4;
        for (int s = 0; s < 2; s++) {
            memcpy(&a[g][16 * s + t], &in->a[2 * s], 4);
            memcpy(&a[g + 8][16 * s + t], &in->a[2 * s + 1], 4);
            memcpy(&b[g][16 * s + t], &in->b[s], 4);
        }
    }
    for (int l = 0; l < EMU_WARP; l++) {
        int32_t *c = warp[l].out;
        const int row = emu.fault == EMU_WRONG_ROWS ? l / 4 + 8 : l / 4, column = l % 4 * 2;
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 32; k++) c[i] += a[i / 2 ? row ^ 8 : row][k] * b[column + i % 2][k];
    }
}

static void run_collective(thread *warp, const thread *first) {
    if (first->stop >= STOP_LOAD && first->mask != UINT32_MAX)
        fail_at(first->file, first->line, "a matrix instruction without the whole warp");
    if (first->stop == STOP_SHUFFLE) run_shuffle(warp, first->mask);
    if (first->stop == STOP_MOST) run_most(warp, first->mask);
    if (first->stop == STOP_LOAD) run_load(warp);
    if (first->stop == STOP_MMA) run_mma(warp);
    if (first->stop == STOP_MMA_INT8) run_mma_int8(warp);
}

void emu_block_wait(const char *file, int line) {
    if (emu.fault == EMU_SKIPPED_BARRIER && emu.now->barriers++ == emu.fault_at) return;
    stop(STOP_BLOCK, 0, file, line, NULL, NULL);
}
void emu_group_wait(int id, int threads, const char *file, int line) {
    emu.now->target = (uint64_t)threads;
    if (emu.fault == EMU_SKIPPED_BARRIER && emu.now->barriers++ == emu.fault_at) return;
    stop(STOP_GROUP, (uint32_t)id, file, line, NULL, NULL);
}
void emu_warp_wait(uint32_t mask, const char *file, int line) {
    stop(STOP_WARP, mask, file, line, NULL, NULL);
}
uint32_t emu_shuffle(uint32_t mask, uint32_t x, int from, const char *file, int line) {
    const shuffle_in in = {x, from};
    uint32_t out;
    stop(STOP_SHUFFLE, mask, file, line, &in, &out);
    return out;
}
int emu_most(uint32_t mask, int x, const char *file, int line) {
    int out;
    stop(STOP_MOST, mask, file, line, &x, &out);
    return out;
}
void emu_load_matrix(uint32_t *r, int matrices, int transposed, uint32_t at, const char *file, int line) {
    const load_in in = {matrices, transposed, at};
    stop(STOP_LOAD, UINT32_MAX, file, line, &in, r);
}
void emu_await(const uint64_t *count, uint64_t target, const char *file, int line) {
    emu.now->target = target;
    if (emu.together < 2) fail_at(file, line, "a wait for other blocks, which need not be alive");
    if (*count < target) stop(STOP_COUNT, 0, file, line, count, NULL);
}
void emu_mma(float *c, const uint32_t *a, const uint32_t *b, int k, const char *file, int line) {
    const mma_in in = {a, b, k};
    stop(STOP_MMA, UINT32_MAX, file, line, &in, c);
}
void emu_mma_int8(int32_t *c, const uint32_t *a, const uint32_t *b, const char *file, int line) {
    const mma_in in = {a, b, 32};
    stop(STOP_MMA_INT8, UINT32_MAX, file, line, &in, c);
}

/* ---- addresses in shared memory, copies into it -------------------------------------------------------- */

uint32_t emu_shared_address(const void *p) { return (uint32_t)((const char *)p - emu.segment); }

void *emu_shared(uint32_t at, uint32_t bytes, const char *file, int line) {
    const size_t begin = (size_t)(emu_dynamic - emu.segment), size = emu.launch->shared_bytes,
                 all = begin + sizeof emu_dynamic;
    /* The launch's, or the kernel's own, which lies before or behind it. */
    const int of_launch = at >= begin && at < all,
              inside = of_launch ? at - begin + bytes <= size : at + bytes <= emu.segment_bytes;
    char what[160];
    if (!inside || at % bytes) {
        snprintf(what, sizeof what, "%u bytes at %ld of shared memory, which has %zu", bytes,
                 (long)at - (long)begin, size);
        fail_at(file, line, what);
    }
    return emu.segment + at;
}

void emu_copy16(uint32_t to, const void *from, int there, const char *file, int line) {
    thread *me = emu.now;
    memset(emu_shared(to, 16, file, line), POISON, 16);
    if (there && (uintptr_t)from % 16) fail_at(file, line, "a copy from an address that is not aligned");
    if (me->copy_count == MOST_COPIES) fail_at(file, line, "more copies on their way than fit here");
    me->copies[me->copy_count++] = (copy){to, there, me->group, from};
}

void emu_copy_commit(void) { emu.now->group++; }

/* All groups but the last `left` that were committed. */
void emu_copy_wait(int left) {
    thread *me = emu.now;
    int kept = 0;
    left += emu.fault == EMU_EARLY_COPIES;
    for (int i = 0; i < me->copy_count; i++) {
        const copy *c = &me->copies[i];
        if (c->group >= me->group - left) me->copies[kept++] = *c;
        else if (c->there) memcpy(emu.segment + c->to, c->from, 16);
        else memset(emu.segment + c->to, 0, 16);
    }
    me->copy_count = kept;
}

/* ---- launches ------------------------------------------------------------------------------------------ */

#define X(type)                                                                                           \
    static void run_##type(void (*function)(void), const void *arguments) {                              \
        ((void (*)(type))function)(*(const type *)arguments);                                             \
    }
EMU_ARGUMENTS(X)
#undef X

static const struct {
    const char *name;
    size_t bytes;
    void (*run)(void (*function)(void), const void *arguments);
} types[] = {
#define X(type) {#type, sizeof(type), run_##type},
    EMU_ARGUMENTS(X)
#undef X
};

/* This library, or the program that it is in. */
static void *self(void) {
    static void *handle;
    Dl_info info;
    if (!handle && dladdr((void *)(uintptr_t)&emu_now, &info))
        handle = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!handle) handle = dlopen(NULL, RTLD_NOW);
    return handle;
}

static emu_kernel *look_up(const char *name) {
    char symbol[160];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        snprintf(symbol, sizeof symbol, "_Z%zu%s%zu%s", strlen(name), name, strlen(types[i].name),
                 types[i].name);
        void *address = dlsym(self(), symbol);
        emu_kernel *k = address ? calloc(1, sizeof *k) : NULL;
        if (!k) continue;
        snprintf(k->name, sizeof k->name, "%s", name);
        memcpy(&k->function, &address, sizeof address);
        k->run = types[i].run;
        k->bytes = types[i].bytes;
        return k;
    }
    return NULL;
}

const emu_kernel *emu_find(const char *name) {
    static emu_kernel *kernels;
    emu_kernel *k = kernels;
    while (k && strcmp(k->name, name)) k = k->next;
    if (k || !(k = look_up(name))) return k;
    k->next = kernels;
    return kernels = k;
}

void emu_set_fault(emu_fault fault, int n) {
    emu.fault = fault;
    emu.fault_at = n;
}

static int find_segment(struct dl_phdr_info *info, size_t bytes, void *unused) {
    (void)bytes, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        char *from = info->dlpi_tls_data;
        const size_t size = info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type != PT_TLS || !from) continue;
        if (emu_dynamic < from || emu_dynamic >= from + size) continue;
        emu.segment = from;
        emu.segment_bytes = size;
        return 1;
    }
    return 0;
}

/* The launch's memory, what is watched behind it, and all memory of kernels. */
static void poison_shared(void) {
    char *after = emu_dynamic + sizeof emu_dynamic;
    memset(emu.segment, POISON, (size_t)(emu_dynamic - emu.segment));
    memset(emu_dynamic, POISON, emu.launch->shared_bytes + WATCHED_BYTES);
    memset(after, POISON, (size_t)(emu.segment + emu.segment_bytes - after));
}

static void look_behind(void) {
    const unsigned char *end = (const unsigned char *)emu_dynamic + emu.launch->shared_bytes;
    for (int i = 0; i < WATCHED_BYTES && !emu.failure[0]; i++)
        if (end[i] != POISON)
            snprintf(emu.failure, sizeof emu.failure,
                     "%s: byte %zu of shared memory was written, the launch has %zu", emu.kernel->name,
                     emu.launch->shared_bytes + (size_t)i, emu.launch->shared_bytes);
}

static void begin_thread(int t, emu_index block) {
    thread *me = &emu.block->threads[t];
    const unsigned *grid = emu.launch->grid, *size = emu.launch->block;
    me->place = (emu_place){{(unsigned)t, 0, 0}, block, {size[0], 1, 1}, {grid[0], grid[1], grid[2]}};
    me->index = t;
    me->copy_count = me->group = me->barriers = 0;
    fiber_prepare(&me->fiber, run_thread);
}

static void begin_block(emu_index block) {
    poison_shared();
    for (int t = 0; t < emu.count; t++) begin_thread(t, block);
    for (int w = 0; w < emu.warps; w++) all_ready(w, UINT32_MAX);
}

static void run_blocks(void) {
    emu.now = other_warp();
    emu_now = &emu.now->place;
    fiber_switch(&emu.launcher, emu.now->fiber.stack_pointer);
    look_behind();
}

static void run_block(emu_index block) {
    begin_block(block);
    run_blocks();
}

static void run_together(void) {
    for (int b = 0; b < emu.together; b++) {
        emu.block = &emu.blocks[b];
        begin_block((emu_index){(unsigned)b, 0, 0});
        if (b < emu.together - 1) copy_shared(emu.block->shared, emu.segment);
    }
    run_blocks();
    for (int b = 0; b < emu.together && !emu.failure[0]; b++) go_to_block(&emu.blocks[b]), look_behind();
}

/* Stacks, threads and shared memory of the blocks. NULL or what is wrong. */
static const char *make_blocks(void) {
    for (int b = 0; b < emu.together; b++) {
        block *to = &emu.blocks[b];
        if (!to->threads) to->threads = calloc(EMU_MOST_THREADS, sizeof *to->threads);
        if (!to->shared && emu.together > 1) to->shared = malloc(emu.segment_bytes);
        if (!to->threads || (emu.together > 1 && !to->shared)) return "no memory for its blocks";
        for (int t = 0; t < emu.count; t++)
            if (!fiber_make(&to->threads[t].fiber)) return "no memory for the stacks of a block";
    }
    emu.block = &emu.blocks[0];
    return NULL;
}

static void forget_marks(void) {
    for (int b = 0; b < emu.together; b++)
        for (int t = 0; t < emu.count; t++) fiber_forget_marks(&emu.blocks[b].threads[t].fiber);
}

static const char *refuse(const emu_launch *l) {
    const unsigned *grid = l->grid, *size = l->block;
    if (size[1] != 1 || size[2] != 1 || !size[0] || size[0] > EMU_MOST_THREADS || size[0] % EMU_WARP)
        return "expected whole warps of at most 1024 threads, in a row";
    if (!grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] > 65535)
        return "expected a grid of 1 to 65535 rows";
    if (l->together && (grid[0] > EMU_MOST_TOGETHER || grid[1] != 1 || grid[2] != 1))
        return "expected a row of fewer blocks that are alive at once";
    return l->shared_bytes > EMU_MOST_SHARED ? "expected less shared memory" : NULL;
}

const char *emu_run(const emu_kernel *kernel, const emu_launch *launch) {
    const char *why = refuse(launch);
    emu.kernel = kernel;
    emu.launch = launch;
    emu.count = (int)launch->block[0];
    emu.warps = emu.count / EMU_WARP;
    emu.failure[0] = emu_dynamic[0] = 0;   /* which makes the memory that the segment is looked for by     */
    emu.together = launch->together ? (int)launch->grid[0] : 1;
    if (!dl_iterate_phdr(find_segment, NULL)) why = "its shared memory was not found";
    if (!why) why = make_blocks();
    if (why) {
        snprintf(emu.failure, sizeof emu.failure, "%s: %s", kernel->name, why);
        return emu.failure;
    }
    if (launch->together) run_together();
    for (unsigned z = 0; z < launch->grid[2] && !launch->together; z++)
        for (unsigned y = 0; y < launch->grid[1]; y++)
            for (unsigned x = 0; x < launch->grid[0] && !emu.failure[0]; x++)
                run_block((emu_index){x, y, z});
    if (emu.failure[0]) forget_marks();
    return emu.failure[0] ? emu.failure : NULL;
}
