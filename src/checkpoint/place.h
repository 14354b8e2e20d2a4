/* Where a model's weights and its adapter lie: the user's path is a checkpoint, or the folder of a PEFT
 * adapter that names its base. */
#ifndef MODEL_PLACE_H
#define MODEL_PLACE_H

#include "openpi.h"

/* Both malloc. */
typedef struct model_place {
    char *base;                  /* the path of the weights                                               */
    char *adapter;               /* a folder with adapter_config.json; NULL: none                         */
} model_place;

/* adapter: a folder that changes the checkpoint; NULL: none but the path's own, whose base is the folder that
 * its "base_model_name_or_path" names, in the adapter's folder or as it stands. without_lora 1: the adapter
 * will not be applied. Free with model_place_free, also after a failure. */
openpi_status model_place_find(const char *path, const char *adapter, int without_lora, model_place *place,
                               openpi_error *error);
void model_place_free(model_place *place);

#endif
