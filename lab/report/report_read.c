/* Reading: what each kind of file must hold, its values by JSON pointer, and where a figure comes from. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json_file.h"
#include "report.h"

enum { POINTER = 160 };

/* ---- by pointer ----------------------------------------------------------------------------------- */

/* Our keys hold no '/' or '~', so a step is a key or an index as it stands. */
static const json_t *walk(const json_t *at, const char *pointer) {
    while (at && *pointer == '/') {
        char key[64];
        size_t length = strcspn(++pointer, "/");
        if (length >= sizeof key) return NULL;
        memcpy(key, pointer, length);
        key[length] = 0;
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10)) : json_object_get(at, key);
        pointer += length;
    }
    return at;
}

#define FORMATTED(text, format) \
    char text[POINTER]; \
    va_list list_; \
    va_start(list_, format); \
    vsnprintf(text, sizeof text, format, list_); \
    va_end(list_)

const json_t *report_at(const report_file *file, const char *format, ...) {
    FORMATTED(pointer, format);
    return walk(file->root, pointer);
}

int report_length(const report_file *file, const char *format, ...) {
    FORMATTED(pointer, format);
    return (int)json_array_size(walk(file->root, pointer));
}

const char *report_text(const report_file *file, const char *format, ...) {
    FORMATTED(pointer, format);
    const char *text = json_string_value(walk(file->root, pointer));
    return text ? text : "";
}

figure figure_at(const report_file *file, const char *format, ...) {
    FORMATTED(pointer, format);
    const json_t *value = walk(file->root, pointer);
    figure f = {.value = json_is_number(value) ? json_number_value(value) : NAN,
                .whole = json_is_integer(value)};
    snprintf(f.from, sizeof f.from, "%d:%s", file->number, pointer);
    return f;
}

figure figure_ratio(const figure *a, const figure *b) {
    figure f = {.value = b->value > 0 ? a->value / b->value : NAN, .how = "ratio"};
    snprintf(f.from, sizeof f.from, "%.98s %.98s", a->from, b->from);
    return f;
}

const report_file *report_next(const report_page *page, const char *kind, const report_file *after) {
    for (int i = after ? after->number : 0; i < page->count; i++)
        if (!strcmp(page->files[i].kind, kind)) return &page->files[i];
    return NULL;
}

/* ---- what must be there --------------------------------------------------------------------------- */

typedef enum want { NUMBER, TEXT, NUMBER_OR_NULL, FLAG } want;

/* "*" is every entry of a list, which must be there. */
typedef struct need {
    const char *kind, *pointer;
    want want;
} need;

static const need needs[] = {
    {"bench", "/machine/device", TEXT},
    {"bench", "/model/source", TEXT},
    {"bench", "/host/p50_ms", NUMBER},
    {"bench", "/host/p99_ms", NUMBER},
    {"bench", "/host/hz", NUMBER},
    {"bench", "/host/samples_per_s", NUMBER},
    {"bench", "/device/p50_ms", NUMBER},
    {"bench", "/device/samples_per_s", NUMBER},
    {"bench", "/stages/*/name", TEXT},
    {"bench", "/stages/*/p50_ms", NUMBER},
    {"peer", "/system/name", TEXT},
    {"peer", "/machine/device", TEXT},
    {"peer", "/host/p50_ms", NUMBER},
    {"peer", "/device/p50_ms", NUMBER_OR_NULL},
    {"profile", "/machine/device", TEXT},
    {"profile", "/stages/*/name", TEXT},
    {"profile", "/stages/*/time_us", NUMBER},
    {"profile", "/ops/*/name", TEXT},
    {"profile", "/ops/*/stage", TEXT},
    {"profile", "/ops/*/shape", TEXT},
    {"profile", "/ops/*/time_us", NUMBER},
    {"profile", "/ops/*/gflop", NUMBER},
    {"profile", "/ops/*/mb", NUMBER},
    {"profile", "/ops/*/tflops", NUMBER},
    {"profile", "/ops/*/gap_us", NUMBER_OR_NULL},
    {"ladder", "/machine/device", TEXT},
    {"ladder", "/climb/*/applies", FLAG},
    {"ladder", "/leave_one_out/*/switch", TEXT},
    {"tune", "/shapes/*/name", TEXT},
    {"tune", "/shapes/*/choice", TEXT},
    {"tune", "/shapes/*/time_us", NUMBER},
    {"breakdown", "/files/*/file", TEXT},
    {"breakdown", "/files/*/engine", TEXT},
    {"breakdown", "/files/*/total_ms", NUMBER},
    {PUBLISHED, "/systems/*/variant", TEXT},
    {PUBLISHED, "/systems/*/who", TEXT},
    {PUBLISHED, "/systems/*/name", TEXT},
    {PUBLISHED, "/systems/*/gpu", TEXT},
    {PUBLISHED, "/systems/*/ms", NUMBER},
    {PUBLISHED, "/systems/*/wrong_masks", FLAG},
    {PUBLISHED, "/workload/cameras", TEXT},
    {PUBLISHED, "/workload/prompt", NUMBER},
    {PUBLISHED, "/workload/horizon", NUMBER},
    {PUBLISHED, "/workload/steps", NUMBER},
    {PUBLISHED, "/workload/least_parameters", NUMBER},
    {PUBLISHED, "/scaling/variant", TEXT},
    {PUBLISHED, "/scaling/series/*/name", TEXT},
    {"server_bench", "/groups/*/name", TEXT},
    {"server_bench", "/groups/*/round_trip/p50_ms", NUMBER_OR_NULL},
    {"server_bench", "/groups/*/round_trip/p99_ms", NUMBER_OR_NULL},
};

