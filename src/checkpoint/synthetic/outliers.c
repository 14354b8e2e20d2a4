/* Outlier channels. A set of channels is named by its layer and what it is of; every tensor that enlarges it
 * or takes it back computes the same powers from that name and the seed. */
#include "checkpoint/synthetic/outliers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/report.h"
#include "checkpoint/source.h"
#include "checkpoint/tensors_build.h"

enum { APART = 256, SET_NAME = 160 };       /* one channel in 256, one at least */
static const double octaves = 1.5;         /* SPREAD: deviation of the power                              */

/* Which set a tensor enlarges by rows and takes back by columns. A set's name is that of the tensor's part
 * before its own tail ("….layers.3.") and these words; "V" lies in all towers' layer: the expert attends to
 * the prefix's values. */
typedef struct rule {
    const char *tail, *rows, *columns;
    int plus_one;                /* the gain is 1 + w                                                     */
} rule;

static const rule rules[] = {
    {"layer_norm1.weight", "norm1", NULL, 0},
    {"layer_norm1.bias", "norm1", NULL, 0},
    {"layer_norm2.weight", "norm2", NULL, 0},
    {"layer_norm2.bias", "norm2", NULL, 0},
    {"input_layernorm.weight", "norm1", NULL, 1},
    {"post_attention_layernorm.weight", "norm2", NULL, 1},
    {"self_attn.q_proj.weight", NULL, "norm1", 0},
    {"self_attn.k_proj.weight", NULL, "norm1", 0},
    {"self_attn.v_proj.weight", "V", "norm1", 0},
    {"self_attn.v_proj.bias", "V", NULL, 0},
    {"self_attn.out_proj.weight", NULL, "V", 0},
    {"self_attn.o_proj.weight", NULL, "V", 0},
    {"mlp.fc1.weight", NULL, "norm2", 0},
    {"mlp.gate_proj.weight", NULL, "norm2", 0},
    {"mlp.up_proj.weight", "hidden", "norm2", 0},
    {"mlp.down_proj.weight", NULL, "hidden", 0},
};

/* A tensor as it was, and what it is multiplied by. */
typedef struct enlarged {
    tensor before;
    int64_t columns;
    int plus_one;
    float *row, *column;         /* powers of two; NULL: 1                                                */
} enlarged;

typedef struct outliers {
    enlarged *list;              /* [count], in the places of the tensors                                 */
    int count;
} outliers;

/* ---- reading ------------------------------------------------------------------------------------------- */

static float scaled(const enlarged *e, int64_t i, float value) {
    float by = (e->row ? e->row[i / e->columns] : 1) * (e->column ? e->column[i % e->columns] : 1);
    return e->plus_one ? by * (1 + value) - 1 : value * by;
}

static void read_enlarged(const tensor *t, dtype type, int64_t first, int64_t count, void *out) {
    enum { PIECE = 512 };
    const enlarged *e = t->place;
    float piece[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t length = count - at < PIECE ? count - at : PIECE;
        tensor_read_f32(&e->before, first + at, length, piece);
        for (int64_t i = 0; i < length; i++) piece[i] = scaled(e, first + at + i, piece[i]);
        if (type == DTYPE_F32) memcpy((float *)out + at, piece, (size_t)length * sizeof *piece);
        else
            for (int64_t i = 0; i < length; i++) ((bf16 *)out)[at + i] = float_to_bf16(piece[i]);
    }
}

static void close_outliers(void *store) {
    outliers *o = store;
    for (int i = 0; i < o->count; i++) {
        free(o->list[i].row);
        free(o->list[i].column);
    }
    free(o->list);
    free(o);
}

static const tensor_source source = {.read = read_enlarged};
static const tensor_store store_functions = {.close = close_outliers};

/* ---- powers ------------------------------------------------------------------------------------------- */

static double normal(uint64_t key, uint64_t i) {
    double sum = 0;              /* 12 uniform numbers in (-1, 1) have variance 4                         */
    for (uint64_t k = 0; k < 12; k++) sum += hash_uniform(key, i * 12 + k);
    return sum / 2;
}

static double power_of(openpi_outliers kind, uint64_t key, int64_t channel, int64_t channels) {
    int64_t apart = channels < APART ? channels : APART;
    int large = (uint64_t)channel % (uint64_t)apart == hash_mix(key) % (uint64_t)apart;
    switch (kind) {
    case OPENPI_OUTLIERS_64: return large ? 6 : 0;
    case OPENPI_OUTLIERS_1024: return large ? 10 : 0;
    case OPENPI_OUTLIERS_SPREAD: return nearbyint(octaves * normal(key, (uint64_t)channel));
    case OPENPI_OUTLIERS_NONE: break;
    }
    return 0;
}

