/* A new folder that is filled with files, and removed with all of them where the work fails. */
#ifndef BASE_NEW_FOLDER_H
#define BASE_NEW_FOLDER_H

#include "openpi.h"

/* Begin with {.path = …}, which must stay. */
typedef struct new_folder {
    const char *path;
    char **made;                 /* paths of what was made, in that order; folders too                    */
    int count;
} new_folder;

/* Makes the folder, or takes one that is there and empty. */
openpi_status new_folder_begin(new_folder *folder, openpi_error *error);
/* Frees the list of what was made; remove_all 1: removes that first. */
void new_folder_end(new_folder *folder, int remove_all);

/* Notes a path that is about to be made by somebody else. `user` is the folder. */
openpi_status new_folder_note(void *user, const char *path, openpi_error *error);

openpi_status new_folder_subfolder(new_folder *folder, const char *name, openpi_error *error);
openpi_status new_folder_file(new_folder *folder, const char *name, const void *data, size_t bytes,
                              openpi_error *error);
openpi_status new_folder_text(new_folder *folder, const char *name, const char *text, openpi_error *error);
/* Copies a file, or a folder with all that is in it; symbolic links are followed. */
openpi_status new_folder_copy(new_folder *folder, const char *name, const char *from, openpi_error *error);

#endif
