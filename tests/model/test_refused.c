/* Checkpoints that are not read, each with a sentence that names what it is and what to do: unfinished and
 * incomplete saves of Orbax, arrays that openpi's Orbax does not write, quantised weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "folder_copy.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/jax/orbax_folder.h"
#include "checkpoint/open.h"
#include "ocdbt_write.h"
#include "policy_golden.h"
#include "scratch.h"

#define ORBAX TESTS_DIR "/orbax/"
#define ARRAY "params.PaliGemma.img.head.kernel"

static openpi_error error = OPENPI_ERROR_INIT;

static void refused(const char *path, openpi_status status, const char *piece) {
    tensors *list = NULL;
    REFUSES(tensors_open(path, &list, &error), status, piece);
}

/* ---- folders ---- */

static void write_text(scratch *s, const char *name, const char *text) {
    assert_int_equal(scratch_write(s, name, text, strlen(text)), 0);
}

/* pi0_released without its manifest: one process' own database is complete, and can be given. */
static void test_lost_manifest(void **state) {
    static const struct { const char *metadata, *piece; } rows[] = {
        {"{\"init_timestamp_nsecs\": 5, \"commit_timestamp_nsecs\": null}", "its save was not finished;"},
        {"{\"init_timestamp_nsecs\": 5, \"commit_timestamp_nsecs\": 6}",
         "its save was finished, so files were not copied;"},
        {"{}", "its save was not finished, or files were not copied;"},
        {"{", "its save was not finished, or files were not copied;"},
    };
    scratch s;
    tensors *list;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    folder_copy(ORBAX "pi0_released", s.folder);
    unlink(scratch_path(&s, "params/manifest.ocdbt"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_text(&s, "params/_CHECKPOINT_METADATA", rows[i].metadata);
        refused(s.folder, OPENPI_BAD_FILE, rows[i].piece);
        refused(scratch_path(&s, "params"), OPENPI_BAD_FILE, rows[i].piece);
        refused(s.folder, OPENPI_BAD_FILE, "params: manifest.ocdbt is missing: ");
        refused(s.folder, OPENPI_BAD_FILE,
                "where one process wrote the checkpoint, ocdbt.process_0 is complete by itself: give ");
    }
    WORKS(tensors_open(scratch_path(&s, "params/ocdbt.process_0"), &list, &error));
    assert_int_equal(tensors_count(list), 88);
    tensors_close(list);
    assert_int_equal(mkdir(scratch_path(&s, "params/ocdbt.process_1"), 0777), 0);
    refused(s.folder, OPENPI_BAD_FILE,
            "params: manifest.ocdbt is missing, but 2 folders ocdbt.process_… are there: ");
    refused(s.folder, OPENPI_BAD_FILE, "copy it again, or give another step");
    scratch_close(&s);
}

/* What Orbax has not renamed when it died. */
static void test_unfinished(void **state) {
    scratch s;
    char run[64], step[] = "29999.orbax-checkpoint-tmp-17";
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    snprintf(run, sizeof run, "%s", s.folder);
    assert_int_equal(mkdir(scratch_path(&s, step), 0777), 0);
    refused(run, OPENPI_BAD_FILE, "no finished save of Orbax is in it, only 29999.orbax-checkpoint-tmp-17");
    refused(scratch_path(&s, step), OPENPI_BAD_FILE,
            "a save of Orbax that was not finished, as its name says");
    scratch_close(&s);
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(mkdir(scratch_path(&s, "params"), 0777), 0);
    refused(s.folder, OPENPI_BAD_FILE, "a JAX checkpoint (params/) without its manifest.ocdbt: its save was");
    scratch_close(&s);
}

static void found(const scratch *s, const char *expected) {
    char *params = orbax_folder_find(s->folder);
    assert_non_null(params);
    assert_string_equal(params + strlen(s->folder), expected);
    free(params);
}

/* The newest step of a run, by number; of those that Google's storage marks as finished, where one is. */
static void test_steps(void **state) {
    static const char *const steps[] = {"900", "1000", "99", "1000.orbax-checkpoint-tmp-1", "x2000", "3000"};
    scratch s;
    char name[100];
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(mkdir(scratch_path(&s, steps[i]), 0777), 0);
        snprintf(name, sizeof name, "%s/params", steps[i]);
        assert_int_equal(mkdir(scratch_path(&s, name), 0777), 0);
        snprintf(name, sizeof name, "%s/params/manifest.ocdbt", steps[i]);
        if (strcmp(steps[i], "3000")) write_text(&s, name, "");
    }
    found(&s, "/1000/params");
    write_text(&s, "900/commit_success.txt", "");
    found(&s, "/900/params");
    write_text(&s, "99/commit_success.txt", "");
    found(&s, "/900/params");
    write_text(&s, "1000/commit_success.txt", "");
    found(&s, "/1000/params");
    scratch_close(&s);
}

