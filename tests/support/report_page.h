/* Reads a report's page as a browser would: every element with data-from is looked up in the file that it
 * names and compared with what it shows; what stands outside such elements must hold no number at all, but
 * for a few known sentences. */
#ifndef TESTS_REPORT_PAGE_H
#define TESTS_REPORT_PAGE_H

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

enum { FILES_MAX = 16, TEXT = 4096 };

static json_t *files[FILES_MAX + 1]; /* by number, from 1 */
static int file_count;

/* ---- what a page's figure should say -------------------------------------------------------------- */

/* How near a shown number is to a true one: three digits. */
static int shows(double shown, double truth) { return fabs(shown - truth) <= fabs(truth) * 5.1e-3 + 1e-9; }

static int is_number_start(const char *text, const char *at) {
    if (!isdigit((unsigned char)*at)) return 0;
    return at == text || (!isalnum((unsigned char)at[-1]) && at[-1] != '.');
}

/* Is one of the numbers in `text` this one? */
static int text_shows(const char *text, double truth) {
    for (const char *at = text; *at; at++) {
        if (!is_number_start(text, at)) continue;
        char *end;
        double shown = strtod(at, &end);
        if (at > text && at[-1] == '-') shown = -shown;
        if (shows(shown, truth)) return 1;
        at = end - 1;
    }
    return 0;
}

static json_t *step_into(json_t *at, const char *key) {
    return json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10)) : json_object_get(at, key);
}

/* "stage|name|shape" of an operation. */
static int is_chosen(const json_t *op, const char *where) {
    char text[400];
    snprintf(text, sizeof text, "%s|%s|%s", json_string_value(json_object_get(op, "stage")),
             json_string_value(json_object_get(op, "name")), json_string_value(json_object_get(op, "shape")));
    return !*where || !strcmp(text, where);
}

/* The number (or the sum over "*", or how many there are) at "2:/ops/7/time_us"; a string goes to *string. */
static double look_up(const char *from, const char *where, const char **string) {
    char *pointer, key[80];
    long number = strtol(from, &pointer, 10);
    *string = NULL;
    if (number < 1 || number > file_count || *pointer != ':' || pointer[1] != '/')
        fail_msg("no such place: %s", from);
    json_t *at = files[number];
    for (pointer++; *pointer == '/';) {
        size_t length = strcspn(++pointer, "/");
        assert_true(length < sizeof key);
        memcpy(key, pointer, length);
        key[length] = 0;
        pointer += length;
        if (!strcmp(key, "*")) {
            double sum = 0;
            size_t i;
            json_t *one;
            assert_true(json_is_array(at));
            json_array_foreach(at, i, one) {
                if (!is_chosen(one, where)) continue;
                sum += !strcmp(pointer, "/*") ? 1 : json_number_value(json_object_get(one, pointer + 1));
            }
            return sum;
        }
        at = step_into(at, key);
    }
    if (!at) fail_msg("%s: nothing there", from);
    *string = json_string_value(at);
    return json_number_value(at);
}

/* Digits that matter of the number that `text` begins with, and whether it has a point. */
static int digits_of(const char *text, int *point) {
    int digits = 0;
    for (*point = 0; isdigit((unsigned char)*text) || *text == '.'; text++) {
        *point |= *text == '.';
        digits += isdigit((unsigned char)*text) && (digits || *text != '0');
    }
    return digits;
}

/* What a key's end measures, and the units that it may be shown in. */
static const struct {
    const char *end, *units[6];
} measures[] = {
    {"_ms", {"ns", "µs", "ms", "s"}},  {"_us", {"ns", "µs", "ms", "s"}},
    {"_bytes", {"B", "KB", "MB", "GB"}},   {"tflops", {"GFLOP/s", "TFLOP/s", "PFLOP/s"}},
    {"gbs", {"MB/s", "GB/s", "TB/s"}}, {"tbs", {"MB/s", "GB/s", "TB/s"}},
    {"_per_s", {"/s", "samples a second"}},               {"hz", {"Hz"}},
    {"_per_j", {"/J"}},                {"inference_j", {"mJ", "J"}},
    {"action_j", {"mJ", "J"}},         {"average_w", {"W"}},
    {"_per_w", {"Hz/W"}},              {"_ratio", {"%", "×"}},
};

