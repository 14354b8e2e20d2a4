/* openpi_inspect: what a checkpoint is, how its observations are prepared, and what it needs on each device. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/report.h"
#include "openpi_internal.h"

static const char *dtype_name(openpi_dtype type) { return type == OPENPI_F32 ? "f32" : "bf16"; }

/* Prices a default session, batch 1, on one device: weights are laid out but not loaded. */
static openpi_status price(const checkpoint *checkpoint, const backend *backend, const openpi_device *which, openpi_dtype type, json_t *out,
                           openpi_error *error) {
    openpi_engine engine = {.checkpoint = (struct checkpoint *)(uintptr_t)checkpoint, .dtype = type};
    uint64_t session = 0;
    openpi_status status = pool_create(1, 0, &engine.pool, error);
    if (status == OPENPI_OK) status = backend->open(which->name, &(device_options){.pool = engine.pool}, &engine.device, error);
    if (status == OPENPI_OK) status = model_measure(checkpoint, engine.device, type == OPENPI_F32 ? DTYPE_F32 : DTYPE_BF16, &engine.model, error);
    if (status == OPENPI_OK) status = openpi_session_bytes(&engine, NULL, &session, error);
    if (status == OPENPI_OK)
        json_array_append_new(out, json_pack("{s:s, s:s, s:s, s:I, s:I}", "device", which->name, "path", engine.device->path, "dtype",
                                             dtype_name(type), "weight_bytes", (json_int_t)engine.model->bytes, "session_bytes",
                                             (json_int_t)session));
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
                json_array_append_new(out, json_pack("{s:s, s:s}", "device", devices[j].name, "reason", devices[j].reason));
                continue;
            }
            TRY(price(checkpoint, backends[i], &devices[j], OPENPI_BF16, out, error));
            TRY(price(checkpoint, backends[i], &devices[j], OPENPI_F32, out, error));
        }
    }
    return OPENPI_OK;
}

/* How observations are prepared; where that cannot be told, the sentence that says why. */
static void describe_policy(const char *path, const openpi_policy_options *options, json_t *out) {
    openpi_policy *policy = NULL;
    openpi_policy_info info;
    openpi_error why;
    if (openpi_policy_open(path, options, &policy, &why) != OPENPI_OK) {
        json_object_set_new(out, "policy", json_pack("{s:s}", "reason", why.message));
        return;
    }
    openpi_policy_get_info(policy, &info);
    json_t *cameras = json_array();
    for (int c = 0; c < OPENPI_CAMERAS; c++) json_array_append_new(cameras, info.cameras[c][0] ? json_string(info.cameras[c]) : json_null());
    json_object_set_new(out, "policy",
                        json_pack("{s:s, s:o, s:i, s:i, s:i, s:i, s:b}", "robot", info.robot, "cameras", cameras, "state_length", info.state_length,
                                  "action_dim", info.action_dim, "horizon", info.horizon, "max_prompt", info.max_prompt, "prompt_state",
                                  info.prompt_state));
    openpi_policy_close(policy);
}

openpi_status openpi_inspect(const char *path, const openpi_policy_options *options, char **json, openpi_error *error) {
    checkpoint *checkpoint = NULL;
    json_t *root = NULL, *memory = json_array();
    if (!json || !memory) {
        json_decref(memory);
        return json ? report_no_memory(error, sizeof(json_t), "the description") : report(error, OPENPI_BAD_ARGUMENT, "inspect: json is NULL");
    }
    openpi_status status = checkpoint_open(path, options ? options->synthetic : NULL, &checkpoint, error);
    if (status == OPENPI_OK) status = checkpoint_describe(checkpoint, &root, error);
    if (status == OPENPI_OK) status = price_all(checkpoint, memory, error);
    if (status == OPENPI_OK) {
        describe_policy(path, options, root);
        json_object_set(root, "memory", memory);
        char *text = json_dumps(root, JSON_INDENT(2));
        if (text)
            *json = text;
        else
            status = report_no_memory(error, 4096, "the description");
    }
    json_decref(root);
    json_decref(memory);
    checkpoint_close(checkpoint);
    return status;
}
