/* From a folder to a checked model: variant and sizes read off the tensors, settings off config.json.
 *
 * openpi's config.json does not say whether a checkpoint is π0 or π0.5, so the tensors decide: adaptive
 * norms in the expert make π0.5, state_proj makes π0. Where a config says something, it may not contradict
 * them. */
#include "model/checkpoint.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"
#include "base/utf8.h"
#include "model/adapter.h"
#include "model/place.h"
#include "model/tensors_build.h"
#include "ops/limits.h"

#define PALIGEMMA "paligemma_with_expert.paligemma."
#define TOWER PALIGEMMA "model.vision_tower.vision_model."
#define LANGUAGE PALIGEMMA "model.language_model."
#define GEMMA "paligemma_with_expert.gemma_expert."
#define LM_HEAD PALIGEMMA "lm_head.weight"
#define EMBED_TOKENS LANGUAGE "embed_tokens.weight"
#define STATE "state_proj.weight"

enum { MISSING_NAMED = 3, VISION_HEAD_DIM = 72 };

/* ---- names that LeRobot's loader changes ---- */

/* Only names that have no "model." in the file are changed, as LeRobot does it. */
static const struct {
    int action_time_mlp;         /* in which variant, by this trait */
    const char *from, *to;       /* to NULL: dropped                */
} renames[] = {
    {1, "time_mlp_in.weight", "action_time_mlp_in.weight"},
    {1, "time_mlp_in.bias", "action_time_mlp_in.bias"},
    {1, "time_mlp_out.weight", "action_time_mlp_out.weight"},
    {1, "time_mlp_out.bias", "action_time_mlp_out.bias"},
    {0, "action_time_mlp_in.weight", "time_mlp_in.weight"},
    {0, "action_time_mlp_in.bias", "time_mlp_in.bias"},
    {0, "action_time_mlp_out.weight", "time_mlp_out.weight"},
    {0, "action_time_mlp_out.bias", "time_mlp_out.bias"},
    {0, "state_proj.weight", NULL},
    {0, "state_proj.bias", NULL},
};

static void rename_as_lerobot(tensors *tensors, openpi_variant variant) {
    int action_time_mlp = variant_of(variant)->action_time_mlp;
    for (int i = tensors_count(tensors) - 1; i >= 0; i--)
        for (size_t r = 0; r < sizeof renames / sizeof *renames; r++) {
            if (renames[r].action_time_mlp != action_time_mlp) continue;
            if (strcmp(tensors_stored_name(tensors, i), renames[r].from)) continue;
            if (renames[r].to)
                tensors_rename(tensors, i, renames[r].to);
            else
                tensors_drop(tensors, i);
            break;
        }
}

/* ---- config.json ---- */

typedef struct config {
    char path[300];              /* for sentences                     */
    json_t *root;                /* NULL: there is none               */
    int lerobot;
    openpi_variant type;         /* LeRobot's; what openpi's lacks    */
    int action_dim;              /* 0: not said                       */
    int horizon, steps, max_prompt;
    checkpoint_rtc rtc;          /* fields of 0: not said             */
} config;

