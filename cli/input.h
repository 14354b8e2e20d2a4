/* What a verb reads: files by their path, "-" standard input. Standard input can be read once. */
#ifndef CLI_INPUT_H
#define CLI_INPUT_H

#include "cli.h"

/* Reads a whole file of at most 1 GB; free() it. Returns END_FINE or the code to end with, having said
 * why. */
int file_load(const verb *verb, const char *path, char **bytes, size_t *count);
/* The same for a picture, of at most 256 MB. Of what begins as none, only the beginning is read. */
int picture_load(const verb *verb, const char *path, char **bytes, size_t *count);
/* What sentences call the file `path`: "standard input" for "-". */
const char *input_name(const char *path);
/* A path "-" may be read once, and "" never. Returns END_FINE, or the code to end with, having said so. */
int input_once(const verb *verb, const char *path);

/* The library reads files by their path, some of them twice or from the end. So where `path` is "-", standard
 * input is first kept in memory, as a file without a name; NULL and other paths are left alone. main calls
 * this for every option of kind OPTION_INPUT; a verb, for its arguments. */
int input_keep(const verb *verb, const char *path);
/* The path that the library is given: that of the kept file for "-", else `path` itself, which may be
 * NULL. */
const char *input_path(const char *path);
/* "standard input" for the path of the kept file, else `path`. */
const char *input_shown(const char *path);
/* Writes "standard input" over the path of the kept file, wherever it stands in a text. */
void input_rename_in(char *text);

#endif
