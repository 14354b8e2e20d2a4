/* From a folder to a checked model: variant and sizes read off the tensors, settings off config.json.
 *
 * openpi's config.json does not say whether a checkpoint is π0 or π0.5, so the tensors decide: adaptive
 * norms in the expert make π0.5, state_proj makes π0. Where a config says something, it may not contradict
 * them. */
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "checkpoint/adapter/adapter.h"
#include "checkpoint/checkpoint_check.h"
#include "checkpoint/open.h"
#include "checkpoint/place.h"
#include "checkpoint/synthetic/synth.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/tensors_build.h"

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

static openpi_status apply_config(checkpoint *c, const checkpoint_config *config, openpi_error *error) {
    c->lerobot = config->lerobot;
    /* openpi's port writes its default of 32 beside any weights. */
    int narrow = !config->lerobot && config->action_dim == OPENPI_ACTION_DIM;
    if (narrow && c->action_dim != OPENPI_ACTION_DIM)
        notes_add(&c->notes, 1, "%s: \"action_dim\" is %d, but the tensors have %d, which count",
                  config->path, config->action_dim, c->action_dim);
    else if (config->action_dim && config->action_dim != c->action_dim)
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %d, but the tensors have %d", config->path,
                      config->lerobot ? "max_action_dim" : "action_dim", config->action_dim, c->action_dim);
    if (config->horizon) c->horizon = config->horizon, c->said |= CHECKPOINT_HORIZON;
    if (config->steps) c->steps = config->steps, c->said |= CHECKPOINT_STEPS;
    if (config->max_prompt) c->max_prompt = config->max_prompt, c->said |= CHECKPOINT_PROMPT;
    if (config->rtc.mode || config->rtc.max_delay) c->said |= CHECKPOINT_RTC;
    if (config->rtc.mode) c->rtc.mode = config->rtc.mode;
    if (config->rtc.schedule) c->rtc.schedule = config->rtc.schedule;
    if (config->rtc.horizon) c->rtc.horizon = config->rtc.horizon;
    if (config->rtc.max_weight > 0) c->rtc.max_weight = config->rtc.max_weight;
    if (config->rtc.mode == OPENPI_RTC_TRAINED && !config->rtc.max_delay)
        notes_add(&c->notes, 1,
                  "%s: rtc_config says mode \"trained\", but rtc_training_max_delay is 0: calls with "
                  "real-time chunking are refused unless they ask for mode guided",
                  config->path);
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
    return !strcmp(name, LM_HEAD) || !strcmp(name, EXPERT_HEAD);
}

/* Where the weight that it changes lies; -1: the model has none of its name. */
static int place_of(const checkpoint *c, const char *target) {
    return tensors_index(c->tensors, strcmp(target, EMBED_TOKENS) ? target : c->embedding->name);
}

/* To tensors of the sizes that are stored. */
static openpi_status give_and_apply(const checkpoint *c, adapter *adapter, openpi_error *error) {
    TRY(adapter_give(adapter, c->tensors, error));
    for (int i = 0; i < adapter_count(adapter); i++) {
        const char *target = adapter_target(adapter, i);
        if (is_text_head(target)) continue;
        int place = place_of(c, target);
        if (place < 0) return bad_target(c, adapter_tensor(adapter, i), target, error);
        TRY(adapter_apply(adapter, i, tensors_edit(c->tensors, place), error));
    }
    return OPENPI_OK;
}

static openpi_status apply_adapter(checkpoint *c, const char *folder, openpi_error *error) {
    adapter *adapter;
    TRY(adapter_open(folder, &adapter, error));
    TRY(give_and_apply(c, adapter, error));
    adapter_tell(adapter, c->tensors, &c->notes);
    return OPENPI_OK;
}

openpi_status checkpoint_change(const checkpoint *c, adapter *adapter, openpi_error *error) {
    checkpoint_widen(c, 0);
    openpi_status status = give_and_apply(c, adapter, error);
    checkpoint_widen(c, 1);
    return status;
}

void checkpoint_mark_changed(const checkpoint *c, uint8_t *marks, uint8_t mark) {
    const adapter *adapter = adapter_of(c->tensors);
    for (int i = 0; i < tensors_count(c->tensors); i++)
        if (tensor_has_lora(tensors_at(c->tensors, i))) marks[i] = mark;
    for (int i = 0; adapter && i < adapter_count(adapter); i++)
        if (adapter_applied(adapter, i)) marks[place_of(c, adapter_target(adapter, i))] = mark;
}

