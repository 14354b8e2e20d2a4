/* Longer runs of a test that repeats something: OPENPI_TEST_LONG=N (environment of the test program only)
 * makes N times as many repetitions. Such a run says now and then how far it is. */
#ifndef TESTS_LONG_RUN_H
#define TESTS_LONG_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* So many repetitions instead of `ordinary`. */
static inline int long_run(int ordinary) {
    enum { MOST = 1000 };
    const char *text = getenv("OPENPI_TEST_LONG");
    char *end;
    if (!text) return ordinary;
    const long times = strtol(text, &end, 10);
    if (end == text || *end || times < 1 || times > MOST)
        fail_msg("OPENPI_TEST_LONG is \"%s\", expected a number from 1 to %d", text, (int)MOST);
    return ordinary * (int)times;
}

/* In a longer run: a line after every `ordinary` repetitions. */
static inline void tell_progress(const char *what, int done, int ordinary) {
    const int all = long_run(ordinary);
    if (all == ordinary || done % ordinary) return;
    print_message("%s: %d of %d\n", what, done, all);
    fflush(stdout);
}

#endif
