/* Where openpi keeps its downloads. The library opens nothing there unless a caller gives it the folder. */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"

const char *tokenizer_cache(char path[HOME_PATH]) {
    const char *home = getenv("HOME");
    const struct passwd *account = home && *home ? NULL : getpwuid(getuid());
    if (account) home = account->pw_dir;
    if (!home || !*home) return NULL;
    int length = snprintf(path, HOME_PATH, "%s/.cache/openpi/big_vision", home);
    return length < HOME_PATH ? path : NULL;
}
