/* A file of tokens, then Authorization headers made of the same bytes against what it holds. */
#include <unistd.h>

#include "fuzz.h"
#include "serve/who/tokens.h"

/* tokens_open wants a path: an unlinked file in memory, written anew each time. */
static const char *as_file(const uint8_t *data, size_t size) {
    static char path[64];
    static int file = -1;
    if (file < 0) {
        char name[] = "/dev/shm/openpi_fuzz_XXXXXX";
        file = mkstemp(name);
        PROMISE(file >= 0 && !unlink(name));
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    PROMISE(!ftruncate(file, 0) && pwrite(file, data, size, 0) == (ssize_t)size);
    return path;
}

static void look_up(const tokens *all, const char *authorization) {
    const token *robot = tokens_find(all, authorization), *admin = tokens_find_admin(all, authorization);
    PROMISE(!robot || (robot >= all->items && robot < all->items + all->count && !robot->admin));
    PROMISE(!admin || (admin >= all->items && admin < all->items + all->count && admin->admin));
    PROMISE(!robot || !admin);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    openpi_error error = OPENPI_ERROR_INIT;
    tokens all = {.count = 0};
    if (!went_well(tokens_open(as_file(data, size), &all, &error), &error)) {
        PROMISE(!all.items && !all.count);
        return 0;
    }
    PROMISE(all.count > 0);
    for (int i = 0; i < all.count; i++) {
        const token *t = &all.items[i];
        PROMISE(t->name[0] && strlen(t->name) < TOKEN_NAME);
        PROMISE(t->admin || (t->class == SCHEDULER_RESERVED ? t->rate > 0 && t->rate <= TOKEN_RATE
                                                            : t->class == SCHEDULER_SHARED && t->rate == 0));
        PROMISE(tokens_has_robot(&all, t->digest) == !t->admin);
        PROMISE(t->line > (i ? all.items[i - 1].line : 0));
    }
    char *text = exact_copy(data, size, 1);
    static const char *const schemes[] = {"Bearer ", "Api-Key  ", "bearer", ""};
    for (int i = 0; i < 4; i++) {
        char header[600];
        snprintf(header, sizeof header, "%s%.500s", schemes[i], text);
        look_up(&all, header);
    }
    look_up(&all, text);
    free(text);
    tokens_close(&all);
    return 0;
}
