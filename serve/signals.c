/* See signals.h. */
#include "signals.h"

#include <pthread.h>
#include <signal.h>

static sigset_t all(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    return set;
}

void signals_block(void) {
    sigset_t set = all();
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

int signals_end(void) {
    sigset_t waiting;
    sigpending(&waiting);
    return sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1;
}

void signals_unblock(void) {
    sigset_t set = all();
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}
