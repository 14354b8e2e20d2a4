/* Every tensor of a checkpoint, with its shape, in openpi's PyTorch naming and file order (MODEL.md).
 *
 * One table serves making checkpoints and checking them. The embedding table appears under
 * paligemma.lm_head.weight, the one of its two names that openpi's files keep. */
#include <stdio.h>

#include "base/report.h"
#include "checkpoint/layout.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/variant.h"

enum extent {
    NONE,
    RGB,
    PATCH,
    TOKENS,
    ACTION,
    VISION,
    VISION_MLP,
    WIDTH,
    VOCAB,
    QUERY,
    HEAD,
    MLP,
    EXPERT,
    EXPERT_2,
    EXPERT_3,
    EXPERT_MLP,
    EXTENTS
};

/* Which trait of a variant a tensor belongs to. */
enum when { ALWAYS, PLAIN_NORMS, ADAPTIVE_NORMS, STATE_TOKEN, TIME_IN_ACTIONS, TIME_IN_NORMS, WHENS };

typedef struct row {
    const char *name;            /* NULL ends a section's rows */
    enum when when;
    uint8_t shape[4];            /* enum extent, NONE ends */
} row;

#define LINEAR(when, name, out, in) {name ".weight", when, {out, in}}, {name ".bias", when, {out}}
#define NORM(name) {name ".weight", ALWAYS, {VISION}}, {name ".bias", ALWAYS, {VISION}}

enum repeat { ONCE, VISION_DEPTH, DEPTH };

typedef struct section {
    const char *prefix;          /* where it repeats, "layer." follows */
    enum repeat repeat;
    row rows[17];
} section;

static const section sections[] = {
    {TOWER "embeddings.", ONCE, {
        {"patch_embedding.weight", ALWAYS, {VISION, RGB, PATCH, PATCH}},
        {"patch_embedding.bias", ALWAYS, {VISION}},
        {"position_embedding.weight", ALWAYS, {TOKENS, VISION}},
    }},
    {TOWER "encoder.layers.", VISION_DEPTH, {
        NORM("layer_norm1"),
        NORM("layer_norm2"),
        LINEAR(ALWAYS, "self_attn.q_proj", VISION, VISION),
        LINEAR(ALWAYS, "self_attn.k_proj", VISION, VISION),
        LINEAR(ALWAYS, "self_attn.v_proj", VISION, VISION),
        LINEAR(ALWAYS, "self_attn.out_proj", VISION, VISION),
        LINEAR(ALWAYS, "mlp.fc1", VISION_MLP, VISION),
        LINEAR(ALWAYS, "mlp.fc2", VISION, VISION_MLP),
    }},
    {TOWER, ONCE, {
        NORM("post_layernorm"),
    }},
    {PALIGEMMA, ONCE, {
        LINEAR(ALWAYS, "model.multi_modal_projector.linear", WIDTH, VISION),
        {"lm_head.weight", ALWAYS, {VOCAB, WIDTH}},
    }},
    {LANGUAGE "layers.", DEPTH, {
        {"self_attn.q_proj.weight", ALWAYS, {QUERY, WIDTH}},
        {"self_attn.k_proj.weight", ALWAYS, {HEAD, WIDTH}},
        {"self_attn.v_proj.weight", ALWAYS, {HEAD, WIDTH}},
        {"self_attn.o_proj.weight", ALWAYS, {WIDTH, QUERY}},
        {"mlp.gate_proj.weight", ALWAYS, {MLP, WIDTH}},
        {"mlp.up_proj.weight", ALWAYS, {MLP, WIDTH}},
        {"mlp.down_proj.weight", ALWAYS, {WIDTH, MLP}},
        {"input_layernorm.weight", ALWAYS, {WIDTH}},
        {"post_attention_layernorm.weight", ALWAYS, {WIDTH}},
    }},
    {LANGUAGE, ONCE, {
        {"norm.weight", ALWAYS, {WIDTH}},
    }},
    {EXPERT_MODEL "layers.", DEPTH, {
        {"self_attn.q_proj.weight", ALWAYS, {QUERY, EXPERT}},
        {"self_attn.k_proj.weight", ALWAYS, {HEAD, EXPERT}},
        {"self_attn.v_proj.weight", ALWAYS, {HEAD, EXPERT}},
        {"self_attn.o_proj.weight", ALWAYS, {EXPERT, QUERY}},
        {"mlp.gate_proj.weight", ALWAYS, {EXPERT_MLP, EXPERT}},
        {"mlp.up_proj.weight", ALWAYS, {EXPERT_MLP, EXPERT}},
        {"mlp.down_proj.weight", ALWAYS, {EXPERT, EXPERT_MLP}},
        {"input_layernorm.weight", PLAIN_NORMS, {EXPERT}},
        {"post_attention_layernorm.weight", PLAIN_NORMS, {EXPERT}},
        LINEAR(ADAPTIVE_NORMS, "input_layernorm.dense", EXPERT_3, EXPERT),
        LINEAR(ADAPTIVE_NORMS, "post_attention_layernorm.dense", EXPERT_3, EXPERT),
    }},
    {EXPERT_MODEL, ONCE, {
        {"norm.weight", PLAIN_NORMS, {EXPERT}},
        LINEAR(ADAPTIVE_NORMS, "norm.dense", EXPERT_3, EXPERT),
    }},
    {"", ONCE, {
        LINEAR(ALWAYS, "action_in_proj", EXPERT, ACTION),
        LINEAR(ALWAYS, "action_out_proj", ACTION, EXPERT),
        LINEAR(STATE_TOKEN, "state_proj", EXPERT, ACTION),
        LINEAR(TIME_IN_ACTIONS, "action_time_mlp_in", EXPERT, EXPERT_2),
        LINEAR(TIME_IN_ACTIONS, "action_time_mlp_out", EXPERT, EXPERT),
        LINEAR(TIME_IN_NORMS, "time_mlp_in", EXPERT, EXPERT),
        LINEAR(TIME_IN_NORMS, "time_mlp_out", EXPERT, EXPERT),
    }},
};

