/* The plot of a chunk: small multiples with a few round numbers on their axes. */
#include "plot.h"

#include <math.h>
#include <string.h>

#include "svg.h"

enum {
    PANEL_W = 248,
    PANEL_H = 144,
    LEFT = 54,
    RIGHT = 14,
    TOP = 36,                    /* a line for the name, one for the unit */
    BOTTOM = 24,
    FOOT = 30,
    MARGIN = 12,
    TICKS = 6
};

/* Is there a dot for where action `d` starts? */
static int starts_at(const action_plot *p, int d) { return p->starts && isfinite(p->starts[d]); }

/* Round limits around column `d` and all others of its unit. */
static svg_scale scale_of(const action_plot *p, int d) {
    double low = p->actions[d], high = low;
    for (int other = 0; other < p->dims; other++) {
        if (other != d && (!*p->units[d] || strcmp(p->units[other], p->units[d]))) continue;
        for (int i = 0; i < p->horizon; i++) {
            low = fmin(low, p->actions[i * p->dims + other]);
            high = fmax(high, p->actions[i * p->dims + other]);
        }
        if (!starts_at(p, other)) continue;
        low = fmin(low, p->starts[other]);
        high = fmax(high, p->starts[other]);
    }
    return svg_scale_of(low, high, 3);
}

/* Round numbers of seconds or steps under a panel; `across` pixels between two steps. */
static void put_times(FILE *file, const action_plot *p, double left, double width, double across, double y) {
    char text[SVG_NUMBER];
    double scale = p->rate_hz > 0 ? 1 / p->rate_hz : 1, last = (p->horizon - 1) * scale;
    if (p->horizon < 2) {
        svg_text(file, left + width / 2, y, 0, "k m", NULL, "0");
        return;
    }
    svg_scale s = svg_scale_of(0, last, TICKS);
    if (p->rate_hz <= 0 && s.step < 1) s.step = 1, s.decimals = 0;
    for (int i = 0; s.step * i <= last * (1 + 1e-9); i++)
        svg_text(file, left + across * s.step * i / scale, y, 0, "k m", NULL, svg_tick(&s, s.step * i, text));
}

static void put_panel(FILE *file, const action_plot *p, int d, double x0, double y0) {
    double width = PANEL_W - LEFT - RIGHT, height = PANEL_H - TOP - BOTTOM;
    double left = x0 + LEFT, top = y0 + TOP;
    int horizon = p->horizon, dims = p->dims;
    svg_scale s = scale_of(p, d);
    double across = horizon > 1 ? width / (horizon - 1) : 0, up = height / (s.high - s.low);
    char text[SVG_NUMBER], number[32];
    snprintf(number, sizeof number, "action %d", d);
    svg_text(file, x0 + 8, y0 + 14, PANEL_W - 8, "h2", NULL, *p->names[d] ? p->names[d] : number);
    if (*p->units[d]) svg_text(file, x0 + 8, y0 + 28, PANEL_W - 8, "k", NULL, p->units[d]);
    for (int i = 0; i < 16; i++) {
        double value = s.low + s.step * i, y = top + height - (value - s.low) * up;
        if (value > s.high + s.step * 0.01) break;
        svg_line(file, fabs(value) < s.step * 1e-6 ? "a" : "g", left, y, left + width, y);
        svg_text(file, left - 6, y + 3.5, 0, "k e", NULL, svg_tick(&s, value, text));
    }
    put_times(file, p, left, width, across, top + height + 15);
    if (horizon > 1) {
        fprintf(file, "<polyline class=\"c0 l\" points=\"");
        for (int i = 0; i < horizon; i++)
            fprintf(file, "%s%.2f,%.2f", i ? " " : "", left + across * i,
                    top + height - (p->actions[i * dims + d] - s.low) * up);
        fprintf(file, "\"/>\n");
    }
    for (int i = 0; i < horizon && horizon <= 24; i++)
        fprintf(file, "<circle class=\"c0 b\" cx=\"%.2f\" cy=\"%.2f\" r=\"1.9\"/>",
                horizon > 1 ? left + across * i : left + width / 2,
                top + height - (p->actions[i * dims + d] - s.low) * up);
    if (starts_at(p, d))
        fprintf(file,
                "<circle class=\"c1 b\" cx=\"%.2f\" cy=\"%.2f\" r=\"4\"><title>the state: "
                "%.6g</title></circle>",
                horizon > 1 ? left : left + width / 2, top + height - (p->starts[d] - s.low) * up,
                p->starts[d]);
    fputc('\n', file);
}

/* What the axis counts, and what a dot is where there are any. */
static void put_foot(FILE *file, const action_plot *p, double x, double y) {
    int dots = 0;
    for (int d = 0; d < p->dims; d++) dots |= starts_at(p, d);
    svg_text(file, x, y, 0, "k m", NULL, p->rate_hz > 0 ? "seconds" : "step of the chunk");
    if (!dots) return;
    fprintf(file, "<circle class=\"c1 b\" cx=\"%d\" cy=\"%.1f\" r=\"4\"/>", MARGIN + 12, y - 4);
    svg_text(file, MARGIN + 20, y, 0, "k", NULL, "the state");
}

void plot_actions(FILE *file, const action_plot *p) {
    int across = p->dims <= 3 ? p->dims : 4, down = (p->dims + across - 1) / across;
    int width = 2 * MARGIN + (across < 2 ? 2 : across) * PANEL_W, space = width - 2 * MARGIN - 16;
    double head = 27 + svg_block(NULL, 0, 0, space, "h1", p->title);
    int top = (int)(head + svg_block(NULL, 0, 0, space, "w", p->subtitle)),
        height = top + down * PANEL_H + FOOT;
    svg_open(file, width, height, p->title, p->subtitle);
    svg_block(file, MARGIN + 8, 27, space, "h1", p->title);
    svg_block(file, MARGIN + 8, head - 2, space, "w", p->subtitle);
    for (int d = 0; d < p->dims; d++)
        put_panel(file, p, d, MARGIN + (double)(d % across) * PANEL_W, top + (double)(d / across) * PANEL_H);
    put_foot(file, p, width / 2.0, height - 11);
    svg_close(file);
}
