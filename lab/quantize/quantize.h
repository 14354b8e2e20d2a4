/* The gate: which groups of a checkpoint's products may have 8 bits, by measurement on a user's observations.
 *
 *   reference     in the engine's dtype, without 8 bits; beside it fp32 throughout, and other noise
 *   calibration   how large channels are, by the reference's rows (calibrate.h)
 *   candidates    each group in each format of 8 bits, alone; integers also smoothed (model/smoothing.h);
 *                 ffn's rows also with one scale a layer (matrix.row_scale)
 *   choice        by predicted error and what is saved (choose.h)
 *   confirmed     the choice run as a whole; a table with less error is tried until every bound holds
 *
 * All runs are on the device of the options. The reference stays open, and candidates share with it what
 * their formats leave alike, where there is memory for both; else one engine at a time. docs/w8.md is for
 * users. */
#ifndef QUANTIZE_H
#define QUANTIZE_H

#include "lab/quantize/choose.h"
#include "lab/quantize/differences.h"
#include "lab/quantize/observations.h"
#include "model/formats.h"

typedef enum quantize_save {
    QUANTIZE_AUTO,               /* ms where a candidate is faster than the reference, else bytes          */
    QUANTIZE_MS,
    QUANTIZE_BYTES,
} quantize_save;

enum { QUANTIZE_FORMS = 4, QUANTIZE_CANDIDATES = QUANTIZE_FORMS * GROUPS * FORMATS, QUANTIZE_TRIES = 12 };

typedef struct quantize_candidate {
    weight_group group;
    product_format format;
    int smooth;                  /* 1: its channels are made alike                                        */
    int fixed;                   /* 1: the rows that its down reads have one scale a layer                */
    int measured;                /* 0: refused, `why` says it                                             */
    char why[200];
    double ms_saved, bytes_saved;
    differences off;             /* from the reference                                                    */
    double share;                /* found, as a share of the nearest bound                             */
    int taken;                   /* in the final table                                                    */
    int dropped;                 /* was chosen, and taken back                                            */
} quantize_candidate;

/* A table that was run as a whole. */
typedef struct quantize_try {
    char formats[FORMATS_TEXT];
    double predicted, share;     /* shares of the nearest bound; predicted 0: nothing was predicted      */
    double rms, ms;
} quantize_try;

typedef struct quantize_options {
    const char *checkpoint;
    const openpi_engine_options *engine;   /* formats and weights are not looked at                       */
    const char *list;            /* not NULL: this table is judged, nothing is chosen                     */
    bounds_given bounds;
    quantize_save save;
    int horizon, steps;          /* 0: the policy's, else the checkpoint's                                */
    uint64_t seed;
    openpi_progress progress;    /* also of loading                                                       */
    void *progress_user;
    /* After each candidate, on the calling thread; may be NULL. */
    void (*on_candidate)(void *user, const quantize_candidate *candidate);
    void *on_candidate_user;
} quantize_options;

typedef struct quantize_result {
    quantize_candidate candidates[QUANTIZE_CANDIDATES];
    int candidate_count;
    quantize_try tries[QUANTIZE_TRIES];
    int try_count;
    int holds;                   /* 1: the last try is within every bound                                 */
    int by_ms;                   /* 1: the choice was by ms, 0: by bytes                                  */
    w8_bound bounds[W8_BOUNDS];  /* as the last try found them                                            */
    int bound_dims[W8_BOUNDS], bound_count;
    differences off;             /* the last try from the reference                                       */
    differences own;             /* the reference from fp32: bf16's own error                             */
    differences noise;           /* the reference from itself with other noise                            */
    int chunks_far;              /* chunks that are off by more than a quarter of what noise changes      */
    int fp32_rounded;            /* 1: fp32 ran with weights rounded to bf16, for want of memory          */
    double ms, ms_taken, bytes, bytes_taken;   /* a call and its weights, before and after                */
    int observations, horizon, dims;
    openpi_engine_info info;     /* the reference's                                                       */
    char formats[FORMATS_TEXT];  /* the last try's                                                        */
    int loads;                   /* engines that were opened whole                                        */
    int8_t *powers;              /* [power_count] of all channels                                         */
    size_t power_count;
    float *row_scales[2];        /* [row_scale_count] of hidden rows as they are; of smoothed ones        */
    int row_scale_count;
    json_t *plan;                /* w8_json of the last try; NULL: nothing has 8 bits                     */
} quantize_result;

/* *result: the caller's, for quantize_free, also after a failure. */
openpi_status quantize_run(const observations *observations, const quantize_options *options,
                           quantize_result *result, openpi_error *error);
void quantize_free(quantize_result *result);

/* Where openings look for the plan of a checkpoint, `path` of W8_PATH bytes. */
openpi_status quantize_place(const char *checkpoint, const openpi_engine_options *engine, char path[W8_PATH],
                             openpi_error *error);
/* The plan's file, malloc: `head` and what the result has to tell, `report`, stand before it; both references
 * are given up. NULL: out of memory, or there is no plan. */
char *quantize_text(const quantize_result *result, json_t *head, json_t *report);

#endif
