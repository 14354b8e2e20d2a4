/* The plan of one session: a list of fused operations over the session's buffers, built once.
 *
 *   vision.c    pictures -> image tokens, into the prefix rows
 *   prefix.c    prompt tokens, then the language stack -> K,V cache
 *   expert.c    one pass of the action expert over a set of rows
 *   denoise.c   state token, N steps of embed -> expert -> velocity -> Euler
 *   sublayers.c what the layers of all three are made of, fused or taken apart
 *   schedule.c  what depends on the step alone, computed once when the session opens
 *   call.c      the numbers that change with every call: which rows there are, and their places
 *   chunking.c  real-time chunking: what a sample's previous chunk becomes in a call
 *   call_kinds.c  which kernel choices a call takes, and which recording replays it
 *
 * Running, timing, profiling, costing and breaking it on purpose (tests) are walks over plan.ops. */
#ifndef MODEL_PLAN_H
#define MODEL_PLAN_H

#include "base/arena.h"
#include "model/model.h"
#include "ops/blocks.h"

/* The op lists of a session. All share the buffers of the ordinary one. */
typedef enum plan_kind {
    PLAN_ORDINARY,
    PLAN_GUIDED,                 /* a guide op after every Euler step                                      */
    PLAN_TRAINED,                /* rows may be known: they are at time 0, and no step changes their x     */
    PLAN_PREFIX,                 /* the ordinary one's vision and prefix                                   */
    PLAN_PREFIX_ONE,             /* the same for one sample, in a session of several                       */
    PLAN_DENOISE,                /* the rest of it, over the K and V that are in the cache                 */
    PLAN_TIMED,                  /* one step over them in which every row has a time of its own            */
    PLAN_KINDS
} plan_kind;

typedef struct plan_shape {
    int batch, horizon, steps, max_prompt;
    int state_every_step;        /* 1: π0's state token in every step, as upstream runs it; 0: in the first */
    int rtc;                     /* 1: buffers for real-time chunking                                      */
    int known;                   /* with rtc: most known actions of a sample; 0: the model takes none      */
    int times;                   /* most different times of the rows of a PLAN_TIMED; 0: there is none     */
    int inputs_apart;            /* 1: the inputs are no part of the plan's memory                         */
} plan_shape;

/* Row tables of one segment. The host fills them in its copy of the block, the device reads its own copy. */
typedef struct row_table {
    int32_t *count, *sample, *position, *keys, *out_row;
    int capacity;
} row_table;

typedef struct call_tables {
    int32_t *pixels;             /* [1]                                                                    */
    row_table vision;            /* out_row: prefix row of each image token                                */
    row_table text;              /* out_row: prefix row of each prompt token                               */
    int32_t *ids;                /* [text.capacity] the prompt tokens                                      */
    row_table prefix;
    row_table state;             /* one a sample                                                           */
    row_table suffix;            /* state token (π0), then actions: the expert's rows in a first step     */
    row_table action;            /* horizon a sample: the expert's rows in the other steps                 */
    int32_t *known;              /* [action.capacity] row_set.known; NULL where the model takes none       */
    row_table steps;             /* N rows: the schedule                                                   */
    row_table times;             /* a row for each different time of a timed step                          */
    int32_t *time_of;            /* [action.capacity] row_set.known of a timed step: which of them         */
    /* Only with switches off, else of capacity 0: */
    row_table camera[OPENPI_CAMERAS]; /* as vision, of one slot: batched-vision                            */
    row_table one;               /* one row: what a step computes of the schedule itself; with known
                                    actions their time, too                                                */
} call_tables;

/* Everything that comes with a call, in one block: filled on the host, uploaded in one piece. Pictures are
 * last, so that absent ones cost nothing. The host's and the device's copy have the same layout; where device
 * memory is host memory, there is one copy. */
typedef struct plan_inputs {
    call_tables tables;
    float *own_dt;               /* [batch][horizon] of a timed step, else NULL                            */
    float *state;                /* [batch][32]                                                            */
    uint32_t *counts;            /* [INT8_COUNTS] zeros in; what 8-bit codes lost out (matrix.counts); NULL:
                                    no matrix counts. Right before x_t, with which it comes back           */
    float *x_t;                  /* [batch][horizon][32] noise or known actions in, actions out            */
    /* Real-time chunking, else NULL: */
    float *target, *weight;      /* [batch][horizon][32] and [.]: op_guide                                 */
    float *gain;                 /* [steps][batch]                                                         */
    void *images;                /* [batch·3][224][224][3] u8 or float                                     */
    char *start;                 /* of the block                                                           */
    size_t bytes;
} plan_inputs;