/* A thousand of it is another unit. */
static int has_larger_unit(const char *unit) {
    static const char *const units[] = {"ns",   "µs",   "ms",      "B",      "KB", "MB",
                                        "MB/s", "GB/s", "GFLOP/s", "TFLOP/s"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(unit, units[i])) return 1;
    return 0;
}

/* A number of a table, a tile or a sentence has three digits that matter and its unit; one without a unit is
 * a count, and whole but for a mean of calls. */
static void check_form_of(const char *from, const char *text) {
    const char *number = text, *end = from + strlen(from);
    char unit[40];
    int point, known = 0, found = 0;
    while (*number && !is_number_start(text, number)) number++;
    if (!*number) fail_msg("%s shows \"%s\"", from, text);
    int digits = digits_of(number, &point);
    number += strspn(number, "0123456789.");
    number += *number == ' ';
    snprintf(unit, sizeof unit, "%.*s", (int)strcspn(number, ")"), number);       /* "noise (104 %)" */
    if (point && digits != 3) fail_msg("%s shows \"%s\", expected three digits", from, text);
    if (!point && digits > 3 && has_larger_unit(unit))
        fail_msg("%s shows \"%s\", expected another unit", from, text);
    if (point && !*unit && !strstr(from, "/calls")) fail_msg("%s shows \"%s\", expected a unit", from, text);
    for (size_t i = 0; i < sizeof measures / sizeof *measures && !strchr(from, ' '); i++) {
        size_t length = strlen(measures[i].end);
        if ((size_t)(end - from) < length || strcmp(end - length, measures[i].end)) continue;
        known = 1;
        for (int k = 0; k < 6 && measures[i].units[k]; k++) found |= !strcmp(unit, measures[i].units[k]);
    }
    if (known && !found) fail_msg("%s shows \"%s\", expected its unit", from, text);
}

typedef struct element {
    char from[400], how[20], where[200], text[TEXT];
    double times;
    int chart;                   /* 1: inside of one */
} element;

static void check_element(const element *e) {
    const char *string;
    char first[400], second[400] = "";
    if (!strcmp(e->how, "shape")) return; /* put together of several keys */
    if (sscanf(e->from, "%399s %399s", first, second) < 1) fail_msg("an empty data-from");
    if (strstr(first, ":name")) return; /* a name from several keys; its parts are strings */
    if (strstr(first, ":number")) {
        assert_int_equal(strtol(first, NULL, 10), strtol(e->text, NULL, 10));
        return;
    }
    double a = 0, b = *second ? look_up(second, e->where, &string) : 1;
    a = look_up(first, e->where, &string);
    if (string) {
        if (!strstr(e->text, string)) fail_msg("%s shows \"%s\", but is \"%s\"", e->from, e->text, string);
    } else if (!strcmp(e->how, "ratio")) {
        if (!text_shows(e->text, a / b * e->times))
            fail_msg("%s shows \"%s\", but is %.9g", e->from, e->text, a / b * e->times);
        if (!e->chart) check_form_of("a ratio", e->text);
    } else if (*second) { /* both in one text */
        if (!text_shows(e->text, a) || !text_shows(e->text, b))
            fail_msg("%s shows \"%s\", but is %g and %g", e->from, e->text, a, b);
    } else {
        int micro = strlen(first) > 3 && !strcmp(first + strlen(first) - 3, "_us"); /* a chart in ms */
        if (!e->chart) check_form_of(first, e->text);
        if (!text_shows(e->text, a * e->times) && !(micro && text_shows(e->text, a * 1e-3)))
            fail_msg("%s shows \"%s\", but is %.9g", e->from, e->text, a * e->times);
    }
}

/* ---- reading the page ----------------------------------------------------------------------------- */

