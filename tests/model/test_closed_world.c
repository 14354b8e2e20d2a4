/* checkpoint/closed_world.c: every row of the table does what it says, and docs/closed-world.md is the table.
 * `test_closed_world page` prints that page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/closed_world.h"
#include "policy_golden.h"

static openpi_error error = OPENPI_ERROR_INIT;

/* {"KEY": VALUE} through the check. */
static openpi_status check(const closed_key *row, const char *value) {
    json_t *object = json_object(), *decoded = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(decoded);
    assert_int_equal(json_object_set_new(object, row->key, decoded), 0);
    openpi_status status = closed_world_check(row->where, object, "FILE", "", &error);
    json_decref(object);
    return status;
}

static void rows_hold(void **state) {
    const closed_key *row;
    (void)state;
    for (int i = 0; (row = closed_world_at(i)); i++) {
        char piece[128];
        for (int k = 0; k < i; k++)
            assert_false(!strcmp(closed_world_at(k)->where, row->where) &&
                         !strcmp(closed_world_at(k)->key, row->key));
        assert_true(row->why[0]);
        if (row->use != KEY_ONLY && row->values) {
            snprintf(piece, sizeof piece, "FILE: \"%s\" is a real number, expected an object", row->key);
            REFUSES(check(row, "12345.5"), OPENPI_BAD_FILE, piece);
            WORKS(check(row, "{}"));
            WORKS(check(row, "null"));
            continue;
        }
        if (row->use != KEY_ONLY) {
            WORKS(check(row, "12345.5"));
            continue;
        }
        char list[256];
        snprintf(list, sizeof list, "[%s]", row->values);
        json_t *values = json_loads(list, 0, NULL);
        assert_true(json_array_size(values) > 0);
        for (size_t v = 0; v < json_array_size(values); v++) {
            char *text = json_dumps(json_array_get(values, v), JSON_ENCODE_ANY);
            WORKS(check(row, text));
            free(text);
        }
        json_decref(values);
        snprintf(piece, sizeof piece, "FILE: \"%s\" is 12345.5, expected ", row->key);
        REFUSES(check(row, "12345.5"), OPENPI_UNSUPPORTED, piece);
        REFUSES(check(row, "\"nonsense\""), OPENPI_UNSUPPORTED, "is \"nonsense\", expected ");
    }
    assert_null(closed_world_at(-1));
}

static void others_are_refused(void **state) {
    const closed_key *row;
    (void)state;
    for (int i = 0; (row = closed_world_at(i)); i++) {
        closed_key other = *row;
        other.key = "gripper_bias";
        REFUSES(check(&other, "null"), OPENPI_UNSUPPORTED, "FILE: has a setting \"gripper_bias\" that is not known");
    }
}

