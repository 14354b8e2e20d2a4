/* The server's metadata, its replies and its error sentences; see client.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_bytes.h"

/* A whole number of a map from 0 to `most`; 0 where it has none. */
static double whole(const client_value *map, const char *key, double most) {
    client_value v = client_value_find(map, key);
    double number = client_value_number(&v, 0);
    return number >= 0 && number <= most && number == floor(number) ? number : 0;
}

/* ---- metadata ------------------------------------------------------------------------------------- */

static int read_pose(const client_value *list, double out[CLIENT_POSE]) {
    const uint8_t *at = list->bytes;
    int count = 0;
    for (size_t i = 0; list->kind == VALUE_ARRAY && i < list->count && count < CLIENT_POSE; i++) {
        client_value v = client_value_next(&at, list->end);
        if (v.kind == VALUE_NUMBER) out[count++] = v.number;
    }
    return count;
}

/* The texts of a list: pointers, and behind them the texts, in one block. 0: no memory. */
static int read_notes(const client_value *list, client_metadata *out) {
    const uint8_t *at = list->bytes;
    size_t bytes = 0;
    if (list->kind != VALUE_ARRAY) return 1;
    for (size_t i = 0; i < list->count; i++) {
        client_value v = client_value_next(&at, list->end);
        bytes += sizeof(char *) + v.count + 1;
    }
    out->notes = malloc(bytes ? bytes : 1);
    if (!out->notes) return 0;
    char *text = (char *)(out->notes + list->count);
    at = list->bytes;
    for (size_t i = 0; i < list->count; i++) {
        client_value v = client_value_next(&at, list->end);
        if (v.kind != VALUE_TEXT) continue;
        out->notes[out->note_count++] = text;
        memcpy(text, v.bytes, v.count);
        text[v.count] = 0;
        text += v.count + 1;
    }
    return 1;
}

int client_metadata_read(const uint8_t *bytes, size_t count, client_metadata *out,
                         char why[CLIENT_SENTENCE]) {
    client_value about = client_value_of(bytes, count);
    *out = (client_metadata){.horizon = 0};
    if (about.kind != VALUE_MAP) {
        snprintf(why, CLIENT_SENTENCE, "%s",
                 "the server's first message is no msgpack map: it is no policy server");
        return 0;
    }
    client_value ours = client_value_find(&about, "openpi_server");
    client_value version = client_value_find(&ours, "version"), modes = client_value_find(&ours, "rtc_modes");
    client_value pose = client_value_find(&about, "reset_pose"), notes = client_value_find(&ours, "notes");
    if (version.kind == VALUE_TEXT)
        snprintf(out->version, sizeof out->version, "%.*s", version.count < 32 ? (int)version.count : 31,
                 (const char *)version.bytes);
    out->horizon = (int)whole(&ours, "horizon", INT32_MAX);
    out->action_dim = (int)whole(&ours, "action_dim", INT32_MAX);
    out->max_message_bytes = (uint64_t)whole(&ours, "max_message_bytes", 0x1p53);
    out->rtc = modes.kind == VALUE_TEXT;
    out->runner = whole(&ours, "runner", 1) > 0;
    out->rtc_max_delay = (int)whole(&ours, "rtc_max_delay", INT32_MAX);
    out->reset_pose_count = read_pose(&pose, out->reset_pose);
    if (read_notes(&notes, out)) return 1;
    snprintf(why, CLIENT_SENTENCE, "out of memory: the server's metadata");
    return 0;
}

void client_metadata_free(client_metadata *m) {
    free(m->notes);
    m->notes = NULL;
    m->note_count = 0;
}

/* ---- replies -------------------------------------------------------------------------------------- */

/* The last line that has anything in it: a server's sentence, or what a traceback comes to. */
static void take_sentence(const uint8_t *text, size_t count, char why[CLIENT_SENTENCE]) {
    while (count && text[count - 1] <= ' ') count--;
    size_t begin = count;
    while (begin && text[begin - 1] != '\n') begin--;
    size_t line = count - begin;
    snprintf(why, CLIENT_SENTENCE, "%.*s", line < CLIENT_SENTENCE ? (int)line : CLIENT_SENTENCE,
             line ? (const char *)text + begin : "");
    if (!why[0]) snprintf(why, CLIENT_SENTENCE, "the server answers with an empty text");
}

