/* The folder of what a checkpoint has besides its weights: assets, tokenizer, config.json. */
#ifndef MODEL_HOME_H
#define MODEL_HOME_H

#include "openpi.h"

/* *home, malloc: of a .safetensors file the folder that it is in; of a JAX checkpoint the folder that holds
 * its params, also where these params or a training run (then its newest step) is given; else the folder
 * itself. */
openpi_status home_find(const char *checkpoint, char **home, openpi_error *error);

#endif
