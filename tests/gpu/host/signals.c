/* Signals from a test to the device of `openpi_host`: SIGUSR1 stalls it, SIGUSR2 lets it run, SIGURG loses
 * it. One that waits since before the program began counts at once. */
#include <signal.h>

#include "host.h"

static void on_signal(int number) {
    host_become(number == SIGUSR1 ? HOST_STALLED : number == SIGUSR2 ? HOST_RUNS : HOST_LOST);
}

__attribute__((constructor)) static void listen_to_signals(void) {
    static const int numbers[] = {SIGUSR1, SIGUSR2, SIGURG};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < 3; i++) {
        sigaction(numbers[i], &action, NULL);
        sigaddset(&set, numbers[i]);
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}
