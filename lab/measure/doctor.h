/* Would this checkpoint move this robot sensibly? Looks at what a robot sees (a folder of requests) through a
 * policy, lets the model answer some of them from several noises, and says what does not fit together.
 *
 *   doctor_look     every request, without the model: states, pictures, prompts
 *   doctor_ask      some of them, with the model: actions, limits, noise
 *   doctor_judge    what was seen -> findings, each with a number, a sentence and what to do
 *
 * Note: states are compared with the checkpoint's statistics in the units of the statistics, after the
 * robot's transform. A number is "outside" by parts of the span from q01 to q99; where there are no
 * quantiles, by parts of the span that holds as much of a normal distribution, mean ± 2.33 std. */
#ifndef MEASURE_DOCTOR_H
#define MEASURE_DOCTOR_H

#include "lab/measure/request_folder.h"
#include "policy/policy.h"

enum {
    DOCTOR_FINDINGS = 96,
    DOCTOR_MOST = 2000,          /* requests that are looked at, evenly out of the folder                  */
    DOCTOR_SEEDS = 8,
};

typedef enum doctor_level {
    DOCTOR_FINE,
    DOCTOR_WARNING,              /* worth a look                                                           */
    DOCTOR_WRONG,                /* it would move the arm wrongly                                          */
} doctor_level;

typedef struct doctor_finding {
    doctor_level level;
    const char *check;           /* "state range", static                                                  */
    double number;               /* what the sentence is about                                             */
    char sentence[400], advice[240];           /* advice "": nothing to do                                 */
} doctor_finding;

/* Of one camera in one request. */
typedef struct doctor_picture {
    int there;
    uint64_t hash;
    double mean, deviation;      /* its values', 0 … 1                                                    */
} doctor_picture;

typedef struct doctor_sight {
    double state[OPENPI_ACTION_DIM];           /* in the units of the statistics                           */
    double normal[OPENPI_ACTION_DIM];          /* normalised                                               */
    int truncated;
    doctor_picture pictures[OPENPI_CAMERAS];
} doctor_sight;

typedef struct doctor {
    openpi_policy *policy;       /* the caller's                                                           */
    limits limits;               /* the robot's; those of the policy are off while the model is asked      */
    int numbers;                 /* that the state has                                                     */
    double low[OPENPI_ACTION_DIM], high[OPENPI_ACTION_DIM];    /* the state's statistics                   */
    int known;                   /* 1: there are statistics, and they are used                             */
    doctor_sight *sights;        /* [count]                                                                */
    int count, refused;          /* requests that were read; that were refused                             */
    char refusal[400];           /* the first one's sentence                                               */
    int chunks, seeds, horizon;  /* answers of the model for one noise each: chunks * seeds                */
    double least[OPENPI_ACTION_DIM], most[OPENPI_ACTION_DIM];  /* actions in the robot's units              */
    double step[OPENPI_ACTION_DIM];            /* mean difference from one action to the next              */
    double jump[OPENPI_ACTION_DIM];            /* mean distance of first actions from the state; NaN: none */
    double spread[OPENPI_ACTION_DIM];          /* mean deviation between noises, in parts of the span      */
    double outside;              /* part of the model's normalised numbers that are far beyond the data     */
    long beyond[LIMIT_KINDS], limited;         /* numbers beyond limits; numbers that were looked at        */
    int stopped;                 /* chunks of which nothing may leave                                      */
    char stop[240];              /* the first one's reason                                                 */
    int findings_count;
    doctor_finding findings[DOCTOR_FINDINGS];
} doctor;

/* doctor_close in any case. A request that the policy refuses is a finding and no error. */
openpi_status doctor_look(doctor *doctor, openpi_policy *policy, const request_folder *folder,
                          openpi_error *error);
/* The model's answers to at most `chunks` requests from `seeds` noises each. The session is of one sample. */
openpi_status doctor_ask(doctor *doctor, openpi_session *session, const request_folder *folder, int chunks,
                         int seeds, openpi_error *error);
/* Fills the findings, the worst first; returns the worst level. */
doctor_level doctor_judge(doctor *doctor);
void doctor_close(doctor *doctor);

/* "wrong", "warning" or "fine". */
const char *doctor_level_name(doctor_level level);

#endif
