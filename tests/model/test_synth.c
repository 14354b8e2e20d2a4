/* labels: threads */
/* The synthetic checkpoint against the hashes that the recipe's reference made, and what `openpi synth`
 * writes. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/synthetic/synth.h"
#include "checkpoint/tensors_build.h"
#include "policy/normalize.h"
#include "policy/tokenizer/tokenizer.h"
#include "structs.h"
#include "scratch.h"

static openpi_error error = OPENPI_ERROR_INIT;

static void check(openpi_status status) {
    if (status != OPENPI_OK) fail_msg("%s: %s", openpi_status_text(status), error.message);
}

static void check_fails(openpi_status status, openpi_status expected, const char *sentence) {
    if (status != expected || !strstr(error.message, sentence))
        fail_msg("%s: \"%s\", expected %s: \"%s\"", openpi_status_text(status), error.message,
                 openpi_status_text(expected), sentence);
}

/* Kernels that this machine lacks are named, not silently passed over. */
static const synth_kernel *kernel_at(int level) {
    static const char *const names[SYNTH_KERNELS] = {"scalar", "avx2", "avx512"};
    const synth_kernel *k = synth_kernel_at(level);
    if (!k) print_message("skipped: %s, which this machine lacks\n", names[level]);
    return k;
}

static uint64_t hash_range(const synth_kernel *k, const tensor *t, int64_t first, int64_t count, uint64_t h) {
    enum { BLOCK = 1000 };       /* no multiple of any vector */
    bf16 block[BLOCK];
    while (count > 0) {
        int64_t now = count < BLOCK ? count : BLOCK;
        k->read_bf16(tensor_recipe_of(t), first, now, block);
        h = hash_fnv1a64(h, block, (size_t)now * sizeof *block);
        first += now;
        count -= now;
    }
    return h;
}

static void check_hashes(const synth_kernel *k, const char *preset, const char *variant, json_t *hashes) {
    char spec[64], key[64], text[20];
    snprintf(spec, sizeof spec, "%s:%s:7", preset, variant);
    snprintf(key, sizeof key, "%s_%s_seed7", preset, variant);
    json_t *expected = json_object_get(hashes, key);
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    tensors *list;
    check(openpi_synthetic_parse(spec, &synthetic, &error));
    check(tensors_synthetic(&synthetic, &list, &error));
    assert_true(json_object_size(expected) > 100);
    assert_int_equal(tensors_count(list), json_object_size(expected));
    int index = 0;
    const char *name;
    json_t *value;
    json_object_foreach(expected, name, value) {
        const tensor *t = tensors_at(list, index++);
        assert_string_equal(t->name, name);                 /* file order too */
        assert_ptr_equal(tensors_find(list, name), t);
        json_t *shape = json_array_get(value, 0);
        assert_int_equal(t->rank, json_array_size(shape));
        for (int i = 0; i < t->rank; i++)
            assert_int_equal(t->shape[i], json_integer_value(json_array_get(shape, (size_t)i)));
        int whole = strcmp(preset, "full") != 0;
        int64_t ends = t->count < 256 ? t->count : 256;
        uint64_t h = hash_range(k, t, 0, whole ? t->count : ends, HASH_FNV_START);
        if (!whole) h = hash_range(k, t, t->count - ends, ends, h);
        snprintf(text, sizeof text, "%016llx", (unsigned long long)h);
        if (strcmp(text, json_string_value(json_array_get(value, 1))))
            fail_msg("%s, %s, %s: other values", k->name, key, name);
    }
    tensors_close(list);
}

static void test_hashes(void **state) {
    static const char *const presets[] = {"tiny", "odd", "full"}, *const variants[] = {"pi0", "pi05"};
    json_t *hashes;
    (void)state;
    check(json_read(GOLDEN "/synth_hashes.json", &hashes, &error));
    assert_int_equal(json_object_size(hashes), 6);
    for (int level = 0; level < SYNTH_KERNELS; level++) {
        const synth_kernel *k = kernel_at(level);
        for (int p = 0; k && p < 3; p++)
            for (int v = 0; v < 2; v++) check_hashes(k, presets[p], variants[v], hashes);
    }
    json_decref(hashes);
}

