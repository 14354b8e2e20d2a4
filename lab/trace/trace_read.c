/* Reads a trace back, event by event: the file is never in memory as a whole, so that some hundred megabytes
 * of a profiler are read as they come. The top level is scanned here; one value at a time is parsed
 * (base/json.h). */
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/json.h"
#include "gz.h"
#include "cli/input.h"

enum { VALUE_MOST = 64 << 20 }; /* bytes of one event or other member                          */

typedef struct reader {
    const verb *verb;
    const char *path;
    gz *file;
    int next; /* the byte not yet taken, -1: the end                                   */
    size_t line, column; /* place of `next`                                                      */
    size_t first_line, first_column; /* place of the value that was read last                     */
    char *text; /* the value that was read last, NUL at its end                          */
    size_t count, capacity;
    trace_file *out;
    int events;
    int end; /* the code to end with, once a sentence was printed                     */
} reader;

/* ---- scanning ------------------------------------------------------------------------------------- */

static void advance(reader *r) {
    r->column++;
    if (r->next == '\n') {
        r->line++;
        r->column = 1;
    }
    r->next = gz_next(r->file);
}

static void skip_space(reader *r) {
    while (r->next >= 0 && ascii_is_space(r->next)) advance(r);
}

/* A file that is cut off says so when it is closed; anything else is said here. */
static int bad(reader *r, const char *what) {
    if (r->end != END_FINE) return 0;
    int code = gz_close(r->file);
    r->file = NULL;
    const char *sentence =
        r->next < 0 ? "%s: ends in line %zu, expected %s" : "%s: line %zu is no JSON, expected %s";
    r->end = code != END_FINE ? code : input_error(r->verb, sentence, r->path, r->line, what);
    return 0;
}

static int keep(reader *r) {
    if (r->count + 2 > r->capacity) {
        size_t capacity = r->capacity ? r->capacity * 2 : 4096;
        char *text = capacity <= VALUE_MOST ? realloc(r->text, capacity) : NULL;
        if (!text) {
            r->end = input_error(r->verb,
                                 "%s: line %zu: a value of more than %zu bytes, expected a trace of smaller "
                                 "events",
                                 r->path, r->line, r->capacity);
            return 0;
        }
        r->text = text;
        r->capacity = capacity;
    }
    r->text[r->count++] = (char)r->next;
    r->text[r->count] = 0;
    advance(r);
    return 1;
}

static int keep_string(reader *r) {
    if (!keep(r)) return 0;
    while (r->next >= 0 && r->next != '"')
        if ((r->next == '\\' && !keep(r)) || (r->next >= 0 && !keep(r))) return 0;
    return r->next < 0 ? bad(r, "the end of a string") : keep(r);
}

/* One value's text, however deep, into r->text. */
static int keep_value(reader *r) {
    int depth = 0;
    skip_space(r);
    r->count = 0;
    r->first_line = r->line;
    r->first_column = r->column;
    do {
        while (r->next >= 0 && ascii_is_space(r->next))
            if (!keep(r)) return 0;
        if (r->next < 0) return bad(r, "the rest of a value");
        if (r->next == '"') {
            if (!keep_string(r)) return 0;
        } else if (strchr("{[", r->next) || strchr("}]", r->next)) {
            depth += strchr("{[", r->next) ? 1 : -1;
            if (depth < 0) return bad(r, "a value");
            if (!keep(r)) return 0;
        } else if (r->next == ',' || r->next == ':') {
            if (!depth) return bad(r, "a value");
            if (!keep(r)) return 0;
        } else {
            while (r->next >= 0 && !ascii_is_space(r->next) && !strchr(",:{}[]\"", r->next))
                if (!keep(r)) return 0;
        }
    } while (depth);
    return 1;
}

