/* Files that are read while robots wait: the I/O thread opens them, at start and again after SIGHUP.
 *
 * Note: only a regular file of a limited size is opened. A pipe has its reader wait until somebody writes,
 * which may be never. */
#ifndef SERVE_REGULAR_H
#define SERVE_REGULAR_H

#include <stdio.h>
#include <sys/stat.h>

enum { REGULAR_WHY = 128 };

/* A file to read, which the caller closes; *about: what fstat says of it. NULL: why says in words what is
 * wrong with it. */
FILE *regular_open(const char *path, int most_bytes, struct stat *about, char why[REGULAR_WHY]);

#endif
