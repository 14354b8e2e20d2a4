/* Reading and writing tuning tables. Every field of a file is checked: a table decides what code runs. */
#include "tuning/tuning.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"

enum { MOST_ENTRIES = 8192, MOST = 1 << 28, HASH_DIGITS = 16 };

/* ---- names ------------------------------------------------------------------------------------------ */

static const char *const form_names[] = {"plain", "gated", "qkv"};
static const char *const norm_names[] = {"none", "layer", "rms"};
static const char *const type_names[] = {[DTYPE_F32] = "f32", [DTYPE_BF16] = "bf16"};
static const char *const weight_names[WEIGHT_TYPES] = {
#define X(constant, name, ...) [constant] = name,
    WEIGHT_LIST(X)
#undef X
};
static const char *const op_names[OP_KINDS] = {
#define X(kind, member, type) [kind] = #member,
    OP_LIST(X)
#undef X
};

/* The place of a name in a list. */
static openpi_status read_name(const json_t *object, const char *key, const char *name,
                               const char *const *names, int count, int needed, int *out,
                               openpi_error *error) {
    const char *text = NULL;
    TRY(json_get_string(object, key, name, &text, error));
    if (!text && !needed) return OPENPI_OK;
    for (int i = 0; text && i < count; i++) {
        if (!names[i] || strcmp(names[i], text)) continue;
        *out = i;
        return OPENPI_OK;
    }
    return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s%.40s%s, expected a name such as \"%s\"", name,
                  key, text ? "\"" : "", text ? text : "absent", text ? "\"" : "", names[0]);
}

static openpi_status read_text(const json_t *object, const char *key, const char *name, int needed, char *out,
                               size_t bytes, openpi_error *error) {
    const char *text = NULL;
    TRY(json_get_string(object, key, name, &text, error));
    if (!text && !needed) return OPENPI_OK;
    if (!text || !*text || strlen(text) >= bytes)
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected a text of 1 to %zu bytes", name,
                      key,
                      !text    ? "absent"
                      : !*text ? "empty"
                               : "too long",
                      bytes - 1);
    strcpy(out, text);
    return OPENPI_OK;
}

static openpi_status read_time(const json_t *object, const char *key, const char *name, double *out,
                               openpi_error *error) {
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value)) return OPENPI_OK;
    if (!json_is_number(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected microseconds from 0 on", name, key,
                      json_kind(value));
    *out = json_number_value(value);
    if (!(*out >= 0) || !isfinite(*out))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %g, expected microseconds from 0 on", name, key,
                      *out);
    return OPENPI_OK;
}

/* ---- entries ---------------------------------------------------------------------------------------- */

