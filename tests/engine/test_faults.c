/* labels: isa cost wrap=openpi_session_run,image_resize_openpi,normalize_apply no_asan */
/* labels: wrap=normalize_invert_model,robot_state_in,prompt_openpi */
/* Faults that people have made, planted one at a time: each must make its golden FAIL in fp32, and nothing
 * else may.
 *
 * A fault changes the plan's operations or row tables, or stands in for one function of the library
 * (-Wl,--wrap in CMakeLists.txt). The model's own code knows nothing of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "openpi_internal.h"
#include "policy/pictures/image.h"
#include "policy/policy.h"
#include "policy/prompt.h"
#include "verify_rows.h"

/* Which function a fault stands in for. */
typedef enum stand_in {
    NOTHING,
    MASK_IGNORED,
    CAMERAS_SWAPPED,
    PADDING_SEEN,
    RESIZE_TRUNCATES,
    SMALL_EPSILON,
    DELTA_FROM_NORMALISED,
    NO_JOINT_SIGNS,
    EPSILON_OUTWARDS,
    ZSCORE,
    BINS_UP,
    GRIPPER_TOO
} stand_in;

static stand_in standing_in;
static const openpi_policy *policy_now;

/* Altered copies of tables, until the fault is over. */
static float *copies[4096];
static int copy_count;

static float *copy_of(const float *from, size_t count) {
    float *copy = malloc(count * sizeof *copy);
    assert_non_null(copy);
    assert_true(copy_count < (int)(sizeof copies / sizeof *copies));
    if (from) memcpy(copy, from, count * sizeof *copy);
    else memset(copy, 0, count * sizeof *copy);
    return copies[copy_count++] = copy;
}

/* ---- operations ------------------------------------------------------------------------------------- */

static norm *norm_of(op *op, int *k) {
    switch (op->kind) {
    case OP_NORM_LINEAR: *k = op->norm_linear.weight.k; return &op->norm_linear.norm;
    case OP_NORM_QKV: *k = op->norm_qkv.weight.k; return &op->norm_qkv.norm;
    case OP_VELOCITY: *k = op->velocity.weight.k; return &op->velocity.norm;
    default: return NULL;
    }
}

#define EACH_OP(session, op) \
    for (op *op = (session)->plan->ops, *end_ = op + (session)->plan->count; op < end_; op++)

/* Moves the rope table of the expert by `places`. */
static void move_suffix(openpi_session *s, int places) {
    EACH_OP(s, op)
    if (op->kind == OP_NORM_QKV && op->stage != OPENPI_STAGE_PREFIX)
        op->norm_qkv.rope += places * s->plan->model->dims.head_dim;
}

static void rope_offset_by_one(openpi_session *s) { move_suffix(s, 1); }
static void suffix_from_padded_length(openpi_session *s) { move_suffix(s, 768 + 48 - (512 + 7)); }

static void rope_of_k_missing(openpi_session *s) {
    size_t count = (size_t)s->plan->buffers.cache_capacity * (size_t)s->plan->model->dims.head_dim;
    float *none = copy_of(NULL, count);
    for (size_t i = 0; i < count; i += 2) none[i] = 1;
    EACH_OP(s, op)
        if (op->kind == OP_NORM_QKV && op->stage == OPENPI_STAGE_PREFIX) op->norm_qkv.rope = none;
}

static void rope_in_bf16(openpi_session *s) {
    int half = s->plan->model->dims.head_dim / 2, places = s->plan->buffers.cache_capacity;
    float *table = copy_of(NULL, (size_t)places * (size_t)half * 2);
    for (int i = 0; i < half; i++) {
        float frequency = bf16_to_float(float_to_bf16((float)(1 / pow(10000.0, (double)i / half))));
        for (int p = 0; p < places; p++) {
            table[(p * half + i) * 2] = cosf((float)p * frequency);
            table[(p * half + i) * 2 + 1] = sinf((float)p * frequency);
        }
    }
    EACH_OP(s, op)
        if (op->kind == OP_NORM_QKV) op->norm_qkv.rope = table;
}

