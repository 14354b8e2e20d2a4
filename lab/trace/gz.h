/* Writes a text file, gzipped or plain. */
#ifndef CLI_GZ_H
#define CLI_GZ_H

#include "cli/cli.h"

typedef struct gz gz;

/* Writes to an output that is open (output.h), gzip where its path ends in .gz. Errors of writing stay until
 * the close. NULL with the reason said. */
gz *gz_create(const verb *verb, const char *path);
void gz_write(gz *gz, const char *text, size_t bytes);
/* END_FINE, or the code to end with, having said why the file could not be written to its end. */
int gz_close(gz *gz);

#endif
