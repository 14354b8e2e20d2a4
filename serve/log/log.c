/* See log.h. */
#include "log.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "serve/small/clock.h"

enum { MESSAGE_BYTES = 1024 };

void log_open(logger *log, int fd, log_format format, int prefix) {
    *log = (logger){.fd = fd, .format = format, .prefix = prefix};
    pthread_mutex_init(&log->lock, NULL);
}

/* Returns 0 where it would have to wait. */
static int write_now(logger *log, const log_entry *entry, const char *message) {
    char line[LOG_LINE_BYTES];
    struct timespec now;
    struct pollfd ready = {.fd = log->fd, .events = POLLOUT};
    clock_gettime(CLOCK_REALTIME, &now);
    size_t bytes = log_text_write(line, log->format, log->prefix, entry, message, now);
    return poll(&ready, 1, 0) == 1 && ready.revents & POLLOUT && write(log->fd, line, bytes) > 0;
}

static void write_line(logger *log, const log_entry *entry, const char *message) {
    log_entry lost = {.level = LOG_LEVEL_WARNING, .event = "lost", .numbers = {{"lines", (double)log->lost}}};
    if (log->lost && write_now(log, &lost, "lines of this log are lost, because nobody read them"))
        log->lost = 0;
    if (log->lost || !write_now(log, entry, message)) log->lost++;
}

static void write_over(logger *log, int64_t now) {
    log_count over;
    while (log_sampler_over(&log->sampler, now, &over)) {
        char message[200];
        log_entry entry = {.level = LOG_LEVEL_WARNING,
                           .event = over.event,
                           .numbers = {{"more", (double)over.more}}};
        snprintf(message, sizeof message, "… %llu more %s%s%s", (unsigned long long)over.more, over.event,
                 *over.reason ? ": " : "", over.reason);
        if (log->format == LOG_TEXT) entry.numbers[0].name = NULL;
        write_line(log, &entry, message);
    }
}

static void write_entry(logger *log, const log_entry *entry, const char *format, va_list list) {
    char message[MESSAGE_BYTES];
    int64_t now = clock_ns();
    vsnprintf(message, sizeof message, format, list);
    pthread_mutex_lock(&log->lock);
    write_over(log, now);
    if (entry->level && entry->level != LOG_LEVEL_INFO)
        log_recent_add(&log->recent, entry, message, (double)now * 1e-6);
    if (!entry->reason || log_sampler_take(&log->sampler, entry->event, entry->reason, now))
        write_line(log, entry, message);
    pthread_mutex_unlock(&log->lock);
}

void log_entry_write(logger *log, const log_entry *entry, const char *format, ...) {
    va_list list;
    va_start(list, format);
    write_entry(log, entry, format, list);
    va_end(list);
}

void log_line(logger *log, const char *event, const char *format, ...) {
    log_entry entry = {.event = event};
    va_list list;
    va_start(list, format);
    write_entry(log, &entry, format, list);
    va_end(list);
}

void log_tick(logger *log) {
    pthread_mutex_lock(&log->lock);
    write_over(log, clock_ns());
    pthread_mutex_unlock(&log->lock);
}

log_recent log_look(logger *log) {
    pthread_mutex_lock(&log->lock);
    log_recent recent = log->recent;
    pthread_mutex_unlock(&log->lock);
    return recent;
}

void log_flush(logger *log) {
    pthread_mutex_lock(&log->lock);
    write_over(log, INT64_MAX);
    pthread_mutex_unlock(&log->lock);
}

void log_close(logger *log) {
    pthread_mutex_destroy(&log->lock);
}
