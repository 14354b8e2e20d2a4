/* See pace.h. */
#include "pace.h"

#include <math.h>

static double filling(const pace *p) { return 1.1e-9 * p->rate; }        /* calls a nanosecond */

static double calls_at(const pace *p, int64_t when) {
    return fmin(p->calls + filling(p) * (double)(when - p->since), PACE_BURST);
}

pace pace_start(double rate, int64_t now) {
    return (pace){.rate = rate, .calls = rate > 0 ? PACE_BURST : 0, .since = now};
}

int pace_allows(const pace *p, int64_t when) { return calls_at(p, when) >= 1; }

void pace_take(pace *p, int64_t now) {
    p->calls = calls_at(p, now) - 1;
    p->since = now;
}

int64_t pace_again(const pace *p) {
    const double years = 1e18;
    return p->since + (int64_t)fmin((1 - p->calls) / filling(p), years) + 1;
}
