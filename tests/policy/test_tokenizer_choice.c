/* Which tokenizer a policy reads: the policy reports it, and no file outside the checkpoint is opened that no
 * option names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "openpi.h"
#include "policy_golden.h"
#include "scratch.h"

static scratch place;
static char checkpoint[300], home[300], cache[400];

/* A checkpoint without a tokenizer, and a home folder where openpi has downloaded one. */
static int set_up(void **state) {
    (void)state;
    static const char *const folders[] = {"home", "home/.cache", "home/.cache/openpi",
                                          "home/.cache/openpi/big_vision"};
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    size_t bytes;
    if (scratch_open(&place)) return -1;
    snprintf(checkpoint, sizeof checkpoint, "%s/odd", place.folder);
    WORKS(openpi_synthetic_parse("odd:pi0", &synthetic, &error));
    WORKS(openpi_synthetic_write(&synthetic, checkpoint, 0, 1, NULL, NULL, &error));
    unlink(scratch_path(&place, "odd/tokenizer.model"));
    for (int i = 0; i < 4; i++) assert_int_equal(mkdir(scratch_path(&place, folders[i]), 0700), 0);
    snprintf(home, sizeof home, "%s/home", place.folder);
    snprintf(cache, sizeof cache, "%s/.cache/openpi/big_vision", home);
    char *model = golden_read(GOLDEN "/tokenizer.model", &bytes);
    assert_int_equal(
        scratch_write(&place, "home/.cache/openpi/big_vision/paligemma_tokenizer.model", model, bytes), 0);
    free(model);
    return setenv("HOME", home, 1);
}

static int tear_down(void **state) {
    (void)state;
    scratch_close(&place);
    return 0;
}

static void check_info(const openpi_policy_options *options, const char *path, const char *tokenizer,
                       const char *kind) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
    openpi_policy *policy;
    WORKS(openpi_policy_open(path, options, &policy, &error));
    WORKS(openpi_policy_get_info(policy, &info, &error));
    assert_string_equal(info.tokenizer, tokenizer);
    assert_string_equal(info.tokenizer_kind, kind);
    openpi_policy_close(policy);
}

static void the_file_is_told(void **state) {
    (void)state;
    static const char json[] = GOLDEN "/lerobot/pi05/checkpoint/tokenizer/tokenizer.json";
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    openpi_error error = OPENPI_ERROR_INIT;
    char found[500];
    WORKS(openpi_synthetic_parse("odd:pi0", &synthetic, &error));
    options.tokenizer = GOLDEN "/tokenizer.model";
    check_info(&options, checkpoint, GOLDEN "/tokenizer.model", "sentencepiece");
    options.tokenizer = json;
    check_info(&options, checkpoint, json, "tokenizer.json");
    options.tokenizer = GOLDEN;                            /* a folder: the file in it */
    check_info(&options, checkpoint, GOLDEN "/tokenizer.model", "sentencepiece");
    options.tokenizer = NULL;
    options.tokenizer_cache = cache;
    snprintf(found, sizeof found, "%s/paligemma_tokenizer.model", cache);
    check_info(&options, checkpoint, found, "sentencepiece");
    options.synthetic = &synthetic;
    options.robot = "none";
    check_info(&options, NULL, "embedded", "sentencepiece");
}

/* Of a path that is too long the end is kept. */
static void long_paths_are_cut(void **state) {
    (void)state;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    char path[2000];
    snprintf(path, sizeof path, "%s", cache);
    while (strlen(path) < 1500) strcat(path, "/.");
    strcat(path, "/paligemma_tokenizer.model");
    options.tokenizer = path;
    check_info(&options, checkpoint, path + strlen(path) - 1023, "sentencepiece");
}

/* Neither $HOME nor the account's home is looked at. */
static void nothing_outside_is_opened(void **state) {
    (void)state;
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_policy_options options = OPENPI_POLICY_OPTIONS_INIT;
    openpi_policy *policy = NULL;
    char *json;
    REFUSES(openpi_policy_open(checkpoint, NULL, &policy, &error), OPENPI_NOT_FOUND, "no tokenizer");
    assert_null(strstr(error.message, ".cache"));
    options.tokenizer_cache = place.folder;                /* there, but it holds none */
    REFUSES(openpi_policy_open(checkpoint, &options, &policy, &error), OPENPI_NOT_FOUND, "nor in ");
    WORKS(openpi_inspect(checkpoint, NULL, &json, &error));
    assert_non_null(strstr(json, "no tokenizer"));
    openpi_free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_is_told),
        cmocka_unit_test(long_paths_are_cut),
        cmocka_unit_test(nothing_outside_is_opened),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