/* The value of an attribute within the tag that begins at `tag`; "" where it is not there. */
static void attribute(const char *tag, const char *name, char *value, size_t capacity) {
    char start[40];
    const char *end = strchr(tag, '>'), *at;
    snprintf(start, sizeof start, " %s=\"", name);
    *value = 0;
    assert_non_null(end);
    at = strstr(tag, start);
    if (!at || at > end) return;
    at += strlen(start);
    size_t length = strcspn(at, "\"");
    assert_true(length < capacity);
    memcpy(value, at, length);
    value[length] = 0;
}

/* Copies text up to "</NAME>", without tags. Returns what follows. */
static const char *inner(const char *at, const char *name, char text[TEXT]) {
    char end[24];
    size_t n = 0;
    snprintf(end, sizeof end, "</%s>", name);
    for (; strncmp(at, end, strlen(end)); at++) {
        assert_true(*at);
        if (*at == '<') {
            at = strchr(at, '>');
            assert_non_null(at);
            continue;
        }
        assert_true(n < TEXT - 1);
        text[n++] = *at;
    }
    text[n] = 0;
    return at + strlen(end);
}

/* Sentences of the page's own that hold digits. */
static const char *const known[] = {
    "π0 or π0.5 of full size",
    "host p",
    "device p",
    "multiply, bf16",
    "multiply, f32",
    "p50",
    "p99",
    ".json",
};

static int is_known(const char *text) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(text, known[i])) return 1;
    return 0;
}

static int has_number(const char *text) {
    for (const char *at = text; *at; at++)
        if (isdigit((unsigned char)*at)) return 1;
    return 0;
}

/* A text outside data-from. In a chart: words may hold digits, as device names do; a bare number may only be
 * an axis's. */
static void check_plain(const char *text, int in_chart, const char *look) {
    if (!has_number(text) || is_known(text)) return;
    if (in_chart) {
        int axis = look[0] == 'k' && strcmp(look, "k m i");
        if (strspn(text, "0123456789.-e+") == strlen(text) && !axis)
            fail_msg("a number without data-from in a chart: \"%s\"", text);
        return;
    }
    fail_msg("a number without data-from: \"%s\"", text);
}

/* Every element and every text of the page. Returns how many figures there are; `seen` (may be NULL) gets
 * their data-from. */
static int check_page(const char *page, json_t *seen) {
    static element e;
    int count = 0, in_chart = 0;
    const char *at = strstr(page, "<body>");
    assert_non_null(at);
    char look[80] = "";
    while (*at) {
        if (*at != '<') {
            static char text[TEXT];
            size_t length = strcspn(at, "<");
            assert_true(length < sizeof text);
            memcpy(text, at, length);
            text[length] = 0;
            check_plain(text, in_chart, look);
            at += length;
            continue;
        }
        char name[24], times[20];
        size_t length = strcspn(at + 1, " >/");
        snprintf(name, sizeof name, "%.*s", (int)(length < 20 ? length : 20), at + 1);
        const char *end = strchr(at, '>');
        assert_non_null(end);
        attribute(at, "data-from", e.from, sizeof e.from);
        attribute(at, "class", look, sizeof look);
        in_chart = !strcmp(name, "svg") ? 1 : !strncmp(at, "</svg>", 6) ? 0 : in_chart;
        if (!strcmp(name, "style") || !strcmp(name, "code") || (!strcmp(name, "title") && in_chart) ||
            !strcmp(name, "desc")) {
            at = inner(end + 1, name, e.text);
            continue;
        }
        if (!*e.from) {
            at = end + 1;
            continue;
        }
        attribute(at, "data-how", e.how, sizeof e.how);
        attribute(at, "data-where", e.where, sizeof e.where);
        attribute(at, "data-times", times, sizeof times);
        e.times = *times ? strtod(times, NULL) : 1;
        e.chart = in_chart;
        at = inner(end + 1, name, e.text);
        check_element(&e);
        char place[420];
        snprintf(place, sizeof place, "%s%s", in_chart ? "chart " : "", e.from);
        if (seen) json_object_set_new(seen, place, json_true());
        count++;
    }
    return count;
}

#endif
