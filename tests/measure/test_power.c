/* labels: threads */
/* Energy counters: an NVML made of this file's numbers, and RAPL counters that are files of a scratch
 * folder. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backend/gpu/cuda/counter.h"
#include "lab/measure/power.h"
#include "lab/measure/rapl.h"
#include "scratch.h"

/* ---- an NVML of our own ---------------------------------------------------------------------------- */

enum { BOARDS = 2, NOT_FOUND = 6, NOT_SUPPORTED = 3, LOST = 15 };

static struct {
    unsigned long long millijoules[BOARDS], held;
    unsigned milliwatts, mhz[3];
    int init_code, energy_code, started, cuda_knows, energy_reads;
} fake;

static const char *const addresses[BOARDS] = {"0000:19:00.0", "0000:3B:00.0"};

static int fake_init(void) {
    fake.started += !fake.init_code;
    return fake.init_code;
}

static int fake_shutdown(void) {
    fake.started--;
    return 0;
}

static const char *fake_text(int code) {
    return code == NOT_SUPPORTED ? "Not Supported" : code == LOST ? "GPU is lost" : "some error";
}

static int fake_by_index(unsigned index, void **device) {
    if (index >= BOARDS) return NOT_FOUND;
    *device = &fake.millijoules[index];
    return 0;
}

static int fake_by_address(const char *address, void **device) {
    for (unsigned i = 0; i < BOARDS; i++)
        if (!strcmp(addresses[i], address)) return fake_by_index(i, device);
    return NOT_FOUND;
}

static int fake_version(char *text, unsigned bytes) {
    snprintf(text, bytes, "580.1");
    return 0;
}

static int fake_name(void *device, char *text, unsigned bytes) {
    snprintf(text, bytes, "board %d", (int)((unsigned long long *)device - fake.millijoules));
    return 0;
}

static int fake_energy(void *device, unsigned long long *millijoules) {
    *millijoules = *(unsigned long long *)device;
    fake.energy_reads++;
    return fake.energy_code;
}

static int fake_power(void *device, unsigned *milliwatts) {
    (void)device;
    *milliwatts = fake.milliwatts;
    return 0;
}

static int fake_limit(void *device, unsigned *milliwatts) {
    (void)device;
    *milliwatts = 700000;
    return 0;
}

static int fake_clock(void *device, int which, unsigned *mhz) {
    (void)device;
    *mhz = fake.mhz[which];
    return 0;
}

static int fake_held(void *device, unsigned long long *reasons) {
    (void)device;
    *reasons = fake.held;
    return 0;
}

/* CUDA counts the boards in reverse. */
static int fake_address(int ordinal, char *text, int bytes) {
    if (!fake.cuda_knows || ordinal >= BOARDS) return -1;
    snprintf(text, (size_t)bytes, "%s", addresses[BOARDS - 1 - ordinal]);
    return 0;
}

static const nvml fake_nvml = {
    fake_init,   fake_shutdown, fake_text,  fake_by_address, fake_by_index, fake_version, fake_name,
    fake_energy, fake_power,    fake_limit, fake_clock,      NULL,          fake_held,    fake_address,
};

/* ---- this build's counters, reading what this file has made ----------------------------------------- */

static const nvml *board_table;                                    /* NULL: there is no library */
static const char *powercap;

static openpi_status open_board(const char *device, power_facts *facts, void **state, openpi_error *error) {
    return cuda_counter_open(device, board_table, "no library", facts, state, error);
}

static openpi_status open_rapl(const char *device, power_facts *facts, void **state, openpi_error *error) {
    assert_string_equal(device, "cpu");
    return rapl_open(powercap, facts, state, error);
}

static power *open_counters(const char *device, const nvml *table, const char *folder) {
    static power_counter counters[8];
    static const power_counter *list[8];
    power *p = NULL;
    openpi_error error = OPENPI_ERROR_INIT;
    int count = 0;
    board_table = table;
    powercap = folder;
    for (; power_counters[count]; count++) {
        assert_true(count < 7);
        counters[count] = *power_counters[count];
        if (power_counters[count] == &power_counter_cuda) counters[count].open = open_board;
        if (power_counters[count] == &power_counter_rapl) counters[count].open = open_rapl;
        list[count] = &counters[count];
    }
    list[count] = NULL;
    assert_int_equal(power_open_with(device, list, &p, &error), OPENPI_OK);
    return p;
}

static power *open_fake(const char *device, const nvml *table) {
    return open_counters(device, table, "/nowhere");
}

static void reset(void) {
    memset(&fake, 0, sizeof fake);
    fake.millijoules[0] = 1000000;
    fake.millijoules[1] = 5000000;
    fake.milliwatts = 390500;
    fake.mhz[NVML_CLOCK_CORE] = 1980;
    fake.mhz[NVML_CLOCK_MEMORY] = 3201;
    fake.cuda_knows = 1;
}

