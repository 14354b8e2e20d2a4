#include "rhythm.h"

#include <math.h>

/* The average is a plain mean up to so many pauses, then a moving one of about twice this length. */
enum { AVERAGED = 32 };

double rhythm_deviation(const rhythm *r) { return fmax(sqrt(r->variance), 0.01 * r->mean); }

void rhythm_reply(rhythm *r, int64_t now) { r->replied = now; }

void rhythm_request(rhythm *r, int64_t now) {
    if (!r->replied) return;
    double pause = (double)(now - r->replied), clip = RHYTHM_CLIP * rhythm_deviation(r);
    r->replied = 0;
    if (r->pauses < AVERAGED) r->pauses++;
    double off = pause - r->mean, share = 1.0 / r->pauses;
    if (r->pauses >= RHYTHM_PAUSES) off = fmax(fmin(off, clip), -clip);
    r->mean += share * off;
    r->variance = (1 - share) * (r->variance + share * off * off);
}

int rhythm_known(const rhythm *r) {
    return r->pauses >= RHYTHM_PAUSES && 3 * rhythm_deviation(r) < r->mean;
}

int rhythm_expect(const rhythm *r, rhythm_window *window) {
    double wide = 3 * rhythm_deviation(r);
    if (!r->replied || !rhythm_known(r)) return 0;
    window->begin = r->replied + (int64_t)(r->mean - wide);
    window->end = r->replied + (int64_t)(r->mean + wide);
    return 1;
}
