/* What an adapter changes, as JSON for openpi_inspect. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/adapter/adapter.h"

enum { LAYERS = 1024, NAME_BYTES = 256 };

/* Modules whose names differ in the layer only, of one rank and factor. */
typedef struct group {
    char module[NAME_BYTES];     /* "….layers.*.self_attn.q_proj"                                         */
    int rank, layered;
    double factor;
    unsigned char layers[LAYERS];
} group;

/* "….layers.3.self_attn.q_proj.weight" -> "….layers.*.self_attn.q_proj"; the layer, -1: it has none. */
static int module_of(const char *target, char module[NAME_BYTES]) {
    static const char mark[] = ".layers.";
    const char *found = strstr(target, mark), *end = strrchr(target, '.');
    char *after = NULL;
    long layer = found ? strtol(found + sizeof mark - 1, &after, 10) : -1;
    if (!end) end = target + strlen(target);
    if (!after || *after != '.' || layer < 0 || layer >= LAYERS) {
        snprintf(module, NAME_BYTES, "%.*s", (int)(end - target), target);
        return -1;
    }
    snprintf(module, NAME_BYTES, "%.*s*%.*s", (int)(found - target + (int)sizeof mark - 1), target,
             (int)(end - after), after);
    return (int)layer;
}

/* "0-3, 5" */
static json_t *layers_json(const unsigned char *layers) {
    char text[2 * LAYERS] = "";
    size_t used = 0;
    for (int first = 0, last; first < LAYERS; first = last + 1) {
        last = first;
        if (!layers[first]) continue;
        while (last + 1 < LAYERS && layers[last + 1]) last++;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", used ? ", " : "", first);
        if (used < sizeof text && last > first)
            used += (size_t)snprintf(text + used, sizeof text - used, "-%d", last);
        if (used >= sizeof text - 16) break;
    }
    return json_string(text);
}

static json_t *group_json(const group *g) {
    return json_pack("{s:s,s:o,s:i,s:f}", "module", g->module, "layers",
                     g->layered ? layers_json(g->layers) : json_null(), "rank", g->rank, "factor",
                     g->factor);
}

/* The groups of all pairs that are applied, in the order of the file; `count` of them. NULL: no memory. */
static group *find_groups(const adapter *adapter, int *count) {
    int changes = adapter_count(adapter);
    group *groups = calloc((size_t)changes + 1, sizeof *groups);
    *count = 0;
    for (int i = 0; i < changes && groups; i++) {
        char module[NAME_BYTES];
        double factor;
        int rank = adapter_rank(adapter, i, &factor), at = 0;
        if (!rank || !adapter_applied(adapter, i)) continue;
        int layer = module_of(adapter_target(adapter, i), module);
        while (at < *count && (strcmp(groups[at].module, module) || groups[at].rank != rank ||
                               groups[at].factor < factor || groups[at].factor > factor))
            at++;
        if (at == *count) {
            snprintf(groups[at].module, sizeof groups[at].module, "%s", module);
            groups[at].rank = rank;
            groups[at].factor = factor;
            ++*count;
        }
        groups[at].layered = layer >= 0;
        if (layer >= 0) groups[at].layers[layer] = 1;
    }
    return groups;
}

json_t *adapter_describe(const adapter *adapter) {
    int count, unused = 0, failed = 0;
    group *groups = find_groups(adapter, &count);
    json_t *modules = groups ? json_array() : NULL, *replaced = json_array();
    for (int i = 0; i < count && modules; i++)
        failed |= json_array_append_new(modules, group_json(&groups[i]));
    for (int i = 0; i < adapter_count(adapter); i++) {
        double factor;
        if (!adapter_applied(adapter, i)) unused++;
        else if (!adapter_rank(adapter, i, &factor))
            failed |= json_array_append_new(replaced, json_string(adapter_target(adapter, i)));
    }
    free(groups);
    json_t *out = json_pack("{s:o,s:o,s:i}", "modules", modules, "replaced", replaced, "unused", unused);
    if (!failed) return out;
    json_decref(out);
    return NULL;
}
