/* A LeRobot checkpoint of the goldens, without weights and tokenizer, copied so that a test can break it. */
#ifndef TESTS_LEROBOT_FOLDER_H
#define TESTS_LEROBOT_FOLDER_H

#include <sys/stat.h>
#include <unistd.h>

#include "policy_golden.h"

static char folder_name[64];
static const char *const folder_files[] = {
    "config.json", "policy_preprocessor.json", "policy_postprocessor.json",
    "policy_preprocessor_step_3_normalizer_processor.safetensors",
    "policy_postprocessor_step_0_unnormalizer_processor.safetensors"};

static inline void folder_copy(const char *golden) {
    snprintf(folder_name, sizeof folder_name, "test_lerobot_%ld", (long)getpid());
    mkdir(folder_name, 0777);
    for (size_t i = 0; i < sizeof folder_files / sizeof *folder_files; i++) {
        char from[512], to[512];
        size_t bytes;
        snprintf(from, sizeof from, GOLDEN "/lerobot/%s/checkpoint/%s", golden, folder_files[i]);
        snprintf(to, sizeof to, "%s/%s", folder_name, folder_files[i]);
        if (!file_exists(from)) continue;
        char *data = golden_read(from, &bytes);
        FILE *file = fopen(to, "wb");
        assert_non_null(file);
        assert_int_equal(fwrite(data, 1, bytes, file), bytes);
        fclose(file);
        free(data);
    }
}

static inline void folder_remove(void) {
    for (size_t i = 0; i < sizeof folder_files / sizeof *folder_files; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder_name, folder_files[i]);
        unlink(path);
    }
    rmdir(folder_name);
}

/* Sets the value at a path like "steps/2/config/enabled" in one of the files; value NULL removes it. */
static inline void folder_patch(const char *file, const char *path, const char *value) {
    char name[512], keys[256];
    snprintf(name, sizeof name, "%s/%s", folder_name, file);
    snprintf(keys, sizeof keys, "%s", path);
    json_t *root = json_load_file(name, 0, NULL), *at = root;
    assert_non_null(root);
    for (char *key = keys, *next; key; key = next) {
        next = strchr(key, '/');
        if (next) *next++ = 0;
        if (next) {
            at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
            assert_non_null(at);
        } else if (!value) {
            assert_int_equal(
                json_is_array(at) ? json_array_remove(at, (size_t)atoi(key)) : json_object_del(at, key), 0);
        } else {
            json_t *set = json_loads(value, JSON_DECODE_ANY, NULL);
            assert_non_null(set);
            assert_int_equal(json_is_array(at) ? json_array_set_new(at, (size_t)atoi(key), set)
                                               : json_object_set_new(at, key, set),
                             0);
        }
    }
    assert_int_equal(json_dump_file(root, name, 0), 0);
    json_decref(root);
}

#endif
