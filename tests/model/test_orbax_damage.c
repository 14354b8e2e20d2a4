/* labels: long cost */
/* JAX checkpoints that were damaged: every way to cut a file short, every flipped bit of a manifest and of
 * nodes, every flipped bit of chunks. Under a sanitizer, which takes ten times as long, every seventh: what
 * is found there is found in how bytes are read, not in which of them a checksum covers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/sanitizer.h"
#include "folder_copy.h"
#include "checkpoint/jax/ocdbt.h"
#include "checkpoint/open.h"
#include "policy_golden.h"
#include "scratch.h"

#define ORBAX TESTS_DIR "/orbax/"
#define DEEP ORBAX "ocdbt_deep/"
enum { STEP = SANITIZED ? 7 : 1 };           /* bits, and lengths of files                              */

static const char *const files[] = {"manifest.ocdbt", "d/0bd2fe6b19a6a86edafa81efb02db290"};

/* A database that was cut or changed opens with a sentence, or with all its keys. */
static int opens(const char *folder) {
    openpi_error error = OPENPI_ERROR_INIT;
    values *list = NULL;
    openpi_status status = ocdbt_open(folder, &list, &error);
    if (status == OPENPI_OK) assert_int_equal(values_count(list), 48);
    else assert_true(error.message[0]);
    if (status == OPENPI_OK) values_close(list);
    return status == OPENPI_OK;
}

static void test_damage(void **state) {
    openpi_error error = OPENPI_ERROR_INIT;
    scratch s;
    char *bytes[2];
    size_t counts[2];
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(mkdir(scratch_path(&s, "d"), 0777), 0);
    for (int i = 0; i < 2; i++) {
        char path[600];
        snprintf(path, sizeof path, DEEP "%s", files[i]);
        WORKS(file_read(path, 1 << 20, &bytes[i], &counts[i], &error));
        assert_int_equal(scratch_write(&s, files[i], bytes[i], counts[i]), 0);
    }
    assert_true(opens(s.folder));
    /* The file of nodes also holds those of older versions, which are not read: a change there is no fault.
     * The database's other file holds nothing else. */
    size_t found[2] = {0}, cuts[2] = {0};
    for (int i = 0; i < 2; i++) {
        for (size_t cut = 0; cut < counts[i]; cut++) {
            assert_int_equal(scratch_write(&s, files[i], bytes[i], cut), 0);
            cuts[i] += !opens(s.folder);
        }
        for (size_t bit = 0; bit < 8 * counts[i]; bit += STEP) {
            bytes[i][bit / 8] ^= (char)(1 << bit % 8);
            assert_int_equal(scratch_write(&s, files[i], bytes[i], counts[i]), 0);
            found[i] += !opens(s.folder);
            bytes[i][bit / 8] ^= (char)(1 << bit % 8);
        }
        assert_int_equal(scratch_write(&s, files[i], bytes[i], counts[i]), 0);
    }
    assert_int_equal(cuts[0], counts[0]);
    assert_int_equal(found[0], (8 * counts[0] + STEP - 1) / STEP);
    assert_int_equal(cuts[1], counts[1]);
    assert_true(found[1] > 12000 / STEP);
    assert_true(opens(s.folder));
    for (int i = 0; i < 2; i++) free(bytes[i]);
    scratch_close(&s);
}

/* Opens a checkpoint and decodes all of it; a failure has a sentence. */
static int decodes(const char *folder, openpi_error *error) {
    tensors *list = NULL;
    openpi_status status = tensors_open(folder, &list, error);
    for (int stage = 0; status == OPENPI_OK && stage < tensors_stages(list); stage++)
        status = tensors_stage(list, stage, NULL, error);
    for (int i = 0; status == OPENPI_OK && i < tensors_count(list); i++) {
        const tensor *t = tensors_at(list, i);
        float last;
        if (tensor_is_sequential(t)) tensor_read_f32(t, t->count - 1, 1, &last);
    }
    if (status == OPENPI_OK) status = tensors_check(list, error);
    tensors_close(list);
    assert_true(status == OPENPI_OK || error->message[0]);
    return status == OPENPI_OK;
}

static void rewrite(const char *path, const char *bytes, size_t count) {
    openpi_error error = OPENPI_ERROR_INIT;
    unlink(path);
    WORKS(file_write(path, bytes, count, &error));
}

/* A file that is cut is refused at every length that lacks a byte which is read, and its name is in the
 * sentence. Each `step`-th length of a long file is tried. 1: the file is read at all. */
