/* labels: threads */
/* What a sanitizer makes of memory that it is shown as a whole: of too much of it, and of what two threads
 * touch. Each in a process of its own, which the sanitizer ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/sanitizer.h"

enum { BYTES = 5000, ROUNDS = 1000 };
enum { CHANGED_AT = 31 * 64, CHANGED = 1024 }; /* what another thread writes: the least that is always seen */

static char *memory;

static void read_all(void) { sanitizer_reads(memory, BYTES); }
static void read_more(void) { sanitizer_reads(memory, BYTES + 1); }
static void write_all(void) { sanitizer_writes(memory, BYTES); }
static void write_more(void) { sanitizer_writes(memory, BYTES + 1); }

static void *writer(void *argument) {
    for (int i = 0; i < ROUNDS; i++) sanitizer_writes((char *)argument + CHANGED_AT, CHANGED);
    return NULL;
}

static void beside_a_writer(char *from, void (*touch)(const char *)) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, writer, memory)) _exit(100);
    for (int i = 0; i < ROUNDS; i++) touch(from);
    pthread_join(thread, NULL);
}

static void look(const char *from) { sanitizer_reads(from, BYTES); }
static void change(const char *from) { sanitizer_writes((char *)(size_t)from, BYTES); }

static void read_beside(void) { beside_a_writer(memory, look); }
static void write_beside(void) { beside_a_writer(memory, change); }
static void write_elsewhere(void) {
    char *other = malloc(BYTES);
    if (!other) _exit(100);
    beside_a_writer(other, change);
    free(other);
}

/* 1: the sanitizer ended it. */
static int is_found(void (*act)(void)) {
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        if (!freopen("/dev/null", "w", stderr)) _exit(100);
        memory = malloc(BYTES);
        if (!memory) _exit(100);
        act();
        free(memory);
        exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 100);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void too_much(void **state) {
    (void)state;
#ifdef SANITIZER_ADDRESS
    const int found = 1;
#else
    const int found = 0;
#endif
    assert_int_equal(is_found(read_all), 0);
    assert_int_equal(is_found(write_all), 0);
    assert_int_equal(is_found(read_more), found);
    assert_int_equal(is_found(write_more), found);
}

static void two_threads(void **state) {
    (void)state;
#ifdef SANITIZER_THREAD
    const int found = 1;
#else
    const int found = 0;
#endif
    assert_int_equal(is_found(write_elsewhere), 0);
    assert_int_equal(is_found(read_beside), found);
    assert_int_equal(is_found(write_beside), found);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(too_much), cmocka_unit_test(two_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
