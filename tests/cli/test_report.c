/* labels: long command no_asan */
/* openpi report: every figure on the page is one of its files' numbers, and follows them when they change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "report_page.h"
#include "json_head.h"
#include "scratch.h"

static scratch box;
static char *err;

static char *slurp(const char *path) {
    FILE *file = fopen(path, "rb");
    size_t capacity = 1 << 22;
    assert_non_null(file);
    char *data = calloc(capacity, 1);
    assert_non_null(data);
    size_t got = fread(data, 1, capacity - 1, file);
    assert_true(got < capacity - 1);
    fclose(file);
    return data;
}

/* "openpi WORDS" in the box. */
static int run_line(const char *words) {
    char line[4000];
    snprintf(line, sizeof line, "cd '%s' && '%s' %s >out 2>err </dev/null", box.folder, OPENPI_COMMAND,
             words);
    int status = system(line);
    free(err);
    err = slurp(scratch_path(&box, "err"));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* "openpi report WORDS" */
__attribute__((format(printf, 1, 2))) static int run(const char *format, ...) {
    char words[2000] = "report ";
    va_list list;
    va_start(list, format);
    vsnprintf(words + 7, sizeof words - 7, format, list);
    va_end(list);
    return run_line(words);
}

static void must_contain(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("expected \"%s\" in:\n%s", part, text);
}

/* ---- tests ---------------------------------------------------------------------------------------- */

static const char *const fixtures[] = {"bench",  "bench-cpu", "peer", "profile",
                                       "ladder", "tune",      "roof", "breakdown", "server",
                                       "../../docs/peers"};
enum { FIXTURES = sizeof fixtures / sizeof *fixtures };

/* Writes files[1…] to a.json, b.json, … in the box; returns them as words. */
static const char *write_files(void) {
    static char words[400];
    words[0] = 0;
    for (int i = 1; i <= file_count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%c.json", 'a' + i - 1);
        assert_int_equal(json_dump_file(files[i], scratch_path(&box, name), JSON_INDENT(1)), 0);
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s ", name);
    }
    return words;
}

static void load_fixtures(void) {
    for (int i = 1; i <= file_count; i++) json_decref(files[i]);
    file_count = FIXTURES;
    for (int i = 0; i < FIXTURES; i++) {
        char path[400];
        json_error_t where;
        snprintf(path, sizeof path, "%s/report/%s.json", TESTS_DIR, fixtures[i]);
        files[i + 1] = json_load_file(path, 0, &where);
        if (!files[i + 1]) fail_msg("%s: %s", path, where.text);
    }
}

/* Of all files only this one, as file 1. */
static void keep(int which) {
    json_t *one = json_incref(files[which]);
    for (int i = 1; i <= file_count; i++) json_decref(files[i]);
    files[1] = one;
    file_count = 1;
}

/* docs/peers.json as the last file. */
static void add_published(void) {
    files[++file_count] = json_load_file(TESTS_DIR "/../docs/peers.json", 0, NULL);
    assert_non_null(files[file_count]);
}

/* Another number at every place, each by its own factor; counts and the workload stay what they are. */
static void change(json_t *at, int *n) {
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_array(at)) {
        json_array_foreach(at, i, one) change(one, n);
    } else if (json_is_object(at)) {
        json_object_foreach(at, key, one) {
            if (!strcmp(key, "workload") || !strcmp(key, "format") || !strcmp(key, "batch") ||
                !strcmp(key, "model"))
                continue;
            change(one, n);
        }
    } else if (json_is_real(at)) {
        json_real_set(at, json_real_value(at) * (1.1 + 0.013 * (++*n % 61)));
    } else if (json_is_integer(at)) {
        json_integer_set(at, json_integer_value(at) + ++*n % 7 + 1);
    }
}

