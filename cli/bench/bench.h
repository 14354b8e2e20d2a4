/* What the parts of openpi bench share: the options, what was measured, and the JSON of both.
 *
 *   bench.c          the options, and the order of the steps
 *   bench_show.c     tables, histogram, sentences
 *   bench_json.c     the figures as JSON
 *   bench_plot.c     the figures against the batch as SVG, published ones beside them where a file has some
 *   bench_best.c     a configuration written down and read back
 *   bench_compare.c  two such files, figure by figure
 *   bench_parts.c    several chunks of an observation, denoising alone, one step
 *   bench_runner.c   the control thread's call of a runner, beside the model
 *   load.h           robots for a running server */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "lab/measure/bench.h"
#include "lab/measure/energy.h"
#include "lab/verbs/roof.h"
#include "lab/verbs/subject.h"

enum { BATCHES_MAX = 16 };

typedef struct bench_values {
    subject_values subject;
    const char *checkpoint;                /* the checkpoint for --best; else the positional argument     */
    const char *batch, *json, *svg, *published, *save, *best, *against;
    int warmup, runs;                      /* -1 and 0: as the device likes it                            */
    int rtc, delay;                        /* openpi_rtc_mode; steps                                      */
    int tolerance, histogram, changing_prompts, no_energy, verbose;
    const char *server, *rate, *api_key, *greedy_key;    /* a running server: load.h                      */
    int robots, greedy, jitter, seconds, env, observations;
    int runner;                            /* Hz of a control thread; 0: not measured                     */
    int parts;                             /* chunks of an observation; 0: not measured                   */
} bench_values;

/* Of one batch. */
typedef struct bench_outcome {
    int batch;
    bench_report report;
    openpi_session_info session;
    power_reading after;                   /* clocks right after the last measured run                    */
    energy_report energy;
    char no_energy[400];                   /* why `energy` holds nothing; "": it does, or --no-energy     */
} bench_outcome;

typedef struct bench_job {
    bench_values v;                        /* the options; all resolved once the engine is open           */
    json_t *best, *against, *published;    /* files that the options name                                 */
    subject subject;
    bench_outcome outcomes[BATCHES_MAX];
    int count;
    bench_roofs roofs;
    char driver[96], table_hash[BENCH_HASH];
    power *power;
    uint64_t load_anonymous, load_peak;    /* largest while it opened                                     */
} bench_job;

/* bench_show.c: on stdout. */
void bench_put_head(const bench_job *job);
void bench_put_outcome(const bench_job *job, const bench_outcome *outcome);
void bench_put_scaling(const bench_job *job);

/* bench_json.c: everything as --json has it. `kind`: "bench" or "best". */
json_t *bench_json(const bench_job *job, const char *kind);

/* bench_plot.c; both return END_FINE or the code to end with. The first reads a file of the kind of
 * docs/peers.json. */
int bench_read_published(const char *path, json_t **root);
int bench_plot(const bench_job *job);

/* bench_best.c. bench_read_file: a file of --json or --save. bench_configure: its configuration becomes
 * job->v. */
int bench_read_file(const char *path, json_t **root);
int bench_configure(bench_job *job, const json_t *root, const char *path);
/* The options that would run this again, and the settings that were in force, to compare with. */
json_t *bench_configuration_json(const bench_values *values);
json_t *bench_settings_json(const bench_job *job);

/* bench_parts.c: over a subject that is open. END_FINE or the code to end with. */
int bench_parts(bench_job *job);

/* bench_runner.c: over a subject that is open. END_FINE or the code to end with. */
int bench_runner(bench_job *job);

/* bench_compare.c. The first says before anything runs whether the two files can be compared; the second
 * prints the comparison and returns it as JSON; *end is END_CHECK where a figure is worse. */
int bench_comparable(const bench_job *job, const json_t *before);
json_t *bench_compare(const bench_job *job, const json_t *before, const json_t *now, int *end);

#endif