/* A size of an array; 0: it is none. */
static int read_size(const uint8_t **at, const uint8_t *end) {
    client_value size = client_value_next(at, end);
    double number = client_value_number(&size, 0);
    return number >= 1 && number <= 1e6 && number == (double)(int)number ? (int)number : 0;
}

/* The sizes of an array of rank 2, or 3 where there are several chunks; 0: it has others. */
static int read_shape(const client_value *shape, client_reply *out) {
    const uint8_t *at = shape->bytes;
    if (shape->kind != VALUE_ARRAY || (shape->count != 2 && shape->count != 3)) return 0;
    if (shape->count == 3) out->chunks = read_size(&at, shape->end);
    out->steps = read_size(&at, shape->end);
    out->dims = read_size(&at, shape->end);
    return out->steps && out->dims && (shape->count == 2 || out->chunks);
}

/* Bytes of an element of the type, 0: it is neither float64 nor float32. */
static size_t element_bytes(const client_value *dtype) {
    if (client_value_says(dtype, "<f8")) return sizeof(double);
    return client_value_says(dtype, "<f4") ? sizeof(float) : 0;
}

static void copy_actions(const client_value *data, size_t count, size_t bytes, double *out) {
    for (size_t i = 0; i < count; i++) {
        float single;
        if (bytes == sizeof(double)) memcpy(out + i, data->bytes + i * bytes, bytes);
        else memcpy(&single, data->bytes + i * bytes, bytes), out[i] = (double)single;
    }
}

static int read_actions(const client_value *reply, client_reply *out, double *actions, size_t capacity,
                        char why[CLIENT_SENTENCE]) {
    client_value array = client_value_find(reply, "actions"), data = client_value_find(&array, "data");
    client_value shape = client_value_find(&array, "shape"), dtype = client_value_find(&array, "dtype");
    const size_t bytes = element_bytes(&dtype);
    if (data.kind != VALUE_BIN || !bytes || !read_shape(&shape, out)) {
        snprintf(why, CLIENT_SENTENCE, "%s",
                 "a reply without actions, expected float64 or float32 [steps][numbers]");
        return 0;
    }
    const size_t count = (size_t)(out->chunks ? out->chunks : 1) * (size_t)out->steps * (size_t)out->dims;
    if (data.count != count * bytes)
        snprintf(why, CLIENT_SENTENCE, "a reply whose actions have %zu bytes, expected %zu for %d steps of "
                 "%d numbers", data.count, count * bytes, out->steps, out->dims);
    else if (actions && count > capacity)
        snprintf(why, CLIENT_SENTENCE, "a reply with %d steps of %d numbers, more than the %zu that there is "
                 "memory for", out->steps, out->dims, capacity);
    else {
        if (actions) copy_actions(&data, count, bytes, actions);
        return 1;
    }
    return 0;
}

/* Milliseconds of a map in the reply; -1 where it has none. */
static double milliseconds(const client_value *reply, const char *map, const char *key) {
    client_value timing = client_value_find(reply, map), ms = client_value_find(&timing, key);
    return client_value_number(&ms, -1);
}

int client_reply_read(const uint8_t *bytes, size_t count, int text, client_reply *out, double *actions,
                      size_t capacity, char why[CLIENT_SENTENCE]) {
    *out = (client_reply){.model_ms = -1, .server_ms = -1, .prev_total_ms = -1};
    if (text) {
        take_sentence(bytes, count, why);
        return 0;
    }
    client_value reply = client_value_of(bytes, count);
    if (!read_actions(&reply, out, actions, capacity, why)) return 0;
    client_value rtc = client_value_find(&reply, "rtc"), applied = client_value_find(&rtc, "applied");
    client_value cut = client_value_find(&reply, "openpi/prompt_truncated");
    client_value limited = client_value_find(&reply, "openpi/limited");
    out->model_ms = milliseconds(&reply, "policy_timing", "infer_ms");
    out->server_ms = milliseconds(&reply, "server_timing", "infer_ms");
    out->prev_total_ms = milliseconds(&reply, "server_timing", "prev_total_ms");
    out->rtc_applied = client_value_number(&applied, 0) != 0;
    out->rtc_delay = (int)whole(&rtc, "delay", INT32_MAX);
    out->rtc_max_weight = whole(&rtc, "max_weight", INT32_MAX);
    out->prompt_truncated = client_value_number(&cut, 0) != 0;
    out->limited = (int)whole(&limited, "changed", INT32_MAX);
    out->held = (int)whole(&limited, "held", INT32_MAX);
    return 1;
}
