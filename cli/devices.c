/* openpi devices: what this machine can compute with, and why not with the rest. */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "head.h"
#include "table.h"

typedef struct devices_values {
    int json;
} devices_values;

enum { DEVICES_MAX = 64 };

static int put_json(const openpi_device *devices, int count) {
    json_t *root = head_json("devices"), *list = json_array();
    for (int i = 0; i < count; i++) {
        const openpi_device *d = &devices[i];
        json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:I,s:b,s:b,s:s}", "name", d->name, "description",
                                              d->description, "path", d->path, "memory_bytes",
                                              (json_int_t)d->memory_bytes, "shared_memory",
                                              d->shared_memory, "usable", d->usable, "reason", d->reason));
    }
    json_object_set_new(root, "devices", list);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!text) return input_error(&verb_devices, "the devices cannot be written as JSON: out of memory");
    puts(text);                  /* outputs_finish says what writing said */
    free(text);
    return END_FINE;
}

static int devices_run(const void *values, char **positional, int count) {
    const devices_values *v = values;
    openpi_device devices[DEVICES_MAX] = {OPENPI_DEVICE_INIT};
    openpi_error error = OPENPI_ERROR_INIT;
    int n;
    (void)positional;
    (void)count;
    if (openpi_devices(devices, DEVICES_MAX, &n, &error) != OPENPI_OK)
        return library_error(&verb_devices, &error);
    if (n > DEVICES_MAX) n = DEVICES_MAX;
    if (v->json) return put_json(devices, n);
    table *t = table_create("lllrl");
    table_cell(t, "device");
    table_cell(t, "what it is");
    table_cell(t, "kernels");
    table_cell(t, "memory");
    table_cell(t, "usable");
    for (int i = 0; i < n; i++) {
        table_cell(t, "%s", devices[i].name);
        table_cell(t, "%s", devices[i].description);
        table_cell(t, "%s", devices[i].path);
        if (devices[i].memory_bytes)
            table_cell(t, "%.1f GB%s", (double)devices[i].memory_bytes / 1e9,
                       devices[i].shared_memory ? ", shared with the CPU" : "");
        else table_cell(t, "-");
        table_cell(t, "%s%s", devices[i].usable ? "yes" : "no: ", devices[i].usable ? "" : devices[i].reason);
    }
    table_print(t, stdout, 0);
    return END_FINE;
}

static const option_row options[] = {
    {OPTION_FLAG, "json", "[-]", "print JSON instead of a table", .offset = offsetof(devices_values, json)},
    {0},
};

static const example examples[] = {
    {"what could run here", "openpi devices"},
    {"the names alone", "openpi devices --json | jq -r '.devices[].name'"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"[options]", NULL};

const verb verb_devices = {
    .name = "devices",
    .summary = "what this machine can compute with",
    .synopsis = synopsis,
    .description = "Lists the devices that --device takes, the kernels that would run on each, and, for one "
                   "that cannot be used, "
                   "the reason.",
    .options = options,
    .examples = examples,
    .values_bytes = sizeof(devices_values),
    .run = devices_run,
};