static void inner_objects_are_checked(void **state) {
    static const struct {
        const char *key, *value, *piece;
    } rows[] = {
        {"rtc_config", "{\"sigma\": 1}", "FILE: rtc_config has a setting \"sigma\""},
        {"rtc_config", "{\"mode\": \"soft\"}", "FILE: rtc_config: \"mode\" is \"soft\""},
        {"normalization_mapping", "{\"STATE\": \"Z\"}", "FILE: normalization_mapping: \"STATE\" is \"Z\""},
        {"normalization_mapping", "{\"TOUCH\": \"IDENTITY\"}", "normalization_mapping has a setting \"TOUCH\""},
        {"rtc_config", "\"guided\"", "\"rtc_config\" is a string, expected an object"},
        {"input_features", "{\"a\": {\"type\": \"STATE\", \"clip\": 1}}", "feature \"a\" has a setting \"clip\""},
        {"input_features", "{\"a\": {\"type\": \"LIDAR\"}}", "feature \"a\": \"type\" is \"LIDAR\", expected one of"},
        {"input_features", "{\"a\": 3}", "feature \"a\" is an integer, expected an object"},
        {"max_period", "4.0", NULL},
        {"max_state_dim", "32.0", NULL},
        {"image_resolution", "[224.0, 224]", NULL},
        {"image_resolution", "[224, 224, 224]", "\"image_resolution\" is [224, 224, 224], expected [224, 224]"},
        {"rtc_config", "null", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const closed_key row = {.where = "config.json", .key = rows[i].key};
        if (!rows[i].piece) WORKS(check(&row, rows[i].value));
        else
            REFUSES(check(&row, rows[i].value),
                    strstr(rows[i].piece, "an object") ? OPENPI_BAD_FILE : OPENPI_UNSUPPORTED, rows[i].piece);
    }
}

/* ---- the page ---------------------------------------------------------------------------------------- */

static const char head[] =
    "<!-- build/tests/test_closed_world page > docs/closed-world.md -->\n"
    "# What LeRobot's files may say\n\n"
    "openpi reads the JSON files of a LeRobot checkpoint as a closed world. A key is used, or it is known to\n"
    "change no action, or the checkpoint is refused with a sentence that names the key. So a setting that this\n"
    "engine does not compute cannot be skipped in silence. Processors' steps run in the order of their files;\n"
    "a step with another `registry_name` than those below is refused as well.\n\n"
    "This page is written from the table in `src/checkpoint/closed_world.c`, and a test compares the two. A key\n"
    "that LeRobot has and the table lacks is a bug here: please report the sentence.\n";

static const struct {
    const char *where, *title;
} titles[] = {
    {"config.json", "config.json"},
    {"feature", "A feature of `input_features`, `output_features`"},
    {"normalization_mapping", "`normalization_mapping` and a step's `norm_map`"},
    {"rtc_config", "`rtc_config`"},
    {"processor", "policy_preprocessor.json, policy_postprocessor.json"},
    {"step", "A step"},
    {"artifacts", "`artifacts` of a step"},
    {"adapter_config.json", "adapter_config.json"},
};

static void title_of(const char *where, char *out, size_t bytes) {
    snprintf(out, bytes, "The step `%s`", where);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        if (!strcmp(titles[i].where, where)) snprintf(out, bytes, "%s", titles[i].title);
}

static void write_page(FILE *page) {
    static const char *const uses[] = {"used", "harmless", "only"};
    const char *where = "";
    const closed_key *row;
    fputs(head, page);
    for (int i = 0; (row = closed_world_at(i)); i++) {
        char title[128];
        title_of(row->where, title, sizeof title);
        if (strcmp(where, row->where))
            fprintf(page, "\n## %s\n| key | | what, or why |\n|---|---|---|\n", title);
        where = row->where;
        fprintf(page, "| `%s` | %s", row->key, uses[row->use]);
        if (row->use == KEY_ONLY) fprintf(page, " `%s`", row->values);
        fprintf(page, " | %s |\n", row->why);
    }
}

static void the_page_is_the_table(void **state) {
    char *table = NULL;
    size_t bytes = 0, length;
    FILE *memory = open_memstream(&table, &bytes), *file = fopen(TESTS_DIR "/../docs/closed-world.md", "rb");
    (void)state;
    assert_non_null(memory);
    assert_non_null(file);
    write_page(memory);
    fclose(memory);
    char *page = malloc(bytes + 2);
    assert_non_null(page);
    length = fread(page, 1, bytes + 1, file);
    page[length] = 0;
    fclose(file);
    if (strcmp(page, table))
        fail_msg("docs/closed-world.md is not the table: build/tests/test_closed_world page > "
                 "docs/closed-world.md");
    free(page);
    free(table);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_hold),
        cmocka_unit_test(others_are_refused),
        cmocka_unit_test(inner_objects_are_checked),
        cmocka_unit_test(the_page_is_the_table),
    };
    if (argc == 2 && !strcmp(argv[1], "page")) {
        write_page(stdout);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