/* ---- arrays ---- */

#define ADVICE ": restore the checkpoint with Orbax and save it with its defaults"

/* Each row changes one value of a header that is fine. */
static void test_headers(void **state) {
    static const struct { const char *key, *value; openpi_status status; const char *piece; } rows[] = {
        {NULL, NULL, OPENPI_OK, NULL},
        {"compressor", "{\"id\":\"blosc\",\"cname\":\"lz4\"}", OPENPI_UNSUPPORTED,
         "\"compressor\" is {\"id\":\"blosc\",\"cname\":\"lz4\"}, expected zstd or null" ADVICE},
        {"compressor", "{\"id\":\"gzip\",\"level\":1}", OPENPI_UNSUPPORTED, "\"id\":\"gzip\""},
        {"compressor", "{\"id\":\"lz4\"}", OPENPI_UNSUPPORTED, "expected zstd or null" ADVICE},
        {"compressor", "{}", OPENPI_UNSUPPORTED, "expected zstd or null"},
        {"filters", "[{\"id\":\"delta\"}]", OPENPI_UNSUPPORTED,
         "\"filters\" is [{\"id\":\"delta\"}], expected null" ADVICE},
        {"order", "\"F\"", OPENPI_UNSUPPORTED, "\"order\" is \"F\", expected \"C\"" ADVICE},
        {"dtype", "\">f4\"", OPENPI_UNSUPPORTED,
         "\"dtype\" is \">f4\", expected little-endian \"<f4\", \"bfloat16\" or \"<f2\"" ADVICE},
        {"dtype", "\">f2\"", OPENPI_UNSUPPORTED, "expected little-endian"},
        {"dtype", "\"<f8\"", OPENPI_UNSUPPORTED, "\"dtype\" is \"<f8\""},
        {"dtype", "\"|i1\"", OPENPI_UNSUPPORTED, "\"dtype\" is \"|i1\""},
        {"dtype", "\"float8_e4m3fn\"", OPENPI_UNSUPPORTED, "\"dtype\" is \"float8_e4m3fn\""},
        {"zarr_format", "3", OPENPI_UNSUPPORTED, "\"zarr_format\" is 3, expected 2" ADVICE},
        {"fill_value", "1", OPENPI_UNSUPPORTED, "\"fill_value\" is 1, expected null or 0" ADVICE},
        {"dimension_separator", "\"-\"", OPENPI_UNSUPPORTED, "expected \".\" or \"/\"" ADVICE},
        {"shape", "[2,-2]", OPENPI_UNSUPPORTED, "\"shape\" is [2,-2], expected integers of at least 0"},
        {"shape", "[2,2147483648]", OPENPI_UNSUPPORTED, "expected integers of at least 0"},
        {"shape", "[2,2.5]", OPENPI_UNSUPPORTED, "expected integers of at least 0"},
        {"shape", "[1,1,1,1,1,1]", OPENPI_UNSUPPORTED, "expected an array of at most 5 integers"},
        {"shape", "[4]", OPENPI_BAD_FILE, "\"chunks\" has 2 extents, expected 1 as \"shape\" has"},
        {"shape", "[0,2]", OPENPI_BAD_FILE, "axis 0 is 0, expected 1"},
        {"shape", "[2147483647,2147483647]", OPENPI_BAD_FILE, "too many elements"},
        {"chunks", "[2,0]", OPENPI_UNSUPPORTED, "\"chunks\" is [2,0], expected integers of at least 1"},
        {"chunks", "[2147483647,2147483647]", OPENPI_BAD_FILE, "too many elements"},
    };
    static const char *const fine[][2] = {
        {"zarr_format", "2"}, {"order", "\"C\""},   {"fill_value", "null"}, {"filters", "null"},
        {"dtype", "\"<f4\""}, {"shape", "[2,2]"}, {"chunks", "[2,2]"},    {"compressor", "null"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        scratch s;
        char header[600], *end = header;
        tensors *list = NULL;
        int changed = !rows[i].key;
        for (size_t k = 0; k < sizeof fine / sizeof *fine; k++) {
            int this = rows[i].key && !strcmp(rows[i].key, fine[k][0]);
            end += sprintf(end, "%c\"%s\":%s", k ? ',' : '{', fine[k][0], this ? rows[i].value : fine[k][1]);
            changed |= this;
        }
        if (!changed) end += sprintf(end, ",\"%s\":%s", rows[i].key, rows[i].value);
        strcpy(end, "}");
        assert_int_equal(scratch_open(&s), 0);
        assert_int_equal(mkdir(scratch_path(&s, ARRAY), 0777), 0);
        write_text(&s, ARRAY "/.zarray", header);
        if (!rows[i].piece) write_text(&s, ARRAY "/0.0", "x");
        if (rows[i].piece) refused(s.folder, rows[i].status, rows[i].piece);
        else {
            WORKS(tensors_open(s.folder, &list, &error));
            tensors_close(list);
        }
        scratch_close(&s);
    }
}

/* zarr v3 in folders (chunks, and shards of them, lie deeper) and in a database; a header that is too large;
 * an array that openpi's models do not have. */
static void test_arrays(void **state) {
    static const char *const sharded =
        "{\"zarr_format\":3,\"codecs\":[{\"name\":\"sharding_indexed\",\"configuration\":{}}]}";
    static char large[(1 << 16) + 2];
    scratch s;
    (void)state;
    refused(ORBAX "zarr3", OPENPI_UNSUPPORTED,
            "an array of zarr v3, expected v2: restore the checkpoint with Orbax and save it with "
            "use_zarr3=False, as openpi does");
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(mkdir(scratch_path(&s, ARRAY), 0777), 0);
    assert_int_equal(mkdir(scratch_path(&s, ARRAY "/c"), 0777), 0);
    assert_int_equal(mkdir(scratch_path(&s, ARRAY "/c/0"), 0777), 0);
    write_text(&s, ARRAY "/c/0/0", "x");
    write_text(&s, ARRAY "/zarr.json", sharded);
    refused(s.folder, OPENPI_UNSUPPORTED, ARRAY "/zarr.json\" is an array of zarr v3, expected v2: restore");
    unlink(scratch_path(&s, ARRAY "/zarr.json"));
    memset(large, ' ', sizeof large - 1);
    write_text(&s, ARRAY "/.zarray", large);
    refused(s.folder, OPENPI_BAD_FILE, "has 65537 bytes, expected at most 65536");
    scratch_close(&s);
}

/* ---- chunks ---- */

/* Two zstd frames that libzstd takes and a chunk may not be: one is larger than the chunk, one asks for a
 * large window; then plain bytes of another length. */
static void test_chunks(void **state) {
    static const char header[] = "{\"zarr_format\":2,\"order\":\"C\",\"fill_value\":null,\"filters\":null,"
                                 "\"dtype\":\"<f4\",\"shape\":[2,2],\"chunks\":[2,2],\"compressor\":%s}";
    static const struct { int window, plain; size_t count; const char *tail, *piece; } rows[] = {
        {17, 0, 16, "", NULL},
        {17, 0, 17, "", "its zstd data is larger than the chunk"},
        {17, 0, 1 << 30, "", "its zstd data is larger than the chunk"},
        {17, 0, 15, "", "its zstd data ends early, expected 1 bytes more"},
        {17, 0, 16, "x", "bytes follow its zstd data, expected none"},
        {24, 0, 16, "", "its zstd data is damaged: Frame requires too much memory"},
        {17, 1, 0, "0123456789abcdef", NULL},
        {17, 1, 0, "0123456789abcde", "has 15 bytes, expected 16"},
        {17, 1, 0, "0123456789abcdefg", "has 17 bytes, expected 16"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bytes chunk = {0};
        scratch s;
        char text[400];
        tensors *list = NULL;
        if (!rows[i].plain) zstd_head(&chunk, rows[i].window), zstd_zeros(&chunk, rows[i].count);
        put_text(&chunk, rows[i].tail);
        assert_int_equal(scratch_open(&s), 0);
        assert_int_equal(mkdir(scratch_path(&s, ARRAY), 0777), 0);
        snprintf(text, sizeof text, header, rows[i].plain ? "null" : "{\"id\":\"zstd\"}");
        write_text(&s, ARRAY "/.zarray", text);
        assert_int_equal(scratch_write(&s, ARRAY "/0.0", chunk.at, chunk.count), 0);
        WORKS(tensors_open(s.folder, &list, &error));
        if (rows[i].piece) {
            REFUSES(tensors_stage(list, 0, NULL, &error), OPENPI_BAD_FILE, rows[i].piece);
            if (!strstr(error.message, "tensor " ARRAY ", chunk 0.0")) fail_msg("%s", error.message);
        } else {
            WORKS(tensors_stage(list, 0, NULL, &error));
        }
        tensors_close(list);
        free(chunk.at);
        scratch_close(&s);
    }
}

/* ---- other programs' files ---- */

static void write_safetensors(scratch *s, const char *tensors_text) {
    bytes file = {0};
    put_fixed(&file, strlen(tensors_text), 8);
    put_text(&file, tensors_text);
    for (int i = 0; i < 8; i++) put_fixed(&file, 0, 1);
    assert_int_equal(scratch_write(s, "model.safetensors", file.at, file.count), 0);
    free(file.at);
}

#define TENSOR(name, type, shape) \
    "{\"" name "\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[0,8]}}"
#define TOGETHER ": give the checkpoint that it was made from"

static void test_quantised(void **state) {
    static const struct { const char *header, *piece; } rows[] = {
        {TENSOR("a.weight.quant_state.bitsandbytes__nf4", "U8", "8"),
         "bitsandbytes in 4 bits (tensor \"a.weight.quant_state.bitsandbytes__nf4\" is of U8), "
         "expected F32, BF16 or F16" TOGETHER},
        {TENSOR("a.weight.absmax", "F32", "2"), "bitsandbytes in 4 bits"},
        {TENSOR("a.SCB", "F32", "2"), "quantised with bitsandbytes in 8 bits (tensor \"a.SCB\" is of F32)"},
        {TENSOR("a.qweight", "I32", "2"), "quantised with GPTQ or AWQ"},
        {TENSOR("a.qzeros", "I32", "2"), "quantised with GPTQ or AWQ"},
        {TENSOR("a.weight_packed", "I32", "2"), "quantised with compressed-tensors"},
        {TENSOR("a.weight", "F8_E4M3", "8"), "quantised with 8-bit floats (tensor \"a.weight\" is of F8_E4M3)"},
        {TENSOR("a.weight", "F8_E5M2", "8"), "quantised with 8-bit floats"},
        {TENSOR("a.weight", "I8", "8"), "quantised with packed integers (tensor \"a.weight\" is of I8)"},
        {TENSOR("a.weight", "U8", "8"), "quantised with packed integers" },
        {TENSOR("a.weight", "U32", "2"), "quantised with packed integers"},
    };
    static const char *const read[] = {TENSOR("a.weight", "F32", "2"), TENSOR("tokens", "I32", "2"),
                                       TENSOR("picture", "U8", "8")};
    scratch s;
    tensors *list;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_safetensors(&s, rows[i].header);
        refused(s.folder, OPENPI_UNSUPPORTED, rows[i].piece);
        refused(scratch_path(&s, "model.safetensors"), OPENPI_UNSUPPORTED, TOGETHER);
    }
    for (size_t i = 0; i < sizeof read / sizeof *read; i++) {
        write_safetensors(&s, read[i]);
        WORKS(tensors_open(s.folder, &list, &error));
        tensors_close(list);
    }
    scratch_close(&s);
}

static void test_gguf(void **state) {
    scratch s;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(scratch_write(&s, "pi0-q4.gguf", "GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16), 0);
    refused(s.folder, OPENPI_NOT_FOUND,
            "pi0-q4.gguf is there, a GGUF file (llama.cpp's format, and vla.cpp's)");
    refused(s.folder, OPENPI_NOT_FOUND, TOGETHER);
    refused(scratch_path(&s, "pi0-q4.gguf"), OPENPI_BAD_FILE,
            "a GGUF file (llama.cpp's format, and vla.cpp's), expected a safetensors file" TOGETHER);
    scratch_close(&s);
}

/* π0-FAST is read and named, as JAX and as PyTorch writes it. */
static void test_fast(void **state) {
    static const char *const paths[] = {ORBAX "fast", ORBAX "fast/expected.safetensors"};
    checkpoint *checkpoint = NULL;
    (void)state;
    for (size_t i = 0; i < 2; i++)
        REFUSES(checkpoint_open(paths[i], NULL, &checkpoint, &error), OPENPI_UNSUPPORTED,
                "tensors without an action expert, expected π0 or π0.5: run it with openpi in Python");
    REFUSES(checkpoint_open(paths[0], NULL, &checkpoint, &error), OPENPI_UNSUPPORTED, "a π0-FAST checkpoint");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_manifest), cmocka_unit_test(test_unfinished), cmocka_unit_test(test_steps),
        cmocka_unit_test(test_headers), cmocka_unit_test(test_arrays), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_quantised),     cmocka_unit_test(test_gguf),       cmocka_unit_test(test_fast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
