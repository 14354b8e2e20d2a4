/* Lines and points over two axes: batch scaling, roofline.
 *
 * An axis is a list of ticks and a function from value to 0 … 1. Series are named in the legend, never by
 * text at the lines, which would meet. */
#include <math.h>
#include <string.h>

#include "chart_parts.h"

enum { TICKS = 32, PLOT_HIGH = 300 };

typedef struct axis {
    chart_axis kind;
    double low, high; /* shown range, log kinds: > 0                                           */
    double ticks[TICKS];
    int count;
    svg_scale scale; /* scale of a linear axis                                                */
} axis;

/* Numbers that no clock measures are left out, so that no sum or product below overflows. */
static int shown(chart_axis kind, double value) {
    return fabs(value) < 1e100 && (kind == CHART_LINEAR || value > 1e-100);
}

static double place(const axis *a, double value) {
    if (a->kind == CHART_LINEAR) return (value - a->low) / (a->high - a->low);
    return (log(value) - log(a->low)) / (log(a->high) - log(a->low));
}

static void add_tick(axis *a, double value) {
    if (a->count < TICKS && value >= a->low * (1 - 1e-9) && value <= a->high * (1 + 1e-9))
        a->ticks[a->count++] = value;
}

/* low > high: nothing to show. `parts`: how many ticks a linear axis may have. */
static void axis_fit(axis *a, chart_axis kind, double low, double high, int parts) {
    *a = (axis){.kind = kind};
    if (low > high) low = high = 1;
    if (kind == CHART_LINEAR) {
        a->scale = svg_scale_of(fmin(low, 0), fmax(high, 0), parts);
        a->low = a->scale.low;
        a->high = a->scale.high;
        int n = (int)round((a->high - a->low) / a->scale.step);
        for (int i = 0; i <= n && a->count < TICKS; i++) a->ticks[a->count++] = a->low + a->scale.step * i;
        return;
    }
    double base = kind == CHART_LOG2 ? 2 : 10;
    a->low = kind == CHART_LOG2 ? exp2(floor(log2(low) + 1e-9)) : low / 1.3;
    a->high = kind == CHART_LOG2 ? exp2(ceil(log2(high) - 1e-9)) : high * 1.3;
    if (a->high <= a->low * 1.01) {
        a->low /= 2;
        a->high *= 2;
    }
    static const double none[] = {0}, few[] = {2, 5, 0}, many[] = {1.5, 2, 3, 4, 5, 6, 8, 0};
    double decades = (log(a->high) - log(a->low)) / log(base),
           power = pow(base, floor(log(a->low) / log(base) + 1e-9));
    double every = fmax(1, ceil(decades / parts));
    for (; power <= a->high * (1 + 1e-9); power *= pow(base, every)) {
        add_tick(a, power);
        for (const double *more = kind != CHART_LOG10 || decades >= 3 ? none
                                  : decades >= 1.2                    ? few
                                                                      : many;
             *more; more++)
            add_tick(a, power * *more);
    }
}

static const char *tick_text(const axis *a, double value, char text[SVG_NUMBER]) {
    if (a->kind == CHART_LINEAR) return svg_tick(&a->scale, value, text);
    snprintf(text, SVG_NUMBER, value >= 1e6 || value < 1e-4 ? "%.0e" : "%.6g", value);
    return text;
}

typedef struct xy_layout {
    axis x, y;
    chart_area area;
    double size_most;
} xy_layout;

static void xy_fit(const xy_chart *c, xy_layout *l) {
    double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};
    l->size_most = 0;
    for (int s = 0; s < c->count && s < CHART_SERIES; s++)
        for (int i = 0; i < c->series[s].count; i++) {
            const chart_point *p = &c->series[s].points[i];
            if (!shown(c->x, p->x) || !shown(c->y, p->y)) continue;
            low[0] = fmin(low[0], p->x), high[0] = fmax(high[0], p->x);
            low[1] = fmin(low[1], p->y), high[1] = fmax(high[1], p->y);
            if (isfinite(p->size)) l->size_most = fmax(l->size_most, p->size);
        }
    if (c->roof_flat > 0) high[1] = fmax(high[1], c->roof_flat), low[1] = fmin(low[1], c->roof_flat);
    if (c->roof_flat > 0 && c->roof_slope > 0) { /* the ridge is worth seeing */
        low[0] = fmin(low[0], c->roof_flat / c->roof_slope / 2);
        high[0] = fmax(high[0], c->roof_flat / c->roof_slope * 2);
    }
    axis_fit(&l->x, c->x, low[0], high[0], chart_width(&c->head) < 500 ? 5 : 9);
    axis_fit(&l->y, c->y, low[1], high[1], 6);
}

static void put_axes(FILE *file, const xy_chart *c, const xy_layout *l) {
    const chart_area *a = &l->area;
    char text[SVG_NUMBER];
    for (int i = 0; i < l->y.count; i++) {
        double at = a->top + a->height * (1 - place(&l->y, l->y.ticks[i]));
        svg_line(file, "g", a->left, at, a->left + a->width, at);
        svg_text(file, a->left - 6, at + 4, 0, "k e", NULL, tick_text(&l->y, l->y.ticks[i], text));
    }
    double free_from = -1e9;
    for (int i = 0; i < l->x.count; i++) {
        double at = a->left + a->width * place(&l->x, l->x.ticks[i]), half;
        svg_line(file, "g", at, a->top, at, a->top + a->height);
        half = svg_width(tick_text(&l->x, l->x.ticks[i], text), 11) / 2;
        if (at - half < free_from) continue;
        svg_text(file, at, a->top + a->height + 16, 0, "k m", NULL, text);
        free_from = at + half + 4;
    }
    fprintf(file, "<polyline class=\"a\" fill=\"none\" points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>\n", a->left,
            a->top, a->left, a->top + a->height, a->left + a->width, a->top + a->height);
    svg_text(file, a->left + a->width, a->top + a->height + 34, a->width, "k e", NULL, c->x_name);
    svg_text(file, CHART_MARGIN, a->top - 10, a->width, "k", NULL, c->y_name);
}

