/* policy/extras.c: what "openpi/rtc" and "openpi/runner" of a message say, by openpi_request_extras; nothing
 * of it stays for the next message. Its sentences are those of test_serve_rtc too, which needs the server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/ascii.h"
#include "openpi_runner.h"
#include "policy_golden.h"

static openpi_error error = OPENPI_ERROR_INIT;
static openpi_policy *policy;
static openpi_request *request;

static int set_up(void **state) {
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    (void)state;
    WORKS(openpi_synthetic_parse("tiny", &synthetic, &error));
    options.synthetic = &synthetic;
    options.robot = "libero";
    WORKS(openpi_policy_open(NULL, &options, &policy, &error));
    WORKS(openpi_request_create(policy, &request, &error));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    openpi_request_close(request);
    openpi_policy_close(policy);
    return 0;
}

/* LIBERO's golden request and, where `entry` is not NULL, the bytes of one more entry. */
static openpi_status prepare(const char *entry, size_t bytes) {
    size_t count;
    char *message = golden_read(GOLDEN "/policy/libero_pi0/request.msgpack", &count);
    message = realloc(message, count + bytes);
    assert_non_null(message);
    if (bytes) memcpy(message + count, entry, bytes);
    message[0] = (char)(message[0] + (bytes != 0));
    openpi_status status = openpi_request_prepare_msgpack(request, message, count + bytes, NULL, &error);
    free(message);
    return status;
}

#define ENTRY(TEXT) TEXT, sizeof(TEXT) - 1
#define RTC "\xaaopenpi/rtc"
#define EXECUTED "\xa8" "executed"
#define DELAY "\xa5" "delay"

static openpi_extras extras_of_last(void) {
    openpi_extras extras = OPENPI_EXTRAS_INIT;
    WORKS(openpi_request_extras(request, &extras, &error));
    return extras;
}

static void must_be_absent(void) {
    const openpi_extras none = OPENPI_EXTRAS_INIT;
    openpi_extras extras = extras_of_last();
    assert_memory_equal(&extras, &none, sizeof extras);
}

static void a_map_becomes_fields(void **state) {
    (void)state;
    WORKS(prepare(NULL, 0));
    must_be_absent();
    WORKS(prepare(ENTRY(RTC "\x82" EXECUTED "\x00" DELAY "\x03")));
    openpi_extras extras = extras_of_last();
    assert_true(extras.rtc && !extras.rtc_executed && extras.rtc_delay == 3);
    assert_true(extras.rtc_mode == OPENPI_RTC_OFF && !extras.rtc_horizon && extras.rtc_max_weight == 0);
    assert_int_equal(extras.rtc_schedule, OPENPI_RTC_SCHEDULE_DEFAULT);
    WORKS(prepare(ENTRY(RTC "\x86" EXECUTED "\xcd\x01\x00" DELAY "\xca\x40\x00\x00\x00" "\xa4mode\xa7trained"
                            "\xa8schedule\xa3" "exp" "\xa7horizon\x40"
                            "\xaamax_weight\xca\x40\x20\x00\x00")));
    extras = extras_of_last();
    assert_true(extras.rtc && extras.rtc_executed == 256 && extras.rtc_delay == 2);
    assert_true(extras.rtc_mode == OPENPI_RTC_TRAINED && extras.rtc_schedule == OPENPI_RTC_EXP);
    assert_true(extras.rtc_horizon == 64 && extras.rtc_max_weight == 2.5);
    WORKS(prepare(NULL, 0));
    must_be_absent();
    WORKS(prepare(ENTRY("\xaeopenpi/samples\x08")));
    extras = extras_of_last();
    assert_true(extras.samples == 8 && !extras.noise && !extras.rtc);
    WORKS(prepare(NULL, 0));
    must_be_absent();
}

#define RUNNER "\xad" "openpi/runner"
#define HELD "\xa7" "held_ms"
#define REASON "\xa6" "reason"