static void text_unscaled(openpi_session *s) {
    EACH_OP(s, op)
        if (op->kind == OP_EMBED_TEXT) op->embed_text.scale = 1;
}

static void image_tokens_scaled(openpi_session *s) {
    float by = 1 / sqrtf((float)s->plan->model->dims.width);
    EACH_OP(s, op) {
        if (op->kind != OP_NORM_LINEAR || op->stage != OPENPI_STAGE_VISION || !op->norm_linear.out_row)
            continue;
        op_norm_linear *o = &op->norm_linear;
        float *weight = copy_of(o->norm.weight, (size_t)o->weight.k),
              *shift = copy_of(o->norm.bias, (size_t)o->weight.k);
        float *bias = copy_of(o->bias, (size_t)o->weight.n);
        for (int i = 0; i < o->weight.k; i++) {
            weight[i] *= by;
            shift[i] *= by;
        }
        for (int i = 0; i < o->weight.n; i++) bias[i] *= by;
        o->norm.weight = weight;
        o->norm.bias = shift;
        o->bias = bias;
    }
}

/* y·w where it should be y·(1 + w). */
static void w_for_one_plus_w(openpi_session *s, openpi_stage stage) {
    EACH_OP(s, op) {
        int k = 0;
        norm *n = norm_of(op, &k);
        if (!n || n->kind != NORM_RMS || op->stage != stage) continue;
        float *weight = copy_of(n->weight, (size_t)k);
        for (int i = 0; i < k; i++) weight[i] -= 1;
        n->weight = weight;
    }
}

static void w_in_the_prefix(openpi_session *s) { w_for_one_plus_w(s, OPENPI_STAGE_PREFIX); }
static void w_in_the_expert(openpi_session *s) { w_for_one_plus_w(s, OPENPI_STAGE_DENOISE); }

/* shift | scale | gate */
static void ada_chunks_swapped(openpi_session *s) {
    EACH_OP(s, op) {
        int k = 0;
        norm *n = norm_of(op, &k);
        if (!n || n->kind != NORM_RMS || op->stage != OPENPI_STAGE_DENOISE) continue;
        const float *scale = n->weight;
        n->weight = n->bias;
        n->bias = scale;
    }
}

/* Each sub-layer takes the gate of the layer's other norm. */
static void gate_of_the_wrong_norm(openpi_session *s) {
    const float **attention = NULL;
    EACH_OP(s, op) {
        if (op->kind != OP_LINEAR_RESIDUAL || op->stage != OPENPI_STAGE_DENOISE) continue;
        if (!attention) {
            attention = &op->linear_residual.gate;
            continue;
        }
        const float *mlp = op->linear_residual.gate;
        op->linear_residual.gate = *attention;
        *attention = mlp;
        attention = NULL;
    }
}

static void gates_ignored(openpi_session *s) {
    EACH_OP(s, op)
    if (op->kind == OP_LINEAR_RESIDUAL && op->stage == OPENPI_STAGE_DENOISE) op->linear_residual.gate = NULL;
}

/* The time MLP ends without its SiLU; everything made of it is made again. */
static void second_silu_missing(openpi_session *s) {
    openpi_error error = OPENPI_ERROR_INIT;
    device *device = s->engine->device;
    assert_int_equal(s->plan->setup[1].norm_linear.activation, ACT_SILU);
    s->plan->setup[1].norm_linear.activation = ACT_NONE;
    assert_int_equal(device->backend->run(device, plan_setup(s->plan), s->work, NULL, &error), OPENPI_OK);
}

