/* The sweep as a picture: latency above, samples/s below, both against the batch, on the device's boundary.
 * Published series stand beside them as dashed lines, where this run is of their workload. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "draw/chart.h"
#include "output.h"
#include "published.h"

enum { OTHERS_MAX = 8, WIDTH = 720 };

typedef struct sweep {
    chart_series series[OTHERS_MAX + 1];
    chart_point own[BATCHES_MAX], others[OTHERS_MAX][PUBLISHED_BATCHES];
    int count;
} sweep;

static int is_published_workload(const bench_job *j) {
    const subject *s = &j->subject;
    const uint8_t *c = s->call.cameras;
    return s->info.variant == OPENPI_PI0 && s->info.parameters > 3000000000u &&
           s->info.dtype == OPENPI_BF16 && c[0] && c[1] && c[2] && s->call.prompt == 20 &&
           s->v->horizon == 10 && s->v->steps == 10 && !j->v.changing_prompts;
}

/* `latency`: y is ms; else samples/s. */
static void fill(sweep *w, const bench_job *j, int latency, const char *name) {
    *w = (sweep){.count = 1};
    for (int i = 0; i < j->count; i++) {
        double ms = j->outcomes[i].report.device.p50_ms, batch = j->outcomes[i].batch;
        w->own[i] = (chart_point){.x = batch, .y = latency ? ms : batch / ms * 1e3};
    }
    w->series[0] = (chart_series){name, CHART_LINE, w->own, j->count};
    if (!is_published_workload(j)) return;
    for (int p = 0; published[p].name && p < OTHERS_MAX; p++) {
        for (int i = 0; i < PUBLISHED_BATCHES; i++) {
            double rate = published[p].samples_per_s[i], batch = published_batches[i];
            w->others[p][i] = (chart_point){.x = batch, .y = latency ? batch / rate * 1e3 : rate};
        }
        w->series[w->count++] =
            (chart_series){published[p].name, CHART_DASHED, w->others[p], PUBLISHED_BATCHES};
    }
}

/* One chart as text, and its height. */
static char *draw(const bench_job *j, int latency, int *height) {
    char name[HARDWARE_TEXT + 32], about[400], *text = NULL;
    const subject *s = &j->subject;
    const int own_only = !is_published_workload(j);
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
