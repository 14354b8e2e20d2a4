/* labels: links=cli */
/* Charts: what is drawn has the size of its number, nothing overlaps, everything is well-formed whatever goes
 * in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/draw/chart.h"
#include "cli/cli.h"
#include "lab/draw/svg.h"

/* The one thing that charts need of the command. */
void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

static char *svg;

static char *drawn(void (*draw)(FILE *file, const void *chart), const void *chart) {
    size_t bytes;
    free(svg);
    FILE *file = open_memstream(&svg, &bytes);
    assert_non_null(file);
    draw(file, chart);
    fclose(file);
    assert_int_equal(strlen(svg), bytes);
    return svg;
}

static void draw_bars(FILE *file, const void *chart) { chart_bars(file, chart); }
static void draw_xy(FILE *file, const void *chart) { chart_xy(file, chart); }
static void draw_histogram(FILE *file, const void *chart) { chart_histogram(file, chart); }

/* ---- reading -------------------------------------------------------------------------------------- */

static double number_of(const char *tag, const char *name) {
    char start[24];
    const char *end = strchr(tag, '>'), *at;
    snprintf(start, sizeof start, " %s=\"", name);
    at = strstr(tag, start);
    if (!at || at > end) fail_msg("no %s in %.60s", name, tag);
    return strtod(at + strlen(start), NULL);
}

typedef struct text_box {
    double left, right, top, bottom;
    char words[200];
} text_box;

static double look_size(const char *look) { return strstr(look, "h1") ? 16 : strchr(look, 'k') ? 11 : 12; }

/* Where a text stands, by its classes. */
static text_box box_of(const char *tag) {
    const char *close = strchr(tag, '>'), *end = strstr(tag, "</text>"), *class = strstr(tag, "class=\"");
    char look[40] = "";
    text_box b;
    size_t n = 0;
    if (class && class < close) sscanf(class + 7, "%39[^\"]", look);
    for (const char *at = close + 1; at < end && n < sizeof b.words - 1; at++) {
        b.words[n++] = *at == '&' ? '&' : *at;
        if (*at == '&') at = strchr(at, ';');
    }
    b.words[n] = 0;
    double x = number_of(tag, "x"), y = number_of(tag, "y"), size = look_size(look),
           width = svg_width(b.words, size) * 0.9;
    b.left = strstr(look, "e") && !strstr(look, "h") ? x - width : strchr(look, 'm') ? x - width / 2 : x;
    b.right = b.left + width;
    b.top = y - size * 0.75;
    b.bottom = y + size * 0.2;
    return b;
}

/* No two texts meet, and none leaves the picture. */
static void check_texts(const char *picture) {
    static text_box boxes[400];
    int count = 0;
    double width = number_of(picture, "width"), height = number_of(picture, "height");
    for (const char *at = strstr(picture, "<text "); at; at = strstr(at + 1, "<text ")) {
        text_box b = box_of(at);
        if (b.left < -1 || b.right > width + 1 || b.top < 0 || b.bottom > height)
            fail_msg("\"%s\" leaves the picture: %g to %g of %g", b.words, b.left, b.right, width);
        for (int i = 0; i < count; i++)
            if (b.left < boxes[i].right && boxes[i].left < b.right && b.top < boxes[i].bottom &&
                boxes[i].top < b.bottom)
                fail_msg("\"%s\" and \"%s\" overlap", b.words, boxes[i].words);
        assert_true(count < 400);
        boxes[count++] = b;
    }
}

/* Tags nest, attributes are quoted, text is escaped, nothing is not a number. */
static void check_form(const char *text) {
    const char *stack[16];
    size_t lengths[16];
    int depth = 0;
    for (const char *at = text; *at; at++) {
        if ((unsigned char)*at < 0x20 && *at != '\n') fail_msg("a control character");
        if (*at == '&' && strncmp(at, "&amp;", 5) && strncmp(at, "&lt;", 4) && strncmp(at, "&gt;", 4) &&
            strncmp(at, "&quot;", 6))
            fail_msg("a bare &: %.30s", at);
        if (*at != '<') continue;
        const char *name = at + 1, *end = strchr(at, '>');
        assert_non_null(end);
        if (*name == '/') {
            assert_true(depth > 0 && !strncmp(stack[depth - 1], name + 1, lengths[depth - 1]));
            depth--;
        } else if (end[-1] != '/') {
            assert_true(depth < 16);
            stack[depth] = name;
            lengths[depth++] = strcspn(name, " >");
        }
        at = end;
    }
    assert_int_equal(depth, 0);
    static const char *const wrong[] = {"=\"nan", "=\"-nan", "=\"inf", "=\"-inf",
                                        "nan,",   ",nan",    "inf,",   ",inf"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *at = strstr(text, wrong[i]);
        if (at) fail_msg("not a number: %.120s", at);
    }
}

static void check(const char *picture) {
    check_form(picture);
    check_texts(picture);
}

/* ---- bars ----------------------------------------------------------------------------------------- */

static const int widths[] = {320, 360, 640, 720, 1080};

