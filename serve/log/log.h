/* What the server tells its operator, on stderr: a line an event, as text or as JSON.
 *
 *   openpi serve: 192.0.2.7 arm1 refused: no token, or an unknown one
 *   {"time":"2026-11-22T16:30:58.123Z","level":"warning","event":"refused","address":"192.0.2.7", …}
 *
 * Entries with a reason are sampled: LOG_PER_SECOND a second are written, the rest is counted (log_sample.h).
 * So no client can fill a disk. Writing waits for nobody: a line that stderr cannot take at once is lost, and
 * the next one that it takes says how many were. */
#ifndef SERVE_LOG_H
#define SERVE_LOG_H

#include <pthread.h>

#include "log_recent.h"
#include "log_sample.h"
#include "log_text.h"

typedef struct logger {
    int fd;
    log_format format;
    int prefix;                  /* 1: each line begins with its level, "<6>", for systemd's journal       */
    pthread_mutex_t lock;        /* guards what follows                                                    */
    log_sampler sampler;
    unsigned long long lost;     /* lines that stderr did not take                                         */
    log_recent recent;           /* warnings                                                               */
} logger;

void log_open(logger *log, int fd, log_format format, int prefix);
void log_close(logger *log);

/* All of these from any thread. Something about the server itself: */
void log_line(logger *log, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* About a client. */
void log_entry_write(logger *log, const log_entry *entry, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Writes what was counted in seconds that are over. To be called a few times a second. */
void log_tick(logger *log);
/* The last warnings, also those that were only counted. */
log_recent log_look(logger *log);
/* Writes all that was counted. */
void log_flush(logger *log);

#endif
