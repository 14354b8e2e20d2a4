/* What engine and session contain. For measure/ and the tests; not installed. */
#ifndef OPENPI_INTERNAL_H
#define OPENPI_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <jansson.h>

#include "checkpoint/identity.h"
#include "model/w8_plan.h"
#include "tuning/step_ranges.h"

/* Which weights of an engine are not those of its checkpoint. */
enum { AS_STORED, BY_ADAPTER, BY_TENSORS };

/* Where an engine's weights can be read again (engine_base.c). */
typedef struct engine_origin {
    char *path, *adapter;                /* malloc; path NULL: synthetic                                   */
    openpi_synthetic synthetic;
    int missing_chunks_are_zero;
    uint64_t stamp;                      /* the files' when they were opened                               */
    char own[IDENTITY_TEXT];             /* which weights the checkpoint's are without an adapter, and     */
    char identity[IDENTITY_TEXT];        /* with what updates replaced; "": not yet known                  */
    uint8_t *marks;                      /* [tensors_count]: AS_STORED …                                   */
} engine_origin;

struct openpi_engine {
    checkpoint *checkpoint;
    pool *pool;
    device *device;
    model *model;
    struct openpi_engine *base;          /* an engine whose checkpoint, threads and device it uses, or NULL */
    w8_plan *w8;                         /* where the formats are a plan's, else NULL                      */
    int error_accepted;                  /* 1: it counts although a figure is above its bound              */
    openpi_dtype dtype;
    uint32_t off;                        /* switches that are off                                          */
    struct tuning *tuning;               /* the table in use, or NULL                                      */
    atomic_int users;                    /* its opener and its sessions: the last to close frees all       */
    long process;                        /* id of the process that opened it                               */
    char identity[IDENTITY_TEXT];        /* which weights these are                                        */
    pthread_mutex_t update_lock;         /* one update at a time has it                                    */
    pthread_mutex_t lock;                /* guards what follows                                            */
    pthread_cond_t changed;
    int running, updating;               /* calls of sessions; 1: weights are being replaced               */
    uint64_t version;                    /* updates so far                                                 */
    engine_origin origin;                /* an update has it, with update_lock                             */
};

/* engine_update.c: a session's call is between these two, and sees one version of the weights. */
void engine_enter(openpi_engine *engine);
void engine_leave(openpi_engine *engine);

/* engine_base.c. Notes where the weights are from, once the checkpoint is open. */
openpi_status engine_keep_origin(openpi_engine *engine, const checkpoint_source *source,
                                 openpi_error *error);
/* Once engine.identity is known. */
void engine_name_origin(openpi_engine *engine);
void engine_forget_origin(openpi_engine *engine);
/* 1: an adapter, or LoRA of the checkpoint, changes some of its weights. */
int engine_has_adapter(const openpi_engine *engine);

/* Tensors that an update puts in the place of an engine's. Zeros: none. */
typedef struct engine_change {
    tensor *taken;                       /* [count] of the checkpoint's names, with other numbers          */
    int count;
    checkpoint *base;                    /* what they and those that are packed with them are read from; NULL:
                                            nothing else is read                                           */
    uint8_t *marks;                      /* [tensors_count]: origin.marks afterwards                       */
} engine_change;

/* No tensors yet, places for `count`. */
openpi_status engine_change_make(const openpi_engine *engine, int count, engine_change *change,
                                 openpi_error *error);
/* What an adapter changes, and what the one before it did. Takes the adapter over, also where it fails.
 * adapter NULL: the checkpoint's own in the place of all that is not. */
struct adapter;
openpi_status engine_change_base(openpi_engine *engine, struct adapter *adapter, engine_change *change,
                                 openpi_error *error);
void engine_change_free(engine_change *change);

/* Whose prefix is in the cache: what a later call is compared with, besides the inputs themselves. */
typedef struct kept_prefix {
    int batch, chunks;                   /* batch 0: there is none                                         */
    uint64_t version;                    /* which weights it was computed with                             */
    plan_kind kind;                      /* the plan that has computed it                                  */
    int has_state;                       /* 1: the state token's K and V are there, too                    */
    openpi_pixels pixels;
    uint8_t mask[OPENPI_MAX_BATCH][OPENPI_CAMERAS];
    int tokens[OPENPI_MAX_BATCH];
} kept_prefix;