static void test_bars(void **state) {
    (void)state;
    static const double values[] = {63.1, 44.42, 30.1, 0.001, 23.7};
    static const char *const labels[] = {"all off", "+ batched vision",
                                         "+ a switch whose name is far longer than any label should be", "",
                                         "+ graph replay"};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        chart_bar bars[5];
        for (int i = 0; i < 5; i++)
            bars[i] =
                (chart_bar){.label = labels[i], .values = {values[i]}, .froms = {"1:/a"}, .note = "-18.7 ms"};
        bar_chart chart = {
            .head = {"Ladder", "π0, batch 1, and much more to be said of it than fits into a narrow line",
                     widths[w]},
            .unit = "ms",
            .bars = bars,
            .count = 5};
        check(drawn(draw_bars, &chart));
        double unit = 0;
        int i = 0;
        for (const char *at = strstr(svg, " b\""); at; at = strstr(at + 1, " b\""), i++) {
            double long_is = number_of(at, "width");
            if (!i) unit = long_is / values[0];
            if (fabs(long_is - unit * values[i]) > 0.02)
                fail_msg("bar %d is %g long, expected %g", i, long_is, unit * values[i]);
        }
        assert_int_equal(i, 5);
    }
}

static void test_parts(void **state) {
    (void)state;
    static const char *const parts[] = {"vision", "prefill", "denoise", "a part with rather a long name",
                                        "other"};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int grouped = 0; grouped < 2; grouped++) {
            chart_bar bars[] = {
                {.label = "one", .values = {3.1, 7.2, 8.3, 0.01, NAN}, .from = "sum", .froms = {"a", "b", "c", "d", "e"}},
                {.label = "two of them", .values = {4.1, 10.7, 11.2, -1, INFINITY}, .note = "note"},
                {.label = "nothing", .values = {NAN, NAN, NAN, NAN, NAN}}};
            bar_chart chart = {.head = {"Stages", "", widths[w]},
                               .unit = "ms",
                               .parts = parts,
                               .part_count = 5,
                               .grouped = grouped,
                               .bars = bars,
                               .count = 3};
            check(drawn(draw_bars, &chart));
            assert_non_null(strstr(svg, grouped ? ">7.20<" : ">18.6<"));
            assert_non_null(strstr(svg, ">n/a<"));
        }
}

/* ---- axes ----------------------------------------------------------------------------------------- */

static void test_lines(void **state) {
    (void)state;
    static const double batches[] = {1, 2, 4, 8, 16, 32, 64};
    chart_point points[2][7];
    for (int i = 0; i < 7; i++) {
        points[0][i] = (chart_point){.x = batches[i], .y = 40 + 20 * i, .from = "1:/x"};
        points[1][i] = (chart_point){.x = batches[i], .y = 30 + 10 * i};
    }
    chart_series series[] = {{"ours, with a name that needs space", CHART_LINE, points[0], 7},
                             {"published: theirs", CHART_DASHED, points[1], 7}};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        xy_chart chart = {.head = {"Batch scaling", "samples per second", widths[w]},
                          .x_name = "batch",
                          .y_name = "samples/s",
                          .x = CHART_LOG2,
                          .series = series,
                          .count = 2};
        check(drawn(draw_xy, &chart));
        /* Equal steps on a logarithmic axis, and of the line. */
        const char *line = strstr(svg, "class=\"c0 l\" points=\"");
        double x[7], y[7];
        assert_non_null(line);
        line += strlen("class=\"c0 l\" points=\"");
        for (int i = 0; i < 7; i++) {
            int used;
            assert_int_equal(sscanf(line, "%lf,%lf%n", &x[i], &y[i], &used), 2);
            line += used;
        }
        for (int i = 2; i < 7; i++) {
            assert_true(fabs((x[i] - x[i - 1]) - (x[1] - x[0])) < 0.25);
            assert_true(fabs((y[i] - y[i - 1]) - (y[1] - y[0])) < 0.25);
        }
        assert_true(x[1] > x[0] && y[1] < y[0]);
        assert_non_null(strstr(svg, "class=\"c1 l d\""));
        assert_non_null(strstr(svg, ">64<"));
    }
}

static void test_roof(void **state) {
    (void)state;
    chart_point points[] = {
        {.x = 200, .y = 800, .size = 4}, {.x = 2, .y = 8, .size = 1}, {.x = 0, .y = 1}, {.x = 1, .y = NAN}};
    chart_series series[] = {{"vision", CHART_POINTS, points, 4}};
    xy_chart chart = {.head = {"Roofline", NULL, 0},
                      .x_name = "FLOP a byte",
                      .y_name = "TFLOP/s",
                      .x = CHART_LOG10,
                      .y = CHART_LOG10,
                      .series = series,
                      .count = 1,
                      .roof_flat = 800,
                      .roof_slope = 4,
                      .roof_name = "800 TFLOP/s, 4 TB/s"};
    check(drawn(draw_xy, &chart));
    const char *roof = strstr(svg, "<polyline class=\"roof\" points=\"");
    double x[3], y[3];
    assert_non_null(roof);
    assert_int_equal(sscanf(roof, "<polyline class=\"roof\" points=\"%lf,%lf %lf,%lf %lf,%lf", &x[0], &y[0],
                            &x[1], &y[1], &x[2], &y[2]),
                     6);
    /* Both points lie on the roof: one at the ridge, one on the slope. */
    const char *mark = strstr(strstr(svg, "</rect>") ? svg : svg, "<circle");
    mark = strstr(mark + 1, "<circle"); /* the first is the legend's */
    assert_true(fabs(number_of(mark, "cx") - x[1]) < 0.3 && fabs(number_of(mark, "cy") - y[1]) < 0.3);
    double big = number_of(mark, "r");
    mark = strstr(mark + 1, "<circle");
    double cx = number_of(mark, "cx"), cy = number_of(mark, "cy");
    assert_true(fabs(cy - (y[0] + (y[1] - y[0]) * (cx - x[0]) / (x[1] - x[0]))) < 0.5);
    assert_true(number_of(mark, "r") < big);
    assert_true(fabs(y[2] - y[1]) < 0.1);
    assert_null(strstr(mark + 1, "<circle")); /* what has no place is not drawn */
}

