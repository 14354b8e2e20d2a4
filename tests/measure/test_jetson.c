/* labels: threads */
/* A Jetson's rails, clocks and power mode, read from made-up trees of /sys. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "jetson_trees.h"
#include "backend/gpu/cuda/jetson.h"
#include "lab/measure/power.h"

static openpi_error error = OPENPI_ERROR_INIT;
static scratch box;
static const char *root;

static int serve_box(const char *device) { return jetson_serves(root, device); }
static openpi_status open_box(const char *device, power_facts *facts, void **state, openpi_error *why) {
    (void)device;
    return jetson_open(root, facts, state, why);
}

static power *open_tree(const tree_file *tree, const char *device) {
    static power_counter counter;
    static const power_counter *list[2];
    power *p = NULL;
    assert_int_equal(scratch_open(&box), 0);
    assert_int_equal(tree_write(&box, tree), 0);
    root = box.folder;
    counter = power_counter_jetson;
    counter.serves = serve_box;
    counter.open = open_box;
    list[0] = &counter;
    assert_int_equal(power_open_with(device, list, &p, &error), OPENPI_OK);
    return p;
}

static void close_tree(power *p) {
    power_close(p);
    scratch_close(&box);
}

static void test_boards(void **state) {
    static const struct {
        const tree_file *tree;
        double watts, mhz, most_mhz;
        const char *name, *matched, *mode, *advice;
    } cases[] = {
        {agx_orin, 21, 1300.5, 1300.5, "NVIDIA Jetson AGX Orin Developer Kit",
         "rails VDD_GPU_SOC + VDD_CPU_CV + VIN_SYS_5V0", "MAXN, nvpmodel 0", ""},
        {orin_nano, 9, 306, 1020, "", "rails VDD_IN", "nvpmodel 7",
         "the GPU's clock moves between 306 and 1020 MHz: jetson_clocks, as root, holds it at the highest"},
        {agx_thor, 56, 1050, 1575, "NVIDIA Jetson AGX Thor Developer Kit",
         "rails VDD_GPU + VDD_CPU_SOC_MSS + VIN_SYS_5V0", "MODE_30W, nvpmodel 2",
         "the GPU's clock moves between 315 and 1575 MHz: jetson_clocks, as root, holds it at the highest"},
    };
    static const char *const devices[] = {"cuda:0", "cuda", "cpu", NULL};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        power *p = open_tree(cases[i].tree, devices[i % 4]);
        const power_facts *f = power_get_facts(p);
        power_reading now;
        assert_string_equal(f->reason, "");
        assert_string_equal(f->counter, "INA3221");
        assert_string_equal(f->name, cases[i].name);
        assert_string_equal(f->matched, cases[i].matched);
        assert_string_equal(f->mode, cases[i].mode);
        assert_string_equal(f->advice, cases[i].advice);
        assert_true(fabs(f->core_max_mhz - cases[i].most_mhz) < 1e-6);
        power_clocks(p, &now);
        assert_true(fabs(now.watts - cases[i].watts) < 1e-9 && fabs(now.core_mhz - cases[i].mhz) < 1e-6);
        assert_true(now.memory_mhz == 0 && !now.held[0]);
        close_tree(p);
    }
}

/* Joules are watts times the time that has passed, as far as the thread has come. */
static void test_energy(void **state) {
    double begun = clock_ms(), joules = 0;
    (void)state;
    power *p = open_tree(agx_thor, "cuda:0");
    while (joules < 56 * 0.1) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        assert_int_equal(power_energy(p, &joules, &error), OPENPI_OK);
        assert_true(joules <= 56 * (clock_ms() - begun) * 1e-3);
    }
    openpi_status status = OPENPI_OK;
    unlink(scratch_path(&box, MONITOR("2-0040", 0) "curr2_input"));
    while (status == OPENPI_OK) status = power_energy(p, &joules, &error);
    assert_int_equal(status, OPENPI_SYSTEM);
    assert_non_null(strstr(error.message, "the rails can no longer be read: "));
    close_tree(p);
}

static void test_elsewhere(void **state) {
    static const tree_file another[] = {{"sys/bus/i2c/devices/1-0040/name", "ina3221\n"},
                                        CHANNEL(MONITOR("1-0040", 3), 1, "VDD_GPU_SOC", "1", "1"),
                                        {NULL, NULL}};
    static const tree_file empty[] = {CHANNEL(MONITOR("1-0040", 3), 1, "VDD_IN", "", "1"),
                                      {"sys/bus/i2c/devices/1-0040/name", "ina3221\n"},
                                      {NULL, NULL}};
    (void)state;
    power *p = open_tree(another, "cuda:0");           /* a rail of a board, without the others */
    assert_string_equal(power_get_facts(p)->reason, "no counter is known for device cuda:0");
    close_tree(p);
    p = open_tree(agx_orin, "hip:0");                  /* another vendor's card in a Jetson's slot */
    assert_string_equal(power_get_facts(p)->reason, "no counter is known for device hip:0");
    close_tree(p);
    p = open_tree(empty, "cuda:0");
    assert_string_equal(power_get_facts(p)->reason, "rails VDD_IN cannot be read");
    close_tree(p);
    assert_false(jetson_serves("/nowhere", "cuda:0"));
}

/* What bench prints of the board: mode and clocks, joules of its rails, and a warning for loose clocks. */
static void test_bench(void **state) {
    static const struct {
        const tree_file *tree;
        const char *out, *err;
    } cases[] = {
        {orin_nano, "power mode nvpmodel 7, GPU clock 306 MHz of 1020\n",
         "openpi bench: warning: the GPU's clock moves between 306 and 1020 MHz: jetson_clocks, as root, "},
        {agx_orin, "power mode MAXN, nvpmodel 0, GPU clock 1300 MHz of 1300\n", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[1000], text[8192];
        assert_int_equal(scratch_open(&box), 0);
        assert_int_equal(tree_write(&box, cases[i].tree), 0);
        snprintf(line, sizeof line,
                 "JETSON_ROOT='%s' '%s' bench --synthetic tiny --runs 1 --warmup 0 --no-energy 2>&1",
                 box.folder, OPENPI_JETSON);
        FILE *pipe = popen(line, "r");
        assert_non_null(pipe);
        text[fread(text, 1, sizeof text - 1, pipe)] = 0;
        if (pclose(pipe) || !strstr(text, cases[i].out)) fail_msg("%s", text);
        if (cases[i].err ? !strstr(text, cases[i].err) : !!strstr(text, "warning: ")) fail_msg("%s", text);
        scratch_close(&box);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_boards), cmocka_unit_test(test_energy),
                                       cmocka_unit_test(test_elsewhere), cmocka_unit_test(test_bench)};
    return cmocka_run_group_tests_name("jetson", tests, NULL, NULL);
}
