/* When a robot will ask again, learnt from when it asked before.
 *
 * A robot that acts in between asks a pause after each reply; one with a clock of its own asks a period after
 * its last request. Both have a moving mean and a moving variance, and the steadier of the two foretells: the
 * next request is expected at its mean, give or take RHYTHM_WINDOW standard deviations. A rhythm is known
 * after RHYTHM_REQUESTS requests, as long as three standard deviations are shorter than the mean.
 *
 * Note: one interval counts for at most RHYTHM_CLIP standard deviations. A robot that stood still for an hour
 * once has its rhythm back after a few calls; one that changed its pace is followed all the same, because
 * every clipped interval widens the deviation. */
#ifndef SERVE_RHYTHM_H
#define SERVE_RHYTHM_H

#include <stdint.h>

enum { RHYTHM_REQUESTS = 8, RHYTHM_CLIP = 6, RHYTHM_WINDOW = 4 };

typedef struct rhythm_interval {
    int64_t from;                /* when the interval that is not over began; 0: there is none            */
    int seen;                    /* intervals, counted up to the length of the average                    */
    double mean, deviation;      /* ns; the deviation is at least 0.1 % of the mean                       */
} rhythm_interval;

typedef struct rhythm {
    rhythm_interval pause;       /* from a reply to the next request                                      */
    rhythm_interval period;      /* from a request to the next                                            */
} rhythm;

/* Nanoseconds; [begin, end) is when the next request is expected. */
typedef struct rhythm_window {
    int64_t begin, end;
} rhythm_window;

void rhythm_reply(rhythm *rhythm, int64_t now);
/* A request that came before its predecessor's reply shows no pause. */
void rhythm_request(rhythm *rhythm, int64_t now);
/* The interval that foretells; NULL: the rhythm is not known. */
const rhythm_interval *rhythm_known(const rhythm *rhythm);
/* 0: the rhythm is not known, or no reply has come since the last request. */
int rhythm_expect(const rhythm *rhythm, rhythm_window *window);

#endif