static void test_histogram(void **state) {
    (void)state;
    static const int counts[] = {1, 5, 0, 2};
    double values[200];
    for (int i = 0; i < 200; i++) values[i] = 18 + (i * 37 % 101) * 0.01;
    chart_marker markers[] = {{"p50", 18.5, NULL}, {"p95", 18.51, NULL}, {"p99", 18.52, NULL}};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        histogram_chart chart = {.head = {"Latency", "host", widths[w]},
                                 .unit = "ms",
                                 .values = values,
                                 .count = 200,
                                 .markers = markers,
                                 .marker_count = 3};
        check(drawn(draw_histogram, &chart));
        int sum = 0;
        for (const char *at = strstr(svg, " to "); at; at = strstr(at + 1, " to "))
            sum += (int)strtol(strchr(at, ':') + 1, NULL, 10);
        assert_int_equal(sum, 200);
        chart.values = NULL;
        chart.counts = counts;
        chart.bin_count = 4;
        chart.low = 17.3;
        chart.step = 0.5;
        check(drawn(draw_histogram, &chart));
        assert_non_null(strstr(svg, "17.8 to 18.3: 5<"));
    }
}

/* ---- anything goes in ----------------------------------------------------------------------------- */

static void test_anything(void **state) {
    (void)state;
    static const char bad[] = "<script>\"&'\x01\xff\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80]]>";
    static const double numbers[] = {NAN, INFINITY, -INFINITY, 0, -1, 1e300, 1e-300, 5};
    chart_bar bars[8];
    chart_point points[64];
    for (int i = 0; i < 8; i++)
        bars[i] = (chart_bar){.label = bad, .values = {numbers[i]}, .note = bad, .froms = {bad}};
    drawn(draw_bars, &(bar_chart){.head = {bad, bad, 1}, .unit = bad, .bars = bars, .count = 8});
    check_form(svg);
    assert_null(strstr(svg, "<script"));
    check(drawn(draw_bars, &(bar_chart){.unit = "ms"}));
    for (int i = 0; i < 64; i++)
        points[i] = (chart_point){
            .x = numbers[i % 8], .y = numbers[i / 8], .size = numbers[i % 8], .tip = bad, .from = bad};
    chart_series series = {bad, CHART_LINE, points, 64};
    for (int x = CHART_LINEAR; x <= CHART_LOG10; x++)
        for (int y = CHART_LINEAR; y <= CHART_LOG10; y++) {
            drawn(draw_xy, &(xy_chart){.head = {bad, bad, 0},
                                       .x_name = bad,
                                       .y_name = bad,
                                       .x = (chart_axis)x,
                                       .y = (chart_axis)y,
                                       .series = &series,
                                       .count = 1,
                                       .roof_flat = 3,
                                       .roof_slope = 2,
                                       .roof_name = bad});
            check_form(svg);
        }
    check(drawn(draw_xy, &(xy_chart){.x_name = "x", .y_name = "y"}));
    drawn(draw_histogram,
          &(histogram_chart){.head = {bad, NULL, 0}, .unit = bad, .values = numbers, .count = 8});
    check_form(svg);
    check(drawn(draw_histogram, &(histogram_chart){.unit = "ms"}));
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0, "0"},          {1234.5, "1234"},        {123.46, "123"},       {12.346, "12.3"},
                 {1.2345, "1.23"}, {0.123456, "0.123"},     {0.0123456, "0.0123"}, {-0.5, "-0.500"},
                 {1e-7, "1e-07"},  {123456789, "1.23e+08"}, {NAN, "n/a"},          {INFINITY, "n/a"},
                 {99.96, "100"},   {9.996, "10.0"},         {0.9996, "1.00"},      {0.00123, "0.00123"}};
    char text[SVG_NUMBER];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(svg_number(cases[i].value, text), cases[i].text);
}

static int tear_down(void **state) {
    (void)state;
    free(svg);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bars),    cmocka_unit_test(test_parts),     cmocka_unit_test(test_lines),
        cmocka_unit_test(test_roof),    cmocka_unit_test(test_histogram), cmocka_unit_test(test_anything),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, tear_down);
}
