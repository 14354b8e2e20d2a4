/* Connections that are no WebSocket: who waits for a complete request head, for the rest of an answer, or for
 * the next request, in the order in which they came. Each has one time by which it must have gone on.
 *
 * A connection is here from accept on, whatever it says or does not say. Where there are too many, the one
 * that waits longest makes room: so nobody can keep others out by waiting.
 *
 * Pure: nothing here knows sockets or clocks. */
#ifndef SERVE_WAITING_H
#define SERVE_WAITING_H

#include "serve/who/address_key.h"

/* The first member of what waits. */
typedef struct waiter {
    struct waiter *before, *after;
    int waits;                   /* 1: in the list                                                         */
    double until_ms;
    address_key key;             /* its address's                                                          */
} waiter;

typedef struct waiting {
    waiter *oldest, *newest;
    int count;
} waiting;

/* Becomes the newest; where it waits already, it waits anew. */
void waiting_join(waiting *all, waiter *one, double until_ms);
/* Nothing where it does not wait. */
void waiting_leave(waiting *all, waiter *one);
/* One whose time is over; NULL: none. */
waiter *waiting_late(const waiting *all, double now_ms);
/* The one that makes room for another of this address, where an address may have `most_each` and all together
 * `most`; NULL: there is room. */
waiter *waiting_crowded(const waiting *all, address_key key, int most_each, int most);

#endif
