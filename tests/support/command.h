/* Runs the command as a user does, inside a scratch folder: status, stdout and stderr. For one source file of
 * a test, which includes cmocka.h and scratch.h first. */
#ifndef TESTS_COMMAND_H
#define TESTS_COMMAND_H

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static scratch box;
static char *out, *err;          /* what the last command printed                                         */
static size_t out_bytes;

static inline char *slurp(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    size_t capacity = 1 << 16, at = 0, got;
    if (!file) fail_msg("%s is not there", path);
    char *data = malloc(capacity);
    assert_non_null(data);
    while ((got = fread(data + at, 1, capacity - at - 1, file)) > 0) {
        at += got;
        if (at + 1 < capacity) continue;
        capacity *= 2;
        data = realloc(data, capacity);
        assert_non_null(data);
    }
    fclose(file);
    data[at] = 0;
    if (bytes) *bytes = at;
    return data;
}

/* What runs openpi: "", or a command that ends it after a time. */
static const char *within = "";

/* Runs "openpi ARGS" by the shell inside the box, its results to `where`; returns its exit status. */
static inline int run_to(const char *where, const char *format, va_list list) {
    char args[4096], line[5000];
    vsnprintf(args, sizeof args, format, list);
    const char *isa = getenv("OPENPI_TEST_ISA");               /* see isa_cap.c */
    snprintf(line, sizeof line, "cd '%s' && { %s '%s' %s; } >%s 2>err </dev/null", box.folder, within,
             isa && *isa ? OPENPI_CAPPED : OPENPI_COMMAND, args, where);
    int status = system(line);
    free(out);
    free(err);
    out = strcmp(where, "out") ? NULL : slurp(scratch_path(&box, "out"), &out_bytes);
    err = slurp(scratch_path(&box, "err"), NULL);
    if (!WIFEXITED(status)) fail_msg("openpi %s: ended by a signal; it said:\n%s", args, err);
    return WEXITSTATUS(status);
}

__attribute__((format(printf, 1, 2))) static inline int run(const char *format, ...) {
    va_list list;
    va_start(list, format);
    int status = run_to("out", format, list);
    va_end(list);
    return status;
}

static inline void must_contain(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("expected \"%s\" in:\n%s", part, text);
}

/* Ends with 2 and one sentence, and prints no result. A server that starts instead, and would never end, is
 * killed (status 137). */
static inline void must_refuse(const char *args, const char *sentence) {
    within = "timeout -s KILL 120";
    int status = run("%s", args);
    within = "";
    if (status != 2 || !strstr(err, sentence) || *out)
        fail_msg("openpi %s: status %d, expected 2 with \"%s\"; it said:\n%s%s", args, status, sentence, err,
                 out);
    int lines = 0;
    for (const char *c = err; *c; c++) lines += *c == '\n';
    if (lines < 1 || lines > 2 || (lines == 2 && !strstr(err, "--help'.\n")))
        fail_msg("openpi %s: not one sentence:\n%s", args, err);
}

static inline json_t *load(const char *name) {
    json_error_t where;
    json_t *root = json_load_file(scratch_path(&box, name), JSON_REJECT_DUPLICATES, &where);
    if (!root) fail_msg("%s is not JSON: line %d: %s", name, where.line, where.text);
    return root;
}

static inline double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("\"%s\" is no number", key);
    return json_number_value(value);
}

/* Files carry seven digits of a number: each is off by up to 5e-7 of itself, and what follows from others by
 * theirs too. `sizes` is the sum of them all. */
static inline void must_follow(const json_t *object, const char *key, double expected, double sizes) {
    double got = number(object, key);
    if (!(fabs(got - expected) <= 5.01e-7 * sizes))
        fail_msg("\"%s\" is %.9g, expected %.9g", key, got, expected);
}

static inline void must_be_difference(const json_t *object, const char *key, double a, double b) {
    must_follow(object, key, a - b, fabs(a) + fabs(b) + fabs(a - b));
}

static inline void must_be_ratio(const json_t *object, const char *key, double a, double b) {
    must_follow(object, key, a / b, 3 * fabs(a / b));
}

static inline const char *word(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    if (!value) fail_msg("\"%s\" is no text", key);
    return value;
}

static inline int open_box(void **state) {
    (void)state;
    return scratch_open(&box);
}

static inline int close_box(void **state) {
    (void)state;
    free(out);
    free(err);
    out = err = NULL;
    scratch_close(&box);
    return 0;
}

#endif
