/* See snapshot.h. */
#include "snapshot.h"

#include <stdlib.h>
#include <string.h>

enum { SIDE = OPENPI_IMAGE_SIZE, PIXELS = SIDE * SIDE };

snapshot *snapshot_create(int with_pictures, int horizon, int action_dim) {
    snapshot *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->executed = -1;
    made->actions = calloc((size_t)horizon * (size_t)action_dim, sizeof *made->actions);
    if (with_pictures) made->pictures = calloc(OPENPI_CAMERAS, SNAPSHOT_PICTURE);
    if (made->actions && (made->pictures || !with_pictures)) return made;
    snapshot_free(made);
    return NULL;
}

void snapshot_free(snapshot *s) {
    if (!s) return;
    free(s->pictures);
    free(s->actions);
    free(s);
}

static void put_number(uint8_t *at, int bytes, int64_t value) {
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)((uint64_t)value >> 8 * i);
}

/* A negative height: the first row is the uppermost. A row has a multiple of four bytes. */
static void write_head(uint8_t *out) {
    _Static_assert(SIDE * 3 % 4 == 0, "rows of a BMP file need no padding");
    static const struct { int at, bytes; int64_t value; } fields[] = {
        {2, 4, SNAPSHOT_PICTURE}, {10, 4, SNAPSHOT_HEAD}, {14, 4, 40}, {18, 4, SIDE},
        {22, 4, -SIDE},           {26, 2, 1},             {28, 2, 24}, {34, 4, PIXELS * 3}};
    memset(out, 0, SNAPSHOT_HEAD);
    out[0] = 'B';
    out[1] = 'M';
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        put_number(out + fields[i].at, fields[i].bytes, fields[i].value);
}

/* Blue, green, red. */
static void write_u8(const uint8_t *rgb, uint8_t *out) {
    for (int i = 0; i < PIXELS; i++)
        for (int colour = 0; colour < 3; colour++) out[3 * i + colour] = rgb[3 * i + 2 - colour];
}

static void write_f32(const float *rgb, uint8_t *out) {
    for (int i = 0; i < PIXELS; i++)
        for (int colour = 0; colour < 3; colour++)
            out[3 * i + colour] = (uint8_t)((rgb[3 * i + 2 - colour] + 1) * 127.5f + .5f);
}

/* Cut where a character of UTF-8 begins. */
static void write_prompt(snapshot *s, const char *prompt, size_t count) {
    static const char ellipsis[] = "…";
    int whole = count <= SNAPSHOT_PROMPT;
    if (!whole) count = SNAPSHOT_PROMPT;
    while (!whole && count && ((uint8_t)prompt[count] & 0xc0) == 0x80) count--;
    if (count) memcpy(s->prompt, prompt, count);
    memcpy(s->prompt + count, whole ? "" : ellipsis, whole ? 1 : sizeof ellipsis);
}

static void see_words(snapshot *s, const openpi_request *request) {
    size_t count;
    const char *prompt = openpi_request_prompt(request, &count);
    const double *state = openpi_request_raw_state(request, &s->state_count);
    if (prompt) write_prompt(s, prompt, count);
    for (int i = 0; i < s->state_count; i++) s->state[i] = state[i];
    for (int i = 0; i < OPENPI_ACTION_DIM; i++) s->starts[i] = openpi_request_action_start(request, i);
    s->truncated = openpi_request_prompt_truncated(request);
}

void snapshot_see(snapshot *s, const openpi_request *request, const openpi_sample *sample) {
    if (!s) return;
    see_words(s, request);
    if (!s->pictures) return;
    for (int i = 0; i < OPENPI_CAMERAS; i++) {
        uint8_t *out = s->pictures + (size_t)i * SNAPSHOT_PICTURE;
        s->mask[i] = sample->image_mask[i] != 0;
        if (!s->mask[i]) continue;
        write_head(out);
        if (sample->pixels == OPENPI_PIXELS_U8) write_u8(sample->images[i], out + SNAPSHOT_HEAD);
        else write_f32(sample->images[i], out + SNAPSHOT_HEAD);
        s->pictured = 1;
    }
}

void snapshot_reply(snapshot *s, const reply *reply) {
    if (!s) return;
    memcpy(s->actions, reply->actions,
           (size_t)reply->horizon * (size_t)reply->action_dim * sizeof *s->actions);
    s->applied = reply->rtc && reply->rtc_applied;
    s->delay = s->applied ? reply->rtc_delay : 0;
    s->replied = 1;
}
