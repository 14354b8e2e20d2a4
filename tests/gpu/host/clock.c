/* A clock for `openpi_host` that a test sets forward: each SIGWINCH is 1,000 s. It takes the place of the C
 * library's for the whole program, libuv and libwebsockets included; what waits by the kernel's clock, such
 * as a condition variable, does not see it. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>

enum { JUMP_SECONDS = 1000 };

long syscall(long, ...);                   /* hidden by _POSIX_C_SOURCE                                   */

static atomic_int jumps;

__attribute__((visibility("default"), used)) int clock_gettime(clockid_t clock, struct timespec *time) {
    if (syscall(SYS_clock_gettime, clock, time)) return -1;
    if (clock != CLOCK_PROCESS_CPUTIME_ID && clock != CLOCK_THREAD_CPUTIME_ID)
        time->tv_sec += JUMP_SECONDS * (time_t)atomic_load(&jumps);
    return 0;
}

static void on_signal(int number) {
    (void)number;
    atomic_fetch_add(&jumps, 1);
}

__attribute__((constructor)) static void listen_to_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGWINCH, &action, NULL);
}
