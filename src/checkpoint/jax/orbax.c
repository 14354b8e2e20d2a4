/* From a folder of arrays to a list of tensors, and the stages in which they are in memory. */
#include "checkpoint/jax/orbax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/first_failure.h"
#include "base/notes.h"
#include "base/report.h"
#include "base/threads.h"
#include "base/utf8.h"
#include "checkpoint/jax/ocdbt.h"
#include "checkpoint/jax/orbax_array.h"
#include "checkpoint/jax/orbax_folder.h"
#include "checkpoint/jax/orbax_gaps.h"
#include "checkpoint/source.h"

struct orbax {
    char *folder;
    values *values;
    orbax_array arrays[MOST_ARRAYS];
    int count, stages;
    int without_lora, left_out;  /* left_out: arrays of LoRA                                              */
    orbax_gaps gaps;             /* what is not there                                                     */
    first_failure failure;       /* the first failed read                                                 */
};

/* Layers of matrices of the vision tower come first, then those of both stacks of Gemma together. */
static void set_stages(orbax *o) {
    int vision = 0, language = 0;
    for (int i = 0; i < o->count; i++) {
        const orbax_array *a = &o->arrays[i];
        int *most = array_rule_vision(a->rule) ? &vision : &language;
        if (orbax_array_is_stacked(a) && a->layers > *most) *most = a->layers;
    }
    for (int i = 0; i < o->count; i++) {
        orbax_array *a = &o->arrays[i];
        if (orbax_array_is_stacked(a)) a->stage = array_rule_vision(a->rule) ? 1 : 1 + vision;
    }
    o->stages = 1 + vision + language;
}

/* ---- opening ---- */

/* Where `tail` begins, if something stands before it and nothing after. */
static const char *tail_of(const char *key, const char *tail) {
    size_t length = strlen(key), end = strlen(tail);
    return length > end && !strcmp(key + length - end, tail) ? key + length - end : NULL;
}

/* "params.PaliGemma.img.head.kernel.value" without its ends, or NULL. */
static const char *array_name(const char *key, char *name, size_t bytes) {
    static const char head[] = "params.";
    const char *end = tail_of(key, "/.zarray");
    if (!end || strncmp(key, head, sizeof head - 1)) return NULL;
    key += sizeof head - 1;
    snprintf(name, bytes, "%.*s", (int)(end - key), key);
    const char *value = tail_of(name, ".value");
    if (value) name[value - name] = 0;
    return name;
}

/* -1: it is not there. */
static int find_array(const orbax *o, const char *name) {
    int i = 0;
    while (i < o->count && strcmp(o->arrays[i].rule->array, name)) i++;
    return i < o->count ? i : -1;
}

static openpi_status add_array(orbax *o, const char *key, const char *name, openpi_error *error) {
    const array_rule *rule = array_rule_find(name);
    char prefix[300];
    if (!rule)
        return report(error, OPENPI_UNSUPPORTED, "%s: array \"%s\" is none of a π0 or π0.5 checkpoint",
                      o->folder, name);
    if (find_array(o, name) >= 0)
        return report(error, OPENPI_BAD_FILE, "%s: array \"%s\" is there twice", o->folder, name);
    snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(key) - strlen("/.zarray")), key);
    orbax_array *a = &o->arrays[o->count++];
    TRY(orbax_array_open(rule, o->values, prefix, a, error));
    a->failure = &o->failure;
    return OPENPI_OK;
}

/* A factor of a LoRA pair, beside the array that it changes, which was added before. */
static openpi_status add_lora(orbax *o, const char *key, const char *name, openpi_error *error) {
    char target[300], prefix[300];
    int which, at = lora_names(name, target, sizeof target, &which) ? find_array(o, target) : -1;
    if (at < 0)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: array \"%s\" is LoRA of an unknown target, expected a q_einsum, kv_einsum, "
                      "attn_vec_einsum, gating_einsum or linear that is there",
                      o->folder, name);
    orbax_array *a = &o->arrays[at];
    if (!a->lora && !(a->lora = calloc(1, sizeof *a->lora)))
        return report_no_memory(error, sizeof *a->lora, name);
    a->type = DTYPE_F32;
    snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(key) - strlen("/.zarray")), key);
    return lora_add(a->lora, which, o->values, prefix, error);
}

