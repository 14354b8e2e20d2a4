/* labels: threads */
/* base/: sentences, conversions, the thread pool, JSON members; and the documented noise. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/finite.h"
#include "base/json.h"
#include "base/guess.h"
#include "base/notes.h"
#include "base/report.h"
#include "base/threads.h"

static void report_cuts_between_characters(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    char text[1200];
    for (size_t lead = 490; lead < 500; lead++) {
        memset(text, 'a', lead);
        strcpy(text + lead, "ππππππ");
        assert_int_equal(report(&error, OPENPI_BAD_INPUT, "%s", text), OPENPI_BAD_INPUT);
        size_t length = strlen(error.message);
        assert_true(length < sizeof error.message);
        for (size_t i = lead; i < length; i += 2) {
            assert_int_equal((unsigned char)error.message[i], 0xcf);
            assert_int_equal((unsigned char)error.message[i + 1], 0x80);
        }
    }
    report(&error, OPENPI_BAD_FILE, "two\nlines");
    assert_string_equal(error.message, "two lines");
    assert_int_equal(report(NULL, OPENPI_NO_MEMORY, "x"), OPENPI_NO_MEMORY);
}

static void every_status_has_a_text(void **state) {
    (void)state;
#define X(name, value, text) assert_string_equal(openpi_status_text(name), text);
    OPENPI_STATUS_LIST(X)
#undef X
    assert_string_equal(openpi_status_text((openpi_status)77), "unknown status");
}

/* All 65536 bf16 values survive; halves between neighbours go to even. */
static void bf16_rounds_to_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float f = bf16_to_float((bf16)bits);
        if (isnan(f))
            assert_true(isnan(bf16_to_float(float_to_bf16(f))));
        else
            assert_int_equal(float_to_bf16(f), bits);
    }
    assert_int_equal(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(float_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
    assert_int_equal(float_to_bf16(1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
}

static void f16_is_exact(void **state) {
    (void)state;
    assert_true(f16_to_float(0x3c00) == 1.0f);
    assert_true(f16_to_float(0xc000) == -2.0f);
    assert_true(f16_to_float(0x0001) == 0x1p-24f);
    assert_true(f16_to_float(0x8001) == -0x1p-24f);
    assert_true(f16_to_float(0x7bff) == 65504.0f);
    assert_true(isinf(f16_to_float(0x7c00)));
    assert_true(isnan(f16_to_float(0x7e00)));
}

/* All numbers of F16 survive; between two neighbours the nearer is taken, in the middle the even one. */
static void f16_rounds_to_even(void **state) {
    (void)state;
    for (int bits = 0; bits < 0x10000; bits++) {
        float f = f16_to_float((uint16_t)bits);
        if (isnan(f)) assert_true(isnan(f16_to_float(float_to_f16(f))));
        else assert_int_equal(float_to_f16(f), bits);
        if ((bits & 0x7fff) >= 0x7bff) continue;
        float next = f16_to_float((uint16_t)(bits + 1)), middle = (f + next) / 2;
        assert_int_equal(float_to_f16(middle), bits & 1 ? bits + 1 : bits);
        assert_int_equal(float_to_f16(nextafterf(middle, f)), bits);
        assert_int_equal(float_to_f16(nextafterf(middle, next)), bits + 1);
    }
    assert_int_equal(float_to_f16(65519.996f), 0x7bff);
    assert_int_equal(float_to_f16(65520.0f), 0x7c00);
    assert_int_equal(float_to_f16(-1e30f), 0xfc00);
    assert_int_equal(float_to_f16(1e-30f), 0);
    assert_int_equal(float_to_f16(-1e-40f), 0x8000);
}

/* One that is not finite, at any place of three blocks. */
static void f16_finds_infinity(void **state) {
    enum { COUNT = 3 * FINITE_BLOCK + 5 };
    uint16_t values[COUNT];
    (void)state;
    for (int i = 0; i < COUNT; i++) values[i] = (uint16_t)(i & 1 ? 0xfbff : i);
    assert_true(all_finite_f16(values, COUNT));
    for (int i = 0; i < COUNT; i++) {
        uint16_t was = values[i];
        values[i] = i & 2 ? 0x7c00 : 0xfe01;
        assert_false(all_finite_f16(values, COUNT));
        values[i] = was;
    }
    assert_true(all_finite_f16(values, COUNT));
}

static void free_space(void **state) {
    (void)state;
    assert_true(file_free_space("/dev/null/absent") == UINT64_MAX);
    assert_true(file_free_space("/proc") < UINT64_MAX);
}

typedef struct loop {
    atomic_int seen[1000];
    atomic_int inside[16];
    atomic_int clash;
} loop;

static void count_task(void *argument, int task, int worker) {
    loop *l = argument;
    if (atomic_fetch_add(&l->inside[worker], 1)) atomic_store(&l->clash, 1);
    atomic_fetch_add(&l->seen[task], 1);
    atomic_fetch_sub(&l->inside[worker], 1);
}

static void *run_loops(void *argument) {
    pool *workers = argument;
    loop *l = calloc(1, sizeof *l);
    for (int round = 1; round <= 200; round++) {
        int tasks = round % 7 ? 1000 : 1;
        pool_run(workers, count_task, l, tasks);
        for (int i = 0; i < tasks; i++)
            if (atomic_exchange(&l->seen[i], 0) != 1) atomic_store(&l->clash, 1);
    }
    int clash = atomic_load(&l->clash);
    free(l);
    return clash ? argument : NULL;
}

static void pool_runs_each_task_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads += 2) {
        pool *workers;
        pthread_t other;
        void *bad;
        assert_int_equal(pool_create(threads, 0, &workers, NULL), OPENPI_OK);
        assert_int_equal(pool_threads(workers), threads);
        assert_int_equal(pthread_create(&other, NULL, run_loops, workers), 0);     /* two callers at once */
        assert_null(run_loops(workers));
        pthread_join(other, &bad);
        assert_null(bad);
        pool_close(workers);
    }
    openpi_error error = OPENPI_ERROR_INIT;
    pool *none = NULL;
    assert_int_equal(pool_create(-1, 0, &none, &error), OPENPI_BAD_ARGUMENT);
    assert_non_null(strstr(error.message, "threads is -1"));
    pool_close(NULL);
}

static void json_members_are_checked(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *root = NULL;
    const char *text = "{\"a\": 3, \"b\": \"x\", \"c\": [1, 2.5], \"d\": [1, \"y\"], \"e\": null, \"f\": 99}";
    int value = -1, count;
    double numbers[2];
    assert_int_equal(json_parse(text, strlen(text), "t.json", &root, &error), OPENPI_OK);
    assert_int_equal(json_get_int(root, "a", "t.json", 0, 9, &value, &error), OPENPI_OK);
    assert_int_equal(value, 3);
    assert_int_equal(json_get_int(root, "e", "t.json", 0, 9, &value, &error), OPENPI_OK);
    assert_int_equal(value, 3);
    assert_int_equal(json_get_int(root, "f", "t.json", 0, 9, &value, &error), OPENPI_BAD_FILE);
    assert_string_equal(error.message, "t.json: \"f\" is 99, expected an integer from 0 to 9");
    assert_int_equal(json_get_int(root, "b", "t.json", 0, 9, &value, &error), OPENPI_BAD_FILE);
    assert_string_equal(error.message, "t.json: \"b\" is a string, expected an integer from 0 to 9");
    assert_int_equal(json_get_doubles(root, "c", "t.json", numbers, 2, &count, &error), OPENPI_OK);
    assert_int_equal(count, 2);
    assert_true(numbers[1] == 2.5);
    assert_int_equal(json_get_doubles(root, "c", "t.json", numbers, 1, &count, &error), OPENPI_BAD_FILE);
    assert_int_equal(json_get_doubles(root, "d", "t.json", numbers, 2, &count, &error), OPENPI_BAD_FILE);
    assert_non_null(strstr(error.message, "\"d\"[1] is a string"));
    json_decref(root);
    assert_int_equal(json_parse("{\"a\":1,\"a\":2}", 13, "t.json", &root, &error), OPENPI_BAD_FILE);
    assert_non_null(strstr(error.message, "t.json: not valid JSON"));
}

/* Philox4x32-10's published test vector for a zero counter and key: 6627e8d5 e169c58d bc57ac4c 9b00dbd8. */
static void noise_is_philox_and_box_muller(void **state) {
    (void)state;
    const uint32_t bits[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    float z[4], many[4003], tail[3];
    openpi_noise(0, 0, z, 4);
    for (int i = 0; i < 4; i += 2) {
        double u0 = (bits[i] + 0.5) / 4294967296.0, u1 = (bits[i + 1] + 0.5) / 4294967296.0;
        assert_true(fabs(z[i] - sqrt(-2 * log(u0)) * cos(6.283185307179586 * u1)) < 1e-6);
        assert_true(fabs(z[i + 1] - sqrt(-2 * log(u0)) * sin(6.283185307179586 * u1)) < 1e-6);
    }
    double sum = 0, squares = 0;
    openpi_noise(7, 1, many, 4003);
    openpi_noise(7, 1, tail, 3);
    assert_memory_equal(many, tail, sizeof tail);
    for (int i = 0; i < 4003; i++) sum += many[i], squares += (double)many[i] * many[i];
    assert_true(fabs(sum / 4003) < 0.08 && fabs(squares / 4003 - 1) < 0.12);
    openpi_noise(7, 2, tail, 3);
    assert_memory_not_equal(many, tail, sizeof tail);
}

static void notes_are_told_once(void **state) {
    (void)state;
    notes list = {0};
    int warning = 7;
    assert_null(notes_get(&list, 0, &warning));
    notes_add(NULL, 1, "nobody is told");
    notes_add(&list, 1, "the first of %d", 2);
    notes_add(&list, 0, "the second");
    notes_add(&list, 1, "the first of %d", 2);
    assert_int_equal(list.count, 2);
    assert_string_equal(notes_get(&list, 0, &warning), "the first of 2");
    assert_int_equal(warning, 1);
    assert_string_equal(notes_get(&list, 1, &warning), "the second");
    assert_int_equal(warning, 0);
    assert_null(notes_get(&list, 2, NULL));
    assert_null(notes_get(&list, -1, NULL));
}

static void notes_that_have_no_place_are_counted(void **state) {
    (void)state;
    notes list = {0};
    char text[2 * NOTE_BYTES];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    notes_add(&list, 0, "%s", text);
    assert_int_equal(strlen(notes_get(&list, 0, NULL)), NOTE_BYTES - 1);
    for (int i = 0; i < NOTES + 2; i++) notes_add(&list, i == NOTES, "number %d", i);
    int warning = 0;
    assert_non_null(strstr(notes_get(&list, NOTES - 1, &warning), "there are 4 more notes"));
    assert_int_equal(warning, 1);
    assert_null(notes_get(&list, NOTES, NULL));
}

/* The sentence ends with these words. */
static void must_ask(const openpi_error *error, const char *end) {
    const char *found = strstr(error->message, end);
    if (!found || strcmp(found, end)) fail_msg("\"%s\", expected \"%s\" at its end", error->message, end);
}

/* Few letters, their order, their case; the library's lists and what came instead of what is missing. */
static void words_that_were_meant(void **state) {
    (void)state;
    static const char *const robots[] = {"aloha", "droid", "libero", NULL, "droid_jointpos"};
    static const struct {
        const char *word;
        int near;
    } cases[] = {{"droit", 1}, {"DROID", 1}, {"dorid", 1},     {"drid", 1}, {"libro", 2}, {"droid", -1},
                 {"arm", -1},  {"", -1},     {"droid_joint", 4}, {"alhoa", 0}, {"abcde", -1}};
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(openpi_near_word(cases[i].word, robots, 5), cases[i].near);
    assert_int_equal(openpi_near_word(NULL, robots, 5), -1);
    assert_int_equal(openpi_near_word("droit", NULL, 5), -1);
    report(&error, OPENPI_BAD_INPUT, "no camera");
    assert_int_equal(guess_add(&error, OPENPI_BAD_INPUT, "cam_hihg", "images/cam_high (base), b (unused)"),
                     OPENPI_BAD_INPUT);
    assert_string_equal(error.message, "no camera; did you mean \"cam_high\"?");
    report(&error, OPENPI_BAD_INPUT, "no state");
    guess_add_missing(&error, OPENPI_BAD_INPUT, "observation/state", "prompt observation/stat ");
    must_ask(&error, "; did you mean \"observation/state\" by \"observation/stat\"?");
    report(&error, OPENPI_BAD_INPUT, "none");
    guess_add(&error, OPENPI_BAD_INPUT, "left", "right, base");
    assert_string_equal(error.message, "none");
    guess_add(NULL, OPENPI_BAD_INPUT, "droit", "droid");
    /* A long sentence makes room for the question, between characters. */
    char umlauts[2 * sizeof error.message] = "";
    while (strlen(umlauts) < sizeof error.message) strcat(umlauts, "ü");
    report(&error, OPENPI_BAD_INPUT, "x%s", umlauts);
    guess_add(&error, OPENPI_BAD_INPUT, "droit", "droid");
    must_ask(&error, "ü…; did you mean \"droid\"?");
    assert_in_range(strlen(error.message), sizeof error.message - 3, sizeof error.message - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(report_cuts_between_characters),
        cmocka_unit_test(words_that_were_meant),
        cmocka_unit_test(every_status_has_a_text),
        cmocka_unit_test(notes_are_told_once),
        cmocka_unit_test(notes_that_have_no_place_are_counted),
        cmocka_unit_test(bf16_rounds_to_even),
        cmocka_unit_test(f16_is_exact),
        cmocka_unit_test(f16_rounds_to_even),
        cmocka_unit_test(f16_finds_infinity),
        cmocka_unit_test(free_space),
        cmocka_unit_test(pool_runs_each_task_once),
        cmocka_unit_test(json_members_are_checked),
        cmocka_unit_test(noise_is_philox_and_box_muller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
