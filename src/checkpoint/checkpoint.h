/* What a checkpoint is: its tensors, the dimensions read from their shapes, and its config. */
#ifndef MODEL_CHECKPOINT_H
#define MODEL_CHECKPOINT_H

#include <jansson.h>

#include "base/notes.h"
#include "checkpoint/layout.h"
#include "checkpoint/place.h"
#include "checkpoint/presets.h"
#include "checkpoint/tensors.h"
#include "checkpoint/variant.h"

/* LeRobot policies/rtc/configuration_rtc.py */
enum { RTC_HORIZON = 10, RTC_MAX_WEIGHT = 10 };

/* What modes and schedules are called, by their number; NULL where they have none. */
enum { RTC_MODES = OPENPI_RTC_VJP + 1, RTC_SCHEDULES = OPENPI_RTC_EXP + 1 };
extern const char *const rtc_mode_names[RTC_MODES], *const rtc_schedule_names[RTC_SCHEDULES];

/* Real-time chunking as a checkpoint's config has it; LeRobot's defaults where it says nothing. */
typedef struct checkpoint_rtc {
    openpi_rtc_mode mode;        /* OFF: not enabled                                                      */
    openpi_rtc_schedule schedule;
    int horizon, max_delay;      /* max_delay: rtc_training_max_delay, 0: not trained for it              */
    double max_weight;
} checkpoint_rtc;

enum { CHECKPOINT_HORIZON = 1, CHECKPOINT_STEPS = 2, CHECKPOINT_PROMPT = 4, CHECKPOINT_RTC = 8 };

typedef struct checkpoint {
    tensors *tensors;
    openpi_dims dims;
    openpi_variant variant;
    int lerobot;                 /* config.json has LeRobot's "type"                                      */
    int action_dim;              /* columns of action_in_proj, 1 to 32; zeros fill the model's 32         */
    int horizon;                 /* config.json: action_horizon / chunk_size; else 50                     */
    int steps;                   /* LeRobot's num_inference_steps; else 10                                */
    int max_prompt;              /* LeRobot's tokenizer_max_length; else 48 (π0) / 200 (π0.5)             */
    checkpoint_rtc rtc;
    unsigned said;               /* which of these settings its files say (below); the others are defaults */
    const tensor *embedding;     /* embed_tokens if present, else paligemma.lm_head                       */
    uint64_t parameters;         /* used at inference: the embedding once, the expert's own head not      */
    char name[256];              /* path, or "synthetic tiny:pi0:7"; for sentences                        */
    char ignored[256];           /* the adapter's folder that without_lora left out; else empty           */
    notes notes;                 /* what opening it found that changes actions                            */
} checkpoint;

/* Exactly one of path and synthetic is not NULL. Checks that every tensor the model needs is there with the
 * right shape: all missing ones are counted, the first few named; unknown names are an error too, except
 * those that MODEL.md, "Tensors in a file", allows (lm_heads, proprio_history_proj …). */
openpi_status checkpoint_open(const char *path, const openpi_synthetic *synthetic, checkpoint **out,
                              openpi_error *error);

/* The same with an adapter, whose own config.json counts before the base's. path may be an adapter's folder
 * that names its base. */
typedef struct checkpoint_source {
    const char *path;
    const openpi_synthetic *synthetic;
    const char *adapter;         /* the folder of a PEFT adapter (adapter.h); NULL: none but the path's own */
    int without_lora;            /* 1: neither the adapter nor a JAX checkpoint's LoRA is applied         */
    int missing_chunks_are_zero; /* 1: chunks that a JAX checkpoint lacks are zeros (openpi.h)            */
} checkpoint_source;
openpi_status checkpoint_open_source(const checkpoint_source *source, checkpoint **out, openpi_error *error);
void checkpoint_close(checkpoint *checkpoint);

/* Changes the weights of an open checkpoint that has no adapter by one (adapter.h), which the checkpoint owns
 * from here on, also where this fails: it is of no use then. */
struct adapter;
openpi_status checkpoint_change(const checkpoint *checkpoint, struct adapter *adapter, openpi_error *error);
/* Sets marks[tensors_count] of the tensors that its adapter or LoRA changes. */
void checkpoint_mark_changed(const checkpoint *checkpoint, uint8_t *marks, uint8_t mark);

/* What a policy needs to know of a model before that is loaded. */
typedef struct checkpoint_brief {
    openpi_variant variant;
    int action_dim;              /* 0: 32, or not told                                                    */
    int horizon;                 /* 0: no file says it                                                    */
    int jax;                     /* 1: JAX's layout                                                       */
    int lora_vlm, lora_expert;   /* the ranks of its LoRA; 0: has none                                    */
} checkpoint_brief;
/* Found as the functions above find it; most tensors may be missing. */
openpi_status checkpoint_read_brief(const model_place *place, checkpoint_brief *brief, openpi_error *error);

/* on 1: the tensors of a model with fewer than 32 action dimensions have 32, zeros after their own; 0: as
 * stored. Opening a checkpoint sets 1. */
void checkpoint_widen(const checkpoint *checkpoint, int on);

/* What openpi_inspect tells of the model: {"layout", "variant", "dims", "parameters", "unused_parameters",
 * "tensors", "dtypes", "files", "bytes", "horizon", "steps", "max_prompt", "defaults" (which of these no file
 * says), "rtc": {"mode", "schedule",
 * "horizon", "max_weight", "trained_delay"}}, of a JAX checkpoint "orbax" (orbax_describe), and where it
 * holds LoRA
 * "lora": {"factor", "arrays": [{"array", "layers", "rank"}]}, where an adapter changes it "adapter": its
 * "folder" and what adapter_describe tells. Under without_lora these are {"ignored"}: arrays, or the folder.
 * *out is a new reference. */
openpi_status checkpoint_describe(const checkpoint *checkpoint, json_t **out, openpi_error *error);

#endif
