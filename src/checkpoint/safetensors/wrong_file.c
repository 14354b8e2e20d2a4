/* Names what a file is by its first bytes. Called only after it was found not to be a safetensors file, so
 * nothing here can refuse a good one. */
#include "checkpoint/safetensors/wrong_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/report.h"
#include "base/utf8.h"

/* The first `bytes` of a file; text ends with a NUL and has no NUL before. */
typedef struct opening {
    char text[WRONG_FILE_BYTES + 1];
    const uint8_t *data;
    size_t bytes;
} opening;

static int begins_with(const opening *file, const char *magic, size_t length) {
    return file->bytes >= length && !memcmp(file->data, magic, length);
}

static int has_text(const opening *file, const char *text) { return ascii_find(file->text, text) != NULL; }

/* UTF-8 without control characters but those that lay out a text. Its last character may be cut. */
static int is_text(const opening *file) {
    if (utf8_valid_prefix((const char *)file->data, file->bytes) + 3 < file->bytes) return 0;
    if (file->bytes && utf8_valid_prefix((const char *)file->data, file->bytes) == 0) return 0;
    for (size_t i = 0; i < file->bytes; i++)
        if (file->data[i] == 127 || (file->data[i] < 32 && !memchr("\t\n\r\f", file->data[i], 4))) return 0;
    return 1;
}

static openpi_status report_pointer(const char *path, const opening *file, openpi_error *error) {
    const char *size = strstr(file->text, "\nsize ");
    unsigned long long bytes = size ? strtoull(size + 6, NULL, 10) : 0;
    char missing[64] = "";
    if (bytes) snprintf(missing, sizeof missing, " of %llu bytes", bytes);
    return report(
        error, OPENPI_BAD_FILE,
        "%s: a Git LFS pointer, which only names a file%s that is not here, expected the weights themselves: "
        "run `git lfs pull` in its folder, or download the file from where the repository came from",
        path, missing);
}

/* Kinds of file by their first bytes. The first row that fits counts, so the special rows come first. */
static const struct {
    const char *magic;
    size_t length;
    const char *text;            /* must be among the first bytes too; NULL: nothing more     */
    const char *what, *advice;
} kinds[] = {
#define MAGIC(bytes) .magic = bytes, .length = sizeof(bytes) - 1
    {MAGIC("PK\3\4"), .text = "data.pkl", .what = "a PyTorch pickle (torch.save)",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("PK\3\4"), .what = "a zip archive",
     .advice = "unpack it, and give the folder that holds model.safetensors"},
    {MAGIC("\200\2"), .what = "a Python pickle",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("\200\3"), .what = "a Python pickle",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("\200\4"), .what = "a Python pickle",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("\200\5"), .what = "a Python pickle",
     .advice = "load it in Python and write it with safetensors.torch.save_file"},
    {MAGIC("GGUF"), .what = "a GGUF file (llama.cpp's format, and vla.cpp's)",
     .advice = "give the checkpoint that it was made from"},
    {MAGIC("\211HDF\r\n\032\n"), .what = "an HDF5 file", .advice = "take the PyTorch checkpoint"},
    {MAGIC("\223NUMPY"), .what = "a NumPy array", .advice = "take the PyTorch checkpoint"},
    {MAGIC("\037\213"), .what = "a gzip archive",
     .advice = "unpack it, and give the folder that holds model.safetensors"},
    {MAGIC("\050\265\057\375"), .what = "a zstd archive",
     .advice = "unpack it, and give the folder that holds model.safetensors"},
    {MAGIC(""), .text = "<html", .what = "a web page",
     .advice =
         "download the file itself (on Hugging Face the address has /resolve/, not /blob/, and some "
     "need a login)"},
    {MAGIC(""), .text = "<!doctype html", .what = "a web page",
     .advice =
         "download the file itself (on Hugging Face the address has /resolve/, not /blob/, and some "
     "need a login)"},
    {MAGIC("<?xml"), .what = "an XML answer of a server",
     .advice = "download the file again, with a login where one is needed"},
    {MAGIC("{"), .what = "a JSON text", .advice = "give the folder that holds model.safetensors"},
#undef MAGIC
};

/* The length of a header that the first 8 bytes say. */
static uint64_t header_length(const opening *file) {
    uint64_t length = 0;
    for (size_t i = 0; i < 8 && i < file->bytes; i++) length |= (uint64_t)file->data[i] << 8 * i;
    return length;
}

openpi_status wrong_file(const char *path, const uint8_t *first, uint64_t bytes, uint64_t limit,
                         openpi_error *error) {
    static const char pointer[] = "version https://git-lfs.github.com/spec/";
    opening file = {.data = first, .bytes = bytes < WRONG_FILE_BYTES ? (size_t)bytes : WRONG_FILE_BYTES};
    if (!bytes)
        return report(error, OPENPI_BAD_FILE,
                      "%s: an empty file, expected weights: download or copy it again", path);
    for (size_t i = 0; i < file.bytes; i++) file.text[i] = first[i] ? (char)first[i] : ' ';
    uint64_t length = header_length(&file);
    if (bytes >= 8 && length <= limit && (bytes == 8 || first[8] == '{'))
        return report(
            error, OPENPI_BAD_FILE,
            "%s: cut short: the file has %llu bytes, its header alone needs %llu: download or copy it again",
            path, (unsigned long long)bytes, (unsigned long long)length + 8);
    if (begins_with(&file, pointer, sizeof pointer - 1)) return report_pointer(path, &file, error);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (begins_with(&file, kinds[i].magic, kinds[i].length) &&
            (!kinds[i].text || has_text(&file, kinds[i].text)))
            return report(error, OPENPI_BAD_FILE, "%s: %s, expected a safetensors file: %s", path,
                          kinds[i].what, kinds[i].advice);
    if (bytes < 8)
        return report(error, OPENPI_BAD_FILE,
                      "%s: %llu bytes, expected a safetensors file, which has at least 8", path,
                      (unsigned long long)bytes);
    if (is_text(&file))
        return report(error, OPENPI_BAD_FILE,
                      "%s: a text file, expected weights: give a checkpoint's folder or model.safetensors",
                      path);
    return report(
        error, OPENPI_BAD_FILE,
        "%s: not a safetensors file: its first 8 bytes would be a header of %llu bytes, expected at most "
        "%llu",
        path, (unsigned long long)length, (unsigned long long)(bytes - 8 < limit ? bytes - 8 : limit));
}