/* Every step but the last has the time of the next. */
static void time_off_by_a_step(openpi_session *s) {
    int width = s->plan->model->dims.expert_width;
    EACH_OP(s, op) {
        int k = 0, move = op->step + 1 < s->plan->shape.steps;
        norm *n = norm_of(op, &k);
        if (op->stage != OPENPI_STAGE_DENOISE || !move) continue;
        if (op->kind == OP_ACTION_EMBED && op->action_embed.time) op->action_embed.time += width;
        if (s->plan->model->variant != OPENPI_PI05) continue;
        if (n) {
            n->weight += 3 * width;
            n->bias += 3 * width;
        }
        if (op->kind == OP_LINEAR_RESIDUAL) op->linear_residual.gate += 3 * width;
    }
}

static void one_step_short(openpi_session *s) {
    EACH_OP(s, op)
        if (op->kind == OP_VELOCITY && op->step == s->plan->shape.steps - 1) op->velocity.dt = 0;
}

static void final_norm_missing(openpi_session *s) {
    EACH_OP(s, op)
        if (op->kind == OP_VELOCITY) op->velocity.norm.kind = NORM_NONE;
}

static void picture_positions_missing(openpi_session *s) {
    EACH_OP(s, op)
    if (op->kind == OP_PATCH_EMBED)
        op->patch_embed.position = copy_of(NULL, (size_t)256 * (size_t)op->patch_embed.weight.n);
}

static void attention_scaled_by_padded_head(openpi_session *s) {
    EACH_OP(s, op)
        if (op->kind == OP_IMAGE_ATTENTION) op->image_attention.scale = 1 / sqrtf(128);
}

static void norms_of_a_block_swapped(openpi_session *s) {
    norm *first = NULL;
    EACH_OP(s, op) {
        if (op->kind != OP_NORM_LINEAR || op->stage != OPENPI_STAGE_VISION || op->norm_linear.out_row)
            continue;
        if (!first) {
            first = &op->norm_linear.norm;
            continue;
        }
        norm second = op->norm_linear.norm;
        op->norm_linear.norm = *first;
        *first = second;
        first = NULL;
    }
}

static void cache_of_the_layer_before(openpi_session *s) {
    kv_cache before = {0};
    EACH_OP(s, op) {
        if (op->kind != OP_CACHE_ATTENTION || op->stage != OPENPI_STAGE_DENOISE) continue;
        kv_cache own = op->cache_attention.cache;
        if (op->layer) op->cache_attention.cache = before;
        before = own;
    }
}

/* LeRobot computes each time in double, openpi adds up in fp32: last bits. */
static void times_in_double(openpi_engine *engine) { engine->checkpoint->lerobot = 1; }

static void gelu_is_silu(openpi_session *s) {
    EACH_OP(s, op)
    if (op->kind == OP_NORM_LINEAR && op->norm_linear.activation == ACT_GELU)
        op->norm_linear.activation = ACT_SILU;
}

static void expert_scaled_by_own_width(openpi_session *s) {
    const openpi_dims *d = &s->plan->model->dims;
    EACH_OP(s, op)
        if (op->kind == OP_CACHE_ATTENTION && op->stage == OPENPI_STAGE_DENOISE)
            op->cache_attention.scale = 1 / sqrtf((float)(d->expert_width / d->heads));
}

static void cosine_before_sine(openpi_session *s) {
    openpi_error error = OPENPI_ERROR_INIT;
    device *device = s->engine->device;
    int width = s->plan->model->dims.expert_width;
    for (int k = 0; k < s->plan->shape.steps; k++)
        for (int i = 0; i < width / 2; i++) {
            float *temb = s->plan->buffers.temb + (size_t)k * (size_t)width, sine = temb[i];
            temb[i] = temb[width / 2 + i];
            temb[width / 2 + i] = sine;
        }
    assert_int_equal(device->backend->run(device, plan_setup(s->plan), s->work, NULL, &error), OPENPI_OK);
}

static void velocity_one_row_early(openpi_session *s) {
    EACH_OP(s, op)
        if (op->kind == OP_VELOCITY) op->velocity.x_offset--;
}

