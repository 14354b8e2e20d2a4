/* One engine's answers to all observations. */
#ifndef QUANTIZE_RUNS_H
#define QUANTIZE_RUNS_H

#include "lab/quantize/quantize.h"

/* What all runs share, and how far they are. */
typedef struct gate {
    const observations *observations;
    const quantize_options *options;
    quantize_result *result;
    chunks_shape shape;
    int steps, max_prompt;
    chunks reference, other, fp32, last;
    struct openpi_engine *base;  /* the reference's, kept open: candidates load only what differs; or NULL  */
} gate;

/* How an engine is opened: the reference's dtype with a list of formats, or fp32 throughout. */
typedef struct run_kind {
    const char *name;            /* for progress: "ffn=int8"                                              */
    const char *formats;
    int fp32;
    int reference;               /* 1: its rows are looked at (quantize_result.powers), and it stays open  */
} run_kind;

typedef struct run_facts {
    double ms, bytes;            /* a call, median; packed weights                                        */
    char formats[FORMATS_TEXT];
    char path[32];               /* kernels                                                               */
    char identity[17];           /* checkpoint_identity                                                   */
} run_facts;

openpi_status chunks_make(const chunks_shape *shape, chunks *out, openpi_error *error);
void chunks_free(chunks *c);

/* Opens the engine, runs every observation into *out, closes it. `facts` may be NULL. `also`: the same with
 * other noise, by the same engine; may be NULL. */
openpi_status run_all(gate *g, const run_kind *kind, chunks *out, chunks *also, run_facts *facts,
                      openpi_error *error);

/* The noise of an observation: openpi_noise(seed, stream). */
uint64_t run_stream(const gate *g, int observation, int other);

#endif
