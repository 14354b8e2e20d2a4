/* Inside `openpi run`: what its files share. run_input.c reads the observation, run.c computes, run_show.c
 * shows the result. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "cli.h"
#include "head.h"
#include "previous.h"

enum { STATE_MAX = 256, FORMAT_TABLE = 1, FORMAT_JSON, FORMAT_CSV, FORMAT_NPY };

typedef struct run_values {
    const char *synthetic, *state, *prompt, *request, *noise, *plot, *out;
    text_list images;
    int horizon, steps, format, json, verbose;
    uint64_t seed;
    lora_values lora;
    policy_values policy;
    previous_values previous;
    machine_values machine;
} run_values;

typedef struct run_job {
    const run_values *v;
    int format;                  /* FORMAT_…: --format, --json, or what the name of --out says            */
    model_name model;
    openpi_image pictures[TEXT_LIST_MAX];
    char *picture_names[TEXT_LIST_MAX];
    double state[STATE_MAX];
    int state_count;
    char *request_bytes;
    size_t request_count;
    float *noise;                /* [noise_rows][noise_columns], [horizon][32] from load() on; or NULL     */
    int noise_rows, noise_columns;
    previous_chunk previous;
    openpi_policy *policy;
    openpi_request *request;
    openpi_engine *engine;
    openpi_session *session;
    openpi_policy_info policy_info;
    openpi_limited limited;      /* what the robot's limits changed                                       */
    openpi_engine_info engine_info;
    openpi_session_info session_info;
    openpi_timing timing;
    float *model_actions;        /* [horizon][32]                                                         */
    double *actions;             /* [horizon][action_dim]                                                 */
    const char *names[OPENPI_ACTION_DIM], *units[OPENPI_ACTION_DIM];   /* the policy's; "": not known     */
    double starts[OPENPI_ACTION_DIM];      /* the state that an action starts at; NaN: none               */
    char heads[OPENPI_ACTION_DIM][48];     /* headings of columns: the name, else "action 3"              */
    char hardware[HARDWARE_TEXT];
} run_job;

/* run_input.c: pictures, state, noise and the previous chunk. */
int run_read(run_job *job);
/* Where the noise is from: a file or the request; NULL: drawn from the seed. */
const char *run_noise_name(const run_job *job);

/* run_show.c: settles job->format; a sentence where the options say nothing or two things. */
int run_choose_format(run_job *job);
void run_show(const run_job *job);

#endif
