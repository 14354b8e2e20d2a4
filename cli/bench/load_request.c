/* Requests of openpi's examples; see load.h. */
#include <stdlib.h>
#include <string.h>

#include "client/client_bytes.h"
#include "load.h"

enum { SIDE = 224, PICTURE = SIDE * SIDE * 3, PICTURES = 4, FIELDS = 8, NUMBERS = OPENPI_ACTION_DIM };

/* What the fields of a request point to. */
typedef struct drawing {
    uint64_t seed;
    uint8_t pictures[PICTURES][PICTURE];
    double numbers[NUMBERS];
    client_field fields[FIELDS];
    int picture_count, number_count, field_count;
} drawing;

static uint64_t draw(drawing *d) {
    uint64_t x = d->seed += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static const uint8_t *draw_picture(drawing *d) {
    uint8_t *pixels = d->pictures[d->picture_count++];
    for (int i = 0; i < PICTURE; i += 8) {
        uint64_t eight = draw(d);
        memcpy(pixels + i, &eight, 8);
    }
    return pixels;
}

static void add_picture(drawing *d, const char *key) {
    d->fields[d->field_count++] = client_picture(key, draw_picture(d), SIDE, SIDE);
}

static void add_planes(drawing *d, const char *key) {
    d->fields[d->field_count++] = client_planes(key, draw_picture(d), SIDE, SIDE);
}

static void add_state(drawing *d, const char *key, int count) {
    double *state = d->numbers + d->number_count;
    for (int i = 0; i < count; i++) state[i] = (double)(draw(d) >> 11) * 0x1p-53;
    d->number_count += count;
    d->fields[d->field_count++] = client_state(key, state, count);
}

static void draw_aloha(drawing *d) {
    add_state(d, "state", 14);
    add_planes(d, "cam_high");
    add_planes(d, "cam_low");
    add_planes(d, "cam_left_wrist");
    add_planes(d, "cam_right_wrist");
}

static void draw_droid(drawing *d) {
    add_picture(d, "observation/exterior_image_1_left");
    add_picture(d, "observation/wrist_image_left");
    add_state(d, "observation/joint_position", 7);
    add_state(d, "observation/gripper_position", 1);
}

static void draw_libero(drawing *d) {
    add_state(d, "observation/state", 8);
    add_picture(d, "observation/image");
    add_picture(d, "observation/wrist_image");
}

/* The model's own space: what the robot "none" takes. */
static void draw_none(drawing *d) {
    add_picture(d, "base");
    add_picture(d, "left_wrist");
    add_picture(d, "right_wrist");
    add_state(d, "state", OPENPI_ACTION_DIM);
}

static const struct {
    const char *name;
    int actions;
    void (*draw)(drawing *d);
} envs[] = {
    [LOAD_ALOHA] = {"aloha", 14, draw_aloha},
    [LOAD_DROID] = {"droid", 8, draw_droid},
    [LOAD_LIBERO] = {"libero", 7, draw_libero},
    [LOAD_NONE] = {"none", OPENPI_ACTION_DIM, draw_none},
};

const char *load_env_name(load_env env) { return envs[env].name; }

load_env load_env_of(int action_dim) {
    for (int env = LOAD_ALOHA; env <= LOAD_NONE; env++)
        if (envs[env].actions == action_dim) return (load_env)env;
    return LOAD_BY_METADATA;
}

static int write_one(load_env env, uint64_t seed, client_message *out) {
    char why[CLIENT_SENTENCE];
    drawing *d = calloc(1, sizeof *d);
    if (!d) return 0;
    d->seed = seed;
    envs[env].draw(d);
    d->fields[d->field_count++] = client_text("prompt", "do something");
    client_request request = {.fields = d->fields, .field_count = d->field_count};
    int good = client_request_write(&request, out, why);
    free(d);
    return good;
}

int load_request_write(load_env env, uint64_t seed, int observations, client_message *out) {
    client_message one = {NULL, 0, 0};
    int good = 1;
    if (!observations) return write_one(env, seed, out);
    out->count = 0;
    good = client_put_array_head(out, (size_t)observations);
    for (int i = 0; i < observations && good; i++)
        good = write_one(env, seed + (uint64_t)i, &one) && client_put_raw(out, one.bytes, one.count);
    client_message_free(&one);
    return good;
}
