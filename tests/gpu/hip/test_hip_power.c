/* Energy, power and clocks of an AMD board through the management library's functions: from a fake
 * librocm_smi64 that is opened as a user's is. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fake_smi.h"
#include "lab/measure/power.h"

static fake_smi *fake;

static power *open_device(const char *device) {
    openpi_error error = OPENPI_ERROR_INIT;
    power *p = NULL;
    if (power_open(device, &p, &error) != OPENPI_OK) fail_msg("%s", error.message);
    return p;
}

static void reads(void **state) {
    openpi_error error = OPENPI_ERROR_INIT;
    power_reading now;
    (void)state;
    for (int flag = 0; flag < 2; flag++) {
        fake->flag = flag;
        power *p = open_device("hip:0");
        const power_facts *f = power_get_facts(p);
        assert_string_equal(f->reason, "");
        assert_string_equal(f->counter, "ROCm SMI");
        assert_string_equal(f->name, "board 1");
        assert_string_equal(f->driver, "6.12.12");
        assert_string_equal(f->matched, "PCI address 0000:3b:00.0");
        assert_true(f->limit_w == 750 && f->core_max_mhz == 2100 && f->memory_max_mhz == 1300);
        fake->count[1] += 1000000;
        fake->count[0] += 77;
        assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
        assert_true(fabs(now.energy_j - 15.259) < 1e-4);
        assert_true(fabs(now.watts - 700.5) < 1e-9 && now.core_mhz == 1900 && now.memory_mhz == 1300);
        fake->only_mean = 1;
        power_clocks(p, &now);
        assert_true(fabs(now.watts - 650.25) < 1e-9);
        fake->only_mean = 0;
        fake->energy_code = 5;
        assert_int_equal(power_read(p, &now, &error), OPENPI_SYSTEM);
        assert_string_equal(error.message, "board 1: its energy can no longer be read: some error (error 5)");
        fake->energy_code = 0;
        power_close(p);
        assert_int_equal(fake->started, 0);
    }
}

/* A board that is divided has a number of the part in its address. */
static void divided(void **state) {
    (void)state;
    uint64_t address = fake->address[1];
    fake->address[1] |= 0x20000000;
    power *p = open_device("hip");
    assert_string_equal(power_get_facts(p)->name, "board 1");
    power_close(p);
    fake->address[1] = 0x777;
    p = open_device("hip:0");
    assert_string_equal(power_get_facts(p)->reason,
                        "AMD's management library does not know this device (PCI address 0000:3b:00.0)");
    power_close(p);
    fake->address[1] = address;
}

static void says_why(void **state) {
    power_reading now;
    openpi_error error = OPENPI_ERROR_INIT;
    (void)state;
    fake->init_code = 9;
    power *p = open_device("hip:0");
    assert_string_equal(power_get_facts(p)->reason,
                        "AMD's management library does not start: some error (error 9)");
    assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
    assert_true(now.energy_j == 0 && now.watts == 0);
    power_close(p);
    fake->init_code = 0;
    fake->energy_code = 2;
    p = open_device("hip:0");
    assert_string_equal(power_get_facts(p)->reason,
                        "AMD's management library has no energy counter for this device: not supported "
                        "(error 2)");
    power_clocks(p, &now);
    assert_true(now.core_mhz == 1900);
    power_close(p);
    fake->energy_code = 0;
    p = open_device("hip:x");
    assert_string_equal(power_get_facts(p)->reason, "no counter is known for device hip:x");
    power_close(p);
    assert_int_equal(fake->started, 0);
}

/* Words that are no list of frequencies are no clock. */
static void odd_frequencies(void **state) {
    uint32_t words[SMI_FREQUENCY_WORDS] = {0};
    uint64_t address = 0;
    (void)state;
    assert_true(smi_frequency(words, 0) == 0);
    words[0] = 34;
    assert_true(smi_frequency(words, 0) == 0);
    words[0] = 2;
    words[1] = 2;                          /* beyond the last                                              */
    assert_true(smi_frequency(words, 1) == 0);
    memset(words, 0xff, sizeof words);
    assert_true(smi_frequency(words, 1) == 0);
    assert_int_equal(smi_parse_address("0001:3B:1f.7", &address), 0);
    assert_true(address == (1ull << 32 | 0x3bff));
    assert_int_equal(smi_parse_address("0001:3B", &address), -1);
    assert_int_equal(smi_parse_address("0001:3B:1f.7x", &address), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads), cmocka_unit_test(divided),
                                       cmocka_unit_test(says_why), cmocka_unit_test(odd_frequencies)};
    void *library = dlopen("librocm_smi64.so.1", RTLD_NOW | RTLD_LOCAL);
    fake = library ? dlsym(library, "fake_smi_state") : NULL;
    if (!fake) return 1;
    return cmocka_run_group_tests_name("hip_power", tests, NULL, NULL);
}
