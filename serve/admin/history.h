/* The last two minutes of the server, second by second: how many requests were answered, how long they took,
 * how much the devices computed. Pure: the time is an argument, in milliseconds. */
#ifndef SERVE_HISTORY_H
#define SERVE_HISTORY_H

#include <stdint.h>

enum {
    HISTORY_SECONDS = 120,
    HISTORY_BUCKETS = 280,       /* durations, each 5 % longer than the one before: 0.1 ms to 80 s         */
    HISTORY_WINDOW = 10,         /* seconds that the newest figures are of                                 */
};

typedef struct history_second {
    int64_t number;              /* which second this is; another one: nothing happened in its place       */
    uint32_t answered, bad;      /* bad: refused, late, failed or gone                                     */
    double busy_ms;              /* all devices together                                                   */
    uint32_t buckets[HISTORY_BUCKETS];
} history_second;

typedef struct history {
    double busy_ms;              /* all devices together, when it was last told                            */
    history_second seconds[HISTORY_SECONDS];
} history;

/* A request is over; `ok`: it was answered, after took_ms. */
void history_add(history *history, double now, int ok, double took_ms);
/* The devices have computed for so long, since they began. */
void history_busy(history *history, double now, double total_ms);

typedef struct history_point {
    uint32_t answered, bad;
    double p50_ms, p99_ms;       /* 0: none was answered                                                   */
    double busy_ms;
} history_point;

/* What happened in the `count` seconds before second `ago` was over: 0 is the one that is not over yet. */
history_point history_look(const history *history, double now, int ago, int count);

#endif
