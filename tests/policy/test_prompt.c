/* policy/prompt: whole prompts against openpi's and LeRobot's goldens, cleaning and state bins against
 * Python's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "policy/prompt.h"
#include "policy_golden.h"

enum { MAX = 200 };

typedef struct bench {
    tokenizer *tokenizer;
    tokenizer_scratch *scratch;
    prompt_buffer *buffer;
} bench;

static bench bench_open(const char *path) {
    bench b = {0};
    openpi_error error = OPENPI_ERROR_INIT;
    WORKS(tokenizer_open(path, &b.tokenizer, &error));
    WORKS(tokenizer_scratch_create(0, &b.scratch, &error));
    WORKS(prompt_buffer_create(0, 0, &b.buffer, &error));
    return b;
}

static void bench_close(bench *b) {
    prompt_buffer_close(b->buffer);
    tokenizer_scratch_close(b->scratch);
    tokenizer_close(b->tokenizer);
}

/* ---- openpi --------------------------------------------------------------------------------------- */

static void test_openpi(void **state) {
    (void)state;
    bench b = bench_open(GOLDEN "/tokenizer.model");
    openpi_error error = OPENPI_ERROR_INIT;
    json_t *root = json_load_file(GOLDEN "/steps.json", JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    const json_t *list = json_object_get(root, "tokenize");
    int forms[2] = {0, 0};
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *prompt = json_object_get(item, "prompt"),
                     *values = json_object_get(item, "state");
        const json_t *expected = json_object_get(item, values ? "pi05" : "pi0");
        double numbers[64];
        int32_t ids[MAX];
        int n = (int)json_array_size(values), count = -1, max = (int)json_array_size(expected);
        assert_true(n <= 64 && max <= MAX && max > 0);
        for (int k = 0; k < n; k++) numbers[k] = json_number_value(json_array_get(values, (size_t)k));
        WORKS(prompt_openpi(b.tokenizer, b.scratch, b.buffer, json_string_value(prompt),
                            json_string_length(prompt), numbers, n, ids, max, &count, &error));
        if (count != json_integer_value(json_object_get(item, "length")))
            fail_msg("prompt %zu: %d ids", i, count);
        for (int k = 0; k < max; k++)
            if ((k < count ? ids[k] : TOKEN_PAD) != json_integer_value(json_array_get(expected, (size_t)k)))
                fail_msg("prompt %zu, id %d", i, k);
        forms[values != NULL]++;
    }
    assert_true(forms[0] >= 10 && forms[1] >= 5);
    json_decref(root);
    bench_close(&b);
}

/* Truncation takes the first ids, whatever the limit; π0's newline is the first to go. */
static void test_truncation(void **state) {
    (void)state;
    bench b = bench_open(GOLDEN "/tokenizer.model");
    openpi_error error = OPENPI_ERROR_INIT;
    const double values[3] = {-2, 0, 0.5};
    for (int n = 0; n <= 3; n += 3) {
        int32_t all[MAX], some[MAX];
        int length = 0, count;
        WORKS(prompt_openpi(b.tokenizer, b.scratch, b.buffer, "pick up the red cup", 19, values, n, all, MAX, &length, &error));
        assert_true(length > 5 && length < MAX);
        for (int max = 1; max <= length + 1; max++) {
            memset(some, 0xff, sizeof some);
            WORKS(prompt_openpi(b.tokenizer, b.scratch, b.buffer, "pick up the red cup", 19, values, n, some,
                                max, &count, &error));
            assert_int_equal(count, max < length ? max : length);
            assert_memory_equal(some, all, (size_t)count * sizeof *some);
            assert_int_equal(some[count], -1);
        }
    }
    bench_close(&b);
}

/* ---- LeRobot -------------------------------------------------------------------------------------- */

