/* The engine: opening and closing a model on a device. Sessions are in session.c, the policy level in
 * policy/. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/boundary.h"
#include "base/guess.h"
#include "base/report.h"
#include "tuning/tuning.h"
#include "openpi_internal.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

const char *openpi_version(void) {
    return TEXT(OPENPI_VERSION_MAJOR) "." TEXT(OPENPI_VERSION_MINOR) "." TEXT(OPENPI_VERSION_PATCH);
}

void openpi_free(void *buffer) { free(buffer); }

const char *openpi_stage_name(openpi_stage stage) {
    static const char *const names[OPENPI_STAGES] = {"picture", "prompt",  "upload",   "vision",
                                                     "prefix",  "denoise", "download", "actions"};
    return (unsigned)stage < OPENPI_STAGES ? names[stage] : "unknown";
}

/* "cpu", "x:0": the backend that owns the name before the colon. */
static const backend *find_backend(const char *device) {
    size_t length = strcspn(device, ":");
    for (int i = 0; backends[i]; i++)
        if (strlen(backends[i]->name) == length && !memcmp(backends[i]->name, device, length))
            return backends[i];
    return NULL;
}

/* The processor is the first of them; the others count their devices. */
static openpi_status report_no_backend(const char *device, openpi_error *error) {
    char names[160] = "";
    size_t used = 0;
    for (int i = 0; backends[i] && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s%s",
                                 !i                ? ""
                                 : backends[i + 1] ? ", "
                                                   : " or ",
                                 backends[i]->name, i ? ":N" : "");
    report(error, OPENPI_NO_DEVICE, "device \"%s\" is unknown, expected %s", device, names);
    return guess_add(error, OPENPI_NO_DEVICE, device, names);
}

static openpi_status check_options(const openpi_engine_options *o, const char *checkpoint,
                                   openpi_error *error) {
    if (!checkpoint == !o->synthetic)
        return report(error, OPENPI_BAD_ARGUMENT, "engine: %s, expected a checkpoint or a synthetic model",
                      checkpoint ? "both a checkpoint and a synthetic model given"
                                 : "neither a checkpoint nor a synthetic model given");
    if (o->dtype != OPENPI_DTYPE_DEFAULT && o->dtype != OPENPI_BF16 && o->dtype != OPENPI_F32)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "engine options: dtype is %d, expected OPENPI_BF16 or OPENPI_F32", (int)o->dtype);
    if (o->weights != OPENPI_WEIGHTS_AUTO && o->weights != OPENPI_WEIGHTS_BF16 &&
        o->weights != OPENPI_WEIGHTS_F32)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "engine options: weights is %d, expected OPENPI_WEIGHTS_AUTO, OPENPI_WEIGHTS_BF16 or "
                      "OPENPI_WEIGHTS_F32",
                      (int)o->weights);
    if (o->without_lora != 0 && o->without_lora != 1)
        return report(error, OPENPI_BAD_ARGUMENT, "engine options: without_lora is %d, expected 0 or 1",
                      o->without_lora);
    if (o->missing_chunks_are_zero != 0 && o->missing_chunks_are_zero != 1)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "engine options: missing_chunks_are_zero is %d, expected 0 or 1",
                      o->missing_chunks_are_zero);
    if (o->accept_error != 0 && o->accept_error != 1)
        return report(error, OPENPI_BAD_ARGUMENT, "engine options: accept_error is %d, expected 0 or 1",
                      o->accept_error);
    if (o->accept_error && !w8_asked(o->formats))
        return report(error, OPENPI_BAD_ARGUMENT,
                      "engine options: accept_error is 1, expected 0 where formats is not w8");
    return OPENPI_OK;
}

static void note_untuned(openpi_engine *e) {
    char text[TUNING_ADVICE];
    tuning_advice(e->device, text);
    if (*text) notes_add(&e->checkpoint->notes, 0, "%s", text);
}

/* The user's tuning table, else the one that openpi has for the device. It is read, and so checked, even
 * where the switch tuned-tiles is off. */
static openpi_status open_table(openpi_engine *e, const char *path, openpi_error *error) {
    tuning_machine machine = tuning_machine_of(e->device, pool_threads(e->pool));
    TRY(path ? tuning_read(path, &machine, e->device, &e->tuning, error)
             : tuning_shipped(&machine, e->device, &e->tuning, error));
    if (!switch_off(e->off, SWITCH_TUNED_TILES)) {
        if (!e->tuning) note_untuned(e);
        return OPENPI_OK;
    }
    tuning_close(e->tuning);
    e->tuning = NULL;
    return OPENPI_OK;
}

