/* A chunk of actions as a picture: SVG, one small panel a dimension. */
#ifndef CLI_PLOT_H
#define CLI_PLOT_H

#include <stdio.h>

typedef struct action_plot {
    const char *title, *subtitle;          /* any bytes                                                   */
    const double *actions;                 /* [horizon][dims], finite                                     */
    int horizon, dims;
    const char *const *names, *const *units;         /* [dims]; "": not known                             */
    const double *starts;                  /* [dims]: the state that an action starts at, a dot at time 0;
                                              NaN: none; NULL: none at all                                */
    double rate_hz;                        /* steps a second: the axis counts seconds; 0: it counts steps  */
} action_plot;

/* Panels of one unit share a scale, so that their sizes can be compared; one without a unit has its own.
 * Errors stay in `file`. */
void plot_actions(FILE *file, const action_plot *plot);

#endif
