/* Where a safetensors file was expected and something else is there. */
#ifndef CHECKPOINT_WRONG_FILE_H
#define CHECKPOINT_WRONG_FILE_H

#include <stdint.h>

#include "openpi.h"

enum { WRONG_FILE_BYTES = 1024 };

/* One sentence that says what is there and what to do, and its status. `first`: the first WRONG_FILE_BYTES of
 * the file's `bytes`, or all; the first 8 do not lead to a header within the file and `limit`. */
openpi_status wrong_file(const char *path, const uint8_t *first, uint64_t bytes, uint64_t limit,
                         openpi_error *error);

#endif
