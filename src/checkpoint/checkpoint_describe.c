/* What a checkpoint is, as JSON (checkpoint.h). */
#include <string.h>

#include "base/report.h"
#include "base/utf8.h"
#include "checkpoint/adapter/adapter.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/jax/orbax.h"
#include "checkpoint/tensors_build.h"

/* Under "lora" the arrays of a JAX checkpoint that LoRA changes; no such key where there are none. */
static int describe_lora(const orbax *jax, json_t *object) {
    const char *name;
    int rank, layers, failed = 0, left_out = orbax_lora_left_out(jax);
    if (left_out) return json_object_set_new(object, "lora", json_pack("{s:i}", "ignored", left_out));
    if (!orbax_lora(jax, 0, &name, &layers)) return 0;
    json_t *arrays = json_array();
    for (int i = 0; (rank = orbax_lora(jax, i, &name, &layers)); i++)
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
    const adapter *adapter = adapter_of(c->tensors);
    if (!adapter && !*c->ignored) return 0;
    json_t *told = json_pack("{s:o}", adapter ? "folder" : "ignored",
                             path_json(adapter ? adapter_folder(adapter) : c->ignored));
    json_t *rest = adapter ? adapter_describe(adapter) : json_object();
    int failed = json_object_update(told, rest);
    json_decref(rest);
    return failed | json_object_set_new(object, "adapter", told);
}

const char *const rtc_mode_names[RTC_MODES] = {
    [OPENPI_RTC_GUIDED] = "guided", [OPENPI_RTC_TRAINED] = "trained", [OPENPI_RTC_VJP] = "vjp"};
const char *const rtc_schedule_names[RTC_SCHEDULES] = {[OPENPI_RTC_ZEROS] = "zeros",
                                                       [OPENPI_RTC_ONES] = "ones",
                                                       [OPENPI_RTC_LINEAR] = "linear",
                                                       [OPENPI_RTC_EXP] = "exp"};

/* What a call takes that says nothing itself. A mode of LeRobot's config.json is told, not taken: a call has
 * real-time chunking only where it asks for it. */
static json_t *describe_rtc(const checkpoint_rtc *rtc) {
    const char *mode = rtc_mode_names[rtc->mode], *schedule = rtc_schedule_names[rtc->schedule];
    return json_pack("{s:s?,s:s,s:i,s:f,s:i}", "mode", mode, "schedule", schedule, "horizon", rtc->horizon,
                     "max_weight", rtc->max_weight, "trained_delay", rtc->max_delay);
}

/* Which of the settings told are openpi's own, because no file says them. */
static json_t *describe_defaults(const checkpoint *c) {
    static const struct {
        unsigned bit;
        const char *name;
    } rows[] = {{CHECKPOINT_HORIZON, "horizon"},
                {CHECKPOINT_STEPS, "steps"},
                {CHECKPOINT_PROMPT, "max_prompt"},
                {CHECKPOINT_RTC, "rtc"}};
    json_t *list = json_array();
    for (size_t i = 0; list && i < sizeof rows / sizeof *rows; i++)
        if (!(c->said & rows[i].bit) && json_array_append_new(list, json_string(rows[i].name))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

openpi_status checkpoint_describe(const checkpoint *c, json_t **out, openpi_error *error) {
    int count = tensors_count(c->tensors), synthetic = tensor_is_generated(tensors_at(c->tensors, 0));
    int used[DTYPES] = {0}, failed = 0;
    const char *layout = synthetic ? "synthetic" : c->lerobot ? "lerobot" : "openpi";
    uint64_t bytes = 0, file_bytes, elements = 0;
    json_t *dtypes = json_object(), *files = json_array();
    for (int i = 0; i < count; i++) {
        used[tensor_stored_type(tensors_at(c->tensors, i))]++;
        elements += (uint64_t)tensor_stored_count(tensors_at(c->tensors, i));
    }
    for (int i = 0; i < DTYPES; i++)
        if (used[i]) failed |= json_object_set_new(dtypes, dtype_name((dtype)i), json_integer(used[i]));
    for (int i = 0; i < tensors_files(c->tensors); i++) {
        const char *path = tensors_file(c->tensors, i, &file_bytes);
        failed |= json_array_append_new(files, path_json(path));
        bytes += file_bytes;
    }
    /* Takes over the references also where one is NULL, and then fails. */
    json_t *object = json_pack(
        "{s:s,s:s,s:o,s:i,s:I,s:I,s:i,s:o,s:o,s:I,s:i,s:i,s:i,s:o,s:o}", "layout", layout, "variant",
        variant_of(c->variant)->name, "dims", dims_json(&c->dims), "action_dim", c->action_dim, "parameters",
        (json_int_t)c->parameters, "unused_parameters", (json_int_t)(elements - c->parameters), "tensors",
        count, "dtypes", dtypes, "files", files, "bytes", (json_int_t)bytes, "horizon", c->horizon, "steps",
        c->steps, "max_prompt", c->max_prompt, "defaults", describe_defaults(c), "rtc",
        describe_rtc(&c->rtc));
    const orbax *jax = orbax_of(c->tensors);
    json_t *folder;
    openpi_status status = orbax_describe(jax, &folder, error);
    if (status != OPENPI_OK) {
        json_decref(object);
        return status;
    }
    failed |= !object || (folder && json_object_set_new(object, "orbax", folder)) ||
              describe_lora(jax, object) || describe_adapter(c, object);
    if (failed) {
        json_decref(object);
        return report_no_memory(error, 4096, "a checkpoint's description");
    }
    *out = object;
    return OPENPI_OK;
}
