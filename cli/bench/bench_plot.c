/* The sweep as a picture: latency above, samples/s below, both against the batch, on the device's boundary.
 * The series of --published stand beside them as dashed lines, where this run is of their workload. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "lab/draw/chart.h"
#include "json_file.h"
#include "output.h"

enum { OTHERS_MAX = 8, POINTS = 32, WIDTH = 720 };

typedef struct sweep {
    chart_series series[OTHERS_MAX + 1];
    chart_point own[BATCHES_MAX], others[OTHERS_MAX][POINTS];
    int count;
} sweep;

/* ---- a file of published figures ---------------------------------------------------------------------- */

static const json_t *scaling_of(const json_t *root, const char *key) {
    return json_object_get(json_object_get(root, "scaling"), key);
}

/* Is it a list of as many numbers above 0? */
static int is_series(const json_t *list, size_t count) {
    if (!json_is_array(list) || json_array_size(list) != count) return 0;
    for (size_t i = 0; i < count; i++)
        if (!(json_number_value(json_array_get(list, i)) > 0)) return 0;
    return 1;
}

int bench_read_published(const char *path, json_t **root) {
    int end = json_open(&verb_bench, path, root);
    if (end != END_FINE) return end;
    if (strcmp(json_string_value(json_object_get(*root, "kind")), "published"))
        return input_error(&verb_bench, "%s: its kind is '%s', expected published", path,
                           json_string_value(json_object_get(*root, "kind")));
    end = json_format(&verb_bench, path, *root);
    if (end != END_FINE) return end;
    const json_t *batches = scaling_of(*root, "batches"), *series = scaling_of(*root, "series"), *one;
    size_t count = json_array_size(batches), i;
    if (!count || count > POINTS || !is_series(batches, count))
        return input_error(&verb_bench, "%s: /scaling/batches is no list of 1 to %d numbers above 0", path,
                           POINTS);
    json_array_foreach(series, i, one) {
        const json_t *rates = json_object_get(one, "samples_per_s");
        if (json_is_string(json_object_get(one, "name")) && is_series(rates, count)) continue;
        return input_error(&verb_bench,
                           "%s: /scaling/series/%zu has no name, or not a number above 0 for each of %zu "
                           "batches as samples_per_s",
                           path, i, count);
    }
    return END_FINE;
}

static int number_is(const json_t *at, const char *key, double value) {
    const json_t *number = json_object_get(at, key);
    return json_is_number(number) && json_number_value(number) == value;
}

static int is_published_workload(const bench_job *j) {
    const subject *s = &j->subject;
    const json_t *w = json_object_get(j->published, "workload");
    const char *cameras = json_string_value(json_object_get(w, "cameras")),
               *variant = json_string_value(scaling_of(j->published, "variant"));
    if (!cameras || strlen(cameras) != OPENPI_CAMERAS || !variant) return 0;
    for (int i = 0; i < OPENPI_CAMERAS; i++)
        if (!s->call.cameras[i] != (cameras[i] == '0')) return 0;
    return !strcmp(variant, s->info.variant == OPENPI_PI0 ? "pi0" : "pi05") &&
           (double)s->info.parameters >= json_number_value(json_object_get(w, "least_parameters")) &&
           s->info.dtype == OPENPI_BF16 && !j->v.changing_prompts &&
           number_is(w, "prompt", s->call.prompt) && number_is(w, "horizon", s->v->horizon) &&
           number_is(w, "steps", s->v->steps);
}

/* ---- the picture -------------------------------------------------------------------------------------- */

/* `latency`: y is ms; else samples/s. */
static void fill(sweep *w, const bench_job *j, int latency, const char *name) {
    *w = (sweep){.count = 1};
    for (int i = 0; i < j->count; i++) {
        double ms = j->outcomes[i].report.device.p50_ms, batch = j->outcomes[i].batch;
        w->own[i] = (chart_point){.x = batch, .y = latency ? ms : batch / ms * 1e3};
    }
    w->series[0] = (chart_series){name, CHART_LINE, w->own, j->count};
    if (!is_published_workload(j)) return;
    const json_t *series = scaling_of(j->published, "series"), *batches = scaling_of(j->published, "batches");
    const int points = (int)json_array_size(batches);
    for (int p = 0; p < (int)json_array_size(series) && p < OTHERS_MAX; p++) {
        const json_t *one = json_array_get(series, (size_t)p), *rates = json_object_get(one, "samples_per_s");
        for (size_t i = 0; i < (size_t)points; i++) {
            double rate = json_number_value(json_array_get(rates, i)),
                   batch = json_number_value(json_array_get(batches, i));
            w->others[p][i] = (chart_point){.x = batch, .y = latency ? batch / rate * 1e3 : rate};
        }
        w->series[w->count++] = (chart_series){json_string_value(json_object_get(one, "name")), CHART_DASHED,
                                               w->others[p], points};
    }
}

/* One chart as text, and its height. */
static char *draw(const bench_job *j, int latency, int *height) {
    char name[HARDWARE_TEXT + 32], about[400], *text = NULL;
    const subject *s = &j->subject;
    const int own_only = j->published && !is_published_workload(j);
    size_t bytes;
    sweep *w = allocate(sizeof *w);
    snprintf(name, sizeof name, "%s, openpi.c", j->subject.hardware);
    snprintf(about, sizeof about, "%s, %s, %d prompt tokens, horizon %d, %d steps; medians on the device%s",
             s->source, s->info.dtype == OPENPI_F32 ? "f32" : "bf16", s->call.prompt, s->v->horizon,
             s->v->steps, own_only ? ". Not the published workload, so without published series" : "");
    fill(w, j, latency, name);
    FILE *file = open_memstream(&text, &bytes);
    if (file) {
        chart_xy(file, &(xy_chart){.head = {latency ? "Latency of a call" : "Samples a second", about, WIDTH},
                                   .x_name = "batch",
                                   .y_name = latency ? "ms" : "samples/s",
                                   .x = CHART_LOG2,
                                   .y = latency ? CHART_LOG10 : CHART_LINEAR,
                                   .series = w->series,
                                   .count = w->count});
        if (fclose(file)) *text = 0;
    }
    free(w);
    const char *box = text ? strstr(text, "viewBox=\"0 0 ") : NULL;
    if (box && sscanf(box, "viewBox=\"0 0 %*d %d", height) == 1) return text;
    free(text);
    return NULL;
}

int bench_plot(const bench_job *j) {
    int heights[2] = {0};
    char *charts[] = {draw(j, 1, &heights[0]), draw(j, 0, &heights[1])};
    const int drawn = charts[0] && charts[1];
    const int height = heights[0] + heights[1];
    if (drawn)
        fprintf(output_file(j->v.svg),
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
                "%d\">\n%s"
                "<g transform=\"translate(0,%d)\">\n%s</g>\n</svg>\n",
                WIDTH, height, WIDTH, height, charts[0], heights[0], charts[1]);
    free(charts[0]);
    free(charts[1]);
    return drawn ? END_FINE : input_error(&verb_bench, "%s: cannot be written: out of memory", j->v.svg);
}
