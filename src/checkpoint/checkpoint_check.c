#include "checkpoint/checkpoint_check.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "base/text.h"
#include "checkpoint/jax/orbax.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/tensors_build.h"

#define STATE "state_proj.weight"

enum { MISSING_NAMED = 3 };

/* ---- sizes ---- */

/* One past the highest layer of names "prefix<n>.…". */
static int count_layers(const tensors *tensors, const char *prefix) {
    size_t length = strlen(prefix);
    int layers = 0;
    for (int i = 0; i < tensors_count(tensors); i++) {
        const char *name = tensors_at(tensors, i)->name;
        if (strncmp(name, prefix, length)) continue;
        int layer = 0, digits = 0;
        for (name += length; *name >= '0' && *name <= '9' && digits < 6; digits++)
            layer = 10 * layer + (*name++ - '0');
        if (digits && *name == '.' && layer >= layers) layers = layer + 1;
    }
    return layers;
}

/* Reads every size from the shape that has it. A tensor that is absent leaves the released model's size:
 * it will be among the missing. */
static openpi_status read_dims(const checkpoint *c, openpi_dims *d, int *action_dim, openpi_error *error) {
    int queries = d->heads * d->head_dim;
    const struct {
        const char *name;
        int rank, axis;
        int *to;
    } sizes[] = {
        {TOWER "embeddings.patch_embedding.weight", 4, 0, &d->vision_width},
        {TOWER "encoder.layers.0.mlp.fc1.weight", 2, 0, &d->vision_mlp},
        {PROJECTOR ".weight", 2, 0, &d->width},
        {LANGUAGE "layers.0.self_attn.q_proj.weight", 2, 0, &queries},
        {LANGUAGE "layers.0.self_attn.k_proj.weight", 2, 0, &d->head_dim},
        {LANGUAGE "layers.0.mlp.gate_proj.weight", 2, 0, &d->mlp},
        {"action_in_proj.weight", 2, 0, &d->expert_width},
        {"action_in_proj.weight", 2, 1, action_dim},
        {EXPERT_MODEL "layers.0.mlp.gate_proj.weight", 2, 0, &d->expert_mlp},
        {c->embedding ? c->embedding->name : LM_HEAD, 2, 0, &d->vocab},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const tensor *t = tensors_find(c->tensors, sizes[i].name);
        if (!t) continue;
        if (t->rank != sizes[i].rank || t->shape[sizes[i].axis] < 1 || t->shape[sizes[i].axis] > INT_MAX) {
            char shape[128];
            return report(error, OPENPI_BAD_FILE,
                          "%s: tensor \"%s\" has shape %s, expected %d positive dimensions", t->file, t->name,
                          tensor_shape_text(t->rank, t->shape, shape, sizeof shape), sizes[i].rank);
        }
        *sizes[i].to = (int)t->shape[sizes[i].axis];
    }
    int depth = count_layers(c->tensors, LANGUAGE "layers."),
        vision_depth = count_layers(c->tensors, TOWER "encoder.layers.");
    if (depth) d->depth = depth;
    if (vision_depth) d->vision_depth = vision_depth;
    d->heads = queries / d->head_dim;        /* a remainder shows in q_proj's shape */
    return OPENPI_OK;
}

/* The one size that is in no shape: 72 a head in SigLIP; a synthetic checkpoint of other sizes says so
 * itself. */
static openpi_status read_vision_heads(const checkpoint *c, openpi_dims *d, openpi_error *error) {
    const char *text = tensors_metadata(c->tensors, "openpi_dims");
    d->vision_heads = orbax_vision_heads(orbax_of(c->tensors));
    if (d->vision_heads) return OPENPI_OK;
    if (!text) {
        if (d->vision_width % VISION_HEAD_DIM)
            return report(error, OPENPI_BAD_FILE,
                          "%s: vision width is %d, expected a multiple of %d, the width of a head", c->name,
                          d->vision_width, VISION_HEAD_DIM);
        d->vision_heads = d->vision_width / VISION_HEAD_DIM;
        return OPENPI_OK;
    }
    openpi_dims said = OPENPI_DIMS_INIT;
    openpi_status status = openpi_dims_parse(text, &said, error);
    if (status == OPENPI_NO_MEMORY) return status;
    if (status != OPENPI_OK)
        return report(error, OPENPI_BAD_FILE, "%s: its metadata openpi_dims are \"%.100s\", expected sizes",
                      c->name, text);
    d->vision_heads = said.vision_heads;
    if (memcmp(&said, d, sizeof said))
        return report(error, OPENPI_BAD_FILE,
                      "%s: its metadata openpi_dims say other sizes than its tensors have", c->name);
    return OPENPI_OK;
}

