/* openpi_runner.h - from chunks to an arm that moves all day.
 *
 * A runner stands between chunks and a robot's control loop. Observations go in when they come, an action
 * comes out at every call of openpi_runner_next, and a thread of the runner's own computes chunks in between.
 * docs/runner.md is for users.
 *
 * Example
 *   A control loop. Engine and policy are open (openpi.h), and what is not set keeps its default.
 *
 *     openpi_runner_options options = OPENPI_RUNNER_OPTIONS_INIT;
 *     openpi_runner_state state = OPENPI_RUNNER_STATE_INIT;
 *     openpi_error error = OPENPI_ERROR_INIT;
 *     openpi_runner *runner = NULL;
 *     double action[OPENPI_ACTION_DIM];
 *
 *     if (openpi_runner_open(engine, policy, NULL, &options, &runner, &error)) {
 *         complain(error.message);
 *         return;
 *     }
 *     while (next_period(&now_ms)) {
 *         if (look(&observation) && openpi_runner_observe(runner, &observation, now_ms, &error))
 *             complain(error.message);
 *         if (openpi_runner_next(runner, now_ms, action, &state) != OPENPI_MOVE_ACTION)
 *             complain(openpi_reason_text(state.reason));
 *         if (state.known) send_to_the_arm(action);
 *     }
 *     openpi_runner_close(runner);
 *
 * Threads
 *   openpi_runner_next on one thread, the control thread: it waits for no other thread, allocates nothing and
 *   calls no source. All other functions on any thread, at once, but openpi_runner_close.
 *
 * Times
 *   Milliseconds of one clock that the caller chooses and that never goes back, CLOCK_MONOTONIC as a rule:
 *   `now_ms` of openpi_runner_next and `taken_ms` of observations are compared with each other.
 *
 * The rules and sizes of openpi.h hold here, too.
 */
#ifndef OPENPI_RUNNER_H
#define OPENPI_RUNNER_H

#include "openpi.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct openpi_runner openpi_runner;

/* ---- seams, endings, moves and reasons ------------------------------------------------------------ */

/* How a chunk takes over from the one before it. Row 0 of a chunk is the step that was next when its
 * observation was taken, so its row d is next, where d steps were executed since: the measured delay. */
typedef enum openpi_seam {
    OPENPI_SEAM_REPLACE = 0,     /* at once, with row d                                              */
    OPENPI_SEAM_BLEND = 1,       /* as REPLACE; the difference between the two fades out linearly     */
    OPENPI_SEAM_APPEND = 2,      /* when the chunk before has no rows left, with the row of that step */
} openpi_seam;

/* What a robot does when actions run out or may not be used. */
typedef enum openpi_ending {
    OPENPI_ENDING_HOLD = 0,      /* positions repeat the last one, velocities are 0, at once          */
    OPENPI_ENDING_DECELERATE = 1,    /* the last motion fades out linearly, then HOLD                */
    OPENPI_ENDING_STOP = 2,      /* HOLD, and no motion until openpi_runner_resume                   */
} openpi_ending;

/* What a call of openpi_runner_next gives. */
typedef enum openpi_move {
    OPENPI_MOVE_ACTION = 0,      /* an action of a chunk                                             */
    OPENPI_MOVE_HOLD = 1,        /* holding still, until it recovers by itself                       */
    OPENPI_MOVE_STOP = 2,        /* holding still until openpi_runner_resume                         */
} openpi_move;

