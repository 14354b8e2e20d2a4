/* Files: mapped read-only, or read whole below a limit. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "openpi.h"

typedef struct file_map {
    const uint8_t *data;
    size_t bytes;
} file_map;

/* Maps a regular file read-only. An empty file maps to {NULL, 0}. */
openpi_status file_map_open(const char *path, file_map *map, openpi_error *error);
void file_map_close(file_map *map);

/* Reads a whole regular file of at most `limit` bytes into *data (malloc; one 0 byte follows the end). */
openpi_status file_read(const char *path, size_t limit, char **data, size_t *bytes, openpi_error *error);

/* Creates a file with these bytes. A file of that name must not exist; one that could not be written whole is removed. */
openpi_status file_write(const char *path, const void *data, size_t bytes, openpi_error *error);

int file_exists(const char *path);
int file_is_folder(const char *path);

/* "folder/name", malloc. NULL when out of memory. */
char *file_join(const char *folder, const char *name);

#endif
