#include "checkpoint/adapter/adapter.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/finite.h"
#include "base/first_failure.h"
#include "base/report.h"
#include "checkpoint/adapter/adapter_change.h"
#include "checkpoint/safetensors/safetensors.h"
#include "checkpoint/source.h"
#include "checkpoint/tensor_names.h"
#include "checkpoint/tensors_build.h"

enum { NAME_BYTES = ADAPTER_NAME_BYTES };

/* ---- names ---- */

static const char prefix[] = "base_model.model.", tail_a[] = ".lora_A.weight", tail_b[] = ".lora_B.weight";

/* 1: the name ends with `tail`, and something stands before it. */
static int ends(const char *name, const char *tail) {
    size_t length = strlen(name), end = strlen(tail);
    return length > end && !strcmp(name + length - end, tail);
}

/* "base_model.model.model.state_proj.lora_A.weight" -> "state_proj.weight": without the last `tail` bytes,
 * peft's prefix, and LeRobot's, where the name has it. 0: too long. */
static int target_of(const char *name, size_t tail, const char *with, char target[NAME_BYTES]) {
    name = without_lerobot_prefix(name + sizeof prefix - 1);
    int length = (int)strlen(name) - (int)tail;
    if (length <= 0) return 0;
    return snprintf(target, NAME_BYTES, "%.*s%s", length, name, with) < NAME_BYTES;
}

/* "base_model.model.model.state_proj.lora_A.weight" -> "model.state_proj", as peft's config names it. A whole
 * tensor's is what stands before its last dot. 0: too long. */
static int module_of(const tensor *t, char module[NAME_BYTES]) {
    const char *name = t->name + sizeof prefix - 1, *dot = strrchr(name, '.');
    size_t length = ends(t->name, tail_a) ? strlen(name) - (sizeof tail_a - 1)
                    : dot                 ? (size_t)(dot - name)
                                          : 0;
    return length && length < NAME_BYTES && snprintf(module, NAME_BYTES, "%.*s", (int)length, name) > 0;
}

/* ---- opening ---- */

static openpi_status bad_name(const tensor *t, openpi_error *error) {
    return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is no name of peft's, expected \"%s….weight\"",
                  t->file, t->name, prefix);
}

static openpi_status check_matrix(const tensor *t, openpi_error *error) {
    char shape[128];
    if (t->type != DTYPE_F32 && t->type != DTYPE_BF16 && t->type != DTYPE_F16)
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is of %s, expected F32, BF16 or F16",
                      t->file, t->name, dtype_name(t->type));
    if (t->rank != 2 || !t->count)
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\" has shape %s, expected two positive dimensions", t->file, t->name,
                      tensor_shape_text(t->rank, t->shape, shape, sizeof shape));
    return OPENPI_OK;
}

/* The other half of a pair has the same name but for its letter. */
static openpi_status find_half(const adapter *adapter, const tensor *half, const tensor **other,
                               openpi_error *error) {
    char name[2 * NAME_BYTES];
    int is_a = ends(half->name, tail_a);
    size_t length = strlen(half->name) - (sizeof tail_a - 1);
    snprintf(name, sizeof name, "%.*s%s", (int)length, half->name, is_a ? tail_b : tail_a);
    *other = tensors_find(adapter->tensors, name);
    if (*other) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is half of a LoRA pair, its lora_%c is missing",
                  half->file, half->name, is_a ? 'B' : 'A');
}

static openpi_status check_halves(const adapter_change *c, openpi_error *error) {
    TRY(check_matrix(c->a, error));
    TRY(check_matrix(c->b, error));
    if (c->a->shape[0] == c->b->shape[1]) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is of rank %lld, expected %lld as \"%s\" is",
                  c->b->file, c->b->name, (long long)c->b->shape[1], (long long)c->a->shape[0], c->a->name);
}

/* Without a config the rank is the factors' own. */
static openpi_status check_bare_pair(const adapter *adapter, adapter_change *c, openpi_error *error) {
    TRY(check_halves(c, error));
    c->rank = (int)c->a->shape[0];
    c->factor = adapter->alpha / c->rank;
    return OPENPI_OK;
}