static openpi_status add_arrays(orbax *o, tensors *list, openpi_error *error) {
    char name[256];
    for (int i = 0; i < values_count(o->values); i++) {
        const char *key = values_at(o->values, i)->key;
        if (tail_of(key, "/zarr.json"))
            return report(error, OPENPI_UNSUPPORTED,
                          "%s: \"%s\" is an array of zarr v3, expected v2: restore the checkpoint with Orbax "
                          "and save it with use_zarr3=False, as openpi does",
                          o->folder, key);
        if (array_name(key, name, sizeof name) && !strstr(name, "lora"))
            TRY(add_array(o, key, name, error));
    }
    if (!o->count) return report(error, OPENPI_BAD_FILE, "%s: no array of a checkpoint is in it", o->folder);
    for (int i = 0; i < values_count(o->values); i++) {
        const char *key = values_at(o->values, i)->key;
        if (!array_name(key, name, sizeof name) || !strstr(name, "lora")) continue;
        if (o->without_lora) o->left_out++;
        else TRY(add_lora(o, key, name, error));
    }
    for (int i = 0; i < o->count; i++) {
        orbax_array *a = &o->arrays[i];
        if (a->lora) TRY(lora_check(a->lora, &a->zarr, error));
        TRY(orbax_array_tensors(a, list, o->folder, error));
    }
    set_stages(o);
    return OPENPI_OK;
}

/* All chunks of all arrays that are used. */
static openpi_status find_gaps(orbax *o, missing_chunks missing, openpi_error *error) {
    TRY(orbax_gaps_begin(&o->gaps, o->folder, o->values, o->without_lora, error));
    for (int i = 0; i < o->count; i++) {
        const orbax_array *a = &o->arrays[i];
        orbax_gaps_look(&o->gaps, &a->zarr);
        for (int f = 0; a->lora && f < 2; f++) orbax_gaps_look(&o->gaps, &a->lora->factors[f].zarr);
    }
    return orbax_gaps_end(&o->gaps, missing, error);
}

static void release_orbax(void *store) {
    orbax *o = store;
    for (int i = 0; i < o->count; i++) orbax_array_release(&o->arrays[i]);
}

static void close_orbax(void *store) {
    orbax *o = store;
    for (int i = 0; i < o->count; i++) orbax_array_close(&o->arrays[i]);
    values_close(o->values);
    free(o->folder);
    free(o);
}

static openpi_status open_orbax(orbax *o, const char *params, const orbax_options *options, tensors *list,
                                openpi_error *error) {
    o->without_lora = options->without_lora;
    o->folder = strdup(params);
    if (!o->folder) return report_no_memory(error, strlen(params), params);
    TRY(orbax_folder_is_database(params) ? ocdbt_open(params, &o->values, error)
                                         : orbax_folder_list(params, &o->values, error));
    TRY(add_arrays(o, list, error));
    if (options->missing != MISSING_UNSEEN) TRY(find_gaps(o, options->missing, error));
    if (o->gaps.chunks) notes_add(options->notes, 1, "%s", o->gaps.why);
    return OPENPI_OK;
}

/* ---- stages ---- */

typedef struct staging {
    orbax *orbax;
    int stage;
    first_failure failure;
} staging;

/* Stage 0 stays; of the others an array holds the layer of this stage or none. */
static void stage_task(void *argument, int which, int worker) {
    staging *s = argument;
    orbax_array *a = &s->orbax->arrays[which];
    openpi_error error = OPENPI_ERROR_INIT;
    int layer = a->stage ? s->stage - a->stage : 0;
    (void)worker;
    if (first_failure_there(&s->failure)) return;
    if (a->sequential || (!a->stage && s->stage)) return;
    if (layer < 0 || layer >= a->layers) {
        orbax_array_drop(a);
        return;
    }
    if (orbax_array_hold(a, layer, NULL, &error) != OPENPI_OK) first_failure_keep(&s->failure, &error);
}

static int orbax_stages(const void *store) { return ((const orbax *)store)->stages; }

