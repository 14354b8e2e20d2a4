/* Commands on a tiny model, and their JSON; over command.h. */
#ifndef TESTS_TINY_COMMAND_H
#define TESTS_TINY_COMMAND_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "openpi.h"
#include "scratch.h"

#include "command.h"
#include "json_head.h"

#define TINY \
    "run --synthetic tiny --robot none --image base='" TESTS_DIR "/pictures/rgb.png' --state 0.1,0.2 " \
                                                                 "--prompt 'pick up the " \
    "fork'"
#define PICTURE "--image base='" TESTS_DIR "/pictures/rgb.png' --state 0 --prompt x"
#define SMALL TINY " --steps 2 --horizon 4"

static inline json_t *parse(const char *text, size_t bytes) {
    json_error_t where;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root) fail_msg("not JSON: line %d: %s", where.line, where.text);
    return root;
}

/* A box with files that fit no option, a state in two forms, and two checkpoints. */
static inline int open_examples(void **state) {
    static const struct {
        const char *name, *text;
    } files[] = {{"text", "just words\n"},
                 {"broken.json", "[1, 2"},
                 {"words.json", "[1, \"two\"]"},
                 {"object.json", "{\"joints\": [1]}"},
                 {"array.json", "[0.1, 0.2]"},
                 {"state.json", "{\"about\": \"x\", \"state\": [0.1, 0.2]}"},
                 {"misspelt.json", "{\"name\": \"x\", \"camera\": {}}"}};
    (void)state;
    if (scratch_open(&box)) return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (scratch_write(&box, files[i].name, files[i].text, strlen(files[i].text))) return -1;
    if (mkdir(scratch_path(&box, "full-folder"), 0700)) return -1;
    /* A checkpoint without statistics, and one that says nothing of its robot. */
    if (run("synth open --preset tiny") || run("synth bare --preset tiny")) return -1;
    scratch_remove(scratch_path(&box, "open/assets"));
    scratch_remove(scratch_path(&box, "bare/assets"));
    return scratch_write(&box, "full-folder/x", "x", 1);
}

#endif
