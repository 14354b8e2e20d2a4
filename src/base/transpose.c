#include "base/transpose.h"

#include <string.h>

enum { BLOCK = 16 };             /* columns at once */

/* BLOCK columns of `n` lines: whole pieces of lines are read, and whole pieces of rows written. */
#define TRANSPOSE_BLOCK(name, word, n)                                                            \
    static void name(const char *lines, size_t line_bytes, char *to, size_t row_bytes) {          \
        word block[n][BLOCK], row[n];                                                             \
        for (size_t i = 0; i < n; i++) memcpy(block[i], lines + i * line_bytes, sizeof block[i]); \
        for (size_t c = 0; c < BLOCK; c++) {                                                      \
            for (size_t i = 0; i < n; i++) row[i] = block[i][c];                                  \
            memcpy(to + c * row_bytes, row, sizeof row);                                          \
        }                                                                                         \
    }
TRANSPOSE_BLOCK(transpose_block_4, uint32_t, 16)
TRANSPOSE_BLOCK(transpose_block_2, uint16_t, 32)

void transpose_strip(const void *lines, int count, int64_t columns, size_t element_bytes, void *to,
                     int64_t row) {
    size_t size = element_bytes, line_bytes = (size_t)columns * size, row_bytes = (size_t)row * size;
    const char *from = lines;
    char *out = to;
    int64_t c = 0;
    for (; count == transpose_lines(size) && c + BLOCK <= columns; c += BLOCK)
        (size == sizeof(uint32_t) ? transpose_block_4 : transpose_block_2)(
            from + (size_t)c * size, line_bytes, out + (size_t)c * row_bytes, row_bytes);
    for (; c < columns; c++)
        for (int i = 0; i < count; i++)
            memcpy(out + (size_t)c * row_bytes + (size_t)i * size,
                   from + (size_t)i * line_bytes + (size_t)c * size, size);
}
