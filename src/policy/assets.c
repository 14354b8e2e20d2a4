/* The assets of a checkpoint: listed, chosen, and named where the chosen one is not there. */
#include "policy/assets.h"

#include <dirent.h>
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

/* Adds the folders below `folder`, whose name in assets is `prefix`. A folder that cannot be read is
 * skipped. */
static void list_below(assets *list, const char *folder, const char *prefix, int depth) {
    DIR *dir = depth ? opendir(folder) : NULL;
    if (!dir) return;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char *path = file_join(folder, entry->d_name),
             *name = *prefix ? file_join(prefix, entry->d_name) : strdup(entry->d_name),
             *stats = path && file_is_folder(path) ? file_join(path, STATISTICS) : NULL;
        if (stats && name && file_exists(stats)) add(list, name);
        if (stats && name) list_below(list, path, name, depth - 1);
        free(stats);
        free(name);
        free(path);
    }
    closedir(dir);
}

static int by_name(const void *a, const void *b) { return strcmp(a, b); }

void assets_list(const char *home, assets *out) {
    char *folder = file_join(home, "assets");
    out->count = out->more = 0;
    if (folder) list_below(out, folder, "", DEPTH);
    free(folder);
    qsort(out->names, (size_t)out->count, sizeof out->names[0], by_name);
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
    assets_list(choice->home, &there);
    return there.count == 1 && !there.more ? find(choice->home, there.names[0], path, error) : OPENPI_OK;
}

openpi_status assets_missing(const assets_choice *choice, openpi_error *error) {
    const char *home = choice->home ? choice->home : "the synthetic checkpoint", *name = choice->robot->name,
               *asset = choice->robot->assets;
    char text[ASSETS_TEXT];
    assets there = {0};
    if (choice->home) assets_list(choice->home, &there);
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
