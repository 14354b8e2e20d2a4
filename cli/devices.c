/* openpi devices: what this machine can compute with, and why not with the rest. */
#include <stdio.h>

#include "cli.h"
#include "table.h"

typedef struct devices_values {
    int json;
} devices_values;

enum { DEVICES_MAX = 64 };

/* A JSON string; device names and descriptions come from drivers. */
static void put_string(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\') printf("\\%c", *c);
        else if (*c < 0x20) printf("\\u%04x", *c);
        else putchar(*c);
    }
    putchar('"');
}

static void put_json(const openpi_device *devices, int count) {
    printf("[");
    for (int i = 0; i < count; i++) {
        const openpi_device *d = &devices[i];
        printf(i ? ",\n {\"name\": " : "\n {\"name\": ");
        put_string(d->name);
        printf(", \"description\": ");
        put_string(d->description);
        printf(", \"path\": ");
        put_string(d->path);
        printf(", \"memory_bytes\": %llu, \"usable\": %s, \"reason\": ", (unsigned long long)d->memory_bytes,
               d->usable ? "true" : "false");
        put_string(d->reason);
        printf("}");
    }
    printf("\n]\n");
}

static int devices_run(const void *values, char **positional, int count) {
    const devices_values *v = values;
    openpi_device devices[DEVICES_MAX];
    (void)positional;
    (void)count;
    int n = openpi_devices(devices, DEVICES_MAX);
    if (n > DEVICES_MAX) n = DEVICES_MAX;
    if (v->json) {
        put_json(devices, n);
        return END_FINE;
    }
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
        if (devices[i].memory_bytes) table_cell(t, "%.1f GB", (double)devices[i].memory_bytes / 1e9);
        else table_cell(t, "-");
        table_cell(t, "%s%s", devices[i].usable ? "yes" : "no: ", devices[i].usable ? "" : devices[i].reason);
    }
    table_print(t, stdout, 0);
    return END_FINE;
}

static const option_row options[] = {
    {OPTION_FLAG, "json", NULL, "print an array of objects instead of a table", offsetof(devices_values, json), 0, 0},
    {0},
};

static const example examples[] = {
    {"what could run here", "openpi devices"},
    {"the names alone", "openpi devices --json | jq -r '.[].name'"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"[options]", NULL};

const verb verb_devices = {
    .name = "devices",
    .summary = "what this machine can compute with",
    .synopsis = synopsis,
    .description = "Lists the devices that --device takes, the kernels that would run on each, and, for one that cannot be used, "
                   "the reason.",
    .options = options,
    .examples = examples,
    .values_bytes = sizeof(devices_values),
    .run = devices_run,
};
