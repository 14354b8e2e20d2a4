#include "checkpoint/jax/orbax_names.h"

#include <string.h>

#include "checkpoint/tensor_names.h"

#define IMG "PaliGemma.img."
#define BLOCK IMG "Transformer.encoderblock."
#define MHA BLOCK "MultiHeadDotProductAttention_0."
#define LLM "PaliGemma.llm."
#define EMBEDDING LLM "embedder.input_embedding"

/* Both stacks of Gemma: `x` is "" or "_1". */
#define ATTENTION "layers.%d.self_attn."
#define MLP "layers.%d.mlp."
#define GEMMA_RULES(x, to)                                                                                 \
    {LLM "layers.attn.q_einsum" x ".w", "Lbio", {to ATTENTION "q_proj.weight"}},                          \
    {LLM "layers.attn.kv_einsum" x ".w", "Lp1io", {to ATTENTION "k_proj.weight", to ATTENTION "v_proj.weight"}}, \
    {LLM "layers.attn.attn_vec_einsum" x ".w", "Liio", {to ATTENTION "o_proj.weight"}},                   \
    {LLM "layers.mlp" x ".gating_einsum", "Lpio", {to MLP "gate_proj.weight", to MLP "up_proj.weight"}},  \
    {LLM "layers.mlp" x ".linear", "Lio", {to MLP "down_proj.weight"}},                                   \
    {LLM "layers.pre_attention_norm" x ".scale", "Lo", {to "layers.%d.input_layernorm.weight"}},          \
    {LLM "layers.pre_ffw_norm" x ".scale", "Lo", {to "layers.%d.post_attention_layernorm.weight"}},       \
    {LLM "final_norm" x ".scale", "o", {to "norm.weight"}}

#define LINEAR_RULES(name) {name ".kernel", "io", {name ".weight"}}, {name ".bias", "o", {name ".bias"}}

/* An adaptive norm of π0.5's expert. */
#define ADAPTIVE_RULES(kernel, bias, from, to)                          \
    {LLM from ".Dense_0.kernel", kernel, {EXPERT_MODEL to ".dense.weight"}}, \
    {LLM from ".Dense_0.bias", bias, {EXPERT_MODEL to ".dense.bias"}}

static const array_rule rules[] = {
    {IMG "embedding.kernel", "ssco", {TOWER "embeddings.patch_embedding.weight"}},
    {IMG "embedding.bias", "o", {TOWER "embeddings.patch_embedding.bias"}},
    {IMG "pos_embedding", "1bo", {TOWER "embeddings.position_embedding.weight"}},
    {BLOCK "LayerNorm_0.scale", "Lo", {TOWER "encoder.layers.%d.layer_norm1.weight"}},
    {BLOCK "LayerNorm_0.bias", "Lo", {TOWER "encoder.layers.%d.layer_norm1.bias"}},
    {BLOCK "LayerNorm_1.scale", "Lo", {TOWER "encoder.layers.%d.layer_norm2.weight"}},
    {BLOCK "LayerNorm_1.bias", "Lo", {TOWER "encoder.layers.%d.layer_norm2.bias"}},
    {MHA "query.kernel", "Lioo", {TOWER "encoder.layers.%d.self_attn.q_proj.weight"}},
    {MHA "query.bias", "Loo", {TOWER "encoder.layers.%d.self_attn.q_proj.bias"}},
    {MHA "key.kernel", "Lioo", {TOWER "encoder.layers.%d.self_attn.k_proj.weight"}},
    {MHA "key.bias", "Loo", {TOWER "encoder.layers.%d.self_attn.k_proj.bias"}},
    {MHA "value.kernel", "Lioo", {TOWER "encoder.layers.%d.self_attn.v_proj.weight"}},
    {MHA "value.bias", "Loo", {TOWER "encoder.layers.%d.self_attn.v_proj.bias"}},
    {MHA "out.kernel", "Liio", {TOWER "encoder.layers.%d.self_attn.out_proj.weight"}},
    {MHA "out.bias", "Lo", {TOWER "encoder.layers.%d.self_attn.out_proj.bias"}},
    {BLOCK "MlpBlock_0.Dense_0.kernel", "Lio", {TOWER "encoder.layers.%d.mlp.fc1.weight"}},
    {BLOCK "MlpBlock_0.Dense_0.bias", "Lo", {TOWER "encoder.layers.%d.mlp.fc1.bias"}},
    {BLOCK "MlpBlock_0.Dense_1.kernel", "Lio", {TOWER "encoder.layers.%d.mlp.fc2.weight"}},
    {BLOCK "MlpBlock_0.Dense_1.bias", "Lo", {TOWER "encoder.layers.%d.mlp.fc2.bias"}},
    {IMG "Transformer.encoder_norm.scale", "o", {TOWER "post_layernorm.weight"}},
    {IMG "Transformer.encoder_norm.bias", "o", {TOWER "post_layernorm.bias"}},
    {IMG "head.kernel", "io", {PROJECTOR ".weight"}},
    {IMG "head.bias", "o", {PROJECTOR ".bias"}},
    {EMBEDDING, "bo", {"paligemma_with_expert.paligemma.lm_head.weight"}},
    GEMMA_RULES("", LANGUAGE),
    GEMMA_RULES("_1", EXPERT_MODEL),
    ADAPTIVE_RULES("Lio", "Lo", "layers.pre_attention_norm_1", "layers.%d.input_layernorm"),
    ADAPTIVE_RULES("Lio", "Lo", "layers.pre_ffw_norm_1", "layers.%d.post_attention_layernorm"),
    ADAPTIVE_RULES("io", "o", "final_norm_1", "norm"),
    LINEAR_RULES("state_proj"),
    LINEAR_RULES("action_in_proj"),
    LINEAR_RULES("action_out_proj"),
    LINEAR_RULES("action_time_mlp_in"),
    LINEAR_RULES("action_time_mlp_out"),
    LINEAR_RULES("time_mlp_in"),
    LINEAR_RULES("time_mlp_out"),
};

_Static_assert(sizeof rules / sizeof *rules <= MOST_ARRAYS, "a checkpoint may have all of them");

const array_rule *array_rule_find(const char *array) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!strcmp(rules[i].array, array)) return &rules[i];
    return NULL;
}

int array_rule_vision(const array_rule *rule) { return !strncmp(rule->array, IMG, sizeof IMG - 1); }

int array_rule_sequential(const array_rule *rule) { return !strcmp(rule->array, EMBEDDING); }

const char array_vision_heads[] = MHA "query.kernel";
