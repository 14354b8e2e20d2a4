/* The first lines of `openpi inspect`, in plain words. */
#include "inspect_head.h"

#include <stdio.h>
#include <string.h>

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* A word of a shell: in single quotes where it has a character that a shell might read. */
static void put_word(const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_./:=,+@%";
    if (*word && !word[strspn(word, plain)]) {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (const char *c = word; *c; c++)
        if (*c == '\'') fputs("'\\''", stdout);
        else putchar(*c);
    putchar('\'');
}

static void put_what(const json_t *root) {
    const json_t *policy = json_object_get(root, "policy");
    const char *variant = text_of(root, "variant"), *robot = text_of(policy, "robot");
    printf("what     %s", !strcmp(variant, "pi05") ? "π0.5" : !strcmp(variant, "pi0") ? "π0" : variant);
    if (*robot && strcmp(robot, "none")) printf(" for %s", robot);
    printf(", layout %s, %.4g million parameters\n", text_of(root, "layout"),
           (double)json_integer_value(json_object_get(root, "parameters")) * 1e-6);
}

/* One line a device and type; a device that cannot be used is among the details. */
static void put_fits(const json_t *root) {
    const json_t *rows = json_object_get(root, "memory");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *weights = text_of(row, "weights");
        if (json_object_get(row, "reason")) continue;
        printf("memory   %s, %s%s%s: %s\n", text_of(row, "device"), text_of(row, "dtype"),
               *weights ? ", weights " : "", weights, text_of(row, "verdict"));
    }
}

/* The cameras and the length of the state are the policy's; where it did not open, they are not known. */
static void put_observation(const json_t *policy) {
    const json_t *cameras = json_object_get(policy, "cameras");
    json_int_t numbers = json_integer_value(json_object_get(policy, "state_length"));
    if (!cameras) fputs(" --image CAMERA=FILE --state NUMBERS", stdout);
    for (size_t i = 0; i < json_array_size(cameras); i++) {
        const char *name = json_string_value(json_array_get(cameras, i));
        if (!name) continue;
        fputs(" --image ", stdout);
        put_word(name);
        fputs("=FILE", stdout);
    }
    if (cameras) fputs(" --state 0", stdout);
    for (json_int_t i = 1; cameras && i < numbers; i++) fputs(",0", stdout);
    fputs(" --prompt \"TEXT\"\n", stdout);
}

void inspect_head(const json_t *root, const char *reason, const char *checkpoint,
                  const inspect_given *given) {
    const json_t *policy = json_object_get(root, "policy"), *told = json_object_get(root, "notes");
    int robot = 0, statistics = 0, tokenizer = 0;
    put_what(root);
    put_fits(root);
    printf("missing  %s\n", reason ? reason : "nothing");
    for (size_t i = 0; i < json_array_size(told); i++)
        printf("note     %s\n", json_string_value(json_array_get(told, i)));
    fputs("type     openpi run", stdout);
    if (checkpoint) {
        putchar(' ');
        put_word(checkpoint);
    }
    for (; given->name; given++) {
        robot |= !strcmp(given->name, "robot") || !strcmp(given->name, "config");
        statistics |= !strcmp(given->name, "norm-stats") || !strcmp(given->name, "assets");
        tokenizer |= !strcmp(given->name, "tokenizer");
        printf(" --%s", given->name);
        if (given->value) putchar(' '), put_word(given->value);
    }
    if (reason && !robot && strstr(reason, "robot")) fputs(" --robot NAME", stdout);
    else if (reason && !statistics && strstr(reason, "norm_stats")) fputs(" --norm-stats FILE", stdout);
    if (reason && !tokenizer && strstr(reason, "tokenizer")) fputs(" --tokenizer FILE", stdout);
    put_observation(policy);
    putchar('\n');
}