static openpi_status check_pair(const adapter *adapter, adapter_change *c, const char *module,
                                openpi_error *error) {
    const char *field;
    if (!adapter->config.root) return check_bare_pair(adapter, c, error);
    if (!adapter_config_changes(&adapter->config, module, &field))
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\" is there, but \"%s\" of %s leaves its module out", c->a->file,
                      c->a->name, field, adapter->config.path);
    int expected = adapter_config_rank(&adapter->config, module, &field);
    TRY(check_halves(c, error));
    if (c->a->shape[0] != expected)
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is of rank %lld, expected %d, \"%s\" of %s",
                      c->a->file, c->a->name, (long long)c->a->shape[0], expected, field,
                      adapter->config.path);
    c->rank = expected;
    c->factor = adapter_config_factor(&adapter->config, module);
    return OPENPI_OK;
}

static openpi_status add_pair(adapter *adapter, const tensor *t, openpi_error *error) {
    const tensor *other;
    char module[NAME_BYTES];
    TRY(find_half(adapter, t, &other, error));
    if (ends(t->name, tail_b)) return OPENPI_OK;               /* added with its A */
    adapter_change *c = &adapter->changes[adapter->count++];
    *c = (adapter_change){.a = t, .b = other, .failure = &adapter->failure};
    if (!target_of(t->name, sizeof tail_a - 1, ".weight", c->target) || !module_of(t, module))
        return bad_name(t, error);
    return check_pair(adapter, c, module, error);
}

/* A whole tensor: of "modules_to_save", whose wrapper's name older versions of peft leave in. */
static openpi_status add_whole(adapter *adapter, const tensor *t, openpi_error *error) {
    static const char *const wrapped[] = {".modules_to_save.default.weight", ".modules_to_save.weight"};
    static const char *const wrapped_bias[] = {".modules_to_save.default.bias", ".modules_to_save.bias"};
    adapter_change *c = &adapter->changes[adapter->count++];
    size_t tail = 0;
    const char *with = "";
    *c = (adapter_change){.a = t, .failure = &adapter->failure};
    for (int i = 0; i < 2 && !tail; i++) {
        if (ends(t->name, wrapped[i])) tail = strlen(wrapped[i]), with = ".weight";
        else if (ends(t->name, wrapped_bias[i])) tail = strlen(wrapped_bias[i]), with = ".bias";
    }
    if (!target_of(t->name, tail, with, c->target)) return bad_name(t, error);
    if (tail || !adapter->config.root || adapter_config_saves(&adapter->config, t->name)) return OPENPI_OK;
    if (ends(t->name, ".bias") && adapter->config.biases)
        return report(error, OPENPI_UNSUPPORTED,
                      "%s: \"bias\" is not \"none\" and tensor \"%s\" is there, expected an adapter without "
                      "biases",
                      adapter->config.path, t->name);
    return report(error, OPENPI_UNSUPPORTED,
                  "%s: tensor \"%s\" is neither lora_A.weight nor lora_B.weight of a module, nor of one in "
                  "\"modules_to_save\" of %s",
                  t->file, t->name, adapter->config.path);
}

openpi_status adapter_make_room(adapter *adapter, int count, openpi_error *error) {
    size_t bytes = (size_t)count * sizeof *adapter->changes;
    adapter->changes = malloc(bytes ? bytes : 1);
    return adapter->changes ? OPENPI_OK : report_no_memory(error, bytes, adapter->folder);
}

int adapter_has_peft_name(const tensor *t) {
    return !strncmp(t->name, prefix, sizeof prefix - 1) || ends(t->name, tail_a) || ends(t->name, tail_b);
}

openpi_status adapter_add_peft(adapter *adapter, const tensor *t, openpi_error *error) {
    if (strncmp(t->name, prefix, sizeof prefix - 1)) return bad_name(t, error);
    if (ends(t->name, tail_a) || ends(t->name, tail_b)) return add_pair(adapter, t, error);
    return add_whole(adapter, t, error);
}

static openpi_status add_changes(adapter *adapter, openpi_error *error) {
    int count = tensors_count(adapter->tensors);
    TRY(adapter_make_room(adapter, count, error));
    for (int i = 0; i < count; i++) TRY(adapter_add_peft(adapter, tensors_at(adapter->tensors, i), error));
    if (count) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: no tensor is in its adapter_model.safetensors",
                  adapter->folder);
}

