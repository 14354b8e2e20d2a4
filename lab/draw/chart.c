/* Bars and histograms, and what every chart has: a head, a legend. Lines and points are chart_xy.c.
 *
 * Every chart is laid out twice by the same code: with a NULL file to learn its height, then to write it. */
#include "chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "chart_parts.h"
#include "cli/cli.h"

int chart_width(const chart_head *head) {
    return head->width <= 0 ? 720 : head->width < 320 ? 320 : head->width;
}

double chart_put_head(FILE *file, const chart_head *head) {
    double space = chart_width(head) - 2 * CHART_MARGIN, y = 26;
    y += svg_block(file, CHART_MARGIN, y, space, "h1", head->title ? head->title : "") - 2;
    if (head->subtitle && *head->subtitle) y += svg_block(file, CHART_MARGIN, y, space, "w", head->subtitle);
    return y - 6;
}

double chart_put_legend(FILE *file, const chart_head *head, double y, const chart_key *keys, int count) {
    enum { SIGN = 24, GAP = 16, ROW = 18 };
    double x = CHART_MARGIN, right = chart_width(head) - CHART_MARGIN;
    for (int i = 0; i < count; i++) {
        double width = fmin(SIGN + svg_width(keys[i].name, 12), right - CHART_MARGIN);
        if (i && x + width > right) {
            x = CHART_MARGIN;
            y += ROW;
        }
        if (file) {
            int color = keys[i].series % SVG_COLORS;
            char look[16];
            snprintf(look, sizeof look, "c%d l%s", color, keys[i].style == CHART_DASHED ? " d" : "");
            if (keys[i].sign == CHART_SIGN_BOX)
                fprintf(file, "<rect class=\"c%d b\" x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"11\"/>",
                        color, x, y);
            else if (keys[i].sign == CHART_SIGN_ROOF) svg_line(file, "roof", x, y + 6, x + 18, y + 6);
            else if (keys[i].style != CHART_POINTS) svg_line(file, look, x, y + 6, x + 18, y + 6);
            if (keys[i].sign == CHART_SIGN_MARK) svg_mark(file, keys[i].series, x + 9, y + 6, 4, NULL, NULL);
            svg_text(file, x + SIGN, y + 10, width - SIGN + 1, "", keys[i].from, keys[i].name);
        }
        x += width + GAP;
    }
    return count ? y + ROW : y;
}

void chart_draw(FILE *file, const chart_head *head, double (*put)(FILE *file, const void *chart),
                const void *chart) {
    int height = (int)ceil(put(NULL, chart));
    svg_open(file, chart_width(head), height, head->title ? head->title : "", head->subtitle);
    put(file, chart);
    svg_close(file);
}

/* ---- bars ----------------------------------------------------------------------------------------- */

enum { BAR = 18, THIN = 12, BETWEEN = 10, LABEL = 16, NARROW = 520 };

static int parts_of(const bar_chart *c) {
    return c->part_count < 1 ? 1 : c->part_count > CHART_PARTS ? CHART_PARTS : c->part_count;
}

static double bar_sum(const bar_chart *c, const chart_bar *b) {
    double sum = 0;
    int there = 0;
    for (int p = 0; p < parts_of(c); p++)
        if (isfinite(b->values[p])) {
            sum += fmax(b->values[p], parts_of(c) == 1 ? b->values[p] : 0);
            there = 1;
        }
    return there ? sum : NAN;
}

/* What bars and their values need of the width. */
typedef struct bar_layout {
    double left, length, most; /* where bars start, how long the longest is, its value                  */
    int above;                 /* labels stand above their bars                                         */
} bar_layout;

static bar_layout bars_fit(const bar_chart *c) {
    double width = chart_width(&c->head) - 2 * CHART_MARGIN, labels = 0, ends = 0;
    bar_layout l = {.left = CHART_MARGIN};
    char text[SVG_NUMBER];
    for (int i = 0; i < c->count; i++) {
        const chart_bar *b = &c->bars[i];
        double note = b->note && *b->note ? svg_width(b->note, 11) + 8 : 0;
        labels = fmax(labels, svg_width(b->label, 12));
        for (int p = 0; p < (c->grouped ? parts_of(c) : 1); p++) {
            double value = c->grouped ? b->values[p] : bar_sum(c, b);
            ends = fmax(ends, svg_width(svg_number(value, text), 12) + (p ? 0 : note) + 10);
            if (isfinite(value)) l.most = fmax(l.most, value);
        }
    }
    l.above = width < NARROW || labels > width * 0.38;
    if (!l.above) l.left += labels + 10;
    l.length = fmax(CHART_MARGIN + width - l.left - fmin(ends, width * 0.5), 20);
    return l;
}

static double bar_length(const bar_layout *l, double value) {
    return isfinite(value) && value > 0 && l->most > 0 ? value / l->most * l->length : 0;
}

