/* The vocabulary of fused operations that the model is written in.
 *
 * An op is data: what to compute and on which device buffers. src/ops/reference.c defines every kind in
 * plain scalar C; a backend has its own versions. Pointers are device addresses: model code passes them on
 * and never reads through them.
 *
 * Activations ("act") are fp32 or bf16, one type for a whole plan (op.type). Inside an op everything is
 * fp32; an act output is rounded once, to nearest even. Norm parameters, biases, modulations, RoPE tables,
 * the flow state x_t and the velocity are always fp32.
 *
 * Rows. Samples of unequal length are packed: a row_set holds the rows of all samples, one after the other,
 * without padding. Its numbers change from call to call and live in device memory, so that a recorded plan
 * serves every mask and prompt length. */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "openpi.h"
#include "ops/weights.h"

/* The rows of one segment: 256 per image (vision), the prefix, the state tokens, the suffix. */
typedef struct row_set {
    int capacity;                /* most rows ever                                                        */
    const int32_t *count;        /* [1] rows in use                                                       */
    const int32_t *sample;       /* [capacity] sample of a row: whose cache it writes and attends         */
    const int32_t *position;     /* [capacity] RoPE position; also the row's place in the cache           */
    const int32_t *keys;         /* [capacity] the row attends cache places 0 … keys-1 of its sample      */
    const int32_t *known;        /* [capacity] 1: the row's action is known, so its time is 0; NULL: none */
    int known_at;                /* norm weight, norm bias and gate of row r begin known[r]·known_at floats
                                    after those of the op; so does what an embedding adds                 */
    int times;                   /* 0; or rows have times of their own, and known[r] is 0 … times-1       */
} row_set;                       /* a sample's rows are neighbours, samples in ascending order            */

/* A linear layer's weights, y = x·Wᵀ, as the backend packed them. Logical element (row o of n, column i of
 * k). */
typedef enum matrix_form {
    MATRIX_PLAIN,                /* n outputs                                                              */
    MATRIX_GATED,                /* n = 2·m: rows 0…m-1 gate, m…2m-1 up; the op's output has m columns     */
    MATRIX_QKV,                  /* rows: heads·head_dim of q (maybe none), head_dim of k, head_dim of v   */
} matrix_form;

/* What a product makes of its row before it multiplies. INPUT_INT8, in norm_linear, linear_residual and
 * norm_qkv only, with WEIGHT_INT8_ROW, after the norm and its rounding to act:
 *   top = max |x[i]|;  s = top / 127;  q[i] = x[i]·(127 / top), rounded to nearest even: -127 … 127
 *   y[o] = float(Σ q[i]·code[o][i])·(s·scale[o])    the sum in int32, the rest in fp32, in this order
 * top below 2⁻¹⁰⁰: s and all q are 0. A row with a number that is not finite: s is NaN, and so is every y.
 * Where matrix.row_scale is above 0, it is s for every row, and
 *   q[i] = x[i]·(1 / s), rounded to nearest even, then clipped to -127 … 127; NaN: 0
 * What was clipped, and what was not finite, is counted: nothing else tells of either (int8_count). */
typedef enum matrix_input {
    INPUT_ACT,                   /* the row as it is                                                       */
    INPUT_INT8,                  /* 8-bit integers, a scale a row or one for all                           */
} matrix_input;

/* Counters of a call. */
typedef enum int8_count {
    INT8_CLIPPED,                /* finite numbers whose code was clipped                                  */
    INT8_CLIPPED_ROWS,           /* rows with such a number, a layer each                                  */
    INT8_NOT_FINITE,             /* numbers that are NaN or infinite                                       */
    INT8_COUNTS
} int8_count;