/* ---- row tables ------------------------------------------------------------------------------------- */

/* The expert's rows stand in two tables: with the state token and without it. */
static void chunk_is_causal_in(row_table *t) {
    for (int r = 0; r < *t->count; r++) t->keys[r] = t->position[r] + 1;
}

static void causal_from_the_left_in(row_table *t) {
    for (int r = 0; r < *t->count; r++) t->keys[r] = r + 1;
}

static void keys_of_the_longest_in(row_table *t) {
    int longest = 0;
    for (int r = 0; r < *t->count; r++)
        if (t->keys[r] > longest) longest = t->keys[r];
    for (int r = 0; r < *t->count; r++) t->keys[r] = longest;
}

static void state_sees_actions(void *user, call_tables *t) {
    (void)user;
    for (int r = 0; r < *t->suffix.count; r++) t->suffix.keys[r] = t->suffix.keys[*t->suffix.count - 1];
}

static void chunk_is_causal(void *user, call_tables *t) {
    (void)user;
    chunk_is_causal_in(&t->suffix);
    chunk_is_causal_in(&t->action);
}

static void suffix_is_causal_from_the_left(void *user, call_tables *t) {
    (void)user;
    causal_from_the_left_in(&t->suffix);
    causal_from_the_left_in(&t->action);
}

static void prefix_is_causal(void *user, call_tables *t) {
    (void)user;
    for (int r = 0; r < *t->prefix.count; r++) t->prefix.keys[r] = t->prefix.position[r] + 1;
}

static void prompt_does_not_see_pictures(void *user, call_tables *t) {
    (void)user;
    for (int r = 0; r < *t->prefix.count; r++)
        if (t->prefix.position[r] < 256) t->prefix.keys[r] = 256;
}

/* A batch padded to its longest sample, the padding not masked. */
static void keys_of_the_longest(void *user, call_tables *t) {
    (void)user;
    keys_of_the_longest_in(&t->suffix);
    keys_of_the_longest_in(&t->action);
}

/* ---- stand-ins -------------------------------------------------------------------------------------- */

openpi_status __real_openpi_session_run(openpi_session *, const openpi_sample *, int, const float *, float *,
                                        openpi_timing *, openpi_error *);
openpi_status __wrap_openpi_session_run(openpi_session *, const openpi_sample *, int, const float *, float *,
                                        openpi_timing *, openpi_error *);
openpi_status __real_image_resize_openpi(const openpi_image *, image_scratch *, uint8_t *, openpi_error *);
openpi_status __wrap_image_resize_openpi(const openpi_image *, image_scratch *, uint8_t *, openpi_error *);
void __real_normalize_apply(norm_mode, const norm_stats *, double *, int);
void __wrap_normalize_apply(norm_mode, const norm_stats *, double *, int);
void __real_normalize_invert_model(norm_mode, const norm_stats *, const float *, double *, int);
void __wrap_normalize_invert_model(norm_mode, const norm_stats *, const float *, double *, int);
void __real_robot_state_in(const robot *, double *);
void __wrap_robot_state_in(const robot *, double *);
openpi_status __real_prompt_openpi(const tokenizer *, tokenizer_scratch *, prompt_buffer *, const char *,
                                   size_t, const double *, int, int32_t *, int, int *, openpi_error *);
openpi_status __wrap_prompt_openpi(const tokenizer *, tokenizer_scratch *, prompt_buffer *, const char *,
                                   size_t, const double *, int, int32_t *, int, int *, openpi_error *);