static json_t *parse(reader *r) {
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *value = NULL;
    if (!keep_value(r)) return NULL;
    const json_rules rules = {
        .any_value = 1, .repeated_keys = 1, .line = r->first_line, .column = r->first_column};
    if (json_parse_by(r->text, r->count, r->path, &rules, &value, &error) != OPENPI_OK)
        r->end = library_error(r->verb, &error);
    return value;
}

/* ---- events --------------------------------------------------------------------------------------- */

/* Categories of PyTorch's profiler, and our own "kernel". */
static const struct {
    const char *category;
    breakdown_kind kind;
} categories[] = {
    {"kernel", BREAKDOWN_KERNEL},
    {"gpu_memcpy", BREAKDOWN_KERNEL},
    {"gpu_memset", BREAKDOWN_KERNEL},
    {"gpu_user_annotation", BREAKDOWN_DEVICE_RANGE},
    {"user_annotation", BREAKDOWN_HOST_RANGE},
    {"cuda_runtime", BREAKDOWN_LAUNCH},
    {"cuda_driver", BREAKDOWN_LAUNCH},
    {"hip_runtime", BREAKDOWN_LAUNCH},
};

enum { CATEGORIES = sizeof categories / sizeof *categories };

/* pid and tid are numbers or, on some tracks, words. */
static int64_t track(const json_t *value) {
    int64_t sum = 5381;
    if (!json_is_string(value)) return json_integer_value(value);
    for (const char *c = json_string_value(value); *c; c++) sum = (sum * 33 + *c) & INT64_C(0xffffffffffff);
    return -1 - sum;
}

