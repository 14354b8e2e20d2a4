/* Adapters that are no folder of peft's: tensors of a file or of a caller. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/report.h"
#include "checkpoint/adapter/adapter_change.h"
#include "checkpoint/tensor_names.h"

static const char alpha_name[] = "lora_alpha";

static int is_stacked(const tensor *t) { return gemma_factor_of(t->name).rule != NULL; }

int adapter_is(const tensors *list) {
    for (int i = 0; i < tensors_count(list); i++) {
        const tensor *t = tensors_at(list, i);
        if (adapter_has_peft_name(t) || is_stacked(t)) return 1;
    }
    return 0;
}

static int has_stacked(const tensors *list) {
    int stacked = 0;
    for (int i = 0; i < tensors_count(list); i++) stacked |= is_stacked(tensors_at(list, i));
    return stacked;
}

/* ---- peft's names ---- */

/* "lora_alpha" is a number of the whole adapter. */
static openpi_status read_alpha(adapter *a, openpi_error *error) {
    const tensor *t = tensors_find(a->tensors, alpha_name);
    float alpha = 0;
    if (!t)
        return report(error, OPENPI_BAD_FILE,
                      "%s: nothing says alpha, expected adapter_config.json in the file's folder, or the "
                      "tensor \"%s\", a number",
                      a->folder, alpha_name);
    if (t->count == 1) tensor_read_f32(t, 0, 1, &alpha);
    a->alpha = alpha;
    if (t->count == 1 && isfinite(alpha) && alpha != 0) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %g, the first of %lld numbers, expected one, "
                  "finite and not 0", a->folder, alpha_name, (double)alpha, (long long)t->count);
}

static openpi_status add_peft(adapter *a, openpi_error *error) {
    int count = tensors_count(a->tensors);
    if (!a->config.root) TRY(read_alpha(a, error));
    TRY(adapter_make_room(a, count, error));
    for (int i = 0; i < count; i++) {
        const tensor *t = tensors_at(a->tensors, i);
        int alpha = !a->config.root && !strcmp(t->name, alpha_name);
        if (!alpha) TRY(adapter_add_peft(a, t, error));
    }
    return OPENPI_OK;
}

/* ---- openpi's names ---- */

/* The name of the other half of a stacked pair. NULL: it is not there. */
static const tensor *other_half(const tensors *list, const tensor *t, int which) {
    char name[2 * ADAPTER_NAME_BYTES];
    char *letter = NULL;
    snprintf(name, sizeof name, "%s", t->name);
    for (char *at = name; (at = strstr(at, "lora_")); at++) letter = at + strlen("lora_");
    if (letter) *letter = which == FACTOR_A ? 'b' : 'a';
    return tensors_find(list, name);
}

static openpi_status check_type(const tensor *t, openpi_error *error) {
    if (t->type == DTYPE_F32 || t->type == DTYPE_BF16 || t->type == DTYPE_F16) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is of %s, expected F32, BF16 or F16", t->file,
                  t->name, dtype_name(t->type));
}

/* Every layer's change by a pair, of which t is a half. */
static openpi_status add_stacked(adapter *a, const tensor *t, openpi_error *error) {
    gemma_factor factor = gemma_factor_of(t->name), half = factor;
    const tensor *other = other_half(a->tensors, t, factor.which);
    int rank, other_rank;
    if (!other)
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\" is half of a LoRA pair, its lora_%c is missing", t->file, t->name,
                      factor.which == FACTOR_A ? 'b' : 'a');
    if (factor.which == FACTOR_B) return OPENPI_OK;            /* added with its a */
    half.which = FACTOR_B;
    TRY(check_type(t, error));
    TRY(check_type(other, error));
    TRY(gemma_factor_check(&factor, t, &a->dims, &rank, error));
    TRY(gemma_factor_check(&half, other, &a->dims, &other_rank, error));
    if (rank != other_rank)
        return report(error, OPENPI_BAD_FILE, "%s: tensor \"%s\" is of rank %d, expected %d as \"%s\" is",
                      t->file, other->name, other_rank, rank, t->name);
    for (int i = 0; i < a->dims.depth * gemma_factor_parts(&factor); i++) {
        adapter_change *c = &a->changes[a->count++];
        *c = (adapter_change){.a = t, .b = other, .gemma = factor, .rank = rank, .factor = 1,
                              .failure = &a->failure};
        c->layer = i / gemma_factor_parts(&factor);
        c->part = i % gemma_factor_parts(&factor);
        gemma_factor_target(&factor, c->layer, c->part, c->target);
    }
    return OPENPI_OK;
}

/* A weight of the checkpoint's name, which openpi trains beside the factors. */
static openpi_status add_replacement(adapter *a, const tensor *t, openpi_error *error) {
    adapter_change *c = &a->changes[a->count++];
    const char *name = without_lerobot_prefix(t->name);
    *c = (adapter_change){.a = t, .failure = &a->failure};
    if (!strcmp(name, alpha_name) || adapter_has_peft_name(t))
        return report(error, OPENPI_BAD_FILE,
                      "%s: tensor \"%s\" is there beside openpi's factors, which have no alpha and no names "
                      "of peft's",
                      t->file, t->name);
    if (snprintf(c->target, sizeof c->target, "%s", name) < (int)sizeof c->target) return OPENPI_OK;
    return report(error, OPENPI_BAD_FILE, "%s: the name of tensor \"%s\" is longer than %zu bytes", t->file,
                  t->name, sizeof c->target - 1);
}

static openpi_status add_gemma(adapter *a, openpi_error *error) {
    int count = tensors_count(a->tensors);
    TRY(adapter_make_room(a, count * 2 * a->dims.depth, error));
    for (int i = 0; i < count; i++) {
        const tensor *t = tensors_at(a->tensors, i);
        if (is_stacked(t)) TRY(add_stacked(a, t, error));
        else TRY(add_replacement(a, t, error));
    }
    return OPENPI_OK;
}

/* ---- opening ---- */

openpi_status adapter_open_list(tensors *list, const char *from, const char *folder, const openpi_dims *dims,
                                adapter **out, openpi_error *error) {
    adapter *a = calloc(1, sizeof *a);
    if (!a) {
        tensors_close(list);
        return report_no_memory(error, sizeof *a, from);
    }
    int stacked = has_stacked(list);
    a->tensors = list;
    a->dims = *dims;
    a->folder = strdup(from);
    openpi_status status = a->folder ? OPENPI_OK : report_no_memory(error, strlen(from) + 1, from);
    if (status == OPENPI_OK && folder && !stacked) status = adapter_config_read(folder, &a->config, error);
    if (status == OPENPI_OK) status = stacked ? add_gemma(a, error) : add_peft(a, error);
    if (status == OPENPI_OK) *out = a;
    else adapter_close(a);
    return status;
}