static void test_gpu(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    power_reading now;
    reset();
    power *p = open_fake("cuda:0", &fake_nvml);
    const power_facts *f = power_get_facts(p);
    assert_string_equal(f->counter, "NVML");
    assert_string_equal(f->name, "board 1");
    assert_string_equal(f->driver, "580.1");
    assert_string_equal(f->matched, "PCI address 0000:3B:00.0");
    assert_true(f->limit_w == 700 && f->core_max_mhz == 0);
    assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
    assert_true(now.energy_j == 0 && fabs(now.watts - 390.5) < 1e-9 && now.core_mhz == 1980 &&
                now.memory_mhz == 3201);
    assert_string_equal(now.held, "");
    fake.millijoules[1] += 12345;
    fake.millijoules[0] += 77777;
    fake.held = 0x1 | 0x4 | 0x20 | 0x40;
    assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
    assert_true(fabs(now.energy_j - 12.345) < 1e-9);
    assert_string_equal(now.held, "power cap, temperature");
    assert_int_equal(fake.energy_reads, 3);
    power_clocks(p, &now);                                         /* the counter is not read */
    assert_int_equal(fake.energy_reads, 3);
    assert_true(now.energy_j == 0 && fabs(now.watts - 390.5) < 1e-9);
    assert_true(now.core_mhz == 1980 && now.memory_mhz == 3201);
    assert_string_equal(now.held, "power cap, temperature");
    fake.energy_code = LOST;
    assert_int_equal(power_read(p, &now, &error), OPENPI_SYSTEM);
    assert_string_equal(error.message, "board 1: its energy can no longer be read: GPU is lost (error 15)");
    power_close(p);
    assert_int_equal(fake.started, 0);
}

static void test_gpu_by_place(void **state) {
    (void)state;
    reset();
    fake.cuda_knows = 0;
    power *p = open_fake("cuda", &fake_nvml);
    assert_string_equal(power_get_facts(p)->name, "board 0");
    assert_string_equal(power_get_facts(p)->matched, "place 0 in NVML's list");
    power_close(p);
    power_close(NULL);
}

/* Each is a handle that says why, and reads zeros. */
static void test_not_readable(void **state) {
    (void)state;
    static const struct {
        const char *device;
        int library, init_code, energy_code;
        const char *reason;
    } cases[] = {
        {"cuda:0", 0, 0, 0, "no library"},
        {"cuda:0", 1, NOT_FOUND, 0, "NVML does not start: some error (error 6)"},
        {"cuda:5", 1, 0, 0, "NVML does not find this device: some error (error 6)"},
        {"cuda:0", 1, 0, NOT_SUPPORTED, "NVML has no energy counter for this device: Not Supported (error 3)"},
        {"tpu", 1, 0, 0, "no counter is known for device tpu"},
        {"cuda:x", 1, 0, 0, "no counter is known for device cuda:x"},
        {"cpu", 1, 0, 0, "no RAPL counter below /nowhere"},
        {NULL, 1, 0, 0, "no RAPL counter below /nowhere"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        power_reading now;
        openpi_error error = OPENPI_ERROR_INIT;
        reset();
        fake.init_code = cases[i].init_code;
        fake.energy_code = cases[i].energy_code;
        power *p = open_fake(cases[i].device, cases[i].library ? &fake_nvml : NULL);
        assert_string_equal(power_get_facts(p)->counter, "");
        assert_string_equal(power_get_facts(p)->reason, cases[i].reason);
        assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
        assert_true(now.energy_j == 0);
        /* Clocks are reported even where there is no energy counter. */
        assert_true((now.core_mhz == 1980) == (cases[i].energy_code == NOT_SUPPORTED) ||
                    !cases[i].device || cases[i].device[1] == 'p');
        power_close(p);
        assert_int_equal(fake.started, 0);
    }
    /* Whatever this machine has: no crash, and a reason where there is no counter. */
    static const char *const devices[] = {NULL, "cpu", "cuda:0"};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        power *p;
        power_reading now;
        openpi_error error = OPENPI_ERROR_INIT;
        assert_int_equal(power_open(devices[i], &p, &error), OPENPI_OK);
        assert_true(!power_get_facts(p)->counter[0] == !!power_get_facts(p)->reason[0]);
        assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
        power_close(p);
    }
}

/* ---- RAPL ------------------------------------------------------------------------------------------ */

static void put_file(scratch *box, const char *name, const char *text) {
    assert_int_equal(scratch_write(box, name, text, strlen(text)), 0);
}

static void put_zone(scratch *box, const char *zone, const char *name, const char *energy) {
    char path[200];
    assert_int_equal(mkdir(scratch_path(box, zone), 0700), 0);
    snprintf(path, sizeof path, "%s/name", zone);
    put_file(box, path, name);
    snprintf(path, sizeof path, "%s/max_energy_range_uj", zone);
    put_file(box, path, "1000000\n");
    snprintf(path, sizeof path, "%s/energy_uj", zone);
    if (energy) put_file(box, path, energy);
}

