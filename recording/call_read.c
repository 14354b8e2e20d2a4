/* See call.h. */
#include <stdio.h>

#include "recording/call.h"
#include "recording/fail.h"
#include "recording/parts.h"

/* A camera's message of the call that is being put together. */
typedef struct camera {
    char key[RECORDING_KEY];
    uint32_t sequence;
    size_t at, count;            /* in `kept`: the whole message, of which the picture is the end          */
} camera;

struct recording_reader {
    mcap_reader *mcap;
    char path[512];
    byte_buffer kept;                  /* the cameras' messages */
    camera cameras[RECORDING_PICTURES];
    int camera_count;
    byte_buffer request;               /* put together */
    msgpack_unpacked exact;      /* the call's other parts: strings and bins point into `message`          */
    byte_buffer message;
    float *model_actions, *previous;       /* copies, aligned                                              */
    char robot[128], address[128];
    mcap_entry *about;           /* [about_count], copies                                                  */
    int about_count;
};

static openpi_status no_memory(openpi_error *error) {
    return fail(error, OPENPI_NO_MEMORY, "out of memory: a recording");
}

static openpi_status bad(const recording_reader *r, uint64_t order, const char *what, openpi_error *error) {
    return fail(error, OPENPI_BAD_FILE, "%.300s: call %llu: %s", r->path, (unsigned long long)order, what);
}

openpi_status recording_open(const char *path, recording_reader **out, openpi_error *error) {
    recording_reader *r = calloc(1, sizeof *r);
    if (!r) return no_memory(error);
    snprintf(r->path, sizeof r->path, "%s", path);
    msgpack_unpacked_init(&r->exact);
    openpi_status status = mcap_open(path, &r->mcap, error);
    if (status == OPENPI_OK) *out = r;
    else recording_reader_close(r);
    return status;
}

static void forget_about(recording_reader *r) {
    for (int i = 0; i < r->about_count; i++) {
        free((char *)r->about[i].key);
        free((char *)r->about[i].value);
    }
    free(r->about);
    r->about = NULL;
    r->about_count = 0;
}

void recording_reader_close(recording_reader *r) {
    if (!r) return;
    mcap_reader_close(r->mcap);
    msgpack_unpacked_destroy(&r->exact);
    forget_about(r);
    free(r->kept.data);
    free(r->request.data);
    free(r->message.data);
    free(r->model_actions);
    free(r->previous);
    free(r);
}

const char *recording_about(const recording_reader *r, const char *key) {
    for (int i = 0; i < r->about_count; i++)
        if (!strcmp(r->about[i].key, key)) return r->about[i].value;
    return NULL;
}

int recording_is_cut(const recording_reader *r) { return mcap_is_cut(r->mcap, NULL); }

static char *copy_of(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    if (copy) strcpy(copy, text);
    return copy;
}

static openpi_status keep_about(recording_reader *r, const mcap_record *record, openpi_error *error) {
    if (strcmp(record->name, RECORDING_MODEL)) return OPENPI_OK;
    forget_about(r);
    r->about = calloc((size_t)record->entry_count + 1, sizeof *r->about);
    if (!r->about) return no_memory(error);
    for (; r->about_count < record->entry_count; r->about_count++) {
        mcap_entry *entry = &r->about[r->about_count];
        *entry = (mcap_entry){copy_of(record->entries[r->about_count].key),
                              copy_of(record->entries[r->about_count].value)};
        if (entry->key && entry->value) continue;
        r->about_count++;
        return no_memory(error);
    }
    return OPENPI_OK;
}

/* A picture is needed until its call is read. Another writer's cameras have nothing to do with a call. */
static openpi_status keep_camera(recording_reader *r, const mcap_record *record, openpi_error *error) {
    if (r->camera_count == RECORDING_PICTURES) {
        r->camera_count = 0;
        r->kept.count = 0;
    }
    camera *c = &r->cameras[r->camera_count++];
    snprintf(c->key, sizeof c->key, "%s", record->topic + sizeof RECORDING_CAMERA - 1);
    c->sequence = record->sequence;
    c->at = r->kept.count;
    c->count = record->count;
    put_bytes(&r->kept, record->data, record->count);
    return r->kept.failed ? no_memory(error) : OPENPI_OK;
}

/* ---- the parts of a call ------------------------------------------------------------------------------ */

static const msgpack_object *part(const msgpack_object *map, const char *name, int type) {
    for (uint32_t i = 0; map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++) {
        const msgpack_object *key = &map->via.map.ptr[i].key, *value = &map->via.map.ptr[i].val;
        if (key->type == MSGPACK_OBJECT_STR && key->via.str.size == strlen(name) &&
            !memcmp(key->via.str.ptr, name, key->via.str.size))
            return (int)value->type == type ? value : NULL;
    }
    return NULL;
}

