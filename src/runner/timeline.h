/* The steps that a robot has executed, and when: written by the thread that executes them, read by any.
 *
 * A step is a row of a chunk that was given to the robot; its number is how many were executed before it. Row
 * 0 of a chunk is the step that was next when its observation was taken, so which row is next is a difference
 * of two counts, and no clock is asked how long a computation took.
 *
 * Note: while the robot is held no step is executed and the count stands still: it is where it was. */
#ifndef RUNNER_TIMELINE_H
#define RUNNER_TIMELINE_H

#include <stdatomic.h>
#include <stdint.h>

enum { TIMELINE_STEPS = 256 };   /* steps whose time is known: more than a chunk has rows                 */

typedef struct timeline {
    _Atomic uint64_t executed;
    _Atomic double times[TIMELINE_STEPS];              /* step s at s % TIMELINE_STEPS                 */
} timeline;

static inline uint64_t timeline_executed(const timeline *t) {
    return atomic_load(&((timeline *)(uintptr_t)t)->executed);
}

/* One step more. */
static inline void timeline_add(timeline *t, double now) {
    uint64_t step = atomic_load_explicit(&t->executed, memory_order_relaxed);
    atomic_store_explicit(&t->times[step % TIMELINE_STEPS], now, memory_order_relaxed);
    atomic_store(&t->executed, step + 1);
}

/* How many steps were executed before `taken`. Of an observation older than all times that are known it is
 * the number of the oldest of them: no chunk reaches so far. */
static inline uint64_t timeline_before(timeline *t, double taken) {
    uint64_t executed = timeline_executed(t), step = executed;
    /* Half of them, so that those which are written meanwhile are not read. */
    while (step > 0 && executed - step < TIMELINE_STEPS / 2 &&
           atomic_load_explicit(&t->times[(step - 1) % TIMELINE_STEPS], memory_order_relaxed) >= taken)
        step--;
    return step;
}

#endif
