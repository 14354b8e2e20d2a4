#include "json_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "head.h"
#include "input.h"
#include "output.h"

int json_input(const verb *verb, const char *path, json_t **root) {
    openpi_error error = OPENPI_ERROR_INIT;
    char *bytes;
    size_t count;
    int end = file_load(verb, path, &bytes, &count);
    if (end != END_FINE) return end;
    openpi_status status = json_parse(bytes, count, input_name(path), root, &error);
    free(bytes);
    return status == OPENPI_OK ? END_FINE : library_error(verb, &error);
}

int json_open(const verb *verb, const char *path, json_t **root) {
    int end = json_input(verb, path, root);
    if (end != END_FINE || json_string_value(json_object_get(*root, "kind"))) return end;
    json_decref(*root);
    *root = NULL;
    return input_error(verb, "%s: its kind is missing, expected a file that openpi wrote", input_name(path));
}

int json_format(const verb *verb, const char *path, const json_t *root) {
    long long format = json_integer_value(json_object_get(root, "format"));
    if (format == HEAD_FORMAT) return END_FINE;
    return input_error(verb, "%s: its format is %lld, expected %d", input_name(path), format, HEAD_FORMAT);
}

int json_save(const verb *verb, const char *path, json_t *root) {
    char *text = root ? json_text(root, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(root);
    if (!text) return input_error(verb, "%s: cannot be written: out of memory", path);
    fprintf(output_file(path), "%s\n", text);
    free(text);
    return END_FINE;
}