/* Any range, from any element, in both types, is part of the same sequence. */
static void test_ranges(void **state) {
    enum { COUNT = 3 * 64 };
    static const char *const names[] = {"paligemma_with_expert.gemma_expert.model.norm.dense.bias",
                                        "time_mlp_in.weight",
                                        ("paligemma_with_expert.paligemma.model.vision_tower.vision_model."
                                         "post_layernorm.weight")};
    openpi_synthetic synthetic = OPENPI_SYNTHETIC_INIT;
    tensors *list;
    (void)state;
    check(openpi_synthetic_parse("tiny:pi05:18446744073709551615", &synthetic, &error));
    check(tensors_synthetic(&synthetic, &list, &error));
    for (int n = 0; n < 3; n++) {
        const tensor *t = tensors_find(list, names[n]);
        float whole[COUNT], part[COUNT];
        bf16 half[COUNT];
        int64_t all = t->count < COUNT ? t->count : COUNT;
        synth_scalar.read_f32(tensor_recipe_of(t), 0, all, whole);
        for (int level = 0; level < SYNTH_KERNELS; level++) {
            const synth_kernel *k = synth_kernel_at(level);
            for (int64_t first = 0; k && first < all; first++)
                for (int64_t count = 1; first + count <= all; count += 7) {
                    k->read_f32(tensor_recipe_of(t), first, count, part);
                    k->read_bf16(tensor_recipe_of(t), first, count, half);
                    assert_memory_equal(part, whole + first, (size_t)count * sizeof *part);
                    for (int64_t i = 0; i < count; i++) assert_int_equal(half[i], float_to_bf16(part[i]));
                }
        }
    }
    tensors_close(list);
}

static void test_parse(void **state) {
    static const struct {
        const char *spec;
        int width;
        openpi_variant variant;
        uint64_t seed;
    } good[] = {{NULL, 2048, OPENPI_PI0, 7},
                {"", 2048, OPENPI_PI0, 7},
                {"full", 2048, OPENPI_PI0, 7},
                {"tiny", 128, OPENPI_PI0, 7},
                {"odd:pi05", 96, OPENPI_PI05, 7},
                {"tiny:pi0:0", 128, OPENPI_PI0, 0},
                {"full:pi05:18446744073709551615", 2048, OPENPI_PI05, UINT64_MAX}};
    static const char *const bad[] = {
        "huge",      "tin",         "tiny:",       "tiny:pi",     "tiny:pi05x",
        "tiny:pi0:", "tiny:pi0:-1", "tiny:pi0:7x", "tiny:pi0: 7", "tiny:pi0:18446744073709551616",
        ":pi0",      "tiny::7",     "tiny:pi0:7:8"};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        openpi_synthetic s = OPENPI_SYNTHETIC_INIT;
        check(openpi_synthetic_parse(good[i].spec, &s, &error));
        assert_int_equal(s.dims.width, good[i].width);
        assert_int_equal(s.variant, good[i].variant);
        assert_true(s.seed == good[i].seed);
        assert_int_equal(s.lerobot, 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        openpi_synthetic s = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT, .seed = 99};
        check_fails(openpi_synthetic_parse(bad[i], &s, &error), OPENPI_BAD_ARGUMENT,
                    "expected full, tiny or odd");
        assert_true(strstr(error.message, bad[i]) != NULL);
        assert_true(s.seed == 99);
    }
    check_fails(openpi_synthetic_parse("tiny", NULL, &error), OPENPI_BAD_ARGUMENT, "NULL");
}

#define DIMS(vision, vlm, expert, vocab) \
    "{\"vision\":" vision ",\"vlm\":" vlm ",\"expert\":" expert ",\"vocab\":" vocab "}"

