/* A chunk of actions as a picture: SVG, one small panel a dimension. */
#ifndef CLI_PLOT_H
#define CLI_PLOT_H

#include <stdio.h>

/* actions [horizon][dims], finite. Title and subtitle are any bytes. Errors stay in `file`. */
void plot_actions(FILE *file, const double *actions, int horizon, int dims, const char *title, const char *subtitle);

#endif
