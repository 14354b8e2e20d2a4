/* What a verb writes: opened before the work begins, written beside its target, renamed once it is whole.
 *
 *   output_open -> output_file (the verb writes) -> outputs_finish     or, after a failure, outputs_discard
 *
 * main opens every option of kind OPTION_OUTPUT before the verb runs, and finishes or discards after it; a
 * verb itself opens only outputs that are arguments. A full disk, a failed verb, SIGINT, SIGTERM and SIGHUP
 * leave no new file, and a file that was there stays as it was. A target that is no regular file (a pipe,
 * a device) is written straight. "-" is standard output; then all that is printed goes to standard error
 * instead. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdio.h>

#include "cli.h"

/* Starts waiting for the signals that end the command. Before any other thread is started. */
void outputs_watch(const verb *verb);
/* Opens the file `path`, a text that stays; `name` is what the user calls it, "--out" or "FILE". Returns
 * END_FINE, or the code to end with, having said why. */
int output_open(const verb *verb, const char *name, const char *path);
/* The same for a new or empty folder. `replaces`, a list of patterns that NULL ends, allows one that holds
 * nothing but entries of such names: they are removed once the new ones are whole. NULL: none is allowed. */
int output_open_folder(const verb *verb, const char *name, const char *path, const char *const *replaces);

/* Where to write the contents of `path`, which was opened. Errors of writing stay in the file until
 * outputs_finish. */
FILE *output_file(const char *path);
/* The folder to make and fill for the folder `path`, which was opened. */
const char *output_folder(const char *path);
/* 1: `path` was opened and is a regular file. */
int output_is_regular(const char *path);

/* Makes everything that is open whole: flushed, then renamed. Returns END_FINE, or the code to end with,
 * having said which could not be written and why. */
int outputs_finish(const verb *verb);
/* Takes back one of them, or everything that is open. */
void output_drop(const char *path);
void outputs_discard(void);

/* In a sentence of `bytes` bytes, the temporary folder's path becomes the path that the user gave. */
void outputs_rename_in(char *sentence, size_t bytes);

#endif
