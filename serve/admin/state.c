/* See state.h. Times are milliseconds, as the page shows them. */
#include "state.h"

#include <math.h>

static void put_member(text *out, const char *name, const char *value) {
    text_put(out, ",\"%s\":", name);
    text_quote(out, value ? value : "");
}

/* null: the weights are the checkpoint's. */
static void put_update(const update_served *u, text *out) {
    if (!u->name[0]) {
        text_put(out, "null");
        return;
    }
    text_put(out, "{\"tensors\":%d", u->tensors);
    put_member(out, "name", u->name);
    put_member(out, "when", u->when);
    text_put(out, "}");
}

/* What is served, and what loading it told of. */
static void put_model(const state *s, text *out) {
    const serve_model *m = s->model;
    text_put(out, ",\"model\":{\"number\":%llu", (unsigned long long)m->number);
    put_member(out, "checkpoint", s->about->checkpoint);
    put_member(out, "variant", m->variant == OPENPI_PI05 ? "pi05" : "pi0");
    put_member(out, "kernels", s->about->kernels);
    put_member(out, "statistics", m->info.statistics);
    put_member(out, "tokenizer", m->info.tokenizer);
    text_put(out, ",\"steps\":%d,\"lerobot\":%s,\"update\":", m->rtc.steps,
             m->info.lerobot ? "true" : "false");
    put_update(&s->update, out);
    text_put(out, "},\"notes\":[");
    for (int i = 0; i < m->note_count; i++) {
        text_put(out, "%s{\"level\":\"%s\"", i ? "," : "", m->notes[i].warning ? "warning" : "note");
        put_member(out, "text", m->notes[i].text);
        text_put(out, "}");
    }
    text_put(out, "]");
}

/* Seconds from the oldest to the last whole one, and the newest figures. */
static void put_history(const state *s, text *out) {
    static const char *const names[] = {"answered", "bad", "p50_ms", "p99_ms", "busy_ms"};
    history_point points[HISTORY_SECONDS];
    for (int i = 0; i < HISTORY_SECONDS; i++) points[i] = history_look(s->history, s->now_ms, i, 1);
    history_point now = history_look(s->history, s->now_ms, 0, HISTORY_WINDOW);
    text_put(out, ",\"recent\":{\"seconds\":%d,\"p50_ms\":%.3f,\"p99_ms\":%.3f}", HISTORY_WINDOW, now.p50_ms,
             now.p99_ms);
    text_put(out, ",\"history\":{\"seconds\":%d", HISTORY_SECONDS - 1);
    for (int k = 0; k < 5; k++) {
        text_put(out, ",\"%s\":[", names[k]);
        for (int ago = HISTORY_SECONDS - 1; ago > 0; ago--) {
            history_point p = points[ago];
            double values[] = {p.answered, p.bad, p.p50_ms, p.p99_ms, p.busy_ms};
            text_put(out, "%.6g%s", values[k], ago > 1 ? "," : "]");
        }
    }
    text_put(out, "}");
}

static void put_warnings(const state *s, text *out) {
    text_put(out, ",\"warnings\":[");
    for (int i = 0; i < s->warnings->count; i++) {
        const log_warning *w = &s->warnings->items[i];
        text_put(out, "%s{\"seconds_ago\":%.1f,\"times\":%llu,\"id\":%llu", i ? "," : "",
                 (s->now_ms - w->at_ms) * 1e-3, (unsigned long long)w->times, (unsigned long long)w->id);
        put_member(out, "robot", w->robot);
        put_member(out, "address", w->address);
        put_member(out, "text", w->message);
        text_put(out, "}");
    }
    text_put(out, "]");
}

static void put_server(const state *s, text *out) {
    text_put(out, "{\"version\":");
    text_quote(out, s->version);
    text_put(out, ",\"robot\":");
    text_quote(out, s->model->info.robot);
    text_put(out, ",\"horizon\":%d,\"action_dim\":%d,\"draining\":%s", s->horizon, s->action_dim,
             s->draining ? "true" : "false");
    text_put(out, ",\"now_ms\":%.3f,\"up_seconds\":%.3f", s->now_ms, s->up_seconds);
    text_put(out, ",\"connections\":%d,\"reserved\":%.6g,\"reservable\":%.6g", s->connections,
             s->queue.reserved, s->queue.reservable);
    text_put(out, ",\"received_bytes\":%llu,\"sent_bytes\":%llu",
             (unsigned long long)s->counts->received_bytes, (unsigned long long)s->counts->sent_bytes);
}