openpi_status __wrap_openpi_session_run(openpi_session *session, const openpi_sample *samples, int batch,
                                        const float *noise, float *actions, openpi_timing *timing,
                                        openpi_error *error) {
    openpi_sample changed = samples[0];
    int32_t padded[200] = {0};
    const void *base = changed.images[0];
    if (standing_in == MASK_IGNORED) memset(changed.image_mask, 1, sizeof changed.image_mask);
    if (standing_in == CAMERAS_SWAPPED) {
        changed.images[0] = changed.images[1];
        changed.images[1] = base;
    }
    if (standing_in == PADDING_SEEN) {
        memcpy(padded, changed.tokens, (size_t)changed.token_count * sizeof *padded);
        changed.tokens = padded;
        changed.token_count = session->options.max_prompt;
    }
    return __real_openpi_session_run(session, batch == 1 ? &changed : samples, batch, noise, actions, timing,
                                     error);
}

/* One pass over rows of `in` elements, `step` apart, lines `line` apart, in the library's fixed point, but
 * cut instead of rounded. */
static void resize_pass(const uint8_t *from, int in, int step, int line, int lines, uint8_t *to, int out,
                        int to_step, int to_line) {
    double scale = (double)in / out, wide = scale > 1 ? scale : 1;
    for (int o = 0; o < out; o++) {
        double center = (o + 0.5) * scale, sum = 0, weights[64];
        int low = (int)(center - wide + 0.5), high = (int)(center + wide + 0.5);
        if (low < 0) low = 0;
        if (high > in) high = in;
        for (int j = low; j < high; j++)
            sum += weights[j - low] = fmax(0, 1 - fabs((j - center + 0.5) / wide));
        for (int l = 0; l < lines; l++)
            for (int c = 0; c < 3; c++) {
                int64_t value = 0;
                for (int j = low; j < high; j++)
                    value +=
                        (int64_t)(0.5 + weights[j - low] / sum * (1 << 22)) * from[l * line + j * step + c];
                to[l * to_line + o * to_step + c] = (uint8_t)(value >> 22);
            }
    }
}

openpi_status __wrap_image_resize_openpi(const openpi_image *image, image_scratch *scratch, uint8_t *out,
                                         openpi_error *error) {
    enum { SIDE = 224 };
    openpi_status status = __real_image_resize_openpi(image, scratch, out, error);
    int h = image->height, w = image->width;
    if (standing_in != RESIZE_TRUNCATES || status != OPENPI_OK || image->element != OPENPI_U8 ||
        image->layout != OPENPI_HWC || h >= w)
        return status;
    int rows = (int)(h / ((double)w / SIDE));
    uint8_t *across = malloc((size_t)h * SIDE * 3);
    assert_non_null(across);
    resize_pass(image->data, w, 3, w * 3, h, across, SIDE, 3, SIDE * 3);
    resize_pass(across, h, SIDE * 3, 3, SIDE, out + (SIDE - rows) / 2 * SIDE * 3, rows, SIDE * 3, 3);
    free(across);
    return status;
}

void __wrap_normalize_apply(norm_mode mode, const norm_stats *stats, double *x, int count) {
    norm_stats changed = *stats;
    if (standing_in == SMALL_EPSILON) changed.epsilon = 1e-8;
    __real_normalize_apply(mode, &changed, x, count);
}

void __wrap_normalize_invert_model(norm_mode mode, const norm_stats *stats, const float *x, double *out,
                                   int count) {
    norm_stats changed = *stats;
    if (standing_in == DELTA_FROM_NORMALISED && policy_now && stats == &policy_now->state) mode = STATS_NONE;
    if (standing_in == EPSILON_OUTWARDS && policy_now && stats == &policy_now->actions)
        changed.epsilon = 1e-8;
    __real_normalize_invert_model(mode, &changed, x, out, count);
}

void __wrap_robot_state_in(const robot *robot, double *state) {
    if (standing_in != NO_JOINT_SIGNS) __real_robot_state_in(robot, state);
}

openpi_status __wrap_prompt_openpi(const tokenizer *tokenizer, tokenizer_scratch *scratch,
                                   prompt_buffer *buffer, const char *text, size_t bytes, const double *state,
                                   int state_count, int32_t *ids, int max, int *count, openpi_error *error) {
    double up[OPENPI_ACTION_DIM] = {0};
    for (int i = 0; i < state_count; i++) up[i] = state[i] + (standing_in == BINS_UP ? 1.0 / 128 : 0);
    return __real_prompt_openpi(tokenizer, scratch, buffer, text, bytes, state_count ? up : state,
                                state_count, ids, max, count, error);
}

