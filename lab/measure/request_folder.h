/* A folder of requests as openpi clients send them: a file NAME.msgpack each (msgpack with numpy arrays, what
 * `openpi run --request` takes), in the order of their names. Other files are not looked at, folders inside
 * are not entered. A single file of any name is a folder of one.
 *
 * Instruments that need what a robot really sees (`openpi doctor`, statistics of activations) read it here. A
 * request is read when it is asked for: a folder may be larger than the memory. */
#ifndef MEASURE_REQUEST_FOLDER_H
#define MEASURE_REQUEST_FOLDER_H

#include <stddef.h>

#include "openpi.h"

enum { REQUEST_FOLDER_MOST = 100000 };         /* files of a folder                                        */

/* The bytes of request `index`, malloc. */
typedef openpi_status (*request_reader)(void *user, int index, char **bytes, size_t *count,
                                        openpi_error *error);

typedef struct request_folder {
    char **paths;                /* [count], in the order of their names as bytes                          */
    int count;                   /* at least 1                                                             */
    request_reader read;         /* not NULL: requests that lie elsewhere; `paths` is how they are called   */
    void *user;
} request_folder;

/* OPENPI_NOT_FOUND: nothing of that name, or no *.msgpack in it. On failure there is nothing to close. */
openpi_status request_folder_open(const char *path, request_folder *folder, openpi_error *error);
/* Requests that lie elsewhere, such as in a recording. Indices are asked for in rising order, from 0 on again
 * in each pass. */
openpi_status request_folder_over(request_reader read, void *user, const char *what, int count,
                                  request_folder *folder, openpi_error *error);
void request_folder_close(request_folder *folder);

openpi_status request_folder_read(const request_folder *folder, int index, char **bytes, size_t *count,
                                  openpi_error *error);

#endif
