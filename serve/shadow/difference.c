/* How far two chunks are apart (shadow.h). Pure. */
#include <math.h>

#include "shadow.h"

shadow_difference shadow_compare(const float *a, const float *b, int horizon, int columns) {
    shadow_difference d = {0, 0, 0, 0, 0};
    for (int row = 0; row < horizon; row++)
        for (int column = 0; column < columns; column++) {
            int at = row * OPENPI_ACTION_DIM + column;
            double off = fabs((double)a[at] - (double)b[at]);
            if (!isfinite(off)) return (shadow_difference){INFINITY, INFINITY, 0, row, column};
            d.rms += off * off;
            if (off > d.max) d.max = off, d.row = row, d.column = column;
        }
    d.rms = sqrt(d.rms / (horizon * columns));
    return d;
}
