#include "base/json.h"

#include <math.h>
#include <stdlib.h>

#include "base/ascii.h"
#include "base/file.h"
#include "base/report.h"

enum { FILE_LIMIT = 64 << 20 };

openpi_status json_read(const char *path, json_t **value, openpi_error *error) {
    char *text;
    size_t bytes;
    TRY(file_read(path, FILE_LIMIT, &text, &bytes, error));
    openpi_status status = json_parse(text, bytes, path, value, error);
    free(text);
    return status;
}

char *json_text(const json_t *value, size_t flags) {
    locale_t before = ascii_enter();                         /* jansson expects a point of one byte */
    size_t bytes = json_dumpb(value, NULL, 0, flags);        /* 0: failed */
    char *text = bytes ? malloc(bytes + 1) : NULL;
    size_t written = text ? json_dumpb(value, text, bytes, flags) : 0;
    ascii_leave(before);
    if (!text) return NULL;
    if (written != bytes) {
        free(text);
        return NULL;
    }
    text[bytes] = 0;
    return text;
}

const char *json_kind(const json_t *value) {
    if (!value) return "absent";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a real number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

static const json_t *member(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value) ? value : NULL;
}

openpi_status json_get_int(const json_t *object, const char *key, const char *name, int low, int high,
                           int *out, openpi_error *error) {
    const json_t *value = member(object, key);
    if (!value) return OPENPI_OK;
    if (!json_is_integer(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected an integer from %d to %d", name,
                      key, json_kind(value), low, high);
    json_int_t number = json_integer_value(value);
    if (number < low || number > high)
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %lld, expected an integer from %d to %d", name,
                      key, (long long)number, low, high);
    *out = (int)number;
    return OPENPI_OK;
}

openpi_status json_get_bool(const json_t *object, const char *key, const char *name, int *out,
                            openpi_error *error) {
    const json_t *value = member(object, key);
    if (!value) return OPENPI_OK;
    if (!json_is_boolean(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected true or false", name, key,
                      json_kind(value));
    *out = json_is_true(value);
    return OPENPI_OK;
}

openpi_status json_get_string(const json_t *object, const char *key, const char *name, const char **out,
                              openpi_error *error) {
    const json_t *value = member(object, key);
    if (!value) return OPENPI_OK;
    if (!json_is_string(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected a string", name, key,
                      json_kind(value));
    *out = json_string_value(value);
    return OPENPI_OK;
}

openpi_status json_get_doubles(const json_t *object, const char *key, const char *name, double *out,
                               int capacity, int *count, openpi_error *error) {
    const json_t *value = member(object, key);
    *count = 0;
    if (!value) return OPENPI_OK;
    if (!json_is_array(value))
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" is %s, expected an array of numbers", name, key,
                      json_kind(value));
    size_t length = json_array_size(value);
    if (length > (size_t)capacity)
        return report(error, OPENPI_BAD_FILE, "%s: \"%s\" has %zu numbers, expected at most %d", name, key,
                      length, capacity);
    for (size_t i = 0; i < length; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_number(item) || !isfinite(json_number_value(item)))
            return report(error, OPENPI_BAD_FILE, "%s: \"%s\"[%zu] is %s, expected a finite number", name,
                          key, i, json_kind(item));
        out[i] = json_number_value(item);
    }
    *count = (int)length;
    return OPENPI_OK;
}
