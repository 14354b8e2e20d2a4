/* A tensor's way to its array: what tensors.c calls through source.h. */
#include <string.h>

#include "base/report.h"
#include "checkpoint/jax/orbax_array.h"
#include "checkpoint/source.h"

static dtype type_of(const tensor *tensor) { return ((const orbax_part *)tensor->place)->array->type; }

/* As the file has it. */
static dtype stored_type_of(const tensor *tensor) {
    return ((const orbax_part *)tensor->place)->array->zarr.type;
}

/* A sequential array is never in memory as a whole (the embedding table). */
static tensor_order order_of(const tensor *tensor) {
    const orbax_part *part = tensor->place;
    const orbax_array *a = part->array;
    return (tensor_order){.array = a->stage || a->sequential ? a : NULL,
                          .stage = a->stage ? a->stage + orbax_part_layer(part) : 0,
                          .sequential = a->sequential};
}

static openpi_status hold_layer(const tensor *tensor, const decode_watch *watch, openpi_error *error) {
    const orbax_part *part = tensor->place;
    orbax_array *a = part->array;
    if (!a->stage) return OPENPI_OK;
    return orbax_array_hold(a, orbax_part_layer(part), watch, error);
}

static void release_array(const tensor *tensor) {
    if (order_of(tensor).array) orbax_array_release(((const orbax_part *)tensor->place)->array);
}

static void keep_array(const tensor *tensor) { ((const orbax_part *)tensor->place)->array->kept = 1; }

static int has_lora(const tensor *tensor) { return ((const orbax_part *)tensor->place)->array->lora != NULL; }

/* The tensor must be held, or sequential. */
static void copy_part(const tensor *tensor, uint64_t from, size_t bytes, void *out) {
    const orbax_part *part = tensor->place;
    orbax_array *a = part->array;
    const char *data = orbax_part_data(part);
    openpi_error error = OPENPI_ERROR_INIT;
    if (data) {
        memcpy(out, data + from, bytes);
        return;
    }
    openpi_status status = a->sequential
                               ? orbax_array_read(a, from, bytes, out, &error)
                               : report(&error, OPENPI_BAD_ARGUMENT,
                                        "array \"%s\" is read before its layer was decoded", a->zarr.name);
    if (status == OPENPI_OK) return;
    memset(out, 0, bytes);
    first_failure_keep(a->failure, &error);
}

const tensor_source orbax_source = {.bytes = copy_part,
                                    .type = type_of,
                                    .stored_type = stored_type_of,
                                    .order = order_of,
                                    .hold = hold_layer,
                                    .release = release_array,
                                    .keep = keep_array,
                                    .has_lora = has_lora};
