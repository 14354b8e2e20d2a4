/* The sources of the command, in cli/, its folders and those of lab/ that hold verbs, for tests that read
 * what the sources declare. For one source file of a test, which includes cmocka.h first. */
#ifndef TESTS_CLI_SOURCES_H
#define TESTS_CLI_SOURCES_H

#include <glob.h>
#include <stdio.h>
#include <string.h>

/* Paths of all; globfree when done. */
static inline glob_t cli_sources(void) {
    glob_t found = {0};
    assert_int_equal(glob(TESTS_DIR "/../cli/*.c", 0, NULL, &found), 0);
    assert_int_equal(glob(TESTS_DIR "/../cli/*/*.c", GLOB_APPEND, NULL, &found), 0);
    assert_int_equal(glob(TESTS_DIR "/../lab/verbs/*.c", GLOB_APPEND, NULL, &found), 0);
    assert_int_equal(glob(TESTS_DIR "/../lab/trace/*.c", GLOB_APPEND, NULL, &found), 0);
    assert_int_equal(glob(TESTS_DIR "/../lab/report/*.c", GLOB_APPEND, NULL, &found), 0);
    return found;
}

/* The path of a verb's source: FOLDER/VERB.c. */
static inline void cli_source(const char *verb, char path[512]) {
    glob_t found = cli_sources();
    char tail[64];
    int count = 0;
    snprintf(tail, sizeof tail, "/%.50s.c", verb);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *slash = strrchr(found.gl_pathv[i], '/');
        if (strcmp(slash, tail)) continue;
        snprintf(path, 512, "%s", found.gl_pathv[i]);
        count++;
    }
    globfree(&found);
    if (count != 1) fail_msg("cli and lab hold %d files %s.c, expected one", count, verb);
}

#endif
