/* The files of --record: one an hour, YYYY-MM-DDTHH.mcap in UTC, and -2, -3 … where an hour has more than
 * one. Other files of the folder are left alone. */
#ifndef SERVE_RECORD_FOLDER_H
#define SERVE_RECORD_FOLDER_H

#include <stddef.h>
#include <stdint.h>

#include "openpi.h"

enum { RECORD_NAME = 40, RECORD_PATH = 1024 };

/* Makes the folder where there is none, and proves that files can be made in it. */
openpi_status record_folder_open(const char *folder, openpi_error *error);

/* "2026-11-28T10", the hour of this time in ns since 1970. */
void record_hour(uint64_t ns, char out[RECORD_NAME]);
/* The path of a file of this hour that is not there yet. */
void record_new_path(const char *folder, const char *hour, char out[RECORD_PATH]);

/* Removes the oldest recordings, but not `current`, until all together have at most `most` bytes. Returns
 * how many are gone. */
int record_make_room(const char *folder, const char *current, uint64_t most);

#endif
