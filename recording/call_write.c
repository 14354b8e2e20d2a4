/* See call.h. */
#include <jansson.h>
#include <stdio.h>

#include "recording/call.h"
#include "recording/fail.h"
#include "recording/parts.h"

enum { PICTURE_CHANNELS = 64, STATE = 64, ACTIONS = OPENPI_MAX_HORIZON * OPENPI_ACTION_DIM };

typedef struct picture_channel {
    char topic[RECORDING_KEY + sizeof RECORDING_CAMERA];
    int is_file, channel;
} picture_channel;

struct recording {
    mcap_writer *mcap;
    int image_schema, file_schema;         /* 0: no picture of this kind has come                          */
    int call_channel, exact_channel;
    picture_channel pictures[PICTURE_CHANNELS];
    int picture_count;
};

static openpi_status no_memory(openpi_error *error) {
    return fail(error, OPENPI_NO_MEMORY, "out of memory: a recording");
}

openpi_status recording_create(const char *path, const mcap_entry *about, int count, recording **out,
                               openpi_error *error) {
    recording *r = calloc(1, sizeof *r);
    if (!r) return no_memory(error);
    char library[64];
    snprintf(library, sizeof library, "openpi %s", openpi_version());
    openpi_status status = mcap_create(path, "ros2", library, &r->mcap, error);
    if (status == OPENPI_OK) {
        int schema = mcap_add_schema(r->mcap, "openpi.Call", "jsonschema", recording_call_schema);
        r->call_channel = schema ? mcap_add_channel(r->mcap, schema, RECORDING_CALL, "json") : 0;
        r->exact_channel = mcap_add_channel(r->mcap, 0, RECORDING_EXACT, "msgpack");
        if (!r->call_channel || !r->exact_channel) status = no_memory(error);
    }
    if (status == OPENPI_OK) status = mcap_put_metadata(r->mcap, RECORDING_MODEL, about, count, error);
    if (status == OPENPI_OK) *out = r;
    else recording_close(r, NULL);
    return status;
}

uint64_t recording_bytes(const recording *r) { return mcap_written(r->mcap); }

openpi_status recording_close(recording *r, openpi_error *error) {
    if (!r) return OPENPI_OK;
    openpi_status status = mcap_close(r->mcap, error);
    free(r);
    return status;
}

/* ---- pictures ----------------------------------------------------------------------------------------- */

static int picture_schema(recording *r, int is_file) {
    int *schema = is_file ? &r->file_schema : &r->image_schema;
    if (!*schema && is_file)
        *schema = mcap_add_schema(r->mcap, "sensor_msgs/msg/CompressedImage", "ros2msg",
                                  recording_compressed_schema);
    else if (!*schema)
        *schema = mcap_add_schema(r->mcap, "sensor_msgs/msg/Image", "ros2msg", recording_image_schema);
    return *schema;
}

/* The channel of a picture's key; 0: there are too many, and the picture stays in its request. */
static int picture_channel_of(recording *r, const recorded_picture *p) {
    char topic[sizeof r->pictures->topic];
    int is_file = p->format != NULL;
    snprintf(topic, sizeof topic, RECORDING_CAMERA "%.*s", RECORDING_KEY - 1, p->key);
    for (int i = 0; i < r->picture_count; i++)
        if (r->pictures[i].is_file == is_file && !strcmp(r->pictures[i].topic, topic))
            return r->pictures[i].channel;
    int schema = r->picture_count < PICTURE_CHANNELS ? picture_schema(r, is_file) : 0;
    int channel = schema ? mcap_add_channel(r->mcap, schema, topic, "cdr") : 0;
    if (!channel) return 0;
    picture_channel *new = &r->pictures[r->picture_count++];
    new->is_file = is_file;
    new->channel = channel;
    memcpy(new->topic, topic, sizeof topic);
    return channel;
}

static void put_picture(byte_buffer *out, const recorded_call *call, const recorded_picture *p) {
    const uint8_t *data = call->request + p->offset;
    put_image_head(out, p, call->arrived_ns);
    uint8_t *to = bytes_room(out, p->count);
    if (!to) return;
    if (p->planar) interleave_pixels(data, p->count, to);
    else memcpy(to, data, p->count);
}