static openpi_status expect_number(const config *c, const char *key, double expected, openpi_error *error) {
    const json_t *value = json_object_get(c->root, key);
    if (!value || (json_is_number(value) && json_number_value(value) == expected)) return OPENPI_OK;
    if (!json_is_number(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected %g", c->path, key, json_kind(value),
                      expected);
    return report(error, OPENPI_UNSUPPORTED, "%s: \"%s\" is %g, expected %g", c->path, key,
                  json_number_value(value), expected);
}

/* The place of a text among names, from 1 on; untouched where the key is absent or null. */
static openpi_status read_name(const config *c, const json_t *object, const char *key,
                               const char *const *names, int *out, openpi_error *error) {
    const char *text = NULL;
    TRY(json_get_string(object, key, c->path, &text, error));
    if (!text) return OPENPI_OK;
    for (int i = 0; names[i]; i++)
        if (!strcmp(names[i], text)) *out = i + 1;
    if (*out) return OPENPI_OK;
    return report(error, OPENPI_UNSUPPORTED,
                  "%s: rtc_config.\"%s\" is \"%.40s\", expected a name such as \"%s\"", c->path, key, text,
                  names[0]);
}

/* LeRobot policies/rtc/configuration_rtc.py. A mode or schedule that is not known matters to nobody while
 * rtc_config is not enabled. */
static openpi_status read_rtc(config *c, openpi_error *error) {
    static const char *const modes[] = {"guided", "trained", NULL};
    static const char *const schedules[] = {"ZEROS", "ONES", "LINEAR", "EXP", NULL};
    const json_t *rtc = json_object_get(c->root, "rtc_config");
    int enabled = 1, mode = 0, schedule = 0, max_delay = 0;
    TRY(json_get_int(c->root, "rtc_training_max_delay", c->path, 0, INT_MAX, &max_delay, error));
    c->rtc.max_delay = max_delay;
    if (!rtc || json_is_null(rtc)) return OPENPI_OK;
    if (!json_is_object(rtc))
        return report(error, OPENPI_BAD_FILE, "%s: \"rtc_config\" is %s, expected an object", c->path,
                      json_kind(rtc));
    TRY(json_get_bool(rtc, "enabled", c->path, &enabled, error));
    if (!enabled) return OPENPI_OK;
    TRY(read_name(c, rtc, "mode", modes, &mode, error));
    TRY(read_name(c, rtc, "prefix_attention_schedule", schedules, &schedule, error));
    TRY(json_get_int(rtc, "execution_horizon", c->path, 1, INT_MAX, &c->rtc.horizon, error));
    const json_t *weight = json_object_get(rtc, "max_guidance_weight");
    if (weight && !(json_is_number(weight) && json_number_value(weight) > 0))
        return report(error, OPENPI_BAD_FILE,
                      "%s: rtc_config.\"max_guidance_weight\" is %s, expected a number above 0", c->path,
                      json_is_number(weight) ? "not above 0" : json_kind(weight));
    c->rtc.mode = mode ? (openpi_rtc_mode)mode : OPENPI_RTC_GUIDED;
    c->rtc.schedule = (openpi_rtc_schedule)schedule;
    c->rtc.max_weight = weight ? json_number_value(weight) : 0;
    return OPENPI_OK;
}

static openpi_status read_lerobot(config *c, openpi_error *error) {
    const char *type = NULL;
    TRY(json_get_string(c->root, "type", c->path, &type, error));
    if (type && !strcmp(type, "pi0_fast"))
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"type\" is \"pi0_fast\", a model that writes its actions as tokens, expected "
                      "\"pi0\" or \"pi05\": run it with LeRobot in Python",
                      c->path);
    if (!type || !variant_parse(type, strlen(type), &c->type))
        return report(error, OPENPI_UNSUPPORTED, "%s: \"type\" is \"%s\", expected \"pi0\" or \"pi05\"",
                      c->path, type ? type : "null");

    static const struct {
        const char *key;
        double expected;
    } numbers[] = {{"max_state_dim", OPENPI_ACTION_DIM}, {"min_period", 0.004}, {"max_period", 4.0}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        TRY(expect_number(c, numbers[i].key, numbers[i].expected, error));

    static const char *const memories[] = {"use_visual_memory", "use_proprioceptive_memory"};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++) {
        int on = 0;
        TRY(json_get_bool(c->root, memories[i], c->path, &on, error));
        if (on)
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: \"%s\" is true, expected false: memory is not supported", c->path,
                          memories[i]);
    }

    double size[2];
    int sizes;
    TRY(json_get_doubles(c->root, "image_resolution", c->path, size, 2, &sizes, error));
    if (sizes == 1)
        return report(error, OPENPI_UNSUPPORTED, "%s: \"image_resolution\" is [%g], expected [224, 224]",
                      c->path, size[0]);
    if (sizes == 2 && (size[0] != OPENPI_IMAGE_SIZE || size[1] != OPENPI_IMAGE_SIZE))
        return report(error, OPENPI_UNSUPPORTED, "%s: \"image_resolution\" is [%g, %g], expected [224, 224]",
                      c->path, size[0], size[1]);
    TRY(json_get_int(c->root, "max_action_dim", c->path, 1, INT_MAX, &c->action_dim, error));
    TRY(json_get_int(c->root, "chunk_size", c->path, 1, OPENPI_MAX_HORIZON, &c->horizon, error));
    TRY(json_get_int(c->root, "num_inference_steps", c->path, 1, OPENPI_MAX_STEPS, &c->steps, error));
    TRY(read_rtc(c, error));
    return json_get_int(c->root, "tokenizer_max_length", c->path, 1, LIMIT_PROMPT, &c->max_prompt, error);
}

