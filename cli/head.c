#include "head.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "input.h"
#include "checkpoint/variant.h"

json_t *head_json(const char *kind) {
    char date[32] = "";
    struct tm utc;
    time_t now = time(NULL);
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_pack("{s:s,s:i,s:s,s:s,s:s}", "kind", kind, "format", HEAD_FORMAT, "version",
                     openpi_version(), "revision", openpi_revision, "date", date);
}

void head_hardware(const char *device, const char *name, char text[HARDWARE_TEXT]) {
    enum { DEVICES_MAX = 64 };
    openpi_device devices[DEVICES_MAX] = {OPENPI_DEVICE_INIT};
    int count = 0;
    snprintf(text, HARDWARE_TEXT, "%s", name);
    if (*name) return;
    openpi_devices(devices, DEVICES_MAX, &count, NULL);
    for (int i = 0; i < count && i < DEVICES_MAX; i++)
        if (!strcmp(devices[i].name, device)) snprintf(text, HARDWARE_TEXT, "%s", devices[i].description);
}

json_t *head_text(const char *text) {
    json_t *value = text ? json_string(text) : NULL;
    return value ? value : json_null();
}

json_t *head_model(const openpi_engine_info *info, const char *source) {
    return json_pack("{s:o,s:s,s:I}", "source", head_text(source), "variant",
                     variant_of(info->variant)->name, "parameters", (json_int_t)info->parameters);
}

json_t *head_machine(const openpi_engine_info *info, const char *hardware) {
    const char *dtype = info->dtype == OPENPI_F32 ? "f32" : "bf16", *weights = machine_weights(info);
    json_t *machine = json_pack("{s:s,s:s,s:s,s:s,s:i,s:s,s:s}", "device", info->device, "hardware", hardware,
                                "path", info->path, "dtype", dtype, "threads", info->threads, "without",
                                info->without, "table", input_shown(info->table));
    if (weights) json_object_set_new(machine, "weights", json_string(weights));
    if (info->w8)
        json_object_set_new(machine, "w8",
                            json_pack("{s:s,s:f,s:f,s:b}", "measure", info->w8_measure, "error",
                                      info->w8_error, "bound", info->w8_bound, "error_accepted",
                                      info->error_accepted));
    return machine;
}

void head_lost(json_t *machine, const openpi_engine_info *info, const openpi_session_info *s) {
    json_t *w8 = json_object_get(machine, "w8");
    if (!w8 || !strstr(info->formats, "+static")) return;
    json_object_set_new(w8, "clipped", json_integer((json_int_t)s->w8_clipped));
    json_object_set_new(w8, "clipped_rows", json_integer((json_int_t)s->w8_clipped_rows));
    json_object_set_new(w8, "not_finite", json_integer((json_int_t)s->w8_not_finite));
}
