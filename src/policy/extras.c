/* See extras.h. */
#include "policy/extras.h"

#include <math.h>
#include <string.h>

#include "base/report.h"
#include "policy/wire_parts.h"

enum { PREFIX = sizeof "openpi/" - 1, DESCRIPTION = 96 };

static openpi_status read_noise(const wire_field *field, extras *out, openpi_error *error) {
    char what[DESCRIPTION];
    int is_float = field->element == WIRE_F32 || field->element == WIRE_F64;
    if (field->kind != WIRE_ARRAY || field->rank != 2 || field->shape[1] != OPENPI_ACTION_DIM ||
        field->shape[0] < 1 || field->shape[0] > OPENPI_MAX_HORIZON || !is_float)
        return report(error, OPENPI_BAD_INPUT,
                      "\"%s\" of the request is %s, expected float32 [horizon,%d] with a horizon of 1 to %d",
                      field->key, wire_describe(field, what, sizeof what), OPENPI_ACTION_DIM,
                      OPENPI_MAX_HORIZON);
    for (int64_t i = 0; i < field->count; i++) {
        out->noise[i] = (float)wire_element_at(field->data, field->element, (size_t)i);
        if (!isfinite(out->noise[i]))
            return report(error, OPENPI_BAD_INPUT, "\"%s\" of the request: element %lld is %f, expected a "
                          "finite number", field->key, (long long)i, (double)out->noise[i]);
    }
    out->noise_rows = (int)field->shape[0];
    return OPENPI_OK;
}

static openpi_status read_deadline(const wire_field *field, extras *out, openpi_error *error) {
    char what[DESCRIPTION];
    if (field->kind != WIRE_NUMBER)
        return report(error, OPENPI_BAD_INPUT,
                      "\"%s\" of the request is %s, expected a number of milliseconds", field->key,
                      wire_describe(field, what, sizeof what));
    if (!(field->number > 0 && isfinite(field->number)))
        return report(error, OPENPI_BAD_INPUT,
                      "\"%s\" of the request is %g, expected a number of milliseconds above 0", field->key,
                      field->number);
    out->deadline_ms = field->number;
    return OPENPI_OK;
}

static const struct {
    const char *name;            /* after "openpi/"                                                        */
    openpi_status (*read)(const wire_field *field, extras *out, openpi_error *error);
} known[] = {{"noise", read_noise}, {"deadline_ms", read_deadline}};
enum { KNOWN = sizeof known / sizeof *known };

openpi_status extras_read(const wire_message *message, extras *out, openpi_error *error) {
    out->noise_rows = 0;
    out->deadline_ms = 0;
    for (int i = 0; i < wire_count(message); i++) {
        const wire_field *field = wire_at(message, i);
        int which = 0;
        if (strncmp(field->key, "openpi/", PREFIX)) continue;
        while (which < KNOWN && strcmp(field->key + PREFIX, known[which].name)) which++;
        if (which == KNOWN)
            return report(error, OPENPI_BAD_INPUT,
                          "the request has an unknown key \"%s\", known are openpi/noise and "
                          "openpi/deadline_ms", field->key);
        TRY(known[which].read(field, out, error));
    }
    return OPENPI_OK;
}
