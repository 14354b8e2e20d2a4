/* See rhythm.h. */
#include "rhythm.h"

#include <math.h>
#include <stddef.h>

/* The average is a plain mean up to so many intervals, then a moving one of about twice this length. */
enum { AVERAGED = 32 };

static void learn(rhythm_interval *i, int64_t now) {
    if (!i->from) return;
    if (i->seen < AVERAGED) i->seen++;
    double off = (double)(now - i->from) - i->mean, share = 1.0 / i->seen, clip = RHYTHM_CLIP * i->deviation;
    if (i->seen >= RHYTHM_REQUESTS) off = fmax(fmin(off, clip), -clip);
    i->mean += share * off;
    double variance = (1 - share) * (i->deviation * i->deviation + share * off * off);
    i->deviation = fmax(sqrt(variance), 0.001 * i->mean);
}

void rhythm_reply(rhythm *r, int64_t now) { r->pause.from = now; }

void rhythm_request(rhythm *r, int64_t now) {
    learn(&r->pause, now);
    learn(&r->period, now);
    r->pause.from = 0;
    r->period.from = now;
}

static int is_known(const rhythm_interval *i) {
    return i->seen >= RHYTHM_REQUESTS && 3 * i->deviation < i->mean;
}

const rhythm_interval *rhythm_known(const rhythm *r) {
    const rhythm_interval *steadier = r->period.deviation < r->pause.deviation ? &r->period : &r->pause;
    return is_known(&r->pause) && is_known(&r->period) ? steadier
           : is_known(&r->pause)                       ? &r->pause
           : is_known(&r->period)                      ? &r->period
                                                       : NULL;
}

int rhythm_expect(const rhythm *r, rhythm_window *window) {
    const rhythm_interval *i = rhythm_known(r);
    if (!i || !r->pause.from) return 0;
    window->begin = i->from + (int64_t)(i->mean - RHYTHM_WINDOW * i->deviation);
    window->end = i->from + (int64_t)(i->mean + RHYTHM_WINDOW * i->deviation);
    return 1;
}
