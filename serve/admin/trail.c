/* See trail.h. A ring of seconds; one that is older than the ring is cleared when its place is used again. */
#include "trail.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RING = TRAIL_SECONDS + 2, SECOND_MS = 1000 };

typedef struct second {
    int64_t number;              /* the clock's; what follows is this second's                             */
    int answered;                /* chunks that were sent                                                  */
    int told;                    /* how many say what was executed before                                  */
    int stopped, failed;         /* requests without a chunk: because of a limit, for any other reason     */
    int limited, held;           /* numbers that limits changed; rows that they held                       */
    double gap_ms;               /* the longest time from a reply to the next request                      */
    double held_ms;
    unsigned reasons;            /* bit r: openpi_reason r                                                 */
    int moved;                   /* 1: it has rows, so `low` and `high` say something                      */
    float *low, *high;           /* [dims] least and greatest of the rows that were executed               */
    float *seam;                 /* [dims] the greatest difference where one chunk follows another         */
} second;

struct trail {
    int horizon, dims;
    second ring[RING];
    float *last;                 /* [horizon][dims] the chunk that was sent last                           */
    int rows;                    /* its; 0: there is none                                                  */
    int used;                    /* its rows that are already in the ring                                  */
    double last_ms, rate_hz;     /* when it was sent                                                       */
    double answered_ms;          /* when any request was answered; 0: none was                             */
    int tells;                   /* 1: the robot says which rows it executed                               */
    float numbers[];
};

trail *trail_create(int horizon, int dims) {
    size_t each = (size_t)dims, chunk = (size_t)horizon * each;
    trail *made = calloc(1, sizeof *made + (3 * RING * each + chunk) * sizeof(float));
    if (!made) return NULL;
    made->horizon = horizon;
    made->dims = dims;
    made->last = made->numbers + 3 * RING * each;
    for (size_t i = 0; i < RING; i++) {
        made->ring[i].low = made->numbers + 3 * i * each;
        made->ring[i].high = made->ring[i].low + each;
        made->ring[i].seam = made->ring[i].high + each;
        made->ring[i].number = -1;
    }
    return made;
}

void trail_free(trail *t) { free(t); }

/* ---- seconds ---------------------------------------------------------------------------------------- */

static void clear(second *s, int64_t number, int dims) {
    float *low = s->low, *high = s->high, *seam = s->seam;
    *s = (second){.number = number, .low = low, .high = high, .seam = seam};
    memset(seam, 0, (size_t)dims * sizeof *seam);
}

/* NULL: it is older than what its place has. */
static second *second_of(trail *t, double ms) {
    int64_t number = (int64_t)floor(ms / SECOND_MS);
    second *s = &t->ring[(size_t)(number < 0 ? 0 : number % RING)];
    if (s->number > number) return NULL;
    if (s->number < number) clear(s, number, t->dims);
    return s;
}

static void add_row(trail *t, double ms, const float *row) {
    second *s = second_of(t, ms);
    if (!s) return;
    for (int i = 0; i < t->dims; i++) {
        s->low[i] = s->moved ? fminf(s->low[i], row[i]) : row[i];
        s->high[i] = s->moved ? fmaxf(s->high[i], row[i]) : row[i];
    }
    s->moved = 1;
}

/* ---- rows that were executed ------------------------------------------------------------------------ */

/* Rows of the last chunk up to `used` become part of the ring, none later than `now`. */
static void use_rows(trail *t, int used, double now) {
    double each = t->rate_hz > 0 ? SECOND_MS / t->rate_hz : used ? (now - t->last_ms) / used : 0;
    if (used > t->rows) used = t->rows;
    for (; t->used < used; t->used++)
        add_row(t, fmin(now, t->last_ms + t->used * each), t->last + (size_t)t->used * (size_t)t->dims);
}

/* How many are executed at a time, as far as that is known without the robot. */
static int rows_until(const trail *t, double now) {
    double rows = t->rate_hz > 0 ? (now - t->last_ms) * t->rate_hz / SECOND_MS : t->horizon;
    return rows < t->rows ? (int)rows : t->rows;
}

static void add_seam(trail *t, second *s, int executed, const float *next) {
    const float *last = t->last + (size_t)executed * (size_t)t->dims;
    for (int i = 0; executed < t->rows && i < t->dims; i++)
        s->seam[i] = fmaxf(s->seam[i], fabsf(next[i] - last[i]));
}

