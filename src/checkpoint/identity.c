/* The hash of a checkpoint's files, by samples. */
#include "checkpoint/identity.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/ascii.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/report.h"
#include "checkpoint/tensors_build.h"

enum { SAMPLE = 4096, APART = 1 << 20 };

static uint64_t hash_text(uint64_t h, const char *text) { return hash_fnv1a64(h, text, strlen(text) + 1); }

static uint64_t hash_number(uint64_t h, uint64_t number) {
    uint8_t bytes[8];                            /* the same on machines of either order                   */
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> 8 * i);
    return hash_fnv1a64(h, bytes, sizeof bytes);
}

static openpi_status hash_sample(const file_reader *file, const char *path, uint64_t at, uint64_t *h,
                                 openpi_error *error) {
    uint8_t block[SAMPLE];
    size_t bytes = file->bytes - at < SAMPLE ? (size_t)(file->bytes - at) : SAMPLE;
    TRY(file_reader_read(file, path, at, bytes, block, error));
    *h = hash_fnv1a64(*h, block, bytes);
    return OPENPI_OK;
}

static openpi_status hash_samples(const file_reader *file, const char *path, uint64_t *h,
                                  openpi_error *error) {
    for (uint64_t at = 0; at < file->bytes; at += APART) TRY(hash_sample(file, path, at, h, error));
    return hash_sample(file, path, file->bytes > SAMPLE ? file->bytes - SAMPLE : 0, h, error);
}

static openpi_status hash_file(const char *path, uint64_t *h, openpi_error *error) {
    file_reader file;
    size_t end, at = file_last_name(path, &end);
    TRY(file_reader_open(path, &file, error));
    *h = hash_fnv1a64(*h, path + at, end - at);
    *h = hash_number(*h, file.bytes);
    openpi_status status = hash_samples(&file, path, h, error);
    file_reader_close(&file);
    return status;
}

/* Rank, factor and kind of LoRA change the weights and lie in no tensor; where its folder lies changes
 * nothing. */
static openpi_status hash_lora(const checkpoint *checkpoint, uint64_t *h, openpi_error *error) {
    static const char *const keys[] = {"adapter", "lora"};
    json_t *about = NULL;
    TRY(checkpoint_describe(checkpoint, &about, error));
    for (int i = 0; i < 2; i++) {
        json_t *told = json_object_get(about, keys[i]);
        if (!told) continue;
        json_object_del(told, "folder");
        if (json_is_string(json_object_get(told, "ignored"))) json_object_del(told, "ignored");
        char *text = json_text(told, JSON_COMPACT | JSON_SORT_KEYS);
        if (text) *h = hash_text(hash_text(*h, keys[i]), text);
        free(text);
    }
    json_decref(about);
    return OPENPI_OK;
}

openpi_status checkpoint_identity(const checkpoint *checkpoint, char text[IDENTITY_TEXT],
                                  openpi_error *error) {
    uint64_t h = HASH_FNV_START, bytes;
    int files = tensors_files(checkpoint->tensors);
    if (!files) h = hash_fnv1a64(hash_text(h, checkpoint->name), &checkpoint->dims, sizeof(openpi_dims));
    for (int i = 0; i < files; i++)
        TRY(hash_file(tensors_file(checkpoint->tensors, i, &bytes), &h, error));
    TRY(hash_lora(checkpoint, &h, error));
    if (checkpoint->ignored[0]) h = hash_text(h, "without LoRA");
    snprintf(text, IDENTITY_TEXT, "%016" PRIx64, h);
    return OPENPI_OK;
}

openpi_status checkpoint_stamp(const checkpoint *checkpoint, uint64_t *stamp, openpi_error *error) {
    uint64_t bytes;
    *stamp = HASH_FNV_START;
    for (int i = 0; i < tensors_files(checkpoint->tensors); i++) {
        const char *path = tensors_file(checkpoint->tensors, i, &bytes);
        struct stat about;
        if (stat(path, &about))
            return report(error, OPENPI_BAD_FILE, "%s: is no longer there: %s", path, ascii_errno(errno));
        *stamp = hash_number(*stamp, (uint64_t)about.st_dev);
        *stamp = hash_number(*stamp, (uint64_t)about.st_ino);
        *stamp = hash_number(*stamp, (uint64_t)about.st_size);
        *stamp = hash_number(*stamp, (uint64_t)about.st_mtim.tv_sec);
        *stamp = hash_number(*stamp, (uint64_t)about.st_mtim.tv_nsec);
    }
    return OPENPI_OK;
}