typedef struct matrix {
    const void *data;            /* backend's layout, backend->matrix_bytes long                          */
    const float *scales;         /* [n][weight_groups(k)] by logical row; NULL: the format has none       */
    int n, k;
    weight_type type;            /* format of the packed weights (weights.h)                              */
    matrix_form form;
    int heads, head_dim;         /* MATRIX_QKV only                                                       */
    int raw;                     /* 1: data is row-major [n][k]; the backend packs it before each use     */
    matrix_input input;          /* what its rows are made into                                           */
    float row_scale;             /* INPUT_INT8: of all rows; 0: each has its own                           */
    uint32_t *counts;            /* row_scale: [INT8_COUNTS] a session's, zero at the beginning of a call;
                                    NULL: nothing is counted                                               */
} matrix;

typedef enum norm_kind {
    NORM_NONE,                   /* y = x                                                                  */
    NORM_LAYER,                  /* y = (x - mean)·rsqrt(var + eps)·weight + bias                          */
    NORM_RMS,                    /* y = x·rsqrt(mean(x²) + eps)·(1 + weight) [+ bias]; adaRMS: weight is
                                    the step's scale, bias its shift                                      */
} norm_kind;

typedef struct norm {
    norm_kind kind;
    const float *weight, *bias;  /* [k]; bias may be NULL for NORM_RMS                                    */
    float eps;
} norm;                          /* the result is rounded to act before the product that follows          */

typedef enum activation {
    ACT_NONE,
    ACT_GELU,                    /* tanh form: 0.5·x·(1+tanh(√(2/π)(x+0.044715x³)))                        */
    ACT_GEGLU,                   /* MATRIX_GATED: gelu(gate)·up                                            */
    ACT_SILU,                    /* x/(1+exp(-x))                                                         */
} activation;

/* One layer's keys and values. The layout of a sample's block is the backend's (backend->cache_bytes). */
typedef struct kv_cache {
    void *k, *v;                 /* act; sample b's block starts at b·cache_bytes(capacity, head_dim)      */
    int capacity;                /* places a sample                                                        */
    int head_dim;
} kv_cache;

/* X(kind, struct member, struct type). The model is written in the first eleven; the others are what those
 * are made of, for plans with switches off (switches.h). */
#define OP_FUSED_LIST(X)                                     \
    X(OP_PATCH_EMBED, patch_embed, op_patch_embed)           \
    X(OP_NORM_LINEAR, norm_linear, op_norm_linear)           \
    X(OP_IMAGE_ATTENTION, image_attention, op_image_attention) \
    X(OP_LINEAR_RESIDUAL, linear_residual, op_linear_residual) \
    X(OP_EMBED_TEXT, embed_text, op_embed_text)              \
    X(OP_NORM_QKV, norm_qkv, op_norm_qkv)                    \
    X(OP_CACHE_ATTENTION, cache_attention, op_cache_attention) \
    X(OP_STATE_EMBED, state_embed, op_state_embed)           \
    X(OP_ACTION_EMBED, action_embed, op_action_embed)        \
    X(OP_VELOCITY, velocity, op_velocity)                    \
    X(OP_GUIDE, guide, op_guide)

#define OP_PART_LIST(X)                        \
    X(OP_NORM, norm, op_norm)                  \
    X(OP_ACTIVATE, activate, op_activate)      \
    X(OP_ADD, add, op_add)                     \
    X(OP_ROPE_CACHE, rope_cache, op_rope_cache) \
    X(OP_SCORES, scores, op_scores)            \
    X(OP_SOFTMAX, softmax, op_softmax)         \
    X(OP_VALUES, values, op_values)

#define OP_LIST(X)   \
    OP_FUSED_LIST(X) \
    OP_PART_LIST(X)

typedef enum op_kind {
#define X(kind, member, type) kind,
    OP_LIST(X)
#undef X
    OP_KINDS
} op_kind;

/* out[r] = patch(r)·Wᵀ + bias + position[r % 256]
 * Row r is patch (r%256)/16, (r%256)%16 of image r/256; its 588 inputs run channel, row, column. A pixel is
 * u8/255·2-1 (in that order, fp32) or, where *pixels is OPENPI_PIXELS_F32, the float itself. Pixels are not
 * rounded to act. */
