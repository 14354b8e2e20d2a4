/* Tuning: every way to run every shape of a plan, timed; the winners tried inside the whole plan; the table
 * of what stays.
 *
 *   tune_open -> tune_plan for every plan asked for -> tune_write -> tune_forget_journal -> tune_close
 *
 * A shape is timed where it stands in the plan: all layers that have it, one after the other, so that their
 * weights come from memory as they do in a call; where one op has few weights, the plan's largest op runs in
 * between and its time is taken off. Candidates take turns, medians count. Surprising: an isolated winner
 * often loses in place, because it ends later on some multiprocessors or starts later behind the kernel in
 * front; such a winner is rejected and the log says so.
 *
 * What has been measured goes to a journal at once, line by line; a run that was killed goes on behind its
 * last line. */
#ifndef MEASURE_TUNE_H
#define MEASURE_TUNE_H

#include <stdio.h>

#include "model/tuning.h"

struct openpi_engine;
struct openpi_session;

typedef enum tune_outcome {
    TUNE_HEURISTIC,              /* the built-in rule's way was the fastest, or as good                   */
    TUNE_PENDING,                /* a faster one was found and not yet tried in place                     */
    TUNE_CONFIRMED,
    TUNE_REJECTED,
    TUNE_OUTCOMES
} tune_outcome;

/* A shape and what became of it. */
typedef struct tune_row {
    tuning_entry entry;          /* entry.choice: what stays                                              */
    char op[40];                 /* the first op that has it, "prefix.gate_up"                            */
    openpi_stage stage;
    int calls;                   /* ops of the plan that have it                                          */
    int candidates;              /* ways there are                                                        */
    tune_outcome outcome;
    char winner[56];             /* in isolation                                                          */
    double winner_us;
    /* its stage inside the whole plan, without and with the winner; 0: not tried */
    double base_ms, trial_ms;
    double flops, bytes;         /* of one op, with the rows it had                                       */
    int rows;
    double library_us;           /* cuBLASLt's plain product of the rows in use, n and k; 0: not measured  */
} tune_row;

/* A whole plan with and without the table, paired. */
typedef struct tune_pair {
    int batch, horizon, max_prompt, cameras;
    openpi_variant variant;
    double before_ms, after_ms;  /* medians                                                               */
    int rounds, slower;          /* runs of each, by turns; rounds in which the table's run took longer   */
    int placed;                  /* ops with another choice than the heuristic's; 0: the same plan twice */
} tune_pair;

typedef struct tune_options {
    int rounds;                  /* of every candidate that is not far off; 0: 11                         */
    int confirm_rounds;          /* of every pair of plans; 0: 15                                         */
    const char *journal;         /* file; NULL: none                                                      */
    int fresh;                   /* 1: what a journal holds is forgotten                                  */
    int library;                 /* 1: the vendor's library is timed too, where there is one              */
    int steps;                   /* of the plans; 0: 10                                                   */
    openpi_progress progress;    /* what is running, steps done of all that are known by now              */
    void *progress_user;
} tune_options;

typedef struct tune_plan_shape {
    int batch, horizon, max_prompt;
    int cameras[OPENPI_CAMERAS]; /* 1: also with 1, 2, 3 cameras a sample; of a batch the most counts      */
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

/* The machine is the engine's. */
openpi_status tune_open(struct openpi_engine *engine, const tune_options *options, tune *out,
                        openpi_error *error);
/* For tune_roof_ratio; takes about a second. */
openpi_status tune_measure_roofs(tune *tune, struct openpi_engine *engine, openpi_error *error);
/* Adds to `expected` the steps of these plans: warm-ups, checks, and the shapes that are not known yet, each
 * once. What winners there will be to try in place is known only when they are found; they are added then. */
openpi_status tune_expect(tune *tune, struct openpi_engine *engine, const tune_plan_shape *shapes, int count,
                          openpi_error *error);
/* Adds what the plan's shapes are and are not yet. The engine must be of the same machine; its own table is
 * not used. */
openpi_status tune_plan(tune *tune, struct openpi_engine *engine, const tune_plan_shape *shape,
                        openpi_error *error);
/* The plan that the table slows most beyond chance, NULL: none. Slower is: a longer median, and the table's
 * run the longer one in so many rounds that a fair coin would fall so in less than one case of a hundred. */
const tune_pair *tune_slowed(const tune *tune);
/* Writes the table into an open file, which sentences call `name`; errors of writing stay in the file.
 * Refuses a table that slows a plan (tune_slowed): then nothing is written. */
openpi_status tune_write(const tune *tune, const openpi_engine *engine, const char *name, FILE *file,
                         openpi_error *error);
/* Writes the table at `path`, of this engine's machine and of any format, into an open file with the hashes
 * of this build's kernels, and measures nothing: for kernels whose sources changed and whose speed did not.
 * Entries whose kernels the device does not have any more are dropped. */
openpi_status tune_rekey(const openpi_engine *engine, const char *path, FILE *file, int *kept, int *dropped,
                         openpi_error *error);
/* Removes the journal: the table is where it belongs. */
void tune_forget_journal(const tune *tune);
void tune_close(tune *tune);

/* Operations of the session's plan whose shape its engine's table knows, and those with several candidates
 * whose shape it does not; both 0 without a table. *ignored: what of the table was left out, as a sentence,
 * or "". */
void tune_coverage(const struct openpi_session *session, int *known, int *unknown, const char **ignored);

/* "heuristic", "pending", "confirmed", "rejected" */
const char *tune_outcome_name(tune_outcome outcome);
/* What part of what the roofs allow `us` reaches; 0 where a roof is not known. */
double tune_roof_ratio(const tune *tune, const tune_row *row, double us);

/* tune_journal.c */
openpi_status tune_journal_read(tune *tune, const device *device, openpi_error *error);
openpi_status tune_journal_add(const tune *tune, const device *device, const tune_row *row,
                               openpi_error *error);
/* A new row, zeroed; its address holds until the next. NULL: out of memory. */
tune_row *tune_row_add(tune *tune);
tune_row *tune_row_find(tune *tune, const tuning_key *key);
/* Adds {"row": …} fields beside the entry's; NULL: out of memory. */
json_t *tune_row_json(const tune_row *row);

#endif
