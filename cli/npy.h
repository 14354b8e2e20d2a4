/* numpy's .npy files, as far as actions and noise need them: two dimensions, C order, little endian. */
#ifndef CLI_NPY_H
#define CLI_NPY_H

#include <stddef.h>
#include <stdio.h>

enum { NPY_REASON = 256 };

/* A file's bytes: float32 [*rows][*columns], or, where `element` is not NULL, also float64: *element is 4 or
 * 8. Returns a pointer to the first element inside `bytes` (not aligned: copy it out), or NULL with why:
 * "dtype is '<f8', expected '<f4' (float32)". */
const char *npy_read(const char *bytes, size_t count, int *rows, int *columns, int *element,
                     char why[NPY_REASON]);

/* Writes float64 [rows][columns]. Errors stay in `file`. */
void npy_write(FILE *file, const double *data, int rows, int columns);

#endif