/* FOLDER/config.json, if it is there. */
static openpi_status find_config(const char *folder, config *c, openpi_error *error) {
    char *path = file_join(folder, "config.json");
    if (!path) return report_no_memory(error, strlen(folder) + 16, folder);
    snprintf(c->path, sizeof c->path, "%s", path);
    openpi_status status = file_exists(path) ? json_read(path, &c->root, error) : OPENPI_OK;
    free(path);
    return status;
}

/* The adapter's config.json, else the base's. */
static openpi_status read_config(const model_place *place, config *c, openpi_error *error) {
    if (place->adapter) TRY(find_config(place->adapter, c, error));
    if (!c->root && file_is_folder(place->base)) TRY(find_config(place->base, c, error));
    if (!c->root) return OPENPI_OK;
    if (!json_is_object(c->root))
        return report(error, OPENPI_BAD_FILE, "%s: is %s, expected an object", c->path, json_kind(c->root));
    c->lerobot = json_object_get(c->root, "type") != NULL;
    if (c->lerobot) return read_lerobot(c, error);
    TRY(json_get_int(c->root, "action_dim", c->path, 1, INT_MAX, &c->action_dim, error));
    return json_get_int(c->root, "action_horizon", c->path, 1, OPENPI_MAX_HORIZON, &c->horizon, error);
}

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
        {PALIGEMMA "model.multi_modal_projector.linear.weight", 2, 0, &d->width},
        {LANGUAGE "layers.0.self_attn.q_proj.weight", 2, 0, &queries},
        {LANGUAGE "layers.0.self_attn.k_proj.weight", 2, 0, &d->head_dim},
        {LANGUAGE "layers.0.mlp.gate_proj.weight", 2, 0, &d->mlp},
        {"action_in_proj.weight", 2, 0, &d->expert_width},
        {"action_in_proj.weight", 2, 1, action_dim},
        {GEMMA "model.layers.0.mlp.gate_proj.weight", 2, 0, &d->expert_mlp},
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
    d->vision_heads = tensors_vision_heads(c->tensors);
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
    char names[400];             /* of the first missing ones */
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

static openpi_status check_shape(void *user, const char *name, int rank, const int64_t *shape,
                                 openpi_error *error) {
    check *k = user;
    const tensor *t = find_or_embedding(k->checkpoint, name);
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
    static const char *const whole[] = {LM_HEAD, EMBED_TOKENS, GEMMA "lm_head.weight",
                                        "proprio_history_proj.weight", "proprio_history_proj.bias"};
    static const char *const tails[] = {".rotary_emb.inv_freq", ".embeddings.position_ids"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(name, whole[i])) return 1;
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        size_t length = strlen(name), tail = strlen(tails[i]);
        if (length > tail && !strcmp(name + length - tail, tails[i])) return 1;
    }
    return 0;
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

/* An adaptive norm of the expert: what only π0.5 has. NULL: none. */
static const tensor *find_adaptive(const tensors *tensors) {
    for (int i = 0; i < tensors_count(tensors); i++) {
        const tensor *t = tensors_at(tensors, i);
        if (!strncmp(t->name, GEMMA, sizeof GEMMA - 1) && strstr(t->name, "norm.dense.")) return t;
    }
    return NULL;
}

static int has_expert(const tensors *tensors) {
    for (int i = 0; i < tensors_count(tensors); i++)
        if (!strncmp(tensors_at(tensors, i)->name, GEMMA, sizeof GEMMA - 1)) return 1;
    return 0;
}

static openpi_status find_variant(checkpoint *c, openpi_error *error) {
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
    if (!state && !adaptive)
        return report(error, OPENPI_BAD_FILE,
                      "%s: neither \"%s\" of π0 nor an adaptive norm of π0.5 is among its %d tensors, "
                      "expected one of them",
                      c->name, STATE, tensors_count(c->tensors));
    c->variant = variant_by_norms(adaptive != NULL);
    return OPENPI_OK;
}