/* X(name, value, text): why a robot is held or stopped. */
#define OPENPI_REASON_LIST(X)                                                                     \
    X(OPENPI_REASON_NONE, 0, "it moves")                                                          \
    X(OPENPI_REASON_STARTING, 1, "no chunk has come yet")                                         \
    X(OPENPI_REASON_NO_ACTIONS, 2, "the next chunk is late")                                      \
    X(OPENPI_REASON_OLD_OBSERVATION, 3, "the newest observation is too old")                      \
    X(OPENPI_REASON_FROZEN_CAMERA, 4, "a camera gives the same picture again and again")          \
    X(OPENPI_REASON_BLACK_CAMERA, 5, "a camera gives a black picture")                            \
    X(OPENPI_REASON_LOST, 6, "the policy server cannot be reached")                               \
    X(OPENPI_REASON_FAILED, 7, "the last chunk could not be computed")                            \
    X(OPENPI_REASON_LIMIT, 8, "an action is beyond the robot's limits")                           \
    X(OPENPI_REASON_ASKED, 9, "openpi_runner_stop was called")

typedef enum openpi_reason {
#define X(name, value, text) name = value,
    OPENPI_REASON_LIST(X)
#undef X
} openpi_reason;

/* The text of a reason; "unknown reason" for other values. Constant, never NULL. */
OPENPI_API const char *openpi_reason_text(openpi_reason reason);

/* ---- sources: what computes chunks ---------------------------------------------------------------- */

/* What a source is asked to compute. Its pointers are valid during the call. */
typedef struct openpi_chunk_call {
    size_t size;                 /* sizeof(openpi_chunk_call)                                        */
    const openpi_observation *observation;
    const openpi_field *fields;  /* [field_count] the same under the robot's request keys; NULL: the source
                                    does not want them                                               */
    int field_count;
    int follows;                 /* 1: real-time chunking: it is to follow on from the source's last chunk */
    int executed;                /* rows of that chunk that were executed when the observation was taken  */
    int delay;                   /* further rows that will be executed until this chunk is there          */
    void *lent;                  /* `user` of openpi_runner_lend; else NULL                          */
    double deadline_ms;          /* after so long nothing needs the chunk; 0: none                   */
    double held_ms;              /* how long the robot was held since the last call that succeeded   */
    openpi_reason reason;        /* why, at last; NONE: it was not                                   */
    int used;                    /* as `executed`, with or without real-time chunking; -1: unknown    */
} openpi_chunk_call;

#define OPENPI_CHUNK_CALL_INIT \
    {sizeof(openpi_chunk_call), NULL, NULL, 0, 0, 0, 0, NULL, 0, 0, OPENPI_REASON_NONE, -1}

typedef struct openpi_chunk {
    size_t size;                 /* sizeof(openpi_chunk)                                             */
    int rows;                    /* 1 … 64                                                           */
    int lost;                    /* on failure: 1: the server cannot be reached; 0: it refuses       */
    int action_dim;              /* as given                                                         */
    int reserved;                /* 0                                                                */
    double *actions;             /* [rows][action_dim] of 64 rows' memory, which the source fills     */
    double *start;               /* [action_dim] where actions start in the observation, as
                                    openpi_request_action_start; as given: what the robot's record says */
} openpi_chunk;

#define OPENPI_CHUNK_INIT {sizeof(openpi_chunk), 0, 0, 0, 0, NULL, NULL}

/* What computes a runner's chunks. `infer` runs on the runner's thread, one call at a time; an error is said
 * with its sentence and holds the robot until a chunk comes. `cancel` (may be NULL) on any thread: the call
 * that runs shall return soon, with OPENPI_CANCELLED. `close` (may be NULL): openpi_runner_close and a failed
 * openpi_runner_over_source call it once. */
typedef struct openpi_source {
    size_t size;                 /* sizeof(openpi_source)                                            */
    void *user;
    openpi_status (*infer)(void *user, const openpi_chunk_call *call, openpi_chunk *chunk,
                           openpi_error *error);
    void (*cancel)(void *user);
    void (*close)(void *user);
    size_t wants_fields;         /* 1: calls have fields                                             */
} openpi_source;

#define OPENPI_SOURCE_INIT {sizeof(openpi_source), NULL, NULL, NULL, NULL, 0}

/* ---- opening and closing -------------------------------------------------------------------------- */

