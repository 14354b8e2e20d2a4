/* A forked child that must come back: what it does returns 0, or prints a sentence and returns 1. For one
 * source file of a test, which includes cmocka.h first. */
#ifndef TESTS_FORK_CHILD_H
#define TESTS_FORK_CHILD_H

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Fails where the child says so, dies, or hangs for minutes. No assertion in the child: cmocka would go on
 * with the tests there. */
static inline void in_child(int (*does)(void *argument), void *argument) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        alarm(600);
        int failed = does(argument);
        fflush(NULL);
        _exit(failed);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status)) fail_msg("the child ended by signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#endif
