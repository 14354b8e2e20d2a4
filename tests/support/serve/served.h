/* `openpi serve` as a child of a test: started on a free port, its lines in the file "log" of a folder, ended
 * by a signal. Include after cmocka.h and scratch.h. */
#ifndef TESTS_SERVED_H
#define TESTS_SERVED_H

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct served {
    pid_t pid;
    int port, admin;             /* ports; admin 0: the arguments do not say --admin                       */
    char log[400];               /* the path of its lines                                                  */
} served;

static const char *served_instead;           /* a program in place of openpi; NULL: none                   */

static int served_pending;                   /* a signal that waits for it to begin; 0: none               */

static inline void served_sleep(int milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static inline const char *served_command(void) {
    const char *isa = getenv("OPENPI_TEST_ISA");               /* see isa_cap.c                            */
    return served_instead ? served_instead : isa && *isa ? OPENPI_CAPPED : OPENPI_COMMAND;
}

/* What it has printed so far; to be freed. */
static inline char *served_log(const served *s) {
    FILE *file = fopen(s->log, "rb");
    char *text = calloc(1, 1 << 16);
    assert_non_null(text);
    if (!file) return text;
    size_t count = fread(text, 1, (1 << 16) - 1, file);
    text[count] = 0;
    fclose(file);
    return text;
}

static inline void served_must_log(const served *s, const char *part) {
    char *text = served_log(s);
    if (!strstr(text, part)) fail_msg("expected \"%s\" in\n%s", part, text);
    free(text);
}

/* Starts "openpi serve ARGS". Where they do not ask for pings there are none: a robot of the tests does not
 * answer while it waits for a reply, which may take longer on a busy machine than the server is patient. */
static inline void served_launch(served *s, scratch *folder, const char *args) {
    char line[4096];
    snprintf(s->log, sizeof s->log, "%s", scratch_path(folder, "log"));
    unlink(s->log);
    snprintf(line, sizeof line, "exec '%s' serve %s%s%s 2>'%s' >/dev/null </dev/null", served_command(), args,
             strstr(args, "--log-format") ? "" : " --log-format text",
             strstr(args, "--ping-interval") ? "" : " --ping-interval 3600", s->log);
    s->port = 0;
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid) return;
    if (served_pending) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, served_pending);
        sigprocmask(SIG_BLOCK, &set, NULL);
        raise(served_pending);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);        /* where the test fails                                       */
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* It has ended: the exit status, or minus the signal that ended it. */
static inline int served_ended(served *s, int status) {
    s->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Waits for its end. */
static inline int served_wait(served *s) {
    int status;
    assert_int_equal(waitpid(s->pid, &status, 0), s->pid);
    return served_ended(s, status);
}

/* The same, which must come within a minute. */
static inline int served_wait_soon(served *s) {
    int status = 0;
    pid_t ended = waitpid(s->pid, &status, WNOHANG);
    for (int i = 0; i < 6000 && ended != s->pid; i++) {
        served_sleep(10);
        ended = waitpid(s->pid, &status, WNOHANG);
    }
    if (ended != s->pid) fail_msg("openpi serve does not end");
    return served_ended(s, status);
}

/* Waits until it is ready; a sanitizer's build may take minutes. */
static inline void served_await(served *s) {
    for (int i = 0; i < 60000; i++) {
        int status;
        char *text = served_log(s), *ready = strstr(text, "ready on ws");
        char *end = ready ? strchr(ready, '\n') : NULL;
        if (end) {
            while (end > ready && end[-1] != ':') end--;
            s->port = atoi(end);
        }
        char *page = strstr(text, "metrics on http"), *colon = page ? strchr(page, '\n') : NULL;
        while (colon && *colon != ':') colon--;
        s->admin = colon ? atoi(colon + 1) : 0;
        int over = !end && waitpid(s->pid, &status, WNOHANG) == s->pid;
        if (over) fail_msg("openpi serve ended before it was ready:\n%s", text);
        free(text);
        if (s->port) return;
        served_sleep(10);
    }
    fail_msg("openpi serve was not ready within ten minutes");
}

__attribute__((format(printf, 3, 4))) static inline void served_start(served *s, scratch *folder,
                                                                      const char *format, ...) {
    char args[3000], all[3200];           /* a test connects as often as it likes                          */
    va_list list;
    va_start(list, format);
    vsnprintf(args, sizeof args, format, list);
    va_end(list);
    snprintf(all, sizeof all, "%s --port 0%s%s", args, strstr(args, "--admin") ? "" : " --no-admin",
             strstr(args, "--max-attempts") ? "" : " --max-attempts 1000000");
    served_launch(s, folder, all);
    served_await(s);
}

/* Ends it by SIGTERM, and expects the status 0. */
static inline void served_stop(served *s) {
    if (!s->pid) return;
    kill(s->pid, SIGTERM);
    int status = served_wait(s);
    char *text = served_log(s);
    if (status) fail_msg("openpi serve ended with %d:\n%s", status, text);
    free(text);
}

#endif
