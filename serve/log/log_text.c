/* See log_text.h. */
#include "log_text.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* ---- escapes ---------------------------------------------------------------------------------------- */

/* Reads a character of UTF-8 as RFC 3629 has it. Returns its bytes; 0: it is none. */
static int read_character(const uint8_t *text, uint32_t *character) {
    static const struct {
        uint8_t mask, lead;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (int more = 0; more < 4; more++) {
        if ((text[0] & forms[more].mask) != forms[more].lead) continue;
        *character = text[0] & (uint8_t)~forms[more].mask;
        for (int i = 1; i <= more; i++) {
            if ((text[i] & 0xc0) != 0x80) return 0;            /* the NUL at the end is none either        */
            *character = *character << 6 | (text[i] & 0x3f);
        }
        int surrogate = *character >= 0xd800 && *character < 0xe000;
        return *character < forms[more].least || *character > 0x10ffff || surrogate ? 0 : more + 1;
    }
    return 0;
}

/* Controls, and marks that change the direction of text, or cannot be seen. */
static int is_odd(uint32_t c) {
    static const uint32_t ranges[][2] = {{0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},
                                         {0x61c, 0x61c},   {0x200b, 0x200f}, {0x2028, 0x202e},
                                         {0x2060, 0x206f}, {0xfeff, 0xfeff}, {0xfff9, 0xfffb},
                                         {0xe0000, 0xe007f}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return 1;
    return 0;
}

/* A character as it is written, with a NUL. */
static void write_character(char out[16], const uint8_t *text, int bytes, uint32_t c, log_format format) {
    int slash = c == '\\' || (format == LOG_JSON && c == '"');
    if (!bytes && format == LOG_JSON) strcpy(out, "\\ufffd");
    else if (!bytes) snprintf(out, 16, "\\x%02x", text[0]);
    else if (slash) snprintf(out, 16, "\\%c", (char)c);
    else if (is_odd(c) && c > 0xffff)
        snprintf(out, 16, "\\u%04x\\u%04x", (unsigned)(0xd7c0 + (c >> 10)), (unsigned)(0xdc00 | (c & 0x3ff)));
    else if (is_odd(c)) snprintf(out, 16, "\\u%04x", (unsigned)c);
    else snprintf(out, 16, "%.*s", bytes, (const char *)text);
}

size_t log_escape(char *out, size_t capacity, const char *text, log_format format) {
    static const char ellipsis[] = "…";
    const uint8_t *at = (const uint8_t *)text;
    size_t count = 0, fits = 0;  /* how much is left when the ellipsis has to follow                       */
    while (*at) {
        char piece[16];
        uint32_t c = 0;
        int bytes = read_character(at, &c);
        write_character(piece, at, bytes, c, format);
        size_t length = strlen(piece);
        if (count + length >= capacity) {
            memcpy(out + fits, ellipsis, sizeof ellipsis);
            return fits + sizeof ellipsis - 1;
        }
        memcpy(out + count, piece, length);
        count += length;
        if (count + sizeof ellipsis <= capacity) fits = count;
        at += bytes ? bytes : 1;
    }
    out[count] = 0;
    return count;
}

/* ---- lines ------------------------------------------------------------------------------------------ */

typedef struct writer {
    char *out;                   /* [LOG_LINE_BYTES]                                                       */
    size_t count;
} writer;

static void put(writer *w, const char *text) {
    size_t length = strlen(text), left = LOG_LINE_BYTES - 2 - w->count;        /* the line's end fits too   */
    if (length > left) length = left;
    memcpy(w->out + w->count, text, length);
    w->count += length;
}

static const char *level_name(log_level level) {
    return level == LOG_LEVEL_ERROR ? "error" : level == LOG_LEVEL_WARNING ? "warning" : "info";
}

/* Three digits after the point are enough for milliseconds. */
static void put_number(writer *w, double value) {
    char text[40];
    double thousandths = value * 1000 + (value < 0 ? -0.5 : 0.5);
    if (!(value > -1e12 && value < 1e12)) snprintf(text, sizeof text, "null");
    else snprintf(text, sizeof text, "%.15g", (double)(int64_t)thousandths / 1000);
    put(w, text);
}

static void put_id(writer *w, const char *before, uint64_t id, const char *after) {
    char text[24];
    if (!id) return;
    snprintf(text, sizeof text, "%llu", (unsigned long long)id);
    put(w, before);
    put(w, text);
    put(w, after);
}

static void put_member(writer *w, const char *name, const char *value) {
    put(w, ",\"");
    put(w, name);
    put(w, "\":\"");
    put(w, value);
    put(w, "\"");
}

static void write_json(writer *w, const log_entry *entry, const char *address, const char *robot,
                       const char *message, struct timespec when) {
    char time[96], seconds[32];
    struct tm parts;
    gmtime_r(&when.tv_sec, &parts);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(time, sizeof time, "{\"time\":\"%s.%03ldZ\"", seconds, when.tv_nsec / 1000000);
    put(w, time);
    put_member(w, "level", level_name(entry->level));
    put_member(w, "event", entry->event);
    if (*address) put_member(w, "address", address);
    if (*robot) put_member(w, "robot", robot);
    put_id(w, ",\"id\":", entry->id, "");
    for (const log_number *n = entry->numbers; n < entry->numbers + LOG_NUMBERS && n->name; n++) {
        put(w, ",\"");
        put(w, n->name);
        put(w, "\":");
        put_number(w, n->value);
    }
    put_member(w, "message", message);
    put(w, "}");
}

static void write_text(writer *w, const log_entry *entry, const char *address, const char *robot,
                       const char *message) {
    put(w, "openpi serve: ");
    put(w, address);
    put(w, *address ? " " : "");
    put(w, robot);
    put(w, *robot ? " " : "");
    put_id(w, "#", entry->id, " ");
    put(w, message);
    for (const log_number *n = entry->numbers; n < entry->numbers + LOG_NUMBERS && n->name; n++) {
        put(w, ", ");
        put(w, n->name);
        put(w, " ");
        put_number(w, n->value);
    }
}

size_t log_text_write(char out[LOG_LINE_BYTES], log_format format, int prefix, const log_entry *entry,
                      const char *message, struct timespec when) {
    char address[LOG_NAME_BYTES], robot[LOG_NAME_BYTES], text[LOG_MESSAGE_BYTES];
    log_entry e = *entry;
    writer w = {.out = out};
    if (!e.level) e.level = LOG_LEVEL_INFO;
    log_escape(address, sizeof address, e.address ? e.address : "", format);
    log_escape(robot, sizeof robot, e.robot ? e.robot : "", format);
    log_escape(text, sizeof text, message, format);
    if (prefix) put(&w, e.level == LOG_LEVEL_ERROR ? "<3>" : e.level == LOG_LEVEL_WARNING ? "<4>" : "<6>");
    if (format == LOG_JSON) write_json(&w, &e, address, robot, text, when);
    else write_text(&w, &e, address, robot, text);
    out[w.count++] = '\n';
    out[w.count] = 0;
    return w.count;
}