/* 1: the prompt filled all its places. */
static int one_lerobot(bench *b, const char *name, int pi05, const char *text, const float *values, int n,
                       const int32_t *tokens, const uint8_t *mask, int max) {
    openpi_error error = OPENPI_ERROR_INIT;
    double numbers[64];
    int32_t ids[MAX];
    int count = -1;
    assert_true(n <= 64 && max <= MAX);
    for (int i = 0; i < n; i++) numbers[i] = (double)values[i];
    if (pi05)
        WORKS(prompt_lerobot_pi05(b->tokenizer, b->scratch, b->buffer, text, strlen(text), numbers, n, ids, max, &count, &error));
    else
        WORKS(prompt_lerobot_pi0(b->tokenizer, b->scratch, b->buffer, text, strlen(text), ids, max, &count,
                                 &error));
    for (int i = 0; i < max; i++)
        if (mask[i] != (i < count) || tokens[i] != (i < count ? ids[i] : TOKEN_PAD))
            fail_msg("%s \"%s\", id %d", name, text, i);
    return count == max;
}

static void test_lerobot(void **state) {
    (void)state;
    static const struct {
        const char *file;
        int pi05, rows, values;
    } cases[] = {
        {"pi0/expected", 0, 1, 14}, {"pi0/expected_missing", 0, 1, 14}, {"pi0_relative/expected", 0, 6, 8},
        {"pi05/expected", 1, 1, 8}, {"pi05/expected_missing", 1, 1, 8}, {"pi05_mean_std/expected", 1, 3, 8},
        {"pi05_min_max/expected", 1, 3, 8}, {"pi05_no_stats/expected", 1, 3, 8}, {"pi05_quantile10/expected", 1, 3, 8},
        {"pi05_relative/expected", 1, 3, 8}, {"pi05_relative_unnamed/expected", 1, 3, 8},
    };
    int cut = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[400];
        int max = cases[i].pi05 ? 200 : 48, rows = cases[i].rows, n = cases[i].values;
        bench b = bench_open(GOLDEN "/lerobot/pi05/checkpoint/tokenizer/tokenizer.json");
        snprintf(path, sizeof path, GOLDEN "/lerobot/%s.safetensors", cases[i].file);
        tensors *file = golden_open(path);
        json_t *settings = golden_metadata(file, "case"), *task = json_object_get(settings, "task"),
               *tasks = json_object_get(settings, "tasks");
        float *values = golden_copy(file, "state", DTYPE_F32, rows * n);
        int32_t *tokens = golden_copy(file, "tokens", DTYPE_I32, rows * max);
        const uint8_t *mask = golden_data(file, "token_mask", DTYPE_U8, rows * max);
        assert_int_equal(task ? 1 : json_array_size(tasks), rows);
        for (int r = 0; r < rows; r++)
            cut += one_lerobot(&b, cases[i].file, cases[i].pi05,
                               json_string_value(task ? task : json_array_get(tasks, (size_t)r)),
                               values + r * n, n, tokens + r * max, mask + r * max, max);
        free(tokens);
        free(values);
        json_decref(settings);
        tensors_close(file);
        bench_close(&b);
    }
    assert_true(cut > 0);
}