static uint64_t whole_number(const msgpack_object *map, const char *name, int *missing) {
    const msgpack_object *value = part(map, name, MSGPACK_OBJECT_POSITIVE_INTEGER);
    if (!value) *missing = 1;
    return value ? value->via.u64 : 0;
}

static double real(const msgpack_object *map, const char *name, int *missing) {
    const msgpack_object *value = part(map, name, MSGPACK_OBJECT_FLOAT64);
    if (!value) *missing = 1;
    return value ? value->via.f64 : 0;
}

static span binary(const msgpack_object *map, const char *name, int *missing) {
    const msgpack_object *value = part(map, name, MSGPACK_OBJECT_BIN);
    if (!value) *missing = 1;
    return value ? (span){(const uint8_t *)value->via.bin.ptr, value->via.bin.size, 0} : (span){NULL, 0, 1};
}

static void text(const msgpack_object *map, const char *name, char *out, size_t bytes, int *missing) {
    const msgpack_object *value = part(map, name, MSGPACK_OBJECT_STR);
    if (!value) *missing = 1;
    snprintf(out, bytes, "%.*s", value ? (int)value->via.str.size : 0, value ? value->via.str.ptr : "");
}

/* Numbers of a bin, aligned, in memory that is the reader's; NULL with *count 0: the bin is empty. */
static int take_floats(span bin, float **kept, size_t *count) {
    *count = bin.left / sizeof **kept;
    float *copy = realloc(*kept, bin.left + sizeof **kept);
    if (!copy) return 0;
    *kept = copy;
    if (bin.left) memcpy(copy, bin.at, *count * sizeof *copy);
    return 1;
}

static openpi_status read_rtc(recording_reader *r, const msgpack_object *exact, recorded_call *call,
                              openpi_error *error) {
    const msgpack_object *map = part(exact, "rtc", MSGPACK_OBJECT_MAP);
    openpi_rtc *rtc = &call->rtc;
    int missing = 0;
    size_t count;
    *rtc = (openpi_rtc)OPENPI_RTC_INIT;
    if (part(exact, "rtc", MSGPACK_OBJECT_NIL)) return OPENPI_OK;
    if (!map) return bad(r, call->order, "\"rtc\" is neither a map nor nil", error);
    rtc->mode = (openpi_rtc_mode)whole_number(map, "mode", &missing);
    rtc->delay = (int)whole_number(map, "delay", &missing);
    rtc->rows = (int)whole_number(map, "rows", &missing);
    rtc->dims = (int)whole_number(map, "dims", &missing);
    rtc->schedule = (openpi_rtc_schedule)whole_number(map, "schedule", &missing);
    rtc->horizon = (int)whole_number(map, "horizon", &missing);
    rtc->max_weight = real(map, "max_weight", &missing);
    span previous = binary(map, "previous", &missing);
    if (missing || rtc->rows < 0 || rtc->rows > OPENPI_MAX_HORIZON || rtc->dims < 0 ||
        rtc->dims > RECORDING_DIMS ||
        previous.left != (size_t)rtc->rows * (size_t)rtc->dims * sizeof(float))
        return bad(r, call->order, "\"rtc\" is not as it is written", error);
    if (!take_floats(previous, &r->previous, &count)) return no_memory(error);
    rtc->previous = r->previous;
    return OPENPI_OK;
}

static const camera *find_camera(const recording_reader *r, const msgpack_object *key, uint32_t sequence) {
    for (const camera *c = r->cameras; c < r->cameras + r->camera_count; c++)
        if (c->sequence == sequence && key->type == MSGPACK_OBJECT_STR &&
            strlen(c->key) == key->via.str.size && !memcmp(c->key, key->via.str.ptr, key->via.str.size))
            return c;
    return NULL;
}

/* One picture of the request and the bytes before it; *rest is what is left of them. */
static openpi_status put_picture(recording_reader *r, uint64_t order, const msgpack_object *entry, span *rest,
                                 openpi_error *error) {
    const msgpack_object *o = entry->type == MSGPACK_OBJECT_ARRAY && entry->via.array.size == 4
                                  ? entry->via.array.ptr : NULL;
    int whole = 1;
    for (int i = 1; o && i < 4; i++) whole &= o[i].type == MSGPACK_OBJECT_POSITIVE_INTEGER;
    if (!o || !whole)
        return bad(r, order, "\"pictures\" is not as it is written", error);
    const camera *c = find_camera(r, &o[0], (uint32_t)order);
    if (!c || c->count < o[2].via.u64) return bad(r, order, "a picture of its request is missing", error);
    if (o[1].via.u64 < r->request.count || o[1].via.u64 - r->request.count > rest->left)
        return bad(r, order, "\"pictures\" lie outside of the request", error);
    span before = take_span(rest, (size_t)(o[1].via.u64 - r->request.count));
    put_bytes(&r->request, before.at, before.left);
    size_t count = (size_t)o[2].via.u64;
    const uint8_t *picture = count ? r->kept.data + c->at + c->count - count : NULL;
    uint8_t *to = count ? bytes_room(&r->request, count) : NULL;
    if (to && o[3].via.u64) part_pixels(picture, count, to);
    else if (to && count) memcpy(to, picture, count);
    return r->request.failed ? no_memory(error) : OPENPI_OK;
}

