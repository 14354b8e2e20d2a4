/* Reading, writing and looking up tuning tables. Every field of a file is checked: a table decides what code runs. */
#include "model/tuning.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/report.h"

enum { MOST_ENTRIES = 8192, MOST = 1 << 28 };

/* ---- words ------------------------------------------------------------------------------------------------ */

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

/* Where a required word stands in a list. */
static openpi_status read_word(const json_t *object, const char *key, const char *name, const char *const *words, int count,
                               int needed, int *out, openpi_error *error) {
    const char *text = NULL;
    TRY(json_get_string(object, key, name, &text, error));
    if (!text && !needed) return OPENPI_OK;
    for (int i = 0; text && i < count; i++) {
        if (!words[i] || strcmp(words[i], text)) continue;
        *out = i;
        return OPENPI_OK;
    }
    return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s%.40s%s, expected a name such as \"%s\"", name, key, text ? "\"" : "",
                  text ? text : "absent", text ? "\"" : "", words[0]);
}

static openpi_status read_text(const json_t *object, const char *key, const char *name, int needed, char *out, size_t bytes,
                               openpi_error *error) {
    const char *text = NULL;
    TRY(json_get_string(object, key, name, &text, error));
    if (!text && !needed) return OPENPI_OK;
    if (!text || !*text || strlen(text) >= bytes)
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected a text of 1 to %zu bytes", name, key,
                      !text    ? "absent"
                      : !*text ? "empty"
                               : "too long",
                      bytes - 1);
    strcpy(out, text);
    return OPENPI_OK;
}

