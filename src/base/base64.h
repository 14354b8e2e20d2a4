/* Bytes as text (RFC 4648, with padding), for JSON files. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stddef.h>

/* malloc, NUL-terminated. NULL: out of memory. */
char *base64_text(const void *bytes, size_t count);
/* Exactly `count` bytes. 0: the text is no base64 of `count` bytes. */
int base64_bytes(const char *text, void *bytes, size_t count);

#endif