/* openpi tokenises the newline by itself, LeRobot with the text, which may end in one already. */
static void test_pi0_newlines(void **state) {
    (void)state;
    bench b = bench_open(GOLDEN "/tokenizer.model");
    openpi_error error = OPENPI_ERROR_INIT;
    int32_t ids[MAX];
    int count;
    static const struct {
        const char *text;
        int count;
        int32_t ids[3];
    } cases[] = {{"", 2, {2, 4}},
                 {"\n", 2, {2, 4}},
                 {"\n\n", 2, {2, 5}},
                 {"x\n", 3, {2, 1984, 4}},
                 {"x\n\n\n", 3, {2, 1984, 6}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        WORKS(prompt_lerobot_pi0(b.tokenizer, b.scratch, b.buffer, cases[i].text, strlen(cases[i].text), ids,
                                 MAX, &count, &error));
        assert_int_equal(count, cases[i].count);
        assert_memory_equal(ids, cases[i].ids, (size_t)count * sizeof *ids);
        WORKS(prompt_openpi(b.tokenizer, b.scratch, b.buffer, cases[i].text, strlen(cases[i].text), NULL, 0,
                            ids, MAX, &count, &error));
        assert_int_equal(ids[count - 1], 4);
        assert_int_equal(count, strchr(cases[i].text, 'x') ? 3 : 2);
    }
    bench_close(&b);
}

/* ---- parts ---------------------------------------------------------------------------------------- */

static void test_clean(void **state) {
    (void)state;
    static const struct {
        const char *text, *clean;
    } cases[] = {
        {"", ""}, {" ", ""}, {"a", "a"}, {"  fold_the_towel \n now ", "fold the towel   now"},
        {"\u3000uncap the pen\u2003", "uncap the pen"},
        {"_a_", " a "}, {"\x1c\x1d\x1e\x1f" "a\x1c" "b\x1f", "a\x1c" "b"}, {"\t\n\v\f\r x\t\n\v\f\r ", "x"},
        {"\xc2\x85\u00a0x\xc2\x85\u00a0", "x"},
        {"\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200ax\u2028\u2029\u202f\u205f\u3000", "x"},
        {"\u200bx\u180e\ufeff\u2060", "\u200bx\u180e\ufeff\u2060"},                    /* no space to Python */
        {"\x1bx\x0e\x08", "\x1bx\x0e\x08"}, {"a\n\nb_\nc", "a  b  c"}, {"a\tb\rc", "a\tb\rc"}, {"\n_\n", " "},
    };
    openpi_error error = OPENPI_ERROR_INIT;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[200];
        size_t bytes = 77;
        WORKS(prompt_clean(cases[i].text, strlen(cases[i].text), out, &bytes, &error));
        if (bytes != strlen(cases[i].clean) || strcmp(out, cases[i].clean))
            fail_msg("case %zu: \"%s\"", i, out);
    }
    char out[8];
    size_t bytes;
    WORKS(prompt_clean(" a\0b ", 5, out, &bytes, &error));
    assert_int_equal(bytes, 3);
    assert_memory_equal(out, "a\0b", 4);
    REFUSES(prompt_clean("ab\xff", 3, out, &bytes, &error), OPENPI_BAD_INPUT, "the prompt is not UTF-8: byte 2 is 0xff");
    REFUSES(prompt_clean(" \xe3\x80", 3, out, &bytes, &error), OPENPI_BAD_INPUT, "the prompt is not UTF-8: byte 1 is 0xe3");
}

