/* The .npy format: magic, version, a Python dictionary as text, then the elements. The dictionary is read by
 * its keys, not evaluated. A machine of the other byte order is not served: elements are copied as they
 * lie. */
#include "npy.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";
enum { MAGIC = 6, HEADER_LIMIT = 65536 };

/* What follows 'key': in the dictionary, spaces skipped; NULL if the key is absent. */
static const char *find_key(const char *header, const char *key) {
    size_t length = strlen(key);
    for (const char *at = header; (at = strstr(at, key)) != NULL; at += length) {
        if (at == header || (at[-1] != '\'' && at[-1] != '"') || at[length] != at[-1]) continue;
        at += length + 1;
        while (*at == ' ') at++;
        if (*at++ != ':') return NULL;
        while (*at == ' ') at++;
        return at;
    }
    return NULL;
}

/* "(10, 32)" into at most two numbers; returns how many there are, -1 if it is not a tuple of sizes. */
static int read_shape(const char *text, long sizes[2]) {
    int n = 0;
    if (*text++ != '(') return -1;
    for (;;) {
        while (*text == ' ' || *text == ',') text++;
        if (*text == ')') return n;
        char *end;
        long size = strtol(text, &end, 10);
        if (end == text || size < 0) return -1;
        if (n < 2) sizes[n] = size;
        n++;
        text = end;
    }
}

/* 4 or 8 bytes an element; 0: of another type. */
static int element_of(const char *descr) {
    static const char *const types[] = {"<f4", "<f8"};
    for (int i = 0; i < 2; i++)
        if (!strncmp(descr + 1, types[i], 3) && descr[4] == descr[0]) return 4 << i;
    return 0;
}

static const char *read_header(const char *header, const char *data, size_t data_bytes, int *rows,
                               int *columns, int *element, char why[NPY_REASON]) {
    long sizes[2] = {0, 0};
    const char *descr = find_key(header, "descr"), *order = find_key(header, "fortran_order"),
               *shape = find_key(header, "shape");
    if (!descr || !order || !shape) {
        snprintf(why, NPY_REASON, "its header lacks one of descr, fortran_order and shape");
        return NULL;
    }
    int type = (int)strcspn(descr, ",}"), tuple = (int)strcspn(shape, ")}"), bytes = element_of(descr);
    if (!bytes || (bytes == 8 && !element)) {
        snprintf(why, NPY_REASON, "dtype is %.*s, expected '<f4' (float32)%s", type > 40 ? 40 : type, descr,
                 element ? " or '<f8' (float64)" : "");
        return NULL;
    }
    if (strncmp(order, "False", 5)) {
        snprintf(why, NPY_REASON, "its elements are in Fortran order, expected C order");
        return NULL;
    }
    if (read_shape(shape, sizes) != 2 || sizes[0] < 1 || sizes[1] < 1 || sizes[0] > INT_MAX / 4 ||
        sizes[1] > INT_MAX / 4) {
        snprintf(why, NPY_REASON, "shape is %.*s), expected two dimensions", tuple > 80 ? 80 : tuple, shape);
        return NULL;
    }
    uint64_t need = (uint64_t)sizes[0] * (uint64_t)sizes[1] * (uint64_t)bytes;
    if (need != data_bytes) {
        snprintf(why, NPY_REASON, "%zu bytes of elements, expected %llu for [%ld, %ld] float%d", data_bytes,
                 (unsigned long long)need, sizes[0], sizes[1], 8 * bytes);
        return NULL;
    }
    *rows = (int)sizes[0];
    *columns = (int)sizes[1];
    if (element) *element = bytes;
    return data;
}

const char *npy_read(const char *bytes, size_t count, int *rows, int *columns, int *element,
                     char why[NPY_REASON]) {
    const unsigned char *b = (const unsigned char *)bytes;
    if (count < 12 || memcmp(bytes, magic, MAGIC)) {
        snprintf(why, NPY_REASON, "not a .npy file");
        return NULL;
    }
    size_t at = b[6] == 1 ? 10 : 12;
    size_t length = b[6] == 1 ? b[8] | (size_t)b[9] << 8
                              : b[8] | (size_t)b[9] << 8 | (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (b[6] < 1 || b[6] > 3) {
        snprintf(why, NPY_REASON, "version %d of the .npy format, expected 1 to 3", b[6]);
        return NULL;
    }
    if (length > HEADER_LIMIT || length > count - at) {
        snprintf(why, NPY_REASON, "its header of %zu bytes does not fit the file of %zu", length, count);
        return NULL;
    }
    char *header = malloc(length + 1);
    if (!header) {
        snprintf(why, NPY_REASON, "out of memory");
        return NULL;
    }
    memcpy(header, bytes + at, length);
    header[length] = 0;
    const char *data =
        read_header(header, bytes + at + length, count - at - length, rows, columns, element, why);
    free(header);
    return data;
}

void npy_write(FILE *file, const double *data, int rows, int columns) {
    char header[128];
    int length = snprintf(header, sizeof header,
                          "{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }", rows, columns);
    int total = 10 + length + 1, padded = (total + 63) / 64 * 64; /* elements start at a multiple of 64 */
    int field = padded - 10;
    fwrite(magic, 1, MAGIC, file);
    fputc(1, file);
    fputc(0, file);
    fputc(field & 255, file);
    fputc(field >> 8, file);
    fprintf(file, "%s%*s\n", header, padded - total, "");
    fwrite(data, sizeof *data, (size_t)rows * (size_t)columns, file);
}
