/* See parts.h. A request's values are found with msgpack-c, whose objects point into its bytes. */
#include <stdio.h>

#include "recording/parts.h"

static int is_text(const msgpack_object *o, const char **text, size_t *length) {
    if (o->type == MSGPACK_OBJECT_STR) {
        *text = o->via.str.ptr;
        *length = o->via.str.size;
    } else if (o->type == MSGPACK_OBJECT_BIN) {
        *text = o->via.bin.ptr;
        *length = o->via.bin.size;
    } else {
        return 0;
    }
    return 1;
}

static int is_called(const msgpack_object *o, const char *name, size_t length) {
    const char *text;
    size_t count;
    return is_text(o, &text, &count) && count == length && !memcmp(text, name, length);
}

static const msgpack_object *member(const msgpack_object *map, const char *name, size_t length) {
    if (map->type != MSGPACK_OBJECT_MAP) return NULL;
    for (uint32_t i = 0; i < map->via.map.size; i++)
        if (is_called(&map->via.map.ptr[i].key, name, length)) return &map->via.map.ptr[i].val;
    return NULL;
}

static const msgpack_object *part(const msgpack_object *map, const char *name) {
    return member(map, name, strlen(name));
}

/* A numpy array as openpi_client packs it. */
typedef struct array {
    char type[8];                /* "u1", "f8": without the order of bytes                                 */
    int rank;
    int64_t shape[8];
    const uint8_t *data;
    size_t count;                /* bytes                                                                  */
} array;

static int read_array(const msgpack_object *map, array *out) {
    const msgpack_object *data = part(map, "data"), *type = part(map, "dtype"), *shape = part(map, "shape");
    const char *text, *name;
    size_t length;
    memset(out, 0, sizeof *out);
    if (!part(map, "__ndarray__") || !data || !type || !shape) return 0;
    if (shape->type != MSGPACK_OBJECT_ARRAY) return 0;
    if (!is_text(data, &text, &out->count) || !is_text(type, &name, &length)) return 0;
    if (length && strchr("<|=", name[0])) name++, length--;
    if (!length || length >= sizeof out->type || shape->via.array.size > 8) return 0;
    memcpy(out->type, name, length);
    out->data = (const uint8_t *)text;
    out->rank = (int)shape->via.array.size;
    for (int i = 0; i < out->rank; i++) {
        const msgpack_object *size = &shape->via.array.ptr[i];
        if (size->type != MSGPACK_OBJECT_POSITIVE_INTEGER || size->via.u64 > 1 << 20) return 0;
        out->shape[i] = (int64_t)size->via.u64;
    }
    return 1;
}

/* ---- pictures ----------------------------------------------------------------------------------------- */

typedef struct search {
    const uint8_t *begin;        /* the request                                                            */
    recorded_picture *out;
    int count;
} search;

static const char *file_format(const uint8_t *data, size_t count) {
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (count > 3 && data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff) return "jpeg";
    return count > sizeof png && !memcmp(data, png, sizeof png) ? "png" : NULL;
}

static void add_picture(search *s, const char *key, const uint8_t *data, const recorded_picture *like) {
    if (s->count == RECORDING_PICTURES) return;
    recorded_picture *p = &s->out[s->count++];
    *p = *like;
    p->offset = (size_t)(data - s->begin);
    snprintf(p->key, sizeof p->key, "%s", key);
}

/* Pixels in either order; one dimension of 3 is enough to tell, the last one where two are. */
static int is_rgb(const array *a, recorded_picture *out) {
    int bytes = !strcmp(a->type, "u1") || !strcmp(a->type, "uint8");
    int planar = a->rank == 3 && a->shape[2] != 3, at = planar ? 1 : 0;
    *out = (recorded_picture){.count = a->count, .planar = planar};
    if (!bytes || a->rank != 3 || a->shape[planar ? 0 : 2] != 3) return 0;
    out->height = (int)a->shape[at];
    out->width = (int)a->shape[at + 1];
    return out->height > 1 && out->width > 1 && a->count == (size_t)out->height * (size_t)out->width * 3;
}

