/* What reading and writing a weight plan share. */
#ifndef MODEL_W8_PARTS_H
#define MODEL_W8_PARTS_H

#include <jansson.h>

#include "openpi.h"

#define W8_KIND "w8"
enum { W8_DIGEST = 17, W8_DECIMALS = 9 };    /* decimals: fp32 comes back as it was                       */

/* FNV-1a64 over the compact text of everything but "digest", keys in order. */
openpi_status w8_digest(json_t *root, char text[W8_DIGEST], openpi_error *error);

#endif
