/* openpi bench --server: robots for a running policy server, and what they measured.
 *
 *   load.c          the options, and the order of the steps
 *   load_robots.c   robots that ask, each at its own times, and what they measure
 *   load_request.c  the requests of openpi's examples
 *   load_show.c     the table and the JSON */
#ifndef CLI_BENCH_LOAD_H
#define CLI_BENCH_LOAD_H

#include <jansson.h>
#include <time.h>

#include "bench.h"
#include "client/client.h"

/* Milliseconds of the monotonic clock. */
static inline double load_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* ---- load_request.c -------------------------------------------------------------------------------- */

typedef enum load_env { LOAD_BY_METADATA, LOAD_ALOHA, LOAD_DROID, LOAD_LIBERO, LOAD_NONE } load_env;
const char *load_env_name(load_env env);
/* The one whose robot has so many actions; LOAD_BY_METADATA: none has. */
load_env load_env_of(int action_dim);

/* A request of openpi's examples/simple_client, or of the robot "none", its pictures drawn from the seed; or
 * a list of `observations` of them. 0: no memory. */
int load_request_write(load_env env, uint64_t seed, int observations, client_message *out);

/* ---- load_robots.c --------------------------------------------------------------------------------- */

enum { LOAD_GROUPS = 2 };

typedef struct load_group {
    const char *name, *key;      /* key NULL: none                                                        */
    int count;
    double rate;                 /* calls a second of each; 0: the next as soon as the reply is there     */
    double jitter_ms;            /* standard deviation                                                    */
} load_group;

typedef struct load_plan {
    client_address address;
    load_group groups[LOAD_GROUPS];
    int group_count;
    load_env env;
    uint64_t seed;
    int observations;            /* a list of this number is a message; 0: it is one observation           */
    int warmup;                  /* replies of each robot that do not count                               */
    double seconds;
} load_plan;

typedef struct load_times {
    size_t count, capacity;
    double *ms;
} load_times;

typedef struct load_outcome {
    load_times round;            /* from asking to the whole reply                                        */
    load_times model;            /* as the reply says                                                     */
    load_times beside;           /* from the request's last byte to the whole reply, without the model    */
    double rate;                 /* replies a second, each robot's from its first to its last one: parts of
                                    round trips do not count                                              */
    int connected;               /* robots that got the metadata at least once                            */
    long least, most;            /* answers of the robot with fewest, and with most                       */
    long refused;                /* handshakes that failed                                                */
    long broken;                 /* connections that ended                                                */
    long errors;                 /* sentences instead of replies, and replies without actions             */
    char last_error[CLIENT_SENTENCE];
} load_outcome;

typedef struct load_result {
    client_metadata metadata;              /* as the first connection got it                              */
    load_env env;
    size_t request_bytes;
    double seconds;              /* measured                                                              */
    load_outcome groups[LOAD_GROUPS];
} load_result;

/* Runs all robots. Returns END_FINE or the code to end with, having said why. */
int load_robots(const load_plan *plan, load_result *result);
void load_result_free(load_result *result);
/* p in 0 … 1; 0 where there is none. Sorts the times. */
double load_percentile(load_times *times, double p);

/* ---- load_show.c ----------------------------------------------------------------------------------- */

void load_put(const load_plan *plan, load_result *result);
json_t *load_json(const load_plan *plan, load_result *result);

/* ---- load.c ---------------------------------------------------------------------------------------- */

/* What `openpi bench --server` does. */
int load_run(const bench_values *values);

#endif