static void put_bar(FILE *file, const bar_chart *c, const bar_layout *l, const chart_bar *b, int part,
                    double x, double y, int high) {
    double value = b->values[part], length = bar_length(l, value);
    int color = (parts_of(c) == 1 ? b->color : part) % SVG_COLORS;
    char text[SVG_NUMBER], look[16], tip[300];
    svg_number(value, text);
    if (length > 0) {
        snprintf(tip, sizeof tip, "%.90s%s%.60s: %s %.20s", b->label, c->parts ? ", " : "",
                 c->parts ? c->parts[part] : "", text, c->unit ? c->unit : "");
        fprintf(file, "<rect class=\"c%d b\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"><title>",
                color, x, y, length, high);
        svg_escape(file, tip, 300);
        fprintf(file, "</title></rect>\n");
    }
    if (!c->grouped && parts_of(c) > 1 && length > svg_width(text, 11) + 6) {
        snprintf(look, sizeof look, "k m i%d", color);
        svg_text(file, x + length / 2, y + high / 2.0 + 4, 0, look, b->froms[part], text);
    }
}

static void put_value(FILE *file, const bar_chart *c, double value, double x, double y, const char *from,
                      const char *note) {
    char text[SVG_NUMBER];
    double right = chart_width(&c->head) - CHART_MARGIN;
    svg_number(value, text);
    svg_text(file, x + 6, y, 0, "", isfinite(value) ? from : NULL, text);
    x += 6 + svg_width(text, 12) + 4;
    if (note && *note) svg_text(file, x, y, right - x + 4, "k", NULL, note);
}

/* Returns the y below it. */
static double put_group(FILE *file, const bar_chart *c, const bar_layout *l, const chart_bar *b, double y) {
    int parts = parts_of(c), rows = c->grouped ? parts : 1, high = rows > 1 ? THIN + 2 : BAR;
    double right = chart_width(&c->head) - CHART_MARGIN;
    if (l->above) y += LABEL;
    if (file && l->above) svg_text(file, CHART_MARGIN, y - 4, right - CHART_MARGIN, "", NULL, b->label);
    if (file && !l->above) svg_text(file, l->left - 10, y + rows * high / 2.0 + 4, 0, "e", NULL, b->label);
    double x = l->left;
    if (file)
        svg_line(file, "a", x, y - (l->above ? 0 : BETWEEN / 2.0), x,
                 y + rows * high + (l->above ? 0 : BETWEEN / 2.0));
    for (int p = 0; file && p < parts; p++) {
        double end, value = b->values[p];
        put_bar(file, c, l, b, p, x, y + (c->grouped ? p * high : 0), rows > 1 ? THIN : high);
        end = x + bar_length(l, value);
        if (c->grouped)
            put_value(file, c, value, end, y + p * high + high - 3, b->froms[p], p ? NULL : b->note);
        else if (p == parts - 1)
            put_value(file, c, bar_sum(c, b), end, y + BAR - 5, parts == 1 ? b->froms[0] : b->from, b->note);
        if (!c->grouped) x = end;
    }
    return y + rows * high + BETWEEN;
}

static double put_bars(FILE *file, const void *chart) {
    const bar_chart *c = chart;
    double y = chart_put_head(file, &c->head), width = chart_width(&c->head);
    chart_key keys[CHART_PARTS];
    int count = c->parts ? parts_of(c) : 0;
    for (int p = 0; p < count; p++) keys[p] = (chart_key){c->parts[p], p, CHART_LINE, CHART_SIGN_BOX, NULL};
    y = chart_put_legend(file, &c->head, y, keys, count) + 6;
    bar_layout l = bars_fit(c);
    for (int i = 0; i < c->count; i++) y = put_group(file, c, &l, &c->bars[i], y);
    if (file)
        svg_text(file, width - CHART_MARGIN, y + 8, width - 2 * CHART_MARGIN, "k e", NULL,
                 c->unit ? c->unit : "");
    return y + 20;
}

void chart_bars(FILE *file, const bar_chart *chart) { chart_draw(file, &chart->head, put_bars, chart); }

/* ---- histogram ------------------------------------------------------------------------------------ */

enum { BINS_MAX = 64, MARKERS = 6, PLOT_HIGH = 190 };

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The finite values in order; returns how many. */
static int sort_finite(const histogram_chart *c, double *sorted) {
    int n = 0;
    for (int i = 0; i < c->count; i++)
        if (isfinite(c->values[i])) sorted[n++] = c->values[i];
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    return n;
}

/* Round bins after Freedman and Diaconis; far-off runs may ask for many, so at most BINS_MAX. */
static svg_scale bins_of(const double *sorted, int n) {
    double span = sorted[n - 1] - sorted[0], quartiles = sorted[n * 3 / 4] - sorted[n / 4];
    double bin = quartiles > 0 ? 2 * quartiles / cbrt(n) : span / fmax(sqrt(n), 1);
    int parts = bin > 0 ? (int)fmin(ceil(span / bin), BINS_MAX - 2) : 1;
    return svg_scale_of(sorted[0], sorted[n - 1], parts < 5 ? 5 : parts);
}

