/* The files of the admin page (serve/admin/page/), as they are. */
#ifndef SERVE_PAGES_H
#define SERVE_PAGES_H

#include <stddef.h>

typedef struct page_file {
    const char *type;            /* "text/css; charset=utf-8"                                              */
    const char *data;            /* [bytes]                                                                */
    size_t bytes;
} page_file;

/* "/", "/page.js", …; 0: there is no such file. */
int page_find(const char *path, page_file *out);

#endif