typedef struct walk {
    int64_t extents[EXTENTS];
    int has[WHENS];
    checkpoint_tensor each;
    void *user;
} walk;

static openpi_status walk_rows(const walk *w, const section *s, int layer, openpi_error *error) {
    char name[192];
    for (const row *r = s->rows; r->name; r++) {
        if (!w->has[r->when]) continue;
        int64_t shape[4];
        int rank = 0;
        for (; rank < 4 && r->shape[rank] != NONE; rank++) shape[rank] = w->extents[r->shape[rank]];
        if (s->repeat == ONCE)
            snprintf(name, sizeof name, "%s%s", s->prefix, r->name);
        else
            snprintf(name, sizeof name, "%s%d.%s", s->prefix, layer, r->name);
        TRY(w->each(w->user, name, rank, shape, error));
    }
    return OPENPI_OK;
}

openpi_status checkpoint_tensors(const openpi_dims *d, openpi_variant variant, checkpoint_tensor each,
                                 void *user, openpi_error *error) {
    const variant_traits *traits = variant_of(variant);
    const walk w = {
        .extents = {[RGB] = 3,
                    [PATCH] = 14,
                    [TOKENS] = OPENPI_IMAGE_TOKENS,
                    [ACTION] = OPENPI_ACTION_DIM,
                    [VISION] = d->vision_width,
                    [VISION_MLP] = d->vision_mlp,
                    [WIDTH] = d->width,
                    [VOCAB] = d->vocab,
                    [QUERY] = (int64_t)d->heads * d->head_dim,
                    [HEAD] = d->head_dim,
                    [MLP] = d->mlp,
                    [EXPERT] = d->expert_width,
                    [EXPERT_2] = 2 * (int64_t)d->expert_width,
                    [EXPERT_3] = 3 * (int64_t)d->expert_width,
                    [EXPERT_MLP] = d->expert_mlp},
        .has = {[ALWAYS] = 1,
                [PLAIN_NORMS] = !traits->adaptive_norms,
                [ADAPTIVE_NORMS] = traits->adaptive_norms,
                [STATE_TOKEN] = traits->state_token,
                [TIME_IN_ACTIONS] = traits->action_time_mlp,
                [TIME_IN_NORMS] = !traits->action_time_mlp},
        .each = each,
        .user = user,
    };
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const section *s = &sections[i];
        int repeats = s->repeat == ONCE ? 1 : s->repeat == VISION_DEPTH ? d->vision_depth : d->depth;
        for (int layer = 0; layer < repeats; layer++) TRY(walk_rows(&w, s, layer, error));
    }
    return OPENPI_OK;
}