static void look_at_value(search *s, const char *key, const msgpack_object *value) {
    array a;
    const char *text;
    recorded_picture like = {.format = NULL};
    if (read_array(value, &a)) {
        if (is_rgb(&a, &like)) add_picture(s, key, a.data, &like);
    } else if (value->type == MSGPACK_OBJECT_BIN && is_text(value, &text, &like.count)) {
        like.format = file_format((const uint8_t *)text, like.count);
        if (like.format) add_picture(s, key, (const uint8_t *)text, &like);
    }
}

enum { DEPTH = 8 };

static void look_at_map(search *s, const char *prefix, const msgpack_object *map, int depth) {
    char key[RECORDING_KEY];
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object *value = &map->via.map.ptr[i].val;
        const char *name;
        size_t length;
        if (!is_text(&map->via.map.ptr[i].key, &name, &length) || length > RECORDING_KEY) continue;
        int written = snprintf(key, sizeof key, "%s%s%.*s", prefix, *prefix ? "/" : "", (int)length, name);
        if (written >= (int)sizeof key) continue;
        if (value->type == MSGPACK_OBJECT_MAP && !part(value, "__ndarray__") && depth < DEPTH)
            look_at_map(s, key, value, depth + 1);
        else look_at_value(s, key, value);
    }
}

int recorded_pictures(const uint8_t *request, size_t count, recorded_picture out[RECORDING_PICTURES]) {
    msgpack_unpacked whole;
    size_t end = 0;
    search s = {.begin = request, .out = out};
    msgpack_unpacked_init(&whole);
    if (msgpack_unpack_next(&whole, (const char *)request, count, &end) == MSGPACK_UNPACK_SUCCESS &&
        whole.data.type == MSGPACK_OBJECT_MAP)
        look_at_map(&s, "", &whole.data, 1);
    msgpack_unpacked_destroy(&whole);
    return s.count;
}

/* ---- single values ------------------------------------------------------------------------------------ */

/* The value under "a/b": of the map a its member b, or a member whose own key is "a/b". */
static const msgpack_object *at_key(const msgpack_object *map, const char *key) {
    const msgpack_object *found = member(map, key, strlen(key));
    for (const char *slash = strchr(key, '/'); !found && slash; slash = strchr(slash + 1, '/')) {
        const msgpack_object *inner = member(map, key, (size_t)(slash - key));
        if (inner) found = at_key(inner, slash + 1);
    }
    return found;
}

static int number_at(const array *a, size_t index, double *out) {
    float single;
    if (!strcmp(a->type, "f8") || !strcmp(a->type, "float64")) {
        if (a->count / 8 <= index) return 0;
        memcpy(out, a->data + 8 * index, 8);
        return 1;
    }
    if (strcmp(a->type, "f4") && strcmp(a->type, "float32")) return 0;
    if (a->count / 4 <= index) return 0;
    memcpy(&single, a->data + 4 * index, 4);
    *out = single;
    return 1;
}

size_t recorded_array(const uint8_t *message, size_t count, const char *key, double *out, size_t capacity) {
    msgpack_unpacked whole;
    size_t end = 0, read = 0;
    array a;
    msgpack_unpacked_init(&whole);
    if (msgpack_unpack_next(&whole, (const char *)message, count, &end) == MSGPACK_UNPACK_SUCCESS) {
        const msgpack_object *value = at_key(&whole.data, key);
        if (value && read_array(value, &a))
            while (read < capacity && number_at(&a, read, &out[read])) read++;
    }
    msgpack_unpacked_destroy(&whole);
    return read;
}

span recorded_text(const uint8_t *message, size_t count, const char *key) {
    msgpack_unpacked whole;
    size_t end = 0, length = 0;
    const char *text = NULL;
    msgpack_unpacked_init(&whole);
    if (msgpack_unpack_next(&whole, (const char *)message, count, &end) == MSGPACK_UNPACK_SUCCESS) {
        const msgpack_object *value = at_key(&whole.data, key);
        if (value && !is_text(value, &text, &length)) text = NULL;
    }
    msgpack_unpacked_destroy(&whole);
    return (span){(const uint8_t *)text, length, text == NULL};
}
