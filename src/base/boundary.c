#include "base/boundary.h"

#include <string.h>

#include "base/report.h"

#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

#define X(type, macro, first, last)                                             \
    _Static_assert(offsetof(type, size) == 0, #type " must begin with size");   \
    _Static_assert(END_OF(type, last) == sizeof(type), #type " must end with " #last " and no padding");
BOUNDARY_LIST(X)
#undef X
_Static_assert(sizeof(openpi_dims) == 128, "openpi_dims lies inside other structs: its size is frozen");

static const struct {
    const char *name, *macro;
    size_t bytes, least;
} types[BOUNDARY_TYPES] = {
#define X(type, macro, first, last) {#type, #macro, sizeof(type), END_OF(type, first)},
    BOUNDARY_LIST(X)
#undef X
};

/* ---- sizes ---- */

static size_t size_of(const void *given) {
    size_t size;
    memcpy(&size, given, sizeof size);
    return size;
}

int boundary_size_is_good(boundary_type type, size_t size) {
    return size >= types[type].least && size % sizeof(size_t) == 0 && size <= BOUNDARY_LARGEST;
}

openpi_status boundary_check(boundary_type type, const void *given, openpi_error *error) {
    if (!given || boundary_size_is_good(type, size_of(given))) return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT, "%s: its size is %zu, expected %zu: begin with %s",
                  types[type].name,
                  size_of(given), types[type].bytes, types[type].macro);
}

static const void *at(const void *array, int i) { return (const char *)array + (size_t)i * size_of(array); }

/* ---- in ---- */

/* No byte of [from, end) is other than 0. */
static openpi_status check_unknown(boundary_type type, const char *given, size_t from, size_t end,
                                   openpi_error *error) {
    for (size_t i = from; i < end; i++)
        if (given[i])
            return report(
                error, OPENPI_BAD_ARGUMENT,
                "%s: byte %zu of its %zu is not 0, but openpi %d.%d.%d knows no field there: a later "
                "release's field is set, or %s was forgotten",
                types[type].name, i, size_of(given), OPENPI_VERSION_MAJOR, OPENPI_VERSION_MINOR,
                OPENPI_VERSION_PATCH, types[type].macro);
    return OPENPI_OK;
}

/* The openpi_dims inside a struct: of its frozen size, and nothing reserved is set. */
static openpi_status check_dims(boundary_type type, const openpi_dims *dims, openpi_error *error) {
    if (dims->size != sizeof *dims)
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: the size of its dims is %zu, expected %zu: begin with %s",
                      types[type].name, dims->size, sizeof *dims, types[type].macro);
    return check_unknown(BOUNDARY_openpi_dims, (const char *)dims, offsetof(openpi_dims, reserved),
                         sizeof *dims, error);
}

openpi_status boundary_take(boundary_type type, const void *given, void *own, openpi_error *error) {
    size_t bytes = types[type].bytes, size = given ? size_of(given) : sizeof(size_t);
    TRY(boundary_check(type, given, error));
    memset(own, 0, bytes);
    if (given) memcpy(own, given, size < bytes ? size : bytes);
    memcpy(own, &bytes, sizeof bytes);
    if (given && type == BOUNDARY_openpi_synthetic)
        TRY(check_dims(type, &((const openpi_synthetic *)own)->dims, error));
    return given ? check_unknown(type, given, bytes, size, error) : OPENPI_OK;
}

openpi_status boundary_take_at(boundary_type type, const void *array, int i, void *own, openpi_error *error) {
    const void *given = at(array, i);
    if (i && size_of(given) != size_of(array))
        return report(error, OPENPI_BAD_ARGUMENT,
                      "%s: element %d has size %zu, element 0 has %zu: begin each with %s",
                      types[type].name, i, size_of(given), size_of(array), types[type].macro);
    return boundary_take(type, given, own, error);
}

/* ---- out ---- */

static void fill(boundary_type type, const void *own, void *given, size_t size) {
    size_t bytes = types[type].bytes, known = size < bytes ? size : bytes;
    memcpy(given, &size, sizeof size);
    memcpy((char *)given + sizeof size, (const char *)own + sizeof size, known - sizeof size);
    memset((char *)given + known, 0, size - known);
}

void boundary_give(boundary_type type, const void *own, void *given) {
    if (given) fill(type, own, given, size_of(given));
}

void boundary_give_at(boundary_type type, const void *own, void *array, int i) {
    fill(type, own, (char *)array + (size_t)i * size_of(array), size_of(array));
}