static openpi_status read_time(const json_t *object, const char *key, const char *name, double *out, openpi_error *error) {
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value)) return OPENPI_OK;
    if (!json_is_number(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected microseconds from 0 on", name, key, json_kind(value));
    *out = json_number_value(value);
    if (!(*out >= 0) || !isfinite(*out))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %g, expected microseconds from 0 on", name, key, *out);
    return OPENPI_OK;
}

/* ---- entries ---------------------------------------------------------------------------------------------- */

/* The whole numbers of a key, in the file's order. */
static const struct {
    const char *name;
    size_t offset;
    int low, high, needed;
} numbers[] = {
    {"m", offsetof(tuning_key, m), 1, MOST, 1},
    {"n", offsetof(tuning_key, n), 0, MOST, 0},
    {"k", offsetof(tuning_key, k), 0, MOST, 0},
    {"heads", offsetof(tuning_key, heads), 0, MOST, 0},
    {"head_dim", offsetof(tuning_key, head_dim), 0, MOST, 0},
    {"capacity", offsetof(tuning_key, capacity), 0, MOST, 0},
    {"layers", offsetof(tuning_key, layers), 0, 3, 0},
    {"cameras", offsetof(tuning_key, cameras), 0, OPENPI_CAMERAS, 0},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static int *number_of(tuning_key *key, int i) { return (int *)(void *)((char *)key + numbers[i].offset); }

openpi_status tuning_entry_parse(const json_t *object, const char *name, tuning_entry *out, openpi_error *error) {
    tuning_entry e = {0};
    int op = 0, form = 0, norm = 0, type = 0, weights = 0;
    if (!json_is_object(object)) return report(error, OPENPI_BAD_FILE, "%s is %s, expected an object", name, json_kind(object));
    TRY(read_word(object, "op", name, op_names, OP_KINDS, 1, &op, error));
    TRY(read_word(object, "form", name, form_names, 3, 0, &form, error));
    TRY(read_word(object, "norm", name, norm_names, 3, 0, &norm, error));
    TRY(read_word(object, "dtype", name, type_names, 2, 1, &type, error));
    weights = weight_of((dtype)type);
    TRY(read_word(object, "weights", name, weight_names, WEIGHT_TYPES, 0, &weights, error));
    e.key = (tuning_key){
        .op = (op_kind)op,
        .form = (matrix_form)form,
        .norm = (norm_kind)norm,
        .type = (dtype)type,
        .weights = (weight_type)weights,
    };
    for (int i = 0; i < NUMBERS; i++) {
        *number_of(&e.key, i) = numbers[i].low - 1;
        TRY(json_get_int(object, numbers[i].name, name, numbers[i].low, numbers[i].high, number_of(&e.key, i), error));
        if (*number_of(&e.key, i) >= numbers[i].low) continue;
        if (numbers[i].needed)
            return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is absent, expected an integer from %d to %d", name,
                          numbers[i].name, numbers[i].low, numbers[i].high);
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
static int put(json_t *object, const char *key, json_t *value) { return json_object_set_new(object, key, value); }

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
    if (key->weights != weight_of(key->type)) failed |= put(o, "weights", json_string(weight_names[key->weights]));
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

/* ---- tables ----------------------------------------------------------------------------------------------- */

tuning_machine tuning_machine_of(device *device, int threads) {
    tuning_machine machine = {.threads = device->backend->allocate_host ? 0 : threads};
    device_facts facts = {0};
    if (device->backend->facts && device->backend->facts(device, &facts, NULL) == OPENPI_OK)
        snprintf(machine.device, sizeof machine.device, "%s", facts.name);
    if (!machine.device[0]) snprintf(machine.device, sizeof machine.device, "%s", device->backend->name);
    snprintf(machine.path, sizeof machine.path, "%.*s", (int)strcspn(device->path, "+"), device->path);
    return machine;
}

void tuning_close(tuning *t) {
    if (!t) return;
    free(t->entries);
    free(t);
}

openpi_status tuning_add(tuning *t, const tuning_entry *entry, openpi_error *error) {
    if (t->count == t->capacity) {
        int capacity = t->capacity ? 2 * t->capacity : 64;
        tuning_entry *more = realloc(t->entries, (size_t)capacity * sizeof *more);
        if (!more) return report_no_memory(error, (size_t)capacity * sizeof *more, "the tuning table");
        t->entries = more;
        t->capacity = capacity;
    }
    t->entries[t->count++] = *entry;
    return OPENPI_OK;
}

static openpi_status parse_entries(const json_t *list, const char *name, tuning *t, openpi_error *error) {
    if (!json_is_array(list))
        return report(error, OPENPI_BAD_FILE, "%s: \"entries\" is %s, expected an array", name, json_kind(list));
    if (json_array_size(list) > MOST_ENTRIES)
        return report(error, OPENPI_BAD_FILE, "%s: \"entries\" has %zu entries, expected at most %d", name, json_array_size(list),
                      MOST_ENTRIES);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[200];
        tuning_entry entry;
        snprintf(where, sizeof where, "%.160s: entries[%zu]", name, i);
        TRY(tuning_entry_parse(json_array_get(list, i), where, &entry, error));
        for (int j = 0; j < t->count; j++)
            if (tuning_same(&t->entries[j].key, &entry.key))
                return report(error, OPENPI_BAD_FILE, "%s has the shape of entries[%d], expected every shape once", where, j);
        TRY(tuning_add(t, &entry, error));
    }
    return OPENPI_OK;
}

static openpi_status parse_head(const json_t *root, const char *name, const tuning_machine *machine, tuning_machine *found,
                                openpi_error *error) {
    const char *kind = NULL, *version = NULL;
    int format = 0;
    if (!json_is_object(root)) return report(error, OPENPI_BAD_FILE, "%s is %s, expected an object", name, json_kind(root));
    TRY(json_get_string(root, "kind", name, &kind, error));
    if (!kind || strcmp(kind, "tuning"))
        return report(error, OPENPI_BAD_FILE, "%s: \"kind\" is %.40s, expected \"tuning\" (a file of openpi tune)", name,
                      kind ? kind : "absent");
    TRY(json_get_int(root, "format", name, 0, 1 << 20, &format, error));
    if (format != TUNING_FORMAT)
        return report(error, OPENPI_BAD_FILE, "%s: \"format\" is %d, expected %d", name, format, TUNING_FORMAT);
    TRY(json_get_string(root, "openpi", name, &version, error));
    if (!version || strcmp(version, openpi_version()))
        return report(error, OPENPI_BAD_FILE, "%s: \"openpi\" is %.40s, expected \"%s\": tune again with this version", name,
                      version ? version : "absent", openpi_version());
    TRY(read_text(root, "device", name, 1, found->device, sizeof found->device, error));
    TRY(read_text(root, "path", name, 1, found->path, sizeof found->path, error));
    TRY(json_get_int(root, "threads", name, 0, 1 << 16, &found->threads, error));
    if (!machine) return OPENPI_OK;
    if (strcmp(found->device, machine->device))
        return report(error, OPENPI_BAD_FILE, "%s: \"device\" is \"%s\", expected \"%s\": a table is for one device", name,
                      found->device, machine->device);
    if (strcmp(found->path, machine->path))
        return report(error, OPENPI_BAD_FILE, "%s: \"path\" is \"%s\", expected \"%s\", the kernels in use", name, found->path,
                      machine->path);
    if (found->threads != machine->threads)
        return report(error, OPENPI_BAD_FILE, "%s: \"threads\" is %d, expected %d, the threads in use", name, found->threads,
                      machine->threads);
    return OPENPI_OK;
}

openpi_status tuning_parse(const json_t *root, const char *name, const tuning_machine *machine, tuning **out,
                           openpi_error *error) {
    tuning_machine found = {0};
    TRY(parse_head(root, name, machine, &found, error));
    tuning *t = calloc(1, sizeof *t);
    if (!t) return report_no_memory(error, sizeof *t, "the tuning table");
    t->machine = found;
    snprintf(t->source, sizeof t->source, "%s", name);
    openpi_status status = parse_entries(json_object_get(root, "entries"), name, t, error);
    if (status == OPENPI_OK) *out = t;
    else tuning_close(t);
    return status;
}

openpi_status tuning_read(const char *path, const tuning_machine *machine, tuning **out, openpi_error *error) {
    json_t *root = NULL;
    TRY(json_read(path, &root, error));
    openpi_status status = tuning_parse(root, path, machine, out, error);
    json_decref(root);
    return status;
}

/* A shipped table of another machine or an older version is none for this one; only want of memory is a failure. What is not
 * even for the device is not read further than its head, as tuning_json writes it. */
openpi_status tuning_shipped(const tuning_machine *machine, tuning **out, openpi_error *error) {
    enum { HEAD = 300 };
    char device[sizeof machine->device + 20], head[HEAD + 1];
    snprintf(device, sizeof device, "\"device\": \"%s\"", machine->device);
    *out = NULL;
    for (const tuning_text *t = tuning_texts; t->text && !*out; t++) {
        json_t *root = NULL;
        snprintf(head, sizeof head, "%.*s", t->end - t->text < HEAD ? (int)(t->end - t->text) : HEAD, t->text);
        if (!strstr(head, device)) continue;
        openpi_status status = json_parse(t->text, (size_t)(t->end - t->text), "built in", &root, error);
        if (status == OPENPI_OK) status = tuning_parse(root, "built in", machine, out, error);
        json_decref(root);
        if (status == OPENPI_NO_MEMORY) return status;
    }
    return OPENPI_OK;
}

json_t *tuning_json(const tuning *t) {
    json_t *root = json_object(), *entries = json_array();
    int failed = !root || !entries;
    failed |= put(root, "kind", json_string("tuning"));
    failed |= put(root, "format", json_integer(TUNING_FORMAT));
    failed |= put(root, "openpi", json_string(openpi_version()));
    failed |= put(root, "device", json_string(t->machine.device));
    failed |= put(root, "path", json_string(t->machine.path));
    failed |= put(root, "threads", json_integer(t->machine.threads));
    for (int i = 0; i < t->count && !failed; i++) failed |= json_array_append_new(entries, tuning_entry_json(&t->entries[i]));
    failed |= put(root, "entries", entries);
    if (!failed) return root;
    json_decref(root);
    return NULL;
}

/* ---- shapes ----------------------------------------------------------------------------------------------- */

static tuning_key matrix_key(tuning_key key, const row_set *rows, const matrix *w, norm_kind norm) {
    key.m = rows->capacity;
    key.n = w->n;
    key.k = w->k;
    key.form = w->form;
    key.heads = w->heads;
    key.head_dim = w->head_dim;
    key.weights = w->type;
    key.norm = norm;
    return key;
}

tuning_key tuning_key_of(const op *op) {
    tuning_key key = {.op = op->kind, .type = op->type, .weights = weight_of(op->type)};
    switch (op->kind) {
    case OP_PATCH_EMBED: return matrix_key(key, &op->patch_embed.rows, &op->patch_embed.weight, NORM_NONE);
    case OP_NORM_LINEAR: return matrix_key(key, &op->norm_linear.rows, &op->norm_linear.weight, op->norm_linear.norm.kind);
    case OP_LINEAR_RESIDUAL: return matrix_key(key, &op->linear_residual.rows, &op->linear_residual.weight, NORM_NONE);
    case OP_NORM_QKV: return matrix_key(key, &op->norm_qkv.rows, &op->norm_qkv.weight, op->norm_qkv.norm.kind);
    case OP_STATE_EMBED: return matrix_key(key, &op->state_embed.rows, &op->state_embed.weight, NORM_NONE);
    case OP_VELOCITY: return matrix_key(key, &op->velocity.rows, &op->velocity.weight, op->velocity.norm.kind);
    case OP_ACTION_EMBED:
        key = matrix_key(key, &op->action_embed.rows, &op->action_embed.in, NORM_NONE);
        key.layers = action_embed_products(&op->action_embed);
        return key;
    case OP_EMBED_TEXT:
        key.m = op->embed_text.rows.capacity;
        key.n = op->embed_text.table.k;
        return key;
    case OP_IMAGE_ATTENTION:
        key.m = op->image_attention.rows.capacity;
        key.heads = op->image_attention.heads;
        key.head_dim = op->image_attention.head_dim;
        return key;
    case OP_CACHE_ATTENTION:
        key.m = op->cache_attention.rows.capacity;
        key.heads = op->cache_attention.heads;
        key.head_dim = op->cache_attention.cache.head_dim;
        key.capacity = op->cache_attention.cache.capacity;
        return key;
    default: return key;         /* the parts that fused ops are made of have one way                     */
    }
}

int tuning_same(const tuning_key *a, const tuning_key *b) {
    return a->op == b->op && a->form == b->form && a->norm == b->norm && a->type == b->type && a->weights == b->weights &&
           a->m == b->m && a->n == b->n && a->k == b->k && a->heads == b->heads && a->head_dim == b->head_dim &&
           a->capacity == b->capacity && a->layers == b->layers && a->cameras == b->cameras;
}

const tuning_entry *tuning_find(const tuning *t, const tuning_key *shape, int cameras) {
    tuning_key key = *shape;
    for (int pass = 0; pass < 2; pass++) {
        key.cameras = pass ? 0 : cameras;
        for (int i = 0; i < t->count; i++)
            if (tuning_same(&t->entries[i].key, &key)) return &t->entries[i];
    }
    return NULL;
}

int tuning_choice(const device *device, const op *op, const char *name) {
    candidate list[TUNING_CANDIDATES];
    int count = device->backend->candidates ? device->backend->candidates(device, op, list, TUNING_CANDIDATES) : 0;
    for (int i = 0; i < count && i < TUNING_CANDIDATES; i++)
        if (!strcmp(list[i].name, name)) return i + 1;
    return 0;
}