/* ---- the table -------------------------------------------------------------------------------------- */

typedef struct fault {
    const char *name, *golden;
    void (*plant)(openpi_session *session);
    void (*tables)(void *user, call_tables *tables);
    stand_in stand_in;
    int state_every_step;
    const char *says;            /* where verify has to notice it first                                   */
    void (*weights)(openpi_engine *engine);
} fault;

#define MODEL(name) "model/" name ".safetensors"

static const fault faults[] = {
    {"no fault, π0", MODEL("pi0_tiny"), NULL, NULL, NOTHING, 0, NULL, NULL},
    {"no fault, two cameras", MODEL("pi0_tiny_droid"), NULL, NULL, NOTHING, 0, NULL, NULL},
    {"no fault, π0.5", MODEL("pi05_tiny"), NULL, NULL, NOTHING, 0, NULL, NULL},
    {"no fault, the state token in every step", MODEL("pi0_tiny"), NULL, NULL, NOTHING, 1, NULL, NULL},
    {"no fault, a policy", "policy/droid_pi0", NULL, NULL, NOTHING, 0, NULL, NULL},
    {"no fault, a policy with quantiles and deltas", "policy/droid_jointpos", NULL, NULL, NOTHING, 0, NULL,
     NULL},
    {"no fault, a batch", MODEL("pi05_tiny_batch"), NULL, NULL, NOTHING, 0, NULL, NULL},
    {"no fault, π0.5 without the state in its prompt", "policy/libero_pi05", NULL, NULL, NOTHING, 0, NULL,
     NULL},
    {"no fault, ALOHA", "policy/aloha_pi05", NULL, NULL, NOTHING, 0, NULL, NULL},

    {"rope offset by one", MODEL("pi0_tiny"), rope_offset_by_one, NULL, NOTHING, 0, "velocity of step 0",
     NULL},
    {"suffix positions from the padded length", MODEL("pi0_tiny_droid"), suffix_from_padded_length, NULL,
     NOTHING, 0, "velocity of step 0", NULL},
    {"K cached before RoPE", MODEL("pi0_tiny"), rope_of_k_missing, NULL, NOTHING, 0, "k of layer 0", NULL},
    {"rotary table in bf16", MODEL("pi0_tiny"), rope_in_bf16, NULL, NOTHING, 0, "k of layer 0", NULL},
    {"the state token sees the actions", MODEL("pi0_tiny"), NULL, state_sees_actions, NOTHING, 1, "off by",
     NULL},
    {"the chunk is causal", MODEL("pi0_tiny"), NULL, chunk_is_causal, NOTHING, 0, "velocity of step 0", NULL},
    {"the chunk is causal, π0.5", MODEL("pi05_tiny"), NULL, chunk_is_causal, NOTHING, 0, "velocity of step 0",
     NULL},
    {"the suffix is causal from the left", MODEL("pi0_tiny"), NULL, suffix_is_causal_from_the_left, NOTHING,
     0, "velocity of step 0", NULL},
    {"the prefix is causal", MODEL("pi0_tiny"), NULL, prefix_is_causal, NOTHING, 0, "k of layer 1", NULL},
    {"pictures do not see each other", MODEL("pi0_tiny"), NULL, prompt_does_not_see_pictures, NOTHING, 0,
     "k of layer 1", NULL},
    {"a camera's mask is ignored", MODEL("pi0_tiny_droid"), NULL, NULL, MASK_IGNORED, 0, "k of layer 0",
     NULL},
    {"two cameras are swapped", MODEL("pi0_tiny"), NULL, NULL, CAMERAS_SWAPPED, 0, "image_tokens of camera 0",
     NULL},
    {"prompt padding is seen", MODEL("pi05_tiny"), NULL, NULL, PADDING_SEEN, 0, "k of layer 1", NULL},
    {"text is not scaled by √width", MODEL("pi0_tiny"), text_unscaled, NULL, NOTHING, 0, "k of layer 1",
     NULL},
    {"image tokens are divided by √width", MODEL("pi0_tiny"), image_tokens_scaled, NULL, NOTHING, 0,
     "image_tokens of camera 0", NULL},
    {"w for 1 + w in the language stack", MODEL("pi0_tiny"), w_in_the_prefix, NULL, NOTHING, 0,
     "k of layer 0", NULL},
    {"w for 1 + w in the expert", MODEL("pi0_tiny"), w_in_the_expert, NULL, NOTHING, 0, "velocity of step 0",
     NULL},
    {"w for 1 + w in the expert, π0.5", MODEL("pi05_tiny"), w_in_the_expert, NULL, NOTHING, 0,
     "velocity of step 0", NULL},
    {"adaRMS takes shift for scale", MODEL("pi05_tiny"), ada_chunks_swapped, NULL, NOTHING, 0,
     "velocity of step 0", NULL},
    {"gates of the wrong norm", MODEL("pi05_tiny"), gate_of_the_wrong_norm, NULL, NOTHING, 0,
     "velocity of step 0", NULL},
    {"gates are ignored", MODEL("pi05_tiny"), gates_ignored, NULL, NOTHING, 0, "velocity of step 0", NULL},
    {"the time MLP lacks its second SiLU", MODEL("pi05_tiny"), second_silu_missing, NULL, NOTHING, 0,
     "velocity of step 0", NULL},
    {"time is off by a step", MODEL("pi0_tiny"), time_off_by_a_step, NULL, NOTHING, 0, "suffix0", NULL},
    {"time is off by a step, π0.5", MODEL("pi05_tiny"), time_off_by_a_step, NULL, NOTHING, 0,
     "velocity of step 0", NULL},
    {"one step short", MODEL("pi0_tiny"), one_step_short, NULL, NOTHING, 0, "x after step 9", NULL},
    {"the expert's last norm is missing", MODEL("pi0_tiny"), final_norm_missing, NULL, NOTHING, 0,
     "velocity of step 0", NULL},
    {"pictures without positions", MODEL("pi0_tiny"), picture_positions_missing, NULL, NOTHING, 0,
     "image_tokens of camera 0", NULL},
    {"attention scaled by a padded head", MODEL("pi0_tiny"), attention_scaled_by_padded_head, NULL, NOTHING,
     0, "image_tokens of camera 0", NULL},
    {"a vision block's norms are swapped", MODEL("pi0_tiny"), norms_of_a_block_swapped, NULL, NOTHING, 0,
     "image_tokens of camera 0", NULL},
    {"the cache of the layer before", MODEL("pi0_tiny"), cache_of_the_layer_before, NULL, NOTHING, 0,
     "velocity of step 0", NULL},
    {"GELU as SiLU", MODEL("pi0_tiny"), gelu_is_silu, NULL, NOTHING, 0, "image_tokens of camera 0", NULL},
    {"the expert's attention scaled by its own width", MODEL("pi0_tiny"), expert_scaled_by_own_width, NULL,
     NOTHING, 0, "velocity of step 0", NULL},
    {"keys of the batch's longest sample", MODEL("pi05_tiny_batch"), NULL, keys_of_the_longest, NOTHING, 0,
     "velocity of step 0", NULL},
    {"times computed in double", MODEL("pi0_tiny"), NULL, NULL, NOTHING, 0, "time of step 2",
     times_in_double},
    {"cosine before sine in the time embedding", MODEL("pi05_tiny"), cosine_before_sine, NULL, NOTHING, 0,
     "velocity of step 0", NULL},
    {"velocity of the row before", MODEL("pi0_tiny"), velocity_one_row_early, NULL, NOTHING, 1,
     "velocity of step 0", NULL},
    {"resize cuts instead of rounding", "policy/droid_pi0", NULL, NULL, RESIZE_TRUNCATES, 0, "images, base",
     NULL},
    {"ε of the quantiles", "policy/droid_jointpos", NULL, NULL, SMALL_EPSILON, 0, "state: element", NULL},
    {"ε of the standard deviation", "policy/droid_pi0", NULL, NULL, SMALL_EPSILON, 0, "state: element", NULL},
    {"ε of the quantiles of the actions", "policy/libero_pi05", NULL, NULL, EPSILON_OUTWARDS, 0,
     "the golden's actions", NULL},
    {"z-score for quantiles", "policy/libero_pi05", NULL, NULL, ZSCORE, 0, "state: element", NULL},
    {"state bins off by one", "policy/droid_jointpos", NULL, NULL, BINS_UP, 0, "token", NULL},
    {"the gripper is relative too", "policy/droid_jointpos", NULL, NULL, GRIPPER_TOO, 0, "actions in units",
     NULL},
    {"deltas from the normalised state", "policy/droid_jointpos", NULL, NULL, DELTA_FROM_NORMALISED, 0,
     "actions in units", NULL},
    {"ALOHA's joints without their signs", "policy/aloha_pi05", NULL, NULL, NO_JOINT_SIGNS, 0, "tokens",
     NULL},
};

