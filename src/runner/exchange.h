/* The newest of something, from one writer to one reader, over three places of which each has one at a time:
 * neither waits for the other, and what the reader holds is not written. */
#ifndef RUNNER_EXCHANGE_H
#define RUNNER_EXCHANGE_H

#include <stdatomic.h>

enum { EXCHANGE_PLACES = 3, EXCHANGE_NEW = 4 };

typedef struct exchange {
    atomic_int middle;           /* the place between them, and EXCHANGE_NEW where the writer left it last  */
    int back, front;             /* the writer's, the reader's                                             */
} exchange;

static inline void exchange_begin(exchange *x) {
    x->back = 0;
    x->front = 1;
    atomic_init(&x->middle, 2);
}

/* The writer's place is filled; it gets another one. 1: what that holds was never taken. */
static inline int exchange_give(exchange *x) {
    int before = atomic_exchange_explicit(&x->middle, x->back | EXCHANGE_NEW, memory_order_acq_rel);
    x->back = before & ~EXCHANGE_NEW;
    return (before & EXCHANGE_NEW) != 0;
}

/* 1: something newer than what the reader has is there. */
static inline int exchange_waits(exchange *x) {
    return (atomic_load_explicit(&x->middle, memory_order_relaxed) & EXCHANGE_NEW) != 0;
}

/* 1: the reader's place has the newest; 0: nothing is newer. */
static inline int exchange_take(exchange *x) {
    if (!exchange_waits(x)) return 0;
    x->front = atomic_exchange_explicit(&x->middle, x->front, memory_order_acq_rel) & ~EXCHANGE_NEW;
    return 1;
}

#endif
