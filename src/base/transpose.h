/* Transposing a strip of a matrix that arrives line after line. */
#ifndef BASE_TRANSPOSE_H
#define BASE_TRANSPOSE_H

#include <stddef.h>
#include <stdint.h>

/* Lines of a strip, so that it writes whole cache lines of 64 bytes: 16 of elements of 4 bytes, 32 of 2. */
static inline int transpose_lines(size_t element_bytes) { return (int)(64 / element_bytes); }

/* lines[count][columns] become to[columns][row]: `count` elements of each row, the first of them at `to`.
 * Elements have 4 or 2 bytes; a row has `row` elements; count is at most transpose_lines. */
void transpose_strip(const void *lines, int count, int64_t columns, size_t element_bytes, void *to,
                     int64_t row);

#endif