enum { FAULTS = sizeof faults / sizeof *faults };

static void on_session(void *user, openpi_session *session) {
    const fault *f = user;
    if (f->plant) f->plant(session);
    session->on_tables = f->tables;
}

static void on_policy(void *user, openpi_policy *policy) {
    (void)user;
    policy_now = policy;
    if (standing_in == ZSCORE) policy->mode = STATS_ZSCORE;
    if (standing_in == GRIPPER_TOO) policy->robot.delta[policy->robot.delta_count - 1] = 1;
}

static void on_engine(void *user, openpi_engine *engine) {
    const fault *f = user;
    if (f->weights) f->weights(engine);
}

static void fault_is_found(void **state) {
    const fault *f = *state;
    verify_options options = VERIFY_OPTIONS_INIT;
    rows r = {0};
    openpi_error error = OPENPI_ERROR_INIT;
    char path[256];
    fault own = *f;
    snprintf(path, sizeof path, GOLDEN "/%s", f->golden);
    options.on_engine = on_engine;
    options.on_session = on_session;
    options.batch_only = 1;
    options.on_policy = on_policy;
    options.hook_user = &own;
    options.state_every_step = f->state_every_step;
    standing_in = f->stand_in;
    openpi_status status = verify_path(path, &options, rows_take, &r, &error);
    standing_in = NOTHING;
    policy_now = NULL;
    while (copy_count) free(copies[--copy_count]);
    if (status != OPENPI_OK) fail_msg("%s", error.message);
    assert_int_equal(r.count, 1);
    if (!f->says) {
        if (r.row[0].result != VERIFY_OK) fail_msg("%s", r.row[0].detail);
        return;
    }
    if (r.row[0].result != VERIFY_FAIL)
        fail_msg("not found: max %.2e of %.2e", r.row[0].max, r.row[0].bound_max);
    print_message("           max %.2e: %s\n", r.row[0].max, r.row[0].detail);
    if (!strstr(r.row[0].detail, f->says)) fail_msg("\"%s\" does not say \"%s\"", r.row[0].detail, f->says);
}

int main(void) {
    static struct CMUnitTest tests[FAULTS];
    for (int i = 0; i < FAULTS; i++)
        tests[i] =
            (struct CMUnitTest){faults[i].name, fault_is_found, NULL, NULL, (void *)(uintptr_t)&faults[i]};
    return _cmocka_run_group_tests("faults", tests, FAULTS, NULL, NULL);
}
