/* Requests of openpi's examples and what is in a reply, as msgpack; see load.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

enum { SIDE = 224, PICTURE = SIDE * SIDE * 3 };

/* ---- requests ------------------------------------------------------------------------------------- */

typedef struct writer {
    msgpack_packer packer;
    uint64_t seed;
    int failed;
} writer;

static uint64_t draw(writer *w) {
    uint64_t x = w->seed += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void put_map(writer *w, size_t entries) { w->failed |= msgpack_pack_map(&w->packer, entries); }

static void put_text(writer *w, const char *text) {
    w->failed |= msgpack_pack_str(&w->packer, strlen(text)) |
                 msgpack_pack_str_body(&w->packer, text, strlen(text));
}

static void put_bytes(writer *w, const void *bytes, size_t count) {
    w->failed |= msgpack_pack_bin(&w->packer, count) | msgpack_pack_bin_body(&w->packer, bytes, count);
}

/* An array as openpi-client's msgpack_numpy packs it. */
static void put_array(writer *w, const char *key, const char *dtype, const int *shape, int dims,
                      const void *data, size_t bytes) {
    put_text(w, key);
    put_map(w, 4);
    put_bytes(w, "__ndarray__", 11);
    w->failed |= msgpack_pack_true(&w->packer);
    put_bytes(w, "data", 4);
    put_bytes(w, data, bytes);
    put_bytes(w, "dtype", 5);
    put_text(w, dtype);
    put_bytes(w, "shape", 5);
    w->failed |= msgpack_pack_array(&w->packer, (size_t)dims);
    for (int i = 0; i < dims; i++) w->failed |= msgpack_pack_int(&w->packer, shape[i]);
}

static void put_picture(writer *w, const char *key, int channels_first) {
    static const int rows_first[] = {SIDE, SIDE, 3}, planes[] = {3, SIDE, SIDE};
    uint8_t *pixels = malloc(PICTURE);
    if (!pixels) {
        w->failed = 1;
        return;
    }
    for (int i = 0; i < PICTURE; i += 8) {
        uint64_t eight = draw(w);
        memcpy(pixels + i, &eight, 8);
    }
    put_array(w, key, "|u1", channels_first ? planes : rows_first, 3, pixels, PICTURE);
    free(pixels);
}

static void put_state(writer *w, const char *key, int count) {
    double state[OPENPI_ACTION_DIM];
    for (int i = 0; i < count; i++) state[i] = (double)(draw(w) >> 11) * 0x1p-53;
    put_array(w, key, "<f8", &count, 1, state, (size_t)count * sizeof *state);
}

static void put_prompt(writer *w) {
    put_text(w, "prompt");
    put_text(w, "do something");
}

static void put_aloha(writer *w) {
    put_map(w, 3);
    put_state(w, "state", 14);
    put_text(w, "images");
    put_map(w, 4);
    put_picture(w, "cam_high", 1);
    put_picture(w, "cam_low", 1);
    put_picture(w, "cam_left_wrist", 1);
    put_picture(w, "cam_right_wrist", 1);
    put_prompt(w);
}

static void put_droid(writer *w) {
    put_map(w, 5);
    put_picture(w, "observation/exterior_image_1_left", 0);
    put_picture(w, "observation/wrist_image_left", 0);
    put_state(w, "observation/joint_position", 7);
    put_state(w, "observation/gripper_position", 1);
    put_prompt(w);
}

static void put_libero(writer *w) {
    put_map(w, 4);
    put_state(w, "observation/state", 8);
    put_picture(w, "observation/image", 0);
    put_picture(w, "observation/wrist_image", 0);
    put_prompt(w);
}

/* The model's own space: what the robot "none" takes. */
static void put_none(writer *w) {
    put_map(w, 5);
    put_picture(w, "base", 0);
    put_picture(w, "left_wrist", 0);
    put_picture(w, "right_wrist", 0);
    put_state(w, "state", OPENPI_ACTION_DIM);
    put_prompt(w);
}

static const struct {
    const char *name;
    int actions;
    void (*put)(writer *w);
} envs[] = {
    [LOAD_ALOHA] = {"aloha", 14, put_aloha},
    [LOAD_DROID] = {"droid", 8, put_droid},
    [LOAD_LIBERO] = {"libero", 7, put_libero},
    [LOAD_NONE] = {"none", OPENPI_ACTION_DIM, put_none},
};

const char *load_env_name(load_env env) { return envs[env].name; }

load_env load_env_of(int action_dim) {
    for (int env = LOAD_ALOHA; env <= LOAD_NONE; env++)
        if (envs[env].actions == action_dim) return (load_env)env;
    return LOAD_BY_METADATA;
}

int load_request_write(load_env env, uint64_t seed, msgpack_sbuffer *out) {
    writer w = {.seed = seed};
    msgpack_sbuffer_init(out);
    msgpack_packer_init(&w.packer, out, msgpack_sbuffer_write);
    envs[env].put(&w);
    if (w.failed) msgpack_sbuffer_destroy(out);
    return !w.failed;
}

/* ---- replies -------------------------------------------------------------------------------------- */

static const msgpack_object *find(const msgpack_object *map, const char *key) {
    if (!map || map->type != MSGPACK_OBJECT_MAP) return NULL;
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *entry = &map->via.map.ptr[i];
        if (entry->key.type == MSGPACK_OBJECT_STR && entry->key.via.str.size == strlen(key) &&
            !memcmp(entry->key.via.str.ptr, key, strlen(key)))
            return &entry->val;
    }
    return NULL;
}

static double number(const msgpack_object *object, double otherwise) {
    if (!object) return otherwise;
    switch (object->type) {
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64: return object->via.f64;
    case MSGPACK_OBJECT_POSITIVE_INTEGER: return (double)object->via.u64;
    default: return otherwise;
    }
}

int load_metadata_read(const uint8_t *bytes, size_t count, load_metadata *out) {
    msgpack_unpacked message;
    *out = (load_metadata){.horizon = 0};
    msgpack_unpacked_init(&message);
    int good = msgpack_unpack_next(&message, (const char *)bytes, count, NULL) == MSGPACK_UNPACK_SUCCESS &&
               message.data.type == MSGPACK_OBJECT_MAP;
    const msgpack_object *ours = good ? find(&message.data, "openpi_server") : NULL;
    const msgpack_object *version = find(ours, "version");
    if (version && version->type == MSGPACK_OBJECT_STR)
        snprintf(out->version, sizeof out->version, "%.*s", (int)version->via.str.size, version->via.str.ptr);
    out->horizon = (int)number(find(ours, "horizon"), 0);
    out->action_dim = (int)number(find(ours, "action_dim"), 0);
    msgpack_unpacked_destroy(&message);
    return good;
}

int load_reply_read(const uint8_t *bytes, size_t count, load_reply *out) {
    msgpack_unpacked message;
    msgpack_unpacked_init(&message);
    int good = msgpack_unpack_next(&message, (const char *)bytes, count, NULL) == MSGPACK_UNPACK_SUCCESS;
    const msgpack_object *actions = good ? find(&message.data, "actions") : NULL;
    good = actions && actions->type == MSGPACK_OBJECT_MAP && actions->via.map.size == 4;
    out->model_ms = good ? number(find(find(&message.data, "policy_timing"), "infer_ms"), -1) : -1;
    out->server_ms = good ? number(find(find(&message.data, "server_timing"), "infer_ms"), -1) : -1;
    msgpack_unpacked_destroy(&message);
    return good;
}