/* Device buffers. P = batch·(768 + max_prompt) prefix rows, I = batch·768 image rows, T = suffix rows. */
typedef struct plan_buffers {
    plan_inputs in;
    float *velocity;             /* [batch][horizon][32]                                                   */
    float *rope;                 /* [positions][head_dim/2][2]                                             */
    /* N' = steps, where actions may be known one more, time 0, and those of a timed step. */
    float *temb;                 /* [N'][expert width]: sinusoidal embeddings of the times                 */
    float *hidden, *cond;        /* [N'][expert width]: π0.5's time MLP                                    */
    float *time;                 /* [N'][expert width]: π0's time half of action_time_mlp_in               */
    float *modulation;           /* [2·depth + 1][N'][3·expert width] scale | shift | gate: π0.5           */
    void *prefix_x;              /* [P][width]                                                             */
    void *vision_x, *vision_qkv, *vision_o, *vision_h; /* [I][.]; share memory with the next two lines     */
    void *prefix_q, *prefix_o, *prefix_h; /* [P][.]                                                        */
    void *suffix_x, *suffix_q, *suffix_o, *suffix_h; /* [T][.]                                             */
    void *normed, *sums;         /* rows of any stage between parts of a sub-layer (sublayers.c)           */
    float *scores;               /* [rows][heads][places]: unfused attention                               */
    void *cache_k, *cache_v;     /* [depth][batch] blocks                                                  */
    size_t cache_layer_bytes;
    int cache_capacity;          /* places a sample: 768 + max_prompt + 1 + horizon, rounded up to 32      */
} plan_buffers;

typedef struct plan {
    const model *model;
    plan_shape shape;
    plan_kind kind;
    int state_token;             /* π0                                                                     */
    plan_buffers buffers;
    float *times;                /* [steps] the visited t                                                  */
    float dt;
    op *ops;
    int count, capacity;
    op spare;                    /* receives every op while they are only counted                          */
    op_block *blocks;            /* runs of ops that a device may compute as a whole                       */
    int block_count;
    op *setup;                   /* run once when the session opens: the schedule                          */
    int setup_count, setup_capacity;
    size_t device_bytes;
} plan;

/* The op list and the sizes; buffers are not bound yet: an op has the operands that it will have, at no
 * address that may be read. Every op has choice 0 (call_kinds.h sets others).
 * Plans of one shape have the same buffers at the same places. */
openpi_status plan_create(const model *model, const plan_shape *shape, plan_kind kind, plan **out,
                          openpi_error *error);
/* Lays the buffers out in `memory` (device, device_bytes) and builds the ops anew; their choices stay.
 * `inputs`: where shape.inputs_apart, memory that host and device reach; else NULL. */
openpi_status plan_bind(plan *plan, void *memory, void *inputs, openpi_error *error);
void plan_close(plan *plan);

/* The next op, zeroed but for what every op has. Its name is a literal. */
op *plan_add(plan *plan, op_kind kind, openpi_stage stage, const char *name, int layer, int step);
/* Names the ops from place `first` on, layers over that many rows, as a block. NULL: a switch has taken the
 * layers apart, there are none, or ops are only counted. */
op_block *plan_block(plan *plan, block_kind kind, int first, int layers, int rows);
/* What a device is given to run. */
static inline op_list plan_list(const plan *plan) {
    return (op_list){plan->ops, plan->count, plan->blocks, plan->block_count};
}
static inline op_list plan_setup(const plan *plan) {
    return (op_list){.ops = plan->setup, .count = plan->setup_count};
}
/* The ops of the Euler steps from … to-1, without those before them; `cut` gets their blocks. */
op_list plan_steps(const plan *plan, int from, int to, op_block cut[OPENPI_MAX_STEPS]);
row_set plan_rows(const row_table *table);
kv_cache plan_cache(const plan *plan, int layer);

/* Whether vision and prefix alone are computed, and of how many samples the rows are at most. */
static inline int plan_is_prefix(const plan *plan) {
    return plan->kind == PLAN_PREFIX || plan->kind == PLAN_PREFIX_ONE;
}
static inline int plan_samples(const plan *plan) {
    return plan->kind == PLAN_PREFIX_ONE ? 1 : plan->shape.batch;
}
/* 1 where the model has the switch on. */
static inline int plan_on(const plan *plan, op_switch which) { return !switch_off(plan->model->off, which); }
/* The pictures of a camera slot, or of a call where all are in one pass. */
size_t call_slot_bytes(const plan *plan);

