/* openpi_inspect: what a checkpoint is, how its observations are prepared, what it needs on each device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/boundary.h"
#include "base/free_memory.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/home.h"
#include "checkpoint/place.h"
#include "openpi_internal.h"
#include "policy/assets.h"
#include "policy/policy.h"
#include "tuning/tuning.h"

/* Appends a new value to an array, or sets it under a key of an object. A NULL value or a failure
 * means no memory. */
static openpi_status put(json_t *into, const char *key, json_t *value, openpi_error *error) {
    int failed = !value || (key ? json_object_set_new(into, key, value) : json_array_append_new(into, value));
    return failed ? report_no_memory(error, sizeof *value, "the description") : OPENPI_OK;
}

static const char *type_name(openpi_dtype type) { return type == OPENPI_F32 ? "f32" : "bf16"; }

/* Free and total memory of one device; both 0 where it is not known. */
static openpi_status find_free(device *device, uint64_t *unused, uint64_t *total, openpi_error *error) {
    *unused = *total = 0;
    if (device->backend->memory) return device->backend->memory(device, unused, total, error);
    uint64_t free_bytes = free_memory(), all = total_memory();     /* as the CPU backend counts */
    if (free_bytes != UINT64_MAX) *unused = free_bytes;
    if (all != UINT64_MAX) *total = all;
    return OPENPI_OK;
}

/* Needed and free memory, and whether it fits. An engine takes weights and a session, and the device's driver
 * keeps some memory for itself: what fits by less than this reserve is said to fit closely. `shared`: the
 * processor uses the same memory. */
static openpi_status put_verdict(json_t *row, uint64_t needed, uint64_t unused, uint64_t total, int shared,
                                 openpi_error *error) {
    static const double reserve = 0.05;          /* share of what is needed */
    const char *of = shared ? ", shared with the CPU" : "";
    char text[160];
    double need = (double)needed * 1e-9, left = (double)unused * 1e-9;
    TRY(put(row, "needed_bytes", json_integer((json_int_t)needed), error));
    TRY(put(row, "free_bytes", total ? json_integer((json_int_t)unused) : json_null(), error));
    TRY(put(row, "fits", total ? json_boolean(needed <= unused) : json_null(), error));
    if (!total)
        ascii_print(text, sizeof text, "%.2f GB needed, the device does not report what is free", need);
    else if (needed > unused)
        ascii_print(text, sizeof text, "does not fit: %.2f GB needed, %.2f GB free, %.2f GB too few%s", need,
                    left, need - left, of);
    else
        ascii_print(text, sizeof text, "fits%s: %.2f GB needed, %.2f GB free%s",
                    (double)needed * (1 + reserve) > (double)unused ? ", but closely" : "", need, left, of);
    return put(row, "verdict", json_string(text), error);
}

/* One row of the table of memory: an engine's types. */
typedef struct setting {
    openpi_dtype type;
    openpi_weights weights;
    const char *formats;         /* the user's list; NULL: none                                            */
} setting;

/* Bytes of matrices by group; vectors (norms, biases) are not among them. */
static openpi_status put_groups(json_t *row, const model *model, openpi_error *error) {
    char key[32];
    json_t *groups = json_object();
    TRY(put(row, "groups", groups, error));
    for (int g = 0; g < GROUPS; g++) {
        snprintf(key, sizeof key, "%s_bytes", weight_group_name((weight_group)g));
        TRY(put(groups, key, json_integer((json_int_t)model->group_bytes[g]), error));
    }
    return put(groups, "embedding_bytes", json_integer((json_int_t)model->embedding_bytes), error);
}

static openpi_status put_row(json_t *out, const openpi_engine *engine, const openpi_device *which,
                             setting types, uint64_t session, json_t **row, openpi_error *error) {
    *row = json_pack("{s:s, s:s, s:s, s:b, s:s}", "device", which->name, "hardware", which->description,
                     "path", engine->device->path, "shared_memory", engine->device->shared_memory, "dtype",
                     type_name(types.type));
    TRY(put(out, NULL, *row, error));
    char formats[FORMATS_TEXT] = "bf16";
    if (types.formats) formats_write(&engine->model->types, formats);
    if (types.formats || types.weights == OPENPI_WEIGHTS_BF16)
        TRY(put(*row, "weights", json_string(formats), error));
    TRY(put(*row, "weight_bytes", json_integer((json_int_t)engine->model->bytes), error));
    TRY(put_groups(*row, engine->model, error));
    return put(*row, "session_bytes", json_integer((json_int_t)session), error);
}

