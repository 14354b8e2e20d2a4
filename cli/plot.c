/* The plot of a chunk: small multiples, each with its own scale and a few round numbers on it.
 *
 * Plain SVG without scripts, fonts or links, on its own white ground, so that it reads the same in a README, a browser and
 * rsvg-convert. */
#include "plot.h"

#include <math.h>
#include <string.h>

enum { PANEL_W = 232, PANEL_H = 132, LEFT = 50, RIGHT = 14, TOP = 24, BOTTOM = 24, HEAD = 62, FOOT = 30, MARGIN = 12, TICKS = 6 };

/* Text for XML: markup escaped, control characters dropped, bytes that are not UTF-8 replaced. At most `limit` characters. */
static void put_text(FILE *file, const char *text, int limit) {
    const unsigned char *s = (const unsigned char *)text;
    while (*s && limit--) {
        int more = *s < 0x80 ? 0 : *s >= 0xc2 && *s <= 0xdf ? 1 : (*s & 0xf0) == 0xe0 ? 2 : *s >= 0xf0 && *s <= 0xf4 ? 3 : -1;
        int whole = more >= 0;
        for (int i = 1; i <= more && whole; i++) whole = (s[i] & 0xc0) == 0x80;
        if (whole && more == 2)
            whole = !(s[0] == 0xe0 && s[1] < 0xa0) && !(s[0] == 0xed && s[1] > 0x9f) &&
                    !(s[0] == 0xef && s[1] == 0xbf && s[2] > 0xbd);
        if (whole && more == 3) whole = !(s[0] == 0xf0 && s[1] < 0x90) && !(s[0] == 0xf4 && s[1] > 0x8f);
        if (!whole) {
            fputs("\xef\xbf\xbd", file);
            s++;
            continue;
        }
        if (*s == '&') fputs("&amp;", file);
        else if (*s == '<') fputs("&lt;", file);
        else if (*s == '>') fputs("&gt;", file);
        else if (*s == '"') fputs("&quot;", file);
        else if (*s < 0x20 || *s == 0x7f) fputc(' ', file);
        else fwrite(s, 1, (size_t)more + 1, file);
        s += more + 1;
    }
    if (*s) fputs("…", file);
}

/* The smallest of 1, 2, 5 · 10^k that cuts `span` into at most `parts`. */
static double round_step(double span, int parts) {
    double raw = span / parts, power = pow(10, floor(log10(raw)));
    static const double steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (steps[i] * power >= raw * (1 - 1e-9)) return steps[i] * power;
    return 10 * power;
}

typedef struct scale {
    double low, high, step;
    int decimals;
} scale;

/* Round limits around column `d`. A constant column still gets a span. */
static scale scale_of(const double *actions, int horizon, int dims, int d) {
    double low = actions[d], high = actions[d];
    for (int i = 1; i < horizon; i++) {
        low = fmin(low, actions[i * dims + d]);
        high = fmax(high, actions[i * dims + d]);
    }
    double least = fmax(fabs(low), fabs(high)) * 1e-3;
    if (least < 1e-6) least = 1e-6;
    if (high - low < least) {
        low -= least;
        high += least;
    }
    scale s;
    s.step = round_step(high - low, 3);
    s.low = floor(low / s.step + 1e-9) * s.step;
    s.high = ceil(high / s.step - 1e-9) * s.step;
    s.decimals = s.step >= 1 ? 0 : (int)ceil(-log10(s.step) - 1e-9);
    return s;
}

static void put_panel(FILE *file, const double *actions, int horizon, int dims, int d, double x0, double y0) {
    double width = PANEL_W - LEFT - RIGHT, height = PANEL_H - TOP - BOTTOM;
    double left = x0 + LEFT, top = y0 + TOP;
    scale s = scale_of(actions, horizon, dims, d);
    double across = horizon > 1 ? width / (horizon - 1) : 0, up = height / (s.high - s.low);
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" font-weight=\"600\" fill=\"#222\">action %d</text>\n", left, y0 + 15, d);
    for (int i = 0; i < 16; i++) {
        double value = s.low + s.step * i, y = top + height - (value - s.low) * up;
        if (value > s.high + s.step * 0.01) break;
        int zero = fabs(value) < s.step * 1e-6;
        fprintf(file, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>", left, y, left + width, y,
                zero ? "#999" : "#e2e2e2");
        fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" fill=\"#555\">", left - 6, y + 3.5);
        if (s.decimals > 4 || fabs(value) >= 1e6) fprintf(file, "%.3g</text>\n", zero ? 0 : value);
        else fprintf(file, "%.*f</text>\n", s.decimals, zero ? 0 : value);
    }
    int every = horizon > 1 ? (int)fmax(1, round_step(horizon - 1, TICKS)) : 1;
    for (int i = 0; i < horizon; i += every)
        fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#555\">%d</text>\n",
                horizon > 1 ? left + across * i : left + width / 2, top + height + 15, i);
    if (horizon > 1) {
        fprintf(file, "<polyline fill=\"none\" stroke=\"#1f6fb4\" stroke-width=\"1.6\" stroke-linejoin=\"round\" points=\"");
        for (int i = 0; i < horizon; i++)
            fprintf(file, "%s%.2f,%.2f", i ? " " : "", left + across * i, top + height - (actions[i * dims + d] - s.low) * up);
        fprintf(file, "\"/>\n");
    }
    for (int i = 0; i < horizon && horizon <= 24; i++)
        fprintf(file, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"1.9\" fill=\"#1f6fb4\"/>",
                horizon > 1 ? left + across * i : left + width / 2, top + height - (actions[i * dims + d] - s.low) * up);
    fputc('\n', file);
}

void plot_actions(FILE *file, const double *actions, int horizon, int dims, const char *title, const char *subtitle) {
    int across = dims <= 3 ? dims : 4, down = (dims + across - 1) / across;
    int width = 2 * MARGIN + (across < 2 ? 2 : across) * PANEL_W, height = HEAD + down * PANEL_H + FOOT;
    fprintf(file, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" "
                  "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"10\">\n", width, height, width, height);
    fprintf(file, "<title>");
    put_text(file, title, 200);
    fprintf(file, "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n", width, height);
    fprintf(file, "<text x=\"%d\" y=\"27\" font-size=\"16\" font-weight=\"600\" fill=\"#222\">", MARGIN + 8);
    put_text(file, title, width / 9);
    fprintf(file, "</text>\n<text x=\"%d\" y=\"46\" font-size=\"11\" fill=\"#555\">", MARGIN + 8);
    put_text(file, subtitle, width / 6);
    fprintf(file, "</text>\n");
    for (int d = 0; d < dims; d++)
        put_panel(file, actions, horizon, dims, d, MARGIN + (double)(d % across) * PANEL_W,
                  HEAD + (double)(d / across) * PANEL_H);
    fprintf(file,
            "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" font-size=\"11\" fill=\"#555\">step of the chunk</text>\n</svg>\n",
            width / 2.0, height - 11);
}
