/* How fast a robot asks, and how long its last requests took. */
#ifndef SERVE_RECENT_H
#define SERVE_RECENT_H

enum { RECENT_REQUESTS = 100, RECENT_WINDOW_MS = 10000 };

typedef struct recent {
    int count, next;             /* requests that are kept, and the place of the next one                  */
    double began_ms;             /* when the first one could have come                                     */
    double end_ms[RECENT_REQUESTS];
    float took_ms[RECENT_REQUESTS];
} recent;

typedef struct recent_summary {
    int count;                   /* requests that the two percentiles are of                               */
    double rate;                 /* a second, in the last RECENT_WINDOW_MS                                 */
    double p50_ms, p99_ms;       /* 0: no request yet                                                      */
} recent_summary;

void recent_open(recent *recent, double now);
void recent_add(recent *recent, double end_ms, double took_ms);
recent_summary recent_look(const recent *recent, double now);

#endif