static int64_t correlation_of(const json_t *arguments) {
    const json_t *value = json_object_get(arguments, "correlation");
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static int take_event(reader *r, const json_t *event) {
    const char *phase = json_string_value(json_object_get(event, "ph")),
               *category = json_string_value(json_object_get(event, "cat"));
    const json_t *arguments = json_object_get(event, "args"), *name = json_object_get(event, "name");
    const json_t *start = json_object_get(event, "ts"), *dur = json_object_get(event, "dur");
    openpi_error error = OPENPI_ERROR_INIT;
    int c = 0;
    r->events++;
    if (!phase || strcmp(phase, "X") || !category) return 1;
    while (c < CATEGORIES && strcmp(categories[c].category, category)) c++;
    if (c == CATEGORIES) return 1;
    if (!json_is_string(name) || !json_is_number(start) || !json_is_number(dur) ||
        json_number_value(dur) < 0) {
        r->end = input_error(r->verb,
                             "%s: line %zu: a complete event of category %s needs a name, a ts and a dur of "
                             "at least 0",
                             r->path, r->line, category);
        return 0;
    }
    breakdown_event e = {.kind = categories[c].kind,
                         .name = json_string_value(name),
                         .start_us = json_number_value(start),
                         .dur_us = json_number_value(dur),
                         .pid = track(json_object_get(event, "pid")),
                         .tid = track(json_object_get(event, "tid")),
                         .correlation = correlation_of(arguments),
                         .stage = json_string_value(json_object_get(arguments, "stage")),
                         .group = json_string_value(json_object_get(arguments, "group"))};
    if (breakdown_add(r->out->breakdown, &e, &error) == OPENPI_OK) return 1;
    r->end = library_error(r->verb, &error);
    return 0;
}

/* The list may end with the file: a profiler that was stopped leaves it so, and the format allows it. */
static int read_events(reader *r, int may_end) {
    advance(r);
    for (skip_space(r); r->next != ']'; skip_space(r)) {
        if (r->next < 0 && may_end && r->events) return 1;
        json_t *event = parse(r);
        int fine = event && (json_is_object(event) || !bad(r, "an event, which is an object")) &&
                   r->end == END_FINE && take_event(r, event);
        json_decref(event);
        if (!fine) return 0;
        skip_space(r);
        if (r->next == ',') advance(r);
        else if (r->next != ']' && !(r->next < 0 && may_end))
            return bad(r, "a comma or the end of the events");
    }
    advance(r);
    return 1;
}

/* ---- the top level -------------------------------------------------------------------------------- */

static void take_ours(reader *r, const json_t *head) {
    const char *kind = json_string_value(json_object_get(head, "kind"));
    const json_t *model = json_object_get(head, "model"), *machine = json_object_get(head, "machine");
    if (!kind || strcmp(kind, "trace")) return;
    const char *version = json_string_value(json_object_get(head, "version")),
               *source = json_string_value(json_object_get(model, "source"));
    const char *device = json_string_value(json_object_get(machine, "device"));
    r->out->ours = 1;
    r->out->calls = (int)json_integer_value(json_object_get(head, "calls"));
    r->out->steps = (int)json_integer_value(json_object_get(json_object_get(head, "workload"), "steps"));
    snprintf(r->out->engine, sizeof r->out->engine, "openpi %.16s, %.80s on %.32s", version ? version : "?",
             source ? source : "?", device ? device : "?");
}

static int read_member(reader *r, int *events) {
    char key[64];
    skip_space(r);
    r->count = 0;
    if (r->next != '"') return bad(r, "a name in quotes");
    if (!keep_string(r)) return 0;
    snprintf(key, sizeof key, "%.*s", r->count > 60 ? 60 : (int)r->count, r->text);
    skip_space(r);
    if (r->next != ':') return bad(r, "a colon");
    advance(r);
    skip_space(r);
    if (!strcmp(key, "\"traceEvents\"") && r->next == '[') {
        *events = 1;
        return read_events(r, 0);
    }
    json_t *value = parse(r);
    if (value && !strcmp(key, "\"otherData\"")) take_ours(r, value);
    if (value && (!strcmp(key, "\"deviceProperties\"") || !strcmp(key, "\"schemaVersion\"")) &&
        !r->out->engine[0])
        strcpy(r->out->engine, "a PyTorch profiler's trace");
    json_decref(value);
    return value != NULL;
}

static int read_object(reader *r, int *events) {
    advance(r);
    for (skip_space(r); r->next != '}'; skip_space(r)) {
        if (!read_member(r, events)) return 0;
        skip_space(r);
        if (r->next == ',') advance(r);
        else if (r->next != '}') return bad(r, "a comma or a closing brace");
    }
    return 1;
}

static int read_all(reader *r) {
    int events = 0;
    advance(r);
    skip_space(r);
    if (r->next == '[') events = read_events(r, 1);
    else if (r->next != '{') bad(r, "a trace: {\"traceEvents\": […]} or […]");
    else if (read_object(r, &events) && !events)
        r->end = input_error(
            r->verb, "%s: there is no \"traceEvents\" in it, expected a trace in Chrome's format", r->path);
    return r->end == END_FINE;
}

int trace_read(const verb *verb, const char *path, trace_file *out) {
    openpi_error error = OPENPI_ERROR_INIT;
    *out = (trace_file){.breakdown = breakdown_create()};
    if (!out->breakdown) return input_error(verb, "%s: out of memory", path);
    reader r = {.verb = verb,
                .path = input_name(path),
                .file = gz_open(verb, path),
                .next = ' ',
                .line = 1,
                .out = out};
    if (!r.file) return END_USAGE;
    read_all(&r);
    free(r.text);
    int code = r.file ? gz_close(r.file) : END_FINE;
    if (r.end == END_FINE) r.end = code;
    if (r.end == END_FINE && breakdown_finish(out->breakdown, &out->sums, &error) != OPENPI_OK)
        return library_error(verb, &error);
    if (r.end == END_FINE && !out->sums.all.ms)
        return input_error(verb,
                           "%s: none of its %d events is a kernel with a duration (category \"kernel\"), "
                           "expected a trace of a device",
                           path, r.events);
    if (!out->engine[0]) snprintf(out->engine, sizeof out->engine, "a trace of another engine");
    return r.end;
}

void trace_file_free(trace_file *file) {
    breakdown_free(file->breakdown);
    file->breakdown = NULL;
}
