/* Real-time chunking of a call: each sample's openpi_rtc checked and with its defaults, and what it becomes
 * in the inputs. Formulas: MODEL.md, "Real-time chunking". */
#ifndef MODEL_CHUNKING_H
#define MODEL_CHUNKING_H

#include "model/plan.h"

/* The call of a session with this horizon. *out is the caller's struct with every default resolved; mode OFF
 * where nothing is to be done (TRAINED with a delay of 0). `b` is the sample's number, for sentences. */
openpi_status chunking_take(const checkpoint *checkpoint, int horizon, const openpi_rtc *given, int b,
                            openpi_rtc *out, openpi_error *error);

/* The op list that a call with these samples needs. */
plan_kind chunking_plan(const openpi_rtc *rtc, int batch);
/* How many first actions of a sample are known. */
int chunking_known(const openpi_rtc *rtc);

/* weights[horizon] of the overlap, in fp32 as LeRobot computes them. */
void chunking_weights(openpi_rtc_schedule schedule, int delay, int end, int horizon, float *weights);
/* The guidance weight of one of `steps` steps, at time t. A weight of `steps` takes the row onto the previous
 * chunk, and more would throw it beyond. */
double chunking_gain(double t, double max_weight, int steps);

/* Fills target, weight and gain of a call, and the known actions of x_t, which is noise before. */
void chunking_fill(const plan *plan, plan_inputs *in, const openpi_rtc *rtc, int batch);

#endif
