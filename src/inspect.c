/* openpi_inspect: what a checkpoint is, how its observations are prepared, and what it needs on each device. */
#include <stdlib.h>
#include <string.h>

#include "base/boundary.h"
#include "base/json.h"
#include "base/report.h"
#include "openpi_internal.h"

/* A new value into an array, or under a key of an object; a NULL value or a failure is no memory. */
static openpi_status put(json_t *into, const char *key, json_t *value, openpi_error *error) {
    int failed = !value || (key ? json_object_set_new(into, key, value) : json_array_append_new(into, value));
    return failed ? report_no_memory(error, sizeof *value, "the description") : OPENPI_OK;
}

static const char *dtype_name(openpi_dtype type) { return type == OPENPI_F32 ? "f32" : "bf16"; }

/* Prices a default session, batch 1, on one device: weights are laid out but not loaded. */
static openpi_status price(const checkpoint *checkpoint, const backend *backend, const openpi_device *which, openpi_dtype type,
                           json_t *out, openpi_error *error) {
    openpi_engine engine = {.checkpoint = (struct checkpoint *)(uintptr_t)checkpoint, .dtype = type};
    uint64_t session = 0;
    openpi_status status = pool_create(1, 0, &engine.pool, error);
    if (status == OPENPI_OK) status = backend->open(which->name, &(device_options){.pool = engine.pool}, &engine.device, error);
    if (status == OPENPI_OK)
        status = model_measure(checkpoint, engine.device, type == OPENPI_F32 ? DTYPE_F32 : DTYPE_BF16, 0, &engine.model, error);
    if (status == OPENPI_OK) status = openpi_session_bytes(&engine, NULL, &session, error);
    if (status == OPENPI_OK)
        status = put(out, NULL,
                     json_pack("{s:s, s:s, s:s, s:I, s:I}", "device", which->name, "path", engine.device->path, "dtype",
                               dtype_name(type), "weight_bytes", (json_int_t)engine.model->bytes, "session_bytes",
                               (json_int_t)session),
                     error);
    model_close(engine.model);
    if (engine.device) backend->close(engine.device);
    pool_close(engine.pool);
    return status;
}

static openpi_status price_all(const checkpoint *checkpoint, json_t *out, openpi_error *error) {
    for (int i = 0; backends[i]; i++) {
        openpi_device devices[16];
        int count = backends[i]->devices(devices, 16);
        for (int j = 0; j < count && j < 16; j++) {
            if (!devices[j].usable) {
                TRY(put(out, NULL, json_pack("{s:s, s:s}", "device", devices[j].name, "reason", devices[j].reason), error));
                continue;
            }
            TRY(price(checkpoint, backends[i], &devices[j], OPENPI_BF16, out, error));
            TRY(price(checkpoint, backends[i], &devices[j], OPENPI_F32, out, error));
        }
    }
    return OPENPI_OK;
}

/* How observations are prepared; where that cannot be told, the sentence that says why. */
static openpi_status describe_policy(const char *path, const openpi_policy_options *options, json_t *out, openpi_error *error) {
    openpi_policy *policy = NULL;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_error why = OPENPI_ERROR_INIT;
    openpi_status status = openpi_policy_open(path, options, &policy, &why);
    if (status == OPENPI_NO_MEMORY) return report(error, status, "%s", why.message);
    if (status != OPENPI_OK) return put(out, "policy", json_pack("{s:s}", "reason", why.message), error);
    status = openpi_policy_get_info(policy, &info, error);
    openpi_policy_close(policy);
    TRY(status);
    TRY(put(out, "policy",
            json_pack("{s:s, s:i, s:i, s:i, s:i, s:b}", "robot", info.robot, "state_length", info.state_length, "action_dim",
                      info.action_dim, "horizon", info.horizon, "max_prompt", info.max_prompt, "prompt_state", info.prompt_state),
            error));
    json_t *cameras = json_array();
    TRY(put(json_object_get(out, "policy"), "cameras", cameras, error));
    for (int c = 0; c < OPENPI_CAMERAS; c++)
        TRY(put(cameras, NULL, info.cameras[c][0] ? json_string(info.cameras[c]) : json_null(), error));
    return OPENPI_OK;
}

openpi_status openpi_inspect(const char *path, const openpi_policy_options *options, char **json, openpi_error *error) {
    checkpoint *checkpoint = NULL;
    json_t *root = NULL, *memory;
    openpi_policy_options own;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    if (!json) return report(error, OPENPI_BAD_ARGUMENT, "inspect: json is NULL");
    TRY(BOUNDARY_TAKE(openpi_policy_options, options, &own, error));
    if (own.synthetic) {
        TRY(BOUNDARY_TAKE(openpi_synthetic, own.synthetic, &synthetic, error));
        own.synthetic = &synthetic;
    }
    openpi_status status = checkpoint_open(path, own.synthetic, &checkpoint, error);
    if (status == OPENPI_OK) status = checkpoint_describe(checkpoint, &root, error);
    if (status == OPENPI_OK) status = describe_policy(path, &own, root, error);
    if (status == OPENPI_OK) status = put(root, "memory", memory = json_array(), error);
    if (status == OPENPI_OK) status = price_all(checkpoint, memory, error);
    if (status == OPENPI_OK) {
        char *text = json_text(root, JSON_INDENT(2));
        if (text)
            *json = text;
        else
            status = report_no_memory(error, sizeof *root, "the description");
    }
    json_decref(root);
    checkpoint_close(checkpoint);
    return status;
}