/* Pictures that have a channel stay in `pictures`; returns how many. */
static int put_pictures(recording *r, const recorded_call *call, recorded_picture *pictures, int count) {
    int kept = 0;
    for (int i = 0; i < count; i++) {
        int channel = picture_channel_of(r, &pictures[i]);
        if (!channel) continue;
        byte_buffer message = {.data = NULL};
        put_picture(&message, call, &pictures[i]);
        mcap_part part = {message.data, message.count};
        if (!message.failed) {
            mcap_put(r->mcap, channel, (uint32_t)call->order, call->arrived_ns, call->arrived_ns, &part, 1);
            pictures[kept++] = pictures[i];
        }
        free(message.data);
    }
    return kept;
}

/* ---- /openpi/exact ------------------------------------------------------------------------------------ */

static void pack_text(msgpack_packer *p, const char *text) {
    msgpack_pack_str(p, strlen(text));
    msgpack_pack_str_body(p, text, strlen(text));
}

static void pack_bin(msgpack_packer *p, const char *key, const void *data, size_t count) {
    pack_text(p, key);
    msgpack_pack_bin(p, count);
    msgpack_pack_bin_body(p, data ? data : "", count);
}

static void pack_u64(msgpack_packer *p, const char *key, uint64_t value) {
    pack_text(p, key);
    msgpack_pack_uint64(p, value);
}

static void pack_double(msgpack_packer *p, const char *key, double value) {
    pack_text(p, key);
    msgpack_pack_double(p, value);
}

static void pack_bytes(msgpack_packer *p, const uint8_t *bytes, size_t from, size_t to) {
    if (to > from) msgpack_pack_bin_body(p, bytes + from, to - from);
}

/* "pictures": [[key, offset in the request, bytes, 1: channels came first], …], by offset; "request": the
 * rest. */
static void pack_request(msgpack_packer *p, const recorded_call *call, const recorded_picture *pictures,
                         int count) {
    size_t taken = 0, at = 0;
    pack_text(p, "pictures");
    msgpack_pack_array(p, (size_t)count);
    for (int i = 0; i < count; i++) {
        msgpack_pack_array(p, 4);
        pack_text(p, pictures[i].key);
        msgpack_pack_uint64(p, pictures[i].offset);
        msgpack_pack_uint64(p, pictures[i].count);
        msgpack_pack_uint64(p, (uint64_t)pictures[i].planar);
        taken += pictures[i].count;
    }
    pack_text(p, "request");
    msgpack_pack_bin(p, call->request_bytes - taken);
    for (int i = 0; i < count; i++) {
        pack_bytes(p, call->request, at, pictures[i].offset);
        at = pictures[i].offset + pictures[i].count;
    }
    pack_bytes(p, call->request, at, call->request_bytes);
}

static void pack_rtc(msgpack_packer *p, const openpi_rtc *rtc) {
    pack_text(p, "rtc");
    if (rtc->mode == OPENPI_RTC_OFF) {
        msgpack_pack_nil(p);
        return;
    }
    msgpack_pack_map(p, 8);
    pack_u64(p, "mode", (uint64_t)rtc->mode);
    pack_u64(p, "delay", (uint64_t)rtc->delay);
    pack_u64(p, "rows", (uint64_t)rtc->rows);
    pack_u64(p, "dims", (uint64_t)rtc->dims);
    pack_u64(p, "schedule", (uint64_t)rtc->schedule);
    pack_u64(p, "horizon", (uint64_t)rtc->horizon);
    pack_double(p, "max_weight", rtc->max_weight);
    pack_bin(p, "previous", rtc->previous, (size_t)rtc->rows * (size_t)rtc->dims * sizeof(float));
}