model_types engine_types(openpi_dtype type, openpi_weights weights) {
    dtype act = type == OPENPI_F32 ? DTYPE_F32 : DTYPE_BF16;
    switch (weights) {
    case OPENPI_WEIGHTS_BF16: return formats_all(act, FORMAT_BF16);
    case OPENPI_WEIGHTS_F32: return formats_all(act, FORMAT_F32);
    case OPENPI_WEIGHTS_AUTO: break;
    }
    return formats_all(act, act == DTYPE_BF16 ? FORMAT_BF16 : FORMAT_FILE);
}

openpi_status engine_formats(openpi_dtype type, openpi_weights weights, const char *formats, model_types *out,
                             openpi_error *error) {
    *out = engine_types(type, weights);
    return formats ? formats_parse(formats, out, error) : OPENPI_OK;
}

/* Of the language model's products. */
static openpi_weights weights_in_use(const model *m) {
    const gemma_layer *layer = &m->prefix[0];
    const matrix *product = layer->down.n ? &layer->down : layer->qkv.n ? &layer->qkv : &layer->qkv_parts[1];
    if (m->types.group[GROUP_ATTENTION] != m->types.group[GROUP_FFN]) return OPENPI_WEIGHTS_AUTO;
    return product->type == WEIGHT_F32    ? OPENPI_WEIGHTS_F32
           : product->type == WEIGHT_BF16 ? OPENPI_WEIGHTS_BF16
                                          : OPENPI_WEIGHTS_AUTO;
}

/* 8 bits change actions: every program tells its user. */
static void note_formats(openpi_engine *e, const model_types *types) {
    char text[FORMATS_TEXT];
    if (!formats_have_8_bits(types)) return;
    formats_write(types, text);
    notes_add(&e->checkpoint->notes, 0,
              "weights are %s: products of 8 bits change the actions (docs/weights.md says how much)", text);
}

static int report_loading(void *user, const char *what, uint64_t done, uint64_t total) {
    const openpi_engine_options *o = user;
    if (o->progress) o->progress(o->progress_user, what, done, total);
    return o->cancel && o->cancel(o->progress_user);
}

/* Channels can only be smoothed where they were measured, and rows of one scale need that scale. */
static openpi_status check_measured(const model_types *types, openpi_error *error) {
    char text[FORMATS_TEXT];
    int smooth = formats_smooth(types) && !types->powers, fixed = types->fixed && !types->row_scales;
    if (!smooth && !fixed) return OPENPI_OK;
    formats_write(types, text);
    return report(error, OPENPI_BAD_ARGUMENT,
                  "weights is %s, and %s a plan that openpi quantize has measured, expected w8 or a list "
                  "without %s",
                  text, smooth ? "smoothing takes" : "a static scale takes", smooth ? "+smooth" : "+static");
}

static openpi_status open_parts(openpi_engine *e, const char *path, const openpi_engine_options *o,
                                const engine_more *more, openpi_error *error) {
    model_types types;
    const char *name = o->device ? o->device : "cpu";
    const backend *backend = find_backend(name);
    if (!backend) return report_no_backend(name, error);
    e->dtype = o->dtype == OPENPI_F32 ? OPENPI_F32 : OPENPI_BF16;
    if (!w8_asked(o->formats)) TRY(engine_formats(e->dtype, o->weights, o->formats, &types, error));
    TRY(pool_create(o->threads, o->pin, &e->pool, error));
    TRY(switches_parse(o->without, &e->off, error));
    device_options device = {
        .isa = o->isa, .pool = e->pool, .path = o->path, .off = e->off, .as_card = o->as_card};
    TRY(backend->open(name, &device, &e->device, error));
    const checkpoint_source source = {path, o->synthetic, o->adapter, o->without_lora,
                                      o->missing_chunks_are_zero};
    TRY(checkpoint_open_source(&source, &e->checkpoint, error));
    TRY(engine_keep_origin(e, &source, error));
    TRY(w8_take(&source, e->checkpoint, o->formats, e->dtype, o->accept_error, &e->w8, error));
    if (e->w8) TRY(engine_formats(e->dtype, o->weights, e->w8->formats, &types, error));
    formats_take(&types, e->w8 ? w8_measured(e->w8) : more->measured);
    TRY(check_measured(&types, error));
    TRY(open_table(e, o->table, error));
    note_formats(e, &types);
    TRY(model_load(e->checkpoint, e->device, types, e->off, e->pool, report_loading, (void *)(uintptr_t)o,
                   &e->model, error));
    TRY(checkpoint_identity(e->checkpoint, e->identity, error));         /* its pages were just read        */
    engine_name_origin(e);
    if (e->device->shared_memory) tensors_forget_pages(e->checkpoint->tensors);
    if (!more->keep_files) tensors_close_files(e->checkpoint->tensors);
    e->model->tuning = e->tuning;
    return e->w8 ? w8_prove(e, path ? path : e->checkpoint->name, o->accept_error, error) : OPENPI_OK;
}

