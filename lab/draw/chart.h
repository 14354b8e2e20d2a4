/* Charts as SVG: bars, lines and points over two axes, histograms. Fill a record, call the function; zeros
 * and NULLs are defaults. Texts are any bytes; numbers may be NaN (not there) or infinite; nothing overlaps
 * at any `width` from 320 up. Memory stays the caller's. Write errors stay in `file`: look at ferror.
 *
 *     chart_bar bars[] = {{.label = "all off", .values = {63.1}},
 *                         {.label = "+ fused QKV", .values = {30.1}, .note = "-33.0"}};
 *     chart_bars(file, &(bar_chart){.head = {"Ladder", "π0, batch 1", 0}, .unit = "ms", .bars = bars,
 *                                   .count = 2});
 *
 * A `from` says where a figure comes from ("bench.json:/device/p50_ms"); it becomes the element's data-from.
 * It may be NULL. */
#ifndef CLI_CHART_H
#define CLI_CHART_H

#include <stdio.h>

typedef struct chart_head {
    const char *title;           /* drawn, and the picture's <title>                                      */
    const char *subtitle;        /* drawn below it; may be NULL                                           */
    int width;                   /* pixels; 0: 720. Narrow ones (under 520) put labels above their bars   */
} chart_head;

/* ---- horizontal bars: one value each, stacked parts, or groups ------------------------------------ */

enum { CHART_PARTS = 8 };

typedef struct chart_bar {
    const char *label;
    double values[CHART_PARTS];  /* one a part; NaN: not there; below 0 draws no bar                      */
    const char *froms[CHART_PARTS];
    const char *note;            /* small text after the value; may be NULL                               */
    const char *from;            /* stacked: of the sum                                                   */
    int color;                   /* with one part: the palette's number, 0 … 7                            */
} chart_bar;

typedef struct bar_chart {
    chart_head head;
    const char *unit;            /* the values' unit: "ms"                                                */
    const char *const *parts;    /* legend, part_count of them; NULL: one part without a legend           */
    int part_count;              /* 0 is 1                                                                */
    int grouped;                 /* parts side by side; 0: stacked, the sum at the end                    */
    const chart_bar *bars;
    int count;
} bar_chart;

void chart_bars(FILE *file, const bar_chart *chart);

/* ---- lines and points over two axes, with roofs --------------------------------------------------- */

enum { CHART_SERIES = 24 };      /* further series are left out                                           */

typedef enum chart_axis { CHART_LINEAR, CHART_LOG2, CHART_LOG10 } chart_axis;
typedef enum chart_style { CHART_LINE, CHART_DASHED, CHART_POINTS } chart_style;

typedef struct chart_point {
    double x, y;
    double size;                 /* CHART_POINTS: the area is proportional to it; all 0: equal            */
    const char *tip;             /* what the reader sees on hovering; NULL: "SERIES: x, y"                */
    const char *from;
} chart_point;

typedef struct chart_series {
    const char *name;            /* in the legend                                                         */
    chart_style style;           /* dashed: a reference, such as a published series                       */
    const chart_point *points;   /* points that a logarithmic axis cannot hold are left out               */
    int count;
} chart_series;

typedef struct xy_chart {
    chart_head head;
    const char *x_name, *y_name; /* with units: "batch", "samples/s"                                      */
    chart_axis x, y;             /* a linear axis starts at 0; log2 has a tick at each power of two       */
    const chart_series *series;
    int count;
    double roof_flat;            /* y of a flat roof, "compute"; 0: none                                  */
    double roof_slope;           /* y = slope * x, "memory"; 0: none. Both: a roofline, on CHART_LOG10    */
    const char *roof_name;       /* in the legend: "1979 TFLOP/s, 4.80 TB/s"                              */
    const char *roof_from;
} xy_chart;

void chart_xy(FILE *file, const xy_chart *chart);

/* ---- histogram ------------------------------------------------------------------------------------ */

typedef struct chart_marker {
    const char *name;            /* "p50"                                                                 */
    double value;
    const char *from;
} chart_marker;

typedef struct histogram_chart {
    chart_head head;
    const char *unit;            /* the values' unit                                                      */
    const double *values;        /* in any order; or NULL, and                                            */
    int count;
    const int *counts;           /* what is already in bins: bin_count, each `step` wide, from `low`    */
    int bin_count;
    double low, step;
    const chart_marker *markers; /* dashed lines, named with their value in the legend; at most 6         */
    int marker_count;
} histogram_chart;

void chart_histogram(FILE *file, const histogram_chart *chart);

#endif
