#include "emulation.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fiber.h"

/* ---- a block ------------------------------------------------------------------------------------------- */

/* Where a thread waits. */
typedef enum stop_kind { STOP_END, STOP_BLOCK_WAIT, STOP_LANE_FROM, STOP_MMA } stop_kind;

typedef struct thread {
    emu_place place;
    fiber fiber;
    stop_kind stop;
    const char *file;
    int line;
    const void *in;
    void *out;
    int waits;                             /* block_waits so far                                           */
} thread;

/* All of a launch. */
static struct {
    thread all[EMU_MOST_THREADS];
    thread *now;
    void *launcher;                        /* its stack pointer                                            */
    const emu_kernel *kernel;
    const void *arguments;
    int threads;
    uint32_t epoch, block_epoch;           /* the block began in block_epoch                               */
    int gfx950;
    emu_fault fault;
    int fault_at;
    char failure[300];
} emu = {.epoch = 1};

const emu_place *emu_now(void) { return &emu.now->place; }

/* To the launcher, from a kernel that failed. */
static void give_up(void) {
    void *never;
    fiber_switch(&never, emu.launcher);
}

/* Note: a sanitizer takes the stack of a caller for the thread's where the compiler sees that this never
 * returns; it does not see it through here. */
static void (*volatile leave)(void) = give_up;

static void fail_at(const char *file, int line, const char *what) {
    const char *name = strrchr(file, '/');
    snprintf(emu.failure, sizeof emu.failure, "%s: %s:%d, block %d·%d, thread %d: %s", emu.kernel->name,
             name ? name + 1 : file, line, emu.now->place.block[0], emu.now->place.block[1],
             emu.now->place.thread, what);
    leave();
}

/* ---- collectives --------------------------------------------------------------------------------------- */

typedef struct mma_in {
    emu_shape shape;
    const void *a, *b;
} mma_in;
typedef struct lane_in {
    float x;
    int lane;
} lane_in;

