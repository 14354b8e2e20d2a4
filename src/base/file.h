/* Files: read in pieces from an open file, or whole up to a limit. Nothing is mapped: a file that is
 * truncated while it is read gives an error sentence, where a mapping would end the process. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "openpi.h"

typedef struct file_reader {
    int fd;                      /* -1: closed                                                            */
    uint64_t bytes;              /* the file's size when it was opened                                    */
} file_reader;

/* Opens a regular file for reading. All else (a pipe, which would block, a socket, a device) is refused. */
openpi_status file_reader_open(const char *path, file_reader *reader, openpi_error *error);
void file_reader_close(file_reader *reader);
/* Bytes from … from + bytes - 1 of the file; `path` names it in the sentence. Threads may read at once. */
openpi_status file_reader_read(const file_reader *reader, const char *path, uint64_t from, size_t bytes,
                               void *to, openpi_error *error);

/* Asks the kernel to drop the pages that it has cached of a file; it need not. */
void file_forget_pages(const char *path);

/* Reads a whole regular file of at most `limit` bytes into *data (malloc; one 0 byte follows the end). */
openpi_status file_read(const char *path, size_t limit, char **data, size_t *bytes, openpi_error *error);

/* Creates a file with these bytes. It must not exist; a file that could not be written completely is removed.
 */
openpi_status file_write(const char *path, const void *data, size_t bytes, openpi_error *error);

/* 1: something of that name is there; so is a link that leads nowhere, which opening then refuses by name. */
int file_exists(const char *path);
int file_is_folder(const char *path);
/* Bytes that this process may still write to the file system of a file or folder; UINT64_MAX: not known. */
uint64_t file_free_space(const char *path);

/* "folder/name", malloc. NULL when out of memory. */
char *file_join(const char *folder, const char *name);
/* *there: whether folder/name exists. Fails only when out of memory. */
openpi_status file_is_in(const char *folder, const char *name, int *there, openpi_error *error);
/* Where the last name of a path begins, 0 if it is the only one, and where it ends: without slashes. */
size_t file_last_name(const char *path, size_t *end);
/* 1: the name ends so. */
int file_has_ending(const char *name, const char *ending);

#endif