typedef struct op_patch_embed {
    row_set rows;                /* 256 an image                                                          */
    const void *images;          /* [images][224][224][3] u8 or float                                     */
    const int32_t *pixels;       /* [1] openpi_pixels                                                     */
    matrix weight;               /* n = width, k = 588                                                    */
    const float *bias;           /* [n]                                                                   */
    const float *position;       /* [256][n]                                                              */
    void *out;                   /* act [rows][n]                                                         */
} op_patch_embed;

/* out[out_row[r]] = activation(norm(x[r])·Wᵀ + bias) */
typedef struct op_norm_linear {
    row_set rows;
    const void *x;               /* act [rows][k]                                                         */
    norm norm;
    matrix weight;               /* PLAIN or GATED                                                        */
    const float *bias;           /* [n] or NULL                                                           */
    activation activation;
    const int32_t *out_row;      /* [capacity] or NULL: out row r                                         */
    void *out;                   /* act [.][n or n/2]                                                     */
    /* Not 0: GATED, without bias and out_row, and in its plan the next op alone reads out, as integers with
     * this row_scale and these counts. A device may leave the integers there (op_linear_residual.coded). */
    float next_scale;
    uint32_t *next_counts;
} op_norm_linear;

/* Attention of SigLIP: every 256 rows attend each other. qkv row = q | k | v, each heads·head_dim; planar:
 * three blocks [capacity][heads·head_dim] instead, q, k and v.
 * out = softmax(q·kᵀ·head_dim^-½)·v, probabilities rounded to act, accumulation fp32. */
typedef struct op_image_attention {
    row_set rows;
    const void *qkv;             /* act [rows][3·heads·head_dim]                                          */
    int heads, head_dim;
    float scale;
    void *out;                   /* act [rows][heads·head_dim]                                            */
    int planar;
} op_image_attention;

/* x[r] += gate ⊙ (a[r]·Wᵀ + bias) */
typedef struct op_linear_residual {
    row_set rows;
    const void *a;               /* act [rows][k]                                                         */
    matrix weight;               /* PLAIN                                                                 */
    const float *bias;           /* [n] or NULL                                                           */
    const float *gate;           /* [n] or NULL (1)                                                       */
    void *x;                     /* act [rows][n], in and out                                             */
    int normed_next;             /* 1: in its plan the next op norms this x, of the same rows, before a
                                    product: a device may compute both at once                           */
    int coded;                   /* 1: the op before it has its row_scale as next_scale                   */
} op_linear_residual;

/* out[out_row[r]] = table[ids[r]]·scale: rows of the embedding table into the prefix. */
typedef struct op_embed_text {
    row_set rows;                /* prompt tokens of all samples                                           */
    const int32_t *ids;          /* [rows] each a row of the table; whoever fills them keeps them inside   */
    matrix table;                /* raw: n = vocabulary, k = width                                         */
    float scale;                 /* √width                                                                */
    const int32_t *out_row;      /* [capacity]                                                            */
    void *out;                   /* act [prefix rows][width]                                              */
} op_embed_text;

/* h = norm(x[r])·Wᵀ split into q heads, k, v; RoPE on q and k: for i < head_dim/2, angle from
 * rope[position[r]][i]: (a, b) = (y[i], y[i+head_dim/2]) -> (a·cos - b·sin, b·cos + a·sin).
 * k and v are written to place position[r] of the sample's cache. heads = 0: no q. */
typedef struct op_norm_qkv {
    row_set rows;
    const void *x;               /* act [rows][k]                                                         */
    norm norm;
    matrix weight;               /* QKV                                                                   */
    const float *rope;           /* [positions][head_dim/2][2] cos, sin                                   */
    void *q;                     /* act [rows][heads·head_dim]                                            */
    kv_cache cache;
} op_norm_qkv;

/* out[r] head h = softmax(q[r,h]·Kᵀ·scale)·V over places 0 … keys[r]-1 of the sample's cache; one K/V head
 * serves all query heads. Probabilities rounded to act, accumulation fp32. */
