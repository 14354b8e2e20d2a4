#include "checkpoint/adapter/gemma_factors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/tensors_build.h"

/* W's axes: L layers, p the tensor of two, 1 an axis of 1, h heads, d a head's size, w width, m hidden width.
 * summed: every head's a meets the sum of all heads' b. */
typedef struct gemma_rule {
    const char *array[2], *axes;           /* array: of the language model, of the expert                   */
    const char *tensors[2];                /* in a layer                                                    */
    int summed;
} gemma_rule;

static const gemma_rule rules[] = {
    {{"attn.q_einsum.lora_", "attn.q_einsum_1.lora_"}, "Lhwd", {"self_attn.q_proj.weight"}, 0},
    {{"attn.kv_einsum.lora_", "attn.kv_einsum_1.lora_"},
     "Lp1wd",
     {"self_attn.k_proj.weight", "self_attn.v_proj.weight"},
     0},
    {{"attn.attn_vec_einsum.lora_", "attn.attn_vec_einsum_1.lora_"}, "Lhdw", {"self_attn.o_proj.weight"}, 1},
    {{"mlp.gating_einsum_lora_", "mlp_1.gating_einsum_lora_"},
     "Lpwm",
     {"mlp.gate_proj.weight", "mlp.up_proj.weight"},
     0},
    {{"mlp.linear_lora_", "mlp_1.linear_lora_"}, "Lmw", {"mlp.down_proj.weight"}, 0},
};

/* ---- names ---- */

/* 1: "/" in the name stands for a ".". */
static int begins(const char *name, const char *with) {
    for (; *with; name++, with++)
        if (*name != *with && !(*name == '/' && *with == '.')) return 0;
    return 1;
}

static const char *skip(const char *name, const char *what) {
    return begins(name, what) ? name + strlen(what) : name;
}

gemma_factor gemma_factor_of(const char *name) {
    static const char layers[] = "PaliGemma.llm.layers.";
    const char *array = skip(name, "params.");
    if (!begins(array, layers)) return (gemma_factor){.rule = NULL};
    array += sizeof layers - 1;
    for (size_t i = 0; i < 2 * sizeof rules / sizeof *rules; i++) {
        const char *head = rules[i / 2].array[i % 2];
        if (!begins(array, head)) continue;
        const char *end = array + strlen(head);
        int ends = *end && (!end[1] || (begins(end + 1, ".value") && !end[1 + strlen(".value")]));
        if (ends && (*end == 'a' || *end == 'b'))
            return (gemma_factor){&rules[i / 2], i % 2, *end == 'a' ? FACTOR_A : FACTOR_B};
    }
    return (gemma_factor){.rule = NULL};
}

int gemma_factor_parts(const gemma_factor *f) { return f->rule->tensors[1] ? 2 : 1; }

void gemma_factor_target(const gemma_factor *f, int layer, int part, char target[FACTOR_NAME]) {
    snprintf(target, FACTOR_NAME, "%slayers.%d.%s", f->expert ? EXPERT_MODEL : LANGUAGE, layer,
             f->rule->tensors[part]);
}

/* ---- shapes ---- */

static int64_t axis_size(char axis, int expert, const openpi_dims *dims) {
    switch (axis) {
    case 'L': return dims->depth;
    case 'p': return 2;
    case 'h': return dims->heads;
    case 'd': return dims->head_dim;
    case 'w': return expert ? dims->expert_width : dims->width;
    case 'm': return expert ? dims->expert_mlp : dims->mlp;
    default: return 1;
    }
}

