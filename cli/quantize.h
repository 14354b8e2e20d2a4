/* Inside `openpi quantize`: what its files share. quantize.c opens and runs, quantize_show.c tells. */
#ifndef CLI_QUANTIZE_H
#define CLI_QUANTIZE_H

#include "cli.h"
#include "head.h"
#include "lab/quantize/quantize.h"
#include "progress.h"

typedef struct quantize_values {
    const char *synthetic_model, *observations, *bound, *unit_bound, *out;
    int synthetic, most, save, horizon, steps, json;
    uint64_t seed;
    lora_values lora;
    policy_values policy;
    machine_values machine;
} quantize_values;

typedef struct quantize_job {
    const quantize_values *v;
    model_name model;
    char source[256];            /* the model for people                                                  */
    openpi_policy *policy;
    observations observations;
    quantize_options options;
    openpi_engine_options engine;
    quantize_result result;
    char place[W8_PATH];         /* where the plan goes                                                   */
    progress bar;
    int heads;                   /* lines of the table of candidates that were printed                    */
} quantize_job;

/* A quantize_options.on_candidate: a line of the table. */
void quantize_show_candidate(void *job, const quantize_candidate *candidate);
void quantize_show(const quantize_job *job);
/* What the verb measured: candidates, tries, choice, dimensions. */
json_t *quantize_report(const quantize_job *job);

#endif