static void test_every_figure(void **state) {
    (void)state;
    static const char *const needed[] = {
        "1:/device/p50_ms",
        "1:/host/p50_ms",
        "1:/host/p99_ms",
        "1:/host/hz",
        "1:/host/samples_per_s",
        "1:/energy/inference_j",
        "1:/batches/0/host/p99_ms",
        "1:/batches/2/host/p99_ms",
        "1:/batches/1/host/p50_ms",
        "1:/batches/3/device/samples_per_s",
        "1:/stages/2/p50_ms",
        "1:/stages/3/roof_ratio",
        "3:/device/p50_ms 1:/device/p50_ms",
        "4:/ops/*/gap_us",
        "4:/stages/0/roof_ratio",
        "4:/totals/replay_ms",
        "5:/climb/0/p50_ms",
        "5:/climb/4/gain_ratio",
        "5:/climb/4/total_ratio",
        "5:/climb/2/gain_ms",
        "5:/leave_one_out/1/cost_ratio",
        "5:/climb/5/reason",
        "6:/shapes/0/library_us",
        "6:/shapes/1/choice",
        "6:/plans/0/after_ms",
        "7:/roofs/read_gbs",
        "8:/files/0/stages/1/step_ms",
        "9:/groups/0/round_trip/p99_ms",
        "9:/groups/1/answers_per_s",
        "10:/systems/1/ms",
        "10:/systems/1/ms 1:/device/p50_ms",
        "10:/systems/1/note",
        "chart 1:/host/p50_ms",
        "chart 1:/host/p99_ms",
        "chart 1:/device/p50_ms",
        "chart 3:/device/p50_ms",
        "chart 10:/systems/1/ms",
        "chart 1:/batches/3/device/samples_per_s",
        "chart 1:/batches/2/device/p50_ms",
        "chart 3:/batches/2/device/p50_ms",
        "chart 10:/scaling/series/1/samples_per_s/6",
        "chart 1:/stages/2/p50_ms",
        "chart 1:/stages/*/p50_ms",
        "chart 4:/stages/*/time_us",
        "chart 4:/roofs/bf16_tflops 4:/roofs/read_gbs",
        "chart 5:/climb/0/p50_ms",
        "chart 5:/climb/4/p50_ms",
        "chart 5:/leave_one_out/1/p50_ms",
        "chart 6:/shapes/0/time_us",
        "chart 6:/shapes/0/library_us",
        "chart 9:/groups/1/round_trip/p50_ms",
        "chart 9:/groups/1/round_trip/p99_ms",
    };
    json_t *seen = json_object();
    load_fixtures();
    assert_int_equal(run("%s --out page.html", write_files()), 0);
    char *page = slurp(scratch_path(&box, "page.html"));
    int count = check_page(page, seen);
    assert_true(count > 400);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!json_object_get(seen, needed[i])) fail_msg("%s is not on the page", needed[i]);
    /* Every operation of the profile is in the roofline. */
    for (size_t i = 0; i < json_array_size(json_object_get(files[4], "ops")); i++) {
        char from[60];
        snprintf(from, sizeof from, "chart 4:/ops/%zu/tflops", i);
        if (!json_object_get(seen, from)) fail_msg("%s is not on the page", from);
    }
    must_contain(page, "(wrong masks)");
    must_contain(page, "published");
    must_contain(page, "its rotary table is coarse");
    must_contain(page, "another workload, model or batch: not compared");
    must_contain(page, "2025-03-04T05:06:07Z");
    must_contain(page, "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">");
    const char *sentence = strstr(page, "</h1>\n<p>One call takes <b data-from=\"1:/host/p50_ms\">"),
               *numbers = strstr(page, "class=\"card\""), *list = strstr(page, "<section id=\"files\">");
    assert_true(sentence && numbers && list && sentence < numbers && numbers < list);
    must_contain(page, "TB/s");
    assert_null(strstr(page, "of of"));
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "not in these files"));
    assert_null(strstr(page, "http-equiv=\"refresh\""));

    int n = 0; /* other files, another page, and all of it still true */
    for (int i = 1; i <= file_count; i++) change(files[i], &n);
    assert_true(n > 300);
    assert_int_equal(run("%s --out other.html", write_files()), 0);
    char *other = slurp(scratch_path(&box, "other.html"));
    assert_int_equal(check_page(other, NULL), count);
    assert_string_not_equal(page, other);
    for (int i = 1; i <= file_count; i++) { /* and it is not the page that is compared with itself */
        if (strcmp(json_string_value(json_object_get(files[i], "kind")), "roof")) continue;
        json_t *roofs = json_object_get(files[i], "roofs");
        double was = json_real_value(json_object_get(roofs, "read_gbs"));
        json_object_set_new(roofs, "read_gbs", json_real(was * 1.01));
        element e = {.from = "7:/roofs/read_gbs", .times = 1};
        snprintf(e.text, sizeof e.text, "%.0f GB/s", was);
        assert_false(text_shows(e.text, look_up(e.from, "", &(const char *){NULL})));
    }
    free(page);
    free(other);
    json_decref(seen);
}