/* LeRobot's type against the tensors, before it renames any. */
static openpi_status check_type(const checkpoint *c, const config *config, openpi_error *error) {
    const tensor *state = tensors_find(c->tensors, STATE), *adaptive = find_adaptive(c->tensors);
    const variant_traits *type = variant_of(config->type);
    const variant_traits *other = variant_of(variant_by_norms(!type->adaptive_norms));
    const tensor *witness = other->adaptive_norms ? adaptive : state;
    if (!witness || (state && adaptive)) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE,
                  "%s: \"type\" is \"%s\", but the tensors are those of %s: \"%s\" is there", config->path,
                  type->name, other->symbol, witness->name);
}

/* Sizes from the shapes, then every tensor against them. */
static openpi_status check_tensors(checkpoint *c, openpi_error *error) {
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
    if (c->action_dim != OPENPI_ACTION_DIM)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: action_in_proj.weight takes %d action dimensions, expected %d", c->name,
                      c->action_dim, OPENPI_ACTION_DIM);
    TRY(read_vision_heads(c, &c->dims, error));
    if (dims_check(&c->dims, c->name, error) != OPENPI_OK) return report_status(error, OPENPI_BAD_FILE);
    TRY(checkpoint_tensors(&c->dims, c->variant, check_shape, &k, error));
    return check_unknown(c, error);
}

/* Known actions are at a time of their own, which only adaptive norms can take. */
static openpi_status set_max_delay(checkpoint *c, int delay, const char *name, openpi_error *error) {
    if (delay < 0)
        return report(error, OPENPI_BAD_ARGUMENT, "%s: rtc_max_delay is %d, expected at least 0", name,
                      delay);
    if (delay && !variant_of(c->variant)->adaptive_norms)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"rtc_training_max_delay\" is %d, expected 0: %s cannot be trained for real-time "
                      "chunking, only %s can",
                      name, delay, variant_of(c->variant)->symbol, variant_of(OPENPI_PI05)->symbol);
    c->rtc.max_delay = delay;
    return OPENPI_OK;
}

static openpi_status apply_config(checkpoint *c, const config *config, openpi_error *error) {
    c->lerobot = config->lerobot;
    if (config->action_dim && config->action_dim != c->action_dim)
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %d, but the tensors have %d", config->path,
                      config->lerobot ? "max_action_dim" : "action_dim", config->action_dim, c->action_dim);
    if (config->horizon) c->horizon = config->horizon;
    if (config->steps) c->steps = config->steps;
    if (config->max_prompt) c->max_prompt = config->max_prompt;
    if (config->rtc.mode) c->rtc.mode = config->rtc.mode;
    if (config->rtc.schedule) c->rtc.schedule = config->rtc.schedule;
    if (config->rtc.horizon) c->rtc.horizon = config->rtc.horizon;
    if (config->rtc.max_weight > 0) c->rtc.max_weight = config->rtc.max_weight;
    return set_max_delay(c, config->rtc.max_delay, config->path, error);
}

static void set_defaults(checkpoint *c) {
    c->rtc = (checkpoint_rtc){.mode = OPENPI_RTC_OFF,
                              .schedule = OPENPI_RTC_LINEAR,
                              .horizon = RTC_HORIZON,
                              .max_weight = RTC_MAX_WEIGHT};
    c->horizon = 50;
    c->steps = 10;
    c->max_prompt = variant_of(c->variant)->max_prompt;
}

/* ---- the adapter ---- */

typedef struct search {
    const char *name;
    int found;
} search;

static openpi_status is_name(void *user, const char *name, int rank, const int64_t *shape,
                             openpi_error *error) {
    search *s = user;
    (void)rank, (void)shape, (void)error;
    s->found |= !strcmp(s->name, name);
    return OPENPI_OK;
}

/* A weight that this model lacks: the other variant may have it. */
static openpi_status bad_target(const checkpoint *c, const tensor *t, const char *target,
                                openpi_error *error) {
    openpi_variant other = variant_by_norms(!variant_of(c->variant)->adaptive_norms);
    const char *symbol = variant_of(c->variant)->symbol;
    search s = {.name = target};
    checkpoint_tensors(&c->dims, other, is_name, &s, NULL);
    if (s.found)
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\" is for a %s model, which has \"%s\", but %s is a %s model", t->file,
                      t->name, variant_of(other)->symbol, target, c->name, symbol);
    return report(error, OPENPI_BAD_FILE,
                  "%s: tensor \"%s\" is of an unknown target: %s, a %s model, has no \"%s\"", t->file,
                  t->name, c->name, symbol, target);
}

