/* See thread.h. */
#define _GNU_SOURCE             /* pthread_setname_np */
#include "thread.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fail.h"

openpi_status serve_thread_start(pthread_t *thread, void *(*run)(void *), void *argument, const char *name,
                                 const char *what, openpi_error *error) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!code) pthread_setname_np(*thread, name);
    if (!code) return OPENPI_OK;
    return fail(error, OPENPI_SYSTEM, "%s cannot be started: %s", what, strerror(code));
}

/* Linux has a priority for each thread; 0 names the calling one. (gettid is newer than glibc 2.28.) */
void serve_thread_yield(void) {
    enum { NICE = 10 };
    setpriority(PRIO_PROCESS, 0, NICE);
}
