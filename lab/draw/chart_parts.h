/* What charts share among themselves: head, legend, plot area. */
#ifndef CLI_CHART_PARTS_H
#define CLI_CHART_PARTS_H

#include "chart.h"
#include "svg.h"

enum { CHART_MARGIN = 14 };

int chart_width(const chart_head *head);

typedef enum chart_sign { CHART_SIGN_MARK, CHART_SIGN_BOX, CHART_SIGN_LINE, CHART_SIGN_ROOF } chart_sign;
typedef struct chart_key {
    const char *name;
    int series;                  /* colour and mark                                                       */
    chart_style style;
    chart_sign sign;             /* a mark stands on its line unless the style is points                  */
    const char *from;            /* where a figure in the name comes from; may be NULL                    */
} chart_key;

typedef struct chart_area {
    double left, top, width, height;
} chart_area;

/* Each returns the y below what it put; a NULL file only measures. */
double chart_put_head(FILE *file, const chart_head *head);
double chart_put_legend(FILE *file, const chart_head *head, double y, const chart_key *keys, int count);

/* Opens a picture as high as put(NULL, chart) says, puts it, closes it. */
void chart_draw(FILE *file, const chart_head *head, double (*put)(FILE *file, const void *chart),
                const void *chart);

#endif