typedef struct op_cache_attention {
    row_set rows;
    const void *q;               /* act [rows][heads·head_dim]                                            */
    int heads;
    float scale;
    kv_cache cache;
    void *out;                   /* act [rows][heads·head_dim]                                            */
} op_cache_attention;

/* out[b·out_stride] = state[b]·Wᵀ + bias */
typedef struct op_state_embed {
    row_set rows;                /* one a sample                                                          */
    const float *state;          /* [batch][k]                                                            */
    matrix weight;
    const float *bias;           /* [n]                                                                   */
    int out_stride;              /* rows of out a sample                                                  */
    void *out;                   /* act [.][n]                                                            */
} op_state_embed;

/* Action tokens, fp32 until the end: one, two or three products.
 *   π0.5:          u = x[r]·inᵀ + in_bias                                                      [n]
 *   π0:            u = silu(x[r]·inᵀ + time)·mlp_outᵀ + mlp_out_bias
 *                  of the checkpoint's A = action_in and W_in = action_time_mlp_in: `in` is W_in[:,:n]·A,
 *                  and time = W_in[:,n:]·temb + b_in + W_in[:,:n]·b_A
 *   π0, unmerged:  u = silu((x[r]·inᵀ + in_bias)·mlp_inᵀ + time)·mlp_outᵀ + mlp_out_bias
 *                  time = W_in[:,n:]·temb + b_in
 * With rows.times, row r's time begins known[r]·known_at floats after `time`.
 * Row r = (sample r / horizon, action r % horizon) is out row sample·out_stride + out_offset + action. */
typedef struct op_action_embed {
    row_set rows;                /* horizon a sample                                                      */
    int horizon, out_stride, out_offset;
    const float *x;              /* [rows][in.k]                                                          */
    matrix in;
    const float *in_bias;        /* NULL where mlp_in is merged into `in`                                 */
    matrix mlp_in, mlp_out;      /* n 0 and data NULL: merged into `in`; mlp_out too: π0.5                */
    const float *time, *mlp_out_bias;      /* [n] each                                                    */
    void *out;                   /* act                                                                   */
} op_action_embed;

/* 1, 2 or 3 products, in that order. */
static inline int action_embed_products(const op_action_embed *a) {
    return a->mlp_in.n ? 3 : a->mlp_out.n ? 2 : 1;
}

/* h = norm(x[sample·x_stride + x_offset + action]) rounded to act; v[r] = h·Wᵀ + bias in fp32;
 * x_t[r] += dt·v[r], but the x_t of a known row stays as it is. With own_dt a row stays where its dt is 0. */
typedef struct op_velocity {
    row_set rows;                /* horizon a sample                                                      */
    int horizon, x_stride, x_offset;
    const void *x;               /* act                                                                   */
    norm norm;
    matrix weight;               /* n = 32                                                                */
    const float *bias;
    float dt;
    const float *own_dt;         /* [capacity] each row's, in the place of dt; NULL: none (row_set.times) */
    float *velocity;             /* [rows][n]                                                             */
    float *x_t;                  /* [rows][n], in and out                                                 */
} op_velocity;

/* Guidance after an Euler step (real-time chunking), where weight[r] is not 0; other rows stay as they are:
 *   e = (target[r] - (x_t[r] - t·v[r]))·weight[r];  x_t[r] += gain[sample[r]]·e
 * t is the time after the step, so x_t - t·v is the same prediction of x at t = 0 as before the step. */
typedef struct op_guide {
    row_set rows;                /* horizon a sample                                                      */
    int n;                       /* 32                                                                    */
    const float *target;         /* [rows][n] the previous chunk                                          */
    const float *weight;         /* [rows]                                                                */
    const float *gain;           /* [samples] guidance weight of this step, times -dt                     */
    const float *velocity;       /* [rows][n]                                                             */
    float t;
    float *x_t;                  /* [rows][n], in and out                                                 */
} op_guide;

/* ---- the parts of the operations above, each as an operation ------------------------------------------- */

