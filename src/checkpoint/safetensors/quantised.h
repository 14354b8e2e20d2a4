/* Recognises safetensors files whose weights were quantised by other programs, which openpi does not read. */
#ifndef MODEL_QUANTISED_H
#define MODEL_QUANTISED_H

#include <jansson.h>

#include "openpi.h"

/* header: of a safetensors file, an object. OPENPI_UNSUPPORTED with a sentence that names the scheme. */
openpi_status quantised_refuse(const json_t *header, const char *file, openpi_error *error);

#endif