static const char *const kinds[] = {"bench", "peer", "profile", "ladder", "tune", "roof", "breakdown",
                                    "server_bench", PUBLISHED, NULL};

static int fits(const json_t *value, want want) {
    if (want == TEXT) return json_is_string(value);
    if (want == FLAG) return json_is_boolean(value);
    return json_is_number(value) || (want == NUMBER_OR_NULL && json_is_null(value));
}

static int complain(const report_file *file, const char *pointer, const json_t *value, want want) {
    static const char *const names[] = {"a number", "a string", "a number or null", "true or false"};
    return input_error(&verb_report, "%s: %s %s, expected %s in a file of kind %s", file->path, pointer,
                       value ? "is of another type" : "is missing", names[want], file->kind);
}

static int check_need(const report_file *file, const need *need) {
    const char *star = strstr(need->pointer, "/*");
    char pointer[POINTER];
    if (!star) {
        const json_t *value = walk(file->root, need->pointer);
        return fits(value, need->want) ? END_FINE : complain(file, need->pointer, value, need->want);
    }
    snprintf(pointer, sizeof pointer, "%.*s", (int)(star - need->pointer), need->pointer);
    const json_t *list = walk(file->root, pointer);
    if (!json_is_array(list))
        return input_error(&verb_report, "%s: %s is %s, expected a list in a file of kind %s", file->path,
                           pointer, list ? "of another type" : "missing", file->kind);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *value = walk(json_array_get(list, i), star + 2);
        if (fits(value, need->want)) continue;
        snprintf(pointer, sizeof pointer, "%.*s/%zu%s", (int)(star - need->pointer), need->pointer, i,
                 star + 2);
        return complain(file, pointer, value, need->want);
    }
    return END_FINE;
}

static int known_kind(const report_file *file) {
    char list[160] = "";
    for (int i = 0; kinds[i]; i++) {
        if (!strcmp(kinds[i], file->kind)) return END_FINE;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", kinds[i]);
    }
    return input_error(&verb_report, "%s: its kind is '%s', expected one of %s", file->path, file->kind,
                       list);
}

int report_check(report_file *file) {
    file->kind = json_string_value(json_object_get(file->root, "kind"));
    if (!strcmp(file->kind, "best")) file->kind = "bench"; /* bench --save writes what bench --json writes */
    int end = known_kind(file);
    if (end == END_FINE) end = json_format(&verb_report, file->path, file->root);
    for (size_t i = 0; i < sizeof needs / sizeof *needs && end == END_FINE; i++)
        if (!strcmp(needs[i].kind, file->kind)) end = check_need(file, &needs[i]);
    if (end != END_FINE) return end;
    const char *device = report_text(file, "/machine/hardware"), *path = report_text(file, "/machine/path");
    if (!*device) device = report_text(file, "/machine/device");
    if (!strcmp(file->kind, "peer"))
        snprintf(file->name, sizeof file->name, "%.90s, %.60s", report_text(file, "/system/name"), device);
    else if (!*device) snprintf(file->name, sizeof file->name, "%.150s", file->path);
    else
        snprintf(file->name, sizeof file->name, "%.60s%s%.30s%s%.20s", device, *path ? ", " : "", path,
                 *report_text(file, "/machine/dtype") ? ", " : "", report_text(file, "/machine/dtype"));
    return END_FINE;
}
