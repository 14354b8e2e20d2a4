/* A golden's model level: prepared tensors and noise -> normalised actions, with every stage on the way. Two
 * kinds of golden hold it: those of the project (verify_model.c, synthetic weights) and those that a user
 * recorded from a checkpoint (verify_recorded.c). They differ in how the weights are found and in what sets
 * the bounds. */
#ifndef MEASURE_VERIFY_MODEL_H
#define MEASURE_VERIFY_MODEL_H

#include "lab/verify/verify_case.h"

enum { MODEL_PIXELS = OPENPI_IMAGE_SIZE * OPENPI_IMAGE_SIZE * 3 };

/* An fp32 stage may be off by this times its largest value. */
#define MODEL_STAGE_BOUND 1e-3

typedef struct golden_model {
    openpi_synthetic synthetic;              /* dims and variant; the seed of synthetic weights */
    int64_t B, H, N, L, R, kept;             /* R rows of K,V; kept tokens a camera (every 29th)       */
    openpi_pixels pixels;
    void *images;                            /* u8 or float [B][3][224][224][3]                        */
    uint8_t *image_mask, *token_mask;
    int32_t *tokens, *rows;
    float *state, *noise;
    const char *truth_name;
    float *truth, *torch;                    /* actions [B][H][32]; torch: a second fp32, may be NULL  */
    double bound_cpu, bound_gpu;             /* bound on the distance of the fp32 actions              */
    double bound_bf16_max, bound_bf16_rms;   /* bounds on the distance of the bf16 actions             */
    int eight_bits;                          /* 1: those count in fp32 too                             */
    double agree;                            /* how far the golden's own actions and stage.x may be apart */
    float *image_tokens, *k, *v, *suffix, *time, *velocity, *x;     /* stages; time NULL: none recorded */
    /* Prepared: prompts without their holes. */
    openpi_sample *samples;
    int32_t *compact;                        /* [B][R] row among the valid ones, -1: masked            */
    float *actions;                          /* [B][H][32]                                             */
} golden_model;

/* Reads in.*: sets B and the inputs. H and L are known. */
openpi_status model_inputs(verify_case *c, const tensors *file, const char *path, golden_model *g,
                           openpi_error *error);
/* Reads stage.*; dims and inputs are known. */
openpi_status model_stages(verify_case *c, const tensors *file, golden_model *g, openpi_error *error);
/* Makes samples with their valid tokens only, and the map from stored rows of K and V to the engine's. */
openpi_status model_prepare(verify_case *c, golden_model *g, openpi_error *error);
/* Fails the case if the golden's own numbers contradict each other: x after a step is x before plus dt·v, the
 * actions are the last x, two fp32 models agree. This detects changed numbers that are within every bound. */
void model_consistent(verify_case *c, const golden_model *g);
/* Runs the batch, the batch repeated, and each sample alone, in a session of `engine`; judges
 * times, stages (fp32) and actions. */
openpi_status model_judge(verify_case *c, golden_model *g, openpi_engine *engine, openpi_error *error);

/* 8 bits change actions by more than rounding does: the bounds grow, and stages are not judged. */
void model_widen(golden_model *g, const openpi_engine *engine);
/* Judges actions [count] of any unit against the bounds of the case's dtype and device. */
void model_judge_actions(verify_case *c, const golden_model *g, const char *what, const distance *d);

/* ---- stages (verify_stages.c) ------------------------------------------------------------------------ */

/* The largest distance of each stage piece, -1 while it has not been seen. */
typedef struct stages {
    const golden_model *g;
    double *image_tokens, *k, *v, *suffix, *velocity, *x;     /* [B][3] [depth][B] ×2 [B] [N][B] ×2   */
    char unexpected[96];
} stages;

openpi_status stages_begin(verify_case *c, const golden_model *g, stages *s, openpi_error *error);
/* An openpi_observer; `user` is the stages. */
void stages_observe(void *user, openpi_tensor tensor, int sample, int index, const float *data, int rows,
                    int columns);
/* Fails the case at the first stage, in the pipeline's order, beyond MODEL_STAGE_BOUND. */
void stages_judge(verify_case *c, const golden_model *g, const stages *s);

#endif