/* Sets the number at the end of `keys` ("device", "p50_ms", NULL). */
static void set_number(json_t *at, const char *const *keys, double value) {
    for (; keys[1]; keys++)
        at = json_is_array(at) ? json_array_get(at, strtoul(*keys, NULL, 10)) : json_object_get(at, *keys);
    assert_int_equal(json_object_set_new(at, *keys, json_real(value)), 0);
}

/* A title that names model, machine and date; units that fit; whole counts; noise by its name. */
static void test_words_of_figures(void **state) {
    (void)state;
    static const struct {
        int file;
        const char *keys[6];
        double value;
        const char *shown;
    } rows[] = {
        {1, {"device", "p50_ms"}, 0.02345, "data-times=\"1000\">23.4 µs<"},
        {1, {"host", "p99_ms"}, 12345.0, ">12.3 s<"},
        {1, {"host", "min_ms"}, 0.0000405, ">40.5 ns<"},
        {1, {"memory", "weight_bytes"}, 45600000, ">45.6 MB<"},
        {1, {"device", "roof_ratio"}, 1.042, "data-times=\"100\">noise (104 %)<"},
        {4, {"stages", "0", "roof_ratio"}, 1.5, ">noise (150 %)<"},
        {4, {"stages", "1", "roof_ratio"}, 0.5, ">50.0 %<"},
        {6, {"shapes", "0", "roof_ratio"}, 1.87, ">noise (187 %)<"},
        {8, {"files", "0", "stages", "1", "calls"}, 18, ">18<"},
        {8, {"files", "0", "stages", "0", "calls"}, 18.5, ">18.5<"},
    };
    load_fixtures();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        set_number(files[rows[i].file], rows[i].keys, rows[i].value);
    assert_int_equal(run("%s --out words.html", write_files()), 0);
    char *page = slurp(scratch_path(&box, "words.html"));
    check_page(page, NULL);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) must_contain(page, rows[i].shown);
    must_contain(page, "<h1>openpi report: <span data-from=\"1:/model/source\">synthetic full:pi0:7</span> "
                       "on ");
    must_contain(page, "<span data-from=\"1:name\">");
    must_contain(page, ", and others</h1>");
    must_contain(page, "<title>openpi report: synthetic full:pi0:7, ");
    free(page);
    load_fixtures();                                   /* one operation alone, and faster than its roof */
    size_t i;
    json_t *op;
    json_array_foreach(json_object_get(files[4], "ops"), i, op)
        json_object_set_new(op, "gap_us", json_real(i ? 1e-6 : -5000));
    assert_int_equal(run("%s --out gaps.html", write_files()), 0);
    page = slurp(scratch_path(&box, "gaps.html"));
    check_page(page, NULL);
    must_contain(page, ">noise (-5.00 ms)<");
    free(page);
}

static void test_missing_sections(void **state) {
    (void)state;
    static const char *const commands[] = {"openpi bench --batch",   "openpi profile --json",
                                           "openpi ladder --json",   "openpi tune --json",
                                           "tools/trace-analyze", "openpi bench --json",
                                           "openpi bench --server"};
    load_fixtures();
    keep(7); /* roof alone */
    assert_int_equal(run("%s --out few.html", write_files()), 0);
    char *page = slurp(scratch_path(&box, "few.html"));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) must_contain(page, commands[i]);
    check_page(page, NULL);
    free(page);
    load_fixtures();
    keep(1); /* no file of published figures: none of them is there */
    assert_int_equal(run("%s --out alone.html", write_files()), 0);
    page = slurp(scratch_path(&box, "alone.html"));
    check_page(page, NULL);
    must_contain(page, "What others published is docs/peers.json of the project");
    assert_null(strstr(page, "wrong masks"));
    free(page);
    load_fixtures();
    keep(2); /* a bench of another workload: nothing published beside it */
    add_published();
    assert_int_equal(run("%s --out old.html", write_files()), 0);
    page = slurp(scratch_path(&box, "old.html"));
    check_page(page, NULL);
    must_contain(page, "is not the published one");
    assert_null(strstr(page, ":/systems"));
    free(page);
    assert_int_equal(run("a.json a.json --out twice.html"), 0);
    page = slurp(scratch_path(&box, "twice.html"));
    must_contain(page, "data-from=\"1:/device/p50_ms\"");
    must_contain(page, "data-from=\"2:/device/p50_ms\"");
    free(page);
}

/* What the instruments write today, not only what the fixtures remember of it. The same of breakdowns:
 * scripts/trace_analyze. */