/* The tensors under the model's own names, the config, and which variant they are. */
static openpi_status open_tensors(checkpoint *c, const model_place *place, const orbax_options *options,
                                  checkpoint_config *config, openpi_error *error) {
    snprintf(c->name, sizeof c->name, "%s", place->base);
    char prefix[100];
    TRY(tensors_open_with(place->base, options, &c->tensors, error));
    TRY(checkpoint_config_read(place, config, error));
    tensors_unwrap(c->tensors, prefix, sizeof prefix);
    if (*prefix)
        notes_add(&c->notes, 0, "%s: all names of tensors begin with \"%s\", which is left out", c->name,
                  prefix);
    tensors_strip_prefix(c->tensors);
    TRY(tensors_finish(c->tensors, error));
    if (config->lerobot) {
        TRY(checkpoint_check_type(c, config, error));
        rename_as_lerobot(c->tensors, config->type);
        TRY(tensors_finish(c->tensors, error));
    }
    return checkpoint_find_variant(c, error);
}

void checkpoint_widen(const checkpoint *c, int on) {
    for (int i = 0; i < tensors_count(c->tensors) && c->action_dim < OPENPI_ACTION_DIM; i++) {
        const tensor *t = tensors_at(c->tensors, i);
        int axis = checkpoint_action_axis(t->name);
        if (axis < 0) continue;
        int64_t rows = axis ? t->shape[0] : OPENPI_ACTION_DIM;
        int64_t columns = axis ? OPENPI_ACTION_DIM : t->shape[1];
        tensors_widen(c->tensors, i, on ? rows : 0, on ? columns : 0);
    }
}

/* The ranks of LoRA in both stacks; the expert's arrays have "_1" in their names. */
static void read_ranks(const orbax *jax, checkpoint_brief *b) {
    const char *array;
    int layers, rank;
    for (int i = 0; (rank = orbax_lora(jax, i, &array, &layers)); i++)
        *(strstr(array, "_1") ? &b->lora_expert : &b->lora_vlm) = rank;
}

openpi_status checkpoint_read_brief(const model_place *place, checkpoint_brief *brief, openpi_error *error) {
    checkpoint c = {0};
    checkpoint_config config = {0};
    const orbax_options options = {.missing = MISSING_UNSEEN};
    openpi_status status = open_tensors(&c, place, &options, &config, error);
    const tensor *in = status == OPENPI_OK ? tensors_find(c.tensors, "action_in_proj.weight") : NULL;
    if (status == OPENPI_OK) {
        const orbax *jax = orbax_of(c.tensors);
        *brief = (checkpoint_brief){.variant = c.variant, .horizon = config.horizon, .jax = in && jax};
        if (in && in->rank == 2 && in->shape[1] < OPENPI_ACTION_DIM) brief->action_dim = (int)in->shape[1];
        read_ranks(jax, brief);
    }
    json_decref(config.root);
    tensors_close(c.tensors);
    return status;
}

static openpi_status open_place(checkpoint *c, const model_place *place, const orbax_options *options,
                                checkpoint_config *config, openpi_error *error) {
    int without_lora = options->without_lora;
    TRY(open_tensors(c, place, options, config, error));
    set_defaults(c);
    TRY(checkpoint_check_tensors(c, error));
    if (config->use_peft && !place->adapter && !without_lora)
        return report(error, OPENPI_NOT_FOUND,
                      "%s: \"use_peft\" is true, but no adapter is there (adapter_config.json): give "
                      "adapter, its folder, or without_lora to run the weights as they are",
                      config->path);
    if (place->adapter && !without_lora) TRY(apply_adapter(c, place->adapter, error));
    if (place->adapter && without_lora) snprintf(c->ignored, sizeof c->ignored, "%s", place->adapter);
    TRY(apply_config(c, config, error));
    checkpoint_widen(c, 1);
    if (c->action_dim < OPENPI_ACTION_DIM)
        notes_add(&c->notes, 0,
                  "%s: a model of %d action dimensions: of the %d numbers of noise a step the others are not "
                  "used, [horizon, %d] is taken too, and their actions are 0",
                  c->name, c->action_dim, OPENPI_ACTION_DIM, c->action_dim);
    return OPENPI_OK;
}

static openpi_status open_path(checkpoint *c, const checkpoint_source *source, checkpoint_config *config,
                               openpi_error *error) {
    model_place place = {0};
    openpi_status status =
        model_place_find(source->path, source->adapter, source->without_lora, &place, error);
    const orbax_options options = {
        .without_lora = source->without_lora,
        .missing = source->missing_chunks_are_zero ? MISSING_ZERO : MISSING_REFUSED,
        .notes = &c->notes};
    if (status == OPENPI_OK) status = open_place(c, &place, &options, config, error);
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
    checkpoint_config config = {0};
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