/* Read by the function that makes a runner only. */
typedef struct openpi_runner_options {
    size_t size;                 /* sizeof(openpi_runner_options)                                    */
    const char *robot;           /* as openpi_policy_options'; over an engine: NULL, the policy's    */
    double rate_hz;              /* rows of a chunk a second; default the robot's                     */
    int calls_per_step;          /* calls of openpi_runner_next a row, 1 … 1,000; default 1           */
    int interpolate;             /* 1: positions go from row to row in calls_per_step equal parts     */
    openpi_action_kind kind;     /* where the robot does not say an action's; default: refused */
    openpi_seam seam;            /* default REPLACE                                                  */
    int blend_steps;             /* BLEND: 1 … 64; default 5                                         */
    openpi_ending ending;        /* default HOLD                                                     */
    int decelerate_steps;        /* DECELERATE: 1 … 64; default 5                                    */
    int ask_after;               /* rows of a chunk to execute before the next is asked for; default 5 */
    openpi_rtc_mode rtc;         /* GUIDED or TRAINED; default OFF. Not with APPEND                  */
    int reserved;                /* 0                                                                */
    double max_age_ms;           /* the newest observation may be so old; default 500; infinite: any age */
    double deadline_ms;          /* a chunk is not used so long after its observation was taken; default the
                                    time of OPENPI_MAX_HORIZON rows                                  */
    double retry_ms;             /* from a failed call to the next; default 1000 where the server is lost,
                                    else 0                                                           */
    int frozen_after;            /* observations with the same picture that make a camera frozen;
                                    default 10; -1: none do, as in a simulator                       */
    int black_allowed;           /* 1: a picture may be black                                        */
} openpi_runner_options;

#define OPENPI_RUNNER_OPTIONS_INIT                                                                      \
    {sizeof(openpi_runner_options), NULL, 0, 0, 0, OPENPI_ACTION_UNKNOWN, OPENPI_SEAM_REPLACE, 0,       \
     OPENPI_ENDING_HOLD, 0, 0, OPENPI_RTC_OFF, 0, 0, 0, 0, 0, 0}

/* A runner over a model in this process. It makes a session and a request of its own. Engine and policy must
 * stay open. `session` (may be NULL) as of openpi_session_create; its `rtc` is set by options->rtc. On
 * success *runner is the caller's, for openpi_runner_close.
 *   OPENPI_BAD_ARGUMENT  an option out of its range, a kind or rate that nothing says, a policy that does
 *                        not belong to the engine */
OPENPI_API openpi_status openpi_runner_open(openpi_engine *engine, const openpi_policy *policy,
                                            const openpi_session_options *session,
                                            const openpi_runner_options *options, openpi_runner **runner,
                                            openpi_error *error);
/* A runner over any source, such as a policy server. options->robot says how many numbers an action
 * has. The source is copied. */
OPENPI_API openpi_status openpi_runner_over_source(const openpi_source *source,
                                                   const openpi_runner_options *options,
                                                   openpi_runner **runner, openpi_error *error);
/* Cancels the call that runs, waits for its end and frees everything. */
OPENPI_API void openpi_runner_close(openpi_runner *runner);

/* ---- observations in ------------------------------------------------------------------------------ */

/* Gives the runner an observation that was taken at `taken_ms`. The newest wins: one that no call has taken
 * yet is replaced, one that is older than another before it is forgotten. Everything is copied; memory is
 * taken where a picture is larger than those before. */
OPENPI_API openpi_status openpi_runner_observe(openpi_runner *runner, const openpi_observation *observation,
                                               double taken_ms, openpi_error *error);
/* The same from fields[count] under the robot's request keys, as openpi_request_prepare_fields takes them. */
OPENPI_API openpi_status openpi_runner_observe_fields(openpi_runner *runner, const openpi_field *fields,
                                                      int count, double taken_ms, openpi_error *error);