static int cut_everywhere(const char *root, const char *path, size_t step) {
    openpi_error error = OPENPI_ERROR_INIT;
    char *bytes;
    size_t count;
    int refused = 0;
    WORKS(file_read(path, 1 << 24, &bytes, &count, &error));
    rewrite(path, bytes, 0);
    int read = !decodes(root, &error);
    rewrite(path, bytes, count);
    for (size_t cut = count; cut-- > 0 && read;) {
        if ((cut > 4000 && cut % step) || cut % STEP) continue;
        assert_int_equal(truncate(path, (off_t)cut), 0);
        int well = decodes(root, &error);
        if (well && refused) fail_msg("%s: %zu bytes suffice, more do not", path, cut);
        if (!well && !strstr(error.message, path)) fail_msg("%s cut at %zu: %s", path, cut, error.message);
        refused += !well;
    }
    rewrite(path, bytes, count);
    free(bytes);
    return refused > 0;
}

/* Every file below a folder, each with the others whole; returns how many are read. */
static int cut_files(const char *root, const char *folder, size_t step) {
    DIR *list = opendir(folder);
    const struct dirent *entry;
    char *paths[40];
    int used = 0, count = 0;
    assert_non_null(list);
    while ((entry = readdir(list)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..")) {
            assert_true(count < 40);
            paths[count++] = file_join(folder, entry->d_name);
        }
    closedir(list);
    for (int i = 0; i < count; i++) {
        used += file_is_folder(paths[i]) ? cut_files(root, paths[i], step)
                                         : cut_everywhere(root, paths[i], step);
        free(paths[i]);
    }
    return used;
}

/* A copy of the arrays that lie in files, to be damaged. */
static void open_copy(scratch *s, char root[100]) {
    assert_int_equal(scratch_open(s), 0);
    snprintf(root, 100, "%s/c", s->folder);
    folder_copy(ORBAX "zarr_files/params", root);
}

/* Files that are read: the manifest, the root's nodes, the values. One process' own manifest and nodes are
 * not. */
static void test_cut_files(void **state) {
    static const struct { const char *folder; int used; size_t step; } rows[] = {
        {"zarr_files/params", 8, 1}, {"pi0_released/params", 3, 1}, {"pi05_train/100/params", 3, 64},
        {"pi0_lora/100/params", 3, 64}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        scratch s;
        char source[600], root[100];
        assert_int_equal(scratch_open(&s), 0);
        snprintf(source, sizeof source, ORBAX "%s", rows[i].folder);
        snprintf(root, sizeof root, "%s/c", s.folder);
        folder_copy(source, root);
        snprintf(source, sizeof source, "%s/_METADATA", root);   /* JSON: its reader has tests of its own */
        unlink(source);
        if (!decodes(root, &error)) fail_msg("%s", error.message);
        int used = cut_files(root, root, rows[i].step);
        if (used != rows[i].used)
            fail_msg("%s: %d files are read, expected %d", rows[i].folder, used, rows[i].used);
        scratch_close(&s);
    }
}

/* Nothing but zstd itself covers a chunk's bytes: a flipped bit is found where decoding notices, with the
 * tensor's and the chunk's name. */
static void test_flipped_chunks(void **state) {
    static const char *const names[] = {"params.PaliGemma.img.Transformer.encoder_norm.bias/0",
                                        "params.PaliGemma.img.head.kernel/0.0",
                                        "params.PaliGemma.llm.layers.attn.q_einsum.w/0.0.0.0"};
    scratch s;
    char root[100], path[600], named[200];
    int found = 0;
    (void)state;
    open_copy(&s, root);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        openpi_error error = OPENPI_ERROR_INIT;
        char *bytes, tensor[200];
        size_t count;
        snprintf(tensor, sizeof tensor, "%s", names[i]);
        *strchr(tensor, '/') = 0;
        snprintf(named, sizeof named, "tensor %.120s, chunk %.20s", tensor, strchr(names[i], '/') + 1);
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        WORKS(file_read(path, 1 << 20, &bytes, &count, &error));
        for (size_t bit = 0;; bit += STEP) {                 /* the last one is beyond: whole again */
            if (bit < 8 * count) bytes[bit / 8] ^= (char)(1 << bit % 8);
            unlink(path);
            WORKS(file_write(path, bytes, count, &error));
            int well = decodes(root, &error);
            if (!well && !strstr(error.message, named)) fail_msg("%s, expected %s", error.message, named);
            if (bit < 8 * count) bytes[bit / 8] ^= (char)(1 << bit % 8);
            else assert_true(well);
            found += !well;
            if (bit >= 8 * count) break;
        }
        free(bytes);
    }
    assert_true(found > 300 / STEP);
    scratch_close(&s);
}

/* ---- what is not there ---- */

#define ARRAY "params.PaliGemma.img.head.kernel"
#define GONE "/" ARRAY "/0.0: array \"" ARRAY "\": chunk 0.0 is not there"
#define STORED "\"store_array_data_equal_to_fill_value\": "