/* Each reason has the name that openpi_reason's constant has. */
static void a_runner_is_heard(void **state) {
    (void)state;
    static const struct { const char *name; openpi_reason reason; } names[] = {
#define X(name, value, text) {#name, name},
        OPENPI_REASON_LIST(X)
#undef X
    };
    for (int i = 1; i < (int)(sizeof names / sizeof *names); i++) {
        char entry[80], word[32];
        size_t count = strlen(names[i].name) - strlen("OPENPI_REASON_");
        for (size_t k = 0; k <= count; k++)
            word[k] = (char)ascii_lower(names[i].name[strlen("OPENPI_REASON_") + k]);
        int bytes = snprintf(entry, sizeof entry, RUNNER "\x83" EXECUTED "\x07" HELD "\x09" REASON "%c%s",
                             (int)(0xa0 + count), word);
        WORKS(prepare(entry, (size_t)bytes));
        openpi_extras extras = extras_of_last();
        assert_true(extras.runner && extras.runner_executed == 7 && extras.runner_held_ms == 9);
        assert_int_equal(extras.runner_reason, names[i].reason);
    }
    WORKS(prepare(ENTRY(RUNNER "\x81" HELD "\x00")));
    openpi_extras extras = extras_of_last();
    assert_true(extras.runner && extras.runner_executed == -1 && !extras.rtc);
    assert_int_equal(extras.runner_reason, OPENPI_REASON_NONE);
    WORKS(prepare(NULL, 0));
    must_be_absent();
}

static void a_runner_s_mistakes(void **state) {
    (void)state;
    REFUSES(prepare(ENTRY(RUNNER "\x07")), OPENPI_BAD_INPUT, "is a number, expected a map of \"executed\"");
    REFUSES(prepare(ENTRY(RUNNER "\x81" HELD "\xff")), OPENPI_BAD_INPUT, "is -1, expected a number of milli");
    REFUSES(prepare(ENTRY(RUNNER "\x81" HELD "\xca\x7f\xc0\x00\x00")), OPENPI_BAD_INPUT, "is nan, expected");
    REFUSES(prepare(ENTRY(RUNNER "\x81" EXECUTED "\xff")), OPENPI_BAD_INPUT, "is -1, expected a whole");
    REFUSES(prepare(ENTRY(RUNNER "\x81" REASON "\xa4" "losd")), OPENPI_BAD_INPUT, "expected one of starting");
    REFUSES(prepare(ENTRY(RUNNER "\x81" "\xa4" "held\x01")), OPENPI_BAD_INPUT,
            "\"openpi/runner\" of the request has an unknown entry \"held\"");
    must_be_absent();
}

/* Nothing is said where the message was refused. */
static void mistakes_get_a_sentence(void **state) {
    (void)state;
    WORKS(prepare(ENTRY(RTC "\x82" EXECUTED "\x02" DELAY "\x03")));
    REFUSES(prepare(ENTRY(RTC "\x81" DELAY "\x03")), OPENPI_BAD_INPUT, "has no \"executed\"");
    must_be_absent();
    REFUSES(prepare(ENTRY(RTC "\x07")), OPENPI_BAD_INPUT, "is a number, expected a map");
    REFUSES(prepare(ENTRY(RTC "\x82" EXECUTED "\xff" DELAY "\x03")), OPENPI_BAD_INPUT, "is -1, expected a whole");
    REFUSES(prepare(ENTRY(RTC "\x82" EXECUTED "\xca\x7f\xc0\x00\x00" DELAY "\x03")), OPENPI_BAD_INPUT,
            "executed\" of the request is nan");
    REFUSES(prepare(ENTRY(RTC "\x82" EXECUTED "\x02" DELAY "\x40")), OPENPI_BAD_INPUT, "is 64, expected");
    REFUSES(prepare(ENTRY("\xaeopenpi/samples\x00")), OPENPI_BAD_INPUT,
            "is 0, expected a whole number from 1 to");
    REFUSES(prepare(ENTRY("\xaeopenpi/samples\x41")), OPENPI_BAD_INPUT, "is 65, expected");
    REFUSES(prepare(ENTRY("\xaeopenpi/rtcwhat\x01")), OPENPI_BAD_INPUT, "unknown key \"openpi/rtcwhat\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_map_becomes_fields),
        cmocka_unit_test(a_runner_is_heard),
        cmocka_unit_test(a_runner_s_mistakes),
        cmocka_unit_test(mistakes_get_a_sentence),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
