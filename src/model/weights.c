/* From checkpoint to model: which tensors make up which matrix, under the switches, and where in the
 * device block it lies. packing.c fills the block.
 *
 * lay_out() names every weight once and runs twice: to measure, then to bind addresses and collect jobs.
 * While it measures, a weight is its place in the block and not NULL, since a device decides what to prepare
 * by what a layer has (a bias, a norm). */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/report.h"
#include "checkpoint/damage.h"
#include "model/merged.h"
#include "model/model.h"
#include "model/packing.h"
#include "model/smoothing.h"
#include "checkpoint/tensor_names.h"

#define FIRST_PLACE ((char *)(uintptr_t)ARENA_ALIGN)
enum { NAME = 256 };

typedef struct loader {
    model *model;
    arena arena;
    matrix_job *matrices;                  /* jobs; NULL while measuring                                    */
    vector_job *vectors;
    int matrix_count, vector_count;
    const model *base;                     /* whose matrices are shared where formats are alike; or NULL    */
    int place;                             /* among all matrices, shared ones too                           */
    size_t shared;                         /* bytes                                                         */
    weight_group group;                    /* which the matrices that are named next belong to              */
    smooth_tower tower;                    /* and their tower and layer                                     */
    int layer;
    scaling by_row, by_column;             /* the next matrix's alone                                       */
    merged merged;                         /* π0's, where they are merged                                   */
    const tensor *given;                   /* [given_count] in place of the checkpoint's of their names     */
    int given_count;
    const tensors *rest;                   /* what can be read beside them; NULL: nothing                   */
} loader;

static int on(const loader *l, op_switch which) { return !switch_off(l->model->off, which); }

static const tensor *find(const loader *l, const char *name) {
    for (int i = 0; i < l->given_count; i++)
        if (!strcmp(l->given[i].name, name)) return &l->given[i];
    const tensor *t = l->rest ? tensors_find(l->rest, name) : NULL;
    return t ? t : tensors_find(l->model->checkpoint->tensors, name);
}

/* A matrix keeps the format that it was loaded with, whatever type is given in its place. */
static int is_bf16(const loader *l, const char *name) {
    return tensor_is_bf16(tensors_find(l->model->checkpoint->tensors, name));
}

/* ---- naming every weight ------------------------------------------------------------------------------- */

typedef struct matrix_parts {
    const char *names[JOB_PARTS];
    int count, column, columns;            /* columns 0: all                                                */
    int head;                              /* 1: it belongs to GROUP_HEADS                                  */
} matrix_parts;

static weight_type weights_of(product_format f, int all_bf16) {
    return f == FORMAT_FILE && all_bf16 ? WEIGHT_BF16 : format_weights(f);
}

/* What a matrix takes of an arena. */
static size_t matrix_bytes(const loader *l, const matrix *m) {
    arena own = {0};
    arena_take(&own, l->model->device->backend->matrix_bytes(l->model->device, m));
    size_t scales = (size_t)m->n * (size_t)weight_groups(&weight_formats[m->type], m->k) * sizeof *m->scales;
    arena_take(&own, scales);
    return own.used;
}

/* The same matrix of the base, where it may be shared: its codes and scales would be the same. */
static const matrix *twin_of(const loader *l, const matrix_job *job, int place) {
    const matrix *twin = l->base ? l->base->matrices[place] : NULL;
    int scaled = job->by_row.powers || job->by_column.powers;
    int alike = twin && twin->type == job->matrix->type && twin->input == job->matrix->input;
    return alike && !scaled ? twin : NULL;
}

/* *bytes: what is counted for its group. */
static void add_matrix(loader *l, matrix_job job, size_t *bytes) {
    matrix *m = job.matrix;
    int place = l->place++;
    if (l->model->matrices) l->model->matrices[place] = m;
    const matrix *twin = twin_of(l, &job, place);
    if (twin) {
        m->data = twin->data;
        m->scales = twin->scales;
        l->shared += matrix_bytes(l, m);
        *bytes += matrix_bytes(l, m);
        return;
    }
    size_t before = l->arena.used;
    size_t scales = (size_t)m->n * (size_t)weight_groups(&weight_formats[m->type], m->k) * sizeof *m->scales;
    job.to = arena_take(&l->arena, l->model->device->backend->matrix_bytes(l->model->device, m));
    job.scales_to = scales ? arena_take(&l->arena, scales) : NULL;
    m->data = job.to;
    m->scales = job.scales_to;
    if (l->matrices) l->matrices[l->matrix_count] = job;
    l->matrix_count++;
    *bytes += l->arena.used - before;
}