/* The whole numbers of a key, in the file's order. */
static const struct {
    const char *name;
    size_t offset;
    int low, high, needed;
} numbers[] = {
    {.name = "m", .offset = offsetof(tuning_key, m), .low = 1, .high = MOST, .needed = 1},
    {.name = "n", .offset = offsetof(tuning_key, n), .high = MOST},
    {.name = "k", .offset = offsetof(tuning_key, k), .high = MOST},
    {.name = "heads", .offset = offsetof(tuning_key, heads), .high = MOST},
    {.name = "head_dim", .offset = offsetof(tuning_key, head_dim), .high = MOST},
    {.name = "capacity", .offset = offsetof(tuning_key, capacity), .high = MOST},
    {.name = "layers", .offset = offsetof(tuning_key, layers), .high = 3},
    {.name = "cameras", .offset = offsetof(tuning_key, cameras), .high = OPENPI_CAMERAS},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static int *number_of(tuning_key *key, int i) { return (int *)(void *)((char *)key + numbers[i].offset); }

openpi_status tuning_entry_parse(const json_t *object, const char *name, tuning_entry *out,
                                 openpi_error *error) {
    tuning_entry e = {0};
    int op = 0, form = 0, norm = 0, type = 0, weights = 0;
    if (!json_is_object(object))
        return report(error, OPENPI_BAD_FILE, "%s is %s, expected an object", name, json_kind(object));
    TRY(read_name(object, "op", name, op_names, OP_KINDS, 1, &op, error));
    TRY(read_name(object, "form", name, form_names, 3, 0, &form, error));
    TRY(read_name(object, "norm", name, norm_names, 3, 0, &norm, error));
    TRY(read_name(object, "dtype", name, type_names, 2, 1, &type, error));
    weights = weight_of((dtype)type);
    TRY(read_name(object, "weights", name, weight_names, WEIGHT_TYPES, 0, &weights, error));
    e.key = (tuning_key){
        .op = (op_kind)op,
        .form = (matrix_form)form,
        .norm = (norm_kind)norm,
        .type = (dtype)type,
        .weights = (weight_type)weights,
    };
    for (int i = 0; i < NUMBERS; i++) {
        *number_of(&e.key, i) = numbers[i].low - 1;
        TRY(json_get_int(object, numbers[i].name, name, numbers[i].low, numbers[i].high, number_of(&e.key, i),
                         error));
        if (*number_of(&e.key, i) >= numbers[i].low) continue;
        if (numbers[i].needed)
            return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is absent, expected an integer from %d to %d",
                          name, numbers[i].name, numbers[i].low, numbers[i].high);
        *number_of(&e.key, i) = 0;
    }
    TRY(read_text(object, "choice", name, 1, e.choice, sizeof e.choice, error));
    TRY(read_time(object, "time_us", name, &e.time_us, error));
    TRY(read_text(object, "heuristic", name, 0, e.heuristic, sizeof e.heuristic, error));
    TRY(read_time(object, "heuristic_us", name, &e.heuristic_us, error));
    TRY(read_text(object, "runner_up", name, 0, e.runner_up, sizeof e.runner_up, error));
    TRY(read_time(object, "runner_up_us", name, &e.runner_up_us, error));
    TRY(json_get_bool(object, "confirmed", name, &e.confirmed, error));
    *out = e;
    return OPENPI_OK;
}

/* Takes `value` whatever happens. */
static int put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value);
}

static double rounded(double us) { return floor(us * 1000 + 0.5) / 1000; }

json_t *tuning_entry_json(const tuning_entry *e) {
    json_t *o = json_object();
    const tuning_key *key = &e->key;
    int failed = !o;
    failed |= put(o, "op", json_string(op_kind_name(key->op)));
    if (key->n && key->op != OP_EMBED_TEXT) {
        failed |= put(o, "form", json_string(form_names[key->form]));
        failed |= put(o, "norm", json_string(norm_names[key->norm]));
    }
    failed |= put(o, "dtype", json_string(type_names[key->type]));
    if (key->weights != weight_of(key->type))
        failed |= put(o, "weights", json_string(weight_names[key->weights]));
    for (int i = 0; i < NUMBERS; i++) {
        int value = *number_of((tuning_key *)(uintptr_t)key, i);
        if (value) failed |= put(o, numbers[i].name, json_integer(value));
    }
    failed |= put(o, "choice", json_string(e->choice));
    failed |= put(o, "time_us", json_real(rounded(e->time_us)));
    if (e->heuristic[0]) {
        failed |= put(o, "heuristic", json_string(e->heuristic));
        failed |= put(o, "heuristic_us", json_real(rounded(e->heuristic_us)));
    }
    if (e->runner_up[0]) {
        failed |= put(o, "runner_up", json_string(e->runner_up));
        failed |= put(o, "runner_up_us", json_real(rounded(e->runner_up_us)));
    }
    failed |= put(o, "confirmed", json_boolean(e->confirmed));
    if (!failed) return o;
    json_decref(o);
    return NULL;
}

/* ---- kernels ---------------------------------------------------------------------------------------- */

static uint64_t kernel_hash(const device *device, const char *choice) {
    return device->backend->kernel_hash ? device->backend->kernel_hash(device, choice) : 0;
}

int tuning_kernels_add(json_t *kernels, const device *device, const char *choice) {
    char text[HASH_DIGITS + 1];
    uint64_t hash = kernel_hash(device, choice);
    if (!hash) return 0;
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return put(kernels, choice, json_string(text));
}

int tuning_kernels_same(const json_t *kernels, const device *device, const char *choice) {
    const char *text = json_string_value(json_object_get(kernels, choice));
    return !text || strtoull(text, NULL, 16) == kernel_hash(device, choice);
}

