/* The assets of a checkpoint: listed, chosen, and named where the chosen one is not there. */
#include "policy/assets.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/report.h"

enum { DEPTH = 3 };              /* "physical-intelligence/libero" is two folders deep */

#define STATISTICS "norm_stats.json"

static void add(assets *list, const char *name) {
    if (list->count == ASSETS_MOST || strlen(name) >= sizeof list->names[0]) list->more++;
    else strcpy(list->names[list->count++], name);
}

static openpi_status list_below(assets *list, const char *folder, const char *prefix, int depth,
                                openpi_error *error);

/* The folder `name` of `folder`, if it is one, and those below it. */
static openpi_status list_one(assets *list, const char *folder, const char *prefix, const char *name,
                              int depth, openpi_error *error) {
    char *path = file_join(folder, name), *asset = *prefix ? file_join(prefix, name) : strdup(name),
         *stats = path ? file_join(path, STATISTICS) : NULL;
    openpi_status status = OPENPI_OK;
    if (!path || !asset || !stats) status = report_no_memory(error, strlen(folder) + 300, "a path");
    else if (file_is_folder(path)) {
        if (file_exists(stats)) add(list, asset);
        status = list_below(list, path, asset, depth - 1, error);
    }
    free(stats);
    free(asset);
    free(path);
    return status;
}

/* Adds the folders below `folder`, whose name in assets is `prefix`. A folder that cannot be read is
 * skipped. */
static openpi_status list_below(assets *list, const char *folder, const char *prefix, int depth,
                                openpi_error *error) {
    DIR *dir = depth ? opendir(folder) : NULL;
    const struct dirent *entry;
    openpi_status status = OPENPI_OK;
    if (depth && !dir && errno == ENOMEM) return report_no_memory(error, sizeof *entry, folder);
    while (dir && status == OPENPI_OK && (entry = readdir(dir)))
        if (entry->d_name[0] != '.') status = list_one(list, folder, prefix, entry->d_name, depth, error);
    if (dir) closedir(dir);
    return status;
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

openpi_status assets_list(const char *home, assets *out, openpi_error *error) {
    char *folder = file_join(home, "assets");
    out->count = out->more = 0;
    if (!folder) return report_no_memory(error, strlen(home) + 8, "a path");
    openpi_status status = list_below(out, folder, "", DEPTH, error);
    free(folder);
    qsort(out->names, (size_t)out->count, sizeof out->names[0], by_name);
    return status;
}

const char *assets_text(const assets *list, char text[ASSETS_TEXT]) {
    size_t at = 0;
    int shown = 0;
    for (; shown < list->count && at + strlen(list->names[shown]) + 24 < ASSETS_TEXT; shown++)
        at += (size_t)snprintf(text + at, ASSETS_TEXT - at, "%s%s", shown ? ", " : "", list->names[shown]);
    int rest = list->count - shown + list->more;
    if (rest) snprintf(text + at, ASSETS_TEXT - at, " and %d more", rest);
    else if (!shown) snprintf(text, ASSETS_TEXT, "none");
    return text;
}

openpi_status assets_check(const char *chosen, openpi_error *error) {
    if (*chosen && *chosen != '/' && !strstr(chosen, "..") && strlen(chosen) < ROBOT_ASSETS_BYTES)
        return OPENPI_OK;
    return report(error, OPENPI_BAD_ARGUMENT,
                  "assets is \"%.160s\", expected the name of a folder in the checkpoint's assets, at most "
                  "%d bytes",
                  chosen, ROBOT_ASSETS_BYTES - 1);
}

static openpi_status find(const char *home, const char *name, char **path, openpi_error *error) {
    char below[ROBOT_ASSETS_BYTES + 32];
    if (!*name) return OPENPI_OK;
    snprintf(below, sizeof below, "assets/%s/" STATISTICS, name);
    *path = file_join(home, below);
    if (!*path) return report_no_memory(error, strlen(home) + sizeof below, "a path");
    if (file_exists(*path)) return OPENPI_OK;
    free(*path);
    *path = NULL;
    return OPENPI_OK;
}

openpi_status assets_find(const assets_choice *choice, char **path, openpi_error *error) {
    assets there;
    *path = NULL;
    if (!choice->home) return OPENPI_OK;
    if (choice->chosen) return find(choice->home, choice->chosen, path, error);
    TRY(find(choice->home, choice->robot->assets, path, error));
    if (*path) return OPENPI_OK;
    TRY(find(choice->home, "synthetic", path, error));
    if (*path || choice->robot->assets[0]) return OPENPI_OK;
    TRY(assets_list(choice->home, &there, error));
    return there.count == 1 && !there.more ? find(choice->home, there.names[0], path, error) : OPENPI_OK;
}

openpi_status assets_missing(const assets_choice *choice, openpi_error *error) {
    const char *home = choice->home ? choice->home : "the synthetic checkpoint", *name = choice->robot->name,
               *asset = choice->robot->assets;
    char text[ASSETS_TEXT];
    assets there = {0};
    if (choice->home) TRY(assets_list(choice->home, &there, error));
    assets_text(&there, text);
    const char *give = there.count ? "give assets, one of these, or norm_stats, a norm_stats.json"
                                   : "give norm_stats, a norm_stats.json";
    if (choice->chosen)
        return report(error, OPENPI_NOT_FOUND, "assets is \"%s\", but %.160s/assets holds %s: %s",
                      choice->chosen, home, text, give);
    if (*asset)
        return report(error, OPENPI_NOT_FOUND,
                      "%.160s/assets/%s/" STATISTICS ", the statistics of robot \"%s\", is not there; assets "
                      "holds %s: %s",
                      home, asset, name, text, give);
    if (!there.count)
        return report(error, OPENPI_NOT_FOUND,
                      "robot \"%s\" does not say whose statistics it needs (\"assets\"): %s", name, give);
    return report(error, OPENPI_NOT_FOUND,
                  "robot \"%s\" does not say whose statistics it needs (\"assets\"), and %.160s/assets holds "
                  "%s: %s",
                  name, home, text, give);
}