openpi_status gemma_factor_check(const gemma_factor *f, const tensor *t, const openpi_dims *dims, int *rank,
                                 openpi_error *error) {
    int axes = (int)strlen(f->rule->axes), at = axes - (f->which == FACTOR_A ? 1 : 2), fits;
    int64_t expected[TENSOR_RANK], least = INT64_MAX;
    char found[128], text[128];
    for (int i = 0; i < axes; i++) expected[i] = axis_size(f->rule->axes[i], f->expert, dims);
    for (int i = axes - 2; i < axes; i++) least = expected[i] < least ? expected[i] : least;
    expected[at] = t->rank == axes ? t->shape[at] : 0;
    fits = t->rank == axes && !memcmp(t->shape, expected, (size_t)axes * sizeof *expected);
    if (!fits)
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\" has shape %s, expected %s with the rank in place of %lld", t->file,
                      t->name, tensor_shape_text(t->rank, t->shape, found, sizeof found),
                      tensor_shape_text(axes, expected, text, sizeof text), (long long)expected[at]);
    if (expected[at] < 1 || expected[at] > least)
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is of rank %lld, expected 1 to %lld",
                      t->file, t->name, (long long)expected[at], (long long)least);
    *rank = (int)expected[at];
    return OPENPI_OK;
}

/* ---- a layer ---- */

/* to[columns][rows] = from[rows][columns], where the rows of `to` are `apart`. */
static void transpose(const float *from, int64_t rows, int64_t columns, float *to, int64_t apart) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) to[c * apart + r] = from[r * columns + c];
}

/* The first of `heads` matrices of `count` numbers becomes the sum of all. */
static void sum_heads(float *b, int64_t heads, int64_t count) {
    for (int64_t head = 1; head < heads; head++)
        for (int64_t i = 0; i < count; i++) b[i] += b[head * count + i];
}

/* What a layer's tensor has of the arrays. */
typedef struct slice {
    int64_t first, heads, rows, columns, rank;   /* first: its first matrix among those of all layers       */
} slice;

static slice slice_of(const gemma_factor *f, const openpi_dims *dims, int64_t rank, int layer, int part) {
    const char *axes = f->rule->axes;
    size_t count = strlen(axes);
    slice s = {.heads = axes[1] == 'h' ? dims->heads : 1, .rank = rank};
    s.first = ((int64_t)layer * gemma_factor_parts(f) + part) * s.heads;
    s.rows = axis_size(axes[count - 2], f->expert, dims);
    s.columns = axis_size(axes[count - 1], f->expert, dims);
    return s;
}

/* a [heads][rows][rank] and b [heads][rank][columns] in the order of the pair. */
static void order_pair(const slice *s, int summed, const float *a, float *b, gemma_pair *pair) {
    int64_t one_a = s->rows * s->rank, one_b = s->rank * s->columns;
    if (summed) {
        for (int64_t h = 0; h < s->heads; h++)
            transpose(a + h * one_a, s->rows, s->rank, pair->a + h * s->rows, s->heads * s->rows);
        sum_heads(b, s->heads, one_b);
        transpose(b, s->rank, s->columns, pair->b, s->rank);
        return;
    }
    for (int64_t h = 0; h < s->heads; h++) {
        transpose(a + h * one_a, s->rows, s->rank, pair->a + h * one_a, s->rows);
        transpose(b + h * one_b, s->rank, s->columns, pair->b + h * one_b, s->rank);
    }
}

openpi_status gemma_factor_pair(const gemma_factor *f, const openpi_dims *dims, const tensor *a,
                                const tensor *b, int layer, int part, gemma_pair *pair, openpi_error *error) {
    int64_t rank = a->shape[a->rank - 1];
    slice s = slice_of(f, dims, rank, layer, part);
    size_t count_a = (size_t)(s.heads * s.rows * rank), count_b = (size_t)(s.heads * rank * s.columns);
    float *stored = malloc((count_a + count_b) * sizeof *stored);
    pair->a = malloc(count_a * sizeof *pair->a);
    pair->b = malloc(count_b * sizeof *pair->b);
    pair->rows = s.columns;
    if (!stored || !pair->a || !pair->b) {
        free(stored);
        return report_no_memory(error, 2 * (count_a + count_b) * sizeof *stored, a->name);
    }
    tensor_read_f32(a, s.first * s.rows * rank, (int64_t)count_a, stored);
    tensor_read_f32(b, s.first * rank * s.columns, (int64_t)count_b, stored + count_a);
    order_pair(&s, f->rule->summed, stored, stored + count_a, pair);
    free(stored);
    return OPENPI_OK;
}