static void put_histogram_axes(FILE *file, const histogram_chart *c, const chart_area *a, const svg_scale *x,
                               const svg_scale *y) {
    svg_scale wide = svg_scale_of(x->low, x->high, a->width < 400 ? 4 : 8);
    char text[SVG_NUMBER];
    for (int i = 0; y->low + y->step * i <= y->high * 1.001; i++) {
        double value = y->step * i, at = a->top + a->height * (1 - value / y->high);
        svg_line(file, i ? "g" : "a", a->left, at, a->left + a->width, at);
        svg_text(file, a->left - 6, at + 4, 0, "k e", NULL, svg_tick(y, value, text));
    }
    for (double value = ceil(x->low / wide.step - 1e-9) * wide.step; value <= x->high + wide.step * 1e-6;
         value += wide.step)
        svg_text(file, a->left + (value - x->low) / (x->high - x->low) * a->width, a->top + a->height + 16, 0,
                 "k m", NULL, svg_tick(&wide, value, text));
    svg_text(file, a->left + a->width, a->top + a->height + 34, a->width, "k e", NULL, c->unit);
    svg_text(file, CHART_MARGIN, a->top - 8, a->width, "k", NULL, "runs");
}

static void put_histogram_bars(FILE *file, const chart_area *a, const svg_scale *x, const svg_scale *y,
                               const int *bins, int count) {
    double wide = a->width / count;
    for (int b = 0; b < count; b++) {
        double high = bins[b] / y->high * a->height;
        if (bins[b])
            fprintf(file,
                    "<rect class=\"c0 b\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"><title>%.6g "
                    "to %.6g: %d"
                    "</title></rect>\n",
                    a->left + wide * b + 0.5, a->top + a->height - high, fmax(wide - 1, 1), high,
                    x->low + x->step * b, x->low + x->step * (b + 1), bins[b]);
    }
}

/* Bins: the chart's own, or its values' in `bins`. Returns how many; 0: there is nothing to show. */
static int histogram_bins(const histogram_chart *c, svg_scale *x, int bins[BINS_MAX]) {
    if (c->counts) {
        int count = c->bin_count < BINS_MAX ? c->bin_count : BINS_MAX;
        if (count <= 0 || !(c->step > 0)) return 0;
        memcpy(bins, c->counts, (size_t)count * sizeof *bins);
        *x = (svg_scale){c->low, c->low + c->step * count, c->step, 3};
        return count;
    }
    double *sorted = allocate((size_t)(c->count > 0 ? c->count : 1) * sizeof *sorted);
    int n = sort_finite(c, sorted), count = 0;
    if (n) {
        *x = bins_of(sorted, n);
        count = (int)fmin(fmax(round((x->high - x->low) / x->step), 1), BINS_MAX);
    }
    for (int i = 0; i < n; i++) {
        int b = (int)((sorted[i] - x->low) / x->step);
        bins[b < 0 ? 0 : b >= count ? count - 1 : b]++;
    }
    free(sorted);
    return count;
}

static void put_markers(FILE *file, const histogram_chart *c, const chart_area *a, const svg_scale *x,
                        int markers) {
    for (int i = 0; i < markers; i++) {
        double at = a->left + (c->markers[i].value - x->low) / (x->high - x->low) * a->width;
        char look[16];
        snprintf(look, sizeof look, "c%d l d", (i + 1) % SVG_COLORS);
        if (at >= a->left - 1 && at <= a->left + a->width + 1)
            svg_line(file, look, at, a->top, at, a->top + a->height);
    }
}

static double put_histogram(FILE *file, const void *chart) {
    const histogram_chart *c = chart;
    double y = chart_put_head(file, &c->head), width = chart_width(&c->head);
    char names[MARKERS][96], text[SVG_NUMBER];
    chart_key keys[MARKERS];
    int markers = c->marker_count < MARKERS ? c->marker_count : MARKERS, bins[BINS_MAX] = {0}, most = 1;
    for (int i = 0; i < markers; i++) {
        snprintf(names[i], sizeof names[i], "%.40s %s %.20s", c->markers[i].name,
                 svg_number(c->markers[i].value, text), c->unit);
        keys[i] = (chart_key){names[i], i + 1, CHART_DASHED, CHART_SIGN_LINE, c->markers[i].from};
    }
    y = chart_put_legend(file, &c->head, y, keys, markers);
    chart_area a = {CHART_MARGIN + 34, y + 26, width - 2 * CHART_MARGIN - 50, PLOT_HIGH};
    if (!file) return a.top + a.height + 44;
    svg_scale x;
    int count = histogram_bins(c, &x, bins);
    if (!count) {
        svg_text(file, a.left, a.top + 20, a.width, "w", NULL, "no values");
        return a.top + a.height + 44;
    }
    for (int b = 0; b < count; b++) most = bins[b] > most ? bins[b] : most;
    svg_scale up = svg_scale_of(0, most, 4);
    if (up.step < 1) up = (svg_scale){0, most, 1, 0};
    put_histogram_axes(file, c, &a, &x, &up);
    put_histogram_bars(file, &a, &x, &up, bins, count);
    put_markers(file, c, &a, &x, markers);
    return a.top + a.height + 44;
}

void chart_histogram(FILE *file, const histogram_chart *chart) {
    chart_draw(file, &chart->head, put_histogram, chart);
}
