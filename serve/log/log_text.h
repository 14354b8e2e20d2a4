/* The text of a log line. Everything that a client may have chosen is bounded and escaped: a line stays one
 * line, and its text is what it looks like. Pure. */
#ifndef SERVE_LOG_TEXT_H
#define SERVE_LOG_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef enum log_format { LOG_TEXT, LOG_JSON } log_format;

/* As syslog numbers them. */
typedef enum log_level { LOG_LEVEL_ERROR = 3, LOG_LEVEL_WARNING = 4, LOG_LEVEL_INFO = 6 } log_level;

enum {
    LOG_NUMBERS = 6,
    LOG_NAME_BYTES = 128,        /* an escaped address or name with its NUL                                */
    LOG_MESSAGE_BYTES = 1024,    /* an escaped message                                                     */
    LOG_LINE_BYTES = 2048,       /* a whole line: less than a pipe takes at once                           */
};

typedef struct log_number {
    const char *name;            /* a constant; NULL ends the list                                         */
    double value;
} log_number;

typedef struct log_entry {
    log_level level;             /* 0: LOG_LEVEL_INFO                                                      */
    const char *event;           /* a constant word                                                        */
    const char *reason;          /* entries with the same one are sampled; NULL: always written            */
    const char *address, *robot; /* the client's; NULL or "": none                                         */
    uint64_t id;                 /* its connection's, as the admin page numbers it; 0: none                */
    log_number numbers[LOG_NUMBERS];
} log_entry;

/* Writes at most capacity - 1 bytes and a NUL. Control characters, characters that turn or hide text, and
 * what is no UTF-8 become escapes; what does not fit ends in "…". Returns the bytes. */
size_t log_escape(char *out, size_t capacity, const char *text, log_format format);

/* One line with its end. `when`: of the realtime clock. Returns the bytes. */
size_t log_text_write(char out[LOG_LINE_BYTES], log_format format, int prefix, const log_entry *entry,
                      const char *message, struct timespec when);

#endif
