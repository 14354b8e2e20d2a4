/* The last warnings of the log, for the admin page: who was refused, dropped or answered with a sentence, and
 * why. Equal ones in a row of the same client are one with a number, so that one client does not fill the
 * list; and each reason that the log samples has its place. Pure. */
#ifndef SERVE_LOG_RECENT_H
#define SERVE_LOG_RECENT_H

#include <stdint.h>

#include "log_text.h"

enum { LOG_RECENT = 24, LOG_RECENT_BYTES = 300 };

typedef struct log_warning {
    double at_ms;                /* the last time; of the monotonic clock                                  */
    uint64_t times, id;          /* id: the connection's, 0: none                                          */
    char address[48], robot[64], message[LOG_RECENT_BYTES];
} log_warning;

typedef struct log_recent {
    int count;
    log_warning items[LOG_RECENT];         /* the newest first                                             */
} log_recent;

void log_recent_add(log_recent *recent, const log_entry *entry, const char *message, double now_ms);

#endif
