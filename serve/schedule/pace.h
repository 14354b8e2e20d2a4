/* How many calls a connection with a declared rate may make now.
 *
 * Calls come in at a tenth above the declared rate, up to PACE_BURST of them, and each call takes one.
 *
 * Note: without the tenth a robot that is exactly at its rate would run dry by and by, as its pauses vary. */
#ifndef SERVE_PACE_H
#define SERVE_PACE_H

#include <stdint.h>

enum { PACE_BURST = 8 };

typedef struct pace {
    double rate;                 /* calls a second; 0: none may be made                                   */
    double calls;                /* that it might make at `since`                                         */
    int64_t since;               /* ns                                                                    */
} pace;

pace pace_start(double rate, int64_t now);
/* 1: a call may be made at that time, which is not before the last one that was taken. */
int pace_allows(const pace *pace, int64_t when);
void pace_take(pace *pace, int64_t now);
/* When a call may be made at the earliest, for a pace that allows none now. */
int64_t pace_again(const pace *pace);

#endif
