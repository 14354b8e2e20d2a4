/* JSON files through jansson, with sentences. Keys keep their order in the file (jansson does). */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>

#include "openpi.h"

/* Parses text (rejecting duplicate keys); `name` leads the error sentence. *value is a new reference. */
openpi_status json_parse(const char *text, size_t bytes, const char *name, json_t **value,
                         openpi_error *error);

/* What json_parse_by accepts beyond json_parse; all 0: the same. */
typedef struct json_rules {
    int any_value;               /* a text, a number, true, false or null, not only an array or an object */
    int nul;                     /* \u0000 in strings; keys never hold it                                 */
} json_rules;
openpi_status json_parse_by(const char *text, size_t bytes, const char *name, const json_rules *rules,
                            json_t **value, openpi_error *error);

/* Reads and parses a file of at most 64 MB. */
openpi_status json_read(const char *path, json_t **value, openpi_error *error);

/* Members of an object. Absent (or null) leaves *out alone and returns OPENPI_OK; a wrong type or a value
 * outside [low, high] is OPENPI_BAD_FILE: "FILE: KEY is …, expected …". */
openpi_status json_get_int(const json_t *object, const char *key, const char *name, int low, int high,
                           int *out, openpi_error *error);
openpi_status json_get_bool(const json_t *object, const char *key, const char *name, int *out,
                            openpi_error *error);
openpi_status json_get_string(const json_t *object, const char *key, const char *name, const char **out,
                              openpi_error *error);

/* Numbers of an array member: at most `capacity`, *count of them, finite. An absent member sets *count 0. */
openpi_status json_get_doubles(const json_t *object, const char *key, const char *name, double *out,
                               int capacity, int *count, openpi_error *error);

/* A value as text, malloc; NULL: out of memory. (Up to jansson 2.14 json_dumps does not notice every failing
 * allocation and then leaves parts out.) */
char *json_text(const json_t *value, size_t flags);

/* "a string", "an array" … for sentences. */
const char *json_kind(const json_t *value);

#endif
