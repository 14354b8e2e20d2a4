/* labels: wrap=file_free_space */
/* A conversion that cannot be says why in a sentence and leaves nothing behind: what is no checkpoint,
 * folders that cannot be written, too little space, weights that are no numbers, files that end early. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "conversion.h"

#define ORBAX TESTS_DIR "/orbax/"
#define DOWN "paligemma_with_expert.gemma_expert.model.layers.1.mlp.down_proj.weight"

/* Bytes that the file system says are free; UINT64_MAX: those that are. */
static uint64_t free_space = UINT64_MAX;
uint64_t __real_file_free_space(const char *path);
uint64_t __wrap_file_free_space(const char *path);
uint64_t __wrap_file_free_space(const char *path) {
    return free_space == UINT64_MAX ? __real_file_free_space(path) : free_space;
}

static void must_refuse(const char *from, const char *to, openpi_file_dtype dtype, openpi_status status,
                        const char *part) {
    REFUSES(convert_to(from, to, dtype, 0, 2), status, part);
    assert_false(file_exists(scratch_path(&box, to)));
}

static void refused(void **state) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    (void)state;
    make("source", "tiny:pi0:5", ORBAX_AS_TORCH);
    must_refuse("absent", "out", OPENPI_FILE_BF16, OPENPI_NOT_FOUND, "absent: cannot be opened");
    must_refuse(ORBAX "fast", "out", OPENPI_FILE_BF16, OPENPI_UNSUPPORTED, "a π0-FAST checkpoint");
    must_refuse(ORBAX "zarr3", "out", OPENPI_FILE_BF16, OPENPI_UNSUPPORTED, "zarr v3");
    must_refuse(TESTS_DIR "/pictures", "out", OPENPI_FILE_BF16, OPENPI_NOT_FOUND, "pictures");
    must_refuse("source", "source/out", OPENPI_FILE_BF16, OPENPI_BAD_ARGUMENT,
                "source/out: is inside of the checkpoint ");
    must_refuse("source", "source/assets/out", OPENPI_FILE_BF16, OPENPI_BAD_ARGUMENT, "is inside of");
    must_refuse("source", "none/out", OPENPI_FILE_BF16, OPENPI_SYSTEM, "none/out: the folder cannot be made");
    must_refuse("source", "source.torch/out", OPENPI_FILE_BF16, OPENPI_SYSTEM, "the folder cannot be made");
    REFUSES(convert_to("source", "source", OPENPI_FILE_BF16, 0, 1), OPENPI_BAD_ARGUMENT, "is inside of");
    REFUSES(convert_to("source", "source/config.json", OPENPI_FILE_BF16, 0, 1), OPENPI_BAD_ARGUMENT,
            "is inside of");
    assert_int_equal(mkdir(scratch_path(&box, "full"), 0777), 0);
    assert_int_equal(scratch_write(&box, "full/x", "x", 1), 0);
    REFUSES(convert_to("source", "full", OPENPI_FILE_BF16, 0, 1), OPENPI_BAD_ARGUMENT, "holds \"x\"");
    assert_true(file_exists(scratch_path(&box, "full/x")));
    REFUSES(convert_to("source", "full/x", OPENPI_FILE_BF16, 0, 1), OPENPI_BAD_ARGUMENT, "is a file");
    REFUSES(convert_to("source", "out", (openpi_file_dtype)3, 0, 1), OPENPI_BAD_ARGUMENT, "dtype is 3");
    REFUSES(openpi_convert(NULL, "out", &options, &error), OPENPI_BAD_ARGUMENT, "the checkpoint is NULL");
    REFUSES(openpi_convert("x", "", &options, &error), OPENPI_BAD_ARGUMENT, "the folder's path is empty");
}

/* Space is counted before anything is written: the weights, without the tensor of zeros. */
static void too_little_space(void **state) {
    (void)state;
    openpi_dims d = make("source", "tiny:pi0:5", ORBAX_AS_TORCH);
    tensors *list = open_in("source");
    uint64_t need = 0;
    for (int i = 0; i < tensors_count(list); i++) need += 2 * (uint64_t)tensors_at(list, i)->count;
    tensors_close(list);
    assert_true(d.vocab > 0);
    free_space = need - 1;
    must_refuse("source", "out", OPENPI_FILE_BF16, OPENPI_SYSTEM,
                "out: the weights take 0.01 GB, but 0.01 GB");
    free_space = 1000000;
    must_refuse("source", "out", OPENPI_FILE_BF16, OPENPI_SYSTEM,
                "out: the weights take 0.01 GB, but 0.00 GB are free on its file system");
    free_space = need;
    WORKS(convert_to("source", "out", OPENPI_FILE_BF16, 0, 1));
    drop("out");
    free_space = 2 * need - 1;
    must_refuse("source", "out", OPENPI_FILE_F32, OPENPI_SYSTEM, "the weights take 0.02 GB, but 0.02 GB");
    free_space = UINT64_MAX;
}

