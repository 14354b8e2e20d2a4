/* An OCDBT database: the manifest and the nodes that it leads to. The input holds files, each with a byte
 * of its name's length, two bytes of its own, the name and the bytes; they are no files: the linker puts
 * the functions below in place of base/file.c's. What begins as a manifest or node does gets its length
 * and CRC-32C repaired as it is read, so that the parser behind them is reached. */
#include "base/crc32c.h"
#include "base/file.h"
#include "fuzz.h"
#include "checkpoint/jax/ocdbt.h"

openpi_status __wrap_file_reader_open(const char *path, file_reader *reader, openpi_error *error);
void __wrap_file_reader_close(file_reader *reader);
openpi_status __wrap_file_reader_read(const file_reader *reader, const char *path, uint64_t from,
                                      size_t bytes, void *to, openpi_error *error);

enum { MOST_FILES = 8, HEADER = 12, FOOTER = 4 };

static struct {
    const char *name;
    const uint8_t *bytes;
    size_t name_length, count;
} files[MOST_FILES];
static int file_count;

/* A file that is not there is the last one: a name that was changed still leads somewhere. */
openpi_status __wrap_file_reader_open(const char *path, file_reader *reader, openpi_error *error) {
    int found = file_count - 1;
    PROMISE(!strncmp(path, "fuzz/", 5) && !strstr(path, "/../") && path[5] != '/');
    const char *name = path + 5;
    for (int i = 0; i < file_count; i++)
        if (strlen(name) == files[i].name_length && !memcmp(name, files[i].name, strlen(name))) found = i;
    if (found < 0) {
        *error = (openpi_error){.size = error->size, .status = OPENPI_NOT_FOUND, .message = "no file"};
        return OPENPI_NOT_FOUND;
    }
    *reader = (file_reader){found, files[found].count};
    return OPENPI_OK;
}

void __wrap_file_reader_close(file_reader *reader) { reader->bytes = 0; }

static void put(uint8_t *to, uint64_t number, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(number >> 8 * i);
}

static void repair(uint8_t *block, size_t bytes) {
    if (bytes < HEADER + 2 + FOOTER || block[0] != 0x0c || block[1] != 0xdb) return;
    put(block + 4, bytes, 8);
    put(block + bytes - FOOTER, crc32c(block, bytes - FOOTER), FOOTER);
}

openpi_status __wrap_file_reader_read(const file_reader *reader, const char *path, uint64_t from,
                                      size_t bytes, void *to, openpi_error *error) {
    (void)path;
    if (from > reader->bytes || bytes > reader->bytes - from) {
        *error = (openpi_error){.size = error->size, .status = OPENPI_BAD_FILE, .message = "the file ends"};
        return OPENPI_BAD_FILE;
    }
    if (bytes) memcpy(to, files[reader->fd].bytes + from, bytes);
    repair(to, bytes);
    return OPENPI_OK;
}

static void share_out(const uint8_t *data, size_t size) {
    file_count = 0;
    for (size_t at = 0; size - at >= 3 && file_count < MOST_FILES; file_count++) {
        size_t name = data[at], count = data[at + 1] | (size_t)data[at + 2] << 8;
        at += 3;
        if (name > size - at) name = size - at;
        if (count > size - at - name) count = size - at - name;
        files[file_count].name = (const char *)data + at;
        files[file_count].name_length = name;
        files[file_count].bytes = data + at + name;
        files[file_count].count = count;
        at += name + count;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    values *values;
    share_out(data, size);
    if (!went_well(ocdbt_open("fuzz", &values, &error), &error)) return 0;
    for (int i = 0; i < values_count(values); i++) {
        const stored_value *value = values_at(values, i);
        char *text;
        PROMISE(!i || strcmp(values_at(values, i - 1)->key, value->key) < 0);
        PROMISE(values_find(values, value->key) == value);
        if (went_well(value_read(value, 1 << 16, &text, &error), &error)) free(text);
    }
    values_close(values);
    return 0;
}
