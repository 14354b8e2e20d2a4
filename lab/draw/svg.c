/* SVG primitives. Note: no font is measured here; svg_width says how wide a text is at most, from four
 * classes of letters, a little above what Helvetica, Arial and DejaVu take, and everything that must not
 * overlap trusts it. */
#include "svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    ".oc{font:12px Helvetica,Arial,sans-serif}.oc text{fill:#222}.oc .h1{font-size:16px;font-weight:600}"
    ".oc .h2{font-weight:600}.oc .w,.oc .k{fill:#555}.oc .k{font-size:11px}.oc .m{text-anchor:middle}"
    ".oc .e{text-anchor:end}.oc .ground{fill:#fff}.oc .g{stroke:#e2e2e2}.oc .a{stroke:#999}.oc "
    ".roof{stroke:#444;fill:none;"
    "stroke-width:1.5}.oc .c0{fill:#0072b2;stroke:#0072b2}.oc .c1{fill:#d55e00;stroke:#d55e00}.oc "
    ".c2{fill:#009e73;"
    "stroke:#009e73}.oc .c3{fill:#cc79a7;stroke:#cc79a7}.oc .c4{fill:#e69f00;stroke:#e69f00}.oc "
    ".c5{fill:#56b4e9;"
    "stroke:#56b4e9}.oc .c6{fill:#6e6e6e;stroke:#6e6e6e}.oc .c7{fill:#7a5195;stroke:#7a5195}.oc "
    ".l.l{fill:none;stroke-width:2;"
    "stroke-linejoin:round}.oc .d{stroke-dasharray:6 4}.oc .b.b{stroke:none}.oc .p{fill-opacity:.7}"
    ".oc .i0,.oc .i1,.oc .i6,.oc .i7{fill:#fff}.oc .i2,.oc .i3,.oc .i4,.oc .i5{fill:#111}"
    "@media screen and (prefers-color-scheme:dark){.oc text{fill:#e6e6e6}.oc .w,.oc .k{fill:#b0b0b0}.oc "
    ".ground{fill:#16181c}"
    ".oc .g{stroke:#33373d}.oc .a{stroke:#777}.oc .roof{stroke:#ccc}.oc .c0{fill:#3f9bd8;stroke:#3f9bd8}"
    ".oc .c6{fill:#a0a0a0;stroke:#a0a0a0}.oc .c7{fill:#b088cf;stroke:#b088cf}"
    ".oc .i0,.oc .i1,.oc .i2,.oc .i3,.oc .i4,.oc .i5,.oc .i6,.oc .i7{fill:#111}}";

void svg_open(FILE *file, int width, int height, const char *title, const char *about) {
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"oc\" width=\"%d\" height=\"%d\" viewBox=\"0 0 "
            "%d %d\" "
            "role=\"img\">\n<title>",
            width, height, width, height);
    svg_escape(file, title, 200);
    fprintf(file, "</title>\n");
    if (about) {
        fprintf(file, "<desc>");
        svg_escape(file, about, 1000);
        fprintf(file, "</desc>\n");
    }
    fprintf(file, "<style>%s</style>\n<rect class=\"ground\" width=\"%d\" height=\"%d\"/>\n", style, width,
            height);
}

void svg_close(FILE *file) { fprintf(file, "</svg>\n"); }

/* ---- text ----------------------------------------------------------------------------------------- */

/* Bytes of the character at `s`; 0 where it is not UTF-8 that XML allows. */
static int character(const unsigned char *s) {
    int more = *s < 0x80                  ? 0
               : *s >= 0xc2 && *s <= 0xdf ? 1
               : (*s & 0xf0) == 0xe0      ? 2
               : *s >= 0xf0 && *s <= 0xf4 ? 3
                                          : -1;
    for (int i = 1; i <= more; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (more == 2 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
                      (s[0] == 0xef && s[1] == 0xbf && s[2] > 0xbd))) return 0;
    if (more == 3 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))) return 0;
    return more + 1;
}

static const char *put_character(FILE *file, const char *text) {
    int bytes = character((const unsigned char *)text);
    if (!bytes) fputs("\xef\xbf\xbd", file);
    else if (*text == '&') fputs("&amp;", file);
    else if (*text == '<') fputs("&lt;", file);
    else if (*text == '>') fputs("&gt;", file);
    else if (*text == '"') fputs("&quot;", file);
    else if ((unsigned char)*text < 0x20 || *text == 0x7f) fputc(' ', file);
    else fwrite(text, 1, (size_t)bytes, file);
    return text + (bytes ? bytes : 1);
}

void svg_escape(FILE *file, const char *text, int limit) {
    while (*text && limit--) text = put_character(file, text);
    if (*text) fputs("…", file);
}

static double letter_width(const char *s, double size) {
    unsigned char c = (unsigned char)*s;
    if (c >= 0x80) return size * (c >= 0xe3 && !(c == 0xef && (unsigned char)s[1] == 0xbf) ? 1.05 : 0.72);
    if (strchr("iljtfrI.,:;'|!()[] -/", c)) return size * 0.4;
    if (strchr("mwMW%@", c)) return size * 0.95;
    return size * (c >= 'A' && c <= 'Z' ? 0.74 : 0.6);
}

static const char *next_letter(const char *s) {
    int bytes = character((const unsigned char *)s);
    return s + (bytes ? bytes : 1);
}

double svg_width(const char *text, double size) {
    double width = 0;
    for (; *text; text = next_letter(text)) width += letter_width(text, size);
    return width;
}

static double look_size(const char *look) {
    return strstr(look, "h1") ? 17 : strstr(look, "k") ? 11 : strstr(look, "h2") ? 12.5 : 12;
}