/* Where openpi has no table of kernel choices for the device: what that may cost. */
static openpi_status put_tuning(json_t *row, const openpi_engine *engine, openpi_error *error) {
    const tuning_machine machine = tuning_machine_of(engine->device, pool_threads(engine->pool));
    tuning *table = NULL;
    char text[TUNING_ADVICE];
    TRY(tuning_shipped(&machine, engine->device, &table, error));
    tuning_advice(engine->device, text);
    if (table) *text = 0;
    tuning_close(table);
    return *text ? put(row, "tuning", json_string(text), error) : OPENPI_OK;
}

/* What a default session, batch 1, needs on one device. Of the two passes that lay out weights (measure,
 * bind) only the first is made, so nothing is loaded or allocated. The pool is a default engine's: work
 * blocks grow with its threads. *weight_bytes becomes what weights take; where it is not 0, only a setting
 * that takes less gets a row. */
static openpi_status price(const checkpoint *checkpoint, const backend *backend, const openpi_device *which,
                           setting types, uint64_t *weight_bytes, json_t *out, openpi_error *error) {
    openpi_engine engine = {.checkpoint = (struct checkpoint *)(uintptr_t)checkpoint, .dtype = types.type};
    uint64_t session = 0, unused = 0, total = 0;
    int saves = 0;
    json_t *row = NULL;
    model_types kept;
    TRY(engine_formats(types.type, types.weights, types.formats, &kept, error));
    openpi_status status = pool_create(0, 0, &engine.pool, error);
    if (status == OPENPI_OK)
        status = backend->open(which->name, &(device_options){.pool = engine.pool}, &engine.device, error);
    if (status == OPENPI_OK) status = find_free(engine.device, &unused, &total, error);
    if (status == OPENPI_OK)
        status = model_measure(checkpoint, engine.device, kept, 0, &engine.model, error);
    if (status == OPENPI_OK) status = openpi_session_bytes(&engine, NULL, &session, error);
    if (status == OPENPI_OK) {
        saves = !*weight_bytes || engine.model->bytes < *weight_bytes;
        *weight_bytes = engine.model->bytes;
    }
    if (status == OPENPI_OK && saves) status = put_row(out, &engine, which, types, session, &row, error);
    if (status == OPENPI_OK && saves && types.type == OPENPI_BF16 && !types.formats)
        status = put_tuning(row, &engine, error);          /* once a device */
    if (status == OPENPI_OK && saves)
        status = put_verdict(row, engine.model->bytes + session, unused, total, engine.device->shared_memory,
                             error);
    model_close(engine.model);
    if (engine.device) backend->close(engine.device);
    pool_close(engine.pool);
    return status;
}

static openpi_status put_reason(json_t *out, const openpi_device *which, const char *reason,
                                openpi_error *error) {
    char verdict[600];
    snprintf(verdict, sizeof verdict, "cannot be used: %s", reason);
    return put(out, NULL,
               json_pack("{s:s, s:s, s:s}", "device", which->name, "reason", reason, "verdict", verdict),
               error);
}

/* A device that is full or lost is described by the sentence that says so. Only a lack of host memory is an
 * error. */