static void test_real_files(void **state) {
    (void)state;
#define SMALL " --synthetic tiny --steps 2 --runs 2 --warmup 0 --json "
    static const char *const words[] = {
        "bench" SMALL "a.json --no-energy --batch 1,2",
        "profile" SMALL "b.json",
        "ladder" SMALL "c.json",
        "roof --json d.json",
        "roof --model mi300x --json e.json",
        "profile --device hip:sim:mi350 --json f.json",
    };
    static const char *const sections[] = {"headline", "compare", "predicted", "scaling", "stages",
                                           "roofline", "gaps",    "ladder",    "roofs"};
    static const char *const kinds[] = {"bench", "profile", "ladder", "roof", "roof", "profile"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (run_line(words[i])) fail_msg("openpi %s: %s", words[i], err);
    for (int i = 1; i <= file_count; i++) json_decref(files[i]);
    file_count = 6;
    for (int i = 1; i <= file_count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%c.json", 'a' + i - 1);
        files[i] = json_load_file(scratch_path(&box, name), 0, NULL);
        assert_non_null(files[i]);
        has_head(files[i], kinds[i - 1]);
        const char *hardware =
            json_string_value(json_object_get(json_object_get(files[i], "machine"), "hardware"));
        assert_true(hardware && *hardware);
    }
    add_published();
    assert_int_equal(run("a.json b.json c.json d.json e.json f.json %s --out real.html",
                         TESTS_DIR "/../docs/peers.json"),
                     0);
    char *page = slurp(scratch_path(&box, "real.html"));
    assert_true(check_page(page, NULL) > 400);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        char start[60];
        snprintf(start, sizeof start, "<section id=\"%s\">", sections[i]);
        must_contain(page, start);
    }
    must_contain(page, "PREDICTED: AMD Instinct MI300X");
    must_contain(page, "PREDICTED: AMD Instinct MI350X");
    must_contain(page, "\"7:/systems/3/ms\"");            /* MI300X, 26.1 ms                              */
    free(page);
}

static void write_text(const char *name, const char *text) {
    assert_int_equal(scratch_write(&box, name, text, strlen(text)), 0);
}

static void test_bad_input(void **state) {
    (void)state;
    load_fixtures();
    write_files();
    write_text("not", "{\"kind\":");
    write_text("array", "[1]");
    write_text("kind", "{\"kind\":\"cake\",\"format\":1}");
    write_text("format", "{\"kind\":\"bench\",\"format\":2}");
    write_text("table", "{\"kind\":\"tuning\",\"format\":2}");     /* what tune --out writes, not --json */
    write_text("empty", "{\"kind\":\"bench\",\"format\":1}");
    write_text("bytes", "{\"kind\":\"bench\",\"format\":1,\"version\":\"\xff\"}");
    write_text("deep", "{\"kind\":\"profile\",\"format\":1,\"machine\":{\"device\":\"d\"},\"stages\":[],"
                       "\"ops\":[{\"name\":\"a\","
                       "\"stage\":\"s\",\"shape\":\"x\",\"time_us\":\"long\"}]}");
    write_text("list", "{\"kind\":\"profile\",\"format\":1,\"machine\":{\"device\":\"d\"},\"stages\":7}");
    write_text("theirs", "{\"kind\":\"published\",\"format\":1,\"systems\":[{\"variant\":\"pi0\","
                         "\"who\":\"w\",\"name\":\"n\",\"gpu\":\"g\"}]}");
    static const struct {
        const char *args, *sentence;
    } bad[] = {
        {"--out x.html", "FILE"},
        {"a.json", "no --out: name the page, such as --out report.html"},
        {"absent.json --out x.html", "absent.json: cannot be opened: No such file or directory"},
        {"not --out x.html", "not: not valid JSON: premature end of input (line 1, column 9)"},
        {"array --out x.html", "array: its kind is missing"},
        {"kind --out x.html", "kind: its kind is 'cake', expected one of bench, peer, profile, ladder, tune, roof, breakdown, server_bench, published"},
        {"table --out x.html", "table: its kind is 'tuning', expected one of bench, peer, "},
        {"format --out x.html", "format: its format is 2, expected 1"},
        {"empty --out x.html", "empty: /machine/device is missing, expected a string in a file of kind bench"},
        {"bytes --out x.html", "bytes: not valid JSON: "},
        {"deep --out x.html", "deep: /ops/0/time_us is of another type, expected a number in a file of kind profile"},
        {"theirs --out x.html", "theirs: /systems/0/ms is missing, expected a number in a file of kind published"},
        {"list --out x.html", "list: /stages is of another type, expected a list in a file of kind profile"},
        {"a.json --out absent/x.html", "absent/x.html: cannot be written: No such file or directory"},
        {"a.json --out /dev/full", "/dev/full: cannot be written: No space left on device"},
        {"a.json --out a.json", "--out is 'a.json', which is also a file to read"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int status = run("%s", bad[i].args);
        if (status != 2) fail_msg("%s: status %d: %s", bad[i].args, status, err);
        must_contain(err, bad[i].sentence);
    }
    char many[400] = "";
    for (int i = 0; i < 33; i++) strcat(many, "a.json ");
    assert_int_equal(run("%s --out x.html", many), 2);
    must_contain(err, "33 files, expected at most 32");
    /* Each needed number gone, one at a time: a sentence that names it. */
    static const char *const keys[] = {"p50_ms", "p99_ms", "hz", "samples_per_s"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char sentence[80];
        load_fixtures();
        json_object_del(json_object_get(files[1], "host"), keys[i]);
        write_files();
        assert_int_equal(run("a.json --out x.html"), 2);
        snprintf(sentence, sizeof sentence, "a.json: /host/%s is missing, expected a number", keys[i]);
        must_contain(err, sentence);
    }
}

/* Every string of every file becomes an attack; the page must not hold a single one unescaped. */
static void poison(json_t *at) {
    static const char attack[] = "\"><script>alert(1)</script><img src=x onerror='x'>&\x01\xef\xbf\xbe";
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_array(at)) {
        json_array_foreach(at, i, one) poison(one);
    } else if (json_is_object(at)) {
        json_object_foreach(at, key, one) if (strcmp(key, "kind")) poison(one);
    } else if (json_is_string(at)) {
        json_string_set_nocheck(at, attack);
    }
}