openpi_status openpi_engine_open(const char *path, const openpi_engine_options *options,
                                 openpi_engine **engine, openpi_error *error) {
    return engine_open_more(path, options, &(engine_more){.keep_files = 0}, engine, error);
}

openpi_status engine_open_more(const char *path, const openpi_engine_options *options,
                               const engine_more *more, openpi_engine **engine, openpi_error *error) {
    openpi_engine_options own;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    if (!engine) return report(error, OPENPI_BAD_ARGUMENT, "engine: the address for the engine is NULL");
    TRY(BOUNDARY_TAKE(openpi_engine_options, options, &own, error));
    if (own.synthetic) {
        TRY(BOUNDARY_TAKE(openpi_synthetic, own.synthetic, &synthetic, error));
        own.synthetic = &synthetic;
        if (synthetic.outliers)
            return report(error, OPENPI_BAD_ARGUMENT,
                          "the synthetic model's outliers is %d, expected OPENPI_OUTLIERS_NONE: only a "
                          "checkpoint that is written has them",
                          (int)synthetic.outliers);
    }
    TRY(check_options(&own, path, error));
    openpi_engine *e = engine_new();
    if (!e) return report_no_memory(error, sizeof *e, "the engine");
    openpi_status status = open_parts(e, path, &own, more, error);
    if (status != OPENPI_OK) {
        openpi_engine_close(e);
        return status;
    }
    *engine = e;
    return OPENPI_OK;
}

static openpi_status load_beside(openpi_engine *e, const char *formats, formats_measured measured,
                                 openpi_error *error) {
    model_types types;
    TRY(engine_formats(e->dtype, OPENPI_WEIGHTS_AUTO, formats, &types, error));
    formats_take(&types, measured);
    TRY(check_measured(&types, error));
    TRY(model_load_beside(e->base->model, types, e->pool, NULL, NULL, &e->model, error));
    e->model->tuning = e->base->model->tuning;
    return OPENPI_OK;
}

openpi_status engine_beside(openpi_engine *base, const char *formats, formats_measured measured,
                            openpi_engine **engine, openpi_error *error) {
    openpi_engine *e = engine_new();
    if (!e) return report_no_memory(error, sizeof *e, "the engine");
    e->base = base;
    e->checkpoint = base->checkpoint;
    e->pool = base->pool;
    e->device = base->device;
    e->dtype = base->dtype;
    e->off = base->off;
    e->tuning = base->tuning;
    memcpy(e->identity, base->identity, sizeof e->identity);
    atomic_fetch_add(&base->users, 1);
    openpi_status status = load_beside(e, formats, measured, error);
    if (status == OPENPI_OK) *engine = e;
    else openpi_engine_close(e);
    return status;
}

openpi_engine *engine_new(void) {
    openpi_engine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    atomic_init(&e->users, 1);
    pthread_mutex_init(&e->update_lock, NULL);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->process = getpid();
    return e;
}

int engine_inherited(const openpi_engine *e) { return e->process != getpid(); }

openpi_status engine_check_process(const openpi_engine *e, const char *doing, openpi_error *error) {
    if (!engine_inherited(e)) return OPENPI_OK;
    return report(error, OPENPI_SYSTEM,
                  "%s: process %ld opened the engine and this is process %ld, forked from it: an engine's "
                  "threads and device "
                  "stay with the process that opened it, expected an engine opened here",
                  doing, e->process, (long)getpid());
}

void engine_release(openpi_engine *e) {
    if (atomic_fetch_sub(&e->users, 1) > 1) return;
    if (e->base) {
        model_close(e->model);
        engine_release(e->base);
        free(e);
        return;
    }
    /* A GPU's memory belongs to the parent process, whose driver must not be called here: only the
     * device's record is leaked. */
    if (e->device && e->device->backend->allocate_host && engine_inherited(e)) {
        if (e->model) e->model->block = NULL;
        model_close(e->model);
        checkpoint_close(e->checkpoint);
    } else {
        model_close(e->model);
        checkpoint_close(e->checkpoint);
        if (e->device) e->device->backend->close(e->device);
    }
    pool_close(e->pool);
    tuning_close(e->tuning);
    w8_close(e->w8);
    engine_forget_origin(e);
    free(e);
}

