/* Tuning: times every kernel choice for every shape of a plan, tries the winners inside the whole plan, and
 * writes the table of the choices that win there.
 *
 *   tune_open -> tune_plan for every requested plan -> tune_write -> tune_forget_journal -> tune_close
 *
 * A shape is timed with the plan's own ops: all layers that have it, one after the other, so that their
 * weights come from memory as in a call. If one op has few weights, the plan's largest op runs in between and
 * its time is subtracted. Candidates alternate; medians are compared.
 *
 * Note: a choice that wins in isolation often loses in the plan, because it ends later on some
 * multiprocessors or starts later after the kernel before it. Such a winner is rejected, and the log says so.
 * A gain counts where the pairs' median difference exceeds their spread, alone, in place and, at last, in
 * whole calls: these decide.
 *
 * Every result is written to a journal at once, line by line; a killed run continues after its last line. */
#ifndef MEASURE_TUNE_H
#define MEASURE_TUNE_H

#include <stdio.h>

#include "tuning/tuning.h"

struct openpi_engine;
struct openpi_session;

typedef enum tune_outcome {
    TUNE_HEURISTIC,              /* the heuristic's choice was the fastest, or as fast                    */
    TUNE_PENDING,                /* a faster choice was found and not yet tried inside the plan           */
    TUNE_CONFIRMED,
    TUNE_REJECTED,
    TUNE_OUTCOMES
} tune_outcome;

/* A shape and its result. */
typedef struct tune_row {
    tuning_entry entry;          /* entry.choice: the decided choice                                      */
    char op[40];                 /* the first op that has it, "prefix.gate_up"                            */
    openpi_stage stage;
    int calls;                   /* ops of the plan that have it                                          */
    int candidates;              /* number of choices                                                     */
    tune_outcome outcome;
    char winner[56];             /* in isolation                                                          */
    double winner_us;
    /* its stage inside the whole plan, without and with the winner; 0: not tried */
    double base_ms, trial_ms;
    double flops, bytes;         /* one op, with the rows it had                                          */
    int rows;
    int whole;                   /* 1: a whole call has confirmed the winner                              */
    double library_us;           /* the plain product of the vendor's library; 0: not measured             */
} tune_row;

/* A whole plan with and without the table, paired. */
typedef struct tune_pair {
    int batch, horizon, max_prompt, cameras;
    openpi_variant variant;
    double before_ms, after_ms;  /* medians                                                               */
    double spread_ms;            /* spread of the pairs' differences                                      */
    int rounds, slower;          /* runs of each, alternately; rounds in which the table's run was slower */
    int placed;                  /* ops with another choice than the heuristic's; 0: the same plan twice */
} tune_pair;

typedef struct tune_options {
    int rounds;                  /* rounds for every candidate near the best; 0: 11                       */
    int confirm_rounds;          /* rounds for every pair of plans; 0: 15                                 */
    const char *journal;         /* file; NULL: none                                                      */
    int fresh;                   /* 1: an existing journal is discarded                                   */
    int library;                 /* 1: the vendor's library is timed too, where there is one              */
    double least_share;          /* shapes with a smaller part of the call's time are left out            */
    int steps;                   /* the plans' denoise steps; 0: 10                                       */
    openpi_progress progress;    /* the current step, steps done and steps known so far                   */
    void *progress_user;
} tune_options;

typedef struct tune_plan_shape {
    int batch, horizon, max_prompt;
    int cameras[OPENPI_CAMERAS]; /* 1: also with 1, 2, 3 cameras a sample; for a batch the most only      */
    int prompt;                  /* tokens of the call it is timed with                                   */
} tune_plan_shape;

typedef struct tune {
    tune_options options;
    tuning_machine machine;
    tune_row *rows;
    int count, capacity;
    tune_pair *pairs;
    int pair_count, pair_capacity;
    int resumed;                 /* rows that came from the journal                                       */
    int done, expected; /* steps, for the progress: roofs, warm-ups, shapes, winners in place, checks */
    char library[200];           /* which library, or why there is none                                   */
    device_roofs roofs;
} tune;

/* For the engine's machine. */
openpi_status tune_open(struct openpi_engine *engine, const tune_options *options, tune *out,
                        openpi_error *error);
/* For tune_roof_ratio; takes about a second. */
openpi_status tune_measure_roofs(tune *tune, struct openpi_engine *engine, openpi_error *error);
/* Adds the steps of these plans to `expected`: warm-ups, checks, and the shapes that have no row yet, each
 * once. Trials of winners are added when a winner is found. */
openpi_status tune_expect(tune *tune, struct openpi_engine *engine, const tune_plan_shape *shapes, int count,
                          openpi_error *error);
/* Tunes the plan's shapes that have no row yet. The engine must run on the same machine; its own table is not
 * used. */
openpi_status tune_plan(tune *tune, struct openpi_engine *engine, const tune_plan_shape *shape,
                        openpi_error *error);
/* The plan that the table slows down most, NULL: none. A plan is slowed down if its median is longer with the
 * table, and either by more than the spread of the pairs, or the table's run was the slower one in so many
 * rounds that chance gives as many in less than one case of a hundred. */
const tune_pair *tune_slowed(const tune *tune);
/* Writes the table into an open file, `name` in sentences; the caller checks the file for write errors.
 * Refuses a table that slows a plan down (tune_slowed): then nothing is written. */
openpi_status tune_write(const tune *tune, const openpi_engine *engine, const char *name, FILE *file,
                         openpi_error *error);
/* Writes the table at `path`, of this engine's machine and of any format, into an open file with the hashes
 * of this build's kernels, and measures nothing: for kernels whose sources changed and whose speed did not.
 * Entries whose kernels the device does not have any more are dropped. */
openpi_status tune_rekey(const openpi_engine *engine, const char *path, FILE *file, int *kept, int *dropped,
                         openpi_error *error);
/* Removes the journal, after the table is written. */
void tune_forget_journal(const tune *tune);
void tune_close(tune *tune);

/* Operations of the session's plan whose shape its engine's table knows, and those with several candidates
 * whose shape it does not; both 0 without a table. */
void tune_coverage(const struct openpi_session *session, int *known, int *unknown);

/* "heuristic", "pending", "confirmed", "rejected" */
const char *tune_outcome_name(tune_outcome outcome);
/* The time at the roofs divided by `us`; 0 where a roof is unknown. */
double tune_roof_ratio(const tune *tune, const tune_row *row, double us);

/* tune_journal.c */
openpi_status tune_journal_read(tune *tune, const device *device, openpi_error *error);
openpi_status tune_journal_add(const tune *tune, const device *device, const tune_row *row,
                               openpi_error *error);
/* A new row, zeroed; its address is valid until the next. NULL: out of memory. */
tune_row *tune_row_add(tune *tune);
tune_row *tune_row_find(tune *tune, const tuning_key *key);
/* Adds {"row": …} fields beside the entry's; NULL: out of memory. */
json_t *tune_row_json(const tune_row *row);

#endif
