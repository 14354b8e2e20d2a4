/* SVG by hand: what every picture shares. Text that stays inside its space and is safe in XML, round axes,
 * one palette.
 *
 * A picture is plain SVG: no script, font or link, one small style sheet inside it (dark on light, light on
 * dark where the reader prefers that), so that it reads the same in a page, a README and rsvg-convert. It
 * starts without an XML declaration: it may stand in HTML as it is. Texts are any bytes. Write errors stay in
 * `file`. */
#ifndef CLI_SVG_H
#define CLI_SVG_H

#include <stdio.h>

/* Colours c0 … c7 can be distinguished with every kind of colour vision; a series beyond them starts again
 * with another mark. */
enum { SVG_COLORS = 8 };

/* `title` and `about` are read out, not drawn; `about` may be NULL. */
void svg_open(FILE *file, int width, int height, const char *title, const char *about);
void svg_close(FILE *file);

/* Escaped for XML and HTML: markup, control characters and bytes that are not UTF-8; at most `limit`
 * characters, then "…". */
void svg_escape(FILE *file, const char *text, int limit);
/* How wide `text` is at most, in a usual sans serif of `size` pixels. */
double svg_width(const char *text, double size);
/* One line at (x, y), cut to `limit` pixels with "…" (0: never cut). `look` is a list of classes:
 * h1 h2 heading, w subtitle, k axis labels; m middle, e end; i0 … i7 on top of that colour. `from` may be
 * NULL: data-from. */
void svg_text(FILE *file, double x, double y, double limit, const char *look, const char *from,
              const char *text);
/* As many lines as `text` needs, the first with its foot at y; returns their height. A NULL file only
 * measures. */
double svg_block(FILE *file, double x, double y, double limit, const char *look, const char *text);
/* `look`: g grid, a axis, roof, or "c0 l" of a series ("c0 l d": dashed). */
void svg_line(FILE *file, const char *look, double x1, double y1, double x2, double y2);
/* A mark of 8 shapes at (x, y): circle, square, triangle, diamond … */
void svg_mark(FILE *file, int series, double x, double y, double radius, const char *from, const char *tip);

/* Three digits that matter: 0.0123, 1.23, 12.3, 123; more before the point. "n/a" where it is not
 * finite. */
enum { SVG_NUMBER = 32 };
const char *svg_number(double value, char text[SVG_NUMBER]);

/* A linear axis with round limits around [low, high]; a constant still gets a span. */
typedef struct svg_scale {
    double low, high, step;
    int decimals;
} svg_scale;
svg_scale svg_scale_of(double low, double high, int parts);
/* The smallest of 1, 2, 5 · 10^k that cuts `span` into at most `parts`. */
double svg_step(double span, int parts);
/* A value of the axis, with as many decimals as its steps need. */
const char *svg_tick(const svg_scale *scale, double value, char text[SVG_NUMBER]);

#endif