void openpi_engine_close(openpi_engine *e) {
    if (e) engine_release(e);
}

openpi_status openpi_engine_get_info(const openpi_engine *e, openpi_engine_info *info, openpi_error *error) {
    if (!e || !info)
        return report(error, OPENPI_BAD_ARGUMENT, "engine info: %s is NULL", e ? "info" : "the engine");
    TRY(BOUNDARY_CHECK(openpi_engine_info, info, error));
    openpi_engine_info own = {.dims = e->checkpoint->dims,
                              .variant = e->checkpoint->variant,
                              .dtype = e->dtype,
                              .threads = pool_threads(e->pool),
                              .lerobot = e->checkpoint->lerobot,
                              .action_dim = e->checkpoint->action_dim,
                              .default_horizon = e->checkpoint->horizon,
                              .default_steps = e->checkpoint->steps,
                              .default_prompt = e->checkpoint->max_prompt,
                              .parameters = e->checkpoint->parameters,
                              .weight_bytes = e->model->bytes,
                              .rtc_max_delay = e->checkpoint->rtc.max_delay,
                              .rtc_mode = e->checkpoint->rtc.mode,
                              .rtc_schedule = e->checkpoint->rtc.schedule,
                              .rtc_horizon = e->checkpoint->rtc.horizon,
                              .rtc_max_weight = e->checkpoint->rtc.max_weight};
    snprintf(own.device, sizeof own.device, "%s", e->device->backend->name);
    snprintf(own.path, sizeof own.path, "%s", e->device->path);
    own.weights = weights_in_use(e->model);
    formats_write(&e->model->types, own.formats);
    if (e->w8) {
        const w8_bound *worst = &e->w8->bounds[e->w8->worst];
        own.w8 = 1;
        own.error_accepted = e->error_accepted;
        own.w8_error = worst->found;
        own.w8_bound = worst->limit;
        snprintf(own.w8_measure, sizeof own.w8_measure, "%s", worst->what);
    }
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&e->lock;          /* an update may change it     */
    pthread_mutex_lock(lock);
    snprintf(own.checkpoint_hash, sizeof own.checkpoint_hash, "%s", e->identity);
    pthread_mutex_unlock(lock);
    switches_write(e->off, own.without, sizeof own.without);
    if (e->tuning) snprintf(own.table, sizeof own.table, "%s", e->tuning->source);
    if (e->model->tuning) snprintf(own.table_ignored, sizeof own.table_ignored, "%s", e->tuning->ignored);
    BOUNDARY_GIVE(openpi_engine_info, &own, info);
    return OPENPI_OK;
}

const char *openpi_engine_note(const openpi_engine *e, int index, int *warning) {
    return e ? notes_get(&e->checkpoint->notes, index, warning) : NULL;
}

const char *openpi_note(const openpi_engine *e, const openpi_policy *policy, int index, int *warning) {
    const char *text = openpi_engine_note(e, index, warning);
    int before = 0;
    if (text || index < 0) return text;
    while (openpi_engine_note(e, before, NULL)) before++;
    return openpi_policy_note(policy, index - before, warning);
}

int engine_set_off(openpi_engine *e, uint32_t off) {
    const backend *backend = e->device->backend;
    if ((e->off ^ off) & MODEL_SWITCHES) return 0;
    e->off = e->model->off = off;
    e->model->tuning = switch_off(off, SWITCH_TUNED_TILES) ? NULL : e->tuning;
    if (backend->set_off) backend->set_off(e->device, off);
    return 1;
}

openpi_status openpi_switches(openpi_switch *switches, int capacity, int *count, openpi_error *error) {
    int given = capacity < SWITCHES ? capacity : SWITCHES;
    if (!count || (!switches && capacity > 0))
        return report(error, OPENPI_BAD_ARGUMENT, "switches: %s is NULL", count ? "the array" : "count");
    if (given > 0) TRY(BOUNDARY_CHECK(openpi_switch, switches, error));
    for (int i = 0; i < given; i++) {
        openpi_switch own = {sizeof own, switch_name((op_switch)i), switch_text((op_switch)i)};
        BOUNDARY_GIVE_AT(openpi_switch, &own, switches, i);
    }
    *count = SWITCHES;
    return OPENPI_OK;
}