/* Heads that make text are not run; an adapter of one does not change the embedding that is tied to it. */
static int is_text_head(const char *name) {
    return !strcmp(name, LM_HEAD) || !strcmp(name, GEMMA "lm_head.weight");
}

static openpi_status apply_adapter(checkpoint *c, const char *folder, openpi_error *error) {
    adapter *adapter;
    TRY(adapter_open(folder, &adapter, error));
    tensors_add_adapter(c->tensors, adapter);
    for (int i = 0; i < adapter_count(adapter); i++) {
        const char *target = adapter_target(adapter, i);
        if (is_text_head(target)) continue;
        int place = tensors_index(c->tensors, strcmp(target, EMBED_TOKENS) ? target : c->embedding->name);
        if (place < 0) return bad_target(c, adapter_tensor(adapter, i), target, error);
        TRY(tensors_change(c->tensors, place, i, error));
    }
    return OPENPI_OK;
}

static openpi_status open_place(checkpoint *c, const model_place *place, int without_lora, config *config,
                                openpi_error *error) {
    snprintf(c->name, sizeof c->name, "%s", place->base);
    TRY(without_lora ? tensors_open_base(place->base, &c->tensors, error)
                     : tensors_open(place->base, &c->tensors, error));
    TRY(read_config(place, config, error));
    tensors_strip_prefix(c->tensors);
    TRY(tensors_finish(c->tensors, error));
    if (config->lerobot) {
        TRY(check_type(c, config, error));
        rename_as_lerobot(c->tensors, config->type);
        TRY(tensors_finish(c->tensors, error));
    }
    TRY(find_variant(c, error));
    set_defaults(c);
    TRY(check_tensors(c, error));
    if (place->adapter && !without_lora) TRY(apply_adapter(c, place->adapter, error));
    if (place->adapter && without_lora) snprintf(c->ignored, sizeof c->ignored, "%s", place->adapter);
    return apply_config(c, config, error);
}

static openpi_status open_path(checkpoint *c, const checkpoint_source *source, config *config,
                               openpi_error *error) {
    model_place place = {0};
    openpi_status status =
        model_place_find(source->path, source->adapter, source->without_lora, &place, error);
    if (status == OPENPI_OK) status = open_place(c, &place, source->without_lora, config, error);
    model_place_free(&place);
    return status;
}

static openpi_status open_synthetic(checkpoint *c, const openpi_synthetic *synthetic, openpi_error *error) {
    TRY(tensors_synthetic(synthetic, &c->tensors, error));                 /* checks the variant too */
    int length = snprintf(c->name, sizeof c->name, "synthetic ");
    synthetic_text(synthetic, c->name + length, sizeof c->name - (size_t)length);
    c->dims = synthetic->dims;
    c->variant = synthetic->variant;
    c->lerobot = synthetic->lerobot != 0;
    c->action_dim = OPENPI_ACTION_DIM;
    c->embedding = tensors_find(c->tensors, LM_HEAD);
    for (int i = 0; i < tensors_count(c->tensors); i++)
        c->parameters += (uint64_t)tensors_at(c->tensors, i)->count;
    set_defaults(c);
    return set_max_delay(c, synthetic->rtc_max_delay, c->name, error);
}

openpi_status checkpoint_open_source(const checkpoint_source *source, checkpoint **out,
                                     openpi_error *error) {
    const char *path = source->path;
    if (!path == !source->synthetic)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s, expected either a checkpoint's path or a synthetic model",
                      path ? "a path and a synthetic model are given"
                           : "neither a path nor a synthetic model is given");
    if (source->adapter && source->synthetic)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "adapter is \"%s\", but the model is synthetic, expected a checkpoint that it changes",
                      source->adapter);
    checkpoint *c = calloc(1, sizeof *c);
    if (!c) return report_no_memory(error, sizeof *c, "a checkpoint");
    config config = {0};
    openpi_status status =
        path ? open_path(c, source, &config, error) : open_synthetic(c, source->synthetic, error);
    json_decref(config.root);
    if (status != OPENPI_OK) {
        checkpoint_close(c);
        return status;
    }
    *out = c;
    return OPENPI_OK;
}

