/* Finds and names weights that are NaN or infinite. */
#include "checkpoint/damage.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/finite.h"
#include "base/report.h"

enum { PIECE = 4096 };

void damage_look(dtype type, const void *values, size_t count, atomic_int *damaged) {
    if (!(type == DTYPE_BF16 ? all_finite_bf16(values, count) : all_finite_f32(values, count)))
        atomic_store(damaged, 1);
}

/* ---- naming ----------------------------------------------------------------------------------------- */

typedef struct damage {
    const checkpoint *checkpoint;
    dtype type;
    const tensor *first;  /* NULL: none yet */
    int64_t elements, at; /* bad elements of that tensor; the first one */
    float value;
    int more;  /* tensors */
    int stage; /* that is looked at */
} damage;

/* A value as it is kept in that type. */
static float kept(dtype type, float value) {
    return type == DTYPE_BF16  ? bf16_to_float(float_to_bf16(value))
           : type == DTYPE_F16 ? f16_to_float(float_to_f16(value))
                               : value;
}

static openpi_status scan(void *user, const char *name, int rank, const int64_t *shape, openpi_error *error) {
    damage *d = user;
    const tensor *t = tensors_find(d->checkpoint->tensors, name);
    int64_t elements = 0, at = 0;
    float values[PIECE], value = 0;
    (void)rank, (void)shape, (void)error;
    if (!t) t = d->checkpoint->embedding; /* it has two names */
    if (tensor_stage(t) != d->stage) return OPENPI_OK;
    for (int64_t first = 0; first < t->count; first += PIECE) {
        int64_t count = t->count - first < PIECE ? t->count - first : PIECE;
        tensor_read_f32(t, first, count, values);
        for (int64_t i = 0; i < count; i++) {
            if (isfinite(kept(d->type, values[i]))) continue;
            if (elements++) continue;
            at = first + i;
            value = isnan(values[i]) ? NAN : values[i];
        }
    }
    if (!elements) return OPENPI_OK;
    if (d->first) {
        d->more++;
        return OPENPI_OK;
    }
    d->first = t;
    d->elements = elements;
    d->at = at;
    d->value = value;
    return OPENPI_OK;
}

openpi_status damage_report(const checkpoint *checkpoint, dtype type, openpi_error *error) {
    damage d = {.checkpoint = checkpoint, .type = type};
    char more[64] = "";
    for (; d.stage < tensors_stages(checkpoint->tensors); d.stage++) {
        TRY(tensors_stage(checkpoint->tensors, d.stage, NULL, error));
        checkpoint_tensors(&checkpoint->dims, checkpoint->variant, scan, &d, NULL);
    }
    if (!d.first)
        return report(error, OPENPI_BAD_FILE, "%s: products of its weights are not finite in fp32",
                      checkpoint->name);
    if (d.more)
        snprintf(more, sizeof more, "; %d more tensor%s like it", d.more, d.more == 1 ? " is" : "s are");
    return report(error, OPENPI_BAD_FILE,
                  "%s: tensor \"%s\" has %" PRId64
                  " element%s that %s no finite %s, the first is element %" PRId64 ", which is %g%s",
                  d.first->file, d.first->name, d.elements, d.elements == 1 ? "" : "s",
                  d.elements == 1 ? "is" : "are", type == DTYPE_BF16  ? "bf16"
                  : type == DTYPE_F16 ? "f16"
                                      : "float",
                  d.at,
                  (double)d.value, more);
}