/* "<text …>", before the text itself. */
static void open_text(FILE *file, double x, double y, const char *look, const char *from) {
    fprintf(file, "<text x=\"%.1f\" y=\"%.1f\"", x, y);
    if (*look) fprintf(file, " class=\"%s\"", look);
    if (from) {
        fprintf(file, " data-from=\"");
        svg_escape(file, from, 1000);
        fputc('"', file);
    }
    fputc('>', file);
}

void svg_text(FILE *file, double x, double y, double limit, const char *look, const char *from,
              const char *text) {
    double size = look_size(look), used = 0;
    int cut = limit > 0 && svg_width(text, size) > limit;
    open_text(file, x, y, look, from);
    while (*text && (!cut || (used += letter_width(text, size)) <= limit - size))
        text = put_character(file, text);
    if (*text) fputs("…", file);
    fprintf(file, "</text>\n");
}

double svg_block(FILE *file, double x, double y, double limit, const char *look, const char *text) {
    double size = look_size(look), step = size + 4, height = 0;
    while (*text) {
        const char *end = text, *space = NULL;
        double used = 0;
        for (; *end && (used += letter_width(end, size)) <= limit; end = next_letter(end))
            if (*end == ' ') space = end;
        if (*end && *end != ' ' && space) end = space;      /* a word longer than the line is cut in two */
        if (end == text) end = next_letter(text);
        if (file) {
            open_text(file, x, y + height, look, NULL);
            for (const char *s = text; s < end;) s = put_character(file, s);
            fprintf(file, "</text>\n");
        }
        height += step;
        for (text = end; *text == ' ';) text++;
    }
    return height;
}

const char *svg_number(double value, char text[SVG_NUMBER]) {
    double size = fabs(value);
    int decimals = 0;
    if (!isfinite(value)) return strcpy(text, "n/a");
    for (double edge = 99.95; size != 0 && size < edge && decimals < 5; edge /= 10) decimals++;
    if (size != 0 && (size >= 1e7 || size < 1e-3)) snprintf(text, SVG_NUMBER, "%.3g", value);
    else snprintf(text, SVG_NUMBER, "%.*f", decimals, value);
    return text;
}

/* ---- marks ---------------------------------------------------------------------------------------- */

/* Corners around (0, 0) with the area of a circle of radius 1, about; the first shape is that circle. */
static const struct {
    int corners;
    double at[8][2];
} shapes[SVG_COLORS] = {
    {0, {{0}}},
    {4, {{-.9, -.9}, {.9, -.9}, {.9, .9}, {-.9, .9}}},
    {3, {{0, -1.3}, {1.2, .9}, {-1.2, .9}}},
    {4, {{0, -1.3}, {1.3, 0}, {0, 1.3}, {-1.3, 0}}},
    {3, {{0, 1.3}, {1.2, -.9}, {-1.2, -.9}}},
    {6, {{-1.1, 0}, {-.55, -.95}, {.55, -.95}, {1.1, 0}, {.55, .95}, {-.55, .95}}},
    {4, {{-1.2, -.6}, {1.2, -.6}, {1.2, .6}, {-1.2, .6}}},
    {4, {{-.6, -1.2}, {.6, -1.2}, {.6, 1.2}, {-.6, 1.2}}},
};

void svg_line(FILE *file, const char *look, double x1, double y1, double x2, double y2) {
    fprintf(file, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", look, x1, y1, x2,
            y2);
}

void svg_mark(FILE *file, int series, double x, double y, double radius, const char *from, const char *tip) {
    int color = series % SVG_COLORS, shape = (series + series / SVG_COLORS) % SVG_COLORS,
        corners = shapes[shape].corners;
    if (!corners) {
        fprintf(file, "<circle class=\"c%d p\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"", color, x, y, radius);
    } else {
        fprintf(file, "<polygon class=\"c%d p\" points=\"", color);
        for (int i = 0; i < corners; i++)
            fprintf(file, "%s%.1f,%.1f", i ? " " : "", x + radius * shapes[shape].at[i][0],
                    y + radius * shapes[shape].at[i][1]);
        fputc('"', file);
    }
    if (from) {
        fprintf(file, " data-from=\"");
        svg_escape(file, from, 1000);
        fputc('"', file);
    }
    if (tip) {
        fprintf(file, "><title>");
        svg_escape(file, tip, 300);
        fprintf(file, "</title></%s>\n", corners ? "polygon" : "circle");
    } else {
        fprintf(file, "/>\n");
    }
}

/* ---- axes ----------------------------------------------------------------------------------------- */

double svg_step(double span, int parts) {
    double raw = span / parts, power = pow(10, floor(log10(raw)));
    static const double steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (steps[i] * power >= raw * (1 - 1e-9)) return steps[i] * power;
    return 10 * power;
}

svg_scale svg_scale_of(double low, double high, int parts) {
    double least = fmax(fmax(fabs(low), fabs(high)) * 1e-3, 1e-6);
    if (high - low < least) {
        low -= least;
        high += least;
    }
    svg_scale s;
    s.step = svg_step(high - low, parts);
    s.low = floor(low / s.step + 1e-9) * s.step;
    s.high = ceil(high / s.step - 1e-9) * s.step;
    s.decimals = s.step >= 1 ? 0 : (int)ceil(-log10(s.step) - 1e-9);
    return s;
}

const char *svg_tick(const svg_scale *s, double value, char text[SVG_NUMBER]) {
    if (fabs(value) < s->step * 1e-6) value = 0;
    if (s->decimals > 4 || fabs(value) >= 1e6) snprintf(text, SVG_NUMBER, "%.3g", value);
    else snprintf(text, SVG_NUMBER, "%.*f", s->decimals, value);
    return text;
}
