/* A checkpoint as it is loaded, without its weights: what turns requests into samples, and actions into
 * replies. A reload makes another one while requests of the first are under way, so a model is shared: who
 * uses one holds it, and the last who drops it closes it.
 *
 *   who holds one   prepare.h, for new requests; every job that is prepared; every device, beside its
 *                   weights */
#ifndef SERVE_MODEL_H
#define SERVE_MODEL_H

#include <stdatomic.h>

#include "serve/log/log.h"
#include "openpi.h"

/* How a checkpoint can follow on from a chunk (rtc.h). */
typedef struct rtc_offer {
    int horizon;
    int max_delay;               /* of the mode trained; 0: not offered                                    */
    openpi_rtc_mode mode;        /* where a request names none                                             */
    double max_weight;           /* likewise                                                               */
    int steps;                   /* of denoising, and the largest weight that a request gets               */
} rtc_offer;

/* A sentence of openpi_note. */
enum { MODEL_NOTES = 48 };
typedef struct model_note {
    int warning;
    char text[400];
} model_note;

typedef struct serve_model {
    uint64_t number;             /* 1 at start, and one more for every reload                              */
    openpi_policy *policy;
    openpi_policy_info info;
    int horizon;                 /* 0: left to the weights, and not loaded yet                             */
    rtc_offer rtc;               /* horizon 0: the weights are not loaded yet                              */
    openpi_variant variant;      /* from the weights on                                                    */
    char hash[24];               /* likewise: which weights                                                */
    int note_count, warning_count;               /* warnings among the notes                               */
    model_note notes[MODEL_NOTES];               /* of the engine and of the policy                        */
    atomic_int holders;
} serve_model;

/* Reads the policy. `horizon` of the sessions, 0: the checkpoint's. The caller holds *out. */
openpi_status model_open(const char *checkpoint, const openpi_policy_options *options, int horizon,
                         uint64_t number, serve_model **out, openpi_error *error);
/* The prompt of requests that have none; NULL: the robot's, as it is. */
openpi_status model_default_prompt(serve_model *model, const char *prompt, openpi_error *error);
/* Takes the notes of the policy and of an engine that has loaded the model's weights, in place of those that
 * are there. */
void model_take_notes(serve_model *model, const openpi_engine *engine);
/* One log line a note, warnings as such. */
void model_say_notes(const serve_model *model, logger *log);
/* Returns the model. */
serve_model *model_hold(serve_model *model);
/* NULL is none. */
void model_drop(serve_model *model);

/* May `fresh` take the place of `running`, whose clients know its robot and its sizes? Of `fresh` what is not
 * loaded yet is not asked about. */
openpi_status model_fits(const serve_model *running, const serve_model *fresh, openpi_error *error);

#endif
