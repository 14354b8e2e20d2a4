/* Limits of the actions that are sent to a robot, and the one place where they are checked.
 *
 *   min, max         of an action
 *   max_step         between an action and the one sent before it
 *   max_start_jump   between the first action of a chunk and the measured state that it starts from
 *
 * All of them in the units in which actions are sent, checked in the arithmetic of double, on the very
 * numbers that are sent: what comes after this changes nothing any more. An action that is NaN or infinite is
 * never sent.
 *
 * What happens to an action beyond a limit:
 *   clamp   each number becomes the nearest one that is within all of its limits. The next action's max_step
 *           counts from the clamped one.
 *   hold    the action and the rest of the chunk become the last one that was within all limits: the step
 *           before, or for the first step the action sent before the chunk.
 *   stop    nothing of the chunk is sent.
 * Where no number is within all limits, and where there is nothing to hold, nothing of the chunk is sent.
 *
 * Note: pure, and without the rest of the library: a sender of single actions asks it with a chunk of one
 * action and the action that was sent before. */
#ifndef POLICY_LIMITS_H
#define POLICY_LIMITS_H

#include <stddef.h>
#include <stdint.h>

enum { LIMITS_DIMS = 32 };

typedef enum limits_verb { LIMITS_CLAMP, LIMITS_HOLD, LIMITS_STOP } limits_verb;

typedef enum limit_kind {
    LIMIT_MIN, LIMIT_MAX, LIMIT_STEP, LIMIT_START,
    LIMIT_KINDS
} limit_kind;

typedef struct limits {
    int dims;                    /* numbers of an action, 1 … LIMITS_DIMS                                 */
    int count;                   /* limits that are set; 0: only NaN and infinity are looked for          */
    double min[LIMITS_DIMS], max[LIMITS_DIMS];                 /* infinite: none                          */
    double max_step[LIMITS_DIMS], max_start_jump[LIMITS_DIMS]; /* above 0; infinite: none                 */
    limits_verb on_violation;
} limits;

/* Why nothing may be sent. */
typedef enum limits_stop {
    LIMITS_SENT,                 /* it may                                                                */
    LIMITS_NOT_FINITE,           /* a number is NaN or infinite                                           */
    LIMITS_REFUSED,              /* a number is beyond a limit, and `on_violation` is stop                 */
    LIMITS_NOTHING_FITS,         /* clamp: no number is within all limits                                 */
    LIMITS_NOTHING_HELD,         /* hold: no action was sent before, or it is beyond a limit itself        */
    LIMITS_UNKNOWN,              /* the action before or the measured state is not a number where needed  */
} limits_stop;

typedef struct limits_report {
    limits_stop stop;
    int beyond[LIMIT_KINDS];     /* numbers that were beyond a limit of that kind; hold: of the step where it
                                    began, stop: up to and with the first step that has one               */
    int changed;                 /* numbers that are sent and are not as they came                        */
    int held;                    /* steps that became the action before them                              */
    uint64_t changed_steps;      /* bit s: numbers of step s changed; of the first 64 steps               */
    int step, dim;               /* the first number beyond a limit or not finite; -1: none               */
    limit_kind kind;             /* its first limit, in the order above                                    */
    double value, limit, from;   /* how it came; that limit; of a difference the number it is counted from.
                                    LIMITS_NOTHING_FITS: the ends `limit` > `from` of what would be allowed */
} limits_report;

/* No limit at all. */
void limits_clear(limits *limits, int dims);

/* actions[steps][dims] in place. previous [dims]: the action that was sent before; NULL: none, so the first
 * step has no max_step. start [dims]: the measured state in the actions' units, NAN where no number of it is;
 * NULL: not the beginning of a chunk, so max_start_jump is not checked. 1: the actions may be sent; 0: none
 * of them may, `report` says why, and what is in `actions` is of no use. */
int limits_apply(const limits *limits, const double *previous, const double *start, double *actions,
                 int steps, limits_report *report);

/* "max_step", as in a robot's file. */
const char *limits_kind_name(limit_kind kind);
/* "clamp", "hold" or "stop". */
const char *limits_verb_name(limits_verb verb);

/* What the report says of its first number, as a part of a sentence: "1.9 is above the max of 1.5". The
 * number is named by the caller. Returns out. */
const char *limits_describe(const limits_report *report, char *out, size_t bytes);

#endif