struct openpi_session {
    openpi_engine *engine;
    openpi_session_options options;      /* resolved: no zero left but the seed                            */
    int default_horizon, default_prompt; /* 1: the caller left it to the checkpoint                        */
    plan *plan;
    void *memory, *work;                 /* device: buffers and the backend's work block                   */
    call_kinds kinds;                    /* the plan's kernel choices and recordings                       */
    /* Over the same buffers, NULL: has none. With the option rtc the plans of real-time chunking, with parts
     * those of prefix and steps. */
    plan *more_plans[PLAN_KINDS];
    call_kinds more_kinds[PLAN_KINDS];
    step_ranges ranges;                  /* with parts: recordings of some of their steps                  */
    plan_inputs in;                      /* the host's copy of the inputs                                  */
    void *host;                          /* its memory; NULL for the processor, which reads the plan's     */
    openpi_sample samples[OPENPI_MAX_BATCH]; /* of the call that runs                                      */
    openpi_rtc rtc[OPENPI_MAX_BATCH];    /* the same, defaults resolved                                    */
    call_counts last;                    /* of the newest call                                             */
    kept_prefix kept;
    float *times;                        /* [options.times] those of the newest timed step, whose columns are
                                            computed; then room for as many embeddings                     */
    int times_count;
    uint64_t version;                    /* which weights its schedule was computed with                   */
    uint64_t runs, prefixes_kept;
    uint64_t counts[INT8_COUNTS];        /* what 8-bit codes lost in all calls                             */
    openpi_observer observer;
    void *observer_user;
    /* Tests: called before the tables go to the device, to plant faults in them. */
    void (*on_tables)(void *user, call_tables *tables);
    void *on_tables_user;
    /* Instruments (lab/measure/timed.h): runs the plan in a call, in place of the recording; may be NULL. */
    openpi_status (*on_run)(void *user, openpi_session *session, double *stage_ms, openpi_error *error);
    void *on_run_user;
};

/* 1 where the device has a copy of the inputs. */
static inline int session_is_staged(const openpi_session *s) {
    return s->host && !s->plan->shape.inputs_apart;
}

/* What a model of an engine with these options computes in and keeps its weights in. */
model_types engine_types(openpi_dtype type, openpi_weights weights);
/* The same with a list of formats by group, or NULL. */
openpi_status engine_formats(openpi_dtype type, openpi_weights weights, const char *formats, model_types *out,
                             openpi_error *error);

/* What openpi_engine_open has no option for. */
typedef struct engine_more {
    formats_measured measured;           /* the caller's until the engine is open; zeros: a plan's         */
    int keep_files;                      /* 1: the checkpoint can still be read afterwards (engine_beside) */
} engine_more;
openpi_status engine_open_more(const char *path, const openpi_engine_options *options,
                               const engine_more *more, openpi_engine **engine, openpi_error *error);

/* The same checkpoint on the same device in other formats, beside an engine whose files were kept: matrices
 * of groups whose formats are alike are shared. It keeps the base open. */
openpi_status engine_beside(openpi_engine *base, const char *formats, formats_measured measured,
                            openpi_engine **engine, openpi_error *error);

/* w8.c. Where `formats` is "w8": reads the plan that it names. *plan NULL: it is another list, or none. */
openpi_status w8_take(const checkpoint_source *source, const checkpoint *checkpoint, const char *formats,
                      openpi_dtype type, int accept, w8_plan **plan, openpi_error *error);
/* Runs the stored observation of the engine's plan, and notes what the plan says of itself. */
openpi_status w8_prove(openpi_engine *engine, const char *source, int accept, openpi_error *error);

/* An engine with one user and nothing open; NULL: no memory. */
openpi_engine *engine_new(void);
/* One user less; the last one frees the engine. */
void engine_release(openpi_engine *engine);

/* 1 in a child of the process that opened the engine: the engine's threads and device do not exist there. */
int engine_inherited(const openpi_engine *engine);
/* Fails in such a child; `doing` begins the sentence ("session run"). */
openpi_status engine_check_process(const openpi_engine *engine, const char *doing, openpi_error *error);

/* For instruments: sets which switches are off, for sessions created from now on. Switches that decide how
 * weights are packed (MODEL_SWITCHES) cannot change: where they differ, nothing happens and 0 is returned. */
int engine_set_off(openpi_engine *engine, uint32_t off);

/* The devices' part of openpi_inspect: appends a row for every device of these backends and every dtype. */
openpi_status inspect_devices(const checkpoint *checkpoint, const backend *const *list, const char *formats,
                              json_t *out, openpi_error *error);

/* openpi_session_create with a plan option that only tests and the ladder use. */
openpi_status session_create(openpi_engine *engine, const openpi_session_options *options,
                             int state_every_step, openpi_session **session, openpi_error *error);

/* observe.c: runs the call's plan op by op and passes tensors to the session's observer. */
openpi_status session_run_observed(openpi_session *s, const plan *plan, int batch, double *stage_ms,
                                   openpi_error *error);

#endif
