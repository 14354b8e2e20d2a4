/* labels: command */
/* A JAX checkpoint in an OCDBT database of which a chunk is not there, as a user meets it: inspect, run,
 * serve and convert refuse it by array, chunk and file, or tell how many chunks are taken as zeros. What
 * _METADATA says decides; where nothing says, --missing-chunks-are-zero does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <jansson.h>

#include "checkpoint/open.h"
#include "openpi.h"
#include "orbax_database.h"
#include "orbax_write.h"
#include "scratch.h"

#include "command.h"

#define LOOK                                                                                                 \
    "--robot none --tokenizer torch --image base='" TESTS_DIR "/pictures/rgb.png' --state 0.3 --prompt x "   \
    "--steps 1 --horizon 2 --dtype f32 --format csv"
#define ARRAY "params.action_out_proj.kernel.value"
#define STORED "\"store_array_data_equal_to_fill_value\": "
#define ONE "params/manifest.ocdbt: array \"" ARRAY "\": chunk 1.0 is not there"
#define TWO "params/manifest.ocdbt: array \"" ARRAY "\": chunk 0.0, the first of 2 chunks, is not there"

/* NULL: there is none. */
static void metadata(const char *checkpoint, const char *text) {
    char name[64];
    snprintf(name, sizeof name, "%s/params/_METADATA", checkpoint);
    unlink(scratch_path(&box, name));
    if (text) assert_int_equal(scratch_write(&box, name, text, strlen(text)), 0);
}

static void refuses(const char *checkpoint, const char *sentence) {
    static const char *const verbs[] = {"inspect %s --robot none", "run %s " LOOK,
                                        "serve %s --robot none --tokenizer torch --port 0",
                                        "convert %s converted"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        char args[1000];
        snprintf(args, sizeof args, verbs[i], checkpoint);
        must_refuse(args, sentence);
    }
}

/* The actions, with the note on stderr; NULL: nothing is said of chunks. */
static char *actions(const char *model, const char *note) {
    if (run("run %s " LOOK, model)) fail_msg("run %s: %s", model, err);
    if (note) must_contain(err, note);
    else if (strstr(err, "is not there")) fail_msg("run %s: %s", model, err);
    return strdup(out);
}

static void test_refused(void **state) {
    (void)state;
    metadata("one", "{" STORED "true}");
    refuses("one", "one/" ONE ", but _METADATA says that all were saved");
    refuses("one --missing-chunks-are-zero", "one/" ONE ", but _METADATA says that all were saved");
    metadata("two", "{" STORED "true}");
    refuses("two", "two/" TWO ", but _METADATA says that all were saved");
    metadata("two", NULL);
    refuses("two", "two/" TWO ", and no _METADATA says whether zeros were saved: copy the checkpoint "
                   "again, or give --missing-chunks-are-zero to take zeros");
}

/* Zeros are what a checkpoint gives that holds zeros there, and the converted one holds them. */
static void test_zeros(void **state) {
    static const struct {
        const char *model, *options, *says, *note, *like;
    } rows[] = {
        {"one", "", "{" STORED "false}", "one/" ONE " and taken as zeros, as its _METADATA says", "half"},
        {"two", "", "{" STORED "false}", "two/" TWO " and taken as zeros, as its _METADATA says", "zero"},
        {"two", " --missing-chunks-are-zero", NULL,
         "two/" TWO " and taken as zeros, as --missing-chunks-are-zero says", "zero"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char model[64];
        snprintf(model, sizeof model, "%s%s", rows[i].model, rows[i].options);
        metadata(rows[i].model, rows[i].says);
        char *got = actions(model, rows[i].note), *want = actions(rows[i].like, NULL),
             *whole = actions("whole", NULL);
        assert_string_equal(got, want);
        assert_string_not_equal(got, whole);
        assert_int_equal(run("inspect %s --robot none", model), 0);
        must_contain(out, i ? TWO " and taken as zeros, as " : ONE " and taken as zeros, as ");
        must_contain(out, i ? "missing chunks  2\n" : "missing chunks  1\n");
        assert_int_equal(run("convert %s converted --force", model), 0);
        must_contain(err, rows[i].note);
        char *converted = actions("converted", NULL);
        assert_string_equal(converted, want);
        free(got), free(want), free(whole), free(converted);
    }
}

/* A chunk in place of the array's own, all zeros. */
static void zero_chunk(const char *name) {
    static const char none[1 << 16];
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "jax/params/" ARRAY "/%s", name);
    assert_int_equal(stat(scratch_path(&box, path), &st), 0);
    assert_true((size_t)st.st_size <= sizeof none);
    assert_int_equal(scratch_write(&box, path, none, (size_t)st.st_size), 0);
}

static void make(const char *name, const char *skip) {
    char params[100], to[200], folder[100];
    snprintf(params, sizeof params, "%s/jax/params", box.folder);
    snprintf(folder, sizeof folder, "%s/%s", box.folder, name);
    snprintf(to, sizeof to, "%s/params", folder);
    assert_int_equal(mkdir(folder, 0777), 0);
    database_write(params, to, skip);
    metadata(name, "{" STORED "true}");
}

static int setup(void **state) {
    openpi_error error = OPENPI_ERROR_INIT;
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    tensors *list = NULL;
    if (open_box(state) || run("synth torch --preset tiny --variant pi0")) return -1;
    if (openpi_synthetic_parse("tiny:pi0", &synthetic, &error) != OPENPI_OK ||
        tensors_open(scratch_path(&box, "torch"), &list, &error) != OPENPI_OK ||
        tensors_load(list, &error) != OPENPI_OK || mkdir(scratch_path(&box, "jax"), 0777)) {
        print_error("%s\n", error.message);
        return -1;
    }
    tensors_close_files(list);
    orbax_write(scratch_path(&box, "jax"), list, &synthetic.dims, 0, 0);
    tensors_close(list);
    make("whole", NULL);
    make("one", ARRAY "/1.0");
    make("two", ARRAY "/[01]*");
    zero_chunk("1.0");
    make("half", NULL);
    zero_chunk("0.0");
    make("zero", NULL);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_zeros)};
    return cmocka_run_group_tests(tests, setup, close_box);
}
