/* openpi-w8.json: which groups of products may have 8 bits, as `openpi quantize` measured it on a checkpoint.
 * The file lies beside the checkpoint, or where w8=FILE says. docs/w8.md describes it.
 *
 *   writing   w8_json -> whatever else the file tells -> w8_text, which seals it
 *   reading   w8_read: refused where it is missing, cut, edited, of another format, of other weights, of
 *             another dtype or above its bound
 *   opening   the stored observation is run again (openpi.c) and judged by w8_judge
 *
 * Sentences end in the command that makes a new one. */
#ifndef MODEL_W8_PLAN_H
#define MODEL_W8_PLAN_H

#include <jansson.h>

#include "checkpoint/checkpoint.h"
#include "model/formats.h"

#define W8_FILE "openpi-w8.json"
enum { W8_FORMAT = 1, W8_BOUNDS = 64, W8_PATH = 512 };

/* A figure that was measured, and the largest that is allowed. */
typedef struct w8_bound {
    char what[80];               /* "rms", "joint_1 in rad"                                               */
    double limit, found;
} w8_bound;

/* One observation to be run again. Actions are those of fp32 throughout, so that the distance is the same
 * size on every device: that of 8 bits and of the device's own rounding. */
typedef struct w8_check {
    openpi_sample sample;        /* its pointers are the caller's; of a plan that was read, the plan's    */
    uint64_t seed, stream;       /* openpi_noise takes them                                              */
    int horizon, steps, max_prompt, action_dim;
    const float *actions;        /* [horizon][32]                                                         */
    double rms;                  /* distance of the 8-bit actions from them, over action_dim columns      */
} w8_check;

typedef struct w8_plan {
    json_t *root;                /* owns the texts                                                        */
    char path[W8_PATH];
    const char *formats;         /* "bf16,ffn=int8x8,expert=int8"                                         */
    const char *path_name;       /* the kernels that it was measured on, "avx2"                           */
    int observations, synthetic;
    w8_bound bounds[W8_BOUNDS];
    int bound_count, worst;      /* worst: the bound that is nearest, or exceeded most                    */
    w8_check check;
    void *pictures[OPENPI_CAMERAS];
    int32_t *tokens;
    float *state, *actions;
    int8_t *powers;              /* smooth_count, NULL where no group is smoothed (smoothing.h)            */
    float *row_scales;           /* formats_row_scales, NULL where rows have scales of their own           */
} w8_plan;

/* 1: a list of formats that is "w8" or "w8=FILE". */
int w8_asked(const char *formats);
/* Where the plan of a checkpoint lies: "w8=FILE" says it, else beside the weights, or the adapter. */
openpi_status w8_place(const char *formats, const char *checkpoint, const char *adapter, int without_lora,
                       char path[W8_PATH], openpi_error *error);

/* accept 1: figures above their bounds are no reason to refuse. `source`: the checkpoint's path for the
 * sentences' command. */
openpi_status w8_read(const char *path, const checkpoint *checkpoint, const char *source, dtype act,
                      int accept, w8_plan **out, openpi_error *error);
void w8_close(w8_plan *plan);
/* What a model takes of it while it loads. */
formats_measured w8_measured(const w8_plan *plan);
/* 1: a figure is above its bound. */
int w8_above(const w8_bound *bound);
/* The distance of the stored observation's actions, [horizon][32], in the plan's measure. */
double w8_distance(const w8_check *check, const float *actions);
/* Is the distance that was found when the stored observation ran again within 10 % of what was recorded? */
openpi_status w8_judge(const w8_plan *plan, double found, const char *source, openpi_error *error);

/* {"checkpoint", "formats", "dtype", "path", "observations", "synthetic", "bounds", "check"} and
 * "smoothing" and "row_scales", where there are any: a new reference, NULL: out of memory. */
typedef struct w8_contents {
    const char *identity, *formats, *path_name;
    dtype act;
    int observations, synthetic;
    const w8_bound *bounds;
    int bound_count;
    const w8_check *check;
    const int8_t *powers;        /* [power_count], NULL where no group is smoothed                         */
    size_t power_count;
    const float *row_scales;     /* [row_scale_count], NULL where rows have scales of their own            */
    int row_scale_count;
} w8_contents;
json_t *w8_json(const w8_contents *contents);
/* Adds "digest" and gives the file's text, malloc; NULL: out of memory. */
char *w8_text(json_t *root);

#endif
