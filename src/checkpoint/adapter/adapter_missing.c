/* What an adapter's config promises and its file lacks: peft runs the base there, with a warning. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/notes.h"
#include "checkpoint/adapter/adapter.h"
#include "checkpoint/adapter/adapter_config.h"
#include "checkpoint/tensors_build.h"

/* 1: a change's module has the name, or a part of its path that ends with it. */
static int has_module(const adapter *a, const char *name) {
    char module[ADAPTER_NAME_BYTES];
    size_t length = strlen(name);
    for (int i = 0; i < adapter_count(a); i++) {
        adapter_module(a, i, module);
        for (const char *at = strstr(module, name); at && length; at = strstr(at + 1, name))
            if ((at == module || at[-1] == '.') && (!at[length] || at[length] == '.')) return 1;
    }
    return 0;
}

static void tell_list(const adapter *a, const char *field, notes *notes) {
    const adapter_config *c = adapter_settings(a);
    const json_t *list = json_object_get(c->root, field);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name && !has_module(a, name))
            notes_add(notes, 1,
                      "%s: \"%s\" has \"%.64s\", but adapter_model.safetensors has no tensor of it: the "
                      "base's weights are run", c->path, field, name);
    }
}

/* The name with the number of its layer changed by `step`. 0: it has no layer, or none before it. */
static int move_layer(const char *name, int step, char out[ADAPTER_NAME_BYTES]) {
    static const char mark[] = ".layers.";
    const char *found = strstr(name, mark);
    char *after;
    if (!found) return 0;
    long layer = strtol(found + sizeof mark - 1, &after, 10) + step;
    if (layer < 0 || *after != '.') return 0;
    return snprintf(out, ADAPTER_NAME_BYTES, "%.*s%ld%s", (int)(found - name + (int)sizeof mark - 1), name,
                    layer, after) < ADAPTER_NAME_BYTES;
}

static int is_changed(const adapter *a, const char *target) {
    for (int i = 0; i < adapter_count(a); i++)
        if (!strcmp(adapter_target(a, i), target)) return 1;
    return 0;
}

/* A layer beside a changed one, which the config changes too and the file does not. */
static int lacks(const adapter *a, const tensors *base, int index, int step,
                 char module[ADAPTER_NAME_BYTES]) {
    char own[ADAPTER_NAME_BYTES], target[ADAPTER_NAME_BYTES];
    const char *field;
    adapter_module(a, index, own);
    return move_layer(own, step, module) && move_layer(adapter_target(a, index), step, target) &&
           tensors_index(base, target) >= 0 && !is_changed(a, target) &&
           adapter_config_changes(adapter_settings(a), module, &field) == 1;
}

static void tell_layers(const adapter *a, const tensors *base, notes *notes) {
    char module[ADAPTER_NAME_BYTES], first[ADAPTER_NAME_BYTES] = "";
    int count = 0;
    for (int i = 0; i < adapter_count(a); i++) {
        double factor;
        if (!adapter_rank(a, i, &factor)) continue;
        for (int step = -1; step <= 1; step += 2) {
            if (!lacks(a, base, i, step, module) || !strcmp(module, first)) continue;
            if (!count++) memcpy(first, module, sizeof first);
        }
    }
    if (count)
        notes_add(notes, 1,
                  "%s: \"target_modules\" has \"%.120s\"%s, but adapter_model.safetensors has no tensor of "
                  "it: the base's weights are run", adapter_settings(a)->path, first,
                  count > 1 ? " and others" : "");
}

void adapter_tell(const adapter *a, const tensors *base, notes *notes) {
    const adapter_config *c = adapter_settings(a);
    tell_list(a, "target_modules", notes);
    tell_list(a, "modules_to_save", notes);
    tell_layers(a, base, notes);
    if (!(c->alpha > 0) && !c->alpha_count)
        notes_add(notes, 1, "%s: \"lora_alpha\" is %g: its pairs change %s", c->path, c->alpha,
                  c->alpha < 0 ? "the weights the other way round" : "nothing");
}
