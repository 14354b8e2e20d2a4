/* Words in names: the stage of an annotation, the group of a kernel. Tables, searched in order. */
#include <string.h>

#include "lab/measure/breakdown.h"
#include "base/ascii.h"

const char *breakdown_stage_name(breakdown_stage stage) {
    static const char *const names[BREAKDOWN_STAGES] = {"ViT", "prefill", "diffusion", "other"};
    return (unsigned)stage < BREAKDOWN_STAGES ? names[stage] : "other";
}

const char *breakdown_group_name(breakdown_group group) {
    static const char *const names[BREAKDOWN_GROUPS] = {"GEMM", "attention",      "activation", "norm",
                                                        "RoPE", "several in one", "other"};
    return (unsigned)group < BREAKDOWN_GROUPS ? names[group] : "other";
}

/* ---- openpi's own --------------------------------------------------------------------------------- */

breakdown_stage breakdown_stage_of(const char *stage) {
    static const struct {
        const char *name;
        breakdown_stage stage;
    } own[] = {{"vision", BREAKDOWN_VIT}, {"prefix", BREAKDOWN_PREFILL}, {"denoise", BREAKDOWN_DIFFUSION}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(own[i].name, stage)) return own[i].stage;
    return BREAKDOWN_NO_STAGE;
}

/* A fused product counts as a product, whatever is fused with it. */
breakdown_group breakdown_group_of_kind(const char *kind) {
    static const struct {
        const char *name;
        breakdown_group group;
    } kinds[] = {{"patch_embed", BREAKDOWN_GEMM},          {"norm_linear", BREAKDOWN_GEMM},
                 {"linear_residual", BREAKDOWN_GEMM},      {"norm_qkv", BREAKDOWN_GEMM},
                 {"state_embed", BREAKDOWN_GEMM},          {"action_embed", BREAKDOWN_GEMM},
                 {"velocity", BREAKDOWN_GEMM},             {"image_attention", BREAKDOWN_ATTENTION},
                 {"cache_attention", BREAKDOWN_ATTENTION}, {"scores", BREAKDOWN_ATTENTION},
                 {"softmax", BREAKDOWN_ATTENTION},         {"values", BREAKDOWN_ATTENTION},
                 {"norm", BREAKDOWN_NORM},                 {"activate", BREAKDOWN_ACTIVATION},
                 {"rope_cache", BREAKDOWN_ROPE},           {"several", BREAKDOWN_SEVERAL}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i].name, kind)) return kinds[i].group;
    return BREAKDOWN_NO_GROUP;
}

/* ---- others' -------------------------------------------------------------------------------------- */

typedef struct word {
    const char *text;            /* in lower case                                                         */
    int whole;                   /* 1: no letter may stand next to it                                     */
    int means;
} word;

static const word stages[] = {
    {"vit", 1, BREAKDOWN_VIT},
    {"siglip", 0, BREAKDOWN_VIT},
    {"vision", 0, BREAKDOWN_VIT},
    {"embed_image", 0, BREAKDOWN_VIT},
    {"image_encoder", 0, BREAKDOWN_VIT},
    {"prefill", 0, BREAKDOWN_PREFILL},
    {"prefix", 0, BREAKDOWN_PREFILL},
    {"diffusion", 0, BREAKDOWN_DIFFUSION},
    {"denois", 0, BREAKDOWN_DIFFUSION},
    {"suffix", 0, BREAKDOWN_DIFFUSION},
    {"action_expert", 0, BREAKDOWN_DIFFUSION},
    {NULL, 0, BREAKDOWN_NO_STAGE},
};

static const word groups[] = {
    {"fmha", 0, BREAKDOWN_ATTENTION},
    {"flash", 0, BREAKDOWN_ATTENTION},
    {"attention", 0, BREAKDOWN_ATTENTION},
    {"attn", 0, BREAKDOWN_ATTENTION},
    {"softmax", 0, BREAKDOWN_ATTENTION},
    {"sdpa", 0, BREAKDOWN_ATTENTION},
    {"rotary", 0, BREAKDOWN_ROPE},
    {"rope", 1, BREAKDOWN_ROPE},
    {"gemm", 0, BREAKDOWN_GEMM},
    {"gemv", 0, BREAKDOWN_GEMM},
    {"cutlass", 0, BREAKDOWN_GEMM},
    {"cublas", 0, BREAKDOWN_GEMM},
    {"nvjet", 0, BREAKDOWN_GEMM},
    {"xmma", 0, BREAKDOWN_GEMM},
    {"cijk_", 0, BREAKDOWN_GEMM},
    {"splitk", 0, BREAKDOWN_GEMM},
    {"matmul", 0, BREAKDOWN_GEMM},
    {"addmm", 0, BREAKDOWN_GEMM},
    {"bmm", 0, BREAKDOWN_GEMM},
    {"mm", 1, BREAKDOWN_GEMM},
    {"conv2d", 0, BREAKDOWN_GEMM},
    {"convolution", 0, BREAKDOWN_GEMM},
    {"convolve", 0, BREAKDOWN_GEMM},
    {"layer_norm", 0, BREAKDOWN_NORM},
    {"layernorm", 0, BREAKDOWN_NORM},
    {"rms_norm", 0, BREAKDOWN_NORM},
    {"rmsnorm", 0, BREAKDOWN_NORM},
    {"rsqrt", 0, BREAKDOWN_NORM},
    {"norm", 1, BREAKDOWN_NORM},
    {"gelu", 0, BREAKDOWN_ACTIVATION},
    {"geglu", 0, BREAKDOWN_ACTIVATION},
    {"silu", 0, BREAKDOWN_ACTIVATION},
    {"swiglu", 0, BREAKDOWN_ACTIVATION},
    {"swish", 0, BREAKDOWN_ACTIVATION},
    {"sigmoid", 0, BREAKDOWN_ACTIVATION},
    {"tanh", 0, BREAKDOWN_ACTIVATION},
    {NULL, 0, BREAKDOWN_NO_GROUP},
};

static int contains(const char *text, const word *word) {
    size_t length = strlen(word->text);
    for (const char *at = text; *at; at++) {
        size_t i = 0;
        while (i < length && ascii_lower(at[i]) == word->text[i]) i++;
        if (i < length) continue;
        if (!word->whole ||
            ((at == text || !ascii_is_letter(at[-1])) && !ascii_is_letter(at[length])))
            return 1;
    }
    return 0;
}

static int find(const word *words, const char *text) {
    for (; words->text; words++)
        if (contains(text, words)) break;
    return words->means;
}

breakdown_stage breakdown_stage_of_words(const char *annotation) {
    return (breakdown_stage)find(stages, annotation);
}

breakdown_group breakdown_group_of_words(const char *kernel) { return (breakdown_group)find(groups, kernel); }