static void put_exact(recording *r, const recorded_call *call, const recorded_picture *pictures, int count) {
    msgpack_sbuffer out;
    msgpack_packer p;
    size_t numbers = call->status == OPENPI_OK ? (size_t)call->horizon * RECORDING_DIMS : 0;
    msgpack_sbuffer_init(&out);
    msgpack_packer_init(&p, &out, msgpack_sbuffer_write);
    msgpack_pack_map(&p, 17);
    pack_u64(&p, "format", RECORDING_FORMAT);
    pack_u64(&p, "order", call->order);
    pack_u64(&p, "connection", call->connection);
    pack_text(&p, "robot");
    pack_text(&p, call->robot);
    pack_text(&p, "address");
    pack_text(&p, call->address);
    pack_u64(&p, "arrived_ns", call->arrived_ns);
    pack_u64(&p, "sent_ns", call->sent_ns);
    pack_double(&p, "model_ms", call->model_ms);
    pack_u64(&p, "batch", (uint64_t)call->batch);
    pack_u64(&p, "status", (uint64_t)call->status);
    pack_u64(&p, "seed", call->seed);
    pack_u64(&p, "stream", call->stream);
    pack_rtc(&p, &call->rtc);
    pack_bin(&p, "model_actions", call->model_actions, numbers * sizeof(float));
    pack_bin(&p, "reply", call->reply, call->reply_bytes);
    pack_request(&p, call, pictures, count);
    mcap_part part = {out.data, out.size};
    mcap_put(r->mcap, r->exact_channel, (uint32_t)call->order, call->arrived_ns, call->sent_ns, &part, 1);
    msgpack_sbuffer_destroy(&out);
}

/* ---- /openpi/call ------------------------------------------------------------------------------------- */

static json_t *row_of(const double *numbers, size_t count) {
    json_t *row = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(row, json_real(numbers[i]));
    return row;
}

/* The state under one of the robots' keys, and the chunk. */
static void describe_numbers(json_t *out, const recorded_call *call, double *numbers) {
    static const char *const states[] = {"state", "observation/state", "observation/joint_position",
                                         "observation.state"};
    size_t count = 0, rows = (size_t)call->horizon;
    for (size_t i = 0; !count && i < sizeof states / sizeof *states; i++)
        count = recorded_array(call->request, call->request_bytes, states[i], numbers, STATE);
    if (count) json_object_set_new(out, "state", row_of(numbers, count));
    count = recorded_array(call->reply, call->reply_bytes, "actions", numbers, ACTIONS);
    if (!rows || count % rows) return;
    json_t *chunk = json_array();
    for (size_t i = 0; i < rows; i++)
        json_array_append_new(chunk, row_of(numbers + i * (count / rows), count / rows));
    json_object_set_new(out, "actions", chunk);
}

static openpi_status put_call(recording *r, const recorded_call *call, openpi_error *error) {
    json_t *out = json_object();
    double *numbers = malloc(ACTIONS * sizeof *numbers);
    span prompt = recorded_text(call->request, call->request_bytes, "prompt");
    json_object_set_new(out, "order", json_integer((json_int_t)call->order));
    json_object_set_new(out, "connection", json_integer((json_int_t)call->connection));
    json_object_set_new(out, "robot", json_string(call->robot));
    json_object_set_new(out, "address", json_string(call->address));
    if (!prompt.bad) json_object_set_new(out, "prompt", json_stringn((const char *)prompt.at, prompt.left));
    json_object_set_new(out, "total_ms", json_real((double)(call->sent_ns - call->arrived_ns) / 1e6));
    json_object_set_new(out, "model_ms", json_real(call->model_ms));
    json_object_set_new(out, "batch", json_integer(call->batch));
    if (call->status != OPENPI_OK)
        json_object_set_new(out, "refused", json_stringn((const char *)call->reply, call->reply_bytes));
    else if (numbers) describe_numbers(out, call, numbers);
    char *text = numbers ? json_dumps(out, JSON_COMPACT) : NULL;
    json_decref(out);
    free(numbers);
    if (!text) return no_memory(error);
    mcap_part part = {text, strlen(text)};
    mcap_put(r->mcap, r->call_channel, (uint32_t)call->order, call->arrived_ns, call->sent_ns, &part, 1);
    free(text);
    return OPENPI_OK;
}

openpi_status recording_add(recording *r, const recorded_call *call, openpi_error *error) {
    recorded_picture pictures[RECORDING_PICTURES];
    int count = 0;
    if (call->status == OPENPI_OK)
        count = recorded_pictures(call->request, call->request_bytes, pictures);
    count = put_pictures(r, call, pictures, count);
    put_exact(r, call, pictures, count);
    openpi_status status = put_call(r, call, error);
    openpi_status written = mcap_flush(r->mcap, status == OPENPI_OK ? error : NULL);
    return status == OPENPI_OK ? written : status;
}
