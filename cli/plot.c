/* The plot of a chunk: small multiples, each with its own scale and a few round numbers on it. */
#include "plot.h"

#include <math.h>

#include "svg.h"

enum { PANEL_W = 232, PANEL_H = 132, LEFT = 54, RIGHT = 14, TOP = 24, BOTTOM = 24, FOOT = 30, MARGIN = 12, TICKS = 6 };

/* Round limits around column `d`. */
static svg_scale scale_of(const double *actions, int horizon, int dims, int d) {
    double low = actions[d], high = actions[d];
    for (int i = 1; i < horizon; i++) {
        low = fmin(low, actions[i * dims + d]);
        high = fmax(high, actions[i * dims + d]);
    }
    return svg_scale_of(low, high, 3);
}

static void put_panel(FILE *file, const double *actions, int horizon, int dims, int d, double x0, double y0) {
    double width = PANEL_W - LEFT - RIGHT, height = PANEL_H - TOP - BOTTOM;
    double left = x0 + LEFT, top = y0 + TOP;
    svg_scale s = scale_of(actions, horizon, dims, d);
    double across = horizon > 1 ? width / (horizon - 1) : 0, up = height / (s.high - s.low);
    char text[SVG_NUMBER];
    snprintf(text, sizeof text, "action %d", d);
    svg_text(file, left, y0 + 15, 0, "h2", NULL, text);
    for (int i = 0; i < 16; i++) {
        double value = s.low + s.step * i, y = top + height - (value - s.low) * up;
        if (value > s.high + s.step * 0.01) break;
        svg_line(file, fabs(value) < s.step * 1e-6 ? "a" : "g", left, y, left + width, y);
        svg_text(file, left - 6, y + 3.5, 0, "k e", NULL, svg_tick(&s, value, text));
    }
    int every = horizon > 1 ? (int)fmax(1, svg_step(horizon - 1, TICKS)) : 1;
    for (int i = 0; i < horizon; i += every) {
        snprintf(text, sizeof text, "%d", i);
        svg_text(file, horizon > 1 ? left + across * i : left + width / 2, top + height + 15, 0, "k m", NULL, text);
    }
    if (horizon > 1) {
        fprintf(file, "<polyline class=\"c0 l\" points=\"");
        for (int i = 0; i < horizon; i++)
            fprintf(file, "%s%.2f,%.2f", i ? " " : "", left + across * i, top + height - (actions[i * dims + d] - s.low) * up);
        fprintf(file, "\"/>\n");
    }
    for (int i = 0; i < horizon && horizon <= 24; i++)
        fprintf(file, "<circle class=\"c0 b\" cx=\"%.2f\" cy=\"%.2f\" r=\"1.9\"/>",
                horizon > 1 ? left + across * i : left + width / 2, top + height - (actions[i * dims + d] - s.low) * up);
    fputc('\n', file);
}

void plot_actions(FILE *file, const double *actions, int horizon, int dims, const char *title, const char *subtitle) {
    int across = dims <= 3 ? dims : 4, down = (dims + across - 1) / across;
    int width = 2 * MARGIN + (across < 2 ? 2 : across) * PANEL_W, room = width - 2 * MARGIN - 16;
    double head = 27 + svg_block(NULL, 0, 0, room, "h1", title);
    int top = (int)(head + svg_block(NULL, 0, 0, room, "w", subtitle)), height = top + down * PANEL_H + FOOT;
    svg_open(file, width, height, title, subtitle);
    svg_block(file, MARGIN + 8, 27, room, "h1", title);
    svg_block(file, MARGIN + 8, head - 2, room, "w", subtitle);
    for (int d = 0; d < dims; d++)
        put_panel(file, actions, horizon, dims, d, MARGIN + (double)(d % across) * PANEL_W, top + (double)(d / across) * PANEL_H);
    svg_text(file, width / 2.0, height - 11, 0, "k m", NULL, "step of the chunk");
    svg_close(file);
}
