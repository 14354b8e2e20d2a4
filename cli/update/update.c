/* openpi update: tells a running server to put other weights in place, and waits for what becomes of it. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "admin_port.h"

typedef struct update_values {
    const char *admin, *key;
    int restore, status;
} update_values;

enum { PAUSE_MS = 20, PATH = 300 };

/* The server's sentence, as this verb ends with it. */
static int say(const admin_port *a, const admin_answer *got) {
    if (got->status != 200) return input_error(&verb_update, "%s: %s", a->text, got->body);
    if (!strncmp(got->body, "refused: ", 9)) return input_error(&verb_update, "%s", got->body);
    puts(got->body);
    return END_FINE;
}

static int await_end(const admin_port *a) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    admin_answer got;
    for (;;) {
        int end = admin_port_ask(a, "GET", "/weights", &got);
        if (end != END_FINE) return end;
        if (got.status != 200 || strcmp(got.body, "updating")) return say(a, &got);
        nanosleep(&pause, NULL);
    }
}

static int begin(const admin_port *a, const char *path) {
    admin_answer got;
    int end = admin_port_ask(a, "POST", path, &got);
    if (end != END_FINE) return end;
    return got.status == 200 ? await_end(a) : say(a, &got);
}

static int check_name(const char *name) {
    static const char may[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (*name && name[0] != '.' && !name[strspn(name, may)]) return END_FINE;
    return usage_error(&verb_update,
                       "'%s' is no name of a file in the folder of `openpi serve --updates`, expected "
                       "letters, digits, '.', '_' and '-', and no path",
                       name);
}

static int update_run(const void *values, char **positional, int count) {
    const update_values *v = values;
    admin_port a;
    char path[PATH];
    admin_answer got;
    if (!count && !v->restore && !v->status)
        return usage_error(&verb_update, "expected the NAME of a file, --restore or --status");
    int end = admin_port_read(v->admin ? v->admin : "127.0.0.1:8642", v->key, &a);
    if (end == END_FINE && count) end = check_name(positional[0]);
    if (end != END_FINE) return end;
    if (v->status) {
        end = admin_port_ask(&a, "GET", "/weights", &got);
        return end == END_FINE ? say(&a, &got) : end;
    }
    if (!count) return begin(&a, "/restore");
    snprintf(path, sizeof path, "/weights/%s", positional[0]);
    return begin(&a, path);
}

#define AT(member) offsetof(update_values, member)

static const option_row options[] = {
    {OPTION_FLAG, "restore", NULL, "back to the checkpoint's own weights, without any adapter",
     .offset = AT(restore)},
    {OPTION_FLAG, "status", NULL, "what became of the last update, and change nothing", .offset = AT(status)},
    {OPTION_TEXT, "admin", "HOST:PORT", "the server's admin port (default: 127.0.0.1:8642)",
     .offset = AT(admin)},
    {OPTION_TEXT, "api-key", "KEY", "a key of the class admin, for a server with tokens", .offset = AT(key)},
    {0},
};

static const conflict conflicts[] = {
    {"", "restore", "the weights are a file's or the checkpoint's"},
    {"", "status", "to look changes nothing"},
    {"restore", "status", "to look changes nothing"},
    {0},
};

static const example examples[] = {
    {"a server that takes weights from a folder",
     "openpi serve pi05_droid/ --config pi05_droid --updates /dev/shm/weights"},
    {"an adapter as peft saved it, a folder in that folder", "openpi update pick_cups"},
    {"another one: it takes the place of the first", "openpi update pour_tea"},
    {"whole tensors, or factors beside adapter_config.json", "openpi update step_120.safetensors"},
    {"the checkpoint as it was", "openpi update --restore"},
    {NULL, NULL},
};

static const char *const synopsis[] = {"NAME [options]", "--restore [options]", "--status [options]", NULL};

const verb verb_update = {
    .name = "update",
    .summary = "other weights or another adapter for a running server",
    .synopsis = synopsis,
    .positional = "NAME",
    .positional_min = 0,
    .positional_max = 1,
    .description =
        "Tells a running `openpi serve` to put other weights in the place of its own, waits until they are "
        "there, and prints how many tensors changed and how long it took. Robots stay connected: the "
        "weights are packed beside their calls, and each chunk is wholly of those before or of those after."
        "\n\n"
        "NAME is a safetensors file in the folder that the server was started with (--updates), or the "
        "folder of an adapter there: tensors under the checkpoint's names replace those; LoRA factors alone "
        "are added to the checkpoint's own weights, so an adapter takes the place of the one before. Write "
        "a file under another name and rename it when it is whole."
        "\n\n"
        "What does not fit is one sentence and status 2, and the server goes on with the weights it has.",
    .options = options,
    .conflicts = conflicts,
    .examples = examples,
    .values_bytes = sizeof(update_values),
    .run = update_run,
};
