/* The time in an engine's trace by stage (ViT, prefill, diffusion, other) and by group of kernels.
 *
 * Events are added one by one, from a trace of openpi, which states stage and group of each kernel, or from
 * one of PyTorch's profiler. There a kernel's stage is that of the innermost annotation that encloses it (on
 * the device's time axis, else around its launch on the host's), and its group follows from its name.
 *
 * Note: nothing is guessed. A kernel whose name holds no known word stays in "other", with its name. */
#ifndef MEASURE_BREAKDOWN_H
#define MEASURE_BREAKDOWN_H

#include "openpi.h"

typedef enum breakdown_stage {
    BREAKDOWN_VIT, BREAKDOWN_PREFILL, BREAKDOWN_DIFFUSION, BREAKDOWN_NO_STAGE, BREAKDOWN_STAGES
} breakdown_stage;

typedef enum breakdown_group {
    BREAKDOWN_GEMM, BREAKDOWN_ATTENTION, BREAKDOWN_ACTIVATION, BREAKDOWN_NORM, BREAKDOWN_ROPE,
    BREAKDOWN_SEVERAL,           /* whole layers in one kernel, products and attention alike              */
    BREAKDOWN_NO_GROUP, BREAKDOWN_GROUPS
} breakdown_group;

/* "ViT", "prefill", "diffusion", "other"; "GEMM", "attention", … */
const char *breakdown_stage_name(breakdown_stage stage);
const char *breakdown_group_name(breakdown_group group);
/* Of openpi's traces: stages and op kinds by name. */
breakdown_stage breakdown_stage_of(const char *stage);
breakdown_group breakdown_group_of_kind(const char *kind);
/* Of other engines' traces: from the words in an annotation, in a kernel's name. */
breakdown_stage breakdown_stage_of_words(const char *annotation);
breakdown_group breakdown_group_of_words(const char *kernel);

typedef enum breakdown_kind {
    BREAKDOWN_KERNEL,            /* also copies and fills that the device does                            */
    BREAKDOWN_DEVICE_RANGE,      /* an annotation on the device's time axis                               */
    BREAKDOWN_HOST_RANGE,        /* one on the host's                                                     */
    BREAKDOWN_LAUNCH,            /* the host starts something; tied to kernels by `correlation`           */
} breakdown_kind;

typedef struct breakdown_event {
    breakdown_kind kind;
    const char *name;            /* copied                                                                */
    double start_us, dur_us;
    int64_t pid, tid, correlation;         /* correlation -1: none                                        */
    const char *stage, *group;   /* where the trace states them; else NULL                                */
} breakdown_event;

typedef struct breakdown_cell {
    int launches;
    double ms;
} breakdown_cell;

/* Kernels of one name that have no stage or no group. */
typedef struct breakdown_stray {
    const char *name;
    breakdown_stage stage;
    breakdown_group group;
    breakdown_cell cell;
} breakdown_stray;

typedef struct breakdown breakdown;

breakdown *breakdown_create(void);         /* NULL: no memory                                             */
void breakdown_free(breakdown *breakdown);
openpi_status breakdown_add(breakdown *breakdown, const breakdown_event *event, openpi_error *error);

/* Sums over the whole trace. */
typedef struct breakdown_sums {
    breakdown_cell cells[BREAKDOWN_STAGES][BREAKDOWN_GROUPS], all;
    double span_ms;              /* from the first kernel's start to the last one's end                   */
    int profiler_steps;          /* annotations of PyTorch's profiler that mark a step                    */
    int staged;                  /* kernels whose stage is known                                          */
    const breakdown_stray *strays;         /* by time; the breakdown owns them                            */
    int stray_count;
} breakdown_sums;

/* Assigns every kernel to stage and group. Called once, after the last event. */
openpi_status breakdown_finish(breakdown *breakdown, breakdown_sums *sums, openpi_error *error);

#endif