static float widen(short bits) {
    uint32_t u = (uint32_t)(uint16_t)bits << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

enum { MOST_M = 32, MOST_K = 32 };

/* Rows (and columns), numbers of an operand that a lane has. */
static const struct {
    int m, numbers, f32, gfx950;
} shapes[EMU_SHAPES] = {
    [EMU_16X16X4_F32] = {16, 1, 1, 0},
    [EMU_16X16X16_BF16] = {16, 4, 0, 0}, [EMU_32X32X8_BF16] = {32, 4, 0, 0},
    [EMU_16X16X32_BF16] = {16, 8, 0, 1}, [EMU_32X32X16_BF16] = {32, 8, 0, 1},
};

int emu_has(emu_shape shape) { return emu.gfx950 || !shapes[shape].gfx950; }

static float number_at(const void *from, int f32, int i) {
    return f32 ? ((const float *)from)[i] : widen(((const short *)from)[i]);
}

/* The row of number r of lane l's result. */
static int result_row(int m, int l, int r) { return 256 / m * (r / 4) + 4 * (l / m) + r % 4; }

static int wrong_row(int m, int l, int r) { return m == 16 ? 4 * (l / m) + 3 - r : 16 * (l / m) + r; }

/* D = C + A·B of a wave; `out` of a lane is both. */
static void run_mma(thread *wave) {
    static float a[MOST_K][MOST_M], b[MOST_K][MOST_M], d[MOST_M][MOST_M];
    emu_shape shape = ((const mma_in *)wave->in)->shape;
    int m = shapes[shape].m, numbers = shapes[shape].numbers, f32 = shapes[shape].f32, results = m * m / 64;
    int wrong = emu.fault == EMU_WRONG_LANES && emu.fault_at == (int)shape;
    for (int l = 0; l < EMU_WAVE; l++) {
        const mma_in *in = wave[l].in;
        for (int i = 0; i < numbers; i++) {
            a[l / m * numbers + i][l % m] = number_at(in->a, f32, i);
            b[l / m * numbers + i][l % m] = number_at(in->b, f32, i);
        }
        for (int r = 0; r < results; r++) d[result_row(m, l, r)][l % m] = ((const float *)wave[l].out)[r];
    }
    for (int k = 0; k < 64 / m * numbers; k++)
        for (int i = 0; i < m; i++)
            for (int j = 0; j < m; j++) d[i][j] += a[k][i] * b[k][j];
    for (int l = 0; l < EMU_WAVE; l++)
        for (int r = 0; r < results; r++)
            ((float *)wave[l].out)[r] = d[wrong ? wrong_row(m, l, r) : result_row(m, l, r)][l % m];
}

static void run_lane_from(thread *wave) {
    for (int l = 0; l < EMU_WAVE; l++) {
        int from = ((const lane_in *)wave[l].in)->lane;
        if (from < 0 || from >= EMU_WAVE)
            fail_at(wave[l].file, wave[l].line, "lane_from asks for a lane beyond 63");
        if (emu.fault == EMU_SWAPPED_LANES) from ^= 1;
        *(float *)wave[l].out = ((const lane_in *)wave[from].in)->x;
    }
}

static void (*const wave_functions[])(thread *wave) = {
    [STOP_LANE_FROM] = run_lane_from,
    [STOP_MMA] = run_mma,
};

/* ---- the order of things ------------------------------------------------------------------------------- */

/* Fails where the two do not wait for the same thing. */
static void same_stop(const thread *a, const thread *b) {
    static const char *const names[] = {"has ended", "waits for the block", "waits for lane_from",
                                        "waits for a matrix instruction"};
    char what[160];
    if (a->stop == b->stop && a->file == b->file && a->line == b->line) return;
    snprintf(what, sizeof what, "divergence: thread %d %s (line %d), thread %d %s (line %d)", a->place.thread,
             names[a->stop], a->line, b->place.thread, names[b->stop], b->line);
    fail_at(b->file, b->line, what);
}

/* Who runs after the thread that has just stopped; NULL: the block has ended. */
static thread *next_after(thread *f) {
    int index = f->place.thread;
    thread *wave = f - index % EMU_WAVE;
    if (index % EMU_WAVE < EMU_WAVE - 1) return f + 1;
    for (int l = 1; l < EMU_WAVE; l++) same_stop(wave, wave + l);
    if (f->stop > STOP_BLOCK_WAIT) {
        wave_functions[f->stop](wave);
        return wave;
    }
    if (index < emu.threads - 1) return f + 1;
    for (int t = EMU_WAVE; t < emu.threads; t += EMU_WAVE) same_stop(emu.all, emu.all + t);
    if (f->stop == STOP_END) return NULL;
    emu.epoch++;
    return emu.all;
}

static void stop(stop_kind kind, const char *file, int line, const void *in, void *out) {
    thread *me = emu.now;
    me->stop = kind;
    me->file = file;
    me->line = line;
    me->in = in;
    me->out = out;
    thread *next = next_after(me);
    emu.now = next;
    if (next != me)
        fiber_switch(&me->fiber.stack_pointer, next ? next->fiber.stack_pointer : emu.launcher);
}

static void run_thread(void) {
    emu.kernel->run(emu.arguments);
    stop(STOP_END, "", 0, NULL, NULL);     /* which does not return                                        */
}

void emu_block_wait(const char *file, int line) {
    if (emu.fault == EMU_SKIPPED_WAIT && emu.now->waits++ == emu.fault_at) return;
    stop(STOP_BLOCK_WAIT, file, line, NULL, NULL);
}

float emu_lane_from(float x, int lane, const char *file, int line) {
    lane_in in = {x, lane};
    float out;
    stop(STOP_LANE_FROM, file, line, &in, &out);
    return out;
}

void emu_mma(emu_shape shape, const void *a, const void *b, void *c, const char *file, int line) {
    mma_in in = {shape, a, b};
    if (!emu_has(shape)) fail_at(file, line, "this chip has no such matrix instruction");
    stop(STOP_MMA, file, line, &in, c);
}

float emu_exp2(float x) {
    int unscaled = emu.fault == EMU_UNSCALED_PARTS && !strcmp(emu.kernel->name, "attention_combine");
    return unscaled ? 1 : exp2f(x);
}

/* ---- local memory -------------------------------------------------------------------------------------- */

static emu_mark *mark_of(const emu_local *local, int index, const char *file, int line) {
    char what[160];
    if (index >= 0 && index < local->count) return &local->marks[index];
    snprintf(what, sizeof what, "element %d of %s, which has %d", index, local->name, local->count);
    fail_at(file, line, what);
    return NULL;
}

static void fail_race(const emu_local *local, int index, const char *did, int other, const char *file,
                      int line) {
    char what[200];
    snprintf(what, sizeof what, "%s element %d of %s with no block_wait after thread %d", did, index,
             local->name, other);
    fail_at(file, line, what);
}

int emu_get(const emu_local *local, int index, const char *file, int line) {
    emu_mark *m = mark_of(local, index, file, line);
    int thread = emu.now->place.thread;
    char what[160];
    if (m->put < emu.block_epoch) {
        snprintf(what, sizeof what, "gets element %d of %s, which nobody has put", index, local->name);
        fail_at(file, line, what);
    }
    if (m->put == emu.epoch && m->putter != thread) fail_race(local, index, "gets", m->putter, file, line);
    m->getter = (int16_t)(m->got == emu.epoch && m->getter != thread ? -1 : thread);
    m->got = emu.epoch;
    return index;
}

int emu_put(const emu_local *local, int index, const char *file, int line) {
    emu_mark *m = mark_of(local, index, file, line);
    int thread = emu.now->place.thread;
    if (m->put == emu.epoch && m->putter != thread) fail_race(local, index, "puts", m->putter, file, line);
    if (m->got == emu.epoch && m->getter != thread) fail_race(local, index, "puts", m->getter, file, line);
    m->put = emu.epoch;
    m->putter = (int16_t)thread;
    return index;
}

/* ---- launches ------------------------------------------------------------------------------------------ */

static emu_kernel *kernels;

void emu_register(emu_kernel *kernel) {
    kernel->next = kernels;
    kernels = kernel;
}

const emu_kernel *emu_find(const char *name) {
    const emu_kernel *k = kernels;
    while (k && strcmp(k->name, name)) k = k->next;
    return k;
}

void emu_set_fault(emu_fault fault, int n) {
    emu.fault = fault;
    emu.fault_at = n;
}

void emu_set_gfx950(int gfx950) { emu.gfx950 = gfx950; }

static void run_block(const int blocks[2], int x, int y) {
    emu.block_epoch = ++emu.epoch;
    for (int t = 0; t < emu.threads; t++) {
        thread *me = &emu.all[t];
        me->place = (emu_place){t, emu.threads, {x, y}, {blocks[0], blocks[1]}};
        me->waits = 0;
        fiber_prepare(&me->fiber, run_thread);
    }
    emu.now = emu.all;
    fiber_switch(&emu.launcher, emu.now->fiber.stack_pointer);
}

const char *emu_launch(const emu_kernel *kernel, const int blocks[2], int threads, const void *arguments) {
    emu.kernel = kernel;
    emu.arguments = arguments;
    emu.threads = threads;
    emu.failure[0] = 0;
    int whole = threads >= 1 && threads <= kernel->most_threads && threads % EMU_WAVE == 0;
    if (!whole || blocks[0] < 1 || blocks[1] < 1) {
        snprintf(emu.failure, sizeof emu.failure,
                 "%s: %d x %d blocks of %d threads, expected whole waves of at most %d threads", kernel->name,
                 blocks[0], blocks[1], threads, kernel->most_threads);
        return emu.failure;
    }
    for (int t = 0; t < threads; t++)
        if (!fiber_make(&emu.all[t].fiber)) return "no memory for the stacks of a block";
    for (int y = 0; y < blocks[1] && !emu.failure[0]; y++)
        for (int x = 0; x < blocks[0] && !emu.failure[0]; x++) run_block(blocks, x, y);
    for (int t = 0; t < threads && emu.failure[0]; t++) fiber_forget_marks(&emu.all[t].fiber);
    return emu.failure[0] ? emu.failure : NULL;
}