/* A number that is none is named, and so is one that the type cannot hold. */
static void not_finite(void **state) {
    static const struct {
        const char *name;
        bf16 value;
        openpi_file_dtype dtype;
        const char *sentence;
    } cases[] = {{DOWN, 0x7fc0, OPENPI_FILE_BF16,
                  "1 element that is no finite bf16, the first is element 70, which is nan"},
                 {LM_HEAD, 0xff80, OPENPI_FILE_F32,
                  "1 element that is no finite float, the first is element 70, which is -inf"},
                 {DOWN, 0x4780, OPENPI_FILE_F16,
                  "1 element that is no finite f16, the first is element 70, which is 65536"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        openpi_dims dims = make("torch", "tiny:pi0:5", ORBAX_AS_TORCH);
        tensors *list = open_in("torch");
        const tensor *t = tensors_find(list, cases[i].name);
        assert_non_null(t);
        memcpy((char *)(uintptr_t)t->data + 70 * sizeof(bf16), &cases[i].value, sizeof(bf16));
        assert_int_equal(mkdir(scratch_path(&box, "jax"), 0777), 0);
        char folder[400];
        snprintf(folder, sizeof folder, "%s", scratch_path(&box, "jax"));
        orbax_write(folder, list, &dims, 0, 0);
        tensors_close(list);
        must_refuse("jax", "out", cases[i].dtype, OPENPI_BAD_FILE, cases[i].sentence);
        assert_non_null(strstr(error.message, cases[i].name));
        if (cases[i].dtype == OPENPI_FILE_F16) {
            WORKS(convert_to("jax", "out", OPENPI_FILE_BF16, 0, 1));
            drop("out");
        }
        drop("torch");
        drop("jax");
    }
}

/* A chunk that ends early, of a layer that is decoded late and of the embedding. */
static void cut_arrays(void **state) {
    static const char *const chunks[] = {"params.PaliGemma.llm.layers.mlp_1.linear.value",
                                         "params.PaliGemma.llm.embedder.input_embedding.value"};
    (void)state;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        make("jax", "tiny:pi0:5", ORBAX_LOW_BITS);
        char folder[600], path[1000];
        struct dirent **entries;
        struct stat st;
        snprintf(folder, sizeof folder, "%s/params/%s", scratch_path(&box, "jax"), chunks[i]);
        int count = scandir(folder, &entries, NULL, alphasort);
        assert_true(count > 3);  /* ".", "..", ".zarray", chunks */
        snprintf(path, sizeof path, "%s/%s", folder, entries[count - 1]->d_name);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(truncate(path, st.st_size - 1), 0);
        while (count--) free(entries[count]);
        free(entries);
        must_refuse("jax", "out", OPENPI_FILE_BF16, OPENPI_BAD_FILE, chunks[i]);
        drop("jax");
    }
}

/* A file that becomes shorter while it is read. */
static void shorten(void *user, const char *what, uint64_t done, uint64_t total) {
    assert_string_equal(what, "writing weights");
    assert_true(done && done <= total);
    assert_int_equal(truncate(user, 5000), 0);
}

static void cut_meanwhile(void **state) {
    openpi_convert_options options = OPENPI_CONVERT_OPTIONS_INIT;
    char from[400], file[430], to[400];
    (void)state;
    make("source", "tiny:pi0:5", ORBAX_AS_TORCH);
    snprintf(from, sizeof from, "%s", scratch_path(&box, "source"));
    snprintf(file, sizeof file, "%s/model.safetensors", from);
    snprintf(to, sizeof to, "%s", scratch_path(&box, "out"));
    options.threads = 1;
    options.progress = shorten;
    options.progress_user = file;
    REFUSES(openpi_convert(from, to, &options, &error), OPENPI_BAD_FILE,
            "model.safetensors: ends at byte ");
    assert_false(file_exists(to));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_BOX(refused),
        IN_A_BOX(too_little_space),
        IN_A_BOX(not_finite),
        IN_A_BOX(cut_arrays),
        IN_A_BOX(cut_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