static void test_hostile(void **state) {
    (void)state;
    load_fixtures();
    for (int i = 1; i <= file_count; i++) {
        const char *kind = json_string_value(json_object_get(files[i], "kind"));
        json_t *keep = json_string(kind);
        poison(files[i]);
        json_object_set_new(files[i], "kind", keep);
    }
    assert_int_equal(run("%s --out hostile.html", write_files()), 0);
    char *page = slurp(scratch_path(&box, "hostile.html"));
    assert_null(strstr(page, "<script"));
    assert_null(strstr(page, "<img"));
    assert_null(strchr(page, 1));
    must_contain(page, "&quot;&gt;&lt;script&gt;");
    free(page);
    /* A name that is not UTF-8 and full of markup, through the shell. */
    assert_int_equal(
        run("\"$(cp a.json \"$(printf '<b>\\377&.json')\"; printf '<b>\\377&.json')\" --out name.html"), 0);
    page = slurp(scratch_path(&box, "name.html"));
    assert_null(strchr(page, '\377'));
    assert_null(strstr(page, "<b>\xef"));
    must_contain(page, "&lt;b&gt;\xef\xbf\xbd&amp;.json");
    free(page);
    /* Numbers that no clock measures. */
    load_fixtures();
    json_t *stage = json_array_get(json_object_get(files[1], "stages"), 0);
    json_object_set_new(stage, "p50_ms", json_real(-1e308));
    json_object_set_new(json_object_get(files[1], "device"), "p50_ms", json_real(0));
    json_object_set_new(json_array_get(json_object_get(files[1], "batches"), 0), "batch", json_integer(-5));
    json_object_set_new(json_object_get(json_object_get(files[1], "histogram"), "host"), "width_ms",
                        json_real(0));
    json_object_set_new(files[4], "ops", json_array());
    json_object_set_new(files[4], "roofs", json_null());
    json_object_set_new(files[6], "shapes", json_array());
    assert_int_equal(run("%s --out odd.html", write_files()), 0);
    page = slurp(scratch_path(&box, "odd.html"));
    assert_null(strstr(page, "=\"nan"));
    assert_null(strstr(page, "=\"inf"));
    free(page);
}

static int set_up(void **state) {
    (void)state;
    return scratch_open(&box);
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 1; i <= file_count; i++) json_decref(files[i]);
    free(err);
    scratch_close(&box);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_figure), cmocka_unit_test(test_words_of_figures),
        cmocka_unit_test(test_missing_sections), cmocka_unit_test(test_real_files),
        cmocka_unit_test(test_bad_input),    cmocka_unit_test(test_hostile),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