/* Against the definition: how many of the 256 edges are not above x, less one. */
static void test_state_bin(void **state) {
    (void)state;
    static const struct {
        double x;
        int bin;
    } cases[] = {{-1, 0},       {-0.9921875, 1}, {0, 128},        {-0.0, 128},     {0.9921875, 255},
                 {1, 255},      {2, 255},        {-3, -1},        {1e300, 255},    {-1e300, -1},
                 {5e-324, 128}, {-5e-324, 127},  {HUGE_VAL, 255}, {-HUGE_VAL, -1}, {1.7e308, 255}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(state_bin(cases[i].x), cases[i].bin);
    assert_int_equal(state_bin(NAN), 255);
    assert_int_equal(state_bin(-NAN), 255);
    assert_int_equal(state_bin(nextafter(-1, -2)), -1);
    for (int i = 0; i < 256; i++) {
        double edge = -1 + i / 128.0, near[3] = {nextafter(edge, -2), edge, nextafter(edge, 2)};
        for (int k = 0; k < 3; k++) {
            int below = 0;
            for (int e = 0; e < 256; e++) below += -1 + e / 128.0 <= near[k];
            assert_int_equal(state_bin(near[k]), below - 1);
        }
    }
}

static void test_refusals(void **state) {
    (void)state;
    bench b = bench_open(GOLDEN "/tokenizer.model");
    openpi_error error = OPENPI_ERROR_INIT;
    prompt_buffer *buffer = NULL;
    const double value = 0;
    int32_t ids[4];
    int count = -5;
    REFUSES(prompt_openpi(b.tokenizer, b.scratch, b.buffer, "x", 1, NULL, 0, ids, 0, &count, &error),
            OPENPI_BAD_ARGUMENT, "expected at least 1");
    REFUSES(prompt_openpi(b.tokenizer, b.scratch, b.buffer, "\xff", 1, NULL, 0, ids, 4, &count, &error),
            OPENPI_BAD_INPUT, "not UTF-8");
    REFUSES(prompt_openpi(b.tokenizer, b.scratch, b.buffer, "\xff", 1, &value, 1, ids, 4, &count, &error),
            OPENPI_BAD_INPUT, "not UTF-8");
    REFUSES(prompt_openpi(b.tokenizer, b.scratch, b.buffer, "x", 1, &value, -1, ids, 4, &count, &error),
            OPENPI_BAD_ARGUMENT, "has -1 values");
    REFUSES(prompt_lerobot_pi0(b.tokenizer, b.scratch, b.buffer, "\xff", 1, ids, 4, &count, &error),
            OPENPI_BAD_INPUT, "not UTF-8");
    REFUSES(
        prompt_lerobot_pi0(b.tokenizer, b.scratch, b.buffer, "x", (size_t)1 << 40, ids, 4, &count, &error),
        OPENPI_BAD_INPUT, "the prompt has 1099511627776 bytes");
    REFUSES(prompt_buffer_create(SIZE_MAX, 0, &buffer, &error), OPENPI_BAD_INPUT, "the prompt has");
    assert_int_equal(count, -5);
    assert_null(buffer);
    prompt_buffer_close(NULL);
    bench_close(&b);
}

/* A buffer and a scratch made for the size are used as they are; smaller ones grow. */
static void test_long_prompts(void **state) {
    (void)state;
    enum { BYTES = 20000 };
    bench small = bench_open(GOLDEN "/tokenizer.model"), large = {small.tokenizer, NULL, NULL};
    openpi_error error = OPENPI_ERROR_INIT;
    char *text = malloc(BYTES);
    int32_t *ids = malloc(2 * BYTES * sizeof *ids);
    double values[32];
    assert_non_null(text);
    assert_non_null(ids);
    for (int i = 0; i < BYTES; i++) text[i] = "pick_up the\n cup"[i % 16];
    for (int i = 0; i < 32; i++) values[i] = i / 20.0 - 1;
    WORKS(prompt_buffer_create(BYTES, 32, &large.buffer, &error));
    WORKS(tokenizer_scratch_create(prompt_bytes(BYTES, 32), &large.scratch, &error));
    for (int bytes = 1; bytes <= BYTES; bytes = bytes * 3 + 1) {
        int a, b;
        WORKS(prompt_openpi(small.tokenizer, small.scratch, small.buffer, text, (size_t)bytes, values, 32,
                            ids, BYTES, &a, &error));
        WORKS(prompt_openpi(large.tokenizer, large.scratch, large.buffer, text, (size_t)bytes, values, 32,
                            ids + BYTES, BYTES, &b, &error));
        assert_int_equal(a, b);
        assert_memory_equal(ids, ids + BYTES, (size_t)a * sizeof *ids);
    }
    free(ids);
    free(text);
    prompt_buffer_close(large.buffer);
    tokenizer_scratch_close(large.scratch);
    bench_close(&small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_openpi),   cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_lerobot),  cmocka_unit_test(test_pi0_newlines),
        cmocka_unit_test(test_clean),    cmocka_unit_test(test_state_bin),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_long_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
