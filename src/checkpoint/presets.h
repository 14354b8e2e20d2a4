/* Sizes of a model, by name, as JSON, and their limits. */
#ifndef CHECKPOINT_PRESETS_H
#define CHECKPOINT_PRESETS_H

#include <jansson.h>

#include "openpi.h"

/* Dimensions that this code can run: positive, within limits, heads that divide. `name` leads the
 * sentence. */
openpi_status dims_check(const openpi_dims *dims, const char *name, openpi_error *error);
/* {"vision": [...], "vlm": [...], "expert": [...], "vocab": n} as openpi_dims_parse takes it; NULL: no
 * memory. */
json_t *dims_json(const openpi_dims *dims);
/* The sizes of openpi's released checkpoints. */
const openpi_dims *dims_released(void);
/* "tiny:pi0:7"; dims that are no preset's are "custom". */
void synthetic_text(const openpi_synthetic *synthetic, char *text, size_t bytes);

#endif