/* ---- every tensor there, nothing else ---- */

static const tensor *find_or_embedding(const checkpoint *c, const char *name) {
    return !strcmp(name, LM_HEAD) ? c->embedding : tensors_find(c->tensors, name);
}

typedef struct check {
    checkpoint *checkpoint;
    int needed, missing;
    char names[400];             /* names of the first missing ones */
} check;

static openpi_status check_there(void *user, const char *name, int rank, const int64_t *shape,
                                 openpi_error *error) {
    check *k = user;
    (void)rank, (void)shape, (void)error;
    k->needed++;
    if (find_or_embedding(k->checkpoint, name)) return OPENPI_OK;
    size_t used = strlen(k->names);
    if (k->missing++ < MISSING_NAMED)
        snprintf(k->names + used, sizeof k->names - used, "%s%s", used ? ", " : "", name);
    return OPENPI_OK;
}

int checkpoint_action_axis(const char *name) {
    static const struct {
        const char *name;
        int axis;
    } rows[] = {{"action_in_proj.weight", 1},
                {"state_proj.weight", 1},
                {"action_out_proj.weight", 0},
                {"action_out_proj.bias", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(name, rows[i].name)) return rows[i].axis;
    return -1;
}

static openpi_status check_shape(void *user, const char *name, int rank, const int64_t *shape,
                                 openpi_error *error) {
    check *k = user;
    const tensor *t = find_or_embedding(k->checkpoint, name);
    int64_t own[TENSOR_RANK];
    int axis = checkpoint_action_axis(name);
    memcpy(own, shape, (size_t)rank * sizeof *shape);
    if (axis >= 0) own[axis] = k->checkpoint->action_dim;
    shape = own;
    if (t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof *shape)) {
        char found[128], expected[128];
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" has shape %s, expected %s", t->file, t->name,
                      tensor_shape_text(t->rank, t->shape, found, sizeof found),
                      tensor_shape_text(rank, shape, expected, sizeof expected));
    }
    if (t->type != DTYPE_F32 && t->type != DTYPE_BF16 && t->type != DTYPE_F16)
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is of %s, expected F32, BF16 or F16",
                      t->file, t->name, dtype_name(t->type));
    k->checkpoint->parameters += (uint64_t)t->count;
    return OPENPI_OK;
}

/* Tensors that files hold and inference does not need. */
static int may_be_there(const char *name) {
    return tensor_is_unused(name) || !strcmp(name, LM_HEAD) || !strcmp(name, EMBED_TOKENS);
}

typedef struct collect {
    const tensors *tensors;
    uint8_t *used;               /* [tensors] */
} collect;

static openpi_status mark_used(void *user, const char *name, int rank, const int64_t *shape,
                               openpi_error *error) {
    collect *m = user;
    int index = tensors_index(m->tensors, name);
    (void)rank, (void)shape, (void)error;
    if (index >= 0) m->used[index] = 1;
    return OPENPI_OK;
}

static openpi_status check_unknown(const checkpoint *c, openpi_error *error) {
    int count = tensors_count(c->tensors), unknown = 0;
    const tensor *first = NULL;
    collect m = {c->tensors, calloc((size_t)count + 1, 1)};
    if (!m.used) return report_no_memory(error, (size_t)count + 1, c->name);
    checkpoint_tensors(&c->dims, c->variant, mark_used, &m, NULL);
    for (int i = 0; i < count; i++) {
        const tensor *t = tensors_at(c->tensors, i);
        if (m.used[i] || may_be_there(t->name)) continue;
        if (!unknown++) first = t;
    }
    free(m.used);
    if (!unknown) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE,
                  "%s: %d tensor%s that a %s checkpoint does not have, the first is \"%s\"", first->file,
                  unknown, unknown == 1 ? "" : "s", variant_of(c->variant)->symbol, first->name);
}

static int in_expert(const tensor *t) {
    return !strncmp(t->name, GEMMA_EXPERT, sizeof GEMMA_EXPERT - 1);
}