static void put_queue(const state *s, text *out) {
    text_put(out, ",\"queue\":{");
    for (int i = 0; i < SCHEDULER_CLASSES; i++)
        text_put(out, "%s\"%s\":%d", i ? "," : "", metrics_class((scheduler_class)i), s->queue.queued[i]);
    text_put(out, "},\"requests\":{");
    for (int i = 0; i < SCHEDULER_CLASSES; i++) {
        text_put(out, "%s\"%s\":{", i ? "," : "", metrics_class((scheduler_class)i));
        for (int k = 0; k < REQUEST_RESULTS; k++)
            text_put(out, "%s\"%s\":%llu", k ? "," : "", metrics_result((request_result)k),
                     (unsigned long long)s->counts->requests[i][k]);
        text_put(out, "}");
    }
    text_put(out, "}");
}

static void put_totals(text *out, const char *name, const histogram *h) {
    text_put(out, "{\"name\":\"%s\",\"count\":%llu,\"ms\":%.6f}", name, (unsigned long long)h->count,
             h->sum * 1e3);
}

static void put_stages(const state *s, text *out) {
    text_put(out, ",\"stages\":[");
    for (int i = 0; i < METRICS_STAGES; i++) {
        if (i) text_put(out, ",");
        put_totals(out, metrics_stage(i), &s->counts->stages[i]);
    }
    text_put(out, "],\"total\":");
    put_totals(out, "total", &s->counts->duration);
    text_put(out, ",\"devices\":[");
    for (int i = 0; i < s->counts->device_count; i++) {
        text_put(out, "%s{\"name\":", i ? "," : "");
        text_quote(out, s->counts->devices[i].name);
        put_member(out, "card", s->about->cards[i]);
        text_put(out, ",\"busy_ms\":%.3f}", s->counts->devices[i].busy_seconds * 1e3);
    }
    text_put(out, "]");
}

static void put_robot(const connection_look *r, text *out) {
    text_put(out, "{\"id\":%llu,\"name\":", (unsigned long long)r->id);
    text_quote(out, r->who.name);
    text_put(out, ",\"address\":");
    text_quote(out, r->who.address);
    text_put(out, ",\"class\":\"%s\",\"declared\":%.6g,\"requests\":%llu", metrics_class(r->who.class),
             r->who.rate, (unsigned long long)r->requests);
    text_put(out, ",\"rate\":%.3f,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"queue\":%d}", r->recent.rate,
             r->recent.p50_ms, r->recent.p99_ms, r->waiting);
}

static void put_chunk(const state *s, const snapshot *chunk, text *out) {
    if (!chunk) {
        text_put(out, "null");
        return;
    }
    text_put(out, "{\"executed\":%d,\"applied\":%s,\"delay\":%d,\"starts\":[", chunk->executed,
             chunk->applied ? "true" : "false", chunk->delay);
    for (int i = 0; i < s->action_dim; i++)
        text_put(out, isfinite(chunk->starts[i]) ? "%s%.5g" : "%snull", i ? "," : "", chunk->starts[i]);
    text_put(out, "],\"actions\":[");
    for (int i = 0; i < s->horizon * s->action_dim; i++)
        text_put(out, isfinite(chunk->actions[i]) ? "%s%.5g" : "%snull", i ? "," : "", chunk->actions[i]);
    text_put(out, "]}");
}

static void put_words(const snapshot *seen, text *out) {
    put_member(out, "prompt", seen->prompt);
    text_put(out, ",\"truncated\":%s,\"state\":[", seen->truncated ? "true" : "false");
    for (int i = 0; i < seen->state_count; i++) text_put(out, "%s%.6g", i ? "," : "", seen->state[i]);
    text_put(out, "]");
}

static void put_watch(const state *s, text *out) {
    if (!s->watched) return;
    text_put(out, ",\"watch\":{\"id\":%llu,\"open\":%s", (unsigned long long)s->watched,
             s->watch ? "true" : "false");
    if (s->watch) {
        const snapshot *seen = s->watch->seen;
        text_put(out, ",\"replies\":%d,\"pictures\":%d,\"mask\":[", s->watch->replies, s->watch->pictures);
        for (int i = 0; i < OPENPI_CAMERAS; i++)
            text_put(out, "%s%d", i ? "," : "", seen ? seen->mask[i] : 0);
        text_put(out, "]");
        if (s->watch->last) put_words(s->watch->last, out);
        text_put(out, ",\"last\":");
        put_chunk(s, s->watch->last, out);
        text_put(out, ",\"before\":");
        put_chunk(s, s->watch->before, out);
        text_put(out, ",\"trail\":");
        if (s->trail) trail_write(s->trail, s->now_ms, out);
        else text_put(out, "null");
    }
    text_put(out, "}");
}

void state_write(const state *s, text *out) {
    put_server(s, out);
    put_queue(s, out);
    put_stages(s, out);
    put_model(s, out);
    put_history(s, out);
    put_warnings(s, out);
    state_write_send(s, out);
    text_put(out, ",\"robots\":[");
    for (int i = 0; i < s->robot_count; i++) {
        if (i) text_put(out, ",");
        put_robot(&s->robots[i], out);
    }
    text_put(out, "]");
    put_watch(s, out);
    text_put(out, "}\n");
}