static openpi_status open_file(adapter *adapter, openpi_error *error) {
    char *path = file_join(adapter->folder, "adapter_model.safetensors"),
         *pickle = file_join(adapter->folder, "adapter_model.bin");
    openpi_status status;
    if (!path || !pickle) status = report_no_memory(error, strlen(adapter->folder) + 32, adapter->folder);
    else if (file_exists(path)) status = safetensors_open(path, &adapter->tensors, error);
    else
        status = report(error, OPENPI_NOT_FOUND,
                        "%s: adapter_config.json without adapter_model.safetensors%s", adapter->folder,
                        file_exists(pickle) ? ", but with adapter_model.bin, a Python pickle: save it with "
                                              "safe_serialization=True"
                                            : "");
    free(path);
    free(pickle);
    return status;
}

openpi_status adapter_open(const char *folder, adapter **out, openpi_error *error) {
    adapter *a = calloc(1, sizeof *a);
    if (!a) return report_no_memory(error, sizeof *a, folder);
    a->folder = strdup(folder);
    openpi_status status = a->folder ? OPENPI_OK : report_no_memory(error, strlen(folder) + 1, folder);
    if (status == OPENPI_OK) status = adapter_config_read(folder, &a->config, error);
    if (status == OPENPI_OK) status = open_file(a, error);
    if (status == OPENPI_OK) status = add_changes(a, error);
    if (status == OPENPI_OK) *out = a;
    else adapter_close(a);
    return status;
}

void adapter_close(adapter *adapter) {
    if (!adapter) return;
    adapter_release(adapter);
    tensors_close(adapter->tensors);
    adapter_config_close(&adapter->config);
    free(adapter->changes);
    free(adapter->folder);
    free(adapter);
}

/* ---- a list's ---- */

static void close_adapter(void *store) { adapter_close(store); }
static void release_adapter(void *store) { adapter_release(store); }
static openpi_status check_adapter(const void *store, openpi_error *error) {
    return adapter_check(store, error);
}

static openpi_status stage_adapter(void *store, int stage, struct pool *pool, openpi_error *error) {
    (void)stage, (void)pool;
    return adapter_stage(store, error);
}

static const tensor_store store_functions = {
    .close = close_adapter, .close_files = release_adapter, .check = check_adapter, .stage = stage_adapter};

openpi_status adapter_give(adapter *adapter, tensors *list, openpi_error *error) {
    return tensors_own(list, &store_functions, adapter, error);
}

const adapter *adapter_of(const tensors *list) { return tensors_owned(list, &store_functions); }

/* ---- applying ---- */

const char *adapter_folder(const adapter *adapter) { return adapter->folder; }
int adapter_count(const adapter *adapter) { return adapter->count; }
const char *adapter_target(const adapter *adapter, int index) { return adapter->changes[index].target; }
const tensors *adapter_list(const adapter *adapter) { return adapter->tensors; }
const tensor *adapter_tensor(const adapter *adapter, int index) { return adapter->changes[index].a; }
int adapter_applied(const adapter *adapter, int index) { return adapter->changes[index].applied; }

void adapter_module(const adapter *adapter, int index, char module[ADAPTER_NAME_BYTES]) {
    if (!module_of(adapter->changes[index].a, module)) module[0] = 0;
}

const struct adapter_config *adapter_settings(const adapter *adapter) { return &adapter->config; }

int adapter_rank(const adapter *adapter, int index, double *factor) {
    *factor = adapter->changes[index].factor;
    return adapter->changes[index].rank;
}

static openpi_status bad_shape(const tensor *found, const tensor *base, const char *expected,
                               openpi_error *error) {
    char shape[128], whole[128];
    return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" has shape %s, expected %s for \"%s\" %s",
                  found->file, found->name, tensor_shape_text(found->rank, found->shape, shape, sizeof shape),
                  expected, base->name, tensor_shape_text(base->rank, base->shape, whole, sizeof whole));
}

static openpi_status check_fits(const adapter_change *c, const tensor *t, openpi_error *error) {
    char expected[64];
    if (c->gemma.rule) return OPENPI_OK;                       /* checked by the model's sizes */
    if (t->rank != 2) return bad_shape(c->a, t, "a matrix", error);
    snprintf(expected, sizeof expected, "[%d, %lld]", c->rank, (long long)t->shape[1]);
    if (c->a->shape[1] != t->shape[1]) return bad_shape(c->a, t, expected, error);
    snprintf(expected, sizeof expected, "[%lld, %d]", (long long)t->shape[0], c->rank);
    if (c->b->shape[0] != t->shape[0]) return bad_shape(c->b, t, expected, error);
    return OPENPI_OK;
}

