/* The C library's streams for the static libraries inside a shared one: see tools/static-link. */
#include <stdio.h>

FILE *static_stdin, *static_stderr;

__attribute__((constructor)) static void take_streams(void) {
    static_stdin = stdin;
    static_stderr = stderr;
}
