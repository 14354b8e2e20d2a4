/* JSON files of the command: any that a user gives, and those that openpi itself writes, which start with a
 * head (head.h). */
#ifndef CLI_JSON_FILE_H
#define CLI_JSON_FILE_H

#include <jansson.h>

#include "cli.h"

/* Reads any JSON file, "-" standard input. Returns END_FINE, or the code to end with, having said where the
 * file is no JSON. */
int json_input(const verb *verb, const char *path, json_t **root);
/* Reads a file that openpi wrote: it has a "kind". Each kind has formats of its own, so whoever knows the
 * kind asks for the format after that. */
int json_open(const verb *verb, const char *path, json_t **root);
int json_format(const verb *verb, const char *path, const json_t *root);
/* Writes `root` into an output that is open (output.h), and gives it up. */
int json_save(const verb *verb, const char *path, json_t *root);

#endif
