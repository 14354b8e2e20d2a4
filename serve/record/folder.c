/* See folder.h. */
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "serve/small/fail.h"

static const char pattern[] = "dddd-dd-ddTdd";     /* d: a digit; "-N" may follow, then ".mcap"        */

/* 1: the name is one that record_new_path gives; *number is its N. */
static int is_ours(const char *name, long *number) {
    size_t i = 0;
    for (; pattern[i]; i++)
        if (pattern[i] == 'd' ? name[i] < '0' || name[i] > '9' : name[i] != pattern[i]) return 0;
    char *end = (char *)name + i;
    *number = 1;
    if (*end == '-' && end[1] > '0' && end[1] <= '9') *number = strtol(end + 1, &end, 10);
    return !strcmp(end, ".mcap");
}

openpi_status record_folder_open(const char *folder, openpi_error *error) {
    if (mkdir(folder, 0750) && errno != EEXIST)
        return fail(error, OPENPI_BAD_ARGUMENT, "--record %s: the folder cannot be made: %s", folder,
                    strerror(errno));
    struct stat about;
    if (stat(folder, &about) || !S_ISDIR(about.st_mode))
        return fail(error, OPENPI_BAD_ARGUMENT, "--record %s: is no folder", folder);
    if (access(folder, W_OK | X_OK | R_OK))
        return fail(error, OPENPI_BAD_ARGUMENT, "--record %s: files cannot be made in it: %s", folder,
                    strerror(errno));
    return OPENPI_OK;
}

void record_hour(uint64_t ns, char out[RECORD_NAME]) {
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    strftime(out, RECORD_NAME, "%Y-%m-%dT%H", &utc);
}

void record_new_path(const char *folder, const char *hour, char out[RECORD_PATH]) {
    struct stat about;
    int number = 1;
    do {
        if (number == 1) snprintf(out, RECORD_PATH, "%s/%s.mcap", folder, hour);
        else snprintf(out, RECORD_PATH, "%s/%s-%d.mcap", folder, hour, number);
        number++;
    } while (!lstat(out, &about));
}

/* ---- room --------------------------------------------------------------------------------------------- */

typedef struct old_file {
    char name[RECORD_NAME];
    long number;
    uint64_t bytes;
} old_file;

static int by_age(const void *a, const void *b) {
    const old_file *x = a, *y = b;
    int hours = strncmp(x->name, y->name, sizeof pattern - 1);
    return hours ? hours : x->number < y->number ? -1 : x->number > y->number;
}

/* Oldest first; the caller frees *out. Returns how many. */
static int list(const char *folder, const char *current, old_file **out, uint64_t *bytes) {
    DIR *all = opendir(folder);
    const struct dirent *entry;
    int count = 0;
    *out = NULL;
    *bytes = 0;
    while (all && (entry = readdir(all))) {
        struct stat about;
        char path[RECORD_PATH + RECORD_NAME];
        long number;
        if (!is_ours(entry->d_name, &number) || strlen(entry->d_name) >= RECORD_NAME) continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (lstat(path, &about) || !S_ISREG(about.st_mode)) continue;
        *bytes += (uint64_t)about.st_size;
        if (!strcmp(path, current)) continue;
        old_file *more = realloc(*out, (size_t)(count + 1) * sizeof *more);
        if (!more) break;
        *out = more;
        more[count] = (old_file){.number = number, .bytes = (uint64_t)about.st_size};
        strcpy(more[count++].name, entry->d_name);
    }
    if (all) closedir(all);
    if (count) qsort(*out, (size_t)count, sizeof **out, by_age);
    return count;
}

int record_make_room(const char *folder, const char *current, uint64_t most) {
    old_file *files;
    uint64_t bytes;
    int count = list(folder, current, &files, &bytes), gone = 0;
    for (int i = 0; i < count && bytes > most; i++) {
        char path[RECORD_PATH + RECORD_NAME];
        snprintf(path, sizeof path, "%s/%s", folder, files[i].name);
        if (unlink(path)) continue;
        bytes -= files[i].bytes;
        gone++;
    }
    free(files);
    return gone;
}