static double x_of(const xy_layout *l, double x) { return l->area.left + l->area.width * place(&l->x, x); }
static double y_of(const xy_layout *l, double y) {
    return l->area.top + l->area.height * (1 - place(&l->y, y));
}

/* min(flat, slope * x), cut to the area. On logarithmic axes both parts are straight. */
static void put_roof(FILE *file, const xy_chart *c, const xy_layout *l) {
    double low = l->x.low, high = l->x.high, flat = c->roof_flat > 0 ? c->roof_flat : l->y.high;
    if (c->roof_slope <= 0) {
        svg_line(file, "roof", x_of(l, low), y_of(l, flat), x_of(l, high), y_of(l, flat));
        return;
    }
    double start = fmax(low, l->y.low / c->roof_slope), ridge = flat / c->roof_slope;
    ridge = fmin(fmax(ridge, start), high);
    fprintf(file, "<polyline class=\"roof\" points=\"%.1f,%.1f %.1f,%.1f", x_of(l, start),
            y_of(l, fmin(flat, c->roof_slope * start)), x_of(l, ridge),
            y_of(l, fmin(flat, c->roof_slope * ridge)));
    if (c->roof_flat > 0) fprintf(file, " %.1f,%.1f", x_of(l, high), y_of(l, flat));
    fprintf(file, "\"/>\n");
}

static void put_line(FILE *file, const xy_chart *c, const xy_layout *l, int which) {
    const chart_series *s = &c->series[which];
    int n = 0;
    fprintf(file, "<polyline class=\"c%d l%s\" points=\"", which % SVG_COLORS,
            s->style == CHART_DASHED ? " d" : "");
    for (int i = 0; i < s->count; i++)
        if (shown(c->x, s->points[i].x) && shown(c->y, s->points[i].y))
            fprintf(file, "%s%.1f,%.1f", n++ ? " " : "", x_of(l, s->points[i].x), y_of(l, s->points[i].y));
    fprintf(file, "\"/>\n");
}

static void put_points(FILE *file, const xy_chart *c, const xy_layout *l, int which) {
    const chart_series *s = &c->series[which];
    for (int i = 0; i < s->count; i++) {
        const chart_point *p = &s->points[i];
        char tip[200], x[SVG_NUMBER], y[SVG_NUMBER];
        double radius = s->style == CHART_DASHED ? 2.6 : 3.8;
        if (!shown(c->x, p->x) || !shown(c->y, p->y)) continue;
        if (s->style == CHART_POINTS && l->size_most > 0)
            radius = 2.5 + 7.5 * sqrt(isfinite(p->size) && p->size > 0 ? p->size / l->size_most : 0);
        snprintf(tip, sizeof tip, "%.100s: %s, %s", s->name, svg_number(p->x, x), svg_number(p->y, y));
        svg_mark(file, which, x_of(l, p->x), y_of(l, p->y), radius, p->from, p->tip ? p->tip : tip);
    }
}

static double put_xy(FILE *file, const void *chart) {
    const xy_chart *c = chart;
    int count = c->count < CHART_SERIES ? c->count : CHART_SERIES, keys_count = 0;
    chart_key keys[CHART_SERIES + 1];
    double y = chart_put_head(file, &c->head), left = 0;
    char text[SVG_NUMBER];
    xy_layout l;
    for (int s = 0; s < count; s++)
        keys[keys_count++] = (chart_key){c->series[s].name, s, c->series[s].style, CHART_SIGN_MARK, NULL};
    if (c->roof_name && (c->roof_flat > 0 || c->roof_slope > 0))
        keys[keys_count++] = (chart_key){c->roof_name, 0, CHART_LINE, CHART_SIGN_ROOF, c->roof_from};
    y = chart_put_legend(file, &c->head, y, keys, keys_count);
    xy_fit(c, &l);
    for (int i = 0; i < l.y.count; i++) left = fmax(left, svg_width(tick_text(&l.y, l.y.ticks[i], text), 11));
    left += CHART_MARGIN + 8;
    l.area = (chart_area){left, y + 28, chart_width(&c->head) - left - CHART_MARGIN - 8, PLOT_HIGH};
    if (!file) return l.area.top + l.area.height + 46;
    put_axes(file, c, &l);
    if (c->roof_flat > 0 || c->roof_slope > 0) put_roof(file, c, &l);
    for (int s = 0; s < count; s++)
        if (c->series[s].style != CHART_POINTS) put_line(file, c, &l, s);
    for (int s = 0; s < count; s++) put_points(file, c, &l, s);
    return l.area.top + l.area.height + 46;
}

void chart_xy(FILE *file, const xy_chart *chart) { chart_draw(file, &chart->head, put_xy, chart); }
