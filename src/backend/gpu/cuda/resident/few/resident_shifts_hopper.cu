/* The resident denoise kernel where rows and shifts together are more than 12 (16 actions, say): the shifts
 * are 8 rows of their own, in the products over x alone. The ring has 4 stages less, to make room. */
#define RESIDENT_APART 1
#include "resident_kernel.cuh"
