/* A configuration written to a file and read back: the options of the run, and the settings that were in
 * force.
 *
 * One table of options serves writing and reading, so that what is saved is what --best runs. Note: options
 * and settings differ. "threads 0" (all) is an option; "threads 16" is what was in force, and what a
 * comparison names. */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "input.h"

/* WORD_SET_…: in the file only where it is set, so that older files can be read. */
typedef enum saved_kind {
    WORD_TEXT, WORD_INT, WORD_FLAG, WORD_U64, WORD_DTYPE, WORD_SET_TEXT, WORD_SET_FLAG
} saved_kind;

#define AT(field) offsetof(bench_values, field)

/* `low` and `high` as the options of the same names have them. */
static const struct {
    const char *key;
    saved_kind kind;
    size_t offset;
    int low, high;
} saved[] = {
    {"checkpoint", WORD_TEXT, AT(checkpoint), 0, 0},
    {"synthetic", WORD_TEXT, AT(subject.synthetic), 0, 0},
    {"batch", WORD_TEXT, AT(batch), 0, 0},
    {"cameras", WORD_TEXT, AT(subject.cameras), 0, 0},
    {"prompt", WORD_INT, AT(subject.prompt), 0, 4096},
    {"horizon", WORD_INT, AT(subject.horizon), 1, OPENPI_MAX_HORIZON},
    {"steps", WORD_INT, AT(subject.steps), 1, OPENPI_MAX_STEPS},
    {"seed", WORD_U64, AT(subject.seed), 0, 0},
    {"changing_prompts", WORD_FLAG, AT(changing_prompts), 0, 1},
    {"warmup", WORD_INT, AT(warmup), 0, 100000},
    {"runs", WORD_INT, AT(runs), 1, 100000},
    {"device", WORD_TEXT, AT(subject.machine.device), 0, 0},
    {"dtype", WORD_DTYPE, AT(subject.machine.dtype), 0, 0},
    {"weights", WORD_SET_TEXT, AT(subject.machine.weights), 0, 0},
    {"threads", WORD_INT, AT(subject.machine.threads), 0, 1024},
    {"isa", WORD_TEXT, AT(subject.machine.isa), 0, 0},
    {"path", WORD_TEXT, AT(subject.machine.path), 0, 0},
    {"as", WORD_SET_TEXT, AT(subject.machine.as), 0, 0},
    {"without", WORD_TEXT, AT(subject.machine.without), 0, 0},
    {"table", WORD_TEXT, AT(subject.machine.table), 0, 0},
    {"pin", WORD_FLAG, AT(subject.machine.pin), 0, 1},
    {"adapter", WORD_SET_TEXT, AT(subject.lora.adapter), 0, 0},
    {"without_lora", WORD_SET_FLAG, AT(subject.lora.without_lora), 0, 1},
    {"missing_chunks_are_zero", WORD_SET_FLAG, AT(subject.lora.missing_chunks_are_zero), 0, 1},
};
enum { SAVED = sizeof saved / sizeof *saved };

static const char *dtype_name(int dtype) { return dtype == OPENPI_F32 ? "f32" : "bf16"; }

/* ---- writing -------------------------------------------------------------------------------------- */

json_t *bench_configuration_json(const bench_values *v) {
    json_t *root = json_object();
    for (int i = 0; i < SAVED; i++) {
        const void *field = (const char *)v + saved[i].offset;
        int is_text = saved[i].kind == WORD_TEXT || saved[i].kind == WORD_SET_TEXT;
        const char *text = is_text ? *(const char *const *)field : NULL;
        json_t *value = NULL;
        switch (saved[i].kind) {
        case WORD_TEXT: value = text ? json_string(text) : json_null(); break;
        case WORD_INT: value = json_integer(*(const int *)field); break;
        case WORD_FLAG: value = json_boolean(*(const int *)field); break;
        case WORD_U64: value = json_integer((json_int_t)*(const uint64_t *)field); break;
        case WORD_DTYPE: value = json_string(dtype_name(*(const int *)field)); break;
        case WORD_SET_TEXT:
            if (!text) continue;
            value = json_string(text);
            break;
        case WORD_SET_FLAG:
            if (!*(const int *)field) continue;
            value = json_true();
            break;
        }
        json_object_set_new(root, saved[i].key, value);
    }
    return root;
}

/* {"fused-qkv": true, …}: every optimisation there is, whether it is on. */
static json_t *switches_json(const char *without) {
    enum { SWITCHES_MAX = 64 };
    openpi_switch switches[SWITCHES_MAX] = {OPENPI_SWITCH_INIT};
    json_t *root = json_object();
    int count = 0;
    openpi_switches(switches, SWITCHES_MAX, &count, NULL);
    for (int i = 0; i < count && i < SWITCHES_MAX; i++) {
        size_t length = strlen(switches[i].name);
        int off = 0;
        for (const char *at = without; (at = strstr(at, switches[i].name)) != NULL; at += length)
            if ((at == without || at[-1] == ',') && (!at[length] || at[length] == ',')) off = 1;
        json_object_set_new(root, switches[i].name, json_boolean(!off));
    }
    return root;
}