static void test_dims(void **state) {
    static const struct {
        const char *json, *sentence;
    } bad[] = {
        {"", "expected a JSON object"},
        {"large", "\"large\", expected a JSON object"},
        {"{", "not valid JSON"},
        {"{}", "dims have 0 members"},
        {DIMS("3", "[8,1,1,2,8]", "[4,8]", "16"), "\"vision\" is an integer, expected 4 integers"},
        {DIMS("[8,1,1]", "[8,1,1,2,8]", "[4,8]", "16"), "\"vision\" is of another length, expected 4 integers"},
        {DIMS("[8,1,1,8]", "[8,1,1.0,2,8]", "[4,8]", "16"), "\"vlm\"[2] is a real number"},
        {DIMS("[8,1,1,8]", "[8,1,0,2,8]", "[4,8]", "16"), "\"vlm\"[2] is out of range"},
        {DIMS("[8,1,1,8]", "[8,1,1,3,8]", "[4,8]", "16"), "head dimension is 3, expected an even number"},
        {DIMS("[8,1,3,8]", "[8,1,1,2,8]", "[4,8]", "16"), "vision width is 8, expected a multiple of its 3 heads"},
        {DIMS("[8,1,1,8]", "[8,1,1,2,8]", "[5,8]", "16"), "expert width is 5, expected an even number from 4"},
        {DIMS("[8,1,1,8]", "[8,1,1,2,8]", "[2,8]", "16"), "expert width is 2"},
        {DIMS("[8,1,1,8]", "[8,1,1,2,8]", "[4,1073741824]", "16"), "expert mlp is 1073741824"},
        {DIMS("[8,1,1,8]", "[8,999,1,2,8]", "[4,8]", "16"), "language depth is 999, expected a number from 1 to 256"},
        {DIMS("[8,1,1,8]", "[8,1,1,2,8]", "[4,8]", "0"), "\"vocab\" is 0"},
        {DIMS("[8,1,1,8]", "[8,1,1,2,8]", "[4,8]", "null"), "vocabulary is 0"},
        {DIMS("[8,1,1,8]", "[8,1,1,2,8]", "[4,8]", "16, \"more\": 1"), "dims have 5 members"},
    };
    openpi_dims dims = OPENPI_DIMS_INIT;
    (void)state;
    check(openpi_dims_parse(" " DIMS("[8,1,2,24]", "[16,3,5,6,7]", "[4,9]", "16"), &dims, &error));
    const openpi_dims expected = DIMS_OF(8, 1, 2, 24, 16, 3, 5, 6, 7, 4, 9, 16);
    assert_memory_equal(&dims, &expected, sizeof dims);
    check(openpi_dims_parse("odd", &dims, &error));
    assert_int_equal(dims.expert_width, 40);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_fails(openpi_dims_parse(bad[i].json, &dims, &error), OPENPI_BAD_ARGUMENT, bad[i].sentence);
    check_fails(openpi_dims_parse(NULL, &dims, &error), OPENPI_BAD_ARGUMENT, "NULL");
}

/* ---- writing ---- */

typedef struct seen {
    uint64_t done, total;
    int calls;
} seen;

static void watch(void *user, const char *what, uint64_t done, uint64_t total) {
    seen *s = user;
    assert_string_equal(what, "writing weights");
    assert_true(done > s->done && done <= total);
    *s = (seen){done, total, s->calls + 1};
}

static openpi_synthetic small(openpi_variant variant, int lerobot) {
    openpi_synthetic s = {.size = sizeof(openpi_synthetic), .dims = OPENPI_DIMS_INIT, .variant = variant,
                          .seed = 5, .lerobot = lerobot};
    check(openpi_dims_parse(DIMS("[24,2,2,24]", "[16,3,5,6,9]", "[4,9]", "16"), &s.dims, &error));
    return s;
}

