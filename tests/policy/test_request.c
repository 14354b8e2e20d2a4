/* How a request prepares a message (policy/request.c): in two halves, of which the first refuses what can be
 * refused without long work; in no more memory than openpi_request_bytes says; and with a prompt that can be
 * read as long as the request holds it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "allocator.h"
#include "policy/policy.h"
#include "synthetic_policy.h"

enum { ARMS = 14, WIDE = 2290, TALL = 4000, LONG = 1 << 20, WORD = 100000 };

static openpi_error error = OPENPI_ERROR_INIT;

/* ---- messages --------------------------------------------------------------------------------------- */

/* What a message of an ALOHA robot has. */
typedef struct parts {
    int height, width;           /* of its picture                                                         */
    const char *type;            /* "|u1", "<f4"                                                           */
    double first;                /* of a float picture's elements                                          */
    int state;                   /* numbers                                                                */
    const char *prompt;
    int wide_prompt;             /* 1: as numpy's text of wide characters                                  */
    const char *extra;           /* a key whose value is a number; NULL: none                              */
} parts;

static void pack_prompt(msgpack_packer *packer, const parts *p) {
    size_t count = strlen(p->prompt);
    char type[32];
    pack_text(packer, "prompt");
    if (!p->wide_prompt) {
        pack_text(packer, p->prompt);
        return;
    }
    uint32_t *wide = malloc(count * sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < count; i++) wide[i] = (uint32_t)p->prompt[i];
    snprintf(type, sizeof type, "<U%zu", count);
    pack_array(packer, type, NULL, 0, wide, count * sizeof *wide);
    free(wide);
}

static void pack(msgpack_sbuffer *message, const parts *p) {
    msgpack_packer packer;
    const int shape[3] = {3, p->height, p->width}, arms[1] = {p->state};
    size_t element = (size_t)(p->type[2] - '0'), bytes = 3 * (size_t)p->height * (size_t)p->width * element;
    char *picture = calloc(1, bytes);
    double zeros[ARMS + 1] = {0};
    float first = (float)p->first;
    assert_non_null(picture);
    if (element == sizeof first) memcpy(picture, &first, sizeof first);
    msgpack_sbuffer_init(message);
    msgpack_packer_init(&packer, message, msgpack_sbuffer_write);
    msgpack_pack_map(&packer, p->extra ? 4 : 3);
    pack_text(&packer, "images"), msgpack_pack_map(&packer, 1);
    pack_text(&packer, "cam_high"), pack_array(&packer, p->type, shape, 3, picture, bytes);
    pack_text(&packer, "state"), pack_array(&packer, "<f8", arms, 1, zeros, (size_t)p->state * sizeof *zeros);
    pack_prompt(&packer, p);
    if (p->extra) pack_text(&packer, p->extra), msgpack_pack_int(&packer, 1);
    free(picture);
}

static char *letters(size_t count, const char *again) {
    char *text = malloc(count + 1);
    size_t length = strlen(again);
    assert_non_null(text);
    for (size_t i = 0; i < count; i++) text[i] = again[i % length];
    text[count] = 0;
    return text;
}

/* ---- what is refused first -------------------------------------------------------------------------- */

/* A picture whose elements would be refused, if they were looked at, and one more fault. */
static void long_work_comes_last(void **state) {
    (void)state;
    static const struct { parts parts; const char *sentence; } rows[] = {
        {{4, 6, "<f4", NAN, ARMS, "go", 0, NULL}, "element 0 is nan"},
        {{4, 6, "<f4", NAN, ARMS - 1, "go", 0, NULL}, "the request has 13 numbers, expected 14"},
        {{4, 6, "<f4", NAN, ARMS, "go", 0, "openpi/nois"}, "the request has an unknown key \"openpi/nois\""},
        {{4, 6, "<f4", NAN, ARMS, "go", 0, "openpi/noise"}, "\"openpi/noise\" of the request is a number"},
        {{1, 900, "<f4", NAN, ARMS - 1, "go", 0, NULL}, "the request has 13 numbers, expected 14"},
        {{1, 900, "<f4", NAN, ARMS, "go", 0, NULL}, "900×1 pixels (width×height) would shrink to 223×0"},
    };
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    WORKS(openpi_request_create(policy, &request, &error));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        msgpack_sbuffer message;
        openpi_sample sample = OPENPI_SAMPLE_INIT;
        pack(&message, &rows[i].parts);
        openpi_status status = openpi_request_read_msgpack(request, message.data, message.size, &error);
        assert_int_equal(status == OPENPI_OK, !i);
        if (!i) status = openpi_request_prepare_read(request, NULL, &error);
        assert_int_equal(status, OPENPI_BAD_INPUT);
        if (!strstr(error.message, rows[i].sentence))
            fail_msg("%s\nexpected %s", error.message, rows[i].sentence);
        REFUSES(openpi_request_prepare_read(request, NULL, &error), OPENPI_BAD_ARGUMENT, "nothing was read");
        REFUSES(openpi_request_sample(request, &sample, &error), OPENPI_BAD_ARGUMENT, "nothing was prepared");
        REFUSES(openpi_request_prepare_msgpack(request, message.data, message.size, NULL, &error),
                OPENPI_BAD_INPUT, rows[i].sentence);
        msgpack_sbuffer_destroy(&message);
    }
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* The extras are there after the first half, the sample after the second; a clear request has neither. */
static void halves(void **state) {
    (void)state;
    const parts parts = {4, 6, "|u1", 0, ARMS, "go", 0, "openpi/deadline_ms"};
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    openpi_sample sample = OPENPI_SAMPLE_INIT;
    msgpack_sbuffer message;
    pack(&message, &parts);
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_read_msgpack(request, message.data, message.size, &error));
    WORKS(openpi_request_extras(request, &extras, &error));
    assert_true(extras.deadline_ms == 1);
    REFUSES(openpi_request_sample(request, &sample, &error), OPENPI_BAD_ARGUMENT, "nothing was prepared");
    WORKS(openpi_request_prepare_read(request, NULL, &error));
    WORKS(openpi_request_sample(request, &sample, &error));
    WORKS(openpi_request_extras(request, &extras, &error));
    assert_true(extras.deadline_ms == 1);
    for (int i = 0; i < 2; i++) {
        if (i) WORKS(openpi_request_read_msgpack(request, message.data, message.size, &error));
        openpi_request_clear(request);
        WORKS(openpi_request_extras(request, &extras, &error));
        assert_true(extras.deadline_ms == 0);
        REFUSES(openpi_request_sample(request, &sample, &error), OPENPI_BAD_ARGUMENT, "nothing was prepared");
        REFUSES(openpi_request_prepare_read(request, NULL, &error), OPENPI_BAD_ARGUMENT, "nothing was read");
    }
    msgpack_sbuffer_destroy(&message);
    openpi_request_close(request);
    openpi_policy_close(policy);
}

