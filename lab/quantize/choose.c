/* The greedy choice. */
#include "lab/quantize/choose.h"

#include <math.h>

static const double worth_changing = 1.05;

static double square(const choice_candidate *c) { return c->load * c->load; }
static double price(const choice_candidate *c) { return square(c) / c->gain; }

static double sum(const choice_candidate *list, int count) {
    double squares = 0;
    for (int i = 0; i < count; i++)
        if (list[i].taken) squares += square(&list[i]);
    return squares;
}

double choice_predicted(const choice_candidate *list, int count) { return sqrt(sum(list, count)); }

/* What the group of candidate `i` has; -1: nothing. */
static int taken_of_group(const choice_candidate *list, int count, int i) {
    for (int j = 0; j < count; j++)
        if (list[j].taken && list[j].group == list[i].group) return j;
    return -1;
}

/* The cheapest candidate of a group that has none; -1: none fits. */
static int next(const choice_candidate *list, int count, double room) {
    int best = -1;
    for (int i = 0; i < count; i++) {
        const choice_candidate *c = &list[i];
        if (!(c->gain > 0) || !(sum(list, count) + square(c) <= room) || taken_of_group(list, count, i) >= 0)
            continue;
        if (best < 0 || price(c) < price(&list[best])) best = i;
    }
    return best;
}

/* A format for a group that gains more than the one it has and still fits, at the least added square for
 * added gain; *from: what it takes the place of. */
static int better(const choice_candidate *list, int count, double room, int *from) {
    double least = 0;
    int best = -1;
    for (int i = 0; i < count; i++) {
        int has = taken_of_group(list, count, i);
        if (has < 0 || has == i || !(list[i].gain > worth_changing * list[has].gain)) continue;
        double more = square(&list[i]) - square(&list[has]), each = more / (list[i].gain - list[has].gain);
        if (!(sum(list, count) + more <= room) || (best >= 0 && each >= least)) continue;
        best = i, least = each, *from = has;
    }
    return best;
}

int choice_make(choice_candidate *list, int count, double room) {
    int i, from = 0;
    for (i = 0; i < count; i++) list[i].taken = 0;
    while ((i = next(list, count, room)) >= 0) list[i].taken = 1;
    while ((i = better(list, count, room, &from)) >= 0) list[i].taken = 1, list[from].taken = 0;
    return choice_predicted(list, count) > 0;
}
