/* How large the channels are that 8-bit products read: in rows of a user's observations, and in columns of
 * the weights that read them (model/smoothing.h). */
#ifndef QUANTIZE_CALIBRATE_H
#define QUANTIZE_CALIBRATE_H

#include "openpi_internal.h"

enum { CALIBRATE_MOST = 8 };     /* observations that are enough, evenly spread                            */

typedef struct calibration {
    openpi_session *session;     /* whose rows are looked at                                               */
    float *rows, *weights;       /* [smooth_count] largest magnitudes                                      */
    void *act;                   /* memory for rows as the device has them                                 */
    float *row;                  /* [LIMIT_INPUTS] one of them, normalised                                 */
} calibration;

/* Calls of the session are looked at until calibration_close, which is for a failure too. */
openpi_status calibration_open(openpi_session *session, calibration *c, openpi_error *error);
void calibration_close(calibration *c);
/* The powers of all channels, [smooth_count], after the calls. Opens the source again, for its weights. */
openpi_status calibration_powers(calibration *c, const checkpoint_source *source, int8_t *powers,
                                 openpi_error *error);

/* After the calls, static scales of the rows that the prefix's down reads (matrix.row_scale), for
 * formats_row_scales layers: of channels as they are, powers NULL, or divided by these. */
void calibration_row_scales(const calibration *c, const int8_t *powers, float *scales);

#endif