openpi_status tuning_kernels_check(const json_t *kernels, const char *name, openpi_error *error) {
    const char *choice;
    json_t *value;
    if (!json_is_object(kernels))
        return report(error, OPENPI_BAD_FILE, "%s: \"kernels\" is %s, expected an object of hashes by choice",
                      name, kernels ? json_kind(kernels) : "absent");
    json_object_foreach((json_t *)(uintptr_t)kernels, choice, value) {
        const char *text = json_string_value(value);
        if (text && strlen(text) == HASH_DIGITS && strspn(text, "0123456789abcdef") == HASH_DIGITS) continue;
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"kernels\": \"%.60s\" is %s%.40s%s, expected %d hexadecimal digits", name, choice,
                      text ? "\"" : "", text ? text : json_kind(value), text ? "\"" : "", HASH_DIGITS);
    }
    return OPENPI_OK;
}

/* ---- tables ----------------------------------------------------------------------------------------- */

static openpi_status parse_entries(const json_t *list, const char *name, tuning *t, openpi_error *error) {
    if (!json_is_array(list))
        return report(error, OPENPI_BAD_FILE, "%s: \"entries\" is %s, expected an array", name,
                      json_kind(list));
    if (json_array_size(list) > MOST_ENTRIES)
        return report(error, OPENPI_BAD_FILE, "%s: \"entries\" has %zu entries, expected at most %d", name,
                      json_array_size(list), MOST_ENTRIES);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[200];
        tuning_entry entry;
        snprintf(where, sizeof where, "%.160s: entries[%zu]", name, i);
        TRY(tuning_entry_parse(json_array_get(list, i), where, &entry, error));
        for (int j = 0; j < t->count; j++)
            if (tuning_same(&t->entries[j].key, &entry.key))
                return report(error, OPENPI_BAD_FILE,
                              "%s has the shape of entries[%d], expected every shape once", where, j);
        TRY(tuning_add(t, &entry, error));
    }
    return OPENPI_OK;
}

/* Leaves out the entries whose kernels changed after they were timed. */
static void drop_changed(tuning *t, const json_t *kernels, const device *device) {
    char first[sizeof t->entries->choice] = "";
    int kept = 0, others = 0;
    for (int i = 0; i < t->count; i++) {
        const tuning_entry *e = &t->entries[i];
        if (tuning_kernels_same(kernels, device, e->choice)) {
            t->entries[kept++] = *e;
            continue;
        }
        if (!first[0]) memcpy(first, e->choice, sizeof first);
        others |= strcmp(first, e->choice) != 0;
    }
    if (kept < t->count)
        snprintf(t->ignored, sizeof t->ignored,
                 "%d of %d entries ignored: %s%s changed since the table was made", t->count - kept, t->count,
                 first, others ? " and others" : "");
    t->count = kept;
}

static openpi_status check_format(const json_t *root, const char *name, int older, openpi_error *error) {
    int format = 0;
    TRY(json_get_int(root, "format", name, 0, 1 << 20, &format, error));
    if (format == TUNING_FORMAT || (older && format == 1)) return OPENPI_OK;
    if (format == 1)
        return report(
            error, OPENPI_BAD_FILE,
            "%s: \"format\" is 1, which does not tell the kernels that were timed, expected %d: make a new "
            "table with openpi tune --out FILE",
            name, TUNING_FORMAT);
    return report(error, OPENPI_BAD_FILE, "%s: \"format\" is %d, expected %d", name, format, TUNING_FORMAT);
}