/* ---- prompts ---------------------------------------------------------------------------------------- */

/* The message's own memory, where numpy's wide characters became UTF-8, is used again at once. */
static void prompts_stay(void **state) {
    (void)state;
    enum { AGAIN = 64 };
    char *text = letters(700, "fold the towel "), *others[AGAIN];
    const parts parts = {4, 6, "|u1", 0, ARMS, text, 1, NULL};
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    msgpack_sbuffer message;
    size_t count;
    pack(&message, &parts);
    WORKS(openpi_request_create(policy, &request, &error));
    WORKS(openpi_request_prepare_msgpack(request, message.data, message.size, NULL, &error));
    for (int i = 0; i < AGAIN; i++) {
        others[i] = malloc((size_t)i * 128 + 512);
        assert_non_null(others[i]);
        memset(others[i], '*', (size_t)i * 128 + 512);
    }
    const char *prompt = openpi_request_prompt(request, &count);
    assert_int_equal(count, 700);
    assert_memory_equal(prompt, text, 700);
    for (int i = 0; i < AGAIN; i++) free(others[i]);
    msgpack_sbuffer_destroy(&message);
    openpi_request_close(request);
    openpi_policy_close(policy);
    free(text);
}

/* ---- memory ----------------------------------------------------------------------------------------- */

#if ALLOCATOR
enum { BLOCKS = 64, PAGE = 4096 };           /* what the allocator rounds up, a page a block at most        */

static void must_be_within(const char *what, long long bytes, size_t most) {
    if (bytes > (long long)(most + BLOCKS * PAGE))
        fail_msg("%s: %lld bytes, expected at most %zu", what, bytes, most);
}

static void memory_is_as_said(void **state) {
    (void)state;
    char *sentence = letters(LONG, "a b_ "), *word = letters(WORD, "abcdefgh"), *wide = letters(LONG, "x y ");
    const parts rows[] = {{4, 6, "|u1", 0, ARMS, "go", 0, NULL},
                          {4, 6, "|u1", 0, ARMS, sentence, 0, NULL},
                          {4, 6, "|u1", 0, ARMS, word, 0, NULL},
                          {4, 6, "|u1", 0, ARMS, wide, 1, NULL},
                          {WIDE, WIDE, "|u1", 0, ARMS, "go", 0, NULL},
                          {TALL, 1000, "|u1", 0, ARMS, "go", 0, NULL},
                          {200, TALL, "<f4", 0.5, ARMS, "go", 0, NULL}};
    openpi_policy *policy = open_synthetic("aloha", NULL, OPENPI_PI0);
    openpi_request *request;
    long long before = atomic_load(&allocator_bytes);
    size_t made, kept;
    assert_int_equal(openpi_request_bytes(policy, 0, &made), openpi_request_bytes(policy, 0, NULL));
    assert_int_equal(openpi_request_bytes(policy, 0, NULL), made);
    WORKS(openpi_request_create(policy, &request, &error));
    must_be_within("as created", atomic_load(&allocator_bytes) - before, made);
    assert_true(atomic_load(&allocator_bytes) - before > (long long)made * 9 / 10);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        msgpack_sbuffer message;
        char what[64];
        pack(&message, &rows[i]);
        long long own = atomic_load(&allocator_bytes);
        size_t most = openpi_request_bytes(policy, message.size, &kept);
        snprintf(what, sizeof what, "row %zu", i);
        atomic_store(&allocator_peak, own);
        WORKS(openpi_request_prepare_msgpack(request, message.data, message.size, NULL, &error));
        must_be_within(what, atomic_load(&allocator_peak) - own + (long long)made, most);
        must_be_within(what, atomic_load(&allocator_bytes) - own + (long long)made, kept);
        openpi_request_clear(request);
        must_be_within(what, atomic_load(&allocator_bytes) - own, 0);
        msgpack_sbuffer_destroy(&message);
    }
    openpi_request_close(request);
    assert_true(atomic_load(&allocator_bytes) <= before);
    openpi_policy_close(policy);
    free(sentence);
    free(word);
    free(wide);
}
#else
#define memory_is_as_said allocator_is_taken
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_work_comes_last),
        cmocka_unit_test(halves),
        cmocka_unit_test(prompts_stay),
        cmocka_unit_test(memory_is_as_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