/* The robot goes over to another chunk, or would have. */
static void leave_chunk(trail *t, const trail_call *call) {
    int executed = call->executed >= 0 ? call->executed : rows_until(t, call->sent_ms);
    use_rows(t, executed, call->sent_ms);
    second *s = second_of(t, call->sent_ms);
    if (s && call->status == OPENPI_OK) add_seam(t, s, executed, call->actions);
}

static void take_chunk(trail *t, const trail_call *call) {
    memcpy(t->last, call->actions, (size_t)t->horizon * (size_t)t->dims * sizeof *t->last);
    t->rows = t->horizon;
    t->used = 0;
    t->last_ms = call->sent_ms;
    t->rate_hz = call->rate_hz;
}

/* ---- what is added and told ------------------------------------------------------------------------- */

static void count(trail *t, second *s, const trail_call *call) {
    int fine = call->status == OPENPI_OK, beyond = call->status == OPENPI_BEYOND_LIMIT;
    s->answered += fine;
    s->told += fine && call->executed >= 0;
    s->stopped += beyond;
    s->failed += !fine && !beyond;
    s->limited += fine ? call->limited->changed : 0;
    s->held += fine ? call->limited->held : 0;
    if (t->answered_ms > 0) s->gap_ms = fmax(s->gap_ms, call->arrived_ms - t->answered_ms);
    s->held_ms += call->held_ms;
    if (call->held_ms > 0) s->reasons |= 1u << call->reason;
}

void trail_add(trail *t, const trail_call *call) {
    if (!t) return;
    second *s = second_of(t, call->sent_ms);
    if (s) count(t, s, call);
    t->tells = call->executed >= 0;
    t->answered_ms = call->sent_ms;
    if (t->rows && (call->status == OPENPI_OK || t->tells)) leave_chunk(t, call);
    if (call->status == OPENPI_OK) take_chunk(t, call);
}

/* NULL: nothing happened in that second. */
static const second *find(const trail *t, int64_t number) {
    const second *s = &t->ring[(size_t)(number < 0 ? 0 : number % RING)];
    return s->number == number ? s : NULL;
}

static double value_of(const second *s, int which) {
    const double values[] = {s->answered, s->told,   s->stopped, s->failed,
                             s->limited,  s->held,   s->gap_ms,  s->held_ms, s->reasons};
    return values[which];
}

static void put_numbers(const trail *t, const float *numbers, text *out) {
    text_put(out, "[");
    for (int i = 0; i < t->dims; i++) text_put(out, "%s%.5g", i ? "," : "", (double)numbers[i]);
    text_put(out, "]");
}

static void put_rows(const trail *t, int64_t now, const char *name, int which, text *out) {
    text_put(out, ",\"%s\":[", name);
    for (int ago = TRAIL_SECONDS; ago; ago--) {
        const second *s = find(t, now - ago);
        const float *const rows[] = {s && s->moved ? s->low : NULL, s && s->moved ? s->high : NULL,
                                     s && s->answered ? s->seam : NULL};
        if (rows[which]) put_numbers(t, rows[which], out);
        else text_put(out, "null");
        text_put(out, ago > 1 ? "," : "]");
    }
}

void trail_write(trail *t, double now_ms, text *out) {
    static const char *const counts[] = {"answered", "told", "stopped", "failed", "limited",
                                         "held",     "gap_ms", "held_ms", "reasons"};
    static const char *const rows[] = {"low", "high", "seam"};
    int64_t now = (int64_t)floor(now_ms / SECOND_MS);
    if (t->rows && !t->tells && t->rate_hz > 0) use_rows(t, rows_until(t, now_ms), now_ms);
    text_put(out, "{\"seconds\":%d,\"silent_ms\":%.1f", TRAIL_SECONDS,
             t->answered_ms > 0 ? now_ms - t->answered_ms : 0);
    for (int k = 0; k < (int)(sizeof counts / sizeof *counts); k++) {
        text_put(out, ",\"%s\":[", counts[k]);
        for (int ago = TRAIL_SECONDS; ago; ago--) {
            const second *s = find(t, now - ago);
            text_put(out, "%.6g%s", s ? value_of(s, k) : 0, ago > 1 ? "," : "]");
        }
    }
    for (int k = 0; k < 3; k++) put_rows(t, now, rows[k], k, out);
    text_put(out, ",\"why\":[");
    for (int r = 0; r <= OPENPI_REASON_ASKED; r++) {
        text_put(out, r ? "," : "");
        text_quote(out, openpi_reason_text((openpi_reason)r));
    }
    text_put(out, "]}");
}