static openpi_status parse_head(const json_t *root, const char *name, const tuning_machine *machine,
                                int older, tuning_machine *found, openpi_error *error) {
    const char *kind = NULL;
    if (!json_is_object(root))
        return report(error, OPENPI_BAD_FILE, "%s is %s, expected an object", name, json_kind(root));
    TRY(json_get_string(root, "kind", name, &kind, error));
    if (!kind || strcmp(kind, "tuning"))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"kind\" is %.40s, expected \"tuning\" (a file of openpi tune)", name,
                      kind ? kind : "absent");
    TRY(check_format(root, name, older, error));
    TRY(read_text(root, "device", name, 1, found->device, sizeof found->device, error));
    TRY(read_text(root, "path", name, 1, found->path, sizeof found->path, error));
    TRY(json_get_int(root, "threads", name, 0, 1 << 16, &found->threads, error));
    if (!machine) return OPENPI_OK;
    if (strcmp(found->device, machine->device))
        return report(error, OPENPI_BAD_FILE,
                      "%s: \"device\" is \"%s\", expected \"%s\": a table is for one device", name,
                      found->device, machine->device);
    if (strcmp(found->path, machine->path))
        return report(error, OPENPI_BAD_FILE, "%s: \"path\" is \"%s\", expected \"%s\", the kernels in use",
                      name, found->path, machine->path);
    if (found->threads != machine->threads)
        return report(error, OPENPI_BAD_FILE, "%s: \"threads\" is %d, expected %d, the threads in use", name,
                      found->threads, machine->threads);
    return OPENPI_OK;
}

openpi_status tuning_parse(const json_t *root, const char *name, const tuning_machine *machine,
                           const device *device, tuning **out, openpi_error *error) {
    const json_t *kernels = json_object_get(root, "kernels");
    tuning_machine found = {0};
    TRY(parse_head(root, name, machine, !device, &found, error));
    if (device || kernels) TRY(tuning_kernels_check(kernels, name, error));
    tuning *t = calloc(1, sizeof *t);
    if (!t) return report_no_memory(error, sizeof *t, "the tuning table");
    t->machine = found;
    snprintf(t->source, sizeof t->source, "%s", name);
    openpi_status status = parse_entries(json_object_get(root, "entries"), name, t, error);
    if (status == OPENPI_OK && device) drop_changed(t, kernels, device);
    if (status == OPENPI_OK) *out = t;
    else tuning_close(t);
    return status;
}

openpi_status tuning_read(const char *path, const tuning_machine *machine, const device *device, tuning **out,
                          openpi_error *error) {
    json_t *root = NULL;
    TRY(json_read(path, &root, error));
    openpi_status status = tuning_parse(root, path, machine, device, out, error);
    json_decref(root);
    return status;
}

/* A shipped table of another machine is none for this one; only a lack of memory is a failure. A table of
 * another device is not read beyond its head, as tuning_json writes it. */
openpi_status tuning_shipped(const tuning_machine *machine, const device *device, tuning **out,
                             openpi_error *error) {
    enum { HEAD = 300 };
    char name[sizeof machine->device + 20], head[HEAD + 1];
    snprintf(name, sizeof name, "\"device\": \"%s\"", machine->device);
    *out = NULL;
    for (const tuning_text *t = tuning_texts; t->text && !*out; t++) {
        json_t *root = NULL;
        snprintf(head, sizeof head, "%.*s", t->end - t->text < HEAD ? (int)(t->end - t->text) : HEAD,
                 t->text);
        if (!strstr(head, name)) continue;
        openpi_status status = json_parse(t->text, (size_t)(t->end - t->text), "built in", &root, error);
        if (status == OPENPI_OK) status = tuning_parse(root, "built in", machine, device, out, error);
        json_decref(root);
        if (status == OPENPI_NO_MEMORY) return status;
    }
    return OPENPI_OK;
}

json_t *tuning_json(const tuning *t, const device *device) {
    json_t *root = json_object(), *kernels = json_object(), *entries = json_array();
    int failed = !root || !kernels || !entries;
    failed |= put(root, "kind", json_string("tuning"));
    failed |= put(root, "format", json_integer(TUNING_FORMAT));
    failed |= put(root, "openpi", json_string(openpi_version()));
    failed |= put(root, "device", json_string(t->machine.device));
    failed |= put(root, "path", json_string(t->machine.path));
    failed |= put(root, "threads", json_integer(t->machine.threads));
    for (int i = 0; i < t->count && !failed; i++) {
        failed |= tuning_kernels_add(kernels, device, t->entries[i].choice);
        failed |= json_array_append_new(entries, tuning_entry_json(&t->entries[i]));
    }
    failed |= put(root, "kernels", kernels);
    failed |= put(root, "entries", entries);
    if (!failed) return root;
    json_decref(root);
    return NULL;
}