static const char *gone(const char *root, const char *metadata, missing_chunks missing, int *chunks) {
    static openpi_error error;
    const orbax_options options = {.missing = missing};
    tensors *list = NULL;
    const char *why = "";
    static char told[500];
    char *path = file_join(root, "_METADATA");
    unlink(path);
    error = (openpi_error)OPENPI_ERROR_INIT;
    if (metadata) WORKS(file_write(path, metadata, strlen(metadata), &error));
    free(path);
    openpi_status status = tensors_open_with(root, &options, &list, &error);
    *chunks = status == OPENPI_OK ? orbax_missing_chunks(orbax_of(list), &why) : -1;
    snprintf(told, sizeof told, "%s", status == OPENPI_OK ? why : error.message);
    tensors_close(list);
    return told;
}

/* `chunks` of them are told, or -1 and the sentence, which has the piece. */
static void tells(const char *root, const char *metadata, missing_chunks missing, int chunks,
                  const char *piece) {
    int found;
    const char *told = gone(root, metadata, missing, &found);
    if (found != chunks || !strstr(told, piece) || (!*piece && *told))
        fail_msg("%s: %d chunks, %s; expected %d, %s", metadata ? metadata : "no _METADATA", found, told,
                 chunks, piece);
}

/* A chunk that is not there: the checkpoint says whether zeros were saved, as Orbax reads it. */
static void test_gone_chunk(void **state) {
    static const struct {
        const char *metadata;
        missing_chunks missing;
        int chunks;
        const char *piece;
    } rows[] = {
        {NULL, MISSING_REFUSED, -1,
         GONE ", and no _METADATA says whether zeros were saved: copy the checkpoint again, or give "
         "missing_chunks_are_zero"},
        {NULL, MISSING_ZERO, 1, "chunk 0.0 is not there and taken as zeros, as missing_chunks_are_zero says"},
        {NULL, MISSING_UNSEEN, 0, ""},
        {"{" STORED "true}", MISSING_REFUSED, -1,
         GONE ", but _METADATA says that all were saved"},
        {"{" STORED "true}", MISSING_ZERO, -1, "but _METADATA says that all were saved"},
        {"{" STORED "false}", MISSING_REFUSED, 1, GONE " and taken as zeros, as its _METADATA"},
        {"{}", MISSING_REFUSED, 1, "taken as zeros, as its _METADATA says"},
        {"{" STORED "1}", MISSING_REFUSED, -1, "is an integer, expected true or false"},
        {"[]", MISSING_REFUSED, -1, "is an array, expected an object"},
        {"{", MISSING_REFUSED, -1, "_METADATA"},
    };
    scratch s;
    char root[100], path[300];
    (void)state;
    open_copy(&s, root);
    snprintf(path, sizeof path, "%s/" ARRAY "/0.0", root);
    assert_int_equal(unlink(path), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        tells(root, rows[i].metadata, rows[i].missing, rows[i].chunks, rows[i].piece);
    scratch_close(&s);
}

/* A chunk whose file has no byte, as a copy leaves it that was broken off. */
static void test_empty_chunk(void **state) {
    scratch s;
    char root[100], path[300];
    (void)state;
    open_copy(&s, root);
    snprintf(path, sizeof path, "%s/" ARRAY "/0.0", root);
    rewrite(path, "", 0);
    tells(root, NULL, MISSING_ZERO, -1, ARRAY "/0.0: array \"" ARRAY "\": chunk 0.0 is empty: download");
    tells(root, "{" STORED "false}", MISSING_REFUSED, -1, "chunk 0.0 is empty");
    scratch_close(&s);
}

#define KEY(name) "{\"key\": \"" name "\", \"key_type\": 2}"
#define KEYS(last) KEY("params") ", " KEY("PaliGemma") ", " KEY("img") ", " KEY("head") ", " KEY(last)
#define ENTRY(last, skip)                                                \
    "{\"tree_metadata\": {\"x\": {\"key_metadata\": [" KEYS(last) "], " \
    "\"value_metadata\": {\"skip_deserialize\": " skip "}}}, " STORED "true}"

/* An array that is not there as a whole, and one without its header. */
static void test_gone_array(void **state) {
    scratch s;
    char root[100], path[300];
    (void)state;
    open_copy(&s, root);
    tells(root, ENTRY("kernel", "false"), MISSING_REFUSED, 0, "");
    tells(root, ENTRY("other", "true"), MISSING_REFUSED, 0, "");
    tells(root, ENTRY("lora_a", "false"), MISSING_REFUSED, -1,
          "array \"params.PaliGemma.img.head.lora_a\" is not there, but ");
    snprintf(path, sizeof path, "%s/" ARRAY "/.zarray", root);
    assert_int_equal(unlink(path), 0);
    tells(root, NULL, MISSING_ZERO, -1, "array \"" ARRAY "\" has chunks but no .zarray");
    scratch_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damage),     cmocka_unit_test(test_cut_files),
        cmocka_unit_test(test_flipped_chunks), cmocka_unit_test(test_gone_chunk),
        cmocka_unit_test(test_gone_array), cmocka_unit_test(test_empty_chunk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
