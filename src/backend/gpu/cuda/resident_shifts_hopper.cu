/* The resident denoise kernel where rows and shifts together are more than 16 (π0.5 with 16 actions, or 15 of
 * which some may be known): the shifts are 8 rows of their own, which each block writes for itself, in the
 * products over x alone. The ring has 12 stages instead of 16, to make room. */
#define RESIDENT_APART 1
#include "resident_kernel.cuh"
