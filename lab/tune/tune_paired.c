/* What paired runs say: two versions ran by turns, so that a slow moment of the machine meets both, and the
 * differences of the pairs tell how sure a gain is. */
#include <math.h>
#include <string.h>

#include "lab/measure/figures.h"
#include "lab/tune/tune_parts.h"

enum { LEAST_PAIRS = 3 };
/* Median distance from the median -> standard deviation, where the noise is normal. */
static const double deviations = 1.4826;

double tune_median(const double *times, int count) {
    double sorted[TUNE_ROUNDS];
    memcpy(sorted, times, (size_t)count * sizeof *sorted);
    return figures_of(sorted, count).p50_ms;
}

paired tune_paired(const double *base, const double *trial, int rounds) {
    double differences[TUNE_ROUNDS], distances[TUNE_ROUNDS];
    paired p = {.rounds = rounds};
    for (int i = 0; i < rounds; i++) {
        differences[i] = base[i] - trial[i];
        p.slower += differences[i] < 0;
    }
    p.gain = tune_median(differences, rounds);
    for (int i = 0; i < rounds; i++) distances[i] = fabs(differences[i] - p.gain);
    p.spread = deviations * tune_median(distances, rounds);
    return p;
}

int tune_gains(const paired *p) { return p->rounds >= LEAST_PAIRS && p->gain > p->spread; }

/* The probability of at least `heads` heads in `rounds` tosses of a fair coin. */
static double chance_of(int rounds, int heads) {
    double term = 1, sum = 0;                    /* rounds over k, for k from 0 on */
    for (int k = 0; k <= rounds; k++) {
        if (k >= heads) sum += term;
        term = term * (rounds - k) / (k + 1);
    }
    return sum / exp2(rounds);
}

/* 1: the table's choices make the plan slower, by more than the pairs' spread or in too many rounds. */
static int slows(const tune_pair *p) {
    if (!p->placed || p->after_ms <= p->before_ms) return 0;
    int beyond = p->rounds >= LEAST_PAIRS && p->after_ms - p->before_ms > p->spread_ms;
    return beyond || chance_of(p->rounds, p->slower) < 0.01;
}

const tune_pair *tune_slowed(const tune *t) {
    const tune_pair *worst = NULL;
    for (int i = 0; i < t->pair_count; i++) {
        const tune_pair *p = &t->pairs[i];
        if (!slows(p)) continue;
        if (!worst || p->after_ms / p->before_ms > worst->after_ms / worst->before_ms) worst = p;
    }
    return worst;
}