static openpi_status price_device(const checkpoint *checkpoint, const backend *backend,
                                  const openpi_device *which, const char *formats, json_t *out,
                                  openpi_error *error) {
    const setting settings[] = {{OPENPI_BF16, OPENPI_WEIGHTS_AUTO, NULL},
                                {OPENPI_F32, OPENPI_WEIGHTS_AUTO, NULL},
                                {OPENPI_F32, OPENPI_WEIGHTS_BF16, NULL},
                                {OPENPI_BF16, OPENPI_WEIGHTS_AUTO, formats}};
    size_t count = sizeof settings / sizeof *settings - !formats;
    uint64_t weight_bytes = 0;
    if (!which->usable) return put_reason(out, which, which->reason, error);
    for (size_t i = 0; i < count; i++) {
        openpi_error why = OPENPI_ERROR_INIT;
        if (settings[i].weights == OPENPI_WEIGHTS_AUTO) weight_bytes = 0;      /* a row in any case */
        openpi_status status = price(checkpoint, backend, which, settings[i], &weight_bytes, out, &why);
        if (status == OPENPI_OK) continue;
        int host = !backend->allocate_host;      /* device memory is host memory */
        if (host && status == OPENPI_NO_MEMORY) return report(error, status, "%s", why.message);
        return put_reason(out, which, why.message, error);
    }
    return OPENPI_OK;
}

openpi_status inspect_devices(const checkpoint *checkpoint, const backend *const *list, const char *formats,
                              json_t *out, openpi_error *error) {
    for (int i = 0; list[i]; i++) {
        openpi_device devices[16];
        int count = list[i]->devices(devices, 16);
        for (int j = 0; j < count && j < 16; j++)
            TRY(price_device(checkpoint, list[i], &devices[j], formats, out, error));
    }
    return OPENPI_OK;
}

/* The names of the assets that have statistics. */
static openpi_status put_assets(const char *path, json_t *out, openpi_error *error) {
    assets there = {0};
    model_place place = {0};
    char *home = NULL;
    json_t *names = json_array();
    TRY(put(out, "assets", names, error));
    openpi_status status = path ? model_place_find(path, NULL, 1, &place, error) : OPENPI_OK;
    if (status == OPENPI_OK && path) status = home_find(place.base, &home, error);
    if (status == OPENPI_OK && home) status = assets_list(home, &there, error);
    model_place_free(&place);
    free(home);
    TRY(status);
    for (int i = 0; i < there.count; i++) TRY(put(names, NULL, json_string(there.names[i]), error));
    return OPENPI_OK;
}

/* The ranks that the config or the robot's file names; what the checkpoint holds is beside them ("lora"). */
static openpi_status put_ranks(json_t *policy, const int ranks[2], openpi_error *error) {
    static const char *const names[] = {"vlm", "expert"};
    if (!ranks[0] && !ranks[1]) return OPENPI_OK;
    json_t *lora = json_object();
    TRY(put(policy, "lora", lora, error));
    for (int i = 0; i < 2; i++)
        if (ranks[i]) TRY(put(lora, names[i], json_integer(ranks[i]), error));
    return OPENPI_OK;
}

/* Appends the sentences that are not there already: "warning: " stands before a warning. */
static openpi_status put_notes(const notes *list, json_t *told, openpi_error *error) {
    const char *text;
    int warning;
    for (int i = 0; (text = notes_get(list, i, &warning)); i++) {
        json_t *line = json_sprintf("%s%s", warning ? "warning: " : "", text);
        size_t at, found = 0;
        json_t *other;
        json_array_foreach(told, at, other) found |= (size_t)json_equal(line, other);
        if (found) json_decref(line);
        else TRY(put(told, NULL, line, error));
    }
    return OPENPI_OK;
}

/* Where the statistics of state and actions are from: a file, or "none: " and why. NULL: no memory. */
static json_t *describe_origins(const openpi_policy *policy) {
    const lerobot *p = &policy->pipeline;
    const lerobot_statistics *of[2] = {&p->state_statistics, &p->action_statistics};
    const char *path = policy->statistics_path ? policy->statistics_path
                       : policy->made_statistics ? "embedded"
                                                 : "none: the robot works in normalised units";
    json_t *texts[2];
    for (int i = 0; i < 2; i++)
        texts[i] = !policy->lerobot    ? json_string(path)
                   : of[i]->file[0] ? json_sprintf("%s by %s", of[i]->file, of[i]->mode)
                                    : json_sprintf("none: %s", of[i]->why);
    return json_pack("{s:o, s:o}", "state", texts[0], "actions", texts[1]);
}