static void test_cpu(void **state) {
    (void)state;
    scratch box;
    power *p;
    power_reading now;
    openpi_error error = OPENPI_ERROR_INIT;
    assert_int_equal(scratch_open(&box), 0);
    put_zone(&box, "intel-rapl:0", "package-0\n", "100000\n");
    put_zone(&box, "intel-rapl:0:0", "core\n", "7\n");
    put_zone(&box, "intel-rapl:0:1", "dram\n", "900000\n");
    put_zone(&box, "intel-rapl:1", "psys\n", "7\n");
    put_zone(&box, "intel-rapl-mmio:0", "package-0\n", "7\n");
    p = open_counters("cpu", NULL, box.folder);
    assert_string_equal(power_get_facts(p)->counter, "RAPL");
    assert_string_equal(power_get_facts(p)->matched, "2 counters of packages and memory");
    put_file(&box, "intel-rapl:0/energy_uj", "350000\n");
    put_file(&box, "intel-rapl:0:0/energy_uj", "999\n");
    put_file(&box, "intel-rapl:0:1/energy_uj", "50000\n");         /* came round: 150000 */
    assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
    assert_true(fabs(now.energy_j - 0.4) < 1e-9);
    assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
    assert_true(fabs(now.energy_j - 0.4) < 1e-9);
    put_file(&box, "intel-rapl:0/energy_uj", "none\n");
    assert_int_equal(power_read(p, &now, &error), OPENPI_SYSTEM);
    assert_non_null(strstr(error.message, "intel-rapl:0/energy_uj: not a number"));
    power_close(p);

    put_zone(&box, "intel-rapl:2", "package-1\n", NULL);           /* a counter that cannot be read */
    put_file(&box, "intel-rapl:0/energy_uj", "1\n");
    p = open_counters("cpu", NULL, box.folder);
    assert_string_equal(power_get_facts(p)->counter, "");
    assert_non_null(strstr(power_get_facts(p)->reason, "intel-rapl:2/energy_uj: No such file"));
    power_close(p);
    scratch_close(&box);
}

/* ---- a counter of another vendor ------------------------------------------------------------------- */

static struct {
    double joules;
    int opened, fails;
} meter;

static int meter_serves(const char *device) { return !strncmp(device, "tpu", 3); }

static openpi_status meter_open(const char *device, power_facts *facts, void **state, openpi_error *error) {
    if (meter.fails) {
        snprintf(error->message, sizeof error->message, "no memory for %s", device);
        return OPENPI_NO_MEMORY;
    }
    snprintf(facts->name, sizeof facts->name, "board of %s", device);
    meter.opened++;
    *state = &meter;
    return OPENPI_OK;
}

static void meter_close(void *state) {
    assert_ptr_equal(state, &meter);
    meter.opened--;
}

static openpi_status meter_energy(void *state, double *joules, openpi_error *error) {
    (void)error;
    assert_ptr_equal(state, &meter);
    *joules = meter.joules;
    return OPENPI_OK;
}

static void meter_sample(const void *state, power_reading *out) {
    assert_ptr_equal(state, &meter);
    out->watts = 55;
}

/* Only the table says what it is called, which devices are its own and how it is read. */
static void test_another(void **state) {
    (void)state;
    static const power_counter other = {.name = "meter",
                                        .serves = meter_serves,
                                        .open = meter_open,
                                        .close = meter_close,
                                        .energy = meter_energy,
                                        .sample = meter_sample};
    const power_counter *const list[] = {&power_counter_rapl, &other, NULL};
    power *p = NULL;
    power_reading now;
    openpi_error error = OPENPI_ERROR_INIT;
    memset(&meter, 0, sizeof meter);
    assert_int_equal(power_open_with("tpu:1", list, &p, &error), OPENPI_OK);
    assert_int_equal(meter.opened, 1);
    assert_string_equal(power_get_facts(p)->counter, "meter");
    assert_string_equal(power_get_facts(p)->name, "board of tpu:1");
    meter.joules = 7;
    assert_int_equal(power_read(p, &now, &error), OPENPI_OK);
    assert_true(now.energy_j == 7 && now.watts == 55 && now.core_mhz == 0);
    power_close(p);
    assert_int_equal(meter.opened, 0);
    assert_int_equal(power_open_with("cuda:0", list, &p, &error), OPENPI_OK);
    assert_string_equal(power_get_facts(p)->reason, "no counter is known for device cuda:0");
    power_close(p);
    meter.fails = 1;
    assert_int_equal(power_open_with("tpu", list, &p, &error), OPENPI_NO_MEMORY);
    assert_string_equal(error.message, "no memory for tpu");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpu), cmocka_unit_test(test_gpu_by_place),
                                       cmocka_unit_test(test_not_readable), cmocka_unit_test(test_cpu),
                                       cmocka_unit_test(test_another)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
