/* How the time of --drain is divided: first for the requests that wait, then for the close frames. Pure. */
#ifndef SERVE_DRAIN_H
#define SERVE_DRAIN_H

enum { DRAIN_CLOSING_MS = 1000 };          /* for close frames at most, also where nobody may wait longer   */

typedef struct drain_times {
    int answers_ms, closing_ms;
} drain_times;

/* Answers have at least half of it. */
drain_times drain_divide(int seconds);

#endif