/* What is known of an open policy, as the object "policy". */
static openpi_status put_policy(const openpi_policy *policy, const openpi_policy_info *info, json_t *out,
                                openpi_error *error) {
    const int ranks[2] = {policy->robot.lora_vlm, policy->robot.lora_expert};
    json_t *about = json_pack("{s:s, s:i, s:i, s:i, s:i, s:b}", "robot", info->robot, "state_length",
                              info->state_length, "action_dim", info->action_dim, "horizon", info->horizon,
                              "max_prompt", info->max_prompt, "prompt_state", info->prompt_state);
    TRY(put(out, "policy", about, error));
    TRY(put(about, "statistics", info->statistics[0] ? json_string(info->statistics) : json_null(), error));
    TRY(put(about, "statistics_of", describe_origins(policy), error));
    json_t *cameras = json_array();
    TRY(put(about, "cameras", cameras, error));
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        TRY(put(cameras, NULL, info->cameras[c][0] ? json_string(info->cameras[c]) : json_null(), error));
    return put_ranks(about, ranks, error);
}

/* How observations are prepared; where that is not known, the sentence that says why. */
static openpi_status describe_policy(const char *path, const openpi_policy_options *options, json_t *out,
                                     json_t *told, openpi_error *error) {
    openpi_policy *policy = NULL;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_status status = openpi_policy_open(path, options, &policy, &why);
    if (status == OPENPI_NO_MEMORY) return report(error, status, "%s", why.message);
    if (status != OPENPI_OK) return put(out, "policy", json_pack("{s:s}", "reason", why.message), error);
    status = openpi_policy_get_info(policy, &info, error);
    if (status == OPENPI_OK) status = put_notes(&policy->notes, told, error);
    if (status == OPENPI_OK) status = put_policy(policy, &info, out, error);
    openpi_policy_close(policy);
    return status;
}

openpi_status openpi_inspect(const char *path, const openpi_policy_options *options, char **json,
                             openpi_error *error) {
    checkpoint *checkpoint = NULL;
    json_t *root = NULL, *memory, *told;
    openpi_policy_options own;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    if (!json) return report(error, OPENPI_BAD_ARGUMENT, "inspect: json is NULL");
    TRY(BOUNDARY_TAKE(openpi_policy_options, options, &own, error));
    if (own.synthetic) {
        TRY(BOUNDARY_TAKE(openpi_synthetic, own.synthetic, &synthetic, error));
        own.synthetic = &synthetic;
    }
    model_types unused;
    w8_plan *plan = NULL;
    if (!w8_asked(own.formats))
        TRY(engine_formats(OPENPI_BF16, OPENPI_WEIGHTS_AUTO, own.formats, &unused, error));
    const checkpoint_source source = {path, own.synthetic, own.adapter, own.without_lora,
                                      own.missing_chunks_are_zero};
    openpi_status status = checkpoint_open_source(&source, &checkpoint, error);
    if (status == OPENPI_OK)
        status = w8_take(&source, checkpoint, own.formats, OPENPI_BF16, 1, &plan, error);
    const char *formats = plan ? plan->formats : own.formats;
    if (status == OPENPI_OK) status = checkpoint_describe(checkpoint, &root, error);
    if (status == OPENPI_OK) status = put_assets(path, root, error);
    if (status == OPENPI_OK) status = put(root, "notes", told = json_array(), error);
    if (status == OPENPI_OK) status = put_notes(&checkpoint->notes, told, error);
    if (status == OPENPI_OK) status = describe_policy(path, &own, root, told, error);
    if (status == OPENPI_OK) status = put(root, "memory", memory = json_array(), error);
    if (status == OPENPI_OK) status = inspect_devices(checkpoint, backends, formats, memory, error);
    if (status == OPENPI_OK) {
        char *text = json_text(root, JSON_INDENT(2));
        if (text)
            *json = text;
        else
            status = report_no_memory(error, sizeof *root, "the description");
    }
    json_decref(root);
    w8_close(plan);
    checkpoint_close(checkpoint);
    return status;
}
