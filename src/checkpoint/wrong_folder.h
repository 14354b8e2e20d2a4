/* Where a checkpoint was expected in a folder and none is there. */
#ifndef CHECKPOINT_WRONG_FOLDER_H
#define CHECKPOINT_WRONG_FOLDER_H

#include "openpi.h"

/* One sentence that says what is there and what to do, and its status. */
openpi_status wrong_folder(const char *folder, openpi_error *error);

#endif