openpi_status checkpoint_open(const char *path, const openpi_synthetic *synthetic, checkpoint **out,
                              openpi_error *error) {
    return checkpoint_open_source(&(checkpoint_source){.path = path, .synthetic = synthetic}, out, error);
}

void checkpoint_close(checkpoint *checkpoint) {
    if (!checkpoint) return;
    tensors_close(checkpoint->tensors);
    free(checkpoint);
}

/* ---- telling what it is ---- */

/* Under "lora" the arrays of a JAX checkpoint that LoRA changes; no such key where there are none. */
static int describe_lora(const tensors *tensors, json_t *object) {
    const char *name;
    int rank, layers, failed = 0, left_out = tensors_lora_left_out(tensors);
    if (left_out) return json_object_set_new(object, "lora", json_pack("{s:i}", "ignored", left_out));
    if (!tensors_lora(tensors, 0, &name, &layers)) return 0;
    json_t *arrays = json_array();
    for (int i = 0; (rank = tensors_lora(tensors, i, &name, &layers)); i++)
        failed |= json_array_append_new(
            arrays, json_pack("{s:s,s:i,s:i}", "array", name, "layers", layers, "rank", rank));
    json_t *told = json_pack("{s:i,s:o}", "factor", 1, "arrays", arrays);
    return failed | json_object_set_new(object, "lora", told);
}

static json_t *path_json(const char *path) {
    int valid = utf8_valid_prefix(path, strlen(path)) == strlen(path);
    return json_string(valid ? path : "a name that is not UTF-8");
}

/* Under "adapter" what changes the tensors; no such key where nothing does. */
static int describe_adapter(const checkpoint *c, json_t *object) {
    const adapter *adapter = tensors_adapter(c->tensors);
    if (!adapter && !*c->ignored) return 0;
    json_t *told = json_pack("{s:o}", adapter ? "folder" : "ignored",
                             path_json(adapter ? adapter_folder(adapter) : c->ignored));
    json_t *rest = adapter ? adapter_describe(adapter) : json_object();
    int failed = json_object_update(told, rest);
    json_decref(rest);
    return failed | json_object_set_new(object, "adapter", told);
}

openpi_status checkpoint_describe(const checkpoint *c, json_t **out, openpi_error *error) {
    int count = tensors_count(c->tensors), synthetic = tensor_is_generated(tensors_at(c->tensors, 0));
    int used[DTYPES] = {0}, failed = 0;
    const char *layout = synthetic ? "synthetic" : c->lerobot ? "lerobot" : "openpi";
    uint64_t bytes = 0, file_bytes, elements = 0;
    json_t *dtypes = json_object(), *files = json_array();
    for (int i = 0; i < count; i++) {
        used[tensor_stored_type(tensors_at(c->tensors, i))]++;
        elements += (uint64_t)tensors_at(c->tensors, i)->count;
    }
    for (int i = 0; i < DTYPES; i++)
        if (used[i]) failed |= json_object_set_new(dtypes, dtype_name((dtype)i), json_integer(used[i]));
    for (int i = 0; i < tensors_files(c->tensors); i++) {
        const char *path = tensors_file(c->tensors, i, &file_bytes);
        failed |= json_array_append_new(files, path_json(path));
        bytes += file_bytes;
    }
    /* Takes over the references also where one is NULL, and then fails. */
    json_t *object =
        json_pack("{s:s,s:s,s:o,s:I,s:I,s:i,s:o,s:o,s:I,s:i,s:i,s:i}", "layout", layout, "variant",
                  variant_of(c->variant)->name, "dims", dims_json(&c->dims), "parameters",
                  (json_int_t)c->parameters, "unused_parameters", (json_int_t)(elements - c->parameters),
                  "tensors", count, "dtypes", dtypes, "files", files, "bytes", (json_int_t)bytes, "horizon",
                  c->horizon, "steps", c->steps, "max_prompt", c->max_prompt);
    json_t *orbax = NULL;
    openpi_status status = tensors_describe_orbax(c->tensors, &orbax, error);
    if (status != OPENPI_OK) {
        json_decref(object);
        return status;
    }
    failed |= !object || (orbax && json_object_set_new(object, "orbax", orbax)) ||
              describe_lora(c->tensors, object) || describe_adapter(c, object);
    if (failed) {
        json_decref(object);
        return report_no_memory(error, 4096, "a checkpoint's description");
    }
    *out = object;
    return OPENPI_OK;
}