static const float *add_vector(loader *l, vector_job job) {
    job.to = arena_take(&l->arena, (size_t)job.count * sizeof(float));
    if (l->vectors) l->vectors[l->vector_count] = job;
    l->vector_count++;
    return job.to;
}

/* How a set's channels change, which are elements first … end-1 of a row, a column or a vector. */
static scaling scaled(const loader *l, smooth_set set, int sign, int first, int end) {
    const model *m = l->model;
    const int8_t *powers = m->types.powers;
    int count = smooth_channels(&m->dims, l->tower, set);
    if (!powers || !count || !smooth_asked(&m->types, l->tower, set)) return (scaling){.count = 0};
    return (scaling){.powers = powers + smooth_at(&m->dims, l->tower, l->layer, set),
                     .count = count,
                     .first = first,
                     .end = end,
                     .sign = sign};
}

static scaling divided(const loader *l, smooth_set set, int first, int end) {
    return scaled(l, set, -1, first, end);
}

/* All columns of the next matrix. */
static void multiply_columns(loader *l, smooth_set set) { l->by_column = scaled(l, set, 1, 0, INT_MAX); }

static void take_matrix(loader *l, matrix *out, matrix_form form, int heads, const char *base,
                        matrix_parts parts) {
    matrix_job job = {.matrix = out,
                      .part_count = parts.count,
                      .column = parts.column,
                      .by_row = l->by_row,
                      .by_column = l->by_column};
    weight_group group = parts.head ? GROUP_HEADS : l->group;
    product_format format = l->model->types.group[group];
    int all_bf16 = 1, n = 0;
    char name[2 * NAME];
    for (int i = 0; i < parts.count; i++) {
        snprintf(name, sizeof name, "%s%s.weight", base, parts.names[i]);
        const tensor *t = find(l, name);
        job.parts[i] = t;
        job.rows[i] = (int)t->shape[0];
        job.row_length = (int)(t->count / t->shape[0]);
        n += job.rows[i];
        all_bf16 &= is_bf16(l, name);
    }
    *out = (matrix){.n = n,
                    .k = parts.columns ? parts.columns : job.row_length,
                    .type = weights_of(format, all_bf16),
                    .input = format_input(format),
                    .form = form,
                    .heads = heads,
                    .head_dim = form == MATRIX_QKV ? l->model->dims.head_dim : 0,
                    .raw = !on(l, SWITCH_PACKED_WEIGHTS)};
    l->by_row = l->by_column = (scaling){.count = 0};
    add_matrix(l, job, &l->model->group_bytes[group]);
}

static const float *take_vector(loader *l, const char *base, const char *const *names, int count,
                                scaling by) {
    vector_job job = {.part_count = count, .by = by};
    char name[2 * NAME];
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s%s", base, names[i]);
        job.parts[i] = find(l, name);
        job.count += (int)job.parts[i]->count;
    }
    return add_vector(l, job);
}

static const float *vector(loader *l, const char *base, const char *name) {
    return take_vector(l, base, &name, 1, (scaling){.count = 0});
}

/* The weight or bias of a norm. one: the weight's gain is 1 + w. */
static const float *norm_vector(loader *l, const char *base, const char *name, smooth_set set, int one) {
    scaling by = divided(l, set, 0, INT_MAX);
    by.plus_one = one ? INT_MAX : 0;
    return take_vector(l, base, &name, 1, by);
}

/* Bias of an adaptive norm's matrix: scale, to which 1 is added, shift, gate. */
static const float *ada_bias(loader *l, const char *base, const char *name, smooth_set set) {
    int width = l->model->dims.expert_width;
    scaling by = divided(l, set, 0, 2 * width);
    by.plus_one = width;
    return take_vector(l, base, &name, 1, by);
}

static void linear(loader *l, matrix *out, const char *base, const char *name) {
    take_matrix(l, out, MATRIX_PLAIN, 0, base, (matrix_parts){{name}, 1, 0, 0, 0});
}

static void head(loader *l, matrix *out, const char *name) {
    take_matrix(l, out, MATRIX_PLAIN, 0, "", (matrix_parts){{name}, 1, 0, 0, 1});
}

