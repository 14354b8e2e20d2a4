/* Shared libraries that are opened at run time, where a machine has them. */
#ifndef BASE_DYNAMIC_H
#define BASE_DYNAMIC_H

#include <stddef.h>

/* The first of the names (NULL ends them) that opens; *found, if given, is then that name. NULL: none. Never
 * unmapped, also not by dlclose: drivers and runtimes keep threads of their own. */
void *dynamic_open(const char *const *names, const char **found);

/* Writes the symbol's address to *function, a function pointer of `bytes`. Returns 0, and writes NULL, where
 * the library is NULL or has no such symbol. */
int dynamic_find(void *library, const char *symbol, void *function, size_t bytes);

#endif
