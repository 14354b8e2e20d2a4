/* base/json_parse.c: the same values as jansson's own parser, which is the reference here, by every rule; and
 * its refusals. */
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/json.h"
#include "policy_golden.h"

static void same_by(const char *text, size_t bytes, const char *name, const json_rules *rules) {
    openpi_error error = OPENPI_ERROR_INIT;
    size_t flags = JSON_REJECT_DUPLICATES | (rules->any_value ? JSON_DECODE_ANY : 0) |
                   (rules->nul ? JSON_ALLOW_NUL : 0);
    json_t *got = NULL, *want = json_loadb(text, bytes, flags, NULL);
    openpi_status status = json_parse_by(text, bytes, name, rules, &got, &error);
    if ((status == OPENPI_OK) != (want != NULL))
        fail_msg("%s: %s, jansson says %s", name, error.message, want ? "ok" : "no");
    if (want) {
        const size_t form = JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY;
        char *a = json_dumps(got, form), *b = json_dumps(want, form);
        assert_string_equal(a, b);                                   /* the order of keys too */
        free(a), free(b);
    }
    json_decref(got);
    json_decref(want);
}

/* By each rule alone, by none and by all. */
static void same_as_jansson(const char *text, size_t bytes, const char *name) {
    static const json_rules rules[] = {{0}, {.any_value = 1}, {.nul = 1}, {.any_value = 1, .nul = 1}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) same_by(text, bytes, name, &rules[i]);
}

static void agrees_with_jansson(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        " ",
        "[",
        "[]",
        "{}",
        " [ ] ",
        "[1]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\":1}",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "{a:1}",
        "{\"a\":1,\"a\":2}",
        "[]]",
        "[] x",
        "3",
        "\"x\"",
        "null",
        "[true,false,null]",
        "[tru]",
        "[True]",
        "[nul",
        "[0]",
        "[-0]",
        "[00]",
        "[01]",
        "[-]",
        "[+1]",
        "[1.]",
        "[.5]",
        "[1.5]",
        "[1e5]",
        "[1E+5]",
        "[1e-5]",
        "[1e]",
        "[1e+]",
        "[-1.25e-3]",
        "[1e999]",
        "[-1e999]",
        "[1e-999]",
        "[9223372036854775807]",
        "[-9223372036854775808]",
        "[9223372036854775808]",
        "[0.1000000000000000055511151231257827021181583404541015625]",
        "[\"\"]",
        "[\"a\\n\\t\\\"\\\\\\/\\b\\f\\r\"]",
        "[\"\\x\"]",
        "[\"\\u0041\\u00e9\\u20ac\"]",
        "[\"\\ud83d\\ude42\"]",
        "[\"\\ud83d\"]",
        "[\"\\ude42\"]",
        "[\"\\ud83d\\u0041\"]",
        "[\"\\u00\"]",
        "[\"\\u004g\"]",
        "[\"\\u0000\"]",
        "[\"abc",
        "[\"abc\\",
        "[\"abc\\\"",
        "[\"\x01\"]",
        "[\"\n\"]",
        "[\"é€🙂\"]",
        "[\"\xff\"]",
        "[\"\xc3\"]",
        "[\"\xed\xa0\x80\"]",
        "[\"\xc0\x80\"]",
        "[\"\xf4\x90\x80\x80\"]",
        "{\"\\u00e9\":{\"b\":[[[]]]},\"c\":\"\"}",
        "[1]\n\t\r ",
        "\xef\xbb\xbf[]",
        "[[[[[[[[[[]]]]]]]]]]",
        "{\"a\":[1,{\"b\":2}],\"c\":{}}",
        "[}",
        "{]",
        "{\"a\":}",
        "{\"a\"",
        "{\"a\":1",
        "[1,",
        "nan",
        "[NaN]",
        "[Infinity]",
        "[-Infinity]",
        "/**/[]",
        "['a']",
        "3 4",
        "1.5",
        " \"\\u0000\" ",
        "{\"\\u0000\":1}",
        "{\"a\\u0000b\":1}",
        "{\"a\":1,\"b\":2,\"a\":[3]}",
        "tru",
        "-",
        "\"",
        "[\"a\\u0000b\"]",
        "}",
        "]",
        ",",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        same_as_jansson(texts[i], strlen(texts[i]), texts[i]);
    same_as_jansson("[1]\0", 4, "a NUL at the end");
    same_as_jansson("[\"a\0b\"]", 7, "a NUL inside");
}

static void agrees_on_whole_files(void **state) {
    (void)state;
    static const char *const files[] = {
        GOLDEN "/synth_hashes.json",
        GOLDEN "/lerobot/pi05/checkpoint/config.json",
        GOLDEN "/lerobot/pi05/checkpoint/policy_preprocessor.json",
        GOLDEN "/lerobot/pi05/checkpoint/tokenizer/tokenizer.json",
        GOLDEN "/policy/droid_pi0/norm_stats.json",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t bytes;
        char *text = golden_read(files[i], &bytes);
        same_as_jansson(text, bytes, files[i]);
        free(text);
    }
    size_t bytes;                                                    /* cut anywhere */
    char *text = golden_read(files[2], &bytes);
    for (size_t cut = 0; cut < bytes; cut++) same_as_jansson(text, cut, "a cut file");
    free(text);
}

static void sentences(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *value = NULL;
    REFUSES(json_parse("{\n  \"a\": 1,\n  \"b\": tru\n}", 25, "t.json", &value, &error), OPENPI_BAD_FILE,
            "t.json: not valid JSON: a value is expected (line 3, column 8)");
    REFUSES(json_parse("[1,\n x]", 7, "t.json", &value, &error), OPENPI_BAD_FILE, "(line 2, column 2)");
    char deep[400] = "";
    memset(deep, '[', 101);
    memset(deep + 101, ']', 101);
    REFUSES(json_parse(deep, 202, "deep", &value, &error), OPENPI_BAD_FILE, "more than 100");
    WORKS(json_parse(deep + 1, 200, "deep", &value, &error));
    json_decref(value);
}

/* A program whose decimal point is a comma reads the same numbers. */
static void numbers_do_not_follow_the_locale(void **state) {
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "C"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_NUMERIC, names[i])) break;
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *value;
    WORKS(json_parse("[1.5]", 5, "t", &value, &error));
    assert_true(json_real_value(json_array_get(value, 0)) == 1.5);
    json_decref(value);
    setlocale(LC_NUMERIC, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_jansson),
        cmocka_unit_test(agrees_on_whole_files),
        cmocka_unit_test(sentences),
        cmocka_unit_test(numbers_do_not_follow_the_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