/* Several tensors as one product, or each as a product of its own. */
static void stacked(loader *l, matrix *whole, matrix *parts, int together, matrix_form form, int heads,
                    const char *base, matrix_parts names) {
    if (together) {
        take_matrix(l, whole, form, heads, base, names);
        return;
    }
    scaling rows = l->by_row, columns = l->by_column;
    for (int i = 0; i < names.count; i++) {
        l->by_row = rows;
        l->by_column = columns;
        linear(l, &parts[i], base, names.names[i]);
        rows.first -= parts[i].n;
        rows.end -= parts[i].n;
    }
}

static norm layer_norm(loader *l, const char *base, const char *name, smooth_set set) {
    char weight[NAME], bias[NAME];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    const float *w = norm_vector(l, base, weight, set, 0);
    return (norm){NORM_LAYER, w, norm_vector(l, base, bias, set, 0), 1e-6f};
}

static void lay_out_vision(loader *l) {
    model *m = l->model;
    char base[NAME];
    l->group = GROUP_VISION;
    take_matrix(l, &m->patch, MATRIX_PLAIN, 0, TOWER,
                (matrix_parts){{"embeddings.patch_embedding"}, 1, 0, 0, 1});
    m->patch_bias = vector(l, TOWER, "embeddings.patch_embedding.bias");
    m->position = vector(l, TOWER, "embeddings.position_embedding.weight");
    for (int i = 0; i < m->dims.vision_depth; i++) {
        vision_layer *v = &m->vision[i];
        int width = m->dims.vision_width;
        snprintf(base, sizeof base, TOWER "encoder.layers.%d.", i);
        l->tower = SMOOTH_VISION;
        l->layer = i;
        v->norm1 = layer_norm(l, base, "layer_norm1", SMOOTH_NORM1);
        v->norm2 = layer_norm(l, base, "layer_norm2", SMOOTH_NORM2);
        multiply_columns(l, SMOOTH_NORM1);
        l->by_row = divided(l, SMOOTH_VALUES, 2 * width, 3 * width);
        stacked(l, &v->qkv, v->qkv_parts, on(l, SWITCH_FUSED_QKV), MATRIX_PLAIN, 0, base,
                (matrix_parts){{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, 3, 0, 0, 0});
        v->qkv_bias = take_vector(
            l, base,
            (const char *[]){"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}, 3,
            divided(l, SMOOTH_VALUES, 2 * width, 3 * width));
        multiply_columns(l, SMOOTH_VALUES);
        linear(l, &v->out, base, "self_attn.out_proj");
        v->out_bias = vector(l, base, "self_attn.out_proj.bias");
        multiply_columns(l, SMOOTH_NORM2);
        linear(l, &v->fc1, base, "mlp.fc1");
        v->fc1_bias = vector(l, base, "mlp.fc1.bias");
        linear(l, &v->fc2, base, "mlp.fc2");
        v->fc2_bias = vector(l, base, "mlp.fc2.bias");
    }
    m->vision_norm = layer_norm(l, TOWER, "post_layernorm", SMOOTH_SETS);
    linear(l, &m->projector, PROJECTOR, "");
    m->projector_bias = vector(l, PROJECTOR, ".bias");
}

/* The matrix of an adaptive norm: rows of scale, shift and gate. */
static void ada(loader *l, matrix *out, const char *base, const char *name, smooth_set set) {
    l->by_row = divided(l, set, 0, 2 * l->model->dims.expert_width);
    take_matrix(l, out, MATRIX_PLAIN, 0, base, (matrix_parts){{name}, 1, 0, 0, 1});
}

/* The scale of the rows that the prefix's down reads; 0: each has its own. The last layer's product, which
 * nothing reads, has that. */
static float row_scale(const loader *l) {
    const model_types *types = &l->model->types;
    int measured = types->row_scales && l->layer < formats_row_scales(&l->model->dims);
    return types->fixed && measured ? types->row_scales[l->layer] : 0;
}

/* only_kv: the last prefix layer, of which only K and V are used. expert: else the prefix. */
static void lay_out_gemma(loader *l, gemma_layer *g, const char *base, int expert, int only_kv) {
    int heads = l->model->dims.heads, together = on(l, SWITCH_FUSED_QKV);
    int adaptive = expert && variant_of(l->model->variant)->adaptive_norms;
    /* RoPE is inside the product, or an operation of its own. */
    matrix_form form = on(l, SWITCH_FUSED_POINTWISE) ? MATRIX_QKV : MATRIX_PLAIN;
    const openpi_dims *dims = &l->model->dims;
    int mlp = expert ? dims->expert_mlp : dims->mlp, before_v = ((only_kv ? 0 : heads) + 1) * dims->head_dim;
    l->group = expert ? GROUP_EXPERT : GROUP_ATTENTION;
    l->tower = expert ? SMOOTH_EXPERT : SMOOTH_PREFIX;
    multiply_columns(l, SMOOTH_NORM1);
    l->by_row = divided(l, SMOOTH_VALUES, before_v, INT_MAX);
    if (only_kv)
        stacked(l, &g->qkv, g->qkv_parts + 1, together, form, 0, base,
                (matrix_parts){{"self_attn.k_proj", "self_attn.v_proj"}, 2, 0, 0, 0});
    else
        stacked(l, &g->qkv, g->qkv_parts, together, form, heads, base,
                (matrix_parts){{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, 3, 0, 0, 0});
    if (adaptive) {
        ada(l, &g->ada_in, base, "input_layernorm.dense", SMOOTH_NORM1);
        ada(l, &g->ada_post, base, "post_attention_layernorm.dense", SMOOTH_NORM2);
        g->ada_in_bias = ada_bias(l, base, "input_layernorm.dense.bias", SMOOTH_NORM1);
        g->ada_post_bias = ada_bias(l, base, "post_attention_layernorm.dense.bias", SMOOTH_NORM2);
    } else {
        g->norm_in = norm_vector(l, base, "input_layernorm.weight", SMOOTH_NORM1, 1);
    }
    if (only_kv) return;
    if (!adaptive)
        g->norm_post = norm_vector(l, base, "post_attention_layernorm.weight", SMOOTH_NORM2, 1);
    multiply_columns(l, SMOOTH_VALUES);
    linear(l, &g->o, base, "self_attn.o_proj");
    l->group = expert ? GROUP_EXPERT : GROUP_FFN;
    multiply_columns(l, SMOOTH_NORM2);
    l->by_row = divided(l, SMOOTH_HIDDEN, mlp, INT_MAX);
    stacked(l, &g->gate_up, g->gate_up_parts, on(l, SWITCH_FUSED_GATE_UP), MATRIX_GATED, 0, base,
            (matrix_parts){{"mlp.gate_proj", "mlp.up_proj"}, 2, 0, 0, 0});
    multiply_columns(l, SMOOTH_HIDDEN);
    linear(l, &g->down, base, "mlp.down_proj");
    if (!expert) g->down.row_scale = row_scale(l);
}

static int is_merged(const loader *l) {
    return variant_of(l->model->variant)->action_time_mlp && on(l, SWITCH_FOLDED_CONSTANTS);
}

/* The products before the expert's first activation. */
static void lay_out_action_in(loader *l) {
    model *m = l->model;
    const variant_traits *traits = variant_of(m->variant);
    int width = m->dims.expert_width;
    if (traits->action_time_mlp)
        take_matrix(l, &m->time_in, MATRIX_PLAIN, 0, "",
                    (matrix_parts){{traits->time_mlp_in}, 1, width, width, 1});
    if (is_merged(l)) {
        m->action_in = (matrix){.n = width,
                                .k = OPENPI_ACTION_DIM,
                                .type = WEIGHT_F32,
                                .form = MATRIX_PLAIN,
                                .raw = !on(l, SWITCH_PACKED_WEIGHTS)};
        add_matrix(l, (matrix_job){.matrix = &m->action_in, .computed = l->merged.weight},
                   &m->group_bytes[GROUP_HEADS]);
        m->time_in_bias = add_vector(l, (vector_job){.count = width, .computed = l->merged.bias});
        return;
    }
    head(l, &m->action_in, "action_in_proj");
    m->action_in_bias = vector(l, "", "action_in_proj.bias");
    if (!traits->action_time_mlp) return;
    take_matrix(l, &m->mlp_in, MATRIX_PLAIN, 0, "", (matrix_parts){{traits->time_mlp_in}, 1, 0, width, 1});
    m->time_in_bias = vector(l, traits->time_mlp_in, ".bias");
}

static void lay_out_heads(loader *l) {
    model *m = l->model;
    const variant_traits *traits = variant_of(m->variant);
    lay_out_action_in(l);
    head(l, &m->action_out, "action_out_proj");
    m->action_out_bias = vector(l, "", "action_out_proj.bias");
    if (!traits->action_time_mlp) {
        head(l, &m->time_in, traits->time_mlp_in);
        m->time_in_bias = vector(l, traits->time_mlp_in, ".bias");
    }
    if (traits->state_token) {
        head(l, &m->state, "state_proj");
        m->state_bias = vector(l, "", "state_proj.bias");
    }
    head(l, &m->mlp_out, traits->time_mlp_out);
    m->mlp_out_bias = vector(l, traits->time_mlp_out, ".bias");
}

/* A row a token, as the file has them, in fp32 or bf16: prompts gather rows, nothing multiplies by the
 * whole. */
static void lay_out_embedding(loader *l) {
    model *m = l->model;
    const tensor *t = find(l, m->checkpoint->embedding->name);
    int vocab = m->dims.vocab, width = m->dims.width;
    int bf16 = is_bf16(l, m->checkpoint->embedding->name);
    weight_type type = weights_of(formats_embedding(&m->types), bf16);
    m->embedding = (matrix){.n = vocab, .k = width, .type = type, .form = MATRIX_PLAIN, .raw = 1};
    add_matrix(
        l,
        (matrix_job){
            .matrix = &m->embedding, .parts = {t}, .rows = {vocab}, .part_count = 1, .row_length = width},
        &m->embedding_bytes);
}

/* What the device wants to derive from each block. */
static void lay_out_prepared(loader *l) {
    model *m = l->model;
    const backend *backend = m->device->backend;
    model_fill_blocks(m);
    for (int i = 0; i < BLOCK_KINDS && backend->prepared_bytes; i++) {
        block_weights *block = &m->blocks[i];
        size_t bytes = block->layers ? backend->prepared_bytes(m->device, block) : 0;
        block->prepared = bytes ? arena_take(&l->arena, bytes) : NULL;
    }
}

static void lay_out(loader *l) {
    model *m = l->model;
    int adaptive = variant_of(m->variant)->adaptive_norms, depth = m->dims.depth;
    char base[NAME];
    l->arena.used = 0;
    l->matrix_count = l->vector_count = l->place = 0;
    l->shared = 0;
    m->embedding_bytes = 0;
    memset(m->group_bytes, 0, sizeof m->group_bytes);
    lay_out_vision(l);
    lay_out_embedding(l);
    for (int i = 0; i < depth; i++) {
        snprintf(base, sizeof base, LANGUAGE "layers.%d.", i);
        l->layer = i;
        lay_out_gemma(l, &m->prefix[i], base, 0, i == depth - 1 && on(l, SWITCH_DEAD_WORK_REMOVAL));
    }
    for (int i = 0; i < depth; i++) {
        snprintf(base, sizeof base, EXPERT_MODEL "layers.%d.", i);
        l->layer = i;
        lay_out_gemma(l, &m->expert[i], base, 1, 0);
    }
    if (adaptive) {
        take_matrix(l, &m->expert_ada, MATRIX_PLAIN, 0, EXPERT_MODEL,
                    (matrix_parts){{"norm.dense"}, 1, 0, 0, 1});
        m->expert_ada_bias = vector(l, EXPERT_MODEL, "norm.dense.bias");
    } else {
        m->expert_norm = vector(l, EXPERT_MODEL, "norm.weight");
    }
    lay_out_heads(l);
    lay_out_prepared(l);
}

/* ---- loading ------------------------------------------------------------------------------------------- */

static openpi_status prepare(const model *m, openpi_error *error) {
    for (int i = 0; i < BLOCK_KINDS; i++)
        if (m->blocks[i].prepared) TRY(m->device->backend->prepare(m->device, &m->blocks[i], error));
    return OPENPI_OK;
}

/* What the weights were read as: bf16 where any group's are. */
static dtype read_as(const model_types *types) {
    int bf16 = formats_embedding(types) == FORMAT_BF16;
    for (int g = 0; g < GROUPS; g++) bf16 |= types->group[g] == FORMAT_BF16;
    return bf16 ? DTYPE_BF16 : DTYPE_F32;
}

static openpi_status merge(loader *l, pool *pool, openpi_error *error) {
    const tensor *parts[MERGED_PARTS];
    for (int i = 0; i < MERGED_PARTS; i++) parts[i] = find(l, merged_names[i]);
    return merged_make(parts, l->model->dims.expert_width, pool, &l->merged, error);
}

static openpi_status load(loader *l, pool *pool, load_progress progress, void *user, openpi_error *error) {
    model *m = l->model;
    m->matrix_count = l->place;
    m->matrices = calloc((size_t)l->place, sizeof *m->matrices);
    l->matrices = calloc((size_t)l->matrix_count + 1, sizeof *l->matrices);        /* all may be shared     */
    l->vectors = calloc((size_t)l->vector_count, sizeof *l->vectors);
    if (!m->matrices || !l->matrices || !l->vectors)
        return report_no_memory(error, (size_t)l->matrix_count * sizeof *l->matrices, "the list of weights");
    TRY(tensors_stage(m->checkpoint->tensors, 0, pool, error));
    if (is_merged(l)) TRY(merge(l, pool, error));
    TRY(m->device->backend->allocate(m->device, m->own_bytes, "the model's weights", &m->block, error));
    l->arena.base = m->block;
    lay_out(l);
    atomic_int damaged = 0;
    TRY(pack_vectors(m->device, l->vectors, l->vector_count, &damaged, error));
    TRY(pack_matrices(m->device, l->matrices, l->matrix_count, pool, progress, user, &damaged, error));
    m->types.powers = NULL;
    m->types.row_scales = NULL;
    TRY(prepare(m, error));
    TRY(tensors_check(m->checkpoint->tensors, error));
    return atomic_load(&damaged)
               ? damage_report(m->checkpoint, read_as(&m->types), error)
               : OPENPI_OK;
}

static openpi_status check_types(const device *device, const model_types *types, openpi_error *error) {
    const backend *backend = device->backend;
    const char *act = types->act == DTYPE_BF16 ? "bf16" : "f32";
    if (types->fixed && !backend->takes_row_scales)
        return report(error, OPENPI_UNSUPPORTED,
                      "weights is ffn=int8x8+static, for which %s (%s) has no kernels, expected ffn=int8x8",
                      backend->name, device->path);
    for (int g = 0; g < GROUPS; g++) {
        product_format f = types->group[g];
        const char *name = weight_group_name((weight_group)g);
        if (backend->takes_weights(device, types->act, format_weights(f), format_input(f))) continue;
        return report(error, OPENPI_UNSUPPORTED,
                      "weights is %s=%s, for which %s (%s) has no kernels under %s activations, expected "
                      "%s=f32 or %s=bf16",
                      name, product_format_name(f), backend->name, device->path, act, name, name);
    }
    return OPENPI_OK;
}

/* The model without its weights, laid out to know its size. */
static openpi_status measure(loader *l, const checkpoint *checkpoint, device *device, model_types types,
                             uint32_t off, openpi_error *error) {
    const openpi_dims *dims = &checkpoint->dims;
    size_t layers =
        (size_t)dims->vision_depth * sizeof(vision_layer) + 2 * (size_t)dims->depth * sizeof(gemma_layer);
    model *m = l->model = calloc(1, sizeof *m);
    if (!m) return report_no_memory(error, sizeof *m, "the model");
    *m = (model){.dims = *dims,
                 .variant = checkpoint->variant,
                 .type = types.act,
                 .types = types,
                 .off = off,
                 .checkpoint = checkpoint,
                 .device = device};
    TRY(check_types(device, &m->types, error));
    tensors_round(checkpoint->tensors, model_rounds(m));
    m->vision = calloc((size_t)dims->vision_depth, sizeof *m->vision);
    m->prefix = calloc((size_t)dims->depth, sizeof *m->prefix);
    m->expert = calloc((size_t)dims->depth, sizeof *m->expert);
    m->layers = calloc((size_t)(dims->vision_depth + 2 * dims->depth), sizeof *m->layers);
    if (!m->vision || !m->prefix || !m->expert || !m->layers)
        return report_no_memory(error, layers, "the model");
    l->arena.base = FIRST_PLACE;
    lay_out(l);
    m->own_bytes = l->arena.used;
    m->bytes = m->own_bytes + l->shared;
    return OPENPI_OK;
}

openpi_status model_measure(const checkpoint *checkpoint, device *device, model_types types, uint32_t off,
                            model **out, openpi_error *error) {
    loader l = {0};
    openpi_status status = measure(&l, checkpoint, device, types, off, error);
    if (status == OPENPI_OK)
        *out = l.model;
    else
        model_close(l.model);
    return status;
}

/* `base` may be NULL. */
static openpi_status load_model(const checkpoint *checkpoint, device *device, model_types types, uint32_t off,
                                const model *base, pool *pool, load_progress progress, void *progress_user,
                                model **out, openpi_error *error) {
    loader l = {.base = base};
    openpi_status status = measure(&l, checkpoint, device, types, off, error);
    if (status == OPENPI_OK) status = load(&l, pool, progress, progress_user, error);
    merged_free(&l.merged);
    free(l.matrices);
    free(l.vectors);
    if (status == OPENPI_OK)
        *out = l.model;
    else
        model_close(l.model);
    return status;
}

openpi_status model_load(const checkpoint *checkpoint, device *device, model_types types, uint32_t off,
                         pool *pool, load_progress progress, void *progress_user, model **out,
                         openpi_error *error) {
    return load_model(checkpoint, device, types, off, NULL, pool, progress, progress_user, out, error);
}

openpi_status model_load_beside(const model *base, model_types types, pool *pool, load_progress progress,
                                void *progress_user, model **out, openpi_error *error) {
    return load_model(base->checkpoint, base->device, types, base->off, base, pool, progress, progress_user,
                      out, error);
}

/* ---- other weights in the same places ------------------------------------------------------------------ */

typedef struct update_copy {
    char *to, *from;
    size_t bytes;
} update_copy;

/* Packed weights that wait beside those that they replace. */
struct model_update {
    const model *model;
    loader loader;                         /* over the model's own block                                   */
    void *block;                           /* device memory: the new ones, one after the other             */
    update_copy *copies;                   /* [count]                                                      */
    int count;
};

static int is_given(const loader *l, const tensor *t) {
    return t >= l->given && t < l->given + l->given_count;
}

/* 1: they are given, all of them or none where the others cannot be read. */
static openpi_status look_given(const loader *l, const tensor *const *parts, int count, int *given,
                                openpi_error *error) {
    const tensor *there = NULL, *missing = NULL;
    for (int i = 0; i < count; i++) {
        if (is_given(l, parts[i])) there = parts[i];
        else if (!l->rest) missing = parts[i];
    }
    *given = there != NULL;
    if (!there || !missing) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "engine update: there is %s without %s, expected both: they are packed as one", there->name,
                  missing->name);
}

static openpi_status look_merged(const loader *l, int *given, openpi_error *error) {
    const tensor *parts[MERGED_PARTS];
    *given = 0;
    if (!is_merged(l)) return OPENPI_OK;
    for (int i = 0; i < MERGED_PARTS; i++) parts[i] = find(l, merged_names[i]);
    return look_given(l, parts, MERGED_PARTS, given, error);
}

/* What will be packed at *place gets another place until then. */
static void stage_apart(model_update *u, arena *own, void **place, size_t bytes) {
    if (!bytes) return;
    char *to = *place;
    *place = arena_take(own, bytes);
    u->copies[u->count++] = (update_copy){to, *place, bytes};
}

static openpi_status choose_vectors(model_update *u, int merged, arena *own, openpi_error *error) {
    loader *l = &u->loader;
    int count = 0, given;
    for (int i = 0; i < l->vector_count; i++) {
        vector_job job = l->vectors[i];
        TRY(look_given(l, job.parts, job.part_count, &given, error));
        if (!given && (!merged || job.part_count)) continue;
        stage_apart(u, own, &job.to, (size_t)job.count * sizeof(float));
        l->vectors[count++] = job;
    }
    l->vector_count = count;
    return OPENPI_OK;
}

static openpi_status choose_matrices(model_update *u, int merged, arena *own, openpi_error *error) {
    loader *l = &u->loader;
    device *device = u->model->device;
    int count = 0, given;
    for (int i = 0; i < l->matrix_count; i++) {
        matrix_job job = l->matrices[i];
        const matrix *m = job.matrix;
        size_t groups = (size_t)weight_groups(&weight_formats[m->type], m->k);
        TRY(look_given(l, job.parts, job.part_count, &given, error));
        if (!given && (!merged || job.part_count)) continue;
        stage_apart(u, own, &job.to, device->backend->matrix_bytes(device, m));
        stage_apart(u, own, &job.scales_to, (size_t)m->n * groups * sizeof *m->scales);
        l->matrices[count++] = job;
    }
    l->matrix_count = count;
    return OPENPI_OK;
}

/* From places that were only measured to memory. */
static void move_places(model_update *u) {
    loader *l = &u->loader;
    ptrdiff_t by = (char *)u->block - FIRST_PLACE;
    for (int i = 0; i < u->count; i++) u->copies[i].from += by;
    for (int i = 0; i < l->vector_count; i++) l->vectors[i].to = (char *)l->vectors[i].to + by;
    for (int i = 0; i < l->matrix_count; i++) {
        matrix_job *job = &l->matrices[i];
        job->to = (char *)job->to + by;
        if (job->scales_to) job->scales_to = (char *)job->scales_to + by;
    }
}

static openpi_status list_jobs(model_update *u, openpi_error *error) {
    loader *l = &u->loader;
    const model *m = u->model;
    TRY(measure(l, m->checkpoint, m->device, m->types, m->off, error));
    l->matrices = calloc((size_t)l->matrix_count, sizeof *l->matrices);
    l->vectors = calloc((size_t)l->vector_count, sizeof *l->vectors);
    u->copies = calloc(2 * (size_t)l->matrix_count + (size_t)l->vector_count, sizeof *u->copies);
    if (!l->matrices || !l->vectors || !u->copies)
        return report_no_memory(error, (size_t)l->matrix_count * sizeof *l->matrices, "the list of weights");
    l->arena.base = m->block;
    return OPENPI_OK;
}

static openpi_status pack_update(model_update *u, pool *pool, openpi_error *error) {
    loader *l = &u->loader;
    device *device = u->model->device;
    arena own = {.base = FIRST_PLACE};
    atomic_int damaged = 0;
    int merged;
    TRY(list_jobs(u, error));
    TRY(look_merged(l, &merged, error));
    if (merged) TRY(merge(l, pool, error));
    lay_out(l);
    TRY(choose_vectors(u, merged, &own, error));
    TRY(choose_matrices(u, merged, &own, error));
    TRY(device->backend->allocate(device, own.used ? own.used : 1, "weights that change", &u->block, error));
    move_places(u);
    TRY(pack_vectors(device, l->vectors, l->vector_count, &damaged, error));
    TRY(pack_matrices(device, l->matrices, l->matrix_count, pool, NULL, NULL, &damaged, error));
    if (!atomic_load(&damaged)) return OPENPI_OK;
    return report(error, OPENPI_BAD_INPUT,
                  "engine update: a weight is NaN, infinite or too large for the model's format");
}

int model_rounds(const model *m) { return m->types.act == DTYPE_BF16 && m->types.all != FORMAT_F32; }

openpi_status model_update_make(const model *model, const tensor *given, int count, const tensors *rest,
                                pool *pool, model_update **out, openpi_error *error) {
    model_update *u = calloc(1, sizeof *u);
    if (!u) return report_no_memory(error, sizeof *u, "weights that change");
    u->model = model;
    u->loader.given = given;
    u->loader.given_count = count;
    u->loader.rest = rest;
    openpi_status status = pack_update(u, pool, error);
    if (status == OPENPI_OK) *out = u;
    else model_update_close(u);
    return status;
}

openpi_status model_update_apply(model_update *u, openpi_error *error) {
    device *device = u->model->device;
    float nothing;
    for (int i = 0; i < u->count; i++) {
        const update_copy *c = &u->copies[i];
        TRY(device->backend->copy_rows(device, c->to, c->from, c->bytes, c->bytes, 1, error));
    }
    TRY(prepare(u->model, error));
    return device->backend->download(device, &nothing, u->block, 0, error);       /* waits, copies none */
}

void model_update_close(model_update *u) {
    if (!u) return;
    if (u->block) u->model->device->backend->release(u->model->device, u->block);
    merged_free(&u->loader.merged);
    free(u->loader.matrices);
    free(u->loader.vectors);
    free(u->copies);
    model_close(u->loader.model);
    free(u);
}

void model_close(model *model) {
    if (!model) return;
    if (model->block) model->device->backend->release(model->device, model->block);
    free(model->vision);
    free(model->prefix);
    free(model->expert);
    free(model->layers);
    free(model->matrices);
    free(model);
}
