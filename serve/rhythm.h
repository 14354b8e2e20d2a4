/* When a robot will ask again, learnt from its pauses.
 *
 * A robot asks, gets its reply, acts and asks again. The pause between reply and next request has a moving
 * mean and a moving variance; the next request is expected a mean pause after the last reply, give or take
 * three standard deviations. A rhythm is known after RHYTHM_PAUSES pauses, as long as three standard
 * deviations are shorter than the mean.
 *
 * Note: one pause counts for at most RHYTHM_CLIP standard deviations. A robot that stood still for an hour
 * once has its rhythm back after a few calls; one that changed its pace is followed all the same, because
 * every clipped pause widens the deviation. */
#ifndef SERVE_RHYTHM_H
#define SERVE_RHYTHM_H

#include <stdint.h>

enum { RHYTHM_PAUSES = 8, RHYTHM_CLIP = 6 };

typedef struct rhythm {
    int64_t replied;             /* time of the last reply; 0: no reply since the last request            */
    int pauses;                  /* seen, counted up to the length of the average                         */
    double mean, variance;       /* of the pause, ns and ns²                                              */
} rhythm;

/* Nanoseconds; [begin, end) is when the next request is expected. */
typedef struct rhythm_window {
    int64_t begin, end;
} rhythm_window;

void rhythm_reply(rhythm *rhythm, int64_t now);
/* A request that came before its predecessor's reply shows no pause. */
void rhythm_request(rhythm *rhythm, int64_t now);
int rhythm_known(const rhythm *rhythm);
/* 0: the rhythm is not known, or a request is there already. */
int rhythm_expect(const rhythm *rhythm, rhythm_window *window);
/* Standard deviation of the pause in nanoseconds, at least 1 % of its mean. */
double rhythm_deviation(const rhythm *rhythm);

#endif
