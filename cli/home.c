/* Where openpi and Hugging Face keep their downloads. The library opens nothing there unless a caller gives
 * it the folder. */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"

static const char *home_folder(void) {
    const char *home = getenv("HOME");
    const struct passwd *account = home && *home ? NULL : getpwuid(getuid());
    if (account) home = account->pw_dir;
    return home && *home ? home : NULL;
}

const char *tokenizer_cache(char path[HOME_PATH]) {
    const char *home = home_folder();
    if (!home) return NULL;
    int length = snprintf(path, HOME_PATH, "%s/.cache/openpi/big_vision", home);
    return length < HOME_PATH ? path : NULL;
}

/* ---- checkpoints by the names of those who published them ----------------------------------------- */

static int there(const char *path) { return access(path, F_OK) == 0; }

/* The folder in a cache: the variable's own, else the one that is usual. */
static void cache_folder(const char *variable, const char *below, const char *usual, char path[HOME_PATH]) {
    const char *own = getenv(variable), *home = home_folder();
    if (own && *own) snprintf(path, HOME_PATH, "%s%s", own, below);
    else snprintf(path, HOME_PATH, "%s/%s", home ? home : "", usual);
}

/* models--OWNER--NAME/snapshots/HASH, where refs/main holds the HASH. */
static int find_hugging_face(const char *owner, int owner_bytes, const char *name, char path[HOME_PATH]) {
    char cache[HOME_PATH - 600], hash[64] = "", whole[HOME_PATH];
    cache_folder(getenv("HF_HUB_CACHE") ? "HF_HUB_CACHE" : "HF_HOME", getenv("HF_HUB_CACHE") ? "" : "/hub",
                 ".cache/huggingface/hub", whole);
    if (snprintf(cache, sizeof cache, "%s", whole) >= (int)sizeof cache) return 0;
    snprintf(path, HOME_PATH, "%s/models--%.*s--%.200s/refs/main", cache, owner_bytes, owner, name);
    FILE *file = fopen(path, "re");
    if (file && !fgets(hash, sizeof hash, file)) *hash = 0;
    if (file) fclose(file);
    hash[strcspn(hash, "\n/")] = 0;
    snprintf(path, HOME_PATH, "%s/models--%.*s--%.200s/snapshots/%s", cache, owner_bytes, owner, name, hash);
    return *hash && there(path);
}

/* "OWNER/NAME" of letters, digits, "-", "_" and ".", where OWNER is nothing that lies here: a repository's
 * name and no path. */
static int is_repository(const char *name) {
    char here[256];
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t owner = strspn(name, letters);
    const char *rest = name + owner;
    if (!owner || *name == '.' || *rest != '/') return 0;
    size_t length = strspn(rest + 1, letters);
    if (!length || length >= 200 || owner >= 200 || rest[1] == '.' || rest[1 + length]) return 0;
    snprintf(here, sizeof here, "%.*s", (int)owner, name);
    return !there(here);
}

int checkpoint_path(const verb *verb, const char *name, char path[HOME_PATH], const char **out) {
    const char *short_name = !strncmp(name, "hf://", 5) ? name + 5 : name;
    *out = name;
    if (there(name)) return END_FINE;
    if (!strncmp(name, "gs://", 5)) {
        char cache[HOME_PATH];
        cache_folder("OPENPI_DATA_HOME", "", ".cache/openpi", cache);
        if (snprintf(path, HOME_PATH, "%s/%s", cache, name + 5) < HOME_PATH && there(path)) *out = path;
        else
            return input_error(verb,
                               "%s: not downloaded (%s is not there): fetch it with "
                               "`gcloud storage cp -r %s .`, then give the folder that this makes",
                               name, path, name);
    } else if (is_repository(short_name)) {
        const char *slash = strchr(short_name, '/');
        if (find_hugging_face(short_name, (int)(slash - short_name), slash + 1, path)) *out = path;
        else
            return input_error(verb,
                               "%s: No such file or directory, nor in the cache of Hugging Face: fetch "
                               "it with `hf download %s --local-dir %s`, then give the folder %s",
                               name, short_name, slash + 1, slash + 1);
    }
    if (*out == path) fprintf(stderr, "openpi %s: %s is %s\n", verb->name, name, path);
    return END_FINE;
}