/* Arrays side by side; pool NULL: by the calling thread. Back to an earlier stage decodes from the start. */
static openpi_status stage_orbax(void *store, int stage, pool *pool, openpi_error *error) {
    orbax *o = store;
    staging s = {.orbax = o, .stage = stage};
    if (pool)
        pool_run(pool, stage_task, &s, o->count);
    else
        for (int i = 0; i < o->count; i++) stage_task(&s, i, 0);
    return first_failure_report(&s.failure, error);
}

static void round_orbax(void *store, int on) {
    orbax *o = store;
    for (int i = 0; i < o->count; i++) orbax_array_round(&o->arrays[i], on);
}

/* ---- the list's ---- */

static openpi_status check_orbax(const void *store, openpi_error *error) {
    return first_failure_report(&((const orbax *)store)->failure, error);
}

static int orbax_files(const void *store) { return values_files(((const orbax *)store)->values); }

static const char *orbax_file(const void *store, int index, uint64_t *bytes) {
    const char *path = values_file(((const orbax *)store)->values, index);
    openpi_error unused = OPENPI_ERROR_INIT;
    file_reader reader;
    *bytes = 0;
    if (file_reader_open(path, &reader, &unused) != OPENPI_OK) return path;     /* decoding will say so */
    *bytes = reader.bytes;
    file_reader_close(&reader);
    return path;
}

static const tensor_store store_functions = {.close = close_orbax,
                                             .close_files = release_orbax,
                                             .check = check_orbax,
                                             .stages = orbax_stages,
                                             .stage = stage_orbax,
                                             .round = round_orbax,
                                             .files = orbax_files,
                                             .file = orbax_file};

openpi_status orbax_read(tensors *list, const char *params, const orbax_options *options,
                         openpi_error *error) {
    orbax *o = calloc(1, sizeof *o);
    if (!o) return report_no_memory(error, sizeof *o, params);
    TRY(tensors_own(list, &store_functions, o, error));
    return open_orbax(o, params, options, list, error);
}

const orbax *orbax_of(const tensors *list) { return tensors_owned(list, &store_functions); }

/* ---- what it is ---- */

int orbax_lora(const orbax *o, int index, const char **array, int *layers) {
    for (int i = 0; o && i < o->count; i++) {
        if (!o->arrays[i].lora || index--) continue;
        *array = o->arrays[i].rule->array;
        *layers = o->arrays[i].layers;
        return (int)o->arrays[i].lora->rank;
    }
    return 0;
}

int orbax_missing_chunks(const orbax *o, const char **why) {
    *why = o ? o->gaps.why : "";
    return o ? o->gaps.chunks : 0;
}

int orbax_lora_left_out(const orbax *o) { return o ? o->left_out : 0; }

int orbax_vision_heads(const orbax *o) {
    int query = o ? find_array(o, array_vision_heads) : -1;
    return query < 0 ? 0 : (int)o->arrays[query].zarr.shape[2];
}

openpi_status orbax_describe(const orbax *o, json_t **out, openpi_error *error) {
    long long *steps, step;
    int count, arrays = 0;
    char name[256];
    *out = NULL;
    if (!o) return OPENPI_OK;
    openpi_status status = orbax_folder_steps(o->folder, &steps, &count, &step, error);
    for (int i = 0; i < values_count(o->values); i++)
        arrays += array_name(values_at(o->values, i)->key, name, sizeof name) != NULL;
    int valid = utf8_valid_prefix(o->folder, strlen(o->folder)) == strlen(o->folder);
    json_t *list = json_array(), *told = json_pack("{s:s,s:i}", "params",
                                                   valid ? o->folder : "a name that is not UTF-8", "arrays",
                                                   arrays);
    int failed = !list || !told;
    if (o->gaps.chunks && !failed)
        failed = json_object_set_new(told, "missing_chunks", json_integer(o->gaps.chunks));
    for (int i = 0; status == OPENPI_OK && i < count; i++)
        failed |= json_array_append_new(list, json_integer(steps[i]));
    if (status == OPENPI_OK && count && !failed)
        failed = json_object_set_new(told, "step", json_integer(step)) | json_object_set(told, "steps", list);
    json_decref(list);
    free(steps);
    if (status == OPENPI_OK && failed) status = report_no_memory(error, 4096, o->folder);
    if (status == OPENPI_OK) *out = told;
    else json_decref(told);
    return status;
}
