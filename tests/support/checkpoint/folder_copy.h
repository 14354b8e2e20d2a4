/* A copy of a fixture's folder, for tests that damage it. Include after cmocka.h. */
#ifndef TESTS_FOLDER_COPY_H
#define TESTS_FOLDER_COPY_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

static inline void folder_copy(const char *from, const char *to) {
    DIR *list = opendir(from);
    const struct dirent *entry;
    assert_non_null(list);
    assert_true(!mkdir(to, 0777) || file_is_folder(to));
    while ((entry = readdir(list))) {
        openpi_error error = OPENPI_ERROR_INIT;
        char *bytes;
        size_t count;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        char *source = file_join(from, entry->d_name), *copy = file_join(to, entry->d_name);
        assert_true(source && copy);
        if (file_is_folder(source)) folder_copy(source, copy);
        else {
            openpi_status status = file_read(source, 1 << 24, &bytes, &count, &error);
            if (status == OPENPI_OK) status = file_write(copy, bytes, count, &error);
            if (status != OPENPI_OK) fail_msg("%s", error.message);
            free(bytes);
        }
        free(source), free(copy);
    }
    closedir(list);
}

#endif