static openpi_status read_request(recording_reader *r, const msgpack_object *exact, recorded_call *call,
                                  openpi_error *error) {
    const msgpack_object *pictures = part(exact, "pictures", MSGPACK_OBJECT_ARRAY);
    int missing = 0;
    span rest = binary(exact, "request", &missing);
    if (!pictures || missing) return bad(r, call->order, "its request is missing", error);
    r->request.count = 0;
    for (uint32_t i = 0; i < pictures->via.array.size; i++) {
        openpi_status status = put_picture(r, call->order, &pictures->via.array.ptr[i], &rest, error);
        if (status != OPENPI_OK) return status;
    }
    put_bytes(&r->request, rest.at, rest.left);
    if (r->request.failed) return no_memory(error);
    call->request = r->request.data;
    call->request_bytes = r->request.count;
    return OPENPI_OK;
}

static openpi_status read_numbers(recording_reader *r, const msgpack_object *exact, recorded_call *call,
                                  openpi_error *error) {
    int missing = 0;
    size_t count;
    call->connection = whole_number(exact, "connection", &missing);
    call->arrived_ns = whole_number(exact, "arrived_ns", &missing);
    call->sent_ns = whole_number(exact, "sent_ns", &missing);
    call->model_ms = real(exact, "model_ms", &missing);
    call->batch = (int)whole_number(exact, "batch", &missing);
    call->status = (openpi_status)whole_number(exact, "status", &missing);
    call->seed = whole_number(exact, "seed", &missing);
    call->stream = whole_number(exact, "stream", &missing);
    text(exact, "robot", r->robot, sizeof r->robot, &missing);
    text(exact, "address", r->address, sizeof r->address, &missing);
    span reply = binary(exact, "reply", &missing), actions = binary(exact, "model_actions", &missing);
    if (missing) return bad(r, call->order, "a part of it is missing", error);
    if (!take_floats(actions, &r->model_actions, &count)) return no_memory(error);
    if (count % RECORDING_DIMS || count / RECORDING_DIMS > OPENPI_MAX_HORIZON ||
        (call->status == OPENPI_OK && !count))
        return bad(r, call->order, "\"model_actions\" are no chunk", error);
    call->robot = r->robot;
    call->address = r->address;
    call->horizon = (int)(count / RECORDING_DIMS);
    call->model_actions = count ? r->model_actions : NULL;
    call->reply = reply.at;
    call->reply_bytes = reply.left;
    return OPENPI_OK;
}

static openpi_status read_call(recording_reader *r, const mcap_record *record, recorded_call *call,
                               openpi_error *error) {
    size_t end = 0;
    int missing = 0;
    r->message.count = 0;
    put_bytes(&r->message, record->data, record->count);
    if (r->message.failed) return no_memory(error);
    if (!msgpack_fits(r->message.data, r->message.count) ||
        msgpack_unpack_next(&r->exact, (const char *)r->message.data, r->message.count, &end) !=
        MSGPACK_UNPACK_SUCCESS)
        return bad(r, record->sequence, "is no msgpack", error);
    const msgpack_object *exact = &r->exact.data;
    *call = (recorded_call){.order = whole_number(exact, "order", &missing)};
    if (whole_number(exact, "format", &missing) != RECORDING_FORMAT || missing)
        return bad(r, record->sequence, "is of another format than 1, which this version reads", error);
    openpi_status status = read_numbers(r, exact, call, error);
    if (status == OPENPI_OK) status = read_rtc(r, exact, call, error);
    if (status == OPENPI_OK) status = read_request(r, exact, call, error);
    r->camera_count = 0;
    r->kept.count = 0;
    return status;
}

openpi_status recording_next(recording_reader *r, recorded_call *call, int *more, openpi_error *error) {
    mcap_record record;
    openpi_status status = OPENPI_OK;
    *more = 0;
    while (status == OPENPI_OK && !*more) {
        status = mcap_next(r->mcap, &record, error);
        if (status != OPENPI_OK || record.kind == MCAP_END) break;
        if (record.kind == MCAP_METADATA) status = keep_about(r, &record, error);
        else if (!strncmp(record.topic, RECORDING_CAMERA, sizeof RECORDING_CAMERA - 1))
            status = keep_camera(r, &record, error);
        else if (!strcmp(record.topic, RECORDING_EXACT)) {
            status = read_call(r, &record, call, error);
            *more = status == OPENPI_OK;
        }
    }
    return status;
}
