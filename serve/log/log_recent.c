/* See log_recent.h. */
#include "log_recent.h"

#include <stdio.h>
#include <string.h>

/* Cut where a character of UTF-8 begins. */
static void copy(char *out, size_t capacity, const char *text) {
    size_t count = strlen(text ? text : "");
    if (count >= capacity) {
        count = capacity - 1;
        while (count && ((unsigned char)text[count] & 0xc0) == 0x80) count--;
    }
    if (count) memcpy(out, text, count);
    out[count] = 0;
}

static int is_same(const log_warning *a, const log_warning *b) {
    return !strcmp(a->address, b->address) && !strcmp(a->robot, b->robot) && !strcmp(a->message, b->message);
}

void log_recent_add(log_recent *r, const log_entry *entry, const char *message, double now_ms) {
    log_warning fresh = {.at_ms = now_ms, .times = 1, .id = entry->id};
    copy(fresh.address, sizeof fresh.address, entry->address);
    copy(fresh.robot, sizeof fresh.robot, entry->robot);
    copy(fresh.message, sizeof fresh.message, message);
    int at = 0;
    while (at < r->count && !is_same(&r->items[at], &fresh)) at++;
    if (at < r->count) fresh.times += r->items[at].times;
    else if (r->count < LOG_RECENT) r->count++;
    else at--;
    memmove(&r->items[1], &r->items[0], (size_t)at * sizeof *r->items);
    r->items[0] = fresh;
}
