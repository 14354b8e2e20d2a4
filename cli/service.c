/* See service.h. */
#include "service.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct variable {
    const char *name, *process;  /* the second names the variable with the process that the first is for   */
    long long most;
} variable;

/* A whole number of 0 … most. Returns -1 where the variable has something else. */
static long long number_of(const char *name, const char *text, long long most, char *sentence) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!errno && end != text && !*end && value >= 0 && value <= most) return value;
    snprintf(sentence, SERVICE_SENTENCE, "the environment's %s is '%.60s', expected a number of 0 to %lld",
             name, text, most);
    return -1;
}

/* 0 where it is not set, or set for another process. */
static long long read_variable(const variable *v, char *sentence) {
    const char *text = getenv(v->name), *process = getenv(v->process);
    if (!text || !*text) return 0;
    long long pid = process ? number_of(v->process, process, INT64_MAX, sentence) : getpid();
    if (pid < 0) return -1;
    return pid == getpid() ? number_of(v->name, text, v->most, sentence) : 0;
}

/* "DEVICE:INODE" of the stream that stderr was at the beginning. */
static int is_journal(const char *text) {
    struct stat stream;
    char own[64];
    if (!text || fstat(STDERR_FILENO, &stream)) return 0;
    snprintf(own, sizeof own, "%llu:%llu", (unsigned long long)stream.st_dev,
             (unsigned long long)stream.st_ino);
    return !strcmp(own, text);
}

int service_manager_read(service_manager *out, char sentence[SERVICE_SENTENCE]) {
    static const variable watchdog = {"WATCHDOG_USEC", "WATCHDOG_PID", INT64_MAX / 1000};
    static const variable sockets = {"LISTEN_FDS", "LISTEN_PID", 1000};
    const char *notify = getenv("NOTIFY_SOCKET");
    *out = (service_manager){.notify = notify && *notify ? notify : NULL};
    out->journal = is_journal(getenv("JOURNAL_STREAM"));
    out->watchdog_us = read_variable(&watchdog, sentence);
    if (out->watchdog_us < 0) return 0;
    long long count = getenv("LISTEN_PID") ? read_variable(&sockets, sentence) : 0;
    out->sockets = (int)count;
    return count >= 0;
}
