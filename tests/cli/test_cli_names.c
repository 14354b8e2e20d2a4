/* labels: command */
/* Checkpoints by the names of those who published them, and wrong options of inspect. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scratch.h"

#include "command.h"

#define HUB ".cache/huggingface/hub/models--who--pi0_x"
#define OPENPI ".cache/openpi/openpi-assets/checkpoints"

static void says(const char *args, int status, const char *piece) {
    if (run("%s", args) != status || !strstr(err, piece)) fail_msg("%s: %s", args, err);
}

static void test_names(void **state) {
    char line[600];
    (void)state;
    says("inspect who/pi0_x", 2,
         "who/pi0_x: No such file or directory, nor in the cache of Hugging Face: fetch it with `hf download "
         "who/pi0_x --local-dir pi0_x`");
    says("inspect hf://who/pi0_x", 2, "`hf download who/pi0_x --local-dir pi0_x`");
    says("inspect gs://openpi-assets/checkpoints/pi0_x", 2,
         "fetch it with `gcloud storage cp -r gs://openpi-assets/checkpoints/pi0_x .`");
    assert_int_equal(run("synth made --preset odd"), 0);
    snprintf(line, sizeof line,
             "cd '%s' && mkdir -p " HUB "/snapshots " HUB "/refs " OPENPI " && "
             "cp -r made " HUB "/snapshots/12ab && printf 12ab >" HUB "/refs/main && "
             "cp -r made " OPENPI "/pi0_x",
             box.folder);
    assert_int_equal(system(line), 0);
    says("inspect who/pi0_x", 0, "who/pi0_x is ");
    says("inspect hf://who/pi0_x", 0, "/snapshots/12ab");
    says("inspect gs://openpi-assets/checkpoints/pi0_x", 0, OPENPI "/pi0_x");
    says("convert who/pi0_x plain", 0, "who/pi0_x is ");
}

static void test_wrong_options(void **state) {
    (void)state;
    assert_int_equal(run("synth open --preset odd"), 0);
    assert_int_equal(scratch_write(&box, "bad.json", "{\"cameras\": 1}", 14), 0);
    says("inspect open --robot bad.json", 2, "bad.json");
    says("inspect open --robot nobody", 2, "nobody");
    says("inspect open --config nothing", 2, "nothing");
    says("inspect open --robot droid --norm-stats gone.json", 2, "gone.json");
    says("inspect open --robot none", 0, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_wrong_options)};
    if (scratch_open(&box)) return 1;
    setenv("HOME", box.folder, 1);
    unsetenv("HF_HOME"), unsetenv("HF_HUB_CACHE"), unsetenv("OPENPI_DATA_HOME");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_close(&box);
    return failed;
}