/* out[r] = norm(x[r]) */
typedef struct op_norm {
    row_set rows;
    const void *x;               /* act [rows][n]                                                         */
    norm norm;
    int n;
    void *out;                   /* act [rows][n]                                                         */
} op_norm;

/* x[row[r]] = activation(x[row[r]] + bias) ⊙ up[r] */
typedef struct op_activate {
    row_set rows;
    const float *bias;           /* [n] or NULL                                                           */
    activation activation;
    const void *up;              /* act [rows][n] or NULL (1)                                             */
    const int32_t *row;          /* [capacity], no two the same, or NULL: r                               */
    int n;
    void *x;                     /* act [.][n], in and out                                                */
} op_activate;

/* x[r] += gate ⊙ (y[r] + bias) */
typedef struct op_add {
    row_set rows;
    const void *y;               /* act [rows][n]                                                         */
    const float *bias, *gate;    /* [n] or NULL (0 and 1)                                                 */
    int n;
    void *x;                     /* act [rows][n], in and out                                             */
} op_add;

/* RoPE on q and k as in norm_qkv; k and v are written to place position[r] of the sample's cache. */
typedef struct op_rope_cache {
    row_set rows;
    const void *q_in, *k_in, *v_in;        /* act; row r starts r·stride elements on                      */
    int q_stride, kv_stride;
    int heads;                   /* 0: no q                                                               */
    const float *rope;           /* [positions][head_dim/2][2] cos, sin                                   */
    void *q;                     /* act [rows][heads·head_dim]                                            */
    kv_cache cache;
} op_rope_cache;

/* Where a row's keys or values are: in its sample's cache, one for all heads; or, with a stride, in the
 * 256 rows of its own image (r / 256), head h of row i at image + i·stride + h·head_dim. */
typedef struct attended {
    kv_cache cache;
    const void *image;           /* act                                                                   */
    int stride;                  /* 0: the cache                                                          */
} attended;

/* scores[r][h][j] = q[r,h]·k[j]·scale, j = 0 … keys[r]-1 */
typedef struct op_scores {
    row_set rows;
    const void *q;               /* act; head h of row r at r·q_stride + h·head_dim                       */
    int q_stride, heads, head_dim;
    float scale;
    attended keys;
    float *scores;               /* [rows][heads][places]                                                 */
    int places;                  /* a multiple of 32                                                      */
} op_scores;

/* scores[r][h][0 … keys[r]-1] become probabilities, rounded to act */
typedef struct op_softmax {
    row_set rows;
    int heads, places;
    float *scores;               /* [rows][heads][places], in and out                                     */
} op_softmax;

/* out[r] head h = Σ scores[r][h][j]·v[j], j = 0 … keys[r]-1; scores hold values of act */
typedef struct op_values {
    row_set rows;
    const float *scores;         /* [rows][heads][places]                                                 */
    int heads, head_dim, places;
    attended values;
    void *out;                   /* act [rows][heads·head_dim]                                            */
} op_values;

typedef struct op {
    op_kind kind;
    openpi_stage stage;
    dtype type;                  /* act                                                                   */
    int step, layer;             /* -1 where there is none                                                */
    int choice;                  /* 0: the backend's heuristic; else 1 + index in backend->candidates     */
    const char *name;            /* "prefix.gate_up"                                                      */
    int parameters;              /* 1: it writes norms and biases of later ops. A device that fetches
                                    parameters ahead of time must wait for it                             */
    union {
#define X(kind, member, type) type member;
        OP_LIST(X)
#undef X
    };
} op;

/* "norm_linear" */
const char *op_kind_name(op_kind kind);

/* The weights of an op, at most OP_MATRICES; returns how many. */
enum { OP_MATRICES = 3 };
int op_matrices(op *op, matrix *list[OP_MATRICES]);

/* Work of one op with `rows` rows in use: multiply-adds count two. `keys` is the mean of keys[] over the rows
 * (attention only). Bytes: every operand once, weights at their packed type. */
typedef struct op_cost {
    double flops, bytes, weight_bytes;
} op_cost;
op_cost op_get_cost(const op *op, int rows, double keys);

#endif
