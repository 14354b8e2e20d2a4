#include "base/dynamic.h"

#include <dlfcn.h>
#include <string.h>

void *dynamic_open(const char *const *names, const char **found) {
    void *library = NULL;
    for (; *names && !library; names++) {
        library = dlopen(*names, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library && found) *found = *names;
    }
    return library;
}

/* POSIX says a symbol's address may be kept in a function pointer; ISO C has no cast for it. */
int dynamic_find(void *library, const char *symbol, void *function, size_t bytes) {
    void *address = library ? dlsym(library, symbol) : NULL;
    memcpy(function, &address, bytes);
    return address != NULL;
}