static openpi_status apply_pair(adapter_change *c, tensor *t, openpi_error *error) {
    TRY(check_fits(c, t, error));
    if (t->source && t->source->keep) t->source->keep(t);
    c->base = *t;
    t->type = DTYPE_F32;
    t->source = &adapter_source;
    t->place = c;
    return OPENPI_OK;
}

static openpi_status apply_whole(const adapter_change *c, tensor *t, openpi_error *error) {
    char expected[128];
    if (c->a->rank != t->rank || memcmp(c->a->shape, t->shape, (size_t)t->rank * sizeof *t->shape))
        return bad_shape(c->a, t, tensor_shape_text(t->rank, t->shape, expected, sizeof expected), error);
    if (c->a->type != DTYPE_F32 && c->a->type != DTYPE_BF16 && c->a->type != DTYPE_F16)
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is of %s, expected F32, BF16 or F16",
                      c->a->file, c->a->name, dtype_name(c->a->type));
    t->file = c->a->file;
    t->type = c->a->type;
    t->source = c->a->source;
    t->place = c->a->place;
    t->at = c->a->at;
    t->data = c->a->data;
    return OPENPI_OK;
}

openpi_status adapter_apply(adapter *adapter, int index, tensor *t, openpi_error *error) {
    adapter_change *c = &adapter->changes[index];
    for (int i = 0; i < index; i++)
        if (adapter->changes[i].applied && !strcmp(adapter->changes[i].target, c->target))
            return report(error, OPENPI_BAD_FILE,
                          "%s: tensors \"%s\" and \"%s\" both change \"%s\", expected one", c->a->file,
                          adapter->changes[i].a->name, c->a->name, t->name);
    TRY(c->b ? apply_pair(c, t, error) : apply_whole(c, t, error));
    c->applied = 1;
    return OPENPI_OK;
}

/* ---- the factors ---- */

static openpi_status read_factor(const tensor *t, float **out, openpi_error *error) {
    size_t count = (size_t)t->count;
    free(*out);
    float *values = *out = malloc(count * sizeof *values);
    if (!values) return report_no_memory(error, count * sizeof *values, t->name);
    tensor_read_f32(t, 0, t->count, values);
    if (all_finite_f32(values, count)) return OPENPI_OK;
    size_t at = 0, more = 0;
    while (isfinite(values[at])) at++;
    for (size_t i = at; i < count; i++) more += !isfinite(values[i]);
    return report(
        error, OPENPI_BAD_FILE,
        "%s: tensor \"%s\" has %zu element%s that %s not finite, the first is element %zu, which is %g",
        t->file, t->name, more, more == 1 ? "" : "s", more == 1 ? "is" : "are", at,
        isnan(values[at]) ? NAN : (double)values[at]);
}

/* A layer of stacked factors. */
static openpi_status read_layer(const adapter *adapter, adapter_change *c, openpi_error *error) {
    gemma_pair pair = {0};
    openpi_status status =
        gemma_factor_pair(&c->gemma, &adapter->dims, c->a, c->b, c->layer, c->part, &pair, error);
    free(c->a_values);
    free(c->b_values);
    c->a_values = pair.a;
    c->b_values = pair.b;
    c->rows = pair.rows;
    return status;
}

openpi_status adapter_stage(adapter *adapter, openpi_error *error) {
    for (int i = 0; i < adapter->count && !adapter->staged; i++) {
        adapter_change *c = &adapter->changes[i];
        if (!c->b || !c->applied) continue;
        if (c->gemma.rule) TRY(read_layer(adapter, c, error));
        else {
            TRY(read_factor(c->a, &c->a_values, error));
            TRY(read_factor(c->b, &c->b_values, error));
            c->rows = c->b->shape[0];
        }
    }
    adapter->staged = 1;
    return tensors_check(adapter->tensors, error);
}

void adapter_release(adapter *adapter) {
    for (int i = 0; i < adapter->count; i++) {
        free(adapter->changes[i].a_values);
        free(adapter->changes[i].b_values);
        adapter->changes[i].a_values = adapter->changes[i].b_values = NULL;
    }
    adapter->staged = 0;
    if (adapter->tensors) tensors_close_files(adapter->tensors);
}

openpi_status adapter_check(const adapter *adapter, openpi_error *error) {
    TRY(first_failure_report(&adapter->failure, error));
    return tensors_check(adapter->tensors, error);
}