/* What stands in the files is what is made in memory. */
static void check_written(const char *folder, const openpi_synthetic *synthetic, const char *first_name) {
    checkpoint *files, *memory;
    check(checkpoint_open(folder, NULL, &files, &error));
    check(checkpoint_open(NULL, synthetic, &memory, &error));
    assert_memory_equal(&files->dims, &memory->dims, sizeof files->dims);
    assert_int_equal(files->variant, memory->variant);
    assert_int_equal(files->lerobot, memory->lerobot);
    assert_int_equal(files->horizon, 50);
    assert_int_equal(files->steps, 10);
    assert_int_equal(files->max_prompt, memory->max_prompt);
    assert_true(files->parameters == memory->parameters);
    assert_int_equal(tensors_count(files->tensors), tensors_count(memory->tensors));
    assert_string_equal(tensors_stored_name(files->tensors, 0), first_name);
    for (int i = 0; i < tensors_count(files->tensors); i++) {
        const tensor *a = tensors_at(files->tensors, i), *b = tensors_at(memory->tensors, i);
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->type, DTYPE_BF16);
        assert_true(a->count == b->count);
        bf16 *x = malloc((size_t)a->count * sizeof *x), *y = malloc((size_t)a->count * sizeof *y);
        tensor_read_bf16(a, 0, a->count, x);
        synth_scalar.read_bf16(tensor_recipe_of(b), 0, b->count, y);
        assert_memory_equal(x, y, (size_t)a->count * sizeof *x);
        free(x);
        free(y);
    }
    checkpoint_close(files);
    checkpoint_close(memory);
}

#define FIRST \
    "paligemma_with_expert.paligemma.model.vision_tower.vision_model.embeddings.patch_embedding.weight"

static void test_write(void **state) {
    static const uint64_t shards[] = {0, 1 << 14, 1};
    (void)state;
    for (int variant = 0; variant < 2; variant++)
        for (int lerobot = 0; lerobot < 2; lerobot++)
            for (int i = 0; i < 3; i++) {
                scratch s;
                seen seen = {0};
                openpi_synthetic synthetic = small((openpi_variant)variant, lerobot);
                assert_int_equal(scratch_open(&s), 0);
                const char *folder = scratch_path(&s, "made");
                char path[400];
                strcpy(path, folder);
                check(openpi_synthetic_write(&synthetic, path, shards[i], 2, watch, &seen, &error));
                assert_true(seen.calls > 0 && seen.done == seen.total);
                assert_int_equal(access(scratch_path(&s, "made/model.safetensors"), F_OK) == 0,
                                 shards[i] == 0);
                assert_int_equal(access(scratch_path(&s, "made/model.safetensors.index.json"), F_OK) == 0,
                                 shards[i] != 0);
                check_written(path, &synthetic, lerobot ? "model." FIRST : FIRST);
                check_fails(openpi_synthetic_write(&synthetic, path, 0, 1, NULL, NULL, &error),
                            OPENPI_BAD_ARGUMENT, "expected a new or empty folder");
                check_written(path, &synthetic, lerobot ? "model." FIRST : FIRST);      /* left as it was */
                scratch_close(&s);
            }
}

/* The policy layer takes what was written: its statistics, its processors, its tokenizer. */
static void test_write_policy(void **unused) {
    (void)unused;
    for (int variant = 0; variant < 2; variant++) {
        scratch s;
        norm_stats state, actions, state_read, actions_read;
        openpi_synthetic synthetic = small((openpi_variant)variant, 0);
        assert_int_equal(scratch_open(&s), 0);
        check(openpi_synthetic_write(&synthetic, s.folder, 0, 1, NULL, NULL,
                                     &error)); /* an empty folder will do */
        normalize_synthetic_stats(synthetic.seed, &state, &actions);
        check(normalize_read(scratch_path(&s, "assets/synthetic/norm_stats.json"), &state_read, &actions_read,
                             &error));
        assert_memory_equal(&state, &state_read, sizeof state);
        assert_memory_equal(&actions, &actions_read, sizeof actions);
        tokenizer *tokenizer;
        check(tokenizer_open(scratch_path(&s, "tokenizer.model"), &tokenizer, &error));
        tokenizer_close(tokenizer);
        scratch_close(&s);

        openpi_policy *policy;
        openpi_policy_info info = OPENPI_POLICY_INFO_INIT;
        synthetic.lerobot = 1;
        assert_int_equal(scratch_open(&s), 0);
        check(openpi_synthetic_write(&synthetic, s.folder, 0, 1, NULL, NULL, &error));
        check(openpi_policy_open(s.folder, NULL, &policy, &error));
        openpi_policy_get_info(policy, &info, NULL);
        assert_int_equal(info.lerobot, 1);
        assert_int_equal(info.state_length, 32);
        assert_int_equal(info.action_dim, 32);
        assert_int_equal(info.horizon, 50);
        assert_int_equal(info.max_prompt, variant ? 200 : 48);
        assert_int_equal(info.prompt_state, variant);
        openpi_policy_close(policy);
        scratch_close(&s);
    }
}