/* The same, and pictures stay where they are: state and prompt are copied, pictures must not be changed or
 * freed until release(user), which is called once for every call of this function that succeeds, on the
 * thread that replaces the observation, on the runner's own, or in openpi_runner_close. On failure it is not
 * called. */
OPENPI_API openpi_status openpi_runner_lend(openpi_runner *runner, const openpi_observation *observation,
                                            double taken_ms, void (*release)(void *user), void *user,
                                            openpi_error *error);

/* ---- actions out ---------------------------------------------------------------------------------- */

typedef struct openpi_runner_state {
    size_t size;                 /* sizeof(openpi_runner_state)                                      */
    openpi_move move;
    openpi_reason reason;        /* NONE where it moves                                              */
    uint64_t step;               /* rows that were executed so far; with MOVE_ACTION this one is the last */
    uint64_t chunk;              /* the number of its chunk, from 1; 0: none yet                     */
    int row;                     /* in that chunk                                                    */
    int delay;                   /* measured when it took over: rows executed since its observation   */
    int fresh;                   /* 1: a row that no call before gave; 0: repeated, interpolated, held */
    int left;                    /* rows left after this one, of all chunks at hand                   */
    int limited;                 /* numbers of this action that limits changed                       */
    int known;                   /* 0: `action` says nothing, because nothing was executed yet       */
    double age_ms;               /* the newest observation's; infinite: none                        */
} openpi_runner_state;

#define OPENPI_RUNNER_STATE_INIT \
    {sizeof(openpi_runner_state), OPENPI_MOVE_ACTION, OPENPI_REASON_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* action[action_dim] becomes what the robot is to be given now. A call is a step (or 1/calls_per_step of
 * one), so it is called once a period. Before the first chunk positions are NaN and velocities 0. `state` may
 * be NULL; one whose `size` no release has is left untouched. A NULL runner or action is OPENPI_MOVE_STOP. */
OPENPI_API openpi_move openpi_runner_next(openpi_runner *runner, double now_ms, double *action,
                                          openpi_runner_state *state);

/* ---- stopping ------------------------------------------------------------------------------------- */

/* Holds the robot until openpi_runner_resume, which also ends a stop that an ending or a limit made. What is
 * left of a chunk is not executed; motion goes on with a chunk of a newer observation. */
OPENPI_API void openpi_runner_stop(openpi_runner *runner);
OPENPI_API void openpi_runner_resume(openpi_runner *runner);
/* Gives up the call that runs: its chunk is not used. */
OPENPI_API void openpi_runner_cancel(openpi_runner *runner);

/* ---- what it did ---------------------------------------------------------------------------------- */

typedef struct openpi_runner_info {
    size_t size;                 /* sizeof(openpi_runner_info)                                       */
    int action_dim, calls_per_step;
    double rate_hz;
    uint64_t observed, replaced; /* observations; those that a newer one replaced                    */
    uint64_t calls, failed;      /* calls of the source; those that gave no chunk                    */
    uint64_t late;               /* chunks that came too late to be used, or were cancelled          */
    uint64_t ticks, held;        /* calls of openpi_runner_next; those that held or stopped          */
    uint64_t steps, limited;     /* rows executed; numbers that limits changed                       */
    double call_ms;              /* the last call of the source                                      */
    int limits;                  /* limits of the robot that are checked; 0: none                     */
    int delay;                   /* measured, of the chunk in use                                    */
    char failure[500];           /* the sentence of the last failed call; "": none, or it works again */
    char camera[60];             /* frozen or black; "": none                                        */
} openpi_runner_info;

#define OPENPI_RUNNER_INFO_INIT \
    {sizeof(openpi_runner_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "", ""}

/* Fills *info. Not for the control thread: it may wait for the runner's. */
OPENPI_API openpi_status openpi_runner_get_info(openpi_runner *runner, openpi_runner_info *info,
                                                openpi_error *error);

#ifdef __cplusplus
}
#endif
#endif
