/* Robots and devices in virtual time around the scheduler.
 *
 * A device takes as long as its table says, times `slower`. The simulation checks with every step what must
 * always be so: a request is answered once, no connection has two in work, a deadline is kept or the request
 * is answered as late in time, and where no robot is reserved no device idles while a request waits. */
#ifndef TESTS_SERVE_SIMULATION_H
#define TESTS_SERVE_SIMULATION_H

#include <stdint.h>

#include "serve/schedule/scheduler.h"

enum { SIM_ROBOTS = 80, SIM_DEVICES = 2, SIM_LATENCIES = 20000 };

typedef enum sim_kind {
    SIM_ACTS,                    /* asks a pause after each reply                                         */
    SIM_TICKS,                   /* asks at the ticks of its own clock, or as soon as the reply is there  */
    SIM_ROAMS,                   /* asks after a pause of anything up to twice pause_ms: no rhythm        */
} sim_kind;

typedef struct sim_robot {
    sim_kind kind;
    scheduler_class class;
    double rate;                 /* declared, of a reserved one                                           */
    double pause_ms, jitter_ms;  /* mean and standard deviation; of SIM_TICKS the period                  */
    double first_ms, last_ms;    /* joins and leaves; last 0: stays                                       */
    double deadline_ms;          /* each request's deadline; 0: none                                      */
    int burst;                   /* asks so often at once, then pauses; 0: pauses every time              */
    /* what came of it, after the warm-up */
    int answers, late, refused;
    double latency_ms[SIM_LATENCIES];
    int64_t device_ns;
} sim_robot;

typedef struct sim {
    int devices;
    const batch_time *table;
    int table_count;
    double slower;               /* than the table                                                        */
    double max_block;            /* in calls                                                              */
    double warmup_ms, end_ms;
    uint64_t seed;
    int robot_count;
    sim_robot robots[SIM_ROBOTS];
    double held_ms;              /* sum over all devices, after all                                       */
    uint64_t hash;               /* hash over everything that happened                                    */
} sim;

/* The H200 and π0 with the longest prompt: 1, 2, 4, 8 and 16 samples, as docs/results/serve-h200 has them. */
extern const batch_time sim_h200[5];

/* A simulation on one H200. Large: allocated, freed with free. */
sim *sim_create(uint64_t seed, double seconds);
/* `count` more robots like this one. Returns the first. */
sim_robot *sim_add(sim *sim, int count, sim_robot like);
void sim_run(sim *sim);

/* Of a robot's latencies; p in 0 … 1. */
double sim_percentile(const sim_robot *robot, double p);
/* Answers a second of `count` robots together. */
double sim_rate(const sim *sim, const sim_robot *robots, int count);

/* Uniform in [0, 1) and standard normal, from one stream. */
double sim_uniform(uint64_t *seed);
double sim_normal(uint64_t *seed);

#endif