void plan_vision(plan *plan);
void plan_prefix(plan *plan);
void plan_denoise(plan *plan);

/* One pass of the action expert over rows of x. */
void plan_expert(plan *plan, const row_table *rows, int step);
/* The expert's rows of a step, of which some may be known. */
row_set plan_expert_rows(const plan *plan, const row_table *table, int step);
/* Rows of a timed step, whose times are `floats` numbers apart; 0: they have none in this operation. */
row_set plan_timed(const plan *plan, row_set rows, int floats);
/* A norm of the expert: plain, or adaptive with the step's scale and shift.
 * which: 2·layer before attention, 2·layer + 1 before the MLP, 2·depth at the end. */
norm plan_expert_norm(const plan *plan, int which, const float *weight, int step);
/* Floats from a step's modulations to the next step's; 0: every step has the same norms. */
int plan_norm_floats(const plan *plan);
/* 1 where a guide op ends each step. Known actions and guidance meet only in different samples. */
static inline int plan_guides(const plan *plan) {
    return plan->kind == PLAN_GUIDED || (plan->kind == PLAN_TRAINED && plan->shape.batch > 1);
}

/* sublayers.c. The place of a sub-layer's operations in the plan; their name is a literal. */
typedef struct sublayer {
    plan *plan;
    openpi_stage stage;
    const char *name;
    int layer, step;
} sublayer;
void plan_norm_linear(sublayer at, op_norm_linear a);          /* weight: PLAIN                             */
void plan_linear_residual(sublayer at, op_linear_residual a);
/* parts: the matrices where they are apart, a.weight where they are one; q is missing where heads is 0. */
void plan_vision_qkv(sublayer at, op_norm_linear a, const matrix parts[3]);
void plan_norm_qkv(sublayer at, op_norm_qkv a, const matrix parts[3], int heads);
void plan_gate_up(sublayer at, op_norm_linear a, const matrix parts[2]);
void plan_image_attention(sublayer at, op_image_attention a);
void plan_cache_attention(sublayer at, op_cache_attention a);
/* The x that a product reads: x itself, or x normalised by an operation of its own; *norm is none then. */
const void *plan_normed(sublayer at, row_set rows, const void *x, int n, norm *norm);

/* schedule.c: times and dt, host values of the temb and rope tables, and the setup ops, or the same ops in
 * every step. */
void schedule_times(plan *plan);
void schedule_temb(float t, int width, float *temb);
void schedule_rope(int positions, int head_dim, float *rope);
/* 1: all of it is computed when a session opens; 0: each step computes its own. */
int schedule_is_constant(const plan *plan);
void plan_schedule(plan *plan);
void plan_step_schedule(plan *plan, int step);
/* Columns of the schedule: the steps; where actions may be known, the one of time 0 after them; then those of
 * a timed step. */
static inline int plan_known_column(const plan *plan) { return plan->shape.steps; }
static inline int plan_timed_column(const plan *plan) { return plan->shape.steps + (plan->shape.known > 0); }
/* A step's; a timed one's first. */
static inline int plan_column(const plan *plan, int step) {
    return plan->kind == PLAN_TIMED ? plan_timed_column(plan) : step;
}
static inline int plan_columns(const plan *plan) { return plan_timed_column(plan) + plan->shape.times; }

/* call.c: lays the inputs out in one block (only measures where the arena's base is NULL), and fills the
 * tables for a batch of samples. */
void call_lay_out(plan_inputs *inputs, arena *arena, const plan *plan);
typedef struct call_counts {
    int images, text, prefix, batch;       /* batch: of chunks                                             */
} call_counts;
/* `chunks` chunks of each of the `batch` samples: chunk c of sample b is b·chunks + c in the tables, and the
 * first has the sample's prefix. known: how many first actions of each sample are known; NULL: none. */
call_counts call_fill(const plan *plan, call_tables *tables, const openpi_sample *samples, const int *known,
                      int batch, int chunks);
int call_prefix_length(const openpi_sample *sample);
/* 1 where a camera's picture is computed: it is there, or absent ones are computed too. */
int call_has_rows(const plan *plan, const openpi_sample *sample, int camera);

#endif