/* Powers of `size` rows or columns of a set of `channels`, which repeat; back: of what takes them back. */
static float *powers(openpi_outliers kind, uint64_t key, int64_t size, int64_t channels, int back) {
    float *out = malloc((size_t)size * sizeof *out);
    for (int64_t i = 0; out && i < size; i++) {
        double power = power_of(kind, key, i % channels, channels);
        out[i] = (float)exp2(back ? -power : power);
    }
    return out;
}

/* ---- planting ----------------------------------------------------------------------------------------- */

/* "….layers.3." of a tensor's name without its rule's tail; of V, which all towers' layers share, the layer
 * alone, but for the vision tower's. */
static uint64_t set_key(const char *name, const rule *r, const char *set, uint64_t seed) {
    char text[SET_NAME];
    int length = (int)(strlen(name) - strlen(r->tail));
    const char *from = strstr(name, "layers."), *vision = strstr(name, "vision");
    int skipped = !strcmp(set, "V") && from && !vision ? (int)(from - name) : 0;
    snprintf(text, sizeof text, "outliers %.*s%s", length - skipped, name + skipped, set);
    return hash_key(text, strlen(text), seed);
}

static const rule *rule_of(const char *name) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        size_t tail = strlen(rules[i].tail), length = strlen(name);
        if (length > tail && strstr(name, "layers.") && !strcmp(name + length - tail, rules[i].tail))
            return &rules[i];
    }
    return NULL;
}

/* The expert of a model whose norms are adaptive has no weight to enlarge: nothing may be taken back. */
static int set_is_there(const tensors *list, const char *name, const rule *r) {
    static const char norm[] = "input_layernorm.weight";
    char text[SET_NAME];
    if (!r->columns || strncmp(r->columns, "norm", 4) || strstr(name, "vision")) return 1;
    snprintf(text, sizeof text, "%.*s%s", (int)(strlen(name) - strlen(r->tail)), name, norm);
    return tensors_find(list, text) != NULL;
}

static openpi_status enlarge(tensors *list, int place, const rule *r, const openpi_synthetic *synthetic,
                             enlarged *e, openpi_error *error) {
    tensor *t = tensors_edit(list, place);
    int64_t rows = t->shape[0], columns = t->rank > 1 ? t->count / rows : 1;
    int taken = r->columns && set_is_there(list, t->name, r);
    /* Heads share the channels of V; so does whatever is as wide as a head. */
    int64_t channels = r->columns && !strcmp(r->columns, "V") && strstr(t->name, "o_proj")
                           ? synthetic->dims.head_dim
                           : columns;
    *e = (enlarged){.before = *t, .columns = columns, .plus_one = r->plus_one};
    if (r->rows)
        e->row = powers(synthetic->outliers, set_key(t->name, r, r->rows, synthetic->seed), rows, rows, 0);
    if (taken)
        e->column = powers(synthetic->outliers, set_key(t->name, r, r->columns, synthetic->seed), columns,
                           channels, 1);
    if ((r->rows && !e->row) || (taken && !e->column))
        return report_no_memory(error, (size_t)(rows + columns) * sizeof(float), "outliers");
    t->source = &source;
    t->place = e;
    if (r->plus_one) t->type = DTYPE_F32;
    return OPENPI_OK;
}

openpi_status outliers_plant(tensors *list, const openpi_synthetic *synthetic, openpi_error *error) {
    int count = tensors_count(list);
    if (synthetic->outliers == OPENPI_OUTLIERS_NONE) return OPENPI_OK;
    outliers *o = calloc(1, sizeof *o);
    if (o) o->list = calloc((size_t)count, sizeof *o->list), o->count = count;
    if (!o || !o->list) {
        free(o);
        return report_no_memory(error, (size_t)count * sizeof(enlarged), "outliers");
    }
    TRY(tensors_own(list, &store_functions, o, error));
    for (int i = 0; i < count; i++) {
        const rule *r = rule_of(tensors_at(list, i)->name);
        if (r) TRY(enlarge(list, i, r, synthetic, &o->list[i], error));
    }
    return OPENPI_OK;
}