/* An adaptive norm of the expert: what only π0.5 has. NULL: none. */
static const tensor *find_adaptive(const tensors *tensors) {
    for (int i = 0; i < tensors_count(tensors); i++) {
        const tensor *t = tensors_at(tensors, i);
        if (in_expert(t) && strstr(t->name, "norm.dense.")) return t;
    }
    return NULL;
}

static int has_expert(const tensors *tensors) {
    for (int i = 0; i < tensors_count(tensors); i++)
        if (in_expert(tensors_at(tensors, i))) return 1;
    return 0;
}

/* A tensor of an action model's under a longer name. */
static const tensor *find_wrapped(const tensors *tensors) {
    for (int i = 0; i < tensors_count(tensors); i++)
        if (text_ends_with(tensors_at(tensors, i)->name, ".action_in_proj.weight"))
            return tensors_at(tensors, i);
    return NULL;
}

openpi_status checkpoint_find_variant(checkpoint *c, openpi_error *error) {
    const tensor *state = tensors_find(c->tensors, STATE), *adaptive = find_adaptive(c->tensors);
    if (state && adaptive)
        return report(error, OPENPI_BAD_FILE,
                      "%s: both \"%s\" of π0 and \"%s\" of π0.5 are there, expected one of them", c->name,
                      state->name, adaptive->name);
    if (!state && !adaptive && !has_expert(c->tensors) && tensors_find(c->tensors, LM_HEAD))
        return report(
            error, OPENPI_UNSUPPORTED,
            "%s: a π0-FAST checkpoint, by its %d tensors without an action expert, expected π0 or π0.5: run "
            "it with openpi in Python",
            c->name, tensors_count(c->tensors));
    const tensor *wrapped = !state && !adaptive ? find_wrapped(c->tensors) : NULL;
    if (wrapped)
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\" has a prefix that not all tensors have, expected "
                      "\"action_in_proj.weight\": save the policy's own weights alone",
                      c->name, wrapped->name);
    if (!state && !adaptive)
        return report(error, OPENPI_BAD_FILE,
                      "%s: neither \"%s\" of π0 nor an adaptive norm of π0.5 is among its %d tensors, "
                      "expected one of them",
                      c->name, STATE, tensors_count(c->tensors));
    c->variant = variant_by_norms(adaptive != NULL);
    return OPENPI_OK;
}

openpi_status checkpoint_check_type(const checkpoint *c, const checkpoint_config *config,
                                    openpi_error *error) {
    const tensor *state = tensors_find(c->tensors, STATE), *adaptive = find_adaptive(c->tensors);
    const variant_traits *type = variant_of(config->type);
    const variant_traits *other = variant_of(variant_by_norms(!type->adaptive_norms));
    const tensor *witness = other->adaptive_norms ? adaptive : state;
    if (!witness || (state && adaptive)) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE,
                  "%s: \"type\" is \"%s\", but the tensors are those of %s: \"%s\" is there", config->path,
                  type->name, other->symbol, witness->name);
}

openpi_status checkpoint_check_tensors(checkpoint *c, openpi_error *error) {
    c->embedding = tensors_find(c->tensors, EMBED_TOKENS);
    if (!c->embedding) c->embedding = tensors_find(c->tensors, LM_HEAD);
    c->dims = *dims_released();
    c->action_dim = OPENPI_ACTION_DIM;
    TRY(read_dims(c, &c->dims, &c->action_dim, error));
    check k = {.checkpoint = c};
    TRY(checkpoint_tensors(&c->dims, c->variant, check_there, &k, error));
    if (k.missing)
        return report(error, OPENPI_BAD_FILE, "%s: %d of a %s checkpoint's %d tensors missing: %s%s", c->name,
                      k.missing, variant_of(c->variant)->symbol, k.needed, k.names,
                      k.missing > MISSING_NAMED ? ", …" : "");
    if (c->action_dim > OPENPI_ACTION_DIM)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: action_in_proj.weight takes %d action dimensions, expected at most %d", c->name,
                      c->action_dim, OPENPI_ACTION_DIM);
    TRY(read_vision_heads(c, &c->dims, error));
    if (dims_check(&c->dims, c->name, error) != OPENPI_OK) return report_status(error, OPENPI_BAD_FILE);
    TRY(checkpoint_tensors(&c->dims, c->variant, check_shape, &k, error));
    return check_unknown(c, error);
}