json_t *bench_settings_json(const bench_job *j) {
    const openpi_engine_info *i = &j->subject.info;
    const machine_values *m = &j->v.subject.machine;
    const bench_outcome *first = &j->outcomes[0];
    const power_facts *f = power_get_facts(j->power);
    double core = first->energy.calls > 0 ? first->energy.core_mhz : first->after.core_mhz;
    double memory = first->energy.calls > 0 ? first->energy.memory_mhz : first->after.memory_mhz;
    json_t *settings =
        json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:i,s:s,s:b,s:s,s:s,s:b,s:o,s:f,s:f,s:f}", "version",
                  openpi_version(), "revision", openpi_revision, "device", m->device, "hardware",
                  j->subject.hardware, "driver", j->driver, "kernels", i->path, "threads", i->threads,
                  "dtype", dtype_name(i->dtype), "pin", m->pin, "table", input_shown(i->table), "table_hash",
                  j->table_hash, "graph", first->session.recorded, "switches", switches_json(i->without),
                  "power_limit_w", f->limit_w, "core_mhz", core, "memory_mhz", memory);
    if (machine_weights(i)) json_object_set_new(settings, "weights", json_string(machine_weights(i)));
    return settings;
}

/* ---- reading -------------------------------------------------------------------------------------- */

int bench_read_file(const char *path, json_t **root) {
    int end = json_open(&verb_bench, path, root);
    if (end != END_FINE) return end;
    const char *kind = json_string_value(json_object_get(*root, "kind"));
    if (strcmp(kind, "bench") && strcmp(kind, "best"))
        return input_error(&verb_bench,
                           "%s: its kind is %s, expected best or bench (of bench --save or --json)", path,
                           kind);
    end = json_format(&verb_bench, path, *root);
    if (end != END_FINE) return end;
    if (!json_array_size(json_object_get(*root, "batches")) || !json_is_object(json_object_get(*root, "settin"
                                                                                                      "gs")))
        return input_error(&verb_bench,
                           "%s: no batches or no settings in it, expected a file of bench --save or --json",
                           path);
    return END_FINE;
}

static int wrong(const char *path, int i, const char *expected) {
    return input_error(&verb_bench, "%s: configuration.%s is missing or wrong, expected %s", path,
                       saved[i].key, expected);
}

static int read_saved(bench_values *v, int i, const json_t *value, const char *path) {
    void *field = (char *)v + saved[i].offset;
    json_int_t number = json_integer_value(value);
    const char *text = json_string_value(value);
    switch (saved[i].kind) {
    case WORD_SET_TEXT:
        if (!value) return END_FINE; /* fall through */
    case WORD_TEXT:
        if (!text && !json_is_null(value)) return wrong(path, i, "a text or null");
        *(const char **)field = text;
        return END_FINE;
    case WORD_INT:
        if (!json_is_integer(value) || number < saved[i].low || number > saved[i].high)
            return input_error(&verb_bench,
                               "%s: configuration.%s is missing or wrong, expected a whole number from %d to "
                               "%d",
                               path, saved[i].key, saved[i].low, saved[i].high);
        *(int *)field = (int)number;
        return END_FINE;
    case WORD_SET_FLAG:
        if (!value) return END_FINE; /* fall through */
    case WORD_FLAG:
        if (!json_is_boolean(value)) return wrong(path, i, "true or false");
        *(int *)field = json_is_true(value);
        return END_FINE;
    case WORD_U64:
        if (!json_is_integer(value)) return wrong(path, i, "a whole number");
        *(uint64_t *)field = (uint64_t)number;
        return END_FINE;
    case WORD_DTYPE: break;
    }
    if (!text || (strcmp(text, "bf16") && strcmp(text, "f32"))) return wrong(path, i, "bf16 or f32");
    *(int *)field = strcmp(text, "f32") ? OPENPI_BF16 : OPENPI_F32;
    return END_FINE;
}

int bench_configure(bench_job *j, const json_t *root, const char *path) {
    const json_t *all = json_object_get(root, "configuration");
    int end = END_FINE;
    for (int i = 0; i < SAVED && end == END_FINE; i++)
        end = read_saved(&j->v, i, json_object_get(all, saved[i].key), path);
    if (end == END_FINE && !j->v.checkpoint == !j->v.subject.synthetic)
        end = input_error(&verb_bench, "%s: configuration has %s, expected a checkpoint or a synthetic model",
                          path, j->v.checkpoint ? "both models" : "no model");
    return end;
}