static int entries(const char *folder) {
    DIR *list = opendir(folder);
    int count = 0;
    assert_non_null(list);
    while (readdir(list)) count++;
    closedir(list);
    return count - 2;
}

static void test_write_refused(void **state) {
    scratch s;
    char path[400];
    openpi_synthetic synthetic = small(OPENPI_PI0, 0), bad = synthetic;
    (void)state;
    assert_int_equal(scratch_open(&s), 0);
    assert_int_equal(scratch_write(&s, "file", "x", 1), 0);
    strcpy(path, scratch_path(&s, "file"));
    check_fails(openpi_synthetic_write(&synthetic, path, 0, 1, NULL, NULL, &error), OPENPI_BAD_ARGUMENT,
                "is a file, expected a new or empty folder");
    strcpy(path, scratch_path(&s, "file/inside"));
    check_fails(openpi_synthetic_write(&synthetic, path, 0, 1, NULL, NULL, &error), OPENPI_SYSTEM,
                "Not a directory");
    strcpy(path, scratch_path(&s, "absent/inside"));
    check_fails(openpi_synthetic_write(&synthetic, path, 0, 1, NULL, NULL, &error), OPENPI_SYSTEM,
                "the folder cannot be made: No such file");
    check_fails(openpi_synthetic_write(&synthetic, s.folder, 0, 1, NULL, NULL, &error), OPENPI_BAD_ARGUMENT,
                "holds \"file\"");
    check_fails(openpi_synthetic_write(&synthetic, "", 0, 1, NULL, NULL, &error), OPENPI_BAD_ARGUMENT,
                "path is empty");
    check_fails(openpi_synthetic_write(NULL, s.folder, 0, 1, NULL, NULL, &error), OPENPI_BAD_ARGUMENT,
                "is NULL");
    strcpy(path, scratch_path(&s, "new"));
    bad.dims.depth = 0;
    check_fails(openpi_synthetic_write(&bad, path, 0, 1, NULL, NULL, &error), OPENPI_BAD_ARGUMENT,
                "language depth is 0");
    bad = synthetic;
    bad.variant = (openpi_variant)2;
    check_fails(openpi_synthetic_write(&bad, path, 0, 1, NULL, NULL, &error), OPENPI_BAD_ARGUMENT,
                "variant is 2");
    check_fails(openpi_synthetic_write(&synthetic, path, 0, -1, NULL, NULL, &error), OPENPI_BAD_ARGUMENT,
                "threads is -1");
    assert_int_equal(entries(s.folder), 1);
    scratch_close(&s);
}

/* A disk that fills up, played by a limit on the size of files: at the weights, and before them. */
static void test_write_full_disk(void **state) {
    static const rlim_t limits[] = {60000, 3000, 100};
    openpi_synthetic synthetic = small(OPENPI_PI05, 0);
    struct rlimit before, now;
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (int folder_there = 0; folder_there < 2; folder_there++) {
            scratch s;
            char path[400];
            assert_int_equal(scratch_open(&s), 0);
            strcpy(path, folder_there ? s.folder : scratch_path(&s, "new"));
            assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
            now = before;
            now.rlim_cur = limits[i];
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &now), 0);
            openpi_status status = openpi_synthetic_write(&synthetic, path, 0, 2, NULL, NULL, &error);
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
            check_fails(status, OPENPI_SYSTEM, "cannot be written: File too large");
            if (i == 0) assert_true(strstr(error.message, "/model.safetensors") != NULL);
            assert_int_equal(entries(s.folder), 0);
            scratch_close(&s);
        }
    signal(SIGXFSZ, SIG_DFL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hashes),        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_parse),         cmocka_unit_test(test_dims),
        cmocka_unit_test(test_write),         cmocka_unit_test(test_write_policy),
        cmocka_unit_test(test_write_refused), cmocka_unit_test(test_write_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
